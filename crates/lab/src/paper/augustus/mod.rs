//! The experiments of Augustus (EuroSys 2013, section 4.3), on stores over partitions that are real processes.
//!
//! All servers share this machine, so that their number shows in throughput only as load. What shows what a transaction over
//! partitions takes is processor time and signatures for each, beside those of transactions of one partition in the same run.

mod liar;
mod plot;
mod report;
mod run;
mod servers;
mod store;
mod workload;

use super::write_text;
use anyhow::{Result, ensure};
use clap::Args;
use liar::Liars;
use perdura_cli::bench::live::Live;
use perdura_cli::bench::parse_seconds;
use perdura_cli::connect::{parse_duration, runtime};
use perdura_cli::init::Bounds;
use perdura_cli::{process, say, tell};
use perdura_protocol::Faults;
use perdura_protocol::partitions::Distribution;
use perdura_store::Transaction;
use run::{Demand, Figures, measure};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use store::{Store, Wanted};
use workload::{Draw, KINDS, Ranges, TransactionKind};

/// What all of them are told.
#[derive(Args)]
pub struct Common {
    #[command(flatten)]
    bounds: Bounds,
    /// As the paper has it: all mixes, 1 to 8 partitions, its number of keys, three rounds of 10 s; takes hours, and 12 GB for B and D
    #[arg(long)]
    full: bool,
    /// Entries of the store [default: 300000, of 1 kB 50000; with --full 3000000, of 1 kB 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    keys: Option<u64>,
    /// Callers for each partition, each with one transaction in flight [default: 256, in augustus-fig5 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    callers: Option<u32>,
    /// Seconds that are measured of each run [default: 3, with --full 10]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Seconds of each before, with the same callers [default: 1, with --full 3, in augustus-fig5 5]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    warm_up: Option<f64>,
    /// Rounds over all [default: 1, with --full 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// A transaction that takes longer is an error
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Where the clusters' directories are made, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    work: PathBuf,
    /// Where the results are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

impl Common {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.full { 3 } else { 1 })
    }

    fn keys(&self, kind: &TransactionKind) -> u64 {
        let few = if kind.value_size > 4 { 50_000 } else { 300_000 };
        self.keys.unwrap_or(if self.full { kind.keys } else { few })
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.full { 10.0 } else { 3.0 })
    }

    fn demand(
        &self,
        callers: u32,
        warm_up: f64,
        next: impl Fn() -> Transaction + 'static,
    ) -> Demand {
        Demand {
            callers,
            warm_up: self.warm_up.unwrap_or(warm_up),
            seconds: self.seconds(),
            timeout: self.timeout,
            next: Rc::new(next),
        }
    }

    fn usual_warm_up(&self) -> f64 {
        if self.full { 3.0 } else { 1.0 }
    }

    fn wanted(&self, partitions: u16, distribution: Distribution) -> Result<Wanted<'_>> {
        Ok(Wanted { work: &self.work, faults: self.bounds.faults()?, partitions, distribution })
    }
}

/// Figures 3 and 4, and table 4.
#[derive(Args)]
pub struct Mixes {
    #[command(flatten)]
    common: Common,
    /// Rows of the paper's table 3 [default: A,B,C,D, in augustus-table4 A,B]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = TransactionKind::parse)]
    workloads: Vec<TransactionKind>,
    /// Numbers of partitions [default: 1,2,4, with --full 1,2,4,8; in augustus-table4 without 1]
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: Vec<u16>,
    /// Of 100 transactions so many are over two partitions [default: 0,20,100, with --full 0,1,10,20,40,60,80,100]
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=100))]
    global: Vec<u8>,
}

/// Figure 5.
#[derive(Args)]
pub struct Byzantine {
    #[command(flatten)]
    common: Common,
    /// Rows of the paper's table 3
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "A,C", value_parser = TransactionKind::parse)]
    workloads: Vec<TransactionKind>,
    /// Partitions, at least 2
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    partitions: u16,
    /// Of 100 transactions of correct clients so many are over two partitions
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "20,100", value_parser = clap::value_parser!(u8).range(0..=100))]
    global: Vec<u8>,
    /// Of 100 clients so many never finish what they prepare; the first number is compared with
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "0,8,16,24,32", value_parser = clap::value_parser!(u8).range(0..=90))]
    liars: Vec<u8>,
}

/// Intervals beside one structural lock.
#[derive(Args)]
pub struct Locks {
    #[command(flatten)]
    common: Common,
    /// Numbers of partitions, at least 2 [default: 2, with --full 2,4,8]
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(2..=64))]
    partitions: Vec<u16>,
}

