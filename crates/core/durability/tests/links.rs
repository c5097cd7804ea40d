//! Checkpoints that link to what did not change: what is written, what is kept, and what it costs
//! when it rots.

use crate::common::*;
use bytes::Bytes;
use perdura_durability::inspect::{CheckpointItem, PieceVerdict, inspect_checkpoint};
use perdura_durability::memory_disk::{Errors, Operation};
use perdura_durability::{
    CheckpointError, CheckpointReader, Checkpoints, Disk, FORMAT_VERSION, FileDisk, MemoryDisk,
    NewState, Opened, PieceName, RecoveredState, StorageOptions, format, older_format, open,
};
use perdura_protocol::Slot;
use perdura_protocol::configuration::Durability;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

fn content(number: u64, bytes: usize) -> Bytes {
    let mut random = Random(number);
    (0..bytes).map(|_| random.word() as u8).collect()
}

fn name(slot: u64) -> String {
    format!("checkpoint/{slot:020}")
}

fn opened_at(disk: &MemoryDisk) -> Opened<MemoryDisk> {
    reopen(disk.handle()).unwrap()
}

fn all<D: Disk>(reader: &mut CheckpointReader<D>) -> Vec<Bytes> {
    reader.pieces().map(Result::unwrap).collect()
}

/// What stands in the directory is what the superblock names, and each checkpoint verifies.
fn check_directory(disk: &mut MemoryDisk, opened: &Opened<MemoryDisk>) {
    let superblock = opened.checkpoints.superblock();
    let mut named: BTreeSet<String> = BTreeSet::new();
    for checkpoint in &superblock.checkpoints {
        let mut reader = opened.checkpoints.load(checkpoint.slot).unwrap();
        reader.verify().unwrap();
        let slots = (0..reader.piece_count()).map(|index| reader.place(index).unwrap().file);
        let needed: BTreeSet<Slot> = slots.filter(|slot| *slot != checkpoint.slot).collect();
        assert!(needed.len() <= 16);
        let links = superblock.links.iter().filter(|link| link.checkpoint == checkpoint.slot);
        assert_eq!(links.map(|link| link.file).collect::<BTreeSet<Slot>>(), needed);
        named.extend(needed.iter().map(|slot| format!("{:020}", slot.0)));
        named.insert(format!("{:020}", checkpoint.slot.0));
    }
    let mut found = disk.list("checkpoint").unwrap();
    found.retain(|name| name != "new");
    assert_eq!(found, named.into_iter().collect::<Vec<_>>());
    // And one that the next is written over, which is hardly larger than the last.
    if disk.exists(NEXT).unwrap() {
        let newest_bytes = disk.len(&name(superblock.checkpoints[0].slot.0)).unwrap();
        assert!(disk.len(NEXT).unwrap() <= newest_bytes + newest_bytes / 64);
    }
}

const NEXT: &str = "checkpoint/new";

/// A state of 1,000 segments of 16 KiB, of which ten change: the whole state was written with each
/// checkpoint by format version 1.
#[test]
fn clean_pieces_are_not_written_again() {
    const SEGMENT_BYTES: usize = 16 * 1024;
    let disk = formatted(Durability::Sync);
    let mut opened = open(disk.handle(), &expectation(), &StorageOptions::default()).unwrap();
    let mut state: Vec<Bytes> = (0..1000).map(|i| content(i, SEGMENT_BYTES)).collect();
    let mut written = Vec::new();
    for slot in 1..=2 {
        let before = disk.written_bytes();
        let stored = store_pieces(&mut opened.checkpoints, slot, &state, 0).unwrap();
        // Two pairs of copies of the superblock are the rest.
        assert_eq!(disk.written_bytes() - before, stored.written_bytes + 4 * 4096);
        written.push(stored.written_bytes);
        for changed in (0..1000).step_by(100) {
            state[changed] = content(10_000 * slot + changed as u64, SEGMENT_BYTES);
        }
    }
    println!("{} bytes, then {}", written[0], written[1]);
    let index_bytes = 52 * 1000 + 300;
    assert!(written[0] >= 1000 * SEGMENT_BYTES as u64);
    assert!(written[1] <= 10 * SEGMENT_BYTES as u64 + index_bytes);
}

