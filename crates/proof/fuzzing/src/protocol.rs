//! Frames and every message, commands and their outcomes, log records (`crates/core/protocol`).

use crate::memory::Memory;
use crate::{Seed, round_trip, seed};
use bytes::Bytes;
use perdura_protocol::attestation::Attested;
use perdura_protocol::boots::{Announcement, HeldVote, Recalled};
use perdura_protocol::configuration::Member;
use perdura_protocol::message::{Decision, StateCertificate};
use perdura_protocol::statement::{Certificate, StatementKind};
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::vitals::{Condition, DiskSpace, Echo, Presence, Program, Runs, Vitals};
use perdura_protocol::{
    AdminCommand, Batch, BootId, ClientList, ClusterId, Command, Configuration, Context, Decode,
    Digest, Encode, Frame, Message, Outcome, PublicKey, Record, RefusalReason, ReplicaId, Scheme,
    SecretKey, ServiceName, SessionId, Signature, Slot, Time, Versions, View,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);

pub fn message(data: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(data);
    let decoded = Memory::FRAME.hold(data.len(), || Message::from_bytes(bytes.clone()));
    let Ok(message) = decoded else { return false };
    match &message {
        // What a newer program may have added is passed over, and not written again.
        Message::Vitals(_) => {
            assert_eq!(Message::from_bytes(message.to_bytes()).as_ref(), Ok(&message));
            return true;
        }
        message => assert_eq!(message.to_bytes(), bytes, "not encoded as it was"),
    }
    match &message {
        Message::Frame(frame) | Message::Overdue(frame) => look_into(frame),
        Message::Propose { batch, .. } | Message::LockedBatch { batch, .. } => {
            batch.frames().iter().for_each(look_into);
        }
        Message::ViewChange(change) => drop(change.body_digest()),
        Message::NewView(new_view) => drop(new_view.body_digest()),
        _ => {}
    }
    true
}

/// What a replica does with a frame before it knows whether its signature is genuine.
fn look_into(frame: &Frame) {
    let _ = frame.claim(CLUSTER);
    assert_eq!(frame.end_number() - frame.first_number, frame.commands().len() as u64);
    for command in frame.commands() {
        let _ = Command::from_bytes(command);
    }
}

/// In the first byte of a command: a list of clients follows.
const CLIENTS: u8 = 255;

/// The first byte says as what the rest is read.
pub fn command(data: &[u8]) -> bool {
    let Some((kind, rest)) = data.split_first() else { return false };
    if *kind == CLIENTS {
        return round_trip::<ClientList>(Memory::FRAME, rest).is_some();
    }
    match kind % 3 {
        0 => round_trip::<Command>(Memory::FRAME, rest).is_some(),
        1 => round_trip::<Outcome>(Memory::FRAME, rest).is_some(),
        _ => round_trip::<Configuration>(Memory::FRAME, rest).is_some(),
    }
}

pub fn record(data: &[u8]) -> bool {
    let Some(record) = round_trip::<Record>(Memory::FRAME, data) else { return false };
    let _ = (record.slot(), record.voted_slot(), record.batch());
    true
}

fn key() -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [3; 32])
}

fn frame(commands: usize) -> Frame {
    let session = SessionId { client: key().public(), nonce: 1_700_000 };
    let content = Command::Service(Bytes::from_static(b"\x00k1")).to_bytes();
    Frame::build(CLUSTER, session, 3, 7, &vec![content; commands], Some(&key()))
}

fn batch() -> Batch {
    Batch::requests(Time(1_800_000_000_000), vec![frame(1), frame(3)])
}

fn certificate(kind: StatementKind) -> Certificate {
    let context = Context { cluster: CLUSTER, configuration: 2 };
    let statement = context.statement(kind, View(4), Slot(9), batch().digest());
    Certificate::new((0..3).map(|id| (ReplicaId(id), key().sign(&statement))).collect())
}

fn prefix() -> PrefixCertificate {
    PrefixCertificate {
        slot: Slot(64),
        history: Digest::of(b"history"),
        configuration: 2,
        certificate: certificate(StatementKind::Prefix),
    }
}

