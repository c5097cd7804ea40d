//! Checkpoints: a state after a slot, complete or not there (rules D3, D5 and D6).
//!
//! A checkpoint is a file that holds the pieces that changed since the one before it, and an index
//! that names the place of every piece, in this file or in an older checkpoint's (*linked*).
//!
//! Layout of `checkpoint/<slot, 20 digits>`, little-endian:
//!
//! | what | bytes |
//! |---|---|
//! | header: magic `PDCHECKP` 8, checksum 16 (of bytes 24..128), version 4, cluster 16, slot 8, state digest 32, manifest length 4, piece count 4, zeros | 128 |
//! | manifest: checksum 16, bytes | |
//! | the bytes of the pieces that are not linked, one after the other; zeros, up to the place of the index | |
//! | index: for each piece its digest 32, the slot of the file that it is in 8, its offset there 8, length 4 | 52 each |
//! | footer: magic `PDCHKEND` 8, checksum 16 (of bytes 24..56), index offset 8, index length 8, index checksum 16 | 56 |
//!
//! Format version 1 links nothing. Its index has for each piece the offset of its bytes 8, length 4,
//! checksum 16. It is read, and not written any more.
//!
//! All checksums are keyed with bytes 24..96 of the header. A piece is held against the digest that
//! the newest index has for it, which its manifest has too: whatever stands at its place that is
//! not it, be it older or of another file, does not verify.
//!
//! Invariants:
//! - A checkpoint is written under another name, flushed, renamed, its directory flushed, then
//!   named by the superblock, with the files that it links to; only then what it replaces is
//!   removed, or becomes the file that the next one is written over. A file that the superblock does not
//!   name is removed when the directory is opened; of what it names nothing is removed or changed.
//! - Links go to older files, and to no file of a checkpoint that was found damaged: the one after
//!   it is written as a whole.
//! - The files of one checkpoint take at most twice what it would take as one file, and are 17 at
//!   most (`checkpoint/links.rs`); each takes a sixty-fourth more at most where it was written over a larger one.
//! - What is read is verified before it is handed out.
//! - With each checkpoint a part of what it links to is read and verified, and what is found damaged
//!   is written anew (`checkpoint/scrub.rs`). Between two of them, whoever has the time may have all of
//!   the newest one read (`checkpoint/reread.rs`).

mod format;
mod links;
mod reader;
mod reread;
mod scrub;
mod writer;

pub use format::PieceLocation;
pub(crate) use format::{Check, Entry, Footer, Header, entry_bytes};
pub(crate) use links::MOST_FILES;
pub use reader::CheckpointReader;
pub(crate) use reader::open_verified;
pub use reread::Again;

use crate::FORMAT_VERSION;
use crate::disk::{Disk, DiskError, ReadFrom};
use crate::storage::StorageOptions;
use crate::superblock::{CHECKPOINTS, CheckpointName, Link, Superblock, SuperblockFile};
use bytes::Bytes;
use perdura_protocol::{Digest, Slot, seeded};
use reader::{Sources, open_named};
use reread::Reread;
use scrub::Scrub;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use writer::{cut_down, slack_bytes, write_file};

pub(crate) const DIRECTORY: &str = "checkpoint";
const TEMPORARY_NAME: &str = "checkpoint/new";

