//! `perdura status`: asks each replica's HTTP endpoint, all at once, and waits for none longer than
//! `PATIENCE`.

pub mod servers;

use crate::command::CLUSTER_VARIABLE;
use crate::connect::parse_duration;
use crate::health::exit_code;
use crate::partitions::label;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use perdura::client::Attendance;
use perdura::config::{CLUSTER_FILE, Cluster, PartitionedCluster, ReadError};
use perdura::health::RollCall;
use perdura::protocol::text::Printable;
use perdura::protocol::vitals::{Condition, Vitals};
use perdura::protocol::{PartitionId, ReplicaId, View};
use perdura_replica::node::{offset_text, seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The answer is there after this time, whoever has answered by then.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Without slow disks or links.
const USUAL_TIMEOUT_MS: u64 = 1_000;

/// So many are named of those of whom the same is said.
const LABELS: usize = 3;

/// A clock that is off by more is told of.
const NOTABLE_MS: u64 = 250;

/// Largest answer that is read.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// How each replica stands
///
/// Its role, its view, how far it has decided, executed and logged, its last checkpoint.
///
/// Of a cluster of several partitions: its members by partition, and its servers.
///
/// Asks the HTTP ports; `perdura health` asks over the protocol port. Exit code, by what the replicas say: 0 the cluster can be
/// written to, 3 it can be read only, 4 neither, 1 it could not be asked, 2 used wrongly.
#[derive(Args)]
pub struct Arguments {
    /// The directory of the cluster's files
    #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
    cluster: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show it again and again, after this time [default: 2s], until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = parse_duration)]
    watch: Option<Duration>,
}

/// A state by its slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The state is that after this slot.
    pub slot: u64,
    /// Its digest.
    pub digest: String,
}

/// What a replica says of itself; it may say more.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Report {
    /// Which replica.
    pub id: u8,
    /// Its group, and its key there.
    #[serde(default)]
    pub cluster: Option<String>,
    /// See there.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether it leads its view.
    pub leader: bool,
    /// Its view.
    pub view: u64,
    /// Last slot decided.
    pub decided: u64,
    /// Last slot executed.
    pub executed: u64,
    /// Last slot on its disk.
    pub logged: u64,
    /// Newest durable checkpoint.
    pub checkpoint: Option<Point>,
    /// Last slot at which all replicas digest their state.
    pub boundary: Option<Point>,
    /// active, waiting, recovering, repairing, diverged, stopped, or stalled: its disk hangs, or its event loop stands still.
    pub state: String,
    /// Whether clients should be sent to it.
    #[serde(default)]
    pub ready: bool,
    /// Why not, if they should not.
    #[serde(default)]
    pub why_not_ready: Option<String>,
    /// How long a request may make no progress before the leader is suspected, milliseconds.
    #[serde(default)]
    pub request_timeout_ms: Option<u64>,
    /// Of its program.
    #[serde(default)]
    pub version: Option<String>,
    /// Of the protocol that it speaks.
    #[serde(default)]
    pub protocol_version: Option<u32>,
    /// Of the files that it writes.
    #[serde(default)]
    pub disk_format: Option<u32>,
    /// What it sees of the others.
    #[serde(default)]
    pub members: Vec<Member>,
    /// States that replicas signed and that differ.
    #[serde(default)]
    pub differing_states: Option<Differing>,
    /// Threads that do not come back.
    #[serde(default)]
    pub hanging: Vec<Hanging>,
    /// What makes it slower on purpose.
    #[serde(default)]
    pub experiments: Vec<String>,
    /// How often it replaced its state since it started, because it was not the certified one.
    #[serde(default)]
    pub repairs: u64,
    /// Parts of its stored checkpoints that it found damaged since it started, or began anew.
    #[serde(default)]
    pub checkpoint_damages: u64,
    /// Versions of the core's rules and of the service under which it executes.
    pub rules_version: Option<u16>,
    /// See there.
    pub service_version: Option<u16>,
    /// Size of its service's state.
    pub state_bytes: Option<u64>,
    /// What that may become.
    pub state_limit_bytes: Option<u64>,
    /// Its process.
    pub pid: u32,
    /// What its event loop's time went to, by stage, if it measures that.
    #[serde(default)]
    pub stages: BTreeMap<String, Spent>,
}

