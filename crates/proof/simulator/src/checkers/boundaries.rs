//! Guards D6 and D7: all replicas checkpoint after the same slots, restarted ones too, else no
//! state is ever certified. A boundary closer to the one before it than the interval of a small state has a reason:
//! the bytes of the batches, what their commands cost, the time that passed, or a configuration that begins after it. With sequential checkpoints no
//! two replicas store the same state, unless a configuration begins after it.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_protocol::configuration::{Interval, Schedule};
use perdura_protocol::{Configuration, Record, SessionId, Slot, Time};
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
    batches: BTreeMap<Slot, Of>,
    // What its commands cost, by slot.
    costs: BTreeMap<Slot, BTreeMap<(SessionId, u64), u64>>,
}

/// The batches of a slot, of all replicas.
#[derive(Clone, Copy, Debug)]
struct Of {
    most_bytes: u64,
    first: Time,
    last: Time,
}

impl Of {
    fn one(bytes: u64, time: Time) -> Of {
        Of { most_bytes: bytes, first: time, last: time }
    }

    fn and(self, other: Of) -> Of {
        Of {
            most_bytes: self.most_bytes.max(other.most_bytes),
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
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
            batches: BTreeMap::new(),
            costs: BTreeMap::new(),
        }
    }

    /// A disk has these records.
    pub fn appended(&mut self, records: &[Record]) {
        for (slot, batch) in records.iter().filter_map(Record::batch) {
            self.batch(slot, Of::one(batch.raw().len() as u64, batch.time()));
        }
    }

    fn batch(&mut self, slot: Slot, one: Of) {
        self.batches.entry(slot).and_modify(|of| *of = of.and(one)).or_insert(one);
    }

    /// A replica executed a command.
    pub fn executed(&mut self, execution: &Execution) {
        if execution.work > 0 {
            let place = self.costs.entry(execution.slot).or_default();
            place.insert((execution.session, execution.number), execution.work);
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
            let early = slot.0 - before.0 < self.least.slots;
            if early && !self.has_come(before, slot) && !begins_after(slot) {
                let what = format!(
                    "replica {first} took a checkpoint after slot {before}, replica {second} after \
                     slot {slot}, for no reason"
                );
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }

    /// Whether as much came between two slots as makes a boundary due.
    fn has_come(&self, before: Slot, slot: Slot) -> bool {
        let between = before.next()..=slot;
        let batches = || self.batches.range(between.clone()).map(|(_, of)| of);
        let bytes: u64 = batches().map(|of| of.most_bytes).sum();
        let costs = self.costs.range(between.clone());
        let cost: u64 = costs.flat_map(|(_, of_slot)| of_slot.values()).sum();
        // Agreed time never goes back, and null batches have none: at a slot it is at least the earliest and at most the latest of all batches so far.
        let so_far = |last: Slot| self.batches.range(..=last).map(|(_, of)| of);
        let first = so_far(before.next()).map(|of| of.first.0).max().unwrap_or_default();
        let last = so_far(slot).map(|of| of.last.0).max().unwrap_or_default();
        let slots = slot.0 - before.0;
        // What was answered again costs a little too.
        bytes >= self.least.bytes
            || cost + cost / 4 >= self.least.cost
            || self
                .least
                .time
                .is_some_and(|(ms, enough)| slots >= enough && last.saturating_sub(first) >= ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::PublicKey;

    #[test]
    fn boundaries_are_apart_or_have_a_reason() {
        let least = Interval { slots: 200, bytes: 1 << 20, cost: 1_000, time: Some((50, 64)) };
        let mut checker = Boundaries::new(least, Schedule::Coordinated);
        checker.taken(0, Slot(200));
        checker.taken(1, Slot(400));
        checker.taken(2, Slot(200));
        assert!(checker.judge(&[]).is_ok());
        checker.taken(2, Slot(463));
        assert!(checker.judge(&[]).is_err());
        let begins = Configuration { id: 1, from_slot: Slot(464), members: Vec::new() };
        assert!(checker.judge(&[begins]).is_ok());
        let anew = |slot, of| {
            let mut one = Boundaries::new(least, Schedule::Coordinated);
            one.taken(0, Slot(200));
            one.taken(1, Slot(slot));
            one.batch(Slot(201), Of::one(0, Time(7)));
            one.batch(Slot(slot), of);
            one
        };
        assert!(anew(263, Of::one((1 << 20) - 1, Time(57))).judge(&[]).is_err());
        assert!(anew(263, Of::one(1 << 20, Time(7))).judge(&[]).is_ok(), "by bytes");
        assert!(anew(264, Of::one(0, Time(56))).judge(&[]).is_err());
        assert!(anew(264, Of::one(0, Time(57))).judge(&[]).is_ok(), "by time");
        // The last one is a null batch, which has no time.
        let mut ends_null = anew(264, Of::one(0, Time(0)));
        ends_null.batch(Slot(240), Of::one(0, Time(56)));
        assert!(ends_null.judge(&[]).is_err());
        ends_null.batch(Slot(250), Of::one(0, Time(57)));
        assert!(ends_null.judge(&[]).is_ok(), "by time");
        let mut begins_null = anew(264, Of::one(0, Time(57)));
        begins_null.batch(Slot(150), Of::one(0, Time(8)));
        assert!(begins_null.judge(&[]).is_err(), "agreed time was later before");
        let session = SessionId { client: PublicKey([1; 32]), nonce: 1 };
        let mut costly = anew(220, Of::one(0, Time(7)));
        costly.costs.entry(Slot(220)).or_default().insert((session, 1), 500);
        assert!(costly.judge(&[]).is_err());
        costly.costs.entry(Slot(210)).or_default().insert((session, 1), 500);
        assert!(costly.judge(&[]).is_ok(), "by costs");
    }

    #[test]
    fn sequential_checkpoints_are_of_one_replica_each() {
        let least = Interval { slots: 16, bytes: 1 << 20, cost: 1 << 30, time: None };
        let mut checker = Boundaries::new(least, Schedule::Sequential);
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
