//! What liars can say. Nothing is chosen beforehand: whatever a liar can form from its own keys and
//! from what was said so far is there to be delivered, to anybody, at any time, or never. That
//! covers equivocation, double votes, silence, selective delivery, forgotten and made-up locks.
//!
//! Votes need no message of their own where they arrive in quorums: [`crate::model`] counts a liar
//! as having voted for everything. Forgeries (too few signatures, another replica's name) are offered too; a machine
//! that passes them over is in the same state as before.

use crate::posts::{Ballot, PostId, Posts};
use crate::world::World;
use perdura_agreement::canonical::{self, Form};
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{Batch, Certificate, Digest, ReplicaId, Signature, Slot, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What honest replicas have said so far, as far as it helps a liar.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Said {
    /// Ballots with the replicas (as bits) that voted.
    pub votes: Vec<(u32, u32)>,
    /// View changes, ascending.
    pub changes: Vec<PostId>,
    /// Proposals, ascending.
    pub proposals: Vec<PostId>,
}

/// The liars' memory of what can be said.
#[derive(Default)]
pub struct Adversary {
    known: HashMap<Said, Vec<PostId>>,
    new_views: HashMap<Vec<u8>, PostId>,
}

struct Speech<'a> {
    world: &'a World,
    posts: &'a mut Posts,
    said: &'a Said,
    new_views: &'a mut HashMap<Vec<u8>, PostId>,
    out: BTreeSet<PostId>,
}

impl Adversary {
    /// All that liars can say now, but for plain votes.
    pub fn speeches(&mut self, world: &World, posts: &mut Posts, said: &Said) -> Vec<PostId> {
        if let Some(known) = self.known.get(said) {
            return known.clone();
        }
        let new_views = &mut self.new_views;
        let mut speech = Speech { world, posts, said, new_views, out: BTreeSet::new() };
        for liar in world.scope.liars.clone() {
            speech.propose(liar);
            speech.change_views(liar);
            speech.start_views(liar);
            speech.prove_decisions(liar);
            if !world.scope.reduced() {
                speech.vote(liar);
            }
        }
        let speeches: Vec<PostId> = speech.out.into_iter().collect();
        self.known.insert(said.clone(), speeches.clone());
        speeches
    }
}

