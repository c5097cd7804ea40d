//! Sessions are renewed while something is under way, left when they were idle, closed at the end, and numbered by the replicas' clock.

use super::*;
use crate::core::bounds::{IDLE_MS, RENEW_MS};
use perdura_protocol::{Time, limits};

/// The numbers of the frames that hold this command, sent to any replica since the last look.
fn numbers_of(script: &mut Script, command: &Command) -> Vec<u64> {
    let frames = script.frames().into_iter();
    let holds = |frame: &Frame| frame.commands().eq([command.to_bytes()]);
    let mut numbers: Vec<u64> =
        frames.filter(|(_, one)| holds(one)).map(|(_, one)| one.first_number).collect();
    numbers.dedup();
    numbers
}

fn wait(script: &mut Script) -> CallId {
    let command = Command::Service(Bytes::from_static(b"wait")).to_bytes();
    let options = CallOptions { deadline_ms: script.now_ms + 3_600_000, ..script.options() };
    let id = script.enter(command, options);
    script.pump();
    id
}

#[test]
fn a_session_is_renewed_while_a_call_is_under_way() {
    let mut script = Script::open(1, 1);
    script.pass(RENEW_MS);
    assert_eq!(numbers_of(&mut script, &Command::Renew), [], "nobody waits");
    let id = wait(&mut script);
    for count in 0..5 {
        script.pass(RENEW_MS - 1);
        assert_eq!(numbers_of(&mut script, &Command::Renew), []);
        script.pass(1);
        let number = limits::FIRST_RENEWAL + count;
        assert_eq!(numbers_of(&mut script, &Command::Renew), [number]);
        script.answer_all(number, &Outcome::Opened);
    }
    // Without an answer the same one is sent again.
    script.pass(3 * RENEW_MS);
    assert_eq!(numbers_of(&mut script, &Command::Renew), [limits::FIRST_RENEWAL + 5]);
    script.answer_all(limits::FIRST_RENEWAL + 4, &Outcome::Opened);
    script.pass(3 * RENEW_MS);
    assert_eq!(numbers_of(&mut script, &Command::Renew), [limits::FIRST_RENEWAL + 5]);
    script.answer_all(limits::FIRST_RENEWAL + 5, &Outcome::Opened);
    script.answer_all(2, &reply("served"));
    assert_eq!(script.done(), [(id, completed("served"))]);
    script.pass(10 * RENEW_MS);
    assert_eq!(numbers_of(&mut script, &Command::Renew), []);
    assert_eq!(script.core.stats().disagreements, 0);
}

#[test]
fn without_a_link_nothing_is_renewed_and_no_time_is_asked_for() {
    let mut script = Script::open(1, 1);
    wait(&mut script);
    for replica in 0..4 {
        script.core.on_link(script.now_ms, ReplicaId(replica), false);
    }
    script.pump();
    script.pass(2 * RENEW_MS);
    script.core.on_tick(script.now_ms);
    assert!(script.core.next_deadline().is_some_and(|next| next > script.now_ms));
    assert_eq!(numbers_of(&mut script, &Command::Renew), []);
    script.link_all();
    script.core.on_tick(script.now_ms);
    script.pump();
    assert_eq!(numbers_of(&mut script, &Command::Renew), [limits::FIRST_RENEWAL]);
}

#[test]
fn a_lie_about_renewals_harms_nobody() {
    let mut script = Script::open(1, 1);
    wait(&mut script);
    script.pass(RENEW_MS);
    for number in [u64::MAX, limits::FIRST_RENEWAL - 1, limits::FIRST_RENEWAL + 1] {
        script.answer_all(number, &Outcome::NoSession);
    }
    assert_eq!(script.done(), []);
}

/// A window is full of others when a wait is given up: that has to help.
#[test]
fn a_full_window_has_room_for_a_withdrawal() {
    let mut script = Script::open(1, 1);
    let first = wait(&mut script);
    script.answer_all(2, &Outcome::Waits);
    wait(&mut script);
    script.frames();
    let mut number = 4;
    while !script.frames().is_empty() || number == 4 {
        script.call("put");
        script.answer_all(number, &reply("x"));
        number += 1;
    }
    script.core.abandon(first);
    script.pump();
    let withdrawal = Command::Withdraw { number: 2 };
    let sent = script.frames().into_iter();
    let holds = |frame: &Frame| frame.commands().any(|one| one == withdrawal.to_bytes());
    assert!(sent.filter(|(_, frame)| holds(frame)).count() > 0);
}

