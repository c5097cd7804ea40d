//! What the clients of a partitioned store did and saw, for the judges.

use perdura_store::{OperationResult, StoreCommand, StoreReply};
use perdura_transactions::{Outcome, TransactionError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a client was told of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// What a command of one key gave.
    Reply(StoreReply),
    /// All of a transaction happened; what it read, if that is known.
    Committed(Option<Vec<OperationResult>>),
    /// Nothing happened, for this operation.
    Failed(usize),
    /// Nothing happened.
    Refused(String),
    /// Nobody can tell.
    Unknown(String),
}

impl Told {
    /// Of a transaction.
    pub fn of_transaction(result: &Result<Outcome, TransactionError>) -> Told {
        match result {
            Ok(Outcome::Committed { results }) => Told::Committed(results.clone()),
            Ok(Outcome::Failed { operation }) => Told::Failed(*operation),
            Err(TransactionError::ResultsGone) => Told::Committed(None),
            Err(error) => Told::of_error(error),
        }
    }

    /// Of a command of one key.
    pub fn of_command(result: &Result<StoreReply, TransactionError>) -> Told {
        match result {
            Ok(reply) => Told::Reply(reply.clone()),
            Err(error) => Told::of_error(error),
        }
    }

    fn of_error(error: &TransactionError) -> Told {
        let text = error.to_string();
        if error.is_refusal() { Told::Refused(text) } else { Told::Unknown(text) }
    }

    /// Whether the client knows what happened, or read something.
    pub fn is_known(&self) -> bool {
        matches!(self, Told::Reply(_) | Told::Committed(_) | Told::Failed(_))
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
