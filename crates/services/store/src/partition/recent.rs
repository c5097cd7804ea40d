//! Which keys were changed last, so that who read some can be told whether all of that still is what he saw: the validation of optimistic
//! concurrency control (Kung and Robinson, TODS 1981).
//!
//! Not part of the state: a replica that took it over from others, or has just been started, does not know what was changed before.
//!
//! Invariant: every change behind slot `since` is in `changes`, in order.

use super::locks::Touched;
use crate::plan::Interval;
use bytes::Bytes;
use perdura_protocol::Slot;
use std::collections::{BTreeSet, VecDeque};

/// Changes that are remembered: between a read and its validation there are a few, and each validation goes through those.
const CHANGES: usize = 16_384;

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
    bytes: usize,
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
        }
        self.changes.push_back((self.now, Bytes::copy_from_slice(key)));
    }

    /// Whether something of this was changed behind a slot, as far as it is known: else it may have been.
    pub(crate) fn may_have_changed(&self, since: Slot, touched: &Touched) -> bool {
        if self.since.is_none_or(|known| since < known) {
            return true;
        }
        let mut changes =
            self.changes.iter().rev().take_while(|(slot, _)| *slot > since).peekable();
        if changes.peek().is_none() {
            return false;
        }
        let sought = Sought::of(touched);
        changes.any(|(_, key)| sought.has(key))
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

    #[test]
    fn what_was_changed_behind_a_slot_is_known() {
        let mut recent = Recent::default();
        let some = touched(&["k"], &[("p", Some("q"))]);
        assert!(recent.may_have_changed(Slot(9), &some), "nothing has been carried out yet");
        for (slot, key) in [(7, "k"), (8, "j"), (9, "px"), (10, "q"), (11, "z")] {
            recent.enter(Slot(slot));
            recent.note(key.as_bytes());
        }
        let changed = |since, touched: &Touched| recent.may_have_changed(Slot(since), touched);
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
        assert!(!recent.may_have_changed(Slot(0), &other));
        recent.note(b"k");
        assert!(recent.may_have_changed(Slot(0), &other));
        assert!(!recent.may_have_changed(Slot(1), &other));
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
