//! Whether the group is there. Fewer than n - u linked members order nothing if the others are down, so what was not sent is refused soon, for certain, and
//! nothing more is sent but one call that finds out: the others may only be out of this client's reach. As long as answers come all goes
//! on as ever.
//!
//! Only of a client that is told to ([`super::ClientConfig::unreachable_ms`]): by itself it waits to the deadline.

use super::calls::Stage;
use super::session::Session;
use super::{CallId, ClientCore};
use crate::outcome::{Indeterminacy, Refusal};

/// A call goes out so often though the group seems to be down, and as long after an answer it seems to be there, milliseconds; ...
const PROBE_MS: u64 = 1_000;

/// ... but while others are under way, which find out too, and may be for long, only so often.
const PROBE_BESIDE_MS: u64 = 10_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Reach {
    /// Whether n - u members are linked.
    is_linked: bool,
    /// Since when they are not, or when the last answer came, if that was later.
    since_ms: u64,
    /// When the last answer came since then.
    answered_ms: Option<u64>,
    /// Whether one call may go out, and when the last one did.
    may_probe: bool,
    probed_ms: Option<u64>,
    /// When those who wait were refused last.
    refused_ms: u64,
}

impl Reach {
    pub(super) fn new(now_ms: u64) -> Reach {
        let (is_linked, answered_ms) = (false, None);
        let (may_probe, probed_ms, refused_ms) = (false, None, 0);
        Reach { is_linked, since_ms: now_ms, answered_ms, may_probe, probed_ms, refused_ms }
    }

    /// Whether it is not known to be there.
    fn is_doubtful(&self, now_ms: u64) -> bool {
        !self.is_linked && now_ms >= self.doubtful_from()
    }

    /// From when on it is doubtful, unless something comes.
    fn doubtful_from(&self) -> u64 {
        self.answered_ms.map_or(self.since_ms, |at_ms| at_ms + PROBE_MS)
    }
}

impl ClientCore {
    /// When the next call may go out.
    fn next_probe(&self) -> u64 {
        let is_asking = self.session.as_ref().is_some_and(Session::in_flight);
        let pause_ms = if is_asking { PROBE_BESIDE_MS } else { PROBE_MS };
        let from_ms = self.reach.since_ms;
        match self.reach.probed_ms {
            Some(at_ms) => at_ms + pause_ms,
            None if is_asking => from_ms + pause_ms,
            None => 0,
        }
    }

    /// One call more may go out if it is time for that.
    fn renew_probe(&mut self, now_ms: u64) {
        if !self.reach.may_probe && now_ms >= self.next_probe() {
            self.reach.may_probe = true;
            self.reach.probed_ms = Some(now_ms);
        }
    }

    /// It goes out, if one may.
    fn take_probe(&mut self, now_ms: u64) -> bool {
        let may_probe = std::mem::take(&mut self.reach.may_probe);
        if may_probe {
            self.reach.probed_ms = Some(now_ms);
        }
        may_probe
    }

    /// Links have changed.
    pub(super) fn note_links(&mut self, now_ms: u64) {
        let is_linked = self.linked().len() >= self.config.faults.responsive();
        if self.reach.is_linked && !is_linked {
            self.reach = Reach::new(now_ms);
        }
        self.reach.is_linked = is_linked;
    }

    /// A member answered something.
    pub(super) fn note_answer(&mut self, now_ms: u64) {
        (self.reach.since_ms, self.reach.answered_ms) = (now_ms, Some(now_ms));
    }

    /// How many calls may go out now.
    pub(super) fn calls_to_send(&mut self, now_ms: u64) -> usize {
        if self.config.unreachable_ms.is_none() || !self.reach.is_doubtful(now_ms) {
            return usize::MAX;
        }
        if self.waiting_calls > 0 {
            self.renew_probe(now_ms);
        }
        usize::from(self.reach.may_probe)
    }

    /// Calls went out.
    pub(super) fn note_sent(&mut self, now_ms: u64) {
        self.take_probe(now_ms);
    }

    /// Whether a call that begins now is refused at once.
    pub(super) fn is_unreachable(&mut self, now_ms: u64) -> bool {
        if self.unreachable_at().is_none_or(|at_ms| now_ms < at_ms) {
            return false;
        }
        self.renew_probe(now_ms);
        !self.reach.may_probe
    }

    /// The same of who asks for the session. That is renewed, or opened, to find out.
    pub(super) fn is_unreachable_unless_renewed(&mut self, now_ms: u64) -> bool {
        if self.unreachable_at().is_none_or(|at_ms| now_ms < at_ms) {
            return false;
        }
        self.renew_probe(now_ms);
        let may_probe = self.take_probe(now_ms);
        if may_probe && self.session.is_some() {
            self.renew_session_now(now_ms);
        }
        !may_probe || self.session.is_some()
    }

    /// From when on nobody waits for it any more.
    fn unreachable_at(&self) -> Option<u64> {
        let after_ms = self.config.unreachable_ms.filter(|_| !self.reach.is_linked)?;
        Some(self.reach.since_ms.saturating_add(after_ms))
    }

    /// When those who wait now are refused. Who is to find out has as long as until the next one.
    fn refusal_due(&self) -> Option<u64> {
        let waits = self.waiting_calls > 0 || !self.session_calls.is_empty();
        let at_ms = self.unreachable_at().filter(|_| waits)?;
        Some(at_ms.max(self.reach.refused_ms + PROBE_MS))
    }

    pub(super) fn next_reach(&self) -> Option<u64> {
        let refusal_ms = self.refusal_due()?;
        let probe_ms = self.next_probe().max(self.reach.doubtful_from());
        let probe = (!self.reach.may_probe && self.any_link()).then_some(probe_ms);
        Some(probe.map_or(refusal_ms, |probe_ms| probe_ms.min(refusal_ms)))
    }

    /// No replica lets this client in: nothing that waits will be sent, and whoever waits for it is told at once.
    pub fn on_refused_by_all(&mut self) {
        if self.any_link() {
            return;
        }
        self.end_waiting(Refusal::KeptOut);
    }

    fn end_waiting(&mut self, refusal: Refusal) {
        let waits = self.calls.iter().filter(|(_, call)| call.stage == Stage::Waiting);
        let ids: Vec<CallId> = waits.map(|(id, _)| *id).collect();
        for id in ids {
            self.give_up(id, refusal.clone(), Indeterminacy::DeadlinePassed);
        }
        self.answer_session_calls(&Err(refusal));
    }

    pub(super) fn tick_reach(&mut self, now_ms: u64) {
        if self.refusal_due().is_some() {
            self.renew_probe(now_ms);
        }
        if self.refusal_due().is_none_or(|due| now_ms < due) {
            return;
        }
        self.reach.refused_ms = now_ms;
        self.end_waiting(Refusal::Unreachable);
    }
}
