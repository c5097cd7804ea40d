//! The store's state: an ordered map in segments, shared with its snapshots and copied on write.
//! Other services may keep theirs in one, too.
//!
//! Layout: a list of segments in the order of their ranges. The first range starts at
//! the empty key, and each ends where the next one starts, so that every key has its segment.
//!
//! Invariants:
//! - no segment above [`limits::SEGMENT_SPLIT_BYTES`] has more than one entry;
//! - no segment is empty, unless it is the only one;
//! - where the segments begin and end follows from the sequence of changes alone: it is the same
//!   on every replica, whenever snapshots were taken, and it survives a restore as it is.

use crate::directory::{Directory, SegmentIndex};
use crate::limits;
use crate::segment::{Segment, entry_bytes};
use bytes::Bytes;
use perdura_execution::{Entry, RestoreError, Snapshot, StateLimit};
use std::sync::{Arc, OnceLock};

/// The change would leave more bytes in the state than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// An ordered map of byte strings. Keys have at most [`limits::KEY_BYTES`], and values at most
/// [`limits::VALUE_BYTES`]: a longer one could not be restored. Cloning shares.
#[derive(Clone, Debug)]
pub struct SegmentMap {
    pub(crate) segments: Directory,
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
        SegmentMap { segments: Directory::of(Segment::default()), bytes: 0, entries: 0 }
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

    /// The bytes that a change which grows the state may leave: none if there are too many segments already, and
    /// [`StateLimit::bytes`] otherwise.
    #[must_use]
    pub fn room(&self, limit: StateLimit) -> u64 {
        if self.segments() < limit.segments { limit.bytes } else { 0 }
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let segment = self.segments.get(self.segments.find(key));
        segment.find(key).ok().map(|index| segment.value(index))
    }

    /// The place of a key, for whoever looks at what is there before he writes.
    pub fn at<'a>(&'a mut self, key: &'a [u8]) -> At<'a> {
        let place = self.segments.find(key);
        let index = self.segments.get(place).find(key);
        At { map: self, key, place, index }
    }

    /// Writes an entry, unless it grows the state beyond `limit` bytes.
    ///
    /// # Errors
    /// When it would; nothing has changed then.
    pub fn put(&mut self, key: &[u8], value: &[u8], limit: u64) -> Result<(), Full> {
        self.at(key).put(value, limit)
    }

    /// Removes an entry; whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.at(key).remove()
    }

    /// The entries from `start` up to `end` (without it), ascending.
    pub fn range<'a>(
        &'a self,
        start: &'a [u8],
        end: Option<&'a [u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> {
        self.range_within(start, end)
    }

    /// The same, of bounds of whatever kind, which it keeps.
    pub fn range_within<'a, B: AsRef<[u8]>>(
        &'a self,
        start: B,
        end: Option<B>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a, B> {
        let first = self.segments.find(start.as_ref());
        // One that ends before it begins has nothing in it.
        let is_empty = end.as_ref().is_some_and(|end| end.as_ref() <= start.as_ref());
        let end_of = |end: &B| if is_empty { first } else { self.segments.find(end.as_ref()) };
        let last = end.as_ref().map(end_of).or_else(|| self.segments.last());
        self.segments.between(first, last.unwrap_or(first)).flat_map(move |segment| {
            let end = if is_empty { Some(&start) } else { end.as_ref() };
            segment.range(start.as_ref(), end.map(B::as_ref))
        })
    }

    /// Flips one bit of a value, which `at` chooses, as failing memory does: the digest of its segment,
    /// if it is known, stays that of what was there. For tests of what finds it. False if nothing was
    /// flipped.
    pub fn flip_bit(&mut self, at: u64) -> bool {
        let number = (at >> 32) as usize % self.segments.len();
        let place = self.segments.nth(number);
        self.segments.get_mut(place).flip_bit(at)
    }

    /// Brings a segment back into shape after a change.
    fn reshape(&mut self, place: SegmentIndex) {
        let segment = self.segments.get(place);
        if segment.is_oversized() {
            let (bound, right) = self.segments.get_mut(place).split();
            let (left_large, right_large) =
                (self.segments.get(place).is_oversized(), right.is_oversized());
            let left = self.segments.bound(place).to_vec();
            self.segments.insert_behind(place, &bound, right);
            // A half may hold one value so large that it has to be cut again; it is never merged here.
            if left_large {
                self.reshape(self.segments.find(&left));
            }
            if right_large {
                self.reshape(self.segments.find(&bound));
            }
        } else if segment.is_undersized() {
            self.merge(place);
        }
    }

    /// Merges an undersized segment with its right neighbour, or else with its left one, until it
    /// is large enough or no neighbour fits.
    fn merge(&mut self, mut place: SegmentIndex) {
        loop {
            let segment = self.segments.get(place);
            if !segment.is_undersized() {
                return;
            }
            let fits = |neighbour: &SegmentIndex| {
                segment.len() == 0
                    || segment.bytes() + self.segments.get(*neighbour).bytes()
                        <= limits::SEGMENT_MERGED_BYTES
            };
            let right = self.segments.next(place).filter(fits);
            let left = self.segments.previous(place).filter(fits);
            let (left, right) = match (left, right) {
                (_, Some(right)) => (place, right),
                (Some(left), None) => (left, place),
                (None, None) => return,
            };
            let bound = self.segments.bound(left).to_vec();
            let absorbed = self.segments.remove(right);
            place = self.segments.find(&bound);
            self.segments.get_mut(place).absorb(&absorbed);
        }
    }

    /// The map as it is now, in its segments.
    #[must_use]
    pub fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(MapSnapshot { segments: self.segments.clone(), starts: OnceLock::new() })
    }

    /// The map whose snapshot gave these pieces.
    ///
    /// # Errors
    /// When no map's snapshot gives them.
    pub fn restore(pieces: Vec<Bytes>) -> Result<SegmentMap, RestoreError> {
        let mut partial = PartialMap::default();
        pieces
            .into_iter()
            .enumerate()
            .try_for_each(|(index, piece)| partial.install(index, piece))?;
        partial.whole()
    }
}

