//! One partition of a store, and its side of transactions over several (Augustus, EuroSys 2013, sections 3.3 to 3.5; where this
//! differs it is on purpose, see `docs/partitions.md`).
//!
//! A transaction is *prepared* in each partition that takes part: there it gets all the locks that it needs, or a vote to abort. The
//! client shows each partition the votes of the others, signed by r + 1 of their replicas, and that *finishes* it.
//! What a client leaves unfinished anybody may finish.
//!
//! Invariants:
//! - A vote is final: it is given again whenever it is asked for, until nobody can need it.
//! - What is pending holds its locks; of two that are pending neither writes what the other one touches.
//! - A transaction of which nothing is known, and of which no part can be prepared here any more, counts as aborted. One that was
//!   committed is forgotten only when that holds in all partitions that took part.
//! - Nothing that ends a transaction is refused for lack of room: what it writes was reserved when it was prepared.
//!
//! From version 3 on what is over is remembered only as long as somebody may ask for it: a vote to abort as far as this partition's own fence, a vote to
//! commit until the others' fences are there too. Who waits for locks leaves marks (`marks`), and what another partition signed shows that it lives only as
//! long as it is new.
//!
//! From version 2 on nobody makes a partition remember more than its bounds, whoever helps: what others resolve of a client that is at its bound
//! leaves no record, but raises the client's *floor*. Of its sessions up to there nothing is prepared any more of which there is no record, so
//! that the vote to abort is final.

mod administrator;
mod book;
mod caps;
mod certificate;
mod command;
mod forgetting;
mod hearing;
mod intent;
mod intervals;
pub mod limits;
mod locks;
mod marks;
mod prepare;
mod recent;
mod records;
mod reply;
mod resolving;
mod statement;
mod tally;
mod validate;

pub use certificate::{Certificate, Members, SignedMembers, StatementClaim};
pub use command::{Fence, PartitionCommand, Wanted};
pub use intent::{Intent, Participant, TransactionId, digest_of_part};
pub use reply::{Blocker, PartitionReply, Reason, Vote, Waiting, Way};
pub use statement::{Signed, Statement};

pub(crate) use command::{asks_about, claims_of, is_of_partition};
pub(crate) use locks::Touched;

use crate::map::SegmentMap;
use book::{Book, Contents};
use bytes::Bytes;
use caps::Cap;
use locks::Locks;
use marks::Marks;
use perdura_execution::{Meter, RestoreError, Standing, StateLimit};
use perdura_protocol::{Map, PartitionId, PublicKey, SessionId, Slot, Time, seeded};
use recent::Recent;
use records::{Record, Records, Stop, Taken};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tally::Tally;

/// Which partition of which store.
#[derive(Clone, Debug)]
pub struct StorePartition {
    /// The store's partitions.
    pub map: Arc<Map>,
    /// Which of them.
    pub partition: PartitionId,
    /// The clocks of the replicas of a group differ by so much at most, milliseconds.
    pub max_skew_ms: u64,
}

/// Whose command it is, and what the core says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub session: SessionId,
    pub administrator: PublicKey,
    /// Of the session that the command asks about.
    pub standing: Option<Standing>,
    /// Of what the command costs.
    pub meter: &'a Meter,
    /// Agreed time.
    pub time: Time,
}

/// The entries, and how many of them there may be.
pub(crate) struct Entries<'a> {
    pub map: &'a mut SegmentMap,
    pub limit: StateLimit,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Partition {
    place: StorePartition,
    now: Time,
    // All that follows is in the book, but for the locks, which follow from it.
    book: Book,
    records: Records,
    locks: Locks,
    fences: BTreeMap<SessionId, u64>,
    caps: BTreeMap<PublicKey, Cap>,
    members: BTreeMap<PartitionId, Members>,
    /// The administrator's word for those that are not the first ones.
    words: BTreeMap<PartitionId, SignedMembers>,
    /// When another partition last signed something of which that is known, on its clock; not beyond this one's.
    heard: BTreeMap<PartitionId, Time>,
    /// What has been pending since before this has expired.
    expired: Time,
    /// Of clients that were at their bound: sessions up to this prepare nothing new here.
    floors: BTreeMap<PublicKey, u64>,
    /// By the administrator's word.
    ended: BTreeSet<PartitionId>,
    marks: Marks,
    /// Where the last command to forget of a session stopped.
    stops: BTreeMap<SessionId, Stop>,
    /// Of the store's rules.
    version: u16,
    /// Not part of the state.
    tally: Tally,
    /// Neither.
    recent: Recent,
}

