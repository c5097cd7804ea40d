//! View changes, new views.
//!
//! A replica that suspects its leader first says so (Suspect, which commits it to nothing, so that
//! one with a broken link does not drop out of a working view). It gives the view up, and signs a
//! ViewChange, when m + 1 others want a later view, or r + 1 others do and it suspects too (A4) or
//! waits alone for its view to start.
//! Entering a view is on disk before anything is said in it (A2).
//!
//! # How a view changes
//!
//! 1. **Suspicion.** Every 20 ms `check_leader` (`views.rs`) judges the leader (`against_leader` in `suspicion.rs`): silent for a second, its
//!    connection broken for 100 ms, a request or proposal without progress for a second, or (r > 0) less given than was asked of it (below), or any
//!    message that no correct replica sends: a proposal with a frame that no client signed, a signature that is not genuine, two votes for one slot
//!    (`on_exposed` in `views.rs`). Who lies is no leader: what it can do to the group's speed within all time-outs nobody can measure. A restarted
//!    leader, and one whose view is of an earlier configuration, is given up too, and a leader whose slots get no votes gives up by itself. A
//!    suspicious replica broadcasts Suspect, which commits it to nothing, and says in its log what it has against the leader. The view that it asks
//!    for is the next one whose leader was not cut off since it last kept up for ten seconds, of the next u + 1 (`successor`): who still catches up
//!    cannot lead, and the view would fail. A replica that is behind passes over itself. Where nobody is known to keep up, as in a group that has
//!    just come together, it is the next one. Replicas may name different views: the highest that enough of them ask for, or a later one, is joined.
//! 2. **Leaving.** On m + 1 others that want a later view, or r + 1 and its own suspicion, it joins: it persists `Record::View`, and when that is on
//!    disk sends a signed ViewChange with its certified prefix and its locks above it (`join`, `make_view_change`). With r > 0 each lock carries its
//!    Q Writes. Locks count up to a window of 1024 slots above the prefix; why those of a correct replica always do stands at the head of
//!    `prefix.rs`. Suspicions may be dropped just after they made some replica leave, and it cannot come back: r + 1 that left are followed after
//!    two seconds, fewer after eight and, for each of them, each time after twice as long as before, for it may lie (`left`, `follows`). Who waits
//!    alone for a view to start counts as one that suspects: the others may have started it by a NewView of a configuration that is over for it, and
//!    ask for it no more (`waits_in_vain`).
//! 3. **Choice.** Of a view change replicas verify the sender's signature, no more. When a quorum has asked for its view, the new leader verifies
//!    prefixes and locks too (`evidence.rs`), throws out what is invalid, and takes any Q of the rest whose batches it holds and whose prefix it has
//!    executed; it asks for missing batches (FetchBatch), and leaves out a sender that withholds one (`try_new_view`). `Start::choose` takes the
//!    highest certified prefix as base and, per slot, the lock of the highest view; null batches fill the holes.
//! 4. **Start.** NewView carries the view changes. Every replica verifies those that it has not, computes the same choice from them and votes for
//!    nothing else in those slots (rule 4). What a replica holds of the choice counts as proposed (`reproposal.rs`): a batch that most hold is not sent
//!    again, and who lacks one asks the leader for it. Who has delivered a slot votes no more on it, for it has the proof for whoever has not;
//!    unless it knows of the decision from its log alone, or Accepts turned out false (`lacks_reproposal`). So a view change under load costs the batches
//!    that are undelivered a flush, and not all since the last certified prefix a second way to everybody. What was proposed in vain waits in the
//!    pool again, and frames that a follower holds go to the new leader.
//! 5. **Catching up.** Who missed the NewView shows an older view in its Status and is sent it again (`laggards.rs`). Time-outs double with each
//!    failed view, up to 64 times, and are reset by progress.

use crate::demand::Moment;
use crate::evidence::{Invalid, SignedViewChange, Start};
use crate::machine::{Agreement, AwaitingFlush, Effect, Mode, Now};
use crate::peers::PeerStatus;
use crate::penalty::Misbehaviour;
use crate::pool::FrameKey;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::{NewView, ViewChange};
use perdura_protocol::{Batch, Digest, Frame, Record, ReplicaId, Signature, Slot, View, seeded};
use std::collections::BTreeSet;

