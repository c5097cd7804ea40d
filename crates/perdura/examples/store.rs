//! A client of the store: reads a key and writes it, in one transaction. The cluster is that of the files in the directory that is given, as `perdura dev` or
//! `perdura init` makes them, over partitions or not; its replicas have to run.

use perdura::client::Options;
use perdura::config::CLIENT_FILE;
use perdura::connect::{connect_store, key, load_groups};
use perdura::transactions::Ended;
use std::path::Path;

/// Writes who was there last, and says who was before.
async fn visit(directory: &Path, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let groups = load_groups(directory)?;
    let store = connect_store(&groups, &key(&directory.join(CLIENT_FILE), &groups[0])?)?;
    let mut visit = store.transaction();
    let before = visit.read("last visitor");
    visit.write("last visitor", name.to_owned());
    if let Ended::Committed(found) = visit.run(&Options::default()).await? {
        println!("before {name}: {:?}", found.get(before));
    }
    store.close().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, name] = &arguments[..] else {
        return Err("give the directory of a cluster's files, and a name".into());
    };
    tokio::runtime::Runtime::new()?.block_on(visit(Path::new(directory), name))
}