/// A map of which the first segments are installed.
#[derive(Debug)]
pub struct PartialMap(SegmentMap);

impl Default for PartialMap {
    fn default() -> PartialMap {
        PartialMap(SegmentMap { segments: Directory::empty(), bytes: 0, entries: 0 })
    }
}

impl PartialMap {
    /// Installs the next segment, which errors call `index`.
    ///
    /// # Errors
    /// When no map's snapshot has this one behind those before.
    pub fn install(&mut self, index: usize, piece: Bytes) -> Result<(), RestoreError> {
        let map = &mut self.0;
        let (bound, segment) = Segment::from_piece(piece)
            .map_err(|reason| RestoreError::Malformed { index, reason })?;
        let follows = match map.segments.last() {
            None => bound.is_empty(),
            Some(last) => {
                let left = map.segments.get(last);
                let ascends = *map.segments.bound(last) < bound[..]
                    && left.last_key().is_some_and(|key| *key < bound[..]);
                ascends && segment.len() > 0
            }
        };
        if !follows {
            return Err(RestoreError::Contradiction("ranges of the store's segments"));
        }
        map.bytes += segment.bytes() as u64;
        map.entries += segment.len() as u64;
        map.segments.push(&bound, Arc::new(segment));
        Ok(())
    }

    /// The map, if all are installed.
    ///
    /// # Errors
    /// When none is.
    pub fn whole(self) -> Result<SegmentMap, RestoreError> {
        if self.0.segments.len() == 0 {
            return Err(RestoreError::Contradiction("the store has one segment at least"));
        }
        Ok(self.0)
    }
}

/// The place of a key in a map, found once.
#[derive(Debug)]
pub struct At<'a> {
    map: &'a mut SegmentMap,
    key: &'a [u8],
    place: SegmentIndex,
    // Of the entry in its segment, or where it belongs.
    index: Result<usize, usize>,
}

impl At<'_> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.index.ok().map(|index| self.map.segments.get(self.place).value(index))
    }

    /// As [`SegmentMap::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(self, value: &[u8], limit: u64) -> Result<(), Full> {
        let old = self.value().map_or(0, |value| entry_bytes(self.key, value) as u64);
        let new = entry_bytes(self.key, value) as u64;
        let At { map, key, place, index } = self;
        let bytes = map.bytes - old + new;
        if bytes > limit && new > old {
            return Err(Full);
        }
        let segment = map.segments.get_mut(place);
        segment.put(index, key, value);
        if segment.is_oversized() || (new < old && segment.is_undersized()) {
            map.reshape(place);
        }
        map.bytes = bytes;
        map.entries += u64::from(index.is_err());
        Ok(())
    }

    /// As [`SegmentMap::remove`].
    pub fn remove(self) -> bool {
        let At { map, place, index: Ok(index), .. } = self else { return false };
        let segment = map.segments.get_mut(place);
        let bytes = segment.remove(index);
        if segment.is_undersized() {
            map.reshape(place);
        }
        map.bytes -= bytes as u64;
        map.entries -= 1;
        true
    }
}

