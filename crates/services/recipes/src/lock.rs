//! A lock with fencing tokens.

use crate::claim::{Claim, Claims};
use crate::space::{Error, Space};
use std::time::Duration;

/// A lock. One has it at a time, for a lease of agreed time that it renews.
///
/// A process that stands still for longer than its lease loses the lock without noticing. So what the
/// lock protects has to see the *token*: it ascends with every acquisition, and who is given a
/// smaller one than before has to refuse.
#[derive(Clone, Debug)]
pub struct Lock(Claims);

/// A lock that is had, until its lease ends. Dropping it does not release it.
#[derive(Clone, Debug)]
pub struct Held(Claim);

impl Lock {
    /// The lock `name` in a space. All who use it should ask for the same lease: for so long a lock
    /// stays away whose owner died.
    #[must_use]
    pub fn new(space: &Space, name: impl Into<String>, lease: Duration) -> Lock {
        Lock(Claims { space: space.clone(), kind: "lock", name: name.into(), lease })
    }

    /// Acquires the lock if nobody has it.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one it may be had by nobody who knows, until its
    /// lease ends.
    pub async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        Ok(self.0.try_claim("").await?.map(Held))
    }

    /// Acquires the lock, waiting for it as long as `wait`. Who is woken may be overtaken by somebody
    /// who has just come; it then waits again.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn acquire(&self, wait: Duration) -> Result<Option<Held>, Error> {
        Ok(self.0.claim("", wait).await?.map(Held))
    }
}

impl Held {
    /// The fencing token: larger than that of everybody who had the lock before.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// Keeps the lock for another lease from now on; `false` if it was lost.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn renew(&self) -> Result<bool, Error> {
        self.0.renew().await
    }

    /// Releases the lock and wakes the first who waits; `false` if it was lost.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn release(&self) -> Result<bool, Error> {
        self.0.give_up().await
    }
}
