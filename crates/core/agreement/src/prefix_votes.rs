//! Signed prefixes that are not certified yet, the latest of each replica.
//!
//! Of each replica so many are kept, whatever others send (A6): nobody's words make room for a liar's.

use perdura_protocol::{Digest, ReplicaId, Signature, Slot};
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PrefixVote {
    pub slot: Slot,
    pub history: Digest,
    pub signature: Signature,
}

/// The votes of all replicas, each one's in the order in which they came.
#[derive(Clone, Debug)]
pub(crate) struct PrefixVotes {
    by_replica: Vec<VecDeque<PrefixVote>>,
}

impl PrefixVotes {
    pub fn new(n: usize) -> PrefixVotes {
        PrefixVotes { by_replica: vec![VecDeque::new(); n] }
    }

    /// Takes a vote in place of what the same replica said about the slot; at most so many of each are kept.
    pub fn add(
        &mut self,
        from: ReplicaId,
        slot: Slot,
        history: Digest,
        signature: Signature,
        most: usize,
    ) {
        let Some(votes) = self.by_replica.get_mut(from.index()) else { return };
        votes.retain(|vote| vote.slot != slot);
        votes.push_back(PrefixVote { slot, history, signature });
        if votes.len() > most {
            votes.pop_front();
        }
    }

    /// The slots in a range that somebody signed about.
    pub fn slots(&self, first: Slot, last: Slot) -> BTreeSet<Slot> {
        let all = self.by_replica.iter().flatten().map(|vote| vote.slot);
        all.filter(|slot| (first..=last).contains(slot)).collect()
    }

    /// Who said what about a slot.
    pub fn about(&self, slot: Slot) -> Vec<(ReplicaId, Digest, Signature)> {
        let of = |(id, votes): (u8, &VecDeque<PrefixVote>)| {
            let vote = votes.iter().find(|vote| vote.slot == slot)?;
            Some((ReplicaId(id), vote.history, vote.signature))
        };
        (0u8..).zip(&self.by_replica).filter_map(of).collect()
    }

    pub fn forget(&mut self, from: ReplicaId, slot: Slot) {
        if let Some(votes) = self.by_replica.get_mut(from.index()) {
            votes.retain(|vote| vote.slot != slot);
        }
    }

    pub fn forget_through(&mut self, slot: Slot) {
        self.by_replica.iter_mut().for_each(|votes| votes.retain(|vote| vote.slot > slot));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_replica.iter().map(VecDeque::len).sum()
    }

    /// All of them, by replica.
    pub fn all(&self) -> impl Iterator<Item = &VecDeque<PrefixVote>> {
        self.by_replica.iter()
    }
}
