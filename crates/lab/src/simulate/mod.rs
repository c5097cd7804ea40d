//! `perdura-lab simulate`: whole groups on virtual time, from one seed each.

mod batch;

use anyhow::{Context, Result};
use clap::Args;
use perdura_adversary::{Attack, Strategy};
use perdura_cli::init::parse_faults;
use perdura_cli::tell;
use perdura_cli::{Usage, say};
use perdura_protocol::configuration::{Durability, Schedule};
use perdura_protocol::{Faults, Scheme};
use perdura_replica::node::StateTransfer;
use perdura_simulator::ServiceKind;
use perdura_simulator::shrink::{RUNS_AT_MOST, Shrunk, shrink};
use perdura_simulator::{
    FaultKind, LIARS_AT_MOST, Mode, Numbers, Overrides, PARTITIONS_AT_MOST, Simpler,
    SimulationOptions, SimulationReport, Violation, parse_scheme, parse_service,
    pass_over_stumbles, simulate, simulate_traced, simulate_with_history,
};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
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
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Delivered messages, disk completions and timers before the faults stop
    #[arg(long, value_name = "M", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: u64,
    /// Run this many seeds, from N on, and add up their reports
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Run these seeds too, in the same report
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', conflicts_with_all = ["trace", "history"])]
    also: Vec<u64>,
    /// Runs at a time
    #[arg(long, value_name = "THREADS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: u64,
    /// Fail also if some kind of fault, lie or attack never took effect, or some marked rare branch
    /// was never taken, in any of the runs
    #[arg(long)]
    every_fault: bool,
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
    /// How replicas log: sync or async
    #[arg(long, value_name = "DURABILITY", value_parser = parse_durability)]
    durability: Option<Durability>,
    /// Who stores which checkpoint: coordinated or sequential
    #[arg(long, value_name = "SCHEDULE", value_parser = parse_schedule)]
    schedule: Option<Schedule>,
    /// Whom a replica that was away asks for the state: collaborative or single-sender, which one seed of
    /// four in safety mode has
    #[arg(long, value_name = "HOW", value_parser = parse_state_transfer)]
    state_transfer: Option<StateTransfer>,
    /// What the group runs: kv or tuples, one seed of five being of tuple spaces; or partitions: a store of several, each with a group
    /// of its own
    #[arg(long, value_name = "SERVICE", value_parser = parse_kind)]
    service: Option<ServiceKind>,
    /// Of a store of several partitions, how many
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(2..=PARTITIONS_AT_MOST as u64))]
    partitions: Option<u64>,
    /// How replicas lie, one strategy for each liar (at most r), or none
    #[arg(long, value_name = "STRATEGY,...", value_parser = parse_liars)]
    liars: Option<std::vec::Vec<Strategy>>,
    /// How clients attack, one attack for each hostile client, or none
    #[arg(long, value_name = "ATTACK,...", value_parser = parse_attacks)]
    attacks: Option<std::vec::Vec<Attack>>,
    /// Calls in a second of all clients together, if everything is answered at once
    #[arg(long, value_name = "OPS_PER_S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    #[command(flatten)]
    less: Less,
    /// Shrink what fails: leave out faults, clients, steps and more as long as the same rule is
    /// violated, and print the command that is left
    #[arg(long)]
    shrink: bool,
    /// Most runs that a shrinking takes
    #[arg(long, value_name = "RUNS", default_value_t = RUNS_AT_MOST)]
    shrink_runs: u32,
    /// Write a line for everything that happens; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
    /// Write a line for each seed: the fingerprint of all that happened in its run, or what was violated. Two programs
    /// with equal lines do the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "history"])]
    fingerprints: Option<PathBuf>,
    /// Write what the clients did and saw, one operation per line (JSON), for another judge; the
    /// group runs the key-value store, whatever the seed has
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "trace"])]
    history: Option<PathBuf>,
    #[command(flatten)]
    mistake: crate::seeded::Mistake,
}

/// What a run leaves out; the line that repeats a shrunk run is made of these.
#[derive(Args)]
struct Less {
    /// Number of clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=50))]
    clients: Option<u64>,
    /// Calls that a client has open at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    callers: Option<u64>,
    /// Keys that all clients share
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: Option<u64>,
    /// Kinds of faults that do not happen, as the report names them, or all
    #[arg(long, value_name = "KIND,...", value_parser = parse_kinds)]
    without: Option<std::vec::Vec<FaultKind>>,
    /// Kinds of faults that do not happen: all but these
    #[arg(long, value_name = "KIND,...", value_parser = parse_kinds, conflicts_with = "without")]
    without_all_but: Option<std::vec::Vec<FaultKind>>,
    /// Kinds of fault events that happen, whatever the seed has, and no others; what a crash does to
    /// unsynced writes comes with the crash
    #[arg(long, value_name = "KIND,...", value_parser = parse_events)]
    only: Option<std::vec::Vec<FaultKind>>,
    /// Numbers of the fault events that do not happen, such as 3,7-9; a trace shows the numbers
    #[arg(long, value_name = "NUMBERS", value_parser = parse_numbers)]
    skip_faults: Option<Numbers>,
    /// What is simpler than drawn: network, clocks, disks, rounds, reads, deadlines, values
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = parse_simpler)]
    simpler: Vec<Simpler>,
}

