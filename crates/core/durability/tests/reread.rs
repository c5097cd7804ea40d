//! What rots in the newest checkpoint while nothing is stored: found by reading it again, and not
//! linked to any more.

use crate::common::*;
use bytes::Bytes;
use perdura_durability::memory_disk::{Errors, Operation};
use perdura_durability::{
    Again, CheckpointError, Checkpoints, Disk, MemoryDisk, RecoveredState, older_format,
};
use perdura_protocol::Slot;
use perdura_protocol::configuration::Durability;

const PIECE_BYTES: usize = 900;

/// A hundred pieces of which one changes with each checkpoint.
fn state(slot: u64) -> Vec<Bytes> {
    let piece = |i: u64| {
        let mut random = Random(if i == 0 { 1000 + slot } else { i });
        (0..PIECE_BYTES).map(|_| random.word() as u8).collect()
    };
    (0..100).map(piece).collect()
}

fn name(slot: u64) -> String {
    format!("checkpoint/{slot:020}")
}

/// Reads all pieces again: which are damaged, and which were known to be.
fn pass(checkpoints: &mut Checkpoints<MemoryDisk>) -> (Vec<usize>, Vec<usize>) {
    let (mut damaged, mut known) = (Vec::new(), Vec::new());
    let pieces = checkpoints.begin_reread().unwrap();
    assert_eq!(pieces, 100);
    assert!(checkpoints.begin_reread().is_ok(), "as often as one likes");
    for index in 0..pieces {
        match checkpoints.reread(index) {
            Ok(Again::Sound(bytes)) => assert_eq!(bytes, PIECE_BYTES as u64),
            Ok(Again::Damaged) => known.push(index),
            Err(error) => {
                assert!(matches!(
                    error,
                    CheckpointError::Corrupt { .. } | CheckpointError::Disk(_)
                ));
                damaged.push(index);
            }
        }
    }
    (damaged, known)
}

#[test]
fn a_piece_that_rots_is_found_once_and_written_anew_with_the_next_checkpoint() {
    for rotten in [0, 1, 99] {
        let mut disk = formatted(Durability::Sync);
        let mut opened = reopen(disk.handle()).unwrap();
        for slot in 1..=3 {
            store_pieces(&mut opened.checkpoints, slot, &state(slot), 0).unwrap();
        }
        let place = opened.checkpoints.load(Slot(3)).unwrap().place(rotten).unwrap();
        assert_eq!(place.file, Slot(if rotten == 0 { 3 } else { 1 }));
        assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![]));
        disk.flip_bit(&name(place.file.0), place.offset + 7, 1).unwrap();
        assert_eq!(pass(&mut opened.checkpoints), (vec![rotten], vec![]));
        assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![rotten]));
        // One other piece has changed: that and the damaged one are all that is written.
        let mut same = state(3);
        same[50] = Bytes::from_static(b"other");
        let stored = store_pieces(&mut opened.checkpoints, 4, &same, 0).unwrap();
        assert_eq!((stored.linked_bytes, stored.damages), (98 * PIECE_BYTES as u64, 0));
        assert!(matches!(opened.checkpoints.reread(0), Err(CheckpointError::Unknown { .. })));
        drop(opened);
        disk.crash(|| 1);
        let found = reopen(disk.handle()).unwrap().state;
        let RecoveredState::Checkpoint(mut reader) = found else { panic!("lost") };
        assert_eq!(reader.pieces().map(Result::unwrap).collect::<Vec<_>>(), same);
    }
}

