//! `perdura admin rotate`: replaces the administrator's key.
//!
//! Each step may be the last before an interruption, and running the command again goes on:
//!
//! 1. the new key goes to `admin.toml.pending`, so that a second run orders the same;
//! 2. the replacement is ordered, signed with the former key, which is void from there on;
//! 3. with partitions, who has been replaced there is signed anew and made known;
//! 4. `admin.toml.pending` becomes `admin.toml`.
//!
//! A second run cannot sign with the former key what was ordered already. So it asks first who takes part, as the new one: whom r + 1
//! replicas answer is registered with one of them that does not lie.

use crate::administer::{How, administer_as, is_refused};
use crate::client_keys::alone;
use crate::connect::load_groups;
use crate::health;
use crate::members::make_known;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use perdura_cluster::Cluster;
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::{ADMIN_FILE, KeyFile, PENDING_ADMIN_FILE, files};
use perdura_cluster::connect::administrator_in;
use perdura_protocol::AdminCommand;
use std::process::ExitCode;
use std::time::Duration;

/// Replace the administrator's key
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a new key, and have the cluster take it in place of the one in admin.toml, which is void then for good.
    /// Interrupted, it may be run again
    Rotate {
        #[command(flatten)]
        how: How,
    },
}

/// Longest wait for replicas that do not answer.
const ASK: Duration = Duration::from_secs(3);

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Command::Rotate { how } = &arguments.command;
    let dir = &how.cluster;
    load_groups(dir)?;
    let _alone = alone(dir)?;
    let groups = load_groups(dir)?;
    let cluster = &groups[0];
    let (path, pending) = (dir.join(ADMIN_FILE), dir.join(PENDING_ADMIN_FILE));
    let goes_on = pending.exists();
    if !goes_on {
        let former = administrator_in(&path, cluster)?;
        for group in groups.iter().filter(|_| groups.len() > 1) {
            check_answers(group, &former, how)?;
        }
        // The key that is void afterwards has to be there first.
        KeyFile::write_administrator(&pending, &fresh_key()?, cluster.parameters.whole_cluster())?;
    }
    let new = administrator_in(&pending, cluster)?;
    for (index, group) in groups.iter().enumerate() {
        if goes_on && is_in_force(group, &new, how)? {
            continue;
        }
        let former = administrator_in(&path, group)?;
        let command = AdminCommand::ReplaceAdministrator { key: new.key.public() };
        if let Err(error) = administer_as(&former, group, how, command) {
            let of = group.partition_text();
            if is_refused(&error) && index == 0 && !(goes_on && groups.len() > 1) {
                // For certain, and nowhere else, so the new key is of no use.
                let _ = std::fs::remove_file(&pending);
                return Err(error)
                    .with_context(|| format!("{of}the administrator's key is not replaced"));
            }
            return Err(error).with_context(|| {
                format!(
                    "{of}the administrator's key may not be replaced; run the command again: it goes on with the key in {}",
                    pending.display()
                )
            });
        }
    }
    // Words of the former one are no longer believed where they have not come yet.
    for group in groups.iter().filter(|group| group.configuration > 0) {
        let Some(partition) = group.parameters.partition() else { break };
        make_known(&groups, partition, &new, how.timeout)?;
    }
    files::rename(&pending, &path)?;
    say!("the administrator's key is replaced; the new one is in {}", path.display());
    say!(
        "copies of the former one are of no use any more: nothing that is signed with it is carried out"
    );
    Ok(ExitCode::SUCCESS)
}

/// That a partition can order anything: a key that is replaced in some partitions only serves for none of them.
fn check_answers(group: &Cluster, key: &KeyFile, how: &How) -> Result<()> {
    let faults = group.parameters.faults;
    let roll = health::ask(group, key, how.timeout.min(ASK))?;
    let answers = roll.attendance().iter().filter(|one| one.vitals.is_some()).count();
    ensure!(
        answers >= faults.n() - faults.u(),
        "{}{answers} of {} replicas answer, and {} are needed. Nothing was changed: the key is replaced when all partitions can do it; `perdura status` shows which replicas are down",
        group.partition_text(),
        faults.n(),
        faults.n() - faults.u()
    );
    Ok(())
}

/// Whether replicas take the new key already.
fn is_in_force(cluster: &Cluster, new: &KeyFile, how: &How) -> Result<bool> {
    let roll = health::ask(cluster, new, how.timeout.min(ASK))?;
    let answers = roll.attendance().iter().filter(|one| one.vitals.is_some()).count();
    Ok(answers > cluster.parameters.faults.r())
}
