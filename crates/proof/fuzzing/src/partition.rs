//! Commands and replies of a partition of a store (`crates/services/store/src/partition`), and its state.

use crate::memory::Memory;
use crate::{Seed, round_trip, seed};
use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Service, Standing};
use perdura_protocol::attestation::attest;
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::{
    ClusterId, Digest, Encode, Faults, Map, PartitionId, PublicKey, ReplicaId, Scheme, SecretKey,
    SessionId, Slot, Time,
};
use perdura_store::partition::{
    Certificate, Fence, Intent, Members, Participant, PartitionCommand, PartitionReply, Signed,
    Statement, StorePartition, Wanted, digest_of_part,
};
use perdura_store::{Operation, Store};
use std::sync::Arc;

const SCHEME: Scheme = Scheme::KeyedHash;

const CLIENT: SessionId = SessionId { client: PublicKey([1; 32]), nonce: 1 };

const NOW: Time = Time(10_000_000);

fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: NOW,
        clock: NOW,
        session: CLIENT,
        number: 1,
        cluster: ClusterId([1; 16]),
        batch: Digest::ZERO,
        administrator: SecretKey::from_seed(SCHEME, [200; 32]).public(),
        other: Some(Standing::Open),
        meter: Default::default(),
    }
}

fn key(group: u16, member: u8) -> SecretKey {
    SecretKey::from_seed(SCHEME, [16 * (group as u8 + 1) + member; 32])
}

/// Two partitions: keys below `n` are the first one's.
fn map() -> Arc<Map> {
    let (cluster, faults) = (ClusterId([1; 16]), Faults::new(1, 1).expect("within bounds"));
    let group = |group: u16| Group {
        id: group_id(cluster, PartitionId(group), 2),
        faults,
        members: (0..faults.n() as u8).map(|member| key(group, member).public()).collect(),
    };
    Arc::new(Map {
        cluster,
        version: MAP_VERSION,
        distribution: Distribution::Range { bounds: vec![Bytes::from_static(b"n")] },
        groups: (0..2).map(group).collect(),
        resolvers: vec![PublicKey([77; 32])],
    })
}

fn empty() -> Store {
    let place = StorePartition { map: map(), partition: PartitionId(0), max_skew_ms: 500 };
    let mut store = Store::partitioned(1 << 20, place);
    store.set_version(store.newest_version());
    store
}

fn write(key: &'static str) -> Vec<Operation> {
    let (key, value) = (Bytes::from(key), Bytes::from_static(b"value"));
    let range = Operation::ReadRange {
        start: Bytes::from_static(b"d"),
        end: Some(Bytes::from_static(b"f")),
        limit: 3,
        reverse: false,
    };
    vec![Operation::Write { key, value, only_if_present: false }, range]
}

/// The first partition writes this key.
fn intent(counter: u64, key: &'static str) -> Intent {
    let part = |partition: u16, operations: &[Operation]| Participant {
        partition: PartitionId(partition),
        nonce: 1,
        part: digest_of_part(operations),
    };
    Intent {
        cluster: ClusterId([1; 16]),
        map: MAP_VERSION,
        client: CLIENT.client,
        counter,
        read_only: false,
        participants: vec![part(0, &write(key)), part(1, &write("z"))],
    }
}

fn prepare(counter: u64, key: &'static str) -> PartitionCommand {
    PartitionCommand::Prepare { intent: intent(counter, key), operations: write(key) }
}

/// The second partition's word.
fn word(statement: &Statement) -> Certificate {
    let (id, leaf) = (map().groups[1].id, [statement.to_bytes()]);
    let signed = |member: u8| {
        let key = key(1, member);
        (key.public(), attest((id, 0), &leaf, (ReplicaId(member), &key)).remove(0))
    };
    Certificate { partition: PartitionId(1), signers: vec![signed(0), signed(1)] }
}

fn vote(counter: u64, key: &'static str, commit: bool) -> Certificate {
    word(&Statement::Vote { transaction: intent(counter, key).id(), commit })
}

/// With one transaction that is pending, one that has committed, and one that was aborted.
fn store() -> Store {
    let mut store = empty();
    store.on_time(Time(NOW.0 - 3_000), &mut Vec::new());
    let finish = |counter, key, commit| PartitionCommand::Finish {
        transaction: intent(counter, key).id(),
        commit,
        votes: vec![vote(counter, key, commit)],
    };
    for command in [
        prepare(1, "a"),
        prepare(2, "b"),
        finish(2, "b", true),
        PartitionCommand::Resolve { intent: intent(3, "c"), expired: None },
    ] {
        store.order(&context(), &command.to_bytes()).expect("in order");
    }
    store.on_time(NOW, &mut Vec::new());
    store
}

