//! Histories of what clients saw, and who judges them; the simulator, chaos on real processes and tests use it.
//!
//! Guards linearizability of the store (rules E1, E4, C2): whatever clients saw
//! could have come from one map that carries out one operation after the other, each between its
//! call and its return. An operation whose outcome is unknown may have happened at any moment
//! after its call, or never.
//!
//! The search is that of Wing and Gong (1993) with Lowe's memory of configurations seen (2017).
//! First each key by itself (a history is only linearizable if its projections are, and those are
//! searched fast); then, when operations span several keys, the history as a whole, within a
//! bound on the configurations visited.
//!
//! [`history`] what happened, also as JSON lines; [`conditions`] what an operation says about each
//! key; [`mod@search`] the search; [`precedence`] who of transactions has to come before whom.

#![forbid(unsafe_code)]

pub mod conditions;
pub mod history;
pub mod precedence;
pub mod search;

pub use history::{Call, History, Operation, Outcome, Return, Step, StepReturn, text};

use conditions::{Keys, Prepared};
use search::{Found, search};

/// Configurations visited before the search gives up.
pub const DEFAULT_BUDGET: usize = 2_000_000;

/// What is known about a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none; in words why.
    Violated(String),
    /// Each key by itself has one; for all together the bound was reached.
    Undecided,
}

/// Judges a history that starts from an empty store.
#[must_use]
pub fn check(history: &History, budget: usize) -> Verdict {
    let keys = Keys::of(history);
    let mut prepared = Vec::with_capacity(history.operations.len());
    for (index, operation) in history.operations.iter().enumerate() {
        match Prepared::of(&keys, index, operation) {
            Ok(Some(one)) => prepared.push(one),
            Ok(None) => {}
            Err(what) => {
                return Verdict::Violated(format!("{what}\n    {operation}"));
            }
        }
    }
    let mut undecided = false;
    for key in 0..keys.len() {
        let projected: Vec<Prepared> =
            prepared.iter().filter_map(|operation| operation.project(key)).collect();
        match search(&projected, keys.len(), budget) {
            Found::Order => {}
            Found::TooMany => undecided = true,
            Found::None { stuck } => {
                return Verdict::Violated(explain(history, &keys, Some(key), &projected, &stuck));
            }
        }
    }
    if prepared.iter().any(|operation| operation.conditions.len() > 1) {
        match search(&prepared, keys.len(), budget) {
            Found::Order => {}
            Found::TooMany => undecided = true,
            Found::None { stuck } => {
                return Verdict::Violated(explain(history, &keys, None, &prepared, &stuck));
            }
        }
    }
    if undecided { Verdict::Undecided } else { Verdict::Linearizable }
}

/// The operations around the place where every order breaks down.
fn explain(
    history: &History,
    keys: &Keys,
    key: Option<usize>,
    searched: &[Prepared],
    stuck: &[usize],
) -> String {
    let mut text = match key {
        Some(key) => format!("no order explains what was read and written of {:?}", keys.name(key)),
        None => "no order explains the operations that span several keys".to_owned(),
    };
    let times = stuck.iter().map(|index| &history.operations[*index]);
    let (mut from, mut to) = (u64::MAX, 0);
    for operation in times {
        from = from.min(operation.invoked);
        to = to.max(operation.ended.unwrap_or(operation.invoked));
    }
    let mut shown = 0;
    for prepared in searched {
        let operation = &history.operations[prepared.index];
        let near = operation.ended.is_none_or(|ended| ended >= from) && operation.invoked <= to;
        let before = operation.ended.is_some_and(|ended| ended < from)
            && operation.ended.is_some_and(|ended| ended + 400 >= from);
        if (near || before) && shown < 60 {
            shown += 1;
            let mark = if stuck.contains(&prepared.index) { "!" } else { " " };
            text.push_str(&format!("\n   {mark} {operation}"));
        }
    }
    text
}

#[cfg(test)]
mod tests;
