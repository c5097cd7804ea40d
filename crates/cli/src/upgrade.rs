//! `perdura upgrade`: raises the versions of the rules under which all replicas execute.

use crate::administer::{How, administer, confirmed, uncertain};
use crate::connect::{administrator, load};
use crate::health;
use anyhow::{Context, Result, bail};
use clap::Args;
use perdura::health::RollCall;
use perdura_protocol::AdminCommand;
use std::process::ExitCode;
use std::time::Duration;

/// Raise the versions under which all replicas execute
///
/// Those of the core's rules and of the service, once all replicas run a program that knows them.
///
/// First asks all replicas what they run and could run, and says so; then orders the highest versions that all know. They hold from the
/// next batch on, and are never lowered: older programs cannot run the replicas afterwards. Refused where it is not known of a
/// replica that it can run them.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    how: How,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Raise them without being asked again
    #[arg(long)]
    yes: bool,
    /// Raise them though some replicas do not say whether they can run them, or up to r say that they cannot (they may lie): one that
    /// cannot stops there, and does not count any more until a newer program runs it
    #[arg(long)]
    force: bool,
}

/// Longest wait for replicas that do not answer.
const ASK: Duration = Duration::from_secs(3);

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let how = &arguments.how;
    let cluster = load(&how.cluster)?;
    let key = administrator(&how.cluster, &cluster)?;
    let roll = health::ask(&cluster, &key, how.timeout.min(ASK))?;
    show(&roll);
    let upgrade = roll
        .upgrade(&cluster.parameters.service)
        .context("too few replicas say which versions they run; nothing was changed")?;
    say!("in force: {}", upgrade.in_force);
    say!("all who say can run: {}", upgrade.common);
    let to = if arguments.force { upgrade.of_most } else { upgrade.common };
    if upgrade.of_most != upgrade.common {
        say!("all but {} of them: {}", cluster.parameters.faults.r(), upgrade.of_most);
        say!(
            "whoever says that it can run less has an older program, or lies; --force raises them all the same"
        );
    }
    if to == upgrade.in_force {
        say!("there is nothing to raise");
        return Ok(ExitCode::SUCCESS);
    }
    for (id, why) in &upgrade.doubtful {
        say!("whether replica {id} can run them is not known: {why}");
    }
    if !upgrade.doubtful.is_empty() && !arguments.force {
        bail!(
            "nothing was changed: start all replicas, with a program that knows the versions. With --force they are raised all the \
             same: a replica that cannot run them stops there until a newer program runs it"
        );
    }
    if arguments.dry_run {
        say!("nothing was changed: --dry-run");
        return Ok(ExitCode::SUCCESS);
    }
    let question =
        format!("The versions will be {to}, and are never lowered again. Type yes to raise them:");
    if !arguments.yes && !confirmed(&question, "yes")? {
        bail!(
            "nothing was changed: versions are never lowered again. If that is meant, give --yes"
        );
    }
    administer(&cluster, how, AdminCommand::RaiseVersions(to))
        .map_err(|error| uncertain(error, "raising the versions"))?;
    say!("the versions are raised to: {to}");
    Ok(ExitCode::SUCCESS)
}

/// What each replica runs, by its own word.
fn show(roll: &RollCall) {
    for one in roll.attendance() {
        let Some(vitals) = &one.vitals else { continue };
        let (id, program) = (one.id, vitals.program.as_str());
        if let Some(runs) = &vitals.runs {
            let (service, versions, newest) = (&runs.service, runs.versions, runs.newest);
            say!("replica {id}: program {program}, {service}; runs {versions}; can run {newest}");
        }
    }
}
