//! The parts of a checkpoint's file; see [`super`] for its layout.

use crate::FORMAT_VERSION;
use crate::checksum::{FileKey, SUM_BYTES, Sum, array_at, u32_at, u64_at};
use perdura_protocol::{ClusterId, Digest, Slot};

const HEADER_MAGIC: &[u8; 8] = b"PDCHECKP";
const FOOTER_MAGIC: &[u8; 8] = b"PDCHKEND";
pub(crate) const HEADER_BYTES: usize = 128;
pub(crate) const FOOTER_BYTES: usize = 56;

/// Length of an entry of the index in files of a format version.
pub(crate) fn entry_bytes(version: u32) -> usize {
    if version == 1 { 8 + 4 + SUM_BYTES } else { 32 + 8 + 8 + 4 }
}

/// The first bytes of a checkpoint's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) slot: Slot,
    pub(crate) digest: Digest,
    pub(crate) manifest_bytes: u32,
    pub(crate) pieces: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> ([u8; HEADER_BYTES], FileKey) {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(HEADER_MAGIC);
        out[24..28].copy_from_slice(&self.version.to_le_bytes());
        out[28..44].copy_from_slice(&self.cluster.0);
        out[44..52].copy_from_slice(&self.slot.0.to_le_bytes());
        out[52..84].copy_from_slice(&self.digest.0);
        out[84..88].copy_from_slice(&self.manifest_bytes.to_le_bytes());
        out[88..92].copy_from_slice(&self.pieces.to_le_bytes());
        let key = FileKey::checkpoint(&out[24..96]);
        let sum = key.sum(&out[24..]);
        out[8..24].copy_from_slice(&sum);
        (out, key)
    }

    /// `None` if it does not verify, or is of a version that this program does not know.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<(Header, FileKey)> {
        let key = FileKey::checkpoint(&bytes[24..96]);
        if &bytes[..8] != HEADER_MAGIC || array_at::<SUM_BYTES>(bytes, 8) != key.sum(&bytes[24..]) {
            return None;
        }
        let header = Header {
            version: u32_at(bytes, 24),
            cluster: ClusterId(array_at(bytes, 28)),
            slot: Slot(u64_at(bytes, 44)),
            digest: Digest(array_at(bytes, 52)),
            manifest_bytes: u32_at(bytes, 84),
            pieces: u32_at(bytes, 88),
        };
        (1..=FORMAT_VERSION).contains(&header.version).then_some((header, key))
    }

    /// Bytes of a file of this version with no piece in it.
    pub(crate) fn frame_bytes(&self) -> u64 {
        let index = u64::from(self.pieces) * entry_bytes(self.version) as u64;
        (HEADER_BYTES + SUM_BYTES + FOOTER_BYTES) as u64 + u64::from(self.manifest_bytes) + index
    }
}

/// The last bytes of a checkpoint's file.
pub(crate) struct Footer {
    pub(crate) index_offset: u64,
    pub(crate) index_bytes: u64,
    pub(crate) index_sum: Sum,
}

impl Footer {
    pub(crate) fn encode(&self, key: &FileKey) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        out[..8].copy_from_slice(FOOTER_MAGIC);
        out[24..32].copy_from_slice(&self.index_offset.to_le_bytes());
        out[32..40].copy_from_slice(&self.index_bytes.to_le_bytes());
        out[40..].copy_from_slice(&self.index_sum);
        let sum = key.sum(&out[24..]);
        out[8..24].copy_from_slice(&sum);
        out
    }

    pub(crate) fn decode(bytes: &[u8; FOOTER_BYTES], key: &FileKey) -> Option<Footer> {
        let verifies =
            &bytes[..8] == FOOTER_MAGIC && array_at::<SUM_BYTES>(bytes, 8) == key.sum(&bytes[24..]);
        verifies.then(|| Footer {
            index_offset: u64_at(bytes, 24),
            index_bytes: u64_at(bytes, 32),
            index_sum: array_at(bytes, 40),
        })
    }
}

/// Where a piece of a checkpoint stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceLocation {
    /// In the file of the checkpoint at this slot, its own or an older one.
    pub file: Slot,
    /// Offset in that file.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
}

impl PieceLocation {
    /// Whether it lies before `end`.
    pub(crate) fn ends_by(&self, end: u64) -> bool {
        self.offset.checked_add(u64::from(self.bytes)).is_some_and(|found| found <= end)
    }
}

/// How a piece is told from everything that is not it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// Format version 1: its checksum, keyed with its file's key.
    Sum(Sum),
    /// Its digest.
    Digest(Digest),
}

/// A piece as the index has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) place: PieceLocation,
    pub(crate) check: Check,
}

impl Entry {
    /// Appends it as its check's version has it.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let PieceLocation { file, offset, bytes } = self.place;
        if let Check::Digest(digest) = self.check {
            out.extend_from_slice(&digest.0);
            out.extend_from_slice(&file.0.to_le_bytes());
        }
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        if let Check::Sum(sum) = self.check {
            out.extend_from_slice(&sum);
        }
    }

    /// The entry that stands in `bytes`, of the length for its version, in the file of `slot`.
    pub(crate) fn decode(version: u32, slot: Slot, bytes: &[u8]) -> Entry {
        if version == 1 {
            let place =
                PieceLocation { file: slot, offset: u64_at(bytes, 0), bytes: u32_at(bytes, 8) };
            return Entry { place, check: Check::Sum(array_at(bytes, 12)) };
        }
        let place = PieceLocation {
            file: Slot(u64_at(bytes, 32)),
            offset: u64_at(bytes, 40),
            bytes: u32_at(bytes, 48),
        };
        Entry { place, check: Check::Digest(Digest(array_at(bytes, 0))) }
    }
}
