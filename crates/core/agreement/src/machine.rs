//! The machine itself: its state, what goes in, what comes out, and the one place where speaking
//! waits for the disk.

use crate::demand::Demand;
use crate::evidence::{SignedViewChange, Start, Verifier};
use crate::expected::Expected;
use crate::fetches::Fetches;
use crate::marks::Marks;
use crate::peers::PeerStatus;
use crate::penalty::{Misbehaviour, Trust, is_signed};
use crate::pool::Pool;
use crate::prefix_votes::PrefixVotes;
use crate::proofs::ByLink;
use crate::rules::Standing;
use crate::slot::{SlotState, Vote};
use crate::suspicion::Suspicion;
use crate::{restart::Restart, ticks::Ticks, timeouts::Timeouts, timing};
use perdura_protocol::configuration::{Configuration, Configurations, Parameters};
use perdura_protocol::keys::Scheme;
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::{NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{
    Batch, Certificate, Digest, Record, ReplicaId, SecretKey, Signature, Slot, Time, View, seeded,
};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

/// The two clocks, as arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Never goes back; for time-outs.
    pub monotonic_ms: u64,
    /// The wall clock, for the agreed time; may jump.
    pub wall: Time,
}

/// What the machine is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This replica.
    pub me: ReplicaId,
    /// Its key in the current configuration.
    pub key: SecretKey,
    /// How statements are signed.
    pub scheme: Scheme,
    /// What the cluster agreed on.
    pub parameters: Parameters,
    /// Secret random bytes for batch verification and for jitter.
    pub entropy: [u8; 32],
    /// Slots above its certified prefix on which a replica votes, and above the delivered ones about
    /// which it keeps messages: [`perdura_protocol::limits::WINDOW`], or less in tests, equal for all.
    pub window: u64,
    /// Whether decided batches that it missed are fetched from one replica as long as that does not
    /// fail, and not from all in turns: a baseline for experiments.
    pub one_seeder: bool,
}

/// What the machine wants done, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send to one replica. May be lost.
    Send {
        /// To whom.
        to: ReplicaId,
        /// What.
        message: Message,
    },
    /// Send to all other replicas. May be lost.
    Broadcast(Message),
    /// Append to the log and report when it is durable. The n-th such effect since the start has
    /// sequence number n, from 1.
    Persist(Record),
    /// Append to the log with whatever is appended next; nothing waits for it.
    Note(Record),
    /// Execute this batch. Slots come in order, without gaps, each once. Replies may leave when
    /// `logged_at` is durable.
    Deliver {
        /// The slot.
        slot: Slot,
        /// The batch.
        batch: Batch,
        /// History hash with this slot.
        history: Digest,
        /// The sequence number whose durability makes this batch and all before it logged here
        /// (rule D1).
        logged_at: u64,
    },
    /// r > 0: these Accepts prove what was decided in a slot that was delivered before.
    Proven {
        /// The slot.
        slot: Slot,
        /// The view of the Accepts.
        view: View,
        /// A quorum of them.
        accepts: Certificate,
    },
    /// A prefix is certified up to this slot.
    Certified(PrefixCertificate),
    /// This view has started here.
    ViewStarted(View),
    /// This replica would leave this view.
    Suspects {
        /// The view.
        view: View,
        /// Why, of the reasons that hold the first.
        why: Suspicion,
    },
    /// A peer asks for decided batches from this slot on which this machine holds no more.
    Serve {
        /// To whom.
        to: ReplicaId,
        /// First slot wanted.
        from: Slot,
        /// Last slot wanted.
        last: Slot,
    },
    /// This replica is so far behind that a peer no longer has the batches: fetch its state.
    FetchState {
        /// The peer's stored checkpoint.
        checkpoint: Slot,
    },
    /// A peer did what no correct replica does.
    Misbehaved {
        /// Who.
        replica: ReplicaId,
        /// What.
        what: Misbehaviour,
    },
}

/// Where the replica stands in its view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The view has started.
    Started,
    /// Waiting for the view's NewView.
    Changing,
}

