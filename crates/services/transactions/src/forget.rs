//! Saying what is over, so that nobody has to remember it.

use crate::resolver::all_places_of;
use crate::{Groups, Inner, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Refusal};
use perdura_protocol::{PartitionId, RefusalReason, SessionId};
use perdura_store::partition::{
    Fence, Intent, Participant, PartitionCommand, PartitionReply, limits,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Weak};

/// So many transactions that are over, beside those that were told in vain before, are worth the trouble at once; ...
const WORTH: usize = 64;

/// ... fewer are told after this time, milliseconds: others with the same key are to have room too.
const TOLD_AFTER_MS: u64 = 10_000;

/// After nothing could be forgotten it is tried again after so long, milliseconds, and twice as long each time ...
const PAUSE_MS: u64 = 1_000;

/// ... up to this.
const PAUSE_AT_MOST_MS: u64 = 60_000;

/// Those of a partition that does not answer are remembered by this client up to this number, and then left to the partitions.
const MOST: usize = 4096;

/// How long it takes at most, milliseconds.
const FORGETTING_MS: u64 = 5_000;

/// A session whose fence is held back for so long by something that is stuck is left, milliseconds: what comes later is forgotten without it.
const HELD_BACK_MS: u64 = 1_000;

/// A session in a partition.
pub(crate) type SessionAt = (PartitionId, u64);

/// The sessions that a transaction names.
pub(crate) fn sessions_at(participants: &[Participant]) -> impl Iterator<Item = SessionAt> {
    participants.iter().map(|one| (one.partition, one.nonce))
}

/// What is over, and may be remembered.
#[derive(Debug, Default)]
pub(crate) struct Over {
    ended: Vec<Intent>,
    /// How many of these were left the last time.
    left: usize,
    /// Nothing is told before that, and then there is such a pause.
    told_at_ms: u64,
    pause_ms: u64,
    is_tidying: bool,
    /// Somebody waits for the time to tell few.
    is_timed: bool,
    /// Up to where sessions are fenced off below what this client has under way, and since when that is so.
    held_back: BTreeMap<SessionAt, (u64, u64)>,
}

impl Over {
    fn note(&mut self, intent: Intent) {
        if self.ended.len() >= MOST {
            self.ended.drain(..MOST / 2);
            self.left = self.left.saturating_sub(MOST / 2);
        }
        self.ended.push(intent);
    }

    /// Whether to tell of them now.
    fn is_worth_it(&self, now_ms: u64) -> bool {
        !self.is_tidying && self.ended.len() >= self.left + WORTH && now_ms >= self.told_at_ms
    }

    /// So far sessions are fenced off, where this client has given numbers below `next`. Gives those in which something has been stuck for long.
    fn note_fences(
        &mut self,
        fences: &BTreeMap<SessionAt, Fence>,
        next: u64,
        now_ms: u64,
    ) -> Vec<SessionAt> {
        let before = std::mem::take(&mut self.held_back);
        for (place, fence) in fences.iter().filter(|(_, fence)| fence.below < next) {
            let same = before.get(place).filter(|(below, _)| *below == fence.below);
            let since_ms = same.map_or(now_ms, |(_, since_ms)| *since_ms);
            self.held_back.insert(*place, (fence.below, since_ms));
        }
        let is_old =
            |(_, (_, since_ms)): &(&SessionAt, &(u64, u64))| now_ms >= since_ms + HELD_BACK_MS;
        self.held_back.iter().filter(is_old).map(|(place, _)| *place).collect()
    }

    /// They were told, and these are left.
    fn told(&mut self, left: Vec<Intent>, in_vain: bool, now_ms: u64) {
        self.left = left.len();
        self.ended.extend(left);
        self.is_tidying = false;
        let next_ms = (2 * self.pause_ms).clamp(PAUSE_MS, PAUSE_AT_MOST_MS);
        self.pause_ms = if in_vain { next_ms } else { 0 };
        self.told_at_ms = now_ms + self.pause_ms;
    }
}

/// Whether a part was refused since too much is remembered of the client there.
pub(crate) fn is_of_what_is_remembered(error: &CallError) -> bool {
    let CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(why)), .. } = error
    else {
        return false;
    };
    why.contains("transactions of this client are remembered")
}

