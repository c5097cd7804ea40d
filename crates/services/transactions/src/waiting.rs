//! Waiting for locks that others have.
//!
//! Who meets somebody pauses for a moment at first. Who meets others again leaves a mark where he does, and looks there until he would get what he
//! wants: while it stands others' transactions are not given it before him. Whoever has been in the way for long may be dead: then his transaction is ended.

use crate::{Groups, Holder, Rescue, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Refusal};
use perdura_protocol::{PartitionId, RefusalReason, seeded};
use perdura_store::partition::{
    Blocker, Caller, PartitionCommand, PartitionReply, TransactionId, Wanted, Way,
};
use std::collections::BTreeMap;

/// The first pause after a conflict is up to this, milliseconds; it doubles ...
const PAUSE_MS: u64 = 4;

/// ... so many times.
const PAUSE_DOUBLINGS: u32 = 6;

/// From this conflict on marks are left.
const MARKED_FROM: u32 = 2;

/// Who has a mark looks again after up to so long, milliseconds; ...
const LOOK_MS: u64 = 4;

/// ... who has none pauses as after conflicts, but no longer than with so many doublings.
const LOOK_DOUBLINGS: u32 = 4;

/// Where groups have no marks, they are asked one after the other after so many conflicts.
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
    /// None before it leaves its first mark.
    caller: Option<Caller>,
    deadline_ms: u64,
    conflicts: u32,
    met: Met,
    /// The last time all groups in which it met somebody had marks.
    is_marked: bool,
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

    /// Whether it has met so many that what it reads is to be ordered.
    pub(crate) fn is_patient(&self) -> bool {
        self.conflicts >= FAST_CONFLICTS
    }

    /// Whether groups are to be asked one after the other.
    pub(crate) fn goes_in_turn(&self) -> bool {
        self.conflicts >= CONFLICTS_AT_ONCE && !self.is_marked
    }
}

/// What the groups say in which a call waits.
enum Looked {
    /// It would get all.
    Free,
    /// Some of it is held, and for so long at most there is no need to look again; or some is an older one's.
    Waits { holders: Vec<Blocker>, pause_ms: u64 },
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
        Waiter { caller: None, deadline_ms, conflicts: 0, met: Met::default(), is_marked: false }
    }

    /// Somebody was in the way in these groups: ends what he left, or waits until it may be tried again.
    pub(crate) async fn give_way(
        &self,
        waiter: &mut Waiter,
        blocker: &Blocker,
        wanted: Vec<(PartitionId, Wanted)>,
    ) -> Result<(), TransactionError> {
        self.inner.state().counters.conflicts += 1;
        if self.ends(waiter, blocker).await {
            waiter.conflicts += 1;
            return Ok(());
        }
        if waiter.conflicts + 1 < MARKED_FROM || wanted.is_empty() {
            return self.wait_on(waiter, Holder::of(blocker)).await;
        }
        waiter.conflicts += 1;
        let mut with = Holder::of(blocker);
        for looks in 1.. {
            let (holders, pause_ms) = match self.leave_marks(waiter, &wanted, looks).await {
                Looked::Free => return Ok(()),
                Looked::Unknown => {
                    return self.pause(waiter.conflicts, with, waiter.deadline_ms).await;
                }
                Looked::Waits { holders, pause_ms } => (holders, pause_ms),
            };
            for holder in &holders {
                with = Holder::of(holder).or(with);
                if self.ends(waiter, holder).await {
                    return Ok(());
                }
            }
            self.pause_for(pause_ms, waiter, with).await?;
        }
        Ok(())
    }

    /// Ends the transaction of who has been in the way for long; whether it did.
    async fn ends(&self, waiter: &mut Waiter, blocker: &Blocker) -> bool {
        let Blocker::Transaction { intent, pending_ms } = blocker else { return false };
        let met_ms = waiter.met.again(intent.id(), self.groups().now_ms());
        met_ms.max(*pending_ms) >= SUSPECT_MS
            && self.rescue(intent, waiter.deadline_ms).await == Rescue::Ended
    }

    /// Looks whether it would get what it wants, and leaves marks where it would not.
    async fn leave_marks(
        &self,
        waiter: &mut Waiter,
        wanted: &[(PartitionId, Wanted)],
        looks: u32,
    ) -> Looked {
        let now_ms = self.groups().now_ms();
        let is_unmarked = |of: &PartitionId| {
            self.inner.state().unmarked.0.get(of).is_some_and(|until_ms| now_ms < *until_ms)
        };
        waiter.is_marked = !wanted.iter().any(|(of, _)| is_unmarked(of));
        if !waiter.is_marked || seeded!(NoMarksLeft) {
            return Looked::Unknown;
        }
        let token = || self.groups().random(u64::MAX);
        let mut caller =
            *waiter.caller.get_or_insert_with(|| Caller { begin: None, token: token() });
        let asked = wanted.iter().map(async |(of, wanted)| {
            let mark = PartitionCommand::Mark { caller, wanted: wanted.clone() };
            (*of, self.ask(*of, &mark, waiter.deadline_ms).await)
        });
        let (mut holders, mut is_free, mut pauses_ms) = (Vec::new(), true, 0);
        for (of, answer) in join_all(asked).await {
            match answer {
                Ok((PartitionReply::Marked { begin, way }, _)) => {
                    // The same everywhere, from the first answer on.
                    caller.begin.get_or_insert(begin);
                    waiter.caller = Some(caller);
                    let most_ms = match way {
                        Way::Free => continue,
                        Way::Held { blocker, marked } => {
                            holders.push(blocker);
                            if marked { LOOK_MS } else { PAUSE_MS << looks.min(LOOK_DOUBLINGS) }
                        }
                        Way::Older { again_ms } => {
                            (PAUSE_MS << looks.min(LOOK_DOUBLINGS)).min(again_ms.max(1))
                        }
                    };
                    is_free = false;
                    pauses_ms = most_ms.max(pauses_ms);
                }
                Ok(_) => return Looked::Unknown,
                Err(error) => {
                    if is_of_older_rules(&error) {
                        self.inner.state().unmarked.0.insert(of, now_ms + UNMARKED_MS);
                    }
                    waiter.is_marked = false;
                    return Looked::Unknown;
                }
            }
        }
        if is_free {
            return Looked::Free;
        }
        Looked::Waits { holders, pause_ms: 1 + self.groups().random(pauses_ms) }
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
