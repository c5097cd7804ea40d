//! The keys of each partition, and transactions over them by chance.

use super::super::workload::Chance;
use anyhow::{Result, ensure};
use bytes::Bytes;
use clap::Args;
use perdura_cluster::config::keys::random;
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{Map, PartitionId};
use perdura_store::{Operation, Transaction};

/// Keys in one transaction while they are loaded.
const LOAD_KEYS: usize = 64;

/// What a transaction is like.
#[derive(Args, Clone, Copy)]
pub struct Shape {
    /// Over so many partitions is a transaction that is over several
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub participants: u16,
    /// How many of 100 are over several partitions; the others are in one
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub global: u8,
    /// Keys that a transaction reads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub reads: u16,
    /// Keys that it writes; none: it takes no locks
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub writes: u16,
    /// Bytes of a value
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub value_size: u32,
}

/// See the module.
pub struct Draw {
    /// By partition.
    keys: Vec<Vec<Bytes>>,
    /// The part of the weight of all keys of a partition that those up to each have.
    weights: Vec<f64>,
    chance: Chance,
}

impl Draw {
    /// As many keys in each partition; the i-th has a weight of 1/i^skew.
    pub fn new(map: &Map, keys: u64, skew: f64) -> Result<Draw> {
        let each = (keys / map.partitions() as u64) as usize;
        let partitions = (0..map.partitions() as u16).map(PartitionId);
        let keys: Vec<Vec<Bytes>> = match &map.distribution {
            Distribution::Hash => by_hash(map, each),
            Distribution::Range { .. } => partitions
                .map(|partition| {
                    (0..each).map(|number| key(&map.begin_of(partition), number)).collect()
                })
                .collect(),
        };
        for (partition, keys) in (0..).zip(&keys) {
            let is_own = |key: &Bytes| map.partition_of(key) == PartitionId(partition);
            ensure!(
                keys.iter().all(is_own),
                "the bounds of partition {partition} leave no room for the keys of a benchmark"
            );
        }
        let mut sum = 0.0;
        let mut weights: Vec<f64> = (1..=each)
            .map(|rank| {
                sum += (rank as f64).powf(-skew);
                sum
            })
            .collect();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Ok(Draw { keys, weights, chance: Chance::new(u64::from_le_bytes(random()?)) })
    }

    fn below(&self, bound: usize) -> usize {
        (self.chance.next() % bound.max(1) as u64) as usize
    }

    fn key_in(&self, partition: usize) -> Bytes {
        let at = (self.chance.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = self.weights.partition_point(|weight| *weight <= at);
        self.keys[partition][rank.min(self.weights.len() - 1)].clone()
    }

    fn value(&self, bytes: usize) -> Bytes {
        let words = std::iter::repeat_with(|| self.chance.next().to_le_bytes());
        words.flatten().take(bytes).collect()
    }

    /// The next transaction, and whether it is over several partitions.
    pub fn transaction(&self, shape: &Shape) -> (Transaction, bool) {
        let is_global = shape.participants > 1 && self.below(100) < usize::from(shape.global);
        let count = if is_global { usize::from(shape.participants) } else { 1 };
        let mut all: Vec<usize> = (0..self.keys.len()).collect();
        // The first of a shuffle.
        for index in 0..count {
            let other = index + self.below(all.len() - index);
            all.swap(index, other);
        }
        let mut keys = (0..).map(|number: usize| self.key_in(all[number % count]));
        let mut operations = Vec::new();
        for _ in 0..shape.reads {
            operations.extend(keys.next().map(|key| Operation::Read { key }));
        }
        for _ in 0..shape.writes {
            let value = self.value(shape.value_size as usize);
            let write = |key| Operation::Write { key, value, only_if_present: false };
            operations.extend(keys.next().map(write));
        }
        (Transaction { operations }, is_global)
    }

    /// Transactions of one partition each, over all keys.
    pub fn loads(&self, of: impl Fn(&[Bytes]) -> Transaction) -> Vec<Transaction> {
        self.keys.iter().flat_map(|keys| keys.chunks(LOAD_KEYS)).map(of).collect()
    }

    /// Writes them.
    pub fn load(&self, keys: &[Bytes], value_size: usize) -> Transaction {
        let write = |key: &Bytes| Operation::Write {
            key: key.clone(),
            value: self.value(value_size),
            only_if_present: false,
        };
        Transaction { operations: keys.iter().map(write).collect() }
    }

    /// Removes them.
    pub fn clean(&self, keys: &[Bytes]) -> Transaction {
        let delete = |key: &Bytes| Operation::Delete { key: key.clone() };
        Transaction { operations: keys.iter().map(delete).collect() }
    }
}

/// The same ones in every run, so that several processes have the same.
fn by_hash(map: &Map, each: usize) -> Vec<Vec<Bytes>> {
    let mut keys = vec![Vec::with_capacity(each); map.partitions()];
    let mut missing = map.partitions();
    for number in 0.. {
        if missing == 0 {
            break;
        }
        let key = key(b"", number);
        let own = &mut keys[map.partition_of(&key).index()];
        if own.len() < each {
            own.push(key);
            missing -= usize::from(own.len() == each);
        }
    }
    keys
}

/// Behind the first key of a partition, and before any that is likely to be there.
fn key(begin: &[u8], number: usize) -> Bytes {
    [begin, b"\0bench-", format!("{number:08}").as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    fn map(distribution: Distribution) -> Map {
        let group = |index| perdura_protocol::partitions::Group {
            id: perdura_protocol::ClusterId([index; 16]),
            faults: perdura_protocol::Faults::new(1, 0).unwrap(),
            members: Vec::new(),
        };
        Map {
            cluster: perdura_protocol::ClusterId([7; 16]),
            version: 1,
            distribution,
            groups: (0..3).map(group).collect(),
            resolvers: Vec::new(),
        }
    }

    #[test]
    fn transactions_are_over_as_many_partitions_as_asked_for() {
        let bounds = ["b", "c"].map(Bytes::from).to_vec();
        for map in [map(Distribution::Hash), map(Distribution::Range { bounds })] {
            let draw = Draw::new(&map, 300, 0.9).unwrap();
            assert!(draw.keys.iter().all(|keys| keys.len() == 100));
            let shape = Shape { participants: 3, global: 50, reads: 4, writes: 5, value_size: 8 };
            let mut counts = [0; 2];
            for _ in 0..200 {
                let (transaction, is_global) = draw.transaction(&shape);
                transaction.validate().unwrap();
                let over = perdura_transactions::Split::partitions_of(&map, &transaction).len();
                assert_eq!(over, if is_global { 3 } else { 1 });
                counts[usize::from(is_global)] += 1;
                assert_eq!(transaction.operations.len(), 9);
            }
            assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        }
    }

    #[test]
    fn some_keys_are_more_wanted_than_others_where_that_is_asked_for() {
        let map = map(Distribution::Hash);
        let share_of_first = |skew| {
            let draw = Draw::new(&map, 300, skew).unwrap();
            let first = draw.keys[0][0].clone();
            (0..4_000).filter(|_| draw.key_in(0) == first).count()
        };
        assert!((10..100).contains(&share_of_first(0.0)));
        assert!((500..1_200).contains(&share_of_first(1.0)));
    }
}
