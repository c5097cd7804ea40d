//! A bit flips in the memory of a real replica: it finds that by itself, begins anew from what is
//! certified, and no client reads anything else than what was written.

use crate::real::{Group, free_addresses};
use bytes::Bytes;
use perdura_client::{Client, Options, Reply};
use perdura_execution::{
    ExecutionContext, FailingMemory, Failure, Interface, QueryContext, RestoreError, Service,
    Snapshot,
};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Decode, Encode};
use perdura_store::{Store, StoreCommand, StoreReply};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bits that are still to flip, each in the replica that executes something first.
static FLIPS: AtomicU64 = AtomicU64::new(0);

/// Replicas that are still to take the size of their state for a huge one from some time on, each the one that asks first.
static MISCOUNTS: AtomicU64 = AtomicU64::new(0);

/// Whether it happens once more.
fn happens(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

/// A store in which bits flip, and whether it takes itself for huge.
struct Rotting(Store, AtomicBool);

impl Service for Rotting {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        if happens(&FLIPS) {
            // The first bit of the first value of the first segment.
            assert!(self.0.flip_bit(0));
        }
        self.0.execute(context, command)
    }

    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        self.0.query(context, command)
    }

    fn state_bytes(&self) -> u64 {
        if happens(&MISCOUNTS) {
            self.1.store(true, Ordering::SeqCst);
        }
        if self.1.load(Ordering::SeqCst) { 1 << 40 } else { self.0.state_bytes() }
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.0.snapshot()
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.0.install(index, segment)
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        self.0.installed()
    }

    fn interface(&self) -> Arc<dyn Interface> {
        self.0.interface()
    }
}

fn options() -> Options {
    Options { timeout: Duration::from_secs(30), ..Options::default() }
}

async fn put(client: &Client, key: &str, value: &[u8]) {
    let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
    client.call(StoreCommand::Put { key, value }.to_bytes(), &options()).await.unwrap();
}

async fn get(client: &Client, key: &str) -> Bytes {
    let command = StoreCommand::Get { key: key.as_bytes().to_vec().into() }.to_bytes();
    let Reply::Service(reply) = client.read(command, &options()).await.unwrap() else {
        panic!("not a service's reply")
    };
    match StoreReply::from_bytes(reply).unwrap() {
        StoreReply::Value(Some(value)) => value,
        other => panic!("not a value: {other:?}"),
    }
}

/// What `/status` says.
pub fn status(address: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let request =
            format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// How many replicas have repaired their state, and take part again.
fn repaired(addresses: &[String]) -> usize {
    let repaired =
        |said: String| said.contains(r#""repairs":1"#) && said.contains(r#""state":"active""#);
    addresses.iter().map(|address| status(address)).filter(|said| repaired(said.clone())).count()
}

/// One group after the other: they share what is to go wrong.
static ALONE: Mutex<()> = Mutex::new(());

const TIMEOUT: Duration = Duration::from_secs(60);

/// With a state of `keys` values of 4 kB: above 4 MiB, checkpoints share what does not change, so that
/// only the scrub sees it.
fn repairs_itself(u: u8, r: u8, keys: usize, fault: &AtomicU64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut group = Group::formatted(u, r, Durability::Sync, |limit| {
        Rotting(Store::new(limit), AtomicBool::new(false))
    });
    let http = free_addresses(group.keys.len());
    for (i, address) in http.iter().enumerate() {
        group.start_with(i, |config| {
            config.http = Some(address.clone());
            config.scrub_interval = Duration::from_secs(1);
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        let value = |i: usize| vec![i as u8; 4000];
        let name = |i: usize| format!("key{i:04}");
        // Several segments, of which the first does not change any more; a boundary digests them.
        for i in 0..keys {
            put(&client, &name(i), &value(i)).await;
        }
        for _ in 0..200 {
            put(&client, &name(keys - 1), &value(keys - 1)).await;
        }
        fault.store(1, Ordering::SeqCst);
        let begun = Instant::now();
        let mut writes = 0;
        while repaired(&http) == 0 {
            assert!(begun.elapsed() < TIMEOUT, "nobody repairs its state");
            put(&client, &name(keys - 1), &value(keys - 1)).await;
            writes += 1;
            if r > 0 {
                assert_eq!(get(&client, &name(0)).await, value(0), "after {writes} writes");
            }
        }
        assert_eq!((fault.load(Ordering::SeqCst), repaired(&http)), (0, 1));
        for i in 0..keys {
            assert_eq!(get(&client, &name(i)).await, value(i));
        }
        // It is one of those who sign again: with all others but n - u - 1 away, nothing goes without.
        let back = http.iter().position(|one| status(one).contains(r#""repairs":1"#)).unwrap();
        for i in (0..group.keys.len()).filter(|i| *i != back).take(usize::from(u)) {
            group.stop(i);
        }
        for i in 0..100 {
            put(&client, &name(0), &value(i)).await;
        }
        assert_eq!(get(&client, &name(0)).await, value(99));
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}

#[test]
fn a_bit_that_flips_in_memory_is_found_and_repaired() {
    repairs_itself(1, 1, 40, &FLIPS);
    repairs_itself(1, 0, 40, &FLIPS);
    repairs_itself(1, 1, 1500, &FLIPS);
}

/// Its digests are never of the slots of which the others sign theirs.
#[test]
fn a_replica_whose_boundaries_are_elsewhere_finds_that_and_begins_anew() {
    repairs_itself(1, 1, 40, &MISCOUNTS);
    repairs_itself(1, 0, 40, &MISCOUNTS);
}
