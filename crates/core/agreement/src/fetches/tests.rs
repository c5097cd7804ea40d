//! The questions by themselves.

use super::*;
use bytes::Bytes;
use perdura_protocol::{Batch, Certificate, ClusterId, Frame, PublicKey, SessionId, Time, View};

const ME: ReplicaId = ReplicaId(3);

/// A batch of four MiB.
fn large() -> Batch {
    let session = SessionId { client: PublicKey([1; 32]), nonce: 1 };
    let frame = |number| {
        let command = Bytes::from(vec![1; 1 << 20]);
        Frame::build(ClusterId([0; 16]), session, 0, number, &[command], None)
    };
    Batch::requests(Time(1), (1..=4).map(frame).collect())
}

fn answer(ask: Ask, batch: &Batch) -> Answer {
    let decision = |slot| Decision {
        slot: Slot(slot),
        view: View(0),
        accepts: Certificate::default(),
        batch: batch.clone(),
    };
    let decisions = (ask.first.0..=ask.last.0).map(decision).collect();
    Answer::new(ask.of, decisions, None, vec![])
}

/// Behind by all, but for a state that is awaited, if there is one.
fn ahead(peers: &[Slot], delivered: u64, state: Option<u64>) -> Ahead<'_> {
    let (delivered, awaiting_state) = (Slot(delivered), state.is_some());
    let state = state.map(Slot);
    Ahead { delivered, state, awaiting_state, peers, leader: ReplicaId(0) }
}

/// Asks until there is nothing more to ask for, or a hundred times; everything is answered at once.
fn fill(fetches: &mut Fetches, ahead: &Ahead<'_>, batch: &Batch) -> Vec<Ask> {
    let mut asks = Vec::new();
    while asks.len() < 100
        && let Some(ask) = fetches.next_ask(asks.len() as u64, ahead)
    {
        let answer = answer(ask, batch);
        let question = fetches.answered(asks.len() as u64, &answer).unwrap();
        assert_eq!((question.first, question.last), (ask.first, ask.last));
        let held = fetches.held_bytes() + answer.bytes;
        assert!(fetches.hold(answer, question));
        assert_eq!(fetches.held_bytes(), held, "it is asked for what is not kept");
        asks.push(ask);
    }
    asks
}

/// While a state is on its way, as much is held as there is room for, each peer's share of it, and nothing is
/// asked for that would not be held.
#[test]
fn beside_a_state_the_log_is_held_up_to_a_bound_and_no_peer_takes_more_than_its_share() {
    let batch = large();
    for others in [2, 3, 6, 12] {
        let mut fetches = Fetches::new(others + 1, ReplicaId(others as u8), 1, false);
        let mut peers = vec![Slot(10_000); others];
        peers.push(Slot(0));
        let asks = fill(&mut fetches, &ahead(&peers, 0, Some(100)), &batch);
        assert_eq!(asks[0].first, Slot(101));
        let held = fetches.held_bytes();
        assert!(held <= EARLY_BYTES.max(others * ANSWER_BYTES), "{held}");
        let share = EARLY_BYTES / others;
        // What may be as large as any answer is.
        assert!(fetches.peers[0].early_bytes() > share - ANSWER_BYTES, "{held} of {others}");
        assert!(fetches.peers.iter().all(|peer| peer.early_bytes() <= share));
        // All in a row, each once.
        let slots = asks.iter().flat_map(|ask| ask.first.0..=ask.last.0);
        assert!(slots.eq((101..).take(asks.len())));
        // The state is here: all of it comes in turn, and then there is nothing.
        for slot in 101..101 + asks.len() as u64 {
            assert_eq!(fetches.ready(Slot(slot - 1)).unwrap().first(), Slot(slot));
        }
        assert!(fetches.ready(Slot(20_000)).is_none() && !fetches.under_way());
    }
}

