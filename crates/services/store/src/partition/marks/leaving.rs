//! How marks are left, kept and given up by what a partition carries out.

use super::super::command::Wanted;
use super::super::intent::TransactionId;
use super::super::locks::{LockConflict, Touched};
use super::super::reply::{PartitionReply, Way};
use super::super::{Asker, Entries, Partition, limits};
use super::{Change, FIRST_MS, MARK_COST, Mark, Number, UNASKED_MS};
use crate::limits::KEY_BYTES;
use crate::service::check_place;
use bytes::Bytes;
use perdura_execution::Meter;
use perdura_protocol::{Digest, SessionId, Time, seeded};

/// One that had to be given back, since another partition did not grant its part, stands so much longer than others without being asked for, milliseconds:
/// its caller waits there.
const GIVEN_BACK_MS: u64 = FIRST_MS - UNASKED_MS;

/// It is given back for good so long after it was first, milliseconds, however many partitions there are behind.
const GIVEN_BACK_WITHIN_MS: u64 = 2 * FIRST_MS;

/// Who has waited for so long, milliseconds, has his mark on ranges, too.
const RANGES_AFTER_MS: u64 = 1_000;

/// It is worth while to look again after so long, milliseconds, ...
const AGAIN_MS: u64 = 2;

/// ... and so much later for each that is before, ...
const TURN_MS: u64 = 8;

/// ... but not later than that.
const AGAIN_AT_MOST_MS: u64 = 60;

/// So many before it are counted.
const COUNTED: usize = 20;

/// And whether a mark is on a key, too: some look-ups.
const MEETS_COST: usize = 160;

/// What a mark adds to the book beside what it is on, bytes: at most.
const MARK_BYTES: usize = 256;

/// Where who wants this has his mark, and met somebody; nothing if he has met nobody, and all is too much. Of a range he is given less than all, most likely: whoever has waited for
/// long keeps others out of it, before that only from the key where he met somebody.
fn place(wanted: &Touched, met: Option<&LockConflict>, waits_ms: u64) -> Option<Touched> {
    let fits = |touched: &Touched| {
        touched.count() <= limits::KEYS_OF_A_MARK
            && touched.intervals.len() <= limits::RANGES_OF_A_MARK
            && touched.bytes() <= limits::BYTES_OF_A_MARK
    };
    let has_ranges = !wanted.intervals.is_empty();
    if fits(wanted) && (!has_ranges || waits_ms >= RANGES_AFTER_MS) {
        return Some(wanted.copied());
    }
    let keys = Touched { intervals: Vec::new(), ..wanted.clone() };
    let keys = Some(keys).filter(|keys| has_ranges && fits(keys)).map(|keys| keys.copied());
    let Some(met) = met else { return keys };
    let mut on = keys.unwrap_or_default();
    // What it came in is not kept.
    let key = Bytes::copy_from_slice(&met.key);
    if met.writes {
        on.writes.insert(key);
    } else if !on.writes.contains(&key) {
        on.reads.insert(key);
    }
    Some(on)
}

