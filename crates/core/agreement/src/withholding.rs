//! Single frames that a leader leaves out while it serves their clients otherwise (r > 0).
//!
//! A leader takes whatever waits for a batch, up to its limits. If a batch and the first frame of the
//! next one fit into one together, nothing else waited when the former was closed: a frame that
//! the leader held by then is in it or in an earlier one. That holds of a batch whatever else goes on,
//! so neither load nor the speed of machines can be taken for a fault of the leader's.
//!
//! What a follower does not know is whether the leader held the frame: it may have been lost, or be on a
//! slow way. So a frame is handed over once more when a batch passed it over, as an overdue one, which a
//! correct leader takes whatever else its client sends; and only after [`PASSED_OVER`] times in a row,
//! [`AGAIN_MS`] apart at least, it is withheld. A correct leader that has it once proposes it. One whose
//! way to a follower takes longer than all of these together may be given up; for the next one twice
//! as many are asked for.
//!
//! A leader whose batches are full proves nothing here, be it with frames that were ordered before, or with as many commands as it may execute in
//! a slot's time: how fast it does is known only roughly, by how fast this replica does. One whose clients are costly leaves out all of
//! some of them for a while, but never some of one.

use crate::expected::Expected;
use crate::pool::{FrameKey, Pool, cost};
use bytes::Bytes;
use perdura_protocol::batch::BatchKind;
use perdura_protocol::{Batch, Frame, PublicKey, limits};
use std::collections::{BTreeMap, BTreeSet};

/// Frames that are watched at a time, the longest-waiting ones: one would do to find a leader out.
pub const ASKED_AT_ONCE: usize = 8;

/// So often a frame has to be passed over, each time after it was handed over once more.
pub const PASSED_OVER: u32 = 8;

/// Twice in this time, or in what a larger frame takes on its way, a frame is neither passed over nor handed
/// over once more.
pub const AGAIN_MS: u64 = 1_000;

/// A frame counts as held after this time on its way to the leader, and that of the proposal back: a
/// round trip round the world;
pub const HELD_AFTER_MS: u64 = 200;

/// and as long as its bytes take on a link of so many in a second.
const SLOW_LINK_BYTES: usize = 256 * 1024;

/// A leader may execute so many times more slowly than this replica, and close its batches by that.
const SPEEDS: usize = 8;

/// Doublings of [`PASSED_OVER`],
const DOUBLINGS: u32 = 3;

/// which are forgotten when no leader withheld anything for this time.
const FORGIVEN_MS: u64 = 120_000;

/// One frame that was handed over and is its client's oldest.
#[derive(Clone, Debug)]
struct Asked {
    // The frame itself: another one may come under its name.
    raw: Bytes,
    way_ms: u64,
    // Handed over by then.
    since_ms: u64,
    passed_over: bool,
    times: u32,
    counted_ms: u64,
}

impl Asked {
    fn new(frame: &Frame, now_ms: u64) -> Self {
        let way_ms = HELD_AFTER_MS + (cost(frame) * 1000 / SLOW_LINK_BYTES) as u64;
        let raw = frame.raw().clone();
        Self { raw, way_ms, since_ms: now_ms, passed_over: false, times: 0, counted_ms: 0 }
    }

    /// Whether this frame still waits. Its bytes are held here, so nothing else lies in their place.
    fn waits(&self, key: FrameKey, pool: &Pool) -> bool {
        pool.get(key).is_some_and(|frame| frame.raw().as_ptr() == self.raw.as_ptr())
    }

    /// The frame did not come, one more time; false if that is too soon after the last time.
    fn count(&mut self, now_ms: u64) -> bool {
        let due = self.times == 0 || now_ms >= self.counted_ms + self.way_ms.max(AGAIN_MS);
        if due {
            self.times += 1;
            self.counted_ms = now_ms;
        }
        due
    }
}

/// The last batch of requests that was delivered.
#[derive(Clone, Debug)]
struct Closed {
    bytes: usize,
    frames: usize,
    commands: usize,
    proposed_ms: u64,
    // Those whose commands are costly.
    costly: BTreeSet<PublicKey>,
}

/// What one replica holds against its leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withholding {
    asked: BTreeMap<FrameKey, Asked>,
    closed: Option<Closed>,
    // Leaders that withheld something, none long after the one before; when the last one was left.
    in_a_row: u32,
    found_ms: u64,
}

