//! The service as it runs inside a replica, with a witness beside it that writes down everything
//! that is executed. The checkers of exactly-once execution, agreement and linearizability read
//! what it wrote; of the tuple spaces also when time went on, who waited no longer, and why.

use crate::options::ServiceKind;
use bytes::Bytes;
use perdura_execution::{
    AnyService, Entry, ExecutionContext, FailingMemory, Failure, Interface, Progress, QueryContext,
    Readable, Release, RestoreError, Service, Snapshot, StateLimit, Waiting,
};
use perdura_protocol::{Decode, Digest, Encode, SessionId, Slot, Time};
use perdura_store::Store;
use perdura_store::partition::StorePartition;
use perdura_tuples::TupleSpaces;
use std::any::Any;
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
    /// Agreed time.
    pub time: Time,
    /// By how much agreed time was ahead of the clock of leases and deadlines, milliseconds.
    pub ahead_ms: u64,
    /// How large the state is then, of a store, bytes.
    pub state_bytes: u64,
    /// What it cost beyond its own bytes.
    pub work: u64,
    /// The same, if it could have been put off for that.
    pub cost: Option<u64>,
    /// The reply, or the refusal; nothing if the command waits.
    pub reply: Option<Result<Bytes, String>>,
}

/// What a service was told or did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A batch begins, at this time of the clock, under this version of the service. Not written down of the store, to which it is nothing.
    Began(Time, u16),
    /// A command was executed.
    Executed(Execution),
    /// A command that had waited got its reply.
    Released(Release),
    /// A command waits no longer, and nobody is told.
    Forgotten {
        /// Whose command.
        session: SessionId,
        /// Its number in the session.
        number: u64,
    },
    /// A command that had waited has what it was offered.
    Confirmed {
        /// Whose command.
        session: SessionId,
        /// Its number in the session.
        number: u64,
    },
    /// What a command that had waited was offered is the next one's.
    TakenBack {
        /// Whose command.
        session: SessionId,
        /// Its number in the session.
        number: u64,
    },
}

/// A step of one of the services that a process had: another one takes its place when a state comes
/// from elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Which service.
    pub service: u64,
    /// In which of the batches that it was given, from 1.
    pub batch: u64,
    /// Under which version of the service.
    pub version: u16,
    /// What happened.
    pub step: Step,
}

#[derive(Debug, Default)]
struct Written {
    services: u64,
    notes: Vec<Note>,
    // So many commands more, and the next one is fatal to the process.
    fatal_after: Option<u64>,
}

/// What the services of one process did and nobody has looked at yet.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Written>>);

impl Notes {
    fn with<T>(&self, body: impl FnOnce(&mut Written) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what was written since it was last asked.
    #[must_use]
    pub fn take(&self) -> Vec<Note> {
        self.with(|written| std::mem::take(&mut written.notes))
    }

    /// So many commands more, and the next one is fatal to the process; none if that is over.
    pub fn fatal_after(&self, commands: Option<u64>) {
        self.with(|written| written.fatal_after = commands);
    }

    /// A command comes; whether it is fatal.
    fn is_fatal(&self) -> bool {
        self.with(|written| match &mut written.fatal_after {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        })
    }

    /// The number of another service.
    fn number(&self) -> u64 {
        self.with(|written| {
            written.services += 1;
            written.services
        })
    }
}

/// What stands behind the witness.
enum Inner {
    Store(Box<Store>),
    Spaces(Box<TupleSpaces>),
    Guest(AnyService),
}

impl Inner {
    fn service(&self) -> &dyn Service {
        match self {
            Inner::Store(store) => &**store,
            Inner::Spaces(spaces) => &**spaces,
            Inner::Guest(service) => &**service,
        }
    }

    fn service_mut(&mut self) -> &mut dyn Service {
        match self {
            Inner::Store(store) => &mut **store,
            Inner::Spaces(spaces) => &mut **spaces,
            Inner::Guest(service) => &mut **service,
        }
    }

    fn waiting(&mut self) -> &mut dyn Waiting {
        self.service_mut().waiting().expect("what waits does so in a service that lets it")
    }
}

/// The newest version of the service. From version 2 on it counts what it executes, in a segment of its own behind all others: so
/// that whoever executes under another version has another state.
pub const NEWEST: u16 = 3;

/// One command in four is taken for one of 4 to 12 MiB.
fn weight(command: &[u8]) -> usize {
    let Digest([drawn, times, ..]) = Digest::of(command);
    if drawn.is_multiple_of(4) { (1 + usize::from(times % 3)) * 4 * 1024 * 1024 } else { 0 }
}

/// What a service has from version 2 on.
struct Counted {
    inner: Arc<dyn Snapshot>,
    count: u64,
}

impl Snapshot for Counted {
    fn segments(&self) -> usize {
        self.inner.segments() + 1
    }

