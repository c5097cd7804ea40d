//! Boundaries, checkpoints, signed digests and truncation.
//!
//! A boundary is a slot at which every replica digests its state; all count alike (`perdura_execution::Executor`). Where
//! checkpoints are coordinated, all store the state too, and sign its digest once it is durable. Where they are sequential, all sign it as soon as it is known and the log is durable so far, and the
//! one whose turn it is stores the state (D6): boundary number k of the cluster is the turn of replica
//! k mod n; before a new configuration all store it. m + 1 equal digests certify a state (D7). Log
//! goes only below this replica's own durable checkpoint that is certified, and one more checkpoint interval is kept
//! for laggards: without its certificate a state helps nobody else, and the log has to. The newest state
//! that the log proves stays on disk beside newer ones, and is offered again after a restart: those
//! who could certify a newer one with this replica may have lost it.

use super::certificates::Certificates;
use super::{Node, Now, Output};
use bytes::Bytes;
use perdura_durability::PieceName;
use perdura_execution::{Boundary, Entry, Manifest, StateSnapshot};
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::message::{Decision, StateCertificate};
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Certificate, Digest, Encode, ReplicaId, Slot, View, seeded};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of recent batches kept in memory for laggards; older ones are read from the log.
pub const RECENT_BYTES: usize = 32 * 1024 * 1024;

/// Stored states whose digests are voted for, and which are in memory, copied on write, as long as they may be
/// sent to others.
const STORED: usize = 2;

/// States in memory that were digested and are not stored here: the votes for the latest may still come, and
/// those for the one before it.
const DIGESTED: usize = 2;

/// The state that a replica was last offered, or asked for, is kept for this time though newer ones are
/// there: longer than others may be asked before this replica, if they keep the pace. One for each
/// replica, so that a liar holds one, and takes none from others.
const PINNED_MS: u64 = 70_000;

/// So many boundaries are remembered: those that others may certify late, and those of a whole log.
const BOUNDARIES: usize = 256;

/// States that are being digested, or wait for it; further ones are passed over, for each keeps what
/// has changed since in memory.
pub(super) const DIGESTING: usize = 3;

pub(super) struct Stored {
    /// None if it is on disk alone.
    pub snapshot: Option<StateSnapshot>,
    pub manifest: Manifest,
    pub digest: Digest,
    /// It shares no memory with the others: it was read at the start, to be offered.
    pub apart: bool,
}

impl Stored {
    /// One that is in memory.
    pub fn new(snapshot: StateSnapshot, manifest: Manifest) -> Stored {
        let digest = manifest.digest();
        Stored { snapshot: Some(snapshot), manifest, digest, apart: false }
    }

    pub fn slot(&self) -> Slot {
        self.manifest.slot
    }
}

pub(super) struct Digesting {
    turn: u64,
    // Of the log, which is durable up to it first.
    mark: u64,
    forced: bool,
    snapshot: StateSnapshot,
}

pub(super) struct Checkpointing {
    // The slots of the latest boundaries, and behind which slot all are known.
    boundaries: VecDeque<Slot>,
    counted_from: Slot,
    pub storing: Option<StateSnapshot>,
    // It is stored once the log is durable up to this mark.
    stored_after: Option<u64>,
    next: Option<StateSnapshot>,
    // To be digested, with sequential checkpoints, each once the log is durable up to its mark; and
    // whether the first is under way.
    digesting: VecDeque<Digesting>,
    digests_first: bool,
    /// The latest, whoever stores them, what others are given, and what is being fetched: the newest boundary's
    /// state is the only one that a replica can use which lost what it alone had stored.
    pub digested: VecDeque<Stored>,
    /// Own digests of the latest states, ascending; with sequential checkpoints.
    pub digests: VecDeque<(Slot, Digest)>,
    // What each replica fetches, or was offered, and when it last asked.
    pins: BTreeMap<ReplicaId, (Slot, u64)>,
    /// Of how many states a digest, and a vote of each replica, is kept.
    pub states: usize,
    pub stored: VecDeque<Stored>,
    pub certificates: Certificates,
    /// The newest state that was on disk, with its certificate in the log, when the last one went there, and stays: what a
    /// restart can prove to others.
    pub proven: Slot,
    // The states on disk, ascending: the last two, and what was proven when the last one went there.
    on_disk: Vec<Slot>,
    /// Slots up to here are no longer in the log.
    pub kept: Slot,
    /// Nothing below is stored: the disk knows of a newer state, though it is damaged.
    pub store_from: Slot,
    /// States that are needed no more. What is in none of the others is freed with the last of them: of a
    /// large one that takes tenths of a second, in which the event loop has other things to do.
    pub let_go: Vec<StateSnapshot>,
    pub(super) recent: BTreeMap<Slot, Decision>,
    pub(super) recent_bytes: usize,
    pub(super) recent_most: usize,
    /// Of slots that the log still holds: a decision that a prefix proved here may be proven to
    /// others by no later one. At most one for each slot.
    pub prefixes: BTreeMap<Slot, PrefixCertificate>,
}

