//! Rot in the newest stored state of a replica that runs: what is read again within an interval finds it
//! (D7), and the next state does not link to it.
//!
//! The production code reads (`Checkpoints::reread`); here it is decided when, as the runtime's thread does.

use super::World;
use super::damage::{Verdict, lost_state};
use super::replica::Rot;
use crate::report::{FaultKind, Mark};
use crate::violation::Broken;
use perdura_durability::{Again, CheckpointError};

const RULE: &str = "Scrub (D7)";

/// Tries to find something to damage that the newest state needs.
const TRIES: usize = 8;

/// All of the newest state is read again within this time where it rots, microseconds; elsewhere in
/// eight times as long.
const REREAD_US: u64 = 5_000_000;

impl World {
    /// Damages what is stored of the newest state, while the replica goes on.
    pub(crate) fn rot_running(&mut self, victim: usize) {
        // What is known to be lost is read no more, until a state takes its place.
        if self.lacks_newest(victim) != Some(false) {
            return;
        }
        for _ in 0..TRIES {
            let kind = *self.chaos.random.pick(&[FaultKind::BitFlip, FaultKind::ZeroedSector]);
            let disk = self.replicas[victim].disk.copy();
            let Some(wound) = self.draw_wound(kind, &disk, Some("checkpoint/")) else { return };
            if let Some(Verdict::Noticed { state: true, .. }) = self.verdict_of(victim, &wound) {
                self.fired(FaultKind::RunningRot);
                self.trace.line(self.now_us, format_args!("r{victim} rots: {wound:?}"));
                let last = self.checkers.agreement.last();
                let here = &mut self.replicas[victim];
                wound.inflict(&mut here.disk);
                (here.rot, here.hurt) = (Some(Rot::default()), Some(last));
                return;
            }
        }
    }

    /// The newest stored state is read from the disk again, when that is due.
    pub(crate) fn reread(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        let pause = if here.rot.is_some() { REREAD_US } else { 8 * REREAD_US };
        let well = here.sick.is_none() && here.liar.is_none();
        let due = here.reread_us + pause <= self.now_us && well;
        let Some(process) = here.process.as_mut().filter(|_| due) else { return };
        here.reread_us = self.now_us;
        let checkpoints = &mut process.checkpoints;
        let found = checkpoints.begin_reread().and_then(|pieces| {
            // It holds all for damaged after it could not read what names the parts.
            let mut found = pieces == 0 && here.unread;
            for index in 0..pieces {
                match checkpoints.reread(index) {
                    Ok(Again::Sound(_)) => {}
                    Ok(Again::Damaged) | Err(CheckpointError::Corrupt { .. }) => found = true,
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        });
        let found = match found {
            Ok(found) => found,
            Err(CheckpointError::Corrupt { .. }) => true,
            // It goes on, and takes what it could not read for damaged.
            Err(CheckpointError::Disk(_)) if here.armed.reading => {
                (here.armed.reading, here.unread) = (false, true);
                self.fired(FaultKind::ReadError);
                self.trace.line(self.now_us, format_args!("r{replica} cannot read its state"));
                return;
            }
            Err(error) => {
                let what = format!("replica {replica} cannot read its state again: {error}");
                self.fail(Broken::new(RULE, what));
                return;
            }
        };
        let unread = self.replicas[replica].unread;
        match self.replicas[replica].rot {
            Some(rot) if found && !rot.found => {
                self.replicas[replica].rot = Some(Rot { found });
                self.mark(Mark::RotReread);
                self.tell(format_args!("r{replica} finds that its stored state rots"));
            }
            Some(rot) if !rot.found && self.lacks_newest(replica) == Some(true) => {
                let what = format!("replica {replica} has read its state again, and found nothing");
                self.fail(Broken::new(RULE, what));
            }
            None if found && !unread && self.lacks_newest(replica) == Some(false) => {
                let what = format!("replica {replica} takes a state in order for damaged");
                self.fail(Broken::new(RULE, what));
            }
            _ => {}
        }
    }

    /// A state has taken the place of one that rots.
    pub(crate) fn look_at_rot(&mut self, replica: usize) {
        self.replicas[replica].unread = false;
        let Some(rot) = self.replicas[replica].rot else { return };
        match self.lacks_newest(replica) {
            Some(true) if rot.found => {
                let what = format!("replica {replica} goes on using what it found damaged");
                self.fail(Broken::new(RULE, what));
            }
            Some(false) => {
                self.replicas[replica].rot = None;
                if rot.found {
                    self.mark(Mark::RotReplaced);
                }
                self.trace.line(self.now_us, format_args!("r{replica} rots no more"));
            }
            _ => {}
        }
    }

    /// Whether a replica that started now would find its newest state damaged; none if it would not
    /// start.
    fn lacks_newest(&self, replica: usize) -> Option<bool> {
        let copy = self.replicas[replica].disk.copy();
        Some(lost_state(&self.open(replica, copy).ok()?).is_some())
    }
}
