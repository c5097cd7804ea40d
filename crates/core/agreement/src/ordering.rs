//! The path of a batch: Propose, Write (r > 0), Accept, decided, delivered; and the signed
//! prefixes that let everybody forget it. Where r > 0, Accepts count before their signatures are
//! looked at ([`crate::proofs`]).

use crate::machine::{Agreement, AwaitingFlush, Effect, Mode, Now};
use crate::penalty::Misbehaviour;
use crate::rules::{self, Ballot, Withheld};
use crate::slot::{Added, Decided, Judge, Locked, Proposal, SlotState, Vote};
use perdura_protocol::batch::BatchKind;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Digest, Record, ReplicaId, Signature, Slot, View, seeded,
};
use std::cell::Cell;

/// Bytes of undecided proposals that are kept. A leader fills its pipeline of 32 slots with a
/// quarter of this; a liar can make a replica hold no more.
pub const HELD_PROPOSAL_BYTES: usize = 128 * 1024 * 1024;

impl Agreement {
    /// Highest slot about which messages are kept.
    pub(crate) fn window_end(&self) -> Slot {
        let all = seeded!(WindowUnbounded);
        if all { Slot(u64::MAX) } else { self.delivered.plus(self.settings.window) }
    }

    pub(crate) fn on_propose(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        slot: Slot,
        batch: Batch,
    ) {
        if from != view.leader(self.n()) {
            self.misbehaved(from, Misbehaviour::OutOfRole);
            return;
        }
        if self.admits(now, view, slot, &batch) {
            self.take_proposal(now, from, slot, batch);
        }
    }

    /// Whether a proposal would be taken up, so that it is worth verifying its frames.
    #[must_use]
    pub fn wants_proposal(
        &self,
        now: Now,
        from: ReplicaId,
        view: View,
        slot: Slot,
        batch: &Batch,
    ) -> bool {
        let known = self.slots.get(&slot).and_then(|state| state.proposal.as_ref());
        from == self.leader()
            && known.is_none_or(|proposal| proposal.view != view)
            && self.admits(now, view, slot, batch)
    }

    /// Whether there is room for a proposal of this view's leader, and its time is right.
    fn admits(&self, now: Now, view: View, slot: Slot, batch: &Batch) -> bool {
        let far = self.reach().plus(self.settings.parameters.depth);
        let other = view != self.view || self.forged == Some(view);
        // Up to the prefix the proposer is behind; it will fetch what is certified.
        if other || self.mode != Mode::Started || slot <= self.prefix.slot || slot > far {
            return false;
        }
        let bound = self.start.choices.get(&slot).filter(|_| !seeded!(ChoiceIgnored));
        if self.is_settled(slot) || bound.is_some_and(|digest| *digest != batch.digest()) {
            return false;
        }
        let replaced = self.slots.get(&slot).map_or(0, SlotState::held_bytes);
        let fits = self.held_proposal_bytes - replaced + batch.raw().len() <= HELD_PROPOSAL_BYTES;
        (fits || slot == self.delivered.next()) && self.admissible(now, slot, batch)
    }

    /// Fresh proposals carry a time close to the local clock (E3); bound ones are not judged.
    fn admissible(&self, now: Now, slot: Slot, batch: &Batch) -> bool {
        if self.start.choices.contains_key(&slot) || batch.kind() == BatchKind::Null {
            return true;
        }
        // What was found fresh once, or voted for, comes again as old as it is by now.
        let held = self.slots.get(&slot).and_then(|state| state.batch(batch.digest()));
        if held.is_some() {
            return true;
        }
        let skew_ms = batch.time().0.abs_diff(now.wall.0);
        skew_ms <= self.settings.parameters.max_skew_ms || seeded!(SkewUnchecked)
    }

