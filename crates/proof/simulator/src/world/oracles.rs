//! Shows the checkers what happens: what is said, what was executed, what is held.

use super::World;
use super::clock::wall_in_order;
use super::guest::{answers_alike, of_service};
use crate::checkers::rules_in_force::InForce;
use crate::checkers::{footprints, progress};
use crate::report::Mark;
use crate::witness::{Execution, Step, Witnessed};
use bytes::Bytes;
use perdura_adversary::Strategy;
use perdura_protocol::{Command, Decode, Encode, Message, SessionId, Slot};
use perdura_replica::node::{Peer, StateTransfer};
use std::collections::BTreeMap;

/// Slots after which members, clients and sessions are looked at again.
const VALIDITY_SLOTS: u64 = 8;

/// Agreed time within this of the clocks that are in order, milliseconds, goes with them.
const AHEAD_MS: u64 = 1_000;

/// Of messages that bring batches or start a view, so many are kept decoded for those who hear them.
const SPOKEN: usize = 8;

impl World {
    /// Whether a replica lies, or forgot without being able to know it, which counts as lying.
    pub(crate) fn is_trusted(&self, replica: usize) -> bool {
        !self.is_liar(replica) && !self.forgot(replica)
    }

    /// What a correct replica is about to say.
    pub(crate) fn check_speech(&mut self, replica: usize, peers: &[Peer], bytes: &Bytes) {
        let Ok(message) = Message::from_bytes(bytes.clone()) else {
            let what = "says something that does not decode";
            self.fail(progress::accused(replica, what));
            return;
        };
        let checkers = &self.checkers;
        let check = match (&message, peers.first()) {
            (Message::Replies { nonce, outcomes, .. }, Some(Peer::Client { key, .. })) => {
                let session = SessionId { client: *key, nonce: *nonce };
                checkers.check_replies(replica, session, outcomes)
            }
            (Message::Attested(attested), Some(Peer::Client { key, .. })) => {
                let session = SessionId { client: *key, nonce: attested.nonce };
                let numbers = attested.leaves.iter().map(|(number, ..)| *number);
                checkers.check_attested(replica, session, numbers)
            }
            _ => checkers.persist_before_speak.speaks(replica, &message, &checkers.agreement),
        };
        self.check(check);
        self.check_read(replica, peers, &message);
        if let Some(Peer::Replica(peer)) = peers.first() {
            let to = (peer.index(), self.replicas[peer.index()].key.public());
            let bounds = &mut self.checkers.bounded_answers;
            let check = bounds
                .answers(replica, peer.index(), &message, self.now_us)
                .and_then(|()| self.checkers.boots.speaks(replica, to, &message));
            self.check(check);
            if let Message::Vitals(vitals) = &message {
                let pace_ms = u64::from(vitals.flush_ms) + u64::from(vitals.trip_ms);
                self.checkers.pace.says(replica, self.now_us, pace_ms);
            }
            self.check_statements(replica, &message);
        }
        if Message::brings_batches_or_view(bytes) {
            self.spoken.truncate(SPOKEN - 1);
            self.spoken.push_front((bytes.clone(), message));
        }
    }

    /// Answers to reads, and what those that come have to wait for.
    fn check_read(&mut self, replica: usize, peers: &[Peer], message: &Message) {
        if !self.is_trusted(replica) {
            return;
        }
        let reads = &mut self.checkers.fast_reads;
        match (message, peers.first()) {
            (Message::Accept { slot, .. }, _) => reads.accepts(replica, *slot),
            (Message::ReadReply { id, slot, outcome }, Some(&Peer::Client { connection, key })) => {
                let by = outcome.as_ref().map(|_| *slot);
                let check = reads.answers(replica, (key, connection, *id), by);
                self.check(check);
            }
            _ => {}
        }
    }

