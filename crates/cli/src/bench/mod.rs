//! `perdura bench`: throughput, latency and CPU per operation, as a user would see them.
//!
//! Callers are tasks on one thread, each with one operation in flight, multiplexed over a few
//! client sessions. Only operations that end `ok` count. In an open loop an operation is due at a
//! time that does not depend on earlier ones, and its latency counts from then, so that a stall
//! shows in the latency of all that it held up.

mod failover;
mod floor;
pub mod live;
pub mod load;
mod profile;
mod report;
mod txn;
pub mod workload;

use crate::connect::{ClusterArguments, connect, parse_duration, runtime};
use crate::process::{self, cpu_time};
use crate::{Usage, status};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use load::Demand;
use perdura_client::Client;
use perdura_cluster::ServiceKind;
use report::BenchReport;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use workload::Workload;

/// Exit code of a benchmark that was ended by Ctrl-C or SIGTERM: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

const AFTER_HELP: &str = "\
Writes --keys keys first, through the same sessions, and does not measure that. Keys are 16 bytes, \
chosen uniformly; values are random bytes, which do not compress. They are removed at the end.

Without --rate, each client sends its next operation when the last is answered. With --rate, \
operations are due at fixed times and latency counts from those, to 1 ms; it includes waiting for a \
free client, so give enough of them.

CPU is user and system time of the replica processes that run on this machine (of the bench process \
for client_cpu), over the operations that ended ok.

Ctrl-C prints what was measured until then.";

/// Measure throughput, latency and CPU per operation
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write
    #[command(after_help = AFTER_HELP)]
    Put(Load),
    /// Read
    #[command(after_help = AFTER_HELP)]
    Get(Load),
    /// Write and read, see --reads
    #[command(after_help = AFTER_HELP)]
    Mixed(Load),
    /// Transactions over the partitions of a store
    #[command(after_help = txn::AFTER_HELP)]
    Txn(txn::Arguments),
    /// Kill the leader of a cluster of its own, again and again: how long clients wait
    #[command(after_help = failover::AFTER_HELP)]
    Failover(failover::FailoverOptions),
    /// What a write costs a cluster of its own, beside the sum of what it is made of on this machine
    #[command(after_help = floor::AFTER_HELP)]
    Floor(floor::FloorOptions),
}

/// What is asked of a cluster that runs.
#[derive(Args)]
struct Load {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Bytes of a value, up to 1 MiB
    #[arg(long, value_name = "B", default_value_t = 512, value_parser = parse_value_size)]
    value_size: u32,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// Callers, each with one operation in flight
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Client sessions that they share
    #[arg(long, value_name = "C", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Operations a second, in an open loop; what is not sent a time-out after the end counts as an error
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    rate: Option<f64>,
    /// With `mixed`: how many of 100 operations read
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: u8,
    /// Read without ordering, where enough replicas answer alike
    #[arg(long)]
    fast: bool,
    /// An operation that takes longer counts as an error
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Print what the processor time of replicas on this machine goes to; they have to be started with --profile too
    #[arg(long)]
    profile: bool,
    /// Leave the keys in the store
    #[arg(long)]
    keep: bool,
    /// Write the result to a file; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
    Mixed,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Get => "get",
            Operation::Mixed => "mixed",
        }
    }
}

/// Bytes of a value on the command line, up to 1 MiB.
pub fn parse_value_size(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(bytes) if bytes <= 1_048_576 => Ok(bytes),
        _ => Err("give a number of bytes from 0 to 1048576".to_owned()),
    }
}

/// Seconds on the command line, up to a day.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number from 0.1 to 86400".to_owned()),
    }
}

/// Operations in a second on the command line.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.01..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("give a number from 0.01 to 10000000".to_owned()),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Put(load) => run_load(Operation::Put, load),
        Command::Get(load) => run_load(Operation::Get, load),
        Command::Mixed(load) => run_load(Operation::Mixed, load),
        Command::Txn(arguments) => txn::run(arguments),
        Command::Failover(options) => failover::run(options),
        Command::Floor(options) => floor::run(options),
    }
}

