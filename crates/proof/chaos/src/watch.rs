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
const TIMEOUT: Duration = Duration::from_millis(1000);

/// What a replica says of itself; it says more. Of a server's member that has not said anything yet, only the state is known.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplicaReport {
    /// Whether it leads its view.
    #[serde(default)]
    pub leader: bool,
    /// Its view.
    #[serde(default)]
    pub view: u64,
    /// Last slot executed.
    #[serde(default)]
    pub executed: u64,
    /// active, recovering, diverged, ...
    pub state: String,
    /// How often its state was not the certified one.
    #[serde(default)]
    pub repairs: u64,
    /// Parts of its stored checkpoints that it found damaged.
    #[serde(default)]
    pub checkpoint_damages: u64,
    /// Why it does not take part.
    #[serde(default)]
    pub why_not_ready: Option<String>,
}

/// What a server says of its members.
#[derive(Deserialize)]
struct Members {
    partitions: Vec<ReplicaReport>,
}

/// What all members of a host said, by partition, and when they were asked.
type Said = (Instant, Vec<ReplicaReport>);

/// The latest reports, by host.
pub struct Watch {
    reports: Vec<Mutex<Option<Said>>>,
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
        let (asked, may_end) = (Instant::now(), host.may_end());
        let reports = ask(&host.http, host.is_server());
        for (partition, report) in (0..).zip(reports.iter().flatten()) {
            let name = name(id, partition, host.is_server());
            if (report.state == "diverged" || report.repairs > 0)
                && !host.lies()
                && course.ends() != Some(End::Violation)
            {
                course.violation(format!("{name} has diverged: {}", host.last_line()));
            }
            let ended = host.is_server() && report.state == "stopped";
            if ended && !may_end && !host.may_end() && course.ends() != Some(End::Violation) {
                let why = report.why_not_ready.as_deref().unwrap_or("in order");
                course.violation(format!("{name} ended by itself: {why}"));
            }
        }
        *lock(&self.reports[id]) = reports.map(|reports| (asked, reports));
    }

    /// What all members of a host said when asked after `since`, by partition; a replica is one.
    pub fn all(&self, id: usize, since: Instant) -> Option<Vec<ReplicaReport>> {
        let latest = lock(&self.reports[id]).clone();
        latest.filter(|(asked, _)| *asked >= since).map(|(_, reports)| reports)
    }

    /// What one of them said when asked after `since`.
    pub fn report(&self, id: usize, partition: usize, since: Instant) -> Option<ReplicaReport> {
        self.all(id, since)?.get(partition).cloned()
    }

    /// Who leads a partition's group in the latest view that anybody tells of.
    pub fn leader(&self, partition: usize) -> Option<usize> {
        let reports = self.reports.iter().map(|said| lock(said).clone());
        let leaders = (0..).zip(reports).filter_map(|(id, said)| {
            Some((id, said?.1.get(partition).cloned().filter(|report| report.leader)?))
        });
        leaders.max_by_key(|(_, report)| report.view).map(|(id, _)| id)
    }

    /// By partition, the highest slot that anybody has executed, as far as is known.
    fn executed(&self) -> Vec<u64> {
        let mut highest = Vec::new();
        for said in &self.reports {
            let reports = lock(said).clone().map(|(_, reports)| reports).unwrap_or_default();
            for (partition, report) in reports.iter().enumerate() {
                if highest.len() <= partition {
                    highest.push(0);
                }
                highest[partition] = report.executed.max(highest[partition]);
            }
        }
        highest
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
        let (since, targets) = (Instant::now(), self.executed());
        let lagging = || {
            let missing = replicas.iter().flat_map(|id| {
                let reports = self.all(*id, since);
                let is_server = targets.len() > 1;
                // Of one that does not answer nobody knows how many members it has.
                let count = reports.as_ref().map_or(1, |_| targets.len().max(1));
                let lacking = (0..count).filter_map(|partition| {
                    let report = reports.as_ref().and_then(|all| all.get(partition));
                    let why = lacks(report, targets.get(partition).copied().unwrap_or_default())?;
                    Some((name(*id, partition, is_server), why))
                });
                lacking.collect::<Vec<_>>()
            });
            Lagging(missing.collect())
        };
        match course.poll(limit, || lagging().0.is_empty().then_some(())) {
            Some(()) => Ok(()),
            None => Err(lagging()),
        }
    }
}

