//! What a run reports.

use perdura_adversary::{Attack, Strategy};
use perdura_replica::node::Counters;
use std::collections::BTreeMap;
use std::fmt;

mod mark;
mod space_counts;
mod transaction_counts;
pub use mark::Mark;
pub use space_counts::SpaceCounts;
pub use transaction_counts::TransactionCounts;

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
    /// It stops while it frees files of the log.
    CrashInTruncation,
    /// It stops in the middle of storing a checkpoint.
    CrashInCheckpoint,
    /// It stops again while it recovers.
    CrashInRecovery,
    /// All replicas stop at once.
    CrashOfAll,
    /// A replica does nothing for a while, and then goes on.
    Pause,
    /// Each round of a replica takes long.
    SlowProcess,
    /// A replica is started on the disk of another one, refuses, and gets its own back.
    OtherDisk,
    /// A replica is started on data of a format that it does not know, and refuses.
    OtherFormat,
    /// What its program wrote is taken back to how an older one would have written it.
    OlderFormat,
    /// What was not synced is lost with a machine's crash.
    UnsyncedLoss,
    /// Of a page that was not synced, some sectors of 512 bytes are kept and others lost.
    TornWrite512,
    /// Of a write that was not synced, some pages of 4 KiB are kept and others lost.
    TornWrite4096,
    /// A name that was made, changed or removed goes back, for its directory was not synced.
    LostName,
    /// A read fails once while a replica opens its directory.
    ReadError,
    /// A write fails once, and the replica stops.
    WriteError,
    /// A write stores a part and fails, and the replica stops.
    ShortWrite,
    /// Reads fail until the disk is repaired.
    StickyReadError,
    /// Writes fail until the disk is repaired.
    StickyWriteError,
    /// Flushes fail until the disk is repaired.
    StickyFlushError,
    /// After a flush that failed later ones succeed and store nothing of what that one should have.
    FalseFlush,
    /// A bit flips in what was synced.
    BitFlip,
    /// A synced sector turns to zeros.
    ZeroedSector,
    /// A synced sector is as it was before.
    StaleSector,
    /// A write was reported as stored and never was.
    LostWrite,
    /// A write went to another place.
    MisdirectedWrite,
    /// A read is answered with what stands elsewhere.
    MisdirectedRead,
    /// What is on the disk of a replica that runs is damaged, in its newest state.
    RunningRot,
    /// Every disk is damaged, and no slot on two of them.
    ScatteredDamage,
    /// A disk is taken back to an older state, and nothing shows it.
    RolledBack,
    /// A flush fails, and the replica stops.
    FlushError,
    /// The disk is full, and the replica stops.
    DiskFull,
    /// Flushes take long, or do not end until the disk is well again.
    SlowDisk,
    /// A replica is cut off from the others and from clients.
    Isolation,
    /// A replica is not heard, or hears nothing.
    OneWayPartition,
    /// The group falls into two parts.
    SplitGroup,
    /// The group falls into two parts that meet through one replica only.
    BridgePartition,
    /// All links of a replica come and go.
    Flapping,
    /// A link breaks and what was in flight is lost.
    LinkReset,
    /// A link breaks, and one end does not know for long.
    HalfOpenLink,
    /// The links of a replica carry few bytes per second.
    SlowLinks,
    /// All links break at once, and everybody dials everybody.
    ReconnectionStorm,
    /// Bytes are damaged on the way; they do not verify, and cost the link.
    CorruptedBytes,
    /// A message is lost on a link that stays up.
    MessageLoss,
    /// A message is delivered twice.
    MessageDuplication,
    /// A message overtakes an earlier one of its link.
    MessageReordering,
    /// A message takes a hundred times longer.
    MessageDelay,
    /// A wall clock is an hour off.
    ClockJump,
    /// A clock runs 10% fast or slow.
    ClockDrift,
    /// A clock stands still.
    ClockFreeze,
    /// A disk is lost, and the replica replaced by a new incarnation.
    Wipe,
    /// A client process ends and another one starts.
    ClientRestart,
    /// The administrator revokes the key of a hostile client.
    ClientRevoked,
    /// On links that are up, messages of one kind are lost, or late, for a while.
    Silence,
    /// All stop at once, and up to `u` stay away for good.
    Outage,
    /// A client process does nothing for a while, and then goes on.
    ClientPause,
    /// A client's clocks jump: the wall clock either way, the monotonic one ahead.
    ClientClockJump,
    /// A process ends in the middle of a batch, since its service says that a command is fatal there.
    FatalHere,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 61] = [
        FaultKind::ProcessCrash,
        FaultKind::MachineCrash,
        FaultKind::CrashAtSend,
        FaultKind::CrashInAppend,
        FaultKind::CrashInTruncation,
        FaultKind::CrashInCheckpoint,
        FaultKind::CrashInRecovery,
        FaultKind::CrashOfAll,
        FaultKind::Pause,
        FaultKind::SlowProcess,
        FaultKind::OtherDisk,
        FaultKind::OtherFormat,
        FaultKind::OlderFormat,
        FaultKind::UnsyncedLoss,
        FaultKind::TornWrite512,
        FaultKind::TornWrite4096,
        FaultKind::LostName,
        FaultKind::ReadError,
        FaultKind::WriteError,
        FaultKind::ShortWrite,
        FaultKind::StickyReadError,
        FaultKind::StickyWriteError,
        FaultKind::StickyFlushError,
        FaultKind::FalseFlush,
        FaultKind::BitFlip,
        FaultKind::ZeroedSector,
        FaultKind::StaleSector,
        FaultKind::LostWrite,
        FaultKind::MisdirectedWrite,
        FaultKind::MisdirectedRead,
        FaultKind::RunningRot,
        FaultKind::ScatteredDamage,
        FaultKind::RolledBack,
        FaultKind::FlushError,
        FaultKind::DiskFull,
        FaultKind::SlowDisk,
        FaultKind::Isolation,
        FaultKind::OneWayPartition,
        FaultKind::SplitGroup,
        FaultKind::BridgePartition,
        FaultKind::Flapping,
        FaultKind::LinkReset,
        FaultKind::HalfOpenLink,
        FaultKind::SlowLinks,
        FaultKind::ReconnectionStorm,
        FaultKind::CorruptedBytes,
        FaultKind::MessageLoss,
        FaultKind::MessageDuplication,
        FaultKind::MessageReordering,
        FaultKind::MessageDelay,
        FaultKind::ClockJump,
        FaultKind::ClockDrift,
        FaultKind::ClockFreeze,
        FaultKind::Wipe,
        FaultKind::ClientRestart,
        FaultKind::ClientRevoked,
        FaultKind::Silence,
        FaultKind::Outage,
        FaultKind::ClientPause,
        FaultKind::ClientClockJump,
        FaultKind::FatalHere,
    ];

    /// Those that a plan draws among. The others belong to runs of tuple spaces, or come with crashes, and are after them
    /// in [`FaultKind::ALL`], so that plans of other runs do not change.
    pub(crate) const DRAWN: &[FaultKind] =
        FaultKind::ALL.split_at(FaultKind::ClientPause as usize).0;

    /// Whether fault events are drawn among this kind. The others come with the network of a seed, or
    /// with crashes.
    #[must_use]
    pub fn is_drawn(self) -> bool {
        crate::world::is_drawn(self)
    }

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
pub struct SimulationReport {
    /// Runs.
    pub runs: u64,
    /// Steps, those after the last fault included.
    pub steps: u64,
    /// Virtual time, microseconds.
    pub virtual_us: u64,
    /// Of that, time in which some client waited for an answer; the rest is idle.
    pub busy_us: u64,
    /// Calls by their end.
    pub calls: Calls,
    /// Longest time that a call was seen waiting in liveness mode while no other replica failed,
    /// microseconds.
    pub longest_wait_us: u64,
    /// Slots decided.
    pub slots: u64,
    /// Views that started on some replica.
    pub views_started: u64,
    /// Highest view reached.
    pub highest_view: u64,
    /// Longest time in which a replica with which nothing was wrong caught up with others,
    /// virtual microseconds.
    pub longest_catch_up_us: u64,
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
    /// Messages with which liars departed from what a correct replica says, on links that were up.
    pub lies: BTreeMap<Strategy, u64>,
    /// Messages of hostile clients that arrived.
    pub attacks: BTreeMap<Attack, u64>,
    /// Times a liar's replica stopped itself over its own lies.
    pub stumbles: u64,
    /// Times a correct replica said of a liar or a hostile client that it misbehaves.
    pub accusations: u64,
    /// Fault events that took effect before the end: neither single messages that went astray nor
    /// what comes with others.
    pub struck: u64,
    /// Runs with fewer than three of those.
    pub quiet: u64,
    /// Runs of tuple spaces.
    pub spaces: SpaceCounts,
    /// Runs of partitioned stores.
    pub transactions: TransactionCounts,
    /// Faults that took effect.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Rare branches that were taken.
    pub marks: BTreeMap<Mark, u64>,
    /// Hash over everything that happened; equal for equal runs.
    pub fingerprint: u64,
}

