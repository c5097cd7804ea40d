//! Marks of those who wait for locks: while one stands on a key, nobody else is given a lock there that is in its caller's way. So who waits gets in,
//! though others come and go without end.
//!
//! A key bears one mark, that of who left it first: how long somebody says that he has waited is worth nothing. Who waits holds no locks, so marks
//! make nobody wait for each other for longer than they stand. Only who would hold something beyond his slot is hindered.
//!
//! Invariants:
//! - A mark goes when its session gets something on its key, a second after its caller last asked, and five seconds after it was
//!   made. Where it went by itself its client's key leaves none for a while, so that no key keeps others out for good.
//! - What there is of marks is bounded, by client key and in all. Nothing is due for them: they go with whatever happens next.

use super::command::Wanted;
use super::locks::Touched;
use super::reply::{PartitionReply, Way};
use super::{Asker, Entries, Partition, limits};
use crate::limits::KEY_BYTES;
use crate::plan::Interval;
use crate::service::check_place;
use bytes::Bytes;
use perdura_execution::{Meter, TooCostly};
use perdura_protocol::codec::encode_bytes;
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, PublicKey, Reader, SessionId, Time, seeded,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A mark goes so long after its caller last asked, milliseconds, ...
const UNASKED_MS: u64 = 1_000;

/// ... and so long after it was made.
const STANDS_MS: u64 = 5_000;

/// One that went so soon, milliseconds, is not left again for as long, ...
const SHORT_MS: u64 = 1_500;

/// ... and another one for so many times as long: one client key has a key for a fifth of the time.
const PAUSE: u64 = 4;

/// What looking at a key costs, and at a mark in a range.
const KEY_COST: usize = 64;
const MARK_COST: usize = 16;

/// What a mark adds to the book beside its key, bytes: at most.
const MARK_BYTES: usize = 256;

/// On a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    key: Bytes,
    /// Whose, in this partition.
    session: SessionId,
    /// Whether its caller wants to write there; else to read.
    writes: bool,
    /// On the clock.
    made: Time,
    /// When its caller last asked.
    asked: Time,
}

impl Mark {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    fn ends(&self) -> Time {
        Time((self.asked.0 + UNASKED_MS).min(self.made.0 + STANDS_MS))
    }
}

/// What a client's key left, and must not leave again for a while.
pub(crate) type Pause = (Digest, PublicKey);

/// What changes in the book.
pub(crate) enum Change {
    Mark(Digest, Option<Mark>),
    Pause(Pause, Option<Time>),
}

/// What ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Mark,
    Pause(Pause),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    on: BTreeMap<Bytes, Mark>,
    pauses: BTreeMap<Pause, Time>,
    // What follows from these.
    endings: BTreeSet<(Time, Bytes, Ending)>,
    of_client: BTreeMap<PublicKey, usize>,
}

impl Marks {
    pub(crate) fn is_empty(&self) -> bool {
        self.on.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.on.len()
    }

    fn count_one_more(&mut self, client: PublicKey) {
        *self.of_client.entry(client).or_default() += 1;
    }

