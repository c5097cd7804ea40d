//! How large the files of a log are, and which are used again.

use crate::common::*;
use perdura_durability::{Disk, Log, MemoryDisk, StorageOptions, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Encode, Record, Slot};

/// Written so far, zeros included.
fn written(disk: &MemoryDisk) -> u64 {
    disk.written_bytes() + disk.zero_bytes()
}

/// Files of a log that becomes longer are made ready in advance, each twice the one before: no append writes
/// zeros, and no call that makes them ready writes many. What was freed is used again.
#[test]
fn an_append_never_waits_for_a_large_file() {
    const HASTY: u64 = 16 * 1024;
    const USUAL: u64 = 1024 * 1024;
    let sizes = StorageOptions { log_file_bytes: USUAL, hasty_log_file_bytes: HASTY, ..options() };
    let mut disk = formatted(Durability::Sync);
    let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    let meter = disk.handle();
    let bytes_of = |log: &mut Log<MemoryDisk>, work: &dyn Fn(&mut Log<MemoryDisk>)| {
        let before = written(&meter);
        work(log);
        written(&meter) - before
    };
    for slot in 1..1200 {
        let append = |log: &mut Log<MemoryDisk>| log.append(&[vote(0, slot, slot)]).unwrap();
        let prepare = |log: &mut Log<MemoryDisk>| log.prepare_free_file().unwrap();
        let written = bytes_of(&mut opened.log, &append);
        assert!(written < 6000, "{written} bytes in the way of slot {slot}");
        let written = bytes_of(&mut opened.log, &prepare);
        assert!(written <= HASTY, "{written} bytes are made ready at once");
    }
    let size = |disk: &mut MemoryDisk, name: &String| disk.len(name).unwrap();
    let files = log_files(&mut disk);
    let found: Vec<u64> = files.iter().map(|name| size(&mut disk, name)).collect();
    assert_eq!(found[0], HASTY);
    let grows = |pair: &[u64]| pair[0] <= pair[1] && pair[1] <= USUAL;
    assert!(found.windows(2).all(grows) && found.len() < 20, "{found:?}");
    assert!(found.iter().filter(|bytes| **bytes == USUAL).count() >= 3, "{found:?}");
    drop(opened);

    // In its next run the log goes on with what was being made ready.
    let free = |disk: &mut MemoryDisk| -> Vec<String> {
        let names = disk.list("log").unwrap().into_iter();
        names.filter(|name| name.starts_with("free-")).map(|name| format!("log/{name}")).collect()
    };
    let before = free(&mut disk);
    assert_eq!(before.len(), 1);
    let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    assert_eq!(opened.records.len(), 1199);
    assert_eq!(free(&mut disk), before);
    opened.log.truncate_below(Slot(1199)).unwrap();
    assert_eq!(log_files(&mut disk).len(), 1);
    let left: Vec<u64> =
        free(&mut disk).iter().map(|name| size(&mut disk, name)).filter(|b| *b == USUAL).collect();
    assert_eq!(left.len(), 2, "as many as are kept");
    let before = disk.list("log").unwrap().len();
    for slot in 1200..1700 {
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
        opened.log.prepare_free_file().unwrap();
    }
    assert_eq!(disk.list("log").unwrap().len(), before, "no file was made");
}

/// Where nobody makes files ready, those that an append has to make are small, but for a large group.
#[test]
fn files_that_are_made_in_haste_are_small() {
    let sizes = StorageOptions {
        log_file_bytes: 1024 * 1024,
        hasty_log_file_bytes: 16 * 1024,
        ..options()
    };
    let mut disk = formatted(Durability::Sync);
    let mut log = open(disk.handle(), &expectation(), &sizes).unwrap().log;
    for slot in 1..8 {
        log.append(&[vote(0, slot, slot)]).unwrap();
    }
    let large: Vec<Record> = (8..300).map(|slot| vote(0, slot, slot)).collect();
    log.append(&large).unwrap();
    let files = log_files(&mut disk);
    let (last, small) = files.split_last().unwrap();
    assert_eq!(small.len(), 4, "two groups in each");
    assert!(small.iter().all(|name| disk.len(name).unwrap() == 16 * 1024));
    assert!(disk.len(last).unwrap() > 16 * 1024);
    assert_eq!(opened(&disk).records.len(), 299);
}

