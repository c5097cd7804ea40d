//! Decided batches that wait for the log before they are executed: with `sync-naive` only, whose paper
//! (Dura-SMaRt, USENIX ATC 2013, section 3.1) logs a command before it executes it. All other modes
//! execute while the log is written (rule D2).
//!
//! Agreement goes on meanwhile as far as its pipeline reaches above what is executed, which bounds
//! what waits here.

use super::{Node, Now};
use perdura_execution::Service;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Batch, Digest, Frame, Slot};

/// A batch to execute.
#[derive(Debug)]
pub(super) struct Delivery {
    pub slot: Slot,
    pub batch: Batch,
    pub history: Digest,
    pub logged_at: u64,
}

impl<S: Service> Node<S> {
    /// Executes a decided batch, or keeps it until it is logged.
    pub(super) fn on_delivery(&mut self, now: Now, delivery: Delivery) {
        let naive = self.parameters.durability == Durability::SyncNaive;
        let waits = !self.unlogged.is_empty() || delivery.logged_at > self.persisted;
        if naive && waits {
            self.unlogged.push_back(delivery);
        } else {
            self.deliver(now, delivery);
        }
    }

    /// Executes what is logged by now.
    pub(super) fn execute_logged(&mut self, now: Now) {
        let persisted = self.persisted;
        while let Some(delivery) = self.unlogged.pop_front_if(|next| next.logged_at <= persisted) {
            self.deliver(now, delivery);
        }
    }

    /// Executes what waits, logged or not, with all that follows from it: before a received state
    /// takes the place of this one. Replies wait for the log all the same.
    pub(super) fn execute_unlogged(&mut self, now: Now) {
        while let Some(delivery) = self.unlogged.pop_front() {
            self.deliver(now, delivery);
            self.carry_out(now);
        }
    }

    /// Whether a frame is decided and waits here: it would be ordered twice.
    pub(super) fn awaits_execution(&self, frame: &Frame) -> bool {
        let same =
            |one: &Frame| (one.session, one.first_number) == (frame.session, frame.first_number);
        self.unlogged.iter().any(|delivery| delivery.batch.frames().iter().any(same))
    }
}
