//! The race: all systems in turn, round by round, each started anew.

use super::chart;
use super::load::{Level, Load, Measured, Target, Workload, measure};
use super::loading::{Loading, load};
use super::machine::Machine;
use super::report::{Point, RacePoint, RaceReport, Settings};
use super::social::{Social, ZIPF_SIZE};
use super::systems::{ALL, Programs, Running, SystemKind, version};
use super::{directory, tell};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Race Buzzer on Perdura against Retwis on Redis
///
/// Each round starts each system anew, one after the other: once with accounts alone, for posts and follows, and once with the whole social network, for timelines
/// and the mix. Medians over rounds are printed as tables, and written with all figures and settings as JSON, Markdown and SVG.
#[derive(Args)]
pub struct Race {
    #[command(flatten)]
    programs: Programs,
    /// Which systems race
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = ALL)]
    systems: Vec<SystemKind>,
    /// Where the load is put on
    #[arg(
        long,
        value_name = "LEVEL,...",
        value_delimiter = ',',
        value_enum,
        default_value = "api,http"
    )]
    levels: Vec<Level>,
    /// Which loads
    #[arg(
        long,
        value_name = "LOAD,...",
        value_delimiter = ',',
        value_enum,
        default_value = "post,follow,timeline,mix"
    )]
    loads: Vec<Workload>,
    #[command(flatten)]
    size: Size,
    /// Callers, each of which calls again as soon as it has an answer
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Seconds before each, that do not count
    #[arg(long, value_name = "S", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    warm_up: u64,
    /// Rounds over all systems
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Where results go, and data while it runs: on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = "target/bench-buzzer")]
    out: PathBuf,
}

/// The social network's size.
#[derive(Args, Clone, Copy, Debug)]
pub struct Size {
    /// Users
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(i64::from(ZIPF_SIZE) + 2..=10_000_000))]
    pub users: u32,
    /// Posts of each user that are there before timelines are looked at
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub posts: u64,
    /// Characters of a post
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = characters)]
    pub characters: usize,
    /// Users who are logged in, over HTTP: those who call
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: u32,
    /// What all chance is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

fn characters(text: &str) -> Result<usize, String> {
    let fits = |count: &usize| (20..=perdura_buzzer::network::TEXT_MOST).contains(count);
    text.parse().ok().filter(fits).ok_or_else(|| "a number from 20 to 280".to_owned())
}

impl Size {
    /// What is loaded.
    #[must_use]
    pub fn loading(&self, relations: bool) -> Loading {
        Loading { relations, posts: self.posts, characters: self.characters }
    }

    /// Who is there.
    #[must_use]
    pub fn social(&self, relations: bool) -> Arc<Social> {
        Arc::new(match relations {
            true => Social::by_zipf(self.users, self.seed),
            false => Social::strangers(self.users),
        })
    }
}

impl Race {
    fn settings(&self) -> Result<Settings> {
        let programs = &self.programs;
        let mut versions = BTreeMap::new();
        if self.systems.iter().any(|system| system.is_perdura()) {
            versions.insert("perdura".to_owned(), version(&programs.perdura, None)?);
        }
        if let Some(redis) = &programs.redis_server {
            let redis = version(redis, programs.redis_libraries.as_deref())?;
            versions.insert("redis".to_owned(), redis);
        }
        let setting = |system: &SystemKind| (system.name(), system.setting(programs));
        let Size { users, posts, characters, sessions, seed } = self.size;
        Ok(Settings {
            machine: Machine::here(&self.out)?,
            versions,
            systems: self.systems.iter().map(setting).collect(),
            users,
            posts,
            characters,
            sessions,
            callers: self.callers.clone(),
            seconds: self.seconds as f64,
            warm_up_seconds: self.warm_up as f64,
            rounds: self.rounds,
            seed,
            timeout_ms: programs.timeout_ms,
            redis_connections: programs.redis_connections,
            own_servers: programs.own_servers,
        })
    }

