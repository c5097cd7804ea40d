//! What client processes of a partitioned store do: they move money between accounts, look at all of it, write and read registers, and
//! members of a set against ranges; over several partitions or within one.

use super::desk::{Way, lock};
use super::history::{SharedHistory, Told, open};
use super::plan::StorePlan;
use crate::random::Random;
use bytes::Bytes;
use perdura_store::{Operation, OperationResult, StoreCommand, Transaction};
use perdura_transactions::{Groups, Outcome, Transactions};

/// What is in each account at first.
pub(crate) const MONEY: i64 = 100;

/// Families of keys.
const ACCOUNT: char = 'm';
const REGISTER: char = 'r';
const MEMBER: char = 's';

/// Deadlines, milliseconds.
const PATIENT_MS: [u64; 2] = [5_000, 30_000];
const SHORT_MS: [u64; 2] = [2, 800];

/// A key of a family. By range a partition has those with its letter.
pub(crate) fn key(partitions: usize, family: char, number: u64) -> Bytes {
    let letter = (b'a' + (number % partitions as u64) as u8) as char;
    format!("{letter}{family}{number}").into()
}

/// Whether a key is of a family.
pub(crate) fn within(key: &[u8], family: char) -> bool {
    key.get(1).is_some_and(|letter| char::from(*letter) == family)
}

/// What reads all accounts.
pub(crate) fn look(plan: &StorePlan) -> Transaction {
    let read = |number| Operation::Read { key: key(plan.partitions, ACCOUNT, number) };
    Transaction { operations: (0..plan.keys).map(read).collect() }
}

/// The accounts.
pub(crate) fn accounts(plan: &StorePlan) -> Vec<Bytes> {
    (0..plan.keys).map(|number| key(plan.partitions, ACCOUNT, number)).collect()
}

/// What puts the money there.
fn founding(plan: &StorePlan) -> Transaction {
    let write = |number| write(key(plan.partitions, ACCOUNT, number), MONEY.to_string().into());
    Transaction { operations: (0..plan.keys).map(write).collect() }
}

fn write(key: Bytes, value: Bytes) -> Operation {
    Operation::Write { key, value, only_if_present: false }
}

/// A task of a client process.
pub(crate) struct Caller {
    pub client: Transactions<Way>,
    pub history: SharedHistory,
    pub process: usize,
    /// What tells its values from all others.
    pub name: String,
    pub plan: StorePlan,
    pub random: Random,
    values: u64,
}

impl Caller {
    pub fn new(
        client: Transactions<Way>,
        history: SharedHistory,
        (process, name): (usize, String),
        plan: StorePlan,
        random: Random,
    ) -> Caller {
        Caller { client, history, process, name, plan, random, values: 0 }
    }

    fn is_closing(&self) -> bool {
        lock(&self.client.groups().desk).closing
    }

    /// Works until it is to end.
    pub async fn work(mut self, founds: bool) {
        while founds && !self.is_closing() {
            let deadline_ms = self.client.groups().now_ms() + PATIENT_MS[0];
            let founding = founding(&self.plan);
            if self.transact(founding, false, deadline_ms).await.is_some() {
                break;
            }
        }
        while !self.is_closing() {
            let pause_ms = self.random.below(self.plan.think_ms + 1);
            self.client.groups().sleep(pause_ms).await;
            if !self.is_closing() {
                self.next().await;
            }
        }
    }

    /// Says what is over before the process ends.
    pub async fn forget_ended(self) {
        self.client.forget_ended().await;
    }

    /// Reads all the money there is.
    pub async fn look(mut self, deadline_ms: u64) {
        let look = look(&self.plan);
        self.transact(look, true, deadline_ms).await;
    }

    fn deadline_ms(&mut self) -> u64 {
        let [least, most] =
            if self.random.percent(self.plan.short_deadlines) { SHORT_MS } else { PATIENT_MS };
        self.client.groups().now_ms() + self.random.between(least, most)
    }

    /// Carries out a transaction; its results if it committed, none of them if they are gone.
    async fn transact(
        &mut self,
        transaction: Transaction,
        looks: bool,
        deadline_ms: u64,
    ) -> Option<Vec<OperationResult>> {
        let asked = StoreCommand::Transaction(transaction.clone());
        let operation = self.begins(asked, looks);
        let fast = transaction.is_read() && self.random.percent(80);
        let result = self.client.transact(transaction, fast, deadline_ms).await;
        let now_ms = self.client.groups().now_ms();
        open(&self.history).ends(operation, Told::of(&result), now_ms);
        match result {
            Ok(Outcome::Committed(results)) => Some(results.all().to_vec()),
            Ok(Outcome::ResultsGone) => Some(Vec::new()),
            _ => None,
        }
    }

    async fn command(&mut self, command: StoreCommand, deadline_ms: u64) -> Option<Outcome> {
        let operation = self.begins(command.clone(), false);
        let fast = command.is_read() && self.random.percent(80);
        let result = self.client.command(&command, fast, deadline_ms).await;
        let now_ms = self.client.groups().now_ms();
        open(&self.history).ends(operation, Told::of(&result), now_ms);
        result.ok()
    }

