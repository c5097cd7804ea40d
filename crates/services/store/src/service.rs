//! The store as a [`Service`].

use crate::command::{Request, Transaction, key_of};
use crate::fullness::Fullness;
use crate::interface::StoreInterface;
use crate::map::{Full, PartialMap, SegmentMap};
use crate::partition::{
    Asker, Blocker, Entries, Partition, PartitionCommand, PartitionReply, StorePartition, Touched,
    Wanted,
};
use crate::plan::{Plan, exceed};
use crate::reply::StoreReply;
use bytes::Bytes;
use perdura_execution::{
    Entry, ExecutionContext, FailingMemory, Failure, Interface, Measure, Meter, QueryContext,
    Readable, Release, RestoreError, Service, Snapshot, StateLimit,
};
use perdura_protocol::{Encode, SessionId, Time, seeded};
use std::sync::Arc;

/// The newest version of the store's rules. 2: what a partition remembers, and holds for what is pending, is bounded by client key, whoever causes it.
/// 3: who waits for locks leaves marks; what a partition remembers is what is stuck; and only what is new shows that another one lives.
pub(crate) const VERSION: u16 = 3;

/// The store of one replica.
#[derive(Debug)]
pub struct Store {
    map: SegmentMap,
    limit: StateLimit,
    /// Of a store that has several.
    partition: Option<Box<Partition>>,
    /// What is installed of a state.
    partial: Option<Partial>,
}

/// The first segments of a state.
#[derive(Debug, Default)]
struct Partial {
    entries: PartialMap,
    /// Of a partition, from its first segment on.
    book: Option<PartialMap>,
}

impl Store {
    /// An empty store. Entries count their key, their value and
    /// [`crate::limits::ENTRY_OVERHEAD_BYTES`]; what would make their sum grow beyond
    /// `state_limit_bytes` is refused, the same way on every replica. Deletes never are.
    #[must_use]
    pub fn new(state_limit_bytes: u64) -> Store {
        let limit = StateLimit::of_bytes(state_limit_bytes);
        Store { map: SegmentMap::new(), limit, partition: None, partial: None }
    }

    /// An empty partition of a store.
    #[must_use]
    pub fn partitioned(state_limit_bytes: u64, place: StorePartition) -> Store {
        let partition = Some(Box::new(Partition::new(place)));
        Store { partition, ..Store::new(state_limit_bytes) }
    }

