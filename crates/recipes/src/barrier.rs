//! A barrier: parties wait until all of them have come.

use crate::space::{Error, Space};
use crate::{template, tuple};
use perdura_tuples::{CommandError, Entry, Pattern, limits};
use std::time::Duration;

const KIND: &str = "barrier";
const OPEN: &str = "barrier-open";

/// A barrier for so many parties. It opens once; the next time needs another name.
#[derive(Clone, Debug)]
pub struct Barrier {
    space: Space,
    name: String,
    parties: u32,
}

impl Barrier {
    /// The barrier `name` in a space, for 1 to [`limits::TUPLES_AT_ONCE`] parties.
    ///
    /// # Errors
    /// With another number of parties.
    pub fn new(
        space: &Space,
        name: impl Into<String>,
        parties: u32,
    ) -> Result<Barrier, CommandError> {
        match parties as usize {
            1..=limits::TUPLES_AT_ONCE => {
                Ok(Barrier { space: space.clone(), name: name.into(), parties })
            }
            parties => Err(CommandError::TuplesAtOnce(parties)),
        }
    }

    /// Comes to the barrier as `party`, which counts once however often it comes, and waits as
    /// long as `wait` until all have come; whether they have.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After any of them, enter again.
    pub async fn enter(&self, party: &str, wait: Duration) -> Result<bool, Error> {
        let own = template(KIND, &self.name, vec![Pattern::Value(party.into())]);
        let came = Entry::new(tuple(KIND, &self.name, &[party.into()])?);
        self.space.cas(own, came).await?;
        // Of those who come, the last in the order of commands sees all.
        let all = template(KIND, &self.name, vec![Pattern::Any]);
        let (present, _) = self.space.rd_all(all, 0, self.parties).await?;
        let open = || template(OPEN, &self.name, Vec::new());
        if present.len() >= self.parties as usize {
            self.space.cas(open(), Entry::new(tuple(OPEN, &self.name, &[])?)).await?;
            return Ok(true);
        }
        Ok(self.space.rd(open(), wait).await?.is_some())
    }

    /// Removes what the barrier has left in the space, once nobody needs it any more.
    ///
    /// # Errors
    /// As [`Space`]'s calls. May be called again after an error.
    pub async fn remove(&self) -> Result<(), Error> {
        let all = || template(KIND, &self.name, vec![Pattern::Any]);
        while self.space.in_all(all(), limits::TUPLES_AT_ONCE as u32).await?.1 {}
        self.space.inp(template(OPEN, &self.name, Vec::new())).await?;
        Ok(())
    }
}