impl Agreement {
    /// Judges the leader anew; a suspicion whose cause is gone is dropped.
    pub(crate) fn check_leader(&mut self, now: Now) {
        self.note_lagging(now);
        self.note_left(now);
        self.note_overdue(now);
        self.watch_leader(now);
        self.take_reproposals(now);
        if !self.voting() {
            self.excuse_view_change(now);
            return;
        }
        let why = match self.mode {
            Mode::Started => self.against_leader(now),
            Mode::Changing => self.against_view_change(now),
        };
        self.suspect(why);
        if why.is_some() {
            self.join_if_wanted(now);
        } else if !self.is_held() && self.waits_in_vain(now) {
            self.join_wanted(now, true);
        }
    }

    /// Watches how the leader serves.
    pub(crate) fn watch_leader(&mut self, now: Now) {
        if !self.is_byzantine() || self.mode != Mode::Started {
            return;
        }
        let proposed = self.slots.range(self.delivered.next()..).any(|(_, state)| {
            state.proposal.as_ref().is_some_and(|proposal| proposal.view == self.view)
        });
        // A leader whose stage is a little slower than this one's has its own full pipeline to wait for.
        let open = proposed || self.executed < self.delivered;
        let behind =
            self.delivered_elsewhere() > self.delivered || !self.voting() || self.is_held();
        let ready = self.may_try_another(now.monotonic_ms);
        let paced = self.timeouts.is_paced();
        let moment = Moment { now_ms: now.monotonic_ms, open, paced, behind, ready };
        let leaders = self.settings.parameters.faults.witnesses() as u32;
        if self.leads() {
            self.demand.lead(moment, leaders);
        } else {
            self.demand.tick(moment, &self.pool, leaders);
        }
    }

    /// What this replica hands to the leader: frames that clients sent here, as far as the leader
    /// keeps room for it; and, where a client waits, its oldest once more.
    pub fn hand_over(&mut self, now: Now) -> Vec<Message> {
        if self.leads() || self.mode != Mode::Started || !self.pool.wants_hand() {
            return Vec::new();
        }
        let ms = now.monotonic_ms;
        let mut messages = Vec::new();
        if self.is_byzantine() {
            let held = |key: FrameKey| self.pool.get(key).cloned();
            let overdue = self.demand.passed_over(ms);
            messages.extend(overdue.into_iter().filter_map(held).map(Message::Overdue));
            let again = self.demand.again(ms);
            messages.extend(again.into_iter().filter_map(held).map(Message::Frame));
        }
        for frame in self.pool.hand_over(ms) {
            if self.is_byzantine() {
                self.demand.handed((frame.session, frame.first_number), ms);
            }
            messages.push(Message::Frame(frame));
        }
        messages
    }

    /// The leader of `view` proposed frames that no client signed: no more is needed to give the
    /// view up.
    pub fn on_forged_proposal(&mut self, view: View) {
        if view == self.view && self.mode == Mode::Started {
            self.forged = Some(view);
        }
    }

    /// This replica did what no correct one does.
    pub fn on_exposed(&mut self, replica: ReplicaId) {
        if replica == self.leader() && self.mode == Mode::Started {
            let view = self.view;
            self.trust[replica.index()].exposed_in(view);
        }
    }

    /// Whether a frame that came again is to be handed to the leader again, the last time being
    /// `pause_ms` ago.
    pub fn hand_again(&mut self, now: Now, frame: &Frame, pause_ms: u64) -> bool {
        let key = (frame.session, frame.first_number);
        !self.leads() && self.pool.hand_again(key, now.monotonic_ms, pause_ms)
    }

    /// The leader may have lost what this replica handed to it.
    pub(crate) fn hand_all_again(&mut self, now: Now) {
        if !self.leads() {
            self.demand.forget(now.monotonic_ms);
            self.pool.release_taken();
        }
    }

