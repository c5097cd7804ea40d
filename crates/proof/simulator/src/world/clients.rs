//! Drives client cores, keeps the record of every call, and shows the checkers what was sent and
//! what came of it.

use super::clock::{Clock, wall_in_order};
use super::lockers::Move;
use super::spaces::SpaceWorkload;
use super::workload::{Asked, Request, Workload};
use super::{Event, World};
use crate::checkers::commit_order::Seen;
use crate::checkers::{exactly_once, progress};
use crate::guest::Guest;
use crate::options::{Mode as RunMode, ServiceKind};
use crate::plan::{Plan, WorkloadPlan};
use crate::random::Random;
use crate::report::Mark;
use bytes::Bytes;
use perdura_client::{
    CallId, CallOptions, CallResult, ClientConfig, ClientCore, Mode, Output, Refusal, Reply,
};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::message::Lane;
use perdura_protocol::{
    AdminCommand, Command, Decode, Encode, Frame, Message, PublicKey, ReplicaId, SecretKey,
    SessionId, limits,
};
use perdura_store::partition::PartitionReply;
use perdura_tuples::TupleReply;
use std::collections::BTreeMap;

/// Longest pause before a call that follows at once, microseconds.
const AT_ONCE_US: u64 = 500;

/// Who does not wait for a group that is not there waits so long, milliseconds.
const UNREACHABLE_MS: u64 = 2_000;

/// By how much the clocks are wrong by which the first clients number their sessions, milliseconds: at 1970, a day ahead, a day behind.
const ASTRAY_MS: [i64; 3] = [i64::MIN, 86_400_000, -86_400_000];

/// A call of a client, from its beginning to its end.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The caller and process within it.
    pub process: u64,
    /// Its client.
    pub client: PublicKey,
    /// What it asked for.
    pub command: Asked,
    /// When it was called, as a moment and in microseconds.
    pub invoked: u64,
    /// In microseconds.
    pub invoked_us: u64,
    /// When it has to end, by its client's clock.
    pub deadline_ms: u64,
    /// Whether a group that is live has to answer it.
    pub patient: bool,
    /// When it ended.
    pub ended: Option<u64>,
    /// How.
    pub seen: Seen<Bytes>,
    /// Its number, once it was sent for ordering.
    pub number: Option<(SessionId, u64)>,
}

/// A client process, or the administrator's.
pub struct Client {
    /// The client itself.
    pub core: Option<ClientCore>,
    /// Its key.
    pub key: SecretKey,
    /// Grows when it is started anew.
    pub life: u64,
    /// Its clock.
    pub clock: Clock,
    // By how much the time is wrong by which it numbers its sessions.
    astray_ms: i64,
    /// It does nothing before this time.
    pub paused_until_us: u64,
    /// Until then it paused, or its clock jumped: nobody else made its calls late.
    pub excused_us: u64,
    config: ClientConfig,
    workload: Workload,
    spaces: SpaceWorkload,
    // Calls that have not ended: record and caller.
    pub open: BTreeMap<CallId, (usize, usize)>,
    // By encoded command, calls that have not ended; no two are alike.
    by_command: BTreeMap<Bytes, usize>,
    // Who asked for the session.
    asked_sessions: BTreeMap<CallId, usize>,
    // What the administrator waits for.
    pub administered: Option<CallId>,
    next_call: u64,
    tick_us: Option<u64>,
}

