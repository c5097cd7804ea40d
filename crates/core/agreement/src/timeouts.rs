//! How long others are waited for: longer where flushes and links take long, and after each view that failed.

use crate::timing;

/// No time-out is lengthened to more than so many times its length.
pub const MOST_PACES: u64 = 8;

/// Paces that a request may take: a proposal is on its way, written and voted for, and waits behind another one
/// for each of these.
const PACES: u64 = 4;

/// What a replica's time-outs follow.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Timeouts {
    // One after the other.
    failed_views: u32,
    // What a flush and a round trip take together.
    pace_ms: u64,
}

impl Timeouts {
    pub fn view_failed(&mut self) {
        self.failed_views = self.failed_views.saturating_add(1);
    }

    pub fn view_works(&mut self) {
        self.failed_views = 0;
    }

    pub fn set_pace(&mut self, pace_ms: u64) {
        self.pace_ms = pace_ms;
    }

    pub fn pace_ms(self) -> u64 {
        self.pace_ms
    }

    fn backed_off(self, base_ms: u64) -> u64 {
        base_ms << self.failed_views.saturating_sub(1).min(timing::BACKOFF_LIMIT)
    }

    /// As long as `paces` of this group, and at least the usual time.
    fn paced(self, base_ms: u64, paces: u64) -> u64 {
        base_ms.max(paces.saturating_mul(self.pace_ms)).min(MOST_PACES * base_ms)
    }

    /// Whether enough replicas say that flushes or links take so long that time-outs follow them.
    pub fn is_paced(self) -> bool {
        self.paced(timing::REQUEST_MS, PACES) > timing::REQUEST_MS
    }

    /// For a request or proposal to make progress.
    pub fn request_ms(self) -> u64 {
        self.backed_off(self.paced(timing::REQUEST_MS, PACES))
    }

    /// For a view to start once a quorum has asked for it.
    pub fn view_change_ms(self) -> u64 {
        self.backed_off(self.repeat_ms())
    }

    /// For an answer in a view change.
    pub fn repeat_ms(self) -> u64 {
        self.paced(timing::VIEW_CHANGE_MS, PACES / 2)
    }

    /// For a word of the leader: that waits for no disk.
    pub fn silence_ms(self) -> u64 {
        self.backed_off(timing::SILENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_follow_the_pace_up_to_a_bound_and_silence_does_not() {
        let mut timeouts = Timeouts::default();
        assert_eq!((timeouts.request_ms(), timeouts.view_change_ms()), (1_000, 500));
        timeouts.set_pace(100);
        assert_eq!((timeouts.request_ms(), timeouts.view_change_ms()), (1_000, 500));
        timeouts.set_pace(600);
        assert_eq!((timeouts.request_ms(), timeouts.view_change_ms()), (2_400, 1_200));
        assert!(timeouts.is_paced() && !Timeouts::default().is_paced());
        timeouts.set_pace(u64::MAX);
        assert_eq!((timeouts.request_ms(), timeouts.view_change_ms()), (8_000, 4_000));
        assert_eq!(timeouts.silence_ms(), 1_000);
    }

    #[test]
    fn each_view_that_fails_doubles_them() {
        let mut timeouts = Timeouts::default();
        for expected in [1_000, 2_000, 4_000] {
            timeouts.view_failed();
            assert_eq!(timeouts.request_ms(), expected);
        }
        timeouts.view_works();
        assert_eq!(timeouts.request_ms(), 1_000);
    }
}
