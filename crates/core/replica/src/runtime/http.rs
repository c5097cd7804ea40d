//! The HTTP endpoint of a replica: `/status` (JSON), `/metrics` (Prometheus), `/healthz` (the
//! event loop turns) and `/readyz` (the replica takes part). A thread of its own, so that a slow
//! reader never holds up agreement; it sees copies only.

mod listening;

use super::endpoints::Endpoints;
use super::event_loop::what_hangs;
use super::metrics::{self, Timings};
use super::starting::Starting;
use super::watch::{Busy, Watch};
use crate::node::{
    Difference, MemberReport, PeerHealthReport, Report, Spent, Stage, State, offset_text, seconds,
};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use perdura_durability::Stored;
use perdura_execution::Asked;
use perdura_protocol::{ClusterId, Digest, PublicKey, Slot};
use perdura_transport::Stats;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::AbortHandle;

/// Requests are answered from memory; a peer that takes longer than this to send one is cut off.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// A report is made ten times a second; older than this, the event loop stands still.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Of all of a connection, which is for one request: a peer that does not read its answer is cut off.
const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// Connections at once; operators and scrapers need a few. One more ends the oldest, so that those that are held
/// open keep no probe out.
const CONNECTIONS: usize = 64;

pub(super) const JSON: &str = "application/json";
pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4";
pub(super) const NO_SUCH_PATH: &str = "try /status, /metrics, /healthz or /readyz\n";

/// What the HTTP thread knows.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Its group, and its key there.
    pub group: ClusterId,
    pub key: PublicKey,
    pub report: Report,
    pub network: Stats,
    /// Of the transfer links.
    pub transfers: Stats,
    pub checkpoints: CheckpointBytes,
    /// How often the state was replaced because it was not the certified one.
    pub repairs: u64,
    /// What the event loop's time went to, if that is measured.
    pub stages: Option<Vec<(Stage, Spent)>>,
    /// What makes it slower on purpose.
    pub experiments: Vec<String>,
    /// Lines of the log that were lost.
    pub lost_log_lines: u64,
    pub timings: Timings,
    /// What its threads are at, what the service is asked, and the name of the thread that asks it.
    pub watch: Watch,
    pub executes: &'static str,
    pub asked: Asked,
    /// When it was made.
    pub at: Instant,
}

/// What this run's checkpoints took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CheckpointBytes {
    pub written: u64,
    /// Of pieces that had not changed and were not written again.
    pub linked: u64,
    /// Pieces and indexes that were found damaged.
    pub damages: u64,
}

impl CheckpointBytes {
    /// One was stored, on a disk if there is one.
    pub fn add(&mut self, stored: Option<Stored>) {
        if let Some(stored) = stored {
            self.written += stored.written_bytes;
            self.linked += stored.linked_bytes;
            self.damages += stored.damages;
        }
    }
}

impl Snapshot {
    /// Whether clients should be sent here.
    pub fn is_ready(&self) -> bool {
        why_not_ready(self).is_none()
    }
}

/// What a replica says for others to see.
#[derive(Default)]
pub(super) struct Published {
    starting: Mutex<Starting>,
    last: Mutex<Option<Snapshot>>,
}

pub(super) type Shared = Arc<Published>;

impl Published {
    /// It starts, or begins anew: what it said before stays meanwhile.
    pub fn start(&self) -> Starting {
        let starting = Starting::default();
        *self.starting.lock().unwrap_or_else(PoisonError::into_inner) = starting.clone();
        starting
    }

    /// How far it has come, while it has not said anything.
    pub fn starting(&self) -> Starting {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How it is.
    pub fn say(&self, snapshot: Snapshot) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }

    /// What it said last; none while it starts.
    pub fn last(&self) -> Option<Snapshot> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What an endpoint answers for.
#[derive(Clone)]
pub(super) enum Served {
    /// A replica.
    One(Shared),
    /// All members of a server.
    All(Arc<Endpoints>),
}

/// Listens and serves on a thread that ends with what this gives. Where it cannot listen it tries on, and says so: what is replicated does not depend on
/// what is shown of it.
pub(super) fn serve(address: &str, served: Served) -> std::io::Result<Serving> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let address = address.to_owned();
    let (serving, mut stops) = oneshot::channel();
    let thread = std::thread::Builder::new().name("http".into()).spawn(move || {
        let ended =
            |stops: &mut oneshot::Receiver<()>| stops.try_recv() != Err(TryRecvError::Empty);
        let Some((listener, is_local)) = listening::wait(&address, || ended(&mut stops)) else {
            return;
        };
        let hosts = Hosts { is_local, own: host_of(&address).to_owned() };
        let served = runtime.block_on(async {
            tokio::select! {
                served = accept(listener, served, hosts) => served,
                _ = stops => Ok(()),
            }
        });
        if let Err(error) = served {
            tracing::error!("status and metrics are served no more: {error}");
        }
    })?;
    Ok(Serving { stops: Some(serving), thread: Some(thread) })
}

