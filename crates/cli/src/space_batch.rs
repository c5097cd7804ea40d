//! `perdura space batch`: operations on the tuple spaces in JSON lines (see [`crate::batch`]).

use crate::batch::{self, Failed};
use crate::connect::connect;
use crate::space_json;
use anyhow::Result;
use clap::Args;
use perdura_client::{Client, Options};
use perdura_cluster::ServiceKind;
use perdura_recipes::{call, wait_of};
use perdura_tuples::TupleCommand;
use serde_json::Value;
use std::process::ExitCode;

const AFTER_HELP: &str = r#"One JSON object a line, with an op and the name of its space, for example:
  {"id":1,"op":"out","space":"s","tuple":["job",7],"lease_ms":60000}
      result {"number":1}
  {"id":2,"op":"rdp","space":"s","template":["job",null]}
      result {"found":{"number":1,"expires_ms":..,"tuple":["job",7]}}
  {"id":3,"op":"in","space":"s","template":["job",null],"wait_ms":5000}
      result {"found":null}: none came
  {"id":4,"op":"rdall","space":"s","template":["job",null],"after":0,"limit":9}
      result {"tuples":[..],"more":false}
  {"id":5,"op":"cas","space":"s","template":["lock"],"tuple":["lock"]}
      result {"number":2}, or {"found":..}
Operations: list, create (index_fields, insert, read, take, manage), delete
(again until remaining is 0), show, out, outall (tuples), rdp, inp, rd and in
(wait_ms), rdall, inall, cas, replace, renew (number, lease_ms), claim (key,
tuple, wait_ms), lease (template, lease_ms, wait_ms), done and return (number,
token), extend (number, token, lease_ms), add (fields, amount), waits (after,
limit), endwait (client, session, number), break (number). out, cas, replace and
claim take lease_ms, read and take. Access lists are lists of public keys; null,
or none, is everybody. For tuples and templates see `perdura space --help`. The
id may be anything, and comes back.

One JSON object a line comes out for each line that went in, as answers arrive,
as from `perdura kv batch`. Lines in flight at once may be carried out in any
order. None waits behind one that waits for a tuple, but for the --in-flight
places.

The exit code is 0 when every line is answered, whatever the answers are."#;

/// Carries out operations from standard input, many at once, in JSON lines.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    how: batch::How,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    batch::run::<TupleCommand>(&arguments.how, |cluster| {
        let group = cluster.load_of(ServiceKind::TupleSpaces)?;
        let key = cluster.key(&group)?;
        Ok(Clients { calls: connect(&group, &key)?, waits: connect(&group, &key)? })
    })
}

/// Clients of one key.
#[derive(Clone)]
pub struct Clients {
    /// For what ends soon.
    calls: Client,
    /// For what waits, so that nothing else waits behind it.
    waits: Client,
}

impl batch::Operation for TupleCommand {
    type Clients = Clients;

    fn all(clients: &Clients) -> Vec<&Client> {
        vec![&clients.calls, &clients.waits]
    }

    fn from_line(line: &[u8]) -> Result<(Value, TupleCommand), (Value, String)> {
        space_json::from_line(line)
    }

    async fn carry_out(self, clients: &Clients, options: &Options) -> Result<Value, Failed> {
        let client = if wait_of(&self).is_some() { &clients.waits } else { &clients.calls };
        let reply = call(client, &self, options).await;
        reply
            .map(|reply| space_json::result(&reply))
            .map_err(|error| Failed { refused: error.is_refusal(), text: error.to_string() })
    }
}
