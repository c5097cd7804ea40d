//! What the machine does about sessions, what waits in them, and what they are offered (docs/design.md, Sessions, waits and offers).
//!
//! Invariants:
//! - what the service holds as waiting, or offered, is of a live session, which knows of it, as soon as a frame is executed;
//! - each offer ends once: it is confirmed or taken back.

use super::effects::Effects;
use super::{Machine, Reply};
use crate::asked::{Asked, Call};
use crate::outcomes::{sent_back, service_outcome};
use crate::service::Service;
use crate::session::{Admission, Token};
use crate::sessions::Ended;
use crate::waiting::{Release, Waiting};
use bytes::Bytes;
use perdura_protocol::{
    Command, Decode, Frame, Outcome, PublicKey, RefusalReason, SessionId, Time, limits, seeded,
};
use std::collections::VecDeque;

impl<S: Service> Machine<S> {
    pub(super) fn open(
        &mut self,
        session: SessionId,
        token: Token,
        executed: &mut Effects<'_>,
    ) -> Outcome {
        if !self.registry.is_client(session.client) {
            return Outcome::Refused(RefusalReason::UnknownClient);
        }
        let (outcome, evicted) = self.sessions.open(self.slot, self.time, session, token);
        self.forget_all(evicted.as_slice(), executed);
        outcome
    }

    /// The client of a session is there.
    pub(super) fn renew(&mut self, frame: &Frame) -> Outcome {
        let (id, number) = (frame.session, frame.first_number);
        if number < limits::FIRST_RENEWAL {
            return Outcome::Refused(RefusalReason::Malformed);
        }
        let Some(clock) = self.sessions.clock(self.time) else { return Outcome::NoSession };
        let Some(session) = self.sessions.get_mut(id) else { return Outcome::NoSession };
        let before = session.held();
        let outcome = session.renew(clock, number);
        session.acknowledge(frame.acked_below);
        let now = session.held();
        self.sessions.settle(id, before, now);
        outcome
    }

    /// The client of a session goes.
    pub(super) fn close(&mut self, frame: &Frame, executed: &mut Effects<'_>) -> Outcome {
        let session = self.sessions.get(frame.session);
        match session.map(|session| session.admit(frame.first_number)) {
            // What its client acknowledges in the same frame need not be known yet.
            Some(
                Admission::Fresh
                | Admission::Answered(Outcome::Refused(RefusalReason::WindowExceeded)),
            ) => self.end_session(frame.session, executed),
            Some(Admission::Answered(outcome)) => return outcome,
            Some(Admission::Waits) => return Outcome::Waits,
            None => {}
        }
        Outcome::NoSession
    }

    fn end_session(&mut self, id: SessionId, executed: &mut Effects<'_>) {
        if let Some(ended) = self.sessions.end(id) {
            self.forget_all(&[(id, ended)], executed);
        }
    }

    /// The commands of sessions that ended wait no longer, and what they were offered is the next one's: of none of them. Whatever ends
    /// sessions comes here.
    pub(super) fn forget_all(&mut self, ended: &[Ended], executed: &mut Effects<'_>) {
        executed.ended.extend(ended.iter().map(|(id, _)| *id));
        for (id, session) in ended.iter().filter(|_| !seeded!(WaitOutlivesSession)) {
            for number in session.waiting() {
                forget((&mut self.service, &self.asked), *id, number);
            }
        }
        for (id, session) in ended.iter().filter(|_| !seeded!(OfferOutlivesSession)) {
            for number in session.offered() {
                self.take_back(*id, number, executed);
            }
        }
        for (id, _) in ended {
            let service = &mut self.service;
            self.asked.about_number(Call::SessionEnded, (*id, 0), || service.session_ended(*id));
        }
    }

    /// Offers of a session were not confirmed in time.
    pub(super) fn lapse(&mut self, id: SessionId, executed: &mut Effects<'_>) {
        let clock = self.clock();
        let Some(session) = self.sessions.get_mut(id) else { return };
        let before = session.held();
        let numbers = session.lapsed(clock);
        for number in &numbers {
            session.withdraw(self.slot, *number);
        }
        let now = session.held();
        self.sessions.settle(id, before, now);
        for number in numbers {
            let outcome = Outcome::Refused(RefusalReason::Withdrawn);
            executed.reply(Reply { session: id, number, outcome });
            self.take_back(id, number, executed);
        }
    }

    /// What this number was offered is the next one's.
    fn take_back(&mut self, id: SessionId, number: u64, executed: &mut Effects<'_>) {
        let (clock, mut released) = (self.clock(), Vec::new());
        take_back((&mut self.service, &self.asked), clock, (id, number), &mut released);
        self.release(released, executed);
    }

