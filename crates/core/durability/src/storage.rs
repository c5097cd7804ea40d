//! Making a data directory and opening one: everything is verified before anything is changed.
//!
//! What [`open`] decides, in this order (rules D4, D5, D8):
//!
//! 1. Whose directory it is: another cluster's, replica's, incarnation's, or format's is refused.
//! 2. Whether memory was lost that the disk never held: `none` after any run, `async` after a run
//!    that another boot of the machine cut short. Then the replica is *amnesiac*.
//! 3. Which state it holds: the checkpoint that the superblock names first. If that does not
//!    verify, the one kept behind it, provided that the log reaches back to it without a gap;
//!    else the state is lost and has to come from peers *before this replica votes*: its promises
//!    are all there (those up to the lost slot concern decided slots), but it can execute nothing
//!    and would attest nothing. A checkpoint verifies if all its pieces do, those in files of
//!    older checkpoints too; a rotten piece is lost to every checkpoint that links to it.
//! 4. What the log holds, and whether what rotted in it matters (the `log::recovery` module).
//!
//! Only then it puts things in order (half-written files are removed, a torn tail is cut), and
//! notes in the superblock that a run has begun. A crash while it does so changes no verdict.

use crate::checkpoint::{self, CheckpointError, CheckpointReader, Checkpoints};
use crate::disk::{Disk, DiskError};
use crate::log::group::round_up;
use crate::log::recovery::{Judgement, LostVotes, judge};
use crate::log::resume::records_of;
use crate::log::scan::{LogScan, ScanError, scan_log};
use crate::log::{FileSizes, Log, LogError, RepairedGap, TornTail};
use crate::superblock::{
    BOOTS, CheckpointName, Identity, SUPERBLOCK_NAME, Superblock, SuperblockFile, TEMPORARY_NAME,
};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{BootId, ClusterId, Digest, Record, ReplicaId, Slot};

/// Why a directory was not formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Something stands in it already; nothing was changed.
    #[error("the data directory is not empty: it holds {found}; give another, or move it away")]
    NotEmpty {
        /// A file in it.
        found: String,
    },
    /// The disk failed. Empty the directory and try again.
    #[error("formatting the data directory failed: {0}")]
    Disk(#[from] DiskError),
}

/// Why a replica no longer knows what it promised (rule D8).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Amnesia {
    /// It ran before with durability `none`.
    #[error("it ran before with durability `none`, which keeps no promise over a restart")]
    NoLog,
    /// It ran with durability `async` when the machine stopped.
    #[error("with durability `async`, the machine was restarted under the running replica")]
    OtherBoot,
    /// The log is gone.
    #[error("its log is gone")]
    LogMissing,
    /// Votes in the log have rotted.
    #[error(
        "{file} has rotted from offset {offset} on, and with it votes {}, of which slots above \
         {decided} are not known to be decided",
        match through { Some(slot) => format!("up to slot {slot}"), None => "up to an unknown slot".to_owned() }
    )]
    LostVotes {
        /// The file, relative to the data directory.
        file: String,
        /// Where the loss begins.
        offset: u64,
        /// No lost vote is above this; `None` when that is lost too.
        through: Option<Slot>,
        /// Up to here slots are known to be decided.
        decided: Slot,
    },
}

