//! Sessions: exactly once, whatever is proposed (rule E4).

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, QueryContext, RestoreError, Retry, Service, Snapshot,
};
use perdura_protocol::{
    AdminCommand, Batch, Command, Encode, Frame, Outcome, PublicKey, RefusalReason, SessionId,
    Time, Versions, limits,
};
use std::sync::Arc;

const OPEN: Outcome = Outcome::Opened;

fn add(amount: u64) -> Bytes {
    service(&format!("add {amount}"))
}

#[test]
fn a_retry_is_answered_and_not_run_again() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    assert_eq!(replica.open(alice), OPEN);
    let first = frame(alice, 0, 1, &[add(1), add(2)]);
    assert_eq!(replica.order(&first), [reply("1"), reply("3")]);
    assert_eq!(replica.order(&first), [reply("1"), reply("3")]);
    // The same frame twice in one batch, and a frame that overlaps it.
    let batch = Batch::requests(
        Time(2),
        vec![first.clone(), first, frame(alice, 0, 2, &[add(100), add(4)])],
    );
    let outcomes: Vec<Outcome> =
        replica.execute(&batch).replies.into_iter().map(|reply| reply.outcome).collect();
    let expected = ["1", "3", "1", "3", "3", "7"].map(reply);
    assert_eq!(outcomes, expected);
    assert_eq!(replica.0.cached(alice, 3), Some(reply("7")));
    assert_eq!(replica.0.cached(alice, 4), None);
    assert_eq!(replica.0.cached(alice, 0), Some(OPEN));
    assert_eq!(replica.0.cached(session(ALICE, 6), 0), None);
}

#[test]
fn numbers_come_in_any_order_inside_the_window() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    replica.open(alice);
    assert_eq!(replica.one(alice, 9, &add(1)), reply("1"));
    assert_eq!(replica.one(alice, 3, &add(1)), reply("2"));
    let last = limits::SESSION_WINDOW - 1;
    assert_eq!(replica.one(alice, last, &add(1)), reply("3"));
    let exceeded = Outcome::Refused(RefusalReason::WindowExceeded);
    assert_eq!(replica.one(alice, last + 1, &add(1)), exceeded);
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    assert_eq!(replica.one(alice, u64::MAX - 1, &add(1)), malformed, "that is for renewals");
    // Not recorded: it runs once the window has moved.
    let later = frame(alice, 2, last + 1, &[add(1)]);
    assert_eq!(replica.order(&later), [reply("4")]);
}

#[test]
fn acknowledged_numbers_are_too_old_for_good() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    replica.open(alice);
    assert_eq!(replica.one(alice, 1, &add(1)), reply("1"));
    assert_eq!(replica.order(&frame(alice, 3, 3, &[add(1)])), [reply("2")]);
    // Number 1 executed, number 2 never did; neither runs any more.
    for number in [1, 2] {
        assert_eq!(replica.one(alice, number, &add(50)), Outcome::TooOld);
        assert_eq!(replica.0.cached(alice, number), Some(Outcome::TooOld));
    }
    // An older frame with a lower mark does not lower it.
    assert_eq!(replica.order(&frame(alice, 0, 2, &[add(50)])), [Outcome::TooOld]);
    assert_eq!(replica.one(alice, 4, &service("get")), reply("2"));
}

#[test]
fn numbers_at_the_end_of_their_range_do_not_overflow() {
    let mut replica = Replica::of_first_rules(Counter::default());
    let alice = session(ALICE, 5);
    replica.open(alice);
    let end = u64::MAX - 1;
    assert_eq!(replica.order(&frame(alice, end, end, &[add(1)])), [reply("1")]);
    assert_eq!(replica.order(&frame(alice, end, end, &[add(1)])), [reply("1")]);
    assert!(replica.restored(Counter::default()).is_ok());
}