    /// Whether agreement can go on no further until this replica has executed: its stage has a whole pipeline to execute. That is no leader's
    /// fault: such time does not count against one, and all other time does, so that nobody is excused by holding a replica for a moment.
    pub fn on_execution_held(&mut self, now: Now, held: bool) {
        let ms = now.monotonic_ms;
        match (self.held_since_ms, held) {
            (None, true) => self.held_since_ms = Some(ms),
            (Some(since), false) => {
                self.held_since_ms = None;
                let held = if seeded!(MomentExcuses) { ms } else { ms.saturating_sub(since) };
                let later = |at: u64| (at + held).min(ms);
                self.progress_ms = later(self.progress_ms);
                self.served_ms = later(self.served_ms);
                self.changing_since_ms = later(self.changing_since_ms);
                self.quorum_asked_ms = self.quorum_asked_ms.map(later);
            }
            _ => {}
        }
    }

    /// Whether agreement waits for this replica's own execution.
    pub(crate) fn is_held(&self) -> bool {
        self.held_since_ms.is_some()
    }

    /// This replica itself could not have started a view by now.
    fn excuse_view_change(&mut self, now: Now) {
        self.changing_since_ms = now.monotonic_ms;
        self.quorum_asked_ms = self.quorum_asked_ms.map(|_| now.monotonic_ms);
    }

    pub(crate) fn current_configuration(&self) -> u64 {
        self.configurations.at(self.executed.next()).id
    }

    pub(crate) fn note_followed(&mut self, now_ms: u64) {
        let (view, works) = (self.view, self.mode == Mode::Started);
        for peer in &mut self.peers {
            if works && peer.connected && peer.changing && peer.view > view {
                peer.left_ms.get_or_insert(now_ms);
            } else {
                peer.end_leave(now_ms);
            }
        }
    }

    pub(crate) fn on_suspect(&mut self, now: Now, from: ReplicaId, view: View) {
        let leader = self.leader();
        let current = self.view;
        let peer = &mut self.peers[from.index()];
        peer.wanted = peer.wanted.max(view);
        if from == leader && view > current {
            self.abdicated = Some(current);
        }
        self.join_if_wanted(now);
    }

