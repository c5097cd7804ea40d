//! Prometheus metrics from a replica's report.

mod rows;

use super::http::Snapshot;
use super::watch::Watch;
use crate::node::{PeerHealthReport, Spent, Stage};
use perdura_execution::Measure;
use perdura_protocol::PartitionId;
use perdura_transport::DoormanStats;
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// How long things took since the process started, seconds.
#[derive(Clone, Debug)]
pub(super) struct Timings {
    /// A write and a flush of the log.
    pub flushes: Histogram,
    /// A round of the event loop, without waiting.
    pub rounds: Histogram,
}

impl Timings {
    pub fn new() -> Timings {
        // From 50 us to 26 s.
        let buckets = prometheus::exponential_buckets(0.000_05, 2.0, 20).unwrap_or_default();
        let histogram = |name: &str, help: &str| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            Histogram::with_opts(options).expect("its name and its buckets are in order")
        };
        Timings {
            flushes: histogram("perdura_flush_seconds", "A write and a flush of the log."),
            rounds: histogram(
                "perdura_round_seconds",
                "A round of the event loop, without waiting.",
            ),
        }
    }
}

/// What the system knows of this process, under the names that all exporters give it.
fn add_process(registry: &Registry) -> prometheus::Result<()> {
    if let Some(bytes) = resident_bytes() {
        add(registry, "process_resident_memory_bytes", "Resident memory.", bytes, false)?;
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // Less the one by which they are counted.
        let open = (open.count() as u64).saturating_sub(1);
        add(registry, "process_open_fds", "Open file descriptors.", open, false)?;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    add(registry, "process_max_fds", "File descriptors that it may have open.", limit, false)
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Which program it is, and what it writes and speaks.
fn add_versions(registry: &Registry) -> prometheus::Result<()> {
    let labels = ["version", "protocol", "disk_format"];
    let help =
        "1; versions of the program, of the protocol between processes, and of files on disk.";
    let info = IntGaugeVec::new(Opts::new("perdura_info", help), &labels)?;
    let protocol = perdura_transport::PROTOCOL_VERSION.to_string();
    let format = perdura_durability::FORMAT_VERSION.to_string();
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), &protocol, &format]).set(1);
    registry.register(Box::new(info))
}

fn add(
    registry: &Registry,
    name: &str,
    help: &str,
    value: u64,
    grows: bool,
) -> prometheus::Result<()> {
    let options = Opts::new(name, help);
    if grows {
        let counter = IntCounter::with_opts(options)?;
        counter.inc_by(value);
        registry.register(Box::new(counter))
    } else {
        let gauge = IntGauge::with_opts(options)?;
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(Box::new(gauge))
    }
}

/// What each stage of the event loop took, where that is measured.
fn add_stages(registry: &Registry, stages: &[(Stage, Spent)]) -> prometheus::Result<()> {
    let family = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["stage"]);
    let time = family(
        "perdura_stage_nanoseconds_total",
        "Processor time of the event loop's thread, by what it went to.",
    )?;
    let entries = family("perdura_stage_entries_total", "How often that was entered.")?;
    for (stage, spent) in stages {
        time.with_label_values(&[stage.name()]).inc_by(spent.nanoseconds);
        entries.with_label_values(&[stage.name()]).inc_by(spent.entries);
    }
    registry.register(Box::new(time))?;
    registry.register(Box::new(entries))
}

/// What the service says of itself.
fn add_measures(registry: &Registry, measures: &[Measure]) -> prometheus::Result<()> {
    for of_name in measures.chunk_by(|one, next| one.name == next.name) {
        let Some(first) = of_name.first() else { continue };
        let Some((label, _)) = first.label else {
            add(registry, first.name, first.help, first.value, first.grows)?;
            continue;
        };
        let options = Opts::new(first.name, first.help);
        let values = of_name.iter().filter_map(|one| Some((one.label?.1, one.value)));
        if first.grows {
            let family = IntCounterVec::new(options, &[label])?;
            values.for_each(|(of, value)| family.with_label_values(&[of]).inc_by(value));
            registry.register(Box::new(family))?;
        } else {
            let family = IntGaugeVec::new(options, &[label])?;
            let set = |(of, value)| {
                family.with_label_values(&[of]).set(i64::try_from(value).unwrap_or(i64::MAX));
            };
            values.for_each(set);
            registry.register(Box::new(family))?;
        }
    }
    Ok(())
}

/// What its threads are at.
fn add_threads(registry: &Registry, watch: &Watch) -> prometheus::Result<()> {
    let help = "For how long a thread has not gone on with what it is at; above 2,000 it hangs.";
    let options = Opts::new("perdura_thread_busy_milliseconds", help);
    let family = IntGaugeVec::new(options, &["thread"])?;
    for busy in watch.busy(Instant::now()) {
        let ms = i64::try_from(busy.took.as_millis()).unwrap_or(i64::MAX);
        family.with_label_values(&[busy.thread]).set(ms);
    }
    registry.register(Box::new(family))
}

