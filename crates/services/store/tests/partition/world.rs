//! Several partitions in one place, each a store by itself whose replicas' keys are here, and clients of them.

use crate::support::{bytes, context, read, write};
use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Meter, Service, Standing};
use perdura_protocol::attestation::attest;
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::seeded::Bug;
use perdura_protocol::{
    ClusterId, Decode, Digest, Encode, Faults, Map, PartitionId, PublicKey, ReplicaId, Scheme,
    SecretKey, SessionId, Slot, Time,
};
use perdura_store::partition::{
    Blocker, Certificate, Intent, Members, Participant, PartitionCommand, PartitionReply, Reason,
    Statement, StorePartition, TransactionId, Vote, digest_of_part,
};
use perdura_store::{Operation, Store, StoreCommand, StoreReply, Transaction};
use std::sync::Arc;

pub const SCHEME: Scheme = Scheme::KeyedHash;

/// The key of who ends what clients left.
pub const RESOLVER: PublicKey = PublicKey([77; 32]);

/// One key of each partition by its first letter: partition 0 has those below `b`.
pub struct World {
    pub map: Arc<Map>,
    pub limit: u64,
    /// Of the store's rules.
    pub version: u16,
    pub stores: Vec<Store>,
    pub members: Vec<Vec<SecretKey>>,
    pub configurations: Vec<u64>,
    pub clock: u64,
    /// For how long all of them stood still: agreed time is so far ahead of the clock.
    pub stood_ms: u64,
    /// The last one that anything was carried out in.
    pub slot: u64,
    pub standing: Standing,
    pub administrator: SecretKey,
    /// What a command may cost, and what the last one of a partition did.
    pub most_cost: u64,
    pub cost: u64,
}

pub fn partition(index: u16) -> PartitionId {
    PartitionId(index)
}

pub fn client(number: u8) -> SessionId {
    SessionId { client: PublicKey([number; 32]), nonce: u64::from(number) }
}

/// What a command of every store comes to.
#[derive(PartialEq, Eq, Debug)]
pub enum Plain {
    Done(StoreReply),
    Blocked(Blocker),
}

pub const PUT: Plain = Plain::Done(StoreReply::Put);

/// A part of a transaction, and what is said of it.
pub type Part = (u16, Vec<Operation>);

impl World {
    pub fn new(partitions: usize) -> World {
        World::of(partitions, 1 << 30)
    }

    /// Each with room for so many bytes.
    pub fn of(partitions: usize, limit: u64) -> World {
        let named = std::env::var(super::seeded::NAMES_BUG).unwrap_or_default();
        if let Some(bug) = Bug::ALL.iter().find(|bug| bug.name() == named) {
            bug.activate().expect("this build has them");
        }
        let (cluster, faults) = (ClusterId([7; 16]), Faults::new(1, 1).unwrap());
        let key = |a: usize, b: usize| SecretKey::from_seed(SCHEME, [(16 * a + b + 1) as u8; 32]);
        let members: Vec<Vec<SecretKey>> =
            (0..partitions).map(|a| (0..faults.n()).map(|b| key(a, b)).collect()).collect();
        let group = |(index, members): (usize, &Vec<SecretKey>)| Group {
            id: group_id(cluster, partition(index as u16), partitions),
            faults,
            members: members.iter().map(SecretKey::public).collect(),
        };
        let bounds = (1..partitions).map(|index| bytes([b'a' + index as u8])).collect();
        let groups = members.iter().enumerate().map(group).collect();
        let distribution = Distribution::Range { bounds };
        let map = Arc::new(Map {
            cluster,
            version: MAP_VERSION,
            distribution,
            groups,
            resolvers: vec![RESOLVER],
        });
        map.check().unwrap();
        let store = |index| {
            let place = StorePartition {
                map: map.clone(),
                partition: partition(index as u16),
                max_skew_ms: 500,
            };
            Store::partitioned(limit, place)
        };
        let stores = (0..partitions).map(store).collect();
        let mut world = World {
            map: map.clone(),
            limit,
            version: 0,
            stores,
            configurations: vec![0; partitions],
            members,
            clock: 0,
            stood_ms: 0,
            slot: 0,
            standing: Standing::Open,
            administrator: SecretKey::from_seed(SCHEME, [200; 32]),
            most_cost: u64::MAX,
            cost: 0,
        };
        world.go_on_under(3);
        world.pass(1_000_000);
        world
    }