/// Otherwise it is one answer of each, however small.
#[test]
fn without_a_state_one_answer_of_each_peer_is_held() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(10_000), Slot(10_000), Slot(10_000), Slot(0)];
    // What is next is on its way all the time.
    let first = fetches.next_ask(0, &ahead(&peers, 104, None)).unwrap();
    for place in 1..=2 {
        let ask = fetches.next_ask(0, &ahead(&peers, 104, None)).unwrap();
        assert_eq!(ask.first, Slot(105 + 8 * place));
        let answer = answer(ask, &batch);
        let question = fetches.answered(1, &answer).unwrap();
        fetches.hold(answer, question);
    }
    assert_eq!((first.first, fetches.next_ask(1, &ahead(&peers, 104, None))), (Slot(105), None));
    // Where a state comes there is room for more of them.
    let asks = fill(&mut fetches, &ahead(&peers, 0, Some(108)), &batch);
    assert!(asks.len() > 20, "{}", asks.len());
}

/// What the state covers goes when that is installed, and only that.
#[test]
fn an_installed_state_leaves_what_comes_after_it() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(168), Slot(168), Slot(168), Slot(0)];
    fill(&mut fetches, &ahead(&peers, 0, Some(104)), &batch);
    fetches.clear_through(Slot(120));
    assert_eq!(fetches.ready(Slot(120)).unwrap().first(), Slot(121));
    assert_eq!(fetches.ready(Slot(128)).unwrap().first(), Slot(129));
    fetches.clear();
    assert!(fetches.ready(Slot(136)).is_none());
}

/// However little it is in bytes, nobody fills more slots than its share, and what it puts beside that counts,
/// though it is not held.
#[test]
fn a_liar_fills_neither_the_slots_of_others_nor_memory() {
    // One alone claims to be so far ahead.
    let peers = [Slot(5_000), Slot(0), Slot(0), Slot(0)];
    let fill = |beside: &Batch, copies: usize| {
        let mut fetches = Fetches::new(4, ME, 8, false);
        let mut held = 0;
        while let Some(ask) = fetches.next_ask(held, &ahead(&peers, 0, Some(100))) {
            let small = Batch::tick(Time(1));
            let mut decisions = answer(Ask { last: ask.first, ..ask }, &small).decisions;
            let other = Decision { batch: beside.clone(), ..decisions[0].clone() };
            decisions.resize(1 + copies, other);
            let answer = Answer::new(ask.of, decisions, None, vec![]);
            let question = fetches.answered(held, &answer).unwrap();
            assert!(fetches.hold(answer, question));
            held += 1;
            assert!(held < 1_000);
        }
        let early = &fetches.peers[0].early;
        assert!(early.iter().all(|answer| answer.decisions.len() == 1));
        assert_eq!(early.len() as u64, held);
        held
    };
    let held = fill(&Batch::tick(Time(2)), 200);
    assert!((300..=EARLY_SLOTS / 3).contains(&held), "{held}");
    let held = fill(&large(), 2);
    assert!((6..=8).contains(&held), "{held}");
}

/// Of who gave something false nothing is kept, nor what lies beyond a question.
#[test]
fn what_was_not_asked_for_is_not_held() {
    let batch = Batch::tick(Time(1));
    let peers = [Slot(5_000), Slot(0), Slot(0), Slot(0)];
    let mut fetches = Fetches::new(4, ME, 8, false);
    let ask = fetches.next_ask(0, &ahead(&peers, 0, Some(100))).unwrap();
    let given = answer(Ask { last: Slot(300), ..ask }, &batch);
    let question = fetches.answered(0, &given).unwrap();
    assert!(fetches.hold(given, question));
    assert_eq!(fetches.peers[0].early[0].last(), ask.last);
    fetches.distrust(ask.of);
    assert!(!fetches.under_way() && fetches.held_bytes() == 0);
    // Nor an answer that is larger than any.
    let ask = fetches.next_ask(1, &ahead(&peers, 0, Some(100))).unwrap();
    let given = answer(ask, &large());
    let question = fetches.answered(1, &given).unwrap();
    assert!(!fetches.hold(given, question) && fetches.held_bytes() == 0);
}

