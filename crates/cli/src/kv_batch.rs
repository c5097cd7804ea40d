//! `perdura kv batch`: operations on the store in JSON lines (see [`crate::batch`]).

use crate::batch::{self, Clients, Failed};
use crate::kv::{StoreError, call};
use crate::kv_json::Parsed;
use anyhow::Result;
use clap::Args;
use perdura::ServiceKind;
use perdura_client::Options;
use serde_json::Value;
use std::process::ExitCode;

const AFTER_HELP: &str = r#"One JSON object a line, for example:
  {"id":1,"op":"put","key":"a","value":"x"}
  {"id":2,"op":"get","key":"a"}                        result {"value":"x"} (null: absent)
  {"id":3,"op":"del","key":"a"}                        result {"deleted":true}
  {"id":4,"op":"scan","start":"a","end":"b","limit":9} result {"entries":[{"key":..,"value":..}],"more":false}
  {"id":5,"op":"cas","key":"a","expect":null,"value":"x"}   result {"committed":true}; null: absent
  {"id":6,"op":"txn","ops":[{"cmp":{"key":"a","value":"x"}},{"read":"b"}]}
                                                       result {"committed":true,"results":[..]}
For the operations of a txn see `perdura kv txn --help`. Keys and values are strings, or
{"b64":"..."}. The id may be anything, and comes back.

One JSON object a line comes out for each line that went in, as answers arrive:
  {"id":1,"outcome":"ok","result":{}}
outcome is ok (it happened), refused (it never did, and never will), or indeterminate (it may have
happened, or may yet happen); for the last two, error says why. A failed comparison is ok, with
"committed":false. Lines in flight at once may be carried out in any order.

The exit code is 0 when every line is answered, whatever the answers are."#;

/// Carry out operations from standard input, many at once, in JSON lines
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    how: batch::How,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    batch::run::<Parsed>(&arguments.how)
}

impl batch::Operation for Parsed {
    const SERVICE: ServiceKind = ServiceKind::KeyValue;

    fn from_line(line: &[u8]) -> Result<(Value, Parsed), (Value, String)> {
        Parsed::from_line(line)
    }

    async fn carry_out(self, clients: &Clients, options: &Options) -> Result<Value, Failed> {
        // Reads need no order, and their replies no place among those that replicas keep.
        let reply = call(&clients.calls, &self.command, true, options).await;
        let result = reply.and_then(|reply| self.result(reply).ok_or(StoreError::Nonsense));
        result.map_err(|error| match &error {
            StoreError::Call(call) => Failed::of(&error, Some(call)),
            StoreError::Nonsense => Failed::of(&error, None),
        })
    }
}
