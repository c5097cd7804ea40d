//! The search for an order.
//!
//! A configuration is a set of operations that have happened and the values they left. From it,
//! those may happen next that were called before the first return still to come. Three things
//! keep it small, none of which loses an order:
//! - a completed operation that changes nothing happens as soon as it can;
//! - an operation with unknown outcome is tried last, and not when what it wrote would be
//!   overwritten unread by the next one: then it may as well never have happened;
//! - configurations seen before are not visited again.

use super::conditions::{Prepared, Value};
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// An order.
    Order,
    /// There is none. The operations that every order got stuck at.
    None {
        /// Indices in the history.
        stuck: Vec<usize>,
    },
    /// The bound was reached.
    TooMany,
}

struct Search<'a> {
    // Completed, by call; and which of them change nothing.
    completed: Vec<&'a Prepared>,
    reads_only: Vec<bool>,
    // Outcome unknown, by call, latest first.
    unknown: Vec<&'a Prepared>,
    seen: HashSet<u128, BuildHasherDefault<Mixed>>,
    budget: usize,
    deepest: usize,
    stuck: Vec<usize>,
}

#[derive(Clone)]
struct Configuration {
    // Completed operations before this one have all happened.
    first: usize,
    // Those after it that have, ascending.
    beyond: Vec<usize>,
    // Bit by bit, the unknown ones that have.
    used: Vec<u64>,
    values: Vec<Value>,
    happened: usize,
    // Of all that happened, and of the values.
    hash: u128,
    // The unknown operation that happened last, if nothing was read since.
    unread: Option<usize>,
}

/// Of words that are hashes already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u128(&mut self, word: u128) {
        self.0 = word as u64;
    }
}

/// Completed operations that may happen next, by call, and the first return still to come.
struct Window {
    places: Vec<usize>,
    deadline: u64,
}

/// Spreads every bit of a word over all of them: the finisher of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(word: u64) -> u64 {
    let mut z = word;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(domain: u64, number: u64) -> u128 {
    let low = mix(number.wrapping_mul(8).wrapping_add(domain) ^ 0x9e37_79b9_7f4a_7c15);
    let high = mix(low ^ number.wrapping_add(domain << 32));
    u128::from(high) << 64 | u128::from(low)
}

fn value_word(key: usize, value: Value) -> u128 {
    let number = value.map_or(0, |value| u64::from(value) + 1);
    word(3, (key as u64) << 40 | number)
}

/// Searches an order of `operations` over `keys` keys, all absent at first.
#[must_use]
pub fn search(operations: &[Prepared], keys: usize, budget: usize) -> Found {
    let mut completed: Vec<&Prepared> = operations.iter().filter(|o| o.ended.is_some()).collect();
    let mut unknown: Vec<&Prepared> = operations.iter().filter(|o| o.ended.is_none()).collect();
    completed.sort_by_key(|operation| (operation.invoked, operation.index));
    unknown.sort_by_key(|operation| std::cmp::Reverse((operation.invoked, operation.index)));
    let start = Configuration {
        first: 0,
        beyond: Vec::new(),
        used: vec![0; unknown.len().div_ceil(64)],
        values: vec![None; keys],
        happened: 0,
        hash: 0,
        unread: None,
    };
    let seen = HashSet::with_capacity_and_hasher(operations.len(), BuildHasherDefault::default());
    let reads_only = completed.iter().map(|operation| operation.only_reads()).collect();
    let mut search =
        Search { completed, reads_only, unknown, seen, budget, deepest: 0, stuck: Vec::new() };
    search.run(start)
}

