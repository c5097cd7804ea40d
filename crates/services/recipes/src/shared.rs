//! A value, and a counter, that many share.

use crate::space::{Cas, Error, Space};
use crate::{template, tuple};
use bytes::Bytes;
use perdura_client::{CallError, Refusal};
use perdura_tuples::{Entry, Field, Found, Kind, Pattern, Template};
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

/// Others change it all the time, and the call's time is over: nothing was changed.
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
            _ => Err(Error::Nonsense),
        }
    }

    /// Writes it, absent or not.
    ///
    /// # Errors
    /// As [`Space`]'s calls. Refused if others remove and write it all the time.
    pub async fn set(&self, value: Bytes) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < self.space.timeout() {
            if self.space.replace(self.any(), self.entry(value.clone())?).await?.is_some() {
                return Ok(());
            }
            if let Cas::Inserted(_) = self.space.cas(self.any(), self.entry(value.clone())?).await?
            {
                return Ok(());
            }
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

    fn entry(&self, value: i64) -> Result<Entry, Error> {
        Ok(Entry::new(tuple(COUNTER, &self.name, &[value.into()])?))
    }

    async fn find(&self) -> Result<Option<i64>, Error> {
        let value = |found: &Found| match found.tuple.fields().nth(2) {
            Some(Field::Integer(value)) => Ok(value),
            _ => Err(Error::Nonsense),
        };
        self.space.rdp(self.any()).await?.as_ref().map(value).transpose()
    }

    /// Its number.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn get(&self) -> Result<i64, Error> {
        Ok(self.find().await?.unwrap_or(0))
    }

    /// Adds to it, and gives its new number. At the ends of the range it wraps around.
    ///
    /// # Errors
    /// As [`Space`]'s calls; after an indeterminate one it may have been added. Refused if others are
    /// faster all the time.
    pub async fn add(&self, amount: i64) -> Result<i64, Error> {
        let start = Instant::now();
        while start.elapsed() < self.space.timeout() {
            let before = self.find().await?;
            let after = before.unwrap_or(0).wrapping_add(amount);
            let changed = match before {
                None => {
                    let inserted = self.space.cas(self.any(), self.entry(after)?).await?;
                    matches!(inserted, Cas::Inserted(_))
                }
                Some(before) => {
                    let held = vec![Pattern::Value(before.into())];
                    let held = template(COUNTER, &self.name, held);
                    self.space.replace(held, self.entry(after)?).await?.is_some()
                }
            };
            if changed {
                return Ok(after);
            }
        }
        Err(overtaken())
    }
}
