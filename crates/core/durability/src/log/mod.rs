//! The log: what this replica promised, and the decided batches, in groups (rules D1 to D4).
//!
//! The log is a row of prezeroed files, `log/<use number>`; the last is written to. Each use of a
//! file has a number of its own, one above all before, that is part of every checksum in it. A
//! file whose slots a durable checkpoint covers is renamed `log/free-<use number>` and used again.
//! Files are of one size, but for those of a log that is becoming longer: each of these is twice the one before, about.
//! The layout of a file is in `file`, that of a group in `group`.
//!
//! Invariants:
//! - One append is one group, one write, one flush. Group g + 1 is written only after the flush of g
//!   returned, so only the last group can be torn.
//! - No flush rewrites a page of an earlier group.
//! - A file is begun only after the flush of the last group in the one before it; its name is
//!   durable before its first group is acknowledged; its first group repeats what `carry` says.
//! - A file is sealed, by a flushed mark, once the one after it holds a group; files are freed only
//!   after that. So a hole between files is known from a hole in a file.
//! - Files are freed oldest first, and a freed file's name is durable before it is written to.
//! - After a failed write or flush every later call fails ([`LogError::Poisoned`]).
//!
//! - Flush marks other than seals stand in a file of their own (`file` says why).
//!
//! Files: `frame`, `group` and `file` are the codec, this one is the writer, `scan` the reader,
//! `recovery` judges what a reader found, `resume` makes a log of it again.

mod carry;
pub(crate) mod file;
pub(crate) mod frame;
pub(crate) mod group;
mod index;
pub(crate) mod recovery;
pub(crate) mod resume;
pub(crate) mod scan;

pub use file::DIRECTORY;
pub use group::Position;
pub use recovery::{RepairedGap, TornTail};

use crate::checksum::FileKey;
use crate::disk::{Disk, DiskError};
use crate::superblock::Identity;
use bytes::Bytes;
use carry::Carry;
use file::{
    FileHeader, GROUPS_OFFSET, MARKS, MARKS_BYTES, MARKS_OFFSET, encode_mark, free_name_of, name_of,
};
use frame::FrameFormat;
use group::{GROUP_BYTES, GroupBuilder, GroupHeader, PAGE_BYTES, decode_frame, round_up};
use index::{Index, Location};
use perdura_protocol::configuration::Durability;
use perdura_protocol::message::Decision;
use perdura_protocol::{Digest, Record, Slot, seeded};
use scan::key_of;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Least bytes of zeros that are written at once when a file is made ready.
const ZEROS_BYTES: u64 = 256 * 1024;

/// After so many groups the marks are flushed: a machine that stops leaves no more acknowledged groups at the
/// end of the log of which only the groups themselves tell.
const MARKS_GROUPS: u64 = 128;

/// So many free files go with each truncation, where there are more than are needed: removing a large file takes its time.
const LET_GO: usize = 2;

/// Why the log did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A write or flush failed. The replica must stop: what is on disk is not known.
    #[error("the log failed, and the replica must stop: {0}")]
    Disk(#[from] DiskError),
    /// An earlier write or flush failed. The replica must stop.
    #[error("the log failed before; nothing is written to it any more (rule D3)")]
    Poisoned,
    /// More than a group may hold; nothing was written and the log goes on.
    #[error("{bytes} bytes of records are above the limit of {limit} for one group")]
    TooLarge {
        /// Bytes of the records with framing.
        bytes: usize,
        /// Most bytes.
        limit: usize,
    },
    /// A record that was asked for has rotted; the log goes on, peers have the batch.
    #[error("{file} is corrupt at offset {offset}")]
    Corrupt {
        /// The file, relative to the data directory.
        file: String,
        /// Where the record stands.
        offset: u64,
    },
}

/// A file of the row.
#[derive(Debug)]
struct LogFile {
    use_number: u64,
    name: String,
    size_bytes: u64,
    // The highest slot that a record in it speaks of, repeated ones aside.
    slots: Slot,
}

/// How large the files of a log are, and how many free ones it keeps ([`crate::storage::StorageOptions`]).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileSizes {
    pub(crate) usual_bytes: u64,
    // Of one that an append waits for; not above the usual size.
    pub(crate) hasty_bytes: u64,
    pub(crate) kept_free: usize,
}

