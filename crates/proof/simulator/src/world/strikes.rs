//! What goes wrong with one replica: its process, its machine, its disk as it works, its clocks.

use super::World;
use super::chaos::{Disruption, Ill};
use super::clock::ClockFault;
use crate::report::FaultKind;
use perdura_durability::memory_disk::{Errors, Operation};

/// An hour, milliseconds: how far a wall clock jumps.
const HOUR_MS: i64 = 3_600_000;

/// How much faster or slower a clock runs that drifts, in a million.
const DRIFT_PPM: i64 = 100_000;

/// Changes to a used directory that opening it may take, and a little more: unfinished files removed,
/// the log sealed, its free files kept or removed, then the first writes of a replica that recovers.
const OPENING: u64 = 24;

/// Changes to a directory that storing a state and removing an old one takes, and a few more.
const STORING: u64 = 32;

/// A disk that is slower than this hangs: a third of the slow ones.
const HANGS_US: u64 = 200_000;

/// A command that is fatal comes behind fewer than so many others.
const FATAL_AFTER: u64 = 12;

impl World {
    /// Does it to a replica that may fail now.
    pub(crate) fn strike_replica(&mut self, kind: FaultKind, victim: usize) {
        match kind {
            // Some in the middle of a batch, by the service's own word.
            FaultKind::ProcessCrash
                if self.chaos.events().is_multiple_of(4) && !self.is_liar(victim) =>
            {
                let commands = self.chaos.events() / 4 % FATAL_AFTER;
                let here = &mut self.replicas[victim];
                if let Some(process) = &here.process {
                    process.notes.fatal_after(Some(commands));
                    here.armed.fatal = true;
                }
            }
            FaultKind::ProcessCrash => {
                self.fired(kind);
                self.crash_process(victim);
            }
            FaultKind::MachineCrash if self.plan.durability.is_flushed() => {
                self.fired(kind);
                self.crash_machine(victim);
            }
            FaultKind::Pause => {
                self.fired(kind);
                self.trace.line(self.now_us, format_args!("r{victim} pauses"));
                let down_us = self.chaos.downtime_us(&self.plan);
                self.replicas[victim].paused_until_us = self.now_us + down_us;
                // It may not be looked at before the next one.
                self.checkers.standstill.excused(victim);
                self.disturbed(victim);
            }
            FaultKind::Wipe if self.may_wipe(victim) => {
                self.fired(kind);
                self.wipe(victim);
            }
            FaultKind::OtherDisk | FaultKind::OtherFormat | FaultKind::OlderFormat => {
                self.crash_either(victim);
                self.replicas[victim].armed.wrong_disk = Some(kind);
            }
            FaultKind::BitFlip
            | FaultKind::ZeroedSector
            | FaultKind::StaleSector
            | FaultKind::LostWrite
            | FaultKind::MisdirectedWrite
            | FaultKind::MisdirectedRead => self.damage(kind, victim),
            FaultKind::RunningRot => self.rot_running(victim),
            FaultKind::RolledBack => self.copy_disk(victim),
            FaultKind::StickyReadError
            | FaultKind::StickyWriteError
            | FaultKind::StickyFlushError => self.sicken(kind, victim),
            FaultKind::CrashAtSend
            | FaultKind::CrashInAppend
            | FaultKind::CrashInTruncation
            | FaultKind::CrashInCheckpoint
            | FaultKind::CrashInRecovery
            | FaultKind::ReadError
            | FaultKind::WriteError
            | FaultKind::ShortWrite
            | FaultKind::FlushError
            | FaultKind::DiskFull => self.arm(kind, victim),
            FaultKind::Silence => self.silence(victim),
            FaultKind::ClockJump | FaultKind::ClockDrift | FaultKind::ClockFreeze => {
                self.disturb_clock(kind, victim);
            }
            _ => self.hinder(kind, victim),
        }
    }

    /// What strikes at its next occasion.
    fn arm(&mut self, kind: FaultKind, victim: usize) {
        let operations = self.chaos.random.below(8);
        let of_opening = self.chaos.random.below(OPENING);
        let of_storing = self.chaos.random.below(STORING);
        let outputs = self.chaos.random.below(12);
        let running = self.chaos.random.percent(50);
        let here = &mut self.replicas[victim];
        match kind {
            FaultKind::CrashAtSend => here.armed.at_send = Some(outputs),
            FaultKind::CrashInAppend => here.armed.in_append = Some(operations),
            FaultKind::CrashInTruncation => here.armed.in_truncation = Some(operations / 2),
            FaultKind::CrashInCheckpoint => here.armed.in_checkpoint = Some(of_storing),
            FaultKind::CrashInRecovery => {
                self.crash_either(victim);
                self.replicas[victim].armed.in_recovery = Some(of_opening);
            }
            FaultKind::FlushError if self.plan.durability.is_flushed() => {
                here.armed.disk = Some(kind);
                here.disk.fail_next_sync();
            }
            // What a laggard asks for, or what a new state links to.
            FaultKind::ReadError if running => {
                here.armed.reading = true;
                let (operation, after) = (Operation::Read, operations / 4);
                here.disk.fail(Errors { operation, after, sticky: false, short: false });
            }
            FaultKind::ReadError => {
                self.crash_either(victim);
                self.replicas[victim].armed.read_error = Some(4 * operations);
            }
            FaultKind::WriteError | FaultKind::ShortWrite => {
                (here.armed.disk, here.armed.reading) = (Some(kind), false);
                let (operation, short) = (Operation::Write, kind == FaultKind::ShortWrite);
                here.disk.fail(Errors { operation, after: operations, sticky: false, short });
            }
            FaultKind::DiskFull => {
                here.armed.disk = Some(kind);
                here.disk.set_capacity(Some(1));
            }
            _ => {}
        }
    }