impl<G: Groups> Transactions<G> {
    /// A transaction is over.
    pub(crate) fn note_ended(&self, intent: Intent) {
        let now_ms = self.groups().now_ms();
        let mut state = self.inner.state();
        state.over.note(intent);
        if state.over.is_worth_it(now_ms) {
            state.over.is_tidying = true;
            drop(state);
            let this = self.clone();
            self.groups().spawn(Box::pin(async move { this.forget_ended().await }));
        } else if !state.over.is_timed {
            state.over.is_timed = true;
            drop(state);
            let inner = Arc::downgrade(&self.inner);
            self.groups().spawn(Box::pin(Transactions::forget_in_time(inner)));
        }
    }

    /// Tells what is over when it is time, until nothing is left, or nobody has the client any more: then the partitions forget it when its sessions have
    /// ended.
    async fn forget_in_time(inner: Weak<Inner<G>>) {
        let this = || inner.upgrade().map(|inner| Transactions { inner });
        while let Some(sleep) = this().map(|this| this.sleep_until_told()) {
            sleep.await;
            let Some(this) = this() else { return };
            {
                let mut state = this.inner.state();
                let over = &mut state.over;
                if over.ended.is_empty() && !over.is_tidying {
                    over.is_timed = false;
                    return;
                }
                if over.is_tidying {
                    continue;
                }
                over.is_tidying = true;
            }
            this.forget_ended().await;
        }
    }

    fn sleep_until_told(&self) -> impl Future<Output = ()> + Send + use<G> {
        let told_at_ms = self.inner.state().over.told_at_ms;
        let wait_ms = told_at_ms.saturating_sub(self.groups().now_ms()).max(TOLD_AFTER_MS);
        self.groups().sleep(wait_ms)
    }

    /// Has told what is over, and waits for that: whoever waits may go away in the middle.
    pub(crate) async fn forget_apart(&self, deadline_ms: u64) {
        let begins = !std::mem::replace(&mut self.inner.state().over.is_tidying, true);
        if begins {
            let this = self.clone();
            self.groups().spawn(Box::pin(async move { this.forget_ended().await }));
        }
        while self.inner.state().over.is_tidying && self.groups().now_ms() < deadline_ms {
            self.groups().sleep(PAUSE_MS / 100).await;
        }
    }

    /// Waits until all has been told that this client has to tell of its transactions, which may be a moment behind what they came to.
    pub async fn settled(&self) {
        while !self.inner.state().running.is_empty() {
            self.groups().sleep(1).await;
        }
    }

    /// Has the partitions forget what is over in all of them. Begins by itself now and then; to be called before a client ends.
    pub async fn forget_ended(&self) {
        let (ended, next, running) = {
            let mut state = self.inner.state();
            state.over.is_tidying = true;
            // What waits for one partition is no reason for another one to remember anything.
            let mut running: BTreeMap<SessionAt, u64> = BTreeMap::new();
            for (counter, places) in &state.running {
                for place in places {
                    running.entry(*place).or_insert(*counter);
                }
            }
            (std::mem::take(&mut state.over.ended), state.counter + 1, running)
        };
        let below = |place: &SessionAt| running.get(place).copied().unwrap_or(next);
        let deadline_ms = self.groups().now_ms() + FORGETTING_MS;
        let (forgotten, fences) = self.forget(&ended, below, deadline_ms).await;
        let is_over = |intent: &Intent| {
            intent.participants.iter().all(|one| {
                let fence = fences.get(&(one.partition, one.nonce));
                fence.is_some_and(|fence| fence.below > intent.counter)
            })
        };
        let left: Vec<Intent> = ended.into_iter().filter(|intent| !is_over(intent)).collect();
        let in_vain = forgotten == 0 && !left.is_empty();
        let stuck = {
            let now_ms = self.groups().now_ms();
            let over = &mut self.inner.state().over;
            over.told(left, in_vain, now_ms);
            over.note_fences(&fences, next, now_ms)
        };
        for (partition, session) in stuck {
            self.groups().leave(partition, session).await;
        }
    }

