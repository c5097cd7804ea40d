//! `perdura replica`: runs one replica until it is told to stop.

use crate::config::{Cluster, ReplicaFile, files};
use crate::process::{self, LogLevel};
use crate::reinit;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use perdura_protocol::ReplicaId;
use perdura_protocol::configuration::ServiceKind;
use perdura_replica::runtime::{self, LogDevice, ReplicaConfig, Shutdown};
use perdura_store::Store;
use perdura_tuples::TupleSpaces;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs one replica, in the foreground, with its logs on standard error. SIGTERM or SIGINT stops
/// it in order.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The replica's file, as in DIR/replica-0/replica.toml
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    log_level: LogLevel,
    /// For experiments: write the log no faster than a device whose flushes take this long and
    /// that writes so many MB (10^6 bytes) a second; nothing becomes less durable
    #[arg(long, value_name = "delay_ms=N,mb_s=N")]
    log_device: Option<LogDevice>,
    /// Measure what the event loop's processor time goes to, for `perdura bench put --profile`; takes a few
    /// percent more of it
    #[arg(long)]
    profile: bool,
    /// Stop when this process ends, which has to be the parent
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
    /// Lie: one of the strategies of `perdura-lab simulate --liars`
    #[cfg(feature = "misbehave")]
    #[arg(long, value_name = "STRATEGY", value_parser = crate::misbehave::parse_strategy)]
    misbehave: Option<perdura_adversary::Strategy>,
}

#[derive(Subcommand)]
enum Command {
    /// Replace a replica that lost its disk, or its memory: orders a new incarnation with the
    /// administrator's key, rotates the replica's key, formats its data directory
    Reinit(reinit::Arguments),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(Command::Reinit(arguments)) = &arguments.command {
        return reinit::run(arguments);
    }
    let Some(path) = &arguments.config else { anyhow::bail!("give --config FILE") };
    if let Some(parent) = arguments.parent {
        process::end_with_parent(parent)?;
    }
    let (file, cluster) = load(path)?;
    check_data(&file, &cluster)?;
    process::start_logging(arguments.log_level);
    let shutdown = Shutdown::new();
    let requested = shutdown.clone();
    process::on_stop(move |signal| {
        tracing::info!("{signal}: stopping");
        requested.request();
    })?;
    let limit = cluster.parameters.state_limit_bytes;
    let id = file.id;
    let mut config = replica_config(file, &cluster);
    config.log_device = arguments.log_device;
    config.profile = arguments.profile;
    let service = cluster.service()?;
    #[cfg(feature = "misbehave")]
    if let Some(strategy) = arguments.misbehave {
        let liar = crate::misbehave::liar(&config, strategy);
        let liar = liar.with_context(|| format!("replica {id}"))?;
        let ran = match service {
            ServiceKind::KeyValue => {
                runtime::run_misbehaving(config, liar, move || Store::new(limit), &shutdown)
            }
            ServiceKind::TupleSpaces => {
                runtime::run_misbehaving(config, liar, move || TupleSpaces::new(limit), &shutdown)
            }
        };
        ran.with_context(|| format!("replica {id}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let ran = match service {
        ServiceKind::KeyValue => runtime::run(config, move || Store::new(limit), &shutdown),
        ServiceKind::TupleSpaces => {
            runtime::run(config, move || TupleSpaces::new(limit), &shutdown)
        }
    };
    ran.with_context(|| format!("replica {id}"))?;
    tracing::info!("replica {id} has stopped");
    Ok(ExitCode::SUCCESS)
}

/// A replica's file and its cluster's, which fit each other.
pub fn load(path: &Path) -> Result<(ReplicaFile, Cluster)> {
    let file = ReplicaFile::load(path)?;
    let cluster = Cluster::load(&file.cluster())?;
    file.check_member(&cluster)?;
    Ok((file, cluster))
}

/// That there is something in the data directory. A blank replica must not take the place of one
/// that made promises (rule D8).
fn check_data(file: &ReplicaFile, cluster: &Cluster) -> Result<()> {
    let (data, id) = (file.data(), file.id);
    let holds_something = match std::fs::read_dir(&data) {
        Ok(entries) => entries.flatten().any(|entry| entry.file_name() != "lock"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => {
            return Err(error).with_context(|| {
                format!("replica {id}: cannot read the data directory {}", data.display())
            });
        }
    };
    ensure!(
        holds_something,
        "replica {id}: the data directory {} is {}. If its disk is not mounted, mount it. If its \
         content is lost, replace the replica with `perdura replica reinit --cluster {} --id {id}`",
        data.display(),
        if data.exists() { "empty" } else { "missing" },
        files::directory_of(&cluster.path).display()
    );
    Ok(())
}

fn replica_config(file: ReplicaFile, cluster: &Cluster) -> ReplicaConfig {
    let id = ReplicaId(file.id);
    ReplicaConfig {
        id,
        incarnation: file.incarnation,
        data: file.data(),
        log_device: None,
        profile: false,
        checkpoint_bytes_per_s: file.checkpoint_mb_s * 1_000_000,
        scrub_interval: Duration::from_secs(file.scrub_interval_s),
        state_transfer: file.state_transfer,
        key: file.key,
        parameters: cluster.parameters.clone(),
        genesis: cluster.genesis(id),
        latest: cluster.latest(),
        addresses: cluster.replicas.iter().map(|entry| entry.address.clone()).collect(),
        listen: file.listen,
        http: file.http,
    }
}
