//! What goes wrong, and within which promise.
//!
//! *Liveness* mode: at most `u` replicas have failed at a time. A replica counts as failed while
//! it is down, paused, cut off, on a slow disk, or has not caught up since; a link that breaks and
//! single messages that go astray count as nobody's failure. *Safety* mode: any number of replicas
//! is down, cut off or paused. In both, disks keep what was synced (lost disks count as failures,
//! `u` at most, and are replaced), and clocks stay within `max_skew_ms`.

use super::replica::Armed;
use super::{Event, World};
use crate::options::Mode;
use crate::plan::Plan;
use crate::random::Random;
use crate::report::FaultKind;
use perdura_protocol::configuration::Durability;
use perdura_replica::node::State;

/// Something that ends by itself.
#[derive(Clone, Debug)]
struct Trouble {
    cuts: Vec<(usize, usize)>,
    failed: Vec<usize>,
    slow: Vec<usize>,
}

/// The faults of a run.
#[derive(Debug)]
pub struct Chaos {
    // Each event draws from a stream of its own, so that leaving one out changes no other.
    streams: Random,
    random: Random,
    events: u64,
    troubles: Vec<Option<Trouble>>,
}

/// Kinds that are drawn, by weight. Those of single messages come with the network's plan.
const WEIGHTS: [(FaultKind, u64); 17] = [
    (FaultKind::ProcessCrash, 8),
    (FaultKind::MachineCrash, 8),
    (FaultKind::CrashAtSend, 8),
    (FaultKind::CrashInAppend, 8),
    (FaultKind::CrashInCheckpoint, 4),
    (FaultKind::CrashInRecovery, 5),
    (FaultKind::CrashOfAll, 2),
    (FaultKind::FlushError, 4),
    (FaultKind::DiskFull, 3),
    (FaultKind::SlowDisk, 4),
    (FaultKind::Pause, 5),
    (FaultKind::Isolation, 6),
    (FaultKind::OneWayPartition, 6),
    (FaultKind::SplitGroup, 4),
    (FaultKind::LinkReset, 10),
    (FaultKind::Wipe, 8),
    (FaultKind::ClientRestart, 5),
];

impl Chaos {
    /// Nothing has gone wrong yet.
    #[must_use]
    pub fn new(random: Random) -> Chaos {
        Chaos { streams: random.clone(), random, events: 0, troubles: Vec::new() }
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The next event; its number.
    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.random = self.streams.fork(&self.events.to_string());
        self.events
    }

    /// How long a process stays down.
    pub fn downtime_us(&mut self, plan: &Plan) -> u64 {
        self.random.between(1_000, plan.chaos.down_us)
    }

    fn kind(&mut self) -> FaultKind {
        let total = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total);
        for (kind, weight) in WEIGHTS {
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        FaultKind::LinkReset
    }
}

impl World {
    pub(crate) fn schedule_fault(&mut self) {
        let delay = self.chaos.random.between(1_000, self.plan.chaos.interval_us);
        self.push(delay, Event::Fault);
    }

    pub(crate) fn on_fault(&mut self) {
        if self.ending.begun() {
            return;
        }
        let number = self.chaos.next_event();
        let kind = self.chaos.kind();
        self.schedule_fault();
        if self.options.overrides.skip_faults.contains(number) {
            self.trace.line(self.now_us, format_args!("fault {number}, {kind:?}, is skipped"));
        } else {
            self.trace.line(self.now_us, format_args!("fault {number}: {kind:?}"));
            self.strike(kind);
        }
    }

    /// Whether faults of this kind happen.
    pub(crate) fn allows(&self, kind: FaultKind) -> bool {
        !self.options.overrides.without.contains(&kind)
    }

    /// Whether a replica counts as failed.
    fn has_failed(&self, replica: usize) -> bool {
        let here = &self.replicas[replica];
        if here.liar.is_some() {
            return true;
        }
        let Some(process) = &here.process else { return true };
        let report = process.node.report();
        let behind = report.executed.plus(self.plan.depth) < self.checkers.agreement.last();
        let armed = here.armed != Default::default();
        here.cuts > 0
            || armed
            || here.slow_us > 0
            || self.is_paused(replica)
            || report.state != State::Active
            || behind
    }

