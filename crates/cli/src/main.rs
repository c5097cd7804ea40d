//! `perdura`: the one binary. Each subcommand is a module; this one reads the command line and
//! turns what comes out into an exit code: 0 done, 1 failed, 2 used wrongly.

#![deny(unsafe_code)]

/// Prints a line; if nobody reads it any more, there is nobody to tell.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod allocator;
#[cfg(feature = "misbehave")]
mod attack;
mod batch;
mod bench;
mod client_keys;
mod connect;
mod dev;
mod format;
mod init;
mod inspect;
mod kv;
mod kv_batch;
mod local;
mod process;
mod reinit;
mod replica;
#[cfg(feature = "seeded-bugs")]
mod seeded;
mod simulate;
mod space;
mod status;

use clap::{Parser, Subcommand};
use perdura_cli::{config, kv_json, space_json};
use std::process::ExitCode;

/// A replicated store that stays available while up to u of its replicas fail, and correct while
/// up to r of them lie.
#[derive(Parser)]
#[command(name = "perdura", version, max_term_width = 100)]
#[command(
    after_help = "Start with `perdura dev`: it makes a cluster, runs it, and says what to try.\n\
                        Exit codes: 0 done, 1 failed, 2 used wrongly."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the files of a new cluster: keys, configuration, formatted data directories
    Init(init::Arguments),
    /// Run a whole cluster on this machine, for trying out
    Dev(dev::Arguments),
    /// Run one replica, or replace one that lost its disk
    Replica(replica::Arguments),
    /// Certify and revoke client keys, while the cluster runs
    Client(client_keys::Arguments),
    /// Read and write the store
    Kv(kv::Arguments),
    /// Read, write, and wait for tuples
    Space(space::Arguments),
    /// How each replica stands
    Status(status::Arguments),
    /// Measure throughput, latency and CPU per operation
    Bench(bench::Arguments),
    /// What is on a replica's disk, record by record, verifying checksums
    Inspect(inspect::Arguments),
    /// Run a whole group on virtual time, with faults, and check what it promises
    Simulate(simulate::Arguments),
    /// Attack a cluster as a hostile client (in test builds only)
    #[cfg(feature = "misbehave")]
    Attack(attack::Arguments),
}

/// The command line asks for something that makes no sense: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (see --help)", self.0)
    }
}

impl std::error::Error for Usage {}

fn main() -> ExitCode {
    allocator::keep_free_memory();
    let done = match Arguments::parse().command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Dev(arguments) => dev::run(&arguments),
        Command::Replica(arguments) => replica::run(&arguments),
        Command::Client(arguments) => client_keys::run(&arguments),
        Command::Kv(arguments) => kv::run(arguments),
        Command::Space(arguments) => space::run(arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        #[cfg(feature = "misbehave")]
        Command::Attack(arguments) => attack::run(&arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("perdura: {}", text_of(&error));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// An error and its causes, less those whose text an earlier one includes.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whoever read our output has gone; there is nobody to tell.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
