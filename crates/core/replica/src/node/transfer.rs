//! State transfer: one certified state, its pieces from all replicas that offer it at once (`fetching`), and
//! beside them what was decided after it, from all that have it (Dura-SMaRt, USENIX ATC 2013, figure 6).
//! In the paper one replica sends the state and others parts of the log, so that each sends about as much;
//! here each sends its share of both, whatever their sizes are.
//!
//! Everything is verified before it replaces anything (D5): the certificate (m + 1 signatures),
//! the manifest against it, each piece against the manifest, the whole by restoring a machine
//! beside the one that serves; then it is stored, and only when that is durable it is swapped in.
//!
//! With sequential checkpoints each state is stored by one replica, or by few: who failed to bring its
//! state is turned to after others, who have older ones, and what it brought is kept, for most pieces are
//! the same in the next state.

use super::checkpoints::Stored;
use super::execution::Replaced;
use super::fetching::{Fetching, Pace, StateTransfer};
use super::restoring::{Restored, not_restored};
use super::{Node, Now, Output, Peer};
use bytes::Bytes;
use perdura_execution::{AnyService, Executor, Machine, Manifest, ManifestError, newest_versions};
use perdura_protocol::configuration::Schedule;
use perdura_protocol::fields::FieldError;
use perdura_protocol::message::{Message, StateCertificate};
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Digest, ReplicaId, Slot, seeded};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Offers are awaited for this long after asking, unless all have answered.
const OFFERS_MS: u64 = 200;

/// An unanswered question is asked again, elsewhere, after this time.
const ANSWER_MS: u64 = 1_000;

/// The prefix is signed for those who ask for states not more often than this.
const ATTEST_MS: u64 = 50;

/// Pieces of a state that did not arrive as a whole are kept for this time after the last attempt.
const KEPT_MS: u64 = 60_000;

/// A state that a replica has, and what proves it.
#[derive(Clone)]
pub(super) struct Offer {
    pub state: StateCertificate,
    pub prefix: PrefixCertificate,
}

enum Phase {
    Idle,
    Asking {
        since_ms: u64,
    },
    Manifest {
        offer: Offer,
        seeders: Vec<ReplicaId>,
        since_ms: u64,
    },
    Pieces(Box<Fetching>),
    Restoring {
        offer: Offer,
        manifest: Manifest,
        pieces: Vec<Bytes>,
        restored: Restored,
        seeder: Option<ReplicaId>,
    },
    /// The certificate goes to the log before the state to its disk: what is there can be offered after a restart.
    Installing {
        machine: Box<Machine<AnyService>>,
        state: Option<StateCertificate>,
        seeder: Option<ReplicaId>,
        /// What is stored once the log is durable up to a mark.
        waiting: Option<(u64, Manifest, Vec<Bytes>)>,
    },
}

pub(super) struct Transfer {
    how: StateTransfer,
    phase: Phase,
    offers: BTreeMap<ReplicaId, Offer>,
    answers: BTreeSet<ReplicaId>,
    ended_ms: u64,
    pace: Pace,
    // How often each replica failed to bring its state, until one arrives.
    failures: BTreeMap<ReplicaId, u32>,
    // Verified pieces of a state that did not arrive as a whole, and the digests of those that were
    // missing: some may be on the way.
    kept: BTreeMap<Digest, Bytes>,
    lacking: BTreeSet<Digest>,
    /// State that was on disk before and is lost; no state below it will do.
    pub at_least: Slot,
    // It is stored, and this replica comes to it by itself.
    overtaken: Option<Manifest>,
}

impl Transfer {
    pub fn new(at_least: Slot, how: StateTransfer) -> Transfer {
        Transfer {
            how,
            phase: Phase::Idle,
            offers: BTreeMap::new(),
            answers: BTreeSet::new(),
            ended_ms: 0,
            pace: Pace::default(),
            failures: BTreeMap::new(),
            kept: BTreeMap::new(),
            lacking: BTreeSet::new(),
            at_least,
            overtaken: None,
        }
    }

    pub fn active(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Whether a state is on its way: who only asks whether there is one may lack none.
    pub fn fetches(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Asking { .. })
    }