impl SimulationReport {
    /// Counts a fault that took effect.
    pub fn fired(&mut self, kind: FaultKind) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Counts a rare branch that was taken.
    pub fn reached(&mut self, mark: Mark) {
        self.reached_times(mark, 1);
    }

    /// The same, so many times.
    pub fn reached_times(&mut self, mark: Mark, times: u64) {
        *self.marks.entry(mark).or_default() += times;
    }

    /// Adds what a process counted in its life.
    pub(crate) fn add_counters(&mut self, counters: &Counters) {
        let agreement = &counters.agreement;
        for (mark, count) in [
            (Mark::Transferred, counters.transfers_completed),
            (Mark::Retransmitted, counters.retransmissions),
            (Mark::BoundaryPassedOver, counters.boundaries_passed_over),
            (Mark::LocksCarried, agreement.locks_carried),
            (Mark::HolesFilled, agreement.holes_filled),
            (Mark::LockedBatchAskedFor, agreement.batches_asked_for),
            (Mark::ReproposalAskedFor, agreement.reproposals_asked_for),
            (Mark::NewViewRepeated, agreement.new_views_repeated),
            (Mark::LeaderPassedOver, agreement.leaders_passed_over),
            (Mark::WriteWithheld, agreement.writes_withheld),
            (Mark::WriteBehindCosts, agreement.writes_behind_costs),
            (Mark::PrefixAttested, agreement.prefixes_attested),
            (Mark::DecisionProven, agreement.decisions_proven),
            (Mark::AcceptsNotGenuine, agreement.accepts_not_genuine),
            (Mark::HistoryAttested, counters.attestations),
            (Mark::DecisionsFetched, agreement.decisions_fetched),
            (Mark::DecisionsHeld, agreement.decisions_held),
            (Mark::DecisionsBesideState, agreement.decisions_beside_state),
            (Mark::HeldInVain, agreement.held_in_vain),
            (Mark::DiskLagged, agreement.disk_lags),
            (Mark::CommandPutOff, counters.put_off),
            (Mark::StateOvertaken, counters.stage.states_overtaken),
            (Mark::BatchSuperseded, counters.stage.superseded),
            (Mark::RepliesLetGo, counters.stage.replies_let_go),
            (Mark::RetryAsked, counters.stage.retries_asked),
            (Mark::RetryPassedOver, counters.stage.retries_passed_over),
            (Mark::ReadAtSlot, counters.stage.reads_at),
            (Mark::ReadAtGone, counters.stage.reads_at_gone),
        ] {
            if count > 0 {
                *self.marks.entry(mark).or_default() += count;
            }
        }
        self.views_started += counters.views_started;
        self.checkpoints += counters.checkpoints;
        self.transfers += counters.transfers_completed;
        self.fetches_served += counters.fetches_served;
    }

