//! Seeded bugs: mistakes that a good engineer could make, one of which may be switched on in a
//! process, to measure what the simulator detects (`docs/testing/detection.md`).
//!
//! Only builds with the feature `seeded-bugs` have them: all that tests use, and none that is released. In any other
//! [`crate::seeded!`] is the constant `false`, so that a line that asks for a bug is the line that stood there before.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether this build has them.
pub const ARE_BUILT_IN: bool = cfg!(feature = "seeded-bugs");

/// Number in [`Bug::ALL`] of the bug that is switched on, plus one; 0 is none.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Defines [`Bug`]: name of the variant, name on the command line, rule, what is wrong.
macro_rules! bugs {
    ($($bug:ident $name:literal $rule:literal $what:literal)*) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All of them, by the rule that they break.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)*];

            /// As on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }

            /// The rule of docs/design.md that it breaks, `10`: what it says of partitions, `12`: of who is there, boots and versions, or `tuples`: the contract of `docs/tuples.md`.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Bug::$bug => $rule,)* }
            }

            /// What is wrong.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Bug::$bug => $what,)* }
            }
        }
    };
}

bugs! {
    QuorumOffByOne "quorum-off-by-one" "A1"
        "A quorum of agreement is one replica short."
    LowerLockWins "lower-lock-wins" "A1"
        "A view change keeps the lock of the lower view."
    DecidedUnseen "decided-unseen" "A1"
        "With r = 0, a leader's word that slots are decided is taken for what was accepted here, whatever the history hash says."
    ChoiceIgnored "choice-ignored" "A1"
        "What a view change chose for a slot does not bind the votes of the new view."

    AcceptBeforePersist "accept-before-persist" "A2"
        "An Accept leaves before its vote is on disk."
    ViewBeforePersist "view-before-persist" "A2"
        "A replica speaks in a view before the record that entered it is on disk."
    ForgottenLocks "forgotten-locks" "A2"
        "After a restart the votes in the log are read, and not kept as locks."
    RestartedLeaderProposes "restarted-leader-proposes" "A2"
        "A restarted leader goes on proposing in the view in which it stopped."
    RestartedReplicaWrites "restarted-replica-writes" "A2"
        "A restarted replica sends Writes in the view in which it stopped, whatever it wrote before."

    SlotNotBound "slot-not-bound" "A3"
        "Signatures do not cover the slot."
    ViewNotBound "view-not-bound" "A3"
        "Signatures do not cover the view."
    AcceptsPassedOn "accepts-passed-on" "A3"
        "What a link brought is passed on as a proof, without a look at the signatures."
    FirstSignatureOnly "first-signature-only" "A3"
        "Of a certificate only the first signature is verified."
    DuplicateSigners "duplicate-signers" "A3"
        "A certificate in which one replica signs several times is taken for several signers."
    PrefixUnproven "prefix-unproven" "A3"
        "A certified prefix in a view change is adopted without looking at its signatures."

    PipelineUnbounded "pipeline-unbounded" "A4"
        "Slots are agreed on beyond the depth of the pipeline."
    SlowStageBlamed "slow-stage-blamed" "A4"
        "A leader is suspected for the time in which this replica's own stage is what agreement waits for."
    MomentExcuses "moment-excuses" "A4"
        "When agreement waited for this replica's execution for a moment, its leader has all of its time-outs again."
    StageWorkExcuses "stage-work-excuses" "A4"
        "As long as this replica's stage has anything to do, no leader is suspected."
    JoinedOnOneVoice "joined-on-one-voice" "A4"
        "A later view is joined when a single other replica wants it."
    AttestationRefused "attestation-refused" "A4"
        "What nothing at hand proves to a laggard is not attested to it."
    NewViewNotRepeated "new-view-not-repeated" "A4"
        "Who missed a NewView is never sent it again."

    FirstFrameOnly "first-frame-only" "A5"
        "Of the frames inside a proposal only the first one's signature is verified."
    HeldFrameByNumber "held-frame-by-number" "A5"
        "A frame in a proposal is taken for verified when one of the same number waits here."

    ClaimsUnverified "claims-unverified" "A5"
        "Signatures in the commands of a proposal are not verified."

    WindowUnbounded "window-unbounded" "A6"
        "Votes about any slot are kept, however far ahead."
    ShareIgnored "share-ignored" "A6"
        "A client key that has used up its share of a slot goes on in it."
    OthersSpend "others-spend" "A6"
        "What all keys together have spent in a slot counts against a key's share."
    CostsUnplanned "costs-unplanned" "A6"
        "A leader proposes whatever is expected to cost, as long as its pipeline has room."
    QueriesUnlimited "queries-unlimited" "A6"
        "Every query for states is answered, and makes votes be repeated, however many there are."

    ReplyBeforeLog "reply-before-log" "D1"
        "Replies leave before their batch is on disk."
    RetryBeforeLog "retry-before-log" "D1"
        "A retry is answered from the session before the command's batch is on disk."
    DecisionNotLogged "decision-not-logged" "D1"
        "A decided batch for which this replica did not vote is not written to its log."

    ExecutesAccepted "executes-accepted" "D2"
        "With r = 0, a leader executes what it has accepted itself, before it is decided."
    ExecutedBeforeDecided "executed-before-decided" "D2"
        "With r > 0, a replica executes what a quorum wrote and it has accepted itself, before it is decided."
    MarkAheadOfWrite "mark-ahead-of-write" "D2"
        "A long append is split in two, and the first part is reported under the number of the second."

    RenameNotSynced "rename-not-synced" "D3"
        "A checkpoint's new name is not made durable before the superblock relies on it."
    CheckpointNotFlushed "checkpoint-not-flushed" "D3"
        "A checkpoint is renamed into place without having been flushed."
    RemovedTooEarly "removed-too-early" "D3"
        "Old checkpoints are removed before the superblock names the new one."
    LinksForgotten "links-forgotten" "D3"
        "The superblock does not name the older files that a checkpoint links to, and they are removed."
    FlushRetried "flush-retried" "D3"
        "A failed flush of the log is tried again, and believed when it succeeds."

    TornTailIsCorruption "torn-tail-is-corruption" "D4"
        "A torn last group is taken for one that was flushed and has rotted."
    UseNotInChecksum "use-not-in-checksum" "D4"
        "Groups of an earlier use of a log file verify in its next use."
    MarkBeforeFlush "mark-before-flush" "D4"
        "The mark that says that a group is flushed is written before the flush."

    PieceUnverified "piece-unverified" "D5"
        "A piece of a transferred state is not held against the manifest when it comes."
    ManifestUnverified "manifest-unverified" "D5"
        "The manifest of a transferred state is not held against the certified digest."
    InstalledBeforeDurable "installed-before-durable" "D5"
        "A transferred state takes the place of the old one before it is on disk."

    TruncatedTooEarly "truncated-too-early" "D6"
        "The log is cut when a checkpoint is begun, not when it is durable."
    TruncatedTooFar "truncated-too-far" "D6"
        "When the log is cut, one file goes that still holds slots above the checkpoint."
    BoundaryForgotten "boundary-forgotten" "D6"
        "A restarted replica counts the slots to the next checkpoint from where it restarted."
    StretchForgotten "stretch-forgotten" "D6"
        "A restarted replica takes the intervals of a small state."

    StateCertifiedByOneLess "state-certified-by-one-less" "D7"
        "A state counts as certified with one signature too few."
    DigestBeforeDurable "digest-before-durable" "D7"
        "The digest of a state is signed before the state is on disk."
    StaleSessionDigest "stale-session-digest" "D7"
        "A session's digest is not computed anew after an acknowledgement changed it."
    RotLinked "rot-linked" "D7"
        "A state links to what was found damaged when the one before it was read again."
    SnapshotOfLaterSlot "snapshot-of-later-slot" "D7"
        "A stage takes the snapshot of a boundary when it has executed one batch more."
    UntrustedStateKept "untrusted-state-kept" "D7"
        "A replica whose state loses begins anew from what it stored last, certified or not."

    ReplacementVotesAtOnce "replacement-votes-at-once" "D8"
        "A new incarnation votes before it holds the state of its configuration."
    ConfigurationAtOnce "configuration-at-once" "D8"
        "A new configuration governs the very next slot, with the pipeline still full."
    NoForcedCheckpoint "no-forced-checkpoint" "D8"
        "No checkpoint is taken before a new configuration's first slot."

    FatalIsRefusal "fatal-is-refusal" "E1"
        "What a service says is fatal in this replica is told to clients, and it goes on."
    RangeNotInFootprint "range-not-in-footprint" "E1"
        "The range that a command scans is left out of its footprint."
    SessionNotInFootprint "session-not-in-footprint" "E1"
        "A command's session is left out of its footprint."

    FirstOperationOnly "first-operation-only" "E2"
        "A transaction's footprint is that of its first operation."
    ComparedNotRead "compared-not-read" "E2"
        "Keys that a transaction only compares are left out of its footprint."

    TimeGoesBack "time-goes-back" "E3"
        "Agreed time is that of the last batch, also when an earlier batch's was later."
    SkewUnchecked "skew-unchecked" "E3"
        "A fresh proposal's time is not held against the local clock."
    TimeNotInCheckpoint "time-not-in-checkpoint" "E3"
        "Agreed time is left out of checkpoints."
    LeaseEndsEarly "lease-ends-early" "E3"
        "A tuple is removed one millisecond of agreed time before its lease ends."
    WaitEndsLate "wait-ends-late" "E3"
        "A wait goes on in a batch whose time is the very one at which it ends."
    ServiceTimeOfBatch "service-time-of-batch" "E3"
        "Waits and leases end by the time of the batch, also when an earlier batch's was later."

    DecidedForgotten "decided-forgotten" "E4"
        "A retry of what is decided and not executed yet is ordered again."
    AcknowledgedOneTooMany "acknowledged-one-too-many" "E4"
        "Acknowledging numbers below one drops that one's reply as well."
    ReopenedSession "reopened-session" "E4"
        "A session number that was used before opens a session again."
    SessionsUncapped "sessions-uncapped" "E4"
        "A client key may have any number of live sessions."
    RevokedSessionsStay "revoked-sessions-stay" "E4"
        "A revoked client's live sessions go on."
    SessionWindowUnchecked "session-window-unchecked" "E4"
        "Numbers beyond a session's window are executed."
    WaitingNotInCheckpoint "waiting-not-in-checkpoint" "E4"
        "Which numbers of a session wait for their replies is left out of checkpoints."
    AcknowledgedWaitStays "acknowledged-wait-stays" "E4"
        "A command whose client went on without its reply waits in the service all the same."
    WaitOutlivesSession "wait-outlives-session" "E4"
        "The commands of a session that ended go on waiting in the service."

    SentIsRefused "sent-is-refused" "C1"
        "A call whose deadline passes is called refused though it was sent."
    OneReplyIsEnough "one-reply-is-enough" "C1"
        "A client takes the first reply for the result."
    RetriedUnderNewNumber "retried-under-new-number" "C1"
        "When the leader's link breaks, calls in flight are sent again under new numbers."

    FastReadByFew "fast-read-by-few" "C2"
        "A fast read is taken from r + 1 replicas."
    FastReadAtOnce "fast-read-at-once" "C2"
        "A replica answers a fast read at once, whatever it has accepted and not executed."
    ReadBeforeOrdered "read-before-ordered" "C2"
        "A fast read goes to the stage when the batches that it waits for were handed over, and overtakes them there."
    ReadOvertakesState "read-overtakes-state" "C2"
        "A fast read overtakes a received state that waits for the stage, and is answered by the older one."
    ReadAtByFew "read-at-by-few" "C2"
        "What r replicas say of the state after one slot is taken for the answer to a fast read."
    ReadAtSmallest "read-at-smallest" "C2"
        "Replicas that answer differently are asked again for the state after the smallest slot that one of them named."
    ReadAtNewest "read-at-newest" "C2"
        "A replica that is asked for the state after a slot answers by a later one."
    SharesBefore "shares-before" "C2"
        "For reads beside it the stage gives the state before a batch as the one after it."

    LeaderPaces "leader-paces" "12"
        "Time-outs follow what the leader says of its own flushes and links, too."
    PacedByOneLess "paced-by-one-less" "12"
        "Time-outs follow what r replicas say, not r + 1."
    PacedByOneMore "paced-by-one-more" "12"
        "Time-outs follow what r + 2 replicas say, not r + 1."
    ClockOnOneVoice "clock-on-one-voice" "12"
        "A clock is taken for wrong when a single other replica's differs."
    NeverMissed "never-missed" "12"
        "Who was heard of once counts as there for ever."
    ReadyByOneLess "ready-by-one-less" "12"
        "A replica is ready that hears of one member too few."
    BootNotLogged "boot-not-logged" "12"
        "What others announce of their boots is kept in memory only."
    BootsNotCarried "boots-not-carried" "12"
        "Boots of others go with the file of the log in which they were noted."
    ComparedByOneLess "compared-by-one-less" "12"
        "A replica votes when one member too few has compared."
    BootNotAwaited "boot-not-awaited" "12"
        "A replica votes when enough have compared, before any has its boot on disk."
    SameNumberPasses "same-number-passes" "12"
        "Of two boots of one number neither is taken for older."
    RecallUnverified "recall-unverified" "12"
        "What others give back of a replica's past is believed without its signature."
    BootOverwritten "boot-overwritten" "12"
        "What is kept of another's boots is its last announcement, not its newest."
    FirstVoteHeld "first-vote-held" "12"
        "Of the votes that are heard of a replica the first is kept and given back, not the newest."
    SessionNeverEnds "session-never-ends" "12"
        "A session that nothing renews goes on."
    WaitsUnattended "waits-unattended" "12"
        "What waits in a session that nothing renews goes on waiting until the session ends."
    OffersUnending "offers-unending" "12"
        "What a client was offered stays its own though it never confirms it."
    OfferOutlivesSession "offer-outlives-session" "12"
        "What was offered in a session that ended is nobody's."
    LateConfirmed "late-confirmed" "12"
        "A client that confirms an offer which was taken back is told that it has it."
    WithdrawnStays "withdrawn-stays" "12"
        "What its client withdraws goes on waiting in the service."
    OldNonceOpens "old-nonce-opens" "12"
        "A session number opens a session however long ago its time is."
    OutageCounts "outage-counts" "12"
        "While the group stands still the time goes on by which sessions end."
    RenewedAgain "renewed-again" "12"
        "A renewal that was ordered before renews a session again."
    VersionAtOnce "version-at-once" "12"
        "A version that is raised holds from the next frame on, not from the next slot."
    FormerAdministrator "former-administrator" "12"
        "Who was the administrator goes on administering."
    StalledLeads "stalled-leads" "12"
        "A leader whose disk hangs leads on."
    StalledCounts "stalled-counts" "12"
        "Who says that its disk hangs is one of those that are needed."

    NewestWaiterFirst "newest-waiter-first" "tuples"
        "Of those who wait for a tuple the one who came last is served first."
    RenewedFromItsEnd "renewed-from-its-end" "tuples"
        "A lease that is renewed goes on from where it would have ended, not from now."
    NumberGivenBack "number-given-back" "tuples"
        "The number of the youngest tuple is used again when that is taken."
    TakenBackToTheEnd "taken-back-to-the-end" "tuples"
        "A tuple that was offered and is taken back gets a new number, and so is the youngest."
    LeaseFromOffer "lease-from-offer" "tuples"
        "The lease of what a claim inserts begins when it is offered, not when it is confirmed."
    OfferExpires "offer-expires" "tuples"
        "The own lease of a tuple ends it while it is offered to somebody."
    TokenIgnored "token-ignored" "tuples"
        "Who has a tuple under a lease finishes it by the token of a lease that has ended, too."
    JobKept "job-kept" "tuples"
        "A job whose lease has ended is not given to those who wait for one."

    VotesUnverified "votes-unverified" "10"
        "Votes of other partitions are taken for genuine, whoever signed them (Augustus, figure 2b)."
    AbortNotKept "abort-not-kept" "10"
        "A vote to abort what never came is given and forgotten."
    EndedUnexpired "ended-unexpired" "10"
        "Others end a transaction where it is unknown, though no participant has had it for long."
    EndedLate "ended-late" "10"
        "What a client left behind is ended by others only after ten times the time after which it has expired."
    ForgottenUnfenced "forgotten-unfenced" "10"
        "A transaction that is over here is forgotten, whether or not it is over elsewhere."
    FenceIgnored "fence-ignored" "10"
        "A transaction is prepared below the fence."
    ReaderEndedByOthers "reader-ended-by-others" "10"
        "Anybody gives back the locks of a transaction that only reads."
    FormerMembersCount "former-members-count" "10"
        "A certificate counts whatever members of its group are known."
    CommitRefused "commit-refused" "10"
        "Room is not kept for what was prepared, and a commit that finds none is refused."
    LocksNotRestored "locks-not-restored" "10"
        "Who restores a state has its pending transactions without their locks."
    IntervalsIgnored "intervals-ignored" "10"
        "A key is written in a range that somebody has read."
    ReadsThroughLocks "reads-through-locks" "10"
        "A key is read while a transaction is writing it."
    ValidatedUnderLock "validated-under-lock" "10"
        "What was read without an order holds, though a pending transaction writes it."
    NotValidated "not-validated" "10"
        "Who reads in several partitions without an order does not ask whether it still holds."
    MarksIgnored "marks-ignored" "10"
        "Locks are given to whoever comes, though somebody has waited for them for longer."
    LaterFirst "later-first" "10"
        "Who has a mark waits for those that come later, and not for those that came before."
    MarkedAgain "marked-again" "10"
        "It does not count how long somebody kept others waiting for nothing."
    RangesLast "ranges-last" "10"
        "Who reads a range comes behind all marks on its keys, whoever was first."
    NoMarksLeft "no-marks-left" "10"
        "Who waits for locks leaves no marks."
    VotesShowLife "votes-show-life" "10"
        "A vote of another partition, which may be any time old, shows that it lives."
    OldWordsShowLife "old-words-show-life" "10"
        "So does what it signed at a time that is long over."
    ComparedUnderLock "compared-under-lock" "10"
        "Whether a comparison fails is decided before whether somebody is writing what is compared."
}

