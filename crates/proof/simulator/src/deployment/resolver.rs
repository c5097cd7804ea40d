//! Who ends transactions that others left, as each server does it: looks at what is pending for long, and ends it as the votes have it.

use super::desk::{Way, lock};
use perdura_client::Mode;
use perdura_protocol::{Decode, Encode, PartitionId, Time};
use perdura_store::partition::{Intent, PartitionCommand, PartitionReply, TransactionId, Waiting};
use perdura_transactions::{Groups, Transactions};

/// Between two looks, milliseconds.
const PAUSE_MS: u64 = 400;

/// How long a question or the end of a transaction takes at most, milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// See the module.
pub(crate) struct Resolver {
    client: Transactions<Way>,
    partitions: usize,
}

impl Resolver {
    pub fn new(client: Transactions<Way>, partitions: usize) -> Resolver {
        Resolver { client, partitions }
    }

    fn deadline_ms(&self) -> u64 {
        self.client.groups().now_ms() + PATIENCE_MS
    }

    /// What is pending in a partition; nothing if it does not answer.
    async fn pending(&self, partition: PartitionId) -> Option<Vec<Intent>> {
        let mut all = Vec::new();
        let mut after: Option<(Time, TransactionId)> = None;
        loop {
            let command = PartitionCommand::Pending { after }.to_bytes();
            let deadline_ms = self.deadline_ms();
            let groups = self.client.groups();
            let answer = groups.call(partition, command, Mode::Fast, deadline_ms).await.ok()?;
            let Ok(PartitionReply::Pending { transactions, more, .. }) =
                PartitionReply::from_bytes(answer.reply)
            else {
                return None;
            };
            after = transactions.last().map(|last| (last.since, last.intent.id()));
            all.extend(transactions.into_iter().map(|Waiting { intent, .. }| intent));
            if !more {
                return Some(all);
            }
        }
    }

    /// One look at all partitions: whether nothing was pending anywhere.
    async fn look(&self) -> bool {
        let mut is_over = true;
        for partition in (0..self.partitions).map(|index| PartitionId(index as u16)) {
            let Some(pending) = self.pending(partition).await else {
                is_over = false;
                continue;
            };
            is_over &= pending.is_empty();
            for intent in pending {
                self.client.rescue(&intent, self.deadline_ms()).await;
            }
        }
        is_over
    }

    /// Looks again and again.
    pub async fn look_on(self) {
        while !lock(&self.client.groups().desk).closing {
            self.client.groups().sleep(PAUSE_MS).await;
            self.look().await;
        }
    }

    /// Until nothing is pending.
    pub async fn end_all(self) {
        while !self.look().await {
            self.client.groups().sleep(PAUSE_MS).await;
        }
    }
}
