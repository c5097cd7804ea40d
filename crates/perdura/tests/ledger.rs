//! The example, as three processes, and in this one.

#[path = "../examples/ledger.rs"]
#[allow(dead_code)] // Its `main`.
mod example;

use crate::program;
pub use example::Ledger;
use example::{Command, Query, Refused};
use perdura::{CallError, Cluster, Faults, OpenError, Replica, Shutdown, blocking::Client};
use perdura_test::{Step, check, simulate};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn output(arguments: &[&str]) -> String {
    let ran = program().args(arguments).output().unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

struct Processes {
    dir: PathBuf,
    children: Vec<Child>,
}

impl Processes {
    fn start(dir: &Path) -> Processes {
        let mut processes = Processes { dir: dir.to_owned(), children: Vec::new() };
        (0..3).for_each(|id| processes.children.push(processes.replica(id)));
        processes
    }

    fn replica(&self, id: usize) -> Child {
        let config = self.dir.join(format!("replica-{id}/replica.toml"));
        let mut replica = program();
        replica.args(["replica", "--log-level", "error", "--config"]).arg(config);
        replica.spawn().unwrap()
    }

    /// The one that says that it leads.
    fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let status = output(&["status", "--json", "--cluster", self.dir.to_str().unwrap()]);
            let mut replicas = status.split("{\"id\":").skip(1);
            let leads = replicas.position(|replica| replica.contains("\"leader\":true"));
            if let Some(id) = leads {
                return id;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn deposit(to: &str, amount: u64) -> Command {
    Command::Deposit { to: to.to_owned(), amount }
}

fn transfer(from: &str, to: &str, amount: u64) -> Command {
    Command::Transfer { from: from.to_owned(), to: to.to_owned(), amount }
}

/// Three processes, of which the leader is killed while money moves: no call fails, and none is lost.
#[test]
fn a_leader_is_killed_while_money_moves() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    output(&["init", dir.to_str().unwrap(), "--crash", "1"]);
    let mut processes = Processes::start(&dir);
    let client = Client::<Ledger>::open(&dir).unwrap();
    assert_eq!(client.execute(&deposit("bank", 1_000_000)).unwrap(), 1_000_000);
    let (moved, killed) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for payer in 0..4 {
            let (client, moved, killed) = (&client, &moved, &killed);
            scope.spawn(move || {
                let name = format!("account-{payer}");
                let mut after = 0;
                while after < 50 {
                    after += u64::from(killed.load(Ordering::SeqCst));
                    client.execute(&transfer("bank", &name, 1)).unwrap();
                    moved.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        while moved.load(Ordering::SeqCst) < 200 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let leader = processes.leader();
        processes.children[leader].kill().unwrap();
        killed.store(true, Ordering::SeqCst);
    });
    let moved = moved.into_inner();
    let balance = |name: &str| client.query(&Query::Balance(name.to_owned())).unwrap();
    assert_eq!((0..4).map(|payer| balance(&format!("account-{payer}"))).sum::<u64>(), moved);
    assert_eq!(balance("bank"), 1_000_000 - moved);
    assert_eq!(client.query(&Query::Total).unwrap(), 1_000_000);
    let paid = output(&["pay", dir.to_str().unwrap(), "bank", "alice", "7"]);
    assert_eq!(paid, "alice has 7\n");
    assert!(output(&["health", "--cluster", dir.to_str().unwrap()]).contains("writes"));
}

/// The same with replicas in this process, which the library makes and runs.
#[test]
fn a_cluster_is_made_and_run_by_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let builder = Cluster::builder(&dir).faults(Faults::byzantine(1).unwrap());
    let cluster = builder.create::<Ledger>().unwrap();
    assert_eq!(cluster.replicas(), 4);
    let again = Cluster::builder(&dir).create::<Ledger>().unwrap_err();
    assert!(again.to_string().contains("holds a cluster already"), "{again}");
    let few = Cluster::builder(directory.path().join("few")).hosts(["a.example"]);
    let few = few.create::<Ledger>().unwrap_err().to_string();
    assert!(few.contains("the cluster has 4 replicas") && !few.contains("--"), "{few}");
    let other = perdura::blocking::Store::open(&dir).unwrap_err();
    assert!(matches!(other, OpenError::OtherService { .. }), "{other}");
    let shutdown = Shutdown::new();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..cluster.replicas())
            .map(|id| {
                let replica = Replica::open(cluster.replica_dir(id)).service::<Ledger>().unwrap();
                let shutdown = &shutdown;
                scope.spawn(move || replica.run(shutdown))
            })
            .collect();
        let client = Client::<Ledger>::open(&dir).unwrap();
        assert_eq!(client.execute(&deposit("a", 70)).unwrap(), 70);
        let refused = client.execute(&transfer("a", "b", 71)).unwrap_err();
        assert_eq!(refused.to_string(), "the service refused it: TooLittle(70)");
        assert!(matches!(refused, CallError::Service(Refused::TooLittle(70))));
        assert_eq!(client.execute(&transfer("a", "b", 70)).unwrap(), 70);
        assert_eq!(client.query(&Query::Total).unwrap(), 70);
        client.close();
        shutdown.request();
        for replica in running {
            replica.join().unwrap().unwrap();
        }
    });
}

/// A service need not be `Clone` for its clients to be.
#[allow(dead_code)]
fn clients_are_cloned(
    one: &Client<Ledger>,
    other: &perdura::Client<Ledger>,
) -> (Client<Ledger>, String) {
    (one.clone(), format!("{:?}", other.clone()))
}

fn drawn(random: &mut perdura_test::Random) -> Step<Ledger> {
    let names = ["a", "b", "c", "d"];
    let (from, to) = (random.pick(&names).to_string(), random.pick(&names).to_string());
    let amount = random.below(100);
    match random.below(4) {
        0 => Step::Query(Query::Balance(from)),
        1 => Step::Command(deposit(&to, amount)),
        _ => Step::Command(transfer(&from, &to, amount)),
    }
}

#[test]
fn the_example_is_deterministic() {
    check::<Ledger>(1..20, drawn).unwrap();
}

#[test]
fn no_money_is_lost_in_simulated_groups() {
    let is_whole = |ledger: &Ledger| {
        let sum: u64 = ledger.accounts.iter().map(|(_, balance)| balance).sum();
        if sum == ledger.total {
            Ok(())
        } else {
            Err(format!("{sum} are there of {}", ledger.total))
        }
    };
    let summary = simulate(drawn).invariant(is_whole).steps(2_000).run(0..20).unwrap();
    assert!(summary.runs == 20 && summary.answered > 400, "{summary:?}");
}
