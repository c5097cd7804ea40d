//! Guards A1, first half: no two correct replicas decide different batches for a slot, not across
//! restarts and new incarnations either. What is compared is the chain of history hashes, which
//! binds every slot up to the one looked at, and the batch of each slot that was executed.
//!
//! It also knows what was decided in every slot, those included in which no service command was
//! executed: of the batches that came to any disk, the ones whose chain gives the history hashes.

use crate::violation::{Broken, Check};
use perdura_protocol::{Digest, Record, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// Chains tried before the batches of a run of slots stay unknown.
const CHAINS: u32 = 4_096;

const RULE: &str = "Agreement (A1)";

/// The checker.
#[derive(Debug, Default)]
pub struct Agreement {
    histories: BTreeMap<Slot, (Digest, usize)>,
    batches: BTreeMap<Slot, (Digest, usize)>,
    // Batches on some disk, of slots that nobody executed yet.
    logged: BTreeMap<Slot, BTreeSet<Digest>>,
    decided: BTreeMap<Slot, Digest>,
    // Up to here what was decided has been looked for.
    traced: (Slot, Digest),
}

impl Agreement {
    /// A disk holds this batch for a slot.
    pub fn logged(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Vote { slot, batch, .. } | Record::Decision { slot, batch, .. } = record
                && *slot > self.traced.0
            {
                self.logged.entry(*slot).or_default().insert(batch.digest());
            }
        }
    }

    /// `replica` has executed up to `slot`, with this history.
    pub fn executed(&mut self, replica: usize, slot: Slot, history: Digest) -> Check {
        Self::same(&mut self.histories, replica, slot, history, "history")?;
        if slot > self.traced.0 {
            let mut found = Vec::new();
            if self.chain(self.traced, (slot, history), &mut CHAINS.clone(), &mut found) {
                self.decided.extend(found);
            }
            self.traced = (slot, history);
            self.logged = self.logged.split_off(&slot.next());
        }
        Ok(())
    }

    /// What was decided in a slot, if it is known.
    #[must_use]
    pub fn decided(&self, slot: Slot) -> Option<Digest> {
        self.decided.get(&slot).copied()
    }

    /// Finds the logged batches that lead from one history to another.
    fn chain(
        &self,
        (slot, history): (Slot, Digest),
        end: (Slot, Digest),
        chains: &mut u32,
        found: &mut Vec<(Slot, Digest)>,
    ) -> bool {
        if slot == end.0 {
            *chains = chains.saturating_sub(1);
            return history == end.1;
        }
        let next = slot.next();
        let known = self.batches.get(&next).map(|(batch, _)| *batch);
        for batch in self.logged.get(&next).into_iter().flatten().copied() {
            if known.is_some_and(|known| known != batch) || *chains == 0 {
                continue;
            }
            found.push((next, batch));
            if self.chain((next, history.chain(next, batch)), end, chains, found) {
                return true;
            }
            found.pop();
        }
        false
    }

    /// `replica` executed this batch in `slot`.
    pub fn batch(&mut self, replica: usize, slot: Slot, batch: Digest) -> Check {
        Self::same(&mut self.batches, replica, slot, batch, "batch")
    }

    fn same(
        known: &mut BTreeMap<Slot, (Digest, usize)>,
        replica: usize,
        slot: Slot,
        digest: Digest,
        what: &str,
    ) -> Check {
        let (first, by) = *known.entry(slot).or_insert((digest, replica));
        if first == digest {
            return Ok(());
        }
        let what = format!(
            "slot {slot}: replica {replica} has {what} {digest:?}, replica {by} had {first:?}"
        );
        Err(Broken::new(RULE, what))
    }

    /// The last slot that anybody executed.
    #[must_use]
    pub fn last(&self) -> Slot {
        self.histories.last_key_value().map_or(Slot(0), |(slot, _)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{Batch, Certificate, Time, View};

    #[test]
    fn what_was_decided_is_found_among_what_was_logged() {
        let vote = |slot: u64, time: u64| Record::Vote {
            view: View(0),
            slot: Slot(slot),
            batch: Batch::tick(Time(time)),
            writes: Certificate::default(),
        };
        let digest = |time: u64| Batch::tick(Time(time)).digest();
        let mut checker = Agreement::default();
        checker.logged(&[vote(1, 7), vote(2, 8), vote(2, 9), vote(3, 10), vote(3, 11)]);
        checker.batch(0, Slot(3), digest(11)).unwrap();
        let first = Digest::ZERO.chain(Slot(1), digest(7));
        let last = first.chain(Slot(2), digest(9)).chain(Slot(3), digest(11));
        checker.executed(0, Slot(3), last).unwrap();
        assert_eq!(checker.decided(Slot(1)), Some(digest(7)));
        assert_eq!(checker.decided(Slot(2)), Some(digest(9)));
        assert_eq!(checker.decided(Slot(4)), None);
    }

    #[test]
    fn two_batches_for_a_slot_are_seen() {
        let mut checker = Agreement::default();
        assert!(checker.executed(0, Slot(1), Digest([1; 32])).is_ok());
        assert!(checker.executed(1, Slot(1), Digest([1; 32])).is_ok());
        assert!(checker.executed(2, Slot(1), Digest([2; 32])).is_err());
        assert!(checker.batch(0, Slot(1), Digest([3; 32])).is_ok());
        assert!(checker.batch(1, Slot(1), Digest([4; 32])).is_err());
    }
}