/// Files of another version's size go on being read; when they are free, one of them grows.
#[test]
fn files_of_another_size_are_read_and_let_go() {
    let mut disk = formatted(Durability::Sync);
    let large = StorageOptions { log_file_bytes: 128 * 1024, ..options() };
    let mut slot = 0;
    for (run, sizes) in [options(), large, options(), large].iter().enumerate() {
        let mut opened = open(disk.handle(), &expectation(), sizes).unwrap();
        assert_eq!(opened.log.position().votes, Slot(slot), "run {run}");
        for _ in 0..60 {
            slot += 1;
            opened.log.append(&[vote(0, slot, slot)]).unwrap();
            opened.log.prepare_free_file().unwrap();
        }
        assert!(log_files(&mut disk).len() > 1);
    }
    let mut opened = open(disk.handle(), &expectation(), &large).unwrap();
    assert_eq!(opened.records.len() as u64, slot);
    opened.log.truncate_below(Slot(slot)).unwrap();
    let names = disk.list("log").unwrap();
    let free: Vec<_> = names.iter().filter(|name| name.starts_with("free-")).collect();
    let sizes: Vec<u64> =
        free.iter().map(|name| disk.len(&format!("log/{name}")).unwrap()).collect();
    let small: Vec<_> = free.iter().zip(&sizes).filter(|(_, bytes)| **bytes < 128 * 1024).collect();
    assert_eq!(small.len(), 1, "{sizes:?}");
    assert!(sizes.iter().all(|bytes| *bytes <= 128 * 1024));
    let name = format!("log/{}", small[0].0);
    for _ in 0..2000 {
        slot += 1;
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
        opened.log.prepare_free_file().unwrap();
        if disk.exists(&name).unwrap() && disk.len(&name).unwrap() == 128 * 1024 {
            return;
        }
    }
    panic!("{name} has not grown: {:?}", disk.list("log"));
}

/// Groups that are nearly as large as what is made ready at once, or larger: the files grow all the same.
#[test]
fn large_groups_do_not_keep_files_small() {
    const HASTY: u64 = 256 * 1024;
    const USUAL: u64 = 16 * HASTY;
    for tenths in [3, 6, 12] {
        let sizes =
            StorageOptions { log_file_bytes: USUAL, hasty_log_file_bytes: HASTY, ..options() };
        let mut disk = formatted(Durability::Sync);
        let mut log = open(disk.handle(), &expectation(), &sizes).unwrap().log;
        let mut slot = 0;
        let mut in_the_way = 0;
        for _ in 0..150 {
            let (mut records, mut bytes) = (Vec::new(), 0);
            while bytes < HASTY * tenths / 10 {
                slot += 1;
                let record = vote(0, slot, slot);
                bytes += record.to_bytes().len() as u64;
                records.push(record);
            }
            let before = written(&disk);
            log.append(&records).unwrap();
            in_the_way += u64::from(written(&disk) - before > HASTY * (tenths + 5) / 10);
            log.prepare_free_file().unwrap();
        }
        assert!(in_the_way <= 1, "{in_the_way} appends of {tenths} tenths wrote zeros");
        let files = log_files(&mut disk);
        let usual = files.iter().filter(|name| disk.len(name).unwrap() == USUAL).count();
        assert!(usual >= 2, "{tenths} tenths: {usual} of {}", files.len());
    }
}

/// The file in use is nearly full when the machine fails, and what was made ready is lost. The next file is made ready in
/// time all the same, and no small group waits for much of it.
#[test]
fn after_a_crash_the_next_file_is_made_ready_without_haste() {
    const MIB: u64 = 1024 * 1024;
    let sizes =
        StorageOptions { log_file_bytes: 8 * MIB, hasty_log_file_bytes: 4 * MIB, ..options() };
    let mut disk = formatted(Durability::Sync);
    let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    for slot in 1..=900 {
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
    }
    assert_eq!(log_files(&mut disk).len(), 1);
    drop(opened);
    let mut log = open(disk.handle(), &expectation(), &sizes).unwrap().log;
    let (mut slot, mut most) = (900, 0);
    while log_files(&mut disk).len() == 1 {
        slot += 1;
        log.append(&[vote(0, slot, slot)]).unwrap();
        let before = written(&disk);
        log.prepare_free_file().unwrap();
        most = most.max(written(&disk) - before);
    }
    assert!(most <= 512 * 1024, "{most} bytes at once");
    let files = log_files(&mut disk);
    assert_eq!(disk.len(&files[1]).unwrap(), 8 * MIB);
}

