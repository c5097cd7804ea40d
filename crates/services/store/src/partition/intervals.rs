//! The intervals that pending transactions have read: a tree by where they start, in which each node knows which of those at and below it
//! ends last (an augmented tree, Cormen et al., "Introduction to Algorithms", chapter 14; balanced by size, Adams 1993, with the numbers of
//! Hirai and Yamamoto 2011). Whether a key is in one of them takes a logarithm of their number, however they lie.
//!
//! Invariants:
//! - nodes are in the order of their places;
//! - neither side of a node has more than [`HEAVIER`] times as many nodes as the other, unless both together have one at most;
//! - `longest` of a node is the one that ends last of those at and below it, and of several that do the first one.

use super::intent::TransactionId;
use bytes::Bytes;
use std::cmp::Ordering;

/// Where an interval starts, whose it is, and which of his.
pub(super) type IntervalStart = (Bytes, TransactionId, usize);

/// Where one ends, if it does, and whose it is.
type Last = (Option<Bytes>, TransactionId);

/// Beyond this one side is too heavy.
const HEAVIER: usize = 3;

/// The inner half of a heavy side is turned first where it has so many times as many nodes as the outer one.
const INNER: usize = 2;

type Tree = Option<Box<Node>>;

#[derive(Clone, Debug)]
struct Node {
    place: IntervalStart,
    own: Last,
    longest: Last,
    size: usize,
    left: Tree,
    right: Tree,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals(Tree);

impl Intervals {
    pub(super) fn len(&self) -> usize {
        size(&self.0)
    }

    pub(super) fn insert(&mut self, place: IntervalStart, end: Option<Bytes>) {
        self.0 = Some(with(self.0.take(), place, end));
    }

    pub(super) fn remove(&mut self, place: &IntervalStart) {
        self.0 = without(self.0.take(), place);
    }

    /// Whose interval this key is in, if it is in one: of those that start there or before, the one that ends last.
    pub(super) fn over(&self, key: &[u8]) -> Option<TransactionId> {
        let mut longest: Option<&Last> = None;
        let mut below = &self.0;
        while let Some(node) = below {
            if *node.place.0 > *key {
                below = &node.left;
                continue;
            }
            // It starts there or before, and so does all to its left.
            let left = node.left.as_ref().map(|left| &left.longest);
            for next in left.into_iter().chain([&node.own]) {
                if longest.is_none_or(|longest| is_later(&next.0, &longest.0)) {
                    longest = Some(next);
                }
            }
            below = &node.right;
        }
        let (end, id) = longest?;
        end.as_ref().is_none_or(|end| *key < **end).then_some(*id)
    }
}

fn is_later(end: &Option<Bytes>, other: &Option<Bytes>) -> bool {
    match (end, other) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(end), Some(other)) => end > other,
    }
}

fn size(tree: &Tree) -> usize {
    tree.as_ref().map_or(0, |node| node.size)
}

fn with(tree: Tree, place: IntervalStart, end: Option<Bytes>) -> Box<Node> {
    let Some(mut node) = tree else {
        let own = (end, place.1);
        let longest = own.clone();
        return Box::new(Node { place, own, longest, size: 1, left: None, right: None });
    };
    match place.cmp(&node.place) {
        Ordering::Less => node.left = Some(with(node.left.take(), place, end)),
        Ordering::Greater => node.right = Some(with(node.right.take(), place, end)),
        Ordering::Equal => node.own.0 = end,
    }
    node.balanced()
}

fn without(tree: Tree, place: &IntervalStart) -> Tree {
    let mut node = tree?;
    match place.cmp(&node.place) {
        Ordering::Less => node.left = without(node.left.take(), place),
        Ordering::Greater => node.right = without(node.right.take(), place),
        Ordering::Equal => {
            let left = node.left.take();
            let Some(right) = node.right.take() else { return left };
            let (mut first, right) = right.split_first();
            (first.left, first.right) = (left, right);
            node = first;
        }
    }
    Some(node.balanced())
}

impl Node {
    /// Its first node, and all others.
    fn split_first(mut self: Box<Node>) -> (Box<Node>, Tree) {
        let Some(left) = self.left.take() else {
            let right = self.right.take();
            return (self, right);
        };
        let (first, left) = left.split_first();
        self.left = left;
        (first, Some(self.balanced()))
    }

    /// After one node came to one of its sides, or went.
    fn balanced(mut self: Box<Node>) -> Box<Node> {
        let (left, right) = (size(&self.left), size(&self.right));
        if left + right > 1 {
            if right > HEAVIER * left {
                return self.turned_left();
            }
            if left > HEAVIER * right {
                return self.turned_right();
            }
        }
        self.measure();
        self
    }

    /// Its right side is too heavy.
    fn turned_left(mut self: Box<Node>) -> Box<Node> {
        let Some(mut top) = self.right.take() else { return self };
        if size(&top.left) >= INNER * size(&top.right)
            && let Some(mut inner) = top.left.take()
        {
            top.left = inner.right.take();
            top.measure();
            inner.right = Some(top);
            top = inner;
        }
        self.right = top.left.take();
        self.measure();
        top.left = Some(self);
        top.measure();
        top
    }

