//! Reading one checkpoint, and what it links to.

use super::format::{
    Check, Entry, FOOTER_BYTES, Footer, HEADER_BYTES, Header, PieceLocation, entry_bytes,
};
use super::scrub::Damage;
use super::{CheckpointError, name_of};
use crate::checksum::{FileKey, SUM_BYTES, Sum};
use crate::disk::{Disk, DiskError, ReadFrom};
use crate::superblock::CheckpointName;
use bytes::Bytes;
use perdura_protocol::{ClusterId, Digest, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;

/// One stored checkpoint, open for reading. Its manifest is verified; each piece is verified when
/// it is read. Until a newer checkpoint has replaced it and [`remove_old`] was called.
///
/// [`remove_old`]: super::Checkpoints::remove_old
#[derive(Debug)]
pub struct CheckpointReader<D> {
    disk: D,
    file: String,
    key: FileKeyHolder,
    header: Header,
    manifest: Bytes,
    entries: Vec<Entry>,
    // Sizes of the files of older checkpoints that pieces are in; those that are there.
    linked_bytes: BTreeMap<Slot, u64>,
    unused: Range<u64>,
}

/// Keeps the key out of debug output.
struct FileKeyHolder(FileKey);

impl std::fmt::Debug for FileKeyHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

/// Name of the checkpoint file of `slot` beside `file`.
fn beside(file: &str, slot: Slot) -> String {
    match file.rsplit_once('/') {
        Some((directory, _)) => format!("{directory}/{:020}", slot.0),
        None => format!("{:020}", slot.0),
    }
}

/// Size of a file; `None` when there is no such file.
fn size_of(disk: &mut impl Disk, file: &str) -> Result<Option<u64>, DiskError> {
    match disk.len(file) {
        Err(error) if error.source.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

impl<D: Disk> CheckpointReader<D> {
    /// Opens `file`, whatever its name. What it links to is looked for beside it.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] when header, manifest or index do not verify.
    pub(crate) fn open(
        mut disk: D,
        file: &str,
        from: ReadFrom,
    ) -> Result<CheckpointReader<D>, CheckpointError> {
        let corrupt = |offset| CheckpointError::Corrupt { file: file.to_owned(), offset };
        let header = from.read_array(&mut disk, file, 0)?.ok_or(corrupt(0))?;
        let (header, key) = Header::decode(&header).ok_or(corrupt(0))?;
        let size = disk.len(file)?;
        if size < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(corrupt(0));
        }
        let footer_offset = size - FOOTER_BYTES as u64;
        let footer =
            from.read_array(&mut disk, file, footer_offset)?.ok_or(corrupt(footer_offset))?;
        let entry_bytes = entry_bytes(header.version);
        let Some(Footer { index_offset, index_bytes, index_sum }) = Footer::decode(&footer, &key)
        else {
            return Err(corrupt(footer_offset));
        };
        let fits = index_offset.checked_add(index_bytes) == Some(footer_offset)
            && index_bytes == u64::from(header.pieces) * entry_bytes as u64;
        if !fits {
            return Err(corrupt(footer_offset));
        }
        let mut index = vec![0; index_bytes as usize];
        from.read(&mut disk, file, index_offset, &mut index)?;
        if key.sum(&index) != index_sum {
            return Err(corrupt(index_offset));
        }
        let manifest_offset = (HEADER_BYTES + SUM_BYTES) as u64;
        if manifest_offset + u64::from(header.manifest_bytes) > index_offset {
            return Err(corrupt(0));
        }
        let sum: Sum = from.read_array(&mut disk, file, HEADER_BYTES as u64)?.ok_or(corrupt(0))?;
        let mut manifest = vec![0; header.manifest_bytes as usize];
        from.read(&mut disk, file, manifest_offset, &mut manifest)?;
        if key.sum(&manifest) != sum {
            return Err(corrupt(HEADER_BYTES as u64));
        }
        let entries: Vec<Entry> = index
            .chunks_exact(entry_bytes)
            .map(|entry| Entry::decode(header.version, header.slot, entry))
            .collect();
        let mut used_bytes = manifest_offset + u64::from(header.manifest_bytes);
        let mut linked_bytes = BTreeMap::new();
        for place in entries.iter().map(|entry| entry.place) {
            let own = place.file == header.slot;
            if place.file > header.slot || (own && !place.ends_by(index_offset)) {
                return Err(corrupt(index_offset));
            }
            if own {
                used_bytes = used_bytes.max(place.offset + u64::from(place.bytes));
            }
            if !own && !linked_bytes.contains_key(&place.file) {
                linked_bytes.insert(place.file, size_of(&mut disk, &beside(file, place.file))?);
            }
        }
        let linked_bytes =
            linked_bytes.into_iter().filter_map(|(slot, size)| Some((slot, size?))).collect();
        Ok(CheckpointReader {
            disk,
            file: file.to_owned(),
            key: FileKeyHolder(key),
            header,
            manifest: Bytes::from(manifest),
            entries,
            linked_bytes,
            unused: used_bytes..index_offset,
        })
    }

    /// Format version of its file.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.header.version
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
        self.entries.len()
    }

    /// The part of its file between pieces and index, which means nothing and is not read.
    #[must_use]
    pub fn unused(&self) -> Range<u64> {
        self.unused.clone()
    }

    /// Where a piece stands.
    #[must_use]
    pub fn place(&self, index: usize) -> Option<PieceLocation> {
        self.entries.get(index).map(|entry| entry.place)
    }

    /// Whether the file is there that `place` is in.
    #[must_use]
    pub fn has_file(&self, place: PieceLocation) -> bool {
        place.file == self.header.slot || self.linked_bytes.contains_key(&place.file)
    }

    /// The pieces by digest, with the sizes of the files that they are in, for the next checkpoint
    /// to link to; none of those that are `damaged`. Nothing of a file of format version 1, which has no
    /// digests.
    pub(super) fn sources(&mut self, damaged: &BTreeSet<Digest>) -> Result<Sources, DiskError> {
        let mut file_bytes = self.linked_bytes.clone();
        file_bytes.insert(self.header.slot, self.disk.len(&self.file)?);
        let (mut pieces, mut damage) = (BTreeMap::new(), Damage::default());
        for Entry { place, check } in &self.entries {
            let there = file_bytes.get(&place.file).is_some_and(|size| place.ends_by(*size));
            match check {
                Check::Digest(digest) if damaged.contains(digest) => {}
                Check::Digest(digest) if there => {
                    pieces.insert(*digest, *place);
                }
                Check::Digest(_) => damage.note(|| {
                    let (file, offset) = (name_of(place.file), place.offset);
                    CheckpointError::Corrupt { file, offset }.to_string()
                }),
                Check::Sum(_) => {}
            }
        }
        Ok(Sources { pieces, file_bytes, damage })
    }

    /// Reads and verifies one piece.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] when it does not verify, or the file that it is in is gone;
    /// [`CheckpointError::Unknown`].
    pub fn piece(&mut self, index: usize) -> Result<Bytes, CheckpointError> {
        self.piece_from(ReadFrom::Cache, index)
    }

    /// Digest of a piece; none where the file names it by a sum only (format version 1).
    pub(super) fn digest_of(&self, index: usize) -> Option<Digest> {
        match self.entries.get(index)?.check {
            Check::Digest(digest) => Some(digest),
            Check::Sum(_) => None,
        }
    }

    pub(super) fn piece_from(
        &mut self,
        from: ReadFrom,
        index: usize,
    ) -> Result<Bytes, CheckpointError> {
        let unknown = CheckpointError::Unknown { slot: self.header.slot };
        let Entry { place, check } = *self.entries.get(index).ok_or(unknown)?;
        let own = place.file == self.header.slot;
        let file = if own { self.file.clone() } else { beside(&self.file, place.file) };
        // Before memory is reserved for it; a place in its own file was held against its size.
        let size = self.linked_bytes.get(&place.file);
        if !own && !size.is_some_and(|size| place.ends_by(*size)) {
            return Err(CheckpointError::Corrupt { file, offset: place.offset });
        }
        let mut content = vec![0; place.bytes as usize];
        from.read(&mut self.disk, &file, place.offset, &mut content)?;
        let verifies = match check {
            Check::Sum(sum) => self.key.0.sum(&content) == sum,
            Check::Digest(digest) => Digest::of(&content) == digest,
        };
        if !verifies {
            return Err(CheckpointError::Corrupt { file, offset: place.offset });
        }
        Ok(Bytes::from(content))
    }

    /// All pieces in order, one in memory at a time.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Bytes, CheckpointError>> {
        (0..self.piece_count()).map(|index| self.piece(index))
    }

    /// Verifies every piece, those in files of older checkpoints too.
    ///
    /// # Errors
    /// As [`CheckpointReader::piece`].
    pub fn verify(&mut self) -> Result<(), CheckpointError> {
        self.pieces().try_for_each(|piece| piece.map(drop))
    }
}

/// Pieces that are on disk, for a new checkpoint to link to.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) pieces: BTreeMap<Digest, PieceLocation>,
    pub(super) file_bytes: BTreeMap<Slot, u64>,
    // What should be on disk and is not.
    pub(super) damage: Damage,
}

/// Opens the checkpoint that a superblock names and verifies all of it.
pub(crate) fn open_verified<D: Disk>(
    disk: D,
    cluster: ClusterId,
    name: CheckpointName,
) -> Result<CheckpointReader<D>, CheckpointError> {
    let mut reader = open_named(disk, cluster, name, ReadFrom::Cache)?;
    reader.verify()?;
    Ok(reader)
}

/// Opens the checkpoint that a superblock names.
pub(super) fn open_named<D: Disk>(
    disk: D,
    cluster: ClusterId,
    name: CheckpointName,
    from: ReadFrom,
) -> Result<CheckpointReader<D>, CheckpointError> {
    let file = name_of(name.slot);
    let reader = CheckpointReader::open(disk, &file, from)?;
    let named = reader.slot() == name.slot && reader.digest() == name.digest;
    if !named || reader.cluster() != cluster {
        return Err(CheckpointError::Corrupt { file, offset: 0 });
    }
    Ok(reader)
}
