//! The social network on Perdura's partitioned store: each operation is one transaction, or a few of which each leaves the network as it should be.
//!
//! The paper's is Augustus, EuroSys 2013, section 4.4: posting is one insert in one partition, following is two inserts in two partitions at worst, a timeline is the
//! list of friends and then one transaction of ranges that only reads.

mod accounts;
mod answers;
mod deletions;
mod edges;
mod fullness;
mod logins;
mod newest;
mod posts;
mod sessions;
mod timeline;
mod turns;
mod waiters;

use super::error::{CreateError, Failure, FollowError, LoginError, PostError, SessionError};
use super::name::{Name, Password};
use super::origin::Origin;
use super::passwords::Passwords;
use super::post::{NewPost, PostId, PostKey, Shown};
use super::session::{Changed, Proof, Session, SessionKey, Sessions};
use super::{Network, PAGE_MOST, Page, Profile, keys};
use ::perdura_cluster::client::Options;
use ::perdura_cluster::connect::{self, connect_store};
use ::perdura_cluster::protocol::PartitionId;
use ::perdura_cluster::protocol::partitions::Distribution;
use ::perdura_cluster::transactions::{
    Builder, Counters, Groups, Outcome, Range, Results, StoreClient,
};
use ::perdura_cluster::transactions::{Page as Entries, TransactionError};
use ::perdura_cluster::{Cluster, ServiceKind};
use async_trait::async_trait;
use bytes::Bytes;
use fullness::Fullness;
use futures_util::future::join_all;
use newest::Lists;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;
use turns::{Turn, Turns};
use waiters::Waiters;

/// How the store is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the cluster's files.
    pub cluster: PathBuf,
    /// The client's key; none for `client.toml` beside them.
    pub key: Option<PathBuf>,
    /// Each transaction ends within this time.
    pub timeout: Duration,
}

/// A social network on a store; it has to be made inside of a tokio runtime.
pub struct Perdura {
    store: StoreClient,
    options: Options,
    passwords: Passwords,
    turns: Turns,
    waiters: Waiters,
    fullness: Arc<Fullness>,
    lists: Arc<Lists>,
    /// A key of each partition.
    probes: Vec<Bytes>,
    connections: usize,
}

/// Why there is no network on a cluster.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its files, or the key, cannot be used.
    #[error("{0}")]
    Files(String),
    /// It has another service.
    #[error(
        "{0} is the file of a cluster of tuple spaces; make one of a key-value store (`perdura init --service kv`)"
    )]
    Service(String),
    /// Its keys are spread by a hash, and so all of a user's data would be anywhere.
    #[error(
        "{file} is the file of a cluster whose keys are spread by hash; make one by ranges, with `--partition-by range:{bounds}`"
    )]
    Hash {
        /// The cluster's.
        file: String,
        /// Those that its number of partitions needs.
        bounds: String,
    },
    /// A partition begins in the middle of somebody's data.
    #[error(
        "{file} is the file of a cluster one of whose partitions begins in the middle of a user's keys; make one with `--partition-by range:{bounds}`"
    )]
    Bounds {
        /// The cluster's.
        file: String,
        /// Those that its number of partitions needs.
        bounds: String,
    },
    /// No password can be hashed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What a call failed with that may have written something.
impl From<TransactionError> for Failure {
    fn from(error: TransactionError) -> Failure {
        match error {
            TransactionError::Invalid(_) => Failure::Broken(error.to_string()),
            _ if error.is_refusal() => Failure::Unavailable(error.to_string()),
            _ => Failure::Indeterminate(error.to_string()),
        }
    }
}

/// What one failed with that only reads: nothing happened in any case.
fn not_read(error: TransactionError) -> Failure {
    match error {
        TransactionError::UnexpectedReply => Failure::Broken(error.to_string()),
        error => match Failure::from(error) {
            Failure::Indeterminate(text) => Failure::Unavailable(text),
            failure => failure,
        },
    }
}

/// A key of each partition, each of which has to have all keys of a user or none.
fn probes(groups: &[Cluster]) -> Result<Vec<Bytes>, OpenError> {
    let first = Bytes::from_static(keys::DELETIONS.as_bytes());
    let Some((group, map)) =
        groups.first().and_then(|group| Some((group, group.parameters.map.as_ref()?)))
    else {
        return Ok(vec![first]);
    };
    let file = group.path.display().to_string();
    let partitions = u16::try_from(map.partitions()).unwrap_or(u16::MAX);
    let even = keys::bounds(partitions).join(",");
    match &map.distribution {
        Distribution::Hash => Err(OpenError::Hash { file, bounds: even }),
        Distribution::Range { bounds }
            if bounds.iter().any(|one| one.len() > keys::HASH_DIGITS) =>
        {
            Err(OpenError::Bounds { file, bounds: even })
        }
        Distribution::Range { bounds } => {
            Ok(std::iter::once(first).chain(bounds.iter().cloned()).collect())
        }
    }
}

