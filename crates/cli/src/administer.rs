//! What all commands of the administrator share: which cluster, and ordering something there.

use crate::connect::{administrator, connect, parse_duration, runtime};
use anyhow::{Result, bail};
use clap::Args;
use perdura::Cluster;
use perdura::config::KeyFile;
use perdura_client::{CallError, Options, Refusal, Reply};
use perdura_protocol::{AdminCommand, RefusalReason};
use std::path::PathBuf;
use std::time::Duration;

/// Which cluster, and how long to wait for it.
#[derive(Args)]
pub struct How {
    /// The directory of the cluster's files, with admin.toml
    #[arg(long, value_name = "DIR")]
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
    let newer = command.since() > 0;
    let options = Options { timeout: how.timeout, reply_quorum: None };
    let result = runtime()?.block_on(async {
        let client = connect(cluster, key)?;
        let result = client.administer(command, &options).await;
        client.close().await;
        anyhow::Ok(result)
    })?;
    match result {
        Err(CallError::Refused { reason: Refusal::Ordered(RefusalReason::Malformed), .. })
            if newer =>
        {
            bail!(
                "the cluster runs under version 0 of the rules, which does not know this; raise the versions first, with \
                 `perdura upgrade`"
            )
        }
        result => Ok(result?),
    }
}

/// Whether the replicas say that the command contradicts what they hold.
pub fn is_contradiction(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(CallError::Refused { reason: Refusal::Ordered(RefusalReason::Contradiction(_)), .. })
    )
}
