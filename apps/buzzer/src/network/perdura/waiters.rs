//! Who waits for which partition. Of those that wait for one that does not answer there may be only so many: so they leave room for those of others.

use super::super::error::Failure;
use ::perdura_cluster::protocol::PartitionId;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Of those that wait for partitions that do not answer there are so many, in equal shares: half of the requests that are under way at a time (`web::guard`).
const WAITING: usize = 512;

/// A partition that did not answer anybody for so long does not answer. Another leader is found sooner.
const SILENT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Default)]
struct Partition {
    waiting: usize,
    /// Those that have asked it alone: what others were asked as well says nothing of it, since it may wait for them.
    alone: usize,
    /// Since when it has not answered any of these.
    silent_since: Option<Instant>,
}

/// See the module.
pub(super) struct Waiters {
    /// None where there is one partition only, which leaves nothing to keep room for.
    partitions: Mutex<Vec<Partition>>,
    share: usize,
}

/// One of them, until it is dropped.
pub(super) struct Waiter<'a> {
    of: &'a Waiters,
    partitions: BTreeSet<PartitionId>,
}

impl Waiters {
    pub(super) fn new(partitions: usize) -> Waiters {
        let share = WAITING.div_ceil(partitions.max(1));
        let partitions = if partitions > 1 { partitions } else { 0 };
        Waiters { partitions: Mutex::new(vec![Partition::default(); partitions]), share }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Partition>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more that asks these partitions something; none, at once, if one of them does not answer and as many as may wait for it already. Whoever is the only one to ask
    /// one alone does so in any case: else nobody would see that it is back.
    pub(super) fn ask(
        &self,
        partitions: BTreeSet<PartitionId>,
        now: Instant,
    ) -> Result<Waiter<'_>, Failure> {
        let mut all = self.lock();
        let is_alone = partitions.len() == 1;
        let is_full = |one: &Partition| {
            let is_silent = one.silent_since.is_some_and(|since| now - since >= SILENT);
            is_silent && one.waiting >= self.share && !(is_alone && one.alone == 0)
        };
        if partitions.iter().filter_map(|one| all.get(one.index())).any(is_full) {
            let text = "a part of it does not answer, and many wait for that already";
            return Err(Failure::Unavailable(text.to_owned()));
        }
        for one in &partitions {
            if let Some(one) = all.get_mut(one.index()) {
                one.waiting += 1;
                if is_alone {
                    one.alone += 1;
                    one.silent_since.get_or_insert(now);
                }
            }
        }
        Ok(Waiter { of: self, partitions })
    }
}

impl Waiter<'_> {
    /// Waits for what it asks.
    pub(super) async fn until<T, E>(
        self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let answer = asked.await;
        if answer.is_ok() {
            self.answered();
        }
        answer
    }

    /// What it asked was answered.
    fn answered(self) {
        if self.is_alone() {
            self.each(|one| one.silent_since = None);
        }
    }

    fn is_alone(&self) -> bool {
        self.partitions.len() == 1
    }

    fn each(&self, change: impl Fn(&mut Partition)) {
        let mut all = self.of.lock();
        for one in &self.partitions {
            if let Some(one) = all.get_mut(one.index()) {
                change(one);
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let alone = usize::from(self.is_alone());
        self.each(|one| {
            one.waiting -= 1;
            one.alone -= alone;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 2 * WAITING;

    fn some(partitions: &[u16]) -> BTreeSet<PartitionId> {
        partitions.iter().copied().map(PartitionId).collect()
    }

    fn fill<'a>(waiters: &'a Waiters, partitions: &[u16], now: Instant) -> Vec<Waiter<'a>> {
        let more = || waiters.ask(some(partitions), now).ok();
        std::iter::from_fn(more).take(MANY).collect()
    }

    #[test]
    fn those_that_wait_for_what_does_not_answer_leave_room_for_others() {
        let waiters = Waiters::new(4);
        let begin = Instant::now();
        let first = waiters.ask(some(&[0]), begin).ok().unwrap();
        let later = begin + SILENT;
        let held = fill(&waiters, &[0], later);
        assert_eq!(held.len(), WAITING / 4 - 1);
        assert!(waiters.ask(some(&[0, 1]), later).is_err());
        assert_eq!(fill(&waiters, &[1], later).len(), MANY);
        assert_eq!(fill(&waiters, &[1, 2, 3], later).len(), MANY);
        first.answered();
        assert_eq!(fill(&waiters, &[0], later).len(), MANY);
    }

    #[test]
    fn one_that_answers_is_waited_for_by_as_many_as_come() {
        let waiters = Waiters::new(2);
        let begin = Instant::now();
        let held = fill(&waiters, &[0], begin);
        assert_eq!(held.len(), MANY);
        for waiter in held {
            waiter.answered();
        }
        assert_eq!(fill(&waiters, &[0], begin + SILENT).len(), MANY);
    }

    #[test]
    fn those_that_give_up_are_no_answer() {
        let waiters = Waiters::new(2);
        let begin = Instant::now();
        drop(fill(&waiters, &[0], begin));
        assert_eq!(fill(&waiters, &[0], begin + SILENT).len(), WAITING / 2);
    }

    #[test]
    fn what_others_were_asked_too_says_nothing_of_one() {
        let waiters = Waiters::new(2);
        let begin = Instant::now();
        let both = fill(&waiters, &[0, 1], begin);
        assert_eq!(both.len(), MANY);
        assert!(waiters.ask(some(&[1]), begin + SILENT).is_ok());
    }

    #[test]
    fn one_that_is_back_is_found_though_its_room_is_full() {
        let waiters = Waiters::new(2);
        let begin = Instant::now();
        drop(waiters.ask(some(&[1]), begin));
        let later = begin + SILENT;
        let both = fill(&waiters, &[0, 1], later);
        assert_eq!(both.len(), WAITING / 2);
        let only = waiters.ask(some(&[1]), later).ok().unwrap();
        assert!(waiters.ask(some(&[1]), later).is_err());
        only.answered();
        assert_eq!(fill(&waiters, &[1], later).len(), MANY);
    }

    #[test]
    fn one_partition_alone_is_waited_for_by_as_many_as_come() {
        let waiters = Waiters::new(1);
        let begin = Instant::now();
        drop(fill(&waiters, &[0], begin));
        assert_eq!(fill(&waiters, &[0], begin + SILENT).len(), MANY);
    }
}
