//! A clock of this machine that goes on while it is suspended.
//!
//! `Instant` stands still then, and a process that wakes up would believe to have what another one got meanwhile. Elsewhere than on Linux
//! it is all there is.

use std::time::Duration;

/// A time on that clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(Duration);

impl Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn now() -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Moment(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn now() -> Moment {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Moment(START.get_or_init(std::time::Instant::now).elapsed())
    }

    pub(crate) fn after(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }

    #[cfg(test)]
    pub(crate) fn before(self, time: Duration) -> Moment {
        Moment(self.0.saturating_sub(time))
    }

    /// How long it is until then; nothing if it is past.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_past_leaves_no_time() {
        let now = Moment::now();
        assert!(now.after(Duration::ZERO) == now && now.left().is_zero());
        let hour = Duration::from_secs(3600);
        let later = now.after(hour);
        assert!(later > now && later.left() <= hour && !later.left().is_zero());
        assert!(now.after(Duration::MAX) > later);
    }
}
