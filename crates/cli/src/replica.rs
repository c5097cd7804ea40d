//! `perdura replica`: runs one replica until it is told to stop.

use crate::logging::{self, Logging};
use crate::process::{self, LogLevel};
use crate::reinit;
use anyhow::Result;
use clap::{Args, Subcommand};
use perdura_cluster::replica::{Replica, RunError};
use perdura_protocol::ReplicaId;
use perdura_replica::runtime::{self, LogDevice, Shutdown};
use perdura_typed::{Service, Typed, name_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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

#[derive(Subcommand)]
enum Command {
    Reinit(reinit::Arguments),
}

#[allow(missing_docs, reason = "it would take the place of what stands with what is flattened")]
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    of_any: OwnArguments,
    /// For experiments: write the log no faster than a device whose flushes take this long and
    /// that writes so many MB (10^6 bytes) a second; nothing becomes less durable
    #[arg(long, value_name = "delay_ms=N,mb_s=N")]
    log_device: Option<LogDevice>,
    /// Measure what the event loop's processor time goes to, for `perdura bench put --profile`; takes a few
    /// percent more of it
    #[arg(long)]
    profile: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.of_any.run(None, |path, shutdown, logging| {
        let mut replica = Replica::open(path)?;
        let config = &mut replica.config;
        config.lost_log_lines = logging.lost();
        (config.log_device, config.profile) = (arguments.log_device, arguments.profile);
        let id = config.id;
        replica.run(shutdown)?;
        Ok(id)
    })
}

/// Runs the command of a program with a service of its own, which is called so.
pub fn run_own<S: Service>(arguments: &OwnArguments, program: &str) -> Result<ExitCode> {
    arguments.run(Some(program), |path, shutdown, logging| {
        let mut config = perdura_cluster::replica::config(path, &name_of::<S>())?;
        config.lost_log_lines = logging.lost();
        let (id, limit) = (config.id, config.parameters.state_limit_bytes);
        let ran = runtime::run(config, move || Typed::<S>::new(limit), shutdown);
        ran.map_err(|source| RunError { id, source })?;
        Ok(id)
    })
}

impl OwnArguments {
    /// Replaces a replica, or lets `run` run the one with this file until it has stopped.
    fn run(
        &self,
        program: Option<&str>,
        run: impl FnOnce(&Path, &Shutdown, &Logging) -> Result<ReplicaId>,
    ) -> Result<ExitCode> {
        if let Some(Command::Reinit(arguments)) = &self.command {
            return reinit::run(arguments, program);
        }
        let Some(path) = &self.config else { anyhow::bail!("give --config FILE") };
        if let Some(parent) = self.parent {
            process::end_with_parent(parent)?;
        }
        let (shutdown, logging) = attend(self.log_level)?;
        let id = run(path, &shutdown, &logging)?;
        tracing::info!("replica {id} has stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// The replica whose file is at `path`, what SIGTERM, SIGINT and SIGHUP request, and its logs on standard error, as long as the last
/// is kept.
pub fn open(path: &Path, log_level: LogLevel) -> Result<(Replica, Shutdown, Logging)> {
    let (shutdown, logging) = attend(log_level)?;
    let mut replica = Replica::open(path)?;
    replica.config.lost_log_lines = logging.lost();
    Ok((replica, shutdown, logging))
}

/// What SIGTERM, SIGINT and SIGHUP request of a replica, and its logs, before there is anything to be logged.
fn attend(log_level: LogLevel) -> Result<(Shutdown, Logging)> {
    process::raise_file_limit();
    let logging = logging::start(log_level)?;
    let shutdown = Shutdown::new();
    let (requested, asked) = (shutdown.clone(), shutdown.clone());
    process::stop_in_order(
        logging.farewell(),
        move || requested.request(),
        move || asked.hindrance(),
    )?;
    Ok((shutdown, logging))
}
