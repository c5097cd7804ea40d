//! Sessions, their windows and their ends; deadlines.

use super::*;
use perdura_protocol::limits;

#[test]
fn a_deadline_refuses_what_was_not_sent_and_leaves_open_what_was() {
    // No link: never sent.
    let mut script = Script::new(config(1, 1));
    let id = script.call("put");
    script.pass(5000);
    assert_eq!(script.done(), [(id, CallResult::Refused(Refusal::DeadlinePassed))]);
    assert_eq!(script.sent(), []);
    // Sent: nobody can tell. The number is given up, and replicas may forget it.
    let mut script = Script::open(1, 1);
    let id = script.call("put");
    script.pass(5000);
    let late = CallResult::Indeterminate(Indeterminacy::DeadlinePassed);
    assert_eq!(script.done(), [(id, late)]);
    assert_eq!(script.core.next_deadline(), None, "it is not sent again");
    script.frames();
    let id = script.call("next");
    let (_, frame) = script.frames().remove(0);
    assert_eq!((frame.first_number, frame.acked_below), (3, 3));
    let withdrawal = Command::Withdraw { number: 2 }.to_bytes();
    assert!(frame.commands().skip(1).eq([withdrawal]), "should it wait, or come late");
    // What it came to all the same is acknowledged once, and what it is offered is left to others.
    let waited = |offer| Outcome::Waited { outcome: Box::new(reply("x")), offer };
    script.answer_all(3, &reply("y"));
    assert_eq!(script.done(), [(id, completed("y"))]);
    script.answer_all(2, &waited(false));
    script.call("more");
    let known = Command::Confirm { number: 2 }.to_bytes();
    let last = script.frames().pop().unwrap().1;
    assert!(last.commands().skip(1).eq([known]));
    script.answer_all(2, &waited(true));
    assert_eq!(script.frames(), [], "it was said once");
    // In the past from the start.
    let options = CallOptions { deadline_ms: script.now_ms, ..script.options() };
    let id = script.enter(Bytes::from_static(&[1]), options);
    script.pump();
    assert_eq!(script.done(), [(id, CallResult::Refused(Refusal::DeadlinePassed))]);
}

#[test]
fn numbers_in_flight_fit_the_window_that_replicas_keep() {
    let mut script = Script::open(1, 1);
    let stuck = script.call("stuck");
    let waiting = limits::SESSION_WINDOW as usize + 100;
    for _ in 0..waiting {
        script.enter(Command::Service(Bytes::new()).to_bytes(), script.options());
    }
    script.pump();
    // Answer everything but the first, as far as it gets.
    let mut answered = 0;
    loop {
        let frames = script.frames();
        let numbers: Vec<u64> = frames
            .iter()
            .flat_map(|(_, frame)| {
                assert!(frame.end_number() - frame.acked_below <= limits::SESSION_WINDOW);
                frame.first_number..frame.end_number()
            })
            .filter(|number| *number != 2)
            .collect();
        if numbers.is_empty() {
            break;
        }
        answered += numbers.len();
        for number in numbers {
            script.answer_all(number, &reply("x"));
        }
    }
    let kept = crate::core::bounds::WORDS as u64;
    assert_eq!(answered as u64, limits::SESSION_WINDOW - 1 - kept, "the window is used up");
    script.done();
    script.answer_all(2, &reply("at last"));
    assert_eq!(script.done()[0], (stuck, completed("at last")));
    assert_eq!(script.frames().len(), 1, "and now it moves");
}

#[test]
fn a_lost_session_ends_its_calls_and_the_next_ones_get_another() {
    let mut script = Script::open(1, 1);
    let ids: Vec<CallId> = (0..3).map(|_| script.call("put")).collect();
    script.answer(3, 3, &Outcome::NoSession);
    assert_eq!(script.done(), [], "one replica may lie");
    script.answer(1, 3, &Outcome::NoSession);
    let ended = CallResult::Indeterminate(Indeterminacy::NoSession);
    let mut done = script.done();
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, ids.iter().map(|id| (*id, ended.clone())).collect::<Vec<_>>());
    script.sent();
    let id = script.call("again");
    assert!(script.nonce() > NONCE);
    let sent = script.sent();
    let attach = Message::Attach { nonce: script.nonce() };
    assert_eq!(sent.iter().filter(|(_, message)| *message == attach).count(), 4);
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("fresh"));
    assert_eq!(script.done(), [(id, completed("fresh"))]);
    assert_eq!(script.core.stats().sessions, 2);
}

#[test]
fn a_forgotten_reply_is_indeterminate() {
    let mut script = Script::open(1, 1);
    let id = script.call("put");
    script.answer(0, 2, &Outcome::TooOld);
    script.answer(1, 2, &Outcome::TooOld);
    assert_eq!(script.done(), [(id, CallResult::Indeterminate(Indeterminacy::TooOld))]);
    let id = script.call("put");
    script.answer_all(3, &Outcome::Refused(RefusalReason::WindowExceeded));
    assert_eq!(script.done(), [(id, CallResult::Indeterminate(Indeterminacy::WindowExceeded))]);
}

