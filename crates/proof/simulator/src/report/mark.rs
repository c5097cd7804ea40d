//! Rare branches.

/// A rare branch of the production code. Each is counted when a run shows that it was taken; a
/// batch of many seeds fails when one never was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mark {
    /// A torn tail of the log was cut.
    TornTailCut,
    /// Groups of the log were gone, and their batches came back from peers.
    GapRepaired,
    /// A replica found that its disk was taken back to an older state.
    OldDiskNoticed,
    /// That was before it took part, and it goes on with the newer disk.
    NewerDiskAgain,
    /// A session that nothing renewed ended.
    SessionEnded,
    /// A client closed its session.
    SessionClosed,
    /// A client that waits for an outcome renewed its session.
    SessionRenewed,
    /// A call was refused since too few members of its group were linked, and none answered.
    GroupUnreachable,
    /// A session did not open, for its number is of another time.
    SessionAstray,
    /// The ends of sessions moved, for the group had stood still.
    SessionsOutlivedOutage,
    /// A clock was wrong for so long that its replica had to say so, and said so.
    WrongClockNamed,
    /// A state was stored that links to files of older ones.
    StateLinked,
    /// A state was written over the file of an old one.
    StateWrittenOver,
    /// The file of an old state was removed in steps.
    OldStateCutDown,
    /// The newest state was damaged in the file of an older one.
    LinkedStateLost,
    /// The newest state was damaged, and the one before it used.
    PreviousState,
    /// The newest state was damaged, and fetched from peers.
    LostState,
    /// A state that was not the certified one was repaired.
    Repaired,
    /// A scrub found that memory was not what it had been.
    DamageScrubbed,
    /// Reading a stored state again found that it was not what had been stored.
    RotReread,
    /// What was found so was not used for the next state.
    RotReplaced,
    /// A replica that does not know what it promised refused to start.
    AmnesiacRefused,
    /// A laggard was served from the log.
    ServedFromLog,
    /// A batch that a laggard asked for did not verify.
    RotWhileServing,
    /// A state was fetched.
    Transferred,
    /// A client's frame came again.
    Retransmitted,
    /// A state was not stored, for the one before it was still under way.
    BoundaryPassedOver,
    /// A view started with batches that were locked before.
    LocksCarried,
    /// A view started with empty batches in holes between them.
    HolesFilled,
    /// A new leader had to ask for a locked batch.
    LockedBatchAskedFor,
    /// A batch was asked for to which a view is bound.
    ReproposalAskedFor,
    /// Who missed the start of a view was told of it.
    NewViewRepeated,
    /// Who did not keep up was passed over as the next leader.
    LeaderPassedOver,
    /// A restarted replica withheld a Write of its view.
    WriteWithheld,
    /// A Write waited until what was before it had been executed: that was expected to be costly.
    WriteBehindCosts,
    /// A prefix was signed because somebody waited for it.
    PrefixAttested,
    /// Accepts that had decided by link were found genuine.
    DecisionProven,
    /// Too few of them were.
    AcceptsNotGenuine,
    /// What nothing else proved was attested to a laggard.
    HistoryAttested,
    /// A laggard caught up by batches that others had decided.
    DecisionsFetched,
    /// Some of them came before what precedes them, from another replica.
    DecisionsHeld,
    /// Or while the state before them was on its way.
    DecisionsBesideState,
    /// What came before its turn was false, or of no use.
    HeldInVain,
    /// A replica executed nothing more until its disk had caught up.
    DiskLagged,
    /// A command was put off: its client had used up its share of the slot.
    CommandPutOff,
    /// A state was received that a replica came to by itself, for its stage had what is decided up to there.
    StateOvertaken,
    /// A stage executed a batch while a received state took its machine's place.
    BatchSuperseded,
    /// A stage let replies go, for a batch had too many.
    RepliesLetGo,
    /// A stage was asked for the answers to a retry.
    RetryAsked,
    /// A retry was passed over, since the stage was asked for as many as may be.
    RetryPassedOver,
    /// A read was answered by the state after the slot that it asked for.
    ReadAtSlot,
    /// Or refused, for that state was not kept any more, or is far away.
    ReadAtGone,
    /// Versions were raised.
    VersionsRaised,
    /// The state's limit was.
    LimitRaised,
    /// The clients were listed.
    ClientsListed,
    /// The administrator's key was replaced.
    AdministratorReplaced,
    /// And nothing came of what the former one signed.
    FormerKeyRefused,
    /// A command that waited got a tuple.
    WaiterServed,
    /// One insertion served several who waited.
    SeveralServed,
    /// A command waited in vain until its deadline.
    WaitEnded,
    /// A command waited no longer since its client went on without it.
    WaitForgotten,
    /// A space was deleted while somebody waited for its tuples.
    WaitRefused,
    /// A wait lasted through a restart, a transfer or a replacement of some replica that had begun it.
    WaitOutlivedRestart,
    /// The lease of a tuple ended that nobody took.
    LeaseEnded,
    /// A lease was renewed.
    LeaseRenewed,
    /// A lease came to be renewed after it had ended.
    RenewedTooLate,
    /// A lock was taken after its last owner's lease had ended.
    LockTakenOver,
    /// A lock was taken by one who had waited until it was released.
    LockHandedOn,
    /// What a lock protects refused a write of one who had lost the lock.
    StaleWriteRefused,
    /// A space had more tuples than one command deletes.
    SpaceDeletedInParts,
    /// More leases had ended than one batch removes the tuples of.
    EndedLeasesLeft,
    /// A client withdrew what waited.
    WaitWithdrawn,
    /// What waited for a client of which nothing was heard was withdrawn.
    WaitUnattended,
    /// A client that had waited confirmed what it was offered.
    OfferConfirmed,
    /// What was offered was not confirmed in time.
    OfferLapsed,
    /// What was offered was taken back, since its client withdrew it or its session ended.
    OfferTakenBack,
    /// A claim got through that had waited.
    ClaimServed,
    /// A claim was let through as a lease had ended.
    ClaimServedByEnd,
    /// A job came back from one whose lease of it had ended.
    JobCameBack,
    /// Somebody would have finished a job that he had no longer.
    LostJobRefused,
    /// An operator ended a wait.
    WaitEndedByOperator,
    /// An operator broke a lock that somebody had.
    LockBroken,
    /// The members of a partition's group changed, and the others were told.
    MembersChanged,
    /// A certificate was not by the newest members known, and was refused.
    OutdatedRefused,
    /// Somebody ended a transaction for a client that did not.
    TransactionEndedForOthers,
    /// A partition said that others may end one.
    TransactionExpired,
    /// A transaction was ended by others where its part had not come.
    AbortedUnseen,
    /// Transactions that were over everywhere were forgotten.
    RecordsForgotten,
    /// A partition forgot what a client left that did not come back.
    ForgottenForOthers,
    /// A transaction came, or was asked for, below the fence.
    FencedOff,
    /// A transaction was not prepared since another participant did not answer.
    OutOfReach,
    /// A transaction was not prepared since there was no room.
    NoRoom,
    /// A transaction was not prepared since too many of its client were pending.
    CapReached,
    /// All groups have revoked the key of a client of transactions.
    KeyRevoked,
    /// A process died when it had asked some of the groups and not the others.
    DiedInBetween,
    /// A command of one partition met a lock.
    LockMet,
    /// One key took all that it could for a while, and the others got on.
    HogBorne,
}

