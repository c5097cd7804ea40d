//! Decided batches that wait before they are executed, in a baseline of Dura-SMaRt (USENIX ATC 2013)
//! for experiments: with `sync-naive` (section 3.1) a command is logged before it is executed. All other
//! modes execute while the log is written (rule D2).
//!
//! Agreement goes on meanwhile as far as its pipeline reaches above what is executed, which bounds
//! what waits here.

use super::{Node, Now};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Batch, Digest, Frame, Slot, seeded};
use std::collections::VecDeque;

/// A batch to execute.
#[derive(Debug)]
pub(super) struct Delivery {
    pub slot: Slot,
    pub batch: Batch,
    pub history: Digest,
    pub logged_at: u64,
}

/// How many they are, and their bytes.
pub(super) fn sum(deliveries: &VecDeque<Delivery>) -> (usize, usize) {
    let bytes = deliveries.iter().map(|delivery| delivery.batch.raw().len()).sum();
    (deliveries.len(), bytes)
}

impl Node {
    /// Batches that were delivered and are not executed, as far as is known here, and their bytes.
    pub(super) fn unexecuted(&self) -> (usize, usize) {
        let (here, apart) = (sum(&self.unexecuted), self.execution.waiting());
        (here.0 + apart.0, here.1 + apart.1)
    }

    fn may_execute(&self, logged_at: u64) -> bool {
        let naive = self.parameters.durability == Durability::SyncNaive;
        !naive || logged_at <= self.journal.persisted()
    }

    /// Executes a decided batch, or keeps it until it may be executed.
    pub(super) fn on_delivery(&mut self, now: Now, delivery: Delivery) {
        if self.unexecuted.is_empty() && self.may_execute(delivery.logged_at) {
            self.deliver(now, delivery);
            self.mind_execution(now);
        } else {
            self.unexecuted.push_back(delivery);
        }
    }

    /// Executes what may be executed by now.
    pub(super) fn execute_waiting(&mut self, now: Now) {
        self.mind_execution(now);
        while self.unexecuted.front().is_some_and(|next| self.may_execute(next.logged_at)) {
            let Some(delivery) = self.unexecuted.pop_front() else { return };
            self.deliver(now, delivery);
            self.mind_execution(now);
        }
    }

    /// Executes all that waits, with all that follows from it: before a received state
    /// takes the place of this one. Replies wait for the log all the same.
    pub(super) fn execute_all(&mut self, now: Now) {
        while let Some(delivery) = self.unexecuted.pop_front() {
            self.deliver(now, delivery);
            self.carry_out(now);
        }
    }

    /// Agreement is told when it waits for this replica's own execution, and when it does no more.
    fn mind_execution(&mut self, now: Now) {
        // What is decided here waits for this replica's own stage alone, as far as the pipeline reaches.
        let reach = self.execution.slot().plus(self.parameters.depth);
        let reach = if seeded!(StageWorkExcuses) { self.execution.slot().next() } else { reach };
        let full = self.execution.is_apart() && self.agreement.delivered() >= reach;
        let full = full && !seeded!(SlowStageBlamed);
        if full != self.execution_held {
            self.execution_held = full;
            self.agreement.on_execution_held(now, full);
        }
    }

    /// Whether a frame is decided and waits here: it would be ordered twice.
    pub(super) fn awaits_execution(&self, frame: &Frame) -> bool {
        if self.execution.is_awaited(frame) {
            return true;
        }
        let same =
            |one: &Frame| (one.session, one.first_number) == (frame.session, frame.first_number);
        self.unexecuted.iter().any(|delivery| delivery.batch.frames().iter().any(same))
    }
}
