//! The answers of replicas to one command or read, one vote each.
//!
//! Invariants: a replica has one vote; a vote that says "I know the outcome" is never replaced, one
//! that says "I no longer know", or "not yet", is replaced by the next. So a liar counts once, and a replica
//! that forgot is not held against those who remember.

use perdura_protocol::{Outcome, RefusalReason, ReplicaId};

/// Whether an outcome is what the command came to, rather than a word about lost memory.
pub(crate) fn is_final(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Opened
        | Outcome::Service(_)
        | Outcome::Administered { .. }
        | Outcome::Told(_)
        | Outcome::TooLarge { .. }
        | Outcome::Refused(
            RefusalReason::UnknownClient
            | RefusalReason::NotAdministrator
            | RefusalReason::Malformed
            | RefusalReason::Contradiction(_)
            | RefusalReason::Service(_)
            | RefusalReason::Withdrawn,
        ) => true,
        // Not recorded by replicas: the number may execute when its frame is ordered again.
        Outcome::Refused(
            RefusalReason::WindowExceeded | RefusalReason::NotNow { .. } | RefusalReason::PutOff,
        ) => false,
        Outcome::Waited { outcome, offer: false } => is_final(outcome),
        // It may be taken back.
        Outcome::Waited { offer: true, .. } => false,
        Outcome::TooOld | Outcome::NoSession | Outcome::Waits => false,
    }
}

/// Votes on one outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct Votes {
    // At most one per replica.
    votes: Vec<(ReplicaId, Outcome)>,
}

/// What a vote did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Added {
    /// Replicas that say the same, this one included; 0 when the vote was not counted.
    pub(crate) support: usize,
    /// It contradicts a final outcome that another replica gave, or this one itself.
    pub(crate) disagrees: bool,
}

impl Votes {
    pub(crate) fn add(&mut self, from: ReplicaId, outcome: &Outcome) -> Added {
        let is_final_now = is_final(outcome);
        let contradicts = |other: &Outcome| is_final_now && is_final(other) && other != outcome;
        let disagrees = self.votes.iter().any(|(_, other)| contradicts(other));
        match self.votes.iter_mut().find(|(replica, _)| *replica == from) {
            None => self.votes.push((from, outcome.clone())),
            Some((_, own)) if own == outcome => {}
            Some((_, own)) if !is_final(own) => *own = outcome.clone(),
            Some(_) => return Added { support: 0, disagrees },
        }
        Added { support: self.support(outcome), disagrees }
    }

    /// What a replica said, if it knows the outcome.
    pub(crate) fn final_of(&self, replica: ReplicaId) -> Option<&Outcome> {
        let (_, outcome) = self.votes.iter().find(|(id, _)| *id == replica)?;
        is_final(outcome).then_some(outcome)
    }

    /// What is said of the next try counts anew.
    pub(crate) fn forget_put_off(&mut self) {
        self.votes.retain(|(_, outcome)| *outcome != Outcome::Refused(RefusalReason::PutOff));
    }

    /// How many say this.
    pub(crate) fn support(&self, outcome: &Outcome) -> usize {
        self.votes.iter().filter(|(_, other)| other == outcome).count()
    }

    /// What so many say, if they do.
    pub(crate) fn given_by(&self, quorum: usize) -> Option<&Outcome> {
        let mut outcomes = self.votes.iter().map(|(_, outcome)| outcome);
        outcomes.find(|outcome| self.support(outcome) >= quorum)
    }

    /// The size of the largest group that says the same.
    pub(crate) fn best(&self) -> usize {
        self.votes.iter().map(|(_, outcome)| self.support(outcome)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::Time;

    fn reply(text: &'static str) -> Outcome {
        Outcome::Service(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_replica_has_one_vote_and_forgetting_is_not_a_final_one() {
        let mut votes = Votes::default();
        let counted = |support| Added { support, disagrees: false };
        assert_eq!(votes.add(ReplicaId(0), &reply("a")), counted(1));
        assert_eq!(votes.add(ReplicaId(0), &reply("a")), counted(1));
        let lie = votes.add(ReplicaId(0), &reply("b"));
        assert_eq!(lie, Added { support: 0, disagrees: true });
        assert_eq!(votes.add(ReplicaId(1), &Outcome::TooOld), counted(1));
        assert_eq!(votes.add(ReplicaId(1), &reply("a")), counted(2));
        assert_eq!(votes.add(ReplicaId(1), &Outcome::TooOld), counted(0));
        let other = votes.add(ReplicaId(2), &reply("b"));
        assert_eq!(other, Added { support: 1, disagrees: true });
        assert_eq!(votes.best(), 2);
    }

    #[test]
    fn who_tells_the_time_again_has_its_latest_word_counted() {
        let mut votes = Votes::default();
        let at = |ms| Outcome::Refused(RefusalReason::NotNow { time: Time(ms), from: 7 });
        let supports = [(0, 5, 1), (1, 6, 1), (0, 6, 2), (2, 5, 1), (2, 6, 3)];
        for (replica, ms, support) in supports {
            let counted = Added { support, disagrees: false };
            assert_eq!(votes.add(ReplicaId(replica), &at(ms)), counted);
        }
        assert_eq!(votes.add(ReplicaId(0), &Outcome::Opened).support, 1);
        assert_eq!(votes.add(ReplicaId(0), &at(9)).support, 0, "it had opened");
    }
}
