//! A value, and a counter, that many share.

use crate::call::Error;
use crate::pause::Pauses;
use crate::space::{Cas, Space};
use crate::{template, tuple};
use bytes::Bytes;
use perdura_client::{CallError, Refusal};
use perdura_tuples::{Entry, Field, Kind, Pattern, Template};
use std::time::Instant;

const VALUE: &str = "value";
const COUNTER: &str = "counter";

/// A shared byte string, which may be absent.
#[derive(Clone, Debug)]
pub struct SharedValue {
    space: Space,
    name: String,
}

/// A shared number.
#[derive(Clone, Debug)]
pub struct Counter {
    space: Space,
    name: String,
}

/// Others change it all the time, or have it, and the call's time is over: nothing was changed.
fn overtaken() -> Error {
    let (reason, detail) = (Refusal::DeadlinePassed, String::new());
    Error::Call(CallError::Refused { reason, detail })
}

impl SharedValue {
    /// The value `name` in a space.
    #[must_use]
    pub fn new(space: &Space, name: impl Into<String>) -> SharedValue {
        SharedValue { space: space.clone(), name: name.into() }
    }

    fn any(&self) -> Template {
        template(VALUE, &self.name, vec![Pattern::Kind(Kind::Bytes)])
    }

    fn entry(&self, value: Bytes) -> Result<Entry, Error> {
        Ok(Entry::new(tuple(VALUE, &self.name, &[Field::Bytes(value)])?))
    }

    /// Reads it; `None` if it is absent.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn get(&self) -> Result<Option<Bytes>, Error> {
        let Some(found) = self.space.rdp(self.any()).await? else { return Ok(None) };
        match found.tuple.fields().nth(2) {
            Some(Field::Bytes(value)) => Ok(Some(value)),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Writes it, absent or not.
    ///
    /// # Errors
    /// As [`Space`]'s calls. Refused if others remove and write it all the time, or one has it that long: by a lease, or since it is offered.
    pub async fn set(&self, value: Bytes) -> Result<(), Error> {
        let (start, mut pauses) = (Instant::now(), Pauses::new());
        while start.elapsed() < self.space.timeout() {
            if self.space.replace(self.any(), self.entry(value.clone())?).await?.is_some() {
                return Ok(());
            }
            if let Cas::Inserted(_) = self.space.cas(self.any(), self.entry(value.clone())?).await?
            {
                return Ok(());
            }
            pauses.rest().await;
        }
        Err(overtaken())
    }

    /// Writes it if it has the expected value (`None`: is absent); whether it had.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn compare_and_set(
        &self,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> Result<bool, Error> {
        let entry = self.entry(value)?;
        let Some(expected) = expected else {
            return Ok(matches!(self.space.cas(self.any(), entry).await?, Cas::Inserted(_)));
        };
        let expected = vec![Pattern::Value(Field::Bytes(expected))];
        let expected = template(VALUE, &self.name, expected);
        Ok(self.space.replace(expected, entry).await?.is_some())
    }

    /// Removes it; whether it was there.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn remove(&self) -> Result<bool, Error> {
        Ok(self.space.inp(self.any()).await?.is_some())
    }
}

impl Counter {
    /// The counter `name` in a space; 0 before it was ever changed.
    #[must_use]
    pub fn new(space: &Space, name: impl Into<String>) -> Counter {
        Counter { space: space.clone(), name: name.into() }
    }

    fn any(&self) -> Template {
        template(COUNTER, &self.name, vec![Pattern::Kind(Kind::Integer)])
    }

    /// Its number.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn get(&self) -> Result<i64, Error> {
        match self.space.rdp(self.any()).await?.map(|found| found.tuple.fields().nth(2)) {
            None => Ok(0),
            Some(Some(Field::Integer(value))) => Ok(value),
            Some(_) => Err(Error::UnexpectedReply),
        }
    }

    /// Adds to it, by one command, and gives its new number. Needs version 2 of the tuple spaces' rules.
    ///
    /// # Errors
    /// As [`Space`]'s calls; after an indeterminate one it may have been added. Refused where the number would not fit 64 bits with a sign.
    pub async fn add(&self, amount: i64) -> Result<i64, Error> {
        self.space.add(tuple(COUNTER, &self.name, &[])?, amount).await
    }
}
