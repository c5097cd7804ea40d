//! Services whose commands may wait for others: a reader until a tuple is there, a caller until a lock is free.
//!
//! # How a command waits
//!
//! A service may answer a command later (`Waiting::execute_or_wait` in `waiting.rs`), as `rd` and `in` of the tuple spaces do. Who waits is part of
//! the replicated state, so that it does not change with who is asked, and survives restarts:
//!
//! 1. `execute_frame` in `machine.rs` marks the number in its session, and says so (`Outcome::Waits`; under the first rules nothing). A retry does
//!    not run the command again, is told the same, and is not ordered again (`is_settled`). The client's frame is no longer under way then (`park`
//!    in `crates/core/client/src/core/session.rs`), and its number holds no place of the window: however many other commands go by, the mark stays,
//!    and so does what comes of it until the client says that it has it (`Command::Confirm`). Each session has 1,024 of both.
//! 2. A later command releases the reply (`release` in `machine/waits.rs`). It is recorded under its number, and leaves as all replies do, once the
//!    batch that released it is logged here (`deliver` in `crates/core/replica/src/node/executing.rs`). If it hands something over
//!    (`Release::offer`), that is an *offer*: the client core confirms it by itself, and gives it to its caller when that is ordered; the service
//!    hears of it by `Waiting::confirm`, and a lease starts. What is not confirmed within a second of the clock (1.5 where replicas may lie, since a
//!    leader can make agreed time jump by twice `max_skew_ms`: `Parameters::offer_ms`), is withdrawn, or was offered in a session that ended is the
//!    next one's (`Waiting::take_back`).
//! 3. Or the time comes for which it waits: `on_time` runs at the start of every batch. If nothing else is ordered then, the leader proposes a tick,
//!    a batch without frames; one that does not is suspected as if it kept back a request, `max_skew_ms` later at most
//!    (`crates/core/agreement/src/ticks.rs`).
//! 4. Or nobody waits for the reply any more: the client withdrew it (`Command::Withdraw`; under the first rules it acknowledged a higher number);
//!    nothing renewed its session for ten seconds (`pass` in `sessions.rs`); the session ended; its client was revoked. The service forgets the
//!    command (`forget`). No footprint tells of that.
//!
//! Deadlines, leases and offers go by a clock that is agreed time without the time in which the group stood still (`ExecutionContext::clock`,
//! `stand_still` in `sessions.rs`): what was due more than two seconds before a batch came moves by as much, since nobody could say a word.
//!
//! Tests: `crates/core/execution/tests/waiting.rs`, `crates/core/execution/tests/offers.rs`, `crates/services/tuples/tests/waiting.rs`,
//! `crates/core/agreement/tests/suspicion.rs`, and on real replicas `crates/core/replica/tests/waiting.rs`.

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
