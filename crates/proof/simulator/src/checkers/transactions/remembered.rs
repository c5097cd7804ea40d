//! What a partition has to remember of transactions, by its commands and its replies: nobody makes it remember more than the bound by what
//! he asks himself, and what it keeps beside its entries takes no more than that needs.

use perdura_protocol::{Encode, PublicKey, SessionId};
use perdura_store::limits::ENTRY_OVERHEAD_BYTES;
use perdura_store::partition::{Intent, TransactionId, Wanted, limits};
use perdura_store::{Operation, OperationResult};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What a key, a time, a vote and an outcome take beside an intent, at most.
const RECORD_BYTES: u64 = ENTRY_OVERHEAD_BYTES as u64 + 128;

/// A fence or a cap, with its key.
const SMALL_BYTES: u64 = ENTRY_OVERHEAD_BYTES as u64 + 64;

/// What a mark takes beside what it is on, at most.
const MARK_BYTES: u64 = ENTRY_OVERHEAD_BYTES as u64 + 256;

/// Of each partition its members with the administrator's word, and when it was heard of.
const OF_PARTITION_BYTES: u64 = 4 << 10;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    /// Bytes of each transaction.
    records: BTreeMap<SessionId, Vec<u64>>,
    held: BTreeMap<TransactionId, u64>,
    fences: BTreeSet<SessionId>,
    /// Bytes of what each key's callers waited for, the largest first: as many as it may have marks.
    marks: BTreeMap<PublicKey, Vec<u64>>,
}

impl Remembered {
    fn of_client(&self, client: PublicKey) -> u64 {
        let sessions = |nonce| SessionId { client, nonce };
        let own = self.records.range(sessions(0)..=sessions(u64::MAX));
        own.map(|(_, records)| records.len() as u64).sum()
    }

    /// It remembers another transaction, of this session, since somebody asked; in words why it may not.
    pub fn begins(
        &mut self,
        asker: PublicKey,
        session: SessionId,
        intent: &Intent,
    ) -> Result<(), String> {
        let (before, most) = (self.of_client(session.client), limits::RECORDS_PER_CLIENT);
        if asker == session.client && before >= u64::from(most) {
            return Err(format!("its client has made it remember {before} already, {most} may be"));
        }
        let bytes = intent.to_bytes().len() as u64 + RECORD_BYTES;
        self.records.entry(session).or_default().push(bytes);
        Ok(())
    }

    /// A transaction holds what it read and writes.
    pub fn holds(
        &mut self,
        transaction: TransactionId,
        operations: &[Operation],
        results: &[OperationResult],
    ) {
        let operations: usize = operations.iter().map(|one| one.to_bytes().len()).sum();
        let results: usize = results.iter().map(|one| one.to_bytes().len()).sum();
        let pieces = 1 + (4 * operations + 2 * results) / limits::HELD_PIECE_BYTES;
        let bytes = 4 * operations + 2 * results + pieces * 2 * ENTRY_OVERHEAD_BYTES;
        self.held.insert(transaction, bytes as u64);
    }

    /// It holds nothing any more.
    pub fn ends(&mut self, transaction: TransactionId) {
        self.held.remove(&transaction);
    }

    /// A session is fenced off.
    pub fn fenced(&mut self, session: SessionId) {
        self.fences.insert(session);
    }

    /// Somebody has a mark, perhaps, for this.
    pub fn marked(&mut self, asker: PublicKey, wanted: &Wanted) {
        let bytes = wanted.bytes().min(limits::BYTES_OF_A_MARK) as u64;
        let own = self.marks.entry(asker).or_default();
        own.push(bytes + MARK_BYTES);
        own.sort_unstable_by_key(|bytes| Reverse(*bytes));
        own.truncate(limits::MARKS_PER_CLIENT);
    }

    /// So many of a session are forgotten: they were the smallest.
    pub fn forgets(&mut self, session: SessionId, count: u32) {
        let Some(records) = self.records.get_mut(&session) else { return };
        records.sort_unstable();
        records.drain(..(count as usize).min(records.len()));
    }

    /// What is kept takes so much at most, bytes.
    pub fn bytes_at_most(&self, partitions: usize) -> u64 {
        let records: u64 = self.records.values().flatten().sum();
        let held: u64 = self.held.values().sum();
        let marks: u64 = self.marks.values().flatten().sum();
        // Each client has a cap at most.
        let small = (2 * self.fences.len() + self.records.len()) as u64 * SMALL_BYTES;
        records + held + marks + small + (1 + partitions as u64) * OF_PARTITION_BYTES
    }
}
