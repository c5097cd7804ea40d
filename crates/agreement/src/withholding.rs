//! Single frames that a leader leaves out while it serves their clients otherwise (r > 0).
//!
//! A leader takes whatever waits for a batch, up to its limits. If a batch and the first frame of the
//! next one fit into one together, nothing else waited when the former was closed: a frame that
//! the leader held by then is in it or in an earlier one. That holds of a batch whatever else goes on,
//! so neither load nor the speed of machines can be taken for a fault of the leader's.
//!
//! What a follower does not know is whether the leader held the frame: it may have been lost, be on a
//! slow way, or have found no room. So a frame is handed over once more when a batch passed it
//! over, [`AGAIN_MS`] apart at least, and only after [`PASSED_OVER`] times in a row it is withheld. A
//! correct leader that has it once proposes it. One whose way to a follower takes longer than all of
//! these together may be given up; for the next one twice as many are asked for.

use crate::pool::{FrameKey, Pool, cost};
use perdura_protocol::batch::BatchKind;
use perdura_protocol::{Batch, PublicKey, limits};
use std::collections::BTreeMap;

/// So often a frame has to be passed over, each time after it was handed over once more.
pub const PASSED_OVER: u32 = 8;

/// A frame that was passed over is handed over once more after this time.
pub const AGAIN_MS: u64 = 1_000;

/// A frame counts as held after this time on its way to the leader, and that of the proposal back: a
/// round trip round the world;
pub const HELD_AFTER_MS: u64 = 200;

/// and as long as its bytes take on a link of so many in a second.
const SLOW_LINK_BYTES: usize = 256 * 1024;

/// Doublings of [`PASSED_OVER`].
const DOUBLINGS: u32 = 2;

/// One frame that was handed over and is its client's oldest.
#[derive(Clone, Copy, Debug)]
struct Asked {
    since_ms: u64,
    passed_over: bool,
    times: u32,
}

/// The last batch of requests that was delivered.
#[derive(Clone, Copy, Debug)]
struct Closed {
    bytes: usize,
    frames: usize,
    proposed_ms: u64,
}

/// What one replica holds against its leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withholding {
    asked: BTreeMap<FrameKey, Asked>,
    closed: Option<Closed>,
    // Leaders in a row that withheld something.
    in_a_row: u32,
}

impl Withholding {
    /// A view starts.
    pub fn restart(&mut self) {
        self.in_a_row = if self.found() { self.in_a_row + 1 } else { 0 };
        self.asked.clear();
        self.closed = None;
    }

    /// What was handed over may have been lost.
    pub fn forget(&mut self, now_ms: u64) {
        for asked in self.asked.values_mut() {
            (asked.since_ms, asked.passed_over) = (now_ms, false);
        }
    }

    /// Time passes: these are the oldest frames of their clients that were handed over.
    pub fn tick(&mut self, oldest: impl Iterator<Item = FrameKey>, pool: &Pool, now_ms: u64) {
        self.asked.retain(|key, _| pool.get(*key).is_some());
        for key in oldest {
            let fresh = Asked { since_ms: now_ms, passed_over: false, times: 0 };
            self.asked.entry(key).or_insert(fresh);
        }
    }

    /// A batch is delivered, and its frames are gone from the pool; when it arrived as a proposal
    /// that this view's leader was free to make.
    pub fn delivered(&mut self, batch: &Batch, proposed_ms: Option<u64>, pool: &Pool) {
        if batch.kind() != BatchKind::Requests {
            return;
        }
        let bytes = batch.frames().iter().map(|frame| frame.raw().len()).sum();
        let frames = batch.frames().len();
        let next = proposed_ms.map(|proposed_ms| Closed { bytes, frames, proposed_ms });
        let closed = std::mem::replace(&mut self.closed, next);
        let Some((closed, _)) = closed.zip(next).filter(|_| !self.asked.is_empty()) else { return };
        let first = batch.frames().first().map_or(0, |frame| frame.raw().len());
        let took_all = closed.frames < limits::BATCH_FRAMES
            && closed.bytes + first <= limits::BATCH_TARGET_BYTES;
        if !took_all {
            return;
        }
        for (key, asked) in self.asked.iter_mut().filter(|(_, asked)| !asked.passed_over) {
            let Some(frame) = pool.get(*key) else { continue };
            let way_ms = HELD_AFTER_MS + (cost(frame) * 1000 / SLOW_LINK_BYTES) as u64;
            if closed.proposed_ms >= asked.since_ms + way_ms {
                asked.passed_over = true;
                asked.times += 1;
            }
        }
    }

    /// Frames that were passed over and are to be handed over once more. A leader may refuse those of
    /// clients that have used up their share: `within_share` says who has not.
    pub fn again(
        &mut self,
        now_ms: u64,
        within_share: impl Fn(PublicKey) -> bool,
    ) -> Vec<FrameKey> {
        let mut keys = Vec::new();
        for (key, asked) in &mut self.asked {
            let due = asked.passed_over && now_ms >= asked.since_ms + AGAIN_MS;
            if due && within_share(key.0.client) {
                (asked.since_ms, asked.passed_over) = (now_ms, false);
                keys.push(*key);
            }
        }
        keys
    }

    /// Whether the leader withholds some frame.
    pub fn found(&self) -> bool {
        let times = PASSED_OVER << self.in_a_row.min(DOUBLINGS);
        self.asked.values().any(|asked| asked.times >= times)
    }
}

#[cfg(test)]
mod tests;