impl Perdura {
    /// The network on the cluster whose files are there. It need not answer yet.
    ///
    /// # Errors
    /// [`OpenError`], with what to do.
    pub fn open(settings: &Settings) -> Result<Perdura, OpenError> {
        let files = |error: &dyn std::error::Error| OpenError::Files(error.to_string());
        let groups = connect::load_groups(&settings.cluster).map_err(|error| files(&error))?;
        let key = settings.key.clone();
        let key =
            key.unwrap_or_else(|| settings.cluster.join(::perdura_cluster::config::CLIENT_FILE));
        let first = groups.first().ok_or_else(|| OpenError::Files("no groups".to_owned()))?;
        let service = first.service().map_err(|error| files(&error))?;
        if service != ServiceKind::KeyValue {
            return Err(OpenError::Service(first.path.display().to_string()));
        }
        let probes = probes(&groups)?;
        let key = connect::key(Path::new(&key), first).map_err(|error| files(&error))?;
        let store = connect_store(&groups, &key).map_err(|error| files(&error))?;
        let connections = groups.iter().map(|group| group.replicas.len()).sum();
        Ok(Perdura::over(store, settings.timeout, probes, connections)?)
    }

    fn over(
        store: StoreClient,
        timeout: Duration,
        probes: Vec<Bytes>,
        connections: usize,
    ) -> Result<Perdura, Failure> {
        let partitions = probes.len();
        // The first partition begins before all keys.
        let bounds = probes.iter().skip(1).cloned();
        let begins = std::iter::once(Bytes::new()).chain(bounds).collect();
        Ok(Perdura {
            store,
            options: Options { timeout, reply_quorum: None },
            passwords: Passwords::new()?,
            turns: Turns::default(),
            waiters: Waiters::new(partitions),
            fullness: Arc::new(Fullness::new(partitions)),
            lists: Arc::new(Lists::new(begins)),
            probes,
            connections,
        })
    }

    /// What its client of the store did, if that has partitions.
    #[must_use]
    pub fn counters(&self) -> Option<Counters> {
        match &self.store {
            StoreClient::Whole(_) => None,
            StoreClient::Partitioned(transactions) => Some(transactions.counters()),
        }
    }

    /// How many partitions the store has.
    #[must_use]
    pub fn partitions(&self) -> usize {
        match &self.store {
            StoreClient::Whole(_) => 1,
            StoreClient::Partitioned(transactions) => transactions.groups().map().partitions(),
        }
    }

    /// How many connections its client of the store has at most.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections
    }

    fn begin(&self) -> Builder {
        self.store.transaction()
    }

    /// Carries out one that only reads.
    async fn read(&self, transaction: Builder) -> Result<Results, Failure> {
        let waiter = self.waiters.ask(transaction.partitions(), Instant::now())?;
        match waiter.until(transaction.run(&self.options)).await.map_err(not_read)? {
            Outcome::Committed(results) => Ok(results),
            Outcome::ResultsGone => {
                Err(Failure::Unavailable("what was read is not kept any more".to_owned()))
            }
            Outcome::Failed { .. } => {
                Err(Failure::Broken("a read failed for what it read".to_owned()))
            }
        }
    }

    /// Carries out one that writes.
    async fn write(&self, transaction: Builder) -> Result<Outcome, Failure> {
        let waiter = self.waiters.ask(transaction.partitions(), Instant::now())?;
        Ok(waiter.until(transaction.run(&self.options)).await?)
    }

    async fn get(&self, key: Bytes) -> Result<Option<Bytes>, Failure> {
        let waiter = self.waiters.ask(self.partition_of(&key), Instant::now())?;
        waiter.until(self.store.get(key, &self.options)).await.map_err(not_read)
    }

    async fn range(&self, range: Range) -> Result<Entries, Failure> {
        let mut look = self.begin();
        let page = look.read_range(range);
        Ok(self.read(look).await?.get(page))
    }

    fn partition_of(&self, key: &[u8]) -> BTreeSet<PartitionId> {
        BTreeSet::from([self.store.partition_of(key)])
    }

    /// Waits for a user's turn to do what has to be done one after the other: not for longer than a transaction may take, since those before may wait for a
    /// partition that is down.
    async fn turn_of(&self, name: &Name) -> Result<Turn<'_>, FollowError> {
        let turn = timeout(self.options.timeout, self.turns.turn_of(name)).await;
        let late = || Failure::Unavailable("others before wait for the store".to_owned());
        turn.unwrap_or_else(|_| Err(late().into()))
    }
}