    /// The client of a session is gone: what waits there gets nothing.
    pub(super) fn withdraw_all(&mut self, id: SessionId, executed: &mut Effects<'_>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let before = session.held();
        let numbers: Vec<u64> = session.waiting().collect();
        for number in numbers {
            session.withdraw(self.slot, number);
            forget((&mut self.service, &self.asked), id, number);
            let outcome = Outcome::Refused(RefusalReason::Withdrawn);
            executed.reply(Reply { session: id, number, outcome });
        }
        let now = session.held();
        self.sessions.settle(id, before, now);
    }

    /// Records the replies to commands that had waited.
    pub(super) fn release(&mut self, released: Vec<Release>, executed: &mut Effects<'_>) {
        let (rules, clock) = (self.rules(), self.clock());
        let mut released = VecDeque::from(released);
        while let Some(Release { session: id, number, result, offer }) = released.pop_front() {
            let (outcome, offered) = waited(rules, service_outcome(rules, result), offer);
            let until = offered.then_some(Time(clock.0.saturating_add(self.offer_ms)));
            let mut recorded = false;
            if let Some(session) = self.sessions.get_mut(id) {
                let before = session.held();
                recorded = session.release(self.slot, number, outcome.clone(), until);
                let now = session.held();
                self.sessions.settle(id, before, now);
            }
            if recorded {
                executed.reply(Reply { session: id, number, outcome });
            }
            let of = (&mut self.service, &self.asked);
            let mut more = Vec::new();
            if offer && rules == 0 && recorded {
                confirm(of, clock, (id, number), &mut more);
            } else if offer && !(recorded && offered) {
                take_back(of, clock, (id, number), &mut more);
            }
            released.extend(more);
        }
    }

    /// Ends the sessions of a client that was revoked, or of a former administrator.
    pub(super) fn end_sessions(&mut self, client: PublicKey, executed: &mut Effects<'_>) {
        let ended = self.sessions.end_client(client);
        self.forget_all(&ended, executed);
    }
}

/// The command of a frame that has no other and is about its session.
pub(super) fn about_session(frame: &Frame) -> Option<Command> {
    let mut commands = frame.command_slices();
    let command = commands.next().filter(|command| matches!(command.len(), 1 | 17))?;
    let command = Command::from_bytes(Bytes::copy_from_slice(command)).ok()?;
    commands.next().is_none().then_some(command)
}

/// A command that withdraws or confirms another number than its own, where the rules know that.
pub(super) fn about_number(rules: u16, command: &[u8], own: u64) -> Option<Command> {
    let known = rules > 0 && matches!(command.first(), Some(5 | 7));
    let command = Command::from_bytes(Bytes::copy_from_slice(known.then_some(command)?)).ok()?;
    match command {
        Command::Withdraw { number } | Command::Confirm { number } if number != own => {
            Some(command)
        }
        _ => None,
    }
}

/// The reply to this command, if it was just released and is not recorded yet.
pub(super) fn take_released(released: &mut Vec<Release>, of: (SessionId, u64)) -> Option<Release> {
    let at = released.iter().position(|one| (one.session, one.number) == of)?;
    Some(released.remove(at))
}

pub(super) fn too_many_waits() -> Outcome {
    Outcome::Refused(RefusalReason::Service(format!(
        "{} commands of this session wait, or have results that its client did not acknowledge: the most allowed",
        limits::SESSION_WAITS
    )))
}

/// What a command that waited is told by an outcome, and whether that is an offer.
pub(super) fn waited(rules: u16, outcome: Outcome, offer: bool) -> (Outcome, bool) {
    if rules == 0 {
        return (outcome, false);
    }
    let (outcome, offer) = match outcome {
        Outcome::Service(_) => (outcome, offer),
        // Nobody could read what it is that is offered.
        _ if offer => (sent_back(outcome), false),
        _ => (outcome, false),
    };
    (Outcome::Waited { outcome: Box::new(outcome), offer }, offer)
}

/// The part of a service that has a command which waits, or is offered something.
fn waiting<S: Service>(service: &mut S) -> &mut dyn Waiting {
    service.waiting().expect("what waits does so in a part of the service")
}

/// Nobody waits for the reply to a command any more.
pub(super) fn forget<S: Service>(
    (service, asked): (&mut S, &Asked),
    session: SessionId,
    number: u64,
) {
    asked.about_number(Call::Forget, (session, number), || {
        waiting(service).forget(session, number);
    });
}

pub(super) fn confirm<S: Service>(
    of: (&mut S, &Asked),
    clock: Time,
    (id, number): (SessionId, u64),
    released: &mut Vec<Release>,
) {
    let (service, asked) = of;
    asked.about_number(Call::Confirm, (id, number), || {
        waiting(service).confirm(clock, id, number, released);
    });
}

pub(super) fn take_back<S: Service>(
    of: (&mut S, &Asked),
    clock: Time,
    (id, number): (SessionId, u64),
    released: &mut Vec<Release>,
) {
    let (service, asked) = of;
    asked.about_number(Call::TakeBack, (id, number), || {
        waiting(service).take_back(clock, id, number, released);
    });
}
