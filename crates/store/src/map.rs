//! The store's state: an ordered map in segments, shared with its snapshots and copied on write.
//! Other services may keep theirs in one, too.
//!
//! Layout: an ordered map from the first key of a range to its segment. The first range starts at
//! the empty key, and each ends where the next one starts, so that every key has its segment.
//!
//! Invariants:
//! - no segment above [`limits::SEGMENT_SPLIT_BYTES`] has more than one entry;
//! - no segment is empty, unless it is the only one;
//! - where the segments begin and end follows from the sequence of changes alone: it is the same
//!   on every replica, whenever snapshots were taken, and it survives a restore as it is.

use crate::limits;
use crate::segment::{Segment, Value, entry_bytes};
use bytes::Bytes;
use imbl::OrdMap;
use perdura_execution::{Entry, RestoreError, Snapshot};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

/// The first key of a segment's range.
type Key = Arc<[u8]>;

/// The change would leave more bytes in the state than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// An ordered map of byte strings. Keys have at most [`limits::KEY_BYTES`], and values at most
/// [`limits::VALUE_BYTES`]: a longer one could not be restored. Cloning shares.
#[derive(Clone, Debug)]
pub struct SegmentMap {
    segments: OrdMap<Key, Arc<Segment>>,
    // Sum of the segments' bytes, and of their entries.
    bytes: u64,
    entries: u64,
}

impl Default for SegmentMap {
    fn default() -> SegmentMap {
        SegmentMap::new()
    }
}

impl SegmentMap {
    /// An empty map, in one segment.
    #[must_use]
    pub fn new() -> SegmentMap {
        let segments = OrdMap::unit(Key::from([]), Arc::default());
        SegmentMap { segments, bytes: 0, entries: 0 }
    }

    /// What the entries count for: their keys, their values, and
    /// [`limits::ENTRY_OVERHEAD_BYTES`] for each.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    fn segment(&self, key: &[u8]) -> (&Key, &Arc<Segment>) {
        self.segments.get_prev(key).expect("the first range starts at the empty key")
    }

    fn segment_mut(&mut self, key: &[u8]) -> (&Key, &mut Arc<Segment>) {
        self.segments.get_prev_mut(key).expect("the first range starts at the empty key")
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        let (_, segment) = self.segment(key);
        segment.find(key).ok().map(|index| segment.value(index))
    }

    /// Writes an entry, unless it grows the state beyond `limit` bytes.
    ///
    /// # Errors
    /// When it would; nothing has changed then.
    pub fn put(&mut self, key: &[u8], value: &[u8], limit: u64) -> Result<(), Full> {
        let total = self.bytes;
        let (bound, segment) = self.segment_mut(key);
        let place = segment.find(key);
        let old = place.map_or(0, |index| entry_bytes(key, segment.value(index)) as u64);
        let new = entry_bytes(key, value) as u64;
        let bytes = total - old + new;
        if bytes > limit && new > old {
            return Err(Full);
        }
        let segment = Arc::make_mut(segment);
        segment.put(place, key, value);
        if segment.is_oversized() || (new < old && segment.is_undersized()) {
            let bound = Arc::clone(bound);
            self.reshape(bound);
        }
        self.bytes = bytes;
        self.entries += u64::from(place.is_err());
        Ok(())
    }

    /// Removes an entry; whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let (bound, segment) = self.segment_mut(key);
        let Ok(index) = segment.find(key) else { return false };
        let segment = Arc::make_mut(segment);
        let bytes = segment.remove(index);
        if segment.is_undersized() {
            let bound = Arc::clone(bound);
            self.reshape(bound);
        }
        self.bytes -= bytes as u64;
        self.entries -= 1;
        true
    }

    /// The entries from `start` up to `end` (without it), ascending.
    pub fn range<'a>(
        &'a self,
        start: &'a [u8],
        end: Option<&'a [u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> {
        let end = end.map(|end| end.max(start));
        let (first, _) = self.segment(start);
        let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.segments
            .range::<_, [u8]>((Bound::Included(&first[..]), upper))
            .flat_map(move |(_, segment)| segment.range(start, end))
    }

    /// Flips one bit of a value, which `at` chooses, as failing memory does: the digest of its segment,
    /// if it is known, stays that of what was there. For tests of what finds it. False if nothing was
    /// flipped.
    pub fn flip_bit(&mut self, at: u64) -> bool {
        let number = (at >> 32) as usize % self.segments.len();
        let bound = self.segments.keys().nth(number).map(Arc::clone);
        let segment = bound.and_then(|bound| self.segments.get_mut(&bound));
        segment.is_some_and(|segment| Arc::make_mut(segment).flip_bit(at))
    }

    /// Brings the segment that starts at `bound` back into shape after a change.
    fn reshape(&mut self, bound: Key) {
        let Some(segment) = self.segments.get_mut(&bound) else { return };
        if segment.is_oversized() {
            let (right_bound, right) = Arc::make_mut(segment).split();
            self.segments.insert(Arc::clone(&right_bound), Arc::new(right));
            self.reshape_large(bound);
            self.reshape_large(right_bound);
        } else if segment.is_undersized() {
            self.merge(bound);
        }
    }

    /// A half may hold one value so large that it has to be cut again; it is never merged here.
    fn reshape_large(&mut self, bound: Key) {
        if self.segments.get(&bound).is_some_and(|segment| segment.is_oversized()) {
            self.reshape(bound);
        }
    }

    /// Merges an undersized segment with its right neighbour, or else with its left one, until it
    /// is large enough or no neighbour fits.
    fn merge(&mut self, mut bound: Key) {
        while let Some(segment) = self.segments.get(&bound)
            && segment.is_undersized()
        {
            let fits = |neighbour: &Segment| {
                segment.len() == 0
                    || segment.bytes() + neighbour.bytes() <= limits::SEGMENT_MERGED_BYTES
            };
            let after = (Bound::Excluded(&bound[..]), Bound::Unbounded);
            let before = (Bound::Unbounded, Bound::Excluded(&bound[..]));
            let right = self.segments.range::<_, [u8]>(after).next();
            let left = self.segments.range::<_, [u8]>(before).next_back();
            let (left, right) = match (left, right) {
                (_, Some((right, neighbour))) if fits(neighbour) => (bound, Arc::clone(right)),
                (Some((left, neighbour)), _) if fits(neighbour) => (Arc::clone(left), bound),
                _ => return,
            };
            if let Some(absorbed) = self.segments.remove(&right)
                && let Some(segment) = self.segments.get_mut(&left)
            {
                Arc::make_mut(segment).absorb(&absorbed);
            }
            bound = left;
        }
    }

    /// The map as it is now, in its segments.
    #[must_use]
    pub fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(MapSnapshot { segments: self.segments.clone(), pieces: OnceLock::new() })
    }

    /// The map whose snapshot gave these pieces.
    ///
    /// # Errors
    /// When no map's snapshot gives them.
    pub fn restore(pieces: Vec<Bytes>) -> Result<SegmentMap, RestoreError> {
        let single = pieces.len() == 1;
        let mut map = SegmentMap { segments: OrdMap::new(), bytes: 0, entries: 0 };
        for (index, piece) in pieces.into_iter().enumerate() {
            let (bound, segment) = Segment::from_piece(piece)
                .map_err(|reason| RestoreError::Malformed { index, reason })?;
            let follows = match map.segments.get_max() {
                None => bound.is_empty(),
                Some((before, left)) => {
                    *before < bound && left.last_key().is_none_or(|key| *key < bound[..])
                }
            };
            if !follows || (segment.len() == 0 && !single) {
                return Err(RestoreError::Contradiction("ranges of the store's segments"));
            }
            map.bytes += segment.bytes() as u64;
            map.entries += segment.len() as u64;
            map.segments.insert(bound, Arc::new(segment));
        }
        if map.segments.is_empty() {
            return Err(RestoreError::Contradiction("the store has one segment at least"));
        }
        Ok(map)
    }
}

