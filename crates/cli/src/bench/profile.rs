//! What the processor time of replicas goes to: by stage within the event loop, which the replicas measure
//! themselves, and by thread, which the system does.

use crate::status::{self, Spent, aligned};
use anyhow::{Context, Result, bail};
use perdura_cluster::config::Cluster;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Replicas say ten times a second what they measured.
const REPORTED: Duration = Duration::from_millis(150);

/// Threads, in the order of the table, with what they do; others are added up.
const THREADS: [(&str, &str); 5] = [
    ("keeper", "write and flush the log"),
    ("checkpointer", "write checkpoints"),
    ("digester", "digest states"),
    ("transfer", "serve replicas that were away"),
    ("reaper", "free states that are not held any more"),
];

/// Stages, in the order in which a command passes them, with what they are.
const STAGES: [(&str, &str); 8] = [
    ("receive", "read from connections, decrypt"),
    ("decode", "messages from bytes"),
    ("verify", "signatures of clients"),
    ("order", "agreement, signatures of replicas"),
    ("log", "hand records to the keeper"),
    ("execute", "run commands"),
    ("reply", "replies as bytes"),
    ("send", "encrypt, write to connections"),
];

/// What was used until a moment.
pub struct Sample {
    // By replica's process.
    replicas: BTreeMap<u32, Used>,
}

#[derive(Default)]
struct Used {
    stages: BTreeMap<String, Spent>,
    // Nanoseconds of the process's first thread, which is the event loop's.
    event_loop: u64,
    // And of others, by name.
    threads: BTreeMap<String, u64>,
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Which stage or thread.
    pub name: String,
    /// What that is.
    pub what: String,
    /// Processor time of all replicas for an operation, microseconds.
    pub us_per_op: f64,
    /// Of the whole, percent.
    pub percent: f64,
    /// How often an operation enters it, at all replicas together; none of threads.
    pub entries_per_op: Option<f64>,
}

/// Fails if a replica answers that does not measure, before anything else is begun.
pub fn expect_measuring(cluster: &Cluster) -> Result<()> {
    status::ask_all(cluster).iter().flatten().try_for_each(expect_stages)
}

fn expect_stages(report: &status::StatusReport) -> Result<()> {
    if report.stages.is_empty() {
        bail!(
            "replica {} does not measure what its time goes to: start all of them with `perdura replica \
             --profile`, or the cluster with `perdura dev --profile`",
            report.id
        );
    }
    Ok(())
}

/// What the replicas with these processes, which are on this machine, used until now.
pub fn sample(cluster: &Cluster, pids: &[u32]) -> Result<Sample> {
    std::thread::sleep(REPORTED);
    let mut replicas = BTreeMap::new();
    for report in status::ask_all(cluster).into_iter().flatten() {
        if !pids.contains(&report.pid) {
            continue;
        }
        expect_stages(&report)?;
        let used = Used { stages: report.stages, ..threads_of(report.pid)? };
        replicas.insert(report.pid, used);
    }
    if pids.is_empty() {
        bail!("--profile: no replica has an HTTP address on the loopback of this machine");
    }
    if replicas.len() < pids.len() {
        bail!("--profile: a replica has ended, or does not answer on its HTTP address");
    }
    Ok(Sample { replicas })
}

/// What its threads used.
fn threads_of(pid: u32) -> Result<Used> {
    let directory = format!("/proc/{pid}/task");
    let mut used = Used::default();
    for entry in
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))?
    {
        let path = entry?.path();
        let first = path.file_name().is_some_and(|name| *name == *pid.to_string());
        // A thread may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
        let schedule = match std::fs::read_to_string(path.join("schedstat")) {
            Err(_) if !path.exists() => continue,
            schedule => {
                schedule.with_context(|| format!("cannot read {}/schedstat", path.display()))?
            }
        };
        let nanoseconds = schedule.split_whitespace().next().and_then(|field| field.parse().ok());
        let nanoseconds: u64 =
            nanoseconds.with_context(|| format!("cannot read {}", path.display()))?;
        let thread = if first {
            &mut used.event_loop
        } else {
            used.threads.entry(name.trim().to_owned()).or_default()
        };
        *thread += nanoseconds;
    }
    Ok(used)
}

