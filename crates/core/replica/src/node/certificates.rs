//! Signed digests of states, and the certificates that they make (D7).
//!
//! A replica signs the digest of a state once it is durable here, and with sequential checkpoints as
//! soon as it is known; m + 1 equal ones certify it. What
//! counts is the newest certified state that is stored here: that is the one which can be offered, and
//! its certificate goes to the log, so that it can be after a restart. A certificate takes up the
//! signatures of all who vote, also later: who was away while members were replaced knows the keys of
//! some signers only, and has to find m + 1 among those.

use super::checkpoints::{Checkpointing, Stored};
use super::ingress::Origin;
use super::{Node, Now, Output, Peer};
use perdura_protocol::message::{Message, StateCertificate};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{
    Certificate, Configuration, Context, Digest, Record, ReplicaId, Signature, Slot, View,
};
use std::collections::BTreeMap;

/// Votes for states are repeated to all not more often than this, whoever asks for states.
const REPEAT_MS: u64 = 200;

/// Least number of states that are certified before they are stored here: of those that are being
/// stored and that wait for it, and of some that are passed over. As many as there are votes for, so
/// that none is verified again and again.
const AHEAD: usize = 4;

/// A replica's word about its state.
type Vote = (Slot, Digest, Signature);

/// What is signed and certified.
pub(super) struct Certificates {
    // The latest of each replica, ascending by slot; so many, so that a liar takes no memory, and beside them those
    // for states that are digested here.
    votes: Vec<Vec<Vote>>,
    most: usize,
    // The newest of a state that is stored here.
    newest: Option<StateCertificate>,
    // Of newer states, which are not.
    ahead: BTreeMap<Slot, StateCertificate>,
}

impl Certificates {
    /// Of `n` replicas, with votes for `most` states of each.
    pub fn new(n: usize, most: usize) -> Certificates {
        Certificates { votes: vec![Vec::new(); n], most, newest: None, ahead: BTreeMap::new() }
    }

    /// All that are known, the newest first.
    pub fn all(&self) -> impl Iterator<Item = &StateCertificate> {
        self.ahead.values().rev().chain(&self.newest)
    }

    fn most_ahead(&self) -> usize {
        self.most.max(AHEAD)
    }

    /// Whether a certificate of the state after `slot` would not be kept.
    fn is_passed_over(&self, slot: Slot) -> bool {
        let first = self.ahead.first_key_value().map(|(first, _)| *first);
        self.ahead.len() >= self.most_ahead() && first.is_some_and(|first| slot < first)
    }

    /// The slot of the newest of a state that is stored here; 0 if there is none.
    pub fn slot(&self) -> Slot {
        self.newest.as_ref().map_or(Slot(0), |state| state.slot)
    }

    fn of(&mut self, slot: Slot) -> Option<&mut StateCertificate> {
        let newest = self.newest.as_mut().filter(|state| state.slot == slot);
        newest.or_else(|| self.ahead.get_mut(&slot))
    }

    /// Whether the vote is news. Those for states that are digested here, at the slots `own`, stay whatever comes: where
    /// digesting falls behind the turns to store, the newest votes are for states that one replica each knows.
    fn add_vote(&mut self, from: ReplicaId, vote: Vote, own: &[Slot]) -> bool {
        let Some(held) = self.votes.get_mut(from.index()) else { return false };
        match held.binary_search_by_key(&vote.0, |old| old.0) {
            Ok(place) if held[place] == vote => return false,
            Ok(place) => held[place] = vote,
            Err(place) => held.insert(place, vote),
        }
        while held.len() > self.most
            && let Some(oldest) = held.iter().position(|vote| !own.contains(&vote.0))
        {
            held.remove(oldest);
        }
        held.contains(&vote)
    }

    pub fn votes(&self, slot: Slot) -> Vec<(ReplicaId, Digest, Signature)> {
        let of_slot = |(id, held): (u8, &Vec<Vote>)| {
            let vote = held.iter().find(|vote| vote.0 == slot)?;
            Some((ReplicaId(id), vote.1, vote.2))
        };
        (0u8..).zip(&self.votes).filter_map(of_slot).collect()
    }

