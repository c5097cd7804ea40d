//! Services whose commands may wait for others: a reader until a tuple is there, a caller until a lock is free.

use crate::service::{ExecutionContext, Failure, Service};
use bytes::Bytes;
use perdura_protocol::{SessionId, Time};

/// What became of a command that may wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// As [`Service::execute`] says.
    Done(Bytes),
    /// It waits, which may have changed the state: its reply will be a [`Release`].
    Waits,
}

/// The reply to a command that had waited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Whose command it is.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    /// Its reply, or in which words it is refused.
    pub result: Result<Bytes, String>,
    /// Whether it hands something over, which is the client's when that confirms it ([`Waiting::confirm`]), and else the next one's
    /// ([`Waiting::take_back`]).
    pub offer: bool,
}

/// The part of a [`Service`] that lets commands wait for others.
pub trait Waiting {
    /// As [`Service::execute`], which is not asked then; or the command waits. Replies to commands that had waited until now go to `released`, in
    /// the order in which they are to be sent; those to commands that do not wait, or no longer, are dropped.
    ///
    /// # Errors
    /// As [`Service::execute`].
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, Failure>;

    /// Nobody waits for the reply to a command any more: its client went on without it, or its
    /// session ended. The command must leave no trace. No footprint tells of it.
    fn forget(&mut self, session: SessionId, number: u64);

    /// The client has what the reply to this command, which had waited, offered it: it is the client's from now on, and a lease of it starts.
    /// Each offer ends once, by this or by [`Waiting::take_back`].
    fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    );

    /// The client of this command did not confirm what it was offered, in time ([`perdura_protocol::limits::OFFER_MS`]) or before its
    /// session ended, and is told so: it is the next one's, as if it had never been offered. No footprint tells of it.
    fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    );
}

/// Carries out a command of a service of either kind.
///
/// # Errors
/// As [`Service::execute`].
pub(crate) fn execute_or_wait<S: Service>(
    service: &mut S,
    context: &ExecutionContext,
    command: &[u8],
    released: &mut Vec<Release>,
) -> Result<Progress, Failure> {
    match service.waiting() {
        Some(waiting) => waiting.execute_or_wait(context, command, released),
        None => service.execute(context, command).map(Progress::Done),
    }
}