/// What was used from one moment to another, by stages and threads, the whole last; of replicas that
/// ran at both. An error if one began anew, and its stages with it.
pub fn rows(before: &Sample, after: &Sample, completed: u64) -> Result<Vec<Row>> {
    let mut event_loop = 0;
    let mut stages: BTreeMap<&str, Spent> = BTreeMap::new();
    let mut threads: BTreeMap<&str, u64> = BTreeMap::new();
    for (pid, now) in &after.replicas {
        let Some(then) = before.replicas.get(pid) else { continue };
        event_loop += now.event_loop.saturating_sub(then.event_loop);
        for (name, spent) in &now.stages {
            let before = then.stages.get(name).copied().unwrap_or_default();
            let nanoseconds = spent.nanoseconds.checked_sub(before.nanoseconds);
            let sum = stages.entry(name).or_default();
            sum.nanoseconds += nanoseconds.context("a replica repaired itself meanwhile")?;
            sum.entries += spent.entries.saturating_sub(before.entries);
        }
        for (name, nanoseconds) in &now.threads {
            let before = then.threads.get(name).copied().unwrap_or_default();
            *threads.entry(name).or_default() += nanoseconds.saturating_sub(before);
        }
    }
    let staged: u64 = stages.values().map(|spent| spent.nanoseconds).sum();
    let whole = event_loop + threads.values().sum::<u64>();
    let per_op = |count: u64| count as f64 / completed.max(1) as f64;
    let row = |name: &str, what: &str, nanoseconds: u64, entries: Option<u64>| Row {
        name: name.to_owned(),
        what: what.to_owned(),
        us_per_op: hundredths(per_op(nanoseconds) / 1e3),
        percent: hundredths(100.0 * nanoseconds as f64 / whole.max(1) as f64),
        entries_per_op: entries.map(|entries| hundredths(per_op(entries))),
    };
    let mut rows = Vec::new();
    for (name, what) in STAGES {
        let Some(spent) = stages.get(name) else { continue };
        rows.push(row(name, what, spent.nanoseconds, Some(spent.entries)));
    }
    let rest = event_loop.saturating_sub(staged);
    rows.push(row("event loop, rest", "in no stage", rest, None));
    for (name, what) in THREADS {
        if let Some(nanoseconds) = threads.remove(name) {
            rows.push(row(name, what, nanoseconds, None));
        }
    }
    rows.push(row("other threads", "", threads.values().sum(), None));
    rows.push(row("all", "", whole, None));
    Ok(rows)
}

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// The rows, for people.
pub fn table(rows: &[Row]) -> String {
    let titles = ["STAGE", "US/OP", "SHARE %", "TIMES/OP", "WHAT"].map(str::to_owned);
    let mut lines = vec![titles];
    lines.extend(rows.iter().map(|row| {
        let times = row.entries_per_op.map_or_else(|| "-".to_owned(), |times| times.to_string());
        let (us, percent) = (row.us_per_op.to_string(), row.percent.to_string());
        [row.name.clone(), us, percent, times, row.what.clone()]
    }));
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(verify: (u64, u64), keeper: u64) -> Used {
        let (nanoseconds, entries) = verify;
        Used {
            event_loop: 2 * nanoseconds,
            stages: BTreeMap::from([("verify".to_owned(), Spent { nanoseconds, entries })]),
            threads: BTreeMap::from([("keeper".to_owned(), keeper), ("http".to_owned(), 0)]),
        }
    }

    #[test]
    fn what_passed_between_two_moments_is_added_up() {
        let before =
            Sample { replicas: BTreeMap::from([(7, used((1000, 5), 2000)), (8, used((0, 0), 0))]) };
        let after = Sample {
            replicas: BTreeMap::from([
                (7, used((4000, 15), 3000)),
                (8, used((3000, 10), 1000)),
                // It was not there before.
                (9, used((9000, 99), 9000)),
            ]),
        };
        let measured = rows(&before, &after, 2).unwrap();
        let of = |name: &str| measured.iter().find(|row| row.name == name).unwrap();
        assert_eq!((of("verify").us_per_op, of("verify").entries_per_op), (3.0, Some(10.0)));
        assert_eq!((of("keeper").us_per_op, of("keeper").percent), (1.0, 14.29));
        assert_eq!((of("all").us_per_op, of("all").percent), (7.0, 100.0));
        assert_eq!(of("verify").percent, 42.86);
        assert_eq!(of("event loop, rest").us_per_op, 3.0);
        let text = table(&measured);
        let lines = text.lines().count();
        assert!(lines == measured.len() + 1 && text.contains("signatures of clients"));
        // Its stages fell: the replica began anew.
        assert!(rows(&after, &before, 2).is_err());
    }

    /// The threads of this process have used something by now.
    #[test]
    fn threads_are_found_by_their_names() {
        let turn = || (0..20_000_000_u64).fold(0, |sum, number| std::hint::black_box(sum ^ number));
        let (told, heard) = std::sync::mpsc::channel::<()>();
        let (turned, has_turned) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(move || {
            turned.send(turn()).unwrap();
            heard.recv().unwrap();
        });
        has_turned.recv().unwrap();
        let used = threads_of(std::process::id()).unwrap();
        told.send(()).unwrap();
        thread.unwrap().join().unwrap();
        assert!(used.threads["keeper"] > 0, "{:?}", used.threads);
        assert!(!used.threads.contains_key("main"));
    }
}
