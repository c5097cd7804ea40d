//! Ends the transactions that clients left in the partitions of a server, so that their locks are gone though nobody else comes, and has
//! forgotten what is over of clients that do not come back ([`perdura_transactions::Resolver`]). With a key that is good for nothing else.

use crate::config::{Cluster, PartitionedCluster, ServerFile};
use perdura_protocol::PartitionId;
use perdura_transactions::{Live, Resolver as Looks, Transactions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(500);

/// A thread that ends what clients left, until this is dropped.
pub(crate) struct Resolver {
    stop: Arc<AtomicBool>,
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Resolver {
    /// Begins to look after the partitions that this server has members of. One that cannot begin says so in the log: the others do its work.
    pub(crate) fn start(file: &ServerFile, cluster: &PartitionedCluster) -> Resolver {
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, server, servers) = (Arc::clone(&stop), file.id, cluster.servers.len());
        let partitions = (0..cluster.partitions.len() as u16).map(PartitionId);
        let groups: Vec<Cluster> = partitions.map(|partition| cluster.group(partition)).collect();
        let own: Vec<PartitionId> = file.members.iter().map(|member| member.partition).collect();
        let Some(key) = file.resolver.clone() else {
            tracing::warn!(
                "this server has no resolver_key: transactions that clients leave are ended by other servers"
            );
            return Resolver { stop };
        };
        let map = Arc::clone(&cluster.map);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let groups = groups.iter().map(Cluster::client_config).collect();
                let live = Live::connect(map, groups, &key).map_err(|error| error.to_string())?;
                let transactions = Transactions::over(live);
                let mut resolver = Looks::new(transactions.clone(), own, (server, servers));
                while !asked.load(Ordering::Relaxed) {
                    let looked = resolver.look().await;
                    if looked.ended > 0 {
                        tracing::info!(
                            "ended {} transactions that their clients had left",
                            looked.ended
                        );
                    }
                    tokio::time::sleep(LOOK).await;
                }
                transactions.groups().close().await;
                Ok::<(), String>(())
            })
        };
        let started = std::thread::Builder::new().name("resolver".into()).spawn(|| {
            if let Err(error) = run() {
                tracing::warn!(
                    "transactions that clients leave are ended by other servers only: {error}"
                );
            }
        });
        if let Err(error) = started {
            tracing::warn!(
                "transactions that clients leave are ended by other servers only: {error}"
            );
        }
        Resolver { stop }
    }
}
