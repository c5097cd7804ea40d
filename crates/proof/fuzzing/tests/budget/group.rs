//! Replicas and clients on one thread, with the links between them, disks, and a clock of their own. In each turn
//! whoever got something takes it in, and sends. Only what replicas, clients and links do is counted, and nothing
//! of what carries it.

use crate::Setting;
use bytes::Bytes;
use perdura_client::{
    CallId, CallOptions, CallResult, ClientConfig, ClientCore, Mode, Output as ToDo,
};
use perdura_execution::{Genesis, any_service};
use perdura_fuzzing::memory::allocations_of;
use perdura_protocol::configuration::{Configuration, Member, Parameters, Schedule};
use perdura_protocol::{
    ClusterId, Command, Decode, Encode, Faults, Message, ReplicaId, Scheme, SecretKey, Signature,
    Slot, Time, limits,
};
use perdura_replica::node::{BACKLOG_BYTES, Boot, Found, Input, Node, Now, Output, Peer};
use perdura_store::{Store, StoreCommand};
use perdura_transport::bounds::READ_BYTES;
use perdura_transport::{Bounds, Hello, Identity, Link, Received, Role};
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId([5; 16]);

/// Client sessions; the callers are shared out among them.
pub const CLIENTS: u8 = 4;

/// Keys that are written, in turn: each of them is there before anything is counted.
const KEYS: u64 = 1000;

/// Turns in a millisecond of the group's clock: a slot takes less than one where nothing waits, as it does between
/// real processes on one machine.
pub const TURNS_MS: u64 = 8;

fn key(of: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [of; 32])
}

fn replica_key(id: u8) -> SecretKey {
    key(10 + id)
}

fn client_key(number: u8) -> SecretKey {
    key(50 + number)
}

fn of_client(number: u8) -> Peer {
    Peer::Client { connection: u64::from(number), key: client_key(number).public() }
}

fn node(me: u8, faults: Faults) -> Node {
    let parameters = Parameters {
        depth: 32,
        checkpoint_interval: 1 << 20,
        checkpoint_bytes: 1 << 40,
        max_skew_ms: 10_000,
        schedule: Schedule::Sequential,
        ..Parameters::small(CLUSTER, faults, key(99).public())
    };
    let members = (0..faults.n() as u8)
        .map(|id| Member { key: replica_key(id).public(), incarnation: 0 })
        .collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    let client = |number| (format!("client {number}"), client_key(number).public());
    let clients = (0..CLIENTS).map(client).collect();
    let boot = Boot {
        me: ReplicaId(me),
        key: replica_key(me),
        scheme: Scheme::Ed25519,
        parameters,
        latest: configuration.clone(),
        genesis: Genesis { configuration, clients },
        entropy: [me; 32],
        make_service: Box::new(any_service(|| Store::new(1 << 30))),
        found: Found::default(),
        backlog_bytes: BACKLOG_BYTES,
        place: None,
        state_transfer: Default::default(),
    };
    Node::boot(boot, at(0)).unwrap()
}

fn at(ms: u64) -> Now {
    Now { monotonic_ms: 1_000 + ms, wall: Time(1_000_000 + ms) }
}

/// The dialler's and the acceptor's end of a link that is up.
fn link(dialler: &SecretKey, acceptor: &SecretKey, bounds: (Bounds, Bounds)) -> (Link, Link) {
    let identity = |key| Identity::new(key).unwrap();
    let hello = Hello::client(CLUSTER, Role::Client);
    let dial = Link::dial(&identity(dialler), acceptor.public(), &hello, bounds.0);
    let (mut one, mut other) = (dial.unwrap(), Link::accept(&identity(acceptor)).unwrap());
    let carry = |from: &mut Link, to: &mut Link| {
        let mut wire = Vec::new();
        from.write_to(&mut wire).unwrap();
        to.feed(&wire).unwrap();
    };
    while !(one.is_up() && other.is_up()) {
        carry(&mut one, &mut other);
        if let Some(Received::Hello(..)) = other.next_received().unwrap() {
            other.welcome(bounds.1, None, false).unwrap();
        }
        carry(&mut other, &mut one);
        one.next_received().unwrap();
    }
    (one, other)
}

/// Allocations, and the bytes that they asked for.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub allocations: u64,
    pub bytes: u64,
}

