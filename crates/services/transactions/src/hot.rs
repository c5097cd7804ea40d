//! Keys over which callers of this process met others lately: they take turns there, in the order in which they came, rather than in each other's way.
//! So each process has one caller at a time there; between processes their marks decide ([`crate::waiting`]).
//!
//! Invariants:
//! - Turns are taken in the order of keys, all at once and never more by who has some: nobody waits for one who waits for him.
//! - A turn is had until the call is over here, and what ends it is on its way: what whoever comes next asks for is ordered behind that.
//! - Nobody waits for long for one who waits for a partition that is down: where no turn has come for a while all go on without.

use crate::forget::{SessionAt, sessions_at};
use crate::waiting::Waiter;
use crate::{Groups, TransactionError, Transactions};
use futures_util::future::{Either, select};
use perdura_store::partition::{Blocker, Intent};
use perdura_store::{Operation, Transaction};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// A key over which nobody met another one or waited for so long is none of these any more, milliseconds.
const HOT_MS: u64 = 2_000;

/// Where nobody has had a turn for so long they are not waited for, milliseconds; ...
const STANDS_MS: u64 = 1_500;

/// ... which is looked at so often.
const LOOK_MS: u64 = 500;

/// What ends a transaction has to be verified before it is ordered, which what begins the next one has not: that comes so much later, milliseconds.
const ENDING_MS: u64 = 1;

/// So many there are at most; more are not taken turns for.
const KEYS: usize = 4_096;

/// Of a transaction that met another process's, so many keys.
const KEYS_OF_ONE: usize = 16;

/// Transactions that are over, of which it is known what they touched: who met one may hear of it later.
const REMEMBERED: usize = 1_024;

/// What stands for a key. Two that have the same take turns in vain, and that is all.
type KeyHash = u64;