    /// A replica that may fail now.
    fn victim(&mut self) -> Option<usize> {
        let n = self.n();
        let healthy: Vec<usize> = (0..n).filter(|replica| !self.has_failed(*replica)).collect();
        let failed = n - healthy.len();
        match self.plan.mode {
            Mode::Liveness => {
                let room = failed < self.plan.faults.u() && !healthy.is_empty();
                room.then(|| *self.chaos.random.pick(&healthy))
            }
            Mode::Safety => {
                let running: Vec<usize> =
                    (0..n).filter(|replica| self.replicas[*replica].process.is_some()).collect();
                (!running.is_empty()).then(|| *self.chaos.random.pick(&running))
            }
        }
    }

    /// Does it, if the promise allows it now.
    pub(crate) fn strike(&mut self, kind: FaultKind) {
        if !self.allows(kind) {
            return;
        }
        match kind {
            FaultKind::LinkReset => self.reset_link(),
            FaultKind::ClientRestart => {
                let client = self.chaos.random.below(self.clients.len() as u64) as usize;
                self.fired(kind);
                self.end_client(client);
                self.start_client(client);
            }
            FaultKind::CrashOfAll => self.crash_all_at_once(),
            FaultKind::SplitGroup => self.split_group(),
            _ => {
                if let Some(victim) = self.victim() {
                    self.strike_replica(kind, victim);
                }
            }
        }
    }

    fn strike_replica(&mut self, kind: FaultKind, victim: usize) {
        let operations = self.chaos.random.below(8);
        let outputs = self.chaos.random.below(12);
        let down_us = self.chaos.downtime_us(&self.plan);
        let armed = &mut self.replicas[victim].armed;
        match kind {
            FaultKind::ProcessCrash => {
                self.fired(kind);
                self.crash_process(victim);
            }
            FaultKind::MachineCrash if self.plan.durability == Durability::Sync => {
                self.fired(kind);
                self.crash_machine(victim);
            }
            FaultKind::CrashAtSend => armed.at_send = Some(outputs),
            FaultKind::CrashInAppend => armed.in_append = Some(operations),
            FaultKind::CrashInCheckpoint => armed.in_checkpoint = Some(2 * operations),
            FaultKind::CrashInRecovery => {
                self.crash_either(victim);
                self.replicas[victim].armed.in_recovery = Some(operations);
            }
            FaultKind::FlushError if self.plan.durability == Durability::Sync => {
                armed.disk = Some(kind);
                self.replicas[victim].disk.fail_next_sync();
            }
            FaultKind::DiskFull => {
                armed.disk = Some(kind);
                self.replicas[victim].disk.set_capacity(Some(1));
            }
            FaultKind::SlowDisk => {
                self.fired(kind);
                self.replicas[victim].slow_us = self.chaos.random.between(5_000, 300_000);
                self.begin_trouble(vec![], vec![], vec![victim], down_us);
            }
            FaultKind::Pause => {
                self.fired(kind);
                self.trace.line(self.now_us, format_args!("r{victim} pauses"));
                self.replicas[victim].paused_until_us = self.now_us + down_us;
            }
            FaultKind::Isolation => {
                let cuts = self.cuts_of(victim, true, true);
                self.fired(kind);
                self.begin_trouble(cuts, vec![victim], vec![], down_us);
            }
            FaultKind::OneWayPartition => {
                let hears = self.chaos.random.percent(50);
                let cuts = self.cuts_of(victim, hears, !hears);
                self.fired(kind);
                self.begin_trouble(cuts, vec![victim], vec![], down_us);
            }
            FaultKind::Wipe => self.try_wipe(victim),
            _ => {}
        }
    }

    /// Disks are lost one at a time, and within what the promise allows also in safety mode.
    fn try_wipe(&mut self, victim: usize) {
        let others_failed =
            (0..self.n()).filter(|other| *other != victim && self.has_failed(*other)).count();
        let room = others_failed < self.plan.faults.u();
        // As an administrator does: the next one is replaced when the last one takes part. Until it
        // has fetched a state, an incarnation knows only the keys of its own configuration.
        let waits = self.replicas.iter().any(|replica| {
            let executed = replica.process.as_ref().map_or(0, |process| process.executed.0);
            replica.genesis.configuration.id > 0 && executed == 0
        });
        let idle = self.replacement.is_none() && !waits && !self.is_liar(victim);
        if self.plan.chaos.wipes && room && idle && self.checkers.agreement.last().0 > 0 {
            self.fired(FaultKind::Wipe);
            self.wipe(victim);
        }
    }

