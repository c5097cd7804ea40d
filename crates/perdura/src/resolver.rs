//! Ends the transactions that clients left in the partitions of a server, so that their locks are gone though nobody else comes.
//!
//! It is a client like others, with a key that is good for nothing else, and asks its server's partitions now and then what is
//! pending. What is old enough it ends as all partitions have voted. The resolvers of all servers look, and wait by rank before they
//! act, another one first for each transaction: so one does the work, and it is done if that one does not run.

use crate::config::{Cluster, PartitionedCluster, ServerFile};
use perdura_protocol::{PartitionId, Time};
use perdura_store::partition::{Intent, PartitionCommand, PartitionReply, TransactionId, limits};
use perdura_transactions::{Live, Rescue, Transactions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(500);

/// How much longer each next one in rank waits, milliseconds.
const RANK_MS: u64 = 200;

/// Most time for one question, or for ending one transaction.
const WITHIN: Duration = Duration::from_secs(5);

/// Transactions that it ends at once.
const AT_ONCE: usize = 16;

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
                let watch = Watch { transactions: Transactions::over(live), own, server, servers };
                while !asked.load(Ordering::Relaxed) {
                    watch.look().await;
                    tokio::time::sleep(LOOK).await;
                }
                watch.transactions.groups().close().await;
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

struct Watch {
    transactions: Transactions<Live>,
    own: Vec<PartitionId>,
    server: usize,
    servers: usize,
}

impl Watch {
    /// How many others come before this one for a transaction.
    fn rank(&self, id: TransactionId) -> u64 {
        let first = usize::from(id.0.0[0]) % self.servers;
        ((self.server + self.servers - first) % self.servers) as u64
    }

    async fn look(&self) {
        let groups = self.transactions.groups();
        let mut old: Vec<Intent> = Vec::new();
        for partition in &self.own {
            let list = PartitionCommand::Pending { after: None };
            let asked = self.transactions.ask(*partition, &list, groups.deadline_ms(WITHIN)).await;
            // Who does not answer now is asked again soon.
            let Ok((PartitionReply::Pending { transactions, now: Time(now), .. }, _)) = asked
            else {
                continue;
            };
            for one in transactions {
                let age_ms = now.saturating_sub(one.since.0);
                let wait_ms = limits::EXPIRY_MS + RANK_MS * self.rank(one.intent.id());
                if age_ms >= wait_ms && !old.contains(&one.intent) {
                    old.push(one.intent);
                }
            }
        }
        for some in old.chunks(AT_ONCE) {
            let mut ended = 0;
            let tasks: Vec<_> = some
                .iter()
                .map(|intent| {
                    let (transactions, intent) = (self.transactions.clone(), intent.clone());
                    let deadline_ms = groups.deadline_ms(WITHIN);
                    tokio::spawn(async move { transactions.rescue(&intent, deadline_ms).await })
                })
                .collect();
            for task in tasks {
                ended += u32::from(task.await.is_ok_and(|rescue| rescue == Rescue::Ended));
            }
            if ended > 0 {
                tracing::info!("ended {ended} transactions that their clients had left");
            }
        }
    }
}