fn parse_kinds(text: &str) -> Result<Vec<FaultKind>, String> {
    if text == "all" {
        return Ok(FaultKind::ALL.to_vec());
    }
    parse_names(text, FaultKind::parse)
        .map_err(|name| format!("{name:?} is none of: {}", names(&FaultKind::ALL)))
}

fn names(kinds: &[impl fmt::Debug]) -> String {
    kinds.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(", ")
}

/// Of other kinds nothing would happen.
fn parse_events(text: &str) -> Result<Vec<FaultKind>, String> {
    let kinds = parse_kinds(text)?;
    let Some(other) = kinds.iter().find(|kind| text != "all" && !kind.is_drawn()) else {
        return Ok(kinds);
    };
    let drawn: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| kind.is_drawn()).collect();
    Err(format!(
        "{other:?} comes with a seed's network, with crashes or with tuple spaces, and not by itself; give some of: {}",
        names(&drawn)
    ))
}

fn parse_numbers(text: &str) -> Result<Numbers, String> {
    Numbers::parse(text).ok_or_else(|| "give numbers and ranges, such as 3,7-9".to_owned())
}

fn parse_simpler(text: &str) -> Result<Simpler, String> {
    let names = || Simpler::ALL.map(Simpler::as_str).join(", ");
    Simpler::parse(text).ok_or_else(|| format!("give some of {}", names()))
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    Mode::parse(text).ok_or_else(|| "give liveness or safety".to_owned())
}

/// A group of which any restart makes a replica amnesiac has no room for faults.
fn parse_durability(text: &str) -> Result<Durability, String> {
    let logged = Durability::parse(text).filter(|durability| *durability != Durability::None);
    logged.ok_or_else(|| "give sync or async".to_owned())
}

fn parse_schedule(text: &str) -> Result<Schedule, String> {
    Schedule::parse(text).ok_or_else(|| {
        let all = Schedule::ALL.map(Schedule::name).join(", ");
        format!("give one of {all}")
    })
}

fn parse_state_transfer(text: &str) -> Result<StateTransfer, String> {
    StateTransfer::parse(text).ok_or_else(|| "give collaborative or single-sender".to_owned())
}

fn parse_kind(text: &str) -> Result<ServiceKind, String> {
    parse_service(text).ok_or_else(|| "give kv, tuples or partitions".to_owned())
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
    if !arguments.mistake.apply()? {
        return Ok(ExitCode::SUCCESS);
    }
    check_liars(arguments)?;
    let kind = arguments.service;
    if arguments.history.is_some() && kind.is_some_and(|kind| kind != ServiceKind::KeyValue) {
        return Err(Usage("--history is of the key-value store".to_owned()).into());
    }
    pass_over_stumbles();
    let began = cpu_seconds();
    let fingerprints = arguments.fingerprints.as_deref().map(created).transpose()?;
    let mut batch =
        Batch { arguments, total: SimulationReport::default(), violations: 0, fingerprints };
    match (trace(arguments)?, &arguments.history) {
        (Some(writer), _) => {
            batch.take(simulate_traced(&options(arguments, arguments.seed), Some(writer)));
        }
        (None, Some(path)) => {
            let (result, history) = simulate_with_history(&options(arguments, arguments.seed));
            std::fs::write(path, history.to_json_lines())
                .with_context(|| format!("cannot write {}", path.display()))?;
            batch.take(result);
        }
        (None, None) => {
            let seeds = seeds(arguments)?;
            let of = |index: u64| options(arguments, seeds.get(index));
            let mut index = 0;
            batch::run(seeds.count(), arguments.jobs, of, |result| {
                batch.note_fingerprint(seeds.get(index), &result);
                batch.take(result);
                index += 1;
            });
        }
    }
    batch.close_fingerprints()?;
    Ok(batch.end(cpu_seconds() - began))
}

/// Which are run: some in a row, and others.
struct Seeds<'a> {
    first: u64,
    in_a_row: u64,
    also: &'a [u64],
}

impl Seeds<'_> {
    fn count(&self) -> u64 {
        self.in_a_row + self.also.len() as u64
    }

    fn get(&self, index: u64) -> u64 {
        let other = index.checked_sub(self.in_a_row).and_then(|other| usize::try_from(other).ok());
        other.map_or(self.first + index, |other| self.also[other])
    }
}

