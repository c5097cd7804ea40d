//! What users do wrong, and what goes wrong at the start of a replica: a clear error each time,
//! with the right exit code, and nothing lost.

use crate::common::{Cluster, Ran, edit, program, run, wait_for};
use std::net::TcpListener;
use std::path::Path;

/// Runs a replica that is expected to refuse.
fn start(cluster: &Cluster, id: usize) -> Ran {
    cluster.replica(id).output().unwrap().into()
}

/// All files below `directory` with their content.
fn content(directory: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => found.push((path.clone(), std::fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn bad_flags_are_explained_with_exit_code_2() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["unheard"], "unheard"),
        (&["simulate", "--seed", "1"], "unrecognized subcommand 'simulate'"),
        (&["bench", "paper", "dura-fig9"], "unrecognized subcommand 'paper'"),
        (&["init"], "DIR"),
        (&["init", "x", "--crash", "0"], "1..=8"),
        (&["init", "x", "--crash", "1", "--byzantine", "1"], "cannot be used with"),
        (&["init", "x", "--faults", "2"], "2,1"),
        (&["init", "x", "--faults", "0,1"], "at least one failure"),
        (&["init", "x", "--hosts", "a,b"], "the group has 4"),
        (&["init", "x", "--hosts", "a,,b,c"], "no host"),
        (&["init", "x", "--base-port", "0"], "--base-port"),
        (&["init", "x", "--base-port", "65535"], "no room"),
        (&["init", "x", "--durability", "maybe"], "sync"),
        (&["init", "x", "--public-http"], "--hosts"),
        (&["replica"], "--config"),
        (&["server"], "--config"),
        (&["init", "x", "--partition-by", "hash"], "--partitions"),
        (
            &["init", "x", "--partitions", "2", "--partition-by", "list"],
            "give hash, or range:B1,B2",
        ),
        (&["replica", "--config", "x", "--log-level", "loud"], "loud"),
        (&["replica", "--config", "x", "--log-device", "delay_ms=5"], "delay_ms=5,mb_s=130"),
        (&["replica", "--config", "x", "--log-device", "delay_ms=5,mb_s=0"], "from 0.1"),
        (&["dev", "x", "--log-device", "seek_ms=5,mb_s=1"], "seek_ms"),
        (&["replica", "reinit", "--cluster", "x"], "--id"),
        (&["replica", "reinit", "--cluster", "x", "--id", "256"], "256"),
        (&["client", "add"], "NAME"),
        (&["kv", "put", "--cluster", "x", "key"], "VALUE"),
        (&["kv", "put", "--cluster", "x", "", "value"], "a key has 1 to 4096 bytes"),
        (&["kv", "put", "--cluster", "x", "?", "value", "--base64"], "Base64"),
        (&["kv", "get", "key"], "--cluster"),
        (&["kv", "get", "--cluster", "x", "key", "--timeout", "soon"], "10s"),
        (&["kv", "get", "--cluster", "x", "key", "--timeout", "0"], "more than nothing"),
        (&["kv", "scan", "--cluster", "x", "--limit", "0"], "limit"),
        (&["kv", "cas", "--cluster", "x", "key", "value"], "--expect"),
        (&["kv", "cas", "--cluster", "x", "key", "--absent"], "VALUE"),
        (&["kv", "txn", "--cluster", "x", "["], "JSON"),
        (&["kv", "txn", "--cluster", "x", "--base64", "[{\"read\":\"YQ==\"}]"], "b64"),
        (&["kv", "txn", "--cluster", "x", "[{\"red\":\"a\"}]"], "red"),
        (&["kv", "batch", "--cluster", "x", "--in-flight", "0"], "--in-flight"),
        (&["bench", "scan", "--cluster", "x"], "scan"),
        (&["bench", "put", "--cluster", "x", "--value-size", "1048577"], "1048577"),
        (&["bench", "put", "--cluster", "x", "--seconds", "0"], "86400"),
        (&["bench", "put", "--cluster", "x", "--clients", "2", "--connections", "3"], "3"),
        (&["inspect", "table", "x"], "table"),
        (&["status"], "--cluster"),
    ];
    for (arguments, words) in cases {
        run(arguments).failed(2, &[words]);
    }
    assert!(!Path::new("x").exists());
}

