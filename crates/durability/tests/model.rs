//! The whole of storage against a model: random appends, checkpoints, truncations and restarts
//! over a disk that fails at a random operation and loses what it may lose.
//!
//! After each restart: every record of an acknowledged append above the checkpoint is there, in
//! order; the one append in flight is there as a whole or not at all; nothing else is. The
//! checkpoint is the last one stored, or the one in flight. No view, configuration or prefix is
//! forgotten. Nothing is reported as rotten or amnesiac, for nothing rotted.

mod common;

use common::*;
use perdura_durability::{Disk, MemoryDisk, OpenError, Opened, RecoveredState, format};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot, View};

/// What must be on the disk.
#[derive(Default)]
struct Model {
    acknowledged: Vec<Record>,
    // The append that was cut short.
    in_flight: Vec<Record>,
    checkpoint: u64,
    checkpoint_in_flight: Option<u64>,
    next_number: u64,
    view: u64,
    slot: u64,
}

fn bound_to_slot(record: &Record) -> bool {
    matches!(record, Record::Vote { .. } | Record::Decision { .. } | Record::Accepts { .. })
}

/// The newest of what a new file repeats.
fn standing(records: &[Record]) -> (Option<View>, Vec<u64>, Option<Slot>, Option<Slot>) {
    let view = records.iter().filter_map(|r| if let Record::View(v) = r { Some(*v) } else { None });
    let mut configurations: Vec<u64> = records
        .iter()
        .filter_map(|r| if let Record::Configuration(c) = r { Some(c.id) } else { None })
        .collect();
    configurations.sort_unstable();
    configurations.dedup();
    let kept = configurations.len().saturating_sub(16);
    let prefix =
        records.iter().filter_map(|r| if let Record::Prefix(p) = r { Some(p.slot) } else { None });
    let delivered = records
        .iter()
        .filter_map(|r| if let Record::Delivered { slot, .. } = r { Some(*slot) } else { None });
    (view.max(), configurations.split_off(kept), prefix.max(), delivered.max())
}

impl Model {
    fn group(&mut self, random: &mut Random) -> Vec<Record> {
        let largest = if random.below(20) == 0 { 300 } else { 12 };
        (0..=random.below(largest)).map(|_| self.record(random)).collect()
    }

    fn record(&mut self, random: &mut Random) -> Record {
        self.next_number += 1;
        let number = self.next_number;
        match random.below(20) {
            0 => {
                self.view += random.below(3);
                Record::View(View(self.view))
            }
            1 => configuration(number),
            2 => prefix(self.slot),
            3 => delivered(self.slot),
            4 => accepts(self.view, self.slot.max(1), number, 20),
            5 => Record::Decision {
                slot: Slot(self.slot + 1),
                view: View(self.view),
                batch: batch(number),
                accepts: certificate(4),
            },
            // After a view change, lower slots are voted for again.
            6 => vote(self.view, self.slot.saturating_sub(random.below(5)).max(1), number),
            _ => {
                self.slot += 1;
                vote(self.view, self.slot, number)
            }
        }
    }

    /// Does something; false when the disk failed in it.
    fn step(&mut self, opened: &mut Opened<MemoryDisk>, random: &mut Random) -> bool {
        match random.below(12) {
            0 if self.slot > self.checkpoint + 4 => {
                let slot = self.slot - 2;
                let mut give = |index| piece(slot, index);
                let digest = state_digest(slot);
                self.checkpoint_in_flight = Some(slot);
                let manifest = manifest(slot);
                let stored =
                    opened.checkpoints.store(Slot(slot), digest, &manifest, PIECES, &mut give);
                if stored.is_ok() {
                    self.checkpoint = slot;
                    self.checkpoint_in_flight = None;
                }
                stored.is_ok()
            }
            1 | 2 => opened.log.truncate_below(Slot(self.checkpoint)).is_ok(),
            3 => opened.log.prepare_free_file().is_ok(),
            _ => {
                self.in_flight = self.group(random);
                if opened.log.append(&self.in_flight).is_err() {
                    return false;
                }
                self.acknowledged.append(&mut self.in_flight);
                true
            }
        }
    }

