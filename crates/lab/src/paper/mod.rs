//! `perdura-lab paper`: the experiments of the papers that Perdura unifies, each one command, on
//! clusters of its own on this machine.

mod augustus;
mod measure;
mod plot;
mod report;
mod setting;
mod timeline;

use crate::replicas;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use measure::Curve;
use perdura_cli::bench::live::Live;
use perdura_cli::bench::{parse_seconds, parse_value_size};
use perdura_cli::connect::parse_duration;
use perdura_cli::init::{Bounds, ServiceName};
use perdura_cli::say;
use setting::{SETTINGS, Setting};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Every round starts a new cluster for each setting in a directory in --work, writes --keys keys, \
measures with each number of callers, then kills and removes it. Prints medians over the rounds, and \
writes them with all rounds to OUT/NAME.json, and as a picture to OUT/NAME.svg (with tuples, NAME-tuples).

Settings: none, async and sync on the disk that is there; sync-ssd and sync-disk on simulated devices, the \
paper's. Put --work on the disk that is to be measured, and not in memory.";

const AFTER_HELP_OVER_TIME: &str = "\
For each schedule (and, in dura-fig11, each way of transfer) a new cluster is made in a directory in --work and loaded with a state of --state-mb. Then \
writes are due at fixed times, and latency counts from those. Prints, and writes to OUT/NAME.json and \
OUT/NAME.svg, how many writes ended in each window of 100 ms, and the 99th percentile of their latency, of \
those that were in flight while a checkpoint was stored (dura-fig10) or the replica was away (dura-fig11), and \
of the others; after that, medians over the rounds. In dura-fig11 a follower is killed (kill -9) after 15% of the run, its checkpoints are removed, \
and it is started again; it is back when it says that it is active. A state of 1 GB takes some 12 GB of \
memory in a group of four.";

const AFTER_HELP_AUGUSTUS: &str = "\
Starts the servers of a store over so many partitions in a directory in --work, writes its entries, and measures \
with callers that each have one transaction in flight; then kills and removes it. Prints a row for each \
setting, medians over the rounds, and writes them with all rounds to OUT/NAME.json, and as a picture to \
OUT/NAME.svg. CPU is user and system time of all servers for each committed transaction; \"signed\" and \"verified\" are signatures \
of votes for each. What is compared (\"of base\") is local transactions, or no liars, of the same run. \
All servers share this machine: transactions in a second say nothing about what more machines would carry. \
Put --work on the disk that is to be measured, and not in memory.";

/// Repeats an experiment of a paper, on clusters of its own on this machine.
#[derive(Args)]
pub struct Arguments {
    /// The program whose replicas are measured [default: `perdura` beside this program]
    #[arg(long, value_name = "FILE", global = true)]
    perdura: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Dura-SMaRt (USENIX ATC 2013), table 1: what logging costs
    #[command(after_help = AFTER_HELP)]
    DuraTable1(PaperOptions),
    /// Dura-SMaRt (USENIX ATC 2013), figure 9: latency against throughput
    #[command(name = "dura-fig9", after_help = AFTER_HELP)]
    DuraFig9(PaperOptions),
    /// Dura-SMaRt, figures 2 and 10: writes over time while checkpoints are stored
    #[command(name = "dura-fig10", after_help = AFTER_HELP_OVER_TIME)]
    DuraFig10(timeline::TimelineOptions),
    /// Dura-SMaRt, figure 11: writes over time while a replica takes the state over from others
    #[command(name = "dura-fig11", after_help = AFTER_HELP_OVER_TIME)]
    DuraFig11(timeline::RecoveryOptions),
    /// Augustus (EuroSys 2013), figures 3 and 4: transactions over partitions beside those of one
    #[command(name = "augustus-fig3-4", after_help = AFTER_HELP_AUGUSTUS)]
    AugustusFig3And4(augustus::Mixes),
    /// Augustus, table 4: aborts
    #[command(after_help = AFTER_HELP_AUGUSTUS)]
    AugustusTable4(augustus::Mixes),
    /// Augustus, figure 5: clients that never finish what they prepare
    #[command(name = "augustus-fig5", after_help = AFTER_HELP_AUGUSTUS)]
    AugustusFig5(augustus::Byzantine),
    /// Augustus, section 3.3: inserts beside range reads, with intervals and with one structural lock for each partition
    #[command(after_help = AFTER_HELP_AUGUSTUS)]
    AugustusLocks(augustus::Locks),
}

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Table 1.
    DuraTable1,
    /// Figure 9.
    DuraFig9,
}