/// What is held of what comes after a state keeps nobody from being asked for what comes next.
#[test]
fn what_is_held_after_a_state_is_not_in_the_way_of_the_log() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(500), Slot(500), Slot(500), Slot(0)];
    assert!(fill(&mut fetches, &ahead(&peers, 0, Some(300)), &batch).len() > 20);
    let asks: Vec<Ask> =
        std::iter::from_fn(|| fetches.next_ask(100, &ahead(&peers, 16, None))).collect();
    let firsts: Vec<Slot> = asks.iter().map(|ask| ask.first).collect();
    assert_eq!(firsts, [Slot(17), Slot(25), Slot(33)], "all at once");
    let late = answer(asks[1], &batch);
    let question = fetches.answered(101, &late).unwrap();
    fetches.hold(late, question);
    fetches.forget_after_state();
    assert_eq!(fetches.ready(Slot(24)).unwrap().first(), Slot(25));
    assert_eq!(fetches.held_bytes(), 0);
}

/// Who still has what comes next is asked for that, for it may overtake the state, and who has cut it for
/// what comes after the state; until it is time to see whether that is still so.
#[test]
fn beside_a_state_each_is_asked_for_what_its_log_has() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(500), Slot(500), Slot(500), Slot(0)];
    let here = Ahead { awaiting_state: false, ..ahead(&peers, 16, Some(104)) };
    let mut firsts = Vec::new();
    for _ in 0..3 {
        firsts.push(fetches.next_ask(0, &here).unwrap().first);
    }
    assert_eq!(firsts, [Slot(17), Slot(25), Slot(33)], "nobody has said that it lacks them");
    for id in [0, 1] {
        fetches.too_old(0, ReplicaId(id));
    }
    let rested = timing::STATUS_MS;
    let asks: Vec<Ask> = std::iter::from_fn(|| fetches.next_ask(rested, &here)).collect();
    assert_eq!(asks.iter().map(|ask| ask.first).collect::<Vec<_>>(), [Slot(105), Slot(113)]);
    assert!(asks.iter().all(|ask| ask.of != ReplicaId(2)));
    // The third one goes on with the log.
    let question = fetches.peers[2].asked.unwrap();
    let given =
        answer(Ask { of: ReplicaId(2), first: question.first, last: question.last }, &batch);
    assert!(fetches.answered(rested, &given).is_some());
    let ask = fetches.next_ask(rested, &here).unwrap();
    assert_eq!((ask.of, ask.first), (ReplicaId(2), Slot(17)));
    // One that lacks what comes after the state has not cut what comes next.
    let later = CUT_MS + rested;
    fetches.too_old(later, asks[0].of);
    let ask = fetches.next_ask(later + rested, &here).unwrap();
    assert_eq!((ask.of, ask.first), (asks[0].of, Slot(25)));
}

/// Where a prefix may end a question does, so that it proves all of the answer.
#[test]
fn a_question_ends_where_a_prefix_may() {
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(500), Slot(500), Slot(500), Slot(0)];
    let ahead = ahead(&peers, 10, None);
    let asks: Vec<Ask> = std::iter::from_fn(|| fetches.next_ask(0, &ahead)).collect();
    let asked: Vec<(u64, u64)> = asks.iter().map(|ask| (ask.first.0, ask.last.0)).collect();
    assert_eq!(asked, [(11, 16), (17, 24), (25, 32)]);
}

/// Its link is up again at once, each time, and it says that it is ahead.
#[test]
fn who_is_gone_before_each_answer_is_not_asked_for_ever() {
    for one_seeder in [false, true] {
        let peers = vec![Slot(100), Slot(100), Slot(100), Slot(0)];
        let ahead = ahead(&peers, 0, None);
        let mut fetches = Fetches::new(4, ME, 8, one_seeder);
        let first = fetches.next_ask(0, &ahead).unwrap().of;
        fetches.on_link_down(7, first);
        let second = fetches.next_ask(8, &ahead).unwrap().of;
        assert_ne!(first, second, "one seeder: {one_seeder}");
    }
}