    /// Notes whether the clock of a correct replica is in order.
    pub(crate) fn look_at_clock(&mut self, replica: usize) {
        if self.is_trusted(replica) {
            let wrong = self.replicas[replica].clock.is_wrong();
            self.checkers.agreed_time.looked_at(replica, wrong, self.now_us);
        }
    }

    /// Holds a vote against the voter's clock.
    fn check_time(&mut self, replica: usize, message: &Message) {
        let (Message::Write { slot, digest, .. } | Message::Accept { slot, digest, .. }) = message
        else {
            return;
        };
        self.look_at_clock(replica);
        if !self.checkers.votes.is_bound(replica, *slot) {
            let wall = self.replicas[replica].clock.now(self.now_us).wall;
            let check = self.checkers.agreed_time.votes(replica, *slot, *digest, wall);
            self.check(check);
        }
    }

    /// What it says to other replicas.
    fn check_statements(&mut self, replica: usize, message: &Message) {
        if !self.is_trusted(replica) {
            return;
        }
        if let Message::Propose { slot, batch, .. } = message {
            self.checkers.agreed_time.given(replica, *slot, batch);
        }
        self.check_time(replica, message);
        let here = &self.replicas[replica];
        let Some(process) = &here.process else { return };
        let (executed, view) = (process.node.executed(), process.node.view());
        let (key, checkers) = (here.key.public(), &mut self.checkers);
        let check = checkers
            .votes
            .speaks(replica, message, executed)
            .and_then(|()| checkers.view_grounds.speaks(replica, message, view))
            .and_then(|()| checkers.evidence.speaks(replica, key, message));
        self.check(check);
    }

    /// What a correct replica hears.
    pub(crate) fn note_hearing(&mut self, replica: usize, peer: &Peer, bytes: &Bytes) {
        if let Peer::Replica(from) = peer {
            self.note_company(replica, from.index(), bytes);
        }
        if !self.is_trusted(replica) {
            return;
        }
        if Message::is_read(bytes) {
            self.note_read(replica, peer, bytes);
        }
        if !Message::brings_batches_or_view(bytes) {
            return;
        }
        // The same memory, which is still held: the same bytes.
        let same =
            |spoken: &Bytes| (spoken.as_ptr(), spoken.len()) == (bytes.as_ptr(), bytes.len());
        let known = self.spoken.iter().find(|(spoken, _)| same(spoken)).map(|(_, known)| known);
        let decoded = match known {
            Some(_) => None,
            None => Message::from_bytes(bytes.clone()).ok(),
        };
        let Some(message) = known.or(decoded.as_ref()) else { return };
        let time = &mut self.checkers.agreed_time;
        match message {
            Message::NewView(new_view) => self.checkers.votes.heard(replica, new_view),
            Message::Propose { slot, batch, .. } => {
                let wall = self.replicas[replica].clock.now(self.now_us).wall;
                time.proposed(replica, *slot, batch, wall, self.now_us);
            }
            Message::LockedBatch { slot, batch } => time.given(replica, *slot, batch),
            Message::Decisions { decisions, .. } => {
                decisions.iter().for_each(|one| time.given(replica, one.slot, &one.batch));
            }
            // Nothing that they say is held against what the replica does later.
            Message::Frame(_)
            | Message::Overdue(_)
            | Message::Write { .. }
            | Message::Accept { .. }
            | Message::Decided { .. }
            | Message::Prefix { .. }
            | Message::Status { .. }
            | Message::Suspect { .. }
            | Message::ViewChange(_)
            | Message::FetchBatch { .. }
            | Message::Fetch { .. }
            | Message::TooOld { .. }
            | Message::Checkpoint { .. }
            | Message::StateQuery
            | Message::StateInfo { .. }
            | Message::FetchManifest { .. }
            | Message::Manifest { .. }
            | Message::FetchPiece { .. }
            | Message::Piece { .. }
            | Message::Vitals(_)
            | Message::Compare(_)
            | Message::Announce(_)
            | Message::Recall(_)
            | Message::RollCall { .. }
            | Message::Present { .. }
            | Message::Attach { .. }
            | Message::Welcome { .. }
            | Message::Read { .. }
            | Message::ReadAt { .. }
            | Message::ReadReply { .. }
            | Message::Replies { .. }
            | Message::Attested(_)
            | Message::Busy { .. } => {}
        }
    }

