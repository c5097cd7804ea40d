//! Who waits for a lock leaves a mark (version 3 of the store).

use super::world::*;
use crate::support::{bytes, cmp, range, read, write};
use perdura_execution::Service;
use perdura_protocol::{PublicKey, SessionId};
use perdura_store::partition::{
    Blocker, Intent, PartitionCommand, PartitionReply, Reason, Statement, Wanted, Way, limits,
};
use perdura_store::{Operation, StoreCommand, Transaction};

/// What is in the way.
pub fn mark(world: &mut World, who: SessionId, operations: &[Operation]) -> Way {
    let wanted = Wanted::by(operations);
    match world.ask(0, who, &PartitionCommand::Mark { wanted, waits: true }) {
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

pub fn prepare_with(
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

pub fn is_granted(
    world: &mut World,
    who: SessionId,
    counter: u64,
    operations: Vec<Operation>,
) -> bool {
    let (_, voted) = prepare(world, who, counter, operations);
    if !is_commit(&voted) {
        assert_eq!(reason(voted), Reason::Conflict(Blocker::Other));
        return false;
    }
    true
}

pub fn is_marked(way: &Way) -> bool {
    match way {
        Way::Free => false,
        // Else it need not look again soon.
        Way::Held { again_ms, .. } | Way::Marked { again_ms } => *again_ms < 60,
    }
}

/// Ends what somebody prepared with that number.
fn end(world: &mut World, who: SessionId, counter: u64, operations: Vec<Operation>, commit: bool) {
    let read_only = only_reads(&operations);
    let parts = [(0, operations), (1, vec![read("b1")])];
    let intent = world.intent(who, counter, read_only, &parts);
    let vote = Statement::Vote { transaction: intent.id(), commit };
    let votes = if read_only { Vec::new() } else { vec![world.certificate(1, &vote)] };
    world.finish(0, who, (intent.id(), commit), &votes);
}

pub fn finish(world: &mut World, who: SessionId, counter: u64, operations: Vec<Operation>) {
    end(world, who, counter, operations, true);
}

pub fn writes(key: &str) -> Vec<Operation> {
    vec![write(key, "1", false)]
}

pub fn reads(key: &str) -> Vec<Operation> {
    vec![read(key)]
}

fn put(key: &str) -> StoreCommand {
    StoreCommand::Put { key: bytes(key), value: bytes("1") }
}

/// Readers come and go without end, and one at least holds the key at each moment.
#[test]
fn one_who_writes_gets_in_though_readers_never_end() {
    let mut world = World::new(2);
    let (readers, writer) = (client(1), client(99));
    assert!(is_granted(&mut world, readers, 1, reads("a1")));
    assert!(matches!(world.plain_by(0, writer, &put("a1")), Plain::Blocked(_)));
    assert!(is_granted(&mut world, readers, 2, reads("a1")), "nobody is known to wait");
    assert!(is_marked(&mark(&mut world, writer, &writes("a1"))));
    world.restart();
    assert!(!is_granted(&mut world, readers, 3, reads("a1")));
    assert!(!is_granted(&mut world, readers, 4, vec![range("a", None, 9, false)]));
    assert!(is_granted(&mut world, readers, 5, reads("a2")), "that is another key");
    finish(&mut world, readers, 1, reads("a1"));
    assert!(matches!(world.plain_by(0, writer, &put("a1")), Plain::Blocked(_)));
    finish(&mut world, readers, 2, reads("a1"));
    assert!(!is_granted(&mut world, readers, 6, reads("a1")));
    assert_eq!(world.plain_by(0, writer, &put("a1")), PUT);
    // It has what it waited for.
    assert!(is_granted(&mut world, readers, 7, reads("a1")));
}

#[test]
fn who_reads_waits_for_no_mark_of_one_who_reads() {
    let mut world = World::new(2);
    assert!(is_granted(&mut world, client(1), 1, writes("a1")));
    let all = || vec![range("a", Some("b"), 9, false)];
    assert!(is_marked(&mark(&mut world, client(2), &all())));
    finish(&mut world, client(1), 1, writes("a1"));
    assert!(!is_granted(&mut world, client(3), 1, writes("a1")), "there he met somebody");
    assert!(is_granted(&mut world, client(3), 3, reads("a1")));
    // What holds nothing beyond its slot is not hindered.
    assert!(matches!(world.put("a7", "1"), PUT));
    // Nor is who has it.
    assert!(is_granted(&mut world, client(2), 1, all()));
}

#[test]
fn they_come_in_the_order_of_their_marks() {
    let mut world = World::new(2);
    let [holder, first, second, third, late] = [7, 1, 2, 3, 4].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    for who in [first, second, third] {
        assert!(is_marked(&mark(&mut world, who, &writes("a1"))));
    }
    finish(&mut world, holder, 1, reads("a1"));
    world.restart();
    // How many come before: it is worth while to look again after as many turns.
    let way = mark(&mut world, third, &writes("a1"));
    assert_eq!(way, Way::Marked { again_ms: 18 });
    assert!(!is_granted(&mut world, third, 1, writes("a1")));
    assert!(!is_granted(&mut world, late, 1, writes("a1")));
    assert!(!is_granted(&mut world, late, 2, reads("a1")));
    assert_eq!(mark(&mut world, first, &writes("a1")), Way::Free);
    for (who, next) in [(first, second), (second, third), (third, late)] {
        assert!(is_granted(&mut world, who, 3, writes("a1")));
        mark(&mut world, next, &writes("a1"));
        // Whoever had his turn comes behind all others.
        finish(&mut world, who, 3, writes("a1"));
        assert!(!is_granted(&mut world, who, 4, writes("a1")));
    }
    assert!(is_granted(&mut world, late, 3, writes("a1")));
}

/// Each met another holder first, at another key.
#[test]
fn two_who_want_the_same_keys_do_not_wait_for_each_other() {
    let mut world = World::new(2);
    let [x, y, first, second] = [7, 8, 1, 2].map(client);
    let both = || vec![write("a1", "1", false), write("a2", "1", false)];
    assert!(is_granted(&mut world, x, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, first, &both())));
    finish(&mut world, x, 1, writes("a1"));
    assert!(!is_granted(&mut world, y, 1, writes("a2")), "it is the first one's, too");
    assert!(is_marked(&mark(&mut world, second, &both())));
    assert_eq!(mark(&mut world, first, &both()), Way::Free);
    assert!(is_granted(&mut world, first, 1, both()));
    finish(&mut world, first, 1, both());
    assert!(is_granted(&mut world, second, 1, both()));
}

#[test]
fn one_who_reads_a_range_comes_behind_older_marks_and_before_younger_ones() {
    let mut world = World::new(2);
    let [holder, older, reader, younger] = [1, 2, 3, 4].map(client);
    let both = || vec![write("a1", "1", false), write("a3", "1", false)];
    let all = || vec![range("a", Some("b"), 9, false)];
    assert!(is_granted(&mut world, holder, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, older, &both())));
    assert!(is_marked(&mark(&mut world, reader, &all())));
    assert!(is_granted(&mut world, younger, 100, writes("a2")), "he may be given less");
    finish(&mut world, younger, 100, writes("a2"));
    for _ in 0..2 {
        world.pass(500);
        assert!(is_marked(&mark(&mut world, older, &both())));
        assert!(is_marked(&mark(&mut world, reader, &all())));
    }
    world.restart();
    assert!(!is_granted(&mut world, younger, 1, writes("a2")), "nobody waited for longer");
    assert!(is_granted(&mut world, younger, 2, reads("a2")), "it only reads");
    finish(&mut world, younger, 2, reads("a2"));
    finish(&mut world, holder, 1, writes("a1"));
    assert!(matches!(mark(&mut world, reader, &all()), Way::Marked { .. }));
    assert!(!is_granted(&mut world, reader, 1, all()));
    assert!(is_granted(&mut world, older, 1, both()));
    assert!(is_marked(&mark(&mut world, younger, &writes("a1"))));
    finish(&mut world, older, 1, both());
    assert_eq!(mark(&mut world, reader, &all()), Way::Free);
    world.restart();
    assert!(!is_granted(&mut world, younger, 4, writes("a1")), "it came later");
    assert!(!is_granted(&mut world, younger, 5, writes("a2")));
    assert!(is_granted(&mut world, reader, 2, all()));
    finish(&mut world, reader, 2, all());
    assert!(is_granted(&mut world, younger, 6, writes("a1")), "the other one had its turn");
}

/// Another partition did not grant its part.
#[test]
fn who_has_to_give_it_back_has_his_place_again() {
    let mut world = World::new(2);
    let [holder, first, second] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    assert!(is_marked(&mark(&mut world, first, &writes("a1"))));
    assert!(is_marked(&mark(&mut world, second, &writes("a1"))));
    finish(&mut world, holder, 1, reads("a1"));
    assert!(is_granted(&mut world, first, 1, writes("a1")));
    // Another caller of the same session comes behind the second one.
    assert!(is_marked(&mark(&mut world, first, &writes("a1"))));
    world.restart();
    end(&mut world, first, 1, writes("a1"), false);
    assert!(!is_granted(&mut world, second, 1, writes("a1")));
    assert!(is_granted(&mut world, first, 2, writes("a1")));
    finish(&mut world, first, 2, writes("a1"));
    world.pass(999);
    assert!(is_granted(&mut world, second, 2, writes("a1")));
    finish(&mut world, second, 2, writes("a1"));
    assert!(!hinders(&mut world, client(8), 1), "nobody waits any more");
}

/// Another partition took long to say that it does not grant its part.
#[test]
fn who_has_to_give_it_back_late_has_his_place_again_too() {
    let mut world = World::new(2);
    let [holder, first, second] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, reads("a1")));
    assert!(is_marked(&mark(&mut world, first, &writes("a1"))));
    finish(&mut world, holder, 1, reads("a1"));
    assert!(is_granted(&mut world, first, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, second, &writes("a1"))));
    for _ in 0..3 {
        world.pass(700);
        assert!(is_marked(&mark(&mut world, second, &writes("a1"))));
    }
    world.restart();
    end(&mut world, first, 1, writes("a1"), false);
    assert!(!is_granted(&mut world, second, 1, writes("a1")));
    assert!(is_granted(&mut world, first, 2, writes("a1")));
}

