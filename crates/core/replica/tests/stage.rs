//! A replica that executes in a stage of its own, which takes its time.

use crate::common;
use crate::follower::{COMMAND_BYTES, DEPTH, Follower, put};
use perdura_execution::{Asked, Job};
use perdura_protocol::{
    Batch, Certificate, Command, Digest, Outcome, Record, Scheme, Slot, Time, View,
};
use perdura_replica::node::{Boot, BootError, Found, KEPT_STATES, Now};
use std::cell::Cell;

fn slots(follower: &Follower) -> (Slot, Slot) {
    let report = follower.node.report();
    (report.decided, report.executed)
}

/// One for which so many slots were decided, of which its stage has executed none.
fn decided(slots: u64) -> Follower {
    let mut follower = Follower::apart();
    follower.decide(Command::Open, 0);
    for number in 1..slots {
        follower.decide(put(number), number);
    }
    follower.persist();
    follower
}

/// Agreement ends a pipeline's depth above what is executed, and nobody else is to blame for that.
pub fn a_leader_is_not_suspected_for_a_stage_that_holds_the_pipeline() {
    let mut follower = decided(DEPTH);
    follower.propose(put(DEPTH), DEPTH);
    follower.wait(60_000);
    assert_eq!((follower.suspicions, slots(&follower)), (0, (Slot(DEPTH), Slot(0))));
    follower.work(follower.jobs.len());
    assert_eq!(slots(&follower), (Slot(DEPTH), Slot(DEPTH)));
    // From now on the leader has its time-out.
    follower.wait(60_000);
    assert!(follower.suspicions > 0);
}

/// A stage that merely has work excuses nothing.
pub fn a_leader_is_suspected_though_a_stage_has_work() {
    let mut follower = decided(DEPTH - 1);
    follower.propose(put(DEPTH), DEPTH);
    follower.wait(60_000);
    assert!(follower.suspicions > 0);
    assert_eq!(slots(&follower), (Slot(DEPTH - 1), Slot(0)));
}

/// A leader that leaves a client out, and fills the pipeline for a moment again and again, gains nothing by that.
pub fn a_pipeline_that_is_full_for_a_moment_excuses_nothing() {
    let mut follower = Follower::apart();
    follower.decide(Command::Open, 0);
    follower.work(1);
    follower.ask(put(1), 1);
    for _ in 0..60 {
        for _ in 0..DEPTH {
            follower.decide_batch(Batch::null());
        }
        follower.work(follower.jobs.len());
        follower.persist();
        follower.wait(500);
    }
    assert!(follower.suspicions > 0);
}

/// Neither is one handed to the leader that was decided, nor is it answered before it was executed and logged.
pub fn a_retry_of_what_waits_for_the_stage_waits_too() {
    let mut follower = Follower::apart();
    follower.decide(Command::Open, 0);
    follower.decide(put(1), 1);
    let again = follower.node.report().counters.retransmissions;
    follower.ask(put(1), 1);
    assert_eq!(follower.node.report().counters.retransmissions, again + 1);
    assert_eq!((follower.jobs.len(), follower.replies), (2, 0));
    follower.work(2);
    assert_eq!(follower.replies, 0, "it is not logged");
    follower.persist();
    assert_eq!(follower.replies, 2);
    // The stage has its answer, and gives it again.
    follower.ask(put(1), 1);
    assert_eq!((follower.jobs.len(), follower.replies), (1, 2));
    follower.work(1);
    assert_eq!((follower.jobs.len(), follower.replies), (0, 3));
}

