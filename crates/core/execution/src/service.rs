//! What a developer implements: a deterministic [`Service`] and the [`Snapshot`] of its state.
//!
//! Four functions are the whole of a small one: [`Service::execute`], [`Service::query`], [`Service::snapshot`] and [`Service::install`]. What
//! follows them is for services that want more. What commands and replies say by themselves is asked of the service's [`Interface`]; commands
//! that wait for others are its [`Waiting`] part.
//!
//! Invariants that the machine relies on:
//! - `execute` is a function of the state, the context and the command, and of nothing else;
//! - a refusal leaves the state as it was;
//! - which commands wait is part of the state, and so of snapshots;
//! - two services that executed the same commands, or installed the same segments, give snapshots
//!   with equal segments, byte for byte.

use crate::cost::{Meter, TooCostly};
use crate::interface::{Interface, Opaque};
use crate::manifest::Entry;
use crate::measure::Measure;
use crate::restore::RestoreError;
use crate::waiting::{Release, Waiting};
use bytes::Bytes;
use perdura_protocol::{ClusterId, Digest, Encode, PublicKey, SessionId, Slot, Time};
use std::any::Any;
use std::sync::Arc;

/// Whether a session may still send commands. What is over stays so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is open now.
    Open,
    /// It is not, and its number can still open, now or later.
    MayOpen,
    /// Neither, for good: it ended, its number was never used and is too old, or its key was revoked.
    Over,
}

/// What a command may know besides its bytes and the state (rule E3). Equal on all replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutionContext {
    /// The slot in whose batch the command was decided.
    pub slot: Slot,
    /// Agreed time, milliseconds since the Unix epoch; it never goes back.
    pub time: Time,
    /// Agreed time without those in which the group stood still: what leases and deadlines go by, so that none ends before its holder could
    /// say a word. The same as `time` under the first version of the core's rules.
    pub clock: Time,
    /// Whose command it is.
    pub session: SessionId,
    /// Its number in the session, from 1.
    pub number: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// Digest of the slot's batch.
    pub batch: Digest,
    /// The administrator's key in force.
    pub administrator: PublicKey,
    /// How the session stands that the command asks about ([`Interface::asks_about`]).
    pub other: Option<Standing>,
    /// To be told what the command costs, as far as that is not in proportion to its own bytes. The bytes of its reply count by themselves.
    pub meter: Meter,
}

impl ExecutionContext {
    /// Agreed randomness: a hash of (cluster, slot, batch, session, number). A leader can bias it
    /// by its choice of batches and everyone can compute it: never use it for secrets.
    #[must_use]
    pub fn seed(&self) -> Digest {
        let mut out = b"perdura.seed.v1".to_vec();
        self.cluster.encode(&mut out);
        self.slot.encode(&mut out);
        self.batch.encode(&mut out);
        self.session.encode(&mut out);
        self.number.encode(&mut out);
        Digest::of(&out)
    }
}

/// How large the state of a service may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateLimit {
    /// As [`Service::state_bytes`] counts them, or as the service says.
    pub bytes: u64,
    /// Segments of a [`Snapshot`]: whoever refuses what would grow the state once there are so many leaves room for what
    /// one command of up to 1,024 writes adds.
    pub segments: usize,
}

impl StateLimit {
    /// With no bound on the number of segments, as it was in 0.1.0.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> StateLimit {
        StateLimit { bytes, segments: usize::MAX }
    }
}

/// What a read outside the order of commands may know besides its bytes and the state. No time: replicas that are asked stand at different
/// slots, and what they answer is held against each other.
#[derive(Clone, Copy, Debug)]
pub struct QueryContext<'a> {
    /// Who reads.
    pub client: PublicKey,
    /// To be told what the read costs, as far as that is not in proportion to its answer.
    pub meter: &'a Meter,
}

