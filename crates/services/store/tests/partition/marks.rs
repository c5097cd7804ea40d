//! Who waits for a lock leaves a mark (version 3 of the store).

use super::world::*;
use crate::support::{bytes, range, read, write};
use perdura_execution::Service;
use perdura_protocol::{PublicKey, SessionId};
use perdura_store::partition::{
    Blocker, Intent, PartitionCommand, PartitionReply, Reason, Statement, Wanted, Way, limits,
};
use perdura_store::{Operation, StoreCommand, Transaction};

/// What is in the way.
fn mark(world: &mut World, who: SessionId, operations: &[Operation]) -> Way {
    let wanted = Wanted::by(operations);
    match world.ask(0, who, &PartitionCommand::Mark { wanted }) {
        PartitionReply::Marked { way } => way,
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
    let way = mark(&mut world, writer, &[write("a1", "1", false)]);
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
    let way = mark(&mut world, client(2), &[range("a", Some("b"), 9, false)]);
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
fn the_first_one_to_wait_comes_first() {
    let mut world = World::new(2);
    let (_, held) = prepare(&mut world, client(7), 1, vec![read("a1")]);
    assert!(is_commit(&held));
    let wants = [write("a1", "1", false)];
    let [first, second] = [client(1), client(2)];
    assert!(is_marked(&mark(&mut world, first, &wants)));
    assert!(!is_marked(&mark(&mut world, second, &wants)));
    let intent = reader_of_a1(&world, client(7), 1);
    world.finish(0, client(7), (intent.id(), true), &[]);
    let way = mark(&mut world, second, &wants);
    assert!(matches!(way, Way::Marked { again_ms: 1..=1_000 }), "{way:?}");
    assert!(!is_granted(&mut world, second, 1, wants.to_vec()));
    // As long as he asks it stands, also when nobody is in his way any more.
    for _ in 0..4 {
        world.pass(900);
        assert_eq!(mark(&mut world, first, &wants), Way::Free);
    }
    assert!(!is_granted(&mut world, second, 2, wants.to_vec()));
    // Reading is not what he waits for.
    let get = StoreCommand::Get { key: bytes("a1") };
    world.plain_by(0, first, &get);
    assert!(!is_granted(&mut world, second, 3, wants.to_vec()));
    assert!(is_granted(&mut world, first, 1, wants.to_vec()));
    let transaction = world.intent(first, 1, false, &[(0, wants.to_vec()), (1, vec![read("b1")])]);
    let vote = Statement::Vote { transaction: transaction.id(), commit: false };
    let votes = [world.certificate(1, &vote)];
    world.finish(0, first, (transaction.id(), false), &votes);
    assert!(is_granted(&mut world, second, 4, wants.to_vec()), "he had his turn");
}

#[test]
fn a_mark_goes_when_its_caller_stays_away_and_when_it_stood_for_long() {
    let mut world = World::new(3);
    let wants = [write("a1", "1", false)];
    // For so long that partition 2 is taken for one that is down.
    let parts = [(0, vec![read("a1")]), (2, vec![read("c1")])];
    let (_, held) = prepare_with(&mut world, client(7), 1, parts);
    assert!(is_commit(&held));
    let meet = |world: &mut World| is_marked(&mark(world, client(1), &wants));
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
    world.pass(999);
    assert!(!meet(&mut world), "not before as long again");
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
        assert!(!is_marked(&mark(&mut world, other, &wants)), "for four times as long");
        // Others may.
        assert!(is_marked(&mark(&mut world, client(20 + step as u8), &wants)));
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
    let key = |number: usize| format!("a{number:06}");
    let mut marks = 0;
    for number in 0..limits::MARKS_PER_CLIENT + 10 {
        let way = mark(&mut world, client(1), &[write(&key(number), "1", false)]);
        marks += usize::from(is_marked(&way));
    }
    assert_eq!(marks, limits::MARKS_PER_CLIENT);
    for who in 0..=u8::MAX {
        let mut public = [who; 32];
        public[31] = 9;
        let session = SessionId { client: PublicKey(public), nonce: 1 };
        for number in 0..limits::MARKS_PER_CLIENT {
            let key = key(1_000 + usize::from(who) * 20 + number);
            let way = mark(&mut world, session, &[write(&key, "1", false)]);
            marks += usize::from(is_marked(&way));
        }
    }
    assert_eq!(marks, limits::MARKS);
    world.restart();
    assert!(world.stores[0].state_bytes() > nothing);
    // Those that stood, and then the pauses.
    world.pass(1_000);
    world.restart();
    assert!(world.stores[0].state_bytes() > nothing);
    world.pass(1_000);
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
        let way = mark(&mut world, client(1), &[write(&key, "1", false)]);
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
    let wanted = Wanted::by(&[read("a1")]);
    let refused = world.ordered(0, client(1), &PartitionCommand::Mark { wanted });
    let refused = refused.unwrap().unwrap_err();
    assert!(refused.contains("unknown tag 31"), "{refused}");
}

#[test]
fn a_key_that_is_not_there_and_a_client_that_may_not_get_an_error() {
    let mut world = World::new(2);
    let command = |operations: &[Operation]| {
        let wanted = Wanted::by(operations);
        PartitionCommand::Mark { wanted }
    };
    // Somebody reads them all, so that any key would be met.
    let (_, held) = prepare(&mut world, client(7), 1, vec![range("a", None, 9, false)]);
    assert!(is_commit(&held));
    for length in [0, 4_097] {
        let key = "a".repeat(length);
        let refused = world.ordered(0, client(1), &command(&[write(&key, "1", false)]));
        assert!(refused.unwrap().unwrap_err().contains("1 to 4096 bytes"));
    }
    world.restart();
    assert!(world.ordered(0, client(1), &command(&[read("b1")])).unwrap().is_err());
    let resolver = SessionId { client: RESOLVER, nonce: 1 };
    assert!(world.ordered(0, resolver, &command(&[read("a1")])).unwrap().is_err());
    world.most_cost = 63;
    assert!(world.ordered(0, client(1), &command(&[read("a1")])).unwrap().is_err());
    // What is charged for ranges grows with the marks in them.
    world.most_cost = 64 * 100 + 3 * 16 * 100 * 2;
    for key in ["a1", "a2", "a3"] {
        assert!(is_marked(&mark(&mut world, client(1), &[write(key, "1", false)])));
        let ranges = command(&vec![range("a", None, 9, false); 100]);
        let is_refused = world.ordered(0, client(2), &ranges).unwrap().is_err();
        assert_eq!(is_refused, key == "a3");
    }
}
