//! Marks of those who wait for locks: their places in a line. While one stands, nobody who came later is given a lock that is in its caller's way. So who
//! waits gets in, though others come and go without end.
//!
//! A caller takes his place everywhere at once, with all the keys and ranges that he wants in this partition, and is known by them. All lines have the
//! same order, so nobody waits for himself; and how long somebody says that he has waited is worth nothing. Who waits holds no locks. Only who would hold
//! something beyond his slot is hindered.
//!
//! Invariants:
//! - A mark goes when its caller gets an answer, a second after he last found something in his way, and five after it was first, or after he had to give
//!   back what he had. While a transaction of his has what he waits for, only the last of these counts. He may give it back as often as there are partitions
//!   behind this one in which he may find somebody, within ten seconds after it was first.
//! - Of each client's key one comes after the other, and who comes has the place of those of each other key that are next: so many places taken at once are
//!   no more than one (as in start-time fair queueing, Goyal, Vin and Cheng, 1996).
//! - A mark is void as long as the first lock in its way, or if there is none every mark, is its own client key's, and while that key has wasted too much of
//!   others' time. A void one counts among the marks of its own key alone, and wastes nothing. What its own key had was its turn: it comes to the end of the
//!   line then.
//! - Wasted is what kept others out though nothing was in its way. Who waits for a lock that a stranger has wastes nothing.
//! - What there is of marks is bounded, by client key and in all. Nothing is due for them: they go with whatever happens next.

mod leaving;

use super::intent::TransactionId;
use super::limits;
use super::locks::Touched;
use crate::plan::Interval;
use bytes::Bytes;
use perdura_execution::{Meter, TooCostly};
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, PublicKey, Reader, SessionId, Time, seeded,
};
use std::collections::{BTreeMap, BTreeSet};

/// A mark goes so long after its caller last found something in his way, milliseconds, ...
const UNASKED_MS: u64 = 1_000;

/// ... and so long after nobody came before it any more.
const FIRST_MS: u64 = 5_000;

/// What a client's key wastes, being first without taking what it wants, is forgotten in so many times as long, ...
const WASTE: u64 = 4;

/// ... and while there is more to be forgotten than this, milliseconds, its marks are void. What they waste together beyond what one can counts for nothing: who
/// waits for a lock that nobody gives back is first for long, too.
const TOLERATED_MS: u64 = 8_000;
const WASTED_AT_MOST_MS: u64 = WASTE * FIRST_MS;

/// What looking at a key costs, and at a mark.
pub(super) const KEY_COST: usize = 64;
const MARK_COST: usize = 64;
const RANGE_COST: usize = 16;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Whose, in this partition.
    session: SessionId,
    /// What its caller wants.
    wanted: Digest,
    /// What others are kept from: all that, or where he met somebody, if it is too much.
    on: Touched,
    is_part: bool,
    /// When it was left, on the clock.
    made: Time,
    /// When its caller last found something in his way.
    asked: Time,
    /// Since when nobody has been before it.
    first: Option<Time>,
    /// Since when nothing at all has been in its way, as far as its caller asked.
    free: Option<Time>,
    /// Whether only its own client's key is in its way.
    is_own: bool,
    /// The transaction that has what it waits for. Where that is aborted, since another partition did not grant its part, it waits on.
    taken_by: Option<TransactionId>,
    /// How often that has happened, and when for the last time.
    times_given_back: u8,
    given_back: Option<Time>,
}

impl Mark {
    fn ends(&self) -> Time {
        let unasked = self.asked.0 + UNASKED_MS;
        Time(match self.given_back.or(self.first).map(|since| since.0 + FIRST_MS) {
            Some(at) if self.taken_by.is_some() => at,
            Some(at) => unasked.min(at),
            None => unasked,
        })
    }

    /// How long it kept others out for nothing, if it goes by itself at that time, milliseconds.
    fn wasted_ms(&self, at: Time) -> u64 {
        let since = |since: Option<Time>| since.map_or(0, |since| at.0.saturating_sub(since.0));
        if self.taken_by.is_some() { 0 } else { since(self.free) }
    }
}

/// A place in all lines, and which one it is of all that were left.
pub(crate) type Number = (u64, u64);

/// What changes in the book: by their number, and by client key.
pub(crate) enum Change {
    Mark(Number, Option<Box<Mark>>),
    Count(u64),
    Waste(PublicKey, Option<Time>),
}

/// What ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Mark(Number),
    Waste(PublicKey),
}

