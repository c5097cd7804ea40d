//! `perdura space`: one operation on the tuple spaces.

use crate::Usage;
use crate::connect::{ClusterArguments, connect, parse_any_duration, parse_duration, runtime};
use crate::ending::{OF_ONE, carried_out, unanswered};
use crate::process::withdrawn_by_signals;
use crate::space_json::{self, LIMIT};
use crate::{space_batch, space_held};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use perdura_client::Options;
use perdura_cluster::ServiceKind;
use perdura_recipes::{call, delete};
use perdura_tuples::{
    Access, Entry, Found, Operation, SpaceOptions, Template, Tuple, TupleCommand, TupleReply,
};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = r#"A tuple is a list of fields in JSON: strings, integers, floats (numbers with a
fraction or an exponent), true, false, and {"b64":"..."} for bytes. In a
template, null matches any field, and {"type":"string"} (bytes, integer, float,
bool) any of a type. Of several matches the oldest is meant.
  perdura space create --cluster DIR jobs
  perdura space out --cluster DIR jobs '["job", 7, true]'
  perdura space in --cluster DIR jobs '["job", null, {"type":"bool"}]' --wait 1m
"#;

/// Read, write, and wait for tuples
#[derive(Args)]
#[command(after_help = format!("{AFTER_HELP}{}\n\n{OF_ONE}", space_held::EXAMPLES))]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a space
    Create(Create),
    /// Delete a space with its tuples; after exit code 5 it may be there, and take nothing but this: delete it again
    Delete(Named),
    /// How a space is: its options, and how many tuples are in it and wait for
    Show(Named),
    /// Names of all spaces, a line each
    List {
        /// Names after this one
        #[arg(long, value_name = "NAME", default_value = "")]
        after: String,
        /// Names at most, 1 to 512
        #[arg(long, value_name = "N", default_value_t = LIMIT)]
        limit: u32,
        #[command(flatten)]
        how: How,
    },
    /// Insert a tuple
    Out {
        /// The space
        space: String,
        #[command(flatten)]
        entry: EntryArguments,
        #[command(flatten)]
        how: How,
    },
    /// Insert tuples, all or none; prints their numbers
    Outall {
        /// The space
        space: String,
        /// The tuples, 1 to 512 lists of fields in JSON
        #[arg(required = true)]
        tuples: Vec<String>,
        #[command(flatten)]
        kept: Kept,
        #[command(flatten)]
        how: How,
    },
    /// Read the oldest match; exit code 3 if there is none
    Rdp(Matching),
    /// Take the oldest match; exit code 3 if there is none
    Inp(Matching),
    /// Read the oldest match, or wait for one; exit code 3 if none comes
    Rd(Waiting),
    /// Take the oldest match, or wait for one; exit code 3 if none comes
    In(Waiting),
    /// Read all matches, oldest first, a line each
    Rdall {
        #[command(flatten)]
        several: Several,
        /// Only tuples with a number above this
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: u64,
    },
    /// Take all matches, oldest first, a line each
    Inall(Several),
    /// Insert a tuple unless one matches; exit code 3, and the match, if one does
    Cas(Conditional),
    /// Take the oldest match and insert a tuple; exit code 3 if there is none
    Replace(Conditional),
    /// Give a tuple another lease, from now on; exit code 3 if it is not there
    Renew {
        /// The space
        space: String,
        /// The tuple's number
        number: u64,
        /// How long it stays, up to ten years; 0 ends it; without it, until it is taken
        #[arg(long, value_name = "TIME", value_parser = parse_any_duration)]
        lease: Option<Duration>,
        #[command(flatten)]
        how: How,
    },
    #[command(flatten)]
    Held(space_held::Command),
    /// Carry out operations from standard input, many at once, in JSON lines
    Batch(space_batch::Arguments),
}

