//! What a put costs a replica after its decision: 512-byte values over 100,000 keys in scattered
//! order; in the store alone, with a snapshot held and replaced every 10,000 puts, and through the
//! machine with its sessions, 64 puts per frame.
//!
//! `cargo run --release -p perdura-store --example put_cost`

use bytes::Bytes;
use perdura_execution::{ExecutionContext, Genesis, Machine, Service};
use perdura_protocol::configuration::{Durability, Member, Parameters};
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Digest, Encode, Faults, Frame, PublicKey, SessionId,
    Slot, Time,
};
use perdura_store::{Store, StoreCommand};
use std::time::Instant;

const KEYS: u64 = 100_000;
const PUTS: u64 = 2_000_000;
const VALUE_BYTES: usize = 512;
const SNAPSHOT_INTERVAL: u64 = 10_000;
const FRAME_PUTS: u64 = 64;
const CLIENT: PublicKey = PublicKey([1; 32]);
const SESSION: SessionId = SessionId { client: CLIENT, nonce: 1 };
const CLUSTER: ClusterId = ClusterId([1; 16]);

/// The put of the `number`-th key; the factor has no divisor in common with the number of keys.
fn command(number: u64) -> Bytes {
    let key = Bytes::from(format!("key-{:012}", number * 61_803 % KEYS));
    StoreCommand::Put { key, value: vec![number as u8; VALUE_BYTES].into() }.to_bytes()
}

fn store_alone(commands: &[Bytes], snapshots: bool) {
    let context = ExecutionContext {
        slot: Slot(1),
        time: Time(1),
        session: SESSION,
        number: 1,
        cluster: CLUSTER,
        batch: Digest::ZERO,
    };
    let mut store = Store::new(u64::MAX);
    let mut held = None;
    let mut run = |puts: u64| {
        let start = Instant::now();
        for (number, command) in (0..puts).zip(commands.iter().cycle()) {
            if snapshots && number % SNAPSHOT_INTERVAL == 0 {
                held = Some(store.snapshot());
            }
            assert!(store.execute(&context, command).is_ok());
        }
        start.elapsed().as_nanos() as u64 / puts
    };
    let (insert, overwrite) = (run(KEYS), run(PUTS));
    let title = if snapshots { "store with snapshots" } else { "store alone" };
    println!("{title}: insert {insert} ns, overwrite {overwrite} ns per put");
    drop(held);
    let (entries, segments, bytes) = (store.entries(), store.segments(), store.bytes());
    println!("  {entries} entries in {segments} segments, {} MB", bytes / 1_000_000);
}

fn machine() -> Machine<Store> {
    let parameters = Parameters {
        cluster: CLUSTER,
        faults: Faults::new(1, 1).expect("valid"),
        durability: Durability::Sync,
        depth: 32,
        checkpoint_interval: 1024,
        checkpoint_bytes: 64 << 20,
        max_skew_ms: 500,
        state_limit_bytes: u64::MAX,
        schedule: Default::default(),
        service: Default::default(),
        administrator: PublicKey([2; 32]),
    };
    let member = |id: u8| Member { key: PublicKey([10 + id; 32]), incarnation: 0 };
    let members = (0..4).map(member).collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    let clients = vec![("client".to_owned(), CLIENT)];
    let store = Store::new(parameters.state_limit_bytes);
    Machine::new(&parameters, Genesis { configuration, clients }, store).expect("valid")
}

fn through_the_machine(commands: &[Bytes]) {
    let mut machine = machine();
    let open = [Command::Open.to_bytes()];
    let open = Frame::build(CLUSTER, SESSION, 0, 0, &open, None);
    machine.execute(Slot(1), &Batch::requests(Time(1), vec![open]));
    let wrapped: Vec<Bytes> =
        commands.iter().map(|command| Command::Service(command.clone()).to_bytes()).collect();
    let (mut number, mut nanoseconds) = (1, 0);
    for chunk in wrapped.chunks_exact(FRAME_PUTS as usize).cycle().take(20_000) {
        let acked_below = number - number.min(4 * FRAME_PUTS);
        let frame = Frame::build(CLUSTER, SESSION, acked_below, number, chunk, None);
        let batch = Batch::requests(Time(1), vec![frame]);
        let start = Instant::now();
        let executed = machine.execute(machine.slot().next(), &batch);
        nanoseconds += start.elapsed().as_nanos() as u64;
        assert_eq!(executed.replies.len(), chunk.len());
        number += FRAME_PUTS;
    }
    println!("machine with sessions: {} ns per put", nanoseconds / number);
}

fn main() {
    let commands: Vec<Bytes> = (0..KEYS).map(command).collect();
    store_alone(&commands, false);
    store_alone(&commands, true);
    through_the_machine(&commands);
}
