//! Opening a data directory: whose it is, what it remembers, and which state it holds.

use crate::common::*;
use perdura_durability::inspect::{
    CheckpointItem, LogItem, PieceVerdict, inspect_checkpoint, inspect_log,
};
use perdura_durability::storage::close;
use perdura_durability::{
    Amnesia, CheckpointError, Disk, Expectation, FORMAT_VERSION, FileDisk, FormatError, Identity,
    MemoryDisk, OpenError, Opened, RecoveredState, format, open,
};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{BootId, ClusterId, Digest, ReplicaId, Slot};
use std::os::unix::fs::PermissionsExt;

fn refusal(disk: &MemoryDisk, expected: &Expectation) -> OpenError {
    open(disk.handle(), expected, &options()).err().expect("opened")
}

/// Checks a state's content against what [`store`] stored.
fn check<D: Disk>(state: &mut RecoveredState<D>, slot: u64) {
    let (RecoveredState::Checkpoint(reader) | RecoveredState::Previous { reader, .. }) = state
    else {
        panic!("no state");
    };
    assert_eq!((reader.slot(), reader.digest()), (Slot(slot), state_digest(slot)));
    assert_eq!(reader.manifest(), &manifest(slot));
    let pieces: Vec<_> = reader.pieces().map(Result::unwrap).collect();
    assert_eq!(pieces, (0..PIECES).map(|i| piece(slot, i)).collect::<Vec<_>>());
}

#[test]
fn only_its_own_directory_is_opened() {
    let disk = formatted(Durability::Sync);
    let other = Expectation { cluster: ClusterId([2; 16]), ..expectation() };
    assert!(matches!(refusal(&disk, &other), OpenError::OtherCluster { .. }));
    let other = Expectation { replica: ReplicaId(3), ..expectation() };
    assert!(matches!(refusal(&disk, &other), OpenError::OtherReplica { .. }));
    let other = Expectation { parameters: Digest::of(b"others"), ..expectation() };
    assert!(matches!(refusal(&disk, &other), OpenError::OtherParameters { .. }));
    let other = Expectation { incarnation: 1, ..expectation() };
    assert!(matches!(refusal(&disk, &other), OpenError::OtherIncarnation { found: 0, .. }));
    let empty = refusal(&MemoryDisk::new(), &expectation());
    assert!(matches!(empty, OpenError::Empty));
    assert!(empty.to_string().contains("perdura replica reinit"));
}

#[test]
fn format_refuses_what_is_not_empty_and_may_be_done_again_when_interrupted() {
    let mut disk = formatted(Durability::Sync);
    let again = format(&mut disk, &identity(Durability::Sync));
    assert!(matches!(again, Err(FormatError::NotEmpty { found }) if found == "superblock"));
    let mut disk = MemoryDisk::new();
    disk.create("log/0000000000000001", 10).unwrap();
    assert!(format(&mut disk, &identity(Durability::Sync)).is_err());
    assert!(matches!(refusal(&disk, &expectation()), OpenError::Corrupt { .. }));

    let mut random = Random(3);
    for cut in 0..5 {
        for _ in 0..20 {
            let mut disk = MemoryDisk::new();
            disk.fail_after(cut);
            assert!(format(&mut disk, &identity(Durability::Sync)).is_err());
            disk.crash(|| random.word());
            match reopen(disk.handle()) {
                Ok(_) => continue,
                Err(OpenError::Empty) => format(&mut disk, &identity(Durability::Sync)).unwrap(),
                Err(error) => panic!("{error}"),
            }
            reopen(disk).unwrap();
        }
    }
}

/// The process, not the machine, is restarted between the renaming of the superblock and the
/// flush of its name: it is seen, and must be durable before anything relies on it.
#[test]
fn a_name_that_is_only_in_the_cache_is_made_durable() {
    let mut disk = MemoryDisk::new();
    disk.fail_after(4);
    assert!(format(&mut disk, &identity(Durability::Sync)).is_err());
    disk.restart_process();
    let mut opened = reopen(disk.handle()).unwrap();
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    disk.crash(|| 1);
    assert_eq!(reopen(disk).unwrap().records, [vote(0, 1, 1)]);
}

