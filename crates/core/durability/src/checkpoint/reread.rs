//! Reading all of the newest checkpoint again, piece by piece, by whoever has the time (rule D7). While
//! checkpoints are stored, a part of what they link to is read with each (`scrub`): that takes as long as
//! they take to come. This finds rot within a time, also when nothing is stored.
//!
//! What is found damaged is not linked to any more: the next checkpoint has it anew. Until then the state of
//! this replica would come from others if it had to start again.

use super::{CheckpointError, CheckpointReader, Checkpoints};
use crate::disk::{Disk, ReadFrom};
use perdura_protocol::{Digest, seeded};
use std::collections::{BTreeMap, BTreeSet};

/// What was read of the newest checkpoint since it was stored.
#[derive(Debug)]
pub(super) struct Reread<D> {
    reader: Option<CheckpointReader<D>>,
    // By number; format version 1 has no digests.
    damaged: BTreeMap<usize, Option<Digest>>,
    // What names the pieces is damaged.
    lost: bool,
}

impl<D> Default for Reread<D> {
    fn default() -> Self {
        Reread { reader: None, damaged: BTreeMap::new(), lost: false }
    }
}

impl<D> Reread<D> {
    /// Whether nothing can be found any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// What is no source of the next checkpoint.
    pub(super) fn damaged_digests(&self) -> BTreeSet<Digest> {
        if seeded!(RotLinked) {
            return BTreeSet::new();
        }
        self.damaged.values().copied().flatten().collect()
    }
}

/// One piece was read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// So many bytes are what they were.
    Sound(u64),
    /// It was found damaged before, and is not read.
    Damaged,
}

impl<D: Disk> Checkpoints<D> {
    /// Begins to read the newest checkpoint from the device, and gives the number of its pieces; 0 when
    /// there is none, or it was found lost before.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] or [`CheckpointError::Disk`], once: what names its pieces is damaged. To
    /// be reported; the next checkpoint is written as a whole. Nothing was changed on the disk.
    pub fn begin_reread(&mut self) -> Result<usize, CheckpointError> {
        self.reread.reader = None;
        let newest = self.superblock().checkpoint();
        let newest = newest.filter(|_| self.lost.is_none() && !self.reread.lost && !self.poisoned);
        let Some(newest) = newest else { return Ok(0) };
        match self.open(newest, ReadFrom::Device) {
            Ok(reader) => Ok(self.reread.reader.insert(reader).piece_count()),
            Err(error) => {
                self.reread.lost = true;
                Err(error)
            }
        }
    }

    /// Reads a piece from the device, by its number, and verifies it.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] or [`CheckpointError::Disk`]: it is damaged, or cannot be read. To be
    /// reported; the next checkpoint has it anew. Nothing was changed on the disk.
    /// [`CheckpointError::Unknown`]: a checkpoint was stored since [`Checkpoints::begin_reread`], or there
    /// is no such piece.
    pub fn reread(&mut self, index: usize) -> Result<Again, CheckpointError> {
        let slot = self.superblock().checkpoint().map_or_else(Default::default, |name| name.slot);
        let Reread { reader: Some(reader), damaged, .. } = &mut self.reread else {
            return Err(CheckpointError::Unknown { slot });
        };
        if damaged.contains_key(&index) {
            return Ok(Again::Damaged);
        }
        let piece = reader.piece_from(ReadFrom::Device, index);
        if matches!(piece, Err(CheckpointError::Corrupt { .. } | CheckpointError::Disk(_))) {
            damaged.insert(index, reader.digest_of(index));
        }
        Ok(Again::Sound(piece?.len() as u64))
    }
}