    /// Its left side is.
    fn turned_right(mut self: Box<Node>) -> Box<Node> {
        let Some(mut top) = self.left.take() else { return self };
        if size(&top.right) >= INNER * size(&top.left)
            && let Some(mut inner) = top.right.take()
        {
            top.right = inner.left.take();
            top.measure();
            inner.left = Some(top);
            top = inner;
        }
        self.left = top.right.take();
        self.measure();
        top.right = Some(self);
        top.measure();
        top
    }

    /// What follows from its sides.
    fn measure(&mut self) {
        self.size = 1 + size(&self.left) + size(&self.right);
        let [left, right] =
            [&self.left, &self.right].map(|side| side.as_ref().map(|node| &node.longest));
        let mut longest = left.unwrap_or(&self.own);
        for next in [&self.own].into_iter().chain(right) {
            if is_later(&next.0, &longest.0) {
                longest = next;
            }
        }
        self.longest = longest.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;
    use perdura_protocol::Digest;
    use std::collections::BTreeMap;

    type Model = BTreeMap<IntervalStart, Option<Bytes>>;

    /// By looking at each.
    fn over(model: &Model, key: &[u8]) -> Option<TransactionId> {
        let mut longest: Option<(&Option<Bytes>, TransactionId)> = None;
        for ((_, id, _), end) in model.iter().filter(|((start, ..), _)| **start <= *key) {
            if longest.is_none_or(|(other, _)| is_later(end, other)) {
                longest = Some((end, *id));
            }
        }
        let (end, id) = longest?;
        end.as_ref().is_none_or(|end| *key < **end).then_some(id)
    }

    /// It is as the module says. Its places in order, and its height.
    fn check<'a>(tree: &'a Tree, places: &mut Vec<&'a IntervalStart>) -> usize {
        let Some(node) = tree else { return 0 };
        let first = places.len();
        let left = check(&node.left, places);
        places.push(&node.place);
        let right = check(&node.right, places);
        assert_eq!(node.size, places.len() - first);
        let sizes = [size(&node.left), size(&node.right)];
        let is_light = |one: usize, other: usize| one <= HEAVIER * other;
        let is_balanced = is_light(sizes[0], sizes[1]) && is_light(sizes[1], sizes[0]);
        assert!(is_balanced || sizes[0] + sizes[1] <= 1, "{sizes:?}");
        let mut longest = node.own.clone();
        if let Some(left) = node.left.as_ref().filter(|one| !is_later(&longest.0, &one.longest.0)) {
            longest = left.longest.clone();
        }
        if let Some(right) = node.right.as_ref().filter(|one| is_later(&one.longest.0, &longest.0))
        {
            longest = right.longest.clone();
        }
        assert_eq!(node.longest, longest);
        1 + left.max(right)
    }

    fn id(number: usize) -> TransactionId {
        TransactionId(Digest([number as u8; 32]))
    }

    /// Intervals of any kind come and go, empty ones and such that are the wrong way round too.
    #[test]
    fn a_key_is_in_the_interval_that_it_would_be_in_if_each_was_looked_at() {
        let mut found = [0, 0];
        for seed in 0..40 {
            let mut below = choices(seed);
            let (mut intervals, mut model) = (Intervals::default(), Model::new());
            let (letters, length) = (2 + seed as usize % 20, 1 + seed as usize % 3);
            for step in 0..600 {
                let mut key = || -> Bytes {
                    let length = below(length + 1);
                    (0..length).map(|_| b'a' + below(letters) as u8).collect()
                };
                let (start, other, sought) = (key(), key(), key());
                // Most are short.
                let end = match below(100) {
                    0 => None,
                    1..20 => Some(other),
                    _ => Some([&start[..], &other].concat().into()),
                };
                let place = (start, id(below(5)), below(3));
                if below(10) < if step < 300 { 8 } else { 3 } {
                    intervals.insert(place.clone(), end.clone());
                    model.insert(place, end);
                } else {
                    let next = model.range(place.clone()..).next().map(|(place, _)| place.clone());
                    let place = next.filter(|_| below(8) > 0).unwrap_or(place);
                    intervals.remove(&place);
                    model.remove(&place);
                }
                assert_eq!(intervals.over(&sought), over(&model, &sought), "{model:?} {sought:?}");
                found[usize::from(intervals.over(&sought).is_some())] += 1;
                assert_eq!(intervals.len(), model.len());
                if step % 20 == 0 {
                    let mut places = Vec::new();
                    check(&intervals.0, &mut places);
                    assert!(places.into_iter().eq(model.keys()));
                }
            }
        }
        assert!(found.iter().all(|count| *count > 3_000), "{found:?}");
    }

    /// However they come and go: each step down is one of what a put goes through.
    #[test]
    fn as_many_as_there_may_be_are_a_few_steps_deep() {
        let count = super::super::limits::RANGES;
        let place = |number: usize| -> IntervalStart {
            (Bytes::copy_from_slice(&(number as u32).to_be_bytes()), id(number), number)
        };
        let mut below = choices(7);
        let orders: [Vec<usize>; 3] = [
            (0..count).collect(),
            (0..count).rev().collect(),
            (0..count).map(|_| below(1 << 20)).collect(),
        ];
        for order in orders {
            let mut intervals = Intervals::default();
            order.iter().for_each(|number| intervals.insert(place(*number), None));
            let height = check(&intervals.0, &mut Vec::new());
            assert!(height <= 20, "{height}");
            order[..count - 64].iter().for_each(|number| intervals.remove(&place(*number)));
            let height = check(&intervals.0, &mut Vec::new());
            assert!(height <= 10, "{height}");
        }
    }
}
