//! Making a cluster: its keys, its configuration, and a directory for each replica.

use perdura_cluster::create::{self, Place, PlacesError};
use perdura_protocol::configuration::{CHECKPOINT_MS, Durability, Parameters};
use perdura_protocol::{Faults, FaultsError, ServiceName};
use perdura_typed::{Service, name_of};
use std::path::{Path, PathBuf};

/// The files of a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    dir: PathBuf,
    replicas: usize,
}

impl Cluster {
    /// A new one, whose files are to be in `dir`.
    pub fn builder(dir: impl Into<PathBuf>) -> Builder {
        Builder {
            dir: dir.into(),
            faults: None,
            hosts: Vec::new(),
            base_port: None,
            state_limit_mib: None,
            checkpoint_ms: None,
        }
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How many replicas it has.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// What belongs to replica `id`, 0 on: with `cluster.toml` beside it, it goes to the machine that the replica is to run on, and
    /// [`crate::Replica::open`] takes it there.
    #[must_use]
    pub fn replica_dir(&self, id: usize) -> PathBuf {
        self.dir.join(format!("replica-{id}"))
    }
}

/// What a cluster is to be.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    dir: PathBuf,
    faults: Option<Faults>,
    hosts: Vec<String>,
    base_port: Option<u16>,
    checkpoint_ms: Option<u64>,
    state_limit_mib: Option<u64>,
}

/// Why a cluster was not made. What was made before stays, without a `cluster.toml`.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The number of hosts is not that of the replicas, or one is none under which others find it.
    #[error("{}", places(.0))]
    Places(PlacesError),
    /// The directory is not empty, or it cannot be made or written.
    #[error(transparent)]
    Files(#[from] create::CreateError),
    /// These bounds are none of a cluster.
    #[error(transparent)]
    Faults(#[from] FaultsError),
}

/// In the words of a library: those of the command line name its options.
fn places(error: &PlacesError) -> String {
    match error {
        PlacesError::Hosts { given, n } => {
            format!("{given} hosts are given, and the cluster has {n} replicas")
        }
        PlacesError::Host(host) => format!("{host:?} is no host name or address"),
        PlacesError::Loopback { host, address } => format!(
            "the host {host:?} is {address}, which every machine takes for itself; give names or addresses under which the others find it"
        ),
        PlacesError::NoRoom { base, count } => {
            format!("behind port {base} there is no room for {count} ports")
        }
        PlacesError::NoFreePorts { count } => {
            format!("found no {count} free ports in a row; give the first one")
        }
        PlacesError::Entropy(error) => error.to_string(),
    }
}

impl Builder {
    /// Which faults it bears; by default one replica of four that fails in any way, lying included.
    pub fn faults(self, faults: Faults) -> Builder {
        Builder { faults: Some(faults), ..self }
    }

    /// A host for each replica, in the order of their ids, by names or addresses under which the others and clients find it. Without it all
    /// are on this machine.
    pub fn hosts<H: Into<String>>(self, hosts: impl IntoIterator<Item = H>) -> Builder {
        Builder { hosts: hosts.into_iter().map(H::into).collect(), ..self }
    }

    /// The port of the protocol; the next is for HTTP (status and metrics). With hosts all have it, 7400 by default; on this machine each replica
    /// takes two, and without it free ones.
    pub fn base_port(self, port: u16) -> Builder {
        Builder { base_port: Some(port), ..self }
    }

    /// How large the state may become, MiB; 8192 by default. It can be raised later.
    pub fn state_limit_mib(self, mib: u64) -> Builder {
        Builder { state_limit_mib: Some(mib), ..self }
    }

    /// After how much time a checkpoint is due even earlier while commands come, milliseconds, 1,000 to 3,600,000: a replica replays its log after a
    /// restart for less than three times as long. By default 20,000 for a service whose [`Service::TAKES_LONG`] says so, and never for others.
    pub fn checkpoint_ms(self, ms: u64) -> Builder {
        Builder { checkpoint_ms: Some(ms), ..self }
    }

    /// Makes the files of one that replicates this service: keys, configuration, a directory for each replica. The directory has to be missing or
    /// empty.
    ///
    /// # Errors
    /// [`CreateError`]; nothing of the kind is there then that could be taken for a cluster.
    pub fn create<S: Service>(self) -> Result<Cluster, CreateError> {
        self.make(name_of::<S>(), |parameters| {
            parameters.versions.service = S::VERSION;
            parameters.checkpoint_ms = S::TAKES_LONG.then_some(CHECKPOINT_MS);
        })
    }

    /// The same of one that has the key-value store, in one partition.
    ///
    /// # Errors
    /// As [`Builder::create`].
    pub fn create_store(self) -> Result<Cluster, CreateError> {
        self.make(ServiceName::literal("kv"), |_| {})
    }

    fn make(
        self,
        service: ServiceName,
        tune: impl FnOnce(&mut Parameters),
    ) -> Result<Cluster, CreateError> {
        let faults = self.faults.map_or_else(|| Faults::new(1, 1), Ok)?;
        let places = Place::all(faults.n(), &self.hosts, self.base_port, false);
        let places = places.map_err(CreateError::Places)?;
        let tune = |parameters: &mut Parameters| {
            tune(parameters);
            parameters.checkpoint_ms = self.checkpoint_ms.or(parameters.checkpoint_ms);
            if let Some(mib) = self.state_limit_mib {
                parameters.state_limit_bytes = mib.saturating_mul(1024 * 1024);
            }
        };
        let made = create::make(&self.dir, faults, Durability::Sync, service, tune, &places)?;
        Ok(Cluster { dir: self.dir, replicas: made.replicas.len() })
    }
}
