//! `perdura-lab`: what is done with Perdura and not by its operators: groups on virtual time, attacks, and the
//! experiments of papers. Each subcommand is a module.

#![forbid(unsafe_code)]

mod attack;
mod misbehave;
mod paper;
mod replicas;
mod seeded;
mod simulate;
mod strangers;

use clap::{Parser, Subcommand};
use perdura_cli::allocator::{self, Allocator};
use perdura_cli::ending;
use std::process::ExitCode;

/// Simulated groups make and drop many small values. Faster at that than the system's, for a third more memory.
#[global_allocator]
static ALLOCATOR: Allocator = allocator::ALLOCATOR;

/// Tries Perdura out: whole groups on virtual time with faults, attacks on a cluster, and the experiments of the
/// papers that it unifies.
#[derive(Parser)]
#[command(name = "perdura-lab", version, max_term_width = 100)]
#[command(
    after_help = "Clusters are made and operated with `perdura`. The experiments start it as replicas.\n\
                        Exit codes: 0 done, 1 failed, 2 used wrongly."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole group on virtual time, with faults, and check what it promises
    Simulate(simulate::Arguments),
    /// Attack a cluster as a hostile client
    Attack(attack::Arguments),
    /// Run a replica that lies
    Replica(misbehave::Arguments),
    /// Run a server whose members lie
    Server(misbehave::server::Arguments),
    /// Connect to a cluster on this machine as nobody, from many addresses, without end
    Strangers(strangers::Arguments),
    /// Repeat an experiment of a paper, on clusters of its own
    Paper(paper::Arguments),
}

fn main() -> ExitCode {
    allocator::keep_free_memory();
    let done = match Arguments::parse().command {
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Attack(arguments) => attack::run(&arguments),
        Command::Replica(arguments) => misbehave::run(&arguments),
        Command::Server(arguments) => misbehave::server::run(&arguments),
        Command::Strangers(arguments) => strangers::run(&arguments),
        Command::Paper(arguments) => paper::run(&arguments),
    };
    ending::exit_code("perdura-lab", done)
}
