//! A store of several partitions goes on under the rules that it has, and is raised to the newest while it is used. Its directory,
//! `fixtures/partitions-rules-1.tar.gz`, was made, written to and killed with `kill -9` by the program as of 03f65c5a: `perdura init --crash 1
//! --partitions 2`, and one transaction that writes 100 to `account-0` up to `account-23`.

use crate::common::{edit, reserve_ports, wait_for};
use crate::servers::Servers;
use crate::transactions::{leave, move_money, result};
use perdura_client::Options;
use perdura_cluster::config::CLIENT_FILE;
use perdura_cluster::connect::{administrator, connect, connect_store, key, load_groups};
use perdura_protocol::{AdminCommand, Versions};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

/// All of its accounts hold 100 each; gives so many of each partition.
fn under_the_former_rules(each: usize) -> (Servers, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let packed = fixtures.join("partitions-rules-1.tar.gz");
    let unpack =
        Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(directory.path()).status();
    assert!(unpack.unwrap().success());
    // The ports that it had may be in use here.
    let ports = reserve_ports(6);
    for server in 0..3 {
        for port in [2 * server, 2 * server + 1] {
            let [had, has] = [33_100, ports].map(|base| format!("\"127.0.0.1:{}\"", base + port));
            edit(&directory.path().join("cluster/cluster.toml"), &had, &has);
            edit(
                &directory.path().join(format!("cluster/server-{server}/server.toml")),
                &had,
                &has,
            );
        }
    }
    let mut servers = Servers::of(directory);
    (0..3).for_each(|id| servers.start(id));
    let keys = servers.keys(each);
    (servers, keys)
}

/// Two clients move money so many times each.
fn movers(servers: &Servers, keys: &[String], times: u32) -> JoinHandle<()> {
    let (directory, keys) = (servers.path(""), keys.to_vec());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let groups = load_groups(&directory).unwrap();
            let key = key(&directory.join(CLIENT_FILE), &groups[0]).unwrap();
            let mut tasks = Vec::new();
            for seed in 1..=2 {
                let store = connect_store(&groups, &key).unwrap();
                tasks.push(tokio::spawn(move_money(store, keys.clone(), times, seed)));
            }
            for task in tasks {
                assert_eq!(task.await.unwrap(), 0, "nobody was killed");
            }
        });
    })
}

/// Raises one partition alone.
fn raise(servers: &Servers, partition: usize) {
    let groups = load_groups(&servers.path("")).unwrap();
    let administrator = administrator(&servers.path(""), &groups[0]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&groups[partition], &administrator).unwrap();
        let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
        let newest = Versions { service: 3, ..Versions::NEW };
        client.administer(AdminCommand::RaiseVersions(newest), &options).await.unwrap();
        client.close().await;
    });
}

fn sum(servers: &Servers, keys: &[String]) -> i64 {
    let reads: Vec<Value> = keys.iter().map(|key| json!({"read": key})).collect();
    let read = servers.transact(&json!(reads));
    let results = result(&read)["results"].as_array().unwrap_or_else(|| panic!("{read:?}")).clone();
    let balance = |one: &Value| one["value"].as_str().unwrap().parse::<i64>().unwrap();
    results.iter().map(balance).sum()
}

/// Votes, certificates and records of partitions under different rules are understood by each other, whichever of them is raised first.
#[test]
fn transactions_go_on_over_partitions_that_are_raised_and_partitions_that_are_not() {
    let (mut servers, keys) = under_the_former_rules(5);
    servers.wait_until_active([3, 3]);
    let status = |servers: &Servers| {
        let status = servers.wait_until_active([3, 3]);
        let rules = |partition: usize| {
            status["partitions"][partition]["replicas"][0]["rules_version"].clone()
        };
        [rules(0), rules(1)]
    };
    assert_eq!(status(&servers), [1, 1]);
    // What dead clients leave is on keys of its own.
    let (accounts, left) = ([&keys[..4], &keys[5..9]].concat(), [keys[4].clone(), keys[9].clone()]);
    let under_way = movers(&servers, &accounts, 60);
    let half = leave(&servers, &left, 1);
    raise(&servers, 0);
    let none_left = || {
        let listed = servers.run(&["txn", "pending"]);
        (listed.code == Some(0) && !listed.out.contains(&half)).then_some(())
    };
    wait_for("what was prepared before to be ended behind it", none_left);
    let shown = servers.run(&["txn", "show", &half]).ok();
    assert_eq!(shown.matches("aborted").count(), 2, "{shown}");
    for prepared in [1, 2] {
        let id = leave(&servers, &left, prepared);
        wait_for("what a raised and an unraised partition hold to be ended", || {
            let listed = servers.run(&["txn", "pending"]);
            (listed.code == Some(0) && !listed.out.contains(&id)).then_some(())
        });
        let shown = servers.run(&["txn", "show", &id]).ok();
        let ended = ["aborted", "voted to commit; committed"][prepared - 1];
        assert_eq!(shown.matches(ended).count(), 2, "{shown}");
    }
    under_way.join().unwrap();
    assert_eq!(status(&servers), [3, 1]);
    assert_eq!(sum(&servers, &accounts), 800);
    let under_way = movers(&servers, &accounts, 60);
    let raised = servers.run(&["upgrade", "--yes", "--timeout", "60s"]).ok();
    assert!(
        raised.contains("partition 1: the versions are raised to: rules 3, service 3"),
        "{raised}"
    );
    assert!(!raised.contains("partition 0: the versions are raised"), "{raised}");
    under_way.join().unwrap();
    // All that is on the disks is read back, under the rules that it was decided under.
    (0..3).for_each(|id| servers.kill(id));
    (0..3).for_each(|id| servers.start(id));
    assert_eq!(sum(&servers, &accounts), 800);
    assert_eq!(status(&servers), [3, 3]);
}
