//! Data directories of earlier format versions stay openable: a directory as format version V
//! wrote it, byte for byte, is in `fixtures/format-V`. When a format changes its version number
//! does too, and a new fixture joins the old ones.
//!
//! `PERDURA_WRITE_FIXTURE=1 cargo test -p perdura-durability --test fixture` writes that of the
//! newest version anew; that is right only before it was ever released.

mod common;

use common::*;
use perdura_durability::{FORMAT_VERSION, FileDisk, Options, RecoveredState, format, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot, View};
use std::path::{Path, PathBuf};

const FILES: [&str; 3] = ["superblock", "log/0000000000000001", "checkpoint/00000000000000000001"];

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
fn small() -> Options {
    Options { log_file_bytes: 16 * 1024, ..options() }
}

fn copy(from: &Path, to: &Path) {
    for name in FILES {
        std::fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn write_fixture() {
    let root = tempfile::tempdir().unwrap();
    let mut disk = FileDisk::create_directory(root.path()).unwrap();
    format(&mut disk, &identity(Durability::Sync)).unwrap();
    let mut opened = open(disk, &expectation(), &small()).unwrap();
    opened.log.append(&records()[..3]).unwrap();
    opened.log.append(&records()[3..]).unwrap();
    store(&mut opened, 1);
    copy(root.path(), &fixture(FORMAT_VERSION));
}

#[test]
fn a_directory_of_each_format_version_is_opened_and_written_to() {
    if std::env::var_os("PERDURA_WRITE_FIXTURE").is_some() {
        write_fixture();
    }
    for version in 1..=FORMAT_VERSION {
        check(version);
    }
}

/// Of a copy of the superblock on disk.
fn version_in(root: &Path) -> u32 {
    let superblock = std::fs::read(root.join("superblock")).unwrap();
    u32::from_le_bytes(superblock[40..44].try_into().unwrap())
}

fn check(version: u32) {
    let root = tempfile::tempdir().unwrap();
    copy(&fixture(version), root.path());
    assert_eq!(version_in(root.path()), version);
    let mut opened = open(FileDisk::open(root.path()).unwrap(), &expectation(), &small()).unwrap();
    assert_eq!(opened.records, records());
    assert!(opened.repaired_gaps.is_empty() && opened.torn_tail.is_none());
    let RecoveredState::Checkpoint(reader) = &mut opened.state else { panic!("no state") };
    assert_eq!((reader.slot(), reader.digest()), (Slot(1), state_digest(1)));
    assert_eq!(reader.manifest(), &manifest(1));
    for (index, content) in reader.pieces().enumerate() {
        assert_eq!(content.unwrap(), piece(1, index));
    }
    assert_eq!(opened.log.position().votes, Slot(1));
    let wanted = [(Slot(2), batch(2).digest())];
    assert_eq!(opened.log.read_decisions(&wanted, 1 << 20).unwrap().len(), 1);

    // From then on it is of the newest, for what is added to it is.
    opened.log.append(&[vote(3, 3, 3)]).unwrap();
    drop((opened.log, opened.checkpoints, opened.state));
    assert_eq!(version_in(root.path()), FORMAT_VERSION);
    let again = open(FileDisk::open(root.path()).unwrap(), &expectation(), &small()).unwrap();
    assert_eq!(again.records, [records(), vec![vote(3, 3, 3)]].concat());
}
