//! A replica's state as it is fetched from peers: its manifest and its pieces (`crates/core/execution`,
//! and the store's segments).

use crate::memory::Memory;
use crate::{Seed, seed};
use bytes::Bytes;
use perdura_execution::{Entry, Genesis, Machine, Manifest};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::fields::Fields;
use perdura_protocol::{
    AdminCommand, Batch, ClusterId, Command, Configuration, Digest, Encode, Faults, Frame,
    PublicKey, SessionId, Slot, Time, Versions,
};
use perdura_store::{Store, StoreCommand};

const ADMINISTRATOR: PublicKey = PublicKey([200; 32]);
const ALICE: PublicKey = PublicKey([1; 32]);

fn parameters(versions: Versions) -> Parameters {
    Parameters {
        versions,
        ..Parameters::small(ClusterId([7; 16]), Faults::new(1, 1).expect("in range"), ADMINISTRATOR)
    }
}

fn machine(versions: Versions) -> Machine<Store> {
    let member = |id: u8| Member { key: PublicKey([100 + id; 32]), incarnation: 0 };
    let members = (0..4).map(member).collect();
    let genesis = Genesis {
        configuration: Configuration { id: 0, from_slot: Slot(0), members },
        clients: vec![("alice".into(), ALICE)],
    };
    Machine::new(&parameters(versions), genesis, Store::new(1 << 30)).expect("a good genesis")
}

/// A machine with sessions, clients, a pending configuration and entries.
fn used_machine(versions: Versions) -> Machine<Store> {
    let mut machine = machine(versions);
    let cluster = parameters(versions).cluster;
    let mut slot = Slot(0);
    let mut run = |client: PublicKey, acked: u64, first: u64, commands: &[Command]| {
        let session = SessionId { client, nonce: 5 };
        let commands: Vec<Bytes> = commands.iter().map(Encode::to_bytes).collect();
        let frame = Frame::build(cluster, session, acked, first, &commands, None);
        slot = slot.next();
        machine.execute(slot, &Batch::requests(Time(1000 + slot.0), vec![frame]));
    };
    let put = |key: &'static str, value: &'static str| {
        let (key, value) = (Bytes::from_static(key.as_bytes()), value.as_bytes().into());
        Command::Service(StoreCommand::Put { key, value }.to_bytes())
    };
    run(ALICE, 0, 0, &[Command::Open]);
    run(ALICE, 1, 1, &[put("a", "1"), put("b", "2"), Command::Service(Bytes::new())]);
    run(ADMINISTRATOR, 0, 0, &[Command::Open]);
    let (name, key) = ("bob".to_owned(), PublicKey([2; 32]));
    let added = AdminCommand::AddClient { name: name.clone(), key };
    let replaced = AdminCommand::ReplaceReplica {
        replica: perdura_protocol::ReplicaId(2),
        incarnation: 1,
        key: PublicKey([9; 32]),
    };
    run(ADMINISTRATOR, 1, 1, &[Command::Admin(added), Command::Admin(replaced)]);
    run(ADMINISTRATOR, 1, 3, &[Command::Admin(AdminCommand::RevokeClient { name })]);
    // Under the first rules these are malformed.
    let limit = AdminCommand::RaiseStateLimit { bytes: 1 << 31 };
    let key = PublicKey([7; 32]);
    for (number, command) in
        (4..).zip([limit, AdminCommand::ListClients, AdminCommand::ReplaceAdministrator { key }])
    {
        run(ADMINISTRATOR, 1, number, &[Command::Admin(command)]);
    }
    machine
}

pub fn manifest(data: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(data);
    let read = Memory::FRAME.hold(data.len(), || Manifest::read(bytes.clone()));
    let Ok(manifest) = read else { return false };
    assert_eq!(manifest.to_bytes(), bytes, "not encoded as it was");
    assert_eq!(manifest.digest(), Manifest::digest_of(data));
    let _ = (manifest.segments(), manifest.total_bytes());
    true
}

pub fn manifests() -> Vec<Seed> {
    vec![
        seed("fresh", &machine(Versions::NEW).snapshot().manifest()),
        seed("used", &used_machine(Versions::NEW).snapshot().manifest()),
        seed("first_rules", &used_machine(Versions::FIRST).snapshot().manifest()),
    ]
}

/// In the byte with the number of sessions.
const NEWEST_RULES: u8 = 0x80;

/// Pieces as they come: a byte with the number of sessions (its highest bit: under the newest rules), then each piece with its length. Their
/// manifest is made to fit, as a certificate of a wrong state would; what is restored gives the same
/// pieces again.
pub fn state(data: &[u8]) -> bool {
    let Some((sessions, mut rest)) = data.split_first() else { return false };
    let mut pieces = Vec::new();
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let length = (u32::from_le_bytes(*length) as usize).min(more.len());
        let (piece, after) = more.split_at(length);
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    let mut encoded = Vec::new();
    let newest = sessions & NEWEST_RULES != 0;
    let sessions = u32::from(sessions & !NEWEST_RULES);
    let (slot, history) = (Slot(9), Digest::of(b"history"));
    if newest {
        let mut fields = Fields::default();
        fields.require("slot", &slot);
        fields.require("history", &history);
        fields.require("sessions", &sessions);
        fields.require("rules", &Versions::NEW.rules);
        fields.require("service-version", &Versions::NEW.service);
        Slot(u64::MAX).encode(&mut encoded);
        fields.encode(&mut encoded);
    } else {
        slot.encode(&mut encoded);
        history.encode(&mut encoded);
        sessions.encode(&mut encoded);
    }
    (pieces.len() as u32).encode(&mut encoded);
    pieces.iter().for_each(|piece| Entry::of(piece).encode(&mut encoded));
    let Ok(manifest) = Manifest::read(encoded.into()) else { return false };
    // Entries in trees of shared nodes, which are half empty at first.
    let memory = Memory { times: 6, plus: 256 * 1024 };
    let restored = memory.hold(data.len(), || {
        Machine::restore(&parameters(Versions::NEW), &manifest, pieces.clone(), Store::new(1 << 30))
    });
    let Ok(restored) = restored else { return false };
    let snapshot = restored.snapshot();
    let again: Vec<Bytes> = (0..snapshot.pieces()).map(|index| snapshot.piece(index)).collect();
    assert_eq!(again, pieces, "the restored machine gives other pieces");
    true
}

pub fn states() -> Vec<Seed> {
    let pieces = |machine: Machine<Store>| {
        let snapshot = machine.snapshot();
        let manifest = snapshot.manifest();
        let rules = if manifest.versions.rules == 0 { 0 } else { NEWEST_RULES };
        let mut out = vec![manifest.sessions() as u8 | rules];
        for index in 0..snapshot.pieces() {
            let piece = snapshot.piece(index);
            (piece.len() as u32).encode(&mut out);
            out.extend_from_slice(&piece);
        }
        out
    };
    vec![
        ("fresh", pieces(machine(Versions::NEW))),
        ("used", pieces(used_machine(Versions::NEW))),
        ("first_rules", pieces(used_machine(Versions::FIRST))),
    ]
}
