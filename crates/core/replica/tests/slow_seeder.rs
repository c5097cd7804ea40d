//! A state that is fetched while one of those who have it is slow on purpose (A4). Time is virtual.

use crate::common;
use crate::common::CLUSTER;
use bytes::Bytes;
use perdura_execution::{Machine, StateSnapshot};
use perdura_protocol::configuration::Schedule;
use perdura_protocol::message::StateCertificate;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Command, Context, Decode, Digest, Encode, Frame, Message, PublicKey,
    ReplicaId, Scheme, SecretKey, SessionId, Slot, Time, View, limits,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer, StateTransfer};
use perdura_store::Store;
use std::collections::BTreeMap;

/// Who was away.
const ME: u8 = 3;
/// The first to be asked: the leader would be the last.
const SLOW: u8 = 1;
/// Each client has a session, and each session is a piece of the state.
const CLIENTS: u16 = 600;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [seed; 32])
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn client(number: u16) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    PublicKey(bytes)
}

fn boot(schedule: Schedule) -> Boot {
    let clients = (0..CLIENTS).map(|number| (format!("c{number}"), client(number))).collect();
    let found = Found { vote_after: Slot(1), ..Found::default() };
    let mut boot = Boot { found, ..common::boot(ME, Scheme::KeyedHash, (1, 1), clients) };
    boot.parameters.schedule = schedule;
    boot
}

/// The state that the others have, and what proves it.
struct Known {
    snapshot: StateSnapshot,
    state: StateCertificate,
    prefix: PrefixCertificate,
}

impl Known {
    /// The state after `slot`, at least 1.
    fn after(slot: Slot, schedule: Schedule) -> Known {
        let Boot { parameters, genesis, .. } = boot(schedule);
        let mut machine = Machine::new(&parameters, genesis, Store::new(1 << 30)).unwrap();
        let open = |number| {
            let nonce = 1_000_000 * limits::NONCES_PER_MS;
            let session = SessionId { client: client(number), nonce };
            Frame::build(CLUSTER, session, 0, 0, &[Command::Open.to_bytes()], None)
        };
        let frames = (0..CLIENTS).map(open).collect();
        machine.execute(Slot(1), &Batch::requests(Time(1_000_000), frames));
        (2..=slot.0).for_each(|slot| drop(machine.execute(Slot(slot), &Batch::null())));
        let snapshot = machine.snapshot();
        let context = Context { cluster: CLUSTER, configuration: 0 };
        let certificate = |kind, digest: Digest| {
            let statement = context.statement(kind, View(0), slot, digest);
            Certificate::new(
                (0..3).map(|id| (ReplicaId(id), key(10 + id).sign(&statement))).collect(),
            )
        };
        let (digest, history) = (snapshot.manifest().digest(), machine.history());
        let certificate_of_state = certificate(StatementKind::Checkpoint, digest);
        let certificate = certificate(StatementKind::Prefix, history);
        Known {
            snapshot,
            state: StateCertificate {
                slot,
                digest,
                configuration: 0,
                certificate: certificate_of_state,
            },
            prefix: PrefixCertificate { slot, history, configuration: 0, certificate },
        }
    }
}

/// The laggard, with the answers of the others that are on their way to it.
struct Away {
    node: Node,
    known: Known,
    /// What the slow one has.
    slow: Known,
    now_ms: u64,
    on_the_way: BTreeMap<(u64, u64), (u8, Message)>,
    sent: u64,
    /// The next moment at which the slow one lets something out; it may let out nothing any more.
    slow_ms: u64,
    silent: bool,
    /// It says that the state it has is gone.
    hides: bool,
    /// How many pieces each was asked for.
    asked: BTreeMap<u8, usize>,
}

impl Away {
    /// The slow one has the state after this slot, the others that after the first.
    fn new(schedule: Schedule, slow: Slot) -> Away {
        Away::asking(StateTransfer::Collaborative, schedule, slow)
    }

    fn asking(state_transfer: StateTransfer, schedule: Schedule, slow: Slot) -> Away {
        let now_ms = 10_000;
        let boot = Boot { state_transfer, ..boot(schedule) };
        let node = Node::boot(boot, now(now_ms)).unwrap();
        let mut away = Away {
            node,
            known: Known::after(Slot(1), schedule),
            slow: Known::after(slow, schedule),
            now_ms,
            on_the_way: BTreeMap::new(),
            sent: 0,
            slow_ms: 0,
            silent: false,
            hides: false,
            asked: BTreeMap::new(),
        };
        for id in 0..3 {
            let peer = Peer::Replica(ReplicaId(id));
            away.node.handle(now(now_ms), Input::LinkUp(peer));
        }
        away
    }

    /// One of the others; the slow one lets out a piece, and nothing else, just often enough.
    fn answer(&mut self, from: u8, question: Message) {
        if matches!(question, Message::FetchPiece { .. }) {
            *self.asked.entry(from).or_default() += 1;
        }
        if from == SLOW && self.silent {
            return;
        }
        let hidden = from == SLOW && self.hides;
        let known = if from == SLOW { &self.slow } else { &self.known };
        let has = known.state.slot;
        let answer = match question {
            Message::StateQuery => Message::StateInfo {
                delivered: has,
                state: Some(known.state.clone()),
                prefix: known.prefix.clone(),
            },
            Message::FetchManifest { slot } if hidden => {
                Message::Manifest { slot, manifest: Bytes::new() }
            }
            Message::FetchManifest { slot } if slot == has => {
                Message::Manifest { slot, manifest: known.snapshot.manifest().to_bytes() }
            }
            Message::FetchPiece { slot, index } if slot == has => {
                let piece: Bytes = known.snapshot.piece(index as usize);
                Message::Piece { slot, index, piece }
            }
            _ => return,
        };
        let mut due_ms = self.now_ms + 3;
        if from == SLOW && matches!(answer, Message::Piece { .. }) {
            due_ms = due_ms.max(self.slow_ms + 990);
            self.slow_ms = due_ms;
        }
        self.sent += 1;
        self.on_the_way.insert((due_ms, self.sent), (from, answer));
    }

