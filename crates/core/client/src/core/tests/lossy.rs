//! Seeded runs against a model of the replicas: messages are lost, doubled, delayed and reordered,
//! links break, one replica lies when r > 0. Whatever happens, a reply is the one of the only
//! execution, a refused call never executes, and every call ends by its deadline. In half of the runs replies state what is in them, and are
//! never without the attestations of r + 1 replicas.

use super::attesting::replica_key;
use super::*;
use perdura_protocol::Decode;
use perdura_protocol::attestation::{Attestation, Attested, attest};
use std::collections::{BTreeMap, BTreeSet};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

#[derive(Default, Clone)]
struct SessionModel {
    acked_below: u64,
    replies: BTreeMap<u64, Outcome>,
}

/// One replica's state, a function of the prefix of the log that it has executed.
#[derive(Default, Clone)]
struct Replica {
    executed: usize,
    sessions: BTreeMap<u64, SessionModel>,
    attached: BTreeSet<u64>,
    /// How often each command was carried out, by its content.
    counts: BTreeMap<Bytes, u64>,
    evicted: u64,
}

impl Replica {
    fn execute(&mut self, frame: &Frame) -> Vec<(u64, Outcome)> {
        self.executed += 1;
        let nonce = frame.session.nonce;
        if frame.first_number == 0 {
            self.sessions.entry(nonce).or_default();
            return vec![(0, Outcome::Opened)];
        }
        // A session is evicted now and then, by the log alone.
        if self.executed.is_multiple_of(97) && self.sessions.remove(&nonce).is_some() {
            self.evicted += 1;
        }
        let Some(session) = self.sessions.get_mut(&nonce) else {
            return (frame.first_number..frame.end_number())
                .map(|number| (number, Outcome::NoSession))
                .collect();
        };
        session.acked_below = session.acked_below.max(frame.acked_below);
        let mut outcomes = Vec::new();
        for (command, number) in frame.commands().zip(frame.first_number..) {
            let outcome = if number < session.acked_below {
                Outcome::TooOld
            } else if let Ok(Command::Withdraw { number: of }) =
                Command::from_bytes(command.clone())
            {
                if of >= session.acked_below {
                    let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
                    session.replies.entry(of).or_insert(withdrawn);
                }
                Outcome::Opened
            } else {
                let counts = &mut self.counts;
                session
                    .replies
                    .entry(number)
                    .or_insert_with(|| {
                        *counts.entry(command.clone()).or_default() += 1;
                        Outcome::Service(command.slice(1..))
                    })
                    .clone()
            };
            outcomes.push((number, outcome));
        }
        outcomes
    }
}

struct World {
    random: Random,
    script: Script,
    log: Vec<Frame>,
    replicas: Vec<Replica>,
    up: Vec<bool>,
    /// Messages under way: to the client with `Some(from)`, to a replica else.
    wire: Vec<(u64, Result<u8, u8>, Message)>,
    liar: Option<u8>,
    attesting: bool,
}

/// Replies to commands have eight bytes, and state them.
fn leaf_of(reply: &[u8]) -> Option<Bytes> {
    (reply.len() == 8).then(|| Bytes::copy_from_slice(reply))
}