    /// Of the states offered by who failed least, the newest that some replicas offer, one of them
    /// correct; if there is none, any.
    ///
    /// Also says whether it is worth waiting for others: it is not attested so, or who offers it
    /// failed before.
    fn best_offer(&self, witnesses: usize, sequential: bool) -> Option<(&Offer, bool)> {
        let same =
            |a: &Offer, b: &Offer| a.state.slot == b.state.slot && a.state.digest == b.state.digest;
        let rank = |offer: &Offer| {
            let who = self.offers.iter().filter(|(_, other)| same(offer, other));
            let failures = who.clone().map(|(id, _)| self.failures_of(*id));
            let attested = who.count() >= witnesses;
            (Reverse(failures.min().unwrap_or(0)), attested, offer.state.slot)
        };
        let ranked = self.offers.values().map(|offer| (offer, rank(offer)));
        let best = ranked.max_by_key(|(_, rank)| *rank);
        best.map(|(offer, (Reverse(failures), attested, _))| {
            (offer, attested || (sequential && failures == 0))
        })
    }

    fn failures_of(&self, seeder: ReplicaId) -> u32 {
        self.failures.get(&seeder).copied().unwrap_or(0)
    }

    fn failed(&mut self, seeder: ReplicaId) {
        let failures = self.failures.entry(seeder).or_default();
        *failures = failures.saturating_add(1);
    }

    fn forget_failures(&mut self) {
        self.pace = Pace::default();
        self.failures.clear();
        self.forget_pieces();
    }

    fn forget_pieces(&mut self) {
        self.kept.clear();
        self.lacking.clear();
    }

    /// Keeps a piece that comes after its state was given up, for the next one.
    fn keep_late(&mut self, piece: Bytes) {
        if !self.lacking.is_empty() {
            let digest = Digest::of(&piece);
            if self.lacking.remove(&digest) {
                self.kept.insert(digest, piece);
            }
        }
    }

    /// Whether a state at or after `slot` is being stored already: an older one could not follow
    /// it on disk.
    pub fn supersedes(&self, slot: Slot) -> bool {
        matches!(&self.phase, Phase::Installing { machine, .. } if machine.slot() >= slot)
    }
}

impl Node {
    /// Starts to look for a newer state, unless that is under way. Who may not vote until a prefix is certified may be one of
    /// those who have to sign it.
    pub(super) fn want_state(&mut self, now: Now, _offered: Slot) {
        if self.transfer.active() || self.execution.takes_another() {
            return;
        }
        self.transfer.offers.clear();
        self.transfer.answers.clear();
        self.transfer.phase = Phase::Asking { since_ms: now.monotonic_ms };
        self.agreement.attest_prefix(now);
        self.broadcast(&Message::StateQuery);
    }

    /// A link to a replica is new: a question that was asked before was lost on it. A replica that
    /// starts without a state asks before it has any link.
    pub(super) fn ask_for_state_again(&mut self, to: ReplicaId) {
        let asking = matches!(self.transfer.phase, Phase::Asking { .. });
        if asking && !self.transfer.answers.contains(&to) {
            self.send(&[Peer::Replica(to)], &Message::StateQuery);
        }
    }

    pub(super) fn on_transfer_message(&mut self, now: Now, from: ReplicaId, message: Message) {
        let to = [Peer::Replica(from)];
        match message {
            Message::StateQuery => {
                if now.monotonic_ms >= self.attested_ms + ATTEST_MS {
                    self.attested_ms = now.monotonic_ms;
                    self.agreement.attest_prefix(now);
                }
                self.answer_query(now, from);
            }
            Message::FetchManifest { slot } => {
                let manifest = self.manifest_bytes(now, from, slot);
                self.send(&to, &Message::Manifest { slot, manifest });
            }
            Message::FetchPiece { slot, index } => {
                let piece = self.piece_bytes(now, from, slot, index);
                self.counters.pieces_sent += 1;
                self.send(&to, &Message::Piece { slot, index, piece });
            }
            Message::StateInfo { state, prefix, .. } => self.on_offer(now, from, state, prefix),
            Message::Manifest { slot, manifest } => self.on_manifest(now, from, slot, manifest),
            Message::Piece { slot, index, piece } => self.on_piece(now, from, slot, index, piece),
            _ => {}
        }
    }

