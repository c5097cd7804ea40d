//! The execution of a frame, command by command: each number of its session is begun once, answered again, or put off, and what it waits for, or
//! offers, is confirmed, withdrawn or served.

use super::Reply;
use super::effects::Effects;
use super::waits::{
    about_number, confirm, forget, take_back, take_released, too_many_waits, waited,
};
use crate::administration::{Administration, Change, Registry};
use crate::asked::{Asked, Call, fatal_here};
use crate::cost::{Account, Meter, beyond};
use crate::outcomes::service_outcome;
use crate::rules_in_force::RulesInForce;
use crate::service::{ExecutionContext, Failure, Service, Standing};
use crate::session::{Admission, Session, Withdrawn, body_bytes};
use crate::waiting::{self, Progress, Release};
use bytes::Bytes;
use perdura_protocol::{
    ClusterId, Command, Decode, Digest, Outcome, PublicKey, RefusalReason, SessionId, Slot, Time,
    limits, seeded,
};
use std::collections::BTreeMap;

/// The part of a machine that a frame has to do with, while it is executed.
pub(super) struct FrameRun<'a, S> {
    pub id: SessionId,
    pub batch: Digest,
    pub cluster: ClusterId,
    pub slot: Slot,
    pub time: Time,
    /// The clock of sessions, where the rules know one.
    pub clock: Option<Time>,
    pub rules: u16,
    pub next_rules: &'a mut RulesInForce,
    pub registry: &'a mut Registry,
    pub service: &'a mut S,
    pub asked: &'a Asked,
    pub session: &'a mut Session,
    /// How other sessions stand that commands of these numbers ask about.
    pub others: BTreeMap<u64, Standing>,
    pub account: Account,
    /// Replies to commands that waited.
    pub released: Vec<Release>,
    /// Keys that were revoked.
    pub ended: Vec<PublicKey>,
}

impl<S: Service> FrameRun<'_, S> {
    fn reply(&self, number: u64, outcome: Outcome) -> Reply {
        Reply { session: self.id, number, outcome }
    }

    /// What the clock by which leases and deadlines go shows.
    fn told(&self) -> Time {
        self.clock.unwrap_or(self.time)
    }

    /// Executes the command with a number, or answers it.
    pub fn command(&mut self, command: &[u8], number: u64, executed: &mut Effects<'_>) {
        let outcome = match self.session.admit(number) {
            Admission::Answered(outcome) => {
                self.account.given_again(beyond(command, 0, body_bytes(&outcome)));
                outcome
            }
            Admission::Waits if self.rules > 0 => Outcome::Waits,
            Admission::Waits => return,
            Admission::Fresh => {
                if let Some(about) = about_number(self.rules, command, number) {
                    self.about(about, number, executed)
                } else if self.is_put_off(command, number) {
                    // Nothing is recorded: it may be begun when it is ordered again.
                    self.account.put_off();
                    Outcome::Refused(RefusalReason::PutOff)
                } else {
                    match self.begin(command, number, executed) {
                        Some(outcome) => outcome,
                        None => return,
                    }
                }
            }
        };
        executed.reply(self.reply(number, outcome));
    }

    /// Confirms or withdraws what another number waits for.
    fn about(&mut self, about: Command, number: u64, executed: &mut Effects<'_>) -> Outcome {
        let (outcome, settled) = match about {
            Command::Confirm { number: of } => (self.confirm(of), None),
            Command::Withdraw { number: of } => {
                let gone = self.withdraw(of, executed);
                let outcome = Outcome::Refused(RefusalReason::Withdrawn);
                (Outcome::Opened, gone.then(|| self.reply(of, outcome)))
            }
            _ => (Outcome::Refused(RefusalReason::Malformed), None),
        };
        settled.into_iter().for_each(|one| executed.reply(one));
        self.session.record(self.slot, self.clock, number, outcome.clone());
        outcome
    }

    fn confirm(&mut self, of: u64) -> Outcome {
        let confirmed = self.session.confirm(self.slot, of);
        if confirmed == Some(true) {
            let (told, of) = (self.told(), (self.id, of));
            confirm((&mut *self.service, self.asked), told, of, &mut self.released);
        }
        let taken = confirmed.is_some() || seeded!(LateConfirmed);
        if taken { Outcome::Opened } else { Outcome::Refused(RefusalReason::Withdrawn) }
    }

    /// Whether it was not settled before.
    fn withdraw(&mut self, of: u64, executed: &mut Effects<'_>) -> bool {
        // One that was served just now has got what it waited for, unless that is to be confirmed.
        let served = take_released(&mut self.released, (self.id, of));
        let offered = served.as_ref().is_some_and(|one| one.offer);
        if let Some(one) = served.filter(|one| !one.offer) {
            let outcome = service_outcome(self.rules, one.result);
            let (outcome, _) = waited(self.rules, outcome, false);
            if self.session.release(self.slot, of, outcome.clone(), None) {
                executed.reply(self.reply(of, outcome));
            }
        }
        let withdrawn = self.session.withdraw(self.slot, of);
        if offered || withdrawn == Withdrawn::Offered {
            let (told, of) = (self.told(), (self.id, of));
            take_back((&mut *self.service, self.asked), told, of, &mut self.released);
        } else if withdrawn == Withdrawn::Waited && !seeded!(WithdrawnStays) {
            forget((&mut *self.service, self.asked), self.id, of);
        }
        withdrawn != Withdrawn::Settled
    }

    /// Whether it is not begun in this slot, as its key has no share left, or its session no room.
    fn is_put_off(&self, command: &[u8], number: u64) -> bool {
        self.account.is_bounded()
            && !(self.account.may_begin(self.session.is_lowest(number))
                && self.session.has_room_for_replies(number))
            && may_be_put_off((&*self.service, self.asked), command, number)
    }

    /// Runs a command; none if it has its reply already, or has to wait for it.
    fn begin(
        &mut self,
        command: &[u8],
        number: u64,
        executed: &mut Effects<'_>,
    ) -> Option<Outcome> {
        let most = if self.account.is_bounded() { limits::COMMAND_COST } else { u64::MAX };
        let context = ExecutionContext {
            slot: self.slot,
            time: self.time,
            clock: self.told(),
            session: self.id,
            number,
            cluster: self.cluster,
            batch: self.batch,
            administrator: self.registry.administrator(),
            other: self.others.get(&number).copied(),
            meter: Meter::up_to(most),
        };
        let (registry, next_rules) = (&mut *self.registry, &mut *self.next_rules);
        let admin = Administration { rules: self.rules, registry, next_rules };
        let of = (&mut *self.service, self.asked);
        let ran = run(of, admin, &context, command, &mut self.released);
        let metered = context.meter.spent();
        let Some((outcome, change)) = ran else {
            self.account.begun(beyond(command, metered, 0));
            self.wait(number, executed);
            return None;
        };
        self.account.begun(beyond(command, metered, body_bytes(&outcome)));
        let outcome = executed.share(outcome);
        self.session.record(self.slot, self.clock, number, outcome.clone());
        match change {
            Change::None => {}
            Change::Ended(key) => self.ended.push(key),
            Change::Configured(configuration) => executed.new_configuration = Some(configuration),
        }
        Some(outcome)
    }

    /// The service lets the command wait, and its session too if it has room for that.
    fn wait(&mut self, number: u64, executed: &mut Effects<'_>) {
        if !self.session.is_full_of_waits() {
            self.session.wait(self.slot, self.clock, number);
            if self.rules > 0 {
                executed.reply(self.reply(number, Outcome::Waits));
            }
            return;
        }
        // It may have been served as soon as it waited.
        let outcome = match take_released(&mut self.released, (self.id, number)) {
            Some(Release { result, offer: false, .. }) => service_outcome(self.rules, result),
            Some(_) => {
                let (told, of) = (self.told(), (self.id, number));
                take_back((&mut *self.service, self.asked), told, of, &mut self.released);
                too_many_waits()
            }
            None => {
                forget((&mut *self.service, self.asked), self.id, number);
                too_many_waits()
            }
        };
        self.session.record(self.slot, self.clock, number, outcome.clone());
        executed.reply(self.reply(number, outcome));
    }
}

