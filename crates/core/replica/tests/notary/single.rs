//! One replica around a [`Notary`], whose leader and whose disk do what a test says; time is virtual. And what is asked of it both in tests
//! and, with mistakes switched on, in a test of its own.

#![allow(dead_code, missing_docs)]

use super::{ELSEWHERE, Notary, elsewhere, encoded, leaf, prove, say};
use crate::common::{self, CLUSTER};
use bytes::Bytes;
use perdura_protocol::attestation::{Attestation, Attested, attest};
use perdura_protocol::{
    Batch, Command, Decode, Digest, Encode, Frame, Message, PublicKey, Record, ReplicaId, Scheme,
    SecretKey, SessionId, Signature, Slot, Time, View, limits,
};
use perdura_replica::node::{Boot, Counters, Found, Input, Node, Now, Output, Peer};

pub const SCHEME: Scheme = Scheme::KeyedHash;
pub const NONCE: u64 = 1_000_000 * limits::NONCES_PER_MS;
pub const LEADER: Peer = Peer::Replica(ReplicaId(0));

pub fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(SCHEME, [seed; 32])
}

pub fn client(seed: u8) -> Peer {
    Peer::Client { connection: u64::from(seed), key: key(seed).public() }
}

pub fn session(seed: u8) -> SessionId {
    SessionId { client: key(seed).public(), nonce: NONCE }
}

/// Signed, whether that is looked at or not.
pub fn frame(seed: u8, first: u64, contents: &[Bytes]) -> Frame {
    let commands: Vec<Bytes> = contents.iter().cloned().map(encoded).collect();
    Frame::build(CLUSTER, session(seed), 0, first, &commands, Some(&key(seed)))
}

pub fn opening(seed: u8) -> Frame {
    Frame::build(CLUSTER, session(seed), 0, 0, &[Command::Open.to_bytes()], Some(&key(seed)))
}

/// What replica `id` of the other group attests of these.
pub fn attested_elsewhere(id: u8, leaves: &[&str]) -> Vec<Attestation> {
    attest((ELSEWHERE, 0), leaves, (ReplicaId(id), &elsewhere(SCHEME, id)))
}

/// A command that proves a leaf by two members of the other group.
pub fn proven(text: &str) -> Bytes {
    let by = |id| attested_elsewhere(id, &[text, "more"]).remove(0);
    prove(text.as_bytes(), &[by(0), by(1)])
}

/// The same with another signature of the second.
pub fn forged(text: &str) -> Bytes {
    let by = |id| attested_elsewhere(id, &[text, "more"]).remove(0);
    let false_one = Attestation { signature: Signature([7; 64]), ..by(1) };
    prove(text.as_bytes(), &[by(0), false_one])
}

pub struct Single {
    pub node: Node,
    pub now_ms: u64,
    pub slot: Slot,
    pub history: Digest,
    pub appends: Vec<u64>,
    pub records: Vec<Record>,
    pub sent: Vec<(Peer, Message)>,
    pub accused: Vec<Peer>,
    pub suspects: usize,
}

impl Single {
    pub fn new(me: u8, faults: (u8, u8)) -> Single {
        Single::found(me, faults, Found::default())
    }

    pub fn found(me: u8, faults: (u8, u8), found: Found) -> Single {
        let clients: Vec<(String, PublicKey)> =
            (50..60).map(|seed| (format!("client {seed}"), key(seed).public())).collect();
        let boot = common::boot_around(me, SCHEME, faults, clients, || Notary::new(SCHEME));
        let node = Node::boot(Boot { found, ..boot }, now(1_000)).unwrap();
        let mut single = Single {
            node,
            now_ms: 1_000,
            slot: Slot(0),
            history: Digest::ZERO,
            appends: Vec::new(),
            records: Vec::new(),
            sent: Vec::new(),
            accused: Vec::new(),
            suspects: 0,
        };
        let others = (0..4).filter(|id| *id != me).map(|id| Peer::Replica(ReplicaId(id)));
        for peer in others.chain((50..60).map(client)) {
            single.node.handle(now(1_000), Input::LinkUp(peer));
        }
        for seed in 50..60 {
            single.give(client(seed), &Message::Attach { nonce: NONCE });
        }
        single.end_round();
        single.persist();
        single.sent.clear();
        single
    }

    pub fn give(&mut self, peer: Peer, message: &Message) {
        let bytes = message.to_bytes();
        self.node.handle(now(self.now_ms), Input::Message { peer, bytes });
    }

    pub fn end_round(&mut self) {
        self.node.flush(now(self.now_ms));
        while let Some(output) = self.node.next_output() {
            match output {
                Output::Send { peers, bytes, .. } => {
                    let message = Message::from_bytes(bytes).unwrap();
                    self.sent.extend(peers.into_iter().map(|peer| (peer, message.clone())));
                }
                Output::Append { records, mark } => {
                    self.records.extend(records);
                    self.appends.push(mark);
                }
                Output::Misbehaved { peer, .. } => self.accused.push(peer),
                Output::Suspects { .. } => self.suspects += 1,
                _ => {}
            }
        }
    }

    /// The disk does what waits for it.
    pub fn persist(&mut self) {
        while !self.appends.is_empty() {
            for mark in std::mem::take(&mut self.appends) {
                self.node.handle(now(self.now_ms), Input::Persisted(mark));
            }
            self.end_round();
        }
    }

