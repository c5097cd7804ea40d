//! Waiting for locks that others have.
//!
//! Who meets somebody leaves a mark where he does, and looks there until he would get what he wants: while it stands others' transactions are not given it
//! before him. The groups are asked one after the other from then on, so that all who want the same wait in the same one. Whoever has been in the way for
//! long may be dead: then his transaction is ended. Where a group goes by older rules he pauses and tries again.

use crate::hot::Touches;
use crate::{Groups, Holder, Rescue, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Refusal};
use perdura_protocol::{PartitionId, RefusalReason, seeded};
use perdura_store::partition::{
    Blocker, PartitionCommand, PartitionReply, TransactionId, Wanted, Way,
};
use std::collections::BTreeMap;

/// The first pause after a conflict is up to this, milliseconds; it doubles ...
const PAUSE_MS: u64 = 4;

/// ... so many times.
const PAUSE_DOUBLINGS: u32 = 6;

/// Who has a mark looks again after up to so long, milliseconds; ...
const LOOK_MS: u64 = 3;

/// ... and who has none after up to so long: somebody else comes first.
const LOOK_LATER_MS: u64 = 60;

/// These double with each so long that the same one holds it, milliseconds, ...
const DOUBLES_MS: u64 = 100;
const LOOK_DOUBLINGS: u64 = 6;

/// ... up to this, milliseconds.
const LOOK_AT_MOST_MS: u64 = 200;

/// After so many looks a transaction with ranges is tried all the same: what it is given of them may be free.
const LOOKS_AT_RANGES: u32 = 12;

/// Where only this process is there, groups are asked one after the other after so many conflicts, and marks are left.
const CONFLICTS_AT_ONCE: u32 = 2;

/// What reads without being ordered leaves no marks, since nobody would know that it is over. After so many conflicts it is ordered.
const FAST_CONFLICTS: u32 = 8;

/// Who has been pending for so long may be dead, milliseconds: whoever meets it looks.
const SUSPECT_MS: u64 = 500;

/// A group that knew of no marks is asked for one again after so long, milliseconds.
const UNMARKED_MS: u64 = 60_000;

/// Groups that know of no marks, for they go by older rules; and until when they are not asked for any.
#[derive(Debug, Default)]
pub(crate) struct Unmarked(BTreeMap<PartitionId, u64>);

/// Who was in the way last, and since when, by this client's clock: a partition's may stand still.
#[derive(Debug, Default)]
struct Met(Option<(TransactionId, u64)>);

impl Met {
    /// For how long the same one has been in the way, milliseconds.
    fn again(&mut self, transaction: TransactionId, now_ms: u64) -> u64 {
        let same = self.0.filter(|(of, _)| *of == transaction);
        let (_, since_ms) = *self.0.insert(same.unwrap_or((transaction, now_ms)));
        now_ms.saturating_sub(since_ms)
    }
}

/// One call that may have to wait.
#[derive(Debug)]
pub(crate) struct Waiter {
    deadline_ms: u64,
    conflicts: u32,
    met: Met,
    /// Nobody's transaction is ended before that, milliseconds.
    ends_at_ms: u64,
}

impl Waiter {
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    pub(crate) fn conflicts(&self) -> u32 {
        self.conflicts
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.conflicts > 0
    }

    /// Whether groups are to be asked one after the other.
    pub(crate) fn goes_in_turn(&self) -> bool {
        self.conflicts >= CONFLICTS_AT_ONCE
    }

    /// Whether it has met so many that what it reads is to be ordered.
    pub(crate) fn is_patient(&self) -> bool {
        self.conflicts >= FAST_CONFLICTS
    }
}

/// What the groups say in which a call waits.
enum Looked {
    /// It would get all.
    Free,
    /// Some of it is held, or is another one's to have first; it is looked again after up to so long.
    Waits { holders: Vec<Blocker>, most_ms: u64 },
    /// They have no marks, or do not answer.
    Unknown,
}