    /// The points of one system in one round, of loads that need the whole network or of those that do not.
    async fn points(&self, system: SystemKind, relations: bool, round: u32) -> Result<Vec<Point>> {
        let loads = self.loads.iter().filter(|load| load.needs_relations() == relations);
        let loads: Vec<Workload> = loads.copied().collect();
        if loads.is_empty() {
            return Ok(Vec::new());
        }
        let mut running = Running::start(system, &self.programs, &self.out).await?;
        let social = self.size.social(relations);
        let store = running.open().await?;
        load(&*store, &social, self.size.loading(relations)).await?;
        store.network().close().await;
        running.settle().await?;
        let mut targets = Vec::new();
        for level in &self.levels {
            targets.push(Target::open(&running, *level, &social, self.size.sessions).await?);
        }
        let mut points = Vec::new();
        for workload in loads {
            for target in &mut targets {
                for callers in &self.callers {
                    let (level, callers) = (target.level, *callers);
                    let place = RacePoint { system, level, workload, callers };
                    let measured = self.measure(target, &social, place, &running).await?;
                    running.check()?;
                    target.check()?;
                    points.push(Point { round, place, measured });
                }
            }
        }
        for target in targets {
            target.close().await;
        }
        Ok(points)
    }

    async fn measure(
        &self,
        target: &Target,
        social: &Arc<Social>,
        place: RacePoint,
        running: &Running,
    ) -> Result<Measured> {
        let RacePoint { system, level, workload, callers } = place;
        let (characters, seed) = (self.size.characters, self.size.seed);
        let load = Load { workload, callers, characters, seed };
        let times = (Duration::from_secs(self.warm_up), Duration::from_secs(self.seconds));
        let at =
            format!("{}, {}, {}, {callers} callers", system.label(), level.name(), workload.name());
        let measured = measure(target, social, &load, &running.processes(), times).await;
        let measured = measured.with_context(|| at.clone())?;
        let Measured { calls_s, store_cpu_us, .. } = measured;
        tell(format_args!("{at}: {calls_s:.0} calls/s, {store_cpu_us:.0} us of the store's CPU"));
        Ok(measured)
    }
}

/// Each file is replaced as a whole.
fn replace(out: &Path, name: &str, content: &str) -> Result<()> {
    let new = out.join(format!(".{name}.new"));
    std::fs::write(&new, content).with_context(|| format!("cannot write {}", new.display()))?;
    Ok(std::fs::rename(new, out.join(name))?)
}

fn write(report: &RaceReport, out: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(&report.json())?;
    replace(out, "bench-buzzer.json", &(json + "\n"))?;
    replace(out, "bench-buzzer.md", &report.table())?;
    for level in [Level::Api, Level::Http] {
        for callers in &report.settings.callers {
            if let Some(svg) = chart::draw(report, level, *callers)? {
                replace(out, &format!("bench-buzzer-{}-{callers}.svg", level.name()), &svg)?;
            }
        }
    }
    Ok(())
}

/// Carries it out.
pub async fn run(mut race: Race) -> Result<()> {
    let needs_redis = race.systems.iter().any(|system| !system.is_perdura());
    ensure!(
        !needs_redis || race.programs.redis_server.is_some(),
        "Redis races, and there is no --redis-server; scripts/bench-buzzer installs one, or leave Redis out with --systems"
    );
    let (out, _locked) = directory(&race.out)?;
    race.out = out;
    let mut report = RaceReport { settings: race.settings()?, points: Vec::new() };
    println!("{}", report.settings.machine.line());
    for round in 1..=race.rounds {
        tell(format_args!("round {round} of {}", race.rounds));
        let mut systems = race.systems.clone();
        let first = (round as usize - 1) % systems.len().max(1);
        systems.rotate_left(first);
        for system in systems {
            for relations in [false, true] {
                report.points.extend(race.points(system, relations, round).await?);
            }
            // In the order in which systems were named, whoever began.
            let place =
                |point: &Point| race.systems.iter().position(|one| *one == point.place.system);
            report.points.sort_by_key(|point| (point.round, place(point)));
            write(&report, &race.out)?;
        }
    }
    println!("{}", report.table());
    println!("wrote bench-buzzer.json, bench-buzzer.md and pictures into {}", race.out.display());
    let failed = report.failed();
    ensure!(failed == 0, "{failed} calls failed on Perdura");
    Ok(())
}