#[test]
fn an_index_that_rots_is_reported_once_and_the_next_checkpoint_is_written_as_a_whole() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    assert_eq!(opened.checkpoints.begin_reread().unwrap(), 0, "there is none");
    for slot in 1..=2 {
        store_pieces(&mut opened.checkpoints, slot, &state(slot), 0).unwrap();
    }
    assert_eq!(opened.checkpoints.begin_reread().unwrap(), 100);
    let end = disk.len(&name(2)).unwrap();
    disk.flip_bit(&name(2), end - 60, 1).unwrap();
    let lost = opened.checkpoints.begin_reread();
    assert!(matches!(lost, Err(CheckpointError::Corrupt { file, .. }) if file == name(2)));
    assert_eq!(opened.checkpoints.begin_reread().unwrap(), 0);
    assert!(matches!(opened.checkpoints.reread(0), Err(CheckpointError::Unknown { .. })));
    let stored = store_pieces(&mut opened.checkpoints, 3, &state(3), 0).unwrap();
    assert_eq!((stored.linked_files, stored.damages), (0, 0));
    assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![]));
}

/// A read that fails says as much as one that gives something else; the disk is still written to.
#[test]
fn what_cannot_be_read_is_damaged() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    store_pieces(&mut opened.checkpoints, 1, &state(1), 0).unwrap();
    assert_eq!(opened.checkpoints.begin_reread().unwrap(), 100);
    disk.fail(Errors { operation: Operation::Read, after: 2, sticky: true, short: false });
    let read = |checkpoints: &mut Checkpoints<MemoryDisk>, index| checkpoints.reread(index);
    let sound = Again::Sound(PIECE_BYTES as u64);
    assert_eq!(read(&mut opened.checkpoints, 0).unwrap(), sound);
    assert_eq!(read(&mut opened.checkpoints, 1).unwrap(), sound);
    assert!(matches!(read(&mut opened.checkpoints, 2), Err(CheckpointError::Disk(_))));
    disk.repair();
    assert_eq!(read(&mut opened.checkpoints, 2).unwrap(), Again::Damaged);
    assert!(matches!(read(&mut opened.checkpoints, 100), Err(CheckpointError::Unknown { .. })));
    let stored = store_pieces(&mut opened.checkpoints, 2, &state(2), 0).unwrap();
    assert_eq!(stored.linked_bytes, 98 * PIECE_BYTES as u64);
    assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![]));
}

/// The operating system's cache would say nothing of the device.
#[test]
fn pieces_and_what_names_them_come_from_the_device() {
    let disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    store_pieces(&mut opened.checkpoints, 1, &state(1), 0).unwrap();
    let before = disk.through_bytes();
    opened.checkpoints.begin_reread().unwrap();
    let index = disk.through_bytes() - before;
    assert!(index > 100 * 52, "{index} bytes");
    pass(&mut opened.checkpoints);
    assert_eq!(disk.through_bytes() - before, 3 * index + 100 * PIECE_BYTES as u64);
}

#[test]
fn pieces_in_a_file_that_is_gone_are_counted_once() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    for slot in 1..=2 {
        store_pieces(&mut opened.checkpoints, slot, &state(slot), 0).unwrap();
    }
    disk.remove(&name(1)).unwrap();
    assert_eq!(pass(&mut opened.checkpoints), ((1..100).collect(), vec![]));
    let stored = store_pieces(&mut opened.checkpoints, 3, &state(3), 0).unwrap();
    assert_eq!((stored.linked_files, stored.damages), (0, 0));
    assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![]));
}

/// Which has sums instead of digests, and links nothing.
#[test]
fn damage_in_a_checkpoint_of_format_version_1_is_reported_once() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    store_pieces(&mut opened.checkpoints, 1, &state(1), 0).unwrap();
    drop(opened);
    older_format::write_version_1(&mut disk).unwrap();
    let mut opened = reopen(disk.handle()).unwrap();
    let reader = opened.checkpoints.load(Slot(1)).unwrap();
    assert_eq!(reader.version(), 1);
    let place = reader.place(7).unwrap();
    disk.flip_bit(&name(1), place.offset, 1).unwrap();
    assert_eq!(pass(&mut opened.checkpoints), (vec![7], vec![]));
    assert_eq!(pass(&mut opened.checkpoints), (vec![], vec![7]));
}
