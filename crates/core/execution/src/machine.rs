//! The replicated state machine of one replica: a service with sessions, clients, configurations
//! and agreed time around it.
//!
//! Invariants:
//! - slots are executed one after the other, none twice, none left out;
//! - the state is a function of the executed batches; everything that influences later execution
//!   is in the snapshot (docs/design.md, Durability), except for the cluster's fixed parameters;
//! - no command executes twice, whatever is proposed (argument in `session.rs`).

use crate::administration::Registry;
use crate::asked::{Asked, Call};
use crate::beside::answer;
use crate::cost::{Meter, Spending};
use crate::genesis::{Genesis, GenesisError};
use crate::interface::Inspector;
use crate::measure::Measure;
use crate::rules_in_force::RulesInForce;
use crate::service::{QueryContext, Service};
use crate::session::{Session, Token};
use crate::sessions::Sessions;
use crate::snapshot::StateSnapshot;
use bytes::Bytes;
use effects::Effects;
use frame::FrameRun;
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::versions::VersionError;
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Digest, Frame, Outcome, PublicKey, SessionId, Slot,
    Time, Versions, seeded, versions,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use waits::{about_session, forget};

mod effects;
mod frame;
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
    pub(crate) rules: RulesInForce,
    pub(crate) registry: Registry,
    pub(crate) sessions: Sessions,
    pub(crate) service: S,
    // Not part of the state.
    pub(crate) inspector: Inspector,
    pub(crate) asked: Asked,
    // Those of the next slot, while one is executed; else those in force.
    pub(crate) next_rules: RulesInForce,
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
    /// Commands that were put off ([`perdura_protocol::RefusalReason::PutOff`]).
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
        let rules = RulesInForce::first(parameters);
        rules.versions.check(newest_versions(&service))?;
        let registry = Registry::new(parameters, genesis)?;
        rules.tell(&mut service, Slot(0));
        let asked = Asked::default();
        Ok(Machine {
            cluster: parameters.cluster,
            offer_ms: parameters.offer_ms(),
            slot: Slot(0),
            time: Time(0),
            history: Digest::ZERO,
            turn: (parameters.schedule == Schedule::Sequential).then_some(0),
            rules,
            next_rules: rules,
            registry,
            sessions: Sessions::new(rules.versions.rules > 0),
            inspector: Inspector::of(&service, Slot(0), &asked),
            service,
            asked,
        })
    }

    /// The same, which tells there what its service is being asked.
    #[must_use]
    pub fn with_asked(self, asked: Asked) -> Machine<S> {
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
            if seeded!(VersionAtOnce) && self.next_rules != self.rules {
                executed.outdated = self.go_on_under(self.next_rules).err();
            }
        }
        if self.next_rules != self.rules {
            executed.outdated = self.go_on_under(self.next_rules).err();
        }
        executed.finish()
    }

    /// What was raised in this slot holds from the next one on.
    fn go_on_under(&mut self, rules: RulesInForce) -> Result<(), VersionError> {
        rules.versions.check(newest_versions(&self.service))?;
        self.rules = rules;
        if self.rules() > 0 {
            self.sessions.start_timing(self.time);
        }
        self.asked.ask(Call::SetVersion, 0);
        rules.tell(&mut self.service, self.slot);
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
        self.rules.versions.rules
    }

    fn execute_frame(&mut self, batch: Digest, frame: &Frame, executed: &mut Effects<'_>) {
        // While a frame is executed no session opens or ends.
        let others = self.standings(frame);
        let Machine { cluster, slot, time, registry, sessions, service, asked, .. } = self;
        let id = frame.session;
        let numbered = frame.command_slices().zip(frame.first_number..);
        let clock = sessions.clock(*time);
        let Some(session) = sessions.get_mut(id) else {
            numbered.for_each(|(_, number)| {
                executed.reply(Reply { session: id, number, outcome: Outcome::NoSession });
            });
            return;
        };
        let before = session.held();
        for number in session.acknowledge(frame.acked_below) {
            if !seeded!(AcknowledgedWaitStays) {
                forget((&mut *service, asked), id, number);
            }
        }
        let account = executed.spending.open(id);
        let mut run = FrameRun {
            id,
            batch,
            cluster: *cluster,
            slot: *slot,
            time: *time,
            clock,
            rules: self.rules.versions.rules,
            next_rules: &mut self.next_rules,
            registry,
            service,
            asked,
            session,
            others,
            account,
            released: Vec::new(),
            ended: Vec::new(),
        };
        numbered.for_each(|(command, number)| run.command(command, number, executed));
        let FrameRun { session, account, released, ended, .. } = run;
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
        self.rules.versions
    }

    /// How large the service's state may become in the next slot, bytes.
    #[must_use]
    pub fn state_limit_bytes(&self) -> u64 {
        self.rules.state_limit_bytes
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

    /// What the clock by which leases and deadlines go shows then ([`crate::ExecutionContext::clock`]).
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

/// The newest versions that this program can execute `service` under.
#[must_use]
pub fn newest_versions(service: &impl Service) -> Versions {
    Versions { rules: versions::RULES, service: service.newest_version() }
}
