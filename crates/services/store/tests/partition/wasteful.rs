//! Marks of those who waste others' time (version 3 of the store).

use super::marks::{finish, hinders, is_granted, is_marked, mark, prepare_with, reads, writes};
use super::world::*;
use crate::support::{cmp, range, read, write};
use perdura_execution::Service;
use perdura_protocol::SessionId;
use perdura_store::partition::{PartitionCommand, Reason, Wanted, Way};
use perdura_store::{Operation, StoreCommand, Transaction};

/// Marks that nothing is in the way of, and nobody takes.
fn waste(world: &mut World, who: SessionId, keys: &[&str], times: u64) {
    for time in 0..times {
        let counter = 1_000 + 10 * time;
        assert!(is_granted(world, client(7), counter, vec![range("a", Some("b"), 9, false)]));
        for key in keys {
            assert!(is_marked(&mark(world, who, &writes(key))));
        }
        finish(world, client(7), counter, vec![range("a", Some("b"), 9, false)]);
        for key in keys {
            mark(world, who, &writes(key));
        }
        world.pass(1_001);
    }
}

/// For as long as its client's key wastes others' time its marks count for itself alone, and that comes to an end.
#[test]
fn who_wastes_others_time_has_void_marks_for_a_while() {
    let mut world = World::new(3);
    let (wasteful, other) = (client(1), client(2));
    waste(&mut world, wasteful, &["a1", "a2", "a3"], 3);
    let parts = [(0, reads("a1")), (2, reads("c1"))];
    let (_, held) = prepare_with(&mut world, client(7), 1, parts);
    assert!(is_commit(&held));
    let mut until = 0;
    while until < 30 {
        assert!(is_marked(&mark(&mut world, wasteful, &writes("a1"))));
        // Its own callers wait for it, others do not.
        let own = SessionId { nonce: 9, ..wasteful };
        assert!(hinders(&mut world, own, until));
        if hinders(&mut world, client(8), until) {
            break;
        }
        assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
        assert!(hinders(&mut world, client(8), 100 + until), "others' marks count");
        let leave = PartitionCommand::Mark { wanted: Wanted::by(&writes("a1")), waits: false };
        world.ask(0, other, &leave);
        world.pass(900);
        world.restart();
        until += 1;
    }
    assert!((2..20).contains(&until), "{until}");
    world.pass(60_000);
    let nothing = world.stores[0].state_bytes();
    world.pass(60_000);
    assert_eq!(world.stores[0].state_bytes(), nothing);
}

/// A lock that nobody gives back is in the way of many callers of one application, for as long as that takes.
#[test]
fn who_waits_for_a_lock_of_a_stranger_wastes_nothing_however_long_and_with_how_many() {
    let mut world = World::new(3);
    let parts = [(0, vec![range("a", Some("b"), 9, false)]), (2, reads("c1"))];
    let (_, held) = prepare_with(&mut world, client(7), 1, parts);
    assert!(is_commit(&held));
    for step in 0..40 {
        for number in 1..20 {
            assert!(is_marked(&mark(&mut world, client(1), &writes(&format!("a{number}")))));
        }
        assert!(hinders(&mut world, client(8), step));
        world.pass(800);
    }
}

/// He was first while the one before him was void, and has his five seconds anew when that one is gone.
#[test]
fn who_is_not_first_any_more_keeps_his_place_for_as_long_as_he_asks() {
    let mut world = World::new(2);
    let [holder, wasteful, caller, later] = [6, 1, 2, 3].map(client);
    waste(&mut world, wasteful, &["a1", "a2", "a3"], 3);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    assert!(is_marked(&mark(&mut world, wasteful, &writes("a1"))));
    for step in 0..13 {
        assert!(is_marked(&mark(&mut world, caller, &writes("a1"))), "{step}");
        assert!(is_marked(&mark(&mut world, wasteful, &writes("a1"))), "{step}");
        if step > 5 {
            assert!(is_marked(&mark(&mut world, later, &writes("a1"))), "{step}");
        }
        world.pass(600);
    }
    finish(&mut world, holder, 1, reads("a1"));
    assert!(!is_granted(&mut world, later, 1, writes("a1")));
    assert!(is_granted(&mut world, caller, 1, writes("a1")));
}