/// Why a directory was not opened. Nothing in it was changed, but for [`OpenError::Io`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no directory.
    #[error(
        "there is no data directory at {path}; a new cluster's is made by `perdura init`, a lost \
         one is replaced by `perdura replica reinit --cluster DIR --id I` where admin.toml is"
    )]
    Missing {
        /// Where it was looked for.
        path: String,
    },
    /// The directory is there and was never formatted.
    #[error(
        "the data directory is empty; a lost one is replaced by `perdura replica reinit \
         --cluster DIR --id I` where admin.toml is"
    )]
    Empty,
    /// Another process has it open.
    #[error("the data directory at {path} is in use by another process; stop that first")]
    Locked {
        /// The directory.
        path: String,
    },
    /// A newer program wrote it.
    #[error(
        "the data directory is of format version {found}, and this program reads up to version \
         {supported}; use the newer program"
    )]
    NewerFormat {
        /// The directory's version.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// A newer program wrote it, and says that this has to be understood.
    #[error(
        "the data directory was used by a newer program: its superblock has the field {field:?}, without which \
         it may not be used; use the newer program"
    )]
    UnknownField {
        /// The field's name.
        field: String,
    },
    /// It goes by a durability that programs do not have any more.
    #[error(
        "the data directory is of a cluster with durability `{durability}`, a baseline for experiments that this program \
         does not have; start the program that made the cluster once more, export what is to be kept (`perdura kv export`; of other \
         services what their own commands read), and \
         import it into a new cluster (`perdura init`, `perdura kv import`)"
    )]
    GoneDurability {
        /// Its name.
        durability: &'static str,
    },
    /// It belongs to another cluster.
    #[error(
        "the data directory belongs to cluster {found}, not {expected}; check `data` in replica.toml"
    )]
    OtherCluster {
        /// The directory's.
        found: ClusterId,
        /// The configuration's.
        expected: ClusterId,
    },
    /// It belongs to another replica.
    #[error(
        "the data directory belongs to replica {found}, not {expected}; check `data` in replica.toml"
    )]
    OtherReplica {
        /// The directory's.
        found: ReplicaId,
        /// The configuration's.
        expected: ReplicaId,
    },
    /// It is of another incarnation of this replica, whose promises are not those of the present
    /// one (rule D8).
    #[error(
        "the data directory is that of incarnation {found}, and the configuration is of \
         incarnation {expected}: put back the directory that belongs to it, or order a new one \
         with `perdura replica reinit --cluster DIR --id I` where admin.toml is"
    )]
    OtherIncarnation {
        /// The directory's.
        found: u32,
        /// The configuration's.
        expected: u32,
    },
    /// The cluster's parameters are not those it was formatted with.
    #[error(
        "the parameters in cluster.toml (digest {expected}) are not those that the data directory \
         was formatted with (digest {found}); they, and the service, are fixed for the life of a cluster"
    )]
    OtherParameters {
        /// The directory's.
        found: Digest,
        /// The configuration's.
        expected: Digest,
    },
    /// The replica may have made promises that it no longer knows; it must not vote again.
    #[error(
        "this replica no longer knows what it voted for: {0}; replace it with `perdura replica \
         reinit --cluster DIR --id I` where admin.toml is, and if more than u replicas say this, see docs/guarantees.md"
    )]
    Amnesiac(#[from] Amnesia),
    /// Something that must be there does not verify or does not decode.
    #[error(
        "{file} is corrupt at offset {offset}; if no copy of it is left, replace this replica with \
         `perdura replica reinit --cluster DIR --id I` where admin.toml is"
    )]
    Corrupt {
        /// The file, relative to the data directory.
        file: String,
        /// Where.
        offset: u64,
    },
    /// The disk failed.
    #[error("opening the data directory failed: {0}")]
    Io(#[from] DiskError),
}

/// What a data directory is opened as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expectation {
    /// The cluster in the configuration.
    pub cluster: ClusterId,
    /// The replica in the configuration.
    pub replica: ReplicaId,
    /// Its incarnation there.
    pub incarnation: u32,
    /// `Parameters::digest()`.
    pub parameters: Digest,
    /// Names this boot of the machine (on Linux, `/proc/sys/kernel/random/boot_id`).
    pub boot_id: [u8; 16],
    /// Random, for this run of the replica.
    pub nonce: [u8; 16],
}

/// Local settings; they may differ from one opening to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageOptions {
    /// Size of a log file, bytes; at least 16 KiB, rounded up to 4 KiB. A group that does not fit
    /// gets a file of its own size. Larger files make truncation coarser, smaller ones cost two
    /// flushes more often.
    pub log_file_bytes: u64,
    /// Size of a log file that is made while an append, or the start, waits for it, bytes, if below
    /// `log_file_bytes`; a group that does not fit gets a larger one. A log begins with one of these, and the next
    /// ones, which are made ready in advance, are each about twice the one before. No more of a file is made ready at once.
    pub hasty_log_file_bytes: u64,
    /// Most log files kept for their next use; what is freed beyond that is removed, and of those that the log did not need lately two with
    /// each truncation. None is made while one of these is left, so the log and they together take one file more than the log alone
    /// did at its longest, at most.
    pub free_log_files: usize,
    /// Checkpoints kept behind the newest, 0 to 2, in case it rots.
    pub retained_checkpoints: usize,
    /// A state up to this size, bytes, is written as a whole with each checkpoint, so that the one
    /// before shares nothing with it. Of a larger one what changed is written.
    pub small_state_bytes: u64,
    /// A checkpoint's file is flushed each time that this many bytes of it were written, and removed in
    /// steps of as many; and so many too large it may be (or a sixty-fourth, if that is less).
    pub checkpoint_sync_bytes: u64,
}

