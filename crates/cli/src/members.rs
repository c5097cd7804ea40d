//! Making the members of one partition known in all: the votes of a group count elsewhere only if its members are known there.

use crate::connect::{connect_store, runtime};
use anyhow::{Context, Result, bail, ensure};
use perdura_cluster::Cluster;
use perdura_cluster::config::KeyFile;
use perdura_protocol::PartitionId;
use perdura_store::partition::{Members, PartitionCommand, PartitionReply};
use perdura_transactions::StoreClient;
use std::time::Duration;

/// Signs with the administrator's key who the members of this partition are, by its cluster's files, and makes it known: in the partition
/// itself, from where clients pass it on, and in all others. Says which of these have not learnt it yet.
///
/// # Errors
/// When it is not known to be known in the partition itself.
pub fn make_known(
    groups: &[Cluster],
    partition: PartitionId,
    key: &KeyFile,
    timeout: Duration,
) -> Result<()> {
    let group = groups.get(partition.index()).context("there is no such partition")?;
    let members = Members {
        partition,
        configuration: group.configuration,
        keys: group.replicas.iter().map(|replica| replica.key).collect(),
    };
    let map = group.parameters.map.as_ref().context("the cluster has no partitions")?;
    let signed =
        members.signed(map, &key.key).context("the partition cannot have these members")?;
    let command = PartitionCommand::Members(signed);
    runtime()?.block_on(async {
        let store = connect_store(groups, key)?;
        let StoreClient::Partitioned(transactions) = &store else {
            bail!("the cluster has no partitions");
        };
        let told = async |to: PartitionId| {
            let deadline_ms = transactions.groups().deadline_ms(timeout);
            match transactions.ask(to, &command, deadline_ms).await {
                Ok((PartitionReply::Known { configuration, .. }, _)) => {
                    ensure!(
                        configuration >= group.configuration,
                        "the answer fits no question"
                    );
                    Ok(())
                }
                Ok(_) => bail!("the answer fits no question"),
                Err(error) => Err(error.into()),
            }
        };
        let known = told(partition).await;
        if known.is_ok() {
            let others = (0..groups.len() as u16).map(PartitionId).filter(|to| *to != partition);
            for to in others {
                if let Err(error) = told(to).await {
                    say!(
                        "partition {to} does not know yet who the members of partition {partition} are ({error}): it learns that from \
                         clients and servers when it needs it"
                    );
                }
            }
        }
        for client in store.clients() {
            client.close().await;
        }
        known.with_context(|| {
            format!("who the members of partition {partition} are is not known there yet; run the command again")
        })
    })
}
