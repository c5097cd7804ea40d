//! Superblock, log, checkpoints, and the log against its model over a disk that fails
//! (`crates/core/durability`).

#[path = "../../../core/durability/tests/common/mod.rs"]
pub mod model;

use crate::memory::Memory;
use crate::script::Script;
use crate::{Seed, round_trip, seed};
use model::{accepts, configuration, delivered, formatted, identity, prefix, reopen, store, vote};
use perdura_durability::inspect::{inspect_checkpoint, inspect_log};
use perdura_durability::{
    CheckpointName, Disk, Link, MemoryDisk, OpenError, RecoveredState, Superblock,
};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Digest, Slot};
use std::sync::OnceLock;

pub fn superblock(data: &[u8]) -> bool {
    round_trip::<Superblock>(Memory::FRAME, data).is_some()
}

pub fn superblocks() -> Vec<Seed> {
    let fresh = Superblock::new(identity(Durability::Async));
    let mut used = fresh.clone();
    used.opened = true;
    used.running = Some([9; 16]);
    used.identity.must_recover = Some(Slot(77));
    used.checkpoints = vec![CheckpointName { slot: Slot(64), digest: Digest::of(b"state") }; 4];
    used.links = vec![Link { checkpoint: Slot(64), file: Slot(32) }; 3];
    vec![seed("fresh", &fresh), seed("used", &used)]
}

/// A directory with a log of several files, and two checkpoints, the second linked to the first.
fn directory_of_a_replica() -> MemoryDisk {
    let mut disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).expect("a fresh directory opens");
    for slot in 1..40 {
        let mut records = vec![vote(slot / 20, slot, slot), accepts(0, slot, slot, 4)];
        match slot {
            10 => records.push(configuration(1)),
            12 | 24 => store(&mut opened, slot - 2),
            20 => records.extend([prefix(slot - 1), delivered(slot - 1)]),
            _ => {}
        }
        opened.log.append(&records).expect("a good disk takes it");
    }
    opened.log.truncate_below(Slot(10)).expect("a good disk takes it");
    drop(opened);
    disk.restart_process();
    disk
}

fn names(disk: &mut MemoryDisk) -> Vec<String> {
    let mut names = vec!["superblock".to_owned()];
    for directory in ["log", "checkpoint"] {
        let found = disk.list(directory).expect("memory is listed");
        names.extend(found.into_iter().map(|name| format!("{directory}/{name}")));
    }
    names
}

/// Patches to the files of a replica's directory, which is then opened. The first byte says whether
/// checksums are made to fit them. A patch: file 1, offset 2 (in units of 8 bytes if the file byte
/// is odd above 128), length 1, bytes.
///
/// Whatever stands there, opening ends in a verdict, and what opens can be written to. It opens again
/// with all of it, unless checksums were made to fit: then it may hold what no log holds.
pub fn directory(data: &[u8]) -> bool {
    static BASE: OnceLock<MemoryDisk> = OnceLock::new();
    let mut disk = BASE.get_or_init(directory_of_a_replica).copy();
    let names = names(&mut disk);
    let Some((seal, mut rest)) = data.split_first() else { return false };
    while let [file, low, high, length, more @ ..] = rest {
        let name = &names[usize::from(*file) % names.len()];
        let unit = if *file > 128 { 8 } else { 1 };
        let offset = u64::from(u16::from_le_bytes([*low, *high])) * unit;
        let (bytes, after) = more.split_at(more.len().min(usize::from(*length)));
        let inside = offset + bytes.len() as u64 <= disk.len(name).expect("the file is there");
        if inside {
            disk.write_at(name, offset, bytes).expect("memory takes it");
        }
        rest = after;
    }
    disk.sync_directory("").expect("memory takes it");
    let sealed = seal % 2 == 1;
    if sealed {
        perdura_durability::fuzzing::reseal(&mut disk, &identity(Durability::Sync))
            .expect("memory takes it");
    }
    look_at(&mut disk, &names);
    open_twice(&mut disk, &names, sealed)
}

