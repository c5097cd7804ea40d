//! A replica whose disk stands still while the others go on (A6). Time is virtual.

mod common;

use bytes::Bytes;
use common::CLUSTER;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::{
    Batch, Command, Decode, Digest, Encode, Frame, Message, PublicKey, ReplicaId, Scheme,
    SecretKey, SessionId, Slot, Time, View,
};
use perdura_replica::node::{Boot, Input, Node, Now, Output, Peer, State};
use perdura_store::{Store, StoreCommand};

const DEPTH: u64 = 4;
const COMMAND_BYTES: usize = 100_000;
const BACKLOG_BYTES: usize = 1_000_000;
const LEADER: Peer = Peer::Replica(ReplicaId(0));

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [seed; 32])
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn client() -> PublicKey {
    key(50).public()
}

/// Follower 1 of three that may crash; its disk does nothing by itself.
struct Follower {
    node: Node<Store>,
    now_ms: u64,
    history: Digest,
    /// The last slot that the leader proposed.
    slot: Slot,
    appends: Vec<u64>,
    asked: Vec<Slot>,
    replies: usize,
}

impl Follower {
    fn new() -> Follower {
        Follower::logging(Durability::Sync)
    }

    fn logging(durability: Durability) -> Follower {
        let clients = vec![("client".into(), client())];
        let boot = common::boot(1, Scheme::KeyedHash, (1, 0), clients);
        let parameters = Parameters {
            durability,
            depth: DEPTH,
            checkpoint_interval: 1 << 20,
            checkpoint_bytes: 1 << 40,
            ..boot.parameters
        };
        let boot = Boot { parameters, backlog_bytes: BACKLOG_BYTES, ..boot };
        let mut follower = Follower {
            node: Node::boot(boot, now(10_000)).unwrap(),
            now_ms: 10_000,
            history: Digest::ZERO,
            slot: Slot(0),
            appends: Vec::new(),
            asked: Vec::new(),
            replies: 0,
        };
        follower.node.handle(now(10_000), Input::LinkUp(LEADER));
        let peer = Peer::Client { connection: 1, key: client() };
        follower.node.handle(now(10_000), Input::LinkUp(peer));
        let attach = Message::Attach { nonce: 1 };
        follower.node.handle_message(now(10_000), peer, attach.to_bytes());
        follower.end_round();
        follower.persist();
        follower
    }

