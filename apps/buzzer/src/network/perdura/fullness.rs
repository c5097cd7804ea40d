//! How full the partitions are, so that what grows without end is refused in time, and what has to go on always has room: logins, sessions, deletions.
//!
//! Invariants: nobody waits for what is asked here; a partition is asked by those who come, and once in a while at most; what was heard of it
//! counts for a minute, whatever becomes of later questions, and where nothing is known there is room.

use super::Perdura;
use ::perdura_cluster::client::Options;
use ::perdura_cluster::protocol::PartitionId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From so many percent on nothing is posted.
pub(super) const NO_POSTS: u8 = 90;

/// From so many on no accounts are made: those that there are have sessions, and follow each other.
pub(super) const NO_ACCOUNTS: u8 = 95;

/// A partition is asked no more often than that, and its answer is waited for no longer.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// What is known is forgotten after this time.
const KEPT: Duration = Duration::from_secs(60);

/// A partition that is full is told of as often as that.
const WARNED_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Default)]
struct Partition {
    asked: Option<Instant>,
    /// Percent, and when that was heard.
    known: Option<(u8, Instant)>,
    warned: Option<Instant>,
}

/// See the module.
pub(super) struct Fullness {
    partitions: Mutex<Vec<Partition>>,
}

fn is_over(since: Option<Instant>, pause: Duration, now: Instant) -> bool {
    since.is_none_or(|since| now.saturating_duration_since(since) >= pause)
}

impl Fullness {
    pub(super) fn new(partitions: usize) -> Fullness {
        Fullness { partitions: Mutex::new(vec![Partition::default(); partitions]) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Partition>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a partition is to be asked now; whoever hears so has to.
    fn is_due(&self, partition: PartitionId, now: Instant) -> bool {
        let mut all = self.lock();
        let Some(one) = all.get_mut(partition.index()) else { return false };
        let is_due = is_over(one.asked, ASKED_EVERY, now);
        if is_due {
            one.asked = Some(now);
        }
        is_due
    }

    /// A partition said how full it is; whether that is to be told those who run it.
    fn hear(&self, partition: PartitionId, percent: u8, now: Instant) -> bool {
        let mut all = self.lock();
        let Some(one) = all.get_mut(partition.index()) else { return false };
        one.known = Some((percent, now));
        let warns = percent >= NO_POSTS && is_over(one.warned, WARNED_EVERY, now);
        if warns {
            one.warned = Some(now);
        }
        warns
    }

    /// What is known of a partition, percent; 0 if that is nothing.
    fn percent(&self, partition: PartitionId, now: Instant) -> u8 {
        let known = self.lock().get(partition.index()).and_then(|one| one.known);
        known
            .filter(|(_, heard)| !is_over(Some(*heard), KEPT, now))
            .map_or(0, |(percent, _)| percent)
    }
}

impl Perdura {
    /// Whether the partition of a key is known to be as full as this, percent.
    pub(super) fn is_full(&self, key: &[u8], percent: u8) -> bool {
        let (partition, now) = (self.store.partition_of(key), Instant::now());
        if self.fullness.is_due(partition, now) {
            self.ask_how_full(partition);
        }
        self.fullness.percent(partition, now) >= percent
    }

    fn ask_how_full(&self, partition: PartitionId) {
        let (store, fullness) = (self.store.clone(), Arc::clone(&self.fullness));
        let options = Options { timeout: self.options.timeout.min(ASKED_EVERY), ..self.options };
        tokio::spawn(async move {
            match store.fullness(partition, &options).await {
                Ok(Some(heard)) => {
                    let percent = heard.percent();
                    if fullness.hear(partition, percent, Instant::now()) {
                        tracing::warn!(
                            partition = partition.0,
                            percent,
                            "a partition of the store is nearly full: nothing is posted by those whose data is there until there is more room; raise the \
                             limit with `perdura limit`"
                        );
                    }
                }
                Ok(None) => {
                    tracing::debug!(partition = partition.0, "it is not known how full it is")
                }
                Err(error) => {
                    tracing::debug!(partition = partition.0, %error, "it does not say how full it is");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PartitionId = PartitionId(1);

    #[test]
    fn a_partition_is_asked_once_in_a_while_whatever_becomes_of_that() {
        let fullness = Fullness::new(2);
        let begin = Instant::now();
        assert!(fullness.is_due(ONE, begin));
        let almost = begin + ASKED_EVERY - Duration::from_millis(1);
        assert!(!fullness.is_due(ONE, begin) && !fullness.is_due(ONE, almost));
        assert!(fullness.is_due(PartitionId(0), almost), "each for itself");
        assert!(fullness.is_due(ONE, begin + ASKED_EVERY));
        assert!(!fullness.is_due(PartitionId(2), begin), "there is none");
    }

    #[test]
    fn what_was_heard_counts_for_a_minute() {
        let fullness = Fullness::new(2);
        let begin = Instant::now();
        assert_eq!(fullness.percent(ONE, begin), 0);
        fullness.hear(ONE, 93, begin);
        let almost = begin + KEPT - Duration::from_millis(1);
        assert_eq!((fullness.percent(ONE, begin), fullness.percent(ONE, almost)), (93, 93));
        assert_eq!(fullness.percent(PartitionId(0), begin), 0);
        assert_eq!(fullness.percent(ONE, begin + KEPT), 0);
        fullness.hear(ONE, 70, almost);
        assert_eq!(fullness.percent(ONE, begin + KEPT), 70);
    }

    #[test]
    fn operators_are_told_of_each_partition_once_in_an_hour() {
        let fullness = Fullness::new(2);
        let begin = Instant::now();
        assert!(!fullness.hear(ONE, NO_POSTS - 1, begin));
        assert!(fullness.hear(ONE, NO_POSTS, begin));
        assert!(!fullness.hear(ONE, 100, begin + ASKED_EVERY));
        assert!(fullness.hear(PartitionId(0), 100, begin));
        assert!(fullness.hear(ONE, 91, begin + WARNED_EVERY));
    }
}