    fn is_voted_on(&self, slot: Slot) -> bool {
        self.votes.iter().flatten().any(|vote| vote.0 == slot)
    }

    fn forget_votes(&mut self, of: ReplicaId) {
        self.votes[of.index()].clear();
    }
}

impl Checkpointing {
    fn add_vote(&mut self, from: ReplicaId, vote: Vote) -> bool {
        let stored = self.stored.iter().map(Stored::slot);
        let own: Vec<Slot> = stored.chain(self.digests.iter().map(|digest| digest.0)).collect();
        self.certificates.add_vote(from, vote, &own)
    }

    /// Keeps a certificate for when the state is stored here, that of one that is being stored in any
    /// case.
    fn add_ahead(&mut self, state: StateCertificate) {
        self.certificates.ahead.insert(state.slot, state);
        let ahead = &self.certificates.ahead;
        let needless = ahead.keys().find(|slot| !self.is_storing(**slot)).copied();
        if let Some(needless) = needless.filter(|_| ahead.len() > self.certificates.most_ahead()) {
            self.certificates.ahead.remove(&needless);
        }
    }
}

impl Node {
    /// "My state after this slot has this digest, and is durable here."
    pub(super) fn vote_for_state(&mut self, slot: Slot, digest: Digest) {
        if let Some(signature) = self.sign_state(slot, digest) {
            let me = self.me;
            self.broadcast(&Message::Checkpoint { slot, digest, signature });
            if self.checkpointing.add_vote(me, (slot, digest, signature)) {
                self.compare_votes(slot, me);
            }
        }
        self.certify_state(slot);
    }

    /// Nothing about slots in which this replica's predecessor was the member: it has another key,
    /// and whoever signs for it with this one passes for a liar. So does who signs about slots of a
    /// configuration that is too old to be known.
    fn sign_state(&self, slot: Slot, digest: Digest) -> Option<Signature> {
        let configurations = self.agreement.configurations();
        let members = configurations.governing(slot);
        let member = members.and_then(|m| m.key(self.me)) == Some(self.key.public());
        let context = configurations.context_at(slot);
        member.then(|| {
            self.key.sign(&context.statement(StatementKind::Checkpoint, View(0), slot, digest))
        })
    }

    fn stored_states(&self) -> Vec<(Slot, Digest)> {
        let stored = self.checkpointing.stored.iter();
        stored.map(|stored| (stored.slot(), stored.digest)).collect()
    }

    /// After a restart: the newest state here that the log says is certified, and what was voted for
    /// before counts again; peers hear it on link up.
    pub(super) fn recall_certificates(&mut self, certified: Vec<StateCertificate>) {
        let states = self.stored_states();
        let stored = |state: &StateCertificate| states.iter().any(|held| held.0 == state.slot);
        let known = self.execution.configurations();
        let genuine = |state| self.without_false_signatures(state, known);
        let certified = certified.into_iter().filter(stored).filter_map(genuine);
        let newest = certified.max_by_key(|state| state.slot);
        if let Some(state) = newest {
            self.judge_own_state(state.slot, state.digest);
            self.checkpointing.proven = state.slot;
            self.checkpointing.certificates.newest = Some(state);
        }
        for (slot, digest) in states {
            if let Some(signature) = self.sign_state(slot, digest) {
                let me = self.me;
                self.checkpointing.add_vote(me, (slot, digest, signature));
                self.certify_state(slot);
            }
        }
    }

    pub(super) fn repeat_checkpoint_votes(&mut self, to: ReplicaId) {
        for vote in self.own_votes() {
            self.send(&[Peer::Replica(to)], &vote);
        }
    }

    /// For what is stored here, and for the latest that were digested.
    fn own_votes(&self) -> Vec<Message> {
        let mut states = self.stored_states();
        let digested = self.checkpointing.digests.iter().copied();
        let unstored: Vec<_> = digested.filter(|state| !states.contains(state)).collect();
        states.extend(unstored);
        let vote = |(slot, digest)| {
            let signature = self.sign_state(slot, digest)?;
            Some(Message::Checkpoint { slot, digest, signature })
        };
        states.into_iter().filter_map(vote).collect()
    }

