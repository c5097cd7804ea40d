//! A group that seems to be down.

use super::*;
use crate::core::calls::Stage;

const UNREACHABLE: CallResult = CallResult::Refused(Refusal::Unreachable);

fn with_limit() -> ClientConfig {
    ClientConfig { unreachable_ms: Some(2_000), ..config(1, 0) }
}

/// A group of three with an open session, of which one link is left.
fn cut_off() -> Script {
    let mut script = Script::new(with_limit());
    script.link_all();
    script.open_session();
    script.core.on_link(script.now_ms, ReplicaId(0), false);
    script.core.on_link(script.now_ms, ReplicaId(1), false);
    script.pump();
    script.sent();
    script
}

fn stage(script: &Script, id: CallId) -> Option<Stage> {
    script.core.calls.get(&id).map(|call| call.stage)
}

fn numbers(script: &mut Script) -> Vec<u64> {
    let frames = script.frames().into_iter();
    let mut numbers: Vec<u64> = frames.map(|(_, frame)| frame.first_number).collect();
    numbers.dedup();
    numbers
}

#[test]
fn nobody_waits_long_for_a_group_without_links() {
    let mut script = Script::new(with_limit());
    let calls = [script.call("a"), script.call("b")];
    script.pass(1_999);
    assert_eq!(script.done(), []);
    script.pass(1);
    assert_eq!(script.done(), calls.map(|id| (id, UNREACHABLE)));
    // One a second finds out.
    let probe = script.call("c");
    assert_eq!(script.done(), []);
    let mut last = probe;
    script.pass(1_000);
    assert_eq!(script.done(), [(probe, UNREACHABLE)]);
    for _ in 0..3 {
        last = script.call("d");
        script.pass(900);
    }
    assert!(script.done().iter().all(|(_, result)| *result == UNREACHABLE));
    assert_eq!(script.frames(), []);
    // As soon as it is there all goes on.
    script.link_all();
    let first = script.call("first");
    assert_ne!(first, last);
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("opened"));
    assert!(script.done().contains(&(first, completed("opened"))));
}

#[test]
fn what_was_sent_is_under_way_to_its_deadline_and_the_rest_is_refused_for_certain() {
    let mut script = Script::new(with_limit());
    script.link_all();
    script.open_session();
    let sent = script.call("sent");
    script.core.on_link(script.now_ms, ReplicaId(0), false);
    script.core.on_link(script.now_ms, ReplicaId(1), false);
    let [probe, second, third] = ["probe", "second", "third"].map(|text| script.call(text));
    // What is under way finds out.
    script.pass(1_999);
    assert_eq!(script.done(), []);
    script.pass(1);
    let refused = [probe, second, third].map(|id| (id, UNREACHABLE));
    assert_eq!(script.done(), refused);
    script.pass(2_000);
    let late = script.call("late");
    assert_eq!(script.done(), [(late, UNREACHABLE)]);
    script.pass(1_000);
    let unknown = CallResult::Indeterminate(Indeterminacy::DeadlinePassed);
    assert_eq!(script.done(), [(sent, unknown.clone())]);
    // Then one goes out, and no other one beside it.
    let probe = script.call("probe");
    assert_eq!(stage(&script, probe), Some(Stage::Sent(3)));
    for _ in 0..4 {
        script.pass(1_000);
        let late = script.call("late");
        assert_eq!(script.done(), [(late, UNREACHABLE)]);
    }
    script.pass(1_000);
    assert_eq!(script.done(), [(probe, unknown)]);
}

#[test]
fn few_links_are_enough_as_long_as_answers_come() {
    let mut script = cut_off();
    let first = script.call("first");
    let others = [script.call("second"), script.call("third")];
    assert_eq!(numbers(&mut script), [2]);
    script.answer(2, 2, &reply("first"));
    assert_eq!(script.done(), [(first, completed("first"))]);
    assert_eq!(numbers(&mut script), [3]);
    script.answer(2, 3, &reply("second"));
    script.answer(2, 4, &reply("third"));
    let ended: Vec<CallId> = script.done().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ended, others);
    for _ in 0..50 {
        script.pass(100);
        let id = script.call("more");
        let number = numbers(&mut script)[0];
        script.answer(2, number, &reply("more"));
        assert_eq!(script.done(), [(id, completed("more"))]);
    }
}

#[test]
fn who_only_asks_for_the_session_is_told_too() {
    let mut script = Script::new(with_limit());
    script.core.session(0, CallId(100), 60_000);
    script.pump();
    script.pass(2_000);
    assert_eq!(script.sessions, [(CallId(100), Err(Refusal::Unreachable))]);
    script.call("probe");
    script.core.session(script.now_ms, CallId(101), 60_000);
    script.pump();
    script.core.session(script.now_ms, CallId(102), 60_000);
    script.pump();
    script.pass(1_000);
    assert!(script.sessions[1..].iter().all(|(_, result)| *result == Err(Refusal::Unreachable)));
    assert_eq!(script.sessions.len(), 3);
}

/// Where a session is open it is renewed, which locks nothing anywhere.
#[test]
fn who_asks_for_an_open_session_finds_out_without_a_call() {
    let mut script = cut_off();
    script.pass(2_000);
    let ask = |script: &mut Script, id| {
        script.core.session(script.now_ms, CallId(id), 60_000);
        script.pump();
        script.sessions.pop().expect("it is told at once")
    };
    assert_eq!(ask(&mut script, 100), (CallId(100), Err(Refusal::Unreachable)));
    let renewal = numbers(&mut script)[0];
    assert!(renewal >= perdura_protocol::limits::FIRST_RENEWAL);
    script.answer(2, renewal, &Outcome::Opened);
    let nonce = script.nonce();
    assert_eq!(ask(&mut script, 101), (CallId(101), Ok(nonce)));
}

#[test]
fn by_itself_a_client_waits_to_the_deadline() {
    let mut script = Script::new(config(1, 0));
    let id = script.call("a");
    script.pass(4_999);
    assert_eq!(script.done(), []);
    script.pass(1);
    assert_eq!(script.done(), [(id, CallResult::Refused(Refusal::DeadlinePassed))]);
}
