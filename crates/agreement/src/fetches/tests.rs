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
    Answer::new(ask.of, decisions, None)
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
        assert_eq!(fetches.answered(asks.len() as u64, &answer), Some(ask.last));
        let held = fetches.held_bytes() + answer.bytes;
        assert!(fetches.hold(answer, ask.last, ahead.state));
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
    let first = fetches.next_ask(0, &ahead(&peers, 100, None)).unwrap();
    for place in 1..=2 {
        let ask = fetches.next_ask(0, &ahead(&peers, 100, None)).unwrap();
        assert_eq!(ask.first, Slot(101 + 8 * place));
        let answer = answer(ask, &batch);
        assert!(fetches.answered(1, &answer).is_some());
        fetches.hold(answer, ask.last, None);
    }
    assert_eq!((first.first, fetches.next_ask(1, &ahead(&peers, 100, None))), (Slot(101), None));
    // Where a state comes there is room for more of them.
    let asks = fill(&mut fetches, &ahead(&peers, 0, Some(108)), &batch);
    assert!(asks.len() > 20, "{}", asks.len());
}

/// What the state covers goes when that is installed, and only that.
#[test]
fn an_installed_state_leaves_what_comes_after_it() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(164), Slot(164), Slot(164), Slot(0)];
    fill(&mut fetches, &ahead(&peers, 0, Some(100)), &batch);
    fetches.clear_through(Slot(120));
    assert_eq!(fetches.ready(Slot(120)).unwrap().first(), Slot(117));
    assert_eq!(fetches.ready(Slot(124)).unwrap().first(), Slot(125));
    fetches.clear();
    assert!(fetches.ready(Slot(132)).is_none());
}

/// However little it is in bytes, nobody fills more slots than its share, and of what was not asked for
/// nothing is held.
#[test]
fn a_liar_fills_neither_the_slots_of_others_nor_memory() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    // One alone claims to be so far ahead.
    let peers = [Slot(5_000), Slot(0), Slot(0), Slot(0)];
    let mut held = 0;
    while let Some(ask) = fetches.next_ask(held, &ahead(&peers, 0, Some(100))) {
        let mut answer = answer(Ask { last: ask.first, ..ask }, &batch);
        // What it puts beside it is not next to it.
        answer.decisions.resize(200, answer.decisions[0].clone());
        let answer = Answer::new(answer.from, answer.decisions, None);
        assert_eq!(fetches.answered(held, &answer), Some(ask.last));
        assert!(fetches.hold(answer, ask.last, Some(Slot(100))));
        held += 1;
        assert!(held < 1_000);
    }
    let decisions: usize = fetches.peers[0].early.iter().map(|early| early.decisions.len()).sum();
    assert_eq!(decisions as u64, held);
    assert!((300..=EARLY_SLOTS / 3).contains(&held), "{held}");
    // What lies beyond the question is not held either.
    let mut fetches = Fetches::new(4, ME, 8, false);
    let ask = fetches.next_ask(0, &ahead(&peers, 0, Some(100))).unwrap();
    let answer = answer(Ask { last: Slot(300), ..ask }, &batch);
    let last = fetches.answered(0, &answer).unwrap();
    fetches.hold(answer, last, Some(Slot(100)));
    assert_eq!(fetches.peers[0].early[0].last(), ask.last);
    // And nothing of who gave something false.
    fetches.distrust(ask.of);
    assert!(!fetches.under_way() && fetches.held_bytes() == 0);
}

/// Who still has what comes next is asked for that, for it may overtake the state, and who has cut it for
/// what comes after the state; until it is time to see whether that is still so.
#[test]
fn beside_a_state_each_is_asked_for_what_its_log_has() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(500), Slot(500), Slot(500), Slot(0)];
    let here = Ahead { awaiting_state: false, ..ahead(&peers, 10, Some(100)) };
    let mut firsts = Vec::new();
    for _ in 0..3 {
        firsts.push(fetches.next_ask(0, &here).unwrap().first);
    }
    assert_eq!(firsts, [Slot(11), Slot(19), Slot(27)], "nobody has said that it lacks them");
    for id in [0, 1] {
        fetches.too_old(0, ReplicaId(id), Some(Slot(100)));
    }
    let rested = timing::STATUS_MS;
    let asks: Vec<Ask> = std::iter::from_fn(|| fetches.next_ask(rested, &here)).collect();
    assert_eq!(asks.iter().map(|ask| ask.first).collect::<Vec<_>>(), [Slot(101), Slot(109)]);
    assert!(asks.iter().all(|ask| ask.of != ReplicaId(2)));
    // The third one goes on with the log.
    let question = fetches.peers[2].asked.unwrap();
    let given =
        answer(Ask { of: ReplicaId(2), first: question.first, last: question.last }, &batch);
    assert!(fetches.answered(rested, &given).is_some());
    let ask = fetches.next_ask(rested, &here).unwrap();
    assert_eq!((ask.of, ask.first), (ReplicaId(2), Slot(11)));
    // One that lacks what comes after the state has not cut what comes next.
    let later = CUT_MS + rested;
    fetches.too_old(later, asks[0].of, Some(Slot(100)));
    let ask = fetches.next_ask(later + rested, &here).unwrap();
    assert_eq!((ask.of, ask.first), (asks[0].of, Slot(19)));
}
