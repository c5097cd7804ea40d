//! `perdura upgrade`: raises the versions of the rules under which all replicas execute.

use crate::administer::{How, administer, confirmed, uncertain};
use crate::called;
use crate::connect::{administrator, load_groups};
use crate::health;
use anyhow::{Context, Result, bail};
use clap::Args;
use perdura_cluster::health::{RollCall, Upgrade};
use perdura_protocol::{AdminCommand, Versions};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Raise the versions under which all replicas execute
///
/// Those of the core's rules and of the service, once all replicas run a program that knows them.
///
/// First asks all replicas what they run and could run, and says so; then orders the highest versions that all know. They hold from the
/// next batch on, and are never lowered: older programs cannot run the replicas afterwards. Refused where it is not known of a
/// replica that it can run them. Where there is nothing to raise, but not every replica said so, or one can run more than the others, it
/// fails.
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
    let groups = load_groups(&how.cluster)?;
    let key = administrator(&how.cluster, &groups[0])?;
    let rolls = health::ask_each(&groups, &key, how.timeout.min(ASK))?;
    let (mut raised, mut is_doubtful, mut all_said) = (Vec::new(), false, true);
    let mut held_back = Vec::new();
    for (group, roll) in groups.iter().zip(&rolls) {
        let of = group.partition_text();
        show(&of, roll);
        let upgrade = roll.upgrade(&group.parameters.service).with_context(|| {
            format!("{of}too few replicas say which versions they run; nothing was changed")
        })?;
        say!("{of}in force: {}", upgrade.in_force);
        say!("{of}all who say can run: {}", upgrade.common);
        let to = if arguments.force { upgrade.of_most } else { upgrade.common };
        if upgrade.of_most != upgrade.common {
            say!("{of}all but {} of them: {}", group.parameters.faults.r(), upgrade.of_most);
            say!(
                "whoever says that it can run less has an older program, or lies; --force raises them all the same"
            );
        }
        for (id, why) in &upgrade.doubtful {
            let why = called::here(why);
            say!("{of}what replica {id} runs and can run is not known: {why}");
        }
        all_said &= upgrade.doubtful.is_empty();
        if to == upgrade.in_force {
            if upgrade.newest != to {
                held_back.push(format!("{of}{}", held_back_by(&upgrade)));
            }
            continue;
        }
        is_doubtful |= !upgrade.doubtful.is_empty();
        raised.push((group, to));
    }
    let Some(highest) = raised.iter().map(|(_, to)| *to).reduce(highest_of) else {
        return nothing_to_raise(&held_back, all_said);
    };
    if is_doubtful && !arguments.force {
        bail!(
            "nothing was changed: start all replicas, with a program that knows the versions. With --force they are raised all the \
             same: a replica that cannot run them stops there until a newer program runs it"
        );
    }
    if arguments.dry_run {
        say!("nothing was changed: --dry-run");
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!(
        "The versions will be {highest}, and are never lowered again. Type yes to raise them:"
    );
    if !arguments.yes && !confirmed(&question, "yes")? {
        bail!(
            "nothing was changed: versions are never lowered again. If that is meant, give --yes"
        );
    }
    for (group, to) in raised {
        let of = group.partition_text();
        administer(group, how, AdminCommand::RaiseVersions(to))
            .map_err(|error| uncertain(error, &format!("{of}raising the versions")))?;
        say!("{of}the versions are raised to: {to}");
    }
    Ok(ExitCode::SUCCESS)
}

/// No group can be raised: because of these, or since not all said what they can run, or because all run under the newest versions.
fn nothing_to_raise(held_back: &[String], all_said: bool) -> Result<ExitCode> {
    if !held_back.is_empty() {
        bail!(
            "nothing can be raised yet, for not all replicas run a program that knows the newest versions. {}. Start these with the newer \
             program, and run the command again",
            held_back.join("; ")
        );
    }
    if !all_said {
        bail!(
            "among the replicas that said what they run there is nothing to raise, and not all did: start the others, and run the command again"
        );
    }
    say!("there is nothing to raise");
    Ok(ExitCode::SUCCESS)
}

/// Of several groups one may have been raised before, and another not.
fn highest_of(one: Versions, other: Versions) -> Versions {
    Versions { rules: one.rules.max(other.rules), service: one.service.max(other.service) }
}

/// Which replicas have older programs than another one.
fn held_back_by(upgrade: &Upgrade) -> String {
    let mut behind: BTreeMap<Versions, Vec<String>> = BTreeMap::new();
    for (id, newest) in &upgrade.behind {
        behind.entry(*newest).or_default().push(id.to_string());
    }
    let text = |(newest, ids): (Versions, Vec<String>)| match &ids[..] {
        [id] => format!("replica {id} can run only {newest}"),
        ids => format!("replicas {} can run only {newest}", ids.join(", ")),
    };
    let behind: Vec<String> = behind.into_iter().map(text).collect();
    format!("The newest that any of them knows: {}; {}", upgrade.newest, behind.join("; "))
}

/// What each replica runs, by its own word.
fn show(of: &str, roll: &RollCall) {
    for one in roll.attendance() {
        let Some(vitals) = &one.vitals else { continue };
        let (id, program) = (one.id, vitals.program.as_str());
        if let Some(runs) = &vitals.runs {
            let (service, versions, newest) = (&runs.service, runs.versions, runs.newest);
            say!(
                "{of}replica {id}: program {program}, {service}; runs {versions}; can run {newest}"
            );
        }
    }
}