/// A directory of a later format version is refused with both versions named.
#[test]
fn a_newer_format_is_refused() {
    let mut disk = formatted(Durability::Sync);
    for copy in 0..4u64 {
        let mut bytes = read(&mut disk, "superblock", copy * 4096, 4096);
        bytes[40..44].copy_from_slice(&7u32.to_le_bytes());
        let sum = blake3::hash(&bytes[40..]);
        bytes[8..40].copy_from_slice(sum.as_bytes());
        disk.write_at("superblock", copy * 4096, &bytes).unwrap();
    }
    let error = refusal(&disk, &expectation());
    assert!(matches!(error, OpenError::NewerFormat { found: 7, supported: FORMAT_VERSION }));
    let newest = format!("version {FORMAT_VERSION}");
    assert!(error.to_string().contains("version 7") && error.to_string().contains(&newest));
}

#[test]
fn without_a_log_any_restart_is_amnesia() {
    let disk = formatted(Durability::None);
    let mut first = reopen(disk.handle()).unwrap();
    first.log.append(&[vote(0, 1, 1)]).unwrap();
    first.log.truncate_below(Slot(1)).unwrap();
    close(first.log, first.checkpoints).unwrap();
    let error = refusal(&disk, &expectation());
    assert!(matches!(error, OpenError::Amnesiac(Amnesia::NoLog)));
    assert!(error.to_string().contains("perdura replica reinit"));
}

/// A run is counted once it is durable; one that comes to nothing before is not.
#[test]
fn runs_are_counted_and_told_apart() {
    let mut disk = formatted(Durability::Sync);
    let run = |disk: &MemoryDisk, nonce| {
        let expected = Expectation { nonce: [nonce; 16], ..expectation() };
        open(disk.handle(), &expected, &options()).map(|opened| opened.boot)
    };
    let mut last = 0;
    for nonce in 1..4 {
        let boot = run(&disk, nonce).unwrap();
        last += 1;
        assert_eq!(boot, BootId { number: last, nonce: [nonce; 16] });
        disk.crash(|| 1);
    }
    // Wherever the power goes while it opens, the next number is new or was never spoken of.
    let clean = disk;
    for operations in 0.. {
        let mut disk = clean.copy();
        disk.fail_after(operations);
        let failed = run(&disk, 7).is_err();
        disk.crash(|| 1);
        let next = run(&disk, 8).unwrap();
        assert!(next.number > last && (failed || next.number > last + 1), "{operations}: {next:?}");
        if !failed {
            break;
        }
    }
}

/// However often it starts in vain, it knows those of its boots that others may hold.
#[test]
fn boots_that_were_never_announced_take_the_place_of_none_that_was() {
    let disk = formatted(Durability::Sync);
    let start = |nonce: u8, announces: bool| {
        let expected = Expectation { nonce: [nonce; 16], ..expectation() };
        let mut opened = open(disk.handle(), &expected, &options()).unwrap();
        if announces {
            opened.log.append(&[boot_of(expected.replica.0, opened.boot)]).unwrap();
        }
        (opened.superblock.boots, opened.boot)
    };
    let first = start(1, true).1;
    let mut last = first;
    for nonce in 2..60 {
        let (before, boot) = start(nonce, false);
        assert!(boot.number == last.number + 1 && before.contains(&first), "{before:?}");
        assert!(before.len() <= 2, "{before:?}");
        last = boot;
    }
    let second = start(60, true).1;
    let (before, _) = start(61, false);
    assert_eq!(before, [second, first]);
    for nonce in 62..100 {
        start(nonce, true);
    }
    assert_eq!(start(100, false).0.len(), 16);
}

