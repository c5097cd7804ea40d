//! `perdura init`: the files of a new cluster.
//!
//! cluster.toml is written last: a directory that has one is complete.

use crate::config::cluster::service_text;
use crate::config::files;
use crate::config::keys::{KeyFile, fresh_key, random};
use crate::config::replica::SCRUB_INTERVAL_S;
use crate::config::{ADMIN_FILE, CLIENT_FILE, CLUSTER_FILE, REPLICA_FILE};
use crate::config::{Cluster, ReplicaEntry, ReplicaFile};
use crate::{Usage, format};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use perdura_protocol::configuration::{Durability, Parameters, Schedule, ServiceKind};
use perdura_protocol::{ClusterId, Faults, ReplicaId, SecretKey, Slot};
use perdura_replica::node::StateTransfer;
use std::fs::{self, DirBuilder};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// First port with --hosts, where nobody can try which are free.
const BASE_PORT: u16 = 7400;

/// Where free ports are looked for: below those that the operating system gives to outgoing
/// connections, one of which could else take a replica's port while it restarts.
const FREE_PORTS: std::ops::Range<u16> = 10_000..30_000;

/// Name of the client whose key is registered from the start.
const FIRST_CLIENT: &str = "default";

const AFTER_HELP: &str = "\
Writes DIR/cluster.toml, DIR/client.toml (a client's key), DIR/admin.toml (the administrator's \
key) and, for each replica I, DIR/replica-I/replica.toml (its key) with its formatted data \
directory beside it. Refuses a directory that is not empty.

A group has u + r + max(u, r) + 1 replicas: 3 for --crash 1, 4 for --byzantine 1, 6 for \
--faults 2,1.

With --hosts, take cluster.toml and replica-I/ to host I, client.toml (and cluster.toml) to where \
clients run, and keep admin.toml to yourself.";

/// Makes the files of a new cluster: keys, configuration, formatted data directories.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// The directory to make
    dir: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
    /// A host for each replica, in the order of their ids; without it, all run on this machine
    #[arg(long, value_name = "H0,H1,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Replica I gets port PORT + 2 I for the protocol and the next for HTTP; without it, free
    /// ports are taken (with --hosts, 7400 and up)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    base_port: Option<u16>,
    /// With --hosts: serve status and metrics, which anybody may read, to the network instead of
    /// on loopback only
    #[arg(long, requires = "hosts")]
    public_http: bool,
    /// When a reply leaves a replica
    #[arg(long, value_enum, default_value_t = DurabilityName::Sync)]
    durability: DurabilityName,
    /// What is replicated, for the life of the cluster
    #[arg(long, value_enum, default_value_t = ServiceName::Kv)]
    service: ServiceName,
    #[command(flatten)]
    tuning: Tuning,
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
    /// One replica stores its checkpoint after the other, all at once, or all at once while nothing is
    /// executed [default: sequential]
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

    fn apply(self, parameters: &mut Parameters) {
        const MIB: u64 = 1024 * 1024;
        let set = |place: &mut u64, given: Option<u64>| *place = given.unwrap_or(*place);
        set(&mut parameters.depth, self.depth);
        set(&mut parameters.checkpoint_interval, self.checkpoint_interval);
        set(&mut parameters.checkpoint_bytes, self.checkpoint_mib.map(|mib| mib * MIB));
        set(&mut parameters.checkpoint_stretch, self.checkpoint_stretch);
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

/// [`Durability`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum DurabilityName {
    /// After the log is flushed: survives the crash of all replicas at once
    Sync,
    /// After the log is written: a restart of the machine costs the replica its place
    Async,
    /// At once: any restart costs the replica its place
    None,
    /// As safe as sync and slow on purpose: one write and one flush for each command, before it
    /// runs; a baseline for experiments
    SyncNaive,
}

/// [`Schedule`] on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ScheduleName {
    /// One replica after the other, so that the group never slows down as one
    Sequential,
    /// All replicas at the same slots; a baseline for experiments
    Coordinated,
    /// As coordinated, and nothing is executed meanwhile; a baseline for experiments
    StopTheWorld,
}

impl ScheduleName {
    /// What it names.
    pub fn schedule(self) -> Schedule {
        match self {
            ScheduleName::Sequential => Schedule::Sequential,
            ScheduleName::Coordinated => Schedule::Coordinated,
            ScheduleName::StopTheWorld => Schedule::StopTheWorld,
        }
    }

