//! Reading linked pieces again. A piece that never changes is never written again either, and where
//! it rots nobody would notice before the next start, when the state is no longer in memory.
//!
//! With each checkpoint that is stored a *slice* of what it links to is read and verified. A *pass* goes
//! over all files that are linked to when it begins, from the oldest on, in slices of the [`SLICES`]th
//! part of their pieces. What is linked to in those files only becomes less, so a pass ends with
//! the checkpoint number [`SLICES`] at the latest, and a piece is read again within twice as many.
//! What is damaged, or cannot be read, is written anew with the checkpoint that is being stored.

use super::format::PieceLocation;
use super::reader::Sources;
use super::writer::CHUNK_BYTES;
use super::{CheckpointError, PieceName, name_of};
use crate::disk::{Disk, DiskError};
use perdura_protocol::{Digest, Slot};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// In so many slices a pass reads everything.
pub(super) const SLICES: u64 = 32;

/// What was found damaged in the files that a new checkpoint could have linked to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Damage {
    pub(super) count: u64,
    pub(super) first: Option<String>,
}

impl Damage {
    /// Takes one more in.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(what);
    }
}

/// How far the pass is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrub {
    // The next slice begins at or after this file and offset.
    next: (Slot, u64),
    // Newest file of this pass.
    through: Slot,
    slice_bytes: u64,
}

impl Scrub {
    /// The pieces of the next slice, among those that a checkpoint would link to.
    fn slice(
        &mut self,
        links: &BTreeMap<(Slot, u64), (PieceLocation, Digest)>,
    ) -> Vec<(PieceLocation, Digest)> {
        let mut left = links.range(self.next..).take_while(|((file, _), _)| *file <= self.through);
        if left.next().is_none() {
            let bytes: u64 = links.values().map(|(place, _)| u64::from(place.bytes)).sum();
            self.slice_bytes = bytes.div_ceil(SLICES);
            self.through = links.keys().next_back().map_or(Slot(0), |(file, _)| *file);
            self.next = (Slot(0), 0);
        }
        let (mut slice, mut bytes) = (Vec::new(), 0);
        for (at, piece) in links.range(self.next..) {
            if at.0 > self.through || bytes >= self.slice_bytes {
                break;
            }
            bytes += u64::from(piece.0.bytes);
            self.next = (at.0, at.1 + 1);
            slice.push(*piece);
        }
        slice
    }

    /// Reads a slice of `links`. What is damaged in it is no source any more. Gives the bytes read.
    pub(super) fn verify(
        &mut self,
        disk: &mut impl Disk,
        pieces: &[PieceName],
        links: &[Option<PieceLocation>],
        sources: &mut Sources,
        pace: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, CheckpointError> {
        let linked = pieces.iter().zip(links).filter_map(|(piece, link)| {
            let place = (*link)?;
            Some(((place.file, place.offset), (place, piece.digest)))
        });
        let mut bytes = 0;
        for (place, digest) in self.slice(&linked.collect()) {
            let mut content = vec![0; place.bytes as usize];
            let read = read(disk, place, &mut content, pace)?;
            bytes += u64::from(place.bytes);
            let (file, offset) = (name_of(place.file), place.offset);
            let damage = match read {
                Ok(()) if Digest::of(&content) == digest => continue,
                Ok(()) => CheckpointError::Corrupt { file, offset }.to_string(),
                Err(error) => format!("{error} at offset {offset}"),
            };
            sources.pieces.remove(&digest);
            sources.damage.note(|| damage);
        }
        Ok(bytes)
    }
}

/// Reads a piece in chunks, paced. What the disk says is for the caller to judge: it is asked, and
/// nothing is changed.
fn read(
    disk: &mut impl Disk,
    place: PieceLocation,
    content: &mut [u8],
    pace: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Result<(), DiskError>, CheckpointError> {
    let mut offset = place.offset;
    for chunk in content.chunks_mut(CHUNK_BYTES) {
        if let Err(error) = disk.read_through(&name_of(place.file), offset, chunk) {
            return Ok(Err(error));
        }
        offset += chunk.len() as u64;
        if pace(chunk.len() as u64).is_break() {
            return Err(CheckpointError::Stopped);
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Links = BTreeMap<(Slot, u64), (PieceLocation, Digest)>;

    fn link(links: &mut Links, file: u64, offset: u64, bytes: u32) {
        let place = PieceLocation { file: Slot(file), offset, bytes };
        links.insert((place.file, offset), (place, Digest::of(&offset.to_le_bytes())));
    }

    /// A hundred pieces stay; with every checkpoint more than a slice of others comes and goes.
    #[test]
    fn every_piece_is_read_within_two_passes_whatever_else_changes() {
        let mut old = Links::new();
        for number in 0..100 {
            link(&mut old, 1 + number / 10, 1000 * number, 50 + 13 * (number as u32 % 7));
        }
        let mut scrub = Scrub::default();
        let mut last = BTreeMap::new();
        for store in 0..10 * SLICES {
            let mut links = old.clone();
            for number in 0..50 {
                link(&mut links, 20 + store, number, 500);
            }
            let bytes: u64 = links.values().map(|(place, _)| u64::from(place.bytes)).sum();
            let slice = scrub.slice(&links);
            let read: u64 = slice.iter().map(|(place, _)| u64::from(place.bytes)).sum();
            assert!(read > 0 && read <= bytes.div_ceil(SLICES) + 500);
            last.extend(slice.iter().map(|(place, _)| ((place.file, place.offset), store)));
            for at in old.keys() {
                let since = store - last.get(at).copied().unwrap_or(0);
                assert!(since <= 2 * SLICES, "{at:?} was not read for {since} checkpoints");
            }
        }
        assert!(old.keys().all(|at| last.contains_key(at)));
    }

    #[test]
    fn nothing_is_read_where_nothing_is_linked() {
        let mut scrub = Scrub::default();
        assert!(scrub.slice(&Links::new()).is_empty());
        let mut links = Links::new();
        link(&mut links, 5, 0, 10);
        assert_eq!(scrub.slice(&links).len(), 1);
        assert!(scrub.slice(&Links::new()).is_empty());
        assert_eq!(scrub.slice(&links).len(), 1);
    }
}