    fn wanted_by_others(&self) -> Vec<View> {
        let me = self.settings.me.index();
        let mut wanted: Vec<View> = self
            .peers
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != me)
            .map(|(_, peer)| peer.wanted)
            .collect();
        wanted.sort_unstable_by(|a, b| b.cmp(a));
        wanted
    }

    pub(crate) fn join_if_wanted(&mut self, now: Now) {
        self.join_wanted(now, self.suspecting.is_some());
    }

    fn join_wanted(&mut self, now: Now, suspecting: bool) {
        if !self.voting() {
            return;
        }
        let faults = self.settings.parameters.faults;
        let wanted = self.wanted_by_others();
        let enough = if seeded!(JoinedOnOneVoice) { 1 } else { faults.view_join() };
        let strong = wanted.get(enough - 1).copied().unwrap_or_default();
        let weak = wanted.get(faults.view_join_suspecting() - 1).copied().unwrap_or_default();
        if strong > self.view {
            self.join(now, strong);
        } else if suspecting && weak > self.view {
            self.join(now, weak);
        }
    }

    /// Asked for this view alone. The others may have started it already, by a NewView of a
    /// configuration that is over here: then they send no change any more, and only the next view
    /// helps. It takes one of them that wants it.
    fn waits_in_vain(&self, now: Now) -> bool {
        let waited = now.monotonic_ms > self.changing_since_ms + self.timeouts.repeat_ms();
        self.mode == Mode::Changing && self.quorum_asked_ms.is_none() && waited
    }

    /// Gives up the current view and asks for `view`.
    fn join(&mut self, now: Now, view: View) {
        self.leave_for(now, view);
        self.mode = Mode::Changing;
        self.new_view = None;
        self.timeouts.view_failed();
        let change = self.make_view_change();
        let message = Message::ViewChange(Box::new(change.clone()));
        self.hold(self.view_sequence, AwaitingFlush::Broadcast(message));
        self.changes
            .insert(self.settings.me, SignedViewChange { change: change.clone(), proven: true });
        self.own_change = Some(change);
        self.changes_sent_ms = now.monotonic_ms;
        self.note_quorum(now);
        self.try_new_view(now);
    }

    fn leave_for(&mut self, now: Now, view: View) {
        assert!(view > self.view, "views only grow");
        self.peers.iter_mut().for_each(|peer| peer.end_leave(now.monotonic_ms));
        self.view = view;
        self.view_sequence = self.persist(Record::View(view));
        self.restarted_in = None;
        self.suspecting = None;
        self.abdicated = None;
        self.quorum_asked_ms = None;
        self.changing_since_ms = now.monotonic_ms;
        self.fetched.clear();
        self.hear_leader(now);
        self.pool.release_taken();
    }

    fn hear_leader(&mut self, now: Now) {
        self.leader_heard_ms = now.monotonic_ms;
        let leader = self.leader();
        let connected = leader == self.settings.me || self.peers[leader.index()].connected;
        self.leader_lost_ms = (!connected).then_some(now.monotonic_ms);
    }

    fn make_view_change(&self) -> ViewChange {
        self.assert_window();
        let configuration = self.configurations.at(self.executed.next());
        let locks = self
            .slots
            .range(self.prefix.slot.next()..)
            .filter_map(|(slot, state)| state.locked.as_ref().map(|locked| locked.evidence(*slot)))
            .collect();
        let mut change = ViewChange {
            view: self.view,
            sender: self.settings.me,
            configuration: configuration.id,
            prefix: self.prefix.clone(),
            locks,
            signature: Signature::NONE,
        };
        change.signature =
            self.sign_now(StatementKind::ViewChange, self.view, change.body_digest());
        change
    }

    /// Signs in the current configuration, about a view.
    fn sign_now(&self, kind: StatementKind, view: View, digest: Digest) -> Signature {
        let configuration = self.configurations.at(self.executed.next());
        let context = configuration.context(self.configurations.cluster());
        self.settings.key.sign(&context.statement(kind, view, Slot(0), digest))
    }

    pub(crate) fn on_view_change(&mut self, now: Now, from: ReplicaId, change: ViewChange) {
        if change.sender != from {
            self.misbehaved(from, Misbehaviour::OutOfRole);
            return;
        }
        let known = self.changes.get(&from).is_some_and(|held| held.change.view >= change.view);
        if known || change.view < self.view {
            return;
        }
        if !self.trust[from.index()].view_change(now.monotonic_ms) {
            return;
        }
        // For whoever follows that is all: its locks matter to who starts the view.
        match self
            .judge(|_, verifier| verifier.formed(&change).and_then(|()| verifier.signed(&change)))
        {
            Ok(()) => {}
            Err(Invalid::OtherConfiguration) => return,
            Err(_) => {
                self.misbehaved(from, Misbehaviour::BadEvidence);
                return;
            }
        }
        let view = change.view;
        self.changes.insert(from, SignedViewChange { change, proven: false });
        let peer = &mut self.peers[from.index()];
        peer.wanted = peer.wanted.max(view);
        self.join_if_wanted(now);
        self.note_quorum(now);
        self.try_new_view(now);
    }

    /// The clock of a view change runs from the moment a quorum asks for the view. Who restarted
    /// in it asks no more (it may have voted there), but its Status says where it waits; without
    /// counting it, those who did ask would wait for it for ever.
    pub(crate) fn note_quorum(&mut self, now: Now) {
        if self.mode != Mode::Changing || self.quorum_asked_ms.is_some() {
            return;
        }
        let current = self.current_configuration();
        let asks = |index: usize, peer: &PeerStatus| {
            let waits = peer.view > self.view || (peer.view == self.view && peer.changing);
            let asked = self.changes.get(&ReplicaId(index as u8)).is_some_and(|heard| {
                heard.change.view >= self.view && heard.change.configuration == current
            });
            index == self.settings.me.index() || waits || asked
        };
        let asking = self.peers.iter().enumerate().filter(|(index, peer)| asks(*index, peer));
        if asking.count() >= self.quorum() {
            self.quorum_asked_ms = Some(now.monotonic_ms);
        }
    }

    fn holds_batch(&self, slot: Slot, digest: Digest) -> bool {
        digest == Batch::null().digest() || self.held_batch(slot, digest).is_some()
    }

    /// As leader of the view asked for: starts it when a quorum of view changes is there whose
    /// batches are all in hand. A view change whose sender withholds a batch is left out, so that
    /// a liar cannot hold the view up with a lock that nobody can fill.
    pub(crate) fn try_new_view(&mut self, now: Now) {
        if !self.leads() || self.mode != Mode::Changing || self.own_change.is_none() {
            return;
        }
        self.prove_changes(now);
        let mut usable: BTreeSet<ReplicaId> = self
            .proven_changes()
            // What the view rests on can be sent to whoever lacks it: by this replica.
            .filter(|change| change.prefix.slot <= self.executed)
            .map(|change| change.sender)
            .collect();
        let mut wanted: BTreeSet<(Slot, Digest)> = BTreeSet::new();
        while usable.len() >= self.quorum() {
            let start = Start::choose(
                usable.iter().filter_map(|id| self.changes.get(id)).map(|heard| &heard.change),
            );
            let missing: BTreeSet<(Slot, Digest)> = start
                .choices
                .iter()
                .filter(|(slot, digest)| !self.holds_batch(**slot, **digest))
                .map(|(slot, digest)| (*slot, *digest))
                .collect();
            if missing.is_empty() {
                self.start_view(now, &usable);
                return;
            }
            usable.retain(|id| {
                let locks = self.changes.get(id).into_iter().flat_map(|heard| &heard.change.locks);
                !locks.into_iter().any(|lock| missing.contains(&(lock.slot, lock.digest)))
            });
            wanted.extend(missing);
        }
        self.marks.batches_asked_for += u64::from(!wanted.is_empty());
        self.ask_for_batches(&wanted);
    }

    /// View changes for the current view that hold in all.
    fn proven_changes(&self) -> impl Iterator<Item = &ViewChange> {
        let current = self.current_configuration();
        let proven = self.changes.values().filter(|heard| heard.proven).map(|heard| &heard.change);
        proven.filter(move |one| one.view == self.view && one.configuration == current)
    }

    /// Verifies what a view could start from once a quorum has asked for it; so a replica has its
    /// locks verified once for each view that others want too, however many it asks for.
    fn prove_changes(&mut self, now: Now) {
        let current = self.current_configuration();
        let asked: Vec<ReplicaId> = self
            .changes
            .iter()
            .filter(|(_, SignedViewChange { change, .. })| {
                change.view == self.view && change.configuration == current
            })
            .map(|(id, _)| *id)
            .collect();
        if asked.len() < self.quorum() {
            return;
        }
        for id in asked {
            let open = self.changes.get(&id).filter(|heard| !heard.proven).cloned();
            let Some(SignedViewChange { change, .. }) = open else { continue };
            let verdict = self.judge(|_, verifier| {
                verifier.formed(&change).and_then(|()| verifier.proven(&change))
            });
            match verdict {
                Ok(()) => {
                    let prefix = change.prefix.clone();
                    self.changes.insert(id, SignedViewChange { change, proven: true });
                    self.learn_prefix(now, prefix);
                }
                Err(why) => {
                    self.changes.remove(&id);
                    if why != Invalid::OtherConfiguration {
                        self.misbehaved(id, Misbehaviour::BadEvidence);
                    }
                }
            }
        }
    }

    fn ask_for_batches(&mut self, wanted: &BTreeSet<(Slot, Digest)>) {
        let me = self.settings.me;
        let mut asked = Vec::new();
        for change in self.proven_changes().filter(|change| change.sender != me) {
            let locks = change.locks.iter().map(|lock| (lock.slot, lock.digest));
            asked.extend(locks.filter(|at| wanted.contains(at)).map(|at| (change.sender, at)));
        }
        for (to, (slot, digest)) in asked {
            let message = Message::FetchBatch { slot, digest };
            self.effects.push_back(Effect::Send { to, message });
        }
    }

    pub(crate) fn on_fetch_batch(&mut self, from: ReplicaId, slot: Slot, digest: Digest) {
        let Some(batch) = self.held_batch(slot, digest).cloned() else { return };
        let message = Message::LockedBatch { slot, batch };
        self.effects.push_back(Effect::Send { to: from, message });
    }

    pub(crate) fn on_locked_batch(&mut self, now: Now, slot: Slot, batch: Batch) {
        let digest = batch.digest();
        let asked = self.proven_changes().any(|change| {
            change.locks.iter().any(|lock| lock.slot == slot && lock.digest == digest)
        });
        if self.leads() && self.mode == Mode::Changing && asked {
            self.fetched.insert(digest, batch);
            self.try_new_view(now);
        } else if self.start.choices.get(&slot) == Some(&digest) {
            self.on_reproposed_batch(now, slot, batch);
        }
    }

    fn start_view(&mut self, now: Now, senders: &BTreeSet<ReplicaId>) {
        let configuration = self.current_configuration();
        let mut new_view = NewView {
            view: self.view,
            sender: self.settings.me,
            configuration,
            changes: senders
                .iter()
                .filter_map(|id| self.changes.get(id))
                .map(|heard| heard.change.clone())
                .collect(),
            signature: Signature::NONE,
        };
        new_view.signature =
            self.sign_now(StatementKind::NewView, self.view, new_view.body_digest());
        self.broadcast_in_view(Message::NewView(Box::new(new_view.clone())));
        self.enter(now, new_view);
    }

    pub(crate) fn on_new_view(&mut self, now: Now, from: ReplicaId, new_view: NewView) {
        let late = new_view.view == self.view && self.mode == Mode::Started;
        if new_view.view < self.view || late || !self.voting() {
            return;
        }
        let verdict = self.judge(|agreement, verifier| {
            verifier.new_view(&new_view, |change| {
                let heard = agreement.changes.get(&change.sender);
                heard.is_some_and(|heard| heard.proven && heard.change == *change)
            })
        });
        match verdict {
            Ok(()) => self.enter(now, new_view),
            Err(Invalid::OtherConfiguration) => {}
            Err(_) => self.misbehaved(from, Misbehaviour::BadEvidence),
        }
    }

    /// The view starts: what is bound in it follows from the view changes, for everybody alike.
    fn enter(&mut self, now: Now, new_view: NewView) {
        if new_view.view > self.view {
            self.leave_for(now, new_view.view);
        }
        self.start = Start::choose(new_view.changes.iter());
        let null = Batch::null().digest();
        let (holes, locks): (Vec<Digest>, Vec<Digest>) =
            self.start.choices.values().partition(|digest| **digest == null);
        self.marks.locks_carried += u64::from(!locks.is_empty());
        self.marks.holes_filled += u64::from(!holes.is_empty());
        self.view_configuration = new_view.configuration;
        self.mode = Mode::Started;
        self.own_change = None;
        self.quorum_asked_ms = None;
        self.suspecting = None;
        self.changing_since_ms = now.monotonic_ms;
        self.progress_ms = now.monotonic_ms;
        self.served_ms = now.monotonic_ms;
        self.hear_leader(now);
        self.pool.restart_clocks(now.monotonic_ms);
        self.demand.restart(now.monotonic_ms);
        let view = self.view;
        self.changes.retain(|_, heard| heard.change.view > view);
        self.new_view = Some(new_view);
        let base = self.start.base.clone();
        self.next_propose = base.slot.next();
        self.learn_prefix(now, base);
        self.effects.push_back(Effect::ViewStarted(view));
        self.prove_open(); // Who can show a decision votes no more on it.
        self.begin_reproposals(now);
        // Accepts of this view may have come before it started here.
        self.advance_open(now);
    }
}
