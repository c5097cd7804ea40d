//! When sessions open and end, and what keys take from each other.

use super::*;

const ALICE: PublicKey = PublicKey([1; 32]);
const BOB: PublicKey = PublicKey([2; 32]);

const TOKEN: Token = [7; 16];

/// A time that leaves room before it.
const NOW: Time = Time(1_000_000);

fn nonce_at(ms: u64) -> u64 {
    ms * limits::NONCES_PER_MS
}

fn id(client: PublicKey, nonce: u64) -> SessionId {
    SessionId { client, nonce }
}

fn later(ms: u64) -> Time {
    Time(NOW.0 + ms)
}

/// What follows from the tables is what it would be if it were made anew.
fn consistent(sessions: &Sessions) {
    let mut anew = sessions.clone();
    let stood_ms = sessions.stood_ms().unwrap();
    anew.timed = Some(Timed { stood_ms, ..Timed::default() });
    assert!(anew.are_complete());
    let (kept, anew) = (sessions.timed.as_ref().unwrap(), anew.timed.as_ref().unwrap());
    assert_eq!(kept.by_end, anew.by_end);
    assert_eq!(kept.by_wait, anew.by_wait);
    assert_eq!(kept.by_offer, anew.by_offer);
    assert_eq!(kept.by_nonce, anew.by_nonce);
    let shared = |timed: &Timed| (timed.shared_sessions, timed.shared_nonces);
    assert_eq!(shared(kept), shared(anew));
    for table in sessions.tables.values() {
        let held = |one: &Arc<Session>| one.held();
        let bytes: usize = table.live.values().map(|one| held(one).reply_bytes).sum();
        let idle = table.live().filter(|(_, one)| held(one).reply_bytes > 0);
        let idle: OrdSet<_> = idle.map(|(nonce, one)| (held(one).last_used, nonce)).collect();
        assert_eq!((table.reply_bytes, &table.idle), (bytes, &idle));
    }
}

fn opened(sessions: &mut Sessions, now: Time, id: SessionId) {
    let (outcome, ended) = sessions.open(Slot(1), now, id, TOKEN);
    assert!(outcome == Outcome::Opened && ended.is_none());
    consistent(sessions);
}

/// In agreed time.
fn due(sessions: &Sessions) -> Option<Time> {
    sessions.due().map(|due| sessions.agreed(due))
}

fn pass(sessions: &mut Sessions, before: Time, now: Time, due: Option<Time>) -> Passed {
    sessions.stand_still(before, now, due);
    sessions.pass(now)
}

fn ended(sessions: &mut Sessions, before: Time, now: Time) -> Vec<SessionId> {
    let due = due(sessions);
    let passed = pass(sessions, before, now, due);
    consistent(sessions);
    passed.ended.into_iter().map(|(id, _)| id).collect()
}

fn decoded(lowest: u64, nonces: &[u64], timed: bool) -> Option<Table> {
    let mut out = Vec::new();
    lowest.encode(&mut out);
    encode_list(nonces, &mut out);
    let mut reader = Reader::new(out.clone().into());
    let sessions = Table::decode(&mut reader, timed).ok()?;
    let mut again = Vec::new();
    sessions.encode(&mut again);
    assert_eq!(again, out);
    Some(sessions)
}

#[test]
fn remembered_nonces_are_ascending_and_not_below_the_lowest() {
    assert!(decoded(0, &[0], false).is_some() && decoded(5, &[5, 9, 10], false).is_some());
    for nonces in [&[][..], &[4, 9], &[9, 5], &[5, 9, 9], &[5, 10, 9]] {
        assert!(decoded(5, nonces, false).is_none(), "{nonces:?}");
    }
}