/// The other members, as this replica sees them; what it does not know is left out.
fn add_members(registry: &Registry, peer_health: &PeerHealthReport) -> prometheus::Result<()> {
    let family = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["replica"]);
    let heard = family("perdura_member_heard", "1 if the member was heard of lately.")?;
    let trip = family("perdura_member_round_trip_milliseconds", "A round trip to it.")?;
    let offset = family(
        "perdura_member_clock_offset_milliseconds",
        "The member's clock less this replica's.",
    )?;
    let flush = family(
        "perdura_member_flush_milliseconds",
        "What a flush of its log takes, by its own word.",
    )?;
    let stalled = family(
        "perdura_member_stalled_milliseconds",
        "How long a write to its log has not come back, by its own word.",
    )?;
    for member in &peer_health.members {
        let id = member.id.to_string();
        let set = |family: &IntGaugeVec, value: Option<i64>| {
            if let Some(value) = value {
                family.with_label_values(&[&id]).set(value);
            }
        };
        let flushes = member.vitals.as_ref().map(|vitals| i64::from(vitals.flush_ms));
        set(&heard, Some(i64::from(member.heard)));
        set(&trip, member.trip_ms.and_then(|ms| i64::try_from(ms).ok()));
        set(&offset, member.clock_offset_ms);
        set(&flush, flushes);
        set(&stalled, i64::try_from(member.stalled_ms()).ok());
    }
    let ahead = IntGauge::new(
        "perdura_clock_ahead_milliseconds",
        "How far this replica's clock is ahead of those of more than u others; below 0: behind.",
    )?;
    ahead.set(peer_health.clock_ahead_ms);
    for family in [heard, trip, offset, flush, stalled] {
        registry.register(Box::new(family))?;
    }
    registry.register(Box::new(ahead))
}

/// The text that a Prometheus server scrapes.
pub(super) fn text(snapshot: &Snapshot) -> prometheus::Result<Vec<u8>> {
    let registry = Registry::new();
    add_member(&registry, snapshot)?;
    add_program(&registry, snapshot.lost_log_lines)?;
    encoded(&registry.gather())
}

/// What is known of a server without its members.
pub(super) struct OfServer {
    pub doorman: DoormanStats,
    /// Members that are running.
    pub running: u64,
    pub lost_log_lines: u64,
}

/// The same of a server: what its members say, each with its partition, and what they have in common.
pub(super) fn text_of_all(
    members: &[(PartitionId, Snapshot)],
    server: &OfServer,
) -> prometheus::Result<Vec<u8>> {
    let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for (partition, snapshot) in members {
        let labels = [("partition".to_owned(), partition.to_string())].into();
        let registry = Registry::new_custom(None, Some(labels))?;
        add_member(&registry, snapshot)?;
        for mut family in registry.gather() {
            match families.get_mut(family.name()) {
                Some(of_others) => of_others.mut_metric().extend(family.take_metric()),
                None => drop(families.insert(family.name().to_owned(), family)),
            }
        }
    }
    let registry = Registry::new();
    add_program(&registry, server.lost_log_lines)?;
    add(&registry, "perdura_members_running", "Members that run.", server.running, false)?;
    let help = "Connections to this server's address, by what became of them.";
    let options = Opts::new("perdura_server_connections_total", help);
    let connections = IntCounterVec::new(options, &["outcome"])?;
    let DoormanStats { handed, expired, unknown, turned_away, misbehaved, .. } = server.doorman;
    for (outcome, count) in [
        ("handed", handed),
        ("expired", expired),
        ("unknown", unknown),
        ("turned_away", turned_away),
        ("misbehaved", misbehaved),
    ] {
        connections.with_label_values(&[outcome]).inc_by(count);
    }
    registry.register(Box::new(connections))?;
    for family in registry.gather() {
        families.insert(family.name().to_owned(), family);
    }
    encoded(&families.into_values().collect::<Vec<_>>())
}

fn encoded(families: &[MetricFamily]) -> prometheus::Result<Vec<u8>> {
    let mut out = Vec::new();
    TextEncoder::new().encode(families, &mut out)?;
    Ok(out)
}

/// What is of a process, however many replicas it is.
fn add_program(registry: &Registry, lost_log_lines: u64) -> prometheus::Result<()> {
    add_process(registry)?;
    add_versions(registry)?;
    let name = "perdura_log_lines_lost_total";
    add(registry, name, "Lines of the log that nobody took.", lost_log_lines, true)
}

/// What a replica says of itself.
fn add_member(registry: &Registry, snapshot: &Snapshot) -> prometheus::Result<()> {
    let report = &snapshot.report;
    if let Some(space) = report.space {
        let bytes = |mib: u32| u64::from(mib) * 1_048_576;
        let (free, size) = (bytes(space.free_mib), bytes(space.size_mib));
        add(registry, "perdura_disk_free_bytes", "Room under the data directory.", free, false)?;
        add(registry, "perdura_disk_size_bytes", "Size of its file system.", size, false)?;
    }
    add_members(registry, &report.peer_health)?;
    add_threads(registry, &snapshot.watch)?;
    registry.register(Box::new(snapshot.timings.flushes.clone()))?;
    registry.register(Box::new(snapshot.timings.rounds.clone()))?;
    for rows in [rows::position, rows::held, rows::waiting] {
        for (name, help, value) in rows(snapshot) {
            add(registry, name, help, value, false)?;
        }
    }
    for rows in [rows::of_commands, rows::of_states, rows::of_network] {
        for (name, help, value) in rows(snapshot) {
            add(registry, name, help, value, true)?;
        }
    }
    add_measures(registry, &report.service)?;
    if let Some(stages) = &snapshot.stages {
        add_stages(registry, stages)?;
    }
    Ok(())
}
