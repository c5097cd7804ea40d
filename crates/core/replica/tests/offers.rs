//! Which state a replica offers to others, and with which proof (D7, D8). Time is virtual.

use crate::common;
use crate::common::CLUSTER;
use bytes::Bytes;
use perdura_execution::{Machine, Manifest, StateSnapshot};
use perdura_protocol::configuration::Schedule;
use perdura_protocol::fields::Fields;
use perdura_protocol::message::{Decision, StateCertificate};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Configuration, Context, Decode, Digest, Encode, Message, Reader, Record,
    ReplicaId, Scheme, SecretKey, Signature, Slot, Time, View,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer};
use perdura_store::Store;

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn sign(id: u8, kind: StatementKind, slot: Slot, digest: Digest) -> Signature {
    sign_in(0, id, kind, slot, digest)
}

fn sign_in(
    configuration: u64,
    id: u8,
    kind: StatementKind,
    slot: Slot,
    digest: Digest,
) -> Signature {
    let context = Context { cluster: CLUSTER, configuration };
    let key = SecretKey::from_seed(Scheme::KeyedHash, [10 + id; 32]);
    key.sign(&context.statement(kind, View(0), slot, digest))
}

fn certificate(ids: &[u8], kind: StatementKind, slot: Slot, digest: Digest) -> Certificate {
    let one = |id: &u8| (ReplicaId(*id), sign(*id, kind, slot, digest));
    Certificate::new(ids.iter().map(one).collect())
}

fn boot() -> Boot {
    common::boot(0, Scheme::KeyedHash, (1, 1), Vec::new())
}

/// The states after slots 1 and 2, and the history up to there.
fn states() -> ([StateSnapshot; 2], Digest) {
    let Boot { parameters, genesis, .. } = boot();
    let mut machine = Machine::new(&parameters, genesis, Store::new(1 << 30)).unwrap();
    let states = [1, 2].map(|slot| {
        machine.execute(Slot(slot), &Batch::tick(Time(1_000_000 + slot)));
        machine.snapshot()
    });
    (states, machine.history())
}

fn stored(snapshot: &StateSnapshot) -> (Manifest, Vec<Bytes>) {
    let pieces = (0..snapshot.pieces()).map(|index| snapshot.piece(index)).collect();
    (snapshot.manifest(), pieces)
}