    fn segment(&self, index: usize) -> Bytes {
        if index == self.inner.segments() {
            self.count.to_bytes()
        } else {
            self.inner.segment(index)
        }
    }

    fn entry(&self, index: usize) -> Entry {
        if index == self.inner.segments() {
            Entry::of(&self.count.to_bytes())
        } else {
            self.inner.entry(index)
        }
    }
}

/// The service with its witness.
pub struct Witnessed {
    inner: Inner,
    kind: ServiceKind,
    // Whether some commands are taken for costly ones.
    weighs: bool,
    notes: Notes,
    number: u64,
    batches: u64,
    version: u16,
    // From version 2 on.
    count: u64,
    // Of a state that is installed: the newest segment, which is its own if it is the last, and how many came before.
    last: Option<Bytes>,
    installed: usize,
}

impl std::fmt::Debug for Witnessed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} after {} batches", self.kind, self.number, self.batches)
    }
}

impl Witnessed {
    /// The service of a simulated replica.
    ///
    /// # Panics
    /// When it is another one: all are made by this crate.
    #[must_use]
    pub fn of(service: &AnyService) -> &Witnessed {
        let service: &dyn Any = &**service;
        service.downcast_ref().expect("simulated replicas have a witness")
    }

    /// A service of somebody else's.
    #[must_use]
    pub fn guest(service: AnyService, notes: Notes) -> Witnessed {
        Witnessed::over(ServiceKind::Guest, Inner::Guest(service), notes)
    }

    /// An empty store, or tuple spaces, that write into `notes`.
    ///
    /// # Panics
    /// When it is none of these.
    #[must_use]
    pub fn new(kind: ServiceKind, state_limit_bytes: u64, notes: Notes) -> Witnessed {
        let inner = match kind {
            ServiceKind::KeyValue | ServiceKind::Partitions => {
                Inner::Store(Box::new(Store::new(state_limit_bytes)))
            }
            ServiceKind::TupleSpaces => {
                Inner::Spaces(Box::new(TupleSpaces::new(state_limit_bytes)))
            }
            ServiceKind::Guest => unreachable!("a guest comes with its service"),
        };
        Witnessed::over(kind, inner, notes)
    }

    /// An empty partition of a store.
    #[must_use]
    pub fn partition(place: StorePartition, state_limit_bytes: u64, notes: Notes) -> Witnessed {
        let store = Store::partitioned(state_limit_bytes, place);
        Witnessed::over(ServiceKind::Partitions, Inner::Store(Box::new(store)), notes)
    }

    fn over(kind: ServiceKind, inner: Inner, notes: Notes) -> Witnessed {
        let number = notes.number();
        Witnessed {
            inner,
            kind,
            weighs: false,
            number,
            notes,
            batches: 0,
            version: 1,
            count: 0,
            last: None,
            installed: 0,
        }
    }

    /// The same, where some commands are taken for costly ones if `weighs`.
    #[must_use]
    pub fn weighing(self, weighs: bool) -> Witnessed {
        Witnessed { weighs, ..self }
    }

    /// The service behind the witness.
    #[must_use]
    pub fn service(&self) -> &dyn Service {
        self.inner.service()
    }

    /// Which of the process's services it is, and how many batches it was given.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.number, self.batches)
    }

    /// The commands that wait in the service, with the agreed times at which they wait no longer.
    #[must_use]
    pub fn waiters(&self) -> Vec<(SessionId, u64, Time)> {
        match &self.inner {
            Inner::Store(_) | Inner::Guest(_) => Vec::new(),
            Inner::Spaces(spaces) => spaces.waiters(),
        }
    }

    fn write(&self, step: Step) {
        let (service, batch, version) = (self.number, self.batches, self.version);
        let note = Note { service, batch, version, step };
        self.notes.with(|written| written.notes.push(note));
    }

    fn write_released(&self, released: &[Release]) {
        released.iter().for_each(|release| self.write(Step::Released(release.clone())));
    }
}

impl FailingMemory for Witnessed {
    fn flip_bit(&mut self, at: u64) -> bool {
        match &mut self.inner {
            Inner::Store(store) => store.flip_bit(at),
            Inner::Spaces(spaces) => spaces.flip_bit(at),
            // Nobody knows where its bits are.
            Inner::Guest(_) => false,
        }
    }
}

