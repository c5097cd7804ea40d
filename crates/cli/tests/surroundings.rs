//! Replicas that are alone, whose clock is wrong, or of which too few are there; and commands that would end a group then.

use crate::common::{Cluster, Ran, send_signal, wait_for};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn why_not_ready(cluster: &Cluster, id: usize) -> Option<String> {
    Some(cluster.status()[id]["why_not_ready"].as_str()?.to_owned())
}

fn leads(cluster: &Cluster, id: usize) -> bool {
    cluster.status()[id]["leader"] == true
}

#[test]
fn who_hears_of_too_few_members_is_neither_ready_nor_a_leader() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    cluster.start(0);
    let why = wait_for("a word of other members", || why_not_ready(&cluster, 0));
    assert!(why.contains("1 members are there with itself, and 2 are needed"), "{why}");
    assert!(
        why.contains("1 (not heard of since the start), 2 (not heard of since the start)"),
        "{why}"
    );
    let status = &cluster.status()[0];
    assert_eq!((&status["leader"], &status["state"]), (&false.into(), &"waiting".into()));
    assert!(cluster.http(0, "/readyz").is_none());
    assert!(cluster.http(0, "/metrics").unwrap().contains("\nperdura_ready 0\n"));
    assert_eq!(cluster.run(&["status"]).code, Some(4));
    let health = cluster.run(&["health", "--timeout", "1s"]);
    assert_eq!(health.code, Some(4), "{health:?}");
    let told = "neither writes nor reads\nreplica 0 does not take part: waiting: 1 members are there with itself, and 2 are needed; missing: 1, 2\n";
    assert!(health.out.starts_with(told), "{health:?}");

    cluster.start(1);
    cluster.wait_until_active();
    assert!(cluster.http(0, "/readyz").is_some());
    wait_for("a leader", || (leads(&cluster, 0) || leads(&cluster, 1)).then_some(()));
    wait_for("health", || (cluster.run(&["health"]).code == Some(0)).then_some(()));
    wait_for("status", || (cluster.run(&["status"]).code == Some(0)).then_some(()));

    // It is cut off: nobody would take its word for anything.
    let leader = cluster.leader();
    cluster.kill(1 - leader);
    wait_for("the end of its reign", || (!leads(&cluster, leader)).then_some(()));
    wait_for("a log", || cluster.log(leader).contains("too few members are there").then_some(()));
}

#[test]
fn a_replacement_that_would_end_the_group_is_refused() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "key", "value", "--timeout", "30s"]).ok();
    cluster.wait_until_active();
    cluster.kill(2);
    let files = |cluster: &Cluster| {
        ["cluster.toml", "replica-0/replica.toml"]
            .map(|name| std::fs::read(cluster.path(name)).unwrap())
    };
    let before = files(&cluster);
    let reinit = |cluster: &Cluster, more: &[&str]| -> Ran {
        cluster.run(&[&["replica", "reinit"], more].concat())
    };
    // Replica 2 was meant.
    let wrong = reinit(&cluster, &["--id", "0", "--timeout", "1s"]);
    let words =
        ["replica 0 is not replaced", "nothing was changed", "mend replica 2 first", "--force"];
    wrong.failed(1, &words);
    assert!(
        wrong.out.contains("1 of 3 replicas take part, and 2 are needed: nothing will"),
        "{wrong:?}"
    );
    reinit(&cluster, &["--id", "0", "--dry-run", "--timeout", "1s"]).failed(1, &["not replaced"]);
    assert_eq!(files(&cluster), before);
    assert!(!cluster.path("replica-0/replica.toml.pending").exists());
    cluster.run(&["kv", "put", "key", "still", "--timeout", "30s"]).ok();

    let planned = reinit(&cluster, &["--id", "2", "--dry-run"]).ok();
    assert!(planned.contains("2 of 3") && planned.contains("nothing was changed"), "{planned}");
    assert_eq!(files(&cluster), before);
    let replaced = reinit(&cluster, &["--id", "2", "--timeout", "60s"]).ok();
    assert!(replaced.contains("replica 2 is in incarnation 1"), "{replaced}");
    // One after the other, before the first is back.
    let early = wait_for("other members", || {
        let ran = reinit(&cluster, &["--id", "1", "--timeout", "1s"]);
        (!ran.error.contains("replica 0")).then_some(ran)
    });
    early.failed(1, &["mend replica 2 first"]);
    cluster.start(2);
    cluster.wait_until_active();
    // All are there: one that runs is replaced only by who says that it is meant.
    let unsure = wait_for("other members", || {
        let ran = reinit(&cluster, &["--id", "1", "--timeout", "1s"]);
        (!ran.error.contains("mend replica")).then_some(ran)
    });
    unsure.failed(1, &["replica 1 runs", "--yes"]);
    reinit(&cluster, &["--id", "1", "--yes"]).failed(1, &["in use by another process"]);
    cluster.run(&["kv", "put", "key", "after", "--timeout", "30s"]).ok();
}

/// A library that has the wall clock ahead by what stands in `CLOCK_OFF_S`.
fn wrong_clock(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <time.h>\n\
        int clock_gettime(clockid_t id, struct timespec *t) {\n\
        static int (*real)(clockid_t, struct timespec *);\n\
        if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, \"clock_gettime\");\n\
        int result = real(id, t);\n\
        if (id == CLOCK_REALTIME) t->tv_sec += atoll(getenv(\"CLOCK_OFF_S\"));\n\
        return result;\n}\n";
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    library
}

/// Days ahead, days behind, before 1970: each is served at once, and burns nothing for who comes after it.
#[test]
fn a_client_is_served_whatever_its_clock_shows() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    let library = wrong_clock(&cluster.dir());
    for (off_s, key) in
        [("86400", "ahead"), ("-86400", "behind"), ("-3000000000", "1931"), ("0", "right")]
    {
        let mut command = cluster.command(&["kv", "put", key, off_s]);
        command.env("LD_PRELOAD", &library).env("CLOCK_OFF_S", off_s);
        let out = command.output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && out.stdout == b"ok\n", "{off_s}: {error}");
    }
}

