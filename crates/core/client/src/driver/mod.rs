//! The client on tokio: a handle for callers, and one task that owns all connections.
//!
//! The task runs on the runtime that [`Client::connect`] is called on. It reads, decides and writes
//! by itself, so that on a single-threaded runtime a call crosses no thread. It ends when the last
//! handle is dropped or [`Client::close`] is called, and tries to reach replicas until then.

mod connection;
mod task;

use crate::core::{ClientConfig, ClientCore, ClientStats, Mode, SLOW_READ_MS};
use crate::outcome::{Indeterminacy, Refusal, Reply};
use bytes::Bytes;
use perdura_protocol::vitals::Vitals;
use perdura_protocol::{
    AdminCommand, ClusterId, Command, Encode, Faults, PublicKey, ReplicaId, SecretKey, View, limits,
};
use perdura_transport::{Identity, IdentityError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use task::{CallRequest, Request, Task};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// Requests between callers and the task. What the task has taken waits in the core; this many
/// are taken in one of its turns.
const REQUESTS: usize = 1024;

/// Longest time that a call waits: ten years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Where a replica is, and how it proves itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaAddress {
    /// Its id.
    pub id: ReplicaId,
    /// `host:port`; names are resolved at each attempt.
    pub address: String,
    /// Its key.
    pub key: PublicKey,
}

/// The cluster to talk to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// Its id.
    pub cluster: ClusterId,
    /// Its fault bounds.
    pub faults: Faults,
    /// Its replicas, in any order, each once.
    pub replicas: Vec<ReplicaAddress>,
    /// The administrator's key, where it is known: who holds it comes as the administrator.
    pub administrator: Option<PublicKey>,
    /// Whether other groups have replicas at the same addresses, so that whoever connects has to name the group before all else.
    pub named: bool,
    /// What was not sent is refused after so long in which fewer than n - u replicas are linked and none answers, and from then on at once, but for one call a
    /// second. None: each call waits until its deadline.
    pub unreachable_after: Option<Duration>,
    /// Whether commands and queries of its service may take milliseconds: a fast read waits longer for its answers then before it is ordered.
    pub takes_long: bool,
}

/// Why a client could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The replicas are not those of a group with these fault bounds.
    #[error("{found} replicas are given, numbered {ids:?}; the group has {wanted}, from 0")]
    Replicas {
        /// Replicas given.
        found: usize,
        /// Their ids.
        ids: Vec<u8>,
        /// Replicas of a group with these bounds.
        wanted: usize,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Called outside of a tokio runtime, or in one without time.
    #[error("a client is made inside of a tokio runtime, with its time and io enabled")]
    NoRuntime,
}

/// How a call is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The call ends after this time at the latest, and after ten years in any case.
    pub timeout: Duration,
    /// Matching replies that are wanted; none means r + 1, and less is raised to that. At most n.
    pub reply_quorum: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options { timeout: Duration::from_secs(10), reply_quorum: None }
    }
}

/// A call without a reply (rule C1).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing happened, and will not. That is certain.
    #[error("refused: {reason}{detail}")]
    Refused {
        /// Why.
        reason: Refusal,
        /// Empty, or which replicas could not be reached and why.
        detail: String,
    },
    /// It may have happened, or still happen.
    #[error("indeterminate: {reason}{detail}")]
    Indeterminate {
        /// Why.
        reason: Indeterminacy,
        /// Empty, or which replicas could not be reached and why.
        detail: String,
    },
}

impl CallError {
    fn refused(reason: Refusal) -> CallError {
        CallError::Refused { reason, detail: String::new() }
    }

    /// Whether it is certain that nothing happened.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, CallError::Refused { .. })
    }
}

/// What a client did, and how it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverStats {
    /// Counters of the protocol.
    pub core: ClientStats,
    /// The view that the client believes the replicas to be in.
    pub view: View,
    /// Calls that have not ended.
    pub open_calls: usize,
    /// Replicas that are linked now.
    pub linked: Vec<ReplicaId>,
    /// For those that are not, why.
    pub failures: Vec<(ReplicaId, String)>,
}

