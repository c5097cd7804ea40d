//! Clusters of real processes on real disks and sockets.

use crate::common::batch::Batch;
use crate::common::{Cluster, Ran, edit, run, wait_for};
use serde_json::{Value, json};
use std::process::Command;

#[test]
fn the_tour_write_kill_the_leader_write_on_and_restart_it() {
    let mut cluster = Cluster::start_all(&["--byzantine", "1"]);
    assert_eq!(cluster.run(&["kv", "put", "hello", "world"]).ok(), "ok\n");
    assert_eq!(cluster.run(&["kv", "get", "hello"]).ok(), "world\n");
    let status = cluster.wait_until_active();
    for (id, replica) in status.iter().enumerate() {
        assert_eq!((&replica["id"], &replica["reachable"]), (&json!(id), &json!(true)));
        assert_eq!(replica["pid"], json!(cluster.child(id).id()));
        for number in ["view", "decided", "executed", "logged"] {
            assert!(replica[number].is_u64(), "{number} in {replica}");
        }
    }
    let leader = cluster.leader();
    cluster.kill(leader);
    assert_eq!(cluster.run(&["kv", "put", "hello", "again", "--timeout", "30s"]).ok(), "ok\n");
    assert_eq!(cluster.run(&["kv", "get", "hello", "--fast"]).ok(), "again\n");
    assert_ne!(cluster.leader(), leader);
    let status = wait_for("status", || {
        let status = cluster.run(&["status"]);
        (status.code == Some(0)).then_some(status.out)
    });
    assert!(status.contains("unreachable") && status.contains("leader"), "{status}");

    cluster.start(leader);
    cluster.wait_until_active();
    cluster.wait_until_level();
    for id in 0..4 {
        cluster.stop(id);
    }
    for id in 0..4 {
        cluster.start(id);
    }
    assert_eq!(cluster.run(&["kv", "get", "hello", "--timeout", "30s"]).ok(), "again\n");
}

#[test]
fn what_was_acknowledged_survives_kill_9_of_all_replicas_under_load() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    let mut batch = Batch::start(&cluster, &["--in-flight", "32", "--timeout", "60s"]);
    let line = |id: u64| json!({"id": id, "op": "put", "key": format!("k{id}"), "value": "v"});
    let mut answers: Vec<Value> = Vec::new();
    for round in 0..3 {
        // So few that the pipes hold them.
        for id in round * 200..(round + 1) * 200 {
            batch.send(line(id));
        }
        // Some of them are answered, others in flight.
        while answers.len() < round as usize * 200 + 50 {
            answers.push(batch.receive());
        }
        cluster.kill_all();
        for id in 0..3 {
            cluster.start(id);
        }
        while answers.len() < (round as usize + 1) * 200 {
            answers.push(batch.receive());
        }
    }
    assert!(batch.finish().is_empty());
    let ok: Vec<&Value> = answers.iter().filter(|answer| answer["outcome"] == "ok").collect();
    assert!(ok.len() >= 150, "only {} ok: {:?}", ok.len(), answers.last());
    let scan = cluster.run(&["kv", "scan", "--json", "--timeout", "30s"]).ok();
    let scan: Value = serde_json::from_str(&scan).unwrap();
    let entries = scan["entries"].as_array().unwrap();
    let keys: std::collections::BTreeSet<&str> =
        entries.iter().filter_map(|entry| entry["key"].as_str()).collect();
    for answer in ok {
        let key = format!("k{}", answer["id"]);
        assert!(keys.contains(key.as_str()), "{key} was acknowledged and is gone");
    }
}

