//! Within which promise faults happen: who has failed, who may, and what there is room for.

use super::World;
use super::replica::Replica;
use crate::options::Mode;
use crate::report::FaultKind;
use perdura_replica::node::State;

/// Damage to what one disk holds.
fn is_damage(kind: FaultKind) -> bool {
    use FaultKind::{
        BitFlip, LostWrite, MisdirectedRead, MisdirectedWrite, RunningRot, StaleSector,
        ZeroedSector,
    };
    matches!(
        kind,
        BitFlip
            | ZeroedSector
            | StaleSector
            | LostWrite
            | MisdirectedWrite
            | MisdirectedRead
            | RunningRot
    )
}

/// Whether a disk is without something that it held, or that its predecessor held.
pub(super) fn is_hurt(replica: &Replica) -> bool {
    let blank = replica.genesis.configuration.id > 0
        && replica.process.as_ref().is_none_or(|process| process.executed.0 == 0);
    replica.replaced || replica.hurt.is_some() || blank
}

impl World {
    /// Whether a replica counts as failed.
    pub(crate) fn has_failed(&self, replica: usize) -> bool {
        let here = &self.replicas[replica];
        if here.liar.is_some() {
            return true;
        }
        let Some(process) = &here.process else { return true };
        let report = process.node.report();
        let behind = report.executed.plus(self.plan.depth) < self.checkers.agreement.last();
        here.is_disturbed()
            || here.paused_until_us > self.now_us
            || report.state != State::Active
            || behind
    }

    /// Replicas that a kind of fault may strike now. In liveness mode, when `u` have failed, those
    /// that count as failed for what they say may fail in other ways too.
    pub(crate) fn candidates(&mut self, kind: FaultKind) -> Vec<usize> {
        let n = self.n();
        let running = |world: &World, replica: usize| world.replicas[replica].process.is_some();
        let mut candidates: Vec<usize> = match self.plan.mode {
            Mode::Safety => (0..n).filter(|replica| running(self, *replica)).collect(),
            Mode::Liveness => (0..n).filter(|replica| !self.has_failed(*replica)).collect(),
        };
        if self.plan.mode == Mode::Liveness && n - candidates.len() >= self.plan.faults.u() {
            let liar = |replica: &usize| self.is_liar(*replica) && running(self, *replica);
            let undisturbed = |replica: &usize| !self.replicas[*replica].is_disturbed();
            candidates = (0..n).filter(liar).filter(undisturbed).collect();
        }
        candidates.retain(|replica| match kind {
            FaultKind::Wipe => self.may_wipe(*replica),
            FaultKind::RolledBack => self.may_take_back(*replica),
            _ => !is_damage(kind) || self.may_damage(*replica),
        });
        candidates
    }

    /// Whether there is room for a kind of fault now.
    pub(crate) fn is_possible(&mut self, kind: FaultKind) -> bool {
        let synced = self.plan.durability.is_flushed();
        let safety = self.plan.mode == Mode::Safety;
        match kind {
            FaultKind::LinkReset
            | FaultKind::HalfOpenLink
            | FaultKind::ReconnectionStorm
            | FaultKind::ClientRestart => true,
            FaultKind::ClientRevoked => !self.hostile.is_empty(),
            FaultKind::CrashOfAll => safety,
            FaultKind::ScatteredDamage => self.may_damage_all(),
            FaultKind::SplitGroup | FaultKind::BridgePartition => self.room_for_split() > 0,
            FaultKind::MachineCrash | FaultKind::FlushError | FaultKind::StickyFlushError => {
                synced && !self.candidates(kind).is_empty()
            }
            _ => !self.candidates(kind).is_empty(),
        }
    }

    /// Replicas that may be parted from the others.
    pub(crate) fn room_for_split(&self) -> usize {
        let failed = (0..self.n()).filter(|replica| self.has_failed(*replica)).count();
        match self.plan.mode {
            Mode::Liveness => self.plan.faults.u().saturating_sub(failed),
            Mode::Safety => self.n() / 2,
        }
    }

