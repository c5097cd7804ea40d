//! The entries that a range read gives, as they were encoded. They are read off when they are asked
//! for: in a list of pairs, entries of a few bytes would take many times the memory they came in.

use crate::limits;
use bytes::{Buf, Bytes};
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{Decode, DecodeError, Encode, Reader};
use std::fmt;

/// Keys and values, in the order asked for.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Entries {
    count: usize,
    // Keys and values in turn, each with its length.
    raw: Bytes,
}

/// Reads entries off; keys and values share memory with each other.
#[derive(Clone, Debug)]
pub struct EntriesIter {
    left: usize,
    rest: Bytes,
}

impl Entries {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keys and values.
    #[must_use]
    pub fn iter(&self) -> EntriesIter {
        EntriesIter { left: self.count, rest: self.raw.clone() }
    }

    /// Bytes of the encoded entries.
    pub(crate) fn framed_bytes(&self) -> usize {
        self.raw.len()
    }
}

/// Entries in the making.
#[derive(Default)]
pub(crate) struct EntriesBuilder {
    count: usize,
    raw: Vec<u8>,
}

impl EntriesBuilder {
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        encode_bytes(key, &mut self.raw);
        encode_bytes(value, &mut self.raw);
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn finish(self) -> Entries {
        Entries { count: self.count, raw: self.raw.into() }
    }
}

impl FromIterator<(Bytes, Bytes)> for Entries {
    fn from_iter<I: IntoIterator<Item = (Bytes, Bytes)>>(entries: I) -> Entries {
        let mut builder = EntriesBuilder::default();
        entries.into_iter().for_each(|(key, value)| builder.push(&key, &value));
        builder.finish()
    }
}

impl IntoIterator for &Entries {
    type Item = (Bytes, Bytes);
    type IntoIter = EntriesIter;

    fn into_iter(self) -> EntriesIter {
        self.iter()
    }
}

impl EntriesIter {
    fn part(&mut self) -> Bytes {
        let length = self.rest.try_get_u32_le().expect("lengths were checked");
        self.rest.split_to(length as usize)
    }
}

impl Iterator for EntriesIter {
    type Item = (Bytes, Bytes);

    fn next(&mut self) -> Option<(Bytes, Bytes)> {
        self.left = self.left.checked_sub(1)?;
        Some((self.part(), self.part()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for EntriesIter {}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Encode for Entries {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.count, out);
        out.extend_from_slice(&self.raw);
    }
}

impl Decode for Entries {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = reader.count("entries of a range", limits::RANGE_ENTRIES, 8)?;
        let start = reader.position();
        for _ in 0..count {
            let key = reader.count("key", limits::KEY_BYTES, 1)?;
            reader.skip(key)?;
            let value = reader.count("value", limits::VALUE_BYTES, 1)?;
            reader.skip(value)?;
        }
        Ok(Entries { count, raw: reader.since(start) })
    }
}
