//! The manifest of a state: digest and length of each of its pieces. Its digest is what replicas
//! sign at a boundary (rule D7); m + 1 equal ones certify the state, and with it every piece, from
//! whichever replica a piece comes.
//!
//! It binds the slot and the history hash, so that neither an older state nor one of another
//! history passes for this one.

use perdura_protocol::codec::{encode_count, encode_list};
use perdura_protocol::{Decode, DecodeError, Digest, Encode, Reader, Slot, limits};

/// A piece as the manifest names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// BLAKE3 of the piece.
    pub digest: Digest,
    /// Its length in bytes, at most [`limits::PIECE_BYTES`].
    pub length: u32,
}

const ENTRY_BYTES: usize = 36;

impl Entry {
    /// The entry of a piece.
    ///
    /// # Panics
    /// Above 4 GiB; pieces are bounded far below.
    #[must_use]
    pub fn of(piece: &[u8]) -> Entry {
        let length = u32::try_from(piece.len()).expect("pieces are bounded");
        Entry { digest: Digest::of(piece), length }
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.digest.encode(out);
        self.length.encode(out);
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let digest = Decode::decode(reader)?;
        let length = u32::decode(reader)?;
        if length as usize > limits::PIECE_BYTES {
            return Err(DecodeError::AboveLimit {
                what: "piece of a state",
                found: u64::from(length),
                limit: limits::PIECE_BYTES as u64,
            });
        }
        Ok(Entry { digest, length })
    }
}

/// The pieces of a state as of a slot: first the core (time, configurations, clients), then one
/// for each session, then the service's segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The last executed slot.
    pub slot: Slot,
    /// History hash at that slot.
    pub history: Digest,
    sessions: u32,
    entries: Vec<Entry>,
}

impl Manifest {
    const HEADER_BYTES: usize = 8 + 32 + 4 + 4;

    /// A manifest of the core's entry, those of `sessions` sessions and the service's, in order.
    pub(crate) fn new(slot: Slot, history: Digest, sessions: usize, entries: Vec<Entry>) -> Self {
        assert!(entries.len() > sessions, "core and sessions have entries");
        let sessions = u32::try_from(sessions).expect("clients and their sessions are bounded");
        Manifest { slot, history, sessions, entries }
    }

    /// Number of session pieces; they come after the core, piece 0.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions as usize
    }

    /// Number of the service's segments; they come last.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.entries.len() - 1 - self.sessions()
    }

    /// All pieces, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of all pieces together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.length)).sum()
    }

    /// Whether `piece` is what the manifest names as piece `index`.
    #[must_use]
    pub fn verify(&self, index: usize, piece: &[u8]) -> bool {
        self.entries.get(index).is_some_and(|entry| {
            entry.length as usize == piece.len() && entry.digest == Digest::of(piece)
        })
    }

    /// The digest of the state, which replicas sign.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut out = b"perdura.manifest.v1".to_vec();
        self.encode(&mut out);
        Digest::of(&out)
    }
}

impl Encode for Manifest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(Self::HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        self.slot.encode(out);
        self.history.encode(out);
        encode_count(self.sessions(), out);
        encode_list(&self.entries, out);
    }
}

impl Decode for Manifest {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let slot = Decode::decode(reader)?;
        let history = Decode::decode(reader)?;
        let sessions = u32::decode(reader)?;
        let most = (limits::MANIFEST_BYTES - Self::HEADER_BYTES) / ENTRY_BYTES;
        let entries: Vec<Entry> = reader.list("pieces of a state", most, ENTRY_BYTES)?;
        if entries.len() <= sessions as usize {
            return Err(DecodeError::NotCanonical("fewer pieces than core and sessions"));
        }
        Ok(Manifest { slot, history, sessions, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn manifest() -> Manifest {
        let entries = (0..5u8).map(|i| Entry::of(&[i])).collect();
        Manifest::new(Slot(9), Digest::of(b"history"), 2, entries)
    }

    #[test]
    fn it_is_read_back_and_names_its_pieces() {
        let manifest = manifest();
        assert_eq!(Manifest::from_bytes(manifest.to_bytes()).unwrap(), manifest);
        assert_eq!((manifest.sessions(), manifest.segments()), (2, 2));
        assert_eq!(manifest.total_bytes(), 5);
        assert!(manifest.verify(3, &[3]));
        assert!(!manifest.verify(3, &[4]) && !manifest.verify(5, &[5]));
    }

    #[test]
    fn the_digest_binds_slot_and_history() {
        let base = manifest();
        let mut other = base.clone();
        other.slot = Slot(10);
        assert_ne!(base.digest(), other.digest());
        other = base.clone();
        other.history = Digest::ZERO;
        assert_ne!(base.digest(), other.digest());
    }

    #[test]
    fn contradictions_do_not_decode() {
        let bytes = manifest().to_bytes().to_vec();
        let mut more_sessions = bytes.clone();
        more_sessions[40] = 5;
        assert!(Manifest::from_bytes(more_sessions.into()).is_err());
        let mut long_piece = bytes.clone();
        let end = long_piece.len();
        long_piece[end - 1] = 0xff;
        assert!(Manifest::from_bytes(long_piece.into()).is_err());
        for end in 0..bytes.len() {
            assert!(Manifest::from_bytes(Bytes::copy_from_slice(&bytes[..end])).is_err());
        }
    }
}