impl Client {
    /// A client that has not started; the last one is the administrator.
    pub fn new(
        plan: &Plan,
        parameters: &Parameters,
        index: usize,
        key: SecretKey,
        clients: &[PublicKey],
        random: &Random,
    ) -> Client {
        let mut config = ClientConfig::new(parameters.cluster, plan.faults, key.clone());
        if plan.service == ServiceKind::Partitions {
            config.leaf_of = PartitionReply::leaf;
        }
        config.administrator = index == plan.workload.clients;
        config.scheme = plan.scheme;
        // Every second one does not wait for a group that is not there; but where all is to be answered in the end.
        config.unreachable_ms =
            (index % 2 == 1 && plan.mode != RunMode::Liveness).then_some(UNREACHABLE_MS);
        Client {
            core: None,
            key,
            life: 0,
            clock: Clock::draw(&mut random.fork(&format!("clock {index}")), plan.drift),
            astray_ms: if plan.astray { ASTRAY_MS.get(index).copied().unwrap_or(0) } else { 0 },
            paused_until_us: 0,
            excused_us: 0,
            config,
            spaces: SpaceWorkload::new(
                plan.workload,
                index,
                clients.to_vec(),
                random.fork("spaces"),
                random.fork(&format!("spaces of client {index}")),
            ),
            workload: Workload::new(plan.workload, index, random.fork(&format!("client {index}"))),
            open: BTreeMap::new(),
            by_command: BTreeMap::new(),
            asked_sessions: BTreeMap::new(),
            administered: None,
            next_call: 1,
            tick_us: None,
        }
    }
}

impl Client {
    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.core.is_some()
    }

    /// A caller asks for the number of the session.
    pub fn ask_session(&mut self, now_ms: u64, caller: usize, deadline_ms: u64) {
        let Some(core) = &mut self.core else { return };
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.asked_sessions.insert(id, caller);
        core.session(now_ms, id, deadline_ms);
    }

    /// What it asks somebody else's service for at last, in order.
    pub fn last_of(&mut self, guest: &dyn Guest) -> Request {
        Request { fast: false, short_us: None, ..self.workload.draw_of(guest) }
    }

    /// Its calls go in another session than this one.
    pub fn leave_session(&mut self, session: u64) {
        if let Some(core) = &mut self.core {
            core.leave_session(session);
        }
    }

    /// Another key takes the place of its own, when it is started anew.
    pub fn take_key(&mut self, key: SecretKey) {
        self.config.key = key.clone();
        self.key = key;
    }
}

impl World {
    /// What a client's clock shows, which runs at its own pace.
    pub(crate) fn client_ms(&self, client: usize) -> u64 {
        self.clients[client].clock.now(self.now_us).monotonic_ms
    }

    /// The monotonic clock of a client jumped: its timers are due.
    pub(crate) fn clock_leapt(&mut self, client: usize) {
        self.clients[client].tick_us = None;
        self.client_round(client);
    }

    /// A client process starts, without any memory of an earlier one.
    pub(crate) fn start_client(&mut self, client: usize) {
        let now_ms = self.client_ms(client);
        let keys = self.member_keys();
        let here = &mut self.clients[client];
        here.config.replica_keys = keys;
        here.life += 1;
        here.tick_us = None;
        here.spaces.restart();
        here.paused_until_us = 0;
        // Microseconds are the same on all clocks, so that no two starts have one number.
        let wall_ms = here.clock.now(self.now_us).wall.0.saturating_add_signed(here.astray_ms);
        let nonce = (wall_ms * 1000 + self.now_us % 1000) * (limits::NONCES_PER_MS / 1000);
        let mut token = [0; 16];
        token[..8].copy_from_slice(&here.life.to_le_bytes());
        here.core = Some(ClientCore::new(here.config.clone(), nonce, token, now_ms));
        let (life, station) = (here.life, self.n() + client);
        self.dial_all(station);
        if client + 1 < self.clients.len() && !self.by_hand && !self.is_partition() {
            for caller in 0..self.plan.workload.callers {
                let delay = 1_000 + self.random.below(10_000);
                self.push(delay, Event::Call { client, life, caller });
            }
        }
    }

    /// A client process ends; what becomes of its calls nobody will know.
    pub(crate) fn end_client(&mut self, client: usize) {
        let here = &mut self.clients[client];
        let core = here.core.take();
        if here.administered.take().is_some() {
            self.revoking = None; // What becomes of it the next administrator does not know.
            self.orders.forget();
        }
        here.by_command.clear();
        self.report.calls.abandoned += here.open.len() as u64;
        here.open.clear();
        here.asked_sessions.clear();
        self.checkers.fairness.leaves(client);
        self.trace.line(self.now_us, format_args!("c{client} ends"));
        if self.plan.versions.rules > 0 {
            let key = self.clients[client].key.public();
            self.checkers.waits.client_ends(key, wall_in_order(self.now_us));
        }
        if let Some(core) = core.filter(|_| self.client_random.percent(50)) {
            self.close_client(client, core);
        }
        self.drop_links(self.n() + client, 5_000);
    }

