//! The vote on a part of a transaction.

use super::book::bytes_added;
use super::caps::Cap;
use super::certificate::Certificate;
use super::command::Wanted;
use super::intent::{Intent, digest_of_part};
use super::locks::Touched;
use super::records::{Holdings, Record, Taken};
use super::reply::{Blocker, PartitionReply, Reason, Vote};
use super::{Asker, Entries, Participant, Partition, limits};
use crate::plan::{Plan, exceed};
use crate::segment::entry_bytes;
use crate::{Operation, OperationResult, Transaction};
use bytes::Bytes;
use perdura_execution::StateLimit;
use perdura_protocol::limits::{NONCE_MS, NONCES_PER_MS};
use perdura_protocol::{Digest, PublicKey, SessionId, Time, seeded};

impl Partition {
    /// That this partition takes part in it, and how its client is named here.
    pub(super) fn check_intent(&self, intent: &Intent) -> Result<SessionId, String> {
        let map = &self.place.map;
        if intent.cluster != map.cluster {
            return Err("the transaction is of another cluster".into());
        }
        let known = |one: &super::Participant| one.partition.index() < map.partitions();
        if !intent.participants.iter().all(known) {
            return Err("the transaction names partitions that there are not".into());
        }
        let own = intent.participant(self.place.partition);
        own.map(|one| intent.session(one))
            .ok_or_else(|| format!("partition {} does not take part in it", self.place.partition.0))
    }

    /// The vote on this partition's part. Where it is the last one, the votes of the others are shown, and it decides.
    pub(super) fn prepare(
        &mut self,
        entries: Entries<'_>,
        asker: &Asker<'_>,
        (intent, operations): (Intent, Vec<Operation>),
        others: Option<&[Certificate]>,
    ) -> Result<PartitionReply, String> {
        let session = self.check_intent(&intent)?;
        if session != asker.session {
            return Err(
                "a transaction is prepared by its own client, in the session that it names".into(),
            );
        }
        let transaction_part = Transaction { operations };
        transaction_part.validate().map_err(|error| error.to_string())?;
        let operations = &transaction_part.operations;
        let part = intent.participant(self.place.partition).map(|one| one.part);
        if part != Some(digest_of_part(operations)) {
            return Err("the operations are not this partition's part of the transaction".into());
        }
        if let Some(votes) = others {
            if intent.read_only {
                return Err("what only reads is not decided by votes".into());
            }
            if let Some(outdated) = self.weigh(&intent, true, votes)? {
                return Ok(outdated);
            }
            self.heard_in_votes(votes);
        }
        let (transaction, attested) = (intent.id(), !intent.read_only);
        let voted = |vote, results| PartitionReply::Voted { transaction, attested, vote, results };
        let known = self.records.get(transaction);
        if let Some(record) = known {
            let (vote, is_pending) = (record.vote.clone(), record.is_pending());
            if is_pending && others.is_some() {
                self.end(entries.map, transaction, true);
            }
            return Ok(voted(vote, None));
        }
        let is_fenced = intent.counter < self.fence_of(session) && !seeded!(FenceIgnored);
        if is_fenced || self.is_below_floor(session) {
            let vote = Vote::Abort(Reason::Fenced);
            self.tally.voted(&vote);
            self.forget_marks(session);
            return Ok(voted(vote, None));
        }
        self.check_nonces(&intent, asker.time)?;
        self.has_place_for_record(intent.client)?;
        // The mark of who waits for this is known by what he wants.
        let wanted = self.has_mark(session).then(|| Wanted::by(operations).digest());
        let whose = (&transaction_part, wanted);
        let considered = self.consider(&entries, &intent, (whose, asker), others.is_some());
        if let Some(wanted) = wanted {
            match &considered {
                Err(Reason::Conflict(_)) => {}
                Ok(_) if others.is_none() => self.taken(session, wanted, transaction),
                Ok(_) => self.answered(session, wanted),
                Err(_) => self.refused(session, wanted),
            }
        }
        match considered {
            Ok((held, results)) if others.is_some() => {
                let (vote, since) = (Vote::Commit, self.now);
                self.tally.voted(&vote);
                self.tally.ended_by_client(true);
                self.change_cap(intent.client, Cap::redeemed);
                self.write_all(entries.map, &held.writes);
                let record = Record { intent, since, vote, outcome: Some(true), held: None };
                self.book.put_record(transaction, &record, true);
                self.records.insert(transaction, record);
                Ok(voted(Vote::Commit, Some(results)))
            }
            Ok((held, results)) => {
                let held = held.copied();
                self.locks.take(transaction, &held.touched);
                let (vote, since) = (Vote::Commit, self.now);
                self.tally.voted(&vote);
                let record = Record { intent, since, vote, outcome: None, held: Some(held) };
                self.book.put_record(transaction, &record, true);
                self.records.insert(transaction, record);
                Ok(voted(Vote::Commit, Some(results)))
            }
            Err(reason) => {
                self.remember_abort(transaction, intent, reason.kept());
                Ok(voted(Vote::Abort(reason), None))
            }
        }
    }