impl World {
    fn new(seed: u64, (u, r): (u8, u8), attesting: bool) -> World {
        let mut config = config(u, r);
        let n = config.faults.n();
        if attesting {
            config.replica_keys = (0..n as u8).map(|id| replica_key(id).public()).collect();
            (config.leaf_of, config.scheme) = (leaf_of, Scheme::KeyedHash);
        }
        let script = Script::new(config);
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            script,
            log: Vec::new(),
            replicas: vec![Replica::default(); n],
            up: vec![false; n],
            wire: Vec::new(),
            liar: (r > 0).then_some((seed % n as u64) as u8),
            attesting,
        }
    }

    fn post(&mut self, end: Result<u8, u8>, message: &Message) {
        for _ in 0..1 + u64::from(self.random.one_in(20)) {
            if !self.random.one_in(10) {
                let at = self.script.now_ms + 1 + self.random.below(40);
                self.wire.push((at, end, message.clone()));
            }
        }
    }

    /// What a replica attests of its replies, if they state anything.
    fn attest(&mut self, replica: u8, nonce: u64, outcomes: &[(u64, Outcome)]) -> Option<Message> {
        let mut leaves: Vec<(u64, Bytes)> = Vec::new();
        for (number, outcome) in outcomes.iter().filter(|_| self.attesting) {
            let leaf = outcome.attesting().and_then(|reply| leaf_of(reply));
            leaves.extend(leaf.map(|leaf| (*number, leaf)));
        }
        let mut said: Vec<&[u8]> = leaves.iter().map(|(_, leaf)| &leaf[..]).collect();
        if Some(replica) == self.liar && self.random.one_in(2) {
            said.iter_mut().for_each(|leaf| *leaf = b"a lie");
        }
        let signer = (ReplicaId(replica), &replica_key(replica));
        let all = (!said.is_empty()).then(|| attest((CLUSTER, 0), &said, signer))?;
        let Attestation { configuration, count, signature, .. } = all[0];
        let numbers = leaves.iter().map(|(number, _)| *number);
        let leaves = numbers.zip(all).map(|(number, one)| (number, one.index, one.path)).collect();
        Some(Message::Attested(Box::new(Attested {
            nonce,
            configuration,
            count,
            signature,
            leaves,
        })))
    }

    fn reply(&mut self, replica: u8, nonce: u64, mut outcomes: Vec<(u64, Outcome)>) {
        let attested = self.attest(replica, nonce, &outcomes);
        if Some(replica) == self.liar {
            let lies = [Outcome::TooOld, Outcome::NoSession, super::reply("lie")];
            for (_, outcome) in &mut outcomes {
                *outcome = lies[self.random.below(3) as usize].clone();
            }
        }
        let view = View(if Some(replica) == self.liar { 99 } else { 0 });
        let message = Message::Replies { view, nonce, outcomes };
        if self.replicas[usize::from(replica)].attached.contains(&nonce) {
            self.post(Ok(replica), &message);
            attested.into_iter().for_each(|attested| self.post(Ok(replica), &attested));
        }
    }

    /// A replica orders what it gets, and the others follow when they do.
    fn arrive_at(&mut self, replica: u8, message: Message) {
        match message {
            Message::Attach { nonce } => {
                self.replicas[usize::from(replica)].attached.insert(nonce);
            }
            Message::Frame(frame) if self.random.one_in(30) => {
                let nonce = frame.session.nonce;
                let busy = Message::Busy { nonce, first_number: frame.first_number };
                self.post(Ok(replica), &busy);
            }
            Message::Frame(frame) => self.log.push(frame),
            Message::Read { id, .. } => {
                let outcome = (!self.random.one_in(4)).then(|| super::reply("read"));
                self.post(Ok(replica), &Message::ReadReply { id, slot: Slot(0), outcome });
            }
            _ => panic!("a client does not send this"),
        }
    }

    fn step(&mut self) {
        self.script.now_ms += 1;
        for index in 0..self.up.len() {
            let toggles = if self.up[index] { 2000 } else { 30 };
            if self.random.one_in(toggles) {
                self.up[index] = !self.up[index];
                let (now, up) = (self.script.now_ms, self.up[index]);
                self.script.core.on_link(now, ReplicaId(index as u8), up);
            }
            let replica = &mut self.replicas[index];
            if replica.executed < self.log.len() && self.random.one_in(3) {
                let frame = self.log[replica.executed].clone();
                let outcomes = replica.execute(&frame);
                self.reply(index as u8, frame.session.nonce, outcomes);
            }
        }
        let now = self.script.now_ms;
        let (due, later) = std::mem::take(&mut self.wire).into_iter().partition(|one| one.0 <= now);
        self.wire = later;
        let due: Vec<(u64, Result<u8, u8>, Message)> = due;
        for (_, end, message) in due {
            match end {
                Ok(from) if self.up[usize::from(from)] => self.script.receive(from, message),
                Err(to) if self.up[usize::from(to)] => self.arrive_at(to, message),
                _ => {}
            }
        }
        if self.script.core.next_deadline().is_some_and(|at| at <= now) {
            self.script.core.on_tick(now);
        }
        self.script.pump();
        for (to, message) in self.script.sent() {
            self.post(Err(to.0), &message);
        }
    }
}

