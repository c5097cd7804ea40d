//! What was found over time: a table for people, JSON for programs.

use super::run::Course;
use super::{Options, Scene, WINDOW_S};
use crate::status::aligned;
use clap::ValueEnum;
use perdura_protocol::Faults;
use serde_json::{Value, json};

const SOURCE: &str =
    "Bessani et al., On the Efficiency of Durable State Machine Replication, USENIX ATC 2013";

fn name(course: &Course) -> String {
    course.schedule.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn figure(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| rounded(number).to_string())
}

/// Windows in which nothing ended, and the longest run of them, seconds.
fn stalls(course: &Course) -> (usize, f64) {
    let windows = course.windows();
    let longest = windows.split(|count| *count > 0).map(<[u32]>::len).max().unwrap_or(0);
    (windows.iter().filter(|count| **count == 0).count(), longest as f64 * WINDOW_S)
}

/// How long the replica was away after it was started again, seconds.
fn recovery_s(course: &Course) -> Option<f64> {
    course.recovery.and_then(|recovery| Some(recovery.to_s? - recovery.from_s))
}

/// One run, in a line.
pub fn line(round: u32, course: &Course) -> String {
    let (stalled, longest_s) = stalls(course);
    let (inside, outside) = course.p99_ms();
    format!(
        "round {round}, {}: {} ended ok, {} errors; {stalled} windows of 100 ms without any (longest \
         {longest_s:.1} s); p99 {} ms while it happened, {} ms else",
        name(course),
        course.ended.len(),
        course.errors,
        figure(inside),
        figure(outside)
    )
}

/// A row for each run.
pub fn table(scene: Scene, courses: &[(u32, Course)]) -> String {
    let busy = match scene {
        Scene::Checkpoints => "CHECKPOINTS",
        Scene::Recovery => "RECOVERY S",
    };
    let head = [
        "ROUND",
        "SCHEDULE",
        "OFFERED/S",
        "DONE/OFFERED",
        "ERRORS",
        "EMPTY 100 MS",
        "LONGEST S",
        "P99 MS THEN",
        "P99 MS ELSE",
        busy,
        "STEAL %",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for (round, course) in courses {
        let (stalled, longest_s) = stalls(course);
        let (inside, outside) = course.p99_ms();
        rows.push([
            round.to_string(),
            name(course),
            rounded(course.offered_ops_s).to_string(),
            rounded(course.completed_over_offered()).to_string(),
            course.errors.to_string(),
            stalled.to_string(),
            rounded(longest_s).to_string(),
            figure(inside),
            figure(outside),
            match scene {
                Scene::Checkpoints => course.checkpoints.len().to_string(),
                Scene::Recovery => figure(recovery_s(course)),
            },
            rounded(course.steal_percent).to_string(),
        ]);
    }
    aligned(&rows)
}

fn of_course(round: u32, course: &Course) -> Value {
    let (stalled, longest_s) = stalls(course);
    let (inside, outside) = course.p99_ms();
    let checkpoints = course.checkpoints.iter().map(|stored| {
        json!({
            "replica": stored.replica,
            "from_s": rounded(stored.from_s),
            "to_s": rounded(stored.to_s),
            "written_bytes": stored.written_bytes,
        })
    });
    let recovery = course.recovery.map(|recovery| {
        json!({"replica": recovery.replica, "from_s": recovery.from_s, "to_s": recovery.to_s})
    });
    json!({
        "round": round,
        "schedule": name(course),
        "offered_ops_s": course.offered_ops_s,
        "completed_over_offered": course.completed_over_offered(),
        "errors": course.errors,
        "empty_windows": stalled,
        "longest_stall_s": longest_s,
        "p99_ms_while_it_happens": inside,
        "p99_ms_else": outside,
        "checkpoints": checkpoints.collect::<Vec<Value>>(),
        "recovery": recovery,
        "steal_percent": course.steal_percent,
        "window_s": WINDOW_S,
        "completed_in_window": course.windows(),
    })
}

/// All of it.
pub fn json(scene: Scene, faults: Faults, options: &Options, courses: &[(u32, Course)]) -> Value {
    let runs = courses.iter().map(|(round, course)| of_course(*round, course));
    json!({
        "experiment": scene.name(),
        "source": format!("{SOURCE}, {}", scene.figure()),
        "version": env!("CARGO_PKG_VERSION"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "faults": {"u": faults.u(), "r": faults.r()},
        "replicas": faults.n(),
        "state_mb": options.state_mb,
        "value_size": options.value_size,
        "seconds": options.seconds,
        "checkpoint_mib": options.checkpoint_mib,
        "runs": runs.collect::<Vec<Value>>(),
    })
}