impl Cost {
    fn of<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let ((allocations, bytes), result) = allocations_of(body);
        self.allocations += allocations;
        self.bytes += bytes;
        result
    }
}

/// What was counted.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Writes that were acknowledged, slots that they took, and turns.
    pub writes: u64,
    pub slots: u64,
    pub turns: u64,
    /// Of replicas and clients, and of the links between them.
    pub core: Cost,
    pub links: Cost,
    pub messages: u64,
    pub wire_bytes: u64,
    /// Signatures verified by replicas, and made by replicas and clients and sent.
    pub verified: u64,
    pub signed: u64,
    pub appends: u64,
    pub records: u64,
    pub flushes: u64,
}

/// A disk flushes one thing at a time, and all that came meanwhile in one after that (rule D2). Both are marks.
#[derive(Default)]
struct Disk {
    waiting: Option<u64>,
    /// And in which turn that is done.
    flushing: Option<(u64, u64)>,
}

/// Bytes on their way.
struct Flight {
    from: usize,
    to: usize,
    wire: Vec<u8>,
}

/// Replicas, then clients, and what is on its way between them.
pub struct Group {
    nodes: Vec<Node>,
    disks: Vec<Disk>,
    flush_turns: u64,
    clients: Vec<ClientCore>,
    /// Whether clients and replicas do.
    signs: bool,
    /// By whose end it is, and who is at the other one.
    links: Vec<Vec<Option<Link>>>,
    /// By when they arrive, in the order in which they left.
    flights: BTreeMap<(u64, u64), Flight>,
    departed: u64,
    /// By party: whether something arrived in this turn.
    heard: Vec<bool>,
    turns: u64,
    callers: u64,
    value: Bytes,
    /// By client.
    asked: Vec<u64>,
    done: Vec<u64>,
    counts: Counts,
}

impl Group {
    pub fn new(setting: &Setting) -> Group {
        let faults = Faults::new(setting.faults.0, setting.faults.1).unwrap();
        let n = faults.n() as u8;
        let client = |number: u8| {
            let config = ClientConfig::new(CLUSTER, faults, client_key(number));
            let nonce = at(0).wall.0 * limits::NONCES_PER_MS + u64::from(number);
            ClientCore::new(config, nonce, [number; 16], at(0).monotonic_ms)
        };
        let parties = usize::from(n + CLIENTS);
        let mut group = Group {
            nodes: (0..n).map(|id| node(id, faults)).collect(),
            disks: (0..n).map(|_| Disk::default()).collect(),
            flush_turns: setting.flush_turns,
            clients: (0..CLIENTS).map(client).collect(),
            signs: faults.is_byzantine(),
            links: (0..parties).map(|_| (0..parties).map(|_| None).collect()).collect(),
            flights: BTreeMap::new(),
            departed: 0,
            heard: vec![false; parties],
            turns: 0,
            callers: setting.callers / u64::from(CLIENTS),
            value: Bytes::from(vec![7; setting.value_bytes]),
            asked: vec![0; usize::from(CLIENTS)],
            done: vec![0; usize::from(CLIENTS)],
            counts: Counts::default(),
        };
        for id in 0..n {
            for other in id + 1..n {
                let bounds = (Bounds::REPLICA, Bounds::REPLICA);
                let ends = link(&replica_key(other), &replica_key(id), bounds);
                group.link_up(other.into(), id.into(), ends);
            }
            for number in 0..CLIENTS {
                let bounds = (Bounds::CLIENT, Bounds::CLIENT_AT_REPLICA);
                let ends = link(&client_key(number), &replica_key(id), bounds);
                group.link_up((n + number).into(), id.into(), ends);
            }
        }
        group
    }

    fn link_up(&mut self, dialler: usize, acceptor: usize, (one, other): (Link, Link)) {
        self.links[dialler][acceptor] = Some(one);
        self.links[acceptor][dialler] = Some(other);
        for (party, peer) in [(dialler, acceptor), (acceptor, dialler)] {
            let of = self.peer(peer);
            match self.client_of(party) {
                None => self.nodes[party].handle(at(0), Input::LinkUp(of)),
                Some(number) => {
                    self.clients[number].on_link(at(0).monotonic_ms, ReplicaId(peer as u8), true);
                }
            }
        }
    }

