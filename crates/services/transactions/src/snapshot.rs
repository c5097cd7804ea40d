//! Reads over several partitions that take no locks: all partitions are read, each without an order, and then asked whether what they gave
//! still holds. If it does in all of them, it held in all of them at once, in between: the double collect of atomic snapshots (Afek et
//! al., JACM 1993), with validation (Kung and Robinson, TODS 1981) in place of the second look. Why that is so stands in `docs/partitions.md`.

use crate::attempt::{Attempt, LocalAnswer};
use crate::split::{Entry, Merged, Part, merge};
use crate::{Cause, Groups, Outcome, Range, Split, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Indeterminacy, Mode};
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{PartitionId, Slot, seeded};
use perdura_store::partition::{Blocker, PartitionCommand, PartitionReply};
use perdura_store::{OperationResult, behind, limits};

/// Of a range over several partitions each is asked for so many entries at first, at most; ...
const FIRST_SHARE: usize = 64;

/// ... and always for so many more than its share.
const SPARE: usize = 4;

/// What a partition gave.
enum Look {
    /// So much, behind a slot that is not below this one.
    Seen(Vec<OperationResult>, Slot),
    /// It failed, at this operation of the part.
    Failed(u32),
    /// Somebody writes some of it.
    Blocked(Blocker),
    /// It was only given in order, which says nothing of other partitions.
    Ordered,
    Error(TransactionError),
}

/// What a partition says of it later.
enum Check {
    Holds,
    Blocked(Blocker),
    /// It does not, or nobody knows.
    Doubtful,
}

/// What a try came to.
pub(crate) enum Tried {
    Over(Attempt),
    /// To nothing: something changed meanwhile, or may have.
    Doubtful,
    /// To nothing, and so would the next one: replicas do not agree without an order.
    Ordered,
}

/// What a partition has of a range, as far as it was read.
struct Run {
    partition: PartitionId,
    /// In the order that was asked for.
    entries: Vec<Entry>,
    is_whole: bool,
    /// All of it holds behind a slot that is not below this one.
    slot: Option<Slot>,
}

impl Run {
    fn of(partition: PartitionId) -> Run {
        Run { partition, entries: Vec::new(), is_whole: false, slot: None }
    }

    /// As [`merge`] takes it: ascending, and whether there is more.
    fn list(&self, reverse: bool) -> (Vec<Entry>, bool) {
        let mut entries = self.entries.clone();
        if reverse {
            entries.reverse();
        }
        (entries, !self.is_whole)
    }

    /// What it is asked for next: so many entries.
    fn next_part(&self, range: &Range, limit: u32) -> Part {
        let last = self.entries.last().map(|(key, _)| key.clone());
        let rest = match last {
            None => range.clone(),
            Some(last) if range.reverse => range.clone().to(last),
            Some(last) => range.clone().after(&last),
        };
        Part::of_one(self.partition, rest.limit(limit).operation())
    }

    /// Notes what it gave; or what the try came to by that.
    fn note(&mut self, look: Look) -> Option<Tried> {
        let over = |attempt| Some(Tried::Over(attempt));
        match look {
            Look::Seen(results, slot) => {
                let [OperationResult::Entries { entries, more }] = &results[..] else {
                    return over(Attempt::Error(TransactionError::UnexpectedReply));
                };
                self.entries.extend(entries.iter());
                self.is_whole = !more;
                self.slot = Some(self.slot.map_or(slot, |before| before.min(slot)));
                None
            }
            Look::Failed(_) => over(Attempt::Error(TransactionError::UnexpectedReply)),
            Look::Error(error) => over(Attempt::Error(error)),
            Look::Blocked(blocker) => over(Attempt::Conflict { blocker, at: Vec::new() }),
            Look::Ordered => Some(Tried::Ordered),
        }
    }
}

/// For how many entries each of so many partitions is asked, where so many are missing, and one that shows that there is more. How large they are is not known
/// before some were read.
fn share_of(asked: usize, missing: usize, merged: &Merged) -> u32 {
    let share = match (asked, merged.entries.len()) {
        (1, _) => missing + 1,
        (_, 0) => FIRST_SHARE.min(missing.div_ceil(asked)),
        (_, count) => {
            let bytes = merged.entries.iter().map(|(key, value)| 8 + key.len() + value.len());
            let each = bytes.sum::<usize>().div_ceil(count);
            let fits = (limits::RANGE_BYTES / each).saturating_sub(count).max(FIRST_SHARE);
            missing.min(fits).div_ceil(asked)
        }
    };
    // Somewhat more, since they are not spread evenly.
    let share = if asked == 1 { share } else { share + share / 4 + SPARE };
    share.min(missing + 1).min(limits::RANGE_ENTRIES) as u32
}

