//! The load: callers with one operation in flight each, over a few clients. Values are unique, and
//! some are long; a long one is written down as its number and its length.

use crate::course::{Course, lock};
use crate::files::{ClusterFile, secret_key};
use crate::history::{Book, ShardId, Workload};
use crate::network::{Network, Party};
use crate::waits::{Sample, Samples};
use anyhow::{Context, Result};
use bytes::Bytes;
use perdura_client::{CallError, Client, Options, Reply};
use perdura_protocol::{Decode, Encode};
use perdura_simulator::Random;
use perdura_simulator::linearizability::{Call, Outcome, Return, StepReturn};
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply, Transaction};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Clients, each with a session and connections of its own.
pub const CLIENTS: usize = 4;

/// Callers of each workload.
const CALLERS: usize = 8;

/// Every call has an outcome by then (rule C1).
pub const DEADLINE: Duration = Duration::from_secs(20);

/// What a busy machine may add to that.
const GRACE: Duration = Duration::from_secs(10);

/// Longest value.
const VALUE_BYTES: u64 = 4096;

/// The load of a run.
pub struct Load {
    runtime: tokio::runtime::Runtime,
    shared: Arc<Shared>,
    callers: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    course: Arc<Course>,
    book: Arc<Book>,
    samples: Arc<Samples>,
    clients: Vec<Mutex<Client>>,
    stopping: AtomicBool,
    value: AtomicU64,
    pause_us: u64,
}

/// A value as histories have it, from a value as the store has it. One that is not what was
/// written stays as it is, and fits nothing.
fn short(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value).into_owned();
    let head = text.split('.').next().unwrap_or_default();
    match head.split_once('x').and_then(|(_, length)| length.parse::<usize>().ok()) {
        Some(_) if long(head).as_ref() == value => head.to_owned(),
        _ => text,
    }
}

/// A value as the store has it.
fn long(value: &str) -> Bytes {
    let length = value.split_once('x').and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
    let mut bytes = value.as_bytes().to_vec();
    bytes.resize(length.max(bytes.len()), b'.');
    Bytes::from(bytes)
}

