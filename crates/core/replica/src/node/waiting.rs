//! Input that waits for its turn: frames to be verified, and reads. Each peer has a line of its
//! own, the lines are served one item after the other, and so one that sends without end delays
//! the others by a constant factor only (rule A6).
//!
//! How much a line may hold shrinks as the others hold more: no more than what is left free (dynamic
//! thresholds, Choudhury and Hahne, 1998). So k greedy lines leave a (k + 1)-th part to newcomers.

use std::collections::{BTreeMap, VecDeque};

/// What all lines may hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// How many items.
    pub items: usize,
    /// How many bytes.
    pub bytes: usize,
}

#[derive(Debug)]
struct Line<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
}

/// Lines of items, by whose they are.
#[derive(Debug)]
pub(super) struct Lines<K, T> {
    lines: BTreeMap<K, Line<T>>,
    turn: VecDeque<K>,
    capacity: Capacity,
    items: usize,
    bytes: usize,
}

impl<K: Ord + Copy, T> Lines<K, T> {
    pub fn new(capacity: Capacity) -> Lines<K, T> {
        Lines { lines: BTreeMap::new(), turn: VecDeque::new(), capacity, items: 0, bytes: 0 }
    }

    /// Divides what it may hold by two to the power of `by`.
    pub fn shrink(&mut self, by: u32) {
        self.capacity.items >>= by;
        self.capacity.bytes >>= by;
    }

    /// Puts an item at the end of its line, or gives it back.
    pub fn push(&mut self, whose: K, item: T, bytes: usize) -> Result<(), T> {
        let held = self.lines.get(&whose).map_or((0, 0), |line| (line.items.len(), line.bytes));
        let fits = held.0 < self.capacity.items - self.items
            && held.1 + bytes <= self.capacity.bytes - self.bytes;
        if !fits {
            return Err(item);
        }
        let line = self.lines.entry(whose).or_insert_with(|| {
            self.turn.push_back(whose);
            Line { items: VecDeque::new(), bytes: 0 }
        });
        line.items.push_back((item, bytes));
        line.bytes += bytes;
        self.items += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Puts an item into its line behind those that are `before` it, which are its first ones; or gives it back.
    pub fn insert(
        &mut self,
        whose: K,
        item: T,
        bytes: usize,
        before: impl Fn(&T) -> bool,
    ) -> Result<(), T> {
        self.push(whose, item, bytes)?;
        if let Some(line) = self.lines.get_mut(&whose)
            && let Some(last) = line.items.pop_back()
        {
            let place = line.items.partition_point(|(item, _)| before(item));
            line.items.insert(place, last);
        }
        Ok(())
    }

    /// The next item of the next line whose first one is `ready`.
    pub fn pop(&mut self, ready: impl Fn(&T) -> bool) -> Option<(K, T)> {
        for _ in 0..self.turn.len() {
            let whose = self.turn.pop_front()?;
            let Some(line) = self.lines.get_mut(&whose) else { continue };
            if !line.items.front().is_some_and(|(item, _)| ready(item)) {
                self.turn.push_back(whose);
                continue;
            }
            let Some((item, bytes)) = line.items.pop_front() else { continue };
            line.bytes -= bytes;
            self.items -= 1;
            self.bytes -= bytes;
            if line.items.is_empty() {
                self.lines.remove(&whose);
            } else {
                self.turn.push_back(whose);
            }
            return Some((whose, item));
        }
        None
    }

    /// Whether some line's first item is `ready`.
    pub fn any_first(&self, ready: impl Fn(&T) -> bool) -> bool {
        self.lines.values().any(|line| line.items.front().is_some_and(|(item, _)| ready(item)))
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Items in a line.
    pub fn length(&self, whose: K) -> usize {
        self.lines.get(&whose).map_or(0, |line| line.items.len())
    }

    /// Items and bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.items, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_in_one_line_neither_fills_all_nor_delays_others() {
        let mut lines = Lines::new(Capacity { items: 100, bytes: 10_000 });
        let mut taken = 0;
        while lines.push(1, taken, 10).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, 50);
        let mut second = 0;
        while lines.push(2, 1000 + second, 10).is_ok() {
            second += 1;
        }
        assert_eq!(second, 25);
        assert!(lines.push(3, 2000, 10).is_ok());
        let next: Vec<i32> = (0..6).filter_map(|_| lines.pop(|_| true).map(|(k, _)| k)).collect();
        assert_eq!(next, [1, 2, 3, 1, 2, 1]);
        while lines.pop(|_| true).is_some() {}
        assert_eq!((lines.held(), lines.is_empty()), ((0, 0), true));
        assert!(lines.turn.is_empty() && lines.lines.is_empty());
    }

    #[test]
    fn what_comes_sooner_is_put_before_what_comes_later() {
        let mut lines = Lines::new(Capacity { items: 100, bytes: 100 });
        for item in [5, 9, 7, 9, 5, 12] {
            assert!(lines.insert(1, item, 1, |other| *other <= item).is_ok());
        }
        let order: Vec<i32> = (0..6).filter_map(|_| lines.pop(|_| true).map(|(_, i)| i)).collect();
        assert_eq!((order, lines.held()), (vec![5, 5, 7, 9, 9, 12], (0, 0)));
        assert!(lines.insert(2, 3, 101, |_| true).is_err());
    }

    #[test]
    fn what_is_not_ready_holds_up_its_own_line_only_and_bytes_count() {
        let mut lines = Lines::new(Capacity { items: 100, bytes: 100 });
        assert!(lines.push(1, 7, 60).is_ok());
        assert!(lines.push(2, 3, 50).is_err());
        assert!(lines.push(2, 3, 40).is_ok());
        assert!(lines.any_first(|item| *item < 5));
        assert_eq!(lines.pop(|item| *item < 5), Some((2, 3)));
        assert_eq!(lines.pop(|item| *item < 5), None);
        assert!(!lines.any_first(|item| *item < 5));
    }
}
