//! Which keys were changed last, so that who read some can be told whether all of that still is what he saw: the validation of optimistic
//! concurrency control (Kung and Robinson, TODS 1981).
//!
//! Not part of the state: a replica that took it over from others, or has just been started, does not know what was changed before.
//!
//! Invariants:
//! - every change behind slot `since` is in `changes`, in order;
//! - `last` has the hashes of the keys of `changes`, each with the slot of its last one and how many there are. Two keys of one hash are taken for
//!   one: who has read one of them may be told in vain that it may have changed.

use super::locks::Touched;
use crate::plan::Interval;
use bytes::Bytes;
use perdura_execution::{Meter, TooCostly};
use perdura_protocol::Slot;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// Changes that are remembered: between a read and its validation there are a few. A validation goes through those, or looks up what was read,
/// whichever is less.
const CHANGES: usize = 16_384;

/// What looking at a change, or looking a key up, counts for.
const STEP: usize = 128;

/// Bytes of their keys.
const BYTES: usize = 4 * 1024 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The slot whose commands are being carried out.
    now: Slot,
    /// None before any is.
    since: Option<Slot>,
    changes: VecDeque<(Slot, Bytes)>,
    last: BTreeMap<u64, (Slot, u32)>,
    bytes: usize,
}

/// The same in every process.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

impl Recent {
    /// Commands of this slot are carried out now.
    pub(crate) fn enter(&mut self, slot: Slot) {
        self.since.get_or_insert(slot.previous());
        self.now = slot;
    }

    /// They change this key.
    pub(crate) fn note(&mut self, key: &[u8]) {
        self.bytes += key.len();
        while (self.changes.len() == CHANGES || self.bytes > BYTES)
            && let Some((slot, key)) = self.changes.pop_front()
        {
            self.since = Some(slot);
            self.bytes -= key.len();
            let hash = hash(&key);
            if let Some((_, count)) = self.last.get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    self.last.remove(&hash);
                }
            }
        }
        self.changes.push_back((self.now, Bytes::copy_from_slice(key)));
        let last = self.last.entry(hash(key)).or_insert((self.now, 0));
        *last = (self.now, last.1 + 1);
    }

    /// Whether something of this was changed behind a slot, as far as it is known: else it may have been.
    ///
    /// # Errors
    /// When looking takes more work than a read may.
    pub(crate) fn may_have_changed(
        &self,
        since: Slot,
        touched: &Touched,
        meter: &Meter,
    ) -> Result<bool, TooCostly> {
        if self.since.is_none_or(|known| since < known) {
            return Ok(true);
        }
        let first = self.changes.partition_point(|(slot, _)| *slot <= since);
        let changes = self.changes.len() - first;
        if changes == 0 {
            return Ok(false);
        }
        if touched.intervals.is_empty() && touched.reads.len() < changes {
            meter.charge(STEP * touched.reads.len())?;
            let last = |key: &Bytes| self.last.get(&hash(key));
            let changed = |key: &Bytes| last(key).is_some_and(|(slot, _)| *slot > since);
            return Ok(touched.reads.iter().any(changed));
        }
        meter.charge(STEP * changes)?;
        let sought = Sought::of(touched);
        Ok(self.changes.range(first..).any(|(_, key)| sought.has(key)))
    }
}

/// Keys that are looked for, in a time that hardly grows with how many they are.
struct Sought<'a> {
    keys: &'a BTreeSet<Bytes>,
    /// Ascending; none reaches to where the next one starts.
    intervals: Vec<(&'a Bytes, Option<&'a Bytes>)>,
}

