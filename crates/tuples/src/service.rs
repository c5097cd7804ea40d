//! The tuple spaces as a [`Service`].

use crate::command::{CommandError, Operation, TupleCommand};
use crate::operate::{Caller, Spaces};
use bytes::Bytes;
use perdura_execution::{ExecutionContext, Footprint, RestoreError, Service, Snapshot};
use perdura_protocol::{Encode, PublicKey};
use perdura_store::SegmentMap;
use std::sync::Arc;

/// The tuple spaces of one replica.
#[derive(Debug)]
pub struct TupleSpaces {
    spaces: Spaces,
}

impl TupleSpaces {
    /// No spaces. What is kept (spaces, tuples, the entries of the index and of leases) counts its
    /// keys and values and [`perdura_store::limits::ENTRY_OVERHEAD_BYTES`] for each entry; what would
    /// make the sum grow beyond `state_limit_bytes` is refused, the same way on every replica.
    /// Taking and deleting never is.
    #[must_use]
    pub fn new(state_limit_bytes: u64) -> TupleSpaces {
        TupleSpaces { spaces: Spaces { map: SegmentMap::new(), limit_bytes: state_limit_bytes } }
    }

    /// What everything counts for, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.spaces.map.bytes()
    }

    /// Entries of the map: tuples, and what belongs to them.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.spaces.map.entries()
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.spaces.map.segments()
    }
}

impl Service for TupleSpaces {
    /// Commands of different spaces do not conflict. A read does with others of its space: it may
    /// be the one that removes what has expired.
    fn footprint(&self, command: &[u8]) -> Footprint {
        let mut footprint = Footprint::new();
        match TupleCommand::decode(command) {
            // Ids come out of one header.
            Ok(
                TupleCommand::Spaces { .. }
                | TupleCommand::On { operation: Operation::Create(_) | Operation::Delete, .. },
            ) => return Footprint::everything(),
            Ok(TupleCommand::On { space, .. }) => footprint.write(space.as_bytes()),
            // Refused, whatever the state is.
            Err(_) => {}
        }
        footprint
    }

    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        let text = |error: CommandError| error.to_string();
        let reply = match TupleCommand::decode(command).map_err(text)? {
            TupleCommand::Spaces { after, limit } => self.spaces.names(&after, limit),
            TupleCommand::On { space, operation } => {
                let caller = Caller { client: context.session.client, now: context.time };
                self.spaces.operate(caller, &space, &operation)?
            }
        };
        Ok(reply.to_bytes())
    }

    fn query_by(&self, client: PublicKey, command: &[u8]) -> Option<Result<Bytes, String>> {
        let reply = match TupleCommand::decode(command) {
            Ok(command) if !command.is_read() => return None,
            Ok(TupleCommand::Spaces { after, limit }) => Ok(self.spaces.names(&after, limit)),
            Ok(TupleCommand::On { space, operation }) => {
                self.spaces.query(client, &space, &operation)?
            }
            Err(error) => Err(error.to_string()),
        };
        Some(reply.map(|reply| reply.to_bytes()))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.spaces.map.snapshot()
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        let map = SegmentMap::restore(segments)?;
        if map.bytes() > self.spaces.limit_bytes {
            return Err(RestoreError::Contradiction("the spaces exceed state_limit_bytes"));
        }
        crate::restore::check(&map)?;
        self.spaces.map = map;
        Ok(())
    }
}
