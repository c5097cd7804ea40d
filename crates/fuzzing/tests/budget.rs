//! What a write costs a group, counted and not timed: allocations, messages, bytes, signatures, appends to the
//! log. All replicas and the client run on this thread, with a clock of their own, so that the counts are
//! the same on every machine. A count above its budget is a regression to be explained, or mended;
//! one far below is a budget to be lowered.

use bytes::Bytes;
use perdura_client::{
    CallId, CallOptions, CallResult, ClientConfig, ClientCore, Mode, Output as ToDo,
};
use perdura_execution::Genesis;
use perdura_fuzzing::memory::{Counting, allocations_of};
use perdura_protocol::configuration::{Configuration, Durability, Member, Parameters, Schedule};
use perdura_protocol::{
    ClusterId, Command, Decode, Encode, Faults, Message, Record, ReplicaId, Scheme, SecretKey,
    Slot, Time,
};
use perdura_replica::node::{BACKLOG_BYTES, Boot, Found, Input, Node, Now, Output, Peer};
use perdura_store::{Store, StoreCommand};
use std::collections::VecDeque;
use std::fmt::Write;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CLUSTER: ClusterId = ClusterId([5; 16]);

/// Callers, each with one write in flight.
const CALLERS: u64 = 64;

/// Writes before anything is counted, and counted ones.
const WARM_UP: u64 = CALLERS * 50;
const COUNTED: u64 = CALLERS * 200;

/// Keys that are written, in turn: each of them is there before anything is counted.
const KEYS: u64 = 1000;

/// How far a count may be above its budget: a new compiler or library allocates a little differently.
const ABOVE: f64 = 1.02;

/// Below this part of it a budget says nothing any more.
const BELOW: f64 = 0.9;

fn key(of: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [of; 32])
}

fn node(me: u8, faults: Faults) -> Node<Store> {
    let parameters = Parameters {
        cluster: CLUSTER,
        faults,
        durability: Durability::Sync,
        depth: 32,
        checkpoint_interval: 1 << 20,
        checkpoint_bytes: 1 << 40,
        schedule: Schedule::Sequential,
        max_skew_ms: 10_000,
        state_limit_bytes: 1 << 30,
        service: Default::default(),
        administrator: key(99).public(),
    };
    let members = (0..faults.n() as u8)
        .map(|id| Member { key: key(10 + id).public(), incarnation: 0 })
        .collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    let clients = vec![("bench".to_owned(), key(1).public())];
    let boot = Boot {
        me: ReplicaId(me),
        key: key(10 + me),
        scheme: Scheme::Ed25519,
        parameters,
        latest: configuration.clone(),
        genesis: Genesis { configuration, clients },
        entropy: [me; 32],
        make_service: Box::new(|| Store::new(1 << 30)),
        found: Found::default(),
        backlog_bytes: BACKLOG_BYTES,
        state_transfer: Default::default(),
    };
    Node::boot(boot, at(0)).unwrap()
}

fn at(ms: u64) -> Now {
    Now { monotonic_ms: 1_000 + ms, wall: Time(1_000_000 + ms) }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    messages: u64,
    message_bytes: u64,
    appends: u64,
    records: u64,
}

/// Replicas and a client, and what is on its way between them.
struct Group {
    nodes: Vec<Node<Store>>,
    inboxes: Vec<VecDeque<Input>>,
    client: ClientCore,
    replies: VecDeque<(ReplicaId, Bytes)>,
    ms: u64,
    value: Bytes,
    asked: u64,
    done: u64,
    counts: Counts,
}

