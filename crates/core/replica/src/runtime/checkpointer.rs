//! The thread that writes and flushes checkpoints, from frozen snapshots, while the event loop
//! executes on.
//!
//! A checkpoint of its own is paced, until the next one is due: the log grows till then. A state that
//! was received is not, nor is a checkpoint that such a one waits for: the replica is away until that
//! is stored. When the replica stops, a checkpoint
//! is written without pauses, and given up if it takes longer than [`LAST_WRITES`]: then the next
//! start replays more of the log. While nothing is to be stored, what was is read again (`reread`).
//!
//! A panic of the service in a snapshot ends the thread and not its checkpoints: they are given back to be closed.

use super::DataDisk;
use super::keeper::{Completion, Completions};
use super::pace::{FlushWatch, Pacer, Rhythm};
use super::panicked;
use super::reread::Reread;
use super::{watch, worker};
use crate::node::piece_names;
use bytes::Bytes;
use perdura_durability::{CheckpointError, Checkpoints, NewState, Stored};
use perdura_execution::{Manifest, StateSnapshot};
use perdura_protocol::Encode;
use perdura_protocol::Slot;
use perdura_protocol::configuration::Durability;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A node has one checkpoint and one transferred state under way at most.
const QUEUE: usize = 4;

/// How long a checkpoint is still written when the replica stops.
const LAST_WRITES: Duration = Duration::from_millis(500);

pub(super) enum Job {
    Store { snapshot: StateSnapshot, keep: Slot },
    Install { manifest: Manifest, pieces: Vec<Bytes>, keep: Slot },
}

pub(super) struct Checkpointer {
    jobs: Option<SyncSender<Job>>,
    orders: Shared,
    thread: JoinHandle<Checkpoints<DataDisk>>,
}

impl Checkpointer {
    /// With the rate at which its own checkpoints are written, bytes per second; 0: as the log's
    /// flushes allow. What is stored is read again within `scrub`; never if that is zero.
    pub fn start(
        checkpoints: Checkpoints<DataDisk>,
        bytes_per_s: u64,
        scrub: Duration,
        (watch, rhythm): (FlushWatch, Rhythm),
        completions: Completions,
    ) -> std::io::Result<Checkpointer> {
        let (jobs, queue) = sync_channel(QUEUE);
        let orders = Shared::default();
        let pace = Pace { bytes_per_s, watch, rhythm, orders: orders.clone() };
        let reread = Reread::new(scrub, bytes_per_s);
        let work =
            move |completions: &Completions| work(checkpoints, reread, &pace, &queue, completions);
        let thread = worker::spawn_patient("checkpointer", completions, work)?;
        Ok(Checkpointer { jobs: Some(jobs), orders, thread })
    }

    /// One whose thread never does anything.
    #[cfg(test)]
    pub fn stuck() -> Checkpointer {
        let thread = std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
        Checkpointer { jobs: Some(sync_channel(QUEUE).0), orders: Shared::default(), thread }
    }

    pub fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let installs = usize::from(matches!(job, Job::Install { .. }));
            self.orders.change(|given| {
                given.queued += 1;
                given.installs += installs;
            });
            // A thread that is gone has reported its failure, or its panic (`worker`).
            let _ = jobs.send(job);
        }
    }

    /// Whether another checkpoint waits for the one that is being stored.
    pub fn hurry(&self, late: bool) {
        if self.orders.given().late != late {
            self.orders.change(|given| given.late = late);
        }
    }

    /// Waits until what is queued is stored or given up, and gives the checkpoints back; none
    /// after a panic.
    pub fn stop(mut self) -> Option<Checkpoints<DataDisk>> {
        self.jobs = None;
        self.orders.change(|given| given.stop_by = Some(Instant::now() + LAST_WRITES));
        self.thread.join().ok()
    }
}

/// What the event loop wants of the thread while it writes.
#[derive(Clone, Default)]
struct Shared(Arc<(Mutex<Signals>, Condvar)>);

#[derive(Clone, Copy, Default)]
struct Signals {
    queued: usize,
    // Received states that are queued or being stored.
    installs: usize,
    late: bool,
    stop_by: Option<Instant>,
}

impl Signals {
    /// Whether there is no time for pauses.
    fn hurried(&self) -> bool {
        self.installs > 0 || self.late || self.stop_by.is_some()
    }

    /// Whether there is something to store.
    fn called(&self) -> bool {
        self.queued > 0 || self.stop_by.is_some()
    }
}

