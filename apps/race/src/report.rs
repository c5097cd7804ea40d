//! What a race came to: medians over rounds, as JSON and as a table.

use super::load::{Level, Measured, Workload};
use super::machine::Machine;
use super::systems::SystemKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A share of aborted tries above this is told of: what the project wants to stay below (the paper had 15%).
pub const ABORTED_SHARE_MOST: f64 = 0.02;

/// Where other programs use more of the processors than this the machine is not quiet.
const OTHERS_MOST: f64 = 0.05;

/// Timelines of systems differ by less in how many posts they show: they are the same network.
const SHOWN_APART: f64 = 0.02;

/// Of the time that callers had so much may be spent between calls.
const BETWEEN_CALLS: f64 = 0.1;

/// What the race is about.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    pub machine: Machine,
    pub versions: BTreeMap<String, String>,
    /// How each system is set, by its name.
    pub systems: BTreeMap<String, String>,
    pub users: u32,
    /// Posts of each user that are loaded before timelines and the mix.
    pub posts: u64,
    /// Characters of a post.
    pub characters: usize,
    pub sessions: u32,
    pub callers: Vec<u32>,
    pub seconds: f64,
    pub warm_up_seconds: f64,
    pub rounds: u32,
    pub seed: u64,
    pub timeout_ms: u64,
    pub redis_connections: u16,
    pub own_servers: bool,
}

/// Where in the race a point is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RacePoint {
    pub system: SystemKind,
    pub level: Level,
    pub workload: Workload,
    pub callers: u32,
}

impl RacePoint {
    /// In words, without callers.
    fn at(&self) -> String {
        let RacePoint { system, level, workload, .. } = self;
        format!("{}, {}, {}", system.label(), level.name(), workload.name())
    }
}

/// A point in one round.
#[derive(Clone, Debug)]
pub struct Point {
    pub round: u32,
    pub place: RacePoint,
    pub measured: Measured,
}

/// A point, or the median of some, as it is written.
#[derive(Serialize)]
struct Row<'a> {
    system: String,
    level: &'static str,
    workload: &'static str,
    callers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    aborted_share: Option<f64>,
    #[serde(flatten)]
    measured: &'a Measured,
}

/// All that is known after some rounds.
pub struct RaceReport {
    pub settings: Settings,
    pub points: Vec<Point>,
}

/// Whether all latencies together are the time that callers had, as in a closed loop, but for what was under way at both ends: at most the longest call of each
/// caller. Where calls fail some of that time is in no latency.
fn agrees(point: &Point) -> bool {
    let one = &point.measured;
    let of_each_s = one.calls as f64 * one.mean_us / 1e6 / f64::from(point.place.callers);
    let apart_s = (of_each_s - one.seconds).abs();
    one.failed > 0 || apart_s <= one.longest_us / 1e6 + BETWEEN_CALLS * one.seconds
}

/// The median of numbers: the middle one, or the mean of the two in the middle.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => 0.0,
        length if length % 2 == 1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}

/// Medians of figures, and sums of what is counted.
fn median_of(points: &[&Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| median(points.iter().map(|one| figure(one)).collect());
    let sum = |count: fn(&Measured) -> u64| points.iter().map(|one| count(one)).sum::<u64>();
    let application = points.iter().filter_map(|one| one.application_cpu_us).collect::<Vec<_>>();
    let shown = points.iter().filter_map(|one| one.posts_shown).collect::<Vec<_>>();
    let each = || points.iter().map(|one| one.calls_s);
    Measured {
        calls: sum(|one| one.calls),
        seconds: points.iter().map(|one| one.seconds).sum(),
        calls_s: of(|one| one.calls_s),
        calls_s_between: [each().fold(f64::INFINITY, f64::min), each().fold(0.0, f64::max)],
        mean_us: of(|one| one.mean_us),
        p50_us: of(|one| one.p50_us),
        p99_us: of(|one| one.p99_us),
        longest_us: of(|one| one.longest_us),
        store_cpu_us: of(|one| one.store_cpu_us),
        busiest_server_cpu_us: of(|one| one.busiest_server_cpu_us),
        application_cpu_us: (!application.is_empty()).then(|| median(application)),
        callers_cpu_us: of(|one| one.callers_cpu_us),
        failed: sum(|one| one.failed),
        first_failure: points.iter().find_map(|one| one.first_failure.clone()),
        aborted: points.iter().map(|one| one.aborted).sum(),
        posts_shown: (!shown.is_empty()).then(|| median(shown)),
        others_share: points.iter().map(|one| one.others_share).fold(0.0, f64::max),
    }
}

fn row(place: RacePoint, round: Option<u32>, measured: &Measured) -> Row<'_> {
    let RacePoint { system, level, workload, callers } = place;
    let (system, level, workload) = (system.name(), level.name(), workload.name());
    let aborted_share = measured.aborted_share();
    Row { system, level, workload, callers, round, aborted_share, measured }
}