/// The map as it was; the segments are shared until one side changes them.
struct MapSnapshot {
    segments: OrdMap<Key, Arc<Segment>>,
    // Filled at first need, off the event loop.
    pieces: OnceLock<Vec<(Key, Arc<Segment>)>>,
}

impl MapSnapshot {
    fn at(&self, index: usize) -> &(Key, Arc<Segment>) {
        let shared = |(bound, segment): (&Key, &Arc<Segment>)| (bound.clone(), segment.clone());
        &self.pieces.get_or_init(|| self.segments.iter().map(shared).collect())[index]
    }
}

impl Snapshot for MapSnapshot {
    fn segments(&self) -> usize {
        self.segments.len()
    }

    fn segment(&self, index: usize) -> Bytes {
        let (bound, segment) = self.at(index);
        segment.piece(bound)
    }

    fn entry(&self, index: usize) -> Entry {
        let (bound, segment) = self.at(index);
        segment.entry(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of `count` entries of about 1 KiB, in as many segments as that takes.
    fn filled(count: u32) -> SegmentMap {
        let mut map = SegmentMap::new();
        for number in 0..count {
            map.put(&number.to_be_bytes(), &[7; 1000], u64::MAX).unwrap();
        }
        map
    }

    fn shared(a: &SegmentMap, b: &SegmentMap) -> usize {
        let both = |bound: &Key, segment: &Arc<Segment>| {
            b.segments.get(bound).is_some_and(|other| Arc::ptr_eq(segment, other))
        };
        a.segments.iter().filter(|(bound, segment)| both(bound, segment)).count()
    }

    #[test]
    fn a_copy_shares_everything_and_a_write_copies_one_segment() {
        let mut map = filled(2000);
        let count = map.segments();
        assert!(count > 30);
        let copy = map.clone();
        assert!(map.segments.ptr_eq(&copy.segments));
        map.put(&77u32.to_be_bytes(), &[8; 1000], u64::MAX).unwrap();
        assert_eq!(shared(&map, &copy), count - 1);
        // The copy is the map's own from now on, and the values next to it are still shared.
        map.put(&78u32.to_be_bytes(), &[8; 1000], u64::MAX).unwrap();
        assert_eq!(shared(&map, &copy), count - 1);
        assert_eq!(copy.get(&77u32.to_be_bytes()).unwrap()[..], [7; 1000]);
        let neighbour = 76u32.to_be_bytes();
        assert!(Arc::ptr_eq(map.get(&neighbour).unwrap(), copy.get(&neighbour).unwrap()));
    }

    #[test]
    fn what_changes_nothing_copies_nothing() {
        let mut map = filled(500);
        let copy = map.clone();
        assert!(!map.remove(b"absent"));
        assert_eq!(map.put(b"new", &[0; 100], 1000), Err(Full));
        assert_eq!(shared(&map, &copy), map.segments());
    }

    #[test]
    fn unchanged_segments_remember_their_digests() {
        let mut map = filled(500);
        let first = map.snapshot();
        for index in 0..first.segments() {
            first.entry(index);
        }
        map.put(&9u32.to_be_bytes(), b"", u64::MAX).unwrap();
        let forgotten = map.segments.values().filter(|segment| !segment.is_digested()).count();
        assert_eq!(forgotten, 1);
    }
}
