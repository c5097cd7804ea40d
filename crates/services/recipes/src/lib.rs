//! Tuple spaces for programs: a typed client, and what is usually built on it.
//!
//! [`Space`] has a method for each operation of the service. On it stand a [`Lock`] with fencing
//! tokens, an [`Election`], a [`Barrier`], a [`Queue`], a [`SharedValue`] and a [`Counter`]. All of
//! them are a few commands each, and none polls, but for those who wait at a barrier, or set a value that somebody has: who waits is woken by who changes what it waits for.
//! What is had for a time, a lock, a leadership or a job of a queue, has a [`Lease`], and is [`Kept`] by who asks for that.
//!
//! A name of a recipe is its own: a lock and a queue of one name have nothing to do with each
//! other. Tuples of a recipe begin with its kind and its name, so a space that indexes two leading
//! fields finds them at once, whatever else it holds.
//!
//! Errors are those of calls (rule C1): after an indeterminate one, what was asked may have
//! happened. What that means stands with each method.

#![forbid(unsafe_code)]

mod barrier;
mod call;
mod claim;
mod clock;
mod delete;
mod election;
mod lease;
mod lock;
mod pause;
mod queue;
mod shared;
mod space;

pub use barrier::Barrier;
pub use call::{Error, call, wait_of};
pub use delete::delete;
pub use election::{Election, Leader, Leadership};
pub use lease::{Kept, Lease};
pub use lock::{Held, Lock};
pub use queue::{Job, Queue};
pub use shared::{Counter, SharedValue};
pub use space::{Cas, Replaced, Space};

use perdura_tuples::{CommandError, Field, Pattern, Template, Tuple};

/// The tuple of a recipe: its kind, its name, and what else it needs.
fn tuple(kind: &str, name: &str, rest: &[Field]) -> Result<Tuple, CommandError> {
    let mut fields = vec![kind.into(), name.into()];
    fields.extend_from_slice(rest);
    Tuple::new(&fields)
}

/// The tuples of a recipe whose further fields match.
fn template(kind: &str, name: &str, rest: Vec<Pattern>) -> Template {
    let mut fields = vec![Pattern::Value(kind.into()), Pattern::Value(name.into())];
    fields.extend(rest);
    Template { fields }
}

fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
