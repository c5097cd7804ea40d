//! Processes end and start.

use super::careless::Careless;
use super::damage::{gaps, is_whole, lost_state};
use super::{Event, TICK_US, World};
use crate::checkers::bounded_memory::BACKLOG_BYTES;
use crate::report::{FaultKind, Mark};
use crate::violation::Broken;
use crate::witness::Notes;
use crate::world::replica::Process;
use crate::world::stages::Stage;
use perdura_durability::memory_disk::{Errors, Losses, Operation};
use perdura_durability::{Disk, Expectation, Identity, MemoryDisk, OpenError, Opened, storage};
use perdura_protocol::{Configuration, Digest, PublicKey, Record, ReplicaId, Slot};
use perdura_replica::node::{Boot, ExecutionMode, Found, Interceptor, Node, Recovered, recover};
use std::collections::VecDeque;

/// A data directory that an intact disk does not give back.
const RULE: &str = "Durability (D1, D4)";

impl World {
    /// Formats a replica's disk; a replacement has to recover up to a slot before it votes.
    pub(crate) fn format(&mut self, replica: usize, must_recover: Option<Slot>) {
        let mut disk = MemoryDisk::new();
        let identity = Identity {
            cluster: self.parameters.cluster,
            replica: ReplicaId(replica as u8),
            incarnation: self.replicas[replica].incarnation,
            parameters: self.parameters.digest(),
            durability: self.plan.durability,
            checksum_key: self.disk_random.bytes32(),
            must_recover,
        };
        if let Err(error) = storage::format(&mut disk, &identity) {
            self.fail(Broken::new(RULE, error.to_string()));
        }
        self.replicas[replica].disk = disk;
        self.replicas[replica].has_boots = true;
        self.replicas[replica].gaps.clear();
        self.replicas[replica].joins_at = must_recover;
        self.checkers.votes.formatted(replica, must_recover);
    }

    /// The process ends; its machine goes on, and every write stays.
    pub(crate) fn crash_process(&mut self, replica: usize) {
        self.end_process(replica, 5_000);
        self.replicas[replica].disk.restart_process();
        self.start_later(replica);
    }

    /// The machine stops; what was not synced is lost, kept or torn.
    pub(crate) fn crash_machine(&mut self, replica: usize) {
        // Others notice at once, or only after a while: nobody resets the connections.
        let notice_us = if self.random.percent(50) { 5_000 } else { 3_000_000 };
        self.end_process(replica, notice_us);
        let random = &mut self.disk_random;
        let losses = self.replicas[replica].disk.crash(|| random.next());
        self.count_losses(losses);
        self.start_later(replica);
    }

    fn count_losses(&mut self, losses: Losses) {
        let Losses { sectors, torn_pages, torn_files, sizes, names } = losses;
        for (count, kind) in [
            (sectors + sizes, FaultKind::UnsyncedLoss),
            (torn_pages, FaultKind::TornWrite512),
            (torn_files, FaultKind::TornWrite4096),
            (names, FaultKind::LostName),
        ] {
            if count > 0 {
                self.fired(kind);
            }
        }
    }

    /// One of the two; with `async` durability a machine's crash would be amnesia, and more than
    /// one of those at a time is not promised.
    pub(crate) fn crash_either(&mut self, replica: usize) {
        let machine = self.plan.durability.is_flushed() && self.random.percent(60);
        if machine || self.by_hand {
            self.crash_machine(replica);
        } else {
            self.crash_process(replica);
        }
    }

    /// The disk failed, and the replica stops (D3). What made it fail is over when it starts.
    pub(crate) fn disk_failed(&mut self, replica: usize, what: &str) {
        let here = &mut self.replicas[replica];
        // Another error may be on its way beside that of a read.
        let reads = here.armed.reading && what.contains("cannot read");
        let kind = if reads { Some(FaultKind::ReadError) } else { here.armed.disk.take() };
        let Some(kind) = kind.or(here.sick) else {
            self.fail(Broken::new(RULE, format!("replica {replica}, disk in order: {what}")));
            return;
        };
        self.fired(kind);
        self.trace.line(self.now_us, format_args!("r{replica} stops: {what}"));
        if kind == FaultKind::FlushError && self.by_hand {
            self.tell(format_args!("r{replica} stops itself: {what}"));
            self.crash_process(replica);
            return;
        }
        self.tell(format_args!("the machine of r{replica} stops"));
        self.crash_either(replica);
    }

    fn end_process(&mut self, replica: usize, notice_us: u64) {
        self.trace.event([7, replica as u64, notice_us, self.now_us], &[]);
        self.trace.line(self.now_us, format_args!("r{replica} ends"));
        self.disturbed(replica);
        let here = &mut self.replicas[replica];
        here.life += 1;
        here.armed = Default::default();
        here.unread = false;
        here.disk.set_capacity(None);
        here.paused_until_us = 0;
        if let Some(process) = here.process.take() {
            self.report.add_counters(&process.node.report().counters);
        }
        self.drop_links(replica, notice_us);
    }