#[test]
fn segments_that_moved_are_clean() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    let mut state: Vec<Bytes> = (0..50).map(|i| content(i, 1000)).collect();
    store_pieces(&mut opened.checkpoints, 1, &state, 0).unwrap();
    state.insert(0, content(100, 1000));
    state.remove(20);
    state.swap(30, 40);
    let stored = store_pieces(&mut opened.checkpoints, 2, &state, 0).unwrap();
    assert_eq!((stored.linked_bytes, stored.linked_files), (49_000, 1));
    assert!(stored.written_bytes < 1000 + 50 * 52 + 300);
    assert_eq!(all(&mut opened.checkpoints.load(Slot(2)).unwrap()), state);
    check_directory(&mut disk, &opened);
}

#[test]
fn a_small_state_is_written_as_a_whole() {
    let disk = formatted(Durability::Sync);
    let mut opened = open(disk.handle(), &expectation(), &StorageOptions::default()).unwrap();
    let state = [content(1, 100_000)];
    for slot in 1..4 {
        let stored = store_pieces(&mut opened.checkpoints, slot, &state, 0).unwrap();
        assert_eq!(stored.linked_files, 0);
    }
}

/// Random changes over many checkpoints, restarts and checkpoints that are kept for longer.
#[test]
fn garbage_stays_bounded_and_nothing_goes_that_is_needed() {
    for (seed, change_percent) in [(1, 1), (2, 10), (3, 60)] {
        let mut random = Random(seed);
        let mut disk = formatted(Durability::Sync);
        let mut opened = opened_at(&disk);
        let mut state: Vec<Bytes> = (0..400).map(|i| content(i, 2000)).collect();
        let (mut changed_bytes, mut written_bytes, mut number) = (0, 0, 1000);
        for slot in 1..=150 {
            let keep = opened.checkpoints.list().last().map_or(0, |name| name.slot.0);
            let keep = if random.below(4) > 0 { keep } else { slot - 1 };
            let stored = store_pieces(&mut opened.checkpoints, slot, &state, keep).unwrap();
            let frame = 128 + 16 + manifest(slot).len() + 52 * state.len() + 56;
            let whole = (state.iter().map(Bytes::len).sum::<usize>() + frame) as u64;
            let files: BTreeSet<u64> = {
                let reader = opened.checkpoints.load(Slot(slot)).unwrap();
                (0..state.len()).map(|index| reader.place(index).unwrap().file.0).collect()
            };
            let takes: u64 = files.iter().map(|file| disk.len(&name(*file)).unwrap()).sum();
            assert!(takes <= 2 * whole, "slot {slot}: {takes} bytes for {whole}");
            assert!(stored.written_bytes <= whole);
            check_directory(&mut disk, &opened);
            if slot > 1 {
                written_bytes += stored.written_bytes - frame as u64;
            }
            for _ in 0..4 * change_percent {
                number += 1;
                let fresh = content(number, random.below(4000) as usize);
                changed_bytes += fresh.len() as u64;
                let at = random.below(state.len() as u64) as usize;
                match random.below(8) {
                    0 => state.insert(at, fresh),
                    1 if state.len() > 300 => {
                        state.remove(at);
                    }
                    _ => state[at] = fresh,
                }
            }
            if random.below(10) == 0 {
                drop(opened);
                disk.restart_process();
                opened = opened_at(&disk);
                check_directory(&mut disk, &opened);
            }
        }
        println!("{change_percent}%: {written_bytes} bytes for {changed_bytes} that changed");
        // Two for garbage, one for files that are put together.
        assert!(written_bytes <= 3 * changed_bytes, "{written_bytes} for {changed_bytes}");
    }
}

