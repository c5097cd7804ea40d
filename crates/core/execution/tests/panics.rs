//! A service that panics is named, and one that panics over a read does no harm.

use crate::support::{self, ALICE, BOB, Replica, frame, genesis, parameters, service, session};
use bytes::Bytes;
use perdura_execution::{
    Asked, Call, ExecutionContext, Failure, Footprint, Interface, Machine, Measure, Progress,
    QueryContext, Release, RestoreError, Service, ServicePanic, Snapshot, Waiting, fatal_here,
    panic_is_expected,
};
use perdura_protocol::{Batch, Command, Encode, Outcome, SessionId, Slot, Time};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Panics wherever a command told it to; where it panics when it is asked next is its state.
#[derive(Clone, Default)]
struct Touchy {
    at: Bytes,
    read_expected: std::cell::Cell<bool>,
}

impl Touchy {
    fn touch(&self, name: &'static str) {
        assert!(self.at != name.as_bytes(), "touched at {name}");
    }
}

impl Service for Touchy {
    fn prefetch(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        for command in commands {
            assert!(command != b"prefetch");
        }
    }

    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        if command == b"fatal" {
            return Err(Failure::FatalHere("no memory is left".into()));
        }
        assert!(!command.starts_with(b"boom"), "{} bytes are too many", command.len());
        self.at = Bytes::copy_from_slice(command);
        Ok(Bytes::from_static(b"done"))
    }

    fn on_time(&mut self, _: Time, _: &mut Vec<Release>) {
        if self.at == "fatal on_time" {
            fatal_here("no disk is left");
        }
        self.touch("on_time");
    }

    fn due(&self) -> Option<Time> {
        self.touch("due");
        None
    }

    fn session_ended(&mut self, _: SessionId) {
        self.touch("session_ended");
    }

    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        self.read_expected.set(panic_is_expected());
        if command == b"fatal read" {
            fatal_here("no disk is left");
        }
        assert!(command != b"bad read", "no such thing");
        Some(Ok(Bytes::from_static(b"read")))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.touch("snapshot");
        Arc::new(Segments(self.at.clone()))
    }

    fn install(&mut self, index: usize, _: Bytes) -> Result<(), RestoreError> {
        assert!(index == 0, "two segments");
        Ok(())
    }

    fn interface(&self) -> Arc<dyn Interface> {
        Arc::new(Words)
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn measures(&self) -> Vec<Measure> {
        self.touch("measures");
        Vec::new()
    }

    fn state_bytes(&self) -> u64 {
        self.touch("state_bytes");
        7
    }
}

impl Waiting for Touchy {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        _: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
        match command {
            b"wait" => Ok(Progress::Waits),
            _ => self.execute(context, command).map(Progress::Done),
        }
    }

    fn forget(&mut self, _: SessionId, _: u64) {
        panic!("never forgets");
    }

    fn confirm(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {}

    fn take_back(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {}
}

/// What it says by itself.
struct Words;

impl Interface for Words {
    fn footprint(&self, command: &[u8]) -> Footprint {
        assert!(command != b"footprint");
        Footprint::new()
    }

    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        assert!(command != b"asks", "about whom?");
        None
    }
}

struct Segments(Bytes);

impl Snapshot for Segments {
    fn segments(&self) -> usize {
        assert!(self.0 != "segments");
        2
    }

    fn segment(&self, index: usize) -> Bytes {
        assert!(index == 0 || self.0 != "segment", "segment {index}");
        Bytes::new()
    }
}

fn panic_of<T>(work: impl FnOnce() -> T) -> ServicePanic {
    let Err(payload) = catch_unwind(AssertUnwindSafe(work)) else { panic!("it did not panic") };
    *payload.downcast::<ServicePanic>().expect("it is named")
}

/// One with an open session, and in slot 2 a command.
fn told(command: &str) -> Replica<Touchy> {
    let mut replica = Replica::around(Touchy::default());
    replica.open(session(ALICE, 7));
    replica.order(&frame(session(ALICE, 7), 0, 1, &[service(command)]));
    replica
}

#[test]
fn a_command_is_named_with_its_slot_its_session_and_its_first_bytes() {
    let mut replica = told("calm");
    let long = format!("boom\0{}", "x".repeat(100));
    let frames = vec![
        frame(session(ALICE, 7), 0, 2, &[service("one"), service("two")]),
        frame(session(ALICE, 7), 0, 4, &[service("three"), service(&long), service("four")]),
    ];
    let batch = Batch::requests(Time(1), frames);
    let panic = panic_of(|| replica.execute(&batch));
    assert_eq!((panic.call, panic.slot), (Call::Execute, Slot(3)));
    let (of, number, shown) = panic.command.clone().unwrap();
    assert_eq!((of, number), (session(ALICE, 7), 5));
    assert_eq!((shown.clone().unwrap().first.len(), shown.unwrap().bytes), (64, 105));
    let words = panic.to_string();
    for part in
        ["`execute` at slot 3", "command 5 of session 7", "boom\\x00xxx", "...\" (105 bytes)"]
    {
        assert!(words.contains(part), "{words}");
    }
    assert!(words.ends_with(": 105 bytes are too many"), "{words}");
}

#[test]
fn what_is_fatal_here_is_named_and_is_no_panic() {
    let mut replica = told("calm");
    let batch = Batch::requests(Time(1), vec![frame(session(ALICE, 7), 0, 2, &[service("fatal")])]);
    let fatal = panic_of(|| replica.execute(&batch));
    assert!(fatal.fatal && fatal.call == Call::Execute && fatal.slot == Slot(3));
    let words = fatal.to_string();
    assert!(words.contains("cannot go on here in `execute` at slot 3"), "{words}");
    assert!(words.ends_with(": no memory is left"), "{words}");
    for fatal in [
        panic_of(|| told("fatal on_time").0.execute(Slot(3), &Batch::tick(Time(9)))),
        panic_of(|| told("calm").0.query(ALICE, &service("fatal read"))),
    ] {
        assert!(fatal.fatal && fatal.to_string().ends_with(": no disk is left"), "{fatal}");
    }
    let panic = panic_of(|| told("boom"));
    assert!(!panic.fatal && panic.to_string().contains("panicked"));
}

