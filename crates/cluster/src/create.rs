//! The files of a new cluster.
//!
//! cluster.toml is written last: a directory that has one is complete.

mod places;

use crate::config::files;
use crate::config::keys::{ADMINISTRATORS, KeyFile, fresh_key, random};
use crate::config::partitioned::{MemberEntry, PartitionEntry, ServerEntry};
use crate::config::placement::place;
use crate::config::replica::Rates;
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
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use places::{Place, PlacesError, is_of_one_machine};

/// Name of the client whose key is registered from the start.
const FIRST_CLIENT: &str = "default";

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
        "{dir} holds a cluster already, and nothing is overwritten; give another directory{}",
        if *on_hosts { String::new() } else { format!(", or run this one with `perdura dev {dir}`") }
    )]
    HoldsCluster {
        /// The directory.
        dir: String,
        /// Whether its replicas have hosts of their own.
        on_hosts: bool,
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
        let on_hosts = is_on_hosts(&dir.join(CLUSTER_FILE));
        return Err(CreateError::HoldsCluster { dir: name, on_hosts });
    }
    let found = entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Err(CreateError::NotEmpty { dir: name, found: found.unwrap_or_default() })
}

/// Whether a replica, or a server, of a cluster is found elsewhere than on this machine; not if its file does not read.
fn is_on_hosts(path: &Path) -> bool {
    let addresses: Vec<String> = match (Cluster::load(path), PartitionedCluster::load(path)) {
        (Ok(cluster), _) => cluster.replicas.into_iter().map(|one| one.address).collect(),
        (_, Ok(cluster)) => cluster.servers.into_iter().map(|one| one.address).collect(),
        _ => Vec::new(),
    };
    !addresses.iter().all(|address| is_of_one_machine(address))
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
        rates: Rates::default(),
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

    #[test]
    fn a_cluster_on_hosts_is_not_said_to_run_here() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = ["db0", "db1", "db2"].map(str::to_owned);
        for (name, hosts) in [("here", &[][..]), ("hosts", &hosts)] {
            let dir = directory.path().join(name);
            let places = Place::all(3, hosts, Some(7000), false).unwrap();
            let make = || {
                let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceName::literal("kv"));
                make(&dir, faults, Durability::Sync, service, |_| {}, &places)
            };
            make().unwrap();
            let again = make().unwrap_err().to_string();
            assert_eq!(again.contains("perdura dev"), hosts.is_empty(), "{again}");
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
}
