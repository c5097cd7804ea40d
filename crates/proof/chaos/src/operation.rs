//! What clients did and saw, in the words of the service they used; a history is a list of these,
//! in files one JSON object per line.

use crate::{queue, registers};
use perdura_oracle as store;
use serde::{Deserialize, Serialize};

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
pub type Outcome = store::Outcome<Return>;

/// One operation of one client; times in microseconds since the start of the run.
pub type Operation = store::Operation<Call, Return>;

/// Operations of a shard.
pub type History = store::History<Call, Return>;

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
        let history = History { operations };
        let text = history.to_json_lines();
        assert_eq!(History::from_json_lines(&text).unwrap(), history);
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
        assert!(History::from_json_lines("{}").unwrap_err().starts_with("line 1 "));
    }
}