/// A state that a service takes for one, and would give otherwise.
#[test]
fn as_many_segments_have_to_come_back_as_were_installed() {
    let snapshot = Replica::around(support::Counter::default()).0.snapshot();
    let other = support::restore(&snapshot, Touchy::default()).map(|_| ());
    assert!(matches!(other, Err(RestoreError::Contradiction(_))), "{other:?}");
}

#[test]
fn every_function_that_a_replica_calls_is_named() {
    let mut replica = told("on_time");
    let panic = panic_of(|| replica.execute(&Batch::tick(Time(9))));
    assert_eq!((panic.call, panic.slot, panic.command), (Call::OnTime, Slot(3), None));
    for (name, call) in
        [("due", Call::Due), ("state_bytes", Call::StateBytes), ("measures", Call::Measures)]
    {
        let replica = told(name);
        let panic = panic_of(|| (replica.0.due(), replica.0.state_bytes(), replica.0.measures()));
        assert_eq!((panic.call, panic.slot), (call, Slot(2)));
    }
    let panic = panic_of(|| told("snapshot").0.snapshot());
    assert_eq!((panic.call, panic.slot), (Call::Snapshot, Slot(2)));
    let panic = panic_of(|| told("segments").0.snapshot().manifest());
    assert_eq!((panic.call, panic.slot), (Call::Segments, Slot(2)));
    let snapshot = told("segment").0.snapshot();
    for panic in [panic_of(|| snapshot.manifest()), panic_of(|| snapshot.piece(3))] {
        assert_eq!((panic.call, panic.slot, panic.segment), (Call::Segment, Slot(2), Some(1)));
    }
    let snapshot = told("calm").0.snapshot();
    let panic = panic_of(|| support::restore(&snapshot, Touchy::default()).map(|_| ()));
    assert_eq!((panic.call, panic.slot), (Call::Install, Slot(2)));
    let mut replica = told("session_ended");
    let closed = frame(session(ALICE, 7), 0, 2, &[Command::Close.to_bytes()]);
    let panic = panic_of(|| replica.order(&closed));
    let command = Some((session(ALICE, 7), 0, None));
    assert_eq!((panic.call, panic.slot, panic.command), (Call::SessionEnded, Slot(3), command));
    let mut replica = told("calm");
    let asking = frame(session(ALICE, 7), 0, 2, &[service("one"), service("asks")]);
    let panic = panic_of(|| replica.order(&asking));
    assert_eq!((panic.call, panic.slot), (Call::AsksAbout, Slot(3)));
    let (of, number, shown) = panic.command.unwrap();
    assert_eq!((of, number, shown.unwrap().first), (session(ALICE, 7), 3, b"asks".to_vec()));
    let mut replica = told("wait");
    let withdrawn = frame(session(ALICE, 7), 0, 2, &[Command::Withdraw { number: 1 }.to_bytes()]);
    let panic = panic_of(|| replica.order(&withdrawn));
    let command = Some((session(ALICE, 7), 1, None));
    assert_eq!((panic.call, panic.slot, panic.command), (Call::Forget, Slot(3), command));
}

/// Whoever may read could end all replicas else.
#[test]
fn a_read_over_which_the_service_panics_is_none_and_is_told_of_once() {
    let replica = told("calm");
    let asked = replica.0.asked().clone();
    for expected in [false, true] {
        assert_eq!(replica.0.query(BOB, &service("bad read")), None);
        assert_eq!(replica.0.service().read_expected.get(), expected);
    }
    let panic = asked.take_caught().unwrap();
    assert_eq!((panic.call, panic.slot), (Call::Query, Slot(2)));
    assert!(panic.to_string().contains("for the read \"bad read\" (8 bytes): no such thing"));
    let nothing = replica.0.inspector().footprint(session(ALICE, 7), &service("footprint"));
    assert!(nothing.conflicts(&Footprint::everything()));
    assert_eq!(asked.take_caught(), None, "once");
    assert_eq!(replica.0.query(BOB, &service("good")), Some(support::reply("read")));
    assert!(!panic_is_expected() && asked.now().is_none());
}

#[test]
fn what_looks_ahead_changes_nothing_when_it_panics() {
    let mut replica = told("calm");
    let outcome = replica.one(session(ALICE, 7), 2, &service("prefetch"));
    assert_eq!(outcome, support::reply("done"));
    assert_eq!(replica.0.asked().take_caught().unwrap().call, Call::Prefetch);
    assert_eq!((replica.0.slot(), replica.0.asked().now()), (Slot(3), None));
}

/// One that asks, from within a command, what another thread would see.
struct Watched(Asked);

impl Service for Watched {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        assert_eq!(self.0.now(), Some((Call::Execute, Slot(2))));
        Ok(Bytes::new())
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Segments(Bytes::new()))
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }
}

#[test]
fn who_else_asks_is_told_what_has_not_returned() {
    let asked = Asked::default();
    let machine = Machine::new(&parameters(), genesis(), Watched(asked.clone())).unwrap();
    let mut replica = Replica(machine.with_asked(asked.clone()));
    replica.open(session(ALICE, 7));
    let outcome = replica.one(session(ALICE, 7), 1, &service("any"));
    assert_eq!((outcome, asked.now()), (Outcome::Service(Bytes::new()), None));
}
