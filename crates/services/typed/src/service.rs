//! A service in types: what a developer writes, and what makes a replicated service of it.

use crate::bounded::{EMPTY_ELEMENTS, LEVELS};
use crate::budget;
use crate::client_key::ClientKey;
use crate::faithful::Unfaithful;
use crate::journal::Misfit;
use crate::parts::{All, Measured, PART_BYTES, Parts, Shared};
use crate::wire::{self, Asked};
use bytes::Bytes;
use perdura_execution as execution;
use perdura_execution::{
    ExecutionContext, Failure, Meter, Readable, RestoreError, Snapshot, StateLimit,
};
use perdura_protocol::{PublicKey, ServiceName, limits};
use perdura_store::limits::{KEY_BYTES, VALUE_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Most bytes of an error that a service refuses a command with, encoded.
pub const ERROR_BYTES: usize = 4096;

/// A service that is replicated: every replica carries out the same commands, in the same order, on its own copy of the state.
///
/// So what a command does has to follow from the state, the command and the [`Context`] alone: no clock of the machine, no source of chance but
/// the context's, no order of a `HashMap`. `perdura_test::check` looks for what does not. The state begins as [`Default`] gives it, and is what
/// [`Service::parts`] names: its maps ([`crate::Sharded`]), and what else there is.
///
/// A command that is refused with an error has changed nothing: what it wrote is undone. A panic is for states that must not be, and never for
/// what a client sent: it ends the replica, and all others that run the same command.
pub trait Service: Default + Send + 'static {
    /// Its name, which stands in a cluster's files: `a` to `z`, `0` to `9`, `.`, `-` and `_`, 48 at most, and not that of a service that comes with
    /// Perdura (`kv`, `tuples`). No replica with another one takes part.
    const NAME: &'static str;

    /// The newest version of its rules that this code can run under, from 1 on; it can run under all before too. Which is in force is ordered
    /// ([`Context::version`]), so that all replicas begin with the next one at the same command.
    const VERSION: u16 = 1;

    /// Whether a command may take a millisecond or more. Replicas execute in a thread beside agreement then (`execution` in `replica.toml` says
    /// otherwise), so that what takes long delays the commands behind it and nothing else.
    const TAKES_LONG: bool = false;

    /// What may change the state.
    type Command: Serialize + DeserializeOwned;
    /// What only reads it.
    type Query: Serialize + DeserializeOwned;
    /// What both answer.
    type Reply: Serialize + DeserializeOwned;
    /// Why one is refused; at most [`ERROR_BYTES`].
    type Error: Serialize + DeserializeOwned + fmt::Debug;

    /// Carries out a command.
    ///
    /// # Errors
    /// Why it is refused, for its client. It has changed nothing then, whatever it wrote before.
    fn execute(
        &mut self,
        context: &Context,
        command: Self::Command,
    ) -> Result<Self::Reply, Self::Error>;

    /// Answers a query, by the state as it is.
    ///
    /// # Errors
    /// Why there is no answer, for its client.
    fn query(&self, context: &QueryContext, query: Self::Query)
    -> Result<Self::Reply, Self::Error>;

    /// From which version on there is such a command. One that came with a later version than the one in force is refused, on replicas that know
    /// it as on those that do not: so while a cluster is updated all answer alike.
    fn since(command: &Self::Command) -> u16 {
        let _ = command;
        1
    }

    /// The same of a query.
    fn query_since(query: &Self::Query) -> u16 {
        let _ = query;
        1
    }

    /// Names the parts of the state, all of them, in the same order each time: what is not named here is not undone, and lost when a replica takes
    /// the state of another. How many there are is fixed for each version: a command after which there are more or fewer cannot be undone, and ends
    /// in a panic. For what comes and goes there are entries of a map.
    fn parts(&mut self, parts: &mut Parts);
}

