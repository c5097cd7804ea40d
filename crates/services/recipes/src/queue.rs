//! A queue: first in, first out, for any number of producers and consumers. An item is delivered at
//! most once: who takes it and dies has lost it.

use crate::space::{Error, Space};
use crate::{template, tuple};
use bytes::Bytes;
use perdura_tuples::{Entry, Field, Found, Kind, Pattern, Template};
use std::time::Duration;

const KIND: &str = "queue";

/// A queue of byte strings.
#[derive(Clone, Debug)]
pub struct Queue {
    space: Space,
    name: String,
}

fn item(found: &Found) -> Result<Bytes, Error> {
    match found.tuple.fields().nth(2) {
        Some(Field::Bytes(item)) => Ok(item),
        _ => Err(Error::Nonsense),
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
        self.space.inp(self.items()).await?.as_ref().map(item).transpose()
    }

    /// Takes the first item, or waits for one as long as `wait`. Of several who wait, each gets one
    /// in turn.
    ///
    /// An item is had at most once, and may be lost: with a consumer that dies after it was taken, or
    /// whose future is dropped while it waits, since the wait goes on without it (see
    /// [`Space::take`]). Not cancel-safe: in a `select!`, keep the future and poll it again. Who must
    /// not lose items reads them first, and takes each by its value when it is done.
    ///
    /// # Errors
    /// As [`Space::take`].
    pub async fn pop(&self, wait: Duration) -> Result<Option<Bytes>, Error> {
        self.space.take(self.items(), wait).await?.as_ref().map(item).transpose()
    }
}
