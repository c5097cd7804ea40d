//! A command to forget looks at a bounded number of transactions, and the next one goes on behind them (version 2 of the store).

use super::world::*;
use crate::support::{read, write};
use perdura_execution::Service;
use perdura_protocol::{SessionId, Time};
use perdura_store::partition::{
    Blocker, Fence, Intent, PartitionCommand, PartitionReply, Reason, Signed, Statement, limits,
};

/// Transactions of a session that are over in partition 0, with numbers in a range; the other one that takes part is this one.
fn over(world: &mut World, session: SessionId, numbers: std::ops::Range<u64>, other: u16) {
    for number in numbers {
        let parts = [(0, vec![read("a1")]), (other, vec![read("b1")])];
        let intent = world.intent(session, number, true, &parts);
        assert!(is_commit(&world.prepare(&intent, session, &parts[0])));
        world.finish(0, session, (intent.id(), true), &[]);
    }
}

/// Fences of a session in these partitions, above all numbers.
fn fences(world: &World, session: SessionId, of: &[u16]) -> Vec<Fence> {
    let (below, signed) = (u64::MAX, Signed::Agreed(Time(world.clock)));
    let fence = |of: &u16| {
        let proof = world.certificate(*of, &Statement::Fence { session, below, now: signed });
        Fence { proof, nonce: session.nonce, below, signed }
    };
    of.iter().map(fence).collect()
}

/// How many are forgotten that took part in these.
fn forget(world: &mut World, asker: SessionId, session: SessionId, of: &[u16]) -> u32 {
    let fences = fences(world, session, of);
    match world.ask(0, asker, &PartitionCommand::Forget { session, fences }) {
        PartitionReply::Forgotten { count } => count,
        other => panic!("{other:?}"),
    }
}

/// That many of which the other one that takes part is looked at and keeps them.
const AT_ONCE: u64 = limits::LOOKED_AT as u64 / 2;

/// A fence with its session, as it is kept.
const FENCE_BYTES: u64 = 1 + 32 + 8 + 8 + 64;

/// What one costs at most: of the last one that it looks at there may be more participants.
const MOST_COST: u64 = 256 * (limits::LOOKED_AT as u64 + 64);

const _: () = assert!(MOST_COST < 2 << 20);

#[test]
fn what_can_be_forgotten_does_not_wait_behind_what_cannot() {
    let mut world = World::new(3);
    let session = client(1);
    world.ask(0, session, &PartitionCommand::Fence { session, below: 100_000 });
    assert_eq!(forget(&mut world, session, session, &[1, 2]), 0);
    let before = world.stores[0].state_bytes();
    let stuck = 2 * AT_ONCE + 100;
    for (session, from) in [(session, 100_000), (client(2), 0)] {
        over(&mut world, session, from..from + stuck, 1);
        over(&mut world, session, from + stuck..from + stuck + 50, 2);
    }
    world.ask(0, session, &PartitionCommand::Fence { session, below: 200_000 });
    for expected in [0, 0, 50, 0, 0] {
        assert_eq!(forget(&mut world, session, session, &[2]), expected);
        assert!(world.cost <= MOST_COST && world.cost > 0, "{}", world.cost);
        world.restart();
    }
    // Those that are left can be forgotten now. What is in another session is not touched.
    let mut left = stuck as u32;
    while left > 0 {
        let count = forget(&mut world, client(3), session, &[1]);
        assert!(count > 0 && count <= limits::FORGOTTEN as u32 && world.cost <= MOST_COST);
        left -= count;
        world.restart();
    }
    assert_eq!(forget(&mut world, session, session, &[1, 2]), 0);
    let other = client(2);
    world.ask(0, other, &PartitionCommand::Fence { session: other, below: 100_000 });
    let mut left = stuck as u32 + 50;
    while left > 0 {
        let count = forget(&mut world, other, other, &[1, 2]);
        assert!(count > 0);
        left -= count;
    }
    // Nothing stays of either but that they are fenced off.
    let grown = world.stores[0].state_bytes() - before;
    assert_eq!(grown, FENCE_BYTES);
    world.restart();
}

/// Others could lead the next one past what it would forget.
#[test]
fn only_its_own_client_and_who_ends_what_is_left_lead_the_next_one_on() {
    for (asker, is_heeded) in [
        (client(1), true),
        (SessionId { client: RESOLVER, nonce: 8 }, true),
        (SessionId { nonce: 77, ..client(1) }, true),
        (client(3), false),
    ] {
        let mut world = World::new(3);
        let session = client(1);
        over(&mut world, session, 0..AT_ONCE, 1);
        over(&mut world, session, AT_ONCE..AT_ONCE + 50, 2);
        world.ask(0, session, &PartitionCommand::Fence { session, below: 100_000 });
        let before = world.stores[0].state_bytes();
        assert_eq!(forget(&mut world, asker, session, &[]), 0);
        let is_noted = world.stores[0].state_bytes() > before;
        assert_eq!(is_noted, is_heeded);
        let count = forget(&mut world, client(4), session, &[2]);
        assert_eq!(count, if is_heeded { 50 } else { 0 });
    }
}