/// Leaves so many newest states, and those that are needed; gives the others.
fn keep_latest(
    states: &mut VecDeque<Stored>,
    most: usize,
    needed: impl Fn(Slot) -> bool,
) -> impl Iterator<Item = StateSnapshot> {
    let older = states.len().saturating_sub(most);
    let stays = |held: &(usize, Stored)| held.0 >= older || needed(held.1.slot());
    let (stay, go): (Vec<_>, Vec<_>) = states.drain(..).enumerate().partition(stays);
    states.extend(stay.into_iter().map(|(_, held)| held));
    go.into_iter().filter_map(|(_, held)| held.snapshot)
}

fn is_pinned(pins: &BTreeMap<ReplicaId, (Slot, u64)>, slot: Slot, now_ms: u64) -> bool {
    pins.values().any(|(pinned, asked_ms)| *pinned == slot && asked_ms + PINNED_MS > now_ms)
}

impl Checkpointing {
    pub fn new(parameters: &Parameters, kept: Slot) -> Checkpointing {
        let n = parameters.faults.n();
        // One round of sequential checkpoints, and what is under way when it ends.
        let states = match parameters.schedule {
            Schedule::Coordinated => 2,
            Schedule::Sequential => n + 2,
        };
        Checkpointing {
            boundaries: VecDeque::new(),
            counted_from: Slot(0),
            storing: None,
            stored_after: None,
            next: None,
            digesting: VecDeque::new(),
            digests_first: false,
            digested: VecDeque::new(),
            digests: VecDeque::new(),
            pins: BTreeMap::new(),
            states,
            stored: VecDeque::new(),
            certificates: Certificates::new(n, states),
            proven: Slot(0),
            on_disk: Vec::new(),
            kept,
            store_from: Slot(0),
            let_go: Vec::new(),
            recent: BTreeMap::new(),
            recent_bytes: 0,
            recent_most: RECENT_BYTES,
            prefixes: BTreeMap::new(),
        }
    }

    /// The newest durable checkpoint's slot.
    pub fn slot(&self) -> Slot {
        self.stored.back().map_or(Slot(0), Stored::slot)
    }

    /// The state after a slot is a boundary's.
    pub fn note_boundary(&mut self, slot: Slot) {
        self.boundaries.push_back(slot);
        if self.boundaries.len() > BOUNDARIES
            && let Some(forgotten) = self.boundaries.pop_front()
        {
            self.counted_from = forgotten;
        }
    }

    /// The state is now the one of a boundary after `slot`.
    pub fn count_from(&mut self, slot: Slot) {
        self.boundaries.clear();
        self.counted_from = slot;
    }

    /// Whether a slot that was executed was no boundary here.
    pub fn is_no_boundary(&self, slot: Slot) -> bool {
        slot > self.counted_from && !self.boundaries.contains(&slot)
    }

    /// `replica` fetches the state after a slot, or was offered it.
    pub fn pin(&mut self, replica: ReplicaId, slot: Slot, now_ms: u64) {
        self.pins.insert(replica, (slot, now_ms));
    }

