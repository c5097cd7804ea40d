//! The files of a new cluster.
//!
//! cluster.toml is written last: a directory that has one is complete.

use crate::config::files;
use crate::config::keys::{ADMINISTRATORS, KeyFile, fresh_key, random};
use crate::config::partitioned::{MemberEntry, PartitionEntry, ServerEntry};
use crate::config::placement::place;
use crate::config::replica::{Rates, SCRUB_INTERVAL_S};
use crate::config::server::Member;
use crate::config::{ADMIN_FILE, CLIENT_FILE, CLUSTER_FILE, REPLICA_FILE, SERVER_FILE};
use crate::config::{Cluster, EntropyError, ReplicaEntry, ReplicaFile, WriteError};
use crate::config::{PartitionedCluster, ServerFile};
use crate::format::{self, DataDirectoryError};
use crate::service::ServiceKind;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::partitions::{Distribution, MapError};
use perdura_protocol::{
    ClusterId, Faults, PartitionId, PublicKey, ReplicaId, SecretKey, ServiceName, Slot, limits,
};
use perdura_replica::node::StateTransfer;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long hosts are looked up before their names are taken as they are.
const RESOLVING: Duration = Duration::from_secs(2);

/// First port with --hosts, where nobody can try which are free.
const BASE_PORT: u16 = 7400;

/// Where free ports are looked for: below those that the operating system gives to outgoing
/// connections, one of which could else take a replica's port while it restarts.
const FREE_PORTS: std::ops::Range<u16> = 10_000..30_000;

/// Name of the client whose key is registered from the start.
const FIRST_CLIENT: &str = "default";

/// Why replicas have no places; in the words of `perdura init`, whose options the parameters are.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// Too few hosts, or too many.
    #[error("--hosts names {given} hosts, and the group has {n} replicas")]
    Hosts {
        /// How many there are.
        given: usize,
        /// How many there have to be.
        n: usize,
    },
    /// A host has no name that could stand before a port.
    #[error("--hosts: {0:?} is no host name or address")]
    Host(String),
    /// A host is this machine, to itself and so to each of the others.
    #[error(
        "--hosts: {host:?} is {address}, which every machine takes for itself; give names or addresses under which the others find it"
    )]
    Loopback {
        /// As given.
        host: String,
        /// What it is.
        address: IpAddr,
    },
    /// The last port would be above 65535.
    #[error("--base-port {base} leaves no room for {count} ports")]
    NoRoom {
        /// The first.
        base: u16,
        /// How many there have to be.
        count: usize,
    },
    /// This machine seems to have none; name the first.
    #[error("found no {count} free ports in a row; choose some with --base-port")]
    NoFreePorts {
        /// How many were looked for.
        count: usize,
    },
    /// There is no chance to look for ports by.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

impl PlacesError {
    /// Whether what was asked for makes no sense, on any machine.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        match self {
            PlacesError::Hosts { .. }
            | PlacesError::Host(_)
            | PlacesError::Loopback { .. }
            | PlacesError::NoRoom { .. } => true,
            PlacesError::NoFreePorts { .. } | PlacesError::Entropy(_) => false,
        }
    }
}

/// Why a cluster's files were not made. What was made before stays, without a cluster.toml.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A file has the directory's name.
    #[error("{dir} is there and no directory; give another")]
    NoDirectory {
        /// The directory.
        dir: String,
    },
    /// There is a cluster in it. Nothing was changed.
    #[error(
        "{dir} holds a cluster already, and nothing is overwritten; give another directory, or \
         run this one with `perdura dev {dir}`"
    )]
    HoldsCluster {
        /// The directory.
        dir: String,
    },
    /// Something else is in it. Nothing was changed.
    #[error(
        "{dir} is not empty (it holds {found}), and nothing is overwritten; give another \
         directory"
    )]
    NotEmpty {
        /// The directory.
        dir: String,
        /// A name in it.
        found: String,
    },
    /// A directory cannot be made.
    #[error("cannot make the directory {path}")]
    MakeDirectory {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// No keys can be made.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// Partitions cannot be on so many servers. Nothing was changed.
    #[error(
        "{servers} servers: each of the {n} replicas of a partition's group has a server of its own, and no server may have nothing to \
         do, so {partitions} partitions take {n} to {most} servers", most = n * partitions
    )]
    Servers {
        /// How many there are.
        servers: usize,
        /// Replicas of a group.
        n: usize,
        /// How many partitions there are to be.
        partitions: usize,
    },
    /// There are too many partitions or too few, or their bounds are wrong. Nothing was changed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The service is not the one that knows partitions. Nothing was changed.
    #[error(
        "service {0} has no keys that could be spread over partitions; the key-value store, kv, has"
    )]
    NoKeys(ServiceName),
    /// A data directory was not formatted.
    #[error(transparent)]
    Format(#[from] DataDirectoryError),
    /// A file was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl CreateError {
    /// Whether what was asked for makes no sense, on any machine.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(self, CreateError::Servers { .. } | CreateError::Map(_) | CreateError::NoKeys(_))
    }
}

