//! First keys of ranges, ascending, to be searched for the range of a key. Comparisons are of numbers first, eight bytes of
//! keys behind those that all of them begin with, which the processor compares without guessing how it ends; then of keys
//! among those that have the same number.
//!
//! Invariants: all keys but an empty one begin with the same `shared` bytes, and not with more; there is a number for each
//! key, [`number_of`] what follows these.

use crate::keys::Keys;
use std::cmp::Ordering;

/// The first eight bytes of a key's rest, as if zeros followed it. Where these of two keys differ, they are in the order of
/// the keys.
fn number_of(rest: &[u8]) -> u64 {
    if let Some(first) = rest.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(first)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    keys: Keys,
    shared: usize,
    numbers: Vec<u64>,
}

impl Bounds {
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        self.keys.get(index)
    }

    /// The last of these keys that is not above `key`; 0, if all are.
    pub(crate) fn last_not_above(&self, key: &[u8]) -> usize {
        let (begin, rest) = key.split_at(key.len().min(self.shared));
        if self.shared > 0
            && let Some(last) = self.keys.last()
        {
            match begin.cmp(&last[..self.shared]) {
                Ordering::Less => return 0,
                Ordering::Greater => return self.numbers.len() - 1,
                Ordering::Equal => {}
            }
        }
        let number = number_of(rest);
        let mut low = self.numbers.partition_point(|other| *other < number);
        let mut high = low;
        // Of those with the same number, if there are any, the keys themselves.
        if self.numbers.get(low) == Some(&number) {
            high += self.numbers[low..].partition_point(|other| *other == number);
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.keys.get(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// Puts a key at a place where it keeps the order.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8]) {
        self.keys.insert(index, key);
        self.numbers.insert(index, self.number(index));
        self.measure();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.keys.remove(index);
        self.numbers.remove(index);
        self.measure();
    }

    /// Adds a key that is above all others.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.insert(self.numbers.len(), key);
    }

    /// Adds all of these, which are above all others.
    pub(crate) fn append(&mut self, right: &Bounds) {
        self.keys.append(&right.keys);
        self.renumber();
        self.measure();
    }

    /// Takes away those from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Bounds {
        let (keys, numbers) = (self.keys.split_off(index), self.numbers.split_off(index));
        let mut right = Bounds { keys, numbers, shared: self.shared };
        self.numbers.shrink_to_fit();
        self.measure();
        right.measure();
        right
    }

    fn number(&self, index: usize) -> u64 {
        number_of(self.keys.get(index).get(self.shared..).unwrap_or_default())
    }

    fn renumber(&mut self) {
        self.numbers = (0..self.keys.len()).map(|index| self.number(index)).collect();
    }

    /// Keys have come or gone: all may have more in common, or less. What the first and the last begin with
    /// the others do too.
    fn measure(&mut self) {
        let mut keys = (0..self.keys.len()).map(|index| self.keys.get(index));
        let first = keys.find(|key| !key.is_empty()).unwrap_or_default();
        let last = self.keys.last().unwrap_or_default();
        let shared = first.iter().zip(last).take_while(|(one, other)| one == other).count();
        if shared != self.shared {
            self.shared = shared;
            self.renumber();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;
    use std::collections::BTreeSet;

    /// Keys that share long beginnings, end in zeros, are empty or short: beside an ordered set. Sought are such keys and
    /// others, below and above what all begin with.
    #[test]
    fn the_range_of_a_key_is_found() {
        let mut below = choices(5);
        let (mut apart, mut alike) = (0, 0);
        for round in 0..60 {
            let begins: &[u8] = [&b""[..], b"a", b"customer:", b"\0\0\0\0\0\0\0\0\x07"][round % 4];
            let mut key = |strange: bool| -> Vec<u8> {
                let length = below(12);
                let of = if strange { below(begins.len() + 1) } else { begins.len() };
                let rest = (0..length).map(|_| [0, 0, 0, 7, 255][below(5)]);
                begins[..of].iter().copied().chain(rest).collect()
            };
            let mut model = BTreeSet::from([Vec::new()]);
            let mut bounds = Bounds::default();
            bounds.push(b"");
            for step in 0..300 {
                let new = key(step > 200);
                let place = bounds.last_not_above(&new);
                if model.insert(new.clone()) {
                    bounds.insert(place + 1, &new);
                } else if place > 0 && step % 3 == 0 {
                    bounds.remove(place);
                    model.remove(&new);
                }
                if step % 50 == 0 {
                    let right = bounds.split_off(place);
                    let all: Vec<&Vec<u8>> = model.iter().collect();
                    check(&bounds, &all[..place]);
                    check(&right, &all[place..]);
                    bounds.append(&right);
                }
                for sought in [key(false), key(true)] {
                    let expected = model.range(..=sought.clone()).count() - 1;
                    assert_eq!(bounds.last_not_above(&sought), expected, "{sought:?} in {model:?}");
                }
                alike += usize::from(bounds.shared > 0 && model.len() > 10);
                apart += usize::from(bounds.shared == 0 && model.len() > 10);
            }
            assert!(model.iter().enumerate().all(|(index, key)| bounds.get(index) == &key[..]));
            assert_eq!(bounds.numbers.len(), model.len());
        }
        assert!(apart > 1000 && alike > 1000, "{apart} {alike}");
        assert_eq!(Bounds::default().last_not_above(b"any"), 0);
    }

    /// They are these, of which each finds itself and what lies behind it.
    fn check(bounds: &Bounds, keys: &[&Vec<u8>]) {
        assert_eq!(bounds.numbers.len(), keys.len());
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(bounds.get(index), &key[..]);
            assert_eq!(bounds.numbers[index], bounds.number(index));
            assert_eq!(bounds.last_not_above(key), index);
            assert_eq!(bounds.last_not_above(&[&key[..], &[0]].concat()), {
                // The next one may be just that.
                index
                    + usize::from(
                        keys.get(index + 1)
                            .is_some_and(|next| next[..] == [&key[..], &[0]].concat()),
                    )
            });
            let begin = key.get(..bounds.shared);
            assert!(key.is_empty() || begin == keys.last().map(|last| &last[..bounds.shared]));
        }
    }

    /// Numbers tell keys of one space or one table apart: else each comparison would be of keys.
    #[test]
    fn numbers_are_of_what_keys_do_not_share() {
        let mut bounds = Bounds::default();
        bounds.push(b"");
        for number in 0..100 {
            bounds.push(format!("customer:{number:08}").as_bytes());
        }
        assert!(bounds.numbers.is_sorted_by(|one, other| one < other));
        let right = bounds.split_off(91);
        assert_eq!(right.shared, b"customer:0000009".len());
        assert!(right.numbers.is_sorted_by(|one, other| one < other));
        assert_eq!(right.last_not_above(b"customer:00000095"), 5);
        assert_eq!(right.last_not_above(b"customer:0000009"), 0);
        assert_eq!(right.last_not_above(b"z"), 9);
    }
}
