//! What is on disk, item by item, with the verdict of its checksums: for `perdura inspect`.
//!
//! Reads single files, also copies without their superblock: a log file's header carries the key
//! of its checksums. Changes nothing and judges nothing: whether a group that does not verify is a
//! torn tail or rot is for the opening of the whole directory to say.

use crate::FORMAT_VERSION;
use crate::checkpoint::{CheckpointError, CheckpointReader, PieceLocation};
use crate::disk::{Disk, DiskError, ReadFrom};
use crate::log::file::{FILE_HEADER_BYTES, FileHeader};
use crate::log::group::GroupHeader;
use crate::log::scan::{GroupWalk, Marks, ScanError, Scanned, read_array};
use crate::storage::OpenError;
use crate::superblock::{SUPERBLOCK_NAME, Superblock, SuperblockFile};
use perdura_protocol::boots::HeldVote;
use perdura_protocol::{ClusterId, Digest, Record, Slot};
use std::fmt;
use std::ops::Range;

/// Why a file was not inspected to its end.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file's header does not verify, so nothing in it can be.
    #[error("{file} does not begin with a valid header; it was never written to, or is corrupt")]
    NoHeader {
        /// The file.
        file: String,
    },
    /// A newer program wrote it.
    #[error("{file} is of format version {found}; this program reads up to {FORMAT_VERSION}")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// Corrupt where the rest cannot be found without it.
    #[error("{file} is corrupt at offset {offset}")]
    Corrupt {
        /// The file.
        file: String,
        /// Where.
        offset: u64,
    },
}

/// An item of a log file. Its text is one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogItem {
    /// The file's header.
    Header {
        /// Format version.
        version: u32,
        /// The cluster.
        cluster: ClusterId,
        /// The replica's incarnation.
        incarnation: u32,
        /// Use number of the file.
        use_number: u64,
        /// Number of its first group.
        first_group: u64,
    },
    /// How far the log is known to be flushed; `None` without a valid mark.
    Mark(Option<u64>),
    /// A group that verifies.
    Group {
        /// Offset in the file.
        offset: u64,
        /// Its number.
        number: u64,
        /// Bytes of records with framing.
        bytes: u32,
        /// Number of records.
        records: u32,
        /// How many of them repeat earlier ones.
        carried: u32,
        /// The highest slot voted for up to and with this group.
        voted: Slot,
    },
    /// A record of the group before.
    Record {
        /// Offset of its frame in the file.
        offset: u64,
        /// The record.
        record: Record,
    },
    /// A group whose header verifies and whose records do not: torn or rotten.
    Damaged {
        /// Offset in the file.
        offset: u64,
        /// Its number.
        number: u64,
        /// Bytes of records as its header has it.
        bytes: u32,
    },
    /// Pages that begin no group of this use: free space, leftovers of an earlier use, or rot.
    Free {
        /// First offset.
        from: u64,
        /// First offset after.
        to: u64,
    },
}

impl fmt::Display for LogItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogItem::Header { version, cluster, incarnation, use_number, first_group } => write!(
                f,
                "header: format {version}, cluster {cluster}, incarnation {incarnation}, use \
                 {use_number}, first group {first_group}"
            ),
            LogItem::Mark(Some(number)) => write!(f, "flush mark: group {number}"),
            LogItem::Mark(None) => write!(f, "flush mark: none"),
            LogItem::Group { offset, number, bytes, records, carried, voted } => write!(
                f,
                "{offset}: group {number}, {records} records ({carried} repeated) in {bytes} \
                 bytes, voted up to slot {voted}, checksum ok"
            ),
            LogItem::Record { offset, record } => {
                write!(f, "{offset}:   ")?;
                write_record(f, record)
            }
            LogItem::Damaged { offset, number, bytes } => write!(
                f,
                "{offset}: group {number}, {bytes} bytes of records, CHECKSUM FAILS (torn or corrupt)"
            ),
            LogItem::Free { from, to } => write!(f, "{from}..{to}: no group"),
        }
    }
}

