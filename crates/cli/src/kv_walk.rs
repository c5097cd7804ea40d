//! A range to its end, for commands that read much: of all partitions, of some, or of those that answer.

use crate::Usage;
use crate::connect::{connect_store, connect_store_with};
use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use clap::Args;
use perdura_client::Options;
use perdura_cluster::config::{Cluster, KeyFile};
use perdura_cluster::connect::UNREACHABLE_AFTER;
use perdura_protocol::PartitionId;
use perdura_transactions::{Range, StoreClient, TransactionError, Walk};

/// Of which partitions.
#[derive(Args)]
pub struct Of {
    /// Only what this partition has; may be given several times
    #[arg(long = "partition", value_name = "P")]
    partitions: Vec<u16>,
    /// Leave out partitions that cannot be read, and say which; the exit code is 1 then
    #[arg(long)]
    skip_unreachable: bool,
}

impl Of {
    /// A client of the store. Where partitions may be left out, those of which too few replicas are there are not waited for.
    pub fn connect(&self, groups: &[Cluster], key: &KeyFile) -> Result<StoreClient> {
        self.partitions.iter().try_for_each(|one| check(*one, groups))?;
        Ok(if self.skip_unreachable {
            connect_store_with(groups, key, Some(UNREACHABLE_AFTER))?
        } else {
            connect_store(groups, key)?
        })
    }

    /// Whether all are meant.
    pub fn is_all(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Reads a range.
    pub fn walk(&self, client: &StoreClient, range: Range) -> Walking {
        let some: Vec<PartitionId> = self.partitions.iter().copied().map(PartitionId).collect();
        let some = Some(&some[..]).filter(|some| !some.is_empty());
        let is_one_of_several = client.clients().len() > 1;
        let skips = self.skip_unreachable;
        Walking { walk: client.walk(range, some), skips, is_one_of_several, left_out: Vec::new() }
    }
}

/// That there is such a partition.
pub fn check(partition: u16, groups: &[Cluster]) -> Result<()> {
    let count = groups.len();
    ensure!(
        usize::from(partition) < count,
        Usage(format!("there is no partition {partition}: there are {count}, from 0 on"))
    );
    Ok(())
}

/// A range that is read, and the partitions that were left out.
pub struct Walking {
    walk: Walk,
    skips: bool,
    is_one_of_several: bool,
    left_out: Vec<PartitionId>,
}

impl Walking {
    /// The next entries, in the order of their keys; none at the end.
    pub async fn next(&mut self, options: &Options) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        loop {
            let failed = match self.walk.next(options).await {
                Ok(entries) => return Ok(entries),
                Err(failed) => failed,
            };
            // It does not answer, or what somebody left there waits for one that does not.
            let is_silent = matches!(
                failed.error,
                TransactionError::Call(_)
                    | TransactionError::Conflict { .. }
                    | TransactionError::Refused { .. }
            );
            if !is_silent || !self.is_one_of_several {
                bail!(failed.error);
            }
            if !self.skips {
                let error = failed.error;
                let hint = format!("{error}; --skip-unreachable reads what the others have");
                return Err(anyhow::Error::new(error).context(hint));
            }
            tell!("perdura: partition {} is left out: {}", failed.partition.0, failed.error);
            self.leave_out(failed.partition);
        }
    }

    /// Reads no more of a partition.
    pub fn leave_out(&mut self, partition: PartitionId) {
        self.walk.leave_out(partition);
        self.left_out.push(partition);
    }

    /// What was left out so far.
    pub fn all_left_out(&self) -> &[PartitionId] {
        &self.left_out
    }

    /// The options that mean what was left out; none if nothing was.
    pub fn left_out(&self) -> Option<String> {
        let mut all: Vec<u16> = self.left_out.iter().map(|one| one.0).collect();
        all.sort_unstable();
        let options: Vec<String> = all.iter().map(|one| format!("--partition {one}")).collect();
        Some(options.join(" ")).filter(|text| !text.is_empty())
    }
}