    /// A client ends in order: it says so, and nobody hears what became of its calls.
    fn close_client(&mut self, client: usize, mut core: ClientCore) {
        core.close();
        while let Some(output) = core.next_output() {
            if let Output::Send { to, message } = output {
                let station = self.n() + client;
                self.send(station, to.index(), Lane::Agreement, &message.to_bytes());
            }
        }
    }

    /// Calls of clients, the administrator's aside, that have not ended.
    pub(crate) fn open_calls(&self) -> usize {
        self.clients.iter().map(|client| client.open.len()).sum()
    }

    /// A replica fails: from here on calls may have to wait. What a liar does is nothing new.
    pub(crate) fn disturbed(&mut self, replica: usize) {
        if !self.is_liar(replica) {
            self.disturbed_us = self.now_us;
        }
    }

    /// Whether a call has not ended.
    pub(crate) fn is_open(&self, record: usize) -> bool {
        self.clients.iter().any(|client| client.open.values().any(|(open, _)| *open == record))
    }

    pub(crate) fn make_call(&mut self, client: usize, life: u64, caller: usize) {
        if self.clients[client].life != life || self.ending.begun() {
            return;
        }
        let until_us = self.clients[client].paused_until_us;
        if until_us > self.now_us {
            self.push_at(until_us, Event::Call { client, life, caller });
            return;
        }
        if self.has_spaces() && self.client_random.percent(10) {
            self.abandon_wait(client);
        }
        let request = match self.draw(client, caller) {
            Move::Call(request) => request,
            Move::Write { lock, token, way_us } => {
                self.send_write(client, caller, (lock, token), way_us);
                return;
            }
        };
        if !self.call(client, caller, request) {
            // The same is under way already; later something else.
            self.push(1_000, Event::Call { client, life, caller });
        }
    }

    /// Nobody in the client's process waits for the first of its calls that wait any longer.
    fn abandon_wait(&mut self, client: usize) {
        let here = &mut self.clients[client];
        let waits = |(_, (record, _)): &(&CallId, &(usize, usize))| {
            self.calls[*record].command.wait_ms().is_some()
        };
        let first = here.open.iter().find(waits).map(|(id, (record, _))| (*id, *record));
        if let (Some((id, record)), Some(core)) = (first, &mut here.core) {
            core.abandon(id);
            self.calls[record].patient = false;
            self.client_round(client);
        }
    }

    fn draw(&mut self, client: usize, caller: usize) -> Move {
        let has_spaces = self.has_spaces();
        let here = &mut self.clients[client];
        if let Some(guest) = &self.guest {
            return Move::Call(here.workload.draw_of(&**guest));
        }
        if !has_spaces {
            return Move::Call(here.workload.draw());
        }
        let wall = here.clock.now(self.now_us).wall;
        let waits = |(record, _): &&(usize, usize)| self.calls[*record].command.wait_ms().is_some();
        let waits = here.open.values().filter(waits).count();
        here.spaces.draw(caller, wall, waits)
    }

