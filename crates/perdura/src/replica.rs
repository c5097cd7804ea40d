//! Running a replica in this process.

use perdura_cluster::config::REPLICA_FILE;
use perdura_cluster::replica::{OpenError as ReplicaError, RunError, config};
use perdura_replica::runtime::{self, ReplicaConfig};
use perdura_typed::{Service, Typed, name_of};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// Asks a running replica to stop in order. Clones ask the same one.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(runtime::Shutdown);

impl Shutdown {
    /// Nothing is asked yet.
    #[must_use]
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// The replica makes durable what it took on, and [`Running::run`] returns. Not for signal handlers themselves; from a thread that waits for
    /// signals.
    pub fn request(&self) {
        self.0.request();
    }
}

/// A replica's directory.
#[derive(Clone, Debug)]
pub struct Replica {
    file: PathBuf,
}

impl Replica {
    /// The one that was made in `dir`, `replica-0` of a cluster's files for example, or whose `replica.toml` this is. Nothing is looked at yet.
    #[must_use]
    pub fn open(dir: impl AsRef<Path>) -> Replica {
        let path = dir.as_ref();
        let file = if path.is_dir() { path.join(REPLICA_FILE) } else { path.to_owned() };
        Replica { file }
    }

    /// With this service, which has to be the one of its cluster.
    ///
    /// # Errors
    /// When its files cannot be read or do not fit each other, when its cluster has another service, or when its data is gone.
    pub fn service<S: Service>(&self) -> Result<Running<S>, ReplicaError> {
        let config = config(&self.file, &name_of::<S>())?;
        Ok(Running { config, service: PhantomData })
    }
}

impl Replica {
    /// With the key-value store, where that is what its cluster replicates.
    ///
    /// # Errors
    /// As [`Replica::service`].
    pub fn store(&self) -> Result<RunningStore, ReplicaError> {
        let replica = perdura_cluster::replica::Replica::open(&self.file)?;
        Ok(RunningStore { replica })
    }
}

/// A replica of the key-value store that is ready to be run.
pub struct RunningStore {
    replica: perdura_cluster::replica::Replica,
}

impl RunningStore {
    /// As [`Running::run`].
    ///
    /// # Errors
    /// As there.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RunError> {
        self.replica.run(&shutdown.0)
    }
}

/// A replica that is ready to be run.
pub struct Running<S> {
    config: ReplicaConfig,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Running<S> {
    /// Runs it, on this thread and some of its own, until that is asked for.
    ///
    /// # Errors
    /// Why it did not start, or stopped, and what to do about it.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RunError> {
        let id = self.config.id;
        let limit = self.config.parameters.state_limit_bytes;
        let make = move || Typed::<S>::new(limit);
        runtime::run(self.config, make, &shutdown.0).map_err(|source| RunError { id, source })
    }
}