    /// A read comes to a correct replica.
    fn note_read(&mut self, replica: usize, peer: &Peer, bytes: &Bytes) {
        let Peer::Client { connection, key } = *peer else { return };
        let Some(process) = &self.replicas[replica].process else { return };
        let executed = process.node.executed();
        let reads = &mut self.checkers.fast_reads;
        match Message::from_bytes(bytes.clone()) {
            Ok(Message::Read { id, .. }) => reads.comes(replica, (key, connection, id), executed),
            Ok(Message::ReadAt { id, slot, .. }) => {
                reads.comes_for(replica, (key, connection, id), slot);
            }
            _ => {}
        }
    }

    /// Word of where another replica is, or of what it holds of this one.
    fn note_company(&mut self, replica: usize, from: usize, bytes: &Bytes) {
        if self.is_liar(replica) {
            return;
        }
        if Message::is_status(bytes) {
            self.checkers.sight.status(replica, from, self.now_us);
        } else if Message::is_recall(bytes)
            && let Ok(Message::Recall(recalled)) = Message::from_bytes(bytes.clone())
        {
            let key = self.replicas[replica].key.public();
            let from = (from, self.is_trusted(from));
            self.checkers.boots.hears(replica, key, from, &recalled);
        } else if Message::is_accept(bytes)
            && self.is_trusted(from)
            && let Ok(Message::Accept { view, slot, .. }) = Message::from_bytes(bytes.clone())
            && let Some(process) = &self.replicas[replica].process
            && process.node.counts_vote(view, slot)
        {
            self.checkers.boots.hears_accept(replica, from, (view, slot));
        }
    }

    /// Counts how sessions ended.
    fn mark_lifetimes(&mut self) {
        let ends = self.checkers.lifetimes.ends();
        let marks = [
            (Mark::SessionEnded, ends.by_time),
            (Mark::SessionClosed, ends.closed),
            (Mark::SessionRenewed, ends.renewed),
            (Mark::SessionAstray, ends.astray),
            (Mark::SessionsOutlivedOutage, ends.outages),
        ];
        for (mark, count) in marks.into_iter().filter(|(_, count)| *count > 0) {
            self.report.marks.insert(mark, count);
        }
    }

