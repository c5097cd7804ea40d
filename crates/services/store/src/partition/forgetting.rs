//! Transactions that are over wherever they took part are forgotten.
//!
//! From version 2 on one command looks at a bounded number of them, and the next one goes on behind these, so that none waits behind others
//! which cannot be forgotten yet. Where it goes on only the session's own client decides, and who is there to end what others left:
//! anybody else could lead it past what it would forget.

use super::command::Fence;
use super::intent::TransactionId;
use super::records::{Record, Stop};
use super::reply::{PartitionReply, Vote};
use super::{Asker, Partition, limits};
use perdura_protocol::{PartitionId, SessionId, seeded};
use std::collections::BTreeMap;

/// What looking at a participant of a record counts for.
const PARTICIPANT_STEP: usize = 256;

/// Up to where sessions are fenced off in other partitions.
type Elsewhere = BTreeMap<(PartitionId, u64), u64>;

/// What became of looking through a session's transactions.
struct Scan {
    /// Those that are over everywhere.
    over: Vec<TransactionId>,
    /// How many participants were looked at.
    participants: usize,
    /// Where it stopped, if there may be more.
    stop: Option<Stop>,
}

impl Partition {
    pub(super) fn forget(
        &mut self,
        asker: &Asker<'_>,
        session: SessionId,
        fences: &[Fence],
    ) -> Result<PartitionReply, String> {
        let mut elsewhere = Elsewhere::new();
        for Fence { proof, nonce, below, signed } in fences {
            if let Some(outdated) = self.outdated(proof) {
                return Ok(outdated);
            }
            if self.version == 1 {
                self.heard_of(proof.partition, *signed, asker.time);
            }
            let fence = elsewhere.entry((proof.partition, *nonce)).or_default();
            *fence = (*fence).max(*below);
        }
        // From version 3 on what is pending below the fence keeps nothing else.
        let below = match self.version {
            ..3 => self.fenced(session, asker.standing),
            3.. if self.is_closed(session, asker.standing) => u64::MAX,
            3.. => self.fence_of(session),
        };
        let looked = self.look(session, below, &elsewhere);
        let charged = asker.meter.charge(PARTICIPANT_STEP * looked.participants);
        if self.version > 1 {
            charged?;
            for Fence { proof, signed, .. } in fences {
                self.heard_of(proof.partition, *signed, asker.time);
            }
        }
        self.tally.forgot(looked.over.len());
        for id in &looked.over {
            self.records.forget(*id);
            self.book.remove_record(*id);
        }
        let client = asker.session.client;
        let is_heeded = client == session.client || self.place.map.resolvers.contains(&client);
        let stop = if is_heeded { looked.stop } else { self.stops.get(&session).copied() };
        self.stop_at(session, stop.filter(|_| self.records.are_any_of(session)));
        Ok(PartitionReply::Forgotten { count: looked.over.len() as u32 })
    }

    /// Looks through a session's transactions below a number for those that are over here, and elsewhere by these fences.
    fn look(&self, session: SessionId, below: u64, elsewhere: &Elsewhere) -> Scan {
        let most = if self.version == 1 { usize::MAX } else { limits::LOOKED_AT };
        let from = self.stops.get(&session).copied().unwrap_or_default();
        let mut looked = Scan { over: Vec::new(), participants: 0, stop: None };
        for (id, record) in self.records.below(session, below, from) {
            if self.is_over(record, elsewhere, &mut looked.participants) {
                looked.over.push(id);
            }
            if looked.over.len() == limits::FORGOTTEN || looked.participants >= most {
                looked.stop = Some((record.intent.counter, id));
                break;
            }
        }
        looked
    }

    /// Whether a transaction is over here and elsewhere. Counts the participants that it looks at, this one too.
    fn is_over(&self, record: &Record, elsewhere: &Elsewhere, looked_at: &mut usize) -> bool {
        *looked_at += 1;
        // That there is no record below the own fence is the same vote.
        if self.version > 2 && matches!(record.vote, Vote::Abort(_)) {
            return true;
        }
        let counter = record.intent.counter;
        let mut others = record.intent.others(self.place.partition);
        let mut is_fenced = others.by_ref().map(|one| {
            *looked_at += 1;
            self.ended.contains(&one.partition)
                || elsewhere.get(&(one.partition, one.nonce)).is_some_and(|below| *below > counter)
        });
        !record.is_pending() && (seeded!(ForgottenUnfenced) || is_fenced.all(|is_fenced| is_fenced))
    }

    /// The next command to forget of a session begins behind this one. Under version 1 there are none.
    fn stop_at(&mut self, session: SessionId, stop: Option<Stop>) {
        if self.version == 1 || self.stops.get(&session).copied() == stop {
            return;
        }
        match stop {
            Some(stop) => drop(self.stops.insert(session, stop)),
            None => drop(self.stops.remove(&session)),
        }
        self.book.put_stop(session, stop);
    }
}
