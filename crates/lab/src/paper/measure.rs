//! Measurements of several settings, in rounds.
//!
//! Every round measures each setting once, on a cluster that is new, so that whatever else the machine
//! does meets all of them; what is reported is the median over the rounds.

use super::{PaperOptions, Setting};
use anyhow::{Context, Result, anyhow};
use perdura_cli::bench::live::{Guard, Live, Made};
use perdura_cli::bench::load::{self, Demand};
use perdura_cli::bench::workload::Workload;
use perdura_cli::bench::{cpu_of, round};
use perdura_cli::connect::{administrator, connect, runtime};
use perdura_cli::tell;
use perdura_client::Client;
use perdura_cluster::ServiceKind;
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::{Cluster, KeyFile, files};
use perdura_protocol::{AdminCommand, Faults};
use serde::Serialize;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// A cluster has to take its keys within this time for each of its commands.
pub const LOADING: Duration = Duration::from_secs(60);

/// Callers that share a client session. One has four frames of 256 KiB in flight: with 4 kB writes
/// those of some 250 callers, and whatever more it had would wait in the client.
pub const SESSION_CALLERS: u32 = 256;

/// Sessions that share a client key. A replica keeps 16 MiB of waiting frames for one, and more would be sent
/// again and again.
const KEY_SESSIONS: u32 = 12;

/// What came out of one run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Writes a second that ended ok.
    pub throughput_ops_s: f64,
    /// Median of their latency, microseconds.
    pub p50_us: f64,
    /// 99 of 100 took no longer, microseconds.
    pub p99_us: f64,
    /// User and system time of all replicas for each of them, microseconds; none if it is not known.
    pub server_cpu_us_per_op: Option<f64>,
    /// Writes that did not end ok.
    pub errors: u64,
}

/// A number of callers, each with one write in flight.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// How many.
    pub callers: u32,
    /// What came out in each round; never empty once measured.
    pub rounds: Vec<Sample>,
}

