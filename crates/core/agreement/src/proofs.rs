//! Proofs of decisions (r > 0): a quorum of signed Accepts, looked at after the decision.
//!
//! What was decided is known before anybody has verified an Accept. The link says who sent it, and a decision takes
//! voices, not proofs, as in the PBFT that has authenticators in place of signatures (OSDI 1999, section 4): a quorum
//! has locked the batch, so every later view is bound to it. Nobody shows Accepts to stay safe: a view change goes
//! by locks, and the Writes in those are verified before. Accepts show a decision to a third party, a laggard
//! above all, and come into the log for that.
//!
//! So Accepts count by link, and for most slots nobody ever looks at their signatures: soon a prefix is certified
//! above ([`Agreement::prefix_interval`]), and one of those proves all slots below it to whoever knows the digests in
//! between. Accepts are verified, together, where that does not do: of the slots above the last prefix when somebody asks for one
//! of them, when a view starts, and when no prefix has come for [`PROOF_MS`]. A signature may be false then. What keeps that harmless:
//!
//! 1. A slot is decided by link only where this replica's own Accept is among the quorum, which it gives once
//!    its lock is durable. So it can vote on the slot again in the next view, after a restart too, and the Writes in its
//!    lock bind that view. One that has no lock verifies first.
//! 2. What does not hold is dropped, and who signed it is not counted by link again in this configuration. The slot
//!    stays open for votes until a quorum of genuine ones is there, or a certified prefix above it.
//! 3. No Accept that was not verified is sent on, or written to the log.
//! 4. What nothing at hand proves is *attested*: whoever serves it signs its history anew, and r + 1 signatures certify a
//!    prefix for the laggard ([`Agreement::history_attestation`]).
//!
//! # Why a laggard that is needed gets a proof
//!
//! Let at most u have failed, liars among them, and Y be the one of the n - u others that has executed least, up to e. As long as
//! none of the others has a certified prefix beyond e as its base, slot e + 1 is above every base, and the next view
//! decides it again (1): whoever accepted it still has its lock. Else X has one, up to P.
//!
//! - If P <= e + depth, Y can judge it, and X has it, with the batches up to there: its prefixes stay as long as the log of which they
//!   are the proof (`Checkpointing::prefixes`), in memory and in the log.
//! - If P > e + depth: one of the r + 1 that signed P is correct, and has executed slot P. So a quorum accepted it, n - u; of them at
//!   least n - u - u >= r + 1 are correct and did not fail. Each locked slot P within its reach, so it had executed e + 1; the mark
//!   of that is in its log before that lock, whose flush came before its Accept. So after any restart r + 1 have executed e + 1 and can
//!   attest it, whatever they have forgotten of Accepts and prefixes; or one of them has no log there any more (below). Each step moves Y
//!   on by a slot at least.
//! - Who has cut its log there, or lacks it since it installed a state itself, says so, and offers that state or a later one. It is
//!   certified, its certificate went to the log before that was cut or the state stored, and so it stays offered after restarts, whether or
//!   not a prefix reaches it. Y asks for it at once if r + 1 say that they are ahead, and else after some seconds without proof, for those who
//!   are ahead may be as few as one ([`Agreement::watch_unproven`]).
//! - Who installed a state that no prefix reaches may not vote after a restart before one does (`vote_after` in `restart`). Let h be
//!   the slot that r + 1 of the n - u have executed, the furthest of that kind: all below come up to h as above, or go beyond it by a
//!   state. Whoever asks for a state signs how far it is, and so does everybody who is asked ([`Agreement::attest_prefix`]): h is certified, or
//!   what all who were below it have come to.
//!
//! It takes members that may sign about e + 1. Behind the first slot of a new configuration a replaced one may not, so nobody goes
//! past that slot before all up to it is proven (below), and a state is certified there. `crates/core/replica/tests/passed_over.rs` breaks first, and the
//! scenarios `passed_over`, `state_without_prefix`, `alone_ahead`, `too_few_ahead`, `mute_after_install` and `certificate_before_state`.
//!
//! An own prefix signature counts here before the batches below it are durable (`sign_prefix`), and the certificate may be given away
//! with it. That is no vote, and promises nothing: what the above needs of it is that this replica had executed slot P. Should it
//! lose that again, its base is lost with it, for the note of a prefix comes after its batches in the log; whoever took
//! the certificate has the batches of its own, and the quorum that accepted them had them on disk before
//! (`PersistBeforeSpeak` in the simulator; the word itself waits for the disk where it is sent to others).
//!
//! # Links and configurations
//!
//! Links say who a member is, not as of which slot: they are to the newest members that are known, also while slots of an older
//! configuration are agreed on. Near the first slot of a new configuration, and of what was delivered
//! when that became known, a former incarnation's word could count, so Accepts are verified first there
//! (`near_a_new_configuration_accepts_are_verified_before_they_count`). And who has
//! executed all before it votes in the new one, on nothing below: so where one may begin, behind each command of the
//! administrator as far as the pipeline reaches, a slot is delivered only once all up to them are proven
//! ([`Agreement::waits_for_proof`]).
//!
//! With a depth below 8 all Accepts are verified first.

