//! Who waits for a lock leaves a mark (version 3 of the store).

use super::world::*;
use crate::support::{range, read, write};
use perdura_execution::Service;
use perdura_protocol::{PublicKey, SessionId, Time};
use perdura_store::partition::{
    Blocker, Caller, Intent, PartitionCommand, PartitionReply, Reason, Statement, Wanted, Way,
    limits,
};
use perdura_store::{Operation, Transaction};

/// Since when, and what is in the way.
fn mark(
    world: &mut World,
    who: SessionId,
    (begin, token): (Option<Time>, u64),
    operations: &[Operation],
) -> (Time, Way) {
    let caller = Caller { begin, token };
    let wanted = Wanted::by(operations);
    match world.ask(0, who, &PartitionCommand::Mark { caller, wanted }) {
        PartitionReply::Marked { begin, way } => (begin, way),
        other => panic!("{other:?}"),
    }
}

/// A part in partition 0, and one in partition 1 that is never prepared.
fn prepare(
    world: &mut World,
    who: SessionId,
    counter: u64,
    operations: Vec<Operation>,
) -> (Intent, PartitionReply) {
    prepare_with(world, who, counter, [(0, operations), (1, vec![read("b1")])])
}

fn prepare_with(
    world: &mut World,
    who: SessionId,
    counter: u64,
    parts: [Part; 2],
) -> (Intent, PartitionReply) {
    let intent = world.intent(who, counter, only_reads(&parts[0].1), &parts);
    let voted = world.prepare(&intent, who, &parts[0]);
    (intent, voted)
}

fn only_reads(operations: &[Operation]) -> bool {
    Transaction { operations: operations.to_vec() }.is_read()
}

fn is_granted(world: &mut World, who: SessionId, counter: u64, operations: Vec<Operation>) -> bool {
    let (_, voted) = prepare(world, who, counter, operations);
    if !is_commit(&voted) {
        assert_eq!(reason(voted), Reason::Conflict(Blocker::Other));
        return false;
    }
    true
}

fn is_marked(way: &Way) -> bool {
    matches!(way, Way::Held { marked: true, .. })
}

/// Readers come and go without end, and one at least holds the key at each moment.
#[test]
fn one_who_writes_gets_in_though_readers_never_end() {
    let mut world = World::new(2);
    let (readers, writer) = (client(1), client(99));
    let (first, voted) = prepare(&mut world, readers, 1, vec![read("a1")]);
    assert!(is_commit(&voted));
    assert!(matches!(world.put("a1", "1"), Plain::Blocked(_)));
    assert!(is_granted(&mut world, readers, 2, vec![read("a1")]), "nobody is known to wait");
    let (_, way) = mark(&mut world, writer, (None, 5), &[write("a1", "1", false)]);
    assert!(is_marked(&way), "{way:?}");
    world.restart();
    assert!(!is_granted(&mut world, readers, 3, vec![read("a1")]));
    assert!(!is_granted(&mut world, readers, 4, vec![range("a", None, 9, false)]));
    assert!(is_granted(&mut world, readers, 5, vec![read("a2")]), "that is another key");
    world.finish(0, readers, (first.id(), true), &[]);
    assert!(matches!(world.put("a1", "1"), Plain::Blocked(_)));
    let second = reader_of_a1(&world, readers, 2);
    world.finish(0, readers, (second.id(), true), &[]);
    assert_eq!(world.put("a1", "1"), PUT);
    // It has what it waited for.
    assert!(is_granted(&mut world, readers, 6, vec![read("a1")]));
}

/// What it prepared with that number.
fn reader_of_a1(world: &World, who: SessionId, counter: u64) -> Intent {
    let parts = [(0, vec![read("a1")]), (1, vec![read("b1")])];
    world.intent(who, counter, true, &parts)
}

#[test]
fn who_reads_waits_for_no_mark_of_one_who_reads() {
    let mut world = World::new(2);
    let (intent, voted) = prepare(&mut world, client(1), 1, vec![write("a1", "1", false)]);
    assert!(is_commit(&voted));
    let (_, way) = mark(&mut world, client(2), (None, 1), &[range("a", Some("b"), 9, false)]);
    assert!(is_marked(&way));
    let vote = Statement::Vote { transaction: intent.id(), commit: false };
    let votes = [world.certificate(1, &vote)];
    world.finish(0, client(1), (intent.id(), false), &votes);
    assert!(!is_granted(&mut world, client(3), 1, vec![write("a1", "1", false)]));
    assert!(is_granted(&mut world, client(3), 2, vec![read("a1")]));
    // What holds nothing beyond its slot is not hindered.
    assert_eq!(world.transact(0, vec![read("a1")]), world.transact(0, vec![read("a1")]));
    // Nor is who has it.
    assert!(is_granted(&mut world, client(2), 1, vec![range("a", Some("b"), 9, false)]));
}

