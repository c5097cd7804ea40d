//! What a replica says of itself in numbers: name, help, value.

use crate::runtime::http::Snapshot;

/// Name, help, value.
pub(super) type Row = (&'static str, &'static str, u64);

/// Where it is, and how large its state.
pub(super) fn position(snapshot: &Snapshot) -> Vec<Row> {
    let report = &snapshot.report;
    let (c, peer_health) = (&report.counters, &report.peer_health);
    vec![
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
            peer_health.hears as u64,
        ),
        (
            "perdura_log_stalled_milliseconds",
            "How long a write to the log has not come back; 0 while none hangs.",
            u64::from(peer_health.stalled_ms),
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
    ]
}

/// What it holds in memory for others.
pub(super) fn held(snapshot: &Snapshot) -> Vec<Row> {
    let held = &snapshot.report.held;
    vec![
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
    ]
}

/// What waits for its execution thread, which peers it holds back, and whom it is linked to.
pub(super) fn waiting(snapshot: &Snapshot) -> Vec<Row> {
    let held = &snapshot.report.held;
    let (s, t) = (&snapshot.network, &snapshot.transfers);
    vec![
        (
            "perdura_execution_waiting_batches",
            "Batches that are decided and not executed.",
            held.apply_queue.0 as u64,
        ),
        (
            "perdura_execution_waiting_bytes",
            "Bytes of batches that are decided and not executed.",
            held.apply_queue.1 as u64,
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
    ]
}

/// What became of commands, ever.
pub(super) fn of_commands(snapshot: &Snapshot) -> Vec<Row> {
    let c = &snapshot.report.counters;
    vec![
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
    ]
}

/// Of views, states and laggards, ever.
pub(super) fn of_states(snapshot: &Snapshot) -> Vec<Row> {
    let c = &snapshot.report.counters;
    vec![
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
        ("perdura_attestations_total", "Histories signed again for laggards.", c.attestations),
        ("perdura_throttled_questions_total", "Replicas that asked too often.", c.throttled),
        (
            "perdura_disk_lags_total",
            "Times that nothing was executed until the disk had caught up.",
            c.agreement.disk_lags,
        ),
    ]
}

/// Of messages and links, ever.
pub(super) fn of_network(snapshot: &Snapshot) -> Vec<Row> {
    let c = &snapshot.report.counters;
    let (s, t) = (&snapshot.network, &snapshot.transfers);
    vec![
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
    ]
}
