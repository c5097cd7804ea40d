use super::*;
use perdura_protocol::message::StateCertificate;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Certificate, Encode, Slot};

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(1);
const LEADER: ReplicaId = ReplicaId(2);

fn piece(index: u32) -> Bytes {
    Bytes::copy_from_slice(&index.to_be_bytes())
}

/// A state of `count` pieces.
fn manifest(count: u32) -> Manifest {
    let entries: Vec<Bytes> = (0..count)
        .map(|index| [Digest::of(&piece(index)).to_bytes().as_ref(), &[0, 0, 4, 0]].concat().into())
        .collect();
    let header = [Slot(7).to_bytes(), Digest::ZERO.to_bytes(), 0u32.to_bytes(), count.to_bytes()];
    Manifest::read(header.into_iter().chain(entries).flatten().collect()).unwrap()
}

fn fetching(count: u32, (active, least): (usize, usize), kept: &[u32]) -> Fetching {
    let (manifest, prefix) = (manifest(count), PrefixCertificate::genesis());
    let state = StateCertificate {
        slot: manifest.slot,
        digest: manifest.digest(),
        configuration: 0,
        certificate: Certificate::new(Vec::new()),
    };
    let kept = kept.iter().map(|index| (Digest::of(&piece(*index)), piece(*index))).collect();
    let plan = (vec![A, B, LEADER], active, least);
    Fetching::new(Offer { state, prefix }, manifest, plan, &kept, 0)
}

fn of(asks: &[(ReplicaId, u32)], id: ReplicaId) -> Vec<u32> {
    asks.iter().filter(|ask| ask.0 == id).map(|ask| ask.1).collect()
}

#[test]
fn the_work_is_shared_out_and_the_leader_has_none_of_it() {
    let mut state = fetching(40, (2, 2), &[0, 5]);
    let mut given = BTreeMap::new();
    let mut asks: VecDeque<(ReplicaId, u32)> = state.asks(0).into();
    assert_eq!(asks.len(), 2 * LEAST_AT_ONCE);
    while let Some((from, index)) = asks.pop_front() {
        assert!(state.lacks(index) && state.owes(from, index), "asked for once");
        state.take(1, index, piece(index));
        *given.entry(from).or_insert(0) += 1;
        asks.extend(state.asks(1));
    }
    assert!(state.complete());
    assert_eq!(given, BTreeMap::from([(A, 19), (B, 19)]));
    let pieces: Option<Vec<Bytes>> = state.into_pieces().2.into_iter().collect();
    assert_eq!(pieces, Some((0..40).map(piece).collect()));
}

#[test]
fn few_pieces_are_shared_out_as_well() {
    let asks = fetching(4, (2, 2), &[]).asks(0);
    assert_eq!((of(&asks, A), of(&asks, B)), (vec![0, 2], vec![1, 3]));
}

#[test]
fn what_a_slow_one_owes_is_asked_for_elsewhere_when_nothing_else_is_left() {
    let mut state = fetching(12, (2, 2), &[]);
    let asks = state.asks(0);
    let owed = of(&asks, B);
    for index in of(&asks, A) {
        state.take(10, index, piece(index));
    }
    assert_eq!(state.asks(OWED_MS - 1), []);
    let again = state.asks(OWED_MS);
    assert_eq!(again, owed.iter().map(|index| (A, *index)).collect::<Vec<_>>());
    assert_eq!(state.asks(OWED_MS), [], "it is on the way");
    // It keeps within the time-outs for nothing.
    state.take(OWED_MS + 5, owed[0], piece(owed[0]));
    for index in &owed[1..] {
        state.take(OWED_MS + 6, *index, piece(*index));
    }
    assert!(state.complete());
}

#[test]
fn who_gives_nothing_is_found_and_what_it_owes_is_open_again() {
    let mut state = fetching(30, (2, 2), &[]);
    let mut pace = Pace::default();
    let asks = state.asks(0);
    for index in of(&asks, A) {
        state.take(500, index, piece(index));
    }
    state.asks(500);
    assert_eq!(state.silent(ANSWER_MS - 1, &mut pace), None);
    assert_eq!(state.silent(ANSWER_MS, &mut pace), Some(B));
    state.drop_seeder(ANSWER_MS, B);
    // Two are to be asked at any time, and so the leader now.
    let next = state.asks(ANSWER_MS);
    assert_eq!((of(&next, A).len(), of(&next, LEADER).len()), (0, LEAST_AT_ONCE));
    state.drop_seeder(ANSWER_MS, A);
    assert_eq!(state.seeders().collect::<Vec<_>>(), [LEADER]);
    state.drop_seeder(ANSWER_MS, LEADER);
    assert_eq!(state.seeders().next(), None);
}