    /// Whether the state after a slot is to be stored here, or is being stored.
    pub fn is_storing(&self, slot: Slot) -> bool {
        let mut waiting = self.storing.iter().chain(&self.next);
        waiting.any(|snapshot| snapshot.slot() == slot)
    }

    /// The digest of this replica's own state after a slot, where it is known.
    pub fn own_digest(&self, slot: Slot) -> Option<Digest> {
        let mut stored = self.stored.iter().filter(|stored| stored.slot() == slot);
        let digested =
            || self.digests.iter().find(|digest| digest.0 == slot).map(|digest| digest.1);
        stored.next().map(|stored| stored.digest).or_else(digested)
    }

    /// What is proven stays until a newer one is, what others are given until they can be given a newer one,
    /// and what is being fetched, within reason.
    pub fn add_stored(&mut self, stored: Stored, now_ms: u64) {
        let (last, proven) = (self.on_disk.last().copied(), self.proven);
        self.on_disk.retain(|slot| Some(*slot) == last || *slot == proven);
        self.on_disk.push(stored.slot());
        self.stored.push_back(stored);
        let (proven, offered) = (self.certificates.slot(), self.offered_slot());
        let gone = keep_latest(&mut self.stored, STORED, |slot| {
            slot == proven || Some(slot) == offered || is_pinned(&self.pins, slot, now_ms)
        });
        self.let_go.extend(gone);
    }

    /// A state older than the newest, which is on disk too, and was read to be offered.
    pub fn add_older(&mut self, older: Stored) {
        self.on_disk.insert(0, older.slot());
        self.stored.push_front(older);
    }

    /// A state goes to disk: what is proven by now stays there beside it. One that the last to go there pushed out
    /// is proven in memory alone.
    fn choose_proven(&mut self) {
        let certified = self.certificates.slot();
        if self.on_disk.contains(&certified) {
            self.proven = certified;
        }
    }

    fn add_digested(&mut self, digested: Stored, now_ms: u64) {
        self.digests.push_back((digested.slot(), digested.digest));
        if self.digests.len() > self.states {
            self.digests.pop_front();
        }
        self.digested.push_back(digested);
        let offered = self.offered_slot();
        let gone = keep_latest(&mut self.digested, DIGESTED, |slot| {
            Some(slot) == offered || is_pinned(&self.pins, slot, now_ms)
        });
        self.let_go.extend(gone);
    }

    /// The state after a slot, if it can be given to others.
    pub fn held(&self, slot: Slot) -> Option<(&StateSnapshot, &Manifest)> {
        let held = self.stored.iter().chain(&self.digested).filter(|held| held.slot() == slot);
        held.filter_map(|held| Some((held.snapshot.as_ref()?, &held.manifest))).next()
    }

    /// Whether the state after a slot was stored or digested here not long ago.
    pub fn is_known(&self, slot: Slot) -> bool {
        self.stored.iter().chain(&self.digested).any(|held| held.slot() == slot)
    }

    /// The newest state that others can be given. One of those who signed it is correct and has executed all before it; who takes
    /// it over looks for a prefix that reaches it later.
    pub fn offered(&self) -> Option<&StateCertificate> {
        self.certificates.all().find(|state| self.held(state.slot).is_some())
    }

    fn offered_slot(&self) -> Option<Slot> {
        self.offered().map(|state| state.slot)
    }

    /// Others are given the newest state that is certified. What is older leaves the memory, unless somebody
    /// fetches it right now: as it is shared with the state of now, it costs as much as has changed since,
    /// after some minutes of load as much as all of it.
    pub fn evict_older(&mut self, now_ms: u64) {
        let Some(offered) = self.offered_slot() else { return };
        let goes =
            |held: &Stored| held.slot() < offered && !is_pinned(&self.pins, held.slot(), now_ms);
        let stored = self.stored.iter_mut().filter(|held| !held.apart && goes(held));
        self.let_go.extend(stored.filter_map(|held| held.snapshot.take()));
        let (go, stay): (Vec<_>, Vec<_>) = self.digested.drain(..).partition(goes);
        self.digested.extend(stay);
        self.let_go.extend(go.into_iter().filter_map(|held| held.snapshot));
    }

