//! The disk work of a replica. Appends queue up while one write is under way, and all that has
//! queued up goes in the next (D2). A write happens at its beginning or at its end, as chance has
//! it: a crash before the word of it finds it done, or not, or (armed) half done.

use super::careless::Careless;
use super::{Event, World};
use crate::options::ServiceKind;
use crate::report::{FaultKind, Mark};
use crate::world::replica::{Flush, StateJob};
use bytes::Bytes;
use perdura_durability::{CheckpointError, Checkpoints, LogError, NewState, Stored};
use perdura_execution::{Manifest, StateSnapshot};
use perdura_protocol::message::Decision;
use perdura_protocol::{Digest, Encode, Record, ReplicaId, Slot, limits};
use perdura_replica::node::{Input, piece_names};
use std::ops::ControlFlow;

/// So often it is seen whether a disk that hangs is well again, microseconds.
const LOOKS_US: u64 = 50_000;

impl World {
    /// Gives the keeper something to do, if it has nothing.
    pub(crate) fn keep(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        let Some(process) = &mut here.process else { return };
        if process.flush.is_some() {
            return;
        }
        if let Some(slot) = process.truncate.take() {
            let (other, before) = (here.armed.disk, here.disk.operations());
            let armed = here.armed.in_truncation.take();
            if let Some(operations) = armed {
                here.disk.fail_after(operations);
                here.armed.disk = Some(FaultKind::CrashInTruncation);
            }
            let result = process.log.truncate_below(slot);
            let done = here.disk.operations() > before;
            self.report.truncations += 1;
            self.check_truncated(replica, slot);
            if let Err(error) = result {
                self.log_failed(replica, &error);
                return;
            }
            let here = &mut self.replicas[replica];
            if armed.is_some() && done {
                // The disk was done; the process dies before it learns of it.
                here.armed.disk = None;
                self.fired(FaultKind::CrashInTruncation);
                self.tell(format_args!("the machine of r{replica} stops"));
                self.crash_either(replica);
                return;
            } else if armed.is_some() {
                // No file was to go: it strikes another time.
                here.disk.fail_never();
                (here.armed.disk, here.armed.in_truncation) = (other, armed);
            }
        }
        let Some(process) = &mut self.replicas[replica].process else { return };
        let mut mark = None;
        let mut records: Vec<Record> = Vec::new();
        for (more, at) in process.appends.drain(..) {
            records.extend(more);
            mark = Some(at);
        }
        let Some(mark) = mark else { return };
        process.flush = Some(Flush { records, mark, written: false });
        let life = self.replicas[replica].life;
        // A disk that a scenario made slow has written nothing before it is done.
        let late = self.by_hand && self.replicas[replica].slow_us > 0;
        if self.disk_random.percent(50) && !late && !self.write_flush(replica) {
            return;
        }
        let usual = self.disk_random.below(self.plan.flush_us + 1);
        let delay = 50 + usual + self.replicas[replica].slow_us;
        self.push(delay, Event::Flushed { replica, life });
    }

    fn check_truncated(&mut self, replica: usize, slot: Slot) {
        let check = self.checkers.persist_before_speak.truncated(replica, slot);
        self.check(check);
    }

    /// Writes what is to be flushed; false when the replica died of it.
    fn write_flush(&mut self, replica: usize) -> bool {
        let here = &mut self.replicas[replica];
        let armed = here.armed.in_append.take();
        let Some(process) = &mut here.process else { return false };
        let Some(flush) = &mut process.flush else { return true };
        if flush.written {
            return true;
        }
        if let Some(operations) = armed {
            here.disk.fail_after(operations);
            here.armed.disk = Some(FaultKind::CrashInAppend);
        }
        let result = process.log.append(&flush.records);
        flush.written = result.is_ok();
        match result {
            Ok(()) => {
                let records = std::mem::take(&mut flush.records);
                self.checkers.persist_before_speak.appended(replica, &records);
                self.checkers.votes.appended(replica, &records);
                self.checkers.agreement.logged(&records);
                if self.plan.service == ServiceKind::TupleSpaces {
                    self.checkers.agreed_time.logged(&records);
                }
                self.checkers.lifetimes.logged(&records);
                self.checkers.boundaries.appended(&records);
                let check = self.checkers.boots.appended(replica, &records);
                self.check(check);
                if armed.is_some() {
                    // The disk was done; the process dies before it learns of it.
                    self.replicas[replica].armed.disk = None;
                    self.fired(FaultKind::CrashInAppend);
                    self.tell(format_args!("the machine of r{replica} stops"));
                    self.crash_either(replica);
                    return false;
                }
                true
            }
            Err(error) => {
                self.log_failed(replica, &error);
                false
            }
        }
    }