impl Default for StorageOptions {
    fn default() -> StorageOptions {
        StorageOptions {
            log_file_bytes: Self::LEAST_LOG_FILE_BYTES,
            hasty_log_file_bytes: Self::HASTY_LOG_FILE_BYTES,
            free_log_files: 4,
            retained_checkpoints: 1,
            small_state_bytes: 4 * 1024 * 1024,
            checkpoint_sync_bytes: 8 * 1024 * 1024,
        }
    }
}

impl StorageOptions {
    const LEAST_FILE_BYTES: u64 = 16 * 1024;
    const LEAST_LOG_FILE_BYTES: u64 = 16 * 1024 * 1024;
    const MOST_LOG_FILE_BYTES: u64 = 128 * 1024 * 1024;
    // A disk of 130 MB/s takes an eighth of a second for it.
    const HASTY_LOG_FILE_BYTES: u64 = 16 * 1024 * 1024;

    /// For a replica that stores a checkpoint after every `checkpoint_bytes` of batches. A log file is half
    /// of that, from 16 to 128 MiB: on a disk that takes 5 ms for a flush and is kept busy, a
    /// group is 8 MiB and more, and of files of 16 MiB each took a flush for its name and one for the seal of the one before.
    ///
    /// The files that one checkpoint frees are kept for what is written up to the next, so that once the log
    /// has been as long as it gets no file is made, and filled with zeros, any more. Twice as many
    /// are kept, for a log is that long when a checkpoint is stored while the next batches come. Where checkpoints
    /// of a large state are rarer, after up to `most_bytes`, so many of those may be kept: the log has no more
    /// files than it ever needed at once.
    #[must_use]
    pub fn for_checkpoints_of(checkpoint_bytes: u64, most_bytes: u64) -> StorageOptions {
        let half = checkpoint_bytes / 2;
        let log_file_bytes = half.clamp(Self::LEAST_LOG_FILE_BYTES, Self::MOST_LOG_FILE_BYTES);
        let options = StorageOptions { log_file_bytes, ..StorageOptions::default() };
        let files = most_bytes.max(checkpoint_bytes).div_ceil(log_file_bytes).saturating_mul(2);
        let free_log_files = usize::try_from(files).unwrap_or(usize::MAX);
        StorageOptions { free_log_files: options.free_log_files.max(free_log_files), ..options }
    }

    fn log_files(&self) -> FileSizes {
        let size = |bytes: u64| round_up(bytes.max(Self::LEAST_FILE_BYTES));
        let usual_bytes = size(self.log_file_bytes);
        let hasty_bytes = size(self.hasty_log_file_bytes).min(usual_bytes);
        FileSizes { usual_bytes, hasty_bytes, kept_free: self.free_log_files }
    }
}

/// The state that an opened directory holds.
#[derive(Debug)]
pub enum RecoveredState<D> {
    /// That before slot 1.
    Initial,
    /// The newest checkpoint, verified.
    Checkpoint(CheckpointReader<D>),
    /// The newest has rotted; the one before it verifies, and the log reaches back to it.
    Previous {
        /// The one that has rotted.
        lost: CheckpointName,
        /// The one to replay the log on.
        reader: CheckpointReader<D>,
    },
    /// No checkpoint verifies from which the log goes on. The replica must fetch a state at or
    /// after this slot from its peers, and store it, before it votes.
    Lost(CheckpointName),
}

/// An opened data directory.
pub struct Opened<D> {
    /// The superblock before this run.
    pub superblock: Superblock,
    /// This run, which is durable.
    pub boot: BootId,
    /// The state to replay `records` on.
    pub state: RecoveredState<D>,
    /// Everything in the log, in the order in which it was appended. It may begin before the
    /// state's slot; views, configurations and prefixes may occur more than once.
    pub records: Vec<Record>,
    /// What has rotted and is harmless once the batches come back from peers. To be reported
    /// loudly; see [`RepairedGap`] for what the replica must fetch before it votes.
    pub repaired_gaps: Vec<RepairedGap>,
    /// A last group that was cut; nobody was ever told of it.
    pub torn_tail: Option<TornTail>,
    /// The log, for the keeper's thread.
    pub log: Log<D>,
    /// Checkpoints and superblock, for another thread.
    pub checkpoints: Checkpoints<D>,
}

