//! A replica as the world has it: a machine with a clock and a disk, and on it a process, or none.

use crate::random::Random;
use crate::report::FaultKind;
use crate::witness::{Notes, Witnessed};
use bytes::Bytes;
use perdura_adversary::Liar;
use perdura_durability::{Checkpoints, Log, MemoryDisk};
use perdura_execution::{Genesis, Manifest, StateSnapshot};
use perdura_protocol::{Configuration, Record, SecretKey, Slot, Time};
use perdura_replica::node::{Node, Now};
use std::collections::VecDeque;

/// The wall clock when virtual time is 0, milliseconds since the Unix epoch.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// Most that a wall clock is off, milliseconds: any two agree within `max_skew_ms` (500) with time
/// to spare for a proposal's way.
const WALL_OFF_MS: i64 = 180;

/// The clocks of a machine. Monotonic time runs at its own pace; the wall clock is off, drifts,
/// and is held within bounds, as NTP does.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_ms: i64,
    // In a million.
    drift: i64,
    started_ms: u64,
}

impl Clock {
    /// Draws a clock.
    pub fn draw(random: &mut Random, drift: u64) -> Clock {
        let offset_ms = random.below(2 * WALL_OFF_MS as u64) as i64 - WALL_OFF_MS;
        let drift = random.below(2 * drift + 1) as i64 - drift as i64;
        Clock { offset_ms, drift, started_ms: random.below(1_000_000) }
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self, at_us: u64) -> Now {
        let drifted = (at_us as i128 * i128::from(self.drift) / 1_000_000) as i64 / 1000;
        let off = (self.offset_ms + drifted).clamp(-WALL_OFF_MS, WALL_OFF_MS);
        let at_ms = (at_us / 1000) as i64;
        Now {
            monotonic_ms: self.started_ms + (at_ms + drifted) as u64,
            wall: Time((EPOCH_MS as i64 + at_ms + off) as u64),
        }
    }
}

/// A write of the log under way.
#[derive(Debug)]
pub struct Flush {
    /// What is written.
    pub records: Vec<Record>,
    /// To be reported.
    pub mark: u64,
    /// Whether the disk has done its part, and only the word of it is on its way.
    pub written: bool,
}

/// A state to be stored.
#[derive(Debug)]
pub enum StateJob {
    /// This replica's own.
    Store(StateSnapshot),
    /// One that was transferred.
    Install {
        /// Its manifest.
        manifest: Manifest,
        /// Its pieces.
        pieces: Vec<Bytes>,
    },
}

/// A running process.
pub struct Process {
    /// The replica itself.
    pub node: Node<Witnessed>,
    /// What it executed.
    pub notes: Notes,
    /// Its log.
    pub log: Log<MemoryDisk>,
    /// Its checkpoints.
    pub checkpoints: Checkpoints<MemoryDisk>,
    /// What waits for the keeper.
    pub appends: VecDeque<(Vec<Record>, u64)>,
    /// What the keeper is at.
    pub flush: Option<Flush>,
    /// The log is to be cut below this slot when the keeper is free.
    pub truncate: Option<Slot>,
    /// States to be stored; the first is under way.
    pub states: VecDeque<StateJob>,
    /// Who may connect.
    pub members: Configuration,
    /// The last slot seen executed.
    pub executed: Slot,
    /// Whether the end of the round is still to come.
    pub round_open: bool,
}

/// What is armed and strikes at the next occasion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Armed {
    /// The process dies after this many more outputs.
    pub at_send: Option<u64>,
    /// The disk fails after this many operations in the next append.
    pub in_append: Option<u64>,
    /// The disk fails after this many operations in the next stored state.
    pub in_checkpoint: Option<u64>,
    /// The disk fails after this many operations of the next start.
    pub in_recovery: Option<u64>,
    /// Why the disk is going to fail.
    pub disk: Option<FaultKind>,
}

/// A replica.
pub struct Replica {
    /// Its disk; what a crash leaves of it is decided by the disk.
    pub disk: MemoryDisk,
    /// Its clocks.
    pub clock: Clock,
    /// Grows whenever its process ends: what belonged to that is void.
    pub life: u64,
    /// Incarnations before this one.
    pub incarnation: u32,
    /// The key of this incarnation.
    pub key: SecretKey,
    /// The configuration file on this machine.
    pub genesis: Genesis,
    /// The process.
    pub process: Option<Process>,
    /// Whether a start is under way.
    pub starting: bool,
    /// It lost its disk, and waits for its replacement.
    pub replaced: bool,
    /// It does nothing before this time.
    pub paused_until_us: u64,
    /// Flushes take this much longer.
    pub slow_us: u64,
    /// Partitions that it is cut off by.
    pub cuts: u32,
    /// What strikes next.
    pub armed: Armed,
    /// What stands between it and its links, if it lies.
    pub liar: Option<Liar>,
}
