//! Having forgotten what is over of clients whose sessions are.

use super::{Cursor, Own, all_places_of};
use crate::{Groups, Transactions};
use futures_util::future::join_all;
use perdura_protocol::{PartitionId, PublicKey, SessionId, Time};
use perdura_store::partition::{Intent, PartitionCommand, Waiting};
use std::collections::BTreeMap;

/// A session of which something has been remembered for so long may have ended, milliseconds. By this one's clock: that of a group in which
/// nothing happens any more stands still.
const OVER_MS: u64 = 70_000;

/// How much longer each next one in rank waits for that, milliseconds.
const OVER_RANK_MS: u64 = 20_000;

/// Sessions for which it asks in one look how far they are fenced off.
const FORGOTTEN_AT_ONCE: usize = 16;

/// A session of which nothing could be forgotten is asked for again after so long, milliseconds, and twice as long each time ...
const AGAIN_MS: u64 = 20_000;

/// ... up to this.
const AGAIN_AT_MOST_MS: u64 = 600_000;

/// So many sessions it has in mind.
const SESSIONS: usize = 4096;

/// A client's session with a partition.
type SessionAt = (PartitionId, SessionId);

/// A session of which something is remembered.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    /// When that was noticed.
    at_ms: u64,
    /// When it is asked how far it is fenced off.
    asked_at_ms: u64,
    /// The pause after that, if it is in vain.
    pause_ms: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Forgetting {
    pages: BTreeMap<PartitionId, Cursor>,
    sessions: BTreeMap<SessionAt, Noticed>,
    count: u64,
}

fn place_of(partition: PartitionId, intent: &Intent) -> Option<SessionAt> {
    intent.participant(partition).map(|one| (partition, intent.session(one)))
}

impl Forgetting {
    /// How many transactions were forgotten since this was asked before.
    pub(super) fn take_count(&mut self) -> u64 {
        std::mem::take(&mut self.count)
    }

    /// Whether the session of a transaction may have ended, or may soon be known to: by the partition's clock, or by this one's.
    fn is_old(&self, partition: PartitionId, one: &Waiting, now: Time, own_ms: u64) -> bool {
        let noticed = place_of(partition, &one.intent).and_then(|place| self.sessions.get(&place));
        let by_own_ms = noticed.map_or(0, |noticed| own_ms.saturating_sub(noticed.at_ms));
        now.0.saturating_sub(one.since.0).max(by_own_ms) >= OVER_MS
    }

    pub(super) async fn look<G: Groups>(&mut self, transactions: &Transactions<G>, own: &Own) {
        let own_ms = transactions.groups().now_ms();
        let lists = own.partitions().map(async |partition| {
            let after = self.pages.get(&partition).copied().flatten();
            let command = |after| PartitionCommand::Over { after };
            let is_old = |one: &Waiting, now: Time| self.is_old(partition, one, now, own_ms);
            (partition, transactions.list_old(partition, after, command, is_old).await)
        });
        let lists = join_all(lists).await;
        let now_ms = transactions.groups().now_ms();
        let mut sessions: BTreeMap<SessionAt, Vec<Intent>> = BTreeMap::new();
        for (partition, (pages, next)) in lists {
            self.pages.insert(partition, next);
            for Waiting { intent, .. } in pages.into_iter().flat_map(|page| page.transactions) {
                let place = place_of(partition, &intent);
                if let Some(place) = place.filter(|place| self.is_due(*place, own, now_ms)) {
                    sessions.entry(place).or_default().push(intent);
                }
            }
        }
        // Those that were asked for longest ago first. What one waits for that is down keeps no other waiting.
        let mut due: Vec<(SessionAt, Vec<Intent>)> = sessions.into_iter().collect();
        due.sort_by_key(|(place, _)| self.sessions.get(place).map(|noticed| noticed.asked_at_ms));
        due.truncate(FORGOTTEN_AT_ONCE);
        // All sessions of a client in one go: they are forgotten together.
        let mut of_clients: BTreeMap<PublicKey, (Vec<SessionAt>, Vec<Intent>)> = BTreeMap::new();
        for (place, intents) in due {
            let (places, of_client) = of_clients.entry(place.1.client).or_default();
            places.push(place);
            of_client.extend(intents);
        }
        let deadline_ms = transactions.deadline_of_look_ms();
        let forget = of_clients.values_mut().map(|(_, intents)| {
            // What took part with what is all that counts.
            intents.sort_by_cached_key(|intent| all_places_of(std::slice::from_ref(intent)));
            intents.dedup_by_key(|intent| all_places_of(std::slice::from_ref(intent)));
            transactions.forget(intents, |_| 0, deadline_ms)
        });
        let forgotten = join_all(forget).await;
        for ((places, _), (count, _)) in of_clients.values().zip(forgotten) {
            self.count += count;
            for place in places {
                if count > 0 {
                    self.sessions.remove(place);
                } else if let Some(noticed) = self.sessions.get_mut(place) {
                    noticed.asked_at_ms = now_ms + noticed.pause_ms;
                    noticed.pause_ms = (2 * noticed.pause_ms).min(AGAIN_AT_MOST_MS);
                }
            }
        }
    }

    /// Whether it is time to ask for a session.
    fn is_due(&mut self, place: SessionAt, own: &Own, now_ms: u64) -> bool {
        if self.sessions.len() >= SESSIONS {
            // Of what others have had forgotten.
            self.sessions.retain(|_, noticed| noticed.asked_at_ms + AGAIN_AT_MOST_MS >= now_ms);
        }
        if let Some(noticed) = self.sessions.get(&place) {
            return now_ms >= noticed.asked_at_ms;
        }
        if self.sessions.len() < SESSIONS {
            let wait_ms = OVER_MS + OVER_RANK_MS * own.rank(place.0, place.1.client);
            let asked_at_ms = now_ms + wait_ms;
            let noticed = Noticed { at_ms: now_ms, asked_at_ms, pause_ms: AGAIN_MS };
            self.sessions.insert(place, noticed);
        }
        false
    }
}