#[test]
fn a_wrong_clock_is_named_by_all_and_makes_its_replica_not_ready() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    let library = wrong_clock(&cluster.dir());
    for id in [0, 1] {
        cluster.start(id);
    }
    let mut command = cluster.replica(2);
    command.env("LD_PRELOAD", &library).env("CLOCK_OFF_S", "3600");
    cluster.start_as(2, command);
    let why = wait_for("a word of its clock", || {
        why_not_ready(&cluster, 2).filter(|why| why.contains("clock"))
    });
    assert!(why.contains("its clock is 3599.") || why.contains("its clock is 3600."), "{why}");
    assert!(cluster.http(2, "/readyz").is_none() && cluster.http(0, "/readyz").is_some());
    wait_for("its own log", || {
        cluster.log(2).contains("the clock of this replica is 3").then_some(())
    });
    for id in [0, 1] {
        wait_for("the others' logs", || {
            cluster.log(id).contains("the clock of replica 2 is 3").then_some(())
        });
        let offset = "perdura_member_clock_offset_milliseconds{replica=\"2\"} 3";
        wait_for("the others' metrics", || {
            cluster.http(id, "/metrics")?.contains(offset).then_some(())
        });
        assert!(!cluster.log(id).contains("the clock of this replica"));
    }
    let health = cluster.run(&["health"]).ok();
    assert!(health.contains("replica 2 does not take part: its clock is wrong"), "{health}");
    let words = [": the clock of replica 2 is 3", "replica 2: not ready: its clock is 3"];
    cluster.status_with(&words);
    assert_eq!(cluster.status()[2]["ready"], false);
    // The failure of another one does not make it right, and nothing could be ordered with it.
    let reinit = cluster.run(&["replica", "reinit", "--id", "1", "--timeout", "1s"]);
    reinit.failed(1, &["replica 1 is not replaced", "mend replica 2 first"]);
    cluster.kill(1);
    wait_for("a line about links", || cluster.log(2).contains("link down").then_some(()));
    let neither = wait_for("health", || {
        let health = cluster.run(&["health", "--timeout", "1s"]);
        (health.code != Some(0)).then_some(health)
    });
    assert!(matches!(neither.code, Some(3 | 4)), "{neither:?}");
    assert!(why_not_ready(&cluster, 2).is_some_and(|why| why.contains("its clock is 3")));
    assert!(!cluster.log(2).contains("agrees with the others' again"));
}

#[test]
fn a_replica_that_hangs_is_no_answer_in_time() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    cluster.halt(1);
    let health = wait_for("a word of it", || {
        let health = cluster.run(&["health", "--json", "--timeout", "1s"]);
        let said: Value = serde_json::from_str(&health.out).unwrap();
        (said["replicas"][1]["answers"] == false && health.code == Some(0)).then_some(said)
    });
    assert_eq!(health["health"], "writes");
    cluster.status_with(&["replica 1: http://", "no answer in time"]);
    send_signal(cluster.child(1), "-CONT");
}

#[test]
fn a_client_is_registered_by_its_public_key_alone() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    let file = cluster.path("bob.toml").display().to_string();
    let key = cluster.run(&["client", "key", "--key-out", &file]).ok();
    let bob = |arguments: &[&str]| cluster.run(&[arguments, &["--client", &file]].concat());
    bob(&["kv", "put", "key", "value", "--timeout", "2s"]).failed(4, &["not registered"]);
    let add = |name: &str| cluster.run(&["client", "add", name, "--public-key", key.trim()]);
    assert!(add("bob").ok().contains("client bob is registered with the public key"));
    bob(&["kv", "put", "key", "value", "--timeout", "30s"]).ok();
    // Certain, and no reason to try again.
    let taken = add("default");
    taken.failed(1, &["client default is not registered", "registered already"]);
    assert!(!taken.error.contains("run the command again"), "{taken:?}");
    cluster.run(&["client", "add", "x\ny", "--public-key", key.trim()]).failed(2, &["control"]);
    cluster.run(&["client", "add", "x", "--public-key", "12"]).failed(2, &["64 hexadecimal"]);
    let anybodys = format!("ee{}7f", "ff".repeat(30));
    cluster
        .run(&["client", "add", "x", "--public-key", &anybodys])
        .failed(2, &["small order", "`perdura client key`"]);
    assert!(!cluster.run(&["client", "list"]).ok().contains(&anybodys));
}

#[test]
fn secrets_that_others_can_read_are_warned_of() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    let (client, replica) = (cluster.path("client.toml"), cluster.path("replica-0/replica.toml"));
    let let_others = |file: &Path, mode| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let_others(&client, 0o644);
    let_others(&replica, 0o640);
    cluster.start(0);
    cluster.start(1);
    let warned = ["replica.toml: others may read it", "(mode 640)", "`chmod 600` it"];
    wait_for("a warning", || warned.iter().all(|part| cluster.log(0).contains(part)).then_some(()));
    let put = |cluster: &Cluster| cluster.run(&["kv", "put", "key", "value", "--timeout", "30s"]);
    let ran = put(&cluster);
    assert!(ran.error.contains("client.toml: others may read it"), "{ran:?}");
    ran.ok();
    let_others(&client, 0o600);
    let ran = put(&cluster);
    assert!(!ran.error.contains("others may read it"), "{ran:?}");
    assert!(!cluster.log(1).contains("others may read it"));
}
