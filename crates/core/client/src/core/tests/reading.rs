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