    fn end_round(&mut self) {
        self.node.flush(now(self.now_ms));
        while let Some(output) = self.node.next_output() {
            match output {
                Output::Append { mark, .. } => self.appends.push(mark),
                Output::Send { bytes, .. } => match Message::from_bytes(bytes).unwrap() {
                    Message::Fetch { from } => self.asked.push(from),
                    Message::Replies { outcomes, .. } => self.replies += outcomes.len(),
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn give(&mut self, message: &Message) {
        self.node.handle_message(now(self.now_ms), LEADER, message.to_bytes());
    }

    /// The leader and the other follower decide one more slot.
    fn decide(&mut self, command: Command, number: u64) {
        let session = SessionId { client: client(), nonce: 1 };
        let frame = Frame::build(CLUSTER, session, number, number, &[command.to_bytes()], None);
        let batch = Batch::requests(Time(1_000_000 + self.now_ms), vec![frame]);
        let (view, decided, history) = (View(0), self.slot, self.history);
        self.slot = self.slot.next();
        self.history = history.chain(self.slot, batch.digest());
        self.give(&Message::Propose { view, slot: self.slot, batch, decided, history });
        self.give(&Message::Decided { view, slot: self.slot, history: self.history });
        self.end_round();
    }

    /// The disk does what waits for it.
    fn persist(&mut self) {
        for mark in std::mem::take(&mut self.appends) {
            self.node.handle(now(self.now_ms), Input::Persisted(mark));
        }
        self.end_round();
    }

    fn waiting(&self) -> usize {
        let held = self.node.report().held;
        held.backlog.0 + held.reply_bytes.0
    }
}

fn put(number: u64) -> Command {
    let value = Bytes::from(vec![7; COMMAND_BYTES]);
    let key = Bytes::from(format!("key{}", number % 4));
    Command::Service(StoreCommand::Put { key, value }.to_bytes())
}

/// Execution and logging overlap, other than in the baseline that this is measured against.
#[test]
fn with_sync_naive_nothing_is_executed_before_it_is_logged() {
    for (durability, at_once) in [(Durability::Sync, 2), (Durability::SyncNaive, 0)] {
        let mut follower = Follower::logging(durability);
        follower.decide(Command::Open, 0);
        follower.decide(put(1), 1);
        let report = follower.node.report();
        assert_eq!((report.decided, report.executed), (Slot(2), Slot(at_once)), "{durability:?}");
        assert_eq!(follower.replies, 0);
        follower.persist();
        assert_eq!(follower.node.report().executed, Slot(2));
        assert_eq!(follower.replies, 2);
    }
}

/// Decided is what reaches a pipeline's depth above what is executed, and no more; the rest is
/// fetched when the disk goes on.
#[test]
fn with_sync_naive_no_more_than_the_pipeline_waits_to_be_executed() {
    let mut follower = Follower::logging(Durability::SyncNaive);
    follower.decide(Command::Open, 0);
    for number in 1..50 {
        follower.decide(put(number), number);
    }
    let report = follower.node.report();
    assert_eq!((report.decided, report.executed), (Slot(DEPTH), Slot(0)));
    follower.persist();
    assert_eq!(follower.node.report().executed, Slot(DEPTH));
}

#[test]
fn what_waits_for_a_disk_that_stands_still_is_bounded_in_bytes() {
    let mut follower = Follower::new();
    follower.decide(Command::Open, 0);
    for number in 1..200 {
        follower.decide(put(number), number);
        let bound = BACKLOG_BYTES + 2 * (DEPTH as usize + 1) * (COMMAND_BYTES + 1_000);
        let waiting = follower.waiting();
        assert!(
            waiting <= bound,
            "{waiting} bytes wait at slot {}, and not {bound}",
            follower.slot
        );
    }
    let report = follower.node.report();
    assert_eq!(report.state, State::Recovering, "it takes no part, and says so");
    let executed = report.executed;
    assert!(executed > Slot(5) && executed < Slot(30), "{executed}");
    // The disk goes on, and so does the replica: it fetches what it missed.
    follower.persist();
    // What was decided meanwhile.
    follower.persist();
    assert_eq!(follower.waiting(), 0);
    for _ in 0..10 {
        follower.now_ms += 100;
        let delivered = follower.slot;
        follower.give(&Message::Status { view: View(0), changing: false, delivered });
        follower.end_round();
        follower.persist();
    }
    let report = follower.node.report();
    assert!(report.executed >= executed && report.state == State::Active);
    assert_eq!(follower.asked.last(), Some(&report.executed.next()));
}

#[test]
fn an_idle_group_makes_no_appends_without_end_for_a_disk_that_stands_still() {
    let mut follower = Follower::new();
    follower.decide(Command::Open, 0);
    let tick = |number| {
        Command::Service(StoreCommand::Get { key: Bytes::from(format!("{number}")) }.to_bytes())
    };
    for number in 1..5_000 {
        follower.decide(tick(number), number);
    }
    assert!(follower.appends.len() <= 1024, "{} appends under way", follower.appends.len());
    follower.persist();
    follower.persist();
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn replies_larger_than_commands_wait_within_the_bound_too() {
    let mut follower = Follower::new();
    follower.decide(Command::Open, 0);
    follower.decide(put(0), 1);
    follower.persist();
    let before = follower.replies;
    for number in 2..200 {
        let get = StoreCommand::Get { key: Bytes::from_static(b"key0") };
        follower.decide(Command::Service(get.to_bytes()), number);
        let bound = BACKLOG_BYTES + 2 * (DEPTH as usize + 1) * (COMMAND_BYTES + 1_000);
        let waiting = follower.waiting();
        assert!(
            waiting <= bound,
            "{waiting} bytes wait at slot {}, and not {bound}",
            follower.slot
        );
    }
    follower.persist();
    assert!(follower.replies > before + 5, "{} replies", follower.replies);
}
