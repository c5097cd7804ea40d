//! What goes wrong, when, and within which promise. What each fault does is in `strikes` (one
//! replica), `partitions` (the network) and `damage` (what disks hold).
//!
//! *Liveness* mode: at most `u` replicas have failed at a time. A replica counts as failed while
//! it is down, paused, slow, cut off, behind a slow or flapping link, on a slow or failing disk,
//! with a clock out of order, or has not caught up since; a link that breaks and single messages
//! that go astray count as nobody's failure. *Safety* mode: any number of replicas is down, cut
//! off, paused, slow, or has a wrong clock or a failing disk.
//!
//! In both, disks lose what was synced, or have it damaged, within the same bounds: see `damage`.
//! What there is room for is decided in `promise`.

use super::replica::Armed;
use super::{Event, World};
use crate::checkers::progress::TIMEOUT_US;
use crate::options::Mode;
use crate::plan::Plan;
use crate::random::Random;
use crate::report::FaultKind;
use perdura_protocol::Slot;

/// What is wrong with a replica, until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ill {
    SlowDisk(usize),
    SlowProcess(usize),
    SlowLinks(usize),
    Clock(usize),
    Disk(usize),
    OldDisk(usize),
}

impl Ill {
    /// Whose it is.
    fn replica(self) -> usize {
        match self {
            Ill::SlowDisk(replica)
            | Ill::SlowProcess(replica)
            | Ill::SlowLinks(replica)
            | Ill::Clock(replica)
            | Ill::Disk(replica)
            | Ill::OldDisk(replica) => replica,
        }
    }
}

/// How much longer than the time-out of the group a lasting failure lasts at most, microseconds.
const LASTING_US: u64 = 10_000_000;

/// Kinds that are drawn for an event until there is room for one.
const DRAWS: usize = 8;

/// Fault events in a row during which nothing was decided, before there is a lull.
const STORM: u64 = 12;

/// Longest lull, microseconds: time for view changes, and for machines to come up.
const LULL_US: u64 = 9_000_000;

/// Something that ends by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disruption {
    /// What is cut, by (from, to).
    pub cuts: Vec<(usize, usize)>,
    /// Whom that cuts off.
    pub failed: Vec<usize>,
    /// What else is wrong.
    pub ill: Option<Ill>,
    /// The cuts come and go in this time, microseconds.
    pub flaps_us: Option<u64>,
    /// Whether they are there now.
    pub cut_now: bool,
}

/// The faults of a run.
#[derive(Debug)]
pub struct Chaos {
    // Each event draws from a stream of its own, so that leaving one out changes no other.
    streams: Random,
    pub(crate) random: Random,
    events: u64,
    // The last slot decided, and the event at which that was noted.
    progress: (Slot, u64),
    disruptions: Vec<Option<Disruption>>,
}

/// Kinds that are drawn, by weight. Those of single messages come with the network's plan, those of
/// what was not synced with a machine's crash.
const WEIGHTS: [(FaultKind, u64); 47] = [
    (FaultKind::ProcessCrash, 8),
    (FaultKind::MachineCrash, 8),
    (FaultKind::CrashAtSend, 8),
    (FaultKind::CrashInAppend, 8),
    (FaultKind::CrashInTruncation, 3),
    (FaultKind::CrashInCheckpoint, 4),
    (FaultKind::CrashInRecovery, 5),
    (FaultKind::CrashOfAll, 2),
    (FaultKind::Pause, 5),
    (FaultKind::SlowProcess, 4),
    (FaultKind::OtherDisk, 2),
    (FaultKind::OtherFormat, 2),
    (FaultKind::OlderFormat, 2),
    (FaultKind::ReadError, 3),
    (FaultKind::WriteError, 3),
    (FaultKind::ShortWrite, 3),
    (FaultKind::FlushError, 4),
    (FaultKind::StickyReadError, 2),
    (FaultKind::StickyWriteError, 2),
    (FaultKind::StickyFlushError, 2),
    (FaultKind::DiskFull, 3),
    (FaultKind::SlowDisk, 4),
    (FaultKind::BitFlip, 3),
    (FaultKind::ZeroedSector, 3),
    (FaultKind::StaleSector, 3),
    (FaultKind::LostWrite, 3),
    (FaultKind::MisdirectedWrite, 3),
    (FaultKind::MisdirectedRead, 3),
    (FaultKind::RunningRot, 4),
    (FaultKind::ScatteredDamage, 3),
    (FaultKind::RolledBack, 4),
    (FaultKind::Isolation, 6),
    (FaultKind::OneWayPartition, 6),
    (FaultKind::SplitGroup, 4),
    (FaultKind::BridgePartition, 4),
    (FaultKind::Flapping, 4),
    (FaultKind::LinkReset, 10),
    (FaultKind::HalfOpenLink, 5),
    (FaultKind::SlowLinks, 4),
    (FaultKind::ReconnectionStorm, 3),
    (FaultKind::ClockJump, 3),
    (FaultKind::ClockDrift, 3),
    (FaultKind::ClockFreeze, 3),
    (FaultKind::Wipe, 8),
    (FaultKind::ClientRestart, 5),
    (FaultKind::ClientRevoked, 3),
    (FaultKind::Silence, 8),
];

