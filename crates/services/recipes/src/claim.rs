//! What a lock and an election share: a tuple that one of many has, on a lease.
//!
//! (kind, name, owner, value) with a lease is the claim. It is inserted where there is none, so one
//! has it at a time, by agreed time; its number is larger than those of all claims before, and so a
//! fencing token. Only its owner's client may take it or renew its lease. Who gives it up puts in its
//! place, in one command, a note (kind + "-free", name), which wakes the first who waits. If the owner
//! dies, nobody puts a note: who waits looks again when a whole lease has passed.

use crate::space::{Cas, Error, Space};
use crate::{milliseconds, template, tuple};
use bytes::Bytes;
use perdura_tuples::{Access, Entry, Field, Found, Pattern};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// A note that nobody waits for is gone after this time.
const NOTE_MS: u64 = 1000;

/// What is claimed.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    pub space: Space,
    pub kind: &'static str,
    pub name: String,
    pub lease: Duration,
}

/// A claim that was had when it was made.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    claims: Claims,
    owner: Bytes,
    pub token: u64,
}

/// Differs from others by chance. It is no secret: a claim is protected by its access list.
fn owner() -> Bytes {
    let draw = || RandomState::new().build_hasher().finish();
    [draw().to_le_bytes(), draw().to_le_bytes()].concat().into()
}

/// The value of a claim.
pub(crate) fn value_of(found: &Found) -> Option<String> {
    match found.tuple.fields().nth(3) {
        Some(Field::String(value)) => Some(value),
        _ => None,
    }
}

impl Claims {
    fn free(&self) -> String {
        format!("{}-free", self.kind)
    }

    /// The claim, whoever has it.
    pub(crate) fn any(&self) -> perdura_tuples::Template {
        template(self.kind, &self.name, vec![Pattern::Any, Pattern::Any])
    }

    async fn attempt(&self, owner: &Bytes, value: &str) -> Result<Option<Claim>, Error> {
        let fields = [Field::Bytes(owner.clone()), value.into()];
        let entry = Entry {
            lease_ms: Some(milliseconds(self.lease)),
            take: Access::only(vec![self.space.key()]),
            ..Entry::new(tuple(self.kind, &self.name, &fields)?)
        };
        let token = match self.space.cas(self.any(), entry).await? {
            Cas::Inserted(number) => number,
            Cas::Found(_) => return Ok(None),
        };
        Ok(Some(Claim { claims: self.clone(), owner: owner.clone(), token }))
    }

    /// Claims it if nobody has it.
    pub(crate) async fn try_claim(&self, value: &str) -> Result<Option<Claim>, Error> {
        self.attempt(&owner(), value).await
    }

    /// Claims it, or waits for it.
    pub(crate) async fn claim(&self, value: &str, wait: Duration) -> Result<Option<Claim>, Error> {
        let (owner, start) = (owner(), Instant::now());
        loop {
            if let Some(claim) = self.attempt(&owner, value).await? {
                return Ok(Some(claim));
            }
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let note = template(&self.free(), &self.name, Vec::new());
            self.space.take(note, left.min(self.lease)).await?;
        }
    }
}

impl Claim {
    /// Has it for a whole lease from now on; whether it was still had.
    pub(crate) async fn renew(&self) -> Result<bool, Error> {
        self.claims.space.renew(self.token, Some(self.claims.lease)).await
    }

    /// Gives it up, and wakes the first who waits; whether it was still had.
    pub(crate) async fn give_up(&self) -> Result<bool, Error> {
        let Claims { space, kind, name, .. } = &self.claims;
        let owner = Pattern::Value(Field::Bytes(self.owner.clone()));
        let note = Entry::new(tuple(&self.claims.free(), name, &[])?).with_lease(NOTE_MS);
        let own = template(kind, name, vec![owner, Pattern::Any]);
        Ok(space.replace(own, note).await?.is_some())
    }
}
