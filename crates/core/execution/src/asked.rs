//! What a service is being asked, so that a panic in it is named, and so is a call that does not return.
//!
//! Invariants:
//! - a panic in a service goes on as one whose payload is a [`ServicePanic`]; one of our own goes on as it was;
//! - what only reads (`query`, `prefetch`, and the service's interface while nothing is executed) changes nothing, and a panic in it ends nothing: any
//!   client may ask for that, again and again;
//! - while nothing goes wrong, a command costs a few stores to memory that nobody else writes.

use perdura_protocol::text::Printable;
use perdura_protocol::{Batch, Command, SessionId, Slot};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a command that are shown.
const SHOWN_BYTES: usize = 64;

/// A function of a service, or of its snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`crate::Service::on_time`].
    OnTime,
    /// [`crate::Service::prefetch`].
    Prefetch,
    /// [`crate::Service::execute`], or [`crate::Waiting::execute_or_wait`].
    Execute,
    /// [`crate::Waiting::forget`].
    Forget,
    /// [`crate::Waiting::confirm`].
    Confirm,
    /// [`crate::Waiting::take_back`].
    TakeBack,
    /// [`crate::Service::due`].
    Due,
    /// [`crate::Service::state_bytes`].
    StateBytes,
    /// [`crate::Service::measures`].
    Measures,
    /// [`crate::Service::snapshot`].
    Snapshot,
    /// [`crate::Service::install`].
    Install,
    /// [`crate::Service::set_version`].
    SetVersion,
    /// [`crate::Service::set_state_limit`].
    SetStateLimit,
    /// [`crate::Service::query`].
    Query,
    /// [`crate::Service::readable`].
    Readable,
    /// [`crate::Interface::footprint`].
    Footprint,
    /// [`crate::Service::session_ended`].
    SessionEnded,
    /// [`crate::Interface::asks_about`].
    AsksAbout,
    /// [`crate::Service::may_be_put_off`].
    MayBePutOff,
    /// [`crate::Interface::attested`].
    Attested,
    /// [`crate::Interface::claims`].
    Claims,
    /// [`crate::Service::interface`].
    Interface,
    /// [`crate::Snapshot::segments`].
    Segments,
    /// [`crate::Snapshot::segment`] or [`crate::Snapshot::entry`].
    Segment,
}

const CALLS: [(Call, &str); 24] = [
    (Call::OnTime, "on_time"),
    (Call::Prefetch, "prefetch"),
    (Call::Execute, "execute"),
    (Call::Forget, "forget"),
    (Call::Confirm, "confirm"),
    (Call::TakeBack, "take_back"),
    (Call::Due, "due"),
    (Call::StateBytes, "state_bytes"),
    (Call::Measures, "measures"),
    (Call::Snapshot, "snapshot"),
    (Call::Install, "install"),
    (Call::SetVersion, "set_version"),
    (Call::SetStateLimit, "set_state_limit"),
    (Call::Query, "query"),
    (Call::Readable, "readable"),
    (Call::Footprint, "footprint"),
    (Call::SessionEnded, "session_ended"),
    (Call::AsksAbout, "asks_about"),
    (Call::MayBePutOff, "may_be_put_off"),
    (Call::Attested, "attested"),
    (Call::Claims, "claims"),
    (Call::Interface, "interface"),
    (Call::Segments, "segments"),
    (Call::Segment, "segment"),
];

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CALLS.iter().find(|(call, _)| call == self).map_or("?", |(_, name)| name);
        write!(f, "`{name}`")
    }
}

/// A command, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Its first bytes, 64 at most.
    pub first: Vec<u8>,
    /// How many it has.
    pub bytes: usize,
}

impl Shown {
    fn of(command: &[u8]) -> Shown {
        let first = command[..command.len().min(SHOWN_BYTES)].to_vec();
        Shown { first, bytes: command.len() }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.first.len() < self.bytes { "..." } else { "" };
        write!(f, "\"{}{more}\" ({} bytes)", self.first.escape_ascii(), self.bytes)
    }
}

