//! What a server's HTTP port answers, for all of its members: each one's status by its partition, and whether all of them are well.

use super::http::{
    JSON, NO_SUCH_PATH, PROMETHEUS, Shared, Snapshot, stands_still, standstill, state_of, status,
    text, why_not_ready, with_type,
};
use super::metrics::{self, OfServer};
use super::starting::Starting;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use perdura_protocol::PartitionId;
use perdura_transport::DoormanStats;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A member, as the HTTP thread sees it.
struct Member {
    partition: PartitionId,
    /// What it said last.
    published: Shared,
    /// How it ended, in words; empty if it was asked to.
    ended: Option<String>,
}

/// What is known of a server.
pub(super) struct Endpoints {
    id: usize,
    members: Mutex<Vec<Member>>,
    doorman: Mutex<Doorman>,
    lost_log_lines: Arc<AtomicU64>,
}

/// What is known of the doorman.
#[derive(Default)]
struct Doorman {
    stats: DoormanStats,
    /// How it ended, in words.
    ended: Option<String>,
}

impl Endpoints {
    /// Of server `id` with members of these partitions.
    pub(super) fn new(
        id: usize,
        partitions: impl Iterator<Item = PartitionId>,
        lost_log_lines: Arc<AtomicU64>,
    ) -> Endpoints {
        let member = |partition| Member { partition, published: Shared::default(), ended: None };
        let members = Mutex::new(partitions.map(member).collect());
        Endpoints { id, members, doorman: Mutex::default(), lost_log_lines }
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doorman(&self) -> MutexGuard<'_, Doorman> {
        self.doorman.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a member says how it is.
    pub(super) fn published(&self, partition: PartitionId) -> Option<Shared> {
        let members = self.members();
        let member = members.iter().find(|member| member.partition == partition);
        member.map(|member| Arc::clone(&member.published))
    }

    /// A member has ended, for that reason; none if it was asked to.
    pub(super) fn ended(&self, partition: PartitionId, why: Option<String>) {
        for member in self.members().iter_mut().filter(|one| one.partition == partition) {
            member.ended = Some(why.clone().unwrap_or_default());
        }
    }

    /// What the doorman counts.
    pub(super) fn count(&self, stats: DoormanStats) {
        self.doorman().stats = stats;
    }

    /// Nobody is let in any more.
    pub(super) fn doorman_ended(&self, why: String) {
        self.doorman().ended = Some(why);
    }

    pub(super) fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        match path {
            "/healthz" => all_are(self.unwell(), "ok\n"),
            "/readyz" => {
                let unready = self.reasons(&unready, &|starting, now| Some(starting.text(now)));
                all_are(unready, "ready\n")
            }
            "/status" => with_type(StatusCode::OK, JSON, format!("{}\n", self.status()).into()),
            "/metrics" => match self.metrics() {
                Ok(body) => with_type(StatusCode::OK, PROMETHEUS, body.into()),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            },
            _ => text(StatusCode::NOT_FOUND, NO_SUCH_PATH),
        }
    }

    /// Who is not well, a line each.
    pub(super) fn unwell(&self) -> Vec<String> {
        self.reasons(&unhealthy, &|starting, now| {
            (!starting.goes_on(now)).then(|| format!("{}, and no further", starting.text(now)))
        })
    }

    /// What is wrong, a line each: with those that run, and with those that start.
    fn reasons(
        &self,
        of: &dyn Fn(&Snapshot) -> Option<String>,
        of_starting: &dyn Fn(&Starting, Instant) -> Option<String>,
    ) -> Vec<String> {
        let doorman = self.doorman().ended.clone();
        let doorman = doorman.map(|why| format!("no connection is accepted any more: {why}"));
        let members = self.members();
        let complaint = |member: &Member| {
            let why = match (&member.ended, last(member)) {
                (Some(why), _) if why.is_empty() => Some("stopped".to_owned()),
                (Some(why), _) => Some(why.clone()),
                (None, None) => of_starting(&member.published.starting(), Instant::now()),
                (None, Some(snapshot)) => of(&snapshot),
            };
            Some(format!("partition {}: {}", member.partition, why?))
        };
        doorman.into_iter().chain(members.iter().filter_map(complaint)).collect()
    }

    fn status(&self) -> serde_json::Value {
        let member = |member: &Member| {
            let mut said = match last(member) {
                Some(snapshot) => status(&snapshot),
                None => {
                    let why = member.published.starting().text(Instant::now());
                    serde_json::json!({"state": "starting", "ready": false, "why_not_ready": why})
                }
            };
            if let Some(why) = &member.ended {
                said["state"] = "stopped".into();
                said["leader"] = false.into();
                said["ready"] = false.into();
                said["why_not_ready"] = (!why.is_empty()).then(|| why.clone()).into();
            }
            said["partition"] = member.partition.0.into();
            said
        };
        let partitions: Vec<_> = self.members().iter().map(member).collect();
        serde_json::json!({
            "server": self.id,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "partitions": partitions,
        })
    }

    fn metrics(&self) -> prometheus::Result<Vec<u8>> {
        let said = |member: &Member| Some((member.partition, last(member)?));
        let members = self.members();
        let running = members.iter().filter(|member| member.ended.is_none()).count() as u64;
        let said: Vec<_> = members.iter().filter_map(said).collect();
        drop(members);
        let doorman = self.doorman().stats;
        let lost_log_lines = self.lost_log_lines.load(Ordering::Relaxed);
        metrics::text_of_all(&said, &OfServer { doorman, running, lost_log_lines })
    }
}

fn last(member: &Member) -> Option<Snapshot> {
    member.published.last()
}

/// What a diverged or halted one says stays.
fn unhealthy(snapshot: &Snapshot) -> Option<String> {
    let stalled = || match state_of(snapshot) {
        "stalled" => standstill(snapshot),
        state => format!("{state}; see its log"),
    };
    stands_still(snapshot).then(stalled)
}

fn unready(snapshot: &Snapshot) -> Option<String> {
    why_not_ready(snapshot)
}

fn all_are(reasons: Vec<String>, well: &str) -> Response<Full<Bytes>> {
    match reasons.is_empty() {
        true => text(StatusCode::OK, well),
        false => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{}\n", reasons.join("\n"))),
    }
}