/// The disk fails at each operation of storing a checkpoint that links, and one that moves pieces.
#[test]
fn a_crash_anywhere_in_storing_leaves_one_of_the_two_states() {
    let state = |slot: u64| -> Vec<Bytes> {
        (0..20).map(|i| content(if i % 20 < slot % 40 { 100 * slot + i } else { i }, 900)).collect()
    };
    for seed in 0..8 {
        for cut in 0.. {
            let mut random = Random(seed * 1000 + cut);
            let mut disk = formatted(Durability::Sync);
            let mut opened = opened_at(&disk);
            for slot in 1..=2 + seed {
                store_pieces(&mut opened.checkpoints, slot, &state(slot), 1).unwrap();
            }
            let slot = 3 + seed;
            disk.fail_after(cut);
            let stored = store_pieces(&mut opened.checkpoints, slot, &state(slot), 0);
            let done = stored.is_ok();
            drop(opened);
            disk.crash(|| random.word());
            let mut opened = opened_at(&disk);
            let RecoveredState::Checkpoint(reader) = &mut opened.state else { panic!("lost") };
            let found = reader.slot().0;
            assert!(found == slot || (found == slot - 1 && !done));
            assert_eq!(all(reader), state(found));
            check_directory(&mut disk, &opened);
            if found < slot {
                store_pieces(&mut opened.checkpoints, slot, &state(slot), 0).unwrap();
                check_directory(&mut disk, &opened);
            }
            if done {
                assert!(cut > 8);
                break;
            }
        }
    }
}

/// Three checkpoints; piece 3 stands in the first one's file, piece 4 in its own. The log goes
/// back to the first.
fn three_checkpoints() -> MemoryDisk {
    let disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    for slot in 1..40 {
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
    }
    for slot in [10, 20, 30] {
        store_pieces(&mut opened.checkpoints, slot, &pieces(slot), 0).unwrap();
    }
    disk
}

#[test]
fn a_rotten_piece_is_lost_to_all_that_link_to_it_and_to_no_other() {
    let mut disk = three_checkpoints();
    let place = |index| opened_at(&disk).checkpoints.load(Slot(30)).unwrap().place(index).unwrap();
    let (linked, own) = (place(3), place(4));
    assert_eq!((linked.file, own.file), (Slot(10), Slot(30)));
    let mut copy = disk.copy();
    copy.flip_bit(&name(30), own.offset, 1).unwrap();
    let state = opened_at(&copy).state;
    assert!(matches!(state, RecoveredState::Previous { reader, .. } if reader.slot() == Slot(20)));

    disk.flip_bit(&name(10), linked.offset, 1).unwrap();
    let mut opened = opened_at(&disk);
    assert!(matches!(opened.state, RecoveredState::Lost(lost) if lost.slot == Slot(30)));
    // What comes from peers is written as a whole, at the same slot or later, and heals it.
    let stored = store_pieces(&mut opened.checkpoints, 30, &pieces(30), 0).unwrap();
    assert_eq!(stored.linked_files, 0);
    store(&mut opened, 35);
    store(&mut opened, 40);
    check_directory(&mut disk, &opened);
    assert!(!disk.exists(&name(10)).unwrap());
    let RecoveredState::Checkpoint(mut reader) = opened_at(&disk).state else { panic!("lost") };
    assert_eq!(all(&mut reader), pieces(40));
}

#[test]
fn a_piece_of_another_time_or_place_is_noticed() {
    let disk = three_checkpoints();
    let reader = opened_at(&disk).checkpoints.load(Slot(30)).unwrap();
    let places = [3, 1].map(|index| reader.place(index).unwrap());
    assert!(places.iter().all(|place| place.file == Slot(10)));
    // Another piece of the same file, intact, stands where piece 3 was.
    let mut swapped = disk.copy();
    let bytes = read(&mut swapped, &name(10), places[1].offset, places[1].bytes as usize);
    swapped.write_at(&name(10), places[0].offset, &bytes).unwrap();
    assert!(matches!(opened_at(&swapped).state, RecoveredState::Lost(_)));
    // Another file has its name.
    let mut renamed = disk.copy();
    renamed.rename(&name(20), &name(10)).unwrap();
    assert!(matches!(opened_at(&renamed).state, RecoveredState::Lost(_)));
}