    /// Makes a call; false if an equal one is under way.
    pub(crate) fn call(&mut self, client: usize, caller: usize, request: Request) -> bool {
        let Request { command, fast, short_us } = request;
        let encoded = Command::Service(command.to_bytes()).to_bytes();
        let timeout_us = match (short_us, self.plan.mode) {
            (Some(short_us), _) => short_us,
            (None, RunMode::Liveness) => progress::TROUBLED_US,
            // Time-outs have doubled while the group stood, and there may be a liar to depose.
            (None, RunMode::Safety) if self.ending.begun() => progress::CONVERGENCE_US,
            (None, RunMode::Safety) => 10_000_000,
        };
        let waits_us = command.wait_ms().filter(|_| short_us.is_none()).unwrap_or(0) * 1000;
        let timeout_us = timeout_us + waits_us;
        let (now_ms, invoked_us) = (self.client_ms(client), self.now_us);
        let invoked = self.stamp();
        let record = self.calls.len();
        let here = &mut self.clients[client];
        if here.by_command.contains_key(&encoded) {
            return false;
        }
        let Some(core) = &mut here.core else { return false };
        let id = CallId(here.next_call);
        here.next_call += 1;
        here.open.insert(id, (record, caller));
        here.by_command.insert(encoded.clone(), record);
        let process = caller as u64 + 100 * client as u64 + 10_000 * here.life;
        let deadline_ms = now_ms + timeout_us / 1000 + 1;
        let client_key = here.key.public();
        self.calls.push(CallRecord {
            process,
            client: client_key,
            command,
            invoked,
            invoked_us,
            deadline_ms,
            patient: short_us.is_none(),
            ended: None,
            seen: Seen::Unknown,
            number: None,
        });
        if let Some(guest) = self.guest.as_ref().filter(|_| self.trace.on()) {
            let asked = guest.show(&self.calls[record].command.to_bytes());
            self.trace.line(self.now_us, format_args!("c{client} call {record}: {asked}"));
        }
        let mode = if fast { Mode::Fast } else { Mode::Ordered };
        core.call(now_ms, id, encoded, CallOptions { deadline_ms, mode, reply_quorum: None });
        self.client_round(client);
        true
    }

    /// The administrator orders a command.
    pub(crate) fn administer_command(&mut self, command: AdminCommand) {
        self.take_up_key();
        if self.administer_unseen(Command::Admin(command.clone()).to_bytes()) {
            self.checkers.validity.administers(&command);
            self.checkers.rules_in_force.administers(&command);
        }
    }

    /// The same that no checker knows of; whether it was ordered.
    pub(crate) fn administer_unseen(&mut self, command: Bytes) -> bool {
        let admin = self.clients.len() - 1;
        let now_ms = self.client_ms(admin);
        let here = &mut self.clients[admin];
        let Some(core) = &mut here.core else { return false };
        let id = CallId(here.next_call);
        here.next_call += 1;
        here.administered = Some(id);
        let options =
            CallOptions { deadline_ms: now_ms + 5_000, mode: Mode::Ordered, reply_quorum: None };
        core.call(now_ms, id, command, options);
        self.client_round(admin);
        true
    }

    pub(crate) fn client_link(&mut self, client: usize, replica: usize, up: bool) {
        let now_ms = self.client_ms(client);
        let process = self.replicas[replica].process.as_ref();
        let keeps_states = process.is_some_and(|process| process.node.keeps_states());
        if let Some(core) = &mut self.clients[client].core {
            core.keeps_states(ReplicaId(replica as u8), keeps_states);
            core.on_link(now_ms, ReplicaId(replica as u8), up);
            self.client_round(client);
        }
    }

    pub(crate) fn client_message(&mut self, client: usize, from: usize, message: Message) {
        let now_ms = self.client_ms(client);
        if let Some(core) = &mut self.clients[client].core {
            core.on_message(now_ms, ReplicaId(from as u8), message);
            self.client_round(client);
        }
    }

    pub(crate) fn on_client_tick(&mut self, client: usize, life: u64) {
        let now_ms = self.client_ms(client);
        let here = &mut self.clients[client];
        if here.life != life || here.tick_us.is_none_or(|at| at > self.now_us) {
            return;
        }
        if here.paused_until_us > self.now_us {
            let until_us = here.paused_until_us;
            self.push_at(until_us, Event::ClientTick { client, life });
            return;
        }
        here.tick_us = None;
        if let Some(core) = &mut here.core {
            core.on_tick(now_ms);
            self.step();
            self.client_round(client);
            let next_ms = self.clients[client].core.as_ref().and_then(ClientCore::next_deadline);
            self.check(progress::sleeps(client, now_ms, next_ms));
        }
    }