/// One key alone takes what it has a place for, gives it back and takes it again, all in order, and never looks.
#[test]
fn who_takes_it_and_gives_it_back_again_and_again_goes_after_five_seconds() {
    let mut world = World::new(2);
    let [holder, hog, other] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, writes("a1")));
    // A place that has never been first.
    assert!(is_marked(&mark(&mut world, hog, &writes("a1"))));
    assert!(is_marked(&mark(&mut world, hog, &reads("a1"))));
    let leave = PartitionCommand::Mark { wanted: Wanted::by(&writes("a1")), waits: false };
    world.ask(0, hog, &leave);
    finish(&mut world, holder, 1, writes("a1"));
    let mut turns = 0;
    while is_granted(&mut world, hog, turns, reads("a1")) {
        for _ in 0..turns.min(1) + 1 {
            assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
            world.pass(900);
        }
        assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
        end(&mut world, hog, turns, reads("a1"), false);
        turns += 1;
        assert!(turns < 6, "it goes on for ever");
    }
    assert!(is_granted(&mut world, other, 1, writes("a1")));
}

/// One key alone names many partitions, may give it back in each of them, and asks none.
#[test]
fn who_names_many_partitions_has_his_place_for_ten_seconds_all_the_same() {
    let mut world = World::new(8);
    let [holder, hog, other] = [7, 1, 2].map(client);
    assert!(is_granted(&mut world, holder, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, hog, &reads("a1"))));
    finish(&mut world, holder, 1, writes("a1"));
    assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
    let begun = world.clock;
    for counter in 0.. {
        let others = ["b1", "c1", "d1", "e1", "f1", "g1", "h1"];
        let mut parts: Vec<Part> = vec![(0, reads("a1"))];
        parts.extend((1..).zip(others).map(|(at, key)| (at, reads(key))));
        let intent = world.intent(hog, counter, true, &parts);
        if !is_commit(&world.prepare(&intent, hog, &parts[0])) {
            break;
        }
        for _ in 0..2 {
            world.pass(900);
            assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
        }
        world.finish(0, hog, (intent.id(), false), &[]);
        for _ in 0..3 {
            if mark(&mut world, other, &writes("a1")) == Way::Free {
                break;
            }
            world.pass(900);
        }
        assert!(world.clock - begun < 17_000, "it goes on for ever");
    }
    assert!(is_granted(&mut world, other, 1, writes("a1")));
}

