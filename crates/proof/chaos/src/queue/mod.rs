//! Guards linearizability of a queue of unique values (docs/tuples.md, "the oldest is meant"):
//! whatever clients saw could have come from one queue that carries out one operation after the
//! other, each between its call and its return. An operation whose outcome is unknown may have
//! happened at any moment after its call, or never; so may each taking of one that takes several.
//!
//! It looks for what no queue does, after Henzinger, Sezgin and Vafeiadis, "Aspect-oriented
//! linearizability proofs" (CONCUR 2013), who prove that there is nothing else for histories of
//! insertions, takings and empty answers:
//! - a value is had that was never put ([`values`]);
//! - a value is taken twice ([`values`]);
//! - a value is put before another one that is taken, and is taken after it or never ([`order`]);
//! - an answer is empty, and at every moment of the call some value was certainly there ([`empties`]).
//!
//! What the paper does not have: what is put at once, or taken at once, has nothing between it, and the
//! answer says whether something was left ([`together`]); a wait that ends with nothing ends when its
//! time is over, and nothing is there then; who reads the head without taking it narrows down when its value
//! became the head and when it left; numbers of tuples give an order that has to be the queue's;
//! takings of unknown outcome are given to the values that somebody must have taken ([`takers`]).
//!
//! A history in which somebody waited to take a value and does not know whether he did, or did not take in time what he was offered, is judged in part:
//! that what is had was put, and by whom it can have been taken, and not in which order; for what is offered is away and comes back.
//!
//! Two things it knows less of than could be known. That something was left behind what was taken at
//! once is explained by any value that can have been there by itself, whatever else that would ask for,
//! and by any insertion of unknown outcome that was called by then. And each taking of unknown outcome
//! of several values may happen by itself.

mod empties;
mod order;
mod takers;
mod together;
mod values;

#[cfg(test)]
mod tests;

use crate::clocks::Clocks;
use crate::operation::Operation;
use serde::{Deserialize, Serialize};
use values::Seen;

/// What a client asked of the queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Call {
    /// Puts values, all or none, in this order.
    Out {
        /// The values.
        values: Vec<String>,
    },
    /// Takes the first value, if there is one.
    Inp,
    /// Takes the first value, or waits for one.
    In {
        /// How long, in milliseconds.
        wait_ms: u64,
    },
    /// Takes the first values.
    InAll {
        /// At most so many.
        limit: u32,
    },
    /// Reads the first value, if there is one.
    Rdp {
        /// Whether it need not be ordered.
        fast: bool,
    },
    /// Reads the first value, or waits for one.
    Rd {
        /// How long, in milliseconds.
        wait_ms: u64,
    },
}

/// A value, and the number of its tuple where it is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Item {
    /// The value.
    pub value: String,
    /// Ascending in the order of insertion.
    pub number: Option<u64>,
}

/// What a client got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// The values are put.
    Inserted {
        /// The number of the first one's tuple, where it is known; those of the others follow.
        first: Option<u64>,
    },
    /// The value that was read or taken, if there was one.
    Found {
        /// The value.
        item: Option<Item>,
    },
    /// Values that were taken.
    FoundAll {
        /// In their order.
        items: Vec<Item>,
        /// Whether there are more.
        more: bool,
    },
}

/// What no queue does, and the values that show it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Flaw {
    what: String,
    values: Vec<String>,
}

/// Judges the history of a queue that was empty at first; in words what is wrong with it.
pub fn check(operations: &[Operation], clocks: &Clocks) -> Result<(), String> {
    let flaw = match is_judged_in_part(operations) {
        true => Seen::of(operations, clocks).and_then(|seen| takers::assign(&seen)),
        false => find_flaw(operations, clocks),
    };
    flaw.map_err(|flaw| in_words(operations, flaw))
}

fn in_words(operations: &[Operation], flaw: Flaw) -> String {
    let mut text = flaw.what;
    let shown = operations.iter().filter(|one| flaw.values.iter().any(|v| names(one, v)));
    shown.for_each(|operation| text.push_str(&format!("\n    {operation}")));
    text
}

/// Whether the order of a history cannot be told: somebody waited, and does not know what came of it, or got nothing since it did not take in time what
/// it was offered. What was offered to it was nobody's for that time, and came back to its place.
pub fn is_judged_in_part(operations: &[Operation]) -> bool {
    use crate::operation::{Call as Any, Outcome};
    operations.iter().any(|operation| {
        matches!(operation.call, Any::Queue(Call::In { .. }))
            && !matches!(operation.outcome, Outcome::Ok(_))
    })
}

/// What is wrong with the history of a queue to which nothing comes back.
fn find_flaw(operations: &[Operation], clocks: &Clocks) -> Result<(), Flaw> {
    let mut seen = Seen::of(operations, clocks)?;
    together::check_heads(&seen)?;
    order::settle(&mut seen)?;
    takers::assign(&seen)?;
    empties::place(&mut seen)
}

/// Whether an operation has to do with a value.
fn names(operation: &Operation, value: &str) -> bool {
    use crate::operation::{Call as Any, Outcome, Return as AnyReturn};
    let called = match &operation.call {
        Any::Queue(Call::Out { values }) => values.iter().any(|one| one == value),
        _ => false,
    };
    let given = match &operation.outcome {
        Outcome::Ok(AnyReturn::Queue(Return::Found { item: Some(item) })) => item.value == value,
        Outcome::Ok(AnyReturn::Queue(Return::FoundAll { items, .. })) => {
            items.iter().any(|item| item.value == value)
        }
        _ => false,
    };
    called || given
}
