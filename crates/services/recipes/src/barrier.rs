//! A barrier: parties wait until all of them have come.

use crate::call::Error;
use crate::space::Space;
use crate::{template, tuple};
use perdura_tuples::{CommandError, Entry, Pattern, limits};
use std::time::{Duration, Instant};

const KIND: &str = "barrier";
const OPEN: &str = "barrier-open";

/// Who comes last opens the barrier, and may die before: those who wait look this often whether all have come.
const LOOK: Duration = Duration::from_secs(2);

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
    /// long as `wait` until all have come; whether they have. A party that waited in vain, or died,
    /// has come all the same: the barrier opens for the others once the rest come, too, whoever is still there then.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After any of them, a refusal too, the party may have come: enter again.
    pub async fn enter(&self, party: &str, wait: Duration) -> Result<bool, Error> {
        let own = template(KIND, &self.name, vec![Pattern::Value(party.into())]);
        let came = Entry::new(tuple(KIND, &self.name, &[party.into()])?);
        self.space.cas(own, came).await?;
        // Of those who come, the last in the order of commands sees all, and wakes the others.
        let open = || template(OPEN, &self.name, Vec::new());
        let start = Instant::now();
        loop {
            if self.all_came().await? {
                self.space.cas(open(), Entry::new(tuple(OPEN, &self.name, &[])?)).await?;
                return Ok(true);
            }
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            if self.space.rd(open(), left.min(LOOK)).await?.is_some() {
                return Ok(true);
            }
        }
    }

    /// Whether tuples of all parties are there. They may take several reads, since none gives more than
    /// [`limits::RESULT_BYTES`]: parties do not leave, and who comes meanwhile has a larger number.
    async fn all_came(&self) -> Result<bool, Error> {
        let (mut missing, mut after) = (self.parties, 0);
        loop {
            let all = template(KIND, &self.name, vec![Pattern::Any]);
            let (present, more) = self.space.rd_all(all, after, missing).await?;
            let count = u32::try_from(present.len()).unwrap_or(u32::MAX);
            missing = missing.saturating_sub(count);
            match present.last() {
                Some(last) if more && missing > 0 => after = last.number,
                _ => return Ok(missing == 0),
            }
        }
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
