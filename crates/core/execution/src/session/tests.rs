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

fn refused(acked_below: u64, numbers: &[u64]) -> bool {
    let replies: Vec<_> = numbers.iter().map(|number| (*number, service(1))).collect();
    Session::from_piece(piece(acked_below, &replies)).is_err()
}

#[test]
fn a_session_comes_back_as_it_was() {
    let text = Outcome::Refused(RefusalReason::Service("no".into()));
    let original = piece(4, &[(4, service(3)), (9, text.clone()), (10, Outcome::TooOld)]);
    let (id, mut session) = Session::from_piece(original.clone()).unwrap();
    assert_eq!((id.nonce, session.last_used()), (5, Slot(33)));
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
    let (_, session) = Session::from_piece(piece(0, &replies)).unwrap();
    assert_eq!(session.reply_bytes, limits::SESSION_REPLY_BYTES);
    replies.push((100, service(1)));
    assert!(Session::from_piece(piece(0, &replies)).is_err());
}

fn decoded(lowest: u64, nonces: &[u64]) -> Option<ClientSessions> {
    let mut out = Vec::new();
    lowest.encode(&mut out);
    encode_list(nonces, &mut out);
    let mut reader = Reader::new(out.clone().into());
    let sessions = ClientSessions::decode(&mut reader).ok()?;
    let mut again = Vec::new();
    sessions.encode(&mut again);
    assert_eq!(again, out);
    Some(sessions)
}

#[test]
fn remembered_nonces_are_ascending_and_not_below_the_lowest() {
    assert!(decoded(0, &[0]).is_some() && decoded(5, &[5, 9, 10]).is_some());
    for nonces in [&[][..], &[4, 9], &[9, 5], &[5, 9, 9], &[5, 10, 9]] {
        assert!(decoded(5, nonces).is_none(), "{nonces:?}");
    }
}

#[test]
fn only_what_was_opened_is_put_back_and_once() {
    let session = || Session::new(Slot(1));
    let mut sessions = decoded(5, &[7, 9]).unwrap();
    assert!(sessions.put_back(4, session()), "opened before, and forgotten");
    assert!(sessions.put_back(7, session()));
    assert!(!sessions.put_back(7, session()), "twice");
    assert!(!sessions.put_back(5, session()), "never opened");
    assert!(!sessions.put_back(8, session()) && !sessions.put_back(10, session()));
    let mut many = decoded(1000, &[1000]).unwrap();
    let most = limits::SESSIONS_PER_CLIENT as u64;
    assert!((0..most).all(|nonce| many.put_back(nonce, session())));
    assert!(!many.put_back(most, session()), "more than a client may have");
}

#[test]
fn numbers_that_wait_are_ascending_and_have_no_reply() {
    let piece = |waiting: &[u64]| {
        let mut out = piece(4, &[(5, service(1))]).to_vec();
        encode_list(waiting, &mut out);
        Bytes::from(out)
    };
    let original = piece(&[4, 7, 3 + limits::SESSION_WINDOW]);
    let (id, session) = Session::from_piece(original.clone()).unwrap();
    assert_eq!(session.piece(id), original);
    assert_eq!((session.admit(7), session.admit(6)), (Admission::Waits, Admission::Fresh));
    for waiting in [&[][..], &[7, 6], &[6, 6], &[5], &[3], &[4 + limits::SESSION_WINDOW]] {
        assert!(Session::from_piece(piece(waiting)).is_err(), "{waiting:?}");
    }
}