/// This build has no mistakes that could be switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this build has no mistakes in it; `make programs` makes one that has")]
pub struct NotBuiltIn;

impl Bug {
    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Bug> {
        Bug::ALL.iter().copied().find(|bug| bug.name() == name)
    }

    /// Switches this bug on, for the whole process.
    ///
    /// # Errors
    /// [`NotBuiltIn`]; nothing is switched on.
    pub fn activate(self) -> Result<(), NotBuiltIn> {
        if !ARE_BUILT_IN {
            return Err(NotBuiltIn);
        }
        ACTIVE.store(self as usize + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this bug is switched on.
    #[must_use]
    pub fn is_active(self) -> bool {
        ACTIVE.load(Ordering::Relaxed) == self as usize + 1
    }

    /// The one that is switched on.
    #[must_use]
    pub fn active() -> Option<Bug> {
        let number = ACTIVE.load(Ordering::Relaxed).checked_sub(1)?;
        Bug::ALL.get(number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const RULES: [&str; 23] = [
        "A1", "A2", "A3", "A4", "A5", "A6", "D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "E1",
        "E2", "E3", "E4", "C1", "C2", "10", "12", "tuples",
    ];

    #[test]
    fn names_are_unique_and_every_rule_has_two() {
        let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
        for bug in Bug::ALL {
            assert_eq!(Bug::parse(bug.name()), Some(*bug));
            assert!(bug.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            *rules.entry(bug.rule()).or_default() += 1;
        }
        assert!(Bug::ALL.len() >= 40);
        assert!(rules.keys().all(|rule| RULES.contains(rule)), "{rules:?}");
        assert!(RULES.iter().all(|rule| rules.get(rule).is_some_and(|count| *count >= 2)));
    }
}
