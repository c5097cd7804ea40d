//! The services that a cluster can run, and what is done with each of them.

use clap::ValueEnum;

/// What the cluster runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Service {
    /// The key-value store
    Kv,
    /// Tuple spaces
    Tuples,
    /// The key-value store over several partitions
    Partitions,
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
    /// Accounts of a store, between which money is moved.
    Bank,
}

impl Service {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Service::Kv => "kv",
            Service::Tuples => "tuples",
            Service::Partitions => "partitions",
        }
    }

    /// Its workloads.
    pub fn workloads(self) -> [Workload; 2] {
        match self {
            Service::Kv => [Workload::Register, Workload::Transactions],
            Service::Tuples => [Workload::Tuples, Workload::Queue],
            Service::Partitions => [Workload::Transactions, Workload::Bank],
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
            Workload::Bank => "bank",
        }
    }

    /// Keys of a shard, by number; a queue is one.
    pub fn keys(self) -> usize {
        match self {
            Workload::Register | Workload::Queue => 1,
            Workload::Transactions | Workload::Tuples => 3,
            Workload::Bank => 6,
        }
    }

    /// What a shard's keys begin with in the store, and what its tuples have in their first field.
    /// None begins with that of another shard.
    pub fn prefix(self, shard: u64) -> String {
        format!("{}{shard:07}", self.letter())
    }

    /// From where and up to before where all keys of all of its shards are.
    pub fn range(self) -> (String, String) {
        (self.letter().to_string(), format!("{}~", self.letter()))
    }

    fn letter(self) -> char {
        match self {
            Workload::Register => 'r',
            Workload::Transactions => 't',
            Workload::Tuples => 'm',
            Workload::Queue => 'q',
            Workload::Bank => 'k',
        }
    }
}
