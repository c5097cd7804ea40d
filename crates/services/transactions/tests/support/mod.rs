//! Partitions in this process, clients that reach them after any time, and a way to run them all.
#![allow(missing_docs)]

use bytes::Bytes;
use perdura_client::{CallError, Indeterminacy, Mode, Refusal};
use perdura_execution::{Alone as _, ExecutionContext, Service, Standing};
use perdura_protocol::attestation::attest;
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::seeded::Bug;
use perdura_protocol::{
    ClusterId, Decode, Digest, Encode, Faults, Map, PartitionId, PublicKey, RefusalReason,
    ReplicaId, Scheme, SecretKey, SessionId, Slot, Time,
};
use perdura_store::partition::{
    Certificate, PartitionCommand, PartitionReply, StorePartition, Waiting,
};
use perdura_store::{Operation, Store, StoreCommand};
use perdura_transactions::{Answer, Groups, Transactions};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

const SCHEME: Scheme = Scheme::KeyedHash;

/// What sleeps for so long is not waited for, milliseconds.
const LONG_MS: u64 = 6_000;

/// The number of the client that ends what others left.
pub const RESOLVER: u8 = 77;

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A seeded generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

pub struct Partitions {
    pub map: Arc<Map>,
    stores: Vec<Store>,
    /// The last slot of each.
    slots: Vec<u64>,
    members: Vec<Vec<SecretKey>>,
    pub now_ms: u64,
    /// At which the partitions' clocks stand still, if they do.
    pub stands_at_ms: Option<u64>,
    pub random: Random,
    /// Partitions that answer nothing.
    pub down: BTreeSet<PartitionId>,
    /// Of a hundred commands so many are lost, or their answers are.
    pub losses: u64,
    /// Commands with this tag are carried out, and so much later their answers are lost, milliseconds.
    pub unheard: Option<(u8, u64)>,
    /// Sessions that are over.
    over: BTreeSet<SessionId>,
    spawned: Vec<Task>,
    /// Tasks that sleep for long.
    sleepers: usize,
    pub commands: u64,
}

pub type Shared = Arc<Mutex<Partitions>>;

pub fn lock(shared: &Shared) -> MutexGuard<'_, Partitions> {
    shared.lock().unwrap()
}

impl Partitions {
    /// By the first letter: partition 0 has the keys below `b`.
    pub fn new(partitions: usize, seed: u64) -> Shared {
        let bounds = (1..partitions).map(|index| Bytes::from(vec![b'a' + index as u8])).collect();
        Partitions::of(partitions, Distribution::Range { bounds }, seed)
    }

    pub fn of(partitions: usize, distribution: Distribution, seed: u64) -> Shared {
        let named = std::env::var(super::seeded::NAMES_BUG).unwrap_or_default();
        if let Some(bug) = Bug::ALL.iter().find(|bug| bug.name() == named) {
            bug.activate().expect("this build has them");
        }
        let (cluster, faults) = (ClusterId([7; 16]), Faults::new(1, 1).unwrap());
        let key = |a: usize, b: usize| SecretKey::from_seed(SCHEME, [(16 * a + b + 1) as u8; 32]);
        let members: Vec<Vec<SecretKey>> =
            (0..partitions).map(|a| (0..faults.n()).map(|b| key(a, b)).collect()).collect();
        let group = |(index, members): (usize, &Vec<SecretKey>)| Group {
            id: group_id(cluster, PartitionId(index as u16), partitions),
            faults,
            members: members.iter().map(SecretKey::public).collect(),
        };
        let groups = members.iter().enumerate().map(group).collect();
        let map = Arc::new(Map {
            cluster,
            version: MAP_VERSION,
            distribution,
            groups,
            resolvers: vec![PublicKey([RESOLVER; 32])],
        });
        let store = |index| {
            let partition = PartitionId(index as u16);
            let place = StorePartition { map: map.clone(), partition, max_skew_ms: 500 };
            let mut store = Store::partitioned(1 << 30, place);
            store.set_version(store.newest_version());
            store
        };
        Arc::new(Mutex::new(Partitions {
            stores: (0..partitions).map(store).collect(),
            slots: vec![0; partitions],
            map: map.clone(),
            members,
            now_ms: 1_000_000,
            stands_at_ms: None,
            random: Random(seed),
            down: BTreeSet::new(),
            losses: 0,
            unheard: None,
            over: BTreeSet::new(),
            spawned: Vec::new(),
            sleepers: 0,
            commands: 0,
        }))
    }