/// Whether a command may be refused for now: one of the service that does not say otherwise.
fn may_be_put_off<S: Service>((service, asked): (&S, &Asked), command: &[u8], number: u64) -> bool {
    let Some(content) = Command::service_content(command) else { return false };
    asked.ask(Call::MayBePutOff, number);
    let may = service.may_be_put_off(content);
    asked.answered();
    may
}

/// Runs one command, whatever its bytes are; `None` if it waits.
fn run<S: Service>(
    (service, asked): (&mut S, &Asked),
    mut admin: Administration,
    context: &ExecutionContext,
    command: &[u8],
    released: &mut Vec<Release>,
) -> Option<(Outcome, Change)> {
    let refused = |reason| (Outcome::Refused(reason), Change::None);
    let rules = admin.rules;
    if let Some(content) = Command::service_content(command) {
        asked.ask(Call::Execute, context.number);
        let progress = waiting::execute_or_wait(service, context, content, released);
        let result = match progress {
            Ok(Progress::Done(reply)) => Some(Ok(reply)),
            Ok(Progress::Waits) => None,
            Err(Failure::Refused(words)) => Some(Err(words)),
            Err(Failure::FatalHere(words)) if seeded!(FatalIsRefusal) => Some(Err(words)),
            Err(Failure::FatalHere(words)) => fatal_here(words),
        };
        asked.answered();
        return result.map(|result| (service_outcome(rules, result), Change::None));
    }
    Some(match Command::from_bytes(Bytes::copy_from_slice(command)) {
        Ok(Command::Admin(command)) if !admin.knows(&command, context.session.client) => {
            refused(RefusalReason::Malformed)
        }
        Ok(Command::Admin(command)) if admin.registry.is_administrator(context.session.client) => {
            let carried_out = admin.carry_out(context.slot, command);
            carried_out.unwrap_or_else(|text| refused(RefusalReason::Contradiction(text)))
        }
        Ok(Command::Admin(_)) => refused(RefusalReason::NotAdministrator),
        Ok(_) | Err(_) => refused(RefusalReason::Malformed),
    })
}