impl Withholding {
    /// A view starts.
    pub fn restart(&mut self, now_ms: u64) {
        if self.found() {
            (self.in_a_row, self.found_ms) = (self.in_a_row + 1, now_ms);
        } else if now_ms >= self.found_ms + FORGIVEN_MS {
            self.in_a_row = 0;
        }
        self.asked.clear();
        self.closed = None;
    }

    /// The link to the leader is a new one: what was handed over may have been lost. But a leader
    /// does not get rid of a frame by its links.
    pub fn forget(&mut self, now_ms: u64) {
        for asked in self.asked.values_mut() {
            asked.count(now_ms);
            (asked.since_ms, asked.passed_over) = (now_ms, false);
        }
    }

    /// Slots are missing between the last batch and the next one.
    pub fn installed(&mut self) {
        self.closed = None;
    }

    /// Time passes: these are the oldest frames of their clients that were handed over.
    pub fn tick(&mut self, oldest: impl Iterator<Item = FrameKey>, pool: &Pool, now_ms: u64) {
        self.asked.retain(|key, asked| asked.waits(*key, pool));
        let mut free = ASKED_AT_ONCE - self.asked.len();
        if free == 0 {
            return;
        }
        let fresh = oldest.filter(|key| !self.asked.contains_key(key));
        let mut fresh: Vec<(u64, FrameKey)> =
            fresh.filter_map(|key| Some((pool.handed_ms(key)?, key))).collect();
        fresh.sort_unstable();
        for (_, key) in fresh {
            if free == 0 {
                break;
            }
            let Some(frame) = pool.get(key) else { continue };
            free -= 1;
            self.asked.insert(key, Asked::new(frame, now_ms));
        }
    }

    /// A batch is delivered, and its frames are gone from the pool; when it arrived as a proposal
    /// that this view's leader was free to make.
    pub fn delivered(
        &mut self,
        batch: &Batch,
        proposed_ms: Option<u64>,
        (pool, expected, most_commands): (&Pool, &Expected, usize),
        now_ms: u64,
    ) {
        if batch.kind() != BatchKind::Requests {
            return;
        }
        let bytes = batch.frames().iter().map(|frame| frame.raw().len()).sum();
        let frames = batch.frames().len();
        let commands = batch.frames().iter().map(|frame| frame.commands().len()).sum();
        let clients = batch.frames().iter().map(|frame| frame.session.client);
        let costly = clients.filter(|client| expected.of(client) > 0).collect();
        let next =
            proposed_ms.map(|proposed_ms| Closed { bytes, frames, commands, proposed_ms, costly });
        let is_free = next.is_some();
        let closed = std::mem::replace(&mut self.closed, next);
        if self.asked.is_empty() {
            return;
        }
        // Also if the same one is offered again right away.
        for frame in batch.frames() {
            self.asked.remove(&(frame.session, frame.first_number));
        }
        let Some(closed) = closed.filter(|_| is_free) else { return };
        let first = batch.frames().first();
        let (bytes, commands) =
            first.map_or((0, 0), |frame| (frame.raw().len(), frame.commands().len()));
        let took_all = closed.frames < limits::BATCH_FRAMES
            && closed.bytes + bytes <= limits::BATCH_TARGET_BYTES
            && closed.commands + commands <= most_commands / SPEEDS;
        if !took_all {
            return;
        }
        for (key, asked) in self.asked.iter_mut().filter(|(_, asked)| !asked.passed_over) {
            // One that is not handed over is not the leader's.
            let handed_ms = pool.handed_ms(*key).filter(|_| asked.waits(*key, pool));
            let Some(handed_ms) = handed_ms else { continue };
            let client = &key.0.client;
            if expected.of(client) > 0 && !closed.costly.contains(client) {
                continue;
            }
            if closed.proposed_ms >= handed_ms.max(asked.since_ms) + asked.way_ms {
                asked.passed_over = asked.count(now_ms);
            }
        }
    }

    /// Frames that were passed over and are to be handed over once more.
    pub fn again(&mut self, now_ms: u64) -> Vec<FrameKey> {
        let mut keys = Vec::new();
        for (key, asked) in &mut self.asked {
            if asked.passed_over && now_ms >= asked.since_ms + AGAIN_MS {
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
