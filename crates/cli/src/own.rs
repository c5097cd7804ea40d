//! The command line of a program with a service of its own: what runs its replicas and operates their clusters.

use crate::init::{self, Named};
use crate::{
    admin, called, client_keys, completion, dev, ending, health, inspect, limit, man, replica,
};
use crate::{status, upgrade};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use perdura_typed::{Service, name_of};
use std::path::Path;
use std::process::ExitCode;

/// Replicas of a service, and what operates them
#[derive(Parser)]
#[command(
    max_term_width = 100,
    after_help = "Start with `dev`: it makes a cluster, runs it, and says what to try.\n\
                  Exit codes: 0 done, 1 failed, 2 used wrongly; status and health tell more (see their --help)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // What each is stands with its arguments.
    Init(init::OwnArguments),
    /// Run a whole cluster on this machine, for trying out
    ///
    /// As child processes on loopback, until Ctrl-C. Makes its files if they are not there, and goes on from them if they are. Restarts no replica by
    /// itself. A replica's log is in DIR/replica-I/log.txt.
    Dev(dev::Trial),
    Replica(replica::OwnArguments),
    Client(client_keys::Arguments),
    Admin(admin::Arguments),
    Upgrade(upgrade::Arguments),
    Limit(limit::Arguments),
    Status(status::Arguments),
    Health(health::Arguments),
    Inspect(inspect::Arguments),
    Completion(completion::Arguments),
    Man(man::Arguments),
}

/// Does what the command line asks for, with the replicas of this service, and tells of what went wrong. All of a program's `main`:
/// `init`, `dev`, `replica`, `status`, `health`, and what else operates a cluster (`--help` lists them). Where the log of a replica names `perdura`, this program does
/// as well.
#[must_use]
pub fn service<S: Service>() -> ExitCode {
    let name = std::env::args_os()
        .next()
        .and_then(|path| Some(Path::new(&path).file_name()?.to_string_lossy().into_owned()));
    // The command line's definitions last as long as the program.
    let name: &'static str = name.unwrap_or_else(|| S::NAME.to_owned()).leak();
    called::set(name, &Arguments::command());
    let command = || called::in_help(Arguments::command().name(name).bin_name(name));
    let parsed = Arguments::from_arg_matches(&command().get_matches());
    let arguments = parsed.unwrap_or_else(|error| error.exit());
    let own = Named { name: name_of::<S>(), version: S::VERSION, takes_long: S::TAKES_LONG };
    let done = match arguments.command {
        Command::Init(arguments) => init::run_own(&arguments, &own, name),
        Command::Dev(arguments) => dev::run_own(&arguments, &own),
        Command::Replica(arguments) => replica::run_own::<S>(&arguments, name),
        Command::Client(arguments) => client_keys::run(&arguments),
        Command::Admin(arguments) => admin::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Limit(arguments) => limit::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Completion(arguments) => completion::run(&arguments, command()),
        Command::Man(arguments) => man::run(&arguments, command()),
    };
    ending::exit_code(name, done)
}
