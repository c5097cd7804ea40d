//! Whether what was read without an order still holds.

use super::locks::Touched;
use super::{Blocker, Partition, PartitionReply};
use crate::map::SegmentMap;
use crate::plan::{Plan, Seen};
use crate::{Operation, Transaction};
use perdura_execution::Meter;
use perdura_protocol::{Slot, seeded};

impl Partition {
    /// Whether what a transaction reads is now what it was behind a slot, or who holds it. First all of its ranges are looked at, however little of
    /// them it gets: mostly nothing of it was changed, and nothing has to be read again then.
    pub(crate) fn validate(
        &self,
        map: &SegmentMap,
        since: Slot,
        operations: &[Operation],
        meter: &Meter,
    ) -> Result<PartitionReply, String> {
        let transaction = Transaction { operations: operations.to_vec() };
        transaction.validate().map_err(|error| error.to_string())?;
        if !transaction.is_read() {
            return Err("what writes is not validated but prepared".into());
        }
        let whole = Touched::of(&transaction, Seen::whole(&transaction));
        let is_free = |touched: &Touched| {
            seeded!(ValidatedUnderLock) || self.locks.against(touched).is_none()
        };
        if !self.recent.may_have_changed(since, &whole, meter)? && is_free(&whole) {
            return Ok(PartitionReply::Validated { holds: true });
        }
        let plan = Plan::of(map, &transaction, meter)?;
        let touched = Touched::of(&transaction, plan.seen);
        if self.recent.may_have_changed(since, &touched, meter)? {
            return Ok(PartitionReply::Validated { holds: false });
        }
        let blocker = self.against(&touched).filter(|_| !is_free(&touched));
        Ok(match blocker {
            None => PartitionReply::Validated { holds: true },
            // For how long differs by replica, which have to say the same.
            Some(Blocker::Transaction { intent, .. }) => {
                PartitionReply::Blocked(Blocker::Transaction { intent, pending_ms: 0 })
            }
            Some(other) => PartitionReply::Blocked(other),
        })
    }
}
