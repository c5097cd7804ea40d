//! The manifest of a state: digest and length of each of its pieces. Its digest is what replicas
//! sign at a boundary (rule D7); m + 1 equal ones certify the state, and with it every piece, from
//! whichever replica a piece comes.
//!
//! It binds the slot and the history hash, so that neither an older state nor one of another
//! history passes for this one; and the versions under which the state goes on.
//!
//! Layout under version 0 of the core's rules: slot, history, number of sessions, entries. Under later ones: 8 bytes `0xff`, which
//! are no slot; slot, history, number of sessions and versions as fields by name (`perdura_protocol::fields`); entries. Which fields there are follows from
//! the versions, so that all replicas sign the same; one that may be passed over is kept, for it is part of what they sign.

use bytes::Bytes;
use perdura_protocol::codec::{encode_count, encode_list};
use perdura_protocol::fields::{FieldError, Fields};
use perdura_protocol::{Decode, DecodeError, Digest, Encode, Reader, Slot, Versions, limits};

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
    /// The entry of a piece; of one above 4 GiB it names that length, which is [`TooLarge`] anyway.
    #[must_use]
    pub fn of(piece: &[u8]) -> Entry {
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
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
    /// Under which the next slots are executed.
    pub versions: Versions,
    sessions: u32,
    entries: Vec<Entry>,
    // Fields of a newer program that this one may pass over.
    passed_over: Fields,
}

/// Why bytes are no manifest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestError {
    /// They do not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Its fields are not those of a manifest. After [`FieldError::Unknown`] a newer version of this program can read it.
    #[error(transparent)]
    Fields(#[from] FieldError),
}

/// Nobody could read this state back, neither from a disk nor from another replica.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooLarge {
    /// One of its pieces is too large.
    #[error("{piece} of the state at slot {slot} has {bytes} bytes, and more than {most} cannot be read back", most = limits::PIECE_BYTES)]
    Piece {
        /// The state's slot.
        slot: Slot,
        /// Which one, in words.
        piece: String,
        /// Its length.
        bytes: u32,
    },
    /// It has too many.
    #[error("the state at slot {slot} has {segments} segments and {sessions} sessions, and more than {most} together cannot be read back", most = PIECES - 1)]
    Pieces {
        /// The state's slot.
        slot: Slot,
        /// Of the service.
        segments: usize,
        /// Live ones.
        sessions: usize,
    },
}

/// Pieces of a state at most, with its core: the manifest has room for so many.
pub const PIECES: usize = (limits::MANIFEST_BYTES - Manifest::HEADER_BYTES) / ENTRY_BYTES;

/// Segments that a service may have, however many sessions there are: what it is told ([`crate::StateLimit`]).
pub const SEGMENTS: usize = 400_000;

/// What one command may add to them, of a service that looks before.
const SEGMENTS_AT_ONCE: usize = 30_000;

/// Clients alone cannot bring a state beyond what is read back.
const _: () = assert!(
    1 + (limits::CLIENTS + 1) * limits::SESSIONS_OWN
        + limits::SESSIONS_SHARED
        + SEGMENTS
        + SEGMENTS_AT_ONCE
        <= PIECES
);

/// In place of a slot: fields by name follow.
const FIELDS_FOLLOW: Slot = Slot(u64::MAX);

impl Manifest {
    // With room for fields that may be added.
    const HEADER_BYTES: usize = 1024;

    /// A manifest of the core's entry, those of `sessions` sessions and the service's, in order.
    pub(crate) fn new(
        slot: Slot,
        history: Digest,
        versions: Versions,
        sessions: usize,
        entries: Vec<Entry>,
    ) -> Self {
        assert!(entries.len() > sessions, "core and sessions have entries");
        let sessions = u32::try_from(sessions).expect("clients and their sessions are bounded");
        Manifest { slot, history, versions, sessions, entries, passed_over: Fields::default() }
    }