/// So much of a file's length is used again: what is written goes around the cache by pages.
fn whole_pages(size_bytes: u64) -> u64 {
    size_bytes - size_bytes % PAGE_BYTES
}

/// A free file whose zeros are being written.
#[derive(Debug)]
struct NewFile {
    name: String,
    written: u64,
    unflushed: u64,
}

/// The log of one replica, open for writing. Belongs to the keeper's thread.
pub struct Log<D> {
    disk: D,
    identity: Identity,
    sizes: FileSizes,
    // Never empty, unless durability is `none`.
    files: VecDeque<LogFile>,
    // Names of files of the usual size.
    free: Vec<String>,
    new: Option<NewFile>,
    next_use: u64,
    // Key of the last file, and the offset of the next group in it.
    key: FileKey,
    tail: u64,
    next_group: u64,
    position: Position,
    carry: Carry,
    index: Index,
    builder: GroupBuilder,
    // The last file holds no group yet, or none that verifies.
    first: bool,
    // Groups since the marks were flushed.
    unmarked: u64,
    // How many files were in use when it was truncated the last two times.
    in_use: [usize; 2],
    poisoned: bool,
}

impl<D: Disk> Log<D> {
    /// Writes `records` as one group, after all groups before it. When this returns they are as
    /// durable as the cluster's parameters ask: flushed (`sync`), handed to the
    /// operating system (`async`), or nothing at all was done (`none`).
    ///
    /// # Errors
    /// [`LogError::Disk`]: whether the records are on disk is not known, and the replica must
    /// stop. [`LogError::Poisoned`]: it should have. [`LogError::TooLarge`].
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        if !self.is_written() || records.is_empty() {
            return Ok(());
        }
        self.guarded(|log| log.append_group(records))
    }

    /// Frees the files in which every record speaks of slots up to `slot` only, other than the one
    /// that is written to. Before, a checkpoint at or after `slot` must be durable *here* (rule D6),
    /// and a certified prefix must reach `slot`: votes above the prefix are locks that a view
    /// change has to carry, also where the checkpoint covers their slots.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// Of the free files that are more than the log needed the last two times, `LET_GO` are removed: what a large state or a long
    /// absence took comes back to the disk.
    pub fn truncate_below(&mut self, slot: Slot) -> Result<(), LogError> {
        let rest = self.files.len().saturating_sub(1);
        let count = self.files.iter().take(rest).take_while(|file| file.slots <= slot).count();
        self.in_use = [self.files.len(), self.in_use[0]];
        let needed = self.in_use.into_iter().max().unwrap_or_default();
        let excess = (self.free.len() + count).saturating_sub(needed).min(LET_GO);
        if count == 0 && (excess == 0 || !self.is_written()) {
            return Ok(());
        }
        let more = count > 0 && seeded!(TruncatedTooFar);
        let count = count.saturating_add(more.into()).min(rest);
        self.guarded(|log| {
            for _ in 0..excess {
                if let Some(name) = log.free.pop() {
                    log.disk.remove(&name)?;
                }
            }
            for _ in 0..count {
                if let Some(file) = log.files.pop_front() {
                    log.free_file(file.use_number, file.size_bytes)?;
                }
            }
            log.disk.sync_directory(DIRECTORY)?;
            let first_use = log.files.front().map_or(0, |file| file.use_number);
            log.index.forget(slot, first_use);
            Ok(())
        })
    }

    /// Reads decided batches for a laggard: for each of `wanted`, slots that the caller knows as
    /// decided with these digests, the newest record of that batch with the newest certificate.
    /// Slots that the log does not hold are passed over. Stops before the batches exceed
    /// `max_bytes`, though not before the first.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] names the first record that has rotted; the log goes on.
    pub fn read_decisions(
        &mut self,
        wanted: &[(Slot, Digest)],
        max_bytes: usize,
    ) -> Result<Vec<Decision>, LogError> {
        if self.poisoned {
            return Err(LogError::Poisoned);
        }
        let mut decisions = Vec::new();
        let mut bytes = 0;
        for (slot, digest) in wanted {
            let Some(entry) = self.index.get(*slot, *digest) else { continue };
            let Some(location) = entry.batch else { continue };
            bytes += location.bytes as usize;
            if bytes > max_bytes && !decisions.is_empty() {
                break;
            }
            let mut decision = match self.read_record(location)? {
                Record::Decision { slot, view, batch, accepts } => {
                    Decision { slot, view, accepts, batch }
                }
                Record::Vote { view, slot, batch, .. } => {
                    Decision { slot, view, accepts: Default::default(), batch }
                }
                _ => return Err(self.corrupt(location)),
            };
            if decision.slot != *slot || decision.batch.digest() != *digest {
                return Err(self.corrupt(location));
            }
            if let Some(location) = entry.accepts {
                match self.read_record(location)? {
                    Record::Accepts { slot: of, view, digest: about, accepts }
                        if (of, about) == (*slot, *digest) =>
                    {
                        (decision.view, decision.accepts) = (view, accepts);
                    }
                    _ => return Err(self.corrupt(location)),
                }
            }
            decisions.push(decision);
        }
        Ok(decisions)
    }

    /// If there is no free file, makes one ready by and by, after each append: to twice what the file in use
    /// has taken, or its usual size, but for 256 KiB. When a file is full the next one has twice its size
    /// then, and no append waits for zeros. A call writes as much as is missing for each byte that is left in the file in use, twice
    /// over: after a restart all may be missing, and no hurry. At least it is four times the last group, and 256 KiB; at most what
    /// an append may have to wait for, so that the next append does not wait long either.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn prepare_free_file(&mut self) -> Result<(), LogError> {
        if !self.is_written() || !self.free.is_empty() {
            return Ok(());
        }
        let wanted = (2 * self.tail + ZEROS_BYTES).min(self.sizes.usual_bytes);
        let written = self.new.as_ref().map_or(0, |file| file.written);
        let missing = wanted.saturating_sub(written);
        if missing < ZEROS_BYTES && written + missing < self.sizes.usual_bytes {
            return Ok(());
        }
        // A large group may be the only one in its file, and this the only call until the next is needed.
        let group = self.builder.size();
        let most = self.sizes.hasty_bytes.max(4 * group);
        let least = most.min(ZEROS_BYTES.max(4 * group));
        let in_use = self.files.back().map_or(0, |file| file.size_bytes);
        let left = in_use.saturating_sub(self.tail).max(group).max(1);
        let bytes = missing.saturating_mul(2 * group).div_ceil(left).clamp(least, most);
        let bytes = round_up(bytes).min(missing);
        self.guarded(|log| Ok(log.fill_new_file(bytes)?))
    }

    /// Flushes the marks after some number of groups; to be called after an append, when nobody waits.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn flush_marks(&mut self) -> Result<(), LogError> {
        if self.unmarked < MARKS_GROUPS || !self.identity.durability.is_flushed() {
            return Ok(());
        }
        self.unmarked = 0;
        self.guarded(|log| Ok(log.disk.sync(MARKS)?))
    }

    /// Flushes everything appended so far, whatever the durability.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.guarded(|log| {
            for file in &log.files {
                log.disk.sync(&file.name)?;
            }
            if log.is_written() {
                log.disk.sync(MARKS)?;
            }
            Ok(())
        })
    }

    /// What the log has promised so far, over its whole life.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Number of files in the row.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    fn is_written(&self) -> bool {
        self.identity.durability != Durability::None
    }

    /// Runs `operation`; poisons the log when the disk fails in it.
    fn guarded(
        &mut self,
        operation: impl FnOnce(&mut Log<D>) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        if self.poisoned {
            return Err(LogError::Poisoned);
        }
        let result = operation(self);
        if let Err(LogError::Disk(_)) = result {
            self.poisoned = true;
        }
        result
    }

    fn append_group(&mut self, records: &[Record]) -> Result<(), LogError> {
        self.encode(self.key, &[], records)?;
        let room = self.files.back().map_or(0, |file| file.size_bytes);
        let mut carried = Vec::new();
        if self.first {
            carried = self.carry.records();
            self.encode(self.key, &carried, records)?;
        }
        if self.tail + self.builder.size() > room {
            carried = self.carry.records();
            self.encode(key_of(&self.identity, self.next_use), &carried, records)?;
            self.begin_file(self.builder.size())?;
        }
        let Some(file) = self.files.back() else { return Err(LogError::Poisoned) };
        let mut after = self.position;
        records.iter().for_each(|record| after.advance(record));
        let header = GroupHeader {
            format: FrameFormat::NEWEST,
            records_sum: Default::default(),
            use_number: file.use_number,
            offset: self.tail,
            number: self.next_group,
            payload_bytes: 0,
            records: 0,
            carried: carried.len() as u32,
            before: self.position,
            after,
        };
        let group = self.builder.finish(&self.key, header);
        if self.identity.durability.is_flushed() {
            self.disk.write_through(&file.name, self.tail, group)?;
        } else {
            self.disk.write_at(&file.name, self.tail, group)?;
        }
        let (place, mark) = encode_mark(&self.key, file.use_number, self.next_group);
        if self.identity.durability.is_flushed() {
            self.disk.sync(&file.name)?;
        }
        self.disk.write_at(MARKS, place, &mark)?;
        self.unmarked += 1;
        if self.first {
            self.first = false;
            self.seal_previous_file()?;
        }
        self.take_in(carried.len(), records);
        self.position = after;
        self.tail += self.builder.size();
        self.next_group += 1;
        Ok(())
    }

    fn encode(
        &mut self,
        key: FileKey,
        carried: &[Record],
        records: &[Record],
    ) -> Result<(), LogError> {
        self.builder.begin(&key, FrameFormat::NEWEST);
        for record in carried.iter().chain(records) {
            self.builder.push(&key, record);
            let bytes = self.builder.payload_bytes();
            if bytes > GROUP_BYTES {
                return Err(LogError::TooLarge { bytes, limit: GROUP_BYTES });
            }
        }
        Ok(())
    }

    /// Remembers what was just written: for the index, for truncation, for the next file.
    fn take_in(&mut self, carried: usize, records: &[Record]) {
        let Some(file) = self.files.back_mut() else { return };
        for (record, (offset, bytes)) in records.iter().zip(&self.builder.frames()[carried..]) {
            let location = Location {
                use_number: file.use_number,
                offset: self.tail + *offset as u64,
                bytes: *bytes as u32,
            };
            self.index.insert(record, location);
            self.carry.observe(record);
            file.slots = file.slots.max(record.slot().unwrap_or_default());
        }
    }

    /// Makes the file of marks, if there is none. Its name is durable once the directory is.
    fn make_marks(&mut self) -> Result<(), DiskError> {
        if !self.disk.exists(MARKS)? {
            self.disk.create(MARKS, MARKS_BYTES)?;
        }
        Ok(())
    }

    /// Begins the next file, with room for a group of `group_bytes`: renamed from a free one, or from one
    /// that is being made ready, as far as it is; else made now, no larger than can be waited for. Its name is durable when this returns; its header goes with the first flush.
    fn begin_file(&mut self, group_bytes: u64) -> Result<(), LogError> {
        let use_number = self.next_use;
        let name = name_of(use_number);
        let least_bytes = GROUPS_OFFSET + group_bytes;
        let size_bytes = match self.take_free(least_bytes) {
            Some((free, size_bytes)) => {
                self.disk.rename(&free, &name)?;
                size_bytes
            }
            None => {
                let size_bytes = self.sizes.hasty_bytes.max(least_bytes);
                self.disk.create(&name, size_bytes)?;
                size_bytes
            }
        };
        self.disk.sync_directory(DIRECTORY)?;
        let key = key_of(&self.identity, use_number);
        self.disk.write_at(&name, 0, &self.header(use_number).encode())?;
        self.next_use += 1;
        self.key = key;
        self.tail = GROUPS_OFFSET;
        self.first = true;
        self.files.push_back(LogFile { use_number, name, size_bytes, slots: Slot(0) });
        Ok(())
    }

    /// A free file, or what there is of the next one, if it has room for so much; and its size.
    fn take_free(&mut self, least_bytes: u64) -> Option<(String, u64)> {
        if least_bytes > self.sizes.usual_bytes {
            return None;
        }
        if let Some(free) = self.free.pop() {
            return Some((free, self.sizes.usual_bytes));
        }
        let begun = self.new.take_if(|file| file.written >= least_bytes)?;
        Some((begun.name, begun.written))
    }

    /// Writes `bytes` more of the zeros of a new file; with the last of them it is a free one.
    fn fill_new_file(&mut self, bytes: u64) -> Result<(), DiskError> {
        let mut file = match self.new.take() {
            Some(file) => file,
            None => {
                let name = free_name_of(self.next_use);
                self.next_use += 1;
                self.disk.create(&name, 0)?;
                NewFile { name, written: 0, unflushed: 0 }
            }
        };
        let count = bytes.min(self.sizes.usual_bytes - file.written);
        self.disk.write_zeros(&file.name, file.written, count)?;
        file.written += count;
        file.unflushed += count;
        let ready = file.written >= self.sizes.usual_bytes;
        // Where zeros go through a cache, whoever uses the file as it is waits for no more than these.
        if self.identity.durability.is_flushed()
            && (ready || file.unflushed >= self.sizes.hasty_bytes)
        {
            self.disk.sync(&file.name)?;
            file.unflushed = 0;
        }
        if !ready {
            self.new = Some(file);
            return Ok(());
        }
        self.disk.sync_directory(DIRECTORY)?;
        self.free.push(file.name);
        Ok(())
    }

    fn header(&self, use_number: u64) -> FileHeader {
        FileHeader {
            version: crate::FORMAT_VERSION,
            incarnation: self.identity.incarnation,
            cluster: self.identity.cluster,
            use_number,
            first_group: self.next_group,
            key: key_of(&self.identity, use_number),
        }
    }

    /// Seals the file before the last: its mark says, durably, that the group after its own is
    /// flushed, and so stands in another file.
    fn seal_previous_file(&mut self) -> Result<(), LogError> {
        let Some(previous) = self.files.iter().nth_back(1) else { return Ok(()) };
        let key = key_of(&self.identity, previous.use_number);
        let (place, mark) = encode_mark(&key, previous.use_number, self.next_group);
        self.disk.write_at(&previous.name, MARKS_OFFSET + place, &mark)?;
        if self.identity.durability.is_flushed() {
            self.disk.sync(&previous.name)?;
        }
        // Nothing is written to it any more before its next use.
        self.disk.release(&previous.name);
        Ok(())
    }

    /// Takes a file out of the row: keeps it for its next use, or removes it. The caller syncs the
    /// directory.
    fn free_file(&mut self, use_number: u64, size_bytes: u64) -> Result<(), DiskError> {
        let (name, free) = (name_of(use_number), free_name_of(use_number));
        let size_bytes = whole_pages(size_bytes);
        if !self.keeps(size_bytes) {
            return self.disk.remove(&name);
        }
        self.disk.rename(&name, &free)?;
        self.keep(free, size_bytes);
        Ok(())
    }

    /// Whether a free file of this size is kept: as the next one to be used, or to be made ready.
    fn keeps(&self, size_bytes: u64) -> bool {
        let few = self.free.len() < self.sizes.kept_free;
        match size_bytes.cmp(&self.sizes.usual_bytes) {
            Ordering::Less => few && self.new.is_none() && size_bytes > 0,
            Ordering::Equal => few,
            Ordering::Greater => false,
        }
    }

    /// Keeps a free file, which [`Log::keeps`].
    fn keep(&mut self, name: String, size_bytes: u64) {
        if size_bytes == self.sizes.usual_bytes {
            self.free.push(name);
        } else {
            self.new = Some(NewFile { name, written: size_bytes, unflushed: 0 });
        }
    }

    fn read_record(&mut self, location: Location) -> Result<Record, LogError> {
        let mut frame = vec![0; location.bytes as usize];
        self.disk.read_at(&name_of(location.use_number), location.offset, &mut frame)?;
        let key = key_of(&self.identity, location.use_number);
        decode_frame(&key, Bytes::from(frame)).ok_or_else(|| self.corrupt(location))
    }

    fn corrupt(&self, location: Location) -> LogError {
        LogError::Corrupt { file: name_of(location.use_number), offset: location.offset }
    }
}