/// The name of a service, which is held against what a name may be when the program is compiled, as its version is.
#[must_use]
pub const fn name_of<S: Service>() -> ServiceName {
    const {
        assert!(S::VERSION > 0, "versions are counted from 1");
        assert!(
            !matches!(S::NAME.as_bytes(), b"kv" | b"tuples"),
            "a service that comes with Perdura has this name"
        );
        ServiceName::literal(S::NAME)
    }
}

/// What a query may know besides itself and the state.
#[derive(Clone, Copy, Debug)]
pub struct QueryContext {
    client: ClientKey,
    version: u16,
}

impl QueryContext {
    /// Whose query it is.
    #[must_use]
    pub fn client(&self) -> ClientKey {
        self.client
    }

    /// As [`Context::version`].
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }
}

/// What a command may know besides itself and the state: the same on all replicas.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    of: &'a ExecutionContext,
    version: u16,
}

impl Context<'_> {
    /// The time that the replicas agreed on, milliseconds since the Unix epoch: never goes back, and is the same for all commands that were
    /// decided together.
    #[must_use]
    pub fn time_ms(&self) -> u64 {
        self.of.time.0
    }

    /// The same without the time in which the group stood still, so that what ends after a time does not end before its holder could say a
    /// word.
    #[must_use]
    pub fn clock_ms(&self) -> u64 {
        self.of.clock.0
    }

    /// Whose command it is.
    #[must_use]
    pub fn client(&self) -> ClientKey {
        ClientKey(self.of.session.client.0)
    }

    /// 32 bytes that are as good as drawn, other ones for each command. Whoever leads the replicas can choose among some, and everyone can
    /// compute them: never use them for secrets.
    #[must_use]
    pub fn random(&self) -> [u8; 32] {
        self.of.seed().0
    }

    /// The version of the service's rules that is in force, 1 to [`Service::VERSION`].
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The command does something else that takes as long as reading so many bytes of the state: what maps do is charged by itself. One that
    /// costs more than [`limits::COMMAND_COST`] in all is refused.
    pub fn charge(&self, bytes: usize) {
        budget::charge(bytes);
    }
}

/// A [`Service`] as replicas run it.
pub struct Typed<S> {
    // Whoever takes a snapshot goes through its parts, which takes the right to change them.
    service: RefCell<S>,
    version: u16,
    limit: StateLimit,
    // As of the last command, and room for what is measured after the next one.
    measured: Measured,
    next: Measured,
    // The segments of a state that is installed: the first one says which belong to which part, and decoding them goes by parts.
    partial: Vec<Bytes>,
}

/// Why a command or a query is refused that did not come to the service's own verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(
        "the service has no such command or query, under the version that is in force: the client is made for another one"
    )]
    Malformed,
    #[error("the service panicked at this query")]
    Panicked,
    #[error(transparent)]
    Costs(#[from] execution::TooCostly),
    #[error(
        "an entry would have a key of none or more than {KEY_BYTES} bytes, or a value of more than {VALUE_BYTES}; or a part of the state that is no \
         map more than {PART_BYTES}"
    )]
    TooLarge,
    #[error(
        "a value in the state would not be read again: it is nested deeper than {LEVELS} levels, or its lists have more than {EMPTY_ELEMENTS} elements \
         that take no bytes, or it has a type or an attribute that `postcard` does not read back"
    )]
    Unreadable,
    #[error(
        "{0} has something that cannot be encoded, as a time before 1970 or a list that does not say its length: the service has to refuse that, or \
         have another type for it"
    )]
    Unencodable(&'static str),
    #[error("the state is full ({0} bytes): it takes no command that makes it larger")]
    Full(u64),
    #[error("the reply has {0} bytes, more than a client is sent")]
    Reply(usize),
    #[error("the service refused it with an error of {0} bytes, more than {ERROR_BYTES}")]
    Error(usize),
}

