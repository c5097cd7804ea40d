//! One replica as a pure machine: agreement, execution, sessions, checkpoints and state transfer,
//! and the order of their effects (persist before send). The event loop of a real replica and the
//! simulator are thin drivers of this same type; they only move bytes, time and completions.
//!
//! What a driver owes a node:
//! 1. Each [`Output::Append`] becomes part of one write and flush of the log, in order; then comes
//!    [`Input::Persisted`]. Several may share a flush (rule D2).
//! 2. A failed write or flush is never reported as done: the driver stops the replica (D3).
//! 3. After each round of inputs it calls [`Node::flush`] and carries out all outputs.
//! 4. It calls [`Node::flush`] at least every [`perdura_agreement::timing::TICK_MS`].
//!
//! Files: `boot` from disk to node; `boots` whether that disk is the newest; `ingress` decoding and authentication, `claims` the signatures in commands; `waiting` lines, one for
//! each peer, for what waits; `shares` how much of each client's; `questions` what replicas ask for, within an allowance; `executing` delivery,
//! replies; `execution` where the machine is; `asking` what it is asked for again where it is in a stage; `egress` replies that wait for the log; `reads` what is not ordered; `attesting` what replies state to those outside of the group; `journal` what is given to the log, waits for it and is logged; `checkpoints` boundaries, digests,
//! truncation; `transfer` the state of a replica that was away, `fetching` of whom it asks the pieces; `peer_health` who is there and
//! what of that makes a replica ready, `roll_calls` clients that ask for that, `differences` states that replicas signed and that differ, `flushes` how long the disk takes, `fullness` how near the state is to its limit, `space` how full the disk is; `report` what an operator sees.

mod asking;
mod attesting;
mod beside;
mod boot;
mod boots;
mod certificates;
mod checkpoints;
mod claims;
mod differences;
mod egress;
mod executing;
mod execution;
mod fetching;
mod flushes;
mod fullness;
mod ingress;
mod interceptor;
mod journal;
mod peer_health;
mod questions;
mod reads;
mod report;
mod restoring;
mod roll_calls;
mod serving;
mod shares;
mod space;
mod stages;
mod transfer;
mod waiting;

pub use asking::ASKED_AGAIN;
pub use beside::KEPT_STATES;
pub use boot::{Boot, BootError, Found, RecoverError, Recovered, Replayed, Unusable, recover};
pub use checkpoints::{RECENT_BYTES, piece_names};
pub use differences::Difference;
pub use egress::{CLIENT_REPLY_BYTES, ROUTES, WAITING_REPLIES};
pub use execution::ExecutionMode;
pub use fetching::StateTransfer;
pub use ingress::{NotAdmitted, UNVERIFIED};
pub use interceptor::{Interceptor, Said};
pub use journal::{BACKLOG_BYTES, NOTE_BYTES, NOTES};
pub use peer_health::{MemberReport, PeerHealthReport, offset_text, seconds};
pub use perdura_agreement::{Misbehaviour, Now};
pub use questions::QUESTIONS;
pub use reads::{READS_APART, READS_BESIDE, ReadBeside, WAITING_READS};
pub use report::{Counters, MemoryHeld, Report, StageMarks, State};
pub use restoring::Restoration;
pub use stages::{Spent, Stage, Stages};
pub use waiting::Capacity;

use asking::Asking;
use boots::Boots;
use bytes::Bytes;
use checkpoints::Checkpointing;
use differences::Differences;
use egress::Egress;
use execution::{Delivery, Execution};
use fullness::Fullness;
use ingress::Ingress;
use journal::Journal;
use peer_health::PeerHealth;
use perdura_agreement::{Agreement, Effect, Suspicion};
use perdura_execution::{AnyService, Done, Inspector, Job, Manifest, ReadState, StateSnapshot};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::message::{Decision, Lane, Message};
use perdura_protocol::{
    Configuration, Digest, Encode, PublicKey, Record, ReplicaId, Scheme, SecretKey, Slot, View,
};
use questions::Asker;
use reads::Reads;
use roll_calls::RollCalls;
use serving::Past;
use space::Space;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::Transfer;

/// Bytes of messages that may wait among the outputs; beyond it the driver carries them out before
/// it takes in more, so that answers which are larger than their questions stay bounded by the
/// links' own queues (A6).
const OUTPUT_BYTES: usize = 8 * 1024 * 1024;

