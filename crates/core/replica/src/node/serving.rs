//! Decided batches for laggards, and what proves them (r > 0).
//!
//! An answer is proven by what is at hand: by its own Accepts, or by a certified prefix within the reach of who asks,
//! with the digests of the batches up to it. Where there is no such prefix, this replica signs its history anew: a prefix signature is
//! attestation about what it has executed, and can be given as often as somebody needs it. r + 1 of them certify the
//! prefix for the laggard, which takes it together with the batches. Why r + 1 can always be had is told in `proofs`
//! (`perdura_agreement`).

use super::{Node, Output, Peer};
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Digest, ReplicaId, Slot, limits, seeded};

/// What a signature costs who asks for it, as bytes of an answer: 32 of them are all that it gets in a tick.
const TESTIMONY_BYTES: usize = 64 * 1024;

/// What was executed in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Past {
    /// Of the batch.
    pub digest: Digest,
    /// The history with this slot.
    pub history: Digest,
}

/// The slots up to which a prefix is signed for whoever lacks what proves `first`, of those up to `last`, which it can
/// judge: the last one that is the same for all who are asked, wherever they are themselves; and `first`, up to which
/// all of them are.
fn attested_slots(first: Slot, last: Slot, depth: u64) -> impl Iterator<Item = Slot> {
    let common = Slot(last.0 / depth * depth);
    let further = (common > first).then_some(common);
    further.into_iter().chain((last >= first).then_some(first))
}

impl Node {
    /// Keeps what was executed, by which a laggard's batches are found in the log, and proven.
    pub(super) fn remember(&mut self, slot: Slot, past: Past) {
        self.past.insert(slot, past);
        while self.past.len() > 4 * limits::WINDOW as usize
            && self.past.first_key_value().is_some_and(|(s, _)| *s <= self.checkpointing.kept)
        {
            self.past.pop_first();
        }
    }

    /// A laggard asks for batches that agreement has forgotten.
    pub(super) fn serve(&mut self, to: ReplicaId, from: Slot, last: Slot) {
        self.counters.fetches_served += 1;
        let limit = self.parameters.depth as usize;
        let mut bytes = 0;
        let recent: Vec<Decision> = self
            .checkpointing
            .recent
            .range(from..=last)
            .zip(from.0..)
            .take_while(|((slot, decision), expected)| {
                bytes += decision.batch.raw().len();
                slot.0 == *expected && bytes <= limits::FETCH_BYTES + limits::BATCH_BYTES
            })
            .map(|((_, decision), _)| decision.clone())
            .take(limit)
            .collect();
        if !recent.is_empty() {
            self.send_decisions(to, recent);
            return;
        }
        let wanted: Vec<(Slot, Digest)> = self
            .past
            .range(from..=last)
            .zip(from.0..)
            .take_while(|((slot, _), expected)| slot.0 == *expected)
            .map(|((slot, past), _)| (*slot, past.digest))
            .take(limit)
            .collect();
        if wanted.is_empty() || from <= self.checkpointing.kept {
            self.send_too_old(to);
        } else if self.reading.insert(to) {
            // One at a time for each: the keeper has a log to write.
            self.outputs.push_back(Output::ReadDecisions { to, wanted });
        }
    }

    fn send_too_old(&mut self, to: ReplicaId) {
        let checkpoint = self.checkpointing.slot();
        self.send(&[Peer::Replica(to)], &Message::TooOld { checkpoint });
    }

    pub(super) fn on_decisions_read(&mut self, to: ReplicaId, decisions: Vec<Decision>) {
        self.reading.remove(&to);
        if decisions.is_empty() {
            self.send_too_old(to);
        } else {
            let bytes = decisions.iter().map(|decision| decision.batch.raw().len()).sum();
            self.charge(to, bytes);
            self.send_decisions(to, decisions);
        }
    }

