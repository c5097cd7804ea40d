//! One who takes all that he can and gives it back in order: a read lock over every key, taken again before it is given back, and marks as of
//! who waits; or it waits for what it has itself. Nobody is ever in a position to end what he has pending.

use super::{Hostile, Part};
use bytes::Bytes;
use futures_util::future::join_all;
use perdura_client::Mode;
use perdura_protocol::{Encode, PartitionId};
use perdura_store::partition::{Intent, PartitionCommand, Wanted};
use perdura_store::{Operation, StoreCommand, Transaction};
use perdura_transactions::Groups;

/// For so long it has each of its transactions pending beside the next one, milliseconds.
const HELD_MS: u64 = 400;

/// Keys of a partition that it marks each time.
const MARKED: usize = 6;

impl Hostile {
    /// Takes all once more, or some keys, and gives back what it had before.
    pub(super) async fn hog(&mut self) {
        if self.random.percent(40) && !self.places.is_empty() {
            return self.take_again().await;
        }
        let marked = self.marked();
        let all = || Operation::ReadRange {
            start: Bytes::new(),
            end: None,
            limit: 1_000,
            reverse: false,
        };
        let takes_all = self.random.percent(50);
        let parts = marked.iter().map(|(partition, keys)| {
            let read = |key: &Bytes| Operation::Read { key: key.clone() };
            let some = keys.iter().map(read).collect();
            (*partition, if takes_all { vec![all()] } else { some })
        });
        let parts: Vec<Part> = parts.filter(|(_, operations)| !operations.is_empty()).collect();
        let Some(intent) = self.intent(&parts, true).await else { return };
        let prepares = prepares(&intent, &parts);
        let before = self.held.replace(intent);
        let mut marks = self.marks(&marked);
        if self.random.percent(50) {
            // As of one who waits for all that he then reads.
            let of_all = |(partition, operations): &Part| {
                (*partition, PartitionCommand::Mark { wanted: Wanted::by(operations), waits: true })
            };
            marks.extend(parts.iter().map(of_all));
        }
        self.places = parts;
        match self.random.below(3) {
            0 => {
                self.ask_all(marks).await;
                self.ask_all(prepares).await;
                self.give_back(before, true).await;
            }
            1 => {
                self.ask_all(prepares).await;
                self.ask_all(marks).await;
                self.give_back(before, true).await;
            }
            // It has its answer, and waits once more.
            _ => {
                self.give_back(before, true).await;
                self.be_answered(&marked).await;
                self.ask_all(prepares).await;
                self.ask_all(marks).await;
            }
        }
        self.way.sleep(HELD_MS).await;
    }

    /// As of one whose transaction had to be aborted, for another partition, and who tries again: he has his places again, and looks at none of them.
    async fn take_again(&mut self) {
        let Some(intent) = self.intent(&self.places.clone(), true).await else { return };
        let prepares = prepares(&intent, &self.places);
        let before = self.held.replace(intent);
        self.give_back(before, false).await;
        self.ask_all(prepares).await;
        self.way.sleep(HELD_MS).await;
    }

    async fn give_back(&mut self, intent: Option<Intent>, commit: bool) {
        let Some(intent) = intent else { return };
        let finish = |partition| {
            let (transaction, votes) = (intent.id(), Vec::new());
            (partition, PartitionCommand::Finish { transaction, commit, votes })
        };
        let all = intent.participants.iter().map(|one| finish(one.partition)).collect();
        self.ask_all(all).await;
    }

    /// Some keys of each partition.
    fn marked(&mut self) -> Vec<(PartitionId, Vec<Bytes>)> {
        let partitions = (0..self.plan.partitions as u16).map(PartitionId);
        let partitions: Vec<PartitionId> = partitions.collect();
        let mut keys_of = |partition| {
            let keys = (0..MARKED).filter_map(|_| self.key_in(partition));
            (partition, keys.collect())
        };
        partitions.into_iter().map(&mut keys_of).collect()
    }

    /// As of one who wants to write there, to each by itself.
    fn marks(&self, marked: &[(PartitionId, Vec<Bytes>)]) -> Vec<(PartitionId, PartitionCommand)> {
        let mark = |(partition, key): (PartitionId, &Bytes)| {
            (partition, PartitionCommand::Mark { wanted: Wanted::by(&[write(key)]), waits: true })
        };
        keys(marked).map(mark).collect()
    }

    /// Gets what it waited for, and changes nothing: a comparison fails.
    async fn be_answered(&self, marked: &[(PartitionId, Vec<Bytes>)]) {
        let deadline_ms = self.way.now_ms() + super::TIMEOUT_MS;
        let answered = keys(marked).map(|(partition, key)| {
            let (compared, value) = (key.clone(), Some(Bytes::from_static(b"no value")));
            let operations = vec![Operation::Cmp { key: compared, value }, write(key)];
            let command = StoreCommand::Transaction(Transaction { operations });
            self.way.call(partition, command.to_bytes(), Mode::Ordered, deadline_ms)
        });
        join_all(answered).await;
    }

    /// All at once; what they answer is of no interest.
    async fn ask_all(&self, commands: Vec<(PartitionId, PartitionCommand)>) {
        let deadline_ms = self.way.now_ms() + super::TIMEOUT_MS;
        let calls = commands.into_iter().map(|(partition, command)| {
            self.way.call(partition, command.to_bytes(), Mode::Ordered, deadline_ms)
        });
        join_all(calls).await;
    }
}

fn prepares(intent: &Intent, parts: &[Part]) -> Vec<(PartitionId, PartitionCommand)> {
    let prepare = |(partition, operations): &Part| {
        let (intent, operations) = (intent.clone(), operations.clone());
        (*partition, PartitionCommand::Prepare { intent, operations })
    };
    parts.iter().map(prepare).collect()
}

fn keys(marked: &[(PartitionId, Vec<Bytes>)]) -> impl Iterator<Item = (PartitionId, &Bytes)> {
    marked.iter().flat_map(|(partition, keys)| keys.iter().map(|key| (*partition, key)))
}

fn write(key: &Bytes) -> Operation {
    let (key, value) = (key.clone(), Bytes::from_static(b"1"));
    Operation::Write { key, value, only_if_present: false }
}
