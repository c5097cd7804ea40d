//! The result of a benchmark, for people and for programs.

use super::load::Measured;
use super::profile::{self, Row};
use super::{Load, Operation, round};
use crate::status::aligned;
use anyhow::{Context, Result};
use perdura_cluster::config::Cluster;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// What was measured.
pub struct BenchReport {
    /// By the callers.
    pub measured: Measured,
    /// CPU time of the replicas on this machine.
    pub server: Option<Duration>,
    /// CPU time of this process.
    pub own: Option<Duration>,
    /// What that went to, if it was asked for.
    pub profile: Option<Vec<Row>>,
    /// Replicas on this machine.
    pub local_replicas: usize,
}

impl BenchReport {
    fn per_operation(&self, time: Option<Duration>) -> Option<f64> {
        let completed = self.measured.completed();
        let time = time.filter(|_| completed > 0)?;
        Some(round(time.as_secs_f64() * 1e6 / completed as f64))
    }

    fn throughput(&self) -> f64 {
        round(self.measured.completed() as f64 / self.measured.elapsed.as_secs_f64())
    }

    /// The table, or JSON, to where it is wanted.
    pub fn print(&self, operation: Operation, arguments: &Load, cluster: &Cluster) -> Result<()> {
        let json = self.json(operation, arguments, cluster);
        if let Some(path) = &arguments.json {
            let text = format!("{json:#}\n");
            if path == Path::new("-") {
                std::io::stdout().lock().write_all(text.as_bytes())?;
                return Ok(());
            }
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut out = std::io::stdout().lock();
        out.write_all(self.table(operation, arguments, cluster).as_bytes())?;
        if let Some(rows) = &self.profile {
            writeln!(out)?;
            out.write_all(profile::table(rows).as_bytes())?;
        }
        if let Some(error) = &self.measured.error {
            tell!("perdura: {} operations failed; the first: {error}", self.measured.errors);
        }
        Ok(())
    }

    fn json(&self, operation: Operation, arguments: &Load, cluster: &Cluster) -> Value {
        let latency = &self.measured.latency;
        let faults = cluster.parameters.faults;
        json!({
            "throughput_ops_s": self.throughput(),
            "p50_us": latency.value_at_quantile(0.5),
            "p90_us": latency.value_at_quantile(0.9),
            "p99_us": latency.value_at_quantile(0.99),
            "p999_us": latency.value_at_quantile(0.999),
            "max_us": latency.max(),
            "mean_us": round(latency.mean()),
            "completed": self.measured.completed(),
            "errors": self.measured.errors,
            "server_cpu_us_per_op": self.per_operation(self.server),
            "client_cpu_us_per_op": self.per_operation(self.own),
            "operation": operation.name(),
            "value_size": arguments.value_size,
            "keys": arguments.keys,
            "clients": arguments.clients,
            "connections": arguments.connections,
            "seconds": arguments.seconds,
            "rate": arguments.rate,
            "reads": arguments.reads,
            "fast": arguments.fast,
            "timeout_ms": u64::try_from(arguments.timeout.as_millis()).unwrap_or(u64::MAX),
            "elapsed_seconds": self.measured.elapsed.as_secs_f64(),
            "faults": {"u": faults.u(), "r": faults.r()},
            "durability": cluster.parameters.durability.name(),
            "local_replicas": self.local_replicas,
            "profile": self.profile,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn table(&self, operation: Operation, arguments: &Load, cluster: &Cluster) -> String {
        let latency = &self.measured.latency;
        let faults = cluster.parameters.faults;
        let loop_kind = match arguments.rate {
            Some(rate) => format!("open loop, {rate} ops/s"),
            None => "closed loop".to_owned(),
        };
        let cpu = |time| match self.per_operation(time) {
            Some(micros) => format!("{micros} us"),
            None => "not known".to_owned(),
        };
        let micros = |quantile| format!("{} us", latency.value_at_quantile(quantile));
        let settings = format!(
            "{}, {} B values, {} keys, {} clients over {} sessions, {loop_kind}; u = {}, r = {}, {}",
            operation.name(),
            arguments.value_size,
            arguments.keys,
            arguments.clients,
            arguments.connections,
            faults.u(),
            faults.r(),
            cluster.parameters.durability.name(),
        );
        let rows = [
            ["throughput".to_owned(), format!("{} ops/s", self.throughput())],
            ["completed".to_owned(), self.measured.completed().to_string()],
            ["errors".to_owned(), self.measured.errors.to_string()],
            ["latency p50".to_owned(), micros(0.5)],
            ["latency p99".to_owned(), micros(0.99)],
            ["latency p99.9".to_owned(), micros(0.999)],
            ["latency max".to_owned(), format!("{} us", latency.max())],
            [format!("CPU per op, {} local replicas", self.local_replicas), cpu(self.server)],
            ["CPU per op, this process".to_owned(), cpu(self.own)],
        ];
        format!("{settings}\n{}", aligned(&rows))
    }
}
