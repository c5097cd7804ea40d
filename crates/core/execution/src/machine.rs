//! The replicated state machine of one replica: a service with sessions, clients, configurations
//! and agreed time around it.
//!
//! Invariants:
//! - slots are executed one after the other, none twice, none left out;
//! - the state is a function of the executed batches; everything that influences later execution
//!   is in the snapshot (DESIGN.md section 7), except for the cluster's fixed parameters;
//! - no command executes twice, whatever is proposed (argument in `session.rs`).

use crate::administration::{Administration, Change, Registry};
use crate::asked::{Asked, Call, fatal_here};
use crate::beside::answer;
use crate::cost::{Meter, Spending, beyond};
use crate::genesis::{Genesis, GenesisError};
use crate::interface::Inspector;
use crate::measure::Measure;
use crate::outcomes::service_outcome;
use crate::service::{ExecutionContext, Failure, QueryContext, Service};
use crate::session::{Admission, Session, Token, Withdrawn, body_bytes};
use crate::sessions::Sessions;
use crate::snapshot::StateSnapshot;
use crate::terms::Terms;
use crate::waiting::{self, Progress, Release};
use bytes::Bytes;
use effects::Effects;
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::versions::VersionError;
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Decode, Digest, Frame, Outcome, PublicKey,
    RefusalReason, SessionId, Slot, Time, Versions, limits, seeded, versions,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use waits::{
    about_number, about_session, confirm, forget, take_back, take_released, too_many_waits, waited,
};

mod effects;
mod outside;
mod retries;
mod waits;

pub use retries::Retry;

/// The state machine. Not `Clone`: a [`StateSnapshot`] is its cheap copy.
#[derive(Debug)]
pub struct Machine<S> {
    pub(crate) cluster: ClusterId,
    pub(crate) offer_ms: u64,
    pub(crate) slot: Slot,
    pub(crate) time: Time,
    pub(crate) history: Digest,
    // Boundaries passed; counted where checkpoints go round among the replicas.
    pub(crate) turn: Option<u64>,
    pub(crate) terms: Terms,
    pub(crate) registry: Registry,
    pub(crate) sessions: Sessions,
    pub(crate) service: S,
    // Not part of the state.
    pub(crate) inspector: Inspector,
    pub(crate) asked: Asked,
    // Those of the next slot, while one is executed; else those in force.
    pub(crate) next_terms: Terms,
}

/// The outcome of one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Whose command it was.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What executing a slot gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Executed {
    /// A reply for each command of the batch, in order, retries included ([`Outcome::Waits`] for those that wait; under the first rules
    /// they have none); and one for each command that had waited until this batch. Empty after [`Machine::execute_to`].
    pub replies: Vec<Reply>,
    /// Sessions that ended with it.
    pub ended: Vec<SessionId>,
    /// The configuration that the batch ordered.
    pub new_configuration: Option<Configuration>,
    /// What its commands cost by client key, in bytes read and answered beyond their own, or what takes as long ([`crate::Meter`]). Also where the
    /// rules know no budget.
    pub costs: BTreeMap<PublicKey, u64>,
    /// Commands that were put off ([`RefusalReason::PutOff`]).
    pub put_off: BTreeMap<PublicKey, u64>,
    /// The batch raised the versions beyond what this program knows: it cannot go on, and the machine is good for nothing
    /// any more. Another program goes on from the same log.
    pub outdated: Option<VersionError>,
}

impl<S: Service> Machine<S> {
    /// The state before slot 1. `service` is in its initial state, equal on all replicas.
    ///
    /// # Errors
    /// When `genesis` contradicts itself or the parameters.
    pub fn new(
        parameters: &Parameters,
        genesis: Genesis,
        mut service: S,
    ) -> Result<Machine<S>, GenesisError> {
        let terms = Terms::first(parameters);
        terms.versions.check(newest_versions(&service))?;
        let registry = Registry::new(parameters, genesis)?;
        terms.tell(&mut service, Slot(0));
        let asked = Asked::default();
        Ok(Machine {
            cluster: parameters.cluster,
            offer_ms: parameters.offer_ms(),
            slot: Slot(0),
            time: Time(0),
            history: Digest::ZERO,
            turn: (parameters.schedule == Schedule::Sequential).then_some(0),
            terms,
            next_terms: terms,
            registry,
            sessions: Sessions::new(terms.versions.rules > 0),
            inspector: Inspector::of(&service, Slot(0), &asked),
            service,
            asked,
        })
    }

