//! Chaos on real processes: a cluster of `perdura replica` processes with disks and a network of
//! its own, clients that read and write throughout, faults of every kind drawn from a seed, and a
//! judge of everything that the clients saw. See docs/testing/chaos.md.

#![forbid(unsafe_code)]

mod bank;
mod chart;
mod clocks;
mod cluster;
mod course;
mod excuses;
mod faults;
mod files;
mod history;
mod inject;
mod isolation;
mod judge;
mod load;
mod logs;
mod nemesis;
mod network;
mod operation;
mod options;
mod queue;
mod registers;
mod report;
mod run;
mod service;
mod standstill;
mod timeline;
mod volume;
mod waits;
mod watch;

use clap::Parser;
use options::ChaosOptions;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = ChaosOptions::parse();
    match act(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("perdura-chaos: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(options: &ChaosOptions) -> anyhow::Result<ExitCode> {
    if options.list {
        for kind in faults::FaultKind::all() {
            println!("{:15} {}", kind.name(), kind.help());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !options.inside {
        if let Some(code) = isolation::run_inside()? {
            return Ok(code);
        }
        println!("no namespaces here: mounts and processes are cleaned up by this process alone");
    }
    run::run(options)
}
