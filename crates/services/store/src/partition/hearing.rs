//! Whether another partition answers. One that does not is not waited for: what stays pending on it would lock up this one.

use super::certificate::Certificate;
use super::intent::Intent;
use super::reply::{Blocker, Reason};
use super::statement::Signed;
use super::{Partition, limits};
use perdura_protocol::{PartitionId, Time, seeded};

/// What is heard of a partition is noted as often as this, milliseconds.
const HEARD_MS: u64 = 1_000;

impl Partition {
    /// What another partition signed at that time came here; agreed time is `time`.
    pub(super) fn heard_of(&mut self, partition: PartitionId, signed: Signed, time: Time) {
        let at = match signed {
            Signed::Agreed(at) if self.version > 2 => {
                let skew_ms = self.place.max_skew_ms.saturating_mul(2);
                let new_for_ms = limits::UNREACHABLE_MS.saturating_add(skew_ms);
                if at.0.saturating_add(new_for_ms) < time.0 && !seeded!(OldWordsShowLife) {
                    return;
                }
                self.now
            }
            // Under the rules before it is a time that has not come yet.
            Signed::Agreed(_) => self.now,
            Signed::Clock(at) => at.min(self.now),
        };
        self.note_heard(partition, at);
    }

    /// Votes of others came here. They have no time, so that one may be any time old: before version 3 they show that those live who gave them.
    pub(super) fn heard_in_votes(&mut self, votes: &[Certificate]) {
        if self.version < 3 || seeded!(VotesShowLife) {
            votes.iter().for_each(|vote| self.note_heard(vote.partition, self.now));
        }
    }

    fn note_heard(&mut self, partition: PartitionId, at: Time) {
        let heard = self.heard.entry(partition).or_default();
        if at.0 >= heard.0 + HEARD_MS {
            *heard = at;
            self.book.put_heard(partition, at);
        }
    }

    /// Whether nothing is heard of a partition on which something has been pending for long.
    pub(super) fn is_silent(&self, partition: PartitionId) -> bool {
        let Some((since, _)) = self.records.oldest_on(partition) else { return false };
        let heard = self.heard.get(&partition).copied().unwrap_or_default();
        self.now.0.saturating_sub(since.max(heard).0) > limits::UNREACHABLE_MS
    }

    /// That the other participants have not ended.
    pub(super) fn have_not_ended(&self, intent: &Intent) -> Result<(), Reason> {
        let mut others = intent.others(self.place.partition).map(|one| one.partition);
        let ended = others.find(|one| self.ended.contains(one));
        ended.map_or(Ok(()), |partition| {
            Err(Reason::Unreachable { partition, oldest: Blocker::Other })
        })
    }

    /// That the other participants answer. After a while nothing more is prepared that needs one which does not, until it is shown that it is there
    /// again.
    pub(super) fn answered_by_others(&self, intent: &Intent) -> Result<(), Reason> {
        let mut others = intent.others(self.place.partition).map(|one| one.partition);
        let Some(partition) = others.find(|one| self.is_silent(*one)) else { return Ok(()) };
        let oldest = self.records.oldest_on(partition);
        let oldest = oldest.map_or(Blocker::Other, |(_, id)| self.blocker(id));
        Err(Reason::Unreachable { partition, oldest })
    }
}
