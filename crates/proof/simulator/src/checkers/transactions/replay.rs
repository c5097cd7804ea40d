//! One partition, as its executed commands have it: what each read and wrote and when, what was voted, and how it ended.

use super::hearing::Hearing;
use super::remembered::Remembered;
use super::{Node, RULE_ALIVE, RULE_ATOMIC, RULE_HEARD, RULE_ORDER, RULE_REMEMBERED, RULE_ROOM};
use crate::checkers::commit_order::Model;
use crate::report::TransactionCounts;
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use bytes::Bytes;
use perdura_oracle::{Call, Return, text};
use perdura_protocol::{Attestation, Decode, PartitionId, PublicKey, SessionId, Time};
use perdura_store::partition::{
    Certificate, Intent, PartitionCommand, PartitionReply, Reason, TransactionId, Vote,
};
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is read: a key, or all keys from one on and below another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reads {
    Key(String),
    Range(String, Option<String>),
}

/// A part of a transaction over several partitions.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub intent: Intent,
    pub operations: Vec<Operation>,
    /// How it was voted on first.
    pub vote: Vote,
    pub prepared: usize,
    pub results: Vec<OperationResult>,
    /// Whether it committed, and where that stands.
    pub ended: Option<(bool, usize)>,
}

/// What became of a command of this partition alone.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub command: StoreCommand,
    pub reply: StoreReply,
}

/// See the module. Places count executed commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Replayed {
    pub parts: BTreeMap<TransactionId, Part>,
    /// Votes to abort what was never prepared here.
    pub refused: BTreeMap<TransactionId, Reason>,
    pub locals: BTreeMap<usize, Local>,
    /// By key, in order: where it was written, and by whom.
    pub writes: BTreeMap<String, Vec<(usize, Node)>>,
    pub reads: Vec<(usize, Node, Reads)>,
    /// Before each command, and behind the last one: the entries, and the keys that are being written.
    pub states: Vec<(Model, Arc<BTreeSet<String>>)>,
}

fn key_of(key: &[u8]) -> String {
    text(key)
}

/// What an operation of a transaction reads, given what it got.
pub(super) fn reads_of(operation: &Operation, result: Option<&OperationResult>) -> Option<Reads> {
    match operation {
        Operation::Cmp { key, .. }
        | Operation::Read { key }
        | Operation::Insert { key, .. }
        | Operation::Write { key, only_if_present: true, .. }
        | Operation::Delete { key } => Some(Reads::Key(key_of(key))),
        Operation::Write { .. } => None,
        Operation::ReadRange { start, end, reverse, .. } => {
            let (mut start, mut end) = (key_of(start), end.as_deref().map(key_of));
            if let Some(OperationResult::Entries { entries, more: true }) = result
                && let Some((last, _)) = entries.iter().last()
            {
                // Nothing is said of what lies beyond.
                if *reverse {
                    start = key_of(&last);
                } else {
                    end = Some(format!("{}\0", key_of(&last)));
                }
            }
            Some(Reads::Range(start, end))
        }
    }
}

impl Replayed {
    /// What somebody reads there who is told that there is more of a range than he is given: that the first key which was left out is there.
    /// He may have put it there himself.
    pub fn left_out(
        &self,
        place: usize,
        operations: &[Operation],
        results: &[OperationResult],
    ) -> Vec<Reads> {
        let Some((model, _)) = self.states.get(place) else { return Vec::new() };
        let with = operations.iter().zip(results).enumerate();
        let left_out = with.filter_map(|(index, (operation, result))| {
            let OperationResult::Entries { entries, more: true } = result else { return None };
            let Operation::ReadRange { start, end, reverse, .. } = operation else { return None };
            let (start, end) = (key_of(start), end.as_deref().map(key_of));
            let last = key_of(&entries.iter().last()?.0);
            let own: BTreeSet<String> = operations[..index].iter().filter_map(writes_of).collect();
            let keys = model.keys(&start, end.as_deref(), *reverse);
            let is_beyond = |key: &&str| if *reverse { **key < *last } else { **key > *last };
            let mut beyond = keys.into_iter().filter(is_beyond);
            let next = beyond.find(|key| !own.contains(*key))?;
            let is_own = |key: &String| {
                let within = *key >= start && end.as_ref().is_none_or(|end| key < end);
                let before = if *reverse { **key > *next } else { **key < *next };
                within && before && is_beyond(&&**key)
            };
            // Then the other one need not be there.
            (!own.iter().any(is_own)).then(|| Reads::Key(next.to_owned()))
        });
        left_out.collect()
    }
}