/// A service panicked, or cannot go on here, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePanic {
    /// In which function.
    pub call: Call,
    /// While this slot was executed, or in the state after it.
    pub slot: Slot,
    /// For which command: its session, its number, and itself if it is of this slot.
    pub command: Option<(SessionId, u64, Option<Shown>)>,
    /// For which read.
    pub read: Option<Shown>,
    /// For which segment.
    pub segment: Option<usize>,
    /// What it said.
    pub text: String,
    /// It did not panic, but said itself that it cannot go on here ([`crate::Failure::FatalHere`]).
    pub fatal: bool,
}

/// The words of a service that cannot go on.
struct Fatal(String);

/// The service cannot go on in this replica, as [`crate::Failure::FatalHere`] says: for calls that have no other way to say so, on whatever thread.
///
/// # Panics
/// Always: so it ends the replica. No panic hook is asked.
pub fn fatal_here(words: impl Into<String>) -> ! {
    resume_unwind(Box::new(Fatal(words.into())))
}

impl ServicePanic {
    fn new(call: Call, slot: Slot, text: String) -> ServicePanic {
        ServicePanic { call, slot, command: None, read: None, segment: None, text, fatal: false }
    }
}

impl fmt::Display for ServicePanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.fatal { "cannot go on here" } else { "panicked" };
        write!(f, "the service {what} in {} at slot {}", self.call, self.slot)?;
        if let Some(segment) = self.segment {
            write!(f, ", for segment {segment}")?;
        }
        if let Some((session, number, command)) = &self.command {
            let SessionId { client, nonce } = session;
            write!(f, ", for command {number} of session {nonce} of client {client}")?;
            command.as_ref().map_or(Ok(()), |command| write!(f, ", {command}"))?;
        }
        if let Some(read) = &self.read {
            write!(f, ", for the read {read}")?;
        }
        // Services say in their last words what they were given.
        let end = self.text.char_indices().nth(WORDS).map_or(self.text.len(), |(at, _)| at);
        write!(f, ": {}", Printable(&self.text[..end]))
    }
}

/// Letters that are shown of what a panic said.
const WORDS: usize = 500;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be one that was told of before and changes nothing, so that a panic hook
/// had better say nothing: who sends a bad read sends a million.
#[must_use]
pub fn panic_is_expected() -> bool {
    EXPECTED.get()
}

/// What a machine's service is being asked, for whoever asks from another thread. Clones are of the same.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Asking>);

#[derive(Debug, Default)]
struct Asking {
    // Index in `CALLS`, from 1; 0 while it is asked nothing.
    call: AtomicU8,
    slot: AtomicU64,
    // Of the batch that is executed.
    frame: AtomicUsize,
    number: AtomicU64,
    // Of panics that ended nothing: whether there was one, and the first, till somebody takes it.
    panicked: AtomicBool,
    caught: Mutex<Option<ServicePanic>>,
}

impl Asked {
    /// The function that has not returned yet, and at which slot.
    #[must_use]
    pub fn now(&self) -> Option<(Call, Slot)> {
        let index = usize::from(self.0.call.load(Ordering::Relaxed)).checked_sub(1)?;
        let (call, _) = CALLS.get(index)?;
        Some((*call, self.slot()))
    }

    /// The slot that it was asked about last.
    #[must_use]
    pub fn slot(&self) -> Slot {
        Slot(self.0.slot.load(Ordering::Relaxed))
    }

