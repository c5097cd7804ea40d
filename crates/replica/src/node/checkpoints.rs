//! Boundaries, checkpoints, signed digests, truncation, and serving decided batches to laggards.
//!
//! A boundary is a slot at which every replica digests and checkpoints its state: after
//! `checkpoint_interval` slots or `checkpoint_bytes` bytes of batches, and before a new
//! configuration starts (D8). All count alike, so all agree on where it is. The digest is signed
//! once the checkpoint is durable; m + 1 equal ones certify the state (D7). Log goes only below
//! this replica's own durable checkpoint that is certified, and one more checkpoint interval is kept
//! for laggards: without its certificate a state helps nobody else, and the log has to. The newest state
//! that the log proves stays on disk beside newer ones, and is offered again after a restart: those
//! who could certify a newer one with this replica may have lost it.

use super::certificates::Certificates;
use super::{Node, Now, Output, Peer};
use bytes::Bytes;
use perdura_execution::{Manifest, Service, StateSnapshot};
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Batch, Digest, Encode, ReplicaId, Slot, limits, seeded};
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

pub(super) struct Stored {
    pub snapshot: StateSnapshot,
    pub manifest: Manifest,
    pub digest: Digest,
    /// When a replica last asked for a piece of it.
    pub asked_ms: u64,
    /// It shares no memory with the others: it was read at the start, to be offered.
    pub apart: bool,
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
    pub certificates: Certificates,
    /// The newest state whose certificate was in the log when the last one went to disk: what a restart
    /// can prove to others.
    pub proven: Slot,
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
            certificates: Certificates::new(n),
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

    /// What is proven stays until a newer one is, and what is being fetched, within reason.
    pub fn add_stored(&mut self, stored: Stored, now_ms: u64) {
        self.stored.push_back(stored);
        let proven = self.certificates.slot();
        let older = self.stored.len().saturating_sub(STORED);
        let (mut pinned, mut index) = (0, 0);
        self.stored.retain(|stored| {
            index += 1;
            if index > older || stored.snapshot.slot() == proven {
                return true;
            }
            let asked = stored.asked_ms + PINNED_MS > now_ms;
            pinned += usize::from(asked);
            asked && pinned <= PINNED
        });
    }

    /// A state that is not shared with newer ones goes as soon as one of those is proven.
    pub fn drop_apart(&mut self, now_ms: u64) {
        let proven = self.certificates.slot();
        self.stored.retain(|stored| {
            let pinned = stored.asked_ms + PINNED_MS > now_ms;
            !stored.apart || stored.snapshot.slot() >= proven || pinned
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
        self.checkpointing.proven = self.checkpointing.certificates.slot();
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
        let stored = Stored { snapshot, manifest, digest, asked_ms: 0, apart: false };
        self.checkpointing.add_stored(stored, self.ticked_ms);
        self.counters.checkpoints += 1;
        self.state_is_stored(slot);
        let below = previous.min(self.agreement.prefix().slot).min(self.checkpointing.proven);
        if below > self.checkpointing.kept {
            self.checkpointing.kept = below;
            self.outputs.push_back(Output::Truncate(below));
        }
        self.vote_for_state(slot, digest);
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
