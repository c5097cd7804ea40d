//! What the administrator orders while a cluster runs: the state's limit, clients, his own key.

use crate::common::{Cluster, Ran, run, wait_for};
use serde_json::{Value, json};

#[test]
fn the_limit_of_the_state_is_raised_while_the_cluster_runs() {
    let mut cluster = Cluster::start_all(&["--crash", "1", "--state-limit-mib", "1"]);
    // An argument has 128 KiB at most.
    let value = "v".repeat(120_000);
    let put = |cluster: &Cluster, key: u32| -> Ran {
        cluster.run(&["kv", "put", &key.to_string(), &value, "--timeout", "30s"])
    };
    (0..8).for_each(|key| drop(put(&cluster, key).ok()));
    put(&cluster, 8).failed(4, &["the store is full"]);
    wait_for("a warning", || cluster.log(0).contains("of the 1048576 that it may").then_some(()));
    let lower = cluster.run(&["limit", "--state-mib", "0"]);
    lower.failed(2, &["0 is not in 1..=1048576"]);
    // Nobody is asked where nobody sits.
    cluster.run(&["limit", "--state-mib", "2"]).failed(1, &["nothing was changed", "--yes"]);
    let out = cluster.run(&["limit", "--state-mib", "2", "--dry-run"]).ok();
    assert!(out.contains("nothing was changed"), "{out}");
    put(&cluster, 8).failed(4, &["the store is full"]);
    let out = cluster.run(&["limit", "--state-mib", "2", "--yes"]).ok();
    assert!(out.contains("2 MiB from now on") && out.contains("2054 MiB of memory"), "{out}");
    put(&cluster, 8).ok();
    let lower = cluster.run(&["limit", "--state-mib", "1", "--yes"]);
    lower.failed(1, &["2097152 bytes already", "nothing was changed"]);
    cluster.kill_all();
    for id in 0..3 {
        cluster.start(id);
    }
    cluster.wait_until_active();
    (9..17).for_each(|key| drop(put(&cluster, key).ok()));
    put(&cluster, 17).failed(4, &["limit of 2097152 bytes"]);
    wait_for("all replicas to say how full they are", || {
        let lines = cluster.status();
        assert!(lines.iter().all(|line| line["state_limit_bytes"] == 2_097_152), "{lines:?}");
        // Of 17 values with their keys and 64 bytes each.
        lines.iter().all(|line| line["state_bytes"] == 17 * 120_064 + 24).then_some(())
    });
}

#[test]
fn clients_are_listed_with_their_keys() {
    let cluster = Cluster::start_all(&["--byzantine", "1"]);
    cluster.run(&["client", "add", "carol", "--timeout", "30s"]).ok();
    cluster.run(&["client", "add", "bob"]).ok();
    let key = |file: &str| {
        let text = std::fs::read_to_string(cluster.path(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("# The public key is "));
        line.unwrap().trim_end_matches('.').to_owned()
    };
    let (bob, carol, first) =
        (key("client-bob.toml"), key("client-carol.toml"), key("client.toml"));
    let expected =
        format!("NAME     PUBLIC KEY\nbob      {bob}\ncarol    {carol}\ndefault  {first}\n");
    assert_eq!(cluster.run(&["client", "list"]).ok(), expected);
    // A backslash in a name is shown in a way that is nothing else's, and is itself in JSON.
    let odd = r#"a\n"b"#;
    cluster.run(&["client", "add", odd, "--public-key", &"5a".repeat(32)]).ok();
    let table = cluster.run(&["client", "list"]).ok();
    assert!(table.contains("\na\\\\n\"b"), "{table}");
    let all = [(odd, "5a".repeat(32)), ("bob", bob), ("carol", carol), ("default", first)];
    let all = all.map(|(name, key)| json!({"name": name, "public_key": key}));
    let lines = cluster.run(&["client", "list", "--json"]).ok();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, all);
    cluster.run(&["client", "revoke", "carol"]).ok();
    assert!(!cluster.run(&["client", "list"]).ok().contains("carol"));
}

#[test]
fn the_administrators_key_is_replaced_and_the_former_one_is_void() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["client", "add", "bob", "--timeout", "30s"]).ok();
    let (admin, pending) = (cluster.path("admin.toml"), cluster.path("admin.toml.pending"));
    let first = std::fs::read(&admin).unwrap();
    cluster.run(&["admin", "rotate"]).ok();
    assert!(!pending.exists());
    let second = std::fs::read(&admin).unwrap();
    assert_ne!(first, second);
    // The new one does what the former one did.
    cluster.run(&["client", "add", "carol"]).ok();
    cluster.run(&["client", "revoke", "carol"]).ok();
    std::fs::write(&admin, &first).unwrap();
    let void = cluster.run(&["client", "add", "dave", "--timeout", "1s"]);
    void.failed(1, &["not registered"]);
    // Interrupted before it was ordered, and after: it goes on with the same key.
    std::fs::write(&admin, &second).unwrap();
    cluster.kill_all();
    cluster.run(&["admin", "rotate", "--timeout", "300ms"]).failed(1, &["goes on with the key"]);
    let third = std::fs::read(&pending).unwrap();
    // Which key is in force nobody knows before.
    cluster.run(&["client", "add", "erin"]).failed(1, &["was interrupted", "admin rotate"]);
    for id in 0..3 {
        cluster.start(id);
    }
    cluster.wait_until_active();
    cluster.run(&["admin", "rotate", "--timeout", "30s"]).ok();
    assert_eq!(std::fs::read(&admin).unwrap(), third);
    std::fs::rename(&admin, &pending).unwrap();
    std::fs::write(&admin, &second).unwrap();
    cluster.run(&["admin", "rotate"]).ok();
    assert!(std::fs::read(&admin).unwrap() == third && !pending.exists());
    let out = cluster.run(&["client", "list"]).ok();
    assert!(out.contains("bob") && !out.contains("carol") && !out.contains("dave"), "{out}");
}

/// They know one member of three by now.
#[test]
fn files_from_before_two_replacements_are_called_old() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.wait_until_active();
    let old = tempfile::tempdir().unwrap();
    for file in ["cluster.toml", "client.toml"] {
        std::fs::copy(cluster.path(file), old.path().join(file)).unwrap();
    }
    let old = old.path().to_str().unwrap();
    run(&["health", "--cluster", old]).ok();
    for id in [1, 2] {
        cluster.stop(id);
        cluster.run(&["replica", "reinit", "--id", &id.to_string()]).ok();
        cluster.start(id);
        cluster.wait_until_active();
    }
    assert!(cluster.run(&["health"]).ok().starts_with("writes and reads\n"));
    let said = run(&["health", "--cluster", old]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.starts_with("unknown ("), "{said:?}");
    assert!(
        said.out.contains("cluster.toml is old: it is of configuration 0, and the group has 2")
    );
    let json = run(&["health", "--json", "--cluster", old]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["health"], &json["files_are_old"]), (&json!("unknown"), &json!(true)));
}
