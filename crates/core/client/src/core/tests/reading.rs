//! Reads that are not ordered: whom they ask, whose answers count, and when they are ordered after all.

use super::*;

fn unordered(text: &str, slot: u64) -> CallResult {
    let reply = Bytes::copy_from_slice(text.as_bytes());
    CallResult::Completed(Reply::Unordered { reply, slot })
}

impl Script {
    /// Who was asked to read since the last look.
    fn asked(&mut self) -> Vec<u8> {
        let to = |(to, message)| match message {
            Message::Read { .. } => Some(ReplicaId::index(to) as u8),
            _ => None,
        };
        let mut asked: Vec<u8> = self.sent().into_iter().filter_map(to).collect();
        asked.sort_unstable();
        asked
    }

    /// Who was asked for the state after which slot since the last look, and by which number.
    fn asked_again(&mut self) -> Vec<(u8, u64, u64)> {
        let to = |(to, message)| match message {
            Message::ReadAt { id, slot, .. } => Some((ReplicaId::index(to) as u8, id, slot.0)),
            _ => None,
        };
        let mut asked: Vec<_> = self.sent().into_iter().filter_map(to).collect();
        asked.sort_unstable();
        asked
    }

    /// All replicas keep states for a moment.
    fn keep_states(&mut self) {
        (0..4).for_each(|replica| self.core.keeps_states(ReplicaId(replica), true));
    }

    fn say(&mut self, from: u8, id: u64, slot: u64, said: Option<&str>) {
        let outcome = said.map(|text| Outcome::Service(Bytes::copy_from_slice(text.as_bytes())));
        self.receive(from, Message::ReadReply { id, slot: Slot(slot), outcome });
    }
}

#[test]
fn a_fast_read_needs_as_many_equal_answers_as_meet_every_decision() {
    let mut script = Script::open(1, 1);
    let id = script.read("get");
    assert_eq!(script.asked(), [1, 2, 3]);
    for (replica, slot) in [(1, 9), (1, 9), (2, 8), (0, 1)] {
        script.say(replica, 1, slot, Some("v"));
    }
    assert_eq!(script.done(), [], "one has two voices, or one was not asked");
    script.say(3, 1, 11, Some("v"));
    assert_eq!(
        script.done(),
        [(id, unordered("v", 9))],
        "one of those who name 9 or more is correct"
    );
    assert_eq!((script.core.stats().fast_reads, script.core.next_deadline()), (1, None));
}

#[test]
fn others_are_asked_where_the_first_ones_differ_and_slots_are_of_who_agreed() {
    let mut script = Script::open(1, 1);
    let id = script.read("get");
    script.asked();
    script.say(1, 1, 3, Some("old"));
    assert_eq!(script.asked(), [], "the others may say the same");
    script.say(2, 1, 8, Some("new"));
    assert_eq!(script.asked(), [0]);
    for (replica, slot) in [(0, 0), (3, 9)] {
        assert_eq!(script.done(), []);
        script.say(replica, 1, slot, Some("new"));
    }
    assert_eq!(script.done(), [(id, unordered("new", 8))]);
    // Who may not answer is as good as nobody.
    let id = script.read("get");
    assert_eq!(script.asked(), [0, 2, 3]);
    script.say(0, 2, 0, None);
    assert_eq!(script.asked(), [1]);
    (1..4).for_each(|replica| script.say(replica, 2, 9, Some("new")));
    assert_eq!(script.done(), [(id, unordered("new", 9))]);
}

/// It costs them a little time, and soon none.
#[test]
fn others_are_asked_where_the_first_ones_are_late() {
    let mut script = Script::open(1, 1);
    let mut late = 0;
    for read in 1..=60 {
        let id = script.read("get");
        let mut asked = script.asked();
        if asked.contains(&2) {
            late += 1;
            asked.retain(|replica| *replica != 2);
            asked.iter().for_each(|replica| script.say(*replica, read, 5, Some("v")));
            script.pass(30);
            asked = script.asked();
        }
        asked.iter().for_each(|replica| script.say(*replica, read, 5, Some("v")));
        assert_eq!(script.done(), [(id, unordered("v", 5))], "{read}");
    }
    assert!((3..=8).contains(&late), "{late}");
    assert_eq!(script.core.stats().fast_read_fallbacks, 0);
}