    /// Ends a round of inputs of a client.
    pub(crate) fn client_round(&mut self, client: usize) {
        let now_ms = self.client_ms(client);
        let station = self.n() + client;
        if let Some(core) = &mut self.clients[client].core {
            core.flush(now_ms);
        }
        while let Some(output) =
            self.clients[client].core.as_mut().and_then(ClientCore::next_output)
        {
            match output {
                Output::Send { to, message } => {
                    if let Message::Frame(frame) = &message {
                        self.note_numbers(client, frame);
                    }
                    self.send(station, to.index(), Lane::Agreement, &message.to_bytes());
                }
                Output::Done { id, result } => self.call_ended(client, id, result),
                Output::Session { id, result } => {
                    if let Some(caller) = self.clients[client].asked_sessions.remove(&id) {
                        self.sessions.push((client, caller, result));
                    }
                }
                // None of these asks.
                Output::Roll { .. } => {}
            }
        }
        let here = &mut self.clients[client];
        let Some(core) = &here.core else { return };
        let Some(deadline_ms) = core.next_deadline() else { return };
        let at_us = here.clock.shows_us(deadline_ms).max(self.now_us + 1);
        if here.tick_us.is_none_or(|known| at_us < known) {
            here.tick_us = Some(at_us);
            let life = here.life;
            self.push_at(at_us, Event::ClientTick { client, life });
        }
    }

    /// Notes under which number each command of a frame goes.
    fn note_numbers(&mut self, client: usize, frame: &Frame) {
        let session = frame.session;
        self.checkers.exactly_once.acknowledges(session, frame.acked_below);
        for hostile in &mut self.hostile {
            hostile.attacker.overhears(session, frame.end_number());
        }
        for (number, command) in (frame.first_number..).zip(frame.commands()) {
            self.note_carried(session, number, frame.acked_below);
            let content = match Command::from_bytes(command.clone()) {
                Ok(Command::Service(content)) => content,
                Ok(Command::Open | Command::OpenBy { .. }) => {
                    self.checkers.validity.opens(session);
                    continue;
                }
                Ok(Command::Withdraw { number: of }) => {
                    self.checkers.waits.withdraws(session, of);
                    continue;
                }
                Ok(Command::Confirm { number: of }) => {
                    self.checkers.waits.confirms(session, of);
                    continue;
                }
                Ok(Command::Admin(_) | Command::Renew | Command::Close) | Err(_) => continue,
            };
            // A frame that is sent again may hold commands of calls that have ended, and equal ones
            // may have been called since.
            let first = !self.checkers.exactly_once.was_sent(session, number);
            let check = self.checkers.exactly_once.sent(session, number, content);
            self.check(check);
            if first && let Some(record) = self.clients[client].by_command.get(&command) {
                let call = &mut self.calls[*record];
                let before = call.number.replace((session, number));
                // One that may wait is no measure of fairness.
                if call.command.wait_ms().is_none() {
                    self.checkers.fairness.asks(client);
                }
                self.check(exactly_once::once(client, before, (session, number)));
            }
        }
    }

