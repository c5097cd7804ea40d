//! The keeper: the thread that writes the log in groups. It takes everything that has queued up
//! since the last flush and writes it at once, across slots (rule D2), so the longer a flush
//! takes, the more the next one carries.

use super::DataDisk;
use super::pace::FlushWatch;
use super::slowness::Slowness;
use super::transfer_links::Carried;
use super::watch::{self, Watch};
use super::worker;
use perdura_durability::{Log, LogError, Stored};
use perdura_protocol::message::Decision;
use perdura_protocol::vitals::DiskSpace;
use perdura_protocol::{Digest, Record, ReplicaId, Slot, limits};
use prometheus::Histogram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Jobs that may wait for the keeper. A node has far fewer under way, so that the event loop never
/// waits for the disk.
const QUEUE: usize = 4096;

/// Between two measurements of the room on the disk.
const MEASURED: Duration = Duration::from_secs(10);

/// Bytes of batches after which a group is closed at the latest, so that the log's buffer stays small.
const GROUP_BYTES: usize = 32 * 1024 * 1024;

/// A group is closed before its flush would take longer than this, going by the last ones: until it ends nothing is decided with
/// it, and all others wait.
const GROUP_TIME: Duration = Duration::from_millis(250);

/// Bytes that a group may have however slow the disk is: many small commands.
const LEAST_GROUP_BYTES: usize = 256 * 1024;

/// How much the disk writes in [`GROUP_TIME`].
struct GroupSize {
    bytes: usize,
}

impl GroupSize {
    fn new() -> GroupSize {
        GroupSize { bytes: GROUP_BYTES }
    }

    /// A flush of so many bytes took so long. A short one of few bytes says nothing.
    fn note(&mut self, bytes: usize, took: Duration) {
        let fits = bytes as f64 * GROUP_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
        if took > GROUP_TIME {
            let least = LEAST_GROUP_BYTES.min(self.bytes);
            self.bytes = (fits as usize).clamp(least, self.bytes);
        } else if bytes >= self.bytes / 2 {
            self.bytes = self.bytes.saturating_mul(2).min(GROUP_BYTES);
        }
    }
}

pub(super) enum Job {
    Append { records: Vec<Record>, mark: u64 },
    Truncate(Slot),
    Read { to: ReplicaId, wanted: Vec<(Slot, Digest)> },
}

/// What other threads report to the event loop.
pub(super) enum Completion {
    Persisted(u64),
    DecisionsRead {
        to: ReplicaId,
        decisions: Vec<Decision>,
    },
    CheckpointStored {
        manifest: perdura_execution::Manifest,
        stored: Option<Stored>,
    },
    /// Room on the disk.
    Space(DiskSpace),
    /// The newest one was read again, and so many parts of it are not what was stored.
    CheckpointDamaged(u64),
    StateDigested {
        manifest: perdura_execution::Manifest,
        digest: Digest,
    },
    StateRestored,
    /// What the execution stage did.
    Done {
        done: perdura_execution::Done,
        took: Duration,
    },
    StateDamaged(String),
    /// What came over transfer links, and which of them there are.
    Carried(Carried),
    /// What was to be stored is wrong; the disk is not.
    Refused(String),
    /// Nobody could read the state back.
    TooLarge(perdura_execution::TooLarge),
    /// The disk failed.
    Failed(String),
    /// The service panicked in this thread.
    Service(Box<perdura_execution::ServicePanic>),
    /// The thread of this name panicked.
    Panicked(&'static str),
}

/// Where completions wait; bounded by the jobs under way, and by what the transfer links read ahead.
#[derive(Clone)]
pub(super) struct Completions {
    waiting: Arc<Mutex<Vec<Completion>>>,
    waker: Arc<mio::Waker>,
    watch: Watch,
}

impl Completions {
    /// None yet; each wakes the event loop.
    pub fn new(waker: Arc<mio::Waker>) -> Completions {
        Completions { waiting: Arc::default(), waker, watch: Watch::default() }
    }