impl Search<'_> {
    fn run(&mut self, start: Configuration) -> Found {
        // Depth first; each entry is a configuration that is yet to be visited.
        let mut open = vec![start];
        while let Some(mut here) = open.pop() {
            let window = self.read_all(&mut here);
            if here.first == self.completed.len() {
                return Found::Order;
            }
            // What the next one may not do depends on `unread` as well.
            let unread = here.unread.map_or(0, |at| word(4, at as u64));
            if !self.seen.insert(here.hash ^ unread) {
                continue;
            }
            if self.seen.len() > self.budget {
                return Found::TooMany;
            }
            let mut next = self.successors(&here, &window);
            if next.is_empty() && here.happened >= self.deepest {
                self.deepest = here.happened;
                let stuck = window.places.iter().map(|at| self.completed[*at].index);
                self.stuck = stuck.collect();
            }
            // The most promising one is visited first.
            next.reverse();
            open.append(&mut next);
        }
        Found::None { stuck: std::mem::take(&mut self.stuck) }
    }

    fn window(&self, here: &Configuration) -> Window {
        let (mut places, mut deadline) = (Vec::with_capacity(16), u64::MAX);
        let mut beyond = here.beyond.iter().peekable();
        for (at, operation) in self.completed.iter().enumerate().skip(here.first) {
            if operation.invoked > deadline {
                break;
            }
            if beyond.next_if_eq(&&at).is_none() {
                deadline = deadline.min(operation.ended.unwrap_or(u64::MAX));
                places.push(at);
            }
        }
        while places.last().is_some_and(|at| self.completed[*at].invoked > deadline) {
            places.pop();
        }
        Window { places, deadline }
    }

    /// Lets everything happen that only reads, and reads what is there; what may happen then.
    fn read_all(&self, here: &mut Configuration) -> Window {
        loop {
            let window = self.window(here);
            let ready = |here: &Configuration, at: usize| {
                self.reads_only[at] && applicable(here, self.completed[at])
            };
            let before = here.happened;
            // None of them changes what another one needs.
            for at in &window.places {
                if ready(here, *at) {
                    self.happens(here, *at);
                }
            }
            if here.happened == before {
                return window;
            }
            here.unread = None;
        }
    }

    fn happens(&self, here: &mut Configuration, at: usize) {
        here.happened += 1;
        here.hash ^= word(1, at as u64);
        if let Err(place) = here.beyond.binary_search(&at) {
            here.beyond.insert(place, at);
        }
        while here.beyond.first() == Some(&here.first) {
            here.beyond.remove(0);
            here.first += 1;
        }
        apply(here, self.completed[at]);
    }

    fn successors(&self, here: &Configuration, window: &Window) -> Vec<Configuration> {
        let mut next = Vec::new();
        let mut places = window.places.clone();
        places.sort_by_key(|at| self.completed[*at].ended);
        for at in places {
            let operation = self.completed[at];
            if applicable(here, operation) && !self.in_vain(here, operation) {
                let mut there = here.clone();
                there.unread = None;
                self.happens(&mut there, at);
                next.push(there);
            }
        }
        for (at, operation) in self.unknown.iter().enumerate() {
            let used = here.used[at / 64] & (1 << (at % 64)) != 0;
            let changes = operation
                .conditions
                .iter()
                .any(|(key, one)| one.sets.is_some_and(|value| value != here.values[*key]));
            if used
                || operation.invoked > window.deadline
                || !changes
                || !applicable(here, operation)
                || self.in_vain(here, operation)
            {
                continue;
            }
            let mut there = here.clone();
            there.used[at / 64] |= 1 << (at % 64);
            there.hash ^= word(2, at as u64);
            apply(&mut there, operation);
            there.unread = Some(at);
            next.push(there);
        }
        next
    }

    /// Whether `operation` would overwrite, unread, all that the last unknown one wrote.
    fn in_vain(&self, here: &Configuration, operation: &Prepared) -> bool {
        let Some(unread) = here.unread else { return false };
        self.unknown[unread].conditions.iter().filter(|(_, one)| one.sets.is_some()).all(
            |(key, _)| {
                operation
                    .condition(*key)
                    .is_some_and(|one| one.sets.is_some() && one.needs.is_empty())
            },
        )
    }
}

fn applicable(here: &Configuration, operation: &Prepared) -> bool {
    operation.conditions.iter().all(|(key, one)| one.holds(here.values[*key]))
}

fn apply(here: &mut Configuration, operation: &Prepared) {
    for (key, one) in &operation.conditions {
        if let Some(value) = one.sets {
            here.hash ^= value_word(*key, here.values[*key]) ^ value_word(*key, value);
            here.values[*key] = value;
        }
    }
}