fn write_record(f: &mut fmt::Formatter<'_>, record: &Record) -> fmt::Result {
    match record {
        Record::View(view) => write!(f, "view {view}"),
        Record::Vote { view, slot, batch, writes } => write!(
            f,
            "vote for slot {slot} in view {view}: batch {:?}, {} bytes, {} frames, {} writes",
            batch.digest(),
            batch.raw().len(),
            batch.frames().len(),
            writes.len()
        ),
        Record::Decision { slot, view, batch, accepts } => write!(
            f,
            "decision of slot {slot} in view {view}: batch {:?}, {} bytes, {} frames, {} accepts",
            batch.digest(),
            batch.raw().len(),
            batch.frames().len(),
            accepts.len()
        ),
        Record::Accepts { slot, view, digest, accepts } => {
            write!(f, "accepts of slot {slot} in view {view}: batch {digest:?}, {}", accepts.len())
        }
        Record::Delivered { slot, history } => {
            write!(f, "delivered up to slot {slot}, history {history:?}")
        }
        Record::Prefix(prefix) => write!(
            f,
            "prefix up to slot {}, history {:?}, {} signatures",
            prefix.slot,
            prefix.history,
            prefix.certificate.len()
        ),
        Record::State(state) => write!(
            f,
            "state after slot {} is certified by {}, digest {:?}",
            state.slot,
            state.certificate.len(),
            state.digest
        ),
        Record::Boot { replica, announcement, .. } => {
            write!(f, "replica {replica} is in boot {}", announcement.boot.number)
        }
        Record::Heard { replica, vote: HeldVote { view, slot, digest, .. }, .. } => {
            write!(f, "replica {replica} voted on slot {slot} in view {view}, batch {digest:?}")
        }
        Record::Configuration(configuration) => write!(
            f,
            "configuration {} from slot {}, {} members",
            configuration.id,
            configuration.from_slot,
            configuration.members.len()
        ),
    }
}

/// Walks through the log file `name` and hands each item to `visit`. Returns whether every group
/// whose header verifies does so itself.
///
/// # Errors
/// [`InspectError`]; items before the error have been visited.
pub fn inspect_log(
    disk: &mut impl Disk,
    name: &str,
    visit: &mut dyn FnMut(LogItem),
) -> Result<bool, InspectError> {
    let file = || name.to_owned();
    let header = read_array::<FILE_HEADER_BYTES>(disk, name, 0)?
        .and_then(|bytes| FileHeader::decode(&bytes))
        .ok_or_else(|| InspectError::NoHeader { file: file() })?;
    let FileHeader { version, incarnation, cluster, use_number, first_group, key } = header;
    if version > FORMAT_VERSION {
        return Err(InspectError::NewerFormat { file: file(), found: version });
    }
    visit(LogItem::Header { version, cluster, incarnation, use_number, first_group });
    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
    let marks =
        if directory.is_empty() { "marks".to_owned() } else { format!("{directory}/marks") };
    let marks = [Marks::in_file(disk, name)?, Marks::beside(disk, &marks)?];
    visit(LogItem::Mark(marks.iter().filter_map(|marks| marks.highest(&key, use_number)).max()));
    let size_bytes = disk.len(name)?;
    let mut walk = GroupWalk::new(disk, name, key, use_number)?;
    let (mut intact, mut free_from) = (true, None);
    loop {
        let met = match walk.next() {
            Ok(met) => met,
            Err(ScanError::Disk(error)) => return Err(error.into()),
            Err(ScanError::Undecodable { file, offset }) => {
                return Err(InspectError::Corrupt { file, offset });
            }
        };
        let at = match &met {
            Some(Scanned::Page(offset)) => {
                free_from = free_from.or(Some(*offset));
                continue;
            }
            Some(Scanned::Group(group)) => group.header.offset,
            Some(Scanned::Damaged(header)) => header.offset,
            None => size_bytes,
        };
        if let Some(from) = free_from.take() {
            visit(LogItem::Free { from, to: at });
        }
        match met {
            Some(Scanned::Group(group)) => {
                visit(group_item(&group.header));
                for placed in group.records {
                    let offset = at + placed.offset as u64;
                    visit(LogItem::Record { offset, record: placed.record });
                }
            }
            Some(Scanned::Damaged(header)) => {
                intact = false;
                let (number, bytes) = (header.number, header.payload_bytes);
                visit(LogItem::Damaged { offset: at, number, bytes });
            }
            Some(Scanned::Page(_)) | None => return Ok(intact),
        }
    }
}

fn group_item(header: &GroupHeader) -> LogItem {
    LogItem::Group {
        offset: header.offset,
        number: header.number,
        bytes: header.payload_bytes,
        records: header.records,
        carried: header.carried,
        voted: header.after.votes,
    }
}