/// What waits for the disk.
#[derive(Clone, Debug)]
pub(crate) enum AwaitingFlush {
    Broadcast(Message),
    Send(ReplicaId, Message),
    OwnAccept(View, Slot, Digest),
}

/// The agreement machine of one replica.
#[derive(Clone, Debug)]
pub struct Agreement {
    pub(crate) settings: Settings,
    pub(crate) configurations: Configurations,
    pub(crate) pool: Pool,
    pub(crate) expected: Expected,
    pub(crate) demand: Demand,
    pub(crate) slots: BTreeMap<Slot, SlotState>,
    pub(crate) held_proposal_bytes: usize,
    // What the own log says was delivered above what it could prove after a restart.
    pub(crate) marked: BTreeMap<Slot, Digest>,

    pub(crate) view: View,
    pub(crate) mode: Mode,
    pub(crate) restarted_in: Option<View>,
    // Votes need a certified prefix up to here: 0, or what a replica without its memory of
    // earlier votes was started with (D8).
    pub(crate) vote_after: Slot,
    // The state from which slots could be executed is to be fetched first.
    pub(crate) awaiting_state: bool,
    // The state that is on its way.
    pub(crate) state_coming: Option<Slot>,
    // Answers that came early and were taken up in this round of input.
    pub(crate) taken_up: u64,
    pub(crate) start: Start,
    // The configuration in which the current view was started; slots of another one wait for a
    // view of theirs, so that a replaced replica's promises bind its successor.
    pub(crate) view_configuration: u64,
    pub(crate) new_view: Option<NewView>,
    // Position in the log of the record that entered the current view.
    pub(crate) view_sequence: u64,

    pub(crate) delivered: Slot,
    pub(crate) history: Digest,
    pub(crate) executed: Slot,
    pub(crate) prefix: PrefixCertificate,
    // A higher one that this replica has yet to deliver. It is no base before that: who would
    // vote above it could wait for batches that nobody is left to send.
    pub(crate) prefixes_ahead: BTreeMap<Slot, PrefixCertificate>,
    pub(crate) prefix_votes: PrefixVotes,
    pub(crate) own_histories: BTreeMap<Slot, Digest>,
    // The sequence number at which everything delivered is logged.
    pub(crate) logged_at: u64,
    // Delivered and not executed: slot, history hash, where it is logged.
    pub(crate) executing: VecDeque<(Slot, Digest, u64)>,

    pub(crate) next_propose: Slot,
    pub(crate) decided_told: Slot,
    // The most commands that lately waited or were in flight at once; fades.
    pub(crate) under_way: usize,

    pub(crate) suspecting: Option<(View, Suspicion)>,
    pub(crate) abdicated: Option<View>,
    // Its leader proposed a frame that no client signed.
    pub(crate) forged: Option<View>,
    // Since when r + 1 peers have given this view up.
    pub(crate) left_ms: Option<u64>,
    pub(crate) timeouts: Timeouts,
    // Whether it waits for what others hold of it.
    pub(crate) comparing: bool,
    pub(crate) changes: BTreeMap<ReplicaId, SignedViewChange>,
    pub(crate) own_change: Option<ViewChange>,
    pub(crate) changes_sent_ms: u64,
    pub(crate) fetched: BTreeMap<Digest, Batch>,
    pub(crate) quorum_asked_ms: Option<u64>,
    pub(crate) changing_since_ms: u64,
    // Up to where the leader was asked for what the view is bound to, and when something of it came last.
    pub(crate) reproposals_asked: Slot,
    pub(crate) reproposals_asked_ms: u64,
    pub(crate) peers: Vec<PeerStatus>,
    pub(crate) trust: Vec<Trust>,
    // Of the latest input.
    pub(crate) clock_ms: u64,
    pub(crate) leader_heard_ms: u64,
    pub(crate) leader_lost_ms: Option<u64>,
    pub(crate) progress_ms: u64,
    // When frames of clients were last delivered.
    pub(crate) served_ms: u64,
    pub(crate) ticks: Ticks,
    pub(crate) status_ms: u64,
    pub(crate) status_delivered: Slot,
    pub(crate) fetches: Fetches,
    pub(crate) by_link: ByLink,
    // Since when what is fetched next to this slot comes without anything that proves it.
    pub(crate) unproven_since: Option<(Slot, u64)>,
    // The view in which the own log fell so far behind that nothing more is delivered until it has
    // caught up.
    pub(crate) lags_since: Option<View>,
    // Since when agreement waits for this replica's own execution.
    pub(crate) held_since_ms: Option<u64>,
    // What a command took to execute lately, microseconds; 0 where nobody measures it.
    pub(crate) command_us: u64,

