//! Keys and values of a benchmark, or its tuples.

use anyhow::{Context, Result};
use bytes::Bytes;
use perdura_client::{Client, Options};
use perdura_cluster::ServiceKind;
use perdura_cluster::config::keys::random;
use perdura_store::{Operation, StoreCommand, Transaction};
use perdura_transactions::StoreClient;
use perdura_tuples::{Entry, Field, SpaceOptions, Tuple, TupleCommand};
use std::cell::Cell;

/// Values are slices of this many random bytes and their own length, each at another place.
const POOL_BYTES: usize = 1024 * 1024;

/// Bytes of values in one transaction while keys are loaded.
const LOAD_BYTES: usize = 128 * 1024;

/// Keys in one transaction while keys are loaded.
const LOAD_KEYS: u64 = 256;

/// The space into which tuples are inserted.
const SPACE: &str = "bench";

/// Fields of a tuple.
const FIELDS: usize = 4;

/// What clients ask for.
pub struct Workload {
    service: ServiceKind,
    /// Number of keys.
    pub keys: u64,
    value_size: usize,
    reads_percent: u8,
    pool: Bytes,
    chance: Chance,
}

/// Numbers by chance, SplitMix64.
pub struct Chance(Cell<u64>);

impl Chance {
    /// The same ones for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Chance {
        Chance(Cell::new(seed))
    }

    /// The next one.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(GOLDEN);
        self.0.set(state);
        mix(state)
    }
}

impl Workload {
    /// `keys` keys, values of `value_size` bytes; `reads_percent` of 100 operations read.
    pub fn new(keys: u64, value_size: usize, reads_percent: u8) -> Result<Workload> {
        let chance = Chance::new(u64::from_le_bytes(random()?));
        let mut pool = Vec::with_capacity(POOL_BYTES + value_size + 8);
        while pool.len() < POOL_BYTES + value_size {
            pool.extend_from_slice(&chance.next().to_le_bytes());
        }
        let service = ServiceKind::KeyValue;
        Ok(Workload { service, keys, value_size, reads_percent, pool: pool.into(), chance })
    }

    /// Insertions of random tuples: four fields of text, of so many bytes together (Dura-SMaRt, section 5).
    pub fn tuples(bytes: usize) -> Result<Workload> {
        Ok(Workload { service: ServiceKind::TupleSpaces, ..Workload::new(1, bytes, 0)? })
    }

    /// What there has to be before the first operation, besides keys; whether there are any.
    pub async fn prepare(&self, client: &Client, options: &Options) -> Result<bool> {
        if self.service == ServiceKind::KeyValue {
            return Ok(true);
        }
        let create = on_space(perdura_tuples::Operation::Create(SpaceOptions::default()));
        perdura_recipes::call(client, &create, options).await.context("cannot create the space")?;
        Ok(false)
    }

    /// The next operation, to its end.
    pub async fn call(&self, client: &Client, fast: bool, options: &Options) -> Result<()> {
        match self.service {
            ServiceKind::KeyValue => {
                let client = StoreClient::Whole(client.clone());
                client.call(&self.operation(), fast, options).await?;
            }
            ServiceKind::TupleSpaces => {
                perdura_recipes::call(client, &self.insert()?, options).await?;
            }
        }
        Ok(())
    }

    fn insert(&self) -> Result<TupleCommand> {
        let text: String = self.value().iter().map(|byte| char::from(b'0' + byte % 64)).collect();
        let (part, rest) = (self.value_size / FIELDS, self.value_size % FIELDS);
        let mut fields = Vec::with_capacity(FIELDS);
        let mut from = 0;
        for index in 0..FIELDS {
            let to = from + part + usize::from(index < rest);
            fields.push(Field::String(text[from..to].to_owned()));
            from = to;
        }
        Ok(on_space(perdura_tuples::Operation::Out(Entry::new(Tuple::new(&fields)?))))
    }

    fn next(&self) -> u64 {
        self.chance.next()
    }

    fn value(&self) -> Bytes {
        let start = (self.next() % POOL_BYTES as u64) as usize;
        self.pool.slice(start..start + self.value_size)
    }

    /// The next operation.
    pub fn operation(&self) -> StoreCommand {
        let key = key(self.next() % self.keys);
        match self.next() % 100 < u64::from(self.reads_percent) {
            true => StoreCommand::Get { key },
            false => StoreCommand::Put { key, value: self.value() },
        }
    }

    /// How many keys one loading transaction writes.
    pub fn keys_per_load(&self) -> u64 {
        LOAD_KEYS.min((LOAD_BYTES / self.value_size.max(1)).max(1) as u64)
    }

    /// Writes keys `from..to`.
    pub fn load(&self, from: u64, to: u64) -> StoreCommand {
        let write = |index| Operation::Write {
            key: key(index),
            value: self.value(),
            only_if_present: false,
        };
        StoreCommand::Transaction(Transaction { operations: (from..to).map(write).collect() })
    }
}

/// Removes keys `from..to`.
pub fn clean(from: u64, to: u64) -> StoreCommand {
    let delete = |index| Operation::Delete { key: key(index) };
    StoreCommand::Transaction(Transaction { operations: (from..to).map(delete).collect() })
}

fn on_space(operation: perdura_tuples::Operation) -> TupleCommand {
    TupleCommand::On { space: SPACE.into(), operation }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 16 bytes, spread over the whole space, the same in every run.
fn key(index: u64) -> Bytes {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mix(index).to_be_bytes());
    bytes[8..].copy_from_slice(&index.to_be_bytes());
    Bytes::copy_from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_within_the_limits_and_of_the_kind_asked_for() {
        for (value_size, reads) in [(0, 0), (512, 100), (1024 * 1024, 50)] {
            let workload = Workload::new(100, value_size, reads).unwrap();
            for _ in 0..20 {
                let operation = workload.operation();
                operation.validate().unwrap();
                assert!(reads == 50 || operation.is_read() == (reads == 100));
            }
            workload.load(0, workload.keys_per_load().min(100)).validate().unwrap();
            clean(0, workload.keys_per_load()).validate().unwrap();
        }
        assert_ne!(key(1), key(2));
    }

    #[test]
    fn a_tuple_has_four_fields_of_text_and_so_many_bytes_and_is_not_the_next_one() {
        for bytes in [4, 1000, 1003] {
            let workload = Workload::tuples(bytes).unwrap();
            let fields = || {
                let inserted = workload.insert().unwrap();
                let TupleCommand::On { operation: perdura_tuples::Operation::Out(entry), .. } =
                    inserted
                else {
                    panic!("no insertion: {inserted:?}")
                };
                entry.tuple.fields().collect::<Vec<Field>>()
            };
            let found = fields();
            let text = |field: &Field| match field {
                Field::String(text) => text.len(),
                other => panic!("no text: {other:?}"),
            };
            assert_eq!(found.len(), FIELDS);
            assert_eq!(found.iter().map(text).sum::<usize>(), bytes);
            assert!(bytes < 100 || found != fields());
        }
    }
}