impl Group {
    fn new(u: u8, r: u8, value_bytes: usize) -> Group {
        let faults = Faults::new(u, r).unwrap();
        let n = faults.n();
        let mut client =
            ClientCore::new(ClientConfig::new(CLUSTER, faults, key(1)), 7, at(0).monotonic_ms);
        let of_client = Peer::Client { connection: 1, key: key(1).public() };
        let mut inboxes: Vec<VecDeque<Input>> = (0..n).map(|_| VecDeque::new()).collect();
        for (id, inbox) in inboxes.iter_mut().enumerate() {
            let others = (0..n).filter(|other| *other != id).map(|other| ReplicaId(other as u8));
            inbox.extend(others.map(|other| Input::LinkUp(Peer::Replica(other))));
            inbox.push_back(Input::LinkUp(of_client));
            client.on_link(at(0).monotonic_ms, ReplicaId(id as u8), true);
        }
        Group {
            nodes: (0..n as u8).map(|id| node(id, faults)).collect(),
            inboxes,
            client,
            replies: VecDeque::new(),
            ms: 0,
            value: Bytes::from(vec![7; value_bytes]),
            asked: 0,
            done: 0,
            counts: Counts::default(),
        }
    }

    fn ask(&mut self) {
        let key = format!("key {:012}", self.asked % KEYS).into_bytes();
        let command = StoreCommand::Put { key: key.into(), value: self.value.clone() };
        let now_ms = at(self.ms).monotonic_ms;
        let options =
            CallOptions { deadline_ms: now_ms + 60_000, mode: Mode::Ordered, reply_quorum: None };
        let command = Command::Service(command.to_bytes()).to_bytes();
        self.client.call(now_ms, CallId(self.asked), command, options);
        self.asked += 1;
    }

    /// A millisecond: everybody takes what has come, and sends.
    fn turn(&mut self) {
        let now = at(self.ms);
        for (from, bytes) in std::mem::take(&mut self.replies) {
            let message = Message::from_bytes(bytes).unwrap();
            self.client.on_message(now.monotonic_ms, from, message);
        }
        self.client.on_tick(now.monotonic_ms);
        self.client.flush(now.monotonic_ms);
        while let Some(output) = self.client.next_output() {
            match output {
                ToDo::Send { to, message } => {
                    let peer = Peer::Client { connection: 1, key: key_of_client() };
                    let bytes = self.count(message.to_bytes());
                    self.inboxes[to.index()].push_back(Input::Message { peer, bytes });
                }
                ToDo::Done { result, .. } => {
                    assert!(matches!(result, CallResult::Completed(_)), "{result:?}");
                    self.done += 1;
                }
            }
        }
        for id in 0..self.nodes.len() {
            for input in std::mem::take(&mut self.inboxes[id]) {
                self.nodes[id].handle(now, input);
            }
            self.nodes[id].begin_round(now);
            self.nodes[id].flush(now);
            while let Some(output) = self.nodes[id].next_output() {
                self.carry_out(id, output);
            }
        }
        self.ms += 1;
    }

    fn count(&mut self, bytes: Bytes) -> Bytes {
        self.counts.messages += 1;
        self.counts.message_bytes += bytes.len() as u64;
        bytes
    }

    fn carry_out(&mut self, id: usize, output: Output) {
        let from = ReplicaId(id as u8);
        match output {
            Output::Send { peers, bytes, .. } => {
                for peer in peers {
                    let bytes = self.count(bytes.clone());
                    match peer {
                        Peer::Replica(to) => {
                            let peer = Peer::Replica(from);
                            self.inboxes[to.index()].push_back(Input::Message { peer, bytes });
                        }
                        Peer::Client { .. } => self.replies.push_back((from, bytes)),
                    }
                }
            }
            Output::Append { records, mark } => {
                self.counts.appends += 1;
                self.counts.records += records.len() as u64;
                drop::<Vec<Record>>(records);
                self.inboxes[id].push_back(Input::Persisted(mark));
            }
            Output::Misbehaved { what, .. } => panic!("{what}"),
            Output::Suspects { why, .. } => panic!("{why}"),
            Output::Halt(why) => panic!("{why}"),
            _ => {}
        }
    }

    /// Closed loop until so many writes are done.
    fn run(&mut self, writes: u64) {
        let end = self.done + writes;
        let mut turns = 0;
        while self.done < end {
            while self.asked < self.done + CALLERS {
                self.ask();
            }
            self.turn();
            turns += 1;
            assert!(turns < 100 * writes, "the group stands still");
        }
    }

