//! Load of the accounts of a bank (`bank/mod.rs`): money is moved between two of them by comparing what was there when somebody
//! last looked, and everybody looks at all of them at once, whatever partitions they are in.

use super::Drawn;
use super::store::{drawn, keys};
use super::value::Values;
use crate::bank::{OPENED_WITH, balance};
use crate::history::OperationTarget;
use bytes::Bytes;
use perdura_adversary::Random;
use perdura_store::{Operation, StoreCommand, Transaction};

/// Most that is moved at once.
const MOST: u64 = 20;

/// A transaction on the accounts of a shard.
pub fn draw(place: &OperationTarget, values: &Values, random: &mut Random) -> Drawn {
    let keys = keys(place.shard);
    let known: Vec<usize> = (0..keys.len()).filter(|at| balance_at(place, *at).is_some()).collect();
    let opens = place.first || (known.is_empty() && random.percent(30));
    let operations = if opens {
        let value = value(OPENED_WITH, values);
        keys.iter()
            .map(|key| Operation::Insert { key: key.clone(), value: value.clone() })
            .collect()
    } else if known.len() >= 3 && random.percent(65) {
        moves(place, &keys, known, values, random)
    } else {
        let (fast, one) = (random.percent(50), random.percent(20));
        let look = match one {
            true => StoreCommand::Get { key: random.pick(&keys).clone() },
            false => transaction(looks(&keys, random)),
        };
        return drawn(place.shard, &look, fast);
    };
    drawn(place.shard, &transaction(operations), false)
}

fn transaction(operations: Vec<Operation>) -> StoreCommand {
    StoreCommand::Transaction(Transaction { operations })
}

/// A balance as nobody else writes it.
fn value(balance: i64, values: &Values) -> Bytes {
    Bytes::from(format!("{balance}b{}", values.number()))
}

fn balance_at(place: &OperationTarget, at: usize) -> Option<i64> {
    balance(place.seen.get(at)?.as_deref()?)
}

/// From one account to another one; now and then only if a third one is as it was, or with a look at it.
fn moves(
    place: &OperationTarget,
    keys: &[Bytes],
    mut known: Vec<usize>,
    values: &Values,
    random: &mut Random,
) -> Vec<Operation> {
    let mut next = || known.swap_remove(random.below(known.len() as u64) as usize);
    let [from, to, third] = [next(), next(), next()];
    let compare = |at: usize| {
        let value = place.seen[at].clone().map(Bytes::from);
        Operation::Cmp { key: keys[at].clone(), value }
    };
    let amount = random.between(1, MOST) as i64;
    let write = |at: usize, by: i64| {
        let after = balance_at(place, at).unwrap_or_default() + by;
        let (key, value) = (keys[at].clone(), value(after, values));
        Operation::Write { key, value, only_if_present: true }
    };
    let mut operations = vec![compare(from), compare(to)];
    match random.below(4) {
        0 => operations.push(compare(third)),
        1 => operations.push(Operation::Read { key: keys[third].clone() }),
        _ => {}
    }
    operations.extend([write(from, -amount), write(to, amount)]);
    operations
}

/// A look at all of them, as so many keys or as a range.
fn looks(keys: &[Bytes], random: &mut Random) -> Vec<Operation> {
    if random.percent(50) {
        return keys.iter().map(|key| Operation::Read { key: key.clone() }).collect();
    }
    let (start, last) = (keys[0].clone(), &keys[keys.len() - 1]);
    let end = Some(Bytes::from([last.as_ref(), b"/"].concat()));
    let reverse = random.percent(50);
    vec![Operation::ReadRange { start, end, limit: 2 * keys.len() as u32, reverse }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Call as Any, Operation as Done, Outcome, Return as AnyReturn};
    use crate::service::Workload;
    use perdura_oracle::{Call, Return, Step, StepReturn};
    use std::collections::BTreeMap;

    /// One bank that carries out one transaction after the other.
    fn carry_out(held: &mut BTreeMap<String, String>, steps: &[Step]) -> Return {
        let fails = |step: &Step| match step {
            Step::Cmp { key, value } => held.get(key) != value.as_ref(),
            Step::Insert { key, .. } => held.contains_key(key),
            _ => false,
        };
        if let Some(failed) = steps.iter().position(fails) {
            return Return::Failed(failed as u32);
        }
        let before = held.clone();
        let result = |step: &Step| match step {
            Step::Insert { key, value } | Step::Write { key, value, .. } => {
                held.insert(key.clone(), value.clone());
                StepReturn::Done
            }
            Step::Read { key } => StepReturn::Value(before.get(key).cloned()),
            Step::Range { reverse, .. } => {
                let mut entries: Vec<_> = before.clone().into_iter().collect();
                if *reverse {
                    entries.reverse();
                }
                StepReturn::Entries { entries, more: false }
            }
            _ => StepReturn::Done,
        };
        Return::Committed(steps.iter().map(result).collect())
    }

    #[test]
    fn money_is_moved_and_the_judge_accepts_it() {
        let (values, mut random) = (Values::default(), Random::new(5));
        let shard = (Workload::Bank, 3);
        let mut place =
            OperationTarget { shard, first: true, seen: vec![None; Workload::Bank.keys()] };
        let (mut held, mut operations) = (BTreeMap::new(), Vec::new());
        let (mut moved, mut failed) = (0, 0);
        for number in 0..300_u64 {
            let drawn = draw(&place, &values, &mut random);
            place.first = false;
            let (steps, result) = match &drawn.call {
                Any::Store(Call::Transaction { steps }) => {
                    (steps.clone(), carry_out(&mut held, steps))
                }
                Any::Store(Call::Get { key }) => {
                    (Vec::new(), Return::Value(held.get(key).cloned()))
                }
                other => panic!("{other:?}"),
            };
            match &result {
                Return::Failed(_) => failed += 1,
                _ => {
                    moved +=
                        usize::from(steps.iter().any(|step| matches!(step, Step::Write { .. })));
                }
            }
            // Not all that happens is noticed by all.
            if number % 5 != 4 {
                for (key, value) in
                    super::super::store::what_was_seen(shard.0, &drawn.call, &result)
                {
                    place.seen[key] = value;
                }
            }
            let (process, invoked, ended) = (0, 10 * number, Some(10 * number + 5));
            let (call, outcome) = (drawn.call, Outcome::Ok(AnyReturn::Store(result)));
            operations.push(Done { process, invoked, ended, call, outcome });
        }
        assert!(moved > 50 && failed > 5, "{moved} {failed}");
        crate::bank::check(&operations).unwrap();
    }
}