/// Whoever has the last ones forgotten.
#[test]
fn where_one_stopped_is_not_known_any_longer_than_the_session() {
    for is_own in [true, false] {
        let mut world = World::new(3);
        let session = client(1);
        world.ask(0, session, &PartitionCommand::Fence { session, below: 0 });
        forget(&mut world, session, session, &[1, 2]);
        let before = world.stores[0].state_bytes();
        let count = limits::FORGOTTEN as u64;
        over(&mut world, session, 0..2 * count, 1);
        world.ask(0, session, &PartitionCommand::Fence { session, below: 2 * count });
        assert_eq!(forget(&mut world, session, session, &[1]), limits::FORGOTTEN as u32);
        let asker = if is_own { session } else { client(3) };
        assert_eq!(forget(&mut world, asker, session, &[1]), limits::FORGOTTEN as u32);
        assert_eq!(world.stores[0].state_bytes() - before, FENCE_BYTES);
        world.restart();
    }
}

#[test]
fn one_that_costs_more_than_it_may_forgets_nothing() {
    let mut world = World::new(3);
    let session = client(1);
    over(&mut world, session, 0..10, 1);
    world.ask(0, session, &PartitionCommand::Fence { session, below: 10 });
    let before = world.stores[0].state_bytes();
    world.most_cost = 256 * 2 * 10 - 1;
    let fences = fences(&world, session, &[1]);
    let command = PartitionCommand::Forget { session, fences };
    let refused = world.ordered(0, session, &command).unwrap().unwrap_err();
    assert!(refused.contains("more work than one may"), "{refused}");
    // Not even that the other one was heard of is noted.
    assert_eq!(world.stores[0].state_bytes(), before);
    world.most_cost += 1;
    assert_eq!(world.ask(0, session, &command), PartitionReply::Forgotten { count: 10 });
    assert_eq!(world.cost, 256 * 2 * 10);
}

/// Who takes part is looked at until one is found in which it is not known to be over.
#[test]
fn charged_is_what_was_looked_at() {
    let mut world = World::new(3);
    world.go_on_under(2);
    let session = client(1);
    let parts = [(0, vec![read("a1")]), (1, vec![read("b1")]), (2, vec![read("c1")])];
    for number in 1..=10 {
        let intent = world.intent(session, number, true, &parts);
        assert!(is_commit(&world.prepare(&intent, session, &parts[0])));
        if number > 3 {
            let transaction = intent.id();
            let votes = Vec::new();
            let finish = PartitionCommand::Finish { transaction, commit: true, votes };
            world.ask(0, session, &finish);
        }
    }
    world.standing = perdura_execution::Standing::Over;
    let cost = |world: &mut World, of: &[u16]| {
        assert_eq!(forget(world, client(2), session, of), 0);
        world.cost / 256
    };
    // Some are pending: nothing from the first of them on is fenced off here.
    assert_eq!(cost(&mut world, &[1, 2]), 0);
    for number in 2..=3 {
        let transaction = world.intent(session, number, true, &parts).id();
        let votes = Vec::new();
        world.ask(0, session, &PartitionCommand::Finish { transaction, commit: true, votes });
    }
    assert_eq!(cost(&mut world, &[1, 2]), 0);
    let transaction = world.intent(session, 1, true, &parts).id();
    let votes = Vec::new();
    world.ask(0, session, &PartitionCommand::Finish { transaction, commit: true, votes });
    assert_eq!(cost(&mut world, &[2]), 10 * 2);
    assert_eq!(cost(&mut world, &[1]), 10 * 3);
    assert_eq!(forget(&mut world, client(2), session, &[1, 2]), 10);
}

/// Under the rules before, one looks at all of them, and nothing is noted.
#[test]
fn under_version_1_one_looks_at_all() {
    let mut world = World::new(3);
    world.go_on_under(1);
    let session = client(1);
    over(&mut world, session, 0..2 * AT_ONCE, 1);
    over(&mut world, session, 2 * AT_ONCE..2 * AT_ONCE + 50, 2);
    world.ask(0, session, &PartitionCommand::Fence { session, below: 100_000 });
    assert_eq!(forget(&mut world, session, session, &[2]), 50);
    let before = world.stores[0].state_bytes();
    assert_eq!(forget(&mut world, session, session, &[2]), 0);
    assert_eq!(world.stores[0].state_bytes(), before);
    assert_eq!(forget(&mut world, session, session, &[1]), limits::FORGOTTEN as u32);
}