    /// The first panic that ended nothing, once.
    #[must_use]
    pub fn take_caught(&self) -> Option<ServicePanic> {
        self.0.caught.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Executes a slot; what of it calls the service says so by [`Asked::ask`].
    pub(crate) fn execute<T>(&self, slot: Slot, batch: &Batch, work: impl FnOnce() -> T) -> T {
        self.0.slot.store(slot.0, Ordering::Relaxed);
        naming(work, |text| {
            let (call, _) = self.now()?;
            let mut panic = ServicePanic::new(call, slot, text);
            panic.command = self.command(call, batch);
            self.answered();
            Some(panic)
        })
    }

    fn command(&self, call: Call, batch: &Batch) -> Option<(SessionId, u64, Option<Shown>)> {
        if !matches!(call, Call::Execute | Call::AsksAbout) {
            return None;
        }
        let frame = batch.frames().get(self.0.frame.load(Ordering::Relaxed))?;
        let number = self.0.number.load(Ordering::Relaxed);
        let index = number.checked_sub(frame.first_number)?;
        let command = frame.command_slices().nth(index as usize)?;
        Some((frame.session, number, Command::service_content(command).map(Shown::of)))
    }

    /// Tells it, while a slot is executed, something about a command of whatever session.
    pub(crate) fn about_number(
        &self,
        call: Call,
        (session, number): (SessionId, u64),
        work: impl FnOnce(),
    ) {
        let slot = self.slot();
        self.ask(call, number);
        naming(work, |text| {
            let command = Some((session, number, None));
            Some(ServicePanic { command, ..ServicePanic::new(call, slot, text) })
        });
        self.answered();
    }

    /// What follows is of this frame of the batch.
    pub(crate) fn frame(&self, index: usize) {
        self.0.frame.store(index, Ordering::Relaxed);
    }

    /// The service is asked this now, about the command with this number.
    pub(crate) fn ask(&self, call: Call, number: u64) {
        self.0.number.store(number, Ordering::Relaxed);
        self.0.call.store(call as u8 + 1, Ordering::Relaxed);
    }

    /// It has answered.
    pub(crate) fn answered(&self) {
        self.0.call.store(0, Ordering::Relaxed);
    }

    /// Asks it one thing about the state after a slot.
    pub fn about<T>(&self, call: Call, slot: Slot, work: impl FnOnce() -> T) -> T {
        self.0.slot.store(slot.0, Ordering::Relaxed);
        self.ask(call, 0);
        let answer = named(call, slot, None, work);
        self.answered();
        answer
    }

    /// Asks it what changes nothing; none if it panics.
    pub(crate) fn reading<T>(
        &self,
        call: Call,
        read: Option<&[u8]>,
        work: impl FnOnce() -> T,
    ) -> Option<T> {
        // One thread asks, so this needs no exchange in one step.
        let before = self.0.call.load(Ordering::Relaxed);
        self.0.call.store(call as u8 + 1, Ordering::Relaxed);
        EXPECTED.set(self.0.panicked.load(Ordering::Relaxed));
        let answer = catch_unwind(AssertUnwindSafe(work));
        EXPECTED.set(false);
        self.0.call.store(before, Ordering::Relaxed);
        let payload = match answer {
            Ok(answer) => return Some(answer),
            Err(payload) if payload.is::<Fatal>() => {
                let (slot, text) = (self.slot(), text_of(&*payload));
                let fatal = ServicePanic { fatal: true, ..ServicePanic::new(call, slot, text) };
                resume_unwind(Box::new(fatal))
            }
            Err(payload) => payload,
        };
        if !self.0.panicked.swap(true, Ordering::Relaxed) {
            let (read, text) = (read.map(Shown::of), text_of(&*payload));
            let panic = ServicePanic { read, ..ServicePanic::new(call, self.slot(), text) };
            *self.0.caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        None
    }
}

impl Asked {
    /// For a read beside execution, of the state after this slot: one that knows whether a read panicked before.
    pub(crate) fn beside(&self, slot: Slot) -> Asked {
        let panicked = AtomicBool::new(self.0.panicked.load(Ordering::Relaxed));
        Asked(Arc::new(Asking { slot: AtomicU64::new(slot.0), panicked, ..Asking::default() }))
    }

    /// Such a one panicked.
    pub(crate) fn caught_beside(&self, panic: ServicePanic) {
        if !self.0.panicked.swap(true, Ordering::Relaxed) {
            *self.0.caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }
}

/// Asks a service one thing about the state after a slot, on any thread.
pub(crate) fn named<T>(
    call: Call,
    slot: Slot,
    segment: Option<usize>,
    work: impl FnOnce() -> T,
) -> T {
    naming(work, |text| Some(ServicePanic { segment, ..ServicePanic::new(call, slot, text) }))
}

/// Does something; a panic in it goes on under the name that it is given, if any.
fn naming<T>(work: impl FnOnce() -> T, name: impl FnOnce(String) -> Option<ServicePanic>) -> T {
    let payload = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => return done,
        Err(payload) => payload,
    };
    if payload.is::<ServicePanic>() {
        resume_unwind(payload);
    }
    match name(text_of(&*payload)) {
        Some(named) => {
            resume_unwind(Box::new(ServicePanic { fatal: payload.is::<Fatal>(), ..named }))
        }
        None => resume_unwind(payload),
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let words = || payload.downcast_ref::<Fatal>().map(|Fatal(words)| words.clone());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .or_else(words)
        .unwrap_or_else(|| "(no text)".into())
}