impl RaceReport {
    /// The median of each place, in the order in which places were come to first.
    #[must_use]
    pub fn medians(&self) -> Vec<(RacePoint, Measured)> {
        let mut places: Vec<RacePoint> = Vec::new();
        for point in &self.points {
            if !places.contains(&point.place) {
                places.push(point.place);
            }
        }
        let of = |place: RacePoint| {
            let here = self.points.iter().filter(|point| point.place == place);
            (place, median_of(&here.map(|point| &point.measured).collect::<Vec<_>>()))
        };
        places.into_iter().map(of).collect()
    }

    /// All of it as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let medians = self.medians();
        let medians: Vec<_> = medians.iter().map(|(place, one)| row(*place, None, one)).collect();
        let points = self.points.iter();
        let points: Vec<_> =
            points.map(|point| row(point.place, Some(point.round), &point.measured)).collect();
        let warnings = self.warnings();
        serde_json::json!({
            "settings": self.settings, "warnings": warnings, "medians": medians, "rounds": points
        })
    }

    /// What is not as it should be.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let disk = &self.settings.machine.disk;
        if disk.is_memory() {
            warnings.push(format!(
                "data was in memory ({}): what is durable is no measurement",
                disk.kind
            ));
        }
        for point in &self.points {
            let (at, one) =
                (format!("{}, round {}", point.place.at(), point.round), &point.measured);
            if !agrees(point) {
                warnings.push(format!(
                    "{at}: latencies do not fit to throughput, so one of them is wrong"
                ));
            }
            if one.others_share > OTHERS_MOST {
                let percent = 100.0 * one.others_share;
                warnings.push(format!(
                    "{at}: other programs used {percent:.0}% of the processors: this is no measurement"
                ));
            }
            if let Some(share) = one.aborted_share().filter(|share| *share > ABORTED_SHARE_MOST) {
                warnings.push(format!("{at}: {:.1}% of tries were aborted", 100.0 * share));
            }
        }
        for (place, measured) in self.medians() {
            if let Some(why) = &measured.first_failure {
                let (at, failed) = (place.at(), measured.failed);
                warnings.push(format!("{at}: {failed} calls failed; the first: {why}"));
            }
        }
        warnings.extend(self.different_timelines());
        warnings
    }

    /// Where systems do not show the same timelines; in the mix they cannot, since some post more than others.
    fn different_timelines(&self) -> Vec<String> {
        let medians = self.medians();
        let of_timelines = medians.iter().filter(|(place, _)| place.workload == Workload::Timeline);
        let shown: Vec<(RacePoint, f64)> =
            of_timelines.filter_map(|(place, one)| Some((*place, one.posts_shown?))).collect();
        let most = shown.iter().map(|(_, posts)| *posts).fold(0.0, f64::max);
        let differ = shown.iter().filter(|(_, posts)| *posts < most * (1.0 - SHOWN_APART));
        let told = |(place, posts): &(RacePoint, f64)| {
            format!("{}: timelines show {posts:.1} posts, elsewhere {most:.1}", place.at())
        };
        differ.map(told).collect()
    }

    /// Calls that failed on Perdura.
    #[must_use]
    pub fn failed(&self) -> u64 {
        let points = self.points.iter().filter(|point| point.place.system.is_perdura());
        points.map(|point| point.measured.failed).sum()
    }

    /// Tables in Markdown, one for each load, level and number of callers.
    #[must_use]
    pub fn table(&self) -> String {
        let medians = self.medians();
        let mut out = format!("{}\n", self.settings.machine.line());
        for workload in Workload::ALL {
            for level in [Level::Api, Level::Http] {
                for callers in &self.settings.callers {
                    let of = |place: &RacePoint| {
                        place.workload == workload
                            && place.level == level
                            && place.callers == *callers
                    };
                    let rows: Vec<_> = medians.iter().filter(|(place, _)| of(place)).collect();
                    if !rows.is_empty() {
                        let (workload, level) = (workload.name(), level.name());
                        let _ =
                            writeln!(out, "\n**{workload}, {level}, {callers} callers**\n\n{HEAD}");
                        rows.iter().for_each(|(place, one)| out.push_str(&line(*place, one)));
                    }
                }
            }
        }
        for warning in self.warnings() {
            let _ = write!(out, "\n{warning}\n");
        }
        out
    }
}

const HEAD: &str = "| system | calls/s | between | store CPU, µs | of its busiest server | application CPU, µs | callers' CPU, µs | p50, ms | p99, ms | posts shown | aborted | failed |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

