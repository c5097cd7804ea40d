//! Clusters of earlier versions go on. `fixtures/cluster-0.1.0.tar.gz` was made, written to and killed with `kill -9` by the program
//! as of e90b339: `perdura init --byzantine 1 --checkpoint-interval 64 --checkpoint-mib 1`, `put key1 value1` to `key26`, `del key7`.
//! Three of its replicas have a checkpoint, all have a log.

use crate::common::{Cluster, edit, send_signal, wait_for};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The ports that it had may be in use here: it gets others.
fn move_ports(dir: &Path) {
    let text = std::fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let had = text.split("127.0.0.1:").skip(1).map(|rest| rest.split('"').next().unwrap());
    let free: Vec<TcpListener> =
        had.clone().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    for (index, (had, free)) in had.zip(&free).enumerate() {
        let from = format!("\"127.0.0.1:{had}\"");
        let to = format!("\"{}\"", free.local_addr().unwrap());
        edit(&dir.join("cluster.toml"), &from, &to);
        edit(&dir.join(format!("replica-{}/replica.toml", index / 2)), &from, &to);
    }
}

fn unpacked() -> Cluster {
    Cluster::of(|dir| {
        std::fs::create_dir(dir).unwrap();
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let packed = files.join("cluster-0.1.0.tar.gz");
        let packed = Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(dir).status();
        assert!(packed.unwrap().success());
        move_ports(dir);
    })
}

#[test]
fn a_cluster_of_0_1_0_goes_on_with_its_data() {
    let mut cluster = unpacked();
    for id in 0..cluster.len() {
        cluster.start(id);
    }
    cluster.wait_until_active();
    let mut expected: Vec<(String, String)> =
        (1..=26).map(|number| (format!("key{number}"), format!("value{number}"))).collect();
    expected.retain(|(key, _)| key != "key7");
    assert_eq!(cluster.entries(), expected.into_iter().collect());
    cluster.run(&["kv", "put", "key7", "again"]).ok();
    cluster.kill_all();
    for id in 0..cluster.len() {
        cluster.start(id);
    }
    cluster.wait_until_active();
    assert_eq!(cluster.entries().get("key7").map(String::as_str), Some("again"));
}

/// Until all of its replicas run a program that knows the newer rules it goes on under its own.
#[test]
fn a_cluster_of_0_1_0_is_upgraded_once_all_replicas_can_run_it() {
    let mut cluster = unpacked();
    for id in 0..3 {
        cluster.start(id);
    }
    let wait = ["--timeout", "60s"];
    cluster.run(&[&["kv", "put", "key7", "before"], &wait[..]].concat()).ok();
    let limit = ["limit", "--state-mib", "9000", "--yes"];
    cluster.run(&limit).failed(1, &["raise the versions first", "perdura upgrade"]);
    cluster.run(&["client", "list"]).failed(1, &["raise the versions first"]);
    let one_is_away = cluster.run(&["upgrade", "--yes", "--timeout", "1s"]);
    one_is_away.failed(1, &["nothing was changed", "--force"]);
    assert!(one_is_away.out.contains("what replica 3 runs and can run is not known"));
    cluster.start(3);
    cluster.wait_until_active();
    let in_force = |cluster: &Cluster| {
        let lines = cluster.status();
        lines.iter().map(|line| line["rules_version"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(in_force(&cluster), [0; 4]);
    let planned = cluster.run(&["upgrade", "--dry-run"]).ok();
    assert!(planned.contains("in force: rules 0, service 1"), "{planned}");
    assert!(planned.contains("all who say can run: rules 3, service 3"), "{planned}");
    assert!(planned.contains("--dry-run"), "{planned}");
    cluster.run(&["upgrade"]).failed(1, &["never lowered", "--yes"]);
    assert_eq!(in_force(&cluster), [0; 4]);
    let raised = cluster.run(&["upgrade", "--yes"]).ok();
    assert!(raised.contains("raised to: rules 3, service 3"), "{raised}");
    cluster.run(&limit).ok();
    assert!(cluster.run(&["upgrade", "--yes"]).ok().contains("nothing to raise"));
    cluster.kill(3);
    let one_is_away = cluster.run(&["upgrade", "--yes"]);
    one_is_away.failed(1, &["nothing to raise", "not all did"]);
    assert!(one_is_away.out.contains("what replica 3 runs and can run is not known"));
    // Of what is on the disks now all is read back.
    cluster.kill_all();
    for id in 0..4 {
        cluster.start(id);
    }
    cluster.wait_until_active();
    assert_eq!(in_force(&cluster), [3; 4]);
    assert_eq!(cluster.entries().get("key7").map(String::as_str), Some("before"));
    cluster.run(&limit).ok();
    let metrics = cluster.http(0, "/metrics").unwrap();
    assert!(metrics.contains("\nperdura_rules_version 3\n"), "{metrics}");
    assert!(metrics.contains("\nperdura_state_limit_bytes 9437184000\n"), "{metrics}");
}

/// All files in a directory, but for those that say who uses it, with what is in them.
fn files_in(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_in(&path));
        } else if !path.ends_with("lock") {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

/// Who is updated before all others can go back: one other that speaks as it does may lie.
#[test]
fn a_directory_is_not_converted_before_others_run_the_newer_program() {
    let mut cluster = unpacked();
    let data = cluster.path("replica-0");
    let before = files_in(&data);
    cluster.start(0);
    let waits = |cluster: &Cluster, words: &str| {
        wait_for(words, || {
            let said = cluster.http(0, "/healthz").filter(|said| said.contains(words))?;
            assert!(
                said.contains("is converted to 3 once 2 other replicas run a program"),
                "{said}"
            );
            assert!(cluster.http(0, "/readyz").is_none_or(|said| !said.starts_with("ready")));
            Some(())
        });
    };
    waits(&cluster, "replica 3: ");
    cluster.start(1);
    waits(&cluster, "replica 1 speaks version 4");
    cluster.run(&["kv", "put", "key1", "other", "--timeout", "1s"]).failed(4, &["is starting"]);
    assert!(!cluster.log(0).contains("replica starts"), "{}", cluster.log(0));
    send_signal(cluster.child(0), "-TERM");
    assert_eq!(cluster.ended(0), Some(0), "{}", cluster.log(0));
    assert!(files_in(&data) == before, "something has changed in {data:?}");
    for id in [0, 2, 3] {
        cluster.start(id);
    }
    cluster.wait_until_active();
    assert!(cluster.log(0).contains("converted from format 2 to 3"), "{}", cluster.log(0));
    assert_eq!(cluster.entries().len(), 25);
    assert_ne!(files_in(&data), before);
}
