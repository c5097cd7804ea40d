//! Exponential back-off with jitter from a given seed.

use std::time::Duration;

/// Pauses that double up to a longest one; each is shortened by up to a half at random, so that
/// those who failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    state: u64,
}

impl Backoff {
    /// Pauses from `first` to `longest`, with jitter from `seed`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Backoff {
        Backoff { first, longest, failures: 0, state: seed }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let factor = 1u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let pause = self.first.saturating_mul(factor).min(self.longest);
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        let jitter = self.random() % (micros / 2 + 1);
        Duration::from_micros(micros - jitter)
    }

    /// After a success: starts from the first pause again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): enough for jitter.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_start_again_after_a_success() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, longest, 7);
        let mut expected = first;
        for _ in 0..100 {
            let pause = backoff.next_pause();
            assert!(pause <= expected && pause >= expected / 2, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(longest);
        }
        backoff.reset();
        assert!(backoff.next_pause() <= first);
    }
}
