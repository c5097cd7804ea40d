//! What is known about one slot: the proposal of the current view, votes by replica, this
//! replica's own lock, and the decision.

use perdura_protocol::keys::{Claim, Scheme};
use perdura_protocol::statement::{STATEMENT_BYTES, StatementKind};
use perdura_protocol::viewchange::Lock;
use perdura_protocol::{
    Batch, Certificate, Configuration, Context, Digest, ReplicaId, Signature, Slot, View,
};
use std::cell::Cell;

/// One replica's vote in one step.
#[derive(Clone, Copy, Debug)]
pub struct Vote {
    /// The view of the vote.
    pub view: View,
    /// The batch.
    pub digest: Digest,
    /// Over the step's statement.
    pub signature: Signature,
    /// Whether the signature was found genuine, or needs none.
    pub verified: bool,
}

/// The latest vote of each replica in one step (Write or Accept).
#[derive(Clone, Debug)]
pub struct Votes {
    by_replica: Vec<Option<Vote>>,
}

/// What came of adding a vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It counts.
    New,
    /// It was there, or is older than what is there.
    Stale,
    /// The same replica voted for another batch in the same view.
    Conflict,
}

impl Votes {
    /// No votes of `n` replicas.
    #[must_use]
    pub fn new(n: usize) -> Votes {
        Votes { by_replica: vec![None; n] }
    }

    /// Keeps the vote if it is of a later view than what is there. One vote per replica bounds
    /// the memory whatever peers send (A6).
    pub fn add(&mut self, from: ReplicaId, vote: Vote) -> Added {
        let Some(place) = self.by_replica.get_mut(from.index()) else { return Added::Stale };
        match place {
            Some(held) if held.view > vote.view => Added::Stale,
            Some(held) if held.view == vote.view && held.digest == vote.digest => {
                // A second signature for the same vote replaces one that may have been garbage.
                if !held.verified && held.signature != vote.signature {
                    *place = Some(vote);
                    return Added::New;
                }
                Added::Stale
            }
            Some(held) if held.view == vote.view && held.verified => Added::Conflict,
            _ => {
                *place = Some(vote);
                Added::New
            }
        }
    }

    /// The vote of one replica.
    #[must_use]
    pub fn of(&self, replica: ReplicaId) -> Option<&Vote> {
        self.by_replica.get(replica.index()).and_then(Option::as_ref)
    }

    /// A quorum of verified votes for (view, digest) as certificate, if there is one. Verifies
    /// only when enough votes are there, and only those; drops what is not genuine and names the
    /// replicas that sent it in `liars`.
    pub fn quorum(
        &mut self,
        view: View,
        digest: Digest,
        quorum: usize,
        judge: &Judge<'_>,
        liars: &mut Vec<ReplicaId>,
    ) -> Option<Certificate> {
        loop {
            let chosen = self.chosen(view, digest, quorum, judge.me);
            if chosen.len() < quorum {
                return None;
            }
            if self.verify(&chosen, judge, liars) {
                let signatures = chosen
                    .iter()
                    .filter_map(|id| self.of(*id).map(|vote| (*id, vote.signature)))
                    .collect();
                return Some(Certificate::new(signatures));
            }
        }
    }

    /// Whose votes for (view, digest) make a certificate, at most a quorum.
    #[must_use]
    pub fn chosen(
        &self,
        view: View,
        digest: Digest,
        quorum: usize,
        me: ReplicaId,
    ) -> Vec<ReplicaId> {
        let mut chosen = self.matching(view, digest);
        // Known votes first: they cost nothing. The own one before all: of a lock, it says after a
        // restart that it was sent.
        let known = |id: &ReplicaId| self.of(*id).is_some_and(|vote| vote.verified);
        chosen.sort_by_key(|id| (*id != me, !known(id), *id));
        chosen.truncate(quorum);
        chosen
    }

    /// The vote of one replica was found genuine.
    pub fn confirm(&mut self, replica: ReplicaId) {
        if let Some(Some(vote)) = self.by_replica.get_mut(replica.index()) {
            vote.verified = true;
        }
    }

    /// How many replicas' latest vote is for (view, digest).
    #[must_use]
    pub fn count(&self, view: View, digest: Digest) -> usize {
        let wanted = |vote: &&Vote| vote.view == view && vote.digest == digest;
        self.by_replica.iter().flatten().filter(wanted).count()
    }

    /// Replicas whose latest vote is for (view, digest).
    #[must_use]
    pub fn matching(&self, view: View, digest: Digest) -> Vec<ReplicaId> {
        let same = |(_, vote): &(ReplicaId, &Vote)| (vote.view, vote.digest) == (view, digest);
        self.all().filter(same).map(|(id, _)| id).collect()
    }

    /// All of them, by replica.
    pub fn all(&self) -> impl Iterator<Item = (ReplicaId, &Vote)> {
        let places = (0u8..).zip(&self.by_replica);
        places.filter_map(|(id, vote)| vote.as_ref().map(|vote| (ReplicaId(id), vote)))
    }

    /// The (view, digest) pairs that at least `quorum` replicas voted for.
    #[must_use]
    pub fn candidate(&self, quorum: usize) -> Option<(View, Digest)> {
        self.by_replica
            .iter()
            .flatten()
            .map(|vote| (vote.view, vote.digest))
            .find(|(view, digest)| self.count(*view, *digest) >= quorum)
    }

