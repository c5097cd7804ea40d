//! The newest posts of all: each partition has a list of keys that name posts of its own, and are written and removed with these.
//!
//! Invariants:
//! - Each post has a key of its own, which nobody else writes: none waits for another.
//! - A server of the application lists [`LISTED`] posts of a partition in a second at most: whatever is posted, the lists cost no more. Of what is posted faster some is not
//!   in them.
//! - A list is cut to its [`KEPT`] newest when a server puts its first one there, and behind each [`CUT_AFTER`]; so it has so many more for each server at most. Nobody who posts
//!   waits for that, and it writes nothing that those who post write.

use super::super::Page;
use super::super::error::Failure;
use super::super::keys;
use super::super::post::{PostId, Shown};
use super::{Entries, Perdura, not_read};
use ::perdura_cluster::client::Options;
use ::perdura_cluster::protocol::PartitionId;
use ::perdura_cluster::transactions::StoreClient;
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Posts that a server lists in a second, of each partition: nobody reads more.
const LISTED: u32 = 20;

const SECOND: Duration = Duration::from_secs(1);

/// Posts that stay in a list: ten pages, if nobody posts in another partition.
const KEPT: u32 = 200;

/// A list is cut when a server has put so many into it.
const CUT_AFTER: u32 = 64;

/// Keys that one transaction takes out of a list, and how many of these there are at a time.
const CUT: u32 = 200;
const CUTS: usize = 8;

#[derive(Clone, Copy, Default)]
struct List {
    /// When the present second began, and what was listed in it.
    second: Option<(Instant, u32)>,
    /// What was listed since the list was cut; none if this server never did that.
    uncut: Option<u32>,
    is_being_cut: bool,
}

/// What a server puts into the lists.
pub(super) struct Lists {
    lists: Mutex<Vec<List>>,
    /// Where each partition begins.
    begins: Vec<Bytes>,
}

impl Lists {
    pub(super) fn new(begins: Vec<Bytes>) -> Lists {
        Lists { lists: Mutex::new(vec![List::default(); begins.len()]), begins }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<List>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_of(&self, partition: PartitionId) -> &[u8] {
        self.begins.get(partition.index()).map_or(&[], |begin| &begin[..])
    }

    /// Whether a post is to be listed now.
    fn is_to_be_listed(&self, partition: PartitionId, now: Instant) -> bool {
        let mut all = self.lock();
        let Some(one) = all.get_mut(partition.index()) else { return false };
        let present =
            one.second.filter(|(since, _)| now.saturating_duration_since(*since) < SECOND);
        let (since, listed) = present.unwrap_or((now, 0));
        one.second = Some((since, listed.saturating_add(1)));
        listed < LISTED
    }

    /// A post was listed; whether the list is to be cut now. Whoever hears so has to.
    fn is_to_be_cut(&self, partition: PartitionId) -> bool {
        let mut all = self.lock();
        let Some(one) = all.get_mut(partition.index()) else { return false };
        one.uncut = one.uncut.map(|uncut| uncut.saturating_add(1));
        if one.is_being_cut || one.uncut.is_some_and(|uncut| uncut < CUT_AFTER) {
            return false;
        }
        one.is_being_cut = true;
        true
    }

    /// A list was cut, or that failed: then the next one who posts has it tried again.
    fn end_cut(&self, partition: PartitionId, is_cut: bool) {
        if let Some(one) = self.lock().get_mut(partition.index()) {
            one.is_being_cut = false;
            if is_cut {
                one.uncut = Some(0);
            }
        }
    }
}

fn listed_in(entries: &Entries) -> Result<Vec<PostId>, Failure> {
    let post = |key: &[u8]| {
        let text = || Failure::Broken(format!("{} lists no post", String::from_utf8_lossy(key)));
        keys::newest_in(key).ok_or_else(text)
    };
    entries.entries.iter().map(|(key, _)| post(&key)).collect()
}

/// Takes out of a list what is not among its newest.
async fn cut(store: &StoreClient, begin: &[u8], options: &Options) -> Result<(), Failure> {
    for _ in 0..CUTS {
        let range = keys::newest(begin).limit(KEPT + CUT);
        let entries = store.read_range(range, options).await.map_err(not_read)?;
        if entries.entries.len() > KEPT as usize {
            let mut delete = store.transaction();
            for (key, _) in entries.entries.iter().skip(KEPT as usize) {
                delete.delete(key);
            }
            delete.run(options).await?;
        }
        if !entries.more {
            break;
        }
    }
    Ok(())
}

impl Perdura {
    /// The key that lists a post.
    pub(super) fn listed(&self, id: &PostId) -> Bytes {
        let partition = self.store.partition_of(&keys::post(id));
        keys::newest_post(self.lists.begin_of(partition), id)
    }

