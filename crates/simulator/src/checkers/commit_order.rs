//! Guards linearizability of everything at once, transactions over several keys included, with the
//! order of execution as the witness: what clients saw must be what the commands gave in that
//! order, and that order must respect real time. Linear in the length of the history; the search
//! in [`crate::linearizability`] judges the same history without being told an order.

use crate::linearizability::{Call, Return};
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_protocol::{Decode, SessionId};
use perdura_store::{StoreCommand, StoreReply};
use std::collections::BTreeMap;

mod model;
pub use model::Model;

const RULE: &str = "Linearizability (commit order)";

/// How a call ended, as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// With this reply.
    Ok(StoreReply),
    /// Certain not to have happened (never sent).
    NotSent,
    /// Ordered, and refused by the store.
    RefusedInOrder,
    /// Unknown.
    Unknown,
}

/// A call of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its number in the order, if it was sent for ordering.
    pub number: Option<(SessionId, u64)>,
    /// Its command.
    pub command: StoreCommand,
    /// When it was called.
    pub invoked: u64,
    /// When it ended; none if never.
    pub ended: Option<u64>,
    /// How it ended.
    pub seen: Seen,
}

/// Holds what clients were told against the order of execution.
pub fn check<'a>(order: impl Iterator<Item = &'a Execution>, calls: &[Told]) -> Check {
    let fail = |what: String| Err(Broken::new(RULE, what));
    let by_number: BTreeMap<(SessionId, u64), usize> = calls
        .iter()
        .enumerate()
        .filter_map(|(index, call)| call.number.map(|number| (number, index)))
        .collect();
    let mut model = Model::default();
    // Where each call stands in the order, from 1.
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    let mut states: Vec<Model> = vec![model.clone()];
    for execution in order {
        let Ok(command) = StoreCommand::decode(&execution.command) else {
            if execution.reply.is_err() {
                states.push(model.clone()); // A hostile client's, which the store refused.
                continue;
            }
            return fail(format!("{execution:?} is no command of the store"));
        };
        let expected = model.run(&Call::from(&command));
        states.push(model.clone());
        let replied = match &execution.reply {
            Ok(bytes) => StoreReply::from_bytes(bytes.clone()).ok(),
            Err(_) => None,
        };
        let Some(reply) = replied else {
            return fail(format!("the store refused {command:?}: {:?}", execution.reply));
        };
        if Return::from(&reply) != expected {
            return fail(format!("{command:?} gave {reply:?}, the model {expected:?}"));
        }
        let Some(index) = by_number.get(&(execution.session, execution.number)) else { continue };
        places.insert(*index, states.len() - 1);
        match &calls[*index].seen {
            Seen::Ok(seen) if *seen != reply => {
                return fail(format!("{command:?} gave {reply:?}, its client got {seen:?}"));
            }
            Seen::NotSent | Seen::RefusedInOrder => {
                return fail(format!("{command:?} was executed; its client was told it was not"));
            }
            _ => {}
        }
    }
    real_time(&states, &places, calls)
}

/// Walks through the calls in the order in which they were made: each must stand behind
/// everything that had ended by then.
fn real_time(states: &[Model], places: &BTreeMap<usize, usize>, calls: &[Told]) -> Check {
    let fail = |what: String| Err(Broken::new(RULE, what));
    let mut by_call: Vec<usize> = (0..calls.len()).collect();
    by_call.sort_by_key(|index| calls[*index].invoked);
    // Ends with the place that everything called later must stand behind.
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    let mut behind = 0;
    for index in by_call {
        let call = &calls[index];
        while let Some(first) = ended.first_entry()
            && *first.key() < call.invoked
        {
            behind = behind.max(first.remove());
        }
        let place = match (places.get(&index), &call.seen) {
            (Some(place), _) => {
                // It took effect as the place-th command, so it stands behind place - 1 others.
                if *place <= behind {
                    return fail(format!(
                        "{:?} called at {} was executed as number {place}, behind which stands \
                         {behind}, that had ended by then",
                        call.command, call.invoked
                    ));
                }
                *place
            }
            (None, Seen::Ok(reply)) if call.number.is_none() => {
                let wanted = Return::from(reply);
                let command = Call::from(&call.command);
                // The earliest state that gives this answer is the best choice for all that
                // comes later.
                let fits = (behind..states.len()).find(|at| states[*at].ask(&command) == wanted);
                let Some(at) = fits else {
                    return fail(format!(
                        "the fast read {:?}, called at {}, gave {reply:?}, which no state from \
                         number {behind} on holds",
                        call.command, call.invoked
                    ));
                };
                at
            }
            (None, Seen::Ok(reply)) => {
                return fail(format!("{:?} was never executed and gave {reply:?}", call.command));
            }
            (None, _) => continue,
        };
        if let (Some(end), Seen::Ok(_) | Seen::RefusedInOrder) = (call.ended, &call.seen) {
            ended.insert(end, place);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