    /// The same, which tells there what its service is being asked.
    #[must_use]
    pub fn telling(self, asked: Asked) -> Machine<S> {
        let inspector = Inspector { asked: asked.clone(), ..self.inspector };
        Machine { asked, inspector, ..self }
    }

    /// What the service is being asked.
    #[must_use]
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// What commands and replies of the service say by themselves, in any state: for who has no machine at hand, too.
    #[must_use]
    pub fn inspector(&self) -> &Inspector {
        &self.inspector
    }

    /// Executes the batch that was decided for the next slot. Its frames are authentic: their
    /// signatures were verified before the batch was voted for (rule A5).
    ///
    /// # Panics
    /// When `slot` does not follow the last one; and when the service does, with a
    /// [`ServicePanic`](crate::ServicePanic) as payload. The machine is good for nothing then.
    pub fn execute(&mut self, slot: Slot, batch: &Batch) -> Executed {
        let mut replies = Vec::new();
        let executed = self.execute_to(slot, batch, &mut |reply| replies.push(reply));
        Executed { replies, ..executed }
    }

    /// The same, giving each reply as it is made: a batch can have a hundred times as many bytes of replies as a replica has memory.
    ///
    /// # Panics
    /// As [`Machine::execute`].
    pub fn execute_to(
        &mut self,
        slot: Slot,
        batch: &Batch,
        give: &mut dyn FnMut(Reply),
    ) -> Executed {
        assert_eq!(slot, self.slot.next(), "slots are executed one after the other");
        let asked = self.asked.clone();
        asked.execute(slot, batch, || self.execute_batch(slot, batch, give))
    }

    fn execute_batch(
        &mut self,
        slot: Slot,
        batch: &Batch,
        give: &mut dyn FnMut(Reply),
    ) -> Executed {
        self.slot = slot;
        let due = self.due();
        let earlier = if seeded!(TimeGoesBack) { Time(0) } else { self.time };
        self.time = earlier.max(batch.time());
        self.history = self.history.chain(slot, batch.digest());
        let mut executed = Effects::new(give, Spending::of(batch, self.rules() > 1));
        let mut released = Vec::new();
        self.sessions.stand_still(earlier, self.time, due);
        let told = if seeded!(ServiceTimeOfBatch) { batch.time() } else { self.clock() };
        self.asked.ask(Call::OnTime, 0);
        self.service.on_time(told, &mut released);
        self.asked.answered();
        self.release(released, &mut executed);
        let passed = self.sessions.pass(self.time);
        self.forget_all(&passed.ended, &mut executed);
        for id in passed.unattended {
            self.withdraw_all(id, &mut executed);
        }
        for id in passed.lapsed {
            self.lapse(id, &mut executed);
        }
        let encoded = batch.frames().iter().flat_map(Frame::command_slices);
        self.asked.reading(Call::Prefetch, None, || {
            self.service.prefetch(&mut encoded.filter_map(Command::service_content));
        });
        for (index, frame) in batch.frames().iter().enumerate() {
            self.asked.frame(index);
            let timed = self.rules() > 0;
            let outcome = match about_session(frame) {
                Some(Command::Open) if frame.first_number == 0 => {
                    Some(self.open(frame.session, Token::default(), &mut executed))
                }
                Some(Command::OpenBy { token }) if timed && frame.first_number == 0 => {
                    Some(self.open(frame.session, token, &mut executed))
                }
                Some(Command::Renew) if timed => Some(self.renew(frame)),
                Some(Command::Close) if timed => Some(self.close(frame, &mut executed)),
                _ => None,
            };
            let (session, number) = (frame.session, frame.first_number);
            match outcome {
                Some(outcome) => executed.reply(Reply { session, number, outcome }),
                None => self.execute_frame(batch.digest(), frame, &mut executed),
            }
            if seeded!(VersionAtOnce) && self.next_terms != self.terms {
                executed.outdated = self.go_on_under(self.next_terms).err();
            }
        }
        if self.next_terms != self.terms {
            executed.outdated = self.go_on_under(self.next_terms).err();
        }
        executed.finish()
    }