use crate::machine::{Agreement, Effect, Now};
use crate::slot::Vote;
use perdura_protocol::codec::encode_count;
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::{STATEMENT_BYTES, StatementKind};
use perdura_protocol::{
    Batch, Certificate, Digest, Encode, PublicKey, Record, ReplicaId, Slot, View, seeded,
};
use std::collections::{BTreeMap, BTreeSet};

/// So long slots wait for a prefix that proves them.
const PROOF_MS: u64 = 200;

/// So many intervals of prefixes may be decided by link and not proven: who has no disk, or no links, may not get any.
const MOST_INTERVALS: u64 = 2;

/// With fewer slots in agreement at once, prefixes would cost more than the Accepts that they spare.
const LEAST_DEPTH: u64 = 8;

/// A batch that waits for the proof of those before it makes others be asked for a prefix after this time.
const ASKED_MS: u64 = 1_000;

/// What was decided by link.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByLink {
    // Not looked at yet, and when they were decided.
    open: BTreeMap<Slot, u64>,
    // Who signed an Accept falsely.
    forgers: BTreeSet<ReplicaId>,
    // What was delivered when the latest configuration became known: until then links were those of another.
    learned_at: Slot,
    // Up to here a certified state proves everything.
    installed: Slot,
    // Since when a batch waits for the proof of those before it.
    held_ms: Option<u64>,
    // So far reaches what may be in agreement together with the last delivered batch that may order a configuration.
    near: Slot,
    // None while it is the one with whose key the cluster began.
    administrator: Option<PublicKey>,
}

impl ByLink {
    /// Everything but times, as bytes to compare.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.open.len(), out);
        self.open.keys().for_each(|slot| slot.encode(out));
        encode_count(self.forgers.len(), out);
        self.forgers.iter().for_each(|replica| replica.encode(out));
        self.learned_at.encode(out);
        self.installed.encode(out);
        out.push(u8::from(self.held_ms.is_some()));
        self.near.encode(out);
        out.push(u8::from(self.administrator.is_some()));
        self.administrator.iter().for_each(|key| key.encode(out));
    }
}

impl Agreement {
    /// Whether Accepts count by link in this cluster.
    pub(crate) fn by_links(&self) -> bool {
        self.is_byzantine() && self.settings.parameters.depth >= LEAST_DEPTH
    }

    /// Whether a quorum accepted the batch, as far as links say so.
    pub(crate) fn decided_by_link(&self, view: View, slot: Slot, batch: &Batch) -> bool {
        let Some(state) = self.slots.get(&slot) else { return false };
        let digest = batch.digest();
        if !self.by_links() || self.configuration_is_near(slot, batch) {
            return false;
        }
        let me = self.settings.me;
        let counts = |(id, vote): &(ReplicaId, &Vote)| {
            let same = (vote.view, vote.digest) == (view, digest);
            same && (vote.verified || !self.by_link.forgers.contains(id))
        };
        let voices = || state.accepts.all().filter(counts);
        let locked = state.locked.as_ref().is_some_and(|locked| {
            let promised = locked.view >= view && locked.batch.digest() == digest;
            promised && locked.sequence <= self.persisted
        });
        let own = locked && voices().any(|(id, _)| id == me);
        own && voices().count() >= self.quorum() && self.links_attest(slot)
    }

    /// Whether the link by which a vote about `slot` came proves whose it is.
    ///
    /// What a member's former incarnation sent before this replica knew of the change lies within a window
    /// above what was delivered then.
    fn links_attest(&self, slot: Slot) -> bool {
        let latest = self.configurations.latest();
        let known = latest.from_slot.max(self.by_link.learned_at);
        latest.id == 0 || slot >= known.plus(2 * self.settings.window)
    }

