//! `perdura init`: the files of a new cluster.

use crate::ending::tell_in_time;
use crate::local::ChildKind;
use crate::partitions::{self, New, Partitioning};
use crate::{Usage, steps};
use anyhow::Result;
use clap::{Args, ValueEnum};
use perdura_cluster::ServiceKind;
use perdura_cluster::config::Cluster;
use perdura_cluster::create::{self, Place, PlacesError};
use perdura_protocol::Faults;
use perdura_protocol::configuration::{CHECKPOINT_MS, Durability, Parameters, Schedule};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is made.
const MADE: &str = "\
Writes DIR/cluster.toml, DIR/client.toml (a client's key), DIR/admin.toml (the administrator's \
key) and, for each replica I, DIR/replica-I/replica.toml (its key) with its formatted data \
directory beside it. Refuses a directory that is not empty.

A group has u + r + max(u, r) + 1 replicas: 3 for --crash 1, 4 for --byzantine 1, 6 for \
--faults 2,1.";

const OF_PARTITIONS: &str = "\
With --partitions, a server of the cluster runs members of several groups, which DIR/server-S/ is for in place of DIR/replica-I/.";

const ON_HOSTS: &str = "\
With --hosts, take cluster.toml and replica-I/ to host I, client.toml (and cluster.toml) to where \
clients run, and keep admin.toml to yourself";

/// Make the files of a new cluster: keys, configuration, formatted data directories
#[derive(Args)]
#[command(after_help = format!(
    "{MADE}\n\n{OF_PARTITIONS}\n\n{ON_HOSTS}; what was made says which, and what to start then."
))]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
    /// What is replicated, for the life of the cluster
    #[arg(long, value_enum, default_value_t = ServiceName::Kv)]
    service: ServiceName,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    partitioning: Partitioning,
}

/// Make the files of a new cluster: keys, configuration, formatted data directories
#[derive(Args)]
#[command(after_help = format!("{MADE}\n\n{ON_HOSTS}."))]
pub struct OwnArguments {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    tuning: Tuning,
}

/// Where a new cluster is, and what it bears.
#[derive(Args)]
struct Files {
    /// The directory to make
    dir: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
    /// A host for each replica (or server), in the order of their ids; without it, all run on this machine
    #[arg(long, value_name = "H0,H1,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Port of the protocol; the next is for HTTP. Without --hosts replica I gets PORT + 2 I, and
    /// without either free ports are taken; with --hosts all have PORT [default: 7400], and a
    /// second one on a host the two ports above
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    base_port: Option<u16>,
    /// With --hosts: serve status and metrics, which anybody may read, to the network instead of
    /// on loopback only
    #[arg(long, requires = "hosts")]
    public_http: bool,
    /// When a reply leaves a replica
    #[arg(long, value_enum, default_value_t = DurabilityName::Sync)]
    durability: DurabilityName,
}

/// Parameters that are fixed for the life of a cluster; docs/configuration.md gives the reason of
/// each default.
#[derive(Args, Clone, Copy, Default)]
#[command(next_help_heading = "Fixed for the life of the cluster")]
pub struct Tuning {
    /// Slots in agreement at once [default: 32]
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u64).range(1..=256))]
    depth: Option<u64>,
    /// A replica's checkpoint is due after this many slots [default: 16384]
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    checkpoint_interval: Option<u64>,
    /// ... or after this much data, MiB [default: 256]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    checkpoint_mib: Option<u64>,
    /// For a large state a checkpoint is up to so many times rarer; 1: never [default: 16]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u64).range(1..=64))]
    checkpoint_stretch: Option<u64>,
    /// ... or, however little came, after this time while commands come, in ms: bounds how long a replay takes where commands take long
    /// [default: 20000 for a service that says so, never for others]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1_000..=3_600_000))]
    checkpoint_ms: Option<u64>,
    /// One replica stores its checkpoint after the other, or all at once [default: sequential]
    #[arg(long, value_enum, value_name = "SCHEDULE")]
    checkpoint_schedule: Option<ScheduleName>,
    /// A proposal whose time differs more from a replica's clock is not voted for [default: 500]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    max_skew_ms: Option<u64>,
    /// Commands that would make the state larger are refused, MiB [default: 8192]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    state_limit_mib: Option<u64>,
}

impl Tuning {
    /// One that differs from the defaults in what experiments compare. Checkpoints come after the same
    /// amount of data throughout.
    pub fn for_checkpoints(schedule: ScheduleName, mib: u64) -> Tuning {
        Tuning {
            checkpoint_schedule: Some(schedule),
            checkpoint_mib: Some(mib),
            checkpoint_stretch: Some(1),
            ..Tuning::default()
        }
    }