/// Of one client's many callers one wants a second key, too, which a stranger holds whenever it is his turn at the first.
#[test]
fn who_finds_his_own_key_at_one_and_a_stranger_at_another_keeps_his_place() {
    let mut world = World::new(2);
    let (first, third) = (client(1), SessionId { nonce: 9, ..client(1) });
    let (second, stranger) = (SessionId { nonce: 8, ..client(1) }, client(2));
    let both = || vec![write("a1", "1", false), write("a9", "1", false)];
    assert!(is_granted(&mut world, first, 1, writes("a1")));
    assert!(is_granted(&mut world, stranger, 1, writes("a9")));
    assert!(is_marked(&mark(&mut world, second, &both())));
    assert!(is_marked(&mark(&mut world, third, &writes("a1"))));
    finish(&mut world, first, 1, writes("a1"));
    assert!(is_marked(&mark(&mut world, second, &both())), "the stranger is there");
    assert!(!is_granted(&mut world, third, 1, writes("a1")), "it came later");
    finish(&mut world, stranger, 1, writes("a9"));
    assert!(!is_granted(&mut world, stranger, 2, writes("a9")));
    assert!(is_granted(&mut world, second, 1, both()));
}

#[test]
fn who_waits_no_longer_says_so() {
    let mut world = World::new(2);
    assert!(is_granted(&mut world, client(7), 1, reads("a1")));
    assert!(is_marked(&mark(&mut world, client(1), &writes("a1"))));
    world.pass(300);
    assert!(hinders(&mut world, client(8), 1));
    let wanted = Wanted::by(&writes("a1"));
    let leave = PartitionCommand::Mark { wanted, waits: false };
    for _ in 0..2 {
        assert_eq!(world.ask(0, client(1), &leave), PartitionReply::Marked { way: Way::Free });
    }
    assert!(!hinders(&mut world, client(8), 2));
    assert!(is_marked(&mark(&mut world, client(1), &writes("a1"))));
    assert!(hinders(&mut world, client(8), 3), "it wasted nothing");
}