/// Whether a kind is drawn, unlike what comes with others or with the network.
pub(crate) fn is_drawn(kind: FaultKind) -> bool {
    WEIGHTS.iter().any(|(drawn, _)| *drawn == kind)
}

impl Chaos {
    /// Nothing has gone wrong yet.
    #[must_use]
    pub fn new(random: Random) -> Chaos {
        let progress = (Slot(0), 0);
        Chaos { streams: random.clone(), random, events: 0, progress, disruptions: Vec::new() }
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
        if self.random.percent(plan.chaos.lasting) {
            return TIMEOUT_US + self.random.between(1_000_000, LASTING_US);
        }
        self.random.between(1_000, plan.chaos.down_us)
    }

    fn kind(&mut self, plan: &Plan) -> FaultKind {
        let drawn = || WEIGHTS.iter().filter(|(kind, _)| plan.chaos.has(*kind));
        let total: u64 = drawn().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total.max(1));
        for (kind, weight) in drawn() {
            if at < *weight {
                return *kind;
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
        if self.ending.begun() || self.ending.calm() {
            return;
        }
        let number = self.chaos.next_event();
        let kind = self.draw_kind();
        if self.is_worn_out() {
            self.trace.line(self.now_us, format_args!("fault {number}: a lull instead"));
            self.heal_all();
            let lull_us = self.chaos.random.between(LULL_US / 3, LULL_US);
            self.push(lull_us, Event::Fault);
            return;
        }
        self.schedule_fault();
        if self.options.overrides.skip_faults.contains(number) {
            self.trace.line(self.now_us, format_args!("fault {number}, {kind:?}, is skipped"));
        } else {
            self.trace.line(self.now_us, format_args!("fault {number}: {kind:?}"));
            self.strike(kind);
        }
    }

    /// Whether nothing was decided while many faults happened: in safety mode nothing else keeps
    /// a group from lying still for ever, and then nothing can be broken.
    fn is_worn_out(&mut self) -> bool {
        let last = self.checkers.agreement.last();
        let (slot, since) = self.chaos.progress;
        if last > slot || self.chaos.events >= since + STORM {
            self.chaos.progress = (last, self.chaos.events);
        }
        last <= slot && self.chaos.events >= since + STORM
    }

    /// A kind that there is room for, if one comes up.
    fn draw_kind(&mut self) -> FaultKind {
        let mut kind = self.chaos.kind(&self.plan);
        for _ in 1..DRAWS {
            if self.is_possible(kind) {
                break;
            }
            kind = self.chaos.kind(&self.plan);
        }
        kind
    }

    /// Whether faults of this kind happen.
    pub(crate) fn allows(&self, kind: FaultKind) -> bool {
        self.options.overrides.allow(kind)
    }

    /// Does it, if the promise allows it now.
    pub(crate) fn strike(&mut self, kind: FaultKind) {
        if !self.allows(kind) {
            return;
        }
        match kind {
            FaultKind::LinkReset => self.reset_link(),
            FaultKind::HalfOpenLink => self.half_open_link(),
            FaultKind::ReconnectionStorm => self.break_all_links(),
            FaultKind::ClientRevoked => self.revoke_client(),
            FaultKind::ClientRestart => {
                let client = self.chaos.random.below(self.clients.len() as u64) as usize;
                self.fired(kind);
                if self.is_partition() && client + 1 < self.clients.len() {
                    self.dying.push(client);
                    return;
                }
                self.end_client(client);
                self.start_client(client);
            }
            FaultKind::CrashOfAll if self.plan.mode == Mode::Safety => self.crash_all(),
            FaultKind::CrashOfAll => {}
            FaultKind::ScatteredDamage => self.damage_all(),
            FaultKind::SplitGroup => self.split_group(false),
            FaultKind::BridgePartition => self.split_group(true),
            _ => {
                let candidates = self.candidates(kind);
                if !candidates.is_empty() {
                    let victim = *self.chaos.random.pick(&candidates);
                    self.strike_replica(kind, victim);
                }
            }
        }
    }

    pub(crate) fn begin_trouble(&mut self, mut disruption: Disruption, for_us: u64) {
        let id = self.chaos.disruptions.len();
        self.trace.line(
            self.now_us,
            format_args!("r{:?} cut off, {:?}", disruption.failed, disruption.ill),
        );
        self.set_cuts(&mut disruption, true);
        for replica in &disruption.failed {
            self.replicas[*replica].cuts += 1;
        }
        for replica in disruption.failed.iter().copied().chain(disruption.ill.map(Ill::replica)) {
            self.disturbed(replica);
        }
        if let Some(period) = disruption.flaps_us {
            self.push(period, Event::Flap(id));
        }
        self.chaos.disruptions.push(Some(disruption));
        self.push(for_us, Event::Heal(id));
    }

    fn set_cuts(&mut self, disruption: &mut Disruption, cut: bool) {
        if disruption.cut_now != cut {
            disruption.cut_now = cut;
            for (from, to) in &disruption.cuts {
                self.network.cut(*from, *to, cut);
            }
        }
    }

    /// Flapping links go or come back.
    pub(crate) fn flap(&mut self, id: usize) {
        let Some(mut disruption) = self.chaos.disruptions[id].take() else { return };
        let cut = !disruption.cut_now;
        self.set_cuts(&mut disruption, cut);
        if cut {
            for (from, to) in &disruption.cuts {
                let delays = [self.chaos.random.below(5_000), self.chaos.random.below(5_000)];
                self.break_link(*from, *to, delays);
            }
        }
        let period = disruption.flaps_us.unwrap_or(1);
        let next = 1 + self.chaos.random.below(2 * period);
        self.chaos.disruptions[id] = Some(disruption);
        self.push(next, Event::Flap(id));
    }

    pub(crate) fn heal(&mut self, id: usize) {
        let Some(mut disruption) = self.chaos.disruptions[id].take() else { return };
        self.trace.line(
            self.now_us,
            format_args!("r{:?} {:?} well again", disruption.failed, disruption.ill),
        );
        self.set_cuts(&mut disruption, false);
        for replica in disruption.failed {
            self.replicas[replica].cuts -= 1;
        }
        match disruption.ill {
            None => {}
            Some(Ill::SlowDisk(replica)) => {
                let here = &mut self.replicas[replica];
                (here.slow_us, here.hangs) = (0, false);
            }
            Some(Ill::SlowProcess(replica)) => self.replicas[replica].slow_round_us = 0,
            Some(Ill::Clock(replica)) => {
                self.look_at_clock(replica);
                self.replicas[replica].clock.set_right(self.now_us);
                self.clock_mended();
            }
            Some(Ill::SlowLinks(replica)) => self.throttle(replica, 0),
            Some(Ill::Disk(replica)) => {
                self.replicas[replica].sick = None;
                self.replicas[replica].disk.repair();
            }
            Some(Ill::OldDisk(replica)) => self.take_back(replica),
        }
    }

    /// Everything that is wrong ends now.
    pub(crate) fn heal_all(&mut self) {
        for id in 0..self.chaos.disruptions.len() {
            self.heal(id);
        }
        self.silences.clear();
        for replica in &mut self.replicas {
            // A disk that was made to fail at its next operation still will.
            let Armed { disk, reading, .. } = replica.armed;
            replica.armed = Armed { disk, reading, ..Armed::default() };
            if let Some(process) = &replica.process {
                process.notes.fatal_after(None);
            }
            replica.disk.set_capacity(None);
            replica.paused_until_us = replica.paused_until_us.min(self.now_us);
        }
    }

    /// Every replica stops.
    pub(crate) fn crash_all(&mut self) {
        self.fired(FaultKind::CrashOfAll);
        for replica in 0..self.n() {
            if self.replicas[replica].process.is_some() {
                if self.plan.durability.is_flushed() {
                    self.crash_machine(replica);
                } else {
                    self.crash_process(replica);
                }
            }
        }
    }
}
