//! One replica's node under floods: what a liar makes it do is bounded, and others are served all
//! the while (rules A5 and A6). Time is virtual, signatures are real.

use bytes::Bytes;
use perdura_execution::Genesis;
use perdura_protocol::configuration::{Configuration, Durability, Member, Parameters};
use perdura_protocol::{
    Batch, ClusterId, Command, Decode, Digest, Encode, Faults, Frame, Message, PublicKey,
    ReplicaId, Scheme, SecretKey, SessionId, Signature, Slot, Time, View,
};
use perdura_replica::node::{BACKLOG_BYTES, Boot, Input, Node, Now, Output, Peer, QUESTIONS};
use perdura_store::{Store, StoreCommand};

const CLUSTER: ClusterId = ClusterId([9; 16]);

struct Single {
    node: Node<Store>,
    now_ms: u64,
    sent: Vec<(Peer, Message)>,
    accused: usize,
}

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn client(seed: u8) -> Peer {
    Peer::Client { connection: u64::from(seed), key: key(seed).public() }
}

fn replica(id: u8) -> Peer {
    Peer::Replica(ReplicaId(id))
}

fn frame(seed: u8, number: u64, genuine: bool) -> Frame {
    let session = SessionId { client: key(seed).public(), nonce: 1 };
    let signer = if genuine { key(seed) } else { key(99) };
    Frame::build(CLUSTER, session, 0, number, &[Command::Open.to_bytes()], Some(&signer))
}

impl Single {
    fn new(me: u8) -> Single {
        let members: Vec<Member> =
            (0..4).map(|id| Member { key: key(10 + id).public(), incarnation: 0 }).collect();
        let parameters = Parameters {
            cluster: CLUSTER,
            faults: Faults::new(1, 1).unwrap(),
            durability: Durability::Sync,
            depth: 32,
            checkpoint_interval: 64,
            checkpoint_bytes: 1 << 24,
            max_skew_ms: 500,
            state_limit_bytes: 1 << 30,
            administrator: key(1).public(),
        };
        let clients: Vec<(String, PublicKey)> =
            (50..60).map(|seed| (format!("client {seed}"), key(seed).public())).collect();
        let configuration = Configuration { id: 0, from_slot: Slot(0), members };
        let boot = Boot {
            me: ReplicaId(me),
            key: key(10 + me),
            scheme: Scheme::Ed25519,
            parameters,
            latest: configuration.clone(),
            genesis: Genesis { configuration, clients },
            entropy: [3; 32],
            make_service: Box::new(|| Store::new(1 << 30)),
            checkpoint: None,
            records: Vec::new(),
            vote_after: Slot(0),
            state_from: Slot(0),
            lost: None,
            backlog_bytes: BACKLOG_BYTES,
        };
        let node = Node::boot(boot, now(1_000)).unwrap();
        let mut single = Single { node, now_ms: 1_000, sent: Vec::new(), accused: 0 };
        for id in (0..4).filter(|id| *id != me) {
            single.node.handle(now(1_000), Input::LinkUp(replica(id)));
        }
        for seed in 50..60 {
            single.node.handle(now(1_000), Input::LinkUp(client(seed)));
        }
        single.end_round();
        single
    }

    fn give(&mut self, peer: Peer, message: &Message) {
        let bytes = message.to_bytes();
        self.node.handle(now(self.now_ms), Input::Message { peer, bytes });
    }

    fn end_round(&mut self) {
        loop {
            self.node.flush(now(self.now_ms));
            let mut persisted = None;
            while let Some(output) = self.node.next_output() {
                match output {
                    Output::Send { peers, bytes } => {
                        let message = Message::from_bytes(bytes).unwrap();
                        self.sent.extend(peers.into_iter().map(|peer| (peer, message.clone())));
                    }
                    Output::Append { mark, .. } => persisted = Some(mark),
                    Output::Misbehaved { .. } => self.accused += 1,
                    _ => {}
                }
            }
            let Some(mark) = persisted else { return };
            self.node.handle(now(self.now_ms), Input::Persisted(mark));
        }
    }

    fn tick(&mut self) {
        self.now_ms += 20;
        // The others live.
        let me = self.node.report().id;
        for id in (0..4).map(ReplicaId).filter(|id| *id != me) {
            let status = Message::Status { view: View(0), changing: false, delivered: Slot(0) };
            self.give(Peer::Replica(id), &status);
        }
        self.end_round();
    }

    fn sent_to(&self, peer: Peer) -> impl Iterator<Item = &Message> {
        self.sent.iter().filter(move |(to, _)| *to == peer).map(|(_, message)| message)
    }