/// Of one who wants more than a mark can be on.
#[test]
fn a_large_one_has_its_mark_where_it_met_somebody() {
    let mut world = World::new(2);
    let many = |from: usize| -> Vec<Operation> {
        let keys = from..from + limits::KEYS_OF_A_MARK + 1;
        keys.map(|number| write(&format!("a{number:03}"), "1", false)).collect()
    };
    let (large, other) = (client(1), client(2));
    assert!(is_granted(&mut world, client(7), 1, reads("a010")));
    assert!(is_granted(&mut world, client(7), 2, reads("a020")));
    assert!(is_marked(&mark(&mut world, large, &many(0))));
    assert!(!is_granted(&mut world, other, 1, reads("a010")));
    assert!(is_granted(&mut world, other, 2, reads("a011")));
    finish(&mut world, other, 2, reads("a011"));
    finish(&mut world, client(7), 1, reads("a010"));
    assert!(is_marked(&mark(&mut world, large, &many(0))));
    world.restart();
    assert!(!is_granted(&mut world, other, 3, reads("a020")));
    finish(&mut world, client(7), 2, reads("a020"));
    assert!(is_granted(&mut world, large, 1, many(0)));
    finish(&mut world, large, 1, many(0));
    assert!(is_granted(&mut world, other, 4, reads("a020")));
}