    /// What was executed.
    pub(crate) fn witness(&mut self, replica: usize) {
        self.look_at_clock(replica);
        let here = &mut self.replicas[replica];
        let Some(process) = &mut here.process else { return };
        let machine = match &process.stage {
            Some(stage) => stage.machine(),
            None => process.node.machine(),
        };
        let (slot, history, time) = (machine.slot(), machine.history(), machine.time());
        if slot == process.executed {
            return;
        }
        let looks = slot.0 / VALIDITY_SLOTS != process.executed.0 / VALIDITY_SLOTS;
        process.executed = slot;
        // Batches of a service that is gone are known by where it stood when it was looked at last.
        let (service, batches) = Witnessed::of(machine.service()).position();
        let last = process.service.replace((service, slot.0.saturating_sub(batches)));
        let is_another = last.is_none_or(|(last, _)| last != service);
        let base = |of: u64| [process.service, last].into_iter().flatten().find(|(s, _)| *s == of);
        let notes = process.notes.take();
        let steps = notes.into_iter().filter_map(|note| {
            let (_, before) = base(note.service)?;
            Some((Slot(before + note.batch), note.version, note.step))
        });
        let steps: Vec<(Slot, u16, Step)> = steps.collect();
        if here.liar.is_some() {
            return;
        }
        self.checkers.evidence.learn(machine.configurations());
        self.report.slots = self.report.slots.max(slot.0);
        let checkers = &mut self.checkers;
        let memory = checkers.bounded_memory;
        let valid = match looks {
            true => checkers
                .validity
                .holds(replica, machine)
                .and_then(|()| {
                    memory.sessions(replica, machine.versions().rules, machine.most_sessions())
                })
                .and_then(|()| memory.cached(replica, machine.most_cached()))
                .and_then(|()| checkers.revocation.holds(replica, slot, machine.sessions())),
            false => Ok(()),
        };
        let executed = |(_, _, step): &(Slot, u16, Step)| match step {
            Step::Executed(execution) => Some(execution.clone()),
            _ => None,
        };
        let executions: Vec<Execution> = steps.iter().filter_map(executed).collect();
        checkers.lifetimes.began(&executions);
        let rules = &mut checkers.rules_in_force;
        let mut versions = steps.iter().map(|(slot, version, _)| (*slot, *version));
        let in_force = InForce::of(machine);
        let mut batches = executions.iter().map(|one| (one.slot, one.batch));
        // It ended nothing, and is a bug of the service all the same.
        let calm = match machine.asked().take_caught() {
            Some(panic) => Err(of_service(self.guest.as_deref(), &self.calls, &panic)),
            None => Ok(()),
        };
        let mut check = calm
            .and(valid)
            .and_then(|()| {
                batches.try_for_each(|(slot, batch)| checkers.agreement.batch(replica, slot, batch))
            })
            .and_then(|()| checkers.agreement.executed(replica, slot, history))
            .and_then(|()| checkers.agreed_time.executed(replica, slot, time))
            .and_then(|()| checkers.lifetimes.executed(replica, machine))
            .and_then(|()| rules.holds(replica, slot, in_force))
            .and_then(|()| versions.try_for_each(|(at, one)| rules.executed(replica, at, one)));
        for execution in executions {
            let known = checkers.exactly_once.known(replica, execution.slot);
            checkers.boundaries.executed(&execution);
            let alike = answers_alike(self.guest.as_deref(), (replica, &execution), known);
            check = check
                .and(alike)
                .and_then(|()| checkers.revocation.executed(replica, &execution))
                .and_then(|()| checkers.slot_cost.executed(replica, &execution))
                .and_then(|()| checkers.exactly_once.executed(replica, execution));
        }
        self.check(check);
        self.witness_guest(replica, &steps, is_another);
        self.mark_lifetimes();
        if self.has_spaces() {
            let steps = steps.into_iter().map(|(slot, _, step)| (slot, step)).collect();
            self.witness_spaces(replica, steps);
        }
    }

    /// What happened in tuple spaces, slot by slot.
    fn witness_spaces(&mut self, replica: usize, steps: Vec<(Slot, Step)>) {
        let mut slots: BTreeMap<Slot, Vec<Step>> = BTreeMap::new();
        for (slot, step) in steps {
            slots.entry(slot).or_default().push(step);
        }
        let Some(process) = &self.replicas[replica].process else { return };
        let machine = process.machine();
        let checkers = &mut self.checkers;
        let (order, validity) = (&checkers.exactly_once, &checkers.validity);
        // Its client went on, as it has said; or its session ended, since another one took its place
        // or the client was revoked.
        let may_forget = |session: SessionId, number: u64| match machine.acknowledged(session) {
            Some(below) => number < below && below <= order.acknowledged(session),
            None => validity.has_later(session) || !validity.lasts(session.client),
        };
        let (agreement, times) = (&checkers.agreement, &mut checkers.agreed_time);
        let waits = &mut checkers.waits;
        waits.stands(machine.time().0 - machine.clock().0);
        if machine.time().0 > wall_in_order(self.now_us).0 + AHEAD_MS {
            waits.runs_ahead();
        }
        waits.is_of_first_rules(machine.versions().rules == 0);
        let check = slots.into_iter().try_for_each(|(slot, steps)| {
            if let Some(Step::Began(time, _)) = steps.first() {
                times.began(replica, slot, *time, agreement.decided(slot))?;
            }
            waits.executed(replica, slot, steps, self.now_us, may_forget)
        });
        let check = check.and_then(|()| {
            let service = Witnessed::of(machine.service()).waiters();
            waits.holds(replica, machine.slot(), service, machine.waiting(), machine.offered())
        });
        for mark in waits.reached() {
            match mark {
                Mark::WaiterServed => self.report.spaces.served += 1,
                Mark::WaitEnded => self.report.spaces.in_vain += 1,
                _ => {}
            }
            self.mark(mark);
        }
        self.check(check);
    }

