//! The voting rules: when this replica may say Write or Accept. They stand alone so that they can
//! be read, and tested, by themselves; nothing else decides about a vote.
//!
//! 1. Only in the current view, and not while it waits for that view's NewView.
//! 2. Never below or at the certified prefix, never above the pipeline's reach, and never more than a
//!    window above the own certified prefix: what is locked has to fit into a view change (`prefix`).
//! 3. What was decided for a slot is voted for again, and nothing else.
//! 4. What the view change chose for a slot is voted for in this view, and nothing else.
//! 5. One batch per slot and view: what was written or locked in this view binds.
//! 6. After a restart no Write in the view it restarted in, unless one that the log proves, in the
//!    certificate of its own vote: the replica may have written something that it does not remember
//!    (A2), also before a vote that it made since on Writes of others. Such a vote it may give, in this view too: it is
//!    justified by a quorum of which this replica is no part, so whatever it wrote before is not among the Writes of two
//!    batches; and what it had locked before is in its log, and binds by rule 5
//!    (`a_restarted_replica_repeats_a_write_that_its_vote_proves`, bug `restarted-replica-writes`).
//! 7. Only slots of the configuration in which the view was started (all of whose view changes are of that one, see
//!    `evidence`): a view change of an earlier
//!    configuration may hold promises of a replica that was replaced since (D8).
//! 8. A replica without a complete state (a new incarnation, D8) does not vote.
//! 9. While the own log lags, only in the view in which that began: each view has its votes logged anew
//!    with their batches, and those may wait for the disk all at once (A6).

use crate::slot::SlotState;
use perdura_protocol::{Digest, ReplicaId, Signature, Slot, View, seeded};

/// Everything about the replica, besides the slot itself, on which a vote depends.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Who votes (rule 6).
    pub me: ReplicaId,
    /// The current view.
    pub view: View,
    /// Whether the view has started (rule 1).
    pub started: bool,
    /// Last slot of the certified prefix (rule 2).
    pub prefix: Slot,
    /// Highest slot that may be agreed on now: `depth` above the executed ones (rule 2).
    pub reach: Slot,
    /// Last slot of the window above the own certified prefix (rule 2).
    pub window: Slot,
    /// The view in which this replica restarted (rule 6).
    pub restarted_in: Option<View>,
    /// The configuration in which the view was started (rule 7).
    pub view_configuration: u64,
    /// Whether it may vote at all (rule 8).
    pub voting: bool,
    /// The view in which the log began to lag, while it does (rule 9).
    pub lags_since: Option<View>,
}

/// Why a vote is withheld.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Withheld {
    /// Rule 1.
    #[error("not in this view")]
    OtherView,
    /// Rule 2.
    #[error("slot is outside the pipeline's reach")]
    OutOfReach,
    /// Rule 3.
    #[error("another batch is decided for the slot")]
    DecidedOtherwise,
    /// Rule 4.
    #[error("the view change chose another batch for the slot")]
    ChosenOtherwise,
    /// Rule 5.
    #[error("voted for another batch in this view")]
    VotedOtherwise,
    /// Rule 6.
    #[error("restarted in this view")]
    Restarted,
    /// Rule 7.
    #[error("the view was started in another configuration")]
    OtherConfiguration,
    /// Rule 8.
    #[error("state is not complete")]
    NotVoting,
    /// Rule 9.
    #[error("the log lags since an earlier view")]
    LogLags,
}

/// What the view change says about a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The slot is above everything that was locked: any batch may be proposed.
    Free,
    /// This batch and no other.
    Reproposed(Digest),
}

/// A vote that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ballot {
    /// The view.
    pub view: View,
    /// The slot.
    pub slot: Slot,
    /// The batch.
    pub digest: Digest,
    /// Number of the configuration that governs the slot.
    pub configuration: u64,
    /// What the view change says about the slot.
    pub choice: Choice,
}

