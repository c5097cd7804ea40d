//! A map that remembers what a command overwrote, so that it can be undone.
//!
//! When a command begins each map of the state gets a mark, and from then on keeps what is overwritten. A service may move its maps about, or
//! drop one and put another in its place: one that bears a mark and is dropped meanwhile is kept aside, so that undoing finds each by its mark,
//! wherever it is.

use perdura_store::{At, SegmentMap};
use std::cell::RefCell;

thread_local! {
    static DROPPED: RefCell<Vec<Journaled>> = const { RefCell::new(Vec::new()) };
}

/// What a command overwrote.
#[derive(Debug)]
enum Overwritten {
    /// An entry: how many bytes its key has, and its value, if there was one.
    Entry { key: usize, value: Option<usize> },
    /// All there was.
    All(Box<SegmentMap>),
}

/// All that it overwrote, the last one behind the others.
#[derive(Debug, Default)]
struct Journal {
    overwritten: Vec<Overwritten>,
    // Of each entry its key and its value.
    bytes: Vec<u8>,
}

/// What a command was to write that no entry may be. It writes nothing then, and is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// A key or a value is too large, or there is no key.
    TooLarge,
    /// A value does not come back from what it is encoded to.
    Unreadable,
    /// A value cannot be encoded.
    Unencodable,
}

/// Most places for what was overwritten that are kept for the next command, and most bytes of it.
const KEPT: usize = 1024;
const KEPT_BYTES: usize = 64 * 1024;

impl Journal {
    fn keep(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.overwritten.push(Overwritten::Entry { key: key.len(), value: value.map(<[u8]>::len) });
    }

    /// Also one that has been undone, and is empty, may have much room.
    fn clear(&mut self) {
        self.overwritten.clear();
        self.bytes.clear();
        self.overwritten.shrink_to(KEPT);
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Takes the last one back.
    fn undo_last(&mut self, map: &mut SegmentMap) -> bool {
        match self.overwritten.pop() {
            None => return false,
            Some(Overwritten::All(all)) => *map = *all,
            Some(Overwritten::Entry { key, value }) => {
                let start = self.bytes.len() - key - value.unwrap_or(0);
                let (old_key, old_value) = self.bytes[start..].split_at(key);
                let at = map.at(old_key);
                if value.is_some() {
                    let _ = at.put(old_value, u64::MAX);
                } else {
                    at.remove();
                }
                self.bytes.truncate(start);
            }
        }
        true
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Journaled {
    map: SegmentMap,
    // Which map of the state it was when the command began, from 1 on; 0: none.
    mark: usize,
    journal: Journal,
    misfit: Option<Misfit>,
}

impl Clone for Journaled {
    /// A map of its own, which was there before no command.
    fn clone(&self) -> Journaled {
        let mut copy = Journaled::of(self.map.clone());
        copy.misfit = self.misfit;
        copy
    }
}

impl Drop for Journaled {
    fn drop(&mut self) {
        if self.mark > 0 {
            let mut kept = Some(std::mem::take(self));
            let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().extend(kept.take()));
            // Where the thread ends nobody undoes anything.
            kept.iter_mut().for_each(Journaled::settle);
        }
    }
}

impl Journaled {
    pub fn of(map: SegmentMap) -> Journaled {
        Journaled { map, mark: 0, journal: Journal::default(), misfit: None }
    }

    pub fn map(&self) -> &SegmentMap {
        &self.map
    }

    /// The place of a key, to see what is there before it is written.
    pub fn at<'a>(&'a mut self, key: &'a [u8]) -> JournaledAt<'a> {
        let journal = (self.mark > 0).then_some(&mut self.journal);
        JournaledAt { at: self.map.at(key), journal, misfit: &mut self.misfit }
    }

    pub fn clear(&mut self) {
        let all = std::mem::take(&mut self.map);
        if self.mark > 0 {
            self.journal.overwritten.push(Overwritten::All(Box::new(all)));
        }
    }

    /// The first of what was to be written and cannot be.
    pub fn misfit(&self) -> Option<Misfit> {
        self.misfit
    }

    /// A command begins; it is the map of the state with this mark.
    pub fn begin(&mut self, mark: usize) {
        self.journal.clear();
        (self.mark, self.misfit) = (mark, None);
    }

    /// The command is not going to be undone.
    pub fn settle(&mut self) {
        self.mark = 0;
        self.journal.clear();
    }

    /// Takes it out of its place, as it was when the command began; nothing if it was not there then.
    pub fn take_back(&mut self, found: &mut Found) {
        found.keep(std::mem::take(self));
    }

    fn undo(&mut self) {
        while self.journal.undo_last(&mut self.map) {}
        self.journal.clear();
        (self.mark, self.misfit) = (0, None);
    }
}

/// The place of a key in a map.
pub(crate) struct JournaledAt<'a> {
    at: At<'a>,
    journal: Option<&'a mut Journal>,
    misfit: &'a mut Option<Misfit>,
}

impl JournaledAt<'_> {
    pub fn key(&self) -> &[u8] {
        self.at.key()
    }