/// Makes an empty directory a replica's. The superblock appears under its name only when it is
/// complete, so formatting that was interrupted may simply be done again.
///
/// # Errors
/// [`FormatError::NotEmpty`] when anything else stands in it.
pub fn format(disk: &mut impl Disk, identity: &Identity) -> Result<(), FormatError> {
    for directory in ["", crate::log::file::DIRECTORY, checkpoint::DIRECTORY] {
        let found = disk.list(directory)?.into_iter().find(|name| name != TEMPORARY_NAME);
        if let Some(found) = found {
            return Err(FormatError::NotEmpty { found });
        }
    }
    Ok(SuperblockFile::format(disk, Superblock::new(identity.clone()))?)
}

/// The format version that a directory is in, which [`open`] makes [`FORMAT_VERSION`](crate::FORMAT_VERSION) of. Changes nothing.
///
/// # Errors
/// Those of [`open`] that concern the superblock.
pub fn format_of(disk: &mut impl Disk, expected: &Expectation) -> Result<u32, OpenError> {
    Ok(read_superblock(disk, expected)?.version())
}

/// Opens a directory: see the module's documentation for what it decides.
///
/// # Errors
/// [`OpenError`], each with what to do about it.
pub fn open<D: Disk>(
    mut disk: D,
    expected: &Expectation,
    options: &StorageOptions,
) -> Result<Opened<D>, OpenError> {
    let file = read_superblock(&mut disk, expected)?;
    let superblock = file.current().clone();
    check_memory(&superblock, expected)?;
    let identity = &superblock.identity;
    let mut scan = LogScan::default();
    if identity.durability != Durability::None {
        // By a handle that ends here: one that has a file open keeps its space when it is removed.
        scan = scan_log(&mut disk.handle(), identity)?;
        if superblock.opened && scan.files.is_empty() {
            return Err(Amnesia::LogMissing.into());
        }
    }
    let (state, judgement) = choose_state(&disk, &superblock, &scan)?;

    // Everything is verified; from here on the directory is changed. What was read may not be
    // durable, if only the process was restarted: the superblock and its name come first, then
    // what relies on them. `opened` promises that there is a log, so the first time it is last.
    disk.sync_directory("")?;
    let mut file = file;
    let number = superblock.boots.first().map_or(0, |boot| boot.number).saturating_add(1);
    let boot = BootId { number, nonce: expected.nonce };
    // Nobody can hold one that was never announced, and few are remembered.
    let announced = superblock.boots.first().is_some_and(|last| {
        !judgement.gaps.is_empty() || announces(&scan, &judgement, identity.replica, *last)
    });
    let begin_run = |superblock: &mut Superblock| {
        superblock.opened = true;
        if announced || superblock.boots.is_empty() {
            superblock.boots.insert(0, boot);
        } else {
            superblock.boots[0] = boot;
        }
        superblock.boots.truncate(BOOTS);
        superblock.running = Some(expected.boot_id);
    };
    if superblock.opened {
        file.update(&mut disk, begin_run)?;
    }
    let handle = disk.handle();
    let log = Log::resume(handle, identity, options.log_files(), &scan, &judgement)?;
    if !superblock.opened {
        file.update(&mut disk, begin_run)?;
    }
    checkpoint::remove_unnamed(&mut disk, &superblock)?;
    let lost = match &state {
        RecoveredState::Previous { lost, .. } | RecoveredState::Lost(lost) => Some(*lost),
        RecoveredState::Initial | RecoveredState::Checkpoint(_) => None,
    };
    let records = records_of(&mut scan, &judgement);
    Ok(Opened {
        superblock,
        boot,
        state,
        records,
        repaired_gaps: judgement.gaps,
        torn_tail: judgement.torn,
        log,
        checkpoints: Checkpoints::new(disk, file, *options, lost),
    })
}

/// Whether the log says that a replica announced this boot of its own: that is on disk before it does.
fn announces(scan: &LogScan, judgement: &Judgement, replica: ReplicaId, boot: BootId) -> bool {
    let groups = judgement.groups.iter().map(|(file, index)| &scan.files[*file].groups[*index]);
    let mut records = groups.flat_map(|group| &group.records);
    records.any(|placed| {
        matches!(&placed.record, Record::Boot { replica: of, announcement, .. }
            if *of == replica && announcement.boot == boot)
    })
}

/// Why a directory was not closed in order. It will be opened as after a crash.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The log could not be flushed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The superblock could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Ends a run in order: with durability `async` nothing is lost when the machine restarts after
/// this. A run that ends otherwise is recovered from; nothing relies on this call.
///
/// # Errors
/// When the disk fails.
pub fn close<D: Disk>(mut log: Log<D>, mut checkpoints: Checkpoints<D>) -> Result<(), CloseError> {
    log.flush()?;
    Ok(checkpoints.set_stopped()?)
}