    /// The version of the store's rules is another one.
    pub fn go_on_under(&mut self, version: u16) {
        self.version = version;
        self.stores.iter_mut().for_each(|store| store.set_version(version));
    }

    pub fn pass(&mut self, ms: u64) {
        self.clock += ms;
        for store in &mut self.stores {
            store.on_time(Time(self.clock), &mut Vec::new());
        }
    }

    /// Agreed time.
    pub fn time(&self) -> Time {
        Time(self.clock + self.stood_ms)
    }

    fn context(&mut self, session: SessionId) -> ExecutionContext {
        self.slot += 1;
        ExecutionContext {
            slot: Slot(self.slot),
            session,
            clock: Time(self.clock),
            time: self.time(),
            administrator: self.administrator.public(),
            other: Some(self.standing),
            meter: Meter::up_to(self.most_cost),
            ..context()
        }
    }

    /// What becomes of a command: `None` if a signature in it does not hold, so that it is not ordered.
    pub fn ordered(
        &mut self,
        at: u16,
        session: SessionId,
        command: &PartitionCommand,
    ) -> Option<Result<PartitionReply, String>> {
        let (context, encoded) = (self.context(session), command.to_bytes());
        let store = &mut self.stores[usize::from(at)];
        let claims = store.interface().claims(&encoded)?;
        let holds = claims.iter().all(|one| SCHEME.verify(one.key, &one.message, one.signature));
        holds.then(|| {
            let reply = store.order(&context, &encoded);
            self.cost = context.meter.spent();
            Ok(PartitionReply::from_bytes(reply?).unwrap())
        })
    }

    pub fn ask(&mut self, at: u16, who: SessionId, command: &PartitionCommand) -> PartitionReply {
        self.ordered(at, who, command).expect("its signatures hold").unwrap()
    }

    /// A command of every store.
    pub fn plain(&mut self, at: u16, command: &StoreCommand) -> Plain {
        self.plain_by(at, client(99), command)
    }

    pub fn plain_by(&mut self, at: u16, who: SessionId, command: &StoreCommand) -> Plain {
        let context = self.context(who);
        let reply = self.stores[usize::from(at)].order(&context, &command.to_bytes()).unwrap();
        if !PartitionReply::is_one(&reply) {
            return Plain::Done(StoreReply::from_bytes(reply).unwrap());
        }
        match PartitionReply::from_bytes(reply).unwrap() {
            PartitionReply::Blocked(blocker) => Plain::Blocked(blocker),
            other => panic!("{other:?}"),
        }
    }

    /// Why a command of every store is refused, if it is.
    pub fn refusal(&mut self, at: u16, command: &StoreCommand) -> Option<String> {
        let context = self.context(client(99));
        self.stores[usize::from(at)].order(&context, &command.to_bytes()).err()
    }