impl Speech<'_> {
    fn say(&mut self, from: ReplicaId, message: &Message) -> Option<PostId> {
        let number = self.posts.number(self.world, from, None, message)?;
        self.out.insert(number);
        Some(number)
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (1..=self.world.scope.slots).map(Slot)
    }

    fn views(&self) -> impl Iterator<Item = View> + use<> {
        (0..self.world.scope.views).map(View)
    }

    /// The liars' own two batches, the null batch, and whatever an honest leader proposed.
    fn batches(&self) -> Vec<Batch> {
        let mut batches = self.world.lies.to_vec();
        batches.push(Batch::null());
        for number in &self.said.proposals {
            if let Message::Propose { batch, .. } = &self.posts.post(*number).message
                && !batches.contains(batch)
            {
                batches.push(batch.clone());
            }
        }
        batches
    }

    fn propose(&mut self, liar: ReplicaId) {
        let batches = self.batches();
        for slot in self.slots() {
            for batch in &batches {
                self.say(liar, &Message::LockedBatch { slot, batch: batch.clone() });
                for view in self.views() {
                    // The null batch is of use where a view change leaves a gap.
                    let gap = view > View(0) && self.world.scope.slots > 1;
                    let null = batch.frames().is_empty();
                    if view.leader(self.world.n()) == liar && (!null || gap) {
                        let (batch, decided) = (batch.clone(), Slot(0));
                        let history = Digest::ZERO;
                        let message = Message::Propose { view, slot, batch, decided, history };
                        self.say(liar, &message);
                    }
                }
            }
        }
    }

    /// Where votes do not arrive in quorums, a liar's arrive one by one as well.
    fn vote(&mut self, liar: ReplicaId) {
        for batch in self.batches() {
            let digest = batch.digest();
            for (view, slot) in
                self.views().flat_map(|v| self.slots().map(move |s| (v, s))).collect::<Vec<_>>()
            {
                let signature = self.world.sign(liar, StatementKind::Write, view, slot, digest);
                self.say(liar, &Message::Write { view, slot, digest, signature });
                let signature =
                    self.world.sign_vote(liar, StatementKind::Accept, slot, view, digest);
                self.say(liar, &Message::Accept { view, slot, digest, signature });
            }
        }
    }

    /// Ballots of a kind with the signatures that are there, liars' own included.
    fn ballots(&self, accept: bool) -> Vec<(Ballot, Certificate)> {
        let mut ballots = Vec::new();
        for (number, voters) in &self.said.votes {
            let ballot = self.posts.ballot(*number);
            if ballot.accept == accept {
                ballots.push((ballot, self.certificate(ballot, *voters)));
            }
        }
        ballots
    }

    fn certificate(&self, ballot: Ballot, voters: u32) -> Certificate {
        let Ballot { view, slot, digest, .. } = ballot;
        let liars = &self.world.scope.liars;
        let mut signers: Vec<ReplicaId> = liars.clone();
        signers.extend(
            (0..self.world.n() as u8)
                .map(ReplicaId)
                .filter(|id| voters & (1 << id.0) != 0 && !liars.contains(id)),
        );
        signers.truncate(self.world.quorum());
        let sign = |id: &ReplicaId| (*id, self.world.sign(*id, ballot.kind(), view, slot, digest));
        Certificate::new(signers.iter().map(sign).collect())
    }

    /// The same with a signature of its own under another's name.
    fn padded(&self, certificate: &Certificate) -> Certificate {
        let mut signatures = certificate.signatures().to_vec();
        let missing = (0..self.world.n() as u8)
            .map(ReplicaId)
            .find(|id| signatures.iter().all(|(signer, _)| signer != id));
        signatures.extend(missing.map(|id| (id, Signature([id.0 + 1; 64]))));
        Certificate::new(signatures)
    }

    /// Every choice of locks for a view change: per slot none, or any that Writes prove; and ones
    /// that lack a Write.
    fn lock_choices(&self, before: View) -> Vec<Vec<Lock>> {
        let mut choices: Vec<Vec<Lock>> = vec![Vec::new()];
        let ballots = self.ballots(false);
        let mut forged = Vec::new();
        for slot in self.slots() {
            let mut more = choices.clone();
            for (ballot, writes) in &ballots {
                if ballot.slot != slot || ballot.view >= before {
                    continue;
                }
                let Ballot { view, digest, .. } = *ballot;
                let missing = self.world.quorum() - writes.len();
                let lock = Lock { slot, view, digest, writes: writes.clone() };
                match missing {
                    0 => more.extend(choices.iter().map(|locks| {
                        let mut locks = locks.clone();
                        locks.push(lock.clone());
                        locks
                    })),
                    1 => {
                        let writes = self.padded(writes);
                        forged.push(vec![Lock { writes, ..lock.clone() }]);
                        forged.push(vec![lock]);
                    }
                    _ => {}
                }
            }
            choices = more;
        }
        choices.extend(forged);
        choices
    }

    fn view_change(&self, liar: ReplicaId, view: View, locks: Vec<Lock>) -> ViewChange {
        let mut change = ViewChange {
            view,
            sender: liar,
            configuration: 0,
            prefix: PrefixCertificate::genesis(),
            locks,
            signature: Signature::NONE,
        };
        let digest = change.body_digest();
        change.signature = self.world.sign(liar, StatementKind::ViewChange, view, Slot(0), digest);
        change
    }

    fn change_views(&mut self, liar: ReplicaId) {
        for view in self.views().skip(1) {
            for locks in self.lock_choices(view) {
                let change = self.view_change(liar, view, locks);
                self.say(liar, &Message::ViewChange(Box::new(change)));
            }
        }
    }

    /// View changes for a view by sender: those that were said, and whatever liars may say.
    fn changes_for(&self, view: View) -> BTreeMap<ReplicaId, Vec<ViewChange>> {
        let mut changes: BTreeMap<ReplicaId, Vec<ViewChange>> = BTreeMap::new();
        for number in &self.said.changes {
            if let Message::ViewChange(change) = &self.posts.post(*number).message
                && change.view == view
            {
                changes.entry(change.sender).or_default().push(change.as_ref().clone());
            }
        }
        for liar in self.world.scope.liars.clone() {
            for locks in self.lock_choices(view) {
                changes.entry(liar).or_default().push(self.view_change(liar, view, locks));
            }
        }
        changes
    }

    /// A new view from every set of view changes, too small ones included.
    fn start_views(&mut self, liar: ReplicaId) {
        for view in self.views().skip(1) {
            if view.leader(self.world.n()) != liar {
                continue;
            }
            let mut sets: Vec<Vec<ViewChange>> = vec![Vec::new()];
            for candidates in self.changes_for(view).values() {
                let mut more = sets.clone();
                for change in candidates {
                    more.extend(sets.iter().map(|set| {
                        let mut set = set.clone();
                        set.push(change.clone());
                        set
                    }));
                }
                sets = more;
            }
            let smallest = self.world.quorum() - 1;
            for set in sets.into_iter().filter(|set| set.len() >= smallest) {
                self.start_view(liar, view, set);
            }
        }
    }

    fn start_view(&mut self, liar: ReplicaId, view: View, changes: Vec<ViewChange>) {
        let sound = changes.len() >= self.world.quorum()
            && changes.iter().flat_map(|change| &change.locks).all(|lock| {
                let Lock { slot, view, digest, writes } = lock;
                self.world.is_certified(writes, StatementKind::Write, *view, *slot, *digest)
            });
        let signature = Signature::NONE;
        let mut new_view = NewView { view, sender: liar, configuration: 0, changes, signature };
        let digest = new_view.body_digest();
        new_view.signature = self.world.sign(liar, StatementKind::NewView, view, Slot(0), digest);
        let message = Message::NewView(Box::new(new_view));
        if !sound {
            self.say(liar, &message);
            return;
        }
        // Sound ones that start the view alike are one.
        let key = canonical::message(Form::Live, &message);
        if let Some(number) = self.new_views.get(&key) {
            self.out.insert(*number);
        } else if let Some(number) = self.say(liar, &message) {
            self.new_views.insert(key, number);
        }
    }

    fn prove_decisions(&mut self, liar: ReplicaId) {
        let batches = self.batches();
        for (ballot, accepts) in self.ballots(true) {
            let Ballot { view, slot, digest, .. } = ballot;
            let missing = self.world.quorum() - accepts.len();
            let batch = batches.iter().find(|batch| batch.digest() == digest);
            let (Some(batch), true) = (batch, missing <= 1) else { continue };
            let forged = (missing == 1).then(|| self.padded(&accepts));
            for accepts in std::iter::once(accepts).chain(forged) {
                let decision = Decision { slot, view, accepts, batch: batch.clone() };
                let message =
                    Message::Decisions { decisions: vec![decision], prefix: None, between: vec![] };
                self.say(liar, &message);
            }
        }
    }
}
