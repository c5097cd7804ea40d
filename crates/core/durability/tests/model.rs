//! The whole of storage against a model (`common/model.rs`): random appends, checkpoints, truncations
//! and restarts over a disk that fails at a random operation and loses what it may lose.

use crate::common::model::{Model, life};
use crate::common::*;
use perdura_durability::{Disk, MemoryDisk, OpenError, StorageOptions, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot};

#[test]
fn nothing_acknowledged_is_lost_wherever_the_disk_fails() {
    // More seeds on demand: PERDURA_SEEDS=100000.
    let seeds = std::env::var("PERDURA_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(200) {
        let durability = match seed % 5 {
            4 => Durability::Async,
            _ => Durability::Sync,
        };
        let outcome = std::panic::catch_unwind(|| life(&mut Random(seed), durability, 25));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// The same script, cut at each of its operations in turn: with files of one size, with files that grow from small
/// ones, and with those of which a part is taken into use before its zeros were flushed.
#[test]
fn nothing_is_lost_at_any_single_operation() {
    const KIB: u64 = 1024;
    for (file, hasty, steps) in [(32, 32, 60), (512, 16, 120), (2048, 1024, 120)] {
        let (log_file_bytes, hasty_log_file_bytes) = (file * KIB, hasty * KIB);
        let sizes = StorageOptions { log_file_bytes, hasty_log_file_bytes, ..options() };
        cut_everywhere(&sizes, steps);
    }
}

fn cut_everywhere(sizes: &StorageOptions, steps: u32) {
    let reopen = |disk: &MemoryDisk| open(disk.handle(), &expectation(), sizes);
    for cut in 0.. {
        let mut random = Random(7);
        let mut model = Model::default();
        // A small file is in use.
        let mut disk = formatted(Durability::Sync);
        drop(opened(&disk));
        disk.fail_after(cut);
        let (mut finished, mut grown) = (false, false);
        if let Ok(mut opened) = reopen(&disk) {
            model.check(&mut opened);
            finished = (0..steps).all(|_| {
                let goes_on = model.step(&mut opened, &mut random);
                grown |= goes_on && any_between(&mut disk, sizes);
                goes_on
            });
        }
        let mut losses = Random(cut);
        disk.crash(|| losses.word());
        for _ in 0..2 {
            model.check(&mut reopen(&disk).unwrap_or_else(|error| panic!("{cut}: {error}")));
        }
        if finished {
            assert!(cut > 150);
            assert_eq!(grown, sizes.log_file_bytes > 32 * 1024, "a file was used as far as it was");
            return;
        }
    }
}

/// Whether a file is in use that was not as large as it was to become.
fn any_between(disk: &mut MemoryDisk, sizes: &StorageOptions) -> bool {
    log_files(disk).iter().any(|name| {
        let size = disk.len(name).unwrap();
        size > 64 * 1024 && size < sizes.log_file_bytes
    })
}

/// One bit flips in a log that nothing else happened to. Either everything is still there, or the
/// loss is reported, or the replica is amnesiac. Never is anything missing in silence.
#[test]
fn no_flipped_bit_in_the_log_goes_unnoticed() {
    let mut random = Random(11);
    let mut disk = formatted(Durability::Sync);
    let mut model = Model::default();
    let mut opened = reopen(disk.handle()).unwrap();
    for _ in 0..80 {
        assert!(model.step(&mut opened, &mut random));
    }
    drop(opened);
    let expected = reopen(disk.copy()).unwrap().records;
    let files = log_files(&mut disk);
    let (mut intact, mut repaired, mut amnesiac) = (0, 0, 0);
    for _ in 0..3000 {
        let mut copy = disk.copy();
        let file = &files[random.below(files.len() as u64) as usize];
        copy.flip_bit(file, random.below(32 * 1024), random.below(8) as u8).unwrap();
        match reopen(copy) {
            Ok(opened) if opened.repaired_gaps.is_empty() => {
                assert_eq!(opened.records, expected, "{file}");
                intact += 1;
            }
            Ok(opened) => {
                let through = opened.repaired_gaps[0].votes_through;
                assert!(opened.records.iter().any(|r| match r {
                    Record::Delivered { slot, .. } => *slot >= through,
                    Record::Prefix(prefix) => prefix.slot >= through,
                    _ => Slot(model.checkpoint) >= through,
                }));
                repaired += 1;
            }
            Err(OpenError::Amnesiac(_)) => amnesiac += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(intact > 0 && repaired > 0 && amnesiac > 0, "{intact} {repaired} {amnesiac}");
}
