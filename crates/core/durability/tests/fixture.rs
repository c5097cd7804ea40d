//! Data directories of earlier format versions stay openable: directories as each format version
//! wrote them, byte for byte, are in `fixtures`. When a format changes its version number
//! does too, and a new fixture joins the old ones.
//!
//! `PERDURA_WRITE_FIXTURE=1 cargo test -p perdura-durability --test main fixture::` writes that of the
//! present version anew; that is right only before the version was ever released.

use crate::common::*;
use perdura_durability::{
    Disk, FORMAT_VERSION, FileDisk, MemoryDisk, Opened, RecoveredState, StorageOptions, format,
    older_format, open,
};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot, View};
use std::path::{Path, PathBuf};

const FILES: [&str; 2] = ["superblock", "log/0000000000000001"];

/// The checkpoints of each version's fixture; the second links to the first.
fn checkpoints(version: u32) -> &'static [u64] {
    if version == 1 { &[1] } else { &[1, 2] }
}

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{version}"))
}

fn records() -> Vec<Record> {
    vec![
        Record::View(View(3)),
        configuration(1),
        vote(3, 1, 1),
        accepts(3, 1, 1, 3),
        prefix(1),
        delivered(1),
        Record::Decision { slot: Slot(2), view: View(3), batch: batch(2), accepts: certificate(3) },
    ]
}

/// The least that a log file may be.
fn small() -> StorageOptions {
    StorageOptions { log_file_bytes: 16 * 1024, ..options() }
}

