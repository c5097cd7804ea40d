//! A typed client of a partitioned store: transactions over any of its partitions (Augustus, EuroSys 2013, section 3).
//!
//! What one partition has is asked of it in one round. What is only read in several is asked of them in two, without locks. What is changed
//! in several is *prepared* in each of them: each locks its part and votes.
//! Then each is shown the others' votes, and that ends it. A client that dies in between leaves locks; whoever
//! meets one that is old ends the transaction for it, as the votes have it.
//!
//! [`Transactions`] does this over any [`Groups`]; [`Live`] are those of a running cluster, and [`StoreClient`] is for programs.
//!
//! Invariants:
//! - A transaction that was prepared anywhere is ended by its client, whatever became of it, if the groups answer.
//! - Two transactions of this client do not abort each other for ever: after the second conflict the groups are asked one after the other,
//!   ascending.
//! - What is over everywhere is said to be, so that nobody has to remember it.

#![forbid(unsafe_code)]

mod attempt;
mod builder;
mod error;
mod fullness;
mod groups;
mod hot;
mod live;
mod rescue;
mod resolver;
mod snapshot;
mod split;
mod telling;
mod tidy;

pub use builder::{Asked, Builder, Ended, Found, Page, Range, Results};
pub use error::{Cause, Holder, TransactionError};
pub use groups::{Answer, Groups};
pub use live::{ConnectError, Live, StoreClient};
pub use rescue::Rescue;
pub use resolver::{Looked, Resolver, Turn};
pub use split::{Part, Split};

use attempt::Attempt;
use hot::{Hot, Touches, Turns};
use perdura_client::Mode;
use perdura_protocol::{Decode, Encode, PartitionId};
use perdura_store::partition::{Blocker, PartitionReply, TransactionId};
use perdura_store::{OperationResult, StoreCommand, StoreReply, Transaction};
use snapshot::Tried;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidy::{Over, is_of_what_is_remembered};

/// After so many conflicts groups are asked one after the other.
const CONFLICTS_AT_ONCE: u32 = 2;

/// A read over several partitions is tried so often without locks, before it takes some.
const SNAPSHOTS: u32 = 3;

/// The first pause after a conflict is up to this, milliseconds; it doubles ...
const PAUSE_MS: u64 = 4;

/// ... so many times.
const PAUSE_DOUBLINGS: u32 = 6;

/// Who has been pending for so long may be dead, milliseconds: whoever meets it looks.
const SUSPECT_MS: u64 = 500;

/// Who seems to be unreachable is asked for so long, milliseconds.
const LOOK_MS: u64 = 1_000;

/// What became of a transaction that was carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it happened.
    Committed {
        /// The result of each operation, in their order; none where it is known that it committed and what it read is not known any more.
        results: Option<Vec<OperationResult>>,
    },
    /// Nothing happened, for this operation: a comparison, an insert of a present key, a write of an absent one.
    Failed {
        /// Its index.
        operation: usize,
    },
}

/// What a client did; all counters only grow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Transactions over several partitions that were begun, tries counted; but for snapshots.
    pub global: u64,
    /// Reads over several partitions that took no locks.
    pub snapshots: u64,
    /// Tries of such reads that came to nothing, for what changed meanwhile.
    pub changed: u64,
    /// Tries of all kinds that met a lock.
    pub conflicts: u64,
    /// Tries that were not voted for since another participant was not heard of.
    pub unreachable: u64,
    /// Tries that were one too many of this client, or that there was no room for.
    pub unaffordable: u64,
    /// Transactions of others that it ended.
    pub rescued: u64,
    /// Transactions that partitions forgot as it told them to.
    pub forgotten: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The last number given to a transaction.
    counter: u64,
    running: BTreeSet<u64>,
    over: Over,
    hot: Hot,
    rescuing: BTreeSet<TransactionId>,
    counters: Counters,
}

/// Who was in the way last, and since when, by this client's clock: a partition's may stand still.
#[derive(Default)]
struct Met(Option<(TransactionId, u64)>);

impl Met {
    /// For how long the same one has been in the way, milliseconds.
    fn again(&mut self, transaction: TransactionId, now_ms: u64) -> u64 {
        let same = self.0.filter(|(of, _)| *of == transaction);
        let (_, since_ms) = *self.0.insert(same.unwrap_or((transaction, now_ms)));
        now_ms.saturating_sub(since_ms)
    }
}

#[derive(Debug)]
struct Inner<G> {
    groups: G,
    state: Mutex<State>,
}

impl<G> Inner<G> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client of a partitioned store; clones are the same one.
#[derive(Debug)]
pub struct Transactions<G> {
    inner: Arc<Inner<G>>,
}