/// The disk is full while a file is made ready. The replica stops, and goes on when there is space.
#[test]
fn a_disk_that_is_full_of_free_files_loses_nothing() {
    const MIB: u64 = 1024 * 1024;
    let sizes =
        StorageOptions { log_file_bytes: 4 * MIB, hasty_log_file_bytes: 256 * 1024, ..options() };
    let mut disk = formatted(Durability::Sync);
    let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    disk.set_capacity(Some(3 * MIB));
    let mut slot = 0;
    let stopped = loop {
        opened.log.append(&[vote(0, slot + 1, slot + 1)]).unwrap();
        slot += 1;
        if let Err(error) = opened.log.prepare_free_file() {
            break error;
        }
    };
    assert!(
        stopped.to_string().contains("full") || stopped.to_string().contains("space"),
        "{stopped}"
    );
    drop(opened);
    let half_made = |name: &String| name.starts_with("free-");
    assert_eq!(disk.list("log").unwrap().iter().filter(|name| half_made(name)).count(), 1);
    let mut random = Random(3);
    disk.crash(|| random.word());
    for _ in 0..2 {
        let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
        assert_eq!(opened.records.len() as u64, slot);
        slot += 1;
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
        assert!(opened.log.prepare_free_file().is_err(), "it is full still");
    }
    disk.set_capacity(None);
    let mut opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    assert_eq!(opened.records.len() as u64, slot);
    let files = log_files(&mut disk).len();
    while log_files(&mut disk).len() == files {
        slot += 1;
        opened.log.append(&[vote(0, slot, slot)]).unwrap();
        opened.log.prepare_free_file().unwrap();
    }
    drop(opened);
    let opened = open(disk.handle(), &expectation(), &sizes).unwrap();
    assert_eq!(opened.records.len() as u64, slot);
}

/// Half of what is written between two checkpoints, within bounds.
#[test]
fn a_replica_has_files_that_fit_its_checkpoints() {
    const MIB: u64 = 1024 * 1024;
    for (checkpoint, file, free) in [
        (1, 16, 4),
        (32, 16, 4),
        (40, 20, 4),
        (256, 128, 4),
        (1024, 128, 16),
        (1 << 20, 128, 16384),
    ] {
        let options = StorageOptions::for_checkpoints_of(checkpoint * MIB, checkpoint * MIB);
        assert_eq!(options.log_file_bytes, file * MIB, "{checkpoint} MiB");
        assert_eq!(options.free_log_files, free, "{checkpoint} MiB");
        assert_eq!(options.hasty_log_file_bytes, 16 * MIB);
    }
    let stretched = StorageOptions::for_checkpoints_of(256 * MIB, 768 * MIB);
    assert_eq!(stretched.log_file_bytes, 128 * MIB);
    assert_eq!(stretched.free_log_files, 12);
}

/// A log that was long once, and is short from then on: what it took then goes, a little with each truncation.
#[test]
fn free_files_that_are_needed_no_more_go() {
    let sizes = StorageOptions { free_log_files: 40, ..options() };
    let disk = formatted(Durability::Sync);
    let mut log = open(disk.handle(), &expectation(), &sizes).unwrap().log;
    let mut slot = 0;
    let mut goes_on = |log: &mut Log<MemoryDisk>, slots: u64| {
        for _ in 0..slots {
            slot += 1;
            log.append(&[vote(0, slot, slot)]).unwrap();
            log.prepare_free_file().unwrap();
        }
        log.truncate_below(Slot(slot)).unwrap();
        let names = disk.handle().list("log").unwrap();
        names.iter().filter(|name| name.starts_with("free-")).count()
    };
    let long = goes_on(&mut log, 120);
    assert!(long >= 15, "{long}");
    let (mut before, mut rounds) = (long, 0);
    while before > 4 {
        let left = goes_on(&mut log, 12);
        assert!(left <= before && before - left <= 2, "{before} -> {left}");
        (before, rounds) = (left, rounds + 1);
        assert!(rounds < 20, "{left} stay");
    }
    // Nothing is written any more between two truncations.
    for _ in 0..4 {
        goes_on(&mut log, 0);
    }
    assert!(goes_on(&mut log, 0) <= 2);
    // As many as are needed stay.
    let kept = (0..6).map(|_| goes_on(&mut log, 60)).collect::<Vec<_>>();
    assert!(kept[3..].iter().all(|left| *left >= 8), "{kept:?}");
}
