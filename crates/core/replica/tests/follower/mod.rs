//! A follower whose leader and whose disk do what a test says. Time is virtual.

#![allow(dead_code, missing_docs)]

use crate::common::{self, CLUSTER};
use bytes::Bytes;
use perdura_execution::{ExecutionStage, Job, StateSnapshot};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{
    Batch, Command, Decode, Digest, Encode, Frame, Message, Outcome, PublicKey, ReplicaId, Scheme,
    SecretKey, SessionId, Slot, Time, View, limits,
};
use perdura_replica::node::{Boot, ExecutionMode, Input, Node, Now, Output, Peer, ReadBeside};
use perdura_store::StoreCommand;
use std::collections::VecDeque;

pub const DEPTH: u64 = 4;
pub const COMMAND_BYTES: usize = 100_000;
pub const BACKLOG_BYTES: usize = 1_000_000;
const LEADER: Peer = Peer::Replica(ReplicaId(0));

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [seed; 32])
}

pub fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn client() -> PublicKey {
    key(50).public()
}

fn frame(command: Command, number: u64) -> Frame {
    let session = SessionId { client: client(), nonce: 1_000_000 * limits::NONCES_PER_MS };
    Frame::build(CLUSTER, session, number, number, &[command.to_bytes()], None)
}

/// Follower 1 of three that may crash; its disk does nothing by itself.
pub struct Follower {
    pub node: Node,
    pub now_ms: u64,
    history: Digest,
    /// The last slot that the leader proposed.
    pub slot: Slot,
    pub appends: Vec<u64>,
    pub asked: Vec<Slot>,
    pub replies: usize,
    /// States that it wants digested, stored, and freed.
    pub digesting: Vec<StateSnapshot>,
    pub storing: Vec<StateSnapshot>,
    pub let_go: Vec<StateSnapshot>,
    /// Of each that it wanted stored, the state that is to stay on disk beside it and the one before.
    pub keeps: Vec<Slot>,
    /// Up to where the log may go.
    pub truncated: Slot,
    pub suspicions: usize,
    pub diverged: bool,
    /// What its stage is to do, where it has one, and what it has executed.
    pub jobs: VecDeque<Job>,
    /// Reads to be answered beside the stage, and answers that left: the slot and what was found.
    pub reads: Vec<ReadBeside>,
    pub found: Vec<(Slot, Option<Outcome>)>,
    stage: ExecutionStage,
}

impl Follower {
    /// No boundary is near, unless `change` says so.
    pub fn new(change: impl FnOnce(Parameters) -> Parameters) -> Follower {
        Follower::placed(ExecutionMode::Inline, change)
    }

    /// One whose stage does nothing by itself, and has its machine.
    pub fn apart() -> Follower {
        let mut follower = Follower::placed(ExecutionMode::Apart, |parameters| parameters);
        follower.work(1);
        follower
    }

    fn placed(place: ExecutionMode, change: impl FnOnce(Parameters) -> Parameters) -> Follower {
        let clients = vec![("client".into(), client())];
        let boot = common::boot(1, Scheme::KeyedHash, (1, 0), clients);
        let parameters = change(Parameters {
            depth: DEPTH,
            checkpoint_interval: 1 << 20,
            checkpoint_bytes: 1 << 40,
            checkpoint_stretch: 1,
            checkpoint_ms: None,
            ..boot.parameters
        });
        let boot = Boot { parameters, backlog_bytes: BACKLOG_BYTES, place: Some(place), ..boot };
        let mut follower = Follower {
            node: Node::boot(boot, now(10_000)).unwrap(),
            now_ms: 10_000,
            history: Digest::ZERO,
            slot: Slot(0),
            appends: Vec::new(),
            asked: Vec::new(),
            replies: 0,
            digesting: Vec::new(),
            storing: Vec::new(),
            let_go: Vec::new(),
            keeps: Vec::new(),
            truncated: Slot(0),
            suspicions: 0,
            diverged: false,
            jobs: VecDeque::new(),
            reads: Vec::new(),
            found: Vec::new(),
            stage: ExecutionStage::default(),
        };
        follower.node.handle(now(10_000), Input::LinkUp(LEADER));
        let peer = Peer::Client { connection: 1, key: client() };
        follower.node.handle(now(10_000), Input::LinkUp(peer));
        let attach = Message::Attach { nonce: 1_000_000 * limits::NONCES_PER_MS };
        follower.node.handle_message(now(10_000), peer, attach.to_bytes());
        follower.end_round();
        follower.persist();
        follower
    }