/// States of one slot that replicas signed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Differing {
    /// The slot.
    pub slot: u64,
    /// Whether one of them can still be certified.
    pub certifiable: bool,
    /// The digest of each replica.
    pub digests: BTreeMap<u8, String>,
}

/// A thread that does not come back from what it is at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hanging {
    /// Its name.
    pub thread: String,
    /// What it is at.
    pub at: String,
    /// For how long, milliseconds.
    pub ms: u64,
}

/// Another replica, as one sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Which.
    pub id: u8,
    /// By how much its clock is ahead of that of who sees it at least, milliseconds; below 0: behind.
    pub clock_offset_ms: Option<i64>,
    /// How long records take to its disk, by its own word, milliseconds.
    #[serde(default)]
    pub flush_ms: Option<u64>,
}

/// What a stage took since the replica started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Spent {
    /// Processor time.
    pub nanoseconds: u64,
    /// How often it was entered.
    pub entries: u64,
}

/// The whole answer.
#[derive(Serialize)]
struct Answer<'a> {
    replicas: &'a [Line],
}

/// Under what a replica executes.
#[derive(Serialize)]
struct Terms {
    rules_version: u16,
    service_version: u16,
    state_bytes: u64,
    state_limit_bytes: u64,
}

impl Terms {
    fn of(report: &Report) -> Option<Terms> {
        Some(Terms {
            rules_version: report.rules_version?,
            service_version: report.service_version?,
            state_bytes: report.state_bytes?,
            state_limit_bytes: report.state_limit_bytes?,
        })
    }
}

/// A line of the answer: a report, or none. Fields of an unreachable replica are null.
#[derive(Serialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<usize>,
    id: u8,
    reachable: bool,
    leader: bool,
    view: Option<u64>,
    decided: Option<u64>,
    executed: Option<u64>,
    logged: Option<u64>,
    checkpoint: Option<Point>,
    boundary: Option<Point>,
    state: Option<String>,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not_ready: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_format: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    differing_states: Option<Differing>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Member>,
    #[serde(flatten)]
    terms: Option<Terms>,
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hanging: Vec<Hanging>,
    #[serde(skip)]
    key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    experiments: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    repairs: u64,
    #[serde(skip_serializing_if = "is_zero")]
    checkpoint_damages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Line {
    fn new(id: u8, report: Result<Report>) -> Line {
        let (report, error) = match report {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let report = report.as_ref();
        Line {
            partition: None,
            server: None,
            id,
            reachable: report.is_some(),
            leader: report.is_some_and(|report| report.leader),
            view: report.map(|report| report.view),
            decided: report.map(|report| report.decided),
            executed: report.map(|report| report.executed),
            logged: report.map(|report| report.logged),
            checkpoint: report.and_then(|report| report.checkpoint.clone()),
            boundary: report.and_then(|report| report.boundary.clone()),
            state: report.map(|report| report.state.clone()),
            ready: report.is_some_and(|report| report.ready),
            request_timeout_ms: report.and_then(|report| report.request_timeout_ms),
            version: report.and_then(|report| report.version.clone()),
            protocol_version: report.and_then(|report| report.protocol_version),
            disk_format: report.and_then(|report| report.disk_format),
            why_not_ready: report.and_then(|report| report.why_not_ready.clone()),
            differing_states: report.and_then(|report| report.differing_states.clone()),
            members: report.map(|report| report.members.clone()).unwrap_or_default(),
            terms: report.and_then(Terms::of),
            pid: report.map(|report| report.pid),
            hanging: report.map(|report| report.hanging.clone()).unwrap_or_default(),
            key: report.and_then(|report| report.key.clone()),
            experiments: report.map(|report| report.experiments.clone()).unwrap_or_default(),
            repairs: report.map_or(0, |report| report.repairs),
            checkpoint_damages: report.map_or(0, |report| report.checkpoint_damages),
            error,
        }
    }
}

/// What answers at a replica's address has to be of its group. It says so itself, and nothing proves it: whom two clusters gave one port is told of it.
fn same_group(report: &Report, group: &Cluster) -> Result<()> {
    let Some(said) = &report.cluster else { return Ok(()) };
    let own = group.parameters.cluster.to_string();
    ensure!(
        *said == own,
        "another cluster answers there: {}, and {} is of {own}; two clusters have one port, or the file is of another one",
        Printable(said),
        group.path.display()
    );
    Ok(())
}

/// What to say of one whose key is not that of the file.
fn other_key(line: &Line, group: &Cluster) -> Option<String> {
    let said = line.key.as_ref()?;
    let own = group.replicas.get(usize::from(line.id))?.key.to_string();
    (*said != own).then(|| {
        format!(
            "its key is not the one in {}: it was replaced since that file was written, or is no replica of this cluster; take the newest file",
            group.path.display()
        )
    })
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(pause) = arguments.watch else { return show(arguments) };
    let is_terminal = std::io::stdout().is_terminal() && !arguments.json;
    loop {
        if is_terminal {
            // The cursor to the first place, and nothing behind it.
            say!("\x1b[H\x1b[2J{}: {}", arguments.cluster.display(), clock());
        }
        show(arguments)?;
        std::io::stdout().flush()?;
        std::thread::sleep(pause);
    }
}

/// The time of day, UTC.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (hours, minutes, seconds) = (now / 3600 % 24, now / 60 % 60, now % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02} UTC")
}

