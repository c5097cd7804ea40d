//! For tests and the simulator: makes of a data directory what a program of format version 1 would
//! have left, but for the log, which is left as it is: of a log of version 1 there is the fixture.

use crate::checkpoint::{Check, CheckpointReader, Entry, Footer, Header, name_of};
use crate::disk::{Disk, DiskError};
use crate::superblock::SuperblockFile;

/// Rewrites superblock and checkpoints as format version 1 has them: each checkpoint as a whole.
/// False, and nothing is changed, when the directory does not hold all that its superblock names.
///
/// # Errors
/// As the disk's.
pub fn write_version_1(disk: &mut impl Disk) -> Result<bool, DiskError> {
    let Ok(mut file) = SuperblockFile::read(disk) else { return Ok(false) };
    let superblock = file.current().clone();
    let mut written = Vec::new();
    for name in &superblock.checkpoints {
        let Ok(mut reader) = CheckpointReader::open(disk.handle(), &name_of(name.slot)) else {
            return Ok(false);
        };
        let Some(bytes) = version_1_of(&mut reader) else { return Ok(false) };
        written.push((name.slot, bytes));
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
        let place = crate::Place { file: header.slot, offset: out.len() as u64, bytes };
        Entry { place, check: Check::Sum(key.sum(&content)) }.encode(&mut index);
        out.extend_from_slice(&content);
    }
    let (index_offset, index_bytes) = (out.len() as u64, index.len() as u64);
    let footer = Footer { index_offset, index_bytes, index_sum: key.sum(&index) };
    out.extend_from_slice(&index);
    out.extend_from_slice(&footer.encode(&key));
    Some(out)
}
