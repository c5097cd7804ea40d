//! A transaction in parts, one for each partition that has some of what it touches, and its results put together again.

use crate::Range;
use perdura_protocol::{Map, PartitionId};
use perdura_store::{Operation, OperationResult, Transaction, limits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// One partition's part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which partition's.
    pub partition: PartitionId,
    /// Its operations, in the transaction's order.
    pub operations: Vec<Operation>,
    // For each its index in the transaction.
    origins: Vec<usize>,
}

impl Part {
    /// Of one operation.
    pub(crate) fn of_one(partition: PartitionId, operation: Operation) -> Part {
        Part { partition, operations: vec![operation], origins: vec![0] }
    }
}

/// The partitions that have some of what an operation touches.
fn touched(map: &Map, operation: &Operation) -> RangeInclusive<u16> {
    match operation {
        Operation::Cmp { key, .. }
        | Operation::Read { key }
        | Operation::Insert { key, .. }
        | Operation::Write { key, .. }
        | Operation::Delete { key } => {
            let partition = map.partition_of(key).0;
            partition..=partition
        }
        Operation::ReadRange { start, end, .. } => map.partitions_of_range(start, end.as_deref()),
    }
}

/// A transaction in parts, ascending by partition; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// The parts.
    pub parts: Vec<Part>,
    transaction: Transaction,
}

impl Split {
    /// The partitions of the parts of `transaction`.
    #[must_use]
    pub fn partitions_of(map: &Map, transaction: &Transaction) -> BTreeSet<PartitionId> {
        let operations = transaction.operations.iter();
        let mut all: BTreeSet<PartitionId> =
            operations.flat_map(|one| touched(map, one)).map(PartitionId).collect();
        if all.is_empty() {
            all.insert(PartitionId(0));
        }
        all
    }

    /// The parts of `transaction`. One without operations is partition 0's.
    #[must_use]
    pub fn of(map: &Map, transaction: Transaction) -> Split {
        let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
        let mut add = |partition: u16, operation: Operation, origin| {
            let part = parts.entry(partition).or_insert_with(|| Part {
                partition: PartitionId(partition),
                operations: Vec::new(),
                origins: Vec::new(),
            });
            part.operations.push(operation);
            part.origins.push(origin);
        };
        for (origin, operation) in transaction.operations.iter().enumerate() {
            for partition in touched(map, operation) {
                add(partition, operation.clone(), origin);
            }
        }
        let mut parts: Vec<Part> = parts.into_values().collect();
        if parts.is_empty() {
            let partition = PartitionId(0);
            parts.push(Part { partition, operations: Vec::new(), origins: Vec::new() });
        }
        Split { parts, transaction }
    }

    /// What a partition has of it alone.
    pub(crate) fn within(partition: PartitionId, transaction: Transaction) -> Split {
        let operations = transaction.operations.clone();
        let origins = (0..operations.len()).collect();
        Split { parts: vec![Part { partition, operations, origins }], transaction }
    }

    /// The range, if that is all that it reads, over several partitions.
    pub(crate) fn as_range(&self) -> Option<Range> {
        match &self.transaction.operations[..] {
            [only] if self.parts.len() > 1 => Range::of(only),
            _ => None,
        }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.transaction.is_read()
    }

    /// Which of its operations that fail is said to: comparisons come first, since they are evaluated first, then the lowest.
    pub(crate) fn rank(&self, origin: usize) -> (bool, usize) {
        let is_comparison =
            matches!(self.transaction.operations.get(origin), Some(Operation::Cmp { .. }));
        (!is_comparison, origin)
    }

    /// Whether an operation of a part may fail that would be said to in place of one that does.
    pub(crate) fn may_fail_before(&self, part: &Part, known: usize) -> bool {
        let may_fail = |operation: &Operation| match operation {
            Operation::Cmp { .. } | Operation::Insert { .. } => true,
            Operation::Write { only_if_present, .. } => *only_if_present,
            _ => false,
        };
        let all = part.operations.iter().zip(&part.origins);
        let mut own = all.filter(|(operation, _)| may_fail(operation));
        own.any(|(_, origin)| self.rank(*origin) < self.rank(known))
    }