/// Why a command has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It is refused, on every replica in these words for the client (at most 4096 bytes of them are sent), and has changed nothing.
    Refused(String),
    /// This replica cannot carry it out, which says nothing about the others: its memory is used up, a database that it runs does not
    /// answer. It ends, with these words in its log; what it has executed of the batch is gone with its memory, and nobody is told anything of
    /// it. When it is started again it executes the same commands again. A failure that all replicas would meet is no such thing: it ends all.
    /// Other calls say the same by [`crate::fatal_here`].
    FatalHere(String),
}

impl From<String> for Failure {
    fn from(words: String) -> Failure {
        Failure::Refused(words)
    }
}

impl From<&str> for Failure {
    fn from(words: &str) -> Failure {
        Failure::Refused(words.to_owned())
    }
}

impl From<TooCostly> for Failure {
    fn from(too_costly: TooCostly) -> Failure {
        Failure::Refused(too_costly.to_string())
    }
}

/// A deterministic service, replicated by running the same commands in the same order everywhere.
///
/// `examples/counter.rs` is a whole one.
///
/// A panic in one of its functions ends the replica, and all others that run the same command, and does so again at every start until
/// the program is another one: it is for states that must not be, and never for input. In those that only read (`query`, `prefetch`, and those
/// of its [`Interface`]) it ends nothing.
pub trait Service: Any + Send {
    /// Carries out `command`, any bytes a client sent, and gives its reply. The reply should own
    /// its memory: a slice of the command would keep the whole batch alive. Replies above
    /// [`perdura_protocol::limits::FRAME_BYTES`] are not delivered (the client learns "too old").
    ///
    /// # Errors
    /// [`Failure`]: refused, the same everywhere; or fatal to this replica alone.
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure>;

