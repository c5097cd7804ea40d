//! The life of a session: it is renewed while a call is under way, left before it would end, and closed at the end.
//!
//! The replicas end a session that orders nothing for a minute of agreed time. Nobody notices that: a call after a long pause opens
//! another one. Under the first version of the rules there are no renewals; replicas say so, and are asked again in case that the rules were raised.

use super::ClientCore;
use super::bounds::{IDLE_MS, RENEW_MS};
use super::session::Session;
use crate::votes::Votes;
use perdura_protocol::{Command, Encode, Message, Outcome, ReplicaId, Time, limits};

/// What renews a session.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    // Those that were sent.
    sent: u64,
    // When the last one was sent, and the answers to it, until there are enough.
    asked: Option<(u64, Votes)>,
    // Replicas knew none when they were asked last.
    unknown: bool,
    // When something was sent last that renews the session, too.
    fresh_ms: u64,
    // When something was sent of which it is known that it did.
    answered_ms: u64,
}

impl Renewals {
    pub(super) fn new(now_ms: u64) -> Renewals {
        Renewals { fresh_ms: now_ms, answered_ms: now_ms, ..Renewals::default() }
    }

    /// Whether the replicas know them, and what came with them, as far as they have said.
    pub(super) fn are_known(&self) -> bool {
        !self.unknown
    }

    /// A frame with new commands goes out.
    pub(super) fn sent_fresh(&mut self, now_ms: u64) {
        self.fresh_ms = now_ms;
    }

    /// A command that was sent at that time was carried out.
    pub(super) fn was_carried_out(&mut self, sent_ms: u64) {
        self.answered_ms = self.answered_ms.max(sent_ms);
        self.fresh_ms = self.fresh_ms.max(sent_ms);
    }

    /// What was sent was put off, and renewed nothing.
    pub(super) fn was_put_off(&mut self) {
        self.fresh_ms = self.fresh_ms.min(self.answered_ms);
    }

    fn due(&self) -> Option<u64> {
        self.asked.is_none().then(|| self.fresh_ms.saturating_add(RENEW_MS))
    }
}

impl Session {
    /// When it has to be renewed.
    pub(super) fn renewal_due(&self) -> Option<u64> {
        let under_way = self.opening.is_none() && self.in_flight();
        self.renewals.due().filter(|_| under_way)
    }

    /// Nobody waits any more: what was sent to renew it is not sent again.
    pub(super) fn stop_renewing(&mut self) {
        if self.renewals.asked.take().is_some() {
            self.frames.retain(|one| one.frame.first_number < limits::FIRST_RENEWAL);
        }
    }

    /// Whether it was left alone for so long that it may end before a new command arrives.
    fn is_idle(&self, now_ms: u64) -> bool {
        let since = now_ms.saturating_sub(self.renewals.fresh_ms);
        !self.renewals.unknown && self.opening.is_none() && !self.in_flight() && since >= IDLE_MS
    }
}

impl ClientCore {
    /// Says that this client is there, while somebody waits for an outcome.
    pub(super) fn renew_session(&mut self, now_ms: u64) {
        let Some(session) = &mut self.session else { return };
        if session.renewal_due().is_some_and(|due| due <= now_ms) {
            self.renew_session_now(now_ms);
        }
    }

    /// Says it now, unless it is being said.
    pub(super) fn renew_session_now(&mut self, now_ms: u64) {
        let Some(session) = &mut self.session else { return };
        if session.opening.is_some() || session.renewals.asked.is_some() {
            return;
        }
        let number = limits::FIRST_RENEWAL + session.renewals.sent;
        session.renewals.sent += 1;
        session.renewals.asked = Some((now_ms, Votes::default()));
        session.renewals.fresh_ms = now_ms;
        let (nonce, acked) = (session.nonce, session.acked_below());
        let frame = self.build(nonce, acked, number, &[Command::Renew.to_bytes()]);
        self.send_new(now_ms, frame, 1);
    }

    /// A replica answered a renewal.
    pub(super) fn renewal_answered(
        &mut self,
        now_ms: u64,
        from: ReplicaId,
        number: u64,
        outcome: &Outcome,
    ) {
        let witnesses = self.config.faults.witnesses();
        let Some(session) = &mut self.session else { return };
        let count = number.saturating_sub(limits::FIRST_RENEWAL).saturating_add(1);
        if count != session.renewals.sent {
            return;
        }
        let Some((asked_ms, votes)) = &mut session.renewals.asked else { return };
        let asked_ms = *asked_ms;
        let added = votes.add(from, outcome);
        self.stats.disagreements += u64::from(added.disagrees);
        if added.support < witnesses {
            return;
        }
        session.renewals.asked = None;
        session.renewals.was_carried_out(asked_ms);
        session.renewals.unknown = matches!(outcome, Outcome::Refused(_));
        if let Some(flight) = session.settle(number) {
            self.note_round_trip(now_ms, &flight);
        }
        if *outcome == Outcome::NoSession {
            self.session_ended();
        }
    }

    /// Has calls go in another session than this one from now on, where it is the one that is open. It is closed when those that are under way
    /// in it have ended, which later calls wait for. For a session in which the service carries out nothing more of some kind.
    pub fn leave_session(&mut self, nonce: u64) {
        if let Some(session) = self.session.as_mut().filter(|session| session.nonce == nonce) {
            session.left_behind = session.opening.is_none();
        }
    }

    /// Closes a session that may be at its end, or that was left, for another one.
    pub(super) fn change_session(&mut self, now_ms: u64) {
        let is_over = |session: &Session| {
            session.is_idle(now_ms) || (session.left_behind && !session.in_flight())
        };
        if self.wants_session() && self.session.as_ref().is_some_and(is_over) {
            self.close_session();
        }
    }

    /// Lets the replicas know that nothing more comes in the session: what is lost of that, time makes up for.
    pub(super) fn close_session(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.opening.is_some() {
            return;
        }
        let number = session.next_number();
        let frame = self.build(session.nonce, number, number, &[Command::Close.to_bytes()]);
        let leader = self.views.leader();
        let linked = self.linked();
        let targets = if linked.contains(&leader) { vec![leader] } else { linked };
        for replica in targets {
            self.send(replica, Message::Frame(frame.clone()));
        }
    }

    /// The replicas' clock shows `time`, and that is too far from where this client's sessions are numbered: from now on they are by
    /// that one. What a millisecond holds of different numbers stays as it was drawn, but for one more each time: agreed time may stand, and a number
    /// that opened a session before is never another one's.
    pub(super) fn renumber(&mut self, now_ms: u64, time: Time, from: u64) {
        let per_ms = limits::NONCES_PER_MS;
        let drawn = self.last_nonce.0.wrapping_add(1) % per_ms;
        let by_time = time.0.saturating_mul(per_ms).saturating_add(drawn);
        self.last_nonce = (by_time.max(from.saturating_add(drawn)), now_ms);
        self.nonce_used = false;
    }
}