    /// Where those that bring them say what they are at.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    pub fn push(&self, completion: Completion) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
        if let Err(error) = self.waker.wake() {
            tracing::error!("the event loop cannot be woken: {error}");
        }
    }

    /// Whether a state that was digested can be read back; if not, nothing is stored of it, nor signed.
    pub fn takes(&self, manifest: &perdura_execution::Manifest) -> bool {
        let checked = manifest.check();
        if checked.is_ok() && manifest.is_crowded() {
            tracing::warn!(
                "the state at slot {} has {} segments and {} sessions. From {} segments on the store and the tuple spaces refuse what \
                 would grow it, and more than {} segments and sessions of any service cannot be read back: all replicas stop before \
                 they store that. Delete what is not needed",
                manifest.slot,
                manifest.segments(),
                manifest.sessions(),
                perdura_execution::SEGMENTS,
                perdura_execution::PIECES - 1
            );
        }
        checked.map_err(|error| self.push(Completion::TooLarge(error))).is_ok()
    }

    pub fn take(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) struct Keeper {
    jobs: Option<SyncSender<Job>>,
    thread: JoinHandle<Log<DataDisk>>,
}

impl Keeper {
    pub fn start(
        log: Log<DataDisk>,
        data: PathBuf,
        watch: FlushWatch,
        flushes: Histogram,
        completions: Completions,
    ) -> std::io::Result<Keeper> {
        let (jobs, queue) = sync_channel(QUEUE);
        let work = move |completions: &Completions| {
            keep(log, &data, (&watch, &flushes), &queue, completions)
        };
        let thread = worker::spawn("keeper", completions, work)?;
        Ok(Keeper { jobs: Some(jobs), thread })
    }

    /// One whose thread never does anything.
    #[cfg(test)]
    pub fn stuck() -> Keeper {
        let thread = std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
        Keeper { jobs: Some(sync_channel(QUEUE).0), thread }
    }

    pub fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A keeper that is gone has reported its failure, or its panic (`worker`).
            let _ = jobs.send(job);
        }
    }

    /// Waits until everything queued is done, and gives the log back; none after a panic.
    pub fn stop(mut self) -> Option<Log<DataDisk>> {
        self.jobs = None;
        self.thread.join().ok()
    }
}

fn keep(
    mut log: Log<DataDisk>,
    data: &Path,
    (flush_watch, flushes): (&FlushWatch, &Histogram),
    queue: &Receiver<Job>,
    completions: &Completions,
) -> Log<DataDisk> {
    let mut group = GroupSize::new();
    let mut records: Vec<Record> = Vec::new();
    let mut slow = Slowness::default();
    let mut measured: Option<Instant> = None;
    loop {
        if measured.is_none_or(|at| at.elapsed() >= MEASURED) {
            measured = Some(Instant::now());
            watch::at("measuring the room on the disk", || measure(data, completions));
        }
        let first = match queue.recv_timeout(MEASURED) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let mut next = Some(first);
        let mut mark = None;
        let mut bytes = 0;
        let mut others = Vec::new();
        while let Some(job) = next.take() {
            match job {
                Job::Append { records: more, mark: last } => {
                    bytes += more.iter().map(size_of_record).sum::<usize>();
                    records.extend(more);
                    mark = Some(last);
                }
                other => others.push(other),
            }
            if bytes < group.bytes {
                next = queue.try_recv().ok();
            }
        }
        let mut outcome = Ok(());
        if let Some(mark) = mark {
            let begun = Instant::now();
            flush_watch.begin(begun);
            outcome = watch::at("an append to the log", || log.append(&records));
            flush_watch.end(Instant::now());
            let took = begun.elapsed();
            group.note(bytes, took);
            flushes.observe(took.as_secs_f64());
            slow.note("an append to the log", took);
            records.clear();
            if outcome.is_ok() {
                completions.push(Completion::Persisted(mark));
            }
        }
        let begun = Instant::now();
        for job in others {
            outcome = outcome.and_then(|()| {
                watch::at("reading or freeing a part of the log", || {
                    serve(&mut log, job, completions)
                })
            });
        }
        slow.note("reading or freeing a part of the log", begun.elapsed());
        // A new file is made ready while nobody waits, not in the way of an append.
        let begun = Instant::now();
        if outcome.is_ok() {
            outcome = watch::at("preparing a file of the log", || {
                log.prepare_free_file().and_then(|()| log.flush_marks())
            });
        }
        slow.note("preparing a file of the log", begun.elapsed());
        if let Err(error) = outcome {
            completions.push(Completion::Failed(error.to_string()));
            break;
        }
    }
    log
}