fn change(sender: u8) -> ViewChange {
    let lock = |slot| Lock {
        slot: Slot(slot),
        view: View(3),
        digest: batch().digest(),
        writes: certificate(StatementKind::Write),
    };
    ViewChange {
        view: View(5),
        sender: ReplicaId(sender),
        configuration: 2,
        prefix: prefix(),
        locks: vec![lock(65), lock(67)],
        signature: Signature([sender; 64]),
    }
}

fn new_view(least: bool) -> NewView {
    let slim = |mut change: ViewChange| {
        if least {
            change.locks.clear();
            change.prefix = PrefixCertificate::genesis();
        }
        change
    };
    NewView {
        view: View(5),
        sender: ReplicaId(1),
        configuration: 2,
        changes: (0..if least { 25 } else { 3 }).map(|sender| slim(change(sender))).collect(),
        signature: Signature([9; 64]),
    }
}

fn replica_messages() -> Vec<Seed> {
    let (view, slot, digest) = (View(4), Slot(9), batch().digest());
    let (history, signature) = (Digest::of(b"history"), Signature([5; 64]));
    let decision =
        |batch| Decision { slot, view, accepts: certificate(StatementKind::Accept), batch };
    let decisions = vec![decision(batch()), decision(Batch::null())];
    let bare = Decision { slot, view, accepts: Certificate::default(), batch: Batch::null() };
    let state = StateCertificate {
        slot,
        digest,
        configuration: 2,
        certificate: certificate(StatementKind::Checkpoint),
    };
    let piece = Bytes::from_static(b"a piece");
    let decided = Slot(8);
    vec![
        seed("frame", &Message::Frame(frame(3))),
        seed("overdue", &Message::Overdue(frame(2))),
        seed("frame_of_empty_commands", &Message::Frame(empty_commands())),
        seed("propose", &Message::Propose { view, slot, batch: batch(), decided, history }),
        seed("write", &Message::Write { view, slot, digest, signature }),
        seed("accept", &Message::Accept { view, slot, digest, signature }),
        seed("decided", &Message::Decided { view, slot, history }),
        seed("prefix", &Message::Prefix { slot, history, signature }),
        seed("status", &Message::Status { view, changing: true, delivered: slot }),
        seed("suspect", &Message::Suspect { view }),
        seed("view_change", &Message::ViewChange(Box::new(change(2)))),
        seed("new_view", &Message::NewView(Box::new(new_view(false)))),
        seed("new_view_of_the_largest_group", &Message::NewView(Box::new(new_view(true)))),
        seed("fetch_batch", &Message::FetchBatch { slot, digest }),
        seed("locked_batch", &Message::LockedBatch { slot, batch: Batch::tick(Time(5)) }),
        seed("fetch", &Message::Fetch { from: slot, to: slot.next() }),
        seed(
            "decisions",
            &Message::Decisions {
                decisions,
                prefix: Some(prefix()),
                between: vec![Digest::of(b"next")],
            },
        ),
        seed(
            "null_decisions",
            &Message::Decisions { decisions: vec![bare; 256], prefix: None, between: vec![] },
        ),
        seed("too_old", &Message::TooOld { checkpoint: slot }),
        seed("checkpoint", &Message::Checkpoint { slot, digest, signature }),
        seed("state_query", &Message::StateQuery),
        seed(
            "state_info",
            &Message::StateInfo { delivered: slot, state: Some(state), prefix: prefix() },
        ),
        seed("fetch_manifest", &Message::FetchManifest { slot }),
        seed("manifest", &Message::Manifest { slot, manifest: piece.clone() }),
        seed("fetch_piece", &Message::FetchPiece { slot, index: 3 }),
        seed("piece", &Message::Piece { slot, index: 3, piece }),
        seed("vitals", &Message::Vitals(Box::new(vitals()))),
        seed("compare", &Message::Compare(announcement().boot)),
        seed("announce", &Message::Announce(announcement())),
        seed("recall", &Message::Recall(Box::new(recalled()))),
        seed("roll_call", &Message::RollCall { nonce: [9; 16] }),
        seed("attested", &Message::Attested(Box::new(attested()))),
        seed("present", &Message::Present { presence: presence(), signature }),
    ]
}

