//! The vote on what has not been voted on here, asked for by whoever ends a transaction; and what stands for it where its client has as many
//! records as it may.

use super::certificate::Certificate;
use super::intent::Intent;
use super::reply::{PartitionReply, Reason, Vote};
use super::{Asker, Partition};
use perdura_execution::Standing;
use perdura_protocol::{SessionId, seeded};

impl Partition {
    pub(super) fn resolve(
        &mut self,
        asker: &Asker<'_>,
        intent: Intent,
        expired: Option<&Certificate>,
    ) -> Result<PartitionReply, String> {
        let session = self.check_intent(&intent)?;
        let transaction = intent.id();
        let voted =
            |vote| PartitionReply::Voted { transaction, attested: true, vote, results: None };
        if let Some(record) = self.records.get(transaction) {
            return Ok(voted(record.vote.clone()));
        }
        let is_fenced = intent.counter < self.fence_of(session) || self.is_below_floor(session);
        if is_fenced || asker.standing == Some(Standing::Over) {
            // Its part was never here, or nobody can need what became of it; and it will not come any more.
            let vote = Vote::Abort(Reason::Fenced);
            self.tally.voted(&vote);
            return Ok(voted(vote));
        }
        if asker.session.client != intent.client && !seeded!(EndedUnexpired) {
            let Some(expired) = expired else {
                return Ok(PartitionReply::Unknown { transaction });
            };
            let takes_part = intent.participant(expired.partition).is_some();
            if !takes_part || expired.partition == self.place.partition {
                return Err("who says that it is pending does not take part in it".into());
            }
            if let Some(outdated) = self.outdated(expired) {
                return Ok(outdated);
            }
        }
        if self.version > 1 {
            if self.has_place_for_record(intent.client).is_err() {
                self.raise_floor(session);
                let vote = Vote::Abort(Reason::Fenced);
                self.tally.voted(&vote);
                return Ok(voted(vote));
            }
        } else if asker.session.client == intent.client {
            // What others resolve is pending elsewhere, and so bounded there.
            self.has_place_for_record(intent.client)?;
        }
        if !seeded!(AbortNotKept) {
            self.remember_abort(transaction, intent, Reason::Resolved);
        }
        Ok(voted(Vote::Abort(Reason::Resolved)))
    }

    /// Whether nothing of a session is prepared here any more, but for what there is a record of.
    pub(super) fn is_below_floor(&self, session: SessionId) -> bool {
        self.floors.get(&session.client).is_some_and(|floor| session.nonce <= *floor)
    }

    /// Its client has as many records as it may, and one more of this session would be needed.
    fn raise_floor(&mut self, session: SessionId) {
        let SessionId { client, nonce } = session;
        if self.floors.get(&client).is_none_or(|floor| nonce > *floor) {
            self.floors.insert(client, nonce);
            self.book.put_floor(client, nonce);
        }
    }
}
