//! Which states of a machine are one and the same to a model checker, as bytes to compare.
//!
//! Nothing but the crate `model` uses this. Every field is named, without `..`, so that a new one
//! does not compile until somebody says here whether it counts.
//!
//! *Whole* form: everything but times (each input of the checker comes an hour after the one before,
//! so that pauses and penalties are over; it ticks only until a replica asks for decisions), the
//! counter of batch verifications, and sums of other fields. Sequence numbers count from what is
//! durable.
//!
//! *Live* form: of that, only what a later message, completion or restart can still read. Left out
//! are
//! 1. who signed a certificate: readers ask only whether it is valid, and none is held unverified but
//!    in view changes of which only the sender's signature was looked at;
//! 2. Writes of views before the current one, and those of the current one once it is locked, as
//!    only `try_lock` reads Writes, for the current view, until then;
//! 3. Accepts once the slot is decided, and was not so by link alone, as only `try_decide` and `proofs`
//!    read them (repetitions apart, and a repeated message is one that was sent before);
//! 4. the own Write of an earlier view (rule 5 asks about the current one);
//! 5. what a follower keeps of view changes, as only the leader of the view starts it, and what a
//!    leader started its view from, once it has;
//! 6. a view's start while the next one is asked for, and a proposer's cursor in who does not lead,
//!    as entering a view sets both;
//! 7. what ticks read: peers' Status, suspicion, Fetches under way.
//!
//! *Stalled* form: live form of a machine whose disk reports nothing any more. Left out as well is
//! what waits for it, as it waits for ever.

use crate::evidence::{SignedViewChange, Start};
use crate::machine::{Agreement, AwaitingFlush, Mode};
use crate::slot::{SlotState, Vote, Votes};
use perdura_protocol::codec::encode_count;
use perdura_protocol::message::Message;
use perdura_protocol::viewchange::{NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{Certificate, Digest, Encode, Record, ReplicaId, Slot, View};

/// How much of a state counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// All but times.
    Whole,
    /// What can still be read.
    Live,
    /// What can still be read where nothing becomes durable any more.
    Stalled,
}

struct Writer {
    form: Form,
    out: Vec<u8>,
}

impl Writer {
    fn new(form: Form) -> Writer {
        Writer { form, out: Vec::with_capacity(512) }
    }

    fn put(&mut self, value: &impl Encode) {
        value.encode(&mut self.out);
    }

    fn count(&mut self, count: usize) {
        encode_count(count, &mut self.out);
    }

    fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Writer, T)) {
        self.out.push(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn certificate(&mut self, certificate: &Certificate) {
        match self.form {
            Form::Whole => self.put(certificate),
            Form::Live | Form::Stalled => self.out.push(u8::from(!certificate.is_empty())),
        }
    }

    fn prefix(&mut self, prefix: &PrefixCertificate) {
        self.put(&prefix.slot);
        self.put(&prefix.history);
        self.put(&prefix.configuration);
        self.certificate(&prefix.certificate);
    }

    fn view_change(&mut self, change: &ViewChange) {
        let ViewChange { view, sender, configuration, prefix, locks, signature: _ } = change;
        self.put(view);
        self.put(sender);
        self.put(configuration);
        self.prefix(prefix);
        self.count(locks.len());
        for lock in locks {
            self.put(&lock.slot);
            self.put(&lock.view);
            self.put(&lock.digest);
            self.certificate(&lock.writes);
        }
    }

    fn start(&mut self, start: &Start) {
        self.prefix(&start.base);
        self.count(start.choices.len());
        for (slot, digest) in &start.choices {
            self.put(slot);
            self.put(digest);
        }
    }

    fn new_view(&mut self, new_view: &NewView) {
        let NewView { view, sender, configuration, changes, signature: _ } = new_view;
        self.put(view);
        self.put(sender);
        self.put(configuration);
        match self.form {
            // All that a receiver takes from it.
            Form::Live | Form::Stalled => self.start(&Start::choose(changes.iter())),
            Form::Whole => {
                self.count(changes.len());
                changes.iter().for_each(|change| self.view_change(change));
            }
        }
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::ViewChange(change) => {
                self.out.push(9);
                self.view_change(change);
            }
            Message::NewView(new_view) => {
                self.out.push(10);
                self.new_view(new_view);
            }
            Message::Decisions { decisions, prefix, between } => {
                self.out.push(14);
                self.count(between.len());
                between.iter().for_each(|digest| self.put(digest));
                self.count(decisions.len());
                for decision in decisions {
                    self.put(&decision.slot);
                    self.put(&decision.view);
                    self.certificate(&decision.accepts);
                    self.put(&decision.batch.digest());
                }
                self.optional(prefix.as_ref(), Writer::prefix);
            }
            _ => self.put(message),
        }
    }

    fn vote(&mut self, vote: &Vote) {
        self.put(&vote.view);
        self.put(&vote.digest);
        self.out.push(u8::from(vote.verified));
    }

    fn votes(&mut self, votes: &Votes, n: usize, live: impl Fn(&Vote) -> bool) {
        for id in 0..n {
            let vote = votes.of(ReplicaId(id as u8)).filter(|vote| live(vote));
            self.optional(vote, Writer::vote);
        }
    }
}