#[test]
fn without_a_session_nothing_runs() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    assert_eq!(replica.one(alice, 1, &add(1)), Outcome::NoSession);
    let stranger = session(PublicKey([77; 32]), 1);
    let unknown = Outcome::Refused(RefusalReason::UnknownClient);
    assert_eq!(replica.open(stranger), unknown);
    assert_eq!(replica.one(stranger, 1, &add(1)), Outcome::NoSession);
    // Opening is number 0, in a frame by itself.
    let open = Command::Open.to_bytes();
    let both = frame(alice, 0, 0, &[open.clone(), add(1)]);
    assert_eq!(replica.order(&both), [Outcome::NoSession, Outcome::NoSession]);
    assert_eq!(replica.open(alice), OPEN);
    assert_eq!(replica.open(alice), OPEN);
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    assert_eq!(replica.one(alice, 1, &open), malformed);
    assert_eq!(replica.one(alice, 2, &Bytes::from_static(&[9])), malformed);
    assert_eq!(replica.one(alice, 2, &add(1)), malformed);
    assert_eq!(replica.one(alice, 0, &add(1)), OPEN);
    assert_eq!(replica.one(alice, 3, &service("get")), reply("0"));
}

#[test]
fn the_session_idle_for_longest_is_evicted_and_never_opens_again() {
    let mut replica = Replica::of_first_rules(Counter::default());
    let cap = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    for nonce in 1..=cap {
        assert_eq!(replica.open(session(ALICE, nonce)), OPEN);
    }
    replica.one(session(ALICE, 1), 1, &add(1));
    // A replayed frame is no use: session 2 stays the idlest.
    replica.open(session(ALICE, 2));
    assert_eq!(replica.open(session(ALICE, cap + 1)), OPEN);
    assert_eq!(replica.open(session(ALICE, 2)), Outcome::NoSession);
    assert_eq!(replica.one(session(ALICE, 2), 1, &add(1)), Outcome::NoSession);
    assert_eq!(replica.one(session(ALICE, 1), 2, &service("get")), reply("1"));
    assert_eq!(replica.open(session(BOB, 2)), OPEN);
}

#[test]
fn of_equally_idle_sessions_the_smallest_nonce_goes() {
    let mut replica = Replica::of_first_rules(Counter::default());
    let cap = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    let opens = (1..=cap).rev().map(|nonce| opening(session(ALICE, nonce))).collect();
    replica.execute(&Batch::requests(Time(1), opens));
    replica.open(session(ALICE, cap + 1));
    assert_eq!(replica.0.cached(session(ALICE, 1), 0), None);
    assert_eq!(replica.0.cached(session(ALICE, 2), 0), Some(OPEN));
}

#[test]
fn forgotten_nonces_stay_closed() {
    let mut replica = Replica::of_first_rules(Counter::default());
    let kept = limits::FIRST_NONCES_PER_CLIENT as u64;
    // An active session stays live though its nonce is forgotten.
    let active = session(ALICE, 10);
    replica.open(active);
    for number in 1..=kept {
        assert_eq!(replica.open(session(ALICE, 1000 + number)), OPEN);
        replica.one(active, number, &add(1));
    }
    assert_eq!(replica.open(active), OPEN);
    for nonce in [0, 9] {
        let outcome = replica.open(session(ALICE, nonce));
        assert!(matches!(outcome, Outcome::Refused(RefusalReason::Contradiction(_))));
    }
    // Above the forgotten one, a smaller nonce than others still opens.
    assert_eq!(replica.open(session(ALICE, 11)), OPEN);
    assert_eq!(replica.open(session(ALICE, 500)), OPEN);
    assert!(replica.restored(Counter::default()).is_ok());
}

fn renewal(of: SessionId, count: u64) -> Frame {
    frame(of, 0, limits::FIRST_RENEWAL + count, &[Command::Renew.to_bytes()])
}

fn closing(of: SessionId, number: u64) -> Frame {
    frame(of, 0, number, &[Command::Close.to_bytes()])
}