    /// What the entries count for, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.map.entries()
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.map.segments()
    }

    fn full(&self) -> String {
        let StateLimit { bytes, segments } = self.limit;
        if self.map.segments() < segments {
            format!(
                "the store is full: it would exceed its limit of {bytes} bytes (state_limit_mib of the cluster); delete something first"
            )
        } else {
            format!(
                "the store is full: it may grow only while it has fewer than {segments} segments; delete something first"
            )
        }
    }

    fn is_for_partition(&self, command: &[u8]) -> bool {
        self.partition.as_ref().is_some_and(|partition| partition.is_asked_by(command))
    }

    /// How large the entries may become.
    fn room(&self) -> StateLimit {
        let partition = self.partition.as_deref();
        partition.map_or(self.limit, |partition| partition.unreserved(self.limit))
    }

    /// In a partition: what keeps a command of one key from it, if anything does.
    fn hindrance(&self, request: &Request) -> Result<Option<Bytes>, String> {
        let Some(partition) = &self.partition else { return Ok(None) };
        let (key, blocker) = match request {
            Request::Get { .. } if seeded!(ReadsThroughLocks) => return Ok(None),
            Request::Get { key } => (key, partition.against_read(key)),
            Request::Put { key, .. } | Request::Delete { key } => {
                (key, partition.against_write(key))
            }
            Request::Transaction(_) => return Ok(None),
        };
        check_place(partition, key)?;
        Ok(blocker.map(blocked_by))
    }

    /// The same of a transaction.
    fn blocked(&self, transaction: &Transaction, plan: &Plan) -> Result<Option<Bytes>, String> {
        let Some(partition) = &self.partition else { return Ok(None) };
        let touched = Touched::of(transaction, plan.seen.clone());
        touched
            .reads
            .iter()
            .chain(&touched.writes)
            .try_for_each(|key| check_place(partition, key))?;
        Ok(partition.against(&touched).map(blocked_by))
    }

    fn note_blocked(&mut self) {
        if let Some(partition) = &mut self.partition {
            partition.note_blocked();
        }
    }

    /// Who wants this has his answer: it was done, or did not hold.
    fn note_answered(&mut self, session: SessionId, done: bool, wanted: impl FnOnce() -> Wanted) {
        if let Some(partition) = self.partition.as_mut().filter(|one| one.has_mark(session)) {
            match done {
                true => partition.answered(session, wanted().digest()),
                false => partition.refused(session, wanted().digest()),
            }
        }
    }

    fn note_change(&mut self, key: &[u8]) {
        if let Some(partition) = &mut self.partition {
            partition.note_change(key);
        }
    }

    fn read(&self, transaction: &Transaction, meter: &Meter) -> Result<Bytes, String> {
        let plan = Plan::of(&self.map, transaction, meter)?;
        let blocked = self.blocked(transaction, &plan)?;
        Ok(blocked.unwrap_or_else(|| StoreReply::Transaction(plan.result).to_bytes()))
    }

    fn query_partition(&self, command: &[u8], meter: &Meter) -> Option<Result<Bytes, String>> {
        let partition = self.partition.as_ref()?;
        match PartitionCommand::read(command) {
            Ok(command) if !command.is_read() => None,
            Ok(PartitionCommand::Validate { since, operations }) => {
                let reply = partition.validate(&self.map, since, &operations, meter);
                Some(reply.map(|reply| reply.to_bytes()))
            }
            Ok(command) => Some(partition.query(&command).map(|reply| reply.to_bytes())),
            Err(error) => Some(Err(error)),
        }
    }

    /// Answers what only reads.
    fn answer(&self, command: &[u8], meter: &Meter) -> Option<Result<Bytes, String>> {
        if Fullness::is_asked_by(command) {
            return Some(Ok(Fullness::of(&self.map, self.room(), self.limit).to_bytes()));
        }
        if self.is_for_partition(command) {
            return self.query_partition(command, meter);
        }
        match Request::decode(command) {
            Ok(request @ Request::Get { key }) => Some(match self.hindrance(&request) {
                Ok(hindrance) => Ok(hindrance.unwrap_or_else(|| found(self.map.get(key)))),
                Err(error) => Err(error),
            }),
            Ok(Request::Transaction(transaction)) if transaction.is_read() => {
                Some(self.read(&transaction, meter))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    fn transact(
        &mut self,
        session: SessionId,
        transaction: &Transaction,
        meter: &Meter,
    ) -> Result<Bytes, String> {
        let plan = Plan::of(&self.map, transaction, meter)?;
        if let Some(blocked) = self.blocked(transaction, &plan)? {
            self.note_blocked();
            return Ok(blocked);
        }
        self.note_answered(session, plan.result.failed.is_none(), || {
            Wanted::by(&transaction.operations)
        });
        if exceed(&plan.changes, &self.map, self.room()) {
            return Err(self.full());
        }
        for (key, value) in &plan.changes {
            self.note_change(key);
            match value {
                Some(value) => {
                    self.map.put(key, value, u64::MAX).map_err(|Full| self.full())?;
                }
                None => {
                    self.map.remove(key);
                }
            }
        }
        Ok(StoreReply::Transaction(plan.result).to_bytes())
    }

    fn carry_out(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        if let Some(partition) = &mut self.partition {
            partition.enter(context.slot);
            if partition.is_asked_by(command) {
                let command = PartitionCommand::read(command)?;
                let ExecutionContext { session, administrator, other, time, .. } = *context;
                let entries = Entries { map: &mut self.map, limit: self.limit };
                let asker =
                    Asker { session, administrator, standing: other, meter: &context.meter, time };
                let reply = partition.execute(entries, &asker, command)?;
                return Ok(reply.to_bytes());
            }
            partition.admit(context.session.client)?;
        }
        let request = Request::decode(command).map_err(|error| error.to_string())?;
        if let Some(hindrance) = self.hindrance(&request)? {
            self.note_blocked();
            return Ok(hindrance);
        }
        let session = context.session;
        match &request {
            Request::Get { key } => {
                self.note_answered(session, true, || Wanted::of_key(key, false))
            }
            Request::Put { key, .. } | Request::Delete { key } => {
                self.note_answered(session, true, || Wanted::of_key(key, true));
            }
            Request::Transaction(_) => {}
        }
        match request {
            Request::Get { key } => Ok(found(self.map.get(key))),
            Request::Put { key, value } => {
                match self.map.put(key, value, self.map.room(self.room())) {
                    Ok(()) => {
                        self.note_change(key);
                        Ok(Bytes::from_static(&[StoreReply::PUT]))
                    }
                    Err(Full) => Err(self.full()),
                }
            }
            Request::Delete { key } => {
                self.note_change(key);
                Ok(deleted(self.map.remove(key)))
            }
            Request::Transaction(transaction) => {
                self.transact(session, &transaction, &context.meter)
            }
        }
    }
}

pub(crate) fn check_place(partition: &Partition, key: &[u8]) -> Result<(), String> {
    let StorePartition { map, partition: here, .. } = partition.place();
    let there = map.partition_of(key);
    if there == *here {
        return Ok(());
    }
    Err(format!("the key is in partition {}, and this is partition {}", there.0, here.0))
}

fn blocked_by(blocker: Blocker) -> Bytes {
    PartitionReply::Blocked(blocker).to_bytes()
}

fn found(value: Option<&[u8]>) -> Bytes {
    let Some(value) = value else { return Bytes::from_static(&[StoreReply::ABSENT]) };
    let mut out = Vec::with_capacity(1 + value.len());
    out.push(StoreReply::PRESENT);
    out.extend_from_slice(value);
    out.into()
}

fn deleted(existed: bool) -> Bytes {
    if existed {
        Bytes::from_static(&[StoreReply::DELETED])
    } else {
        Bytes::from_static(&[StoreReply::DELETED_NOTHING])
    }
}

impl FailingMemory for Store {
    fn flip_bit(&mut self, at: u64) -> bool {
        self.map.flip_bit(at)
    }
}

impl Readable for Store {
    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        Service::query(self, context, command)
    }
}

impl Service for Store {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        Ok(self.carry_out(context, command)?)
    }

    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        if let Some(partition) = &self.partition
            && !partition.is_asked_by(command)
            && let Err(error) = partition.admit(context.client)
        {
            return Some(Err(error));
        }
        self.answer(command, context.meter)
    }

    /// What a partition remembers beside its entries is shared with nobody.
    fn readable(&self) -> Option<Arc<dyn Readable>> {
        self.partition.is_none().then(|| -> Arc<dyn Readable> {
            let (map, limit) = (self.map.clone(), self.limit);
            Arc::new(Store { map, limit, partition: None, partial: None })
        })
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        match &self.partition {
            None => self.map.snapshot(),
            Some(partition) => Arc::new(Both(self.map.snapshot(), partition.book().snapshot())),
        }
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        let partial = self.partial.get_or_insert_default();
        // A map's first segment begins with the empty key, and no other one does.
        if self.partition.is_some() && index > 0 && segment.starts_with(&[0; 4]) {
            partial.book.get_or_insert_default().install(index, segment)
        } else {
            partial.book.as_mut().unwrap_or(&mut partial.entries).install(index, segment)
        }
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        let Partial { entries, book } = self.partial.take().unwrap_or_default();
        if let Some(partition) = &mut self.partition {
            let book = book.unwrap_or_default().whole()?;
            let place = partition.place().clone();
            **partition = Partition::restore(place, book)?.counting_on(partition);
        }
        self.map = entries.whole()?;
        if self.map.bytes() > self.limit.bytes {
            return Err(RestoreError::Contradiction("the store exceeds its limit"));
        }
        Ok(())
    }

    fn interface(&self) -> Arc<dyn Interface> {
        let place = self.partition.as_ref().map(|partition| partition.place().clone());
        Arc::new(StoreInterface { place })
    }

    fn prefetch(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        if self.map.looks_ahead() {
            self.map.look_ahead(&commands.filter_map(key_of).collect::<Vec<_>>());
        }
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        let partition = self.partition.as_ref().filter(|one| one.is_asked_by(command));
        partition.is_none_or(|partition| partition.may_be_put_off(command))
    }

    fn on_time(&mut self, clock: Time, _: &mut Vec<Release>) {
        if let Some(partition) = &mut self.partition {
            partition.on_time(clock);
        }
    }

    fn due(&self) -> Option<Time> {
        self.partition.as_ref()?.due()
    }

    fn session_ended(&mut self, session: SessionId) {
        if let Some(partition) = &mut self.partition {
            partition.session_ended(session);
        }
    }

    fn state_bytes(&self) -> u64 {
        let book = self.partition.as_ref().map_or(0, |partition| partition.book().bytes());
        self.map.bytes() + book
    }

    fn measures(&self) -> Vec<Measure> {
        self.partition.as_ref().map_or_else(Vec::new, |partition| partition.measures())
    }

    fn newest_version(&self) -> u16 {
        VERSION
    }

    fn set_version(&mut self, version: u16) {
        if let Some(partition) = &mut self.partition {
            partition.set_version(version);
        }
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.limit = limit;
    }
}

