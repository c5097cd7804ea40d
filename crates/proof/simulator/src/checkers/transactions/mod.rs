//! Guards what a store of several partitions promises (`docs/partitions.md`): all committed transactions have one order that respects real
//! time, those over several partitions happen in all of them or in none, clients are told what happened, no money is made or lost, and
//! nothing stays locked.
//!
//! The order in which each partition executed its commands is known, so each version of a key has its place; a cycle is looked for among who
//! has to come before whom (Papadimitriou, JACM 1979; Adya, 1999).

mod graph;
mod hearing;
mod remembered;
mod replay;
mod snapshots;
#[cfg(test)]
mod tests;

use crate::checkers::commit_order::Seen;
use crate::deployment::history::{Operation as Asked, Told};
use crate::report::TransactionCounts;
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use bytes::Bytes;
use graph::Graph;
use perdura_oracle::{Call, Return};
use perdura_protocol::{Decode, Map, PartitionId, PublicKey, SessionId};
use perdura_store::partition::{PartitionCommand, PartitionReply, Reason, TransactionId, Vote};
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply};
use perdura_transactions::Outcome;
use replay::{Reads, Replayed, reads_of, replay};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

const RULE_ORDER: &str = "Serializability (transactions)";
const RULE_ATOMIC: &str = "Atomicity (transactions)";
const RULE_ALIVE: &str = "Expiry (transactions)";
const RULE_TOLD: &str = "Outcome (transactions)";
const RULE_MONEY: &str = "Money (transactions)";
const RULE_ROOM: &str = "Room (transactions)";
const RULE_HEARD: &str = "Unreachable (transactions)";
const RULE_REMEMBERED: &str = "Remembered (transactions)";

/// A transaction, or a command that is one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Node {
    /// Of one partition: which, and its place there.
    Local(usize, usize),
    Global(TransactionId),
    /// What failed in one partition, and so is nothing but the read of what failed it there.
    Failed(usize, TransactionId),
    /// Read without being ordered: the partition, and the record of the call.
    Fast(usize, usize),
    /// Read without being ordered in several: the operation.
    Snapshot(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Local(partition, place) => write!(f, "command {place} of partition {partition}"),
            Node::Global(transaction) => write!(f, "transaction {transaction}"),
            Node::Failed(partition, transaction) => {
                write!(f, "what failed transaction {transaction} in partition {partition}")
            }
            Node::Fast(partition, record) => {
                write!(f, "fast read {record} of partition {partition}")
            }
            Node::Snapshot(operation) => write!(f, "the snapshot of operation {operation}"),
        }
    }
}

/// A call of a client in one group.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    pub command: Bytes,
    /// Moments in that group.
    pub invoked: u64,
    pub ended: Option<u64>,
    pub number: Option<(SessionId, u64)>,
    pub seen: Seen<Bytes>,
}

/// What happened in one group.
#[derive(Clone, Debug)]
pub(crate) struct Ran<'a> {
    pub order: Vec<&'a Execution>,
    /// How large its entries may become.
    pub limit_bytes: u64,
    pub calls: Vec<Called>,
}

/// Money that there is: accounts, and what is in all of them together.
#[derive(Clone, Debug)]
pub(crate) struct Treasury {
    pub accounts: Vec<Bytes>,
    pub total: i64,
}

/// All that is judged.
struct Case<'a> {
    groups: &'a [Ran<'a>],
    operations: &'a [Asked],
    map: &'a Map,
    hostile: &'a BTreeSet<PublicKey>,
    replayed: Vec<Replayed>,
    counts: TransactionCounts,
    spans: Vec<(Node, u64, Option<u64>)>,
    /// Read-only transactions, and what failed others, of which somebody was told what they read.
    heard: BTreeSet<Node>,
    /// Partitions that were asked whether what they gave still holds, and said so: partition and record, and how many commands had been
    /// executed there before.
    validated: BTreeMap<(usize, usize), usize>,
    /// What operations gave that took no locks in several partitions.
    snapshots: BTreeMap<usize, Outcome>,
}