#[test]
fn async_survives_the_process_but_not_the_machine() {
    let mut disk = formatted(Durability::Async);
    let other_boot = Expectation { boot_id: [6; 16], ..expectation() };
    let mut first = reopen(disk.handle()).unwrap();
    let before = disk.operations();
    first.log.append(&[vote(0, 1, 1)]).unwrap();
    assert_eq!(disk.operations() - before, 2, "group and mark, no flush");
    drop(first);
    assert!(matches!(refusal(&disk, &other_boot), OpenError::Amnesiac(Amnesia::OtherBoot)));
    disk.restart_process();
    let second = reopen(disk.handle()).unwrap();
    assert_eq!(second.records, [vote(0, 1, 1)]);
    close(second.log, second.checkpoints).unwrap();
    disk.crash(|| 1);
    let third = open(disk.handle(), &other_boot, &options()).unwrap();
    assert_eq!(third.records, [vote(0, 1, 1)], "an orderly end flushes");
}

#[test]
fn a_replacement_remembers_that_it_must_recover() {
    let mut disk = MemoryDisk::new();
    let replacement =
        Identity { incarnation: 2, must_recover: Some(Slot(40)), ..identity(Durability::Sync) };
    format(&mut disk, &replacement).unwrap();
    let second = Expectation { incarnation: 2, ..expectation() };
    let mut first = open(disk.handle(), &second, &options()).unwrap();
    assert_eq!(first.superblock.identity.must_recover, Some(Slot(40)));
    store(&mut first, 64);
    first.checkpoints.set_recovered().unwrap();
    drop(first);
    assert_eq!(open(disk, &second, &options()).unwrap().superblock.identity.must_recover, None);
}

#[test]
fn checkpoints_replace_each_other_and_one_is_kept_behind() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    assert!(matches!(opened.state, RecoveredState::Initial));
    for slot in [10, 20, 30] {
        store(&mut opened, slot);
    }
    let old = store_pieces(&mut opened.checkpoints, 30, &[], 0);
    assert!(matches!(old, Err(CheckpointError::NotNewer { .. })));
    let slots: Vec<u64> = opened.checkpoints.list().iter().map(|name| name.slot.0).collect();
    assert_eq!(slots, [30, 20]);
    assert_eq!(disk.list("checkpoint").unwrap().len(), 3, "the first is linked to");
    let unknown = opened.checkpoints.load(Slot(10));
    assert!(matches!(unknown, Err(CheckpointError::Unknown { .. })));
    let mut reader = opened.checkpoints.load(Slot(20)).unwrap();
    assert_eq!(reader.piece(3).unwrap(), piece(20, 3));
    assert!(matches!(reader.piece(PIECES), Err(CheckpointError::Unknown { .. })));
    drop(opened);
    disk.create("checkpoint/new", 100).unwrap();
    disk.create("checkpoint/00000000000000000099", 100).unwrap();
    check(&mut reopen(disk.handle()).unwrap().state, 30);
    assert_eq!(disk.list("checkpoint").unwrap().len(), 3, "what is not named is removed");
}

/// Two checkpoints, the log reaching back to the older one, or (`truncated`) to the newer only.
fn two_checkpoints(truncated: bool) -> MemoryDisk {
    let disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    for slot in 1..40 {
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
    }
    store(&mut opened, 10);
    opened.log.truncate_below(Slot(10)).unwrap();
    store(&mut opened, 30);
    if truncated {
        opened.log.truncate_below(Slot(30)).unwrap();
    }
    disk
}

