//! What was found over time: a table for people, JSON for programs.

use super::run::Course;
use super::{Scene, TimelineOptions, Variant, WINDOW_S};
use perdura_cli::status::aligned;
use perdura_protocol::Faults;
use serde_json::{Value, json};

const SOURCE: &str =
    "Bessani et al., On the Efficiency of Durable State Machine Replication, USENIX ATC 2013";

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

/// When the replica had the state, seconds after it was started again.
fn received_s(course: &Course) -> Option<f64> {
    course.recovery.and_then(|recovery| Some(recovery.received_s? - recovery.from_s))
}

/// What medians are taken of, as in JSON.
const NAMES: [&str; 10] = [
    "completed_over_offered",
    "worst_5_s_over_offered",
    "empty_windows",
    "longest_stall_s",
    "lowest_ops_s",
    "p99_ms_while_it_happens",
    "p99_ms_else",
    "state_s",
    "recovery_s",
    "steal_percent",
];

fn figures(course: &Course) -> [Option<f64>; NAMES.len()] {
    let (stalled, longest_s) = stalls(course);
    let (inside, outside) = course.p99_ms();
    [
        Some(course.completed_over_offered()),
        course.worst_over_offered(),
        Some(stalled as f64),
        Some(longest_s),
        Some(course.lowest_ops_s()),
        inside,
        outside,
        received_s(course),
        recovery_s(course),
        Some(course.steal_percent),
    ]
}

/// The median of those that are there: a recovery that did not end within its run has none. Of an even
/// number, the mean of the two in the middle.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let above = *numbers.get(middle)?;
    let below = if numbers.len().is_multiple_of(2) { numbers[middle - 1] } else { above };
    Some((below + above) / 2.0)
}

/// Over the rounds, of all that was compared, in the order of the first round.
fn medians(courses: &[(u32, Course)]) -> Vec<(Variant, [Option<f64>; NAMES.len()])> {
    let mut variants: Vec<Variant> = Vec::new();
    for (_, course) in courses {
        if !variants.contains(&course.variant) {
            variants.push(course.variant);
        }
    }
    let of = |variant: Variant| {
        let rounds = courses.iter().filter(|(_, course)| course.variant == variant);
        let rounds: Vec<_> = rounds.map(|(_, course)| figures(course)).collect();
        let medians: [Option<f64>; NAMES.len()] = std::array::from_fn(|index| {
            median(rounds.iter().filter_map(|figures| figures[index]).collect())
        });
        (variant, medians)
    };
    variants.into_iter().map(of).collect()
}

/// A row for all that was compared.
pub fn medians_table(scene: Scene, courses: &[(u32, Course)]) -> String {
    let head = [
        "WHAT",
        "DONE/OFFERED",
        "WORST 5 S",
        "EMPTY 100 MS",
        "LONGEST S",
        "LOWEST/S",
        "P99 MS THEN",
        "P99 MS ELSE",
        "STATE S",
        "RECOVERY S",
        "STEAL %",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for (variant, figures) in medians(courses) {
        let mut figures = figures.map(figure).into_iter();
        rows.push(std::array::from_fn(|column| match column {
            0 => variant.name(scene),
            _ => figures.next().unwrap_or_default(),
        }));
    }
    aligned(&rows)
}

/// One run, in a line.
pub fn line(scene: Scene, round: u32, course: &Course) -> String {
    let (stalled, longest_s) = stalls(course);
    let (inside, outside) = course.p99_ms();
    format!(
        "round {round}, {}: {} ended ok, {} errors; {stalled} windows of 100 ms without any (longest \
         {longest_s:.1} s); p99 {} ms while it happened, {} ms else; {} wishes of replicas for another leader",
        course.variant.name(scene),
        course.ended.len(),
        course.errors,
        figure(inside),
        figure(outside),
        course.given_up.len()
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
        "WHAT",
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
            course.variant.name(scene),
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

fn of_course(scene: Scene, round: u32, course: &Course) -> Value {
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
    let given_up = course
        .given_up
        .iter()
        .map(|one| json!({"replica": one.replica, "at_s": rounded(one.at_s), "why": one.why}));
    let recovery = course.recovery.map(|recovery| {
        json!({
            "replica": recovery.replica,
            "from_s": recovery.from_s,
            "received_s": recovery.received_s,
            "to_s": recovery.to_s,
        })
    });
    json!({
        "round": round,
        "name": course.variant.name(scene),
        "schedule": course.variant.schedule.name(),
        "state_transfer": course.variant.transfer.name(),
        "offered_ops_s": course.offered_ops_s,
        "completed_over_offered": course.completed_over_offered(),
        "worst_5_s_over_offered": course.worst_over_offered(),
        "errors": course.errors,
        "empty_windows": stalled,
        "longest_stall_s": longest_s,
        "lowest_ops_s": course.lowest_ops_s(),
        "p99_ms_while_it_happens": inside,
        "p99_ms_else": outside,
        "checkpoints": checkpoints.collect::<Vec<Value>>(),
        "leaders_given_up": given_up.collect::<Vec<Value>>(),
        "recovery": recovery,
        "steal_percent": course.steal_percent,
        "window_s": WINDOW_S,
        "completed_in_window": course.windows(),
        "p99_ms_in_window": course.p99_ms_in_windows().into_iter().map(|p99_ms| p99_ms.map(rounded)).collect::<Vec<_>>(),
    })
}

/// All of it.
pub fn json(
    scene: Scene,
    faults: Faults,
    options: &TimelineOptions,
    courses: &[(u32, Course)],
) -> Value {
    let runs = courses.iter().map(|(round, course)| of_course(scene, *round, course));
    let medians = medians(courses).into_iter().map(|(variant, figures)| {
        let named: serde_json::Map<String, Value> = NAMES
            .iter()
            .zip(figures)
            .map(|(name, figure)| ((*name).to_owned(), json!(figure)))
            .collect();
        json!({"name": variant.name(scene), "figures": named})
    });
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
        "warm_up_seconds": options.warm_up,
        "checkpoint_mib": options.checkpoint_mib(),
        "rounds": options.rounds,
        "medians": medians.collect::<Vec<Value>>(),
        "runs": runs.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_what_is_there() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }
}
