//! Experiments over time: what clients see, in windows of 100 ms, while checkpoints are stored
//! (figures 2 and 10) and while a replica takes the state over from others (figure 11).

mod checkpoints;
mod plot;
mod report;
mod run;

use anyhow::{Context, Result};
use clap::Args;
use perdura_cli::bench::live::Live;
use perdura_cli::bench::{parse_rate, parse_seconds, parse_value_size};
use perdura_cli::connect::parse_duration;
use perdura_cli::init::{Bounds, ScheduleName};
use perdura_cli::say;
use perdura_cli::tell;
use perdura_replica::node::StateTransfer;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Width of a window, seconds.
pub const WINDOW_S: f64 = 0.1;

/// Over so many seconds a shortfall is no moment any more but a loss of throughput.
pub const SPAN_S: f64 = 5.0;

/// What happens meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// Checkpoints are stored.
    Checkpoints,
    /// A follower is killed, loses its checkpoints, and starts again.
    Recovery,
}

impl Scene {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scene::Checkpoints => "dura-fig10",
            Scene::Recovery => "dura-fig11",
        }
    }

    /// Load, percent of the peak, if nothing is said.
    fn load(self) -> u32 {
        match self {
            Scene::Checkpoints => 50,
            Scene::Recovery => 70,
        }
    }

    /// Where in the paper.
    pub fn figure(self) -> &'static str {
        match self {
            Scene::Checkpoints => "figures 2 and 10",
            Scene::Recovery => "figure 11",
        }
    }
}

/// How it is measured.
#[derive(Args)]
pub struct TimelineOptions {
    #[command(flatten)]
    pub bounds: Bounds,
    /// Size of the state, MB (of 10^6 bytes); the paper has 500 and 1000
    #[arg(long, value_name = "MB", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub state_mb: u64,
    /// Load, percent of the peak that is measured first [default: 50 for dura-fig10, 70 for dura-fig11]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub load: Option<u32>,
    /// Load, writes in a second; then no peak is measured
    #[arg(long, value_name = "R", value_parser = parse_rate, conflicts_with = "load")]
    pub rate: Option<f64>,
    /// Schedules of checkpoints to compare [default: sequential and coordinated for dura-fig10,
    /// sequential for dura-fig11]
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub schedules: Vec<ScheduleName>,
    /// A replica's checkpoint is due after this much data, MiB [default: four fifths of the state, as
    /// in the paper, which has 200,000 writes of 4 kB and 1 GB]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub checkpoint_mib: Option<u64>,
    /// Bytes of a value, up to 1 MiB
    #[arg(long, value_name = "B", default_value_t = 4096, value_parser = parse_value_size)]
    pub value_size: u32,
    /// Seconds to measure in each run
    #[arg(long, value_name = "S", default_value_t = 180.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Seconds of writes before, as many as the group takes, that are not measured: a replica's memory
    /// grows for a minute or so before it is reused [default: none]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub warm_up: Option<f64>,
    /// Rounds over all that is compared; medians are over these
    #[arg(long, visible_alias = "runs", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// A write that takes longer counts as an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Where the clusters' directories are made, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub work: PathBuf,
    /// Where the results are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

/// How it is measured while a replica takes the state over.
#[derive(Args)]
pub struct RecoveryOptions {
    #[command(flatten)]
    options: TimelineOptions,
    /// Ways of transfer to compare: collaborative, single-sender [default: both]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_transfer)]
    transfers: Vec<StateTransfer>,
}

fn parse_transfer(name: &str) -> Result<StateTransfer, String> {
    let names = StateTransfer::ALL.map(StateTransfer::name).join(", ");
    StateTransfer::parse(name).ok_or_else(|| format!("give some of {names}"))
}

/// What is compared with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    pub schedule: ScheduleName,
    pub transfer: StateTransfer,
}

impl Variant {
    /// As in tables and pictures.
    pub fn name(self, scene: Scene) -> String {
        let schedule = self.schedule.name();
        match scene {
            Scene::Checkpoints => schedule,
            Scene::Recovery => format!("{schedule}, {}", self.transfer.name()),
        }
    }
}

impl TimelineOptions {
    /// After how much data a replica's checkpoint is due.
    fn checkpoint_mib(&self) -> u64 {
        const MIB: u64 = 1024 * 1024;
        let of_state = (self.state_mb * 1_000_000 * 4 / 5).div_ceil(MIB);
        self.checkpoint_mib.unwrap_or(of_state)
    }

    fn schedules(&self, scene: Scene) -> Vec<ScheduleName> {
        match (self.schedules.as_slice(), scene) {
            ([], Scene::Checkpoints) => vec![ScheduleName::Sequential, ScheduleName::Coordinated],
            ([], Scene::Recovery) => vec![ScheduleName::Sequential],
            (given, _) => given.to_vec(),
        }
    }

    fn variants(&self, scene: Scene, transfers: &[StateTransfer]) -> Vec<Variant> {
        let schedules = self.schedules(scene).into_iter();
        let of = |schedule| transfers.iter().map(move |transfer| (schedule, *transfer));
        let pairs = schedules.flat_map(of);
        pairs.map(|(schedule, transfer)| Variant { schedule, transfer }).collect()
    }

    /// Keys of such values that make a state of this size: 16 bytes each, and what the store counts
    /// for an entry.
    fn keys(&self) -> u64 {
        let entry =
            16 + u64::from(self.value_size) + perdura_store::limits::ENTRY_OVERHEAD_BYTES as u64;
        (self.state_mb * 1_000_000 / entry).max(1)
    }
}

/// What clients see while checkpoints are stored.
pub fn checkpoints(program: PathBuf, options: &TimelineOptions) -> Result<ExitCode> {
    run(Scene::Checkpoints, program, options, &[StateTransfer::default()])
}

/// What clients see while a replica takes the state over.
pub fn recovery(program: PathBuf, options: &RecoveryOptions) -> Result<ExitCode> {
    let transfers = match options.transfers.as_slice() {
        [] => &StateTransfer::ALL,
        given => given,
    };
    run(Scene::Recovery, program, &options.options, transfers)
}

fn run(
    scene: Scene,
    program: PathBuf,
    options: &TimelineOptions,
    transfers: &[StateTransfer],
) -> Result<ExitCode> {
    let faults = options.bounds.faults()?;
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let live = Live::new(program)?;
    let mut courses = Vec::new();
    let mut rate = options.rate;
    for round in 1..=options.rounds {
        for variant in options.variants(scene, transfers) {
            let course = run::run(&live, scene, faults, variant, rate, options)?;
            // The same load for all.
            rate = Some(course.offered_ops_s);
            tell!("  {}", report::line(scene, round, &course));
            courses.push((round, course));
        }
    }
    let title = format!(
        "{}: state of {} MB, {} B writes, n = {} (u = {}, r = {})",
        scene.name(),
        options.state_mb,
        options.value_size,
        faults.n(),
        faults.u(),
        faults.r()
    );
    say!("{title}, {} s", options.seconds);
    say!("{}", report::table(scene, &courses));
    say!("medians of {} rounds", options.rounds);
    say!("{}", report::medians_table(scene, &courses));
    let json = report::json(scene, faults, options, &courses);
    write(scene, options, "json", &format!("{json}\n"))?;
    write(scene, options, "svg", &plot::picture(scene, &title, &courses)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write(scene: Scene, options: &TimelineOptions, kind: &str, text: &str) -> Result<()> {
    let path = options.out.join(format!("{}.{kind}", scene.name()));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    say!("{}", path.display());
    Ok(())
}
