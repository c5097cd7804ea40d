//! The keys of clients take turns in the lines of those who wait: however many places one takes.

use super::marks::{finish, is_granted, is_marked, mark, reads, writes};
use super::world::*;
use crate::support::{range, read, write};
use perdura_store::partition::{PartitionCommand, Wanted};

/// One key alone holds what it has many places for, and has each of its transactions prepared in the place of another one before others come.
#[test]
fn many_places_of_one_key_are_one() {
    for is_held_by_own in [true, false] {
        let mut world = World::new(2);
        let (hog, holder, other) = (client(1), client(7), client(2));
        let wants = |number: u64| {
            vec![write("a1", "1", false), write(&format!("a-own-{number}"), "1", false)]
        };
        let first = if is_held_by_own { hog } else { holder };
        assert!(is_granted(&mut world, first, 100, writes("a1")));
        for number in 0..20 {
            mark(&mut world, hog, &wants(number));
        }
        mark(&mut world, other, &writes("a1"));
        finish(&mut world, first, 100, writes("a1"));
        let mut turns = 0;
        while is_granted(&mut world, hog, turns, wants(turns)) {
            mark(&mut world, hog, &wants(turns + 20));
            (turns + 1..turns + 20).for_each(|number| drop(mark(&mut world, hog, &wants(number))));
            mark(&mut world, other, &writes("a1"));
            world.pass(900);
            finish(&mut world, hog, turns, wants(turns));
            turns += 1;
            assert!(turns < 3, "it goes on for ever");
        }
        assert!(is_granted(&mut world, other, 1, writes("a1")), "{turns} {is_held_by_own}");
    }
}

/// What goes, or comes and goes elsewhere, brings none of a key's many places before others.
#[test]
fn who_comes_is_second_beside_any_other_key() {
    let mut world = World::new(2);
    let [holder, hog, busy, other] = [7, 1, 3, 2].map(client);
    let wants = |number: u64| vec![write("a1", "1", false), read(&format!("a-{number}"))];
    for key in ["a1", "a2"] {
        assert!(is_granted(&mut world, holder, 1 + u64::from(key == "a2"), reads(key)));
    }
    (0..5).for_each(|number| drop(mark(&mut world, hog, &wants(number))));
    for turn in 0..5 {
        assert!(is_marked(&mark(&mut world, busy, &writes("a2"))));
        finish(&mut world, holder, 2 + turn, reads("a2"));
        assert!(is_granted(&mut world, busy, turn, writes("a2")));
        assert!(is_marked(&mark(&mut world, client(4), &writes("a2"))));
        finish(&mut world, busy, turn, writes("a2"));
        assert!(is_granted(&mut world, client(4), turn, writes("a2")));
        finish(&mut world, client(4), turn, writes("a2"));
        assert!(is_granted(&mut world, holder, 3 + turn, reads("a2")));
    }
    let leave = PartitionCommand::Mark { wanted: Wanted::by(&wants(4)), waits: false };
    world.ask(0, hog, &leave);
    assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
    world.restart();
    finish(&mut world, holder, 1, reads("a1"));
    assert!(is_granted(&mut world, hog, 0, wants(0)));
    finish(&mut world, hog, 0, wants(0));
    assert!(!is_granted(&mut world, hog, 1, wants(1)));
    assert!(is_granted(&mut world, other, 1, writes("a1")));
}

/// Each key has a turn beside those of others, however many places it takes at once.
#[test]
fn the_keys_of_clients_take_turns() {
    let mut world = World::new(2);
    let [holder, many, few] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    let wants = |number: u64| vec![write("a1", "1", false), read(&format!("a-{number}"))];
    for number in 0..6 {
        mark(&mut world, many, &wants(number));
    }
    for number in 0..3 {
        mark(&mut world, few, &wants(10 + number));
    }
    finish(&mut world, holder, 1, reads("a1"));
    let order = [(many, 0), (few, 10), (many, 1), (few, 11), (many, 2), (few, 12), (many, 3)];
    for (index, (who, number)) in order.into_iter().enumerate() {
        for (later, number) in &order[index + 1..] {
            assert!(!is_granted(&mut world, *later, 100 * index as u64 + number, wants(*number)));
        }
        assert!(is_granted(&mut world, who, 1_000 + number, wants(number)), "{index}");
        world.restart();
        finish(&mut world, who, 1_000 + number, wants(number));
    }
}

/// One who waits again at once after each of his turns has no more of them than each of many.
#[test]
fn one_who_comes_again_and_again_comes_behind_those_who_wait() {
    let mut world = World::new(2);
    let [holder, many, again] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    let wants = |number: u64| vec![write("a1", "1", false), read(&format!("a-{number}"))];
    for number in 0..4 {
        mark(&mut world, many, &wants(number));
    }
    mark(&mut world, again, &writes("a1"));
    finish(&mut world, holder, 1, reads("a1"));
    let (mut served, mut turns) = (0, 0);
    while served < 4 {
        if is_granted(&mut world, many, 100 + 10 * turns + served, wants(served)) {
            mark(&mut world, again, &writes("a1"));
            finish(&mut world, many, 100 + 10 * turns + served, wants(served));
            served += 1;
        } else {
            turns += 1;
            assert!(turns <= served + 1, "{turns} turns beside {served}");
            assert!(is_granted(&mut world, again, turns, writes("a1")));
            (served..4).for_each(|number| drop(mark(&mut world, many, &wants(number))));
            finish(&mut world, again, turns, writes("a1"));
            mark(&mut world, again, &writes("a1"));
        }
        world.restart();
    }
}

/// Many places to read are one, too: their caller could have one after the other served.
#[test]
fn many_places_to_read_are_one_beside_who_writes() {
    let everything = || vec![range("a", Some("b"), 9, false)];
    for has_ranges in [false, true] {
        let mut world = World::new(2);
        let [holder, hog, writer] = [7, 1, 2].map(client);
        let wants = |number: u64| {
            let key = vec![read("a1"), read(&format!("a-{number}"))];
            if has_ranges { [everything(), key].concat() } else { key }
        };
        assert!(is_granted(&mut world, holder, 1, writes("a1")));
        for number in 0..10 {
            mark(&mut world, hog, &wants(number));
        }
        mark(&mut world, writer, &writes("a1"));
        finish(&mut world, holder, 1, writes("a1"));
        let mut turns = 0;
        while is_granted(&mut world, hog, turns, wants(turns)) {
            (turns..10).for_each(|number| drop(mark(&mut world, hog, &wants(number))));
            mark(&mut world, writer, &writes("a1"));
            world.pass(200);
            finish(&mut world, hog, turns, wants(turns));
            turns += 1;
            assert!(turns < 3, "it goes on for ever");
        }
        assert!(is_granted(&mut world, writer, 1, writes("a1")), "{turns} {has_ranges}");
    }
}