/// The form of a message that its receivers cannot tell from others of the same form. It is for
/// valid messages only: certificates with too few signatures look like whole ones.
#[must_use]
pub fn message(form: Form, message: &Message) -> Vec<u8> {
    let mut writer = Writer::new(form);
    writer.message(message);
    writer.out
}

/// The same for log records.
#[must_use]
pub fn record(form: Form, record: &Record) -> Vec<u8> {
    let mut writer = Writer::new(form);
    match record {
        Record::Vote { view, slot, batch, writes } => {
            writer.out.push(2);
            writer.put(view);
            writer.put(slot);
            writer.put(&batch.digest());
            writer.certificate(writes);
        }
        Record::Decision { slot, view, batch, accepts } => {
            writer.out.push(3);
            writer.put(slot);
            writer.put(view);
            writer.put(&batch.digest());
            writer.certificate(accepts);
        }
        Record::Accepts { slot, view, digest, accepts } => {
            writer.out.push(4);
            writer.put(slot);
            writer.put(view);
            writer.put(digest);
            writer.certificate(accepts);
        }
        Record::Prefix(prefix) => {
            writer.out.push(6);
            writer.prefix(prefix);
        }
        Record::View(_)
        | Record::Delivered { .. }
        | Record::Configuration(_)
        | Record::State(_)
        | Record::Boot { .. }
        | Record::Heard { .. } => writer.put(record),
    }
    writer.out
}

impl Agreement {
    /// The machine's state in this form.
    ///
    /// # Panics
    /// While effects wait to be carried out: that is the middle of a step.
    #[must_use]
    pub fn canonical(&self, form: Form) -> Vec<u8> {
        let mut writer = Writer::new(form);
        self.put_progress(&mut writer);
        self.put_view_change(&mut writer);
        self.put_fixed_and_timed(&mut writer);
        writer.out
    }

    /// What became of a slot here: the view and batch of this replica's lock, and what is decided.
    #[must_use]
    pub fn landmarks(&self, slot: Slot) -> (Option<(View, Digest)>, Option<Digest>) {
        let state = self.slots.get(&slot);
        let locked = state.and_then(|state| state.locked.as_ref());
        let decided = state.and_then(|state| state.decided.as_ref());
        (
            locked.map(|locked| (locked.view, locked.batch.digest())),
            decided.map(|decided| decided.batch.digest()),
        )
    }

    /// Sequence numbers count from what is durable.
    fn open_sequence(&self, form: Form, sequence: u64) -> u64 {
        let open = sequence.saturating_sub(self.persisted);
        if form == Form::Stalled { open.min(1) } else { open }
    }

