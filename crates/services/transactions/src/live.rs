//! The groups of a running cluster, and the client that programs use.

use crate::{Answer, Groups, Outcome, Range, Split, TransactionError, Transactions};
use bytes::Bytes;
use perdura_client::{
    CallError, Client, ClusterConfig, Indeterminacy, Mode, Options, Refusal, Reply,
};
use perdura_protocol::attestation::Attestation;
use perdura_protocol::{Decode, Encode, Map, PartitionId, PublicKey, SecretKey, Slot};
use perdura_store::partition::{Certificate, PartitionReply};
use perdura_store::{StoreCommand, StoreReply, Transaction};
use std::collections::BTreeSet;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is found out at the deadline is still told; what takes longer is not waited for.
const LATE: Duration = Duration::from_millis(200);

/// Time to tell at the end what is left to tell: else others would have to end it ...
const SETTLE: Duration = Duration::from_secs(3);

/// ... and to say what is over.
const FORGET: Duration = Duration::from_secs(1);

/// Why there is no client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is not one group for each partition of the map.
    #[error("the map has {partitions} partitions, and {groups} groups are given")]
    Groups {
        /// In the map.
        partitions: usize,
        /// LocalAnswer.
        groups: usize,
    },
    /// A group's client cannot be made.
    #[error(transparent)]
    Client(#[from] perdura_client::ConnectError),
}

/// A client of each group of a running cluster.
#[derive(Debug)]
pub struct Live {
    map: Arc<Map>,
    key: PublicKey,
    // By partition, with the members' keys as this client knows them.
    groups: Vec<(Client, Vec<PublicKey>)>,
    begin: Instant,
    chance: RandomState,
    drawn: AtomicU64,
}

impl Live {
    /// Clients with `key` of the groups of a store, one for each partition; inside of a tokio runtime. Does not wait for connections.
    ///
    /// # Errors
    /// When groups and map contradict each other, or a group's configuration itself.
    pub fn connect(
        map: Arc<Map>,
        groups: Vec<ClusterConfig>,
        key: &SecretKey,
    ) -> Result<Live, ConnectError> {
        if groups.len() != map.partitions() {
            let (partitions, groups) = (map.partitions(), groups.len());
            return Err(ConnectError::Groups { partitions, groups });
        }
        let client = |group: ClusterConfig| {
            let mut keys: Vec<_> = group.replicas.iter().map(|one| (one.id, one.key)).collect();
            keys.sort_unstable();
            let client = Client::connect_with(group, key.clone(), PartitionReply::leaf)?;
            Ok((client, keys.into_iter().map(|(_, key)| key).collect()))
        };
        let groups = groups.into_iter().map(client).collect::<Result<_, ConnectError>>()?;
        let (begin, chance, drawn) = (Instant::now(), RandomState::new(), AtomicU64::new(0));
        Ok(Live { map, key: key.public(), groups, begin, chance, drawn })
    }

    /// Closes the clients of all groups.
    pub async fn close(&self) {
        for client in self.clients() {
            client.close().await;
        }
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.groups.iter().map(|(client, _)| client)
    }

    /// The end of a time from now on, for [`Transactions::ask`] and the like.
    #[must_use]
    pub fn deadline_ms(&self, timeout: Duration) -> u64 {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.now_ms().saturating_add(ms)
    }

    fn left(&self, deadline_ms: u64) -> Duration {
        Duration::from_millis(deadline_ms.saturating_sub(self.now_ms()))
    }

    fn group(&self, partition: PartitionId) -> Result<&(Client, Vec<PublicKey>), CallError> {
        let closed = CallError::Refused { reason: Refusal::Closed, detail: String::new() };
        self.groups.get(partition.index()).ok_or(closed)
    }
}

/// Says of which partition's replicas the error speaks.
fn named(error: CallError, partition: PartitionId) -> CallError {
    let told = |detail: String| match detail.is_empty() {
        true => detail,
        false => format!("; partition {partition}{detail}"),
    };
    match error {
        CallError::Refused { reason, detail } => {
            CallError::Refused { reason, detail: told(detail) }
        }
        CallError::Indeterminate { reason, detail } => {
            CallError::Indeterminate { reason, detail: told(detail) }
        }
    }
}

/// Attestations with the keys under which they hold.
fn certificate(
    partition: PartitionId,
    keys: &[PublicKey],
    attestations: Vec<Attestation>,
) -> Option<Certificate> {
    let signed = |one: Attestation| Some((*keys.get(one.signer.index())?, one));
    let signers = attestations.into_iter().map(signed).collect::<Option<_>>()?;
    Some(Certificate { partition, signers })
}

impl Groups for Live {
    fn map(&self) -> &Map {
        &self.map
    }

    fn client(&self) -> PublicKey {
        self.key
    }

    async fn session(&self, partition: PartitionId, deadline_ms: u64) -> Result<u64, CallError> {
        let session = self.group(partition)?.0.session(self.left(deadline_ms)).await;
        session.map_err(|error| named(error, partition))
    }

    async fn leave(&self, partition: PartitionId, session: u64) {
        if let Ok((client, _)) = self.group(partition) {
            client.leave_session(session).await;
        }
    }

