//! Where the batches and certificates of decided slots stand in the log, so that laggards can be
//! served from disk. Memory is bounded by truncation: one entry per (slot, batch) in the files.

use super::group::PlacedRecord;
use perdura_protocol::{Digest, Record, Slot};
use std::collections::BTreeMap;

/// Where a record's frame stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub(crate) use_number: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// The newest records of one slot and batch.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Entry {
    /// A Vote or Decision.
    pub(crate) batch: Option<Location>,
    /// An Accepts.
    pub(crate) accepts: Option<Location>,
}

/// The index. Votes for one slot may be for different batches in different views; each has its
/// entry.
#[derive(Default, Debug)]
pub(crate) struct Index {
    entries: BTreeMap<(Slot, Digest), Entry>,
}

impl Index {
    /// Takes in a record whose frame stands at `location`.
    pub(crate) fn insert(&mut self, record: &Record, location: Location) {
        match record {
            Record::Vote { slot, batch, .. } | Record::Decision { slot, batch, .. } => {
                self.entries.entry((*slot, batch.digest())).or_default().batch = Some(location);
            }
            Record::Accepts { slot, digest, .. } => {
                self.entries.entry((*slot, *digest)).or_default().accepts = Some(location);
            }
            _ => {}
        }
    }

    /// Takes in the records of a group at `offset` of a file.
    pub(crate) fn insert_group(&mut self, use_number: u64, offset: u64, records: &[PlacedRecord]) {
        for PlacedRecord { offset: at, bytes, record } in records {
            let (offset, bytes) = (offset + *at as u64, *bytes as u32);
            self.insert(record, Location { use_number, offset, bytes });
        }
    }

    /// The entry of a slot's batch.
    pub(crate) fn get(&self, slot: Slot, digest: Digest) -> Option<Entry> {
        self.entries.get(&(slot, digest)).copied()
    }

    /// Forgets what stood in files before use `first_use`, which held no slot above `through`.
    pub(crate) fn forget(&mut self, through: Slot, first_use: u64) {
        let mut above = self.entries.split_off(&(through.plus(1), Digest::ZERO));
        let gone = |location: &mut Option<Location>| {
            if location.is_some_and(|location| location.use_number < first_use) {
                *location = None;
            }
        };
        self.entries.retain(|_, entry| {
            gone(&mut entry.batch);
            gone(&mut entry.accepts);
            entry.batch.is_some() || entry.accepts.is_some()
        });
        self.entries.append(&mut above);
    }
}
