//! Questions of replicas whose answers are large: decided batches, states and their pieces.
//!
//! Each replica has a line of questions, and an allowance of bytes per tick for the answers. What
//! goes beyond it is answered in later ticks; so one that asks without end gets no more than its
//! allowance, and those that have asked less, and the clients, are served all the while.

use super::{Node, Peer};
use perdura_agreement::Now;
use perdura_protocol::message::Message;
use perdura_protocol::{ReplicaId, Slot, limits, seeded};
use std::collections::VecDeque;

/// Questions of one replica that wait; further ones are dropped and asked again. A transfer asks
/// for fewer pieces at a time.
pub const QUESTIONS: usize = 64;

/// Bytes of answers to one replica by which its allowance grows in a tick: 100 MB/s, nearly what a
/// link of 1 Gbit/s carries, for a tenth of a core.
pub const ANSWER_BYTES: i64 = 2 * 1024 * 1024;

/// How much more an answer costs that was given to the same replica before. A correct one asks another
/// when an answer got lost, and for the next when it did not.
const AGAIN_COST: i64 = 32;

/// Questions remembered of each replica: more than the pieces and batches that it asks for at once.
const REMEMBERED: usize = 256;

/// Slots by which a range may lie before one that the same replica had: as many as it may have asked others
/// for meanwhile.
const FETCHED_BETWEEN: u64 = (limits::REPLICAS * limits::DECISIONS) as u64;

/// Queries for states, which all replicas answer and repeat their votes for: one in this time.
const QUERY_MS: u64 = 100;

/// What one replica asked, and what it may have.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    waiting: VecDeque<Message>,
    // May be below nothing, by one answer: that is paid back first.
    allowance: i64,
    queried_ms: Option<u64>,
    // What it was answered lately, from which slots on it had decisions, and the last of those.
    answered: VecDeque<Message>,
    fetched: VecDeque<Slot>,
    decided: Slot,
}

impl Asker {
    /// Whether it was answered this before; remembers that it is now.
    fn again(&mut self, question: &Message) -> bool {
        if let Message::Fetch { from, .. } = question {
            // It asks others for the ranges between, and for one of those when that does not come.
            let behind = from.plus(FETCHED_BETWEEN) < self.decided;
            self.decided = self.decided.max(*from);
            return remember(&mut self.fetched, *from) || behind;
        }
        remember(&mut self.answered, question.clone())
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Whether a message is a question with a large answer.
pub(super) fn is_costly(message: &Message) -> bool {
    matches!(
        message,
        Message::Fetch { .. }
            | Message::FetchBatch { .. }
            | Message::FetchManifest { .. }
            | Message::FetchPiece { .. }
            | Message::StateQuery
    )
}

/// Whether it is among those remembered; it is from now on.
fn remember<T: PartialEq>(remembered: &mut VecDeque<T>, new: T) -> bool {
    let again = remembered.contains(&new);
    if !again {
        if remembered.len() >= REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back(new);
    }
    again
}

impl Node {
    /// Takes a costly question; answers it at once if nothing stands before it.
    pub(super) fn ask(&mut self, now: Now, from: ReplicaId, question: Message) {
        let Some(asker) = self.askers.get_mut(from.index()) else { return };
        if question == Message::StateQuery {
            let soon = asker.queried_ms.is_some_and(|ms| now.monotonic_ms < ms + QUERY_MS);
            if soon && !seeded!(QueriesUnlimited) {
                self.counters.throttled += 1;
                return;
            }
            asker.queried_ms = Some(now.monotonic_ms);
        }
        if asker.waiting.contains(&question) {
            // It lost the lane on which it had asked, and asks again on the other one.
            return;
        }
        if asker.waiting.len() >= QUESTIONS {
            self.counters.throttled += 1;
            return;
        }
        asker.waiting.push_back(question);
        self.answer_from(now, from);
    }

    /// A tick: allowances grow, and what waited is answered.
    pub(super) fn tick_questions(&mut self, now: Now) {
        for asker in &mut self.askers {
            asker.allowance = asker.allowance.saturating_add(ANSWER_BYTES).min(ANSWER_BYTES);
        }
        let n = self.askers.len() as u8;
        for from in (0..n).map(ReplicaId) {
            self.answer_from(now, from);
        }
    }

    fn answer_from(&mut self, now: Now, from: ReplicaId) {
        loop {
            let Some(asker) = self.askers.get_mut(from.index()) else { return };
            if asker.allowance <= 0 {
                return;
            }
            let Some(question) = asker.waiting.pop_front() else { return };
            let again = question != Message::StateQuery && asker.again(&question);
            let before = self.output_bytes;
            match question {
                Message::Fetch { .. } | Message::FetchBatch { .. } => {
                    self.agreement.on_message(now, from, question);
                    self.carry_out(now);
                }
                other => self.on_transfer_message(now, from, other),
            }
            let bytes = self.output_bytes.saturating_sub(before);
            self.charge(from, bytes);
            if again {
                self.charge_again(from, bytes);
            }
        }
    }

    /// An answer costs its bytes, and what a question costs without one.
    pub(super) fn charge(&mut self, to: ReplicaId, bytes: usize) {
        if let Some(asker) = self.askers.get_mut(to.index()) {
            asker.allowance -= bytes as i64 + 1024;
        }
    }

    /// What the same answer costs more than the first time.
    fn charge_again(&mut self, to: ReplicaId, bytes: usize) {
        if let Some(asker) = self.askers.get_mut(to.index()) {
            asker.allowance -= (bytes as i64 + 1024) * (AGAIN_COST - 1);
        }
    }

    /// Whoever left asks anew.
    pub(super) fn forget_questions(&mut self, peer: Peer) {
        if let Peer::Replica(id) = peer {
            self.forget_answers(id);
            if let Some(asker) = self.askers.get_mut(id.index()) {
                asker.waiting.clear();
            }
        }
    }

    /// What a replica was answered may have got lost. What it asked and waits for may have come on the
    /// lane that is left, and stays.
    pub(super) fn forget_answers(&mut self, id: ReplicaId) {
        if let Some(asker) = self.askers.get_mut(id.index()) {
            asker.answered.clear();
            asker.fetched.clear();
            asker.decided = Slot(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_the_next_is_told_from_who_asks_the_same_again() {
        let mut asker = Asker::default();
        let piece = |index| Message::FetchPiece { slot: Slot(64), index };
        let laggard: Vec<Message> = (1..100)
            .map(|n| Message::Fetch { from: Slot(32 * n), to: Slot(32 * n + 31) })
            .chain((0..500).map(piece))
            .collect();
        assert!(!laggard.iter().any(|question| asker.again(question)));
        assert!(asker.answered.len() <= REMEMBERED);
        let fetch = Message::Fetch { from: Slot(32), to: Slot(32) };
        for old in [fetch, piece(499), piece(400)] {
            assert!(asker.again(&old) && asker.again(&old), "{old:?}");
        }
    }
}
