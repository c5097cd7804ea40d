//! What was synced, damaged on the medium: flipped bits, zeroed and stale sectors, lost and
//! misdirected writes, misdirected reads; and disks taken back as a whole to an older state.
//!
//! Within which promise: synced data is lost or damaged on at most `u` disks per slot, and never
//! unnoticed, but on disks of replicas that count as liars. So
//! - before a disk is damaged a copy of it is, and opened, next to a copy of the disk as it was:
//!   damage that would go unnoticed (of the last group, together with the mark that covers it; see
//!   `docs/corruption.md`) is not done;
//! - damage that a replica notices is done while fewer than `u` other replicas are without what they
//!   had (or lie, in liveness mode); or to all replicas at once, of no slot on two of them, provided that what the
//!   logs still prove reaches as far as a quorum lost votes, and that quorum gets there (`World::can_repair`);
//! - damage by which a replica no longer knows what it promised is done when it may be replaced;
//! - rot under a replica that runs counts as long as it is there, for what the log no longer has is gone
//!   when it starts again;
//! - a disk is taken back to an older state with `r` > 0 only, and at most `r` in a run.
//!
//! A file of a state that is older than the newest may hold pieces of that too: damage to any of the
//! files counts for every state that links to it, as opening the copy says.
//!
//! What the production code makes of it is held against the disk as it would be without: see
//! `World::open_damaged`. What was found to be gone stays known: a log file of which nothing is left
//! is used again, damaged or not.

use super::World;
use super::careless::Careless;
use super::chaos::{Disruption, Ill};
use crate::report::{FaultKind, Mark};
use crate::violation::Broken;
use perdura_agreement::Restart;
use perdura_durability::log::RepairedGap;
use perdura_durability::{Disk, MemoryDisk, OpenError, Opened, RecoveredState};
use perdura_protocol::{Digest, Record, Slot, View};
use perdura_replica::node::recover;
use std::collections::BTreeSet;

/// What a disk gives back that damage must not change in silence.
const RULE: &str = "Durability (D4)";

/// Tries to find something to damage that matters.
const TRIES: usize = 16;

/// Damage that may come to all disks at once.
const SCATTERED: [FaultKind; 6] = [
    FaultKind::BitFlip,
    FaultKind::ZeroedSector,
    FaultKind::StaleSector,
    FaultKind::LostWrite,
    FaultKind::MisdirectedWrite,
    FaultKind::MisdirectedRead,
];

/// Damage to one disk, of all that are damaged at once.
struct Scattered {
    replica: usize,
    kind: FaultKind,
    wound: Wound,
    verdict: Verdict,
}

impl Scattered {
    fn loses_state(&self) -> bool {
        matches!(self.verdict, Verdict::Noticed { state: true, .. })
    }
}

/// What opening a damaged disk gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// All there.
    Unharmed,
    /// Some is missing, and the replica knows.
    Noticed {
        /// Slots whose batches are missing.
        batches: BTreeSet<Slot>,
        /// Whether the newest state is.
        state: bool,
    },
    /// The replica does not know any more what it promised, or who it is.
    Refused,
    /// Something is missing, and nobody would know.
    Silent(String),
}

/// What a log says that others count on.
struct Kept {
    votes: BTreeSet<(Slot, View, Digest)>,
    batches: BTreeSet<(Slot, Digest)>,
    view: View,
}

impl Kept {
    fn of(records: &[Record]) -> Kept {
        let mut kept = Kept { votes: BTreeSet::new(), batches: BTreeSet::new(), view: View(0) };
        for record in records {
            match record {
                Record::View(view) => kept.view = kept.view.max(*view),
                Record::Vote { view, slot, batch, .. } => {
                    kept.votes.insert((*slot, *view, batch.digest()));
                    kept.batches.insert((*slot, batch.digest()));
                }
                Record::Decision { slot, batch, .. } => {
                    kept.batches.insert((*slot, batch.digest()));
                }
                _ => {}
            }
        }
        kept
    }
}

/// Groups of a log, first and last, that are gone and known to be.
pub(crate) type Gap = (u64, u64);

/// Whether an opened directory says that nothing is missing but what is known to be.
pub(crate) fn is_whole(opened: &Opened<Careless>, known: &[Gap]) -> bool {
    // Where the files before it were freed, nothing tells how far back a gap went: from group 1 on.
    let is_known = |gap: &RepairedGap| {
        let begins = |first: &u64| *first <= gap.first_group || gap.first_group == 1;
        known
            .iter()
            .any(|(first, last)| begins(first) && (*first..=*last).contains(&gap.last_group))
    };
    opened.repaired_gaps.iter().all(is_known) && lost_state(opened).is_none()
}