impl<G> Clone for Transactions<G> {
    fn clone(&self) -> Self {
        Transactions { inner: Arc::clone(&self.inner) }
    }
}

impl<G: Groups> Transactions<G> {
    /// A client that talks to these groups.
    #[must_use]
    pub fn over(groups: G) -> Transactions<G> {
        Transactions { inner: Arc::new(Inner { groups, state: Mutex::default() }) }
    }

    /// What it talks to.
    #[must_use]
    pub fn groups(&self) -> &G {
        &self.inner.groups
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.state().counters
    }

    /// Carries out a transaction over whichever partitions it touches. Where it meets others it tries again until the deadline. One that only
    /// reads is not ordered if `fast`, and takes no locks, unless too much changes meanwhile.
    ///
    /// # Errors
    /// [`TransactionError`]; whether it leaves open what happened says [`TransactionError::is_refusal`].
    pub async fn transact(
        &self,
        transaction: Transaction,
        fast: bool,
        deadline_ms: u64,
    ) -> Result<Outcome, TransactionError> {
        transaction.validate().map_err(TransactionError::Invalid)?;
        let touches = Arc::new(Touches::of(&transaction));
        let split = Split::of(self.groups().map(), transaction);
        let most = split.most_participants();
        if split.parts.len() > most {
            return Err(TransactionError::Participants { found: split.parts.len(), most });
        }
        let mut conflicts = 0;
        let mut met = Met::default();
        let (mut stale, mut tidied) = (0, false);
        let fast = fast && split.is_read();
        let mut snapshots = if fast { SNAPSHOTS } else { 0 };
        loop {
            let attempt = match &split.parts[..] {
                [only] => {
                    // What only reads holds nothing, and is in nobody's way.
                    let takes_turns = conflicts > 0 || !split.is_read();
                    let turns = self.turns(&touches, takes_turns, conflicts, deadline_ms).await?;
                    let attempt = self.local(only, fast, deadline_ms).await;
                    drop(turns);
                    attempt
                }
                _ if snapshots > 0 => {
                    snapshots -= 1;
                    match self.snapshot(&split, deadline_ms).await {
                        Tried::Over(attempt) => attempt,
                        Tried::Doubtful => {
                            self.wait(SNAPSHOTS - snapshots, None, deadline_ms).await?;
                            continue;
                        }
                        Tried::Ordered => {
                            snapshots = 0;
                            continue;
                        }
                    }
                }
                _ => {
                    let turns = self.turns(&touches, true, conflicts, deadline_ms).await?;
                    let in_turn = conflicts >= CONFLICTS_AT_ONCE;
                    self.global(&split, (&touches, turns), in_turn, deadline_ms).await
                }
            };
            match attempt {
                Attempt::Done(outcome) => return Ok(outcome),
                // Those that its client has pending are over soon, or it may have more again.
                Attempt::Error(
                    error @ TransactionError::Refused { cause: Cause::Cap { .. }, .. },
                ) => {
                    conflicts += 1;
                    if self.wait(conflicts, None, deadline_ms).await.is_err() {
                        return Err(error);
                    }
                }
                // What is over of this process makes room.
                Attempt::Error(TransactionError::Call(error))
                    if !tidied && is_of_what_is_remembered(&error) =>
                {
                    tidied = true;
                    self.tidy().await;
                }
                Attempt::Error(error) => return Err(error),
                Attempt::Conflict(blocker) => {
                    conflicts += 1;
                    self.note_met(&touches, &blocker);
                    self.give_way(&blocker, &mut met, conflicts, deadline_ms).await?;
                }
                Attempt::Unreachable { of, partition, oldest } => {
                    if self.is_there_again((of, partition), &oldest, deadline_ms).await {
                        conflicts += 1;
                        self.wait(conflicts, Holder::of(&oldest), deadline_ms).await?;
                    } else {
                        let cause = Cause::Unreachable { partition };
                        return Err(TransactionError::Refused { partition: of, cause });
                    }
                }
                // A session ended meanwhile: with the next one it is another transaction.
                Attempt::Stale(_) if stale < 3 => stale += 1,
                Attempt::Stale(error) => return Err(TransactionError::Call(error)),
            }
        }
    }

