//! The services that a cluster can run, and what is done with each of them.

use clap::ValueEnum;

/// What the cluster runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Service {
    /// The key-value store
    Kv,
    /// Tuple spaces
    Tuples,
}

/// What callers do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Workload {
    /// Operations on one key of the store.
    Register,
    /// Transactions, comparisons and ranges over three keys of the store.
    Transactions,
    /// Three keys with at most one tuple each.
    Tuples,
    /// Tuples that are put and taken, the oldest first.
    Queue,
}

impl Service {
    /// Its name, as `perdura init` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Service::Kv => "kv",
            Service::Tuples => "tuples",
        }
    }

    /// Its workloads.
    pub fn workloads(self) -> [Workload; 2] {
        match self {
            Service::Kv => [Workload::Register, Workload::Transactions],
            Service::Tuples => [Workload::Tuples, Workload::Queue],
        }
    }
}

impl Workload {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Register => "register",
            Workload::Transactions => "transactions",
            Workload::Tuples => "tuples",
            Workload::Queue => "queue",
        }
    }

    /// Keys of a shard, by number; a queue is one.
    pub fn keys(self) -> usize {
        match self {
            Workload::Register | Workload::Queue => 1,
            Workload::Transactions | Workload::Tuples => 3,
        }
    }

    /// What a shard's keys begin with in the store, and what its tuples have in their first field.
    /// None begins with that of another shard.
    pub fn prefix(self, shard: u64) -> String {
        let letter = match self {
            Workload::Register => 'r',
            Workload::Transactions => 't',
            Workload::Tuples => 'm',
            Workload::Queue => 'q',
        };
        format!("{letter}{shard:07}")
    }
}
