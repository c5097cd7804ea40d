//! Which session is open: asked by callers whose commands name it.

use super::calls::Timer;
use super::{CallId, ClientCore, Output};
use crate::outcome::Refusal;
use perdura_protocol::RefusalReason;

impl ClientCore {
    /// Asks for the number of the open session; one is opened if there is none. The answer comes as an output, at the deadline if not
    /// before. A call that is made at once goes in that session, unless it ends before.
    pub fn session(&mut self, now_ms: u64, id: CallId, deadline_ms: u64) {
        if deadline_ms <= now_ms {
            let result = Err(Refusal::DeadlinePassed);
            self.outputs.push_back(Output::Session { id, result });
            return;
        }
        // Who prepares something elsewhere, too, must not be the one who finds out.
        if self.is_unreachable_unless_renewed(now_ms) {
            let result = Err(Refusal::Unreachable);
            self.outputs.push_back(Output::Session { id, result });
            return;
        }
        self.session_calls.insert(id, deadline_ms);
        self.timers.insert((deadline_ms, Timer::Deadline(id)));
    }

    /// Tells all who asked, if a session is open.
    pub(super) fn tell_session(&mut self) {
        let open = self.session.as_ref().filter(|session| session.takes_calls());
        if let Some(nonce) = open.map(|session| session.nonce) {
            self.answer_session_calls(&Ok(nonce));
        }
    }

    pub(super) fn refuse_sessions(&mut self, reason: &RefusalReason) {
        self.answer_session_calls(&Err(Refusal::Session(reason.clone())));
    }

    pub(super) fn end_session_calls(&mut self) {
        self.answer_session_calls(&Err(Refusal::Closed));
    }

    pub(super) fn answer_session_calls(&mut self, result: &Result<u64, Refusal>) {
        while let Some((id, deadline_ms)) = self.session_calls.pop_first() {
            self.timers.remove(&(deadline_ms, Timer::Deadline(id)));
            self.outputs.push_back(Output::Session { id, result: result.clone() });
        }
    }

    /// Whether somebody asked who is out of time now.
    pub(super) fn session_deadline_passed(&mut self, id: CallId) -> bool {
        let asked = self.session_calls.remove(&id).is_some();
        if asked {
            let result = Err(Refusal::DeadlinePassed);
            self.outputs.push_back(Output::Session { id, result });
        }
        asked
    }
}