fn segments(store: &Store) -> Vec<Bytes> {
    let snapshot = store.snapshot();
    (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect()
}

/// A command that would be ordered is carried out or refused, its reply decodes, and what it left behind is a state that can be restored.
pub fn command(data: &[u8]) -> bool {
    if data.first().is_none_or(|tag| *tag < 16) {
        return false;
    }
    let decoded = round_trip::<PartitionCommand>(Memory::FRAME, data);
    let mut store = store();
    let _ = (store.interface().footprint(data), store.interface().asks_about(data));
    let queried = store.answer(perdura_protocol::PublicKey([0; 32]), data);
    if store.interface().claims(data).is_none() {
        return false;
    }
    let executed = store.order(&context(), data);
    let Some(decoded) = decoded else {
        assert!(executed.is_err(), "carried out, and does not decode");
        return false;
    };
    if decoded.is_read() {
        assert_eq!(queried, Some(executed.clone()), "a read that is ordered gives something else");
    }
    if let Ok(reply) = executed {
        round_trip::<PartitionReply>(Memory::FRAME, &reply).expect("a reply decodes");
        let _ = store.interface().attested(&reply);
    }
    let mut restored = empty();
    restored.restore(segments(&store)).expect("its state is one");
    assert_eq!(segments(&restored), segments(&store), "restored as it was");
    assert_eq!((restored.due(), restored.state_bytes()), (store.due(), store.state_bytes()));
    true
}

/// Any bytes, a reply.
pub fn reply(data: &[u8]) -> bool {
    let _ = PartitionReply::leaf(data);
    round_trip::<PartitionReply>(Memory::FRAME, data).is_some()
}

fn all() -> Vec<(&'static str, PartitionCommand)> {
    let pending = intent(1, "a").id();
    let fence =
        |below| word(&Statement::Fence { session: CLIENT, below, now: Signed::Clock(Time(1)) });
    let keys = (0..4).map(|member| key(1, member + 8).public()).collect();
    let members = Members { partition: PartitionId(1), configuration: 1, keys };
    let administrator = SecretKey::from_seed(SCHEME, [200; 32]);
    let newest = members.signed(&map(), &administrator).expect("as many as there are");
    let finish = |commit| PartitionCommand::Finish {
        transaction: pending,
        commit,
        votes: vec![vote(1, "a", commit)],
    };
    let last = |counter, key| PartitionCommand::PrepareLast {
        intent: intent(counter, key),
        operations: write(key),
        votes: vec![vote(counter, key, true)],
    };
    let expired = word(&Statement::Expired { transaction: intent(4, "g").id() });
    vec![
        ("prepare", prepare(4, "g")),
        ("prepare_conflict", prepare(4, "a")),
        ("prepare_again", prepare(1, "a")),
        ("prepare_elsewhere", prepare(4, "x")),
        ("prepare_last", last(4, "g")),
        ("prepare_last_pending", last(1, "a")),
        ("commit", finish(true)),
        ("abort", finish(false)),
        ("resolve", PartitionCommand::Resolve { intent: intent(1, "a"), expired: None }),
        ("resolve_expired", {
            PartitionCommand::Resolve { intent: intent(4, "g"), expired: Some(expired) }
        }),
        ("expire", PartitionCommand::Expire { transaction: pending }),
        ("fence", PartitionCommand::Fence { session: CLIENT, below: 3 }),
        ("forget", {
            let fence =
                Fence { proof: fence(9), nonce: 1, below: 9, signed: Signed::Clock(Time(1)) };
            PartitionCommand::Forget { session: CLIENT, fences: vec![fence] }
        }),
        ("members", PartitionCommand::Members(newest)),
        ("force", PartitionCommand::Force { intent: intent(1, "a"), commit: true }),
        ("pending", PartitionCommand::Pending { after: None }),
        ("pending_after", PartitionCommand::Pending { after: Some((Time(1), pending)) }),
        ("over", PartitionCommand::Over { after: None }),
        ("show", PartitionCommand::Show { transaction: pending }),
        ("roster", PartitionCommand::Roster { partition: PartitionId(1) }),
        ("end", PartitionCommand::End { partition: PartitionId(1) }),
        ("mark", PartitionCommand::Mark { wanted: Wanted::by(&write("a")), waits: true }),
    ]
}

pub fn commands() -> Vec<Seed> {
    all().iter().map(|(name, command)| seed(name, command)).collect()
}

pub fn replies() -> Vec<Seed> {
    let reply = |(name, command): &(&'static str, PartitionCommand)| {
        let reply = store().execute(&context(), &command.to_bytes()).ok()?;
        Some((*name, reply.to_vec()))
    };
    all().iter().filter_map(reply).collect()
}
