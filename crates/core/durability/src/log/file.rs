//! The head of a log file: who wrote it, and how far it is known to be flushed.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`FileHeader`], written once per use, before the first group, in the same flush |
//! | 4096, 4608 | two places of 48 bytes for flush marks, the later one for groups of odd numbers |
//! | 8192 | the first group |
//!
//! Recovery does not need the header: a file's name gives its use number, and that its key. It is
//! there for `perdura inspect`, which verifies a copy of one file without the superblock. A
//! *flush mark* says that all groups up to number g are flushed. When a file
//! has its first group, the one before it is *sealed*: it gets the mark of that group, flushed. A
//! vanished last file is noticed by it, and files that were freed are told from groups that rotted.
//!
//! After each flush that returned, the mark of its group goes to a file beside them, `log/marks` (in two
//! places again, at 0 and 512); it tells rot from a torn write in the last group, for of all others the
//! next one tells that they were flushed. It is written without a flush
//! of its own: it outlasts the process at once, and the machine once it is flushed, at a start, at an end in order
//! and after every so many groups, or once the operating system has written it. In the log's own
//! file it would be two writes more in every flush of a group, for the page and for the file's times.
//! Logs that were written before there was that file have it there.

use super::group::{PAGE_BYTES, is_number};
use crate::checksum::{FileKey, SUM_BYTES, array_at, u32_at, u64_at};
use perdura_protocol::ClusterId;

/// Where the marks of a file of the log begin.
pub(crate) const MARKS_OFFSET: u64 = PAGE_BYTES;

/// Where the first group stands.
pub(crate) const GROUPS_OFFSET: u64 = 2 * PAGE_BYTES;

pub(crate) const FILE_HEADER_BYTES: usize = 128;
pub(crate) const MARK_BYTES: usize = 48;

const HEADER_MAGIC: &[u8; 8] = b"PDLOGFIL";
const MARK_MAGIC: &[u8; 8] = b"PDFLUSHD";
/// Where the files of a log stand in a data directory.
pub const DIRECTORY: &str = "log";

/// The file of the marks that are not flushed, and its size in bytes.
pub(crate) const MARKS: &str = "log/marks";
pub(crate) const MARKS_BYTES: u64 = PAGE_BYTES;

/// Name of a file of the row.
pub(crate) fn name_of(use_number: u64) -> String {
    format!("{DIRECTORY}/{use_number:016}")
}

/// Name of a file that waits for its next use.
pub(crate) fn free_name_of(use_number: u64) -> String {
    format!("{DIRECTORY}/free-{use_number:016}")
}

/// A name in the directory of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogName {
    /// In this use.
    Used(u64),
    /// Free since this use.
    Free(u64),
}

impl LogName {
    /// Reads a name; `None` for files that are not the log's.
    pub(crate) fn parse(name: &str) -> Option<LogName> {
        let number = |digits: &str| {
            let all = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
            if all { digits.parse().ok() } else { None }
        };
        match name.strip_prefix("free-") {
            Some(digits) => number(digits).map(LogName::Free),
            None => number(name).map(LogName::Used),
        }
    }
}

/// The first page of a log file.
///
/// Layout: magic 8, checksum 16 (keyed with the file's key, over bytes 24..128), version 4,
/// incarnation 4, cluster 16, use number 8, first group number 8, the file's checksum key 32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) version: u32,
    pub(crate) incarnation: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) use_number: u64,
    pub(crate) first_group: u64,
    pub(crate) key: FileKey,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..8].copy_from_slice(HEADER_MAGIC);
        out[24..28].copy_from_slice(&self.version.to_le_bytes());
        out[28..32].copy_from_slice(&self.incarnation.to_le_bytes());
        out[32..48].copy_from_slice(&self.cluster.0);
        out[48..56].copy_from_slice(&self.use_number.to_le_bytes());
        out[56..64].copy_from_slice(&self.first_group.to_le_bytes());
        out[64..96].copy_from_slice(&self.key.0);
        let sum = self.key.sum(&out[24..]);
        out[8..24].copy_from_slice(&sum);
        out
    }

    /// The header in `bytes`, if it verifies by the key that it names itself.
    pub(crate) fn decode(bytes: &[u8; FILE_HEADER_BYTES]) -> Option<FileHeader> {
        let key = FileKey(array_at(bytes, 64));
        if &bytes[..8] != HEADER_MAGIC || array_at::<SUM_BYTES>(bytes, 8) != key.sum(&bytes[24..]) {
            return None;
        }
        Some(FileHeader {
            version: u32_at(bytes, 24),
            incarnation: u32_at(bytes, 28),
            cluster: ClusterId(array_at(bytes, 32)),
            use_number: u64_at(bytes, 48),
            first_group: u64_at(bytes, 56),
            key,
        })
    }
}

/// The flush mark "all groups up to `flushed` are flushed" of a file's use, and in which place it goes.
pub(crate) fn encode_mark(key: &FileKey, use_number: u64, flushed: u64) -> (u64, [u8; MARK_BYTES]) {
    let mut out = [0; MARK_BYTES];
    out[..8].copy_from_slice(MARK_MAGIC);
    out[24..32].copy_from_slice(&use_number.to_le_bytes());
    out[32..40].copy_from_slice(&flushed.to_le_bytes());
    let sum = key.sum(&out[24..]);
    out[8..24].copy_from_slice(&sum);
    (MARK_PLACES[(flushed % 2) as usize], out)
}

/// Where the two marks stand, from [`MARKS_OFFSET`] on in a file of the log, from 0 on in [`MARKS`].
pub(crate) const MARK_PLACES: [u64; 2] = [0, 512];

/// The number in a mark, if it verifies.
pub(crate) fn decode_mark(bytes: &[u8; MARK_BYTES], key: &FileKey, use_number: u64) -> Option<u64> {
    let valid = &bytes[..8] == MARK_MAGIC
        && array_at::<SUM_BYTES>(bytes, 8) == key.sum(&bytes[24..])
        && u64_at(bytes, 24) == use_number;
    let flushed = u64_at(bytes, 32);
    (valid && (flushed == 0 || is_number(flushed))).then_some(flushed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let tail = |name: String| name.strip_prefix("log/").unwrap().to_owned();
        assert_eq!(LogName::parse(&tail(name_of(7))), Some(LogName::Used(7)));
        assert_eq!(LogName::parse(&tail(free_name_of(9))), Some(LogName::Free(9)));
        for other in ["7", "000000000000000x", "free-7", "+000000000000007"] {
            assert_eq!(LogName::parse(other), None);
        }
    }

    #[test]
    fn marks_verify_in_their_use_only() {
        let key = FileKey([3; 32]);
        let (place, mark) = encode_mark(&key, 5, 12);
        assert!(place != encode_mark(&key, 5, 13).0);
        assert_eq!(decode_mark(&mark, &key, 5), Some(12));
        assert_eq!(decode_mark(&mark, &key, 6), None);
        assert_eq!(decode_mark(&mark, &FileKey([4; 32]), 5), None);
    }
}
