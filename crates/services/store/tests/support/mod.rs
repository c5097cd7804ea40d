//! Short ways to talk to a store, a seeded generator, and the model that a store is held against.
#![allow(dead_code)] // Each test file uses its part.
#![allow(missing_docs)]

use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Service};
use perdura_protocol::{ClusterId, Decode, Digest, Encode, PublicKey, SessionId, Slot, Time};
use perdura_store::{
    Operation, OperationResult, Store, StoreCommand, StoreReply, Transaction, TransactionResult,
};
use std::collections::BTreeMap;

pub fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(1),
        clock: Time(1),
        session: SessionId { client: PublicKey([1; 32]), nonce: 1 },
        number: 1,
        cluster: ClusterId([1; 16]),
        batch: Digest::ZERO,
        administrator: PublicKey([200; 32]),
        other: None,
        meter: Default::default(),
    }
}

pub fn bytes(content: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(content.as_ref())
}

pub fn execute(store: &mut Store, command: &StoreCommand) -> Result<StoreReply, String> {
    let reply = store.order(&context(), &command.to_bytes())?;
    Ok(StoreReply::from_bytes(reply).unwrap())
}

pub fn put(store: &mut Store, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
    let command = StoreCommand::Put { key: bytes(key), value: bytes(value) };
    assert_eq!(execute(store, &command), Ok(StoreReply::Put));
}

