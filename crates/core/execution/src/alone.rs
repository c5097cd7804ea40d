//! A service without a machine around it, for tests and tools.

use crate::cost::Meter;
use crate::restore::RestoreError;
use crate::service::{ExecutionContext, Failure, QueryContext, Service};
use crate::waiting::{Progress, Release, execute_or_wait};
use bytes::Bytes;
use perdura_protocol::PublicKey;

/// What is asked of a service that stands alone.
pub trait Alone: Service + Sized {
    /// Carries out a command that does not wait, as a client is told of it.
    ///
    /// # Errors
    /// In which words it is refused.
    ///
    /// # Panics
    /// When it is fatal.
    fn order(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        self.execute(context, command).map_err(words)
    }

    /// Carries out a command that may wait.
    ///
    /// # Errors
    /// In which words it is refused.
    ///
    /// # Panics
    /// When it is fatal.
    fn order_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, String> {
        execute_or_wait(self, context, command, released).map_err(words)
    }

    /// Answers a read of this client, whatever it costs.
    fn answer(&self, client: PublicKey, command: &[u8]) -> Option<Result<Bytes, String>> {
        self.query(&QueryContext { client, meter: &Meter::without_limit() }, command)
    }

    /// Installs all segments of a snapshot; each is let go as soon as the service has it.
    ///
    /// # Errors
    /// When no snapshot of this service gives them. The service is not used any more.
    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        let count = segments.len();
        for (index, segment) in segments.into_iter().enumerate() {
            self.install(index, segment)?;
        }
        self.installed()?;
        if self.snapshot().segments() != count {
            return Err(RestoreError::Contradiction("the service has not as many segments"));
        }
        Ok(())
    }
}

impl<S: Service> Alone for S {}

fn words(failure: Failure) -> String {
    match failure {
        Failure::Refused(words) => words,
        Failure::FatalHere(words) => panic!("the service cannot go on: {words}"),
    }
}