#[test]
fn a_rotten_index_is_not_linked_to() {
    let mut disk = three_checkpoints();
    let mut opened = opened_at(&disk);
    let end = disk.len(&name(30)).unwrap();
    disk.flip_bit(&name(30), end - 60, 1).unwrap();
    let stored = store_pieces(&mut opened.checkpoints, 40, &pieces(40), 0).unwrap();
    assert_eq!((stored.linked_files, stored.damages), (0, 1));
    assert!(stored.damage.unwrap().contains(&name(30)));
    drop(opened);
    assert!(matches!(opened_at(&disk).state, RecoveredState::Checkpoint(_)));
}

/// A hundred pieces of which one changes with each checkpoint; the others are all in the first file.
fn hundred_pieces(slot: u64) -> Vec<Bytes> {
    (0..100).map(|i| content(if i == 0 { 1000 + slot } else { i }, 900)).collect()
}

/// Wherever a linked piece rots, or cannot be read, it is found within two passes, written anew, and
/// the state is there after a restart; nothing else is written again.
#[test]
fn a_linked_piece_that_rots_under_a_running_replica_is_found_and_written_anew() {
    for rotten in [1, 50, 99] {
        let mut disk = formatted(Durability::Sync);
        let mut opened = opened_at(&disk);
        for slot in 1..=5 {
            let stored = store_pieces(&mut opened.checkpoints, slot, &hundred_pieces(slot), 0);
            assert_eq!(stored.unwrap().damages, 0);
        }
        let place = opened.checkpoints.load(Slot(5)).unwrap().place(rotten).unwrap();
        assert_eq!(place.file, Slot(1));
        disk.flip_bit(&name(1), place.offset + 7, 1).unwrap();
        let mut found = None;
        for slot in 6..=5 + 64 {
            let state = hundred_pieces(slot);
            let stored = store_pieces(&mut opened.checkpoints, slot, &state, 0).unwrap();
            let linked = 99 * 900;
            assert!((1..=linked / 32 + 900).contains(&stored.verified_bytes));
            if stored.damages > 0 {
                assert_eq!((stored.damages, found), (1, None));
                assert!(stored.damage.unwrap().contains(&format!("offset {}", place.offset)));
                assert_eq!(stored.linked_bytes, linked - 900);
                found = Some(slot);
            }
        }
        assert!(found.is_some());
        drop(opened);
        disk.crash(|| 1);
        let RecoveredState::Checkpoint(mut reader) = opened_at(&disk).state else { panic!("lost") };
        assert_eq!(all(&mut reader), hundred_pieces(69));
    }
}

#[test]
fn a_linked_piece_that_cannot_be_read_is_written_anew() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    store_pieces(&mut opened.checkpoints, 1, &hundred_pieces(1), 0).unwrap();
    // The header, the footer, the index and the manifest of the newest are read before.
    let errors = Errors { operation: Operation::Read, after: 5, sticky: true, short: false };
    disk.fail(errors);
    let stored = store_pieces(&mut opened.checkpoints, 2, &hundred_pieces(2), 0).unwrap();
    assert!(stored.damages > 1 && stored.damage.unwrap().contains("injected I/O error"));
    assert_eq!(stored.linked_bytes + 900 * stored.damages, 99 * 900);
    disk.fail(Errors { after: 0, ..errors });
    let stored = store_pieces(&mut opened.checkpoints, 3, &hundred_pieces(3), 0).unwrap();
    assert_eq!((stored.linked_files, stored.damages), (0, 1));
    disk.repair();
    let mut reader = opened.checkpoints.load(Slot(3)).unwrap();
    assert_eq!(all(&mut reader), hundred_pieces(3));
    check_directory(&mut disk, &opened);
}

