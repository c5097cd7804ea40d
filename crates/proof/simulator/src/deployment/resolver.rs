//! Who ends transactions that others left, and has forgotten what is over of those who do not come back: what each server does.

use super::desk::{Way, lock};
use perdura_client::Mode;
use perdura_protocol::{Decode, Encode, PartitionId, PublicKey};
use perdura_store::partition::{PartitionCommand, PartitionReply};
use perdura_transactions::{Groups, Round, Transactions, Turn};
use std::collections::BTreeSet;

/// Between two looks, milliseconds; and at the end, when it is a matter of minutes.
const PAUSE_MS: u64 = 400;
const LONG_PAUSE_MS: u64 = 5_000;

/// How long a question takes at most, milliseconds.
const TIMEOUT_MS: u64 = 10_000;

/// See the module.
pub(crate) struct SimulatedResolver {
    of: perdura_transactions::Resolver<Way>,
    partitions: u16,
}

impl SimulatedResolver {
    pub fn new(client: Transactions<Way>, partitions: usize) -> SimulatedResolver {
        let partitions = partitions as u16;
        let alone = Turn { number: 0, of: 1 };
        let all = (0..partitions).map(|partition| (PartitionId(partition), alone));
        SimulatedResolver { of: perdura_transactions::Resolver::new(client, all), partitions }
    }

    fn groups(&self) -> &Way {
        self.of.transactions().groups()
    }

    /// Looks again and again.
    pub async fn look_on(mut self) {
        while !lock(&self.groups().desk).closing {
            self.groups().sleep(PAUSE_MS).await;
            self.of.look().await;
        }
    }

    /// Until nothing is pending.
    pub async fn end_all(mut self) {
        loop {
            let Round { pending, silent, .. } = self.of.look().await;
            if pending == 0 && silent == 0 {
                return;
            }
            self.groups().sleep(PAUSE_MS).await;
        }
    }

    /// Until nothing is remembered, but of these clients.
    pub async fn forget_all(mut self, but_of: BTreeSet<PublicKey>) {
        loop {
            self.of.look().await;
            let mut left = false;
            for partition in (0..self.partitions).map(PartitionId) {
                left |= self.is_left(partition, &but_of).await;
            }
            if !left {
                return;
            }
            self.groups().sleep(LONG_PAUSE_MS).await;
        }
    }

    /// Whether something of others is remembered, or the partition does not answer.
    async fn is_left(&self, partition: PartitionId, but_of: &BTreeSet<PublicKey>) -> bool {
        let mut after = None;
        loop {
            let command = PartitionCommand::Over { after }.to_bytes();
            let deadline_ms = self.groups().now_ms() + TIMEOUT_MS;
            let answer = self.groups().call(partition, command, Mode::Fast, deadline_ms).await;
            let reply = answer.map(|answer| PartitionReply::from_bytes(answer.reply));
            let Ok(Ok(PartitionReply::Pending { transactions, more, .. })) = reply else {
                return true;
            };
            if transactions.iter().any(|one| !but_of.contains(&one.intent.client)) {
                return true;
            }
            after = transactions.last().map(|last| (last.since, last.intent.id()));
            if !more {
                return false;
            }
        }
    }
}
