//! No client key, and no two of them, make a partition remember or hold more than its bounds (version 2 of the store).

use super::world::*;
use crate::support::{bytes, range, read, write};
use perdura_execution::Service;
use perdura_protocol::SessionId;
use perdura_protocol::limits::NONCES_PER_MS;
use perdura_store::Operation;
use perdura_store::partition::{
    Intent, Participant, PartitionCommand, PartitionReply, Reason, Statement, Vote, limits,
};

/// One that names partition 0, where it is pending, and partition 1.
fn intent(world: &World, who: SessionId, counter: u64) -> Intent {
    let parts = [(0, vec![read("a1")]), (1, vec![read("b1")])];
    world.intent(who, counter, true, &parts)
}

/// Another key resolves a transaction in partition 1, since it has expired in partition 0.
fn resolved(world: &mut World, intent: &Intent) -> PartitionReply {
    let expired = world.certificate(0, &Statement::Expired { transaction: intent.id() });
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: Some(expired) };
    world.ask(1, client(9), &resolve)
}

fn fenced(reply: &PartitionReply) -> bool {
    matches!(reply, PartitionReply::Voted { vote: Vote::Abort(Reason::Fenced), .. })
}

#[test]
fn what_others_resolve_of_a_client_at_its_bound_raises_its_floor_and_leaves_no_record() {
    let mut world = World::new(2);
    let who = client(1);
    for counter in 0..u64::from(limits::RECORDS_PER_CLIENT) {
        let intent = intent(&world, who, counter);
        let reply = resolved(&mut world, &intent);
        assert!(matches!(reply, PartitionReply::Voted { vote: Vote::Abort(Reason::Resolved), .. }));
    }
    let before = world.stores[1].state_bytes();
    // A part of its own it is refused, without a vote: what is over it may still tidy up.
    let next = intent(&world, who, 10_000);
    let prepare = PartitionCommand::Prepare { intent: next.clone(), operations: vec![read("b1")] };
    let refused = world.ordered(1, who, &prepare).unwrap().unwrap_err();
    assert!(refused.contains("are remembered"), "{refused}");
    for counter in 10_000..10_500 {
        let one = intent(&world, who, counter);
        assert!(fenced(&resolved(&mut world, &one)));
    }
    let grown = world.stores[1].state_bytes() - before;
    assert!(grown < 256, "{grown} bytes");
    for _ in 0..2 {
        // The vote is final: it is not prepared any more, whoever asks; and nothing of that session that there is no record of.
        assert!(fenced(&world.ask(1, who, &prepare)));
        let later = intent(&world, who, 20_000);
        assert!(fenced(&world.prepare(&later, who, &(1, vec![read("b1")]))));
        // What there is a record of has the vote that it had.
        let first = intent(&world, who, 5);
        let known = world.prepare(&first, who, &(1, vec![read("b1")]));
        assert_eq!(reason(known), Reason::Resolved);
        // Other clients go on.
        let other = client(2);
        let parts = two_writes("x");
        let counter = 1 + world.slot;
        assert!(world.run(other, counter, &parts));
        world.restart();
    }
    // So that others can forget: nothing of the session comes any more.
    let fence = world.ask(1, client(9), &PartitionCommand::Fence { session: who, below: 0 });
    assert!(matches!(fence, PartitionReply::Fenced { below: u64::MAX, .. }), "{fence:?}");
    // A new session of the client goes on once there is room; its records are still there.
    let newer = SessionId { nonce: who.nonce + 1, ..who };
    let parts = two_reads();
    let again = world.intent(newer, 1, true, &parts);
    let operations = parts[1].1.clone();
    let refused =
        world.ordered(1, newer, &PartitionCommand::Prepare { intent: again, operations }).unwrap();
    assert!(refused.unwrap_err().contains("are remembered"));
}

/// Under the rules before, they were beside the bound.
#[test]
fn under_version_1_what_others_resolve_is_remembered_beyond_the_bound() {
    let mut world = World::new(2);
    world.go_on_under(1);
    for counter in 0..u64::from(limits::RECORDS_PER_CLIENT) + 10 {
        let one = intent(&world, client(1), counter);
        let reply = resolved(&mut world, &one);
        assert!(matches!(reply, PartitionReply::Voted { vote: Vote::Abort(Reason::Resolved), .. }));
    }
}

