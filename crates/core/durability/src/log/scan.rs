//! Reading log files: everything in them that verifies, without judging what is missing. Changes
//! nothing.
//!
//! A file is looked through to its end, page by page, past anything that does not verify: whether
//! a bad group is rot or a torn tail depends on what comes after it (rule D4).

use super::file::{
    DIRECTORY, FILE_HEADER_BYTES, FileHeader, GROUPS_OFFSET, LogName, MARK_BYTES, MARK_PLACES,
    MARKS, MARKS_OFFSET, decode_mark, name_of,
};
use super::group::{
    BadRecords, GroupHeader, HEADER_BYTES, PAGE_BYTES, PlacedRecord, decode_records,
};
use crate::checksum::FileKey;
use crate::disk::{Disk, DiskError, ReadFrom};
use crate::superblock::Identity;
use bytes::Bytes;
use perdura_protocol::seeded;

/// Key of the checksums of use `use_number` in this directory.
pub(crate) fn key_of(identity: &Identity, use_number: u64) -> FileKey {
    let use_number = if seeded!(UseNotInChecksum) { 0 } else { use_number };
    FileKey::log(&identity.checksum_key, identity.cluster, identity.incarnation, use_number)
}

/// A group that verifies.
#[derive(Debug)]
pub(crate) struct FoundGroup {
    pub(crate) header: GroupHeader,
    pub(crate) records: Vec<PlacedRecord>,
}

/// What stands in one log file.
#[derive(Debug)]
pub(crate) struct FileScan {
    pub(crate) use_number: u64,
    pub(crate) size_bytes: u64,
    // Its header, if it is of this use.
    pub(crate) first_group: Option<u64>,
    // The highest flush mark in it, its seal if there is one; and in it or beside it.
    pub(crate) sealed: Option<u64>,
    pub(crate) mark: Option<u64>,
    pub(crate) groups: Vec<FoundGroup>,
    // Headers that verify over records that do not.
    pub(crate) damaged: Vec<GroupHeader>,
}

/// What stands in the directory of the log.
#[derive(Debug, Default)]
pub(crate) struct LogScan {
    // Ascending by use number.
    pub(crate) files: Vec<FileScan>,
    // Names of files that wait for their next use, with their sizes.
    pub(crate) free: Vec<(String, u64)>,
    // The highest use number that any name bears.
    pub(crate) last_use: u64,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{file} at offset {offset}: a record verifies and does not decode")]
    Undecodable { file: String, offset: u64 },
}

/// One thing met on the way through a file's groups.
pub(crate) enum Scanned {
    Group(FoundGroup),
    Damaged(GroupHeader),
    // A page that begins no group.
    Page(u64),
}

/// Walks through the groups of one file.
pub(crate) struct GroupWalk<'a, D> {
    disk: &'a mut D,
    name: &'a str,
    key: FileKey,
    use_number: u64,
    size_bytes: u64,
    offset: u64,
}

impl<'a, D: Disk> GroupWalk<'a, D> {
    pub(crate) fn new(
        disk: &'a mut D,
        name: &'a str,
        key: FileKey,
        use_number: u64,
    ) -> Result<GroupWalk<'a, D>, DiskError> {
        let size_bytes = disk.len(name)?;
        Ok(GroupWalk { disk, name, key, use_number, size_bytes, offset: GROUPS_OFFSET })
    }

    /// What stands at the next page or after the last group; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Scanned>, ScanError> {
        let offset = self.offset;
        if offset.saturating_add(HEADER_BYTES as u64) > self.size_bytes {
            return Ok(None);
        }
        self.offset += PAGE_BYTES;
        let mut bytes = [0; HEADER_BYTES];
        self.disk.read_at(self.name, offset, &mut bytes)?;
        let Some(header) = GroupHeader::decode(&bytes, &self.key, self.use_number, offset) else {
            return Ok(Some(Scanned::Page(offset)));
        };
        if header.end() > self.size_bytes {
            return Ok(Some(Scanned::Damaged(header)));
        }
        let mut payload = vec![0; header.payload_bytes as usize];
        self.disk.read_at(self.name, offset + HEADER_BYTES as u64, &mut payload)?;
        match decode_records(&self.key, &header, &Bytes::from(payload)) {
            Ok(records) => {
                self.offset = header.end();
                Ok(Some(Scanned::Group(FoundGroup { header, records })))
            }
            Err(BadRecords::Checksum) => Ok(Some(Scanned::Damaged(header))),
            Err(BadRecords::Undecodable(at)) => Err(ScanError::Undecodable {
                file: self.name.to_owned(),
                offset: offset + at as u64,
            }),
        }
    }
}

