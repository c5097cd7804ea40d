//! Leader election.

use crate::call::Error;
use crate::claim::{Claim, Claims, value_of};
use crate::lease::{Kept, Lease};
use crate::space::Space;
use perdura_tuples::Found;
use std::ops::Deref;
use std::time::Duration;

/// An election: one candidate at a time leads, for a lease that it renews. Candidates follow in the order in which they came.
#[derive(Clone, Debug)]
pub struct Election(Claims);

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// What it called itself.
    pub candidate: String,
    /// Its term: larger than all terms before. A fencing token.
    pub term: u64,
}

/// A won election, until its [`Lease`] ends, which says whether it has. Dropping it does not resign.
#[derive(Clone, Debug)]
pub struct Leadership(Claim);

fn leader(found: &Found) -> Result<Leader, Error> {
    let candidate = value_of(found).ok_or(Error::UnexpectedReply)?;
    Ok(Leader { candidate, term: found.number })
}

impl Election {
    /// The election `name` in a space. All candidates should ask for the same lease: for so long
    /// there is no leader after one died.
    #[must_use]
    pub fn new(space: &Space, name: impl Into<String>, lease: Duration) -> Election {
        Election(Claims { space: space.clone(), kind: "leader", name: name.into(), lease })
    }

    /// Stands for election, and waits to win it as long as `wait`. What this gives is not lost yet. Dropping the future ends the candidature,
    /// as [`crate::Lock::acquire`] does.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one, who does not know it may lead until the
    /// lease ends.
    pub async fn campaign(
        &self,
        candidate: &str,
        wait: Duration,
    ) -> Result<Option<Leadership>, Error> {
        Ok(self.0.claim(candidate, wait).await?.map(Leadership))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.0.space.rdp(self.0.any()).await?.as_ref().map(leader).transpose()
    }

    /// Who leads, as soon as anybody does, waiting as long as `wait`.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn observe(&self, wait: Duration) -> Result<Option<Leader>, Error> {
        self.0.space.rd(self.0.any(), wait).await?.as_ref().map(leader).transpose()
    }
}

impl Leadership {
    /// The term: a fencing token, as [`crate::Held::token`].
    #[must_use]
    pub fn term(&self) -> u64 {
        self.0.token
    }

    /// Leads on as long as what this gives is there.
    pub fn keep_alive(self) -> Kept<Leadership> {
        Kept::new(self)
    }

    /// Resigns: the next candidate leads at once; `false` if the leadership was lost. From the call on it is not had any more, and not renewed.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn resign(&self) -> Result<bool, Error> {
        self.0.give_up().await
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0.lease
    }
}