#[test]
fn a_rotten_checkpoint_falls_back_when_the_log_reaches() {
    let newest = format!("checkpoint/{:020}", 30);
    let size = two_checkpoints(false).len(&newest).unwrap();
    for offset in (0..size).step_by(97) {
        let mut disk = two_checkpoints(false);
        disk.flip_bit(&newest, offset, 2).unwrap();
        let mut opened = reopen(disk.handle()).unwrap();
        assert!(
            matches!(opened.state, RecoveredState::Previous { lost, .. } if lost.slot == Slot(30))
        );
        check(&mut opened.state, 10);
        assert!(opened.records.contains(&vote(0, 11, 11)));
        store(&mut opened, 30);
        drop(opened);
        check(&mut reopen(disk).unwrap().state, 30);
    }
}

#[test]
fn a_rotten_checkpoint_without_a_log_behind_it_is_a_lost_state_with_votes() {
    let mut disk = two_checkpoints(true);
    disk.flip_bit(&format!("checkpoint/{:020}", 30), 200, 2).unwrap();
    for _ in 0..2 {
        let Opened { state, records, .. } = reopen(disk.handle()).unwrap();
        assert!(matches!(state, RecoveredState::Lost(name) if name.slot == Slot(30)));
        assert!(records.ends_with(&[vote(0, 38, 38), vote(0, 39, 39)]), "votes are kept");
    }
    disk.remove(&format!("checkpoint/{:020}", 10)).unwrap();
    disk.remove(&format!("checkpoint/{:020}", 30)).unwrap();
    let mut opened = reopen(disk.handle()).unwrap();
    assert!(matches!(opened.state, RecoveredState::Lost(_)), "gone is lost, too");
    store(&mut opened, 64);
    drop(opened);
    check(&mut reopen(disk).unwrap().state, 64);
}

/// The machine stops at any operation of it: the state is the one before or the trusted one, and no
/// vote is lost.
#[test]
fn distrusted_states_are_as_if_they_had_never_been_stored_wherever_it_is_cut_short() {
    let mut at = 0;
    loop {
        let mut disk = two_checkpoints(false);
        let opened = reopen(disk.handle()).unwrap();
        disk.fail_after(at);
        let done = opened.checkpoints.distrust_after(Slot(10));
        drop(opened.log);
        disk.crash(|| at);
        let mut opened = reopen(disk.handle()).unwrap();
        let votes = (11..40).map(|slot| vote(0, slot, slot));
        assert!(votes.clone().all(|vote| opened.records.contains(&vote)), "after {at} operations");
        let RecoveredState::Checkpoint(reader) = &opened.state else { panic!("no state") };
        let slot = reader.slot().0;
        assert!(slot == 10 || (slot == 30 && done.is_err()), "{slot} after {at} operations");
        check(&mut opened.state, slot);
        match done {
            Ok(wrong) => {
                assert_eq!(wrong, 1);
                break;
            }
            Err(error) => assert!(matches!(error, CheckpointError::Disk(_))),
        }
        at += 1;
    }
    assert!(at > 2, "every copy of the superblock is an operation");
}

#[test]
fn without_a_trusted_state_nothing_is_given_up() {
    for slot in [0, 20, 40] {
        let disk = two_checkpoints(false);
        let opened = reopen(disk.handle()).unwrap();
        let refused = opened.checkpoints.distrust_after(Slot(slot));
        assert!(matches!(refused, Err(CheckpointError::Unknown { .. })));
        drop(opened.log);
        check(&mut reopen(disk).unwrap().state, 30);
    }
    // Where none was stored yet there is nothing to give up, and the log has everything.
    let disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    assert_eq!(opened.checkpoints.distrust_after(Slot(0)).unwrap(), 0);
    drop(opened.log);
    let opened = reopen(disk).unwrap();
    assert!(matches!(opened.state, RecoveredState::Initial));
    assert_eq!(opened.records, [vote(0, 1, 1)]);
}

