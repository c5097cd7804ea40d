//! Guards strict serializability of transactions over many accounts, by what clients saw alone: there is one order of all that
//! happened, which explains what each of them read and puts what had ended before what began later (Papadimitriou, JACM 1979).
//!
//! What is moved is moved by comparing what was there and writing something that nobody else writes. So each committed write names the one
//! that it took the place of, and all versions of an account are in one row, whatever clients were not told (Kingsbury and Alvaro, "Elle",
//! VLDB 2020, section 3: traceable and recoverable versions). It looks for what no such order has:
//! - a value that nobody wrote, or that somebody wrote of whom it is certain that nothing happened ([`versions`]);
//! - two that took the place of one value, or one of no known value: an update was lost, or what was acknowledged is gone ([`versions`]);
//! - a comparison that failed although what was compared was there all the time ([`versions`]);
//! - a look at all accounts that does not find all the money;
//! - a cycle among who has to come before whom ([`graph`]): long forks, half of a transaction, stale reads.
//!
//! A transaction of unknown outcome has happened if somebody saw anything of it; then all of it has to be there.

mod graph;
mod versions;

#[cfg(test)]
mod tests;

use crate::operation::{Call, Operation, Outcome, Return};
use crate::service::Workload;
use perdura_oracle as store;
use std::collections::BTreeMap;
use store::{Step, StepReturn};
use versions::Versions;

/// What is in each account at first.
pub const OPENED_WITH: i64 = 100;

/// What an account holds: how much, and who put it there. Nobody else writes the same.
pub fn balance(value: &str) -> Option<i64> {
    value.split_once('b')?.0.parse().ok()
}

/// Whether these are the entries of all accounts of so many banks at most, each of which was opened whole or not at all.
pub fn adds_up(held: &[(String, String)], banks: usize) -> Result<(), String> {
    let each = Workload::Bank.keys();
    let mut sum = 0;
    for (account, value) in held {
        sum += balance(value).ok_or_else(|| format!("{account} holds {value}"))?;
    }
    let all = held.len() as i64 * OPENED_WITH;
    if !held.len().is_multiple_of(each) || held.len() > banks * each {
        return Err(format!("{} accounts of {banks} banks of {each} are there", held.len()));
    }
    if sum != all {
        return Err(format!("{sum} of {all} is there"));
    }
    Ok(())
}

/// What became of a transaction, as far as its client was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Committed,
    /// Nothing happened, for certain.
    Nothing,
    Unknown,
}

/// A transaction: what it saw of accounts if it happened, and what it writes.
#[derive(Clone, Debug)]
struct Transaction<'a> {
    invoked: u64,
    ended: Option<u64>,
    told: Told,
    // By account; nothing: it was not open.
    saw: BTreeMap<&'a str, Option<&'a str>>,
    wrote: BTreeMap<&'a str, &'a str>,
    // What it failed for: an account that held something else than this.
    failed: Option<(&'a str, Option<&'a str>)>,
}

/// What a step compares, if that is what can fail it.
fn compared(step: Option<&Step>) -> Option<(&str, Option<&str>)> {
    match step? {
        Step::Cmp { key, value } => Some((key, value.as_deref())),
        Step::Insert { key, .. } => Some((key, None)),
        _ => None,
    }
}