/// Where a replica is, or a server.
pub struct Place {
    address: String,
    listen: String,
    http: String,
    http_listen: String,
}

impl Place {
    /// A place of one's own: `host:port` where others find the replica, where it listens for them, and where it serves
    /// its status.
    #[must_use]
    pub fn new(address: String, listen: String, http: String) -> Place {
        Place { address, listen, http_listen: http.clone(), http }
    }

    /// Places for `n` replicas: on `hosts`, each with port `base_port` (7400) for the protocol and the next for HTTP, and two more for each
    /// further replica of one host; or without them on this machine, where replica I gets port `base_port` + 2 I, and without that free ones. With
    /// `public_http` HTTP is served to the network and not on loopback only.
    pub fn all(
        n: usize,
        hosts: &[String],
        base_port: Option<u16>,
        public_http: bool,
    ) -> Result<Vec<Place>, PlacesError> {
        if !hosts.is_empty() && hosts.len() != n {
            return Err(PlacesError::Hosts { given: hosts.len(), n });
        }
        let is_none = |host: &&String| {
            // To many programs what begins so is an option.
            let begins = host.is_empty() || host.starts_with('-');
            begins || host.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
        };
        if let Some(bad) = hosts.iter().find(is_none) {
            return Err(PlacesError::Host(bad.clone()));
        }
        refuse_loopback(hosts)?;
        let base = match base_port {
            Some(base) => base,
            None if hosts.is_empty() => free_ports(2 * n)?,
            None => BASE_PORT,
        };
        // How many of its machine come before it.
        let before = |id: usize| match hosts.get(id) {
            Some(host) => hosts[..id].iter().filter(|other| *other == host).count(),
            None => id,
        };
        let most = (0..n).map(before).max().unwrap_or_default();
        if u16::try_from(2 * most + 1).ok().and_then(|more| base.checked_add(more)).is_none() {
            return Err(PlacesError::NoRoom { base, count: 2 * (most + 1) });
        }
        let port = |id| base + 2 * before(id) as u16;
        Ok((0..n).map(|id| Place::at(hosts.get(id), port(id), public_http)).collect())
    }

    fn at(host: Option<&String>, port: u16, public_http: bool) -> Place {
        let http_port = port + 1;
        let Some(host) = host else {
            let address = format!("127.0.0.1:{port}");
            return Place::new(address.clone(), address, format!("127.0.0.1:{http_port}"));
        };
        // An IPv6 address stands in brackets before a port.
        let ipv6 = host.contains(':');
        let bracketed = match ipv6 && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        let any = if ipv6 { "[::]" } else { "0.0.0.0" };
        let (http_host, http_any) =
            if public_http { (bracketed.as_str(), any) } else { ("127.0.0.1", "127.0.0.1") };
        Place {
            address: format!("{bracketed}:{port}"),
            listen: format!("{any}:{port}"),
            http: format!("{http_host}:{http_port}"),
            // A name may mean something else there, or nothing yet.
            http_listen: format!("{http_any}:{http_port}"),
        }
    }
}