/// That there is no record below the own fence is the same vote to abort, so no other fence is waited for. What was voted to commit is kept until the
/// others cannot ask for it any more, however it ended.
#[test]
fn a_vote_to_abort_is_forgotten_below_the_own_fence_alone() {
    let mut world = World::new(2);
    let session = client(1);
    let [granted, refused, given_up] = [1, 2, 3].map(|number| {
        let key = ["a1", "a1", "a2"][number as usize - 1];
        let parts = [(0, vec![write(key, "1", false)]), (1, vec![write("b1", "1", false)])];
        let intent = world.intent(session, number, false, &parts);
        assert_eq!(is_commit(&world.prepare(&intent, session, &parts[0])), number != 2);
        intent
    });
    let vote = |world: &World, of: &Intent, commit| {
        [world.certificate(1, &Statement::Vote { transaction: of.id(), commit })]
    };
    let votes = vote(&world, &granted, true);
    world.finish(0, session, (granted.id(), true), &votes);
    let votes = vote(&world, &given_up, false);
    world.finish(0, session, (given_up.id(), false), &votes);
    assert_eq!(forget(&mut world, session, session, &[]), 0);
    world.ask(0, session, &PartitionCommand::Fence { session, below: 4 });
    assert_eq!(forget(&mut world, session, session, &[]), 1);
    world.restart();
    let mut resolve = |intent: &Intent| {
        let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
        world.ask(0, client(2), &resolve)
    };
    assert_eq!(reason(resolve(&refused)), Reason::Fenced);
    assert!(is_commit(&resolve(&granted)) && is_commit(&resolve(&given_up)));
    assert_eq!(forget(&mut world, session, session, &[1]), 2);
    // Before that it waited for the others' fences.
    world.go_on_under(2);
    over(&mut world, session, 10..11, 1);
    let parts = [(0, vec![write("a1", "1", false)]), (1, vec![write("b1", "1", false)])];
    let resolved = world.intent(session, 12, false, &parts);
    world.ask(0, session, &PartitionCommand::Resolve { intent: resolved, expired: None });
    world.ask(0, session, &PartitionCommand::Fence { session, below: 20 });
    assert_eq!(forget(&mut world, session, session, &[]), 0);
}

#[test]
fn what_is_stuck_keeps_nothing_else() {
    let mut world = World::new(3);
    let session = client(1);
    let parts = [(0, vec![read("a1")]), (2, vec![read("c1")])];
    let stuck = world.intent(session, 1, true, &parts);
    assert!(is_commit(&world.prepare(&stuck, session, &parts[0])));
    over(&mut world, session, 2..50, 1);
    // What others are told of it is still below what is pending.
    let fence = PartitionCommand::Fence { session, below: 100 };
    let now = Signed::Agreed(world.time());
    assert_eq!(world.ask(0, session, &fence), PartitionReply::Fenced { session, below: 1, now });
    assert_eq!(forget(&mut world, session, session, &[1]), 48);
    world.restart();
    // It is as it was, and nothing else is prepared below the fence.
    assert!(is_commit(&world.prepare(&stuck, session, &parts[0])));
    let late = world.intent(session, 60, true, &parts);
    assert_eq!(reason(world.prepare(&late, session, &parts[0])), Reason::Fenced);
    world.finish(0, session, (stuck.id(), true), &[]);
    assert_eq!(world.ask(0, session, &fence), PartitionReply::Fenced { session, below: 100, now });
    assert_eq!(forget(&mut world, session, session, &[2]), 1);
}

#[test]
fn a_partition_that_has_ended_is_waited_for_by_nothing() {
    let mut world = World::new(3);
    let session = client(1);
    let administrator = SessionId { client: world.administrator.public(), nonce: 1 };
    over(&mut world, session, 1..10, 2);
    let parts = [(0, vec![write("a1", "1", false)]), (2, vec![write("c1", "1", false)])];
    let pending = world.intent(session, 10, false, &parts);
    assert!(is_commit(&world.prepare(&pending, session, &parts[0])));
    let end = |of| PartitionCommand::End { partition: partition(of) };
    for (who, of) in [(session, 2), (administrator, 0), (administrator, 3)] {
        assert!(world.ordered(0, who, &end(of)).unwrap().is_err());
    }
    let ended = PartitionReply::Ended { partition: partition(2) };
    assert_eq!(world.ask(0, administrator, &end(2)), ended);
    assert_eq!(world.ask(0, administrator, &end(2)), ended);
    world.restart();
    let next = world.intent(session, 11, false, &parts);
    let refused = reason(world.prepare(&next, session, &parts[0]));
    assert_eq!(refused, Reason::Unreachable { partition: partition(2), oldest: Blocker::Other });
    let others = [(0, vec![write("a2", "1", false)]), (1, vec![write("b1", "1", false)])];
    assert!(world.run(session, 12, &others));
    world.ask(0, session, &PartitionCommand::Fence { session, below: 12 });
    assert_eq!(forget(&mut world, session, session, &[]), 10);
    // What is pending on it is ended by votes, or by force.
    let force = PartitionCommand::Force { intent: pending.clone(), commit: true };
    assert_eq!(
        world.ask(0, administrator, &force),
        PartitionReply::Finished { transaction: pending.id(), committed: true }
    );
    assert_eq!(forget(&mut world, session, session, &[]), 1);
    // Who goes by the rules before knows of no such word.
    world.go_on_under(2);
    assert!(world.ordered(0, administrator, &end(1)).unwrap().is_err());
}
