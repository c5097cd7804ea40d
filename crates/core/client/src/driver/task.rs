//! The task that owns a client's connections and its core.

use super::connection::{Connection, Event};
use super::{Attendance, CallError, DriverStats, REQUESTS, ReplicaAddress};
use crate::core::{Answer, CallId, CallOptions, ClientCore, Mode, Output};
use crate::outcome::{CallResult, Indeterminacy, Refusal, Reply};
use bytes::Bytes;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::vitals::Vitals;
use perdura_protocol::{ClusterId, Decode, PublicKey, ReplicaId, Scheme, Slot, View};
use perdura_transport::{Hello, Identity, Role, bounds};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};

/// Callers that are gone are looked for this often.
const SWEEP: Duration = Duration::from_millis(500);

/// A call on its way to the task.
#[derive(Debug)]
pub(super) struct CallRequest {
    pub(super) command: Bytes,
    pub(super) mode: Mode,
    pub(super) deadline: Instant,
    pub(super) reply_quorum: Option<usize>,
    pub(super) answer: oneshot::Sender<Result<Reply, CallError>>,
}

/// What handles ask of the task.
#[derive(Debug)]
pub(super) enum Request {
    Call(CallRequest),
    Stats(oneshot::Sender<DriverStats>),
    Roll { nonce: [u8; 16], deadline: Instant, answer: oneshot::Sender<Vec<Attendance>> },
    Session { deadline: Instant, answer: oneshot::Sender<Result<u64, CallError>> },
    Leave(u64),
    Withdraw,
    Close(oneshot::Sender<()>),
}

/// What a replica said of itself, if it signed that.
fn genuine(cluster: ClusterId, key: PublicKey, (presence, signature): &Answer) -> Option<Vitals> {
    let context = perdura_protocol::Context { cluster, configuration: presence.configuration };
    let digest = Vitals::present_digest(&presence.nonce, &presence.vitals);
    let statement = context.statement(StatementKind::Present, View(0), Slot(0), digest);
    let signed = Scheme::Ed25519.verify(key, &statement, *signature);
    signed.then(|| Vitals::from_bytes(presence.vitals.clone()).ok()).flatten()
}

pub(super) struct Task {
    core: ClientCore,
    cluster: ClusterId,
    identity: Identity,
    // By replica id.
    connections: Vec<Connection>,
    requests: mpsc::Receiver<Request>,
    taken: Vec<Request>,
    events: Vec<Event>,
    callers: HashMap<CallId, oneshot::Sender<Result<Reply, CallError>>>,
    roll_callers: HashMap<CallId, oneshot::Sender<Vec<Attendance>>>,
    session_callers: HashMap<CallId, oneshot::Sender<Result<u64, CallError>>>,
    next_call: u64,
    /// When callers that are gone are looked for next.
    sweep: Instant,
    /// The core's time is measured from here.
    start: Instant,
    alarm: Pin<Box<Sleep>>,
    scratch: Vec<u8>,
    /// Whether no further call is taken.
    withdrawn: bool,
    closed: Option<oneshot::Sender<()>>,
}

/// Whether it is of interest who is not there.
fn is_late(reason: &Refusal) -> bool {
    matches!(reason, Refusal::DeadlinePassed | Refusal::Unreachable | Refusal::KeptOut)
}

/// Addresses by why nothing comes of them: what is so of many is said once.
fn by_reason(failures: &[(&str, &str)]) -> String {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for (address, why) in failures {
        match by_reason.iter_mut().find(|(known, _)| known == why) {
            Some((_, addresses)) => addresses.push(address),
            None => by_reason.push((why, vec![address])),
        }
    }
    let text = |(why, addresses): (&str, Vec<&str>)| format!("{}: {why}", addresses.join(", "));
    by_reason.into_iter().map(text).collect::<Vec<_>>().join("; ")
}

impl Task {
    pub(super) fn new(
        core: ClientCore,
        identity: Identity,
        cluster: ClusterId,
        administrator: bool,
        replicas: Vec<ReplicaAddress>,
        requests: mpsc::Receiver<Request>,
    ) -> Task {
        let start = Instant::now();
        let role = if administrator { Role::Admin } else { Role::Client };
        let hello = Hello::client(cluster, role);
        let connection = |replica: ReplicaAddress| {
            let seed = RandomState::new().build_hasher().finish();
            Connection::new(replica, hello, seed, start)
        };
        Task {
            core,
            cluster,
            identity,
            connections: replicas.into_iter().map(connection).collect(),
            requests,
            taken: Vec::new(),
            events: Vec::new(),
            callers: HashMap::new(),
            roll_callers: HashMap::new(),
            session_callers: HashMap::new(),
            next_call: 0,
            sweep: start,
            start,
            alarm: Box::pin(sleep_until(start)),
            scratch: vec![0; bounds::READ_BYTES],
            withdrawn: false,
            closed: None,
        }
    }

