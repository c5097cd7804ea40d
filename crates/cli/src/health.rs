//! `perdura health`: whether a cluster can be written to, by what its replicas say over the protocol port.

use crate::connect::{ClusterArguments, connect, parse_duration, runtime};
use anyhow::{Context, Result};
use clap::Args;
use perdura::Cluster;
use perdura::config::KeyFile;
use perdura::health::{Health, RollCall};
use perdura::protocol::text::Printable;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Whether the cluster can be written to, as an exit code
///
/// Asks every replica over the protocol port and waits for those that do not answer until the time is over. Nothing is ordered.
///
/// Exit code: 0 writes and reads, 3 reads only, 4 neither, 1 it could not be asked, 2 used wrongly.
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
    let cluster = arguments.cluster.load()?;
    let key = arguments.cluster.key(&cluster)?;
    let roll = ask(&cluster, &key, arguments.timeout)?;
    let health = roll.health();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &json(&roll))?;
        writeln!(out)?;
    } else {
        writeln!(out, "{health}")?;
        for (id, why) in roll.missing() {
            writeln!(out, "replica {id} does not take part: {}", Printable(&why))?;
        }
        for (id, certifiable) in roll.differing() {
            let more = if certifiable { "" } else { ", and none of them can be certified" };
            writeln!(out, "replica {id} holds different signed states{more}: see its log")?;
        }
    }
    Ok(exit_code(health))
}

/// The exit code that tells of it.
pub fn exit_code(health: Health) -> ExitCode {
    match health {
        Health::Writes => ExitCode::SUCCESS,
        Health::ReadsOnly => ExitCode::from(3),
        Health::Neither => ExitCode::from(4),
    }
}

/// What the replicas say of themselves.
pub fn ask(cluster: &Cluster, key: &KeyFile, timeout: Duration) -> Result<RollCall> {
    let attendance = runtime()?.block_on(async {
        let client = connect(cluster, key)?;
        let attendance = client.roll_call(timeout).await;
        client.close().await;
        attendance.context("the client ended before it had asked")
    })?;
    Ok(RollCall::of(cluster, attendance))
}

fn json(roll: &RollCall) -> serde_json::Value {
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
            "version": vitals.map(|vitals| vitals.program.as_str()),
            "states_differ": vitals.is_some_and(|vitals| vitals.differing.is_some()),
            "why_not": why(one.id),
        })
    });
    serde_json::json!({
        "health": roll.health().as_str(),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}