/// Who is at the other end of a link, as its handshake proved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Peer {
    /// A replica of the group, current incarnation.
    Replica(ReplicaId),
    /// A client, or the administrator.
    Client {
        /// Number of the connection.
        connection: u64,
        /// The proven key.
        key: PublicKey,
    },
}

/// What goes in.
#[derive(Debug)]
pub enum Input {
    /// Bytes of one message.
    Message {
        /// From whom.
        peer: Peer,
        /// The message.
        bytes: Bytes,
    },
    /// Messages may flow.
    LinkUp(Peer),
    /// Whatever was in flight is lost.
    LinkDown(Peer),
    /// What was in flight to and from this replica on the lane of transfers is lost. It may have been
    /// the only lane that broke; while it is down the driver sends everything on the other one.
    TransferLinkDown(ReplicaId),
    /// Everything appended up to and including this mark is durable.
    Persisted(u64),
    /// The checkpoint of this state is durable, and the superblock names it.
    CheckpointStored {
        /// The state's manifest.
        manifest: Manifest,
    },
    /// Answer to [`Output::DigestState`].
    StateDigested {
        /// The state's manifest.
        manifest: Manifest,
        /// Its digest: that of a large state takes too long for the event loop.
        digest: Digest,
    },
    /// What [`Output::Stage`] asked for, in the order in which it was done.
    Done {
        /// What it came to.
        done: Done,
        /// How long it took, microseconds.
        took_us: u64,
    },
    /// What [`Output::RestoreState`] asked for is done.
    StateRestored,
    /// What is in memory is not what was digested.
    StateDamaged {
        /// What, in words.
        what: String,
    },
    /// Answer to [`Output::ReadDecisions`].
    DecisionsRead {
        /// Who asked.
        to: ReplicaId,
        /// What was found, from the first wanted slot on.
        decisions: Vec<Decision>,
    },
}

/// States that are needed no more.
#[derive(Debug, Default)]
pub struct Gone {
    /// Of slots behind which checkpoints are due.
    pub snapshots: Vec<StateSnapshot>,
    /// Those that were read beside a stage.
    pub read: Vec<ReadState>,
}

/// What comes out.
#[derive(Debug)]
pub enum Output {
    /// Send to each of the peers; may be lost.
    Send {
        /// To whom.
        peers: Vec<Peer>,
        /// On which lane, where the peer has two: those of each come in their order, and there is none
        /// between the two. Any will do.
        lane: Lane,
        /// The message.
        bytes: Bytes,
    },
    /// Append to the log.
    Append {
        /// In this order.
        records: Vec<Record>,
        /// To be reported when they are durable.
        mark: u64,
    },
    /// For the stage, in this order, where the node does not execute itself ([`ExecutionMode::Apart`]).
    Stage(Job),
    /// To be answered beside the stage, on any thread; several at once.
    Read(Box<ReadBeside>),
    /// This is in memory from now on, and is to be read again now and then.
    Scrub {
        /// The state.
        snapshot: StateSnapshot,
    },
    /// Digest this state; off the event loop. One at a time.
    DigestState {
        /// The state.
        snapshot: StateSnapshot,
    },
    /// Store a checkpoint of this state; off the event loop.
    StoreCheckpoint {
        /// The state.
        snapshot: StateSnapshot,
        /// Of the states on disk the one after this slot stays: the log proves it to others.
        keep: Slot,
    },
    /// Run this; off the event loop. One at a time.
    RestoreState(Restoration),
    /// Store a state that was transferred and verified; off the event loop.
    InstallCheckpoint {
        /// Its manifest.
        manifest: Manifest,
        /// Its pieces.
        pieces: Vec<Bytes>,
        /// Of the states on disk the one after this slot stays: the log proves it to others.
        keep: Slot,
    },
    /// States that are needed no more, to be freed; off the event loop.
    LetGo(Gone),
    /// Log files may go in which nothing is above this slot.
    Truncate(Slot),
    /// Read decided batches from the log.
    ReadDecisions {
        /// Who asked.
        to: ReplicaId,
        /// Slot and batch, ascending.
        wanted: Vec<(Slot, Digest)>,
    },
    /// Links are to these members from now on.
    Members(Configuration),
    /// A peer did what no correct one does; close the link to a client, log it for a replica.
    Misbehaved {
        /// Who.
        peer: Peer,
        /// What, in words.
        what: String,
    },
    /// This replica would have another leader than this view's.
    Suspects {
        /// The view.
        view: View,
        /// Why.
        why: Suspicion,
    },
    /// This replica's state is not the certified one; nothing comes out any more. Start again from
    /// what is on disk, without the states after this slot.
    Diverged {
        /// The newest state on disk that is certified; 0 if there is none.
        trusted: Slot,
        /// What differs, in words.
        what: String,
    },
    /// What an operator should know, in words.
    Notice(String),
    /// What an operator must see to, in words.
    Alarm(String),
    /// Stop the process: going on would not be safe. In words what to do.
    Halt(String),
    /// Stop for good: the data directory is an older state of one that others heard of. Nothing is ever said from it again.
    TakenBack(String),
}