    fn client_of(&self, party: usize) -> Option<usize> {
        party.checked_sub(self.nodes.len())
    }

    fn peer(&self, party: usize) -> Peer {
        match self.client_of(party) {
            None => Peer::Replica(ReplicaId(party as u8)),
            Some(number) => of_client(number as u8),
        }
    }

    fn party(&self, peer: Peer) -> usize {
        match peer {
            Peer::Replica(id) => id.index(),
            Peer::Client { connection, .. } => self.nodes.len() + connection as usize,
        }
    }

    /// In turns. Replicas are one from each other; the first client is as near, each further one two farther
    /// away, so that replies come to them, and commands from them, at different times.
    fn distance(&self, from: usize, to: usize) -> u64 {
        1 + self.client_of(from.max(to)).map_or(0, |number| 2 * number as u64)
    }

    fn now(&self) -> Now {
        at(self.turns / TURNS_MS)
    }

    fn turn(&mut self) {
        self.arrive();
        // As in a real process: after each round of input, and as time passes.
        let passed = self.turns.is_multiple_of(TURNS_MS);
        for party in 0..self.heard.len() {
            if !std::mem::take(&mut self.heard[party]) && !passed {
                continue;
            }
            match self.client_of(party) {
                None => self.replica_sends(party),
                Some(number) => self.client_sends(number),
            }
        }
        self.depart();
        self.turns += 1;
    }

    /// What arrives now, from links and disks.
    fn arrive(&mut self) {
        let now = self.now();
        while let Some(flight) =
            self.flights.first_entry().filter(|next| next.key().0 <= self.turns)
        {
            let Flight { from, to, wire } = flight.remove();
            for read in wire.chunks(READ_BYTES) {
                let Some(link) = &mut self.links[to][from] else { panic!("{from} {to}") };
                self.counts.links.of(|| link.feed(read).unwrap());
                loop {
                    let Some(link) = &mut self.links[to][from] else { panic!("{from} {to}") };
                    let received = self.counts.links.of(|| link.next_received().unwrap());
                    let Some(Received::Message(bytes)) = received else { break };
                    self.take(now, from, to, bytes);
                }
            }
        }
        let replicas = self.nodes.iter_mut().zip(&mut self.heard);
        for (disk, (node, heard)) in self.disks.iter_mut().zip(replicas) {
            if let Some((mark, _)) = disk.flushing.take_if(|(_, done)| *done <= self.turns) {
                self.counts.core.of(|| node.handle(now, Input::Persisted(mark)));
                *heard = true;
            }
            if disk.flushing.is_none()
                && let Some(mark) = disk.waiting.take()
            {
                disk.flushing = Some((mark, self.turns + self.flush_turns));
                self.counts.flushes += 1;
            }
        }
    }

    fn take(&mut self, now: Now, from: usize, to: usize, bytes: Bytes) {
        self.heard[to] = true;
        let peer = self.peer(from);
        match self.client_of(to) {
            None => {
                let node = &mut self.nodes[to];
                self.counts.core.of(|| node.handle(now, Input::Message { peer, bytes }));
            }
            Some(number) => {
                let client = &mut self.clients[number];
                self.counts.core.of(|| {
                    let message = Message::from_bytes(bytes).unwrap();
                    client.on_message(now.monotonic_ms, ReplicaId(from as u8), message);
                });
            }
        }
    }

    fn client_sends(&mut self, number: usize) {
        let now_ms = self.now().monotonic_ms;
        while self.asked[number] < self.done[number] + self.callers {
            self.ask(number);
        }
        let client = &mut self.clients[number];
        self.counts.core.of(|| {
            client.on_tick(now_ms);
            client.flush(now_ms);
        });
        loop {
            let client = &mut self.clients[number];
            match self.counts.core.of(|| client.next_output()) {
                Some(ToDo::Send { to, message }) => {
                    let bytes = self.counts.core.of(|| message.to_bytes());
                    self.send(self.nodes.len() + number, to.index(), bytes);
                }
                Some(ToDo::Done { result, .. }) => {
                    assert!(matches!(result, CallResult::Completed(_)), "{result:?}");
                    self.done[number] += 1;
                }
                Some(ToDo::Roll { .. }) => unreachable!("nobody asked who is there"),
                Some(ToDo::Session { .. }) => unreachable!("nobody asked which session is open"),
                None => return,
            }
        }
    }

