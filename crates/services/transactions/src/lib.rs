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
//! - Two transactions do not abort each other for ever: who meets others again leaves marks where he does, and asks the groups
//!   one after the other, ascending.
//! - What is over everywhere is said to be, so that nobody has to remember it.

#![forbid(unsafe_code)]

mod attempt;
mod builder;
mod error;
mod finish;
mod forget;
mod fullness;
mod groups;
mod hot;
mod live;
mod outcome;
mod resolve;
mod resolver;
mod snapshot;
mod split;
mod stay;
mod waiting;
mod walk;

pub use builder::{Builder, Range};
pub use error::{Cause, Holder, TransactionError};
pub use groups::{Answer, Groups};
pub use live::{ConnectError, Live, StoreClient};
pub use outcome::{Asked, Found, Outcome, Page, Results};
pub use resolve::Resolution;
pub use resolver::{Resolver, Round, Turn};
pub use split::{Part, Split};
pub use walk::{Walk, WalkError};

use attempt::{Attempt, Order};
use forget::{Over, SessionAt, is_of_what_is_remembered};
use futures_util::future::{Either, select};
use hot::{Hot, Touches, Turns};
use perdura_client::Mode;
use perdura_protocol::{Decode, Encode, PartitionId};
use perdura_store::partition::{Blocker, PartitionReply, TransactionId, Wanted};
use perdura_store::{StoreCommand, StoreReply, Transaction};
use snapshot::Tried;
use stay::Stays;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use waiting::{Silent, Unmarked, Waiter};

/// A read over several partitions is tried so often without locks, before it takes some.
const SNAPSHOTS: u32 = 3;

