//! Reads over several partitions that take no locks: all partitions are read, each without an order, and then asked whether what they gave
//! still holds. If it does in all of them, it held in all of them at once, in between: the double collect of atomic snapshots (Afek et
//! al., JACM 1993), with validation (Kung and Robinson, TODS 1981) in place of the second look. Why that is so stands in `docs/partitions.md`.

use crate::attempt::{Attempt, Given};
use crate::split::Part;
use crate::{Cause, Groups, Outcome, Split, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Indeterminacy, Mode};
use perdura_protocol::{Slot, seeded};
use perdura_store::OperationResult;
use perdura_store::partition::{Blocker, PartitionCommand, PartitionReply};

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

impl<G: Groups> Transactions<G> {
    /// One try.
    pub(crate) async fn snapshot(&self, split: &Split, deadline_ms: u64) -> Tried {
        let looks = split.parts.iter().map(|part| self.look(part, deadline_ms));
        let (mut results, mut slots, mut ordered) = (Vec::new(), Vec::new(), false);
        let mut blocked = None;
        for (part, look) in split.parts.iter().zip(join_all(looks).await) {
            match look {
                Look::Seen(seen, slot) => {
                    results.push(seen);
                    slots.push(slot);
                }
                // What fails in one partition fails, whatever the others have.
                Look::Failed(operation) => {
                    let operation = split.origin(part.partition, operation);
                    return Tried::Over(Attempt::Done(Outcome::Failed { operation }));
                }
                Look::Error(error) => return Tried::Over(Attempt::Error(error)),
                Look::Blocked(blocker) => blocked = Some(blocker),
                Look::Ordered => ordered = true,
            }
        }
        if let Some(blocker) = blocked {
            return Tried::Over(Attempt::Conflict { blocker, at: Vec::new() });
        }
        if ordered {
            return Tried::Ordered;
        }
        let parts = split.parts.iter().zip(slots);
        let checks = parts.map(|(part, slot)| self.check(part, slot, deadline_ms));
        let checks = if seeded!(NotValidated) { Vec::new() } else { join_all(checks).await };
        for check in checks {
            match check {
                Check::Holds => {}
                Check::Blocked(blocker) => {
                    return Tried::Over(Attempt::Conflict { blocker, at: Vec::new() });
                }
                Check::Doubtful => {
                    self.inner.state().counters.changed += 1;
                    return Tried::Doubtful;
                }
            }
        }
        let Some(results) = split.join(results) else {
            return Tried::Over(Attempt::Error(TransactionError::Nonsense));
        };
        self.inner.state().counters.snapshots += 1;
        Tried::Over(Attempt::Done(Outcome::Committed { results: Some(results) }))
    }

    async fn look(&self, part: &Part, deadline_ms: u64) -> Look {
        match self.ask_for_part(part, Mode::Fast, deadline_ms).await {
            Ok(Given::Result(result, slot)) => match (result.failed, slot) {
                (Some(operation), _) => Look::Failed(operation),
                (None, Some(slot)) => Look::Seen(result.results, slot),
                (None, None) => Look::Ordered,
            },
            Ok(Given::Blocked(blocker)) => Look::Blocked(blocker),
            Ok(Given::Nonsense) => Look::Error(TransactionError::Nonsense),
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
