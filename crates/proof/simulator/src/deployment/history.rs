//! What the clients of a partitioned store did and saw, for the judges.

use perdura_store::StoreCommand;
use perdura_transactions::{Outcome, TransactionError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a client was told of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// What became of it.
    Over(Outcome),
    /// Nothing happened.
    Refused(String),
    /// Nobody can tell.
    Unknown(String),
}

impl Told {
    pub fn of(result: &Result<Outcome, TransactionError>) -> Told {
        match result {
            Ok(outcome) => Told::Over(outcome.clone()),
            Err(error) if error.is_refusal() => Told::Refused(error.to_string()),
            Err(error) => Told::Unknown(error.to_string()),
        }
    }

    /// Whether the client knows what happened, or read something.
    pub fn is_known(&self) -> bool {
        matches!(self, Told::Over(_))
    }
}

/// Something that a client wanted done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    pub process: usize,
    pub asked: StoreCommand,
    /// Whether it reads all the money that there is.
    pub looks: bool,
    /// Moments of the run.
    pub invoked: u64,
    pub ended: Option<u64>,
    /// Times of it, milliseconds.
    pub invoked_ms: u64,
    pub ended_ms: Option<u64>,
    /// Nothing if its process died before.
    pub told: Option<Told>,
    /// The calls that were made for it: partition, and record there.
    pub calls: Vec<(usize, usize)>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct History {
    moment: u64,
    pub operations: Vec<Operation>,
}

pub(crate) type SharedHistory = Arc<Mutex<History>>;

pub(crate) fn open(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A client begins something; its number.
    pub fn begins(
        &mut self,
        process: usize,
        asked: StoreCommand,
        looks: bool,
        invoked_ms: u64,
    ) -> usize {
        self.operations.push(Operation {
            process,
            asked,
            looks,
            invoked: self.moment + 1,
            ended: None,
            invoked_ms,
            ended_ms: None,
            told: None,
            calls: Vec::new(),
        });
        self.moment += 1;
        self.operations.len() - 1
    }

    /// It ended so.
    pub fn ends(&mut self, operation: usize, told: Told, ended_ms: u64) {
        let moment = self.moment();
        let operation = &mut self.operations[operation];
        (operation.ended, operation.ended_ms) = (Some(moment), Some(ended_ms));
        operation.told = Some(told);
    }
}