/// Whether a group refused a command since it knows of none like that.
fn is_of_older_rules(error: &CallError) -> bool {
    let CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(why)), .. } = error
    else {
        return false;
    };
    why.contains("unknown tag")
}

impl<G: Groups> Transactions<G> {
    pub(crate) fn waiter(&self, deadline_ms: u64) -> Waiter {
        Waiter { deadline_ms, conflicts: 0, met: Met::default(), ends_at_ms: 0 }
    }

    /// Somebody was in the way in these groups: ends what he left, or waits until it may be tried again.
    pub(crate) async fn give_way(
        &self,
        waiter: &mut Waiter,
        (blocker, touches): (&Blocker, &Touches),
        wanted: Vec<(PartitionId, Wanted)>,
    ) -> Result<(), TransactionError> {
        self.inner.state().counters.conflicts += 1;
        // That many ranges are read is no lock that somebody gives back soon.
        let is_lock = !matches!(blocker, Blocker::Ranges);
        // One of this process most likely ends at this moment, since they take turns.
        let is_first = waiter.conflicts + 1 < CONFLICTS_AT_ONCE && !self.is_crowded(touches);
        waiter.conflicts += 1;
        let with = Holder::of(blocker);
        if !is_first && is_lock && !wanted.is_empty() {
            self.end_beside(waiter, blocker);
            if self.look_until_free(waiter, wanted, with).await? {
                return Ok(());
            }
        }
        if self.ends(waiter, blocker).await {
            return Ok(());
        }
        self.pause(waiter.conflicts, with, waiter.deadline_ms).await
    }

    /// Others are most likely to be in the way in these groups: waits there until it may be tried.
    pub(crate) async fn wait_for_place(
        &self,
        waiter: &mut Waiter,
        wanted: Vec<(PartitionId, Wanted)>,
    ) -> Result<(), TransactionError> {
        self.look_until_free(waiter, wanted, None).await.map(|_| ())
    }

    /// Looks until it would get what it wants; false where nobody knows.
    async fn look_until_free(
        &self,
        waiter: &mut Waiter,
        wanted: Vec<(PartitionId, Wanted)>,
        mut with: Option<Holder>,
    ) -> Result<bool, TransactionError> {
        let has_ranges = wanted.iter().any(|(_, wanted)| wanted.has_ranges());
        for looks in 0.. {
            let (holders, most_ms) = match self.leave_marks(waiter, &wanted).await {
                Looked::Free => return Ok(true),
                Looked::Unknown => return Ok(false),
                Looked::Waits { holders, most_ms } => (holders, most_ms),
            };
            let mut held_ms = 0;
            for holder in &holders {
                with = Holder::of(holder).or(with);
                held_ms = self.end_beside(waiter, holder).max(held_ms);
            }
            if has_ranges && looks >= LOOKS_AT_RANGES {
                break;
            }
            // Who holds it for long is looked at less often.
            let most_ms = most_ms << (held_ms / DOUBLES_MS).min(LOOK_DOUBLINGS);
            let pause_ms = 1 + self.groups().random(most_ms.min(LOOK_AT_MOST_MS));
            self.pause_for(pause_ms, waiter, with).await?;
        }
        Ok(true)
    }

    /// Begins to end the transaction of who has been in the way for long; for how long he has, milliseconds. Who looked after that alone would lose
    /// his place meanwhile.
    fn end_beside(&self, waiter: &mut Waiter, blocker: &Blocker) -> u64 {
        let Blocker::Transaction { intent, pending_ms } = blocker else { return 0 };
        let now_ms = self.groups().now_ms();
        let met_ms = waiter.met.again(intent.id(), now_ms);
        if met_ms.max(*pending_ms) < SUSPECT_MS || now_ms < waiter.ends_at_ms {
            return met_ms;
        }
        waiter.ends_at_ms = now_ms + SUSPECT_MS;
        let (this, intent, deadline_ms) =
            (self.clone(), intent.as_ref().clone(), waiter.deadline_ms);
        self.groups().spawn(Box::pin(async move {
            this.rescue(&intent, deadline_ms).await;
        }));
        met_ms
    }

