//! A replicated counter: the smallest whole service, and a run of it in one process.
//!
//! Commands: `add N` (an ordered command) and `get` (also a fast read).

use bytes::Bytes;
use perdura_execution::{ExecutionContext, Failure, QueryContext, RestoreError, Service, Snapshot};
use perdura_protocol::{Decode, Encode};
use std::sync::Arc;

/// The service: a number.
#[derive(Default)]
pub struct Counter(u64);

/// A frozen number, in one segment.
struct Frozen(u64);

impl Service for Counter {
    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        if command == b"get" {
            return Ok(Bytes::from(self.0.to_string()));
        }
        let text = std::str::from_utf8(command).map_err(|error| error.to_string())?;
        let amount = text.strip_prefix("add ").ok_or("the commands are `add N` and `get`")?;
        let amount: u64 = amount.parse().map_err(|_| format!("{amount:?} is not a number"))?;
        self.0 = self.0.checked_add(amount).ok_or("the counter is full")?;
        Ok(Bytes::from(self.0.to_string()))
    }

    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        (command == b"get").then(|| Ok(Bytes::from(self.0.to_string())))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Frozen(self.0))
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.0 =
            u64::from_bytes(segment).map_err(|reason| RestoreError::Malformed { index, reason })?;
        Ok(())
    }
}

impl Snapshot for Frozen {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, _: usize) -> Bytes {
        self.0.to_bytes()
    }
}

#[allow(dead_code)] // The tests use the service above without this.
fn main() {
    use perdura_protocol::{ClusterId, Digest, PublicKey, SessionId, Slot, Time};
    let session = SessionId { client: PublicKey([0; 32]), nonce: 0 };
    let (cluster, batch) = (ClusterId([0; 16]), Digest::ZERO);
    let mut counter = Counter::default();
    for (number, command) in (1..).zip(["add 2", "add 40", "get", "add up"]) {
        let (slot, time) = (Slot(number), Time(number));
        let context = ExecutionContext {
            slot,
            time,
            clock: time,
            session,
            number,
            cluster,
            batch,
            administrator: PublicKey([1; 32]),
            other: None,
            meter: Default::default(),
        };
        println!("{command}: {:?}", counter.execute(&context, command.as_bytes()));
    }
}