fn run_load(operation: Operation, arguments: &Load) -> Result<ExitCode> {
    if arguments.connections > arguments.clients {
        let (connections, clients) = (arguments.connections, arguments.clients);
        bail!(Usage(format!("{clients} clients cannot use {connections} connections")));
    }
    let cluster = arguments.cluster.load_of(ServiceKind::KeyValue)?;
    let key = arguments.cluster.key(&cluster)?;
    if arguments.profile {
        profile::expect_measuring(&cluster)?;
    }
    let workload = Rc::new(Workload::new(
        arguments.keys,
        arguments.value_size as usize,
        match operation {
            Operation::Put => 0,
            Operation::Get => 100,
            Operation::Mixed => arguments.reads,
        },
    )?);
    let report = runtime()?.block_on(tokio::task::LocalSet::new().run_until(async {
        let connections = (0..arguments.connections).map(|_| connect(&cluster, &key));
        let clients: Vec<Client> = connections.collect::<Result<_, _>>()?;
        load::preload(&clients, &workload, arguments.timeout).await?;
        let (told, stop) = tokio::sync::watch::channel(false);
        process::on_stop(move |_| {
            told.send_replace(true);
            // Whoever looks later is told as well.
            std::mem::forget(told);
        })?;
        // Replicas that were starting answer by now.
        let pids = local_replicas(&cluster);
        let sample = || profile::sample(&cluster, &pids);
        let profile_before = arguments.profile.then(sample).transpose()?;
        let (server, own) = (cpu_of(&pids), cpu_time(std::process::id()));
        let demand = Demand {
            callers: arguments.clients,
            seconds: arguments.seconds,
            rate: arguments.rate,
            fast: arguments.fast,
            timeout: arguments.timeout,
            trace: false,
            stop,
        };
        let measured = load::measure(&clients, &workload, &demand).await?;
        let server = cpu_of(&pids).zip(server).map(|(after, before)| after.saturating_sub(before));
        let own = cpu_time(std::process::id()).zip(own).map(|(after, before)| after - before);
        // What was measured is told whatever becomes of this.
        let rows = |before: profile::Sample| {
            let after = profile::sample(&cluster, &pids)?;
            profile::rows(&before, &after, measured.completed())
        };
        let profile = profile_before.map(rows).transpose().unwrap_or_else(|error| {
            tell!("perdura: no profile: {error:#}");
            None
        });
        if !arguments.keep
            && let Err(error) = load::clean(&clients, &workload, arguments.timeout).await
        {
            let keys = arguments.keys;
            tell!("perdura: of the {keys} keys that were written some are left: {error:#}");
        }
        for client in &clients {
            client.close().await;
        }
        anyhow::Ok(BenchReport { measured, server, own, profile, local_replicas: pids.len() })
    }))?;
    report.print(operation, arguments, &cluster)?;
    if report.measured.stopped {
        let seconds = round(report.measured.elapsed.as_secs_f64());
        tell!("perdura: interrupted after {seconds} of {} s", arguments.seconds);
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let any = report.measured.completed() > 0;
    Ok(if any { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The processes of those replicas that run on this machine.
fn local_replicas(cluster: &perdura_cluster::config::Cluster) -> Vec<u32> {
    let reports = status::ask_all(cluster).into_iter().zip(&cluster.replicas);
    let local = reports.filter_map(|(report, entry)| {
        let host = entry.http.rsplit_once(':')?.0;
        let loopback = ["127.0.0.1", "localhost", "[::1]"].contains(&host);
        report.ok().filter(|report| loopback && cpu_time(report.pid).is_some())
    });
    local.map(|report| report.pid).collect()
}

/// To a tenth.
#[must_use]
pub fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// CPU time of all of them; none if there are none, or one has ended.
#[must_use]
pub fn cpu_of(pids: &[u32]) -> Option<Duration> {
    (!pids.is_empty()).then(|| pids.iter().map(|pid| cpu_time(*pid)).sum()).flatten()
}
