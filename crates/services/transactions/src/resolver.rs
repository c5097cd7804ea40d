//! What is done for clients that do not come back: their transactions are ended, and what is over of theirs is forgotten.
//!
//! Each server does it for the partitions that it has members of. They look at the same things, and wait by rank before they act, another
//! one first for each client: so one does the work, and it is done if that one does not run.

use crate::{Groups, Rescue, Transactions};
use futures_util::future::join_all;
use perdura_protocol::{PartitionId, PublicKey, SessionId, Time, seeded};
use perdura_store::partition::{
    Intent, PartitionCommand, PartitionReply, TransactionId, Waiting, limits,
};
use std::collections::{BTreeMap, BTreeSet};

/// How much longer each next one in rank waits before it ends a transaction, milliseconds.
const RANK_MS: u64 = 200;

/// A session of which something has been remembered for so long may have ended, milliseconds. By this one's clock: that of a group in which
/// nothing happens any more stands still.
const OVER_MS: u64 = 70_000;

/// How much longer each next one in rank waits for that, milliseconds.
const OVER_RANK_MS: u64 = 20_000;

/// How often it is looked for what is over, milliseconds.
const FORGET_EVERY_MS: u64 = 5_000;

/// Most time for one question, or for ending one transaction, milliseconds.
const WITHIN_MS: u64 = 5_000;

/// What could not be ended is tried again after so long, milliseconds, and twice as long each time ...
const RETRY_MS: u64 = 500;

/// ... up to this: a participant is down.
const RETRY_AT_MOST_MS: u64 = 30_000;

/// What is not listed for so long is over, milliseconds.
const UNLISTED_MS: u64 = 120_000;

/// Transactions that it ends at once: those of a participant that is down take their whole time.
const ENDED_AT_ONCE: usize = 64;

/// Sessions for which it asks in one look how far they are fenced off.
const FORGOTTEN_AT_ONCE: usize = 16;

/// A session of which nothing could be forgotten is asked for again after so long, milliseconds, and twice as long each time ...
const AGAIN_MS: u64 = 20_000;

/// ... up to this.
const AGAIN_AT_MOST_MS: u64 = 600_000;

/// So many sessions it has in mind ...
const SESSIONS: usize = 4096;

/// ... and transactions that are pending.
const PENDING: usize = 16_384;

/// What one look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// Transactions that were pending; of each partition so many are looked at as it lists at once.
    pub pending: u64,
    /// Transactions that it ended.
    pub ended: u64,
    /// Transactions that partitions forgot.
    pub forgotten: u64,
    /// Partitions that did not answer.
    pub silent: u64,
}

/// A page of transactions: the last one of the page before.
type Cursor = Option<(Time, TransactionId)>;

/// A session of which something is remembered.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    /// When it is asked how far it is fenced off.
    asked_at_ms: u64,
    /// The pause after that, if it is in vain.
    pause_ms: u64,
}

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

struct Listed {
    transactions: Vec<Waiting>,
    /// The partition's clock.
    now: Time,
    next: Cursor,
}

/// Which one it is of those that look at a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Its number among them.
    pub number: usize,
    /// How many they are; more than that.
    pub of: usize,
}

impl Turn {
    /// How many others come before this one for a client.
    fn rank(self, client: PublicKey) -> u64 {
        let first = usize::from(client.0[0]) % self.of;
        ((self.number + self.of - first) % self.of) as u64
    }
}

/// See the module.
#[derive(Debug)]
pub struct Resolver<G> {
    transactions: Transactions<G>,
    own: BTreeMap<PartitionId, Turn>,
    forgets_at_ms: u64,
    pages: BTreeMap<PartitionId, Cursor>,
    sessions: BTreeMap<(PartitionId, SessionId), Noticed>,
    /// Where the next look goes on among what is pending.
    behind: BTreeMap<PartitionId, Cursor>,
    /// Transactions that are pending.
    pending: BTreeMap<TransactionId, Pending>,
}

