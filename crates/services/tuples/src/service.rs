//! The tuple spaces as a [`Service`].

use crate::command::{CommandError, TupleCommand};
use crate::operate::{Caller, Now, Spaces};
use crate::operation::{Operation, VERSION, frees, tag_beyond_version_1};
use crate::space;
use crate::waiting;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, FailingMemory, Failure, Footprint, Interface, Progress, QueryContext,
    Release, RestoreError, Service, Snapshot, StateLimit, Waiting,
};
use perdura_protocol::{DecodeError, Encode, SessionId, Time};
use perdura_store::{PartialMap, SegmentMap};
use std::sync::Arc;

/// The tuple spaces of one replica.
#[derive(Debug)]
pub struct TupleSpaces {
    spaces: Spaces,
    // What is installed of a state.
    partial: Option<PartialMap>,
}

impl TupleSpaces {
    /// No spaces. What is kept (spaces, tuples, the entries of the index and of leases) counts its
    /// keys and values and [`perdura_store::limits::ENTRY_OVERHEAD_BYTES`] for each entry; what would
    /// make the sum grow beyond `state_limit_bytes` is refused, the same way on every replica.
    /// Taking and deleting never is.
    #[must_use]
    pub fn new(state_limit_bytes: u64) -> TupleSpaces {
        let limit = StateLimit::of_bytes(state_limit_bytes);
        let spaces = Spaces { map: SegmentMap::new(), limit, version: 1 };
        TupleSpaces { spaces, partial: None }
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
    /// For a caller that neither waits nor lets others wait: what would wait finds nothing.
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        match self.execute_or_wait(context, command, &mut Vec::new())? {
            Progress::Done(reply) => Ok(reply),
            Progress::Waits => {
                let head = waiting::forget(&mut self.spaces.map, context.session, context.number);
                Ok(head.expect("it waits").nothing())
            }
        }
    }

    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        let reply = match self.decode(command) {
            Ok(command) if !command.is_read() => return None,
            Ok(TupleCommand::Spaces { after, limit }) => Ok(self.spaces.names(&after, limit)),
            Ok(TupleCommand::On { space, operation }) => {
                self.spaces.query((context.client, context.meter), &space, &operation)?
            }
            Err(error) => Err(error.to_string()),
        };
        Some(reply.map(|reply| reply.to_bytes()))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.spaces.map.snapshot()
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.partial.get_or_insert_default().install(index, segment)
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        let map = self.partial.take().unwrap_or_default().whole()?;
        if map.bytes() > self.spaces.limit.bytes {
            return Err(RestoreError::Contradiction("the spaces exceed their limit"));
        }
        crate::restore::check(&map)?;
        self.spaces.map = map;
        Ok(())
    }

    fn interface(&self) -> Arc<dyn Interface> {
        Arc::new(SpacesInterface)
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        !frees(command)
    }

    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        self.spaces.on_time(clock, released);
    }

    /// The first deadline, and from version 2 on the first end of a lease: somebody may wait for what it was on. Under version 1 an
    /// ended lease is seen by nobody, and its removal waits for the next batch.
    fn due(&self) -> Option<Time> {
        self.spaces.due()
    }

    fn state_bytes(&self) -> u64 {
        self.spaces.map.bytes()
    }

    fn newest_version(&self) -> u16 {
        VERSION
    }

    fn set_version(&mut self, version: u16) {
        self.spaces.version = version;
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.spaces.limit = limit;
    }
}

impl Waiting for TupleSpaces {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
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
        Ok(reply?.map_or(Progress::Waits, |reply| Progress::Done(reply.to_bytes())))
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
}

/// What their commands say by themselves.
struct SpacesInterface;

impl Interface for SpacesInterface {
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
}
