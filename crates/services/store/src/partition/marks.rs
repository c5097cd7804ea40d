//! Marks of those who wait for locks: while one stands on a key, nobody else is given a lock there that is in its caller's way. So who waits gets in,
//! though others come and go without end.
//!
//! A key bears one mark, that of the caller who has waited for longest; the order of two callers is the same in all partitions, but for how many marks
//! their clients have there, so marks do not make two wait for each other for long. Only who would hold something beyond his slot is hindered.
//!
//! Invariants:
//! - A mark goes when an older one finds nobody there but it, when its session gets something on its key, a second after its caller last met somebody there, and five seconds after it was
//!   made. Then the client's key leaves none there for four times as long as it stood.
//! - What there is of marks is bounded, by client key and in all. Nothing is due for them: they go with whatever happens next.

use super::command::{Caller, Wanted};
use super::locks::Touched;
use super::reply::{PartitionReply, Way};
use super::{Asker, Entries, Partition, limits};
use crate::plan::Interval;
use crate::service::check_place;
use bytes::Bytes;
use perdura_protocol::codec::encode_bytes;
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, PublicKey, Reader, SessionId, Time, seeded,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A mark goes so long after its caller last met somebody, milliseconds, ...
const UNMET_MS: u64 = 1_000;

/// ... and so long after it was made.
const STANDS_MS: u64 = 5_000;

/// Where a mark stood until it went by itself its client key leaves none for so many times as long. So one key covers at most a fifth of the time.
const PAUSE: u64 = 4;

/// For each mark that its client's key has already a caller counts as if he had come so much later, milliseconds. So who marks all that he can is
/// behind everybody.
const EACH_MS: u64 = 250;

/// What looking at a key costs.
const KEY_COST: usize = 64;

/// What a mark adds to the book beside its key, bytes: at most.
const MARK_BYTES: usize = 256;

/// Nobody is taken to have waited for longer, milliseconds.
const WAITED_MS: u64 = 10_000;

/// The order of callers: the lesser one comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rank {
    /// Since when he waits, in agreed time.
    pub begin: Time,
    tie: Digest,
}

impl Rank {
    /// Of a client's caller, at this agreed time.
    fn of(client: PublicKey, caller: Caller, now: Time) -> Rank {
        let earliest = Time(now.0.saturating_sub(WAITED_MS));
        let begin = caller.begin.unwrap_or(now).clamp(earliest, now);
        let mut out = b"perdura.caller.v1".to_vec();
        client.encode(&mut out);
        caller.token.encode(&mut out);
        Rank { begin, tie: Digest::of(&out) }
    }

    /// Of one whose client has so many marks already.
    fn behind(self, marks: usize, now: Time) -> Rank {
        let begin = Time(self.begin.0 + EACH_MS * marks as u64);
        Rank { begin: begin.min(now), ..self }
    }
}

/// On a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    key: Bytes,
    /// Whose, in this partition.
    session: SessionId,
    rank: Rank,
    /// Whether its caller wants to write there; else to read.
    writes: bool,
    /// On the clock.
    made: Time,
    /// When its caller last met somebody.
    met: Time,
}

impl Mark {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    fn ends(&self) -> Time {
        Time((self.met.0 + UNMET_MS).min(self.made.0 + STANDS_MS))
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

