//! Clusters of several partitions, on servers that have members of several groups.

use crate::common::{
    Ran, program, reserve_ports, send_signal, wait_for, wait_for_end, wait_within_patience,
};
use bytes::Bytes;
use perdura_client::{Options, Reply};
use perdura_cluster::PartitionedCluster;
use perdura_cluster::config::CLIENT_FILE;
use perdura_protocol::{Decode, Encode, PartitionId};
use perdura_store::{StoreCommand, StoreReply};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Two groups of three replicas, on three servers or more: server 0 has replica 0 of partition 0, and of three replica 2 of partition 1.
pub struct Servers {
    directory: tempfile::TempDir,
    pub cluster: PartitionedCluster,
    running: Vec<Option<Child>>,
}

impl Servers {
    pub fn init(servers: u16, more: &[&str]) -> Servers {
        let directory = tempfile::tempdir().unwrap();
        let count = 2 * servers;
        let base = reserve_ports(count);
        let mut command = program();
        command.arg("init").arg(directory.path().join("cluster"));
        command.args(["--crash", "1", "--partitions", "2"]).args(more);
        command.args(["--servers", &servers.to_string(), "--base-port", &base.to_string()]);
        let out = Ran::from(command.output().unwrap()).ok();
        assert!(out.contains(" servers, each a group of 3 replicas"), "{out}");
        let made = Servers::of(directory);
        for server in &made.cluster.servers {
            for address in [&server.address, &server.http] {
                let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
                assert!((base..base + count).contains(&port), "{address} is not reserved");
            }
        }
        made
    }

    /// Of a store whose files are in this directory's `cluster`.
    pub fn of(directory: tempfile::TempDir) -> Servers {
        let path = directory.path().join("cluster/cluster.toml");
        let cluster = PartitionedCluster::load(&path).unwrap();
        let running = cluster.servers.iter().map(|_| None).collect();
        Servers { directory, cluster, running }
    }

    pub fn start_all() -> Servers {
        let mut servers = Servers::init(3, &[]);
        (0..3).for_each(|id| servers.start(id));
        servers
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("cluster").join(name)
    }

    pub fn log(&self, id: usize) -> String {
        std::fs::read_to_string(self.path(&format!("log-{id}.txt"))).unwrap_or_default()
    }

    pub fn start(&mut self, id: usize) {
        self.start_as(id, program());
    }

    /// By a command to which the program's arguments are added.
    fn start_as(&mut self, id: usize, mut command: Command) {
        assert!(self.running[id].is_none());
        let log = self.path(&format!("log-{id}.txt"));
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.args(["server", "--config"]).arg(self.path(&format!("server-{id}/server.toml")));
        command.stdout(File::open("/dev/null").unwrap()).stderr(log);
        self.running[id] = Some(command.spawn().unwrap());
    }

