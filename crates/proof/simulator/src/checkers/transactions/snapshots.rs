//! Reads over several partitions that took no locks. What each partition gave held there from the slot that its client names when it asks
//! whether it still does, and when it asks: the state behind the later one of both has to hold it, and the orders of all partitions have to
//! agree that there is a moment for all of it.

use super::{Case, Node, RULE_ORDER, Ran, reads_of_command};
use crate::checkers::commit_order::Seen;
use crate::violation::{Broken, Check};
use bytes::Bytes;
use perdura_oracle::{Call, Return};
use perdura_protocol::{Decode, Slot};
use perdura_store::partition::PartitionCommand;
use perdura_store::{
    Entries, Operation, OperationResult, StoreCommand, StoreReply, Transaction, TransactionResult,
};
use perdura_transactions::Outcome;
use std::collections::{BTreeMap, BTreeSet};

/// What a partition gave: the records of the reads, what of it was said to hold behind which slot, and how much had been executed there when that was asked.
struct Valid {
    reads: Vec<usize>,
    operations: Vec<Operation>,
    since: Slot,
    behind: usize,
}

/// The range, if that is all that is read, and whether from its end.
fn range_of(command: &StoreCommand) -> Option<(Bytes, Option<Bytes>, bool)> {
    let StoreCommand::Transaction(transaction) = command else { return None };
    match &transaction.operations[..] {
        [Operation::ReadRange { start, end, reverse, .. }] => {
            Some((start.clone(), end.clone(), *reverse))
        }
        _ => None,
    }
}

/// Whether a read goes on where another one of the same range was cut off.
fn goes_on(asked: &StoreCommand, read: &[u8]) -> bool {
    let read = StoreCommand::decode(read).ok();
    match (range_of(asked), read.as_ref().and_then(range_of)) {
        (Some((_, end, true)), Some((_, from, _))) => end != from,
        (Some((start, _, false)), Some((from, _, _))) => start != from,
        _ => false,
    }
}

/// What of these entries is in an interval, in their order.
fn within(operation: &Operation, results: Vec<StoreReply>) -> Option<OperationResult> {
    let Operation::ReadRange { start, end, .. } = operation else { return None };
    let is_in = |key: &Bytes| *key >= *start && end.as_ref().is_none_or(|end| *key < *end);
    let mut all = Vec::new();
    for reply in results {
        let StoreReply::Transaction(mut result) = reply else { return None };
        let OperationResult::Entries { entries, .. } = result.results.pop()? else { return None };
        all.extend(entries.iter().filter(|(key, _)| is_in(key)));
    }
    Some(OperationResult::Entries { entries: all.into_iter().collect(), more: false })
}