    fn put_progress(&self, writer: &mut Writer) {
        let Agreement { pool, slots, delivered, history, executed, executing, .. } = self;
        let Agreement { prefix, prefixes_ahead, prefix_votes, own_histories, .. } = self;
        let Agreement { next_propose, decided_told, logged_at, fetched, .. } = self;
        writer.put(delivered);
        writer.put(history);
        writer.put(executed);
        assert!(executing.is_empty(), "the checker executes at once");
        writer.put(&self.open_sequence(writer.form, *logged_at));
        writer.prefix(prefix);
        writer.count(prefixes_ahead.len());
        prefixes_ahead.values().for_each(|prefix| writer.prefix(prefix));
        for votes in prefix_votes.all() {
            // Their order is that in which they make room, which takes more of them than are checked.
            let votes: std::collections::BTreeMap<Slot, _> =
                votes.iter().map(|vote| (vote.slot, vote)).collect();
            writer.count(votes.len());
            for (slot, vote) in votes {
                writer.put(&slot);
                writer.put(&vote.history);
                writer.put(&vote.signature);
            }
        }
        writer.count(own_histories.len());
        for (slot, history) in own_histories {
            writer.put(slot);
            writer.put(history);
        }
        writer.count(slots.len());
        for (slot, state) in slots {
            writer.put(slot);
            self.put_slot(writer, *slot, state);
        }
        self.by_link.encode(&mut writer.out);
        let proposes = self.leads() && self.mode == Mode::Started;
        if proposes || writer.form == Form::Whole {
            writer.put(next_propose);
        }
        writer.put(decided_told);
        writer.count(fetched.len());
        fetched.keys().for_each(|digest| writer.put(digest));
        let frames: Vec<_> = pool.frames().collect();
        writer.count(frames.len());
        frames.iter().for_each(|frame| writer.put(&frame.body_digest()));
        writer.count(pool.waiting_bytes());
        if writer.form != Form::Stalled {
            self.put_held(writer);
        }
    }

    fn put_held(&self, writer: &mut Writer) {
        let held = &self.held;
        writer.count(held.len());
        for (sequence, held) in held {
            writer.put(&self.open_sequence(writer.form, *sequence));
            match held {
                AwaitingFlush::Broadcast(message) => {
                    writer.out.push(1);
                    writer.message(message);
                }
                AwaitingFlush::Send(to, message) => {
                    writer.out.push(2);
                    writer.put(to);
                    writer.message(message);
                }
                AwaitingFlush::OwnAccept(view, slot, digest) => {
                    writer.out.push(3);
                    writer.put(view);
                    writer.put(slot);
                    writer.put(digest);
                }
            }
        }
    }

    fn put_slot(&self, writer: &mut Writer, slot: Slot, state: &SlotState) {
        let SlotState { proposal, written, writes, accepts, locked, decided, since_ms: _ } = state;
        let whole = writer.form == Form::Whole;
        let current = self.view;
        writer.optional(proposal.as_ref(), |writer, proposal| {
            writer.put(&proposal.view);
            writer.put(&proposal.batch.digest());
        });
        let written = written.filter(|written| whole || written.0 == current);
        writer.optional(written, |writer, (view, digest, _)| {
            writer.put(&view);
            writer.put(&digest);
        });
        let locked_here = locked.as_ref().is_some_and(|locked| locked.view == current);
        writer.votes(writes, self.n(), |vote| {
            whole || vote.view > current || (vote.view == current && !locked_here)
        });
        let read = decided.is_none() || self.is_unproven(slot);
        writer.votes(accepts, self.n(), |_| whole || read);
        writer.optional(locked.as_ref(), |writer, locked| {
            writer.put(&locked.view);
            writer.put(&locked.batch.digest());
            writer.certificate(&locked.writes);
            writer.put(&self.open_sequence(writer.form, locked.sequence));
        });
        writer.optional(decided.as_ref(), |writer, decided| {
            writer.put(&decided.view);
            writer.put(&decided.batch.digest());
            writer.certificate(&decided.accepts);
        });
    }