    pub(crate) fn apply(self, parameters: &mut Parameters) {
        const MIB: u64 = 1024 * 1024;
        let set = |place: &mut u64, given: Option<u64>| *place = given.unwrap_or(*place);
        set(&mut parameters.depth, self.depth);
        set(&mut parameters.checkpoint_interval, self.checkpoint_interval);
        set(&mut parameters.checkpoint_bytes, self.checkpoint_mib.map(|mib| mib * MIB));
        set(&mut parameters.checkpoint_stretch, self.checkpoint_stretch);
        parameters.checkpoint_ms = self.checkpoint_ms.or(parameters.checkpoint_ms);
        let given = self.checkpoint_schedule.map(ScheduleName::schedule);
        parameters.schedule = given.unwrap_or(parameters.schedule);
        set(&mut parameters.max_skew_ms, self.max_skew_ms);
        set(&mut parameters.state_limit_bytes, self.state_limit_mib.map(|mib| mib * MIB));
    }
}

/// Which faults the cluster tolerates.
#[derive(Args, Clone, Copy, Default)]
#[group(multiple = false)]
pub struct Bounds {
    /// Tolerate F crashed replicas, none that lies: 2 F + 1 replicas
    #[arg(long, value_name = "F", value_parser = clap::value_parser!(u8).range(1..=8))]
    crash: Option<u8>,
    /// Tolerate F replicas that fail in any way, lying included: 3 F + 1 replicas [default: 1]
    #[arg(long, value_name = "F", value_parser = clap::value_parser!(u8).range(1..=8))]
    byzantine: Option<u8>,
    /// Stay live with U failures of any kind, and safe with R replicas lying
    #[arg(long, value_name = "U,R", value_parser = parse_faults)]
    faults: Option<Faults>,
}

impl Bounds {
    /// What was asked for, if anything was.
    pub fn given(self) -> Result<Option<Faults>> {
        let faults = match (self.crash, self.byzantine, self.faults) {
            (Some(u), _, _) => Faults::new(u, 0),
            (_, Some(f), _) => Faults::new(f, f),
            (_, _, given) => return Ok(given),
        };
        Ok(Some(faults.map_err(|error| Usage(error.to_string()))?))
    }

    /// What was asked for, or the default.
    pub fn faults(self) -> Result<Faults> {
        match self.given()? {
            Some(faults) => Ok(faults),
            None => Ok(Faults::new(1, 1)?),
        }
    }
}

/// `U,R`.
pub fn parse_faults(text: &str) -> Result<Faults, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(u, r)| Some((u.trim().parse::<u8>().ok()?, r.trim().parse::<u8>().ok()?)));
    let (u, r) = numbers.ok_or("give two numbers, as in 2,1")?;
    Faults::new(u, r).map_err(|error| error.to_string())
}

/// [`ServiceKind`] on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServiceName {
    /// The key-value store: `perdura kv`
    Kv,
    /// Tuple spaces: `perdura space`
    Tuples,
}

impl ServiceName {
    /// What it names.
    pub fn kind(self) -> ServiceKind {
        match self {
            ServiceName::Kv => ServiceKind::KeyValue,
            ServiceName::Tuples => ServiceKind::TupleSpaces,
        }
    }
}

/// A service, as far as the files of its clusters name it.
pub struct Named {
    /// Its name.
    pub name: perdura_protocol::ServiceName,
    /// The version with which a new cluster starts.
    pub version: u16,
    /// Its commands may take milliseconds.
    pub takes_long: bool,
}

impl From<ServiceKind> for Named {
    fn from(kind: ServiceKind) -> Named {
        Named { name: kind.name(), version: kind.newest_version(), takes_long: false }
    }
}

/// [`Durability`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum DurabilityName {
    /// After the log is flushed: survives the crash of all replicas at once
    Sync,
    /// After the log is written: a restart of the machine costs the replica its place
    Async,
    /// At once: any restart costs the replica its place
    None,
}

/// [`Schedule`] on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ScheduleName {
    /// One replica after the other, so that the group never slows down as one
    Sequential,
    /// All replicas at the same slots; a baseline for experiments
    Coordinated,
}

impl ScheduleName {
    /// What it names.
    pub fn schedule(self) -> Schedule {
        match self {
            ScheduleName::Sequential => Schedule::Sequential,
            ScheduleName::Coordinated => Schedule::Coordinated,
        }
    }