    /// Disks are lost one at a time, and within what the promise allows also in safety mode: of the
    /// correct replicas fewer than `u` others have failed, so that enough hold the newest state to
    /// certify it (D8).
    pub(crate) fn may_wipe(&mut self, victim: usize) -> bool {
        let u = self.plan.faults.u();
        let others = |world: &World| {
            let counts =
                |other: &usize| world.plan.mode == Mode::Liveness || !world.is_liar(*other);
            (0..world.n()).filter(|other| *other != victim).filter(counts).collect::<Vec<usize>>()
        };
        let failed = others(self).into_iter().filter(|other| self.has_failed(*other)).count();
        // Who finds that his disk was taken back is replaced too.
        let room = failed < u && self.others_hurt(victim) + self.others_taken_back(victim) < u;
        let idle = self.replacement.is_none() && !self.is_liar(victim);
        let begun = self.checkers.agreement.last().0 > 0;
        self.plan.chaos.wipes && room && idle && begun && self.all_know_members()
    }

    /// As an administrator does: the next replica is replaced when all take part in the last
    /// configuration. Until it has fetched a state, an incarnation knows only the keys of its own,
    /// and one that was away during several replacements may know too few of those that are left.
    fn all_know_members(&self) -> bool {
        let newest = self.replicas.iter().map(|one| one.genesis.configuration.id).max();
        let knows = |replica: &Replica| {
            let Some(process) = &replica.process else { return false };
            let known = process.machine().configurations().iter().map(|known| known.id).max();
            process.executed.0 > 0 && known >= newest
        };
        newest == Some(0) || self.replicas.iter().all(|one| one.liar.is_some() || knows(one))
    }

    /// Whether a disk may be damaged: what was damaged before has come back from the others.
    pub(crate) fn may_damage(&mut self, victim: usize) -> bool {
        let synced = self.plan.durability.is_flushed();
        let room = self.others_hurt(victim) < self.plan.faults.u();
        self.note_healing(victim);
        synced && room && !self.is_liar(victim) && self.replicas[victim].hurt.is_none()
    }

    /// Whether all disks may be damaged at once.
    pub(crate) fn may_damage_all(&mut self) -> bool {
        let hurt = (0..self.n()).any(|replica| {
            self.note_healing(replica);
            let here = &self.replicas[replica];
            here.hurt.is_some() || here.replaced || here.forgot
        });
        let synced = self.plan.durability.is_flushed();
        self.plan.mode == Mode::Safety && !hurt && synced
    }

    /// Whether a disk may be taken back to an older state: whoever that happens to counts as a liar.
    pub(crate) fn may_take_back(&mut self, victim: usize) -> bool {
        let synced = self.plan.durability.is_flushed();
        let lies = |replica: &&Replica| replica.forgot || replica.liar.is_some();
        let liars = self.replicas.iter().filter(lies).count();
        let under_way = self.replicas.iter().any(|replica| replica.copied.is_some());
        let room = liars < self.plan.faults.r() && !under_way && !self.is_liar(victim);
        let replaceable = self.others_hurt(victim) < self.plan.faults.u();
        self.plan.mode == Mode::Safety && synced && room && replaceable
    }

    /// Replicas other than one whose disks were taken back, or are going to be.
    fn others_taken_back(&self, replica: usize) -> usize {
        let taken_back = |other: &usize| {
            let here = &self.replicas[*other];
            here.forgot || here.copied.is_some()
        };
        (0..self.n()).filter(|other| *other != replica).filter(taken_back).count()
    }

    /// Replicas other than one whose disks are without something they held. In liveness mode those
    /// that lie count too: they are among the `u` that failed. In safety mode the group may stop.
    pub(crate) fn others_hurt(&mut self, replica: usize) -> usize {
        for other in 0..self.n() {
            self.note_healing(other);
        }
        let liars_count = self.plan.mode == Mode::Liveness;
        let hurt = |other: &usize| {
            let here = &self.replicas[*other];
            let lies = here.liar.is_some() || here.forgot;
            is_hurt(here) || (liars_count && lies)
        };
        (0..self.n()).filter(|other| *other != replica).filter(hurt).count()
    }

    /// Replicas whose disks are without something they held, or which do not have everything again.
    pub(crate) fn hurt(&mut self) -> usize {
        (0..self.n()).for_each(|replica| self.note_healing(replica));
        self.replicas.iter().filter(|replica| is_hurt(replica)).count()
    }

    /// Notes that a replica has everything again.
    pub(crate) fn note_healing(&mut self, replica: usize) {
        let whole = !self.has_failed(replica);
        let here = &mut self.replicas[replica];
        let Some(needed) = here.hurt.filter(|_| here.rot.is_none()) else { return };
        let logged = here.process.as_ref().map(|process| process.node.report().logged);
        if whole && logged >= Some(needed) {
            here.hurt = None;
        }
    }
}