/// A setting, and what came out.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// A to D, or a way to lock.
    pub workload: &'static str,
    /// How many.
    pub partitions: u16,
    /// Transactions over two partitions, in a hundred.
    pub global: u8,
    /// Clients that do not finish, in a hundred.
    pub liars: u8,
    /// In each round.
    pub rounds: Vec<Figures>,
}

/// All points so far.
#[derive(Default)]
struct Points(Vec<Point>);

impl Points {
    fn add(&mut self, point: Point) {
        let is_same = |one: &&mut Point| {
            (one.workload, one.partitions, one.global, one.liars)
                == (point.workload, point.partitions, point.global, point.liars)
        };
        let round = point.rounds.last();
        let figure = |name: &str| round.and_then(|all| all.get(name)).copied().unwrap_or(0.0);
        tell!(
            "  {}, {} partitions, {}% global, {}% liars: {:.0} txn/s, {:.0} us of servers each, p99 {:.1} ms, {:.2}% aborts",
            point.workload,
            point.partitions,
            point.global,
            point.liars,
            figure("committed_s"),
            figure("server_cpu_us_per_txn"),
            figure("p99_ms"),
            figure("aborts_percent")
        );
        match self.0.iter_mut().find(is_same) {
            Some(known) => known.rounds.extend(point.rounds),
            None => self.0.push(point),
        }
    }
}

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Figures 3 and 4.
    Fig3And4,
    /// Table 4.
    Table4,
    /// Figure 5.
    Fig5,
    /// Section 3.3's structural lock.
    Locks,
}

impl Experiment {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Fig3And4 => "augustus-fig3-4",
            Experiment::Table4 => "augustus-table4",
            Experiment::Fig5 => "augustus-fig5",
            Experiment::Locks => "augustus-locks",
        }
    }
}

fn or<T: Clone>(given: &[T], default: &[T]) -> Vec<T> {
    if given.is_empty() { default.to_vec() } else { given.to_vec() }
}

/// Figures 3 and 4, or table 4.
pub fn mixes(experiment: Experiment, program: PathBuf, options: &Mixes) -> Result<ExitCode> {
    let common = &options.common;
    let is_table = experiment == Experiment::Table4;
    let kinds = or(&options.workloads, if is_table { &KINDS[..2] } else { &KINDS });
    let partitions = match (common.full, is_table) {
        (true, true) => &[2, 4, 8][..],
        (true, false) => &[1, 2, 4, 8],
        (false, true) => &[2, 4],
        (false, false) => &[1, 2, 4],
    };
    let global: &[u8] = match (common.full, is_table) {
        (true, true) => &[20, 40, 60, 80, 100],
        (true, false) => &[0, 1, 10, 20, 40, 60, 80, 100],
        (false, true) => &[20, 100],
        (false, false) => &[0, 20, 100],
    };
    let (partitions, global) = (or(&options.partitions, partitions), or(&options.global, global));
    let body = async |live: Live| {
        let mut points = Points::default();
        for round in 1..=common.rounds() {
            for &count in &partitions {
                for of in of_a_store(&kinds) {
                    tell!("round {round} of {}: {count} partitions", common.rounds());
                    let wanted = common.wanted(count, Distribution::Hash)?;
                    let (store, draw) = loaded(&live, &wanted, &of, common).await?;
                    // One partition has nothing that is global.
                    let mixes = global.iter().filter(|percent| count > 1 || **percent == 0);
                    for (kind, percent) in
                        of.iter().flat_map(|kind| mixes.clone().map(move |mix| (*kind, *mix)))
                    {
                        let draw = Rc::clone(&draw);
                        let callers = u32::from(count) * common.callers.unwrap_or(256);
                        let next = move || draw.transaction(&kind, percent);
                        let demand = common.demand(callers, common.usual_warm_up(), next);
                        let figures = measure(&store, &demand, None).await?;
                        points.add(Point {
                            workload: kind.name,
                            partitions: count,
                            global: percent,
                            liars: 0,
                            rounds: vec![figures],
                        });
                    }
                    store.close().await;
                }
            }
        }
        Ok(points)
    };
    conclude(experiment, program, common, body)
}

/// Workloads that have the same entries, together.
fn of_a_store(kinds: &[TransactionKind]) -> Vec<Vec<TransactionKind>> {
    let mut all: Vec<Vec<TransactionKind>> = Vec::new();
    for kind in kinds {
        match all.iter_mut().find(|of| of[0].value_size == kind.value_size) {
            Some(of) => of.push(*kind),
            None => all.push(vec![*kind]),
        }
    }
    all
}