    pub(crate) appended: u64,
    pub(crate) persisted: u64,
    pub(crate) held: VecDeque<(u64, AwaitingFlush)>,
    pub(crate) marks: Marks,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) entropy_used: u64,
    pub(crate) signatures_verified: u64,
}

impl Agreement {
    /// A machine that starts from what `restart` found, or from nothing.
    #[must_use]
    pub fn new(
        settings: Settings,
        configurations: Configurations,
        restart: Restart,
        now: Now,
    ) -> Agreement {
        let n = settings.parameters.faults.n();
        let restart = restart.within(n, settings.window);
        let (me, depth) = (settings.me, settings.parameters.depth);
        let fetches = Fetches::new(n, me, depth, settings.one_seeder);
        // Where the log does not bring back the prefix under which it voted (`prefix`, 3).
        let locked = restart.slots.iter().rev().find(|(_, state)| state.locked.is_some());
        let window_needs = locked.map_or(0, |(slot, _)| slot.0.saturating_sub(settings.window));
        let fresh = restart.view == View(0) && restart.blank;
        let restarted_at = restart.delivered;
        let mut agreement = Agreement {
            pool: Pool::default(),
            expected: Expected::default(),
            demand: Demand::default(),
            slots: restart.slots,
            held_proposal_bytes: 0,
            marked: restart.marked,
            view: restart.view,
            mode: if restart.view == View(0) { Mode::Started } else { Mode::Changing },
            restarted_in: if fresh { None } else { Some(restart.view) },
            vote_after: restart.vote_after.max(Slot(window_needs)),
            awaiting_state: restart.awaiting_state,
            state_coming: None,
            taken_up: 0,
            start: Start::genesis(),
            view_configuration: 0,
            new_view: None,
            view_sequence: 0,
            delivered: restart.delivered,
            history: restart.history,
            executed: restart.delivered,
            prefix: restart.prefix,
            prefixes_ahead: BTreeMap::new(),
            prefix_votes: PrefixVotes::new(n),
            own_histories: BTreeMap::new(),
            logged_at: 0,
            executing: VecDeque::new(),
            next_propose: restart.delivered.next(),
            decided_told: Slot(0),
            under_way: 0,
            suspecting: None,
            abdicated: None,
            forged: None,
            left_ms: None,
            timeouts: Timeouts::default(),
            comparing: false,
            changes: BTreeMap::new(),
            own_change: None,
            changes_sent_ms: 0,
            fetched: BTreeMap::new(),
            quorum_asked_ms: None,
            changing_since_ms: now.monotonic_ms,
            reproposals_asked: Slot(0),
            reproposals_asked_ms: 0,
            peers: vec![PeerStatus::unknown(now.monotonic_ms); n],
            trust: vec![Trust::default(); n],
            clock_ms: now.monotonic_ms,
            leader_heard_ms: now.monotonic_ms,
            leader_lost_ms: None,
            progress_ms: now.monotonic_ms,
            served_ms: now.monotonic_ms,
            ticks: Ticks::default(),
            status_ms: 0,
            status_delivered: restart.delivered,
            fetches,
            by_link: ByLink::default(),
            unproven_since: None,
            lags_since: None,
            held_since_ms: None,
            command_us: 0,
            appended: 0,
            persisted: 0,
            held: VecDeque::new(),
            marks: Marks::default(),
            effects: VecDeque::new(),
            entropy_used: 0,
            signatures_verified: 0,
            settings,
            configurations,
        };
        if fresh {
            // From here on a restart knows that it is one.
            agreement.view_sequence = agreement.persist(Record::View(View(0)));
        }
        agreement.deliver_decided(now);
        agreement.note_configuration();
        agreement.forget_shown(restarted_at);
        agreement
    }

