//! What a put costs a replica after its decision: values over keys in scattered
//! order; in the store alone, with a snapshot held and replaced now and then, and through the
//! machine with its sessions, 64 puts per frame, with such snapshots too.
//!
//! `cargo run --release -p perdura-store --example put_cost [KEYS [VALUE_BYTES [SNAPSHOT_INTERVAL [SHARED_BYTES]]]]`: by
//! default 100,000 keys, values of 512 bytes, a snapshot every 10,000 puts, and keys that share no first bytes.

use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Genesis, Machine, Service};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Digest, Encode, Faults, Frame, PublicKey, SessionId,
    Slot, Time,
};
use perdura_store::{Store, StoreCommand};
use std::time::Instant;

const PUTS: u64 = 2_000_000;
const FRAME_PUTS: u64 = 64;
const CLIENT: PublicKey = PublicKey([1; 32]);
const SESSION: SessionId = SessionId { client: CLIENT, nonce: 1 };
const CLUSTER: ClusterId = ClusterId([1; 16]);

/// What is put.
#[derive(Clone, Copy)]
struct Load {
    keys: u64,
    value_bytes: usize,
    snapshot_interval: u64,
    shared_bytes: usize,
}

impl Load {
    /// The `number`-th put; neighbouring numbers have keys far from each other (the output function of SplitMix64; Steele,
    /// Lea and Flood, OOPSLA 2014).
    fn command(self, number: u64) -> Bytes {
        let mut spread = number % self.keys;
        spread = (spread ^ (spread >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        spread = (spread ^ (spread >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mut key = vec![b'k'; self.shared_bytes];
        key.extend((spread ^ (spread >> 31)).to_be_bytes());
        key.extend((number % self.keys).to_be_bytes());
        let value = vec![number as u8; self.value_bytes].into();
        StoreCommand::Put { key: key.into(), value }.to_bytes()
    }
}

fn store_alone(load: Load, snapshots: bool) {
    let context = ExecutionContext {
        slot: Slot(1),
        time: Time(1),
        clock: Time(1),
        session: SESSION,
        number: 1,
        cluster: CLUSTER,
        batch: Digest::ZERO,
        administrator: SESSION.client,
        other: None,
        meter: Default::default(),
    };
    let mut store = Store::new(u64::MAX);
    let mut held = None;
    let mut run = |puts: u64| {
        let (mut nanoseconds, mut number) = (0, 0);
        while number < puts {
            let count = FRAME_PUTS.min(puts - number);
            let commands: Vec<Bytes> =
                (number..number + count).map(|number| load.command(number)).collect();
            let start = Instant::now();
            if snapshots && number % load.snapshot_interval < count {
                held = Some(store.snapshot());
            }
            for command in &commands {
                assert!(store.order(&context, command).is_ok());
            }
            nanoseconds += start.elapsed().as_nanos() as u64;
            number += count;
        }
        nanoseconds / puts
    };
    let (insert, overwrite) = (run(load.keys), run(PUTS));
    let title = if snapshots { "store with snapshots" } else { "store alone" };
    println!("{title}: insert {insert} ns, overwrite {overwrite} ns per put");
    drop(held);
    let (entries, segments, bytes) = (store.entries(), store.segments(), store.bytes());
    println!("  {entries} entries in {segments} segments, {} MB", bytes / 1_000_000);
}

fn machine() -> Machine<Store> {
    let parameters = Parameters {
        depth: 32,
        checkpoint_interval: 1024,
        checkpoint_bytes: 64 << 20,
        state_limit_bytes: u64::MAX,
        ..Parameters::small(CLUSTER, Faults::new(1, 1).expect("valid"), PublicKey([2; 32]))
    };
    let member = |id: u8| Member { key: PublicKey([10 + id; 32]), incarnation: 0 };
    let members = (0..4).map(member).collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    let clients = vec![("client".to_owned(), CLIENT)];
    let store = Store::new(parameters.state_limit_bytes);
    Machine::new(&parameters, Genesis { configuration, clients }, store).expect("valid")
}

fn through_the_machine(load: Load) {
    let mut machine = machine();
    let open = [Command::Open.to_bytes()];
    let open = Frame::build(CLUSTER, SESSION, 0, 0, &open, None);
    machine.execute(Slot(1), &Batch::requests(Time(1), vec![open]));
    let mut held = None;
    let mut number = 1;
    let mut run = |puts: u64| {
        let mut nanoseconds = 0;
        for _ in 0..puts.div_ceil(FRAME_PUTS) {
            let wrap = |number| Command::Service(load.command(number)).to_bytes();
            let commands: Vec<Bytes> = (number..number + FRAME_PUTS).map(wrap).collect();
            let acked_below = number - (number - 1).min(4 * FRAME_PUTS);
            let frame = Frame::build(CLUSTER, SESSION, acked_below, number, &commands, None);
            let batch = Batch::requests(Time(1), vec![frame]);
            let start = Instant::now();
            if number % load.snapshot_interval < FRAME_PUTS {
                held = Some(machine.snapshot());
            }
            let executed = machine.execute(machine.slot().next(), &batch);
            nanoseconds += start.elapsed().as_nanos() as u64;
            assert_eq!(executed.replies.len(), commands.len());
            number += FRAME_PUTS;
        }
        nanoseconds / puts.next_multiple_of(FRAME_PUTS)
    };
    let (insert, overwrite) = (run(load.keys), run(PUTS));
    println!("machine with sessions: insert {insert} ns, overwrite {overwrite} ns per put");
    drop(held);
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("numbers"));
    let load = Load {
        keys: numbers.next().unwrap_or(100_000).max(1),
        value_bytes: numbers.next().unwrap_or(512) as usize,
        snapshot_interval: numbers.next().unwrap_or(10_000).max(1),
        shared_bytes: numbers.next().unwrap_or(0) as usize,
    };
    store_alone(load, false);
    store_alone(load, true);
    through_the_machine(load);
}
