//! `perdura dev`: a cluster on this machine that is tried out.

use crate::common::{
    Cluster, Ran, program, reserve_ports, run, send_signal, wait_for, wait_for_end,
};
use perdura_cluster::create::{self, Place};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Faults, ServiceName};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `perdura dev`, once it says what to try.
struct Dev {
    child: Child,
    dir: PathBuf,
}

impl Dev {
    fn start(dir: &Path, arguments: &[&str]) -> Dev {
        let mut command = program();
        command.arg("dev").arg(dir).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let last = lines.find(|line| line.as_ref().unwrap().contains("Ctrl-C"));
        drop(lines);
        if last.is_none() {
            panic!("it ended: {:?}", Ran::from(child.wait_with_output().unwrap()));
        }
        Dev { child, dir: dir.to_owned() }
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = program();
        command.args(arguments).args(["--timeout", "60s", "--cluster"]).arg(&self.dir);
        Ran::from(command.output().unwrap()).ok()
    }

    fn stop(mut self) {
        send_signal(&self.child, "-INT");
        assert!(wait_for_end(&mut self.child).success());
    }
}

#[test]
fn dev_runs_a_cluster_and_goes_on_with_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("dev");
    let once = || program().arg("dev").arg(&dir).args(["--once"]).output().map(Ran::from).unwrap();
    let out = once().ok();
    assert!(out.contains("made a cluster of 4") && out.contains("read it back"), "{out}");
    let out = once().ok();
    assert!(out.contains("going on with the cluster of 4"), "{out}");

    let mut dev = program();
    let mut dev = dev.arg("dev").arg(&dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let mut until = |words: &str| loop {
        let line = lines.next().unwrap().unwrap();
        if line.contains(words) {
            return line;
        }
    };
    let line = until("  replica 1  pid ");
    let pid = line.split_whitespace().nth(3).unwrap().to_owned();
    until("Ctrl-C stops");
    once().failed(1, &["replica 0", "in use"]);
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    until("replica 1 (pid");
    assert!(until("perdura replica --config").contains("replica-1/replica.toml"));
    send_signal(&dev, "-INT");
    until("stopped");
    assert_eq!(wait_for_end(&mut dev).code(), Some(0));
    once().ok();
    let mut slow = program();
    slow.arg("dev").arg(&dir).args(["--once", "--log-device", "delay_ms=1,mb_s=50"]);
    let out = Ran::from(slow.output().unwrap()).ok();
    assert!(out.contains("experiment: ") && out.contains("(delay_ms=1,mb_s=50)"), "{out}");
    let log = std::fs::read_to_string(dir.join("replica-0/log.txt")).unwrap();
    assert!(log.contains("(delay_ms=1,mb_s=50)"), "{log}");
}

#[test]
fn children_of_dev_end_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("dev");
    let mut command = program();
    command.arg("dev").arg(&dir).args(["--crash", "1"]).stdout(Stdio::piped());
    let mut dev = command.spawn().unwrap();
    let lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.contains("Ctrl-C stops")).unwrap();
    dev.kill().unwrap();
    dev.wait().unwrap();
    wait_for("the replicas to end", || {
        let again = program().arg("dev").arg(&dir).arg("--once").output().map(Ran::from).unwrap();
        (again.code == Some(0)).then_some(())
    });
}

/// What `dev` tries a cluster with is no entry of its user's: none is left, none of his is touched, and what a run left that was killed is removed.
#[test]
fn dev_leaves_the_store_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let ports = reserve_ports(6).to_string();
    let dev = Dev::start(&dir, &["--crash", "1", "--base-port", &ports]);
    assert_eq!(dev.run(&["kv", "count"]).trim(), "0");
    // As if it had been killed between writing and removing.
    let left = format!("perdura-dev-{}", "0a".repeat(16));
    for key in ["perdura-dev", "perdura-dev-", &left] {
        dev.run(&["kv", "put", key, "mine"]);
    }
    dev.stop();
    let note = dir.join("dev-probe.txt");
    assert!(!note.exists());
    std::fs::write(&note, format!("{left}\n")).unwrap();
    let dev = Dev::start(&dir, &[]);
    assert_eq!(dev.run(&["kv", "get", "perdura-dev"]), "mine\n");
    assert_eq!(dev.run(&["kv", "get", "perdura-dev-"]), "mine\n");
    assert_eq!(dev.run(&["kv", "count"]).trim(), "2");
    assert!(!note.exists());
    dev.stop();
}

/// Nor is a space, which somebody may wait in.
#[test]
fn dev_leaves_spaces_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let ports = reserve_ports(6).to_string();
    let dev = Dev::start(&dir, &["--crash", "1", "--service", "tuples", "--base-port", &ports]);
    assert_eq!(dev.run(&["space", "list"]), "");
    let left = format!("perdura-dev-{}", "0a".repeat(16));
    for space in ["perdura-dev", &left] {
        dev.run(&["space", "create", space]);
    }
    dev.stop();
    std::fs::write(dir.join("dev-probe.txt"), &left).unwrap();
    let dev = Dev::start(&dir, &[]);
    assert_eq!(dev.run(&["space", "list"]).lines().count(), 1);
    dev.stop();
    // There is none any more.
    std::fs::write(dir.join("dev-probe.txt"), &left).unwrap();
    Dev::start(&dir, &[]).stop();
}

#[test]
fn a_cluster_with_a_service_of_ones_own_is_left_to_its_program() {
    let cluster = Cluster::of(|dir| {
        let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceName::literal("ledger"));
        let places = Place::all(3, &[], Some(reserve_ports(6)), false).unwrap();
        create::make(dir, faults, Durability::Sync, service, |_| (), &places).unwrap();
    });
    let told =
        "service is \"ledger\", and this program runs kv and tuples; use the one that has it";
    let dir = cluster.dir().display().to_string();
    for flags in [&[][..], &["--service", "kv"], &["--partitions", "2"]] {
        run(&[&["dev", &dir], flags].concat()).failed(1, &[told, "cluster.toml"]);
    }
    Ran::from(cluster.replica(0).output().unwrap()).failed(1, &[told, "cluster.toml"]);
}