impl Partition {
    pub(crate) fn new(place: StorePartition) -> Partition {
        let first = |(index, group): (usize, &perdura_protocol::partitions::Group)| {
            let partition = PartitionId(index as u16);
            (partition, Members { partition, configuration: 0, keys: group.members.clone() })
        };
        let members = place.map.groups.iter().enumerate().map(first).collect();
        Partition {
            records: Records::new(place.partition),
            place,
            now: Time(0),
            book: Book::default(),
            locks: Locks::default(),
            fences: BTreeMap::new(),
            caps: BTreeMap::new(),
            members,
            words: BTreeMap::new(),
            heard: BTreeMap::new(),
            expired: Time(0),
            floors: BTreeMap::new(),
            ended: BTreeSet::new(),
            marks: Marks::default(),
            stops: BTreeMap::new(),
            version: 1,
            tally: Tally::default(),
            recent: Recent::default(),
        }
    }

    pub(crate) fn place(&self) -> &StorePartition {
        &self.place
    }

    pub(crate) fn book(&self) -> &SegmentMap {
        &self.book.0
    }

    pub(crate) fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    /// Whether these bytes are a command of a partition, if they are any.
    pub(crate) fn is_asked_by(&self, command: &[u8]) -> bool {
        is_of_partition(command, self.version)
    }

    pub(crate) fn on_time(&mut self, clock: Time) {
        self.now = clock;
        let old = Time((clock.0 + 1).saturating_sub(self.expiry_ms()));
        if self.records.first_since(self.expired).is_some_and(|since| since < old) {
            // In the book: what is due next has to follow from the state, also where it was restored and no batch has come since.
            self.expired = old;
            self.book.put_expired(old);
        }
        self.pass_marks();
    }

    /// How long a transaction has to be pending for others to end it, milliseconds.
    fn expiry_ms(&self) -> u64 {
        let apart = self.place.max_skew_ms.saturating_mul(2).saturating_add(1_000);
        apart.max(limits::EXPIRY_MS)
    }

    /// When the next one has been pending for that long: then others may want to ask for it, though nothing else is ordered.
    pub(crate) fn due(&self) -> Option<Time> {
        self.records.first_since(self.expired).map(|since| Time(since.0 + self.expiry_ms()))
    }

    /// How large the entries may become, besides what is reserved, and what is kept here. Each value may need a segment of its own.
    pub(crate) fn unreserved(&self, limit: StateLimit) -> StateLimit {
        let taken = if seeded!(CommitRefused) { Taken::default() } else { self.records.taken() };
        let segments = self.book.0.segments() + taken.values;
        let book = if self.version > 1 { self.book.0.bytes() } else { 0 };
        StateLimit {
            bytes: limit.bytes.saturating_sub(taken.growth).saturating_sub(book),
            segments: limit.segments.saturating_sub(segments),
        }
    }

    /// That the entries would become too large if all that is pending committed. It never happens, since room is reserved.
    fn has_promised_too_much(&self, entries: &Entries<'_>) -> bool {
        entries.map.bytes() + self.records.taken().growth > entries.limit.bytes
    }

    /// Who is in the way of a transaction in this partition alone.
    pub(crate) fn against(&self, touched: &Touched) -> Option<Blocker> {
        self.locks.against(touched).map(|id| self.blocker(id))
    }

    /// Who is in the way of reading a key.
    pub(crate) fn against_read(&self, key: &[u8]) -> Option<Blocker> {
        self.locks.against_read(key).map(|id| self.blocker(id))
    }

    /// Who is in the way of writing a key.
    pub(crate) fn against_write(&self, key: &[u8]) -> Option<Blocker> {
        self.locks.against_write(key).map(|id| self.blocker(id))
    }

    fn blocker(&self, id: TransactionId) -> Blocker {
        let Some(record) = self.records.get(id) else { return Blocker::Other };
        let pending_ms = self.now.0.saturating_sub(record.since.0);
        Blocker::Transaction { intent: Box::new(record.intent.clone()), pending_ms }
    }

    /// That a client may read and write: who is there to end what others left may not.
    pub(crate) fn admit(&self, client: PublicKey) -> Result<(), String> {
        if self.place.map.resolvers.contains(&client) {
            return Err("this key is for ending transactions that others left".into());
        }
        Ok(())
    }

    /// Commands of this slot are carried out.
    pub(crate) fn enter(&mut self, slot: Slot) {
        self.recent.enter(slot);
    }

    /// A key of this partition is changed.
    pub(crate) fn note_change(&mut self, key: &[u8]) {
        self.recent.note(key);
    }