impl<G: Groups> Resolver<G> {
    /// The one for these partitions.
    #[must_use]
    pub fn new(
        transactions: Transactions<G>,
        own: impl IntoIterator<Item = (PartitionId, Turn)>,
    ) -> Resolver<G> {
        let (pages, sessions) = (BTreeMap::new(), BTreeMap::new());
        let (behind, pending) = (BTreeMap::new(), BTreeMap::new());
        Resolver {
            transactions,
            own: own.into_iter().collect(),
            forgets_at_ms: 0,
            pages,
            sessions,
            behind,
            pending,
        }
    }

    /// With what it does that.
    #[must_use]
    pub fn transactions(&self) -> &Transactions<G> {
        &self.transactions
    }

    /// How many others come before this one for a client, in a partition.
    fn rank(&self, partition: PartitionId, client: PublicKey) -> u64 {
        self.own.get(&partition).map_or(0, |turn| turn.rank(client))
    }

    /// Looks once at all of its partitions. To be called again and again, twice a second or so.
    pub async fn look(&mut self) -> Looked {
        let mut looked = Looked::default();
        self.end(&mut looked).await;
        let now_ms = self.transactions.groups().now_ms();
        if now_ms >= self.forgets_at_ms {
            self.forgets_at_ms = now_ms + FORGET_EVERY_MS;
            for partition in self.own.keys().copied().collect::<Vec<_>>() {
                looked.forgotten += self.forget(partition).await;
            }
        }
        looked
    }

    fn deadline_ms(&self) -> u64 {
        self.transactions.groups().now_ms().saturating_add(WITHIN_MS)
    }

    /// A page of transactions, and where it goes on.
    async fn list(&self, partition: PartitionId, command: PartitionCommand) -> Option<Listed> {
        let asked = self.transactions.ask(partition, &command, self.deadline_ms()).await;
        let Ok((PartitionReply::Pending { transactions, more, now }, _)) = asked else {
            return None;
        };
        let last = transactions.last().map(|last| (last.since, last.intent.id()));
        Some(Listed { transactions, now, next: last.filter(|_| more) })
    }