/// The groups that an opened directory lacks.
pub(crate) fn gaps(opened: &Opened<Careless>) -> Vec<Gap> {
    opened.repaired_gaps.iter().map(|gap| (gap.first_group, gap.last_group)).collect()
}

/// The state that was found to be damaged.
pub(crate) fn lost_state(opened: &Opened<Careless>) -> Option<Slot> {
    match &opened.state {
        RecoveredState::Previous { lost, .. } | RecoveredState::Lost(lost) => Some(lost.slot),
        RecoveredState::Initial | RecoveredState::Checkpoint(_) => None,
    }
}

/// Whether the newest state was lost with a piece in the file of an older one.
fn lacks_linked_piece(opened: &Opened<Careless>) -> bool {
    let Some(slot) = lost_state(opened) else { return false };
    let Ok(mut reader) = opened.checkpoints.load(slot) else { return false };
    (0..reader.piece_count()).any(|index| {
        let linked = reader.place(index).is_some_and(|place| place.file != slot);
        linked && reader.piece(index).is_err()
    })
}

/// Holds what was found on a damaged disk against what would have been found.
fn compare(whole: &Opened<Careless>, found: &Opened<Careless>, known: &[Gap]) -> Verdict {
    let (before, after) = (Kept::of(&whole.records), Kept::of(&found.records));
    let state = lost_state(found);
    let durable = |opened: &Opened<Careless>| opened.superblock.checkpoint().map(|name| name.slot);
    let covered = if state.is_none() { durable(found).unwrap_or_default() } else { Slot(0) };
    let gaps = &found.repaired_gaps;
    let votes_through = gaps.iter().map(|gap| gap.votes_through).max().unwrap_or_default();
    let slots_through = gaps.iter().map(|gap| gap.slots_through).max().unwrap_or_default();
    let lost_vote = before.votes.difference(&after.votes).map(|vote| vote.0);
    let lost_batches: BTreeSet<Slot> =
        before.batches.difference(&after.batches).map(|batch| batch.0).collect();
    let silent = |what: String| Verdict::Silent(what);
    if durable(found) < durable(whole) {
        return silent(format!("the state is {:?}, not {:?}", durable(found), durable(whole)));
    }
    if after.view < before.view {
        return silent(format!("the view is {}, not {}", after.view, before.view));
    }
    if let Some(slot) = lost_vote.filter(|slot| *slot > covered.max(votes_through)).max() {
        return silent(format!("a vote in slot {slot} is missing"));
    }
    if let Some(slot) = lost_batches.iter().rfind(|slot| **slot > covered.max(slots_through)) {
        return silent(format!("the batch of slot {slot} is missing"));
    }
    if is_whole(found, known) && lost_batches.is_empty() {
        return Verdict::Unharmed;
    }
    Verdict::Noticed { batches: lost_batches, state: state.is_some() }
}

impl World {
    /// What a replica would make of a disk, given what it would make of the same one intact.
    fn verdict(&self, replica: usize, damaged: MemoryDisk, intact: MemoryDisk) -> Option<Verdict> {
        let known = &self.replicas[replica].gaps;
        let whole = self.open(replica, intact).ok().filter(|whole| is_whole(whole, known))?;
        match self.open(replica, damaged) {
            Ok(found) => Some(compare(&whole, &found, known)),
            Err(OpenError::Amnesiac(_) | OpenError::Corrupt { .. }) => Some(Verdict::Refused),
            Err(_) => None,
        }
    }

    /// A machine stops, and what its disk held is damaged when it starts again.
    pub(crate) fn damage(&mut self, kind: FaultKind, victim: usize) {
        self.crash_machine(victim);
        for _ in 0..TRIES {
            let disk = self.replicas[victim].disk.copy();
            let Some(wound) = self.draw_wound(kind, &disk, None) else { continue };
            let Some(verdict) = self.verdict_of(victim, &wound) else { continue };
            let allowed = match &verdict {
                Verdict::Silent(_) | Verdict::Unharmed => false,
                Verdict::Noticed { .. } => true,
                Verdict::Refused => self.may_wipe(victim),
            };
            if allowed {
                self.inflict(kind, victim, &wound, &verdict);
                return;
            }
        }
    }

    pub(crate) fn verdict_of(&self, replica: usize, wound: &Wound) -> Option<Verdict> {
        let mut copy = self.replicas[replica].disk.copy();
        if !wound.inflict(&mut copy) {
            return None;
        }
        let intact = copy.intact_copy();
        self.verdict(replica, copy, intact)
    }