fn total_bytes(disk: &mut MemoryDisk, names: &[String]) -> usize {
    names.iter().map(|name| disk.len(name).expect("the file is there") as usize).sum()
}

/// `perdura inspect`.
fn look_at(disk: &mut MemoryDisk, names: &[String]) {
    for name in names {
        if name.starts_with("checkpoint") {
            let _ = inspect_checkpoint(disk, name, &mut |_| ());
        } else if name.starts_with("log") {
            let _ = inspect_log(disk, name, &mut |_| ());
        }
    }
}

fn open_twice(disk: &mut MemoryDisk, names: &[String], sealed: bool) -> bool {
    // All files at once, decoded records beside the bytes that they share, and the log's index.
    let memory = Memory { times: 6, plus: 256 * 1024 };
    let length = total_bytes(disk, names);
    let mut opened = match memory.hold(length, || reopen(disk.handle())) {
        Ok(opened) => opened,
        Err(OpenError::Empty | OpenError::Io(_)) => panic!("the disk is neither empty nor broken"),
        Err(_) => return false,
    };
    if let RecoveredState::Checkpoint(reader) | RecoveredState::Previous { reader, .. } =
        &mut opened.state
    {
        reader.verify().expect("it was verified");
    }
    opened.log.append(&[vote(9, 99, 99)]).expect("a good disk takes it");
    drop(opened);
    match reopen(disk.handle()) {
        Ok(again) => assert!(sealed || again.records.contains(&vote(9, 99, 99))),
        Err(error) => assert!(sealed, "what opened does not open again: {error}"),
    }
    true
}

pub fn patches() -> Vec<Seed> {
    let mut disk = directory_of_a_replica();
    let names = names(&mut disk);
    let file = |prefix: &str| names.iter().position(|name| name.starts_with(prefix)).unwrap() as u8;
    let (log, checkpoint) = (file("log/0"), file("checkpoint/"));
    let page = |page: u16, offset: u16| (page * 4096 + offset).to_le_bytes();
    let patch = |file: u8, at: [u8; 2], bytes: &[u8]| {
        [&[file, at[0], at[1], bytes.len() as u8], bytes].concat()
    };
    let sealed = |patches: &[Vec<u8>]| [&[1][..], &patches.concat()].concat();
    vec![
        ("nothing", vec![0]),
        ("sealed", vec![1]),
        ("superblock_sequence", sealed(&[patch(0, page(0, 44), &[9])])),
        ("file_header", sealed(&[patch(log, page(0, 56), &[1])])),
        ("flush_mark", sealed(&[patch(log, page(1, 32), &[3])])),
        ("group_header", sealed(&[patch(log, page(2, 80), &[5])])),
        ("signature_in_a_record", sealed(&[patch(log, page(2, 180), &[0; 8])])),
        ("checkpoint_header", sealed(&[patch(checkpoint, page(0, 28), &[1])])),
        ("rot_in_a_group", [&[0][..], &patch(log, page(3, 200), &[255; 4])].concat()),
        ("rot_in_the_superblock", [&[0][..], &patch(0, page(1, 60), &[255; 4])].concat()),
    ]
}

/// Appends, checkpoints, truncations and restarts as the input has them, over a disk that fails
/// after a countdown.
pub fn log_model(data: &[u8]) -> bool {
    let Some((first, rest)) = data.split_first() else { return false };
    let durability = if first % 5 == 4 { Durability::Async } else { Durability::Sync };
    model::model::life(&mut Script::new(rest), durability, 1 + usize::from(first / 5) % 8);
    true
}

pub fn lives() -> Vec<Seed> {
    let mut random = model::Random(1);
    let mut life = |first: u8| {
        let mut out = vec![first];
        out.extend((0..400).map(|_| model::Choice::word(&mut random) as u8));
        out
    };
    vec![("one_run", life(0)), ("eight_runs", life(35)), ("eight_runs_unflushed", life(39))]
}
