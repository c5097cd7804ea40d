//! What pending transactions hold (Augustus, EuroSys 2013, tables 1 and 2), with intervals in place of the paper's one structural
//! lock.
//!
//! A transaction has all of its locks or none. A key is read by many or written by one. A read of a range also holds the
//! *interval* that it saw, from the range's start to the last key that it was given, or to the range's end where nothing was cut
//! off: nothing is written in it, so that nothing appears in it either. Where something was cut off it also holds the first key that it was
//! not given, so that there stays more. Keys that are absent are locked like others.

use super::intent::TransactionId;
use super::intervals::Intervals;
use super::limits;
use crate::plan::{Interval, Seen};
use crate::{Operation, Transaction};
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{Decode, DecodeError, Encode, Reader, seeded};
use std::collections::{BTreeMap, BTreeSet};

/// What a transaction reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Touched {
    /// Keys that are only read.
    pub reads: BTreeSet<Bytes>,
    pub writes: BTreeSet<Bytes>,
    pub intervals: Vec<Interval>,
}

impl Touched {
    /// Of a transaction that saw this of ranges.
    pub(crate) fn of(transaction: &Transaction, seen: Seen) -> Touched {
        let Seen { intervals, left_out } = seen;
        let reads = left_out.into_iter().collect();
        let mut touched = Touched { reads, intervals, ..Touched::default() };
        for operation in &transaction.operations {
            match operation {
                Operation::Cmp { key, .. } | Operation::Read { key } => {
                    touched.reads.insert(key.clone());
                }
                Operation::ReadRange { .. } => {}
                Operation::Insert { key, .. }
                | Operation::Write { key, .. }
                | Operation::Delete { key } => {
                    touched.writes.insert(key.clone());
                }
            }
        }
        touched.reads.retain(|key| !touched.writes.contains(key));
        touched
    }

    /// With keys of its own: those of a command keep all of it in memory.
    pub(crate) fn copied(&self) -> Touched {
        let copy = |key: &Bytes| Bytes::copy_from_slice(key);
        let copies = |keys: &BTreeSet<Bytes>| keys.iter().map(copy).collect();
        let intervals = self.intervals.iter();
        let interval = |Interval { start, end }: &Interval| Interval {
            start: copy(start),
            end: end.as_ref().map(copy),
        };
        Touched {
            reads: copies(&self.reads),
            writes: copies(&self.writes),
            intervals: intervals.map(interval).collect(),
        }
    }

    /// Whether there is a key that both touch, whatever they do with it.
    pub(crate) fn shares(&self, other: &Touched) -> bool {
        let has_key_of = |one: &Touched, two: &Touched| {
            one.reads.iter().chain(&one.writes).any(|key| {
                let is_key = two.writes.contains(key) || two.reads.contains(key);
                is_key || two.intervals.iter().any(|interval| interval.contains(key))
            })
        };
        let mut starts = self.intervals.iter().chain(&other.intervals).map(|one| &one.start);
        let is_in_both = |key: &Bytes| {
            let is_in = |all: &[Interval]| all.iter().any(|one| one.contains(key));
            is_in(&self.intervals) && is_in(&other.intervals)
        };
        has_key_of(self, other) || has_key_of(other, self) || starts.any(is_in_both)
    }

    /// How many keys and ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.reads.len() + self.writes.len() + self.intervals.len()
    }

    /// How many bytes they have, with what tells their lengths.
    pub(crate) fn bytes(&self) -> usize {
        let key = |key: &Bytes| 4 + key.len();
        let interval =
            |one: &Interval| 9 + one.start.len() + one.end.as_ref().map_or(0, Bytes::len);
        let keys = self.reads.iter().chain(&self.writes).map(key).sum::<usize>();
        keys + self.intervals.iter().map(interval).sum::<usize>()
    }
}

impl Encode for Touched {
    fn encode(&self, out: &mut Vec<u8>) {
        for keys in [&self.reads, &self.writes] {
            encode_count(keys.len(), out);
            keys.iter().for_each(|key| encode_bytes(key, out));
        }
        encode_count(self.intervals.len(), out);
        self.intervals.iter().for_each(|interval| interval.encode(out));
    }
}

impl Encode for Interval {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(&self.start, out);
        self.end.is_some().encode(out);
        self.end.iter().for_each(|end| encode_bytes(end, out));
    }
}