impl Shared {
    fn given(&self) -> MutexGuard<'_, Signals> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Signals)) {
        change(&mut self.given());
        self.0.1.notify_all();
    }

    fn too_late(&self) -> bool {
        self.given().stop_by.is_some_and(|by| Instant::now() > by)
    }

    /// Waits so long, or until it has to end.
    fn pause(&self, pause: Duration, ends: impl Fn(&Signals) -> bool) {
        watch::pausing(|| {
            let waited = self.0.1.wait_timeout_while(self.given(), pause, |given| !ends(given));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        });
    }
}

/// What sets the pace.
pub(super) struct Pace {
    bytes_per_s: u64,
    watch: FlushWatch,
    rhythm: Rhythm,
    orders: Shared,
}

impl Pace {
    /// Whether there is something to store.
    pub fn called(&self) -> bool {
        self.orders.given().called()
    }

    /// Whether the replica stops.
    pub fn stops(&self) -> bool {
        self.orders.given().stop_by.is_some()
    }

    /// Reads something of what is stored. Flushes of the log may take longer meanwhile.
    pub fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.watch.set_checkpoint(true);
        let read = watch::at("reading a checkpoint again", read);
        self.watch.set_checkpoint(false);
        read
    }

    /// So many bytes were read: waits a while, if that is due and nothing is to be stored.
    pub fn read(&self, pacer: &mut Pacer, bytes: u64) {
        let now = Instant::now();
        let pause = pacer.wrote(now, bytes, self.watch.flushes(now));
        if !pause.is_zero() {
            self.orders.pause(pause, Signals::called);
            pacer.go_on(Instant::now());
        }
    }

    /// The manifest of a state of its own. With sequential checkpoints another thread digests it too; what
    /// either has found, services with incremental digests remember.
    fn digest(&self, snapshot: &StateSnapshot) -> Manifest {
        let mut spread = self.rhythm.spread(Instant::now(), snapshot.pieces());
        let step = || match spread.did(Instant::now()) {
            wait if !wait.is_zero() && !self.orders.given().hurried() => {
                self.orders.pause(wait, Signals::hurried);
                spread.go_on(Instant::now());
            }
            _ => worker::give_way(),
        };
        watch::at("digesting a state", || snapshot.manifest_in_steps(step))
    }

    fn store(
        &self,
        checkpoints: &mut Checkpoints<DataDisk>,
        manifest: &Manifest,
        content: &mut dyn FnMut(usize) -> Bytes,
        keep: Slot,
    ) -> Result<Option<Stored>, CheckpointError> {
        if checkpoints.superblock().identity.durability == Durability::None {
            return Ok(None);
        }
        let pieces = piece_names(manifest);
        let mut pacer = Pacer::new(self.bytes_per_s);
        let state = NewState {
            slot: manifest.slot,
            digest: manifest.digest(),
            manifest: &manifest.to_bytes(),
            pieces: &pieces,
            content,
            pace: &mut |bytes| {
                watch::went_on();
                if self.orders.too_late() {
                    return ControlFlow::Break(());
                }
                let now = Instant::now();
                let pause = pacer.wrote(now, bytes, self.watch.flushes(now));
                if !pause.is_zero() {
                    self.orders.pause(pause, Signals::hurried);
                    pacer.go_on(Instant::now());
                }
                ControlFlow::Continue(())
            },
        };
        self.watch.set_checkpoint(true);
        let stored = watch::at("storing a checkpoint", || checkpoints.store(state, keep));
        self.watch.set_checkpoint(false);
        stored.map(Some)
    }

    /// Removes what is old, with pauses, whatever the rate is, until there is something to store; the next
    /// start does what is left when the replica stops.
    fn remove_old(&self, checkpoints: &mut Checkpoints<DataDisk>) -> Result<(), CheckpointError> {
        let mut pacer = Pacer::new(0);
        self.watch.set_checkpoint(true);
        let mut step = || {
            watch::went_on();
            if self.stops() {
                return ControlFlow::Break(());
            }
            let now = Instant::now();
            let pause = pacer.wrote(now, 0, self.watch.flushes(now));
            if !pause.is_zero() {
                self.orders.pause(pause, Signals::called);
                pacer.go_on(Instant::now());
            }
            ControlFlow::Continue(())
        };
        let removed = watch::at("removing old checkpoints", || checkpoints.remove_old(&mut step));
        self.watch.set_checkpoint(false);
        removed.map(|steps| tracing::debug!(steps, "old checkpoints removed"))
    }
}