impl<S: Service> Typed<S> {
    /// One in its first state, which may become so large; replicas are told another limit when it is raised.
    #[must_use]
    pub fn new(state_limit_bytes: u64) -> Typed<S> {
        let mut typed = Typed {
            service: RefCell::new(S::default()),
            version: 1,
            limit: StateLimit::of_bytes(state_limit_bytes),
            measured: Measured::default(),
            next: Measured::default(),
            partial: Vec::new(),
        };
        typed.measured = typed.all(|all| all.measure());
        typed
    }

    fn all<T>(&self, work: impl FnOnce(&mut All<'_>) -> T) -> T {
        let mut service = self.service.borrow_mut();
        let mut name = |parts: &mut Parts| service.parts(parts);
        work(&mut All { version: self.version, name: &mut name })
    }

    fn command(&mut self, context: &ExecutionContext, command: S::Command) -> Result<Bytes, Unfit> {
        self.all(|all| all.begin());
        let known = Context { of: context, version: self.version };
        let service = self.service.get_mut();
        let done = budget::within(&context.meter, || service.execute(&known, command));
        let accepted = done.map_err(Unfit::from).and_then(|done| match done {
            Ok(reply) => {
                let reply = wire::reply(&reply)?;
                self.measure_next()?;
                Ok((reply, true))
            }
            Err(error) => Ok((wire::error(&error)?, false)),
        });
        let accepted = accepted.and_then(|accepted| {
            // That they are encoded with each command takes time too.
            context.meter.charge(self.measured.value_bytes())?;
            Ok(accepted)
        });
        match accepted {
            Ok((reply, true)) => {
                self.all(|all| all.settle());
                std::mem::swap(&mut self.measured, &mut self.next);
                Ok(reply)
            }
            other => {
                self.all(|all| all.undo(&self.measured));
                other.map(|(error, _)| error)
            }
        }
    }

    /// How large the state is after the command, unless it is larger than it may be.
    ///
    /// # Panics
    /// When the service has other parts than before the command.
    fn measure_next(&mut self) -> Result<(), Unfit> {
        let mut measured = take(&mut self.next);
        let segments = self.all(|all| all.measure_after(&self.measured, &mut measured));
        self.next = measured;
        let (before, measured) = (&self.measured, &self.next);
        let grows = measured.bytes > before.bytes;
        let full = measured.bytes > self.limit.bytes || segments >= self.limit.segments;
        match measured.misfit {
            Some(Misfit::TooLarge) => Err(Unfit::TooLarge),
            Some(Misfit::Unreadable) => Err(Unfit::Unreadable),
            Some(Misfit::Unencodable) => Err(Unfit::Unencodable("a value in the state")),
            None if grows && full => Err(Unfit::Full(before.bytes)),
            None => Ok(()),
        }
    }

    fn answer(&self, client: PublicKey, query: S::Query, meter: &Meter) -> Result<Bytes, Unfit> {
        let service = self.service.borrow();
        let context = QueryContext { client: ClientKey(client.0), version: self.version };
        match budget::within(meter, || service.query(&context, query))? {
            Ok(reply) => wire::reply(&reply),
            Err(error) => wire::error(&error),
        }
    }
}

/// For tests.
#[doc(hidden)]
impl<S: Service> Typed<S> {
    /// All that the state holds, whatever segments it stands in.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.all(|all| all.content())
    }

    /// Whether all that it holds comes back from its bytes as it is.
    ///
    /// # Errors
    /// What does not.
    pub fn verify(&self) -> Result<(), Unfaithful> {
        self.all(|all| all.verify())
    }

    /// What these bytes ask for, a command or a query, whatever version it came with.
    #[must_use]
    pub fn asked(bytes: &[u8]) -> Option<Result<S::Command, S::Query>> {
        match wire::decode::<S>(bytes, u16::MAX, &Meter::without_limit()).ok()? {
            Asked::Command(command) => Some(Ok(command)),
            Asked::Query(query) => Some(Err(query)),
        }
    }