    fn begins(&self, asked: StoreCommand, looks: bool) -> usize {
        let now_ms = self.client.groups().now_ms();
        let operation = open(&self.history).begins(self.process, asked, looks, now_ms);
        let mut desk = lock(&self.client.groups().desk);
        let task = desk.at_work;
        desk.operations.insert(task, operation);
        operation
    }

    /// So many different keys of a family: of any partitions, or of one.
    fn keys(&mut self, family: char, wanted: usize) -> Vec<Bytes> {
        let mut all: Vec<Bytes> =
            (0..self.plan.keys).map(|number| key(self.plan.partitions, family, number)).collect();
        if !self.random.percent(self.plan.global) {
            let map = self.client.groups().map();
            let here = map.partition_of(&self.random.pick(&all[..])[..]);
            all.retain(|key| map.partition_of(key) == here);
        }
        let mut keys = Vec::new();
        while keys.len() < wanted && !all.is_empty() {
            keys.push(all.swap_remove(self.random.below(all.len() as u64) as usize));
        }
        keys
    }

    fn value(&mut self) -> Bytes {
        self.values += 1;
        let mut value = format!("{}.{}", self.name, self.values);
        let length = self.random.below(2 * self.plan.value_bytes as u64) as usize;
        while value.len() < length {
            value.push('.');
        }
        value.into()
    }

    async fn next(&mut self) {
        let deadline_ms = self.deadline_ms();
        match self.random.below(100) {
            0..30 => self.transfer(deadline_ms).await,
            30..42 => {
                let look = look(&self.plan);
                self.transact(look, true, deadline_ms).await;
            }
            42..66 => self.write_registers(deadline_ms).await,
            66..76 => {
                let count = self.random.between(1, 4) as usize;
                let keys = self.keys(REGISTER, count);
                let operations = keys.into_iter().map(|key| Operation::Read { key }).collect();
                self.transact(Transaction { operations }, false, deadline_ms).await;
            }
            76..86 => self.change_set(deadline_ms).await,
            86..92 => {
                let operations = vec![self.range()];
                self.transact(Transaction { operations }, false, deadline_ms).await;
            }
            _ => self.one_key(deadline_ms).await,
        }
    }

    /// From one account to another, if both are still what they were when they were read.
    async fn transfer(&mut self, deadline_ms: u64) {
        let keys = self.keys(ACCOUNT, 2);
        let amount = self.random.between(1, 20) as i64;
        let mut operations = Vec::new();
        for (key, change) in keys.into_iter().zip([-amount, amount]) {
            let read = self.command(StoreCommand::Get { key: key.clone() }, deadline_ms).await;
            let Some(Outcome::Committed(found)) = read else { return };
            let [OperationResult::Value(Some(before))] = found.all() else { return };
            let Some(money) = money(before) else { return };
            operations.push(Operation::Cmp { key: key.clone(), value: Some(before.clone()) });
            operations.push(write(key, (money + change).to_string().into()));
        }
        if operations.len() == 4 {
            self.transact(Transaction { operations }, false, deadline_ms).await;
        }
    }

    /// Blindly, or with what was there read.
    async fn write_registers(&mut self, deadline_ms: u64) {
        let count = self.random.between(1, 3) as usize;
        let (keys, reads) = (self.keys(REGISTER, count), self.random.percent(60));
        let mut operations = Vec::new();
        for key in keys {
            if reads {
                operations.push(Operation::Read { key: key.clone() });
            }
            operations.push(match self.random.below(6) {
                0 => Operation::Delete { key },
                1 => Operation::Write { key, value: self.value(), only_if_present: true },
                _ => write(key, self.value()),
            });
        }
        self.transact(Transaction { operations }, false, deadline_ms).await;
    }

    /// Members come and go, some with a look at those that are there.
    async fn change_set(&mut self, deadline_ms: u64) {
        let count = self.random.between(1, 2) as usize;
        let mut operations = Vec::new();
        if self.random.percent(40) {
            operations.push(self.range());
        }
        for key in self.keys(MEMBER, count) {
            operations.push(if self.random.percent(50) {
                Operation::Insert { key, value: self.value() }
            } else {
                Operation::Delete { key }
            });
        }
        self.transact(Transaction { operations }, false, deadline_ms).await;
    }

    fn range(&mut self) -> Operation {
        let partitions = self.plan.partitions as u64;
        let first = self.random.below(partitions) as u8;
        let global = self.random.percent(self.plan.global);
        let (start, end) = if global {
            (b'a', Some(b'a' + partitions as u8))
        } else {
            (b'a' + first, Some(b'a' + first + 1))
        };
        let bound = |letter: u8| Bytes::from(vec![letter]);
        // Some of one family, to its end.
        let start = if self.random.percent(50) {
            format!("{}{MEMBER}", start as char).into()
        } else {
            bound(start)
        };
        let limit = *self.random.pick(&[2, 5, 100, 100]);
        let reverse = self.random.percent(30);
        Operation::ReadRange { start, end: end.map(bound), limit, reverse }
    }

    async fn one_key(&mut self, deadline_ms: u64) {
        let Some(key) = self.keys(REGISTER, 1).pop() else { return };
        let command = match self.random.below(4) {
            0 => StoreCommand::Put { key, value: self.value() },
            1 => StoreCommand::Delete { key },
            _ => StoreCommand::Get { key },
        };
        self.command(command, deadline_ms).await;
    }
}

/// What an account holds.
pub(crate) fn money(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
