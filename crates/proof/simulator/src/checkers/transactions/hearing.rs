//! Whether a partition prepares nothing that needs one of which it has not heard for long. By its commands and what time they came at: only what the other
//! one signed not long before shows that it was there.

use perdura_protocol::{PartitionId, Time};
use perdura_store::partition::{Fence, Intent, Signed, TransactionId, limits};
use std::collections::BTreeMap;

/// The clocks of two groups differ by so much at most, milliseconds.
const APART_MS: u64 = 1_000;

/// See the module. Times are of the clock that stands still with the group.
#[derive(Clone, Debug, Default)]
pub(super) struct Hearing {
    pending: BTreeMap<TransactionId, (Time, Vec<PartitionId>)>,
    heard: BTreeMap<PartitionId, Time>,
}

impl Hearing {
    /// Fences of others were shown, at this agreed time and clock.
    pub fn shown(&mut self, fences: &[Fence], time: Time, clock: Time) {
        for Fence { proof, signed, .. } in fences {
            let at = match signed {
                Signed::Clock(at) => clock.min(*at),
                Signed::Agreed(at) if at.0 + limits::UNREACHABLE_MS + APART_MS >= time.0 => clock,
                Signed::Agreed(_) => continue,
            };
            let heard = self.heard.entry(proof.partition).or_default();
            *heard = at.max(*heard);
        }
    }

    /// A transaction is prepared that waits for others; in words why it may not be.
    pub fn prepares(
        &mut self,
        here: PartitionId,
        intent: &Intent,
        clock: Time,
    ) -> Result<(), String> {
        for one in intent.others(here) {
            let on = self.pending.values().filter(|(_, others)| others.contains(&one.partition));
            let Some(since) = on.map(|(since, _)| *since).min() else { continue };
            let heard = self.heard.get(&one.partition).copied().unwrap_or_default();
            let silent_ms = clock.0.saturating_sub(since.max(heard).0);
            if silent_ms > limits::UNREACHABLE_MS {
                let other = one.partition.0;
                return Err(format!("nothing was heard of partition {other} for {silent_ms} ms"));
            }
        }
        let others = intent.others(here).map(|one| one.partition).collect();
        self.pending.insert(intent.id(), (clock, others));
        Ok(())
    }

    /// It is pending no longer.
    pub fn ends(&mut self, transaction: TransactionId) {
        self.pending.remove(&transaction);
    }
}
