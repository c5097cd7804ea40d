//! One replica's node under floods: what a liar makes it do is bounded, and others are served all
//! the while (rules A5 and A6). Time is virtual, signatures are real.

use crate::common;
use crate::common::CLUSTER;
use bytes::Bytes;
use perdura_protocol::message::Decision;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{
    Batch, Certificate, Command, Context, Decode, Digest, Encode, Frame, Message, PublicKey,
    ReplicaId, Scheme, SecretKey, SessionId, Signature, Slot, Time, View, limits,
};
use perdura_replica::node::{Input, Node, NotAdmitted, Now, Output, Peer, QUESTIONS, State};
use perdura_store::StoreCommand;

struct Single {
    node: Node,
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
    let session =
        SessionId { client: key(seed).public(), nonce: 1_000_000 * limits::NONCES_PER_MS };
    let signer = if genuine { key(seed) } else { key(99) };
    Frame::build(CLUSTER, session, 0, number, &[Command::Open.to_bytes()], Some(&signer))
}

fn sign(id: u8, kind: StatementKind, view: View, slot: Slot, digest: Digest) -> Signature {
    let context = Context { cluster: CLUSTER, configuration: 0 };
    key(10 + id).sign(&context.statement(kind, view, slot, digest))
}

fn certificate(ids: &[u8], kind: StatementKind, slot: Slot, digest: Digest) -> Certificate {
    let one = |id: &u8| (ReplicaId(*id), sign(*id, kind, View(0), slot, digest));
    Certificate::new(ids.iter().map(one).collect())
}

/// Asks for a view with genuine locks of long ago, as many as there are.
fn change(id: u8, view: u64, locks: u64) -> ViewChange {
    let digest = Digest::of(b"batch");
    let lock = |slot| {
        let writes = certificate(&[0, 2, 3], StatementKind::Write, slot, digest);
        Lock { slot, view: View(0), digest, writes }
    };
    let mut change = ViewChange {
        view: View(view),
        sender: ReplicaId(id),
        configuration: 0,
        prefix: PrefixCertificate::genesis(),
        locks: (1..=locks).map(|slot| lock(Slot(slot))).collect(),
        signature: Signature::NONE,
    };
    change.signature =
        sign(id, StatementKind::ViewChange, View(view), Slot(0), change.body_digest());
    change
}

/// Slots up to `last`, with the Accepts of these, and the history.
fn decisions(last: Slot, accepts: &[u8]) -> (Vec<Decision>, Digest) {
    let mut history = Digest::ZERO;
    let mut decisions = Vec::new();
    for slot in (1..=last.0).map(Slot) {
        let batch = Batch::tick(Time(1_000_000 + slot.0));
        history = history.chain(slot, batch.digest());
        let accepts = certificate(accepts, StatementKind::Accept, slot, batch.digest());
        decisions.push(Decision { slot, view: View(0), accepts, batch });
    }
    (decisions, history)
}

/// Certified by two.
fn prefix(slot: Slot, history: Digest) -> PrefixCertificate {
    let certificate = certificate(&[0, 2], StatementKind::Prefix, slot, history);
    PrefixCertificate { slot, history, configuration: 0, certificate }
}

