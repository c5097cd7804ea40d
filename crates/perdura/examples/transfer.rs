//! Money that is moved between accounts of a store, in whichever partitions they are. The store is that of the files in the directory that is given,
//! as `perdura dev --partitions 2` or `perdura init` makes them; its replicas have to run.

use anyhow::Context;
use perdura::StoreError;
use perdura::blocking::{Store, Transaction};

/// What an account has.
fn balance(t: &mut Transaction<'_>, account: &str) -> Result<u64, StoreError<String>> {
    let value = t.get(format!("account/{account}"))?;
    let text = value.map_or(Ok("0".to_owned()), |value| String::from_utf8(value.to_vec()));
    let amount = text.ok().and_then(|text| text.parse().ok());
    amount.ok_or_else(|| StoreError::Stopped(format!("{account} holds no amount")))
}

/// Moves an amount, if `from` has it. All that it is built on has to be as it was read, else it runs again.
fn transfer(store: &Store, from: &str, to: &str, amount: u64) -> Result<(), StoreError<String>> {
    store.transact(|t| {
        let left = balance(t, from)?.checked_sub(amount);
        let left = left.ok_or_else(|| StoreError::Stopped("there is not enough".to_owned()))?;
        let more = balance(t, to)? + amount;
        t.put(format!("account/{from}"), left.to_string());
        t.put(format!("account/{to}"), more.to_string());
        Ok(())
    })
}

fn main() -> anyhow::Result<()> {
    let directory =
        std::env::args_os().nth(1).context("give the directory of a cluster's files")?;
    let store = Store::open(directory)?;
    store.put("account/alice", "100")?;
    transfer(&store, "alice", "bob", 30)?;
    for entry in store.scan("account/") {
        let (key, value) = entry?;
        println!("{}: {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
    }
    if let Err(error) = transfer(&store, "alice", "carol", 1_000_000) {
        println!("a million for carol: {error}");
    }
    store.close();
    Ok(())
}
