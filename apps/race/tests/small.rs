//! The program in the small, on real servers of Perdura: what it promises is kept, the race runs to its end, and nothing stays behind. Redis is not needed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program `perdura`: that of `PERDURA`, or what `make build` made.
fn perdura() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fast/perdura");
    let path = std::env::var_os("PERDURA").map_or(built, PathBuf::from);
    assert!(path.exists(), "{} is not there; run `make build` first", path.display());
    path
}

/// A command of the program, with its data and results in a directory.
fn command(what: &str, out: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buzzer-race"));
    let buzzer = Path::new(env!("CARGO_BIN_EXE_buzzer-race")).with_file_name("buzzer");
    command.arg(what).arg("--perdura").arg(perdura()).arg("--buzzer").arg(buzzer);
    command.arg("--out").arg(out).args(options);
    command
}

fn run(what: &str, out: &Path, options: &[&str]) -> Output {
    command(what, out, options).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> String {
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    text
}

/// What is in a directory.
fn entries(of: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = std::fs::read_dir(of)
        .unwrap()
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn no_answer_is_seen_without_its_post() {
    let out = tempfile::tempdir().unwrap();
    let options = ["--systems", "crash-2", "--seconds", "3", "--authors", "4", "--readers", "4"];
    let options = [&options[..], &["--followers", "50"]].concat();
    let said = said(&run("causality", out.path(), &options));
    assert!(said.contains("2 partitions: 0 answers without"), "{said}");
    // Where timelines are no transactions it finds some.
    let torn = [&options[..], &["--torn"]].concat();
    let found = self::said(&run("causality", out.path(), &torn));
    assert!(found.contains("sees an answer to") || found.contains("is seen without"), "{found}");
    assert_eq!(entries(out.path()), [""; 0]);
}

#[test]
fn a_server_that_is_killed_costs_no_call_and_no_post() {
    let out = tempfile::tempdir().unwrap();
    for (system, level) in [("crash-2", "http"), ("byzantine-1", "api")] {
        let options = ["--systems", system, "--seconds", "2", "--callers", "8", "--users", "300"];
        let options = [&options[..], &["--timeout-ms", "120000", "--level", level]].concat();
        let said = said(&run("survival", out.path(), &options));
        assert!(said.contains("no call failed"), "{said}");
    }
    assert_eq!(entries(out.path()), [""; 0]);
}

#[test]
fn a_small_race_runs_to_its_end() {
    let out = tempfile::tempdir().unwrap();
    let options = ["--systems", "crash-1,crash-2", "--levels", "api,http", "--users", "300"];
    let options =
        [&options[..], &["--seconds", "1", "--warm-up", "1", "--rounds", "1", "--callers", "8"]];
    let said = said(&run("run", out.path(), &options.concat()));
    assert!(said.contains("**mix, api, 8 callers**"), "{said}");
    assert!(said.contains("**mix, http, 8 callers**"), "{said}");
    let written = std::fs::read_to_string(out.path().join("bench-buzzer.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&written).unwrap();
    let medians = report["medians"].as_array().unwrap();
    assert_eq!(medians.len(), 2 * 2 * 4);
    for one in medians {
        assert!(one["calls"].as_u64().unwrap() > 0 && one["failed"] == 0, "{one}");
        assert!(one["store_cpu_us"].as_f64().unwrap() > 0.0, "{one}");
        assert_eq!(one["aborted"].is_null(), one["system"] == "crash-1", "{one}");
        if one["workload"] == "timeline" {
            // Of all who are followed there are four.
            assert!(one["posts_shown"].as_f64().unwrap() > 10.0, "{one}");
        }
    }
    assert_eq!(report["rounds"].as_array().unwrap().len(), 2 * 2 * 4);
    let pictures = ["bench-buzzer-api-8.svg", "bench-buzzer-http-8.svg"];
    let expected = [&pictures[..], &["bench-buzzer.json", "bench-buzzer.md"]].concat();
    assert_eq!(entries(out.path()), expected);
}

#[test]
fn redis_is_asked_for_before_anything_starts() {
    let out = tempfile::tempdir().unwrap();
    let output = run("run", out.path(), &["--systems", "crash-1,redis-always"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("scripts/bench-buzzer"), "{said}");
}

/// Processes of this system whose command line has a word with this in it.
fn processes_with(word: &str) -> usize {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(word).then_some(())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(of).count()
}

#[test]
fn an_interrupted_race_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().to_str().unwrap();
    let options = ["--systems", "crash-2", "--levels", "api", "--users", "300", "--seconds", "600"];
    let mut race = command("run", out.path(), &options);
    let mut race = race.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_up = || processes_with(&format!("{path}/run-")) >= 3;
    while !is_up() {
        assert!(race.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sent = Command::new("kill").args(["-INT", &race.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(race.wait().unwrap().code(), Some(130));
    assert_eq!(processes_with(path), 0);
    assert_eq!(entries(out.path()), [""; 0]);
}
