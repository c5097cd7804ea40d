//! The store as a [`Service`].

use crate::command::{Operation, Request, Transaction, key_of};
use crate::map::{Full, SegmentMap};
use crate::plan::Plan;
use crate::prefetch::CAN_PREFETCH;
use crate::reply::StoreReply;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, FailingMemory, Footprint, RestoreError, Service, Snapshot, StateLimit,
};
use perdura_protocol::{Encode, seeded};
use std::sync::Arc;

/// A state below this stays in the processor's caches by itself.
const LARGE_BYTES: u64 = 8 * 1024 * 1024;

/// The store of one replica.
#[derive(Debug)]
pub struct Store {
    map: SegmentMap,
    limit: StateLimit,
}

impl Store {
    /// An empty store. Entries count their key, their value and
    /// [`crate::limits::ENTRY_OVERHEAD_BYTES`]; what would make their sum grow beyond
    /// `state_limit_bytes` is refused, the same way on every replica. Deletes never are.
    #[must_use]
    pub fn new(state_limit_bytes: u64) -> Store {
        Store { map: SegmentMap::new(), limit: StateLimit::of_bytes(state_limit_bytes) }
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

    fn transact(&mut self, transaction: &Transaction) -> Result<Bytes, String> {
        let plan = Plan::of(&self.map, transaction)?;
        if plan.exceeds(&self.map, self.limit) {
            return Err(self.full());
        }
        for (key, value) in &plan.changes {
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

impl Service for Store {
    fn footprint(&self, command: &[u8]) -> Footprint {
        let mut footprint = Footprint::new();
        match Request::decode(command) {
            Ok(Request::Get { key }) => footprint.read(key),
            Ok(Request::Put { key, .. } | Request::Delete { key }) => footprint.write(key),
            Ok(Request::Transaction(transaction)) => {
                let all = if seeded!(FirstOperationOnly) { 1 } else { usize::MAX };
                for operation in transaction.operations.iter().take(all) {
                    add(operation, &mut footprint);
                }
            }
            // Refused, whatever the state is.
            Err(_) => {}
        }
        footprint
    }

    fn anticipate(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        if CAN_PREFETCH && self.map.bytes() >= LARGE_BYTES {
            self.map.look_ahead(&commands.filter_map(key_of).collect::<Vec<_>>());
        }
    }

    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        match Request::decode(command).map_err(|error| error.to_string())? {
            Request::Get { key } => Ok(found(self.map.get(key))),
            Request::Put { key, value } => {
                match self.map.put(key, value, self.map.room(self.limit)) {
                    Ok(()) => Ok(Bytes::from_static(&[StoreReply::PUT])),
                    Err(Full) => Err(self.full()),
                }
            }
            Request::Delete { key } => Ok(deleted(self.map.remove(key))),
            Request::Transaction(transaction) => self.transact(&transaction),
        }
    }

    fn query(&self, command: &[u8]) -> Option<Result<Bytes, String>> {
        match Request::decode(command) {
            Ok(Request::Get { key }) => Some(Ok(found(self.map.get(key)))),
            Ok(Request::Transaction(transaction)) if transaction.is_read() => {
                let plan = Plan::of(&self.map, &transaction);
                Some(plan.map(|plan| StoreReply::Transaction(plan.result).to_bytes()))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    fn state_bytes(&self) -> u64 {
        self.map.bytes()
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.limit = limit;
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.map.snapshot()
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        let map = SegmentMap::restore(segments)?;
        if map.bytes() > self.limit.bytes {
            return Err(RestoreError::Contradiction("the store exceeds its limit"));
        }
        self.map = map;
        Ok(())
    }
}

/// Adds what an operation reads and writes.
fn add(operation: &Operation, footprint: &mut Footprint) {
    match operation {
        Operation::Cmp { .. } if seeded!(ComparedNotRead) => {}
        Operation::Cmp { key, .. } | Operation::Read { key } => footprint.read(key),
        Operation::ReadRange { .. } if seeded!(RangeNotInFootprint) => {}
        Operation::ReadRange { start, end, .. } => footprint.read_range(start, end.as_deref()),
        Operation::Insert { key, .. }
        | Operation::Write { key, .. }
        | Operation::Delete { key } => footprint.write(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreCommand;
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
        assert!(store.map.bytes() > LARGE_BYTES);
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
        store.anticipate(&mut commands.iter().map(|command| &command[..]));
    }
}
