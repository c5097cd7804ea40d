//! What clients did and saw. Keys and values are text; times are any numbers that order calls and
//! returns, with a return before a call only if it truly was.
//!
//! Operations, outcomes and histories are those of the key-value store, unless others are named.

use perdura_store as store;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Call {
    /// Reads a key.
    Get {
        /// The key.
        key: String,
    },
    /// Writes a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Several steps at once, comparisons first (the store's transaction).
    Transaction {
        /// The steps.
        steps: Vec<Step>,
    },
}

/// A step of a transaction; as [`store::Operation`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Fails the transaction unless the key has this value (null: is absent).
    Cmp {
        /// The key.
        key: String,
        /// The value.
        value: Option<String>,
    },
    /// Reads a key.
    Read {
        /// The key.
        key: String,
    },
    /// Reads entries from `start` up to before `end`.
    Range {
        /// First key.
        start: String,
        /// Key after the last.
        end: Option<String>,
        /// Most entries.
        limit: u32,
        /// From the last to the first.
        reverse: bool,
    },
    /// Writes an absent key.
    Insert {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// Writes a key.
    Write {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Fails the transaction if it is absent.
        only_if_present: bool,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// What a client got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// A put is done.
    Put,
    /// A get found this.
    Value(Option<String>),
    /// A delete is done; whether the key was there.
    Deleted(bool),
    /// A transaction took effect, with a result per step.
    Committed(Vec<StepReturn>),
    /// A transaction did not take effect, because of this step.
    Failed(u32),
}

/// The result of a step of a committed transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepReturn {
    /// Compared, inserted or written.
    Done,
    /// A read found this.
    Value(Option<String>),
    /// A range read found these.
    Entries {
        /// In the order asked for.
        entries: Vec<(String, String)>,
        /// Whether there are more.
        more: bool,
    },
    /// A delete is done; whether the key was there.
    Deleted(bool),
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<R = Return> {
    /// It happened.
    Ok(R),
    /// It did not happen, for certain.
    Refused,
    /// It may have happened, or may still happen.
    Unknown,
}

/// One operation of one client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation<C = Call, R = Return> {
    /// Who; for the reader only.
    pub process: u64,
    /// When it was called.
    pub invoked: u64,
    /// When it returned; none if it never did.
    pub ended: Option<u64>,
    /// What was asked for.
    pub call: C,
    /// How it ended.
    pub outcome: Outcome<R>,
}

/// Operations in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History<C = Call, R = Return> {
    /// The operations.
    pub operations: Vec<Operation<C, R>>,
}

impl<C, R> Default for History<C, R> {
    fn default() -> Self {
        History { operations: Vec::new() }
    }
}

/// Bytes as text: themselves where they are UTF-8, else in hexadecimal.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("hex:{}", perdura_protocol::ids::to_hex(bytes)),
    }
}

impl<C: DeserializeOwned, R: DeserializeOwned> History<C, R> {
    /// Reads one operation per line.
    ///
    /// # Errors
    /// Names the first line that is not one.
    pub fn from_json_lines(lines: &str) -> Result<Self, String> {
        let mut history = History::default();
        for (number, line) in (1..).zip(lines.lines()) {
            if !line.trim().is_empty() {
                let operation = serde_json::from_str(line)
                    .map_err(|error| format!("line {number} is not an operation: {error}"))?;
                history.operations.push(operation);
            }
        }
        Ok(history)
    }
}

impl<C: Serialize, R: Serialize> History<C, R> {
    /// Writes one operation per line.
    #[must_use]
    pub fn to_json_lines(&self) -> String {
        let lines = self.operations.iter().filter_map(|one| serde_json::to_string(one).ok());
        lines.map(|line| line + "\n").collect()
    }
}

impl From<&store::StoreCommand> for Call {
    fn from(command: &store::StoreCommand) -> Call {
        match command {
            store::StoreCommand::Get { key } => Call::Get { key: text(key) },
            store::StoreCommand::Put { key, value } => {
                Call::Put { key: text(key), value: text(value) }
            }
            store::StoreCommand::Delete { key } => Call::Delete { key: text(key) },
            store::StoreCommand::Transaction(transaction) => {
                Call::Transaction { steps: transaction.operations.iter().map(Step::from).collect() }
            }
        }
    }
}

impl From<&store::Operation> for Step {
    fn from(operation: &store::Operation) -> Step {
        match operation {
            store::Operation::Cmp { key, value } => {
                Step::Cmp { key: text(key), value: value.as_ref().map(|value| text(value)) }
            }
            store::Operation::Read { key } => Step::Read { key: text(key) },
            store::Operation::ReadRange { start, end, limit, reverse } => Step::Range {
                start: text(start),
                end: end.as_ref().map(|end| text(end)),
                limit: *limit,
                reverse: *reverse,
            },
            store::Operation::Insert { key, value } => {
                Step::Insert { key: text(key), value: text(value) }
            }
            store::Operation::Write { key, value, only_if_present } => Step::Write {
                key: text(key),
                value: text(value),
                only_if_present: *only_if_present,
            },
            store::Operation::Delete { key } => Step::Delete { key: text(key) },
        }
    }
}

impl From<&store::StoreReply> for Return {
    fn from(reply: &store::StoreReply) -> Return {
        match reply {
            store::StoreReply::Put => Return::Put,
            store::StoreReply::Value(value) => {
                Return::Value(value.as_ref().map(|value| text(value)))
            }
            store::StoreReply::Deleted { existed } => Return::Deleted(*existed),
            store::StoreReply::Transaction(result) => match result.failed {
                Some(step) => Return::Failed(step),
                None => Return::Committed(result.results.iter().map(StepReturn::from).collect()),
            },
        }
    }
}

impl From<&store::OperationResult> for StepReturn {
    fn from(result: &store::OperationResult) -> StepReturn {
        match result {
            store::OperationResult::Compared | store::OperationResult::Written => StepReturn::Done,
            store::OperationResult::Value(value) => {
                StepReturn::Value(value.as_ref().map(|value| text(value)))
            }
            store::OperationResult::Entries { entries, more } => StepReturn::Entries {
                entries: entries.iter().map(|(key, value)| (text(&key), text(&value))).collect(),
                more: *more,
            },
            store::OperationResult::Deleted { existed } => StepReturn::Deleted(*existed),
        }
    }
}

impl<C: fmt::Debug, R: fmt::Debug> fmt::Display for Operation<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.ended.map_or_else(|| "..".to_owned(), |ended| ended.to_string());
        write!(f, "[{:>7} {:>7}] client {}: ", self.invoked, ended, self.process)?;
        let short = |value: &dyn fmt::Debug| {
            let mut text = format!("{value:?}");
            if text.len() > 400 {
                text.truncate(text.floor_char_boundary(400));
                text.push_str("..");
            }
            text
        };
        write!(f, "{} -> {}", short(&self.call), short(&self.outcome))
    }
}