#[test]
fn a_real_directory_keeps_what_was_written_and_is_opened_once() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/replica-2");
    assert!(matches!(FileDisk::open(&path), Err(OpenError::Missing { .. })));
    let mut disk = FileDisk::create_directory(&path).unwrap();
    assert!(matches!(reopen(disk.handle()), Err(OpenError::Empty)));
    format(&mut disk, &identity(Durability::Sync)).unwrap();
    drop(disk);
    let mut first = reopen(FileDisk::open(&path).unwrap()).unwrap();
    let votes: Vec<_> = (1..40).map(|i| vote(1, i, i)).collect();
    for vote in &votes {
        first.log.append(std::slice::from_ref(vote)).unwrap();
    }
    store(&mut first, 10);
    store(&mut first, 20);
    store(&mut first, 30);
    first.log.truncate_below(Slot(20)).unwrap();
    let second = FileDisk::open(&path);
    assert!(matches!(second, Err(OpenError::Locked { .. })));
    assert!(second.err().unwrap().to_string().contains("in use by another process"));
    drop(first);
    let mut third = reopen(FileDisk::open(&path).unwrap()).unwrap();
    check(&mut third.state, 30);
    assert!(votes.ends_with(&third.records) && third.records.len() >= 19);
    let wanted = [(Slot(35), batch(35).digest())];
    assert_eq!(third.log.read_decisions(&wanted, 1).unwrap()[0].batch, batch(35));
    for directory in ["", "log", "checkpoint"].map(|name| path.join(name)) {
        let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        for one in entries.chain([directory.clone()]) {
            let mode = std::fs::metadata(&one).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", one.display());
        }
    }
}

#[test]
fn what_is_cut_down_keeps_its_beginning_on_both_disks() {
    fn check(disk: &mut impl Disk) {
        disk.create("file", 0).unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        disk.write_at("file", 0, &bytes).unwrap();
        disk.sync("file").unwrap();
        for (to, left) in
            [(30_000, 20_000), (20_000, 20_000), (8_292, 8_292), (4_096, 4_096), (0, 0)]
        {
            disk.shrink("file", to).unwrap();
            assert_eq!(disk.len("file").unwrap(), left as u64);
            let mut read = vec![0; left];
            disk.read_at("file", 0, &mut read).unwrap();
            assert_eq!(read, bytes[..left]);
            assert!(disk.read_at("file", left as u64, &mut [0]).is_err());
        }
        disk.write_zeros("file", 0, 9_000).unwrap();
        let mut read = vec![1; 9_000];
        disk.read_at("file", 0, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        assert!(disk.shrink("other", 0).is_err());
    }
    let root = tempfile::tempdir().unwrap();
    check(&mut FileDisk::create_directory(root.path()).unwrap());
    check(&mut MemoryDisk::default());
    assert!(FileDisk::read_only(root.path()).shrink("file", 0).is_err());
}

#[test]
fn inspection_reads_copies_of_single_files_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut disk = FileDisk::create_directory(&root.path().join("data")).unwrap();
    format(&mut disk, &identity(Durability::Sync)).unwrap();
    let mut opened = reopen(disk).unwrap();
    opened.log.append(&[vote(0, 1, 1), delivered(1)]).unwrap();
    opened.log.append(&[vote(0, 2, 2)]).unwrap();
    store(&mut opened, 1);
    let data = root.path().join("data");
    std::fs::copy(data.join("log/0000000000000001"), root.path().join("a.log")).unwrap();
    std::fs::copy(data.join("log/marks"), root.path().join("marks")).unwrap();
    let checkpoint = data.join(format!("checkpoint/{:020}", 1));
    std::fs::copy(checkpoint, root.path().join("a.checkpoint")).unwrap();

    let mut copies = FileDisk::read_only(root.path());
    let mut items = Vec::new();
    assert!(inspect_log(&mut copies, "a.log", &mut |item| items.push(item)).unwrap());
    assert_eq!(items[1], LogItem::Mark(Some(2)));
    assert_eq!(items[4], LogItem::Record { offset: 8192 + 128 + 24 + 233, record: delivered(1) });
    assert!(matches!(items[5], LogItem::Group { offset: 12288, number: 2, voted: Slot(2), .. }));
    assert_eq!(items.last(), Some(&LogItem::Free { from: 16384, to: 32768 }));
    assert!(items.iter().all(|item| !item.to_string().contains('\n')));

    let mut items = Vec::new();
    let visit = &mut |item| items.push(item);
    assert!(inspect_checkpoint(&copies, "a.checkpoint", visit).unwrap());
    assert!(matches!(items[0], CheckpointItem::Header { slot: Slot(1), pieces: PIECES, .. }));
    assert_eq!(items.len(), 1 + PIECES);
    assert!(copies.write_at("a.log", 0, b"x").is_err());
    assert!(inspect_log(&mut copies, "a.checkpoint", &mut |_| {}).is_err());
}