    pub fn end_round(&mut self) {
        self.node.flush(now(self.now_ms));
        while let Some(output) = self.node.next_output() {
            match output {
                Output::Append { mark, .. } => self.appends.push(mark),
                Output::Send { bytes, .. } => match Message::from_bytes(bytes).unwrap() {
                    Message::Fetch { from, .. } => self.asked.push(from),
                    Message::Replies { outcomes, .. } => self.replies += outcomes.len(),
                    Message::Suspect { .. } => self.suspicions += 1,
                    Message::ReadReply { slot, outcome, .. } => self.found.push((slot, outcome)),
                    _ => {}
                },
                Output::DigestState { snapshot } => self.digesting.push(snapshot),
                Output::StoreCheckpoint { snapshot, keep } => {
                    self.storing.push(snapshot);
                    self.keeps.push(keep);
                }
                Output::Truncate(slot) => self.truncated = slot,
                Output::LetGo(gone) => self.let_go.extend(gone.snapshots),
                Output::Diverged { .. } => self.diverged = true,
                Output::Stage(job) => self.jobs.push_back(job),
                Output::Read(read) => self.reads.push(*read),
                _ => {}
            }
        }
    }

    pub fn give(&mut self, message: &Message) {
        self.node.handle_message(now(self.now_ms), LEADER, message.to_bytes());
    }

    /// The leader and the other follower decide one more slot.
    pub fn decide(&mut self, command: Command, number: u64) {
        self.decide_batch(self.batch(command, number));
    }

    /// The same of any batch.
    pub fn decide_batch(&mut self, batch: Batch) {
        let (view, decided, history) = (View(0), self.slot, self.history);
        self.slot = self.slot.next();
        self.history = history.chain(self.slot, batch.digest());
        self.give(&Message::Propose { view, slot: self.slot, batch, decided, history });
        self.give(&Message::Decided { view, slot: self.slot, history: self.history });
        self.end_round();
    }

    /// The leader proposes one more slot, and nobody hears of its decision.
    pub fn propose(&mut self, command: Command, number: u64) {
        let batch = self.batch(command, number);
        let (view, decided, history) = (View(0), self.slot, self.history);
        let slot = self.slot.next();
        self.give(&Message::Propose { view, slot, batch, decided, history });
        self.end_round();
    }

    fn batch(&self, command: Command, number: u64) -> Batch {
        Batch::requests(Time(1_000_000 + self.now_ms), vec![frame(command, number)])
    }

    /// Time passes, in which the leader is heard of.
    pub fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.now_ms += 100;
            let delivered = self.slot;
            self.give(&Message::Status { view: View(0), changing: false, delivered });
            self.end_round();
        }
    }

    /// The disk does what waits for it.
    pub fn persist(&mut self) {
        for mark in std::mem::take(&mut self.appends) {
            self.node.handle(now(self.now_ms), Input::Persisted(mark));
        }
        self.end_round();
    }

    /// The stage does so many of its jobs.
    pub fn work(&mut self, jobs: usize) {
        for job in self.jobs.drain(..jobs).collect::<Vec<_>>() {
            if let Some(done) = self.stage.carry_out(job) {
                let input = Input::Done { done, took_us: 1_000 };
                self.node.handle(now(self.now_ms), input);
            }
        }
        self.end_round();
    }

    /// The client sends a command, once more or for the first time.
    pub fn ask(&mut self, command: Command, number: u64) {
        let peer = Peer::Client { connection: 1, key: client() };
        let frame = frame(command, number);
        self.node.handle_message(now(self.now_ms), peer, Message::Frame(frame).to_bytes());
        self.end_round();
    }

    /// The client reads a key.
    pub fn read(&mut self, id: u64, key: &'static str) {
        let peer = Peer::Client { connection: 1, key: client() };
        let get = StoreCommand::Get { key: Bytes::from_static(key.as_bytes()) };
        let command = Command::Service(get.to_bytes()).to_bytes();
        self.node.handle_message(now(self.now_ms), peer, Message::Read { id, command }.to_bytes());
        self.end_round();
    }

    /// The client reads a key in the state after a slot.
    pub fn read_at(&mut self, id: u64, slot: u64, key: &'static str) {
        let peer = Peer::Client { connection: 1, key: client() };
        let get = StoreCommand::Get { key: Bytes::from_static(key.as_bytes()) };
        let command = Command::Service(get.to_bytes()).to_bytes();
        let message = Message::ReadAt { id, slot: Slot(slot), command };
        self.node.handle_message(now(self.now_ms), peer, message.to_bytes());
        self.end_round();
    }

    /// Reads that wait beside the stage are answered.
    pub fn answer_reads(&mut self) {
        for read in std::mem::take(&mut self.reads) {
            let input = Input::Done { done: read.answer(), took_us: 0 };
            self.node.handle(now(self.now_ms), input);
        }
        self.end_round();
    }

    pub fn waiting(&self) -> usize {
        let held = self.node.report().held;
        held.backlog.0 + held.reply_bytes.0
    }
}

/// Writes one of four keys.
pub fn put(number: u64) -> Command {
    let value = Bytes::from(vec![7; COMMAND_BYTES]);
    let key = Bytes::from(format!("key{}", number % 4));
    Command::Service(StoreCommand::Put { key, value }.to_bytes())
}
