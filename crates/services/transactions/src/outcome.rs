//! What became of what was carried out, and what it found.

use crate::TransactionError;
use bytes::Bytes;
use perdura_store::{Entries, OperationResult, StoreCommand, StoreReply, TransactionResult};
use std::marker::PhantomData;

/// What became of a transaction, or of a command of one key, which has one operation. Where nobody can tell there is none
/// ([`TransactionError`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it happened.
    Committed(Results),
    /// All of it happened; what it read was told to nobody who is left.
    ResultsGone,
    /// Nothing happened, for this operation, perhaps not the only one: a comparison did not hold, a key was there that was to be inserted, or was not that was to be updated.
    Failed {
        /// Its index, from 0, in the order in which operations were added.
        operation: usize,
    },
}

impl Outcome {
    /// The operation for which nothing happened; none if it happened.
    #[must_use]
    pub fn failed(&self) -> Option<usize> {
        match self {
            Outcome::Committed(_) | Outcome::ResultsGone => None,
            Outcome::Failed { operation } => Some(*operation),
        }
    }

    /// By the reply of the group that carried out all of the command.
    pub(crate) fn of(
        command: &StoreCommand,
        reply: StoreReply,
    ) -> Result<Outcome, TransactionError> {
        let found = match (command, reply) {
            (StoreCommand::Get { .. }, StoreReply::Value(value)) => OperationResult::Value(value),
            (StoreCommand::Put { .. }, StoreReply::Put) => OperationResult::Written,
            (StoreCommand::Delete { .. }, StoreReply::Deleted { existed }) => {
                OperationResult::Deleted { existed }
            }
            (StoreCommand::Transaction(_), StoreReply::Transaction(result)) => {
                return Ok(result.into());
            }
            _ => return Err(TransactionError::UnexpectedReply),
        };
        Ok(Outcome::Committed(vec![found].into()))
    }

    /// What its only operation found.
    pub(crate) fn found_alone<T: Found>(&self) -> Result<T, TransactionError> {
        match self {
            Outcome::Committed(Results(results)) => match &results[..] {
                [found] => T::of(found).ok_or(TransactionError::UnexpectedReply),
                _ => Err(TransactionError::UnexpectedReply),
            },
            // Whoever votes for what only reads says what that is, and it fails for nothing.
            Outcome::ResultsGone | Outcome::Failed { .. } => Err(TransactionError::UnexpectedReply),
        }
    }
}

/// Of a transaction that one group carried out.
impl From<TransactionResult> for Outcome {
    fn from(result: TransactionResult) -> Outcome {
        match result.failed {
            Some(operation) => Outcome::Failed { operation: operation as usize },
            None => Outcome::Committed(result.results.into()),
        }
    }
}

/// The results of what committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Results(Vec<OperationResult>);

impl From<Vec<OperationResult>> for Results {
    fn from(all: Vec<OperationResult>) -> Results {
        Results(all)
    }
}

impl Results {
    /// What an operation found.
    ///
    /// # Panics
    /// When it was asked of another builder, and this one has no such result.
    #[must_use]
    pub fn get<T: Found>(&self, asked: Asked<T>) -> T {
        let found = self.0.get(asked.index).and_then(T::of);
        found.expect("an operation of this transaction")
    }

    /// Of all operations, in the order in which they were added.
    #[must_use]
    pub fn all(&self) -> &[OperationResult] {
        &self.0
    }
}

/// Where among the results of a [`crate::Builder`] what an operation found is. Of that builder only.
#[derive(Debug)]
pub struct Asked<T> {
    index: usize,
    found: PhantomData<fn() -> T>,
}

impl<T> Asked<T> {
    /// Of the operation with this index.
    pub(crate) fn at(index: usize) -> Asked<T> {
        Asked { index, found: PhantomData }
    }
}

impl<T> Clone for Asked<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Asked<T> {}

/// What an operation found.
pub trait Found: Sized {
    /// From its result; none if that is another operation's.
    fn of(result: &OperationResult) -> Option<Self>;
}

/// Of a write, which finds nothing.
impl Found for () {
    fn of(result: &OperationResult) -> Option<Self> {
        matches!(result, OperationResult::Written).then_some(())
    }
}

/// Of a read: the value, if the key was there.
impl Found for Option<Bytes> {
    fn of(result: &OperationResult) -> Option<Self> {
        match result {
            OperationResult::Value(value) => Some(value.clone()),
            _ => None,
        }
    }
}

/// Of a delete: whether the key was there.
impl Found for bool {
    fn of(result: &OperationResult) -> Option<Self> {
        match result {
            OperationResult::Deleted { existed } => Some(*existed),
            _ => None,
        }
    }
}

/// What a range read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Keys and values, in the order asked for.
    pub entries: Entries,
    /// Whether the range has more than these: the limit was reached, or that on the bytes of a reply.
    pub more: bool,
}

impl Found for Page {
    fn of(result: &OperationResult) -> Option<Self> {
        match result {
            OperationResult::Entries { entries, more } => {
                Some(Page { entries: entries.clone(), more: *more })
            }
            _ => None,
        }
    }
}
