//! The cluster that is measured now. However the benchmark ends, its processes end and its directory
//! is removed: dropped when a measurement is done or failed, taken away on SIGINT or SIGTERM; and
//! children that outlive a `kill -9` of this process end by themselves.

use crate::init::{Tuning, make, places};
use crate::local::{ChildKind, Group, Start, replica_file};
use crate::partitions::{self, New};
use crate::process;
use anyhow::{Context, Result};
use perdura_cluster::ServiceKind;
use perdura_cluster::config::{CLIENT_FILE, Cluster, KeyFile, ReplicaFile};
use perdura_cluster::connect::load_groups;
use perdura_cluster::create::{Partitions, Place};
use perdura_protocol::Faults;
use perdura_protocol::configuration::Durability;
use perdura_replica::node::StateTransfer;
use perdura_replica::runtime::LogDevice;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Its processes, then its directory.
struct Running {
    group: Group,
    _directory: TempDir,
}

/// What kind of cluster.
#[derive(Clone, Copy)]
pub struct Made {
    /// How its replicas log.
    pub durability: Durability,
    /// On what, besides the disk that is there.
    pub device: Option<LogDevice>,
    /// What it replicates.
    pub service: ServiceKind,
    /// Its parameters.
    pub tuning: Tuning,
    /// Whom its replicas ask for a state.
    pub transfer: StateTransfer,
    /// Whether they tell of each checkpoint.
    pub debug: bool,
    /// Whether they measure what their time goes to.
    pub profile: bool,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            durability: Durability::Sync,
            device: None,
            service: ServiceKind::default(),
            tuning: Tuning::default(),
            transfer: StateTransfer::default(),
            debug: false,
            profile: false,
        }
    }
}

/// Where it is, so that a signal finds it; and a directory that something else uses.
#[derive(Clone, Default)]
pub struct Live {
    program: PathBuf,
    running: Arc<Mutex<Option<Running>>>,
    directory: Arc<Mutex<Option<TempDir>>>,
}

/// Stops it when the measurement ends.
pub struct Guard(Live);

/// Removes the directory that something else uses.
struct DirectoryGuard<'a>(&'a Live);

impl Drop for DirectoryGuard<'_> {
    fn drop(&mut self) {
        drop(self.0.lock_directory().take());
    }
}

fn directory(work: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("perdura-bench-")
        .tempdir_in(work)
        .with_context(|| format!("cannot make a directory in {}", work.display()))
}

impl Live {
    /// None yet; `program` is the file of `perdura`. A signal from now on ends the process, and first what is
    /// running then.
    pub fn new(program: PathBuf) -> Result<Live> {
        let live = Live { program, ..Live::default() };
        let to_stop = live.clone();
        process::on_stop(move |signal| {
            // Nothing is started any more while this is held, and it is held to the end.
            let (mut running, mut directory) = (to_stop.lock(), to_stop.lock_directory());
            tell!("perdura: {signal}: stopping");
            drop(running.take());
            if let Some(directory) = directory.take().map(TempDir::keep) {
                // Whoever uses it may make a file meanwhile.
                let _ = (0..10).find(|_| std::fs::remove_dir_all(&directory).is_ok());
            }
            std::process::exit(1);
        })?;
        Ok(live)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_directory(&self) -> MutexGuard<'_, Option<TempDir>> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something in a directory of its own in `work`, which is gone afterwards, or when a signal ends the process.
    pub fn in_directory<T>(&self, work: &Path, body: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mut held = self.lock_directory();
        let path = held.insert(directory(work)?).path().to_owned();
        drop(held);
        let _removed = DirectoryGuard(self);
        body(&path)
    }

    /// Makes and starts a cluster in a directory of its own in `work`.
    pub fn start(
        &self,
        work: &Path,
        faults: Faults,
        made: Made,
    ) -> Result<(Guard, Cluster, KeyFile)> {
        let mut running = self.lock();
        let directory = directory(work)?;
        let dir = directory.path().join("cluster");
        let places = places(faults.n(), &[], None, false)?;
        let Made { durability, device, service, tuning, transfer, debug, profile } = made;
        let cluster = make(&dir, faults, durability, &service.into(), tuning, &places)?;
        let key = KeyFile::load(&dir.join(CLIENT_FILE))?;
        for id in 0..faults.n() {
            let path = replica_file(&dir, id);
            let mut file = ReplicaFile::load(&path)?;
            file.rates.state_transfer = transfer;
            file.store(&path)?;
        }
        let start = Start { device, debug, profile };
        let group = Group::start(&self.program, &dir, faults.n(), start)?;
        *running = Some(Running { group, _directory: directory });
        Ok((Guard(self.clone()), cluster, key))
    }

    /// The same with several partitions, on as many servers as a group has members. Gives the groups, by partition.
    pub fn start_partitioned(
        &self,
        work: &Path,
        faults: Faults,
        made: Made,
        partitions: Partitions,
    ) -> Result<(Guard, Vec<Cluster>, KeyFile)> {
        let mut running = self.lock();
        let directory = directory(work)?;
        let dir = directory.path().join("cluster");
        let places = Place::all(faults.n(), &[], None, false)?;
        let Made { durability, device, service, tuning, debug, profile, .. } = made;
        let new = New { partitions, faults, durability, service, tuning, places: &places };
        partitions::make(&dir, new)?;
        let (groups, key) = (load_groups(&dir)?, KeyFile::load(&dir.join(CLIENT_FILE))?);
        let start = Start { device, debug, profile };
        let group = Group::start_all(ChildKind::Server, &self.program, &dir, places.len(), start)?;
        *running = Some(Running { group, _directory: directory });
        Ok((Guard(self.clone()), groups, key))
    }
}

impl Guard {
    /// The replicas' processes.
    pub fn pids(&self) -> Vec<u32> {
        let running = self.0.lock();
        let children = running.iter().flat_map(|running| &running.group.running);
        children.map(|running| running.child.id()).collect()
    }

    /// Does something with the group; an error if a signal has ended it.
    pub fn with<T>(&self, body: impl FnOnce(&mut Group) -> Result<T>) -> Result<T> {
        let mut running = self.0.lock();
        body(&mut running.as_mut().context("the cluster has been stopped")?.group)
    }

    /// An error if one of them has ended, with what it said.
    pub fn check(&self) -> Result<()> {
        self.0.lock().as_mut().map_or(Ok(()), |running| running.group.check())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.lock().take());
    }
}