/// Four frames may be in flight; those that wait at the replicas are not.
#[test]
fn what_waits_holds_nothing_up_and_is_seldom_asked_for_again() {
    let mut script = Script::open(1, 1);
    let waits: Vec<CallId> = (0..20).map(|_| wait(&mut script)).collect();
    assert_eq!(script.frames().len(), 4);
    script.answer(3, 2, &Outcome::Waits);
    assert_eq!(script.frames().len(), 0, "one replica may lie");
    for number in 2..22 {
        script.answer(0, number, &Outcome::Waits);
        script.answer(1, number, &Outcome::Waits);
    }
    script.frames();
    let id = script.call("put");
    assert_eq!(script.frames().len(), 1, "to the leader, at once");
    script.answer_all(22, &reply("x"));
    assert_eq!(script.done(), [(id, completed("x"))]);
    script.pass(10_000);
    let asked = script.frames().into_iter().filter(|(to, one)| *to == 2 && one.first_number == 2);
    assert!((1..=6).contains(&asked.count()), "it is asked for again, now and then");
    // It is served in whatever order, and one that a replica no longer knows ends as ever.
    script.answer_all(7, &reply("y"));
    script.answer(0, 2, &Outcome::TooOld);
    script.answer(2, 2, &Outcome::TooOld);
    let withdrawn = CallResult::Refused(Refusal::Ordered(RefusalReason::Withdrawn));
    assert_eq!(script.done(), [(waits[5], completed("y")), (waits[0], withdrawn)]);
}

fn waited(text: &str, offer: bool) -> Outcome {
    Outcome::Waited { outcome: Box::new(reply(text)), offer }
}

/// However many other commands go by.
#[test]
fn what_waits_holds_no_place_of_the_window() {
    let mut script = Script::open(1, 1);
    let first = wait(&mut script);
    script.frames();
    script.answer_all(2, &Outcome::Waits);
    for number in 3..3 + 2 * limits::SESSION_WINDOW {
        let id = script.call("put");
        assert_eq!(script.frames().pop().unwrap().1.acked_below, number);
        script.answer_all(number, &reply("x"));
        assert_eq!(script.done(), [(id, completed("x"))]);
    }
    script.answer_all(2, &waited("at last", false));
    assert_eq!(script.done(), [(first, completed("at last"))]);
    // That it need not be kept is said by the next frame.
    let known = Command::Confirm { number: 2 };
    assert_eq!(numbers_of(&mut script, &known), []);
    script.call("put");
    let last = script.frames().pop().unwrap().1;
    assert!(last.commands().skip(1).eq([known.to_bytes()]));
}

/// And is refused for certain if the replicas say that it came too late.
#[test]
fn what_is_offered_is_the_callers_when_it_is_confirmed() {
    let refused = Outcome::Refused(RefusalReason::Withdrawn);
    let no_more = CallResult::Refused(Refusal::Ordered(RefusalReason::Withdrawn));
    for (answer, expected) in [(Outcome::Opened, completed("yours")), (refused, no_more)] {
        let mut script = Script::open(1, 1);
        let first = wait(&mut script);
        script.answer_all(2, &Outcome::Waits);
        let confirmation = Command::Confirm { number: 2 };
        script.answer(3, 2, &waited("yours", true));
        assert_eq!(numbers_of(&mut script, &confirmation), [], "one replica may lie");
        script.answer(1, 2, &waited("yours", true));
        assert_eq!(numbers_of(&mut script, &confirmation), [3]);
        script.answer_all(2, &waited("yours", true));
        assert_eq!(numbers_of(&mut script, &confirmation), [], "once");
        assert_eq!(script.done(), []);
        script.answer_all(3, &answer);
        assert_eq!(script.done(), [(first, expected)]);
        assert_eq!(script.core.next_deadline(), None, "all is said");
    }
}

/// Nobody would have it.
#[test]
fn what_is_offered_to_a_caller_that_is_gone_is_not_confirmed() {
    let mut script = Script::open(1, 1);
    let first = wait(&mut script);
    script.frames();
    script.core.abandon(first);
    script.answer_all(2, &waited("yours", true));
    let sent: Vec<Bytes> = script
        .frames()
        .iter()
        .flat_map(|(_, frame)| frame.commands().collect::<Vec<_>>())
        .collect();
    assert!(sent.contains(&Command::Withdraw { number: 2 }.to_bytes()));
    assert!(!sent.contains(&Command::Confirm { number: 2 }.to_bytes()));
    script.answer_all(2, &Outcome::Refused(RefusalReason::Withdrawn));
    script.answer_all(3, &Outcome::Opened);
    let refused = CallResult::Refused(Refusal::Ordered(RefusalReason::Withdrawn));
    assert_eq!(script.done(), [(first, refused)]);
}

