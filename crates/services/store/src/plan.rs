//! Evaluates a transaction against the state without touching it. What it would change stands in
//! an overlay, which is applied when the whole transaction holds; so a transaction that fails or is
//! refused leaves no trace, not even in the shape of segments, and reads need no `&mut`.

use crate::command::{Operation, Transaction};
use crate::entries::{Entries, EntriesBuilder};
use crate::limits;
use crate::map::SegmentMap;
use crate::reply::{OperationResult, TransactionResult};
use crate::segment::entry_bytes;
use bytes::Bytes;
use perdura_execution::{Meter, StateLimit, TooCostly};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Keys from one on, and below another if there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interval {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
}

impl Interval {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.start <= key && self.end.as_ref().is_none_or(|end| key < &**end)
    }

    /// For a map or a set of keys; nothing where the end is before the start.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let end = self.end.as_ref().map(|end| end.max(&self.start));
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(&**end));
        (Bound::Included(&*self.start), end)
    }

    /// What of a range its reader knows of, which was told that there is more behind the last key that it was given: else all.
    fn seen_up_to(self, last: Option<Bytes>, reverse: bool) -> Interval {
        match last {
            None => self,
            Some(start) if reverse => Interval { start, ..self },
            Some(last) => {
                let behind = [&last[..], &[0]].concat();
                Interval { end: Some(behind.into()), ..self }
            }
        }
    }
}

fn range_of(operation: &Operation) -> Option<(&[u8], Option<&[u8]>)> {
    match operation {
        Operation::ReadRange { start, end, .. } => Some((start, end.as_deref())),
        _ => None,
    }
}

/// What a transaction would do.
pub(crate) struct Plan {
    pub(crate) result: TransactionResult,
    /// New values; `None` where the key goes. Empty unless the transaction commits.
    pub(crate) changes: BTreeMap<Bytes, Option<Bytes>>,
    /// What its reads of ranges saw, if it commits.
    pub(crate) seen: Seen,
}

/// What is known of ranges to who read them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// All of this.
    pub(crate) intervals: Vec<Interval>,
    /// That these are there, since it was told that there is more.
    pub(crate) left_out: Vec<Bytes>,
}

impl Seen {
    /// All of the ranges that a transaction reads, however much of them it gets.
    pub(crate) fn whole(transaction: &Transaction) -> Seen {
        let range = |operation: &Operation| match operation {
            Operation::ReadRange { start, end, .. } => {
                Some(Interval { start: start.clone(), end: end.clone() })
            }
            _ => None,
        };
        let intervals = transaction.operations.iter().filter_map(range).collect();
        Seen { intervals, left_out: Vec::new() }
    }
}

/// Why a transaction did not come to its end.
enum Stop {
    /// This operation failed it.
    Failed,
    /// Its results do not fit a reply.
    TooMuch,
    /// It takes more work than a command may.
    TooCostly(TooCostly),
}

impl From<TooCostly> for Stop {
    fn from(error: TooCostly) -> Stop {
        Stop::TooCostly(error)
    }
}

/// What an entry of a range counts for besides its bytes; also one that is only passed, since the transaction itself has changed it, and the change.
const ENTRY_STEP: usize = 16;

impl Plan {
    /// Evaluates `transaction`, which is within the limits. Charged is what it reads, and again what it answers.
    pub(crate) fn of(
        map: &SegmentMap,
        transaction: &Transaction,
        meter: &Meter,
    ) -> Result<Plan, String> {
        let (changes, seen) = (BTreeMap::new(), Seen::default());
        let mut view = View { map, changes, seen, budget: limits::RESULT_BYTES, meter };
        let operations = &transaction.operations;
        if map.looks_ahead() {
            let ranges: Vec<_> = operations.iter().filter_map(range_of).collect();
            if ranges.len() > 1 {
                map.look_ahead_in(&ranges);
            }
        }
        for (index, operation) in operations.iter().enumerate() {
            if let Operation::Cmp { key, value } = operation
                && view.get(key) != value.as_deref()
            {
                return Ok(Plan::failed(index));
            }
        }
        let mut results = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            match view.run(operation) {
                Ok(result) => results.push(result),
                Err(Stop::Failed) => return Ok(Plan::failed(index)),
                Err(Stop::TooCostly(error)) => return Err(error.into()),
                Err(Stop::TooMuch) => {
                    return Err(format!(
                        "the transaction reads more than {} bytes; read less at once",
                        limits::RESULT_BYTES
                    ));
                }
            }
        }
        let (result, View { changes, seen, .. }) = (TransactionResult::committed(results), view);
        Ok(Plan { result, changes, seen })
    }

    fn failed(index: usize) -> Plan {
        let (result, changes) = (TransactionResult::failed(index), BTreeMap::new());
        Plan { result, changes, seen: Seen::default() }
    }
}