/// A replica.
pub struct Node {
    me: ReplicaId,
    key: SecretKey,
    scheme: Scheme,
    parameters: Parameters,
    entropy: [u8; 32],
    entropy_used: u64,
    agreement: Agreement,
    execution: Execution,
    // Retries that the stage is to answer.
    asking: Asking,
    // What commands and replies say by themselves, without the machine, which may be busy.
    inspector: Inspector,
    make_service: Box<dyn Fn() -> AnyService + Send>,

    outputs: VecDeque<Output>,
    // Of messages among the outputs.
    output_bytes: usize,
    // Costly questions of each replica, and what it may still have as answers.
    askers: Vec<Asker>,
    // Replicas for which the log is being read.
    reading: BTreeSet<ReplicaId>,
    journal: Journal,

    ingress: Ingress,
    egress: Egress,
    reads: Reads,

    checkpointing: Checkpointing,
    peer_health: PeerHealth,
    roll_calls: RollCalls,
    boots: Boots,
    differences: Differences,
    fullness: Fullness,
    space: Space,
    transfer: Transfer,
    past: BTreeMap<Slot, Past>,
    ticked_ms: u64,
    // When votes for states were last repeated to all.
    voted_ms: u64,
    // When the prefix was last signed for who asked for a state.
    attested_ms: u64,
    halted: bool,
    counters: Counters,
    // Messages that did not decode.
    malformed: u64,
    stages: Stages,
    // The newest members by the configuration file, which may be newer than what was executed.
    newest: Configuration,
}

impl Node {
    /// Whom this replica links to where `configuration` is what it knows: who was away while others
    /// were replaced has to find those who are there now.
    fn linked(&self, configuration: &Configuration) -> Configuration {
        let newer = self.newest.id > configuration.id;
        if newer { self.newest.clone() } else { configuration.clone() }
    }

    /// What its time goes to, if that is measured; a driver adds what it does itself.
    pub fn stages(&mut self) -> &mut Stages {
        &mut self.stages
    }

    /// What its stages took so far; none if that is not measured.
    #[must_use]
    pub fn stages_spent(&self) -> Option<Vec<(Stage, Spent)>> {
        self.stages.spent()
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Now, input: Input) {
        if self.halted {
            return;
        }
        match input {
            Input::Message { peer, bytes } => self.on_bytes(now, peer, bytes),
            Input::LinkUp(peer) => self.on_link_up(now, peer),
            Input::LinkDown(peer) => self.on_link_down(now, peer),
            Input::TransferLinkDown(id) => self.on_transfer_link_down(now, id),
            Input::Persisted(mark) => self.on_persisted(now, mark),
            Input::CheckpointStored { manifest } => self.on_checkpoint_stored(now, manifest),
            Input::StateDigested { manifest, digest } => self.on_state_digested(manifest, digest),
            Input::Done { done, took_us } => self.on_done(now, done, took_us),
            Input::StateRestored => self.on_restored(now),
            Input::StateDamaged { what } => self.diverge(what),
            Input::DecisionsRead { to, decisions } => self.on_decisions_read(to, decisions),
        }
        // What came in may have ended a stall.
        self.mind_execution(now);
        self.carry_out(now);
        self.mind_backlog(now);
    }

