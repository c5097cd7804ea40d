//! The model of storage: what must be on the disk after any failure. Shared by the tests of this
//! crate and the fuzz target `log_model` (`crates/proof/fuzzing`).
//!
//! After each restart: every record of an acknowledged append above the checkpoint is there, in
//! order; the one append in flight is there as a whole or not at all; nothing else is. The
//! checkpoint is the last one stored, or the one in flight. No view, configuration, prefix, nor boot or vote of
//! another is forgotten. Nothing is reported as rotten or amnesiac, for nothing rotted.

use super::*;
use perdura_durability::RecoveredState;
use std::collections::BTreeMap;

/// What must be on the disk.
#[derive(Default)]
pub struct Model {
    acknowledged: Vec<Record>,
    // The append that was cut short.
    in_flight: Vec<Record>,
    pub checkpoint: u64,
    checkpoint_in_flight: Option<u64>,
    next_number: u64,
    view: u64,
    slot: u64,
}

fn bound_to_slot(record: &Record) -> bool {
    matches!(record, Record::Vote { .. } | Record::Decision { .. } | Record::Accepts { .. })
}

/// The newest of what a new file repeats.
#[derive(PartialEq, Debug)]
struct Standing {
    view: Option<View>,
    configurations: Vec<u64>,
    prefix: Option<Slot>,
    delivered: Option<Slot>,
    // By replica, and whether it is a vote.
    of_others: BTreeMap<(ReplicaId, bool), (PublicKey, Record)>,
}

fn standing(records: &[Record]) -> Standing {
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
    let mut of_others = BTreeMap::new();
    for record in records {
        let (Record::Boot { replica, key, .. } | Record::Heard { replica, key, .. }) = record
        else {
            continue;
        };
        let is_vote = matches!(record, Record::Heard { .. });
        of_others.insert((*replica, is_vote), (*key, record.clone()));
        // What another key signed is an incarnation's that was replaced.
        of_others.retain(|(of, _), (by, _)| of != replica || by == key);
    }
    Standing {
        view: view.max(),
        configurations: configurations.split_off(kept),
        prefix: prefix.max(),
        delivered: delivered.max(),
        of_others,
    }
}

impl Model {
    fn group(&mut self, random: &mut impl Choice) -> Vec<Record> {
        let largest = if random.below(20) == 0 { 300 } else { 12 };
        (0..=random.below(largest)).map(|_| self.record(random)).collect()
    }

    fn record(&mut self, random: &mut impl Choice) -> Record {
        self.next_number += 1;
        let number = self.next_number;
        match random.below(22) {
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
            20 => boot(random.below(4) as u8, number),
            21 => heard(random.below(4) as u8, number),
            // After a view change, lower slots are voted for again.
            6 => vote(self.view, self.slot.saturating_sub(random.below(5)).max(1), number),
            _ => {
                self.slot += 1;
                vote(self.view, self.slot, number)
            }
        }
    }

    /// Does something; false when the disk failed in it.
    pub fn step(&mut self, opened: &mut Opened<MemoryDisk>, random: &mut impl Choice) -> bool {
        match random.below(12) {
            0 if self.slot > self.checkpoint + 4 => {
                let slot = self.slot - 2;
                self.checkpoint_in_flight = Some(slot);
                let stored = try_store(opened, slot);
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
    pub fn check(&mut self, opened: &mut Opened<MemoryDisk>) {
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

/// Each run may have files of another size, and begin with smaller ones.
fn sizes(random: &mut impl Choice) -> StorageOptions {
    // Of the largest ones a part is taken into use before its zeros were flushed.
    let hasty_log_file_bytes = [16, 32, 1024][random.below(3) as usize] * 1024;
    let log_file_bytes = hasty_log_file_bytes * [1, 4, 16][random.below(3) as usize];
    StorageOptions { log_file_bytes, hasty_log_file_bytes, ..options() }
}

/// One replica's disk over several runs, each of which ends with the disk or its machine. With
/// `async`, what a process wrote survives the process, and only that is asked of it here.
pub fn life(random: &mut impl Choice, durability: Durability, runs: usize) {
    let mut disk = MemoryDisk::new();
    let mut model = Model::default();
    for _ in 0..runs {
        disk.fail_after(random.below(120));
        let result = open(disk.handle(), &expectation(), &sizes(random));
        match result {
            Ok(mut opened) => {
                model.check(&mut opened);
                while model.step(&mut opened, random) {
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