/// Only who waits keeps others out: whoever has his answer does not, whatever it is.
#[test]
fn a_mark_goes_with_the_answer() {
    let mut world = World::new(2);
    let who = client(1);
    let fails = || vec![cmp("a1", Some("2")), write("a1", "1", false)];
    assert_eq!(world.put("a1", "1"), PUT);
    let hold = |world: &mut World, counter| {
        assert!(is_granted(world, client(7), counter, reads("a1")));
        assert!(is_marked(&mark(world, who, &fails())));
        assert!(!is_granted(world, client(8), counter, reads("a1")));
        finish(world, client(7), counter, reads("a1"));
    };
    hold(&mut world, 1);
    let (_, voted) = prepare(&mut world, who, 1, fails());
    assert_eq!(reason(voted), Reason::Failed { operation: 0 });
    hold(&mut world, 2);
    let command = StoreCommand::Transaction(Transaction { operations: fails() });
    assert!(matches!(world.plain_by(0, who, &command), Plain::Done(_)));
    hold(&mut world, 3);
    world.stores[0].session_ended(who);
    assert!(is_granted(&mut world, client(8), 4, reads("a1")));
}

/// Prepares, asks, and says whether it is hindered.
pub fn hinders(world: &mut World, who: SessionId, counter: u64) -> bool {
    let is_granted = is_granted(world, who, counter, reads("a1"));
    if is_granted {
        finish(world, who, counter, reads("a1"));
    }
    !is_granted
}

#[test]
fn a_mark_goes_when_its_caller_stays_away_and_when_it_stood_for_long() {
    let mut world = World::new(3);
    let wants = writes("a1");
    // For so long that partition 2 is taken for one that is down.
    let parts = [(0, reads("a1")), (2, reads("c1"))];
    let (_, held) = prepare_with(&mut world, client(7), 1, parts);
    assert!(is_commit(&held));
    assert!(is_marked(&mark(&mut world, client(1), &wants)));
    world.pass(999);
    assert!(hinders(&mut world, client(8), 1));
    world.pass(1);
    assert!(!hinders(&mut world, client(8), 2), "it does not come back");
    for _ in 0..6 {
        assert!(is_marked(&mark(&mut world, client(1), &wants)));
        world.restart();
        world.pass(800);
    }
    assert!(hinders(&mut world, client(8), 3));
    // It has been first for five seconds, and goes. It wasted nothing, for a stranger had what it waits for: it may come again.
    world.pass(201);
    assert!(!hinders(&mut world, client(8), 4));
    assert!(is_marked(&mark(&mut world, client(1), &wants)));
    world.restart();
    assert!(hinders(&mut world, client(8), 5));
    world.pass(5_000);
    let nothing = world.stores[0].state_bytes();
    world.pass(60_000);
    assert_eq!(world.stores[0].state_bytes(), nothing);
}

/// One key alone: has it, is next because it waited before anybody else, takes that in the frame in which it gives it back, and so on.
#[test]
fn what_ones_own_key_had_was_its_turn() {
    let mut world = World::new(2);
    let (hog, other) = (client(1), client(2));
    assert!(is_granted(&mut world, hog, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, hog, &reads("a1"))));
    assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
    world.pass(900);
    assert!(is_marked(&mark(&mut world, hog, &reads("a1"))));
    assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
    world.pass(900);
    finish(&mut world, hog, 1, writes("a1"));
    assert!(is_marked(&mark(&mut world, hog, &reads("a1"))), "it is behind the other one now");
    assert!(!is_granted(&mut world, hog, 2, reads("a1")));
    assert!(is_granted(&mut world, other, 1, writes("a1")));
}

