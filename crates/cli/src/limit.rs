//! `perdura limit`: raises the limit of the service's state.

use crate::Usage;
use crate::administer::{How, administer, administer_each, confirmed, is_refused, uncertain};
use crate::connect::{administrator, load_groups};
use anyhow::{Result, bail};
use clap::Args;
use perdura_cluster::Cluster;
use perdura_protocol::{AdminCommand, limits};
use std::process::ExitCode;

const MIB: u64 = 1024 * 1024;

/// Raise the limit of the state
///
/// Commands that would make the state larger than its limit are refused. The limit holds from the next batch on, and is never lowered; the one in cluster.toml is that with which the cluster began.
///
/// The state lives in memory: every machine needs room for three times the limit, and 2 GiB more (docs/operations/sizing.md).
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

/// A limit is never lower than the one with which the cluster began, which is known without asking anybody.
fn refuse_lower(mib: u64, groups: &[Cluster]) -> Result<()> {
    let first = groups.iter().map(|group| group.parameters.state_limit_bytes).max();
    let first = first.unwrap_or_default() / MIB;
    if mib < first {
        bail!(Usage(format!(
            "--state-mib {mib}: a limit is never lowered, and this cluster began with {first} MiB; nothing was changed"
        )));
    }
    Ok(())
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (how, mib) = (&arguments.how, arguments.state_mib);
    let groups = load_groups(&how.cluster)?;
    let key = administrator(&how.cluster, &groups[0])?;
    refuse_lower(mib, &groups)?;
    say!("with a full state each replica's machine needs {} MiB of memory", 3 * mib + 2048);
    if groups.len() > 1 {
        say!(
            "that is for one partition: a server needs as much again for each further member that it has"
        );
    }
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
    if let [cluster] = &groups[..] {
        administer(cluster, how, command).map_err(|error| uncertain(error, "raising the limit"))?;
        say!("the state may take {mib} MiB from now on");
        return Ok(ExitCode::SUCCESS);
    }
    let (mut open, mut certain) = (Vec::new(), true);
    for (partition, result) in administer_each(&key, &groups, how, &command)?.iter().enumerate() {
        match result {
            Ok(_) => say!("partition {partition}: the state may take {mib} MiB from now on"),
            Err(error) => {
                certain &= is_refused(error);
                open.push(format!("partition {partition}: {error:#}"));
            }
        }
    }
    if !open.is_empty() {
        let open = open.join("\n");
        if certain {
            bail!("the limit is not raised in all partitions:\n{open}");
        }
        bail!(
            "the limit may not be raised in all partitions; run the command again, until it is in all:\n{open}"
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cluster::ServiceKind;
    use perdura_cluster::create::{self, Place};
    use perdura_protocol::Faults;
    use perdura_protocol::configuration::Durability;

    #[test]
    fn a_limit_below_the_first_one_is_refused_without_asking() {
        let directory = tempfile::tempdir().unwrap();
        let places = Place::all(3, &[], Some(7000), false).unwrap();
        let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceKind::KeyValue.name());
        let tune =
            |of: &mut perdura_protocol::configuration::Parameters| of.state_limit_bytes = 16 * MIB;
        let dir = directory.path().join("cluster");
        let cluster = create::make(&dir, faults, Durability::Sync, service, tune, &places).unwrap();
        let refused = refuse_lower(4, std::slice::from_ref(&cluster)).unwrap_err();
        assert!(
            refused.is::<Usage>() && refused.to_string().contains("began with 16 MiB"),
            "{refused}"
        );
        assert!(refuse_lower(16, &[cluster]).is_ok());
    }
}
