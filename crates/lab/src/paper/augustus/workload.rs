//! What clients ask for: the paper's table 3, and inserts beside range reads.

use anyhow::Result;
use bytes::Bytes;
use perdura_cli::bench::workload::Chance;
use perdura_cluster::config::keys::random;
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{Map, PartitionId};
use perdura_store::{Operation, Transaction};
use std::ops::Range;

/// Operations of a transaction that loads keys: as many as one may have.
const LOAD_KEYS: usize = perdura_store::limits::OPERATIONS;

/// Bytes of values in one.
const LOAD_BYTES: usize = 256 * 1024;

/// Entries that a range read gives at most.
const RANGE_ENTRIES: u32 = 10;

/// A row of the paper's table 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionKind {
    /// A to D.
    pub name: &'static str,
    /// Keys that it reads, an even number.
    pub reads: usize,
    /// Keys that it writes, an even number.
    pub writes: usize,
    /// Bytes of a value; those of a key are 4.
    pub value_size: usize,
    /// Entries that the paper's store has.
    pub keys: u64,
}

const fn kind(
    name: &'static str,
    reads: usize,
    writes: usize,
    value_size: usize,
    keys: u64,
) -> TransactionKind {
    TransactionKind { name, reads, writes, value_size, keys }
}

/// All of them.
pub const KINDS: [TransactionKind; 4] = [
    kind("A", 4, 4, 4, 3_000_000),
    kind("B", 2, 2, 1024, 1_000_000),
    kind("C", 8, 0, 4, 3_000_000),
    kind("D", 4, 0, 1024, 1_000_000),
];

impl TransactionKind {
    /// The one with this name.
    pub fn parse(name: &str) -> Result<TransactionKind, String> {
        let found = KINDS.into_iter().find(|kind| kind.name == name);
        found.ok_or_else(|| "give some of A, B, C and D".to_owned())
    }
}

/// The keys of a store by partition, and chance.
pub struct Draw {
    of: Vec<Vec<u32>>,
    chance: Chance,
}

impl Draw {
    /// Keys of 4 bytes, `0..keys`; without a map all are in one partition.
    pub fn new(map: Option<&Map>, keys: u64) -> Result<Draw> {
        let mut of = vec![Vec::new(); map.map_or(1, Map::partitions)];
        for number in 0..u32::try_from(keys)? {
            let partition = map.map_or(PartitionId(0), |map| map.partition_of(&key(number)));
            of[partition.index()].push(number);
        }
        Ok(Draw { of, chance: Chance::new(u64::from_le_bytes(random()?)) })
    }

    fn below(&self, bound: usize) -> usize {
        (self.chance.next() % bound.max(1) as u64) as usize
    }

    fn value(&self, bytes: usize) -> Bytes {
        let words = std::iter::repeat_with(|| self.chance.next().to_le_bytes());
        words.flatten().take(bytes).collect()
    }

    /// A transaction of this kind: over two partitions with a chance of so many in a hundred, else in one.
    pub fn transaction(&self, kind: &TransactionKind, global_percent: u8) -> Transaction {
        let is_global = self.below(100) < usize::from(global_percent);
        let first = self.below(self.of.len());
        let second = match is_global && self.of.len() > 1 {
            true => (first + 1 + self.below(self.of.len() - 1)) % self.of.len(),
            false => first,
        };
        let key_in = |number: usize| {
            let keys = &self.of[if number.is_multiple_of(2) { first } else { second }];
            key(keys[self.below(keys.len())])
        };
        let reads = (0..kind.reads).map(|number| Operation::Read { key: key_in(number) });
        let writes = (0..kind.writes).map(|number| {
            let (key, value) = (key_in(number), self.value(kind.value_size));
            Operation::Write { key, value, only_if_present: false }
        });
        Transaction { operations: reads.chain(writes).collect() }
    }

    /// What there is to load, in transactions of one partition each, one partition after the other in turn.
    pub fn loads(&self, value_size: usize) -> Vec<Load> {
        let each = LOAD_KEYS.min(LOAD_BYTES / value_size.max(1)).max(1);
        let most = self.of.iter().map(Vec::len).max().unwrap_or(0);
        let starts = (0..most).step_by(each);
        let load = |start: usize, (partition, keys): (usize, &Vec<u32>)| Load {
            partition,
            keys: start..keys.len().min(start + each),
        };
        let all = starts.flat_map(|start| {
            self.of.iter().enumerate().map(move |(index, keys)| load(start, (index, keys)))
        });
        all.filter(|load| !load.keys.is_empty()).collect()
    }

    /// The transaction that does it.
    pub fn load(&self, load: &Load, value_size: usize) -> Transaction {
        let write = |number: &u32| {
            let (key, value) = (key(*number), self.value(value_size));
            Operation::Write { key, value, only_if_present: false }
        };
        let keys = &self.of[load.partition][load.keys.clone()];
        Transaction { operations: keys.iter().map(write).collect() }
    }
}

/// Keys of a partition.
pub struct Load {
    partition: usize,
    keys: Range<usize>,
}

