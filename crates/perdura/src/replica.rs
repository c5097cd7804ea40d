//! Running a replica in this process.

use perdura_cluster::config::REPLICA_FILE;
use perdura_cluster::replica::{OpenError as ReplicaError, RunError, config};
use perdura_replica::runtime;
use perdura_typed::{Service, Typed, name_of};
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
    pub fn service<S: Service>(&self) -> Result<Running, ReplicaError> {
        let config = config(&self.file, &name_of::<S>())?;
        let run = move |shutdown: &runtime::Shutdown| {
            let (id, limit) = (config.id, config.parameters.state_limit_bytes);
            let make = move || Typed::<S>::new(limit);
            runtime::run(config, make, shutdown).map_err(|source| RunError { id, source })
        };
        Ok(Running(Box::new(run)))
    }

    /// With the key-value store, where that is what its cluster replicates.
    ///
    /// # Errors
    /// As [`Replica::service`].
    pub fn store(&self) -> Result<Running, ReplicaError> {
        let replica = perdura_cluster::replica::Replica::open(&self.file)?;
        Ok(Running(Box::new(move |shutdown| replica.run(shutdown))))
    }
}

/// A replica that is ready to be run.
#[must_use]
pub struct Running(Box<Run>);

type Run = dyn FnOnce(&runtime::Shutdown) -> Result<(), RunError> + Send;

impl Running {
    /// Runs it, on this thread and some of its own, until that is asked for.
    ///
    /// # Errors
    /// Why it did not start, or stopped, and what to do about it.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RunError> {
        (self.0)(&shutdown.0)
    }
}
