//! Messages get lost, replicas fall behind. Status messages tell everybody where everybody is;
//! from them follows who repeats what, and who fetches from whom. Nothing is repeated that was
//! not missed, and no peer's word makes a replica send more than a bounded answer per Status.
//!
//! A laggard asks all who are ahead of it in turns of equal *time*, not of equal number: whoever
//! takes long, on purpose or not, is asked the less often. So a liar that keeps just within the
//! time-out costs its share of the time, and the others give at their own speed in the rest. Where
//! it asks one only (`Settings::one_seeder`), that costs all of it.

use crate::machine::{Agreement, Effect, Misbehaviour, Mode, Now};
use crate::slot::Decided;
use crate::timing;
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::statement::Kind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Certificate, Configuration, Digest, Record, ReplicaId, Slot, View, limits, seeded,
};

/// Slots repeated for a peer that stands still, per Status of it.
const REPEATED_SLOTS: usize = 8;

impl Agreement {
    pub(crate) fn status(&self) -> Message {
        Message::Status {
            view: self.view,
            changing: self.mode == Mode::Changing,
            delivered: self.delivered,
        }
    }

    pub(crate) fn broadcast_status(&mut self, now: Now) {
        let status = self.status();
        self.effects.push_back(Effect::Broadcast(status));
        if let Some(view) = self.suspecting {
            self.effects.push_back(Effect::Broadcast(Message::Suspect { view }));
        }
        let due = now.monotonic_ms >= self.changes_sent_ms + timing::VIEW_CHANGE_MS;
        if self.mode == Mode::Changing && due && self.persisted >= self.view_sequence {
            self.changes_sent_ms = now.monotonic_ms;
            if let Some(change) = self.own_change.clone() {
                let message = Message::ViewChange(Box::new(change));
                self.effects.push_back(Effect::Broadcast(message));
            }
            self.try_new_view(now);
        }
        self.fetch_if_behind(now);
        self.status_delivered = self.delivered;
    }

    pub(crate) fn on_status(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        changing: bool,
        delivered: Slot,
    ) {
        // Further ahead than anybody fetches at once; a liar's number stays small.
        let delivered = delivered.min(self.window_end());
        let peer = &mut self.peers[from.index()];
        let stalled = peer.delivered == delivered;
        // One answer per heartbeat, however often a peer says where it is.
        let due = now.monotonic_ms >= peer.answered_ms + timing::STATUS_MS / 2;
        peer.view = view;
        peer.changing = changing;
        peer.delivered = delivered;
        // A suspicion that still holds is repeated behind the Status; one that does not ends here.
        peer.wanted = view;
        self.join_if_wanted(now);
        self.note_quorum(now);
        // What waits for the disk already is not said once more.
        let durable = self.persisted >= self.view_sequence;
        if self.mode != Mode::Started || !due || !durable {
            return;
        }
        self.peers[from.index()].answered_ms = now.monotonic_ms;
        if view < self.view || (view == self.view && changing) {
            let known = self.new_view.clone().filter(|_| !seeded!(NewViewNotRepeated));
            if let Some(new_view) = known {
                self.marks.new_views_repeated += 1;
                self.send_in_view(from, Message::NewView(Box::new(new_view)));
            }
        } else if view == self.view && stalled {
            self.repeat_for(from, delivered);
        }
    }

    /// Repeats what this replica said about slots that neither it nor the peer has delivered.
    fn repeat_for(&mut self, to: ReplicaId, delivered: Slot) {
        if self.leads() && !self.byzantine() && delivered < self.delivered {
            let (view, slot, history) = (self.view, self.delivered, self.history);
            let message = Message::Decided { view, slot, history };
            self.effects.push_back(Effect::Send { to, message });
        }
        let first = delivered.max(self.delivered).next();
        let slots: Vec<Slot> =
            self.slots.range(first..).map(|(slot, _)| *slot).take(REPEATED_SLOTS).collect();
        for slot in slots {
            for message in self.said_about(slot) {
                self.send_in_view(to, message);
            }
        }
    }

