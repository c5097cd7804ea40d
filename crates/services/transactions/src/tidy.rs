//! Saying what is over, so that nobody has to remember it.

use crate::resolver::places_of;
use crate::{Groups, Transactions};
use futures_util::future::join_all;
use perdura_protocol::{PartitionId, SessionId};
use perdura_store::partition::{Fence, Intent, PartitionCommand, PartitionReply, limits};
use std::collections::BTreeMap;

/// Transactions that are over for which it is worth the trouble.
const WORTH: usize = 64;

/// Those of a partition that does not answer are remembered by this client up to this number, and then left to the partitions.
const MOST: usize = 4096;

/// How long it takes at most, milliseconds.
const TIDYING_MS: u64 = 5_000;

/// A session in a partition.
type Place = (PartitionId, u64);

impl<G: Groups> Transactions<G> {
    /// A transaction is over.
    pub(crate) fn note_ended(&self, intent: Intent) {
        let mut state = self.inner.state();
        if state.ended.len() >= MOST {
            state.ended.drain(..MOST / 2);
        }
        state.ended.push(intent);
        if state.ended.len() >= WORTH && !state.is_tidying {
            state.is_tidying = true;
            drop(state);
            let this = self.clone();
            self.groups().spawn(Box::pin(async move { this.tidy().await }));
        }
    }

    /// Waits until all has been told that this client has to tell of its transactions, which may be a moment behind what they came to.
    pub async fn settled(&self) {
        while !self.inner.state().running.is_empty() {
            self.groups().sleep(1).await;
        }
    }

    /// Has the partitions forget what is over in all of them. Begins by itself now and then; to be called before a client ends.
    pub async fn tidy(&self) {
        let (ended, lowest) = {
            let mut state = self.inner.state();
            state.is_tidying = true;
            let lowest = state.running.first().copied().unwrap_or(state.counter + 1);
            (std::mem::take(&mut state.ended), lowest)
        };
        let deadline_ms = self.groups().now_ms() + TIDYING_MS;
        let (_, fences) = self.forget(&ended, lowest, deadline_ms).await;
        let is_over = |intent: &Intent| {
            intent.participants.iter().all(|one| {
                let fence = fences.get(&(one.partition, one.nonce));
                fence.is_some_and(|fence| fence.below > intent.counter)
            })
        };
        let mut state = self.inner.state();
        state.ended.extend(ended.into_iter().filter(|intent| !is_over(intent)));
        state.is_tidying = false;
    }

    /// Has the partitions forget transactions of one client that are over, as far as its sessions are fenced off everywhere. Those of this
    /// client are so up to a number; of others, those that have ended. Gives how many were forgotten, and the fences.
    pub(crate) async fn forget(
        &self,
        over: &[Intent],
        below: u64,
        deadline_ms: u64,
    ) -> (u64, BTreeMap<Place, Fence>) {
        let Some(client) = over.first().map(|intent| intent.client) else {
            return (0, BTreeMap::new());
        };
        let places = places_of(over);
        // Whoever is down is not waited for to the end: the others are to forget what they can.
        let now_ms = self.groups().now_ms();
        let half_ms = now_ms + deadline_ms.saturating_sub(now_ms) / 2;
        let fence = |(partition, nonce): &Place| {
            let session = SessionId { client, nonce: *nonce };
            let (partition, command) = (*partition, PartitionCommand::Fence { session, below });
            async move { self.ask(partition, &command, half_ms).await }
        };
        let answers = join_all(places.iter().map(fence)).await;
        let mut fences: BTreeMap<Place, Fence> = BTreeMap::new();
        for (place, answer) in places.iter().zip(answers) {
            if let Ok((PartitionReply::Fenced { below, now: signed, .. }, Some(proof))) = answer {
                fences.insert(*place, Fence { proof, nonce: place.1, below, signed });
            }
        }
        let forget = fences.keys().map(|place| {
            // Of those that took part with it.
            let shares = |other: &Place| {
                let takes_part = |intent: &Intent, (partition, nonce): &Place| {
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
        for ((pupil, _), answer) in fences.keys().zip(answers) {
            match answer {
                Ok((PartitionReply::Forgotten { count }, _)) => forgotten += u64::from(count),
                Ok((PartitionReply::Outdated { partition, configuration }, _)) => {
                    self.teach(*pupil, partition, configuration, deadline_ms).await;
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
