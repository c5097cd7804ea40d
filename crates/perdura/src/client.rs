//! Clients from a cluster's files.

use perdura_client::Options;
use perdura_cluster::config::{CLIENT_FILE, ReadError};
use perdura_cluster::connect::{self, KeyError};
use perdura_cluster::connect::{ConnectError, StoreConnectError};
use perdura_protocol::ServiceName;
use perdura_typed::{CallError, Service};
use std::fmt;
use std::path::Path;

/// Why there is no client. Nothing was sent to anybody.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The cluster's file cannot be used.
    #[error(transparent)]
    Cluster(#[from] ReadError),
    /// Nor can the client's key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The cluster replicates something else.
    #[error("{file}: the cluster replicates {found:?}, not {wanted:?}")]
    OtherService {
        /// The cluster's file.
        file: String,
        /// What it has.
        found: String,
        /// What the client is for.
        wanted: String,
    },
    /// The cluster is spread over partitions, which only the key-value store is.
    #[error("{file}: the cluster has several partitions, and a service of one's own has one")]
    Partitioned {
        /// The cluster's file.
        file: String,
    },
    /// The client of the group cannot be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nor that of the store.
    #[error(transparent)]
    Store(#[from] StoreConnectError),
    /// The operating system gives no threads.
    #[error("the operating system failed: {0}")]
    System(#[from] std::io::Error),
}

/// A client of a service of your own. Clones share its connections; use one for all of a process.
pub struct Client<S>(perdura_typed::Client<S>);

/// Whatever the service is.
impl<S> Clone for Client<S> {
    fn clone(&self) -> Client<S> {
        Client(self.0.clone())
    }
}

impl<S> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: Service> Client<S> {
    /// One of the cluster whose files are in `dir`, with the key of `client.toml` there. Inside of a tokio runtime, which serves its connections.
    ///
    /// # Errors
    /// When the files cannot be read, or are of a cluster with another service.
    pub fn open(dir: impl AsRef<Path>) -> Result<Client<S>, OpenError> {
        let dir = dir.as_ref();
        Client::open_as(dir, dir.join(CLIENT_FILE))
    }

    /// The same with the key in another file, one that `client add` made.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_as(dir: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Client<S>, OpenError> {
        let groups = connect::load_groups(dir.as_ref())?;
        let [cluster] = &groups[..] else {
            let file = groups.first().map(|group| group.path.display().to_string());
            return Err(OpenError::Partitioned { file: file.unwrap_or_default() });
        };
        check_service(cluster, S::NAME)?;
        let key = connect::key(key.as_ref(), cluster)?;
        Ok(Client(perdura_typed::Client::over(connect::connect_to(cluster, &key, S::TAKES_LONG)?)))
    }

    /// The same with other options: how long calls take at most.
    #[must_use]
    pub fn with(&self, options: Options) -> Client<S> {
        Client(self.0.with(options))
    }

    /// Has a command carried out.
    ///
    /// # Errors
    /// [`CallError`]: refused by the service, refused or uncertain on the way.
    pub async fn execute(&self, command: &S::Command) -> Result<S::Reply, CallError<S::Error>> {
        self.0.execute(command).await
    }

    /// Has a query answered, by a state that has all that was carried out before: without an order where enough replicas answer alike.
    ///
    /// # Errors
    /// [`CallError`]: refused by the service, refused or uncertain on the way.
    pub async fn query(&self, query: &S::Query) -> Result<S::Reply, CallError<S::Error>> {
        self.0.query(query).await
    }

    /// Ends its connections; calls that wait are told.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

/// That the cluster has the service of this name.
pub(crate) fn check_service(
    cluster: &perdura_cluster::Cluster,
    wanted: &str,
) -> Result<(), OpenError> {
    let found: &ServiceName = &cluster.parameters.service;
    if found.as_str() == wanted {
        return Ok(());
    }
    let (found, wanted) = (found.as_str().to_owned(), wanted.to_owned());
    Err(OpenError::OtherService { file: cluster.path.display().to_string(), found, wanted })
}
