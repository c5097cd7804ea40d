//! From a replica's file to a replica that runs.

use crate::config::{ADMIN_FILE, Cluster, ReadError, ReplicaFile, files};
use crate::connect::warn_of_exposed;
use crate::service::ServiceKind;
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{PartitionId, ReplicaId, ServiceName};
use perdura_replica::runtime::{self, ReplicaConfig, Shutdown};
use perdura_store::Store;
use perdura_store::partition::StorePartition;
use perdura_tuples::TupleSpaces;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a replica cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its files cannot be used.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its cluster runs another service.
    #[error(
        "{file}: service is {found:?}, and this program runs {given:?}; use the one that has it"
    )]
    OtherService {
        /// The cluster's file.
        file: String,
        /// What it names.
        found: ServiceName,
        /// What was to be run.
        given: ServiceName,
    },
    /// Its data directory belongs to somebody else.
    #[error(
        "replica {id}: the data directory {data}: permission denied to {user}, as whom this runs; `chown -R {user}` it, or run this as its \
         owner"
    )]
    Forbidden {
        /// Which replica.
        id: u8,
        /// Its data directory.
        data: String,
        /// As whom this runs.
        user: String,
    },
    /// The operating system does not say what is in its data directory.
    #[error("replica {id}: cannot read the data directory {data}")]
    Unreadable {
        /// Which replica.
        id: u8,
        /// Its data directory.
        data: String,
        /// What the system says.
        source: io::Error,
    },
    /// Its data directory is empty or missing. A blank replica must not take the place of one that made promises
    /// (rule D8).
    #[error(
        "replica {id}: the data directory {data} is {what}. If its disk is not mounted, mount it. If its \
         content is lost, replace the replica{} with `perdura replica reinit --cluster {}{} --id {id}`",
        if cluster.is_some() { "" } else { ", on the machine where admin.toml is," },
        cluster.as_deref().unwrap_or("DIR"),
        option(*partition)
    )]
    Blank {
        /// Of which partition, where there are several.
        partition: Option<PartitionId>,
        /// Which replica.
        id: u8,
        /// Its data directory.
        data: String,
        /// `empty` or `missing`.
        what: &'static str,
        /// Where the cluster's files are, if the administrator's key is there too.
        cluster: Option<String>,
    },
}

/// Which partition, for a command line; nothing where there is only one.
fn option(partition: Option<PartitionId>) -> String {
    partition.map_or_else(String::new, |partition| format!(" --partition {partition}"))
}

/// Why a replica did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[error("replica {id}: {source}")]
pub struct RunError {
    /// Which replica.
    pub id: ReplicaId,
    /// Why.
    pub source: runtime::RunError,
}

/// A replica whose files fit each other, and whose data directory holds something.
pub struct Replica {
    /// Its file: if others may read it, [`Replica::run`] warns of that in the log.
    pub file: PathBuf,
    /// What it is run with, as in its files; what they do not name is off.
    pub config: ReplicaConfig,
    /// What the cluster replicates.
    pub service: ServiceKind,
}

/// A replica's file and its cluster's, which fit each other.
pub fn load(path: &Path) -> Result<(ReplicaFile, Cluster), ReadError> {
    let file = ReplicaFile::load(path)?;
    let cluster = Cluster::load(&file.cluster()).map_err(ReadError::of_a_host)?;
    file.check_member(&cluster)?;
    Ok((file, cluster))
}

/// What [`runtime::run`] takes for the replica whose file is at `path`, with a service of your own of that name. Nothing is
/// changed, nor run. If others may read the file, that is warned of in the log.
pub fn config(path: &Path, service: &ServiceName) -> Result<ReplicaConfig, OpenError> {
    let (file, cluster) = load(path)?;
    if cluster.parameters.service != *service {
        let found = cluster.parameters.service.clone();
        let file = cluster.path.display().to_string();
        return Err(OpenError::OtherService { file, found, given: service.clone() });
    }
    check_data(&file, &cluster)?;
    warn_of_exposed(path);
    Ok(replica_config(file, &cluster))
}

