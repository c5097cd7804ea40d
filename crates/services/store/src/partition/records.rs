//! The transactions that a partition knows of: those that are pending here, and those that are over here and may not be elsewhere.

use super::intent::{Intent, TransactionId};
use super::locks::Touched;
use super::reply::Vote;
use crate::plan::Interval;
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{
    Decode, DecodeError, Encode, PartitionId, PublicKey, Reader, SessionId, Time,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// What a pending transaction holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holdings {
    pub touched: Touched,
    /// What it writes if it commits; nothing where the key goes.
    pub writes: BTreeMap<Bytes, Option<Bytes>>,
    /// By how much that makes the entries grow, bytes.
    pub growth: u64,
}

impl Holdings {
    /// With keys and values of its own: those of a command keep all of it in memory, and only these are counted.
    pub(crate) fn copied(&self) -> Holdings {
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let writes = self.writes.iter().map(|(key, value)| (copy(key), value.as_ref().map(copy)));
        Holdings { touched: self.touched.copied(), writes: writes.collect(), growth: self.growth }
    }

    /// What it takes while it is pending.
    pub(crate) fn takes(&self) -> Taken {
        let values = self.writes.values().filter(|value| value.is_some()).count();
        let keys = self.touched.reads.iter().chain(&self.touched.writes);
        let of_interval = |one: &Interval| one.start.len() + one.end.as_ref().map_or(0, Bytes::len);
        let written =
            self.writes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len));
        let held = keys.map(Bytes::len).sum::<usize>()
            + self.touched.intervals.iter().map(of_interval).sum::<usize>()
            + written.sum::<usize>();
        Taken {
            growth: self.growth,
            values,
            held: held as u64,
            ranges: self.touched.intervals.len(),
        }
    }
}

/// What pending transactions take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Taken {
    /// By how many bytes the entries will grow if they commit.
    pub growth: u64,
    /// Values that they write then.
    pub values: usize,
    /// Bytes of keys and values that are kept for them.
    pub held: u64,
    /// Ranges that they have read.
    pub ranges: usize,
}

impl Taken {
    fn add(&mut self, more: Taken) {
        self.growth += more.growth;
        self.values += more.values;
        self.held += more.held;
        self.ranges += more.ranges;
    }

    fn remove(&mut self, less: Taken) {
        self.growth -= less.growth;
        self.values -= less.values;
        self.held -= less.held;
        self.ranges -= less.ranges;
    }
}

/// What there is of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share {
    /// Transactions, and how many of them are pending.
    pub remembered: u32,
    pub pending: u32,
    /// By those that are pending.
    pub taken: Taken,
}

/// A transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub intent: Intent,
    /// When it was voted on, on the clock.
    pub since: Time,
    pub vote: Vote,
    pub outcome: Option<bool>,
    /// While it is pending.
    pub held: Option<Holdings>,
}

impl Record {
    pub(crate) fn is_pending(&self) -> bool {
        self.outcome.is_none()
    }
}

/// A place among a session's transactions: a number, and which of those that have it.
pub(crate) type Stop = (u64, TransactionId);

/// See the module. Everything but `by_id` follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    here: PartitionId,
    by_id: BTreeMap<TransactionId, Record>,
    // By their clients' sessions with this partition, and numbers.
    by_session: BTreeSet<(SessionId, u64, TransactionId)>,
    pending: BTreeSet<(Time, TransactionId)>,
    over: BTreeSet<(Time, TransactionId)>,
    pending_in: BTreeSet<(SessionId, u64, TransactionId)>,
    pending_on: BTreeMap<PartitionId, BTreeSet<(Time, TransactionId)>>,
    of_client: BTreeMap<PublicKey, Share>,
    taken: Taken,
}

impl Records {
    pub(crate) fn new(here: PartitionId) -> Records {
        Records {
            here,
            by_id: BTreeMap::new(),
            by_session: BTreeSet::new(),
            pending: BTreeSet::new(),
            over: BTreeSet::new(),
            pending_in: BTreeSet::new(),
            pending_on: BTreeMap::new(),
            of_client: BTreeMap::new(),
            taken: Taken::default(),
        }
    }

