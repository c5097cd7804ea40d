//! `perdura space`: what is had for a time, by claims and leases; counters; and what operators do about waits and locks.

use crate::Usage;
use crate::connect::{parse_any_duration, parse_duration};
use crate::space::{Asked, EntryArguments, How, Matching, milliseconds, on, tuple};
use crate::space_json::{self, LIMIT};
use clap::{Args, Subcommand};
use perdura_protocol::SessionId;
use perdura_tuples::{Broken, Operation, TupleReply};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// For the help of all commands.
pub const EXAMPLES: &str = r#"A lock is a claim, which is had until its lease ends, unless it is renewed, or
released (a lease of 0):
  N=$(perdura space claim --cluster DIR jobs '["lock"]' --lease 30s --wait 1m)
  perdura space renew --cluster DIR jobs $N --lease 30s
  perdura space renew --cluster DIR jobs $N --lease 0
A worker leases a job, and what it does not finish is the next one's:
  read -r NUMBER TOKEN JOB < <(perdura space lease --cluster DIR jobs '["job", null]' --lease 5m)
  perdura space done --cluster DIR jobs $NUMBER $TOKEN"#;

#[derive(Subcommand)]
pub enum Command {
    /// Insert a tuple as soon as no other begins alike, in turn; prints its number; exit code 3 if it was not had
    Claim(Claim),
    /// Take the oldest match for a time, or wait for one; prints its number, a token, and the tuple; exit code 3 if none comes
    Lease(Lease),
    /// Remove a tuple that is leased: its job is done; exit code 3 if that lease has ended
    Done(Leased),
    /// Give back a tuple that is leased, to who comes next; exit code 3 if that lease has ended
    Return(Leased),
    /// Have a tuple that is leased for longer, from now on; exit code 3 if that lease has ended
    Extend {
        #[command(flatten)]
        leased: Leased,
        /// For how long, up to ten years
        #[arg(long, value_name = "TIME", value_parser = parse_any_duration)]
        lease: Duration,
    },
    /// Add to a counter, the integer behind these fields; prints the sum
    Add {
        /// The space
        space: String,
        /// The fields before the integer, a list in JSON
        fields: String,
        /// What to add
        #[arg(allow_negative_numbers = true)]
        amount: i64,
        #[command(flatten)]
        how: How,
    },
    /// The commands that wait, in order, a line each: place, client, session, number, what for, template
    Waits {
        /// The space
        space: String,
        /// Only those behind this place
        #[arg(long, value_name = "PLACE", default_value_t = 0)]
        after: u64,
        /// Commands at most, 1 to 512
        #[arg(long, value_name = "N", default_value_t = LIMIT)]
        limit: u32,
        #[command(flatten)]
        how: How,
    },
    /// End the wait of a command, which is refused then; exit code 3 if it does not wait
    ///
    /// For who may manage the space. `perdura space waits` tells what waits.
    Endwait {
        /// The space
        space: String,
        /// Public key of the client that waits
        #[arg(value_name = "CLIENT")]
        waiter: String,
        /// The session in which it does
        session: u64,
        /// The command's number in the session
        number: u64,
        #[command(flatten)]
        how: How,
    },
    /// Remove a tuple, whoever may take it, and so break a lock; exit code 3 if it is not there
    ///
    /// For who may manage the space. `rdall --json` tells numbers. A tuple that is leased is given back instead. Refused for the moment in which a tuple is handed over.
    Break {
        /// The space
        space: String,
        /// The tuple's number
        number: u64,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Args)]
pub struct Claim {
    /// The space
    space: String,
    #[command(flatten)]
    entry: EntryArguments,
    /// Leading fields that no other tuple of as many fields may begin with
    #[arg(long, value_name = "FIELDS", default_value_t = 1)]
    key: u8,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub struct Lease {
    #[command(flatten)]
    matching: Matching,
    /// For how long, up to ten years
    #[arg(long, value_name = "TIME", value_parser = parse_any_duration)]
    lease: Duration,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args)]
struct Wait {
    /// How long to wait, up to a day; 0 to try
    #[arg(long = "wait", value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    time: Duration,
}