    /// Votes get lost, and a restart forgets those of others: as long as the newest state here is
    /// not certified, whoever asks for one makes all who are asked vote again. Where others store
    /// what is digested here, it is not known here what is certified there.
    pub(super) fn repeat_uncertified_votes(&mut self, now: Now) {
        if now.monotonic_ms < self.voted_ms + REPEAT_MS {
            return;
        }
        self.voted_ms = now.monotonic_ms;
        let elsewhere = !self.checkpointing.digests.is_empty();
        if elsewhere || self.checkpointing.certificates.slot() < self.checkpointing.slot() {
            for vote in self.own_votes() {
                self.broadcast(&vote);
            }
        }
    }

    pub(super) fn on_checkpoint_vote(
        &mut self,
        now: Now,
        from: ReplicaId,
        slot: Slot,
        digest: Digest,
        signature: Signature,
    ) {
        if self.ingress.penalty(Origin::Replica(from)).holds(now.monotonic_ms) {
            return;
        }
        if self.checkpointing.add_vote(from, (slot, digest, signature)) {
            self.compare_votes(slot, from);
            self.certify_state(slot);
        }
    }

    /// Looks for m + 1 genuine and equal digests of one slot's state, and takes up more of them. Who
    /// is behind does not know in which configuration, and with which keys, others sign, and so could
    /// not blame anybody for what it verifies in vain: it looks at the votes again when it has stored
    /// that state itself.
    pub(super) fn certify_state(&mut self, slot: Slot) {
        let storing = self.checkpointing.is_storing(slot) || self.checkpointing.is_known(slot);
        let certificates = &mut self.checkpointing.certificates;
        if slot < certificates.slot() || slot > self.execution.slot() {
            return;
        }
        // Nor can it judge what is signed about slots before the oldest configuration that it knows.
        let Some(governing) = self.agreement.configurations().governing(slot) else { return };
        let governing = governing.id;
        if certificates.is_passed_over(slot) && !storing {
            return;
        }
        let held = certificates.of(slot).cloned();
        let quorum = self.parameters.faults.state_certificate();
        let votes = certificates.votes(slot);
        let enough = |digest: &Digest| votes.iter().filter(|v| v.1 == *digest).count() >= quorum;
        let digest = held.as_ref().map(|held| held.digest);
        if let Some(certified) = digest {
            let mut others = votes.iter().map(|vote| vote.1).filter(|other| *other != certified);
            if let Some(other) = others.find(enough) {
                self.doubt(slot, other, governing, &votes);
            }
        }
        let Some(digest) = digest.or_else(|| votes.iter().map(|vote| vote.1).find(enough)) else {
            return;
        };
        let configuration = held.as_ref().map_or(governing, |held| held.configuration);
        let mut genuine: BTreeMap<ReplicaId, Signature> =
            held.iter().flat_map(|held| held.certificate.signatures().iter().copied()).collect();
        let before = genuine.len();
        for (id, _, signature) in votes.into_iter().filter(|vote| vote.1 == digest) {
            if genuine.contains_key(&id) {
                continue;
            }
            let single = Certificate::new(vec![(id, signature)]);
            let state = StateCertificate { slot, digest, configuration, certificate: single };
            self.counters.statements_verified += 1;
            if self.state_certified(&state, 1) {
                genuine.insert(id, signature);
            } else {
                self.strike_voter(id);
            }
        }
        if genuine.len() < quorum || genuine.len() == before {
            return;
        }
        if held.is_none() {
            self.counters.states_certified += 1;
            self.judge_own_state(slot, digest);
        }
        let certificate = Certificate::new(genuine.into_iter().collect());
        self.learn_certificate(StateCertificate { slot, digest, configuration, certificate });
    }

    /// A vote of this replica was not signed by it.
    pub(super) fn strike_voter(&mut self, id: ReplicaId) {
        self.checkpointing.certificates.forget_votes(id);
        self.ingress.strike(Origin::Replica(id), self.ticked_ms);
    }