    /// The index in the transaction of an operation of a part.
    #[must_use]
    pub fn origin(&self, partition: PartitionId, operation: u32) -> usize {
        let part = self.parts.iter().find(|part| part.partition == partition);
        let origin = part.and_then(|part| part.origins.get(operation as usize));
        origin.copied().unwrap_or_default()
    }

    /// The results of all operations in their order, from those of the parts; none if they do not fit the operations.
    #[must_use]
    pub fn join(&self, results: Vec<Vec<OperationResult>>) -> Option<Vec<OperationResult>> {
        let mut of: Vec<Vec<OperationResult>> = vec![Vec::new(); self.transaction.operations.len()];
        if results.len() != self.parts.len() {
            return None;
        }
        for (part, results) in self.parts.iter().zip(results) {
            if part.origins.len() != results.len() {
                return None;
            }
            for (origin, result) in part.origins.iter().zip(results) {
                of.get_mut(*origin)?.push(result);
            }
        }
        let operations = self.transaction.operations.iter();
        operations.zip(of).map(|(operation, results)| join_one(operation, results)).collect()
    }
}

fn join_one(operation: &Operation, mut results: Vec<OperationResult>) -> Option<OperationResult> {
    let Operation::ReadRange { limit, reverse, .. } = operation else {
        return results.pop().filter(|_| results.is_empty());
    };
    if results.len() == 1 {
        return results.pop();
    }
    let mut lists = Vec::new();
    for result in results {
        let OperationResult::Entries { entries, more } = result else { return None };
        let mut entries: Vec<_> = entries.iter().collect();
        if *reverse {
            entries.reverse();
        }
        lists.push((entries, more));
    }
    let Merged { entries, left_out, is_cut } = merge(lists, *reverse, *limit as usize);
    let more = is_cut || left_out.is_some();
    Some(OperationResult::Entries { entries: entries.into_iter().collect(), more })
}

pub(crate) type Entry = (bytes::Bytes, bytes::Bytes);

/// One list of several.
pub(crate) struct Merged {
    pub(crate) entries: Vec<Entry>,
    /// The next key, if it is known.
    pub(crate) left_out: Option<bytes::Bytes>,
    /// Whether any of the lists was cut off, so that there are more.
    pub(crate) is_cut: bool,
}

/// One list of several, each of which is ascending and says whether it was cut off: at its end, or if it was read backwards at its
/// beginning. What lies beyond where one was cut off is not known to be all that is there, and left out.
pub(crate) fn merge(mut lists: Vec<(Vec<Entry>, bool)>, reverse: bool, limit: usize) -> Merged {
    let is_cut = lists.iter().any(|(_, more)| *more);
    let cut = |(entries, more): &(Vec<Entry>, bool)| {
        let last = if reverse { entries.first() } else { entries.last() };
        last.filter(|_| *more).map(|(key, _)| key.clone())
    };
    let cuts = lists.iter().filter_map(cut);
    let horizon = if reverse { cuts.max() } else { cuts.min() };
    let mut entries: Vec<Entry> = lists.drain(..).flat_map(|(entries, _)| entries).collect();
    if let Some(horizon) = horizon {
        entries.retain(|(key, _)| if reverse { *key >= horizon } else { *key <= horizon });
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    if reverse {
        entries.reverse();
    }
    let mut bytes = 0;
    let fits = |(key, value): &Entry| {
        bytes += 8 + key.len() + value.len();
        bytes <= limits::RANGE_BYTES
    };
    // A single entry always fits.
    let most = entries.iter().map(fits).take_while(|fits| *fits).count().max(1).min(limit);
    let left_out = entries.get(most).map(|(key, _)| key.clone());
    entries.truncate(most);
    Merged { entries, left_out, is_cut }
}
