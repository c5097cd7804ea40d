//! `perdura limit`: raises the limit of the service's state.

use crate::administer::{How, administer, confirmed, uncertain};
use crate::connect::{administrator, load};
use anyhow::{Result, bail};
use clap::Args;
use perdura_protocol::{AdminCommand, limits};
use std::process::ExitCode;

const MIB: u64 = 1024 * 1024;

/// Raise the limit of the state
///
/// Commands that would make the state larger than its limit are refused. The limit holds from the next batch on, and is never lowered; the one in cluster.toml is that with which the cluster began.
///
/// The state lives in memory: every machine needs room for three times the limit, and 2 GiB more (docs/deploy.md).
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    how: How,
    /// The limit, MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=(limits::STATE_LIMIT_BYTES / MIB)))]
    state_mib: u64,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Raise it without being asked again
    #[arg(long)]
    yes: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (how, mib) = (&arguments.how, arguments.state_mib);
    let cluster = load(&how.cluster)?;
    administrator(&how.cluster, &cluster)?;
    say!("with a full state each replica's machine needs {} MiB of memory", 3 * mib + 2048);
    if arguments.dry_run {
        say!("nothing was changed: --dry-run");
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!(
        "The state may take {mib} MiB then, which is never lowered again. Type yes to raise the limit:"
    );
    if !arguments.yes && !confirmed(&question, "yes")? {
        bail!("nothing was changed: a limit is never lowered again. If that is meant, give --yes");
    }
    let command = AdminCommand::RaiseStateLimit { bytes: mib * MIB };
    administer(&cluster, how, command).map_err(|error| uncertain(error, "raising the limit"))?;
    say!("the state may take {mib} MiB from now on");
    Ok(ExitCode::SUCCESS)
}
