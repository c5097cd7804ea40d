//! Guards linearizability of everything at once, transactions over several keys included, with the
//! order of execution as the witness: what clients saw must be what the commands gave in that
//! order, and that order must respect real time. Linear in the length of the history; the search
//! in [`perdura_oracle`] judges the same history without being told an order.

use super::real_time::{self, Span};
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_oracle::{Call, Return};
use perdura_protocol::{Decode, SessionId};
use perdura_store::{StoreCommand, StoreReply};
use std::collections::BTreeMap;

mod model;
pub use model::Model;

const RULE: &str = "Linearizability (commit order)";

/// How a call ended, as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen<R> {
    /// With this reply.
    Ok(R),
    /// Certain not to have happened (never sent).
    NotSent,
    /// Ordered, and refused by the service.
    RefusedInOrder,
    /// Unknown.
    Unknown,
}

impl<R> Seen<R> {
    /// With the reply as `read` reads it; what it does not read counts as refused.
    pub fn read<T>(&self, read: impl FnOnce(&R) -> Option<T>) -> Seen<T> {
        match self {
            Seen::Ok(reply) => read(reply).map_or(Seen::RefusedInOrder, Seen::Ok),
            Seen::NotSent => Seen::NotSent,
            Seen::RefusedInOrder => Seen::RefusedInOrder,
            Seen::Unknown => Seen::Unknown,
        }
    }
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
    pub seen: Seen<StoreReply>,
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
            if matches!(execution.reply, Some(Err(_))) {
                states.push(model.clone()); // A hostile client's, which the store refused.
                continue;
            }
            return fail(format!("{execution:?} is no command of the store"));
        };
        let expected = model.run(&Call::from(&command));
        states.push(model.clone());
        let replied = match &execution.reply {
            Some(Ok(bytes)) => StoreReply::from_bytes(bytes.clone()).ok(),
            Some(Err(_)) | None => None,
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
    in_real_time(&states, &places, calls)
}

/// Each call must stand behind everything that had ended when it was made.
fn in_real_time(states: &[Model], places: &BTreeMap<usize, usize>, calls: &[Told]) -> Check {
    let fail = |what: String| Broken::new(RULE, what);
    let spans: Vec<Span> = calls
        .iter()
        .enumerate()
        .map(|(index, call)| Span {
            invoked: call.invoked,
            ended: call.ended.filter(|_| matches!(call.seen, Seen::Ok(_) | Seen::RefusedInOrder)),
            places: places.get(&index).map(|place| (*place, *place)),
        })
        .collect();
    let choose = |index: usize, behind: usize| {
        let call = &calls[index];
        let Seen::Ok(reply) = &call.seen else { return Ok(None) };
        if call.number.is_some() {
            let what = format!("{:?} was never executed and gave {reply:?}", call.command);
            return Err(fail(what));
        }
        let wanted = Return::from(reply);
        let command = Call::from(&call.command);
        // The earliest state that gives this answer is the best choice for all that comes later.
        let fits = (behind..states.len()).find(|at| states[*at].ask(&command) == wanted);
        fits.map(Some).ok_or_else(|| {
            fail(format!(
                "the fast read {:?}, called at {}, gave {reply:?}, which no state from number \
                 {behind} on holds",
                call.command, call.invoked
            ))
        })
    };
    real_time::check(&spans, choose, |index, (place, behind)| {
        let call = &calls[index];
        fail(format!(
            "{:?} called at {} was executed as number {place}, behind which stands {behind}, that \
             had ended by then",
            call.command, call.invoked
        ))
    })
}

#[cfg(test)]
mod tests;
