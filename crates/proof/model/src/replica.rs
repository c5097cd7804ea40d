//! One replica: the real machine, its disk, and all that it has said. A step gives it one input and
//! carries out what comes of it, as the driver does: records in order, and messages only when the
//! machine hands them out. What leaves is held against the disk at that moment.

use crate::posts::{PostId, Posts};
use crate::scope::Flaw;
use crate::violation::{Rule, Violation};
use crate::world::World;
use perdura_agreement::canonical::{self, Form};
use perdura_agreement::pool::Source;
use perdura_agreement::{Agreement, Effect, Restart};
use perdura_protocol::batch::BatchKind;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{Batch, Digest, Encode, Record, ReplicaId, Slot, View};
use std::collections::{BTreeSet, VecDeque};

/// What the disk would prove after a crash now.
#[derive(Clone, Default)]
pub struct Promises {
    /// Views entered.
    pub views: BTreeSet<View>,
    /// Votes to accept.
    pub votes: BTreeSet<(View, Slot, Digest)>,
    /// Batches, by vote or by decision.
    pub batches: BTreeSet<(Slot, Digest)>,
}

impl Promises {
    fn learn(&mut self, record: &Record) {
        match record {
            Record::View(view) => {
                self.views.insert(*view);
            }
            Record::Vote { view, slot, batch, .. } => {
                self.votes.insert((*view, *slot, batch.digest()));
            }
            _ => {}
        }
        if let Some((slot, batch)) = record.batch() {
            self.batches.insert((slot, batch.digest()));
        }
    }
}

/// A replica with its disk.
#[derive(Clone)]
pub struct Replica {
    seat: usize,
    /// The machine.
    pub machine: Agreement,
    // On disk, while a crash may still come.
    durable: Vec<Record>,
    // Handed to the disk: whether the machine waits for it, and the record.
    pending: VecDeque<(bool, Record)>,
    appended: u64,
    synced: u64,
    /// Nothing more becomes durable before the crash.
    pub stalled: bool,
    /// What the disk holds.
    pub promises: Promises,
    /// The first batch delivered for each slot, over all lives.
    pub delivered: Vec<Option<Digest>>,
    delivered_now: Slot,
    /// How often it crashed.
    pub lives: u8,
    offered: (View, u64),
    steps: u64,
    /// What it ever said.
    pub posts: BTreeSet<PostId>,
}

impl Replica {
    /// A replica that never ran.
    pub fn new(world: &World, posts: &mut Posts, seat: usize) -> Result<Replica, Violation> {
        let replica = Replica {
            seat,
            machine: world.machine(seat, Restart::blank()),
            durable: Vec::new(),
            pending: VecDeque::new(),
            appended: 0,
            synced: 0,
            stalled: false,
            promises: Promises::default(),
            delivered: vec![None; world.scope.slots as usize + 1],
            delivered_now: Slot(0),
            lives: 0,
            offered: (View(0), 0),
            steps: 0,
            posts: BTreeSet::new(),
        };
        // The record that it started is there before anybody speaks to it.
        let mut step = Step::new(world, posts, replica, None);
        step.settle()?;
        Ok(step.replica)
    }

    /// Which replicas are one and the same.
    #[must_use]
    pub fn canonical(&self, world: &World) -> Digest {
        let form = world.scope.form;
        let reduced = world.scope.reduced();
        let stalled = reduced && self.stalled;
        let mut out = self.machine.canonical(if stalled { Form::Stalled } else { form });
        for delivered in &self.delivered {
            out.extend(delivered.unwrap_or(Digest::ZERO).0);
        }
        let offered = if self.offered.0 == self.machine.view() { self.offered.1 } else { 0 };
        out.extend([self.seat as u8, self.lives, offered as u8]);
        for view in &self.promises.views {
            view.encode(&mut out);
        }
        for (view, slot, digest) in &self.promises.votes {
            view.encode(&mut out);
            slot.encode(&mut out);
            digest.encode(&mut out);
        }
        for (slot, digest) in &self.promises.batches {
            slot.encode(&mut out);
            digest.encode(&mut out);
        }
        for post in &self.posts {
            out.extend(post.to_le_bytes());
        }
        if world.scope.lags(self.seat, self.lives) {
            out.push(u8::from(self.stalled));
            let mut durable: Vec<Vec<u8>> =
                self.durable.iter().map(|record| canonical::record(form, record)).collect();
            if reduced {
                // A restart reads each slot's records by themselves.
                durable.sort_unstable();
                durable.dedup();
            }
            durable.iter().for_each(|record| out.extend(record));
            let read_after_crash = if stalled { self.open_notes() } else { self.pending.len() };
            for (waited_for, record) in self.pending.iter().take(read_after_crash) {
                out.push(if *waited_for { 0xfe } else { 0xff });
                out.extend(canonical::record(form, record));
            }
        }
        Digest::of(&out)
    }