fn show(arguments: &Arguments) -> Result<ExitCode> {
    let path = arguments.cluster.join(CLUSTER_FILE);
    let cluster = match Cluster::load(&path) {
        Err(ReadError::Partitioned { .. }) => {
            return servers::run(&PartitionedCluster::load(&path)?, arguments.json);
        }
        one => one?,
    };
    let line = |(id, said): (u8, Result<Report>)| {
        let said = said.and_then(|report| same_group(&report, &cluster).map(|()| report));
        let mut line = Line::new(id, said);
        line.error = line.error.take().or_else(|| other_key(&line, &cluster));
        line
    };
    let lines: Vec<Line> = (0..).zip(ask_all(&cluster)).map(line).collect();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &Answer { replicas: &lines })?;
        writeln!(out)?;
    } else {
        out.write_all(table(&lines).as_bytes())?;
    }
    Ok(exit_code(roll_call(&cluster, &lines).health()))
}

/// As if each had been asked over the protocol port.
fn roll_call(cluster: &Cluster, lines: &[Line]) -> RollCall {
    let attendance = lines.iter().map(|line| Attendance {
        id: ReplicaId(line.id),
        vitals: line.state.as_deref().map(|state| Vitals {
            condition: match state {
                "active" => Condition::Active,
                "waiting" => Condition::Waiting,
                _ => Condition::Recovering,
            },
            view: View(line.view.unwrap_or_default()),
            // It would be ready else.
            clock_wrong: state == "active" && !line.ready,
            ..Vitals::default()
        }),
        failure: line.error.clone(),
        runs: false,
        configuration: None,
    });
    RollCall::of(cluster, attendance.collect())
}

/// What each replica says, by id.
pub fn ask_all(cluster: &Cluster) -> Vec<Result<Report>> {
    ask_each(cluster.replicas.iter().map(|entry| entry.http.clone()).collect(), ask)
}

/// What each says, in their order.
fn ask_each<T: Send + 'static>(
    addresses: Vec<String>,
    ask: fn(usize, &str, Instant) -> Result<T>,
) -> Vec<Result<T>> {
    let deadline = Instant::now() + PATIENCE;
    let (sender, answers) = mpsc::channel();
    let mut reports: Vec<Result<T>> =
        addresses.iter().map(|_| Err(anyhow::anyhow!("no answer in time"))).collect();
    for (id, address) in addresses.into_iter().enumerate() {
        let sender = sender.clone();
        // Resolving a name may take longer than there is time; such a thread is left behind.
        std::thread::spawn(move || {
            let report = ask(id, &address, deadline).with_context(|| format!("http://{address}"));
            let _ = sender.send((id, report));
        });
    }
    drop(sender);
    let limit = deadline + Duration::from_millis(100);
    while let Ok((id, report)) =
        answers.recv_timeout(limit.saturating_duration_since(Instant::now()))
    {
        reports[id] = report;
    }
    reports
}