    /// Takes a message from the replica that the link proved.
    pub fn on_message(&mut self, now: Now, from: ReplicaId, message: Message) {
        if from == self.settings.me || from.index() >= self.n() {
            return;
        }
        self.clock_ms = now.monotonic_ms;
        if from == self.leader() {
            self.leader_heard_ms = now.monotonic_ms;
        }
        // Whose signatures were not genuine has no others verified for a while.
        if is_signed(&message) && self.trust[from.index()].penalty.holds(now.monotonic_ms) {
            return;
        }
        // Without a state this replica knows no configuration but its own, and so cannot judge what
        // was signed in earlier ones. What comes after the state that is on its way is judged later.
        let unjudged = match message {
            Message::Status { .. } => true,
            Message::Decisions { .. } | Message::TooOld { .. } => self.state_coming.is_some(),
            _ => false,
        };
        if self.awaiting_state && !unjudged {
            return;
        }
        match message {
            Message::Propose { view, slot, batch, decided, history } => {
                self.on_propose(now, from, view, slot, batch);
                self.on_decided(now, from, view, decided, history);
            }
            Message::Write { view, slot, digest, signature } => {
                let vote = Vote { view, digest, signature, verified: false };
                self.on_vote(now, from, StatementKind::Write, slot, vote);
            }
            Message::Accept { view, slot, digest, signature } => {
                let vote = Vote { view, digest, signature, verified: false };
                self.on_vote(now, from, StatementKind::Accept, slot, vote);
            }
            Message::Decided { view, slot, history } => {
                self.on_decided(now, from, view, slot, history);
            }
            Message::Prefix { slot, history, signature } => {
                self.on_prefix(now, from, slot, history, signature);
            }
            Message::Status { view, changing, delivered } => {
                self.on_status(now, from, view, changing, delivered);
            }
            Message::Suspect { view } => self.on_suspect(now, from, view),
            Message::ViewChange(change) => self.on_view_change(now, from, *change),
            Message::NewView(new_view) => self.on_new_view(now, from, *new_view),
            Message::FetchBatch { slot, digest } => self.on_fetch_batch(from, slot, digest),
            Message::LockedBatch { slot, batch } => self.on_locked_batch(now, slot, batch),
            Message::Fetch { from: first, to: last } => self.on_fetch(from, first, last),
            Message::Decisions { decisions, prefix, between } => {
                self.on_decisions(now, from, decisions, prefix, between);
            }
            Message::TooOld { checkpoint } => self.on_too_old(now, from, checkpoint),
            _ => self.misbehaved(from, Misbehaviour::OutOfRole),
        }
    }

    /// The log is durable up to and including the `sequence`-th [`Effect::Persist`].
    pub fn on_persisted(&mut self, now: Now, sequence: u64) {
        self.persisted = self.persisted.max(sequence);
        while self.held.front().is_some_and(|(needed, _)| *needed <= self.persisted) {
            match self.held.pop_front() {
                Some((_, AwaitingFlush::Broadcast(message))) => {
                    self.effects.push_back(Effect::Broadcast(message));
                }
                Some((_, AwaitingFlush::Send(to, message))) => {
                    self.effects.push_back(Effect::Send { to, message });
                }
                Some((_, AwaitingFlush::OwnAccept(view, slot, digest))) => {
                    self.speak_accept(now, view, slot, digest);
                }
                None => return,
            }
        }
    }

