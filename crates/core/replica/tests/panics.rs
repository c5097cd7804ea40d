//! Services that panic, and that hang, in real replicas: whose fault it is is said, and what was acknowledged stays.

use crate::real::{Group, Running};
use bytes::Bytes;
use perdura_client::{Client, Options, Reply};
use perdura_durability::FileDisk;
use perdura_durability::inspect::read_superblock;
use perdura_execution::{ExecutionContext, Failure, QueryContext, RestoreError, Service, Snapshot};
use perdura_protocol::Slot;
use perdura_protocol::configuration::Durability;
use perdura_replica::node::BootError;
use perdura_replica::runtime::RunError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What is wrong with the program right now.
static PANICS: AtomicBool = AtomicBool::new(false);
/// Fatal to whoever executes the next command.
static FATAL: AtomicBool = AtomicBool::new(false);
static BAD_SEGMENTS: AtomicBool = AtomicBool::new(false);
/// The state is another program's.
static UNREAD: AtomicBool = AtomicBool::new(false);
static HANGS: Mutex<()> = Mutex::new(());
static RESTORES: Mutex<()> = Mutex::new(());

/// One group after the other: they share what is wrong.
static ALONE: Mutex<()> = Mutex::new(());

fn flag(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

/// The text that it was given last, with what may be wrong.
#[derive(Clone, Default)]
struct Last(Bytes);

impl Service for Last {
    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        if command == b"boom" && flag(&PANICS) {
            // Half executed.
            self.0 = Bytes::from_static(b"half");
            panic!("cannot stand it");
        }
        if FATAL.swap(false, Ordering::SeqCst) {
            self.0 = Bytes::from_static(b"half");
            return Err(Failure::FatalHere("the memory is used up".into()));
        }
        if command == b"hang" {
            drop(HANGS.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let before = std::mem::replace(&mut self.0, Bytes::copy_from_slice(command));
        Ok(before)
    }

    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        assert!(command != b"bad read", "no such read");
        Some(Ok(self.0.clone()))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.clone())
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        drop(RESTORES.lock().unwrap_or_else(PoisonError::into_inner));
        if flag(&UNREAD) {
            return Err(RestoreError::Contradiction("another number of parts"));
        }
        self.0 = segment;
        Ok(())
    }
}

impl Snapshot for Last {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, index: usize) -> Bytes {
        assert!(!flag(&BAD_SEGMENTS), "cannot be written");
        assert!(index == 0);
        self.0.clone()
    }
}

fn within(seconds: u64) -> Options {
    Options { timeout: Duration::from_secs(seconds), ..Options::default() }
}

async fn order(client: &Client, command: &'static str) -> Bytes {
    let command = Bytes::from_static(command.as_bytes());
    match client.call(command, &within(30)).await.unwrap() {
        Reply::Service(reply) => reply,
        other => panic!("not a service's reply: {other:?}"),
    }
}

/// Whose tasks run while the test waits for something else.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn group() -> Group<Last> {
    Group::new(1, 0, Durability::Sync, |_| Last::default())
}

/// Waits until two of the three have ended by themselves, for one alone decides nothing; then stops all. How they ended.
fn ended(group: &mut Group<Last>) -> Vec<Result<(), RunError>> {
    let mut running: Vec<Running> = group.running.iter_mut().filter_map(Option::take).collect();
    while running.iter().filter(|(_, thread)| thread.is_finished()).count() < 2 {
        std::thread::yield_now();
    }
    for (shutdown, _) in &running {
        shutdown.request();
    }
    running.drain(..).map(|(_, thread)| thread.join().expect("nothing else panics")).collect()
}

#[test]
fn what_is_fatal_to_one_replica_ends_that_one_which_goes_on_at_its_next_start() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        FATAL.store(true, Ordering::SeqCst);
        assert_eq!(order(&client, "fatal to one").await, "kept");
        assert_eq!(order(&client, "after").await, "fatal to one");
    });
    let is_over = |running: &Option<Running>| running.as_ref().unwrap().1.is_finished();
    let at = loop {
        let over: Vec<usize> = (0..3).filter(|i| is_over(&group.running[*i])).collect();
        assert!(over.len() < 2, "it is fatal to one");
        match over[..] {
            [at] => break at,
            _ => std::thread::yield_now(),
        }
    };
    let (_, thread) = group.running[at].take().unwrap();
    let error = thread.join().expect("nothing panics").unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, RunError::FatalHere(_)), "{words}");
    for part in ["cannot go on here", "`execute`", "the memory is used up", "this replica alone"] {
        assert!(words.contains(part), "{words}");
    }
    // Not even the second time at one slot bars the program; and another one leaves, so that this one is needed.
    group.start(at);
    group.stop((at + 1) % 3);
    runtime.block_on(async {
        let client = group.connect();
        assert_eq!(order(&client, "with it").await, "after");
    });
    (0..3).filter(|i| *i != (at + 1) % 3).for_each(|i| group.stop(i));
}

