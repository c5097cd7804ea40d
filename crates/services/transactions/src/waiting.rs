//! Waiting for locks that others have.
//!
//! Who meets somebody leaves a mark where he does, and looks there until he would get what he wants: while it stands others' transactions that come later
//! are not given it before him. He waits in one group, and the groups are asked one after the other from then on, so that all who want the same wait in the
//! same one; he keeps a place only in groups below it, where he had to give back what he had. What only one group carries out holds nothing: it waits for locks, not for marks. Whoever
//! has been in the way for long may be dead: then his transaction is ended. Where a group goes by older rules he pauses and tries again.

use crate::hot::Touches;
use crate::stay::Stay;
use crate::{Cause, Groups, Holder, Resolution, TransactionError, Transactions};
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

/// When it is worth while to look again says the group; this doubles with each so long that the same one holds it, milliseconds, ...
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

/// A group that gives no answer for so long is silent, milliseconds.
pub(crate) const SILENCE_MS: u64 = 1_000;

/// So many transactions are known to wait for one that is.
const SILENT: usize = 64;

/// A group that knew of no marks is asked for one again after so long, milliseconds.
const UNMARKED_MS: u64 = 60_000;

/// Groups that know of no marks, for they go by older rules; and until when they are not asked for any.
#[derive(Debug, Default)]
pub(crate) struct Unmarked(BTreeMap<PartitionId, u64>);

/// Transactions that could not be ended, and a group that did not answer for that.
#[derive(Debug, Default)]
pub(crate) struct Silent(BTreeMap<TransactionId, PartitionId>);

impl Silent {
    pub(crate) fn note(&mut self, transaction: TransactionId, silent: Option<PartitionId>) {
        self.0.remove(&transaction);
        if let Some(partition) = silent {
            self.0.insert(transaction, partition);
            if self.0.len() > SILENT {
                self.0.pop_first();
            }
        }
    }
}

/// Who was in the way last, and since when, by this client's clock: a partition's may stand still.
#[derive(Debug, Default)]
struct LastHolder(Option<(TransactionId, u64)>);

impl LastHolder {
    /// For how long the same one has been in the way, milliseconds.
    fn again(&mut self, transaction: TransactionId, now_ms: u64) -> u64 {
        let same = self.0.filter(|(of, _)| *of == transaction);
        let (_, since_ms) = *self.0.insert(same.unwrap_or((transaction, now_ms)));
        now_ms.saturating_sub(since_ms)
    }
}

/// One call that may have to wait.
#[derive(Debug)]
pub(crate) struct Waiter<G: Groups> {
    deadline_ms: u64,
    /// Whether it would hold locks beyond a moment: then it also waits for others' marks, ...
    holds: bool,
    /// ... but not in the group that is asked last, which decides at once.
    decides_in: Option<PartitionId>,
    conflicts: u32,
    met: LastHolder,
    /// Nobody's transaction is ended before that, milliseconds.
    ends_at_ms: u64,
    /// Who was in the way last.
    with: Option<Holder>,
    /// How long its shortest try took, milliseconds.
    shortest_ms: Option<u64>,
    /// Where it may have marks.
    stays: Vec<Stay<G>>,
}