    /// Adds another run.
    pub fn add(&mut self, other: &SimulationReport) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.virtual_us += other.virtual_us;
        self.busy_us += other.busy_us;
        self.calls.ok += other.calls.ok;
        self.calls.refused += other.calls.refused;
        self.calls.indeterminate += other.calls.indeterminate;
        self.calls.abandoned += other.calls.abandoned;
        self.calls.fast_reads += other.calls.fast_reads;
        self.longest_wait_us = self.longest_wait_us.max(other.longest_wait_us);
        self.slots += other.slots;
        self.views_started += other.views_started;
        self.highest_view = self.highest_view.max(other.highest_view);
        self.longest_catch_up_us = self.longest_catch_up_us.max(other.longest_catch_up_us);
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
        self.stumbles += other.stumbles;
        self.struck += other.struck;
        self.quiet += other.quiet;
        self.spaces.add(&other.spaces);
        self.transactions.add(&other.transactions);
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
        for (mark, count) in &other.marks {
            *self.marks.entry(*mark).or_default() += count;
        }
        self.fingerprint = crate::random::mix(self.fingerprint ^ other.fingerprint);
    }

    /// Ways of lying and attacking that never did anything.
    #[must_use]
    pub fn never_tried(&self) -> (Vec<Strategy>, Vec<Attack>) {
        let lies = Strategy::ALL.into_iter().filter(|one| !self.lies.contains_key(one));
        let attacks = Attack::ALL.into_iter().filter(|one| !self.attacks.contains_key(one));
        (lies.collect(), attacks.collect())
    }

    /// Kinds of faults that never took effect: a batch of many seeds fails when there are any. Those
    /// of clients of tuple spaces count only if some run was of them.
    #[must_use]
    pub fn never_fired(&self) -> Vec<FaultKind> {
        let all = if self.spaces.runs > 0 { &FaultKind::ALL } else { FaultKind::DRAWN };
        all.iter().copied().filter(|kind| !self.faults.contains_key(kind)).collect()
    }

    /// Rare branches that were never taken: a batch of many seeds fails when there are any. Those of
    /// tuple spaces count only if some run was of them; and [`Mark::HeldInVain`] never: it takes a liar that
    /// corrupts transfers in a run in which somebody was long away, which is one seed of a thousand. Where all runs were of partitioned
    /// stores only theirs count.
    #[must_use]
    pub fn never_reached(&self) -> Vec<Mark> {
        let others_too = self.transactions.runs < self.runs;
        let meant = |mark: &Mark| {
            *mark != Mark::HeldInVain
                && (others_too || mark.is_of_transactions())
                && (self.spaces.runs > 0 || !mark.is_of_spaces())
                && (self.transactions.runs > 0 || !mark.is_of_transactions())
        };
        Mark::ALL.into_iter().filter(meant).filter(|mark| !self.marks.contains_key(mark)).collect()
    }
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calls { ok, refused, indeterminate, abandoned, fast_reads } = self.calls;
        let (seconds, busy) = (self.virtual_us as f64 / 1e6, self.busy_us as f64 / 1e6);
        writeln!(f, "runs          {}", self.runs)?;
        writeln!(
            f,
            "steps         {} in {seconds:.1} virtual seconds, {busy:.1} of them busy",
            self.steps
        )?;
        let rate = ok as f64 / seconds.max(1e-6);
        writeln!(
            f,
            "calls         {ok} ok ({fast_reads} read fast; {rate:.1} in a second), {refused} \
             refused, {indeterminate} indeterminate, {abandoned} abandoned"
        )?;
        if self.longest_wait_us > 0 {
            let seconds = self.longest_wait_us as f64 / 1e6;
            writeln!(f, "longest wait  {seconds:.1} s with no new failure (liveness mode)")?;
        }
        writeln!(f, "slots         {}", self.slots)?;
        writeln!(f, "views         {} started, highest {}", self.views_started, self.highest_view)?;
        writeln!(
            f,
            "recovery      {} restarts, {} checkpoints, {} truncations, {} torn tails, \
             {} fetches served, {} transfers, {} replacements; at most {:.1} s to catch up",
            self.restarts,
            self.checkpoints,
            self.truncations,
            self.torn_tails,
            self.fetches_served,
            self.transfers,
            self.replacements,
            self.longest_catch_up_us as f64 / 1e6
        )?;
        writeln!(f, "histories     {} searched in part only", self.searches_given_up)?;
        let lies: Vec<String> =
            self.lies.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        writeln!(f, "lies          {}", lies.join(", "))?;
        let attacks: Vec<String> =
            self.attacks.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        writeln!(f, "attacks       {}", attacks.join(", "))?;
        writeln!(f, "accusations   {}, all of liars and hostile clients", self.accusations)?;
        writeln!(f, "stumbles      {} of liars over their own lies", self.stumbles)?;
        let each = self.struck as f64 / self.runs.max(1) as f64;
        writeln!(
            f,
            "fault events  {} took effect, {each:.1} in a run; fewer than 3 in {} runs",
            self.struck, self.quiet
        )?;
        if self.spaces.runs > 0 {
            writeln!(f, "tuple spaces  {}", self.spaces)?;
        }
        if self.transactions.runs > 0 {
            writeln!(f, "transactions  {}", self.transactions)?;
        }
        let faults: Vec<String> =
            self.faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        writeln!(f, "faults        {}", faults.join(", "))?;
        let marks: Vec<String> =
            self.marks.iter().map(|(mark, count)| format!("{mark:?} {count}")).collect();
        writeln!(f, "branches      {}", marks.join(", "))?;
        write!(f, "fingerprint   {:016x}", self.fingerprint)
    }
}