#[derive(Args)]
pub struct Leased {
    /// The space
    space: String,
    /// The tuple's number
    number: u64,
    /// The token of the lease
    token: u64,
    #[command(flatten)]
    how: How,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    match parse_any_duration(text)? {
        time if time.is_zero() => Ok(time),
        _ => parse_duration(text),
    }
}

impl Command {
    /// The command that it stands for.
    pub fn asked(self) -> Result<Asked, Usage> {
        Ok(match self {
            Command::Claim(Claim { space, entry, key, wait, how }) => {
                let (entry, wait_ms) = (entry.entry()?, milliseconds(wait.time));
                on(space, Operation::Claim { key, entry, wait_ms }, how)
            }
            Command::Lease(Lease { matching, lease, wait }) => {
                let (lease_ms, wait_ms) = (milliseconds(lease), milliseconds(wait.time));
                matching.asked(|template| Operation::Lease { template, lease_ms, wait_ms })?
            }
            Command::Done(Leased { space, number, token, how }) => {
                on(space, Operation::Finish { number, token }, how)
            }
            Command::Return(Leased { space, number, token, how }) => {
                on(space, Operation::Return { number, token }, how)
            }
            Command::Extend { leased: Leased { space, number, token, how }, lease } => {
                let lease_ms = milliseconds(lease);
                on(space, Operation::Extend { number, token, lease_ms }, how)
            }
            Command::Add { space, fields, amount, how } => {
                let fields = tuple(&fields)?;
                on(space, Operation::Add { fields, amount }, how)
            }
            Command::Waits { space, after, limit, how } => {
                on(space, Operation::Waits { after, limit }, how)
            }
            Command::Endwait { space, waiter, session, number, how } => {
                let client = space_json::client(&waiter).map_err(Usage)?;
                let session = SessionId { client, nonce: session };
                on(space, Operation::EndWait { session, number }, how)
            }
            Command::Break { space, number, how } => on(space, Operation::Break { number }, how),
        })
    }
}

/// Whether the answer is yes; none if the reply is of another command.
pub fn is_yes(reply: &TupleReply) -> Option<bool> {
    match reply {
        TupleReply::Leased(leased) => Some(leased.is_some()),
        TupleReply::Holding { held, .. } => Some(*held),
        TupleReply::WaitEnded { ended } => Some(*ended),
        TupleReply::Broken(broken) => Some(*broken != Broken::Absent),
        TupleReply::Added { .. } | TupleReply::Waits { .. } => Some(true),
        _ => None,
    }
}

/// Says what the answer is, for people and shells.
pub fn print(reply: &TupleReply, out: &mut impl Write) -> std::io::Result<()> {
    match reply {
        TupleReply::Leased(None) => tell!("perdura: no tuple matches"),
        TupleReply::Leased(Some(leased)) => {
            let tuple = space_json::shown(&leased.tuple);
            writeln!(out, "{} {} {tuple}", leased.number, leased.token)?;
        }
        TupleReply::Holding { held: false, .. } => {
            tell!("perdura: there is no such lease (any more)");
        }
        TupleReply::Holding { .. } => writeln!(out, "ok")?,
        TupleReply::Added { value, .. } => writeln!(out, "{value}")?,
        TupleReply::Waits { waits, more } => {
            for wait in waits {
                let wait = space_json::waiting(wait);
                let text = |field: &str| match &wait[field] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let fields = ["place", "client", "session", "number", "purpose", "template"];
                writeln!(out, "{}", fields.map(text).join(" "))?;
            }
            if *more {
                tell!("perdura: there are more; go on with --after");
            }
        }
        TupleReply::WaitEnded { ended: false } => tell!("perdura: no such command waits"),
        TupleReply::WaitEnded { .. } => writeln!(out, "ok")?,
        TupleReply::Broken(Broken::Absent) => tell!("perdura: there is no such tuple"),
        TupleReply::Broken(Broken::Removed) => writeln!(out, "removed")?,
        TupleReply::Broken(Broken::Returned) => writeln!(out, "returned")?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Args;

    /// Names of arguments that collide panic only where they are parsed, and only in tests.
    #[test]
    fn the_arguments_of_all_commands_go_together() {
        crate::space::Arguments::augment_args(clap::Command::new("space")).debug_assert();
    }
}