    /// The stores go on under this version of their rules.
    pub fn go_on_under(&mut self, version: u16) {
        self.stores.iter_mut().for_each(|store| store.set_version(version));
    }

    /// A client's sessions are over.
    pub fn end_session(&mut self, session: SessionId) {
        self.over.insert(session);
        self.stores.iter_mut().for_each(|store| store.session_ended(session));
    }

    fn query(&self, partition: PartitionId, command: &Bytes) -> Bytes {
        let reply =
            self.stores[partition.index()].answer(perdura_protocol::PublicKey([0; 32]), command);
        reply.expect("it reads").expect("it is answered")
    }

    /// Whether nobody keeps others from reading a key of the first partition.
    pub fn is_free(&self, key: &str) -> bool {
        let get = StoreCommand::Get { key: bytes(key) }.to_bytes();
        !PartitionReply::is_one(&self.query(PartitionId(0), &get))
    }

    /// How many are pending in a partition.
    pub fn count_pending(&self, partition: PartitionId) -> usize {
        let pending = PartitionCommand::Pending { after: None }.to_bytes();
        let reply = PartitionReply::from_bytes(self.query(partition, &pending));
        let Ok(PartitionReply::Pending { transactions, .. }) = reply else { panic!("{reply:?}") };
        transactions.len()
    }

    /// How many transactions a partition remembers that are over.
    pub fn count_over(&self, partition: PartitionId) -> u64 {
        let measures = self.stores[partition.index()].measures();
        let over = measures.iter().find(|one| one.name == "perdura_transactions_remembered");
        over.map_or(0, |one| one.value)
    }

    /// Whether a partition remembers anything that is over of a session.
    pub fn remembers(&self, partition: PartitionId, session: SessionId) -> bool {
        let mut after = None;
        loop {
            let over = PartitionCommand::Over { after }.to_bytes();
            let reply = PartitionReply::from_bytes(self.query(partition, &over));
            let Ok(PartitionReply::Pending { transactions, more, .. }) = reply else {
                panic!("{reply:?}")
            };
            let is_of = |one: &Waiting| {
                let place = one.intent.participant(partition);
                place.is_some_and(|place| one.intent.session(place) == session)
            };
            if transactions.iter().any(is_of) || !more {
                return transactions.iter().any(is_of);
            }
            after = transactions.last().map(|last| (last.since, last.intent.id()));
        }
    }

    /// Carries out a read, as a group would that need not order it; now and then its replicas do not agree.
    fn look(
        &mut self,
        partition: PartitionId,
        session: SessionId,
        command: &[u8],
    ) -> Result<Answer, CallError> {
        let index = partition.index();
        match self.stores[index].answer(session.client, command) {
            Some(Ok(reply)) if self.random.below(50) > 0 => {
                let slot = Some(Slot(self.slots[index]));
                Ok(Answer { reply, proof: None, slot })
            }
            _ => self.execute(partition, session, command),
        }
    }

