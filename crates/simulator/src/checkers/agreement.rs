//! Guards A1, first half: no two correct replicas decide different batches for a slot, not across
//! restarts and new incarnations either. What is compared is the chain of history hashes, which
//! binds every slot up to the one looked at, and the batch of each slot that was executed.

use crate::violation::{Broken, Check};
use perdura_protocol::{Digest, Slot};
use std::collections::BTreeMap;

const RULE: &str = "Agreement (A1)";

/// The checker.
#[derive(Debug, Default)]
pub struct Agreement {
    histories: BTreeMap<Slot, (Digest, usize)>,
    batches: BTreeMap<Slot, (Digest, usize)>,
}

impl Agreement {
    /// `replica` has executed up to `slot`, with this history.
    pub fn executed(&mut self, replica: usize, slot: Slot, history: Digest) -> Check {
        Self::same(&mut self.histories, replica, slot, history, "history")
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