/// What came out for a setting.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Which.
    pub setting: Setting,
    /// By callers, ascending.
    pub points: Vec<Point>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) =
        (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

impl Point {
    /// The median of each figure over the rounds; errors are added up.
    pub fn median(&self) -> Sample {
        let of = |figure: fn(&Sample) -> f64| {
            round(median(self.rounds.iter().map(figure).collect()).unwrap_or_default())
        };
        let cpu = self.rounds.iter().filter_map(|sample| sample.server_cpu_us_per_op).collect();
        Sample {
            throughput_ops_s: of(|sample| sample.throughput_ops_s),
            p50_us: of(|sample| sample.p50_us),
            p99_us: of(|sample| sample.p99_us),
            server_cpu_us_per_op: median(cpu).map(round),
            errors: self.rounds.iter().map(|sample| sample.errors).sum(),
        }
    }
}

impl Curve {
    /// Most writes in a second, with however many callers that is.
    pub fn peak_ops_s(&self) -> f64 {
        let points = self.points.iter().map(|point| point.median().throughput_ops_s);
        points.fold(0.0, f64::max)
    }

    /// The least median latency, microseconds; none if nothing was written.
    pub fn least_p50_us(&self) -> Option<f64> {
        let points = self.points.iter().map(Point::median).filter(|point| point.p50_us > 0.0);
        points.map(|point| point.p50_us).min_by(f64::total_cmp)
    }
}

/// Measures all of `settings` with all of `callers`; tells of each run on standard error.
pub fn measure(
    live: &Live,
    faults: Faults,
    settings: &[Setting],
    callers: &[u32],
    options: &PaperOptions,
) -> Result<Vec<Curve>> {
    let callers: BTreeSet<u32> = callers.iter().copied().collect();
    let point = |callers: &u32| Point { callers: *callers, rounds: Vec::new() };
    let mut curves: Vec<Curve> = settings
        .iter()
        .map(|setting| Curve { setting: *setting, points: callers.iter().map(point).collect() })
        .collect();
    let (count, rounds) = (curves.len(), options.rounds);
    for number in 1..=rounds {
        for (index, curve) in curves.iter_mut().enumerate() {
            let name = curve.setting.name;
            tell!("round {number} of {rounds}, setting {} of {count}: {name}", index + 1);
            let made = Made {
                durability: curve.setting.durability,
                device: curve.setting.log_device().map_err(|error| anyhow!(error))?,
                service: options.service.kind(),
                ..Made::default()
            };
            let (guard, cluster, key) = live.start(&options.work, faults, made)?;
            let run = run(&guard, &cluster, &key, curve, options);
            let done = runtime()?.block_on(tokio::task::LocalSet::new().run_until(run));
            // If a replica has ended, that is why.
            guard.check()?;
            done.with_context(|| format!("measuring {name}"))?;
        }
    }
    Ok(curves)
}

/// So many sessions, with keys of their own as far as one is not enough.
async fn connect_all(cluster: &Cluster, key: &KeyFile, sessions: u32) -> Result<Vec<Client>> {
    let mut keys = vec![key.key.clone()];
    let more = sessions.div_ceil(KEY_SESSIONS).saturating_sub(1);
    if more > 0 {
        let administrator = administrator(&files::directory_of(&cluster.path), cluster)?;
        let client = connect(cluster, &administrator)?;
        let options = perdura_client::Options { timeout: LOADING, reply_quorum: None };
        for number in 1..=more {
            let key = fresh_key()?;
            let name = format!("bench-{number}");
            client
                .administer(AdminCommand::AddClient { name, key: key.public() }, &options)
                .await?;
            keys.push(key);
        }
        client.close().await;
    }
    let keys = keys.into_iter().cycle().take(sessions as usize);
    let connected = keys.map(|key| Client::connect(cluster.client_config(), key));
    connected
        .collect::<Result<Vec<Client>, _>>()
        .with_context(|| format!("cannot make clients of {}", cluster.path.display()))
}

async fn run(
    guard: &Guard,
    cluster: &Cluster,
    key: &KeyFile,
    curve: &mut Curve,
    options: &PaperOptions,
) -> Result<()> {
    let most = curve.points.iter().map(|point| point.callers).max().unwrap_or(1);
    let sessions = most.div_ceil(SESSION_CALLERS).max(1);
    let clients = connect_all(cluster, key, sessions).await?;
    let bytes = options.value_size() as usize;
    let workload = Rc::new(match options.service.kind() {
        ServiceKind::KeyValue => Workload::new(options.keys, bytes, 0)?,
        ServiceKind::TupleSpaces => Workload::tuples(bytes)?,
    });
    load::preload(&clients, &workload, LOADING).await?;
    let demand = |callers, seconds| Demand {
        callers,
        seconds,
        rate: None,
        fast: false,
        timeout: options.timeout,
        trace: false,
        stop: load::never(),
    };
    if let Some(seconds) = options.warm_up {
        load::measure(&clients, &workload, &demand(most, seconds)).await?;
    }
    let pids = guard.pids();
    for point in &mut curve.points {
        let sessions = point.callers.div_ceil(SESSION_CALLERS) as usize;
        let demand = demand(point.callers, options.seconds);
        let before = cpu_of(&pids);
        let measured = load::measure(&clients[..sessions], &workload, &demand).await?;
        let cpu = cpu_of(&pids).zip(before).map(|(after, before)| after.saturating_sub(before));
        let completed = measured.completed();
        let per_op = |time: Duration| round(time.as_secs_f64() * 1e6 / completed as f64);
        let sample = Sample {
            throughput_ops_s: round(completed as f64 / measured.elapsed.as_secs_f64()),
            p50_us: measured.latency.value_at_quantile(0.5) as f64,
            p99_us: measured.latency.value_at_quantile(0.99) as f64,
            server_cpu_us_per_op: cpu.filter(|_| completed > 0).map(per_op),
            errors: measured.errors,
        };
        tell!(
            "  {} callers: {} ops/s, p50 {} us, p99 {} us",
            point.callers,
            sample.throughput_ops_s,
            sample.p50_us,
            sample.p99_us
        );
        if let Some(error) = measured.error {
            tell!("  {} writes failed; the first: {error}", measured.errors);
        }
        point.rounds.push(sample);
    }
    for client in &clients {
        client.close().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(throughput_ops_s: f64, cpu: Option<f64>) -> Sample {
        let p50_us = 1e6 / throughput_ops_s;
        let p99_us = 2.0 * p50_us;
        Sample { throughput_ops_s, p50_us, p99_us, server_cpu_us_per_op: cpu, errors: 1 }
    }

    #[test]
    fn medians_are_those_of_each_figure() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
        let rounds = vec![sample(100.0, None), sample(1000.0, Some(7.0)), sample(500.0, None)];
        let point = Point { callers: 1, rounds };
        let of_all = point.median();
        assert_eq!((of_all.throughput_ops_s, of_all.p50_us, of_all.errors), (500.0, 2000.0, 3));
        assert_eq!(of_all.server_cpu_us_per_op, Some(7.0), "of the rounds that know it");
        let more = Point { callers: 2, rounds: vec![sample(800.0, None)] };
        let setting = Setting::parse("sync").unwrap();
        let curve = Curve { setting, points: vec![point, more] };
        assert_eq!((curve.peak_ops_s(), curve.least_p50_us()), (800.0, Some(1250.0)));
    }
}