#[test]
fn the_older_ones_mark_takes_the_place_of_the_younger_ones_and_both_partitions_say_so() {
    for at_first in [client(1), client(2)] {
        let mut world = World::new(2);
        let (old, young) = (Time(world.clock - 500), Time(world.clock - 100));
        let [older, younger] = [(client(1), old), (client(2), young)];
        let (_, held) = prepare(&mut world, client(7), 1, vec![read("a1")]);
        assert!(is_commit(&held));
        let wants = [write("a1", "1", false)];
        let all = [older, younger];
        let order = if at_first == client(1) { [0, 1] } else { [1, 0] };
        for index in order {
            let (who, begin) = all[index];
            let (told, way) = mark(&mut world, who, (Some(begin), 3), &wants);
            assert_eq!(told, begin);
            let is_first = at_first == who || index == 0;
            assert_eq!(is_marked(&way), is_first);
        }
        let intent = reader_of_a1(&world, client(7), 1);
        world.finish(0, client(7), (intent.id(), true), &[]);
        let (_, way) = mark(&mut world, client(2), (Some(young), 3), &wants);
        assert!(matches!(way, Way::Older { again_ms: 1..=1_000 }), "{way:?}");
        assert!(!is_granted(&mut world, client(2), 1, wants.to_vec()));
        assert_eq!(mark(&mut world, client(1), (Some(old), 3), &wants).1, Way::Free);
        assert!(is_granted(&mut world, client(1), 1, wants.to_vec()));
    }
}

/// Nobody has waited since before 10 s ago, or from later on than now; and between two of the same age the same one comes first everywhere.
#[test]
fn ages_are_bounded() {
    let mut world = World::new(2);
    world.stood_ms = 77_000;
    let now = world.time();
    for (told, taken) in [
        (Some(Time(0)), Time(now.0 - 10_000)),
        (Some(Time(u64::MAX)), now),
        (Some(Time(now.0 - 3)), Time(now.0 - 3)),
        (None, now),
    ] {
        assert_eq!(mark(&mut world, client(1), (told, 1), &[read("a1")]), (taken, Way::Free));
    }
    let first_of = |order: [u8; 2]| {
        let mut world = World::new(2);
        let (_, held) = prepare(&mut world, client(7), 1, vec![read("a1")]);
        assert!(is_commit(&held));
        for number in order {
            let caller = (Some(Time(0)), 1);
            mark(&mut world, client(number), caller, &[write("a1", "1", false)]);
        }
        let intent = reader_of_a1(&world, client(7), 1);
        world.finish(0, client(7), (intent.id(), true), &[]);
        let granted =
            |number: &u8| is_granted(&mut world, client(*number), 1, vec![write("a1", "1", false)]);
        order.into_iter().find(granted)
    };
    assert_eq!(first_of([1, 2]), first_of([2, 1]));
}

/// Whoever marks all that he can is behind everybody who waits for one thing.
#[test]
fn a_client_with_many_marks_is_behind_others() {
    let mut world = World::new(2);
    let (_, held) = prepare(&mut world, client(7), 1, vec![range("a", None, 9, false)]);
    assert!(is_commit(&held));
    let begin = world.time().0;
    for number in 0..40 {
        let wants = [write(&format!("a{number}"), "1", false)];
        assert!(is_marked(&mark(&mut world, client(1), (Some(Time(0)), 1), &wants).1));
    }
    // It is told since when it waits, all the same.
    let (told, _) = mark(&mut world, client(1), (Some(Time(0)), 1), &[write("a40", "1", false)]);
    assert_eq!(told, Time(begin - 10_000));
    let old = Some(Time(begin - 5_000));
    // Those that it left first count as before.
    for (key, is_older) in [("a0", false), ("a10", false), ("a30", true), ("a40", true)] {
        let (_, way) = mark(&mut world, client(2), (old, 1), &[write(key, "1", false)]);
        assert_eq!(is_marked(&way), is_older, "{key}");
    }
}

