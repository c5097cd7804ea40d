//! What a command of a service in types costs against an equal one of the store: nanoseconds, medians of three.
//!
//! `cargo run --release -p perdura-typed --example cost [ENTRIES]`
//!
//! Both execute the same on one state machine, without the replica around it: write each of so many entries anew, write each again in another order,
//! and read each.

use bytes::Bytes;
use perdura_execution::{ExecutionContext, Meter, Service as _};
use perdura_protocol::{ClusterId, Digest, Encode, PublicKey, SessionId, Slot, Time, limits};
use perdura_store::{Store, StoreCommand};
use perdura_typed::{
    Context, Parts, QueryContext, Service, Sharded, Typed, encode_command, encode_query,
};
use serde::{Deserialize, Serialize};
use std::time::Instant;

const ENTRIES: u64 = 300_000;
/// In cents, say: five bytes as they are encoded, in both.
const FIRST: u64 = 1_000_000_000;

const TIMES: usize = 3;
const STATE_BYTES: u64 = 4 << 30;

/// Accounts, as a ledger has them: a map that commands write, one that they leave alone, and a number beside them.
#[derive(Default)]
struct Ledger {
    accounts: Sharded<String, u64>,
    notes: Sharded<u32, String>,
    changes: u64,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Set { account: String, amount: u64 },
}

#[derive(Serialize, Deserialize)]
enum Query {
    Balance(String),
}

impl Service for Ledger {
    const NAME: &'static str = "cost";
    type Command = Command;
    type Query = Query;
    type Reply = Option<u64>;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<Option<u64>, ()> {
        let Command::Set { account, amount } = command;
        self.changes += 1;
        Ok(self.accounts.insert(account, amount))
    }

    fn query(&self, _: &QueryContext, Query::Balance(account): Query) -> Result<Option<u64>, ()> {
        Ok(self.accounts.get(&account))
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.accounts);
        parts.map(&mut self.notes);
        parts.value(&mut self.changes);
    }
}

/// The commands of one state machine: to write an entry with this number and this amount, and to read it.
struct Commands {
    write: fn(u64, u64) -> Bytes,
    read: fn(u64) -> Bytes,
}

fn account(number: u64) -> String {
    // Neighbours in time are none in the map.
    format!("account-{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

const TYPED: Commands = Commands {
    write: |number, amount| {
        encode_command::<Ledger>(&Command::Set { account: account(number), amount })
            .expect("it encodes")
    },
    read: |number| encode_query::<Ledger>(&Query::Balance(account(number))).expect("it encodes"),
};

const STORE: Commands = Commands {
    write: |number, amount| {
        let value = Bytes::from(postcard::to_stdvec(&amount).expect("it encodes"));
        StoreCommand::Put { key: account(number).into(), value }.to_bytes()
    },
    read: |number| StoreCommand::Get { key: account(number).into() }.to_bytes(),
};

fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(5),
        clock: Time(5),
        session: SessionId { client: PublicKey([3; 32]), nonce: 0 },
        number: 1,
        cluster: ClusterId([0; 16]),
        batch: Digest::ZERO,
        administrator: PublicKey([1; 32]),
        other: None,
        meter: Meter::up_to(limits::COMMAND_COST),
    }
}

/// Nanoseconds of each of these commands.
fn cost(machine: &mut dyn FnMut(&Bytes), commands: &[Bytes]) -> u64 {
    let start = Instant::now();
    commands.iter().for_each(machine);
    start.elapsed().as_nanos() as u64 / commands.len() as u64
}

/// Of new entries, of entries that there are, of reads.
fn costs(machine: &mut dyn FnMut(&Bytes), commands: &Commands, entries: u64) -> [u64; 3] {
    let new: Vec<Bytes> = (0..entries).map(|number| (commands.write)(number, FIRST)).collect();
    // All of them, in another order, as long as the prime does not divide their number.
    let other = |number: u64| number * 7_919 % entries;
    let again = (0..entries).map(|number| (commands.write)(other(number), FIRST + number));
    let again: Vec<Bytes> = again.collect();
    let reads: Vec<Bytes> = (0..entries).map(|number| (commands.read)(other(number))).collect();
    [&new, &again, &reads].map(|commands| cost(machine, commands))
}

fn main() {
    let entries = std::env::args().nth(1).and_then(|entries| entries.parse().ok());
    let entries = entries.unwrap_or(ENTRIES);
    let mut typed = Vec::new();
    let mut store = Vec::new();
    for _ in 0..TIMES {
        let mut machine = Typed::<Ledger>::new(STATE_BYTES);
        let mut run = |command: &Bytes| {
            machine.execute(&context(), command).expect("a command is carried out");
        };
        typed.push(costs(&mut run, &TYPED, entries));
        let mut machine = Store::new(STATE_BYTES);
        let mut run = |command: &Bytes| {
            machine.execute(&context(), command).expect("a command is carried out");
        };
        store.push(costs(&mut run, &STORE, entries));
    }
    println!("{entries} entries; ns for each  typed  store  ratio");
    for (index, what) in ["a new entry", "an entry again", "a read"].iter().enumerate() {
        let median = |costs: &[[u64; 3]]| {
            let mut costs: Vec<u64> = costs.iter().map(|one| one[index]).collect();
            costs.sort_unstable();
            costs[costs.len() / 2]
        };
        let (typed, store) = (median(&typed), median(&store));
        let ratio = typed as f64 / store as f64;
        println!("{what:27}  {typed:5}  {store:5}  {ratio:5.2}");
    }
}