    /// A failed write stops the replica (D3).
    fn log_failed(&mut self, replica: usize, error: &LogError) {
        match error {
            LogError::Disk(_) => self.disk_failed(replica, &error.to_string()),
            _ => self.fail(crate::checkers::progress::halted(replica, &error.to_string())),
        }
    }

    pub(crate) fn on_flushed(&mut self, replica: usize) {
        let here = &self.replicas[replica];
        if here.hangs && here.process.is_some() {
            let life = here.life;
            self.push(LOOKS_US, Event::Flushed { replica, life });
            return;
        }
        if !self.write_flush(replica) {
            return;
        }
        let Some(process) = &mut self.replicas[replica].process else { return };
        let Some(flush) = process.flush.take() else { return };
        self.step();
        self.trace.event([4, replica as u64, flush.mark, self.now_us], &[]);
        self.trace.line(self.now_us, format_args!("r{replica} persisted {}", flush.mark));
        self.input(replica, Input::Persisted(flush.mark));
        let by_hand = self.by_hand;
        let process = self.replicas[replica].process.as_mut();
        // Nobody waits for it; errors of the disk strike here too. Scenarios count operations, and do without.
        if let Some(process) = process.filter(|_| !by_hand)
            && let Err(error) = process.log.prepare_free_file()
        {
            self.log_failed(replica, &error);
            return;
        }
        self.keep(replica);
    }

    /// A state is to be digested. What it will be is known at once, the word of it comes later.
    pub(crate) fn digest_state(&mut self, replica: usize, snapshot: StateSnapshot) {
        let manifest = snapshot.manifest();
        if !self.is_liar(replica) {
            self.checkers.boundaries.taken(replica, manifest.slot);
            let digest = manifest.digest();
            let check = self.checkers.equal_states.state(replica, manifest.slot, digest);
            self.check(check);
        }
        let life = self.replicas[replica].life;
        let delay = self.disk_random.between(1, 10) * self.plan.flush_us * self.plan.slow_digests;
        self.push(delay, Event::StateDigested { replica, life, manifest });
    }

    /// A machine was made of a transferred state; the word of it comes later.
    pub(crate) fn restore_state(&mut self, replica: usize) {
        let life = self.replicas[replica].life;
        let delay = self.disk_random.between(1, 10) * self.plan.flush_us;
        self.push(delay, Event::StateRestored { replica, life });
    }

    pub(crate) fn on_state_restored(&mut self, replica: usize) {
        self.step();
        self.trace.event([11, replica as u64, 0, self.now_us], &[]);
        self.trace.line(self.now_us, format_args!("r{replica} restored a state"));
        self.input(replica, Input::StateRestored);
    }

    pub(crate) fn on_state_digested(&mut self, replica: usize, manifest: Manifest) {
        let (slot, digest) = (manifest.slot, manifest.digest());
        self.step();
        self.trace.event([10, replica as u64, slot.0, self.now_us], &digest.0);
        self.trace
            .line(self.now_us, format_args!("r{replica} digested the state after slot {slot}"));
        self.input(replica, Input::StateDigested { manifest, digest });
    }

    /// Queues a state to be stored.
    pub(crate) fn store_state(&mut self, replica: usize, job: StateJob) {
        let life = self.replicas[replica].life;
        let Some(process) = &mut self.replicas[replica].process else { return };
        process.states.push_back(job);
        if process.states.len() == 1 {
            self.schedule_state(replica, life);
        }
    }

    fn schedule_state(&mut self, replica: usize, life: u64) {
        let slow = self.disk_random.between(1, 20);
        let delay = slow * self.plan.flush_us + self.replicas[replica].slow_us;
        self.push(delay, Event::StateStored { replica, life });
    }

    pub(crate) fn on_state_stored(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        let armed = here.armed.in_checkpoint.take();
        let life = here.life;
        let Some(process) = &mut here.process else { return };
        let Some(job) = process.states.pop_front() else { return };
        if let Some(operations) = armed {
            here.disk.fail_after(operations);
            here.armed.disk = Some(FaultKind::CrashInCheckpoint);
        }
        let own = matches!(job, StateJob::Store { .. });
        let (manifest, result) = match &job {
            StateJob::Store { snapshot, keep } => {
                let manifest = snapshot.manifest();
                let mut content = |index| snapshot.piece(index);
                let result = store(&mut process.checkpoints, &manifest, &mut content, *keep);
                (manifest, result)
            }
            StateJob::Install { manifest, pieces, keep } => {
                let mut content = |index: usize| pieces[index].clone();
                let result = store(&mut process.checkpoints, manifest, &mut content, *keep);
                (manifest.clone(), result)
            }
        };
        if !process.states.is_empty() {
            self.schedule_state(replica, life);
        }
        match result {
            Ok((stored, steps)) => {
                if stored.linked_files > 0 {
                    self.mark(Mark::StateLinked);
                }
                if stored.written_over {
                    self.mark(Mark::StateWrittenOver);
                }
                if steps > 0 {
                    self.mark(Mark::OldStateCutDown);
                }
                self.state_stored(replica, manifest, armed.is_some());
            }
            Err(CheckpointError::Disk(error)) => self.disk_failed(replica, &error.to_string()),
            Err(error @ CheckpointError::OtherPiece { .. }) if own && self.is_liar(replica) => {
                self.input(replica, Input::StateDamaged { what: error.to_string() });
            }
            Err(error) => {
                self.fail(crate::checkers::progress::halted(replica, &error.to_string()));
            }
        }
    }

