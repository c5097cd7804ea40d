//! What agreed time may be off by, as far as what was done to the clocks allows: all replicas are on
//! one machine, so clocks that nobody touched show one time.
//!
//! A wait begins at the agreed time of the batch that brought it, which replicas hold against their
//! clocks within `max_skew_ms` as it is proposed: it is behind by so much at most. It ends with a
//! batch whose time is ahead only if a clock is, and then by as much at most. With `r = 0` a clock
//! that is off can lead agreed time as far astray as it is itself (docs/tuples.md, leases).

use crate::faults::FaultKind;
use crate::timeline::Event;
use perdura_protocol::Faults;

/// Times in which clocks were off, in microseconds since the start of the run.
#[derive(Clone, Debug)]
pub struct Clocks {
    max_skew_us: u64,
    follows_one: bool,
    // From, to.
    off: Vec<(u64, u64)>,
}

impl Clocks {
    /// Of a group, as far as the events tell.
    pub fn new(faults: Faults, max_skew_ms: u64, events: &[Event]) -> Clocks {
        let jumps = events.iter().filter(|event| event.kind == FaultKind::ClockJump);
        let off = jumps.map(|event| (event.began, event.end())).collect();
        let max_skew_us = max_skew_ms.saturating_mul(1000);
        Clocks { max_skew_us, follows_one: faults.r() == 0, off }
    }

    /// By how much a wait that was called and had ended at these times may have ended before it
    /// lasted as long as it was to, microseconds.
    pub fn allowance_us(&self, (invoked, ended): (u64, u64)) -> u64 {
        let is_met = |(from, to): &(u64, u64)| *from <= ended && *to >= invoked;
        match self.off.iter().any(is_met) {
            false => self.max_skew_us,
            true if self.follows_one => u64::MAX,
            true => self.max_skew_us.saturating_mul(2),
        }
    }
}

#[cfg(test)]
impl Clocks {
    /// Clocks that are never off.
    pub fn exact() -> Clocks {
        Clocks { max_skew_us: 0, follows_one: false, off: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_held_to_its_time_as_far_as_clocks_were_left_alone() {
        let event = |kind, began, level| Event { began, level, ..Event::of(kind) };
        let events = [
            event(FaultKind::Kill, 0, Some(9_000)),
            event(FaultKind::ClockJump, 1_000, Some(2_000)),
            event(FaultKind::ClockJump, 5_000, None),
        ];
        let allowances = |r| {
            let clocks = Clocks::new(Faults::new(1, r).unwrap(), 500, &events);
            [(0, 999), (0, 1_000), (2_000, 3_000), (2_001, 4_999), (6_000, 7_000)]
                .map(|span| clocks.allowance_us(span))
        };
        let (skew, twice) = (500_000, 1_000_000);
        assert_eq!(allowances(1), [skew, twice, twice, skew, twice]);
        assert_eq!(allowances(0), [skew, u64::MAX, u64::MAX, skew, u64::MAX]);
    }
}