    pub(crate) fn start_later(&mut self, replica: usize) {
        let here = &self.replicas[replica];
        if here.replaced || here.starting || (self.by_hand && !self.ending.begun()) {
            return;
        }
        self.replicas[replica].starting = true;
        let delay = if self.ending.begun() { 10_000 } else { self.chaos.downtime_us(&self.plan) };
        self.push(delay, Event::Start { replica });
    }

    /// The process starts from what is on its disk.
    pub(crate) fn start(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        here.starting = false;
        if here.process.is_some() || here.replaced || here.memory.down || here.away {
            return;
        }
        if here.barred {
            self.replace_old_disk(replica);
            return;
        }
        match here.armed.wrong_disk.take() {
            Some(FaultKind::OlderFormat) => self.go_back_to_older_format(replica),
            Some(kind) => {
                self.refuse_wrong_disk(replica, kind);
                return;
            }
            None => {}
        }
        let here = &mut self.replicas[replica];
        if let Some(operations) = here.armed.in_recovery.take() {
            here.disk.fail_after(operations);
            here.armed.disk = Some(FaultKind::CrashInRecovery);
        } else if let Some(after) = here.armed.read_error.take() {
            let (operation, sticky) = (Operation::Read, false);
            here.disk.fail(Errors { operation, after, sticky, short: false });
            here.armed.disk = Some(FaultKind::ReadError);
        }
        let damaged = here.disk.is_damaged() || here.disk.will_misread();
        let trusted = !damaged && !here.just_forgot && !here.memory.repaired;
        let unstored = here.disk.has_unstored();
        let disk = here.disk.handle();
        let result = if damaged && !here.just_forgot {
            self.open_damaged(replica)
        } else {
            self.open(replica, disk)
        };
        match result {
            Ok(opened) => {
                if unstored {
                    self.fired(FaultKind::FalseFlush);
                }
                self.end_read_error(replica);
                self.boot(replica, opened, trusted);
            }
            Err(OpenError::Io(error)) => self.disk_failed(replica, &error.to_string()),
            Err(error @ (OpenError::Amnesiac(_) | OpenError::Corrupt { .. }))
                if std::mem::take(&mut self.replicas[replica].doomed) =>
            {
                self.trace.line(self.now_us, format_args!("r{replica} refuses to start: {error}"));
                self.mark(Mark::AmnesiacRefused);
                self.wipe(replica);
            }
            Err(error) if self.is_damaged(replica) => {
                self.tell(format_args!("r{replica} does not start: {error}"));
            }
            Err(error) => {
                self.fail(Broken::new(RULE, format!("replica {replica} does not open: {error}")));
            }
        }
    }

    /// An error that was to come while it opened its directory, and did not.
    fn end_read_error(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        if here.armed.disk == Some(FaultKind::ReadError) {
            here.armed.disk = None;
            here.disk.repair();
        }
    }

    /// Opens a disk as this replica's.
    pub(crate) fn open(
        &self,
        replica: usize,
        disk: MemoryDisk,
    ) -> Result<Opened<Careless>, OpenError> {
        // It differs from run to run, and no stream of randomness is drawn from for it.
        let mut nonce = [0; 16];
        let run = [replica as u64, self.now_us].map(u64::to_le_bytes).concat();
        nonce.copy_from_slice(&Digest::of(&run).0[..16]);
        let expected = Expectation {
            cluster: self.parameters.cluster,
            replica: ReplicaId(replica as u8),
            incarnation: self.replicas[replica].incarnation,
            parameters: self.parameters.digest(),
            boot_id: [0; 16],
            nonce,
        };
        let options = storage::StorageOptions {
            log_file_bytes: self.plan.log_file_bytes,
            hasty_log_file_bytes: 16 * 1024,
            free_log_files: 2,
            retained_checkpoints: 1,
            // States are small here, and linked all the same; flushes come in the middle of one, and
            // old ones go in steps.
            small_state_bytes: 0,
            checkpoint_sync_bytes: 4 * 1024,
        };
        storage::open(Careless::new(disk), &expected, &options)
    }

    /// The newest members, as the operator brought them to every machine.
    pub(crate) fn latest_members(&self) -> Configuration {
        let files = self.replicas.iter().map(|one| &one.genesis.configuration);
        let own = &self.replicas[0].genesis.configuration;
        files.fold(own, |latest, known| if known.id > latest.id { known } else { latest }).clone()
    }