#[test]
fn a_fast_read_without_agreement_is_ordered() {
    // Too many differ.
    let mut script = Script::open(1, 1);
    let id = script.read("get");
    script.say(1, 1, 0, Some("old"));
    script.say(2, 1, 0, None);
    script.frames();
    script.say(3, 1, 0, Some("new"));
    assert_eq!(script.frames(), [], "another one may say the same of slot 0");
    script.say(0, 1, 1, Some("newer"));
    assert_eq!(script.frames().len(), 1);
    script.answer_all(2, &reply("new"));
    assert_eq!(script.done(), [(id, completed("new"))]);
    // Too many are silent.
    let id = script.read("get");
    script.frames();
    script.pass(99);
    assert_eq!(script.frames(), []);
    script.pass(1);
    assert_eq!(script.frames().len(), 1);
    script.answer_all(3, &reply("ordered"));
    assert_eq!(script.done(), [(id, completed("ordered"))]);
    // Too few are linked, from the start or later.
    script.read("get");
    script.core.on_link(script.now_ms, ReplicaId(2), false);
    script.core.on_link(script.now_ms, ReplicaId(3), false);
    script.pump();
    assert_eq!(script.frames().len(), 1);
    script.read("get");
    assert_eq!(script.frames().len(), 1);
    assert_eq!(script.core.stats().fast_read_fallbacks, 3);
}

#[test]
fn without_liars_the_largest_slot_is_enough() {
    let mut script = Script::open(1, 0);
    let id = script.read("get");
    let asked = script.asked();
    script.say(asked[0], 1, 9, Some("new"));
    assert_eq!(script.done(), [], "the other one may know of more");
    script.say(asked[1], 1, 7, Some("old"));
    assert_eq!(script.done(), [(id, unordered("new", 9))]);
}

#[test]
fn with_liars_one_of_those_who_give_the_same_of_the_largest_slot_is_correct() {
    let mut script = Script::open(1, 1);
    let id = script.read("get");
    assert_eq!(script.asked(), [1, 2, 3]);
    script.say(1, 1, 9, Some("new"));
    script.say(2, 1, 9, Some("new"));
    assert_eq!(script.done(), [], "the third may know of more");
    script.say(3, 1, 7, Some("old"));
    assert_eq!(script.done(), [(id, unordered("new", 9))]);
    // What is of a smaller slot is not enough, however many say so.
    let id = script.read("get");
    assert_eq!(script.asked(), [0, 2, 3]);
    for (replica, slot, said) in [(0, 10, "new"), (2, 10, "new"), (3, 11, "newer")] {
        script.say(replica, 2, slot, Some(said));
    }
    assert_eq!((script.done(), script.asked()), (vec![], vec![1]));
    // Nobody keeps states, but the fourth lowers what the largest is.
    script.say(1, 2, 10, Some("new"));
    assert_eq!(script.done(), [(id, unordered("new", 10))]);
}

#[test]
fn who_keeps_states_is_asked_again_for_one_of_them() {
    let mut script = Script::open(1, 1);
    script.keep_states();
    let id = script.read("count");
    assert_eq!(script.asked(), [1, 2, 3]);
    for (replica, slot, said) in [(1, 5, "five"), (2, 6, "six")] {
        script.say(replica, 1, slot, Some(said));
    }
    assert_eq!(script.asked_again(), []);
    script.say(3, 1, 7, Some("seven"));
    assert_eq!(script.asked_again(), [(1, 2, 7), (2, 2, 7)]);
    script.say(1, 2, 8, Some("eight"));
    assert_eq!(script.done(), [], "it is not of the slot that was asked for");
    script.say(2, 2, 7, Some("seven"));
    assert_eq!(script.done(), [(id, unordered("seven", 7))]);
    let stats = script.core.stats();
    assert_eq!((stats.fast_reads, stats.fast_reads_again, stats.fast_read_fallbacks), (1, 1, 0));
    assert_eq!(script.core.next_deadline(), None);
}