    fn end_round(&mut self) {
        loop {
            self.node.flush(now(self.now_ms));
            let mut inputs = Vec::new();
            while let Some(output) = self.node.next_output() {
                match output {
                    Output::Send { peers, bytes, .. } => {
                        for peer in peers {
                            let Peer::Replica(id) = peer else { continue };
                            self.answer(id.0, Message::from_bytes(bytes.clone()).unwrap());
                        }
                    }
                    Output::Append { mark, .. } => inputs.push(Input::Persisted(mark)),
                    Output::RestoreState(restoration) => {
                        restoration.run();
                        inputs.push(Input::StateRestored);
                    }
                    Output::InstallCheckpoint { manifest, .. } => {
                        inputs.push(Input::CheckpointStored { manifest });
                    }
                    Output::Misbehaved { what, .. } => panic!("{what}"),
                    _ => {}
                }
            }
            if inputs.is_empty() {
                return;
            }
            for input in inputs {
                self.node.handle(now(self.now_ms), input);
            }
        }
    }

    fn lose_transfer_link(&mut self, id: u8) {
        self.node.handle(now(self.now_ms), Input::TransferLinkDown(ReplicaId(id)));
        self.end_round();
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            while let Some(entry) = self.on_the_way.first_entry() {
                if entry.key().0 > self.now_ms {
                    break;
                }
                let (from, message) = entry.remove();
                let (peer, bytes) = (Peer::Replica(ReplicaId(from)), message.to_bytes());
                self.node.handle(now(self.now_ms), Input::Message { peer, bytes });
            }
            self.end_round();
        }
    }
}

#[test]
fn a_seeder_that_gives_a_piece_just_often_enough_does_not_keep_the_rest_from_coming() {
    let mut away = Away::new(Schedule::Coordinated, Slot(1));
    // At its pace all would take ten minutes.
    away.run(20_000);
    let report = away.node.report();
    let received = report.counters.pieces_received;
    assert_eq!(report.executed, Slot(1), "{received} of {CLIENTS} pieces and more in 20 s");
    assert!(!away.asked.contains_key(&0), "the leader has enough to do");
    // Hardly anything came twice.
    assert!(away.sent < u64::from(CLIENTS) + 200, "{} answers", away.sent);
}

/// Each state is stored by one replica: a liar may be the one that has the newest.
#[test]
fn who_alone_has_the_newest_state_and_is_slow_is_left_for_who_has_an_older_one() {
    let mut away = Away::new(Schedule::Sequential, Slot(2));
    away.run(20_000);
    let report = away.node.report();
    assert!(report.executed >= Slot(1), "nothing in 20 s");
    assert!(away.sent < u64::from(CLIENTS) + 200, "{} answers", away.sent);
}

/// It offers the newest state, and says that it is gone whenever somebody comes for it.
#[test]
fn who_offers_what_is_gone_when_it_is_asked_for_is_left_for_who_has_an_older_one() {
    let mut away = Away::new(Schedule::Sequential, Slot(2));
    away.hides = true;
    away.run(20_000);
    assert_eq!(away.node.report().executed, Slot(1), "nothing in 20 s");
}

/// Whoever asks one only gets all at the pace of that one, and goes to the next when it stops.
#[test]
fn from_a_single_sender_the_state_comes_at_its_pace_and_from_the_next_when_that_fails() {
    let single = StateTransfer::SingleSender;
    let mut away = Away::asking(single, Schedule::Coordinated, Slot(1));
    away.run(20_000);
    let received = away.node.report().counters.pieces_received;
    assert!(received < 40, "{received} pieces in 20 s");
    assert_eq!(away.asked.keys().copied().collect::<Vec<u8>>(), [SLOW]);
    away.silent = true;
    away.on_the_way.clear();
    away.run(10_000);
    assert_eq!(away.node.report().executed, Slot(1));
    // The leader gave nothing.
    assert_eq!(away.asked.keys().copied().collect::<Vec<u8>>(), [SLOW, 2]);
    assert!(away.asked[&2] >= usize::from(CLIENTS) - 50);
    // Otherwise more than one is asked, and all of it comes.
    let mut away = Away::new(Schedule::Coordinated, Slot(1));
    away.run(20_000);
    assert!(away.asked.len() > 1);
}

/// Of the two links to a replica, only the one breaks on which it answers.
#[test]
fn what_was_on_a_transfer_link_that_broke_is_asked_for_again_at_once() {
    let mut away = Away::new(Schedule::Coordinated, Slot(1));
    let manifest = |answer: &(u8, Message)| matches!(answer.1, Message::Manifest { .. });
    while !away.on_the_way.values().any(manifest) {
        away.run(1);
    }
    away.on_the_way.retain(|_, answer| !manifest(answer));
    away.lose_transfer_link(SLOW);
    assert!(away.on_the_way.values().any(manifest), "not before it is given up");
    while away.asked.len() < 2 {
        away.run(1);
    }
    let (asked, before) = (away.asked.values().sum::<usize>(), away.on_the_way.len());
    away.on_the_way.retain(|_, (from, _)| *from != 2);
    let lost = before - away.on_the_way.len();
    away.lose_transfer_link(2);
    let again = away.asked.values().sum::<usize>() - asked;
    assert!(lost > 0 && again >= lost, "{again} of {lost}");
    away.run(20_000);
    assert_eq!(away.node.report().executed, Slot(1));
}
