//! The counter of `crates/core/execution/examples/counter.rs`, replicated: a cluster's files, three replicas from them, one
//! thread each, and a client that counts. In earnest each replica is a process on a host of its own, and the files are
//! made once.

#[path = "../../core/execution/examples/counter.rs"]
mod counter;

use bytes::Bytes;
use counter::Counter;
use perdura::Cluster;
use perdura::client::{Options, Reply};
use perdura::config::{CLIENT_FILE, REPLICA_FILE};
use perdura::protocol::configuration::Durability;
use perdura::protocol::{Faults, ServiceName};
use perdura::replica_runtime::{Shutdown, run};
use perdura::{connect, create, replica};
use std::path::Path;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the cluster runs: it stands in its files, and no replica of another service takes part.
const SERVICE: ServiceName = ServiceName::literal("counter");

/// Makes a cluster's files in `dir`, with replicas on this machine.
fn make(dir: &Path) -> Result<Cluster, Failure> {
    let faults = Faults::new(1, 0)?; // Crash faults only; (1, 1) is Byzantine, with 4 replicas.
    let places = create::Place::all(faults.n(), &[], None, false)?;
    Ok(create::make(dir, faults, Durability::Sync, SERVICE, |_| {}, &places)?)
}

/// Runs the replica whose file this is until `shutdown` is requested.
fn serve(file: &Path, shutdown: &Shutdown) -> Result<(), Failure> {
    Ok(run(replica::config(file, &SERVICE)?, Counter::default, shutdown)?)
}

/// Counts, as the client that was registered with the cluster.
async fn count(dir: &Path, cluster: &Cluster) -> Result<(), Failure> {
    let client = connect::connect(cluster, &connect::key(&dir.join(CLIENT_FILE), cluster)?)?;
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

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let dir = directory.path().join("cluster");
    let cluster = make(&dir)?;
    let shutdown = Shutdown::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::scope(|scope| {
        let replicas: Vec<_> = (0..cluster.replicas.len())
            .map(|id| {
                let file = dir.join(format!("replica-{id}")).join(REPLICA_FILE);
                let shutdown = &shutdown;
                scope.spawn(move || serve(&file, shutdown))
            })
            .collect();
        let counted = runtime.block_on(count(&dir, &cluster));
        shutdown.request();
        for replica in replicas {
            replica.join().map_err(|_| "a replica panicked")??;
        }
        counted
    })
}
