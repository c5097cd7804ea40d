//! Messages get lost, replicas fall behind. Status messages tell everybody where everybody is;
//! from them follows who repeats what, and who fetches from whom. Nothing is repeated that was
//! not missed, and no peer's word makes a replica send more than a bounded answer per Status.

use crate::machine::{Agreement, Effect, Mode, Now};
use crate::peers::PeerStatus;
use crate::timing;
use perdura_protocol::message::Message;
use perdura_protocol::{Configuration, Digest, Record, ReplicaId, Slot, View, seeded};

/// Slots repeated for a peer that stands still, per Status of it.
const REPEATED_SLOTS: usize = 8;

/// A proposal that the peer has voted on is repeated with each so many Status of it.
const FORGOTTEN_AFTER: u32 = 10;

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
        if let Some((view, _)) = self.suspecting {
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
        let coming = self.state_coming.map_or(Slot(0), |slot| slot.plus(self.settings.window));
        let delivered = delivered.min(self.window_end().max(coming));
        let peer = &mut self.peers[from.index()];
        let stalled = peer.delivered == delivered;
        peer.stalled = if stalled { peer.stalled.saturating_add(1) } else { 0 };
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

    /// Repeats what this replica said about slots that it or the peer has not delivered, and of those that it
    /// has delivered what it cannot prove.
    fn repeat_for(&mut self, to: ReplicaId, delivered: Slot) {
        if self.leads() && !self.is_byzantine() && delivered < self.delivered {
            let (view, slot, history) = (self.view, self.delivered, self.history);
            let message = Message::Decided { view, slot, history };
            self.effects.push_back(Effect::Send { to, message });
        }
        let first = self.prefix.slot.max(delivered.min(self.delivered)).next();
        let open = self.slots.range(first..).map(|(slot, _)| *slot);
        let open = open.filter(|slot| *slot > self.delivered || self.is_unproven(*slot));
        let slots: Vec<Slot> = open.take(REPEATED_SLOTS).collect();
        let counted = !self.is_byzantine() && to == self.leader();
        for slot in slots {
            for message in self.said_about(slot, to) {
                self.send_in_view(to, message);
            }
            if counted {
                self.repeat_accept(to, slot);
            }
        }
    }

    /// Of a proposal on which the other one has voted, or which it asks for if it lacks it, only the votes: it is slow,
    /// and would be slower still. Rarely the proposal too, for it may have lost it in a crash.
    fn said_about(&self, slot: Slot, to: ReplicaId) -> Vec<Message> {
        let mut said = Vec::new();
        let Some(state) = self.slots.get(&slot) else { return said };
        let view = self.view;
        let proposal = state.proposal.as_ref().filter(|proposal| proposal.view == view);
        let voted = [&state.writes, &state.accepts]
            .into_iter()
            .any(|votes| votes.of(to).is_some_and(|vote| vote.view == view));
        let asks = self.start.choices.contains_key(&slot);
        let peer = &self.peers[to.index()];
        let forgotten = peer.stalled.is_multiple_of(FORGOTTEN_AFTER);
        let lacks = slot > peer.delivered && (forgotten || !(voted || asks));
        if let (true, true, Some(proposal)) = (self.may_propose(slot), lacks, proposal) {
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
        if let (true, Some(vote)) = (self.is_byzantine(), own) {
            let (digest, signature) = (vote.digest, vote.signature);
            said.push(Message::Accept { view, slot, digest, signature });
        }
        said
    }

    /// The slot that r + 1 peers say they delivered, so that one correct one did.
    pub(crate) fn delivered_elsewhere(&self) -> Slot {
        self.delivered_by(|_| true)
    }

    /// The same of peers that are here, so that one correct one is, which has it.
    pub(crate) fn delivered_here(&self) -> Slot {
        self.delivered_by(|peer| peer.connected)
    }

    fn delivered_by(&self, counts: impl Fn(&PeerStatus) -> bool) -> Slot {
        let me = self.settings.me.index();
        let mut slots: Vec<Slot> = self
            .peers
            .iter()
            .enumerate()
            .filter(|(index, peer)| *index != me && counts(peer))
            .map(|(_, peer)| peer.delivered)
            .collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        let index = self.settings.parameters.faults.witnesses() - 1;
        slots.get(index).copied().unwrap_or_default()
    }

    /// The slot that any peer says it delivered; decisions prove themselves when they come.
    pub(crate) fn claimed_elsewhere(&self) -> Slot {
        let me = self.settings.me.index();
        let others = self.peers.iter().enumerate().filter(|(index, _)| *index != me);
        others.map(|(_, peer)| peer.delivered).max().unwrap_or_default()
    }

    /// Notes who is cut off or behind, be it this replica.
    pub(crate) fn note_lagging(&mut self, now: Now) {
        // Heard of by Status and Prefix, and so a little late.
        let near = self.settings.parameters.depth + 2 * self.prefix_interval();
        let (me, behind) = (self.settings.me.index(), self.is_behind());
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let away = index != me && !peer.connected;
            let lags = away || peer.delivered.plus(near) < self.delivered;
            if if index == me { behind } else { lags } {
                peer.lagged_ms = Some(now.monotonic_ms);
            }
            peer.returning = away || (peer.returning && !peer.keeps_up(now.monotonic_ms));
        }
    }

    /// Whether this replica could not lead now.
    fn is_behind(&self) -> bool {
        let ahead = self.delivered.plus(self.settings.parameters.depth);
        !self.voting() || self.awaiting_state || self.delivered_elsewhere() > ahead
    }

    /// Whether everybody but the present leader keeps up, which may say what it likes. While one is away or comes
    /// back, the others have its load besides their own and a state to send: a change of leaders costs the most
    /// then, and tells the least. Whoever pretends to be behind only makes trials rarer, for they come
    /// all the same with time.
    pub(crate) fn may_try_another(&self, now_ms: u64) -> bool {
        let leader = self.leader();
        let mut others = (0..self.n() as u8).map(ReplicaId).filter(|id| *id != leader);
        others.all(|id| self.peers[id.index()].keeps_up(now_ms))
    }

    /// The view to change to: the next one whose leader was not away lately, and has caught up since, and whose disk does not hang, when that
    /// is among the next u + 1, for u may be away. Who is behind without having been away is not passed over:
    /// a leader could see to that, and so have liars only lead.
    pub(crate) fn successor(&self) -> View {
        let among = self.settings.parameters.faults.u() as u64 + 1;
        let next = self.view.next();
        let mut views = (0..among).map(|further| View(next.0.saturating_add(further)));
        let there = views.find(|view| self.can_succeed(*view));
        // All have just come together, or this replica has just come back and knows nobody.
        there.unwrap_or(if self.lags_as_leader(next) { next.next() } else { next })
    }

    pub(crate) fn can_succeed(&self, view: View) -> bool {
        let leader = &self.peers[view.leader(self.n()).index()];
        !leader.returning && !leader.hangs && !self.lags_as_leader(view)
    }

    fn lags_as_leader(&self, view: View) -> bool {
        view.leader(self.n()) == self.settings.me && self.is_behind()
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
        if self.slots.get(&slot).is_some_and(|state| state.decided.is_some()) {
            self.forget_unvoted(slot);
        }
    }

    /// Forgets a slot that is executed, unless this replica voted there.
    fn forget_unvoted(&mut self, slot: Slot) {
        let view = self.view;
        let unvoted = self.slots.get(&slot).is_some_and(|state| {
            let wrote = state.written.is_some_and(|written| written.0 == view);
            state.locked.is_none() && !wrote
        });
        if unvoted && let Some(state) = self.slots.remove(&slot) {
            self.held_proposal_bytes -= state.held_bytes();
        }
    }

    /// At a start: what the log proves by itself it also shows to others, batch and Accepts, so it need not be held; of
    /// what it does not prove the votes are still needed (`who_cannot_prove_what_was_decided_votes_again`).
    pub(crate) fn forget_shown(&mut self, through: Slot) {
        let read = self.slots.range(..=through).map(|(slot, _)| *slot);
        let shown: Vec<Slot> = read.filter(|slot| !self.is_unproven(*slot)).collect();
        shown.into_iter().for_each(|slot| self.forget_fetched(slot));
    }

    /// State was transferred: everything up to `slot` is delivered and executed.
    pub fn on_installed(
        &mut self,
        now: Now,
        slot: Slot,
        history: Digest,
        configurations: &[Configuration],
    ) {
        let known = self.configurations.latest().id;
        self.configurations.learn(configurations);
        let learned = self.configurations.latest().id > known;
        self.awaiting_state = false;
        if slot > self.delivered {
            self.delivered = slot;
            self.history = history;
            self.executed = slot;
            self.executing.clear();
            self.own_histories.clear();
            self.note_installed(slot);
            self.demand.installed();
            // From here on the log proves to others, also after a restart, what comes next.
            self.effects.push_back(Effect::Note(Record::Delivered { slot, history }));
        }
        if learned {
            self.note_configuration();
        }
        self.next_propose = self.next_propose.max(self.delivered.next());
        self.progress_ms = now.monotonic_ms;
        self.served_ms = now.monotonic_ms;
        if self.state_coming.take().is_some_and(|coming| coming == slot) {
            let held = self.fetches.held_after(slot);
            self.marks.decisions_beside_state += held;
        }
        self.fetches.clear_through(self.delivered);
        self.adopt_prefix(now);
        self.forget_certified();
        // The window goes on from here, though a prefix may be certified up to here much later, or never.
        let settled: Vec<Slot> =
            self.slots.range(..=self.delivered).map(|(slot, _)| *slot).collect();
        settled.into_iter().for_each(|slot| self.forget_unvoted(slot));
        self.deliver_decided(now);
        self.advance_open(now);
    }

    /// Whether the log lags so far behind that this replica has to be a laggard: as long as it
    /// does, nothing is delivered, and so nothing beyond the pipeline's depth is voted for, nor
    /// anything in a later view.
    pub fn on_disk_lag(&mut self, now: Now, lags: bool) {
        let lagged = self.lags_since.is_some();
        self.marks.disk_lags += u64::from(lags && !lagged);
        self.lags_since = lags.then_some(self.lags_since.unwrap_or(self.view));
        if lagged && !lags {
            self.advance_open(now);
            self.deliver_decided(now);
            self.take_up_early(now);
            self.fetch_more(now);
        }
    }
}