    fn send_decisions(&mut self, to: ReplicaId, decisions: Vec<Decision>) {
        let (Some(first), Some(last)) = (decisions.first(), decisions.last()) else { return };
        let (prefix, between) = self.covering(first.slot, last.slot);
        self.answer(to, Message::Decisions { decisions, prefix, between });
    }

    /// Sends something to a replica; with decisions that no prefix goes along with, attestation. Where they have their Accepts, who
    /// asks may still wait for the proof of what comes before them.
    pub(super) fn answer(&mut self, to: ReplicaId, mut message: Message) {
        if let Message::Decisions { decisions, prefix: None, between } = &mut message
            && let (Some(first), Some(last)) = (decisions.first(), decisions.last())
            && self.parameters.faults.is_byzantine()
        {
            let (first, last) = (first.slot, last.slot);
            let common = self.attest_histories(to, first);
            let behind = common.and_then(|common| self.digests_between(last, common));
            *between = behind.unwrap_or_default();
        }
        self.send(&[Peer::Replica(to)], &message);
    }

    /// Signs the history once more for a replica that has executed what comes before `first`. Up to where.
    fn attest_histories(&mut self, to: ReplicaId, first: Slot) -> Option<Slot> {
        let depth = self.parameters.depth;
        let last = first.previous().plus(depth).min(self.journal.logged());
        let mut furthest = None;
        for slot in attested_slots(first, last, depth) {
            let past = self.past.get(&slot).filter(|_| !seeded!(AttestationRefused));
            let message =
                past.and_then(|past| self.agreement.history_attestation(slot, past.history));
            if let Some(message) = message {
                self.counters.attestations += 1;
                self.charge(to, TESTIMONY_BYTES);
                self.send(&[Peer::Replica(to)], &message);
                furthest = furthest.max(Some(slot));
            }
        }
        furthest
    }

    /// The certified prefix that proves decisions, if there is one, and what was decided behind them up to
    /// there. Who asks has executed what comes before the first, and judges prefixes within the pipeline's reach from there.
    fn covering(&self, first: Slot, last: Slot) -> (Option<PrefixCertificate>, Vec<Digest>) {
        let prefixes = &self.checkpointing.prefixes;
        let reach = first.previous().plus(self.parameters.depth).max(last);
        if let Some((slot, prefix)) = prefixes.range(last..=reach).next()
            && let Some(between) = self.digests_between(last, *slot)
        {
            return (Some(prefix.clone()), between);
        }
        let within = prefixes.range(first..=last).next_back();
        (within.map(|(_, prefix)| prefix.clone()), Vec::new())
    }

    /// What was decided behind `last`, up to and with `to`, if that is known and fits into an answer.
    fn digests_between(&self, last: Slot, to: Slot) -> Option<Vec<Digest>> {
        let distance = to.0.checked_sub(last.0)?;
        let between = (last.0 + 1..=to.0).map(Slot).map_while(|at| self.digest_of(at));
        let between: Vec<Digest> = between.collect();
        let whole = between.len() as u64 == distance && distance <= limits::DECISIONS as u64;
        whole.then_some(between)
    }

    /// The digest of the batch that was decided in a slot, while it is known.
    fn digest_of(&self, slot: Slot) -> Option<Digest> {
        let recent = || self.checkpointing.recent.get(&slot).map(|one| one.batch.digest());
        self.past.get(&slot).map(|past| past.digest).or_else(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_are_asked_sign_some_prefix_in_common() {
        let slots = |first, last| {
            attested_slots(Slot(first), Slot(last), 8).map(|s| s.0).collect::<Vec<_>>()
        };
        assert_eq!(slots(2, 9), [8, 2]);
        assert_eq!(slots(2, 8), [8, 2]);
        assert_eq!(slots(2, 7), [2], "it has not come to slot 8");
        assert_eq!(slots(8, 15), [8]);
        assert_eq!(slots(9, 16), [16, 9]);
        assert_eq!(slots(2, 1), [0u64; 0], "nor to what is asked for");
    }
}
