//! A client that attacks a cluster of real processes, which goes on.

use crate::processes::{Ran, send_signal, wait_for, wait_for_end};
use crate::{perdura, program};
use std::fs::File;
use std::process::Child;

/// `perdura dev`. Its replicas end with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_is_attacked_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, said) = (directory.path().join("cluster"), directory.path().join("said.txt"));
    let mut command = perdura();
    command.arg("dev").arg(&dir).args(["--byzantine", "1"]);
    let mut cluster = Running(command.stdout(File::create(&said).unwrap()).spawn().unwrap());
    wait_for("the cluster", || {
        assert_eq!(cluster.0.try_wait().unwrap(), None, "it ended");
        std::fs::read_to_string(&said).unwrap().contains("Ctrl-C stops").then_some(())
    });
    for attack in ["malformed", "garbage-signatures"] {
        let mut command = program();
        command.args(["attack", "--attack", attack, "--duration", "1s", "--cluster"]).arg(&dir);
        let said = Ran::from(command.output().unwrap()).ok();
        assert!(said.starts_with(&format!("{attack}: ")) && said.contains(" messages, "), "{said}");
    }
    let mut put = perdura();
    put.args(["kv", "put", "key", "value", "--timeout", "60s", "--cluster"]).arg(&dir);
    Ran::from(put.output().unwrap()).ok();
    send_signal(&cluster.0, "-TERM");
    assert_eq!(wait_for_end(&mut cluster.0).code(), Some(0));
}

#[test]
fn whom_nobody_listens_to_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    Ran::from(perdura().arg("init").arg(&dir).output().unwrap()).ok();
    let mut command = program();
    command.args(["attack", "--attack", "flood", "--duration", "0.2", "--cluster"]).arg(&dir);
    let ran = Ran::from(command.output().unwrap());
    ran.failed(1, &["perdura-lab: flood: no replica took a message"]);
}
