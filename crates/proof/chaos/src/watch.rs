//! How the replicas stand: a thread per replica that asks for its status and looks after its
//! process, and what follows from the answers.

use crate::cluster::Cluster;
use crate::course::{Course, End, lock};
use serde::Deserialize;
use std::fmt;
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
    /// How often its state was not the certified one.
    #[serde(default)]
    pub repairs: u64,
    /// Parts of its stored checkpoints that it found damaged.
    #[serde(default)]
    pub checkpoint_damages: u64,
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
            && (report.state == "diverged" || report.repairs > 0)
            && !host.is_rotten()
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
    pub fn wait_level(&self, course: &Course, limit: Duration) -> Result<(), Lagging> {
        let all: Vec<usize> = (0..self.reports.len()).collect();
        self.wait_for(&all, course, limit)
    }

    /// Waits until these replicas take part and have executed what any had when this was called.
    pub fn wait_for(
        &self,
        replicas: &[usize],
        course: &Course,
        limit: Duration,
    ) -> Result<(), Lagging> {
        let (since, target) = (Instant::now(), self.executed());
        let lagging = || {
            let missing = replicas.iter().filter_map(|id| {
                let why = lacks(self.report(*id, since).as_ref(), target)?;
                Some((*id, why))
            });
            Lagging(missing.collect())
        };
        match course.poll(limit, || lagging().0.is_empty().then_some(())) {
            Some(()) => Ok(()),
            None => Err(lagging()),
        }
    }
}

/// Replicas that do not take part as they should, and why not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lagging(pub Vec<(usize, String)>);

impl fmt::Display for Lagging {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|(id, why)| format!("replica {id} {why}"));
        formatter.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

/// What a replica lacks to be well, by its latest report: it has to take part, and to have
/// executed `target`.
fn lacks(report: Option<&Report>, target: u64) -> Option<String> {
    match report {
        None => Some("does not answer".to_owned()),
        Some(report) if report.state != "active" => Some(format!("is {}", report.state)),
        Some(report) if report.executed < target => {
            Some(format!("has executed {} of {target}", report.executed))
        }
        Some(_) => None,
    }
}

fn ask(address: &str) -> Option<Report> {
    serde_json::from_str(&page(address, "/status")?).ok()
}

/// What a replica's HTTP endpoint answers.
pub fn page(address: &str, path: &str) -> Option<String> {
    let address: SocketAddr = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(reports: &[Option<Report>]) -> Watch {
        // Answers to questions that are asked from now on.
        let asked = Instant::now() + Duration::from_secs(3600);
        let latest = |report: &Option<Report>| Mutex::new(report.clone().map(|r| (asked, r)));
        Watch {
            reports: reports.iter().map(latest).collect(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }
    }

    fn at(executed: u64, state: &str) -> Option<Report> {
        let state = state.to_owned();
        let (leader, view, repairs, checkpoint_damages) = (false, 1, 0, 0);
        Some(Report { leader, view, executed, state, repairs, checkpoint_damages })
    }

    #[test]
    fn a_replica_that_stands_still_is_not_well_though_it_says_it_is_active() {
        let course = Course::new();
        let lagging = |reports: &[Option<Report>]| {
            let lagging = watch(reports).wait_level(&course, Duration::ZERO);
            lagging.err().map(|lagging| lagging.to_string())
        };
        assert_eq!(lagging(&[at(90, "active"), at(91, "active"), at(91, "active")]).unwrap(), {
            "replica 0 has executed 90 of 91"
        });
        assert_eq!(lagging(&[at(91, "active"), None, at(91, "stalled")]).unwrap(), {
            "replica 1 does not answer, replica 2 is stalled"
        });
        assert_eq!(lagging(&[at(91, "active"), at(91, "active"), at(91, "active")]), None);
    }

    #[test]
    fn one_of_several_is_held_against_all() {
        let (course, reports) = (Course::new(), [at(5, "active"), at(7, "active"), None]);
        let watch = watch(&reports);
        assert!(watch.wait_for(&[1], &course, Duration::ZERO).is_ok());
        let lagging = watch.wait_for(&[0], &course, Duration::ZERO).unwrap_err();
        assert_eq!(lagging, Lagging(vec![(0, "has executed 5 of 7".to_owned())]));
    }
}