#[test]
fn a_slot_that_a_liar_names_keeps_nobody_waiting_once_all_have_answered() {
    let mut script = Script::open(1, 1);
    script.keep_states();
    let id = script.read("count");
    assert_eq!(script.asked(), [1, 2, 3]);
    for (replica, slot, said) in [(1, 5, "five"), (2, 6, "six"), (3, 1_000, "lie")] {
        script.say(replica, 1, slot, Some(said));
    }
    let asked = script.sent();
    let again = |message: &Message| matches!(message, Message::ReadAt { slot: Slot(1_000), .. });
    assert_eq!(asked.iter().filter(|(_, message)| again(message)).count(), 2);
    let plain = |(to, message): &(ReplicaId, Message)| match message {
        Message::Read { .. } => Some(to.index()),
        _ => None,
    };
    assert_eq!(asked.iter().filter_map(plain).collect::<Vec<_>>(), [0]);
    // It is so far away that others refuse it at once.
    script.say(1, 2, 8, None);
    script.say(2, 2, 8, None);
    assert_eq!((script.frames(), script.done()), (vec![], vec![]));
    script.say(0, 1, 7, Some("seven"));
    assert_eq!(script.asked_again(), [(1, 3, 7), (2, 3, 7), (3, 3, 7)]);
    script.say(1, 2, 1_000, Some("lie"));
    script.say(3, 3, 7, Some("lie"));
    script.say(1, 3, 7, None);
    assert_eq!(script.done(), []);
    script.say(2, 3, 7, Some("seven"));
    assert_eq!(script.done(), [(id, unordered("seven", 7))]);
}

#[test]
fn what_nobody_keeps_is_ordered() {
    let mut script = Script::open(1, 1);
    script.keep_states();
    script.read("count");
    script.asked();
    for (replica, slot) in [(1, 5), (2, 6), (3, 7), (0, 8)] {
        script.say(replica, 1, slot, Some(&slot.to_string()));
    }
    assert_eq!(script.asked_again(), [(0, 2, 7), (1, 2, 7), (2, 2, 7)]);
    script.say(1, 2, 9, None);
    assert_eq!(script.frames(), []);
    script.say(2, 2, 9, None);
    // Replica 0 named a larger slot, and may keep what it had before.
    script.say(0, 2, 9, None);
    assert_eq!(script.frames().len(), 1);
    script.answer_all(2, &reply("nine"));
    // Or where that takes too long.
    script.read("count");
    script.asked();
    for (replica, slot) in [(0, 5), (2, 6), (3, 7)] {
        script.say(replica, 3, slot, Some(&slot.to_string()));
    }
    assert_eq!(script.asked_again().len(), 2);
    script.pass(99);
    assert_eq!(script.frames(), []);
    script.pass(1);
    assert_eq!(script.frames().len(), 1);
    assert_eq!(script.core.stats().fast_read_fallbacks, 2);
}

#[test]
fn who_lost_its_link_is_not_asked_again() {
    let mut script = Script::open(1, 1);
    script.keep_states();
    script.read("count");
    script.asked();
    script.say(1, 1, 5, Some("five"));
    script.core.on_link(script.now_ms, ReplicaId(1), false);
    script.say(2, 1, 6, Some("six"));
    script.say(3, 1, 7, Some("seven"));
    assert_eq!(script.asked_again(), [(2, 2, 7)]);
    script.core.on_link(script.now_ms, ReplicaId(0), false);
    script.core.on_link(script.now_ms, ReplicaId(2), false);
    script.pump();
    assert_eq!(script.core.stats().fast_read_fallbacks, 1, "nobody is left who may answer");
}

#[test]
fn as_many_equal_answers_as_the_caller_wants() {
    for (wanted, enough) in [(Some(2), 2), (None, 1)] {
        let mut script = Script::open(1, 0);
        let options = CallOptions { mode: Mode::Fast, reply_quorum: wanted, ..script.options() };
        let id = script.enter(Bytes::from_static(b"get"), options);
        script.pump();
        for replica in script.asked() {
            script.say(replica, 1, 9 + u64::from(replica), Some(&replica.to_string()));
        }
        assert_eq!(script.done().len(), 2 - enough, "{id:?}");
    }
}

#[test]
fn a_refusal_of_one_slot_is_nobodys_answer() {
    let mut script = Script::open(1, 0);
    script.read("a query that older programs do not know");
    let asked = script.asked();
    let refused = Outcome::Refused(RefusalReason::Malformed);
    let told = Message::ReadReply { id: 1, slot: Slot(9), outcome: Some(refused) };
    script.receive(asked[0], told);
    script.say(asked[1], 1, 8, Some("v"));
    assert_eq!(script.done(), [], "what one says of its slot, another may not");
}