#[test]
fn pieces_in_a_file_that_is_gone_are_written_anew() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    for slot in 1..=3 {
        store_pieces(&mut opened.checkpoints, slot, &hundred_pieces(slot), 0).unwrap();
    }
    disk.remove(&name(1)).unwrap();
    let stored = store_pieces(&mut opened.checkpoints, 4, &hundred_pieces(4), 0).unwrap();
    assert_eq!((stored.damages, stored.linked_files), (99, 0));
    let mut reader = opened.checkpoints.load(Slot(4)).unwrap();
    assert_eq!(all(&mut reader), hundred_pieces(4));
}

/// A state of one piece, whose old files stay.
fn store_alone(checkpoints: &mut Checkpoints<MemoryDisk>, slot: u64, bytes: usize) -> u64 {
    let piece = content(slot, bytes);
    let state = NewState {
        slot: Slot(slot),
        digest: state_digest(slot),
        manifest: &manifest(slot),
        pieces: &[PieceName::of(&piece).unwrap()],
        content: &mut |_| piece.clone(),
        pace: &mut |_| ControlFlow::Continue(()),
    };
    checkpoints.store(state, Slot(0)).unwrap().written_bytes
}

/// In steps of the 2,048 bytes that are flushed at once; when there is no time, later. The largest stays, to
/// be written over.
#[test]
fn old_checkpoints_go_in_steps_and_another_time_when_there_is_none() {
    for breaks_after in [1, 7, 47, usize::MAX] {
        let mut disk = formatted(Durability::Sync);
        let mut opened = opened_at(&disk);
        let sizes = [100_000, 110_000, 120_000, 110_000];
        let written: Vec<u64> = (1..)
            .zip(sizes)
            .map(|(slot, size)| store_alone(&mut opened.checkpoints, slot, size))
            .collect();
        let (old, mut seen, mut left) = (name(1), disk.handle(), Vec::new());
        let steps = opened.checkpoints.remove_old(&mut || {
            left.push(seen.len(&old).unwrap_or(0));
            if left.len() == breaks_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let all = (written[0] - 1) / 2048;
        let expected: Vec<u64> =
            (1..=all).rev().map(|step| step * 2048).take(breaks_after).collect();
        assert_eq!((steps.unwrap(), &left), (expected.len(), &expected));
        assert_eq!(disk.exists(&old).unwrap(), breaks_after <= expected.len());
        assert_eq!(disk.exists(&name(2)).unwrap(), breaks_after <= expected.len());
        let mut copy = disk.copy();
        opened.checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
        check_directory(&mut disk, &opened);
        assert_eq!(disk.len(NEXT).unwrap(), written[1]);
        // Or when it is opened; then that one, too.
        let opened = opened_at(&copy);
        check_directory(&mut copy, &opened);
        assert!(!copy.exists(NEXT).unwrap());
    }
}

/// Of a file with a whole state, no more is kept than the smaller of the last two takes.
#[test]
fn what_is_kept_to_be_written_over_is_as_large_as_the_smaller_of_two() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    let whole = store_alone(&mut opened.checkpoints, 1, 100_000);
    for (slot, bytes) in [(2, 30_000), (3, 40_000)] {
        store_alone(&mut opened.checkpoints, slot, bytes);
    }
    opened.checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
    let usual = disk.len(&name(2)).unwrap();
    assert!(usual < whole && usual < disk.len(&name(3)).unwrap());
    assert_eq!(disk.len(NEXT).unwrap(), usual);
}

/// The next state is smaller than what it is written over, as large, larger; and the machine crashes
/// at any point of that.
#[test]
fn a_state_written_over_an_old_one_is_all_there_or_not_at_all() {
    for (number, bytes) in [0, 3_000, 29_999, 30_000, 30_001, 60_000].into_iter().enumerate() {
        for cut in 0.. {
            let mut random = Random(number as u64 * 1000 + cut);
            let mut disk = formatted(Durability::Sync);
            let mut opened = opened_at(&disk);
            for slot in 1..=3 {
                store_alone(&mut opened.checkpoints, slot, 30_000);
            }
            opened.checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
            assert!(disk.exists(NEXT).unwrap());
            disk.fail_after(cut);
            let piece = content(4, bytes);
            let stored = store_pieces(&mut opened.checkpoints, 4, &[piece], 0);
            let done = stored.is_ok();
            assert!(stored.is_ok_and(|stored| stored.written_over) || !done);
            drop(opened);
            disk.crash(|| random.word());
            let mut opened = opened_at(&disk);
            let RecoveredState::Checkpoint(reader) = &mut opened.state else { panic!("lost") };
            let (found, read) = (reader.slot().0, all(reader));
            assert!(found == 4 || (found == 3 && !done));
            assert_eq!(read, [content(found, if found == 4 { bytes } else { 30_000 })]);
            check_directory(&mut disk, &opened);
            if done {
                assert!(cut > 8);
                break;
            }
        }
    }
}

/// The same on a real disk, past the cache.
#[test]
fn a_file_on_disk_is_written_over() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("data");
    format(&mut FileDisk::create_directory(&path).unwrap(), &identity(Durability::Sync)).unwrap();
    let mut opened = reopen(FileDisk::open(&path).unwrap()).unwrap();
    let inode = |name: &str| std::fs::metadata(path.join(name)).unwrap().ino();
    let sizes = [3_000_000, 3_000_000, 2_000_000, 2_500_000, 3_500_000, 100];
    let mut kept = None;
    for (slot, bytes) in (1..).zip(sizes) {
        let piece = content(slot, bytes);
        let stored =
            store_pieces(&mut opened.checkpoints, slot, std::slice::from_ref(&piece), 0).unwrap();
        assert_eq!(stored.written_over, kept.is_some());
        if let Some(kept) = kept {
            assert_eq!(inode(&name(slot)), kept);
        }
        let mut reader = opened.checkpoints.load(Slot(slot)).unwrap();
        assert_eq!(all(&mut reader), [piece]);
        kept = (slot > 2).then(|| inode(NEXT));
    }
    drop(opened);
    let opened = reopen(FileDisk::open(&path).unwrap()).unwrap();
    let RecoveredState::Checkpoint(mut reader) = opened.state else { panic!("lost") };
    assert_eq!(all(&mut reader), [content(6, 100)]);
    assert!(!path.join(NEXT).exists());
}