    /// Numbers of frames that were proposed, of one client.
    fn proposed(&self, seed: u8) -> usize {
        let batches = self.sent_to(replica(1)).filter_map(|message| match message {
            Message::Propose { batch, .. } => Some(batch),
            _ => None,
        });
        let of_client = |frame: &&Frame| frame.session.client == key(seed).public();
        batches.map(|batch: &Batch| batch.frames().iter().filter(of_client).count()).sum()
    }
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

#[test]
fn a_replica_that_forwards_frames_nobody_signed_soon_has_none_verified() {
    let mut leader = Single::new(0);
    for round in 0..200 {
        for number in 0..50 {
            leader.give(replica(3), &Message::Frame(frame(51, round * 50 + number, false)));
        }
        // A client's own frame arrives behind all of them, and is proposed in the same round.
        if round % 10 == 0 {
            leader.give(client(52), &Message::Frame(frame(52, round, true)));
        }
        leader.tick();
    }
    assert!(leader.proposed(52) > 0 && leader.proposed(51) == 0);
    let counters = leader.node.report().counters;
    assert!(counters.signatures_verified < 600, "{}", counters.signatures_verified);
    assert!(counters.busy > 9_000 && counters.frames == 20);
    // Its clients' frames are taken from others and from themselves.
    leader.give(client(51), &Message::Frame(frame(51, 77, true)));
    leader.end_round();
    assert_eq!(leader.node.report().counters.frames, 21);
}

#[test]
fn a_client_with_a_bad_authenticator_costs_itself_only() {
    let mut leader = Single::new(0);
    let mut verified = 0;
    for round in 0..500 {
        // Both in one round: the batch fails, the good one is proposed all the same.
        leader.give(client(51), &Message::Frame(frame(51, round, false)));
        if round % 25 == 0 {
            leader.give(client(52), &Message::Frame(frame(52, round, true)));
            verified += 1;
        }
        leader.tick();
        if round == 3 {
            assert!(leader.node.is_penalised(key(51).public()), "its links are refused");
        }
    }
    assert!(!leader.node.is_penalised(key(52).public()));
    let counters = leader.node.report().counters;
    assert_eq!(counters.frames, verified);
    assert!(leader.accused < 10 && counters.signatures_verified < 20 + verified);
}

#[test]
fn a_leader_that_proposes_what_no_client_signed_is_suspected_at_once() {
    let mut follower = Single::new(1);
    let batch = Batch::requests(Time(1_001_000), vec![frame(51, 1, false)]);
    for slot in 1..20 {
        let (view, decided, history) = (View(0), Slot(0), Digest::ZERO);
        let batch = batch.clone();
        let propose = Message::Propose { view, slot: Slot(slot), batch, decided, history };
        follower.give(replica(0), &propose);
    }
    follower.tick();
    let suspects = follower.sent_to(replica(2)).any(|m| matches!(m, Message::Suspect { .. }));
    assert!(suspects && follower.accused == 1, "{}", follower.accused);
}

#[test]
fn votes_with_bad_signatures_are_verified_a_few_times_only() {
    let mut follower = Single::new(1);
    let batch = Batch::tick(Time(1_001_000));
    let (view, slot, digest) = (View(0), Slot(1), batch.digest());
    let propose = Message::Propose { view, slot, batch, decided: Slot(0), history: Digest::ZERO };
    follower.give(replica(0), &propose);
    for round in 0..100u8 {
        for from in [0, 3] {
            for junk in 0..20 {
                let signature = Signature([round ^ (junk << 3) | 1; 64]);
                let write = Message::Write { view, slot, digest, signature };
                follower.give(replica(from), &write);
                let prefix = Message::Prefix { slot, history: digest, signature };
                follower.give(replica(from), &prefix);
            }
        }
        follower.tick();
    }
    // Each accusation is a signature that was verified in vain: eight in 2 s from either.
    assert!((2..20).contains(&follower.accused), "{}", follower.accused);
}

#[test]
fn questions_without_end_from_one_replica_do_not_keep_another_waiting() {
    let mut leader = Single::new(0);
    for _ in 0..50 {
        for _ in 0..500 {
            leader.give(replica(3), &Message::StateQuery);
            leader.give(replica(3), &Message::FetchPiece { slot: Slot(64), index: 0 });
        }
        assert!(leader.node.report().held.questions <= QUESTIONS);
        leader.give(replica(2), &Message::FetchManifest { slot: Slot(64) });
        leader.tick();
    }
    let answers = |peer| {
        leader
            .sent_to(peer)
            .filter(|m| matches!(m, Message::Manifest { .. } | Message::Piece { .. }))
    };
    assert_eq!(answers(replica(2)).count(), 50);
    let states =
        leader.sent_to(replica(3)).filter(|m| matches!(m, Message::StateInfo { .. })).count();
    assert!(states <= 11, "{states} answers to queries in a second");
    assert!(leader.node.report().counters.throttled > 20_000);
}

#[test]
fn a_flood_of_reads_does_not_keep_another_clients_waiting() {
    let mut leader = Single::new(0);
    let get = StoreCommand::Get { key: Bytes::from_static(b"key") };
    let command = Command::Service(get.to_bytes()).to_bytes();
    for id in 0..20_000 {
        leader.give(client(51), &Message::Read { id, command: command.clone() });
    }
    leader.give(client(52), &Message::Read { id: 7, command });
    leader.node.flush(now(leader.now_ms));
    let held = leader.node.report().held;
    assert!(held.reads.0 > 0 && leader.node.has_more(), "the rest waits for another round");
    leader.end_round();
    assert_eq!(
        leader.sent_to(client(52)).filter(|m| matches!(m, Message::ReadReply { .. })).count(),
        1
    );
}

#[test]
fn a_flood_of_genuine_frames_leaves_every_other_client_its_turn() {
    let mut leader = Single::new(0);
    let flood: Vec<Frame> = (0..400).map(|number| frame(51, number, true)).collect();
    for one in &flood {
        leader.give(client(51), &Message::Frame(one.clone()));
    }
    leader.give(client(52), &Message::Frame(frame(52, 1, true)));
    leader.node.flush(now(leader.now_ms));
    assert!(leader.node.has_more(), "not all at once");
    leader.end_round();
    assert_eq!(leader.proposed(52), 1, "though it came last");
}
