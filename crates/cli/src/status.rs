//! `perdura status`: asks each replica's HTTP endpoint, all at once, and waits for none longer than
//! `PATIENCE`.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use perdura::config::{CLUSTER_FILE, Cluster};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The answer is there after this time, whoever has answered by then.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Largest answer that is read.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// Shows how each replica stands: role, view, how far it has decided, executed and logged, its last
/// checkpoint.
///
/// Exit code 0 even if no replica can be reached.
#[derive(Args)]
pub struct Arguments {
    /// The directory of the cluster's files
    #[arg(long, value_name = "DIR")]
    cluster: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    /// active, recovering, spare, repairing, diverged, or stalled: its event loop stands still.
    pub state: String,
    /// What makes it slower on purpose.
    #[serde(default)]
    pub experiments: Vec<String>,
    /// How often it replaced its state since it started, because it was not the certified one.
    #[serde(default)]
    pub repairs: u64,
    /// Parts of its stored checkpoints that it found damaged since it started, or began anew.
    #[serde(default)]
    pub checkpoint_damages: u64,
    /// Its process.
    pub pid: u32,
    /// What its event loop's time went to, by stage, if it measures that.
    #[serde(default)]
    pub stages: BTreeMap<String, Spent>,
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

/// A line of the answer: a report, or none. Fields of an unreachable replica are null.
#[derive(Serialize)]
struct Line {
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
    pid: Option<u32>,
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
            pid: report.map(|report| report.pid),
            experiments: report.map(|report| report.experiments.clone()).unwrap_or_default(),
            repairs: report.map_or(0, |report| report.repairs),
            checkpoint_damages: report.map_or(0, |report| report.checkpoint_damages),
            error,
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let cluster = Cluster::load(&arguments.cluster.join(CLUSTER_FILE))?;
    let lines: Vec<Line> = (0..).zip(ask_all(&cluster)).map(|(id, r)| Line::new(id, r)).collect();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &Answer { replicas: &lines })?;
        writeln!(out)?;
    } else {
        out.write_all(table(&lines).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What each replica says, by id.
pub fn ask_all(cluster: &Cluster) -> Vec<Result<Report>> {
    let deadline = Instant::now() + PATIENCE;
    let (sender, answers) = mpsc::channel();
    for (id, entry) in cluster.replicas.iter().enumerate() {
        let (sender, address) = (sender.clone(), entry.http.clone());
        // Resolving a name may take longer than there is time; such a thread is left behind.
        std::thread::spawn(move || {
            let report = ask(id, &address, deadline).with_context(|| format!("http://{address}"));
            let _ = sender.send((id, report));
        });
    }
    drop(sender);
    let mut reports: Vec<Result<Report>> =
        cluster.replicas.iter().map(|_| Err(anyhow::anyhow!("no answer in time"))).collect();
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
        "replica {} answers there; check http in cluster.toml",
        report.id
    );
    Ok(report)
}

/// The body of an HTTP answer with status 200.
fn get(address: &str, path: &str, deadline: Instant) -> Result<String> {
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
        let length = stream.read(&mut chunk)?;
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
        _ => bail!("it says {}", body.lines().next().unwrap_or(head)),
    }
}

fn table(lines: &[Line]) -> String {
    let mut rows = vec![
        ["ID", "ROLE", "STATE", "VIEW", "DECIDED", "EXECUTED", "LOGGED", "CHECKPOINT", "PID"]
            .map(str::to_owned),
    ];
    for line in lines {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |n| n.to_string());
        let role = match (line.reachable, line.leader) {
            (false, _) => "-",
            (true, true) => "leader",
            (true, false) => "follower",
        };
        let checkpoint = line.checkpoint.as_ref().map_or("-".to_owned(), |point| {
            format!("{} {}", point.slot, point.digest.get(..8).unwrap_or_default())
        });
        rows.push([
            line.id.to_string(),
            role.to_owned(),
            line.state.clone().unwrap_or_else(|| "unreachable".to_owned()),
            number(line.view),
            number(line.decided),
            number(line.executed),
            number(line.logged),
            checkpoint,
            number(line.pid.map(u64::from)),
        ]);
    }
    let mut text = aligned(&rows);
    for line in lines {
        for experiment in &line.experiments {
            text.push_str(&format!("replica {}: experiment: {experiment}\n", line.id));
        }
        if line.repairs > 0 {
            text.push_str(&format!(
                "replica {}: has replaced its state {} times since it started, for it was not the \
                 certified one: test its memory, and see its log\n",
                line.id, line.repairs
            ));
        }
        if line.checkpoint_damages > 0 {
            text.push_str(&format!(
                "replica {}: parts of its stored checkpoints that it found damaged: {}; test its disk, \
                 and see its log\n",
                line.id, line.checkpoint_damages
            ));
        }
        if let Some(error) = &line.error {
            text.push_str(&format!("replica {}: {error}\n", line.id));
        }
    }
    text
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
            "more":1}"#;
        let line = Line::new(0, Ok(serde_json::from_str(said).unwrap()));
        assert_eq!(
            serde_json::to_value(line).unwrap(),
            serde_json::json!({"id":0,"reachable":true,"leader":true,"view":3,"decided":90,
                "executed":90,"logged":90,"checkpoint":{"slot":64,"digest":"ab"},"boundary":null,
                "state":"active","pid":123})
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
        let line = serde_json::to_value(Line::new(1, Err(anyhow::anyhow!("gone")))).unwrap();
        assert_eq!((&line["reachable"], &line["id"]), (&false.into(), &1.into()));
    }
}
