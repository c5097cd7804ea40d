//! Clusters of earlier versions go on. `fixtures/cluster-0.1.0.tar.gz` was made, written to and killed with `kill -9` by the program
//! as of e90b339: `perdura init --byzantine 1 --checkpoint-interval 64 --checkpoint-mib 1`, `put key1 value1` to `key26`, `del key7`.
//! Three of its replicas have a checkpoint, all have a log.

use crate::common::{Cluster, edit};
use std::net::TcpListener;
use std::path::Path;
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

#[test]
fn a_cluster_of_0_1_0_goes_on_with_its_data() {
    let mut cluster = Cluster::of(|dir| {
        std::fs::create_dir(dir).unwrap();
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let packed = files.join("cluster-0.1.0.tar.gz");
        let unpacked = Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(dir).status();
        assert!(unpacked.unwrap().success());
        move_ports(dir);
    });
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
