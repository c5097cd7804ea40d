//! The clocks of a machine: a monotonic and a wall clock, each of which may go wrong by itself.
//!
//! In order, monotonic time runs at its own pace, and the wall clock is off, drifts, and is held
//! within bounds, as NTP does. Out of order, either runs 10% fast or slow, or stands still, or the
//! wall clock is an hour off. Set right again, the wall clock jumps to where it belongs; monotonic
//! time goes on from what it shows, and never goes back.

use crate::random::Random;
use perdura_protocol::Time;
use perdura_replica::node::Now;

/// The wall clock when virtual time is 0, milliseconds since the Unix epoch.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// Most that a wall clock in order is off, milliseconds: any two agree within `max_skew_ms` (500)
/// with time to spare for a proposal's way.
const WALL_OFF_MS: i64 = 180;

/// A million, in which rates are told.
const MILLION: i128 = 1_000_000;

/// `value` times so many millionths, towards zero. Clocks are looked at with every event, and a
/// division of 128 bits costs many of 64.
fn in_millionths(value: u64, millionths: i64) -> i64 {
    let product = i64::try_from(value).ok().and_then(|value| value.checked_mul(millionths));
    match product {
        Some(product) => product / MILLION as i64,
        None => (i128::from(value) * i128::from(millionths) / MILLION) as i64,
    }
}

/// What is wrong with a wall clock, and since when, microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wall {
    InOrder,
    Jumped { by_ms: i64 },
    Runs { since_us: u64, ppm: i64 },
}

/// What can go wrong with a machine's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockFault {
    /// The wall clock jumps by this much, milliseconds.
    Jump(i64),
    /// Wall clock, monotonic clock, or both, run faster by so many in a million; a million slower
    /// is to stand still.
    Pace {
        /// In a million.
        ppm: i64,
        /// Whether the wall clock does.
        wall: bool,
        /// Whether the monotonic clock does.
        monotonic: bool,
    },
}

/// The clocks of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_ms: i64,
    // In a million, when in order and now.
    drift: i64,
    pace: i64,
    // What the monotonic clock showed when its pace last changed.
    since_us: u64,
    shown_us: u64,
    wall: Wall,
}

impl Clock {
    /// Draws a clock.
    pub fn draw(random: &mut Random, drift: u64) -> Clock {
        let offset_ms = random.below(2 * WALL_OFF_MS as u64) as i64 - WALL_OFF_MS;
        let drift = random.below(2 * drift + 1) as i64 - drift as i64;
        let shown_us = random.below(1_000_000) * 1000;
        Clock { offset_ms, drift, pace: drift, since_us: 0, shown_us, wall: Wall::InOrder }
    }

    fn monotonic_us(&self, at_us: u64) -> u64 {
        let elapsed = at_us.saturating_sub(self.since_us);
        self.shown_us + in_millionths(elapsed, MILLION as i64 + self.pace) as u64
    }

    /// When the monotonic clock, going on as it goes, shows this time or later, microseconds.
    #[must_use]
    pub fn shows_us(&self, monotonic_ms: u64) -> u64 {
        let ahead = i128::from((monotonic_ms * 1000).saturating_sub(self.shown_us));
        let pace = (MILLION + i128::from(self.pace)).max(1);
        self.since_us + ((ahead * MILLION + pace - 1) / pace) as u64
    }

    /// The wall clock in order, milliseconds after the epoch.
    fn wall_in_order_ms(&self, at_us: u64) -> i64 {
        let drifted = in_millionths(at_us, self.drift) / 1000;
        (at_us / 1000) as i64 + (self.offset_ms + drifted).clamp(-WALL_OFF_MS, WALL_OFF_MS)
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self, at_us: u64) -> Now {
        let wall_ms = match self.wall {
            Wall::InOrder => self.wall_in_order_ms(at_us),
            Wall::Jumped { by_ms } => self.wall_in_order_ms(at_us) + by_ms,
            Wall::Runs { since_us, ppm } => {
                let elapsed = i128::from(at_us.saturating_sub(since_us));
                let shown = elapsed * (MILLION + i128::from(ppm)) / MILLION;
                self.wall_in_order_ms(since_us) + (shown / 1000) as i64
            }
        };
        Now {
            monotonic_ms: self.monotonic_us(at_us) / 1000,
            wall: Time((EPOCH_MS as i64 + wall_ms) as u64),
        }
    }

    fn set_pace(&mut self, at_us: u64, pace: i64) {
        self.shown_us = self.monotonic_us(at_us);
        self.since_us = at_us;
        self.pace = pace;
    }

