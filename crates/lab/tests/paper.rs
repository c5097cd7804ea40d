//! The experiments of the papers, in the small: what they write, and what they leave behind.

use crate::processes::{Ran, drawn, replicas_in, send_signal, wait_for, wait_for_end};
use crate::program;
use serde_json::{Value, json};
use std::process::Stdio;

#[test]
fn an_experiment_writes_a_table_json_and_a_picture() {
    let directory = tempfile::tempdir().unwrap();
    let (work, out) = (directory.path().join("work"), directory.path().join("out"));
    std::fs::create_dir(&work).unwrap();
    for (name, settings) in [("dura-table1", "sync-ssd,async"), ("dura-fig9", "none")] {
        let mut command = program();
        command.args(["paper", name, "--crash", "1", "--settings", settings]);
        command.args(["--callers", "2,1,80", "--value-size", "100", "--keys", "50"]);
        command.args(["--seconds", "0.2", "--rounds", "2"]);
        command.arg("--work").arg(&work).arg("--out").arg(&out);
        let table = Ran::from(command.output().unwrap()).ok();
        let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["experiment"], name);
        assert_eq!(result["faults"], json!({"u": 1, "r": 0}));
        for (field, number) in [("replicas", 3), ("value_size", 100), ("keys", 50), ("rounds", 2)] {
            assert_eq!(result[field], number, "{field}");
        }
        let found = result["settings"].as_array().unwrap();
        let names: Vec<&str> = found.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, settings.split(',').collect::<Vec<&str>>());
        for setting in found {
            assert!(setting["peak_ops_s"].as_f64().unwrap() > 0.0, "{setting}");
            assert!(setting["least_p50_us"].as_f64().unwrap() > 0.0, "{setting}");
            let points = setting["points"].as_array().unwrap();
            let callers: Vec<u64> = points.iter().map(|p| p["callers"].as_u64().unwrap()).collect();
            assert_eq!(callers, [1, 2, 80]);
            for point in points {
                assert_eq!(point["rounds"].as_array().unwrap().len(), 2);
                for sample in [point, &point["rounds"][0], &point["rounds"][1]] {
                    for field in ["throughput_ops_s", "p50_us", "p99_us", "server_cpu_us_per_op"] {
                        assert!(sample[field].is_number(), "{field} in {sample}");
                    }
                    assert_eq!(sample["errors"], 0, "{sample}");
                }
            }
            assert!(table.contains(setting["name"].as_str().unwrap()), "{table}");
        }
        let picture = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains(names[0]));
    }
    let table1: Value =
        serde_json::from_slice(&std::fs::read(out.join("dura-table1.json")).unwrap()).unwrap();
    assert_eq!(table1["settings"][0]["log_device"], "delay_ms=0.88,mb_s=130");
    assert_eq!(table1["settings"][1]["durability"], "async");
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "the clusters are removed");
    assert_eq!(replicas_in(&work), 0);
}

#[test]
fn tuples_are_inserted_instead_of_values() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["paper", "dura-fig9", "--service", "tuples", "--crash", "1"]);
    command.args(["--settings", "none,sync-disk", "--callers", "1,8"]);
    command.args(["--seconds", "0.3", "--rounds", "1"]);
    command.arg("--work").arg(directory.path()).arg("--out").arg(directory.path());
    let table = Ran::from(command.output().unwrap()).ok();
    assert!(table.contains("1000 B tuple inserts") && table.contains("14739"), "{table}");
    let text = std::fs::read(directory.path().join("dura-fig9-tuples.json")).unwrap();
    let result: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&result["service"], &result["value_size"]), (&json!("tuples"), &json!(1000)));
    for setting in result["settings"].as_array().unwrap() {
        assert!(setting["peak_ops_s"].as_f64().unwrap() > 0.0, "{setting}");
        for point in setting["points"].as_array().unwrap() {
            assert_eq!(point["errors"], 0, "{point}");
        }
    }
    assert!(directory.path().join("dura-fig9-tuples.svg").exists());
}

#[test]
fn what_happens_over_time_is_written_down_with_checkpoints_and_a_recovery() {
    let directory = tempfile::tempdir().unwrap();
    let (work, out) = (directory.path().join("work"), directory.path().join("out"));
    std::fs::create_dir(&work).unwrap();
    let fig10 = ("dura-fig10", ["sequential", "coordinated"]);
    let fig11 = ("dura-fig11", ["sequential, collaborative", "sequential, single-sender"]);
    for (name, compared) in drawn(&[fig10, fig11]) {
        let mut command = program();
        command.args(["paper", name, "--crash", "1", "--state-mb", "3", "--rate", "400"]);
        command.args(["--checkpoint-mib", "1", "--seconds", "4", "--warm-up", "0.5"]);
        command.arg("--work").arg(&work).arg("--out").arg(&out);
        let table = Ran::from(command.output().unwrap()).ok();
        assert!(compared.iter().all(|what| table.matches(what).count() >= 2), "{table}");
        let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["experiment"], name);
        let runs = result["runs"].as_array().unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
        assert_eq!(names, compared);
        for (median, what) in result["medians"].as_array().unwrap().iter().zip(compared) {
            assert_eq!(median["name"], what);
            for figure in ["completed_over_offered", "longest_stall_s", "lowest_ops_s"] {
                assert!(median["figures"][figure].is_number(), "{median}");
            }
        }
        for run in runs {
            assert_eq!((&run["offered_ops_s"], &run["errors"]), (&json!(400.0), &json!(0)));
            let windows = run["completed_in_window"].as_array().unwrap();
            assert_eq!(windows.len(), 40);
            let p99 = run["p99_ms_in_window"].as_array().unwrap();
            assert_eq!(p99.len(), 40);
            for (count, p99_ms) in windows.iter().zip(p99) {
                assert_eq!(count == &json!(0), p99_ms.is_null(), "{run}");
            }
            // What ends after the run is in no window.
            let completed: u64 = windows.iter().map(|window| window.as_u64().unwrap()).sum();
            assert!((1..=1600).contains(&completed), "{completed}");
            assert!(!run["checkpoints"].as_array().unwrap().is_empty(), "{run}");
            assert_eq!(run["recovery"].is_object(), name == "dura-fig11", "{run}");
        }
        let picture = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(picture.starts_with("<svg"));
        assert!(compared.iter().all(|what| picture.contains(what)));
    }
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "the clusters are removed");
}

