//! The store as it runs inside a replica, with a witness beside it that writes down everything
//! that is executed. The checkers of exactly-once execution, agreement and linearizability read
//! what it wrote.

use bytes::Bytes;
use perdura_execution::{ExecutionContext, Footprint, RestoreError, Service, Snapshot};
use perdura_protocol::{Digest, SessionId, Slot};
use perdura_store::Store;
use std::sync::{Arc, Mutex, PoisonError};

/// One executed command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Execution {
    /// The slot.
    pub slot: Slot,
    /// Digest of the slot's batch.
    pub batch: Digest,
    /// Whose command.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    /// The command.
    pub command: Bytes,
    /// The reply, or the refusal.
    pub reply: Result<Bytes, String>,
}

/// What one process executed and nobody has looked at yet.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<Execution>>>);

impl Notes {
    /// Takes what was executed since it was last asked.
    #[must_use]
    pub fn take(&self) -> Vec<Execution> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, execution: Execution) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(execution);
    }
}

/// The store with its witness.
#[derive(Debug)]
pub struct Witnessed {
    store: Store,
    notes: Notes,
}

impl Witnessed {
    /// An empty store that writes into `notes`.
    #[must_use]
    pub fn new(state_limit_bytes: u64, notes: Notes) -> Witnessed {
        Witnessed { store: Store::new(state_limit_bytes), notes }
    }
}

impl Service for Witnessed {
    fn footprint(&self, command: &[u8]) -> Footprint {
        self.store.footprint(command)
    }

    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        let reply = self.store.execute(context, command);
        self.notes.write(Execution {
            slot: context.slot,
            batch: context.batch,
            session: context.session,
            number: context.number,
            command: Bytes::copy_from_slice(command),
            reply: reply.clone(),
        });
        reply
    }

    fn query(&self, command: &[u8]) -> Option<Result<Bytes, String>> {
        self.store.query(command)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.store.snapshot()
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        self.store.restore(segments)
    }
}
