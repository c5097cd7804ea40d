//! Attack: a prefix is passed over at all correct replicas, and slots below it can be shown by nobody.
//! Replicas 1, 2 and 3 are real nodes; replica 0 lies and leads view 0.

mod common;

use common::CLUSTER;
use perdura_protocol::message::Decision;
use perdura_protocol::statement::Kind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Context, Decode, Digest, Encode, Message, Record, ReplicaId, Scheme,
    SecretKey, Signature, Slot, Time, View,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer};
use perdura_store::Store;
use std::collections::VecDeque;

const LIAR: u8 = 0;
const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Up,
    Held,
    Down,
}

struct World {
    ms: u64,
    nodes: Vec<Option<Node<Store>>>,
    logs: Vec<Vec<Record>>,
    links: [[Link; 4]; 4],
    held: Vec<(u8, u8, Message)>,
    queue: VecDeque<(u8, u8, Message)>,
    heard: Vec<(u8, Message)>,
    batches: Vec<Batch>,
    truncated: bool,
    checkpoints: u64,
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn signed(id: u8, kind: Kind, slot: Slot, digest: Digest) -> Signature {
    let context = Context { cluster: CLUSTER, configuration: 0 };
    let key = SecretKey::from_seed(Scheme::KeyedHash, [10 + id; 32]);
    key.sign(&context.statement(kind, View(0), slot, digest))
}

impl World {
    fn new() -> World {
        let ms = 10_000;
        let mut world = World {
            ms,
            nodes: Vec::new(),
            logs: vec![Vec::new(); 4],
            links: [[Link::Up; 4]; 4],
            held: Vec::new(),
            queue: VecDeque::new(),
            heard: Vec::new(),
            batches: Vec::new(),
            truncated: false,
            checkpoints: 0,
        };
        world.nodes.push(None);
        for id in 1..4u8 {
            let boot = common::boot(id, Scheme::KeyedHash, (1, 1), Vec::new());
            world.nodes.push(Some(Node::boot(boot, now(ms)).unwrap()));
        }
        world.links[usize::from(C)] = [Link::Down; 4];
        (0..4).for_each(|from| world.links[from][usize::from(C)] = Link::Down);
        for id in [A, B] {
            for other in (0..4).filter(|other| *other != id && *other != C) {
                world.input(id, Input::LinkUp(Peer::Replica(ReplicaId(other))));
            }
        }
        world.pump();
        world
    }

    fn input(&mut self, id: u8, input: Input) {
        let ms = self.ms;
        if let Some(node) = self.nodes[usize::from(id)].as_mut() {
            node.begin_round(now(ms));
            node.handle(now(ms), input);
        }
    }

    fn send(&mut self, from: u8, to: u8, message: Message) {
        match self.links[usize::from(from)][usize::from(to)] {
            Link::Up if to == LIAR => self.heard.push((from, message)),
            Link::Up => self.queue.push_back((from, to, message)),
            Link::Held => self.held.push((from, to, message)),
            Link::Down => {}
        }
    }

    fn lies(&mut self, to: u8, message: Message) {
        self.send(LIAR, to, message);
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            let mut any = false;
            for id in 1..4u8 {
                any |= self.drain(id);
            }
            while let Some((from, to, message)) = self.queue.pop_front() {
                any = true;
                let peer = Peer::Replica(ReplicaId(from));
                self.input(to, Input::Message { peer, bytes: message.to_bytes() });
                self.drain(to);
            }
            if !any {
                return;
            }
        }
    }