    /// Carries out any command of a store; a read is not ordered if `fast` ([`Mode::Fast`]).
    ///
    /// # Errors
    /// As [`Transactions::transact`].
    pub async fn command(
        &self,
        command: &StoreCommand,
        fast: bool,
        deadline_ms: u64,
    ) -> Result<StoreReply, TransactionError> {
        command.validate().map_err(TransactionError::Invalid)?;
        let key = match command {
            StoreCommand::Get { key }
            | StoreCommand::Put { key, .. }
            | StoreCommand::Delete { key } => key,
            StoreCommand::Transaction(transaction) => {
                let outcome = self.transact(transaction.clone(), fast, deadline_ms).await?;
                return Ok(StoreReply::Transaction(outcome.try_into()?));
            }
        };
        let partition = self.groups().map().partition_of(key);
        let mode = if fast && command.is_read() { Mode::Fast } else { Mode::Ordered };
        let touches = Touches::of_key(key, !command.is_read());
        let mut conflicts = 0;
        let mut met = Met::default();
        loop {
            let takes_turns = conflicts > 0 || !command.is_read();
            let turns = self.turns(&touches, takes_turns, conflicts, deadline_ms).await?;
            let encoded = command.to_bytes();
            let answer = self.groups().call(partition, encoded, mode, deadline_ms).await?;
            drop(turns);
            if !PartitionReply::is_one(&answer.reply) {
                return StoreReply::from_bytes(answer.reply)
                    .map_err(|_| TransactionError::Nonsense);
            }
            let Ok(PartitionReply::Blocked(blocker)) = PartitionReply::from_bytes(answer.reply)
            else {
                return Err(TransactionError::Nonsense);
            };
            conflicts += 1;
            self.note_met(&touches, &blocker);
            self.give_way(&blocker, &mut met, conflicts, deadline_ms).await?;
        }
    }

    /// The turns that a try needs, if it takes any.
    async fn turns(
        &self,
        touches: &Touches,
        takes: bool,
        tries: u32,
        deadline_ms: u64,
    ) -> Result<Turns, TransactionError> {
        if !takes {
            return Ok(Turns::default());
        }
        let turns = self.take_turns(touches, deadline_ms).await;
        turns.ok_or(TransactionError::Conflict { tries, with: None })
    }

    /// Whether a partition answers that another one takes for one that is down. It may only be that nobody asked it, or that what has been
    /// pending on it waits for a third one.
    async fn is_there_again(
        &self,
        (of, partition): (PartitionId, PartitionId),
        oldest: &Blocker,
        deadline_ms: u64,
    ) -> bool {
        let soon_ms = || deadline_ms.min(self.groups().now_ms() + LOOK_MS);
        let rescue = match oldest {
            Blocker::Transaction { intent, .. } => self.rescue(intent, soon_ms()).await,
            Blocker::Ranges | Blocker::Other => Rescue::Failed,
        };
        match rescue {
            Rescue::Ended | Rescue::Begun => true,
            Rescue::Failed => self.introduce(partition, of, soon_ms()).await,
        }
    }

    /// Somebody was in the way: ends what he left, or waits a while.
    async fn give_way(
        &self,
        blocker: &Blocker,
        met: &mut Met,
        conflicts: u32,
        deadline_ms: u64,
    ) -> Result<(), TransactionError> {
        self.inner.state().counters.conflicts += 1;
        if let Blocker::Transaction { intent, pending_ms } = blocker
            && met.again(intent.id(), self.groups().now_ms()).max(*pending_ms) >= SUSPECT_MS
            && self.rescue(intent, deadline_ms).await == Rescue::Ended
        {
            return Ok(());
        }
        self.wait(conflicts, Holder::of(blocker), deadline_ms).await
    }

    async fn wait(
        &self,
        conflicts: u32,
        with: Option<Holder>,
        deadline_ms: u64,
    ) -> Result<(), TransactionError> {
        if self.groups().now_ms() >= deadline_ms {
            return Err(TransactionError::Conflict { tries: conflicts, with });
        }
        let most = PAUSE_MS << conflicts.min(PAUSE_DOUBLINGS);
        let pause_ms = 1 + self.groups().random(most);
        let left_ms = deadline_ms.saturating_sub(self.groups().now_ms());
        self.groups().sleep(pause_ms.min(left_ms)).await;
        Ok(())
    }
}

impl TryFrom<Outcome> for perdura_store::TransactionResult {
    type Error = TransactionError;

    fn try_from(outcome: Outcome) -> Result<Self, TransactionError> {
        match outcome {
            Outcome::Committed { results: Some(results) } => {
                Ok(perdura_store::TransactionResult { committed: true, failed: None, results })
            }
            Outcome::Committed { results: None } => Err(TransactionError::ResultsGone),
            Outcome::Failed { operation } => Ok(perdura_store::TransactionResult {
                committed: false,
                failed: u32::try_from(operation).ok(),
                results: Vec::new(),
            }),
        }
    }
}