    fn ask(&mut self, number: usize) {
        let of_all = self.asked.iter().sum::<u64>();
        let key = format!("key {:012}", of_all % KEYS).into_bytes();
        let command = StoreCommand::Put { key: key.into(), value: self.value.clone() };
        let command = Command::Service(command.to_bytes()).to_bytes();
        let now_ms = self.now().monotonic_ms;
        let options =
            CallOptions { deadline_ms: now_ms + 60_000, mode: Mode::Ordered, reply_quorum: None };
        let (client, id) = (&mut self.clients[number], CallId(self.asked[number]));
        self.counts.core.of(|| client.call(now_ms, id, command, options));
        self.asked[number] += 1;
    }

    fn replica_sends(&mut self, id: usize) {
        let now = self.now();
        let node = &mut self.nodes[id];
        self.counts.core.of(|| {
            node.begin_round(now);
            node.flush(now);
        });
        loop {
            let node = &mut self.nodes[id];
            let Some(output) = self.counts.core.of(|| node.next_output()) else { return };
            match output {
                Output::Send { peers, bytes, .. } => {
                    self.counts.signed += signatures(bytes.clone());
                    for peer in peers {
                        self.send(id, self.party(peer), bytes.clone());
                    }
                }
                Output::Append { records, mark } => {
                    self.counts.appends += 1;
                    self.counts.records += records.len() as u64;
                    self.disks[id].waiting = Some(mark);
                }
                Output::Misbehaved { what, .. } => panic!("{what}"),
                Output::Alarm(why) => panic!("{why}"),
                Output::Notice(_) => {}
                Output::Suspects { why, .. } => panic!("{why}"),
                Output::Halt(why) => panic!("{why}"),
                _ => {}
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: Bytes) {
        let Some(link) = &mut self.links[from][to] else { panic!("{from} {to}") };
        self.counts.messages += 1;
        self.counts.links.of(|| link.queue(bytes).unwrap());
    }

    /// What waits on links leaves.
    fn depart(&mut self) {
        for from in 0..self.links.len() {
            for to in 0..self.links.len() {
                let due = self.turns + self.distance(from, to);
                let Some(link) = &mut self.links[from][to] else { continue };
                if !link.wants_write() {
                    continue;
                }
                // Nothing that the link writes makes it grow.
                let mut wire = Vec::with_capacity(2 * link.queued_bytes() + 1024);
                self.counts.links.of(|| link.write_to(&mut wire).unwrap());
                self.counts.wire_bytes += wire.len() as u64;
                self.departed += 1;
                self.flights.insert((due, self.departed), Flight { from, to, wire });
            }
        }
    }

    /// A closed loop until so many writes are done.
    pub fn run(&mut self, writes: u64) {
        let end = self.done() + writes;
        let last = self.turns + 1000 * writes;
        while self.done() < end {
            self.turn();
            assert!(self.turns < last, "the group stands still");
        }
    }

    fn done(&self) -> u64 {
        self.done.iter().sum()
    }

    /// Since the beginning.
    pub fn counts(&self) -> Counts {
        let verified = |node: &Node| {
            let counters = node.report().counters;
            counters.statements_verified + counters.signatures_verified
        };
        // A client signs each frame if replicas sign, and sends it again as it is.
        let frames = self.clients.iter().map(|client| client.stats().frames).sum::<u64>();
        Counts {
            writes: self.done(),
            slots: self.nodes[0].delivered().0,
            turns: self.turns,
            verified: self.nodes.iter().map(verified).sum(),
            signed: self.counts.signed + if self.signs { frames } else { 0 },
            ..self.counts
        }
    }
}

/// How many signatures of its sender's a message of a replica's carries.
fn signatures(bytes: Bytes) -> u64 {
    let signature = match Message::from_bytes(bytes).unwrap() {
        Message::Write { signature, .. }
        | Message::Accept { signature, .. }
        | Message::Prefix { signature, .. }
        | Message::Checkpoint { signature, .. } => signature,
        Message::ViewChange(change) => change.signature,
        Message::NewView(view) => view.signature,
        _ => Signature::NONE,
    };
    u64::from(signature != Signature::NONE)
}
