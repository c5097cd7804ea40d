//! `perdura kv count` and `perdura kv delete-range`: what lies in a range, page by page, of each partition by itself.

use crate::Usage;
use crate::administer::confirmed;
use crate::connect::{ClusterArguments, parse_duration, runtime};
use crate::ending::unanswered;
use crate::kv::call;
use crate::kv_json::from_base64;
use crate::kv_walk::{Of, Walking};
use crate::process::{Stop, code_of};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_store::{Operation, OperationResult, StoreCommand, Transaction, limits};
use perdura_transactions::{self as library, Outcome, StoreClient, TransactionError};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Which keys are meant: all, if nothing is given.
#[derive(Args)]
pub struct Range {
    /// Keys that begin so
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    prefix: Option<String>,
    /// First key
    #[arg(long, value_name = "KEY")]
    start: Option<String>,
    /// The key after the last
    #[arg(long, value_name = "KEY")]
    end: Option<String>,
    /// Keys are in Base64
    #[arg(long)]
    base64: bool,
}

/// Count the entries of a range
///
/// Page by page, so that it is not one moment of the store: what is written meanwhile may be counted or not. Exit codes: 0 done, 4 refused (also where no replica can be reached), 1 otherwise failed, or with --skip-unreachable not of all partitions.
#[derive(Args)]
pub struct Count {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    range: Range,
    #[command(flatten)]
    of: Of,
    /// How long to wait for each page
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Remove the entries of a range
///
/// Up to 1024 in a transaction, and not in one moment: what is written meanwhile may stay. Interrupted, it says how many are removed, and it may be run again. Exit codes: 0 done, 1 failed, 130 interrupted (by SIGTERM 143).
#[derive(Args)]
pub struct DeleteRange {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    range: Range,
    #[command(flatten)]
    of: Of,
    /// Say how many entries there are, and remove none
    #[arg(long)]
    dry_run: bool,
    /// Remove them without being asked again
    #[arg(long)]
    yes: bool,
    /// How long to wait for each page
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

impl Range {
    fn keys(&self) -> Result<library::Range> {
        let key = |text: &str| match self.base64 {
            true => from_base64(text).map_err(Usage),
            false => Ok(Bytes::copy_from_slice(text.as_bytes())),
        };
        if let Some(prefix) = &self.prefix {
            return Ok(library::Range::prefix(key(prefix)?));
        }
        let start = self.start.as_deref().map_or(Ok(Bytes::new()), key)?;
        let from = library::Range::all().from(start);
        Ok(match self.end.as_deref().map(key).transpose()? {
            None => from,
            Some(end) => from.to(end),
        })
    }

    fn is_all(&self) -> bool {
        self.prefix.as_deref().is_none_or(str::is_empty)
            && self.start.is_none()
            && self.end.is_none()
    }
}

/// Runs `perdura kv count`.
pub fn count(arguments: &Count) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let keys = arguments.range.keys()?;
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    let counted = runtime()?.block_on(async {
        let client = arguments.of.connect(&groups, &key)?;
        let counted = count_all(&client, &options, keys, &arguments.of).await;
        client.close().await;
        anyhow::Ok(counted)
    })?;
    match counted {
        Ok((counted, walking)) => {
            say!("{counted}");
            Ok(walking.left_out().map_or(ExitCode::SUCCESS, |options| {
                tell!("perdura: that is not all: `{options}` counts the rest, once it answers");
                ExitCode::FAILURE
            }))
        }
        Err(error) => match error.downcast_ref::<TransactionError>() {
            // Whatever became of it, it only reads.
            Some(_) => Ok(unanswered(&error, true, false)),
            None => Err(error),
        },
    }
}

/// How many there are, and what was left out.
async fn count_all(
    client: &StoreClient,
    options: &Options,
    keys: library::Range,
    of: &Of,
) -> Result<(u64, Walking)> {
    let (mut walking, mut count) = (of.walk(client, keys), 0);
    while let Some(entries) = walking.next(options).await? {
        count += entries.len() as u64;
    }
    Ok((count, walking))
}

/// Runs `perdura kv delete-range`.
pub fn delete_range(arguments: &DeleteRange) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let keys = arguments.range.keys()?;
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    runtime()?.block_on(async {
        let client = arguments.of.connect(&groups, &key)?;
        let done = delete(&client, &options, keys, arguments).await;
        client.close().await;
        done
    })
}