fn ask(id: usize, address: &str, deadline: Instant) -> Result<Report> {
    let body = get(address, "/status", deadline)?;
    let report: Report = serde_json::from_str(&body).context("it gives no status")?;
    ensure!(
        usize::from(report.id) == id,
        "replica {} answers there; {}",
        report.id,
        where_else(address)
    );
    Ok(report)
}

/// Why another one may answer at an address.
fn where_else(address: &str) -> &'static str {
    let (host, _) = address.rsplit_once(':').unwrap_or_default();
    match host {
        "127.0.0.1" | "localhost" | "[::1]" => {
            "each serves it on the loopback of its own host, so ask there; or have it served to the network (docs/deploy.md)"
        }
        _ => "check http in cluster.toml",
    }
}

/// The body of an HTTP answer with status 200.
pub fn get(address: &str, path: &str, deadline: Instant) -> Result<String> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        left if left.is_zero() => Err(anyhow::anyhow!("no answer in time")),
        left => Ok(left),
    };
    let resolved = address.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&resolved, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let length = stream.read(&mut chunk).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow::anyhow!("no answer in time"),
            _ => error.into(),
        })?;
        answer.extend_from_slice(&chunk[..length]);
        ensure!(answer.len() as u64 <= ANSWER_BYTES, "the answer is too long");
        if length == 0 {
            break;
        }
    }
    let answer = String::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => bail!("it says {}", Printable(body.lines().next().unwrap_or(head))),
    }
}

fn table(lines: &[Line]) -> String {
    let mut rows = vec![
        ["ID", "ROLE", "STATE", "VIEW", "DECIDED", "EXECUTED", "LOGGED", "CHECKPOINT", "PID"]
            .map(str::to_owned),
    ];
    rows.extend(lines.iter().map(row));
    let mut text = aligned(&rows);
    text.push_str(&footer(lines.iter()));
    text
}

/// What is notable of all lines; one line for what is said of many.
fn footer<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        let label = label(line.partition.map(PartitionId), line.id);
        for note in notes(line) {
            match said.iter_mut().find(|(known, _)| *known == note) {
                Some((_, labels)) => labels.push(label.clone()),
                None => said.push((note, vec![label.clone()])),
            }
        }
    }
    let text = |(note, labels): (String, Vec<String>)| match labels.len() {
        0..=LABELS => format!("{}: {note}\n", labels.join("; ")),
        count => format!("{}; and {} more: {note}\n", labels[..LABELS].join("; "), count - LABELS),
    };
    said.into_iter().map(text).collect()
}

/// What of a line is in a table.
fn row(line: &Line) -> [String; 9] {
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |n| n.to_string());
    let role = match (line.reachable, line.leader) {
        (false, _) => "-",
        (true, true) => "leader",
        (true, false) => "follower",
    };
    let checkpoint = line.checkpoint.as_ref().map_or("-".to_owned(), |point| {
        let digest = Printable(point.digest.get(..8).unwrap_or_default());
        format!("{} {digest}", point.slot)
    });
    [
        line.id.to_string(),
        role.to_owned(),
        Printable(line.state.as_deref().unwrap_or("unreachable")).to_string(),
        number(line.view),
        number(line.decided),
        number(line.executed),
        number(line.logged),
        checkpoint,
        number(line.pid.map(u64::from)),
    ]
}