fn writes_of(operation: &Operation) -> Option<String> {
    match operation {
        Operation::Insert { key, .. }
        | Operation::Write { key, .. }
        | Operation::Delete { key } => Some(key_of(key)),
        Operation::Cmp { .. } | Operation::Read { .. } | Operation::ReadRange { .. } => None,
    }
}

fn call_of(operations: &[Operation]) -> Call {
    let transaction = Transaction { operations: operations.to_vec() };
    Call::from(&StoreCommand::Transaction(transaction))
}

fn return_of(results: &[OperationResult]) -> Return {
    let result = perdura_store::TransactionResult {
        committed: true,
        failed: None,
        results: results.to_vec(),
    };
    Return::from(&StoreReply::Transaction(result))
}

/// A command and its reply, being replayed.
struct Replay<'a> {
    partition: usize,
    all: Replayed,
    model: Model,
    locked: Arc<BTreeSet<String>>,
    /// Up to where sessions are fenced off.
    fences: BTreeMap<SessionId, u64>,
    /// Numbers of the newest configurations of other groups that are known here.
    members: BTreeMap<PartitionId, u64>,
    remembered: Remembered,
    hearing: Hearing,
    counts: &'a mut TransactionCounts,
}

/// Replays what a partition executed.
pub(super) fn replay<'a>(
    (partition, partitions, limit_bytes): (usize, usize, u64),
    order: impl Iterator<Item = &'a Execution>,
    counts: &mut TransactionCounts,
) -> Result<Replayed, Broken> {
    let mut replay = Replay {
        partition,
        all: Replayed::default(),
        model: Model::default(),
        locked: Arc::default(),
        fences: BTreeMap::new(),
        members: BTreeMap::new(),
        remembered: Remembered::default(),
        hearing: Hearing::default(),
        counts,
    };
    for (place, execution) in order.enumerate() {
        replay.all.states.push((replay.model.clone(), Arc::clone(&replay.locked)));
        let Some(Ok(reply)) = &execution.reply else {
            replay.refused(execution)?;
            continue;
        };
        if execution.command.first().is_some_and(|tag| *tag >= 16) {
            replay.of_partition(place, execution, reply)?;
        } else if PartitionReply::is_one(reply) {
            replay.counts.blocked += 1;
        } else {
            replay.local(place, execution, reply)?;
        }
        let bytes = replay.model.bytes();
        if bytes > limit_bytes {
            let what = format!("{execution:?} made it {bytes} bytes, more than {limit_bytes}");
            return Err(replay.broken(RULE_ROOM, what));
        }
        let beside = execution.state_bytes.saturating_sub(bytes);
        let most = replay.remembered.bytes_at_most(partitions);
        if beside > most {
            let what =
                format!("{execution:?} left {beside} bytes beside the entries, more than {most}");
            return Err(replay.broken(RULE_REMEMBERED, what));
        }
    }
    replay.all.states.push((replay.model, replay.locked));
    Ok(replay.all)
}