impl<'a> Sought<'a> {
    fn of(touched: &'a Touched) -> Sought<'a> {
        let mut all: Vec<&Interval> = touched.intervals.iter().collect();
        all.sort_unstable_by(|a, b| a.start.cmp(&b.start));
        let mut intervals: Vec<(&Bytes, Option<&Bytes>)> = Vec::new();
        for Interval { start, end } in all {
            match intervals.last_mut() {
                Some((_, last)) if last.is_none_or(|last| start <= last) => {
                    *last = last.and_then(|last| Some(last.max(end.as_ref()?)));
                }
                _ => intervals.push((start, end.as_ref())),
            }
        }
        Sought { keys: &touched.reads, intervals }
    }

    fn has(&self, key: &[u8]) -> bool {
        let behind = self.intervals.partition_point(|(start, _)| ***start <= *key);
        let before = behind.checked_sub(1).map(|last| self.intervals[last]);
        let is_within = before.is_some_and(|(_, end)| end.is_none_or(|end| *key < **end));
        is_within || self.keys.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;

    fn text(key: &str) -> Bytes {
        Bytes::copy_from_slice(key.as_bytes())
    }

    fn touched(keys: &[&str], intervals: &[(&str, Option<&str>)]) -> Touched {
        let interval = |(start, end): &(&str, Option<&str>)| Interval {
            start: text(start),
            end: end.map(text),
        };
        Touched {
            reads: keys.iter().map(|key| text(key)).collect(),
            intervals: intervals.iter().map(interval).collect(),
            ..Touched::default()
        }
    }

    /// By looking keys up, and by going through the changes: an interval with nothing in it makes it do that.
    fn may_have(recent: &Recent, since: u64, touched: &Touched) -> bool {
        let meter = Meter::without_limit();
        let is_changed = recent.may_have_changed(Slot(since), touched, &meter).unwrap();
        let mut other = touched.clone();
        other.intervals.push(Interval { start: text("b"), end: Some(text("b")) });
        assert_eq!(recent.may_have_changed(Slot(since), &other, &meter), Ok(is_changed));
        is_changed
    }

    /// A key that is changed again and again is looked up by its last change, also when earlier ones are forgotten.
    #[test]
    fn what_is_changed_often_is_known_by_its_last_change() {
        let mut recent = Recent::default();
        let mut below = choices(9);
        let mut last = BTreeMap::new();
        for slot in 1..=3 * CHANGES as u64 {
            recent.enter(Slot(slot / 3));
            let key = text(["a", "c", "d", "e"][below(4)]);
            recent.note(&key);
            last.insert(key, slot / 3);
        }
        recent.enter(Slot(CHANGES as u64 + 1));
        recent.note(b"z");
        for (key, slot) in last {
            let one = Touched { reads: [key].into(), ..Touched::default() };
            assert!(may_have(&recent, slot - 1, &one) && !may_have(&recent, slot, &one));
        }
        assert_eq!(recent.last.values().map(|(_, count)| *count as usize).sum::<usize>(), CHANGES);
    }

    #[test]
    fn what_is_too_much_work_is_said() {
        let mut recent = Recent::default();
        for slot in 1..=1_000 {
            recent.enter(Slot(slot));
            recent.note(b"k");
        }
        let all = touched(&[], &[("", None)]);
        assert_eq!(recent.may_have_changed(Slot(1), &all, &Meter::up_to(100)), Err(TooCostly));
    }

    #[test]
    fn what_was_changed_behind_a_slot_is_known() {
        let mut recent = Recent::default();
        let some = touched(&["k"], &[("p", Some("q"))]);
        assert!(may_have(&recent, 9, &some), "nothing has been carried out yet");
        for (slot, key) in [(7, "k"), (8, "j"), (9, "px"), (10, "q"), (11, "z")] {
            recent.enter(Slot(slot));
            recent.note(key.as_bytes());
        }
        let changed = |since, touched: &Touched| may_have(&recent, since, touched);
        assert!(changed(5, &touched(&["a"], &[])), "what was changed before 7 is not known");
        assert!(!changed(6, &touched(&["a"], &[])));
        assert!(changed(6, &touched(&["k"], &[])) && !changed(7, &touched(&["k"], &[])));
        assert!(changed(8, &some) && !changed(9, &some));
        assert!(changed(10, &touched(&[], &[("r", None)])));
        assert!(!changed(11, &touched(&[], &[("", None)])));
    }

    #[test]
    fn what_is_forgotten_counts_as_changed() {
        let mut recent = Recent::default();
        for slot in 1..=CHANGES as u64 {
            recent.enter(Slot(slot));
            recent.note(b"k");
        }
        let other = touched(&["other"], &[]);
        assert!(!may_have(&recent, 0, &other));
        recent.note(b"k");
        assert!(may_have(&recent, 0, &other));
        assert!(!may_have(&recent, 1, &other));
        assert_eq!(recent.changes.len(), CHANGES);
        for _ in 0..2 * CHANGES {
            recent.note(&[7; 1_000]);
            assert!(recent.bytes <= BYTES);
        }
        let bytes: usize = recent.changes.iter().map(|(_, key)| key.len()).sum();
        assert!(recent.bytes == bytes && bytes > BYTES - 1_000, "{bytes}");
    }

    /// Beside looking at each of them.
    #[test]
    fn keys_are_sought_among_any_intervals() {
        let mut below = choices(3);
        let mut found = [0, 0];
        for _ in 0..2_000 {
            let mut bound = || Bytes::from(vec![b'a' + below(20) as u8; 1 + below(2)]);
            let intervals: Vec<Interval> = (0..5)
                .map(|index| {
                    let (a, b) = (bound(), bound());
                    let end = if index == 4 && a > b { None } else { Some(b) };
                    Interval { start: a, end }
                })
                .collect();
            let key = bound();
            let is_within =
                |one: &Interval| one.start <= key && one.end.as_ref().is_none_or(|end| key < *end);
            let expected = intervals.iter().any(is_within);
            let touched = Touched { intervals, ..Touched::default() };
            assert_eq!(Sought::of(&touched).has(&key), expected, "{touched:?} {key:?}");
            found[usize::from(expected)] += 1;
        }
        assert!(found.iter().all(|count| *count > 200), "{found:?}");
    }
}