impl<'a> Transaction<'a> {
    /// As the history has it; `accounts` are all that a range may find.
    fn of(operation: &'a Operation, accounts: &[&'a str]) -> Result<Transaction<'a>, String> {
        let strange = || format!("this is no transaction of a bank: {operation}");
        if let Call::Store(store::Call::Get { key }) = &operation.call {
            let (told, value) = match &operation.outcome {
                Outcome::Ok(Return::Store(store::Return::Value(value))) => {
                    (Told::Committed, value.as_deref())
                }
                Outcome::Ok(_) => return Err(strange()),
                // A look that nobody had is none.
                Outcome::Refused | Outcome::Unknown => (Told::Nothing, None),
            };
            let (saw, wrote) = (BTreeMap::from([(&**key, value)]), BTreeMap::new());
            let Operation { invoked, ended, .. } = *operation;
            return Ok(Transaction { invoked, ended, told, saw, wrote, failed: None });
        }
        let Call::Store(store::Call::Transaction { steps }) = &operation.call else {
            return Err(strange());
        };
        let mut failed = None;
        let (told, results) = match &operation.outcome {
            Outcome::Refused => (Told::Nothing, None),
            Outcome::Unknown => (Told::Unknown, None),
            Outcome::Ok(Return::Store(store::Return::Failed(step))) => {
                failed = compared(steps.get(*step as usize));
                if failed.is_none() {
                    return Err(format!("it failed at a step that cannot fail: {operation}"));
                }
                (Told::Nothing, None)
            }
            Outcome::Ok(Return::Store(store::Return::Committed(results)))
                if results.len() == steps.len() =>
            {
                (Told::Committed, Some(results))
            }
            Outcome::Ok(_) => return Err(strange()),
        };
        let (mut saw, mut wrote) = (BTreeMap::new(), BTreeMap::new());
        for (index, step) in steps.iter().enumerate() {
            let result = results.and_then(|results| results.get(index));
            match (step, result) {
                (Step::Cmp { key, value }, _) => drop(saw.insert(&**key, value.as_deref())),
                (Step::Insert { key, value }, _) => {
                    saw.insert(key, None);
                    wrote.insert(&**key, &**value);
                }
                (Step::Write { key, value, .. }, _) => drop(wrote.insert(&**key, &**value)),
                (Step::Read { key }, Some(StepReturn::Value(value))) => {
                    saw.insert(key, value.as_deref());
                }
                (Step::Range { .. }, Some(StepReturn::Entries { entries, more: false })) => {
                    saw.extend(accounts.iter().map(|account| (*account, None)));
                    for (key, value) in entries {
                        let known = saw.insert(key, Some(value));
                        if known.is_none() {
                            return Err(format!(
                                "a range has {key}, which is no account: {operation}"
                            ));
                        }
                    }
                }
                (Step::Read { .. } | Step::Range { .. }, None) => {}
                _ => return Err(strange()),
            }
        }
        if wrote.keys().any(|key| !saw.contains_key(key)) {
            return Err(strange());
        }
        let Operation { invoked, ended, .. } = *operation;
        Ok(Transaction { invoked, ended, told, saw, wrote, failed })
    }

    /// That it found all the money, if it looked at all accounts.
    fn finds_all(&self, accounts: &[&str]) -> Result<(), String> {
        if !accounts.iter().all(|account| self.saw.contains_key(account)) {
            return Ok(());
        }
        let held: Vec<Option<&str>> = accounts.iter().map(|account| self.saw[account]).collect();
        if held.iter().all(Option::is_none) {
            return Ok(());
        }
        let all = accounts.len() as i64 * OPENED_WITH;
        let balances = held.iter().map(|value| balance((*value)?));
        match balances.sum::<Option<i64>>() {
            Some(sum) if sum == all => Ok(()),
            Some(sum) => Err(format!("{sum} of {all} is there")),
            None => Err("some accounts are there and others are not".to_owned()),
        }
    }
}

/// All accounts that anybody names.
fn accounts(operations: &[Operation]) -> Vec<&str> {
    let steps = operations.iter().filter_map(|operation| match &operation.call {
        Call::Store(store::Call::Transaction { steps }) => Some(steps),
        _ => None,
    });
    let named = steps.flatten().filter_map(|step| match step {
        Step::Cmp { key, .. }
        | Step::Read { key }
        | Step::Insert { key, .. }
        | Step::Write { key, .. } => Some(&**key),
        Step::Range { .. } | Step::Delete { .. } => None,
    });
    let mut accounts: Vec<&str> = named.collect();
    accounts.sort_unstable();
    accounts.dedup();
    accounts
}

/// Judges the history of a bank whose accounts were not open at first; in words what is wrong with it.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let accounts = accounts(operations);
    let all = operations.iter().map(|one| Transaction::of(one, &accounts));
    let all: Vec<Transaction<'_>> = all.collect::<Result<_, String>>()?;
    let with = |why: String, shown: &[usize]| {
        shown.iter().fold(why, |text, index| format!("{text}\n    {}", operations[*index]))
    };
    let versions = Versions::of(&all).map_err(|(why, shown)| with(why, &shown))?;
    if let Some((why, shown)) = versions.failed_for_nothing(&all) {
        return Err(with(why, &shown));
    }
    for index in versions.happened() {
        all[index].finds_all(&accounts).map_err(|why| with(why, &[index]))?;
    }
    match graph::cycle(&all, &versions) {
        None => Ok(()),
        Some((why, shown)) => Err(with(format!("no order explains what was seen: {why}"), &shown)),
    }
}
