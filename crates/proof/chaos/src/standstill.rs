//! When this program itself stood still: somebody stopped it, or the machine gave it no time. All clients and all proxies are in it, so
//! nobody heard of anybody meanwhile, though no replica had failed. What a deadline of its own says of the cluster has to leave this
//! time out.

use crate::course::lock;
use std::sync::Mutex;
use std::time::Duration;

/// Between two beats.
pub const BEAT: Duration = Duration::from_millis(100);

/// Beats that are further apart tell that no thread ran; on a busy machine any of them may wait for less. Microseconds.
const LEAST_US: u64 = 1_000_000;

/// The times at which it stood still. A thread that does nothing else beats.
#[derive(Default)]
pub struct Standstills {
    beats: Mutex<Beats>,
}

#[derive(Default)]
struct Beats {
    // None before the first.
    last: Option<u64>,
    gaps: Vec<(u64, u64)>,
}

impl Standstills {
    /// The program runs; how long it stood still before that, if it did. Times are microseconds since the start of the run.
    pub fn beat(&self, now: u64) -> Option<u64> {
        let mut beats = lock(&self.beats);
        let gap = (beats.last.unwrap_or(now), now);
        beats.last = Some(now);
        let is = gap.1.saturating_sub(gap.0) > LEAST_US;
        is.then(|| {
            beats.gaps.push(gap);
            gap.1 - gap.0
        })
    }

    /// For how long it stood still between two times; `to` is not later than now. A standstill counts although the beat after it may still
    /// have to come: which thread goes on first is the kernel's choice.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        let beats = lock(&self.beats);
        let open =
            beats.last.filter(|last| to.saturating_sub(*last) > LEAST_US).map(|last| (last, to));
        let overlap = |(began, ended): &(u64, u64)| {
            u64::min(*ended, to).saturating_sub(u64::max(*began, from))
        };
        beats.gaps.iter().chain(&open).map(overlap).sum()
    }

    /// All of them, each from its beginning to its end.
    pub fn all(&self) -> Vec<(u64, u64)> {
        lock(&self.beats).gaps.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_that_are_far_apart_tell_of_a_standstill_and_of_no_other_time() {
        let standstills = Standstills::default();
        assert_eq!(standstills.between(0, 40_000_000), 0);
        let beats = [100_000, 900_000, 1_900_000, 29_000_000, 29_100_000];
        let found = beats.map(|now| standstills.beat(now));
        assert_eq!(found, [None, None, None, Some(27_100_000), None]);
        assert_eq!(standstills.all(), [(1_900_000, 29_000_000)]);
        assert_eq!(standstills.between(0, 1_900_000), 0);
        assert_eq!(standstills.between(0, 29_100_000), 27_100_000);
        assert_eq!(standstills.between(2_000_000, 3_000_000), 1_000_000);
        assert_eq!(standstills.between(28_000_000, 29_100_000), 1_000_000);
        assert_eq!(standstills.between(29_000_000, 29_100_000), 0);
        // The next beat has not come yet.
        assert_eq!(standstills.between(29_050_000, 30_100_000), 0);
        assert_eq!(standstills.between(29_050_000, 40_050_000), 10_950_000);
    }
}
