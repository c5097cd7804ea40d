//! Checkpoints: a state after a slot, in one file each, complete or not there (rules D3 and D5).
//!
//! Layout of `checkpoint/<slot, 20 digits>`, little-endian:
//!
//! | what | bytes |
//! |---|---|
//! | header: magic `PDCHECKP` 8, checksum 16 (of bytes 24..128), version 4, cluster 16, slot 8, state digest 32, manifest length 4, piece count 4, zeros | 128 |
//! | manifest: checksum 16, bytes | |
//! | the pieces' bytes, one after the other | |
//! | index: for each piece the offset of its bytes 8, length 4, checksum 16 | 28 each |
//! | footer: magic `PDCHKEND` 8, checksum 16 (of bytes 24..56), index offset 8, index length 8, index checksum 16 | 56 |
//!
//! All checksums are keyed with bytes 24..96 of the header: a piece verifies in its state only.
//!
//! Invariants:
//! - A checkpoint is written under another name, flushed, renamed, its directory flushed, then
//!   named by the superblock; only then what it replaces is removed. A file that the superblock
//!   does not name is not a checkpoint, and is removed when the directory is opened.
//! - What is read is verified before it is handed out.

use crate::FORMAT_VERSION;
use crate::checksum::{FileKey, SUM_BYTES, Sum, array_at, u32_at, u64_at};
use crate::disk::{Disk, DiskError};
use crate::log::scan::read_array;
use crate::page_buffer::PageBuffer;
use crate::superblock::{CHECKPOINTS, CheckpointName, Superblock, SuperblockFile};
use bytes::Bytes;
use perdura_protocol::{ClusterId, Digest, Slot, seeded};

pub(crate) const DIRECTORY: &str = "checkpoint";
const TEMPORARY_NAME: &str = "checkpoint/new";

const HEADER_MAGIC: &[u8; 8] = b"PDCHECKP";
const FOOTER_MAGIC: &[u8; 8] = b"PDCHKEND";
const HEADER_BYTES: usize = 128;
const FOOTER_BYTES: usize = 56;
const INDEX_ENTRY_BYTES: usize = 8 + 4 + SUM_BYTES;

/// A checkpoint is written in chunks of this size. Past the operating system's cache: it is not read
/// soon, and flushed as a whole it would keep the log's flushes waiting.
const CHUNK_BYTES: usize = 1024 * 1024;

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

/// The first bytes of a checkpoint's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) slot: Slot,
    pub(crate) digest: Digest,
    pub(crate) manifest_bytes: u32,
    pub(crate) pieces: u32,
}

impl Header {
    fn encode(&self) -> ([u8; HEADER_BYTES], FileKey) {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(HEADER_MAGIC);
        out[24..28].copy_from_slice(&self.version.to_le_bytes());
        out[28..44].copy_from_slice(&self.cluster.0);
        out[44..52].copy_from_slice(&self.slot.0.to_le_bytes());
        out[52..84].copy_from_slice(&self.digest.0);
        out[84..88].copy_from_slice(&self.manifest_bytes.to_le_bytes());
        out[88..92].copy_from_slice(&self.pieces.to_le_bytes());
        let key = FileKey::checkpoint(&out[24..96]);
        let sum = key.sum(&out[24..]);
        out[8..24].copy_from_slice(&sum);
        (out, key)
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<(Header, FileKey)> {
        let key = FileKey::checkpoint(&bytes[24..96]);
        if &bytes[..8] != HEADER_MAGIC || array_at::<SUM_BYTES>(bytes, 8) != key.sum(&bytes[24..]) {
            return None;
        }
        let header = Header {
            version: u32_at(bytes, 24),
            cluster: ClusterId(array_at(bytes, 28)),
            slot: Slot(u64_at(bytes, 44)),
            digest: Digest(array_at(bytes, 52)),
            manifest_bytes: u32_at(bytes, 84),
            pieces: u32_at(bytes, 88),
        };
        Some((header, key))
    }
}

/// Where a piece stands.
#[derive(Clone, Copy, Debug)]
struct PiecePlace {
    offset: u64,
    bytes: u32,
    sum: Sum,
}

impl PiecePlace {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.bytes))
    }
}