/// Nobody is in his way, and he stays there all the same.
#[test]
fn who_could_have_it_and_does_not_take_it_comes_to_the_end_of_the_line() {
    let mut world = World::new(2);
    let [holder, idle, next] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    assert!(is_marked(&mark(&mut world, idle, &writes("a1"))));
    assert!(is_marked(&mark(&mut world, next, &writes("a1"))));
    finish(&mut world, holder, 1, reads("a1"));
    for _ in 0..3 {
        assert_eq!(mark(&mut world, idle, &writes("a1")), Way::Free);
        assert!(matches!(mark(&mut world, next, &writes("a1")), Way::Marked { .. }));
        world.pass(333);
    }
    world.pass(1);
    assert_eq!(mark(&mut world, next, &writes("a1")), Way::Free);
    assert!(is_marked(&mark(&mut world, idle, &writes("a1"))));
    assert!(is_granted(&mut world, next, 1, writes("a1")));
}

/// Who has no answer and does not take it wasted it, however he leaves.
#[test]
fn what_is_wasted_is_counted_however_the_mark_goes() {
    type Leaves = fn(&mut World, SessionId);
    let all: [(&str, Leaves); 4] = [
        ("withdrawn", |world, who| {
            let leave = PartitionCommand::Mark { wanted: Wanted::by(&writes("a1")), waits: false };
            world.ask(0, who, &leave);
        }),
        ("its session ended", |world, who| world.stores[0].session_ended(who)),
        ("a comparison failed", |world, who| {
            let of_other = vec![cmp("a1", Some("never")), write("a1", "1", false)];
            assert_eq!(mark(world, who, &of_other), Way::Free);
            let plain = Transaction { operations: of_other };
            world.plain_by(0, who, &StoreCommand::Transaction(plain));
        }),
        ("its fence", |world, who| {
            let fence = PartitionCommand::Fence { session: who, below: 900 };
            world.ask(0, who, &fence);
            let parts = [(0, writes("a1")), (1, vec![read("b1")])];
            let intent = world.intent(who, 1, false, &parts);
            assert_eq!(reason(world.prepare(&intent, who, &parts[0])), Reason::Fenced);
        }),
    ];
    for (name, leaves) in all {
        let mut world = World::new(2);
        let wasteful = client(1);
        for time in 0..3 {
            let wants = || match name {
                "a comparison failed" => vec![cmp("a1", Some("never")), write("a1", "1", false)],
                _ => writes("a1"),
            };
            assert!(is_granted(&mut world, client(7), time, reads("a1")), "{name}");
            assert!(is_marked(&mark(&mut world, wasteful, &wants())), "{name}");
            finish(&mut world, client(7), time, reads("a1"));
            assert_eq!(mark(&mut world, wasteful, &wants()), Way::Free, "{name}");
            world.pass(990);
            leaves(&mut world, wasteful);
        }
        assert!(is_granted(&mut world, client(7), 9, reads("a1")), "{name}");
        assert!(is_marked(&mark(&mut world, wasteful, &writes("a1"))), "{name}");
        assert!(!hinders(&mut world, client(8), 1), "{name}: its mark is void");
    }
}

/// Of one client, who has as many as it may.
#[test]
fn a_new_mark_costs_as_much_as_looking_at_all_others_does() {
    let mut world = World::new(2);
    assert!(is_granted(&mut world, client(7), 1, vec![range("a", Some("b"), 9, false)]));
    let many = |of: usize| (0..8).map(|at| write(&format!("a{of}-{at}"), "1", false)).collect();
    let mut costs = Vec::new();
    for number in 0..60 {
        let wants: Vec<Operation> = many(number);
        assert!(is_marked(&mark(&mut world, client(1), &wants)));
        costs.push(world.cost);
    }
    assert!(costs[59] - costs[0] > 59 * 8 * 160, "{costs:?}");
}