/// A name that means this machine here means each of the others there. Names that do not resolve here, or not soon, may resolve
/// where the replicas run.
fn refuse_loopback(hosts: &[String]) -> Result<(), PlacesError> {
    let (sender, resolved) = mpsc::channel();
    for host in hosts.iter().cloned() {
        let sender = sender.clone();
        // One that takes longer is left behind.
        std::thread::spawn(move || {
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let addresses = (name, 0).to_socket_addrs().into_iter().flatten();
            let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
            let _ = sender.send((host, addresses));
        });
    }
    drop(sender);
    let deadline = Instant::now() + RESOLVING;
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((host, addresses)) = resolved.recv_timeout(left()) {
        let first = addresses.first().copied();
        let own = |address: &IpAddr| address.is_loopback() || address.is_unspecified();
        if let Some(address) = first
            .filter(|_| addresses.iter().map(IpAddr::to_canonical).all(|address| own(&address)))
        {
            return Err(PlacesError::Loopback { host, address });
        }
    }
    Ok(())
}

/// The UDP ports of the numbers that this process found free last: taken as long as it runs, so that no
/// other one finds them free, or tries them, before a replica of this one listens there.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// The first of `count` free ports in a row.
fn free_ports(count: usize) -> Result<u16, PlacesError> {
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
    Err(PlacesError::NoFreePorts { count })
}

/// Makes everything in `dir`, which must be missing or empty: keys, configuration, formatted data directories.
/// `tune` changes what else is fixed for the life of the cluster from its defaults.
pub fn make(
    dir: &Path,
    faults: Faults,
    durability: Durability,
    service: ServiceName,
    tune: impl FnOnce(&mut Parameters),
    places: &[Place],
) -> Result<Cluster, CreateError> {
    check_empty(dir)?;
    make_private_directory(dir)?;
    let (administrator, client) = (fresh_key()?, fresh_key()?);
    let parameters = parameters(faults, durability, service, &administrator, tune)?;
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
    write_keys(dir, &client, &administrator)?;
    cluster.store()?;
    Ok(cluster)
}

/// How the keys of a cluster of several partitions are spread.
pub struct Partitions {
    /// How many there are, at least 2.
    pub count: usize,
    /// Which keys are whose.
    pub distribution: Distribution,
}

/// As [`make`], of a cluster of several partitions on servers at `places`: members and first leaders go to the servers in turn
/// ([`place`]).
pub fn make_partitioned(
    dir: &Path,
    faults: Faults,
    durability: Durability,
    service: ServiceName,
    tune: impl FnOnce(&mut Parameters),
    partitions: Partitions,
    places: &[Place],
) -> Result<PartitionedCluster, CreateError> {
    let Partitions { count, distribution } = partitions;
    let n = faults.n();
    if !(2..=limits::PARTITIONS).contains(&count) {
        return Err(MapError::Partitions(count).into());
    }
    if !(n..=n * count).contains(&places.len()) {
        return Err(CreateError::Servers { servers: places.len(), n, partitions: count });
    }
    if service != ServiceKind::KeyValue.name() {
        return Err(CreateError::NoKeys(service));
    }
    check_empty(dir)?;
    let (administrator, client) = (fresh_key()?, fresh_key()?);
    let parameters = parameters(faults, durability, service, &administrator, tune)?;
    let (mut servers, mut resolvers) = (Vec::new(), Vec::new());
    for (id, place) in places.iter().enumerate() {
        let resolver = fresh_key()?;
        resolvers.push(resolver.public());
        servers.push(server_file(dir, id, place, resolver));
    }
    let mut entries = Vec::new();
    for (partition, on) in (0..).map(PartitionId).zip(place(count, n, places.len())) {
        let mut members = Vec::new();
        for (replica, server) in (0..).zip(on) {
            let key = fresh_key()?;
            let public = key.public();
            members.push(MemberEntry { server, key: public, incarnation: 0, first_key: public });
            let data_path = PathBuf::from(format!("partition-{partition}"));
            servers[server].members.push(Member {
                partition,
                replica,
                incarnation: 0,
                key,
                data_path,
            });
        }
        entries.push(PartitionEntry { configuration: 0, from_slot: Slot(0), members });
    }
    let of_place = |(place, resolver): (&Place, &PublicKey)| ServerEntry {
        address: place.address.clone(),
        http: place.http.clone(),
        resolver: *resolver,
    };
    let mut cluster = PartitionedCluster::new(
        dir.join(CLUSTER_FILE),
        parameters,
        distribution,
        places.iter().zip(&resolvers).map(of_place).collect(),
        entries,
        &administrator,
    );
    cluster.clients.push((FIRST_CLIENT.to_owned(), client.public()));
    let named = |(id, key): (usize, &PublicKey)| (format!("resolver-{id}"), *key);
    cluster.clients.extend(resolvers.iter().enumerate().map(named));
    cluster.map.check()?;
    make_private_directory(dir)?;
    for server in &servers {
        make_private_directory(&files::directory_of(&server.path))?;
        for member in &server.members {
            let parameters = cluster.group(member.partition).parameters;
            let data = server.replica(member).data();
            format::data_directory(&data, &parameters, ReplicaId(member.replica), 0, None)?;
        }
        server.store(&server.path)?;
    }
    write_keys(dir, &client, &administrator)?;
    cluster.store()?;
    Ok(cluster)
}

