//! How long records take from this replica to its disk: what time-outs follow (docs/design.md, Who is there).

use std::collections::VecDeque;

/// For so long, and at most twice as long, a slow one is remembered, milliseconds.
const RECENT_MS: u64 = 5_000;

/// What has been under way for longer hangs, milliseconds: a disk of any kind comes back sooner, or tells of an error; ...
pub(super) const HANGS_MS: u64 = 2_000;

/// ... but for one that takes nearly as long all the time, as the longest of the last ones did that came back, unless that one alone hung.
const HANGS_TIMES: u64 = 4;
const LAST: usize = 5;

/// What was given to the log and is not durable, and how long that usually takes.
#[derive(Default, Debug)]
pub(super) struct Flushes {
    // Mark, the sequence that it reaches, and since when.
    under_way: VecDeque<(u64, u64, u64)>,
    since_ms: u64,
    longest_ms: u64,
    before_ms: u64,
    // How long the last ones took that came back, the newest last.
    last_ms: VecDeque<u64>,
}

impl Flushes {
    pub fn begin(&mut self, mark: u64, sequence: u64, now_ms: u64) {
        self.under_way.push_back((mark, sequence, now_ms));
    }

    /// All up to this mark is durable: gives the sequence that is reached, if it is a new one.
    pub fn end(&mut self, mark: u64, now_ms: u64) -> Option<u64> {
        let mut reached = None;
        if let Some((_, _, since)) = self.under_way.front().filter(|one| one.0 <= mark) {
            // Those that come back with it waited for it.
            self.last_ms.push_back(now_ms.saturating_sub(*since));
            if self.last_ms.len() > LAST {
                self.last_ms.pop_front();
            }
        }
        while let Some((_, sequence, since)) = self.under_way.pop_front_if(|one| one.0 <= mark) {
            self.turn(now_ms);
            self.longest_ms = self.longest_ms.max(now_ms.saturating_sub(since));
            reached = Some(sequence);
        }
        reached
    }

    fn turn(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.since_ms);
        if passed >= RECENT_MS {
            self.before_ms = if passed < 2 * RECENT_MS { self.longest_ms } else { 0 };
            self.longest_ms = 0;
            self.since_ms = now_ms;
        }
    }

    /// The longest of the last seconds, and of what is under way.
    pub fn longest_ms(&mut self, now_ms: u64) -> u64 {
        self.turn(now_ms);
        self.oldest_ms(now_ms).max(self.longest_ms).max(self.before_ms)
    }

    /// For how long the oldest that is under way hangs; 0 while it may only be as slow as the last ones were.
    pub fn hangs_ms(&self, now_ms: u64) -> u64 {
        let oldest = self.oldest_ms(now_ms);
        let mut last = [0; LAST];
        let last = &mut last[..self.last_ms.len()];
        last.iter_mut().zip(&self.last_ms).for_each(|(place, ms)| *place = *ms);
        last.sort_unstable();
        let usual = match *last {
            [.., next, longest] if longest >= HANGS_MS && longest >= HANGS_TIMES * next => next,
            [.., longest] => longest,
            [] => 0,
        };
        if oldest >= HANGS_MS && oldest >= HANGS_TIMES * usual { oldest } else { 0 }
    }

    /// For how long the oldest that is under way has been.
    pub fn oldest_ms(&self, now_ms: u64) -> u64 {
        self.under_way.front().map_or(0, |one| now_ms.saturating_sub(one.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_remembered_for_a_while_and_one_under_way_counts() {
        let mut flushes = Flushes::default();
        let start = 100_000;
        assert_eq!(flushes.longest_ms(start), 0);
        flushes.begin(1, 10, start);
        flushes.begin(2, 12, start + 30);
        assert_eq!((flushes.longest_ms(start + 40), flushes.oldest_ms(start + 40)), (40, 40));
        assert_eq!(flushes.end(1, start + 50), Some(10));
        assert_eq!(flushes.end(1, start + 50), None);
        assert_eq!(flushes.end(2, start + 51), Some(12));
        assert_eq!((flushes.longest_ms(start + RECENT_MS), flushes.oldest_ms(start + 60)), (50, 0));
        flushes.begin(3, 13, start + RECENT_MS + 60);
        assert_eq!(flushes.end(3, start + RECENT_MS + 62), Some(13));
        assert_eq!(flushes.longest_ms(start + 2 * RECENT_MS), 2);
        assert_eq!(flushes.longest_ms(start + 5 * RECENT_MS), 0);
    }

    #[test]
    fn who_hung_and_hangs_again_is_found_as_soon() {
        let mut flushes = Flushes::default();
        let mut now_ms = 100_000;
        let mut flush = |mark: u64, ms: u64| {
            // Two at once, of which the second waits for the first.
            flushes.begin(2 * mark, 2 * mark, now_ms);
            flushes.begin(2 * mark + 1, 2 * mark + 1, now_ms);
            now_ms += ms;
            let hangs = flushes.hangs_ms(now_ms);
            flushes.end(2 * mark + 1, now_ms);
            hangs
        };
        for mark in 0..5 {
            assert_eq!(flush(mark, 10), 0);
        }
        assert_eq!(flush(5, 20_000), 20_000);
        assert_eq!(flush(6, 10), 0);
        assert_eq!(flush(7, 2_000), 2_000);
    }

    #[test]
    fn what_is_always_slow_does_not_hang_and_what_was_fast_does() {
        let mut flushes = Flushes::default();
        let start = 100_000;
        flushes.begin(1, 10, start);
        assert_eq!((flushes.hangs_ms(start + 1_999), flushes.hangs_ms(start + 2_000)), (0, 2_000));
        flushes.end(1, start + 3_000);
        assert_eq!(flushes.hangs_ms(start + 3_000), 0);
        // As slow as the one before.
        flushes.begin(2, 11, start + 3_000);
        assert_eq!(flushes.hangs_ms(start + 14_999), 0);
        assert_eq!(flushes.hangs_ms(start + 15_000), 12_000);
    }
}
