//! For the fuzz targets (`crates/proof/fuzzing`): makes damaged files verify again, so that what reads
//! behind the checksums meets every value that could stand there.

use crate::checkpoint::{Check, Entry, entry_bytes};
use crate::checksum::{FileKey, SUM_BYTES, u32_at, u64_at};
use crate::disk::{Disk, DiskError};
use crate::log::file::{
    FILE_HEADER_BYTES, GROUPS_OFFSET, LogName, MARK_BYTES, MARK_PLACES, MARKS, MARKS_OFFSET,
};
use crate::log::frame::FrameFormat;
use crate::log::group::{HEADER_BYTES, PAGE_BYTES};
use crate::log::scan::key_of;
use crate::superblock::{Identity, SUPERBLOCK_NAME};
use perdura_protocol::{Digest, Slot};

/// Gives the superblock, every log file and every checkpoint of a directory the checksums of what
/// they hold. Magic numbers and places are left as they are.
///
/// # Errors
/// As the disk's.
pub fn reseal(disk: &mut impl Disk, identity: &Identity) -> Result<(), DiskError> {
    change(disk, SUPERBLOCK_NAME, |bytes| {
        bytes.chunks_exact_mut(PAGE_BYTES as usize).for_each(seal_superblock);
    })?;
    for name in disk.list(crate::log::file::DIRECTORY)? {
        if let Some(LogName::Used(use_number)) = LogName::parse(&name) {
            let key = key_of(identity, use_number);
            let name = crate::log::file::name_of(use_number);
            change(disk, &name, |bytes| seal_log(bytes, &key, use_number))?;
        }
    }
    change(disk, MARKS, |bytes| {
        for_each_mark(bytes, |mark| {
            let key = key_of(identity, u64_at(mark, 24));
            seal(mark, &key);
        });
    })?;
    for name in disk.list(crate::checkpoint::DIRECTORY)? {
        let name = format!("{}/{name}", crate::checkpoint::DIRECTORY);
        change(disk, &name, |bytes| {
            seal_checkpoint(bytes);
        })?;
    }
    Ok(())
}

fn change(disk: &mut impl Disk, name: &str, seal: impl FnOnce(&mut [u8])) -> Result<(), DiskError> {
    if !disk.exists(name)? {
        return Ok(());
    }
    let mut bytes = vec![0; disk.len(name)? as usize];
    disk.read_at(name, 0, &mut bytes)?;
    seal(&mut bytes);
    disk.write_at(name, 0, &bytes)?;
    disk.sync(name)
}

/// Of a copy of the superblock: magic 8, checksum 32 of the rest.
fn seal_superblock(copy: &mut [u8]) {
    let sum = *blake3::hash(&copy[40..]).as_bytes();
    copy[8..40].copy_from_slice(&sum);
}

/// Header, marks and groups: magic 8, checksum 16 of the rest.
fn seal(bytes: &mut [u8], key: &FileKey) {
    let sum = key.sum(&bytes[8 + SUM_BYTES..]);
    bytes[8..8 + SUM_BYTES].copy_from_slice(&sum);
}

fn for_each_mark(bytes: &mut [u8], mut seal: impl FnMut(&mut [u8])) {
    for place in MARK_PLACES.map(|place| place as usize) {
        if let Some(mark) = bytes.get_mut(place..place + MARK_BYTES) {
            seal(mark);
        }
    }
}

fn seal_log(bytes: &mut [u8], key: &FileKey, use_number: u64) {
    if let Some(header) = bytes.get_mut(..FILE_HEADER_BYTES) {
        header[48..56].copy_from_slice(&use_number.to_le_bytes());
        header[64..96].copy_from_slice(&key.0);
        seal(header, key);
    }
    if let Some(marks) = bytes.get_mut(MARKS_OFFSET as usize..) {
        for_each_mark(marks, |mark| {
            mark[24..32].copy_from_slice(&use_number.to_le_bytes());
            seal(mark, key);
        });
    }
    for offset in (GROUPS_OFFSET as usize..bytes.len()).step_by(PAGE_BYTES as usize) {
        let group = &mut bytes[offset..];
        let format = group.get(..8).and_then(FrameFormat::of);
        if let Some(format) = format.filter(|_| group.len() >= HEADER_BYTES) {
            seal_group(group, format, key, use_number, offset as u64);
        }
    }
}

fn seal_group(group: &mut [u8], format: FrameFormat, key: &FileKey, use_number: u64, offset: u64) {
    let end = group.len().min(HEADER_BYTES.saturating_add(u32_at(group, 64) as usize));
    let mut sums = key.running();
    let mut at = HEADER_BYTES;
    while at + format.head_bytes() <= end {
        let body = at + format.head_bytes();
        let next = body.saturating_add(u32_at(group, at) as usize);
        if next > end {
            break;
        }
        format.reseal(key, &mut group[at..next]);
        sums.update(&group[at..body]);
        at = next;
    }
    group[24..40].copy_from_slice(&sums.finish());
    group[40..48].copy_from_slice(&use_number.to_le_bytes());
    group[48..56].copy_from_slice(&offset.to_le_bytes());
    seal(&mut group[..HEADER_BYTES], key);
}

/// As far as its parts are where header and footer say; `None` behind that. What it links to is
/// left as it is.
fn seal_checkpoint(bytes: &mut [u8]) -> Option<()> {
    let key = FileKey::checkpoint(bytes.get(24..96)?);
    seal(bytes.get_mut(..128)?, &key);
    let manifest = 128 + SUM_BYTES..(128 + SUM_BYTES).checked_add(u32_at(bytes, 84) as usize)?;
    let sum = key.sum(bytes.get(manifest)?);
    bytes[128..128 + SUM_BYTES].copy_from_slice(&sum);
    let footer = bytes.len().checked_sub(56)?;
    let start = usize::try_from(u64_at(&bytes[footer..], 24)).ok()?;
    let index = start..start.checked_add(usize::try_from(u64_at(&bytes[footer..], 32)).ok()?)?;
    bytes.get(index.clone())?;
    let (version, slot) = (u32_at(bytes, 24), Slot(u64_at(bytes, 44)));
    let step = entry_bytes(version);
    for at in index.clone().step_by(step).filter(|at| at + step <= index.end) {
        let mut entry = Entry::decode(version, slot, &bytes[at..at + step]);
        let offset = usize::try_from(entry.place.offset).ok()?;
        let end = offset.checked_add(entry.place.bytes as usize)?;
        if entry.place.file == slot {
            let content = bytes.get(offset..end)?;
            entry.check = match entry.check {
                Check::Sum(_) => Check::Sum(key.sum(content)),
                Check::Digest(_) => Check::Digest(Digest::of(content)),
            };
        }
        let mut encoded = Vec::with_capacity(step);
        entry.encode(&mut encoded);
        bytes[at..at + step].copy_from_slice(&encoded);
    }
    let sum = key.sum(&bytes[index]);
    bytes[footer + 40..].copy_from_slice(&sum);
    seal(&mut bytes[footer..], &key);
    Some(())
}
