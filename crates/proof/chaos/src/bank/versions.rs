//! Which transactions happened, and the row of values that each account had.

use super::{Told, Transaction};
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong, and the transactions that show it.
pub(super) type Flaw = (String, Vec<usize>);

/// A value of an account, by its place in the row; nothing comes first.
type Row<'a> = Vec<(Option<&'a str>, Option<usize>)>;

/// The rows of all accounts.
#[derive(Debug)]
pub(super) struct Versions<'a> {
    happened: BTreeSet<usize>,
    rows: BTreeMap<&'a str, Row<'a>>,
    places: BTreeMap<(&'a str, Option<&'a str>), usize>,
}

impl<'a> Versions<'a> {
    /// Of these transactions.
    pub fn of(all: &[Transaction<'a>]) -> Result<Versions<'a>, Flaw> {
        let mut writers = BTreeMap::new();
        for (index, one) in all.iter().enumerate() {
            for (account, value) in &one.wrote {
                if let Some(other) = writers.insert((*account, *value), index) {
                    return Err((
                        format!("{value} is written twice to {account}"),
                        vec![other, index],
                    ));
                }
            }
        }
        let happened = happened(all, &writers)?;
        let mut versions = Versions { happened, rows: BTreeMap::new(), places: BTreeMap::new() };
        let named = all.iter().flat_map(|one| one.saw.keys().copied());
        for account in named.collect::<BTreeSet<&str>>() {
            let row = versions.row(account, all)?;
            for (place, (value, _)) in row.iter().enumerate() {
                versions.places.insert((account, *value), place);
            }
            versions.rows.insert(account, row);
        }
        Ok(versions)
    }

    /// The values that an account had, one after the other.
    fn row(&self, account: &'a str, all: &[Transaction<'a>]) -> Result<Row<'a>, Flaw> {
        let mut next: BTreeMap<Option<&str>, (usize, &'a str)> = BTreeMap::new();
        for index in &self.happened {
            let one = &all[*index];
            let Some(value) = one.wrote.get(account) else { continue };
            let before = one.saw[account];
            if let Some((other, _)) = next.insert(before, (*index, value)) {
                let lost = format!("two of them took the place of {before:?} in {account}");
                return Err((lost, vec![other, *index]));
            }
        }
        let mut row = vec![(None, None)];
        let mut last = None;
        while let Some((index, value)) = next.remove(&last) {
            last = Some(value);
            row.push((last, Some(index)));
        }
        match next.into_iter().next() {
            None => Ok(row),
            Some((before, (index, _))) => {
                Err((format!("{before:?} was in {account}, and never came there"), vec![index]))
            }
        }
    }

    /// All that happened.
    pub fn happened(&self) -> impl Iterator<Item = usize> + '_ {
        self.happened.iter().copied()
    }

    /// All accounts with the transactions that wrote to them, one after the other.
    pub fn writers(&self) -> impl Iterator<Item = (&'a str, Vec<usize>)> + '_ {
        let writers = |row: &Row<'a>| row.iter().filter_map(|(_, writer)| *writer).collect();
        self.rows.iter().map(move |(account, row)| (*account, writers(row)))
    }

    /// Who wrote what somebody saw, and who wrote over it.
    pub fn around(
        &self,
        account: &'a str,
        value: Option<&'a str>,
    ) -> (Option<usize>, Option<usize>) {
        let row = &self.rows[account];
        let Some(place) = self.places.get(&(account, value)) else { return (None, None) };
        (row[*place].1, row.get(place + 1).and_then(|(_, writer)| *writer))
    }
}

impl<'a> Versions<'a> {
    /// One that failed for what was there, from before it was asked for until it had ended.
    pub fn failed_for_nothing(&self, all: &[Transaction<'a>]) -> Option<Flaw> {
        all.iter().enumerate().find_map(|(index, one)| {
            let (account, value) = one.failed?;
            if !self.was_there(all, (account, value), (one.invoked, one.ended?)) {
                return None;
            }
            let what = format!("it failed for {account}, which held {value:?} all the time");
            Some((what, self.around(account, value).0.into_iter().chain([index]).collect()))
        })
    }

    /// Whether it is certain that an account held this all the time: whoever put it there had ended before, and who may have taken its
    /// place, known to have happened or not, began later.
    fn was_there(
        &self,
        all: &[Transaction<'a>],
        (account, value): (&'a str, Option<&'a str>),
        (from, to): (u64, u64),
    ) -> bool {
        if !self.places.contains_key(&(account, value)) {
            return false;
        }
        let (wrote, wrote_over) = self.around(account, value);
        let had_ended = wrote.is_none_or(|writer| {
            let writer = &all[writer];
            writer.told == Told::Committed && writer.ended.is_some_and(|ended| ended < from)
        });
        let may_have = |one: &&Transaction<'a>| {
            let takes = one.wrote.contains_key(account) && one.saw[account] == value;
            takes && one.told == Told::Unknown && one.invoked <= to
        };
        let is_left = match wrote_over {
            Some(writer) => all[writer].invoked > to,
            None => all.iter().find(may_have).is_none(),
        };
        had_ended && is_left
    }
}

/// All that are known to have happened: those whose clients were told so, and those of which these saw anything, and so on.
fn happened<'a>(
    all: &[Transaction<'a>],
    writers: &BTreeMap<(&'a str, &'a str), usize>,
) -> Result<BTreeSet<usize>, Flaw> {
    let told = |one: &Transaction<'_>| one.told == Told::Committed;
    let mut found: Vec<usize> = (0..all.len()).filter(|index| told(&all[*index])).collect();
    let mut happened: BTreeSet<usize> = found.iter().copied().collect();
    while let Some(index) = found.pop() {
        for (account, value) in &all[index].saw {
            let Some(value) = value else { continue };
            let Some(writer) = writers.get(&(*account, *value)) else {
                return Err((format!("{value} is in {account}, and nobody wrote it"), vec![index]));
            };
            if all[*writer].told == Told::Nothing {
                let what = format!("{value} is in {account}, and whoever wrote it did not commit");
                return Err((what, vec![*writer, index]));
            }
            if happened.insert(*writer) {
                found.push(*writer);
            }
        }
    }
    Ok(happened)
}