impl<G: Groups> Transactions<G> {
    /// One try.
    pub(crate) async fn snapshot(&self, split: &Split, deadline_ms: u64) -> Tried {
        if let Some(range) = split.as_range() {
            return self.snapshot_of_range(split, range, deadline_ms).await;
        }
        let looks = split.parts.iter().map(|part| self.look(part, deadline_ms));
        let (mut results, mut slots, mut ordered) = (Vec::new(), Vec::new(), false);
        let (mut blocked, mut failed, mut broken) = (None, None, None);
        for (part, look) in split.parts.iter().zip(join_all(looks).await) {
            match look {
                Look::Seen(seen, slot) => {
                    results.push(seen);
                    slots.push(slot);
                }
                Look::Failed(operation) => {
                    let origin = split.origin(part.partition, operation);
                    let lowest: usize = failed.unwrap_or(origin);
                    failed = Some(lowest.min(origin));
                }
                Look::Error(error) => broken = broken.or(Some(error)),
                Look::Blocked(blocker) => blocked = Some(blocker),
                Look::Ordered => ordered = true,
            }
        }
        // What fails in one partition fails, whatever the others have. Of reads only comparisons do.
        if let Some(operation) = failed {
            return Tried::Over(Attempt::Done(Outcome::Failed { operation }));
        }
        if let Some(error) = broken {
            return Tried::Over(Attempt::Error(error));
        }
        if let Some(blocker) = blocked {
            return Tried::Over(Attempt::Conflict { blocker, at: Vec::new() });
        }
        if ordered {
            return Tried::Ordered;
        }
        let seen = split.parts.iter().cloned().zip(slots).collect();
        match (self.check_all(seen, deadline_ms).await, split.join(results)) {
            (Some(failed), _) => failed,
            (None, Some(results)) => self.taken(results),
            (None, None) => Tried::Over(Attempt::Error(TransactionError::UnexpectedReply)),
        }
    }

    /// One try of a page of a range. Each partition is asked for about its share, and again where that was too little; what is given is validated, and the first
    /// key that is left out.
    async fn snapshot_of_range(&self, split: &Split, range: Range, deadline_ms: u64) -> Tried {
        let mut runs: Vec<Run> = split.parts.iter().map(|part| Run::of(part.partition)).collect();
        let merged = loop {
            let lists = runs.iter().map(|run| run.list(range.reverse)).collect();
            let merged = merge(lists, range.reverse, range.limit as usize);
            if merged.left_out.is_some() || runs.iter().all(|run| run.is_whole) {
                break merged;
            }
            // By range, what one partition has comes before all that the next one has.
            let in_turn = matches!(self.groups().map().distribution, Distribution::Range { .. });
            let most = if in_turn { 1 } else { runs.len() };
            let open = runs.iter_mut().filter(|run| !run.is_whole);
            let open: Vec<&mut Run> = match range.reverse {
                true => open.rev().take(most).collect(),
                false => open.take(most).collect(),
            };
            let missing = range.limit as usize - merged.entries.len();
            let share = share_of(open.len(), missing, &merged);
            let looks = join_all(open.into_iter().map(async |run| {
                let part = run.next_part(&range, share);
                let look = self.look(&part, deadline_ms).await;
                run.note(look)
            }));
            if let Some(tried) = looks.await.into_iter().flatten().next() {
                return tried;
            }
        };
        let more = merged.left_out.is_some();
        let range = match merged.left_out {
            None => range,
            Some(first) if range.reverse => Range { start: first, ..range },
            Some(last) => {
                let end = behind(&last).or(range.end);
                Range { end, ..range }
            }
        };
        let operation = Range { limit: limits::RANGE_ENTRIES as u32, ..range }.operation();
        let seen = runs
            .iter()
            .filter_map(|run| Some((Part::of_one(run.partition, operation.clone()), run.slot?)));
        if let Some(failed) = self.check_all(seen.collect(), deadline_ms).await {
            return failed;
        }
        let entries = merged.entries.into_iter().collect();
        self.taken(vec![OperationResult::Entries { entries, more }])
    }

    fn taken(&self, results: Vec<OperationResult>) -> Tried {
        self.inner.state().counters.snapshots += 1;
        Tried::Over(Attempt::Done(Outcome::Committed(results.into())))
    }

    /// Whether all of this still holds; if not, what the try came to.
    async fn check_all(&self, seen: Vec<(Part, Slot)>, deadline_ms: u64) -> Option<Tried> {
        let checks = seen.iter().map(|(part, slot)| self.check(part, *slot, deadline_ms));
        let checks = if seeded!(NotValidated) { Vec::new() } else { join_all(checks).await };
        for check in checks {
            match check {
                Check::Holds => {}
                Check::Blocked(blocker) => {
                    return Some(Tried::Over(Attempt::Conflict { blocker, at: Vec::new() }));
                }
                Check::Doubtful => {
                    self.inner.state().counters.changed += 1;
                    return Some(Tried::Doubtful);
                }
            }
        }
        None
    }

    async fn look(&self, part: &Part, deadline_ms: u64) -> Look {
        match self.ask_for_part(part, Mode::Fast, deadline_ms).await {
            Ok(LocalAnswer::Result(result, slot)) => match (result.failed, slot) {
                (Some(operation), _) => Look::Failed(operation),
                (None, Some(slot)) => Look::Seen(result.results, slot),
                (None, None) => Look::Ordered,
            },
            Ok(LocalAnswer::Blocked(blocker)) => Look::Blocked(blocker),
            Ok(LocalAnswer::UnexpectedReply) => Look::Error(TransactionError::UnexpectedReply),
            // Its reply was not kept.
            Err(CallError::Indeterminate {
                reason: Indeterminacy::TooOld | Indeterminacy::NoSession,
                ..
            }) => Look::Ordered,
            // It only reads.
            Err(CallError::Indeterminate { reason: Indeterminacy::DeadlinePassed, .. }) => {
                let (partition, cause) = (part.partition, Cause::Silent);
                Look::Error(TransactionError::Refused { partition, cause })
            }
            Err(error) => Look::Error(error.into()),
        }
    }

    async fn check(&self, part: &Part, since: Slot, deadline_ms: u64) -> Check {
        let operations = part.operations.clone();
        let command = PartitionCommand::Validate { since, operations };
        match self.ask(part.partition, &command, deadline_ms).await {
            Ok((PartitionReply::Validated { holds: true }, _)) => Check::Holds,
            Ok((PartitionReply::Blocked(blocker), _)) => Check::Blocked(blocker),
            _ => Check::Doubtful,
        }
    }
}