    /// If another digest than the certified one of a slot has m + 1 genuine signatures too, nobody
    /// knows which state is right, and nobody repairs.
    fn doubt(
        &mut self,
        slot: Slot,
        other: Digest,
        configuration: u64,
        votes: &[(ReplicaId, Digest, Signature)],
    ) {
        let signatures = votes.iter().filter(|vote| vote.1 == other);
        let signatures = signatures.map(|(id, _, signature)| (*id, *signature)).collect();
        let certificate = Certificate::new(signatures);
        let state = StateCertificate { slot, digest: other, configuration, certificate };
        if !self.halted && self.state_certified(&state, self.parameters.faults.state_certificate())
        {
            self.counters.diverged = true;
            self.halt(format!(
                "two states after slot {slot} are certified: more than {} replicas lie, or replicas \
                 run different programs. Nothing is repaired; find out which",
                self.parameters.faults.r()
            ));
        }
    }

    /// A state is proven to this replica. What is known to have signed it before counts on: others
    /// may have told it by fewer signatures.
    pub(super) fn learn_certificate(&mut self, mut state: StateCertificate) {
        let stored = self.stored_states().iter().any(|held| held.0 == state.slot);
        let certificates = &mut self.checkpointing.certificates;
        if state.slot < certificates.slot() {
            return;
        }
        let statement = |of: &StateCertificate| (of.digest, of.configuration);
        if let Some(held) = certificates.of(state.slot)
            && statement(held) == statement(&state)
        {
            let (old, new) = (held.certificate.signatures(), state.certificate.signatures());
            state.certificate = Certificate::new([old, new].concat());
        }
        if !stored {
            self.checkpointing.add_ahead(state);
            return;
        }
        certificates.ahead = certificates.ahead.split_off(&state.slot.next());
        certificates.newest = Some(state.clone());
        self.checkpointing.drop_apart(self.ticked_ms);
        self.log_certificate(state);
    }

    /// So that this replica can prove its state to others after a restart.
    pub(super) fn log_certificate(&mut self, state: StateCertificate) {
        let slot = state.slot;
        let of_same = |record: &Record| matches!(record, Record::State(old) if old.slot == slot);
        let record = Record::State(state);
        self.journal.note_anew(self.ticked_ms, record, of_same);
    }

    /// The digest of a state is known; others may have certified it before.
    pub(super) fn judge_early(&mut self, slot: Slot) {
        let certified = self.checkpointing.certificates.of(slot).map(|state| state.digest);
        if let Some(digest) = certified {
            self.judge_own_state(slot, digest);
        }
    }

    /// A slot that was executed is no boundary here; others may have signed its state before.
    pub(super) fn judge_no_boundary(&mut self, slot: Slot) {
        if self.checkpointing.certificates.is_voted_on(slot) {
            self.certify_state(slot);
        }
    }

    /// A state has been stored; others may have certified it before.
    pub(super) fn state_is_stored(&mut self, slot: Slot) {
        if let Some(state) = self.checkpointing.certificates.ahead.remove(&slot) {
            self.judge_own_state(slot, state.digest);
            self.learn_certificate(state);
        }
    }

    /// A replica whose digest loses must not go on: its answers may be wrong.
    fn judge_own_state(&mut self, slot: Slot, certified: Digest) {
        let own = self.checkpointing.own_digest(slot);
        if own.is_some_and(|digest| digest != certified) {
            self.diverge(format!(
                "the state after slot {slot} differs from the one that a quorum of replicas signed"
            ));
        } else if own.is_none() && self.checkpointing.is_no_boundary(slot) {
            // Its digests would never be held against those of others.
            self.diverge(format!(
                "a quorum of replicas signed the state after slot {slot}, where this one has no \
                 boundary: it counts slots, or the size of its state, otherwise"
            ));
        }
    }

    /// What is certified and stored is right on disk, whatever is in memory, and so is the log.
    pub(super) fn diverge(&mut self, what: String) {
        if !self.halted {
            self.halted = true;
            self.counters.diverged = true;
            let trusted = self.checkpointing.certificates.slot();
            self.outputs.push_back(Output::Diverged { trusted, what });
        }
    }

