//! The thread that writes and flushes checkpoints, from frozen snapshots, while the event loop
//! executes on; and one that digests states, so that who is writing one for long still signs others.

use super::keeper::{Completion, Completions};
use super::worker;
use bytes::Bytes;
use perdura_durability::{CheckpointError, Checkpoints, FileDisk};
use perdura_execution::{Manifest, StateSnapshot};
use perdura_protocol::Encode;
use perdura_protocol::Slot;
use perdura_protocol::configuration::Durability;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A node has one checkpoint and one transferred state under way at most.
const QUEUE: usize = 4;

pub(super) enum Job {
    Store { snapshot: StateSnapshot, keep: Slot },
    Install { manifest: Manifest, pieces: Vec<Bytes>, keep: Slot },
}

pub(super) struct Checkpointer {
    jobs: Option<SyncSender<Job>>,
    thread: JoinHandle<Checkpoints<FileDisk>>,
    states: Option<SyncSender<StateSnapshot>>,
    digester: JoinHandle<()>,
}

impl Checkpointer {
    pub fn start(
        checkpoints: Checkpoints<FileDisk>,
        completions: Completions,
    ) -> std::io::Result<Checkpointer> {
        let (jobs, queue) = sync_channel(QUEUE);
        let work = move |completions: &Completions| work(checkpoints, &queue, completions);
        let thread = worker::spawn("checkpointer", completions.clone(), work)?;
        let (states, queue) = sync_channel(QUEUE);
        let work = move |completions: &Completions| digest(&queue, completions);
        let digester = worker::spawn("digester", completions, work)?;
        Ok(Checkpointer { jobs: Some(jobs), thread, states: Some(states), digester })
    }

    /// One whose thread never does anything.
    #[cfg(test)]
    pub fn stuck() -> Checkpointer {
        fn park<T>() -> T {
            loop {
                std::thread::park();
            }
        }
        Checkpointer {
            jobs: Some(sync_channel(QUEUE).0),
            thread: std::thread::spawn(park),
            states: Some(sync_channel(QUEUE).0),
            digester: std::thread::spawn(park),
        }
    }

    /// Digests a state.
    pub fn digest(&self, snapshot: StateSnapshot) {
        if let Some(states) = &self.states {
            let _ = states.send(snapshot);
        }
    }

    pub fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A thread that is gone has reported its failure, or its panic (`worker`).
            let _ = jobs.send(job);
        }
    }

    /// Waits until everything queued is done, and gives the checkpoints back; none after a panic.
    pub fn stop(mut self) -> Option<Checkpoints<FileDisk>> {
        self.jobs = None;
        self.states = None;
        let _ = self.digester.join();
        self.thread.join().ok()
    }
}

fn digest(queue: &Receiver<StateSnapshot>, completions: &Completions) {
    while let Ok(snapshot) = queue.recv() {
        completions.push(Completion::StateDigested(snapshot.manifest()));
    }
}

fn work(
    mut checkpoints: Checkpoints<FileDisk>,
    queue: &Receiver<Job>,
    completions: &Completions,
) -> Checkpoints<FileDisk> {
    let on_disk = checkpoints.superblock().identity.durability != Durability::None;
    while let Ok(job) = queue.recv() {
        let stored = match job {
            Job::Store { snapshot, keep } => {
                let manifest = snapshot.manifest();
                let piece = &mut |index| snapshot.piece(index);
                store(&mut checkpoints, on_disk, &manifest, piece, keep).map(|()| manifest)
            }
            Job::Install { manifest, pieces, keep } => {
                let piece = &mut |index: usize| pieces[index].clone();
                store(&mut checkpoints, on_disk, &manifest, piece, keep).map(|()| manifest)
            }
        };
        match stored {
            Ok(manifest) => completions.push(Completion::CheckpointStored(manifest)),
            Err(error) => {
                completions.push(Completion::Failed(error.to_string()));
                break;
            }
        }
    }
    checkpoints
}

fn store(
    checkpoints: &mut Checkpoints<FileDisk>,
    on_disk: bool,
    manifest: &Manifest,
    piece: &mut dyn FnMut(usize) -> Bytes,
    keep: Slot,
) -> Result<(), CheckpointError> {
    if !on_disk {
        return Ok(());
    }
    let count = manifest.entries().len();
    checkpoints.store(manifest.slot, manifest.digest(), &manifest.to_bytes(), count, piece, keep)
}