fn hash_of(key: &[u8]) -> KeyHash {
    // The same in each run: it decides an order.
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

/// The keys that a transaction touches, and whether it writes each. Ranges are not among them. By hashes, so that nothing of what the caller
/// brought is kept.
#[derive(Debug, Default)]
pub(crate) struct Touches(BTreeMap<KeyHash, bool>);

impl Touches {
    pub(crate) fn of(transaction: &Transaction) -> Touches {
        Touches::by(&transaction.operations)
    }

    pub(crate) fn by<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Touches {
        let mut touches = Touches::default();
        for operation in operations {
            match operation {
                Operation::Cmp { key, .. } | Operation::Read { key } => touches.add(key, false),
                Operation::Insert { key, .. }
                | Operation::Write { key, .. }
                | Operation::Delete { key } => touches.add(key, true),
                Operation::ReadRange { .. } => {}
            }
        }
        touches
    }

    pub(crate) fn of_key(key: &[u8], writes: bool) -> Touches {
        Touches(BTreeMap::from([(hash_of(key), writes)]))
    }

    fn add(&mut self, key: &[u8], writes: bool) {
        *self.0.entry(hash_of(key)).or_default() |= writes;
    }

    /// Keys in which this one and another one cannot be at the same time.
    fn meets(&self, other: &Touches) -> impl Iterator<Item = KeyHash> {
        let hinders = |(key, writes): &(&KeyHash, &bool)| {
            other.0.get(*key).is_some_and(|also| **writes || *also)
        };
        self.0.iter().filter(hinders).map(|(key, _)| *key)
    }

    fn written(&self) -> impl Iterator<Item = KeyHash> {
        self.0.iter().filter(|(_, writes)| **writes).map(|(key, _)| *key)
    }
}

#[derive(Debug)]
struct Key {
    turns: Arc<RwLock<()>>,
    /// When somebody met another one there, or waited.
    met_ms: u64,
    /// When somebody last had a turn.
    had_ms: u64,
    /// When somebody met another process there, if ever.
    crowded_ms: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    keys: BTreeMap<KeyHash, Key>,
    /// What transactions over several partitions touch, by their numbers, and the sessions that they name: those that are under way, ...
    running: BTreeMap<u64, (Arc<Touches>, Vec<SessionAt>)>,
    /// ... and the last ones that are over.
    over: VecDeque<u64>,
}

impl Hot {
    /// A transaction begins.
    pub(crate) fn begin(&mut self, counter: u64, touches: &Arc<Touches>, places: Vec<SessionAt>) {
        self.running.insert(counter, (Arc::clone(touches), places));
    }

    /// What a transaction touches, if it is one of this process. Others with the same key have other sessions, and may have the same numbers.
    fn own(&self, intent: &Intent) -> Option<Arc<Touches>> {
        let (touches, places) = self.running.get(&intent.counter)?;
        let is_own = sessions_at(&intent.participants).eq(places.iter().copied());
        is_own.then(|| Arc::clone(touches))
    }

    /// One is over.
    pub(crate) fn end(&mut self, counter: u64) {
        self.over.push_back(counter);
        while self.over.len() > REMEMBERED {
            let oldest = self.over.pop_front();
            oldest.map(|oldest| self.running.remove(&oldest));
        }
    }

    fn note(&mut self, key: KeyHash, now_ms: u64) {
        if self.keys.len() >= KEYS {
            self.keys.retain(|_, one| now_ms.saturating_sub(one.met_ms) < HOT_MS);
        }
        if let Some(key) = self.keys.get_mut(&key) {
            key.met_ms = now_ms;
        } else if self.keys.len() < KEYS {
            let turns = Arc::default();
            let key_of = Key { turns, met_ms: now_ms, had_ms: now_ms, crowded_ms: None };
            self.keys.insert(key, key_of);
        }
    }

    /// One that touches this met another one.
    fn met(&mut self, touches: &Touches, blocker: &Blocker, now_ms: u64) {
        let own = match blocker {
            Blocker::Transaction { intent, .. } => self.own(intent),
            Blocker::Ranges | Blocker::Other => None,
        };
        if let Some(other) = own {
            touches.meets(&other).for_each(|key| self.note(key, now_ms));
            return;
        }
        // Those who read there are not in each other's way.
        for key in touches.written().take(KEYS_OF_ONE) {
            self.note(key, now_ms);
            if let Some(key) = self.keys.get_mut(&key) {
                key.crowded_ms = Some(now_ms);
            }
        }
    }

    /// Whether others than this process were met lately over what is touched.
    fn is_crowded(&self, touches: &Touches, now_ms: u64) -> bool {
        let is_crowded = |key: &Key| key.crowded_ms.is_some_and(|at_ms| now_ms < at_ms + HOT_MS);
        !self.keys.is_empty()
            && touches.written().any(|key| self.keys.get(&key).is_some_and(is_crowded))
    }

    /// Somebody has a turn.
    fn had(&mut self, key: KeyHash, now_ms: u64) {
        if let Some(key) = self.keys.get_mut(&key) {
            key.had_ms = now_ms;
        }
    }

    /// Whether nobody has had one for long.
    fn stands(&self, key: KeyHash, now_ms: u64) -> bool {
        self.keys.get(&key).is_none_or(|key| now_ms.saturating_sub(key.had_ms) >= STANDS_MS)
    }

    /// For what there are turns to take, in order.
    fn turns(&mut self, touches: &Touches, now_ms: u64) -> Vec<(KeyHash, Arc<RwLock<()>>, bool)> {
        if self.keys.is_empty() {
            return Vec::new();
        }
        let mut turns = Vec::new();
        for (key, writes) in &touches.0 {
            match self.keys.get(key) {
                Some(one) if now_ms.saturating_sub(one.met_ms) < HOT_MS => {
                    turns.push((*key, Arc::clone(&one.turns), *writes));
                }
                // Whoever has a turn there still has it; one more may be in his way once.
                Some(_) => drop(self.keys.remove(key)),
                None => {}
            }
        }
        turns
    }
}

/// A turn, until it is dropped.
enum Turn {
    Shared { _turn: OwnedRwLockReadGuard<()> },
    Alone { _turn: OwnedRwLockWriteGuard<()> },
}

/// All that a try needs.
#[derive(Default)]
pub(crate) struct Turns {
    held: Vec<Turn>,
}

async fn take(turns: Arc<RwLock<()>>, writes: bool) -> Turn {
    if writes {
        Turn::Alone { _turn: turns.write_owned().await }
    } else {
        Turn::Shared { _turn: turns.read_owned().await }
    }
}

fn try_to_take(turns: &Arc<RwLock<()>>, writes: bool) -> Option<Turn> {
    let turns = Arc::clone(turns);
    if writes {
        turns.try_write_owned().ok().map(|turn| Turn::Alone { _turn: turn })
    } else {
        turns.try_read_owned().ok().map(|turn| Turn::Shared { _turn: turn })
    }
}

impl<G: Groups> Transactions<G> {
    /// The turns that a call needs, unless it has some: they are kept until it is over, since who waited would have to wait for whoever came behind him.
    pub(crate) async fn take_turns_once(
        &self,
        turns: &mut Turns,
        touches: &Touches,
        waiter: &Waiter<G>,
    ) -> Result<(), TransactionError> {
        if turns.held.is_empty() {
            let taken = self.take_turns(touches, waiter.deadline_ms()).await;
            *turns = taken.ok_or_else(|| self.conflict(waiter))?;
        }
        Ok(())
    }

    /// Whoever is next comes behind what ends this one, which replicas have to verify.
    pub(crate) fn give_turns(&self, turns: Turns) {
        if turns.held.is_empty() {
            return;
        }
        let sleep = self.groups().sleep(ENDING_MS);
        self.groups().spawn(Box::pin(async move {
            sleep.await;
            drop(turns);
        }));
    }

    /// Waits for its turn where it needs one; none if that does not come by the deadline.
    async fn take_turns(&self, touches: &Touches, deadline_ms: u64) -> Option<Turns> {
        let all = self.inner.state().hot.turns(touches, self.groups().now_ms());
        let mut held = Vec::with_capacity(all.len());
        for (key, turns, writes) in all {
            let turn = match try_to_take(&turns, writes) {
                Some(turn) => Some(turn),
                None => self.wait_for_turn(key, turns, writes, deadline_ms).await,
            };
            let now_ms = self.groups().now_ms();
            if turn.is_some() {
                self.inner.state().hot.had(key, now_ms);
            } else if now_ms >= deadline_ms {
                return None;
            }
            held.extend(turn);
        }
        Some(Turns { held })
    }

    /// As long as others have theirs, and the deadline is not there.
    async fn wait_for_turn(
        &self,
        key: KeyHash,
        turns: Arc<RwLock<()>>,
        writes: bool,
        deadline_ms: u64,
    ) -> Option<Turn> {
        let mut turn = pin!(take(turns, writes));
        loop {
            let now_ms = self.groups().now_ms();
            {
                let hot = &mut self.inner.state().hot;
                if now_ms >= deadline_ms || hot.stands(key, now_ms) {
                    return None;
                }
                hot.note(key, now_ms);
            }
            let look_ms = LOOK_MS.min(deadline_ms - now_ms);
            match select(turn.as_mut(), pin!(self.groups().sleep(look_ms))).await {
                Either::Left((turn, _)) => return Some(turn),
                Either::Right(_) => {}
            }
        }
    }

    /// One that touches this met somebody.
    pub(crate) fn note_met(&self, touches: &Touches, blocker: &Blocker) {
        let now_ms = self.groups().now_ms();
        self.inner.state().hot.met(touches, blocker, now_ms);
    }

    /// Whether others than this process were met lately over what is touched.
    pub(crate) fn is_crowded(&self, touches: &Touches) -> bool {
        self.inner.state().hot.is_crowded(touches, self.groups().now_ms())
    }
}
