//! What a developer implements: a deterministic [`Service`] and the [`Snapshot`] of its state.
//!
//! Invariants that the machine relies on:
//! - `execute` is a function of the state, the context and the command, and of nothing else;
//! - a refusal (`Err`) leaves the state as it was;
//! - which commands wait is part of the state, and so of snapshots;
//! - two services that executed the same commands, or restored the same segments, give snapshots
//!   with equal segments, byte for byte.

use crate::cost::Meter;
use crate::footprint::Footprint;
use crate::manifest::Entry;
use crate::measure::Measure;
use crate::restore::RestoreError;
use bytes::Bytes;
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
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
    /// How the session stands that the command asks about ([`Service::asks_about`]).
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

/// What became of a command, in a service whose commands may wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// As [`Service::execute`] says.
    Done(Result<Bytes, String>),
    /// It waits, which may have changed the state: its reply will be a [`Release`].
    Waits,
}

/// The reply to a command that had waited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Whose command it is.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    /// As [`Service::execute`] would have given it.
    pub result: Result<Bytes, String>,
    /// Whether it hands something over, which is the client's when that confirms it ([`Service::confirm`]), and else the next one's
    /// ([`Service::take_back`]).
    pub offer: bool,
}

/// A deterministic service, replicated by running the same commands in the same order everywhere.
///
/// `examples/counter.rs` is a whole one.
///
/// A panic in one of its functions ends the replica, and all others that run the same command, and does so again at every start until
/// the program is another one: it is for states that must not be, and never for input. In those that only read (`query`,
/// `footprint`, `anticipate`, `attested`, `claims`) it ends nothing.
pub trait Service: Any + Send {
    /// What `command` reads and writes, known before it runs. It may err only towards conflict
    /// (rule E1), and should not panic on any bytes: it conflicts with everything then. The default conflicts with everything.
    fn footprint(&self, command: &[u8]) -> Footprint {
        let _ = command;
        Footprint::everything()
    }

    /// These commands are the next to run, in this order, if nothing is in their way. A service whose state is far
    /// larger than the processor's caches may look at what they will touch, so that memory answers many of them at
    /// once and not one after the other. It changes nothing, and should not panic on any bytes.
    fn anticipate(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        let _ = commands;
    }

    /// Carries out `command`, any bytes a client sent, and gives its reply. The reply should own
    /// its memory: a slice of the command would keep the whole batch alive. Replies above
    /// [`perdura_protocol::limits::FRAME_BYTES`] are not delivered (the client learns "too old").
    ///
    /// # Errors
    /// The command is refused, in words for the client (at most 4096 bytes of it are sent), and
    /// has changed nothing.
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String>;

    /// The same in a service whose commands may wait for others: what `execute` would give, or that
    /// the command waits. Replies to commands that had waited until now go to `released`, in the
    /// order in which they are to be sent; those to commands that do not wait, or no longer, are
    /// dropped.
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Progress {
        let _ = released;
        Progress::Done(self.execute(context, command))
    }