    /// Whether a replica runs, and has no excuse for being slow.
    fn is_well(&self, replica: usize) -> bool {
        let here = &self.replicas[replica];
        here.process.is_some()
            && !here.is_disturbed()
            && !self.is_paused(replica)
            && self.is_trusted(replica)
    }

    /// How far a correct replica is, with which nothing is wrong, and others like it.
    pub(crate) fn check_standstill(&mut self, replica: usize) {
        // A scenario cuts and holds as it likes, and says itself how replicas have to stand. Where one alone
        // sends a state, as in the baseline, it may be a liar that is slow for good.
        let delays = [Strategy::SlowTransfer, Strategy::SelectiveSilence, Strategy::Medley];
        let slow = self.plan.liars.iter().any(|liar| delays.contains(liar));
        if self.by_hand || (slow && self.plan.state_transfer == StateTransfer::SingleSender) {
            return;
        }
        let well = (0..self.n()).filter(|other| self.is_well(*other));
        let executed = |replica: usize| {
            self.replicas[replica].process.as_ref().map_or(Slot(0), |process| process.executed)
        };
        let highest = well.clone().map(executed).max().unwrap_or_default();
        let own = executed(replica);
        // Without those who replace others from a slot on that nobody has come to.
        let mut well = well.filter(|other| {
            self.replicas[*other].joins_at.is_none_or(|first| first <= highest.next())
        });
        let quorum = well.clone().count() >= self.plan.faults.agreement_quorum();
        if !quorum || !well.any(|other| other == replica) {
            self.checkers.standstill.excused(replica);
            return;
        }
        let takes_us = self.plan.stages.get(replica).copied().flatten().unwrap_or(0);
        let standstill = &mut self.checkers.standstill;
        let check = standstill.stands(replica, self.now_us, (own, highest), takes_us);
        self.check(check);
    }

    /// What a correct replica holds.
    pub(crate) fn check_memory(&mut self, replica: usize) {
        self.look_at_clock(replica);
        let Some(process) = &self.replicas[replica].process else { return };
        let (furthest, delivered) = (process.node.furthest_slot(), process.node.delivered());
        let (held, executed) = (process.node.held(), process.node.executed());
        let apply_queue = held.apply_queue;
        let memory = &self.checkers.bounded_memory;
        let check = memory
            .held(replica, held)
            .and_then(|()| memory.apply_queue(replica, apply_queue, (executed, process.log_ends)))
            .and_then(|()| memory.window(replica, furthest, delivered));
        self.check(check);
    }

    /// Whether all take checkpoints after the same slots.
    pub(crate) fn check_boundaries(&mut self) {
        let configurations = self.checkers.evidence.configurations();
        self.check(self.checkers.boundaries.judge(&configurations));
    }

    /// Whether footprints err towards conflict only.
    pub(crate) fn check_footprints(&mut self) {
        let mut processes = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        let Some(machine) = processes.next().map(|process| process.machine()) else { return };
        let check = footprints::check(self.checkers.exactly_once.order(), |execution| {
            let command = Command::Service(execution.command.clone()).to_bytes();
            machine.inspector().footprint(execution.session, &command)
        });
        self.check(check);
    }
}
