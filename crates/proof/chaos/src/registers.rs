//! Tuples as registers: for each key of a shard there is at most one tuple, with a value in its last
//! field. What is done with it is then what is done with a key of a store, and is judged as that.

use crate::operation::{Call as Any, Operation, Outcome, Return as AnyReturn};
use perdura_oracle as store;
use serde::{Deserialize, Serialize};
use store::{Step, StepReturn};

/// What a client asked of the tuples of a shard; keys are numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Call {
    /// Inserts the tuple of a key that has none.
    Out {
        /// The key.
        key: usize,
        /// The value.
        value: String,
    },
    /// Inserts the tuple of a key unless there is one.
    Cas {
        /// The key.
        key: usize,
        /// The value.
        value: String,
    },
    /// Puts another tuple in the place of a key's.
    Replace {
        /// The key.
        key: usize,
        /// Only if it has this value.
        old: Option<String>,
        /// The value.
        value: String,
    },
    /// Reads the tuple of a key.
    Rdp {
        /// The key.
        key: usize,
        /// Whether it need not be ordered.
        fast: bool,
    },
    /// Takes the tuple of a key.
    Inp {
        /// The key.
        key: usize,
        /// Only if it has this value.
        old: Option<String>,
    },
    /// Reads the tuples of all keys.
    RdAll {
        /// Whether it need not be ordered.
        fast: bool,
    },
}

/// What a client got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// The tuple was inserted.
    Inserted,
    /// The tuple of the key that was read, or taken, or that was in the way.
    Found {
        /// Its value, if there was one.
        value: Option<String>,
    },
    /// The tuple that was there is replaced.
    Replaced {
        /// The value that it had.
        old: String,
    },
    /// All tuples, oldest first.
    FoundAll {
        /// Keys and values.
        tuples: Vec<(usize, String)>,
        /// Whether there are more.
        more: bool,
    },
}

fn name(key: usize) -> String {
    format!("key {key}")
}

fn read(key: usize) -> Step {
    Step::Read { key: name(key) }
}

fn compare(key: usize, value: &str) -> Step {
    Step::Cmp { key: name(key), value: Some(value.to_owned()) }
}

fn write(key: usize, value: &str) -> Step {
    Step::Write { key: name(key), value: value.to_owned(), only_if_present: true }
}

fn insert(key: usize, value: &str) -> Step {
    Step::Insert { key: name(key), value: value.to_owned() }
}

fn delete(key: usize) -> Step {
    Step::Delete { key: name(key) }
}

/// What would do the same in a store whose keys are `keys`, if it happened.
fn effect(call: &Call, keys: usize) -> Vec<Step> {
    match call {
        Call::Out { key, value } | Call::Cas { key, value } => vec![insert(*key, value)],
        Call::Replace { key, old: Some(old), value } => {
            vec![compare(*key, old), write(*key, value)]
        }
        Call::Replace { key, old: None, value } => vec![write(*key, value)],
        Call::Rdp { key, .. } => vec![read(*key)],
        Call::Inp { key, old: Some(old) } => vec![compare(*key, old), delete(*key)],
        Call::Inp { key, old: None } => vec![delete(*key)],
        Call::RdAll { .. } => (0..keys).map(read).collect(),
    }
}

/// What was done, as steps with their results, or the step that failed.
type Done = (Vec<Step>, Result<Vec<StepReturn>, u32>);

/// What it did, by its answer; none if that fits no question of its kind.
fn done(call: &Call, answer: &Return, keys: usize) -> Option<Done> {
    let effect = || effect(call, keys);
    let found = |key: usize, value: Option<String>| {
        Some((vec![read(key)], Ok(vec![StepReturn::Value(value)])))
    };
    let deleted = || vec![StepReturn::Done, StepReturn::Deleted(true)];
    match (call, answer) {
        (Call::Out { .. } | Call::Cas { .. }, Return::Inserted) => {
            Some((effect(), Ok(vec![StepReturn::Done])))
        }
        // What is in the way is read.
        (Call::Cas { key, .. }, Return::Found { value: value @ Some(_) })
        | (Call::Rdp { key, .. }, Return::Found { value }) => found(*key, value.clone()),
        (Call::Replace { key, old, value }, Return::Replaced { old: found })
            if old.as_ref().is_none_or(|old| old == found) =>
        {
            let steps = vec![compare(*key, found), write(*key, value)];
            Some((steps, Ok(vec![StepReturn::Done, StepReturn::Done])))
        }
        (Call::Inp { key, old }, Return::Found { value: Some(value) })
            if old.as_ref().is_none_or(|old| old == value) =>
        {
            Some((vec![compare(*key, value), delete(*key)], Ok(deleted())))
        }
        // Nothing matched: the key had another value, or none.
        (
            Call::Replace { old: Some(_), .. } | Call::Inp { old: Some(_), .. },
            Return::Found { value: None },
        ) => Some((effect(), Err(0))),
        (
            Call::Replace { key, old: None, .. } | Call::Inp { key, old: None },
            Return::Found { value: None },
        ) => found(*key, None),
        (Call::RdAll { .. }, Return::FoundAll { tuples, more: false }) => {
            let of = |key: usize| tuples.iter().filter(move |tuple| tuple.0 == key);
            let once = (0..keys).all(|key| of(key).count() <= 1);
            let known = tuples.iter().all(|(key, _)| *key < keys);
            let value = |key: usize| StepReturn::Value(of(key).next().map(|tuple| tuple.1.clone()));
            (once && known).then(|| (effect(), Ok((0..keys).map(value).collect())))
        }
        _ => None,
    }
}

