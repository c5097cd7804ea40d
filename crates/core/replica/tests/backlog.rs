//! A replica whose disk stands still while the others go on (A6). Time is virtual.

use crate::follower::{BACKLOG_BYTES, COMMAND_BYTES, DEPTH, Follower, put};
use bytes::Bytes;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::{Command, Encode, Message, Slot, View};
use perdura_replica::node::State;
use perdura_store::StoreCommand;

fn follower() -> Follower {
    let durability = Durability::Sync;
    Follower::new(|parameters| Parameters { durability, ..parameters })
}

/// Execution and logging overlap.
#[test]
fn what_is_executed_before_it_is_logged_is_answered_after() {
    let mut follower = follower();
    follower.decide(Command::Open, 0);
    follower.decide(put(1), 1);
    let report = follower.node.report();
    assert_eq!((report.decided, report.executed), (Slot(2), Slot(2)));
    assert_eq!(follower.replies, 0);
    follower.persist();
    assert_eq!(follower.replies, 2);
}

#[test]
fn what_waits_for_a_disk_that_stands_still_is_bounded_in_bytes() {
    let mut follower = follower();
    follower.decide(Command::Open, 0);
    for number in 1..200 {
        follower.decide(put(number), number);
        let bound = BACKLOG_BYTES + 2 * (DEPTH as usize + 1) * (COMMAND_BYTES + 1_000);
        let waiting = follower.waiting();
        assert!(
            waiting <= bound,
            "{waiting} bytes wait at slot {}, and not {bound}",
            follower.slot
        );
    }
    follower.give(&Message::Status { view: View(0), changing: false, delivered: Slot(0) });
    let report = follower.node.report();
    assert_eq!(report.state, State::Recovering, "it takes no part, and says so");
    let executed = report.executed;
    assert!(executed > Slot(5) && executed < Slot(30), "{executed}");
    // The disk goes on, and so does the replica: it fetches what it missed.
    follower.persist();
    // What was decided meanwhile.
    follower.persist();
    assert_eq!(follower.waiting(), 0);
    for _ in 0..10 {
        follower.now_ms += 100;
        let delivered = follower.slot;
        follower.give(&Message::Status { view: View(0), changing: false, delivered });
        follower.end_round();
        follower.persist();
    }
    let report = follower.node.report();
    assert!(report.executed >= executed && report.state == State::Active);
    assert_eq!(follower.asked.last(), Some(&report.executed.next()));
}

#[test]
fn an_idle_group_makes_no_appends_without_end_for_a_disk_that_stands_still() {
    let mut follower = follower();
    follower.decide(Command::Open, 0);
    let tick = |number| {
        Command::Service(StoreCommand::Get { key: Bytes::from(format!("{number}")) }.to_bytes())
    };
    for number in 1..5_000 {
        follower.decide(tick(number), number);
    }
    assert!(follower.appends.len() <= 1024, "{} appends under way", follower.appends.len());
    follower.persist();
    follower.persist();
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn replies_larger_than_commands_wait_within_the_bound_too() {
    let mut follower = follower();
    follower.decide(Command::Open, 0);
    follower.decide(put(0), 1);
    follower.persist();
    let before = follower.replies;
    for number in 2..200 {
        let get = StoreCommand::Get { key: Bytes::from_static(b"key0") };
        follower.decide(Command::Service(get.to_bytes()), number);
        let bound = BACKLOG_BYTES + 2 * (DEPTH as usize + 1) * (COMMAND_BYTES + 1_000);
        let waiting = follower.waiting();
        assert!(
            waiting <= bound,
            "{waiting} bytes wait at slot {}, and not {bound}",
            follower.slot
        );
    }
    follower.persist();
    assert!(follower.replies > before + 5, "{} replies", follower.replies);
}