#[test]
fn a_command_that_panics_bars_the_program_the_second_time_and_a_mended_one_goes_on() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    let client = runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        client
    });
    PANICS.store(true, Ordering::SeqCst);
    let caller = client.clone();
    let called = runtime.spawn(async move { order(&caller, "boom").await });
    let mut at = None;
    for error in ended(&mut group).into_iter().filter_map(Result::err) {
        let words = error.to_string();
        let RunError::Service(panic) = error else { panic!("{words}") };
        assert_eq!(*at.get_or_insert(panic.slot), panic.slot);
        for part in ["`execute`", "\"boom\" (4 bytes)", "cannot stand it", "no disk failed"] {
            assert!(words.contains(part), "{words}");
        }
    }
    (0..3).for_each(|i| group.start(i));
    let mut again = 0;
    for (i, ended) in ended(&mut group).into_iter().enumerate() {
        // One of them may have had its first time only now, or none.
        let Err(RunError::ServiceAgain { panic, note }) = ended else { continue };
        assert_eq!(at, Some(panic.slot));
        again += 1;
        group.start(i);
        let error = group.failure(i);
        assert!(matches!(error, RunError::ServiceBarred { .. }), "{error}");
        assert!(error.to_string().contains(&note.display().to_string()), "{error}");
        std::fs::remove_file(note).unwrap();
    }
    assert!(again > 0);
    // The program is mended: what was half executed has left no trace.
    PANICS.store(false, Ordering::SeqCst);
    (0..3).for_each(|i| group.start(i));
    runtime.block_on(async {
        assert_eq!(called.await.unwrap(), "kept");
        assert_eq!(order(&client, "after").await, "boom");
    });
    (0..3).for_each(|i| group.stop(i));
}

/// What the log proves decided runs before anything else does; its data directory is closed as after any run.
#[test]
fn a_command_that_panics_at_the_replay_of_the_log_is_named_and_bars_the_program() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        // As another program does.
        assert_eq!(order(&client, "boom").await, "kept");
        // What is behind it proves it.
        for _ in 0..40 {
            order(&client, "more").await;
        }
    });
    (0..3).for_each(|i| group.stop(i));
    PANICS.store(true, Ordering::SeqCst);
    let mut words = Vec::new();
    for _ in 0..3 {
        group.start(0);
        words.push(group.failure(0).to_string());
    }
    for (told, begins) in words.iter().zip(["stopped: ", "stopped for good: ", "not started: "]) {
        assert!(told.starts_with(begins) && told.contains("`execute` at slot"), "{told}");
    }
    PANICS.store(false, Ordering::SeqCst);
    std::fs::remove_file(group.data(0).join("service-panicked")).unwrap();
    (0..3).for_each(|i| group.start(i));
    runtime.block_on(async {
        assert_eq!(order(&group.connect(), "after").await, "more");
    });
    (0..3).for_each(|i| group.stop(i));
}

/// The checkpointer and the digester ask for segments, on threads of their own.
#[test]
fn a_segment_that_panics_is_the_services_fault_and_not_the_disks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    let client = runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        client
    });
    BAD_SEGMENTS.store(true, Ordering::SeqCst);
    let caller = client.clone();
    // Past a boundary.
    let called = runtime.spawn(async move {
        for _ in 0..64 {
            order(&caller, "more").await;
        }
    });
    for error in ended(&mut group).into_iter().filter_map(Result::err) {
        let words = error.to_string();
        assert!(matches!(error, RunError::Service(_)), "{words}");
        for part in ["`segment`", "for segment 0", "cannot be written", "no disk failed"] {
            assert!(words.contains(part), "{words}");
        }
    }
    // The thread that panicked had the checkpoints, and they are closed all the same.
    let open = (0..3).filter(|i| running(&group, *i)).count();
    assert_eq!(open, 0, "data directories that look as if their replicas ran");
    // What is stored and digested again at a start may be asked for by either thread first, so at either's slot.
    let barred = (0..8).any(|_| {
        group.start(0);
        matches!(group.failure(0), RunError::ServiceBarred { .. })
    });
    assert!(barred && !running(&group, 0));
    BAD_SEGMENTS.store(false, Ordering::SeqCst);
    for i in 0..3 {
        let _ = std::fs::remove_file(group.data(i).join("service-panicked"));
        group.start(i);
    }
    runtime.block_on(async { called.await.unwrap() });
    (0..3).for_each(|i| group.stop(i));
}