impl Decode for Interval {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let start = key_or_end(reader)?;
        let end = if bool::decode(reader)? { Some(key_or_end(reader)?) } else { None };
        Ok(Interval { start, end })
    }
}

/// One byte more than a key: the end of an interval that a last key was given of.
fn key_or_end(reader: &mut Reader) -> Result<Bytes, DecodeError> {
    reader.bytes("key", crate::limits::KEY_BYTES + 1)
}

impl Decode for Touched {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let keys = |reader: &mut Reader| {
            let count = reader.count("keys", crate::limits::OPERATIONS, 4)?;
            (0..count).map(|_| key_or_end(reader)).collect::<Result<BTreeSet<Bytes>, DecodeError>>()
        };
        let (reads, writes) = (keys(reader)?, keys(reader)?);
        let intervals = reader.list("intervals", crate::limits::OPERATIONS, 5)?;
        Ok(Touched { reads, writes, intervals })
    }
}

/// Where one meets another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockConflict {
    pub key: Bytes,
    /// Whether the one who comes wants to write there.
    pub writes: bool,
    pub holder: TransactionId,
}

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    writers: BTreeMap<Bytes, TransactionId>,
    readers: BTreeMap<Bytes, BTreeSet<TransactionId>>,
    intervals: Intervals,
}

impl Locks {
    /// Somebody who holds what reading this key takes.
    pub(crate) fn against_read(&self, key: &[u8]) -> Option<TransactionId> {
        self.writers.get(key).copied()
    }

    /// Somebody who holds what writing this key takes.
    pub(crate) fn against_write(&self, key: &[u8]) -> Option<TransactionId> {
        self.against_key(key).or_else(|| self.interval_over(key))
    }

    fn against_key(&self, key: &[u8]) -> Option<TransactionId> {
        let reader = || self.readers.get(key).and_then(|readers| readers.first().copied());
        self.against_read(key).or_else(reader)
    }

    /// Somebody who has read an interval that this key is in.
    fn interval_over(&self, key: &[u8]) -> Option<TransactionId> {
        if seeded!(IntervalsIgnored) {
            return None;
        }
        self.intervals.over(key)
    }

    /// Somebody who holds a key in an interval that he writes.
    pub(crate) fn against_interval(&self, interval: &Interval) -> Option<TransactionId> {
        self.writer_in(interval).map(|(_, id)| id)
    }

    fn writer_in(&self, interval: &Interval) -> Option<(&Bytes, TransactionId)> {
        let mut writers = self.writers.range::<[u8], _>(interval.bounds());
        writers.next().map(|(key, id)| (key, *id))
    }

    /// Somebody who holds what a transaction that touches this takes.
    pub(crate) fn against(&self, touched: &Touched) -> Option<TransactionId> {
        let Touched { reads, writes, intervals } = touched;
        let mut found = reads.iter().filter_map(|key| self.against_read(key));
        let write = || {
            let key = writes.iter().find_map(|key| self.against_key(key));
            key.or_else(|| writes.iter().find_map(|key| self.interval_over(key)))
        };
        let interval = || intervals.iter().find_map(|interval| self.against_interval(interval));
        found.next().or_else(write).or_else(interval)
    }

    /// The first key at which somebody is in the way of a transaction that touches this.
    pub(crate) fn met(&self, touched: &Touched) -> Option<LockConflict> {
        let Touched { reads, writes, intervals } = touched;
        let at = |key: &Bytes, writes, holder: Option<TransactionId>| {
            holder.map(|holder| LockConflict { key: key.clone(), writes, holder })
        };
        let mut read = reads.iter().filter_map(|key| at(key, false, self.against_read(key)));
        let mut written = writes.iter().filter_map(|key| at(key, true, self.against_write(key)));
        let in_intervals = || {
            intervals.iter().find_map(|interval| {
                let (key, holder) = self.writer_in(interval)?;
                Some(LockConflict { key: key.clone(), writes: false, holder })
            })
        };
        read.next().or_else(|| written.next()).or_else(in_intervals)
    }

    /// Whether all its intervals can be held beside the others.
    pub(crate) fn has_room(&self, touched: &Touched) -> bool {
        self.intervals.len() + touched.intervals.len() <= limits::RANGES
    }