#[test]
fn a_number_opens_a_session_within_a_minute_of_agreed_time_and_once() {
    let mut sessions = Sessions::new(true);
    let from = nonce_at(NOW.0 - limits::NONCE_MS);
    let day = 24 * 3600 * 1000;
    for nonce in [0, from - 1, nonce_at(NOW.0 + limits::NONCE_MS) + 1, nonce_at(NOW.0 + day)] {
        let refused = Outcome::Refused(RefusalReason::NotNow { time: NOW, from });
        assert_eq!(sessions.open(Slot(1), NOW, id(ALICE, nonce), TOKEN).0, refused);
        consistent(&sessions);
    }
    assert!(sessions.tables.values().all(|table| table.nonces() == 0), "it burns nothing");
    let (first, last) = (id(ALICE, from), id(ALICE, nonce_at(NOW.0 + limits::NONCE_MS)));
    for id in [last, first, last] {
        opened(&mut sessions, NOW, id);
    }
    for id in [first, last] {
        assert!(sessions.end(id).is_some() && sessions.end(id).is_none());
        consistent(&sessions);
        assert_eq!(sessions.open(Slot(2), NOW, id, TOKEN).0, Outcome::NoSession);
    }
    // The first is forgotten as soon as it could not open a session any more, and the last two minutes later.
    for (ms, left) in [(0, 2), (1, 1), (2 * limits::NONCE_MS, 1), (2 * limits::NONCE_MS + 1, 0)] {
        pass(&mut sessions, NOW, later(ms), None);
        consistent(&sessions);
        assert_eq!(sessions.tables[&ALICE].nonces(), left, "{ms} ms later");
        for id in [first, last] {
            assert_ne!(
                sessions.open(Slot(2), later(ms), id, TOKEN).0,
                Outcome::Opened,
                "{ms} ms later"
            );
        }
    }
}

#[test]
fn what_nothing_renews_for_a_minute_ends() {
    let mut sessions = Sessions::new(true);
    let (one, other) = (id(ALICE, nonce_at(NOW.0)), id(BOB, nonce_at(NOW.0) + 1));
    opened(&mut sessions, NOW, one);
    opened(&mut sessions, NOW, other);
    assert_eq!(sessions.due(), Some(later(limits::SESSION_MS)));
    assert_eq!(ended(&mut sessions, NOW, later(30_000)), []);
    let session = sessions.get_mut(other).unwrap();
    let before = session.held();
    session.renew(later(30_000), limits::FIRST_RENEWAL);
    let now = session.held();
    sessions.settle(other, before, now);
    consistent(&sessions);
    assert_eq!(ended(&mut sessions, later(30_000), later(limits::SESSION_MS - 1)), []);
    assert_eq!(ended(&mut sessions, later(59_000), later(limits::SESSION_MS)), [one]);
    assert_eq!(sessions.due(), Some(later(90_000)));
    assert_eq!(ended(&mut sessions, later(60_000), later(90_500)), [other]);
    assert_eq!(sessions.due(), None);
}

#[test]
fn a_group_that_stood_still_ends_nobody_for_that() {
    let mut sessions = Sessions::new(true);
    let (one, other) = (id(ALICE, nonce_at(NOW.0)), id(ALICE, nonce_at(NOW.0) + 1));
    opened(&mut sessions, NOW, one);
    opened(&mut sessions, later(10_000), other);
    // Nothing was ordered for an hour, though a session was to end after a minute.
    let hour = 3_600_000;
    assert_eq!(ended(&mut sessions, later(10_000), later(hour)), []);
    assert_eq!(due(&sessions), Some(later(hour + OUTAGE_MS)), "there is a moment to renew it");
    assert_eq!(ended(&mut sessions, later(hour), later(hour + OUTAGE_MS)), [one]);
    assert_eq!(due(&sessions), Some(later(hour + OUTAGE_MS + 10_000)));
    // What is a little late is no outage.
    let late = later(hour + 2 * OUTAGE_MS + 10_000);
    assert_eq!(ended(&mut sessions, later(hour + OUTAGE_MS), late), [other]);
    assert_eq!(sessions.stood_ms(), Some(hour - limits::SESSION_MS + OUTAGE_MS));
}

#[test]
fn a_key_has_so_many_sessions_and_each_some_of_its_own() {
    let mut sessions = Sessions::new(true);
    let first = nonce_at(NOW.0);
    let open = |sessions: &mut Sessions, client, number: usize| {
        sessions.open(Slot(1), NOW, id(client, first + number as u64), TOKEN).0
    };
    for number in 0..limits::SESSIONS_PER_CLIENT {
        assert_eq!(open(&mut sessions, ALICE, number), Outcome::Opened);
    }
    consistent(&sessions);
    let full = open(&mut sessions, ALICE, limits::SESSIONS_PER_CLIENT);
    assert!(
        matches!(&full, Outcome::Refused(RefusalReason::Contradiction(text)) if text.contains("4096"))
    );
    assert!(sessions.end(id(ALICE, first)).is_some());
    assert_eq!(open(&mut sessions, ALICE, limits::SESSIONS_PER_CLIENT), Outcome::Opened);
    // Others take all that is shared: there are some left for each.
    let timed = sessions.timed.as_mut().unwrap();
    (timed.shared_sessions, timed.shared_nonces) = (limits::SESSIONS_SHARED, limits::NONCES_SHARED);
    for number in 0..limits::SESSIONS_OWN {
        assert_eq!(open(&mut sessions, BOB, number), Outcome::Opened);
    }
    let full = open(&mut sessions, BOB, limits::SESSIONS_OWN);
    assert!(
        matches!(&full, Outcome::Refused(RefusalReason::Contradiction(text)) if text.contains("together"))
    );
    for number in limits::SESSIONS_OWN..limits::NONCES_OWN {
        assert!(sessions.end(id(BOB, first)).is_some() || number > limits::SESSIONS_OWN);
        assert_eq!(open(&mut sessions, BOB, number), Outcome::Opened);
        assert!(sessions.end(id(BOB, first + number as u64)).is_some());
    }
    let full = open(&mut sessions, BOB, limits::NONCES_OWN);
    assert!(
        matches!(&full, Outcome::Refused(RefusalReason::Contradiction(text)) if text.contains("were opened"))
    );
}