pub fn get(store: &Store, key: impl AsRef<[u8]>) -> Option<Bytes> {
    let command = StoreCommand::Get { key: bytes(key) }.to_bytes();
    match StoreReply::from_bytes(
        store.answer(perdura_protocol::PublicKey([0; 32]), &command).unwrap().unwrap(),
    )
    .unwrap()
    {
        StoreReply::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

pub fn delete(store: &mut Store, key: impl AsRef<[u8]>) -> bool {
    match execute(store, &StoreCommand::Delete { key: bytes(key) }).unwrap() {
        StoreReply::Deleted { existed } => existed,
        other => panic!("{other:?}"),
    }
}

pub fn transact(
    store: &mut Store,
    operations: Vec<Operation>,
) -> Result<TransactionResult, String> {
    match execute(store, &StoreCommand::Transaction(Transaction { operations }))? {
        StoreReply::Transaction(result) => Ok(result),
        other => panic!("{other:?}"),
    }
}

pub fn cmp(key: &str, value: Option<&str>) -> Operation {
    Operation::Cmp { key: bytes(key), value: value.map(bytes) }
}

pub fn read(key: &str) -> Operation {
    Operation::Read { key: bytes(key) }
}

pub fn range(start: &str, end: Option<&str>, limit: u32, reverse: bool) -> Operation {
    Operation::ReadRange { start: bytes(start), end: end.map(bytes), limit, reverse }
}

pub fn insert(key: &str, value: &str) -> Operation {
    Operation::Insert { key: bytes(key), value: bytes(value) }
}

pub fn write(key: &str, value: &str, only_if_present: bool) -> Operation {
    Operation::Write { key: bytes(key), value: bytes(value), only_if_present }
}

pub fn remove(key: &str) -> Operation {
    Operation::Delete { key: bytes(key) }
}

/// A number of them, in order, with keys that begin with `a`.
pub fn small_entries() -> impl Iterator<Item = Bytes> {
    (0..1_300_u16).map(|number| bytes([b'a', (number / 250) as u8, (number % 250) as u8]))
}

/// Operations of some 16 KB that pass 512 of [`small_entries`], which they have deleted, again and again, and then read all that a reply holds: more
/// than one command may cost, which what they read alone would not be.
pub fn costly() -> Vec<Operation> {
    let deletes = small_entries().take(512).map(|key| Operation::Delete { key });
    deletes.chain((0..512).map(|_| range("a", Some("b"), 744, false))).collect()
}

/// All segments of a store, encoded.
pub fn segments(store: &Store) -> Vec<Bytes> {
    let snapshot = store.snapshot();
    (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn bytes(&mut self, length: usize) -> Bytes {
        (0..length).map(|_| self.next() as u8).collect()
    }

    pub fn key(&mut self, keys: u64) -> Bytes {
        let number = self.below(keys);
        let pad = if number.is_multiple_of(7) { "-with-a-longer-name" } else { "" };
        Bytes::from(format!("{:04}{pad}", number * 7919 % 10_000))
    }

    /// Mostly small, sometimes large enough to fill segments.
    pub fn value(&mut self) -> Bytes {
        let length = match self.below(20) {
            0 => self.below(70_000),
            1..5 => self.below(6_000),
            _ => self.below(300),
        };
        Bytes::from(vec![self.next() as u8; length as usize])
    }

    pub fn operation(&mut self, keys: u64) -> Operation {
        let key = self.key(keys);
        match self.below(6) {
            0 => Operation::Cmp { key, value: None },
            1 => Operation::Read { key },
            2 => Operation::ReadRange {
                start: key,
                end: if self.chance(3) { None } else { Some(self.key(keys)) },
                limit: self.below(20) as u32 + 1,
                reverse: self.chance(2),
            },
            3 => Operation::Insert { key, value: self.value() },
            4 => Operation::Write { key, value: self.value(), only_if_present: self.chance(2) },
            _ => Operation::Delete { key },
        }
    }

    pub fn command(&mut self, keys: u64) -> StoreCommand {
        match self.below(8) {
            0 => StoreCommand::Get { key: self.key(keys) },
            1..4 => StoreCommand::Put { key: self.key(keys), value: self.value() },
            4..6 => StoreCommand::Delete { key: self.key(keys) },
            _ => {
                let length = self.below(6);
                let operations = (0..length).map(|_| self.operation(keys)).collect();
                StoreCommand::Transaction(Transaction { operations })
            }
        }
    }
}

/// The same command on keys that begin with `prefix`, with values of `length` bytes, but for a few.
pub fn restyled(command: StoreCommand, prefix: &str, length: usize) -> StoreCommand {
    let key = |key: Bytes| Bytes::from([prefix.as_bytes(), &key].concat());
    let value = |value: Bytes| match value.len() % 50 {
        7 => value,
        _ => vec![value.first().copied().unwrap_or_default(); length].into(),
    };
    let operation = |operation| match operation {
        Operation::Cmp { key: of, value } => Operation::Cmp { key: key(of), value },
        Operation::Read { key: of } => Operation::Read { key: key(of) },
        Operation::ReadRange { start, end, limit, reverse } => {
            Operation::ReadRange { start: key(start), end: end.map(key), limit, reverse }
        }
        Operation::Insert { key: of, value: new } => {
            Operation::Insert { key: key(of), value: value(new) }
        }
        Operation::Write { key: of, value: new, only_if_present } => {
            Operation::Write { key: key(of), value: value(new), only_if_present }
        }
        Operation::Delete { key: of } => Operation::Delete { key: key(of) },
    };
    match command {
        StoreCommand::Get { key: of } => StoreCommand::Get { key: key(of) },
        StoreCommand::Put { key: of, value: new } => {
            StoreCommand::Put { key: key(of), value: value(new) }
        }
        StoreCommand::Delete { key: of } => StoreCommand::Delete { key: key(of) },
        StoreCommand::Transaction(Transaction { operations }) => {
            let operations = operations.into_iter().map(operation).collect();
            StoreCommand::Transaction(Transaction { operations })
        }
    }
}

/// The store as one would write it without segments, snapshots and limits.
#[derive(Clone, Default)]
pub struct Model(pub BTreeMap<Bytes, Bytes>);

impl Model {
    pub fn execute(&mut self, command: &StoreCommand) -> StoreReply {
        match command {
            StoreCommand::Get { key } => StoreReply::Value(self.0.get(key).cloned()),
            StoreCommand::Put { key, value } => {
                self.0.insert(key.clone(), value.clone());
                StoreReply::Put
            }
            StoreCommand::Delete { key } => {
                StoreReply::Deleted { existed: self.0.remove(key).is_some() }
            }
            StoreCommand::Transaction(transaction) => {
                StoreReply::Transaction(self.transact(&transaction.operations))
            }
        }
    }

    fn transact(&mut self, operations: &[Operation]) -> TransactionResult {
        let failed = |index: usize| TransactionResult {
            committed: false,
            failed: Some(index as u32),
            results: Vec::new(),
        };
        for (index, operation) in operations.iter().enumerate() {
            if let Operation::Cmp { key, value } = operation
                && self.0.get(key) != value.as_ref()
            {
                return failed(index);
            }
        }
        let before = self.0.clone();
        let mut results = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            match self.run(operation) {
                Some(result) => results.push(result),
                None => {
                    self.0 = before;
                    return failed(index);
                }
            }
        }
        TransactionResult { committed: true, failed: None, results }
    }

    fn run(&mut self, operation: &Operation) -> Option<OperationResult> {
        Some(match operation {
            Operation::Cmp { .. } => OperationResult::Compared,
            Operation::Read { key } => OperationResult::Value(self.0.get(key).cloned()),
            Operation::ReadRange { start, end, limit, reverse } => {
                self.range(start, end.as_ref(), *limit, *reverse)
            }
            Operation::Insert { key, value } => {
                if self.0.contains_key(key) {
                    return None;
                }
                self.0.insert(key.clone(), value.clone());
                OperationResult::Written
            }
            Operation::Write { key, value, only_if_present } => {
                if *only_if_present && !self.0.contains_key(key) {
                    return None;
                }
                self.0.insert(key.clone(), value.clone());
                OperationResult::Written
            }
            Operation::Delete { key } => {
                OperationResult::Deleted { existed: self.0.remove(key).is_some() }
            }
        })
    }

    fn range(
        &self,
        start: &Bytes,
        end: Option<&Bytes>,
        limit: u32,
        reverse: bool,
    ) -> OperationResult {
        let inside = |key: &Bytes| key >= start && end.is_none_or(|end| key < end);
        let mut entries: Vec<(Bytes, Bytes)> = self
            .0
            .iter()
            .filter(|(key, _)| inside(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if reverse {
            entries.reverse();
        }
        let mut more = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        let mut bytes = 0;
        let fits = entries.iter().take_while(|(key, value)| {
            bytes += 8 + key.len() + value.len();
            bytes <= 1024 * 1024
        });
        let fits = fits.count().max(1);
        more |= fits < entries.len();
        entries.truncate(fits);
        OperationResult::Entries { entries: entries.into_iter().collect(), more }
    }

    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(key, value)| (key.len() + value.len() + 64) as u64).sum()
    }
}
