//! A range read to its end, page by page, each partition by a cursor of its own, and merged: every entry is sent once, however many partitions there
//! are, and one that does not answer can be left out.

use crate::{Groups, Page, Range, StoreClient, TransactionError};
use bytes::Bytes;
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_store::{Entries, EntriesIter, behind, limits};
use std::iter::Peekable;

/// How far a partition is read.
#[derive(Debug)]
struct Cursor {
    partition: PartitionId,
    /// What was read and not given yet.
    read: Peekable<EntriesIter>,
    /// Where its next page begins; none if that is all.
    next: Option<Bytes>,
}

impl Cursor {
    /// No key that it gives from now on is below this one; none if there is none any more.
    fn lowest(&mut self) -> Option<&Bytes> {
        self.read.peek().map(|(key, _)| key).or(self.next.as_ref())
    }
}

/// Reads all entries of a range, in the order of their keys, over all partitions or some.
///
/// What is read of one partition at once (up to 1 MiB or [`perdura_store::limits::RANGE_ENTRIES`] entries) is one moment of that partition; what is written
/// meanwhile may be there or not, a transaction in part. [`StoreClient::read_range`] reads a page that is one moment of all.
/// It holds one such read of each partition in memory.
#[derive(Debug)]
pub struct Walk {
    client: StoreClient,
    range: Range,
    cursors: Vec<Cursor>,
}

/// A partition could not be read.
#[derive(Debug, thiserror::Error)]
#[error("partition {}: {error}", partition.0)]
pub struct WalkError {
    /// Which.
    pub partition: PartitionId,
    /// Why.
    #[source]
    pub error: TransactionError,
}

impl Walk {
    /// Entries behind those of the last time, at least one, and as many as one read gives at most; none at the end. After an error it can be called again, and
    /// goes on where it was.
    ///
    /// # Errors
    /// When a partition was not read. Nothing is passed over.
    pub async fn next(
        &mut self,
        options: &Options,
    ) -> Result<Option<Vec<(Bytes, Bytes)>>, WalkError> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some(cursor) = self.lowest() {
            if bytes >= limits::RANGE_BYTES {
                break;
            }
            if let Some((key, value)) = cursor.read.next() {
                bytes += 8 + key.len() + value.len();
                entries.push((key, value));
            } else if entries.is_empty() {
                self.read(options).await?;
            } else {
                break;
            }
        }
        Ok(Some(entries).filter(|entries| !entries.is_empty()))
    }

    /// The partition with the lowest key that may come.
    fn lowest(&mut self) -> Option<&mut Cursor> {
        let mut lowest: Option<(Bytes, usize)> = None;
        for (index, cursor) in self.cursors.iter_mut().enumerate() {
            let Some(key) = cursor.lowest() else { continue };
            if lowest.as_ref().is_none_or(|(least, _)| key < least) {
                lowest = Some((key.clone(), index));
            }
        }
        self.cursors.get_mut(lowest?.1)
    }

    /// The next page of the partition whose keys are needed first.
    async fn read(&mut self, options: &Options) -> Result<(), WalkError> {
        let (client, range) = (self.client.clone(), self.range.clone());
        let Some(cursor) = self.lowest() else { return Ok(()) };
        let Some(start) = cursor.next.clone() else { return Ok(()) };
        let partition = cursor.partition;
        let page = client.read_range_in(partition, range.from(start), options).await;
        let Page { entries, more } = page.map_err(|error| WalkError { partition, error })?;
        let last = entries.iter().last().filter(|_| more);
        cursor.next = last.and_then(|(key, _)| behind(&key));
        cursor.read = entries.iter().peekable();
        Ok(())
    }

    /// Reads no more of a partition.
    pub fn leave_out(&mut self, partition: PartitionId) {
        self.cursors.retain(|cursor| cursor.partition != partition);
    }
}

impl StoreClient {
    /// Reads a range to its end, forwards: its limit and direction do not count. Of these partitions, or of all.
    #[must_use]
    pub fn walk(&self, range: Range, partitions: Option<&[PartitionId]>) -> Walk {
        let is_meant = |one: &PartitionId| partitions.is_none_or(|some| some.contains(one));
        let all = self.partitions_of(&range).filter(is_meant);
        let cursor = |partition| {
            let begin = match self {
                StoreClient::Whole(_) => Bytes::new(),
                StoreClient::Partitioned(transactions) => {
                    transactions.groups().map().begin_of(partition)
                }
            };
            let next = Some(begin.max(range.start.clone()));
            Cursor { partition, read: Entries::default().iter().peekable(), next }
        };
        let cursors = all.map(cursor).collect();
        let limit = limits::RANGE_ENTRIES as u32;
        Walk { client: self.clone(), range: Range { limit, reverse: false, ..range }, cursors }
    }
}
