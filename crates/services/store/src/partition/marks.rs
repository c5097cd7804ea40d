//! Marks of those who wait for locks: their places in a line. While one stands, nobody who came later is given a lock that is in its caller's way. So who
//! waits gets in, though others come and go without end.
//!
//! A caller takes his place everywhere at once, with all the keys and ranges that he wants in this partition, and is known by them. All lines have the
//! same order, so nobody waits for himself; and how long somebody says that he has waited is worth nothing. Who waits holds no locks. Only who would hold
//! something beyond his slot is hindered.
//!
//! Invariants:
//! - A mark goes when its caller gets an answer, a second after it last was of use to him, and when it has been first for five seconds.
//! - It counts for its own client's key alone as long as only that key's transactions are in its way, and, where one went by itself, for a while.
//!   So no key keeps others out for good.
//! - What there is of marks is bounded, by client key and in all. Nothing is due for them: they go with whatever happens next.

use super::command::Wanted;
use super::intent::TransactionId;
use super::locks::{Met, Touched};
use super::reply::{PartitionReply, Way};
use super::{Asker, Entries, Partition, limits};
use crate::limits::KEY_BYTES;
use crate::service::check_place;
use bytes::Bytes;
use perdura_execution::{Meter, TooCostly};
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, PublicKey, Reader, SessionId, Time, seeded,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A mark goes so long after its caller last found something in his way, milliseconds, ...
const UNASKED_MS: u64 = 1_000;

/// ... and so long after nobody came before it any more.
const FIRST_MS: u64 = 5_000;

/// Where it went since it was first for too long, its client's key waits so many times as long before its marks count for others again; else once.
const PAUSE: u64 = 4;

/// It is worth while to look again after so long, milliseconds, ...
const AGAIN_MS: u64 = 2;

/// ... and so much later for each that is before, ...
const TURN_MS: u64 = 8;

/// ... but not later than that.
const AGAIN_AT_MOST_MS: u64 = 60;

/// So many before it are counted.
const COUNTED: usize = 20;

/// What looking at a key costs, and at a mark.
pub(super) const KEY_COST: usize = 64;
const MARK_COST: usize = 16;
const RANGE_COST: usize = 4;

/// What a mark adds to the book beside what it is on, bytes: at most.
const MARK_BYTES: usize = 256;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Whose, in this partition.
    session: SessionId,
    /// What its caller wants.
    wanted: Digest,
    /// What others are kept from: all that, or where he met somebody, if it is too much.
    on: Touched,
    /// When its caller last found something in his way, on the clock.
    asked: Time,
    /// Since when nobody has been before it.
    first: Option<Time>,
    /// Whether its own client's key is in its way.
    is_own: bool,
    /// The transaction that has what it waits for. Where that is aborted, since another partition did not grant its part, it waits on.
    taken_by: Option<TransactionId>,
}

impl Mark {
    fn ends(&self) -> Time {
        let unasked = self.asked.0 + UNASKED_MS;
        Time(self.first.map_or(unasked, |first| unasked.min(first.0 + FIRST_MS)))
    }

    /// Until when its client's key gets less, since this one goes by itself, now or when it should have.
    fn pauses_until(&self, now: Time) -> Time {
        let Some(first) = self.first.filter(|_| self.taken_by.is_none()) else { return Time(0) };
        let ends = self.ends().min(now);
        let stood_ms = ends.0.saturating_sub(first.0);
        let times = if stood_ms < FIRST_MS { 1 } else { PAUSE };
        Time(ends.0 + times * stood_ms)
    }
}

/// What changes in the book: by their number, and by client key.
pub(crate) enum Change {
    Mark(u64, Option<Mark>),
    Pause(PublicKey, Option<Time>),
}

/// What ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Mark(u64),
    Pause(PublicKey),
}

/// Who asks whether marks are in his way: his key, and his own mark.
type Comer = (PublicKey, Option<u64>);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// In the order in which they were left.
    all: BTreeMap<u64, Mark>,
    pauses: BTreeMap<PublicKey, Time>,
    // What follows from these. Of a key whether it is to be written.
    keys: BTreeMap<Bytes, BTreeMap<u64, bool>>,
    with_ranges: BTreeSet<u64>,
    of_session: BTreeMap<SessionId, BTreeSet<u64>>,
    of_client: BTreeMap<PublicKey, usize>,
    endings: BTreeSet<(Time, Ending)>,
}