fn order_at(replica: &mut Replica<Counter>, ms: u64, frame: &Frame) -> Outcome {
    let batch = Batch::requests(Time(ms), vec![frame.clone()]);
    replica.execute(&batch).replies.remove(0).outcome
}

#[test]
fn a_session_that_is_closed_is_gone_and_never_opens_again() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    replica.open(alice);
    replica.one(alice, 1, &add(1));
    // Not for a number that is another command's, nor beside others, nor as a renewal.
    assert_eq!(replica.order(&closing(alice, 1)), [reply("1")]);
    let close = Command::Close.to_bytes();
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    let both = frame(alice, 0, 2, &[close, add(1)]);
    assert_eq!(replica.order(&both), [malformed.clone(), reply("2")]);
    assert_eq!(replica.order(&frame(alice, 0, 4, &[Command::Renew.to_bytes()])), [malformed]);
    assert_eq!(replica.order(&closing(alice, 5)), [Outcome::NoSession]);
    assert_eq!(replica.0.sessions().count(), 0);
    for frame in
        [closing(alice, 5), frame(alice, 0, 1, &[add(1)]), opening(alice), renewal(alice, 0)]
    {
        assert_eq!(replica.order(&frame), [Outcome::NoSession]);
    }
    assert_eq!(replica.open(session(ALICE, 6)), OPEN);
    assert_eq!(replica.one(session(ALICE, 6), 1, &service("get")), reply("2"));
}

/// Commands with numbers of renewals: nothing of them is kept that a restart could not read. Under the first rules they are numbers as any.
#[test]
fn a_state_with_numbers_near_those_of_renewals_can_be_read_back() {
    let first = limits::FIRST_RENEWAL;
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    let mut replica = Replica::new();
    let (alice, administrator) = (session(ALICE, 5), session(ADMINISTRATOR, 5));
    replica.open(alice);
    assert_eq!(replica.order(&frame(alice, first - 2, first - 2, &[add(1), add(1)])).len(), 2);
    assert_eq!(
        replica.order(&frame(alice, first - 1, first - 1, &[add(1), add(1)])),
        [reply("2"), malformed.clone()]
    );
    assert_eq!(replica.order(&frame(alice, first + 1, first + 1, &[add(1)])), [malformed]);
    let withdraw = Command::Withdraw { number: first + 3 }.to_bytes();
    replica.order(&frame(alice, 0, first - 1, &[withdraw]));
    for frame in [renewal(alice, 2), renewal(alice, u64::MAX - first - 1), closing(alice, first)] {
        replica.order(&frame);
        assert!(replica.restored(Counter::default()).is_ok());
    }
    let mut old = Replica::of_first_rules(Counter::default());
    old.open(alice);
    old.open(administrator);
    assert_eq!(old.order(&frame(alice, first + 1, first + 1, &[add(1)])), [reply("1")]);
    let raise = admin(AdminCommand::RaiseVersions(Versions::NEW));
    assert!(matches!(old.one(administrator, 1, &raise), Outcome::Administered { .. }));
    assert_eq!(old.order(&renewal(alice, 7)), [OPEN]);
    assert!(old.restored(Counter::default()).is_ok(), "what was numbered so before is kept");
}

/// All numbers of the window are answered, and the replica learns of that by the frame that closes.
#[test]
fn a_session_can_be_closed_after_a_full_window() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    replica.open(alice);
    let all = vec![add(1); limits::SESSION_WINDOW as usize - 1];
    assert_eq!(replica.order(&frame(alice, 0, 1, &all)).len(), all.len());
    let last = limits::SESSION_WINDOW;
    assert_eq!(
        replica.order(&frame(alice, last, last, &[Command::Close.to_bytes()])),
        [Outcome::NoSession]
    );
    assert_eq!(replica.0.session_count(), 0);
}