    fn inflict(&mut self, kind: FaultKind, victim: usize, wound: &Wound, verdict: &Verdict) {
        self.fired(kind);
        self.trace
            .line(self.now_us, format_args!("disk of r{victim} damaged: {wound:?}, {verdict:?}"));
        wound.inflict(&mut self.replicas[victim].disk);
        self.replicas[victim].hurt = Some(self.checkers.agreement.last());
        if *verdict == Verdict::Refused {
            self.replicas[victim].doomed = true;
            // Before anything else happens to the group: it is to be replaced.
            self.start(victim);
        }
    }

    /// Every disk is damaged, and no slot on two of them.
    pub(crate) fn damage_all(&mut self) {
        if !self.may_damage_all() {
            return;
        }
        self.crash_all();
        for here in &mut self.replicas {
            // Also of those that were down already: what is damaged is what was synced.
            let random = &mut self.disk_random;
            here.disk.crash(|| random.next());
        }
        let (mut taken, mut wounds) = (BTreeSet::new(), Vec::new());
        for replica in (0..self.n()).filter(|replica| !self.is_liar(*replica)).collect::<Vec<_>>() {
            let Some(scattered) = self.scattered(replica, &mut taken, &wounds) else { return };
            wounds.push(scattered);
        }
        if !self.can_repair(&wounds) {
            return;
        }
        self.fired(FaultKind::ScatteredDamage);
        for Scattered { replica, kind, wound, verdict } in wounds {
            self.inflict(kind, replica, &wound, &verdict);
        }
    }

    /// Damage to one of all disks, of no slot that is `taken`; states, which hold the same slots, are
    /// damaged on `u` disks at most. The superblock holds no slots, and is damaged with one disk only.
    fn scattered(
        &mut self,
        replica: usize,
        taken: &mut BTreeSet<Slot>,
        others: &[Scattered],
    ) -> Option<Scattered> {
        let states = others.iter().filter(|other| other.loses_state()).count();
        for _ in 0..TRIES {
            let kind = *self.chaos.random.pick(&SCATTERED);
            let of_state = states < self.plan.faults.u() && self.chaos.random.percent(25);
            let class = if of_state { "checkpoint/" } else { "log/0" };
            let disk = self.replicas[replica].disk.copy();
            let Some(wound) = self.draw_wound(kind, &disk, Some(class)) else { continue };
            let Some(verdict) = self.verdict_of(replica, &wound) else { continue };
            let Verdict::Noticed { batches, state } = &verdict else { continue };
            let room = *state == of_state && (*state || !batches.is_empty());
            if room && taken.is_disjoint(batches) {
                taken.extend(batches);
                return Some(Scattered { replica, kind, wound, verdict });
            }
        }
        None
    }

    /// Whether the replicas, each on what is left of its log, can give each other back what they
    /// need before a quorum may vote: what one of them proves decided reaches as far as a quorum of
    /// them lost votes, and each of these gets there by its own batches or those that others can prove.
    /// A batch is proven by a mark after it, in a run without gaps. With `r` > 0 only a certified
    /// prefix proves that slots are decided to others.
    fn can_repair(&self, wounds: &[Scattered]) -> bool {
        let faults = self.plan.faults;
        let (mut proven, mut needed) = (Slot(0), Vec::new());
        let (mut lost, mut whole) = (Slot(0), Vec::new());
        let mut served: BTreeSet<Slot> = BTreeSet::new();
        for replica in (0..self.n()).filter(|replica| !self.is_liar(*replica)) {
            let mut disk = self.replicas[replica].disk.copy();
            if let Some(scattered) = wounds.iter().find(|one| one.replica == replica) {
                scattered.wound.inflict(&mut disk);
            }
            let recovered = self.open(replica, disk).ok().and_then(|opened| recover(opened).ok());
            let Some(recovered) = recovered else { return false };
            lost = lost.max(recovered.found.lost.unwrap_or_default());
            let state =
                recovered.found.checkpoint.as_ref().map(|(state, _)| (state.slot, state.history));
            let (slot, history) = state.unwrap_or((Slot(0), Digest::ZERO));
            let certified = recovered.found.records.iter().filter_map(|record| match record {
                Record::Prefix(prefix) => Some(prefix.slot),
                _ => None,
            });
            let certified = certified.max().unwrap_or_default();
            let recovered_whole = recovered.found.lost.is_none();
            let (records, vote_after) = (recovered.found.records, recovered.found.vote_after);
            let mut restart = Restart::from_log(self.n(), slot, history, records, vote_after);
            let delivered = restart.delivered();
            served.extend(restart.take_older().into_iter().map(|(slot, ..)| slot));
            served.extend(restart.take_replay().into_iter().map(|(slot, _)| slot));
            if recovered_whole {
                whole.push(delivered);
            }
            let proves = if faults.is_byzantine() { certified.min(delivered) } else { delivered };
            proven = proven.max(proves);
            needed.push((vote_after.max(slot), delivered));
        }
        let climbs = |from: Slot| (from.0 + 1..=proven.0).all(|slot| served.contains(&Slot(slot)));
        let votes = |(needed, delivered): &&(Slot, Slot)| *needed <= proven && climbs(*delivered);
        let voters = needed.iter().filter(votes).count();
        // A state that was lost comes back from those who can certify it.
        let certifiers = whole.iter().filter(|delivered| **delivered >= lost).count();
        voters >= faults.agreement_quorum() && certifiers >= faults.state_certificate()
    }

