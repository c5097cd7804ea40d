//! What is done for clients that do not come back: their transactions are ended, and what is over of theirs is forgotten.
//!
//! Each server does it for the partitions that it has members of. They look at the same things, and wait by rank before they act, another
//! one first for each client: so one does the work, and it is done if that one does not run.
//!
//! What is looked at is listed from the first voted on, page by page, and no further than what is old enough for anything to be done: else one would be
//! led on and on by those who are at work, and never come back to who is dead. To forget waits for partitions that are down, to end does not: they go side by
//! side.

mod ending;
mod forgetting;

use crate::{Groups, Transactions};
use ending::Ending;
use forgetting::Forgetting;
use perdura_protocol::{PartitionId, PublicKey, Time};
use perdura_store::partition::{Intent, PartitionCommand, PartitionReply, TransactionId, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// How often it is looked for what is over, milliseconds.
const FORGET_EVERY_MS: u64 = 5_000;

/// Most time for one question, or for ending one transaction, milliseconds.
const WITHIN_MS: u64 = 5_000;

/// Pages that are listed of a partition in one look. The next one goes on behind them.
const PAGES: usize = 16;

/// What one look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Transactions that were pending; of each partition so many are looked at as are listed at once.
    pub pending: u64,
    /// Transactions that it ended.
    pub ended: u64,
    /// Transactions that partitions forgot since the look before.
    pub forgotten: u64,
    /// Partitions that did not answer.
    pub silent: u64,
}

/// A page of transactions: the last one of the page before.
type Cursor = Option<(Time, TransactionId)>;

/// A page.
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

/// The partitions that one looks after.
#[derive(Clone, Debug)]
struct Own(BTreeMap<PartitionId, Turn>);

impl Own {
    fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.0.keys().copied()
    }

    /// How many others come before this one for a client, in a partition.
    fn rank(&self, partition: PartitionId, client: PublicKey) -> u64 {
        self.0.get(&partition).map_or(0, |turn| turn.rank(client))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Resolver<G> {
    transactions: Transactions<G>,
    own: Own,
    ending: Ending,
    forgets_at_ms: u64,
    /// None while what is over is being forgotten.
    forgetting: Arc<Mutex<Option<Forgetting>>>,
}

impl<G: Groups> Resolver<G> {
    /// The one for these partitions.
    #[must_use]
    pub fn new(
        transactions: Transactions<G>,
        own: impl IntoIterator<Item = (PartitionId, Turn)>,
    ) -> Resolver<G> {
        Resolver {
            transactions,
            own: Own(own.into_iter().collect()),
            ending: Ending::default(),
            forgets_at_ms: 0,
            forgetting: Arc::new(Mutex::new(Some(Forgetting::default()))),
        }
    }

    /// With what it does that.
    #[must_use]
    pub fn transactions(&self) -> &Transactions<G> {
        &self.transactions
    }

    /// Looks once at all of its partitions. To be called again and again, twice a second or so. What is over is forgotten beside that.
    pub async fn look(&mut self) -> Round {
        let mut looked = Round::default();
        let now_ms = self.transactions.groups().now_ms();
        if now_ms >= self.forgets_at_ms {
            self.forgets_at_ms = now_ms + FORGET_EVERY_MS;
            looked.forgotten = self.begin_to_forget();
        }
        self.ending.look(&self.transactions, &self.own, &mut looked).await;
        looked
    }

    /// Begins to have forgotten what is over, unless that is under way; gives how much was since it was begun before.
    fn begin_to_forget(&self) -> u64 {
        let forgetting = self.forgetting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut forgetting) = forgetting else { return 0 };
        let before = forgetting.take_count();
        let (transactions, own) = (self.transactions.clone(), self.own.clone());
        let place = Arc::clone(&self.forgetting);
        self.transactions.groups().spawn(Box::pin(async move {
            forgetting.look(&transactions, &own).await;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(forgetting);
        }));
        before
    }
}

impl<G: Groups> Transactions<G> {
    fn deadline_of_look_ms(&self) -> u64 {
        self.groups().now_ms().saturating_add(WITHIN_MS)
    }

    /// A page of transactions, and where it goes on.
    async fn list(&self, partition: PartitionId, command: PartitionCommand) -> Option<Listed> {
        let asked = self.ask(partition, &command, self.deadline_of_look_ms()).await;
        let Ok((PartitionReply::Pending { transactions, more, now }, _)) = asked else {
            return None;
        };
        let last = transactions.last().map(|last| (last.since, last.intent.id()));
        Some(Listed { transactions, now, next: last.filter(|_| more) })
    }

    /// Pages behind one, as long as there is something old on each; and where the next look begins. Nothing, where the partition does not answer.
    async fn list_old(
        &self,
        partition: PartitionId,
        mut after: Cursor,
        command: fn(Cursor) -> PartitionCommand,
        is_old: impl Fn(&Waiting, Time) -> bool,
    ) -> (Vec<Listed>, Cursor) {
        let mut pages = Vec::new();
        while pages.len() < PAGES {
            let Some(page) = self.list(partition, command(after)).await else { break };
            let goes_on = page.transactions.iter().any(|one| is_old(one, page.now));
            after = page.next.filter(|_| goes_on);
            pages.push(page);
            if after.is_none() {
                break;
            }
        }
        (pages, after)
    }
}

/// The sessions in which a client took part in these transactions.
pub(crate) fn all_places_of(intents: &[Intent]) -> BTreeSet<(PartitionId, u64)> {
    let of = |intent: &Intent| {
        let places = intent.participants.iter().map(|one| (one.partition, one.nonce));
        places.collect::<Vec<_>>()
    };
    intents.iter().flat_map(of).collect()
}