fn key(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Inserts of two keys and reads of two ranges, each in two partitions. Partition `p` has the keys that begin with the byte `p`.
pub struct Ranges {
    partitions: u16,
    chance: Chance,
}

/// The part of a partition that entries are in.
const ENTRIES: u8 = 0;

/// A part in which there is never an entry.
const STRUCTURE: u8 = 1;

impl Ranges {
    /// With so many partitions, at least 2.
    pub fn new(partitions: u16) -> Result<Ranges> {
        Ok(Ranges { partitions, chance: Chance::new(u64::from_le_bytes(random()?)) })
    }

    /// Which keys are whose.
    pub fn distribution(partitions: u16) -> Distribution {
        let bounds = (1..partitions).map(|number| Bytes::from(vec![number as u8])).collect();
        Distribution::Range { bounds }
    }

    fn key(&self, partition: u16, part: u8) -> Bytes {
        let mut key = vec![partition as u8, part];
        key.extend_from_slice(&self.chance.next().to_be_bytes());
        key.into()
    }

    fn insert(&self, partition: u16) -> Operation {
        let value = Bytes::copy_from_slice(&self.chance.next().to_be_bytes()[..4]);
        Operation::Insert { key: self.key(partition, ENTRIES), value }
    }

    /// How many transactions insert so many keys in each partition.
    pub fn loads(&self, keys: u64) -> usize {
        (keys as usize).div_ceil(LOAD_KEYS) * usize::from(self.partitions)
    }

    /// One of them.
    pub fn load(&self, number: usize) -> Transaction {
        let partition = (number % usize::from(self.partitions)) as u16;
        Transaction { operations: (0..LOAD_KEYS).map(|_| self.insert(partition)).collect() }
    }

    /// The next transaction; half of them insert. With one `structural` lock for each partition, every insert meets every read of a
    /// range in it, and inserts do not meet each other, nor do reads (the paper's tables 1 and 2): an insert then also
    /// removes a key that is not there from a part without entries, and who reads a range reads that whole part.
    pub fn transaction(&self, structural: bool) -> Transaction {
        let first = (self.chance.next() % u64::from(self.partitions)) as u16;
        let other = 1 + (self.chance.next() % u64::from(self.partitions - 1)) as u16;
        let both = [first, (first + other) % self.partitions];
        let is_insert = self.chance.next().is_multiple_of(2);
        let mut operations = Vec::new();
        for partition in both {
            if is_insert {
                operations.push(self.insert(partition));
            } else {
                let range = |start, end, limit| Operation::ReadRange {
                    start,
                    end: Some(end),
                    limit,
                    reverse: false,
                };
                let end_of = |part: u8| Bytes::from(vec![partition as u8, part + 1]);
                let start = self.key(partition, ENTRIES);
                operations.push(range(start, end_of(ENTRIES), RANGE_ENTRIES));
                if structural {
                    let start = Bytes::from(vec![partition as u8, STRUCTURE]);
                    operations.push(range(start, end_of(STRUCTURE), 1));
                }
            }
            if is_insert && structural {
                operations.push(Operation::Delete { key: self.key(partition, STRUCTURE) });
            }
        }
        Transaction { operations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cluster::transactions::Split;
    use perdura_protocol::partitions::{Group, MAP_VERSION};
    use perdura_protocol::{ClusterId, Faults};

    fn map(partitions: u16, distribution: Distribution) -> Map {
        let faults = Faults::new(1, 1).unwrap();
        let group =
            |number: u16| Group { id: ClusterId([number as u8; 16]), faults, members: Vec::new() };
        Map {
            version: MAP_VERSION,
            cluster: ClusterId([9; 16]),
            distribution,
            groups: (0..partitions).map(group).collect(),
            resolvers: Vec::new(),
        }
    }

    #[test]
    fn transactions_have_their_operations_in_one_partition_or_in_two() {
        let map = map(4, Distribution::Hash);
        let draw = Draw::new(Some(&map), 1000).unwrap();
        for kind in &KINDS {
            for (percent, parts) in [(0, 1), (100, 2)] {
                for _ in 0..50 {
                    let transaction = draw.transaction(kind, percent);
                    transaction.validate().unwrap();
                    assert_eq!(transaction.is_read(), kind.writes == 0);
                    let split = Split::of(&map, transaction);
                    assert_eq!(split.parts.len(), parts);
                    let operations = split.parts.iter().map(|part| part.operations.len());
                    assert!(operations.eq(vec![(kind.reads + kind.writes) / parts; parts]));
                }
            }
        }
        let parts = |_| Split::of(&map, draw.transaction(&KINDS[0], 50)).parts.len();
        let both: std::collections::BTreeSet<usize> = (0..200).map(parts).collect();
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn all_keys_are_loaded_each_in_its_partition() {
        let map = map(3, Distribution::Hash);
        let draw = Draw::new(Some(&map), 5000).unwrap();
        let mut keys = 0;
        for load in draw.loads(4) {
            let transaction = draw.load(&load, 4);
            keys += transaction.operations.len();
            transaction.validate().unwrap();
            assert_eq!(Split::of(&map, transaction).parts.len(), 1);
        }
        assert_eq!(keys, 5000);
    }

    #[test]
    fn inserts_meet_range_reads_in_the_structure_and_not_each_other() {
        let map = map(2, Ranges::distribution(2));
        let ranges = Ranges::new(2).unwrap();
        let (mut inserts, mut reads) = (0, 0);
        for _ in 0..100 {
            let transaction = ranges.transaction(true);
            transaction.validate().unwrap();
            assert_eq!(Split::of(&map, transaction.clone()).parts.len(), 2);
            for operation in &transaction.operations {
                match operation {
                    Operation::Delete { key } => {
                        assert_eq!(key[1], STRUCTURE);
                        inserts += 1;
                    }
                    Operation::ReadRange { start, end: Some(end), .. } if start.len() == 2 => {
                        assert_eq!((start[1], end[1]), (STRUCTURE, STRUCTURE + 1));
                        reads += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(inserts > 0 && reads > 0);
        let plain = ranges.transaction(false);
        assert!(plain.operations.iter().all(|one| !matches!(one, Operation::Delete { .. })));
        assert_eq!(ranges.loads(10), 2);
        assert_eq!(Split::of(&map, ranges.load(1)).parts.len(), 1);
    }
}
