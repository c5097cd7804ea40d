//! `perdura health`: whether a cluster can be written to, by what its replicas say over the protocol port.

use crate::called;
use crate::connect::{ClusterArguments, connect, parse_duration, runtime};
use crate::partitions::label;
use anyhow::{Context, Result};
use clap::Args;
use perdura_cluster::Cluster;
use perdura_cluster::config::KeyFile;
use perdura_cluster::health::{Health, RollCall};
use perdura_cluster::protocol::ReplicaId;
use perdura_cluster::protocol::text::Printable;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Whether the cluster can be written to, as an exit code
///
/// Asks every replica over the protocol port and waits for those that do not answer until the time is over. Nothing is ordered.
///
/// Exit code: 0 writes and reads, 3 reads only, 4 neither, 1 it could not be asked (unknown: replicas run that did not let this client in), 2 used wrongly. Of several partitions it is that of the one
/// that stands worst.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// How long to wait for replicas that do not answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let groups = arguments.cluster.load_groups()?;
    let key = arguments.cluster.key(&groups[0])?;
    let rolls = ask_each(&groups, &key, arguments.timeout)?;
    let partitioned = groups[0].parameters.map.is_some();
    let healths: Vec<Health> = rolls.iter().map(RollCall::health).collect();
    let worst = healths.iter().copied().max().unwrap_or(Health::Neither);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let said = if partitioned {
            json_of_all(&groups, &rolls, worst)
        } else {
            json(&groups[0], &rolls[0])
        };
        serde_json::to_writer(&mut out, &said)?;
        writeln!(out)?;
    } else {
        let first = if partitioned { summary(&healths) } else { format!("{}\n", worst.text()) };
        write!(out, "{first}")?;
        for (group, roll) in groups.iter().zip(&rolls) {
            let label = |id: ReplicaId| label(group.parameters.partition(), id.0);
            if let Some(newest) = roll.newer_configuration(group.configuration) {
                let of = group.parameters.partition().map(|one| format!("partition {}: ", one.0));
                writeln!(
                    out,
                    "{}{} is old: it is of configuration {}, and the group has {newest}. Who was replaced since then is not known by it: \
                     take the newest cluster.toml, from where replicas are replaced",
                    of.unwrap_or_default(),
                    group.path.display(),
                    group.configuration,
                )?;
            }
            for (id, why) in roll.missing() {
                let why = called::here(&why);
                writeln!(out, "{} does not take part: {}", label(id), Printable(&why))?;
            }
            for (id, space) in roll.nearly_full() {
                writeln!(out, "{}: its disk is nearly full: {space}", label(id))?;
            }
            for (id, certifiable) in roll.differing() {
                let more = if certifiable { "" } else { ", and none of them can be certified" };
                writeln!(out, "{} holds different signed states{more}: see its log", label(id))?;
            }
        }
    }
    Ok(exit_code(worst))
}

/// How many partitions stand how.
pub fn summary(healths: &[Health]) -> String {
    let mut by_health: BTreeMap<Health, Vec<String>> = BTreeMap::new();
    for (partition, health) in healths.iter().enumerate() {
        by_health.entry(*health).or_default().push(partition.to_string());
    }
    let line = |(health, partitions): (&Health, &Vec<String>)| {
        let (count, all) = (partitions.len(), healths.len());
        let which = if count == all { "all".to_owned() } else { partitions.join(", ") };
        format!("{}: {count} of {all} partitions ({which})\n", health.text())
    };
    by_health.iter().map(line).collect()
}

/// The exit code that tells of it.
pub fn exit_code(health: Health) -> ExitCode {
    match health {
        Health::Writes => ExitCode::SUCCESS,
        Health::ReadsOnly => ExitCode::from(3),
        Health::Neither => ExitCode::from(4),
        Health::Unknown => ExitCode::FAILURE,
    }
}

/// What the replicas of each group say of themselves; all groups are asked at once.
pub fn ask_each(groups: &[Cluster], key: &KeyFile, timeout: Duration) -> Result<Vec<RollCall>> {
    runtime()?.block_on(async {
        let mut asked = Vec::new();
        for group in groups {
            let client = connect(group, key)?;
            asked.push(tokio::spawn(async move {
                let attendance = client.roll_call(timeout).await;
                client.close().await;
                attendance
            }));
        }
        let mut rolls = Vec::new();
        for (group, asked) in groups.iter().zip(asked) {
            let attendance = asked.await.context("asking a group failed")?;
            let attendance = attendance.context("the client ended before it had asked")?;
            rolls.push(RollCall::of(group, attendance));
        }
        Ok(rolls)
    })
}

/// What the replicas say of themselves.
pub fn ask(cluster: &Cluster, key: &KeyFile, timeout: Duration) -> Result<RollCall> {
    let rolls = ask_each(std::slice::from_ref(cluster), key, timeout)?;
    rolls.into_iter().next().context("the group was not asked")
}

fn json_of_all(groups: &[Cluster], rolls: &[RollCall], worst: Health) -> serde_json::Value {
    let partition = |(partition, (group, roll)): (u16, (&Cluster, &RollCall))| {
        let mut said = json(group, roll);
        said["partition"] = partition.into();
        said
    };
    let partitions: Vec<_> = (0..).zip(groups.iter().zip(rolls)).map(partition).collect();
    serde_json::json!({"health": worst.as_str(), "partitions": partitions})
}

fn json(group: &Cluster, roll: &RollCall) -> serde_json::Value {
    let missing = roll.missing();
    let why = |id| missing.iter().find(|(other, _)| *other == id).map(|(_, why)| why.clone());
    let replicas = roll.attendance().iter().map(|one| {
        let vitals = one.vitals.as_ref();
        serde_json::json!({
            "id": one.id.0,
            "answers": vitals.is_some(),
            "state": vitals.map(|vitals| vitals.condition.as_str()),
            "view": vitals.map(|vitals| vitals.view.0),
            "decided": vitals.map(|vitals| vitals.decided.0),
            "flush_ms": vitals.map(|vitals| vitals.flush_ms),
            "stalled_ms": vitals.map(|vitals| vitals.stalled_ms),
            "disk_free_mib": vitals.and_then(|vitals| Some(vitals.space?.free_mib)),
            "disk_size_mib": vitals.and_then(|vitals| Some(vitals.space?.size_mib)),
            "version": vitals.map(|vitals| vitals.program.as_str()),
            "states_differ": vitals.is_some_and(|vitals| vitals.differing.is_some()),
            "why_not": why(one.id),
        })
    });
    serde_json::json!({
        "health": roll.health().as_str(),
        "files_are_old": roll.newer_configuration(group.configuration).is_some(),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}