    /// The batch of `slot` was executed; with it may have come a new configuration. At a
    /// `boundary` the state is checkpointed, and the prefix is signed so that who takes that state over
    /// can vote from there; elsewhere it is signed at regular intervals.
    pub fn on_executed(
        &mut self,
        now: Now,
        slot: Slot,
        configuration: Option<Configuration>,
        boundary: bool,
    ) {
        assert!(slot == self.executed.next() && slot <= self.delivered, "executed out of order");
        self.executed = slot;
        if let Some(configuration) = configuration {
            self.effects.push_back(Effect::Note(Record::Configuration(configuration.clone())));
            self.configurations.add(configuration);
            self.note_configuration();
        }
        if let Some((delivered, history, logged_at)) = self.executing.pop_front() {
            assert!(delivered == slot, "executed what was not delivered");
            if boundary || slot.0.is_multiple_of(self.prefix_interval()) {
                self.sign_prefix(now, slot, history, logged_at);
            }
        }
        if let Some(old) = slot.0.checked_sub(self.settings.parameters.depth) {
            self.forget_fetched(Slot(old));
        }
        if self.leads() && self.mode == Mode::Changing {
            self.try_new_view(now); // It may have waited for this replica to catch up.
        }
        self.advance_reached(now);
        self.take_up_early(now);
    }

    /// A link to a replica came up or went down.
    pub fn on_link(&mut self, now: Now, replica: ReplicaId, up: bool) {
        let leader = self.leader();
        let Some(peer) = self.peers.get_mut(replica.index()) else { return };
        let was = std::mem::replace(&mut peer.connected, up);
        if !up {
            self.fetches.on_link_down(now.monotonic_ms, replica);
        }
        if replica == leader {
            self.leader_lost_ms = match (was, up) {
                (_, true) => None,
                (true, false) => Some(now.monotonic_ms),
                (false, false) => self.leader_lost_ms,
            };
            if up {
                self.hand_all_again(now);
            }
        }
        if up {
            // Whatever was in flight is lost: tell at once where we are.
            let message = self.status();
            self.effects.push_back(Effect::Send { to: replica, message });
        }
    }

    /// What was in flight between a replica and this one of questions for decided batches, and of
    /// answers, is lost; the link itself is not.
    pub fn on_transfer_lost(&mut self, now: Now, replica: ReplicaId) {
        self.clock_ms = now.monotonic_ms;
        if replica.index() < self.n() && self.fetches.on_lost(now.monotonic_ms, replica) {
            self.fetch_more(now);
        }
    }

    /// Time passes; called every [`timing::TICK_MS`] or so.
    pub fn on_tick(&mut self, now: Now) {
        self.check_leader(now);
        self.watch_fetches(now);
        if now.monotonic_ms >= self.status_ms + timing::STATUS_MS {
            self.status_ms = now.monotonic_ms;
            self.broadcast_status(now);
        }
    }

    /// What has to be done, oldest first.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The current view.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// Whether the view has started.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The leader of the current view.
    #[must_use]
    pub fn leader(&self) -> ReplicaId {
        self.view.leader(self.n())
    }