#[test]
fn a_used_session_number_is_skipped() {
    let mut script = Script::new(config(1, 0));
    script.link_all();
    let id = script.call("put");
    let used = RefusalReason::Contradiction("used up".into());
    let mut last = 0;
    for outcome in [Outcome::NoSession, Outcome::Refused(used.clone()), Outcome::TooOld] {
        assert!(script.nonce() > last);
        last = script.nonce();
        script.answer(0, 0, &outcome);
    }
    script.answer(0, 0, &Outcome::Opened);
    script.answer(0, 1, &reply("x"));
    assert_eq!(script.done(), [(id, completed("x"))]);
    // When none will do, waiting calls are refused, for they were never sent.
    let mut script = Script::new(config(1, 0));
    script.link_all();
    let id = script.call("put");
    for _ in 0..bounds::OPEN_ATTEMPTS {
        script.answer(0, 0, &Outcome::Refused(used.clone()));
    }
    assert_eq!(script.done(), [(id, CallResult::Refused(Refusal::Session(used)))]);
}

#[test]
fn an_unregistered_key_is_refused_and_may_be_registered_later() {
    let mut script = Script::new(config(1, 1));
    script.link_all();
    let id = script.call("put");
    let unknown = Outcome::Refused(RefusalReason::UnknownClient);
    script.answer(0, 0, &unknown);
    script.answer(1, 0, &unknown);
    let refusal = Refusal::Session(RefusalReason::UnknownClient);
    assert_eq!(script.done(), [(id, CallResult::Refused(refusal))]);
    let id = script.call("put");
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("x"));
    assert_eq!(script.done(), [(id, completed("x"))]);
}

#[test]
fn calls_that_expire_without_links_leave_nothing_behind() {
    let mut script = Script::new(config(1, 1));
    let long = CallOptions { deadline_ms: u64::MAX, ..script.options() };
    script.enter(Bytes::from_static(&[1]), long);
    for round in 0..10_000 {
        let options = CallOptions { deadline_ms: round + 2, ..script.options() };
        script.enter(Bytes::from_static(&[1]), options);
        script.pass(1);
    }
    script.pass(10);
    assert_eq!((script.core.open_calls(), script.core.waiting_calls), (1, 1));
    assert!(script.core.waiting.len() < 100 && script.core.timers.len() == 1);
    assert_eq!(script.core.waiting_bytes, 1);
}

/// A command may name the session in which it goes.
#[test]
fn the_number_of_the_session_is_told_once_it_is_open() {
    let mut script = Script::new(config(1, 1));
    let ask = |script: &mut Script, number: u64| {
        let id = CallId(1_000_000 + number);
        script.core.session(script.now_ms, id, script.now_ms + 500);
        script.pump();
        id
    };
    // Nobody is linked.
    let id = ask(&mut script, 1);
    script.pass(500);
    assert_eq!(std::mem::take(&mut script.sessions), [(id, Err(Refusal::DeadlinePassed))]);
    script.link_all();
    assert_eq!(script.frames(), [], "nobody wants a session");
    let id = ask(&mut script, 2);
    assert_eq!(script.sessions, []);
    script.answer_all(0, &Outcome::Opened);
    let nonce = script.nonce();
    assert_eq!(std::mem::take(&mut script.sessions), [(id, Ok(nonce))]);
    let id = ask(&mut script, 3);
    assert_eq!(std::mem::take(&mut script.sessions), [(id, Ok(nonce))], "at once");
    // One that may be at its end is left for another one.
    script.pass(40_000);
    let id = ask(&mut script, 4);
    script.answer_all(0, &Outcome::Opened);
    let next = script.nonce();
    assert_eq!(std::mem::take(&mut script.sessions), [(id, Ok(next))]);
    assert!(next > nonce);
    // What is refused is said, and who closes ends it.
    let mut script = Script::new(config(1, 1));
    script.link_all();
    let id = ask(&mut script, 5);
    script.answer_all(0, &Outcome::Refused(RefusalReason::UnknownClient));
    let unknown = Refusal::Session(RefusalReason::UnknownClient);
    assert_eq!(std::mem::take(&mut script.sessions), [(id, Err(unknown))]);
    let id = ask(&mut script, 6);
    script.core.close();
    script.pump();
    assert_eq!(script.sessions, [(id, Err(Refusal::Closed))]);
}

#[test]
fn a_session_that_is_left_ends_with_what_is_under_way_in_it() {
    let mut script = Script::open(1, 1);
    let under_way = script.call("under way");
    let left = script.nonce();
    script.sent();
    script.core.leave_session(left - 1);
    script.call("in it");
    assert_eq!(script.frames()[0].1.session.nonce, left, "another one was meant");
    script.answer_all(3, &reply("in it"));
    script.done();
    script.core.leave_session(left);
    let next = script.call("next");
    let asked = CallId(1_000_000);
    script.core.session(script.now_ms, asked, script.now_ms + 5_000);
    script.pump();
    assert_eq!(script.sent(), [], "it waits for what is under way");
    script.answer_all(2, &reply("done"));
    assert_eq!(script.done(), [(under_way, completed("done"))]);
    let frames = script.frames();
    let sessions: Vec<(u64, u64)> =
        frames.iter().map(|(_, frame)| (frame.session.nonce, frame.first_number)).collect();
    let opened = script.nonce();
    assert!(opened > left);
    assert_eq!(sessions, [(left, 4), (opened, 0)], "the old one is closed, another one opened");
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("fresh"));
    assert_eq!(script.done(), [(next, completed("fresh"))]);
    // Who asks late to leave the old one leaves nothing.
    script.core.leave_session(left);
    script.call("more");
    assert_eq!(script.frames().pop().unwrap().1.session.nonce, opened);
}
