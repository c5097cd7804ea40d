//! Calls that need not have a result.

use crate::timeline::Event;
use crate::waits::Sample;
use perdura_protocol::Faults;

/// Of a hundred calls so many may have met their deadlines for standstills of this program; else the run says too little.
const CUT_SHORT_AT_MOST: usize = 3;

/// Calls without a result that need not have one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Excused {
    /// More than u replicas had failed.
    pub by_disasters: usize,
    /// Of the others, waits for a time that clocks had to catch up with.
    pub by_clocks: usize,
    /// Of the others, calls that were over before this program itself had run for as long as a call may take.
    pub by_standstills: usize,
}

impl Excused {
    /// Counts one without a result if it is excused; whether it is. While it was under way this program itself `stood` still for so many
    /// microseconds.
    pub fn takes(&mut self, events: &[Event], sample: &Sample, faults: Faults, stood: u64) -> bool {
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
        let cut_short = !astray && was_cut_short(sample, stood);
        self.by_standstills += usize::from(cut_short);
        astray || cut_short
    }

    /// Whether of so many calls too many are excused by what is nobody's fault but this program's.
    pub fn says_too_little(&self, calls: usize) -> bool {
        100 * self.by_standstills > CUT_SHORT_AT_MOST * calls
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

/// Whether it met its deadline only because this program stood still.
fn was_cut_short(sample: &Sample, stood: u64) -> bool {
    let took = sample.ended.saturating_sub(sample.invoked);
    sample.over && took >= sample.may_take && took.saturating_sub(stood) < sample.may_take
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultKind;
    use crate::service::Workload;

    fn wait(invoked: u64) -> Sample {
        let workload = Workload::Queue;
        let (may_take, over) = (20_000_000, true);
        Sample { workload, invoked, ended: invoked + 10, ok: false, may_take, over, waits: true }
    }

    #[test]
    fn a_jump_excuses_waits_until_clocks_have_caught_up_and_a_disaster_all_calls_that_meet_it() {
        let [crash, liars] = [0, 1].map(|r| Faults::new(1, r).unwrap());
        let ended =
            Event { began: 100, healed: Some(150), level: Some(200), ..Event::of(FaultKind::Kill) };
        let jump = Event { kind: FaultKind::ClockJump, ahead_us: 300, ..ended.clone() };
        let excused = |event: &Event, faults, sample: &Sample| {
            let mut excused = Excused::default();
            let is = excused.takes(std::slice::from_ref(event), sample, faults, 0);
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
        let disaster = Event { kind: FaultKind::KillAll, ..ended.clone() };
        for faults in [crash, liars] {
            assert_eq!(excuses(&disaster, faults), [false, true, true, false, false, false]);
            assert!(excused(&disaster, faults, &at_once));
            assert_eq!(excuses(&ended, faults), [false; 6]);
        }
    }
    #[test]
    fn a_standstill_excuses_calls_that_met_their_deadline_for_it_and_no_others() {
        let faults = Faults::new(1, 1).unwrap();
        let excuses_one = |took_s: u64, stood_s: u64, waits_s: u64, over: bool| {
            let (ended, may_take) = (1_000_000 * took_s, 1_000_000 * (20 + waits_s));
            let waits = waits_s > 0;
            let sample = Sample { invoked: 0, ended, may_take, over, waits, ..wait(0) };
            let mut excused = Excused::default();
            let is = excused.takes(&[], &sample, faults, 1_000_000 * stood_s);
            assert_eq!(excused, Excused { by_standstills: usize::from(is), ..Excused::default() });
            is
        };
        let excuses = |took_s: u64, stood_s: u64| excuses_one(took_s, stood_s, 0, true);
        assert!(excuses(28, 27) && excuses(20, 1));
        // One that waits has its wait beside, and what fails for another reason would have failed anyway.
        assert!(excuses_one(30, 5, 10, true) && !excuses_one(25, 5, 10, true));
        assert!(!excuses_one(21, 2, 0, false));
        // It ran for all of its time, or was over for another reason.
        assert!(!excuses(47, 27) && !excuses(20, 0) && !excuses(5, 3));
        let excused = |by_standstills| Excused { by_standstills, ..Excused::default() };
        assert!(!excused(0).says_too_little(0) && !excused(3).says_too_little(100));
        assert!(excused(4).says_too_little(100));
    }
}