    /// What a transaction writes, for which there is room.
    fn write_all(&mut self, map: &mut SegmentMap, writes: &BTreeMap<Bytes, Option<Bytes>>) {
        for (key, value) in writes {
            self.note_change(key);
            match value {
                Some(value) => assert!(map.put(key, value, u64::MAX).is_ok(), "there is no bound"),
                None => drop(map.remove(key)),
            }
        }
    }

    /// Carries out what changes something.
    pub(crate) fn execute(
        &mut self,
        entries: Entries<'_>,
        asker: &Asker<'_>,
        command: PartitionCommand,
    ) -> Result<PartitionReply, String> {
        match command {
            PartitionCommand::Prepare { intent, operations } => {
                self.admit(asker.session.client)?;
                self.prepare(entries, asker, (intent, operations), None)
            }
            PartitionCommand::PrepareLast { intent, operations, votes } => {
                self.admit(asker.session.client)?;
                self.prepare(entries, asker, (intent, operations), Some(&votes))
            }
            PartitionCommand::Finish { commit: true, .. }
                if seeded!(CommitRefused) && self.has_promised_too_much(&entries) =>
            {
                Err("there is no room".into())
            }
            PartitionCommand::Finish { transaction, commit, votes } => {
                self.finish(entries.map, asker, (transaction, commit), &votes)
            }
            PartitionCommand::Resolve { intent, expired } => {
                self.resolve(asker, intent, expired.as_ref())
            }
            PartitionCommand::Expire { transaction } => Ok(self.expire(transaction)),
            PartitionCommand::Fence { session, below } => Ok(self.fence(asker, session, below)),
            PartitionCommand::End { partition } => self.end_partition(asker, partition),
            PartitionCommand::Mark { wanted, waits } => {
                self.admit(asker.session.client)?;
                asker.meter.charge(marks::KEY_COST * wanted.keys())?;
                if waits {
                    self.mark(&entries, asker, &wanted)
                } else {
                    Ok(self.unmark(asker.session, &wanted))
                }
            }
            PartitionCommand::Forget { session, fences } => self.forget(asker, session, &fences),
            PartitionCommand::Members(newest) => self.learn(asker, newest),
            PartitionCommand::Force { intent, commit } => {
                self.force(entries.map, asker, intent, commit)
            }
            PartitionCommand::Validate { .. } => {
                Err("what only one replica knows is not asked in order".into())
            }
            PartitionCommand::Pending { .. }
            | PartitionCommand::Over { .. }
            | PartitionCommand::Show { .. }
            | PartitionCommand::Roster { .. } => self.query(&command),
        }
    }

    /// Whether a command may wait for another slot. What ends transactions, or was voted on, is in others' way.
    pub(crate) fn may_be_put_off(&self, command: &[u8]) -> bool {
        match PartitionCommand::read(command) {
            Ok(
                PartitionCommand::Prepare { intent, .. }
                | PartitionCommand::PrepareLast { intent, .. },
            ) => self.records.get(intent.id()).is_none(),
            Ok(
                PartitionCommand::Finish { .. }
                | PartitionCommand::Resolve { .. }
                | PartitionCommand::Expire { .. }
                | PartitionCommand::Fence { .. }
                | PartitionCommand::End { .. }
                | PartitionCommand::Mark { waits: false, .. }
                | PartitionCommand::Members(_)
                | PartitionCommand::Force { .. },
            ) => false,
            Ok(
                PartitionCommand::Forget { .. }
                | PartitionCommand::Mark { .. }
                | PartitionCommand::Validate { .. }
                | PartitionCommand::Pending { .. }
                | PartitionCommand::Over { .. }
                | PartitionCommand::Show { .. }
                | PartitionCommand::Roster { .. },
            )
            | Err(_) => true,
        }
    }

    /// Answers what changes nothing.
    pub(crate) fn query(&self, command: &PartitionCommand) -> Result<PartitionReply, String> {
        match command {
            PartitionCommand::Pending { after } => {
                Ok(self.list(self.records.pending_after(*after)))
            }
            PartitionCommand::Over { after } => Ok(self.list(self.records.over_after(*after))),
            PartitionCommand::Show { transaction } => {
                let transaction = *transaction;
                let Some(record) = self.records.get(transaction) else {
                    return Ok(PartitionReply::Unknown { transaction });
                };
                Ok(PartitionReply::Shown {
                    since: record.since,
                    now: self.now,
                    intent: record.intent.clone(),
                    vote: record.vote.clone(),
                    committed: record.outcome,
                })
            }
            PartitionCommand::Roster { partition } => {
                let newest = self.words.get(partition).cloned();
                Ok(PartitionReply::Roster { partition: *partition, newest })
            }
            _ => Err("this is no command that only reads".into()),
        }
    }