    /// The manifest that `bytes` are.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(bytes: Bytes) -> Result<Manifest, ManifestError> {
        let mut reader = Reader::new(bytes);
        let manifest = match Decode::decode(&mut reader)? {
            FIELDS_FOLLOW => {
                let mut fields = Fields::decode(&mut reader)?;
                let versions = Versions {
                    rules: fields.need("rules")?,
                    service: fields.need("service-version")?,
                };
                if versions.rules == 0 || versions.service == 0 {
                    return Err(DecodeError::NotCanonical("versions of a manifest").into());
                }
                let (slot, history) = (fields.need("slot")?, fields.need("history")?);
                let sessions = fields.need("sessions")?;
                fields.pass_over()?;
                let entries = Manifest::entries_after(sessions, &mut reader)?;
                Manifest { slot, history, versions, sessions, entries, passed_over: fields }
            }
            slot => {
                let (history, sessions) = (Decode::decode(&mut reader)?, u32::decode(&mut reader)?);
                let entries = Manifest::entries_after(sessions, &mut reader)?;
                Manifest::new(slot, history, Versions::FIRST, sessions as usize, entries)
            }
        };
        reader.finish()?;
        Ok(manifest)
    }

    fn entries_after(sessions: u32, reader: &mut Reader) -> Result<Vec<Entry>, DecodeError> {
        let entries: Vec<Entry> = reader.list("pieces of a state", PIECES, ENTRY_BYTES)?;
        if entries.len() <= sessions as usize {
            return Err(DecodeError::NotCanonical("fewer pieces than core and sessions"));
        }
        Ok(entries)
    }

    fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.require("slot", &self.slot);
        fields.require("history", &self.history);
        fields.require("sessions", &self.sessions);
        fields.require("rules", &self.versions.rules);
        fields.require("service-version", &self.versions.service);
        fields.put_back(&self.passed_over);
        fields
    }

    /// Whether what was made here can be read back: to be asked before a state is stored, or signed. A service's segments are
    /// known only when there is a snapshot, too late to refuse the command that made them, and early enough to keep
    /// the state before and the log from there on.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn check(&self) -> Result<(), TooLarge> {
        let (slot, segments, sessions) = (self.slot, self.segments(), self.sessions());
        if self.entries.len() > PIECES {
            return Err(TooLarge::Pieces { slot, segments, sessions });
        }
        let large = |entry: &Entry| entry.length as usize > limits::PIECE_BYTES;
        let Some(index) = self.entries.iter().position(large) else { return Ok(()) };
        let piece = match index.checked_sub(1) {
            None => "the core".to_owned(),
            Some(session) if session < sessions => format!("session {session}"),
            Some(index) => format!("segment {}", index - sessions),
        };
        Err(TooLarge::Piece { slot, piece, bytes: self.entries[index].length })
    }

    /// Whether so many of the pieces that there may be are there that somebody should know.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.entries.len() > PIECES / 4 * 3 || self.segments() > SEGMENTS / 5 * 4
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
        Manifest::digest_of(&self.to_bytes())
    }

    /// The digest of the state whose manifest `bytes` are, which say themselves of which layout they are. So it is told
    /// of a newer program's manifest too.
    #[must_use]
    pub fn digest_of(bytes: &[u8]) -> Digest {
        Digest::of(&[b"perdura.manifest.v1", bytes].concat())
    }
}

