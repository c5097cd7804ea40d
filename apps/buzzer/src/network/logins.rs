//! Passwords with a name that were wrong: when that is a reason to let nobody try another.
//!
//! Invariants:
//! - Of each origin [`FREE_OF_ONE`] may fail; then there are pauses.
//! - An origin where the right password was shown is known. Neither that one nor a session of the account has to wait for what fails elsewhere.
//! - All others together have [`FREE_OF_UNKNOWN`] that may fail; then there are pauses for each of them, so that who has many addresses has not many guesses.
//! - A value has a bounded number of origins. Those that are forgotten first are unknown ones that nobody came from for the longest time: what they did still counts with
//!   that of all unknown ones.

use super::origin::Source;
use super::values::{FailuresValue, LoginsValue, OriginValue};
use std::time::Duration;

/// So many from one origin may fail without a pause, ...
const FREE_OF_ONE: u32 = 5;

/// ... and so many from all that are not known together: owners come from new networks too.
const FREE_OF_UNKNOWN: u32 = 50;

/// Then there is a pause of a second, doubled with each more, ...
const PAUSE_MS: u64 = 1_000;

/// ... up to this.
const PAUSE_MOST_MS: u64 = 300_000;

/// Failures are forgotten after an hour without one.
const FORGOTTEN_MS: u64 = 3_600_000;

/// Known origins of a name: a further one takes the place of that which was not used for the longest time.
const KNOWN: usize = 8;

/// Origins of an account, known ones and others.
pub(super) const ORIGINS: usize = 32;

/// Origins of all names with one hash that have no account: there may be a value for each hash, and nobody is let in with one.
pub(super) const ORIGINS_OF_NOBODY: usize = 8;

impl FailuresValue {
    /// For how long nobody is let in, if so many are free.
    fn pause(self, free: u32, now_ms: u64) -> Option<Duration> {
        let doublings = self.failed.checked_sub(free)?.min(16);
        let pause_ms = (PAUSE_MS << doublings).min(PAUSE_MOST_MS);
        let end_ms = self.last_ms.saturating_add(pause_ms);
        let left_ms = end_ms.checked_sub(now_ms).filter(|left| *left > 0)?;
        // Where clocks differ it is not longer than it would be.
        Some(Duration::from_millis(left_ms.min(pause_ms)))
    }

    fn is_old(self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) > FORGOTTEN_MS
    }

    fn with_another(self, now_ms: u64) -> FailuresValue {
        let failed = if self.is_old(now_ms) { 0 } else { self.failed };
        FailuresValue { failed: failed.saturating_add(1), last_ms: now_ms }
    }
}

impl LoginsValue {
    fn origin(&self, source: &Source) -> Option<&OriginValue> {
        self.origins.iter().find(|one| one.origin == source.hash)
    }

    /// Whether it is neither known nor a session.
    fn is_unknown(&self, source: &Source) -> bool {
        !source.is_session && !self.origin(source).is_some_and(|one| one.known)
    }

    /// For how long nobody is let in from there.
    pub(super) fn pause(&self, source: &Source, now_ms: u64) -> Option<Duration> {
        let own = self.origin(source).and_then(|one| one.failures.pause(FREE_OF_ONE, now_ms));
        let of_unknown = self.unknown.pause(FREE_OF_UNKNOWN, now_ms);
        own.max(of_unknown.filter(|_| self.is_unknown(source)))
    }

    /// With one more from there, of up to so many origins.
    pub(super) fn with_failure(
        mut self,
        source: &Source,
        now_ms: u64,
        origins: usize,
    ) -> LoginsValue {
        if self.is_unknown(source) {
            self.unknown = self.unknown.with_another(now_ms);
        }
        let one = self.take(source);
        self.origins.retain(|other| other.known || !other.failures.is_old(now_ms));
        while self.origins.len() >= origins && self.remove_oldest(false) {}
        self.origins.push(OriginValue { failures: one.failures.with_another(now_ms), ..one });
        self
    }

    /// With the right password from there: what failed there before is forgotten, and a network is known from now on. Of what others did nothing is forgotten.
    pub(super) fn with_success(mut self, source: &Source, now_ms: u64) -> LoginsValue {
        let was_unknown = self.is_unknown(source);
        let one = self.take(source);
        if was_unknown {
            self.unknown.failed = self.unknown.failed.saturating_sub(one.failures.failed);
        }
        if source.is_session {
            return self;
        }
        while self.origins.iter().filter(|one| one.known).count() >= KNOWN {
            self.remove_oldest(true);
        }
        let failures = FailuresValue { failed: 0, last_ms: now_ms };
        self.origins.push(OriginValue { failures, known: true, ..one });
        self
    }

    /// An origin, which is none of the value any more.
    fn take(&mut self, source: &Source) -> OriginValue {
        let at = self.origins.iter().position(|one| one.origin == source.hash);
        at.map(|at| self.origins.remove(at)).unwrap_or_else(|| OriginValue {
            origin: source.hash.clone(),
            failures: FailuresValue::default(),
            known: false,
        })
    }

