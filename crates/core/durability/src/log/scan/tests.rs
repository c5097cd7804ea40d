//! Files that are shorter than they were, that cannot be read, or are not what their name says.

use super::super::file::{MARKS_BYTES, encode_mark};
use super::super::frame::FrameFormat;
use super::super::group::GroupBuilder;
use super::super::group::tests::{USE, header, undecodable};
use super::*;
use crate::memory_disk::{Errors, MemoryDisk, Operation};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{ClusterId, Digest, Record, ReplicaId, View};

fn identity() -> Identity {
    Identity {
        cluster: ClusterId([1; 16]),
        replica: ReplicaId(2),
        incarnation: 0,
        parameters: Digest::of(b"parameters"),
        durability: Durability::Sync,
        checksum_key: [42; 32],
        must_recover: None,
    }
}

fn key() -> FileKey {
    key_of(&identity(), USE)
}

/// A group of two pages with number 1.
fn group() -> Vec<u8> {
    let mut builder = GroupBuilder::new(&key());
    builder.begin(&key(), FrameFormat::NEWEST);
    (0..300).for_each(|view| builder.push(&key(), &Record::View(View(view))));
    builder.finish(&key(), header(1)).to_vec()
}

/// The file of use [`USE`], of this size, with as much of `bytes` after its head as there is room
/// for.
fn disk(size: u64, bytes: &[u8]) -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    disk.create(&name_of(USE), size).unwrap();
    let room = usize::try_from(size.saturating_sub(GROUPS_OFFSET)).unwrap().min(bytes.len());
    if room > 0 {
        disk.write_at(&name_of(USE), GROUPS_OFFSET, &bytes[..room]).unwrap();
    }
    disk
}

fn scanned(disk: &mut MemoryDisk) -> FileScan {
    let mut scan = scan_log(disk, &identity()).unwrap();
    assert_eq!((scan.files.len(), scan.last_use), (1, USE));
    scan.files.remove(0)
}

#[test]
fn a_file_may_end_with_its_last_group_or_before_its_end() {
    let whole = group();
    let end = GROUPS_OFFSET + whole.len() as u64;
    let found = scanned(&mut disk(end, &whole));
    assert_eq!((found.groups.len(), found.damaged.len(), found.size_bytes), (1, 0, end));
    assert_eq!(found.groups[0].records.len(), 300);
    // The header alone still tells of the group.
    for size in [end - 1, GROUPS_OFFSET + 4096, GROUPS_OFFSET + 128] {
        let found = scanned(&mut disk(size, &whole));
        assert_eq!((found.groups.len(), found.damaged.len()), (0, 1), "{size}");
        assert_eq!(found.damaged[0].number, 1);
    }
    for size in [GROUPS_OFFSET + 127, GROUPS_OFFSET, 4096 + 10, 100, 0] {
        let found = scanned(&mut disk(size, &[]));
        assert_eq!((found.groups.len(), found.damaged.len()), (0, 0), "{size}");
        assert_eq!((found.first_group, found.mark, found.size_bytes), (None, None, size));
    }
}

#[test]
fn a_group_after_pages_of_rubbish_is_found() {
    let mut disk = disk(GROUPS_OFFSET + 8 * PAGE_BYTES, &[9; 5000]);
    let offset = GROUPS_OFFSET + 3 * PAGE_BYTES;
    let mut builder = GroupBuilder::new(&key());
    builder.begin(&key(), FrameFormat::NEWEST);
    builder.push(&key(), &Record::View(View(4)));
    let bytes = builder.finish(&key(), GroupHeader { offset, ..header(7) }).to_vec();
    disk.write_at(&name_of(USE), offset, &bytes).unwrap();
    let found = scanned(&mut disk);
    assert_eq!(found.groups.iter().map(|group| group.header.number).collect::<Vec<_>>(), [7]);
}

#[test]
fn a_record_of_a_later_program_is_named_with_its_place() {
    let bytes = undecodable(&key(), header(1));
    let Err(ScanError::Undecodable { file, offset }) =
        scan_log(&mut disk(GROUPS_OFFSET + PAGE_BYTES, &bytes), &identity())
    else {
        panic!("it was read, or taken for rot");
    };
    assert_eq!(file, name_of(USE));
    let decoded = |at| GroupHeader::decode(at, &key(), USE, GROUPS_OFFSET).unwrap();
    let payload = decoded(bytes[..HEADER_BYTES].try_into().unwrap()).payload_bytes;
    assert_eq!(offset, GROUPS_OFFSET + HEADER_BYTES as u64 + u64::from(payload) / 2);
}

/// What could not be read is not taken for what is not there.
#[test]
fn no_failed_read_passes_for_an_end() {
    let whole = group();
    for after in 0.. {
        let mut disk = disk(GROUPS_OFFSET + 4 * PAGE_BYTES, &whole);
        let operation = Operation::Read;
        disk.fail(Errors { operation, after, sticky: false, short: false });
        match scan_log(&mut disk, &identity()) {
            Err(ScanError::Disk(_)) => {}
            Err(error) => panic!("{error}"),
            Ok(scan) => {
                assert_eq!(scan.files[0].groups.len(), 1);
                assert!(after > 5, "header, two marks, pages");
                return;
            }
        }
    }
}

#[test]
fn head_and_marks_count_in_their_own_use_only() {
    let head = |use_number| FileHeader {
        version: crate::FORMAT_VERSION,
        incarnation: 0,
        cluster: identity().cluster,
        use_number,
        first_group: 12,
        key: key_of(&identity(), use_number),
    };
    for (use_number, first_group, mark) in [(USE, Some(12), Some(14)), (USE - 1, None, None)] {
        let mut disk = disk(GROUPS_OFFSET, &[]);
        disk.write_at(&name_of(USE), 0, &head(use_number).encode()).unwrap();
        disk.create(MARKS, MARKS_BYTES).unwrap();
        for flushed in [14, 13] {
            let (place, mark) = encode_mark(&key_of(&identity(), use_number), use_number, flushed);
            disk.write_at(&name_of(USE), MARKS_OFFSET + place, &mark).unwrap();
        }
        let found = scanned(&mut disk);
        assert_eq!((found.first_group, found.mark), (first_group, mark));
        for (flushed, highest) in [(13, 14), (15, 15), (18, 18)] {
            let (place, beside) =
                encode_mark(&key_of(&identity(), use_number), use_number, flushed);
            disk.write_at(MARKS, place, &beside).unwrap();
            assert_eq!(scanned(&mut disk).mark, mark.map(|_| highest), "the highest of both");
        }
    }
}

#[test]
fn names_are_in_order_and_the_last_use_is_the_highest_of_any() {
    for (used, free, last) in [([3, 11], 7, 11), ([3, 11], 12, 12)] {
        let mut disk = MemoryDisk::new();
        for number in used {
            disk.create(&name_of(number), GROUPS_OFFSET).unwrap();
        }
        let name = super::super::file::free_name_of(free);
        disk.create(&name, 77).unwrap();
        disk.create("log/notes", 5).unwrap();
        let scan = scan_log(&mut disk, &identity()).unwrap();
        assert_eq!(scan.files.iter().map(|file| file.use_number).collect::<Vec<_>>(), used);
        assert_eq!((scan.free, scan.last_use), (vec![(name, 77)], last));
    }
}
