//! One who takes all that he can and gives it back in order: a read lock over every key, taken again before it is given back, and marks as of
//! who waits. Nobody is ever in a position to end what he has pending.

use super::{Hostile, Part};
use bytes::Bytes;
use futures_util::future::join_all;
use perdura_client::Mode;
use perdura_protocol::{Encode, PartitionId};
use perdura_store::Operation;
use perdura_store::partition::{Intent, PartitionCommand, Wanted};
use perdura_transactions::Groups;

/// For so long it has each of its transactions pending beside the next one, milliseconds.
const HELD_MS: u64 = 400;

/// Keys of a partition that it marks each time.
const MARKED: usize = 6;

impl Hostile {
    /// Takes all once more, and gives back what it had before.
    pub(super) async fn hog(&mut self) {
        let everything = || Operation::ReadRange {
            start: Bytes::new(),
            end: None,
            limit: 1_000,
            reverse: false,
        };
        let partitions = (0..self.plan.partitions as u16).map(PartitionId);
        let parts: Vec<Part> = partitions.map(|one| (one, vec![everything()])).collect();
        let Some(intent) = self.intent(&parts, true).await else { return };
        let prepares = parts.iter().map(|(partition, operations)| {
            let (intent, operations) = (intent.clone(), operations.clone());
            (*partition, PartitionCommand::Prepare { intent, operations })
        });
        let before = self.held.replace(intent.clone());
        let marks = self.marks();
        let is_first = self.random.percent(50);
        if is_first {
            self.ask_all(marks.clone()).await;
        }
        self.ask_all(prepares.collect()).await;
        if !is_first {
            self.ask_all(marks).await;
        }
        self.give_back(before).await;
        self.way.sleep(HELD_MS).await;
    }

    async fn give_back(&mut self, intent: Option<Intent>) {
        let Some(intent) = intent else { return };
        let finish = |partition| {
            let (transaction, commit, votes) = (intent.id(), true, Vec::new());
            (partition, PartitionCommand::Finish { transaction, commit, votes })
        };
        let all = intent.participants.iter().map(|one| finish(one.partition)).collect();
        self.ask_all(all).await;
    }

    /// As of one who wants to write there.
    fn marks(&mut self) -> Vec<(PartitionId, PartitionCommand)> {
        let mut marks = Vec::new();
        for partition in (0..self.plan.partitions as u16).map(PartitionId) {
            for _ in 0..MARKED {
                let Some(key) = self.key_in(partition) else { continue };
                let value = Bytes::from_static(b"1");
                let write = Operation::Write { key, value, only_if_present: false };
                let wanted = Wanted::by(&[write]);
                marks.push((partition, PartitionCommand::Mark { wanted }));
            }
        }
        marks
    }

    /// All at once; what they answer is of no interest.
    async fn ask_all(&self, commands: Vec<(PartitionId, PartitionCommand)>) {
        let deadline_ms = self.way.now_ms() + super::PATIENCE_MS;
        let calls = commands.into_iter().map(|(partition, command)| {
            self.way.call(partition, command.to_bytes(), Mode::Ordered, deadline_ms)
        });
        join_all(calls).await;
    }
}
