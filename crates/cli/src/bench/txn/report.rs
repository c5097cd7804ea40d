//! The result, for people and for programs.

use super::super::round;
use super::Arguments;
use super::worker::Said;
use crate::status::aligned;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use perdura_cluster::PartitionedCluster;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// What was measured.
pub struct TransactionReport {
    latency: Histogram<u64>,
    global: u64,
    errors: u64,
    error: Option<String>,
    elapsed_s: f64,
    conflicts: u64,
    own: Option<Duration>,
    /// CPU time of each server, if all run on this machine.
    servers: Option<Vec<Duration>>,
    /// It was to end before its time.
    pub stopped: bool,
}

impl TransactionReport {
    /// Of what all processes said.
    pub fn of(all: &[Said], servers: Option<Vec<Duration>>) -> Result<TransactionReport> {
        let mut latency = Histogram::new(3)?;
        for (micros, count) in all.iter().flat_map(|said| &said.latency) {
            latency.record_n(*micros, *count)?;
        }
        Ok(TransactionReport {
            latency,
            global: all.iter().map(|said| said.global).sum(),
            errors: all.iter().map(|said| said.errors).sum(),
            error: all.iter().find_map(|said| said.error.clone()),
            elapsed_s: all.iter().map(|said| said.elapsed_s).fold(0.0, f64::max),
            conflicts: all.iter().map(|said| said.conflicts).sum(),
            own: all
                .iter()
                .map(|said| said.cpu_s)
                .sum::<Option<f64>>()
                .map(Duration::from_secs_f64),
            servers: servers.filter(|all| !all.is_empty()),
            stopped: all.iter().any(|said| said.stopped),
        })
    }

    /// Transactions that committed.
    pub fn completed(&self) -> u64 {
        self.latency.len()
    }

    fn each(&self, sum: f64) -> Option<f64> {
        (self.completed() > 0).then(|| sum / self.completed() as f64)
    }

    fn micros_each(&self, time: Option<Duration>) -> Option<f64> {
        self.each(time?.as_secs_f64() * 1e6).map(round)
    }

    fn all_servers(&self) -> Option<f64> {
        self.micros_each(self.servers.as_ref().map(|all| all.iter().sum()))
    }

    fn busiest_server(&self) -> Option<f64> {
        self.micros_each(self.servers.as_ref().and_then(|all| all.iter().max().copied()))
    }

    fn throughput(&self) -> f64 {
        round(self.completed() as f64 / self.elapsed_s.max(f64::MIN_POSITIVE))
    }

    /// The table, or JSON, to where it is wanted.
    pub fn print(&self, arguments: &Arguments, cluster: &PartitionedCluster) -> Result<()> {
        if let Some(path) = &arguments.json {
            let text = format!("{:#}\n", self.json(arguments, cluster));
            if path == Path::new("-") {
                std::io::stdout().lock().write_all(text.as_bytes())?;
                return Ok(());
            }
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        std::io::stdout().lock().write_all(self.table(arguments, cluster).as_bytes())?;
        if let Some(error) = &self.error {
            tell!("perdura: {} transactions did not commit; the first: {error}", self.errors);
        }
        Ok(())
    }

    fn json(&self, arguments: &Arguments, cluster: &PartitionedCluster) -> Value {
        let faults = cluster.parameters.faults;
        json!({
            "throughput_txn_s": self.throughput(),
            "p50_us": self.latency.value_at_quantile(0.5),
            "p99_us": self.latency.value_at_quantile(0.99),
            "p999_us": self.latency.value_at_quantile(0.999),
            "max_us": self.latency.max(),
            "completed": self.completed(),
            "over_several": self.global,
            "errors": self.errors,
            "conflicts_per_txn": self.each(self.conflicts as f64),
            "servers_cpu_us_per_txn": self.all_servers(),
            "busiest_server_cpu_us_per_txn": self.busiest_server(),
            "callers_cpu_us_per_txn": self.micros_each(self.own),
            "partitions": cluster.map.partitions(),
            "servers": cluster.servers.len(),
            "participants": arguments.shape.participants,
            "global": arguments.shape.global,
            "reads": arguments.shape.reads,
            "writes": arguments.shape.writes,
            "value_size": arguments.shape.value_size,
            "keys": arguments.keys,
            "skew": arguments.skew,
            "clients": arguments.clients,
            "processes": arguments.processes,
            "seconds": arguments.seconds,
            "elapsed_seconds": self.elapsed_s,
            "faults": {"u": faults.u(), "r": faults.r()},
            "durability": cluster.parameters.durability.name(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn table(&self, arguments: &Arguments, cluster: &PartitionedCluster) -> String {
        let faults = cluster.parameters.faults;
        let cpu = |micros: Option<f64>| match micros {
            Some(micros) => format!("{micros} us"),
            None => "not known".to_owned(),
        };
        let micros = |quantile| format!("{} us", self.latency.value_at_quantile(quantile));
        let settings = format!(
            "{}% over {} of {} partitions, {} reads and {} writes of {} B, {} keys, skew {}, {} processes of {} callers; {} servers, u = {}, r = {}, {}",
            arguments.shape.global,
            arguments.shape.participants,
            cluster.map.partitions(),
            arguments.shape.reads,
            arguments.shape.writes,
            arguments.shape.value_size,
            arguments.keys,
            arguments.skew,
            arguments.processes,
            arguments.clients,
            cluster.servers.len(),
            faults.u(),
            faults.r(),
            cluster.parameters.durability.name(),
        );
        let conflicts = self.each(self.conflicts as f64).unwrap_or_default();
        let rows = [
            ["throughput".to_owned(), format!("{} txn/s", self.throughput())],
            ["committed".to_owned(), self.completed().to_string()],
            ["of these over several partitions".to_owned(), self.global.to_string()],
            ["errors".to_owned(), self.errors.to_string()],
            ["tries that met others, per txn".to_owned(), format!("{conflicts:.2}")],
            ["latency p50".to_owned(), micros(0.5)],
            ["latency p99".to_owned(), micros(0.99)],
            ["latency p99.9".to_owned(), micros(0.999)],
            ["latency max".to_owned(), format!("{} us", self.latency.max())],
            ["CPU per txn, all servers".to_owned(), cpu(self.all_servers())],
            ["CPU per txn, busiest server".to_owned(), cpu(self.busiest_server())],
            ["CPU per txn, callers".to_owned(), cpu(self.micros_each(self.own))],
        ];
        format!("{settings}\n{}", aligned(&rows))
    }
}