/// The replicas are told until they have said that it waits no longer.
#[test]
fn a_wait_whose_time_is_over_is_withdrawn() {
    let mut script = Script::open(1, 1);
    let options = CallOptions { deadline_ms: script.now_ms + 1000, ..script.options() };
    let command = Command::Service(Bytes::from_static(b"wait")).to_bytes();
    let id = script.enter(command, options);
    script.pump();
    script.answer_all(2, &Outcome::Waits);
    script.pass(1000);
    let late = CallResult::Indeterminate(Indeterminacy::DeadlinePassed);
    assert_eq!(script.done(), [(id, late)]);
    let withdrawal = Command::Withdraw { number: 2 };
    assert_eq!(numbers_of(&mut script, &withdrawal), [3]);
    script.pass(3000);
    assert_eq!(numbers_of(&mut script, &withdrawal), [3], "again");
    script.answer_all(2, &Outcome::Refused(RefusalReason::Withdrawn));
    script.answer_all(3, &Outcome::Opened);
    assert_eq!(script.core.next_deadline(), None);
}

#[test]
fn a_wait_whose_caller_is_gone_is_withdrawn_once_it_is_known_to_wait() {
    let mut script = Script::open(1, 1);
    let (first, second) = (wait(&mut script), wait(&mut script));
    script.frames();
    script.core.abandon(second);
    script.pump();
    let withdrawal = Command::Withdraw { number: 3 };
    assert_eq!(numbers_of(&mut script, &withdrawal), [], "it may be any command");
    for number in [2, 3] {
        script.answer_all(number, &Outcome::Waits);
    }
    assert_eq!(numbers_of(&mut script, &withdrawal), [4]);
    script.core.abandon(second);
    script.pump();
    assert_eq!(numbers_of(&mut script, &withdrawal), []);
    let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
    script.answer_all(3, &withdrawn);
    script.answer_all(4, &Outcome::Opened);
    let refused = CallResult::Refused(Refusal::Ordered(RefusalReason::Withdrawn));
    assert_eq!(script.done(), [(second, refused)]);
    // What was not sent never is.
    for _ in 0..4 {
        script.call("put");
    }
    let id = script.call("in line");
    script.core.abandon(id);
    script.pump();
    assert_eq!(script.done(), [(id, CallResult::Refused(Refusal::Closed))]);
    script.answer_all(2, &reply("served"));
    assert_eq!(script.done(), [(first, completed("served"))]);
}

#[test]
fn a_renewal_that_comes_too_late_ends_what_was_under_way() {
    let mut script = Script::open(1, 1);
    let id = wait(&mut script);
    script.pass(RENEW_MS);
    script.answer(0, limits::FIRST_RENEWAL, &Outcome::NoSession);
    assert_eq!(script.done(), [], "one replica may lie");
    script.answer(1, limits::FIRST_RENEWAL, &Outcome::NoSession);
    assert_eq!(script.done(), [(id, CallResult::Indeterminate(Indeterminacy::NoSession))]);
}

#[test]
fn replicas_that_know_no_renewals_are_asked_again_and_no_session_is_left_for_that() {
    let mut script = Script::open(1, 1);
    wait(&mut script);
    script.pass(RENEW_MS);
    script.answer_all(limits::FIRST_RENEWAL, &Outcome::Refused(RefusalReason::WindowExceeded));
    script.frames();
    script.pass(RENEW_MS);
    assert_eq!(numbers_of(&mut script, &Command::Renew), [limits::FIRST_RENEWAL + 1]);
    let exceeded = Outcome::Refused(RefusalReason::WindowExceeded);
    script.answer_all(limits::FIRST_RENEWAL + 1, &exceeded);
    script.answer_all(2, &reply("served"));
    script.pass(10 * IDLE_MS);
    let nonce = script.nonce();
    script.call("next");
    assert_eq!(script.nonce(), nonce, "nor do sessions end there");
}

#[test]
fn after_a_pause_a_call_opens_another_session_and_closes_the_old_one() {
    let mut script = Script::open(1, 1);
    let first = script.nonce();
    script.pass(IDLE_MS - 1);
    script.call("put");
    assert_eq!(script.nonce(), first);
    script.answer_all(2, &reply("x"));
    script.done();
    script.sent();
    script.pass(IDLE_MS);
    let id = script.call("put");
    assert!(script.nonce() > first);
    let frames = script.frames();
    let closing = frames.iter().find(|(_, frame)| frame.session.nonce == first);
    let (to, closing) = closing.unwrap();
    assert_eq!((*to, closing.first_number, closing.acked_below), (0, 3, 3), "to the leader");
    assert!(closing.commands().eq([Command::Close.to_bytes()]));
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("y"));
    assert_eq!(script.done(), [(id, completed("y"))]);
}

