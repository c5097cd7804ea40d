//! From a cluster's files to a client.

use crate::config::files::Exposed;
use crate::config::partitioned;
use crate::config::{ADMIN_FILE, CLUSTER_FILE, Cluster, KeyFile, PENDING_ADMIN_FILE, ReadError};
use perdura_client::{Client, ClusterConfig};
use perdura_transactions::{Live, StoreClient, Transactions};
use std::path::Path;
use std::time::Duration;

/// Why a key cannot be used for a cluster.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file cannot be used.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its file names another cluster's cluster.toml.
    #[error("{file} is a key for cluster {of}, not for {wanted}; take one of this cluster")]
    OtherCluster {
        /// The key's file.
        file: String,
        /// Of which cluster it is, and where that one's file is.
        of: String,
        /// Of which it was to be.
        wanted: String,
    },
    /// Others than its owner can read it, or write to it.
    #[error(
        "{file}: others may read it or write to it (mode {mode:03o}), and it can replace every replica; `chmod 600` it"
    )]
    Exposed {
        /// The key's file.
        file: String,
        /// Its mode.
        mode: u32,
    },
    /// It was to be replaced, and whether that was ordered is not known.
    #[error(
        "`perdura admin rotate` was interrupted: run `perdura admin rotate --cluster {dir}` first, which goes on with the key in {pending}"
    )]
    Rotating {
        /// The directory of the cluster's files.
        dir: String,
        /// The new key's file.
        pending: String,
    },
    /// It is not the administrator's.
    #[error(
        "{file}: secret_key is not that of the administrator in {cluster}; take the admin.toml that was made \
         with it"
    )]
    NotAdministrator {
        /// The key's file.
        file: String,
        /// The cluster's.
        cluster: String,
    },
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a client of {cluster}: {source}")]
pub struct ConnectError {
    /// The cluster's file.
    pub cluster: String,
    /// Why.
    pub source: perdura_client::ConnectError,
}

/// Why there is no client of a store.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a client of {cluster}: {source}")]
pub struct StoreConnectError {
    /// The cluster's file.
    pub cluster: String,
    /// Why.
    pub source: perdura_transactions::ConnectError,
}

/// The cluster whose files are in `dir`.
pub fn load(dir: &Path) -> Result<Cluster, ReadError> {
    Cluster::load(&dir.join(CLUSTER_FILE))
}

/// The replica groups of the cluster whose files are in `dir`, by partition: one, or several.
pub fn load_groups(dir: &Path) -> Result<Vec<Cluster>, ReadError> {
    partitioned::groups(&dir.join(CLUSTER_FILE))
}

/// The administrator's key. While one is being put in its place, nobody knows which of the two is void.
pub fn administrator(dir: &Path, cluster: &Cluster) -> Result<KeyFile, KeyError> {
    let pending = dir.join(PENDING_ADMIN_FILE);
    if pending.exists() {
        let (dir, pending) = (dir.display().to_string(), pending.display().to_string());
        return Err(KeyError::Rotating { dir, pending });
    }
    administrator_in(&dir.join(ADMIN_FILE), cluster)
}

/// The administrator's key in this file.
pub fn administrator_in(path: &Path, cluster: &Cluster) -> Result<KeyFile, KeyError> {
    if let Some(Exposed { file, mode }) = Exposed::look(path) {
        return Err(KeyError::Exposed { file, mode });
    }
    let file = key(path, cluster)?;
    if !is_administrators(&file, cluster) {
        let (file, cluster) = (path.display().to_string(), cluster.path.display().to_string());
        return Err(KeyError::NotAdministrator { file, cluster });
    }
    Ok(file)
}

/// Whether a key is, or was, the administrator's: it is the first one, or took the place of another.
fn is_administrators(file: &KeyFile, cluster: &Cluster) -> bool {
    let of = &cluster.parameters;
    file.key.public() == of.administrator || file.administrator_of == Some(of.whole_cluster())
}

/// A key file, which must be of `cluster`, or of the one that it is a group of: where it names another cluster.toml that is there
/// too, that has to be the same cluster. One that others may read is warned of, in the log.
pub fn key(path: &Path, cluster: &Cluster) -> Result<KeyFile, KeyError> {
    let file = KeyFile::load(path)?;
    warn_of_exposed(path);
    if file.cluster.exists() {
        let groups = partitioned::groups(&file.cluster)?;
        let other = groups.first().map(|group| group.parameters.whole_cluster());
        let wanted = cluster.parameters.whole_cluster();
        if let Some(other) = other.filter(|other| *other != wanted) {
            let name = |of, at: &Path| format!("{of} ({})", at.display());
            return Err(KeyError::OtherCluster {
                file: path.display().to_string(),
                of: name(other, &file.cluster),
                wanted: name(wanted, &cluster.path),
            });
        }
    }
    Ok(file)
}

/// Says in the log that others may read a secret file, if they may.
pub(crate) fn warn_of_exposed(path: &Path) {
    if let Some(exposed) = Exposed::look(path) {
        tracing::warn!("{exposed}");
    }
}

/// What a client with this key needs to know of a group.
fn config(cluster: &Cluster, key: &KeyFile) -> ClusterConfig {
    let mut config = cluster.client_config();
    if is_administrators(key, cluster) {
        config.administrator = Some(key.key.public());
    }
    config
}

/// What needs a partition of which too few replicas are there is refused after this time, by default.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(2);

/// A client of the key-value store of a cluster, over all of its partitions where it has several: `groups` are what [`load_groups`] gives. Inside
/// of a tokio runtime. Where there are several, calls that need one of which too few replicas are there are refused after [`UNREACHABLE_AFTER`].
pub fn connect_store(groups: &[Cluster], key: &KeyFile) -> Result<StoreClient, StoreConnectError> {
    connect_store_with(groups, key, Some(UNREACHABLE_AFTER))
}

/// The same with another time ([`ClusterConfig::unreachable_after`]).
pub fn connect_store_with(
    groups: &[Cluster],
    key: &KeyFile,
    unreachable_after: Option<Duration>,
) -> Result<StoreClient, StoreConnectError> {
    let file = groups.first().map(|group| group.path.display().to_string());
    let failed = |source| StoreConnectError { cluster: file.unwrap_or_default(), source };
    let map = groups.first().and_then(|group| group.parameters.map.clone());
    match (map, groups) {
        (None, [only]) => Client::connect(config(only, key), key.key.clone())
            .map(StoreClient::Whole)
            .map_err(|source| failed(source.into())),
        (None, _) => {
            let groups = groups.len();
            Err(failed(perdura_transactions::ConnectError::Groups { partitions: 1, groups }))
        }
        (Some(map), groups) => {
            let config = |group| ClusterConfig { unreachable_after, ..config(group, key) };
            let groups = groups.iter().map(config).collect();
            let live = Live::connect(map, groups, &key.key).map_err(failed)?;
            Ok(StoreClient::Partitioned(Transactions::over(live)))
        }
    }
}

/// A client of one group; inside of a tokio runtime.
pub fn connect(cluster: &Cluster, key: &KeyFile) -> Result<Client, ConnectError> {
    connect_to(cluster, key, false)
}

/// The same of a group whose service may take long for a query, or does not.
pub fn connect_to(
    cluster: &Cluster,
    key: &KeyFile,
    takes_long: bool,
) -> Result<Client, ConnectError> {
    let config = ClusterConfig { takes_long, ..config(cluster, key) };
    Client::connect(config, key.key.clone()).map_err(|source| {
        let cluster = cluster.path.display().to_string();
        ConnectError { cluster, source }
    })
}