    /// Draws what to damage, among what a file holds that is in use.
    pub(crate) fn draw_wound(
        &mut self,
        kind: FaultKind,
        disk: &MemoryDisk,
        only: Option<&'static str>,
    ) -> Option<Wound> {
        let random = &mut self.chaos.random;
        let class = only.unwrap_or(match random.below(10) {
            0 => "superblock",
            1..=3 => "checkpoint/",
            _ => "log/0",
        });
        let files = disk.settled_pages();
        let mut pages: Vec<(String, u64)> = Vec::new();
        let mut others: Vec<(String, u64)> = Vec::new();
        for (name, numbers) in files {
            let of_no_use = name.starts_with("log/free") || name == "checkpoint/new";
            let wanted = name.starts_with(class) && !of_no_use;
            let target = if wanted { &mut pages } else { &mut others };
            target.extend(numbers.into_iter().map(|number| (name.clone(), number)));
        }
        if pages.is_empty() {
            return None;
        }
        let (name, page) = random.pick(&pages).clone();
        let sector = page * 8 + random.below(8);
        others.extend(pages);
        let other = random.pick(&others).clone();
        Some(match kind {
            FaultKind::ZeroedSector => Wound::Zero(name, sector),
            FaultKind::StaleSector => Wound::Stale(name, sector),
            FaultKind::LostWrite => Wound::Lost(name, page),
            FaultKind::MisdirectedWrite => Wound::Written((name, page), other),
            FaultKind::MisdirectedRead => Wound::Read((name, page), other),
            _ => Wound::Flip(name, page * 4096 + random.below(4096), random.below(8) as u8),
        })
    }

    /// A replica opens a damaged disk. As if it were intact, everything must be there; as it is,
    /// what is missing must be noticed.
    pub(crate) fn open_damaged(&mut self, replica: usize) -> Result<Opened<Careless>, OpenError> {
        let intact = self.replicas[replica].disk.intact_copy();
        let whole = match self.open(replica, intact) {
            Ok(whole) => whole,
            Err(error) => {
                let what = format!("replica {replica} does not open an intact disk: {error}");
                self.fail(Broken::new(RULE, what));
                return Err(error);
            }
        };
        let known = self.replicas[replica].gaps.clone();
        if !is_whole(&whole, &known) {
            let what = format!("replica {replica}, disk in order: {:?}", whole.repaired_gaps);
            self.fail(Broken::new(RULE, what));
        }
        let states: Vec<(Slot, Digest)> =
            whole.checkpoints.list().iter().map(|name| (name.slot, name.digest)).collect();
        let disk = self.replicas[replica].disk.handle();
        let found = self.open(replica, disk)?;
        // Not before: what only the cache held is durable once a replica started on it.
        let check = self.checkers.persist_before_speak.reopened(replica, &whole.records, &states);
        self.check(check);
        match compare(&whole, &found, &known) {
            Verdict::Silent(what) => {
                let what = format!("replica {replica} does not notice that {what}");
                self.fail(Broken::new(RULE, what));
            }
            verdict => {
                self.trace.line(self.now_us, format_args!("r{replica} opens: {verdict:?}"));
            }
        }
        if whole.records.last() != found.records.last() {
            // The last group was taken for torn (nothing in it was missed), and its number is used
            // again: there is no going back to the disk as it would be without the damage.
            self.replicas[replica].disk.accept_damage();
        }
        if gaps(&found).iter().any(|gap| !known.contains(gap)) {
            self.mark(Mark::GapRepaired);
        }
        match &found.state {
            RecoveredState::Previous { .. } => self.mark(Mark::PreviousState),
            RecoveredState::Lost(_) => self.mark(Mark::LostState),
            _ => {}
        }
        if lacks_linked_piece(&found) {
            self.mark(Mark::LinkedStateLost);
        }
        Ok(found)
    }

