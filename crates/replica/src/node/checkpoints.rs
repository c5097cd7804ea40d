//! Boundaries, checkpoints, signed digests, truncation, and serving decided batches to laggards.
//!
//! A boundary is a slot at which every replica digests and checkpoints its state: after
//! `checkpoint_interval` slots or `checkpoint_bytes` bytes of batches, and before a new
//! configuration starts (D8). All count alike, so all agree on where it is. The digest is signed
//! once the checkpoint is durable; m + 1 equal ones certify the state (D7). Log goes only below
//! this replica's own durable checkpoint that is certified, and one more checkpoint interval is kept
//! for laggards: without its certificate a state helps nobody else, and the log has to. The newest state
//! that the log proves stays on disk beside a newer one, and is offered again after a restart: those
//! who could certify the newer one with this replica may have lost it.

use super::ingress::Origin;
use super::{Node, Now, Output, Peer};
use bytes::Bytes;
use perdura_execution::{Manifest, Service, StateSnapshot};
use perdura_protocol::message::{Decision, Message, StateCertificate};
use perdura_protocol::statement::Kind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Context, Digest, Encode, Record, ReplicaId, Signature, Slot, View, limits,
    seeded,
};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of recent batches kept in memory for laggards; older ones are read from the log.
pub const RECENT_BYTES: usize = 32 * 1024 * 1024;

/// States kept in memory for sending, copied on write: the newest, and the one before it, which a
/// replica may be fetching right now.
const STORED: usize = 2;

/// A stored state that was asked for within this time is kept though newer ones are there ...
const PINNED_MS: u64 = 10_000;

/// ... but only so many.
const PINNED: usize = 2;

/// Votes for states are repeated to all not more often than this, whoever asks for states.
const REPEAT_MS: u64 = 200;

/// A replica's word about its state.
type Vote = (Slot, Digest, Signature);

pub(super) struct Stored {
    pub snapshot: StateSnapshot,
    pub manifest: Manifest,
    pub digest: Digest,
    /// When a replica last asked for a piece of it.
    pub asked_ms: u64,
}

pub(super) struct Checkpointing {
    pub slots_since: u64,
    pub bytes_since: u64,
    pub forced: Option<Slot>,
    pub storing: Option<StateSnapshot>,
    // It is stored once the log is durable up to this mark.
    stored_after: Option<u64>,
    next: Option<StateSnapshot>,
    pub stored: VecDeque<Stored>,
    // The latest two of each replica, so that a liar takes no memory.
    votes: Vec<[Option<Vote>; 2]>,
    pub certified: Option<StateCertificate>,
    /// The newest state whose certificate was in the log when the last one went to disk: what a restart
    /// can prove to others.
    proven: Slot,
    /// Slots up to here are no longer in the log.
    pub kept: Slot,
    /// Nothing below is stored: the disk knows of a newer state, though it is damaged.
    pub store_from: Slot,
    recent: BTreeMap<Slot, Decision>,
    pub(super) recent_bytes: usize,
    pub(super) recent_most: usize,
    /// Of slots that the log still holds: a decision that a prefix proved here may be proven to
    /// others by no later one. One for each interval of slots.
    pub prefixes: BTreeMap<Slot, PrefixCertificate>,
}

impl Checkpointing {
    pub fn new(n: usize, kept: Slot) -> Checkpointing {
        Checkpointing {
            slots_since: 0,
            bytes_since: 0,
            forced: None,
            storing: None,
            stored_after: None,
            next: None,
            stored: VecDeque::new(),
            votes: vec![[None; 2]; n],
            certified: None,
            proven: Slot(0),
            kept,
            store_from: Slot(0),
            recent: BTreeMap::new(),
            recent_bytes: 0,
            recent_most: RECENT_BYTES,
            prefixes: BTreeMap::new(),
        }
    }

    /// The newest durable checkpoint's slot.
    pub fn slot(&self) -> Slot {
        self.stored.back().map_or(Slot(0), |stored| stored.snapshot.slot())
    }

    /// Counts a slot; true at a boundary.
    pub fn count(&mut self, slot: Slot, bytes: u64, interval: u64, limit: u64) -> bool {
        self.slots_since += 1;
        self.bytes_since += bytes;
        let forced = self.forced == Some(slot);
        let due = self.slots_since >= interval || self.bytes_since >= limit || forced;
        if due {
            self.slots_since = 0;
            self.bytes_since = 0;
        }
        if forced {
            self.forced = None;
        }
        due
    }