/// One map's segments, and behind them those of another one.
struct Both(Arc<dyn Snapshot>, Arc<dyn Snapshot>);

impl Both {
    fn at(&self, index: usize) -> (&dyn Snapshot, usize) {
        match index.checked_sub(self.0.segments()) {
            None => (&*self.0, index),
            Some(index) => (&*self.1, index),
        }
    }
}

impl Snapshot for Both {
    fn segments(&self) -> usize {
        self.0.segments() + self.1.segments()
    }

    fn segment(&self, index: usize) -> Bytes {
        let (of, index) = self.at(index);
        of.segment(index)
    }

    fn entry(&self, index: usize) -> Entry {
        let (of, index) = self.at(index);
        of.entry(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreCommand;
    use crate::prefetch::CAN_PREFETCH;
    use crate::random::choices;

    /// Whatever is found there only moves memory about, so the keys are compared, and bytes of any kind tried on a
    /// state that is large enough.
    #[test]
    fn the_keys_of_commands_are_known_ahead() {
        let mut store = Store::new(1 << 30);
        let key = |number: u32| Bytes::from(format!("key-{number:012}").into_bytes());
        for number in 0..20_000 {
            store.map.put(&key(number), &[7; 512], u64::MAX).unwrap();
        }
        assert!(store.map.looks_ahead() || !CAN_PREFETCH);
        let value = || Bytes::from_static(b"value");
        let mut commands: Vec<Bytes> = Vec::new();
        for number in (0..30_000).step_by(50) {
            let key = key(number);
            for command in [
                StoreCommand::Get { key: key.clone() },
                StoreCommand::Put { key: key.clone(), value: value() },
                StoreCommand::Delete { key: key.clone() },
            ] {
                let encoded = command.to_bytes();
                assert_eq!(key_of(&encoded), Some(&key[..]));
                commands.push(encoded);
            }
        }
        let other = StoreCommand::Transaction(Transaction { operations: Vec::new() });
        assert_eq!(key_of(&other.to_bytes()), None);
        let mut choose = choices(11);
        for _ in 0..20_000 {
            let mut command = commands[choose(1800)].to_vec();
            command.truncate(choose(40));
            if let Some(byte) = command.get_mut(choose(6)) {
                *byte ^= 1 << choose(8);
            }
            commands.push(command.into());
        }
        store.prefetch(&mut commands.iter().map(|command| &command[..]));
    }
}
