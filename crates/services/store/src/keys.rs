//! Keys, ascending, in one buffer: a search touches a few neighbouring cache lines
//! where keys on their own would cost a cache miss for each comparison, and a copy on write copies
//! them at once.

use crate::prefetch::prefetch;
use std::cmp::Ordering;

/// Keys by index. Empty to begin with.
///
/// Invariants: while all keys have the same length, which is not 0, `ends` is empty: where a key ends follows from its
/// index then, and a search touches nothing else. From the first other key on, `width` is 0 and `ends` says it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    count: usize,
    width: usize,
    // Where each key ends; it starts where the one before it ends.
    ends: Vec<u32>,
}

/// A search for where a key belongs: between these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    low: usize,
    high: usize,
}

impl Search {
    /// Where the key belongs, when nothing is left to be compared.
    pub(crate) fn low(self) -> usize {
        self.low
    }

    /// Which key is compared next.
    fn middle(self) -> Option<usize> {
        (self.low < self.high).then(|| self.low.midpoint(self.high))
    }

    /// The one in the middle was so, compared with what is sought.
    fn narrow(&mut self, order: Ordering) {
        match (self.middle(), order) {
            (Some(middle), Ordering::Less) => self.low = middle + 1,
            (Some(middle), _) => self.high = middle,
            (None, _) => {}
        }
    }
}