    /// What was raised in this slot holds from the next one on.
    fn go_on_under(&mut self, terms: Terms) -> Result<(), VersionError> {
        terms.versions.check(newest_versions(&self.service))?;
        self.terms = terms;
        if self.rules() > 0 {
            self.sessions.start_timing(self.time);
        }
        self.asked.ask(Call::SetVersion, 0);
        terms.tell(&mut self.service, self.slot);
        self.asked.answered();
        Ok(())
    }

    /// The last slot was a boundary: the number of those up to here, where checkpoints go round among
    /// the replicas. It is part of the state, so that all agree on whose turn it is.
    pub fn pass_boundary(&mut self) -> Option<u64> {
        if let Some(turn) = &mut self.turn {
            *turn = turn.wrapping_add(1);
        }
        self.turn
    }

    /// Size of the service's state, bytes ([`Service::state_bytes`]).
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.asked.about(Call::StateBytes, self.slot, || self.service.state_bytes())
    }

    /// What the service says of itself ([`Service::measures`]).
    #[must_use]
    pub fn measures(&self) -> Vec<Measure> {
        self.asked.about(Call::Measures, self.slot, || self.service.measures())
    }

    fn rules(&self) -> u16 {
        self.terms.versions.rules
    }

    fn execute_frame(&mut self, batch: Digest, frame: &Frame, executed: &mut Effects<'_>) {
        // While a frame is executed no session opens or ends.
        let others = self.standings(frame);
        let Machine { cluster, slot, time, registry, sessions, service, asked, .. } = self;
        let (rules, next_terms) = (self.terms.versions.rules, &mut self.next_terms);
        let id = frame.session;
        let numbered = frame.command_slices().zip(frame.first_number..);
        let reply = |number, outcome| Reply { session: id, number, outcome };
        let clock = sessions.clock(*time);
        let told = clock.unwrap_or(*time);
        let Some(session) = sessions.get_mut(id) else {
            numbered.for_each(|(_, number)| executed.reply(reply(number, Outcome::NoSession)));
            return;
        };
        let before = session.held();
        for number in session.acknowledge(frame.acked_below) {
            if !seeded!(AcknowledgedWaitStays) {
                forget((&mut *service, asked), id, number);
            }
        }
        let (cluster, slot, time) = (*cluster, *slot, *time);
        let (mut ended, mut released) = (Vec::new(), Vec::new());
        let mut account = executed.spending.open(id);
        for (command, number) in numbered {
            let outcome = match session.admit(number) {
                Admission::Answered(outcome) => {
                    account.given_again(beyond(command, 0, body_bytes(&outcome)));
                    outcome
                }
                Admission::Waits if rules > 0 => Outcome::Waits,
                Admission::Waits => continue,
                Admission::Fresh if let Some(about) = about_number(rules, command, number) => {
                    let (outcome, settled) = match about {
                        Command::Confirm { number: of } => {
                            let confirmed = session.confirm(slot, of);
                            if confirmed == Some(true) {
                                confirm((&mut *service, asked), told, (id, of), &mut released);
                            }
                            let refused = Outcome::Refused(RefusalReason::Withdrawn);
                            let taken = confirmed.is_some() || seeded!(LateConfirmed);
                            (if taken { Outcome::Opened } else { refused }, None)
                        }
                        Command::Withdraw { number: of } => {
                            // One that was served just now has got what it waited for, unless that is to be confirmed.
                            let served = take_released(&mut released, (id, of));
                            let offered = served.as_ref().is_some_and(|one| one.offer);
                            if let Some(one) = served.filter(|one| !one.offer) {
                                let outcome = service_outcome(rules, one.result);
                                let (outcome, _) = waited(rules, outcome, false);
                                if session.release(slot, of, outcome.clone(), None) {
                                    executed.reply(reply(of, outcome));
                                }
                            }
                            let withdrawn = session.withdraw(slot, of);
                            if offered || withdrawn == Withdrawn::Offered {
                                let of = (id, of);
                                take_back((&mut *service, asked), told, of, &mut released);
                            } else if withdrawn == Withdrawn::Waited && !seeded!(WithdrawnStays) {
                                forget((&mut *service, asked), id, of);
                            }
                            let gone = withdrawn != Withdrawn::Settled;
                            let outcome = Outcome::Refused(RefusalReason::Withdrawn);
                            (Outcome::Opened, gone.then_some(reply(of, outcome)))
                        }
                        _ => (Outcome::Refused(RefusalReason::Malformed), None),
                    };
                    settled.into_iter().for_each(|one| executed.reply(one));
                    session.record(slot, clock, number, outcome.clone());
                    outcome
                }
                // Nothing is recorded: it may be begun when it is ordered again.
                Admission::Fresh
                    if account.is_bounded()
                        && !(account.may_begin(session.is_lowest(number))
                            && session.has_room_for_replies(number))
                        && may_be_put_off((&*service, asked), command, number) =>
                {
                    account.put_off();
                    Outcome::Refused(RefusalReason::PutOff)
                }
                Admission::Fresh => {
                    let most = if account.is_bounded() { limits::COMMAND_COST } else { u64::MAX };
                    let context = ExecutionContext {
                        slot,
                        time,
                        clock: told,
                        session: id,
                        number,
                        cluster,
                        batch,
                        administrator: registry.administrator(),
                        other: others.get(&number).copied(),
                        meter: Meter::up_to(most),
                    };
                    let of = (&mut *service, &*asked);
                    let admin = Administration { rules, registry, next_terms };
                    let ran = run(of, admin, &context, command, &mut released);
                    let metered = context.meter.spent();
                    let Some((outcome, change)) = ran else {
                        account.begun(beyond(command, metered, 0));
                        if session.is_full_of_waits() {
                            // It may have been served as soon as it waited.
                            let outcome = match take_released(&mut released, (id, number)) {
                                Some(Release { result, offer: false, .. }) => {
                                    service_outcome(rules, result)
                                }
                                Some(_) => {
                                    let of = (&mut *service, &*asked);
                                    take_back(of, told, (id, number), &mut released);
                                    too_many_waits()
                                }
                                None => {
                                    forget((&mut *service, asked), id, number);
                                    too_many_waits()
                                }
                            };
                            session.record(slot, clock, number, outcome.clone());
                            executed.reply(reply(number, outcome));
                            continue;
                        }
                        session.wait(slot, clock, number);
                        if rules > 0 {
                            executed.reply(reply(number, Outcome::Waits));
                        }
                        continue;
                    };
                    account.begun(beyond(command, metered, body_bytes(&outcome)));
                    let outcome = executed.share(outcome);
                    session.record(slot, clock, number, outcome.clone());
                    match change {
                        Change::None => {}
                        Change::Ended(key) => ended.push(key),
                        Change::Configured(configuration) => {
                            executed.new_configuration = Some(configuration);
                        }
                    }
                    outcome
                }
            };
            executed.reply(reply(number, outcome));
        }
        let now = session.held();
        sessions.settle(id, before, now);
        executed.spending.close(account);
        self.release(released, executed);
        for key in ended.into_iter().filter(|_| !seeded!(RevokedSessionsStay)) {
            self.end_sessions(key, executed);
        }
    }

    /// The agreed time for which the first command waits, or at which the first session ends: a batch has to come then, a tick if there
    /// is nothing else to order (rule E3).
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let service = self.asked.about(Call::Due, self.slot, || self.service.due());
        let first = service.into_iter().chain(self.sessions.due()).min()?;
        Some(self.sessions.agreed(first))
    }

    /// The versions under which the next slot is executed.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.terms.versions
    }

    /// How large the service's state may become in the next slot, bytes.
    #[must_use]
    pub fn state_limit_bytes(&self) -> u64 {
        self.terms.state_limit_bytes
    }

    /// The administrator's key.
    #[must_use]
    pub fn administrator(&self) -> PublicKey {
        self.registry.administrator()
    }

    /// Whether frames of this key are worth ordering: it is registered, or the administrator's.
    #[must_use]
    pub fn is_client(&self, key: PublicKey) -> bool {
        self.registry.is_client(key)
    }

    /// Answers an encoded [`Command`] that only reads, in the state as it is now; `None` when it is
    /// not a read and must be ordered, or when the service panics over it.
    #[must_use]
    pub fn query(&self, client: PublicKey, command: &Bytes) -> Option<Outcome> {
        self.query_within(client, command, &Meter::without_limit())
    }

    /// The same, with a bound on what it costs, or to know that.
    #[must_use]
    pub fn query_within(
        &self,
        client: PublicKey,
        command: &Bytes,
        meter: &Meter,
    ) -> Option<Outcome> {
        let context = QueryContext { client, meter };
        answer(self.is_client(client), command, |content| {
            let ask = || self.service.query(&context, content);
            self.asked.reading(Call::Query, Some(content), ask)
        })
    }

    /// The last executed slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Agreed time after the last executed slot.
    #[must_use]
    pub fn time(&self) -> Time {
        self.time
    }

    /// What the clock by which leases and deadlines go shows then ([`ExecutionContext::clock`]).
    #[must_use]
    pub fn clock(&self) -> Time {
        self.sessions.clock(self.time).unwrap_or(self.time)
    }

    /// History hash after the last executed slot.
    #[must_use]
    pub fn history(&self) -> Digest {
        self.history
    }

    /// The latest 16 configurations, ascending; the last may be pending.
    #[must_use]
    pub fn configurations(&self) -> &[Configuration] {
        self.registry.configurations()
    }

    /// Registered clients, by name.
    pub fn clients(&self) -> impl Iterator<Item = (&str, PublicKey)> {
        self.registry.clients()
    }

    /// The live sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.tables().iter().flat_map(|(client, table)| {
            table.live().map(|(nonce, _)| SessionId { client: *client, nonce })
        })
    }

    /// How many that are.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.tables().values().map(|table| table.sessions()).sum()
    }

    /// Below this number the client of a live session asks for nothing any more; `None` if the session
    /// is not live.
    #[must_use]
    pub fn acknowledged(&self, session: SessionId) -> Option<u64> {
        Some(self.sessions.get(session)?.acked_below())
    }

    /// Commands that wait for their replies, those of live sessions.
    pub fn waiting(&self) -> impl Iterator<Item = (SessionId, u64)> + '_ {
        self.sessions.tables().iter().flat_map(|(client, table)| {
            table.live().flat_map(|(nonce, session)| {
                let id = SessionId { client: *client, nonce };
                session.waiting().map(move |number| (id, number))
            })
        })
    }

    /// Commands whose sessions are offered something that is not confirmed.
    pub fn offered(&self) -> impl Iterator<Item = (SessionId, u64)> + '_ {
        self.sessions.tables().iter().flat_map(|(client, table)| {
            table.live().flat_map(|(nonce, session)| {
                let id = SessionId { client: *client, nonce };
                session.offered().map(move |number| (id, number))
            })
        })
    }

    /// The most live sessions and the most session numbers ever used of one client, as remembered.
    #[must_use]
    pub fn most_sessions(&self) -> (usize, usize) {
        let tables = self.sessions.tables();
        let live = tables.values().map(|table| table.sessions()).max();
        let nonces = tables.values().map(|table| table.nonces()).max();
        (live.unwrap_or(0), nonces.unwrap_or(0))
    }

    /// Bytes of cached replies of the session and of the client that have most.
    #[must_use]
    pub fn most_cached(&self) -> (usize, usize) {
        let of_session = |(_, session): (u64, &Arc<Session>)| session.reply_bytes();
        let tables = self.sessions.tables();
        let largest = tables.values().flat_map(|one| one.live().map(of_session)).max();
        let sum = tables.values().map(|one| one.live().map(of_session).sum()).max();
        (largest.unwrap_or(0), sum.unwrap_or(0))
    }

    /// The service, for its figures.
    #[must_use]
    pub fn service(&self) -> &S {
        &self.service
    }

    /// The service, for tests that damage it.
    #[doc(hidden)]
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// The state as it is now; microseconds, whatever its size.
    #[must_use]
    pub fn snapshot(&self) -> StateSnapshot {
        StateSnapshot::of(self)
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

/// The newest versions that this program can execute `service` under.
#[must_use]
pub fn newest_versions(service: &impl Service) -> Versions {
    Versions { rules: versions::RULES, service: service.newest_version() }
}