/// The place that an entry of the index names.
fn place_in(entry: &[u8]) -> PiecePlace {
    PiecePlace { offset: u64_at(entry, 0), bytes: u32_at(entry, 8), sum: array_at(entry, 12) }
}

/// Writes a file from its start to its end in bounded chunks.
struct ChunkWriter<'a, D> {
    disk: &'a mut D,
    name: &'a str,
    written: u64,
    buffer: PageBuffer,
}

impl<D: Disk> ChunkWriter<'_, D> {
    fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = CHUNK_BYTES - self.buffer.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.buffer.extend(now);
            rest = later;
            if self.buffer.len() == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let bytes = self.buffer.len() as u64;
        if bytes > 0 {
            self.disk.write_through(self.name, self.written, self.buffer.aligned())?;
            self.written += bytes;
            self.buffer.clear();
        }
        Ok(())
    }
}

fn write_file(
    disk: &mut impl Disk,
    header: &Header,
    manifest: &[u8],
    piece: &mut dyn FnMut(usize) -> Bytes,
) -> Result<(), CheckpointError> {
    disk.create(TEMPORARY_NAME, 0)?;
    let buffer = PageBuffer::new();
    let mut out = ChunkWriter { disk, name: TEMPORARY_NAME, written: 0, buffer };
    let (bytes, key) = header.encode();
    out.push(&bytes)?;
    out.push(&key.sum(manifest))?;
    out.push(manifest)?;
    let mut index = Vec::new();
    for number in 0..header.pieces {
        let content = piece(number as usize);
        let length = u32::try_from(content.len()).map_err(|_| CheckpointError::TooLarge)?;
        let sum = key.sum(&content);
        index.extend_from_slice(&out.offset().to_le_bytes());
        index.extend_from_slice(&length.to_le_bytes());
        index.extend_from_slice(&sum);
        out.push(&content)?;
    }
    let mut footer = [0; FOOTER_BYTES];
    footer[..8].copy_from_slice(FOOTER_MAGIC);
    footer[24..32].copy_from_slice(&out.offset().to_le_bytes());
    footer[32..40].copy_from_slice(&(index.len() as u64).to_le_bytes());
    footer[40..].copy_from_slice(&key.sum(&index));
    let sum = key.sum(&footer[24..]);
    footer[8..24].copy_from_slice(&sum);
    out.push(&index)?;
    out.push(&footer)?;
    out.flush()?;
    if seeded!(CheckpointNotFlushed) {
        return Ok(());
    }
    Ok(disk.sync(TEMPORARY_NAME)?)
}

/// One stored checkpoint, open for reading. Its manifest is verified; each piece is verified when
/// it is read. It stays readable on a real disk while a newer checkpoint replaces it.
#[derive(Debug)]
pub struct CheckpointReader<D> {
    disk: D,
    file: String,
    key: FileKeyHolder,
    header: Header,
    manifest: Bytes,
    places: Vec<PiecePlace>,
}

/// Keeps the key out of debug output.
struct FileKeyHolder(FileKey);