/// Whether changes make the state grow beyond its limit: by bytes, or where it has all its segments by any entry that is new or longer, whatever
/// else goes.
pub(crate) fn exceed(
    changes: &BTreeMap<Bytes, Option<Bytes>>,
    map: &SegmentMap,
    limit: StateLimit,
) -> bool {
    if map.segments() >= limit.segments {
        let grows = |(key, value): (&Bytes, &Option<Bytes>)| {
            let old = map.get(key).map(<[u8]>::len);
            value.as_ref().is_some_and(|value| old.is_none_or(|old| value.len() > old))
        };
        return changes.iter().any(grows);
    }
    let (mut removed, mut added) = (0, 0);
    for (key, value) in changes {
        removed += map.get(key).map_or(0, |old| entry_bytes(key, old) as u64);
        added += value.as_ref().map_or(0, |value| entry_bytes(key, value) as u64);
    }
    added > removed && map.bytes() - removed + added > limit.bytes
}

/// The state as the next operation sees it.
struct View<'a> {
    map: &'a SegmentMap,
    changes: BTreeMap<Bytes, Option<Bytes>>,
    seen: Seen,
    /// Bytes of results that may still be given.
    budget: usize,
    meter: &'a Meter,
}

impl View<'_> {
    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self.changes.get(key) {
            Some(changed) => changed.as_deref(),
            None => self.map.get(key),
        }
    }

    fn run(&mut self, operation: &Operation) -> Result<OperationResult, Stop> {
        match operation {
            Operation::Cmp { .. } => Ok(OperationResult::Compared),
            Operation::Read { key } => {
                let bytes = self.get(key).map_or(0, <[u8]>::len);
                self.meter.charge(bytes)?;
                self.spend(bytes)?;
                let value = self.get(key).map(Bytes::copy_from_slice);
                Ok(OperationResult::Value(value))
            }
            Operation::ReadRange { start, end, limit, reverse } => {
                let passed = Cell::new(0);
                let range = (&**start, end.as_deref());
                let (entries, cut) = self.read_range(range, *limit, *reverse, &passed);
                self.meter.charge(entries.framed_bytes() + ENTRY_STEP * passed.get())?;
                self.spend(entries.framed_bytes())?;
                let more = cut.is_some();
                let range = Interval { start: start.clone(), end: end.clone() };
                let (last, left_out) = cut.unzip();
                self.seen.intervals.push(range.seen_up_to(last, *reverse));
                self.seen.left_out.extend(left_out);
                Ok(OperationResult::Entries { entries, more })
            }
            Operation::Insert { key, value } => {
                if self.get(key).is_some() {
                    return Err(Stop::Failed);
                }
                self.changes.insert(key.clone(), Some(value.clone()));
                Ok(OperationResult::Written)
            }
            Operation::Write { key, value, only_if_present } => {
                if *only_if_present && self.get(key).is_none() {
                    return Err(Stop::Failed);
                }
                self.changes.insert(key.clone(), Some(value.clone()));
                Ok(OperationResult::Written)
            }
            Operation::Delete { key } => {
                let existed = self.get(key).is_some();
                self.changes.insert(key.clone(), None);
                Ok(OperationResult::Deleted { existed })
            }
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Stop> {
        self.budget = self.budget.checked_sub(bytes).ok_or(Stop::TooMuch)?;
        Ok(())
    }

    /// Entries up to the limits, and if there are more the keys of the last one and of the next. Counted is all that is passed, the entries
    /// that the transaction itself has changed or removed, and its changes, too.
    fn read_range(
        &self,
        (start, end): (&[u8], Option<&[u8]>),
        limit: u32,
        reverse: bool,
        passed: &Cell<usize>,
    ) -> (Entries, Option<(Bytes, Bytes)>) {
        let pass = || passed.set(passed.get() + 1);
        let end = end.map(|end| end.max(start));
        let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
        let changed = self
            .changes
            .range::<[u8], _>((Bound::Included(start), upper))
            .map(|(key, value)| (key.as_ref(), value.as_deref()))
            .inspect(|_| pass());
        let stored = self.map.range(start, end).inspect(|_| pass());
        if reverse {
            collect(merge(stored.rev(), changed.rev(), true), limit)
        } else {
            collect(merge(stored, changed, false), limit)
        }
    }
}

/// Stored entries and changes, both in the same order, as one sequence; a change hides what is
/// stored under its key.
fn merge<'a>(
    stored: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    changed: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    reverse: bool,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let mut stored = stored.peekable();
    let mut changed = changed.peekable();
    let comes_first = move |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
    let next = move || {
        let Some((key, _)) = changed.peek() else {
            return stored.next().map(|(key, value)| (key, Some(value)));
        };
        if let Some(entry) = stored.next_if(|(other, _)| comes_first(other, key)) {
            return Some((entry.0, Some(entry.1)));
        }
        stored.next_if(|(other, _)| other == key);
        changed.next()
    };
    std::iter::from_fn(next).filter_map(|(key, value)| value.map(|value| (key, value)))
}

fn collect<'a>(
    entries: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    limit: u32,
) -> (Entries, Option<(Bytes, Bytes)>) {
    let mut found = EntriesBuilder::default();
    let (mut bytes, mut last): (usize, &[u8]) = (0, &[]);
    for (key, value) in entries {
        bytes += 8 + key.len() + value.len();
        let fits = bytes <= limits::RANGE_BYTES || found.len() == 0;
        if found.len() >= limit as usize || !fits {
            let [last, next] = [last, key].map(Bytes::copy_from_slice);
            return (found.finish(), Some((last, next)));
        }
        found.push(key, value);
        last = key;
    }
    (found.finish(), None)
}