    /// Whether this replica leads the current view.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader() == self.settings.me
    }

    /// The last delivered slot.
    #[must_use]
    pub fn delivered(&self) -> Slot {
        self.delivered
    }

    /// The certified prefix.
    #[must_use]
    pub fn prefix(&self) -> &PrefixCertificate {
        &self.prefix
    }

    /// The highest slot for which this replica sent an Accept (rule C2).
    #[must_use]
    pub fn highest_accepted(&self) -> Slot {
        let accepted = self.slots.iter().rev().find(|(_, state)| state.locked.is_some());
        accepted.map_or(self.delivered, |(slot, _)| (*slot).max(self.delivered))
    }

    /// The known configurations.
    #[must_use]
    pub fn configurations(&self) -> &Configurations {
        &self.configurations
    }

    /// The decision about a slot, while it is held here.
    #[must_use]
    pub fn decision(&self, slot: Slot) -> Option<Decision> {
        if slot > self.delivered {
            return None;
        }
        let decided = self.slots.get(&slot)?.decided.as_ref()?;
        Some(Decision {
            slot,
            view: decided.view,
            accepts: decided.accepts.clone(),
            batch: decided.batch.clone(),
        })
    }

    /// Signatures of replicas that were verified so far.
    #[must_use]
    pub fn signatures_verified(&self) -> u64 {
        self.signatures_verified
    }

    /// Rare branches taken so far.
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.marks
    }

    pub(crate) fn n(&self) -> usize {
        self.settings.parameters.faults.n()
    }

    pub(crate) fn quorum(&self) -> usize {
        self.settings.parameters.faults.agreement_quorum()
    }

    pub(crate) fn is_byzantine(&self) -> bool {
        self.settings.parameters.faults.is_byzantine()
    }

    /// The highest slot that may be agreed on: its configuration is known, because whatever could
    /// change it was executed.
    pub(crate) fn reach(&self) -> Slot {
        let depth = self.settings.parameters.depth * (1 + u64::from(seeded!(PipelineUnbounded)));
        self.executed.plus(depth)
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing {
            me: self.settings.me,
            view: self.view,
            started: self.mode == Mode::Started,
            view_configuration: self.view_configuration,
            prefix: self.prefix.slot.max(self.start.base.slot),
            reach: self.reach(),
            window: self.vote_window(),
            restarted_in: self.restarted_in,
            voting: self.voting(),
            lags_since: self.lags_since,
        }
    }

    pub(crate) fn slot_mut(&mut self, now: Now, slot: Slot) -> &mut SlotState {
        let n = self.n();
        self.slots.entry(slot).or_insert_with(|| SlotState::new(n, now.monotonic_ms))
    }

    /// Appends a record; returns the sequence number to wait for.
    pub(crate) fn persist(&mut self, record: Record) -> u64 {
        self.appended += 1;
        self.effects.push_back(Effect::Persist(record));
        self.appended
    }

    /// Holds something back until the log is durable up to `sequence`.
    pub(crate) fn hold(&mut self, sequence: u64, held: AwaitingFlush) {
        // Sequence numbers come in order but for messages bound to the view's own record.
        let place = self.held.partition_point(|(needed, _)| *needed <= sequence);
        self.held.insert(place, (sequence, held));
    }

    /// Broadcasts now, or as soon as the current view is on disk.
    pub(crate) fn broadcast_in_view(&mut self, message: Message) {
        if self.persisted >= self.view_sequence || seeded!(ViewBeforePersist) {
            self.effects.push_back(Effect::Broadcast(message));
        } else {
            self.hold(self.view_sequence, AwaitingFlush::Broadcast(message));
        }
    }

    /// Sends now, or as soon as the current view is on disk.
    pub(crate) fn send_in_view(&mut self, to: ReplicaId, message: Message) {
        if self.persisted >= self.view_sequence || seeded!(ViewBeforePersist) {
            self.effects.push_back(Effect::Send { to, message });
        } else {
            self.hold(self.view_sequence, AwaitingFlush::Send(to, message));
        }
    }

    /// Fresh bytes that no peer can foresee.
    pub(crate) fn entropy(&mut self) -> [u8; 32] {
        self.entropy_used += 1;
        let mut input = [0u8; 40];
        input[..32].copy_from_slice(&self.settings.entropy);
        input[32..].copy_from_slice(&self.entropy_used.to_le_bytes());
        Digest::of(&input).0
    }

    fn verifier(&self, entropy: [u8; 32]) -> Verifier<'_> {
        Verifier {
            faults: self.settings.parameters.faults,
            scheme: self.settings.scheme,
            configurations: &self.configurations,
            current: self.configurations.at(self.executed.next()).id,
            entropy,
            window: self.settings.window,
            verified: Cell::new(0),
        }
    }

    /// Has something verified.
    pub(crate) fn judge<T>(&mut self, judgement: impl FnOnce(&Agreement, &Verifier<'_>) -> T) -> T {
        let entropy = self.entropy();
        let verifier = self.verifier(entropy);
        let result = judgement(self, &verifier);
        let verified = verifier.verified.get();
        self.signatures_verified += verified;
        result
    }

    /// Signs a statement about `slot` in the configuration that governs it.
    pub(crate) fn sign(
        &self,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Signature {
        let context = self.configurations.context_at(slot);
        self.settings.key.sign(&context.statement(kind, view, slot, digest))
    }
}
