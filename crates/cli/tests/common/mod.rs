//! What tests with real processes share: the program, a cluster of replicas, polling.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod batch;
pub mod load;
pub mod processes;

pub use processes::*;

use perdura_cluster::ServiceKind;
use perdura_cluster::create::{self, Place};
use perdura_protocol::Faults;
use perdura_protocol::configuration::{Durability, Parameters};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program, to be given arguments.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perdura"));
    command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE").env_remove("PERDURA_CLUSTER");
    command
}

/// Runs the program to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Ran {
    program().args(arguments).output().unwrap().into()
}

/// Rounds of a test that has as many as it is given time for.
pub fn rounds(usual: usize) -> usize {
    std::env::var("PERDURA_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Draws that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Takes one of them out.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> T {
        from.swap_remove(self.below(from.len() as u64) as usize)
    }

    /// All of them, in any order.
    pub fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        (0..all.len()).map(|_| self.take(&mut all)).collect()
    }
}

/// Replicas of the largest group that a test makes.
const MOST_REPLICAS: u16 = 10;

/// A cluster in a temporary directory. Its processes end with it. With `PERDURA_KEEP` the directory
/// stays if the test failed.
pub struct Cluster {
    directory: tempfile::TempDir,
    replicas: Vec<Option<Child>>,
    // How long each log was when its replica was started last.
    logged: Vec<usize>,
}

impl Cluster {
    /// Files only.
    pub fn init(bounds: &[&str]) -> Cluster {
        let ports = reserve_ports(2 * MOST_REPLICAS).to_string();
        Cluster::of(|dir| {
            let mut command = program();
            command.arg("init").arg(dir).args(["--base-port", &ports]).args(bounds);
            command.output().map(Ran::from).unwrap().ok();
        })
    }

    /// Files only, of one whose service starts under an earlier version of its rules.
    pub fn init_under(service: ServiceKind, version: u16) -> Cluster {
        let ports = reserve_ports(2 * MOST_REPLICAS);
        Cluster::of(|dir| {
            let faults = Faults::new(1, 0).unwrap();
            let places = Place::all(faults.n(), &[], Some(ports), false).unwrap();
            let tune = |parameters: &mut Parameters| parameters.versions.service = version;
            create::make(dir, faults, Durability::Sync, service.name(), tune, &places).unwrap();
        })
    }

