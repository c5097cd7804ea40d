//! Which pieces of a state are linked and which are written anew.
//!
//! A piece whose digest and length are those of a piece of the checkpoint before is *clean*, and is
//! linked: the new index names its place in the older file. What nobody links to any more stays in
//! those files as garbage, so clean pieces are written anew as well, where that frees more:
//! - The files of a checkpoint take at most [`MOST_TIMES`] what it would take as one file (but for the zeros
//!   with which a file keeps its size, `checkpoint/writer.rs`). When
//!   they would take more, the pieces of the file that holds the least of the state in proportion
//!   are written anew, and so on. It holds less than half of what it takes, so that this writes no
//!   more than it frees; and what it frees became garbage by pieces that changed. So in the long
//!   run at most two bytes are written for each byte that changed, and never more than the state.
//! - A checkpoint links to at most [`MOST_FILES`] files. When there would be more, those that
//!   hold least of the state are put together, half of them at a time, so that a piece is moved
//!   about as often as the logarithm of their number says.

use super::PieceName;
use super::format::PieceLocation;
use super::reader::Sources;
use perdura_protocol::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// Most files of older checkpoints that one checkpoint links to.
pub(crate) const MOST_FILES: usize = 16;

/// Most that the files of a checkpoint take, in units of what it would take as one file.
pub(crate) const MOST_TIMES: u64 = 2;

/// What a checkpoint would have in an older file.
#[derive(Clone, Copy)]
struct Share {
    live_bytes: u64,
    file_bytes: u64,
}

impl Share {
    /// Whether it is the smaller part of its file.
    fn is_below(&self, other: &Share) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        product(self.live_bytes, other.file_bytes) < product(other.live_bytes, self.file_bytes)
    }
}

/// The older files that a new checkpoint would link to.
struct Files {
    shares: BTreeMap<Slot, Share>,
    // What they and the new file take.
    bytes: u64,
    // Those whose pieces are written anew.
    anew: BTreeSet<Slot>,
}

impl Files {
    fn of(links: &[Option<PieceLocation>], state_bytes: u64, sources: &Sources) -> Files {
        let mut shares: BTreeMap<Slot, Share> = BTreeMap::new();
        for place in links.iter().flatten() {
            let file_bytes = sources.file_bytes.get(&place.file).copied().unwrap_or(0);
            let share = shares.entry(place.file).or_insert(Share { live_bytes: 0, file_bytes });
            share.live_bytes += u64::from(place.bytes);
        }
        let linked: u64 = shares.values().map(|share| share.live_bytes).sum();
        let files: u64 = shares.values().map(|share| share.file_bytes).sum();
        Files { shares, bytes: (state_bytes - linked) + files, anew: BTreeSet::new() }
    }

    fn write_anew(&mut self, slot: Slot) {
        if let Some(share) = self.shares.remove(&slot) {
            self.bytes = (self.bytes - share.file_bytes) + share.live_bytes;
            self.anew.insert(slot);
        }
    }

    /// Those with the least of the state, as many as are too many and half of the rest.
    fn smallest(&self) -> Vec<Slot> {
        let mut by_size: Vec<(u64, Slot)> =
            self.shares.iter().map(|(slot, share)| (share.live_bytes, *slot)).collect();
        by_size.sort_unstable();
        by_size.truncate(self.shares.len() - MOST_FILES / 2);
        by_size.into_iter().map(|(_, slot)| slot).collect()
    }

    fn least_used(&self) -> Option<Slot> {
        let mut shares = self.shares.iter();
        let first = shares.next()?;
        let least =
            shares.fold(first, |least, one| if one.1.is_below(least.1) { one } else { least });
        Some(*least.0)
    }
}