    pub fn add_stored(&mut self, stored: Stored, now_ms: u64) {
        self.stored.push_back(stored);
        // What is proven stays until a newer one is, and what is being fetched, within reason.
        let proven = self.certified.as_ref().map(|held| held.slot);
        let pinned = |stored: &Stored| stored.asked_ms + PINNED_MS > now_ms;
        let excess = self.stored.len().saturating_sub(STORED);
        let mut dropped = 0;
        let newest = self.stored.len() - 1;
        let mut index = 0;
        self.stored.retain(|stored| {
            index += 1;
            let last = index > newest;
            let needed = last || Some(stored.snapshot.slot()) == proven;
            let go = !needed && dropped < excess && (!pinned(stored) || excess > PINNED);
            dropped += usize::from(go);
            !go
        });
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
        self.storing = None;
        self.stored_after = None;
        self.next = None;
    }

    pub fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }
}

impl<S: Service> Node<S> {
    pub(super) fn note_boundary(&mut self, slot: Slot, batch: &Batch) -> bool {
        if let Some(decision) = self.agreement.decision(slot) {
            self.checkpointing.add_recent(decision);
        }
        let interval = self.parameters.checkpoint_interval;
        let limit = self.parameters.checkpoint_bytes;
        self.checkpointing.count(slot, batch.raw().len() as u64, interval, limit)
    }

    pub(super) fn at_boundary(&mut self, slot: Slot) {
        let snapshot = self.machine.snapshot();
        assert!(snapshot.slot() == slot, "a snapshot is taken where it belongs");
        if seeded!(TruncatedTooEarly) {
            self.outputs.push_back(Output::Truncate(slot.min(self.agreement.prefix().slot)));
        }
        if self.transfer.supersedes(slot) {
            return;
        }
        if self.checkpointing.storing.is_some() {
            self.counters.boundaries_passed_over +=
                u64::from(self.checkpointing.next.replace(snapshot).is_some());
        } else {
            self.store(snapshot);
        }
    }

    pub(super) fn store(&mut self, snapshot: StateSnapshot) {
        if snapshot.slot() < self.checkpointing.store_from {
            return;
        }
        self.checkpointing.storing = Some(snapshot.clone());
        if seeded!(DigestBeforeDurable) {
            self.vote_for_state(snapshot.slot(), snapshot.manifest().digest());
        }
        self.checkpointing.stored_after = Some(self.log_all());
        self.checkpointing.proven =
            self.checkpointing.certified.as_ref().map_or(Slot(0), |held| held.slot);
        self.store_logged();
    }