impl Marks {
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// One that is restored, or new.
    pub(crate) fn insert(&mut self, number: u64, mark: Mark) {
        let Touched { reads, writes, intervals } = &mark.on;
        for (keys, is_written) in [(reads, false), (writes, true)] {
            for key in keys {
                self.keys.entry(key.clone()).or_default().insert(number, is_written);
            }
        }
        if !intervals.is_empty() {
            self.with_ranges.insert(number);
        }
        self.of_session.entry(mark.session).or_default().insert(number);
        *self.of_client.entry(mark.session.client).or_default() += 1;
        self.endings.insert((mark.ends(), Ending::Mark(number)));
        self.all.insert(number, mark);
    }

    fn remove(&mut self, number: u64) -> Option<Mark> {
        let mark = self.all.remove(&number)?;
        for key in mark.on.reads.iter().chain(&mark.on.writes) {
            if let Some(line) = self.keys.get_mut(key) {
                line.remove(&number);
                if line.is_empty() {
                    self.keys.remove(key);
                }
            }
        }
        self.with_ranges.remove(&number);
        if let Some(own) = self.of_session.get_mut(&mark.session) {
            own.remove(&number);
            if own.is_empty() {
                self.of_session.remove(&mark.session);
            }
        }
        if let Some(count) = self.of_client.get_mut(&mark.session.client) {
            *count -= 1;
            if *count == 0 {
                self.of_client.remove(&mark.session.client);
            }
        }
        self.endings.remove(&(mark.ends(), Ending::Mark(number)));
        Some(mark)
    }

    /// A client's key gets less until then: never sooner than it was said before.
    pub(crate) fn pause(&mut self, client: PublicKey, until: Time) -> Time {
        let before = self.pauses.get(&client).copied().unwrap_or_default();
        let until = until.max(before);
        self.endings.remove(&(before, Ending::Pause(client)));
        self.endings.insert((until, Ending::Pause(client)));
        self.pauses.insert(client, until);
        until
    }

