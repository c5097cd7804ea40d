//! Guards E3: after a slot all replicas have the same agreed time; it never goes back, and is
//! nowhere ahead of every correct replica's clock by more than `max_skew_ms`.

use crate::violation::{Broken, Check};
use perdura_protocol::{Slot, Time};
use std::collections::BTreeMap;

const RULE: &str = "AgreedTime (E3)";

/// Clocks are looked at about this often, milliseconds: they may show more in between.
const LOOK_MS: u64 = 100;

/// The checker.
#[derive(Debug)]
pub struct AgreedTime {
    max_skew_ms: u64,
    // The latest that the clock of any correct replica showed.
    clock: Time,
    times: BTreeMap<Slot, Time>,
}

impl AgreedTime {
    /// For a run.
    #[must_use]
    pub fn new(max_skew_ms: u64) -> AgreedTime {
        AgreedTime { max_skew_ms, clock: Time(0), times: BTreeMap::new() }
    }

    /// The clock of a correct replica shows `now`.
    pub fn clock(&mut self, now: Time) {
        self.clock = self.clock.max(now);
    }

    /// For `replica` the agreed time after `slot` is `time`.
    pub fn executed(&mut self, replica: usize, slot: Slot, time: Time) -> Check {
        let fail = |what: String| {
            let what = format!("replica {replica}: after slot {slot} it is {time}, {what}");
            Err(Broken::new(RULE, what))
        };
        if time.0 > self.clock.0 + self.max_skew_ms + LOOK_MS {
            return fail(format!("the latest clock shows {}", self.clock));
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
        let mut checker = AgreedTime::new(500);
        checker.clock(Time(1_000));
        assert!(checker.executed(0, Slot(3), Time(900)).is_ok());
        assert!(checker.executed(1, Slot(3), Time(900)).is_ok());
        assert!(checker.executed(1, Slot(3), Time(901)).is_err());
        assert!(checker.executed(0, Slot(5), Time(800)).is_err());
        assert!(checker.executed(0, Slot(2), Time(901)).is_err());
        assert!(checker.executed(0, Slot(7), Time(1_601)).is_err());
        assert!(checker.executed(0, Slot(7), Time(1_600)).is_ok());
    }
}
