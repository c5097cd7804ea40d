//! `perdura simulate`: whole groups on virtual time, from one seed each.

use crate::init::parse_faults;
use anyhow::{Context, Result};
use clap::Args;
use perdura_adversary::{Attack, Strategy};
use perdura_protocol::{Faults, Scheme};
use perdura_simulator::{Mode, Options, Report, parse_scheme, simulate, simulate_traced};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the replicas' and clients' real code on virtual time, network and disks, does what it can
/// to break it, and checks what it promises: agreement, persistence before speech, durability,
/// exactly once, linearizability. The same seed gives the same run.
///
/// What is not given is drawn from the seed: bounds, mode, signatures, network, workload, faults.
/// Exit code 0: nothing was violated; 1: something was, and the line that repeats it is printed.
#[derive(Args)]
pub struct Arguments {
    /// Decides everything
    #[arg(long, value_name = "N")]
    seed: u64,
    /// Delivered messages, disk completions and timers before the faults stop
    #[arg(long, value_name = "M", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: u64,
    /// Run this many seeds, from N on, and add up their reports
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Fault bounds of the group
    #[arg(long, value_name = "U,R", value_parser = parse_faults)]
    faults: Option<Faults>,
    /// liveness: at most u replicas have failed at a time, and calls are answered all the while;
    /// safety: any number crashes, nothing wrong is ever said, and the group goes on afterwards
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<Mode>,
    /// How statements are signed: ed25519 or keyed-hash
    #[arg(long, value_name = "SCHEME", value_parser = parse_signatures)]
    signatures: Option<Scheme>,
    /// How replicas lie, one strategy for each liar (at most r), or none
    #[arg(long, value_name = "STRATEGY,...", value_parser = parse_liars)]
    liars: Option<std::vec::Vec<Strategy>>,
    /// How clients attack, one attack for each hostile client, or none
    #[arg(long, value_name = "ATTACK,...", value_parser = parse_attacks)]
    attacks: Option<std::vec::Vec<Attack>>,
    /// Write a line for everything that happens; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    Mode::parse(text).ok_or_else(|| "give liveness or safety".to_owned())
}

fn parse_liars(text: &str) -> Result<Vec<Strategy>, String> {
    let all = || Strategy::ALL.map(Strategy::name).join(", ");
    parse_names(text, Strategy::parse).map_err(|name| format!("{name:?} is none of: {}", all()))
}

fn parse_attacks(text: &str) -> Result<Vec<Attack>, String> {
    let all = || Attack::ALL.map(Attack::name).join(", ");
    parse_names(text, Attack::parse).map_err(|name| format!("{name:?} is none of: {}", all()))
}

/// Names separated by commas, or `none`; the first unknown one is the error.
fn parse_names<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|name| parse(name).ok_or_else(|| name.to_owned())).collect()
}

fn parse_signatures(text: &str) -> Result<Scheme, String> {
    parse_scheme(text).ok_or_else(|| "give ed25519 or keyed-hash".to_owned())
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut total = Report::default();
    let mut violations = 0u64;
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.seeds) {
        let options = Options {
            seed,
            steps: arguments.steps,
            faults: arguments.faults,
            mode: arguments.mode,
            scheme: arguments.signatures,
            liars: arguments.liars.clone(),
            attacks: arguments.attacks.clone(),
        };
        let result = match trace(arguments)? {
            Some(writer) => simulate_traced(&options, Some(writer)),
            None => simulate(&options),
        };
        match result {
            Ok(report) => total.add(&report),
            Err(violation) => {
                violations += 1;
                say!("{violation}");
            }
        }
    }
    if total.runs > 0 {
        say!("{total}");
    }
    say!("violations    {violations}");
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn trace(arguments: &Arguments) -> Result<Option<Box<dyn Write>>> {
    let Some(path) = &arguments.trace else { return Ok(None) };
    if path.as_os_str() == "-" {
        return Ok(Some(Box::new(std::io::stdout())));
    }
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Some(Box::new(BufWriter::new(file))))
}
