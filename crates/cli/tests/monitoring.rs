//! What the alerts and the dashboard in `packaging` ask for is what replicas and servers say.

use crate::common::{Cluster, wait_for};
use crate::servers::Servers;
use serde_json::Value;
use std::collections::BTreeSet;

const ALERTS: &str = include_str!("../../../packaging/prometheus/alerts.yml");
const DASHBOARD: &str = include_str!("../../../packaging/grafana/perdura.json");

type Names = BTreeSet<String>;

/// The metrics that a text names.
fn named(text: &str) -> Names {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("perdura_") || word.starts_with("process_");
    words.filter(ours).map(str::to_owned).collect()
}

/// What the panels of the dashboard ask for.
fn asked_by_dashboard() -> Names {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.flat_map(|target| named(target["expr"].as_str().unwrap())).collect()
}

/// The metrics that are there, in what is scraped.
fn there(scraped: &str) -> Names {
    let lines = scraped.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

fn is_of_servers(name: &str) -> bool {
    name.starts_with("perdura_transaction") || name == "perdura_members_running"
}

#[test]
fn what_alerts_and_dashboard_ask_for_is_there() {
    let asked = &named(ALERTS) | &asked_by_dashboard();
    assert!(asked.len() > 40 && asked.iter().any(|name| is_of_servers(name)), "{asked:?}");

    let cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    // Of other members a replica tells what it knows, and some of that only after a while.
    wait_for("what is asked of replicas", || {
        let there = there(&cluster.http(0, "/metrics")?);
        let missing: Vec<&String> = asked.difference(&there).collect();
        missing.iter().all(|name| is_of_servers(name)).then_some(())
    });
    drop(cluster);

    let servers = Servers::start_all();
    servers.wait_until_active([3, 3]);
    let scraped = wait_for("what is asked of servers", || {
        let (_, scraped) = servers.http(0, "/metrics")?;
        asked.is_subset(&there(&scraped)).then_some(scraped)
    });
    let of_partition = |name: &str| {
        let mut lines = scraped.lines().filter(|line| line.starts_with(name));
        lines.any(|line| line.contains("partition=\"1\""))
    };
    for name in ["perdura_ready", "perdura_executed_slot", "perdura_transactions_pending"] {
        assert!(of_partition(name), "{name} in {scraped}");
    }
}

/// A replica knows `n` by the members of which it tells.
#[test]
fn a_replica_tells_of_all_members_but_itself() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    wait_for("a word of the others", || {
        let scraped = cluster.http(2, "/metrics")?;
        let of = |replica: usize| {
            scraped.contains(&format!("perdura_member_heard{{replica=\"{replica}\"}} 1"))
        };
        (of(0) && of(1) && !of(2) && scraped.contains("\nperdura_replica_links 2\n")).then_some(())
    });
}