#[test]
fn a_signal_ends_its_processes_and_removes_its_directories() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["paper", "dura-table1", "--crash", "1", "--settings", "none"]);
    command.args(["--callers", "4", "--keys", "50", "--seconds", "600"]);
    command.arg("--work").arg(directory.path()).arg("--out").arg(directory.path().join("out"));
    let mut bench = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the replicas", || (replicas_in(directory.path()) == 3).then_some(()));
    send_signal(&bench, "-INT");
    assert_eq!(wait_for_end(&mut bench).code(), Some(1));
    assert_eq!(replicas_in(directory.path()), 0);
    let left: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["out"]);
}

/// What an experiment of Augustus wrote, with these arguments and so many entries.
fn augustus(name: &str, keys: &str, arguments: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let (work, out) = (directory.path().join("work"), directory.path().join("out"));
    std::fs::create_dir(&work).unwrap();
    let mut command = program();
    command.args(["paper", name, "--crash", "1", "--keys", keys, "--seconds", "0.5"]);
    command.args(["--warm-up", "0.1"]).args(arguments);
    command.arg("--work").arg(&work).arg("--out").arg(&out);
    let table = Ran::from(command.output().unwrap()).ok();
    assert!(table.contains("WORKLOAD"), "{table}");
    let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
    let picture = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
    assert!(picture.starts_with("<svg"));
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "the clusters are removed");
    assert_eq!(replicas_in(&work), 0);
    let result: Value = serde_json::from_str(&text).unwrap();
    for point in result["points"].as_array().unwrap() {
        // Beside clients that lie nothing is certain to be committed in half a second.
        let certain = if point["liars_percent"] == 0 { 0.0 } else { -1.0 };
        for figure in ["committed_s", "p99_ms", "server_cpu_us_per_txn", "commands_per_slot"] {
            assert!(point["figures"][figure].as_f64().unwrap() > certain, "{figure}: {point}");
        }
        assert_eq!(
            (&point["figures"]["errors"], &point["figures"]["failed"]),
            (&json!(0.0), &json!(0.0))
        );
    }
    result
}

#[test]
fn transactions_over_partitions_are_beside_those_of_one() {
    let arguments = ["--workloads", "A,C", "--partitions", "1,2", "--callers", "4"];
    let result = augustus("augustus-fig3-4", "2000", &arguments);
    let points = result["points"].as_array().unwrap();
    let setting = |point: &Value| {
        let global = point["global_percent"].as_u64().unwrap();
        (
            point["workload"].as_str().unwrap().to_owned(),
            point["partitions"].as_u64().unwrap(),
            global,
        )
    };
    let found: Vec<_> = points.iter().map(setting).collect();
    let with = |workload: &str, rest: &[(u64, u64)]| {
        rest.iter()
            .map(|(count, global)| (workload.to_owned(), *count, *global))
            .collect::<Vec<_>>()
    };
    let expected = [
        with("A", &[(1, 0)]),
        with("C", &[(1, 0)]),
        with("A", &[(2, 0), (2, 20), (2, 100)]),
        with("C", &[(2, 0), (2, 20), (2, 100)]),
    ];
    assert_eq!(found, expected.concat());
    // Votes are signed where transactions are over several partitions and change something. Between partitions fences
    // are signed too, now and then, whatever the transactions.
    let signed = |at: usize| points[at]["figures"]["attestations_signed_per_txn"].as_f64().unwrap();
    assert_eq!([0, 1].map(signed), [0.0; 2]);
    for local in [2, 5] {
        assert!(signed(3) > 2.0 * signed(local), "{} {}", signed(3), signed(local));
    }
    for (writing, reading) in [(3, 6), (4, 7)] {
        assert!(signed(writing) > 2.0 * signed(reading), "{} {}", signed(writing), signed(reading));
    }
}

#[test]
fn clients_that_do_not_finish_are_beside_those_that_do() {
    let workload = ["--workloads", "A", "--partitions", "2", "--global", "100"];
    let clients = ["--callers", "4", "--liars", "0,50"];
    let result = augustus("augustus-fig5", "50000", &[&workload[..], &clients].concat());
    let points = result["points"].as_array().unwrap();
    let prepared = |index: usize| points[index]["figures"]["liars_prepared"].as_f64().unwrap();
    assert_eq!((points.len(), prepared(0)), (2, 0.0));
    assert!(prepared(1) > 0.0 && points[1]["p99_of_base"].is_number(), "{}", points[1]);
}

#[test]
fn one_structural_lock_is_met_more_often_than_intervals() {
    let result = augustus("augustus-locks", "2000", &["--callers", "32"]);
    let points = result["points"].as_array().unwrap();
    let aborts = |index: usize| points[index]["figures"]["aborts_percent"].as_f64().unwrap();
    assert_eq!(
        (&points[0]["workload"], &points[1]["workload"]),
        (&json!("intervals"), &json!("structural"))
    );
    assert!(aborts(1) > 2.0 * aborts(0), "{} and {}", aborts(0), aborts(1));
}