/// Whether a proposal may be taken up: all rules but 6.
pub fn may_consider(
    standing: &Standing,
    ballot: Ballot,
    state: &SlotState,
) -> Result<(), Withheld> {
    let Ballot { view, slot, digest, configuration, choice } = ballot;
    if !standing.voting {
        return Err(Withheld::NotVoting);
    }
    if view != standing.view || !standing.started {
        return Err(Withheld::OtherView);
    }
    if configuration != standing.view_configuration {
        return Err(Withheld::OtherConfiguration);
    }
    if standing.lags_since.is_some_and(|since| since < view) {
        return Err(Withheld::LogLags);
    }
    if slot <= standing.prefix || slot > standing.reach.min(standing.window) {
        return Err(Withheld::OutOfReach);
    }
    if state.decided.as_ref().is_some_and(|decided| decided.batch.digest() != digest) {
        return Err(Withheld::DecidedOtherwise);
    }
    if matches!(choice, Choice::Reproposed(chosen) if chosen != digest) && !seeded!(ChoiceIgnored) {
        return Err(Withheld::ChosenOtherwise);
    }
    let written = state.written.as_ref().filter(|written| written.0 == view);
    let locked = state.locked.as_ref().filter(|locked| locked.view == view);
    if written.is_some_and(|written| written.1 != digest)
        || locked.is_some_and(|locked| locked.batch.digest() != digest)
    {
        return Err(Withheld::VotedOtherwise);
    }
    Ok(())
}