    pub fn get(&mut self, key: &str) -> Option<Bytes> {
        let at = self.map.partition_of(key.as_bytes()).0;
        match self.plain(at, &StoreCommand::Get { key: bytes(key) }) {
            Plain::Done(StoreReply::Value(value)) => value,
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, key: &str, value: &str) -> Plain {
        let at = self.map.partition_of(key.as_bytes()).0;
        self.plain(at, &StoreCommand::Put { key: bytes(key), value: bytes(value) })
    }

    pub fn transact(&mut self, at: u16, operations: Vec<Operation>) -> Plain {
        self.plain(at, &StoreCommand::Transaction(Transaction { operations }))
    }

    pub fn intent(&self, who: SessionId, counter: u64, read_only: bool, parts: &[Part]) -> Intent {
        let participant = |(at, operations): &Part| Participant {
            partition: partition(*at),
            nonce: who.nonce,
            part: digest_of_part(operations),
        };
        Intent {
            cluster: self.map.cluster,
            map: MAP_VERSION,
            client: who.client,
            counter,
            read_only,
            participants: parts.iter().map(participant).collect(),
        }
    }

    pub fn prepare(&mut self, intent: &Intent, who: SessionId, part: &Part) -> PartitionReply {
        let (intent, operations) = (intent.clone(), part.1.clone());
        self.ask(part.0, who, &PartitionCommand::Prepare { intent, operations })
    }

    /// The word of the first r + 1 members of a group.
    pub fn certificate(&self, of: u16, statement: &Statement) -> Certificate {
        self.certificate_by(of, statement, &[0, 1])
    }

    pub fn certificate_by(&self, of: u16, statement: &Statement, who: &[u8]) -> Certificate {
        let index = usize::from(of);
        let context = (self.map.groups[index].id, self.configurations[index]);
        let signed = |id: &u8| {
            let key = &self.members[index][usize::from(*id)];
            // Beside another one, as most are.
            let leaves = [statement.to_bytes(), bytes("another")];
            let attested = attest(context, &leaves, (ReplicaId(*id), key)).remove(0);
            (key.public(), attested)
        };
        Certificate { partition: partition(of), signers: who.iter().map(signed).collect() }
    }

    /// The proof of what a reply states.
    pub fn proof(&self, of: u16, reply: &PartitionReply) -> Certificate {
        let statement = PartitionReply::statement(&reply.to_bytes()).expect("it states something");
        assert_eq!(
            self.stores[0].interface().attested(&reply.to_bytes()),
            Some(statement.to_bytes())
        );
        self.certificate(of, &statement)
    }

    /// A partition is told that another one's first member has a new key.
    pub fn replace_member(&mut self, at: u16, of: u16) {
        let index = usize::from(of);
        self.configurations[index] += 1;
        let configuration = self.configurations[index];
        self.members[index][0] = SecretKey::from_seed(SCHEME, [240 + configuration as u8; 32]);
        let keys = self.members[index].iter().map(SecretKey::public).collect();
        let members = Members { partition: partition(of), configuration, keys };
        let newest = members.signed(&self.map, &self.administrator).unwrap();
        let known = self.ask(at, client(1), &PartitionCommand::Members(newest));
        assert!(matches!(known, PartitionReply::Known { .. }), "{known:?}");
    }

    pub fn finish(
        &mut self,
        at: u16,
        who: SessionId,
        (transaction, commit): (TransactionId, bool),
        votes: &[Certificate],
    ) -> PartitionReply {
        let votes = votes.to_vec();
        self.ask(at, who, &PartitionCommand::Finish { transaction, commit, votes })
    }

    /// As a correct client does it; whether it committed.
    pub fn run(&mut self, who: SessionId, counter: u64, parts: &[Part]) -> bool {
        let intent = self.intent(who, counter, false, parts);
        let replies: Vec<PartitionReply> =
            parts.iter().map(|part| self.prepare(&intent, who, part)).collect();
        let commit = replies.iter().all(is_commit);
        for (at, _) in parts {
            let shown = parts
                .iter()
                .zip(&replies)
                .filter(|((of, _), reply)| of != at && is_commit(reply) == commit);
            let votes: Vec<Certificate> =
                shown.map(|((of, _), reply)| self.proof(*of, reply)).collect();
            if commit || !votes.is_empty() {
                self.finish(*at, who, (intent.id(), commit), &votes);
            }
        }
        commit
    }

    /// Each partition restored from its snapshot: the same digests again, and the same answers.
    pub fn restart(&mut self) {
        for (index, store) in self.stores.iter_mut().enumerate() {
            let digests = |store: &Store| -> Vec<Digest> {
                let snapshot = store.snapshot();
                (0..snapshot.segments()).map(|index| snapshot.entry(index).digest).collect()
            };
            let snapshot = store.snapshot();
            let segments = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
            let place = StorePartition {
                map: self.map.clone(),
                partition: partition(index as u16),
                max_skew_ms: 500,
            };
            let mut restored = Store::partitioned(self.limit, place);
            restored.set_version(self.version);
            restored.restore(segments).unwrap();
            restored.set_version(self.version);
            assert_eq!(digests(&restored), digests(store));
            // Also before the first batch: replicas that were never restored say so, too.
            assert_eq!(
                (restored.due(), restored.state_bytes()),
                (store.due(), store.state_bytes())
            );
            restored.on_time(Time(self.clock), &mut Vec::new());
            *store = restored;
        }
    }
}

pub fn is_commit(reply: &PartitionReply) -> bool {
    matches!(reply, PartitionReply::Voted { vote: Vote::Commit, .. })
}

pub fn reason(reply: PartitionReply) -> Reason {
    match reply {
        PartitionReply::Voted { vote: Vote::Abort(reason), .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// Writes one key in each of two partitions.
pub fn two_writes(value: &str) -> [Part; 2] {
    [(0, vec![write("a1", value, false)]), (1, vec![write("b1", value, false)])]
}

pub fn two_reads() -> [Part; 2] {
    [(0, vec![read("a1")]), (1, vec![read("b1")])]
}
