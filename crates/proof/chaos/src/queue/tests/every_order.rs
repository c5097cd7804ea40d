//! The judge is held against the trial of every order, in small histories.

use super::{Item, check, operation, text};
use crate::operation::{Call as Any, Operation, Outcome, Return as AnyReturn};
use crate::queue::{Call, Return};
use perdura_adversary::Random;
use std::collections::{BTreeMap, VecDeque};

/// Tries every order.
struct Search<'a> {
    operations: &'a [Operation],
    // By value, the number of its tuple.
    numbers: &'a BTreeMap<String, u64>,
    done: Vec<bool>,
    queue: VecDeque<String>,
    // Of the tuples that were put.
    last_number: u64,
}

/// Whether the operations can have happened in some order.
pub fn finds_an_order(operations: &[Operation]) -> bool {
    let Some(numbers) = numbers(operations) else { return false };
    let (done, queue) = (vec![false; operations.len()], VecDeque::new());
    Search { operations, numbers: &numbers, done, queue, last_number: 0 }.goes_on()
}

/// Those that are known; none if a tuple has two.
fn numbers(operations: &[Operation]) -> Option<BTreeMap<String, u64>> {
    let mut numbers = BTreeMap::new();
    let mut is_its = |value: &str, number| *numbers.entry(text(value)).or_insert(number) == number;
    for operation in operations {
        let Outcome::Ok(AnyReturn::Queue(answer)) = &operation.outcome else { continue };
        let fits = match (&operation.call, answer) {
            (Any::Queue(Call::Out { values }), Return::Inserted { first: Some(first) }) => {
                (*first..).zip(values).all(|(number, value)| is_its(value, number))
            }
            (_, Return::Found { item }) => {
                item.iter().all(|item| item.number.is_none_or(|number| is_its(&item.value, number)))
            }
            (_, Return::FoundAll { items, .. }) => items
                .iter()
                .all(|item| item.number.is_none_or(|number| is_its(&item.value, number))),
            _ => true,
        };
        if !fits {
            return None;
        }
    }
    Some(numbers)
}

/// When it can have happened at the earliest: a wait ends with nothing when its time is over.
fn earliest(operation: &Operation) -> u64 {
    match (&operation.call, &operation.outcome) {
        (
            Any::Queue(Call::In { wait_ms } | Call::Rd { wait_ms }),
            Outcome::Ok(AnyReturn::Queue(Return::Found { item: None })),
        ) => operation.invoked + 1000 * wait_ms,
        _ => operation.invoked,
    }
}

impl Search<'_> {
    fn goes_on(&mut self) -> bool {
        let operations = self.operations;
        let missing = |at: &usize| !self.done[*at] && operations[*at].ended.is_some();
        let missing: Vec<usize> = (0..operations.len()).filter(missing).collect();
        if missing.is_empty() {
            return true;
        }
        let until = missing.iter().filter_map(|at| operations[*at].ended).min();
        for (at, operation) in operations.iter().enumerate() {
            let late = until.is_some_and(|until| earliest(operation) > until);
            if self.done[at] || late {
                continue;
            }
            let before = (self.queue.clone(), self.last_number);
            self.done[at] = true;
            if self.happens(operation) && self.goes_on() {
                return true;
            }
            self.done[at] = false;
            (self.queue, self.last_number) = before;
        }
        false
    }

    /// Whether its answer is the queue's.
    fn happens(&mut self, operation: &Operation) -> bool {
        let Any::Queue(call) = &operation.call else { panic!("of a queue") };
        let taken = match call {
            Call::Out { values } => return values.iter().all(|value| self.put(value)),
            Call::Inp | Call::In { .. } => self.queue.pop_front().into_iter().collect(),
            Call::Rdp { .. } | Call::Rd { .. } => self.queue.front().cloned().into_iter().collect(),
            Call::InAll { limit } => {
                let most = self.queue.len().min(*limit as usize);
                self.queue.drain(..most).collect::<Vec<String>>()
            }
        };
        let is = |items: &[Item]| items.iter().map(|item| &item.value).eq(&taken);
        match (call, &operation.outcome) {
            (_, Outcome::Unknown) => true,
            (
                Call::InAll { .. },
                Outcome::Ok(AnyReturn::Queue(Return::FoundAll { items, more })),
            ) => is(items) && *more != self.queue.is_empty(),
            (Call::InAll { .. }, _) => false,
            (_, Outcome::Ok(AnyReturn::Queue(Return::Found { item }))) => is(item.as_slice()),
            _ => false,
        }
    }

    /// Whether the number of its tuple, if it has one, is above all others.
    fn put(&mut self, value: &String) -> bool {
        self.queue.push_back(value.clone());
        let Some(number) = self.numbers.get(value) else { return true };
        let is_above = *number > self.last_number;
        self.last_number = *number;
        is_above
    }
}