/// A limit that can be asked for.
fn limited(limit: u32) -> u32 {
    limit.clamp(1, PAGE_MOST)
}

#[async_trait]
impl Sessions for Perdura {
    async fn create_session(
        &self,
        key: &SessionKey,
        session: &Session,
        proof: Option<&Proof>,
    ) -> Result<(), SessionError> {
        self.add_session(key, session, proof).await
    }

    async fn save_session(&self, key: &SessionKey, session: &Session) -> Result<(), SessionError> {
        self.update_session(key, session).await
    }

    async fn load_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure> {
        self.find_session(key).await
    }

    async fn delete_session(&self, key: &SessionKey) -> Result<(), Failure> {
        self.end_session(key).await
    }
}

#[async_trait]
impl Network for Perdura {
    async fn create_account(
        &self,
        name: &Name,
        password: &Password,
        origin: &Origin,
    ) -> Result<Proof, CreateError> {
        self.create(name, password, origin).await
    }

    async fn check_password(
        &self,
        name: &Name,
        password: &Password,
        origin: &Origin,
    ) -> Result<Proof, LoginError> {
        self.check(name, password, origin).await
    }

    async fn change_password(
        &self,
        name: &Name,
        password: &Password,
        new: &Password,
        origin: &Origin,
    ) -> Result<Changed, LoginError> {
        self.change(name, password, new, origin).await
    }

    async fn delete_account(&self, name: &Name, proof: &Proof) -> Result<bool, Failure> {
        self.begin_deletion(name, proof).await
    }

    async fn continue_deletions(&self) -> Result<usize, Failure> {
        self.go_on_deleting().await
    }

    async fn follow(&self, who: &Name, whom: &Name) -> Result<bool, FollowError> {
        self.add_edge(who, whom).await
    }

    async fn unfollow(&self, who: &Name, whom: &Name) -> Result<bool, Failure> {
        self.remove_edge(who, whom).await
    }

    async fn follows(&self, who: &Name, whom: &Name) -> Result<bool, Failure> {
        Ok(self.get(keys::friend(who, whom)).await?.is_some())
    }

    async fn followers(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        self.names(of, keys::KeyKind::Followers, after, limited(limit)).await
    }

    async fn friends(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        self.names(of, keys::KeyKind::Friends, after, limited(limit)).await
    }

    async fn post(&self, author: &Name, new: &NewPost) -> Result<(), PostError> {
        self.add_post(author, new).await
    }

    async fn delete_post(&self, id: &PostId) -> Result<bool, Failure> {
        self.remove_post(id).await
    }

    async fn read_post(&self, id: &PostId) -> Result<Option<Shown>, Failure> {
        self.one_post(id).await
    }

    async fn answers(
        &self,
        to: &PostId,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Option<Page<Shown, PostId>>, Failure> {
        self.answers_to(to, after, limited(limit)).await
    }

    async fn posts(
        &self,
        of: &Name,
        after: Option<PostKey>,
        limit: u32,
    ) -> Result<Page<Shown, PostKey>, Failure> {
        self.posts_of(of, after, limited(limit)).await
    }

    async fn timeline(
        &self,
        of: &Name,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        self.timeline_of(of, after, limited(limit)).await
    }

    async fn newest(
        &self,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        self.newest_of_all(after, limited(limit)).await
    }

    async fn profile(&self, name: &Name) -> Result<Option<Profile>, Failure> {
        self.profile_of(name).await
    }

    async fn check_health(&self) -> Result<(), Failure> {
        let asked = self.probes.iter().map(|probe| self.store.get(probe.clone(), &self.options));
        let answers = join_all(asked).await;
        answers.into_iter().try_for_each(|answer| answer.map(|_| ()).map_err(not_read))
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::perdura_cluster::client::{CallError, Indeterminacy, Refusal};

    /// Who only reads is not told that something may have happened.
    #[test]
    fn a_failure_says_whether_anything_may_have_happened() {
        let detail = String::new;
        let full = CallError::Refused { reason: Refusal::QueueFull, detail: detail() };
        let late =
            CallError::Indeterminate { reason: Indeterminacy::DeadlinePassed, detail: detail() };
        type Wrap = fn(String) -> Failure;
        let all: [(TransactionError, Wrap, Wrap); 3] = [
            (full.into(), Failure::Unavailable, Failure::Unavailable),
            (late.into(), Failure::Indeterminate, Failure::Unavailable),
            (TransactionError::UnexpectedReply, Failure::Indeterminate, Failure::Broken),
        ];
        for (error, of_write, of_read) in all {
            assert_eq!(Failure::from(error.clone()), of_write(error.to_string()));
            assert_eq!(not_read(error.clone()), of_read(error.to_string()));
        }
    }
}