    /// Holds what was found against the model, and goes on from it.
    fn check(&mut self, opened: &mut Opened<MemoryDisk>) {
        assert!(opened.repaired_gaps.is_empty(), "{:?}", opened.repaired_gaps);
        self.check_state(&mut opened.state);
        let found: Vec<&Record> = opened.records.iter().filter(|r| bound_to_slot(r)).collect();
        let in_flight: Vec<&Record> = self.in_flight.iter().filter(|r| bound_to_slot(r)).collect();
        let survived = !in_flight.is_empty() && found.ends_with(&in_flight)
            || in_flight.is_empty() && standing(&opened.records) != standing(&self.acknowledged);
        if survived {
            self.acknowledged.append(&mut self.in_flight);
        }
        self.in_flight.clear();
        let all: Vec<&Record> = self.acknowledged.iter().filter(|r| bound_to_slot(r)).collect();
        assert!(all.ends_with(&found), "not a suffix: {} of {}", found.len(), all.len());
        let dropped = all[..all.len() - found.len()].iter().filter_map(|r| r.slot()).max();
        assert!(dropped.is_none_or(|slot| slot <= Slot(self.checkpoint)), "{dropped:?} dropped");
        assert_eq!(standing(&opened.records), standing(&self.acknowledged));
        for record in opened.records.iter().filter(|record| !bound_to_slot(record)) {
            assert!(self.acknowledged.contains(record), "invented: {record:?}");
        }
    }

    fn check_state(&mut self, state: &mut RecoveredState<MemoryDisk>) {
        let found = match state {
            RecoveredState::Initial => 0,
            RecoveredState::Checkpoint(reader) => {
                let slot = reader.slot().0;
                assert_eq!(reader.digest(), state_digest(slot));
                assert_eq!(reader.manifest(), &manifest(slot));
                for (index, content) in reader.pieces().enumerate() {
                    assert_eq!(content.unwrap(), piece(slot, index));
                }
                slot
            }
            other => panic!("{other:?}"),
        };
        let in_flight = self.checkpoint_in_flight.take();
        assert!(found == self.checkpoint || Some(found) == in_flight);
        self.checkpoint = found;
    }
}

/// With `async`, what a process wrote survives the process, and only that is asked of it here.
fn life(seed: u64, durability: Durability) {
    let mut random = Random(seed);
    let mut disk = MemoryDisk::new();
    let mut model = Model::default();
    for _ in 0..25 {
        disk.fail_after(random.below(120));
        let result = reopen(disk.handle());
        match result {
            Ok(mut opened) => {
                model.check(&mut opened);
                while model.step(&mut opened, &mut random) {
                    if random.below(60) == 0 {
                        disk.fail_next_sync();
                    }
                }
            }
            Err(OpenError::Io(_)) => {}
            // Never formatted; that may fail, too.
            Err(OpenError::Empty) => {
                let _ = format(&mut disk, &identity(durability));
            }
            Err(error) => panic!("{error}"),
        }
        if durability == Durability::Async || random.below(3) == 0 {
            disk.restart_process();
        } else {
            disk.crash(|| random.word());
        }
    }
    if let Err(OpenError::Empty) = reopen(disk.handle()) {
        return;
    }
    model.check(&mut reopen(disk).unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_disk_fails() {
    // More seeds on demand: PERDURA_SEEDS=100000.
    let seeds = std::env::var("PERDURA_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(200) {
        let durability = if seed % 5 == 4 { Durability::Async } else { Durability::Sync };
        let outcome = std::panic::catch_unwind(|| life(seed, durability));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// The same script, cut at each of its operations in turn.
#[test]
fn nothing_is_lost_at_any_single_operation() {
    for cut in 0.. {
        let mut random = Random(7);
        let mut disk = formatted(Durability::Sync);
        disk.fail_after(cut);
        let mut model = Model::default();
        let mut finished = false;
        if let Ok(mut opened) = reopen(disk.handle()) {
            model.check(&mut opened);
            finished = (0..60).all(|_| model.step(&mut opened, &mut random));
        }
        let mut losses = Random(cut);
        disk.crash(|| losses.word());
        for _ in 0..2 {
            model
                .check(&mut reopen(disk.handle()).unwrap_or_else(|error| panic!("{cut}: {error}")));
        }
        if finished {
            assert!(cut > 150);
            return;
        }
    }
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
