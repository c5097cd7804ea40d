//! A service whose commands take a while, executed beside agreement.

#[path = "../examples/slow.rs"]
#[allow(dead_code)] // Its `main`.
mod example;

use example::{Add, Count, Slow};
use perdura::blocking::Client;
use perdura::{Cluster, Faults, Replica, RunError, Shutdown};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A replica of this process.
type Running = (Shutdown, JoinHandle<Result<(), RunError>>);

fn start(cluster: &Cluster, id: usize) -> Running {
    let shutdown = Shutdown::new();
    let running = Replica::open(cluster.replica_dir(id)).service::<Slow>().unwrap();
    let asked = shutdown.clone();
    (shutdown, std::thread::spawn(move || running.run(&asked)))
}

fn stop((shutdown, thread): Running) {
    shutdown.request();
    thread.join().unwrap().unwrap();
}

/// Replicas of this process, each in a thread, and one of them is started again in the middle.
#[test]
fn commands_that_take_long_are_executed_beside_agreement() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let cluster =
        Cluster::builder(&dir).faults(Faults::crash(1).unwrap()).create::<Slow>().unwrap();
    let start = |id: usize| start(&cluster, id);
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
        stop(replicas[2].take().unwrap());
        replicas[2] = Some(start(2));
    });
    for caller in 0..callers {
        assert_eq!(client.query(&Count(format!("caller {caller}"))).unwrap(), each);
    }
    replicas.into_iter().flatten().for_each(stop);
}

/// What a replica's HTTP port says of a path; nothing if it does not answer.
fn says(address: &str, path: &str) -> String {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().unwrap_or_default()
}

/// It says so while it does, ends in order when it is asked to in the middle, and goes on from there.
#[test]
fn a_replica_that_replays_its_log_says_how_far_it_is_and_stops_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let cluster =
        Cluster::builder(&dir).faults(Faults::crash(1).unwrap()).create::<Slow>().unwrap();
    let start = |id: usize| start(&cluster, id);
    let mut replicas: Vec<_> = (0..3).map(|id| Some(start(id))).collect();
    let client = Client::<Slow>::open(&dir).unwrap();
    let (callers, each) = (40, 40);
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (client, name) = (client.clone(), format!("caller {caller}"));
            scope.spawn(move || {
                for number in 1..=each {
                    assert_eq!(client.execute(&Add(name.clone())).unwrap(), number);
                }
            });
        }
    });
    stop(replicas[2].take().unwrap());
    let text = std::fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let http = text.lines().filter_map(|line| line.strip_prefix("http = ")).nth(2).unwrap();
    let http = http.trim_matches('"').to_owned();
    // What it executed in more than three seconds takes it as long again.
    let again = start(2);
    let begun = Instant::now();
    loop {
        let said = says(&http, "/readyz");
        if said.contains("running what the log holds, slot") {
            assert!(said.starts_with("HTTP/1.1 503"), "{said}");
            assert!(says(&http, "/healthz").starts_with("HTTP/1.1 200"));
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60) && !said.contains(" 200 "), "{said}");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(again);
    replicas[2] = Some(start(2));
    stop(replicas[0].take().unwrap());
    // It is needed now.
    for caller in 0..callers {
        let name = format!("caller {caller}");
        assert_eq!(client.query(&Count(name.clone())).unwrap(), each);
        assert_eq!(client.execute(&Add(name)).unwrap(), each + 1);
    }
    replicas.into_iter().flatten().for_each(stop);
}