    /// As on the command line.
    pub fn name(self) -> String {
        self.schedule().name().to_owned()
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let faults = arguments.bounds.faults()?;
    let durability = match arguments.durability {
        DurabilityName::Sync => Durability::Sync,
        DurabilityName::Async => Durability::Async,
        DurabilityName::None => Durability::None,
        DurabilityName::SyncNaive => Durability::SyncNaive,
    };
    let public = arguments.public_http;
    let places = Place::all(faults.n(), &arguments.hosts, arguments.base_port, public)?;
    let service = arguments.service.kind();
    let cluster = make(&arguments.dir, faults, durability, service, arguments.tuning, &places)?;
    let (dir, n) = (arguments.dir.display(), faults.n());
    say!(
        "{dir}: cluster {} of {n} replicas, live with {} failures, safe with {} liars, durability {}, service {}",
        cluster.parameters.cluster,
        faults.u(),
        faults.r(),
        durability.name(),
        service_text(service)
    );
    for (id, entry) in cluster.replicas.iter().enumerate() {
        say!("  replica {id} at {}, status at http://{}/status", entry.address, entry.http);
    }
    say!("Start replica I (all of 0 to {}) with:", n - 1);
    say!("  perdura replica --config {dir}/replica-I/{REPLICA_FILE}");
    say!("{dir}/{ADMIN_FILE} can replace replicas and certify clients: keep it safe.");
    Ok(ExitCode::SUCCESS)
}

/// Where a replica is.
pub struct Place {
    address: String,
    listen: String,
    http: String,
}

impl Place {
    /// Places for `n` replicas.
    pub fn all(
        n: usize,
        hosts: &[String],
        base_port: Option<u16>,
        public_http: bool,
    ) -> Result<Vec<Place>> {
        if !hosts.is_empty() && hosts.len() != n {
            let given = hosts.len();
            bail!(Usage(format!("--hosts names {given} hosts, and the group has {n} replicas")));
        }
        if let Some(bad) = hosts.iter().find(|host| host.is_empty() || host.contains('/')) {
            bail!(Usage(format!("--hosts: {bad:?} is no host name or address")));
        }
        let base = match base_port {
            Some(base) => base,
            None if hosts.is_empty() => free_ports(2 * n)?,
            None => BASE_PORT,
        };
        let Some(last) = u16::try_from(2 * n - 1).ok().and_then(|more| base.checked_add(more))
        else {
            bail!(Usage(format!("--base-port {base} leaves no room for {} ports", 2 * n)));
        };
        let ports = (base..=last).step_by(2).enumerate();
        Ok(ports.map(|(id, port)| Place::at(hosts.get(id), port, public_http)).collect())
    }

