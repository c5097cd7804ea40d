//! States of a whole group and the steps between them.
//!
//! The machine is deterministic, so what one replica does with one input is worked out once and
//! remembered: replicas that are one and the same get one number, and a state of the group is the
//! list of its replicas' numbers. What a replica has said is part of it, and so is its disk.

use crate::adversary::{Adversary, Said};
use crate::mix::Mixing;
use crate::posts::{PostId, Posts};
use crate::replica::{Replica, Step};
use crate::scope::{Flaw, Scope};
use crate::violation::{Rule, Violation};
use crate::world::World;
use perdura_agreement::{Marks, Mode};
use perdura_protocol::message::Message;
use perdura_protocol::{Digest, ReplicaId, Slot, View};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// By seat: the view and what was delivered.
pub type Observable = Vec<(View, Vec<Option<Digest>>)>;

/// Number of a replica's state.
pub type LocalId = u32;

/// What may happen to a replica next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// A message arrives.
    Deliver(PostId),
    /// Votes about the same arrive from these senders (as bits), as many as it takes.
    Votes(u32, u32),
    /// A later view is joined: time-outs are choices.
    Join(View),
    /// A client hands over a frame.
    Request,
    /// A crash that leaves so many of the records that nobody waited for.
    Crash(u32),
    /// Others stand still, and the replica repeats what it said.
    Repeat,
}

struct Local {
    replica: Replica,
    view: View,
    gathers: bool,
    // By receiver: what was said to it, and votes.
    posts: Vec<Vec<PostId>>,
    ballots: Vec<Vec<u32>>,
    // What it voted for, or asks others to.
    own_ballots: Vec<u32>,
    changes: Vec<PostId>,
    proposals: Vec<PostId>,
}

/// A step that somebody may take.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Who.
    pub seat: usize,
    /// What happens.
    pub input: Input,
    /// How many records become durable before the disk stalls, if it does.
    pub until_stall: Option<u32>,
    /// What becomes of the replica.
    pub next: LocalId,
}

/// A step that broke a rule.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Who took it.
    pub seat: usize,
    /// What happened.
    pub input: Input,
    /// How many records became durable before the disk stalled, if it did.
    pub until_stall: Option<u32>,
    /// The rule.
    pub violation: Violation,
}

/// The group.
pub struct Model {
    /// The surroundings.
    pub world: World,
    pub(crate) posts: Posts,
    locals: Vec<Local>,
    numbers: HashMap<Digest, LocalId, Mixing>,
    memory: HashMap<(LocalId, Input, Option<u32>), Option<LocalId>, Mixing>,
    adversary: Adversary,
}

/// Sizes of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Different states of one replica.
    pub locals: usize,
    /// Different messages.
    pub posts: usize,
    /// Steps of a machine that were worked out.
    pub steps: usize,
}

impl Model {
    /// A group that has just started, and its state.
    pub fn new(scope: Scope) -> Result<(Model, Vec<LocalId>), Violation> {
        let mut model = Model {
            world: World::new(scope),
            posts: Posts::default(),
            locals: Vec::new(),
            numbers: HashMap::default(),
            memory: HashMap::default(),
            adversary: Adversary::default(),
        };
        let mut state = Vec::new();
        for seat in 0..model.world.seats.len() {
            let replica = Replica::new(&model.world, &mut model.posts, seat)?;
            state.push(model.number(replica));
        }
        Ok((model, state))
    }