    pub(crate) fn get(&self, id: TransactionId) -> Option<&Record> {
        self.by_id.get(&id)
    }

    /// What there is of a client.
    pub(crate) fn of_client(&self, client: PublicKey) -> Share {
        self.of_client.get(&client).copied().unwrap_or_default()
    }

    /// What all that is pending takes.
    pub(crate) fn taken(&self) -> Taken {
        self.taken
    }

    fn session_of(&self, intent: &Intent) -> Option<SessionId> {
        intent.participant(self.here).map(|one| intent.session(one))
    }

    /// Adds one that is not here yet, and takes part.
    pub(crate) fn insert(&mut self, id: TransactionId, record: Record) {
        let taken = record.held.as_ref().map(Holdings::takes).unwrap_or_default();
        self.taken.add(taken);
        let share = self.of_client.entry(record.intent.client).or_default();
        share.remembered += 1;
        share.pending += u32::from(record.is_pending());
        share.taken.add(taken);
        let session = self.session_of(&record.intent);
        let place = session.map(|session| (session, record.intent.counter, id));
        self.by_session.extend(place);
        if record.is_pending() {
            self.pending_in.extend(place);
            self.pending.insert((record.since, id));
            for one in record.intent.others(self.here) {
                self.pending_on.entry(one.partition).or_default().insert((record.since, id));
            }
        } else {
            self.over.insert((record.since, id));
        }
        self.by_id.insert(id, record);
    }

    /// A pending one is over. Gives what it held.
    pub(crate) fn finish(&mut self, id: TransactionId, committed: bool) -> Option<Holdings> {
        let record = self.by_id.get_mut(&id).filter(|record| record.is_pending())?;
        record.outcome = Some(committed);
        let held = record.held.take();
        let (since, counter) = (record.since, record.intent.counter);
        let taken = held.as_ref().map(Holdings::takes).unwrap_or_default();
        self.taken.remove(taken);
        if let Some(share) = self.of_client.get_mut(&record.intent.client) {
            share.pending -= 1;
            share.taken.remove(taken);
        }
        self.pending.remove(&(since, id));
        self.over.insert((since, id));
        let record = &self.by_id[&id];
        for one in record.intent.others(self.here) {
            if let Some(on) = self.pending_on.get_mut(&one.partition) {
                on.remove(&(since, id));
                if on.is_empty() {
                    self.pending_on.remove(&one.partition);
                }
            }
        }
        if let Some(session) = self.session_of(&record.intent) {
            self.pending_in.remove(&(session, counter, id));
        }
        held
    }

    /// Forgets one that is over.
    pub(crate) fn forget(&mut self, id: TransactionId) {
        let Some(record) = self.by_id.remove(&id) else { return };
        self.over.remove(&(record.since, id));
        let client = record.intent.client;
        if let Some(share) = self.of_client.get_mut(&client) {
            share.remembered -= 1;
            if share.remembered == 0 {
                self.of_client.remove(&client);
            }
        }
        if let Some(session) = self.session_of(&record.intent) {
            self.by_session.remove(&(session, record.intent.counter, id));
        }
    }

    /// The lowest number of a session's pending transactions.
    pub(crate) fn lowest_pending(&self, session: SessionId) -> Option<u64> {
        let from = (session, 0, TransactionId::default());
        let first = self.pending_in.range(from..).next();
        first.filter(|(of, ..)| *of == session).map(|(_, counter, _)| *counter)
    }

    /// A session's transactions below a number, by their numbers: first those behind this one, then the others.
    pub(crate) fn below(
        &self,
        session: SessionId,
        below: u64,
        (counter, id): Stop,
    ) -> impl Iterator<Item = (TransactionId, &Record)> {
        let first = (session, 0, TransactionId::default());
        let end = (session, below, TransactionId::default());
        let stop = (session, counter, id).min(end);
        let behind = self.by_session.range(stop..end).filter(move |one| **one != stop);
        let others = self.by_session.range(first..end).take_while(move |one| **one <= stop);
        behind.chain(others).filter_map(|(.., id)| Some((*id, self.by_id.get(id)?)))
    }

