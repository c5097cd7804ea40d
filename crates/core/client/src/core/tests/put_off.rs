//! What replicas put off goes out again, with the newest acknowledgement, and is never a refusal to its caller.

use super::*;
use perdura_protocol::limits;

const PUT_OFF: Outcome = Outcome::Refused(RefusalReason::PutOff);

/// A frame with these calls, alone.
fn calls(script: &mut Script, texts: &[&str]) -> (Vec<CallId>, Frame) {
    let options = script.options();
    let command =
        |text: &&str| Command::Service(Bytes::copy_from_slice(text.as_bytes())).to_bytes();
    let ids = texts.iter().map(|text| script.enter(command(text), options)).collect();
    script.pump();
    let frames = script.frames();
    let [(0, frame)] = &frames[..] else { panic!("{frames:?}") };
    (ids, frame.clone())
}

#[test]
fn what_is_left_of_a_frame_goes_out_with_the_newest_acknowledgement() {
    let mut script = Script::open(1, 1);
    let (ids, first) = calls(&mut script, &["a", "b", "c", "d"]);
    assert_eq!((first.first_number, first.acked_below), (2, 2));
    script.answer_all(2, &reply("A"));
    script.answer(3, 3, &PUT_OFF);
    script.pass(50);
    assert_eq!(script.frames(), [], "one replica may lie");
    script.answer(1, 3, &PUT_OFF);
    script.answer_all(4, &reply("C"));
    script.answer_all(5, &PUT_OFF);
    assert_eq!(script.frames(), [], "after a pause");
    script.pass(10);
    let frames = script.frames();
    let [(0, again)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((again.first_number, again.acked_below), (3, 3));
    assert!(again.commands().eq(first.commands().skip(1)), "a number names one command forever");
    // Late words about the first try change nothing.
    script.answer(2, 3, &PUT_OFF);
    script.pass(100);
    assert_eq!(script.frames(), []);
    for (number, text) in [(3, "B"), (4, "C"), (5, "D")] {
        script.answer_all(number, &reply(text));
    }
    let done = [(0, "A"), (2, "C"), (1, "B"), (3, "D")];
    assert_eq!(script.done(), done.map(|(index, text)| (ids[index], completed(text))));
    assert_eq!((script.core.next_deadline(), script.core.stats().refused), (None, 0));
}

#[test]
fn the_pause_grows_while_nothing_of_it_is_carried_out() {
    let mut script = Script::open(1, 0);
    let _ = calls(&mut script, &["a", "b"]);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        script.answer(0, 2, &PUT_OFF);
        let from = script.now_ms;
        while script.frames().is_empty() {
            script.pass(1);
        }
        pauses.push(script.now_ms - from);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000]);
    script.answer(0, 2, &reply("A"));
    script.answer(0, 3, &PUT_OFF);
    script.pass(1000);
    let frame = script.frames().remove(0).1;
    assert_eq!(frame.first_number, 3);
    script.answer(0, 3, &PUT_OFF);
    script.pass(9);
    assert_eq!(script.frames(), []);
}

#[test]
fn at_its_deadline_it_is_withdrawn_and_nobody_can_tell() {
    let mut script = Script::open(1, 1);
    let (ids, _) = calls(&mut script, &["a"]);
    while script.now_ms < 4_900 {
        script.answer_all(2, &PUT_OFF);
        script.pass(100);
    }
    script.frames();
    script.pass(200);
    let unknown = CallResult::Indeterminate(Indeterminacy::DeadlinePassed);
    assert_eq!(script.done(), [(ids[0], unknown)]);
    script.call("next");
    let withdrawal = Command::Withdraw { number: 2 }.to_bytes();
    assert!(script.frames().iter().any(|(_, frame)| frame.commands().any(|one| one == withdrawal)));
}

/// A session of which nothing is carried out is renewed by its client, though frames go out all the time.
#[test]
fn a_frame_that_was_put_off_renews_nothing() {
    let mut script = Script::open(1, 1);
    let long = CallOptions { deadline_ms: 100_000, ..script.options() };
    script.enter(Command::Service(Bytes::from_static(b"a")).to_bytes(), long);
    script.pump();
    let mut renewed_ms = None;
    while renewed_ms.is_none() && script.now_ms < 60_000 {
        script.answer_all(2, &PUT_OFF);
        script.pass(100);
        let renews = |(_, frame): &(u8, Frame)| frame.first_number >= limits::FIRST_RENEWAL;
        renewed_ms = script.frames().iter().any(renews).then_some(script.now_ms);
    }
    assert!(renewed_ms.is_some_and(|at| at <= bounds::RENEW_MS + 200), "{renewed_ms:?}");
}

/// Its reply is gone: what changes nothing is asked again, under another number.
#[test]
fn a_read_whose_reply_is_gone_is_read_again() {
    let mut script = Script::open(1, 1);
    let read = script.read("get");
    script.pass(150);
    assert_eq!(script.frames().last().unwrap().1.first_number, 2, "ordered in the end");
    script.answer_all(2, &Outcome::TooOld);
    let again = script.frames().remove(0).1;
    assert_eq!((again.first_number, again.acked_below), (3, 3));
    script.answer_all(3, &reply("value"));
    assert_eq!(script.done(), [(read, completed("value"))]);
    // Of what may have changed something nobody can tell.
    let put = script.call("put");
    script.answer_all(4, &Outcome::TooOld);
    assert_eq!(script.done(), [(put, CallResult::Indeterminate(Indeterminacy::TooOld))]);
}

/// A number that waits at the replicas holds no place of the window: what is left of its frame begins behind it.
#[test]
fn what_waits_at_the_replicas_is_not_sent_with_what_was_put_off() {
    let mut script = Script::open(1, 1);
    let (_, first) = calls(&mut script, &["waits", "b", "c"]);
    script.answer_all(2, &Outcome::Waits);
    script.answer_all(3, &reply("B"));
    script.answer_all(4, &PUT_OFF);
    script.pass(10);
    let again = script.frames().remove(0).1;
    assert_eq!((again.first_number, again.acked_below), (4, 4));
    assert!(again.commands().eq(first.commands().skip(2)));
    // What waits is asked for as it was sent: by a replica whose link is new, and now and then.
    script.core.on_link(script.now_ms, ReplicaId(1), false);
    script.core.on_link(script.now_ms, ReplicaId(1), true);
    script.pump();
    let greeted = script.frames();
    assert!(greeted.contains(&(1, first)) && greeted.contains(&(1, again)), "{greeted:?}");
    script.answer_all(4, &reply("C"));
    script.answer_all(2, &reply("A"));
    assert_eq!(script.done().len(), 3);
    assert_eq!(script.core.next_deadline(), None, "nothing is sent again");
}