    fn drain(&mut self, id: u8) -> bool {
        let ms = self.ms;
        let mut any = false;
        loop {
            let Some(node) = self.nodes[usize::from(id)].as_mut() else { return any };
            node.flush(now(ms));
            let outputs: Vec<Output> = std::iter::from_fn(|| node.next_output()).collect();
            if outputs.is_empty() {
                return any;
            }
            any = true;
            for output in outputs {
                match output {
                    Output::Send { peers, bytes, .. } => {
                        let message = Message::from_bytes(bytes).unwrap();
                        for peer in peers {
                            if let Peer::Replica(to) = peer {
                                self.send(id, to.0, message.clone());
                            }
                        }
                    }
                    Output::Append { records, mark } => {
                        self.logs[usize::from(id)].extend(records);
                        self.input(id, Input::Persisted(mark));
                    }
                    Output::StoreCheckpoint { snapshot, .. } => {
                        self.checkpoints += 1;
                        self.input(id, Input::CheckpointStored { manifest: snapshot.manifest() });
                    }
                    Output::ReadDecisions { to, wanted } => {
                        let decisions = self.read(id, &wanted);
                        self.input(id, Input::DecisionsRead { to, decisions });
                    }
                    Output::Truncate(_) => self.truncated = true,
                    Output::Halt(what) => panic!("{id} halts: {what}"),
                    Output::Misbehaved { peer, what } => {
                        eprintln!("[{ms}] r{id} blames {peer:?}: {what}");
                    }
                    Output::Suspects { view, why } => {
                        eprintln!("[{ms}] r{id} would leave {view:?}: {why}");
                    }
                    _ => {}
                }
            }
        }
    }

    fn read(&self, id: u8, wanted: &[(Slot, Digest)]) -> Vec<Decision> {
        let log = &self.logs[usize::from(id)];
        let mut found = Vec::new();
        for (slot, digest) in wanted {
            let batch = log.iter().find_map(|record| {
                record.batch().filter(|(at, batch)| at == slot && batch.digest() == *digest)
            });
            let Some((_, batch)) = batch else { break };
            let proof = log.iter().rev().find_map(|record| match record {
                Record::Accepts { slot: at, view, accepts, .. }
                | Record::Decision { slot: at, view, accepts, .. }
                    if at == slot =>
                {
                    Some((*view, accepts.clone()))
                }
                _ => None,
            });
            let (view, accepts) = proof.unwrap_or((View(0), Certificate::default()));
            found.push(Decision { slot: *slot, view, accepts, batch: batch.clone() });
        }
        found
    }

