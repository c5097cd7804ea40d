//! What takes so long that others wait for it is said in the log: an operator sees whether it is the disk or
//! the processors.

use std::time::Duration;

/// What takes longer is worth a line: clients notice it.
const SLOW: Duration = Duration::from_millis(250);

/// Of so many lines, and fewer the longer it goes on: the first, and then each that takes longer than all before
/// in the same sixteen.
const FORGET_AFTER: u32 = 16;

/// One thread's slow moments.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    longest: Duration,
    since: u32,
}

impl Slowness {
    /// Something took this long.
    pub fn note(&mut self, what: &str, took: Duration) {
        if self.is_worth_a_line(took) {
            tracing::warn!(took_ms = took.as_millis() as u64, "{what} took long");
        }
    }

    fn is_worth_a_line(&mut self, took: Duration) -> bool {
        if took < SLOW {
            return false;
        }
        self.since += 1;
        if self.since > FORGET_AFTER {
            (self.longest, self.since) = (Duration::ZERO, 1);
        }
        let longer = took > self.longest;
        self.longest = self.longest.max(took);
        longer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_all_the_time_is_said_now_and_then() {
        let mut slowness = Slowness::default();
        let mut lines = |ms: u64, times: usize| {
            let worth = |_: &usize| slowness.is_worth_a_line(Duration::from_millis(ms));
            (0..times).filter(worth).count()
        };
        assert_eq!(lines(249, 1_000), 0);
        assert_eq!(lines(300, 1), 1);
        assert_eq!(lines(300, 160), 10);
        // What is worse than before is said at once.
        assert_eq!((lines(900, 1), lines(901, 1)), (1, 1));
    }
}
