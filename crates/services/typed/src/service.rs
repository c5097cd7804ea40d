//! A service in types: what a developer writes, and what makes a replicated service of it.

use crate::budget;
use crate::parts::{All, Measured, Parts};
use crate::wire::{self, Asked};
use bytes::Bytes;
use perdura_execution as execution;
use perdura_execution::{ExecutionContext, Meter, RestoreError, Snapshot, StateLimit};
use perdura_protocol::{PublicKey, ServiceName, limits};
use perdura_store::limits::{KEY_BYTES, VALUE_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
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
    /// Its name, which stands in a cluster's files: `a` to `z`, `0` to `9`, `.`, `-` and `_`, 48 at most. No replica with another one takes part.
    const NAME: &'static str;

    /// The newest version of its rules that this code can run under, from 1 on; it can run under all before too. Which is in force is ordered
    /// ([`Context::version`]), so that all replicas begin with the next one at the same command.
    const VERSION: u16 = 1;

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
    fn query(&self, query: Self::Query) -> Result<Self::Reply, Self::Error>;

    /// Names the parts of the state, all of them, in the same order each time: what is not named here is not undone, and lost when a replica takes
    /// the state of another.
    fn parts(&mut self, parts: &mut Parts);
}

/// The name of a service, which is held against what a name may be when the program is compiled.
#[must_use]
pub const fn name_of<S: Service>() -> ServiceName {
    const { ServiceName::literal(S::NAME) }
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

    /// The public key of the client whose command it is.
    #[must_use]
    pub fn client(&self) -> PublicKey {
        self.of.session.client
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
    // As of the last command.
    measured: Measured,
}

/// Why a command or a query is refused that did not come to the service's own verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(
        "the command or query is malformed: the client is made for another version of the service"
    )]
    Malformed,
    #[error(transparent)]
    Costs(#[from] execution::TooCostly),
    #[error(
        "an entry would be larger than {KEY_BYTES} bytes of its key, or {VALUE_BYTES} bytes of its value"
    )]
    TooLarge,
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
            Ok(reply) => Ok((wire::reply(&reply)?, Some(self.fitting()?))),
            Err(error) => Ok((wire::error(&error)?, None)),
        });
        match accepted {
            Ok((reply, Some(measured))) => {
                self.measured = measured;
                Ok(reply)
            }
            other => {
                self.all(|all| all.undo(&self.measured.values));
                other.map(|(error, _)| error)
            }
        }
    }

    /// How large the state is now, unless it is larger than it may be.
    fn fitting(&self) -> Result<Measured, Unfit> {
        let measured = self.all(|all| all.measure());
        let before = &self.measured;
        let grows = measured.bytes > before.bytes;
        let full = measured.bytes > self.limit.bytes || measured.segments >= self.limit.segments;
        match measured.too_large {
            true => Err(Unfit::TooLarge),
            false if grows && full => Err(Unfit::Full(before.bytes)),
            false => Ok(measured),
        }
    }

    fn answer(&self, query: S::Query, meter: &Meter) -> Result<Bytes, Unfit> {
        let service = self.service.borrow();
        match budget::within(meter, || service.query(query))? {
            Ok(reply) => wire::reply(&reply),
            Err(error) => wire::error(&error),
        }
    }
}

impl<S: Service> execution::Service for Typed<S> {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        let done = match wire::decode::<S>(command) {
            Some(Asked::Command(command)) => self.command(context, command),
            Some(Asked::Query(query)) => self.answer(query, &context.meter),
            None => Err(Unfit::Malformed),
        };
        done.map_err(|unfit| unfit.to_string())
    }

    fn query_by(
        &self,
        _: PublicKey,
        command: &[u8],
        meter: &Meter,
    ) -> Option<Result<Bytes, String>> {
        match wire::decode::<S>(command) {
            Some(Asked::Query(query)) => {
                Some(self.answer(query, meter).map_err(|unfit| unfit.to_string()))
            }
            Some(Asked::Command(_)) | None => None,
        }
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.all(|all| all.freeze()))
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        *self.service.get_mut() = S::default();
        self.all(|all| all.install(segments))?;
        self.measured = self.all(|all| all.measure());
        Ok(())
    }

    fn state_bytes(&self) -> u64 {
        self.measured.bytes
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

/// The largest reply that is sent.
pub(crate) const REPLY_BYTES: usize = limits::FRAME_BYTES / 2;