    /// Starts on what was opened; what an intact disk holds is held against what was written to it.
    fn boot(&mut self, replica: usize, opened: Opened<Careless>, trusted: bool) {
        if opened.torn_tail.is_some() {
            self.report.torn_tails += 1;
            self.mark(Mark::TornTailCut);
        }
        let lost_state = lost_state(&opened);
        if self.replicas[replica].rot.take().is_some() {
            // What it lacks it has again when it is well, as after any damage.
            self.replicas[replica].hurt = Some(self.checkers.agreement.last());
        }
        let intact = is_whole(&opened, &self.replicas[replica].gaps);
        let found_gaps = gaps(&opened);
        let recovered = match recover(opened) {
            Ok(recovered) if intact || !trusted => {
                self.replicas[replica].gaps = found_gaps;
                for warning in recovered.warnings.iter().filter(|_| !intact) {
                    self.tell(format_args!("r{replica} warns: {warning}"));
                }
                recovered
            }
            Ok(recovered) => {
                let what = format!("replica {replica}, disk in order: {:?}", recovered.warnings);
                self.fail(Broken::new(RULE, what));
                return;
            }
            Err(unusable) => {
                self.fail(Broken::new(RULE, format!("replica {replica}: {}", unusable.error)));
                return;
            }
        };
        let Recovered { found, log, checkpoints, .. } = recovered;
        let records = &found.records;
        let states: Vec<(Slot, Digest)> = checkpoints
            .list()
            .iter()
            .filter(|name| Some(name.slot) != lost_state)
            .map(|name| (name.slot, name.digest))
            .collect();
        if trusted {
            let checkers = &mut self.checkers;
            let check = checkers
                .persist_before_speak
                .reopened(replica, records, &states)
                .and_then(|()| checkers.boots.reopened(replica, records));
            self.check(check);
        } else {
            self.replicas[replica].just_forgot = false;
            self.checkers.persist_before_speak.reread(replica, records, &states);
            self.checkers.boots.reread(replica, records);
        }
        self.checkers.votes.restarted(replica, records);
        let log_ends = records.iter().filter_map(Record::slot).max().unwrap_or_default();
        self.checkers.fast_reads.started(replica);
        self.checkers.sight.started(replica);
        self.checkers.pace.started(replica, self.now_us);
        let notes = Notes::default();
        let make = self.makes_service();
        let service_notes = notes.clone();
        let entropy = self.random.bytes32();
        // A liar that goes on honestly has signed what its log lacks, and is needed all the same.
        let repents = self.is_liar(replica) && self.ending.repented();
        let here = &self.replicas[replica];
        let found = match here.has_boots && !repents {
            true => found,
            false => Found { boot: None, ..found },
        };
        let keys: Vec<PublicKey> =
            self.replicas.iter().map(|replica| replica.key.public()).collect();
        self.checkers.boots.started(replica, found.boot, found.former_boots.clone(), &keys);
        let boot = Boot {
            me: ReplicaId(replica as u8),
            key: here.key.clone(),
            scheme: self.plan.scheme,
            parameters: self.parameters.clone(),
            genesis: here.genesis.clone(),
            latest: self.latest_members(),
            entropy,
            make_service: Box::new(move || Box::new(make(service_notes.clone()))),
            found,
            backlog_bytes: BACKLOG_BYTES,
            place: Some(match self.plan.stages.get(replica) {
                Some(Some(_)) => ExecutionMode::Apart,
                _ => ExecutionMode::Inline,
            }),
            state_transfer: self.plan.state_transfer,
        };
        let mut node = match Node::boot(boot, here.clock.now(self.now_us)) {
            Ok(node) => node,
            // It stored what had rotted in memory, and ended before that was found. It is to be replaced.
            Err(error) if here.memory.flipped => {
                self.tell(format_args!("r{replica} does not boot: {error}"));
                self.replicas[replica].memory.down = true;
                return;
            }
            Err(error) => {
                self.fail(Broken::new(RULE, format!("replica {replica} does not boot: {error}")));
                return;
            }
        };
        node.shrink_queues(self.plan.shrunk);
        let stage = node.take_first_job().map(|first| Stage::with(first, self.plan.stage_shrunk()));
        let process = Process {
            node,
            stage,
            notes,
            log,
            checkpoints,
            appends: VecDeque::new(),
            flush: None,
            truncate: None,
            states: VecDeque::new(),
            members: here.genesis.configuration.clone(),
            executed: Slot(0),
            log_ends,
            service: None,
            round_open: false,
        };
        let life = here.life;
        self.trace.event([8, replica as u64, process.node.report().executed.0, self.now_us], &[]);
        let report = process.node.report();
        let (view, executed) = (report.view, report.executed);
        self.trace
            .line(self.now_us, format_args!("r{replica} starts: view {view}, executed {executed}"));
        self.report.restarts += u64::from(life > 0);
        self.replicas[replica].process = Some(process);
        self.checkers.exactly_once.restarted(replica);
        self.checkers.waits.restarted();
        self.checkers.standstill.excused(replica);
        self.witness(replica);
        self.end_round(replica);
        self.push(TICK_US / 2, Event::Tick { replica, life });
        self.dial_all(replica);
    }

    /// From now on links are to these members: a link to a former incarnation ends.
    pub(crate) fn on_members(&mut self, replica: usize, configuration: Configuration) {
        let Some(process) = &mut self.replicas[replica].process else { return };
        process.members = configuration;
        let members = process.members.clone();
        if let Some(liar) = &mut self.replicas[replica].liar {
            liar.learn(&members);
        }
        for other in 0..self.n() {
            if other == replica {
                continue;
            }
            let expected = self.replicas[replica]
                .process
                .as_ref()
                .and_then(|process| process.members.key(ReplicaId(other as u8)));
            if expected != Some(self.replicas[other].key.public()) {
                self.break_link(replica, other, [0, 0]);
            }
            self.dial(replica, other, 1_000);
        }
    }
}