/// Judges what happened in all groups; how much it was.
pub(crate) fn judge(
    groups: &[Ran<'_>],
    operations: &[Asked],
    map: &Map,
    hostile: &BTreeSet<PublicKey>,
    treasury: &Treasury,
) -> Result<TransactionCounts, Broken> {
    let mut counts = TransactionCounts { runs: 1, ..TransactionCounts::default() };
    let replayed = groups
        .iter()
        .enumerate()
        .map(|(partition, ran)| {
            let order = ran.order.iter().copied();
            replay((partition, map.partitions(), ran.limit_bytes), order, &mut counts)
        })
        .collect::<Result<Vec<Replayed>, Broken>>()?;
    let mut case = Case {
        groups,
        operations,
        map,
        hostile,
        replayed,
        counts,
        spans: Vec::new(),
        heard: BTreeSet::new(),
        validated: BTreeMap::new(),
        snapshots: BTreeMap::new(),
    };
    case.atomic()?;
    case.fast_reads()?;
    case.snapshots()?;
    case.told()?;
    case.money(treasury)?;
    case.ordered()?;
    Ok(case.counts)
}

impl Case<'_> {
    /// All of a transaction happened, or nothing.
    fn atomic(&mut self) -> Check {
        let all: BTreeSet<TransactionId> =
            self.replayed.iter().flat_map(|one| one.parts.keys().copied()).collect();
        for transaction in all {
            let parts: Vec<(usize, &replay::Part)> = self
                .replayed
                .iter()
                .enumerate()
                .filter_map(|(index, one)| Some((index, one.parts.get(&transaction)?)))
                .collect();
            let pending = parts.iter().find(|(_, part)| part.ended.is_none());
            if let Some((index, part)) = pending {
                let what = format!("{:?} is still pending in partition {index}", part.intent);
                return Err(Broken::new("Progress (transactions)", what));
            }
            let intent = &parts[0].1.intent;
            let committed = |part: &replay::Part| part.ended.is_some_and(|(commit, _)| commit);
            let count = parts.iter().filter(|(_, part)| committed(part)).count();
            self.counts.global += 1;
            if intent.read_only {
                continue;
            }
            self.counts.global_committed += u64::from(count > 0);
            if count > 0 && count < intent.participants.len() {
                let ends: Vec<_> =
                    parts.iter().map(|(index, part)| (index, &part.vote, part.ended)).collect();
                let what = format!("{intent:?} committed in some partitions only: {ends:?}");
                return Err(Broken::new(RULE_ATOMIC, what));
            }
            let refused =
                self.replayed.iter().position(|one| one.refused.contains_key(&transaction));
            if let (true, Some(index)) = (count > 0, refused) {
                let what = format!("{intent:?} committed, and partition {index} voted to abort it");
                return Err(Broken::new(RULE_ATOMIC, what));
            }
        }
        Ok(())
    }

    /// Each read that was not ordered saw a state behind all that had ended when it was asked for, and the earliest one that fits is taken.
    fn fast_reads(&mut self) -> Check {
        for (partition, ran) in self.groups.iter().enumerate() {
            let places: BTreeMap<(SessionId, u64), usize> = ran
                .order
                .iter()
                .enumerate()
                .map(|(place, one)| ((one.session, one.number), place))
                .collect();
            let mut moments: Vec<(u64, bool, usize)> = Vec::new();
            for (record, call) in ran.calls.iter().enumerate() {
                moments.push((call.invoked, false, record));
                moments.extend(call.ended.map(|ended| (ended, true, record)));
            }
            moments.sort_unstable();
            let mut behind = 0;
            let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
            for (_, is_end, record) in moments {
                let call = &ran.calls[record];
                let executed = call.number.and_then(|number| places.get(&number));
                if is_end {
                    let place = executed.map(|place| place + 1).or(seen.get(&record).copied());
                    behind = behind.max(place.unwrap_or(0));
                    continue;
                }
                let Seen::Ok(reply) = &call.seen else { continue };
                let is_valid = || {
                    let reply = PartitionReply::from_bytes(reply.clone());
                    reply == Ok(PartitionReply::Validated { holds: true })
                };
                if call.number.is_some() || PartitionReply::is_one(reply) {
                    if is_valid() {
                        self.validated.insert((partition, record), behind);
                    }
                    continue;
                }
                let decoded = StoreCommand::decode(&call.command).ok();
                let reply = StoreReply::from_bytes(reply.clone()).ok();
                let (Some(command), Some(reply)) = (decoded, reply) else { continue };
                let place = self.fast_read(partition, behind, &command, &reply)?;
                seen.insert(record, place);
                let node = Node::Fast(partition, record);
                let replayed = &mut self.replayed[partition];
                let reads = reads_of_command(&command, &reply, replayed, place);
                let reads = reads.into_iter().map(|reads| (place, node, reads));
                replayed.reads.extend(reads);
                self.counts.fast += 1;
            }
        }
        Ok(())
    }

    fn fast_read(
        &self,
        partition: usize,
        behind: usize,
        command: &StoreCommand,
        reply: &StoreReply,
    ) -> Result<usize, Broken> {
        let replayed = &self.replayed[partition];
        let states = &replayed.states;
        let (call, wanted) = (Call::from(command), Return::from(reply));
        let is_locked = |at: usize, locked: &BTreeSet<String>| {
            let reads = reads_of_command(command, reply, replayed, at);
            reads.iter().any(|reads| match reads {
                Reads::Key(key) => locked.contains(key),
                Reads::Range(start, end) => locked
                    .range(start.clone()..)
                    .take_while(|key| end.as_ref().is_none_or(|end| *key < end))
                    .next()
                    .is_some(),
            })
        };
        let fits = |at: &usize| {
            let (model, locked) = &states[*at];
            model.ask(&call) == wanted && !is_locked(*at, locked)
        };
        (behind..states.len()).find(fits).ok_or_else(|| {
            let what = format!(
                "partition {partition}: the fast read {command:?} gave {reply:?}, which no state from number {behind} on holds"
            );
            Broken::new(RULE_ORDER, what)
        })
    }

    /// Clients were told what happened.
    fn told(&mut self) -> Check {
        let places: Vec<BTreeMap<(SessionId, u64), usize>> = self
            .groups
            .iter()
            .map(|ran| {
                let order = ran.order.iter().enumerate();
                order.map(|(place, one)| ((one.session, one.number), place)).collect()
            })
            .collect();
        for (number, operation) in self.operations.iter().enumerate() {
            let fail = |what: String| {
                let what = format!("operation {number}, {operation:?}: {what}");
                Err(Broken::new(RULE_TOLD, what))
            };
            let tried = self.tried(number, &places);
            self.counts.count_told(operation.told.as_ref());
            let updates: Vec<Node> = tried.happened.iter().copied().collect();
            if updates.len() > 1 {
                return fail(format!("it happened more than once: {updates:?}"));
            }
            let ended =
                operation.ended.filter(|_| operation.told.as_ref().is_some_and(Told::is_known));
            let node = match &operation.told {
                None | Some(Told::Unknown(_)) => updates.first().copied(),
                Some(Told::Refused(why)) => {
                    if !updates.is_empty() {
                        return fail(format!("it was refused ({why}) and happened: {updates:?}"));
                    }
                    None
                }
                Some(Told::Over(Outcome::Failed { operation: index })) => {
                    if !updates.is_empty() {
                        return fail(format!("it failed and happened: {updates:?}"));
                    }
                    let Some(node) = tried.failed_at(*index) else {
                        return fail(format!("what failed is {:?}", tried.failed));
                    };
                    Some(node)
                }
                Some(Told::Over(outcome)) => {
                    let Some((node, expected)) = tried.gave else {
                        return fail("nothing that happened would tell its client so".to_owned());
                    };
                    let is_same = *outcome == Outcome::ResultsGone || *outcome == expected;
                    if !is_same || updates.iter().any(|update| *update != node) {
                        return fail(format!("what happened would tell its client {expected:?}"));
                    }
                    Some(node)
                }
            };
            if let Some(node) = node {
                self.spans.push((node, operation.invoked, ended));
                self.heard.insert(node);
            }
        }
        Ok(())
    }

    /// What became of the tries of an operation.
    fn tried(&self, number: usize, places: &[BTreeMap<(SessionId, u64), usize>]) -> Tried {
        let operation = &self.operations[number];
        let mut tried = Tried::default();
        for (partition, record) in &operation.calls {
            let call = &self.groups[*partition].calls[*record];
            let place = call.number.and_then(|number| places[*partition].get(&number).copied());
            if let Ok(
                PartitionCommand::Prepare { intent, .. }
                | PartitionCommand::PrepareLast { intent, .. },
            ) = PartitionCommand::from_bytes(call.command.clone())
            {
                self.tried_globally(operation, *partition, intent.id(), &mut tried);
                continue;
            }
            if let Some(place) = place {
                let Some(local) = self.replayed[*partition].locals.get(&place) else { continue };
                let node = Node::Local(*partition, place);
                match outcome_of(&local.reply) {
                    Outcome::Failed { operation: index } if local.command == operation.asked => {
                        tried.failed.push((node, index));
                    }
                    Outcome::Failed { operation: index } => {
                        let index = self.origin(&operation.asked, *partition, index as u32);
                        tried.failed.extend(index.map(|index| (node, index)));
                    }
                    outcome => {
                        if !local.command.is_read() {
                            tried.happened.insert(node);
                        }
                        // What was read for a transaction to come is another operation.
                        if local.command == operation.asked {
                            tried.gave = Some((node, outcome));
                        }
                    }
                }
            } else if let Seen::Ok(reply) = &call.seen
                && !PartitionReply::is_one(reply)
                && let Ok(reply) = StoreReply::from_bytes(reply.clone())
            {
                let node = Node::Fast(*partition, *record);
                let is_whole =
                    StoreCommand::decode(&call.command).ok() == Some(operation.asked.clone());
                match outcome_of(&reply) {
                    Outcome::Failed { operation: index } if is_whole => {
                        tried.failed.push((node, index));
                    }
                    Outcome::Failed { operation: index } => {
                        let index = self.origin(&operation.asked, *partition, index as u32);
                        tried.failed.extend(index.map(|index| (node, index)));
                    }
                    outcome if is_whole => tried.gave = Some((node, outcome)),
                    // What one of several partitions gave.
                    _ => {}
                }
            }
        }
        if let Some(outcome) = self.snapshots.get(&number) {
            tried.gave = Some((Node::Snapshot(number), outcome.clone()));
        }
        tried
    }

    fn tried_globally(
        &self,
        operation: &Asked,
        partition: usize,
        transaction: TransactionId,
        tried: &mut Tried,
    ) {
        let node = Node::Global(transaction);
        let Some(part) = self.replayed[partition].parts.get(&transaction) else { return };
        if let Vote::Abort(Reason::Failed { operation: failed }) = part.vote
            && let Some(index) = self.origin(&operation.asked, partition, failed)
        {
            tried.failed.push((Node::Failed(partition, transaction), index));
        }
        let parts: Vec<(usize, &replay::Part)> = self
            .replayed
            .iter()
            .enumerate()
            .filter_map(|(index, one)| Some((index, one.parts.get(&transaction)?)))
            .collect();
        let all = parts.len() == part.intent.participants.len()
            && parts.iter().all(|(_, part)| part.vote == Vote::Commit);
        if !all {
            return;
        }
        let committed = part.ended.is_some_and(|(commit, _)| commit);
        if committed && !part.intent.read_only {
            tried.happened.insert(node);
        }
        if committed || part.intent.read_only {
            let results = parts.iter().map(|(index, part)| (*index, &part.results[..])).collect();
            let all = self.joined(&operation.asked, &results);
            tried.gave = all.map(|all| (node, Outcome::Committed(all.into())));
        }
    }

    /// Which operation of a transaction is the one with this index in a partition's part.
    fn origin(&self, asked: &StoreCommand, partition: usize, index: u32) -> Option<usize> {
        let StoreCommand::Transaction(transaction) = asked else { return None };
        let has = |(_, operation): &(usize, &Operation)| {
            self.partitions_of(operation).contains(&(partition as u16))
        };
        let mut parts = transaction.operations.iter().enumerate().filter(has);
        parts.nth(index as usize).map(|(index, _)| index)
    }

    /// Where an operation is carried out.
    fn partitions_of(&self, operation: &Operation) -> RangeInclusive<u16> {
        match operation {
            Operation::Cmp { key, .. }
            | Operation::Read { key }
            | Operation::Insert { key, .. }
            | Operation::Write { key, .. }
            | Operation::Delete { key } => {
                let partition = self.map.partition_of(key).0;
                partition..=partition
            }
            Operation::ReadRange { start, end, .. } => {
                self.map.partitions_of_range(start, end.as_deref())
            }
        }
    }

    /// The results of a transaction from those of its parts, in whatever partition each key is.
    fn joined(
        &self,
        asked: &StoreCommand,
        parts: &BTreeMap<usize, &[OperationResult]>,
    ) -> Option<Vec<OperationResult>> {
        let StoreCommand::Transaction(transaction) = asked else { return None };
        let mut next: BTreeMap<usize, usize> = BTreeMap::new();
        let mut take = |partition: usize| {
            let results = parts.get(&partition)?;
            let index = next.entry(partition).or_default();
            *index += 1;
            results.get(*index - 1).cloned()
        };
        let mut results = Vec::new();
        for operation in &transaction.operations {
            let result = match operation {
                Operation::Cmp { key, .. }
                | Operation::Read { key }
                | Operation::Insert { key, .. }
                | Operation::Write { key, .. }
                | Operation::Delete { key } => take(self.map.partition_of(key).index())?,
                Operation::ReadRange { start, end, limit, reverse } => {
                    let mut all: Vec<(Bytes, Bytes)> = Vec::new();
                    let mut is_more = false;
                    for partition in self.map.partitions_of_range(start, end.as_deref()) {
                        let result = take(PartitionId(partition).index())?;
                        let OperationResult::Entries { entries, more } = result else {
                            return None;
                        };
                        is_more |= more;
                        all.extend(entries.iter());
                    }
                    all.sort();
                    if *reverse {
                        all.reverse();
                    }
                    is_more |= all.len() > *limit as usize;
                    all.truncate(*limit as usize);
                    OperationResult::Entries { entries: all.into_iter().collect(), more: is_more }
                }
            };
            results.push(result);
        }
        Some(results)
    }

    /// Every look at all accounts finds all the money, and so does whoever looks at the end.
    fn money(&mut self, treasury: &Treasury) -> Check {
        let mut looks = 0;
        for operation in self.operations.iter().filter(|operation| operation.looks) {
            let Some(Told::Over(Outcome::Committed(results))) = &operation.told else { continue };
            let value = |result: &OperationResult| match result {
                OperationResult::Value(value) => value.clone(),
                _ => None,
            };
            let values: Vec<Option<Bytes>> = results.all().iter().map(value).collect();
            treasury.check(&values)?;
            looks += 1;
        }
        self.counts.looks += looks;
        let read = |key: &Bytes| {
            let partition = self.map.partition_of(key).index();
            let (model, _) = self.replayed[partition].states.last()?;
            match model.ask(&Call::from(&StoreCommand::Get { key: key.clone() })) {
                Return::Value(value) => value.map(Bytes::from),
                _ => None,
            }
        };
        let values: Vec<Option<Bytes>> = treasury.accounts.iter().map(read).collect();
        treasury.check(&values)
    }

    /// There is one order of all.
    fn ordered(&mut self) -> Check {
        let mut graph = Graph::default();
        for (partition, replayed) in self.replayed.iter().enumerate() {
            graph.partition(partition, replayed, |node| match node {
                Node::Global(transaction) => {
                    let part = replayed.parts.get(&transaction);
                    part.is_some_and(|part| {
                        !part.intent.read_only
                            || (self.heard.contains(&node)
                                && !self.hostile.contains(&part.intent.client))
                    })
                }
                Node::Failed(..) => self.heard.contains(&node),
                Node::Local(..) | Node::Fast(..) | Node::Snapshot(..) => true,
            });
        }
        graph.real_time(&self.spans);
        self.counts.edges += graph.count();
        match graph.cycle() {
            None => Ok(()),
            Some(words) => Err(Broken::new(RULE_ORDER, format!("a cycle: {}", words.join(" ")))),
        }
    }
}