    async fn end(&mut self, looked: &mut Looked) {
        let mut old: BTreeMap<TransactionId, Intent> = BTreeMap::new();
        let after = |partition: &PartitionId| self.behind.get(partition).copied().flatten();
        let pages: Vec<(PartitionId, Cursor)> =
            self.own.keys().map(|partition| (*partition, after(partition))).collect();
        let lists = pages.iter().map(|(partition, after)| {
            self.list(*partition, PartitionCommand::Pending { after: *after })
        });
        let lists = join_all(lists).await;
        for ((partition, after), listed) in pages.into_iter().zip(lists) {
            // Who does not answer now is asked again soon.
            let Some(listed) = listed else {
                looked.silent += 1;
                continue;
            };
            // Page by page, and what was there before that counts as well.
            looked.pending += listed.transactions.len() as u64 + u64::from(after.is_some());
            self.behind.insert(partition, listed.next);
            let own_ms = self.transactions.groups().now_ms();
            for Waiting { since, intent } in listed.transactions {
                let id = intent.id();
                let new = Pending {
                    noticed_ms: own_ms,
                    listed_ms: own_ms,
                    ended_at_ms: 0,
                    pause_ms: RETRY_MS,
                };
                if self.pending.len() < PENDING {
                    self.pending.entry(id).or_insert(new);
                }
                let mut pending = new;
                if let Some(known) = self.pending.get_mut(&id) {
                    known.listed_ms = own_ms;
                    pending = *known;
                }
                // By this one's clock too: where agreed time was led ahead a partition's stands still until all have caught up with it.
                let by_own_ms = own_ms.saturating_sub(pending.noticed_ms);
                let age_ms = listed.now.0.saturating_sub(since.0).max(by_own_ms);
                let is_due = own_ms >= pending.ended_at_ms;
                let expiry_ms = limits::EXPIRY_MS * if seeded!(EndedLate) { 10 } else { 1 };
                if is_due && age_ms >= expiry_ms + RANK_MS * self.rank(partition, intent.client) {
                    old.insert(id, intent);
                }
            }
        }
        let own_ms = self.transactions.groups().now_ms();
        self.pending.retain(|_, one| own_ms.saturating_sub(one.listed_ms) < UNLISTED_MS);
        // Those of a participant that is down take their whole time: of what was in vain before, some at a time, behind the others.
        let was_in_vain = |intent: &Intent| {
            self.pending.get(&intent.id()).is_none_or(|pending| pending.ended_at_ms > 0)
        };
        let (mut again, mut old): (Vec<Intent>, Vec<Intent>) =
            old.into_values().partition(was_in_vain);
        again.truncate(ENDED_AT_ONCE);
        old.append(&mut again);
        for some in old.chunks(ENDED_AT_ONCE) {
            let deadline_ms = self.deadline_ms();
            let rescues = some.iter().map(|intent| self.transactions.rescue(intent, deadline_ms));
            let ended = join_all(rescues).await;
            let now_ms = self.transactions.groups().now_ms();
            for (intent, rescue) in some.iter().zip(ended) {
                if rescue == Rescue::Ended {
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

    /// Has partitions forget what is over of clients whose sessions are.
    async fn forget(&mut self, partition: PartitionId) -> u64 {
        let after = self.pages.get(&partition).copied().flatten();
        let list = PartitionCommand::Over { after };
        let Some(Listed { transactions, next, .. }) = self.list(partition, list).await else {
            return 0;
        };
        self.pages.insert(partition, next);
        let now_ms = self.transactions.groups().now_ms();
        let mut sessions: BTreeMap<SessionId, Vec<Intent>> = BTreeMap::new();
        for Waiting { intent, .. } in transactions {
            let session = intent.participant(partition).map(|one| intent.session(one));
            if let Some(session) = session.filter(|one| self.is_due((partition, *one), now_ms)) {
                sessions.entry(session).or_default().push(intent);
            }
        }
        let mut forgotten = 0;
        for (session, intents) in sessions.into_iter().take(FORGOTTEN_AT_ONCE) {
            let deadline_ms = self.deadline_ms();
            let (count, _) = self.transactions.forget(&intents, 0, deadline_ms).await;
            forgotten += count;
            let place = (partition, session);
            if count > 0 {
                self.sessions.remove(&place);
            } else if let Some(noticed) = self.sessions.get_mut(&place) {
                noticed.asked_at_ms = now_ms + noticed.pause_ms;
                noticed.pause_ms = (2 * noticed.pause_ms).min(AGAIN_AT_MOST_MS);
            }
        }
        forgotten
    }

    /// Whether it is time to ask for a session.
    fn is_due(&mut self, place: (PartitionId, SessionId), now_ms: u64) -> bool {
        if self.sessions.len() >= SESSIONS {
            // Of what others have had forgotten.
            self.sessions.retain(|_, noticed| noticed.asked_at_ms + AGAIN_AT_MOST_MS >= now_ms);
        }
        if let Some(noticed) = self.sessions.get(&place) {
            return now_ms >= noticed.asked_at_ms;
        }
        if self.sessions.len() < SESSIONS {
            let wait_ms = OVER_MS + OVER_RANK_MS * self.rank(place.0, place.1.client);
            let noticed = Noticed { asked_at_ms: now_ms + wait_ms, pause_ms: AGAIN_MS };
            self.sessions.insert(place, noticed);
        }
        false
    }
}

/// The sessions in which a client took part in these transactions.
pub(crate) fn places_of(intents: &[Intent]) -> BTreeSet<(PartitionId, u64)> {
    let of = |intent: &Intent| {
        let places = intent.participants.iter().map(|one| (one.partition, one.nonce));
        places.collect::<Vec<_>>()
    };
    intents.iter().flat_map(of).collect()
}