    fn slots(&self) -> u64 {
        self.nodes[0].delivered().0
    }

    fn verified(&self) -> u64 {
        let of = |node: &Node<Store>| {
            let counters = node.report().counters;
            counters.statements_verified + counters.signatures_verified
        };
        self.nodes.iter().map(of).sum()
    }
}

fn key_of_client() -> perdura_protocol::PublicKey {
    thread_local!(static KEY: perdura_protocol::PublicKey = key(1).public());
    KEY.with(|key| *key)
}

/// What a write costs all replicas and the client; allocations without those of the
/// sockets and disks, which are not here.
struct Budget {
    name: &'static str,
    faults: (u8, u8),
    value_bytes: usize,
    /// For each write.
    allocations: f64,
    allocated_bytes: f64,
    message_bytes: f64,
    /// For each slot.
    messages: f64,
    verified: f64,
    appends: f64,
    records: f64,
    /// Writes in a slot, at least.
    writes: f64,
}

const BUDGETS: [Budget; 3] = [
    Budget {
        name: "crash 1, 512 B",
        faults: (1, 0),
        value_bytes: 512,
        allocations: 15.1,
        allocated_bytes: 7635.0,
        message_bytes: 1670.0,
        messages: 10.3,
        verified: 0.045,
        appends: 3.0,
        records: 6.0,
        writes: 64.0,
    },
    Budget {
        name: "byzantine 1, 512 B",
        faults: (1, 1),
        value_bytes: 512,
        allocations: 19.4,
        allocated_bytes: 10009.0,
        message_bytes: 2263.0,
        messages: 32.7,
        verified: 20.1,
        appends: 4.0,
        records: 12.1,
        writes: 64.0,
    },
    Budget {
        name: "byzantine 1, 4 KiB",
        faults: (1, 1),
        value_bytes: 4096,
        allocations: 18.9,
        allocated_bytes: 31236.0,
        message_bytes: 16607.0,
        messages: 33.7,
        verified: 24.1,
        appends: 4.0,
        records: 12.1,
        writes: 64.0,
    },
];

/// Appends a line on a count that is not within its budget.
fn hold(out: &mut String, budget: &Budget, what: &str, is: f64, allowed: f64) {
    let said = if is > allowed * ABOVE {
        "above its budget: explain it or mend it"
    } else if is < allowed * BELOW {
        "far below its budget: lower that"
    } else {
        return;
    };
    let name = budget.name;
    writeln!(out, "{name}: {what} is {is:.2}, budgeted {allowed:.2}; {said}").unwrap();
}

#[test]
fn a_write_costs_no_more_than_its_budget() {
    let mut out = String::new();
    for budget in &BUDGETS {
        let mut group = Group::new(budget.faults.0, budget.faults.1, budget.value_bytes);
        group.run(WARM_UP);
        let (slots, verified, done) = (group.slots(), group.verified(), group.done);
        group.counts = Counts::default();
        let ((allocations, bytes), ()) = allocations_of(|| group.run(COUNTED));
        let writes = (group.done - done) as f64;
        let slots = (group.slots() - slots) as f64;
        let counts = group.counts;
        for (what, is, allowed) in [
            ("allocations for a write", allocations as f64 / writes, budget.allocations),
            ("bytes allocated for a write", bytes as f64 / writes, budget.allocated_bytes),
            (
                "bytes of messages for a write",
                counts.message_bytes as f64 / writes,
                budget.message_bytes,
            ),
            ("messages for a slot", counts.messages as f64 / slots, budget.messages),
            (
                "signatures verified for a slot",
                (group.verified() - verified) as f64 / slots,
                budget.verified,
            ),
            ("appends for a slot", counts.appends as f64 / slots, budget.appends),
            ("records for a slot", counts.records as f64 / slots, budget.records),
            ("slots for a hundred writes", 100.0 * slots / writes, 100.0 / budget.writes),
        ] {
            hold(&mut out, budget, what, is, allowed);
        }
    }
    assert!(out.is_empty(), "\n{out}");
}