impl std::fmt::Debug for FileKeyHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl<D: Disk> CheckpointReader<D> {
    /// Opens `file`, whatever its name.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] when header, manifest or index do not verify.
    pub(crate) fn open(mut disk: D, file: &str) -> Result<CheckpointReader<D>, CheckpointError> {
        let corrupt = |offset| CheckpointError::Corrupt { file: file.to_owned(), offset };
        let header = read_array(&mut disk, file, 0)?.ok_or(corrupt(0))?;
        let (header, key) = Header::decode(&header).ok_or(corrupt(0))?;
        let size = disk.len(file)?;
        if header.version > FORMAT_VERSION || size < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(corrupt(0));
        }
        let footer_offset = size - FOOTER_BYTES as u64;
        let footer: [u8; FOOTER_BYTES] =
            read_array(&mut disk, file, footer_offset)?.ok_or(corrupt(footer_offset))?;
        let (index_offset, index_bytes) = (u64_at(&footer, 24), u64_at(&footer, 32));
        let valid = &footer[..8] == FOOTER_MAGIC
            && array_at::<SUM_BYTES>(&footer, 8) == key.sum(&footer[24..])
            && index_offset.checked_add(index_bytes) == Some(footer_offset)
            && index_bytes == u64::from(header.pieces) * INDEX_ENTRY_BYTES as u64;
        if !valid {
            return Err(corrupt(footer_offset));
        }
        let mut index = vec![0; index_bytes as usize];
        disk.read_at(file, index_offset, &mut index)?;
        if key.sum(&index) != footer[40..] {
            return Err(corrupt(index_offset));
        }
        let manifest_offset = (HEADER_BYTES + SUM_BYTES) as u64;
        if manifest_offset + u64::from(header.manifest_bytes) > index_offset {
            return Err(corrupt(0));
        }
        let sum: Sum = read_array(&mut disk, file, HEADER_BYTES as u64)?.ok_or(corrupt(0))?;
        let mut manifest = vec![0; header.manifest_bytes as usize];
        disk.read_at(file, manifest_offset, &mut manifest)?;
        if key.sum(&manifest) != sum {
            return Err(corrupt(HEADER_BYTES as u64));
        }
        let places: Vec<PiecePlace> = index.chunks_exact(INDEX_ENTRY_BYTES).map(place_in).collect();
        // Before memory is reserved for one of them.
        if places.iter().any(|place| place.end().is_none_or(|end| end > index_offset)) {
            return Err(corrupt(index_offset));
        }
        Ok(CheckpointReader {
            places,
            disk,
            file: file.to_owned(),
            key: FileKeyHolder(key),
            header,
            manifest: Bytes::from(manifest),
        })
    }

    /// The state is that after this slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.header.slot
    }

    /// Digest of the state, as it was given when it was stored.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.header.digest
    }

    /// The cluster whose state it is.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.header.cluster
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Bytes {
        &self.manifest
    }

    /// Number of pieces.
    #[must_use]
    pub fn piece_count(&self) -> usize {
        self.places.len()
    }

    /// Offset in the file and length, bytes, of a piece.
    #[must_use]
    pub fn place(&self, index: usize) -> Option<(u64, u32)> {
        self.places.get(index).map(|place| (place.offset, place.bytes))
    }

    /// Reads and verifies one piece.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] when it does not verify, [`CheckpointError::Unknown`].
    pub fn piece(&mut self, index: usize) -> Result<Bytes, CheckpointError> {
        let unknown = CheckpointError::Unknown { slot: self.header.slot };
        let place = *self.places.get(index).ok_or(unknown)?;
        let mut content = vec![0; place.bytes as usize];
        self.disk.read_at(&self.file, place.offset, &mut content)?;
        if self.key.0.sum(&content) != place.sum {
            let file = self.file.clone();
            return Err(CheckpointError::Corrupt { file, offset: place.offset });
        }
        Ok(Bytes::from(content))
    }

    /// All pieces in order, one in memory at a time.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Bytes, CheckpointError>> {
        (0..self.piece_count()).map(|index| self.piece(index))
    }

    /// Verifies every piece.
    ///
    /// # Errors
    /// As [`CheckpointReader::piece`].
    pub fn verify(&mut self) -> Result<(), CheckpointError> {
        self.pieces().try_for_each(|piece| piece.map(drop))
    }
}

/// Opens the checkpoint that a superblock names and verifies all of it.
pub(crate) fn open_verified<D: Disk>(
    disk: D,
    cluster: ClusterId,
    name: CheckpointName,
) -> Result<CheckpointReader<D>, CheckpointError> {
    let mut reader = open_named(disk, cluster, name)?;
    reader.verify()?;
    Ok(reader)
}

/// Opens the checkpoint that a superblock names.
fn open_named<D: Disk>(
    disk: D,
    cluster: ClusterId,
    name: CheckpointName,
) -> Result<CheckpointReader<D>, CheckpointError> {
    let file = name_of(name.slot);
    let reader = CheckpointReader::open(disk, &file)?;
    let named = reader.slot() == name.slot && reader.digest() == name.digest;
    if !named || reader.cluster() != cluster {
        return Err(CheckpointError::Corrupt { file, offset: 0 });
    }
    Ok(reader)
}

