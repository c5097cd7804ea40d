//! Guards E3: after a slot all replicas have the same agreed time; it never goes back, and is
//! nowhere ahead of the clocks of those without whom it could not be agreed on.
//!
//! With r > 0 a quorum writes a fresh proposal, each within `max_skew_ms` of its own clock, before
//! anybody locks it; only what was locked is proposed again unjudged. So as many clocks as a quorum
//! has members, liars' counted as showing anything, have shown a time as late. With r = 0 a single
//! lock, the leader's own, is carried into the next view: one clock is all that can be asked for.

use crate::violation::{Broken, Check};
use perdura_protocol::{Faults, Slot, Time};
use std::collections::BTreeMap;

const RULE: &str = "AgreedTime (E3)";

/// The checker.
#[derive(Debug)]
pub struct AgreedTime {
    max_skew_ms: u64,
    // So many clocks have to have been about as late as what is agreed on.
    witnesses: usize,
    // The latest that each replica's clock showed it.
    clocks: Vec<Time>,
    times: BTreeMap<Slot, Time>,
}

impl AgreedTime {
    /// For a run.
    #[must_use]
    pub fn new(max_skew_ms: u64, faults: Faults) -> AgreedTime {
        let witnesses = if faults.byzantine() { faults.agreement_quorum() } else { 1 };
        let clocks = vec![Time(0); faults.n()];
        AgreedTime { max_skew_ms, witnesses, clocks, times: BTreeMap::new() }
    }

    /// `replica` was shown this by its clock.
    pub fn clock(&mut self, replica: usize, now: Time) {
        self.clocks[replica] = self.clocks[replica].max(now);
    }

    /// `replica` lies, and says any time.
    pub fn lies(&mut self, replica: usize) {
        self.clocks[replica] = Time(u64::MAX);
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
    fn a_quorum_has_to_have_been_there() {
        let mut checker = AgreedTime::new(500, Faults::new(1, 1).unwrap());
        checker.lies(0);
        checker.clock(1, Time(1_000));
        checker.clock(2, Time(3_600_000));
        checker.clock(3, Time(1_020));
        assert!(checker.executed(1, Slot(1), Time(1_520)).is_ok());
        assert!(checker.executed(1, Slot(2), Time(1_521)).is_err());
    }
}