    pub(crate) fn take_proposal(&mut self, now: Now, from: ReplicaId, slot: Slot, batch: Batch) {
        let view = self.view;
        let (me, byzantine) = (self.settings.me, self.is_byzantine());
        let state = self.slot_mut(now, slot);
        if let Some(proposal) = state.proposal.as_ref().filter(|p| p.view == view) {
            if proposal.batch.digest() != batch.digest() {
                self.misbehaved(from, Misbehaviour::Equivocation);
            } else if from != me && !byzantine {
                self.repeat_accept(from, slot);
            }
            return;
        }
        let before = state.held_bytes();
        state.proposal = Some(Proposal { view, batch });
        state.since_ms = now.monotonic_ms;
        let after = state.held_bytes();
        self.held_proposal_bytes = self.held_proposal_bytes - before + after;
        self.advance(now, slot);
    }

    /// r = 0: the leader stands still, or repeated a proposal, so it may have missed this replica's Accept.
    pub(crate) fn repeat_accept(&mut self, to: ReplicaId, slot: Slot) {
        let Some(locked) = self.slots.get(&slot).and_then(|state| state.locked.as_ref()) else {
            return;
        };
        if locked.view == self.view && locked.sequence <= self.persisted {
            let (view, digest) = (locked.view, locked.batch.digest());
            let message = Message::Accept { view, slot, digest, signature: Signature::NONE };
            self.send_in_view(to, message);
        }
    }

    pub(crate) fn on_vote(
        &mut self,
        now: Now,
        from: ReplicaId,
        kind: StatementKind,
        slot: Slot,
        vote: Vote,
    ) {
        let view = vote.view;
        if slot <= self.prefix.slot || slot > self.window_end() || self.is_settled(slot) {
            return;
        }
        let byzantine = self.is_byzantine();
        if !byzantine && (kind == StatementKind::Write || view != self.view || !self.leads()) {
            return; // With r = 0 only the leader of the view counts, and only Accepts.
        }
        if kind == StatementKind::Accept {
            self.prove_before(slot, from, &vote);
        }
        let vote = Vote { verified: !byzantine, ..vote };
        let state = self.slot_mut(now, slot);
        let votes =
            if kind == StatementKind::Write { &mut state.writes } else { &mut state.accepts };
        match votes.add(from, vote) {
            Added::Stale => {}
            Added::Conflict => self.misbehaved(from, Misbehaviour::DoubleVote),
            Added::New => self.advance(now, slot),
        }
    }

    /// The last slot about which anything is held; the window bounds it (A6).
    #[must_use]
    pub fn furthest_slot(&self) -> Slot {
        self.slots.last_key_value().map_or(self.delivered, |(slot, _)| *slot)
    }

    /// Takes all slots that are open as far as what is known about them allows.
    pub(crate) fn advance_open(&mut self, now: Now) {
        let open: Vec<Slot> = self.slots.keys().copied().collect();
        open.into_iter().for_each(|slot| self.advance(now, slot));
    }

    /// A slot was executed: what lay just beyond the pipeline's reach may be voted on now, and what waited for what was before it.
    pub(crate) fn advance_reached(&mut self, now: Now) {
        if self.expected.take_withheld() {
            self.advance_open(now);
            return;
        }
        let reach = self.reach();
        if self.slots.contains_key(&reach) {
            self.advance(now, reach);
        }
    }

    /// Takes a slot as far as what is known about it allows.
    pub(crate) fn advance(&mut self, now: Now, slot: Slot) {
        if slot > self.reach() || slot <= self.prefix.slot {
            return;
        }
        self.try_write(slot);
        self.try_lock(now, slot);
        self.try_decide(now, slot);
    }