    /// Time passes; the liar says where it is as long as it is there.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.ms += 20;
            if self.ms % 100 < 20 {
                let delivered = Slot(0);
                for to in [A, B] {
                    let message = Message::Status { view: View(0), changing: false, delivered };
                    self.send(LIAR, to, message);
                }
            }
            for id in 1..4u8 {
                if let Some(node) = self.nodes[usize::from(id)].as_mut() {
                    node.begin_round(now(self.ms));
                }
            }
            self.pump();
        }
    }

    fn set(&mut self, one: u8, other: u8, link: Link) {
        self.links[usize::from(one)][usize::from(other)] = link;
        self.links[usize::from(other)][usize::from(one)] = link;
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.set(A, B, Link::Up);
        for (from, to, message) in held {
            self.send(from, to, message);
            self.pump();
        }
    }

    fn propose(&mut self, slot: Slot) {
        let batch = Batch::tick(Time(1_000_000 + self.ms));
        let digest = batch.digest();
        self.batches.push(batch.clone());
        for to in [A, B] {
            let (view, decided, history) = (View(0), Slot(0), Digest::ZERO);
            let batch = batch.clone();
            self.send(LIAR, to, Message::Propose { view, slot, batch, decided, history });
            let signature = signed(LIAR, Kind::Write, slot, digest);
            self.send(LIAR, to, Message::Write { view, slot, digest, signature });
        }
        self.pump();
    }

    fn accept(&mut self, to: u8, slot: Slot, genuine: bool) {
        let digest = self.batches[slot.0 as usize - 1].digest();
        let real = signed(LIAR, Kind::Accept, slot, digest);
        let signature = if genuine { real } else { Signature([7; 64]) };
        self.lies(to, Message::Accept { view: View(0), slot, digest, signature });
    }

    fn history(&self, slot: Slot) -> Digest {
        let batches = self.batches.iter().take(slot.0 as usize);
        (1..).map(Slot).zip(batches).fold(Digest::ZERO, |h, (s, b)| h.chain(s, b.digest()))
    }

    /// A correct replica signs its prefix for whoever asks for a state.
    fn certificate_of(&mut self, of: u8, slot: Slot) -> PrefixCertificate {
        self.lies(of, Message::StateQuery);
        let history = self.history(slot);
        let theirs = self.heard.iter().find_map(|(from, message)| match message {
            Message::Prefix { slot: at, history: of_it, signature }
                if *from == of && *at == slot && *of_it == history =>
            {
                Some(*signature)
            }
            _ => None,
        });
        let theirs = theirs.expect("it signed that");
        let own = signed(LIAR, Kind::Prefix, slot, history);
        let certificate = Certificate::new(vec![(ReplicaId(LIAR), own), (ReplicaId(of), theirs)]);
        PrefixCertificate { slot, history, configuration: 0, certificate }
    }

    fn decisions(&self, first: u64, last: u64) -> Vec<Decision> {
        let one = |slot: u64| Decision {
            slot: Slot(slot),
            view: View(0),
            accepts: Certificate::default(),
            batch: self.batches[slot as usize - 1].clone(),
        };
        (first..=last).map(one).collect()
    }

    fn show(&self, when: &str) {
        eprintln!("--- {when} at {} ms", self.ms);
        for id in 1..4u8 {
            let Some(node) = &self.nodes[usize::from(id)] else { continue };
            let report = node.report();
            eprintln!(
                "r{id} view {:?} executed {} prefix {} lacks {}",
                report.view, report.executed, report.prefix, report.counters.prefixes_asked_for
            );
        }
    }

    fn executed(&self, id: u8) -> Slot {
        self.nodes[usize::from(id)].as_ref().unwrap().report().executed
    }

    fn prefix(&self, id: u8) -> Slot {
        self.nodes[usize::from(id)].as_ref().unwrap().report().prefix
    }

    /// What was said first on the links that are held, up to a vote about this slot, arrives.
    fn release_through(&mut self, slot: Slot) {
        let held = std::mem::take(&mut self.held);
        for (one, other) in [(A, B), (B, A)] {
            let of_link: Vec<&(u8, u8, Message)> =
                held.iter().filter(|(from, to, _)| (*from, *to) == (one, other)).collect();
            let vote = |(_, _, message): &&&(u8, u8, Message)| matches!(message, Message::Write { slot: at, .. } if *at == slot);
            let last = of_link.iter().position(|held| vote(&held)).expect("it voted");
            for (from, to, message) in &of_link[..=last] {
                assert!(!matches!(message, Message::Prefix { .. }));
                self.queue.push_back((*from, *to, message.clone()));
            }
        }
        self.pump();
    }

    /// All three from what is on their disks.
    fn restart_all(&mut self) {
        self.restart(&[A, B, C]);
    }

    fn restart(&mut self, who: &[u8]) {
        self.queue.clear();
        self.held.clear();
        for id in who.iter().copied() {
            let records = self.logs[usize::from(id)].clone();
            let boot = common::boot(id, Scheme::KeyedHash, (1, 1), Vec::new());
            let boot = Boot { found: Found { records, ..Found::default() }, ..boot };
            self.nodes[usize::from(id)] = Some(Node::boot(boot, now(self.ms)).unwrap());
        }
        for id in who.iter().copied() {
            for other in who.iter().copied().filter(|other| *other != id) {
                self.input(id, Input::LinkUp(Peer::Replica(ReplicaId(other))));
            }
        }
        self.pump();
    }
}