    /// That all sessions which a transaction names could have been opened by now: what is said of one that is far in the future could not be
    /// forgotten before.
    fn check_nonces(&self, intent: &Intent, time: Time) -> Result<(), String> {
        let ahead_ms = NONCE_MS.saturating_add(self.place.max_skew_ms.saturating_mul(2));
        let latest_ms = time.0.saturating_add(ahead_ms);
        let is_early = |one: &Participant| one.nonce / NONCES_PER_MS <= latest_ms;
        if self.version == 1 || intent.participants.iter().all(is_early) {
            return Ok(());
        }
        Err("the transaction names a session that cannot have been opened yet".into())
    }

    /// That one more transaction of a client can be remembered.
    pub(super) fn has_place_for_record(&self, client: PublicKey) -> Result<(), String> {
        if self.records.of_client(client).remembered < limits::RECORDS_PER_CLIENT {
            return Ok(());
        }
        Err(format!(
            "{} transactions of this client are remembered in partition {}: some of their participants do not answer, or the client \
             never says which are over",
            limits::RECORDS_PER_CLIENT,
            self.place.partition.0
        ))
    }

    /// What it would hold, and what it reads; or why it cannot be. What `decides` is held for no time.
    fn consider(
        &mut self,
        entries: &Entries<'_>,
        intent: &Intent,
        ((transaction, wanted), asker): ((&Transaction, Option<Digest>), &Asker<'_>),
        decides: bool,
    ) -> Result<(Holdings, Vec<OperationResult>), Reason> {
        self.have_not_ended(intent)?;
        if intent.map != self.place.map.version || !self.has_all_keys(transaction) {
            return Err(Reason::Map);
        }
        if intent.read_only && !transaction.is_read() {
            return Err(Reason::Writes);
        }
        let cap = self.cap(intent.client).pending;
        if !decides && self.records.of_client(intent.client).pending >= cap {
            return Err(Reason::Cap { pending: cap });
        }
        // Its results do not fit a reply, or it takes more work than a command may.
        let plan = Plan::of(entries.map, transaction, asker.meter).map_err(|_| Reason::TooMuch)?;
        let failed = plan.result.failed;
        let touched = Touched::of(transaction, plan.seen.clone());
        let blocker = self.against(&touched);
        if let Some(blocker) = blocker.filter(|_| failed.is_none() || !seeded!(ComparedUnderLock)) {
            return Err(Reason::Conflict(blocker));
        }
        if let Some(operation) = failed {
            return Err(Reason::Failed { operation });
        }
        if !decides && self.is_marked_by_others((asker.session, wanted), &touched, asker.meter) {
            return Err(Reason::Conflict(Blocker::Other));
        }
        let growth = |grown: u64, (key, value): (&Bytes, &Option<Bytes>)| {
            let bytes = |value: &[u8]| entry_bytes(key, value) as u64;
            let before = entries.map.get(key).map_or(0, bytes);
            grown + value.as_deref().map_or(0, bytes).saturating_sub(before)
        };
        let growth = if decides { 0 } else { plan.changes.iter().fold(0, growth) };
        let held = Holdings { touched, writes: plan.changes, growth };
        let (client, takes) = (intent.client, held.takes());
        let may_read = self.may_read(client, takes) && self.locks.has_room(&held.touched);
        if !decides && !may_read {
            return Err(Reason::Conflict(Blocker::Ranges));
        }
        if !self.has_room(entries, intent, &held, decides) {
            return Err(Reason::Room);
        }
        if !decides {
            self.may_hold(entries.limit, client, takes)?;
            self.answered_by_others(intent)?;
        }
        Ok((held, plan.result.results))
    }

    /// That there is room for what it writes, and from version 2 on also for what is remembered of it: of that the limit knows nothing otherwise
    /// where it only reads, or replaces values.
    fn has_room(
        &self,
        entries: &Entries<'_>,
        intent: &Intent,
        held: &Holdings,
        decides: bool,
    ) -> bool {
        let mut room = self.unreserved(entries.limit);
        if self.version > 1 {
            let added = bytes_added(intent, (!decides).then_some(held));
            let Some(left) = room.bytes.checked_sub(added) else { return false };
            if entries.map.bytes() > left {
                return false;
            }
            room.bytes = left;
        }
        !exceed(&held.writes, entries.map, room)
    }

    /// Whether a client may have read so many ranges more.
    fn may_read(&self, client: PublicKey, takes: Taken) -> bool {
        let bounds = (limits::RANGES_PER_CLIENT as u64, limits::RANGES as u64);
        self.may_take(client, takes, |taken| taken.ranges as u64, bounds)
    }

    /// That a client may write so many values more, and hold so much more until then.
    fn may_hold(&self, limit: StateLimit, client: PublicKey, takes: Taken) -> Result<(), Reason> {
        let bounds = (limits::VALUES_PER_CLIENT as u64, limits::VALUES as u64);
        if !self.may_take(client, takes, |taken| taken.values as u64, bounds) {
            return Err(Reason::Cap { pending: self.records.of_client(client).pending });
        }
        // What is held is beside the entries: a quarter of their room.
        let quarter = limit.bytes / 4;
        if self.version == 1 && self.records.taken().held + takes.held > quarter {
            return Err(Reason::Room);
        }
        let of_all = quarter.saturating_add(quarter.min(limits::HELD_PER_TRANSACTION as u64));
        if !self.may_take(client, takes, |taken| taken.held, (quarter, of_all)) {
            return Err(Reason::Room);
        }
        Ok(())
    }

    /// Whether a client may take more of something for its pending transactions: `most` at most, and from version 2 on no more than all then leave
    /// free of what there is, so that those who take as much as they can leave as much to each other client (dynamic thresholds, Choudhury
    /// and Hahne, 1998). By itself one may take half of what there is, which is enough for any single transaction.
    fn may_take(
        &self,
        client: PublicKey,
        more: Taken,
        what: fn(Taken) -> u64,
        (most, of_all): (u64, u64),
    ) -> bool {
        let more = what(more);
        let own = what(self.records.of_client(client).taken) + more;
        let free = of_all.saturating_sub(what(self.records.taken()) + more);
        own <= most && (self.version == 1 || more == 0 || own <= free)
    }

    fn has_all_keys(&self, transaction: &Transaction) -> bool {
        let here = |key: &[u8]| self.place.map.partition_of(key) == self.place.partition;
        transaction.operations.iter().all(|operation| match operation {
            Operation::Cmp { key, .. }
            | Operation::Read { key }
            | Operation::Insert { key, .. }
            | Operation::Write { key, .. }
            | Operation::Delete { key } => here(key),
            // What it has of the range.
            Operation::ReadRange { .. } => true,
        })
    }
}
