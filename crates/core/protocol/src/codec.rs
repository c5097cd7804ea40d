//! The canonical codec: little-endian integers, `u32` length prefixes, no padding, no options in
//! how a value is written. A value has one encoding, and a decoder refuses everything else,
//! trailing bytes included; so equal digests mean equal values.
//!
//! Decoding is zero-copy (slices of the received buffer) and allocates in proportion to the bytes
//! that are really there: a count is checked against what is left before anything is reserved.

use bytes::Bytes;

/// What is wrong with received bytes. Nothing of a value that does not decode is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the bytes end before the value does")]
    Truncated,
    /// Bytes are left over after the value.
    #[error("bytes are left over after the value")]
    TrailingBytes,
    /// A tag, flag or kind that this version does not know.
    #[error("unknown tag {0}")]
    UnknownTag(u8),
    /// A count or length above its bound.
    #[error("{what}: {found} is above the limit of {limit}")]
    AboveLimit {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// The value could be written in another way, or its parts contradict each other.
    #[error("not canonical: {0}")]
    NotCanonical(&'static str),
    /// Text that is not hexadecimal of the right length.
    #[error("not hexadecimal digits of the right length")]
    Hexadecimal,
}

/// Reads values off a buffer; slices share the buffer's memory.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    position: usize,
}

impl Reader {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Reader {
        Reader { bytes, position: 0 }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Offset of the next byte from the start of the buffer.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes from `start` (an earlier [`Reader::position`]) to here.
    #[must_use]
    pub fn since(&self, start: usize) -> Bytes {
        self.bytes.slice(start..self.position)
    }

    /// The next `length` bytes, sharing memory with the buffer.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn take(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        let start = self.position;
        self.position += length;
        Ok(self.bytes.slice(start..self.position))
    }

    /// Passes over `length` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn skip(&mut self, length: usize) -> Result<(), DecodeError> {
        if length > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        self.position += length;
        Ok(())
    }

    /// The next `N` bytes by value.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let slice = self
            .bytes
            .get(self.position..self.position.saturating_add(N))
            .ok_or(DecodeError::Truncated)?;
        let array = slice.try_into().map_err(|_| DecodeError::Truncated)?;
        self.position += N;
        Ok(array)
    }

    /// A `u32` count of items that take at least `item_bytes` each, at most `limit`.
    ///
    /// # Errors
    /// When it is above `limit`, or above what the bytes that are left can hold.
    pub fn count(
        &mut self,
        what: &'static str,
        limit: usize,
        item_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let found = u32::decode(self)? as usize;
        if found > limit {
            return Err(DecodeError::AboveLimit { what, found: found as u64, limit: limit as u64 });
        }
        if found.saturating_mul(item_bytes) > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        Ok(found)
    }

    /// Bytes with a `u32` length prefix of at most `limit`.
    ///
    /// # Errors
    /// When the length is above `limit` or the bytes are not all there.
    pub fn bytes(&mut self, what: &'static str, limit: usize) -> Result<Bytes, DecodeError> {
        let length = self.count(what, limit, 1)?;
        self.take(length)
    }

    /// A list with a `u32` count of at most `limit`, of items of at least `item_bytes` each.
    ///
    /// # Errors
    /// As [`Reader::count`] and the items' own.
    pub fn list<T: Decode>(
        &mut self,
        what: &'static str,
        limit: usize,
        item_bytes: usize,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count(what, limit, item_bytes)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::decode(self)?);
        }
        Ok(items)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`] when anything is left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }
}

/// A value with one encoding.
pub trait Encode {
    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// The encoding by itself.
    fn to_bytes(&self) -> Bytes {
        // Most messages are short, and growing bit by bit costs more than one copy of the right size.
        let mut out = Vec::with_capacity(USUAL_BYTES);
        self.encode(&mut out);
        if out.len() <= USUAL_BYTES { Bytes::copy_from_slice(&out) } else { Bytes::from(out) }
    }
}

/// Bytes of most encodings that are made one by one: votes, replies, heartbeats.
const USUAL_BYTES: usize = 512;

/// A value that can be read back from its encoding.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// When the bytes are not the canonical encoding of a value.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>;

    /// The value that `bytes` encode, all of them.
    ///
    /// # Errors
    /// When the bytes are not the canonical encoding of a value, or more than one.
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }

        impl Decode for $type {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                Ok(<$type>::from_le_bytes(reader.array()?))
            }
        }
    )*};
}
integer!(u8, u16, u32, u64);

macro_rules! newtype {
    ($($type:path),*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode for $type {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                Ok($type(Decode::decode(reader)?))
            }
        }
    )*};
}
newtype!(crate::ids::ReplicaId, crate::ids::Slot, crate::ids::View, crate::ids::Time);
newtype!(crate::ids::ClusterId, crate::ids::Digest, crate::keys::PublicKey, crate::keys::Signature);

impl Encode for crate::ids::BootId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.nonce.encode(out);
    }
}

impl Decode for crate::ids::BootId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(crate::ids::BootId { number: Decode::decode(reader)?, nonce: reader.array()? })
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.array()
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if bool::decode(reader)? { Ok(Some(T::decode(reader)?)) } else { Ok(None) }
    }
}

/// Appends `bytes` with a `u32` length prefix; they are read back by [`Reader::bytes`].
///
/// # Panics
/// Above 4 GiB, which no bounded value reaches.
pub fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    encode_count(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Appends a `u32` count; it is read back by [`Reader::count`].
///
/// # Panics
/// Above `u32::MAX`, which no bounded list reaches.
pub fn encode_count(count: usize, out: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("every encoded list and buffer is bounded");
    count.encode(out);
}

/// Appends a list with a `u32` count; it is read back by [`Reader::list`].
pub fn encode_list<T: Encode>(items: &[T], out: &mut Vec<u8>) {
    encode_count(items.len(), out);
    for item in items {
        item.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_and_missing_bytes_are_refused() {
        let bytes = Bytes::from_static(&[1, 0, 0, 0, 7]);
        assert_eq!(u32::from_bytes(bytes.clone()), Err(DecodeError::TrailingBytes));
        assert_eq!(u64::from_bytes(bytes), Err(DecodeError::Truncated));
        assert_eq!(bool::from_bytes(Bytes::from_static(&[2])), Err(DecodeError::UnknownTag(2)));
    }

    #[test]
    fn counts_are_held_against_what_is_there() {
        let mut out = Vec::new();
        encode_count(1_000_000, &mut out);
        let mut reader = Reader::new(Bytes::from(out));
        assert_eq!(reader.list::<u64>("things", 2_000_000, 8), Err(DecodeError::Truncated));
    }
}