    fn try_write(&mut self, slot: Slot) {
        if !self.is_byzantine() {
            return;
        }
        let Some(state) = self.slots.get(&slot) else { return };
        let Some(digest) = self.proposed(slot) else { return };
        let view = self.view;
        if state.written.is_some_and(|written| written.0 == view) {
            return;
        }
        if !self.is_near_execution(slot) {
            self.expected.withhold();
            self.marks.writes_behind_costs += 1;
            return;
        }
        if let Err(why) = rules::may_write(&self.standing(), self.ballot(slot, digest), state) {
            self.marks.writes_withheld += u64::from(why == Withheld::Restarted);
            return;
        }
        let signature = self.sign(StatementKind::Write, view, slot, digest);
        let me = self.settings.me;
        if let Some(state) = self.slots.get_mut(&slot) {
            state.written = Some((view, digest, signature));
            state.writes.add(me, Vote { view, digest, signature, verified: true });
        }
        self.broadcast_in_view(Message::Write { view, slot, digest, signature });
    }

    fn ballot(&self, slot: Slot, digest: Digest) -> Ballot {
        Ballot {
            view: self.view,
            slot,
            digest,
            configuration: self.configurations.at(slot).id,
            choice: self.start.choice(slot),
        }
    }

    /// Digest of the current view's proposal for the slot.
    fn proposed(&self, slot: Slot) -> Option<Digest> {
        let proposal = self.slots.get(&slot)?.proposal.as_ref()?;
        (proposal.view == self.view).then(|| proposal.batch.digest())
    }

    /// Votes to accept: with r = 0 on the leader's proposal, with r > 0 on a quorum of Writes.
    fn try_lock(&mut self, now: Now, slot: Slot) {
        let Some(digest) = self.proposed(slot) else { return };
        let view = self.view;
        let Some(state) = self.slots.get(&slot) else { return };
        if state.locked.as_ref().is_some_and(|locked| locked.view == view)
            || rules::may_consider(&self.standing(), self.ballot(slot, digest), state).is_err()
        {
            return;
        }
        let Some(writes) = self.write_quorum(view, slot, digest) else { return };
        let Some(batch) = self.slots.get(&slot).and_then(|state| state.batch(digest)).cloned()
        else {
            return;
        };
        let record = Record::Vote { view, slot, batch: batch.clone(), writes: writes.clone() };
        let sequence = self.persist(record);
        self.slot_mut(now, slot).locked = Some(Locked { view, batch, writes, sequence });
        let sequence = if seeded!(AcceptBeforePersist) { 0 } else { sequence };
        self.hold(sequence, AwaitingFlush::OwnAccept(view, slot, digest));
    }

    fn write_quorum(&mut self, view: View, slot: Slot, digest: Digest) -> Option<Certificate> {
        if !self.is_byzantine() {
            return Some(Certificate::default());
        }
        self.vote_quorum(StatementKind::Write, view, slot, digest)
    }