    fn answer_query(&mut self, now: Now, from: ReplicaId) {
        let prefix = self.agreement.prefix().clone();
        let delivered = self.agreement.delivered();
        let state = self.checkpointing.offered().cloned();
        if let Some(state) = &state {
            self.checkpointing.pin(from, state.slot, now.monotonic_ms);
        }
        self.send(&[Peer::Replica(from)], &Message::StateInfo { delivered, state, prefix });
        self.repeat_uncertified_votes(now);
    }

    fn on_offer(
        &mut self,
        now: Now,
        from: ReplicaId,
        state: Option<StateCertificate>,
        prefix: PrefixCertificate,
    ) {
        // One to each query, so that a liar has no more of them verified.
        if !self.transfer.answers.insert(from) {
            return;
        }
        if !self.agreement.has_base() || self.agreement.lacks_prefix() {
            self.agreement.on_prefix_certificate(now, prefix.clone());
        }
        if !matches!(self.transfer.phase, Phase::Asking { .. }) {
            return;
        }
        if let Some(state) = state {
            let (quorum, configuration) =
                (self.parameters.faults.state_certificate(), state.configuration);
            let newer = state.slot > self.execution.slot() && state.slot >= self.transfer.at_least;
            if newer {
                if self.state_certified(&state, quorum) {
                    self.transfer.offers.insert(from, Offer { state, prefix });
                } else if self.agreement.configurations().by_id(configuration).is_some() {
                    self.misbehaved(Peer::Replica(from), "offers an uncertified state".into());
                }
            }
        }
        let all = self.transfer.answers.len() + 1 >= self.parameters.faults.n();
        if all && !self.transfer.offers.is_empty() {
            self.choose_offer(now);
        }
    }

    /// Takes the newest certified state that enough replicas have; the leader is asked last, for it
    /// has the most to do.
    fn choose_offer(&mut self, now: Now) {
        let witnesses = self.parameters.faults.witnesses();
        let best = self.transfer.best_offer(witnesses, false).map(|(offer, _)| offer.clone());
        let Some(offer) = best else {
            self.end_transfer(now);
            return;
        };
        let leader = self.agreement.leader();
        let mut seeders: Vec<ReplicaId> = self
            .transfer
            .offers
            .iter()
            .filter(|(_, other)| {
                other.state.slot == offer.state.slot && other.state.digest == offer.state.digest
            })
            .map(|(id, _)| *id)
            .collect();
        let transfer = &self.transfer;
        seeders.sort_by_key(|id| (transfer.failures_of(*id), *id == leader, *id));
        self.counters.transfers_started += 1;
        self.ask_manifest(now, offer, seeders);
    }

    fn ask_manifest(&mut self, now: Now, offer: Offer, seeders: Vec<ReplicaId>) {
        let Some(first) = seeders.first() else {
            self.end_transfer(now);
            return;
        };
        let slot = offer.state.slot;
        self.send(&[Peer::Replica(*first)], &Message::FetchManifest { slot });
        self.transfer.phase = Phase::Manifest { offer, seeders, since_ms: now.monotonic_ms };
    }

    fn end_transfer(&mut self, now: Now) {
        let phase = std::mem::replace(&mut self.transfer.phase, Phase::Idle);
        self.transfer.ended_ms = now.monotonic_ms;
        self.agreement.expect_state(now, None);
        if let Phase::Pieces(fetching) = phase {
            let (_, manifest, pieces) = fetching.into_pieces();
            for (entry, piece) in manifest.entries().iter().zip(pieces) {
                match piece {
                    Some(piece) => drop(self.transfer.kept.insert(entry.digest, piece)),
                    None => drop(self.transfer.lacking.insert(entry.digest)),
                }
            }
        }
    }

