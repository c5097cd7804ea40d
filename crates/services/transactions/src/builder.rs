//! Transactions as programs write them.

use crate::{Asked, Groups, Outcome, Page, Split, StoreClient, TransactionError};
use bytes::Bytes;
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_store::{Operation, StoreCommand, Transaction, behind, beyond_prefix, limits};
use std::collections::BTreeSet;

/// Keys that are read together, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
    pub(crate) limit: u32,
    pub(crate) reverse: bool,
}

impl Range {
    /// All keys, at most as many entries as one read gives ([`limits::RANGE_ENTRIES`]).
    #[must_use]
    pub fn all() -> Range {
        let limit = limits::RANGE_ENTRIES as u32;
        Range { start: Bytes::new(), end: None, limit, reverse: false }
    }

    /// All keys that begin so.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Range {
        let start = prefix.into();
        Range { end: beyond_prefix(&start), start, ..Range::all() }
    }

    /// From this key on.
    #[must_use]
    pub fn from(self, start: impl Into<Bytes>) -> Range {
        Range { start: start.into(), ..self }
    }

    /// From the first key behind this one on: the next page, where this is the last key of one.
    #[must_use]
    pub fn after(self, key: &[u8]) -> Range {
        // Behind the last key of all there is none.
        let last = || Range { end: Some(Bytes::new()), ..self.clone() };
        behind(key).map_or_else(last, |start| self.clone().from(start))
    }

    /// Up to this key, without it.
    #[must_use]
    pub fn to(self, end: impl Into<Bytes>) -> Range {
        Range { end: Some(end.into()), ..self }
    }

    /// So many entries at most, from 1 to [`limits::RANGE_ENTRIES`].
    #[must_use]
    pub fn limit(self, limit: u32) -> Range {
        Range { limit, ..self }
    }

    /// From the last key to the first.
    #[must_use]
    pub fn reverse(self) -> Range {
        Range { reverse: true, ..self }
    }

    /// The range that an operation reads; none if it is another one.
    #[must_use]
    pub fn of(operation: &Operation) -> Option<Range> {
        match operation.clone() {
            Operation::ReadRange { start, end, limit, reverse } => {
                Some(Range { start, end, limit, reverse })
            }
            _ => None,
        }
    }

    pub(crate) fn operation(self) -> Operation {
        let Range { start, end, limit, reverse } = self;
        Operation::ReadRange { start, end, limit, reverse }
    }
}

/// A transaction over any of a store's partitions: operations that happen together or not at all. Comparisons are evaluated first, on the state
/// before it; the others in their order, each seeing what those before it did. Limits are [`perdura_store::limits`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct Builder {
    client: StoreClient,
    transaction: Transaction,
}

impl Builder {
    fn add<T>(&mut self, operation: Operation) -> Asked<T> {
        let index = self.transaction.operations.len();
        self.transaction.operations.push(operation);
        Asked::at(index)
    }

    /// Fails the transaction unless the key has this value.
    pub fn cmp(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Builder {
        self.unchanged(key, Some(value.into()))
    }

    /// Fails the transaction unless the key is as a read found it: has this value, or is absent.
    pub fn unchanged(&mut self, key: impl Into<Bytes>, value: Option<Bytes>) -> &mut Builder {
        let _: Asked<()> = self.add(Operation::Cmp { key: key.into(), value });
        self
    }

    /// Reads a key.
    pub fn read(&mut self, key: impl Into<Bytes>) -> Asked<Option<Bytes>> {
        self.add(Operation::Read { key: key.into() })
    }

    /// Reads the entries of a range, over all partitions that have some of it. What is committed meanwhile is in it as a whole or not at all.
    pub fn read_range(&mut self, range: Range) -> Asked<Page> {
        self.add(range.operation())
    }

    /// Writes a key; fails the transaction if it is there.
    pub fn insert(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Builder {
        let _: Asked<()> = self.add(Operation::Insert { key: key.into(), value: value.into() });
        self
    }

    /// Writes a key, whether it is there or not.
    pub fn write(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Builder {
        self.put(key.into(), value.into(), false)
    }

    /// Writes a key; fails the transaction if it is not there.
    pub fn update(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Builder {
        self.put(key.into(), value.into(), true)
    }

    fn put(&mut self, key: Bytes, value: Bytes, only_if_present: bool) -> &mut Builder {
        let _: Asked<()> = self.add(Operation::Write { key, value, only_if_present });
        self
    }

    /// Removes a key, whether it is there or not; its result says which.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> Asked<bool> {
        self.add(Operation::Delete { key: key.into() })
    }

    /// The partitions that have some of what it touches; 0 if that is nothing.
    #[must_use]
    pub fn partitions(&self) -> BTreeSet<PartitionId> {
        match &self.client {
            StoreClient::Whole(_) => BTreeSet::from([PartitionId(0)]),
            StoreClient::Partitioned(transactions) => {
                Split::partitions_of(transactions.groups().map(), &self.transaction)
            }
        }
    }

    /// Carries it out. Where others are in its way it is tried again until the deadline.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`].
    pub async fn run(self, options: &Options) -> Result<Outcome, TransactionError> {
        self.client.transact(self.transaction, options).await
    }
}

impl StoreClient {
    /// A transaction of any operations.
    pub fn transaction(&self) -> Builder {
        Builder { client: self.clone(), transaction: Transaction::default() }
    }

    /// A key's value.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`].
    pub async fn get(
        &self,
        key: impl Into<Bytes>,
        options: &Options,
    ) -> Result<Option<Bytes>, TransactionError> {
        self.call(&StoreCommand::Get { key: key.into() }, true, options).await?.found_alone()
    }

    /// Writes a key, whether it is there or not.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`].
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: &Options,
    ) -> Result<(), TransactionError> {
        let put = StoreCommand::Put { key: key.into(), value: value.into() };
        self.call(&put, false, options).await?.found_alone()
    }

    /// Removes a key, whether it is there or not; whether it was.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`].
    pub async fn delete(
        &self,
        key: impl Into<Bytes>,
        options: &Options,
    ) -> Result<bool, TransactionError> {
        self.call(&StoreCommand::Delete { key: key.into() }, false, options).await?.found_alone()
    }

    /// A page of a range, over all partitions.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`].
    pub async fn read_range(
        &self,
        range: Range,
        options: &Options,
    ) -> Result<Page, TransactionError> {
        let transaction = Transaction { operations: vec![range.operation()] };
        self.transact(transaction, options).await?.found_alone()
    }

    /// A page of what one partition has of a range, as of one moment of it, in one round. A store without partitions is partition 0.
    ///
    /// # Errors
    /// As [`crate::Transactions::transact`]; and when there is no such partition.
    pub async fn read_range_in(
        &self,
        partition: PartitionId,
        range: Range,
        options: &Options,
    ) -> Result<Page, TransactionError> {
        match self {
            StoreClient::Whole(_) if partition.0 == 0 => self.read_range(range, options).await,
            StoreClient::Whole(_) => {
                Err(TransactionError::NoPartition { partition, partitions: 1 })
            }
            StoreClient::Partitioned(transactions) => {
                let deadline_ms = transactions.groups().deadline_ms(options.timeout);
                transactions.read_range_in(partition, range, deadline_ms).await
            }
        }
    }
}