    /// Carries out a command, as a group would.
    fn execute(
        &mut self,
        partition: PartitionId,
        session: SessionId,
        command: &[u8],
    ) -> Result<Answer, CallError> {
        self.commands += 1;
        let slot = &mut self.slots[partition.index()];
        *slot += 1;
        let refused = |why: &str| CallError::Refused {
            reason: Refusal::Ordered(RefusalReason::Service(why.to_owned())),
            detail: String::new(),
        };
        let now = Time(self.stands_at_ms.unwrap_or(self.now_ms));
        let store = &mut self.stores[partition.index()];
        store.on_time(now, &mut Vec::new());
        let claims =
            store.interface().claims(command).expect("a correct client's command is no nonsense");
        let holds = claims.iter().all(|one| SCHEME.verify(one.key, &one.message, one.signature));
        assert!(holds, "a correct client shows what holds");
        let other = store.interface().asks_about(command);
        let standing = |id: SessionId| match self.over.contains(&id) {
            true => Standing::Over,
            false => Standing::Open,
        };
        let context = ExecutionContext {
            slot: Slot(*slot),
            time: now,
            clock: now,
            session,
            number: 1,
            cluster: ClusterId([1; 16]),
            batch: Digest::ZERO,
            administrator: PublicKey([3; 32]),
            other: other.map(standing),
            meter: Default::default(),
        };
        let reply = store.order(&context, command).map_err(|why| refused(&why))?;
        let proof = store.interface().attested(&reply).map(|leaf| {
            let index = partition.index();
            let of = (self.map.groups[index].id, 0);
            let signed = |id: u8| {
                let key = &self.members[index][usize::from(id)];
                (
                    key.public(),
                    attest(of, std::slice::from_ref(&leaf), (ReplicaId(id), key)).remove(0),
                )
            };
            Certificate { partition, signers: vec![signed(0), signed(1)] }
        });
        Ok(Answer { reply, proof, slot: None })
    }
}

/// One client's way to them.
pub struct Way {
    pub shared: Shared,
    client: PublicKey,
    /// The numbers of its sessions, by partition.
    sessions: Mutex<Vec<u64>>,
}

/// Pending so many times.
struct Turns(u64);

impl Future for Turns {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        // Many at once look only at those that are woken.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Counted as long as it is there.
struct Sleeper(Shared);

impl Sleeper {
    fn new(shared: &Shared) -> Sleeper {
        lock(shared).sleepers += 1;
        Sleeper(Arc::clone(shared))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        lock(&self.0).sleepers -= 1;
    }
}

impl Way {
    pub fn session_in(&self, partition: PartitionId) -> SessionId {
        SessionId { client: self.client, nonce: self.sessions.lock().unwrap()[partition.index()] }
    }

    fn turns(&self) -> Turns {
        Turns(lock(&self.shared).random.below(6))
    }
}

fn indeterminate() -> CallError {
    CallError::Indeterminate { reason: Indeterminacy::DeadlinePassed, detail: String::new() }
}

impl Groups for Way {
    fn map(&self) -> &Map {
        // The map never changes.
        Box::leak(Box::new(lock(&self.shared).map.as_ref().clone()))
    }

    fn client(&self) -> PublicKey {
        self.client
    }

    async fn session(&self, partition: PartitionId, _: u64) -> Result<u64, CallError> {
        Ok(self.session_in(partition).nonce)
    }

    async fn leave(&self, partition: PartitionId, session: u64) {
        let open = &mut self.sessions.lock().unwrap()[partition.index()];
        if *open == session {
            *open += 100;
        }
    }