/// For each piece its link, or none if it is to be written. `frame_bytes` is what the new file
/// takes beside its pieces.
pub(super) fn plan(
    pieces: &[PieceName],
    frame_bytes: u64,
    sources: &Sources,
) -> Vec<Option<PieceLocation>> {
    let link = |piece: &PieceName| {
        let place = sources.pieces.get(&piece.digest)?;
        // For an empty piece no file need be kept.
        (place.bytes == piece.bytes && piece.bytes > 0).then_some(*place)
    };
    let mut links: Vec<Option<PieceLocation>> = pieces.iter().map(link).collect();
    let state_bytes = whole_bytes(pieces, frame_bytes);
    let mut files = Files::of(&links, state_bytes, sources);
    if files.shares.len() > MOST_FILES {
        for slot in files.smallest() {
            files.write_anew(slot);
        }
    }
    while files.bytes > MOST_TIMES * state_bytes {
        let Some(slot) = files.least_used() else { break };
        files.write_anew(slot);
    }
    for link in &mut links {
        *link = link.filter(|place| !files.anew.contains(&place.file));
    }
    links
}

/// What a checkpoint of these pieces takes as one file.
pub(super) fn whole_bytes(pieces: &[PieceName], frame_bytes: u64) -> u64 {
    frame_bytes + pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Digest;

    fn piece(number: u64, bytes: u32) -> PieceName {
        PieceName { digest: Digest::of(&number.to_le_bytes()), bytes }
    }

    /// Pieces, each with its file, as an older checkpoint has them.
    fn sources(pieces: &[(PieceName, u64)], file_bytes: &[(u64, u64)]) -> Sources {
        let place = |(number, (piece, file)): (usize, &(PieceName, u64))| {
            let offset = 1000 * number as u64;
            (piece.digest, PieceLocation { file: Slot(*file), offset, bytes: piece.bytes })
        };
        Sources {
            pieces: pieces.iter().enumerate().map(place).collect(),
            file_bytes: file_bytes.iter().map(|(slot, bytes)| (Slot(*slot), *bytes)).collect(),
            ..Sources::default()
        }
    }

    fn files(links: &[Option<PieceLocation>]) -> Vec<Option<u64>> {
        links.iter().map(|link| link.map(|place| place.file.0)).collect()
    }

    #[test]
    fn clean_pieces_are_linked_wherever_they_stand_in_the_state() {
        let sources = sources(
            &[(piece(1, 100), 5), (piece(2, 100), 5), (piece(3, 100), 8)],
            &[(5, 250), (8, 150)],
        );
        let state = [piece(9, 100), piece(2, 100), piece(3, 100), piece(1, 101)];
        assert_eq!(files(&plan(&state, 50, &sources)), [None, Some(5), Some(8), None]);
        let nothing = Sources::default();
        assert_eq!(files(&plan(&state, 50, &nothing)), [None; 4]);
    }

    #[test]
    fn what_would_take_twice_the_state_loses_the_file_that_holds_least_of_it() {
        let state = [piece(1, 100), piece(2, 100), piece(3, 100)];
        let of = |first_bytes, second_bytes| {
            let old = [(state[0], 1), (state[1], 2)];
            plan(&state, 100, &sources(&old, &[(1, first_bytes), (2, second_bytes)]))
        };
        // 200 bytes in the new file; 800 are allowed.
        assert_eq!(files(&of(300, 300)), [Some(1), Some(2), None]);
        assert_eq!(files(&of(290, 311)), [Some(1), None, None]);
        assert_eq!(files(&of(900, 900)), [None, None, None]);
    }

    #[test]
    fn too_many_files_are_put_together_by_the_half_smallest_first() {
        let state: Vec<PieceName> = (0..17).map(|i| piece(i, 100 + i as u32)).collect();
        let of = |count: usize| {
            let old: Vec<_> = (0..count).map(|i| (state[i], i as u64)).collect();
            let bytes: Vec<_> = (0..count).map(|i| (i as u64, 150)).collect();
            files(&plan(&state, 100, &sources(&old, &bytes)))
        };
        assert_eq!(of(16).iter().flatten().count(), 16);
        let linked: Vec<u64> = of(17).into_iter().flatten().collect();
        assert_eq!(linked, (9..17).collect::<Vec<u64>>());
    }
}
