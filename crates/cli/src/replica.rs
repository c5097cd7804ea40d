//! `perdura replica`: runs one replica until it is told to stop.

use crate::logging::{self, Logging};
use crate::process::{self, LogLevel, STOP_WITHIN};
use crate::reinit;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use perdura_cluster::replica::{Replica, RunError};
use perdura_replica::runtime::{self, LogDevice, Shutdown};
use perdura_typed::{Service, Typed, name_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run one replica, or replace one that lost its disk
///
/// It runs in the foreground, with its logs on standard error. SIGTERM, SIGINT or SIGHUP stops it in order.
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
}

#[derive(Subcommand)]
enum Command {
    Reinit(reinit::Arguments),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(Command::Reinit(arguments)) = &arguments.command {
        return reinit::run(arguments, None);
    }
    let Some(path) = &arguments.config else { anyhow::bail!("give --config FILE") };
    if let Some(parent) = arguments.parent {
        process::end_with_parent(parent)?;
    }
    let (mut replica, shutdown, _logging) = open(path, arguments.log_level)?;
    let id = replica.config.id;
    replica.config.log_device = arguments.log_device;
    replica.config.profile = arguments.profile;
    replica.run(&shutdown)?;
    tracing::info!("replica {id} has stopped");
    Ok(ExitCode::SUCCESS)
}

/// The replica whose file is at `path`, what SIGTERM, SIGINT and SIGHUP request, and its logs on standard error, as long as the last
/// is kept.
pub fn open(path: &Path, log_level: LogLevel) -> Result<(Replica, Shutdown, Logging)> {
    process::raise_file_limit();
    let mut replica = Replica::open(path)?;
    let (shutdown, logging) = attend(log_level)?;
    replica.config.lost_log_lines = logging.lost();
    Ok((replica, shutdown, logging))
}

/// What SIGTERM, SIGINT and SIGHUP request of a replica, and its logs.
fn attend(log_level: LogLevel) -> Result<(Shutdown, Logging)> {
    let logging = logging::start(log_level).context("cannot start a thread for logs")?;
    let shutdown = Shutdown::new();
    let (requested, farewell) = (shutdown.clone(), logging.farewell());
    process::on_stop(move |signal| {
        tracing::info!("{signal}: stopping");
        requested.request();
        process::end_within(STOP_WITHIN, move || {
            let (limit_s, why) = (STOP_WITHIN.as_secs(), requested.hindrance());
            tracing::error!("not stopped {limit_s} s after {signal}, so it ends as it is: {why}");
            farewell.say();
        });
    })?;
    Ok((shutdown, logging))
}

/// Run one replica, or replace one that lost its disk
///
/// It runs in the foreground, with its logs on standard error. SIGTERM, SIGINT or SIGHUP stops it in order.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct OwnArguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The replica's file, as in DIR/replica-0/replica.toml
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    log_level: LogLevel,
    /// Stop when this process ends, which has to be the parent
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
}

/// Runs the command of a program with a service of its own, which is called so.
pub fn run_own<S: Service>(arguments: &OwnArguments, program: &str) -> Result<ExitCode> {
    if let Some(Command::Reinit(arguments)) = &arguments.command {
        return reinit::run(arguments, Some(program));
    }
    let Some(path) = &arguments.config else { anyhow::bail!("give --config FILE") };
    if let Some(parent) = arguments.parent {
        process::end_with_parent(parent)?;
    }
    process::raise_file_limit();
    let mut config = perdura_cluster::replica::config(path, &name_of::<S>())?;
    let (shutdown, logging) = attend(arguments.log_level)?;
    config.lost_log_lines = logging.lost();
    let (id, limit) = (config.id, config.parameters.state_limit_bytes);
    let run = runtime::run(config, move || Typed::<S>::new(limit), &shutdown);
    run.map_err(|source| RunError { id, source })?;
    tracing::info!("replica {id} has stopped");
    Ok(ExitCode::SUCCESS)
}
