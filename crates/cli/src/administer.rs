//! What all commands of the administrator share: which cluster, and ordering something there.

use crate::command::CLUSTER_VARIABLE;
use crate::connect::{administrator, connect, parse_duration, runtime};
use anyhow::{Context, Result, bail};
use clap::Args;
use perdura_client::{CallError, Options, Refusal, Reply};
use perdura_cluster::Cluster;
use perdura_cluster::config::KeyFile;
use perdura_protocol::{AdminCommand, RefusalReason};
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

/// Which cluster, and how long to wait for it.
#[derive(Args)]
pub struct How {
    /// The directory of the cluster's files, with admin.toml
    #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
    pub cluster: PathBuf,
    /// How long to wait for the cluster
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
}

/// Orders a command with the key in admin.toml.
pub fn administer(cluster: &Cluster, how: &How, command: AdminCommand) -> Result<Reply> {
    let key = administrator(&how.cluster, cluster)?;
    administer_as(&key, cluster, how, command)
}

/// The same with this key.
pub fn administer_as(
    key: &KeyFile,
    cluster: &Cluster,
    how: &How,
    command: AdminCommand,
) -> Result<Reply> {
    let results = administer_each(key, std::slice::from_ref(cluster), how, &command)?;
    results.into_iter().next().context("it was not ordered")?
}

/// Orders a command with this key in each group, all at once; gives what became of it in each.
pub fn administer_each(
    key: &KeyFile,
    groups: &[Cluster],
    how: &How,
    command: &AdminCommand,
) -> Result<Vec<Result<Reply>>> {
    let newer = command.since() > 0;
    let options = Options { timeout: how.timeout, reply_quorum: None };
    let results = runtime()?.block_on(async {
        let mut ordered = Vec::new();
        for group in groups {
            let (client, command) = (connect(group, key)?, command.clone());
            ordered.push(tokio::spawn(async move {
                let result = client.administer(command, &options).await;
                client.close().await;
                result
            }));
        }
        let mut results = Vec::new();
        for ordered in ordered {
            results.push(ordered.await.context("ordering it failed")?);
        }
        anyhow::Ok(results)
    })?;
    Ok(results.into_iter().map(|result| known(result, newer)).collect())
}

/// What became of a command that older rules may not know.
fn known(result: Result<Reply, CallError>, newer: bool) -> Result<Reply> {
    match result {
        Err(CallError::Refused { reason: Refusal::Ordered(RefusalReason::Malformed), .. })
            if newer =>
        {
            bail!(OlderRules)
        }
        result => Ok(result?),
    }
}

/// The command is not known under the rules that are in force.
#[derive(Debug, thiserror::Error)]
#[error(
    "the cluster runs under version 0 of the rules, which does not know this; raise the versions first, with `perdura upgrade`"
)]
struct OlderRules;

/// Whether the replicas say that the command contradicts what they hold, or that they do not know it: it is not carried out, for certain,
/// and would not be if it were sent again.
pub fn is_refused(error: &anyhow::Error) -> bool {
    let contradiction = matches!(
        error.downcast_ref(),
        Some(CallError::Refused { reason: Refusal::Ordered(RefusalReason::Contradiction(_)), .. })
    );
    contradiction || error.is::<OlderRules>()
}

/// Says what may have become of an order, named by `what` it does, that failed.
pub fn uncertain(error: anyhow::Error, what: &str) -> anyhow::Error {
    if is_refused(&error) {
        error.context(format!("{what} is refused; nothing was changed"))
    } else {
        error.context(format!("{what} may have been ordered or not; run the command again"))
    }
}

/// Whether whoever sits there means what cannot be undone, and gives this answer; who does not sit at a terminal gives none.
pub fn confirmed(question: &str, answer: &str) -> Result<bool> {
    let mut input = std::io::stdin().lock();
    if !input.is_terminal() {
        return Ok(false);
    }
    say!("{question}");
    let mut line = String::new();
    input.read_line(&mut line).context("cannot read the answer")?;
    Ok(line.trim() == answer)
}