/// Replica 0 of four after a restart: it has stored the states after both slots, and its log proves
/// the first one, and the history.
fn restarted() -> Node {
    let ([first, second], history) = states();
    let digest = first.manifest().digest();
    let state = StateCertificate {
        slot: Slot(1),
        digest,
        configuration: 0,
        certificate: certificate(&[0, 3], StatementKind::Checkpoint, Slot(1), digest),
    };
    let prefix = PrefixCertificate {
        slot: Slot(2),
        history,
        configuration: 0,
        certificate: certificate(&[0, 3], StatementKind::Prefix, Slot(2), history),
    };
    let boot = Boot {
        found: Found {
            checkpoint: Some(stored(&second)),
            proven: Some(stored(&first)),
            records: vec![Record::State(state), Record::Prefix(prefix)],
            ..Found::default()
        },
        ..boot()
    };
    let mut node = Node::boot(boot, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    said(&mut node, 10_000);
    node
}

fn said(node: &mut Node, ms: u64) -> Vec<Message> {
    node.flush(now(ms));
    let mut said = Vec::new();
    while let Some(output) = node.next_output() {
        if let Output::Send { bytes, .. } = output {
            said.push(Message::from_bytes(bytes).unwrap());
        }
    }
    said
}

/// It makes a machine of the pieces that came.
fn restore(node: &mut Node, ms: u64) {
    node.flush(now(ms));
    let mut outputs = std::iter::from_fn(|| node.next_output());
    let restoration = outputs.find_map(|output| match output {
        Output::RestoreState(restoration) => Some(restoration),
        _ => None,
    });
    restoration.expect("all pieces are here").run();
    node.handle(now(ms), Input::StateRestored);
}

/// What it answers to replica 1.
fn ask(node: &mut Node, ms: u64, message: &Message) -> Vec<Message> {
    tell(node, ms, 1, message);
    said(node, ms)
}

fn tell(node: &mut Node, ms: u64, from: u8, message: &Message) {
    let (peer, bytes) = (Peer::Replica(ReplicaId(from)), message.to_bytes());
    node.handle(now(ms), Input::Message { peer, bytes });
}

fn offered(said: Vec<Message>) -> StateCertificate {
    let offers = said.into_iter().filter_map(|message| match message {
        Message::StateInfo { state, .. } => state,
        _ => None,
    });
    offers.last().expect("it offers a state")
}

/// Replica 3, which certified the first state with it, has lost its disk, and the others have not
/// come as far as the second: without the first one they would get nothing from anybody.
#[test]
fn after_a_restart_the_state_is_offered_that_the_log_proves() {
    let mut node = restarted();
    let offer = offered(ask(&mut node, 10_100, &Message::StateQuery));
    assert_eq!(offer.slot, Slot(1));
    let manifest = ask(&mut node, 10_200, &Message::FetchManifest { slot: Slot(1) });
    let digest = manifest.into_iter().find_map(|message| match message {
        Message::Manifest { manifest, .. } => Manifest::read(manifest).ok(),
        _ => None,
    });
    assert_eq!(digest.map(|manifest| manifest.digest()), Some(offer.digest));
}

/// Who was away while replica 1 was replaced knows the new key of replica 1 no more than its vote.
#[test]
fn a_certificate_has_the_signatures_of_all_who_voted() {
    let mut node = restarted();
    let (slot, digest) = (Slot(2), states().0[1].manifest().digest());
    let vote = |id: u8, signature| (id, Message::Checkpoint { slot, digest, signature });
    let genuine = |id: u8| vote(id, sign(id, StatementKind::Checkpoint, slot, digest));
    for (id, message) in
        [genuine(1), vote(3, sign(2, StatementKind::Checkpoint, slot, digest)), genuine(2)]
    {
        tell(&mut node, 10_050, id, &message);
    }
    let offer = offered(ask(&mut node, 10_100, &Message::StateQuery));
    let signers: Vec<u8> = offer.certificate.signatures().iter().map(|(id, _)| id.0).collect();
    assert_eq!((offer.slot, signers), (slot, vec![0, 1, 2]));
    for (id, signature) in offer.certificate.signatures() {
        assert_eq!(*signature, sign(id.0, StatementKind::Checkpoint, slot, digest));
    }
}

/// Votes may be lost, and those from before a restart are gone: an idle group could give its state to
/// nobody.
#[test]
fn who_asks_for_a_state_is_told_the_votes_for_one_that_is_not_certified() {
    let mut node = restarted();
    for ms in [11_000, 12_000] {
        let said = ask(&mut node, ms, &Message::StateQuery);
        let vote = |message: &Message| matches!(message, Message::Checkpoint { slot: Slot(2), .. });
        assert!(said.iter().any(vote), "{said:?}");
    }
}

/// What a liar put into a certificate beside enough genuine signatures is not passed on, and takes
/// nobody's place.
#[test]
fn a_false_signature_in_the_certificate_of_a_transferred_state_is_left_out() {
    let ([_, state], history) = states();
    let (manifest, pieces) = stored(&state);
    let (slot, digest) = (manifest.slot, manifest.digest());
    let signed = |kind, digest, false_one: Option<Signature>| {
        let own = |id: u8| (ReplicaId(id), sign(id, kind, slot, digest));
        let other = (ReplicaId(2), false_one.unwrap_or_else(|| own(2).1));
        Certificate::new(vec![own(1), other, own(3)])
    };
    let false_one = sign(1, StatementKind::Checkpoint, slot, digest);
    let certificate = signed(StatementKind::Checkpoint, digest, Some(false_one));
    let offer = StateCertificate { slot, digest, configuration: 0, certificate };
    let certificate = signed(StatementKind::Prefix, history, None);
    let prefix = PrefixCertificate { slot, history, configuration: 0, certificate };
    let found = Found { vote_after: slot, state_from: slot, lost: Some(slot), ..Found::default() };
    let mut node = Node::boot(Boot { found, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    said(&mut node, 10_000);
    for id in 1..4 {
        let (state, prefix) = (Some(offer.clone()), prefix.clone());
        tell(&mut node, 10_010, id, &Message::StateInfo { delivered: slot, state, prefix });
    }
    let seeder = asked_for_manifest(&mut node, 10_010);
    let bytes = manifest.to_bytes();
    tell(&mut node, 10_020, seeder, &Message::Manifest { slot, manifest: bytes });
    for (index, piece) in (0..).zip(pieces) {
        tell(&mut node, 10_030, seeder, &Message::Piece { slot, index, piece });
    }
    restore(&mut node, 10_030);
    said(&mut node, 10_030);
    node.handle(now(10_040), Input::CheckpointStored { manifest });
    let signers = |node: &mut Node, ms| {
        let offer = offered(ask(node, ms, &Message::StateQuery));
        let genuine = |(id, one): &(ReplicaId, Signature)| {
            assert_eq!(*one, sign(id.0, StatementKind::Checkpoint, slot, digest));
            id.0
        };
        offer.certificate.signatures().iter().map(genuine).collect::<Vec<u8>>()
    };
    assert_eq!(signers(&mut node, 10_050), [1, 3]);
    let signature = sign(2, StatementKind::Checkpoint, slot, digest);
    tell(&mut node, 10_060, 2, &Message::Checkpoint { slot, digest, signature });
    assert_eq!(signers(&mut node, 11_000), [1, 2, 3]);
}

/// Whether a replica fetches a state after slot 2 that all others sign in `configuration`. Its file knows
/// configuration 5, which governs from slot 1; that is all that it knows if it lost its state, and one that
/// was `away` has executed nothing since configuration 0.
fn fetches_a_state_of(configuration: u64, away: bool) -> bool {
    let ([_, state], history) = states();
    let (slot, digest) = (Slot(2), state.manifest().digest());
    let latest = Configuration { id: 5, from_slot: Slot(1), ..boot().latest };
    let lost = Found { vote_after: slot, state_from: slot, lost: Some(slot), ..Found::default() };
    let found = if away { Found::default() } else { lost };
    let mut node = Node::boot(Boot { found, latest, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    if away {
        sent_after_a_state(&mut node, slot);
    }
    said(&mut node, 10_500);
    let signed = |kind, digest| {
        let one = |id| (ReplicaId(id), sign_in(configuration, id, kind, slot, digest));
        Certificate::new((1..4).map(one).collect())
    };
    let certificate = signed(StatementKind::Checkpoint, digest);
    let state = StateCertificate { slot, digest, configuration, certificate };
    let certificate = signed(StatementKind::Prefix, history);
    let prefix = PrefixCertificate { slot, history, configuration, certificate };
    for id in 1..4 {
        let (state, prefix) = (Some(state.clone()), prefix.clone());
        tell(&mut node, 10_510, id, &Message::StateInfo { delivered: slot, state, prefix });
    }
    manifest_asked_for(&mut node, 10_510).is_some()
}

/// The others have a state, and no log before it.
fn sent_after_a_state(node: &mut Node, checkpoint: Slot) {
    let status = Message::Status { view: View(0), changing: false, delivered: checkpoint };
    let asked = (1..5).find_map(|step| {
        let ms = 10_000 + 100 * step;
        (1..4).for_each(|id| tell(node, ms, id, &status));
        asked(node, ms, |message| matches!(message, Message::Fetch { .. }))
    });
    let asked = asked.expect("it asks for what it missed");
    tell(node, 10_450, asked, &Message::TooOld { checkpoint });
    let asks = |message: &Message| matches!(message, Message::StateQuery);
    assert!(said(node, 10_450).iter().any(asks), "it asks for a state");
}

/// The key of a replica that was replaced is void: with it, one liar would be m + 1 in a configuration
/// that is over. Numbers above what is known may be right, for this replica was away.
#[test]
fn a_state_is_signed_in_the_configuration_that_governs_its_slot() {
    for away in [false, true] {
        let of = |configuration| fetches_a_state_of(configuration, away);
        assert!(of(5) && of(6), "away: {away}");
        assert!(!of(4) && !of(0), "away: {away}");
    }
}

/// Accepts of three of four about the first slot or the second, as from who decided it.
fn decision(slot: u64) -> Message {
    let (slot, batch) = (Slot(slot), Batch::tick(Time(1_000_000 + slot)));
    let accepts = certificate(&[1, 2, 3], StatementKind::Accept, slot, batch.digest());
    let decisions = vec![Decision { slot, view: View(0), accepts, batch }];
    Message::Decisions { decisions, prefix: None, between: vec![] }
}

/// The log is slow: the state of the boundary at slot 1 waits for it, and while it does a transferred
/// one may go to disk, that at slot 2. Gives what goes to the disk once the log is there.
fn stored_late(transferred: bool) -> Vec<Slot> {
    let Boot { mut parameters, .. } = boot();
    (parameters.checkpoint_interval, parameters.schedule) = (1, Schedule::Coordinated);
    let found = Found { vote_after: Slot(2), state_from: Slot(2), ..Found::default() };
    let mut node = Node::boot(Boot { found, parameters, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    tell(&mut node, 10_005, 1, &decision(1));
    let mut marks = Vec::new();
    let mut appended = |node: &mut Node| {
        node.flush(now(10_005));
        while let Some(output) = node.next_output() {
            if let Output::Append { mark, .. } = output {
                marks.push(mark);
            }
        }
    };
    appended(&mut node);
    if transferred {
        return transfer(&mut node, &[1, 2, 3]);
    }
    let mark = marks.last().copied().expect("it logs the slot");
    node.handle(now(10_050), Input::Persisted(mark));
    node.flush(now(10_050));
    std::iter::from_fn(|| node.next_output()).filter_map(|output| own_stored(&output)).collect()
}

fn own_stored(output: &Output) -> Option<Slot> {
    match output {
        Output::StoreCheckpoint { snapshot, .. } => Some(snapshot.slot()),
        _ => None,
    }
}

/// It is given the state after slot 2, certified by `signers`, and has made a machine of it.
fn take_over(node: &mut Node, signers: &[u8]) {
    let ([_, state], history) = states();
    let (manifest, pieces) = stored(&state);
    let (slot, digest) = (manifest.slot, manifest.digest());
    let signed = |kind, digest| certificate(signers, kind, slot, digest);
    let certificate = signed(StatementKind::Checkpoint, digest);
    let state = Some(StateCertificate { slot, digest, configuration: 0, certificate });
    let certificate = signed(StatementKind::Prefix, history);
    let prefix = PrefixCertificate { slot, history, configuration: 0, certificate };
    for id in 1..4 {
        let (state, prefix) = (state.clone(), prefix.clone());
        tell(node, 10_010, id, &Message::StateInfo { delivered: slot, state, prefix });
    }
    let seeder = asked_for_manifest(node, 10_010);
    let bytes = manifest.to_bytes();
    tell(node, 10_020, seeder, &Message::Manifest { slot, manifest: bytes });
    for (index, piece) in (0..).zip(pieces) {
        tell(node, 10_030, seeder, &Message::Piece { slot, index, piece });
    }
    restore(node, 10_030);
}

/// The same, and the state is on its way to its disk then, once the log is there. Gives what of its own goes there.
fn transfer(node: &mut Node, signers: &[u8]) -> Vec<Slot> {
    take_over(node, signers);
    node.flush(now(10_030));
    let outputs: Vec<Output> = std::iter::from_fn(|| node.next_output()).collect();
    let installs = |output: &Output| matches!(output, Output::InstallCheckpoint { .. });
    assert!(!outputs.iter().any(installs), "its certificate is in the log first");
    let marks = outputs.iter().filter_map(appended);
    node.handle(now(10_040), Input::Persisted(marks.last().expect("it logs the certificate")));
    let outputs: Vec<Output> = std::iter::from_fn(|| node.next_output()).collect();
    assert!(outputs.iter().any(installs));
    outputs.iter().filter_map(own_stored).collect()
}

/// Stored after a newer one it would stop the replica.
#[test]
fn a_state_that_waited_for_the_log_gives_way_to_a_newer_one_on_its_way_to_the_disk() {
    assert_eq!(stored_late(false), [Slot(1)]);
    assert_eq!(stored_late(true), []);
}

/// Behind the newer one the older one would stop the replica.
#[test]
fn a_state_taken_over_goes_to_disk_before_a_later_own_one_that_waits_for_the_same_flush() {
    let Boot { mut parameters, .. } = boot();
    (parameters.checkpoint_interval, parameters.schedule) = (3, Schedule::Coordinated);
    let found = Found { vote_after: Slot(2), state_from: Slot(2), ..Found::default() };
    let mut node = Node::boot(Boot { found, parameters, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    said(&mut node, 10_005);
    take_over(&mut node, &[1, 2, 3]);
    (1..4).for_each(|slot| tell(&mut node, 10_035, 1, &decision(slot)));
    node.flush(now(10_035));
    let outputs: Vec<Output> = std::iter::from_fn(|| node.next_output()).collect();
    let marks: Vec<u64> = outputs.iter().filter_map(appended).collect();
    assert!(outputs.iter().filter_map(to_disk).next().is_none(), "the log is not there");
    node.handle(now(10_040), Input::Persisted(*marks.last().expect("it logs the slots")));
    node.flush(now(10_040));
    let stored: Vec<Slot> =
        std::iter::from_fn(|| node.next_output()).filter_map(|output| to_disk(&output)).collect();
    assert_eq!(stored, [Slot(2), Slot(3)]);
}

fn appended(output: &Output) -> Option<u64> {
    match output {
        Output::Append { mark, .. } => Some(*mark),
        _ => None,
    }
}

/// The slot of a state that goes to disk, its own or one taken over.
fn to_disk(output: &Output) -> Option<Slot> {
    match output {
        Output::InstallCheckpoint { manifest, .. } => Some(manifest.slot),
        other => own_stored(other),
    }
}

/// A replica gets to a state by itself while it stores what was transferred: the signatures that it has
/// collected stay, though fewer came with that.
#[test]
fn a_transferred_certificate_takes_no_signature_away() {
    let mut parameters = boot().parameters;
    (parameters.checkpoint_interval, parameters.schedule) = (2, Schedule::Coordinated);
    let found = Found { vote_after: Slot(2), state_from: Slot(2), ..Found::default() };
    let mut node = Node::boot(Boot { found, parameters, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    tell(&mut node, 10_005, 1, &decision(1));
    said(&mut node, 10_005);
    transfer(&mut node, &[1, 3]);
    tell(&mut node, 10_040, 1, &decision(2));
    let ([_, state], _) = states();
    let manifest = state.manifest();
    let (slot, digest) = (manifest.slot, manifest.digest());
    for id in [2, 3] {
        let signature = sign(id, StatementKind::Checkpoint, slot, digest);
        tell(&mut node, 10_050, id, &Message::Checkpoint { slot, digest, signature });
    }
    node.handle(now(10_060), Input::CheckpointStored { manifest });
    let offer = offered(ask(&mut node, 10_070, &Message::StateQuery));
    let signers: Vec<u8> = offer.certificate.signatures().iter().map(|(id, _)| id.0).collect();
    assert_eq!(signers, [0, 1, 2, 3]);
}

/// A manifest as of a newer program: under newer rules, or with a field that may not be passed over.
fn newer(manifest: &Manifest, rules: bool) -> Bytes {
    if rules {
        let mut newer = manifest.clone();
        newer.versions.rules += 1;
        return newer.to_bytes();
    }
    let mut reader = Reader::new(manifest.to_bytes());
    let mut out = reader.take(8).unwrap().to_vec();
    let mut fields = Fields::decode(&mut reader).unwrap();
    fields.require("colour", &7u8);
    fields.encode(&mut out);
    let rest = reader.remaining();
    out.extend_from_slice(&reader.take(rest).unwrap());
    out.into()
}

/// Why a replica halts that asks for a state and is sent such a manifest; none if it asks another one.
fn halts_on(rules: bool, certified: bool) -> Option<String> {
    let found = Found { vote_after: Slot(2), state_from: Slot(2), ..Found::default() };
    let mut node = Node::boot(Boot { found, ..boot() }, now(10_000)).unwrap();
    for id in 1..4 {
        node.handle(now(10_000), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    said(&mut node, 10_005);
    let ([_, state], history) = states();
    let manifest = state.manifest();
    let (slot, bytes) = (manifest.slot, newer(&manifest, rules));
    let digest = if certified { Manifest::digest_of(&bytes) } else { manifest.digest() };
    let signed = |kind, digest| certificate(&[1, 2, 3], kind, slot, digest);
    let state = signed(StatementKind::Checkpoint, digest);
    let state = Some(StateCertificate { slot, digest, configuration: 0, certificate: state });
    let prefix = signed(StatementKind::Prefix, history);
    let prefix = PrefixCertificate { slot, history, configuration: 0, certificate: prefix };
    for id in 1..4 {
        let (state, prefix) = (state.clone(), prefix.clone());
        tell(&mut node, 10_010, id, &Message::StateInfo { delivered: slot, state, prefix });
    }
    let seeder = asked_for_manifest(&mut node, 10_010);
    tell(&mut node, 10_020, seeder, &Message::Manifest { slot, manifest: bytes });
    node.flush(now(10_020));
    let mut why = None;
    let mut other = None;
    while let Some(output) = node.next_output() {
        match output {
            Output::Halt(words) => why = Some(words),
            Output::Send { peers, bytes, .. } => {
                let fetches =
                    matches!(Message::from_bytes(bytes), Ok(Message::FetchManifest { .. }));
                other = other.or(fetches.then(|| peers.clone()));
            }
            _ => {}
        }
    }
    assert_eq!(other.is_some(), !certified, "it goes on with another one, or not at all");
    why
}

/// One liar sends away nobody who is able to go on; a group that has gone on does.
#[test]
fn a_newer_programs_state_ends_a_replica_only_if_it_is_certified() {
    for rules in [false, true] {
        assert_eq!(halts_on(rules, false), None);
        let why = halts_on(rules, true).expect("it cannot go on");
        let newest = format!("up to {}; update", perdura_protocol::versions::RULES);
        assert!(why.contains(if rules { &newest } else { "\"colour\"" }), "{why}");
    }
}

fn asked_for_manifest(node: &mut Node, ms: u64) -> u8 {
    manifest_asked_for(node, ms).expect("it asks for a manifest")
}

fn manifest_asked_for(node: &mut Node, ms: u64) -> Option<u8> {
    asked(node, ms, |message| matches!(message, Message::FetchManifest { .. }))
}

/// Whom it sends such a message, and nobody else.
fn asked(node: &mut Node, ms: u64, such: impl Fn(&Message) -> bool) -> Option<u8> {
    node.flush(now(ms));
    let mut asked = None;
    while let Some(output) = node.next_output() {
        if let Output::Send { peers, bytes, .. } = output
            && such(&Message::from_bytes(bytes).unwrap())
            && let [Peer::Replica(id)] = peers[..]
        {
            asked = Some(id.0);
        }
    }
    asked
}