    /// Whether at least `quorum` genuine signatures certify a state, in the configuration that governs
    /// its slot: keys of members who were replaced before are void. A replica that was away may
    /// not know that configuration yet: it goes by those that it executed and by the newest that its file
    /// knows, and for numbers between and above them by the newest members of all.
    pub(super) fn state_certified(&self, state: &StateCertificate, quorum: usize) -> bool {
        if !self.may_govern(state.configuration, state.slot) {
            return false;
        }
        let configurations = self.agreement.configurations();
        let members = configurations.by_id(state.configuration);
        let newest = self.linked(configurations.latest());
        let members = members.unwrap_or(&newest);
        self.genuine_signatures(state, members).len() >= quorum
    }

    /// As [`Configurations::may_govern`](perdura_protocol::Configurations::may_govern), with what the
    /// configuration file knows beyond that.
    fn may_govern(&self, id: u64, slot: Slot) -> bool {
        let (configurations, file) = (self.agreement.configurations(), &self.newest);
        let newer = file.id > configurations.latest().id;
        let by_file = (file.from_slot <= slot) == (file.id <= id);
        configurations.may_govern(id, slot) && (by_file || !newer)
    }

    fn genuine_signatures(
        &self,
        state: &StateCertificate,
        members: &Configuration,
    ) -> Vec<(ReplicaId, Signature)> {
        let cluster = self.agreement.configurations().cluster();
        let context = Context { cluster, configuration: state.configuration };
        let message =
            context.statement(StatementKind::Checkpoint, View(0), state.slot, state.digest);
        let genuine = |(id, signature): &&(ReplicaId, Signature)| {
            members.key(*id).is_some_and(|key| self.scheme.verify(key, &message, *signature))
        };
        state.certificate.signatures().iter().filter(genuine).copied().collect()
    }

    /// A certificate that came from another replica, without what a liar may have put beside enough
    /// genuine signatures: that would be passed on as proven, and its place would never be taken by what
    /// that member signed. None if too few are left. As it came where the members are not among those
    /// that are `known`.
    pub(super) fn without_false_signatures(
        &self,
        state: StateCertificate,
        known: &[Configuration],
    ) -> Option<StateCertificate> {
        let governing = known.iter().rev().find(|members| members.from_slot <= state.slot);
        let Some(members) = governing else { return Some(state) };
        if members.id != state.configuration {
            return None;
        }
        let genuine = self.genuine_signatures(&state, members);
        let enough = genuine.len() >= self.parameters.faults.state_certificate();
        enough.then(|| StateCertificate { certificate: Certificate::new(genuine), ..state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(slot: u64) -> Vote {
        (Slot(slot), Digest::of(&slot.to_le_bytes()), Signature([0; 64]))
    }

    #[test]
    fn a_late_vote_for_a_state_that_is_digested_here_takes_no_place_and_loses_none() {
        let (own, liar) = ([Slot(10), Slot(20)], ReplicaId(1));
        let mut certificates = Certificates::new(3, 5);
        for slot in 30..80 {
            assert!(certificates.add_vote(liar, vote(slot), &own));
        }
        assert!(certificates.add_vote(liar, vote(20), &own), "it is digested here");
        assert!(!certificates.add_vote(liar, vote(20), &own), "it is no news");
        assert!(!certificates.add_vote(liar, vote(11), &own), "it is not");
        for slot in 80..90 {
            certificates.add_vote(liar, vote(slot), &own);
        }
        assert_eq!(certificates.votes(Slot(20)).len(), 1);
        assert_eq!(certificates.votes[1].len(), 5);
        certificates.add_vote(liar, vote(10), &own);
        assert_eq!(
            certificates.votes[1].iter().map(|vote| vote.0.0).collect::<Vec<_>>(),
            [10, 20, 87, 88, 89]
        );
        certificates.add_vote(liar, vote(90), &[Slot(90)]);
        assert_eq!(certificates.votes[1].len(), 5, "what is no longer known here goes");
    }
}