fn read_superblock(
    disk: &mut impl Disk,
    expected: &Expectation,
) -> Result<SuperblockFile, OpenError> {
    if !disk.exists(SUPERBLOCK_NAME)? {
        for directory in ["", crate::log::file::DIRECTORY, checkpoint::DIRECTORY] {
            if disk.list(directory)?.iter().any(|name| name != TEMPORARY_NAME) {
                return Err(OpenError::Corrupt { file: SUPERBLOCK_NAME.to_owned(), offset: 0 });
            }
        }
        return Err(OpenError::Empty);
    }
    let file = SuperblockFile::read(disk)?;
    let identity = &file.current().identity;
    if identity.cluster != expected.cluster {
        let (found, expected) = (identity.cluster, expected.cluster);
        return Err(OpenError::OtherCluster { found, expected });
    }
    if identity.replica != expected.replica {
        let (found, expected) = (identity.replica, expected.replica);
        return Err(OpenError::OtherReplica { found, expected });
    }
    if identity.parameters != expected.parameters {
        let (found, expected) = (identity.parameters, expected.parameters);
        return Err(OpenError::OtherParameters { found, expected });
    }
    if identity.incarnation != expected.incarnation {
        let (found, expected) = (identity.incarnation, expected.incarnation);
        return Err(OpenError::OtherIncarnation { found, expected });
    }
    Ok(file)
}

/// Rule D8: whether the last run ended with promises that were never on disk.
fn check_memory(superblock: &Superblock, expected: &Expectation) -> Result<(), Amnesia> {
    match superblock.identity.durability {
        Durability::None if superblock.opened => Err(Amnesia::NoLog),
        Durability::Async if superblock.running.is_some_and(|boot| boot != expected.boot_id) => {
            Err(Amnesia::OtherBoot)
        }
        _ => Ok(()),
    }
}

/// The newest state that verifies and from which the log goes on, with the log judged on it.
fn choose_state<D: Disk>(
    disk: &D,
    superblock: &Superblock,
    scan: &LogScan,
) -> Result<(RecoveredState<D>, Judgement), OpenError> {
    let Some(newest) = superblock.checkpoint() else {
        return Ok((RecoveredState::Initial, judge(scan, Slot(0), Slot(0))?));
    };
    let cluster = superblock.identity.cluster;
    let judgement = judge(scan, newest.slot, newest.slot)?;
    if let Some(reader) = verified(disk, cluster, newest)? {
        return Ok((RecoveredState::Checkpoint(reader), judgement));
    }
    for previous in &superblock.checkpoints[1..] {
        let Some(reader) = verified(disk, cluster, *previous)? else { continue };
        let Ok(judgement) = judge(scan, previous.slot, newest.slot) else { continue };
        if judgement.gaps.is_empty() && judgement.reaches_from <= previous.slot {
            return Ok((RecoveredState::Previous { lost: newest, reader }, judgement));
        }
    }
    Ok((RecoveredState::Lost(newest), judgement))
}

/// The checkpoint's reader; `None` when it is gone or does not verify.
fn verified<D: Disk>(
    disk: &D,
    cluster: ClusterId,
    name: CheckpointName,
) -> Result<Option<CheckpointReader<D>>, DiskError> {
    match checkpoint::open_verified(disk.handle(), cluster, name) {
        Ok(reader) => Ok(Some(reader)),
        Err(CheckpointError::Disk(error))
            if error.source.kind() != std::io::ErrorKind::NotFound =>
        {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

impl From<ScanError> for OpenError {
    fn from(error: ScanError) -> OpenError {
        match error {
            ScanError::Disk(error) => OpenError::Io(error),
            ScanError::Undecodable { file, offset } => OpenError::Corrupt { file, offset },
        }
    }
}

impl From<LostVotes> for OpenError {
    fn from(lost: LostVotes) -> OpenError {
        let LostVotes { file, offset, votes_through: through, covered: decided } = lost;
        OpenError::Amnesiac(Amnesia::LostVotes { file, offset, through, decided })
    }
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> OpenError {
        match error {
            LogError::Disk(error) => OpenError::Io(error),
            LogError::Corrupt { file, offset } => OpenError::Corrupt { file, offset },
            LogError::Poisoned | LogError::TooLarge { .. } => {
                let source = std::io::Error::other(error);
                OpenError::Io(DiskError::new("resume", crate::log::file::DIRECTORY, source))
            }
        }
    }
}