#[test]
fn help_is_there_for_everything() {
    for command in [
        &["--help"][..],
        &["init", "--help"],
        &["dev", "--help"],
        &["replica", "--help"],
        &["replica", "reinit", "--help"],
        &["server", "--help"],
        &["client", "add", "--help"],
        &["kv", "txn", "--help"],
        &["kv", "batch", "--help"],
        &["bench", "put", "--help"],
        &["inspect", "log", "--help"],
        &["inspect", "checkpoint", "--help"],
    ] {
        assert!(run(command).ok().contains("Usage"), "{command:?}");
    }
    assert!(run(&["--version"]).ok().starts_with("perdura "));
    // What stands behind the first line is shown, too, and that line in the list of commands.
    let list = run(&["--help"]).ok();
    for (command, first, told) in [
        (&["status"][..], "How each replica stands", "Exit code, by what the replicas say"),
        (&["health"], "Whether the cluster can be written to", "Exit code: 0 writes and reads"),
        (&["upgrade"], "Raise the versions", "never lowered"),
        (&["limit"], "Raise the limit of the state", "three times the limit"),
        (&["dev"], "Run a whole cluster on this machine", "DIR/replica-I/log.txt"),
        (&["replica", "reinit"], "Run one replica", "moved aside, not deleted"),
        (&["kv", "export"], "Read and write the store", "which is one moment of it"),
        (&["kv", "import"], "Read and write the store", "any may be the last"),
        (&["kv", "delete-range"], "Read and write the store", "it may be run again"),
    ] {
        let help = run(&[command, &["--help"]].concat()).ok();
        // Lines are broken where they are too long.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(list.contains(first), "no {first:?} in {list}");
        assert!(help.contains(told), "no {told:?} in {help}");
    }
    for what in [&["log"][..], &["checkpoint"], &[]] {
        let help = run(&[&["inspect"], what, &["--help"]].concat()).ok();
        assert!(help.contains("Exit code 1") && help.contains("stop it first"), "{help}");
    }
}

#[test]
fn nothing_is_overwritten() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let before = content(&cluster.dir());
    let again: Ran = program().arg("init").arg(cluster.dir()).output().unwrap().into();
    again.failed(1, &["holds a cluster already", "perdura dev"]);
    assert_eq!(content(&cluster.dir()), before);

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("thesis.txt"), "mine").unwrap();
    let into: Ran = program().arg("init").arg(other.path()).output().unwrap().into();
    into.failed(1, &["not empty", "thesis.txt"]);
    assert_eq!(content(other.path()).len(), 1);

    let bounds: Ran =
        program().arg("dev").arg(cluster.dir()).args(["--byzantine", "2"]).output().unwrap().into();
    bounds.failed(1, &["u = 1 and r = 0", "another directory"]);
}

#[test]
fn a_missing_or_empty_data_directory_names_reinit() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let data = cluster.path("replica-1/data");
    let dir = cluster.dir().display().to_string();
    let reinit = format!("perdura replica reinit --cluster {dir} --id 1");
    std::fs::remove_file(data.join("superblock")).unwrap();
    start(&cluster, 1).failed(1, &["is empty", &reinit]);
    std::fs::remove_dir_all(&data).unwrap();
    start(&cluster, 1).failed(1, &["is missing", &reinit]);
    assert!(!data.exists());
}

#[test]
fn a_directory_of_another_cluster_or_replica_is_refused() {
    let (cluster, other) = (Cluster::init(&["--crash", "1"]), Cluster::init(&["--crash", "1"]));
    let file = cluster.path("replica-0/replica.toml");
    let foreign = other.path("replica-0/data");
    let before = content(&foreign);
    edit(&file, "data = \"data\"", &format!("data = {:?}", foreign.display().to_string()));
    start(&cluster, 0).failed(1, &["belongs to cluster", "replica.toml"]);
    assert_eq!(content(&foreign), before);
    edit(&file, &format!("{:?}", foreign.display().to_string()), "\"../replica-1/data\"");
    start(&cluster, 0).failed(1, &["belongs to replica 1", "replica.toml"]);
    let path = cluster.path("replica-0").display().to_string();
    let within = format!("is a directory, and a file is wanted: {path}/replica.toml, perhaps");
    run(&["replica", "--config", &path]).failed(1, &[&path, &within]);
}

#[test]
fn a_directory_is_no_file_and_the_one_in_it_that_may_be_meant_is_named() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let dir = cluster.dir().display().to_string();
    let told =
        |file: &str| format!("{dir} is a directory, and a file is wanted: {dir}/{file}, perhaps");
    run(&["replica", "--config", &dir]).failed(1, &[&told("replica-0/replica.toml")]);
    run(&["health", "--cluster", &dir, "--client", &dir]).failed(1, &[&told("client.toml")]);
    let key = ["client", "add", "a", "--cluster", &dir, "--key-out", &dir];
    run(&key).failed(1, &[&told("client-a.toml")]);
    let data = cluster.path("replica-0/data").display().to_string();
    let told = run(&["replica", "--config", &data]);
    told.failed(1, &["is a directory, and a file is wanted"]);
    assert!(!told.error.contains("perhaps"), "{told:?}");
}

#[test]
fn a_port_in_use_is_named() {
    let cluster = Cluster::init(&["--crash", "1"]);
    for field in ["listen", "http"] {
        let text = std::fs::read_to_string(cluster.path("replica-2/replica.toml")).unwrap();
        let start_of = format!("{field} = \"");
        let line = text.lines().find_map(|line| line.strip_prefix(start_of.as_str())).unwrap();
        let address = line.trim_end_matches('"');
        let holder = TcpListener::bind(address).unwrap();
        // Status and metrics are no reason not to run.
        if field == "listen" {
            start(&cluster, 2).failed(1, &["replica 2", address, "in use"]);
        }
        let dev: Ran = program().arg("dev").arg(cluster.dir()).output().unwrap().into();
        dev.failed(1, &["replica 2", address, "in use"]);
        drop(holder);
    }
}