/// Who seems to be unreachable is asked for so long, milliseconds.
const LOOK_MS: u64 = 1_000;

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
    pub ended_for_others: u64,
    /// Transactions that partitions forgot as it told them to.
    pub forgotten: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The last number given to a transaction.
    counter: u64,
    /// The numbers of transactions that are under way, and the sessions that they name.
    running: BTreeMap<u64, Vec<SessionAt>>,
    over: Over,
    hot: Hot,
    unmarked: Unmarked,
    silent: Silent,
    stays: Stays,
    resolving: BTreeSet<TransactionId>,
    counters: Counters,
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
        self.transact_split(&split, &touches, fast, deadline_ms).await
    }

    /// Reads the entries of a range that one partition has, in one round. They are those of one moment of it.
    ///
    /// # Errors
    /// As [`Transactions::transact`]; and when there is no such partition.
    pub async fn read_range_in(
        &self,
        partition: PartitionId,
        range: Range,
        deadline_ms: u64,
    ) -> Result<Page, TransactionError> {
        let partitions = self.groups().map().partitions();
        if partition.index() >= partitions {
            return Err(TransactionError::NoPartition { partition, partitions });
        }
        let transaction = Transaction { operations: vec![range.operation()] };
        transaction.validate().map_err(TransactionError::Invalid)?;
        let touches = Arc::new(Touches::of(&transaction));
        let split = Split::within(partition, transaction);
        self.transact_split(&split, &touches, true, deadline_ms).await?.found_alone()
    }

    async fn transact_split(
        &self,
        split: &Split,
        touches: &Arc<Touches>,
        fast: bool,
        deadline_ms: u64,
    ) -> Result<Outcome, TransactionError> {
        let holds = split.parts.len() > 1;
        let last = split.parts.last().filter(|_| holds && !split.is_read());
        let decides_in = last.map(|part| part.partition);
        let mut waiter = self.waiter((holds, decides_in), deadline_ms);
        let carried_out = self.carry_out(split, touches, fast, &mut waiter).await;
        if carried_out.as_ref().is_ok_and(|outcome| outcome.failed().is_none()) {
            waiter.note_answered();
        }
        carried_out
    }

    async fn carry_out(
        &self,
        split: &Split,
        touches: &Arc<Touches>,
        fast: bool,
        waiter: &mut Waiter<G>,
    ) -> Result<Outcome, TransactionError> {
        let deadline_ms = waiter.deadline_ms();
        let mut turns = Turns::default();
        let (mut stale, mut tidied) = (0, false);
        let fast = fast && split.is_read();
        let mut snapshots = if fast { SNAPSHOTS } else { 0 };
        loop {
            self.in_time(waiter)?;
            let mut begun_ms = self.groups().now_ms();
            let attempt = match &split.parts[..] {
                [only] => {
                    // What only reads holds nothing, and is in nobody's way.
                    if waiter.has_waited() || !split.is_read() {
                        self.take_turns_once(&mut turns, touches, waiter).await?;
                    }
                    begun_ms = self.groups().now_ms();
                    self.local(only, fast && !waiter.is_patient(), deadline_ms).await
                }
                _ if snapshots > 0 => {
                    snapshots -= 1;
                    match self.snapshot(split, deadline_ms).await {
                        Tried::Over(attempt) => attempt,
                        Tried::Doubtful => {
                            self.pause_after(SNAPSHOTS - snapshots, waiter).await?;
                            continue;
                        }
                        Tried::Ordered => {
                            snapshots = 0;
                            continue;
                        }
                    }
                }
                _ => {
                    self.take_turns_once(&mut turns, touches, waiter).await?;
                    let is_crowded = self.is_crowded(touches);
                    let mut order = Order::AtOnce;
                    if is_crowded && !waiter.has_waited() {
                        // Somebody is there, most likely: it takes its place before it is in the way of others.
                        let first = &split.parts[0];
                        let place = (first.partition, Wanted::by(&first.operations));
                        let has_place = self.look_until_free(waiter, &place).await?;
                        if self.groups().now_ms() >= deadline_ms {
                            return Err(self.conflict(waiter));
                        }
                        order = if has_place { Order::Placed } else { Order::OneByOne };
                    } else if is_crowded || waiter.goes_in_turn() {
                        order = Order::OneByOne;
                    }
                    begun_ms = self.groups().now_ms();
                    self.global(split, touches, order, deadline_ms).await
                }
            };
            let took_ms = self.groups().now_ms().saturating_sub(begun_ms);
            if !matches!(attempt, Attempt::Conflict { .. }) {
                self.give_turns(std::mem::take(&mut turns));
            }
            match attempt {
                Attempt::Done(outcome) => return Ok(outcome),
                // Those that its client has pending are over soon, or it may have more again.
                Attempt::Error(
                    error @ TransactionError::Refused { cause: Cause::Cap { .. }, .. },
                ) => {
                    if self.pause(waiter, None).await.is_err() {
                        return Err(error);
                    }
                }
                // What is over of this process makes room.
                Attempt::Error(TransactionError::Call(error))
                    if !tidied && is_of_what_is_remembered(&error) =>
                {
                    tidied = true;
                    self.forget_apart(deadline_ms).await;
                }
                Attempt::Error(error) => return Err(self.after_try(waiter, took_ms, error)),
                Attempt::Conflict { blocker, at } => {
                    waiter.note_try(took_ms);
                    let mut parts = split.parts.iter().filter(|part| at.contains(&part.partition));
                    let there = Touches::by(parts.clone().flat_map(|part| &part.operations));
                    self.note_met(if at.is_empty() { touches } else { &there }, &blocker);
                    let first = parts.next();
                    let place = first.map(|part| (part.partition, Wanted::by(&part.operations)));
                    self.give_way(waiter, (&blocker, touches), place).await?;
                }
                Attempt::Unreachable { of, partition, oldest } => {
                    if self.is_there_again((of, partition), &oldest, deadline_ms).await {
                        self.pause(waiter, Holder::of(&oldest)).await?;
                    } else {
                        let cause = Cause::Unreachable { partition };
                        return Err(TransactionError::Refused { partition: of, cause });
                    }
                }
                // A session ended meanwhile: with the next one it is another transaction.
                Attempt::Stale(error) => {
                    stale += 1;
                    if stale > 3 && self.pause_after(stale, waiter).await.is_err() {
                        return Err(TransactionError::Call(error));
                    }
                }
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
    ) -> Result<Outcome, TransactionError> {
        command.validate().map_err(TransactionError::Invalid)?;
        let key = match command {
            StoreCommand::Get { key }
            | StoreCommand::Put { key, .. }
            | StoreCommand::Delete { key } => key,
            StoreCommand::Transaction(transaction) => {
                return self.transact(transaction.clone(), fast, deadline_ms).await;
            }
        };
        let partition = self.groups().map().partition_of(key);
        let touches = Touches::of_key(key, !command.is_read());
        let mut waiter = self.waiter((false, None), deadline_ms);
        let carried_out =
            self.carry_out_one(command, (partition, &touches), fast, &mut waiter).await;
        if carried_out.is_ok() {
            waiter.note_answered();
        }
        carried_out
    }

    async fn carry_out_one(
        &self,
        command: &StoreCommand,
        (partition, touches): (PartitionId, &Touches),
        fast: bool,
        waiter: &mut Waiter<G>,
    ) -> Result<Outcome, TransactionError> {
        let deadline_ms = waiter.deadline_ms();
        let mut turns = Turns::default();
        loop {
            if waiter.has_waited() || !command.is_read() {
                self.take_turns_once(&mut turns, touches, waiter).await?;
            }
            let is_fast = fast && command.is_read() && !waiter.is_patient();
            let mode = if is_fast { Mode::Fast } else { Mode::Ordered };
            let encoded = command.to_bytes();
            self.in_time(waiter)?;
            let begun_ms = self.groups().now_ms();
            let called = self.groups().call(partition, encoded, mode, deadline_ms).await;
            let took_ms = self.groups().now_ms().saturating_sub(begun_ms);
            let answer = called.map_err(|error| self.after_try(waiter, took_ms, error.into()))?;
            if !PartitionReply::is_one(&answer.reply) {
                let reply = StoreReply::from_bytes(answer.reply);
                return Outcome::of(command, reply.map_err(|_| TransactionError::UnexpectedReply)?);
            }
            let Ok(PartitionReply::Blocked(blocker)) = PartitionReply::from_bytes(answer.reply)
            else {
                return Err(TransactionError::UnexpectedReply);
            };
            waiter.note_try(took_ms);
            self.note_met(touches, &blocker);
            let place = (!is_fast).then(|| (partition, Wanted::by_command(command)));
            self.give_way(waiter, (&blocker, touches), place).await?;
        }
    }

    /// Whether a partition answers that another one takes for one that is down. It may only be that nobody asked it, or that what has been
    /// pending on it waits for a third one.
    async fn is_there_again(
        &self,
        (of, partition): (PartitionId, PartitionId),
        oldest: &Blocker,
        deadline_ms: u64,
    ) -> bool {
        let soon_ms = deadline_ms.min(self.groups().now_ms() + LOOK_MS);
        // What waits for a third one cannot be ended, which takes its time.
        let introduced = pin!(self.introduce(partition, of, soon_ms));
        let resolved = pin!(async {
            let Blocker::Transaction { intent, .. } = oldest else { return false };
            self.resolve(intent, soon_ms).await != Resolution::Failed
        });
        match select(introduced, resolved).await {
            Either::Left((true, _)) | Either::Right((true, _)) => true,
            Either::Left((false, resolved)) => resolved.await,
            Either::Right((false, introduced)) => introduced.await,
        }
    }
}