#[test]
fn a_replica_that_lost_its_disk_is_replaced() {
    let mut cluster = Cluster::start_all(&["--byzantine", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    let dir = cluster.dir().display().to_string();
    let reinit = ["replica", "reinit", "--cluster", &dir, "--id", "3"];
    run(&[&reinit[..], &["--yes"]].concat()).failed(1, &["in use by another process"]);
    let former = std::fs::read_to_string(cluster.path("replica-3/replica.toml")).unwrap();
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.path("replica-3/data")).unwrap();

    // Interrupted: nobody answers.
    cluster.kill_all();
    let interrupted = [&reinit[..], &["--timeout", "200ms", "--force"]].concat();
    run(&interrupted).failed(1, &["not replaced yet", "run the command again"]);
    let pending = std::fs::read_to_string(cluster.path("replica-3/replica.toml.pending")).unwrap();
    // What comes after it knows only what it did itself.
    let refused = run(&[&reinit[..], &["--timeout", "200ms"]].concat());
    refused.failed(1, &["this run changed nothing", "may have replaced the replica already"]);
    for id in 0..3 {
        cluster.start(id);
    }
    assert!(run(&reinit).ok().contains("incarnation 1"));
    let latter = std::fs::read_to_string(cluster.path("replica-3/replica.toml")).unwrap();
    assert_eq!(latter, pending);
    assert_ne!(latter, former);
    assert!(!cluster.path("replica-3/replica.toml.pending").exists());

    cluster.start(3);
    cluster.wait_until_active();
    // It counts: without another one, three are left, the new one among them.
    cluster.kill(0);
    cluster.run(&["kv", "put", "hello", "again", "--timeout", "30s"]).ok();
    assert_eq!(cluster.run(&["kv", "get", "hello"]).ok(), "again\n");
    // The former one is told from the new one.
    cluster.stop(3);
    std::fs::write(cluster.path("replica-3/replica.toml"), former).unwrap();
    let ran: Ran = cluster.replica(3).output().unwrap().into();
    ran.failed(1, &["not those of replica 3"]);
}

#[test]
fn a_replacement_moves_what_is_there_aside() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    cluster.stop(1);
    let out = cluster.run(&["replica", "reinit", "--id", "1"]).ok();
    assert!(out.contains("data.old-0"), "{out}");
    assert!(cluster.path("replica-1/data.old-0/superblock").exists());
    cluster.start(1);
    cluster.wait_until_active();
    // The others start again from the same files.
    cluster.stop(0);
    cluster.start(0);
    cluster.wait_until_active();
    cluster.kill(2);
    assert_eq!(cluster.run(&["kv", "get", "hello", "--timeout", "30s"]).ok(), "world\n");
}

/// Found by chaos: it knew the others by their first keys only, refused the replaced one, and
/// waited for ever for a second signature on a state.
#[test]
fn a_replica_whose_checkpoints_rot_gets_a_state_from_one_that_was_replaced_before() {
    let mut cluster = Cluster::start_all(&["--crash", "1", "--checkpoint-interval", "64"]);
    let fill = |cluster: &Cluster| {
        let mut batch = Batch::start(cluster, &["--in-flight", "1"]);
        for number in 0..200 {
            batch.ask(&json!({"op": "put", "key": format!("k{}", number % 9), "value": "v"}));
        }
        batch.finish();
    };
    fill(&cluster);
    cluster.stop(2);
    cluster.run(&["replica", "reinit", "--id", "2"]).ok();
    cluster.start(2);
    cluster.wait_until_active();
    fill(&cluster);
    cluster.wait_until_level();
    cluster.stop(0);
    let checkpoints = std::fs::read_dir(cluster.path("replica-0/data/checkpoint")).unwrap();
    let mut rotten = 0;
    for file in checkpoints {
        let path = file.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        content[600] ^= 1;
        std::fs::write(&path, content).unwrap();
        rotten += 1;
    }
    assert!(rotten > 1);
    cluster.start(0);
    cluster.wait_until_active();
    assert!(cluster.log(0).contains("the state comes from peers"), "{}", cluster.log(0));
    // It counts.
    cluster.kill(1);
    cluster.run(&["kv", "put", "hello", "world", "--timeout", "30s"]).ok();
}

#[test]
fn client_keys_come_and_go_without_a_restart() {
    let cluster = Cluster::start_all(&["--byzantine", "1"]);
    cluster.run(&["client", "add", "bob"]).ok();
    let bob = cluster.path("client-bob.toml").display().to_string();
    cluster.run(&["kv", "put", "a", "x", "--client", &bob]).ok();
    cluster.run(&["client", "add", "bob"]).failed(1, &["nothing is overwritten"]);
    let elsewhere = cluster.path("elsewhere.toml").display().to_string();
    let again = cluster.run(&["client", "add", "bob", "--key-out", &elsewhere]);
    again.failed(1, &["\"bob\" is registered already"]);
    assert!(!cluster.path("elsewhere.toml.pending").exists());
    cluster.run(&["client", "revoke", "bob"]).ok();
    cluster.run(&["client", "revoke", "bob"]).failed(1, &["no client named \"bob\""]);
    let put = cluster.run(&["kv", "put", "a", "y", "--client", &bob, "--timeout", "2s"]);
    put.failed(4, &["refused", "not registered"]);
    assert_eq!(cluster.run(&["kv", "get", "a"]).ok(), "x\n");
}