/// What waits for the stage is known, and counted.
pub fn what_waits_for_the_stage_is_reported() {
    let mut follower = decided(DEPTH);
    let held = |follower: &Follower| {
        let held = follower.node.held();
        (held.apply_queue.0, held.retries, held.reads_beside)
    };
    assert_eq!(held(&follower), (DEPTH as usize, (0, 0), 0));
    let (_, bytes) = follower.node.held().apply_queue;
    let values = (DEPTH as usize - 1) * COMMAND_BYTES;
    assert!((values..values + 1_000 * DEPTH as usize).contains(&bytes), "{bytes}");
    follower.work(1);
    assert_eq!(held(&follower), (DEPTH as usize - 1, (0, 0), 0));
    follower.work(follower.jobs.len());
    assert_eq!((held(&follower), follower.node.held().apply_queue.1), ((0, (0, 0), 0), 0));
    // Twice the same, and another one.
    for number in [1, 1, 2] {
        follower.ask(put(number), number);
    }
    assert_eq!((held(&follower), follower.jobs.len()), ((0, (2, 2), 0), 2));
    assert_eq!(follower.node.report().counters.stage.retries_asked, 2);
    follower.work(2);
    assert_eq!(held(&follower), (0, (0, 0), 0));
    // As small as in simulations there is room for one.
    follower.node.shrink_queues(8);
    follower.ask(put(1), 1);
    follower.ask(put(2), 2);
    assert_eq!((held(&follower), follower.jobs.len()), ((0, (1, 1), 0), 1));
    assert_eq!(follower.node.report().counters.stage.retries_passed_over, 1);
    // Of one key no more than one read is under way where there are two threads.
    for id in 1..4 {
        follower.read(id, "key1");
    }
    assert_eq!(
        (held(&follower), follower.jobs.len()),
        ((0, (1, 1), 0), 2),
        "a state is shared first"
    );
    follower.work(2);
    for left in (1..4).rev() {
        assert_eq!((held(&follower), follower.reads.len()), ((0, (0, 0), 1), 1), "{left} left");
        follower.answer_reads();
    }
    assert_eq!((held(&follower), follower.found.len()), ((0, (0, 0), 0), 3));
}

/// What the stage has yet to execute keeps no read waiting that came before, and its answer is of the state that it waited for.
pub fn reads_are_answered_beside_the_stage_in_the_state_that_they_wait_for() {
    let mut follower = Follower::apart();
    follower.decide(Command::Open, 0);
    follower.decide(put(1), 1);
    follower.read(1, "key1");
    let is_share = |follower: &Follower| {
        follower.jobs.iter().filter(|job| matches!(job, Job::Share { .. })).count()
    };
    assert_eq!((is_share(&follower), follower.reads.len()), (1, 0));
    // The stage is told at once, and then executes what the read has to see.
    let share = follower.jobs.len() - 1;
    let job = follower.jobs.remove(share).unwrap();
    follower.jobs.push_front(job);
    follower.work(1);
    assert!(follower.reads.is_empty(), "the put before it is decided");
    follower.work(2);
    assert_eq!(follower.reads.len(), 1);
    // Others follow, of which one is executed before the answer is there.
    follower.decide(put(5), 2);
    follower.decide(put(9), 3);
    follower.work(1);
    follower.answer_reads();
    let [(slot, Some(Outcome::Service(_)))] = &follower.found[..] else {
        panic!("{:?}", follower.found)
    };
    assert_eq!(*slot, Slot(2));
    // A read that came behind them waits for the last one.
    follower.read(2, "key1");
    follower.answer_reads();
    assert_eq!((follower.found.len(), is_share(&follower)), (1, 0), "the stage shares for a while");
    follower.work(1);
    follower.answer_reads();
    assert_eq!(follower.found.last().unwrap().0, Slot(4));
    // Nobody reads for a while, and no state is held for nothing: then it is asked for anew.
    for number in 4..4 + 3 * DEPTH {
        follower.decide(put(number), number);
        follower.work(follower.jobs.len());
        follower.persist();
    }
    follower.read(3, "key1");
    assert_eq!((is_share(&follower), follower.reads.len()), (1, 0));
    follower.work(1);
    follower.answer_reads();
    assert_eq!(follower.found.last().unwrap().0, Slot(4 + 3 * DEPTH));
}