    fn put_view_change(&self, writer: &mut Writer) {
        let Agreement { view, mode, restarted_in, view_sequence, appended, persisted, .. } = self;
        let Agreement { start, view_configuration, new_view, changes, own_change, peers, .. } =
            self;
        let whole = writer.form == Form::Whole;
        let changing = *mode == Mode::Changing;
        writer.put(view);
        writer.out.push(u8::from(changing));
        let restarted_in = restarted_in.filter(|restarted| whole || restarted == view);
        writer.optional(restarted_in, |writer, view| writer.put(&view));
        writer.put(&self.open_sequence(writer.form, *view_sequence));
        assert!(persisted <= appended, "durable before it was written");
        writer.put(&self.open_sequence(writer.form, *appended));
        writer.put(view_configuration);
        if changing && !whole {
            writer.put(&start.base.slot);
        } else {
            writer.start(start);
        }
        if whole || (self.leads() && changing) {
            writer.count(changes.len());
            for SignedViewChange { change, proven } in changes.values() {
                writer.out.push(u8::from(*proven));
                // One that was not verified is not the same as a genuine one.
                if *proven { writer.view_change(change) } else { writer.put(change) }
            }
            writer.out.push(u8::from(own_change.is_some()));
        }
        if whole {
            writer.optional(new_view.as_ref(), Writer::new_view);
        }
        for peer in peers {
            writer.optional(Some(peer.wanted).filter(|wanted| wanted > view), |writer, wanted| {
                writer.put(&wanted);
            });
        }
    }

    fn put_fixed_and_timed(&self, writer: &mut Writer) {
        let Agreement {
            // Written elsewhere.
            by_link: _,
            pool: _,
            expected: _,
            slots: _,
            view: _,
            mode: _,
            restarted_in: _,
            start: _,
            view_configuration: _,
            new_view: _,
            view_sequence: _,
            delivered: _,
            history: _,
            executed: _,
            prefix: _,
            prefixes_ahead: _,
            prefix_votes: _,
            own_histories: _,
            logged_at: _,
            executing: _,
            next_propose: _,
            decided_told: _,
            changes: _,
            own_change: _,
            fetched: _,
            appended: _,
            persisted: _,
            held: _,
            // The same in all states, but for a member that is replaced.
            settings: _,
            configurations,
            vote_after,
            marked,
            awaiting_state,
            lags_since,
            // A sum of others.
            held_proposal_bytes: _,
            // Read by ticks and links only.
            suspecting,
            abdicated: _,
            left_ms: _,
            timeouts: _,
            comparing: _,
            changes_sent_ms: _,
            quorum_asked_ms: _,
            changing_since_ms: _,
            reproposals_asked,
            reproposals_asked_ms: _,
            peers: _,
            leader_heard_ms: _,
            leader_lost_ms: _,
            status_ms: _,
            status_delivered: _,
            fetches: _,
            state_coming: _,
            taken_up: _,
            unproven_since: _,
            // How long a leader may take, and whose signatures are looked at: time again.
            demand: _,
            // How long a batch gathers.
            progress_ms: _,
            under_way: _,
            trust: _,
            clock_ms: _,
            served_ms: _,
            // Excuses a leader's delay, and so time once more.
            held_since_ms: _,
            command_us: _,
            // Of the service, of which the checker has none: nothing is ever due.
            ticks: _,
            forged,
            // Decides about nothing.
            entropy_used: _,
            signatures_verified: _,
            marks: _,
            effects,
        } = self;
        assert!(effects.is_empty(), "the middle of a step is no state");
        if writer.form == Form::Whole {
            writer.optional(*suspecting, |writer, (view, _)| writer.put(&view));
        }
        writer.put(&configurations.latest().id);
        writer.put(vote_after);
        writer.put(reproposals_asked);
        writer.count(marked.len());
        for (slot, history) in marked {
            writer.put(slot);
            writer.put(history);
        }
        writer.out.push(u8::from(*awaiting_state));
        writer.optional(*lags_since, |writer, view| writer.put(&view));
        writer.optional(*forged, |writer, view| writer.put(&view));
    }
}