    /// The log goes first: with a state goes what proves the slots before it. This replica may be
    /// the only one that restarts behind the boundary, and where a configuration begins there, the
    /// others cannot change views without it: they get there by these proofs or not at all.
    pub(super) fn store_logged(&mut self) {
        let durable = self.durable;
        if self.checkpointing.stored_after.take_if(|mark| *mark <= durable).is_none() {
            return;
        }
        let Some(snapshot) = self.checkpointing.storing.clone() else { return };
        let slot = snapshot.slot();
        if self.transfer.supersedes(slot) || slot <= self.checkpointing.slot() {
            // A transferred state has gone to disk while this one waited.
            self.checkpointing.storing = None;
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
        let stored = Stored { snapshot, manifest, digest, asked_ms: 0 };
        self.checkpointing.add_stored(stored, self.ticked_ms);
        self.counters.checkpoints += 1;
        let certified = self.checkpointing.certified.as_ref().filter(|held| held.slot == slot);
        if let Some(certified) = certified.map(|held| held.digest) {
            self.judge_own_state(slot, certified);
        }
        let below = previous.min(self.agreement.prefix().slot).min(self.checkpointing.proven);
        if below > self.checkpointing.kept {
            self.checkpointing.kept = below;
            self.outputs.push_back(Output::Truncate(below));
        }
        self.vote_for_state(slot, digest);
    }

    /// "My state after this slot has this digest, and is durable here."
    fn vote_for_state(&mut self, slot: Slot, digest: Digest) {
        if let Some(signature) = self.sign_state(slot, digest) {
            let me = self.me;
            self.broadcast(&Message::Checkpoint { slot, digest, signature });
            self.add_vote(me, (slot, digest, signature));
        }
        self.certify_state(slot);
    }

    /// Nothing about slots in which this replica's predecessor was the member: it has another key,
    /// and whoever signs for it with this one passes for a liar.
    fn sign_state(&self, slot: Slot, digest: Digest) -> Option<Signature> {
        let configurations = self.agreement.configurations();
        let statement =
            configurations.context_at(slot).statement(Kind::Checkpoint, View(0), slot, digest);
        let member = configurations.key_at(slot, self.me) == Some(self.key.public());
        member.then(|| self.key.sign(&statement))
    }

    /// After a restart: what was voted for before counts here again; peers hear it on link up.
    pub(super) fn recall_votes(&mut self) {
        let stored: Vec<(Slot, Digest)> = self
            .checkpointing
            .stored
            .iter()
            .map(|stored| (stored.snapshot.slot(), stored.digest))
            .collect();
        for (slot, digest) in stored {
            if let Some(signature) = self.sign_state(slot, digest) {
                self.add_vote(self.me, (slot, digest, signature));
            }
        }
    }

    pub(super) fn repeat_checkpoint_votes(&mut self, to: ReplicaId) {
        let votes: Vec<(Slot, Digest)> = self
            .checkpointing
            .stored
            .iter()
            .map(|stored| (stored.snapshot.slot(), stored.digest))
            .collect();
        for (slot, digest) in votes {
            if let Some(signature) = self.sign_state(slot, digest) {
                self.send(&[Peer::Replica(to)], &Message::Checkpoint { slot, digest, signature });
            }
        }
    }

    /// Votes get lost, and a restart forgets those of others: as long as the newest state here is
    /// not certified, whoever asks for one makes all who are asked vote again.
    pub(super) fn repeat_uncertified_votes(&mut self, now: Now) {
        if now.monotonic_ms < self.voted_ms + REPEAT_MS {
            return;
        }
        self.voted_ms = now.monotonic_ms;
        let certified = self.checkpointing.certified.as_ref().map_or(Slot(0), |held| held.slot);
        if certified < self.checkpointing.slot() {
            let n = self.parameters.faults.n() as u8;
            let me = self.me;
            for peer in (0..n).map(ReplicaId).filter(|id| *id != me) {
                self.repeat_checkpoint_votes(peer);
            }
        }
    }

    pub(super) fn on_checkpoint_vote(
        &mut self,
        now: Now,
        from: ReplicaId,
        slot: Slot,
        digest: Digest,
        signature: Signature,
    ) {
        let penalised = self.penalties.get(&Origin::Replica(from));
        if penalised.is_some_and(|penalty| penalty.holds(now.monotonic_ms)) {
            return;
        }
        if self.add_vote(from, (slot, digest, signature)) {
            self.certify_state(slot);
            self.extend_certificate(from, (slot, digest, signature));
        }
    }

    /// One more signature than are needed, of one who voted later: who was away while members were
    /// replaced knows the keys of some signers only, and has to find m + 1 among those.
    fn extend_certificate(&mut self, from: ReplicaId, (slot, digest, signature): Vote) {
        let held = self.checkpointing.certified.as_ref();
        let Some(held) = held.filter(|held| held.slot == slot && held.digest == digest) else {
            return;
        };
        let mut signatures = held.certificate.signatures().to_vec();
        if signatures.iter().any(|(id, _)| *id == from) {
            return;
        }
        let one = StateCertificate {
            certificate: Certificate::new(vec![(from, signature)]),
            ..held.clone()
        };
        self.counters.statements_verified += 1;
        if self.state_certified(&one, 1) {
            signatures.push((from, signature));
            if let Some(held) = &mut self.checkpointing.certified {
                held.certificate = Certificate::new(signatures);
            }
        } else {
            self.checkpointing.votes[from.index()] = [None; 2];
            self.penalties.entry(Origin::Replica(from)).or_default().strike(self.ticked_ms);
        }
    }

    /// Whether the vote is news.
    fn add_vote(&mut self, from: ReplicaId, vote: Vote) -> bool {
        let Some(held) = self.checkpointing.votes.get_mut(from.index()) else { return false };
        let same = |old: &Option<Vote>| old.is_some_and(|old| old.0 == vote.0);
        if held.contains(&Some(vote)) {
            return false;
        }
        if let Some(place) = held.iter_mut().find(|old| same(old)) {
            *place = Some(vote);
        } else if held[1].is_none_or(|newest| vote.0 > newest.0) {
            held[0] = held[1].replace(vote);
        } else if held[0].is_none_or(|older| vote.0 > older.0) {
            held[0] = Some(vote);
        } else {
            return false;
        }
        true
    }

    /// Looks for m + 1 genuine and equal digests of one slot's state. Who is behind does not know in
    /// which configuration, and with which keys, others sign, and so could not blame anybody for what
    /// it verifies in vain: it looks at the votes again when it has stored that state itself.
    fn certify_state(&mut self, slot: Slot) {
        let known = self.checkpointing.certified.as_ref().is_some_and(|held| held.slot >= slot);
        if known || slot > self.machine.slot() {
            return;
        }
        let quorum = self.parameters.faults.state_certificate();
        let votes: Vec<(ReplicaId, Digest, Signature)> = (0u8..)
            .zip(&self.checkpointing.votes)
            .filter_map(|(id, held)| {
                let vote = held.iter().flatten().find(|vote| vote.0 == slot)?;
                Some((ReplicaId(id), vote.1, vote.2))
            })
            .collect();
        let enough = |digest: &Digest| votes.iter().filter(|v| v.1 == *digest).count() >= quorum;
        let Some(digest) = votes.iter().map(|vote| vote.1).find(enough) else { return };
        let signatures: Vec<(ReplicaId, Signature)> =
            votes.iter().filter(|vote| vote.1 == digest).map(|vote| (vote.0, vote.2)).collect();
        let configuration = self.agreement.configurations().at(slot).id;
        let mut genuine = Vec::new();
        for (id, signature) in signatures {
            let single = Certificate::new(vec![(id, signature)]);
            let state = StateCertificate { slot, digest, configuration, certificate: single };
            self.counters.statements_verified += 1;
            if self.state_certified(&state, 1) {
                genuine.push((id, signature));
            } else {
                self.checkpointing.votes[id.index()] = [None; 2];
                let penalty = self.penalties.entry(Origin::Replica(id)).or_default();
                penalty.strike(self.ticked_ms);
            }
        }
        if genuine.len() < quorum {
            return;
        }
        let certificate = Certificate::new(genuine);
        self.counters.states_certified += 1;
        self.judge_own_state(slot, digest);
        self.learn_certificate(StateCertificate { slot, digest, configuration, certificate });
    }

    /// A state is proven, to this replica and, by what it notes, after a restart to others.
    pub(super) fn learn_certificate(&mut self, state: StateCertificate) {
        if self.checkpointing.certified.as_ref().is_some_and(|held| held.slot >= state.slot) {
            return;
        }
        let record = Record::State(state.clone());
        self.backlog.add(&record);
        self.records.push(record);
        self.noted_ms.get_or_insert(self.ticked_ms);
        self.checkpointing.certified = Some(state);
    }

    /// After a restart: the newest state that the log says is certified.
    pub(super) fn recall_certificate(&mut self, state: Option<StateCertificate>) {
        let Some(state) = state else { return };
        self.judge_own_state(state.slot, state.digest);
        self.checkpointing.proven = state.slot;
        self.checkpointing.certified = Some(state);
    }

    /// A replica whose digest loses must not go on: its answers may be wrong.
    fn judge_own_state(&mut self, slot: Slot, certified: Digest) {
        let own = self.checkpointing.stored.iter().find(|stored| stored.snapshot.slot() == slot);
        if own.is_some_and(|stored| stored.digest != certified) {
            self.counters.diverged = true;
            self.halt(format!(
                "the state after slot {slot} differs from the one that a quorum of replicas \
                 signed: memory or disk of this replica is damaged. Stop it and replace it with \
                 `perdura replica reinit`"
            ));
        }
    }

    /// Whether at least `quorum` genuine signatures certify a state. A replica that was away may
    /// not know the configuration; it goes by the newest members that it or its file knows.
    pub(super) fn state_certified(&self, state: &StateCertificate, quorum: usize) -> bool {
        let configurations = self.agreement.configurations();
        let members = configurations.by_id(state.configuration);
        let newest = self.linked(configurations.latest());
        let members = members.unwrap_or(&newest);
        let context =
            Context { cluster: configurations.cluster(), configuration: state.configuration };
        let message = context.statement(Kind::Checkpoint, View(0), state.slot, state.digest);
        let genuine = state
            .certificate
            .signatures()
            .iter()
            .filter(|(id, signature)| {
                members.key(*id).is_some_and(|key| self.scheme.verify(key, &message, *signature))
            })
            .count();
        genuine >= quorum
    }

    pub(super) fn on_certified(&mut self, prefix: PrefixCertificate) {
        self.counters.prefixes_certified += 1;
        let prefixes = &mut self.checkpointing.prefixes;
        prefixes.insert(prefix.slot, prefix);
        *prefixes = prefixes.split_off(&self.checkpointing.kept.next());
    }

    /// A laggard asks for batches that agreement has forgotten.
    pub(super) fn serve(&mut self, to: ReplicaId, from: Slot) {
        self.counters.fetches_served += 1;
        let limit = self.parameters.depth as usize;
        let mut bytes = 0;
        let recent: Vec<Decision> = self
            .checkpointing
            .recent
            .range(from..)
            .zip(from.0..)
            .take_while(|((slot, decision), expected)| {
                bytes += decision.batch.raw().len();
                slot.0 == *expected && bytes <= limits::FETCH_BYTES + limits::BATCH_BYTES
            })
            .map(|((_, decision), _)| decision.clone())
            .take(limit)
            .collect();
        if !recent.is_empty() {
            self.send_decisions(to, recent);
            return;
        }
        let wanted: Vec<(Slot, Digest)> = self
            .histories
            .range(from..)
            .zip(from.0..)
            .take_while(|((slot, _), expected)| slot.0 == *expected)
            .map(|((slot, digest), _)| (*slot, *digest))
            .take(limit)
            .collect();
        if wanted.is_empty() || from <= self.checkpointing.kept {
            self.send_too_old(to);
        } else if self.reading.insert(to) {
            // One at a time for each: the keeper has a log to write.
            self.outputs.push_back(Output::ReadDecisions { to, wanted });
        }
    }

    fn send_too_old(&mut self, to: ReplicaId) {
        let checkpoint = self.checkpointing.slot();
        self.send(&[Peer::Replica(to)], &Message::TooOld { checkpoint });
    }

    pub(super) fn on_decisions_read(&mut self, to: ReplicaId, decisions: Vec<Decision>) {
        self.reading.remove(&to);
        if decisions.is_empty() {
            self.send_too_old(to);
        } else {
            let bytes = decisions.iter().map(|decision| decision.batch.raw().len()).sum();
            self.charge(to, bytes);
            self.send_decisions(to, decisions);
        }
    }

    fn send_decisions(&mut self, to: ReplicaId, decisions: Vec<Decision>) {
        let (Some(first), Some(last)) = (decisions.first(), decisions.last()) else { return };
        let covering = self.checkpointing.prefixes.range(first.slot..=last.slot);
        let prefix = covering.last().map(|(_, prefix)| prefix.clone());
        self.send(&[Peer::Replica(to)], &Message::Decisions { decisions, prefix });
    }

    /// The manifest of a stored state, encoded; empty if it is gone.
    pub(super) fn manifest_bytes(&mut self, now: Now, slot: Slot) -> Bytes {
        let stored = self.asked_for(now, slot);
        stored.map(|stored| stored.manifest.to_bytes()).unwrap_or_default()
    }

    fn asked_for(&mut self, now: Now, slot: Slot) -> Option<&Stored> {
        let mut held = self.checkpointing.stored.iter_mut();
        let stored = held.find(|stored| stored.snapshot.slot() == slot)?;
        stored.asked_ms = now.monotonic_ms;
        Some(stored)
    }

    /// A piece of a stored state; empty if it is gone.
    pub(super) fn piece_bytes(&mut self, now: Now, slot: Slot, index: u32) -> Bytes {
        self.asked_for(now, slot)
            .filter(|stored| (index as usize) < stored.snapshot.pieces())
            .map(|stored| stored.snapshot.piece(index as usize))
            .unwrap_or_default()
    }
}
