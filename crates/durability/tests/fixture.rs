//! Data directories of earlier format versions stay openable: a directory as format version 1
//! wrote it, byte for byte, is in `fixtures/format-1`. When a format changes its version number
//! does too, and a new fixture joins the old ones.
//!
//! `PERDURA_WRITE_FIXTURE=1 cargo test -p perdura-durability --test fixture` writes it anew; that
//! is right only before the version was ever released.

mod common;

use common::*;
use perdura_durability::{FileDisk, Options, RecoveredState, format, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot, View};
use std::path::{Path, PathBuf};

const FILES: [&str; 3] = ["superblock", "log/0000000000000001", "checkpoint/00000000000000000001"];

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
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
    copy(root.path(), &fixture());
}

#[test]
fn a_directory_of_format_version_1_is_opened() {
    if std::env::var_os("PERDURA_WRITE_FIXTURE").is_some() {
        write_fixture();
    }
    let root = tempfile::tempdir().unwrap();
    copy(&fixture(), root.path());
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
}