#[test]
fn a_wrong_file_is_named_with_its_line_or_field() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let path = cluster.path("cluster.toml");
    let good = std::fs::read(&path).unwrap();
    edit(&path, "depth = 32", "depth = 32\ndeepness = 3");
    cluster.run(&["status"]).failed(1, &["cluster.toml, line", "deepness"]);
    start(&cluster, 0).failed(1, &["cluster.toml, line", "deepness"]);
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    start(&cluster, 0).failed(1, &["cluster.toml"]);
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    start(&cluster, 0).failed(1, &["cluster.toml is not a text file"]);
    std::fs::remove_file(&path).unwrap();
    start(&cluster, 0).failed(1, &["no file", "cluster.toml", "copy it from another host"]);
    cluster.run(&["status"]).failed(1, &["no file", "cluster.toml", "perdura init"]);
    std::fs::write(&path, &good).unwrap();

    edit(&cluster.path("replica-0/replica.toml"), "id = 0", "id = 7");
    start(&cluster, 0).failed(1, &["replica.toml", "id is 7", "0 to 2"]);
    edit(&cluster.path("client.toml"), "secret_key = \"", "secret_key = \"x");
    let get = cluster.run(&["kv", "get", "key"]);
    get.failed(1, &["client.toml", "secret_key"]);
}

#[test]
fn parameters_are_fixed_and_formats_known() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let path = cluster.path("cluster.toml");
    edit(&path, "depth = 32", "depth = 33");
    start(&cluster, 0).failed(1, &["parameters", "cluster.toml", "fixed"]);
    edit(&path, "depth = 33", "depth = 32\ncolour = \"red\"");
    start(&cluster, 0).failed(1, &["cluster.toml", "colour"]);
    edit(&path, "\ncolour = \"red\"", "");
    edit(&path, "service = \"kv\"", "service = \"ledger\"");
    start(&cluster, 0).failed(1, &["cluster.toml", "\"ledger\"", "kv and tuples"]);
    edit(&path, "format = 2", "format = 4");
    start(&cluster, 0).failed(1, &["cluster.toml", "format is 4"]);
}

#[test]
fn a_stale_replica_file_is_refused() {
    let (cluster, other) = (Cluster::init(&["--crash", "1"]), Cluster::init(&["--crash", "1"]));
    let file = cluster.path("replica-0/replica.toml");
    std::fs::copy(other.path("replica-0/replica.toml"), &file).unwrap();
    start(&cluster, 0).failed(1, &["not those of replica 0", "newer"]);
}

#[test]
fn a_key_of_another_cluster_is_refused_before_it_is_used() {
    let (cluster, other) = (Cluster::init(&["--crash", "1"]), Cluster::init(&["--crash", "1"]));
    let foreign = other.path("client.toml").display().to_string();
    cluster.run(&["kv", "get", "key", "--client", &foreign]).failed(1, &["is a key for cluster"]);
    std::fs::copy(other.path("admin.toml"), cluster.path("admin.toml")).unwrap();
    cluster.run(&["client", "add", "bob"]).failed(1, &["not that of the administrator"]);
    assert!(!cluster.path("client-bob.toml").exists());
}

/// Two that register a client of one name at once, or one and a replacement: one of them goes on, the other says so.
#[test]
fn keys_are_changed_by_one_command_at_a_time() {
    let cluster = Cluster::init(&["--crash", "1"]);
    // No replica runs, so it waits.
    let mut first = cluster.command(&["client", "add", "bob", "--timeout", "60s"]).spawn().unwrap();
    wait_for("a key", || cluster.path("client-bob.toml.pending").exists().then_some(()));
    cluster.run(&["client", "add", "bob"]).failed(1, &["another command is changing keys in"]);
    cluster.run(&["replica", "reinit", "--id", "1"]).failed(1, &["another command", "again"]);
    first.kill().unwrap();
    first.wait().unwrap();
    let error = cluster.run(&["client", "add", "bob", "--timeout", "0.1"]);
    error.failed(1, &["may not be registered; run the command again"]);
}

#[test]
fn a_rotten_superblock_is_reported_and_left_alone() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let path = cluster.path("replica-0/data/superblock");
    let mut bytes = std::fs::read(&path).unwrap();
    for copy in bytes.chunks_mut(4096) {
        copy[100] ^= 1;
    }
    std::fs::write(&path, &bytes).unwrap();
    start(&cluster, 0).failed(1, &["superblock is corrupt", "reinit"]);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn status_answers_when_nobody_is_there() {
    let cluster = Cluster::init(&[]);
    let status = cluster.status();
    assert_eq!(status.len(), 4);
    assert!(status.iter().all(|replica| replica["reachable"] == false));
}