/// A file that hardly changes its size gives no blocks back and needs no new ones; what is between pieces
/// and index means nothing.
#[test]
fn a_file_that_is_hardly_too_large_stays_so() {
    const PAGE: u64 = 4096;
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    let mut store = |slot, bytes| {
        let written = store_alone(&mut opened.checkpoints, slot, bytes);
        opened.checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
        assert_eq!(disk.len(&name(slot)).unwrap(), written);
        written
    };
    let needed = |slot, bytes| {
        let mut opened = opened_at(&formatted(Durability::Sync));
        let piece = [content(slot, bytes)];
        let stored = store_pieces(&mut opened.checkpoints, slot, &piece, 0).unwrap();
        stored.written_bytes
    };
    let bytes = 3_000_000;
    let usual = store(1, bytes);
    assert_eq!(usual % PAGE, 0);
    assert_eq!((store(2, bytes), store(3, bytes)), (usual, usual));
    // Over that of the first, and so on.
    assert_eq!(store(4, bytes - 1000), usual);
    let smaller = store(5, bytes - 10_000);
    assert_eq!((smaller, smaller < usual), (needed(5, bytes - 10_000), true));
    let larger = store(6, bytes + 10_000);
    assert_eq!((larger, larger > usual), (needed(6, bytes + 10_000), true));
    for slot in [5, 6] {
        let mut reader = opened.checkpoints.load(Slot(slot)).unwrap();
        let unused = reader.unused();
        assert!(unused.end - unused.start < PAGE);
        reader.verify().unwrap();
    }
    let written = store_alone(&mut opened.checkpoints, 7, bytes - 1000);
    let unused = opened.checkpoints.load(Slot(7)).unwrap().unused();
    assert!(written == usual && unused.end - unused.start >= 1000 - 52);
    disk.flip_bit(&name(7), unused.start + 500, 3).unwrap();
    let opened = opened_at(&disk);
    check_directory(&mut disk, &opened);
}