impl Replay<'_> {
    fn broken(&self, rule: &'static str, what: String) -> Broken {
        Broken::new(rule, format!("partition {}: {what}", self.partition))
    }

    /// What is shown the votes of all others is never refused: its room was kept.
    fn refused(&self, execution: &Execution) -> Check {
        let command = PartitionCommand::from_bytes(execution.command.clone());
        let Ok(PartitionCommand::Finish { transaction, commit: true, votes }) = command else {
            return Ok(());
        };
        let part = self.all.parts.get(&transaction).filter(|part| part.ended.is_none());
        let Some(part) = part.filter(|part| !part.intent.read_only) else { return Ok(()) };
        let others = part.intent.others(PartitionId(self.partition as u16));
        let others: BTreeSet<PartitionId> = others.map(|one| one.partition).collect();
        if votes.iter().map(|vote| vote.partition).collect::<BTreeSet<PartitionId>>() != others {
            return Ok(());
        }
        let what = format!("{execution:?} is refused, and {:?} was voted for", part.intent);
        Err(self.broken(RULE_ROOM, what))
    }

    fn local(&mut self, place: usize, execution: &Execution, reply: &Bytes) -> Check {
        let command = StoreCommand::decode(&execution.command).ok();
        let reply = StoreReply::from_bytes(reply.clone()).ok();
        let (Some(command), Some(reply)) = (command, reply) else {
            return Err(
                self.broken(RULE_ORDER, format!("{execution:?} is no command with its reply"))
            );
        };
        let expected = self.model.run(&Call::from(&command));
        if Return::from(&reply) != expected {
            let what = format!("{command:?} gave {reply:?}, the model {expected:?}");
            return Err(self.broken(RULE_ORDER, what));
        }
        let node = Node::Local(self.partition, place);
        let operations = match &command {
            StoreCommand::Get { key } => vec![Operation::Read { key: key.clone() }],
            StoreCommand::Put { key, value } => {
                let (key, value) = (key.clone(), value.clone());
                vec![Operation::Write { key, value, only_if_present: false }]
            }
            StoreCommand::Delete { key } => vec![Operation::Delete { key: key.clone() }],
            StoreCommand::Transaction(transaction) => transaction.operations.clone(),
        };
        match &reply {
            StoreReply::Transaction(result) if !result.committed => {
                // It read what failed it.
                let failed = result.failed.and_then(|index| operations.get(index as usize));
                let reads = failed.and_then(|operation| reads_of(operation, None));
                self.all.reads.extend(reads.map(|reads| (place, node, reads)));
            }
            StoreReply::Transaction(result) => {
                self.touch(place, place, node, &operations, &result.results);
            }
            _ => self.touch(place, place, node, &operations, &[]),
        }
        self.all.locals.insert(place, Local { command, reply });
        Ok(())
    }

    /// Notes what a transaction read and wrote, and where.
    fn touch(
        &mut self,
        read: usize,
        written: usize,
        node: Node,
        operations: &[Operation],
        results: &[OperationResult],
    ) {
        let left_out = self.all.left_out(read, operations, results);
        self.all.reads.extend(left_out.into_iter().map(|reads| (read, node, reads)));
        for (index, operation) in operations.iter().enumerate() {
            let reads = reads_of(operation, results.get(index));
            self.all.reads.extend(reads.map(|reads| (read, node, reads)));
            if let Some(key) = writes_of(operation) {
                let writes = self.all.writes.entry(key).or_default();
                if writes.last() != Some(&(written, node)) {
                    writes.push((written, node));
                }
            }
        }
    }

    fn of_partition(&mut self, place: usize, execution: &Execution, reply: &Bytes) -> Check {
        let command = PartitionCommand::from_bytes(execution.command.clone());
        let (Ok(command), Ok(reply)) = (command, PartitionReply::from_bytes(reply.clone())) else {
            return Err(
                self.broken(RULE_ORDER, format!("{execution:?} is no command with its reply"))
            );
        };
        self.allowed(execution, &command, &reply)?;
        self.remember(execution.session.client, &command, &reply)?;
        self.hear(execution, &command, &reply)?;
        match (command, reply) {
            (
                PartitionCommand::Prepare { intent, operations },
                PartitionReply::Voted { transaction, vote, results, .. },
            ) => self.prepared(place, transaction, (intent, operations), vote, results),
            (
                PartitionCommand::PrepareLast { intent, operations, .. },
                PartitionReply::Voted { transaction, vote, results, .. },
            ) => self.decided(place, transaction, (intent, operations), vote, results),
            (PartitionCommand::Resolve { .. }, PartitionReply::Voted { transaction, vote, .. }) => {
                self.voted(transaction, vote)
            }
            (
                PartitionCommand::Finish { .. },
                PartitionReply::Finished { transaction, committed },
            ) => self.finished(place, transaction, committed),
            (_, PartitionReply::Fenced { session, below, .. }) => {
                let known = self.fences.entry(session).or_default();
                *known = below.max(*known);
                Ok(())
            }
            (_, PartitionReply::Known { partition, configuration }) => {
                self.members.insert(partition, configuration);
                Ok(())
            }
            (_, PartitionReply::Expired { .. }) => {
                self.counts.expired += 1;
                Ok(())
            }
            (_, PartitionReply::Forgotten { count }) => {
                self.counts.forgotten += u64::from(count);
                Ok(())
            }
            (_, PartitionReply::Outdated { .. }) => {
                self.counts.outdated += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether it hears of those that it waits for.
    fn hear(
        &mut self,
        execution: &Execution,
        command: &PartitionCommand,
        reply: &PartitionReply,
    ) -> Check {
        let here = PartitionId(self.partition as u16);
        let clock = Time(execution.time.0 - execution.ahead_ms);
        match (command, reply) {
            (
                PartitionCommand::Prepare { intent, .. },
                PartitionReply::Voted { transaction, vote: Vote::Commit, .. },
            ) if !self.all.parts.contains_key(transaction) => {
                let prepares = self.hearing.prepares(here, intent, clock);
                prepares.map_err(|why| self.broken(RULE_HEARD, format!("{intent:?}: {why}")))
            }
            (PartitionCommand::Forget { fences, .. }, PartitionReply::Forgotten { .. }) => {
                self.hearing.shown(fences, execution.time, clock);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What has to be remembered of it.
    fn remember(
        &mut self,
        asker: PublicKey,
        command: &PartitionCommand,
        reply: &PartitionReply,
    ) -> Check {
        match (command, reply) {
            (
                PartitionCommand::Prepare { intent, .. }
                | PartitionCommand::PrepareLast { intent, .. }
                | PartitionCommand::Resolve { intent, .. },
                PartitionReply::Voted { transaction, vote, .. },
            ) => {
                let is_known = self.all.parts.contains_key(transaction)
                    || self.all.refused.contains_key(transaction);
                let own = intent.participant(PartitionId(self.partition as u16));
                let Some(own) = own.filter(|_| !is_known) else { return Ok(()) };
                if *vote == Vote::Abort(Reason::Fenced) {
                    return Ok(());
                }
                let begins = self.remembered.begins(asker, intent.session(own), intent);
                begins.map_err(|why| self.broken(RULE_REMEMBERED, format!("{intent:?}: {why}")))
            }
            (PartitionCommand::Forget { session, .. }, PartitionReply::Forgotten { count }) => {
                self.remembered.forgets(*session, *count);
                Ok(())
            }
            (_, PartitionReply::Fenced { session, .. }) => {
                self.remembered.fenced(*session);
                Ok(())
            }
            (PartitionCommand::Mark { wanted, .. }, PartitionReply::Marked { .. }) => {
                self.remembered.marked(asker, wanted);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Nobody ends what he may not, nobody is believed who is no member any more, and what is fenced off does not come.
    fn allowed(
        &self,
        execution: &Execution,
        command: &PartitionCommand,
        reply: &PartitionReply,
    ) -> Check {
        let client = execution.session.client;
        let pending = |transaction: &TransactionId| {
            self.all.parts.get(transaction).filter(|part| part.ended.is_none())
        };
        let shown: &[Certificate] = match (command, reply) {
            (
                PartitionCommand::Finish { transaction, votes, .. },
                PartitionReply::Finished { .. },
            ) => {
                let Some(part) = pending(transaction) else { return Ok(()) };
                let is_own = part.intent.client == client && part.intent.read_only;
                if votes.is_empty() && !is_own {
                    let what = format!("{execution:?} ended {:?} without a vote", part.intent);
                    return Err(self.broken(RULE_ATOMIC, what));
                }
                votes
            }
            (
                PartitionCommand::Resolve { intent, expired },
                PartitionReply::Voted { transaction, vote: Vote::Abort(Reason::Resolved), .. },
            ) => {
                let is_known = self.all.parts.contains_key(transaction)
                    || self.all.refused.contains_key(transaction);
                if !is_known && intent.client != client && expired.is_none() {
                    let what = format!("{execution:?} ended {intent:?}, which has not expired");
                    return Err(self.broken(RULE_ALIVE, what));
                }
                // Its own client needs no proof, so whatever it shows counts for nothing.
                if is_known || intent.client == client { &[] } else { expired.as_slice() }
            }
            (
                PartitionCommand::Prepare { intent, .. }
                | PartitionCommand::PrepareLast { intent, .. },
                PartitionReply::Voted { vote: Vote::Commit, .. },
            ) => {
                let below = self.fences.get(&execution.session).copied().unwrap_or_default();
                if intent.counter < below && !self.all.parts.contains_key(&intent.id()) {
                    let what = format!("prepared {intent:?}, below the fence {below}");
                    return Err(self.broken(RULE_ATOMIC, what));
                }
                let PartitionCommand::PrepareLast { votes, .. } = command else { return Ok(()) };
                let others = intent.others(PartitionId(self.partition as u16));
                let missing = others.map(|one| one.partition);
                let missing = missing.filter(|one| votes.iter().all(|vote| vote.partition != *one));
                if let Some(missing) = missing.last() {
                    let what = format!("{intent:?} was decided without the vote of {missing}");
                    return Err(self.broken(RULE_ATOMIC, what));
                }
                votes
            }
            _ => &[],
        };
        for certificate in shown {
            let known = self.members.get(&certificate.partition).copied().unwrap_or_default();
            let other = |(_, one): &(PublicKey, Attestation)| one.configuration != known;
            if certificate.signers.iter().any(other) {
                let what = format!(
                    "{certificate:?} counted in {command:?} of {client}, and configuration {known} is known"
                );
                return Err(self.broken(RULE_ATOMIC, what));
            }
        }
        Ok(())
    }

    fn prepared(
        &mut self,
        place: usize,
        transaction: TransactionId,
        (intent, operations): (Intent, Vec<Operation>),
        vote: Vote,
        results: Option<Vec<OperationResult>>,
    ) -> Check {
        let is_new = !self.all.parts.contains_key(&transaction)
            && !self.all.refused.contains_key(&transaction);
        if !is_new {
            return self.voted(transaction, vote);
        }
        self.counts.count_vote(&vote);
        let Vote::Commit = vote else {
            if let Vote::Abort(Reason::Failed { operation }) = vote {
                let gives = self.model.ask(&call_of(&operations));
                if gives != Return::Failed(operation) {
                    let what =
                        format!("{operations:?} failed at {operation}, in the model {gives:?}");
                    return Err(self.broken(RULE_ORDER, what));
                }
                // It holds nothing, and may be all that its client is told.
                let node = Node::Failed(self.partition, transaction);
                let failed = operations.get(operation as usize);
                let reads = failed.and_then(|operation| reads_of(operation, None));
                self.all.reads.extend(reads.map(|reads| (place, node, reads)));
            }
            let Vote::Abort(reason) = &vote else { return Ok(()) };
            self.all.refused.insert(transaction, reason.clone());
            let part = Part {
                intent,
                operations,
                vote,
                prepared: place,
                results: Vec::new(),
                ended: Some((false, place)),
            };
            self.all.parts.insert(transaction, part);
            return Ok(());
        };
        let results = results.unwrap_or_default();
        let gives = self.model.ask(&call_of(&operations));
        if gives != return_of(&results) {
            let what = format!("{operations:?} gave {results:?}, the model {gives:?}");
            return Err(self.broken(RULE_ORDER, what));
        }
        self.remembered.holds(transaction, &operations, &results);
        let locked = Arc::make_mut(&mut self.locked);
        locked.extend(operations.iter().filter_map(writes_of));
        let part = Part { intent, operations, vote, prepared: place, results, ended: None };
        self.all.parts.insert(transaction, part);
        Ok(())
    }

    /// With the votes of the others: what it votes for has happened.
    fn decided(
        &mut self,
        place: usize,
        transaction: TransactionId,
        part: (Intent, Vec<Operation>),
        vote: Vote,
        results: Option<Vec<OperationResult>>,
    ) -> Check {
        let commit = vote == Vote::Commit;
        self.prepared(place, transaction, part, vote, results)?;
        if commit { self.finished(place, transaction, true) } else { Ok(()) }
    }

    /// A vote is given, perhaps again.
    fn voted(&mut self, transaction: TransactionId, vote: Vote) -> Check {
        let fenced = vote == Vote::Abort(Reason::Fenced);
        if let Some(part) = self.all.parts.get(&transaction) {
            let before = part.vote == Vote::Commit;
            // What is over everywhere may be forgotten, and is fenced off then.
            if before == (vote == Vote::Commit) || (fenced && part.ended.is_some()) {
                return Ok(());
            }
            let what = format!("voted {:?} on {transaction}, and then {vote:?}", part.vote);
            return Err(self.broken(RULE_ATOMIC, what));
        }
        match vote {
            Vote::Commit => {
                let what = format!("voted to commit {transaction}, which was never prepared");
                Err(self.broken(RULE_ATOMIC, what))
            }
            Vote::Abort(reason) => {
                if !self.all.refused.contains_key(&transaction) {
                    self.counts.count_vote(&Vote::Abort(reason.clone()));
                }
                self.all.refused.entry(transaction).or_insert(reason);
                Ok(())
            }
        }
    }

    fn finished(&mut self, place: usize, transaction: TransactionId, committed: bool) -> Check {
        let Some(part) = self.all.parts.get_mut(&transaction) else {
            // It was voted on without its part.
            let known = self.all.refused.contains_key(&transaction);
            if known && !committed {
                return Ok(());
            }
            let what = format!("ended {transaction} with {committed}, which it never had");
            return Err(self.broken(RULE_ATOMIC, what));
        };
        if let Some((before, _)) = part.ended {
            if before == committed {
                return Ok(());
            }
            let what = format!("ended {transaction} with {before}, and then with {committed}");
            return Err(self.broken(RULE_ATOMIC, what));
        }
        part.ended = Some((committed, place));
        self.remembered.ends(transaction);
        self.hearing.ends(transaction);
        let part = part.clone();
        let locked = Arc::make_mut(&mut self.locked);
        part.operations.iter().filter_map(writes_of).for_each(|key| {
            locked.remove(&key);
        });
        let node = Node::Global(transaction);
        if committed {
            self.model.run(&call_of(&part.operations));
            self.touch(part.prepared, place, node, &part.operations, &part.results);
        } else if part.intent.read_only {
            // Its client may have all that it read.
            self.touch(part.prepared, place, node, &part.operations, &part.results);
        }
        Ok(())
    }
}
