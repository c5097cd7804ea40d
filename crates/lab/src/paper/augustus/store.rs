//! A store over partitions that is measured: its servers, its clients, its entries.

use super::servers::Servers;
use anyhow::{Context, Result};
use perdura_cli::bench::live::{Guard, Live, Made};
use perdura_cli::connect::{administrator, connect, connect_store};
use perdura_client::Options;
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::{Cluster, KeyFile, files};
use perdura_cluster::create::Partitions;
use perdura_cluster::transactions::StoreClient;
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{AdminCommand, Faults, Map, SecretKey};
use perdura_store::{StoreCommand, Transaction};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A store has to carry out each command within this time while it is made ready.
const READY: Duration = Duration::from_secs(120);

/// Client keys that all correct callers share, whatever the partitions: so that each group has the same sessions, with as many
/// callers in each, and what a frame holds does not shrink with more partitions.
pub const KEYS: usize = 4;

/// Loading transactions in flight with each key.
const LOADS: usize = 4;

/// See the module.
pub struct Store {
    guard: Guard,
    groups: Vec<Cluster>,
    /// Its servers.
    pub servers: Servers,
    /// Clients, each with a key of its own.
    pub clients: Vec<StoreClient>,
}

/// What store.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Where its directory is made.
    pub work: &'a Path,
    /// Of each group.
    pub faults: Faults,
    /// How many.
    pub partitions: u16,
    /// Which keys are whose.
    pub distribution: Distribution,
}

impl Store {
    /// Makes and starts one.
    pub async fn start(live: &Live, wanted: &Wanted<'_>) -> Result<Store> {
        let made = Made::default();
        let (guard, groups, key) = match wanted.partitions {
            1 => {
                let (guard, cluster, key) = live.start(wanted.work, wanted.faults, made)?;
                (guard, vec![cluster], key)
            }
            count => {
                let distribution = wanted.distribution.clone();
                let partitions = Partitions { count: usize::from(count), distribution };
                live.start_partitioned(wanted.work, wanted.faults, made, partitions)?
            }
        };
        let servers = Servers::new(guard.pids(), &groups);
        let mut store = Store { guard, groups, servers, clients: Vec::new() };
        let mut keys = vec![key.key.clone()];
        keys.extend(store.register("caller", KEYS - 1).await?);
        for key in keys {
            store.clients.push(store.connect(&key)?);
        }
        Ok(store)
    }

    /// Its partitions, if there are several.
    pub fn map(&self) -> Option<&Arc<Map>> {
        self.groups.first()?.parameters.map.as_ref()
    }

    /// Registers so many new keys in all groups.
    pub async fn register(&self, name: &str, count: usize) -> Result<Vec<SecretKey>> {
        let first = self.groups.first().context("there is no group")?;
        let administrator = administrator(&files::directory_of(&first.path), first)?;
        let keys = (0..count).map(|_| fresh_key()).collect::<Result<Vec<SecretKey>, _>>()?;
        let options = Options { timeout: READY, reply_quorum: None };
        for group in &self.groups {
            let client = connect(group, &administrator)?;
            for (number, key) in keys.iter().enumerate() {
                let (name, key) = (format!("{name}-{number}"), key.public());
                client.administer(AdminCommand::AddClient { name, key }, &options).await?;
            }
            client.close().await;
        }
        Ok(keys)
    }

    /// From here on each caller has a key of its own, as each client of the paper.
    pub async fn give_keys(&mut self, callers: usize) -> Result<()> {
        let keys = self.register("correct", callers).await?;
        self.close().await;
        self.clients = keys.iter().map(|key| self.connect(key)).collect::<Result<_>>()?;
        Ok(())
    }

    /// A client with this key.
    pub fn connect(&self, key: &SecretKey) -> Result<StoreClient> {
        let cluster = self.groups.first().context("there is no group")?.path.clone();
        let file = KeyFile { key: key.clone(), cluster, administrator_of: None };
        Ok(connect_store(&self.groups, &file)?)
    }

    /// Carries out so many transactions, several at once.
    pub async fn load(
        &self,
        count: usize,
        transaction: impl Fn(usize) -> Transaction + 'static,
    ) -> Result<()> {
        let shared = Rc::new((Cell::new(0), transaction));
        let mut tasks = Vec::new();
        for number in 0..LOADS * self.clients.len() {
            let client = self.clients[number % self.clients.len()].clone();
            let shared = Rc::clone(&shared);
            tasks.push(tokio::task::spawn_local(async move {
                let (next, transaction) = &*shared;
                let options = Options { timeout: READY, reply_quorum: None };
                while next.get() < count {
                    let number = next.replace(next.get() + 1);
                    let command = StoreCommand::Transaction(transaction(number));
                    client.call(&command, false, &options).await?;
                }
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await?.context("cannot load the keys")?;
        }
        Ok(())
    }

    /// An error if a server has ended, with what it said.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Closes the clients.
    pub async fn close(&self) {
        for client in &self.clients {
            client.close().await;
        }
    }
}
