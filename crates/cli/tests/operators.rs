//! What operators meet: interruptions while no replica answers, files of another cluster, and what is left behind.

use crate::common::*;
use serde_json::Value;
use std::io::Write;
use std::process::{Child, Stdio};

/// The command, with lines that do not end.
fn fed(cluster: &Cluster, arguments: &[&str], lines: usize) -> Child {
    let mut command = cluster.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let input = child.stdin.as_mut().unwrap();
    for number in 0..lines {
        writeln!(input, r#"{{"id":{number},"op":"put","key":"k{number}","value":"1"}}"#).unwrap();
    }
    child
}

/// Waits until it has read what it was given, and a moment for it to look at that.
fn has_read(child: &Child) {
    let input = child.stdin.as_ref().unwrap();
    wait_for("its lines to be read", || {
        (rustix::io::ioctl_fionread(input).unwrap() == 0).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
}

/// Ctrl-C while all replicas stand still: each line that was begun is answered, and what was not is named.
#[test]
fn a_batch_that_is_interrupted_while_nobody_answers_leaves_no_line_without_an_answer() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    cluster.run(&["kv", "put", "first", "1"]).ok();
    (0..3).for_each(|id| cluster.halt(id));
    let batch = fed(&cluster, &["kv", "batch", "--in-flight", "200", "--timeout", "1h"], 300);
    has_read(&batch);
    send_signal(&batch, "-INT");
    let ran = Ran::from(batch.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let answers: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |outcome: &str| answers.iter().filter(|one| one["outcome"] == outcome).count();
    let begun = said("indeterminate") + said("refused");
    // One waits for the first place that is free.
    assert!((200..=201).contains(&begun), "{ran:?}");
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
    let first = fed(&cluster, &["kv", "import", "-"], 10);
    first.wait_with_output().map(Ran::from).unwrap().ok();
    (0..3).for_each(|id| cluster.halt(id));
    let import = fed(&cluster, &["kv", "import", "-", "--timeout", "1h"], 100);
    has_read(&import);
    send_signal(&import, "-INT");
    let ran = Ran::from(import.wait_with_output().unwrap());
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
    let ran = not_running.run(&["status"]);
    ran.failed(4, &[]);
    assert!(ran.out.contains("another cluster answers there"), "{ran:?}");
    assert!(!ran.out.contains("active"), "{ran:?}");
    // Nor does it take a command, and that is known at once.
    let begun = std::time::Instant::now();
    let put = not_running.run(&["kv", "put", "a", "1", "--timeout", "1h"]);
    put.failed(4, &["every replica refused this client"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
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

/// What `dev` tries a cluster with is no entry of its user's.
#[test]
fn dev_leaves_nothing_in_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let ports = reserve_ports(8).to_string();
    let mut command = program();
    command.arg("dev").arg(&dir).args(["--crash", "1", "--base-port", &ports]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let count = || {
        let mut count = program();
        count.args(["kv", "count", "--timeout", "1s", "--cluster"]).arg(&dir);
        let ran = Ran::from(count.output().unwrap());
        (ran.code == Some(0)).then(|| ran.out.trim().to_owned())
    };
    wait_for("an empty store", || (count()? == "0").then_some(()));
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        let read = std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(read > 0, "it ended");
        if line.contains("Ctrl-C") {
            break;
        }
    }
    assert_eq!(count().as_deref(), Some("0"));
    send_signal(&child, "-INT");
    wait_for_end(&mut child);
}