/// Their clocks showed the same, and they drew the same: one of them gets the session.
#[test]
fn two_processes_that_come_upon_one_number_do_not_share_a_session() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    let open = |token: u8| frame(alice, 0, 0, &[Command::OpenBy { token: [token; 16] }.to_bytes()]);
    for (frame, outcome) in [
        (open(1), OPEN),
        (open(2), Outcome::NoSession),
        (open(1), OPEN),
        (opening(alice), Outcome::NoSession),
    ] {
        assert_eq!(replica.order(&frame), std::slice::from_ref(&outcome));
        assert_eq!(
            replica.0.answers(&Retry::of(&frame)),
            Some(vec![(0, outcome)]),
            "and without being ordered again"
        );
    }
    let mut copy = replica.restored(Counter::default()).unwrap();
    assert_eq!(copy.order(&open(2)), [Outcome::NoSession]);
    assert_eq!(copy.order(&open(1)), [OPEN]);
    let mut old = Replica::of_first_rules(Counter::default());
    assert_eq!(old.order(&open(1)), [Outcome::NoSession], "to which it is no opening");
    assert_eq!(old.order(&opening(alice)), [OPEN]);
}

#[test]
fn a_session_ends_by_agreed_time_and_a_renewal_counts_once() {
    let mut replica = Replica::new();
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    replica.open(alice);
    replica.open(bob);
    assert_eq!(replica.0.due(), Some(Time(61_000)));
    assert_eq!(order_at(&mut replica, 50_000, &renewal(alice, 1)), OPEN);
    assert!(replica.0.is_settled(alice, limits::FIRST_RENEWAL));
    assert!(!replica.0.is_settled(alice, limits::FIRST_RENEWAL + 2));
    replica.execute(&Batch::tick(Time(61_000)));
    assert_eq!(replica.0.sessions().collect::<Vec<_>>(), [alice]);
    assert_eq!(order_at(&mut replica, 61_001, &frame(bob, 0, 1, &[add(1)])), Outcome::NoSession);
    // What is proposed again renews nothing, whether it renewed or executed something once.
    assert_eq!(order_at(&mut replica, 90_000, &renewal(alice, 1)), OPEN);
    assert_eq!(order_at(&mut replica, 90_000, &renewal(alice, 0)), OPEN);
    assert_eq!(replica.0.due(), Some(Time(110_000)));
    assert_eq!(order_at(&mut replica, 95_000, &frame(alice, 0, 1, &[add(1)])), reply("1"));
    assert_eq!(replica.0.due(), Some(Time(155_000)));
    assert_eq!(order_at(&mut replica, 100_000, &frame(alice, 0, 1, &[add(1)])), reply("1"));
    assert_eq!(replica.0.due(), Some(Time(155_000)));
    let mut copy = replica.restored(Counter::default()).unwrap();
    assert_eq!(copy.0.due(), replica.0.due());
    // Nothing is ordered for a while, and the copy knows as much as the original.
    for replica in [&mut replica, &mut copy] {
        let late = replica.execute(&Batch::tick(Time(200_000)));
        assert_eq!((late.replies.len(), replica.0.sessions().count()), (0, 1));
        assert_eq!(replica.0.due(), Some(Time(202_000)));
        replica.execute(&Batch::tick(Time(202_000)));
        assert_eq!((replica.0.sessions().count(), replica.0.due()), (0, None));
    }
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
}

#[test]
fn under_the_first_rules_nothing_renews_or_closes_a_session_nor_ends_it() {
    let mut replica = Replica::of_first_rules(Counter::default());
    let alice = session(ALICE, 5);
    replica.open(alice);
    let refused = |reason| [Outcome::Refused(reason)];
    assert_eq!(replica.order(&renewal(alice, 0)), refused(RefusalReason::WindowExceeded));
    assert_eq!(replica.order(&closing(alice, 1)), refused(RefusalReason::Malformed));
    replica.execute(&Batch::tick(Time(1_000_000)));
    assert_eq!((replica.0.sessions().count(), replica.0.due()), (1, None));
    assert_eq!(replica.open(session(ALICE, u64::MAX)), OPEN);
}

