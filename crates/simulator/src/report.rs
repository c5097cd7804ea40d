//! What a run reports.

use perdura_adversary::{Attack, Strategy};
use perdura_replica::node::Counters;
use std::collections::BTreeMap;
use std::fmt;

/// What is done to a group. Each kind is counted when it takes effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// A process ends between two rounds; its machine and all it wrote stay.
    ProcessCrash,
    /// A machine stops; what was not synced is lost, kept or torn.
    MachineCrash,
    /// A process or machine stops while effects of one round are being carried out.
    CrashAtSend,
    /// It stops in the middle of a write of the log.
    CrashInAppend,
    /// It stops in the middle of storing a checkpoint.
    CrashInCheckpoint,
    /// It stops again while it recovers.
    CrashInRecovery,
    /// All replicas stop at once.
    CrashOfAll,
    /// A flush fails, and the replica stops.
    FlushError,
    /// The disk is full, and the replica stops.
    DiskFull,
    /// Flushes take long.
    SlowDisk,
    /// A replica does nothing for a while, and then goes on.
    Pause,
    /// A replica is cut off from the others and from clients.
    Isolation,
    /// A replica is not heard, or hears nothing.
    OneWayPartition,
    /// The group falls into two parts.
    SplitGroup,
    /// A link breaks and what was in flight is lost.
    LinkReset,
    /// A message is lost on a link that stays up.
    MessageLoss,
    /// A message is delivered twice.
    MessageDuplication,
    /// A message overtakes an earlier one of its link.
    MessageReordering,
    /// A message takes a hundred times longer.
    MessageDelay,
    /// A disk is lost, and the replica replaced by a new incarnation.
    Wipe,
    /// A client process ends and another one starts.
    ClientRestart,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 21] = [
        FaultKind::ProcessCrash,
        FaultKind::MachineCrash,
        FaultKind::CrashAtSend,
        FaultKind::CrashInAppend,
        FaultKind::CrashInCheckpoint,
        FaultKind::CrashInRecovery,
        FaultKind::CrashOfAll,
        FaultKind::FlushError,
        FaultKind::DiskFull,
        FaultKind::SlowDisk,
        FaultKind::Pause,
        FaultKind::Isolation,
        FaultKind::OneWayPartition,
        FaultKind::SplitGroup,
        FaultKind::LinkReset,
        FaultKind::MessageLoss,
        FaultKind::MessageDuplication,
        FaultKind::MessageReordering,
        FaultKind::MessageDelay,
        FaultKind::Wipe,
        FaultKind::ClientRestart,
    ];

    /// The kind with a name, written as in reports.
    #[must_use]
    pub fn parse(text: &str) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|kind| format!("{kind:?}") == text)
    }
}

/// How calls ended.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Calls {
    /// With a result.
    pub ok: u64,
    /// Certain not to have happened.
    pub refused: u64,
    /// Nobody can tell.
    pub indeterminate: u64,
    /// The client process ended first.
    pub abandoned: u64,
    /// Of those with a result, reads that were not ordered.
    pub fast_reads: u64,
}

/// One run, or the sum of many.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// Runs.
    pub runs: u64,
    /// Steps, those after the last fault included.
    pub steps: u64,
    /// Virtual time, microseconds.
    pub virtual_us: u64,
    /// Calls by their end.
    pub calls: Calls,
    /// Slots decided.
    pub slots: u64,
    /// Views that started on some replica.
    pub views_started: u64,
    /// Highest view reached.
    pub highest_view: u64,
    /// Checkpoints stored.
    pub checkpoints: u64,
    /// States transferred.
    pub transfers: u64,
    /// Laggards served with old batches.
    pub fetches_served: u64,
    /// Processes started again.
    pub restarts: u64,
    /// Replicas replaced by a new incarnation.
    pub replacements: u64,
    /// Times the log was cut.
    pub truncations: u64,
    /// Torn tails that were cut.
    pub torn_tails: u64,
    /// Histories whose search for an order reached its bound; the order of execution judged these.
    pub searches_given_up: u64,
    /// Messages with which liars departed from what a correct replica says.
    pub lies: BTreeMap<Strategy, u64>,
    /// Messages of hostile clients.
    pub attacks: BTreeMap<Attack, u64>,
    /// Times a correct replica said of a liar or a hostile client that it misbehaves.
    pub accusations: u64,
    /// Faults that took effect.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Hash over everything that happened; equal for equal runs.
    pub fingerprint: u64,
}