/// Which operations a history has beside `out` of one value and `inp`.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    readers: bool,
    several: bool,
    waits: bool,
    numbers: bool,
}

/// A queue that carries operations out at moments of their own.
struct Source<'a> {
    random: &'a mut Random,
    kinds: Kinds,
    queue: VecDeque<Item>,
    put: u64,
}

impl Source<'_> {
    /// What comes of an operation, of unknown outcome or not.
    fn draw(&mut self, (moment, from, to): (u64, u64, u64)) -> Operation {
        let unknown = self.random.percent(12);
        let happens = !unknown || self.random.percent(50);
        // Each taking of one that takes several is judged by itself where nobody knows of them.
        let most = if unknown { 1 } else { self.random.between(1, 3) };
        let before = self.queue.clone();
        let wait_ms = self.random.between(0, (moment - from) / 1000);
        let mut one = match self.random.below(if self.kinds.readers { 12 } else { 8 }) {
            0..=3 => self.put(from, to, happens),
            4 if self.kinds.several => self.take_several(from, to, most as u32),
            4 | 5 if self.kinds.waits => {
                let head = self.queue.pop_front();
                operation(from, Some(to), Call::In { wait_ms }, Some(Return::Found { item: head }))
            }
            4..=7 => {
                let head = self.queue.pop_front();
                operation(from, Some(to), Call::Inp, Some(Return::Found { item: head }))
            }
            kind => {
                let call = match kind {
                    8 if self.kinds.waits => Call::Rd { wait_ms },
                    _ => Call::Rdp { fast: true },
                };
                let item = self.queue.front().cloned();
                operation(from, Some(to), call, Some(Return::Found { item }))
            }
        };
        if !happens {
            self.queue = before;
        }
        if unknown {
            (one.ended, one.outcome) = (None, Outcome::Unknown);
        }
        one
    }

    fn put(&mut self, from: u64, to: u64, happens: bool) -> Operation {
        let several = self.kinds.several && self.random.percent(40);
        let count = if several { self.random.between(2, 3) } else { 1 };
        let first = self.put + 1;
        let items = (first..first + count).map(|number| Item {
            value: format!("v{number}"),
            number: self.kinds.numbers.then_some(number),
        });
        let items: Vec<Item> = items.collect();
        self.put += count;
        let values = items.iter().map(|item| item.value.clone()).collect();
        if happens {
            self.queue.extend(items);
        }
        let first = self.kinds.numbers.then_some(first);
        operation(from, Some(to), Call::Out { values }, Some(Return::Inserted { first }))
    }

    fn take_several(&mut self, from: u64, to: u64, limit: u32) -> Operation {
        let most = self.queue.len().min(limit as usize);
        let items = self.queue.drain(..most).collect();
        let answer = Return::FoundAll { items, more: !self.queue.is_empty() };
        operation(from, Some(to), Call::InAll { limit }, Some(answer))
    }
}

