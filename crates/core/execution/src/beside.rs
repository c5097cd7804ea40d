//! Reads beside execution: of the state after one slot, on other threads, while the service goes on.

use crate::administration::Registry;
use crate::asked::{Asked, Call};
use crate::cost::Meter;
use crate::machine::Machine;
use crate::outcomes::{sent_back, service_outcome};
use crate::service::{QueryContext, Readable, Service};
use bytes::Bytes;
use perdura_protocol::{Command, Decode, Outcome, PublicKey, RefusalReason, Slot};
use std::fmt;
use std::sync::Arc;

/// A machine's state after a slot, as far as reads ask for it. Clones are of the same.
#[derive(Clone)]
pub struct ReadState {
    slot: Slot,
    registry: Registry,
    service: Arc<dyn Readable>,
    // Of the machine: for panics, which end nothing.
    asked: Asked,
}

impl fmt::Debug for ReadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadState").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl ReadState {
    /// The same by another name, for a mistake that is made on purpose.
    pub(crate) fn named(self, slot: Slot) -> ReadState {
        ReadState { slot, ..self }
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// As [`Machine::query_within`] of the machine as it was then. Several threads may ask at once.
    #[must_use]
    pub fn query_within(
        &self,
        client: PublicKey,
        command: &Bytes,
        meter: &Meter,
    ) -> Option<Outcome> {
        let own = self.asked.beside(self.slot);
        let is_client = self.registry.is_client(client);
        let context = QueryContext { client, meter };
        let answer = answer(is_client, command, |content| {
            own.reading(Call::Query, Some(content), || self.service.query(&context, content))
        });
        if let Some(panic) = own.take_caught() {
            self.asked.caught_beside(panic);
        }
        answer
    }
}

/// Answers a command that only reads by what the service says; `None` when it is none, or the service panics.
pub(crate) fn answer(
    is_client: bool,
    command: &Bytes,
    ask: impl FnOnce(&[u8]) -> Option<Option<Result<Bytes, String>>>,
) -> Option<Outcome> {
    if !is_client {
        return Some(Outcome::Refused(RefusalReason::UnknownClient));
    }
    match Command::from_bytes(command.clone()) {
        Ok(Command::Service(content)) => {
            let answer = ask(&content);
            answer.flatten().map(|result| service_outcome(u16::MAX, result)).map(sent_back)
        }
        Ok(_) => None,
        Err(_) => Some(Outcome::Refused(RefusalReason::Malformed)),
    }
}

impl<S: Service> Machine<S> {
    /// The state as it is now, for reads beside execution, if the service has one to give.
    #[must_use]
    pub fn read_state(&self) -> Option<ReadState> {
        let (slot, asked) = (self.slot(), self.asked().clone());
        let service = asked.about(Call::Readable, slot, || self.service().readable())?;
        Some(ReadState { slot, registry: self.registry.clone(), service, asked })
    }
}
