//! A map that remembers what a command overwrote, so that it can be undone.
//!
//! When a command begins each map of the state gets a mark, and from then on keeps what is overwritten. A service may move its maps about, or
//! drop one and put another in its place: one that bears a mark and is dropped meanwhile is kept aside, so that undoing finds each by its mark,
//! wherever it is.

use perdura_store::SegmentMap;
use std::cell::RefCell;

thread_local! {
    static DROPPED: RefCell<Vec<Journaled>> = const { RefCell::new(Vec::new()) };
}

/// What a command overwrote.
#[derive(Debug)]
enum Overwritten {
    /// The value of this key, if it had one.
    Entry(Vec<u8>, Option<Vec<u8>>),
    /// All there was.
    All(SegmentMap),
}

/// What a command was to write that no entry may be. It writes nothing then, and is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// A key or a value is too large, or there is no key.
    TooLarge,
    /// A value does not come back from what it is encoded to.
    Unreadable,
}

/// Most places for what was overwritten that are kept for the next command.
const KEPT: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Journaled {
    map: SegmentMap,
    // Which map of the state it was when the command began, from 1 on; 0: none.
    mark: usize,
    overwritten: Vec<Overwritten>,
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
            let kept = std::mem::take(self);
            // Where the thread ends nobody undoes anything.
            let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(kept));
        }
    }
}

impl Journaled {
    pub fn of(map: SegmentMap) -> Journaled {
        Journaled { map, mark: 0, overwritten: Vec::new(), misfit: None }
    }

    pub fn map(&self) -> &SegmentMap {
        &self.map
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.keep(key);
        // Whether it is too much is looked at when the command has ended.
        let _ = self.map.put(key, value, u64::MAX);
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.keep(key);
        self.map.remove(key);
    }

    pub fn clear(&mut self) {
        let all = std::mem::take(&mut self.map);
        if self.mark > 0 {
            self.overwritten.push(Overwritten::All(all));
        }
    }

    fn keep(&mut self, key: &[u8]) {
        if self.mark > 0 {
            let value = self.map.get(key).map(<[u8]>::to_vec);
            self.overwritten.push(Overwritten::Entry(key.to_vec(), value));
        }
    }

    /// An entry was to be written that cannot be one.
    pub fn refuse(&mut self, misfit: Misfit) {
        self.misfit.get_or_insert(misfit);
    }

    /// The first one that was to be written.
    pub fn misfit(&self) -> Option<Misfit> {
        self.misfit
    }

    /// A command begins; it is the map of the state with this mark.
    pub fn begin(&mut self, mark: usize) {
        self.overwritten.clear();
        (self.mark, self.misfit) = (mark, None);
    }

    /// The command is not going to be undone.
    pub fn settle(&mut self) {
        self.mark = 0;
        self.overwritten.clear();
        self.overwritten.shrink_to(KEPT);
    }

    /// Takes it out of its place, as it was when the command began; nothing if it was not there then.
    pub fn take_back(&mut self, found: &mut Found) {
        found.keep(std::mem::take(self));
    }

    fn undo(&mut self) {
        for one in std::mem::take(&mut self.overwritten).into_iter().rev() {
            match one {
                Overwritten::Entry(key, Some(value)) => {
                    let _ = self.map.put(&key, &value, u64::MAX);
                }
                Overwritten::Entry(key, None) => {
                    self.map.remove(&key);
                }
                Overwritten::All(all) => self.map = all,
            }
        }
        (self.mark, self.misfit) = (0, None);
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
    pub fn and_dropped(mut self) -> Found {
        dropped().into_iter().for_each(|map| self.keep(map));
        self
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