    fn on_manifest(&mut self, now: Now, from: ReplicaId, slot: Slot, bytes: Bytes) {
        let Phase::Manifest { offer, seeders, .. } = &self.transfer.phase else { return };
        if offer.state.slot != slot || seeders.first() != Some(&from) {
            return;
        }
        let (offer, mut seeders) = (offer.clone(), seeders.clone());
        let certified = Manifest::digest_of(&bytes) == offer.state.digest;
        let read = (certified || seeded!(ManifestUnverified)).then(|| Manifest::read(bytes));
        let newest = newest_versions(&(self.make_service)());
        let manifest = match read {
            Some(Err(ManifestError::Fields(FieldError::Unknown(field)))) => {
                self.halt(format!(
                    "the certified state at slot {slot} is a newer program's: its manifest has the field {field:?}, which may \
                     not be passed over and is not known here. Update this program"
                ));
                return;
            }
            Some(Ok(manifest)) if manifest.slot == slot => {
                if let Err(error) = manifest.versions.check(newest) {
                    self.halt(format!("the group has gone on: {error}"));
                    return;
                }
                Some(manifest)
            }
            _ => None,
        };
        let Some(manifest) = manifest else {
            // Gone there, or not what was certified: the next one.
            self.transfer.failed(seeders.remove(0));
            self.ask_manifest(now, offer, seeders);
            return;
        };
        let kept = std::mem::take(&mut self.transfer.kept);
        self.transfer.lacking.clear();
        // The leader has the most to do: it is asked where there are too few others for one of them to
        // be correct.
        let leader = self.agreement.leader();
        seeders.sort_by_key(|id| *id == leader);
        let others = seeders.iter().filter(|id| **id != leader).count();
        let plan = match self.transfer.how {
            StateTransfer::Collaborative => (seeders, others, self.parameters.faults.witnesses()),
            StateTransfer::SingleSender => (seeders, 1, 1),
        };
        let fetching = Fetching::new(offer, manifest, plan, &kept, now.monotonic_ms);
        self.transfer.phase = Phase::Pieces(Box::new(fetching));
        if self.transfer.how == StateTransfer::Collaborative {
            self.agreement.expect_state(now, Some(slot));
        }
        self.go_on(now);
    }

    /// All that is missing is asked for; what is complete is restored.
    fn go_on(&mut self, now: Now) {
        let Phase::Pieces(fetching) = &mut self.transfer.phase else { return };
        if fetching.complete() {
            self.restore();
            return;
        }
        let slot = fetching.offer.state.slot;
        for (to, index) in fetching.asks(now.monotonic_ms) {
            self.send(&[Peer::Replica(to)], &Message::FetchPiece { slot, index });
        }
    }

    fn on_piece(&mut self, now: Now, from: ReplicaId, slot: Slot, index: u32, piece: Bytes) {
        let Phase::Pieces(fetching) = &mut self.transfer.phase else {
            self.transfer.keep_late(piece);
            return;
        };
        if fetching.offer.state.slot != slot || !fetching.lacks(index) {
            return;
        }
        if !fetching.manifest.verify(index as usize, &piece) && !seeded!(PieceUnverified) {
            // Only who was asked can fail to answer; anybody else's garbage changes nothing.
            let gone = piece.is_empty();
            if fetching.owes(from, index) {
                self.drop_seeder(now, from);
            }
            if !gone {
                self.misbehaved(Peer::Replica(from), "sent a piece that is not the state's".into());
            }
            return;
        }
        fetching.take(now.monotonic_ms, index, piece);
        self.counters.pieces_received += 1;
        self.go_on(now);
    }

    /// Goes on without a seeder that failed; without any, from the beginning.
    fn drop_seeder(&mut self, now: Now, from: ReplicaId) {
        let Phase::Pieces(fetching) = &mut self.transfer.phase else { return };
        fetching.drop_seeder(now.monotonic_ms, from);
        let alone = fetching.seeders().next().is_none();
        self.transfer.failed(from);
        if alone {
            self.end_transfer(now);
        } else {
            self.go_on(now);
        }
    }

    /// Pieces come slowly, or those who owe them do not answer. Where too few are left for one of them to
    /// be correct, from the beginning, for there may be more by now.
    fn watch_pieces(&mut self, now: Now) {
        let witnesses = self.parameters.faults.witnesses();
        let Phase::Pieces(fetching) = &mut self.transfer.phase else { return };
        let alone = self.transfer.how == StateTransfer::SingleSender;
        if !alone && fetching.lags(now.monotonic_ms, &mut self.transfer.pace) {
            let left: Vec<ReplicaId> = fetching.seeders().collect();
            if left.len() < witnesses {
                left.into_iter().for_each(|seeder| self.transfer.failed(seeder));
                self.end_transfer(now);
                return;
            }
        }
        if let Some(silent) = fetching.silent(now.monotonic_ms, &mut self.transfer.pace) {
            self.drop_seeder(now, silent);
            return;
        }
        let slot = fetching.offer.state.slot;
        for (to, index) in fetching.reminders(now.monotonic_ms, &self.transfer.pace) {
            self.send(&[Peer::Replica(to)], &Message::FetchPiece { slot, index });
        }
        self.go_on(now);
    }