/// Of states that were shared some are kept for a second, and what waits for one that comes soon is answered by no other.
pub fn a_read_of_one_slot_is_answered_by_the_state_after_it_alone() {
    let mut follower = Follower::apart();
    assert!(follower.node.keeps_states());
    follower.decide(Command::Open, 0);
    follower.work(follower.jobs.len());
    follower.read(1, "key3");
    follower.work(follower.jobs.len());
    follower.answer_reads();
    for number in 1..=4 {
        follower.decide(put(number), number);
        follower.work(follower.jobs.len());
    }
    // The put of key 3 is slot 4, and slot 5 is the view's.
    let asked = |follower: &mut Follower, slot: u64| {
        follower.found.clear();
        follower.read_at(slot, slot, "key3");
        follower.answer_reads();
        follower.found.clone()
    };
    let value = |found: &[(Slot, Option<Outcome>)]| match found {
        [(slot, Some(Outcome::Service(reply)))] => (slot.0, reply.len() > 8),
        other => panic!("{other:?}"),
    };
    let nothing_yet = asked(&mut follower, 3);
    for (slot, found) in [(3, false), (4, true), (5, true)] {
        assert_eq!(value(&asked(&mut follower, slot)), (slot, found));
    }
    assert_eq!(follower.node.report().held.kept_states, 4);
    // One that is too far away is refused, one that comes is waited for.
    assert_eq!(asked(&mut follower, 6 + DEPTH), [(Slot(5), None)]);
    assert_eq!(asked(&mut follower, 6), []);
    for number in 5..=6 {
        follower.decide(put(number), number);
    }
    follower.work(2);
    assert_eq!(follower.reads.len(), 1);
    follower.answer_reads();
    assert_eq!(value(&follower.found), (6, true));
    // A second later they are gone, but that of the view is there for as long as nothing else is.
    follower.wait(1_100);
    assert_eq!(asked(&mut follower, 3), [(Slot(7), None)]);
    assert_eq!(value(&asked(&mut follower, 7)), (7, true));
    assert_eq!(follower.node.report().held.kept_states, 0);
    assert_eq!(value(&nothing_yet), (3, false));
    // However many come, a few are kept.
    for number in 7..27 {
        follower.decide(put(number), number);
        follower.work(follower.jobs.len());
        follower.persist();
        follower.read(100 + number, "key3");
        follower.answer_reads();
    }
    assert_eq!(follower.node.report().held.kept_states, KEPT_STATES);
}

/// Of ten batches in its log, each with its mark, one that is to stop after three executes three.
pub fn a_replay_that_is_to_stop_does_so_behind_a_batch() {
    let (mut records, mut history) = (Vec::new(), Digest::ZERO);
    for slot in (1..=10).map(Slot) {
        let batch = Batch::tick(Time(slot.0));
        history = history.chain(slot, batch.digest());
        let (view, writes) = (View(0), Certificate::default());
        records.push(Record::Vote { view, slot, batch, writes });
        records.push(Record::Delivered { slot, history });
    }
    let replayed = |most: usize| {
        let boot = common::boot(0, Scheme::KeyedHash, (1, 0), Vec::new());
        let found = Found { records: records.clone(), ..Found::default() };
        let (asked, looks) = (Asked::default(), Cell::new(0));
        let stops = || looks.replace(looks.get() + 1) == most + 1;
        let ended = Boot { found, ..boot }.replay(asked.clone(), &stops);
        (ended, asked.slot())
    };
    let (ended, executed) = replayed(3);
    assert!(matches!(ended, Err(BootError::Stopped)));
    assert_eq!(executed, Slot(3));
    let (ended, executed) = replayed(10);
    assert_eq!(executed, Slot(10));
    let now = Now { monotonic_ms: 10_000, wall: Time(10_000) };
    assert_eq!(ended.unwrap().start(now).report().executed, Slot(10));
}