#[test]
fn a_mark_goes_when_its_caller_stays_away_and_when_it_stood_for_long() {
    let mut world = World::new(3);
    let wants = [write("a1", "1", false)];
    // For so long that partition 2 is taken for one that is down.
    let parts = [(0, vec![read("a1")]), (2, vec![read("c1")])];
    let (_, held) = prepare_with(&mut world, client(7), 1, parts);
    assert!(is_commit(&held));
    let meet = |world: &mut World| is_marked(&mark(world, client(1), (None, 1), &wants).1);
    let hinders = |world: &mut World, counter| {
        let (intent, voted) = prepare(world, client(8), counter, vec![read("a1")]);
        let is_granted = is_commit(&voted);
        if is_granted {
            world.finish(0, client(8), (intent.id(), true), &[]);
        }
        !is_granted
    };
    assert!(meet(&mut world));
    world.pass(999);
    assert!(hinders(&mut world, 1));
    world.pass(1);
    assert!(!hinders(&mut world, 2), "it does not come back");
    world.pass(3_999);
    assert!(!meet(&mut world), "not before four times as long");
    world.pass(1);
    for _ in 0..6 {
        assert!(meet(&mut world));
        world.restart();
        world.pass(800);
    }
    assert!(hinders(&mut world, 3));
    world.pass(200);
    for step in 0..20 {
        assert!(!hinders(&mut world, 4 + step));
        assert!(!meet(&mut world), "its key had the key for five seconds");
        let other = SessionId { nonce: 70 + step, ..client(1) };
        assert!(!is_marked(&mark(&mut world, other, (None, 1), &wants).1));
        // Others may.
        assert!(is_marked(&mark(&mut world, client(20 + step as u8), (None, 1), &wants).1));
        world.pass(1_000);
        world.restart();
    }
    assert!(meet(&mut world));
    world.pass(20_000);
    world.restart();
    assert!(!hinders(&mut world, 20));
}

#[test]
fn what_there_is_of_marks_is_bounded() {
    let mut world = World::new(2);
    let holder = client(200);
    let (_, held) = prepare(&mut world, holder, 1, vec![range("a", None, 9, false)]);
    assert!(is_commit(&held));
    // That it has expired is noted, too.
    world.pass(3_000);
    let nothing = world.stores[0].state_bytes();
    let key = |number: usize| format!("a{number:05}");
    let mut marks = 0;
    for number in 0..limits::MARKS_PER_CLIENT + 10 {
        let (_, way) = mark(&mut world, client(1), (None, 1), &[write(&key(number), "1", false)]);
        marks += usize::from(is_marked(&way));
    }
    assert_eq!(marks, limits::MARKS_PER_CLIENT);
    for who in 0..100u8 {
        let mut public = [who; 32];
        public[31] = 9;
        let session = SessionId { client: PublicKey(public), nonce: 1 };
        for number in 0..limits::MARKS_PER_CLIENT {
            let key = key(1_000 + usize::from(who) * 100 + number);
            let (_, way) = mark(&mut world, session, (None, 1), &[write(&key, "1", false)]);
            marks += usize::from(is_marked(&way));
        }
    }
    assert_eq!(marks, limits::MARKS);
    world.restart();
    assert!(world.stores[0].state_bytes() > nothing);
    // Those that stood, and then the pauses.
    world.pass(1_000);
    world.restart();
    world.pass(4_000);
    world.restart();
    assert_eq!(world.stores[0].state_bytes(), nothing);
}

/// What is kept of marks counts against the state's limit.
#[test]
fn none_is_left_where_there_is_no_room() {
    let mut world = World::of(2, 16 << 10);
    let (_, held) = prepare(&mut world, client(7), 1, vec![range("a", None, 9, false)]);
    assert!(is_commit(&held));
    let long = "a".repeat(4_000);
    let mut marks = 0;
    for number in 0..limits::MARKS_PER_CLIENT {
        let key = format!("{long}{number}");
        let (_, way) = mark(&mut world, client(1), (None, 1), &[write(&key, "1", false)]);
        marks += usize::from(is_marked(&way));
    }
    assert_eq!(marks, 3);
    assert!(world.stores[0].state_bytes() < world.limit);
}

/// Under the rules before it is no command at all, and what is in the way of nobody is no reason to look for marks.
#[test]
fn who_goes_by_the_rules_before_knows_of_none() {
    let mut world = World::new(2);
    world.go_on_under(2);
    let caller = Caller { begin: None, token: 1 };
    let wanted = Wanted::by(&[read("a1")]);
    let refused = world.ordered(0, client(1), &PartitionCommand::Mark { caller, wanted });
    let refused = refused.unwrap().unwrap_err();
    assert!(refused.contains("unknown tag 31"), "{refused}");
}

#[test]
fn a_key_that_is_not_there_and_a_client_that_may_not_get_an_error() {
    let mut world = World::new(2);
    let caller = Caller { begin: None, token: 1 };
    let command = |operations: &[Operation]| {
        let wanted = Wanted::by(operations);
        PartitionCommand::Mark { caller, wanted }
    };
    assert!(world.ordered(0, client(1), &command(&[read("b1")])).unwrap().is_err());
    let resolver = SessionId { client: RESOLVER, nonce: 1 };
    assert!(world.ordered(0, resolver, &command(&[read("a1")])).unwrap().is_err());
    world.most_cost = 63;
    assert!(world.ordered(0, client(1), &command(&[read("a1")])).unwrap().is_err());
}