fn server_file(dir: &Path, id: usize, place: &Place, resolver: SecretKey) -> ServerFile {
    ServerFile {
        path: dir.join(format!("server-{id}")).join(SERVER_FILE),
        id,
        cluster_path: Path::new("..").join(CLUSTER_FILE),
        listen: place.listen.clone(),
        http: Some(place.http_listen.clone()),
        rates: Rates::default(),
        resolver: Some(resolver),
        members: Vec::new(),
    }
}

/// Those of a new cluster.
fn parameters(
    faults: Faults,
    durability: Durability,
    service: ServiceName,
    administrator: &SecretKey,
    tune: impl FnOnce(&mut Parameters),
) -> Result<Parameters, EntropyError> {
    let id = ClusterId(random()?);
    let public = administrator.public();
    let mut parameters = Cluster::default_parameters(id, faults, durability, public);
    if let Some(kind) = ServiceKind::of(&service) {
        parameters.versions.service = kind.newest_version();
    }
    parameters.service = service;
    tune(&mut parameters);
    Ok(parameters)
}

/// The files of the first client's key and the administrator's.
fn write_keys(dir: &Path, client: &SecretKey, administrator: &SecretKey) -> Result<(), WriteError> {
    let purpose = "A client of a Perdura cluster.";
    KeyFile::write(&dir.join(CLIENT_FILE), purpose, FIRST_CLIENT, client, CLUSTER_FILE)?;
    let (path, name) = (dir.join(ADMIN_FILE), "administrator");
    KeyFile::write(&path, ADMINISTRATORS, name, administrator, CLUSTER_FILE)
}

fn check_empty(dir: &Path) -> Result<(), CreateError> {
    let name = dir.display().to_string();
    let Ok(mut entries) = fs::read_dir(dir) else {
        return match fs::symlink_metadata(dir) {
            Ok(_) => Err(CreateError::NoDirectory { dir: name }),
            Err(_) => Ok(()),
        };
    };
    let Some(entry) = entries.next() else { return Ok(()) };
    if dir.join(CLUSTER_FILE).exists() {
        return Err(CreateError::HoldsCluster { dir: name });
    }
    let found = entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Err(CreateError::NotEmpty { dir: name, found: found.unwrap_or_default() })
}