fn copy(version: u32, from: &Path, to: &Path) {
    let mut files = FILES.map(str::to_owned).to_vec();
    files.extend(checkpoints(version).iter().map(|slot| format!("checkpoint/{slot:020}")));
    for name in files {
        std::fs::create_dir_all(to.join(&name).parent().unwrap()).unwrap();
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

fn write_fixture() {
    let root = tempfile::tempdir().unwrap();
    let mut disk = FileDisk::create_directory(root.path()).unwrap();
    format(&mut disk, &identity(Durability::Sync)).unwrap();
    let mut opened = open(disk, &expectation(), &small()).unwrap();
    opened.log.append(&records()[..3]).unwrap();
    opened.log.append(&records()[3..]).unwrap();
    for slot in checkpoints(FORMAT_VERSION) {
        store(&mut opened, *slot);
    }
    copy(FORMAT_VERSION, root.path(), &fixture(FORMAT_VERSION));
}

/// Opens a directory that holds what a fixture does.
fn check(root: &Path, slot: u64) -> Opened<FileDisk> {
    let mut opened = open(FileDisk::open(root).unwrap(), &expectation(), &small()).unwrap();
    assert_eq!(opened.records, records());
    assert!(opened.repaired_gaps.is_empty() && opened.torn_tail.is_none());
    let RecoveredState::Checkpoint(reader) = &mut opened.state else { panic!("no state") };
    assert_eq!((reader.slot(), reader.digest()), (Slot(slot), state_digest(slot)));
    assert_eq!(reader.manifest(), &manifest(slot));
    let found: Vec<_> = reader.pieces().map(Result::unwrap).collect();
    assert_eq!(found, pieces(slot));
    assert_eq!(opened.log.position().votes, Slot(1));
    opened
}

#[test]
fn a_directory_of_each_format_version_is_opened_and_goes_on_in_the_present_one() {
    if std::env::var_os("PERDURA_WRITE_FIXTURE").is_some() {
        write_fixture();
    }
    for version in 1..=FORMAT_VERSION {
        let root = tempfile::tempdir().unwrap();
        copy(version, &fixture(version), root.path());
        let last = *checkpoints(version).last().unwrap();
        let mut opened = check(root.path(), last);
        // The first of the present version has nothing to link to; the next one has.
        let first = try_store(&mut opened, last + 1).unwrap();
        assert_eq!(first.linked_files > 0, version > 1);
        assert!(try_store(&mut opened, last + 2).unwrap().linked_files > 0);
        drop(opened);
        check(root.path(), last + 2);
    }
}

#[test]
fn what_is_written_as_version_1_is_what_version_1_wrote() {
    let root = tempfile::tempdir().unwrap();
    copy(1, &fixture(1), root.path());
    let name = root.path().join(format!("checkpoint/{:020}", 1));
    let before = std::fs::read(&name).unwrap();
    let mut disk = FileDisk::open(root.path()).unwrap();
    assert!(older_format::write_version_1(&mut disk).unwrap());
    assert_eq!(std::fs::read(&name).unwrap(), before);
    let files = |root: &Path| FILES.map(|name| std::fs::read(root.join(name)).unwrap());
    assert_eq!(files(root.path()), files(&fixture(1)));
    drop(disk);
    // And of one that links, nothing is lost.
    copy(2, &fixture(2), root.path());
    let mut disk = FileDisk::open(root.path()).unwrap();
    assert!(older_format::write_version_1(&mut disk).unwrap());
    drop(disk);
    // The same was logged in both versions.
    assert_eq!(files(root.path())[1], files(&fixture(1))[1]);
    assert!(check(root.path(), 2).superblock.links.is_empty());
}

/// Of a copy of the superblock on disk.
fn version_in(root: &Path) -> u32 {
    let superblock = std::fs::read(root.join("superblock")).unwrap();
    u32::from_le_bytes(superblock[40..44].try_into().unwrap())
}

#[test]
fn a_log_of_each_format_version_is_read_and_goes_on_in_the_present_one() {
    for version in 1..=FORMAT_VERSION {
        let root = tempfile::tempdir().unwrap();
        copy(version, &fixture(version), root.path());
        assert_eq!(version_in(root.path()), version);
        let mut opened = check(root.path(), *checkpoints(version).last().unwrap());
        let wanted = [(Slot(2), batch(2).digest())];
        assert_eq!(opened.log.read_decisions(&wanted, 1 << 20).unwrap().len(), 1);
        opened.log.append(&[vote(3, 3, 3)]).unwrap();
        drop(opened);
        assert_eq!(version_in(root.path()), FORMAT_VERSION);
        let again = open(FileDisk::open(root.path()).unwrap(), &expectation(), &small()).unwrap();
        assert_eq!(again.records, [records(), vec![vote(3, 3, 3)]].concat());
    }
}

/// Long logs, of files that were used before, with groups that are a page shorter in version 1.
#[test]
fn a_log_that_went_back_to_version_1_holds_what_it_held_and_goes_on() {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    for slot in 1..60 {
        let records = vec![Record::View(View(0)); slot as usize * 10];
        opened.log.append(&[records, vec![vote(0, slot, slot), delivered(slot)]].concat()).unwrap();
        if slot == 30 {
            store(&mut opened, 25);
            opened.log.truncate_below(Slot(25)).unwrap();
        }
    }
    drop(opened);
    let held = reopen(disk.copy()).unwrap().records;
    let pages = |disk: &mut MemoryDisk, magic: &[u8]| {
        let mut found = Vec::new();
        for name in log_files(disk) {
            for offset in (8192..disk.len(&name).unwrap()).step_by(4096) {
                if read(disk, &name, offset, 8) == magic {
                    found.push((name.clone(), offset));
                }
            }
        }
        found
    };
    let before = pages(&mut disk, b"PDGROUP2");
    assert!(older_format::write_version_1(&mut disk).unwrap());
    let after = pages(&mut disk, b"PDGROUP1");
    assert!(after.len() == before.len() && after != before, "no group moved");
    let mut opened = reopen(disk.handle()).unwrap();
    assert_eq!(opened.records, held);
    assert!(opened.repaired_gaps.is_empty() && opened.torn_tail.is_none());
    opened.log.append(&[vote(0, 60, 60)]).unwrap();
    drop(opened);
    let again = reopen(disk.handle()).unwrap();
    assert_eq!(again.records, [held, vec![vote(0, 60, 60)]].concat());
}