/// Whether a Write may be sent for a proposal: all rules.
pub fn may_write(standing: &Standing, ballot: Ballot, state: &SlotState) -> Result<(), Withheld> {
    may_consider(standing, ballot, state)?;
    let Ballot { view, digest, .. } = ballot;
    let wrote = state.locked.as_ref().is_some_and(|locked| {
        let own = |(signer, _): &(ReplicaId, Signature)| *signer == standing.me;
        locked.view == view
            && locked.batch.digest() == digest
            && locked.writes.signatures().iter().any(own)
    });
    if standing.restarted_in == Some(view) && !wrote && !seeded!(RestartedReplicaWrites) {
        return Err(Withheld::Restarted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::{Decided, Locked};
    use perdura_protocol::{Batch, Certificate, Signature, Time};

    fn standing() -> Standing {
        Standing {
            me: ReplicaId(0),
            view: View(3),
            started: true,
            prefix: Slot(64),
            reach: Slot(100),
            window: Slot(1_000),
            restarted_in: None,
            view_configuration: 2,
            voting: true,
            lags_since: None,
        }
    }

    fn check(
        standing: Standing,
        slot: u64,
        state: &SlotState,
        choice: Choice,
    ) -> Result<(), Withheld> {
        let digest = Batch::tick(Time(1)).digest();
        let slot = Slot(slot);
        let ballot = Ballot { view: View(3), slot, digest, configuration: 2, choice };
        may_write(&standing, ballot, state)
    }

    #[test]
    fn each_rule_withholds() {
        let blank = SlotState::new(4, 0);
        let other = Batch::tick(Time(2));
        assert_eq!(check(standing(), 70, &blank, Choice::Free), Ok(()));
        let s = Standing { view: View(4), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::OtherView));
        let s = Standing { started: false, ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::OtherView));
        assert_eq!(check(standing(), 64, &blank, Choice::Free), Err(Withheld::OutOfReach));
        assert_eq!(check(standing(), 101, &blank, Choice::Free), Err(Withheld::OutOfReach));
        let s = Standing { window: Slot(69), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::OutOfReach));
        assert_eq!(check(s, 69, &blank, Choice::Free), Ok(()));
        let bound = Choice::Reproposed(other.digest());
        assert_eq!(check(standing(), 70, &blank, bound), Err(Withheld::ChosenOtherwise));
        let s = Standing { restarted_in: Some(View(3)), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::Restarted));
        let s = Standing { view_configuration: 1, ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::OtherConfiguration));
        let s = Standing { lags_since: Some(View(2)), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::LogLags));
        let s = Standing { lags_since: Some(View(3)), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Ok(()), "it began in this view");
        let s = Standing { voting: false, ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Err(Withheld::NotVoting));

        let mut decided = blank.clone();
        decided.decided =
            Some(Decided { view: View(1), batch: other.clone(), accepts: Certificate::default() });
        assert_eq!(check(standing(), 70, &decided, Choice::Free), Err(Withheld::DecidedOtherwise));
        let mut written = blank.clone();
        written.written = Some((View(3), other.digest(), Signature::NONE));
        assert_eq!(check(standing(), 70, &written, Choice::Free), Err(Withheld::VotedOtherwise));
        written.written = Some((View(2), other.digest(), Signature::NONE));
        assert_eq!(check(standing(), 70, &written, Choice::Free), Ok(()));
        let mut locked = blank;
        locked.locked = Some(Locked {
            view: View(3),
            batch: other,
            writes: Certificate::default(),
            sequence: 0,
        });
        assert_eq!(check(standing(), 70, &locked, Choice::Free), Err(Withheld::VotedOtherwise));
    }

    #[test]
    fn what_no_rule_withholds_is_voted_for() {
        let blank = SlotState::new(4, 0);
        let (this, other) = (Batch::tick(Time(1)), Batch::tick(Time(2)));
        for slot in [65, 100] {
            assert_eq!(check(standing(), slot, &blank, Choice::Free), Ok(()));
        }
        assert_eq!(check(standing(), 70, &blank, Choice::Reproposed(this.digest())), Ok(()));
        let s = Standing { restarted_in: Some(View(2)), ..standing() };
        assert_eq!(check(s, 70, &blank, Choice::Free), Ok(()), "restarted in an earlier view");
        // The same batch again, whatever was said of it before.
        let (accepts, writes) = (Certificate::default(), Certificate::default());
        let mut state = blank.clone();
        state.decided = Some(Decided { view: View(1), batch: this.clone(), accepts });
        state.written = Some((View(3), this.digest(), Signature::NONE));
        state.locked =
            Some(Locked { view: View(3), batch: this, writes: writes.clone(), sequence: 0 });
        assert_eq!(check(standing(), 70, &state, Choice::Free), Ok(()));
        // A lock of an earlier view binds through the view change's choice, not by itself.
        let mut state = blank;
        state.locked = Some(Locked { view: View(2), batch: other, writes, sequence: 0 });
        assert_eq!(check(standing(), 70, &state, Choice::Free), Ok(()));
    }

    #[test]
    fn a_restarted_replica_repeats_only_the_vote_of_this_view_for_this_batch() {
        let s = Standing { restarted_in: Some(View(3)), ..standing() };
        for (view, time) in [(3, 2), (2, 1)] {
            let (view, batch) = (View(view), Batch::tick(Time(time)));
            let mut state = SlotState::new(4, 0);
            state.locked =
                Some(Locked { view, batch, writes: Certificate::default(), sequence: 0 });
            assert!(check(s, 70, &state, Choice::Free).is_err());
        }
    }

    #[test]
    fn a_restarted_replica_repeats_a_write_that_its_vote_proves() {
        let s = Standing { restarted_in: Some(View(3)), ..standing() };
        let locked_on = |signers: [u8; 3]| {
            let mut state = SlotState::new(4, 0);
            let signed = signers.map(|id| (ReplicaId(id), Signature::NONE));
            let (view, batch, sequence) = (View(3), Batch::tick(Time(1)), 0);
            let writes = Certificate::new(signed.to_vec());
            state.locked = Some(Locked { view, batch, writes, sequence });
            state
        };
        assert_eq!(check(s, 70, &locked_on([0, 1, 2]), Choice::Free), Ok(()));
        // It voted on Writes of others, and may have written something else before.
        let without = locked_on([1, 2, 3]);
        assert_eq!(check(s, 70, &without, Choice::Free), Err(Withheld::Restarted));
    }
}