    /// Ends the transaction of who has been in the way for long; whether it did.
    async fn ends(&self, waiter: &mut Waiter, blocker: &Blocker) -> bool {
        let Blocker::Transaction { intent, pending_ms } = blocker else { return false };
        let met_ms = waiter.met.again(intent.id(), self.groups().now_ms());
        met_ms.max(*pending_ms) >= SUSPECT_MS
            && self.rescue(intent, waiter.deadline_ms).await == Rescue::Ended
    }

    /// Looks whether it would get what it wants, and leaves marks where it would not.
    async fn leave_marks(&self, waiter: &Waiter, wanted: &[(PartitionId, Wanted)]) -> Looked {
        let now_ms = self.groups().now_ms();
        let is_unmarked = |(of, _): &(PartitionId, Wanted)| {
            self.inner.state().unmarked.0.get(of).is_some_and(|until_ms| now_ms < *until_ms)
        };
        if wanted.iter().any(is_unmarked) || seeded!(NoMarksLeft) {
            return Looked::Unknown;
        }
        let asked = wanted.iter().map(async |(of, wanted)| {
            let mark = PartitionCommand::Mark { wanted: wanted.clone() };
            (*of, self.ask(*of, &mark, waiter.deadline_ms).await)
        });
        let (mut holders, mut waits, mut most_ms) = (Vec::new(), false, 0);
        for (of, answer) in join_all(asked).await {
            match answer {
                Ok((PartitionReply::Marked { way }, _)) => {
                    let next_ms = match way {
                        Way::Free => continue,
                        Way::Held { blocker, marked } => {
                            holders.push(blocker);
                            if marked { LOOK_MS } else { LOOK_LATER_MS }
                        }
                        Way::Marked { again_ms } => LOOK_LATER_MS.min(again_ms),
                    };
                    waits = true;
                    most_ms = next_ms.max(most_ms);
                }
                Ok(_) => return Looked::Unknown,
                Err(error) => {
                    if is_of_older_rules(&error) {
                        self.inner.state().unmarked.0.insert(of, now_ms + UNMARKED_MS);
                    }
                    return Looked::Unknown;
                }
            }
        }
        if waits { Looked::Waits { holders, most_ms } } else { Looked::Free }
    }

    /// One more conflict: pauses, longer each time.
    pub(crate) async fn wait_on(
        &self,
        waiter: &mut Waiter,
        with: Option<Holder>,
    ) -> Result<(), TransactionError> {
        waiter.conflicts += 1;
        self.pause(waiter.conflicts, with, waiter.deadline_ms).await
    }

    /// Pauses after so many conflicts.
    pub(crate) async fn pause(
        &self,
        conflicts: u32,
        with: Option<Holder>,
        deadline_ms: u64,
    ) -> Result<(), TransactionError> {
        let now_ms = self.groups().now_ms();
        if now_ms >= deadline_ms {
            return Err(TransactionError::Conflict { tries: conflicts, with });
        }
        let most = PAUSE_MS << conflicts.min(PAUSE_DOUBLINGS);
        let pause_ms = 1 + self.groups().random(most);
        self.groups().sleep(pause_ms.min(deadline_ms - now_ms)).await;
        Ok(())
    }

    async fn pause_for(
        &self,
        pause_ms: u64,
        waiter: &Waiter,
        with: Option<Holder>,
    ) -> Result<(), TransactionError> {
        let now_ms = self.groups().now_ms();
        if now_ms >= waiter.deadline_ms {
            return Err(TransactionError::Conflict { tries: waiter.conflicts, with });
        }
        self.groups().sleep(pause_ms.min(waiter.deadline_ms - now_ms)).await;
        Ok(())
    }
}