    /// Has the partitions forget transactions of one client that are over, as far as its sessions are fenced off everywhere. Those of this
    /// client are so up to a number each; of others, those that have ended. Gives how many were forgotten, and the fences.
    pub(crate) async fn forget(
        &self,
        over: &[Intent],
        below: impl Fn(&SessionAt) -> u64,
        deadline_ms: u64,
    ) -> (u64, BTreeMap<SessionAt, Fence>) {
        let Some(client) = over.first().map(|intent| intent.client) else {
            return (0, BTreeMap::new());
        };
        let places = all_places_of(over);
        // Whoever is down is not waited for to the end: the others are to forget what they can.
        let now_ms = self.groups().now_ms();
        let half_ms = now_ms + deadline_ms.saturating_sub(now_ms) / 2;
        let fence = |(partition, nonce): &SessionAt| {
            let session = SessionId { client, nonce: *nonce };
            let below = below(&(*partition, *nonce));
            let (partition, command) = (*partition, PartitionCommand::Fence { session, below });
            async move { self.ask(partition, &command, half_ms).await }
        };
        let answers = join_all(places.iter().map(fence)).await;
        let mut fences: BTreeMap<SessionAt, Fence> = BTreeMap::new();
        for (place, answer) in places.iter().zip(answers) {
            if let Ok((PartitionReply::Fenced { below, now: signed, .. }, Some(proof))) = answer {
                fences.insert(*place, Fence { proof, nonce: place.1, below, signed });
            }
        }
        let forget = fences.keys().map(|place| {
            // Of those that took part with it.
            let shares = |other: &SessionAt| {
                let takes_part = |intent: &Intent, (partition, nonce): &SessionAt| {
                    intent.participant(*partition).is_some_and(|one| one.nonce == *nonce)
                };
                over.iter().any(|intent| takes_part(intent, place) && takes_part(intent, other))
            };
            let others = fences.iter().filter(|(other, _)| *other != place && shares(other));
            let shown = others.map(|(_, fence)| fence.clone());
            let fences = shown.take(limits::READ_PARTICIPANTS).collect();
            let session = SessionId { client, nonce: place.1 };
            let command = PartitionCommand::Forget { session, fences };
            async move { self.ask(place.0, &command, deadline_ms).await }
        });
        let answers = join_all(forget).await;
        let mut forgotten = 0;
        for ((recipient, _), answer) in fences.keys().zip(answers) {
            match answer {
                Ok((PartitionReply::Forgotten { count }, _)) => forgotten += u64::from(count),
                Ok((PartitionReply::Outdated { partition, configuration }, _)) => {
                    self.teach(*recipient, partition, configuration, deadline_ms).await;
                }
                _ => {}
            }
        }
        self.inner.state().counters.forgotten += forgotten;
        (forgotten, fences)
    }

    /// Shows one partition that another one answers, which takes it for one that is down; false if that one does not.
    pub(crate) async fn introduce(
        &self,
        other: PartitionId,
        to: PartitionId,
        deadline_ms: u64,
    ) -> bool {
        let client = self.groups().client();
        let sessions = [other, to].map(|one| self.groups().session(one, deadline_ms));
        let Ok(sessions) = join_all(sessions).await.into_iter().collect::<Result<Vec<u64>, _>>()
        else {
            return false;
        };
        let [there, here] = [sessions[0], sessions[1]].map(|nonce| SessionId { client, nonce });
        // Whatever it signs now; nothing is fenced off by that.
        let question = PartitionCommand::Fence { session: there, below: 0 };
        let Ok((PartitionReply::Fenced { below, now: signed, .. }, Some(proof))) =
            self.ask(other, &question, deadline_ms).await
        else {
            return false;
        };
        let fences = vec![Fence { proof, nonce: there.nonce, below, signed }];
        let shown = PartitionCommand::Forget { session: here, fences };
        match self.ask(to, &shown, deadline_ms).await {
            Ok((PartitionReply::Forgotten { .. }, _)) => true,
            Ok((PartitionReply::Outdated { partition, configuration }, _)) => {
                self.teach(to, partition, configuration, deadline_ms).await;
                true
            }
            _ => false,
        }
    }
}