    fn cuts_of(&self, victim: usize, outgoing: bool, incoming: bool) -> Vec<(usize, usize)> {
        let mut cuts = Vec::new();
        for other in (0..self.network.stations()).filter(|other| *other != victim) {
            if outgoing {
                cuts.push((victim, other));
            }
            if incoming {
                cuts.push((other, victim));
            }
        }
        cuts
    }

    fn begin_trouble(
        &mut self,
        cuts: Vec<(usize, usize)>,
        failed: Vec<usize>,
        slow: Vec<usize>,
        for_us: u64,
    ) {
        for (from, to) in &cuts {
            self.network.cut(*from, *to, true);
        }
        for replica in &failed {
            self.replicas[*replica].cuts += 1;
        }
        self.trace.line(self.now_us, format_args!("r{failed:?} cut off, r{slow:?} slow"));
        let id = self.chaos.troubles.len();
        self.chaos.troubles.push(Some(Trouble { cuts, failed, slow }));
        self.push(for_us, Event::Heal(id));
    }

    pub(crate) fn heal(&mut self, id: usize) {
        let Some(Trouble { cuts, failed, slow }) = self.chaos.troubles[id].take() else { return };
        self.trace.line(self.now_us, format_args!("r{failed:?} r{slow:?} well again"));
        for (from, to) in cuts {
            self.network.cut(from, to, false);
        }
        for replica in failed {
            self.replicas[replica].cuts -= 1;
        }
        for replica in slow {
            self.replicas[replica].slow_us = 0;
        }
    }

    /// Everything that is wrong ends now.
    pub(crate) fn heal_all(&mut self) {
        for id in 0..self.chaos.troubles.len() {
            self.heal(id);
        }
        for replica in &mut self.replicas {
            // A disk that was made to fail at its next operation still will.
            replica.armed = Armed { disk: replica.armed.disk, ..Armed::default() };
            replica.disk.set_capacity(None);
            replica.paused_until_us = replica.paused_until_us.min(self.now_us);
        }
    }

    fn reset_link(&mut self) {
        let stations = self.network.stations() as u64;
        let a = self.chaos.random.below(self.n() as u64) as usize;
        let b = self.chaos.random.below(stations) as usize;
        if a == b || !self.network.link(a, b).up {
            return;
        }
        self.fired(FaultKind::LinkReset);
        let delays = [self.random.below(3_000), self.random.below(3_000)];
        self.break_link(a, b, delays);
    }

    fn crash_all_at_once(&mut self) {
        if self.plan.mode == Mode::Safety {
            self.crash_all();
        }
    }

    /// Every replica stops.
    pub(crate) fn crash_all(&mut self) {
        self.fired(FaultKind::CrashOfAll);
        for replica in 0..self.n() {
            if self.replicas[replica].process.is_some() {
                if self.plan.durability == Durability::Sync {
                    self.crash_machine(replica);
                } else {
                    self.crash_process(replica);
                }
            }
        }
    }

    /// Two parts that do not hear each other; clients reach one, the other, or both.
    fn split_group(&mut self) {
        let n = self.n();
        let healthy: Vec<usize> = (0..n).filter(|replica| !self.has_failed(*replica)).collect();
        let room = match self.plan.mode {
            Mode::Liveness => self.plan.faults.u().saturating_sub(n - healthy.len()),
            Mode::Safety => n / 2,
        };
        if room == 0 {
            return;
        }
        let mut part = Vec::new();
        for _ in 0..self.chaos.random.between(1, room as u64) {
            let candidate = match self.plan.mode {
                Mode::Liveness => *self.chaos.random.pick(&healthy),
                Mode::Safety => self.chaos.random.below(n as u64) as usize,
            };
            if !part.contains(&candidate) {
                part.push(candidate);
            }
        }
        let with_clients = self.chaos.random.percent(50);
        let stations = if with_clients { self.network.stations() } else { n };
        let mut cuts = Vec::new();
        for inside in &part {
            for outside in (0..stations).filter(|station| !part.contains(station)) {
                cuts.push((*inside, outside));
                cuts.push((outside, *inside));
            }
        }
        self.fired(FaultKind::SplitGroup);
        let for_us = self.chaos.downtime_us(&self.plan);
        self.begin_trouble(cuts, part, vec![], for_us);
    }
}
