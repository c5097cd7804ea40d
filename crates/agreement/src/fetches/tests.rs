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
    Answer { from: ask.of, decisions, prefix: None }
}

fn ahead(peers: &[Slot], delivered: u64, state_coming: bool) -> Ahead<'_> {
    Ahead { delivered: Slot(delivered), state_coming, peers, leader: ReplicaId(0) }
}

/// Asks until there is nothing more to ask for, or a hundred times; everything is answered at once.
fn fill(fetches: &mut Fetches, ahead: &Ahead<'_>, batch: &Batch) -> Vec<Ask> {
    let mut asks = Vec::new();
    while asks.len() < 100
        && let Some(ask) = fetches.next_ask(asks.len() as u64, ahead)
    {
        let answer = answer(ask, batch);
        assert!(fetches.answered(asks.len() as u64, &answer));
        let held = fetches.held_bytes() + answer.bytes();
        fetches.hold(answer, ahead.state_coming);
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
        let asks = fill(&mut fetches, &ahead(&peers, 100, true), &batch);
        assert_eq!(asks[0].first, Slot(101));
        let held = fetches.held_bytes();
        assert!(held <= EARLY_BYTES, "{held}");
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
    let first = fetches.next_ask(0, &ahead(&peers, 100, false)).unwrap();
    for place in 1..=2 {
        let ask = fetches.next_ask(0, &ahead(&peers, 100, false)).unwrap();
        assert_eq!(ask.first, Slot(101 + 8 * place));
        let answer = answer(ask, &batch);
        assert!(fetches.answered(1, &answer));
        fetches.hold(answer, false);
    }
    assert_eq!((first.first, fetches.next_ask(1, &ahead(&peers, 100, false))), (Slot(101), None));
    // Where a state comes there is room for more of them.
    let asks = fill(&mut fetches, &ahead(&peers, 108, true), &batch);
    assert!(asks.len() > 20, "{}", asks.len());
}

/// What the state covers goes when that is installed, and only that.
#[test]
fn an_installed_state_leaves_what_comes_after_it() {
    let batch = Batch::tick(Time(1));
    let mut fetches = Fetches::new(4, ME, 8, false);
    let peers = [Slot(164), Slot(164), Slot(164), Slot(0)];
    fill(&mut fetches, &ahead(&peers, 100, true), &batch);
    fetches.clear_through(Slot(120));
    assert_eq!(fetches.ready(Slot(120)).unwrap().first(), Slot(117));
    assert_eq!(fetches.ready(Slot(124)).unwrap().first(), Slot(125));
    fetches.clear();
    assert!(fetches.ready(Slot(132)).is_none());
}