    /// Ends a round of inputs: verifies what came from clients, proposes what has queued up, lets
    /// out what may leave. Also lets time pass.
    pub fn flush(&mut self, now: Now) {
        if self.halted {
            return;
        }
        self.admit_frames(now);
        if now.monotonic_ms >= self.ticked_ms + perdura_agreement::timing::TICK_MS {
            self.ticked_ms = now.monotonic_ms;
            self.agreement.on_tick(now);
            self.tick_questions(now);
            self.tick_transfer(now);
            self.tick_ingress(now);
            self.tick_company(now);
            self.tick_roll_calls(now);
            self.tick_boots(now);
            self.checkpointing.evict_older(now.monotonic_ms);
            self.execution.tick(now.monotonic_ms);
        }
        self.carry_out(now);
        self.hand_over(now);
        self.agreement.flush(now);
        self.carry_out(now);
        self.answer_reads(now);
        self.release_replies();
        self.mind_backlog(now);
        self.append(now);
        let snapshots = std::mem::take(&mut self.checkpointing.let_go);
        let read = self.execution.take_let_go();
        if !snapshots.is_empty() || !read.is_empty() {
            self.outputs.push_back(Output::LetGo(Gone { snapshots, read }));
        }
    }

    /// The next thing to do, oldest first.
    pub fn next_output(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        if let Some(Output::Send { bytes, .. }) = &output {
            self.output_bytes -= bytes.len();
        }
        output
    }

    /// Whether so much is to be sent that outputs come before further inputs.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.output_bytes >= OUTPUT_BYTES
    }

    /// To be called once in a round of the event loop, before the first [`Node::flush`]: what came early of the
    /// log, and was left for another round, goes on.
    pub fn begin_round(&mut self, now: Now) {
        if !self.halted {
            self.agreement.begin_round(now);
            self.carry_out(now);
        }
    }

    /// Whether another [`Node::flush`] has something to do at once. What arrived meanwhile should
    /// be given to the node before.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.ingress.has_frames() || self.has_reads() || self.agreement.has_early()
    }

    /// In how many milliseconds [`Node::flush`] has something to propose, if nothing arrives before: a driver
    /// that waits should wait no longer. Later does no harm but delay.
    #[must_use]
    pub fn gathers_ms(&self, now: Now) -> Option<u64> {
        self.agreement.gathers_ms(now)
    }

    /// Does what agreement wants, until it wants nothing.
    fn carry_out(&mut self, now: Now) {
        while let Some(effect) = self.agreement.next_effect() {
            match effect {
                Effect::Send { to, message } => self.answer(to, message),
                Effect::Broadcast(message) => self.broadcast(&message),
                Effect::Persist(record) => self.journal.force(record),
                Effect::Note(record) => self.journal.note(now.monotonic_ms, record),
                Effect::Deliver { slot, batch, history, logged_at } => {
                    self.deliver(now, Delivery { slot, batch, history, logged_at });
                    self.mind_execution(now);
                }
                Effect::Proven { slot, view, accepts } => {
                    self.checkpointing.prove_recent(slot, view, accepts);
                }
                Effect::Certified(prefix) => self.on_certified(prefix),
                Effect::ViewStarted(view) => self.on_view_started(view),
                Effect::Suspects { view, why } => {
                    self.outputs.push_back(Output::Suspects { view, why });
                }
                Effect::Serve { to, from, last } => self.serve(to, from, last),
                Effect::FetchState { checkpoint } => self.want_state(now, checkpoint),
                Effect::Misbehaved { replica, what } => {
                    self.misbehaved(Peer::Replica(replica), format!("{what:?}"));
                }
            }
        }
    }

    fn send(&mut self, peers: &[Peer], message: &Message) {
        self.push_message(peers.to_vec(), message);
    }

    fn broadcast(&mut self, message: &Message) {
        let n = self.parameters.faults.n() as u8;
        let me = self.me;
        let peers = (0..n).map(ReplicaId).filter(|id| *id != me).map(Peer::Replica).collect();
        self.push_message(peers, message);
    }

    fn push_message(&mut self, peers: Vec<Peer>, message: &Message) {
        let bytes = message.to_bytes();
        self.output_bytes += bytes.len();
        let lane = Lane::of(&bytes);
        self.outputs.push_back(Output::Send { peers, lane, bytes });
    }

    fn misbehaved(&mut self, peer: Peer, what: String) {
        self.counters.misbehaviours += 1;
        if let Peer::Replica(id) = peer {
            self.agreement.on_exposed(id);
        }
        self.outputs.push_back(Output::Misbehaved { peer, what });
    }

    fn halt(&mut self, reason: String) {
        self.halted = true;
        self.outputs.push_back(Output::Halt(reason));
    }

    fn entropy(&mut self) -> [u8; 32] {
        self.entropy_used += 1;
        let mut input = self.entropy.to_vec();
        input.extend_from_slice(&self.entropy_used.to_le_bytes());
        Digest::of(&input).0
    }
}