#[test]
fn a_client_of_another_cluster_is_told_so_by_the_replicas() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    // The replicas have read it by then.
    cluster.wait_until_active();
    edit(&cluster.path("cluster.toml"), "cluster = \"", "cluster = \"00");
    let text = std::fs::read_to_string(cluster.path("cluster.toml")).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("cluster = \"")).unwrap();
    let id = id.trim_end_matches('"');
    edit(&cluster.path("cluster.toml"), id, &id[..32]);
    let put = cluster.run(&["kv", "put", "a", "x", "--timeout", "2s"]);
    put.failed(4, &["refused", "cluster"]);
    assert!(put.error.contains(&id[..32]) || put.error.contains("another cluster"), "{put:?}");
}

#[test]
fn rot_in_the_log_is_found_and_named() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    let mut batch = Batch::start(&cluster, &[]);
    for id in 0..50 {
        let put = json!({"id": id, "op": "put", "key": format!("{id}"), "value": "x"});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    batch.finish();
    cluster.wait_until_level();
    cluster.stop(2);
    let data = cluster.path("replica-2/data").display().to_string();
    let listing = run(&["inspect", "log", &data]).ok();
    assert!(listing.contains("vote for slot 3") && !listing.contains("FAILS"), "{listing}");
    // A vote in the middle of the log, in the bytes of its batch.
    let votes: Vec<&str> = listing.lines().filter(|line| line.contains("vote for slot ")).collect();
    let vote = votes[votes.len() / 2];
    let offset: usize = vote.trim().split(':').next().unwrap().parse().unwrap();
    let file = std::fs::read_dir(cluster.path("replica-2/data/log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().contains("free"))
        .min()
        .unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[offset + 40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let inspected = run(&["inspect", "log", &data]);
    inspected.failed(1, &["not everything verifies"]);
    assert!(inspected.out.contains("CHECKSUM FAILS"));

    // What is lost is known to be decided: it comes back from the others, loudly.
    cluster.start(2);
    // Enough that a certified prefix covers what was lost.
    let mut batch = Batch::start(&cluster, &[]);
    for id in 0..50 {
        let put = json!({"id": id, "op": "put", "key": format!("{id}"), "value": "y"});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    batch.finish();
    cluster.wait_until_active();
    assert!(cluster.log(2).contains("WARN"), "{}", cluster.log(2));
    cluster.kill(0);
    let scan = cluster.run(&["kv", "scan", "--timeout", "30s"]).ok();
    assert_eq!(scan.lines().count(), 50);
}

#[test]
fn a_full_disk_stops_one_replica_and_loses_nothing() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    cluster.stop(2);
    // Writes beyond 4 MiB of a file fail, as they would on a disk without space.
    let config = cluster.path("replica-2/replica.toml");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" replica --config \"$1\""])
        .arg(env!("CARGO_BIN_EXE_perdura"))
        .arg(&config);
    cluster.start_as(2, limited);
    let mut batch = Batch::start(&cluster, &[]);
    let value = "x".repeat(500_000);
    for id in 0..30 {
        let put = json!({"id": id, "op": "put", "key": format!("{id:02}"), "value": value});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    assert!(batch.finish().is_empty());
    assert_eq!(cluster.ended(2), Some(1));
    let log = cluster.log(2);
    assert!(log.contains("disk failed") || log.contains("data directory failed"), "{log}");

    cluster.start(2);
    cluster.wait_until_active();
    cluster.kill(0);
    let last = cluster.run(&["kv", "get", "29", "--timeout", "30s"]).ok();
    assert_eq!(last.len(), 500_001);
}

#[test]
fn a_replica_that_is_slow_on_purpose_says_so() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    for id in 0..cluster.len() {
        let mut command = cluster.replica(id);
        if id == 1 {
            command.args(["--log-device", "delay_ms=1.5,mb_s=20"]);
        }
        cluster.start_as(id, command);
    }
    let status = cluster.wait_until_active();
    cluster.run(&["kv", "put", "key", "value"]).ok();
    let counted = |id: usize| status[id]["experiments"].as_array().map_or(0, Vec::len);
    assert_eq!([counted(0), counted(1), counted(2)], [0, 1, 0]);
    cluster.status_with(&["replica 1: experiment: the log is", "(delay_ms=1.5,mb_s=20)"]);
    assert!(cluster.log(1).contains("experiment: the log is written no faster"));
    assert!(!cluster.log(0).contains("simulated device"));
}