impl Replica {
    /// The one whose file is at `path`, of a cluster that runs a service of this program. Nothing is changed, nor run.
    pub fn open(path: &Path) -> Result<Replica, OpenError> {
        let (file, cluster) = load(path)?;
        check_data(&file, &cluster)?;
        let service = cluster.service()?;
        let config = replica_config(file, &cluster);
        Ok(Replica { file: path.to_owned(), config, service })
    }

    /// Runs it until `shutdown` is requested.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RunError> {
        let id = self.config.id;
        warn_of_exposed(&self.file);
        run(self.config, self.service, shutdown).map_err(|source| RunError { id, source })
    }
}

/// Which partition a group of a partitioned store has.
fn place(parameters: &Parameters) -> Option<StorePartition> {
    let (map, partition) = (parameters.map.clone()?, parameters.partition()?);
    Some(StorePartition { map, partition, max_skew_ms: parameters.max_skew_ms })
}

/// Runs a replica with a service of this program. Where there are several partitions, its parameters have the map, and which partition
/// is its own.
pub(crate) fn run(
    config: ReplicaConfig,
    service: ServiceKind,
    shutdown: &Shutdown,
) -> Result<(), runtime::RunError> {
    let limit = config.parameters.state_limit_bytes;
    match service {
        ServiceKind::KeyValue => {
            let place = place(&config.parameters);
            let make = move || match &place {
                None => Store::new(limit),
                Some(place) => Store::partitioned(limit, place.clone()),
            };
            runtime::run(config, make, shutdown)
        }
        ServiceKind::TupleSpaces => runtime::run(config, move || TupleSpaces::new(limit), shutdown),
    }
}

/// That there is something in the data directory.
pub(crate) fn check_data(file: &ReplicaFile, cluster: &Cluster) -> Result<(), OpenError> {
    let (path, id, partition) = (file.data(), file.id, cluster.parameters.partition());
    let data = path.display().to_string();
    let holds_something = match std::fs::read_dir(&path) {
        // A file system brings `lost+found`.
        Ok(entries) => entries.flatten().any(|entry| {
            let name = entry.file_name();
            name != "lock" && name != "lost+found"
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(OpenError::Forbidden { id, data, user: files::user() });
        }
        Err(source) => return Err(OpenError::Unreadable { id, data, source }),
    };
    if holds_something {
        // What was copied as another user may be seen, and cannot be opened.
        let lock = std::fs::OpenOptions::new().write(true).open(path.join("lock"));
        return match lock {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(OpenError::Forbidden { id, data, user: files::user() })
            }
            _ => Ok(()),
        };
    }
    let what = if path.exists() { "empty" } else { "missing" };
    let cluster = files::directory_of(&cluster.path);
    let is_administrators = cluster.join(ADMIN_FILE).exists();
    let cluster = is_administrators.then(|| cluster.display().to_string());
    Err(OpenError::Blank { partition, id, data, what, cluster })
}

pub(crate) fn replica_config(file: ReplicaFile, cluster: &Cluster) -> ReplicaConfig {
    let id = ReplicaId(file.id);
    ReplicaConfig {
        id,
        incarnation: file.incarnation,
        data: file.data(),
        log_device: None,
        profile: false,
        lost_log_lines: Default::default(),
        checkpoint_bytes_per_s: file.rates.checkpoint_mb_s * 1_000_000,
        scrub_interval: Duration::from_secs(file.rates.scrub_interval_s),
        state_transfer: file.rates.state_transfer,
        place: file.rates.execution,
        read_threads: file.rates.read_threads,
        key: file.key,
        parameters: cluster.parameters.clone(),
        genesis: cluster.genesis(id),
        latest: cluster.latest(),
        addresses: cluster.replicas.iter().map(|entry| entry.address.clone()).collect(),
        listen: file.listen,
        http: file.http,
        on_server: None,
    }
}