impl Partition {
    fn note_marks(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.book.put_change_of_marks(change);
        }
    }

    /// Marks that have stood for long enough go.
    pub(in super::super) fn pass_marks(&mut self) {
        let changes = self.marks.pass(self.now);
        self.note_marks(changes);
    }

    /// Whether somebody who waits is to have something first that this would hold.
    pub(in super::super) fn is_marked_by_others(
        &self,
        (session, wanted): (SessionId, Option<Digest>),
        touched: &Touched,
        meter: &Meter,
    ) -> bool {
        if self.marks.all.is_empty() || seeded!(MarksIgnored) {
            return false;
        }
        let own = wanted.and_then(|wanted| self.marks.number_of(session, wanted));
        let comer = (session.client, own, self.now);
        // That there are too many to be looked at is not its fault.
        let before = self.marks.before(comer, touched, (meter, 1));
        before.map_or(true, |before| !before.is_empty())
    }

    /// Whether a session waits for anything.
    pub(crate) fn has_mark(&self, session: SessionId) -> bool {
        self.marks.of_session.contains_key(&session)
    }

    /// Who wants this has his answer, and waits no longer.
    pub(crate) fn answered(&mut self, session: SessionId, wanted: Digest) {
        if let Some(number) = self.marks.number_of(session, wanted) {
            let changes = self.marks.leave(number);
            self.note_marks(changes);
        }
    }

    /// Who wants this was refused it for good, and waits no longer.
    pub(crate) fn refused(&mut self, session: SessionId, wanted: Digest) {
        if let Some(number) = self.marks.number_of(session, wanted) {
            let changes = self.marks.end(number, self.now);
            self.note_marks(changes);
        }
    }

    /// Who wants this has it until his transaction ends.
    pub(in super::super) fn taken(
        &mut self,
        session: SessionId,
        wanted: Digest,
        by: TransactionId,
    ) {
        if let Some(number) = self.marks.number_of(session, wanted) {
            let now = self.now;
            let first = |mark: &Mark| mark.first.or(Some(now));
            self.change_mark(number, |mark| Mark {
                first: first(&mark),
                is_own: false,
                taken_by: Some(by),
                ..mark
            });
        }
    }

    /// A transaction of a session has ended, which has parts in so many partitions behind this one.
    pub(in super::super) fn given_back(
        &mut self,
        session: SessionId,
        (transaction, behind): (TransactionId, usize),
        commit: bool,
    ) {
        let its = |mark: &Mark| mark.taken_by == Some(transaction);
        let found = self.marks.of_session(session).find(|(_, mark)| its(mark));
        let Some((number, mark)) = found.map(|(number, mark)| (number, mark.clone())) else {
            return;
        };
        let first = mark.first.unwrap_or(self.now);
        let may_stay = usize::from(mark.times_given_back) < behind.max(1)
            && self.now.0 < first.0 + GIVEN_BACK_WITHIN_MS;
        let changes = match commit {
            true => self.marks.leave(number),
            false if !may_stay => self.marks.end(number, self.now),
            false => {
                let later = self.marks.number_of(session, mark.wanted);
                later.map(|later| self.marks.end(later, self.now)).unwrap_or_default()
            }
        };
        self.note_marks(changes);
        if !commit && may_stay {
            let now = self.now;
            self.change_mark(number, |mark| Mark {
                taken_by: None,
                times_given_back: mark.times_given_back.saturating_add(1),
                given_back: Some(now),
                free: None,
                asked: Time(now.0 + GIVEN_BACK_MS),
                ..mark
            });
        }
    }

    fn change_mark(&mut self, number: Number, change: impl FnOnce(Mark) -> Mark) {
        let Some(mark) = self.marks.remove(number).map(change) else { return };
        self.marks.insert(number, mark.clone());
        self.note_marks([Change::Mark(number, Some(Box::new(mark)))]);
    }

    /// Nobody waits in a session that is over.
    pub(in super::super) fn forget_marks(&mut self, session: SessionId) {
        let own = self.marks.of_session(session);
        let numbers: Vec<Number> = own.map(|(number, _)| number).collect();
        for number in numbers {
            let changes = self.marks.end(number, self.now);
            self.note_marks(changes);
        }
    }

    /// He waits here no longer, without an answer.
    pub(in super::super) fn unmark(
        &mut self,
        session: SessionId,
        wanted: &Wanted,
    ) -> PartitionReply {
        self.refused(session, wanted.digest());
        PartitionReply::Marked { way: Way::Free }
    }

    /// That its keys are such, and of this partition.
    fn check_keys(&self, touched: &Touched) -> Result<(), String> {
        for key in touched.reads.iter().chain(&touched.writes) {
            let bytes = key.len();
            if !(1..=KEY_BYTES).contains(&bytes) {
                return Err(format!("a key has 1 to {KEY_BYTES} bytes, this one has {bytes}"));
            }
            check_place(self, key)?;
        }
        Ok(())
    }

    /// What is in the way of who waits for something. Where there is something he has a mark from now on, if he may.
    pub(in super::super) fn mark(
        &mut self,
        entries: &Entries<'_>,
        asker: &Asker<'_>,
        wanted: &Wanted,
    ) -> Result<PartitionReply, String> {
        let touched = &wanted.0;
        self.check_keys(touched)?;
        let (session, now) = (asker.session, self.now);
        let client = session.client;
        let own_marks = self.marks.of_client.get(&client).copied().unwrap_or_default();
        let held = self.locks.met(touched);
        let digest = wanted.digest();
        let own = self.marks.number_of(session, digest);
        // It may have to find a place.
        if own.and_then(|own| self.marks.all.get(&own)).is_none_or(|mark| mark.is_own) {
            let keys = touched.count().min(limits::KEYS_OF_A_MARK);
            asker.meter.charge(MARK_COST * self.marks.len() + MEETS_COST * own_marks * keys)?;
        }
        let comer = (client, own, now);
        let before = self.marks.before(comer, touched, (asker.meter, COUNTED))?;
        let is_free = held.is_none() && before.is_empty();
        let holder = held.as_ref().and_then(|met| self.records.get(met.holder));
        let of_own = |number: &Number| self.marks.all[number].session.client == client;
        let is_own = match holder {
            Some(record) => record.intent.client == client,
            None => !before.is_empty() && before.iter().all(of_own),
        };
        let mark = own.and_then(|own| self.marks.remove(own));
        // What its own key had was its turn. While somebody holds something it is not known whether that is given back.
        let is_moved = held.is_none() && !is_free && !is_own;
        let had_its_turn = is_moved && mark.as_ref().is_some_and(|mark| mark.is_own);
        if let Some(own) = own.filter(|_| had_its_turn) {
            self.note_marks([Change::Mark(own, None)]);
        }
        let own = own.filter(|_| !had_its_turn);
        let made = mark.as_ref().map_or(now, |mark| mark.made);
        let room = self.unreserved(entries.limit).bytes;
        let fits = |on: &Touched| entries.map.bytes() + (on.bytes() + MARK_BYTES) as u64 <= room;
        let on = place(touched, held.as_ref(), now.0.saturating_sub(made.0));
        let mark = match mark {
            Some(mark) if is_free => {
                Some(Mark { free: mark.free.or(Some(now)), is_own: false, ..mark })
            }
            Some(mark) => {
                let on = on.filter(fits).unwrap_or_else(|| mark.on.clone());
                Some(Mark { asked: now.max(mark.asked), on, free: None, is_own, ..mark })
            }
            None if is_free || !self.marks.has_place(client) => None,
            // Where it is on nothing yet, it has its place all the same.
            None => Some(on.unwrap_or_default()).filter(fits).map(|on| Mark {
                session,
                wanted: digest,
                on,
                is_part: false,
                made,
                asked: now,
                first: None,
                free: None,
                is_own,
                taken_by: None,
                times_given_back: 0,
                given_back: None,
            }),
        };
        let is_marked = mark.is_some();
        if let Some(mut mark) = mark {
            mark.is_part = mark.on != *touched;
            if before.is_empty() {
                mark.first.get_or_insert(now);
            } else if mark.times_given_back == 0 {
                // Those were void for a while, or are on more now.
                mark.first = None;
            }
            let number = match own {
                Some(own) => own,
                None => {
                    let number = self.marks.next_number(&mark, now, asker.meter);
                    self.note_marks([Change::Count(self.marks.count)]);
                    number
                }
            };
            self.marks.insert(number, mark.clone());
            self.note_marks([Change::Mark(number, Some(Box::new(mark)))]);
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