impl Service for Witnessed {
    /// Nobody calls it: a machine lets commands wait.
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        match self.execute_or_wait(context, command, &mut Vec::new())? {
            Progress::Done(reply) => Ok(reply),
            Progress::Waits => Err("it waits".into()),
        }
    }

    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        self.inner.service().query(context, command)
    }

    fn readable(&self) -> Option<Arc<dyn Readable>> {
        self.inner.service().readable()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        let inner = self.inner.service().snapshot();
        let count = self.count;
        if self.version > 1 { Arc::new(Counted { inner, count }) } else { inner }
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.installed = index;
        match self.last.replace(segment) {
            Some(before) => self.inner.service_mut().install(index - 1, before),
            None => Ok(()),
        }
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        let last = self.last.take().ok_or(RestoreError::Contradiction("there is no segment"))?;
        let index = std::mem::take(&mut self.installed);
        if self.version > 1 {
            let malformed = |reason| RestoreError::Malformed { index, reason };
            self.count = u64::from_bytes(last).map_err(malformed)?;
        } else {
            self.inner.service_mut().install(index, last)?;
        }
        self.inner.service_mut().installed()
    }

    fn interface(&self) -> Arc<dyn Interface> {
        self.inner.service().interface()
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn prefetch(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        self.inner.service().prefetch(commands);
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        self.inner.service().may_be_put_off(command)
    }

    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        self.batches += 1;
        let before = released.len();
        self.inner.service_mut().on_time(clock, released);
        if self.kind == ServiceKind::TupleSpaces {
            self.write(Step::Began(clock, self.version));
        }
        self.write_released(&released[before..]);
    }

    fn due(&self) -> Option<Time> {
        self.inner.service().due()
    }

    fn session_ended(&mut self, session: SessionId) {
        self.inner.service_mut().session_ended(session);
    }

    fn state_bytes(&self) -> u64 {
        self.inner.service().state_bytes()
    }

    fn newest_version(&self) -> u16 {
        NEWEST
    }

    fn set_version(&mut self, version: u16) {
        self.version = version;
        let newest = self.inner.service().newest_version();
        self.inner.service_mut().set_version(version.min(newest));
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.inner.service_mut().set_state_limit(limit);
    }
}

/// Nothing waits where the service behind it lets nothing wait.
impl Waiting for Witnessed {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
        self.count += u64::from(self.version > 1);
        let before = released.len();
        // What small commands cost is far below what a slot may: some are taken for large ones.
        if self.weighs {
            let _ = context.meter.charge(weight(command));
        }
        let (fatal, puttable) =
            (self.notes.is_fatal(), self.inner.service().may_be_put_off(command));
        // Some say so before they have done anything, and some when all is done.
        let at_once = command.len().is_multiple_of(2);
        let cannot = || Failure::FatalHere("a fault that is put in".to_owned());
        if fatal && at_once {
            return Err(cannot());
        }
        let inner = self.inner.service_mut();
        let progress = match inner.waiting() {
            Some(waiting) => waiting.execute_or_wait(context, command, released),
            None => inner.execute(context, command).map(Progress::Done),
        };
        if fatal {
            return Err(cannot());
        }
        let reply = match &progress {
            Ok(Progress::Done(reply)) => Some(Ok(reply.clone())),
            Ok(Progress::Waits) => None,
            Err(Failure::Refused(words)) => Some(Err(words.clone())),
            Err(Failure::FatalHere(words)) => panic!("nothing is fatal to it: {words}"),
        };
        let state_bytes = match &self.inner {
            Inner::Store(_) | Inner::Guest(_) => self.inner.service().state_bytes(),
            Inner::Spaces(_) => 0,
        };
        let answer = match &reply {
            Some(Ok(reply)) => reply.len(),
            Some(Err(text)) => text.len(),
            None => 0,
        };
        // As it came, with a byte that says whose it is.
        let own = command.len() as u64 + 1;
        let work = (context.meter.spent() + answer as u64).saturating_sub(own);
        self.write(Step::Executed(Execution {
            slot: context.slot,
            batch: context.batch,
            session: context.session,
            number: context.number,
            command: Bytes::copy_from_slice(command),
            time: context.time,
            ahead_ms: context.time.0.saturating_sub(context.clock.0),
            state_bytes,
            work,
            cost: (context.meter.is_bounded() && puttable).then_some(work),
            reply,
        }));
        self.write_released(&released[before..]);
        progress
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        self.inner.waiting().forget(session, number);
        self.write(Step::Forgotten { session, number });
    }

    fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        let before = released.len();
        self.inner.waiting().confirm(clock, session, number, released);
        self.write(Step::Confirmed { session, number });
        self.write_released(&released[before..]);
    }

    fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        let before = released.len();
        self.inner.waiting().take_back(clock, session, number, released);
        self.write(Step::TakenBack { session, number });
        self.write_released(&released[before..]);
    }
}