    /// How many there are of a client, with its pauses.
    fn count_of(&self, client: PublicKey) -> usize {
        self.of_client.get(&client).copied().unwrap_or(0)
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
        self.count_of(client) < limits::MARKS_PER_CLIENT
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
                    let until = Time(at.0 + PAUSE * (at.0 - mark.made.0));
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
        rank: Rank,
        (key, writes): (&Bytes, bool),
        now: Time,
    ) -> (bool, Option<Change>) {
        let digest = Digest::of(key);
        let before = self.on.get(key);
        let (made, rank, writes) = match before {
            Some(mark) if mark.session == session => {
                (mark.made, rank.min(mark.rank), writes || mark.writes)
            }
            Some(mark) if mark.rank < rank && !seeded!(YoungerFirst) => return (false, None),
            _ if self.pauses.contains_key(&(digest, session.client)) => return (false, None),
            Some(_) if self.count_of(session.client) >= limits::MARKS_PER_CLIENT => {
                return (false, None);
            }
            None if !self.has_place(session.client) => return (false, None),
            Some(_) | None => (now, rank, writes),
        };
        self.remove(key);
        let mark = Mark { key: key.clone(), session, rank, writes, made, met: now };
        self.insert(mark.clone());
        (true, Some(Change::Mark(digest, Some(mark))))
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

    /// The keys of a session's own marks on what it touches.
    fn own(&self, session: SessionId, touched: &Touched) -> BTreeSet<Bytes> {
        let keys = touched.reads.iter().chain(&touched.writes).filter_map(|key| self.on.get(key));
        let ranges = touched.intervals.iter().flat_map(|interval| self.in_interval(interval));
        let own = keys.chain(ranges).filter(|mark| mark.session == session);
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

    /// A session got what it touches: it waits for that no longer.
    pub(crate) fn served(&mut self, session: SessionId, touched: &Touched) {
        if self.marks.is_empty() {
            return;
        }
        for key in self.marks.own(session, touched) {
            self.served_at(session, &key);
        }
    }

    /// The same of one key.
    pub(crate) fn served_at(&mut self, session: SessionId, key: &[u8]) {
        if self.marks.on.get(key).is_some_and(|mark| mark.session == session) {
            self.marks.remove(key);
            self.note_marks([Change::Mark(Digest::of(key), None)]);
        }
    }

    /// What is in the way of who waits for something. Where he meets somebody he has a mark from now on, if he may.
    pub(super) fn mark(
        &mut self,
        entries: &Entries<'_>,
        asker: &Asker<'_>,
        caller: Caller,
        wanted: &Wanted,
    ) -> Result<PartitionReply, String> {
        asker.meter.charge(KEY_COST * wanted.keys())?;
        let touched = &wanted.0;
        for key in touched.reads.iter().chain(&touched.writes) {
            check_place(self, key)?;
        }
        let (session, client) = (asker.session, asker.session.client);
        let of_caller = Rank::of(client, caller, asker.time);
        let own = if seeded!(MarksForNothing) { 0 } else { self.marks.count_of(client) };
        let rank = of_caller.behind(own, asker.time);
        let held = self.locks.met(touched);
        let mut marked = false;
        if let Some(met) = &held {
            let room = self.unreserved(entries.limit).bytes;
            if entries.map.bytes() + (met.key.len() + MARK_BYTES) as u64 <= room {
                let change;
                let at = (&met.key, met.writes);
                (marked, change) = self.marks.leave(session, rank, at, self.now);
                self.note_marks(change);
            }
        } else {
            // Nobody is there, so he is next: who is younger will meet him.
            let others = self.marks.of_others(session, touched);
            let younger = others.filter(|mark| rank < mark.rank || seeded!(YoungerFirst));
            for key in younger.map(|mark| mark.key.clone()).collect::<BTreeSet<Bytes>>() {
                self.marks.remove(&key);
                self.note_marks([Change::Mark(Digest::of(&key), None)]);
            }
        }
        let way = match held {
            Some(met) => Way::Held { blocker: self.blocker(met.holder), marked },
            None => {
                let others = self.marks.of_others(session, touched);
                let left_ms = others.map(|mark| mark.ends().0.saturating_sub(self.now.0)).max();
                left_ms.map_or(Way::Free, |again_ms| Way::Older { again_ms })
            }
        };
        Ok(PartitionReply::Marked { begin: of_caller.begin, way })
    }
}

impl Encode for Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(&self.key, out);
        self.session.encode(out);
        self.rank.begin.encode(out);
        self.rank.tie.encode(out);
        self.writes.encode(out);
        self.made.encode(out);
        self.met.encode(out);
    }
}

impl Decode for Mark {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Mark {
            key: reader.bytes("key", crate::limits::KEY_BYTES)?,
            session: Decode::decode(reader)?,
            rank: Rank { begin: Decode::decode(reader)?, tie: Decode::decode(reader)? },
            writes: Decode::decode(reader)?,
            made: Decode::decode(reader)?,
            met: Decode::decode(reader)?,
        })
    }
}
