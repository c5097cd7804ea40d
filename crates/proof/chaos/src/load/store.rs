//! Load of the key-value store: operations on one key, and transactions over three; and what is said of all of its workloads.

use super::value::{Values, long, short};
use super::{Answer, Drawn, Way};
use crate::history::{OperationTarget, ShardId};
use crate::operation::{Call, Return};
use crate::service::Workload;
use anyhow::Result;
use bytes::Bytes;
use perdura_adversary::Random;
use perdura_oracle as seen_as;
use perdura_protocol::{Decode, Encode};
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply, Transaction};
use seen_as::{Step, StepReturn};

/// Keys of a shard.
pub(super) fn keys((workload, shard): ShardId) -> Vec<Bytes> {
    let prefix = workload.prefix(shard);
    (0..workload.keys()).map(|key| Bytes::from(format!("{prefix}.{key}"))).collect()
}

pub(super) fn drawn(shard: ShardId, command: &StoreCommand, fast: bool) -> Drawn {
    Drawn {
        shard,
        call: Call::Store(seen_as::Call::from(command)),
        content: lengthened(command).to_bytes(),
        way: if fast { Way::Fast } else { Way::Ordered },
    }
}

/// The same command with values as the store gets them.
fn lengthened(command: &StoreCommand) -> StoreCommand {
    let full = |value: &Bytes| long(&String::from_utf8_lossy(value));
    match command.clone() {
        StoreCommand::Put { key, value } => StoreCommand::Put { key, value: full(&value) },
        StoreCommand::Transaction(mut transaction) => {
            for operation in &mut transaction.operations {
                match operation {
                    Operation::Insert { value, .. } | Operation::Write { value, .. } => {
                        *value = full(value);
                    }
                    Operation::Cmp { value: Some(value), .. } => *value = full(value),
                    _ => {}
                }
            }
            StoreCommand::Transaction(transaction)
        }
        other => other,
    }
}

fn short_return(mut reply: StoreReply) -> seen_as::Return {
    let shorten = |value: &mut Option<Bytes>| {
        *value = value.as_ref().map(|value| Bytes::from(short(value)));
    };
    match &mut reply {
        StoreReply::Value(value) => shorten(value),
        StoreReply::Transaction(result) => {
            for result in &mut result.results {
                match result {
                    OperationResult::Value(value) => shorten(value),
                    OperationResult::Entries { entries, .. } => {
                        let shortened =
                            |(key, value): (Bytes, Bytes)| (key, Bytes::from(short(&value)));
                        *entries = entries.iter().map(shortened).collect();
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    seen_as::Return::from(&reply)
}

/// An operation of one of the store's workloads.
pub fn draw(place: &OperationTarget, values: &Values, random: &mut Random) -> Drawn {
    let keys = keys(place.shard);
    match place.shard.0 {
        Workload::Register => draw_register(place.shard, &keys[0], values, random),
        Workload::Bank => super::bank::draw(place, values, random),
        _ => draw_transaction(place, &keys, values, random),
    }
}

fn draw_register(shard: ShardId, key: &Bytes, values: &Values, random: &mut Random) -> Drawn {
    let key = key.clone();
    let (command, fast) = match random.below(20) {
        0..=7 => (StoreCommand::Put { key, value: values.draw(random).into() }, false),
        8..=12 => (StoreCommand::Get { key }, false),
        13..=17 => (StoreCommand::Get { key }, true),
        _ => (StoreCommand::Delete { key }, false),
    };
    drawn(shard, &command, fast)
}

fn draw_transaction(
    place: &OperationTarget,
    keys: &[Bytes],
    values: &Values,
    random: &mut Random,
) -> Drawn {
    let at = random.below(keys.len() as u64) as usize;
    let other = (at + 1) % keys.len();
    let (key, next) = (keys[at].clone(), keys[other].clone());
    let expected = place.seen.get(at).cloned().flatten().map(Bytes::from);
    let value = Bytes::from(values.draw(random));
    let mut fast = false;
    let operations = match random.below(22) {
        // Of one key, which meets the locks of the others where there are some.
        20 => return drawn(place.shard, &StoreCommand::Put { key, value }, false),
        21 => return drawn(place.shard, &StoreCommand::Get { key }, random.percent(50)),
        // Compare and set, by what was last seen.
        0..=5 => vec![
            Operation::Cmp { key: key.clone(), value: expected },
            Operation::Write { key, value, only_if_present: false },
        ],
        // Reads one, writes two.
        6..=10 => vec![
            Operation::Read { key: key.clone() },
            Operation::Write { key, value: value.clone(), only_if_present: false },
            Operation::Write { key: next, value, only_if_present: false },
        ],
        11..=12 => vec![Operation::Insert { key, value }, Operation::Read { key: next }],
        13 => vec![
            Operation::Write { key, value, only_if_present: true },
            Operation::Delete { key: next },
        ],
        // Reads all, as three keys or as a range; ordered or not.
        drawn => {
            fast = drawn >= 17;
            let range = Operation::ReadRange {
                start: keys[0].clone(),
                end: Some(Bytes::from([keys[keys.len() - 1].as_ref(), b"/"].concat())),
                limit: 10,
                reverse: random.percent(50),
            };
            match random.percent(50) {
                true => vec![range],
                false => keys.iter().map(|key| Operation::Read { key: key.clone() }).collect(),
            }
        }
    };
    drawn(place.shard, &StoreCommand::Transaction(Transaction { operations }), fast)
}

/// Reads all keys of a shard at once, ordered.
pub fn read_all(shard: ShardId) -> Drawn {
    let operations = keys(shard).into_iter().map(|key| Operation::Read { key });
    let transaction = Transaction { operations: operations.collect() };
    drawn(shard, &StoreCommand::Transaction(transaction), false)
}

/// What the answer says.
pub fn understand(workload: Workload, call: &Call, reply: Bytes) -> Result<Answer> {
    let result = short_return(StoreReply::from_bytes(reply)?);
    let seen = what_was_seen(workload, call, &result);
    Ok(Answer { result: Return::Store(result), seen })
}

/// What keys of the shard held after a transaction that took effect, as far as it tells.
pub(super) fn what_was_seen(
    workload: Workload,
    call: &Call,
    result: &seen_as::Return,
) -> Vec<(usize, Option<String>)> {
    let (
        Workload::Transactions | Workload::Bank,
        Call::Store(seen_as::Call::Transaction { steps }),
    ) = (workload, call)
    else {
        return Vec::new();
    };
    let seen_as::Return::Committed(results) = result else { return Vec::new() };
    let number = |key: &str| key.rsplit('.').next().and_then(|number| number.parse().ok());
    let mut seen = Vec::new();
    for (step, result) in steps.iter().zip(results) {
        let found = match (step, result) {
            (Step::Read { key }, StepReturn::Value(value)) => (number(key), value.clone()),
            (Step::Insert { key, value } | Step::Write { key, value, .. }, _) => {
                (number(key), Some(value.clone()))
            }
            (Step::Delete { key }, _) => (number(key), None),
            (Step::Range { .. }, StepReturn::Entries { entries, .. })
                if workload == Workload::Bank =>
            {
                seen.extend(
                    entries
                        .iter()
                        .filter_map(|(key, value)| Some((number(key)?, Some(value.clone())))),
                );
                continue;
            }
            _ => continue,
        };
        if let (Some(key), value) = found {
            seen.push((key, value));
        }
    }
    seen
}
