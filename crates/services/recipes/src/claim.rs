//! What a lock and an election share: a tuple that one of many has, on a lease.
//!
//! (kind, name, owner, value) with a lease is the claim. The group inserts it when there is none of its kind and name, so one
//! has it at a time, by agreed time; its number is larger than those of all claims before, and so a
//! fencing token. Those who wait are served in the order in which they came, and nobody gets in between: when a claim goes, in whatever way, the next
//! one is there at once, and is its client's when that says that it has it. Only its owner's client may take it or renew its lease; who may
//! manage the space may break it.

use crate::call::Error;
use crate::clock::Moment;
use crate::lease::{Had, Lease};
use crate::pause::Pauses;
use crate::space::Space;
use crate::{milliseconds, template, tuple};
use bytes::Bytes;
use perdura_tuples::{Access, Entry, Field, Found, Pattern, Template};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// Kind and name.
const KEY: u8 = 2;

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
    pub token: u64,
    pub lease: Lease,
}

/// Differs from others by chance: who looks at a claim sees whether it is another one. It is no secret: a claim is protected by its access list.
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
    /// The claim, whoever has it.
    pub(crate) fn any(&self) -> Template {
        template(self.kind, &self.name, vec![Pattern::Any, Pattern::Any])
    }

    /// Claims it, or waits for it; with no time to wait only if nobody has it.
    pub(crate) async fn claim(&self, value: &str, wait: Duration) -> Result<Option<Claim>, Error> {
        let Claims { space, lease, .. } = self;
        let fields = [Field::Bytes(owner()), value.into()];
        let entry = Entry {
            lease_ms: Some(milliseconds(*lease)),
            take: Access::only(vec![space.key()]),
            ..Entry::new(tuple(self.kind, &self.name, &fields)?)
        };
        let (start, mut pauses) = (Instant::now(), Pauses::new());
        loop {
            let (asked, left) = (Moment::now(), wait.saturating_sub(start.elapsed()));
            let Some(token) = space.claim(KEY, entry.clone(), left).await? else {
                return Ok(None);
            };
            if let Some(lease) = Lease::begin(space, Had::Tuple(token), *lease, asked).await? {
                return Ok(Some(Claim { token, lease }));
            }
            if start.elapsed() >= wait {
                return Ok(None);
            }
            pauses.rest().await;
        }
    }
}

impl Claim {
    /// Gives it up, so that it is the next one's; whether it was still had.
    pub(crate) async fn give_up(&self) -> Result<bool, Error> {
        self.lease.give_up().await
    }
}