    /// Whether the batch may order another configuration.
    fn configures(&self, batch: &Batch) -> bool {
        let first = self.settings.parameters.administrator;
        let administrator = self.by_link.administrator.unwrap_or(first);
        batch.frames().iter().any(|frame| frame.session.client == administrator)
    }

    /// The administrator's key as of the last executed slot. What is delivered and not executed yet may come from a new one
    /// already, and was not taken for the administrator's.
    pub fn set_administrator(&mut self, key: PublicKey) {
        let first = self.settings.parameters.administrator;
        if self.by_link.administrator.unwrap_or(first) != key {
            self.by_link.administrator = Some(key);
            let reach = self.delivered.plus(self.settings.parameters.depth);
            self.by_link.near = self.by_link.near.max(reach);
        }
    }

    /// The latest configuration became known: links are those of its members from now on.
    pub(crate) fn note_configuration(&mut self) {
        self.by_link.learned_at = self.delivered;
        self.by_link.forgers.clear();
    }

    /// Whether a configuration is ordered in this batch, or may begin behind it: what orders one may be delivered and
    /// not executed yet.
    pub(crate) fn configuration_is_near(&self, slot: Slot, batch: &Batch) -> bool {
        let pending = self.configurations.latest().from_slot > slot;
        self.by_links() && (pending || slot <= self.by_link.near || self.configures(batch))
    }

    /// The next batch is delivered.
    pub(crate) fn note_near(&mut self, slot: Slot, batch: &Batch) {
        if self.by_links() && self.configures(batch) {
            self.by_link.near = slot.plus(self.settings.parameters.depth);
        }
    }

    /// Whether a decided batch near a new configuration has to wait for the proof of what was decided up to it.
    /// Who knows of that configuration votes on nothing below it any more, so nothing below is left to such votes. A prefix
    /// beyond it, if one is known, is proof enough: who has gone on has a state to offer there.
    pub(crate) fn waits_for_proof(&mut self, now: Now, slot: Slot) -> bool {
        self.prove_open();
        let covered = self.prefixes_ahead.last_key_value().is_some_and(|(ahead, _)| *ahead >= slot);
        let proven = self.prefix.slot.max(self.by_link.installed);
        let mut below = self.slots.range(proven.next()..=slot).map(|(slot, _)| *slot);
        let waits = !covered && below.any(|slot| self.is_unproven(slot));
        if waits {
            self.by_link.held_ms.get_or_insert(now.monotonic_ms);
        }
        waits
    }

    /// Remembers that nobody has looked at the Accepts of a slot.
    pub(crate) fn prove_later(&mut self, now: Now, slot: Slot) {
        self.by_link.open.insert(slot, now.monotonic_ms);
        if self.by_link.open.len() as u64 > MOST_INTERVALS * self.prefix_interval() {
            self.prove_open();
        }
    }

    /// Looks at Accepts if no prefix came for long, and goes on with what waited for a proof.
    pub(crate) fn prove_late(&mut self, now: Now) {
        let first = self.by_link.open.first_key_value();
        if first.is_some_and(|(_, since_ms)| now.monotonic_ms >= since_ms + PROOF_MS) {
            self.prove_open();
        }
        if let Some(since_ms) = self.by_link.held_ms.take() {
            // What was signed about slots that were beyond reach then.
            let (first, reach) = (self.prefix.slot.next(), self.reach());
            for slot in self.prefix_votes.slots(first, reach) {
                self.try_certify_prefix(now, slot);
            }
            self.deliver_decided(now);
            self.by_link.held_ms = self.by_link.held_ms.map(|_| since_ms);
        }
    }

    /// Whether a batch has waited for the proof of those before it for so long that others are asked for a prefix.
    pub(crate) fn asks_for_prefix(&self) -> bool {
        self.by_link.held_ms.is_some_and(|since_ms| self.clock_ms >= since_ms + ASKED_MS)
    }

    /// Looks at all Accepts of slots that were decided by link.
    pub fn prove_open(&mut self) {
        let open = std::mem::take(&mut self.by_link.open).into_keys();
        let open: Vec<Slot> = open.filter(|slot| self.is_unproven(*slot)).collect();
        self.verify_together(&open);
        for slot in open {
            self.marks.accepts_not_genuine += u64::from(!self.prove(slot));
        }
    }