    pub(crate) fn vote_quorum(
        &mut self,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Option<Certificate> {
        let quorum = self.quorum();
        let state = self.slots.get(&slot)?;
        let votes = if kind == StatementKind::Write { &state.writes } else { &state.accepts };
        if votes.count(view, digest) < quorum {
            return None;
        }
        let entropy = self.entropy();
        let judge = Judge {
            me: self.settings.me,
            scheme: self.is_byzantine().then_some(self.settings.scheme),
            configuration: self.configurations.governing(slot)?,
            context: self.configurations.context_at(slot),
            kind,
            slot,
            entropy,
            verified: Cell::new(0),
        };
        let state = self.slots.get_mut(&slot)?;
        let votes =
            if kind == StatementKind::Write { &mut state.writes } else { &mut state.accepts };
        let mut liars = Vec::new();
        let certificate = votes.quorum(view, digest, quorum, &judge, &mut liars);
        self.signatures_verified += judge.verified.get();
        if kind == StatementKind::Accept {
            self.on_forged(&liars);
        }
        for liar in liars {
            self.misbehaved(liar, Misbehaviour::BadSignature);
        }
        certificate
    }

    /// The vote is on disk: say so.
    pub(crate) fn speak_accept(&mut self, now: Now, view: View, slot: Slot, digest: Digest) {
        let byzantine = self.is_byzantine();
        let signature = if byzantine {
            self.sign(StatementKind::Accept, view, slot, digest)
        } else {
            Signature::NONE
        };
        let message = Message::Accept { view, slot, digest, signature };
        let me = self.settings.me;
        let leader = view.leader(self.n());
        if byzantine {
            self.effects.push_back(Effect::Broadcast(message));
        } else if leader != me {
            self.effects.push_back(Effect::Send { to: leader, message });
        }
        if slot > self.prefix.slot {
            let vote = Vote { view, digest, signature, verified: true };
            self.prove_before(slot, me, &vote);
            self.slot_mut(now, slot).accepts.add(me, vote);
            self.advance(now, slot);
        }
    }

    fn try_decide(&mut self, now: Now, slot: Slot) {
        let Some(state) = self.slots.get(&slot) else { return };
        if state.decided.is_some() {
            self.prove_again(slot);
            return;
        }
        if !self.is_byzantine() && !self.leads() {
            return;
        }
        let me = self.settings.me;
        let written = seeded!(ExecutedBeforeDecided)
            && self.is_byzantine()
            && state.accepts.all().any(|(id, _)| id == me);
        let alone = written || (seeded!(ExecutesAccepted) && !self.is_byzantine());
        let enough = if alone { 1 } else { self.quorum() };
        let Some((view, digest)) = state.accepts.candidate(enough) else { return };
        if !self.is_byzantine() && view != self.view {
            return;
        }
        let Some(batch) = state.batch(digest).cloned() else { return };
        let by_link = self.decided_by_link(view, slot, &batch);
        let accepts = if by_link || written || !self.is_byzantine() {
            Certificate::default()
        } else {
            let accepts = self.vote_quorum(StatementKind::Accept, view, slot, digest);
            let Some(accepts) = accepts else { return };
            accepts
        };
        self.slot_mut(now, slot).decided = Some(Decided { view, batch, accepts });
        if by_link {
            self.prove_later(now, slot);
        }
        self.deliver_decided(now);
    }

    /// r = 0: a leader says that everything up to `slot` is decided. It may have learned so from
    /// a later view than its own, so what was accepted in its view need not be what was decided:
    /// only the history hash tells. A replica that lacks a batch of the run fetches.
    pub(crate) fn on_decided(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        slot: Slot,
        history: Digest,
    ) {
        if self.is_byzantine() || from != view.leader(self.n()) || slot <= self.delivered {
            return;
        }
        let peer = &mut self.peers[from.index()];
        peer.delivered = peer.delivered.max(slot);
        if self.decide_locked(now, Some(view), slot, history) {
            self.deliver_decided(now);
        }
    }

    /// Everything up to `slot` is decided, and this is its history: so are the own votes, if they, or
    /// decisions, are all there and have that history.
    fn decide_locked(&mut self, now: Now, view: Option<View>, slot: Slot, history: Digest) -> bool {
        let mut chain = self.history;
        let mut decided = Vec::new();
        for number in self.delivered.0 + 1..=slot.0 {
            let state = self.slots.get(&Slot(number));
            let known = state.and_then(|state| {
                let shown = state.decided.as_ref().map(|one| (one.view, &one.batch));
                shown.or(state.locked.as_ref().map(|one| (one.view, &one.batch)))
            });
            let Some((voted, batch)) = known else { return false };
            chain = chain.chain(Slot(number), batch.digest());
            let (view, batch) = (view.unwrap_or(voted), batch.clone());
            decided.push((Slot(number), view, batch));
        }
        if chain != history && !seeded!(DecidedUnseen) {
            return false;
        }
        for (slot, view, batch) in decided {
            let decided = Decided { view, batch, accepts: Certificate::default() };
            self.slot_mut(now, slot).decided.get_or_insert(decided);
        }
        true
    }

    /// After a restart the log proves nothing behind a batch that it lost. Once that one has come
    /// from a peer, the votes up to the next mark prove themselves again; it may be that nobody else
    /// has those batches.
    fn decide_marked(&mut self, now: Now) -> bool {
        self.marked = self.marked.split_off(&self.delivered.next());
        let next = self.marked.first_key_value().map(|(slot, history)| (*slot, *history));
        next.is_some_and(|(slot, history)| self.decide_locked(now, None, slot, history))
    }

    /// Delivers the contiguous decided prefix (A4).
    pub(crate) fn deliver_decided(&mut self, now: Now) {
        while !self.awaiting_state && self.lags_since.is_none() {
            let slot = self.delivered.next();
            let Some(decided) = self.slots.get(&slot).and_then(|state| state.decided.clone())
            else {
                if self.decide_marked(now) {
                    continue;
                }
                return;
            };
            let decided = match self.configuration_is_near(slot, &decided.batch) {
                true if self.waits_for_proof(now, slot) => return,
                // With the proof, if it has one now.
                true => self.slots.get(&slot).and_then(|s| s.decided.clone()).unwrap_or(decided),
                false => decided,
            };
            let digest = decided.batch.digest();
            self.note_near(slot, &decided.batch);
            self.note_equivocation(slot, &decided);
            // Of the whole prefix: an earlier slot may have been logged later.
            self.logged_at = self.logged_at.max(self.log_decision(slot, &decided));
            let logged_at = self.logged_at;
            self.delivered = slot;
            self.history = self.history.chain(slot, digest);
            self.progress_ms = now.monotonic_ms;
            if self.mode == Mode::Started {
                self.timeouts.view_works();
            }
            if !decided.batch.frames().is_empty() {
                self.served_ms = now.monotonic_ms;
            }
            let proposed_ms = self.proposed_freely_ms(slot, digest);
            if self.is_byzantine() {
                let (batch, of) = (&decided.batch, (&self.pool, &self.expected));
                self.demand.delivered(batch, proposed_ms, of, now.monotonic_ms);
            }
            for frame in decided.batch.frames() {
                self.pool.remove(frame.session, frame.first_number);
            }
            if self.is_byzantine() {
                let of = (&self.pool, &self.expected, self.most_commands());
                self.demand.closed(&decided.batch, proposed_ms, of, now.monotonic_ms);
            }
            if let Some(state) = self.slots.get_mut(&slot) {
                let freed = state.held_bytes();
                state.proposal = None;
                self.held_proposal_bytes -= freed;
            }
            let (batch, history) = (decided.batch, self.history);
            self.effects.push_back(Effect::Deliver { slot, batch, history, logged_at });
            self.effects.push_back(Effect::Note(Record::Delivered { slot, history }));
            self.executing.push_back((slot, history, logged_at));
            self.adopt_prefix(now);
        }
    }

    /// What was decided in this view its leader proposed to somebody; and here, if it is correct.
    fn note_equivocation(&mut self, slot: Slot, decided: &Decided) {
        let proven = decided.view == self.view && !decided.accepts.is_empty();
        if proven && self.proposed(slot).is_some_and(|digest| digest != decided.batch.digest()) {
            self.misbehaved(self.leader(), Misbehaviour::Equivocation);
        }
    }

    /// When this view's leader proposed the batch, if no new view bound it to.
    fn proposed_freely_ms(&self, slot: Slot, digest: Digest) -> Option<u64> {
        let free = self.proposed(slot) == Some(digest) && !self.start.choices.contains_key(&slot);
        self.slots.get(&slot).filter(|_| free).map(|state| state.since_ms)
    }

    /// The sequence number at which the batch is on this disk with a vote or a proof (D1).
    fn log_decision(&mut self, slot: Slot, decided: &Decided) -> u64 {
        let digest = decided.batch.digest();
        let voted = self
            .slots
            .get(&slot)
            .and_then(|state| state.locked.as_ref())
            .filter(|locked| locked.batch.digest() == digest)
            .map(|locked| locked.sequence);
        match voted {
            Some(sequence) => {
                if self.is_byzantine() && !decided.accepts.is_empty() {
                    self.note_accepts(slot, decided.view, digest, decided.accepts.clone());
                }
                sequence
            }
            None if seeded!(DecisionNotLogged) => 0,
            None => self.persist(Record::Decision {
                slot,
                view: decided.view,
                batch: decided.batch.clone(),
                accepts: decided.accepts.clone(),
            }),
        }
    }

    /// Signs the delivered and executed prefix. That is no vote but an attestation, and one who may
    /// not vote gives it too: where every replica lost some of its votes, each in another slot,
    /// nobody could vote again if only voters certified what all have delivered. A new incarnation
    /// keeps quiet about slots in which its predecessor was the member.
    pub(crate) fn sign_prefix(&mut self, now: Now, slot: Slot, history: Digest, logged_at: u64) {
        self.own_histories.insert(slot, history);
        let me = self.settings.me;
        if !self.governs(slot) {
            self.try_certify_prefix(now, slot);
            return;
        }
        let signature = self.sign(StatementKind::Prefix, View(0), slot, history);
        let message = Message::Prefix { slot, history, signature };
        if logged_at <= self.persisted {
            self.effects.push_back(Effect::Broadcast(message));
        } else {
            self.hold(logged_at, AwaitingFlush::Broadcast(message));
        }
        self.prefix_votes.add(me, slot, history, signature, self.most_prefix_votes());
        self.try_certify_prefix(now, slot);
    }

    /// Somebody may not vote before a prefix is certified, and in an idle group the next regular
    /// one may be far: signs the prefix as it is now.
    pub fn attest_prefix(&mut self, now: Now) {
        let settled = self.executed == self.delivered && self.executed > self.prefix.slot;
        if settled {
            self.marks.prefixes_attested += u64::from(self.voting());
            self.sign_prefix(now, self.executed, self.history, self.logged_at);
        }
    }

    pub(crate) fn on_prefix(
        &mut self,
        now: Now,
        from: ReplicaId,
        slot: Slot,
        history: Digest,
        signature: Signature,
    ) {
        let end = self.window_end();
        let peer = &mut self.peers[from.index()];
        if slot <= end {
            peer.delivered = peer.delivered.max(slot);
        }
        if slot <= self.prefix.slot || slot > end {
            return;
        }
        self.prefix_votes.add(from, slot, history, signature, self.most_prefix_votes());
        self.try_certify_prefix(now, slot);
    }

    pub(crate) fn try_certify_prefix(&mut self, now: Now, slot: Slot) {
        let certified = slot <= self.prefix.slot || self.prefixes_ahead.contains_key(&slot);
        if certified || slot > self.reach() {
            return;
        }
        let Some(governing) = self.configurations.governing(slot) else { return };
        let configuration = governing.id;
        let quorum = self.settings.parameters.faults.witnesses();
        let named = self.prefix_votes.about(slot);
        let Some(history) = named
            .iter()
            .map(|(_, history, _)| *history)
            .find(|h| named.iter().filter(|(_, other, _)| other == h).count() >= quorum)
        else {
            return;
        };
        let matching: Vec<(ReplicaId, Signature)> = named
            .iter()
            .filter(|(_, h, _)| *h == history)
            .map(|(id, _, sig)| (*id, *sig))
            .collect();
        let mut genuine = Vec::new();
        let mut liars = Vec::new();
        for (id, signature) in matching {
            let single = Certificate::new(vec![(id, signature)]);
            let certified = self.judge(|_, verifier| {
                verifier.certified(&single, 1, StatementKind::Prefix, View(0), slot, history)
            });
            if certified {
                genuine.push((id, signature));
            } else {
                liars.push(id);
            }
            if genuine.len() == quorum {
                break;
            }
        }
        for liar in liars {
            self.misbehaved(liar, Misbehaviour::BadSignature);
            self.prefix_votes.forget(liar, slot);
        }
        if genuine.len() >= quorum {
            let certificate = Certificate::new(genuine);
            self.learn_prefix(now, PrefixCertificate { slot, history, configuration, certificate });
        }
    }
}