    fn call_ended(&mut self, client: usize, id: CallId, result: CallResult) {
        let now_ms = self.client_ms(client);
        let here = &mut self.clients[client];
        if here.administered == Some(id) {
            here.administered = None;
            self.revoked(&result);
            self.order_ended(&result);
            self.trace.line(self.now_us, format_args!("admin: {result:?}"));
            self.administered(&administered(&result));
            return;
        }
        let Some((record, caller)) = here.open.remove(&id) else { return };
        let life = here.life;
        here.by_command.retain(|_, held| *held != record);
        let excused_ms = here.clock.now(here.excused_us).monotonic_ms;
        let ended = self.stamp();
        let call = &mut self.calls[record];
        let deadline_ms = call.deadline_ms.max(excused_ms);
        call.ended = Some(ended);
        let calls = &mut self.report.calls;
        call.seen = match &result {
            CallResult::Completed(
                Reply::Service(bytes)
                | Reply::Attested { reply: bytes, .. }
                | Reply::Unordered { reply: bytes, .. },
            ) => {
                calls.ok += 1;
                calls.fast_reads += u64::from(call.number.is_none());
                Seen::Ok(bytes.clone())
            }
            CallResult::Completed(Reply::Administered { .. } | Reply::Told(_)) => {
                Seen::RefusedInOrder
            }
            CallResult::Refused(Refusal::Ordered(_)) => {
                calls.refused += 1;
                Seen::RefusedInOrder
            }
            CallResult::Refused(reason) => {
                calls.refused += 1;
                if *reason == Refusal::Unreachable {
                    self.report.reached(Mark::GroupUnreachable);
                }
                Seen::NotSent
            }
            CallResult::Indeterminate(_) => {
                calls.indeterminate += 1;
                call.ended = None;
                Seen::Unknown
            }
        };
        let acknowledged = match (&call.seen, call.number) {
            (Seen::Ok(_) | Seen::RefusedInOrder, Some(number)) => Some(number),
            _ => None,
        };
        let what = match &result {
            CallResult::Completed(
                Reply::Service(bytes) | Reply::Unordered { reply: bytes, .. },
            ) => bytes.clone(),
            other => format!("{other:?}").into(),
        };
        self.trace.event([9, client as u64, id.0, self.now_us], &what);
        self.trace_end(client, record, &result);
        self.check_fairness(client, acknowledged.is_some());
        if let Some((session, number)) = acknowledged
            && let Some(slot) = self.answered_in(session, number)
        {
            self.checkers.durability.acknowledged(slot);
        }
        self.check(progress::ended_in_time(client, record, now_ms, deadline_ms));
        if self.plan.mode == RunMode::Liveness
            && matches!(result, CallResult::Indeterminate(_) | CallResult::Refused(_))
        {
            let waited_us = self.now_us.saturating_sub(self.asked_us(client, record));
            self.check(progress::gave_up(client, waited_us, &format!("{result:?}")));
        }
        if self.is_partition() {
            self.answered.push((client, caller, result));
            return;
        }
        if self.by_hand {
            return;
        }
        let hurry_us = self.tell_caller(client, caller, record);
        let WorkloadPlan { think_us, bursts, .. } = self.plan.workload;
        let at_once = bursts > 0 && self.random.percent(bursts);
        // As many calls in the same time, whether or not some follow at once.
        let longest_us = if at_once { AT_ONCE_US } else { think_us * 100 / (100 - bursts) };
        let longest_us = hurry_us.map_or(longest_us, |hurry_us| hurry_us.min(longest_us));
        let pause = self.random.below(longest_us + 1);
        self.push(pause, Event::Call { client, life, caller });
    }

    /// Tells a caller of tuple spaces how its call ended; how long it thinks at most before the next.
    fn tell_caller(&mut self, client: usize, caller: usize, record: usize) -> Option<u64> {
        if !self.has_spaces() || self.ending.begun() {
            return None;
        }
        let seen = self.calls[record].seen.read(|bytes| TupleReply::from_bytes(bytes.clone()).ok());
        if let Some(lock) = self.clients[client].spaces.ended(caller, &seen) {
            self.lock_taken(record, client, lock);
        }
        self.clients[client].spaces.hurry_us(caller)
    }
}

impl World {
    /// A call of a client ended, with something that was ordered for it or without.
    fn check_fairness(&mut self, client: usize, served: bool) {
        let promised = self.plan.mode == RunMode::Liveness && self.plan.faults.is_byzantine();
        if !promised || self.ending.begun() {
            return;
        }
        if served {
            let check = self.checkers.fairness.served(client, self.now_us);
            self.check(check);
        }
        let asks = |(record, _): &(usize, usize)| {
            let call = &self.calls[*record];
            call.number.is_some() && call.command.wait_ms().is_none()
        };
        if !self.clients[client].open.values().any(asks) {
            self.checkers.fairness.leaves(client);
        }
    }
}

/// How a command of the administrator ended.
fn administered(result: &CallResult) -> String {
    match result {
        CallResult::Completed(_) => "ok".to_owned(),
        CallResult::Refused(Refusal::Ordered(reason)) => format!("refused: {reason}"),
        CallResult::Refused(_) => "refused".to_owned(),
        CallResult::Indeterminate(_) => "indeterminate".to_owned(),
    }
}