impl Mark {
    /// All of them.
    pub const ALL: [Mark; 97] = [
        Mark::TornTailCut,
        Mark::GapRepaired,
        Mark::OldDiskNoticed,
        Mark::NewerDiskAgain,
        Mark::SessionEnded,
        Mark::SessionClosed,
        Mark::SessionRenewed,
        Mark::GroupUnreachable,
        Mark::SessionAstray,
        Mark::SessionsOutlivedOutage,
        Mark::WrongClockNamed,
        Mark::StateLinked,
        Mark::StateWrittenOver,
        Mark::OldStateCutDown,
        Mark::LinkedStateLost,
        Mark::PreviousState,
        Mark::LostState,
        Mark::Repaired,
        Mark::DamageScrubbed,
        Mark::RotReread,
        Mark::RotReplaced,
        Mark::AmnesiacRefused,
        Mark::ServedFromLog,
        Mark::RotWhileServing,
        Mark::Transferred,
        Mark::Retransmitted,
        Mark::BoundaryPassedOver,
        Mark::LocksCarried,
        Mark::HolesFilled,
        Mark::LockedBatchAskedFor,
        Mark::ReproposalAskedFor,
        Mark::NewViewRepeated,
        Mark::LeaderPassedOver,
        Mark::WriteWithheld,
        Mark::WriteBehindCosts,
        Mark::PrefixAttested,
        Mark::DecisionProven,
        Mark::AcceptsNotGenuine,
        Mark::HistoryAttested,
        Mark::DecisionsFetched,
        Mark::DecisionsHeld,
        Mark::DecisionsBesideState,
        Mark::HeldInVain,
        Mark::DiskLagged,
        Mark::CommandPutOff,
        Mark::StateOvertaken,
        Mark::BatchSuperseded,
        Mark::RepliesLetGo,
        Mark::RetryAsked,
        Mark::RetryPassedOver,
        Mark::ReadAtSlot,
        Mark::ReadAtGone,
        Mark::VersionsRaised,
        Mark::LimitRaised,
        Mark::ClientsListed,
        Mark::AdministratorReplaced,
        Mark::FormerKeyRefused,
        Mark::WaiterServed,
        Mark::SeveralServed,
        Mark::WaitEnded,
        Mark::WaitForgotten,
        Mark::WaitRefused,
        Mark::WaitOutlivedRestart,
        Mark::LeaseEnded,
        Mark::LeaseRenewed,
        Mark::RenewedTooLate,
        Mark::LockTakenOver,
        Mark::LockHandedOn,
        Mark::StaleWriteRefused,
        Mark::SpaceDeletedInParts,
        Mark::EndedLeasesLeft,
        Mark::WaitWithdrawn,
        Mark::WaitUnattended,
        Mark::OfferConfirmed,
        Mark::OfferLapsed,
        Mark::OfferTakenBack,
        Mark::ClaimServed,
        Mark::ClaimServedByEnd,
        Mark::JobCameBack,
        Mark::LostJobRefused,
        Mark::WaitEndedByOperator,
        Mark::LockBroken,
        Mark::MembersChanged,
        Mark::OutdatedRefused,
        Mark::TransactionEndedForOthers,
        Mark::TransactionExpired,
        Mark::AbortedUnseen,
        Mark::RecordsForgotten,
        Mark::ForgottenForOthers,
        Mark::FencedOff,
        Mark::OutOfReach,
        Mark::NoRoom,
        Mark::CapReached,
        Mark::KeyRevoked,
        Mark::DiedInBetween,
        Mark::LockMet,
        Mark::HogBorne,
    ];

    /// Whether only runs of tuple spaces come to it.
    #[must_use]
    pub fn is_of_spaces(self) -> bool {
        (Mark::WaiterServed as usize..=Mark::LockBroken as usize).contains(&(self as usize))
    }

    /// Whether only runs of partitioned stores come to it.
    #[must_use]
    pub fn is_of_transactions(self) -> bool {
        self as usize > Mark::LockBroken as usize
    }
}