    /// All reads, writes or flushes fail, over restarts too, until the disk is repaired.
    fn sicken(&mut self, kind: FaultKind, victim: usize) {
        let operation = match kind {
            FaultKind::StickyReadError => Operation::Read,
            FaultKind::StickyWriteError => Operation::Write,
            _ => Operation::Sync,
        };
        // Without flushes (`async`) nobody notices, and a crash of the machine would be amnesia.
        let flushed = self.plan.durability.is_flushed();
        if self.replicas[victim].sick.is_some() || !(flushed || operation != Operation::Sync) {
            return;
        }
        if operation == Operation::Read {
            // What a process reads, it reads when it starts.
            self.crash_process(victim);
        }
        let after = self.chaos.random.below(8);
        let for_us = self.chaos.downtime_us(&self.plan);
        let here = &mut self.replicas[victim];
        here.sick = Some(kind);
        here.disk.fail(Errors { operation, after, sticky: true, short: false });
        let disruption = Disruption { ill: Some(Ill::Disk(victim)), ..Disruption::default() };
        self.begin_trouble(disruption, for_us);
    }

    /// What makes a replica slow or cuts it off for a while.
    fn hinder(&mut self, kind: FaultKind, victim: usize) {
        let for_us = self.chaos.downtime_us(&self.plan);
        let random = &mut self.chaos.random;
        let mut disruption = Disruption::default();
        match kind {
            FaultKind::SlowDisk => {
                let slow_us = random.between(5_000, 300_000);
                let here = &mut self.replicas[victim];
                (here.slow_us, here.hangs) = (slow_us, slow_us > HANGS_US);
                disruption.ill = Some(Ill::SlowDisk(victim));
            }
            FaultKind::SlowProcess => {
                self.replicas[victim].slow_round_us = random.between(5_000, 300_000);
                disruption.ill = Some(Ill::SlowProcess(victim));
            }
            FaultKind::SlowLinks => {
                let bytes_per_second = random.between(4_000, 200_000);
                disruption.ill = Some(Ill::SlowLinks(victim));
                disruption.failed = vec![victim];
                self.throttle(victim, bytes_per_second);
            }
            FaultKind::Isolation => {
                disruption.cuts = self.cuts_of(victim, true, true);
                disruption.failed = vec![victim];
            }
            FaultKind::OneWayPartition => {
                let hears = random.percent(50);
                disruption.cuts = self.cuts_of(victim, hears, !hears);
                // From or to all, or a single other replica.
                if self.chaos.random.percent(40) {
                    let n = self.n() as u64;
                    let other = (victim + 1 + self.chaos.random.below(n - 1) as usize) % self.n();
                    disruption.cuts.retain(|(from, to)| *from == other || *to == other);
                }
                disruption.failed = vec![victim];
            }
            FaultKind::Flapping => {
                disruption.flaps_us = Some(random.between(5_000, 300_000));
                disruption.cuts = self.cuts_of(victim, true, true);
                disruption.failed = vec![victim];
            }
            _ => return,
        }
        self.fired(kind);
        self.begin_trouble(disruption, for_us);
    }

    /// Wall clock, monotonic clock or both go wrong; worse than `max_skew_ms` is a failure, and
    /// whatever happens to them here counts as one.
    fn disturb_clock(&mut self, kind: FaultKind, victim: usize) {
        let for_us = self.chaos.downtime_us(&self.plan);
        let random = &mut self.chaos.random;
        let sign = if random.percent(50) { 1 } else { -1 };
        let (wall, monotonic) = *random.pick(&[(true, false), (false, true), (true, true)]);
        let fault = match kind {
            FaultKind::ClockJump => ClockFault::Jump(sign * HOUR_MS),
            FaultKind::ClockDrift => ClockFault::Pace { ppm: sign * DRIFT_PPM, wall, monotonic },
            _ => ClockFault::Pace { ppm: -1_000_000, wall, monotonic },
        };
        if self.replicas[victim].clock.is_wrong() {
            return;
        }
        self.fired(kind);
        self.replicas[victim].clock.disturb(self.now_us, fault);
        self.look_at_clock(victim);
        self.trace.line(self.now_us, format_args!("clock of r{victim}: {fault:?}"));
        let disruption = Disruption { ill: Some(Ill::Clock(victim)), ..Disruption::default() };
        self.begin_trouble(disruption, for_us);
    }
}
