//! What is written can be read back: a state that could not is not stored, and the log stays that leads to it.

use crate::real::{Group, free_addresses};
use crate::repair::status;
use bytes::Bytes;
use perdura_client::{Client, Options, Reply};
use perdura_durability::FileDisk;
use perdura_execution::{ExecutionContext, Failure, RestoreError, Service, Snapshot};
use perdura_protocol::configuration::{Durability, Parameters, Schedule};
use perdura_protocol::limits;
use perdura_replica::runtime::RunError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the program is the one that gives a state in parts that is too large for one. Smaller ones it gives as before: their
/// digests are signed.
static PARTS: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

const PART_BYTES: usize = 1 << 20;

/// As many bytes as it was told last, in the group of this number.
#[derive(Clone, Default)]
struct Heavy<const GROUP: usize>(Bytes);

impl<const GROUP: usize> Service for Heavy<GROUP> {
    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        let text = String::from_utf8_lossy(command);
        if let Ok(bytes) = text.parse() {
            self.0 = vec![7; bytes].into();
        }
        Ok(self.0.len().to_string().into())
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.clone())
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.0 = [&self.0[..], &segment].concat().into();
        Ok(())
    }
}

impl<const GROUP: usize> Heavy<GROUP> {
    fn in_parts(&self) -> bool {
        PARTS[GROUP].load(Ordering::SeqCst) && self.0.len() > limits::PIECE_BYTES
    }
}

impl<const GROUP: usize> Snapshot for Heavy<GROUP> {
    fn segments(&self) -> usize {
        if self.in_parts() { self.0.len().div_ceil(PART_BYTES) } else { 1 }
    }

    fn segment(&self, index: usize) -> Bytes {
        if !self.in_parts() {
            return self.0.clone();
        }
        let start = index * PART_BYTES;
        self.0.slice(start..self.0.len().min(start + PART_BYTES))
    }
}

async fn told(client: &Client, command: String) -> String {
    let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
    match client.call(command.into(), &options).await.unwrap() {
        Reply::Service(reply) => String::from_utf8(reply.to_vec()).unwrap(),
        other => panic!("not a service's reply: {other:?}"),
    }
}

/// Where they serve their status: each time elsewhere, for a thread of this process goes on serving the last.
fn start<const GROUP: usize>(group: &mut Group<Heavy<GROUP>>) -> Vec<String> {
    let http = free_addresses(3);
    for (i, address) in http.iter().enumerate() {
        group.start_with(i, |config| config.http = Some(address.clone()));
    }
    http
}

/// Until two of them have stopped, for one alone decides nothing; then all are stopped. Why those had. It hangs
/// where they store what nobody could read back.
fn halted<const GROUP: usize>(group: &mut Group<Heavy<GROUP>>, http: &[String]) -> Vec<String> {
    let stopped = |address: &&String| status(address).contains(r#""state":"stopped""#);
    while http.iter().filter(stopped).count() < 2 {
        std::thread::yield_now();
    }
    let mut reasons = Vec::new();
    for running in &mut group.running {
        let (shutdown, thread) = running.take().unwrap();
        shutdown.request();
        if let Err(error) = thread.join().unwrap() {
            assert!(matches!(error, RunError::Halted(_)), "{error}");
            reasons.push(error.to_string());
        }
    }
    assert!(reasons.len() >= 2);
    // A process would have ended; here a thread of one that halted may still have its disk.
    while (0..3).any(|i| FileDisk::open(&group.data(i)).is_err()) {
        std::thread::yield_now();
    }
    reasons
}

/// A boundary comes after so many slots.
const EVERY: u64 = 4;

fn grows_too_large_and_goes_on_in_parts<const GROUP: usize>(schedule: Schedule) {
    let change = |parameters| Parameters { checkpoint_interval: EVERY, schedule, ..parameters };
    let make = |_| Heavy::<GROUP>::default();
    let mut group = Group::formatted_with(1, 0, Durability::Sync, change, make);
    PARTS[GROUP].store(false, Ordering::SeqCst);
    start(&mut group);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // The largest that can be read back is, by all of them.
    let client = runtime.block_on(async { group.connect() });
    runtime.block_on(async {
        told(&client, limits::PIECE_BYTES.to_string()).await;
        for _ in 0..2 * EVERY {
            told(&client, "and again".into()).await;
        }
    });
    (0..3).for_each(|i| group.stop(i));
    let mut http = start(&mut group);
    // One byte more is not, and the boundary comes at every start.
    let caller = client.clone();
    let larger = (limits::PIECE_BYTES + 1).to_string();
    let called = runtime.spawn({
        let larger = larger.clone();
        async move {
            told(&caller, larger).await;
            for _ in 0..EVERY {
                told(&caller, "and again".into()).await;
            }
        }
    });
    for again in 0..2 {
        for words in halted(&mut group, &http) {
            for part in ["segment 0 of the state at slot", "25165825 bytes", "other segments"] {
                assert!(words.contains(part), "{again}: {words}");
            }
        }
        PARTS[GROUP].store(again == 1, Ordering::SeqCst);
        http = start(&mut group);
    }
    // The program was changed: it replays the log from the checkpoint before, and stores the state.
    runtime.block_on(async {
        called.await.unwrap();
        for _ in 0..2 * EVERY {
            assert_eq!(told(&client, "and again".into()).await, larger);
        }
    });
    (0..3).for_each(|i| group.stop(i));
    start(&mut group);
    runtime.block_on(async { assert_eq!(told(&client, "and again".into()).await, larger) });
    (0..3).for_each(|i| group.stop(i));
}

#[test]
fn a_segment_that_nobody_could_read_back_stops_the_group_while_the_log_is_whole() {
    grows_too_large_and_goes_on_in_parts::<0>(Schedule::Sequential);
}

#[test]
fn so_it_does_where_all_store_their_checkpoints_at_once() {
    grows_too_large_and_goes_on_in_parts::<1>(Schedule::Coordinated);
}
