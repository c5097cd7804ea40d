//! Memory that is about to be read is asked for a step at a time for many keys, before the next step for each, so that many answers are on
//! their way at once, where a look-up waits for each of its own. It changes nothing, and finds nothing that is not looked up again.

use crate::keys::Search;
use crate::map::SegmentMap;
use crate::prefetch::CAN_PREFETCH;
use crate::segment::Segment;

/// Keys that are looked ahead for at once: what they need fits a second-level cache.
const AHEAD: usize = 64;

/// Entries of each range.
const ENTRIES_AHEAD: usize = 8;

/// A state below this stays in the processor's caches by itself.
const LARGE_BYTES: u64 = 8 * 1024 * 1024;

impl SegmentMap {
    /// Whether it is worth it.
    pub(crate) fn looks_ahead(&self) -> bool {
        CAN_PREFETCH && self.bytes() >= LARGE_BYTES
    }

    /// Asks for entries with these keys. It waits for where segments are, and of keys of many lengths for where they are. Returns how many
    /// entries it found; there may be more.
    pub(crate) fn look_ahead(&self, keys: &[&[u8]]) -> usize {
        let mut count = 0;
        for keys in keys.chunks(AHEAD) {
            let segments: Vec<&Segment> = keys.iter().map(|key| self.segment_ahead(key)).collect();
            segments.iter().for_each(|segment| segment.prefetch_tags());
            let sought = || segments.iter().zip(keys);
            sought().for_each(|(segment, key)| segment.prefetch_keys(key));
            let found = sought().filter_map(|(segment, key)| {
                let index = segment.find_likely(key)?;
                segment.prefetch_place(index);
                Some((*segment, index))
            });
            let found: Vec<(&Segment, usize)> = found.collect();
            found.iter().for_each(|(segment, index)| segment.prefetch_value(*index));
            count += found.len();
        }
        count
    }

    /// Asks for the first entries of ranges, which begin at their first keys and end below their second ones. Returns for how many.
    pub(crate) fn look_ahead_in(&self, ranges: &[(&[u8], Option<&[u8]>)]) -> usize {
        let mut count = 0;
        for ranges in ranges.chunks(AHEAD) {
            let begin = |(start, end)| {
                let segment = self.segment_ahead(start);
                Beginning { segment, start, end, search: segment.keys().search() }
            };
            let mut beginnings: Vec<Beginning> = ranges.iter().copied().map(begin).collect();
            let mut goes_on = true;
            while goes_on {
                beginnings.iter().for_each(Beginning::prefetch_place);
                beginnings.iter().for_each(Beginning::prefetch_key);
                goes_on = beginnings.iter_mut().fold(false, |goes_on, one| one.step() | goes_on);
            }
            let entries = beginnings.iter().flat_map(Beginning::entries);
            let entries: Vec<(&Segment, usize)> = entries.collect();
            entries.iter().for_each(|(segment, index)| segment.prefetch_place(*index));
            entries.iter().for_each(|(segment, index)| segment.prefetch_value(*index));
            count += entries.len();
        }
        count
    }

    fn segment_ahead(&self, key: &[u8]) -> &Segment {
        let segment = self.segments.get(self.segments.find(key));
        segment.prefetch();
        segment
    }
}

/// Where a range begins, as far as that is found.
struct Beginning<'a> {
    segment: &'a Segment,
    start: &'a [u8],
    end: Option<&'a [u8]>,
    search: Search,
}

impl<'a> Beginning<'a> {
    fn prefetch_place(&self) {
        self.segment.keys().prefetch_place(self.search);
    }

    fn prefetch_key(&self) {
        self.segment.keys().prefetch_next(self.search);
    }

    /// Whether there was one left.
    fn step(&mut self) -> bool {
        self.segment.keys().step(&mut self.search, self.start)
    }

    /// The first ones in its first segment.
    fn entries(&self) -> impl Iterator<Item = (&'a Segment, usize)> {
        let (segment, first) = (self.segment, self.search.low());
        let end = self.end.map_or(segment.len(), |end| segment.keys().end_from(first, end));
        (first..end.min(first + ENTRIES_AHEAD)).map(move |index| (segment, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_execution::Entry;

    /// Keys that are there, that are not, and that no command may have; more of them than are looked for at once. Values of
    /// each kind, and keys of one length and of many.
    #[test]
    fn looking_ahead_finds_entries_of_any_keys() {
        for value_bytes in [0, 16, 100, 1000] {
            let mut map = SegmentMap::new();
            for number in 0..2000_u32 {
                map.put(&number.to_be_bytes(), &vec![1; value_bytes], u64::MAX).unwrap();
            }
            look_ahead_of(&map);
            for number in (0..2000_u32).step_by(100) {
                let key = [&number.to_be_bytes()[..], b"and more"].concat();
                map.put(&key, &[1; 17], u64::MAX).unwrap();
            }
            for number in (0..2000_u32).step_by(3) {
                map.put(&number.to_be_bytes(), &[2; 3], u64::MAX).unwrap();
            }
            look_ahead_of(&map);
        }
    }

    fn look_ahead_of(map: &SegmentMap) {
        let (before, count) = (entries(map), map.entries());
        let keys: Vec<Vec<u8>> = (0..3000_u32)
            .map(|number| number.to_be_bytes().to_vec())
            .chain([Vec::new(), vec![0xff; 5000], b"absent".to_vec()])
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        // Few of these stand behind eight others with their tag.
        let found = map.look_ahead(&keys);
        assert!((1900..=2000).contains(&found), "{found}");
        assert_eq!((map.look_ahead(&[]), SegmentMap::new().look_ahead(&keys)), (0, 0));
        let behind = keys.iter().copied().skip(3).map(Some).chain([Some(&b"\0\0\0\x07"[..]), None]);
        let ranges: Vec<_> = keys.iter().copied().zip(behind.cycle()).collect();
        for range in &ranges {
            // Of several segments, the first ones are asked for in the first one alone.
            let (found, there) = (map.look_ahead_in(&[*range]), map.range(range.0, range.1));
            let there = there.take(ENTRIES_AHEAD).count();
            assert!(found == there || (found < there && map.segments() > 1), "{found} of {there}");
        }
        let found = ranges.iter().map(|range| map.look_ahead_in(&[*range])).sum::<usize>();
        assert!(found > 4000 && map.look_ahead_in(&ranges) == found, "{found}");
        assert!(entries(map) == before && map.entries() == count);
    }

    fn entries(map: &SegmentMap) -> Vec<Entry> {
        let snapshot = map.snapshot();
        (0..snapshot.segments()).map(|index| snapshot.entry(index)).collect()
    }
}