/// Who asks whether marks are in his way, and when: his key, and his own mark.
type Comer = (PublicKey, Option<Number>, Time);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// In the order in which they are served.
    all: BTreeMap<Number, Mark>,
    /// How many were left so far. It begins anew where there are none.
    count: u64,
    /// When what each client's key wasted is forgotten.
    wastes: BTreeMap<PublicKey, Time>,
    // What follows from these. Of a key whether it is to be written.
    keys: BTreeMap<Bytes, BTreeMap<Number, bool>>,
    with_ranges: BTreeSet<Number>,
    of_session: BTreeMap<SessionId, BTreeSet<Number>>,
    of_client: BTreeMap<PublicKey, usize>,
    endings: BTreeSet<(Time, Ending)>,
}

impl Marks {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// One that is restored, or new.
    pub(crate) fn insert(&mut self, number: Number, mark: Mark) {
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

    fn remove(&mut self, number: Number) -> Option<Mark> {
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

    /// How many were left so far, when they are restored.
    pub(crate) fn put_count(&mut self, count: u64) {
        self.count = count;
    }

    /// What a client's key wasted is forgotten then.
    pub(crate) fn put_waste(&mut self, client: PublicKey, until: Time) {
        if let Some(before) = self.wastes.insert(client, until) {
            self.endings.remove(&(before, Ending::Waste(client)));
        }
        self.endings.insert((until, Ending::Waste(client)));
    }

    /// Whether a mark counts for its own client's key alone.
    fn is_void(&self, mark: &Mark, now: Time) -> bool {
        let until = self.wastes.get(&mark.session.client);
        mark.is_own || until.is_some_and(|until| until.0 > now.0 + TOLERATED_MS)
    }

    /// Time has come so far.
    fn pass(&mut self, now: Time) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(&(_, ending)) = self.endings.first().filter(|(at, _)| *at <= now) {
            match ending {
                Ending::Mark(number) => changes.extend(self.end(number, now)),
                Ending::Waste(client) => {
                    self.wastes.remove(&client);
                    self.endings.pop_first();
                    changes.push(Change::Waste(client, None));
                }
            }
        }
        changes
    }

    /// One goes without an answer.
    fn end(&mut self, number: Number, now: Time) -> Vec<Change> {
        let Some(mark) = self.all.get(&number).cloned() else { return Vec::new() };
        let client = mark.session.client;
        let at = mark.ends().min(now);
        let mut changes = self.leave(number);
        let wasted_ms = if self.is_void(&mark, at) { 0 } else { mark.wasted_ms(at) };
        if wasted_ms > 0 && !seeded!(MarkedAgain) {
            let before = self.wastes.get(&client).copied().unwrap_or_default();
            let until = at.max(before).0 + WASTE * wasted_ms;
            let until = Time(until.min(at.0 + WASTED_AT_MOST_MS).max(before.0));
            if until > now {
                self.put_waste(client, until);
                changes.push(Change::Waste(client, Some(until)));
            }
        }
        changes
    }

    /// One goes.
    fn leave(&mut self, number: Number) -> Vec<Change> {
        let Some(_) = self.remove(number) else { return Vec::new() };
        let mut changes = vec![Change::Mark(number, None)];
        if self.all.is_empty() {
            self.count = 0;
            changes.push(Change::Count(0));
        }
        changes
    }

    /// The number of a new one: behind the last of its own client's key that wants some of the same, and behind the next one of each other key that would be in
    /// its way. What is only on part of what is wanted may want anything.
    fn next_number(&mut self, new: &Mark, now: Time, meter: &Meter) -> Number {
        let client = new.session.client;
        let is_part = |mark: &Mark| mark.is_part || new.is_part;
        let mut place = 0;
        let mut next_ones: BTreeMap<PublicKey, u64> = BTreeMap::new();
        let mut note_next = |(of, _): Number, mark: &Mark| {
            if mark.session.client != client && !self.is_void(mark, now) {
                let next = next_ones.entry(mark.session.client).or_insert(of);
                *next = of.min(*next);
            }
        };
        for (number, mark) in &self.all {
            if is_part(mark) {
                note_next(*number, mark);
            }
            if mark.session.client == client && (is_part(mark) || mark.on.shares(&new.on)) {
                place = number.0 + 1;
            }
        }
        let looked = self.in_the_way(&new.on, meter, |number| {
            note_next(number, &self.all[&number]);
            false
        });
        // Where there are too many to be looked at, it comes behind all.
        let last = self.all.last_key_value().map_or(0, |((last, _), _)| *last);
        let others = next_ones.into_values().max().unwrap_or_default();
        place = place.max(if looked.is_ok() { others } else { last });
        self.count += 1;
        (place, self.count)
    }

    fn of_session(&self, session: SessionId) -> impl Iterator<Item = (Number, &Mark)> {
        let numbers = self.of_session.get(&session).into_iter().flatten();
        numbers.map(|number| (*number, &self.all[number]))
    }

    /// The mark of who waits for this. Of two who want the same in one session one waits.
    fn number_of(&self, session: SessionId, wanted: Digest) -> Option<Number> {
        let waits = |mark: &Mark| mark.wanted == wanted && mark.taken_by.is_none();
        self.of_session(session).find(|(_, mark)| waits(mark)).map(|(number, _)| number)
    }

    /// Whether one more of a client can be there.
    fn has_place(&self, client: PublicKey) -> bool {
        self.of_client.get(&client).is_none_or(|own| *own < limits::MARKS_PER_CLIENT)
            && self.all.len() < limits::MARKS
    }

    /// Whether a mark is before who comes. His own gives him no place before those of others if it is void.
    fn counts(&self, number: Number, (client, own, now): Comer) -> bool {
        let Some(mark) = self.all.get(&number) else { return false };
        let is_stranger = mark.session.client != client;
        let own = own.filter(|own| {
            !is_stranger || self.all.get(own).is_some_and(|own| !self.is_void(own, now))
        });
        let is_before = own.is_none_or(|own| number < own || (seeded!(LaterFirst) && number > own));
        is_before && !(is_stranger && self.is_void(mark, now))
    }

    /// The marks that come before who touches this. At most so many.
    fn before(
        &self,
        comer: Comer,
        touched: &Touched,
        (meter, most): (&Meter, usize),
    ) -> Result<BTreeSet<Number>, TooCostly> {
        let mut found = BTreeSet::new();
        self.in_the_way(touched, meter, |number| {
            if self.counts(number, comer) {
                found.insert(number);
            }
            found.len() >= most
        })?;
        Ok(found)
    }

    /// The marks that are in the way of who touches this, but for those beside which it may be had, as reads are beside each other: some more than once, until
    /// it is enough. Those looked at are charged for.
    fn in_the_way(
        &self,
        touched: &Touched,
        meter: &Meter,
        mut is_enough: impl FnMut(Number) -> bool,
    ) -> Result<(), TooCostly> {
        let mut look = |number: Number, is_in_the_way: bool| -> Result<bool, TooCostly> {
            meter.charge(MARK_COST)?;
            Ok(is_in_the_way && is_enough(number))
        };
        let Touched { reads, writes, intervals } = touched;
        for (keys, is_written) in [(reads, false), (writes, true)] {
            for (number, writes) in keys.iter().filter_map(|key| self.keys.get(key)).flatten() {
                if look(*number, is_written || *writes)? {
                    return Ok(());
                }
            }
        }
        for interval in intervals {
            for (_, line) in self.keys.range::<[u8], _>(interval.bounds()) {
                for (number, writes) in line {
                    if look(*number, *writes)? {
                        return Ok(());
                    }
                }
            }
        }
        if writes.is_empty() || seeded!(RangesLast) {
            return Ok(());
        }
        for number in &self.with_ranges {
            let intervals = &self.all[number].on.intervals;
            meter.charge(RANGE_COST * intervals.len())?;
            let has_some = |one: &Interval| writes.range::<[u8], _>(one.bounds()).next().is_some();
            if intervals.iter().any(has_some) && look(*number, true)? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Encode for Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        self.wanted.encode(out);
        self.on.encode(out);
        self.is_part.encode(out);
        self.made.encode(out);
        self.asked.encode(out);
        self.first.encode(out);
        self.free.encode(out);
        self.is_own.encode(out);
        self.taken_by.encode(out);
        self.times_given_back.encode(out);
        self.given_back.encode(out);
    }
}

impl Decode for Mark {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Mark {
            session: Decode::decode(reader)?,
            wanted: Decode::decode(reader)?,
            on: Decode::decode(reader)?,
            is_part: Decode::decode(reader)?,
            made: Decode::decode(reader)?,
            asked: Decode::decode(reader)?,
            first: Decode::decode(reader)?,
            free: Decode::decode(reader)?,
            is_own: Decode::decode(reader)?,
            taken_by: Decode::decode(reader)?,
            times_given_back: Decode::decode(reader)?,
            given_back: Decode::decode(reader)?,
        })
    }
}