/// As long as this is there, status and metrics are served; then nothing listens at the address any more, so that it is free for who runs the
/// replica again in this process.
pub(super) struct Serving {
    stops: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stops = None;
        // It has only answers to give that are there; a panic of it was reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(
    listener: std::net::TcpListener,
    served: Served,
    hosts: Hosts,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let hosts = Arc::new(hosts);
    let mut connections = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("HTTP accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (served, hosts) = (served.clone(), Arc::clone(&hosts));
        let task = tokio::task::spawn(async move {
            let answer = service_fn(move |request| {
                let response = respond(&request, &served, &hosts);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            match tokio::time::timeout(CONNECTION_TIME, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("HTTP connection: {error}"),
                Err(_) => tracing::debug!("HTTP connection: it took too long"),
            }
        });
        connections.retain(|task: &AbortHandle| !task.is_finished());
        connections.push_back(task.abort_handle());
        if connections.len() > CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
    }
}

/// Under which names a request may come. A page in a browser on this machine can have any name of its own point to
/// 127.0.0.1, and then read what is served there.
struct Hosts {
    /// It is served to this machine only.
    is_local: bool,
    /// As configured.
    own: String,
}

impl Hosts {
    fn allow(&self, host: Option<&header::HeaderValue>) -> bool {
        let Some(host) = host.filter(|_| self.is_local) else { return true };
        let Ok(host) = host.to_str().map(host_of) else { return false };
        host == "localhost" || host == self.own || host.parse::<std::net::IpAddr>().is_ok()
    }
}

/// The host of `host:port`, or of `[IPv6]:port` without brackets.
fn host_of(text: &str) -> &str {
    if let Some((host, _)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return host;
    }
    text.rsplit_once(':').map_or(text, |(host, _)| host)
}

fn respond(request: &Request<Incoming>, served: &Served, hosts: &Hosts) -> Response<Full<Bytes>> {
    if !hosts.allow(request.headers().get(header::HOST)) {
        return text(StatusCode::MISDIRECTED_REQUEST, "not under this name; use the address\n");
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match served {
        Served::One(shared) => answer_of_one(request.uri().path(), shared),
        Served::All(endpoints) => endpoints.answer(request.uri().path()),
    }
}

fn answer_of_one(path: &str, shared: &Shared) -> Response<Full<Bytes>> {
    let Some(snapshot) = shared.last() else {
        return starts(path, &shared.starting());
    };
    match path {
        "/healthz" if !stands_still(&snapshot) => text(StatusCode::OK, "ok\n"),
        "/healthz" => {
            text(StatusCode::SERVICE_UNAVAILABLE, &format!("{}\n", standstill(&snapshot)))
        }
        "/readyz" => match why_not_ready(&snapshot) {
            None => text(StatusCode::OK, "ready\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
        },
        "/status" => with_type(StatusCode::OK, JSON, format!("{}\n", status(&snapshot)).into()),
        "/metrics" => match metrics::text(&snapshot) {
            Ok(body) => with_type(StatusCode::OK, PROMETHEUS, body.into()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        _ => text(StatusCode::NOT_FOUND, NO_SUCH_PATH),
    }
}

/// Of one that starts: it is alive as long as it comes further, and not ready.
fn starts(path: &str, starting: &Starting) -> Response<Full<Bytes>> {
    let now = Instant::now();
    let said = format!("{}\n", starting.text(now));
    match path {
        "/healthz" if starting.goes_on(now) => text(StatusCode::OK, &said),
        "/healthz" | "/readyz" | "/status" | "/metrics" => {
            text(StatusCode::SERVICE_UNAVAILABLE, &said)
        }
        _ => text(StatusCode::NOT_FOUND, NO_SUCH_PATH),
    }
}

/// Whether the event loop has said nothing for a while.
pub(super) fn stands_still(snapshot: &Snapshot) -> bool {
    snapshot.at.elapsed() >= STANDSTILL
}

/// That it has, and what it is at.
pub(super) fn standstill(snapshot: &Snapshot) -> String {
    let hanging = snapshot.watch.hanging(Instant::now());
    let said = hanging.iter().find_map(|busy| what_hangs(&snapshot.asked, snapshot.executes, busy));
    let seconds = snapshot.at.elapsed().as_secs_f64();
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    format!("the event loop has stood still for {seconds:.1} s{said}")
}

/// What the replica said last is no news of one whose event loop stands still. A diverged one has
/// stopped for good, and one that is being repaired has no event loop meanwhile: their last words
/// stay.
pub(super) fn state_of(snapshot: &Snapshot) -> &'static str {
    let state = snapshot.report.state;
    let lasts = matches!(state, State::Diverged | State::Repairing | State::Stopped);
    let stalled = stands_still(snapshot) && !lasts;
    if stalled { State::Stalled.as_str() } else { state.as_str() }
}

/// Why nothing should be sent here, in words; none if it is ready.
pub(super) fn why_not_ready(snapshot: &Snapshot) -> Option<String> {
    let (peer_health, awaits) = (&snapshot.report.peer_health, &snapshot.report.boot_awaits);
    match state_of(snapshot) {
        state if state == State::Waiting.as_str() => Some(format!(
            "waiting: {} members are there with itself, and {} are needed; missing: {}",
            peer_health.hears,
            peer_health.needs,
            peer_health.missing()
        )),
        state if state == State::Recovering.as_str() && !awaits.is_empty() => Some(format!(
            "recovering: too few members have compared what they heard of it with its data directory, and keep its start; replicas {} have not",
            awaits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        )),
        state if state == State::Stalled.as_str() && stands_still(snapshot) => {
            Some(format!("stalled: {}", standstill(snapshot)))
        }
        state if state == State::Stalled.as_str() => Some(format!(
            "stalled: a write to the log has been under way for {}; the disk under the data directory hangs",
            seconds(peer_health.stalled_ms.into())
        )),
        state if state != State::Active.as_str() => Some(state.to_owned()),
        _ if peer_health.is_clock_wrong() => Some(format!(
            "its clock is {} those of the others",
            offset_text(peer_health.clock_ahead_ms)
        )),
        _ => None,
    }
}

/// The other members, as this replica sees them.
fn members(peer_health: &PeerHealthReport) -> serde_json::Value {
    let member = |member: &MemberReport| {
        let vitals = member.vitals.as_ref();
        serde_json::json!({
            "id": member.id.0,
            "heard": member.heard,
            "silent_ms": member.silent_ms,
            "round_trip_ms": member.trip_ms,
            "clock_offset_ms": member.clock_offset_ms,
            "state": vitals.map(|vitals| vitals.condition.as_str()),
            "flush_ms": vitals.map(|vitals| vitals.flush_ms),
            "stalled_ms": vitals.map(|vitals| vitals.stalled_ms),
            "version": vitals.map(|vitals| vitals.program.as_str()),
        })
    };
    peer_health.members.iter().map(member).collect()
}

/// Threads that do not come back from what they are at.
fn hanging(snapshot: &Snapshot) -> serde_json::Value {
    let told = |busy: &Busy| {
        serde_json::json!({
            "thread": busy.thread,
            "at": what_hangs(&snapshot.asked, snapshot.executes, busy).unwrap_or_else(|| busy.what.to_owned()),
            "ms": busy.took.as_millis() as u64,
        })
    };
    snapshot.watch.hanging(Instant::now()).iter().map(told).collect()
}

fn difference(found: &Difference) -> serde_json::Value {
    let digests =
        found.digests.iter().map(|(id, digest)| (id.to_string(), digest.to_string().into()));
    serde_json::json!({
        "slot": found.slot.0,
        "certifiable": found.certifiable,
        "digests": digests.collect::<serde_json::Map<_, _>>(),
    })
}

pub(super) fn text(code: StatusCode, body: &str) -> Response<Full<Bytes>> {
    with_type(code, "text/plain", Bytes::from(body.to_owned()))
}

pub(super) fn with_type(
    code: StatusCode,
    kind: &'static str,
    body: Bytes,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

pub(super) fn status(snapshot: &Snapshot) -> serde_json::Value {
    let report = &snapshot.report;
    let at = |point: Option<(Slot, Digest)>| {
        point
            .map(|(slot, digest)| serde_json::json!({"slot": slot.0, "digest": digest.to_string()}))
    };
    let mut status = serde_json::json!({
        "id": report.id.0,
        "cluster": snapshot.group.to_string(),
        "key": snapshot.key.to_string(),
        "leader": report.leader,
        "view": report.view.0,
        "decided": report.decided.0,
        "executed": report.executed.0,
        "logged": report.logged.0,
        "prefix": report.prefix.0,
        "checkpoint": at(report.checkpoint),
        "boundary": at(report.boundary),
        "state": state_of(snapshot),
        "ready": why_not_ready(snapshot).is_none(),
        "why_not_ready": why_not_ready(snapshot),
        "members": members(&report.peer_health),
        "request_timeout_ms": report.request_timeout_ms,
        "clock_ahead_ms": report.peer_health.clock_ahead_ms,
        "differing_states": report.difference.as_ref().map(difference),
        "repairs": snapshot.repairs,
        "checkpoint_damages": snapshot.checkpoints.damages,
        "hanging": hanging(snapshot),
        "experiments": snapshot.experiments,
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "protocol_version": perdura_transport::PROTOCOL_VERSION,
        "disk_format": perdura_durability::FORMAT_VERSION,
        "rules_version": report.versions.rules,
        "service_version": report.versions.service,
        "sessions": report.sessions,
        "state_bytes": report.state_bytes,
        "state_limit_bytes": report.state_limit_bytes,
        "disk_free_mib": report.space.map(|space| space.free_mib),
        "disk_size_mib": report.space.map(|space| space.size_mib),
    });
    if let Some(stages) = &snapshot.stages {
        let spent = |(stage, spent): &(Stage, Spent)| {
            let Spent { nanoseconds, entries } = *spent;
            let spent = serde_json::json!({"nanoseconds": nanoseconds, "entries": entries});
            (stage.name().to_owned(), spent)
        };
        status["stages"] = stages.iter().map(spent).collect::<serde_json::Map<_, _>>().into();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Counters, MemoryHeld};
    use perdura_protocol::{ReplicaId, View};

    fn snapshot(state: State, age: Duration) -> Snapshot {
        let slot = Slot(7);
        let report = Report {
            service: Vec::new(),
            id: ReplicaId(0),
            view: View(1),
            leader: false,
            decided: slot,
            executed: slot,
            logged: slot,
            prefix: slot,
            checkpoint: None,
            boundary: None,
            state,
            versions: perdura_protocol::Versions::NEW,
            sessions: 3,
            state_bytes: 5,
            state_limit_bytes: 10,
            request_timeout_ms: 1_000,
            pace_ms: 0,
            peer_health: PeerHealthReport::default(),
            boot_awaits: Vec::new(),
            difference: None,
            space: None,
            held: MemoryHeld::default(),
            counters: Counters::default(),
        };
        // Made that long before now.
        let at = Instant::now().checked_sub(age).unwrap();
        let experiments = vec!["slow".to_owned()];
        let checkpoints = CheckpointBytes::default();
        let (network, transfers) = (Stats::default(), Stats::default());
        let stages = None;
        Snapshot {
            group: ClusterId([7; 16]),
            key: PublicKey([8; 32]),
            report,
            network,
            transfers,
            checkpoints,
            repairs: 0,
            stages,
            experiments,
            lost_log_lines: 0,
            timings: Timings::new(),
            watch: Watch::default(),
            executes: "event loop",
            asked: Asked::default(),
            at,
        }
    }

    #[test]
    fn a_name_of_a_strangers_own_is_refused_where_this_machine_alone_is_served() {
        let hosts = |is_local| Hosts { is_local, own: host_of("node7:7401").to_owned() };
        let value = |text| header::HeaderValue::from_static(text);
        for host in ["localhost:7401", "127.0.0.1:7401", "[::1]:7401", "node7:7401", "node7"] {
            assert!(hosts(true).allow(Some(&value(host))), "{host}");
        }
        for host in ["evil.example:7401", "evil.example", "", "127.0.0.1.evil.example"] {
            assert!(!hosts(true).allow(Some(&value(host))), "{host}");
            assert!(hosts(false).allow(Some(&value(host))), "{host}");
        }
        assert!(hosts(true).allow(None), "HTTP/1.0");
    }

    #[test]
    fn who_has_said_nothing_for_a_while_is_not_active() {
        let (new, old) = (Duration::ZERO, STANDSTILL);
        assert_eq!(state_of(&snapshot(State::Active, new)), "active");
        assert_eq!(state_of(&snapshot(State::Active, old)), "stalled");
        assert_eq!(state_of(&snapshot(State::Recovering, old)), "stalled");
        assert_eq!(state_of(&snapshot(State::Diverged, old)), "diverged");
        assert_eq!(state_of(&snapshot(State::Repairing, old)), "repairing");
        let said = status(&snapshot(State::Active, old)).to_string();
        assert!(said.contains(r#""state":"stalled""#), "{said}");
        assert!(said.contains(r#""state_bytes":5,"state_limit_bytes":10"#), "{said}");
        assert!(said.contains(r#""experiments":["slow"]"#), "{said}");
    }
}