    async fn call(
        &self,
        partition: PartitionId,
        command: Bytes,
        mode: Mode,
        deadline_ms: u64,
    ) -> Result<Answer, CallError> {
        let (client, keys) = self.group(partition)?;
        let options = Options { timeout: self.left(deadline_ms), reply_quorum: None };
        let reply = match mode {
            Mode::Ordered => client.call(command, &options).await,
            Mode::Fast => client.observe(command, &options).await,
        };
        match reply.map_err(|error| named(error, partition))? {
            Reply::Service(reply) => Ok(Answer { reply, proof: None, slot: None }),
            Reply::Unordered { reply, slot } => {
                Ok(Answer { reply, proof: None, slot: Some(Slot(slot)) })
            }
            Reply::Attested { reply, attestations } => {
                Ok(Answer { reply, proof: certificate(partition, keys, attestations), slot: None })
            }
            Reply::Administered { .. } | Reply::Told(_) => Err(CallError::Indeterminate {
                reason: Indeterminacy::UnexpectedReply,
                detail: String::new(),
            }),
        }
    }

    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send + use<> {
        tokio::time::sleep(Duration::from_millis(ms))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn random(&self, below: u64) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.chance.hash_one(drawn) % below.max(1)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // What is left to do when a program ends is not done.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(task);
        }
    }
}

/// A client of a store, of one partition or of several. Clones are the same one.
#[derive(Clone, Debug)]
pub enum StoreClient {
    /// Of a store that has no partitions.
    Whole(Client),
    /// Of one that has.
    Partitioned(Transactions<Live>),
}

impl StoreClient {
    /// Carries out a command, within a time-out. A read need not be ordered if `fast`.
    ///
    /// # Errors
    /// As [`Transactions::transact`].
    pub async fn call(
        &self,
        command: &StoreCommand,
        fast: bool,
        options: &Options,
    ) -> Result<Outcome, TransactionError> {
        match self {
            StoreClient::Whole(client) => call_whole(client, command, fast, options).await,
            StoreClient::Partitioned(transactions) => {
                let deadline_ms = transactions.groups().deadline_ms(options.timeout);
                let (transactions, command) = (transactions.clone(), command.clone());
                // It goes on to its end though nobody waits for it any more: else it would leave locks behind.
                let task =
                    tokio::spawn(
                        async move { transactions.command(&command, fast, deadline_ms).await },
                    );
                let (reason, detail) = (Indeterminacy::DeadlinePassed, String::new());
                match tokio::time::timeout(options.timeout.saturating_add(LATE), task).await {
                    Ok(ended) => ended.unwrap_or(Err(TransactionError::UnexpectedReply)),
                    Err(_) => Err(CallError::Indeterminate { reason, detail }.into()),
                }
            }
        }
    }

    /// Carries out a transaction over any of the partitions.
    ///
    /// # Errors
    /// As [`Transactions::transact`].
    pub async fn transact(
        &self,
        transaction: Transaction,
        options: &Options,
    ) -> Result<Outcome, TransactionError> {
        let fast = transaction.is_read();
        self.call(&StoreCommand::Transaction(transaction), fast, options).await
    }

    /// In which partition a key is.
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        match self {
            StoreClient::Whole(_) => PartitionId(0),
            StoreClient::Partitioned(transactions) => transactions.groups().map().partition_of(key),
        }
    }

    /// The partitions that a command needs; nothing where there is only one.
    #[must_use]
    pub fn partitions_of_command(&self, command: &StoreCommand) -> BTreeSet<PartitionId> {
        let StoreClient::Partitioned(transactions) = self else { return BTreeSet::new() };
        let map = transactions.groups().map();
        match command {
            StoreCommand::Get { key }
            | StoreCommand::Put { key, .. }
            | StoreCommand::Delete { key } => BTreeSet::from([map.partition_of(key)]),
            StoreCommand::Transaction(transaction) => Split::partitions_of(map, transaction),
        }
    }

    /// The partitions that may have some of a range.
    pub fn partitions_of(&self, range: &Range) -> impl Iterator<Item = PartitionId> + use<> {
        let all = match self {
            StoreClient::Whole(_) => 0..=0,
            StoreClient::Partitioned(transactions) => {
                transactions.groups().map().partitions_of_range(&range.start, range.end.as_deref())
            }
        };
        all.map(PartitionId)
    }

    /// The clients of its groups, by partition.
    #[must_use]
    pub fn clients(&self) -> Vec<&Client> {
        match self {
            StoreClient::Whole(client) => vec![client],
            StoreClient::Partitioned(transactions) => transactions.groups().clients().collect(),
        }
    }

    /// [`Client::withdraw`] in all groups.
    pub async fn withdraw(&self) {
        for client in self.clients() {
            client.withdraw().await;
        }
    }

    /// Says what is over, and closes the clients of all groups.
    pub async fn close(&self) {
        if let StoreClient::Partitioned(transactions) = self {
            let _ = tokio::time::timeout(SETTLE, transactions.settled()).await;
            let _ = tokio::time::timeout(FORGET, transactions.forget_ended()).await;
        }
        for client in self.clients() {
            client.close().await;
        }
    }
}

/// One command of a store without partitions. A read whose reply the replicas do not keep any more, for others took its place, is read
/// again.
async fn call_whole(
    client: &Client,
    command: &StoreCommand,
    fast: bool,
    options: &Options,
) -> Result<Outcome, TransactionError> {
    let content = command.to_bytes();
    let (reads, begun) = (command.is_read(), Instant::now());
    let reply = loop {
        let timeout = options.timeout.saturating_sub(begun.elapsed());
        let options = Options { timeout, ..*options };
        let reply = match fast && reads {
            true => client.read(content.clone(), &options).await,
            false => client.call(content.clone(), &options).await,
        };
        match reply {
            Err(CallError::Indeterminate {
                reason: Indeterminacy::TooOld | Indeterminacy::NoSession,
                ..
            }) if reads => {}
            reply => break reply?,
        }
    };
    match reply {
        Reply::Service(bytes) => {
            let reply =
                StoreReply::from_bytes(bytes).map_err(|_| TransactionError::UnexpectedReply)?;
            Outcome::of(command, reply)
        }
        _ => Err(TransactionError::UnexpectedReply),
    }
}