fn course(attack: bool) -> World {
    let mut world = World::new();
    for slot in 1..=2 {
        world.propose(Slot(slot));
        [A, B].into_iter().for_each(|to| world.accept(to, Slot(slot), slot == 2));
    }
    assert_eq!((world.executed(A), world.executed(B)), (Slot(2), Slot(2)));
    // All votes of A and B for the whole pipeline are exchanged; only the liar's are missing.
    (3..=34).for_each(|slot| world.propose(Slot(slot)));
    assert_eq!((world.executed(A), world.executed(B)), (Slot(2), Slot(2)));
    world.show("votes are exchanged");
    if !attack {
        for slot in 3..=34 {
            [A, B].into_iter().for_each(|to| world.accept(to, Slot(slot), true));
        }
    } else {
        // From here on what A and B send each other is late, by some 200 ms.
        world.set(A, B, Link::Held);
        (3..=33).for_each(|slot| world.accept(B, Slot(slot), true));
        assert_eq!(world.executed(B), Slot(33));
        let prefix = world.certificate_of(B, Slot(33));
        let decisions = world.decisions(3, 33);
        let (prefix, between) = (Some(prefix), Vec::new());
        world.lies(A, Message::Decisions { decisions, prefix, between });
        assert_eq!((world.executed(A), world.prefix(A)), (Slot(33), Slot(33)));
        world.wait(140);
        world.accept(A, Slot(34), true);
        assert_eq!(world.executed(A), Slot(34));
        let prefix = world.certificate_of(A, Slot(34));
        let decisions = world.decisions(34, 34);
        let (prefix, between) = (Some(prefix), Vec::new());
        world.lies(B, Message::Decisions { decisions, prefix, between });
        assert_eq!((world.executed(B), world.prefix(B)), (Slot(34), Slot(34)));
        world.release();
    }
    world.show("the liar falls silent");
    // The liar is gone for good; everybody else is well connected from now on.
    for id in [A, B] {
        world.set(LIAR, id, Link::Down);
        world.input(id, Input::LinkDown(Peer::Replica(ReplicaId(LIAR))));
        world.set(C, id, Link::Up);
    }
    for (one, other) in [(A, C), (B, C), (C, A), (C, B)] {
        world.input(one, Input::LinkUp(Peer::Replica(ReplicaId(other))));
    }
    world.pump();
    world.wait(60_000);
    world.show("a minute later");
    world
}

#[test]
fn without_the_pushed_prefixes_the_laggard_catches_up() {
    let world = course(false);
    assert_eq!(world.executed(C), Slot(34));
}

#[test]
fn a_prefix_that_all_passed_over_leaves_the_laggard_behind_for_ever() {
    let mut world = course(true);
    world.wait(600_000);
    world.show("ten minutes later");
    world.restart_all();
    world.wait(600_000);
    world.show("ten minutes after a restart of all");
    assert!(!world.truncated && world.checkpoints == 0);
    assert_eq!(world.executed(C), Slot(34), "it is stuck, and so is the group");
}

/// Nobody lies here. Replica 0 crashes for good, 1 and 2 crash and come back, 3 was cut off meanwhile.
fn crash(alone_ms: u64) -> World {
    let mut world = World::new();
    for slot in 1..=2 {
        world.propose(Slot(slot));
        [A, B].into_iter().for_each(|to| world.accept(to, Slot(slot), true));
    }
    (3..=34).for_each(|slot| world.propose(Slot(slot)));
    world.set(A, B, Link::Held);
    [A, B].into_iter().for_each(|to| world.accept(to, Slot(3), true));
    world.propose(Slot(35));
    for slot in 4..=34 {
        [A, B].into_iter().for_each(|to| world.accept(to, Slot(slot), true));
    }
    assert_eq!((world.executed(A), world.executed(B)), (Slot(34), Slot(34)));
    // Both lock slot 35, and flush; what they said later is still on its way.
    world.release_through(Slot(35));
    for id in [A, B] {
        let prefix = |record: &Record| matches!(record, Record::Prefix(_));
        assert!(!world.logs[usize::from(id)].iter().any(prefix));
    }
    world.show("the power fails");
    world.set(LIAR, A, Link::Down);
    world.set(LIAR, B, Link::Down);
    world.set(A, B, Link::Up);
    world.ms += 1_000;
    world.restart(&[A, B]);
    world.show("power is back");
    world.wait(alone_ms);
    world.show("replica 3 is reached again");
    for id in [A, B] {
        world.set(C, id, Link::Up);
    }
    for (one, other) in [(A, C), (B, C), (C, A), (C, B)] {
        world.input(one, Input::LinkUp(Peer::Replica(ReplicaId(other))));
    }
    world.pump();
    world.wait(600_000);
    world.show("ten minutes later");
    world
}

#[test]
fn after_a_short_outage_all_is_well() {
    let world = crash(std::env::var("ALONE").map_or(500, |ms| ms.parse().unwrap()));
    assert_eq!(world.executed(C), Slot(35));
}

#[test]
fn after_two_seconds_without_a_quorum_the_group_stops_for_ever() {
    let mut world = crash(2_000);
    world.restart_all();
    world.wait(600_000);
    world.show("ten minutes after a restart of all");
    assert_eq!(world.executed(C), Slot(35), "it is stuck, and so is the group");
}