    fn list<'a>(
        &self,
        mut all: impl Iterator<Item = (TransactionId, &'a Record)>,
    ) -> PartitionReply {
        let first = all.by_ref().take(limits::LISTED as usize);
        let waiting = |(_, Record { since, intent, .. }): (TransactionId, &Record)| Waiting {
            since: *since,
            intent: intent.clone(),
        };
        let transactions = first.map(waiting).collect();
        PartitionReply::Pending { transactions, more: all.next().is_some(), now: self.now }
    }

    /// What is said of a certificate that is not by the newest members known of its group.
    fn outdated(&self, certificate: &Certificate) -> Option<PartitionReply> {
        let partition = certificate.partition;
        let known = self.members.get(&partition);
        if seeded!(FormerMembersCount) || known.is_some_and(|members| certificate.is_by(members)) {
            return None;
        }
        let configuration = known.map_or(0, |members| members.configuration);
        Some(PartitionReply::Outdated { partition, configuration })
    }

    fn finish(
        &mut self,
        map: &mut SegmentMap,
        asker: &Asker<'_>,
        (transaction, commit): (TransactionId, bool),
        votes: &[Certificate],
    ) -> Result<PartitionReply, String> {
        let Some(record) = self.records.get(transaction) else {
            return Ok(PartitionReply::Unknown { transaction });
        };
        if let Some(committed) = record.outcome {
            return Ok(PartitionReply::Finished { transaction, committed });
        }
        let is_own = asker.session.client == record.intent.client;
        let (client, since) = (record.intent.client, record.since);
        // Nobody else may end it without votes: a slow reader would be made to see half of what another one writes.
        let may_give_back = is_own || seeded!(ReaderEndedByOthers);
        let is_given_back = record.intent.read_only && may_give_back && votes.is_empty();
        if !is_given_back && let Some(outdated) = self.weigh(&record.intent, commit, votes)? {
            return Ok(outdated);
        }
        self.heard_in_votes(votes);
        self.tally.ended_by_client(is_own);
        if is_own {
            self.change_cap(client, Cap::redeemed);
        } else if self.now.0.saturating_sub(since.0) >= self.expiry_ms() {
            self.change_cap(client, Cap::halved);
        }
        self.end(map, transaction, commit);
        Ok(PartitionReply::Finished { transaction, committed: commit })
    }

    /// That these votes of others decide a transaction so; or who of them would have to sign anew.
    fn weigh(
        &self,
        intent: &Intent,
        commit: bool,
        votes: &[Certificate],
    ) -> Result<Option<PartitionReply>, String> {
        let voted = |partition| votes.iter().any(|vote| vote.partition == partition);
        let mut others = intent.others(self.place.partition).map(|one| one.partition);
        let is_stranger =
            |vote: &&Certificate| others.clone().all(|partition| partition != vote.partition);
        if let Some(stranger) = votes.iter().find(is_stranger) {
            let stranger = stranger.partition.0;
            return Err(format!("partition {stranger} does not take part in the transaction"));
        }
        let missing = if commit { others.find(|one| !voted(*one)) } else { None };
        if let Some(missing) = missing {
            return Err(format!("the vote of partition {} is missing", missing.0));
        }
        if !commit && votes.is_empty() {
            return Err("to abort it takes a vote to abort".into());
        }
        Ok(votes.iter().find_map(|vote| self.outdated(vote)))
    }

    /// A pending transaction is over: its locks are gone, and what it writes is there if it committed.
    fn end(&mut self, map: &mut SegmentMap, transaction: TransactionId, commit: bool) {
        let Some(held) = self.records.finish(transaction, commit) else { return };
        self.locks.release(transaction, &held.touched);
        let intent = self.records.get(transaction).map(|record| &record.intent);
        let here = self.place.partition;
        let own = intent.and_then(|intent| {
            let behind = intent.participants.iter().filter(|one| one.partition > here).count();
            intent.participant(here).map(|one| (intent.session(one), behind))
        });
        if let Some((session, behind)) = own.filter(|(session, _)| self.has_mark(*session)) {
            self.given_back(session, (transaction, behind), commit);
        }
        if commit {
            // Its room was reserved.
            self.write_all(map, &held.writes);
        }
        self.book.remove_held(transaction);
        if let Some(record) = self.records.get(transaction) {
            self.book.put_record(transaction, record, false);
        }
    }

    fn cap(&self, client: PublicKey) -> Cap {
        self.caps.get(&client).copied().unwrap_or_default()
    }