/// The keys of a segment are far below this, as are those where segments begin.
fn offset(position: usize) -> u32 {
    u32::try_from(position).expect("a segment's keys are bounded")
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn start(&self, index: usize) -> usize {
        match index {
            0 => 0,
            _ if self.width > 0 => index * self.width,
            _ => self.ends[index - 1] as usize,
        }
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.start(index + 1)]
    }

    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.len().checked_sub(1).map(|index| self.get(index))
    }

    /// Where `key` is, or where it belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.find_between(0, self.len(), key)
    }

    fn find_between(&self, low: usize, high: usize, key: &[u8]) -> Result<usize, usize> {
        let mut search = Search { low, high };
        while let Some(middle) = search.middle() {
            match self.get(middle).cmp(key) {
                Ordering::Equal => return Ok(middle),
                order => search.narrow(order),
            }
        }
        Err(search.low)
    }

    /// Where the keys from `first` on end that are below `key`: in steps that double, so that few of few keys are looked at.
    pub(crate) fn end_from(&self, first: usize, key: &[u8]) -> usize {
        let (mut low, mut step) = (first, 1);
        while low < self.len() && self.get((low + step).min(self.len()) - 1) < key {
            low = (low + step).min(self.len());
            step *= 2;
        }
        let high = (low + step).min(self.len());
        self.find_between(low, high, key).unwrap_or_else(|index| index)
    }

    /// A search among all of them.
    pub(crate) fn search(&self) -> Search {
        Search { low: 0, high: self.len() }
    }

    /// Asks for what tells where the next key is that is compared.
    pub(crate) fn prefetch_place(&self, search: Search) {
        if let Some(end) = search.middle().and_then(|middle| self.ends.get(middle)) {
            prefetch(end);
        }
    }

    /// Asks for that key.
    pub(crate) fn prefetch_next(&self, search: Search) {
        search.middle().into_iter().for_each(|middle| prefetch(self.get(middle)));
    }

    /// Compares it; whether there are more.
    pub(crate) fn step(&self, search: &mut Search, key: &[u8]) -> bool {
        let Some(middle) = search.middle() else { return false };
        search.narrow(self.get(middle).cmp(key));
        true
    }

    /// Puts `key` in front of the one at `index`, where [`Keys::find`] says that it belongs.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8]) {
        self.admit(key.len());
        let start = self.start(index);
        self.bytes.splice(start..start, key.iter().copied());
        self.count += 1;
        if self.width == 0 {
            self.ends.insert(index, offset(start));
            let length = offset(key.len());
            self.ends[index..].iter_mut().for_each(|end| *end += length);
        }
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (start, end) = (self.start(index), self.start(index + 1));
        self.bytes.drain(start..end);
        self.count -= 1;
        if self.width == 0 {
            self.ends.remove(index);
            let length = offset(end - start);
            self.ends[index..].iter_mut().for_each(|end| *end -= length);
        }
        if self.bytes.capacity() > self.bytes.len() + self.bytes.len() / 3 + 1024 {
            self.shrink();
        }
    }

    /// Adds a key that is above all others.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.admit(key.len());
        self.bytes.extend_from_slice(key);
        self.count += 1;
        if self.width == 0 {
            self.ends.push(offset(self.bytes.len()));
        }
    }

    /// Adds keys that are above all others.
    pub(crate) fn append(&mut self, right: &Keys) {
        (0..right.len()).for_each(|index| self.push(right.get(index)));
    }

    /// Cuts off the keys from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Keys {
        let start = self.start(index);
        let bytes = self.bytes.split_off(start);
        let (width, count) = (self.width, self.count - index);
        let mut ends = self.ends.split_off(index.min(self.ends.len()));
        ends.iter_mut().for_each(|end| *end -= offset(start));
        self.count = index;
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        let mut right = Keys { bytes, count, width, ends };
        self.measure();
        right.measure();
        right
    }

    /// Gives back what is there for more.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// A key of so many bytes is about to be added.
    fn admit(&mut self, bytes: usize) {
        if self.bytes.capacity() - self.bytes.len() < bytes {
            // By an eighth, as for values.
            self.bytes.reserve_exact(bytes + self.bytes.len() / 8);
        }
        if self.count == 0 {
            (self.width, self.ends) = (bytes, Vec::new());
        } else if self.width > 0 && self.width != bytes {
            let ends = (1..=self.count).map(|index| offset(index * self.width)).collect();
            (self.width, self.ends) = (0, ends);
        }
    }

    /// Keys of one length may be left where there were others.
    fn measure(&mut self) {
        let Some(width) = self.ends.first().map(|end| *end as usize).filter(|width| *width > 0)
        else {
            return;
        };
        if (1..=self.count).zip(&self.ends).all(|(index, end)| index * width == *end as usize) {
            (self.width, self.ends) = (width, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;

    fn list(keys: &Keys) -> Vec<&[u8]> {
        (0..keys.len()).map(|index| keys.get(index)).collect()
    }

    #[test]
    fn keys_go_in_and_out_anywhere() {
        let mut keys = Keys::default();
        for key in ["mm", "a", "zzz", "b", ""] {
            let place = keys.find(key.as_bytes()).unwrap_err();
            keys.insert(place, key.as_bytes());
        }
        keys.push(b"zzzz");
        assert_eq!(list(&keys), [&b""[..], b"a", b"b", b"mm", b"zzz", b"zzzz"]);
        assert_eq!(keys.find(b"mm"), Ok(3));
        assert_eq!(keys.find(b"n"), Err(4));
        keys.remove(1);
        keys.remove(3);
        assert_eq!(list(&keys), [&b""[..], b"b", b"mm", b"zzzz"]);
        let right = keys.split_off(2);
        assert_eq!(list(&keys), [&b""[..], b"b"]);
        assert_eq!(list(&right), [&b"mm"[..], b"zzzz"]);
        assert_eq!(right.last(), Some(&b"zzzz"[..]));
        keys.append(&right);
        assert_eq!(list(&keys), [&b""[..], b"b", b"mm", b"zzzz"]);
        assert_eq!(Keys::default().last(), None);
    }

    /// Everything that can be done, beside a plain vector: with keys of one length, then with others, and again.
    #[test]
    fn keys_of_any_lengths_are_what_was_put_there() {
        let mut below = choices(7);
        let (mut keys, mut model) = (Keys::default(), Vec::<Vec<u8>>::new());
        let (mut even, mut uneven) = (0, 0);
        for step in 0..20_000 {
            let length = if step / 1000 % 2 == 0 { 4 } else { below(7) };
            let key: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
            match (below(10), keys.find(&key)) {
                (0..5, Err(place)) if model.len() < 200 => {
                    assert_eq!(model.binary_search(&key), Err(place));
                    keys.insert(place, &key);
                    model.insert(place, key.clone());
                }
                (5..8, _) if !model.is_empty() => {
                    let place = below(model.len());
                    keys.remove(place);
                    model.remove(place);
                }
                (8, _) if step % 20 == 0 => {
                    let place = below(model.len() + 1);
                    let right = keys.split_off(place);
                    assert!(list(&right) == model[place..] && list(&keys) == model[..place]);
                    keys.append(&right);
                }
                (9, _) if step % 300 == 0 => {
                    keys.split_off(0);
                    model.clear();
                }
                _ => {}
            }
            assert!(list(&keys) == model, "{step}");
            let length = keys.bytes.len();
            assert!(keys.bytes.capacity() <= length + length / 3 + 1100, "it gives memory back");
            for (index, key) in model.iter().enumerate() {
                assert_eq!(keys.find(key), Ok(index));
            }
            let (first, below_key) = (below(model.len() + 1), model.partition_point(|k| *k < key));
            assert_eq!(keys.end_from(first, &key), below_key.max(first));
            let mut search = keys.search();
            while keys.step(&mut search, &key) {}
            assert_eq!(search.low(), below_key);
            if keys.width > 0 {
                assert!(keys.ends.is_empty() && model.iter().all(|key| key.len() == keys.width));
                even += usize::from(model.len() > 10);
            } else {
                assert_eq!(keys.ends.len(), model.len());
                uneven += usize::from(model.len() > 10);
            }
        }
        assert!(even > 1000 && uneven > 1000, "{even} {uneven}");
    }
}