/// It is free for one whose own key had it, and he is before strangers then.
#[test]
fn who_waited_for_his_own_key_keeps_others_out_once_it_is_free() {
    let mut world = World::new(2);
    let (first, second) = (client(1), SessionId { nonce: 9, ..client(1) });
    assert!(is_granted(&mut world, first, 1, writes("a1")));
    assert!(is_marked(&mark(&mut world, second, &writes("a1"))));
    finish(&mut world, first, 1, writes("a1"));
    assert_eq!(mark(&mut world, second, &writes("a1")), Way::Free);
    assert!(hinders(&mut world, client(8), 1));
    assert!(is_granted(&mut world, second, 1, writes("a1")));
}

/// While he waits in another partition, for as long as others may have a turn there.
#[test]
fn who_gave_it_back_has_his_place_for_five_seconds_and_once_for_each_partition_behind() {
    for (passed, stands) in [(4_999, true), (5_000, false)] {
        let mut world = World::new(2);
        let (holder, first) = (client(7), client(1));
        assert!(is_granted(&mut world, holder, 1, reads("a1")));
        assert!(is_marked(&mark(&mut world, first, &writes("a1"))));
        finish(&mut world, holder, 1, reads("a1"));
        assert!(is_granted(&mut world, first, 1, writes("a1")));
        world.pass(900);
        end(&mut world, first, 1, writes("a1"), false);
        world.restart();
        world.pass(passed);
        assert_eq!(hinders(&mut world, client(8), 1), stands);
        if stands {
            assert!(is_granted(&mut world, first, 2, writes("a1")));
            end(&mut world, first, 2, writes("a1"), false);
            assert!(!hinders(&mut world, client(8), 2), "there is one partition behind");
        } else {
            // That it stayed away wasted nothing.
            assert!(is_granted(&mut world, holder, 2, reads("a1")));
            assert!(is_marked(&mark(&mut world, first, &writes("a1"))));
            assert!(hinders(&mut world, client(8), 2));
        }
    }
}

/// One key alone holds a key, marks it, gives it back and takes it again, all in order.
#[test]
fn who_is_in_his_own_way_keeps_nobody_out() {
    let mut world = World::new(2);
    let (hog, other) = (client(1), client(2));
    assert!(is_granted(&mut world, hog, 1, reads("a1")));
    let mut is_in = false;
    for counter in 1..6 {
        // Its own mark makes it wait, for it may have many callers.
        assert!(is_marked(&mark(&mut world, hog, &writes("a1"))));
        assert!(hinders(&mut world, SessionId { nonce: 9, ..hog }, counter));
        // Others see the lock alone, and their marks count.
        assert!(counter > 1 || !hinders(&mut world, client(3), counter));
        assert!(is_marked(&mark(&mut world, other, &writes("a1"))));
        finish(&mut world, hog, counter, reads("a1"));
        world.plain_by(0, hog, &put("a1"));
        if !is_granted(&mut world, hog, counter + 1, reads("a1")) {
            is_in = is_granted(&mut world, other, counter, writes("a1"));
            break;
        }
    }
    assert!(is_in);
}