#[test]
fn what_may_be_lost_is_asked_for_again_before_its_time_is_over() {
    let mut state = fetching(3, (1, 1), &[]);
    let pace = Pace::default();
    let asked = state.asks(0);
    assert_eq!(of(&asked, A), [0, 1, 2]);
    state.take(100, 1, piece(1));
    assert_eq!(state.reminders(99 + ANSWER_MS / 2, &pace), []);
    assert_eq!(state.reminders(100 + ANSWER_MS / 2, &pace), [(A, 0), (A, 2)]);
    assert_eq!(state.reminders(101 + ANSWER_MS / 2, &pace), [], "once");
    assert_eq!(state.silent(100 + ANSWER_MS, &mut { pace }), Some(A), "its time goes on");
    // What it gives is progress.
    state.take(150 + ANSWER_MS / 2, 0, piece(0));
    assert_eq!(state.reminders(150 + ANSWER_MS, &pace), [(A, 2)]);
    assert_eq!(state.silent(150 + ANSWER_MS, &mut { pace }), None);
}

#[test]
fn the_timeout_grows_when_nobody_gave_anything_and_within_bounds() {
    let mut pace = Pace::default();
    let mut state = fetching(30, (2, 2), &[]);
    let owed = of(&state.asks(0), A);
    state.take(ANSWER_MS - 1, owed[0], piece(owed[0]));
    assert_eq!(state.silent(ANSWER_MS, &mut pace), Some(B), "one of two");
    for doublings in 0..=ANSWER_DOUBLINGS {
        let mut state = fetching(30, (2, 2), &[]);
        state.asks(0);
        assert_eq!(state.silent((ANSWER_MS << doublings) - 1, &mut pace), None);
        assert_eq!(state.silent(ANSWER_MS << doublings, &mut pace), Some(A));
    }
    let mut state = fetching(30, (2, 2), &[]);
    state.asks(0);
    assert_eq!(state.silent(ANSWER_MS << ANSWER_DOUBLINGS, &mut pace), Some(A));
}

#[test]
fn nobody_is_asked_twice_for_what_it_owes() {
    let mut state = fetching(12, (2, 2), &[]);
    let mut asked: BTreeSet<(ReplicaId, u32)> = BTreeSet::new();
    let mut ask = |state: &mut Fetching, now_ms: u64| {
        for ask in state.asks(now_ms) {
            assert!(asked.insert(ask), "{ask:?} again");
        }
    };
    ask(&mut state, 0);
    for index in (0..12).step_by(2) {
        state.take(10, index, piece(index));
    }
    ask(&mut state, OWED_MS);
    state.drop_seeder(OWED_MS, B);
    ask(&mut state, OWED_MS);
    state.drop_seeder(OWED_MS, A);
    ask(&mut state, OWED_MS);
    assert!((1..12).step_by(2).all(|index| state.owes(LEADER, index)));
}

#[test]
fn what_was_on_a_link_that_broke_is_asked_for_elsewhere_and_who_stays_away_is_left_out() {
    let mut state = fetching(30, (2, 2), &[]);
    let mut pace = Pace::default();
    let lost = of(&state.asks(0), B);
    state.on_link(10, B, false);
    for index in of(&state.asks(10), A) {
        state.take(20, index, piece(index));
    }
    for index in (0..16).step_by(2) {
        state.take(20, index, piece(index));
    }
    let next = state.asks(20);
    assert!(next.iter().all(|ask| ask.0 == A));
    state.on_link(30, B, true);
    assert!(of(&state.asks(30), B).iter().any(|index| lost.contains(index)));
    state.on_link(40, B, false);
    for index in of(&next, A) {
        state.take(900, index, piece(index));
    }
    assert_eq!(state.silent(40 + ANSWER_MS - 1, &mut pace), None);
    assert_eq!(state.silent(40 + ANSWER_MS, &mut pace), Some(B));
}

#[test]
fn one_at_a_time_is_possible_too() {
    let mut state = fetching(30, (1, 1), &[]);
    let asks = state.asks(0);
    assert_eq!(of(&asks, A).len(), asks.len());
    state.drop_seeder(ANSWER_MS, A);
    let asks = state.asks(0);
    assert_eq!(of(&asks, B), (8..16).collect::<Vec<u32>>());
}

