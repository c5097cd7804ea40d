//! What an experiment found: a table for people, JSON for programs.

use super::measure::{Curve, Point};
use super::{Experiment, PaperOptions};
use perdura_cli::status::aligned;
use perdura_cluster::ServiceKind;
use perdura_cluster::config::cluster::service_text;
use perdura_protocol::Faults;
use serde_json::{Value, json};

/// Where the paper's figures are from.
const SOURCE: &str = "Bessani et al., On the Efficiency of Durable State Machine Replication, USENIX ATC 2013, \
                      table 1 and figure 9";

fn figure(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// A row for each setting and number of callers.
pub fn table(curves: &[Curve]) -> String {
    let head = ["SETTING", "DEVICE", "CALLERS", "OPS/S", "P50 MS", "P99 MS", "CPU US/OP", "ERRORS"];
    let mut rows = vec![head.map(str::to_owned)];
    let ms = |us: f64| (us / 10.0).round() / 100.0;
    for curve in curves {
        for point in &curve.points {
            let median = point.median();
            rows.push([
                curve.setting.name.to_owned(),
                curve.setting.device.unwrap_or("-").to_owned(),
                point.callers.to_string(),
                median.throughput_ops_s.to_string(),
                ms(median.p50_us).to_string(),
                ms(median.p99_us).to_string(),
                figure(median.server_cpu_us_per_op),
                median.errors.to_string(),
            ]);
        }
    }
    aligned(&rows)
}

/// Peaks and least latencies beside what the paper has.
pub fn summary(service: ServiceKind, curves: &[Curve]) -> String {
    let head = ["SETTING", "MIN LAT MS", "PEAK OPS/S", "PAPER: MIN LAT MS", "PAPER: PEAK OPS/S"];
    let mut rows = vec![head.map(str::to_owned)];
    for curve in curves {
        let (latency_ms, peak_ops_s) = curve.setting.in_paper(service);
        rows.push([
            curve.setting.name.to_owned(),
            figure(curve.least_p50_us().map(|us| (us / 10.0).round() / 100.0)),
            curve.peak_ops_s().to_string(),
            figure(latency_ms),
            figure(peak_ops_s),
        ]);
    }
    aligned(&rows)
}

fn of_point(point: &Point) -> Value {
    let median = point.median();
    json!({
        "callers": point.callers,
        "throughput_ops_s": median.throughput_ops_s,
        "p50_us": median.p50_us,
        "p99_us": median.p99_us,
        "server_cpu_us_per_op": median.server_cpu_us_per_op,
        "errors": median.errors,
        "rounds": point.rounds,
    })
}

fn of_curve(service: ServiceKind, curve: &Curve) -> Value {
    let setting = &curve.setting;
    let (least_latency_ms, peak_ops_s) = setting.in_paper(service);
    let paper = peak_ops_s
        .map(|peak_ops_s| json!({"least_latency_ms": least_latency_ms, "peak_ops_s": peak_ops_s}));
    json!({
        "name": setting.name,
        "durability": setting.durability.name(),
        "log_device": setting.device,
        "peak_ops_s": curve.peak_ops_s(),
        "least_p50_us": curve.least_p50_us(),
        "paper": paper,
        "points": curve.points.iter().map(of_point).collect::<Vec<Value>>(),
    })
}

/// All of it.
pub fn json(
    experiment: Experiment,
    faults: Faults,
    options: &PaperOptions,
    curves: &[Curve],
) -> Value {
    let service = options.service.kind();
    json!({
        "experiment": experiment.name(),
        "service": service_text(service),
        "source": SOURCE,
        "version": env!("CARGO_PKG_VERSION"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "faults": {"u": faults.u(), "r": faults.r()},
        "replicas": faults.n(),
        "value_size": options.value_size(),
        "keys": options.keys,
        "seconds": options.seconds,
        "warm_up_seconds": options.warm_up,
        "rounds": options.rounds,
        "timeout_ms": u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX),
        "settings": curves.iter().map(|curve| of_curve(service, curve)).collect::<Vec<Value>>(),
    })
}