async fn delete(
    client: &StoreClient,
    options: &Options,
    keys: library::Range,
    arguments: &DeleteRange,
) -> Result<ExitCode> {
    let (there, counted) = count_all(client, options, keys.clone(), &arguments.of).await?;
    let is_all = arguments.range.is_all() && arguments.of.is_all() && counted.left_out().is_none();
    let not_all = |options: String| {
        tell!("perdura: that is not all: `{options}` removes the rest, once it answers");
        ExitCode::FAILURE
    };
    let what = if is_all { "entries, all of the store," } else { "entries" };
    if arguments.dry_run || there == 0 {
        say!("{there} {what} would be removed; nothing was changed");
        return Ok(counted.left_out().map_or(ExitCode::SUCCESS, not_all));
    }
    if !arguments.yes && !confirmed(&format!("Remove {there} {what}? Type yes to do so:"), "yes")? {
        bail!("nothing was changed: {there} {what} are meant. If that is right, give --yes");
    }
    let (mut walking, mut removed) = (arguments.of.walk(client, keys), 0);
    counted.all_left_out().iter().for_each(|partition| walking.leave_out(*partition));
    let stop = Stop::by_signals()?;
    loop {
        let next = tokio::select! {
            next = walking.next(options) => next?,
            () = stop.asked() => {
                let signal = stop.by().unwrap_or_default();
                tell!("perdura: {signal}: {removed} of {there} entries are removed; run it again");
                return Ok(ExitCode::from(code_of(signal)));
            }
        };
        let Some(entries) = next else { break };
        // In one partition at a time: one round, and as many at once in any store.
        let mut keys: BTreeMap<PartitionId, Vec<Bytes>> = BTreeMap::new();
        for (key, _) in entries {
            keys.entry(client.partition_of(&key)).or_default().push(key);
        }
        for some in keys.values().flat_map(|keys| keys.chunks(limits::OPERATIONS)) {
            if let Some(signal) = stop.by() {
                tell!("perdura: {signal}: {removed} of {there} entries are removed; run it again");
                return Ok(ExitCode::from(code_of(signal)));
            }
            let so_far = || {
                format!(
                    "{removed} of {there} entries are removed, and perhaps some more; run it again"
                )
            };
            let Some(done) = stop.bounded(remove(client, some, options)).await else {
                let signal = stop.by().unwrap_or_default();
                tell!("perdura: {signal}: {}", so_far());
                return Ok(ExitCode::from(code_of(signal)));
            };
            removed += done.with_context(so_far)?;
        }
    }
    say!("{removed} entries are removed");
    Ok(walking.left_out().map_or(ExitCode::SUCCESS, not_all))
}

/// Removes keys of one partition; says how many were there.
async fn remove(client: &StoreClient, keys: &[Bytes], options: &Options) -> Result<usize> {
    let operations = keys.iter().map(|key| Operation::Delete { key: key.clone() }).collect();
    let command = StoreCommand::Transaction(Transaction { operations });
    let existed =
        |result: &&OperationResult| matches!(result, OperationResult::Deleted { existed: true });
    match call(client, &command, false, options).await {
        Ok(Outcome::Committed(results)) => Ok(results.all().iter().filter(existed).count()),
        // They were there a moment ago.
        Ok(Outcome::ResultsGone) => Ok(keys.len()),
        Ok(Outcome::Failed { .. }) => bail!(TransactionError::UnexpectedReply),
        Err(error) => bail!(error),
    }
}