#[test]
fn a_revoked_client_is_gone_for_good() {
    let mut replica = Replica::new();
    let (alice, administrator) = (session(ALICE, 5), session(ADMINISTRATOR, 5));
    replica.open(alice);
    replica.open(administrator);
    let old = frame(alice, 0, 1, &[add(1)]);
    assert_eq!(replica.order(&old), [reply("1")]);
    let revoke = AdminCommand::RevokeClient { name: "alice".into() };
    assert!(matches!(replica.one(administrator, 1, &admin(revoke)), Outcome::Administered { .. }));
    assert!(!replica.0.is_client(ALICE));
    assert_eq!(replica.order(&old), [Outcome::NoSession]);
    assert_eq!(replica.open(alice), Outcome::Refused(RefusalReason::UnknownClient));
    // Else its old frames, the opening one included, would run again.
    let again = AdminCommand::AddClient { name: "alice".into(), key: ALICE };
    let outcome = replica.one(administrator, 2, &admin(again));
    assert!(matches!(outcome, Outcome::Refused(RefusalReason::Contradiction(_))), "{outcome:?}");
}

/// Replies with as many bytes as the command says, in KiB.
struct Echo;
struct Nothing;

impl Service for Echo {
    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        let [refuse, kib @ ..] = command else { return Err("".into()) };
        let size = 1024 * usize::from(u16::from_le_bytes([kib[0], kib[1]]));
        if *refuse == 0 { Ok(vec![7; size].into()) } else { Err("ü".repeat(size / 2).into()) }
    }

    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        (command == b"large").then(|| Ok(vec![7; 8 << 20].into()))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Nothing)
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl Snapshot for Nothing {
    fn segments(&self) -> usize {
        0
    }

    fn segment(&self, _: usize) -> Bytes {
        Bytes::new()
    }
}

fn echo(refuse: u8, kib: u16) -> Bytes {
    let [low, high] = kib.to_le_bytes();
    Command::Service(Bytes::copy_from_slice(&[refuse, low, high])).to_bytes()
}

#[test]
fn cached_replies_are_bounded_in_bytes() {
    let mut replica = Replica::of_rules_1(Echo);
    let alice = session(ALICE, 5);
    replica.open(alice);
    let mebibyte = Outcome::Service(vec![7; 1 << 20].into());
    for number in 1..=10 {
        assert_eq!(replica.one(alice, number, &echo(0, 1024)), mebibyte);
    }
    assert_eq!(replica.0.cached(alice, 2), Some(Outcome::TooOld));
    assert_eq!(replica.0.cached(alice, 3), Some(mebibyte.clone()));
    // Its number is still taken.
    assert_eq!(replica.one(alice, 2, &echo(0, 1)), Outcome::TooOld);
    let copy = replica.restored(Echo).unwrap();
    assert_eq!(copy.0.cached(alice, 2), Some(Outcome::TooOld));
    // Acknowledged replies make room.
    replica.order(&frame(alice, 10, 10, &[echo(0, 1)]));
    for number in 11..=17 {
        replica.one(alice, number, &echo(0, 1024));
    }
    assert_eq!(replica.0.cached(alice, 10), Some(mebibyte));
}

/// What a long refusal takes counts like a reply, and who goes first is who came first; answers
/// without a body cost nothing and stay.
#[test]
fn refusals_count_by_their_text_and_short_answers_stay() {
    let mut replica = Replica::of_rules_1(Echo);
    let alice = session(ALICE, 5);
    replica.open(alice);
    let (empty, terse) = (Outcome::Service(Bytes::new()), replica.one(alice, 1, &echo(1, 0)));
    assert_eq!(replica.one(alice, 2, &echo(0, 0)), empty);
    let mebibytes = (limits::SESSION_REPLY_BYTES >> 20) as u64;
    for number in 3..3 + mebibytes {
        replica.one(alice, number, &echo(0, 1024));
    }
    assert_ne!(replica.0.cached(alice, 3), Some(Outcome::TooOld), "up to the bound, all are kept");
    let refusal = replica.one(alice, 500, &echo(1, 4));
    assert_eq!(replica.0.cached(alice, 3), Some(Outcome::TooOld));
    assert_ne!(replica.0.cached(alice, 4), Some(Outcome::TooOld));
    assert_eq!(replica.0.cached(alice, 500), Some(refusal));
    assert_eq!(replica.0.cached(alice, 1), Some(terse));
    assert_eq!(replica.0.cached(alice, 2), Some(empty));
    assert!(replica.restored(Echo).is_ok());
}

