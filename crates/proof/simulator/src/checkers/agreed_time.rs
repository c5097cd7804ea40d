//! Guards E3: after a slot all replicas have the same agreed time; it never goes back, and is
//! nowhere ahead of the clocks of those without whom it could not be agreed on.
//!
//! With r > 0 a quorum writes a fresh proposal, each within `max_skew_ms` of its own clock, before
//! anybody locks it; only what was locked is proposed again unjudged. So as many clocks as a quorum
//! has members, liars' counted as showing anything, have shown a time as late. With r = 0 a single
//! lock, the leader's own, is carried into the next view: one clock is all that can be asked for.
//!
//! What a service is told of time is that: in each slot the time of its batch, or of the slot before if
//! that is later; less the time in which the group stood still, which never shrinks, and grows by no more than what passed, in slots that
//! come late.
//!
//! A vote of a replica whose clock is in order, for a fresh proposal, is held against that clock by
//! itself: its time is not ahead of the clock at the vote, nor behind the clock when the proposal
//! came, by more than `max_skew_ms`. A proposal is fresh unless a NewView that the replica heard of
//! chose something for the slot, or the replica had the batch in another way.

use crate::violation::{Broken, Check};
use perdura_protocol::batch::BatchKind;
use perdura_protocol::{Batch, Digest, Faults, Record, Slot, Time};
use std::collections::BTreeMap;

const RULE: &str = "AgreedTime (E3)";

/// A batch that comes this long after the one before, milliseconds, may have been due: then the group stood still.
const OUTAGE_MS: u64 = 2_000;

/// A proposal as a replica first heard it.
#[derive(Clone, Copy, Debug)]
struct SeenTime {
    at_us: u64,
    clock: Time,
    // Nothing if it need not be close to the clock.
    time: Option<Time>,
}

/// What one replica may be held to.
#[derive(Clone, Debug, Default)]
struct Watch {
    // Since when its clock is in order, microseconds.
    in_order_since: Option<u64>,
    heard: BTreeMap<(Slot, Digest), SeenTime>,
}

/// The checker.
#[derive(Debug)]
pub struct AgreedTime {
    max_skew_ms: u64,
    // So many clocks have to have been about as late as what is agreed on.
    witnesses: usize,
    // The latest that each replica's clock showed it.
    clocks: Vec<Time>,
    watches: Vec<Watch>,
    times: BTreeMap<Slot, Time>,
    // How long the group has stood still up to a slot, milliseconds, as services are told.
    stood: BTreeMap<Slot, u64>,
    // Of batches on some disk.
    batches: BTreeMap<Digest, Time>,
}

impl AgreedTime {
    /// For a run.
    #[must_use]
    pub fn new(max_skew_ms: u64, faults: Faults) -> AgreedTime {
        let witnesses = if faults.is_byzantine() { faults.agreement_quorum() } else { 1 };
        let clocks = vec![Time(0); faults.n()];
        let watch = Watch { in_order_since: Some(0), ..Watch::default() };
        let watches = vec![watch; faults.n()];
        let (times, stood, batches) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        AgreedTime { max_skew_ms, witnesses, clocks, watches, times, stood, batches }
    }

    /// `replica` was shown this by its clock.
    pub fn clock(&mut self, replica: usize, now: Time) {
        self.clocks[replica] = self.clocks[replica].max(now);
    }

    /// `replica` lies, and says any time.
    pub fn lies(&mut self, replica: usize) {
        self.clocks[replica] = Time(u64::MAX);
    }

    /// The clock of `replica` is in order, or not.
    pub fn looked_at(&mut self, replica: usize, wrong: bool, now_us: u64) {
        let since = &mut self.watches[replica].in_order_since;
        *since = if wrong { None } else { since.or(Some(now_us)) };
    }

    /// `replica` hears of a proposal when its clock shows `clock`.
    pub fn proposed(
        &mut self,
        replica: usize,
        slot: Slot,
        batch: &Batch,
        clock: Time,
        now_us: u64,
    ) {
        let time = (batch.kind() != BatchKind::Null).then_some(batch.time());
        let heard = SeenTime { at_us: now_us, clock, time };
        self.watches[replica].heard.entry((slot, batch.digest())).or_insert(heard);
    }

