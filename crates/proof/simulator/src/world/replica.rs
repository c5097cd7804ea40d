//! A replica as the world has it: a machine with a clock and a disk, and on it a process, or none.

use super::careless::Careless;
use super::clock::Clock;
use super::damage::Gap;
use super::stages::Stage;
use crate::report::FaultKind;
use crate::witness::Notes;
use bytes::Bytes;
use perdura_adversary::Liar;
use perdura_durability::{Checkpoints, Log, MemoryDisk};
use perdura_execution::{AnyService, Genesis, Machine, Manifest, Service, StateSnapshot};
use perdura_protocol::{Configuration, Record, SecretKey, Slot, View};
use perdura_replica::node::Node;
use std::collections::VecDeque;

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
    Store {
        /// The state.
        snapshot: StateSnapshot,
        /// The older one that stays.
        keep: Slot,
    },
    /// One that was transferred.
    Install {
        /// Its manifest.
        manifest: Manifest,
        /// Its pieces.
        pieces: Vec<Bytes>,
        /// The older one that stays.
        keep: Slot,
    },
}

/// A running process.
pub struct Process {
    /// The replica itself.
    pub node: Node,
    /// Where it executes, if not in the node.
    pub stage: Option<Stage>,
    /// What it executed.
    pub notes: Notes,
    /// Its log.
    pub log: Log<Careless>,
    /// Its checkpoints.
    pub checkpoints: Checkpoints<Careless>,
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
    /// The last slot of which the log told at the start.
    pub log_ends: Slot,
    /// Its service when it was looked at last, and the slot before that one's first batch.
    pub service: Option<(u64, u64)>,
    /// Whether the end of the round is still to come.
    pub round_open: bool,
}

impl Process {
    /// What it executed, as far as its stage has come.
    pub(crate) fn machine(&self) -> &Machine<AnyService> {
        self.stage.as_ref().map_or_else(|| self.node.machine(), Stage::machine)
    }

    /// Its service, for what flips bits in it.
    pub(crate) fn service_mut(&mut self) -> &mut dyn Service {
        match &mut self.stage {
            Some(stage) => &mut **stage.machine_mut().service_mut(),
            None => self.node.service_mut().expect("it is in the node, or in the stage"),
        }
    }
}

/// What became of the memory of a replica.
#[derive(Clone, Copy, Default, Debug)]
pub struct Memory {
    /// A bit flipped since the state was last repaired.
    pub flipped: bool,
    /// The state was repaired: what is on disk is less than it was.
    pub repaired: bool,
    /// What it stored is as rotten, and it waits for its replacement, which does not come.
    pub down: bool,
    /// When all of it was last verified.
    pub scrubbed_us: u64,
}

/// Damage to the newest state on the disk of a replica that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rot {
    /// Whether it was found by reading that again.
    pub found: bool,
}

/// What is armed and strikes at the next occasion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Armed {
    /// A command is going to be fatal to the process.
    pub fatal: bool,
    /// The process dies after this many more outputs.
    pub at_send: Option<u64>,
    /// The disk fails after this many operations in the next append.
    pub in_append: Option<u64>,
    /// The disk fails after this many operations when files of the log are freed.
    pub in_truncation: Option<u64>,
    /// The disk fails after this many operations in the next stored state.
    pub in_checkpoint: Option<u64>,
    /// The disk fails after this many operations of the next start.
    pub in_recovery: Option<u64>,
    /// Why the disk is going to fail.
    pub disk: Option<FaultKind>,
    /// The next start fails after so many reads.
    pub read_error: Option<u64>,
    /// A read of the running process is going to fail.
    pub reading: bool,
    /// The next start finds another disk: another replica's, or one of an unknown format.
    pub wrong_disk: Option<FaultKind>,
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
    /// The first slot of its configuration, of a new incarnation: before that it is no member.
    pub joins_at: Option<Slot>,
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
    /// Its machine stays off after an outage.
    pub away: bool,
    /// It does nothing before this time.
    pub paused_until_us: u64,
    /// Flushes take this much longer.
    pub slow_us: u64,
    /// None ends before it is well again.
    pub hangs: bool,
    /// Each round takes this much longer.
    pub slow_round_us: u64,
    /// Partitions and slow or flapping links that it suffers from.
    pub cuts: u32,
    /// What strikes next.
    pub armed: Armed,
    /// What stands between it and its links, if it lies.
    pub liar: Option<Liar>,
    /// When it was looked at last what it says of its surroundings, and in which view it was then.
    pub looked_us: u64,
    /// See there.
    pub looked_view: View,
    /// What became of its memory.
    pub memory: Memory,
    /// Its disk fails, and goes on failing until it is repaired.
    pub sick: Option<FaultKind>,
    /// Its disk was damaged; it has everything again when it is well and has logged this slot.
    pub hurt: Option<Slot>,
    /// What its disk holds of the newest state was damaged as it ran, and is there still.
    pub rot: Option<Rot>,
    /// When it last read all of that state again.
    pub reread_us: u64,
    /// A read failed then, so that it takes a part for damaged which is not.
    pub unread: bool,
    /// Its disk was damaged so that it is to be replaced.
    pub doomed: bool,
    /// A copy of its disk of this incarnation, which it is going to be taken back to.
    pub copied: Option<(u32, MemoryDisk)>,
    /// Groups of its log that are gone, and known to be.
    pub gaps: Vec<Gap>,
    /// The same when its disk was copied.
    pub copied_gaps: Vec<Gap>,
    /// Its disk was taken back once: it counts as a liar.
    pub forgot: bool,
    /// Its disk was taken back, and it has not been started since.
    pub just_forgot: bool,
    /// It noticed that, and is not started on that disk any more.
    pub barred: bool,
    /// Whether its directory is of programs that announce their boots.
    pub has_boots: bool,
    /// Its incarnation, and its disk as it was before it was taken back.
    pub newer: Option<(u32, MemoryDisk)>,
}

impl Replica {
    /// Whether something is wrong with it, or about to be, other than that it is down.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.cuts > 0
            || self.armed != Armed::default()
            || self.slow_us > 0
            || self.slow_round_us > 0
            || self.clock.is_wrong()
            || self.sick.is_some()
    }
}