/// Reads `N` bytes; `None` when the file is shorter.
pub(crate) fn read_array<const N: usize>(
    disk: &mut impl Disk,
    name: &str,
    offset: u64,
) -> Result<Option<[u8; N]>, DiskError> {
    ReadFrom::Cache.read_array(disk, name, offset)
}

/// What stands in two places for marks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks([Option<[u8; MARK_BYTES]>; 2]);

impl Marks {
    /// Those in a file of the log.
    pub(crate) fn in_file(disk: &mut impl Disk, name: &str) -> Result<Marks, DiskError> {
        Marks::from(disk, name, MARKS_OFFSET)
    }

    /// Those beside the files of the log, in the file of this name if there is one.
    pub(crate) fn beside(disk: &mut impl Disk, marks: &str) -> Result<Marks, DiskError> {
        if disk.exists(marks)? { Marks::from(disk, marks, 0) } else { Ok(Marks::default()) }
    }

    fn from(disk: &mut impl Disk, name: &str, offset: u64) -> Result<Marks, DiskError> {
        let mut marks = Marks::default();
        for (mark, place) in marks.0.iter_mut().zip(MARK_PLACES) {
            *mark = read_array::<MARK_BYTES>(disk, name, offset + place)?;
        }
        Ok(marks)
    }

    /// The highest of a file's use.
    pub(crate) fn highest(&self, key: &FileKey, use_number: u64) -> Option<u64> {
        self.0.iter().flatten().filter_map(|mark| decode_mark(mark, key, use_number)).max()
    }
}

fn scan_file(
    disk: &mut impl Disk,
    identity: &Identity,
    beside: &Marks,
    use_number: u64,
) -> Result<FileScan, ScanError> {
    let name = name_of(use_number);
    let key = key_of(identity, use_number);
    let first_group = read_array::<FILE_HEADER_BYTES>(disk, &name, 0)?
        .and_then(|bytes| FileHeader::decode(&bytes))
        .filter(|header| header.key == key) // Another use has another key.
        .map(|header| header.first_group);
    let sealed = Marks::in_file(disk, &name)?.highest(&key, use_number);
    let mark = sealed.max(beside.highest(&key, use_number));
    let mut walk = GroupWalk::new(disk, &name, key, use_number)?;
    let size_bytes = walk.size_bytes;
    let (mut groups, mut damaged) = (Vec::new(), Vec::new());
    while let Some(met) = walk.next()? {
        match met {
            Scanned::Group(group) => groups.push(group),
            Scanned::Damaged(header) => damaged.push(header),
            Scanned::Page(_) => {}
        }
    }
    Ok(FileScan { use_number, size_bytes, first_group, sealed, mark, groups, damaged })
}

/// Reads the whole log.
pub(crate) fn scan_log(disk: &mut impl Disk, identity: &Identity) -> Result<LogScan, ScanError> {
    let mut scan = LogScan::default();
    let marks = Marks::beside(disk, MARKS)?;
    for name in disk.list(DIRECTORY)? {
        match LogName::parse(&name) {
            Some(LogName::Used(use_number)) => {
                scan.files.push(scan_file(disk, identity, &marks, use_number)?);
                scan.last_use = scan.last_use.max(use_number);
            }
            Some(LogName::Free(use_number)) => {
                let name = format!("{DIRECTORY}/{name}");
                let size_bytes = disk.len(&name)?;
                scan.free.push((name, size_bytes));
                scan.last_use = scan.last_use.max(use_number);
            }
            None => {}
        }
    }
    scan.files.sort_by_key(|file| file.use_number);
    Ok(scan)
}

#[cfg(test)]
mod tests;