fn short_return(reply: &StoreReply) -> Return {
    let shorten = |value: &mut Option<Bytes>| {
        *value = value.as_ref().map(|value| Bytes::from(short(value)));
    };
    let mut reply = reply.clone();
    match &mut reply {
        StoreReply::Value(value) => shorten(value),
        StoreReply::Transaction(result) => {
            for result in &mut result.results {
                match result {
                    OperationResult::Value(value) => shorten(value),
                    OperationResult::Entries { entries, .. } => {
                        let shortened =
                            |(key, value): (Bytes, Bytes)| (key, Bytes::from(short(&value)));
                        *entries = entries.iter().map(shortened).collect();
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Return::from(&reply)
}

/// An operation as it is drawn: with short values.
struct Drawn {
    shard: ShardId,
    command: StoreCommand,
    fast: bool,
}

/// The same command with values as the store gets them.
fn lengthened(command: &StoreCommand) -> StoreCommand {
    let full = |value: &Bytes| long(&String::from_utf8_lossy(value));
    match command.clone() {
        StoreCommand::Put { key, value } => StoreCommand::Put { key, value: full(&value) },
        StoreCommand::Transaction(mut transaction) => {
            for operation in &mut transaction.operations {
                match operation {
                    Operation::Insert { value, .. } | Operation::Write { value, .. } => {
                        *value = full(value);
                    }
                    Operation::Cmp { value: Some(value), .. } => *value = full(value),
                    _ => {}
                }
            }
            StoreCommand::Transaction(transaction)
        }
        other => other,
    }
}

impl Shared {
    fn value(&self, random: &mut Random) -> Bytes {
        let number = self.value.fetch_add(1, Ordering::Relaxed);
        let length = if random.percent(5) { random.below(VALUE_BYTES) } else { 0 };
        Bytes::from(format!("v{number}x{length}"))
    }

    fn draw(&self, workload: Workload, random: &mut Random) -> Drawn {
        let (shard, seen) = self.book.choose(workload, random.next());
        let keys: Vec<Bytes> = workload.keys(shard.1).into_iter().map(Bytes::from).collect();
        match workload {
            Workload::Register => self.draw_register(shard, &keys[0], random),
            Workload::Transactions => self.draw_transaction(shard, &keys, &seen, random),
        }
    }

    fn draw_register(&self, shard: ShardId, key: &Bytes, random: &mut Random) -> Drawn {
        let key = key.clone();
        let (command, fast) = match random.below(20) {
            0..=7 => (StoreCommand::Put { key, value: self.value(random) }, false),
            8..=12 => (StoreCommand::Get { key }, false),
            13..=17 => (StoreCommand::Get { key }, true),
            _ => (StoreCommand::Delete { key }, false),
        };
        Drawn { shard, command, fast }
    }

    fn draw_transaction(
        &self,
        shard: ShardId,
        keys: &[Bytes],
        seen: &[Option<String>],
        random: &mut Random,
    ) -> Drawn {
        let at = random.below(keys.len() as u64) as usize;
        let other = (at + 1) % keys.len();
        let (key, next) = (keys[at].clone(), keys[other].clone());
        let expected = seen.get(at).cloned().flatten().map(Bytes::from);
        let value = self.value(random);
        let mut fast = false;
        let operations = match random.below(20) {
            // Compare and set, by what was last seen.
            0..=5 => vec![
                Operation::Cmp { key: key.clone(), value: expected },
                Operation::Write { key, value, only_if_present: false },
            ],
            // Reads one, writes two.
            6..=10 => vec![
                Operation::Read { key: key.clone() },
                Operation::Write { key, value: value.clone(), only_if_present: false },
                Operation::Write { key: next, value, only_if_present: false },
            ],
            11..=12 => vec![Operation::Insert { key, value }, Operation::Read { key: next }],
            13 => vec![
                Operation::Write { key, value, only_if_present: true },
                Operation::Delete { key: next },
            ],
            // Reads all, as three keys or as a range; ordered or not.
            drawn => {
                fast = drawn >= 17;
                let range = Operation::ReadRange {
                    start: keys[0].clone(),
                    end: Some(Bytes::from([keys[keys.len() - 1].as_ref(), b"/"].concat())),
                    limit: 10,
                    reverse: random.percent(50),
                };
                match random.percent(50) {
                    true => vec![range],
                    false => keys.iter().map(|key| Operation::Read { key: key.clone() }).collect(),
                }
            }
        };
        let command = StoreCommand::Transaction(Transaction { operations });
        Drawn { shard, command, fast }
    }

    async fn caller(self: Arc<Shared>, workload: Workload, caller: usize, mut random: Random) {
        while !self.stopping.load(Ordering::Relaxed) {
            let drawn = self.draw(workload, &mut random);
            self.carry_out(workload, caller, drawn).await;
            let pause = random.between(self.pause_us / 2, self.pause_us * 3 / 2);
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    }

    async fn carry_out(&self, workload: Workload, caller: usize, drawn: Drawn) {
        let client = lock(&self.clients[caller % CLIENTS]).clone();
        let content = lengthened(&drawn.command).to_bytes();
        let call = Call::from(&drawn.command);
        let process = (workload as u64) * CALLERS as u64 + caller as u64;
        let options = Options { timeout: DEADLINE, reply_quorum: None };
        let now = || self.course.now_us();
        let ticket = self.book.call(drawn.shard, process, call.clone(), now);
        let invoked = now();
        let answer = async {
            match drawn.fast {
                true => client.read(content, &options).await,
                false => client.call(content, &options).await,
            }
        };
        let answer = tokio::time::timeout(DEADLINE + GRACE, answer).await;
        let ended = now();
        let mut seen = Vec::new();
        let (outcome, why) = match answer {
            Err(_) => {
                let late = DEADLINE + GRACE;
                self.course.violation(format!("a call has no outcome after {late:?}: {call:?}"));
                (Outcome::Unknown, "hung".to_owned())
            }
            Ok(Err(error @ CallError::Refused { .. })) => (Outcome::Refused, error.to_string()),
            Ok(Err(error)) => (Outcome::Unknown, error.to_string()),
            Ok(Ok(reply)) => match store_reply(reply) {
                Ok(reply) => {
                    let result = short_return(&reply);
                    seen = what_was_seen(workload, &call, &result);
                    (Outcome::Ok(result), String::new())
                }
                Err(error) => {
                    self.course
                        .violation(format!("{call:?} got a reply that fits nothing: {error}"));
                    (Outcome::Unknown, error.to_string())
                }
            },
        };
        let ok = matches!(outcome, Outcome::Ok(_));
        self.book.ended(ticket, outcome, ended, &seen);
        self.samples.add(Sample { workload, invoked, ended, ok }, why);
    }
}

fn store_reply(reply: Reply) -> Result<StoreReply> {
    match reply {
        Reply::Service(bytes) => Ok(StoreReply::from_bytes(bytes)?),
        Reply::Administered { .. } => anyhow::bail!("it is of the administration"),
    }
}

/// What keys of the shard held after a transaction that took effect, as far as it tells.
fn what_was_seen(workload: Workload, call: &Call, result: &Return) -> Vec<(usize, Option<String>)> {
    use perdura_simulator::linearizability::Step;
    let (Workload::Transactions, Call::Transaction { steps }) = (workload, call) else {
        return Vec::new();
    };
    let Return::Committed(results) = result else { return Vec::new() };
    let number = |key: &str| key.rsplit('.').next().and_then(|number| number.parse().ok());
    let mut seen = Vec::new();
    for (step, result) in steps.iter().zip(results) {
        let found = match (step, result) {
            (Step::Read { key }, StepReturn::Value(value)) => (number(key), value.clone()),
            (Step::Insert { key, value } | Step::Write { key, value, .. }, _) => {
                (number(key), Some(value.clone()))
            }
            (Step::Delete { key }, _) => (number(key), None),
            _ => continue,
        };
        if let (Some(key), value) = found {
            seen.push((key, value));
        }
    }
    seen
}

impl Load {
    /// Makes the clients and starts the callers, with about `rate` operations per second and
    /// workload.
    pub fn start(
        course: &Arc<Course>,
        book: &Arc<Book>,
        samples: &Arc<Samples>,
        network: &Network,
        (file, key): (&ClusterFile, &Path),
        (rate, seed): (u64, u64),
    ) -> Result<Load> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()?;
        let clients = (0..CLIENTS)
            .map(|client| Ok(Mutex::new(connect(&runtime, network, file, key, client)?)));
        let shared = Arc::new(Shared {
            course: Arc::clone(course),
            book: Arc::clone(book),
            samples: Arc::clone(samples),
            clients: clients.collect::<Result<_>>()?,
            stopping: AtomicBool::new(false),
            value: AtomicU64::new(0),
            pause_us: 1_000_000 * CALLERS as u64 / rate.max(1),
        });
        let random = Random::new(seed).fork("load");
        let mut callers = Vec::new();
        for workload in Workload::ALL {
            for caller in 0..CALLERS {
                let random = random.fork(&format!("{} {caller}", workload.name()));
                let shared = Arc::clone(&shared);
                callers.push(runtime.spawn(shared.caller(workload, caller, random)));
            }
        }
        Ok(Load { runtime, shared, callers: Mutex::new(callers) })
    }

    /// New clients in place of the old ones, whose calls end as they will: after a replica was
    /// replaced, clients need its new key.
    pub fn reconnect(&self, network: &Network, file: &ClusterFile, key: &Path) -> Result<()> {
        for (number, client) in self.shared.clients.iter().enumerate() {
            let new = connect(&self.runtime, network, file, key, number)?;
            *lock(client) = new;
        }
        Ok(())
    }

    /// No new calls; waits for those under way.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let callers = std::mem::take(&mut *lock(&self.callers));
        self.runtime.block_on(async {
            for caller in callers {
                if let Err(error) = caller.await {
                    self.shared.course.violation(format!("a caller ended: {error}"));
                }
            }
        });
    }

    /// Reads all keys of a shard at once, ordered.
    pub fn read_back(
        &self,
        shard: ShardId,
    ) -> Result<perdura_simulator::linearizability::Operation> {
        let keys = shard.0.keys(shard.1);
        let operations = keys.into_iter().map(|key| Operation::Read { key: Bytes::from(key) });
        let command = StoreCommand::Transaction(Transaction { operations: operations.collect() });
        let content = command.to_bytes();
        let client = lock(&self.shared.clients[0]).clone();
        let options = Options { timeout: DEADLINE, reply_quorum: None };
        let invoked = self.shared.course.now_us();
        let reply = self.runtime.block_on(client.call(content, &options));
        let reply = store_reply(reply.context("reading everything back")?)?;
        Ok(perdura_simulator::linearizability::Operation {
            process: 1000,
            invoked,
            ended: Some(self.shared.course.now_us()),
            call: Call::from(&command),
            outcome: Outcome::Ok(short_return(&reply)),
        })
    }
}

fn connect(
    runtime: &tokio::runtime::Runtime,
    network: &Network,
    file: &ClusterFile,
    key: &Path,
    number: usize,
) -> Result<Client> {
    let _inside = runtime.enter();
    let config = file.client_config(|to| network.address(Party::Client(number), to));
    Ok(Client::connect(config, secret_key(key)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_known_by_its_number_and_a_changed_one_is_not() {
        for value in ["v7x0", "v7x3", "v12x400"] {
            assert_eq!(short(&long(value)), value);
        }
        assert_eq!(long("v12x400").len(), 400);
        let mut changed = long("v12x400").to_vec();
        changed[300] = b'!';
        assert_ne!(short(&changed), "v12x400");
        assert_ne!(short(&long("v12x400")[..399]), "v12x400");
    }
}