    /// Takes all that a transaction needs: nobody is against it.
    pub(crate) fn take(&mut self, id: TransactionId, touched: &Touched) {
        for key in &touched.writes {
            self.writers.insert(key.clone(), id);
        }
        for key in &touched.reads {
            self.readers.entry(key.clone()).or_default().insert(id);
        }
        for (number, interval) in touched.intervals.iter().enumerate() {
            self.intervals.insert((interval.start.clone(), id, number), interval.end.clone());
        }
    }

    /// Gives it all back.
    pub(crate) fn release(&mut self, id: TransactionId, touched: &Touched) {
        for key in &touched.writes {
            self.writers.remove(key);
        }
        for key in &touched.reads {
            if let Some(readers) = self.readers.get_mut(key) {
                readers.remove(&id);
                if readers.is_empty() {
                    self.readers.remove(key);
                }
            }
        }
        for (number, interval) in touched.intervals.iter().enumerate() {
            self.intervals.remove(&(interval.start.clone(), id, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Digest;

    fn id(number: u8) -> TransactionId {
        TransactionId(Digest([number; 32]))
    }

    fn key(key: &str) -> Bytes {
        Bytes::copy_from_slice(key.as_bytes())
    }

    fn touched(reads: &[&str], writes: &[&str], intervals: &[(&str, Option<&str>)]) -> Touched {
        let interval =
            |(start, end): &(&str, Option<&str>)| Interval { start: key(start), end: end.map(key) };
        Touched {
            reads: reads.iter().map(|one| key(one)).collect(),
            writes: writes.iter().map(|one| key(one)).collect(),
            intervals: intervals.iter().map(interval).collect(),
        }
    }

    #[test]
    fn a_key_is_read_by_many_or_written_by_one() {
        let mut locks = Locks::default();
        locks.take(id(1), &touched(&["a"], &["b"], &[]));
        assert_eq!(locks.against(&touched(&["a"], &[], &[])), None);
        locks.take(id(2), &touched(&["a"], &["c"], &[]));
        assert_eq!(locks.against(&touched(&["b"], &[], &[])), Some(id(1)));
        assert_eq!(locks.against(&touched(&[], &["b"], &[])), Some(id(1)));
        assert_eq!(locks.against(&touched(&[], &["a"], &[])), Some(id(1)));
        locks.release(id(1), &touched(&["a"], &["b"], &[]));
        assert_eq!(locks.against(&touched(&[], &["a"], &[])), Some(id(2)));
        assert_eq!(locks.against(&touched(&["b"], &["b"], &[])), None);
    }

    #[test]
    fn nothing_is_written_in_an_interval_that_somebody_read() {
        let mut locks = Locks::default();
        let read = touched(&[], &[], &[("b", Some("d")), ("x", None)]);
        locks.take(id(1), &read);
        let against = |write: &str| locks.against(&touched(&[], &[write], &[]));
        assert_eq!([against("a"), against("d"), against("w")], [None; 3]);
        assert_eq!([against("b"), against("c"), against("zz")], [Some(id(1)); 3]);
        assert_eq!(locks.against(&touched(&[], &["a", "d", "w"], &[])), None);
        assert_eq!(locks.against(&touched(&[], &["a", "w", "y"], &[])), Some(id(1)));
        // A long one is met behind a short one that starts later.
        locks.take(id(2), &touched(&[], &[], &[("a", Some("g")), ("b", Some("c"))]));
        assert_eq!(locks.against(&touched(&[], &["e"], &[])), Some(id(2)));
        locks.release(id(2), &touched(&[], &[], &[("a", Some("g")), ("b", Some("c"))]));
        // Others read the same.
        assert_eq!(locks.against(&touched(&["c"], &[], &[("a", None)])), None);
        locks.release(id(1), &read);
        assert_eq!(locks.against(&touched(&[], &["b", "z"], &[])), None);
    }

    #[test]
    fn what_is_being_written_is_in_no_interval() {
        let mut locks = Locks::default();
        locks.take(id(1), &touched(&[], &["c"], &[]));
        let against = |start, end| locks.against(&touched(&[], &[], &[(start, end)]));
        assert_eq!(against("a", Some("c")), None);
        assert_eq!(against("a", Some("ca")), Some(id(1)));
        assert_eq!(against("c", None), Some(id(1)));
        assert_eq!(against("d", Some("a")), None);
    }

    #[test]
    fn it_is_encoded_as_it_is() {
        let all = touched(&["a", "b"], &["c"], &[("", None), ("x", Some("y"))]);
        assert_eq!(Touched::from_bytes(all.to_bytes()), Ok(all));
    }
}