    /// kill -9.
    pub fn kill(&mut self, id: usize) {
        let mut child = self.running[id].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn signal(&self, id: usize, signal: &str) {
        send_signal(self.running[id].as_ref().unwrap(), signal);
    }

    /// SIGTERM; gives the exit code.
    #[track_caller]
    fn stop(&mut self, id: usize) -> Option<i32> {
        let mut child = self.running[id].take().unwrap();
        send_signal(&child, "-TERM");
        wait_for_end(&mut child).code()
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        let mut command: Command = program();
        command.args(arguments).arg("--cluster").arg(self.path(""));
        command.output().unwrap().into()
    }

    /// What `status --json` says.
    fn status(&self) -> Value {
        let ran = self.run(&["status", "--json"]);
        assert!(matches!(ran.code, Some(0 | 3 | 4)), "{ran:?}");
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Waits until so many replicas of each partition take part, and one leads.
    #[track_caller]
    pub fn wait_until_active(&self, counts: [usize; 2]) -> Value {
        let mut last = Value::Null;
        let active = wait_within_patience(|| {
            let status = self.status();
            last = status.clone();
            let enough = counts.iter().enumerate().all(|(partition, count)| {
                let replicas = status["partitions"][partition]["replicas"].as_array().unwrap();
                let active = replicas.iter().filter(|one| one["state"] == "active");
                let health = &status["partitions"][partition]["health"];
                active.count() == *count && health == "writes"
            });
            enough.then_some(status)
        });
        active.unwrap_or_else(|| {
            let logs: Vec<String> = (0..self.running.len()).map(|id| self.log(id)).collect();
            panic!("waited in vain for replicas to be active: {last:#}\n{}", logs.join("\n"))
        })
    }

    /// The head and the body of an answer on a server's HTTP port; none if it does not answer.
    pub fn http(&self, id: usize, path: &str) -> Option<(String, String)> {
        let address = &self.cluster.servers[id].http;
        let mut stream = TcpStream::connect(address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.lines().next()?.to_owned(), body.to_owned()))
    }

    /// What a group answers to a command.
    #[track_caller]
    fn call(&self, partition: u16, command: &StoreCommand) -> StoreReply {
        let group = self.cluster.group(PartitionId(partition));
        let key = perdura_cluster::connect::key(&self.path(CLIENT_FILE), &group).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = perdura_cluster::connect::connect(&group, &key).unwrap();
            let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
            let reply = client.call(command.to_bytes(), &options).await.unwrap();
            client.close().await;
            let Reply::Service(reply) = reply else { panic!("{reply:?}") };
            StoreReply::from_bytes(reply).unwrap()
        })
    }

    /// A key of a partition.
    fn key(&self, partition: u16) -> Bytes {
        let keys = (0..).map(|number: u32| Bytes::from(format!("key-{number}")));
        let of = |key: &Bytes| self.cluster.map.partition_of(key).0 == partition;
        keys.into_iter().find(of).unwrap()
    }

    fn put(&self, partition: u16, value: &'static str) {
        let key = self.key(partition);
        self.call(partition, &StoreCommand::Put { key, value: Bytes::from(value) });
    }

    fn get(&self, partition: u16) -> StoreReply {
        self.call(partition, &StoreCommand::Get { key: self.key(partition) })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn value(text: &'static str) -> StoreReply {
    StoreReply::Value(Some(Bytes::from(text)))
}

#[test]
fn groups_go_on_without_a_server_and_have_it_back() {
    let mut servers = Servers::start_all();
    let status = servers.wait_until_active([3, 3]);
    // First leaders are on different servers.
    for (partition, server) in [(0, 0), (1, 1)] {
        let first = &status["partitions"][partition]["replicas"][0];
        assert_eq!(first["server"], server, "{first}");
    }
    servers.put(0, "a");
    servers.put(1, "b");
    servers.kill(0);
    // The group that it led too.
    servers.put(0, "c");
    assert_eq!((servers.get(0), servers.get(1)), (value("c"), value("b")));
    let status = servers.wait_until_active([2, 2]);
    assert_eq!(status["servers"][0]["reachable"], false);
    assert_eq!(status["partitions"][1]["replicas"][2]["reachable"], false);
    // Whoever is slow is not heard in time.
    let table = wait_for("status", || {
        let table = servers.run(&["status"]).out;
        table.starts_with("writes and reads: 2 of 2 partitions (all)\n").then_some(table)
    });
    assert!(table.contains("server 0: http://127.0.0.1:"), "{table}");
    let health = servers.run(&["health", "--timeout", "1s"]).ok();
    assert!(health.contains("\npartition 1, replica 2 does not take part: "), "{health}");
    servers.start(0);
    servers.wait_until_active([3, 3]);
    servers.kill(1);
    servers.put(1, "d");
    assert_eq!((servers.get(0), servers.get(1)), (value("c"), value("d")));
    // Each line of a member names its partition, and each of its numbers has it as a label.
    let log = servers.log(0);
    assert!(log.contains("member{partition=0}") && log.contains("member{partition=1}"), "{log}");
    let (_, metrics) = servers.http(0, "/metrics").unwrap();
    for line in ["perdura_leader{partition=\"0\"} ", "perdura_leader{partition=\"1\"} "] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert_eq!(metrics.matches("# TYPE perdura_leader gauge").count(), 1);
    assert_eq!(metrics.matches("\nprocess_max_fds ").count(), 1);
    assert_eq!((servers.stop(0), servers.stop(2)), (Some(0), Some(0)));
    assert!(servers.log(2).contains("server 2 has stopped"));
}

/// A corrupt log, and a directory that is empty: of another disk, say.
#[test]
fn a_member_whose_disk_is_bad_takes_no_other_with_it() {
    let mut servers = Servers::init(3, &[]);
    std::fs::write(servers.path("server-0/partition-0/superblock"), b"rot").unwrap();
    std::fs::remove_dir_all(servers.path("server-2/partition-1")).unwrap();
    (0..3).for_each(|id| servers.start(id));
    let status = servers.wait_until_active([2, 2]);
    servers.put(0, "a");
    servers.put(1, "b");
    let told = |id: usize, words: &str| {
        let (head, body) = servers.http(id, "/healthz").unwrap();
        assert!(head.contains("503") && body.contains(words), "{head}: {body}");
        assert_eq!(body.lines().count(), 1, "only of one: {body}");
        let (head, _) = servers.http(id, "/readyz").unwrap();
        assert!(head.contains("503"), "{head}");
    };
    told(0, "partition 0: superblock is corrupt");
    told(2, "partition 1: replica 1: the data directory");
    assert!(servers.log(0).contains("this member has ended, the others go on"));
    assert!(servers.log(2).contains("reinit --cluster"), "{}", servers.log(2));
    assert!(servers.log(2).contains("--partition 1 --id 1"), "{}", servers.log(2));
    let (head, _) = servers.http(1, "/healthz").unwrap();
    assert!(head.contains("200"), "{head}");
    let (_, said) = servers.http(0, "/status").unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["partitions"][0]["state"], "stopped");
    assert_eq!(said["partitions"][1]["state"], "active");
    assert_eq!(status["servers"][0]["reachable"], true);
    assert_eq!(status["partitions"][0]["replicas"][0]["reachable"], false);
    // All have ended then, and not all of them in order.
    assert_eq!((servers.stop(0), servers.stop(1)), (Some(1), Some(0)));
    assert!(servers.log(0).contains("server 0: partition 0: "), "{}", servers.log(0));
}