/// What a host's member is called.
fn name(id: usize, partition: usize, is_server: bool) -> String {
    match is_server {
        true => format!("server {id}, partition {partition},"),
        false => format!("replica {id}"),
    }
}

/// Replicas that do not take part as they should, and why not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lagging(Vec<(String, String)>);

impl fmt::Display for Lagging {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|(name, why)| format!("{name} {why}"));
        formatter.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

/// What a replica lacks to be well, by its latest report: it has to take part, and to have
/// executed `target`.
fn lacks(report: Option<&ReplicaReport>, target: u64) -> Option<String> {
    match report {
        None => Some("does not answer".to_owned()),
        Some(report) if report.state != "active" => Some(format!("is {}", report.state)),
        Some(report) if report.executed < target => {
            Some(format!("has executed {} of {target}", report.executed))
        }
        Some(_) => None,
    }
}

fn ask(address: &str, is_server: bool) -> Option<Vec<ReplicaReport>> {
    let said = page(address, "/status")?;
    match is_server {
        true => serde_json::from_str(&said).ok().map(|members: Members| members.partitions),
        false => serde_json::from_str(&said).ok().map(|report| vec![report]),
    }
}

/// What a replica's HTTP endpoint answers.
pub fn page(address: &str, path: &str) -> Option<String> {
    let address: SocketAddr = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch_of(reports: &[Option<Vec<ReplicaReport>>]) -> Watch {
        // Answers to questions that are asked from now on.
        let asked = Instant::now() + Duration::from_secs(3600);
        let latest =
            |said: &Option<Vec<ReplicaReport>>| Mutex::new(said.clone().map(|r| (asked, r)));
        Watch {
            reports: reports.iter().map(latest).collect(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }
    }

    fn watch(reports: &[Option<ReplicaReport>]) -> Watch {
        let each = reports.iter().map(|report| report.clone().map(|report| vec![report]));
        watch_of(&each.collect::<Vec<_>>())
    }

    fn at(executed: u64, state: &str) -> Option<ReplicaReport> {
        let state = state.to_owned();
        let (leader, view, repairs, checkpoint_damages) = (false, 1, 0, 0);
        let why_not_ready = None;
        Some(ReplicaReport {
            leader,
            view,
            executed,
            state,
            repairs,
            checkpoint_damages,
            why_not_ready,
        })
    }

    #[test]
    fn each_member_of_a_server_is_held_against_those_of_its_group() {
        let server =
            |first, second, state| at(first, "active").into_iter().chain(at(second, state));
        let said = |first, second, state| Some(server(first, second, state).collect::<Vec<_>>());
        let course = Course::new();
        let lagging = |reports: &[Option<Vec<ReplicaReport>>]| {
            let lagging = watch_of(reports).wait_level(&course, Duration::ZERO);
            lagging.err().map(|lagging| lagging.to_string())
        };
        assert_eq!(lagging(&[said(90, 4, "active"), said(90, 4, "active")]), None);
        assert_eq!(
            lagging(&[said(90, 3, "active"), said(89, 4, "stopped"), None]).unwrap(),
            "server 0, partition 1, has executed 3 of 4, server 1, partition 0, has executed 89 of 90, \
             server 1, partition 1, is stopped, server 2, partition 0, does not answer"
        );
    }

    #[test]
    fn who_leads_is_told_by_partition_and_the_latest_view_counts() {
        let leads = |view, leader| ReplicaReport { view, leader, ..at(1, "active").unwrap() };
        let reports = [
            Some(vec![leads(1, true), leads(1, false)]),
            Some(vec![leads(2, true), leads(7, false)]),
            None,
        ];
        let watch = watch_of(&reports);
        assert_eq!((watch.leader(0), watch.leader(1)), (Some(1), None));
    }

    #[test]
    fn a_server_tells_of_each_member() {
        let said = r#"{"server":0,"partitions":[{"leader":true,"view":3,"executed":7,"state":"active","repairs":0},
            {"state":"starting","ready":false}]}"#;
        let members: Members = serde_json::from_str(said).unwrap();
        assert!(members.partitions[0].leader && members.partitions[0].executed == 7);
        assert_eq!(members.partitions[1].state, "starting");
    }

    #[test]
    fn a_replica_that_stands_still_is_not_well_though_it_says_it_is_active() {
        let course = Course::new();
        let lagging = |reports: &[Option<ReplicaReport>]| {
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
        assert_eq!(lagging.to_string(), "replica 0 has executed 5 of 7");
    }
}