    /// Runs until closed, or until no handle is left.
    pub(super) async fn run(mut self) {
        std::future::poll_fn(|context| self.turn(context)).await;
        if let Some(closed) = self.closed.take() {
            let _ = closed.send(());
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = Instant::now();
            let more = self.take_requests(context, now);
            if !more || self.closed.is_some() {
                self.end(context);
                return Poll::Ready(());
            }
            self.poll_connections(context, now);
            if self.connections.iter().all(Connection::is_refused) {
                self.core.on_refused_by_all();
            }
            self.core.on_tick(self.core_time(now));
            self.look_for_callers(now);
            self.core.flush(self.core_time(now));
            self.carry_out(context, now);
            if self.wait(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Milliseconds on the core's clock.
    fn core_time(&self, at: Instant) -> u64 {
        let elapsed = at.saturating_duration_since(self.start);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether there may be more requests ever.
    fn take_requests(&mut self, context: &mut Context<'_>, now: Instant) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        let open = loop {
            match self.requests.poll_recv_many(context, &mut taken, REQUESTS) {
                Poll::Pending => break true,
                Poll::Ready(0) => break false,
                Poll::Ready(_) => {}
            }
            for request in taken.drain(..) {
                self.take(request, now);
            }
        };
        self.taken = taken;
        open
    }

    fn take(&mut self, request: Request, now: Instant) {
        match request {
            Request::Call(call) if self.withdrawn => {
                let _ = call.answer.send(Err(CallError::refused(Refusal::Closed)));
            }
            Request::Call(call) => {
                let id = CallId(self.next_call);
                self.next_call += 1;
                self.callers.insert(id, call.answer);
                let options = CallOptions {
                    deadline_ms: self.core_time(call.deadline),
                    mode: call.mode,
                    reply_quorum: call.reply_quorum,
                };
                self.core.call(self.core_time(now), id, call.command, options);
            }
            Request::Stats(answer) => {
                let _ = answer.send(self.stats());
            }
            Request::Roll { nonce, deadline, answer } => {
                let id = CallId(self.next_call);
                self.next_call += 1;
                self.roll_callers.insert(id, answer);
                self.core.roll_call(self.core_time(now), id, nonce, self.core_time(deadline));
            }
            Request::Session { deadline, answer } => {
                let id = CallId(self.next_call);
                self.next_call += 1;
                self.session_callers.insert(id, answer);
                self.core.session(self.core_time(now), id, self.core_time(deadline));
            }
            Request::Leave(nonce) => self.core.leave_session(nonce),
            Request::Withdraw => {
                self.withdrawn = true;
                let open: Vec<CallId> = self.callers.keys().copied().collect();
                open.into_iter().for_each(|id| self.core.abandon(id));
            }
            Request::Close(answer) => self.closed = Some(answer),
        }
    }

    /// A future that was dropped asks for nothing any more, and takes nothing that was offered since.
    fn look_for_callers(&mut self, now: Instant) {
        if now < self.sweep && !self.core.has_offers() {
            return;
        }
        self.sweep = now + SWEEP;
        let gone = self.callers.iter().filter(|(_, caller)| caller.is_closed());
        let gone: Vec<CallId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.core.abandon(id);
        }
    }

    fn stats(&self) -> DriverStats {
        let linked = self.connections.iter().filter(|connection| connection.is_up());
        DriverStats {
            core: self.core.stats(),
            view: self.core.view(),
            open_calls: self.core.open_calls(),
            linked: linked.map(|connection| connection.replica().id).collect(),
            failures: self
                .connections
                .iter()
                .filter_map(|one| Some((one.replica().id, one.failure()?)))
                .collect(),
        }
    }

    fn poll_connections(&mut self, context: &mut Context<'_>, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            connection.poll(context, &self.identity, now, &mut self.scratch, &mut events);
            self.hand_in(index, &mut events, now);
        }
        self.events = events;
    }

    /// Gives the core what happened on a connection.
    fn hand_in(&mut self, index: usize, events: &mut Vec<Event>, now: Instant) {
        let now_ms = self.core_time(now);
        let replica = self.connections[index].replica().id;
        for event in events.drain(..) {
            match event {
                Event::Up { keeps_states } => {
                    self.core.keeps_states(replica, keeps_states);
                    self.core.on_link(now_ms, replica, true);
                }
                Event::Down => self.core.on_link(now_ms, replica, false),
                Event::Message(message) => self.core.on_message(now_ms, replica, message),
            }
        }
    }

    /// Carries out what the core wants, until it wants nothing more.
    fn carry_out(&mut self, context: &mut Context<'_>, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        loop {
            while let Some(output) = self.core.next_output() {
                match output {
                    Output::Send { to, message } => {
                        if let Some(connection) = self.connections.get_mut(to.index()) {
                            connection.send(&message);
                        }
                    }
                    Output::Done { id, result } => self.answer(id, result),
                    Output::Roll { id, answers } => self.answer_roll(id, &answers),
                    Output::Session { id, result } => self.answer_session(id, result),
                }
            }
            let mut failed = false;
            for index in 0..self.connections.len() {
                self.connections[index].flush(context, now, &mut events);
                failed |= !events.is_empty();
                self.hand_in(index, &mut events, now);
            }
            if !failed {
                break;
            }
        }
        self.events = events;
    }