/// Tells of the room on the disk; where the system does not say, nothing is known of it.
fn measure(data: &Path, completions: &Completions) {
    let system = rustix::fs::statvfs(data).ok();
    if let Some(space) =
        system.and_then(|system| disk_space(system.f_frsize, system.f_bavail, system.f_blocks))
    {
        completions.push(Completion::Space(space));
    }
}

/// What a file system says of itself; none where it has no size (a tmpfs without a bound, some of those in user space).
fn disk_space(block_bytes: u64, free_blocks: u64, blocks: u64) -> Option<DiskSpace> {
    let mib = |blocks: u64| {
        u32::try_from(blocks.saturating_mul(block_bytes) / 1_048_576).unwrap_or(u32::MAX)
    };
    (blocks > 0).then(|| DiskSpace { free_mib: mib(free_blocks), size_mib: mib(blocks) })
}

fn size_of_record(record: &Record) -> usize {
    record.batch().map_or(256, |(_, batch)| batch.raw().len() + 256)
}

fn serve(log: &mut Log<DataDisk>, job: Job, completions: &Completions) -> Result<(), LogError> {
    match job {
        Job::Append { .. } => Ok(()),
        Job::Truncate(slot) => log.truncate_below(slot),
        Job::Read { to, wanted } => {
            let decisions = match log.read_decisions(&wanted, limits::FETCH_BYTES) {
                Ok(decisions) => consecutive(decisions, &wanted),
                Err(error @ LogError::Corrupt { .. }) => {
                    tracing::error!("{error}; the batch is left for other replicas to send");
                    Vec::new()
                }
                Err(error) => return Err(error),
            };
            completions.push(Completion::DecisionsRead { to, decisions });
            Ok(())
        }
    }
}

/// The run of decisions from the first wanted slot on.
fn consecutive(decisions: Vec<Decision>, wanted: &[(Slot, Digest)]) -> Vec<Decision> {
    let first = wanted.first().map_or(0, |(slot, _)| slot.0);
    decisions
        .into_iter()
        .zip(first..)
        .take_while(|(decision, slot)| decision.slot.0 == *slot)
        .map(|(decision, _)| decision)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_as_large_as_the_disk_writes_in_a_quarter_of_a_second() {
        let mib = 1024 * 1024;
        let mut group = GroupSize::new();
        group.note(100, Duration::from_micros(90));
        assert_eq!(group.bytes, GROUP_BYTES, "a small one says nothing of large ones");
        group.note(8 * mib, Duration::from_secs(4));
        assert_eq!(group.bytes, mib / 2);
        group.note(100, Duration::from_millis(400));
        assert_eq!(group.bytes, LEAST_GROUP_BYTES);
        // The disk is fast again.
        for _ in 0..10 {
            group.note(group.bytes, Duration::from_millis(20));
        }
        assert_eq!(group.bytes, GROUP_BYTES);
    }

    #[test]
    fn a_file_system_that_has_no_size_is_not_full() {
        assert_eq!(disk_space(4096, 0, 0), None);
        let full = disk_space(4096, 0, 25_600);
        assert_eq!(full, Some(DiskSpace { free_mib: 0, size_mib: 100 }));
        assert!(full.is_some_and(DiskSpace::is_nearly_full));
    }
}