    pub fn value(&self) -> Option<&[u8]> {
        self.at.value()
    }

    pub fn put(self, value: &[u8]) {
        let JournaledAt { at, journal, .. } = self;
        if let Some(journal) = journal {
            journal.keep(at.key(), at.value());
        }
        // Whether it is too much is looked at when the command has ended.
        let _ = at.put(value, u64::MAX);
    }

    pub fn remove(self) {
        let JournaledAt { at, journal, .. } = self;
        if let Some(journal) = journal {
            journal.keep(at.key(), at.value());
        }
        at.remove();
    }

    /// What was to be written here cannot be an entry.
    pub fn refuse(self, misfit: Misfit) {
        self.misfit.get_or_insert(misfit);
    }
}

/// The maps of a state that a command has left, by their marks.
#[derive(Default)]
pub(crate) struct Found(Vec<Journaled>);

impl Found {
    fn keep(&mut self, map: Journaled) {
        if map.mark > 0 {
            self.0.push(map);
        }
    }

    /// And those that it dropped.
    pub fn take_dropped(&mut self) {
        dropped().into_iter().for_each(|map| self.keep(map));
    }

    /// The one with this mark, as it was when the command began.
    ///
    /// # Panics
    /// When the command has put it away where nobody finds it.
    pub fn take(&mut self, mark: usize) -> Journaled {
        let place = self.0.iter().position(|map| map.mark == mark);
        let place = place.unwrap_or_else(|| {
            panic!("a command has put a map of the state where it is not dropped")
        });
        let mut map = self.0.swap_remove(place);
        map.undo();
        map
    }
}

/// What was dropped on this thread since it was asked last.
fn dropped() -> Vec<Journaled> {
    DROPPED.with(|dropped| std::mem::take(&mut *dropped.borrow_mut()))
}

/// The command is not going to be undone: what it dropped is gone.
pub(crate) fn forget_dropped() {
    for mut map in dropped() {
        map.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many entries, and large ones.
    fn write(map: &mut Journaled) {
        for number in 0..4 * KEPT as u32 {
            map.at(&number.to_be_bytes()).put(&[7; 100]);
        }
    }

    #[test]
    fn a_command_leaves_no_more_room_than_is_kept_however_it_ends() {
        let mut map = Journaled::default();
        write(&mut map);
        for undone in [true, false] {
            map.begin(1);
            write(&mut map);
            let room = |map: &Journaled| {
                (map.journal.overwritten.capacity(), map.journal.bytes.capacity())
            };
            let (places, bytes) = room(&map);
            assert!(places > KEPT && bytes > KEPT_BYTES);
            if undone {
                let mut found = Found::default();
                map.take_back(&mut found);
                map = found.take(1);
            } else {
                map.settle();
            }
            let (places, bytes) = room(&map);
            assert!(places <= KEPT && bytes <= KEPT_BYTES, "{places} {bytes}");
            assert_eq!(map.map().entries(), 4 * KEPT as u64);
        }
    }
}
