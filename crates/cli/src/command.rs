//! The command line of `perdura`: which command it asks for.

use crate::{admin, bench, client_keys, completion, dev, ending, health, init, inspect, kv};
use crate::{limit, man, replica, server, space, status, txn, upgrade};
use clap::error::{ContextKind, ContextValue, Error};
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Where the cluster is, if the command line does not say it.
pub const CLUSTER_VARIABLE: &str = "PERDURA_CLUSTER";

/// A replicated store that stays available while up to u of its replicas fail, and correct while
/// up to r of them lie.
#[derive(Parser)]
#[command(name = "perdura", version, max_term_width = 100)]
#[command(
    after_help = "Start with `perdura dev`: it makes a cluster, runs it, and says what to try.\n\
                        Exit codes: 0 done, 1 failed, 2 used wrongly; kv, space, status and health tell more (see their --help)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // What each is stands with its arguments, the long text too: a comment here would take its place.
    Init(init::Arguments),
    Dev(dev::Arguments),
    Replica(replica::Arguments),
    Server(server::Arguments),
    Client(client_keys::Arguments),
    Admin(admin::Arguments),
    Upgrade(upgrade::Arguments),
    Limit(limit::Arguments),
    Kv(kv::Arguments),
    Space(space::Arguments),
    Txn(txn::Arguments),
    Status(status::Arguments),
    Health(health::Arguments),
    Bench(bench::Arguments),
    Inspect(inspect::Arguments),
    Completion(completion::Arguments),
    Man(man::Arguments),
}

/// Does what the command line of `perdura` asks for, and tells of what went wrong.
#[must_use]
pub fn main() -> ExitCode {
    let done = match parse().command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Dev(arguments) => dev::run(&arguments),
        Command::Replica(arguments) => replica::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Client(arguments) => client_keys::run(&arguments),
        Command::Admin(arguments) => admin::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Limit(arguments) => limit::run(&arguments),
        Command::Kv(arguments) => kv::run(arguments),
        Command::Space(arguments) => space::run(arguments),
        Command::Txn(arguments) => txn::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Completion(arguments) => completion::run(&arguments, Arguments::command()),
        Command::Man(arguments) => man::run(&arguments, Arguments::command()),
    };
    ending::exit_code("perdura", done)
}

/// Where a command lacks its cluster, it is said that the variable would do as well.
fn parse() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|mut error| {
        if lacks_cluster(&error) {
            let tip = format!("{CLUSTER_VARIABLE} in the environment stands for --cluster");
            let tips = ContextValue::StyledStrs(vec![tip.into()]);
            error.insert(ContextKind::Suggested, tips);
        }
        error.exit()
    })
}

fn lacks_cluster(error: &Error) -> bool {
    let required = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
    let missing = error.get(ContextKind::InvalidArg);
    let ContextValue::Strings(names) = missing.unwrap_or(&ContextValue::None) else { return false };
    required && names.iter().any(|name| name.starts_with("--cluster"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What does not say what it is, of a command and all below it.
    fn untold(command: &clap::Command, path: &str) -> Vec<String> {
        let arguments = command.get_arguments().filter(|one| one.get_help().is_none());
        let mut found: Vec<String> = arguments.map(|one| format!("{path} {one}")).collect();
        for below in command.get_subcommands() {
            let path = format!("{path} {}", below.get_name());
            found.extend(untold(below, &path));
            if below.get_about().is_none() {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn each_command_and_option_says_what_it_is() {
        let mut command = Arguments::command();
        command.build();
        assert_eq!(untold(&command, "perdura"), [""; 0]);
    }
}