fn attested() -> Attested {
    let leaves = vec![(7, 0, vec![Digest::ZERO]), (9, 1, vec![Digest::ZERO])];
    Attested { nonce: 5, configuration: 1, count: 2, signature: Signature([8; 64]), leaves }
}

fn vitals() -> Vitals {
    Vitals {
        sent_ms: 86_400_000,
        wall: Time(1_800_000_000_000),
        answers: Some(Echo { sent_ms: 86_399_000, held_ms: 40 }),
        condition: Condition::Active,
        view: View(3),
        decided: Slot(640),
        hears: 0b1111,
        flush_ms: 2,
        stalled_ms: 2_000,
        space: Some(DiskSpace { free_mib: 3, size_mib: 4 }),
        trip_ms: 1,
        clock_wrong: false,
        differing: Some(true),
        program: Program::new("0.1.0"),
        runs: Some(Runs {
            service: ServiceName::literal("kv"),
            versions: Versions::FIRST,
            newest: Versions::NEW,
        }),
    }
}

fn announcement() -> Announcement {
    let boot = BootId { number: 3, nonce: [5; 16] };
    Announcement { boot, configuration: 1, signature: Signature([6; 64]) }
}

fn recalled() -> Recalled {
    let announcement = announcement();
    let (asked, replaced) = (announcement.boot, Some(announcement.clone()));
    Recalled { asked, announcement: Some(announcement), replaced, vote: Some(held_vote()) }
}

fn held_vote() -> HeldVote {
    let (view, slot) = (View(2), Slot(40));
    let (digest, signature) = (Digest([1; 32]), Signature([2; 64]));
    HeldVote { view, slot, digest, configuration: 1, signature }
}

fn presence() -> Presence {
    Presence { nonce: [9; 16], configuration: 1, vitals: vitals().to_bytes() }
}

/// The most items for its bytes.
fn empty_commands() -> Frame {
    let session = SessionId { client: key().public(), nonce: 1 };
    Frame::build(CLUSTER, session, 0, 1, &vec![Bytes::new(); 1024], None)
}

pub fn messages() -> Vec<Seed> {
    let mut seeds = replica_messages();
    let outcomes = outcomes().into_iter().map(|(_, outcome)| outcome).zip(7..);
    let outcomes = outcomes.map(|(outcome, number)| (number, outcome)).collect();
    let (view, nonce) = (View(4), 1_700_000);
    let opened = (0..1024).map(|number| (number, Outcome::Opened)).collect();
    seeds.extend([
        seed("attach", &Message::Attach { nonce }),
        seed("welcome", &Message::Welcome { view }),
        seed("read", &Message::Read { id: 4, command: Bytes::from_static(b"\x01\x00k1") }),
        seed(
            "read_at",
            &Message::ReadAt { id: 5, slot: Slot(9), command: Bytes::from_static(b"\x01\x00k1") },
        ),
        seed("read_reply", &Message::ReadReply { id: 4, slot: Slot(9), outcome: None }),
        seed("replies", &Message::Replies { view, nonce, outcomes }),
        seed("many_replies", &Message::Replies { view, nonce, outcomes: opened }),
        seed("busy", &Message::Busy { nonce, first_number: 7 }),
    ]);
    seeds
}

