//! What operators meet: interruptions while no replica answers, files of another cluster, and what is left behind.

use crate::common::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};

/// The command, with these lines in its standard input, which stays open.
fn fed(
    cluster: &Cluster,
    arguments: &[&str],
    lines: impl IntoIterator<Item = String>,
) -> (Child, ChildStdin) {
    let mut command = cluster.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    (child, input)
}

fn put(number: usize, value: &str) -> String {
    format!(r#"{{"id":{number},"op":"put","key":"k{number}","value":"{value}"}}"#)
}

/// Ctrl-C while all replicas stand still: each line that was begun is answered, and what was not is named.
#[test]
fn a_batch_that_is_interrupted_while_nobody_answers_leaves_no_line_without_an_answer() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    cluster.run(&["kv", "put", "first", "1"]).ok();
    (0..3).for_each(|id| cluster.halt(id));
    // The last one that has a place is answered by nobody else: all lines up to it are begun then.
    let line = |number| match number {
        200 => "no operation".to_owned(),
        _ => put(number, "1"),
    };
    let arguments = ["kv", "batch", "--in-flight", "200", "--timeout", "1h"];
    let (mut batch, input) = fed(&cluster, &arguments, (1..=300).map(line));
    let mut out = BufReader::new(batch.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    assert!(text.contains("line 200"), "{text}");
    send_signal(&batch, "-INT");
    out.read_to_string(&mut text).unwrap();
    let mut ran = Ran::from(batch.wait_with_output().unwrap());
    ran.out = text;
    drop(input);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let answers: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |outcome: &str| answers.iter().filter(|one| one["outcome"] == outcome).count();
    let begun = said("indeterminate") + said("refused");
    // One more has the place of the one that was answered, if it came before the signal.
    assert!((200..=201).contains(&begun), "{ran:?}");
    assert!(answers.iter().all(|one| one["id"].as_u64() <= Some(begun as u64)), "{ran:?}");
    let told = format!(
        "SIGINT: the lines up to {begun} were begun, and each has its answer; what is behind them was not sent"
    );
    assert!(ran.error.contains(&told), "{ran:?}");
}

/// An import too ends soon, and says from where to go on.
#[test]
fn an_import_that_is_interrupted_while_nobody_answers_ends_soon() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    let (first, input) = fed(&cluster, &["kv", "import", "-"], (0..10).map(|n| put(n, "1")));
    drop(input);
    first.wait_with_output().map(Ran::from).unwrap().ok();
    (0..3).for_each(|id| cluster.halt(id));
    // Each is more than the pipe and all buffers hold. So once the last is written the one before it was read as a whole, two of them wait at
    // most, and the first is under way.
    let long = "1".repeat(256 * 1024);
    let lines = (1..=5).map(|number| put(number, &long));
    let (import, input) = fed(&cluster, &["kv", "import", "-", "--timeout", "1h"], lines);
    send_signal(&import, "-INT");
    let ran = Ran::from(import.wait_with_output().unwrap());
    drop(input);
    ran.failed(130, &["SIGINT", "0 entries imported", "--from-line 1 goes on from there"]);
}

/// Two clusters with the same ports: what the one that runs says is not taken for the other's.
#[test]
fn status_of_another_cluster_is_told_from_ones_own() {
    let ports = reserve_ports(6).to_string();
    let made = || {
        Cluster::of(|dir| {
            let mut command = program();
            command.arg("init").arg(dir).args(["--crash", "1", "--base-port", &ports]);
            command.output().map(Ran::from).unwrap().ok();
        })
    };
    let (not_running, mut running) = (made(), made());
    (0..3).for_each(|id| running.start(id));
    running.wait_until_active();
    // Whoever is slow is not heard in time.
    wait_for("all of them to say whose they are", || {
        let ran = not_running.run(&["status"]);
        ran.failed(4, &[]);
        assert!(!ran.out.contains("active"), "{ran:?}");
        let told = "replica 0; replica 1; replica 2: another cluster answers there";
        ran.out.contains(told).then_some(())
    });
    // Nor does it take a command, and that is known long before the time is up.
    let mut put = not_running.command(&["kv", "put", "a", "1", "--timeout", "1h"]);
    let mut put = put.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_end(&mut put);
    let ran = Ran::from(put.wait_with_output().unwrap());
    ran.failed(4, &["every replica refused this client"]);
}

/// A key that nobody knows is refused by all, at once, and once.
#[test]
fn who_is_refused_by_all_is_told_at_once() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    let key = cluster.path("other.toml");
    let other = Cluster::init(&["--crash", "1"]);
    let text = std::fs::read_to_string(other.path("client.toml")).unwrap();
    let own = std::fs::read_to_string(cluster.path("client.toml")).unwrap();
    let of = |text: &str, field: &str| {
        let line = text.lines().find(|line| line.starts_with(field));
        line.map(str::to_owned)
    };
    let mixed = match (of(&own, "secret_key"), of(&text, "secret_key")) {
        (Some(own_key), Some(other_key)) => own.replace(&own_key, &other_key),
        other => panic!("{other:?}"),
    };
    std::fs::write(&key, mixed).unwrap();
    let path = key.display().to_string();
    let ran = cluster.run(&["kv", "get", "a", "--timeout", "1h", "--client", &path]);
    ran.failed(4, &["every replica refused this client", "is not registered"]);
    assert_eq!(ran.error.matches("is not registered").count(), 1, "said once: {ran:?}");
}
