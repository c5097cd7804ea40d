//! `perdura kv`: one operation on the store, or a stream of them (see [`crate::kv_batch`]).

use crate::Usage;
use crate::connect::{ClusterArguments, connect_store, parse_duration, runtime};
use crate::ending::{OF_ONE, carried_out, unanswered};
use crate::kv_json::{Parsed, SCAN_LIMIT, from_base64, to_base64};
use crate::kv_walk::check;
use crate::process::withdrawn_by_signals;
use crate::{kv_batch, kv_export, kv_range, shell};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_protocol::text::Printable;
use perdura_store::{OperationResult, StoreCommand, behind, beyond_prefix};
use perdura_transactions::{Outcome, Page, Range, StoreClient, TransactionError};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Read and write the store
#[derive(Args)]
#[command(after_help = OF_ONE)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a key
    #[command(after_help = OF_ONE)]
    Put {
        /// The key, 1 to 4096 bytes
        key: String,
        /// Its value, up to 1 MiB; `-` reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: String,
        #[command(flatten)]
        how: How,
    },
    /// Read a key; exit code 3 if it is absent
    #[command(after_help = OF_ONE)]
    Get {
        /// The key
        key: String,
        /// Read without ordering, where enough replicas answer alike; as consistent, and faster
        #[arg(long)]
        fast: bool,
        /// Print the value as it is, without the end of a line, to a terminal too
        #[arg(long, conflicts_with = "json")]
        raw: bool,
        #[command(flatten)]
        how: How,
    },
    /// Remove a key, present or not
    #[command(after_help = OF_ONE)]
    Del {
        /// The key
        key: String,
        #[command(flatten)]
        how: How,
    },
    /// List keys and values of a range, in order, separated by a tab
    #[command(after_help = OF_ONE)]
    Scan {
        /// First key
        #[arg(long, value_name = "KEY", default_value = "")]
        start: String,
        /// The key after the last
        #[arg(long, value_name = "KEY")]
        end: Option<String>,
        /// Go on behind this key, the last one of the page before
        #[arg(long, value_name = "KEY", conflicts_with = "start")]
        after: Option<String>,
        /// Entries at most, 1 to 10000
        #[arg(long, value_name = "N", default_value_t = SCAN_LIMIT)]
        limit: u32,
        /// Keys that begin so, in place of --start and --end
        #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
        prefix: Option<String>,
        /// Print no values
        #[arg(long, conflicts_with = "json")]
        keys_only: bool,
        /// From the last to the first
        #[arg(long)]
        reverse: bool,
        /// Read without ordering, where enough replicas answer alike; as consistent, and faster
        #[arg(long)]
        fast: bool,
        /// Only what this partition has, without ordering; whatever the others do
        #[arg(long, value_name = "P")]
        partition: Option<u16>,
        #[command(flatten)]
        how: How,
    },
    /// Write a key if it has an expected value; exit code 3 if it has not
    #[command(after_help = OF_ONE)]
    Cas(Cas),
    /// Carry out a transaction; exit code 3 if it does not commit
    #[command(after_help = format!("{TXN_HELP}\n\n{OF_ONE}"))]
    Txn {
        /// A list of operations in JSON; `-` reads it from standard input
        ops: String,
        #[command(flatten)]
        how: How,
    },
    Batch(kv_batch::Arguments),
    Count(kv_range::Count),
    DeleteRange(kv_range::DeleteRange),
    Export(kv_export::Export),
    Import(kv_export::Import),
}

const TXN_HELP: &str = r#"Operations, of which all comparisons come first, on the state before:
  {"cmp":{"key":"a","value":"x"}}      fails the transaction unless a is x (null: absent)
  {"read":"a"}
  {"range":{"start":"a","end":"b","limit":10,"reverse":false}}
  {"insert":{"key":"a","value":"x"}}   fails the transaction if a is present
  {"write":{"key":"a","value":"x","only_if_present":false}}
  {"delete":"a"}
Keys and values are strings, or {"b64":"..."}. Example:
  perdura kv txn --cluster DIR '[{"cmp":{"key":"a","value":"1"}},{"write":{"key":"a","value":"2"}}]'"#;