/// The seeds that are asked for, each once.
fn seeds(arguments: &Arguments) -> Result<Seeds<'_>, Usage> {
    let (first, count) = (arguments.seed, arguments.seeds.min(u64::MAX - arguments.seed));
    let mut run = BTreeSet::new();
    let is_run = |seed: &&u64| (first..first + count).contains(seed) || !run.insert(**seed);
    if let Some(again) = arguments.also.iter().find(is_run) {
        return Err(Usage(format!("--also {again}: that seed is run already")));
    }
    Ok(Seeds { first, in_a_row: count, also: &arguments.also })
}

/// A group has to have room for the liars that are asked for.
fn check_liars(arguments: &Arguments) -> Result<(), Usage> {
    let count = arguments.liars.as_ref().map_or(0, Vec::len);
    let (room, why) = match arguments.faults {
        Some(faults) => (faults.r(), format!("with --faults {},{}", faults.u(), faults.r())),
        None => (LIARS_AT_MOST, "without --faults".to_owned()),
    };
    if count > room {
        return Err(Usage(format!("{why} at most {room} replicas lie, not {count}")));
    }
    Ok(())
}

/// What came of the runs so far.
struct Batch<'a> {
    arguments: &'a Arguments,
    total: SimulationReport,
    violations: u64,
    fingerprints: Option<BufWriter<File>>,
}

impl Batch<'_> {
    fn take(&mut self, result: Result<SimulationReport, Box<Violation>>) {
        match result {
            Ok(report) => self.total.add(&report),
            Err(violation) => {
                self.violations += 1;
                say!("{violation}");
                if self.arguments.shrink {
                    say!("{}", shrunk(&violation, self.arguments.shrink_runs));
                }
                self.arguments.mistake.found();
            }
        }
    }

    fn end(&self, seconds: f64) -> ExitCode {
        let total = &self.total;
        if total.runs > 0 {
            say!("{total}");
            let virtual_seconds = total.virtual_us as f64 / 1e6;
            let times = virtual_seconds / seconds.max(1e-9);
            let busy = total.busy_us as f64 / 1e6 / seconds.max(1e-9);
            let step_us = seconds * 1e6 / total.steps.max(1) as f64;
            say!(
                "speed         {times:.0} times faster than real time ({busy:.0} without idle time): \
                 {seconds:.2} s of processor time, {step_us:.2} us for a step"
            );
            self.warn_of_idlers();
        }
        say!("violations    {}", self.violations);
        let missing = self.arguments.every_fault && self.is_missing_something();
        let kept = self.violations == 0 && !missing;
        if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Batch<'_> {
    /// A line of it that cannot be written is told of when the file is closed.
    fn note_fingerprint(&mut self, seed: u64, result: &Result<SimulationReport, Box<Violation>>) {
        let Some(file) = &mut self.fingerprints else { return };
        let _ = match result {
            Ok(report) => writeln!(file, "{seed} {:016x}", report.fingerprint),
            Err(violation) => {
                let (rule, step) = (violation.rule, violation.step);
                writeln!(file, "{seed} {rule} violated in step {step}")
            }
        };
    }

    fn close_fingerprints(&mut self) -> Result<()> {
        let Some(mut file) = self.fingerprints.take() else { return Ok(()) };
        file.flush().context("cannot write the fingerprints")
    }

    /// Who was asked to lie or attack, and in no run came to it.
    fn warn_of_idlers(&self) {
        let (lies, attacks) = self.total.never_tried();
        let asked = |all: &Option<Vec<Strategy>>, one: &Strategy| {
            all.as_ref().is_some_and(|all| all.contains(one))
        };
        let lies = lies.into_iter().filter(|one| asked(&self.arguments.liars, one));
        let made =
            |one: &Attack| self.arguments.attacks.as_ref().is_some_and(|all| all.contains(one));
        let attacks = attacks.into_iter().filter(made);
        let idle: Vec<&str> = lies.map(Strategy::name).chain(attacks.map(Attack::name)).collect();
        if !idle.is_empty() {
            tell!("asked for, and never done: {}; more steps or seeds may help", idle.join(", "));
        }
    }

    /// Names what never happened in any run.
    fn is_missing_something(&self) -> bool {
        let faults = self.total.never_fired();
        let (lies, attacks) = self.total.never_tried();
        let lies: Vec<&str> = lies.into_iter().map(Strategy::name).collect();
        let attacks: Vec<&str> = attacks.into_iter().map(Attack::name).collect();
        let missing = [
            ("faults that never took effect", names(&faults)),
            ("lies that were never told", lies.join(", ")),
            ("attacks that were never made", attacks.join(", ")),
            ("branches that were never reached", names(&self.total.never_reached())),
        ];
        for (what, missing) in missing.iter().filter(|(_, missing)| !missing.is_empty()) {
            tell!("{what}: {missing}");
        }
        missing.iter().any(|(_, missing)| !missing.is_empty())
    }
}

