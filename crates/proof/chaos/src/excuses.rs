//! Calls that need not have a result.

use crate::timeline::Event;
use crate::waits::Sample;
use perdura_protocol::Faults;

/// Calls without a result that need not have one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Excused {
    /// More than u replicas had failed.
    pub by_disasters: usize,
    /// Of the others, waits for a time that clocks had to catch up with.
    pub by_clocks: usize,
}

impl Excused {
    /// Counts one without a result if it is excused; whether it is.
    pub fn takes(&mut self, events: &[Event], sample: &Sample, faults: Faults) -> bool {
        let is_disaster = |event: &Event| {
            let meets = event.began <= sample.ended && event.end() >= sample.invoked;
            event.kind.is_disaster() && meets
        };
        if events.iter().any(is_disaster) {
            self.by_disasters += 1;
            return true;
        }
        let astray = events.iter().any(|event| led_time_astray(event, sample, faults));
        self.by_clocks += usize::from(astray);
        astray
    }
}

/// Whether a wait may last longer because of this: where nobody is taken to lie, a leader whose clock
/// was wrong can have led agreed time ahead, and it goes on when the clocks have caught up
/// (docs/tuples.md, leases).
fn led_time_astray(event: &Event, sample: &Sample, faults: Faults) -> bool {
    let until = event.end().saturating_add(event.ahead_us);
    let meets = event.began <= sample.ended && until >= sample.invoked;
    faults.r() == 0 && sample.waits && event.fired && event.ahead_us > 0 && meets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Kind;
    use crate::service::Workload;

    fn wait(invoked: u64) -> Sample {
        let workload = Workload::Queue;
        Sample { workload, invoked, ended: invoked + 10, ok: false, waits: true }
    }

    #[test]
    fn a_jump_excuses_waits_until_clocks_have_caught_up_and_a_disaster_all_calls_that_meet_it() {
        let [crash, liars] = [0, 1].map(|r| Faults::new(1, r).unwrap());
        let ended =
            Event { began: 100, healed: Some(150), level: Some(200), ..Event::of(Kind::Kill) };
        let jump = Event { kind: Kind::ClockJump, ahead_us: 300, ..ended.clone() };
        let excused = |event: &Event, faults, sample: &Sample| {
            let mut excused = Excused::default();
            let is = excused.takes(std::slice::from_ref(event), sample, faults);
            assert_eq!(excused.by_disasters + excused.by_clocks, usize::from(is));
            assert!(excused.by_disasters == 0 || event.kind.is_disaster());
            is
        };
        let excuses = |event: &Event, faults| {
            [0, 90, 200, 201, 500, 501].map(|from| excused(event, faults, &wait(from)))
        };
        let at_once = Sample { waits: false, ..wait(150) };
        assert_eq!(excuses(&jump, crash), [false, true, true, true, true, false]);
        assert_eq!(excuses(&jump, liars), [false; 6]);
        assert_eq!(excuses(&Event { fired: false, ..jump.clone() }, crash), [false; 6]);
        // Only back.
        assert_eq!(excuses(&Event { ahead_us: 0, ..jump.clone() }, crash), [false; 6]);
        assert!(!excused(&jump, crash, &at_once));
        let disaster = Event { kind: Kind::KillAll, ..ended.clone() };
        for faults in [crash, liars] {
            assert_eq!(excuses(&disaster, faults), [false, true, true, false, false, false]);
            assert!(excused(&disaster, faults, &at_once));
            assert_eq!(excuses(&ended, faults), [false; 6]);
        }
    }
}
