//! Ends the transactions that clients left in the partitions of a server, so that their locks are gone though nobody else comes, and has
//! forgotten what is over of clients that do not come back ([`perdura_transactions::Resolver`]). With a key that is good for nothing else.

use crate::config::{Cluster, PartitionedCluster, ServerFile};
use perdura_protocol::{PartitionId, SecretKey};
use perdura_transactions::{ConnectError, Live, Resolver, Transactions, Turn};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(500);

/// How often it reads the cluster's file anew, which names other members when one was replaced.
const READ: Duration = Duration::from_secs(2);

/// A thread that ends what clients left, until this is dropped.
pub(crate) struct ResolverThread {
    stop: Arc<AtomicBool>,
}

impl Drop for ResolverThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl ResolverThread {
    /// Begins to look after the partitions that this server has members of. One that cannot begin says so in the log: the others do its work.
    pub(crate) fn start(file: &ServerFile, cluster: &PartitionedCluster) -> ResolverThread {
        let stop = Arc::new(AtomicBool::new(false));
        let Some(key) = file.resolver.clone() else {
            tracing::warn!(
                "this server has no resolver_key: transactions that clients leave are ended by other servers"
            );
            return ResolverThread { stop };
        };
        let work = Work {
            key,
            path: file.cluster(),
            cluster: cluster.clone(),
            own: file.members.iter().map(|member| member.partition).collect(),
            server: file.id,
            stop: Arc::clone(&stop),
        };
        let begin = || {
            std::thread::Builder::new().name("resolver".into()).spawn(|| {
                if let Err(error) = work.run() {
                    warn(&error);
                }
            })
        };
        if let Err(error) = begin() {
            warn(&error);
        }
        ResolverThread { stop }
    }
}

fn warn(error: &dyn std::fmt::Display) {
    tracing::warn!("transactions that clients leave are ended by other servers only: {error}");
}

/// What its thread has.
struct Work {
    key: SecretKey,
    path: PathBuf,
    cluster: PartitionedCluster,
    own: Vec<PartitionId>,
    server: usize,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn run(mut self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(async {
            while !self.stops() {
                self.look_on().await.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Resolver until it is to stop, or the cluster's file has other members.
    async fn look_on(&mut self) -> Result<(), ConnectError> {
        let partitions = (0..self.cluster.partitions.len() as u16).map(PartitionId);
        let groups: Vec<Cluster> =
            partitions.map(|partition| self.cluster.group(partition)).collect();
        let groups = groups.iter().map(Cluster::client_config).collect();
        let live = Live::connect(Arc::clone(&self.cluster.map), groups, &self.key)?;
        let transactions = Transactions::over(live);
        let own: Vec<(PartitionId, Turn)> =
            self.own.iter().map(|partition| (*partition, self.turn(*partition))).collect();
        let mut resolver = Resolver::new(transactions.clone(), own);
        let mut read = Instant::now();
        while !self.stops() {
            let looked = resolver.look().await;
            if looked.ended > 0 {
                tracing::info!("ended {} transactions that their clients had left", looked.ended);
            }
            tokio::time::sleep(LOOK).await;
            if read.elapsed() >= READ {
                read = Instant::now();
                if self.has_changed() {
                    break;
                }
            }
        }
        transactions.groups().close().await;
        Ok(())
    }

    /// Which one it is of the servers that have members of a partition.
    fn turn(&self, partition: PartitionId) -> Turn {
        let members = &self.cluster.partitions[partition.index()].members;
        let servers: BTreeSet<usize> = members.iter().map(|member| member.server).collect();
        let number = servers.iter().filter(|server| **server < self.server).count();
        Turn { number, of: servers.len().max(number + 1) }
    }

    /// Whether members were replaced, by the file; it is taken over then.
    fn has_changed(&mut self) -> bool {
        // One that is being written is read the next time.
        let Ok(cluster) = PartitionedCluster::load(&self.path) else { return false };
        let changed = cluster.map == self.cluster.map && cluster != self.cluster;
        if changed {
            tracing::info!("{} has changed", self.path.display());
            self.cluster = cluster;
        }
        changed
    }
}
