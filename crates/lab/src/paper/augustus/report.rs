//! What came out: tables for people, JSON for programs.

use super::run::medians;
use super::workload::KINDS;
use super::{Common, Experiment, Point};
use perdura_cli::status::aligned;
use perdura_protocol::Faults;
use serde_json::{Value, json};

/// Where the paper's figures are from.
const SOURCE: &str = "Padilha and Pedone, Augustus: Scalable and Robust Storage for Cloud Applications, EuroSys 2013";

/// Its table 4: aborts in a hundred, by workload and share of global transactions, with 2, 4 and 8 partitions.
const ABORTS: [(&str, u8, [f64; 3]); 10] = [
    ("A", 20, [0.26, 0.42, 2.02]),
    ("A", 40, [0.42, 0.56, 2.41]),
    ("A", 60, [0.54, 0.72, 2.80]),
    ("A", 80, [0.77, 0.96, 2.94]),
    ("A", 100, [0.87, 1.13, 3.28]),
    ("B", 20, [0.15, 0.30, 0.96]),
    ("B", 40, [0.28, 0.42, 1.36]),
    ("B", 60, [0.40, 0.54, 1.63]),
    ("B", 80, [0.56, 0.79, 1.98]),
    ("B", 100, [0.66, 0.80, 2.16]),
];

/// What the paper has for it.
pub fn aborts_in_paper(point: &Point) -> Option<f64> {
    let column = [2, 4, 8].iter().position(|count| *count == point.partitions)?;
    let row = ABORTS
        .iter()
        .find(|(name, global, _)| (*name, *global) == (point.workload, point.global))?;
    Some(row.2[column])
}

impl Point {
    /// The median of a figure over the rounds; 0 if there is none.
    pub fn figure(&self, name: &str) -> f64 {
        medians(&self.rounds).get(name).copied().unwrap_or(0.0)
    }

    /// A figure over that of another point, measured in the same run; none without one.
    pub fn over(&self, base: Option<&Point>, name: &str) -> Option<f64> {
        let base = base?.figure(name);
        (base > 0.0).then(|| self.figure(name) / base)
    }
}

/// The one that a point is compared with: all transactions local, or no liars.
pub fn base<'a>(experiment: Experiment, points: &'a [Point], of: &Point) -> Option<&'a Point> {
    points.iter().find(|one| match experiment {
        Experiment::Fig3And4 | Experiment::Table4 => {
            (one.workload, one.partitions, one.global) == (of.workload, of.partitions, 0)
        }
        Experiment::Fig5 => {
            (one.workload, one.partitions, one.global, one.liars)
                == (of.workload, of.partitions, of.global, 0)
        }
        Experiment::Locks => (one.workload, one.partitions) == ("intervals", of.partitions),
    })
}

/// What it is.
pub fn title(experiment: Experiment, common: &Common) -> String {
    format!(
        "{}: medians of {} rounds of {} s",
        experiment.name(),
        common.rounds(),
        common.seconds()
    )
}

fn number(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| number(value, 2))
}

/// A row for each point.
pub fn table(experiment: Experiment, points: &[Point]) -> String {
    let head = [
        "WORKLOAD",
        "P",
        "GLOBAL %",
        "LIARS %",
        "TXN/S",
        "OF BASE",
        "MEAN MS",
        "P95 MS",
        "P99 MS",
        "OF BASE",
        "CPU US",
        "OF BASE",
        "BUSIEST US",
        "SIGNED",
        "VERIFIED",
        "PER SLOT",
        "ABORTS %",
        "PAPER",
        "RESCUED",
        "ERRORS",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for point in points {
        let base = base(experiment, points, point);
        rows.push([
            point.workload.to_owned(),
            point.partitions.to_string(),
            point.global.to_string(),
            point.liars.to_string(),
            number(point.figure("committed_s"), 0),
            or_dash(point.over(base, "committed_s")),
            number(point.figure("mean_ms"), 1),
            number(point.figure("p95_ms"), 1),
            number(point.figure("p99_ms"), 1),
            or_dash(point.over(base, "p99_ms")),
            number(point.figure("server_cpu_us_per_txn"), 0),
            or_dash(point.over(base, "server_cpu_us_per_txn")),
            number(point.figure("busiest_server_cpu_us_per_txn"), 0),
            number(point.figure("attestations_signed_per_txn"), 2),
            number(point.figure("claims_verified_per_txn"), 2),
            number(point.figure("commands_per_slot"), 1),
            number(point.figure("aborts_percent"), 2),
            or_dash(aborts_in_paper(point)),
            number(point.figure("ended_for_others"), 0),
            number(point.figure("errors"), 0),
        ]);
    }
    aligned(&rows)
}

/// All of it.
pub fn json(experiment: Experiment, faults: Faults, common: &Common, points: &[Point]) -> Value {
    let of_point = |point: &Point| {
        let base = base(experiment, points, point);
        json!({
            "workload": point.workload,
            "partitions": point.partitions,
            "global_percent": point.global,
            "liars_percent": point.liars,
            "figures": medians(&point.rounds),
            "cpu_of_base": point.over(base, "server_cpu_us_per_txn"),
            "throughput_of_base": point.over(base, "committed_s"),
            "p99_of_base": point.over(base, "p99_ms"),
            "aborts_percent_in_paper": aborts_in_paper(point),
            "rounds": point.rounds,
        })
    };
    let keys = KINDS.iter().map(|kind| (kind.name.to_owned(), json!(common.keys(kind))));
    json!({
        "experiment": experiment.name(),
        "source": SOURCE,
        "version": env!("CARGO_PKG_VERSION"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "faults": {"u": faults.u(), "r": faults.r()},
        "replicas": faults.n(),
        "keys": Value::Object(keys.collect()),
        "full": common.full,
        "seconds": common.seconds(),
        "round_count": common.rounds(),
        "points": points.iter().map(of_point).collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::augustus::run::Figures;

    fn point(global: u8, cpu: f64) -> Point {
        let round = Figures::from([("server_cpu_us_per_txn".to_owned(), cpu)]);
        Point { workload: "A", partitions: 2, global, liars: 0, rounds: vec![round] }
    }

    #[test]
    fn points_are_compared_with_local_transactions_of_the_same_run() {
        let points = [point(0, 50.0), point(20, 75.0)];
        let base_of = |at: usize| base(Experiment::Fig3And4, &points, &points[at]);
        assert_eq!(points[1].over(base_of(1), "server_cpu_us_per_txn"), Some(1.5));
        assert_eq!(points[1].over(base_of(1), "p99_ms"), None);
        assert_eq!((aborts_in_paper(&points[1]), aborts_in_paper(&points[0])), (Some(0.26), None));
        let table = table(Experiment::Fig3And4, &points);
        assert!(table.contains("1.50") && table.contains("0.26"), "{table}");
    }
}
