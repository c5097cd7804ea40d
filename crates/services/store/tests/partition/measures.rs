//! What those who watch a partition see.

use super::world::*;
use perdura_execution::{Measure, Service};

/// The number of a name, with the value of its label.
fn measure(world: &World, at: usize, name: &str, label: &str) -> u64 {
    let all = world.stores[at].measures();
    let is_it = |one: &&Measure| one.name == name && one.label.map_or("", |(_, of)| of) == label;
    all.iter().find(is_it).unwrap_or_else(|| panic!("{name} {label}")).value
}

#[test]
fn votes_and_their_reasons_are_counted_and_what_is_pending_by_its_age() {
    let mut world = World::new(2);
    let votes = |world: &World, of| measure(world, 0, "perdura_transaction_votes_total", of);
    let pending = |world: &World, of| measure(world, 0, "perdura_transactions_pending", of);
    let remembered = |world: &World| measure(world, 0, "perdura_transactions_remembered", "");
    assert!(world.run(client(1), 1, &two_writes("1")));
    assert_eq!((votes(&world, "commit"), votes(&world, "conflict")), (1, 0));
    assert_eq!((pending(&world, "0"), remembered(&world)), (0, 1));
    assert_eq!(measure(&world, 0, "perdura_transactions_ended_total", "client"), 1);
    // One that stays, and is in the way.
    let left = world.intent(client(1), 2, false, &two_writes("2"));
    assert!(is_commit(&world.prepare(&left, client(1), &two_writes("2")[0])));
    assert!(!world.run(client(2), 1, &two_writes("3")));
    assert_eq!((votes(&world, "commit"), votes(&world, "conflict")), (2, 1));
    assert!(matches!(world.put("a1", "4"), Plain::Blocked(_)));
    assert_eq!(measure(&world, 0, "perdura_transactions_blocked_commands_total", ""), 1);
    assert_eq!((pending(&world, "0"), pending(&world, "2")), (1, 0));
    world.pass(2_000);
    assert_eq!((pending(&world, "2"), pending(&world, "10")), (1, 0));
    assert_eq!(measure(&world, 0, "perdura_transaction_partitions_silent", ""), 0);
    world.pass(8_000);
    assert_eq!((pending(&world, "10"), pending(&world, "60")), (1, 0));
    assert_eq!(measure(&world, 0, "perdura_transaction_partitions_silent", ""), 1);
    let oldest = "perdura_transactions_oldest_remembered_milliseconds";
    assert_eq!((remembered(&world), measure(&world, 0, oldest, "")), (2, 10_000));
    // Repeated, a vote is no other one.
    world.prepare(&left, client(1), &two_writes("2")[0]);
    assert_eq!(votes(&world, "commit"), 2);
}
