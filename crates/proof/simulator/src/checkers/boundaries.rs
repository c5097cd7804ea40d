//! Guards D6 and D7: all replicas checkpoint after the same slots, restarted ones too, else no
//! state is ever certified. A boundary closer to the one before it than the interval of a small state has a reason:
//! the bytes of the batches, or a configuration that begins after it. With sequential checkpoints no
//! two replicas store the same state, unless a configuration begins after it.

use crate::violation::{Broken, Check};
use perdura_protocol::configuration::{Interval, Schedule};
use perdura_protocol::{Configuration, Record, Slot};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "Boundaries (D6, D7)";

/// The checker.
#[derive(Debug)]
pub struct Boundaries {
    // Of a small state; that of a large one is longer.
    least: Interval,
    // Slots after which a correct replica took a checkpoint, and which one did.
    taken: BTreeMap<Slot, usize>,
    sequential: bool,
    // Who stored the state after a slot, as its own and not as a transferred one.
    stored: BTreeMap<Slot, BTreeSet<usize>>,
    // The most bytes that a batch of a slot had.
    bytes: BTreeMap<Slot, u64>,
}

impl Boundaries {
    /// For a run.
    #[must_use]
    pub fn new(least: Interval, schedule: Schedule) -> Boundaries {
        Boundaries {
            least,
            taken: BTreeMap::new(),
            sequential: schedule == Schedule::Sequential,
            stored: BTreeMap::new(),
            bytes: BTreeMap::new(),
        }
    }

    /// A disk has these records.
    pub fn appended(&mut self, records: &[Record]) {
        for (slot, batch) in records.iter().filter_map(Record::batch) {
            let place = self.bytes.entry(slot).or_default();
            *place = (batch.raw().len() as u64).max(*place);
        }
    }

    /// `replica` takes a checkpoint after `slot`.
    pub fn taken(&mut self, replica: usize, slot: Slot) {
        self.taken.entry(slot).or_insert(replica);
    }

    /// `replica` stores the state after `slot`.
    pub fn stored(&mut self, replica: usize, slot: Slot) {
        self.taken(replica, slot);
        self.stored.entry(slot).or_default().insert(replica);
    }

    /// Judges all of them by what is known in the end.
    pub fn judge(&self, configurations: &[Configuration]) -> Check {
        let begins_after = |slot: Slot| {
            configurations.iter().any(|one: &Configuration| one.from_slot == slot.next())
        };
        let mut shared = self.stored.iter().filter(|(_, by)| by.len() > 1);
        if self.sequential
            && let Some((slot, by)) = shared.find(|(slot, _)| !begins_after(**slot))
        {
            let what = format!("replicas {by:?} all stored the state after slot {slot}");
            return Err(Broken::new(RULE, what));
        }
        let slots: Vec<(Slot, usize)> = self.taken.iter().map(|(slot, by)| (*slot, *by)).collect();
        for pair in slots.windows(2) {
            let [(before, first), (slot, second)] = [pair[0], pair[1]];
            let bytes: u64 = self.bytes.range(before.next()..=slot).map(|(_, bytes)| bytes).sum();
            let early = slot.0 - before.0 < self.least.slots;
            if early && bytes < self.least.bytes && !begins_after(slot) {
                let what = format!(
                    "replica {first} took a checkpoint after slot {before}, replica {second} after \
                     slot {slot}, for no reason"
                );
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_apart_or_have_a_reason() {
        let mut checker =
            Boundaries::new(Interval { slots: 64, bytes: 1 << 20 }, Schedule::Coordinated);
        checker.taken(0, Slot(64));
        checker.taken(1, Slot(128));
        checker.taken(2, Slot(64));
        assert!(checker.judge(&[]).is_ok());
        checker.taken(2, Slot(150));
        assert!(checker.judge(&[]).is_err());
        let begins = Configuration { id: 1, from_slot: Slot(151), members: Vec::new() };
        assert!(checker.judge(&[begins]).is_ok());
        checker.bytes.insert(Slot(150), 1 << 20);
        assert!(checker.judge(&[]).is_ok());
    }

    #[test]
    fn sequential_checkpoints_are_of_one_replica_each() {
        let mut checker =
            Boundaries::new(Interval { slots: 16, bytes: 1 << 20 }, Schedule::Sequential);
        checker.stored(0, Slot(16));
        checker.stored(1, Slot(32));
        // Again, after a restart.
        checker.stored(1, Slot(32));
        assert!(checker.judge(&[]).is_ok());
        checker.stored(2, Slot(32));
        assert!(checker.judge(&[]).is_err());
        let begins = Configuration { id: 1, from_slot: Slot(33), members: Vec::new() };
        assert!(checker.judge(&[begins]).is_ok());
    }
}