#[derive(Args)]
struct Cas {
    /// The key
    key: String,
    /// Its new value; `-` reads it from standard input
    #[arg(allow_hyphen_values = true, required_unless_present = "delete")]
    value: Option<String>,
    /// The value it must have
    #[arg(
        long,
        value_name = "VALUE",
        conflicts_with = "absent",
        required_unless_present = "absent"
    )]
    expect: Option<String>,
    /// It must be absent
    #[arg(long)]
    absent: bool,
    /// Remove it instead of writing it
    #[arg(long, conflicts_with = "value")]
    delete: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
struct How {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Keys and values are in Base64, on the command line and in the output
    #[arg(long)]
    base64: bool,
    /// Print the result in JSON, as `perdura kv batch` does
    #[arg(long)]
    json: bool,
    /// Print keys alone
    #[arg(skip)]
    keys_only: bool,
    /// Print the value alone, without the end of a line
    #[arg(skip)]
    raw: bool,
    /// Of this partition alone
    #[arg(skip)]
    partition: Option<u16>,
}

impl How {
    fn bytes(&self, text: &str) -> Result<Bytes> {
        if self.base64 {
            return from_base64(text).map_err(|error| Usage(error).into());
        }
        Ok(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// A value, or what stands on standard input for `-`.
    fn value(&self, text: &str) -> Result<Bytes> {
        if text != "-" {
            return self.bytes(text);
        }
        let mut read = Vec::new();
        // One byte more than a value may have is enough to refuse it.
        let most = perdura_store::limits::TRANSACTION_BYTES as u64 * 2;
        let taken = std::io::stdin().lock().take(most).read_to_end(&mut read);
        taken.context("cannot read the value from standard input")?;
        match std::str::from_utf8(&read) {
            Ok(text) if self.base64 => self.bytes(text.trim()),
            Err(_) if self.base64 => bail!("standard input is not Base64"),
            _ => Ok(read.into()),
        }
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let plain = |command| Parsed { command, kind: crate::kv_json::OperationKind::Plain };
    let (parsed, fast, how) = match arguments.command {
        Command::Batch(arguments) => return kv_batch::run(&arguments),
        Command::Count(arguments) => return kv_range::count(&arguments),
        Command::DeleteRange(arguments) => return kv_range::delete_range(&arguments),
        Command::Export(arguments) => return kv_export::export(&arguments),
        Command::Import(arguments) => return kv_export::import(&arguments),
        Command::Put { key, value, how } => {
            let (key, value) = (how.bytes(&key)?, how.value(&value)?);
            (plain(StoreCommand::Put { key, value }), false, how)
        }
        Command::Get { key, fast, raw, how } => {
            let how = How { raw, ..how };
            (plain(StoreCommand::Get { key: how.bytes(&key)? }), fast, how)
        }
        Command::Del { key, how } => {
            (plain(StoreCommand::Delete { key: how.bytes(&key)? }), false, how)
        }
        Command::Scan {
            start,
            end,
            after,
            limit,
            prefix,
            keys_only,
            reverse,
            fast,
            partition,
            how,
        } => {
            let (mut start, mut end) =
                (how.bytes(&start)?, end.map(|end| how.bytes(&end)).transpose()?);
            if let Some(prefix) = prefix {
                start = how.bytes(&prefix)?;
                end = beyond_prefix(&start);
            }
            let how = How { keys_only, partition, ..how };
            match after.map(|after| how.bytes(&after)).transpose()? {
                // In the order of the page: the end stays what it is at the other side.
                Some(after) if reverse => {
                    end = Some(end.map_or(after.clone(), |end| end.min(after)));
                }
                Some(after) => match behind(&after) {
                    Some(next) => start = start.max(next),
                    None => bail!(Usage("there is no key behind the one after --after".into())),
                },
                None => {}
            }
            (Parsed::scan(start, end, limit, reverse), fast, how)
        }
        Command::Cas(Cas { key, value, expect, how, .. }) => {
            let expect = expect.map(|expect| how.bytes(&expect)).transpose()?;
            let value = value.map(|value| how.value(&value)).transpose()?;
            (Parsed::cas(how.bytes(&key)?, expect, value), false, how)
        }
        Command::Txn { ops, how } => {
            // What they would spell would else be written as it stands there.
            if how.base64 {
                let text = "--base64 is not for operations: write {\"b64\": \"...\"} for a key or value there, and results have the same";
                return Err(Usage(text.to_owned()).into());
            }
            let text = if ops == "-" { how_text()? } else { ops };
            let ops = crate::json::read(text.as_bytes())
                .map_err(|error| Usage(format!("the operations are no JSON to go by: {error}")))?;
            let parsed = Parsed::from_json(json!({"op": "txn", "ops": ops})).map_err(Usage)?;
            (parsed, false, how)
        }
    };
    parsed.command.validate().map_err(|error| Usage(error.to_string()))?;
    one(&parsed, fast, &how)
}

fn how_text() -> Result<String> {
    std::io::read_to_string(std::io::stdin()).context("cannot read standard input as text")
}

fn one(parsed: &Parsed, fast: bool, how: &How) -> Result<ExitCode> {
    let groups = how.cluster.load_store()?;
    let key = how.cluster.key_of(&groups)?;
    how.partition.map_or(Ok(()), |partition| check(partition, &groups))?;
    let options = Options { timeout: how.timeout, reply_quorum: None };
    let outcome = runtime()?.block_on(async {
        let client = connect_store(&groups, &key)?;
        let outcome = async {
            match how.partition.map(PartitionId) {
                Some(partition) => scan_in(&client, partition, &parsed.command, &options).await,
                None => call(&client, &parsed.command, fast, &options).await,
            }
        };
        let outcome = withdrawn_by_signals(&client.clients(), outcome).await?;
        client.close().await;
        anyhow::Ok(outcome)
    })?;
    match outcome {
        Ok(outcome) => print(parsed, &outcome, how).context(UNTOLD),
        Err(error) => Ok(unanswered(&error, error.is_refusal(), how.json)),
    }
}

/// What a partition has of a scan.
async fn scan_in(
    client: &StoreClient,
    partition: PartitionId,
    scan: &StoreCommand,
    options: &Options,
) -> Result<Outcome, TransactionError> {
    let StoreCommand::Transaction(transaction) = scan else {
        return Err(TransactionError::UnexpectedReply);
    };
    let range = transaction.operations.first().and_then(Range::of);
    let range = range.ok_or(TransactionError::UnexpectedReply)?;
    let Page { entries, more } = client.read_range_in(partition, range, options).await?;
    Ok(Outcome::Committed(vec![OperationResult::Entries { entries, more }].into()))
}

/// The outcome of a command whose result nobody gets to see.
pub const UNTOLD: &str = "it was carried out, and its result cannot be written to standard output";

/// One command of the store.
pub async fn call(
    client: &StoreClient,
    command: &StoreCommand,
    fast: bool,
    options: &Options,
) -> Result<Outcome, TransactionError> {
    client.call(command, fast, options).await
}

/// What a get found.
fn value_of<'a>(parsed: &Parsed, outcome: &'a Outcome) -> Option<&'a Option<Bytes>> {
    let (StoreCommand::Get { .. }, Outcome::Committed(results)) = (&parsed.command, outcome) else {
        return None;
    };
    match results.all() {
        [OperationResult::Value(value)] => Some(value),
        _ => None,
    }
}

fn print(parsed: &Parsed, outcome: &Outcome, how: &How) -> Result<ExitCode> {
    let value = value_of(parsed, outcome);
    let code = carried_out(value.map_or(outcome.failed().is_none(), Option::is_some));
    let mut out = std::io::stdout().lock();
    if let Some(value) = value.filter(|_| !how.json) {
        match value {
            Some(value) if how.base64 => writeln!(out, "{}", to_base64(value))?,
            Some(value) if how.raw => {
                out.write_all(value)?;
                out.flush()?;
            }
            // Whoever wrote it may have meant the terminal.
            Some(value) if out.is_terminal() => {
                writeln!(out, "{}", Printable(&String::from_utf8_lossy(value)))?;
            }
            Some(value) => {
                out.write_all(value)?;
                out.write_all(b"\n")?;
            }
            None => tell!("perdura: there is no such key"),
        }
        return Ok(code);
    }
    let result = parsed.result(outcome).ok_or(TransactionError::UnexpectedReply)?;
    let is_gone = *outcome == Outcome::ResultsGone;
    match (&result["entries"], &result["deleted"], &result["committed"]) {
        _ if how.json || is_gone => writeln!(out, "{result}")?,
        (Value::Array(entries), _, _) => {
            for entry in entries {
                let (key, value) = (shown(&entry["key"], how), shown(&entry["value"], how));
                let quoted = out.is_terminal() && !how.base64;
                match (how.keys_only, quoted) {
                    (true, false) => writeln!(out, "{key}")?,
                    (true, true) => writeln!(out, "{}", Printable(&key))?,
                    (false, false) => writeln!(out, "{key}\t{value}")?,
                    (false, true) => writeln!(out, "{}\t{}", Printable(&key), Printable(&value))?,
                }
            }
            if result["more"] == Value::Bool(true) {
                let last = entries.last().map(|entry| after(&entry["key"], how.base64));
                tell!("perdura: there is more; go on with {}", last.unwrap_or_default());
            }
        }
        (_, Value::Bool(deleted), _) => {
            writeln!(out, "{}", if *deleted { "deleted" } else { "was absent" })?;
        }
        (_, _, Value::Bool(_)) if result["results"].is_array() => writeln!(out, "{result}")?,
        (_, _, Value::Bool(true)) => writeln!(out, "ok")?,
        (_, _, Value::Bool(false)) => {
            let failed = &result["failed"];
            match failed.is_null() {
                true => tell!("perdura: not committed: it does not have the expected value"),
                false => tell!("perdura: not committed: operation {failed} (from 0) failed"),
            }
        }
        _ => writeln!(out, "ok")?,
    }
    if is_gone {
        tell!("perdura: it happened; what it found can no longer be had");
    }
    Ok(code)
}

/// Before a key or value in Base64, on lines that are not all in it.
const BASE64: &str = "base64:";

/// A key or value on a line of its own kind: what is not UTF-8 is in Base64, and what could be taken for that.
fn shown(value: &Value, how: &How) -> String {
    match value {
        Value::String(text) if how.base64 => to_base64(text.as_bytes()),
        Value::String(text) if text.starts_with(BASE64) => {
            format!("{BASE64}{}", to_base64(text.as_bytes()))
        }
        Value::String(text) => text.clone(),
        other => {
            let text = other["b64"].as_str().unwrap_or_default();
            if how.base64 { text.to_owned() } else { format!("{BASE64}{text}") }
        }
    }
}

/// The options, for a shell, with which a scan goes on behind a key.
fn after(key: &Value, base64: bool) -> String {
    let plain = |text: &&str| !text.chars().any(char::is_control);
    match (key, key.as_str().filter(plain)) {
        (_, Some(text)) if !base64 => format!("--after={}", shell::word(text)),
        (Value::String(text), _) => format!("--base64 --after={}", to_base64(text.as_bytes())),
        (other, _) => {
            format!("--base64 --after={}", other["b64"].as_str().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are for a shell, and mean that key and no other.
    #[test]
    fn a_scan_says_how_to_go_on() {
        let text = |key: &[u8]| crate::kv_json::text(&Bytes::copy_from_slice(key));
        let after = |key: &[u8]| after(&text(key), false);
        assert_eq!(after(b"a/b-1"), "--after=a/b-1");
        assert_eq!(after(b"-k"), "--after=-k");
        assert_eq!(after(b"sp a'ce"), r"--after='sp a'\''ce'");
        assert_eq!(after(b"a\tb"), "--base64 --after=YQli");
        assert_eq!(after(&[0xff]), "--base64 --after=/w==");
        assert_eq!(after(b"base64:/w=="), "--after=base64:/w==");
        assert_eq!(super::after(&text(b"a"), true), "--base64 --after=YQ==");
    }
}