/// Whether a data directory says that its replica runs, or ended otherwise than in order.
fn running(group: &Group<Last>, i: usize) -> bool {
    let superblock = read_superblock(&mut FileDisk::read_only(&group.data(i))).unwrap();
    superblock.unwrap().running.is_some()
}

/// Orders commands until the first replica has stored a state; behind which slot.
fn stored(group: &Group<Last>, runtime: &tokio::runtime::Runtime) -> Slot {
    runtime.block_on(async {
        let client = group.connect();
        // Past a boundary, so that there is a state.
        for _ in 0..70 {
            order(&client, "kept").await;
        }
    });
    loop {
        let superblock = read_superblock(&mut FileDisk::read_only(&group.data(0))).unwrap();
        match superblock.unwrap().checkpoint() {
            Some(checkpoint) => return checkpoint.slot,
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_state_that_is_restored_without_end_is_named_with_its_slot() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    let slot = stored(&group, &runtime);
    (0..3).for_each(|i| group.stop(i));
    let stuck = RESTORES.lock().unwrap_or_else(PoisonError::into_inner);
    group.start(0);
    let shutdown = group.running[0].as_ref().unwrap().0.clone();
    // Asked before it began, it would not begin.
    let named = format!("restoring the state of slot {slot}");
    while !shutdown.hindrance().contains(&named) {
        std::thread::yield_now();
    }
    shutdown.request();
    assert!(shutdown.hindrance().contains(&named));
    drop(stuck);
    group.stop(0);
}

/// Whoever changed a type that is stored is not told to replace a disk.
#[test]
fn a_state_that_another_program_wrote_is_said_to_be_that() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    stored(&group, &runtime);
    (0..3).for_each(|i| group.stop(i));
    UNREAD.store(true, Ordering::SeqCst);
    group.start(0);
    let error = group.failure(0);
    UNREAD.store(false, Ordering::SeqCst);
    let words = error.to_string();
    let RunError::Boot(BootError::OtherProgram(_)) = error else { panic!("{words}") };
    let (first, last) = words.split_once("Most likely another program wrote it").unwrap();
    for part in ["is as it was written", "does not read it", "another number of parts"] {
        assert!(first.contains(part), "{words}");
    }
    assert!(last.contains("Changing it") && last.contains("Only if"), "{words}");
    // The program that wrote it goes on.
    (0..3).for_each(|i| group.start(i));
    runtime.block_on(async {
        assert_eq!(order(&group.connect(), "after").await, "kept");
    });
    (0..3).for_each(|i| group.stop(i));
}

#[test]
fn a_read_that_panics_ends_nobody() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        // No replica reads it, so that it is ordered.
        let read = client.read(Bytes::from_static(b"bad read"), &within(30)).await.unwrap();
        assert_eq!(read, Reply::Service(Bytes::from_static(b"kept")));
        assert_eq!(order(&client, "after").await, "bad read");
    });
    (0..3).for_each(|i| group.stop(i));
}

#[test]
fn what_keeps_a_replica_from_stopping_is_named_with_its_slot() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut group, runtime) = (group(), runtime());
    let client = runtime.block_on(async {
        let client = group.connect();
        order(&client, "kept").await;
        client
    });
    let stuck = HANGS.lock().unwrap_or_else(PoisonError::into_inner);
    let caller = client.clone();
    let called = runtime.spawn(async move { order(&caller, "hang").await });
    let hangs = |running: &Option<Running>| {
        let hindrance = running.as_ref().unwrap().0.hindrance();
        hindrance.contains("has not returned from `execute` at slot").then_some(hindrance)
    };
    let hindrance = loop {
        match group.running.iter().find_map(hangs) {
            Some(hindrance) => break hindrance,
            None => std::thread::yield_now(),
        }
    };
    assert!(!hindrance.contains("slot 0"), "{hindrance}");
    drop(stuck);
    runtime.block_on(async { assert_eq!(called.await.unwrap(), "kept") });
    (0..3).for_each(|i| group.stop(i));
}
