//! What commands and replies of the store say by themselves.

use crate::command::{Operation, Request};
use crate::partition::{
    PartitionReply, StatementClaim, StorePartition, asks_about, claims_of, is_of_partition,
};
use crate::service::VERSION;
use bytes::Bytes;
use perdura_execution::{Footprint, Interface};
use perdura_protocol::{SessionId, seeded};

/// Of a store, or of one partition of it.
pub(crate) struct StoreInterface {
    pub place: Option<StorePartition>,
}

impl Interface for StoreInterface {
    fn footprint(&self, command: &[u8]) -> Footprint {
        // Whatever version is in force.
        if self.place.is_some() && is_of_partition(command, VERSION) {
            return Footprint::everything();
        }
        let mut footprint = Footprint::new();
        match Request::decode(command) {
            Ok(Request::Get { key }) => footprint.read(key),
            Ok(Request::Put { key, .. } | Request::Delete { key }) => footprint.write(key),
            Ok(Request::Transaction(transaction)) => {
                let all = if seeded!(FirstOperationOnly) { 1 } else { usize::MAX };
                for operation in transaction.operations.iter().take(all) {
                    add(operation, &mut footprint);
                }
            }
            // Refused, whatever the state is.
            Err(_) => {}
        }
        footprint
    }

    fn claims(&self, command: &[u8]) -> Option<Vec<StatementClaim>> {
        match &self.place {
            Some(place) => claims_of(command, &place.map),
            None => Some(Vec::new()),
        }
    }

    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        self.place.as_ref()?;
        PartitionReply::leaf(reply)
    }

    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        asks_about(command, self.place.as_ref()?.partition)
    }
}

/// Adds what an operation reads and writes.
fn add(operation: &Operation, footprint: &mut Footprint) {
    match operation {
        Operation::Cmp { .. } if seeded!(ComparedNotRead) => {}
        Operation::Cmp { key, .. } | Operation::Read { key } => footprint.read(key),
        Operation::ReadRange { .. } if seeded!(RangeNotInFootprint) => {}
        Operation::ReadRange { start, end, .. } => footprint.read_range(start, end.as_deref()),
        Operation::Insert { key, .. }
        | Operation::Write { key, .. }
        | Operation::Delete { key } => footprint.write(key),
    }
}