    /// The clock ([`ExecutionContext::clock`]) shows this from now on: called at the start of every batch (rule E3), for what
    /// waits until then.
    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        let _ = (clock, released);
    }

    /// The time on the clock for which the first command waits, so that a batch comes then, though
    /// nobody sends any. `on_time` at that time, or later, changes what this gives.
    fn due(&self) -> Option<Time> {
        None
    }

    /// Nobody waits for the reply to a command any more: its client went on without it, or its
    /// session ended. The command must leave no trace. No footprint tells of it.
    fn forget(&mut self, session: SessionId, number: u64) {
        let _ = (session, number);
    }

    /// The client has what the reply to this command, which had waited, offered it: it is the client's from now on, and a lease of it starts.
    /// Each offer ends once, by this or by [`Service::take_back`].
    fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        let _ = (clock, session, number, released);
    }

    /// The client of this command did not confirm what it was offered, in time ([`perdura_protocol::limits::OFFER_MS`]) or before its
    /// session ended, and is told so: it is the next one's, as if it had never been offered. No footprint tells of it.
    fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        let _ = (clock, session, number, released);
    }

    /// The session is over for good: closed, expired, evicted, or its key was revoked. Told after what waited in it is forgotten, and what it
    /// was offered taken back. No footprint tells of it.
    fn session_ended(&mut self, session: SessionId) {
        let _ = session;
    }

    /// Another session of which the command has to know whether it may still send anything, a function of the command alone:
    /// [`ExecutionContext::other`] tells. No footprint need tell of it, for what opens or ends sessions conflicts with everything.
    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        let _ = command;
        None
    }

    /// Whether a command may be refused for now, since its client has used up its share of the slot, or keeps too many bytes of replies: it
    /// is ordered again then. What ends something that is in others' way had better not be. A function of the state and the command, asked only
    /// where that is so.
    fn may_be_put_off(&self, command: &[u8]) -> bool {
        let _ = command;
        true
    }

    /// What this reply states to those outside of the group, at most [`perdura_protocol::limits::LEAF_BYTES`] (else nothing), a function of the
    /// reply alone: it goes to the client with the replica's signature ([`perdura_protocol::attestation`]), so that it
    /// can be shown to others. Asked of replies to ordered commands only, and not of offers, which may be taken back. A panic is taken for nothing.
    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        let _ = reply;
        None
    }

    /// The signatures in a command that have to be genuine for it to be ordered, at most [`perdura_protocol::limits::COMMAND_CLAIMS`]
    /// (and [`perdura_protocol::limits::FRAME_CLAIMS`] in a frame); `None` when it is malformed and must not be ordered. Replicas
    /// ask for them before anything is agreed on, each where it is just then: a function of the command and of what never changes in the
    /// life of the cluster, or correct replicas take each other for liars. A panic is taken for `None`.
    fn claims(&self, command: &[u8]) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let _ = command;
        Some(Vec::new())
    }

    /// Answers a read outside the order of commands, as [`Service::execute`] would at this point;
    /// `None` when `command` is not a read. A panic is taken for `None`. The default orders everything.
    fn query(&self, command: &[u8]) -> Option<Result<Bytes, String>> {
        let _ = command;
        None
    }

    /// The same for the client with this key, in a service that asks who reads, or that can read far more than it answers: `meter` is told of
    /// that.
    fn query_by(
        &self,
        client: PublicKey,
        command: &[u8],
        meter: &Meter,
    ) -> Option<Result<Bytes, String>> {
        let _ = (client, meter);
        self.query(command)
    }

    /// The state as it is now. Execution waits for it, so it should take microseconds at any size:
    /// share, and copy on write.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Replaces the state by one whose snapshot gave these segments, in order. The digests have
    /// been verified; the shape has not. Afterwards a snapshot gives the same segments again.
    ///
    /// # Errors
    /// When no snapshot of this service gives these segments. The service is not used any more.
    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError>;

    /// About how large the state is, bytes: what a snapshot of it takes on disk, more or less. Replicas agree
    /// by it on when the next checkpoint is due, which is rarer for a large state, and count that anew from their
    /// checkpoints when they start. So it follows from the state alone, is the same after a restore, and never changes in the life
    /// of a cluster whose `checkpoint_stretch` is not 1, not even with all replicas stopped. Constant time. A service that does
    /// not say is taken for small.
    fn state_bytes(&self) -> u64 {
        0
    }

    /// What those who watch the replica get to see of it besides. Some microseconds, several times a second.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// The newest version of its rules that this code can run under, from 1; it can run under all before too. Which one is in
    /// force is ordered state ([`perdura_protocol::versions`]).
    fn newest_version(&self) -> u16 {
        1
    }

    /// The version of its rules that is in force: at the start, when it is raised (after the last command of a slot and before the
    /// first of the next), and both before and after a restore. So it may come again.
    fn set_version(&mut self, version: u16) {
        let _ = version;
    }

    /// How large the state may become, told at the same times. It is only raised, but for the number of segments, which is bounded
    /// from version 1 of the core's rules on. A service refuses what would make its state larger, or has no such limit.
    fn set_state_limit(&mut self, limit: StateLimit) {
        let _ = limit;
    }
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