    /// Forgets the known or the unknown origin that was not used for the longest time; whether there was one.
    fn remove_oldest(&mut self, known: bool) -> bool {
        let some = self.origins.iter().enumerate().filter(|(_, one)| one.known == known);
        let oldest = some.min_by_key(|(_, one)| one.failures.last_ms).map(|(at, _)| at);
        oldest.map(|at| self.origins.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::name::Name;
    use super::super::origin::Origin;
    use super::super::session::SessionKey;
    use super::*;
    use std::net::Ipv4Addr;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn amy() -> Name {
        Name::new("amy").unwrap()
    }

    fn network(number: u32) -> Source {
        Origin::Network(Ipv4Addr::from_bits(number).into()).of(&amy())
    }

    fn session(number: u8) -> Source {
        Origin::Session(SessionKey([number; 32])).of(&amy())
    }

    fn failed(mut value: LoginsValue, source: &Source, times: u32) -> LoginsValue {
        for _ in 0..times {
            value = value.with_failure(source, NOW_MS, ORIGINS);
        }
        value
    }

    /// As a login goes: it is counted before it is looked at.
    fn let_in(value: LoginsValue, source: &Source) -> LoginsValue {
        failed(value, source, 1).with_success(source, NOW_MS)
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let after = |failed| FailuresValue { failed, last_ms: 1_000_000 }.pause(5, 1_000_000);
        assert_eq!(after(4), None);
        assert_eq!(after(5), Some(Duration::from_secs(1)));
        assert_eq!(after(7), Some(Duration::from_secs(4)));
        assert_eq!(after(30), Some(Duration::from_secs(300)));
        assert_eq!(after(u32::MAX), Some(Duration::from_secs(300)));
        assert_eq!(FailuresValue { failed: 5, last_ms: 1_000 }.pause(5, 2_000), None);
        let damaged = FailuresValue { failed: 5, last_ms: u64::MAX }.pause(5, 2_000);
        assert_eq!(damaged, Some(Duration::from_secs(1)));
    }

    #[test]
    fn failures_are_forgotten() {
        let before = FailuresValue { failed: 9, last_ms: 0 };
        assert_eq!(before.with_another(FORGOTTEN_MS).failed, 10);
        assert_eq!(before.with_another(FORGOTTEN_MS + 1).failed, 1);
    }

    #[test]
    fn failures_in_one_network_are_no_others() {
        let (home, elsewhere) = (network(1), network(2));
        let value = failed(LoginsValue::default(), &elsewhere, FREE_OF_ONE);
        assert_eq!(value.pause(&elsewhere, NOW_MS), Some(Duration::from_secs(1)));
        assert_eq!(value.pause(&home, NOW_MS), None);
    }

    #[test]
    fn many_networks_have_not_many_guesses() {
        let mut value = LoginsValue::default();
        let mut guesses = 0;
        for number in 0..1_000 {
            while value.pause(&network(number), NOW_MS).is_none() {
                value = failed(value, &network(number), 1);
                guesses += 1;
            }
        }
        assert_eq!(guesses, FREE_OF_UNKNOWN);
        assert!(value.pause(&network(5_000), NOW_MS).is_some());
    }

    #[test]
    fn a_known_network_and_a_session_wait_for_nobody() {
        let home = network(1);
        let mut value = let_in(LoginsValue::default(), &home);
        for number in 100..200 {
            value = failed(value, &network(number), 3);
        }
        assert_eq!(value.pause(&network(2), NOW_MS), Some(Duration::from_secs(300)));
        for source in [&home, &session(1)] {
            assert_eq!(value.pause(source, NOW_MS), None);
            // What fails there is counted there, and nowhere else.
            let before = value.unknown;
            value = failed(value, source, FREE_OF_ONE);
            assert_eq!(value.pause(source, NOW_MS), Some(Duration::from_secs(1)));
            assert_eq!(value.unknown, before);
        }
        assert_eq!(value.pause(&session(2), NOW_MS), None);
    }

    #[test]
    fn who_is_let_in_takes_back_what_he_got_wrong_and_nothing_else() {
        let (home, elsewhere) = (network(1), network(2));
        let value = failed(LoginsValue::default(), &elsewhere, 4);
        let value = let_in(failed(value, &home, 3), &home);
        assert_eq!((value.unknown.failed, value.origins.len()), (4, 2));
        assert_eq!(
            value.origin(&home).map(|one| (one.known, one.failures.failed)),
            Some((true, 0))
        );
        assert_eq!(value.origin(&elsewhere).map(|one| one.failures.failed), Some(4));
        // A session is over, or goes on, without a trace.
        let value = let_in(failed(value, &session(1), 2), &session(1));
        assert_eq!((value.unknown.failed, value.origins.len()), (4, 2));
    }

    #[test]
    fn origins_are_bounded_and_known_ones_are_not_pushed_out() {
        let mut value = LoginsValue::default();
        for number in 0..KNOWN as u32 + 2 {
            value = value.with_success(&network(number), NOW_MS + u64::from(number));
        }
        let known = |value: &LoginsValue, number| value.origin(&network(number)).is_some();
        assert_eq!(value.origins.len(), KNOWN);
        assert!(!known(&value, 0) && !known(&value, 1) && known(&value, 2));
        for number in 100..200 {
            value = value.with_failure(&network(number), NOW_MS + u64::from(number), ORIGINS);
            assert!(known(&value, number) && value.origins.len() <= ORIGINS);
        }
        assert!((2..KNOWN as u32 + 2).all(|number| known(&value, number)));
        assert!(!known(&value, 100) && known(&value, 199 - (ORIGINS - KNOWN) as u32 + 1));
        // Unknown ones are gone with what they did, an hour later.
        let value = value.with_failure(&network(1), NOW_MS + 2 * FORGOTTEN_MS, ORIGINS);
        assert_eq!((value.origins.len(), value.unknown.failed), (KNOWN + 1, 1));
    }

    #[test]
    fn names_without_accounts_have_fewer() {
        let mut value = LoginsValue::default();
        for number in 0..100 {
            value = value.with_failure(&network(number), NOW_MS, ORIGINS_OF_NOBODY);
        }
        assert_eq!((value.origins.len(), value.unknown.failed), (ORIGINS_OF_NOBODY, 100));
    }
}