    /// Of files that are made in a directory, which is not there yet.
    pub fn of(make: impl FnOnce(&Path)) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().join("cluster");
        make(&dir);
        let replicas = (0..).take_while(|id| dir.join(format!("replica-{id}")).exists());
        let replicas: Vec<Option<Child>> = replicas.map(|_| None).collect();
        let logged = vec![0; replicas.len()];
        Cluster { directory, replicas, logged }
    }

    /// A cluster of which all replicas run.
    pub fn start_all(bounds: &[&str]) -> Cluster {
        let mut cluster = Cluster::init(bounds);
        for id in 0..cluster.len() {
            cluster.start(id);
        }
        cluster
    }

    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    pub fn dir(&self) -> PathBuf {
        self.directory.path().join("cluster")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// The command that runs a replica.
    pub fn replica(&self, id: usize) -> Command {
        let mut command = program();
        let config = self.path(&format!("replica-{id}/replica.toml"));
        command.args(["replica", "--log-level", "info", "--config"]).arg(config);
        command
    }

    /// Where a replica's log goes.
    pub fn log(&self, id: usize) -> String {
        std::fs::read_to_string(self.path(&format!("log-{id}.txt"))).unwrap_or_default()
    }

    pub fn start(&mut self, id: usize) {
        let command = self.replica(id);
        self.start_as(id, command);
    }

    pub fn start_as(&mut self, id: usize, mut command: Command) {
        assert!(self.replicas[id].is_none());
        self.logged[id] = self.log(id).len();
        let path = self.path(&format!("log-{id}.txt"));
        let log = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let child = command.stdout(File::open("/dev/null").unwrap()).stderr(log).spawn();
        self.replicas[id] = Some(child.unwrap());
    }

    /// With its output where the command has it.
    pub fn start_with(&mut self, id: usize, command: &mut Command) {
        assert!(self.replicas[id].is_none());
        self.replicas[id] = Some(command.spawn().unwrap());
    }

    pub fn http_address(&self, id: usize) -> String {
        let files = std::fs::read_to_string(self.path("cluster.toml")).unwrap();
        let mut addresses = files.lines().filter_map(|line| line.strip_prefix("http = "));
        addresses.nth(id).unwrap().trim_matches('"').to_owned()
    }

    /// What a replica answers on its HTTP port; none if it does not.
    pub fn http(&self, id: usize, path: &str) -> Option<String> {
        let address = self.http_address(id);
        let mut stream = TcpStream::connect(&address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    pub fn child(&mut self, id: usize) -> &mut Child {
        self.replicas[id].as_mut().unwrap()
    }

    /// kill -9.
    pub fn kill(&mut self, id: usize) {
        let mut child = self.replicas[id].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGSTOP: its links stay, and it neither hears nor says anything.
    pub fn halt(&mut self, id: usize) {
        send_signal(self.child(id), "-STOP");
    }

    /// kill -9 of all that run, at once.
    pub fn kill_all(&mut self) {
        for child in self.replicas.iter_mut().flatten() {
            child.kill().unwrap();
        }
        for mut child in self.replicas.iter_mut().filter_map(Option::take) {
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and in order. Not before it listens for that: it dies of it else.
    #[track_caller]
    pub fn stop(&mut self, id: usize) {
        let begun = self.logged[id];
        let starts = |log: String| log.get(begun..)?.contains("replica starts").then_some(());
        wait_for("a replica to have started", || starts(self.log(id)));
        let mut child = self.replicas[id].take().unwrap();
        send_signal(&child, "-TERM");
        let status = wait_for_end(&mut child);
        assert_eq!(status.code(), Some(0), "{}", self.log(id));
    }

    /// Waits until a replica ends by itself.
    #[track_caller]
    pub fn ended(&mut self, id: usize) -> Option<i32> {
        let mut child = self.replicas[id].take().unwrap();
        wait_for_end(&mut child).code()
    }

    /// `perdura` with `--cluster`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).arg("--cluster").arg(self.dir());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    /// All keys of the store with their values; nobody may be writing.
    #[track_caller]
    pub fn entries(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        loop {
            // What begins a page ended the one before it.
            let start = found.last_key_value().map_or("", |(key, _): (&String, _)| key.as_str());
            let scan = ["kv", "scan", "--json", "--limit", "10000", "--timeout", "60s", "--start"];
            let out = self.run(&[&scan[..], &[start]].concat()).ok();
            let page: Value = serde_json::from_str(&out).unwrap();
            for entry in page["entries"].as_array().unwrap() {
                let text = |field: &str| entry[field].as_str().unwrap().to_owned();
                found.insert(text("key"), text("value"));
            }
            if page["more"] == false {
                return found;
            }
        }
    }

    /// What `status --json` says of each replica.
    pub fn status(&self) -> Vec<Value> {
        let ran = self.run(&["status", "--json"]);
        assert!(matches!(ran.code, Some(0 | 3 | 4)), "{ran:?}");
        let out = ran.out;
        let mut answer: Value = serde_json::from_str(&out).unwrap();
        let Value::Array(replicas) = answer["replicas"].take() else { panic!("{out}") };
        replicas
    }

    /// What `status` says once that is in it: whoever is slow is not heard in time.
    #[track_caller]
    pub fn status_with(&self, words: &[&str]) -> Ran {
        let mut last = String::new();
        let found = wait_within_patience(|| {
            let ran = self.run(&["status"]);
            last = format!("{ran:?}");
            words.iter().all(|word| ran.out.contains(word)).then_some(ran)
        });
        found.unwrap_or_else(|| panic!("status does not say {words:?}: {last}"))
    }

    /// Waits until one replica leads and as many as are running take part.
    #[track_caller]
    pub fn wait_until_active(&self) -> Vec<Value> {
        let running = self.replicas.iter().flatten().count();
        wait_for("all running replicas to be active", || {
            let status = self.status();
            let active = status.iter().filter(|replica| replica["state"] == "active").count();
            (active == running).then_some(status)
        })
    }

    /// Waits until all replicas that are there have executed the same, and something.
    #[track_caller]
    pub fn wait_until_level(&self) {
        wait_for("all replicas to have executed the same", || {
            let status = self.status();
            let there = status.iter().filter(|replica| replica["reachable"] == true);
            let executed: Vec<u64> = there.filter_map(|one| one["executed"].as_u64()).collect();
            let level = executed.iter().all(|slot| *slot > 0 && *slot == executed[0]);
            level.then_some(())
        });
    }

    /// Who leads in the latest view that a log knows. Waits for no replica, as some may be halted.
    pub fn leader_in_logs(&self) -> usize {
        let view = |line: &str| -> Option<usize> {
            let (_, after) = line.split_once("another leader view=")?;
            after.split(' ').next()?.parse().ok()
        };
        let logs = (0..self.len()).map(|id| self.log(id));
        let views = logs.filter_map(|log| log.lines().filter_map(view).max());
        views.max().unwrap_or(0) % self.len()
    }

    /// Who leads in the latest view.
    #[track_caller]
    pub fn leader(&self) -> usize {
        wait_for("a leader", || {
            let status = self.status();
            let leaders = status.iter().filter(|replica| replica["leader"] == true);
            let latest = leaders.max_by_key(|replica| replica["view"].as_u64())?;
            latest["id"].as_u64().map(|id| id as usize)
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        for (id, child) in self.replicas.iter_mut().enumerate() {
            if let Some(mut child) = child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
            if failed {
                let log = self.directory.path().join(format!("cluster/log-{id}.txt"));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(20).collect();
                for line in tail.iter().rev() {
                    eprintln!("replica {id} | {line}");
                }
            }
        }
        if failed && std::env::var_os("PERDURA_KEEP").is_some() {
            self.directory.disable_cleanup(true);
            eprintln!("kept: {}", self.directory.path().display());
        }
    }
}

/// Replaces text in a file; it has to be there.
pub fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "no {from:?} in {text}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}