    /// A state that is not shared with newer ones goes as soon as one of those is proven.
    pub fn drop_apart(&mut self, now_ms: u64) {
        let proven = self.certificates.slot();
        let (stay, go): (Vec<_>, Vec<_>) = self.stored.drain(..).partition(|stored| {
            let slot = stored.slot();
            !stored.apart || slot >= proven || is_pinned(&self.pins, slot, now_ms)
        });
        self.stored.extend(stay);
        self.let_go.extend(go.into_iter().filter_map(|stored| stored.snapshot));
    }

    /// What proves a decision came after it.
    pub fn prove_recent(&mut self, slot: Slot, view: View, accepts: Certificate) {
        if let Some(decision) = self.recent.get_mut(&slot) {
            (decision.view, decision.accepts) = (view, accepts);
        }
    }

    fn add_recent(&mut self, decision: Decision) {
        self.recent_bytes += decision.batch.raw().len();
        self.recent.insert(decision.slot, decision);
        while self.recent_bytes > self.recent_most {
            let Some((_, oldest)) = self.recent.pop_first() else { return };
            self.recent_bytes -= oldest.batch.raw().len();
        }
    }

    /// A transferred state takes the place of whatever was to be stored.
    pub fn forget_storing(&mut self) {
        self.let_go.extend(self.storing.take().into_iter().chain(self.next.take()));
        self.let_go.extend(self.digesting.drain(..).map(|waiting| waiting.snapshot));
        self.let_go.extend(self.digested.drain(..).filter_map(|digested| digested.snapshot));
        self.stored_after = None;
        self.digests_first = false;
    }

    pub fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }
}

/// The pieces of a state, as a disk knows them.
#[must_use]
pub fn piece_names(manifest: &Manifest) -> Vec<PieceName> {
    let name = |entry: &Entry| PieceName { digest: entry.digest, bytes: entry.length };
    manifest.entries().iter().map(name).collect()
}

/// Whether `me` stores the state at a boundary: all do where checkpoints are coordinated, and before a
/// new configuration.
pub(super) fn is_turn_of(me: ReplicaId, n: usize, boundary: &Boundary) -> bool {
    let own = |turn: u64| turn % n as u64 == u64::from(me.0);
    boundary.forced || boundary.turn.is_none_or(own)
}

/// The index of the boundary that is passed over first, by their numbers: one whose number is less
/// often even, of those the oldest. Replicas that cannot digest all of them then have the same ones in
/// common, whenever each had to leave one out; a state certificate takes m + 1 of the same.
pub(super) fn least(turns: impl Iterator<Item = u64>) -> usize {
    turns.enumerate().min_by_key(|(_, turn)| turn.trailing_zeros()).map_or(0, |(index, _)| index)
}

impl Node {
    /// Whether this replica's next checkpoint waits for one that is being stored.
    #[must_use]
    pub fn checkpoint_is_late(&self) -> bool {
        self.checkpointing.next.is_some()
    }

    /// Whether somebody waits for a digest: another state for its turn, or, after a boundary at which all
    /// replicas store the state, a new member for that.
    #[must_use]
    pub fn digest_is_late(&self) -> bool {
        self.checkpointing.digesting.len() > 1 || self.digest_is_forced()
    }

    /// Whether what is digested, or waits for that, is of a boundary at which all replicas store the state.
    #[must_use]
    pub fn digest_is_forced(&self) -> bool {
        self.checkpointing.digesting.iter().any(|waiting| waiting.forced)
    }

    /// The decision for a slot is kept for laggards.
    pub(super) fn keep_decision(&mut self, slot: Slot) {
        if let Some(decision) = self.agreement.decision(slot) {
            self.checkpointing.add_recent(decision);
        }
    }

