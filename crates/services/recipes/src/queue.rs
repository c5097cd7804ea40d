//! A queue: first in, first out, for any number of producers and consumers.
//!
//! Consumers choose. An item that is *popped* is delivered at most once: who pops it and dies has lost it. One that is *leased* is
//! delivered at least once: it is removed when its worker says that it is done, and the next one's when the worker's lease ends.

use crate::call::Error;
use crate::clock::Moment;
use crate::lease::{Had, Kept, Lease};
use crate::pause::Pauses;
use crate::space::Space;
use crate::{template, tuple};
use bytes::Bytes;
use perdura_tuples::{Entry, Field, Kind, Leased, Pattern, Template, Tuple};
use std::ops::Deref;
use std::time::{Duration, Instant};

const KIND: &str = "queue";

/// A queue of byte strings.
#[derive(Clone, Debug)]
pub struct Queue {
    space: Space,
    name: String,
}

/// An item that one worker has for a lease, in its place in the queue. Dropping it does not give it back: it is the next one's when the [`Lease`]
/// ends, which says whether it has.
#[derive(Clone, Debug)]
pub struct Job {
    item: Bytes,
    number: u64,
    token: u64,
    before: u64,
    lease: Lease,
}

fn item(tuple: &Tuple) -> Result<Bytes, Error> {
    match tuple.fields().nth(2) {
        Some(Field::Bytes(item)) => Ok(item),
        _ => Err(Error::UnexpectedReply),
    }
}

impl Queue {
    /// The queue `name` in a space.
    #[must_use]
    pub fn new(space: &Space, name: impl Into<String>) -> Queue {
        Queue { space: space.clone(), name: name.into() }
    }

    fn items(&self) -> Template {
        template(KIND, &self.name, vec![Pattern::Kind(Kind::Bytes)])
    }

    fn entry(&self, item: Bytes) -> Result<Entry, Error> {
        Ok(Entry::new(tuple(KIND, &self.name, &[Field::Bytes(item)])?))
    }

    /// Appends an item.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one it may be in the queue: pushing again may
    /// put it there twice.
    pub async fn push(&self, item: Bytes) -> Result<(), Error> {
        self.space.out(self.entry(item)?).await.map(drop)
    }

    /// Appends items, all or none, at most [`perdura_tuples::limits::TUPLES_AT_ONCE`].
    ///
    /// # Errors
    /// As [`Queue::push`].
    pub async fn push_all(&self, items: Vec<Bytes>) -> Result<(), Error> {
        let entries: Result<Vec<Entry>, Error> =
            items.into_iter().map(|item| self.entry(item)).collect();
        self.space.out_all(entries?).await.map(drop)
    }

    /// Takes the first item, if there is one. At most once, as [`Queue::pop`].
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one an item may be gone.
    pub async fn try_pop(&self) -> Result<Option<Bytes>, Error> {
        self.space.inp(self.items()).await?.map(|found| item(&found.tuple)).transpose()
    }

    /// Takes the first item, or waits for one as long as `wait`. Of several who wait, each gets one
    /// in turn.
    ///
    /// An item is had at most once, and may be lost with a consumer that dies after it was taken: who must not lose any leases them
    /// ([`Queue::lease`]). What a dropped future waited for is the next one's; see [`Space::take`].
    ///
    /// # Errors
    /// As [`Space::take`].
    pub async fn pop(&self, wait: Duration) -> Result<Option<Bytes>, Error> {
        let found = self.space.take(self.items(), wait).await?;
        found.map(|found| item(&found.tuple)).transpose()
    }

    /// Has the first item that nobody has, for a lease, or waits for one as long as `wait`; with no time to wait, only if there is one.
    /// Of several who wait, each gets one in turn. Needs version 2 of the tuple spaces' rules.
    ///
    /// The item stays in its place. It is removed by [`Job::done`]; if the lease ends before, or the job is given back, it is the next one's, before all
    /// that were pushed later. So a worker that died loses nothing, and one that was too slow may have done what another one does again:
    /// [`Job::tokens`] ascend, for what must not.
    ///
    /// # Errors
    /// As [`Space::take`]. After an indeterminate one, an item may be away until the lease ends.
    pub async fn lease(&self, wait: Duration, lease: Duration) -> Result<Option<Job>, Error> {
        let (space, start, mut pauses) = (&self.space, Instant::now(), Pauses::new());
        loop {
            let (asked, left) = (Moment::now(), wait.saturating_sub(start.elapsed()));
            let Some(leased) = space.lease(self.items(), lease, left).await? else {
                return Ok(None);
            };
            let Leased { number, token, before, tuple, .. } = leased;
            // What is none was not asked for, and comes from more than r liars: there is no job to give back.
            let item = item(&tuple)?;
            if let Some(lease) = Lease::begin(space, Had::Job(number, token), lease, asked).await? {
                return Ok(Some(Job { item, number, token, before, lease }));
            }
            if start.elapsed() >= wait {
                return Ok(None);
            }
            pauses.rest().await;
        }
    }
}

impl Job {
    /// The item.
    #[must_use]
    pub fn item(&self) -> &Bytes {
        &self.item
    }

    /// How often others had it before, who did not finish it: one that many died of may be to blame.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.before
    }

    /// The item's number in the space, and which lease of it this is: together a fencing token, which ascends for an item from one worker to the next.
    #[must_use]
    pub fn tokens(&self) -> (u64, u64) {
        (self.number, self.token)
    }

    /// Keeps the job as long as what this gives is there.
    pub fn keep_alive(self) -> Kept<Job> {
        Kept::new(self)
    }

    /// Removes the item: it is done; `false` if the job was lost, and is another one's. From the call on it is not had any more, and not
    /// renewed.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn done(&self) -> Result<bool, Error> {
        self.lease.end();
        self.lease.space().finish(self.number, self.token).await
    }

    /// Gives the item back to the queue, in its old place; `false` if the job was lost. From the call on it is not had any more, and not
    /// renewed.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn give_back(&self) -> Result<bool, Error> {
        self.lease.give_up().await
    }
}

impl Deref for Job {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
