//! A service whose commands take a while, executed beside agreement.

#[path = "../examples/slow.rs"]
#[allow(dead_code)] // Its `main`.
mod example;

use example::{Add, Count, Slow};
use perdura::blocking::Client;
use perdura::{Cluster, Faults, Replica, Shutdown};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Replicas of this process, each in a thread, and one of them is started again in the middle.
#[test]
fn commands_that_take_long_are_executed_beside_agreement() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let cluster =
        Cluster::builder(&dir).faults(Faults::crash(1).unwrap()).create::<Slow>().unwrap();
    let start = |id: usize| {
        let shutdown = Shutdown::new();
        let running = Replica::open(cluster.replica_dir(id)).service::<Slow>().unwrap();
        let asked = shutdown.clone();
        (shutdown, std::thread::spawn(move || running.run(&asked)))
    };
    let mut replicas: Vec<_> = (0..3).map(|id| Some(start(id))).collect();
    let client = Client::<Slow>::open(&dir).unwrap();
    let (callers, each) = (20, 15);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (client, name) = (client.clone(), format!("caller {caller}"));
            let done = &done;
            scope.spawn(move || {
                for number in 1..=each {
                    assert_eq!(client.execute(&Add(name.clone())).unwrap(), number);
                    done.fetch_add(1, Ordering::Relaxed);
                    if number % 5 == 0 {
                        assert_eq!(client.query(&Count(name.clone())).unwrap(), number);
                    }
                }
            });
        }
        while done.load(Ordering::Relaxed) < callers * each / 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (shutdown, thread) = replicas[2].take().unwrap();
        shutdown.request();
        thread.join().unwrap().unwrap();
        replicas[2] = Some(start(2));
    });
    for caller in 0..callers {
        assert_eq!(client.query(&Count(format!("caller {caller}"))).unwrap(), each);
    }
    for (shutdown, thread) in replicas.into_iter().flatten() {
        shutdown.request();
        thread.join().unwrap().unwrap();
    }
}
