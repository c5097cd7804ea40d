//! What a replica says of itself, and what is made of it: a line of the answer.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A state by its slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The state is that after this slot.
    pub slot: u64,
    /// Its digest.
    pub digest: String,
}

/// What a replica says of itself; it may say more.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct StatusReport {
    /// Which replica.
    pub id: u8,
    /// Its group, and its key there.
    #[serde(default)]
    pub cluster: Option<String>,
    /// See there.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether it leads its view.
    pub leader: bool,
    /// Its view.
    pub view: u64,
    /// Last slot decided.
    pub decided: u64,
    /// Last slot executed.
    pub executed: u64,
    /// Last slot on its disk.
    pub logged: u64,
    /// Newest durable checkpoint.
    pub checkpoint: Option<Point>,
    /// Last slot at which all replicas digest their state.
    pub boundary: Option<Point>,
    /// active, waiting, recovering, repairing, diverged, stopped, or stalled: its disk hangs, or its event loop stands still.
    pub state: String,
    /// Whether clients should be sent to it.
    #[serde(default)]
    pub ready: bool,
    /// Why not, if they should not.
    #[serde(default)]
    pub why_not_ready: Option<String>,
    /// How long a request may make no progress before the leader is suspected, milliseconds.
    #[serde(default)]
    pub request_timeout_ms: Option<u64>,
    /// Of its program.
    #[serde(default)]
    pub version: Option<String>,
    /// Of the protocol that it speaks.
    #[serde(default)]
    pub protocol_version: Option<u32>,
    /// Of the files that it writes.
    #[serde(default)]
    pub disk_format: Option<u32>,
    /// What it sees of the others.
    #[serde(default)]
    pub members: Vec<Member>,
    /// States that replicas signed and that differ.
    #[serde(default)]
    pub differing_states: Option<Differing>,
    /// Threads that do not come back.
    #[serde(default)]
    pub hanging: Vec<Hanging>,
    /// What makes it slower on purpose.
    #[serde(default)]
    pub experiments: Vec<String>,
    /// How often it replaced its state since it started, because it was not the certified one.
    #[serde(default)]
    pub repairs: u64,
    /// Parts of its stored checkpoints that it found damaged since it started, or began anew.
    #[serde(default)]
    pub checkpoint_damages: u64,
    /// Versions of the core's rules and of the service under which it executes.
    pub rules_version: Option<u16>,
    /// See there.
    pub service_version: Option<u16>,
    /// Size of its service's state.
    pub state_bytes: Option<u64>,
    /// What that may become.
    pub state_limit_bytes: Option<u64>,
    /// Its process.
    pub pid: u32,
    /// What its event loop's time went to, by stage, if it measures that.
    #[serde(default)]
    pub stages: BTreeMap<String, Spent>,
}

/// States of one slot that replicas signed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Differing {
    /// The slot.
    pub slot: u64,
    /// Whether one of them can still be certified.
    pub certifiable: bool,
    /// The digest of each replica.
    pub digests: BTreeMap<u8, String>,
}

/// A thread that does not come back from what it is at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hanging {
    /// Its name.
    pub thread: String,
    /// What it is at.
    pub at: String,
    /// For how long, milliseconds.
    pub ms: u64,
}

/// Another replica, as one sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Which.
    pub id: u8,
    /// By how much its clock is ahead of that of who sees it at least, milliseconds; below 0: behind.
    pub clock_offset_ms: Option<i64>,
    /// How long records take to its disk, by its own word, milliseconds.
    #[serde(default)]
    pub flush_ms: Option<u64>,
}

/// What a stage took since the replica started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Spent {
    /// Processor time.
    pub nanoseconds: u64,
    /// How often it was entered.
    pub entries: u64,
}

/// Under what a replica executes.
#[derive(Serialize)]
pub(super) struct RulesInForce {
    rules_version: u16,
    service_version: u16,
    state_bytes: u64,
    state_limit_bytes: u64,
}

impl RulesInForce {
    fn of(report: &StatusReport) -> Option<RulesInForce> {
        Some(RulesInForce {
            rules_version: report.rules_version?,
            service_version: report.service_version?,
            state_bytes: report.state_bytes?,
            state_limit_bytes: report.state_limit_bytes?,
        })
    }
}

/// A line of the answer: a report, or none. Fields of an unreachable replica are null.
#[derive(Serialize)]
pub(super) struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<usize>,
    pub id: u8,
    pub reachable: bool,
    pub leader: bool,
    pub view: Option<u64>,
    pub decided: Option<u64>,
    pub executed: Option<u64>,
    pub logged: Option<u64>,
    pub checkpoint: Option<Point>,
    pub boundary: Option<Point>,
    pub state: Option<String>,
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_ready: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_format: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differing_states: Option<Differing>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    #[serde(flatten)]
    pub terms: Option<RulesInForce>,
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hanging: Vec<Hanging>,
    #[serde(skip)]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub experiments: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub repairs: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub checkpoint_damages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Line {
    pub fn new(id: u8, report: Result<StatusReport>) -> Line {
        let (report, error) = match report {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let report = report.as_ref();
        Line {
            partition: None,
            server: None,
            id,
            reachable: report.is_some(),
            leader: report.is_some_and(|report| report.leader),
            view: report.map(|report| report.view),
            decided: report.map(|report| report.decided),
            executed: report.map(|report| report.executed),
            logged: report.map(|report| report.logged),
            checkpoint: report.and_then(|report| report.checkpoint.clone()),
            boundary: report.and_then(|report| report.boundary.clone()),
            state: report.map(|report| report.state.clone()),
            ready: report.is_some_and(|report| report.ready),
            request_timeout_ms: report.and_then(|report| report.request_timeout_ms),
            version: report.and_then(|report| report.version.clone()),
            protocol_version: report.and_then(|report| report.protocol_version),
            disk_format: report.and_then(|report| report.disk_format),
            why_not_ready: report.and_then(|report| report.why_not_ready.clone()),
            differing_states: report.and_then(|report| report.differing_states.clone()),
            members: report.map(|report| report.members.clone()).unwrap_or_default(),
            terms: report.and_then(RulesInForce::of),
            pid: report.map(|report| report.pid),
            hanging: report.map(|report| report.hanging.clone()).unwrap_or_default(),
            key: report.and_then(|report| report.key.clone()),
            experiments: report.map(|report| report.experiments.clone()).unwrap_or_default(),
            repairs: report.map_or(0, |report| report.repairs),
            checkpoint_damages: report.map_or(0, |report| report.checkpoint_damages),
            error,
        }
    }
}