    fn change_cap(&mut self, client: PublicKey, change: fn(Cap) -> Cap) {
        let before = self.cap(client);
        let cap = change(before);
        if before.is_usual() && cap.is_usual() {
            return;
        }
        if cap.is_usual() {
            self.caps.remove(&client);
            self.book.put_cap(client, None);
        } else {
            self.caps.insert(client, cap);
            self.book.put_cap(client, Some(cap));
        }
    }

    /// A vote to abort, kept.
    fn remember_abort(&mut self, transaction: TransactionId, intent: Intent, reason: Reason) {
        let (vote, since) = (Vote::Abort(reason), self.now);
        self.tally.voted(&vote);
        let record = Record { intent, since, vote, outcome: Some(false), held: None };
        self.book.put_record(transaction, &record, true);
        self.records.insert(transaction, record);
    }

    fn expire(&self, transaction: TransactionId) -> PartitionReply {
        let Some(record) = self.records.get(transaction) else {
            return PartitionReply::Unknown { transaction };
        };
        if let Some(committed) = record.outcome {
            return PartitionReply::Finished { transaction, committed };
        }
        let pending_ms = self.now.0.saturating_sub(record.since.0);
        match self.expiry_ms().saturating_sub(pending_ms) {
            0 => PartitionReply::Expired { transaction },
            left_ms => PartitionReply::Young { transaction, left_ms },
        }
    }

    fn fence_of(&self, session: SessionId) -> u64 {
        self.fences.get(&session).copied().unwrap_or(0)
    }

    /// Whether nothing of a session can come any more that is not here.
    fn is_closed(&self, session: SessionId, standing: Option<Standing>) -> bool {
        standing == Some(Standing::Over) || self.is_below_floor(session)
    }

    /// Up to where nothing of a session is pending, nor will be.
    fn fenced(&self, session: SessionId, standing: Option<Standing>) -> u64 {
        let pending = || self.records.lowest_pending(session).unwrap_or(u64::MAX);
        match self.is_closed(session, standing) {
            true => pending(),
            false if self.version > 2 => self.fence_of(session).min(pending()),
            false => self.fence_of(session),
        }
    }

    fn fence(&mut self, asker: &Asker<'_>, session: SessionId, below: u64) -> PartitionReply {
        let standing = asker.standing;
        let is_own = asker.session.client == session.client;
        if is_own && standing == Some(Standing::Open) {
            let before = self.fence_of(session);
            // What is pending below it may stay so for long; it is no reason to remember all that came later.
            let pending = self.records.lowest_pending(session).filter(|_| self.version < 3);
            let raised = below.min(pending.unwrap_or(u64::MAX));
            if raised > before {
                self.fences.insert(session, raised);
                self.book.put_fence(session, Some(raised));
            }
        }
        let now = match self.version {
            ..3 => Signed::Clock(self.now),
            3.. => Signed::Agreed(asker.time),
        };
        PartitionReply::Fenced { session, below: self.fenced(session, standing), now }
    }

    /// A session is over: nothing of it comes any more.
    pub(crate) fn session_ended(&mut self, session: SessionId) {
        self.forget_marks(session);
        if self.fences.remove(&session).is_some() {
            self.book.put_fence(session, None);
        }
    }

    /// The partition whose book this is.
    pub(crate) fn restore(
        place: StorePartition,
        book: SegmentMap,
    ) -> Result<Partition, RestoreError> {
        const CONTRADICTION: RestoreError = RestoreError::Contradiction("locks of the partition");
        let book = Book(book);
        let Contents {
            records,
            fences,
            caps,
            members,
            heard,
            expired,
            floors,
            stops,
            ended,
            marks,
        } = book.contents()?;
        let mut partition = Partition {
            book,
            fences,
            caps,
            heard,
            expired,
            floors,
            stops,
            ended,
            marks,
            ..Partition::new(place)
        };
        for newest in members {
            let known = partition.members.get_mut(&newest.members.partition);
            *known.ok_or(CONTRADICTION)? = newest.members.clone();
            partition.words.insert(newest.members.partition, newest);
        }
        for (id, record) in records {
            if partition.check_intent(&record.intent).is_err() {
                return Err(CONTRADICTION);
            }
            if let Some(held) = &record.held {
                if partition.locks.against(&held.touched).is_some() {
                    return Err(CONTRADICTION);
                }
                if !seeded!(LocksNotRestored) {
                    partition.locks.take(id, &held.touched);
                }
            }
            partition.records.insert(id, record);
        }
        Ok(partition)
    }
}