/// Operations with the answers of a queue; then some answers are exchanged, or changed, or given
/// earlier than they were.
fn random_history(random: &mut Random, kinds: Kinds) -> Vec<Operation> {
    let count = random.between(4, if kinds.several { 8 } else { 9 });
    let longest = random.between(2, 12);
    let mut spans: Vec<(u64, u64, u64)> = Vec::new();
    for _ in 0..count {
        let from = random.below(30);
        let to = from + 1 + random.below(longest);
        spans.push((1000 * random.between(from, to), 1000 * from, 1000 * to));
    }
    spans.sort_unstable();
    let damages = random.below(4);
    let mut source = Source { random, kinds, queue: VecDeque::new(), put: 0 };
    let mut operations: Vec<Operation> = spans.into_iter().map(|span| source.draw(span)).collect();
    for _ in 0..damages {
        let (one, other) = (random.below(count), random.below(count));
        damage(&mut operations, one as usize, other as usize, random);
    }
    operations
}

fn damage(operations: &mut [Operation], one: usize, other: usize, random: &mut Random) {
    let is_put = |one: &Operation| matches!(one.call, Any::Queue(Call::Out { .. }));
    let both = |is: fn(&Operation) -> bool| is(&operations[one]) && is(&operations[other]);
    let takes_several = |one: &Operation| matches!(one.call, Any::Queue(Call::InAll { .. }));
    let answered = both(|one| one.ended.is_some());
    let puts = [one, other].map(|at| is_put(&operations[at]));
    if answered && puts == [false, false] && random.percent(60) {
        let several = takes_several(&operations[one]) || takes_several(&operations[other]);
        let (taken, given) = (operations[one].clone(), operations[other].clone());
        (operations[one].outcome, operations[other].outcome) = (given.outcome, taken.outcome);
        if several {
            // With its limit.
            (operations[one].call, operations[other].call) = (given.call, taken.call);
        }
    } else if random.percent(50) {
        change(&mut operations[one], random);
    } else if let Some(ended) = operations[one].ended {
        let earlier = ended.saturating_sub(1000 * random.below(10));
        operations[one].ended = Some(earlier.max(operations[one].invoked));
    }
}

/// Another time to wait, another number, or another word on what was left.
fn change(one: &mut Operation, random: &mut Random) {
    let Any::Queue(call) = &mut one.call else { return };
    match (call, &mut one.outcome) {
        (Call::In { wait_ms } | Call::Rd { wait_ms }, _) => *wait_ms += random.below(6),
        (
            Call::Out { .. },
            Outcome::Ok(AnyReturn::Queue(Return::Inserted { first: Some(first) })),
        ) => *first += random.below(3),
        (
            Call::InAll { limit },
            Outcome::Ok(AnyReturn::Queue(Return::FoundAll { items, more })),
        ) if !items.is_empty() => {
            *more = !*more;
            *limit = if *more { items.len() as u32 } else { *limit };
        }
        _ => {}
    }
}

/// Whether somebody who took several was told of more: any value that can have been there by itself
/// explains it to the judge.
fn may_be_missed(operations: &[Operation]) -> bool {
    operations.iter().any(|one| {
        let Outcome::Ok(AnyReturn::Queue(answer)) = &one.outcome else { return false };
        matches!(answer, Return::FoundAll { more: true, .. })
    })
}

#[test]
fn it_says_of_small_histories_what_trying_every_order_says() {
    let mut random = Random::new(0x9ecd);
    // With an order, without one, and without one that the judge misses.
    let mut counts = [0; 3];
    for round in 0..32_000 {
        let has = |bit: u32| round & bit != 0;
        let kinds = Kinds { readers: has(1), several: has(2), waits: has(4), numbers: has(8) };
        let operations = random_history(&mut random, kinds);
        let verdict = check(&operations);
        let order = finds_an_order(&operations);
        let missed = !order && verdict.is_ok() && may_be_missed(&operations);
        let shown: Vec<String> = operations.iter().map(ToString::to_string).collect();
        assert!(missed || verdict.is_ok() == order, "{verdict:?}:\n{}", shown.join("\n"));
        counts[usize::from(!order) + usize::from(missed)] += 1;
    }
    let [orders, none, missed] = counts;
    assert!(orders > 20_000 && none > 3_000 && missed < 20, "{counts:?}");
}