impl Single {
    fn new(me: u8) -> Single {
        let clients: Vec<(String, PublicKey)> =
            (50..60).map(|seed| (format!("client {seed}"), key(seed).public())).collect();
        let boot = common::boot(me, Scheme::Ed25519, (1, 1), clients);
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
                    Output::Send { peers, bytes, .. } => {
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
        self.tick_beside([Slot(0); 4]);
    }

    /// The others live, and say that they delivered so much.
    fn tick_beside(&mut self, delivered: [Slot; 4]) {
        self.now_ms += 20;
        let me = self.node.report().id;
        for id in (0..4).map(ReplicaId).filter(|id| *id != me) {
            let delivered = delivered[id.index()];
            let status = Message::Status { view: View(0), changing: false, delivered };
            self.give(Peer::Replica(id), &status);
        }
        self.end_round();
    }

    fn verified(&self) -> u64 {
        self.node.report().counters.statements_verified
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
            let refused = leader.node.admit_client(key(51).public());
            assert_eq!(refused, Err(NotAdmitted::Penalised), "its links are refused");
        }
    }
    assert_eq!(leader.node.admit_client(key(52).public()), Ok(()));
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

/// Else replies had nowhere to go, and only a new session would have helped the client.
#[test]
fn a_frame_attaches_its_session_where_the_attach_was_lost() {
    let mut leader = Single::new(0);
    assert_eq!(leader.node.report().held.routes, 0);
    leader.give(client(51), &Message::Frame(frame(51, 0, true)));
    leader.tick();
    assert_eq!(leader.node.report().held.routes, 1);
    // Not for a frame that another one's link brought.
    leader.give(client(51), &Message::Frame(frame(52, 0, true)));
    leader.give(replica(3), &Message::Frame(frame(53, 0, true)));
    leader.tick();
    assert_eq!(leader.node.report().held.routes, 1);
}

#[test]
fn frames_that_would_not_be_kept_are_not_verified() {
    let mut leader = Single::new(0);
    for round in 0..50 {
        for number in 0..40 {
            leader.give(client(51), &Message::Frame(frame(51, round * 40 + number, true)));
        }
        leader.tick();
    }
    // Nothing is delivered here: a session's part of the pool is soon used up.
    let counters = leader.node.report().counters;
    assert!((200..400).contains(&counters.signatures_verified), "{}", counters.signatures_verified);
    assert!(counters.busy > 1_500, "{}", counters.busy);
    leader.give(client(52), &Message::Frame(frame(52, 1, true)));
    leader.end_round();
    assert_eq!(leader.node.report().counters.frames, counters.frames + 1);
}

/// Else such a client could have correct leaders suspected of withholding what they refused.
#[test]
fn an_overdue_frame_is_taken_whatever_else_its_client_sends() {
    let mut leader = Single::new(0);
    let packed = |number| {
        let session =
            SessionId { client: key(52).public(), nonce: 1_000_000 * limits::NONCES_PER_MS };
        let commands = vec![Command::Open.to_bytes(); 32];
        Frame::build(CLUSTER, session, 0, number, &commands, Some(&key(52)))
    };
    let sparse = (0..200).map(|number| frame(51, number, true));
    let frames = sparse.chain((0..10).map(|index| packed(32 * index))).collect();
    let (view, slot, batch) = (View(0), Slot(1), Batch::requests(Time(1_000_001), frames));
    let accepts = certificate(&[1, 2, 3], StatementKind::Accept, slot, batch.digest());
    let decisions = vec![Decision { slot, view, accepts, batch }];
    leader.give(replica(1), &Message::Decisions { decisions, prefix: None, between: vec![] });
    leader.tick();
    let taken = |leader: &Single| leader.node.report().counters.frames;
    for number in 200..400 {
        leader.give(client(51), &Message::Frame(frame(51, number, true)));
    }
    leader.end_round();
    while leader.node.has_more() {
        leader.end_round();
    }
    let before = taken(&leader);
    assert!((16..180).contains(&before), "{before} frames");
    leader.give(replica(2), &Message::Frame(frame(51, 500, true)));
    leader.end_round();
    assert_eq!(taken(&leader), before);
    leader.give(replica(2), &Message::Overdue(frame(51, 500, true)));
    leader.end_round();
    assert_eq!(taken(&leader), before + 1);
    // But not without end, and no client sends such.
    for number in 600..700 {
        leader.give(replica(2), &Message::Overdue(frame(51, number, true)));
    }
    leader.end_round();
    let beside = taken(&leader) - before;
    assert!((2..=2 * perdura_agreement::ASKED_AT_ONCE as u64).contains(&beside), "{beside}");
    leader.give(client(53), &Message::Overdue(frame(53, 1, true)));
    leader.end_round();
    assert_eq!((leader.accused, taken(&leader)), (1, before + beside));
}

#[test]
fn a_leader_that_does_what_no_correct_one_does_is_suspected_and_others_are_not() {
    let stray = |slot| {
        let (decided, history) = (Slot(0), Digest::ZERO);
        // Only the leader of view 1 proposes in it.
        Message::Propose { view: View(1), slot, batch: Batch::null(), decided, history }
    };
    let suspects = |follower: &Single| {
        follower.sent_to(replica(2)).any(|message| matches!(message, Message::Suspect { .. }))
    };
    for (liar, deposed) in [(3, false), (0, true)] {
        let mut follower = Single::new(1);
        follower.give(replica(liar), &stray(Slot(1)));
        follower.tick();
        assert_eq!((follower.accused, suspects(&follower)), (1, deposed), "replica {liar}");
        let mut follower = Single::new(1);
        let bytes = Bytes::from_static(&[250, 1, 2, 3]);
        let at = now(follower.now_ms);
        follower.node.handle(at, Input::Message { peer: replica(liar), bytes });
        follower.tick();
        assert_eq!((follower.accused, suspects(&follower)), (1, deposed), "replica {liar}");
    }
}

#[test]
fn who_asks_for_view_after_view_has_one_signature_of_each_verified() {
    let mut victim = Single::new(1);
    let locks = change(3, 1, 100).locks;
    for view in 1..=100 {
        let mut change = ViewChange { locks: locks.clone(), ..change(3, view, 0) };
        let view = change.view;
        change.signature = sign(3, StatementKind::ViewChange, view, Slot(0), change.body_digest());
        victim.give(replica(3), &Message::ViewChange(Box::new(change)));
        victim.tick();
    }
    // All of them hold, and some are of views that this replica would lead.
    assert!(victim.accused == 0 && victim.node.report().view == View(0));
    assert!(victim.verified() <= 50, "{}", victim.verified());
}

#[test]
fn new_views_that_nobody_asked_for_cost_a_few_signatures() {
    let mut victim = Single::new(1);
    let own = change(0, 4, 100);
    for round in 0..100 {
        // One that cannot be judged here, or is not signed, behind the liar's own, which holds.
        let mut junk = ViewChange { sender: ReplicaId(2), ..change(3, 4, 0) };
        junk.configuration = if round < 50 { 999 } else { 0 };
        let (view, sender, signature) = (View(4), ReplicaId(0), Signature::NONE);
        let changes = vec![own.clone(), junk, change(3, 4, 0)];
        let mut new_view = NewView { view, sender, configuration: 0, changes, signature };
        new_view.signature = sign(0, StatementKind::NewView, view, Slot(0), new_view.body_digest());
        victim.give(replica(0), &Message::NewView(Box::new(new_view)));
        victim.tick();
    }
    assert!(victim.verified() <= 50, "{}", victim.verified());
    assert!((2..10).contains(&victim.accused), "{}", victim.accused);
}

#[test]
fn frames_of_a_proposal_with_a_wrong_time_are_not_looked_at() {
    let mut follower = Single::new(1);
    let frames: Vec<Frame> = (0..50).map(|number| frame(51, number, true)).collect();
    let (view, slot, decided, history) = (View(0), Slot(1), Slot(0), Digest::ZERO);
    let batch = Batch::requests(Time(1_001_000 + 10_000), frames.clone());
    for _ in 0..20 {
        let batch = batch.clone();
        follower.give(replica(0), &Message::Propose { view, slot, batch, decided, history });
        follower.tick();
    }
    assert_eq!(follower.node.report().counters.signatures_verified, 0);
    let batch = Batch::requests(Time(1_000_000 + follower.now_ms), frames);
    follower.give(replica(0), &Message::Propose { view, slot, batch, decided, history });
    assert_eq!(follower.node.report().counters.signatures_verified, 50);
}

#[test]
fn votes_for_states_that_a_laggard_cannot_judge_cost_it_nothing() {
    let mut laggard = Single::new(1);
    let (slot, digest) = (Slot(64), Digest::of(b"state"));
    let signature = sign(0, StatementKind::Checkpoint, View(0), slot, digest);
    laggard.give(replica(0), &Message::Checkpoint { slot, digest, signature });
    for junk in 1..=200 {
        let signature = Signature([junk; 64]);
        laggard.give(replica(3), &Message::Checkpoint { slot, digest, signature });
        laggard.tick();
    }
    assert!(laggard.verified() < 20, "{}", laggard.verified());
}

#[test]
fn who_alone_boasts_of_a_state_makes_others_ask_for_it_now_and_then() {
    let mut victim = Single::new(1);
    let mut asked = 0;
    for _ in 0..200 {
        victim.tick_beside([Slot(0), Slot(0), Slot(0), Slot(500)]);
        let fetches = victim.sent_to(replica(3)).filter(|m| matches!(m, Message::Fetch { .. }));
        let fetches = fetches.count();
        if fetches > asked {
            asked = fetches;
            victim.give(replica(3), &Message::TooOld { checkpoint: Slot(400) });
            victim.end_round();
        }
        assert_eq!(victim.node.report().state, State::Active);
    }
    assert!(asked > 0);
    let queries = victim.sent_to(replica(0)).filter(|m| matches!(m, Message::StateQuery)).count();
    let seconds = victim.now_ms / 1_000;
    assert!(queries as u64 <= seconds / 3 && queries > 0, "{queries} in {seconds} s");
}

/// Else it could stay without one until its locks fit into no view change, and the group would wait
/// for its vote.
#[test]
fn a_laggard_asks_for_the_prefix_that_its_seeder_kept_to_itself() {
    let mut laggard = Single::new(1);
    let last = Slot(limits::WINDOW / 4 + limits::PREFIX_INTERVAL);
    let (decisions, history) = decisions(last, &[0, 2, 3]);
    for some in decisions.chunks(32) {
        laggard.tick_beside([last; 4]);
        let (decisions, prefix) = (some.to_vec(), None);
        let between = vec![];
        laggard.give(replica(2), &Message::Decisions { decisions, prefix, between });
    }
    laggard.tick_beside([last; 4]);
    assert_eq!((laggard.node.report().decided, laggard.node.report().prefix), (last, Slot(0)));
    let queries = |laggard: &Single| {
        laggard.sent_to(replica(0)).filter(|m| matches!(m, Message::StateQuery)).count()
    };
    while queries(&laggard) == 0 {
        laggard.tick_beside([last; 4]);
        assert!(laggard.now_ms < 10_000, "asks nobody");
    }
    assert_eq!(laggard.node.report().state, State::Active, "it needs no state");
    let prefix = prefix(last, history);
    let info = Message::StateInfo { delivered: last, state: None, prefix };
    laggard.give(replica(0), &info);
    assert_eq!(laggard.node.report().prefix, last);
    let asked = queries(&laggard);
    for _ in 0..200 {
        laggard.tick_beside([last; 4]);
    }
    assert_eq!(queries(&laggard), asked, "it has one");
}

/// A prefix proved these slots here, and no later one proves them to anybody who fetches from here.
#[test]
fn what_a_prefix_proved_here_can_be_proven_to_others() {
    let mut laggard = Single::new(1);
    let (all, _) = decisions(Slot(64), &[]);
    for end in [32, 64] {
        laggard.tick_beside([Slot(64); 4]);
        let (_, history) = decisions(Slot(end), &[]);
        let decisions = all[end as usize - 32..end as usize].to_vec();
        let prefix = Some(prefix(Slot(end), history));
        let between = vec![];
        laggard.give(replica(2), &Message::Decisions { decisions, prefix, between });
        laggard.end_round();
    }
    assert_eq!(laggard.node.report().prefix, Slot(64));
    laggard.give(replica(3), &Message::Fetch { from: Slot(1), to: Slot(32) });
    laggard.end_round();
    let mut answers = laggard.sent_to(replica(3)).filter_map(|message| match message {
        Message::Decisions { decisions, prefix, .. } => Some((decisions, prefix)),
        _ => None,
    });
    let (decisions, prefix) = answers.next().unwrap();
    assert_eq!((decisions.len(), decisions[0].slot), (32, Slot(1)));
    assert_eq!(prefix.as_ref().map(|prefix| prefix.slot), Some(Slot(32)));
}

/// Four are answered in a tick, and four ask again in each, before anybody else does.
#[test]
fn four_keys_that_ask_who_is_there_without_end_do_not_take_all_answers() {
    let mut single = Single::new(0);
    let asks = |single: &mut Single, seed: u8| {
        single.give(client(seed), &Message::RollCall { nonce: [seed; 16] });
    };
    let answers = |single: &Single, seed: u8| {
        let sent = single.sent_to(client(seed));
        sent.filter(|message| matches!(message, Message::Present { .. })).count()
    };
    for round in 1..=50 {
        for tick in 0..4 {
            single.tick();
            for seed in (50..54).cycle().take(16) {
                asks(&mut single, seed);
            }
            if tick == 0 {
                asks(&mut single, 54);
            }
        }
        assert_eq!(answers(&single, 54), round);
    }
    let all: Vec<usize> = (50..55).map(|seed| answers(&single, seed)).collect();
    assert!(all.iter().all(|of| *of <= 200), "{all:?}: one in a tick");
    assert!(all.iter().sum::<usize>() <= 4 * 201, "{all:?}");
}