    /// A link to a replica broke, or is there again.
    pub(super) fn on_seeders_link(&mut self, now: Now, id: ReplicaId, up: bool) {
        if let Phase::Pieces(fetching) = &mut self.transfer.phase {
            fetching.on_link(now.monotonic_ms, id, up);
            self.go_on(now);
        }
    }

    /// The lane of transfers to a replica broke, and what was on it is lost: what that one owes is asked
    /// for again, and so is what this replica answered it.
    pub(super) fn on_transfer_link_down(&mut self, now: Now, id: ReplicaId) {
        self.forget_answers(id);
        self.agreement.on_transfer_lost(now, id);
        match &mut self.transfer.phase {
            // Waited for no longer than it was before.
            Phase::Manifest { offer, seeders, .. } if seeders.first() == Some(&id) => {
                let slot = offer.state.slot;
                self.send(&[Peer::Replica(id)], &Message::FetchManifest { slot });
            }
            Phase::Pieces(fetching) => {
                fetching.on_lost(now.monotonic_ms, id);
                self.go_on(now);
            }
            _ => {}
        }
    }

    /// All pieces are here: a machine is made of them beside the one that serves.
    fn restore(&mut self) {
        let phase = std::mem::replace(&mut self.transfer.phase, Phase::Idle);
        let Phase::Pieces(fetching) = phase else { return };
        let seeder = fetching.seeders().next();
        let (offer, manifest, pieces) = fetching.into_pieces();
        let pieces: Vec<Bytes> = pieces.into_iter().flatten().collect();
        let (parameters, service) = (self.parameters.clone(), (self.make_service)());
        let (restoration, restored) =
            Restored::of(parameters, manifest.clone(), pieces.clone(), service);
        self.outputs.push_back(Output::RestoreState(restoration));
        self.transfer.phase = Phase::Restoring { offer, manifest, pieces, restored, seeder };
    }

    /// The machine is made; it is stored before it takes the other's place.
    pub(super) fn on_restored(&mut self, now: Now) {
        let phase = std::mem::replace(&mut self.transfer.phase, Phase::Idle);
        let Phase::Restoring { offer, manifest, pieces, restored, seeder } = phase else { return };
        let Some(outcome) = restored.take() else {
            self.halt("a state was said to be restored and was not. Report this".into());
            return;
        };
        match outcome {
            Ok(machine) if manifest.slot > self.execution.slot() => {
                let machine = Box::new(machine);
                let state = self.without_false_signatures(offer.state, machine.configurations());
                if let Some(state) = &state {
                    self.log_certificate(state.clone());
                }
                let waiting = Some((self.journal.log_all(), manifest, pieces));
                self.transfer.phase = Phase::Installing { machine, state, seeder, waiting };
                self.install_logged(now);
            }
            Ok(_) => self.end_transfer(now),
            Err(error) => {
                self.halt(not_restored(manifest.slot, &error));
            }
        }
    }

    /// The transferred state is stored once its certificate is in the log.
    pub(super) fn install_logged(&mut self, now: Now) {
        let Phase::Installing { waiting, .. } = &mut self.transfer.phase else { return };
        let logged = waiting.take_if(|(mark, ..)| self.journal.has(*mark));
        let Some((_, manifest, pieces)) = logged else { return };
        let taken = manifest.clone();
        let keep = self.checkpointing.proven;
        self.outputs.push_back(Output::InstallCheckpoint { manifest, pieces, keep });
        if seeded!(InstalledBeforeDurable) {
            self.on_installed(now, &taken);
        }
    }