    pub(super) fn at_boundary(&mut self, slot: Slot, boundary: Boundary) {
        assert!(boundary.snapshot.slot() == slot, "a snapshot is taken where it belongs");
        if seeded!(TruncatedTooEarly) {
            self.outputs.push_back(Output::Truncate(slot.min(self.agreement.prefix().slot)));
        }
        if self.transfer.supersedes(slot) {
            return;
        }
        let stores = is_turn_of(self.me, self.parameters.faults.n(), &boundary);
        let Boundary { forced, turn, snapshot } = boundary;
        if let Some(turn) = turn {
            self.digest(turn, forced, snapshot.clone());
        }
        if !stores {
            return;
        }
        if self.checkpointing.storing.is_some() {
            let passed_over = self.checkpointing.next.replace(snapshot);
            self.counters.boundaries_passed_over += u64::from(passed_over.is_some());
            self.checkpointing.let_go.extend(passed_over);
        } else {
            self.store(snapshot);
        }
    }

    /// Digests a state, off the event loop, after those that wait for it, and when all that led to it
    /// is logged here: what a replica signs it also has after a restart.
    pub(super) fn digest(&mut self, turn: u64, forced: bool, snapshot: StateSnapshot) {
        let mark = self.journal.log_all();
        let digesting = &mut self.checkpointing.digesting;
        digesting.push_back(Digesting { turn, mark, forced, snapshot });
        if digesting.len() > DIGESTING {
            let needless = least(digesting.iter().skip(1).map(|waiting| waiting.turn));
            let passed_over = digesting.remove(1 + needless).map(|passed| passed.snapshot);
            self.checkpointing.let_go.extend(passed_over);
            self.counters.boundaries_passed_over += 1;
        }
        self.digest_logged();
    }

    pub(super) fn digest_logged(&mut self) {
        let checkpointing = &mut self.checkpointing;
        let Some(first) = checkpointing.digesting.front() else { return };
        if self.journal.has(first.mark) && !checkpointing.digests_first {
            let snapshot = first.snapshot.clone();
            checkpointing.digests_first = true;
            self.outputs.push_back(Output::DigestState { snapshot });
        }
    }

    pub(super) fn on_state_digested(&mut self, manifest: Manifest, digest: Digest) {
        let slot = manifest.slot;
        let checkpointing = &mut self.checkpointing;
        let ours = |waiting: &mut Digesting| waiting.snapshot.slot() == slot;
        let first = checkpointing.digesting.pop_front_if(ours);
        let Some(first) = first.filter(|_| checkpointing.digests_first) else {
            return; // A transferred state has taken its place.
        };
        checkpointing.digests_first = false;
        // Its digest comes with it: that takes too long for the event loop.
        let digested = Stored { snapshot: Some(first.snapshot), manifest, digest, apart: false };
        checkpointing.add_digested(digested, self.ticked_ms);
        self.judge_early(slot);
        self.vote_for_state(slot, digest);
        self.digest_logged();
    }

    pub(super) fn store(&mut self, snapshot: StateSnapshot) {
        if snapshot.slot() < self.checkpointing.store_from {
            return;
        }
        self.checkpointing.storing = Some(snapshot.clone());
        if seeded!(DigestBeforeDurable) {
            self.vote_for_state(snapshot.slot(), snapshot.manifest().digest());
        }
        self.checkpointing.stored_after = Some(self.journal.log_all());
        if !self.transfer.supersedes(Slot(0)) {
            self.checkpointing.choose_proven();
        }
        self.store_logged();
    }

    /// The log goes first: with a state goes what proves the slots before it. This replica may be
    /// the only one that restarts behind the boundary, and where a configuration begins there, the
    /// others cannot change views without it: they get there by these proofs or not at all.
    pub(super) fn store_logged(&mut self) {
        let journal = &self.journal;
        if self.checkpointing.stored_after.take_if(|mark| journal.has(*mark)).is_none() {
            return;
        }
        let Some(snapshot) = self.checkpointing.storing.clone() else { return };
        let slot = snapshot.slot();
        if self.transfer.supersedes(slot) || slot <= self.checkpointing.slot() {
            // A transferred state has gone to disk while this one waited.
            self.checkpointing.storing = None; // `snapshot` is what it was.
            self.checkpointing.let_go.push(snapshot);
            self.store_next();
        } else {
            let keep = self.checkpointing.proven;
            self.outputs.push_back(Output::StoreCheckpoint { snapshot, keep });
        }
    }

