//! A client of the store: reads a key and writes it, in one transaction. The cluster is that of the files in the directory that is given, as `perdura dev` or
//! `perdura init` makes them, over partitions or not; its replicas have to run.

use perdura::{Store, StoreError};

/// Writes who was there last, and says who was before.
async fn visit(directory: &str, name: &str) -> anyhow::Result<()> {
    let store = Store::open(directory)?;
    let visit = store.transact(async |visit| {
        let before = visit.get("last visitor").await?;
        visit.put("last visitor", name.to_owned());
        Ok::<_, StoreError>(before)
    });
    println!("before {name}: {:?}", visit.await?);
    store.close().await;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, name] = &arguments[..] else {
        anyhow::bail!("give the directory of a cluster's files, and a name");
    };
    tokio::runtime::Runtime::new()?.block_on(visit(directory, name))
}