impl<G: Groups> Waiter<G> {
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.conflicts > 0
    }

    /// Whether groups are to be asked one after the other.
    pub(crate) fn goes_in_turn(&self) -> bool {
        self.conflicts >= CONFLICTS_AT_ONCE
    }

    /// Whether it would hold locks there beyond a moment.
    fn holds_in(&self, partition: PartitionId) -> bool {
        self.holds && self.decides_in != Some(partition)
    }

    /// Whether it has met so many that what it reads is to be ordered.
    pub(crate) fn is_patient(&self) -> bool {
        self.conflicts >= FAST_CONFLICTS
    }

    /// It has its answer, and waits nowhere any more.
    pub(crate) fn note_answered(&mut self) {
        self.stays.iter_mut().for_each(Stay::note_answered);
    }

    /// One try took so long, milliseconds. What was long may be short the next time.
    pub(crate) fn note_try(&mut self, took_ms: u64) {
        let took_ms = took_ms.min(SILENCE_MS);
        self.shortest_ms = Some(self.shortest_ms.map_or(took_ms, |least| least.min(took_ms)));
    }

    /// Whether another try would most likely not be over by the deadline.
    fn is_late(&self, now_ms: u64) -> bool {
        self.shortest_ms.is_some_and(|least| now_ms.saturating_add(least) > self.deadline_ms)
    }
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
    /// Of a call that would hold locks in several groups, or of one that would not.
    pub(crate) fn waiter(
        &self,
        (holds, decides_in): (bool, Option<PartitionId>),
        deadline_ms: u64,
    ) -> Waiter<G> {
        Waiter {
            deadline_ms,
            holds,
            decides_in,
            conflicts: 0,
            met: LastHolder::default(),
            ends_at_ms: 0,
            with: None,
            shortest_ms: None,
            stays: Vec::new(),
        }
    }

    /// Why it ends when the deadline is there.
    pub(crate) fn conflict(&self, waiter: &Waiter<G>) -> TransactionError {
        let waits_for = |of| self.inner.state().silent.0.get(&of).copied();
        let with =
            waiter.with.map(|holder| Holder { waits_for: waits_for(holder.transaction), ..holder });
        TransactionError::Conflict { tries: waiter.conflicts, with }
    }

    /// Goes on only where a try can be over by the deadline.
    pub(crate) fn in_time(&self, waiter: &Waiter<G>) -> Result<(), TransactionError> {
        match waiter.is_late(self.groups().now_ms()) {
            true => Err(self.conflict(waiter)),
            false => Ok(()),
        }
    }

    /// What a try ended with: that it came too late for an answer is the fault of those whom it met before.
    pub(crate) fn after_try(
        &self,
        waiter: &Waiter<G>,
        took_ms: u64,
        error: TransactionError,
    ) -> TransactionError {
        let is_late = match &error {
            TransactionError::Refused { cause: Cause::Silent, .. } => true,
            TransactionError::Call(error) => {
                matches!(error, CallError::Refused { reason: Refusal::DeadlinePassed, .. })
            }
            _ => false,
        };
        match is_late && waiter.has_waited() && took_ms < SILENCE_MS {
            true => self.conflict(waiter),
            false => error,
        }
    }

    /// Somebody was in the way, in a group where that is known: ends what he left, or waits until it may be tried again.
    pub(crate) async fn give_way(
        &self,
        waiter: &mut Waiter<G>,
        (blocker, touches): (&Blocker, &Touches),
        place: Option<(PartitionId, Wanted)>,
    ) -> Result<(), TransactionError> {
        self.inner.state().counters.conflicts += 1;
        // That many ranges are read is no lock that somebody gives back soon.
        let is_lock = !matches!(blocker, Blocker::Ranges);
        // One of this process most likely ends at this moment, since they take turns.
        let is_first = waiter.conflicts + 1 < CONFLICTS_AT_ONCE && !self.is_crowded(touches);
        waiter.conflicts += 1;
        waiter.with = Holder::of(blocker).or(waiter.with);
        if !is_first
            && is_lock
            && let Some(place) = place
        {
            self.end_beside(waiter, blocker);
            if self.look_until_free(waiter, &place).await? {
                return Ok(());
            }
        }
        if self.ends(waiter, blocker).await {
            return Ok(());
        }
        self.pause_after(waiter.conflicts, waiter).await
    }

    /// Looks until it would get what it wants; false where nobody knows.
    pub(crate) async fn look_until_free(
        &self,
        waiter: &mut Waiter<G>,
        place: &(PartitionId, Wanted),
    ) -> Result<bool, TransactionError> {
        // Who waits in one group is first in none behind it: those who are might wait for him.
        waiter.stays.retain(|stay| stay.partition() <= place.0);
        if waiter.stays.iter().all(|stay| stay.partition() != place.0) {
            waiter.stays.push(Stay::begin(self, place));
        }
        let most_looks = if place.1.has_ranges() { LOOKS_AT_RANGES } else { u32::MAX };
        for _ in 0..most_looks {
            let (again_ms, held_ms) = match self.leave_mark(waiter, place).await {
                None => return Ok(false),
                Some(Way::Free) => break,
                Some(Way::Marked { .. }) if !waiter.holds_in(place.0) => break,
                Some(Way::Marked { again_ms }) => (again_ms, 0),
                Some(Way::Held { blocker, again_ms }) => {
                    waiter.with = Holder::of(&blocker).or(waiter.with);
                    (again_ms, self.end_beside(waiter, &blocker))
                }
            };
            // Who holds it for long is looked at less often.
            let doublings = (held_ms / DOUBLES_MS).min(LOOK_DOUBLINGS);
            let most_ms = again_ms.min(LOOK_AT_MOST_MS) << doublings;
            self.pause_up_to(most_ms.min(LOOK_AT_MOST_MS), waiter).await?;
        }
        Ok(true)
    }

    /// Begins to end the transaction of who has been in the way for long; for how long he has, milliseconds. Who looked after that alone would lose
    /// his place meanwhile.
    fn end_beside(&self, waiter: &mut Waiter<G>, blocker: &Blocker) -> u64 {
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
            this.resolve(&intent, deadline_ms).await;
        }));
        met_ms
    }

    /// Ends the transaction of who has been in the way for long; whether it did.
    async fn ends(&self, waiter: &mut Waiter<G>, blocker: &Blocker) -> bool {
        let Blocker::Transaction { intent, pending_ms } = blocker else { return false };
        let met_ms = waiter.met.again(intent.id(), self.groups().now_ms());
        met_ms.max(*pending_ms) >= SUSPECT_MS
            && self.resolve(intent, waiter.deadline_ms).await == Resolution::Ended
    }

    /// Whether a group is not asked for marks, for it said that it has none.
    pub(crate) fn knows_no_marks(&self, of: PartitionId) -> bool {
        let until_ms = self.inner.state().unmarked.0.get(&of).copied();
        until_ms.is_some_and(|until_ms| self.groups().now_ms() < until_ms)
    }

    /// Looks whether it would get what it wants, and leaves a mark where it would not; nothing if the group has none, or does not answer.
    async fn leave_mark(
        &self,
        waiter: &Waiter<G>,
        (of, wanted): &(PartitionId, Wanted),
    ) -> Option<Way> {
        if self.knows_no_marks(*of) || seeded!(NoMarksLeft) {
            return None;
        }
        let mark = PartitionCommand::Mark { wanted: wanted.clone(), waits: true };
        match self.ask(*of, &mark, waiter.deadline_ms).await {
            Ok((PartitionReply::Marked { way }, _)) => Some(way),
            Ok(_) => None,
            Err(error) => {
                if is_of_older_rules(&error) {
                    let until_ms = self.groups().now_ms() + UNMARKED_MS;
                    self.inner.state().unmarked.0.insert(*of, until_ms);
                }
                None
            }
        }
    }

    /// One more conflict: pauses, longer each time.
    pub(crate) async fn pause(
        &self,
        waiter: &mut Waiter<G>,
        with: Option<Holder>,
    ) -> Result<(), TransactionError> {
        waiter.conflicts += 1;
        waiter.with = with.or(waiter.with);
        self.pause_after(waiter.conflicts, waiter).await
    }

    /// Pauses after so many tries.
    pub(crate) async fn pause_after(
        &self,
        tries: u32,
        waiter: &Waiter<G>,
    ) -> Result<(), TransactionError> {
        self.pause_up_to(PAUSE_MS << tries.min(PAUSE_DOUBLINGS), waiter).await
    }

    /// Not beyond the deadline: there is nothing to be waited for then.
    async fn pause_up_to(&self, most_ms: u64, waiter: &Waiter<G>) -> Result<(), TransactionError> {
        let now_ms = self.groups().now_ms();
        if now_ms >= waiter.deadline_ms {
            return Err(self.conflict(waiter));
        }
        let pause_ms = 1 + self.groups().random(most_ms);
        self.groups().sleep(pause_ms.min(waiter.deadline_ms - now_ms)).await;
        Ok(())
    }
}