/// A piece that was digested before is digested again after a frame that only acknowledges.
#[test]
fn an_acknowledgement_alone_changes_the_state() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 5);
    replica.open(alice);
    replica.one(alice, 1, &add(1));
    replica.one(alice, 2, &add(1));
    assert!(replica.restored(Counter::default()).is_ok());
    assert_eq!(replica.order(&frame(alice, 2, 1, &[add(1)])), [Outcome::TooOld]);
    let copy = replica.restored(Counter::default()).unwrap();
    assert_eq!(copy.0.cached(alice, 1), Some(Outcome::TooOld));
    assert_eq!(copy.0.cached(alice, 2), Some(reply("2")), "the one at the mark is kept");
}

#[test]
fn a_client_with_many_sessions_has_no_more_replies_cached_than_its_key_may() {
    let mut replica = Replica::of_rules_1(Echo);
    let sessions = limits::CLIENT_REPLY_BYTES / limits::SESSION_REPLY_BYTES + 2;
    let mebibyte = Outcome::Service(vec![7; 1 << 20].into());
    for nonce in 0..sessions as u64 {
        replica.open(session(ALICE, 5 + nonce));
        for number in 1..=8 {
            assert_eq!(replica.one(session(ALICE, 5 + nonce), number, &echo(0, 1024)), mebibyte);
        }
    }
    let held = |replica: &Replica<Echo>| {
        let numbers = (0..sessions as u64).flat_map(|nonce| (1..=8).map(move |n| (nonce, n)));
        let cached = numbers.map(|(nonce, n)| replica.0.cached(session(ALICE, 5 + nonce), n));
        cached.filter(|outcome| *outcome == Some(mebibyte.clone())).count() << 20
    };
    assert_eq!(held(&replica), limits::CLIENT_REPLY_BYTES);
    // The idlest gave theirs; their numbers stay taken, and a copy of the state agrees.
    assert_eq!(replica.0.cached(session(ALICE, 5), 1), Some(Outcome::TooOld));
    assert_eq!(replica.0.cached(session(ALICE, 6), 8), Some(Outcome::TooOld));
    assert_eq!(replica.0.cached(session(ALICE, 7), 1), Some(mebibyte.clone()));
    let copy = replica.restored(Echo).unwrap();
    assert_eq!(held(&copy), limits::CLIENT_REPLY_BYTES);
}

/// One reply may take the place of several, in more than one session.
#[test]
fn as_many_sessions_give_their_replies_as_a_new_one_needs() {
    let mut replica = Replica::of_rules_1(Echo);
    let full = (limits::CLIENT_REPLY_BYTES / limits::SESSION_REPLY_BYTES) as u64 - 1;
    let of = |nonce| session(ALICE, nonce);
    for nonce in 0..2 {
        replica.open(of(nonce));
        replica.one(of(nonce), 1, &echo(0, 512));
        replica.one(of(nonce), 2, &echo(0, 16));
    }
    for nonce in 2..2 + full {
        replica.open(of(nonce));
        (1..=8).for_each(|number| drop(replica.one(of(nonce), number, &echo(0, 1024))));
    }
    let last = of(2 + full);
    replica.open(last);
    (1..=7).for_each(|number| drop(replica.one(last, number, &echo(0, 1024))));
    let kept = |replica: &Replica<Echo>, nonce, number| {
        replica.0.cached(of(nonce), number) != Some(Outcome::TooOld)
    };
    // 32 KiB too much by now: the oldest body of the idlest session.
    assert_eq!([1, 2].map(|number| kept(&replica, 0, number)), [false, true]);
    assert_eq!([1, 2].map(|number| kept(&replica, 1, number)), [true, true]);
    // 544 KiB too much: all that is left there, and all of the next.
    replica.one(last, 8, &echo(0, 1024));
    assert_eq!([1, 2].map(|number| kept(&replica, 0, number)), [false, false]);
    assert_eq!([1, 2].map(|number| kept(&replica, 1, number)), [false, false]);
    assert_eq!([1, 8].map(|number| kept(&replica, 2, number)), [true, true]);
}