#[test]
fn clients_are_registered_in_all_groups_and_again_until_all_have_them() {
    let mut servers = Servers::start_all();
    servers.wait_until_active([3, 3]);
    let out = servers.run(&["client", "add", "alice"]).ok();
    assert!(out.contains("client alice is registered"), "{out}");
    servers.run(&["client", "add", "alice"]).failed(1, &["is there already"]);
    let taken = servers.run(&["client", "add", "default"]);
    taken.failed(1, &["partition 0 has default", "Nothing was changed", ".pending"]);
    // Partition 1 has no quorum: two of its members are gone, and their servers run on.
    for id in [0, 2] {
        assert_eq!(servers.stop(id), Some(0));
        let data = servers.path(&format!("server-{id}/partition-1"));
        std::fs::rename(&data, servers.path(&format!("aside-{id}"))).unwrap();
        servers.start(id);
    }
    wait_for("partition 0 alone to go on", || {
        let status = servers.status();
        let health = |partition: usize| status["partitions"][partition]["health"].clone();
        (health(0) == "writes" && health(1) != "writes").then_some(())
    });
    wait_for("one group to have it", || {
        let half = servers.run(&["client", "add", "bob", "--timeout", "1s"]);
        half.failed(1, &["run the command again", "bob.toml.pending", "\npartition 1: "]);
        half.error.contains("registered in 1 of 2 partitions").then_some(())
    });
    for id in [0, 2] {
        assert_eq!(servers.stop(id), Some(1));
        let data = servers.path(&format!("server-{id}/partition-1"));
        std::fs::rename(servers.path(&format!("aside-{id}")), &data).unwrap();
        servers.start(id);
    }
    servers.wait_until_active([3, 3]);
    let list = servers.run(&["client", "list", "--timeout", "30s", "--json"]).ok();
    let of = |list: &str, name: &str| {
        let lines = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.into_iter().find(|line| line["name"] == name).map(|line| line["partitions"].clone())
    };
    assert_eq!(of(&list, "bob"), Some(serde_json::json!([0])));
    servers.run(&["client", "add", "bob", "--timeout", "30s"]).ok();
    let list = servers.run(&["client", "list", "--json"]).ok();
    assert_eq!(of(&list, "bob"), Some(serde_json::json!([0, 1])));
    servers.run(&["client", "revoke", "bob"]).ok();
    servers.run(&["client", "revoke", "bob"]).failed(1, &["no client named"]);
    assert_eq!(of(&servers.run(&["client", "list", "--json"]).ok(), "bob"), None);
}

/// Its files are shared out: no group takes them from the others, nor from the disk.
#[test]
fn a_server_that_may_open_few_files_turns_strangers_away_and_serves() {
    let mut servers = Servers::init(3, &[]);
    for id in 0..3 {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 150; exec \"$@\"", "sh"]);
        limited.arg(program().get_program());
        servers.start_as(id, limited);
    }
    servers.put(0, "a");
    let address = |id: usize| servers.cluster.servers[id].address.clone();
    let held: Vec<TcpStream> =
        (0..600).filter_map(|n| TcpStream::connect(address(n % 3)).ok()).collect();
    servers.put(0, "b");
    servers.put(1, "c");
    assert_eq!((servers.get(0), servers.get(1)), (value("b"), value("c")));
    assert!((0..3).all(|id| servers.log(id).contains("150 files open")));
    drop(held);
    (0..3).for_each(|id| assert_eq!(servers.stop(id), Some(0)));
}

#[test]
fn a_servers_file_that_others_can_read_is_warned_of() {
    let mut servers = Servers::init(3, &[]);
    let let_others = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(servers.path("server-0/server.toml"), let_others).unwrap();
    servers.start(0);
    servers.start(1);
    let warning = "server.toml: others may read it or write to it (mode 644)";
    wait_for("a warning", || servers.log(0).contains(warning).then_some(()));
    // It is said before it can be asked to stop.
    servers.put(0, "a");
    assert_eq!((servers.stop(0), servers.stop(1)), (Some(0), Some(0)));
    assert!(!servers.log(1).contains("others may read it"));
}