    /// A disk is copied, and taken back to that copy later: what was synced meanwhile is gone, and
    /// nothing shows it. Whoever that happens to counts as a liar from then on.
    pub(crate) fn copy_disk(&mut self, victim: usize) {
        let here = &mut self.replicas[victim];
        here.copied = Some((here.incarnation, here.disk.copy()));
        here.copied_gaps = here.gaps.clone();
        let disruption = Disruption { ill: Some(Ill::OldDisk(victim)), ..Disruption::default() };
        let for_us = self.chaos.downtime_us(&self.plan);
        self.begin_trouble(disruption, for_us);
        // It has another boot then before it is taken back.
        if self.random.percent(50) {
            self.crash_machine(victim);
        }
    }

    /// Whether a replica no longer knows what it promised, and does not know that.
    pub(crate) fn forgot(&self, replica: usize) -> bool {
        self.replicas[replica].forgot
    }

    /// The disk is taken back.
    pub(crate) fn take_back(&mut self, victim: usize) {
        self.checkers.agreed_time.lies(victim);
        let here = &mut self.replicas[victim];
        let Some((incarnation, old)) = here.copied.take() else { return };
        if incarnation != here.incarnation || here.replaced || self.ending.begun() {
            return;
        }
        self.fired(FaultKind::RolledBack);
        self.trace.line(self.now_us, format_args!("disk of r{victim} is taken back"));
        if self.replicas[victim].process.is_some() {
            self.crash_machine(victim);
        }
        let here = &mut self.replicas[victim];
        here.rot = None;
        // What failed was in the machine.
        here.sick = None;
        here.disk.repair();
        let newer = std::mem::replace(&mut here.disk, old);
        here.newer = self.random.percent(60).then_some((here.incarnation, newer));
        here.gaps = here.copied_gaps.clone();
        here.forgot = true;
        here.just_forgot = true;
    }
}

impl World {
    /// It noticed that its disk was taken back. As an operator does: it is started on the newer one, if that is still there; else
    /// it is replaced, as soon as the group can order that.
    pub(crate) fn notice_old_disk(&mut self, replica: usize, why: &str) {
        self.mark(Mark::OldDiskNoticed);
        self.tell(format_args!("r{replica} halts: {why}"));
        let here = &mut self.replicas[replica];
        let newer = here.newer.take().filter(|(incarnation, _)| *incarnation == here.incarnation);
        here.barred = newer.is_none();
        // What was found out before it took part has said nothing that could stand against the newer disk.
        let process = self.replicas[replica].process.as_ref();
        let silent = process.is_some_and(|process| !process.node.report().boot_awaits.is_empty());
        self.crash_process(replica);
        if let Some((_, disk)) = newer {
            let here = &mut self.replicas[replica];
            here.disk = disk;
            here.sick = None;
            here.just_forgot = true;
            if silent {
                here.forgot = false;
                self.mark(Mark::NewerDiskAgain);
            }
        }
    }

    /// It is not started on its old disk.
    pub(crate) fn replace_old_disk(&mut self, replica: usize) {
        if self.replacement.is_none() && self.others_hurt(replica) < self.plan.faults.u() {
            self.wipe(replica);
        } else {
            self.start_later(replica);
        }
    }
}

/// Damage, by file and place in it.
#[derive(Clone, Debug)]
pub(crate) enum Wound {
    Flip(String, u64, u8),
    Zero(String, u64),
    Stale(String, u64),
    Lost(String, u64),
    Written((String, u64), (String, u64)),
    Read((String, u64), (String, u64)),
}

impl Wound {
    /// False when it changes nothing.
    pub(crate) fn inflict(&self, disk: &mut MemoryDisk) -> bool {
        match self {
            Wound::Flip(name, offset, bit) => disk.flip_bit(name, *offset, *bit).is_ok(),
            Wound::Zero(name, sector) => disk.zero_sector(name, *sector),
            Wound::Stale(name, sector) => disk.stale_sector(name, *sector),
            Wound::Lost(name, page) => disk.lose_write(name, *page),
            Wound::Written(here, there) => {
                disk.misdirect_write((&here.0, here.1), (&there.0, there.1))
            }
            Wound::Read(here, there) => disk.misdirect_read((&here.0, here.1), (&there.0, there.1)),
        }
    }
}