#[test]
fn replies_and_refusals_fit_the_codec() {
    let mut replica = Replica::of_rules_1(Echo);
    let alice = session(ALICE, 5);
    replica.open(alice);
    let large = Outcome::TooLarge { bytes: 8192 * 1024 };
    assert_eq!(replica.one(alice, 1, &echo(0, 8192)), large);
    assert_eq!(replica.0.cached(alice, 1), Some(large), "it ran once");
    let read = Command::Service(Bytes::from_static(b"large")).to_bytes();
    let refused = replica.0.query(ALICE, &read);
    assert!(
        matches!(&refused, Some(Outcome::Refused(RefusalReason::Service(text))) if text.contains("bytes")),
        "{refused:?}"
    );
    let mut old = Replica::of_first_rules(Echo);
    old.open(alice);
    assert_eq!(old.one(alice, 1, &echo(0, 8192)), Outcome::TooOld);
    let Outcome::Refused(RefusalReason::Service(text)) = replica.one(alice, 2, &echo(1, 5)) else {
        panic!("the service refuses");
    };
    assert_eq!(text.len(), 4096);
    assert!(replica.restored(Echo).is_ok());
}

/// Frames of more sessions than there are at a time, replayed at random for a long time: under the first rules more than nonces are
/// remembered, under later ones in an hour of agreed time, in which the group stands still now and then.
#[test]
fn nothing_runs_twice_under_replay() {
    for timed in [false, true] {
        let counter = Counter::default();
        let mut replica =
            if timed { Replica::around(counter) } else { Replica::of_first_rules(counter) };
        let mut seed = 1u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut frames = Vec::new();
        for index in 1..600u64 {
            let nonce = if timed { 6_000 * index * limits::NONCES_PER_MS } else { index };
            let id = session(ALICE, nonce);
            frames.push(opening(id));
            for number in 1..5 {
                frames.push(frame(id, random(number + 1), number, &[add(1)]));
            }
            frames.push(if random(3) == 0 { closing(id, 5) } else { renewal(id, random(3)) });
        }
        let mut ran = std::collections::BTreeSet::new();
        let (mut ended, mut now) = (0, 0);
        for round in 0..120_000 {
            let near = (round as usize / 40).min(frames.len() - 1);
            let pick = if random(2) == 0 { random(frames.len() as u64) as usize } else { near };
            let frame = &frames[pick];
            // As fast as the sessions come; now and then with a leap.
            now = (25 * round).max(now) + if random(5_000) == 0 { random(90_000) } else { 0 };
            let (before, sessions) =
                (replica.0.query(ALICE, &service("get")), replica.0.session_count());
            let outcome = order_at(&mut replica, now, frame);
            let after = replica.0.query(ALICE, &service("get"));
            ended += usize::from(replica.0.session_count() < sessions);
            if before != after {
                assert!(ran.insert((frame.session, frame.first_number)), "{frame:?} ran twice");
                assert_eq!(Some(outcome), after);
            }
        }
        assert_eq!(replica.0.query(ALICE, &service("get")), Some(reply(&ran.len().to_string())));
        assert!(ran.len() > 100 && ran.len() <= 4 * 599, "{} ran", ran.len());
        assert!(ended > 100 || !timed, "{ended} sessions ended");
        assert!(replica.restored(Counter::default()).is_ok());
    }
}
