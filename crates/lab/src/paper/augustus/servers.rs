//! What servers spent: processor time from `/proc`, and what they say of themselves.

use anyhow::{Context, Result};
use perdura_cli::bench::cpu_of;
use perdura_cli::process::own_cpu;
use perdura_cli::status;
use perdura_cluster::config::Cluster;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A server answers within this time.
const ANSWER: Duration = Duration::from_secs(10);

/// A thread's time, microseconds, stands in the counts under this and the thread's name.
const THREAD: &str = "thread ";

/// What of theirs is counted, by the names of metrics.
const COUNTED: [&str; 11] = [
    COMMANDS,
    BATCHES,
    "perdura_frames_total",
    "perdura_signatures_verified_total",
    "perdura_statements_verified_total",
    "perdura_claims_verified_total",
    "perdura_claims_remembered_total",
    "perdura_attestations_signed_total",
    "perdura_statements_signed_total",
    "perdura_replies_total",
    "perdura_sent_messages_total",
];

const COMMANDS: &str = "perdura_commands_total";

const BATCHES: &str = "perdura_batches_total";

/// Which servers: their processes and HTTP addresses.
#[derive(Clone, Debug)]
pub struct Servers {
    pids: Vec<u32>,
    addresses: Vec<String>,
}

/// What all had spent at some moment.
#[derive(Clone, Debug)]
pub struct Spent {
    at: Instant,
    servers: Option<Vec<Duration>>,
    clients: Duration,
    counts: BTreeMap<String, f64>,
}

impl Servers {
    /// Those of these groups.
    pub fn new(pids: Vec<u32>, groups: &[Cluster]) -> Servers {
        let members = groups.iter().flat_map(|group| &group.replicas);
        let addresses: BTreeSet<String> = members.map(|member| member.http.clone()).collect();
        Servers { pids, addresses: addresses.into_iter().collect() }
    }

    /// What they have spent by now, all of them together. Blocks.
    pub fn spent(&self) -> Result<Spent> {
        let mut counts = BTreeMap::new();
        for address in &self.addresses {
            let text = status::get(address, "/metrics", Instant::now() + ANSWER)
                .with_context(|| format!("no metrics of the server at {address}"))?;
            for (name, count) in text.lines().filter_map(counted) {
                *counts.entry(name).or_default() += count;
            }
        }
        for pid in &self.pids {
            add_threads(*pid, &mut counts);
        }
        let servers = self.pids.iter().map(|pid| cpu_of(&[*pid])).collect();
        Ok(Spent { at: Instant::now(), servers, clients: own_cpu(), counts })
    }
}

/// A line of metrics, if it is one of those that count.
fn counted(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.rsplit_once(' ')?;
    let bare = name.split('{').next()?;
    let value = value.parse().ok()?;
    COUNTED.contains(&bare).then(|| (bare.to_owned(), value))
}

/// Threads of partitions differ by a number at their end, which is left out.
fn add_threads(pid: u32, counts: &mut BTreeMap<String, f64>) {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for task in tasks.flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, schedule) = (read("comm"), read("schedstat"));
        let nanoseconds: f64 =
            schedule.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0.0);
        let name = name.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        *counts.entry(format!("{THREAD}{name}")).or_default() += nanoseconds / 1e3;
    }
}

/// What was spent for each of so many transactions between two moments.
pub fn between(before: &Spent, after: &Spent, committed: u64) -> BTreeMap<String, f64> {
    let per = |number: f64| number / committed.max(1) as f64;
    let mut figures = BTreeMap::new();
    if let (Some(before), Some(after)) = (&before.servers, &after.servers) {
        let spent = before.iter().zip(after);
        let times: Vec<f64> = spent
            .map(|(before, after)| after.saturating_sub(*before).as_secs_f64() * 1e6)
            .collect();
        figures.insert("server_cpu_us_per_txn".to_owned(), per(times.iter().sum()));
        let busiest = times.into_iter().fold(0.0, f64::max);
        figures.insert("busiest_server_cpu_us_per_txn".to_owned(), per(busiest));
    }
    let time = after.clients.saturating_sub(before.clients).as_secs_f64();
    figures.insert("client_cpu_us_per_txn".to_owned(), per(time * 1e6));
    let passed = |name: &str| {
        let of = |spent: &Spent| spent.counts.get(name).copied().unwrap_or(0.0);
        of(after) - of(before)
    };
    for name in after.counts.keys() {
        let figure = match name.strip_prefix(THREAD) {
            Some(thread) => format!("cpu_us_per_txn of {thread}"),
            None => {
                let name = name.trim_start_matches("perdura_").trim_end_matches("_total");
                format!("{name}_per_txn")
            }
        };
        figures.insert(figure, per(passed(name)));
    }
    let batches = passed(BATCHES);
    if batches > 0.0 {
        figures.insert("commands_per_slot".to_owned(), passed(COMMANDS) / batches);
    }
    figures.insert("seconds".to_owned(), (after.at - before.at).as_secs_f64());
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_metrics_count_with_labels_and_without() {
        let of_partition = "perdura_commands_total{partition=\"1\"} 70";
        assert_eq!(counted(of_partition), Some((COMMANDS.to_owned(), 70.0)));
        assert_eq!(counted("perdura_batches_total 7"), Some((BATCHES.to_owned(), 7.0)));
        let others = ["# TYPE perdura_batches_total counter", "perdura_view 3", ""];
        assert!(others.iter().all(|line| counted(line).is_none()));
    }

    #[test]
    fn what_is_spent_is_spread_over_transactions() {
        let at = Instant::now();
        let spent = |ms: u64, commands: f64| Spent {
            at: at + Duration::from_millis(ms),
            servers: Some(vec![Duration::from_millis(ms), Duration::from_millis(ms / 4)]),
            clients: Duration::ZERO,
            counts: [
                (COMMANDS.to_owned(), commands),
                (BATCHES.to_owned(), commands / 8.0),
                (format!("{THREAD}keeper"), ms as f64),
            ]
            .into(),
        };
        let figures = between(&spent(1000, 80.0), &spent(3000, 160.0), 10);
        let of = |name: &str| figures[name];
        assert_eq!(of("server_cpu_us_per_txn"), 250_000.0);
        assert_eq!(of("busiest_server_cpu_us_per_txn"), 200_000.0);
        assert_eq!((of("commands_per_txn"), of("commands_per_slot")), (8.0, 8.0));
        assert_eq!((of("cpu_us_per_txn of keeper"), of("seconds")), (200.0, 2.0));
    }
}