    /// Records that nobody waits for and that may have become durable since.
    #[must_use]
    pub fn open_notes(&self) -> usize {
        self.pending.iter().take_while(|(waited_for, _)| !waited_for).count()
    }

    fn waits_for_disk(&self) -> bool {
        self.synced < self.appended
    }

    /// How many frames clients may still hand to it in its view.
    #[must_use]
    pub fn offered(&self) -> u64 {
        if self.offered.0 == self.machine.view() { self.offered.1 } else { 0 }
    }
}

/// A replica in the middle of a step.
pub struct Step<'a> {
    /// The surroundings.
    pub world: &'a World,
    /// The network.
    pub posts: &'a mut Posts,
    /// The replica.
    pub replica: Replica,
    // Records that become durable before the disk stalls; all, if it does not.
    until_stall: Option<u32>,
    // Whom it asked for decisions last.
    asked: Option<ReplicaId>,
}

impl<'a> Step<'a> {
    /// A step of this replica, in which `until_stall` more records become durable, or all.
    pub fn new(
        world: &'a World,
        posts: &'a mut Posts,
        replica: Replica,
        until_stall: Option<u32>,
    ) -> Step<'a> {
        Step { world, posts, replica, until_stall, asked: None }
    }

    /// This replica's id.
    #[must_use]
    pub fn me(&self) -> ReplicaId {
        self.world.seats[self.replica.seat]
    }

    fn fail<T>(&self, rule: Rule, what: String) -> Result<T, Violation> {
        Err(Violation { rule, what: format!("replica {}: {what}", self.me()) })
    }

    /// A message arrives.
    pub fn receive(&mut self, from: ReplicaId, message: Message) -> Result<(), Violation> {
        self.replica.steps += 1;
        let now = World::now(self.replica.steps);
        self.replica.machine.on_message(now, from, message);
        self.settle()
    }

    /// Makes the replica ask this peer for decisions, as answers that nobody asked for do not count:
    /// the peer says that it is ahead, and time passes until it is its turn.
    pub fn ask(&mut self, peer: ReplicaId, delivered: Slot) -> Result<(), Violation> {
        let view = self.replica.machine.view();
        self.receive(peer, Message::Status { view, changing: false, delivered })?;
        for _ in 0..2 * self.world.n() {
            if self.asked == Some(peer) || self.replica.machine.delivered() >= delivered {
                break;
            }
            self.replica.steps += 1;
            self.replica.machine.on_tick(World::now(self.replica.steps));
            self.settle()?;
        }
        Ok(())
    }

    /// Enough others want this view that the replica joins.
    pub fn join(&mut self, view: View) -> Result<(), Violation> {
        let me = self.me();
        let leader = self.replica.machine.leader();
        let mut others: Vec<ReplicaId> =
            (0..self.world.n() as u8).map(ReplicaId).filter(|id| *id != me).collect();
        others.sort_by_key(|id| *id == leader);
        for from in others.into_iter().take(self.world.scope.faults.view_join()) {
            self.receive(from, Message::Suspect { view })?;
        }
        Ok(())
    }

    /// Others say twice that they stand still in this replica's view, and it repeats itself.
    pub fn repeat(&mut self) -> Result<(), Violation> {
        let (me, view) = (self.me(), self.replica.machine.view());
        for from in (0..self.world.n() as u8).map(ReplicaId).filter(|id| *id != me) {
            for _ in 0..2 {
                let status = Message::Status { view, changing: false, delivered: Slot(0) };
                self.receive(from, status)?;
            }
        }
        Ok(())
    }

    /// A client hands the leader its next frame.
    pub fn request(&mut self) -> Result<(), Violation> {
        let view = self.replica.machine.view();
        let number = self.replica.offered();
        self.replica.offered = (view, number + 1);
        let frame = self.world.frame(self.replica.seat, view, number);
        self.replica.steps += 1;
        self.replica.machine.on_frame(World::now(self.replica.steps), frame, Source::Client);
        self.settle()
    }

    fn sync_one(&mut self) {
        while let Some((waited_for, record)) = self.replica.pending.pop_front() {
            self.keep(record);
            if waited_for {
                self.replica.synced += 1;
                return;
            }
        }
    }

    fn keep(&mut self, record: Record) {
        self.replica.promises.learn(&record);
        if self.world.scope.lags(self.replica.seat, self.replica.lives) {
            self.replica.durable.push(record);
        }
    }

    /// The disk reports what was handed to it, one record after the other, until it stalls.
    fn sync(&mut self) -> Result<(), Violation> {
        while self.replica.waits_for_disk() && !self.replica.stalled {
            if self.until_stall == Some(0) {
                self.replica.stalled = true;
                break;
            }
            self.until_stall = self.until_stall.map(|left| left - 1);
            self.sync_one();
            self.replica.machine.on_persisted(World::now(self.replica.steps), self.replica.synced);
            self.carry_out()?;
        }
        let early = [Flaw::DurableTooEarly, Flaw::DurableTooEarlyUnseen];
        if self.replica.stalled && self.world.scope.flaw.is_some_and(|flaw| early.contains(&flaw)) {
            let now = World::now(self.replica.steps);
            self.replica.machine.on_persisted(now, self.replica.appended);
            self.carry_out()?;
        }
        Ok(())
    }

    /// Carries out what is to be done, until nothing is left but what waits for the disk.
    pub fn settle(&mut self) -> Result<(), Violation> {
        loop {
            self.carry_out()?;
            self.replica.machine.flush(World::now(self.replica.steps));
            self.carry_out()?;
            if self.replica.stalled || !self.replica.waits_for_disk() {
                return self.sync();
            }
            self.sync()?;
        }
    }

    fn carry_out(&mut self) -> Result<(), Violation> {
        while let Some(effect) = self.replica.machine.next_effect() {
            match effect {
                Effect::Send { to, message } => self.speak(Some(to), message)?,
                Effect::Broadcast(message) => self.speak(None, message)?,
                Effect::Persist(record) => {
                    self.replica.appended += 1;
                    self.replica.pending.push_back((true, record));
                }
                Effect::Note(record) => self.replica.pending.push_back((false, record)),
                Effect::Deliver { slot, batch, .. } => self.deliver(slot, &batch)?,
                Effect::Misbehaved { replica, what } => {
                    // Reduced states forget old votes, and so who could be accused of a second one.
                    let scope = &self.world.scope;
                    if scope.honest(replica) && scope.flaw.is_none() && !scope.reduced() {
                        return self.fail(
                            Rule::NoFalseAccusation,
                            format!("accuses {replica} of {what:?}"),
                        );
                    }
                }
                Effect::Proven { .. }
                | Effect::Certified(_)
                | Effect::ViewStarted(_)
                | Effect::Suspects { .. }
                | Effect::Serve { .. }
                | Effect::FetchState { .. } => {}
            }
        }
        Ok(())
    }

    fn speak(&mut self, to: Option<ReplicaId>, message: Message) -> Result<(), Violation> {
        if let (Some(to), Message::Fetch { .. }) = (to, &message) {
            self.asked = Some(to);
        }
        // Heartbeats, suspicions and questions are choices of the explorer.
        if matches!(
            message,
            Message::Status { .. }
                | Message::Suspect { .. }
                | Message::Fetch { .. }
                | Message::TooOld { .. }
        ) {
            return Ok(());
        }
        if self.world.scope.flaw != Some(Flaw::DurableTooEarlyUnseen) {
            self.check_persisted(&message)?;
        }
        let message = self.flawed(message);
        let me = self.me();
        let number = self.posts.number(self.world, me, to, &message);
        self.replica.posts.insert(number.expect("what a machine says is well formed"));
        Ok(())
    }

    fn flawed(&self, message: Message) -> Message {
        match message {
            Message::ViewChange(mut change)
                if self.world.scope.flaw == Some(Flaw::ViewChangeWithoutLocks) =>
            {
                change.locks.clear();
                let digest = change.body_digest();
                change.signature = self.world.sign(
                    self.me(),
                    StatementKind::ViewChange,
                    change.view,
                    Slot(0),
                    digest,
                );
                Message::ViewChange(change)
            }
            message => message,
        }
    }

    /// A2: what restricts later votes is on disk before it leaves.
    fn check_persisted(&self, message: &Message) -> Result<(), Violation> {
        let promises = &self.replica.promises;
        let (view, covered) = match message {
            Message::Propose { view, .. } | Message::Write { view, .. } => (*view, true),
            Message::Accept { view, slot, digest, .. } => {
                (*view, promises.votes.contains(&(*view, *slot, *digest)))
            }
            Message::ViewChange(change) => {
                let locks = &mut change.locks.iter();
                let held =
                    locks.all(|lock| promises.votes.contains(&(lock.view, lock.slot, lock.digest)));
                (change.view, held)
            }
            Message::NewView(new_view) => (new_view.view, true),
            Message::Prefix { slot, .. } => {
                let logged = (1..=slot.0)
                    .all(|number| promises.batches.iter().any(|(slot, _)| slot.0 == number));
                (View(0), logged)
            }
            _ => return Ok(()),
        };
        if covered && promises.views.contains(&view) {
            return Ok(());
        }
        self.fail(Rule::PersistBeforeSpeak, format!("says what is not on its disk: {message:?}"))
    }

    fn deliver(&mut self, slot: Slot, batch: &Batch) -> Result<(), Violation> {
        if slot != self.replica.delivered_now.next() {
            return self.fail(Rule::Contiguous, format!("delivers slot {slot} out of order"));
        }
        self.replica.delivered_now = slot;
        let known = batch.frames().iter().all(|frame| self.world.is_genuine(frame));
        if !known || batch.kind() == BatchKind::Tick {
            return self.fail(Rule::Validity, format!("slot {slot}: delivers what nobody sent"));
        }
        self.note_delivered(slot, batch.digest())?;
        // As one who asks for it finds it; the machine goes on without a look at the Accepts.
        let mut asked = self.replica.machine.clone();
        asked.prove_open();
        let Some(decision) = asked.decision(slot) else {
            return self.fail(Rule::Evidence, format!("slot {slot}: no decision at hand"));
        };
        let bare = decision.accepts.is_empty() && self.world.scope.faults.is_byzantine();
        let delivered = self.replica.delivered.iter().skip(1).take(slot.0 as usize);
        let history = (1..).map(Slot).zip(delivered.flatten());
        let history =
            history.fold(Digest::ZERO, |chain, (slot, digest)| chain.chain(slot, *digest));
        let prefix = Some(asked.prefix().clone())
            .filter(|prefix| bare && prefix.slot == slot && prefix.history == history);
        let proven = match &prefix {
            Some(prefix) => self.world.is_prefix(prefix),
            None if self.world.scope.faults.is_byzantine() => {
                let (view, accepts) = (decision.view, &decision.accepts);
                self.world.is_certified(accepts, StatementKind::Accept, view, slot, batch.digest())
            }
            None => true,
        };
        // Decided by link: others cannot be shown it, and this replica can vote on it again.
        let held = self.replica.promises.votes.iter();
        let mut held = held.map(|(_, slot, digest)| (*slot, *digest));
        let by_link = self.world.scope.forging && bare && prefix.is_none();
        if by_link && held.any(|vote| vote == (slot, batch.digest())) {
            return self.executed(slot);
        }
        if !proven {
            return self.fail(Rule::Evidence, format!("slot {slot}: the certificate is not valid"));
        }
        let decisions = vec![decision];
        self.speak(None, Message::Decisions { decisions, prefix, between: vec![] })?;
        self.executed(slot)
    }

    fn executed(&mut self, slot: Slot) -> Result<(), Violation> {
        let boundary = self.world.scope.boundary == Some(slot);
        let now = World::now(self.replica.steps);
        self.replica.machine.on_executed(now, slot, None, boundary);
        Ok(())
    }

    fn note_delivered(&mut self, slot: Slot, digest: Digest) -> Result<(), Violation> {
        let Some(place) = self.replica.delivered.get_mut(slot.0 as usize) else {
            return Ok(()); // Beyond the bounds: only a view change's leftovers lead there.
        };
        if place.is_some_and(|before| before != digest) {
            return self
                .fail(Rule::Agreement, format!("delivers slot {slot} once more, otherwise"));
        }
        *place = Some(digest);
        Ok(())
    }

    /// A crash that leaves the first `kept` records of those not known to be durable, and the
    /// restart from the disk.
    pub fn crash(&mut self, kept: usize) -> Result<(), Violation> {
        let survivors: Vec<Record> =
            self.replica.pending.drain(..).take(kept).map(|(_, record)| record).collect();
        for record in survivors {
            self.keep(record);
        }
        let mut records = self.replica.durable.clone();
        match self.world.scope.flaw {
            Some(Flaw::VotesLostAtRestart) => {
                records.retain(|record| !matches!(record, Record::Vote { .. }));
            }
            Some(Flaw::ViewsLostAtRestart) => {
                records.retain(|record| !matches!(record, Record::View(_)));
            }
            _ => {}
        }
        let n = self.world.n();
        let mut restart = if records.is_empty() {
            Restart::blank()
        } else {
            Restart::from_log(n, Slot(0), Digest::ZERO, records, Slot(0))
        };
        for (slot, batch) in restart.take_replay() {
            self.note_delivered(slot, batch.digest())?;
        }
        self.replica.delivered_now = restart.delivered();
        self.replica.machine = self.world.machine(self.replica.seat, restart);
        self.replica.lives += 1;
        self.replica.stalled = false;
        (self.replica.appended, self.replica.synced) = (0, 0);
        if !self.world.scope.lags(self.replica.seat, self.replica.lives) {
            self.replica.durable.clear();
        }
        self.settle()
    }
}
