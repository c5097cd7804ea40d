//! `perdura server`: runs one server of a cluster of several partitions, with its members, until it is told to stop.

use crate::logging::{self, Logging};
use crate::process::{self, LogLevel};
use anyhow::Result;
use clap::Args;
use perdura_cluster::server::{Listening, Server};
use perdura_replica::runtime::LogDevice;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run one server of a cluster of several partitions
///
/// It has a member of each of several partitions' groups, behind one address. It runs in the foreground, with its logs on standard error.
/// SIGTERM, SIGINT or SIGHUP stops all members in order. One that ends for a reason of its own (its disk is corrupt) ends no other.
#[derive(Args)]
pub struct Arguments {
    /// The server's file, as in DIR/server-0/server.toml
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    log_level: LogLevel,
    /// For experiments: write each member's log no faster than a device whose flushes take this long and
    /// that writes so many MB (10^6 bytes) a second; nothing becomes less durable
    #[arg(long, value_name = "delay_ms=N,mb_s=N")]
    log_device: Option<LogDevice>,
    /// Measure what event loops' processor time goes to; takes a few percent more of it
    #[arg(long)]
    profile: bool,
    /// Stop when this process ends, which has to be the parent
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(parent) = arguments.parent {
        process::end_with_parent(parent)?;
    }
    let (mut server, logging) = open(&arguments.config, arguments.log_level)?;
    server.log_device = arguments.log_device;
    server.profile = arguments.profile;
    let id = server.file.id;
    listen(server, &logging)?.run()?;
    tracing::info!("server {id} has stopped");
    Ok(ExitCode::SUCCESS)
}

/// The server whose file is at `path`, and its logs on standard error, as long as the last is kept.
pub fn open(path: &Path, log_level: LogLevel) -> Result<(Server, Logging)> {
    process::raise_file_limit();
    let mut server = Server::open(path)?;
    let logging = logging::start(log_level)?;
    server.lost_log_lines = logging.lost();
    Ok((server, logging))
}

/// Listens, until SIGTERM, SIGINT or SIGHUP asks it to stop.
pub fn listen(server: Server, logging: &Logging) -> Result<Listening> {
    let listening = server.listen()?;
    let (requested, asked) = (listening.shutdown(), listening.shutdown());
    process::stop_in_order(
        logging.farewell(),
        move || requested.request(),
        move || asked.hindrance(),
    )?;
    Ok(listening)
}
