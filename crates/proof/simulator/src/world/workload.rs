//! What clients ask for: random operations on a few shared keys, every written value unique.

use crate::checkers::waits;
use crate::guest::{Drawn, Guest};
use crate::plan::WorkloadPlan;
use crate::random::Random;
use bytes::Bytes;
use perdura_protocol::Encode;
use perdura_store::{Operation, StoreCommand, Transaction};
use perdura_tuples::TupleCommand;

/// A command of the service that the group runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Of the key-value store.
    Store(StoreCommand),
    /// Of the tuple spaces.
    Spaces(TupleCommand),
    /// Of a partition of a store, encoded.
    Partition(Bytes),
    /// Of somebody else's service, encoded.
    Guest(Bytes),
}

impl Asked {
    /// As it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Asked::Store(command) => command.to_bytes(),
            Asked::Spaces(command) => command.to_bytes(),
            Asked::Partition(command) | Asked::Guest(command) => command.clone(),
        }
    }

    /// How long it may wait, milliseconds of agreed time; nothing if it does not.
    #[must_use]
    pub fn wait_ms(&self) -> Option<u64> {
        match self {
            Asked::Spaces(command) => waits::wait_ms(command),
            Asked::Store(_) | Asked::Partition(_) | Asked::Guest(_) => None,
        }
    }
}

/// A call to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The command.
    pub command: Asked,
    /// Whether it need not be ordered.
    pub fast: bool,
    /// A short deadline, microseconds.
    pub short_us: Option<u64>,
}

/// The workload of one client.
#[derive(Clone, Debug)]
pub struct Workload {
    plan: WorkloadPlan,
    client: usize,
    values: u64,
    random: Random,
}

impl Workload {
    /// Of one client.
    #[must_use]
    pub fn new(plan: WorkloadPlan, client: usize, random: Random) -> Workload {
        Workload { plan, client, values: 0, random }
    }

    /// The next request.
    pub fn draw(&mut self) -> Request {
        let command =
            if self.random.percent(self.plan.reads) { self.read() } else { self.update() };
        let fast = command.is_read() && self.random.percent(self.plan.fast_reads);
        let short = self.random.percent(self.plan.short_deadlines);
        let short_us = short.then(|| self.random.between(2_000, 800_000));
        Request { command: Asked::Store(command), fast, short_us }
    }

    /// The next request to somebody else's service.
    pub fn draw_of(&mut self, guest: &dyn Guest) -> Request {
        let Drawn { command, is_read } = guest.draw(&mut self.random);
        let fast = is_read && self.random.percent(self.plan.fast_reads);
        let short = self.random.percent(self.plan.short_deadlines);
        let short_us = short.then(|| self.random.between(2_000, 800_000));
        Request { command: Asked::Guest(command), fast, short_us }
    }

    fn key(&mut self) -> Bytes {
        key(self.random.below(self.plan.keys))
    }

    fn value(&mut self) -> Bytes {
        self.values += 1;
        let mut value = format!("c{}.{}", self.client, self.values);
        let length = self.random.below(2 * self.plan.value_bytes as u64) as usize;
        while value.len() < length {
            value.push('.');
        }
        value.into()
    }

    fn read(&mut self) -> StoreCommand {
        match self.random.below(10) {
            0 => transaction(vec![scan(self.random.percent(50))]),
            1 => {
                let operations =
                    vec![Operation::Read { key: self.key() }, Operation::Read { key: self.key() }];
                transaction(operations)
            }
            _ => StoreCommand::Get { key: self.key() },
        }
    }

    fn update(&mut self) -> StoreCommand {
        let (key, value) = (self.key(), self.value());
        match self.random.below(20) {
            0..9 => StoreCommand::Put { key, value },
            9..11 => StoreCommand::Delete { key },
            11..13 => transaction(vec![Operation::Insert { key, value }]),
            13 => transaction(vec![Operation::Write { key, value, only_if_present: true }]),
            14..17 => {
                // A swap that expects the absent key, or a value that may have been written; of the
                // key that it writes, or of another one.
                let compared = if self.random.percent(50) { key.clone() } else { self.key() };
                let expected = if self.random.percent(50) {
                    None
                } else {
                    let written = self.random.below(self.values) + 1;
                    Some(Bytes::from(format!("c{}.{written}", self.client)))
                };
                transaction(vec![
                    Operation::Cmp { key: compared, value: expected },
                    Operation::Write { key, value, only_if_present: false },
                ])
            }
            17..19 => {
                let other = self.key();
                transaction(vec![
                    Operation::Read { key: other.clone() },
                    Operation::Write { key, value: value.clone(), only_if_present: false },
                    Operation::Write { key: other, value, only_if_present: false },
                ])
            }
            _ => {
                let other = self.key();
                transaction(vec![
                    Operation::Delete { key },
                    scan(false),
                    Operation::Write { key: other, value, only_if_present: false },
                ])
            }
        }
    }
}

/// The key with a number.
#[must_use]
pub fn key(number: u64) -> Bytes {
    Bytes::from(format!("k{number}"))
}

fn scan(reverse: bool) -> Operation {
    // Hostile clients write further up.
    let end = Some(Bytes::from_static(b"l"));
    Operation::ReadRange { start: Bytes::new(), end, limit: 100, reverse }
}

fn transaction(operations: Vec<Operation>) -> StoreCommand {
    StoreCommand::Transaction(Transaction { operations })
}

/// Reads everything there is.
#[must_use]
pub fn read_everything() -> Request {
    let command = Asked::Store(transaction(vec![scan(false)]));
    Request { command, fast: false, short_us: None }
}
