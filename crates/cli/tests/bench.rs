//! Benchmarks in the small: what they print, and what they leave behind.

use crate::common::{Cluster, Ran, program, replicas_in, send_signal, wait_for, wait_for_end};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;

/// Runs a benchmark in `work`, which is empty afterwards.
#[track_caller]
fn bench(work: &Path, arguments: &[&str]) -> Ran {
    let mut command = program();
    command.arg("bench").args(arguments).arg("--work").arg(work);
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(std::fs::read_dir(work).unwrap().count(), 0, "something is left behind: {ran:?}");
    assert_eq!(replicas_in(work), 0, "a replica is left behind: {ran:?}");
    ran
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const SMALL: [&str; 6] = ["--crash", "1", "--keys", "50", "--pause", "0.1"];

#[test]
fn a_leader_is_killed_or_stopped_and_the_next_write_is_timed() {
    let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for fault in ["kill", "stop"] {
        let path = out.path().join(fault);
        let once = ["failover", "--rounds", "1", "--clients", "2", "--fault", fault, "--json"];
        let all = [&once[..], &[path.to_str().unwrap()], &SMALL].concat();
        let table = bench(work.path(), &all).ok();
        assert!(table.contains(&format!("{fault} of the leader")), "{table}");
        assert!(table.contains("next acknowledged write: median"), "{table}");
        let result = read(&path);
        assert_eq!(
            (&result["fault"], &result["faults"]),
            (&json!(fault), &json!({"u": 1, "r": 0}))
        );
        let rounds = result["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 1);
        assert!(rounds[0]["next_write_ms"].is_number() && result["repeated"].is_number());
        assert!(rounds[0]["views"].as_u64().unwrap() >= 1, "the leader changed: {result}");
    }
}

/// The others give a leader whose link is gone more time than this write has.
#[test]
fn a_write_that_is_not_acknowledged_in_time_is_what_the_user_reads_of() {
    let work = tempfile::tempdir().unwrap();
    let once = ["failover", "--rounds", "1", "--clients", "0", "--timeout", "20ms"];
    let ran = bench(work.path(), &[&once[..], &SMALL].concat());
    ran.failed(1, &["no write was acknowledged"]);
    assert!(!ran.error.contains("ended"), "we killed it, it did not end by itself: {ran:?}");
}

#[test]
fn the_terms_of_a_write_are_printed_beside_what_it_costs() {
    let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = out.path().join("floor.json");
    let once = ["floor", "--byzantine", "1", "--clients", "8", "--seconds", "0.2", "--json"];
    let table = bench(work.path(), &[&once[..], &[path.to_str().unwrap()]].concat()).ok();
    for term in ["the batch hashed", "votes signed", "are not in a term"] {
        assert!(table.contains(term), "{table}");
    }
    let result = read(&path);
    assert_eq!((&result["clients"], &result["faults"]), (&json!(8), &json!({"u": 1, "r": 1})));
    assert!(result["writes_a_slot"].as_f64().unwrap() > 0.0, "{result}");
    assert_eq!(result["terms"].as_array().unwrap().len(), 11);
}

/// By stage and by thread, and together they are what the processes took.
#[test]
fn a_profile_tells_what_the_time_of_replicas_goes_to() {
    let mut cluster = Cluster::init(&["--byzantine", "1"]);
    for id in 0..cluster.len() {
        let mut command = cluster.replica(id);
        command.arg("--profile");
        cluster.start_as(id, command);
    }
    cluster.wait_until_active();
    let path = cluster.path("profile.json");
    let load = ["bench", "put", "--keys", "50", "--clients", "8", "--seconds", "2", "--profile"];
    let json = [&load[..], &["--json", path.to_str().unwrap()]].concat();
    let table = cluster.run(&json).ok();
    assert!(table.contains("signatures of clients"), "{table}");
    let result = read(&path);
    let rows = result["profile"].as_array().unwrap();
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let us = |name: &str| of(name)["us_per_op"].as_f64().unwrap();
    for stage in ["receive", "decode", "verify", "order", "log", "execute", "reply", "send"] {
        assert!(us(stage) > 0.0 && of(stage)["entries_per_op"].as_f64().unwrap() > 0.0, "{table}");
    }
    assert!(us("keeper") > 0.0, "{table}");
    let sum: f64 = rows.iter().map(|row| row["us_per_op"].as_f64().unwrap()).sum();
    let all = us("all");
    assert!((sum - 2.0 * all).abs() < 0.02 * all, "{sum} and {all}: {table}");
    // By the system's clock of the thread, its stages are nearly all of it.
    assert!(us("event loop, rest") < 0.1 * all, "{table}");
    let status = cluster.status();
    assert!(status.iter().all(|one| one["experiments"][0].as_str().unwrap().contains("stages")));

    // One that does not measure is not left out in silence.
    cluster.stop(3);
    cluster.start(3);
    cluster.wait_until_active();
    cluster.run(&load).failed(1, &["replica 3", "--profile"]);
}

/// Callers in two processes, over two partitions.
#[test]
fn transactions_over_partitions_are_measured() {
    let servers = crate::servers::Servers::start_all();
    servers.wait_until_active([3, 3]);
    let all =
        ["bench", "txn", "--seconds", "2", "--keys", "100", "--clients", "4", "--processes", "2"];
    let json = servers.run(&[&all[..], &["--global", "50", "--json", "-"]].concat()).ok();
    let result: Value = serde_json::from_str(&json).unwrap();
    let number =
        |field: &str| result[field].as_f64().unwrap_or_else(|| panic!("no {field}: {json}"));
    let (completed, global) = (number("completed"), number("over_several"));
    assert!(completed > 0.0 && global > 0.0 && global < completed, "{json}");
    assert_eq!(number("errors"), 0.0, "{json}");
    assert!(number("busiest_server_cpu_us_per_txn") <= number("servers_cpu_us_per_txn"));
    assert_eq!(servers.run(&["kv", "count"]).ok(), "0\n", "it removes its keys");
    let table = servers.run(&[&all[..], &["--skew", "0.99", "--writes", "0"]].concat()).ok();
    assert!(table.contains("CPU per txn, busiest server"), "{table}");
    let puts = ["--global", "0", "--reads", "0", "--writes", "1", "--json", "-"];
    let json = servers.run(&[&all[..], &puts].concat()).ok();
    let result: Value = serde_json::from_str(&json).unwrap();
    assert!(result["completed"].as_f64().is_some_and(|completed| completed > 0.0), "{json}");
    assert_eq!(result["over_several"], 0, "{json}");
    servers.run(&["bench", "txn", "--participants", "3"]).failed(2, &["there are 2 partitions"]);
}

#[test]
fn bench_reports_what_it_promises() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    let file = cluster.path("result.json").display().to_string();
    for (operation, more) in [
        ("put", &[][..]),
        ("get", &["--fast"]),
        ("mixed", &["--rate", "200", "--connections", "2", "--keep"]),
    ] {
        let arguments =
            [&["bench", operation, "--seconds", "0.5", "--keys", "500", "--clients", "4"], more]
                .concat();
        let out = cluster.run(&[&arguments[..], &["--json", &file]].concat()).ok();
        assert!(out.contains("ops/s"), "{out}");
        let left = if more.contains(&"--keep") { "500\n" } else { "0\n" };
        assert_eq!(
            cluster.run(&["kv", "count"]).ok(),
            left,
            "it removes what it wrote, unless asked"
        );
        let text = std::fs::read_to_string(&file).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        for key in [
            "throughput_ops_s",
            "p50_us",
            "p99_us",
            "max_us",
            "errors",
            "server_cpu_us_per_op",
            "client_cpu_us_per_op",
            "value_size",
            "keys",
            "clients",
            "connections",
            "seconds",
        ] {
            assert!(result[key].is_number(), "{key} in {result}");
        }
        assert_eq!((&result["errors"], &result["operation"]), (&json!(0), &json!(operation)));
    }
    let scan = cluster.run(&["kv", "scan", "--limit", "10000", "--json"]).ok();
    let scan: Value = serde_json::from_str(&scan).unwrap();
    assert_eq!(scan["entries"].as_array().unwrap().len(), 500);
}

#[test]
fn a_bench_that_is_interrupted_says_what_it_measured() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    for more in [&[][..], &["--rate", "500"]] {
        let before = executed(&cluster);
        let mut bench = cluster
            .command(&["bench", "put", "--seconds", "600", "--keys", "10", "--clients", "4"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // More than it takes to write ten keys first.
        wait_for("writes", || (executed(&cluster) > before + 100).then_some(()));
        send_signal(&bench, "-INT");
        assert_eq!(wait_for_end(&mut bench).code(), Some(130));
        let out = Ran::from(bench.wait_with_output().unwrap());
        out.failed(130, &["interrupted after", "of 600 s"]);
        assert!(out.out.contains("ops/s"), "{}", out.out);
        let completed = out.out.lines().find_map(|line| line.strip_prefix("completed"));
        assert!(completed.unwrap().trim().parse::<u64>().unwrap() > 0);
    }
}

/// Slots that replica 0 has executed; none is known before it has started.
fn executed(cluster: &Cluster) -> u64 {
    cluster.status()[0]["executed"].as_u64().unwrap_or(0)
}