    fn state_stored(&mut self, replica: usize, manifest: Manifest, dies: bool) {
        let (slot, digest) = (manifest.slot, manifest.digest());
        self.checkers.persist_before_speak.stored(replica, slot, digest);
        self.look_at_rot(replica);
        if !self.is_liar(replica) {
            let check = self.checkers.equal_states.state(replica, slot, digest);
            self.check(check);
        }
        if dies {
            self.replicas[replica].armed.disk = None;
            self.fired(FaultKind::CrashInCheckpoint);
            self.tell(format_args!("the machine of r{replica} stops"));
            self.crash_either(replica);
            return;
        }
        self.step();
        self.trace.event([5, replica as u64, slot.0, self.now_us], &digest.0);
        self.trace.line(self.now_us, format_args!("r{replica} stored the state after slot {slot}"));
        self.input(replica, Input::CheckpointStored { manifest });
    }

    pub(crate) fn on_read(&mut self, replica: usize, to: ReplicaId, wanted: &[(Slot, Digest)]) {
        let misread = self.misread_log(replica);
        let here = &mut self.replicas[replica];
        let Some(process) = &mut here.process else { return };
        let result = process.log.read_decisions(wanted, limits::FETCH_BYTES);
        let misread = misread && !here.disk.end_misread();
        if misread {
            self.fired(FaultKind::MisdirectedRead);
        }
        match result {
            Ok(found) => {
                if !found.is_empty() {
                    self.mark(Mark::ServedFromLog);
                }
                // In one run from the first wanted slot on, or none.
                let decisions: Vec<Decision> = found
                    .into_iter()
                    .zip(wanted)
                    .take_while(|(decision, (slot, _))| decision.slot == *slot)
                    .map(|(decision, _)| decision)
                    .collect();
                self.step();
                self.trace.event([6, replica as u64, decisions.len() as u64, self.now_us], &[]);
                self.input(replica, Input::DecisionsRead { to, decisions });
            }
            Err(LogError::Disk(error)) => self.disk_failed(replica, &error.to_string()),
            Err(LogError::Corrupt { .. }) if misread => {
                // The batch is left for other replicas to send, and the log goes on.
                self.mark(Mark::RotWhileServing);
                self.input(replica, Input::DecisionsRead { to, decisions: Vec::new() });
            }
            Err(error) => {
                self.fail(crate::checkers::progress::halted(replica, &error.to_string()));
            }
        }
    }

    /// Sometimes a page of the log is read from another place; true if it will be.
    fn misread_log(&mut self, replica: usize) -> bool {
        if self.by_hand || self.ending.begun() || !self.disk_random.percent(40) {
            return false;
        }
        let disk = &mut self.replicas[replica].disk;
        let files = disk.settled_pages();
        let pages: Vec<(&str, u64)> = files
            .iter()
            .filter(|(name, _)| name.starts_with("log/0"))
            .flat_map(|(name, pages)| pages.iter().map(|page| (name.as_str(), *page)))
            .collect();
        if pages.is_empty() {
            return false;
        }
        let (here, there) = (*self.disk_random.pick(&pages), *self.disk_random.pick(&pages));
        disk.misdirect_read(here, there)
    }
}

/// What was stored, and in how many steps what is old by now was cut down.
fn store(
    checkpoints: &mut Checkpoints<Careless>,
    manifest: &Manifest,
    content: &mut dyn FnMut(usize) -> Bytes,
    keep: Slot,
) -> Result<(Stored, usize), CheckpointError> {
    let pieces = piece_names(manifest);
    let state = NewState {
        slot: manifest.slot,
        digest: manifest.digest(),
        manifest: &manifest.to_bytes(),
        pieces: &pieces,
        content,
        pace: &mut |_| ControlFlow::Continue(()),
    };
    let stored = checkpoints.store(state, keep)?;
    Ok((stored, checkpoints.remove_old(&mut || ControlFlow::Continue(()))?))
}