    /// Time has come so far.
    fn pass(&mut self, now: Time) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(&(_, ending)) = self.endings.first().filter(|(at, _)| *at <= now) {
            match ending {
                Ending::Mark(number) => changes.extend(self.end(number, now)),
                Ending::Pause(client) => {
                    self.pauses.remove(&client);
                    self.endings.pop_first();
                    changes.push(Change::Pause(client, None));
                }
            }
        }
        changes
    }

    fn of_session(&self, session: SessionId) -> impl Iterator<Item = (u64, &Mark)> {
        let numbers = self.of_session.get(&session).into_iter().flatten();
        numbers.map(|number| (*number, &self.all[number]))
    }

    /// One goes without an answer.
    fn end(&mut self, number: u64, now: Time) -> Vec<Change> {
        let Some(mark) = self.remove(number) else { return Vec::new() };
        let mut changes = vec![Change::Mark(number, None)];
        let (client, until) = (mark.session.client, mark.pauses_until(now));
        if until > now && !seeded!(MarkedAgain) {
            let until = self.pause(client, until);
            changes.push(Change::Pause(client, Some(until)));
        }
        changes
    }

    /// The mark of who waits for this. Of two who want the same in one session one waits.
    fn number_of(&self, session: SessionId, wanted: Digest) -> Option<u64> {
        let waits = |mark: &Mark| mark.wanted == wanted && mark.taken_by.is_none();
        self.of_session(session).find(|(_, mark)| waits(mark)).map(|(number, _)| number)
    }

    /// Whether one more of a client can be there.
    fn has_place(&self, client: PublicKey) -> bool {
        self.of_client.get(&client).is_none_or(|own| *own < limits::MARKS_PER_CLIENT)
            && self.all.len() < limits::MARKS
    }

    /// Whether a mark is before who comes.
    fn counts(&self, number: u64, (client, own): Comer) -> bool {
        let is_before = own.is_none_or(|own| number < own || seeded!(LaterFirst) && number > own);
        is_before
            && self.all.get(&number).is_some_and(|mark| {
                let of = mark.session.client;
                of == client || !mark.is_own && !self.pauses.contains_key(&of)
            })
    }

    /// The marks that come before who touches this, but for those beside which it may be had, as reads are beside each other. At most so many; those looked
    /// at are charged for.
    fn before(
        &self,
        comer: Comer,
        touched: &Touched,
        (meter, most): (&Meter, usize),
    ) -> Result<BTreeSet<u64>, TooCostly> {
        let mut found = BTreeSet::new();
        let mut look = |number: u64, is_in_the_way: bool| -> Result<bool, TooCostly> {
            meter.charge(MARK_COST)?;
            if is_in_the_way && self.counts(number, comer) {
                found.insert(number);
            }
            Ok(found.len() >= most)
        };
        let Touched { reads, writes, intervals } = touched;
        for (keys, is_written) in [(reads, false), (writes, true)] {
            for (number, writes) in keys.iter().filter_map(|key| self.keys.get(key)).flatten() {
                if look(*number, is_written || *writes)? {
                    return Ok(found);
                }
            }
        }
        for interval in intervals {
            let end = interval.end.as_ref().map(|end| end.max(&interval.start));
            let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(&**end));
            let start = Bound::Included(&*interval.start);
            for (_, line) in self.keys.range::<[u8], _>((start, end)) {
                for (number, writes) in line {
                    if look(*number, *writes)? {
                        return Ok(found);
                    }
                }
            }
        }
        for key in writes {
            for number in &self.with_ranges {
                let intervals = &self.all[number].on.intervals;
                meter.charge(RANGE_COST * intervals.len())?;
                let is_in = intervals.iter().any(|one| one.contains(key));
                if look(*number, is_in && !seeded!(RangesLast))? {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}

/// Where who wants this has his mark, and met somebody.
fn place(wanted: &Touched, met: Option<&Met>) -> Touched {
    let fits =
        wanted.count() <= limits::KEYS_OF_A_MARK && wanted.bytes() <= limits::BYTES_OF_A_MARK;
    match met {
        _ if fits => wanted.clone(),
        None => Touched::default(),
        Some(met) => {
            // What it came in is not kept.
            let key = BTreeSet::from([Bytes::copy_from_slice(&met.key)]);
            let (reads, writes) =
                if met.writes { (BTreeSet::new(), key) } else { (key, BTreeSet::new()) };
            Touched { reads, writes, intervals: Vec::new() }
        }
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
    pub(super) fn is_marked_by_others(
        &self,
        (session, wanted): (SessionId, Option<&Wanted>),
        touched: &Touched,
        meter: &Meter,
    ) -> Result<bool, TooCostly> {
        if self.marks.all.is_empty() || seeded!(MarksIgnored) {
            return Ok(false);
        }
        let own = wanted.and_then(|wanted| self.marks.number_of(session, wanted.digest()));
        let before = self.marks.before((session.client, own), touched, (meter, 1))?;
        Ok(!before.is_empty())
    }

    /// Whether a session waits for anything.
    pub(crate) fn has_mark(&self, session: SessionId) -> bool {
        self.marks.of_session.contains_key(&session)
    }

    /// Who wants this has his answer, and waits no longer.
    pub(crate) fn answered(&mut self, session: SessionId, wanted: &Wanted) {
        if let Some(number) = self.marks.number_of(session, wanted.digest()) {
            self.change_mark(number, |_| None);
        }
    }

    /// Who wants this has it until his transaction ends.
    pub(super) fn taken(&mut self, session: SessionId, wanted: &Wanted, by: TransactionId) {
        if let Some(number) = self.marks.number_of(session, wanted.digest()) {
            self.change_mark(number, |mark| Some(Mark { taken_by: Some(by), ..mark }));
        }
    }

    /// A transaction of a session has ended.
    pub(super) fn given_back(
        &mut self,
        session: SessionId,
        transaction: TransactionId,
        commit: bool,
    ) {
        let its = |mark: &Mark| mark.taken_by == Some(transaction);
        let found = self.marks.of_session(session).find(|(_, mark)| its(mark));
        let Some((number, wanted)) = found.map(|(number, mark)| (number, mark.wanted)) else {
            return;
        };
        if !commit && let Some(later) = self.marks.number_of(session, wanted) {
            self.change_mark(later, |_| None);
        }
        let now = self.now;
        let waits_on = |mark| Mark { taken_by: None, asked: now, ..mark };
        self.change_mark(number, |mark| (!commit).then(|| waits_on(mark)));
    }

    fn change_mark(&mut self, number: u64, change: impl FnOnce(Mark) -> Option<Mark>) {
        let Some(mark) = self.marks.remove(number).map(change) else { return };
        if let Some(mark) = &mark {
            self.marks.insert(number, mark.clone());
        }
        self.note_marks([Change::Mark(number, mark)]);
    }

    /// Nobody waits in a session that is over.
    pub(super) fn forget_marks(&mut self, session: SessionId) {
        let own = self.marks.of_session(session);
        let numbers: Vec<u64> = own.map(|(number, _)| number).collect();
        for number in numbers {
            self.change_mark(number, |_| None);
        }
    }

    /// He waits here no longer, without an answer.
    pub(super) fn unmark(&mut self, session: SessionId, wanted: &Wanted) -> PartitionReply {
        if let Some(number) = self.marks.number_of(session, wanted.digest()) {
            let changes = self.marks.end(number, self.now);
            self.note_marks(changes);
        }
        PartitionReply::Marked { way: Way::Free }
    }

    /// What is in the way of who waits for something. Where there is something he has a mark from now on, if he may.
    pub(super) fn mark(
        &mut self,
        entries: &Entries<'_>,
        asker: &Asker<'_>,
        wanted: &Wanted,
    ) -> Result<PartitionReply, String> {
        let touched = &wanted.0;
        for key in touched.reads.iter().chain(&touched.writes) {
            if !(1..=KEY_BYTES).contains(&key.len()) {
                return Err(format!(
                    "a key has 1 to {KEY_BYTES} bytes, this one has {}",
                    key.len()
                ));
            }
            check_place(self, key)?;
        }
        let (session, now) = (asker.session, self.now);
        let client = session.client;
        let held = self.locks.met(touched);
        let own = self.marks.number_of(session, wanted.digest());
        let before = self.marks.before((client, own), touched, (asker.meter, COUNTED))?;
        let is_free = held.is_none() && before.is_empty();
        let holder = held.as_ref().and_then(|met| self.records.get(met.holder));
        let is_held_by_own = holder.map(|record| record.intent.client == client);
        let on = place(touched, held.as_ref());
        let mark = match own.and_then(|own| self.marks.remove(own)) {
            Some(mark) if is_free => Some(mark),
            Some(mark) => Some(Mark { asked: now, on, ..mark }),
            None if is_free || !self.marks.has_place(client) => None,
            None => {
                let room = self.unreserved(entries.limit).bytes;
                let has_room = entries.map.bytes() + (on.bytes() + MARK_BYTES) as u64 <= room;
                has_room.then(|| Mark {
                    session,
                    wanted: wanted.digest(),
                    on,
                    asked: now,
                    first: None,
                    is_own: false,
                    taken_by: None,
                })
            }
        };
        let is_marked = mark.is_some();
        if let Some(mut mark) = mark {
            if before.is_empty() {
                mark.first.get_or_insert(now);
            }
            mark.is_own = is_held_by_own.unwrap_or(mark.is_own);
            let next = || self.marks.all.last_key_value().map_or(0, |(last, _)| last + 1);
            let number = own.unwrap_or_else(next);
            self.marks.insert(number, mark.clone());
            self.note_marks([Change::Mark(number, Some(mark))]);
        }
        let turn_ms = AGAIN_MS + TURN_MS * before.len() as u64;
        let again_ms = if is_marked { turn_ms.min(AGAIN_AT_MOST_MS) } else { AGAIN_AT_MOST_MS };
        let way = match held {
            Some(met) => Way::Held { blocker: self.blocker(met.holder), again_ms },
            None if before.is_empty() => Way::Free,
            None => Way::Marked { again_ms },
        };
        Ok(PartitionReply::Marked { way })
    }
}

impl Encode for Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        self.wanted.encode(out);
        self.on.encode(out);
        self.asked.encode(out);
        self.first.encode(out);
        self.is_own.encode(out);
        self.taken_by.encode(out);
    }
}

impl Decode for Mark {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Mark {
            session: Decode::decode(reader)?,
            wanted: Decode::decode(reader)?,
            on: Decode::decode(reader)?,
            asked: Decode::decode(reader)?,
            first: Decode::decode(reader)?,
            is_own: Decode::decode(reader)?,
            taken_by: Decode::decode(reader)?,
        })
    }
}