#[test]
fn a_client_that_goes_leaves_nothing() {
    let mut sessions = Sessions::new(true);
    for number in 0..limits::NONCES_OWN as u64 + 5 {
        opened(&mut sessions, NOW, id(ALICE, nonce_at(NOW.0) + number));
    }
    opened(&mut sessions, NOW, id(BOB, nonce_at(NOW.0)));
    assert_eq!(sessions.end_client(ALICE).len(), limits::NONCES_OWN + 5);
    consistent(&sessions);
    assert!(sessions.end_client(ALICE).is_empty());
    assert_eq!(sessions.due(), Some(later(limits::SESSION_MS)));
}

#[test]
fn what_lived_under_the_first_rules_counts_as_renewed_when_they_are_raised() {
    let mut sessions = Sessions::new(false);
    for nonce in [5, 6] {
        assert_eq!(sessions.open(Slot(1), NOW, id(ALICE, nonce), TOKEN).0, Outcome::Opened);
    }
    assert_eq!((sessions.due(), sessions.clock(NOW)), (None, None));
    assert!(pass(&mut sessions, NOW, later(1_000_000), None).ended.is_empty());
    sessions.start_timing(later(1_000_000));
    consistent(&sessions);
    sessions.start_timing(later(1_500_000));
    assert_eq!(sessions.due(), Some(later(1_000_000 + limits::SESSION_MS)));
    // Their numbers are of no time at all. What they opened cannot be opened again.
    assert_eq!(ended(&mut sessions, later(1_000_000), later(1_060_000)).len(), 2);
    let outcome = sessions.open(Slot(9), later(1_060_000), id(ALICE, 5), TOKEN).0;
    assert!(matches!(outcome, Outcome::Refused(RefusalReason::NotNow { .. })));
}

#[test]
fn only_what_was_opened_is_put_back_and_once() {
    let session = || Session::new(Slot(1), None);
    let table = decoded(5, &[7, 9], false).unwrap();
    let mut sessions = Sessions::restored(vec![(ALICE, table)], None);
    let mut put = |nonce| sessions.put_back(NOW, id(ALICE, nonce), session());
    assert!(put(4), "opened before, and forgotten");
    assert!(put(7));
    assert!(!put(7), "twice");
    assert!(!put(5), "never opened");
    assert!(!put(8) && !put(10));
    assert!(!sessions.put_back(NOW, id(BOB, 7), session()));
    let table = decoded(1000, &[1000], false).unwrap();
    let mut many = Sessions::restored(vec![(ALICE, table)], None);
    let most = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    assert!((0..most).all(|nonce| many.put_back(NOW, id(ALICE, nonce), session())));
    assert!(!many.put_back(NOW, id(ALICE, most), session()), "more than a client may have");
}

#[test]
fn of_those_that_end_by_time_what_could_be_opened_now_is_remembered() {
    let session = || Session::new(Slot(1), Some(NOW));
    let table = decoded(0, &[nonce_at(NOW.0)], true).unwrap();
    let mut sessions = Sessions::restored(vec![(ALICE, table)], Some(0));
    let start = nonce_at(NOW.0 - limits::NONCE_MS);
    assert!(sessions.put_back(NOW, id(ALICE, start - 1), session()), "its number is forgotten");
    assert!(!sessions.put_back(NOW, id(ALICE, start), session()), "it would be remembered");
    assert!(sessions.put_back(NOW, id(ALICE, nonce_at(NOW.0)), session()));
    assert!(sessions.are_complete());
    consistent(&sessions);
    assert!(decoded(0, &[], true).is_some(), "all may be forgotten");
}