    fn at(host: Option<&String>, port: u16, public_http: bool) -> Place {
        let http_port = port + 1;
        let Some(host) = host else {
            let address = format!("127.0.0.1:{port}");
            return Place {
                listen: address.clone(),
                address,
                http: format!("127.0.0.1:{http_port}"),
            };
        };
        // An IPv6 address stands in brackets before a port.
        let ipv6 = host.contains(':');
        let bracketed = match ipv6 && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        let any = if ipv6 { "[::]" } else { "0.0.0.0" };
        let http_host = if public_http { bracketed.as_str() } else { "127.0.0.1" };
        Place {
            address: format!("{bracketed}:{port}"),
            listen: format!("{any}:{port}"),
            http: format!("{http_host}:{http_port}"),
        }
    }
}

/// The UDP ports of the numbers that this process found free last: taken as long as it runs, so that no
/// other one finds them free, or tries them, before a replica of this one listens there.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// The first of `count` free ports in a row.
fn free_ports(count: usize) -> Result<u16> {
    let room = FREE_PORTS.len() - count;
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    reserved.clear();
    for _ in 0..256 {
        let chance = usize::from(u16::from_le_bytes(random()?)) % room;
        let base = FREE_PORTS.start + chance as u16;
        let ports = base..base + count as u16;
        let ours = ports.clone().map_while(|port| UdpSocket::bind(("127.0.0.1", port)).ok());
        let ours: Vec<UdpSocket> = ours.collect();
        if ours.len() < count {
            continue;
        }
        // All are held until the last is tried.
        let held: Vec<TcpListener> =
            ports.map_while(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
        if held.len() == count {
            *reserved = ours;
            return Ok(base);
        }
    }
    bail!("found no {count} free ports in a row; choose some with --base-port")
}

/// Makes everything in `dir`, which must be missing or empty.
pub fn make(
    dir: &Path,
    faults: Faults,
    durability: Durability,
    service: ServiceKind,
    tuning: Tuning,
    places: &[Place],
) -> Result<Cluster> {
    check_empty(dir)?;
    make_private_directory(dir)?;
    let (administrator, client) = (fresh_key()?, fresh_key()?);
    let id = ClusterId(random()?);
    let public = administrator.public();
    let mut parameters = Cluster::default_parameters(id, faults, durability, public);
    parameters.service = service.name();
    tuning.apply(&mut parameters);
    let mut cluster = Cluster {
        path: dir.join(CLUSTER_FILE),
        parameters,
        configuration: 0,
        from_slot: Slot(0),
        replicas: Vec::new(),
        clients: vec![(FIRST_CLIENT.to_owned(), client.public())],
        optional: toml::Table::new(),
    };
    for (id, place) in places.iter().enumerate() {
        let entry = make_replica(dir, ReplicaId(id as u8), place, &cluster)?;
        cluster.replicas.push(entry);
    }
    let purpose = "A client of a Perdura cluster.";
    KeyFile::write(&dir.join(CLIENT_FILE), purpose, FIRST_CLIENT, &client, CLUSTER_FILE)?;
    write_administrator(dir, &administrator)?;
    cluster.store()?;
    Ok(cluster)
}

fn write_administrator(dir: &Path, key: &SecretKey) -> Result<()> {
    let purpose = "The administrator of a Perdura cluster: replaces replicas, certifies clients.";
    KeyFile::write(&dir.join(ADMIN_FILE), purpose, "administrator", key, CLUSTER_FILE)
}

fn check_empty(dir: &Path) -> Result<()> {
    let Ok(mut entries) = fs::read_dir(dir) else {
        match fs::symlink_metadata(dir) {
            Ok(_) => bail!("{} is there and no directory; give another", dir.display()),
            Err(_) => return Ok(()),
        }
    };
    let Some(entry) = entries.next() else { return Ok(()) };
    let dir = dir.display();
    let found = entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match found.unwrap_or_default().as_str() {
        _ if Path::new(&format!("{dir}/{CLUSTER_FILE}")).exists() => bail!(
            "{dir} holds a cluster already, and nothing is overwritten; give another directory, or \
             run this one with `perdura dev {dir}`"
        ),
        found => bail!(
            "{dir} is not empty (it holds {found}), and nothing is overwritten; give another \
             directory"
        ),
    }
}

fn make_replica(
    dir: &Path,
    id: ReplicaId,
    place: &Place,
    cluster: &Cluster,
) -> Result<ReplicaEntry> {
    let own = dir.join(format!("replica-{id}"));
    make_private_directory(&own)?;
    let file = ReplicaFile {
        path: own.join(REPLICA_FILE),
        id: id.0,
        incarnation: 0,
        key: fresh_key()?,
        cluster_path: Path::new("..").join(CLUSTER_FILE),
        data_path: PathBuf::from("data"),
        listen: place.listen.clone(),
        http: Some(place.http.clone()),
        checkpoint_mb_s: 0,
        scrub_interval_s: SCRUB_INTERVAL_S,
        state_transfer: StateTransfer::default(),
    };
    format::data_directory(&file.data(), &cluster.parameters, id, 0, None)?;
    file.store(&file.path)?;
    Ok(ReplicaEntry {
        address: place.address.clone(),
        http: place.http.clone(),
        key: file.key.public(),
        incarnation: 0,
        first_key: file.key.public(),
    })
}

/// Makes a directory that only its owner reads: keys and data are in it. One that is there stays
/// as it is.
fn make_private_directory(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| files::sync_directory(&files::directory_of(path)))
        .with_context(|| format!("cannot make the directory {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process tries them by the same means, and finds them taken, though nobody listens there yet.
    #[test]
    fn ports_that_were_found_free_are_found_by_no_other_process() {
        let base = free_ports(3).unwrap();
        let taken = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_err();
        assert!((base..base + 3).all(|port| taken(&port)));
        assert!((base..base + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()));
    }

    #[test]
    fn places_follow_the_base_port_and_the_hosts() {
        let places = Place::all(3, &[], Some(7000), false).unwrap();
        assert_eq!(places[2].address, "127.0.0.1:7004");
        assert_eq!(places[2].http, "127.0.0.1:7005");
        let hosts = ["a".to_owned(), "10.0.0.2".to_owned(), "fe80::1".to_owned()];
        let places = Place::all(3, &hosts, None, false).unwrap();
        assert_eq!(places[0].address, "a:7400");
        assert_eq!(
            (places[1].listen.as_str(), places[1].http.as_str()),
            ("0.0.0.0:7402", "127.0.0.1:7403")
        );
        assert_eq!(
            (places[2].address.as_str(), places[2].listen.as_str()),
            ("[fe80::1]:7404", "[::]:7404")
        );
        assert_eq!(Place::all(3, &hosts, None, true).unwrap()[0].http, "a:7401");
        assert!(Place::all(4, &hosts, None, false).is_err());
        assert!(Place::all(3, &[], Some(65_533), false).is_err());
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