    /// Answers a read outside the order of commands, as [`Service::execute`] would at this point;
    /// `None` when `command` is not a read. A panic is taken for `None`. The default orders everything.
    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        let _ = (context, command);
        None
    }

    /// The state as it is now, for reads on other threads while commands change this one. Execution waits for it, as for a snapshot; it is asked
    /// for while there are reads, after each batch, and up to 16 such states are held for a second, or as many as a quarter of the state was copied
    /// behind. Without one, which it says at the start, reads are answered between batches, and batches wait
    /// for them.
    fn readable(&self) -> Option<Arc<dyn Readable>> {
        None
    }

    /// The state as it is now. Execution waits for it, so it should take microseconds at any size:
    /// share, and copy on write.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Installs one segment of a snapshot into a service in its initial state: each of them once, ascending from 0, and nothing else is asked
    /// of it meanwhile but its versions and limits. The digests have been verified; the shape has not. When all are there
    /// ([`Service::installed`]), a snapshot gives the same segments again.
    ///
    /// # Errors
    /// When no snapshot of this service has this segment at this place. The service is not used any more.
    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError>;

    /// All segments are installed. That there are as many as a snapshot has is verified afterwards.
    ///
    /// # Errors
    /// When no snapshot of this service has just these segments. The service is not used any more.
    fn installed(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }

    /// What commands and replies of this service say by themselves. Asked once, of one in its initial state.
    fn interface(&self) -> Arc<dyn Interface> {
        Arc::new(Opaque)
    }

    /// The part of it that lets commands wait for others, if it has one.
    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        None
    }

    /// These commands are the next to run, in this order, if nothing is in their way. A service whose state is far
    /// larger than the processor's caches may look at what they will touch, so that memory answers many of them at
    /// once and not one after the other. It changes nothing, and should not panic on any bytes.
    fn prefetch(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        let _ = commands;
    }

    /// Whether a command may be refused for now, since its client has used up its share of the slot, or keeps too many bytes of replies: it
    /// is ordered again then. What ends something that is in others' way had better not be. A function of the state and the command, asked only
    /// where that is so.
    fn may_be_put_off(&self, command: &[u8]) -> bool {
        let _ = command;
        true
    }

    /// The clock ([`ExecutionContext::clock`]) shows this from now on: called at the start of every batch (rule E3), for what
    /// ends by time, and what waits until then. Replies to commands that waited go to `released`, as in [`Waiting::execute_or_wait`].
    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        let _ = (clock, released);
    }

    /// The time on the clock for which something in the state waits first, so that a batch comes then, though
    /// nobody sends any. `on_time` at that time, or later, changes what this gives.
    fn due(&self) -> Option<Time> {
        None
    }

    /// The session is over for good: closed, expired, evicted, or its key was revoked. Told after what waited in it is forgotten, and what it
    /// was offered taken back. No footprint tells of it.
    fn session_ended(&mut self, session: SessionId) {
        let _ = session;
    }

    /// About how large the state is, bytes: what a snapshot of it takes on disk, more or less. Replicas agree
    /// by it on when the next checkpoint is due, which is rarer for a large state, and count that anew from their
    /// checkpoints when they start. So it follows from the state alone, is the same after it was installed, and never changes in the life
    /// of a cluster whose `checkpoint_stretch` is not 1, not even with all replicas stopped. Constant time. A service that does
    /// not say is taken for small.
    fn state_bytes(&self) -> u64 {
        0
    }

    /// Whether a command may take a millisecond or more: a replica executes in a thread beside agreement then, if its file says nothing else.
    /// A thread costs some ten microseconds a batch, and what takes long beside agreement stops nobody's votes.
    fn takes_long(&self) -> bool {
        false
    }

    /// What those who watch the replica get to see of it besides. Some microseconds, several times a second, and after each batch where a service
    /// takes long.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// The newest version of its rules that this code can run under, from 1; it can run under all before too. Which one is in
    /// force is ordered state ([`perdura_protocol::versions`]).
    fn newest_version(&self) -> u16 {
        1
    }

    /// The version of its rules that is in force: at the start, when it is raised (after the last command of a slot and before the
    /// first of the next), and both before the first segment and after the last is installed. So it may come again.
    fn set_version(&mut self, version: u16) {
        let _ = version;
    }

    /// How large the state may become, told at the same times. It is only raised, but for the number of segments, which is bounded
    /// from version 1 of the core's rules on. A service refuses what would make its state larger, or has no such limit.
    fn set_state_limit(&mut self, limit: StateLimit) {
        let _ = limit;
    }
}

/// An unchanging state of a service that is asked by reads.
pub trait Readable: Send + Sync {
    /// As [`Service::query`] of the service as it was. Several threads ask at once. A panic is taken for `None`; what is fatal here ends the replica.
    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>>;
}

/// A service whose memory can be made to fail: for tests of what finds it.
pub trait FailingMemory {
    /// Flips one bit of the state, which `at` chooses, as failing memory does: nothing takes note of
    /// it. False if nothing was flipped.
    fn flip_bit(&mut self, at: u64) -> bool;
}

/// An unchanging state of a service, in segments that are digested, stored and sent on their own.
///
/// At most about 400,000 segments of at most [`perdura_protocol::limits::PIECE_BYTES`] each; with sessions [`crate::PIECES`]. A
/// larger state is neither stored nor signed: all replicas stop at that boundary, with their logs whole, until
/// a program of yours gives it in other segments (and smaller ones as before: replicas compare the digests of states that they replay).
pub trait Snapshot: Send + Sync {
    /// Number of segments.
    fn segments(&self) -> usize;

    /// Encodes segment `index`, below [`Snapshot::segments`].
    fn segment(&self, index: usize) -> Bytes;

    /// Digest and length of segment `index`. A service that remembers them from one snapshot to
    /// the next for what did not change makes checkpoints as cheap as the changes. This default
    /// digests all of the state at each boundary, on a thread of its own, as replicas do in
    /// Dura-SMaRt (USENIX ATC 2013, section 3.3).
    fn entry(&self, index: usize) -> Entry {
        Entry::of(&self.segment(index))
    }
}