#[test]
fn nothing_is_prepared_that_names_a_session_of_the_future() {
    let mut world = World::new(2);
    let who = client(1);
    let parts = two_writes("x");
    let latest_ms = world.clock + 60_000 + 2 * 500;
    for (ahead_ms, is_granted) in [(latest_ms, true), (latest_ms + 1, false)] {
        let mut intent = world.intent(who, ahead_ms, false, &parts);
        intent.participants[1] =
            Participant { nonce: ahead_ms * NONCES_PER_MS, ..intent.participants[1] };
        let prepare = PartitionCommand::Prepare { intent, operations: parts[0].1.clone() };
        let reply = world.ordered(0, who, &prepare).unwrap();
        match reply {
            Ok(vote) => assert!(is_granted && is_commit(&vote), "{vote:?}"),
            Err(text) => assert!(!is_granted && text.contains("cannot have been opened"), "{text}"),
        }
    }
}

/// As many as each may have, until it is refused; how many that were.
fn greedy(world: &mut World, who: SessionId, make: impl Fn(u64) -> Vec<Operation>) -> u64 {
    let mut count = 0;
    loop {
        let parts = [(0, make(count)), (1, vec![read("b1")])];
        let intent = world.intent(who, count + 1, false, &parts);
        if !is_commit(&world.prepare(&intent, who, &parts[0])) {
            return count;
        }
        count += 1;
    }
}

#[test]
fn keys_that_take_as_many_ranges_as_they_can_leave_some_to_each_other() {
    let mut world = World::new(2);
    // Of a range each, so that pending transactions bound it no earlier.
    let taken: Vec<u64> = (1..=8)
        .map(|number| {
            greedy(&mut world, client(number), |count| {
                let start = format!("a{number}-{count}");
                (0..8).map(|index| range(&format!("{start}-{index}"), None, 10, false)).collect()
            })
        })
        .collect();
    assert!(taken.iter().all(|count| *count > 0), "{taken:?}");
    let all: u64 = taken.iter().sum();
    assert!(all * 8 <= limits::RANGES as u64, "{taken:?}");
    // One that asks for little is not refused.
    let parts = [(0, vec![range("a", Some("b"), 10, false)]), (1, vec![read("b1")])];
    let intent = world.intent(client(50), 1, true, &parts);
    assert!(is_commit(&world.prepare(&intent, client(50), &parts[0])));
}

#[test]
fn keys_that_hold_as_many_bytes_as_they_can_leave_some_to_each_other() {
    let mut world = World::of(2, 64 << 20);
    let taken: Vec<u64> = (1..=6)
        .map(|number| {
            greedy(&mut world, client(number), |count| {
                vec![write(&format!("a{number}-{count}"), &"x".repeat(200_000), false)]
            })
        })
        .collect();
    assert!(taken.iter().all(|count| *count > 0), "{taken:?}");
    assert!(taken.windows(2).all(|pair| pair[1] <= pair[0]), "{taken:?}");
    assert!(world.run(client(50), 1, &two_writes("x")));
}

/// What is remembered of transactions takes room that entries could have.
#[test]
fn the_book_counts_against_the_limit_of_the_state() {
    let limit = 4 << 20;
    let mut world = World::of(2, limit);
    for counter in 0..1_000 {
        let one = intent(&world, client(1), counter);
        assert!(is_commit(&world.prepare(&one, client(1), &(0, vec![read("a1")]))));
    }
    let book = world.stores[0].state_bytes() - world.stores[0].bytes();
    assert!(book > 200_000, "{book}");
    let refused = loop {
        let key = format!("a{:05}", world.slot);
        let put =
            perdura_store::StoreCommand::Put { key: bytes(&key), value: vec![7; 10_000].into() };
        if let Some(text) = world.refusal(0, &put) {
            break text;
        }
    };
    assert!(refused.contains("the store is full"), "{refused}");
    let all = world.stores[0].state_bytes();
    assert!(all <= limit && all + 10_500 > limit, "{all}");
}