    /// As on the command line.
    pub fn name(self) -> String {
        self.schedule().name().to_owned()
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { files, service, tuning, partitioning } = arguments;
    let service = service.kind();
    let Some(partitions) = partitioning.several()? else {
        return make_group(files, *tuning, &service.into(), None);
    };
    let Files { dir, hosts, base_port, public_http, .. } = files;
    let (faults, durability) = (files.bounds.faults()?, files.durability.durability());
    let places = &partitioning.places(faults.n(), hosts, *base_port, *public_http)?;
    let new = New { partitions, faults, durability, service, tuning: *tuning, places };
    let cluster = partitions::make(dir, new)?;
    warn_of_crowded(hosts, faults);
    partitions::show(dir, &cluster, service, hosts);
    Ok(ExitCode::SUCCESS)
}

/// Runs the command of a program with a service of its own, which is called so.
pub fn run_own(arguments: &OwnArguments, own: &Named, program: &str) -> Result<ExitCode> {
    make_group(&arguments.files, arguments.tuning, own, Some(program))
}

fn make_group(
    files: &Files,
    tuning: Tuning,
    service: &Named,
    program: Option<&str>,
) -> Result<ExitCode> {
    let Files { dir, hosts, .. } = files;
    let (faults, durability) = (files.bounds.faults()?, files.durability.durability());
    let places = places(faults.n(), hosts, files.base_port, files.public_http)?;
    let cluster = make(dir, faults, durability, service, tuning, &places)?;
    warn_of_crowded(hosts, faults);
    files.show(&cluster);
    let steps = match program {
        None => steps::after_init(dir, ChildKind::Replica, faults.n(), hosts),
        Some(program) => steps::after_init_of_own(program, dir, faults.n(), hosts),
    };
    say!("{steps}");
    Ok(ExitCode::SUCCESS)
}

/// Warns of a host with which more fails than the cluster bears.
fn warn_of_crowded(hosts: &[String], faults: Faults) {
    for (host, count) in crowded(hosts, faults) {
        tell_in_time(&format!(
            "warning: {host} has {count} of the {} that --hosts names, and the cluster goes on without {} only: with that host it may stand still",
            hosts.len(),
            faults.u()
        ));
    }
}

/// Hosts that are named more often than replicas may fail, and how often.
fn crowded(hosts: &[String], faults: Faults) -> Vec<(&str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for host in hosts {
        *counts.entry(host).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > faults.u()).collect()
}

impl Files {
    /// Says what was made.
    fn show(&self, cluster: &Cluster) {
        let of = &cluster.parameters;
        say!(
            "{}: cluster {} of {} replicas, live with {} failures, safe with {} liars, durability {}, service {}",
            self.dir.display(),
            of.cluster,
            of.faults.n(),
            of.faults.u(),
            of.faults.r(),
            of.durability.name(),
            of.service
        );
        for (id, entry) in cluster.replicas.iter().enumerate() {
            say!("  replica {id} at {}, status at http://{}/status", entry.address, entry.http);
        }
    }
}

impl DurabilityName {
    fn durability(self) -> Durability {
        match self {
            DurabilityName::Sync => Durability::Sync,
            DurabilityName::Async => Durability::Async,
            DurabilityName::None => Durability::None,
        }
    }
}

/// Places for `n` replicas, as [`Place::all`] has them.
///
/// # Errors
/// A [`Usage`] if what was asked for makes no sense.
pub fn places(
    n: usize,
    hosts: &[String],
    base_port: Option<u16>,
    public_http: bool,
) -> Result<Vec<Place>> {
    Place::all(n, hosts, base_port, public_http).map_err(|error: PlacesError| {
        if error.is_misuse() { Usage(error.to_string()).into() } else { error.into() }
    })
}

/// Makes everything in `dir`, which must be missing or empty.
pub fn make(
    dir: &Path,
    faults: Faults,
    durability: Durability,
    service: &Named,
    tuning: Tuning,
    places: &[Place],
) -> Result<Cluster> {
    let tune = |parameters: &mut Parameters| {
        parameters.checkpoint_ms = service.takes_long.then_some(CHECKPOINT_MS);
        tuning.apply(parameters);
        parameters.versions.service = service.version;
    };
    Ok(create::make(dir, faults, durability, service.name.clone(), tune, places)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_more_than_may_fail_is_told_of() {
        let faults = Faults::new(1, 0).unwrap();
        let hosts = |names: [&str; 3]| names.map(str::to_owned);
        assert_eq!(crowded(&hosts(["db0", "db0", "db2"]), faults), [("db0", 2)]);
        assert_eq!(crowded(&hosts(["db0", "db1", "db2"]), faults), []);
        assert_eq!(crowded(&hosts(["db0", "db0", "db2"]), Faults::new(2, 0).unwrap()), []);
    }

    #[test]
    fn bounds_are_parsed() {
        assert_eq!(parse_faults("2,1"), Ok(Faults::new(2, 1).unwrap()));
        for bad in ["", "2", "2,", "2,9", "0,1", "x,y", "1,1,1"] {
            assert!(parse_faults(bad).is_err(), "{bad}");
        }
        assert_eq!(Bounds::default().faults().unwrap(), Faults::new(1, 1).unwrap());
    }
}