    /// Sizes of the tables.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes { locals: self.locals.len(), posts: self.posts.len(), steps: self.memory.len() }
    }

    fn number(&mut self, replica: Replica) -> LocalId {
        let digest = replica.canonical(&self.world);
        if let Some(number) = self.numbers.get(&digest) {
            return *number;
        }
        let number = self.locals.len() as LocalId;
        let local = self.local(replica);
        self.locals.push(local);
        self.numbers.insert(digest, number);
        number
    }

    fn local(&self, replica: Replica) -> Local {
        let n = self.world.n();
        let mut local = Local {
            view: replica.machine.view(),
            gathers: replica.machine.leads() && replica.machine.mode() == Mode::Changing,
            posts: vec![Vec::new(); n],
            ballots: vec![Vec::new(); n],
            own_ballots: Vec::new(),
            changes: Vec::new(),
            proposals: Vec::new(),
            replica,
        };
        for number in &local.replica.posts {
            let post = self.posts.post(*number);
            local.own_ballots.extend(post.ballot.or(post.asks));
            match &post.message {
                Message::ViewChange(_) => local.changes.push(*number),
                Message::Propose { .. } => local.proposals.push(*number),
                _ => {}
            }
            for id in (0..n as u8).map(ReplicaId) {
                if id == post.from || post.to.is_some_and(|to| to != id) {
                    continue;
                }
                match post.ballot {
                    Some(ballot) if self.world.scope.reduced() => {
                        local.ballots[id.index()].push(ballot);
                    }
                    _ => local.posts[id.index()].push(*number),
                }
            }
        }
        local
    }

    /// The steps that may be taken in a state and lead to another one.
    pub fn moves(&mut self, state: &[LocalId], out: &mut Vec<Move>) -> Result<(), Broken> {
        out.clear();
        let speeches = self.speeches(state);
        for seat in 0..state.len() {
            for input in self.inputs(state, seat, &speeches) {
                self.try_input(state, seat, input, None, out)?;
                self.try_stalling(state, seat, input, out)?;
            }
        }
        Ok(())
    }

    /// Takes a step; whether the disk stalled in it.
    fn try_input(
        &mut self,
        state: &[LocalId],
        seat: usize,
        input: Input,
        until_stall: Option<u32>,
        out: &mut Vec<Move>,
    ) -> Result<bool, Broken> {
        let next = self
            .step(state[seat], seat, input, until_stall)
            .and_then(|next| self.judge(state, seat, next))
            .map_err(|violation| Broken { seat, input, until_stall, violation })?;
        let Some(next) = next.filter(|next| *next != state[seat]) else { return Ok(false) };
        let stalled = self.locals[next as usize].replica.stalled;
        if until_stall.is_none() || stalled {
            out.push(Move { seat, input, until_stall, next });
        }
        Ok(stalled)
    }

    /// The same step, and the disk stalls after each of the records that it leads to.
    fn try_stalling(
        &mut self,
        state: &[LocalId],
        seat: usize,
        input: Input,
        out: &mut Vec<Move>,
    ) -> Result<(), Broken> {
        let replica = &self.locals[state[seat] as usize].replica;
        let crashes = matches!(input, Input::Crash(_));
        if !self.world.scope.lags(seat, replica.lives) || replica.stalled || crashes {
            return Ok(());
        }
        let mut records = 0;
        while self.try_input(state, seat, input, Some(records), out)? {
            records += 1;
        }
        Ok(())
    }

    fn speeches(&mut self, state: &[LocalId]) -> Vec<PostId> {
        if self.world.scope.liars.is_empty() {
            return Vec::new();
        }
        let mut votes: BTreeMap<u32, u32> = BTreeMap::new();
        let mut said = Said::default();
        for (seat, local) in state.iter().enumerate() {
            let local = &self.locals[*local as usize];
            let me = self.world.seats[seat];
            for number in &local.replica.posts {
                if let Some(ballot) = self.posts.post(*number).ballot {
                    *votes.entry(ballot).or_default() |= 1 << me.0;
                }
            }
            said.changes.extend(&local.changes);
            said.proposals.extend(&local.proposals);
        }
        said.votes = votes.into_iter().collect();
        said.changes.sort_unstable();
        said.proposals.sort_unstable();
        self.adversary.speeches(&self.world, &mut self.posts, &said)
    }

    /// What may happen to the replica in this seat; some of it changes nothing.
    fn inputs(&self, state: &[LocalId], seat: usize, speeches: &[PostId]) -> Vec<Input> {
        let scope = &self.world.scope;
        let local = &self.locals[state[seat] as usize];
        let me = self.world.seats[seat];
        let mut inputs = Vec::new();
        let mut votes: BTreeMap<u32, u32> = BTreeMap::new();
        for (other, number) in state.iter().enumerate() {
            let from = self.world.seats[other];
            if from == me {
                continue;
            }
            let other = &self.locals[*number as usize];
            let heard = other.posts[me.index()].iter().filter(|post| self.heard(local, **post));
            inputs.extend(heard.map(|post| Input::Deliver(*post)));
            for ballot in &other.ballots[me.index()] {
                *votes.entry(*ballot).or_default() |= 1 << from.0;
            }
        }
        let heard = speeches.iter().filter(|post| self.heard(local, **post));
        inputs.extend(heard.map(|post| Input::Deliver(*post)));
        let made_up = !scope.liars.is_empty() || scope.flaw == Some(Flaw::QuorumOffByOne);
        if scope.reduced() && made_up {
            for ballot in &local.own_ballots {
                votes.entry(*ballot).or_default();
            }
        }
        for (ballot, voters) in votes {
            let voters = self.voters(me, voters);
            let others_view = self.posts.ballot(ballot).view != local.view;
            let late = !self.posts.ballot(ballot).accept && others_view;
            if voters.count_ones() as usize + 1 >= self.world.quorum() && !late {
                inputs.push(Input::Votes(ballot, voters));
            }
        }
        inputs.extend(scope.later_views(local.view).map(Input::Join));
        let replica = &local.replica;
        let started = replica.machine.leads() && replica.machine.mode() == Mode::Started;
        if started && replica.offered() < scope.slots {
            inputs.push(Input::Request);
        }
        if scope.lags(seat, replica.lives) {
            inputs.extend((0..=replica.open_notes() as u32).map(Input::Crash));
        }
        if replica.lives > 0 {
            inputs.push(Input::Repeat);
        }
        inputs
    }

    /// Reduced: a view change is of use to the leader of its view while it gathers them; whoever
    /// hears it earlier may as well hear it then.
    fn heard(&self, local: &Local, post: PostId) -> bool {
        match &self.posts.post(post).message {
            Message::ViewChange(change) if self.world.scope.reduced() => {
                local.gathers && change.view == local.view
            }
            _ => true,
        }
    }

    /// Liars have voted for everything.
    fn voters(&self, me: ReplicaId, honest: u32) -> u32 {
        let mut voters = honest;
        for liar in &self.world.scope.liars {
            voters |= 1 << liar.0;
        }
        if self.world.scope.flaw == Some(Flaw::QuorumOffByOne) {
            let phantom = (0..self.world.n()).find(|id| *id != me.index() && voters >> id & 1 == 0);
            voters |= phantom.map_or(0, |id| 1 << id);
        }
        voters
    }

    fn step(
        &mut self,
        local: LocalId,
        seat: usize,
        input: Input,
        until_stall: Option<u32>,
    ) -> Result<Option<LocalId>, Violation> {
        if let Some(known) = self.memory.get(&(local, input, until_stall)) {
            return Ok(*known);
        }
        let replica = self.locals[local as usize].replica.clone();
        let (world, posts) = (&self.world, &mut self.posts);
        let worked = catch_unwind(AssertUnwindSafe(|| {
            let mut step = Step::new(world, posts, replica, until_stall);
            take(&mut step, input).map(|taken| taken.then_some(step.replica))
        }));
        let next = worked.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<&str>().map_or_else(
                || panic.downcast_ref::<String>().cloned().unwrap_or_default(),
                |text| (*text).to_owned(),
            );
            let what = format!("replica {}: its machine stops: {what}", self.world.seats[seat]);
            Err(Violation { rule: Rule::Agreement, what })
        })?;
        let next = next.map(|replica| self.number(replica));
        self.memory.insert((local, input, until_stall), next);
        Ok(next)
    }

    /// Holds what a replica delivers against what the others did.
    fn judge(
        &self,
        state: &[LocalId],
        seat: usize,
        next: Option<LocalId>,
    ) -> Result<Option<LocalId>, Violation> {
        let Some(number) = next.filter(|_| self.world.scope.honest(self.world.seats[seat])) else {
            return Ok(next);
        };
        let before = &self.locals[state[seat] as usize].replica;
        let after = &self.locals[number as usize].replica;
        if before.delivered == after.delivered {
            return Ok(next);
        }
        for (index, digest) in after.delivered.iter().enumerate() {
            let Some(digest) = digest else { continue };
            let slot = Slot(index as u64);
            for (other, local) in state.iter().enumerate() {
                let id = self.world.seats[other];
                let theirs = self.locals[*local as usize].replica.delivered[index];
                if self.world.scope.honest(id) && theirs.is_some_and(|theirs| theirs != *digest) {
                    let me = self.world.seats[seat];
                    let what = format!("slot {slot}: replicas {me} and {id} deliver two batches");
                    return Err(Violation { rule: Rule::Agreement, what });
                }
            }
            if !self.held_by_quorum(state, seat, number, slot, *digest) {
                let what = format!("slot {slot}: no quorum has the vote on disk");
                return Err(Violation { rule: Rule::Evidence, what });
            }
        }
        Ok(next)
    }

    /// Whether a quorum, liars and twins among it, holds votes of one view for the batch on disk.
    fn held_by_quorum(
        &self,
        state: &[LocalId],
        seat: usize,
        after: LocalId,
        slot: Slot,
        digest: Digest,
    ) -> bool {
        (0..self.world.scope.views).map(View).any(|view| {
            let mut holders = 0u32;
            for (other, local) in state.iter().enumerate() {
                let local = if other == seat { after } else { *local };
                let votes = &self.locals[local as usize].replica.promises.votes;
                if votes.contains(&(view, slot, digest)) {
                    holders |= 1 << self.world.seats[other].0;
                }
            }
            for liar in &self.world.scope.liars {
                holders |= 1 << liar.0;
            }
            holders.count_ones() as usize >= self.world.quorum()
        })
    }

    /// What can be told of a state from outside: of each replica its view and what it delivered.
    #[must_use]
    pub fn observable(&self, state: &[LocalId]) -> Observable {
        state
            .iter()
            .map(|local| {
                let replica = &self.locals[*local as usize].replica;
                (replica.machine.view(), replica.delivered.clone())
            })
            .collect()
    }

    /// For each view the different states of a replica that has just delivered in it.
    #[must_use]
    pub fn deliveries(&self) -> Vec<usize> {
        let mut deliveries = vec![0; self.world.scope.views as usize];
        for local in &self.locals {
            if local.replica.delivered.iter().any(Option::is_some)
                && let Some(count) = deliveries.get_mut(local.view.0 as usize)
            {
                *count += 1;
            }
        }
        deliveries
    }

    /// Rare branches of the machine that were reached: how many states of a replica have each
    /// behind them.
    #[must_use]
    pub fn marks(&self) -> Vec<(&'static str, usize)> {
        let count = |taken: fn(&Marks) -> u64| {
            let marks = self.locals.iter().map(|local| local.replica.machine.marks());
            marks.filter(|marks| taken(marks) > 0).count()
        };
        vec![
            ("locks carried", count(|marks| marks.locks_carried)),
            ("holes filled", count(|marks| marks.holes_filled)),
            ("batches asked for", count(|marks| marks.batches_asked_for)),
            ("writes withheld", count(|marks| marks.writes_withheld)),
            ("decisions fetched", count(|marks| marks.decisions_fetched)),
        ]
    }

    /// A state in which nothing can happen any more: with a last leader that is honest and did not
    /// restart in its view, every honest replica that did not either has delivered all slots.
    pub fn judge_end(&self, state: &[LocalId]) -> Result<(), Violation> {
        let scope = &self.world.scope;
        let last = View(scope.views - 1);
        let leader = last.leader(self.world.n());
        let restarted = |seat: usize| self.locals[state[seat] as usize].replica.lives > 0;
        let fair = (0..state.len()).any(|seat| {
            self.world.seats[seat] == leader && scope.honest(leader) && !restarted(seat)
        });
        if !fair {
            return Ok(());
        }
        for (id, local) in self.world.seats.iter().zip(state) {
            let replica = &self.locals[*local as usize].replica;
            let complete = replica.delivered[1..].iter().all(Option::is_some);
            if scope.honest(*id) && !complete {
                let what = format!("all was said and heard, and replica {id} lacks a slot");
                return Err(Violation { rule: Rule::Progress, what });
            }
        }
        Ok(())
    }
}