/// Its members are replaced one after the other; it starts when all are.
#[test]
fn a_server_that_lost_its_disk_is_replaced_member_by_member() {
    let mut servers = Servers::start_all();
    servers.wait_until_active([3, 3]);
    servers.put(0, "a");
    servers.kill(2);
    std::fs::remove_dir_all(servers.path("server-2")).unwrap();
    // It waits for the one that is gone for all of its time, and may be run again.
    let reinit = |servers: &Servers, more: &[&str]| {
        servers.run(&[&["replica", "reinit", "--timeout", "1s", "--yes"], more].concat())
    };
    let replaced = |servers: &Servers, more: &[&str]| {
        wait_for("a replacement", || {
            let ran = reinit(servers, more);
            (ran.code == Some(0)).then_some(ran.out)
        })
    };
    reinit(&servers, &["--id", "1"]).failed(2, &["the partitions of this cluster are 0 to 1"]);
    let beyond = reinit(&servers, &["--id", "1", "--partition", "2"]);
    beyond.failed(2, &["the partitions of this cluster are 0 to 1"]);
    let out = replaced(&servers, &["--id", "1", "--partition", "1"]);
    assert!(out.contains("partition 1: replica 1 is in incarnation 1"), "{out}");
    servers.start(2);
    let mut child = servers.running[2].take().unwrap();
    assert_eq!(wait_for_end(&mut child).code(), Some(1));
    let refused = "no [[member]] has partition 0, whose replica 2 is on server 2";
    assert!(servers.log(2).contains(refused), "{}", servers.log(2));
    let out = replaced(&servers, &["--id", "2", "--partition", "0"]);
    assert!(out.contains("server-2/server.toml"), "{out}");
    assert!(!servers.path("server-2/partition-0.toml.pending").exists());
    servers.start(2);
    servers.wait_until_active([3, 3]);
    servers.kill(1);
    assert_eq!(servers.get(0), value("a"), "with the new one");
}

#[test]
fn what_the_administrator_orders_is_ordered_in_all_groups() {
    let servers = Servers::start_all();
    servers.wait_until_active([3, 3]);
    servers.run(&["admin", "rotate", "--timeout", "30s"]).ok();
    let limit = servers.run(&["limit", "--state-mib", "9000", "--yes", "--timeout", "30s"]).ok();
    assert!(limit.contains("partition 1: the state may take 9000 MiB"), "{limit}");
    let lower = servers.run(&["limit", "--state-mib", "8999", "--yes"]);
    lower.failed(1, &["partition 0: ", "partition 1: ", "is lower"]);
    let upgrade = servers.run(&["upgrade", "--dry-run"]).ok();
    assert!(upgrade.contains("partition 1: in force: "), "{upgrade}");
    let former = servers.path("former.toml");
    std::fs::copy(servers.path("admin.toml"), &former).unwrap();
    servers.run(&["admin", "rotate", "--timeout", "30s"]).ok();
    servers.run(&["client", "add", "alice", "--timeout", "30s"]).ok();
    std::fs::copy(&former, servers.path("admin.toml")).unwrap();
    let void = servers.run(&["client", "list", "--timeout", "1s"]);
    assert!(
        void.error.contains("partition 0: ") && void.error.contains("partition 1: "),
        "{void:?}"
    );
}

/// Nothing is done by half.
#[test]
fn what_knows_one_group_only_refuses() {
    let servers = Servers::init(3, &["--partition-by", "range:m"]);
    let config = servers.path("server-0/server.toml").display().to_string();
    let started = program().args(["replica", "--config", &config]).output().unwrap();
    assert_eq!(Ran::from(started).code, Some(1));
    for command in [&["bench", "put"][..], &["space", "list"]] {
        servers.run(command).failed(1, &["several partitions", "Nothing was done"]);
    }
    let dir = servers.path("other").display().to_string();
    for (more, words) in [
        (&["--partitions", "2", "--servers", "2"][..], "take 3 to 6 servers"),
        (&["--partitions", "2", "--service", "tuples"], "no keys that could be spread"),
        (&["--partitions", "2", "--partition-by", "range:b,a"], "have 1 bounds, here are 2"),
        (&["--partitions", "65"], "65 is not in 1..=64"),
        (&["--partitions", "1", "--servers", "3"], "for two partitions and more"),
        (
            &["--partitions", "2", "--hosts", "10.0.0.1", "--servers", "3"],
            "names 1 hosts, and there are 3 servers",
        ),
    ] {
        let mut command = program();
        let ran = command.args(["init", &dir, "--crash", "1", "--base-port", "7000"]).args(more);
        Ran::from(ran.output().unwrap()).failed(2, &[words]);
        assert!(!servers.path("other").exists(), "{words}");
    }
}