    fn answer(&mut self, id: CallId, result: CallResult) {
        let Some(caller) = self.callers.remove(&id) else { return };
        let answer = match result {
            CallResult::Completed(reply) => Ok(reply),
            CallResult::Refused(reason) => {
                let late = is_late(&reason);
                Err(CallError::Refused { reason, detail: self.detail(late) })
            }
            CallResult::Indeterminate(reason) => {
                let late = reason == Indeterminacy::DeadlinePassed;
                Err(CallError::Indeterminate { reason, detail: self.detail(late) })
            }
        };
        // A caller that is gone does not want to know.
        let _ = caller.send(answer);
    }

    fn answer_session(&mut self, id: CallId, result: Result<u64, Refusal>) {
        let Some(caller) = self.session_callers.remove(&id) else { return };
        let answer = result.map_err(|reason| {
            let late = is_late(&reason);
            CallError::Refused { reason, detail: self.detail(late) }
        });
        let _ = caller.send(answer);
    }

    /// Who is there, of all; who signed for another than itself is not.
    fn answer_roll(&mut self, id: CallId, answers: &BTreeMap<ReplicaId, Answer>) {
        let Some(caller) = self.roll_callers.remove(&id) else { return };
        let attendance = self.connections.iter().map(|connection| {
            let replica = connection.replica();
            let answer = answers.get(&replica.id);
            let vitals = answer.and_then(|answer| genuine(self.cluster, replica.key, answer));
            let configuration = vitals.as_ref().and(answer).map(|(said, _)| said.configuration);
            let (failure, runs) = (connection.failure(), connection.is_kept_out());
            Attendance { id: replica.id, vitals, failure, runs, configuration }
        });
        let _ = caller.send(attendance.collect());
    }

    /// For a call that ran out of time: which replicas cannot be reached, and why.
    fn detail(&self, late: bool) -> String {
        let failures = self.connections.iter().filter_map(|connection| {
            Some((connection.replica().address.as_str(), connection.why_down()?))
        });
        let failures: Vec<(&str, &str)> = failures.collect();
        let (all, down) = (self.connections.len(), failures.len());
        if !late || down == 0 {
            String::new()
        } else if down == all {
            format!("; no replica reachable: {}", by_reason(&failures))
        } else {
            format!("; {} of {all} replicas reachable: {}", all - down, by_reason(&failures))
        }
    }

    /// Sets the alarm for whatever is due next; ready when that is now.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let core =
            self.core.next_deadline().map(|at| self.start + std::time::Duration::from_millis(at));
        let connections = self.connections.iter().filter_map(Connection::deadline);
        let sweep = (!self.callers.is_empty()).then_some(self.sweep);
        let Some(next) = connections.chain(core).chain(sweep).min() else { return Poll::Pending };
        if self.alarm.deadline() != next {
            self.alarm.as_mut().reset(next);
        }
        self.alarm.as_mut().poll(context)
    }

    fn end(&mut self, context: &mut Context<'_>) {
        self.core.close();
        while let Some(output) = self.core.next_output() {
            match output {
                Output::Done { id, result } => self.answer(id, result),
                Output::Roll { id, answers } => self.answer_roll(id, &answers),
                Output::Session { id, result } => self.answer_session(id, result),
                Output::Send { to, message } => {
                    if let Some(connection) = self.connections.get_mut(to.index()) {
                        connection.send(&message);
                    }
                }
            }
        }
        for connection in &mut self.connections {
            connection.close(context);
        }
        // Calls that are still in the channel were not sent.
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            if let Request::Call(call) = request {
                let _ = call.answer.send(Err(CallError::refused(Refusal::Closed)));
            }
        }
    }
}