fn work(
    mut checkpoints: Checkpoints<DataDisk>,
    mut reread: Reread,
    pace: &Pace,
    queue: &Receiver<Job>,
    completions: &Completions,
) -> Checkpoints<DataDisk> {
    reread.begin(&mut checkpoints);
    loop {
        let job = match queue.recv_timeout(reread.wait()) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => {
                reread.go_on(&mut checkpoints, pace, completions);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        pace.orders.change(|given| given.queued -= 1);
        if pace.orders.too_late() {
            break;
        }
        let own = matches!(job, Job::Store { .. });
        let mut begun = Instant::now();
        let (manifest, stored) = match job {
            Job::Store { snapshot, keep } => {
                let manifest = match panicked::asking(|| pace.digest(&snapshot)) {
                    Ok(manifest) => manifest,
                    Err(panic) => {
                        completions.push(Completion::Service(panic));
                        break;
                    }
                };
                if !completions.takes(&manifest) {
                    break;
                }
                begun = Instant::now();
                let mut panic = None;
                let content = &mut |index| {
                    worker::give_way();
                    // Nothing is no piece of a state: the checkpoint is refused, and what is on disk stays as it was.
                    panicked::asking(|| snapshot.piece(index)).unwrap_or_else(|said| {
                        panic.get_or_insert(said);
                        Bytes::new()
                    })
                };
                let stored = pace.store(&mut checkpoints, &manifest, content, keep);
                if let Some(panic) = panic {
                    completions.push(Completion::Service(panic));
                    break;
                }
                (manifest, stored)
            }
            Job::Install { manifest, pieces, keep } => {
                let content = &mut |index: usize| {
                    worker::give_way();
                    pieces[index].clone()
                };
                let stored = pace.store(&mut checkpoints, &manifest, content, keep);
                pace.orders.change(|given| given.installs -= 1);
                (manifest, stored)
            }
        };
        let is_stored = matches!(stored, Ok(Some(_)));
        if conclude(manifest, stored, own, begun, completions).is_break() {
            break;
        }
        // Nobody waits for that, as others do for what was stored.
        if is_stored && let Err(error) = pace.remove_old(&mut checkpoints) {
            completions.push(Completion::Failed(error.to_string()));
            break;
        }
        reread.slice(&mut checkpoints, pace, completions);
    }
    checkpoints
}

/// Tells of what became of a job. Breaks when the thread has nothing more to do.
fn conclude(
    manifest: Manifest,
    stored: Result<Option<Stored>, CheckpointError>,
    own: bool,
    begun: Instant,
    completions: &Completions,
) -> ControlFlow<()> {
    let failed = match stored {
        Ok(stored) => {
            if let Some(stored) = &stored {
                note_stored(manifest.slot, stored, begun);
            }
            completions.push(Completion::CheckpointStored { manifest, stored });
            return ControlFlow::Continue(());
        }
        Err(CheckpointError::Stopped) => {
            tracing::info!(slot = %manifest.slot, "a checkpoint was given up: stopping");
            return ControlFlow::Break(());
        }
        Err(error @ CheckpointError::OtherPiece { .. }) if own => {
            Completion::StateDamaged(error.to_string())
        }
        Err(
            error @ (CheckpointError::OtherPiece { .. }
            | CheckpointError::NotNewer { .. }
            | CheckpointError::TooLarge),
        ) => Completion::Refused(error.to_string()),
        Err(error) => Completion::Failed(error.to_string()),
    };
    completions.push(failed);
    ControlFlow::Break(())
}

fn note_stored(slot: Slot, stored: &Stored, begun: Instant) {
    let took_ms = begun.elapsed().as_millis() as u64;
    let Stored { written_bytes, linked_bytes, linked_files, .. } = *stored;
    tracing::debug!(
        %slot, written_bytes, linked_bytes, linked_files, took_ms, "checkpoint stored"
    );
    if let Some(damage) = &stored.damage {
        tracing::warn!(
            damages = stored.damages,
            "{damage}; what was damaged in older checkpoints was written anew: this disk loses data"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It hangs otherwise.
    #[test]
    fn no_pause_is_made_when_somebody_waits() {
        const HOURS: Duration = Duration::from_secs(36_000);
        let received = |given: &mut Signals| given.installs += 1;
        let late = |given: &mut Signals| given.late = true;
        let stopped = |given: &mut Signals| given.stop_by = Some(Instant::now() + HOURS);
        for change in [received, late, stopped] {
            let orders = Shared::default();
            let pausing = orders.clone();
            let thread = std::thread::spawn(move || pausing.pause(HOURS, Signals::hurried));
            orders.change(change);
            thread.join().unwrap();
            orders.pause(HOURS, Signals::hurried);
            assert!(!orders.too_late());
        }
    }

    #[test]
    fn a_stopping_replica_writes_for_a_while_and_no_longer() {
        let orders = Shared::default();
        assert!(!orders.too_late());
        orders.change(|given| given.stop_by = Some(Instant::now()));
        while !orders.too_late() {
            std::thread::yield_now();
        }
    }
}