#[test]
fn a_client_that_closes_ends_its_session() {
    let mut script = Script::open(1, 1);
    let id = script.call("put");
    script.frames();
    script.core.close();
    script.pump();
    assert_eq!(script.done(), [(id, CallResult::Indeterminate(Indeterminacy::Closed))]);
    assert_eq!(numbers_of(&mut script, &Command::Close), [3]);
    // One that never opened has nothing to end.
    let mut script = Script::new(config(1, 1));
    script.link_all();
    script.call("put");
    script.frames();
    script.core.close();
    script.pump();
    assert_eq!(numbers_of(&mut script, &Command::Close), []);
}

#[test]
fn a_client_whose_clock_is_wrong_numbers_its_sessions_by_the_replicas() {
    let mut script = Script::new(config(1, 1));
    script.link_all();
    let id = script.call("put");
    let (time, from) = (Time(1_700_000_000_000), 1_699_999_940_000 * limits::NONCES_PER_MS);
    let not_now = Outcome::Refused(RefusalReason::NotNow { time, from });
    script.answer(2, 0, &not_now);
    assert_eq!(script.nonce(), NONCE, "one replica may lie");
    script.answer(0, 0, &not_now);
    let drawn = (NONCE + 1) % limits::NONCES_PER_MS;
    assert_eq!(script.nonce(), time.0 * limits::NONCES_PER_MS + drawn);
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("x"));
    assert_eq!(script.done(), [(id, completed("x"))]);
    // The next one goes by the time that has passed since then.
    script.pass(2 * IDLE_MS);
    script.call("put");
    let passed = script.nonce() - time.0 * limits::NONCES_PER_MS;
    assert_eq!(passed / limits::NONCES_PER_MS, 2 * IDLE_MS);
}

/// Its number is another process's; or the replicas are of rules that know no tokens, which looks the same.
#[test]
fn a_number_that_is_taken_is_left_and_both_ways_to_open_are_tried() {
    let mut script = Script::new(config(1, 1));
    script.link_all();
    let id = script.call("put");
    let mut ways = Vec::new();
    let answer_to_opening = |nonce| {
        let outcomes = vec![(0, Outcome::NoSession)];
        Message::Replies { view: View(0), nonce, outcomes }
    };
    for _ in 0..4 {
        ways.extend(script.frames().first().and_then(|(_, frame)| frame.commands().next()));
        // As many as count.
        let answer = answer_to_opening(script.nonce());
        for replica in 0..2 {
            script.receive(replica, answer.clone());
        }
    }
    let by = |count: u8| {
        let mut token = [7; 16];
        token[0] += count;
        Command::OpenBy { token }.to_bytes()
    };
    let plain = Command::Open.to_bytes();
    assert_eq!(ways, [by(0), plain.clone(), by(2), plain]);
    script.answer_all(0, &Outcome::Opened);
    script.answer_all(1, &reply("x"));
    assert_eq!(script.done(), [(id, completed("x"))]);
}

/// Agreed time stands, and the client's own clock runs away again and again.
#[test]
fn one_time_that_is_told_twice_gives_two_numbers() {
    let mut script = Script::new(config(1, 1));
    script.link_all();
    let not_now = Outcome::Refused(RefusalReason::NotNow { time: Time(1_000_000), from: 0 });
    let mut nonces = Vec::new();
    for _ in 0..3 {
        script.call("put");
        script.answer(0, 0, &not_now);
        script.answer(1, 0, &not_now);
        nonces.push(script.nonce());
        script.answer_all(0, &Outcome::Opened);
        script.answer_all(1, &reply("x"));
        script.pass(2 * IDLE_MS);
    }
    assert_eq!((nonces[1], nonces[2]), (nonces[0] + 1, nonces[0] + 2));
}

#[test]
fn numbers_that_were_used_up_are_left_behind() {
    let mut script = Script::new(config(1, 1));
    script.link_all();
    script.call("put");
    let (time, from) = (Time(1_000), u64::MAX - 7);
    script.answer_all(0, &Outcome::Refused(RefusalReason::NotNow { time, from }));
    assert!(script.nonce() >= from);
}
