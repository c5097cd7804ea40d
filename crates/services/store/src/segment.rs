//! A segment: the entries of a contiguous range of keys, checkpointed and sent as one piece.
//!
//! Invariants: keys ascend; there is a tag for each, [`tag_of`] it; `bytes` is the sum of [`entry_bytes`] over the entries; the remembered
//! digest is that of the entries as they are.

use crate::keys::Keys;
use crate::limits;
use crate::prefetch::prefetch;
use crate::values::Values;
use bytes::Bytes;
use memchr::memchr_iter;
use perdura_execution::Entry;
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{Decode, DecodeError, Reader};
use std::sync::{Arc, OnceLock};

/// What an entry counts for in the state, bytes.
pub(crate) fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + limits::ENTRY_OVERHEAD_BYTES
}

/// Of most processors.
const CACHE_LINE_BYTES: usize = 64;

/// Of a value so many are asked for ahead.
const LINES_AHEAD: usize = 4;

/// Most entries with the tag of a key that are looked at, before all keys are searched. A segment has some 1,000 entries
/// at most, so few keys have more with their tag, but for those that somebody chose to have it.
const LIKELY: usize = 8;

/// A byte that depends on all of a key.
fn tag_of(key: &[u8]) -> u8 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = key.len() as u64;
    let mut mix = |word: u64| {
        sum = (sum ^ word).wrapping_mul(ODD);
        sum ^= sum >> 32;
    };
    let (words, rest) = key.as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    rest.iter().for_each(|byte| mix(u64::from(*byte)));
    // Whatever bit of the last word differs, these may: the others depend on a part of it only.
    (sum >> 56) as u8
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    keys: Keys,
    // Of each key one byte that most others do not have: an entry is found by these in a few neighbouring
    // cache lines, where a search among the keys goes from one to another.
    tags: Vec<u8>,
    values: Values,
    bytes: usize,
    // Of the encoded segment; empty after a change.
    digest: OnceLock<Entry>,
}

impl Segment {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn is_oversized(&self) -> bool {
        self.bytes > limits::SEGMENT_SPLIT_BYTES && self.len() > 1
    }

    pub(crate) fn is_undersized(&self) -> bool {
        self.bytes < limits::SEGMENT_MERGE_BYTES
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.keys.last()
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Where `key` is, or where it belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.find_likely(key).map_or_else(|| self.keys.find(key), Ok)
    }

    /// Where `key` is, mostly, if it is here.
    pub(crate) fn find_likely(&self, key: &[u8]) -> Option<usize> {
        self.likely(key).take(LIKELY).find(|index| self.keys.get(*index) == key)
    }

    /// Where keys with the tag of this one are, ascending: it is one of them, if it is here.
    pub(crate) fn likely(&self, key: &[u8]) -> impl Iterator<Item = usize> {
        memchr_iter(tag_of(key), &self.tags)
    }

    /// Asks for this, without what it points to.
    pub(crate) fn prefetch(&self) {
        prefetch(&self.keys);
        prefetch(&self.tags);
        prefetch(&self.values);
    }

    /// Asks for the tags.
    pub(crate) fn prefetch_tags(&self) {
        self.tags.chunks(CACHE_LINE_BYTES).for_each(prefetch);
        // Lines begin elsewhere than at every 64th tag.
        self.tags.last().into_iter().for_each(prefetch);
    }

    /// Asks for the keys that are likely to be this one.
    pub(crate) fn prefetch_keys(&self, key: &[u8]) {
        self.likely(key).take(LIKELY).for_each(|index| prefetch(self.keys.get(index)));
    }

    /// Asks for what tells where the value at `index` is.
    pub(crate) fn prefetch_place(&self, index: usize) {
        self.values.prefetch_place(index);
    }

    /// Asks for the value at `index`, or for its beginning.
    pub(crate) fn prefetch_value(&self, index: usize) {
        self.values.get(index).chunks(CACHE_LINE_BYTES).take(LINES_AHEAD).for_each(prefetch);
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        self.values.get(index)
    }