    /// Looks at the Accepts of a decision before another takes the place of one of them.
    pub(crate) fn prove_before(&mut self, slot: Slot, from: ReplicaId, vote: &Vote) {
        let replaces = self.slots.get(&slot).is_some_and(|state| {
            let decided = state.decided.as_ref().filter(|decided| decided.accepts.is_empty());
            let counted = decided.map(|decided| (decided.view, decided.batch.digest()));
            state.accepts.of(from).is_some_and(|held| {
                let other = (held.view, held.digest, held.signature)
                    != (vote.view, vote.digest, vote.signature);
                other && counted == Some((held.view, held.digest)) && vote.view >= held.view
            })
        });
        if replaces && self.by_link.open.contains_key(&slot) {
            self.prove_open();
        }
    }

    /// Whether the next batch is decided, and waits for the proof of others.
    pub(crate) fn holds_next(&self) -> bool {
        let next = self.slots.get(&self.delivered.next());
        self.by_link.held_ms.is_some() && next.is_some_and(|state| state.decided.is_some())
    }

    /// Another Accept has come for a slot that nothing here proves.
    pub(crate) fn prove_again(&mut self, slot: Slot) {
        if self.is_unproven(slot) && !self.by_link.open.contains_key(&slot) {
            self.prove(slot);
        }
    }

    /// A state after `slot` was certified, and is installed.
    pub(crate) fn note_installed(&mut self, slot: Slot) {
        self.by_link.installed = slot;
        self.forget_unproven(slot);
    }

    /// A certified prefix proves everything up to `slot`.
    pub(crate) fn forget_unproven(&mut self, slot: Slot) {
        self.by_link.open = self.by_link.open.split_off(&slot.next());
    }

    /// Verifies in one go what [`Agreement::prove`] needs of these slots. What is not genuine is left to that.
    fn verify_together(&mut self, slots: &[Slot]) {
        let mut votes: Vec<(Slot, ReplicaId)> = Vec::new();
        let mut claims: Vec<Claim<[u8; STATEMENT_BYTES]>> = Vec::new();
        for slot in slots {
            let Some((view, digest)) = self.accepted(*slot) else { continue };
            let Some(configuration) = self.configurations.governing(*slot) else { continue };
            let Some(state) = self.slots.get(slot) else { continue };
            let message = self.configurations.context_at(*slot);
            let message = message.statement(StatementKind::Accept, view, *slot, digest);
            for id in state.accepts.chosen(view, digest, self.quorum(), self.settings.me) {
                let vote = state.accepts.of(id).filter(|vote| !vote.verified);
                let (Some(vote), Some(key)) = (vote, configuration.key(id)) else { continue };
                votes.push((*slot, id));
                claims.push(Claim { key, message, signature: vote.signature });
            }
        }
        self.signatures_verified += claims.len() as u64;
        let entropy = self.entropy();
        let verdicts = self.settings.scheme.verify_all(&claims, entropy);
        for ((slot, id), genuine) in votes.into_iter().zip(verdicts) {
            if let Some(state) = self.slots.get_mut(&slot)
                && (genuine || seeded!(AcceptsPassedOn))
            {
                state.accepts.confirm(id);
            }
        }
    }

    /// What a quorum accepted, as far as links say so.
    fn accepted(&self, slot: Slot) -> Option<(View, Digest)> {
        let state = self.slots.get(&slot)?;
        let decided = state.decided.as_ref()?.batch.digest();
        state.accepts.candidate(self.quorum()).filter(|(_, digest)| *digest == decided)
    }

    /// Puts a quorum of genuine Accepts beside a decision, if there is one.
    fn prove(&mut self, slot: Slot) -> bool {
        let Some((view, digest)) = self.accepted(slot) else { return false };
        let accepts = self.vote_quorum(StatementKind::Accept, view, slot, digest);
        let Some(accepts) = accepts else { return false };
        let Some(state) = self.slots.get_mut(&slot) else { return false };
        let Some(decided) = state.decided.as_mut() else { return false };
        (decided.view, decided.accepts) = (view, accepts.clone());
        self.marks.decisions_proven += 1;
        if slot <= self.delivered {
            self.note_accepts(slot, view, digest, accepts.clone());
            self.effects.push_back(Effect::Proven { slot, view, accepts });
        }
        true
    }

    pub(crate) fn note_accepts(
        &mut self,
        slot: Slot,
        view: View,
        digest: Digest,
        accepts: Certificate,
    ) {
        self.effects.push_back(Effect::Note(Record::Accepts { slot, view, digest, accepts }));
    }

    /// Whose Accepts are verified before they count.
    pub(crate) fn on_forged(&mut self, liars: &[ReplicaId]) {
        self.by_link.forgers.extend(liars);
    }
}
