//! No client key, and no two of them, make a partition remember or hold more than its bounds (version 2 of the store).

use super::world::*;
use crate::support::{bytes, costly, range, read, remove, small_entries, write};
use perdura_execution::Service;
use perdura_protocol::limits::{COMMAND_COST, NONCES_PER_MS};
use perdura_protocol::{SessionId, Time};
use perdura_store::partition::{
    Fence, Intent, Participant, PartitionCommand, PartitionReply, Reason, Signed, Statement, Vote,
    limits,
};
use perdura_store::{Operation, StoreCommand, StoreReply};

const DELETED: Plain = Plain::Done(StoreReply::Deleted { existed: true });

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

/// It has as many records in partition 1 as it may.
fn fill_records(world: &mut World, who: SessionId) {
    for counter in 0..u64::from(limits::RECORDS_PER_CLIENT) {
        let intent = intent(world, who, counter);
        let reply = resolved(world, &intent);
        assert!(matches!(reply, PartitionReply::Voted { vote: Vote::Abort(Reason::Resolved), .. }));
    }
}

#[test]
fn what_others_resolve_of_a_client_at_its_bound_raises_its_floor_and_leaves_no_record() {
    let mut world = World::new(2);
    let who = client(1);
    fill_records(&mut world, who);
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

/// Whoever was restored has the same floor, the lowest one too.
#[test]
fn a_floor_is_in_the_state() {
    let mut world = World::new(2);
    fill_records(&mut world, client(1));
    for nonce in 0..3 {
        let session = SessionId { nonce, ..client(1) };
        let one = intent(&world, session, 10_000);
        assert!(fenced(&resolved(&mut world, &one)));
        let question = PartitionCommand::Fence { session, below: 0 };
        let before = world.ask(1, client(9), &question);
        assert!(matches!(before, PartitionReply::Fenced { below: u64::MAX, .. }), "{before:?}");
        world.restart();
        assert_eq!(world.ask(1, client(9), &question), before);
    }
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

/// Whether one more is granted, whose part in partition 0 is this.
fn granted(world: &mut World, who: SessionId, operations: Vec<Operation>) -> bool {
    let parts = [(0, operations), (1, vec![read("b1")])];
    let counter = 1 + world.slot;
    let intent = world.intent(who, counter, false, &parts);
    is_commit(&world.prepare(&intent, who, &parts[0]))
}

/// Takes as much as it may, the most at once that it is granted: how much that was. A part of it is made of a number of its own and a size.
fn greedy(
    world: &mut World,
    who: SessionId,
    largest: usize,
    make: impl Fn(&str, usize) -> Vec<Operation>,
) -> usize {
    let (mut size, mut taken) = (largest, 0);
    while size > 0 {
        let name = format!("a{}-{}", who.nonce, world.slot);
        if granted(world, who, make(&name, size)) {
            taken += size;
        } else {
            size /= 2;
        }
    }
    taken
}

/// The most each of so many keys takes, of which there is this much, and as much as this at once. Then there is some left.
fn leave_some(keys: u8, (all, largest): (usize, usize), make: fn(&str, usize) -> Vec<Operation>) {
    let mut world = World::of(2, 64 << 20);
    let taken: Vec<usize> =
        (1..=keys).map(|number| greedy(&mut world, client(number), largest, make)).collect();
    assert!(taken.iter().all(|taken| *taken > 0), "{taken:?}");
    assert!(taken.windows(2).all(|pair| pair[1] <= pair[0]), "{taken:?}");
    let sum: usize = taken.iter().sum();
    assert!(sum < all && sum > all - all / 100, "{taken:?}");
    // One that asks for little is not refused.
    assert!(granted(&mut world, client(50), make("a-little", 1)), "{taken:?}");
    assert!(world.run(client(51), 1, &two_writes("x")));
    world.restart();
}

fn ranges(name: &str, count: usize) -> Vec<Operation> {
    let range = |index| {
        let start = format!("{name}-{index}");
        range(&start, Some(&format!("{start}-")), 1, false)
    };
    (0..count).map(range).collect()
}

fn values(name: &str, count: usize) -> Vec<Operation> {
    (0..count).map(|index| write(&format!("{name}-{index}"), "", false)).collect()
}

#[test]
fn keys_that_take_as_many_ranges_as_they_can_leave_some_to_each_other() {
    leave_some(9, (limits::RANGES, perdura_store::limits::OPERATIONS), ranges);
}

#[test]
fn keys_that_write_as_many_values_as_they_can_leave_some_to_each_other() {
    leave_some(14, (limits::VALUES, perdura_store::limits::OPERATIONS), values);
}

#[test]
fn keys_that_hold_as_many_bytes_as_they_can_leave_some_to_each_other() {
    // A quarter of the limit, and as much again as one transaction may hold.
    let all = (16 << 20) + limits::HELD_PER_TRANSACTION;
    leave_some(12, (all, 1 << 20), |name, bytes| {
        vec![write(name, &"x".repeat(bytes.saturating_sub(2 * name.len())), false)]
    });
}

/// One by itself leaves as much as it takes, so four of the largest do not fit.
#[test]
fn one_transaction_of_each_key_leaves_some_to_others() {
    let mut world = World::new(2);
    let most = perdura_store::limits::OPERATIONS;
    let all: Vec<bool> =
        (1..=4).map(|number| granted(&mut world, client(number), ranges("a", most))).collect();
    assert_eq!(all, [true, true, true, false]);
    for number in 4..=8 {
        assert!(granted(&mut world, client(number), ranges("a", most >> (number - 3))));
    }
    assert!(granted(&mut world, client(50), ranges("a", 1)));
    // Who has had all that is left may have what takes none of it.
    assert!(!granted(&mut world, client(1), ranges("a", 1)));
    assert!(granted(&mut world, client(1), values("a", 1)[..0].to_vec()));
    assert!(granted(&mut world, client(1), vec![read("a1")]));
}

/// What one may hold alone under the rules before, it may still: a quarter of the limit, where that is less than a transaction can hold. And
/// others may hold something beside it.
#[test]
fn a_transaction_that_holds_a_quarter_is_possible_alone() {
    for version in [1, 2] {
        let mut world = World::of(2, 8 << 20);
        world.go_on_under(version);
        let quarter = |number: usize| {
            // Each key is held twice: by its lock, and with its value.
            let write = |index: usize| {
                write(&format!("a{number}{index}"), &"v".repeat((1 << 20) - 6), false)
            };
            vec![write(0), write(1)]
        };
        assert!(granted(&mut world, client(1), quarter(1)));
        assert!(!granted(&mut world, client(2), quarter(2)));
        assert_eq!(granted(&mut world, client(2), vec![write("a5", "x", false)]), version == 2);
        assert!(!granted(&mut world, client(1), vec![write("a6", "x", false)]));
    }
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
        let put = StoreCommand::Put { key: bytes(&key), value: vec![7; 10_000].into() };
        if let Some(text) = world.refusal(0, &put) {
            break text;
        }
    };
    assert!(refused.contains("the store is full"), "{refused}");
    let all = world.stores[0].state_bytes();
    assert!(all <= limit && all + 10_500 > limit, "{all}");
}

/// Puts until nothing more fits in partition 0.
fn fill(world: &mut World) {
    for length in [10_000, 100, 1] {
        loop {
            let key = bytes(format!("a9-{}", world.slot));
            let put = StoreCommand::Put { key, value: vec![7; length].into() };
            if world.refusal(0, &put).is_some() {
                break;
            }
        }
    }
}

/// Also if it only reads, or replaces what is there by as much, or removes it.
#[test]
fn what_is_kept_of_a_transaction_needs_room() {
    for version in [1, 2] {
        let mut world = World::of(2, 1 << 20);
        world.go_on_under(version);
        for key in ["a2", "a3", "a4", "a5"] {
            world.put(key, "1");
        }
        fill(&mut world);
        let replaced = || write("a3", "2", false);
        for operation in [read("a2"), range("a6", Some("a7"), 9, false), replaced(), remove("a4")] {
            let parts = [(0, vec![operation.clone()]), (1, vec![read("b1")])];
            let intent = world.intent(client(1), world.slot, false, &parts);
            let vote = world.prepare(&intent, client(1), &parts[0]);
            match version {
                1 => assert!(is_commit(&vote), "{operation:?}: {vote:?}"),
                _ => assert_eq!(reason(vote), Reason::Room, "{operation:?}"),
            }
        }
        // The one that is asked last holds nothing, but is remembered.
        let parts = [(0, vec![write("a5", "2", false)]), (1, vec![read("b1")])];
        let intent = world.intent(client(1), world.slot, false, &parts);
        let other =
            world.certificate(1, &Statement::Vote { transaction: intent.id(), commit: true });
        let (operations, votes) = (parts[0].1.clone(), vec![other]);
        let last = PartitionCommand::PrepareLast { intent, operations, votes };
        assert_eq!(is_commit(&world.ask(0, client(1), &last)), version == 1);
    }
}

#[test]
fn what_only_reads_is_granted_as_long_as_there_is_room_for_what_is_kept_of_it() {
    let limit = 1 << 20;
    // Of the second ones what they hold is most of it.
    for (key, entries, least) in [("a".into(), 0, 2_000), ("a".repeat(2_000), 80, 50)] {
        let mut world = World::of(2, limit);
        for number in 0..entries {
            world.put(&format!("a{number}"), &"v".repeat(10_000));
        }
        let mut pending = Vec::new();
        let told = loop {
            let who = client(1 + (pending.len() / (least / 2)) as u8);
            let parts = [(0, vec![read(&key)]), (1, vec![read("b1")])];
            let intent = world.intent(who, world.slot, true, &parts);
            let vote = world.prepare(&intent, who, &parts[0]);
            if !is_commit(&vote) {
                break reason(vote);
            }
            pending.push((who, intent.id()));
            assert!(world.stores[0].state_bytes() <= limit);
        };
        assert!(told == Reason::Room && pending.len() > least, "{told:?} {}", pending.len());
        // That one is remembered as well.
        assert!(world.stores[0].state_bytes() > limit - 500 - 2 * key.len() as u64);
        for (who, transaction) in pending {
            let over = PartitionReply::Finished { transaction, committed: true };
            assert_eq!(world.finish(0, who, (transaction, true), &[]), over);
        }
        assert!(world.stores[0].state_bytes() < limit);
    }
}

/// What ends something is carried out however full it is.
#[test]
fn nothing_that_ends_a_transaction_is_refused_for_lack_of_room() {
    let mut world = World::of(2, 1 << 20);
    world.put("a1", "1");
    let (ended, left, dead) = (client(1), client(2), client(3));
    let [in_order, forced, forgotten] = ["1", "7", "8"].map(|number| {
        [
            (0, vec![write(&format!("a{number}"), "2", false)]),
            (1, vec![write(&format!("b{number}"), "2", false)]),
        ]
    });
    assert!(world.run(dead, 1, &forgotten));
    let first = world.intent(ended, 1, false, &in_order);
    let second = world.intent(left, 1, false, &forced);
    let vote = world.prepare(&first, ended, &in_order[1]);
    assert!(is_commit(&world.prepare(&first, ended, &in_order[0])));
    assert!(is_commit(&world.prepare(&second, left, &forced[0])));
    fill(&mut world);
    let votes = [world.proof(1, &vote)];
    let finished = |intent: &Intent, committed| PartitionReply::Finished {
        transaction: intent.id(),
        committed,
    };
    let committed = world.finish(0, ended, (first.id(), true), &votes);
    assert_eq!((committed, world.get("a1")), (finished(&first, true), Some(bytes("2"))));
    // Full again, and whatever is remembered more is beyond the limit.
    fill(&mut world);
    for counter in 10..20 {
        let intent = intent(&world, ended, counter);
        let before = world.stores[0].state_bytes();
        let vote = world.ask(0, ended, &PartitionCommand::Resolve { intent, expired: None });
        assert_eq!(reason(vote), Reason::Resolved);
        assert!(world.stores[0].state_bytes() > before);
    }
    assert!(world.stores[0].state_bytes() > world.limit);
    world.restart();
    world.pass(2_000);
    let transaction = second.id();
    let expired = world.ask(0, client(9), &PartitionCommand::Expire { transaction });
    assert_eq!(expired, PartitionReply::Expired { transaction });
    let administrator = SessionId { client: world.administrator.public(), nonce: 1 };
    let force = PartitionCommand::Force { intent: second.clone(), commit: true };
    assert_eq!(world.ask(0, administrator, &force), finished(&second, true));
    let (session, now) = (dead, Signed::Agreed(Time(world.clock)));
    let fence = world.ask(0, session, &PartitionCommand::Fence { session, below: 10 });
    assert_eq!(fence, PartitionReply::Fenced { session, below: 10, now });
    let proof = world.certificate(1, &Statement::Fence { session, below: 10, now });
    let fences = vec![Fence { proof, nonce: session.nonce, below: 10, signed: now }];
    let forget = PartitionCommand::Forget { session, fences };
    assert_eq!(world.ask(0, client(9), &forget), PartitionReply::Forgotten { count: 1 });
    world.restart();
}

/// What its part would cost is known before anything is locked: it gets a vote to abort.
#[test]
fn a_part_that_costs_more_than_a_command_may_gets_a_vote_to_abort() {
    for most_cost in [COMMAND_COST, u64::MAX] {
        let mut world = World::new(2);
        for key in small_entries() {
            let put = StoreCommand::Put { key, value: bytes("") };
            assert_eq!(world.plain(0, &put), PUT);
        }
        world.most_cost = most_cost;
        let parts = [(0, costly()), (1, vec![write("b1", "1", false)])];
        let who = client(1);
        let intent = world.intent(who, 1, false, &parts);
        let (entries, vote) = (world.stores[0].entries(), world.prepare(&intent, who, &parts[0]));
        assert_eq!(world.stores[0].entries(), entries);
        if most_cost == u64::MAX {
            assert!(is_commit(&vote));
            continue;
        }
        assert_eq!(reason(vote.clone()), Reason::TooMuch);
        // It holds nothing, and the vote is final.
        let first = small_entries().next().unwrap();
        world.most_cost = u64::MAX;
        assert_eq!(world.plain(0, &StoreCommand::Delete { key: first }), DELETED);
        assert_eq!(world.prepare(&intent, who, &parts[0]), vote);
        world.restart();
        assert_eq!(world.prepare(&intent, who, &parts[0]), vote);
    }
}

/// Under version 1 nothing else keeps that room: from version 2 on what it holds counts as well.
#[test]
fn room_is_kept_for_what_was_prepared() {
    let mut world = World::of(2, 32 << 10);
    world.go_on_under(1);
    let large = "v".repeat(4 << 10);
    let parts = [(0, vec![write("a1", &large, false)]), (1, vec![write("b1", "1", false)])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let put = |number: u32| StoreCommand::Put {
        key: bytes(format!("a2{number}")),
        value: bytes("1".repeat(500)),
    };
    let refused = (0..100).find(|number| world.refusal(0, &put(*number)).is_some());
    assert!(refused.is_some_and(|number| number > 30), "{refused:?}");
    let vote = Statement::Vote { transaction: intent.id(), commit: true };
    let votes = [world.certificate(1, &vote)];
    let finished = world.finish(0, client(1), (intent.id(), true), &votes);
    assert!(matches!(finished, PartitionReply::Finished { committed: true, .. }));
}
