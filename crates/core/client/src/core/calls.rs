//! Calls from their beginning to their end.

use super::bounds::{COMMAND_BYTES, FAST_READS, WAITING_BYTES, WAITING_CALLS};
use super::{CallId, CallOptions, ClientCore, Mode, Output};
use crate::outcome::{CallResult, Indeterminacy, Refusal, Reply};
use bytes::Bytes;
use perdura_protocol::seeded;

/// What a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// The call ends.
    Deadline(CallId),
    /// The fast read with this number is ordered instead.
    FastRead(u64),
    /// Others are asked, too, for the fast read with this number.
    SpareRead(u64),
}

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Not sent yet.
    Waiting,
    /// Sent as this number of the current session.
    Sent(u64),
    /// Asked as this fast read.
    Reading(u64),
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) command: Bytes,
    pub(super) deadline_ms: u64,
    /// Matching replies that it needs.
    pub(super) quorum: usize,
    pub(super) stage: Stage,
    /// Whether it only reads, and can be sent under another number.
    pub(super) reads: bool,
    /// What it comes to if the replicas say that it is confirmed.
    pub(super) offered: Option<Reply>,
}

impl ClientCore {
    pub(super) fn enter_call(
        &mut self,
        now_ms: u64,
        id: CallId,
        command: Bytes,
        options: CallOptions,
    ) {
        assert!(!self.calls.contains_key(&id), "a call id is used once");
        let refusal = if command.len() > COMMAND_BYTES {
            Some(Refusal::TooLarge(command.len()))
        } else if options.deadline_ms <= now_ms {
            Some(Refusal::DeadlinePassed)
        } else if self.waiting_calls >= WAITING_CALLS
            || self.waiting_bytes + command.len() > WAITING_BYTES
        {
            Some(Refusal::QueueFull)
        } else if self.is_unreachable(now_ms) {
            Some(Refusal::Unreachable)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.report(id, CallResult::Refused(refusal));
            return;
        }
        let faults = self.config.faults;
        let wanted = options.reply_quorum.unwrap_or(0);
        let quorum = wanted.clamp(faults.reply_quorum(), faults.n());
        let deadline_ms = options.deadline_ms;
        let (stage, reads) = (Stage::Waiting, options.mode == Mode::Fast);
        let call = Call { command, deadline_ms, quorum, stage, reads, offered: None };
        self.calls.insert(id, call);
        self.timers.insert((deadline_ms, Timer::Deadline(id)));
        let fast = options.mode == Mode::Fast
            && self.reads.len() < FAST_READS
            && self.linked().len() >= faults.fast_read_quorum();
        if fast { self.start_read(now_ms, id) } else { self.wait(id) }
    }

    /// Puts a call in line for ordering.
    pub(super) fn wait(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.stage = Stage::Waiting;
        self.waiting_calls += 1;
        self.waiting_bytes += call.command.len();
        self.waiting.push_back(id);
    }

    /// Takes the first call in line, if it passes `fits` with its number of bytes.
    pub(super) fn take_waiting(&mut self, fits: impl Fn(usize) -> bool) -> Option<CallId> {
        while let Some(id) = self.waiting.front().copied() {
            let Some(call) = self.calls.get(&id) else {
                // It ended while it waited.
                self.waiting.pop_front();
                continue;
            };
            let bytes = call.command.len();
            if !fits(bytes) {
                return None;
            }
            self.waiting.pop_front();
            self.waiting_calls -= 1;
            self.waiting_bytes -= bytes;
            return Some(id);
        }
        None
    }

    /// Calls that ended while they waited leave the line when they are the larger part of it.
    fn compact_waiting(&mut self) {
        if self.waiting.len() > 2 * self.waiting_calls + 64 {
            let calls = &self.calls;
            self.waiting.retain(|id| calls.contains_key(id));
        }
    }

    /// The caller of a call is gone. What was not sent is not, what waits at the replicas is withdrawn there; the call ends as ever.
    pub fn abandon(&mut self, id: CallId) {
        match self.calls.get(&id).map(|call| call.stage) {
            Some(Stage::Sent(number)) => {
                if let Some(session) = &mut self.session {
                    session.abandon(number);
                }
            }
            Some(Stage::Waiting | Stage::Reading(_)) => {
                self.give_up(id, Refusal::Closed, Indeterminacy::Closed);
            }
            None => {}
        }
    }

    pub(super) fn deadline_passed(&mut self, id: CallId) {
        if !self.session_deadline_passed(id) {
            self.give_up(id, Refusal::DeadlinePassed, Indeterminacy::DeadlinePassed);
        }
    }

    /// Ends a call without an answer: refused if it was not sent for ordering.
    pub(super) fn give_up(&mut self, id: CallId, refusal: Refusal, indeterminacy: Indeterminacy) {
        let Some(call) = self.calls.get(&id) else { return };
        let result = match call.stage {
            // A fast read changes nothing wherever it arrives.
            Stage::Waiting | Stage::Reading(_) => CallResult::Refused(refusal),
            Stage::Sent(_) if seeded!(SentIsRefused) => CallResult::Refused(refusal),
            Stage::Sent(_) => CallResult::Indeterminate(indeterminacy),
        };
        self.end_call(id, result);
    }

    /// Ends a call wherever it is.
    pub(super) fn end_call(&mut self, id: CallId, result: CallResult) {
        let Some(call) = self.calls.remove(&id) else { return };
        self.timers.remove(&(call.deadline_ms, Timer::Deadline(id)));
        match call.stage {
            Stage::Waiting => {
                self.waiting_calls -= 1;
                self.waiting_bytes -= call.command.len();
                self.compact_waiting();
            }
            Stage::Sent(number) => self.leave_number(number),
            Stage::Reading(read) => self.end_read(read),
        }
        self.report(id, result);
    }

    fn report(&mut self, id: CallId, result: CallResult) {
        let counter = match &result {
            CallResult::Completed(_) => &mut self.stats.completed,
            CallResult::Refused(_) => &mut self.stats.refused,
            CallResult::Indeterminate(_) => &mut self.stats.indeterminate,
        };
        *counter += 1;
        self.outputs.push_back(Output::Done { id, result });
    }
}
