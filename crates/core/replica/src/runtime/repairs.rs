//! How often a replica may begin anew because its state was not the certified one.
//!
//! It begins on what it has itself: the newest certified state on its disk, which is verified piece by
//! piece, and its log. If that does not last, something is wrong that no state mends.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// After so many within [`WITHIN`] it stays down.
const MOST: usize = 3;

const WITHIN: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, Default)]
pub(super) struct Repairs {
    // When the latest began, at most `MOST`.
    begun: VecDeque<Instant>,
    total: u64,
}

impl Repairs {
    /// One begins now.
    pub fn begin(&mut self, now: Instant) {
        self.begun.push_back(now);
        if self.begun.len() > MOST {
            self.begun.pop_front();
        }
        self.total += 1;
    }

    /// Whether there is to be another one.
    pub fn may_begin(&self, now: Instant) -> bool {
        self.recent(now) < MOST
    }

    /// How many there were since the process began.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many there were within an hour.
    pub fn recent(&self, now: Instant) -> usize {
        let recent = |begun: &&Instant| now.saturating_duration_since(**begun) <= WITHIN;
        self.begun.iter().filter(recent).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_three_within_an_hour_it_stays_down() {
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(60 * count);
        let mut repairs = Repairs::default();
        let begun = [0, 10, 50, 55, 65, 66].map(|count| {
            let may = repairs.may_begin(minutes(count));
            if may {
                repairs.begin(minutes(count));
            }
            may
        });
        assert_eq!(begun, [true, true, true, false, true, false]);
        assert_eq!((repairs.total(), repairs.recent(minutes(66))), (4, 3));
    }
}