/// Gives the input to the machine; `false` if it is not to count as a step.
fn take(step: &mut Step<'_>, input: Input) -> Result<bool, Violation> {
    match input {
        Input::Deliver(post) => {
            let post = step.posts.post(post).clone();
            if let Message::Decisions { decisions, .. } = &post.message
                && let Some(last) = decisions.last()
            {
                step.ask(post.from, last.slot)?;
            }
            step.receive(post.from, post.message)?;
        }
        Input::Votes(ballot, voters) => return take_votes(step, ballot, voters),
        Input::Join(view) => step.join(view)?,
        Input::Request => {
            let before = step.posts.len();
            let said = step.replica.posts.clone();
            step.request()?;
            let beyond = step.replica.posts.iter().any(|number| {
                let message = &step.posts.post(*number).message;
                matches!(message, Message::Propose { slot, .. } if slot.0 > step.world.scope.slots)
            });
            let proposed = step.replica.posts.len() > said.len() || step.posts.len() > before;
            return Ok(proposed && !beyond);
        }
        Input::Crash(kept) => step.crash(kept as usize)?,
        Input::Repeat => step.repeat()?,
    }
    Ok(true)
}

/// Votes arrive one after the other until they complete something. Those that complete nothing
/// need not have arrived.
fn take_votes(step: &mut Step<'_>, ballot: u32, voters: u32) -> Result<bool, Violation> {
    let ballot = step.posts.ballot(ballot);
    let (view, slot, digest) = (ballot.view, ballot.slot, ballot.digest);
    let before = step.replica.machine.landmarks(slot);
    for id in (0..step.world.n() as u8).map(ReplicaId).filter(|id| voters >> id.0 & 1 == 1) {
        let signature = if step.world.scope.faults.is_byzantine() {
            step.world.sign_vote(id, ballot.kind(), slot, view, digest)
        } else {
            perdura_protocol::Signature::NONE
        };
        let message = if ballot.accept {
            Message::Accept { view, slot, digest, signature }
        } else {
            Message::Write { view, slot, digest, signature }
        };
        step.receive(id, message)?;
        if step.replica.machine.landmarks(slot) != before {
            return Ok(true);
        }
    }
    Ok(false)
}