/// A store with the entries of these workloads.
async fn loaded(
    live: &Live,
    wanted: &Wanted<'_>,
    of: &[TransactionKind],
    common: &Common,
) -> Result<(Store, Rc<Draw>)> {
    let kind = of[0];
    let store = Store::start(live, wanted).await?;
    let draw = Rc::new(Draw::new(store.map().map(|map| &**map), common.keys(&kind))?);
    let loads = draw.loads(kind.value_size);
    let of = Rc::clone(&draw);
    store.load(loads.len(), move |number| of.load(&loads[number], kind.value_size)).await?;
    Ok((store, draw))
}

/// Figure 5.
pub fn byzantine(program: PathBuf, options: &Byzantine) -> Result<ExitCode> {
    let common = &options.common;
    let body = async |live: Live| {
        let mut points = Points::default();
        for round in 1..=common.rounds() {
            for of in of_a_store(&options.workloads) {
                tell!("round {round} of {}: loading", common.rounds());
                let wanted = common.wanted(options.partitions, Distribution::Hash)?;
                let (mut store, draw) = loaded(&live, &wanted, &of, common).await?;
                let all = u32::from(options.partitions) * common.callers.unwrap_or(80);
                store.give_keys(all as usize).await?;
                for (number, (kind, percent)) in of
                    .iter()
                    .flat_map(|kind| options.global.iter().map(move |mix| (*kind, *mix)))
                    .enumerate()
                {
                    for &liars in &options.liars {
                        let lying = all * u32::from(liars) / 100;
                        let name = format!("liar-{number}-{liars}");
                        let keys = store.register(&name, lying as usize).await?;
                        let clients = keys.iter().map(|key| store.connect(key));
                        let clients = clients.collect::<Result<Vec<_>>>()?;
                        let of = Rc::clone(&draw);
                        let next: Rc<dyn Fn() -> Transaction> =
                            Rc::new(move || of.transaction(&kind, 100));
                        let of = Rc::clone(&draw);
                        let demand =
                            common.demand(all - lying, 5.0, move || of.transaction(&kind, percent));
                        let figures =
                            measure(&store, &demand, Some(Liars { clients, next })).await?;
                        points.add(Point {
                            workload: kind.name,
                            partitions: options.partitions,
                            global: percent,
                            liars,
                            rounds: vec![figures],
                        });
                    }
                }
                store.close().await;
            }
        }
        Ok(points)
    };
    conclude(Experiment::Fig5, program, common, body)
}

/// Intervals beside one structural lock for each partition.
pub fn locks(program: PathBuf, options: &Locks) -> Result<ExitCode> {
    let common = &options.common;
    let partitions = or(&options.partitions, if common.full { &[2, 4, 8] } else { &[2] });
    let body = async |live: Live| {
        let mut points = Points::default();
        for round in 1..=common.rounds() {
            for &count in &partitions {
                tell!("round {round} of {}: {count} partitions", common.rounds());
                let wanted = common.wanted(count, Ranges::distribution(count))?;
                let store = Store::start(&live, &wanted).await?;
                let ranges = Rc::new(Ranges::new(count)?);
                let of = Rc::clone(&ranges);
                let each = common.keys(&KINDS[0]) / u64::from(count);
                store.load(ranges.loads(each), move |number| of.load(number)).await?;
                for (name, structural) in [("intervals", false), ("structural", true)] {
                    let of = Rc::clone(&ranges);
                    let callers = u32::from(count) * common.callers.unwrap_or(256);
                    let next = move || of.transaction(structural);
                    let demand = common.demand(callers, common.usual_warm_up(), next);
                    let figures = measure(&store, &demand, None).await?;
                    points.add(Point {
                        workload: name,
                        partitions: count,
                        global: 100,
                        liars: 0,
                        rounds: vec![figures],
                    });
                }
                store.close().await;
            }
        }
        Ok(points)
    };
    conclude(Experiment::Locks, program, common, body)
}

/// Runs it, and tells what came out.
fn conclude(
    experiment: Experiment,
    program: PathBuf,
    common: &Common,
    body: impl AsyncFnOnce(Live) -> Result<Points>,
) -> Result<ExitCode> {
    let faults: Faults = common.bounds.faults()?;
    std::fs::create_dir_all(&common.out)?;
    process::raise_file_limit();
    let live = Live::new(program)?;
    let Points(points) = runtime()?.block_on(tokio::task::LocalSet::new().run_until(body(live)))?;
    ensure!(!points.is_empty(), "there is nothing to measure");
    let title = report::title(experiment, common);
    say!("{title}");
    say!("{}", report::table(experiment, &points));
    let json = report::json(experiment, faults, common, &points);
    write_text(experiment.name(), &common.out, "json", &format!("{json:#}\n"))?;
    write_text(
        experiment.name(),
        &common.out,
        "svg",
        &plot::picture(experiment, &title, &points)?,
    )?;
    Ok(ExitCode::SUCCESS)
}