/// What became of the tries of an operation.
#[derive(Debug, Default)]
struct Tried {
    /// Those that changed something.
    happened: BTreeSet<Node>,
    /// The last one that gave something, and what.
    gave: Option<(Node, Outcome)>,
    /// Those that failed for what they compared, and at which operation.
    failed: Vec<(Node, usize)>,
}

impl Tried {
    /// The last one that failed there.
    fn failed_at(&self, index: usize) -> Option<Node> {
        let failed = self.failed.iter().rev();
        failed.copied().find(|(_, at)| *at == index).map(|(node, _)| node)
    }
}

fn outcome_of(reply: &StoreReply) -> Outcome {
    let results = match reply {
        StoreReply::Put => vec![OperationResult::Written],
        StoreReply::Value(value) => vec![OperationResult::Value(value.clone())],
        StoreReply::Deleted { existed } => vec![OperationResult::Deleted { existed: *existed }],
        StoreReply::Transaction(result) => match result.failed {
            Some(operation) => return Outcome::Failed { operation: operation as usize },
            None => result.results.clone(),
        },
    };
    Outcome::Committed(results.into())
}

/// What a command read there, that is not ordered.
fn reads_of_command(
    command: &StoreCommand,
    reply: &StoreReply,
    replayed: &Replayed,
    place: usize,
) -> Vec<Reads> {
    match command {
        StoreCommand::Get { key } => {
            reads_of(&Operation::Read { key: key.clone() }, None).into_iter().collect()
        }
        StoreCommand::Transaction(transaction) => {
            let StoreReply::Transaction(result) = reply else { return Vec::new() };
            if let Some(failed) = result.failed {
                let failed = transaction.operations.get(failed as usize);
                return failed.and_then(|one| reads_of(one, None)).into_iter().collect();
            }
            let mut reads = replayed.left_out(place, &transaction.operations, &result.results);
            let with = transaction.operations.iter().enumerate();
            reads.extend(with.filter_map(|(index, one)| reads_of(one, result.results.get(index))));
            reads
        }
        StoreCommand::Put { .. } | StoreCommand::Delete { .. } => Vec::new(),
    }
}

impl Treasury {
    /// Whether these are what all accounts hold, or none has been made yet.
    fn check(&self, values: &[Option<Bytes>]) -> Check {
        let held: Vec<&Bytes> = values.iter().flatten().collect();
        let amount = |value: &&Bytes| crate::deployment::money(value);
        let sum: Option<i64> = held.iter().map(amount).sum();
        if held.is_empty() || (held.len() == self.accounts.len() && sum == Some(self.total)) {
            return Ok(());
        }
        let what = format!("{values:?} come to {sum:?}, not {}", self.total);
        Err(Broken::new(RULE_MONEY, what))
    }
}