/// Why a checkpoint was not stored or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk failed. After a failed *change* the replica must stop.
    #[error("a checkpoint failed: {0}")]
    Disk(#[from] DiskError),
    /// An earlier change failed. The replica must stop.
    #[error("storing a checkpoint failed before; none is stored any more (rule D3)")]
    Poisoned,
    /// A checkpoint that is not newer than the one that is there; nothing was done.
    #[error("a checkpoint at slot {slot} is not newer than the one at slot {newest}")]
    NotNewer {
        /// The slot given.
        slot: Slot,
        /// The slot of the state that is there.
        newest: Slot,
    },
    /// The manifest or a piece is larger than 4 GiB, or there are more than 2^32 pieces.
    #[error("a piece of a checkpoint is larger than 4 GiB")]
    TooLarge,
    /// What was given for a piece is not what the state names: memory is damaged, or this is a bug.
    #[error(
        "piece {index} is not what its state names: the memory of this machine is damaged, or this \
         is a bug; no checkpoint was stored"
    )]
    OtherPiece {
        /// Its number.
        index: usize,
    },
    /// The pace of the checkpoint stopped it; nothing was stored, and nothing has failed.
    #[error("storing a checkpoint was stopped")]
    Stopped,
    /// There is no such checkpoint, or no such piece in it.
    #[error("there is no checkpoint at slot {slot} with such a piece")]
    Unknown {
        /// The slot asked for.
        slot: Slot,
    },
    /// The file does not verify; the state must come from peers.
    #[error("{file} is corrupt at offset {offset}")]
    Corrupt {
        /// The file, relative to the data directory.
        file: String,
        /// Where.
        offset: u64,
    },
}

/// Name of the file of the checkpoint at `slot`.
pub(crate) fn name_of(slot: Slot) -> String {
    format!("{DIRECTORY}/{:020}", slot.0)
}

/// A piece of a state, as its manifest names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceName {
    /// Its digest.
    pub digest: Digest,
    /// Its length.
    pub bytes: u32,
}

impl PieceName {
    /// The name of `piece`; `None` above 4 GiB.
    #[must_use]
    pub fn of(piece: &[u8]) -> Option<PieceName> {
        let bytes = u32::try_from(piece.len()).ok()?;
        Some(PieceName { digest: Digest::of(piece), bytes })
    }
}

/// A state to be stored.
pub struct NewState<'a> {
    /// It is that after this slot.
    pub slot: Slot,
    /// Its digest.
    pub digest: Digest,
    /// Its manifest.
    pub manifest: &'a [u8],
    /// Its pieces, in order.
    pub pieces: &'a [PieceName],
    /// Gives a piece by its number; asked in order, and only for those that are to be written, so
    /// that one is in memory at a time.
    pub content: &'a mut dyn FnMut(usize) -> Bytes,
    /// Called after each write, and each read of what is linked, with its bytes (1 MiB at most); it
    /// may take its time. If it breaks, the state is not stored ([`CheckpointError::Stopped`]).
    pub pace: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

/// What storing a state took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Bytes of its file.
    pub written_bytes: u64,
    /// Whether that is the file of an old state.
    pub written_over: bool,
    /// Bytes of the pieces that are linked.
    pub linked_bytes: u64,
    /// Number of older files that they are in.
    pub linked_files: usize,
    /// Bytes that it would have linked to and that were read and verified first.
    pub verified_bytes: u64,
    /// Pieces, and indexes, that were found damaged in older files, or missing, and were written anew.
    /// To be reported loudly: the disk loses data.
    pub damages: u64,
    /// The first of them.
    pub damage: Option<String>,
}

/// The stored checkpoints of one replica, and its superblock. For one thread.
#[derive(Debug)]
pub struct Checkpoints<D> {
    disk: D,
    superblock: SuperblockFile,
    options: StorageOptions,
    // Named by the superblock, and found corrupt when it was opened.
    lost: Option<CheckpointName>,
    scrub: Scrub,
    reread: Reread<D>,
    // Bytes of the files that were written last, the last one first; 0 where there was none.
    last_bytes: [u64; 2],
    poisoned: bool,
}

impl<D: Disk> Checkpoints<D> {
    pub(crate) fn new(
        disk: D,
        superblock: SuperblockFile,
        options: StorageOptions,
        lost: Option<CheckpointName>,
    ) -> Checkpoints<D> {
        let (scrub, reread) = (Scrub::default(), Reread::default());
        Checkpoints {
            disk,
            superblock,
            options,
            lost,
            scrub,
            reread,
            last_bytes: [0; 2],
            poisoned: false,
        }
    }