fn content(index: u64) -> Bytes {
    Bytes::copy_from_slice(&index.to_le_bytes())
}

/// Returns how many calls completed, were refused, were indeterminate.
fn run(seed: u64, faults: (u8, u8), attesting: bool) -> [u64; 3] {
    let mut world = World::new(seed, faults, attesting);
    let mut open: BTreeMap<CallId, (u64, u64, bool)> = BTreeMap::new();
    let mut refused = Vec::new();
    for index in 0..4600u64 {
        if index < 3000 && world.random.one_in(3) {
            let fast = world.random.one_in(5);
            let deadline_ms = world.script.now_ms + 50 + world.random.below(1500);
            let mode = if fast { Mode::Fast } else { Mode::Ordered };
            let options = CallOptions { deadline_ms, mode, reply_quorum: None };
            let command = Command::Service(content(index)).to_bytes();
            let id = world.script.enter(command, options);
            open.insert(id, (index, deadline_ms, fast));
        }
        world.step();
        for (id, result) in world.script.done() {
            let (index, deadline_ms, fast) = open.remove(&id).expect("a call ends once");
            assert!(world.script.now_ms <= deadline_ms, "after its deadline");
            match result {
                CallResult::Completed(
                    Reply::Service(bytes) | Reply::Unordered { reply: bytes, .. },
                ) => {
                    let ordered = bytes == content(index) && !attesting;
                    assert!(ordered || (fast && *bytes == *b"read"));
                }
                CallResult::Completed(Reply::Attested { reply, attestations }) => {
                    assert_eq!((reply, attesting), (content(index), true));
                    assert_eq!(attestations.len(), 1 + usize::from(faults.1));
                    assert!(attestations.is_sorted_by(|a, b| a.signer < b.signer));
                    for one in attestations {
                        let key = replica_key(one.signer.0).public();
                        let claim = one.claim(CLUSTER, &content(index), key).unwrap();
                        assert!(Scheme::KeyedHash.verify(key, &claim.message, claim.signature));
                    }
                }
                CallResult::Refused(_) => refused.push(index),
                CallResult::Indeterminate(_) => {}
                CallResult::Completed(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(open.is_empty(), "calls that never ended");
    let mut last = Replica::default();
    for frame in &world.log {
        last.execute(frame);
    }
    assert!(last.counts.values().all(|count| *count == 1), "executed twice");
    for index in refused {
        let command = Command::Service(content(index)).to_bytes();
        assert!(!last.counts.contains_key(&command), "refused and executed");
    }
    let stats = world.script.core.stats();
    [stats.completed, stats.refused, stats.indeterminate]
}

#[test]
fn replies_are_true_and_refusals_certain_whatever_the_network_does() {
    let mut sums = [0; 3];
    for seed in 1..=60 {
        for faults in [(1, 0), (1, 1), (2, 1)] {
            let ends = run(seed, faults, seed % 2 == 0);
            assert!(ends[0] > 100, "seed {seed}, (u, r) {faults:?}: {ends:?}");
            for (sum, end) in sums.iter_mut().zip(ends) {
                *sum += end;
            }
        }
    }
    assert!(sums.iter().all(|sum| *sum > 0), "every kind of end was seen: {sums:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7, (1, 1), true), run(7, (1, 1), true));
}