fn outcomes() -> Vec<(&'static str, Outcome)> {
    let refused = Outcome::Refused;
    vec![
        ("opened", Outcome::Opened),
        ("reply", Outcome::Service(Bytes::from_static(b"\x02value"))),
        ("administered", Outcome::Administered { configuration: 3, from_slot: 77 }),
        ("unknown_client", refused(RefusalReason::UnknownClient)),
        ("not_administrator", refused(RefusalReason::NotAdministrator)),
        ("window_exceeded", refused(RefusalReason::WindowExceeded)),
        ("malformed", refused(RefusalReason::Malformed)),
        ("contradiction", refused(RefusalReason::Contradiction("no client \u{e9}".into()))),
        ("refused_by_the_service", refused(RefusalReason::Service("too large".into()))),
        ("too_old", Outcome::TooOld),
        ("waits", Outcome::Waits),
        (
            "offered",
            Outcome::Waited {
                outcome: Box::new(Outcome::Service(Bytes::from_static(b"\x02value"))),
                offer: true,
            },
        ),
        (
            "waited",
            Outcome::Waited { outcome: Box::new(refused(RefusalReason::Withdrawn)), offer: false },
        ),
        ("too_large", Outcome::TooLarge { bytes: 7 << 20 }),
        ("no_session", Outcome::NoSession),
        ("told", Outcome::Told(clients().to_bytes())),
    ]
}

fn clients() -> ClientList {
    let client = |name: &str, byte| (name.to_owned(), PublicKey([byte; 32]));
    ClientList(vec![client("a client", 4), client("b", 5)])
}

pub fn commands() -> Vec<Seed> {
    let with = |kind: u8, (name, bytes): Seed| (name, [&[kind], &bytes[..]].concat());
    let admin = |command| Command::Admin(command).to_bytes();
    let (name, key) = ("a client".to_owned(), PublicKey([4; 32]));
    let added = AdminCommand::AddClient { name: name.clone(), key };
    let replaced = AdminCommand::ReplaceReplica { replica: ReplicaId(2), incarnation: 1, key };
    let members = (0..4).map(|id| Member { key: PublicKey([id; 32]), incarnation: 0 }).collect();
    let configuration = Configuration { id: 1, from_slot: Slot(70), members };
    let mut seeds = vec![
        with(0, seed("open", &Command::Open)),
        with(0, seed("service", &Command::Service(Bytes::from_static(b"\x00k1")))),
        with(0, seed("withdraw", &Command::Withdraw { number: 7 })),
        with(0, seed("confirm", &Command::Confirm { number: 7 })),
        with(0, ("add_client", admin(added).to_vec())),
        with(0, ("revoke_client", admin(AdminCommand::RevokeClient { name }).to_vec())),
        with(0, ("replace_replica", admin(replaced).to_vec())),
        with(0, ("raise_versions", admin(AdminCommand::RaiseVersions(Versions::NEW)).to_vec())),
        with(0, ("raise_limit", admin(AdminCommand::RaiseStateLimit { bytes: 1 << 40 }).to_vec())),
        with(0, ("list_clients", admin(AdminCommand::ListClients).to_vec())),
        with(0, ("rotate", admin(AdminCommand::ReplaceAdministrator { key }).to_vec())),
        with(2, seed("configuration", &configuration)),
        with(CLIENTS, seed("clients", &clients())),
    ];
    seeds.extend(outcomes().iter().map(|(name, outcome)| with(1, seed(name, outcome))));
    seeds
}

pub fn records() -> Vec<Seed> {
    let (view, slot, history) = (View(4), Slot(9), Digest::of(b"history"));
    let (writes, accepts) = (certificate(StatementKind::Write), certificate(StatementKind::Accept));
    let members = (0..4).map(|id| Member { key: PublicKey([id; 32]), incarnation: 0 }).collect();
    let configuration = Configuration { id: 1, from_slot: Slot(70), members };
    let (digest, replica, key) = (batch().digest(), ReplicaId(2), PublicKey([4; 32]));
    vec![
        seed("view", &Record::View(view)),
        seed("vote", &Record::Vote { view, slot, batch: batch(), writes }),
        seed(
            "decision",
            &Record::Decision { slot, view, batch: Batch::null(), accepts: accepts.clone() },
        ),
        seed("accepts", &Record::Accepts { slot, view, digest, accepts }),
        seed("delivered", &Record::Delivered { slot, history }),
        seed("prefix", &Record::Prefix(prefix())),
        seed("configuration", &Record::Configuration(configuration)),
        seed("boot", &Record::Boot { replica, key, announcement: announcement() }),
        seed("heard", &Record::Heard { replica, key, vote: held_vote() }),
    ]
}