    /// What these bytes answer.
    #[must_use]
    pub fn answered(bytes: &[u8]) -> Option<Result<S::Reply, S::Error>> {
        wire::answer::<S>(bytes)
    }

    /// Looks at the state.
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.service.borrow())
    }

    /// Whether this is what a client is told of a command or query that is none, or of what is larger than it may be or cannot be encoded.
    #[must_use]
    pub fn is_fault(said: &str) -> bool {
        let faults = [Unfit::Malformed, Unfit::Panicked, Unfit::TooLarge, Unfit::Unreadable]
            .map(|one| one.to_string());
        let unencodable = Unfit::Unencodable("").to_string();
        faults.iter().any(|fault| fault == said)
            || said.ends_with(&unencodable)
            || ["the reply has ", "the service refused it with an error of "]
                .iter()
                .any(|begins| said.starts_with(begins))
    }
}

impl<S: Service> execution::Service for Typed<S> {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        let done = match wire::decode::<S>(command, self.version, &context.meter) {
            Ok(Asked::Command(command)) => self.command(context, command),
            // A read that panics ends nothing, in order as without.
            Ok(Asked::Query(query)) => catch_unwind(AssertUnwindSafe(|| {
                self.answer(context.session.client, query, &context.meter)
            }))
            .unwrap_or(Err(Unfit::Panicked)),
            Err(unfit) => Err(unfit),
        };
        done.map_err(|unfit| Failure::Refused(unfit.to_string()))
    }

    fn query(
        &self,
        context: &execution::QueryContext<'_>,
        command: &[u8],
    ) -> Option<Result<Bytes, String>> {
        if !wire::is_query(command) {
            return None;
        }
        let answer = match wire::decode::<S>(command, self.version, context.meter) {
            Ok(Asked::Query(query)) => self.answer(context.client, query, context.meter),
            Err(unfit @ Unfit::Costs(_)) => Err(unfit),
            Ok(Asked::Command(_)) | Err(_) => return None,
        };
        Some(answer.map_err(|unfit| unfit.to_string()))
    }

    fn readable(&self) -> Option<Arc<dyn Readable>> {
        let (shared, version) = (self.all(|all| all.share()), self.version);
        Some(Arc::new(Beside::<S> { shared, version, of: PhantomData }))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.all(|all| all.freeze()))
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.partial.push(segment);
        Ok(())
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        let segments = std::mem::take(&mut self.partial);
        self.all(|all| all.install(segments))?;
        self.measured = self.all(|all| all.measure());
        Ok(())
    }

    fn state_bytes(&self) -> u64 {
        self.measured.bytes
    }

    fn takes_long(&self) -> bool {
        S::TAKES_LONG
    }

    fn newest_version(&self) -> u16 {
        S::VERSION
    }

    fn set_version(&mut self, version: u16) {
        self.version = version;
        // It may have parts that it had not before.
        self.measured = self.all(|all| all.measure());
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.limit = limit;
    }
}

/// A state of a service, for reads beside its commands. Each makes a service of its own of it, so that none needs to be one for several threads.
struct Beside<S> {
    shared: Shared,
    version: u16,
    of: PhantomData<fn() -> S>,
}

impl<S: Service> Readable for Beside<S> {
    fn query(
        &self,
        context: &execution::QueryContext<'_>,
        command: &[u8],
    ) -> Option<Result<Bytes, String>> {
        let state = Typed {
            service: RefCell::new(S::default()),
            version: self.version,
            limit: StateLimit::of_bytes(0),
            measured: Measured::default(),
            next: Measured::default(),
            partial: Vec::new(),
        };
        state.all(|all| all.adopt(&self.shared));
        execution::Service::query(&state, context, command)
    }
}

/// The largest reply that is sent.
pub(crate) const REPLY_BYTES: usize = limits::FRAME_BYTES / 2;
