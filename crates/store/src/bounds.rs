//! First keys of ranges, ascending, to be searched for the range of a key. Comparisons are of numbers first, the first
//! eight bytes of keys, which the processor makes without guessing how they end; then of keys among those that have the same.
//!
//! Invariant: there is a number for each key, [`number_of`] it.

use crate::keys::Keys;

/// The first eight bytes of a key, as if zeros followed it. Where these of two keys differ, they are in the order of
/// the keys.
fn number_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    keys: Keys,
    numbers: Vec<u64>,
}

impl Bounds {
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        self.keys.get(index)
    }

    /// The last of these keys that is not above `key`; 0, if all are.
    pub(crate) fn last_not_above(&self, key: &[u8]) -> usize {
        let number = number_of(key);
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
        self.numbers.insert(index, number_of(key));
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.keys.remove(index);
        self.numbers.remove(index);
    }

    /// Adds a key that is above all others.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.keys.push(key);
        self.numbers.push(number_of(key));
    }

    /// Adds all of these, which are above all others.
    pub(crate) fn append(&mut self, right: &Bounds) {
        self.keys.append(&right.keys);
        self.numbers.extend_from_slice(&right.numbers);
    }

    /// Takes away those from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Bounds {
        Bounds { keys: self.keys.split_off(index), numbers: self.numbers.split_off(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;
    use std::collections::BTreeSet;

    /// Keys that share long beginnings, end in zeros, are empty or short: beside an ordered set.
    #[test]
    fn the_range_of_a_key_is_found() {
        let mut below = choices(5);
        let mut key = move || -> Vec<u8> {
            let length = below(12);
            (0..length).map(|_| [0, 0, 0, 7, 255][below(5)]).collect()
        };
        for _ in 0..30 {
            let mut model = BTreeSet::from([Vec::new()]);
            let mut bounds = Bounds::default();
            bounds.push(b"");
            for step in 0..300 {
                let new = key();
                let place = bounds.last_not_above(&new);
                if model.insert(new.clone()) {
                    bounds.insert(place + 1, &new);
                } else if place > 0 && step % 3 == 0 {
                    bounds.remove(place);
                    model.remove(&new);
                }
                if step % 50 == 0 {
                    let right = bounds.split_off(place);
                    bounds.append(&right);
                }
                let sought = key();
                let expected = model.range(..=sought.clone()).count() - 1;
                assert_eq!(bounds.last_not_above(&sought), expected, "{sought:?} in {model:?}");
            }
            assert!(model.iter().enumerate().all(|(index, key)| bounds.get(index) == &key[..]));
        }
        assert_eq!(Bounds::default().last_not_above(b"any"), 0);
    }
}