    /// The transferred state is durable: it takes the place of the old one.
    pub(super) fn on_installed(&mut self, now: Now, manifest: &Manifest) {
        if self.execution.slot() < manifest.slot && manifest.slot <= self.agreement.delivered() {
            // What is decided goes as far, and is being executed.
            self.transfer.overtaken = Some(manifest.clone());
            self.counters.stage.states_overtaken += 1;
            return;
        }
        let phase = std::mem::replace(&mut self.transfer.phase, Phase::Idle);
        self.transfer.ended_ms = now.monotonic_ms;
        let Phase::Installing { machine, state, seeder, .. } = phase else { return };
        if machine.slot() <= self.execution.slot() {
            // This replica got there by itself meanwhile; what is on disk is its state all the same.
            let (snapshot, manifest) = (machine.snapshot(), manifest.clone());
            self.add_checkpoint(snapshot, manifest);
            if let Some(state) = state {
                self.learn_certificate(state);
            }
            self.agreement.expect_state(now, None);
            return;
        }
        let snapshot = machine.snapshot();
        match self.execution.replace(Executor::at_boundary(&self.parameters, *machine)) {
            Replaced::Here(before) => self.checkpointing.let_go.push(before.machine().snapshot()),
            Replaced::Apart(output) => self.outputs.push_back(output),
        }
        self.outputs.push_back(Output::Scrub { snapshot: snapshot.clone() });
        let (slot, history) = (manifest.slot, manifest.history);
        let configurations = self.execution.configurations().to_vec();
        let stored = Stored::new(snapshot, manifest.clone());
        self.checkpointing.forget_storing();
        self.checkpointing.count_from(slot);
        self.checkpointing.kept = slot;
        self.checkpointing.forget_recent();
        self.checkpointing.add_stored(stored, now.monotonic_ms);
        if let Some(state) = state {
            self.learn_certificate(state);
        }
        self.past.clear();
        self.journal.installed(slot);
        self.counters.transfers_completed += 1;
        self.transfer.forget_failures();
        let alone = self.transfer.how == StateTransfer::SingleSender;
        if let Some(seeder) = seeder.filter(|_| alone) {
            self.agreement.set_seeder(seeder);
        }
        self.agreement.on_installed(now, slot, history, &configurations);
        self.agreement.set_due(self.execution.due());
        self.agreement.set_administrator(self.execution.administrator());
        self.certify_state(slot);
        // Without a prefix up to the state this replica could not vote after a restart.
        for offer in std::mem::take(&mut self.transfer.offers).into_values() {
            self.agreement.on_prefix_certificate(now, offer.prefix);
        }
        if let Some(active) = configurations.iter().rev().find(|c| c.from_slot <= slot.next()) {
            let members = self.linked(active);
            self.outputs.push_back(Output::Members(members));
        }
        let execution = &self.execution;
        self.agreement.retain_frames(|frame| execution.is_open(frame));
    }

    /// A transferred state is stored that this replica would come to by itself, and has now.
    pub(super) fn install_overtaken(&mut self, now: Now) {
        let executed = self.execution.slot();
        let manifest = self.transfer.overtaken.take_if(|manifest| manifest.slot <= executed);
        if let Some(manifest) = manifest {
            self.on_installed(now, &manifest);
        }
    }

    pub(super) fn tick_transfer(&mut self, now: Now) {
        let ms = now.monotonic_ms;
        let witnesses = self.parameters.faults.witnesses();
        let sequential = self.parameters.schedule == Schedule::Sequential;
        let best = self.transfer.best_offer(witnesses, sequential);
        let enough = best.is_some_and(|(_, enough)| enough);
        match &mut self.transfer.phase {
            Phase::Idle => {
                let needed =
                    !self.agreement.has_base() || self.execution.slot() < self.transfer.at_least;
                if ms >= self.transfer.ended_ms + KEPT_MS {
                    // It was overtaken by the log.
                    self.transfer.forget_pieces();
                    self.agreement.forget_after_state();
                }
                if ms < self.transfer.ended_ms + ANSWER_MS {
                    return;
                }
                if needed {
                    self.want_state(now, Slot(0));
                } else if self.agreement.lacks_prefix() {
                    // All sign theirs as it is now, and answer with the newest.
                    self.agreement.attest_prefix(now);
                    self.transfer.ended_ms = ms;
                    self.transfer.answers.clear();
                    self.counters.prefixes_asked_for += 1;
                    self.broadcast(&Message::StateQuery);
                }
            }
            Phase::Asking { since_ms } if ms >= *since_ms + OFFERS_MS => {
                if !enough && ms < *since_ms + ANSWER_MS {
                    return;
                }
                self.choose_offer(now);
            }
            Phase::Manifest { offer, seeders, since_ms } if ms >= *since_ms + ANSWER_MS => {
                let (offer, mut seeders) = (offer.clone(), seeders.clone());
                self.transfer.failed(seeders.remove(0));
                self.ask_manifest(now, offer, seeders);
            }
            Phase::Pieces(_) => self.watch_pieces(now),
            _ => {}
        }
    }
}