#[test]
fn inspection_shows_what_does_not_verify() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    opened.log.append(&[vote(0, 2, 2)]).unwrap();
    store(&mut opened, 1);
    let log = "log/0000000000000001";
    disk.flip_bit(log, 8192 + 200, 1).unwrap();
    let mut items = Vec::new();
    assert!(!inspect_log(&mut disk, log, &mut |item| items.push(item)).unwrap());
    assert!(matches!(items[2], LogItem::Damaged { offset: 8192, number: 1, .. }));
    assert!(matches!(items[3], LogItem::Group { offset: 12288, .. }));
    let checkpoint = format!("checkpoint/{:020}", 1);
    let place = opened.checkpoints.load(Slot(1)).unwrap().place(2).unwrap();
    disk.flip_bit(&checkpoint, place.offset, 1).unwrap();
    let mut bad = Vec::new();
    let visit = &mut |item| bad.push(item);
    assert!(!inspect_checkpoint(&disk, &checkpoint, visit).unwrap());
    let corrupt = PieceVerdict::Corrupt;
    assert!(
        matches!(bad[3], CheckpointItem::Piece { index: 2, verdict, .. } if verdict == corrupt)
    );
}

#[test]
fn the_checkpoint_that_is_needed_is_the_one_kept_behind() {
    let mut opened = reopen(formatted(Durability::Sync)).unwrap();
    let names = |opened: &perdura_durability::Opened<_>| -> Vec<u64> {
        opened.checkpoints.list().iter().map(|name| name.slot.0).collect()
    };
    for (slot, keep, there) in [
        (10, 0, vec![10]),
        (20, 10, vec![20, 10]),
        (30, 10, vec![30, 20, 10]),
        (40, 10, vec![40, 30, 10]),
        (50, 30, vec![50, 40, 30]),
        (60, 50, vec![60, 50]),
        (70, 10, vec![70, 60]),
    ] {
        store_pieces(&mut opened.checkpoints, slot, &pieces(slot), keep).unwrap();
        assert_eq!(names(&opened), there);
        opened.checkpoints.load(Slot(*there.last().unwrap())).unwrap().verify().unwrap();
    }
}

/// Files below `root` that this process has open past the cache (`O_DIRECT`).
#[cfg(target_arch = "x86_64")]
fn past_the_cache(root: &std::path::Path) -> Vec<std::path::PathBuf> {
    const DIRECT: u32 = 0o40_000;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().into_string().unwrap();
        // Those of other tests come and go.
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
        let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
            continue;
        };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let direct = u32::from_str_radix(flags, 8).unwrap() & DIRECT != 0;
        if direct && path.starts_with(root) {
            found.push(path);
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
#[test]
fn only_the_file_that_is_written_to_is_open_past_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let mut disk = FileDisk::create_directory(root.path()).unwrap();
    format(&mut disk, &identity(Durability::Sync)).unwrap();
    let mut opened = open(disk, &expectation(), &options()).unwrap();
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    // None where the file system has no such way.
    let first = past_the_cache(root.path()).len();
    for slot in 2..40 {
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
    }
    store(&mut opened, 1);
    assert!(opened.log.files() > 5);
    assert_eq!(past_the_cache(root.path()).len(), first);
}