fn make_replica(
    dir: &Path,
    id: ReplicaId,
    place: &Place,
    cluster: &Cluster,
) -> Result<ReplicaEntry, CreateError> {
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
        http: Some(place.http_listen.clone()),
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
fn make_private_directory(path: &Path) -> Result<(), CreateError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| files::sync_directory(&files::directory_of(path)))
        .map_err(|source| CreateError::MakeDirectory { path: path.display().to_string(), source })
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

    /// What was made of it would have been refused by every replica and client.
    #[test]
    fn parameters_that_no_file_may_have_make_no_cluster() {
        let directory = tempfile::tempdir().unwrap();
        type Tune = fn(&mut Parameters);
        let make_with = |name: &str, n, tune: Tune| {
            let places = Place::all(n, &[], Some(7000), false).unwrap();
            let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceName::literal("kv"));
            let dir = directory.path().join(name);
            let made = make(&dir, faults, Durability::Sync, service, tune, &places);
            let there = dir.join(CLUSTER_FILE).exists();
            (made.map(|_| ()).map_err(|error| error.to_string()), there)
        };
        assert_eq!(make_with("right", 3, |_| {}), (Ok(()), true));
        let wrong: [(usize, Tune, &str); 4] = [
            (3, |p| p.checkpoint_interval = 4, "checkpoint_interval_slots must be 64"),
            (3, |p| p.depth = 257, "depth must be 1 to 256"),
            (3, |p| p.state_limit_bytes += 1, "whole MiB"),
            (4, |_| {}, "replica"),
        ];
        for (number, (n, tune, words)) in wrong.into_iter().enumerate() {
            let (made, there) = make_with(&number.to_string(), n, tune);
            let told = made.unwrap_err();
            assert!(told.contains(words) && !there, "{told}");
        }
    }

    /// Nothing is left of what cannot be.
    #[test]
    fn partitions_that_cannot_be_placed_make_no_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().join("cluster");
        let ranges = |bounds: &[&'static str]| Distribution::Range {
            bounds: bounds.iter().map(|bound| bound.as_bytes().into()).collect(),
        };
        let make_with = |service, count, servers, distribution| {
            let places = Place::all(servers, &[], Some(7000), false).unwrap();
            let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceName::literal(service));
            let partitions = Partitions { count, distribution };
            make_partitioned(&dir, faults, Durability::Sync, service, |_| {}, partitions, &places)
        };
        for (service, count, servers, distribution, words) in [
            ("kv", 2, 2, Distribution::Hash, "2 partitions take 3 to 6 servers"),
            ("kv", 2, 7, Distribution::Hash, "2 partitions take 3 to 6 servers"),
            ("kv", 65, 3, Distribution::Hash, "this one has 65"),
            ("tuples", 2, 3, Distribution::Hash, "no keys that could be spread"),
            ("kv", 2, 3, ranges(&["f", "p"]), "have 1 bounds, here are 2"),
            ("kv", 3, 3, ranges(&["p", "f"]), "bound 1 is not above"),
        ] {
            let error = make_with(service, count, servers, distribution).unwrap_err();
            assert!(error.is_misuse() && error.to_string().contains(words), "{words}: {error}");
            assert!(!dir.exists(), "{words}");
        }
        let made = make_with("kv", 5, 4, ranges(&["a", "b", "c", "d"])).unwrap();
        assert_eq!(PartitionedCluster::load(&dir.join(CLUSTER_FILE)).unwrap(), made);
        for id in 0..4 {
            let path = dir.join(format!("server-{id}")).join(SERVER_FILE);
            let (file, _) = crate::server::load(&path).unwrap();
            assert!((3..=4).contains(&file.members.len()));
            assert!(file.members.iter().all(|one| file.replica(one).data().exists()));
        }
        let again = make_with("kv", 2, 3, Distribution::Hash).unwrap_err();
        assert!(matches!(again, CreateError::HoldsCluster { .. }), "{again}");
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
            ("0.0.0.0:7400", "127.0.0.1:7401")
        );
        assert_eq!(
            (places[2].address.as_str(), places[2].listen.as_str()),
            ("[fe80::1]:7400", "[::]:7400")
        );
        let places = Place::all(3, &hosts, None, true).unwrap();
        assert_eq!((&*places[0].http, &*places[0].http_listen), ("a:7401", "0.0.0.0:7401"));
        assert_eq!(places[2].http_listen, "[::]:7401");
        // Two of three on one machine.
        let twice = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        let places = Place::all(3, &twice, Some(65_532), false).unwrap();
        let addresses = [0, 1, 2].map(|id: usize| places[id].address.as_str());
        assert_eq!(addresses, ["a:65532", "b:65532", "a:65534"]);
        assert!(Place::all(3, &twice, Some(65_533), false).is_err());
        assert!(Place::all(4, &hosts, None, false).is_err());
        for host in ["127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"] {
            let hosts = ["10.0.0.1".to_owned(), "10.0.0.2".to_owned(), host.to_owned()];
            let error = Place::all(3, &hosts, None, false).map(|_| ()).unwrap_err();
            assert!(error.is_misuse() && error.to_string().contains("takes for itself"), "{error}");
        }
        for host in ["", "a/b", "-oProxyCommand=x", "a b", "a\n"] {
            let hosts = ["10.0.0.1".to_owned(), "10.0.0.2".to_owned(), host.to_owned()];
            let places = Place::all(3, &hosts, None, false).map(|_| ());
            assert!(matches!(places, Err(PlacesError::Host(_))), "{host}");
        }
        assert!(Place::all(3, &[], Some(65_533), false).is_err());
    }
}