/// The superblock of a data directory; `None` if there is none that can be read.
///
/// # Errors
/// [`InspectError::Disk`].
pub fn read_superblock(disk: &mut impl Disk) -> Result<Option<Superblock>, InspectError> {
    if !disk.exists(SUPERBLOCK_NAME)? {
        return Ok(None);
    }
    match SuperblockFile::read(disk) {
        Ok(file) => Ok(Some(file.current().clone())),
        Err(OpenError::Io(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// An item of a checkpoint file. Its text is one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointItem {
    /// The file's header; it and the index verify.
    Header {
        /// Format version.
        version: u32,
        /// The cluster.
        cluster: ClusterId,
        /// The state is that after this slot.
        slot: Slot,
        /// Digest of the state.
        digest: Digest,
        /// Bytes of the manifest, which verifies.
        manifest_bytes: usize,
        /// Number of pieces.
        pieces: usize,
        /// Of these, in files of older checkpoints.
        linked: usize,
        /// The part of the file between pieces and index, which means nothing and is not read.
        unused: Range<u64>,
    },
    /// A piece.
    Piece {
        /// Its number.
        index: usize,
        /// Where it stands.
        place: PieceLocation,
        /// Whether that is the file of an older checkpoint.
        linked: bool,
        /// What its digest says.
        verdict: PieceVerdict,
    },
}

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceVerdict {
    /// It verifies.
    Valid,
    /// It does not verify.
    Corrupt,
    /// The older checkpoint's file that it is in is not beside this one.
    NoFile,
}

impl fmt::Display for CheckpointItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointItem::Header {
                version,
                cluster,
                slot,
                digest,
                manifest_bytes,
                pieces,
                linked,
                unused: _,
            } => write!(
                f,
                "checkpoint at slot {slot}: format {version}, cluster {cluster}, state {digest}, \
                 manifest {manifest_bytes} bytes, {pieces} pieces, {linked} of them linked, \
                 checksum ok"
            ),
            CheckpointItem::Piece { index, place, linked, verdict } => {
                let PieceLocation { file, offset, bytes } = place;
                let verdict = match verdict {
                    PieceVerdict::Valid => "checksum ok",
                    PieceVerdict::Corrupt => "CHECKSUM FAILS",
                    PieceVerdict::NoFile => "THAT FILE IS NOT HERE",
                };
                if *linked {
                    write!(
                        f,
                        "{offset} in checkpoint {:020}: piece {index}, {bytes} bytes, {verdict}",
                        file.0
                    )
                } else {
                    write!(f, "{offset}: piece {index}, {bytes} bytes, {verdict}")
                }
            }
        }
    }
}

/// Walks through the checkpoint file `name` and hands each item to `visit`. Returns whether
/// everything verifies, the pieces in files of older checkpoints too: these are looked for beside it.
///
/// # Errors
/// [`InspectError::Corrupt`] when header, manifest or index do not verify.
pub fn inspect_checkpoint<D: Disk>(
    disk: &D,
    name: &str,
    visit: &mut dyn FnMut(CheckpointItem),
) -> Result<bool, InspectError> {
    let opened = CheckpointReader::open(disk.handle(), name, ReadFrom::Cache);
    let mut reader = opened.map_err(|error| match error {
        CheckpointError::Disk(error) => InspectError::Disk(error),
        CheckpointError::Corrupt { offset: 0, .. } => {
            InspectError::NoHeader { file: name.to_owned() }
        }
        CheckpointError::Corrupt { file, offset } => InspectError::Corrupt { file, offset },
        _ => InspectError::Corrupt { file: name.to_owned(), offset: 0 },
    })?;
    let places: Vec<PieceLocation> =
        (0..reader.piece_count()).filter_map(|index| reader.place(index)).collect();
    let is_linked = |place: &PieceLocation| place.file != reader.slot();
    visit(CheckpointItem::Header {
        version: reader.version(),
        cluster: reader.cluster(),
        slot: reader.slot(),
        digest: reader.digest(),
        manifest_bytes: reader.manifest().len(),
        pieces: places.len(),
        linked: places.iter().filter(|place| is_linked(place)).count(),
        unused: reader.unused(),
    });
    let mut intact = true;
    for (index, place) in places.into_iter().enumerate() {
        let verdict = match reader.piece(index) {
            Ok(_) => PieceVerdict::Valid,
            Err(CheckpointError::Disk(error)) => return Err(error.into()),
            Err(_) if !reader.has_file(place) => PieceVerdict::NoFile,
            Err(_) => PieceVerdict::Corrupt,
        };
        intact &= verdict == PieceVerdict::Valid;
        let linked = place.file != reader.slot();
        visit(CheckpointItem::Piece { index, place, linked, verdict });
    }
    Ok(intact)
}