fn line(place: RacePoint, one: &Measured) -> String {
    let application = one.application_cpu_us.map_or("-".to_owned(), |us| format!("{us:.0}"));
    let shown = one.posts_shown.map_or("-".to_owned(), |posts| format!("{posts:.1}"));
    let aborted = one.aborted_share();
    let aborted = aborted.map_or("-".to_owned(), |share| format!("{:.2}%", 100.0 * share));
    let [least, most] = one.calls_s_between;
    format!(
        "| {} | {:.0} | {least:.0} to {most:.0} | {:.0} | {:.0} | {application} | {:.0} | {:.2} | {:.2} | {shown} | {aborted} | {} |\n",
        place.system.label(),
        one.calls_s,
        one.store_cpu_us,
        one.busiest_server_cpu_us,
        one.callers_cpu_us,
        one.p50_us / 1000.0,
        one.p99_us / 1000.0,
        one.failed
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report of two systems, of which one failed a call.
    pub fn report() -> RaceReport {
        let point = |round, system: &str, calls_s| {
            let system = system.parse().unwrap();
            let (level, workload, callers) = (Level::Api, Workload::Mix, 64);
            let failed = u64::from(system == SystemKind::Redis { durable: true });
            let first_failure = (failed > 0).then(|| "it was <late>".to_owned());
            // As 64 callers do it.
            let (calls, seconds, mean_us) = (3_200, 2.0, 40_000.0);
            let measured = Measured {
                calls,
                seconds,
                mean_us,
                calls_s,
                failed,
                first_failure,
                aborted: Some(32),
                ..Measured::default()
            };
            Point { round, place: RacePoint { system, level, workload, callers }, measured }
        };
        let points = vec![
            point(1, "crash-2", 100.0),
            point(1, "redis-always", 500.0),
            point(2, "crash-2", 300.0),
            point(2, "redis-always", 700.0),
            point(3, "crash-2", 200.0),
        ];
        let settings = Settings {
            machine: Machine::here(std::path::Path::new("/")).unwrap(),
            versions: BTreeMap::new(),
            systems: BTreeMap::new(),
            users: 1_000,
            posts: 4,
            characters: 100,
            sessions: 10,
            callers: vec![64],
            seconds: 2.0,
            warm_up_seconds: 1.0,
            rounds: 3,
            seed: 1,
            timeout_ms: 30_000,
            redis_connections: 8,
            own_servers: false,
        };
        RaceReport { settings, points }
    }

    #[test]
    fn medians_are_over_the_rounds_of_a_place() {
        let medians = report().medians();
        let figures: Vec<f64> = medians.iter().map(|(_, one)| one.calls_s).collect();
        assert_eq!(figures, [200.0, 600.0]);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn all_that_was_found_is_told() {
        let report = report();
        let table = report.table();
        assert!(table.contains("| Perdura, crash 1, 2 partitions | 200 |"), "{table}");
        assert!(table.contains("| Redis, fsync always | 600 |"), "{table}");
        let warnings = report.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("2 calls failed"), "{warnings:?}");
        let json = report.json();
        assert_eq!(json["rounds"].as_array().unwrap().len(), 5);
        assert_eq!(json["medians"][0]["calls_s"], 200.0);
        assert_eq!(json["settings"]["users"], 1_000);
    }

    #[test]
    fn latencies_that_cannot_be_are_told_of() {
        let mut report = report();
        for point in &mut report.points {
            let measured = &mut point.measured;
            (measured.failed, measured.first_failure) = (0, None);
            (measured.calls, measured.seconds, measured.mean_us) = (6_400, 2.0, 20_000.0);
            measured.longest_us = 50_000.0;
        }
        assert!(report.warnings().is_empty(), "{:?}", report.warnings());
        // A stall at an end of the time is in the longest call.
        report.points[0].measured.mean_us = 30_000.0;
        assert_eq!(report.warnings().len(), 1);
        report.points[0].measured.longest_us = 1_000_000.0;
        assert!(report.warnings().is_empty(), "{:?}", report.warnings());
        // None is as long as it should be.
        for point in &mut report.points {
            (point.measured.mean_us, point.measured.longest_us) = (2.0, 2_047.0);
        }
        assert!(report.warnings().iter().all(|warning| warning.contains("one of them is wrong")));
        assert_eq!(report.warnings().len(), report.points.len());
    }

    #[test]
    fn too_many_aborted_tries_are_told_of() {
        let mut report = report();
        report.points[0].measured.aborted = Some(800);
        let warnings = report.warnings();
        assert!(warnings.iter().any(|warning| warning.contains("round 1: 20.0%")), "{warnings:?}");
        assert!(report.table().contains("20.0% of tries"));
        // What is not counted is not told to be none.
        report.points.iter_mut().for_each(|point| point.measured.aborted = None);
        assert!(report.table().contains("| - | 0 |") && report.failed() == 0);
    }

    #[test]
    fn timelines_that_differ_and_busy_machines_are_told_of() {
        let mut report = report();
        report.points.iter_mut().for_each(|point| {
            point.place.workload = Workload::Timeline;
            point.measured.posts_shown = Some(18.0);
        });
        assert_eq!(report.warnings().len(), 1, "{:?}", report.warnings());
        report.points[4].measured.others_share = 0.2;
        for point in report.points.iter_mut().filter(|point| !point.place.system.is_perdura()) {
            point.measured.posts_shown = Some(11.0);
        }
        let warnings = report.warnings().join("; ");
        assert!(warnings.contains("show 11.0 posts, elsewhere 18.0"), "{warnings}");
        assert!(warnings.contains("round 3: other programs used 20%"), "{warnings}");
    }
}
