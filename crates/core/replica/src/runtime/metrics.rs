//! Prometheus metrics from a replica's report.

use super::http::Snapshot;
use super::watch::Watch;
use crate::node::{CompanyReport, Spent, Stage};
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
fn add_members(registry: &Registry, company: &CompanyReport) -> prometheus::Result<()> {
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
    for member in &company.members {
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
    ahead.set(company.clock_ahead_ms);
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
    let c = &report.counters;
    let (s, t) = (&snapshot.network, &snapshot.transfers);
    let company = &report.company;
    let held = report.held;
    let gauges = [
        (
            "perdura_request_timeout_milliseconds",
            "How long a request may make no progress before the leader is suspected.",
            report.request_timeout_ms,
        ),
        ("perdura_view", "Current view.", report.view.0),
        ("perdura_leader", "1 if this replica leads its view.", u64::from(report.leader)),
        (
            "perdura_ready",
            "1 if this replica takes part, hears of enough members, and its clock is right.",
            { u64::from(snapshot.is_ready()) },
        ),
        (
            "perdura_members_heard",
            "Members that are heard of and whose disks do not hang, with this one.",
            company.hears as u64,
        ),
        (
            "perdura_log_stalled_milliseconds",
            "How long a write to the log has not come back; 0 while none hangs.",
            u64::from(company.stalled_ms),
        ),
        ("perdura_decided_slot", "Last slot known to be decided.", report.decided.0),
        ("perdura_executed_slot", "Last slot executed.", report.executed.0),
        ("perdura_logged_slot", "Last slot on disk.", report.logged.0),
        ("perdura_prefix_slot", "Last slot of the certified prefix.", report.prefix.0),
        (
            "perdura_checkpoint_slot",
            "Slot of the newest durable checkpoint.",
            report.checkpoint.map_or(0, |(slot, _)| slot.0),
        ),
        ("perdura_diverged", "1 if the state differs from a certified one.", u64::from(c.diverged)),
        (
            "perdura_differing_states",
            "1 if replicas signed different states, and no later one is certified.",
            { u64::from(report.difference.is_some()) },
        ),
        (
            "perdura_rules_version",
            "Version of the core's rules in force.",
            u64::from(report.versions.rules),
        ),
        (
            "perdura_service_version",
            "Version of the service in force.",
            u64::from(report.versions.service),
        ),
        ("perdura_sessions", "Sessions of clients that are live.", report.sessions as u64),
        ("perdura_state_bytes", "Size of the service's state, as it says.", report.state_bytes),
        ("perdura_state_limit_bytes", "What that may become.", report.state_limit_bytes),
        ("perdura_slots_held", "Slots held in memory.", held.agreement.slots as u64),
        (
            "perdura_waiting_frame_bytes",
            "Bytes of frames waiting.",
            held.agreement.frame_bytes as u64,
        ),
        ("perdura_replies_waiting", "Replies waiting for the disk.", held.replies as u64),
        ("perdura_backlog_bytes", "Bytes of records and replies waiting for the disk.", {
            (held.backlog.0 + held.reply_bytes.0) as u64
        }),
        ("perdura_forwarded_frame_bytes", "Of those that replicas forwarded.", {
            held.agreement.forwarded_bytes as u64
        }),
        ("perdura_unverified_frames", "Frames not verified yet.", held.unverified.0 as u64),
        ("perdura_reads_waiting", "Unordered reads waiting.", held.reads.0 as u64),
        (
            "perdura_states_kept",
            "States before the newest that are kept for unordered reads.",
            held.kept_states as u64,
        ),
        (
            "perdura_execution_waiting_batches",
            "Batches that are decided and not executed.",
            held.unexecuted.0 as u64,
        ),
        (
            "perdura_execution_waiting_bytes",
            "Bytes of batches that are decided and not executed.",
            held.unexecuted.1 as u64,
        ),
        (
            "perdura_execution_waiting_retries",
            "Retries whose answers the execution thread is asked for.",
            held.retries.0 as u64,
        ),
        (
            "perdura_execution_waiting_reads",
            "Unordered reads that the execution thread was given.",
            held.reads_apart as u64,
        ),
        (
            "perdura_reads_beside",
            "Unordered reads that threads of their own are at.",
            held.reads_beside as u64,
        ),
        ("perdura_questions_waiting", "Questions of replicas waiting.", held.questions as u64),
        ("perdura_penalised_peers", "Peers that sent bad signatures.", held.penalties as u64),
        (
            "perdura_sparse_clients",
            "Clients held back for sparse frames.",
            held.sparse_clients as u64,
        ),
        ("perdura_replica_links", "Links to replicas.", s.replica_links),
        ("perdura_transfer_links", "Transfer links to replicas.", t.replica_links),
        ("perdura_client_links", "Links of clients.", s.client_links),
    ];
    let counters = [
        ("perdura_commands_total", "Commands executed.", c.commands),
        ("perdura_batches_total", "Batches executed.", c.batches),
        ("perdura_frames_total", "Client frames taken.", c.frames),
        ("perdura_retransmitted_frames_total", "Client frames that came again.", c.retransmissions),
        ("perdura_refused_frames_total", "Frames refused: queues were full.", c.busy),
        ("perdura_unknown_client_frames_total", "Frames of unknown keys.", c.unknown_clients),
        ("perdura_signatures_verified_total", "Client signatures.", c.signatures_verified),
        ("perdura_statements_verified_total", "Replicas' signatures.", c.statements_verified),
        ("perdura_claims_verified_total", "Signatures in commands.", c.claims_verified),
        (
            "perdura_claims_remembered_total",
            "Signatures in commands that had been verified before.",
            c.claims_remembered,
        ),
        (
            "perdura_attestations_signed_total",
            "Signatures over what replies state to those outside of the group.",
            c.attestations_signed,
        ),
        ("perdura_statements_signed_total", "Replies so attested.", c.statements_signed),
        ("perdura_replies_total", "Replies sent.", c.replies),
        (
            "perdura_replies_let_go_total",
            "Replies let go, since too many waited for the disk.",
            c.replies_let_go,
        ),
        (
            "perdura_cost_bytes_total",
            "What executed commands cost: bytes read and answered beyond their own, or what takes as long.",
            c.cost,
        ),
        (
            "perdura_put_off_total",
            "Commands put off: their client asked for more than its share.",
            c.put_off,
        ),
        ("perdura_reads_total", "Unordered reads answered.", c.reads),
        ("perdura_views_started_total", "Views started.", c.views_started),
        ("perdura_checkpoints_total", "Checkpoints stored.", c.checkpoints),
        (
            "perdura_checkpoint_written_bytes_total",
            "Bytes of checkpoints written.",
            snapshot.checkpoints.written,
        ),
        (
            "perdura_checkpoint_linked_bytes_total",
            "Bytes of checkpoints that had not changed and were not written again.",
            snapshot.checkpoints.linked,
        ),
        (
            "perdura_repairs_total",
            "Times that the state was not the certified one and was replaced.",
            snapshot.repairs,
        ),
        (
            "perdura_checkpoint_damages_total",
            "Pieces and indexes of checkpoints that had rotted.",
            snapshot.checkpoints.damages,
        ),
        (
            "perdura_differences_total",
            "Times that replicas had signed different states.",
            c.differences,
        ),
        ("perdura_states_certified_total", "States certified.", c.states_certified),
        ("perdura_transfers_started_total", "State transfers begun.", c.transfers_started),
        ("perdura_transfers_completed_total", "State transfers ended.", c.transfers_completed),
        ("perdura_fetches_served_total", "Laggards served.", c.fetches_served),
        ("perdura_testimonies_total", "Histories signed again for laggards.", c.testimonies),
        ("perdura_throttled_questions_total", "Replicas that asked too often.", c.throttled),
        (
            "perdura_disk_lags_total",
            "Times that nothing was executed until the disk had caught up.",
            c.agreement.disk_lags,
        ),
        ("perdura_misbehaviours_total", "Messages no correct peer sends.", c.misbehaviours),
        ("perdura_received_bytes_total", "Bytes received.", s.received_bytes + t.received_bytes),
        ("perdura_sent_bytes_total", "Bytes sent.", s.sent_bytes + t.sent_bytes),
        (
            "perdura_received_messages_total",
            "Messages received.",
            s.received_messages + t.received_messages,
        ),
        ("perdura_sent_messages_total", "Messages sent.", s.sent_messages + t.sent_messages),
        (
            "perdura_dropped_messages_total",
            "Messages dropped.",
            s.dropped_messages + t.dropped_messages,
        ),
        (
            "perdura_turned_away_total",
            "Connections closed at once: too few file descriptors.",
            s.turned_away,
        ),
        ("perdura_held_back_total", "Turns of links passed over.", s.held_back + t.held_back),
        (
            "perdura_transfer_received_bytes_total",
            "Of the bytes received, those over transfer links.",
            t.received_bytes,
        ),
        (
            "perdura_transfer_sent_bytes_total",
            "Of the bytes sent, those over transfer links.",
            t.sent_bytes,
        ),
        (
            "perdura_refused_peers_total",
            "Peers refused at their handshake.",
            s.refused_peers + t.refused_peers,
        ),
    ];
    if let Some(space) = report.space {
        let bytes = |mib: u32| u64::from(mib) * 1_048_576;
        let (free, size) = (bytes(space.free_mib), bytes(space.size_mib));
        add(registry, "perdura_disk_free_bytes", "Room under the data directory.", free, false)?;
        add(registry, "perdura_disk_size_bytes", "Size of its file system.", size, false)?;
    }
    add_members(registry, company)?;
    add_threads(registry, &snapshot.watch)?;
    registry.register(Box::new(snapshot.timings.flushes.clone()))?;
    registry.register(Box::new(snapshot.timings.rounds.clone()))?;
    for (name, help, value) in gauges {
        add(registry, name, help, value, false)?;
    }
    for (name, help, value) in counters {
        add(registry, name, help, value, true)?;
    }
    add_measures(registry, &report.service)?;
    if let Some(stages) = &snapshot.stages {
        add_stages(registry, stages)?;
    }
    Ok(())
}