impl Experiment {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::DuraTable1 => "dura-table1",
            Experiment::DuraFig9 => "dura-fig9",
        }
    }

    /// With how many callers it is measured if nothing is said.
    fn callers(self) -> &'static [u32] {
        match self {
            Experiment::DuraTable1 => &[1, 256],
            Experiment::DuraFig9 => &[1, 4, 16, 64, 256],
        }
    }
}

/// How it is measured.
#[derive(Args)]
pub struct PaperOptions {
    #[command(flatten)]
    bounds: Bounds,
    /// Settings to measure, as below [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = Setting::parse)]
    settings: Vec<Setting>,
    /// Numbers of callers, each with one write in flight [default: 1,256 for dura-table1,
    /// 1,4,16,64,256 for dura-fig9]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    callers: Vec<u32>,
    /// What is written: values, or with `tuples` tuples of four texts, each inserted once (figure 9(b))
    #[arg(long, value_enum, default_value_t = ServiceName::Kv)]
    service: ServiceName,
    /// Bytes of a value, up to 1 MiB, or of a tuple, up to 512 KiB [default: 4096, of a tuple 1000]
    #[arg(long, value_name = "B", value_parser = parse_value_size)]
    value_size: Option<u32>,
    /// Number of keys; tuples have none
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// Seconds to measure in each run
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Seconds of writes before, with the most callers, that are not measured [default: none]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    warm_up: Option<f64>,
    /// Rounds over all settings
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// A write that takes longer counts as an error
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Where the clusters' directories are made, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    work: PathBuf,
    /// Where the results are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

impl PaperOptions {
    fn value_size(&self) -> u32 {
        self.value_size.unwrap_or(match self.service {
            ServiceName::Kv => 4096,
            ServiceName::Tuples => 1000,
        })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let program = replicas::program(arguments.perdura.as_deref())?;
    match &arguments.command {
        Command::DuraTable1(options) => compare(Experiment::DuraTable1, program, options),
        Command::DuraFig9(options) => compare(Experiment::DuraFig9, program, options),
        Command::DuraFig10(options) => timeline::checkpoints(program, options),
        Command::DuraFig11(options) => timeline::recovery(program, options),
        Command::AugustusFig3And4(options) => {
            augustus::mixes(augustus::Experiment::Fig3And4, program, options)
        }
        Command::AugustusTable4(options) => {
            augustus::mixes(augustus::Experiment::Table4, program, options)
        }
        Command::AugustusFig5(options) => augustus::byzantine(program, options),
        Command::AugustusLocks(options) => augustus::locks(program, options),
    }
}

/// Measures all settings.
fn compare(experiment: Experiment, program: PathBuf, options: &PaperOptions) -> Result<ExitCode> {
    let faults = options.bounds.faults()?;
    let settings =
        if options.settings.is_empty() { SETTINGS.to_vec() } else { options.settings.clone() };
    let callers = match options.callers.as_slice() {
        [] => experiment.callers(),
        callers => callers,
    };
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let curves = measure::measure(&Live::new(program)?, faults, &settings, callers, options)?;
    let what = match options.service {
        ServiceName::Kv => "writes",
        ServiceName::Tuples => "tuple inserts",
    };
    let title = format!(
        "{}: {} B {}, n = {} (u = {}, r = {})",
        experiment.name(),
        options.value_size(),
        what,
        faults.n(),
        faults.u(),
        faults.r()
    );
    say!("{title}, medians of {} rounds of {} s", options.rounds, options.seconds);
    say!("{}", report::table(&curves));
    say!("{}", report::summary(options.service.kind(), &curves));
    let json = report::json(experiment, faults, options, &curves);
    write(experiment, options, "json", &format!("{json:#}\n"))?;
    write(experiment, options, "svg", &picture(experiment, &title, &curves)?)?;
    Ok(ExitCode::SUCCESS)
}

fn picture(experiment: Experiment, title: &str, curves: &[Curve]) -> Result<String> {
    match experiment {
        Experiment::DuraTable1 => plot::bars(title, curves),
        Experiment::DuraFig9 => plot::lines(title, curves),
    }
}

fn write(experiment: Experiment, options: &PaperOptions, kind: &str, text: &str) -> Result<()> {
    let of = match options.service {
        ServiceName::Kv => "",
        ServiceName::Tuples => "-tuples",
    };
    write_text(&format!("{}{of}", experiment.name()), &options.out, kind, text)
}

/// Writes `NAME.KIND`, and says so.
fn write_text(name: &str, out: &Path, kind: &str, text: &str) -> Result<()> {
    let path = out.join(format!("{name}.{kind}"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    say!("{}", path.display());
    Ok(())
}