    /// Whether anything is remembered of a session.
    pub(crate) fn are_any_of(&self, session: SessionId) -> bool {
        let first = (session, 0, TransactionId::default());
        self.by_session.range(first..).next().is_some_and(|(of, ..)| *of == session)
    }

    /// Pending transactions behind one, oldest first.
    pub(crate) fn pending_after(
        &self,
        after: Option<(Time, TransactionId)>,
    ) -> impl Iterator<Item = (TransactionId, &Record)> {
        self.after(&self.pending, after)
    }

    /// Those that are over behind one, the first voted on first.
    pub(crate) fn over_after(
        &self,
        after: Option<(Time, TransactionId)>,
    ) -> impl Iterator<Item = (TransactionId, &Record)> {
        self.after(&self.over, after)
    }

    fn after<'a>(
        &'a self,
        all: &'a BTreeSet<(Time, TransactionId)>,
        after: Option<(Time, TransactionId)>,
    ) -> impl Iterator<Item = (TransactionId, &'a Record)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = all.range((from, Bound::Unbounded));
        range.filter_map(|(_, id)| Some((*id, self.by_id.get(id)?)))
    }

    /// The first that became pending after a time: when.
    pub(crate) fn first_since(&self, time: Time) -> Option<Time> {
        self.pending.range((time, TransactionId::default())..).next().map(|(since, _)| *since)
    }

    /// How many have been pending at least since then.
    pub(crate) fn count_pending(&self, since: Time) -> u64 {
        let last = TransactionId(perdura_protocol::Digest([u8::MAX; 32]));
        self.pending.range(..=(since, last)).count() as u64
    }

    /// How many are over.
    pub(crate) fn count_over(&self) -> u64 {
        self.over.len() as u64
    }

    /// When the one that is over and was voted on first was.
    pub(crate) fn oldest_over(&self) -> Option<Time> {
        self.over.first().map(|(since, _)| *since)
    }

    /// Partitions on which something is pending.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = PartitionId> {
        self.pending_on.keys().copied()
    }

    /// Which has been pending on this participant for longest, and since when.
    pub(crate) fn oldest_on(&self, partition: PartitionId) -> Option<(Time, TransactionId)> {
        self.pending_on.get(&partition)?.first().copied()
    }
}

impl Encode for Holdings {
    fn encode(&self, out: &mut Vec<u8>) {
        self.touched.encode(out);
        encode_count(self.writes.len(), out);
        for (key, value) in &self.writes {
            encode_bytes(key, out);
            value.is_some().encode(out);
            value.iter().for_each(|value| encode_bytes(value, out));
        }
        self.growth.encode(out);
    }
}

impl Decode for Holdings {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        use crate::limits::{KEY_BYTES, OPERATIONS, VALUE_BYTES};
        let touched = Decode::decode(reader)?;
        let count = reader.count("writes", OPERATIONS, 5)?;
        let mut writes = BTreeMap::new();
        for _ in 0..count {
            let key = reader.bytes("key", KEY_BYTES)?;
            let value = match bool::decode(reader)? {
                true => Some(reader.bytes("value", VALUE_BYTES)?),
                false => None,
            };
            writes.insert(key, value);
        }
        Ok(Holdings { touched, writes, growth: Decode::decode(reader)? })
    }
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        self.intent.encode(out);
        self.since.encode(out);
        self.vote.encode(out);
        self.outcome.map_or(0u8, |committed| 1 + u8::from(committed)).encode(out);
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (intent, since) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let vote = Decode::decode(reader)?;
        let outcome = match u8::decode(reader)? {
            0 => None,
            1 => Some(false),
            2 => Some(true),
            tag => return Err(DecodeError::UnknownTag(tag)),
        };
        Ok(Record { intent, since, vote, outcome, held: None })
    }
}
