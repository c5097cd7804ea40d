//! Which segment a key belongs to: an ordered list of segments with the first keys of their ranges, in chunks.
//! A search goes through two short lists of first keys, through numbers that stand for them where those differ. A clone shares the chunks, and the first change
//! of a chunk after that copies it: some hundred pointers.
//!
//! Invariants: the first keys ascend; the first of all is the empty key; no chunk is empty, and none has more than
//! [`CHUNK_SEGMENTS`].

use crate::bounds::Bounds;
use crate::segment::Segment;
use std::sync::Arc;

/// Segments of a chunk.
const CHUNK_SEGMENTS: usize = 128;

/// A chunk with fewer than this joins a neighbour if both have no more than three quarters of a full one.
const FEW_SEGMENTS: usize = CHUNK_SEGMENTS / 4;

#[derive(Clone, Debug, Default)]
struct Chunk {
    bounds: Bounds,
    segments: Vec<Arc<Segment>>,
}

/// The list. Cloning shares.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    // Of each chunk the first key.
    bounds: Bounds,
    chunks: Vec<Arc<Chunk>>,
    count: usize,
}

/// Where a segment is, until the next change of the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentIndex {
    chunk: usize,
    index: usize,
}

impl Directory {
    /// A list of one segment.
    pub(crate) fn of(segment: Segment) -> Directory {
        let mut directory = Directory { bounds: Bounds::default(), chunks: Vec::new(), count: 0 };
        directory.push(b"", Arc::new(segment));
        directory
    }

    /// A list without segments, which are to be added.
    pub(crate) fn empty() -> Directory {
        Directory { bounds: Bounds::default(), chunks: Vec::new(), count: 0 }
    }

    /// Number of segments.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Number of chunks.
    #[cfg(test)]
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Where the segment is to whose range `key` belongs.
    pub(crate) fn find(&self, key: &[u8]) -> SegmentIndex {
        let chunk = self.bounds.last_not_above(key);
        SegmentIndex { chunk, index: self.chunks[chunk].bounds.last_not_above(key) }
    }

    /// The segment there.
    pub(crate) fn get(&self, place: SegmentIndex) -> &Arc<Segment> {
        &self.chunks[place.chunk].segments[place.index]
    }

    /// The first key of its range.
    pub(crate) fn bound(&self, place: SegmentIndex) -> &[u8] {
        self.chunks[place.chunk].bounds.get(place.index)
    }

    /// The segment there, to be changed.
    pub(crate) fn get_mut(&mut self, place: SegmentIndex) -> &mut Segment {
        Arc::make_mut(&mut Arc::make_mut(&mut self.chunks[place.chunk]).segments[place.index])
    }

    /// The place behind.
    pub(crate) fn next(&self, place: SegmentIndex) -> Option<SegmentIndex> {
        if place.index + 1 < self.chunks[place.chunk].segments.len() {
            return Some(SegmentIndex { index: place.index + 1, ..place });
        }
        (place.chunk + 1 < self.chunks.len())
            .then_some(SegmentIndex { chunk: place.chunk + 1, index: 0 })
    }

    /// The place before.
    pub(crate) fn previous(&self, place: SegmentIndex) -> Option<SegmentIndex> {
        if let Some(index) = place.index.checked_sub(1) {
            return Some(SegmentIndex { index, ..place });
        }
        let chunk = place.chunk.checked_sub(1)?;
        Some(SegmentIndex { chunk, index: self.chunks[chunk].segments.len() - 1 })
    }

    /// The last place of all.
    pub(crate) fn last(&self) -> Option<SegmentIndex> {
        let chunk = self.chunks.len().checked_sub(1)?;
        Some(SegmentIndex { chunk, index: self.chunks[chunk].segments.len() - 1 })
    }

    /// The place with this number, below [`Directory::len`], in order.
    pub(crate) fn nth(&self, mut number: usize) -> SegmentIndex {
        let mut chunk = 0;
        while number >= self.chunks[chunk].segments.len() {
            number -= self.chunks[chunk].segments.len();
            chunk += 1;
        }
        SegmentIndex { chunk, index: number }
    }

