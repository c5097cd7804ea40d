//! The counter of `crates/core/execution/examples/counter.rs`, replicated: three replicas with disks and
//! sockets, one thread each, and a client that counts. In earnest each replica is a process on a
//! host of its own.

#[path = "../../execution/examples/counter.rs"]
mod counter;

use bytes::Bytes;
use counter::Counter;
use perdura_client::{Client, ClusterConfig, Options, ReplicaAddress, Reply};
use perdura_durability::{FileDisk, Identity, storage};
use perdura_execution::Genesis;
use perdura_protocol::configuration::{Configuration, Durability, Member, Parameters};
use perdura_protocol::{ClusterId, Faults, ReplicaId, Scheme, SecretKey, Slot};
use perdura_replica::runtime::{ReplicaConfig, Shutdown, run};
use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;

/// What all members know, and the keys of each.
struct Group {
    parameters: Parameters,
    genesis: Genesis,
    addresses: Vec<String>,
    keys: Vec<SecretKey>,
    directory: PathBuf,
}

fn random<const N: usize>() -> Result<[u8; N], Box<dyn Error + Send + Sync>> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Makes the data directory of a replica and runs it until `shutdown` is requested.
fn replica(id: u8, group: &Group, shutdown: &Shutdown) -> Result<(), Box<dyn Error + Send + Sync>> {
    let data = group.directory.join(format!("replica-{id}"));
    let identity = Identity {
        cluster: group.parameters.cluster,
        replica: ReplicaId(id),
        incarnation: 0,
        parameters: group.parameters.digest(),
        durability: group.parameters.durability,
        checksum_key: random()?,
        must_recover: None,
    };
    storage::format(&mut FileDisk::create_directory(&data)?, &identity)?;
    let address = &group.addresses[usize::from(id)];
    let config = ReplicaConfig {
        id: ReplicaId(id),
        incarnation: 0,
        key: group.keys[usize::from(id)].clone(),
        parameters: group.parameters.clone(),
        genesis: group.genesis.clone(),
        latest: group.genesis.configuration.clone(),
        addresses: group.addresses.clone(),
        listen: address.clone(),
        http: None,
        data,
        log_device: None,
        profile: false,
        checkpoint_bytes_per_s: 0,
        scrub_interval: std::time::Duration::from_secs(3600),
        state_transfer: Default::default(),
    };
    Ok(run(config, Counter::default, shutdown)?)
}

/// Counts, as a client.
async fn count(cluster: ClusterConfig, key: SecretKey) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::connect(cluster, key)?;
    let options = Options::default();
    for command in ["add 2", "add 40", "get"] {
        if let Reply::Service(reply) = client.call(Bytes::from(command), &options).await? {
            println!("{command}: {}", String::from_utf8_lossy(&reply));
        }
    }
    // Refused by the service: certain not to have happened.
    if let Err(error) = client.call(Bytes::from("add up"), &options).await {
        println!("add up: {error}");
    }
    // Not ordered where n - u replicas answer alike.
    if let Reply::Service(reply) = client.read(Bytes::from("get"), &options).await? {
        println!("get, fast: {}", String::from_utf8_lossy(&reply));
    }
    client.close().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let directory = tempfile::tempdir()?;
    let fresh_key = || random().map(|seed| SecretKey::from_seed(Scheme::Ed25519, seed));
    let faults = Faults::new(1, 0)?; // Crash faults only; (1, 1) is Byzantine, with 4 replicas.
    let keys: Vec<SecretKey> = (0..faults.n()).map(|_| fresh_key()).collect::<Result<_, _>>()?;
    let (administrator, client) = (fresh_key()?, fresh_key()?);
    let listeners: Vec<TcpListener> =
        keys.iter().map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let members = keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
    let group = Group {
        parameters: Parameters {
            cluster: ClusterId(random()?),
            faults,
            durability: Durability::Sync,
            depth: 32,
            checkpoint_interval: 16_384,
            checkpoint_bytes: 256 << 20,
            // Its state is small, and it does not say how large.
            checkpoint_stretch: 1,
            max_skew_ms: 500,
            state_limit_bytes: 1 << 30,
            schedule: Default::default(),
            service: perdura_protocol::ServiceName::literal("counter"),
            versions: perdura_protocol::Versions::NEW,
            administrator: administrator.public(),
        },
        genesis: Genesis {
            configuration: Configuration { id: 0, from_slot: Slot(0), members },
            clients: vec![("example".to_owned(), client.public())],
        },
        addresses: listeners
            .iter()
            .map(|listener| Ok(listener.local_addr()?.to_string()))
            .collect::<Result<_, std::io::Error>>()?,
        keys,
        directory: directory.path().to_owned(),
    };
    drop(listeners); // Their ports were free, and are again.
    let address = |(id, key): (u8, &SecretKey)| ReplicaAddress {
        id: ReplicaId(id),
        address: group.addresses[usize::from(id)].clone(),
        key: key.public(),
    };
    let cluster = ClusterConfig {
        cluster: group.parameters.cluster,
        faults,
        replicas: (0u8..).zip(&group.keys).map(address).collect(),
        administrator: None,
    };

    let shutdown: Vec<Shutdown> = group.keys.iter().map(|_| Shutdown::new()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::scope(|scope| {
        let group = &group;
        let replicas: Vec<_> = (0u8..)
            .zip(&shutdown)
            .map(|(id, shutdown)| scope.spawn(move || replica(id, group, shutdown)))
            .collect();
        let counted = runtime.block_on(count(cluster, client));
        shutdown.iter().for_each(Shutdown::request);
        for replica in replicas {
            replica.join().map_err(|_| "a replica panicked")??;
        }
        counted
    })
}