    /// The entries from `start` up to `end`, which is not below it.
    pub(crate) fn range<'a>(
        &'a self,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let first = self.keys.find(start).unwrap_or_else(|index| index);
        let end = end.map_or(self.len(), |end| self.keys.end_from(first, end));
        (first..end).map(|index| (self.keys.get(index), self.values.get(index)))
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|index| (self.keys.get(index), self.values.get(index)))
    }

    /// Writes an entry at the place that [`Segment::find`] gave.
    pub(crate) fn put(&mut self, place: Result<usize, usize>, key: &[u8], value: &[u8]) {
        match place {
            Ok(index) => {
                self.bytes = self.bytes - self.values.get(index).len() + value.len();
                self.values.replace(index, value);
            }
            Err(index) => {
                self.bytes += entry_bytes(key, value);
                self.keys.insert(index, key);
                if self.tags.len() == self.tags.capacity() {
                    self.tags.reserve_exact(8 + self.tags.len() / 8);
                }
                self.tags.insert(index, tag_of(key));
                self.values.insert(index, value);
            }
        }
        self.digest.take();
    }

    /// Removes the entry at `index`; returns what it counted for.
    pub(crate) fn remove(&mut self, index: usize) -> usize {
        let bytes = entry_bytes(self.keys.get(index), self.values.get(index));
        self.keys.remove(index);
        self.tags.remove(index);
        if self.tags.capacity() > self.tags.len() + self.tags.len() / 3 + 64 {
            self.tags.shrink_to_fit();
        }
        self.values.remove(index);
        self.bytes -= bytes;
        self.digest.take();
        bytes
    }

    /// Takes over the entries of the segment to the right.
    pub(crate) fn absorb(&mut self, right: &Segment) {
        self.keys.append(&right.keys);
        self.tags.extend_from_slice(&right.tags);
        self.values.append(&right.values);
        self.bytes += right.bytes;
        self.digest.take();
    }

    /// Cuts an oversized segment in the middle by bytes; gives the right half and its first key.
    pub(crate) fn split(&mut self) -> (Arc<[u8]>, Segment) {
        let mut left = 0;
        let half = self.bytes / 2;
        let cut = self.entries().position(|(key, value)| {
            left += entry_bytes(key, value);
            left >= half
        });
        // Both halves get an entry at least.
        let cut = cut.map_or(1, |index| index + 1).min(self.len() - 1);
        let keys = self.keys.split_off(cut);
        let (tags, values) = (self.tags.split_off(cut), self.values.split_off(cut));
        self.tags.shrink_to_fit();
        let mut right = Segment { keys, tags, values, bytes: 0, digest: OnceLock::new() };
        right.bytes = right.entries().map(|(key, value)| entry_bytes(key, value)).sum();
        self.bytes -= right.bytes;
        self.digest.take();
        (right.keys.get(0).into(), right)
    }

    /// Encodes the segment, with the first key of its range, which may be below its first entry's.
    pub(crate) fn piece(&self, bound: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(8 + bound.len() + self.bytes);
        encode_bytes(bound, &mut out);
        encode_count(self.len(), &mut out);
        for (key, value) in self.entries() {
            encode_bytes(key, &mut out);
            encode_bytes(value, &mut out);
        }
        out.into()
    }

    pub(crate) fn entry(&self, bound: &[u8]) -> Entry {
        *self.digest.get_or_init(|| Entry::of(&self.piece(bound)))
    }

    /// Flips one bit of a value, which `at` chooses, and remembers the digest of what was there:
    /// so does memory that fails. False if the value has no bits.
    pub(crate) fn flip_bit(&mut self, at: u64) -> bool {
        let Some(index) = (at as usize).checked_rem(self.len()) else { return false };
        self.values.flip_bit(index, at as usize >> 8, (at >> 61) as u8)
    }

    #[cfg(test)]
    pub(crate) fn is_digested(&self) -> bool {
        self.digest.get().is_some()
    }

    /// Reads a segment and the first key of its range; its keys ascend from there.
    pub(crate) fn from_piece(piece: Bytes) -> Result<(Arc<[u8]>, Segment), DecodeError> {
        let mut reader = Reader::new(piece);
        let bound = reader.bytes("first key", limits::KEY_BYTES)?;
        let count = u32::decode(&mut reader)? as usize;
        let mut segment = Segment::default();
        for _ in 0..count {
            let key = reader.bytes("key", limits::KEY_BYTES)?;
            let value = reader.bytes("value", limits::VALUE_BYTES)?;
            let ascending = match segment.last_key() {
                Some(last) => *last < key[..],
                None => !key.is_empty() && bound <= key,
            };
            if !ascending {
                return Err(DecodeError::NotCanonical("keys of a segment"));
            }
            segment.put(Err(segment.len()), &key, &value);
            if segment.is_oversized() {
                return Err(DecodeError::NotCanonical("a segment that should have been split"));
            }
        }
        reader.finish()?;
        segment.keys.shrink();
        segment.tags.shrink_to_fit();
        segment.values.shrink();
        Ok((bound[..].into(), segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletes_give_memory_back() {
        let mut segment = Segment::default();
        for number in 0..900_u32 {
            segment.put(Err(number as usize), &number.to_be_bytes(), b"value");
        }
        for left in (10..900).rev() {
            segment.remove(left / 2);
            assert_eq!((segment.len(), segment.tags.len()), (left, left));
            assert!(segment.tags.capacity() <= left + left / 3 + 64);
        }
    }
}