    /// From now on this is wrong with it.
    pub fn disturb(&mut self, at_us: u64, fault: ClockFault) {
        match fault {
            ClockFault::Jump(by_ms) => self.wall = Wall::Jumped { by_ms },
            ClockFault::Pace { ppm, wall, monotonic } => {
                if wall {
                    self.wall = Wall::Runs { since_us: at_us, ppm };
                }
                if monotonic {
                    self.set_pace(at_us, ppm);
                }
            }
        }
    }

    /// The monotonic clock jumps ahead.
    pub fn leap(&mut self, at_us: u64, by_ms: u64) {
        self.set_pace(at_us, self.pace);
        self.shown_us += by_ms * 1000;
    }

    /// From now on it is in order.
    pub fn set_right(&mut self, at_us: u64) {
        self.wall = Wall::InOrder;
        self.set_pace(at_us, self.drift);
    }

    /// By how much the wall clock is off, milliseconds.
    #[must_use]
    pub fn off_ms(&self, at_us: u64) -> u64 {
        self.now(at_us).wall.0.abs_diff(EPOCH_MS + at_us / 1000)
    }

    /// Whether the wall clock is in order.
    #[must_use]
    pub fn shows_right(&self) -> bool {
        self.wall == Wall::InOrder
    }

    /// Whether the monotonic clock is in order.
    #[must_use]
    pub fn runs_right(&self) -> bool {
        self.pace == self.drift
    }

    /// Whether it is not in order.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.wall != Wall::InOrder || self.pace != self.drift
    }
}

/// What wall clocks in order show, or nearly.
#[must_use]
pub fn wall_in_order(at_us: u64) -> Time {
    Time(EPOCH_MS + at_us / 1000)
}

/// When all wall clocks in order show this time, by more than others may be behind, microseconds.
#[must_use]
pub fn all_show_us(time: Time, max_skew_ms: u64) -> u64 {
    let since_ms = time.0.saturating_sub(EPOCH_MS).saturating_add(WALL_OFF_MS.unsigned_abs());
    since_ms.saturating_add(max_skew_ms).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn clock() -> Clock {
        Clock::draw(&mut Random::new(1), 0)
    }

    #[test]
    fn a_jump_moves_the_wall_clock_alone_and_is_undone() {
        let mut clock = clock();
        let at = 5_000_000;
        let before = clock.now(at);
        for by_ms in [HOUR_MS, -HOUR_MS] {
            clock.disturb(at, ClockFault::Jump(by_ms));
            let jumped = clock.now(at);
            assert_eq!(jumped.monotonic_ms, before.monotonic_ms);
            assert_eq!(jumped.wall.0 as i64, before.wall.0 as i64 + by_ms);
        }
        assert!(clock.is_wrong());
        clock.set_right(at);
        assert!(!clock.is_wrong());
        assert_eq!(clock.now(at).wall, before.wall);
    }

    #[test]
    fn monotonic_time_never_goes_back_whatever_happens_to_it() {
        let mut clock = clock();
        let mut last = clock.now(0).monotonic_ms;
        for (step, ppm) in [100_000, -1_000_000, -100_000, 0].into_iter().enumerate() {
            let at = step as u64 * 10_000_000;
            clock.disturb(at, ClockFault::Pace { ppm, wall: step % 2 == 0, monotonic: true });
            let shown = clock.now(at + 9_000_000).monotonic_ms;
            assert_eq!((shown - last) as i64, 9_000 + 9 * ppm / 1000, "{ppm}");
            last = shown;
            clock.set_right(at + 9_000_000);
            last += 1000;
            assert_eq!(clock.now(at + 10_000_000).monotonic_ms, last);
        }
    }

    #[test]
    fn a_clock_shows_a_time_when_it_says_so_and_not_before() {
        for seed in 0..50 {
            let clock = Clock::draw(&mut Random::new(seed), 50_000);
            for ms in [1, 999, 1_000, 123_456, 86_400_000] {
                let later = clock.now(0).monotonic_ms + ms;
                let at = clock.shows_us(later);
                assert!(
                    clock.now(at).monotonic_ms >= later && clock.now(at - 1).monotonic_ms < later
                );
            }
        }
    }

    #[test]
    fn a_frozen_wall_clock_stands_still() {
        let mut clock = clock();
        let frozen = ClockFault::Pace { ppm: -1_000_000, wall: true, monotonic: false };
        clock.disturb(1_000_000, frozen);
        let (first, last) = (clock.now(1_000_000), clock.now(9_000_000));
        assert_eq!(first.wall, last.wall);
        assert_eq!(last.monotonic_ms - first.monotonic_ms, 8_000);
    }
}