    fn verify(
        &mut self,
        chosen: &[ReplicaId],
        judge: &Judge<'_>,
        liars: &mut Vec<ReplicaId>,
    ) -> bool {
        let open: Vec<(ReplicaId, Vote)> = chosen
            .iter()
            .filter_map(|id| self.of(*id).map(|vote| (*id, *vote)))
            .filter(|(_, vote)| !vote.verified)
            .collect();
        let verdicts = judge.verdicts(&open);
        for ((id, _), genuine) in open.iter().zip(&verdicts) {
            let place = &mut self.by_replica[id.index()];
            if *genuine {
                if let Some(vote) = place {
                    vote.verified = true;
                }
            } else {
                *place = None;
                liars.push(*id);
            }
        }
        verdicts.iter().all(|genuine| *genuine)
    }
}

/// Verifies votes of one kind about one slot.
pub struct Judge<'a> {
    /// Who asks: its own vote is in every certificate that it is for.
    pub me: ReplicaId,
    /// Signature scheme; `None` when r = 0, where links authenticate votes.
    pub scheme: Option<Scheme>,
    /// The configuration that governs the slot.
    pub configuration: &'a Configuration,
    /// Its context.
    pub context: Context,
    /// Write or Accept.
    pub kind: StatementKind,
    /// The slot.
    pub slot: Slot,
    /// Unpredictable bytes for batch verification.
    pub entropy: [u8; 32],
    /// Signatures looked at so far.
    pub verified: Cell<u64>,
}

impl Judge<'_> {
    fn verdicts(&self, votes: &[(ReplicaId, Vote)]) -> Vec<bool> {
        let Some(scheme) = self.scheme else { return vec![true; votes.len()] };
        if votes.is_empty() {
            return Vec::new();
        }
        let claims: Vec<Option<Claim<[u8; STATEMENT_BYTES]>>> = votes
            .iter()
            .map(|(id, vote)| {
                let key = self.configuration.key(*id)?;
                let message = self.context.statement(self.kind, vote.view, self.slot, vote.digest);
                Some(Claim { key, message, signature: vote.signature })
            })
            .collect();
        let known: Vec<Claim<[u8; STATEMENT_BYTES]>> = claims.iter().flatten().cloned().collect();
        self.verified.set(self.verified.get() + known.len() as u64);
        let mut verdicts = scheme.verify_all(&known, self.entropy).into_iter();
        claims.iter().map(|claim| claim.is_some() && verdicts.next().unwrap_or(false)).collect()
    }
}

/// This replica's vote to accept, the strongest promise it makes about a slot.
#[derive(Clone, Debug)]
pub struct Locked {
    /// The view of the vote.
    pub view: View,
    /// The batch.
    pub batch: Batch,
    /// r > 0: the quorum of Writes that justified it.
    pub writes: Certificate,
    /// Position in the log; the vote may be spoken of once that is on disk.
    pub sequence: u64,
}

impl Locked {
    /// As evidence for a view change.
    #[must_use]
    pub fn evidence(&self, slot: Slot) -> Lock {
        Lock { slot, view: self.view, digest: self.batch.digest(), writes: self.writes.clone() }
    }
}

/// A decision about a slot.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The view of the Accepts (or of the leader's word when r = 0).
    pub view: View,
    /// The batch.
    pub batch: Batch,
    /// r > 0: a quorum of genuine Accepts; empty if a Prefix certificate covers the slot, or as long as
    /// they were not looked at (`proofs`).
    pub accepts: Certificate,
}

/// A proposal of the current view.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The view.
    pub view: View,
    /// The batch.
    pub batch: Batch,
}

/// All that is known about a slot.
#[derive(Clone, Debug)]
pub struct SlotState {
    /// The current view's proposal.
    pub proposal: Option<Proposal>,
    /// The view and batch of the Write that this replica sent last.
    pub written: Option<(View, Digest, Signature)>,
    /// Writes by replica.
    pub writes: Votes,
    /// Accepts by replica.
    pub accepts: Votes,
    /// This replica's vote.
    pub locked: Option<Locked>,
    /// The decision.
    pub decided: Option<Decided>,
    /// When the first proposal arrived, for timing the leader.
    pub since_ms: u64,
}

impl SlotState {
    /// Nothing is known.
    #[must_use]
    pub fn new(n: usize, now_ms: u64) -> SlotState {
        SlotState {
            proposal: None,
            written: None,
            writes: Votes::new(n),
            accepts: Votes::new(n),
            locked: None,
            decided: None,
            since_ms: now_ms,
        }
    }

    /// The batch with this digest, if it is held in whatever role.
    #[must_use]
    pub fn batch(&self, digest: Digest) -> Option<&Batch> {
        let proposal = self.proposal.as_ref().map(|proposal| &proposal.batch);
        let locked = self.locked.as_ref().map(|locked| &locked.batch);
        let decided = self.decided.as_ref().map(|decided| &decided.batch);
        [proposal, locked, decided].into_iter().flatten().find(|batch| batch.digest() == digest)
    }

    /// Bytes of batches held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.proposal.as_ref().map_or(0, |proposal| proposal.batch.raw().len())
    }
}