#[test]
fn a_stopped_checkpoint_was_never_begun() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    store(&mut opened, 1);
    let big: Vec<Bytes> = (0..3).map(|i| content(i, 1_500_000)).collect();
    let names: Vec<PieceName> = big.iter().map(|piece| PieceName::of(piece).unwrap()).collect();
    let mut paces = Vec::new();
    let mut store_until = |writes: usize, opened: &mut Opened<MemoryDisk>| {
        paces.clear();
        let state = NewState {
            slot: Slot(2),
            digest: state_digest(2),
            manifest: &manifest(2),
            pieces: &names,
            content: &mut |index| big[index].clone(),
            pace: &mut |bytes| {
                paces.push(bytes);
                if paces.len() < writes {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            },
        };
        let stored = opened.checkpoints.store(state, Slot(0));
        (stored, paces.clone())
    };
    for writes in 1..=5 {
        let (stored, paces) = store_until(writes, &mut opened);
        assert!(matches!(stored, Err(CheckpointError::Stopped)));
        assert!(paces.len() == writes && paces.iter().all(|bytes| *bytes <= 1024 * 1024));
        assert_eq!(opened.checkpoints.list()[0].slot, Slot(1));
    }
    let (stored, paces) = store_until(6, &mut opened);
    assert_eq!(stored.unwrap().written_bytes, paces.iter().sum::<u64>());
    drop(opened);
    let opened = opened_at(&disk);
    assert_eq!(opened.checkpoints.list()[0].slot, Slot(2));
    check_directory(&mut disk, &opened);
}

#[test]
fn what_is_not_the_piece_that_was_named_is_not_stored() {
    let disk = formatted(Durability::Sync);
    let mut opened = opened_at(&disk);
    let state = NewState {
        slot: Slot(1),
        digest: state_digest(1),
        manifest: b"",
        pieces: &[PieceName::of(b"one").unwrap()],
        content: &mut |_| Bytes::from_static(b"two"),
        pace: &mut |_| ControlFlow::Continue(()),
    };
    let stored = opened.checkpoints.store(state, Slot(0));
    assert!(matches!(stored, Err(CheckpointError::OtherPiece { index: 0 })));
    assert!(opened.checkpoints.list().is_empty());
}

#[test]
fn inspection_shows_links_and_files_that_are_not_there() {
    let mut disk = three_checkpoints();
    let inspect = |disk: &MemoryDisk| {
        let mut items = Vec::new();
        let intact = inspect_checkpoint(disk, &name(30), &mut |item| items.push(item)).unwrap();
        (intact, items)
    };
    let (intact, items) = inspect(&disk);
    assert!(intact);
    assert!(matches!(items[0], CheckpointItem::Header { version: FORMAT_VERSION, linked: 2, .. }));
    assert!(items[4].to_string().contains(&format!("in checkpoint {:020}: piece 3", 10)));
    disk.remove(&name(10)).unwrap();
    let (intact, items) = inspect(&disk);
    assert!(!intact && items.len() == 1 + PIECES);
    let CheckpointItem::Piece { linked: true, verdict, .. } = items[4] else { panic!("no link") };
    assert_eq!(verdict, PieceVerdict::NoFile);
}

#[test]
fn a_directory_that_went_back_to_version_1_opens() {
    let mut disk = three_checkpoints();
    assert!(older_format::write_version_1(&mut disk).unwrap());
    assert_eq!(disk.list("checkpoint").unwrap().len(), 2);
    let mut opened = opened_at(&disk);
    let RecoveredState::Checkpoint(reader) = &mut opened.state else { panic!("lost") };
    assert_eq!((reader.version(), all(reader)), (1, pieces(30)));
    assert_eq!(all(&mut opened.checkpoints.load(Slot(20)).unwrap()), pieces(20));
    let stored = store_pieces(&mut opened.checkpoints, 40, &pieces(40), 0).unwrap();
    assert_eq!(stored.linked_files, 0);
    check_directory(&mut disk, &opened);
}