/// The history of the store in which the same was done.
pub fn as_store(operations: &[Operation], keys: usize) -> Result<store::History, String> {
    let translated = operations.iter().map(|operation| {
        let Any::Register(call) = &operation.call else {
            return Err(format!("this is no operation of a register: {operation}"));
        };
        let (steps, outcome) = match &operation.outcome {
            Outcome::Refused => (effect(call, keys), store::Outcome::Refused),
            Outcome::Unknown => (effect(call, keys), store::Outcome::Unknown),
            Outcome::Ok(AnyReturn::Register(answer)) => {
                let (steps, result) = done(call, answer, keys)
                    .ok_or_else(|| format!("the answer fits no register: {operation}"))?;
                let result = match result {
                    Ok(results) => store::Return::Committed(results),
                    Err(step) => store::Return::Failed(step),
                };
                (steps, store::Outcome::Ok(result))
            }
            Outcome::Ok(_) => return Err(format!("this is no answer of a register: {operation}")),
        };
        Ok(store::Operation {
            process: operation.process,
            invoked: operation.invoked,
            ended: operation.ended,
            call: store::Call::Transaction { steps },
            outcome,
        })
    });
    Ok(store::History { operations: translated.collect::<Result<_, String>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{DEFAULT_BUDGET, Verdict, check};

    fn text(value: &str) -> String {
        value.to_owned()
    }

    fn found(value: &str) -> Option<Return> {
        let value = (!value.is_empty()).then(|| text(value));
        Some(Return::Found { value })
    }

    /// One operation after the other, over two keys; no answer: its outcome is unknown.
    fn verdict(done: Vec<(Call, Option<Return>)>) -> Result<(), String> {
        let operation = |(at, (call, answer)): (u64, (Call, Option<Return>))| Operation {
            process: 0,
            invoked: 10 * at,
            ended: answer.is_some().then_some(10 * at + 5),
            call: Any::Register(call),
            outcome: answer
                .map_or(Outcome::Unknown, |answer| Outcome::Ok(AnyReturn::Register(answer))),
        };
        let operations: Vec<Operation> = (0..).zip(done).map(operation).collect();
        match check(&as_store(&operations, 2)?, DEFAULT_BUDGET) {
            Verdict::Linearizable => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn out(value: &str) -> (Call, Option<Return>) {
        (Call::Out { key: 0, value: text(value) }, Some(Return::Inserted))
    }

    fn rdp(value: &str) -> (Call, Option<Return>) {
        (Call::Rdp { key: 0, fast: false }, found(value))
    }

    fn replace(old: Option<&str>, value: &str) -> Call {
        Call::Replace { key: 0, old: old.map(text), value: text(value) }
    }

    fn inp(old: Option<&str>) -> Call {
        Call::Inp { key: 0, old: old.map(text) }
    }

    fn all(tuples: &[(usize, &str)]) -> (Call, Option<Return>) {
        let tuples = tuples.iter().map(|(key, value)| (*key, text(value))).collect();
        (Call::RdAll { fast: true }, Some(Return::FoundAll { tuples, more: false }))
    }

    #[test]
    fn what_one_tuple_for_each_key_does_is_accepted() {
        let cas = |value| Call::Cas { key: 0, value: text(value) };
        let replaced = |old| Some(Return::Replaced { old: text(old) });
        verdict(vec![
            rdp(""),
            (replace(None, "z"), found("")),
            (inp(Some("z")), found("")),
            out("a"),
            (cas("b"), found("a")),
            (replace(Some("c"), "d"), found("")),
            (replace(Some("a"), "e"), replaced("a")),
            (replace(None, "f"), replaced("e")),
            all(&[(0, "f")]),
            (inp(Some("e")), found("")),
            (inp(Some("f")), found("f")),
            (inp(None), found("")),
            (cas("g"), Some(Return::Inserted)),
            (Call::Cas { key: 1, value: text("h") }, Some(Return::Inserted)),
            all(&[(0, "g"), (1, "h")]),
            (inp(None), None),
            (inp(None), None),
            rdp("g"),
            rdp(""),
            all(&[(1, "h")]),
        ])
        .unwrap();
    }

    #[test]
    fn what_it_does_not_do_is_found() {
        let wrong = [
            // A value that was replaced, or taken, is seen again.
            vec![
                out("a"),
                (replace(None, "b"), Some(Return::Replaced { old: text("a") })),
                rdp("a"),
            ],
            vec![out("a"), (inp(None), found("a")), rdp("a")],
            vec![out("a"), (inp(None), found("a")), (inp(None), found("a"))],
            // One that is there is not.
            vec![out("a"), rdp("")],
            vec![out("a"), (replace(Some("a"), "b"), found(""))],
            vec![out("a"), (inp(Some("a")), found(""))],
            vec![out("a"), all(&[])],
            vec![out("a"), (Call::Cas { key: 0, value: text("b") }, Some(Return::Inserted))],
            // A comparison that does not hold, held.
            vec![out("a"), (replace(Some("b"), "c"), Some(Return::Replaced { old: text("b") }))],
            // Two tuples of one key, a key of another shard, a tuple that was not asked for.
            vec![out("a"), all(&[(0, "a"), (0, "a")])],
            vec![out("a"), all(&[(0, "a"), (7, "a")])],
            vec![out("a"), (inp(Some("b")), found("a"))],
            vec![out("a"), (replace(Some("b"), "c"), Some(Return::Replaced { old: text("a") }))],
            // No order of two that are unknown explains it.
            vec![out("a"), (inp(None), None), (replace(None, "b"), None), rdp(""), rdp("b")],
        ];
        for history in wrong {
            assert!(verdict(history.clone()).is_err(), "{history:?}");
        }
    }
}
