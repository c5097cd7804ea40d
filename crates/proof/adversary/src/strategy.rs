//! The ways of lying.

/// A way of lying. Each names what it does to others; what it does not touch the replica does as
/// a correct one would.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Strategy {
    /// As leader proposes one batch to some and another to the rest; votes for each batch with
    /// those who were told of it, its accomplices too.
    Equivocate,
    /// Votes for two batches of a slot, in one view.
    DoubleVote,
    /// Accepts whatever is proposed before a quorum wrote it.
    HastyAccept,
    /// Votes for batches that nobody proposed.
    WrongDigests,
    /// Asks for views without the locks that it holds.
    ForgetLocks,
    /// Asks for views with the locks and the prefix of an earlier view change.
    StaleEvidence,
    /// Asks for views with certificates that nobody signed.
    ForgedEvidence,
    /// As new leader starts one view in two ways.
    TwoNewViews,
    /// Asks for later views all the time.
    Rebel,
    /// Says nothing to some, now these, now those.
    SelectiveSilence,
    /// Orders nothing of one client.
    Censor,
    /// Orders most of what everybody sends, and some of it never.
    Withhold,
    /// As leader proposes barely before others time out.
    SlowLeader,
    /// Signs false digests of states and prefixes, and claims states that nobody certified.
    ForgedCheckpoints,
    /// Says that it has delivered, or stores, what it does not.
    FalseStatus,
    /// Sends corrupt batches, manifests and pieces to those who recover.
    CorruptTransfer,
    /// Sends them late, twice or not at all.
    SlowTransfer,
    /// Gives clients results that are not those of their commands.
    FalseReplies,
    /// Answers reads with what it read long ago.
    StaleReads,
    /// Says again what it said or heard earlier, in other views and to others.
    Replay,
    /// Signs for another cluster or configuration.
    OtherContext,
    /// Signs badly, and passes on frames with bad signatures.
    GarbageSignatures,
    /// Sends bytes that do not decode: cut, too long, noise.
    Malformed,
    /// Proposes frames that no client signed.
    ForgedFrames,
    /// Sends far more than it is asked for.
    Flood,
    /// Two replicas with one key, each of which some believe to be the one ("Twins": Bano et al.,
    /// OPODIS 2021).
    Twins,
    /// Small changes to single messages ("ByzzFuzz": Winter et al., OOPSLA 2023).
    Mutate,
    /// Sees to it that others go past slots which nobody can prove: signs some of its Accepts falsely, keeps others from
    /// some, and hands out prefixes with one correct signature before they are certified otherwise.
    PassOver,
    /// Does not lie: its memory does. One bit of its state after the other flips.
    RottenMemory,
    /// One of the above after the other.
    Medley,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 30] = [
        Strategy::Equivocate,
        Strategy::DoubleVote,
        Strategy::HastyAccept,
        Strategy::WrongDigests,
        Strategy::ForgetLocks,
        Strategy::StaleEvidence,
        Strategy::ForgedEvidence,
        Strategy::TwoNewViews,
        Strategy::Rebel,
        Strategy::SelectiveSilence,
        Strategy::Censor,
        Strategy::Withhold,
        Strategy::SlowLeader,
        Strategy::ForgedCheckpoints,
        Strategy::FalseStatus,
        Strategy::CorruptTransfer,
        Strategy::SlowTransfer,
        Strategy::FalseReplies,
        Strategy::StaleReads,
        Strategy::Replay,
        Strategy::OtherContext,
        Strategy::GarbageSignatures,
        Strategy::Malformed,
        Strategy::ForgedFrames,
        Strategy::Flood,
        Strategy::Twins,
        Strategy::Mutate,
        Strategy::PassOver,
        Strategy::RottenMemory,
        Strategy::Medley,
    ];

    /// Whether it shows only in view changes.
    #[must_use]
    pub fn is_about_views(self) -> bool {
        use Strategy::{ForgedEvidence, ForgetLocks, Medley, StaleEvidence, TwoNewViews};
        matches!(self, ForgedEvidence | ForgetLocks | Medley | StaleEvidence | TwoNewViews)
    }

    /// Whether it shows only when somebody fetches a state.
    #[must_use]
    pub fn is_about_states(self) -> bool {
        use Strategy::{CorruptTransfer, ForgedCheckpoints, Medley, SlowTransfer};
        matches!(self, CorruptTransfer | ForgedCheckpoints | Medley | SlowTransfer)
    }

    /// As on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Equivocate => "equivocate",
            Strategy::DoubleVote => "double-vote",
            Strategy::HastyAccept => "hasty-accept",
            Strategy::WrongDigests => "wrong-digests",
            Strategy::ForgetLocks => "forget-locks",
            Strategy::StaleEvidence => "stale-evidence",
            Strategy::ForgedEvidence => "forged-evidence",
            Strategy::TwoNewViews => "two-new-views",
            Strategy::Rebel => "rebel",
            Strategy::SelectiveSilence => "selective-silence",
            Strategy::Censor => "censor",
            Strategy::Withhold => "withhold",
            Strategy::SlowLeader => "slow-leader",
            Strategy::ForgedCheckpoints => "forged-checkpoints",
            Strategy::FalseStatus => "false-status",
            Strategy::CorruptTransfer => "corrupt-transfer",
            Strategy::SlowTransfer => "slow-transfer",
            Strategy::FalseReplies => "false-replies",
            Strategy::StaleReads => "stale-reads",
            Strategy::Replay => "replay",
            Strategy::OtherContext => "other-context",
            Strategy::GarbageSignatures => "garbage-signatures",
            Strategy::Malformed => "malformed",
            Strategy::ForgedFrames => "forged-frames",
            Strategy::Flood => "flood",
            Strategy::Twins => "twins",
            Strategy::Mutate => "mutate",
            Strategy::PassOver => "pass-over",
            Strategy::RottenMemory => "rotten-memory",
            Strategy::Medley => "medley",
        }
    }

    /// Whether other replicas hear what a correct one says, if late or not at all: nothing comes
    /// back on the replica itself then, which has no more reason to stumble than a correct one.
    #[must_use]
    pub fn spares_replicas(self) -> bool {
        matches!(
            self,
            Strategy::FalseReplies
                | Strategy::StaleReads
                | Strategy::SelectiveSilence
                | Strategy::SlowLeader
                | Strategy::SlowTransfer
        )
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::parse(strategy.name()), Some(strategy));
        }
        assert_eq!(Strategy::parse("honest"), None);
    }
}
