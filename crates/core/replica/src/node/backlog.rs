//! What waits for this replica's disk, in bytes: records that are to be logged with their batches,
//! and the replies that may leave only then.
//!
//! The others go on while this disk stands still, and what they decide would pile up here: a
//! hundred MB in a second. Beyond its bound a replica executes nothing more. It is a laggard then,
//! votes for no more than a pipeline's depth, and fetches what it missed when its disk goes on (A6).

use super::{Node, Now};
use perdura_protocol::Record;
use std::collections::VecDeque;

/// Bytes that may wait for the disk in a real replica: some seconds of full load, which a disk that
/// is collecting garbage may take, and little beside the state.
pub const BACKLOG_BYTES: usize = 256 * 1024 * 1024;

/// Appends that may be under way; what comes then waits for the next, in one. The keeper's queue has
/// room for more, so that the event loop never waits for the disk.
pub(super) const APPENDS: usize = 1024;

/// The records that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: usize,
    // Not appended yet.
    open: usize,
    // Appended: the mark that is to be reported, and the bytes.
    appended: VecDeque<(u64, usize)>,
    largest: usize,
}

/// What a record counts for, without its batch.
pub const NOTE_BYTES: usize = 256;

fn size(record: &Record) -> usize {
    record.batch().map_or(NOTE_BYTES, |(_, batch)| batch.raw().len() + NOTE_BYTES)
}

impl Backlog {
    /// Bytes of all records that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the largest record there was.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Whether no more appends should be begun.
    pub fn is_busy(&self) -> bool {
        self.appended.len() >= APPENDS
    }

    pub fn add(&mut self, record: &Record) {
        let bytes = size(record);
        self.bytes += bytes;
        self.open += bytes;
        self.largest = self.largest.max(bytes);
    }

    /// A record was replaced before it was appended.
    pub fn remove(&mut self, record: Option<&Record>) {
        let bytes = record.map_or(0, size).min(self.open);
        self.bytes -= bytes;
        self.open -= bytes;
    }

    pub fn append(&mut self, mark: u64) {
        self.appended.push_back((mark, std::mem::take(&mut self.open)));
    }

    pub fn persisted(&mut self, mark: u64) {
        while let Some((_, bytes)) = self.appended.pop_front_if(|(at, _)| *at <= mark) {
            self.bytes -= bytes;
        }
    }
}

impl Node {
    /// Bytes that wait for the disk.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.backlog.bytes() + self.egress.bytes()
    }

    /// Stops executing when too much waits, and goes on when half of it is done.
    pub(super) fn mind_backlog(&mut self, now: Now) {
        let bound = if self.disk_lags { self.backlog_bytes / 2 } else { self.backlog_bytes };
        let lags = self.waiting_bytes() > bound;
        if lags != self.disk_lags {
            self.disk_lags = lags;
            self.agreement.on_disk_lag(now, lags);
            self.carry_out(now);
        }
    }
}