    /// For each chunk the number of its first segment, and the number of all.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let mut total = 0;
        let mut starts = vec![0];
        starts.extend(self.chunks.iter().map(|chunk| {
            total += chunk.segments.len();
            total
        }));
        starts
    }

    /// The place with a number, by what [`Directory::starts`] gave.
    pub(crate) fn place_of(starts: &[usize], number: usize) -> SegmentIndex {
        let chunk = starts.partition_point(|start| *start <= number) - 1;
        SegmentIndex { chunk, index: number - starts[chunk] }
    }

    /// The segments from one place to another, that one too, in order.
    pub(crate) fn between(
        &self,
        from: SegmentIndex,
        to: SegmentIndex,
    ) -> impl DoubleEndedIterator<Item = &Arc<Segment>> {
        (from.chunk..=to.chunk).flat_map(move |chunk| {
            let segments = &self.chunks[chunk].segments;
            let first = if chunk == from.chunk { from.index } else { 0 };
            let end = if chunk == to.chunk { to.index + 1 } else { segments.len() };
            segments[first.min(end)..end].iter()
        })
    }

    /// Adds a segment behind all others, whose range begins at `bound`.
    pub(crate) fn push(&mut self, bound: &[u8], segment: Arc<Segment>) {
        // Room is left for segments that are split.
        let full = CHUNK_SEGMENTS * 3 / 4;
        let open = self.chunks.last().is_some_and(|chunk| chunk.segments.len() < full);
        if !open {
            self.bounds.push(bound);
            self.chunks.push(Arc::default());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            let chunk = Arc::make_mut(chunk);
            chunk.bounds.push(bound);
            chunk.segments.push(segment);
            self.count += 1;
        }
    }

    /// Puts a segment, whose range begins at `bound`, behind the one at `place`.
    pub(crate) fn insert_behind(&mut self, place: SegmentIndex, bound: &[u8], segment: Segment) {
        let chunk = Arc::make_mut(&mut self.chunks[place.chunk]);
        chunk.bounds.insert(place.index + 1, bound);
        chunk.segments.insert(place.index + 1, Arc::new(segment));
        self.count += 1;
        if chunk.segments.len() > CHUNK_SEGMENTS {
            let half = chunk.segments.len() / 2;
            let bounds = chunk.bounds.split_off(half);
            let segments = chunk.segments.split_off(half);
            self.bounds.insert(place.chunk + 1, bounds.get(0));
            self.chunks.insert(place.chunk + 1, Arc::new(Chunk { bounds, segments }));
        }
    }

    /// Takes a segment out, which is not the first of all: its range belongs to the one before.
    pub(crate) fn remove(&mut self, place: SegmentIndex) -> Arc<Segment> {
        let chunk = Arc::make_mut(&mut self.chunks[place.chunk]);
        chunk.bounds.remove(place.index);
        let removed = chunk.segments.remove(place.index);
        self.count -= 1;
        if chunk.segments.is_empty() {
            self.chunks.remove(place.chunk);
            self.bounds.remove(place.chunk);
        } else {
            if place.index == 0 {
                let first = chunk.bounds.get(0).to_vec();
                self.bounds.remove(place.chunk);
                self.bounds.insert(place.chunk, &first);
            }
            self.join(place.chunk);
        }
        removed
    }

    /// Joins a chunk that has few segments with the one behind it, or the one before.
    fn join(&mut self, chunk: usize) {
        let size = |chunk: usize| self.chunks.get(chunk).map(|chunk| chunk.segments.len());
        let fits = |left: usize| match (size(left), size(left + 1)) {
            (Some(left), Some(right)) => left + right <= CHUNK_SEGMENTS * 3 / 4,
            _ => false,
        };
        if size(chunk).is_none_or(|size| size >= FEW_SEGMENTS) {
            return;
        }
        let left = match chunk.checked_sub(1) {
            _ if fits(chunk) => chunk,
            Some(left) if fits(left) => left,
            _ => return,
        };
        let right = self.chunks.remove(left + 1);
        self.bounds.remove(left + 1);
        let left = Arc::make_mut(&mut self.chunks[left]);
        left.bounds.append(&right.bounds);
        left.segments.extend(right.segments.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;
    use std::collections::BTreeMap;

    fn segment(number: u32) -> Segment {
        let mut segment = Segment::default();
        segment.put(Err(0), b"number", &number.to_le_bytes());
        segment
    }

    fn number(segment: &Segment) -> u32 {
        u32::from_le_bytes(segment.value(0).try_into().unwrap())
    }

    /// All of it, by each of the ways that lead through it.
    fn check(directory: &Directory, model: &BTreeMap<Vec<u8>, u32>) {
        assert_eq!(directory.len(), model.len());
        let starts = directory.starts();
        let mut place = directory.find(b"");
        for (at, (bound, value)) in model.iter().enumerate() {
            assert_eq!(
                (directory.bound(place), number(directory.get(place))),
                (&bound[..], *value)
            );
            assert_eq!((directory.nth(at), Directory::place_of(&starts, at)), (place, place));
            assert_eq!(directory.find(bound), place);
            assert_eq!(directory.find(&[&bound[..], &[0]].concat()), place);
            let next = directory.next(place);
            assert_eq!(next.is_none(), at + 1 == model.len());
            if let Some(next) = next {
                assert_eq!(directory.previous(next), Some(place));
                place = next;
            }
        }
        assert_eq!(directory.last(), Some(place));
        let all = directory.between(directory.find(b""), place);
        assert!(all.map(|one| number(one)).eq(model.values().copied()));
        for chunk in &directory.chunks {
            assert!((1..=CHUNK_SEGMENTS).contains(&chunk.segments.len()));
        }
    }

    #[test]
    fn segments_are_found_where_they_were_put_and_copies_stay_as_they_are() {
        let mut directory = Directory::of(segment(0));
        let mut model = BTreeMap::from([(Vec::new(), 0)]);
        let mut below = choices(99);
        let mut copies = Vec::new();
        // It grows, and shrinks again.
        for step in 1..6000_u32 {
            let grows = below(10) < if step < 3000 { 8 } else { 2 };
            let at = below(directory.len());
            let place = directory.nth(at);
            if grows {
                let bound = [directory.bound(place), &[1 + below(200) as u8]].concat();
                if bound.len() < 100 && !model.contains_key(&bound) {
                    let place = directory.find(&bound);
                    directory.insert_behind(place, &bound, segment(step));
                    model.insert(bound, step);
                }
            } else if at > 0 {
                let bound = directory.bound(place).to_vec();
                let removed = directory.remove(place);
                assert_eq!(model.remove(&bound), Some(number(&removed)));
            }
            let place = directory.nth(below(directory.len()));
            let bound = directory.bound(place).to_vec();
            directory.get_mut(place).put(Ok(0), b"number", &(step + 10_000).to_le_bytes());
            model.insert(bound, step + 10_000);
            if step % 500 == 0 {
                check(&directory, &model);
                copies.push((directory.clone(), model.clone()));
            }
        }
        assert!(copies.iter().any(|(copy, _)| copy.chunks.len() > 8));
        assert!(directory.chunks.len() < 8);
        for (copy, model) in &copies {
            check(copy, model);
        }
    }

    #[test]
    fn a_range_gives_the_segments_between_from_both_ends() {
        let mut directory = Directory::empty();
        for number in 0..1000_u32 {
            let bound = if number == 0 { Vec::new() } else { number.to_be_bytes().to_vec() };
            directory.push(&bound, Arc::new(segment(number)));
        }
        for (from, to) in [(0, 999), (5, 5), (5, 6), (90, 300), (95, 96), (96, 97), (700, 999)] {
            let (first, last) = (directory.nth(from), directory.nth(to));
            let found = directory.between(first, last).map(|one| number(one));
            assert!(found.eq(from as u32..=to as u32));
            let found = directory.between(first, last).rev().map(|one| number(one));
            assert!(found.eq((from as u32..=to as u32).rev()));
        }
        assert_eq!(directory.between(directory.nth(6), directory.nth(5)).count(), 0);
        assert_eq!(directory.between(directory.nth(600), directory.nth(5)).count(), 0);
    }
}
