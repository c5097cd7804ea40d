//! How the replicas stand: a thread per replica that asks for its status and looks after its
//! process, and what follows from the answers.

use crate::cluster::Cluster;
use crate::course::{Course, End, lock};
use serde::Deserialize;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two questions.
const INTERVAL: Duration = Duration::from_millis(100);

/// A replica that does not answer within this time does not stand well.
const PATIENCE: Duration = Duration::from_millis(1000);

/// What a replica says of itself; it says more.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// Whether it leads its view.
    pub leader: bool,
    /// Its view.
    pub view: u64,
    /// Last slot executed.
    pub executed: u64,
    /// active, recovering, diverged, ...
    pub state: String,
}

/// The latest reports, by replica.
pub struct Watch {
    reports: Vec<Mutex<Option<(Instant, Report)>>>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Watch {
    /// Starts watching, until [`Watch::stop`].
    pub fn start(cluster: &Arc<Cluster>, course: &Arc<Course>) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            reports: cluster.hosts.iter().map(|_| Mutex::new(None)).collect(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let of_replica = |id: usize| {
            let (cluster, course) = (Arc::downgrade(cluster), Arc::clone(course));
            let watch = Arc::clone(&watch);
            std::thread::spawn(move || {
                while !watch.stopping.load(Ordering::Relaxed) {
                    let Some(cluster) = cluster.upgrade() else { break };
                    watch.look(id, &cluster, &course);
                    drop(cluster);
                    std::thread::sleep(INTERVAL);
                }
            })
        };
        let threads = (0..cluster.hosts.len()).map(of_replica).collect();
        *lock(&watch.threads) = threads;
        watch
    }

    /// Watches no more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for thread in lock(&self.threads).drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    fn look(&self, id: usize, cluster: &Cluster, course: &Course) {
        let host = &cluster.hosts[id];
        host.look(course);
        let asked = Instant::now();
        let report = ask(&host.http);
        if let Some(report) = &report
            && report.state == "diverged"
            && course.ends() != Some(End::Violation)
        {
            course.violation(format!("replica {id} has diverged: {}", host.last_line()));
        }
        *lock(&self.reports[id]) = report.map(|report| (asked, report));
    }

    /// What a replica said when asked after `since`.
    pub fn report(&self, id: usize, since: Instant) -> Option<Report> {
        let latest = lock(&self.reports[id]).clone();
        latest.filter(|(asked, _)| *asked >= since).map(|(_, report)| report)
    }

    /// Who leads in the latest view that anybody tells of.
    pub fn leader(&self) -> Option<usize> {
        let reports = self.reports.iter().map(|report| lock(report).clone());
        let leaders = (0..).zip(reports).filter_map(|(id, report)| Some((id, report?.1)));
        let leaders = leaders.filter(|(_, report)| report.leader);
        leaders.max_by_key(|(_, report)| report.view).map(|(id, _)| id)
    }

    /// The highest slot that anybody has executed, as far as is known.
    pub fn executed(&self) -> u64 {
        let executed = |report: &Mutex<Option<(Instant, Report)>>| {
            lock(report).as_ref().map_or(0, |(_, report)| report.executed)
        };
        self.reports.iter().map(executed).max().unwrap_or_default()
    }

    /// Waits until every replica takes part and has executed what any had when this was called.
    pub fn wait_level(&self, course: &Course, limit: Duration) -> Result<(), String> {
        let (since, target) = (Instant::now(), self.executed());
        let level = |id: usize| match self.report(id, since) {
            None => Err(format!("replica {id} does not answer")),
            Some(report) if report.state != "active" => {
                Err(format!("replica {id} is {}", report.state))
            }
            Some(report) if report.executed < target => {
                Err(format!("replica {id} has executed {} of {target}", report.executed))
            }
            Some(_) => Ok(()),
        };
        let missing = || (0..self.reports.len()).filter_map(|id| level(id).err());
        match course.poll(limit, || missing().next().is_none().then_some(())) {
            Some(()) => Ok(()),
            None => Err(missing().collect::<Vec<_>>().join(", ")),
        }
    }
}

fn ask(address: &str) -> Option<Report> {
    let address: SocketAddr = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