    async fn call(
        &self,
        partition: PartitionId,
        command: Bytes,
        mode: Mode,
        deadline_ms: u64,
    ) -> Result<Answer, CallError> {
        self.turns().await;
        let (is_down, is_lost, is_unheard) = {
            let mut partitions = lock(&self.shared);
            let losses = partitions.losses;
            let down = partitions.down.contains(&partition);
            let mut chance = || partitions.random.below(100) < losses;
            (down, down || chance(), chance())
        };
        let left_ms = deadline_ms.saturating_sub(self.now_ms());
        if left_ms == 0 {
            let (reason, detail) = (Refusal::DeadlinePassed, String::new());
            return Err(CallError::Refused { reason, detail });
        }
        if is_lost {
            self.sleep(if is_down { left_ms } else { left_ms.min(50) }).await;
            return Err(indeterminate());
        }
        let answer = {
            let mut partitions = lock(&self.shared);
            let session = self.session_in(partition);
            match mode {
                Mode::Fast => partitions.look(partition, session, &command),
                Mode::Ordered => partitions.execute(partition, session, &command),
            }
        };
        self.turns().await;
        let unheard = lock(&self.shared).unheard.filter(|(tag, _)| command.first() == Some(tag));
        if let Some((_, ms)) = unheard {
            self.sleep(ms).await;
            return Err(indeterminate());
        }
        if is_unheard { Err(indeterminate()) } else { answer }
    }

    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let until_ms = lock(&shared).now_ms + ms;
            let _sleeper = (ms >= LONG_MS).then(|| Sleeper::new(&shared));
            while lock(&shared).now_ms < until_ms {
                Turns(1).await;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        lock(&self.shared).now_ms
    }

    fn random(&self, below: u64) -> u64 {
        lock(&self.shared).random.below(below)
    }

    fn spawn(&self, task: Task) {
        lock(&self.shared).spawned.push(task);
    }
}

pub fn client(shared: &Shared, number: u8) -> Transactions<Way> {
    client_in(shared, number, u64::from(number))
}

/// Another process with that key, in sessions of this number.
pub fn client_in(shared: &Shared, number: u8, session: u64) -> Transactions<Way> {
    let sessions = Mutex::new(vec![session; lock(shared).stores.len()]);
    let client = PublicKey([number; 32]);
    Transactions::over(Way { shared: Arc::clone(shared), client, sessions })
}

/// Runs tasks to their ends, and all that they began but for what waits for long, in any order, while time passes. Of ten thousand polls of one so
/// many leave it for good.
pub fn run(shared: &Shared, tasks: Vec<Task>, deaths: u64) {
    let mut context = Context::from_waker(Waker::noop());
    let mut tasks: Vec<(bool, Task)> = tasks.into_iter().map(|task| (true, task)).collect();
    for turn in 0.. {
        assert!(turn < 50_000_000, "it does not end");
        let spawned = std::mem::take(&mut lock(shared).spawned);
        tasks.extend(spawned.into_iter().map(|task| (false, task)));
        let is_asked_for = tasks.iter().any(|(is_asked_for, _)| *is_asked_for);
        if !is_asked_for && tasks.len() == lock(shared).sleepers {
            lock(shared).spawned = tasks.into_iter().map(|(_, task)| task).collect();
            return;
        }
        let (index, dies) = {
            let mut partitions = lock(shared);
            if partitions.random.below(8) == 0 {
                partitions.now_ms += 1;
            }
            let index = partitions.random.below(tasks.len() as u64) as usize;
            (index, partitions.random.below(10_000) < deaths)
        };
        if dies || tasks[index].1.as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(index));
        }
    }
}

/// Runs one until then, when it dies.
pub fn run_until(shared: &Shared, mut task: Task, until_ms: u64) {
    let mut context = Context::from_waker(Waker::noop());
    while lock(shared).now_ms < until_ms {
        assert!(task.as_mut().poll(&mut context).is_pending(), "it lives until then");
        lock(shared).now_ms += 1;
    }
}

/// Runs one to its end.
pub fn run_one<T: Send + 'static>(
    shared: &Shared,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let result = Arc::new(Mutex::new(None));
    let there = Arc::clone(&result);
    let task = async move {
        let value = future.await;
        *there.lock().unwrap() = Some(value);
    };
    run(shared, vec![Box::pin(task)], 0);
    result.lock().unwrap().take().expect("it ended")
}

pub fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

pub fn write(key: &str, value: &str) -> Operation {
    Operation::Write { key: bytes(key), value: bytes(value), only_if_present: false }
}

pub fn read(key: &str) -> Operation {
    Operation::Read { key: bytes(key) }
}
