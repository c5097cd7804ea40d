//! Ending what clients have left pending.

use super::{Cursor, Listed, Own, Round};
use crate::{Groups, Resolution, Transactions};
use futures_util::future::join_all;
use perdura_protocol::{PartitionId, Time, seeded};
use perdura_store::partition::{Intent, PartitionCommand, TransactionId, Waiting, limits};
use std::collections::BTreeMap;

/// How much longer each next one in rank waits before it ends a transaction, milliseconds.
const RANK_MS: u64 = 200;

/// What could not be ended is tried again after so long, milliseconds, and twice as long each time ...
const RETRY_MS: u64 = 500;

/// ... up to this: a participant is down.
const RETRY_AT_MOST_MS: u64 = 30_000;

/// What is not listed for so long is over, milliseconds.
const UNLISTED_MS: u64 = 120_000;

/// Transactions that it ends at once: those of a participant that is down take their whole time.
const ENDED_AT_ONCE: usize = 64;

/// Transactions that it has in mind.
const PENDING: usize = 16_384;

/// A transaction that is pending.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Since when this one knows, and when it was last listed.
    noticed_ms: u64,
    listed_ms: u64,
    /// It is ended then, and when that fails after such a pause.
    ended_at_ms: u64,
    pause_ms: u64,
}

impl Pending {
    fn new(now_ms: u64) -> Pending {
        Pending { noticed_ms: now_ms, listed_ms: now_ms, ended_at_ms: 0, pause_ms: RETRY_MS }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Where the next look goes on.
    behind: BTreeMap<PartitionId, Cursor>,
    pending: BTreeMap<TransactionId, Pending>,
}

impl Ending {
    /// For how long it has been pending, by a partition's clock, and by this one's too: where agreed time was led ahead a partition's stands still until all
    /// have caught up with it.
    fn age_ms(&self, one: &Waiting, now: Time, own_ms: u64) -> u64 {
        let noticed = self.pending.get(&one.intent.id());
        let by_own_ms = noticed.map_or(0, |pending| own_ms.saturating_sub(pending.noticed_ms));
        now.0.saturating_sub(one.since.0).max(by_own_ms)
    }

    pub(super) async fn look<G: Groups>(
        &mut self,
        transactions: &Transactions<G>,
        own: &Own,
        looked: &mut Round,
    ) {
        let own_ms = transactions.groups().now_ms();
        let is_old = |one: &Waiting, now: Time| self.age_ms(one, now, own_ms) >= limits::EXPIRY_MS;
        let lists = own.partitions().map(async |partition| {
            let after = self.behind.get(&partition).copied().flatten();
            let command = |after| PartitionCommand::Pending { after };
            let (pages, next) = transactions.list_old(partition, after, command, is_old).await;
            (partition, after, pages, next)
        });
        let lists = join_all(lists).await;
        let mut old: BTreeMap<TransactionId, Intent> = BTreeMap::new();
        for (partition, after, pages, next) in lists {
            // Who does not answer now is asked again soon.
            looked.silent += u64::from(pages.is_empty());
            // Page by page, and what was there before that counts as well.
            looked.pending += u64::from(after.is_some());
            self.behind.insert(partition, next);
            for page in pages {
                looked.pending += page.transactions.len() as u64;
                self.note((partition, own), page, transactions.groups().now_ms(), &mut old);
            }
        }
        let own_ms = transactions.groups().now_ms();
        self.pending.retain(|_, one| own_ms.saturating_sub(one.listed_ms) < UNLISTED_MS);
        self.end(transactions, old, looked).await;
    }

    /// Notes what is pending, and of that what others may end.
    fn note(
        &mut self,
        (partition, own): (PartitionId, &Own),
        page: Listed,
        own_ms: u64,
        old: &mut BTreeMap<TransactionId, Intent>,
    ) {
        for one in page.transactions {
            let id = one.intent.id();
            if self.pending.len() < PENDING {
                self.pending.entry(id).or_insert(Pending::new(own_ms));
            }
            let age_ms = self.age_ms(&one, page.now, own_ms);
            let mut is_due = true;
            if let Some(known) = self.pending.get_mut(&id) {
                known.listed_ms = own_ms;
                is_due = own_ms >= known.ended_at_ms;
            }
            let expiry_ms = limits::EXPIRY_MS * if seeded!(EndedLate) { 10 } else { 1 };
            if is_due && age_ms >= expiry_ms + RANK_MS * own.rank(partition, one.intent.client) {
                old.insert(id, one.intent);
            }
        }
    }

    async fn end<G: Groups>(
        &mut self,
        transactions: &Transactions<G>,
        old: BTreeMap<TransactionId, Intent>,
        looked: &mut Round,
    ) {
        // Those of a participant that is down take their whole time: of what was in vain before, some at a time, behind the others.
        let was_in_vain = |intent: &Intent| {
            self.pending.get(&intent.id()).is_none_or(|pending| pending.ended_at_ms > 0)
        };
        let (mut again, mut old): (Vec<Intent>, Vec<Intent>) =
            old.into_values().partition(was_in_vain);
        again.truncate(ENDED_AT_ONCE);
        old.append(&mut again);
        for some in old.chunks(ENDED_AT_ONCE) {
            let deadline_ms = transactions.deadline_of_look_ms();
            let endings = some.iter().map(|intent| transactions.resolve(intent, deadline_ms));
            let ended = join_all(endings).await;
            let now_ms = transactions.groups().now_ms();
            for (intent, ending) in some.iter().zip(ended) {
                if ending == Resolution::Ended {
                    looked.ended += 1;
                    self.pending.remove(&intent.id());
                } else if let Some(pending) = self.pending.get_mut(&intent.id()) {
                    // Others are not to wait for it again and again.
                    pending.ended_at_ms = now_ms + pending.pause_ms;
                    pending.pause_ms = (2 * pending.pause_ms).min(RETRY_AT_MOST_MS);
                }
            }
        }
    }
}