/// The map as it was; the segments are shared until one side changes them.
struct MapSnapshot {
    segments: Directory,
    // Where each chunk of them starts: found at first need, off the event loop.
    starts: OnceLock<Vec<usize>>,
}

impl MapSnapshot {
    fn at(&self, index: usize) -> SegmentIndex {
        Directory::place_of(self.starts.get_or_init(|| self.segments.starts()), index)
    }
}

impl Snapshot for MapSnapshot {
    fn segments(&self) -> usize {
        self.segments.len()
    }

    fn segment(&self, index: usize) -> Bytes {
        let place = self.at(index);
        self.segments.get(place).piece(self.segments.bound(place))
    }

    fn entry(&self, index: usize) -> Entry {
        let place = self.at(index);
        self.segments.get(place).entry(self.segments.bound(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;
    use std::collections::BTreeMap;

    /// A map of `count` entries of about 1 KiB, in as many segments as that takes.
    fn filled(count: u32) -> SegmentMap {
        let mut map = SegmentMap::new();
        for number in 0..count {
            map.put(&number.to_be_bytes(), &[7; 1000], u64::MAX).unwrap();
        }
        map
    }

    fn shared(a: &SegmentMap, b: &SegmentMap) -> usize {
        let places = (0..a.segments()).map(|number| a.segments.nth(number));
        let both = |place: &SegmentIndex| {
            let other = b.segments.find(a.segments.bound(*place));
            Arc::ptr_eq(a.segments.get(*place), b.segments.get(other))
        };
        places.filter(both).count()
    }

    #[test]
    fn a_copy_shares_everything_and_a_write_copies_one_segment() {
        let mut map = filled(2000);
        let count = map.segments();
        assert!(count > 30);
        let copy = map.clone();
        assert_eq!(shared(&map, &copy), count);
        map.put(&77u32.to_be_bytes(), &[8; 1000], u64::MAX).unwrap();
        assert_eq!(shared(&map, &copy), count - 1);
        // The copy is the map's own from now on, and the values next to it are still shared.
        map.put(&78u32.to_be_bytes(), &[8; 1000], u64::MAX).unwrap();
        assert_eq!(shared(&map, &copy), count - 1);
        assert_eq!(copy.get(&77u32.to_be_bytes()).unwrap()[..], [7; 1000]);
        let neighbour = 76u32.to_be_bytes();
        let place = |map: &SegmentMap| map.get(&neighbour).unwrap().as_ptr();
        assert_eq!(place(&map), place(&copy));
    }

    #[test]
    fn the_place_of_a_key_shows_what_is_written_over() {
        let mut map = filled(500);
        let (copy, key) = (map.clone(), 77u32.to_be_bytes());
        let at = map.at(&key);
        assert_eq!((at.key(), at.value()), (&key[..], Some(&[7; 1000][..])));
        // To look copies nothing.
        assert_eq!(shared(&map, &copy), copy.segments());
        map.at(&key).put(b"new", u64::MAX).unwrap();
        assert_eq!(map.get(&key), Some(&b"new"[..]));
        assert!(map.at(&key).remove() && !map.at(&key).remove());
        assert_eq!((map.get(&key), map.entries()), (None, 499));
        let (all, one) = (map.bytes(), entry_bytes(&key, &[7; 1000]) as u64);
        assert_eq!(map.at(&key).put(&[0; 100], all), Err(Full));
        assert_eq!((map.at(&key).value(), all), (None, copy.bytes() - one));
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
        let forgotten = map
            .segments
            .between(map.segments.nth(0), map.segments.last().unwrap())
            .filter(|segment| !segment.is_digested())
            .count();
        assert_eq!(forgotten, 1);
    }

    /// Neighbours in a segment often differ in the last bytes alone: numbers, as bytes or as text.
    #[test]
    fn neighbours_have_different_tags() {
        type Keys = fn(usize, u64) -> Vec<u8>;
        let numbers: Keys = |length, number| {
            let mut key = vec![7; length];
            let bytes = length.min(8);
            key[length - bytes..].copy_from_slice(&number.to_be_bytes()[8 - bytes..]);
            key
        };
        let texts: Keys = |length, number| format!("{number:0length$}").into_bytes();
        for (keys, least) in [(numbers, 2), (texts, 4)] {
            for length in least..=40 {
                let mut segment = Segment::default();
                let keys: Vec<Vec<u8>> = (5000..5900).map(|number| keys(length, number)).collect();
                for (index, key) in keys.iter().enumerate() {
                    segment.put(Err(index), key, b"");
                }
                let most = keys.iter().map(|key| segment.likely(key).count()).max();
                assert!(most <= Some(16), "{length} bytes: {most:?} with one tag");
            }
        }
    }

    /// Their tags decide nothing but where they are looked for first.
    #[test]
    fn keys_with_the_same_tag_are_told_apart() {
        let mut segment = Segment::default();
        segment.put(Err(0), b"first", b"");
        let alike = |key: &&[u8; 4]| segment.likely(&key[..]).next().is_some();
        let keys: Vec<[u8; 4]> = (0..100_000_u32).map(u32::to_be_bytes).collect();
        let keys: Vec<&[u8; 4]> = keys.iter().filter(alike).take(200).collect();
        assert_eq!(keys.len(), 200);
        let mut map = SegmentMap::new();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(map.get(&key[..]), None);
            map.put(&key[..], &number.to_le_bytes(), u64::MAX).unwrap();
        }
        for key in keys.iter().step_by(2) {
            assert!(map.remove(&key[..]) && !map.remove(&key[..]));
        }
        for (number, key) in keys.iter().enumerate() {
            let expected = (number % 2 == 1).then(|| number.to_le_bytes());
            assert_eq!(map.get(&key[..]), expected.as_ref().map(|bytes| &bytes[..]));
        }
    }

    /// Enough segments that chunks of them are split, and join again: beside a plain map.
    #[test]
    fn hundreds_of_segments_come_and_go() {
        come_and_go(b"", [900, 1100, 200], (400, 4));
    }

    #[test]
    fn hundreds_of_segments_of_keys_that_begin_alike_come_and_go() {
        come_and_go(b"customer:", [900, 1100, 200], (400, 4));
    }

    #[test]
    fn segments_of_even_values_come_and_go() {
        come_and_go(b"customer:", [16, 16, 16], (40, 0));
    }

    /// With keys that begin with this and values of these sizes there are more segments and chunks than `least`.
    fn come_and_go(begins: &[u8], sizes: [usize; 3], least: (usize, usize)) {
        let mut below = choices(3);
        let (mut map, mut model) = (SegmentMap::new(), BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let (mut most, mut held) = ((0, 0), Vec::new());
        let key = |number: usize| {
            [begins, &(number as u32).wrapping_mul(2_654_435_761).to_be_bytes()].concat()
        };
        for step in 0..160_000 {
            let number = below(50_000);
            // It grows, and shrinks again.
            if below(10) < if step < 80_000 { 9 } else { 1 } {
                let value = vec![step as u8; sizes[below(3)]];
                map.put(&key(number), &value, u64::MAX).unwrap();
                model.insert(key(number), value);
            } else {
                assert_eq!(map.remove(&key(number)), model.remove(&key(number)[..]).is_some());
            }
            most = most.max((map.segments(), map.segments.chunks()));
            if step % 20_000 == 19_999 {
                held.push((map.snapshot(), map.bytes()));
                check(&map, &model, below(50_000), key);
            }
        }
        assert!(most.0 > least.0 && most.1 > least.1, "{most:?}");
        for number in 0..50_000 {
            assert_eq!(map.remove(&key(number)), model.remove(&key(number)[..]).is_some());
            if number % 10_000 == 0 {
                check(&map, &model, number, key);
            }
        }
        assert_eq!((map.segments(), map.segments.chunks(), map.bytes()), (1, 1, 0));
        for (snapshot, bytes) in held {
            let pieces = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
            assert_eq!(SegmentMap::restore(pieces).unwrap().bytes(), bytes);
        }
    }

    fn check(
        map: &SegmentMap,
        model: &BTreeMap<Vec<u8>, Vec<u8>>,
        middle: usize,
        key: impl Fn(usize) -> Vec<u8>,
    ) {
        assert_eq!(map.entries(), model.len() as u64);
        let all = |map: &SegmentMap| -> Vec<(Vec<u8>, Vec<u8>)> {
            map.range(b"", None).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
        };
        assert!(all(map).iter().map(|(key, value)| (key, value)).eq(model));
        let (start, end) = (key(middle).min(key(middle + 9)), key(middle).max(key(middle + 9)));
        let expected = model.range(start.clone()..end.clone()).map(|(k, v)| (&k[..], &v[..]));
        assert!(map.range(&start, Some(&end)).eq(expected.clone()));
        assert!(map.range(&start, Some(&end)).rev().eq(expected.rev()));
        let snapshot = map.snapshot();
        let pieces: Vec<Bytes> =
            (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
        let restored = SegmentMap::restore(pieces.clone()).unwrap();
        assert!(all(&restored) == all(map));
        let again = restored.snapshot();
        assert!((0..again.segments()).map(|index| again.segment(index)).eq(pieces));
    }
}