    pub fn tick(&mut self) {
        self.now_ms += 20;
        self.end_round();
        self.persist();
    }

    pub fn propose(&mut self, frames: Vec<Frame>) {
        let batch = Batch::requests(Time(1_000_000 + self.now_ms), frames);
        let (view, decided, history) = (View(0), self.slot, self.history);
        self.slot = self.slot.next();
        self.history = history.chain(self.slot, batch.digest());
        self.give(LEADER, &Message::Propose { view, slot: self.slot, batch, decided, history });
        self.end_round();
    }

    /// With r = 0: the leader decides one more slot, which is not on disk here.
    pub fn decide(&mut self, frames: Vec<Frame>) {
        self.propose(frames);
        let decided = Message::Decided { view: View(0), slot: self.slot, history: self.history };
        self.give(LEADER, &decided);
        self.end_round();
    }

    pub fn counters(&self) -> Counters {
        self.node.report().counters
    }

    /// What was sent to a client since this was asked last, but for Welcomes.
    pub fn heard(&mut self, seed: u8) -> Vec<Message> {
        let (to, rest) = self.sent.drain(..).partition(|(peer, _)| *peer == client(seed));
        self.sent = rest;
        let to: Vec<(Peer, Message)> = to;
        let messages = to.into_iter().map(|(_, message)| message);
        messages.filter(|message| !matches!(message, Message::Welcome { .. })).collect()
    }

    /// Whether it voted for the proposal of this slot: with r = 0 an Accept, else a Write.
    pub fn voted(&self, wanted: Slot) -> bool {
        self.sent.iter().any(|(_, message)| match message {
            Message::Write { slot, .. } | Message::Accept { slot, .. } => *slot == wanted,
            _ => false,
        })
    }
}

/// The texts that replica 1 attests here, by numbers, if the message is of that kind.
pub fn attested(message: &Message, texts: &[(u64, &str)]) -> Vec<u64> {
    let Message::Attested(attested) = message else { panic!("{message:?}") };
    assert_eq!(attested.nonce, NONCE);
    let mut numbers = Vec::new();
    for (number, one) in Attested::clone(attested).by_number(ReplicaId(1)) {
        let (_, text) = texts.iter().find(|(of, _)| *of == number).unwrap();
        let claim = one.claim(CLUSTER, &leaf(text), key(11).public()).unwrap();
        assert!(SCHEME.verify(claim.key, &claim.message, claim.signature), "{number}: {text}");
        numbers.push(number);
    }
    numbers
}

pub fn replied(message: &Message) -> Vec<u64> {
    let Message::Replies { outcomes, .. } = message else { panic!("{message:?}") };
    outcomes.iter().map(|(number, _)| *number).collect()
}

pub fn nothing_is_attested_before_it_is_logged() {
    let mut follower = Single::new(1, (1, 0));
    follower.decide(vec![opening(50), opening(51)]);
    follower.persist();
    follower.heard(50);
    follower.heard(51);
    follower.decide(vec![
        frame(50, 1, &[say("a"), Bytes::from_static(b"all"), say("b")]),
        frame(51, 1, &[say("c")]),
        frame(52, 1, &[say("without a session")]),
    ]);
    assert_eq!(follower.node.report().executed, Slot(2), "it is executed, and not logged");
    assert_eq!((follower.heard(50), follower.heard(51)), (vec![], vec![]));
    let before = follower.counters();
    follower.persist();
    let heard = follower.heard(50);
    assert_eq!((heard.len(), replied(&heard[0])), (2, vec![1, 2, 3]));
    assert_eq!(attested(&heard[1], &[(1, "a"), (3, "b")]), [1, 3]);
    let other = follower.heard(51);
    assert_eq!(attested(&other[1], &[(1, "c")]), [1]);
    let (Message::Attested(one), Message::Attested(two)) = (&heard[1], &other[1]) else { panic!() };
    assert_eq!((one.count, two.signature), (3, one.signature), "one signature for all");
    let after = follower.counters();
    assert_eq!(after.attestations_signed - before.attestations_signed, 1);
    assert_eq!(after.statements_signed - before.statements_signed, 3);
}

pub fn a_proposal_with_false_claims_is_not_voted_for() {
    for wrong in [
        forged("a"),
        // The right attestations of another leaf.
        prove(b"b", &attested_elsewhere(0, &["a"])),
        // Malformed, and more than there may be.
        Bytes::from_static(b"prove it"),
        prove(b"a", &vec![attested_elsewhere(0, &["a"]).remove(0); limits::COMMAND_CLAIMS + 1]),
    ] {
        let mut follower = Single::new(1, (1, 1));
        follower
            .propose(vec![frame(50, 1, &[say("x"), proven("a")]), frame(51, 1, &[proven("a")])]);
        assert!(follower.voted(Slot(1)), "right ones are");
        follower.propose(vec![frame(50, 3, &[say("y")]), frame(51, 2, &[say("x"), wrong])]);
        follower.tick();
        follower.persist();
        assert!(!follower.voted(Slot(2)));
        assert_eq!((follower.accused.clone(), follower.suspects), (vec![LEADER], 1));
    }
}