#[test]
fn what_there_is_of_marks_is_bounded() {
    let mut world = World::new(2);
    let holder = client(200);
    assert!(is_granted(&mut world, holder, 1, vec![range("a", None, 9, false)]));
    // That it has expired is noted, too.
    world.pass(3_000);
    let nothing = world.stores[0].state_bytes();
    let leave = |world: &mut World, who, number: usize| {
        usize::from(is_marked(&mark(world, who, &writes(&format!("a{number:06}")))))
    };
    let own = 0..limits::MARKS_PER_CLIENT + 10;
    let mut marks: usize = own.map(|number| leave(&mut world, client(1), number)).sum();
    assert_eq!(marks, limits::MARKS_PER_CLIENT);
    for who in 0..=u8::MAX {
        let mut public = [who; 32];
        public[31] = 9;
        let session = SessionId { client: PublicKey(public), nonce: 1 };
        for number in 0..limits::MARKS_PER_CLIENT {
            let number = 1_000 + usize::from(who) * limits::MARKS_PER_CLIENT + number;
            marks += leave(&mut world, session, number);
        }
    }
    assert_eq!(marks, limits::MARKS);
    world.restart();
    assert!(world.stores[0].state_bytes() > nothing);
    world.pass(1_000);
    world.restart();
    assert_eq!(world.stores[0].state_bytes(), nothing);
}

/// Many wait for ranges that it has nothing of.
#[test]
fn one_who_writes_much_gets_it_beside_many_marks_on_ranges() {
    let mut world = World::new(2);
    assert!(is_granted(&mut world, client(200), 1, writes("a1")));
    let all = vec![range("a0", Some("a2"), 9, false)];
    for _ in 0..3 {
        for who in 0..=u8::MAX {
            let mut public = [who; 32];
            public[31] = 9;
            let session = SessionId { client: PublicKey(public), nonce: 1 };
            assert!(!matches!(mark(&mut world, session, &all), Way::Free));
        }
        world.pass(600);
    }
    let many = (0..1_024).map(|number| write(&format!("a5-{number}"), "1", false)).collect();
    world.most_cost = 16 << 20;
    assert!(is_granted(&mut world, client(1), 1, many));
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

/// One on a range becomes larger when its caller has waited for a second.
#[test]
fn a_mark_grows_only_where_there_is_room() {
    let mut world = World::of(2, 16 << 10);
    let long = |end: &str| format!("{}{end}", "a".repeat(1_000));
    let all = vec![range(&long("b"), Some(&long("c")), 9, false)];
    assert!(is_granted(&mut world, client(7), 1, writes(&long("bb"))));
    for who in 1..=7 {
        assert!(is_marked(&mark(&mut world, client(who), &all)));
    }
    for _ in 0..3 {
        world.pass(500);
        for who in 1..=7 {
            assert!(is_marked(&mark(&mut world, client(who), &all)));
        }
        assert!(world.stores[0].state_bytes() <= world.limit);
    }
}

/// Under the rules before it is no command at all, and what is in the way of nobody is no reason to look for marks.
#[test]
fn who_goes_by_the_rules_before_knows_of_none() {
    let mut world = World::new(2);
    world.go_on_under(2);
    let wanted = Wanted::by(&[read("a1")]);
    let refused = world.ordered(0, client(1), &PartitionCommand::Mark { wanted, waits: true });
    let refused = refused.unwrap().unwrap_err();
    assert!(refused.contains("unknown tag 31"), "{refused}");
}

#[test]
fn a_key_that_is_not_there_and_a_client_that_may_not_get_an_error() {
    let mut world = World::new(2);
    let command = |operations: &[Operation]| {
        let wanted = Wanted::by(operations);
        PartitionCommand::Mark { wanted, waits: true }
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
    world.most_cost = 64 * 100 + 64 * 100 * 2 + 512;
    for key in ["a1", "a2", "a3"] {
        assert!(is_marked(&mark(&mut world, client(1), &writes(key))));
        let ranges = command(&vec![range("a1", Some("a2"), 9, false); 100]);
        assert!(world.ordered(0, client(2), &ranges).unwrap().is_ok(), "there is one");
        let ranges = command(&vec![range("a", None, 9, false); 100]);
        let is_refused = world.ordered(0, client(3), &ranges).unwrap().is_err();
        assert_eq!(is_refused, key == "a3");
    }
}