    fn said_about(&self, slot: Slot) -> Vec<Message> {
        let mut said = Vec::new();
        let Some(state) = self.slots.get(&slot) else { return said };
        let view = self.view;
        let proposal = state.proposal.as_ref().filter(|proposal| proposal.view == view);
        if let (true, Some(proposal)) = (self.leads(), proposal) {
            said.push(Message::Propose {
                view,
                slot,
                batch: proposal.batch.clone(),
                decided: self.delivered,
                history: self.history,
            });
        }
        if let Some((_, digest, signature)) = state.written.filter(|written| written.0 == view) {
            said.push(Message::Write { view, slot, digest, signature });
        }
        let own = state.accepts.of(self.settings.me).filter(|vote| vote.view == view);
        if let (true, Some(vote)) = (self.byzantine(), own) {
            let (digest, signature) = (vote.digest, vote.signature);
            said.push(Message::Accept { view, slot, digest, signature });
        }
        said
    }

    /// The slot that r + 1 peers say they delivered, so that one correct one did.
    pub(crate) fn delivered_elsewhere(&self) -> Slot {
        let me = self.settings.me.index();
        let mut slots: Vec<Slot> = self
            .peers
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != me)
            .map(|(_, peer)| peer.delivered)
            .collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        let index = self.settings.parameters.faults.witnesses() - 1;
        slots.get(index).copied().unwrap_or_default()
    }

    /// The slot that any peer says it delivered; decisions prove themselves when they come.
    fn claimed_elsewhere(&self) -> Slot {
        let me = self.settings.me.index();
        let others = self.peers.iter().enumerate().filter(|(index, _)| *index != me);
        others.map(|(_, peer)| peer.delivered).max().unwrap_or_default()
    }

    fn fetch_if_behind(&mut self, now: Now) {
        let stalled = self.delivered == self.status_delivered;
        let far = self.delivered_elsewhere() > self.delivered.plus(self.settings.parameters.depth);
        let target = self.claimed_elsewhere();
        let waiting =
            self.fetch_ms.is_some_and(|since| now.monotonic_ms < since + timing::FETCH_MS);
        let held_back = self.awaiting_state || self.lags_since.is_some();
        if target <= self.delivered || !(stalled || far) || waiting || held_back {
            return;
        }
        if self.fetch_ms.is_some() {
            self.fetch_failed();
        }
        self.charge_fetch(now, 0);
        self.fetch_next(now);
    }

    /// Asks who has taken least time so far, of those who are ahead.
    fn fetch_next(&mut self, now: Now) {
        let (n, me) = (self.n(), self.settings.me.index());
        let turn_ms = self.fetch_turn_ms;
        let ahead = (1..=n)
            .map(|step| (self.fetch_from + step) % n)
            .filter(|index| *index != me && self.peers[*index].delivered > self.delivered);
        let candidate = if self.settings.one_seeder {
            let (leader, last) = (self.leader().index(), self.fetch_from);
            ahead.min_by_key(|index| {
                (self.peers[*index].fetch_failures, *index != last, *index == leader)
            })
        } else {
            ahead.min_by_key(|index| self.peers[*index].fetch_spent_ms.max(turn_ms))
        };
        let Some(candidate) = candidate else { return };
        let peer = &mut self.peers[candidate];
        // Whoever was not ahead for a while has saved nothing up.
        peer.fetch_spent_ms = peer.fetch_spent_ms.max(turn_ms);
        self.fetch_turn_ms = peer.fetch_spent_ms;
        self.fetch_from = candidate;
        self.fetch_ms = Some(now.monotonic_ms);
        self.trust[candidate].fetch();
        let to = ReplicaId(candidate as u8);
        let message = Message::Fetch { from: self.delivered.next() };
        self.effects.push_back(Effect::Send { to, message });
    }

    /// Of one seeder only (`Settings::one_seeder`): it gave the state, and is asked for what comes after it.
    pub fn set_seeder(&mut self, seeder: ReplicaId) {
        self.fetch_from = seeder.index();
        self.fetch_ms = None; // What another one was asked counts no more.
        self.peers.iter_mut().for_each(|peer| peer.fetch_failures = 0);
    }

    fn fetch_failed(&mut self) {
        let peer = &mut self.peers[self.fetch_from];
        peer.fetch_failures = peer.fetch_failures.saturating_add(1);
    }

    /// The question is over: who was asked is charged the time that it took, or `least_ms`.
    fn charge_fetch(&mut self, now: Now, least_ms: u64) {
        if let Some(since) = self.fetch_ms.take() {
            let took_ms = now.monotonic_ms.saturating_sub(since);
            self.peers[self.fetch_from].fetch_spent_ms += took_ms.max(least_ms).max(1);
        }
    }

    pub(crate) fn on_fetch(&mut self, from: ReplicaId, first: Slot) {
        if first > self.delivered || first == Slot(0) {
            return;
        }
        let mut decisions = Vec::new();
        let mut bytes = 0;
        let mut slot = first;
        while let Some(decision) = self.decision(slot) {
            bytes += decision.batch.raw().len();
            decisions.push(decision);
            slot = slot.next();
            let enough = decisions.len() as u64 >= self.settings.parameters.depth;
            if bytes >= limits::FETCH_BYTES || enough {
                break;
            }
        }
        if decisions.is_empty() {
            self.effects.push_back(Effect::Serve { to: from, from: first });
            return;
        }
        let prefix = Some(self.prefix.clone()).filter(|p| p.slot >= first && p.slot < slot);
        let message = Message::Decisions { decisions, prefix };
        self.effects.push_back(Effect::Send { to: from, message });
    }

    pub(crate) fn on_decisions(
        &mut self,
        now: Now,
        from: ReplicaId,
        decisions: Vec<Decision>,
        prefix: Option<PrefixCertificate>,
    ) {
        if self.lags_since.is_some() {
            if from.index() == self.fetch_from {
                self.fetch_ms = None; // It is not to blame; it is asked again when there is room.
            }
            return;
        }
        if self.awaiting_state || !self.trust[from.index()].decisions(now.monotonic_ms) {
            return;
        }
        let before = self.delivered;
        let mut next = self.delivered.next();
        let mut fresh: Vec<Decision> = Vec::new();
        for decision in decisions {
            if decision.slot < next {
                continue;
            }
            if decision.slot != next || decision.slot > self.reach() {
                break;
            }
            next = next.next();
            fresh.push(decision);
        }
        let proven_prefix = self.covered(&fresh, prefix.as_ref());
        let covered = proven_prefix.unwrap_or_default();
        for decision in fresh {
            let proven = self.proven(&decision);
            if decision.slot > covered && !proven {
                // Without any Accepts it only lacks the prefix that would prove it.
                if !decision.accepts.is_empty() {
                    self.misbehaved(from, Misbehaviour::BadDecision);
                }
                break;
            }
            let Decision { slot, view, accepts, batch } = decision;
            // The prefix proves the batch, not what a liar may have put beside it; that is not
            // passed on.
            let accepts = if proven { accepts } else { Certificate::default() };
            let state = self.slot_mut(now, slot);
            if let Some(held) = &state.decided {
                assert!(held.batch.digest() == batch.digest(), "two decisions for a slot: stop");
            }
            state.decided = Some(Decided { view, batch, accepts });
        }
        if let Some(prefix) = prefix.filter(|prefix| proven_prefix == Some(prefix.slot)) {
            self.learn_prefix(now, prefix);
        }
        self.deliver_decided(now);
        let progress = self.delivered > before;
        self.marks.decisions_fetched += u64::from(progress);
        if from.index() != self.fetch_from || self.fetch_ms.is_none() {
            return; // Late, or unasked.
        }
        if progress {
            self.charge_fetch(now, 0);
            self.fetch_next(now);
        } else {
            // The next one is asked in a tick; an answer of no use costs as much as none.
            self.fetch_failed();
            self.charge_fetch(now, timing::FETCH_MS);
        }
    }

    /// The slot up to which a certified prefix proves these decisions, if it does.
    fn covered(
        &mut self,
        decisions: &[Decision],
        prefix: Option<&PrefixCertificate>,
    ) -> Option<Slot> {
        let prefix = prefix.filter(|prefix| prefix.slot <= self.reach())?;
        let mut history: Digest = self.history;
        for decision in decisions.iter().take_while(|decision| decision.slot <= prefix.slot) {
            history = history.chain(decision.slot, decision.batch.digest());
            if decision.slot == prefix.slot
                && history == prefix.history
                && self.judge(|_, verifier| verifier.prefix(prefix))
            {
                return Some(prefix.slot);
            }
        }
        None
    }

    /// Whether a quorum of Accepts proves the decision. With r = 0 nobody lies about one.
    fn proven(&mut self, decision: &Decision) -> bool {
        if !self.byzantine() {
            return true;
        }
        let Decision { slot, view, accepts, batch } = decision;
        let (quorum, digest) = (self.quorum(), batch.digest());
        self.judge(|_, verifier| {
            verifier.certified(accepts, quorum, Kind::Accept, *view, *slot, digest)
        })
    }

    /// Only the peer that was asked may send this replica after a state.
    pub(crate) fn on_too_old(&mut self, now: Now, from: ReplicaId, checkpoint: Slot) {
        let asked = self.fetch_ms.is_some() && from.index() == self.fetch_from;
        // A state is there only if others than one are ahead.
        let ahead = self.delivered_elsewhere() > self.delivered;
        if asked && ahead && checkpoint > self.delivered {
            self.charge_fetch(now, timing::FETCH_MS);
            self.effects.push_back(Effect::FetchState { checkpoint });
        }
    }

    /// Whether a slot was executed and is held no more: nothing about it is of use here.
    pub(crate) fn is_settled(&self, slot: Slot) -> bool {
        slot.plus(self.settings.parameters.depth) <= self.executed
            && !self.slots.contains_key(&slot)
    }

    /// Forgets what was fetched and is executed, before a prefix is certified that far: between
    /// two of those may lie the whole log of the others. It is in this replica's own log, which
    /// serves laggards from now on; and without a vote of this replica it is no lock that a view
    /// change would have to name.
    pub(crate) fn forget_fetched(&mut self, slot: Slot) {
        let view = self.view;
        let fetched = self.slots.get(&slot).is_some_and(|state| {
            let wrote = state.written.is_some_and(|written| written.0 == view);
            state.decided.is_some() && state.locked.is_none() && !wrote
        });
        if !fetched {
            return;
        }
        if let Some(state) = self.slots.remove(&slot) {
            self.held_proposal_bytes -= state.held_bytes();
        }
    }

    /// State was transferred: everything up to `slot` is delivered and executed.
    pub fn on_installed(
        &mut self,
        now: Now,
        slot: Slot,
        history: Digest,
        configurations: &[Configuration],
    ) {
        self.configurations.learn(configurations);
        self.awaiting_state = false;
        if slot > self.delivered {
            self.delivered = slot;
            self.history = history;
            self.executed = slot;
            self.executing.clear();
            self.own_histories.clear();
            self.demand.installed();
            // From here on the log proves to others, also after a restart, what comes next.
            self.effects.push_back(Effect::Note(Record::Delivered { slot, history }));
        }
        self.next_propose = self.next_propose.max(self.delivered.next());
        self.progress_ms = now.monotonic_ms;
        self.served_ms = now.monotonic_ms;
        self.fetch_ms = None;
        self.adopt_prefix(now);
        self.forget_certified();
        self.deliver_decided(now);
        let open: Vec<Slot> = self.slots.keys().copied().collect();
        for slot in open {
            self.advance(now, slot);
        }
    }

    /// Whether the log lags so far behind that this replica has to be a laggard: as long as it
    /// does, nothing is delivered, and so nothing beyond the pipeline's depth is voted for, nor
    /// anything in a later view.
    pub fn on_disk_lag(&mut self, now: Now, lags: bool) {
        let lagged = self.lags_since.is_some();
        self.marks.disk_lags += u64::from(lags && !lagged);
        self.lags_since = lags.then_some(self.lags_since.unwrap_or(self.view));
        if lagged && !lags {
            let open: Vec<Slot> = self.slots.keys().copied().collect();
            for slot in open {
                self.advance(now, slot);
            }
            self.deliver_decided(now);
            if self.fetch_ms.is_none() && !self.awaiting_state {
                self.fetch_next(now);
            }
        }
    }
}
