//! For tests and the simulator: makes of a data directory what a program of format version 1 would
//! have left.

use crate::checkpoint::{Check, CheckpointReader, Entry, Footer, Header, name_of};
use crate::disk::{Disk, DiskError, ReadFrom};
use crate::log::file::{FILE_HEADER_BYTES, FileHeader, GROUPS_OFFSET, name_of as log_name_of};
use crate::log::frame::FrameFormat;
use crate::log::group::{GroupBuilder, GroupHeader};
use crate::log::scan::{FileScan, ScanError, key_of, read_array, scan_log};
use crate::superblock::{Identity, SuperblockFile};

/// Rewrites superblock, checkpoints and log as format version 1 has them: each checkpoint as a whole,
/// each group of the log right behind the one before it. False, and nothing is changed, when the
/// directory does not hold all that its superblock names, or a group of its log does not verify.
///
/// # Errors
/// As the disk's.
pub fn write_version_1(disk: &mut impl Disk) -> Result<bool, DiskError> {
    let Ok(mut file) = SuperblockFile::read(disk) else { return Ok(false) };
    let superblock = file.current().clone();
    let mut written = Vec::new();
    for name in &superblock.checkpoints {
        let Ok(mut reader) =
            CheckpointReader::open(disk.handle(), &name_of(name.slot), ReadFrom::Cache)
        else {
            return Ok(false);
        };
        let Some(bytes) = version_1_of(&mut reader) else { return Ok(false) };
        written.push((name.slot, bytes));
    }
    let Some(log) = log_of_version_1(disk, &superblock.identity)? else { return Ok(false) };
    for (name, bytes) in &log {
        disk.write_at(name, GROUPS_OFFSET, &bytes.groups)?;
        if let Some(header) = &bytes.header {
            disk.write_at(name, 0, header)?;
        }
        disk.sync(name)?;
    }
    for (slot, bytes) in &written {
        let name = name_of(*slot);
        disk.create(&name, 0)?;
        disk.write_at(&name, 0, bytes)?;
        disk.sync(&name)?;
    }
    for link in &superblock.links {
        let named = superblock.checkpoints.iter().any(|name| name.slot == link.file);
        let name = name_of(link.file);
        if !named && disk.exists(&name)? {
            disk.remove(&name)?;
        }
    }
    disk.sync_directory(crate::checkpoint::DIRECTORY)?;
    file.downgrade(disk)?;
    Ok(true)
}

/// What version 1 has in a file of the log. The flush marks are the same.
struct LogBytes {
    header: Option<[u8; FILE_HEADER_BYTES]>,
    // With zeros up to where they ended before: frames are shorter.
    groups: Vec<u8>,
}

/// The files of the log, by name; `None` when a group does not verify.
fn log_of_version_1(
    disk: &mut impl Disk,
    identity: &Identity,
) -> Result<Option<Vec<(String, LogBytes)>>, DiskError> {
    let scan = match scan_log(disk, identity) {
        Ok(scan) => scan,
        Err(ScanError::Disk(error)) => return Err(error),
        Err(ScanError::Undecodable { .. }) => return Ok(None),
    };
    let mut files = Vec::new();
    for file in &scan.files {
        if !file.damaged.is_empty() {
            return Ok(None);
        }
        let name = log_name_of(file.use_number);
        let header = match file.first_group {
            Some(_) => read_array::<FILE_HEADER_BYTES>(disk, &name, 0)?,
            None => None,
        };
        let header = header.and_then(|bytes| FileHeader::decode(&bytes));
        let header = header.map(|header| FileHeader { version: 1, ..header }.encode());
        files.push((name, LogBytes { header, groups: groups_of_version_1(identity, file) }));
    }
    Ok(Some(files))
}

fn groups_of_version_1(identity: &Identity, file: &FileScan) -> Vec<u8> {
    let key = key_of(identity, file.use_number);
    let mut builder = GroupBuilder::new(&key);
    let (mut groups, mut end) = (Vec::new(), GROUPS_OFFSET);
    for group in &file.groups {
        builder.begin(&key, FrameFormat::One);
        for placed in &group.records {
            builder.push(&key, &placed.record);
        }
        let offset = GROUPS_OFFSET + groups.len() as u64;
        groups.extend_from_slice(builder.finish(&key, GroupHeader { offset, ..group.header }));
        end = group.header.end();
    }
    groups.resize((end - GROUPS_OFFSET) as usize, 0);
    groups
}

/// The file that version 1 would have written; `None` when a piece does not verify.
fn version_1_of<D: Disk>(reader: &mut CheckpointReader<D>) -> Option<Vec<u8>> {
    let header = Header {
        version: 1,
        cluster: reader.cluster(),
        slot: reader.slot(),
        digest: reader.digest(),
        manifest_bytes: u32::try_from(reader.manifest().len()).ok()?,
        pieces: u32::try_from(reader.piece_count()).ok()?,
    };
    let (head, key) = header.encode();
    let mut out = head.to_vec();
    out.extend_from_slice(&key.sum(reader.manifest()));
    out.extend_from_slice(reader.manifest());
    let mut index = Vec::new();
    for number in 0..reader.piece_count() {
        let content = reader.piece(number).ok()?;
        let bytes = u32::try_from(content.len()).ok()?;
        let place = crate::PieceLocation { file: header.slot, offset: out.len() as u64, bytes };
        Entry { place, check: Check::Sum(key.sum(&content)) }.encode(&mut index);
        out.extend_from_slice(&content);
    }
    let (index_offset, index_bytes) = (out.len() as u64, index.len() as u64);
    let footer = Footer { index_offset, index_bytes, index_sum: key.sum(&index) };
    out.extend_from_slice(&index);
    out.extend_from_slice(&footer.encode(&key));
    Some(out)
}