fn shrunk(violation: &Violation, runs_at_most: u32) -> Shrunk {
    let progress = |runs: u32, smaller: &Violation| {
        let (step, faults) = (smaller.step, smaller.faults);
        tell!("shrinking: after {runs} runs it fails in step {step}, fault event {faults}");
    };
    shrink(violation, runs_at_most, simulate, progress)
}

/// The run of one seed.
fn options(arguments: &Arguments, seed: u64) -> SimulationOptions {
    let less = &arguments.less;
    SimulationOptions {
        seed,
        steps: arguments.steps,
        faults: arguments.faults,
        mode: arguments.mode,
        scheme: arguments.signatures,
        durability: arguments.durability,
        schedule: arguments.schedule,
        state_transfer: arguments.state_transfer,
        liars: arguments.liars.clone(),
        attacks: arguments.attacks.clone(),
        service: match arguments.history {
            Some(_) => Some(ServiceKind::KeyValue),
            None => arguments.service,
        },
        partitions: arguments.partitions.map(|count| count as usize),
        overrides: Overrides {
            rate: arguments.rate,
            clients: less.clients.map(|count| count as usize),
            callers: less.callers.map(|count| count as usize),
            keys: less.keys,
            only: less.only.as_ref().map(|kinds| kinds.iter().copied().collect()),
            without: match (&less.without, &less.without_all_but) {
                (Some(kinds), _) => kinds.iter().copied().collect(),
                (_, Some(kinds)) => Overrides::all_but(kinds),
                (None, None) => BTreeSet::new(),
            },
            skip_faults: less.skip_faults.clone().unwrap_or_default(),
            simpler: less.simpler.iter().copied().collect(),
        },
    }
}

/// Processor time of this process so far, seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn trace(arguments: &Arguments) -> Result<Option<Box<dyn Write>>> {
    let Some(path) = &arguments.trace else { return Ok(None) };
    if path.as_os_str() == "-" {
        return Ok(Some(Box::new(std::io::stdout())));
    }
    Ok(Some(Box::new(created(path)?)))
}

fn created(path: &Path) -> Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// A violation prints its options as a command; that command has to mean the same.
    #[test]
    fn the_printed_command_is_read_as_what_it_was_printed_from() {
        let mut printed = SimulationOptions::new(595, 812);
        printed.faults = Faults::new(2, 1).ok();
        printed.mode = Some(Mode::Safety);
        printed.scheme = Some(Scheme::KeyedHash);
        printed.service = Some(ServiceKind::TupleSpaces);
        printed.liars = Some(Vec::new());
        printed.attacks = Some(Attack::ALL[..2].to_vec());
        printed.overrides = Overrides {
            rate: Some(10),
            clients: Some(1),
            callers: Some(2),
            keys: Some(3),
            only: None,
            without: [FaultKind::Wipe, FaultKind::MessageLoss].into(),
            skip_faults: Numbers::default().and([3, 7, 8, 9]),
            simpler: [Simpler::Network, Simpler::Clocks].into(),
        };
        let mut few = printed.clone();
        few.overrides.without = Overrides::all_but(&[FaultKind::Wipe, FaultKind::Pause]);
        few.overrides.only = Some([FaultKind::Wipe, FaultKind::Pause, FaultKind::BitFlip].into());
        few.service = Some(ServiceKind::Partitions);
        few.partitions = Some(3);
        let mut none = printed.clone();
        none.overrides.without = FaultKind::ALL.into();
        for options in [printed, few, none, SimulationOptions::new(1, 10_000)] {
            let line = options.to_string();
            let words = line.strip_prefix("perdura-lab ").unwrap().split_whitespace();
            let read = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(super::options(&read.arguments, options.seed), options, "{line}");
        }
    }

    #[test]
    fn no_seed_is_run_twice() {
        let seeds = |line: &str| {
            let read = Line::try_parse_from(line.split_whitespace());
            let arguments = read.unwrap_or_else(|error| panic!("{error}")).arguments;
            let seeds = super::seeds(&arguments).ok()?;
            Some((0..seeds.count()).map(|index| seeds.get(index)).collect::<Vec<u64>>())
        };
        let more = seeds("simulate --seed 501 --seeds 3 --also 500,1001,7").unwrap();
        assert_eq!(more, [501, 502, 503, 500, 1001, 7]);
        assert_eq!(seeds("simulate --seed 7 --seeds 3").unwrap(), [7, 8, 9]);
        for again in ["1000", "501", "7,8,7"] {
            let line = format!("simulate --seed 501 --seeds 500 --also {again}");
            assert!(seeds(&line).is_none(), "{again}");
        }
    }
}