impl Case<'_> {
    /// Each of them is what there was.
    pub(super) fn snapshots(&mut self) -> Check {
        for number in 0..self.operations.len() {
            let Some(valid) = self.valid(number) else { continue };
            let mut results: BTreeMap<usize, Vec<OperationResult>> = BTreeMap::new();
            for (partition, valid) in valid {
                results.insert(partition, self.snapshot(number, partition, valid)?);
            }
            if range_of(&self.operations[number].asked).is_some() {
                for partition in 0..self.map.partitions() {
                    let nothing =
                        OperationResult::Entries { entries: Entries::default(), more: false };
                    results.entry(partition).or_insert_with(|| vec![nothing]);
                }
            }
            let parts = results.iter().map(|(partition, all)| (*partition, &all[..])).collect();
            let Some(all) = self.joined(&self.operations[number].asked, &parts) else { continue };
            self.snapshots.insert(number, Outcome::Committed(all.into()));
            self.counts.snapshots += 1;
        }
        Ok(())
    }

    /// What all partitions gave for an operation, and all said to hold still.
    fn valid(&self, number: usize) -> Option<BTreeMap<usize, Valid>> {
        let operation = &self.operations[number];
        let StoreCommand::Transaction(transaction) = &operation.asked else { return None };
        let of = |one: &Operation| self.partitions_of(one).map(usize::from);
        let wanted: BTreeSet<usize> = transaction.operations.iter().flat_map(of).collect();
        if wanted.len() < 2 || !operation.asked.is_read() {
            return None;
        }
        let mut seen: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut valid: BTreeMap<usize, Valid> = BTreeMap::new();
        let mut last: Option<Vec<Operation>> = None;
        for (partition, record) in &operation.calls {
            let call = &self.groups[*partition].calls[*record];
            match PartitionCommand::from_bytes(call.command.clone()) {
                Ok(PartitionCommand::Validate { since, operations }) => {
                    last = Some(operations.clone());
                    let behind = self.validated.get(&(*partition, *record));
                    if let (Some(behind), Some(reads)) = (behind, seen.get(partition)) {
                        let (reads, behind) = (reads.clone(), *behind);
                        valid.insert(*partition, Valid { reads, operations, since, behind });
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    let reads = seen.entry(*partition).or_default();
                    if !goes_on(&operation.asked, &call.command) {
                        reads.clear();
                    }
                    reads.push(*record);
                    valid.remove(partition);
                }
            }
        }
        // Of a range only as far as it is given: whoever has none of that is not asked, though he may have been in a try before.
        let is_range = range_of(&operation.asked).is_some();
        let last = last.filter(|_| is_range);
        valid.retain(|_, one| last.as_ref().is_none_or(|last| one.operations == *last));
        let wanted = match last.as_ref().and_then(|last| last.first()) {
            Some(given) => self.partitions_of(given).map(usize::from).collect(),
            None => wanted,
        };
        wanted.iter().all(|partition| valid.contains_key(partition)).then_some(valid)
    }

    /// What a partition gave, which has to have held there then.
    fn snapshot(
        &mut self,
        number: usize,
        partition: usize,
        Valid { reads, operations, since, behind }: Valid,
    ) -> Result<Vec<OperationResult>, Broken> {
        let Ran { order, calls, .. } = &self.groups[partition];
        let place = behind.max(order.partition_point(|one| one.slot <= since));
        let fail = |what: String| {
            Broken::new(RULE_ORDER, format!("operation {number}, partition {partition}: {what}"))
        };
        let mut replies = Vec::new();
        for read in &reads {
            let Seen::Ok(reply) = &calls[*read].seen else {
                return Err(fail("what was not read is said to hold".to_owned()));
            };
            let reply = StoreReply::from_bytes(reply.clone());
            replies.push(reply.map_err(|_| fail("what is no read is said to hold".to_owned()))?);
        }
        let is_range = range_of(&self.operations[number].asked).is_some();
        let reply = match &operations[..] {
            // As far as it is given, in as many pieces as it was read in.
            [range] if is_range => within(range, replies).map(|entries| {
                let (committed, failed, results) = (true, None, vec![entries]);
                StoreReply::Transaction(TransactionResult { committed, failed, results })
            }),
            _ => replies.pop(),
        };
        let command = StoreCommand::Transaction(Transaction { operations });
        let is_what_was_read = is_range
            || reads.iter().all(|read| {
                StoreCommand::decode(&calls[*read].command).is_ok_and(|read| read == command)
            });
        let Some(reply) = reply.filter(|_| is_what_was_read) else {
            return Err(fail("something else is said to hold than was read".to_owned()));
        };
        let replayed = &mut self.replayed[partition];
        let gives = replayed.states[place].0.ask(&Call::from(&command));
        if gives != Return::from(&reply) {
            return Err(fail(format!(
                "{command:?} gave {reply:?}, which was said to hold behind slot {since}; state number {place} gives {gives:?}"
            )));
        }
        let reads = reads_of_command(&command, &reply, replayed, place);
        let node = Node::Snapshot(number);
        replayed.reads.extend(reads.into_iter().map(|reads| (place, node, reads)));
        match reply {
            StoreReply::Transaction(result) => Ok(result.results),
            _ => Ok(Vec::new()),
        }
    }
}