impl Encode for Manifest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(Self::HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        if self.versions.rules == 0 {
            self.slot.encode(out);
            self.history.encode(out);
            encode_count(self.sessions(), out);
        } else {
            FIELDS_FOLLOW.encode(out);
            self.fields().encode(out);
        }
        encode_list(&self.entries, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(versions: Versions) -> Manifest {
        let entries = (0..5u8).map(|i| Entry::of(&[i])).collect();
        Manifest::new(Slot(9), Digest::of(b"history"), versions, 2, entries)
    }

    #[test]
    fn it_is_read_back_and_names_its_pieces() {
        for versions in [Versions::FIRST, Versions::NEW, Versions { rules: 7, service: 3 }] {
            let manifest = manifest(versions);
            assert_eq!(Manifest::read(manifest.to_bytes()).unwrap(), manifest);
            assert_eq!((manifest.sessions(), manifest.segments()), (2, 2));
            assert_eq!(manifest.total_bytes(), 5);
            assert!(manifest.verify(3, &[3]));
            assert!(!manifest.verify(3, &[4]) && !manifest.verify(5, &[5]));
        }
    }

    #[test]
    fn the_digest_binds_slot_history_and_versions() {
        let base = manifest(Versions::NEW);
        let mut other = base.clone();
        other.slot = Slot(10);
        assert_ne!(base.digest(), other.digest());
        other = base.clone();
        other.history = Digest::ZERO;
        assert_ne!(base.digest(), other.digest());
        other = base.clone();
        other.versions.service = 2;
        assert_ne!(base.digest(), other.digest());
        assert_ne!(base.digest(), manifest(Versions::FIRST).digest());
    }

    /// Replicas of 0.1.0 signed it; who replays its log signs it again.
    #[test]
    fn the_digest_of_the_first_rules_is_that_of_0_1_0() {
        let mut bytes = b"perdura.manifest.v1".to_vec();
        Slot(9).encode(&mut bytes);
        Digest::of(b"history").encode(&mut bytes);
        bytes.extend([2, 0, 0, 0, 5, 0, 0, 0]);
        for piece in 0..5u8 {
            Entry::of(&[piece]).encode(&mut bytes);
        }
        assert_eq!(manifest(Versions::FIRST).digest(), Digest::of(&bytes));
    }

    /// What a newer program adds.
    fn newer(required: bool) -> Bytes {
        let manifest = manifest(Versions::NEW);
        let mut fields = manifest.fields();
        match required {
            true => fields.require("colour", &7u8),
            false => fields.offer("colour", &7u8),
        }
        let mut out = FIELDS_FOLLOW.to_bytes().to_vec();
        fields.encode(&mut out);
        encode_list(&manifest.entries, &mut out);
        out.into()
    }

    #[test]
    fn a_newer_programs_field_is_passed_over_and_kept_or_refused_by_name() {
        let read = Manifest::read(newer(false)).unwrap();
        assert_eq!(read.entries(), manifest(Versions::NEW).entries());
        assert_eq!(read.to_bytes(), newer(false), "it is part of what was signed");
        let unknown = ManifestError::Fields(FieldError::Unknown("colour".into()));
        assert_eq!(Manifest::read(newer(true)), Err(unknown));
    }

    /// Of so many segments, the last of which is that long.
    fn of_size(segments: usize, bytes: usize) -> Manifest {
        let length = u32::try_from(bytes).unwrap();
        let mut entries = vec![Entry { digest: Digest::ZERO, length: 0 }; 3 + segments];
        entries[2 + segments].length = length;
        Manifest::new(Slot(9), Digest::ZERO, Versions::NEW, 2, entries)
    }

    /// What the check lets through is read back, and nothing else.
    #[test]
    fn the_largest_is_read_back_and_what_is_larger_is_refused_where_it_is_made() {
        let most = PIECES - 3;
        for (segments, bytes) in [(most, limits::PIECE_BYTES), (1, limits::PIECE_BYTES), (0, 0)] {
            let manifest = of_size(segments, bytes);
            assert_eq!((manifest.check(), manifest.is_crowded()), (Ok(()), segments == most));
            let encoded = manifest.to_bytes();
            assert!(encoded.len() <= limits::MANIFEST_BYTES, "it is sent as a whole");
            assert!(Manifest::read(encoded) == Ok(manifest));
        }
        for (segments, bytes, words) in [
            (most + 1, 0, "699020 segments and 2 sessions"),
            (3, limits::PIECE_BYTES + 1, "segment 2 of the state at slot 9 has 25165825 bytes"),
            (0, limits::PIECE_BYTES + 1, "session 1 of"),
        ] {
            let manifest = of_size(segments, bytes);
            let refused = manifest.check().unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
            assert!(Manifest::read(manifest.to_bytes()).is_err());
        }
        let mut manifest = of_size(1, 0);
        manifest.entries[0].length = u32::MAX;
        assert!(manifest.check().unwrap_err().to_string().starts_with("the core of"));
    }

    #[test]
    fn contradictions_do_not_decode() {
        for versions in [Versions::FIRST, Versions::NEW] {
            let mut manifest = manifest(versions);
            let bytes = manifest.to_bytes().to_vec();
            let mut long_piece = bytes.clone();
            let end = long_piece.len();
            long_piece[end - 1] = 0xff;
            assert!(Manifest::read(long_piece.into()).is_err());
            for end in 0..bytes.len() {
                assert!(Manifest::read(Bytes::copy_from_slice(&bytes[..end])).is_err());
            }
            manifest.sessions = 5;
            assert!(Manifest::read(manifest.to_bytes()).is_err());
        }
        let fields =
            Manifest { versions: Versions { rules: 0, service: 1 }, ..manifest(Versions::NEW) };
        let mut bytes = FIELDS_FOLLOW.to_bytes().to_vec();
        fields.fields().encode(&mut bytes);
        encode_list(&fields.entries, &mut bytes);
        assert!(Manifest::read(bytes.into()).is_err(), "two layouts for one");
    }
}
