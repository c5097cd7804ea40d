//! What is taken from a state that somebody else sends: only what a machine could have written.

use super::*;
use perdura_protocol::PublicKey;

fn service(bytes: usize) -> Outcome {
    Outcome::Service(vec![7; bytes].into())
}

/// A piece as its layout says, whatever it holds.
fn piece(acked_below: u64, replies: &[(u64, Outcome)]) -> Bytes {
    let mut out = Vec::new();
    SessionId { client: PublicKey([1; 32]), nonce: 5 }.encode(&mut out);
    Slot(33).encode(&mut out);
    acked_below.encode(&mut out);
    encode_count(replies.len(), &mut out);
    for (number, outcome) in replies {
        number.encode(&mut out);
        outcome.encode(&mut out);
    }
    out.into()
}

fn from_piece(piece: Bytes) -> Result<(SessionId, Session), DecodeError> {
    Session::from_piece(piece, false)
}

fn refused(acked_below: u64, numbers: &[u64]) -> bool {
    let replies: Vec<_> = numbers.iter().map(|number| (*number, service(1))).collect();
    from_piece(piece(acked_below, &replies)).is_err()
}

#[test]
fn a_session_comes_back_as_it_was() {
    let text = Outcome::Refused(RefusalReason::Service("no".into()));
    let original = piece(4, &[(4, service(3)), (9, text.clone()), (10, Outcome::TooOld)]);
    let (id, mut session) = from_piece(original.clone()).unwrap();
    assert_eq!((id.nonce, session.held().last_used), (5, Slot(33)));
    assert_eq!((session.answer(3), session.answer(4)), (Some(Outcome::TooOld), Some(service(3))));
    assert_eq!((session.answer(9), session.answer(5)), (Some(text), None));
    assert_eq!(session.piece(id), original);
    assert_eq!(session.reply_bytes, 5);
    session.acknowledge(10);
    assert_eq!(session.reply_bytes, 0);
}

#[test]
fn numbers_are_ascending_inside_the_window() {
    let last = 3 + limits::SESSION_WINDOW;
    assert!(!refused(4, &[4, 5, last]) && !refused(0, &[1]));
    for numbers in [&[5, 4][..], &[5, 5], &[3], &[4, last + 1]] {
        assert!(refused(4, numbers), "{numbers:?}");
    }
    assert!(refused(0, &[0, 1]), "number 0 opened the session");
}

#[test]
fn no_more_replies_are_taken_than_a_session_keeps() {
    let mebibytes = (limits::SESSION_REPLY_BYTES >> 20) as u64;
    let mut replies: Vec<_> = (1..=mebibytes).map(|number| (number, service(1 << 20))).collect();
    let (_, session) = from_piece(piece(0, &replies)).unwrap();
    assert_eq!(session.reply_bytes, limits::SESSION_REPLY_BYTES);
    replies.push((100, service(1)));
    assert!(from_piece(piece(0, &replies)).is_err());
}

#[test]
fn numbers_that_wait_are_ascending_and_have_no_reply() {
    let piece = |waiting: &[u64]| {
        let mut out = piece(4, &[(5, service(1))]).to_vec();
        encode_list(waiting, &mut out);
        Bytes::from(out)
    };
    let original = piece(&[4, 7, 3 + limits::SESSION_WINDOW]);
    let (id, session) = from_piece(original.clone()).unwrap();
    assert_eq!(session.piece(id), original);
    assert_eq!((session.admit(7), session.admit(6)), (Admission::Waits, Admission::Fresh));
    for waiting in [&[][..], &[7, 6], &[6, 6], &[5], &[3], &[4 + limits::SESSION_WINDOW]] {
        assert!(from_piece(piece(waiting)).is_err(), "{waiting:?}");
    }
}

#[test]
fn what_executes_renews_a_session_and_so_does_a_renewal_once() {
    let (first, second) = (limits::FIRST_RENEWAL, limits::FIRST_RENEWAL + 1);
    let mut session = Session::new(Slot(1), Some(Time(10_000)));
    let renewed = |session: &Session| session.held().renewed.unwrap().0;
    assert!(!session.is_settled(first) && session.answer(first).is_none());
    assert_eq!(session.renew(Time(20_000), second), Outcome::Opened);
    assert_eq!((renewed(&session), session.is_settled(first)), (20_000, true));
    assert_eq!((session.answer(second), session.answer(second + 1)), (Some(Outcome::Opened), None));
    for number in [first, second] {
        assert_eq!(session.renew(Time(30_000), number), Outcome::Opened);
        assert_eq!(renewed(&session), 20_000, "it is no news");
    }
    session.record(Slot(2), Some(Time(20_999)), 1, Outcome::TooOld);
    assert_eq!(renewed(&session), 20_000, "within a second nothing has to be noted");
    session.wait(Slot(3), Some(Time(21_000)), 2);
    assert_eq!(renewed(&session), 21_000);
    let too_old = Outcome::Waited { outcome: Box::new(Outcome::TooOld), offer: false };
    session.release(Slot(4), 2, too_old, None);
    assert_eq!(renewed(&session), 21_000, "what others do tells nothing of its client");
    assert_eq!(session.admit(first), Admission::Answered(Outcome::Opened));
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    assert_eq!(session.admit(second + 1), Admission::Answered(malformed), "it is no command");
    let id = SessionId { client: PublicKey([1; 32]), nonce: 5 };
    let (again, back) = Session::from_piece(session.piece(id), true).unwrap();
    assert_eq!((again, back.piece(id), back.held()), (id, session.piece(id), session.held()));
    assert!(Session::from_piece(session.piece(id), false).is_err());
}
