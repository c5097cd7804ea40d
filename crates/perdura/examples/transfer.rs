//! Money that is moved between accounts of a store, in whichever partitions they are. The store is that of the files in the directory that is given,
//! as `perdura dev --partitions 2` or `perdura init` makes them; its replicas have to run.

use perdura::client::Options;
use perdura::config::CLIENT_FILE;
use perdura::connect::{connect_store, key, load_groups};
use perdura::transactions::{Ended, Range, StoreClient};
use std::path::Path;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Moves an amount, if `from` has it. All that it is built on has to be as it was read, else it is tried again.
async fn transfer(store: &StoreClient, from: &str, to: &str, amount: u64) -> Result<(), Failure> {
    let options = Options::default();
    let [from, to] = [from, to].map(|name| format!("account/{name}"));
    loop {
        let mut look = store.transaction();
        let (had, has) = (look.read(from.clone()), look.read(to.clone()));
        let Ended::Committed(found) = look.run(&options).await? else { continue };
        let (had, has) = (found.get(had), found.get(has));
        let balance = |value: &Option<_>| balance(value.as_deref());
        let left = balance(&had)?.checked_sub(amount).ok_or("there is not enough")?;
        let more = balance(&has)? + amount;
        let mut move_it = store.transaction();
        move_it.unchanged(from.clone(), had).write(from.clone(), left.to_string());
        move_it.unchanged(to.clone(), has).write(to.clone(), more.to_string());
        if move_it.run(&options).await?.is_committed() {
            return Ok(());
        }
    }
}

fn balance(value: Option<&[u8]>) -> Result<u64, Failure> {
    value.map_or(Ok(0), |value| Ok(std::str::from_utf8(value)?.parse()?))
}

async fn run(directory: &Path) -> Result<(), Failure> {
    let groups = load_groups(directory)?;
    let store = connect_store(&groups, &key(&directory.join(CLIENT_FILE), &groups[0])?)?;
    let options = Options::default();
    let mut open = store.transaction();
    open.insert("account/alice", "100").insert("account/bob", "0");
    if let Ended::Failed { operation } = open.run(&options).await? {
        println!("account {operation} was open before");
    }
    transfer(&store, "alice", "bob", 30).await?;
    for (key, value) in store.read_range(Range::prefix("account/"), &options).await?.entries.iter()
    {
        println!("{}: {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
    }
    if let Err(error) = transfer(&store, "alice", "carol", 1_000_000).await {
        println!("a million for carol: {error}");
    }
    store.close().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let directory = std::env::args_os().nth(1).ok_or("give the directory of a cluster's files")?;
    tokio::runtime::Runtime::new()?.block_on(run(Path::new(&directory)))
}
