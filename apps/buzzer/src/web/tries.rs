//! How often each of many may try something. Kept in memory, for a bounded number of them: who comes as very many finds other bounds.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many are remembered. When it is full those that began to be counted first are forgotten.
pub(super) const REMEMBERED: usize = 10_000;

/// Counts tries of each.
pub(super) struct Tries<K> {
    most: u32,
    within: Duration,
    seen: Mutex<HashMap<K, Seen>>,
}

struct Seen {
    since: Instant,
    tries: u32,
}

impl<K: Clone + Eq + Hash> Tries<K> {
    /// So many tries within a time.
    pub(super) fn new(most: u32, within: Duration) -> Tries<K> {
        Tries { most, within, seen: Mutex::default() }
    }

    /// Counts a try; if it is one too many, for how long there are to be no more.
    pub(super) fn count(&self, who: K, now: Instant) -> Result<(), Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED && !seen.contains_key(&who) {
            seen.retain(|_, one| now.duration_since(one.since) < self.within);
            if seen.len() >= REMEMBERED {
                let oldest = seen.iter().min_by_key(|(_, one)| one.since);
                let oldest = oldest.map(|(who, _)| who.clone());
                oldest.map(|oldest| seen.remove(&oldest));
            }
        }
        let one = seen.entry(who).or_insert(Seen { since: now, tries: 0 });
        if now.duration_since(one.since) >= self.within {
            *one = Seen { since: now, tries: 0 };
        }
        if one.tries >= self.most {
            return Err(self.within.saturating_sub(now.duration_since(one.since)));
        }
        one.tries += 1;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_for_each() {
        let tries = Tries::new(2, Duration::from_secs(60));
        let now = Instant::now();
        assert_eq!(tries.count("one", now), Ok(()));
        assert_eq!(tries.count("one", now), Ok(()));
        let later = now + Duration::from_secs(20);
        assert_eq!(tries.count("one", later), Err(Duration::from_secs(40)));
        assert_eq!(tries.count("other", later), Ok(()));
        assert_eq!(tries.count("one", now + Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn memory_is_bounded() {
        let tries = Tries::new(1, Duration::from_secs(60));
        let now = Instant::now();
        for index in 0..REMEMBERED + 10 {
            assert!(tries.count(index, now).is_ok());
        }
        assert_eq!(tries.remembered(), REMEMBERED);
    }
}
