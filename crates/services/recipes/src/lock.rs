//! A lock with fencing tokens.

use crate::call::Error;
use crate::claim::{Claim, Claims};
use crate::lease::{Kept, Lease};
use crate::space::Space;
use std::ops::Deref;
use std::time::Duration;

/// A lock. One has it at a time, for a lease of agreed time that it renews. Those who wait for it get it in the order in which they came.
///
/// A process that stands still for longer than its lease loses the lock, and may notice too late. So what the
/// lock protects has to see the *token*: it ascends with every acquisition, and who is given a
/// smaller one than before has to refuse.
#[derive(Clone, Debug)]
pub struct Lock(Claims);

/// A lock that is had, until its [`Lease`] ends, which says whether it has. Dropping it does not release it: it is free when the lease has ended.
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
    /// As [`Space`]'s calls. After an indeterminate one, and when the future is dropped before the answer, it may be had by nobody who
    /// knows, until its lease ends.
    pub async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        self.acquire(Duration::ZERO).await
    }

    /// Acquires the lock, waiting for it as long as `wait`. Nobody overtakes who waits. What this gives is not lost yet.
    ///
    /// Dropping the future ends the wait within half a second, and the lock passes to the next one; see [`Space::take`].
    ///
    /// # Errors
    /// As [`Lock::try_acquire`]. Refused if an operator ends the wait.
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

    /// Renews the lock as long as what this gives is there.
    pub fn keep_alive(self) -> Kept<Held> {
        Kept::new(self)
    }

    /// Releases the lock, which is the next one's at once; `false` if it was lost. From the call on it is not had any more, and not renewed.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn release(&self) -> Result<bool, Error> {
        self.0.give_up().await
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0.lease
    }
}