impl Report {
    /// Counts a fault that took effect.
    pub fn fired(&mut self, kind: FaultKind) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Adds what a process counted in its life.
    pub(crate) fn add_counters(&mut self, counters: &Counters) {
        self.views_started += counters.views_started;
        self.checkpoints += counters.checkpoints;
        self.transfers += counters.transfers_completed;
        self.fetches_served += counters.fetches_served;
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Report) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.virtual_us += other.virtual_us;
        self.calls.ok += other.calls.ok;
        self.calls.refused += other.calls.refused;
        self.calls.indeterminate += other.calls.indeterminate;
        self.calls.abandoned += other.calls.abandoned;
        self.calls.fast_reads += other.calls.fast_reads;
        self.slots += other.slots;
        self.views_started += other.views_started;
        self.highest_view = self.highest_view.max(other.highest_view);
        self.checkpoints += other.checkpoints;
        self.transfers += other.transfers;
        self.fetches_served += other.fetches_served;
        self.restarts += other.restarts;
        self.replacements += other.replacements;
        self.truncations += other.truncations;
        self.torn_tails += other.torn_tails;
        self.searches_given_up += other.searches_given_up;
        for (strategy, count) in &other.lies {
            *self.lies.entry(*strategy).or_default() += count;
        }
        for (attack, count) in &other.attacks {
            *self.attacks.entry(*attack).or_default() += count;
        }
        self.accusations += other.accusations;
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
        self.fingerprint = crate::random::mix(self.fingerprint ^ other.fingerprint);
    }

    /// Ways of lying and attacking that never did anything.
    #[must_use]
    pub fn never_tried(&self) -> Vec<&'static str> {
        let lies = Strategy::ALL.into_iter().filter(|one| !self.lies.contains_key(one));
        let attacks = Attack::ALL.into_iter().filter(|one| !self.attacks.contains_key(one));
        lies.map(Strategy::name).chain(attacks.map(Attack::name)).collect()
    }

    /// Kinds of faults that never took effect: a batch of many seeds fails when there are any.
    #[must_use]
    pub fn never_fired(&self) -> Vec<FaultKind> {
        FaultKind::ALL.into_iter().filter(|kind| !self.faults.contains_key(kind)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calls { ok, refused, indeterminate, abandoned, fast_reads } = self.calls;
        let seconds = self.virtual_us as f64 / 1e6;
        writeln!(f, "runs          {}", self.runs)?;
        writeln!(f, "steps         {} in {seconds:.1} virtual seconds", self.steps)?;
        let rate = ok as f64 / seconds.max(1e-6);
        writeln!(
            f,
            "calls         {ok} ok ({fast_reads} read fast; {rate:.1} in a second), {refused} \
             refused, {indeterminate} indeterminate, {abandoned} abandoned"
        )?;
        writeln!(f, "slots         {}", self.slots)?;
        writeln!(f, "views         {} started, highest {}", self.views_started, self.highest_view)?;
        writeln!(
            f,
            "recovery      {} restarts, {} checkpoints, {} truncations, {} torn tails, \
             {} fetches served, {} transfers, {} replacements",
            self.restarts,
            self.checkpoints,
            self.truncations,
            self.torn_tails,
            self.fetches_served,
            self.transfers,
            self.replacements
        )?;
        writeln!(f, "histories     {} searched in part only", self.searches_given_up)?;
        let lies: Vec<String> =
            self.lies.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        writeln!(f, "lies          {}", lies.join(", "))?;
        let attacks: Vec<String> =
            self.attacks.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        writeln!(f, "attacks       {}", attacks.join(", "))?;
        writeln!(f, "accusations   {}, all of liars and hostile clients", self.accusations)?;
        let faults: Vec<String> =
            self.faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        writeln!(f, "faults        {}", faults.join(", "))?;
        write!(f, "fingerprint   {:016x}", self.fingerprint)
    }
}
