//! Servers with members that lie.

use super::{liar, parse_strategy, store};
use anyhow::Result;
use clap::Args;
use perdura_adversary::Strategy;
use perdura_cli::process::LogLevel;
use perdura_cli::server;
use perdura_cluster::ServiceKind;
use perdura_protocol::seeded::Bug;
use perdura_replica::runtime::{self, ReplicaConfig, RunError, Work};
use perdura_tuples::TupleSpaces;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs a server in whose members' names a liar speaks, in place of `perdura server`.
#[derive(Args)]
pub struct Arguments {
    /// The server's file, as in DIR/server-0/server.toml
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How they lie: one of the strategies of `perdura-lab simulate --liars`
    #[arg(long, value_name = "STRATEGY", value_parser = parse_strategy)]
    misbehave: Option<Strategy>,
    /// Only the member of this partition's group does
    #[arg(long, value_name = "P")]
    partition: Option<u16>,
    /// Make all of them with this mistake, one of `perdura-lab simulate --list-bugs`
    #[arg(long, value_name = "NAME", value_parser = crate::seeded::parse)]
    bug: Option<Bug>,
    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    log_level: LogLevel,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (server, logging) = server::open(&arguments.config, arguments.log_level)?;
    crate::seeded::activate(arguments.bug)?;
    let Arguments { misbehave, partition, .. } = *arguments;
    server::listen(server, &logging)?.run_as(|config, service| {
        let own = config.parameters.partition().map(|own| own.0);
        let lies = misbehave.filter(|_| partition.is_none() || partition == own);
        work(config, service, lies)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a member does; one that does not lie, what its files say.
fn work(config: ReplicaConfig, service: ServiceKind, lies: Option<Strategy>) -> Work {
    Box::new(move |shutdown| {
        let liar = lies.map(|strategy| liar(&config, service, strategy)).transpose();
        let liar = liar.map_err(|error| RunError::Halted(format!("{error:#}")))?;
        let limit = config.parameters.state_limit_bytes;
        let make = store(&config.parameters);
        match (service, liar) {
            (ServiceKind::KeyValue, None) => runtime::run(config, make, shutdown),
            (ServiceKind::KeyValue, Some(liar)) => {
                runtime::run_tapped(config, liar, make, shutdown)
            }
            (ServiceKind::TupleSpaces, None) => {
                runtime::run(config, move || TupleSpaces::new(limit), shutdown)
            }
            (ServiceKind::TupleSpaces, Some(liar)) => {
                runtime::run_tapped(config, liar, move || TupleSpaces::new(limit), shutdown)
            }
        }
    })
}
