//! Reads over several partitions that took no locks. What each partition gave held there from the slot that its client names when it asks
//! whether it still does, and when it asks: the state behind the later one of both has to hold it, and the orders of all partitions have to
//! agree that there is a moment for all of it.

use super::{Case, Node, RULE_ORDER, Ran, Told, reads_of_command};
use crate::checkers::commit_order::Seen;
use crate::violation::{Broken, Check};
use perdura_oracle::{Call, Return};
use perdura_protocol::{Decode, Slot};
use perdura_store::partition::PartitionCommand;
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply};
use std::collections::{BTreeMap, BTreeSet};

/// What a partition gave: the record of the read, the slot behind which it held, and how much had been executed there when that was asked.
type Valid = (usize, Slot, usize);

impl Case<'_> {
    /// Each of them is what there was.
    pub(super) fn snapshots(&mut self) -> Check {
        for number in 0..self.operations.len() {
            let Some(valid) = self.valid(number) else { continue };
            let mut results: BTreeMap<usize, Vec<OperationResult>> = BTreeMap::new();
            for (partition, valid) in valid {
                results.insert(partition, self.snapshot(number, partition, valid)?);
            }
            let parts = results.iter().map(|(partition, all)| (*partition, &all[..])).collect();
            let Some(all) = self.joined(&self.operations[number].asked, &parts) else { continue };
            self.snapshots.insert(number, Told::Committed(Some(all)));
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
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        let mut valid: BTreeMap<usize, Valid> = BTreeMap::new();
        for (partition, record) in &operation.calls {
            let call = &self.groups[*partition].calls[*record];
            match PartitionCommand::from_bytes(call.command.clone()) {
                Ok(PartitionCommand::Validate { since, .. }) => {
                    let behind = self.validated.get(&(*partition, *record));
                    if let (Some(behind), Some(read)) = (behind, seen.get(partition)) {
                        valid.insert(*partition, (*read, since, *behind));
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    seen.insert(*partition, *record);
                    valid.remove(partition);
                }
            }
        }
        wanted.iter().all(|partition| valid.contains_key(partition)).then_some(valid)
    }

    /// What a partition gave, which has to have held there then.
    fn snapshot(
        &mut self,
        number: usize,
        partition: usize,
        (read, since, behind): Valid,
    ) -> Result<Vec<OperationResult>, Broken> {
        let Ran { order, calls, .. } = &self.groups[partition];
        let place = behind.max(order.partition_point(|one| one.slot <= since));
        let fail = |what: String| {
            Broken::new(RULE_ORDER, format!("operation {number}, partition {partition}: {what}"))
        };
        let call = &calls[read];
        let Seen::Ok(reply) = &call.seen else {
            return Err(fail("what was not read is said to hold".to_owned()));
        };
        let command = StoreCommand::decode(&call.command).ok();
        let reply = StoreReply::from_bytes(reply.clone()).ok();
        let (Some(command), Some(reply)) = (command, reply) else {
            return Err(fail("what is no read is said to hold".to_owned()));
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