/// What is notable of a line.
fn notes(line: &Line) -> Vec<String> {
    let mut notes = Vec::new();
    for Hanging { thread, at, ms } in &line.hanging {
        let (thread, at) = (Printable(thread), Printable(at));
        notes.push(format!("the {thread} hangs: {at}, for {}", seconds(*ms)));
    }
    for experiment in &line.experiments {
        notes.push(format!("experiment: {}", Printable(experiment)));
    }
    if let Some(why) = &line.why_not_ready {
        notes.push(format!("not ready: {}", Printable(why)));
    }
    if let Some(ms) = line.request_timeout_ms.filter(|ms| *ms > USUAL_TIMEOUT_MS) {
        notes.push(format!(
            "waits {ms} ms for a request before it suspects the leader: disks or links are slow"
        ));
    }
    for member in &line.members {
        if let Some(ms) = member.clock_offset_ms.filter(|ms| ms.unsigned_abs() > NOTABLE_MS) {
            let offset = offset_text(ms);
            notes.push(format!("the clock of replica {} is {offset} its own", member.id));
        }
    }
    if let Some(found) = &line.differing_states {
        let digest = |(id, digest): (&u8, &String)| {
            format!(" {id} {}", Printable(digest.get(..8).unwrap_or_default()))
        };
        let digests: String = found.digests.iter().map(digest).collect();
        let more = if found.certifiable { "" } else { ", and none can be certified" };
        notes.push(format!(
            "replicas signed different states after slot {}{more}, see its log:{digests}",
            found.slot
        ));
    }
    if line.repairs > 0 {
        notes.push(format!(
            "has replaced its state {} times since it started, for it was not the certified one: test its memory, and see its log",
            line.repairs
        ));
    }
    if line.checkpoint_damages > 0 {
        notes.push(format!(
            "parts of its stored checkpoints that it found damaged: {}; test its disk, and see its log",
            line.checkpoint_damages
        ));
    }
    notes.extend(line.error.clone());
    notes
}

/// Rows with their columns aligned to the left.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or_default();
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_as_promised() {
        let said = r#"{"id":0,"leader":true,"view":3,"decided":90,"executed":90,"logged":90,
            "checkpoint":{"slot":64,"digest":"ab"},"boundary":null,"state":"active","pid":123,
            "ready":true,"more":1}"#;
        let line = Line::new(0, Ok(serde_json::from_str(said).unwrap()));
        assert_eq!(
            serde_json::to_value(line).unwrap(),
            serde_json::json!({"id":0,"reachable":true,"leader":true,"view":3,"decided":90,
                "executed":90,"logged":90,"checkpoint":{"slot":64,"digest":"ab"},"boundary":null,
                "state":"active","ready":true,"pid":123})
        );
        let terms =
            "\"rules_version\":1,\"service_version\":2,\"state_bytes\":3,\"state_limit_bytes\":4";
        let line =
            Line::new(0, Ok(serde_json::from_str(&said.replace("\"more\":1", terms)).unwrap()));
        let shown = serde_json::to_value(line).unwrap();
        assert_eq!(
            (&shown["service_version"], &shown["state_limit_bytes"]),
            (&2.into(), &4.into())
        );
        let repaired = said.replace("\"more\":1", "\"repairs\":2");
        let line = Line::new(0, Ok(serde_json::from_str(&repaired).unwrap()));
        assert!(table(&[line]).contains("\nreplica 0: has replaced its state 2 times"));
        let rotten = said.replace("\"more\":1", "\"checkpoint_damages\":3");
        let line = Line::new(0, Ok(serde_json::from_str(&rotten).unwrap()));
        assert!(
            table(&[line])
                .contains("\nreplica 0: parts of its stored checkpoints that it found damaged: 3")
        );
        let said = said.replace("\"more\":1", "\"experiments\":[\"a slow log\"]");
        let line = Line::new(0, Ok(serde_json::from_str(&said).unwrap()));
        assert!(table(&[line]).ends_with("\nreplica 0: experiment: a slow log\n"));
        let hostile = said.replace("active", "\\u001b[2J");
        let line = Line::new(0, Ok(serde_json::from_str(&hostile).unwrap()));
        assert!(table(&[line]).contains("\\u{1b}[2J"));
        let line = serde_json::to_value(Line::new(1, Err(anyhow::anyhow!("gone")))).unwrap();
        assert_eq!((&line["reachable"], &line["id"]), (&false.into(), &1.into()));
    }
}