    /// The superblock as it is now.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.superblock.current()
    }

    /// The checkpoints that are there, newest first; the first is the state.
    #[must_use]
    pub fn list(&self) -> &[CheckpointName] {
        &self.superblock().checkpoints
    }

    /// Stores a state. When this returns it is durable and is *the* state of this directory; older
    /// ones are removed but for the newest ones, as many as are retained, and the one at `keep`.
    /// Also how a state that was received and verified replaces a stale or lost one.
    ///
    /// # Errors
    /// [`CheckpointError::NotNewer`] (a state that was lost may be stored again at its slot),
    /// [`CheckpointError::TooLarge`], [`CheckpointError::OtherPiece`],
    /// [`CheckpointError::Stopped`], [`CheckpointError::Disk`] and from then on
    /// [`CheckpointError::Poisoned`]: the replica must stop. The state is then the new one or the
    /// one before.
    pub fn store(
        &mut self,
        mut state: NewState<'_>,
        keep: Slot,
    ) -> Result<Stored, CheckpointError> {
        let slot = state.slot;
        let newest = self.superblock().checkpoint();
        if let Some(newest) = newest {
            let again = self.lost.is_some() && slot == newest.slot;
            if slot <= newest.slot && !again {
                return Err(CheckpointError::NotNewer { slot, newest: newest.slot });
            }
        }
        let size = |count| u32::try_from(count).map_err(|_| CheckpointError::TooLarge);
        let header = Header {
            version: FORMAT_VERSION,
            cluster: self.superblock().identity.cluster,
            slot,
            digest: state.digest,
            manifest_bytes: size(state.manifest.len())?,
            pieces: size(state.pieces.len())?,
        };
        self.guarded(|checkpoints| {
            let mut sources = checkpoints.sources(&state, &header);
            let plan = |sources: &Sources| links::plan(state.pieces, header.frame_bytes(), sources);
            let (mut links, mut scrub) = (plan(&sources), checkpoints.scrub);
            let (disk, pieces) = (&mut checkpoints.disk, state.pieces);
            let verified_bytes =
                scrub.verify(disk, pieces, &links, &mut sources, &mut *state.pace)?;
            let damage = std::mem::take(&mut sources.damage);
            if damage.count > 0 {
                links = plan(&sources);
            }
            let sync_bytes = checkpoints.options.checkpoint_sync_bytes;
            let disk = &mut checkpoints.disk;
            let (written_bytes, written_over) =
                write_file(disk, &header, &mut state, &links, sync_bytes)?;
            let files: BTreeSet<Slot> = links.iter().flatten().map(|place| place.file).collect();
            let name = CheckpointName { slot, digest: state.digest };
            checkpoints.put_in_place(name, &files, keep)?;
            let [last, _] = checkpoints.last_bytes;
            checkpoints.last_bytes = [written_bytes, last];
            checkpoints.scrub = scrub;
            checkpoints.reread = Reread::default();
            let linked_bytes = links.iter().flatten().map(|place| u64::from(place.bytes)).sum();
            Ok(Stored {
                written_bytes,
                written_over,
                linked_bytes,
                linked_files: files.len(),
                verified_bytes,
                damages: damage.count,
                damage: damage.first,
            })
        })
    }

    /// What a new state may link to: the pieces of the newest checkpoint, if that is not damaged.
    /// A small state is written as a whole.
    fn sources(&self, state: &NewState<'_>, header: &Header) -> Sources {
        let whole_bytes = links::whole_bytes(state.pieces, header.frame_bytes());
        let small = whole_bytes <= self.options.small_state_bytes;
        let sound = self.lost.is_none() && !self.reread.is_lost();
        let newest = self.superblock().checkpoint().filter(|_| !small && sound);
        let Some(newest) = newest else { return Sources::default() };
        let damaged = self.reread.damaged_digests();
        let found = self.load(newest.slot).and_then(|mut reader| Ok(reader.sources(&damaged)?));
        found.unwrap_or_else(|error| {
            // Its index has rotted meanwhile, or cannot be read: nothing is linked to.
            let mut sources = Sources::default();
            sources.damage.note(|| error.to_string());
            sources
        })
    }

    /// Rename, directory, superblock; only after that may what is old be removed (rule D3).
    fn put_in_place(
        &mut self,
        name: CheckpointName,
        files: &BTreeSet<Slot>,
        keep: Slot,
    ) -> Result<(), CheckpointError> {
        self.disk.rename(TEMPORARY_NAME, &name_of(name.slot))?;
        self.disk.sync_directory(DIRECTORY)?;
        let link = |file: &Slot| Link { checkpoint: name.slot, file: *file };
        let links: Vec<Link> = files.iter().map(link).collect();
        if seeded!(RemovedTooEarly) {
            let mut next = self.superblock.current().clone();
            next.checkpoints = vec![name];
            next.links = links.clone();
            remove_unnamed(&mut self.disk, &next)?;
        }
        let retained = self.options.retained_checkpoints.min(CHECKPOINTS - 2);
        let lost = self.lost;
        self.superblock.update(&mut self.disk, |superblock| {
            superblock.checkpoints.retain(|old| Some(*old) != lost && old.slot != name.slot);
            let mut newer = 0;
            superblock.checkpoints.retain(|old| {
                newer += 1;
                newer <= retained || old.slot == keep
            });
            let kept: Vec<Slot> = superblock.checkpoints.iter().map(|old| old.slot).collect();
            superblock.links.retain(|link| kept.contains(&link.checkpoint));
            superblock.checkpoints.insert(0, name);
            if !seeded!(LinksForgotten) {
                superblock.links.extend(links);
            }
        })?;
        self.lost = None;
        Ok(())
    }

    /// Removes the files that no stored checkpoint needs any more, but for the largest: the next checkpoint is
    /// written over that one, which has its blocks already, so that neither the file system's journal nor the
    /// device is told of any. To be called after [`Checkpoints::store`], when there is time.
    ///
    /// Not at once: a file system gives the blocks of a file back in one go, and where it tells the device of
    /// them, the log's flushes wait for that, for tens of milliseconds with 1 GB. So in steps of
    /// `checkpoint_sync_bytes` (1 at least), with a call of `pace` after each, which may take its
    /// time. If it breaks, what is left goes at the next call, or when the directory is opened. Says how
    /// many steps it were.
    ///
    /// # Errors
    /// [`CheckpointError::Disk`], after which nothing is stored any more.
    pub fn remove_old(
        &mut self,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<usize, CheckpointError> {
        self.guarded(|checkpoints| {
            let step_bytes = checkpoints.options.checkpoint_sync_bytes;
            let disk = &mut checkpoints.disk;
            let mut old = Vec::new();
            for name in unnamed(disk, checkpoints.superblock.current())? {
                old.push((disk.len(&name)?, name));
            }
            old.sort_unstable();
            // What the next one will take: now and then much is written that did not change, too.
            let usual_bytes = checkpoints.last_bytes.into_iter().filter(|bytes| *bytes > 0).min();
            let kept = old.pop_if(|_| usual_bytes.is_some());
            let mut steps = 0;
            let mut pace = || {
                steps += 1;
                pace()
            };
            for (_, name) in &old {
                if cut_down(disk, name, step_bytes, step_bytes, &mut pace)?.is_break() {
                    return Ok(steps);
                }
                disk.remove(name)?;
            }
            if let (Some((bytes, name)), Some(usual_bytes)) = (&kept, usual_bytes) {
                let much_larger = *bytes > usual_bytes + slack_bytes(usual_bytes, step_bytes);
                let pace = &mut pace;
                if much_larger && cut_down(disk, name, usual_bytes, step_bytes, pace)?.is_break() {
                    return Ok(steps);
                }
                if name != TEMPORARY_NAME {
                    disk.rename(name, TEMPORARY_NAME)?;
                }
            }
            if !old.is_empty() || kept.is_some() {
                disk.sync_directory(DIRECTORY)?;
            }
            Ok(steps)
        })
    }

    /// Opens the stored checkpoint at `slot`, for instance to send it to a peer.
    ///
    /// # Errors
    /// [`CheckpointError::Unknown`] when it is not (or no longer) there,
    /// [`CheckpointError::Corrupt`].
    pub fn load(&self, slot: Slot) -> Result<CheckpointReader<D>, CheckpointError> {
        let name = self.list().iter().find(|name| name.slot == slot);
        let name = name.ok_or(CheckpointError::Unknown { slot })?;
        self.open(*name, ReadFrom::Cache)
    }

    fn open(
        &self,
        name: CheckpointName,
        from: ReadFrom,
    ) -> Result<CheckpointReader<D>, CheckpointError> {
        open_named(self.disk.handle(), self.superblock().identity.cluster, name, from)
    }

    /// The states after `slot`, which is that of a stored one, are wrong, though what is stored of
    /// them may verify: from now on it is as if they had never been stored. Without any right one
    /// (slot 0) there must be none. Says how many they were. The log has to be flushed; the run ends
    /// with this.
    ///
    /// # Errors
    /// [`CheckpointError::Unknown`] when there is no such state: nothing was changed.
    /// [`CheckpointError::Disk`]: the wrong ones may be taken for right again.
    pub fn distrust_after(mut self, slot: Slot) -> Result<usize, CheckpointError> {
        if !self.list().is_empty() && !self.list().iter().any(|name| name.slot == slot) {
            return Err(CheckpointError::Unknown { slot });
        }
        let wrong = self.list().iter().filter(|name| name.slot > slot).count();
        self.guarded(|checkpoints| {
            // Their files go when the directory is opened.
            checkpoints.superblock.update(&mut checkpoints.disk, |superblock| {
                if !seeded!(UntrustedStateKept) {
                    superblock.checkpoints.retain(|name| name.slot <= slot);
                    superblock.links.retain(|link| link.checkpoint <= slot);
                }
                superblock.running = None;
            })?;
            Ok(wrong)
        })
    }

    /// Notes that a replacement (rule D8) holds the state that it had to fetch, and votes from
    /// now on. Call it after that state was stored.
    ///
    /// # Errors
    /// As [`Checkpoints::store`].
    pub fn set_recovered(&mut self) -> Result<(), CheckpointError> {
        self.guarded(|checkpoints| {
            let update = |superblock: &mut Superblock| superblock.identity.must_recover = None;
            Ok(checkpoints.superblock.update(&mut checkpoints.disk, update)?)
        })
    }

    /// Notes an orderly end: everything is flushed.
    pub(crate) fn set_stopped(&mut self) -> Result<(), CheckpointError> {
        self.guarded(|checkpoints| {
            let update = |superblock: &mut Superblock| superblock.running = None;
            Ok(checkpoints.superblock.update(&mut checkpoints.disk, update)?)
        })
    }

    fn guarded<T>(
        &mut self,
        operation: impl FnOnce(&mut Checkpoints<D>) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        if self.poisoned {
            return Err(CheckpointError::Poisoned);
        }
        let result = operation(self);
        if let Err(CheckpointError::Disk(_)) = result {
            self.poisoned = true;
        }
        result
    }
}

/// The files that the superblock does not name: half-written ones, and old ones to which no checkpoint
/// links any more or whose removal was cut short.
fn unnamed(disk: &mut impl Disk, superblock: &Superblock) -> Result<Vec<String>, DiskError> {
    let named: BTreeSet<String> = superblock.checkpoint_files().map(name_of).collect();
    let files = disk.list(DIRECTORY)?.into_iter().map(|name| format!("{DIRECTORY}/{name}"));
    Ok(files.filter(|name| !named.contains(name)).collect())
}

/// Removes them at once, before anything is logged.
pub(crate) fn remove_unnamed(
    disk: &mut impl Disk,
    superblock: &Superblock,
) -> Result<(), DiskError> {
    let files = unnamed(disk, superblock)?;
    for name in &files {
        disk.remove(name)?;
    }
    if files.is_empty() { Ok(()) } else { disk.sync_directory(DIRECTORY) }
}
