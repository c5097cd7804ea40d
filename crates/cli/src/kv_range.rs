//! `perdura kv count` and `perdura kv delete-range`: what lies in a range, page by page.

use crate::Usage;
use crate::administer::confirmed;
use crate::connect::{ClusterArguments, connect_store, parse_duration, runtime};
use crate::ending::unanswered;
use crate::kv::call;
use crate::kv_json::{Parsed, from_base64};
use crate::process::{Stop, code_of};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_store::{
    Operation, OperationResult, StoreCommand, StoreReply, Transaction, behind, beyond_prefix,
    limits,
};
use perdura_transactions::{StoreClient, TransactionError};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Entries of one read; it ends after 1 MiB, too.
pub const PAGE: u32 = 10_000;

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
/// Page by page, so that it is not one moment of the store: what is written meanwhile may be counted or not. Exit codes: 0 done, 4 refused (also where no replica can be reached), 1 otherwise failed.
#[derive(Args)]
pub struct Count {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    range: Range,
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

/// From a key up to another one; `None`: up to the last.
type Bounds = (Bytes, Option<Bytes>);

impl Range {
    fn bounds(&self) -> Result<Bounds> {
        let key = |text: &str| match self.base64 {
            true => from_base64(text).map_err(Usage),
            false => Ok(Bytes::copy_from_slice(text.as_bytes())),
        };
        if let Some(prefix) = &self.prefix {
            let prefix = key(prefix)?;
            let end = beyond_prefix(&prefix);
            return Ok((prefix, end));
        }
        let start = self.start.as_deref().map_or(Ok(Bytes::new()), key)?;
        Ok((start, self.end.as_deref().map(key).transpose()?))
    }

    fn is_all(&self) -> bool {
        self.prefix.as_deref().is_none_or(str::is_empty)
            && self.start.is_none()
            && self.end.is_none()
    }
}

/// One page from `start` on, and where the next one begins, if there is more.
pub async fn page(
    client: &StoreClient,
    options: &Options,
    start: Bytes,
    end: Option<Bytes>,
) -> Result<(Vec<(Bytes, Bytes)>, Option<Bytes>)> {
    let page = Parsed::scan(start, end, PAGE, false);
    let reply = call(client, &page.command, true, options).await?;
    let (entries, more) = entries(reply).context("the cluster gave an answer that fits no scan")?;
    let last = entries.last().filter(|_| more).map(|(key, _)| key.clone());
    Ok((entries, last.as_ref().and_then(|last| behind(last))))
}

fn entries(reply: StoreReply) -> Option<(Vec<(Bytes, Bytes)>, bool)> {
    let StoreReply::Transaction(mut result) = reply else { return None };
    match result.results.pop()? {
        OperationResult::Entries { entries, more } => Some((entries.iter().collect(), more)),
        _ => None,
    }
}

/// Runs `perdura kv count`.
pub fn count(arguments: &Count) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let bounds = arguments.range.bounds()?;
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    let counted = runtime()?.block_on(async {
        let client = connect_store(&groups, &key)?;
        let counted = count_all(&client, &options, bounds).await;
        client.close().await;
        anyhow::Ok(counted)
    })?;
    match counted {
        Ok(counted) => {
            say!("{counted}");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => match error.downcast_ref::<TransactionError>() {
            // Whatever became of it, it only reads.
            Some(error) => Ok(unanswered(error, true, false)),
            None => Err(error),
        },
    }
}

async fn count_all(client: &StoreClient, options: &Options, (start, end): Bounds) -> Result<u64> {
    let (mut start, mut count) = (Some(start), 0);
    while let Some(from) = start {
        let (entries, next) = page(client, options, from, end.clone()).await?;
        count += entries.len() as u64;
        start = next;
    }
    Ok(count)
}

/// Runs `perdura kv delete-range`.
pub fn delete_range(arguments: &DeleteRange) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let bounds = arguments.range.bounds()?;
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    runtime()?.block_on(async {
        let client = connect_store(&groups, &key)?;
        let done = delete(&client, &options, bounds, arguments).await;
        client.close().await;
        done
    })
}

async fn delete(
    client: &StoreClient,
    options: &Options,
    bounds: Bounds,
    arguments: &DeleteRange,
) -> Result<ExitCode> {
    let there = count_all(client, options, bounds.clone()).await?;
    let what = if arguments.range.is_all() { "entries, all of the store," } else { "entries" };
    if arguments.dry_run || there == 0 {
        say!("{there} {what} would be removed; nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.yes && !confirmed(&format!("Remove {there} {what}? Type yes to do so:"), "yes")? {
        bail!("nothing was changed: {there} {what} are meant. If that is right, give --yes");
    }
    let ((start, end), mut removed) = (bounds, 0);
    let (mut start, stop) = (Some(start), Stop::by_signals()?);
    while let Some(from) = start {
        let (entries, next) = page(client, options, from, end.clone()).await?;
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
            let operation = |key: &Bytes| Operation::Delete { key: key.clone() };
            let operations = some.iter().map(operation).collect();
            let command = StoreCommand::Transaction(Transaction { operations });
            call(client, &command, false, options).await.with_context(|| {
                format!(
                    "{removed} of {there} entries are removed, and perhaps some more; run it again"
                )
            })?;
            removed += some.len();
        }
        start = next;
    }
    say!("{removed} entries are removed");
    Ok(ExitCode::SUCCESS)
}