    fn count_one_less(&mut self, client: PublicKey) {
        if let Some(count) = self.of_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.of_client.remove(&client);
            }
        }
    }

    /// That one more of a client can be there.
    fn has_place(&self, client: PublicKey) -> bool {
        self.of_client.get(&client).is_none_or(|own| *own < limits::MARKS_PER_CLIENT)
            && self.on.len() + self.pauses.len() < limits::MARKS
    }

    /// One that is restored, or new: there is none on its key.
    pub(crate) fn insert(&mut self, mark: Mark) {
        self.count_one_more(mark.session.client);
        self.endings.insert((mark.ends(), mark.key.clone(), Ending::Mark));
        self.on.insert(mark.key.clone(), mark);
    }

    fn remove(&mut self, key: &[u8]) -> Option<Mark> {
        let mark = self.on.remove(key)?;
        self.endings.remove(&(mark.ends(), mark.key.clone(), Ending::Mark));
        self.count_one_less(mark.session.client);
        Some(mark)
    }

    /// The same of a pause.
    pub(crate) fn insert_pause(&mut self, pause: Pause, until: Time) {
        self.count_one_more(pause.1);
        self.endings.insert((until, Bytes::new(), Ending::Pause(pause)));
        self.pauses.insert(pause, until);
    }

    fn remove_pause(&mut self, pause: Pause) {
        if let Some(until) = self.pauses.remove(&pause) {
            self.endings.remove(&(until, Bytes::new(), Ending::Pause(pause)));
            self.count_one_less(pause.1);
        }
    }

    /// Time has come so far.
    pub(crate) fn pass(&mut self, now: Time) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some((at, key, ending)) = self.endings.first().cloned().filter(|one| one.0 <= now)
        {
            match ending {
                Ending::Mark => {
                    let Some(mark) = self.remove(&key) else { continue };
                    let (digest, client) = (Digest::of(&key), mark.session.client);
                    changes.push(Change::Mark(digest, None));
                    let stood_ms = at.0 - mark.made.0;
                    let times = if stood_ms <= SHORT_MS { 1 } else { PAUSE };
                    let until = Time(at.0 + times * stood_ms);
                    if until > now && !seeded!(MarkedAgain) {
                        self.remove_pause((digest, client));
                        self.insert_pause((digest, client), until);
                        changes.push(Change::Pause((digest, client), Some(until)));
                    }
                }
                Ending::Pause(pause) => {
                    self.remove_pause(pause);
                    changes.push(Change::Pause(pause, None));
                }
            }
        }
        changes
    }

    /// A caller met somebody at a key. Whether he has a mark there now, and what changed.
    fn leave(
        &mut self,
        session: SessionId,
        (key, writes): (&[u8], bool),
        now: Time,
    ) -> (bool, Option<Change>) {
        let digest = Digest::of(key);
        let (made, writes) = match self.on.get(key) {
            Some(mark) if mark.session == session => (mark.made, writes || mark.writes),
            Some(_) if !seeded!(LaterFirst) => return (false, None),
            _ if self.pauses.contains_key(&(digest, session.client)) => return (false, None),
            _ if !self.has_place(session.client) => return (false, None),
            _ => (now, writes),
        };
        self.remove(key);
        // What it came in is not kept.
        let key = Bytes::copy_from_slice(key);
        let mark = Mark { key, session, writes, made, asked: now };
        self.insert(mark.clone());
        (true, Some(Change::Mark(digest, Some(mark))))
    }

    /// How much looking for marks on this may cost.
    fn cost(&self, touched: &Touched) -> usize {
        MARK_COST * touched.intervals.len() * self.on.len()
    }

    fn in_interval(&self, interval: &Interval) -> impl Iterator<Item = &Mark> {
        let end = interval.end.as_ref().map(|end| end.max(&interval.start));
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(&**end));
        let start = Bound::Included(&*interval.start);
        self.on.range::<[u8], _>((start, end)).map(|(_, mark)| mark)
    }

    /// The marks on what is touched, but for those beside which it may be had, as reads are beside each other.
    fn against<'a>(&'a self, touched: &'a Touched) -> impl Iterator<Item = &'a Mark> {
        let Touched { reads, writes, intervals } = touched;
        let reads = reads.iter().filter_map(|key| self.on.get(key));
        let ranges = intervals.iter().flat_map(|interval| self.in_interval(interval));
        let writes = writes.iter().filter_map(|key| self.on.get(key));
        reads.chain(ranges).filter(|mark| mark.writes).chain(writes)
    }

    /// Those of others.
    fn of_others<'a>(
        &'a self,
        session: SessionId,
        touched: &'a Touched,
    ) -> impl Iterator<Item = &'a Mark> {
        self.against(touched).filter(move |mark| mark.session != session)
    }

    /// The keys of a session's own marks that are served by what it touches. Reading serves none that wants to write.
    fn own(&self, session: SessionId, touched: &Touched) -> BTreeSet<Bytes> {
        let Touched { reads, writes, intervals } = touched;
        let reads = reads.iter().filter_map(|key| self.on.get(key));
        let ranges = intervals.iter().flat_map(|interval| self.in_interval(interval));
        let writes = writes.iter().filter_map(|key| self.on.get(key));
        let served = reads.chain(ranges).filter(|mark| !mark.writes).chain(writes);
        let own = served.filter(|mark| mark.session == session);
        own.map(|mark| mark.key.clone()).collect()
    }
}