#[derive(Args)]
pub struct How {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// How long to wait for the answer, besides the wait for a tuple
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Print the result in JSON, as `perdura space batch` does
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Named {
    /// Its name
    space: String,
    #[command(flatten)]
    how: How,
}

/// Clients are named by their public keys, as in client.toml.
#[derive(Args)]
struct Create {
    /// Its name, 1 to 128 bytes
    space: String,
    /// Leading fields by which tuples are found without looking at others, 0 to 8
    #[arg(long, value_name = "FIELDS", default_value_t = 1)]
    index: u8,
    /// Public keys of the clients that may insert [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    insert: Option<Vec<String>>,
    /// Public keys of the clients that may read [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    read: Option<Vec<String>>,
    /// Public keys of the clients that may take [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    take: Option<Vec<String>>,
    /// Public keys of the clients that may delete it, end waits and break locks of others, besides its creator [default: none]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    manage: Option<Vec<String>>,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub struct EntryArguments {
    /// The tuple, a list of fields in JSON
    tuple: String,
    #[command(flatten)]
    kept: Kept,
}

#[derive(Args, Clone)]
struct Kept {
    /// How long it stays, up to ten years (3650d); without it, until it is taken
    #[arg(long, value_name = "TIME", value_parser = parse_any_duration)]
    lease: Option<Duration>,
    /// Public keys of the clients that may read it [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    read: Option<Vec<String>>,
    /// Public keys of the clients that may take it [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    take: Option<Vec<String>>,
}

#[derive(Args)]
pub struct Matching {
    /// The space
    space: String,
    /// The template, a list of fields in JSON
    template: String,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
struct Waiting {
    #[command(flatten)]
    matching: Matching,
    /// How long to wait for a tuple, up to a day
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    wait: Duration,
}

#[derive(Args)]
struct Several {
    #[command(flatten)]
    matching: Matching,
    /// Tuples at most, 1 to 512
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: u32,
}

#[derive(Args)]
struct Conditional {
    /// The space
    space: String,
    /// The template, a list of fields in JSON
    template: String,
    #[command(flatten)]
    entry: EntryArguments,
    #[command(flatten)]
    how: How,
}

fn json(text: &str, what: &str) -> Result<Value, Usage> {
    let refused = |error| Usage(format!("the {what} is no JSON to go by: {error}"));
    crate::json::read(text.as_bytes()).map_err(refused)
}

fn template(text: &str) -> Result<Template, Usage> {
    space_json::template(&json(text, "template")?).map_err(Usage)
}

/// The tuple in an argument.
pub fn tuple(text: &str) -> Result<Tuple, Usage> {
    space_json::tuple(&json(text, "tuple")?).map_err(Usage)
}

fn access(keys: Option<Vec<String>>) -> Result<Access, Usage> {
    space_json::access(keys).map_err(Usage)
}

/// Rounded down, but no time is 0 if it is more.
pub fn milliseconds(time: Duration) -> u64 {
    let least = u64::from(!time.is_zero());
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(least)
}

impl EntryArguments {
    /// What is to be inserted.
    pub fn entry(self) -> Result<Entry, Usage> {
        self.kept.entry(&self.tuple)
    }
}

impl Kept {
    fn entry(self, tuple: &str) -> Result<Entry, Usage> {
        Ok(Entry {
            tuple: self::tuple(tuple)?,
            lease_ms: self.lease.map(milliseconds),
            read: access(self.read)?,
            take: access(self.take)?,
        })
    }
}

/// A command, and how it is carried out.
pub type Asked = (TupleCommand, How);

/// An operation on a space.
pub fn on(space: String, operation: Operation, how: How) -> Asked {
    (TupleCommand::On { space, operation }, how)
}

impl Create {
    fn asked(self) -> Result<Asked, Usage> {
        let options = SpaceOptions {
            index_fields: self.index,
            insert: access(self.insert)?,
            read: access(self.read)?,
            take: access(self.take)?,
            manage: access(self.manage.or(Some(Vec::new())))?,
        };
        Ok(on(self.space, Operation::Create(options), self.how))
    }
}

impl Matching {
    /// An operation on what matches.
    pub fn asked(self, operation: impl FnOnce(Template) -> Operation) -> Result<Asked, Usage> {
        Ok(on(self.space, operation(template(&self.template)?), self.how))
    }
}

impl Waiting {
    fn asked(self, operation: impl FnOnce(Template, u64) -> Operation) -> Result<Asked, Usage> {
        let wait_ms = milliseconds(self.wait);
        self.matching.asked(|template| operation(template, wait_ms))
    }
}

impl Conditional {
    fn asked(self, operation: impl FnOnce(Template, Entry) -> Operation) -> Result<Asked, Usage> {
        let entry = self.entry.entry()?;
        Ok(on(self.space, operation(template(&self.template)?, entry), self.how))
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let (command, how) = match arguments.command {
        Command::Batch(arguments) => return space_batch::run(&arguments),
        Command::Held(command) => command.asked()?,
        Command::Create(create) => create.asked()?,
        Command::Delete(Named { space, how }) => on(space, Operation::Delete, how),
        Command::Show(Named { space, how }) => on(space, Operation::Describe, how),
        Command::List { after, limit, how } => (TupleCommand::Spaces { after, limit }, how),
        Command::Out { space, entry, how } => on(space, Operation::Out(entry.entry()?), how),
        Command::Outall { space, tuples, kept, how } => {
            let entries: Result<Vec<Entry>, Usage> =
                tuples.iter().map(|tuple| kept.clone().entry(tuple)).collect();
            on(space, Operation::OutAll(entries?), how)
        }
        Command::Rdp(matching) => matching.asked(Operation::Rdp)?,
        Command::Inp(matching) => matching.asked(Operation::Inp)?,
        Command::Rd(waiting) => {
            waiting.asked(|template, wait_ms| Operation::Rd { template, wait_ms })?
        }
        Command::In(waiting) => {
            waiting.asked(|template, wait_ms| Operation::In { template, wait_ms })?
        }
        Command::Rdall { several: Several { matching, limit }, after } => {
            matching.asked(|template| Operation::RdAll { template, after, limit })?
        }
        Command::Inall(Several { matching, limit }) => {
            matching.asked(|template| Operation::InAll { template, limit })?
        }
        Command::Cas(conditional) => {
            conditional.asked(|template, entry| Operation::Cas { template, entry })?
        }
        Command::Replace(conditional) => {
            conditional.asked(|template, entry| Operation::Replace { template, entry })?
        }
        Command::Renew { space, number, lease, how } => {
            let lease_ms = lease.map(milliseconds);
            on(space, Operation::Renew { number, lease_ms }, how)
        }
    };
    command.validate().map_err(|error| Usage(error.to_string()))?;
    let cluster = how.cluster.load_of(ServiceKind::TupleSpaces)?;
    let key = how.cluster.key(&cluster)?;
    let options = Options { timeout: how.timeout, reply_quorum: None };
    let reply = runtime()?.block_on(async {
        let client = connect(&cluster, &key)?;
        let clients = [&client];
        let reply = withdrawn_by_signals(&clients, async {
            match &command {
                TupleCommand::On { space, operation: Operation::Delete } => {
                    delete(&client, space, &options)
                        .await
                        .map(|()| TupleReply::Deleted { remaining: 0 })
                }
                _ => call(&client, &command, &options).await,
            }
        });
        let reply = reply.await?;
        client.close().await;
        anyhow::Ok(reply)
    })?;
    match reply {
        Ok(reply) => print(&command, &reply, how.json).context(crate::kv::UNTOLD),
        Err(error) => Ok(unanswered(&error, error.is_refusal(), how.json)),
    }
}

fn print(command: &TupleCommand, reply: &TupleReply, json: bool) -> Result<ExitCode> {
    let (cas, claim) = match command {
        TupleCommand::On { operation, .. } => (
            matches!(operation, Operation::Cas { .. }),
            matches!(operation, Operation::Claim { .. }),
        ),
        TupleCommand::Spaces { .. } => (false, false),
    };
    let success = match reply {
        TupleReply::Found(found) => found.is_some() && !cas,
        TupleReply::Renewed { renewed, .. } => *renewed,
        _ => space_held::is_yes(reply).unwrap_or(true),
    };
    let code = carried_out(success);
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", space_json::result(reply))?;
        return Ok(code);
    }
    let mut tuple = |found: &Found| writeln!(out, "{}", space_json::shown(&found.tuple));
    match reply {
        TupleReply::Found(Some(found)) => tuple(found)?,
        TupleReply::Found(None) if claim => tell!("perdura: another tuple begins alike"),
        TupleReply::Found(None) => tell!("perdura: no tuple matches"),
        TupleReply::FoundAll { tuples, more } => {
            tuples.iter().try_for_each(&mut tuple)?;
            if *more {
                tell!("perdura: there are more; go on with --after, or take them again");
            }
        }
        TupleReply::Replaced { old, .. } => tuple(old)?,
        TupleReply::Spaces { names, more } => {
            names.iter().try_for_each(|name| writeln!(out, "{name}"))?;
            if *more {
                tell!("perdura: there are more; go on with --after");
            }
        }
        TupleReply::Inserted { number } => writeln!(out, "{number}")?,
        TupleReply::InsertedAll { first, count } => {
            (0..u64::from(*count))
                .try_for_each(|n| writeln!(out, "{}", first.saturating_add(n)))?;
        }
        TupleReply::Renewed { renewed: false, .. } => tell!("perdura: there is no such tuple"),
        TupleReply::Created | TupleReply::Deleted { .. } | TupleReply::Renewed { .. } => {
            writeln!(out, "ok")?
        }
        TupleReply::Described(_) => writeln!(out, "{:#}", space_json::result(reply))?,
        held => space_held::print(held, &mut out)?,
    }
    Ok(code)
}