#[test]
fn when_pieces_come_slowly_the_reserve_is_asked_too() {
    let mut state = fetching(200, (2, 2), &[]);
    let mut pace = Pace::default();
    let mut asks: VecDeque<(ReplicaId, u32)> = state.asks(0).into();
    for number in 0..PACE_PIECES {
        assert!(!state.lags(PACE_MS - 1, &mut pace));
        let (_, index) = asks.pop_front().unwrap();
        state.take(number as u64, index, piece(index));
        asks.extend(state.asks(number as u64));
    }
    let since = PACE_PIECES as u64 - 1;
    assert!(!state.lags(since + PACE_MS - 1, &mut pace));
    assert!(state.asks(since + 10).iter().all(|ask| ask.0 != LEADER));
    assert!(state.lags(since + PACE_MS, &mut pace));
    assert_eq!(of(&state.asks(since + PACE_MS), LEADER).len(), LEAST_AT_ONCE);
    // The way may be slow: a longer time-out from now on, also for the next state.
    assert!(!state.lags(since + 3 * PACE_MS - 1, &mut pace));
    assert!(state.lags(since + 3 * PACE_MS, &mut pace));
}

#[test]
fn transfers_have_names() {
    for transfer in StateTransfer::ALL {
        assert_eq!(StateTransfer::parse(transfer.name()), Some(transfer));
    }
    assert_eq!(StateTransfer::parse("all"), None);
    assert_eq!(StateTransfer::default().name(), "collaborative");
}

#[test]
fn what_was_lost_on_the_way_is_open_at_once_also_for_who_lost_it() {
    let mut state = fetching(40, (2, 2), &[]);
    let lost = of(&state.asks(0), A);
    assert_eq!(lost.len(), LEAST_AT_ONCE);
    // One of them came before, one is asked of the other too.
    state.take(5, lost[0], piece(lost[0]));
    state.on_lost(10, A);
    assert!(lost.iter().all(|index| !state.owes(A, *index)));
    assert_eq!(state.silent(1_009, &mut Pace::default()), Some(B), "who lost it owes nothing");
    let asks = state.asks(10);
    assert_eq!(of(&asks, A).len(), LEAST_AT_ONCE);
    let mut given: BTreeSet<u32> = BTreeSet::new();
    let mut asks: VecDeque<(ReplicaId, u32)> = asks.into();
    asks.extend((0..40).filter(|index| state.owes(B, *index)).map(|index| (B, index)));
    while let Some((_, index)) = asks.pop_front() {
        if state.lacks(index) {
            state.take(11, index, piece(index));
            given.insert(index);
            asks.extend(state.asks(11));
        }
    }
    assert!(state.complete() && given.len() == 39);
    // Of one that is away nothing is asked for that.
    let mut state = fetching(40, (2, 2), &[]);
    state.on_link(0, A, false);
    state.on_lost(1, A);
    assert!(of(&state.asks(1), A).is_empty());
}

/// One that gives nothing, and has its link break before its time is over, is passed over all the same.
#[test]
fn who_loses_its_link_again_and_again_gains_no_time() {
    let mut state = fetching(40, (2, 2), &[]);
    let mut asks = state.asks(0);
    let mut now_ms = 0;
    let silent = loop {
        for (_, index) in asks.drain(..).filter(|(to, _)| *to == B) {
            if state.lacks(index) {
                state.take(now_ms, index, piece(index));
            }
        }
        now_ms += 100;
        assert!(now_ms < 3_000, "it would go on for ever");
        state.on_lost(now_ms, A);
        asks = state.asks(now_ms);
        if state.complete() {
            break None;
        }
        if let Some(silent) = state.silent(now_ms, &mut Pace::default()) {
            break Some(silent);
        }
    };
    assert!(silent.is_none_or(|silent| silent == A));
    // What it owed for a while, and then not, does not count against it for ever.
    let mut state = fetching(40, (2, 2), &[]);
    state.asks(0);
    state.on_lost(300, A);
    for index in 0..16 {
        if state.lacks(index) {
            state.take(400, index, piece(index));
        }
    }
    assert!(state.asks(5_000).iter().any(|(to, _)| *to == A));
    assert_eq!(state.silent(5_600, &mut Pace::default()).filter(|silent| *silent == A), None);
}