impl Partition {
    fn note_marks(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.book.put_change_of_marks(change);
        }
    }

    /// Marks that have stood for long enough go.
    pub(super) fn pass_marks(&mut self) {
        let changes = self.marks.pass(self.now);
        self.note_marks(changes);
    }

    /// Whether somebody who waits is to have something first that this would hold.
    pub(super) fn is_marked_by_others(&self, session: SessionId, touched: &Touched) -> bool {
        !self.marks.is_empty()
            && !seeded!(MarksIgnored)
            && self.marks.of_others(session, touched).next().is_some()
    }

    pub(crate) fn has_marks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Charges for looking for marks on what is touched.
    pub(crate) fn charge_for_marks(
        &self,
        meter: &Meter,
        touched: &Touched,
    ) -> Result<(), TooCostly> {
        if self.marks.is_empty() {
            return Ok(());
        }
        meter.charge(self.marks.cost(touched))
    }

    /// A session got what it touches: it waits for that no longer.
    pub(crate) fn served(&mut self, session: SessionId, touched: &Touched) {
        if self.marks.is_empty() {
            return;
        }
        for key in self.marks.own(session, touched) {
            self.forget_mark(&key);
        }
    }

    /// The same of one key, that it wrote or only read.
    pub(crate) fn served_at(&mut self, session: SessionId, key: &[u8], writes: bool) {
        let is_served = |mark: &Mark| mark.session == session && (writes || !mark.writes);
        if self.marks.on.get(key).is_some_and(is_served) {
            self.forget_mark(key);
        }
    }

    fn forget_mark(&mut self, key: &[u8]) {
        self.marks.remove(key);
        self.note_marks([Change::Mark(Digest::of(key), None)]);
    }

    /// What is in the way of who waits for something. Where he meets somebody he has a mark from now on, if he may.
    pub(super) fn mark(
        &mut self,
        entries: &Entries<'_>,
        asker: &Asker<'_>,
        wanted: &Wanted,
    ) -> Result<PartitionReply, String> {
        let touched = &wanted.0;
        asker.meter.charge(KEY_COST * wanted.keys() + 3 * self.marks.cost(touched))?;
        for key in touched.reads.iter().chain(&touched.writes) {
            if !(1..=KEY_BYTES).contains(&key.len()) {
                return Err(format!(
                    "a key has 1 to {KEY_BYTES} bytes, this one has {}",
                    key.len()
                ));
            }
            check_place(self, key)?;
        }
        let session = asker.session;
        let held = self.locks.met(touched);
        let mut marked = false;
        if let Some(met) = &held {
            let room = self.unreserved(entries.limit).bytes;
            if entries.map.bytes() + (met.key.len() + MARK_BYTES) as u64 <= room {
                let change;
                (marked, change) = self.marks.leave(session, (&met.key, met.writes), self.now);
                self.note_marks(change);
            }
        }
        // Those that he has stay as long as he asks.
        let own = self.marks.against(touched).filter(|mark| mark.session == session);
        let own: Vec<Mark> = own.filter(|mark| mark.asked < self.now).cloned().collect();
        for mark in own {
            let (_, change) = self.marks.leave(session, (&mark.key, mark.writes), self.now);
            self.note_marks(change);
        }
        let way = match held {
            Some(met) => Way::Held { blocker: self.blocker(met.holder), marked },
            None => {
                let others = self.marks.of_others(session, touched);
                let left_ms = others.map(|mark| mark.ends().0.saturating_sub(self.now.0)).max();
                left_ms.map_or(Way::Free, |again_ms| Way::Marked { again_ms })
            }
        };
        Ok(PartitionReply::Marked { way })
    }
}

impl Encode for Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(&self.key, out);
        self.session.encode(out);
        self.writes.encode(out);
        self.made.encode(out);
        self.asked.encode(out);
    }
}

impl Decode for Mark {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Mark {
            key: reader.bytes("key", KEY_BYTES)?,
            session: Decode::decode(reader)?,
            writes: Decode::decode(reader)?,
            made: Decode::decode(reader)?,
            asked: Decode::decode(reader)?,
        })
    }
}
