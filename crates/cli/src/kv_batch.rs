//! `perdura kv batch`: operations on the store in JSON lines (see [`crate::batch`]).

use crate::batch::{self, Failed};
use crate::connect::{connect_store_with, parse_duration};
use crate::kv::call;
use crate::kv_json::Parsed;
use anyhow::Result;
use clap::Args;
use perdura_client::{Client, Options};
use perdura_protocol::PartitionId;
use perdura_transactions::{StoreClient, TransactionError};
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = r#"One JSON object a line, for example:
  {"id":1,"op":"put","key":"a","value":"x"}
  {"id":2,"op":"get","key":"a"}
      result {"value":"x"} (null: absent)
  {"id":3,"op":"del","key":"a"}
      result {"deleted":true}
  {"id":4,"op":"scan","start":"a","end":"b","limit":9}
      result {"entries":[{"key":..,"value":..}],"more":false}
  {"id":5,"op":"cas","key":"a","expect":null,"value":"x"}
      result {"committed":true} (expect null: absent)
  {"id":6,"op":"txn","ops":[{"cmp":{"key":"a","value":"x"}},{"read":"b"}]}
      result {"committed":true,"results":[..]}
For the operations of a txn see `perdura kv txn --help`. Keys and values are
strings, or {"b64":"..."}. The id may be anything, and comes back.

One JSON object a line comes out for each line that went in, as answers arrive:
  {"id":1,"outcome":"ok","result":{}}
outcome is ok (it happened), refused (it never did, and never will), or
indeterminate (it may have happened, or may yet happen); for the last two, error
says why. A failed comparison is ok, with "committed":false. Lines in flight at
once may be carried out in any order.

The exit code is 0 when every line is answered, whatever the answers are."#;

/// Carry out operations from standard input, many at once, in JSON lines
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    how: batch::How,
    /// With several partitions: what needs one of which too few replicas are there is refused after this time
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    unreachable_after: Duration,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    batch::run::<Parsed>(&arguments.how, |cluster| {
        let groups = cluster.load_store()?;
        let key = cluster.key_of(&groups)?;
        Ok(connect_store_with(&groups, &key, Some(arguments.unreachable_after))?)
    })
}

impl batch::Operation for Parsed {
    type Clients = StoreClient;

    fn takes_calls_to_end(client: &StoreClient) -> bool {
        matches!(client, StoreClient::Partitioned(_))
    }

    fn all(client: &StoreClient) -> Vec<&Client> {
        client.clients()
    }

    fn needs(&self, client: &StoreClient) -> Vec<usize> {
        client.partitions_of_command(&self.command).into_iter().map(PartitionId::index).collect()
    }

    fn from_line(line: &[u8]) -> Result<(Value, Parsed), (Value, String)> {
        Parsed::from_line(line)
    }

    async fn carry_out(self, client: &StoreClient, options: &Options) -> Result<Value, Failed> {
        // Reads need no order, and their replies no place among those that replicas keep.
        let outcome = call(client, &self.command, true, options).await;
        let result = outcome
            .and_then(|outcome| self.result(&outcome).ok_or(TransactionError::UnexpectedReply));
        result.map_err(|error| Failed { refused: error.is_refusal(), text: error.to_string() })
    }

    async fn end(client: &StoreClient) {
        client.close().await;
    }
}