    fn store_next(&mut self) {
        let next = self.checkpointing.next.take();
        if let Some(next) = next.filter(|next| !self.transfer.supersedes(next.slot())) {
            self.store(next);
        }
    }

    pub(super) fn on_checkpoint_stored(&mut self, now: Now, manifest: Manifest) {
        let slot = manifest.slot;
        let ours = self.checkpointing.storing.as_ref().is_some_and(|held| held.slot() == slot);
        if !ours {
            self.on_installed(now, &manifest);
            return;
        }
        let Some(snapshot) = self.checkpointing.storing.take() else { return };
        self.add_checkpoint(snapshot, manifest);
        self.store_next();
    }

    /// A state of this replica is durable: the log before the one before it may go.
    pub(super) fn add_checkpoint(&mut self, snapshot: StateSnapshot, manifest: Manifest) {
        let (slot, digest) = (manifest.slot, manifest.digest());
        let previous = self.checkpointing.slot();
        self.checkpointing.add_stored(Stored::new(snapshot, manifest), self.ticked_ms);
        self.counters.checkpoints += 1;
        self.state_is_stored(slot);
        // What is in the log about these two is noted at their slots.
        let noted = self.agreement.prefix().slot.min(self.checkpointing.proven);
        let below = previous.min(noted.previous());
        if below > self.checkpointing.kept {
            self.checkpointing.kept = below;
            self.outputs.push_back(Output::Truncate(below));
        }
        if self.checkpointing.digests.contains(&(slot, digest)) {
            self.certify_state(slot); // It was voted for.
        } else {
            self.vote_for_state(slot, digest);
        }
    }

    pub(super) fn on_certified(&mut self, prefix: PrefixCertificate) {
        self.counters.prefixes_certified += 1;
        let checkpointing = &mut self.checkpointing;
        // They prove what is in the log, and in memory.
        let recent = checkpointing.recent.first_key_value().map(|(slot, _)| *slot);
        let first = checkpointing.kept.next().min(recent.unwrap_or(prefix.slot));
        checkpointing.prefixes.insert(prefix.slot, prefix);
        checkpointing.prefixes = checkpointing.prefixes.split_off(&first);
    }

    /// The manifest of a stored state, encoded; empty if it is gone.
    pub(super) fn manifest_bytes(&mut self, now: Now, to: ReplicaId, slot: Slot) -> Bytes {
        let stored = self.asked_for(now, to, slot);
        stored.map(|(_, manifest)| manifest.to_bytes()).unwrap_or_default()
    }

    fn asked_for(
        &mut self,
        now: Now,
        by: ReplicaId,
        slot: Slot,
    ) -> Option<(&StateSnapshot, &Manifest)> {
        self.checkpointing.pin(by, slot, now.monotonic_ms);
        self.checkpointing.held(slot)
    }

    /// A piece of a stored state; empty if it is gone.
    pub(super) fn piece_bytes(&mut self, now: Now, to: ReplicaId, slot: Slot, index: u32) -> Bytes {
        self.asked_for(now, to, slot)
            .filter(|(snapshot, _)| (index as usize) < snapshot.pieces())
            .map(|(snapshot, _)| snapshot.piece(index as usize))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Digests one boundary while `every` pass.
    fn digested_by(every: u64) -> BTreeSet<u64> {
        let (mut waiting, mut digested) = (VecDeque::new(), BTreeSet::new());
        for turn in 1..400 {
            waiting.push_back(turn);
            if waiting.len() > DIGESTING {
                let needless = least(waiting.iter().skip(1).copied());
                waiting.remove(1 + needless);
            }
            if turn % every == 0 {
                digested.extend(waiting.pop_front());
            }
        }
        digested
    }

    #[test]
    fn replicas_that_are_too_slow_in_different_ways_digest_some_of_the_same_boundaries() {
        let slow: Vec<BTreeSet<u64>> = [3, 4, 5, 7].into_iter().map(digested_by).collect();
        for digested in &slow {
            assert!(digested.len() < 140, "it is too slow");
        }
        let in_common = slow.iter().skip(1).fold(slow[0].clone(), |all, more| &all & more);
        assert!(in_common.len() >= 20, "{in_common:?}");
    }
}
