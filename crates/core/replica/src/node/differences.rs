//! Signed digests of one slot's state that differ: an alarm at once, whoever is right, and also where no m + 1 agree and so
//! nobody can be (D7).

use super::{Node, Output};
use perdura_protocol::message::StateCertificate;
use perdura_protocol::{Certificate, Digest, Faults, ReplicaId, Slot};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Between two alarms in the log: liars can sign as many states as they like.
const ALARM_MS: u64 = 10_000;

/// Digests that were signed for the state after one slot, not all equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The slot.
    pub slot: Slot,
    /// Who signed which, ascending.
    pub digests: Vec<(ReplicaId, Digest)>,
    /// Whether m + 1 can still agree on one of them.
    pub certifiable: bool,
}

impl Difference {
    fn new(slot: Slot, digests: Vec<(ReplicaId, Digest)>, faults: Faults) -> Option<Difference> {
        let mut votes: BTreeMap<Digest, usize> = BTreeMap::new();
        for (_, digest) in &digests {
            *votes.entry(*digest).or_default() += 1;
        }
        let most = votes.values().copied().max().unwrap_or_default();
        let silent = faults.n().saturating_sub(digests.len());
        let certifiable = most + silent >= faults.state_certificate();
        (votes.len() > 1).then_some(Difference { slot, digests, certifiable })
    }

    /// In words, with what to do.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("replicas signed different states after slot {}:", self.slot);
        for (id, digest) in &self.digests {
            let _ = write!(text, " {id} {}", &digest.to_string()[..8]);
        }
        text.push_str(match self.certifiable {
            true => {
                ". Those in the minority run another program, or their memory or disk is damaged: they repair \
                 themselves once the others' state is certified; if this comes again, test their machines"
            }
            false => {
                ". No state can be certified, so no log is cut and no replica can be replaced: the service gives \
                 other results from one replica to the next (a clock, randomness, the order of a map), or replicas \
                 run different programs. Stop writing, and mend that"
            }
        });
        text
    }
}

/// What is known of differences.
#[derive(Default)]
pub(super) struct Differences {
    newest: Option<Difference>,
    alarmed_ms: Option<u64>,
}

impl Node {
    /// The newest difference, unless a later state was certified since.
    pub(super) fn difference(&self) -> Option<&Difference> {
        let certified = self.checkpointing.certificates.all().next().map(|state| state.slot);
        self.differences.newest.as_ref().filter(|found| certified.is_none_or(|at| at <= found.slot))
    }

    /// A vote for the state after `slot` is new: those of others are verified only if they differ from it.
    pub(super) fn compare_votes(&mut self, slot: Slot, voter: ReplicaId) {
        let votes = self.checkpointing.certificates.votes(slot);
        let Some(new) = votes.iter().find(|(id, ..)| *id == voter).map(|vote| vote.1) else {
            return;
        };
        let newest = self.differences.newest.as_ref().map_or(Slot(0), |found| found.slot);
        if slot > self.execution.slot() || slot < newest || votes.iter().all(|vote| vote.1 == new) {
            return;
        }
        let known = self.differences.newest.as_ref().filter(|found| found.slot == slot);
        // Once for each voter: whoever signs one state after the other causes no more work.
        if known.is_some_and(|found| found.digests.iter().any(|(id, _)| *id == voter)) {
            return;
        }
        let Some(governing) = self.agreement.configurations().governing(slot) else { return };
        let configuration = governing.id;
        let me = self.me;
        let mut genuine = Vec::new();
        for (id, digest, signature) in votes {
            let certificate = Certificate::new(vec![(id, signature)]);
            let state = StateCertificate { slot, digest, configuration, certificate };
            self.counters.statements_verified += u64::from(id != me);
            if id == me || self.state_certified(&state, 1) {
                genuine.push((id, digest));
            } else {
                self.strike_voter(id);
            }
        }
        let Some(found) = Difference::new(slot, genuine, self.parameters.faults) else { return };
        self.counters.differences += 1;
        let due = |at: u64| self.ticked_ms >= at + ALARM_MS;
        if self.differences.alarmed_ms.is_none_or(due) {
            self.differences.alarmed_ms = Some(self.ticked_ms);
            self.outputs.push_back(Output::Alarm(found.text()));
        }
        self.differences.newest = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(u: u8, r: u8, digests: &[u8]) -> Option<Difference> {
        let digests = (0u8..).map(ReplicaId).zip(digests.iter().map(|byte| Digest([*byte; 32])));
        Difference::new(Slot(64), digests.collect(), Faults::new(u, r).unwrap())
    }

    #[test]
    fn where_no_state_can_be_certified_any_more_it_says_so() {
        assert_eq!(difference(1, 0, &[1, 1, 1]), None);
        assert_eq!(difference(1, 0, &[1]), None);
        assert!(difference(1, 0, &[1, 2]).unwrap().certifiable, "the third may agree with one");
        assert!(difference(1, 0, &[1, 2, 2]).unwrap().certifiable);
        let all = difference(1, 0, &[1, 2, 3]).unwrap();
        assert!(!all.certifiable && all.text().contains("No state can be certified"));
        assert!(all.text().contains("0 01010101 1 02020202 2 03030303"), "{}", all.text());
        assert!(!difference(2, 1, &[1, 1, 2, 2, 3, 3]).unwrap().certifiable);
        assert!(difference(2, 1, &[1, 1, 1, 2, 2, 3]).unwrap().certifiable);
    }
}