    /// The key that lists a post of now, if it is to be.
    pub(super) fn to_be_listed(&self, id: &PostId) -> Option<Bytes> {
        let partition = self.store.partition_of(&keys::post(id));
        self.lists.is_to_be_listed(partition, Instant::now()).then(|| self.listed(id))
    }

    /// A post was listed.
    pub(super) fn was_listed(&self, id: &PostId) {
        let partition = self.store.partition_of(&keys::post(id));
        if !self.lists.is_to_be_cut(partition) {
            return;
        }
        let (store, lists, options) = (self.store.clone(), Arc::clone(&self.lists), self.options);
        tokio::spawn(async move {
            let cut = cut(&store, lists.begin_of(partition), &options).await;
            if let Err(failure) = &cut {
                tracing::debug!(partition = partition.0, %failure, "a list of the newest posts is not cut");
            }
            lists.end_cut(partition, cut.is_ok());
        });
    }

    /// Each list is read by itself: a transaction over all of them would take locks where so much is posted that it comes to nothing without. Posts are read later than their
    /// keys, and what they answer later than they.
    pub(super) async fn newest_of_all(
        &self,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        let asked = self.lists.begins.iter().map(|begin| {
            let all = keys::newest(begin).limit(limit);
            self.range(match after {
                Some(after) => all.after(&keys::newest_post(begin, after)),
                None => all,
            })
        });
        let (mut ids, mut more) = (Vec::new(), false);
        for entries in join_all(asked).await {
            let entries = entries?;
            ids.extend(listed_in(&entries)?);
            more |= entries.more;
        }
        ids.sort_unstable();
        more |= ids.len() > limit as usize;
        ids.truncate(limit as usize);
        let next = ids.last().filter(|_| more).cloned();
        let posts = self.those_there(ids).await?;
        Ok(Page { items: self.with_answered(posts).await?, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PartitionId = PartitionId(1);

    fn lists() -> Lists {
        Lists::new(vec![Bytes::new(), Bytes::from_static(b"8000")])
    }

    #[test]
    fn so_many_are_listed_in_a_second() {
        let (lists, begin) = (lists(), Instant::now());
        let listed = |partition, at| {
            (0..100).filter(|_| lists.is_to_be_listed(partition, begin + at)).count()
        };
        assert_eq!(listed(ONE, Duration::ZERO), LISTED as usize);
        assert_eq!(listed(ONE, SECOND - Duration::from_millis(1)), 0);
        assert_eq!(listed(PartitionId(0), SECOND), LISTED as usize, "each for itself");
        assert_eq!(listed(ONE, SECOND), LISTED as usize);
        assert_eq!(listed(PartitionId(2), SECOND), 0, "there is none");
    }

    #[test]
    fn a_list_is_cut_at_first_and_then_once_in_a_while_by_one_at_a_time() {
        let lists = lists();
        assert!(lists.is_to_be_cut(ONE));
        assert!((0..2 * CUT_AFTER).all(|_| !lists.is_to_be_cut(ONE)), "that is being done");
        lists.end_cut(ONE, false);
        assert!(lists.is_to_be_cut(ONE), "it failed");
        lists.end_cut(ONE, true);
        assert!((1..CUT_AFTER).all(|_| !lists.is_to_be_cut(ONE)));
        assert!(lists.is_to_be_cut(ONE) && lists.is_to_be_cut(PartitionId(0)));
        assert!(!lists.is_to_be_cut(PartitionId(2)), "there is none");
    }
}
