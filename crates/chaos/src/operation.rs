//! What clients did and saw, in the words of the service they used; a history is a list of these,
//! in files one JSON object per line.

use crate::{queue, registers};
use perdura_simulator::linearizability as store;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest text of a call, and of what it gave, in messages.
const SHOWN_CHARACTERS: usize = 400;

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Of the tuples that are used as registers.
    Register(registers::Call),
    /// Of the tuples that are used as a queue.
    Queue(queue::Call),
    /// Of the key-value store.
    #[serde(untagged)]
    Store(store::Call),
}

/// What a client got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// Of the tuples that are used as registers.
    Register(registers::Return),
    /// Of the tuples that are used as a queue.
    Queue(queue::Return),
    /// Of the key-value store.
    #[serde(untagged)]
    Store(store::Return),
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It happened.
    Ok(Return),
    /// It did not happen, for certain.
    Refused,
    /// It may have happened, or may still happen.
    Unknown,
}

/// One operation of one client; times in microseconds since the start of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Who; for the reader only.
    pub process: u64,
    /// When it was called.
    pub invoked: u64,
    /// When it returned; none if it never did, or its outcome is unknown.
    pub ended: Option<u64>,
    /// What was asked for.
    pub call: Call,
    /// How it ended.
    pub outcome: Outcome,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.ended.map_or_else(|| "..".to_owned(), |ended| ended.to_string());
        write!(f, "[{:>9} {ended:>9}] client {}: ", self.invoked, self.process)?;
        let short = |value: &dyn fmt::Debug| -> String {
            format!("{value:?}").chars().take(SHOWN_CHARACTERS).collect()
        };
        write!(f, "{} -> {}", short(&self.call), short(&self.outcome))
    }
}

/// One operation per line.
pub fn to_json_lines(operations: &[Operation]) -> String {
    let lines = operations.iter().filter_map(|one| serde_json::to_string(one).ok());
    lines.map(|line| line + "\n").collect()
}

/// The operations of [`to_json_lines`].
pub fn from_json_lines(text: &str) -> Result<Vec<Operation>, String> {
    let read = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))
    };
    (1..).zip(text.lines()).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_reads_as_it_was_written_and_that_of_a_store_as_the_simulator_writes_it() {
        let of =
            |call, outcome| Operation { process: 1, invoked: 2, ended: Some(3), call, outcome };
        let store_call = store::Call::Get { key: "k".to_owned() };
        let item = queue::Item { value: "v".to_owned(), number: Some(7) };
        let operations = vec![
            of(
                Call::Queue(queue::Call::In { wait_ms: 9 }),
                Outcome::Ok(Return::Queue(queue::Return::Found { item: Some(item) })),
            ),
            of(Call::Register(registers::Call::Rdp { key: 1, fast: true }), Outcome::Refused),
            of(Call::Store(store_call.clone()), Outcome::Ok(Return::Store(store::Return::Put))),
            of(Call::Store(store_call.clone()), Outcome::Unknown),
        ];
        let text = to_json_lines(&operations);
        assert_eq!(from_json_lines(&text).unwrap(), operations);
        let stored = store::History {
            operations: vec![store::Operation {
                process: 1,
                invoked: 2,
                ended: Some(3),
                call: store_call,
                outcome: store::Outcome::Ok(store::Return::Put),
            }],
        };
        assert_eq!(text.lines().nth(2), stored.to_json_lines().lines().next());
        assert!(from_json_lines("{}").unwrap_err().starts_with("line 1: "));
    }
}
