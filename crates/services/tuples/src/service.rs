//! The tuple spaces as a [`Service`].

use crate::command::{CommandError, TupleCommand};
use crate::operate::{Caller, Now, Spaces};
use crate::operation::{Operation, VERSION, frees, tag_beyond_version_1};
use crate::space;
use crate::waiting;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, FailingMemory, Footprint, Meter, Progress, Release, RestoreError, Service,
    Snapshot, StateLimit,
};
use perdura_protocol::{DecodeError, Encode, PublicKey, SessionId, Time};
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
        let limit = StateLimit::of_bytes(state_limit_bytes);
        TupleSpaces { spaces: Spaces { map: SegmentMap::new(), limit, version: 1 } }
    }

    /// A command that the version in force knows.
    fn decode(&self, command: &[u8]) -> Result<TupleCommand, CommandError> {
        let decoded = TupleCommand::decode(command);
        let newer = match &decoded {
            Ok(TupleCommand::On { operation, .. }) => operation.version() > self.spaces.version,
            Ok(TupleCommand::Spaces { .. }) => false,
            Err(_) => self.spaces.version == 1,
        };
        match newer.then(|| tag_beyond_version_1(command)).flatten() {
            Some(tag) => Err(DecodeError::UnknownTag(tag).into()),
            None => decoded,
        }
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

    /// Commands that wait for tuples, with the agreed times at which they wait no longer: those that
    /// an inserted tuple may serve. They are decoded one by one.
    #[must_use]
    pub fn waiters(&self) -> Vec<(SessionId, u64, Time)> {
        let ids = space::ids(&self.spaces.map);
        let heads = ids.flat_map(|id| waiting::of_space(&self.spaces.map, id));
        heads.map(|head| (head.session, head.number, Time(head.deadline))).collect()
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.spaces.map.segments()
    }
}

impl FailingMemory for TupleSpaces {
    fn flip_bit(&mut self, at: u64) -> bool {
        self.spaces.map.flip_bit(at)
    }
}

impl Service for TupleSpaces {
    /// Commands of different spaces do not conflict, nor do reads of one. What has expired is removed
    /// between batches.
    fn footprint(&self, command: &[u8]) -> Footprint {
        let mut footprint = Footprint::new();
        match TupleCommand::decode(command) {
            // Ids come out of one header.
            Ok(
                TupleCommand::Spaces { .. }
                | TupleCommand::On { operation: Operation::Create(_) | Operation::Delete, .. },
            ) => return Footprint::everything(),
            Ok(TupleCommand::On { space, operation }) if operation.is_read() => {
                footprint.read(space.as_bytes());
            }
            Ok(TupleCommand::On { space, .. }) => footprint.write(space.as_bytes()),
            // Refused, whatever the state is.
            Err(_) => {}
        }
        footprint
    }

    /// For a caller that neither waits nor lets others wait: what would wait finds nothing.
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        match self.execute_or_wait(context, command, &mut Vec::new()) {
            Progress::Done(result) => result,
            Progress::Waits => {
                let head = waiting::forget(&mut self.spaces.map, context.session, context.number);
                Ok(head.expect("it waits").nothing())
            }
        }
    }

    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Progress {
        let reply = match self.decode(command) {
            Err(error) => Err(error.to_string()),
            Ok(TupleCommand::Spaces { after, limit }) => Ok(Some(self.spaces.names(&after, limit))),
            Ok(TupleCommand::On { space, operation }) => {
                let ExecutionContext { session, number, time, clock, .. } = *context;
                let now = Now { clock, ahead: Some(time.0.saturating_sub(clock.0)) };
                let caller = Caller { session, number, now, meter: &context.meter };
                self.spaces.operate(caller, &space, &operation, released)
            }
        };
        match reply.transpose() {
            Some(reply) => Progress::Done(reply.map(|reply| reply.to_bytes())),
            None => Progress::Waits,
        }
    }

    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        self.spaces.on_time(clock, released);
    }

    /// The first deadline, and from version 2 on the first end of a lease: somebody may wait for what it was on. Under version 1 an
    /// ended lease is seen by nobody, and its removal waits for the next batch.
    fn due(&self) -> Option<Time> {
        self.spaces.due()
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        waiting::forget(&mut self.spaces.map, session, number);
    }

    fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        self.spaces.confirm(clock, session, number, released);
    }

    fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        self.spaces.take_back(clock, session, number, released);
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        !frees(command)
    }

    fn query_by(
        &self,
        client: PublicKey,
        command: &[u8],
        meter: &Meter,
    ) -> Option<Result<Bytes, String>> {
        let reply = match self.decode(command) {
            Ok(command) if !command.is_read() => return None,
            Ok(TupleCommand::Spaces { after, limit }) => Ok(self.spaces.names(&after, limit)),
            Ok(TupleCommand::On { space, operation }) => {
                self.spaces.query((client, meter), &space, &operation)?
            }
            Err(error) => Err(error.to_string()),
        };
        Some(reply.map(|reply| reply.to_bytes()))
    }

    fn state_bytes(&self) -> u64 {
        self.spaces.map.bytes()
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.spaces.limit = limit;
    }

    fn newest_version(&self) -> u16 {
        VERSION
    }

    fn set_version(&mut self, version: u16) {
        self.spaces.version = version;
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.spaces.map.snapshot()
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        let map = SegmentMap::restore(segments)?;
        if map.bytes() > self.spaces.limit.bytes {
            return Err(RestoreError::Contradiction("the spaces exceed their limit"));
        }
        crate::restore::check(&map)?;
        self.spaces.map = map;
        Ok(())
    }
}