/// Whether a replica is there, and how it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attendance {
    /// Which.
    pub id: ReplicaId,
    /// What it said of itself, signed by it; none if it did not answer.
    pub vitals: Option<Vitals>,
    /// Why there is no link to it.
    pub failure: Option<String>,
    /// Whether something runs at its address that did not let this client in.
    pub runs: bool,
    /// The configuration in which it signed what it said.
    pub configuration: Option<u64>,
}

/// A client of a cluster: one session, shared by all clones of the handle. Several sessions are
/// several clients.
#[derive(Clone, Debug)]
pub struct Client {
    requests: mpsc::Sender<Request>,
}

impl Client {
    /// Makes a client with `key` and starts its task on the current runtime, which needs time and
    /// io enabled. Does not wait for connections.
    ///
    /// # Errors
    /// When the configuration contradicts itself, the key is no Ed25519 key, or there is no
    /// runtime.
    pub fn connect(cluster: ClusterConfig, key: SecretKey) -> Result<Client, ConnectError> {
        Client::connect_with(cluster, key, |_| None)
    }

    /// The same where `leaf_of` says what a reply of the service states to those outside of the group, as its replicas do
    /// ([`Reply::Attested`]).
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(
        cluster: ClusterConfig,
        key: SecretKey,
        leaf_of: fn(&[u8]) -> Option<Bytes>,
    ) -> Result<Client, ConnectError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        // Nothing else tells whether it has timers. Without them the task would end where nobody sees it.
        let timer = || drop(tokio::time::sleep(Duration::ZERO));
        std::panic::catch_unwind(timer).map_err(|_| ConnectError::NoRuntime)?;
        let mut replicas = cluster.replicas;
        replicas.sort_by_key(|replica| replica.id);
        let ids: Vec<u8> = replicas.iter().map(|replica| replica.id.0).collect();
        let wanted = cluster.faults.n();
        if !ids.iter().copied().map(usize::from).eq(0..wanted) {
            return Err(ConnectError::Replicas { found: ids.len(), ids, wanted });
        }
        let mut identity = Identity::new(&key)?;
        if cluster.named {
            identity = identity.naming(cluster.cluster);
        }
        let administrator = cluster.administrator == Some(key.public());
        let usual = ClientConfig::new(cluster.cluster, cluster.faults, key);
        let takes_long = cluster.takes_long;
        let config = ClientConfig {
            administrator,
            leaf_of,
            fast_read_ms: if takes_long { SLOW_READ_MS } else { usual.fast_read_ms },
            unreachable_ms: cluster
                .unreachable_after
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            replica_keys: replicas.iter().map(|replica| replica.key).collect(),
            ..usual
        };
        let core = ClientCore::new(config, fresh_nonce(), random_bytes(), 0);
        let (requests, receiver) = mpsc::channel(REQUESTS);
        let task = Task::new(core, identity, cluster.cluster, administrator, replicas, receiver);
        runtime.spawn(task.run());
        Ok(Client { requests })
    }

    /// Orders a service command; `content` is what the service sees.
    ///
    /// # Errors
    /// A refusal, when it is certain that nothing happened; else indeterminate.
    pub async fn call(&self, content: Bytes, options: &Options) -> Result<Reply, CallError> {
        let command = Command::Service(content).to_bytes();
        self.request(command, Mode::Ordered, options).await
    }

    /// Carries out a service command that only reads, without ordering where enough replicas answer
    /// alike, or of one slot, else ordered (rule C2). What the service answers in order only, such as a command that writes, is carried out as by
    /// [`Client::call`], once.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn read(&self, content: Bytes, options: &Options) -> Result<Reply, CallError> {
        Ok(match self.observe(content, options).await? {
            Reply::Unordered { reply, .. } => Reply::Service(reply),
            reply => reply,
        })
    }

    /// As [`Client::read`]; what was not ordered comes with its slot ([`Reply::Unordered`]).
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn observe(&self, content: Bytes, options: &Options) -> Result<Reply, CallError> {
        let command = Command::Service(content).to_bytes();
        self.request(command, Mode::Fast, options).await
    }

    /// Orders an administration command; refused unless the client's key is the administrator's.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn administer(
        &self,
        command: AdminCommand,
        options: &Options,
    ) -> Result<Reply, CallError> {
        let command = Command::Admin(command).to_bytes();
        self.request(command, Mode::Ordered, options).await
    }

    async fn request(
        &self,
        command: Bytes,
        mode: Mode,
        options: &Options,
    ) -> Result<Reply, CallError> {
        let (answer, result) = oneshot::channel();
        let deadline = after(options.timeout);
        let reply_quorum = options.reply_quorum;
        let call = CallRequest { command, mode, deadline, reply_quorum, answer };
        match self.requests.try_send(Request::Call(call)) {
            Ok(()) => {}
            Err(TrySendError::Closed(_)) => return Err(CallError::refused(Refusal::Closed)),
            Err(TrySendError::Full(request)) => {
                match timeout_at(deadline, self.requests.send(request)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(CallError::refused(Refusal::Closed)),
                    Err(_) => return Err(CallError::refused(Refusal::DeadlinePassed)),
                }
            }
        }
        // The task answers every call that it took before it ends.
        result.await.unwrap_or_else(|_| {
            let reason = Indeterminacy::Closed;
            Err(CallError::Indeterminate { reason, detail: String::new() })
        })
    }

    /// Asks every replica how it is, by itself: nothing is ordered. Ends when all have answered, or after `timeout` with
    /// those who have; `None` once the client is closed.
    pub async fn roll_call(&self, timeout: Duration) -> Option<Vec<Attendance>> {
        let (answer, attendance) = oneshot::channel();
        let nonce = random_bytes();
        let deadline = after(timeout);
        self.requests.send(Request::Roll { nonce, deadline, answer }).await.ok()?;
        attendance.await.ok()
    }

    /// Counters and connections; `None` once the client is closed.
    pub async fn stats(&self) -> Option<DriverStats> {
        let (answer, stats) = oneshot::channel();
        self.requests.send(Request::Stats(answer)).await.ok()?;
        stats.await.ok()
    }

    /// Number of the session that is open; one is opened if there is none. A call that is made at once goes in it, unless it ends before:
    /// for commands that name their session.
    ///
    /// # Errors
    /// A refusal, when none is open in time.
    pub async fn session(&self, timeout: Duration) -> Result<u64, CallError> {
        let (answer, nonce) = oneshot::channel();
        let deadline = after(timeout);
        let closed = || CallError::refused(Refusal::Closed);
        self.requests.send(Request::Session { deadline, answer }).await.map_err(|_| closed())?;
        nonce.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Has calls go in another session than the one with this number from now on, if that is the one that is open. Later calls wait until those
    /// that are under way in it have ended. For a session in which the service carries out nothing more of some kind.
    pub async fn leave_session(&self, nonce: u64) {
        let _ = self.requests.send(Request::Leave(nonce)).await;
    }

    /// Takes no further call, of any clone. Those that were not sent are refused, what waits is withdrawn, and the others end as they
    /// were decided: so each that the replicas answer ends with what it came to, and a wait that was just served with that. For a
    /// program that is to end; to be followed by [`Client::close`], after a while that is long enough for replicas to answer.
    pub async fn withdraw(&self) {
        let _ = self.requests.send(Request::Withdraw).await;
    }

    /// Ends all calls, of all clones, and closes the connections. Later calls are refused.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.requests.send(Request::Close(answer)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

fn random_bytes() -> [u8; 16] {
    let half = || RandomState::new().build_hasher().finish().to_le_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half());
    bytes[8..].copy_from_slice(&half());
    bytes
}

/// The end of a time from now on; one that nobody lives to see is cut, for clocks have an end.
fn after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

/// A session number by the clock, larger than all before in this process; see
/// [`limits::NONCES_PER_MS`]. Where the clock is wrong, by however much, replicas tell the right one.
fn fresh_nonce() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let per_microsecond = limits::NONCES_PER_MS / 1000;
    let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    let chance = RandomState::new().build_hasher().finish() % per_microsecond;
    let by_clock = micros.saturating_mul(per_microsecond).saturating_add(chance);
    let next = |last: u64| by_clock.max(last.saturating_add(1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    next(last.unwrap_or_else(|last| last))
}