/// The stored checkpoints of one replica, and its superblock. For one thread.
#[derive(Debug)]
pub struct Checkpoints<D> {
    disk: D,
    superblock: SuperblockFile,
    retained: usize,
    // Named by the superblock, and found corrupt when it was opened.
    lost: Option<CheckpointName>,
    poisoned: bool,
}

impl<D: Disk> Checkpoints<D> {
    pub(crate) fn new(
        disk: D,
        superblock: SuperblockFile,
        retained: usize,
        lost: Option<CheckpointName>,
    ) -> Checkpoints<D> {
        let retained = retained.min(CHECKPOINTS - 2);
        Checkpoints { disk, superblock, retained, lost, poisoned: false }
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

    /// Stores the state after `slot`: `manifest` and `pieces` pieces, asked for one at a time in
    /// order, so that one is in memory at a time. When this returns it is durable and is *the*
    /// state of this directory; older ones are removed but for the newest ones, as many as are
    /// retained, and the one at `keep`. Also how a state that was received and verified replaces a
    /// stale or lost one.
    ///
    /// # Errors
    /// [`CheckpointError::NotNewer`] (a state that was lost may be stored again at its slot),
    /// [`CheckpointError::TooLarge`], [`CheckpointError::Disk`] and from then on
    /// [`CheckpointError::Poisoned`]: the replica must stop. The state is then the new one or the
    /// one before.
    pub fn store(
        &mut self,
        slot: Slot,
        digest: Digest,
        manifest: &[u8],
        pieces: usize,
        piece: &mut dyn FnMut(usize) -> Bytes,
        keep: Slot,
    ) -> Result<(), CheckpointError> {
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
            digest,
            manifest_bytes: size(manifest.len())?,
            pieces: size(pieces)?,
        };
        self.guarded(|checkpoints| {
            write_file(&mut checkpoints.disk, &header, manifest, piece)?;
            checkpoints.put_in_place(CheckpointName { slot, digest }, keep)
        })
    }

    /// Rename, directory, superblock, and only then removal (rule D3).
    fn put_in_place(&mut self, name: CheckpointName, keep: Slot) -> Result<(), CheckpointError> {
        self.disk.rename(TEMPORARY_NAME, &name_of(name.slot))?;
        if !seeded!(RenameNotSynced) {
            self.disk.sync_directory(DIRECTORY)?;
        }
        if seeded!(RemovedTooEarly) {
            let mut next = self.superblock.current().clone();
            next.checkpoints = vec![name];
            remove_unnamed(&mut self.disk, &next)?;
        }
        let (retained, lost) = (self.retained, self.lost);
        self.superblock.update(&mut self.disk, |superblock| {
            superblock.checkpoints.retain(|old| Some(*old) != lost && old.slot != name.slot);
            let mut newer = 0;
            superblock.checkpoints.retain(|old| {
                newer += 1;
                newer <= retained || old.slot == keep
            });
            superblock.checkpoints.insert(0, name);
        })?;
        self.lost = None;
        Ok(remove_unnamed(&mut self.disk, self.superblock.current())?)
    }

    /// Opens the stored checkpoint at `slot`, for instance to send it to a peer.
    ///
    /// # Errors
    /// [`CheckpointError::Unknown`] when it is not (or no longer) there,
    /// [`CheckpointError::Corrupt`].
    pub fn load(&self, slot: Slot) -> Result<CheckpointReader<D>, CheckpointError> {
        let name = self.list().iter().find(|name| name.slot == slot);
        let name = name.ok_or(CheckpointError::Unknown { slot })?;
        open_named(self.disk.handle(), self.superblock().identity.cluster, *name)
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

    fn guarded(
        &mut self,
        operation: impl FnOnce(&mut Checkpoints<D>) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
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

/// Removes the files that the superblock does not name: half-written ones, and old ones whose
/// removal a crash cut short.
pub(crate) fn remove_unnamed(
    disk: &mut impl Disk,
    superblock: &Superblock,
) -> Result<(), DiskError> {
    let mut removed = false;
    for name in disk.list(DIRECTORY)? {
        let name = format!("{DIRECTORY}/{name}");
        if superblock.checkpoints.iter().all(|kept| name_of(kept.slot) != name) {
            disk.remove(&name)?;
            removed = true;
        }
    }
    if removed { disk.sync_directory(DIRECTORY) } else { Ok(()) }
}