    /// `replica` has a batch in another way: it made it, or it comes as one that is bound.
    pub fn given(&mut self, replica: usize, slot: Slot, batch: &Batch) {
        let heard = SeenTime { at_us: 0, clock: Time(0), time: None };
        self.watches[replica].heard.insert((slot, batch.digest()), heard);
    }

    /// `replica` votes for a batch in a slot for which nothing was chosen.
    pub fn votes(&self, replica: usize, slot: Slot, digest: Digest, clock: Time) -> Check {
        let watch = &self.watches[replica];
        let Some(heard) = watch.heard.get(&(slot, digest)) else { return Ok(()) };
        let (Some(time), Some(since)) = (heard.time, watch.in_order_since) else { return Ok(()) };
        let fits =
            time.0 <= clock.0 + self.max_skew_ms && heard.clock.0 <= time.0 + self.max_skew_ms;
        // It may have been set right just after it was read.
        if since >= heard.at_us || fits {
            return Ok(());
        }
        let what = format!(
            "replica {replica} votes for time {time} in slot {slot}; its clock showed {} when the \
             proposal came, and shows {clock}",
            heard.clock
        );
        Err(Broken::new(RULE, what))
    }

    /// A disk holds these batches.
    pub fn logged(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Vote { batch, .. } | Record::Decision { batch, .. } = record {
                self.batches.insert(batch.digest(), batch.time());
            }
        }
    }

    /// The service of `replica` is told that the clock shows this in `slot`, for which `batch` was decided, if
    /// it is known which.
    pub fn began(
        &mut self,
        replica: usize,
        slot: Slot,
        clock: Time,
        batch: Option<Digest>,
    ) -> Check {
        let (before, stood) = match slot.0 {
            1 => (Some(Time(0)), Some(0)),
            _ => {
                let before = Slot(slot.0 - 1);
                (self.times.get(&before).copied(), self.stood.get(&before).copied())
            }
        };
        let decided = batch.and_then(|batch| self.batches.get(&batch)).copied();
        let agreed = self.times.get(&slot).copied();
        let Some(time) = agreed.or(before.zip(decided).map(|(one, other)| one.max(other))) else {
            return Ok(());
        };
        self.executed(replica, slot, time)?;
        let stands = time.0.checked_sub(clock.0);
        let fits = |stands: u64| {
            let known = self.stood.get(&slot).is_none_or(|known| *known == stands);
            let grows = before.zip(stood).is_none_or(|(before, stood)| {
                let passed = time.0 - before.0;
                stands == stood
                    || (stands > stood && stands - stood <= passed && passed > OUTAGE_MS)
            });
            known && grows
        };
        if let Some(stands) = stands.filter(|stands| fits(*stands)) {
            self.stood.insert(slot, stands);
            return Ok(());
        }
        let what = format!(
            "replica {replica} tells its service that it is {clock} in slot {slot}, where {time} was agreed on, {before:?} before, and the \
             group had stood still for {stood:?}"
        );
        Err(Broken::new(RULE, what))
    }

    /// The latest time that was agreed on.
    pub fn latest(&self) -> Option<Time> {
        self.times.last_key_value().map(|(_, time)| *time)
    }

    /// For `replica` the agreed time after `slot` is `time`.
    pub fn executed(&mut self, replica: usize, slot: Slot, time: Time) -> Check {
        let fail = |what: String| {
            let what = format!("replica {replica}: after slot {slot} it is {time}, {what}");
            Err(Broken::new(RULE, what))
        };
        let early = time.0.saturating_sub(self.max_skew_ms);
        let shown = self.clocks.iter().filter(|clock| clock.0 >= early).count();
        if shown < self.witnesses {
            return fail(format!("the clocks have shown {:?}", self.clocks));
        }
        let known = *self.times.entry(slot).or_insert(time);
        if known != time {
            return fail(format!("for another it was {known}"));
        }
        let before = self.times.range(..slot).next_back();
        if let Some((earlier, later_time)) = before.filter(|(_, before)| **before > time) {
            return fail(format!("after slot {earlier} it was {later_time}"));
        }
        let after = self.times.range(slot.next()..).next();
        if let Some((later, earlier_time)) = after.filter(|(_, after)| **after < time) {
            return fail(format!("after slot {later} it is {earlier_time}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{Certificate, View};

    #[test]
    fn time_is_agreed_and_goes_on() {
        let mut checker = AgreedTime::new(500, Faults::new(1, 0).unwrap());
        checker.clock(0, Time(1_000));
        assert!(checker.executed(0, Slot(3), Time(900)).is_ok());
        assert!(checker.executed(1, Slot(3), Time(900)).is_ok());
        assert!(checker.executed(1, Slot(3), Time(901)).is_err());
        assert!(checker.executed(0, Slot(5), Time(800)).is_err());
        assert!(checker.executed(0, Slot(2), Time(901)).is_err());
        assert!(checker.executed(0, Slot(7), Time(1_501)).is_err());
        assert!(checker.executed(0, Slot(7), Time(1_500)).is_ok());
    }

    #[test]
    fn a_service_is_told_what_was_agreed_on() {
        let mut checker = AgreedTime::new(500, Faults::new(1, 0).unwrap());
        checker.clock(0, Time(1_000));
        let decided = |time: u64| Some(Batch::tick(Time(time)).digest());
        let record = |time: u64| Record::Vote {
            view: View(0),
            slot: Slot(1),
            batch: Batch::tick(Time(time)),
            writes: Certificate::default(),
        };
        checker.logged(&[record(900), record(800), record(1_000)]);
        assert!(checker.began(0, Slot(1), Time(900), decided(900)).is_ok());
        assert!(checker.began(0, Slot(2), Time(901), decided(800)).is_err());
        let mut checker = AgreedTime::new(500, Faults::new(1, 0).unwrap());
        checker.clock(0, Time(1_000));
        checker.logged(&[record(900), record(800), record(1_000)]);
        assert!(checker.began(0, Slot(1), Time(0), decided(900)).is_err());
        let mut checker = AgreedTime::new(500, Faults::new(1, 0).unwrap());
        checker.clock(0, Time(1_000));
        checker.logged(&[record(900), record(800), record(1_000)]);
        assert!(checker.began(0, Slot(1), Time(900), decided(900)).is_ok());
        assert!(checker.began(1, Slot(1), Time(901), None).is_err());
        assert!(checker.began(0, Slot(2), Time(900), decided(800)).is_ok());
        assert!(checker.began(0, Slot(3), Time(999), decided(1_000)).is_err());
    }

    #[test]
    fn a_quorum_has_to_have_been_there() {
        let mut checker = AgreedTime::new(500, Faults::new(1, 1).unwrap());
        checker.lies(0);
        checker.clock(1, Time(1_000));
        checker.clock(2, Time(3_600_000));
        checker.clock(3, Time(1_020));
        assert!(checker.executed(1, Slot(1), Time(1_520)).is_ok());
        assert!(checker.executed(1, Slot(2), Time(1_521)).is_err());
    }

    #[test]
    fn votes_are_for_times_close_to_the_voters_clock() {
        let batch = |time: u64| Batch::tick(Time(time));
        let mut checker = AgreedTime::new(500, Faults::new(1, 1).unwrap());
        let mut vote = |slot: u64, time: u64, clock: u64| {
            let (slot, batch) = (Slot(slot), batch(time));
            checker.proposed(0, slot, &batch, Time(10_000), 7);
            checker.votes(0, slot, batch.digest(), Time(clock))
        };
        assert!(vote(1, 10_000, 10_000).is_ok());
        assert!(vote(2, 10_501, 10_000).is_err());
        assert!(vote(3, 10_501, 10_001).is_ok());
        assert!(vote(4, 9_499, 10_000).is_err());
        assert!(vote(5, 9_500, 99_000).is_ok());
        checker.given(0, Slot(6), &batch(1));
        assert!(checker.votes(0, Slot(6), batch(1).digest(), Time(10_000)).is_ok());
        // Its clock was set right after the proposal had come.
        checker.looked_at(0, true, 8);
        checker.looked_at(0, false, 9);
        assert!(checker.votes(0, Slot(2), batch(10_501).digest(), Time(10_000)).is_ok());
    }
}
