//! Keys, ascending, in one buffer: a search touches a few neighbouring cache lines
//! where keys on their own would cost a cache miss for each comparison, and a copy on write copies
//! them at once.

/// Keys by index. Empty to begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    // Where each key ends; it starts where the one before it ends.
    ends: Vec<u32>,
}

/// The keys of a segment are far below this, as are those where segments begin.
fn offset(position: usize) -> u32 {
    u32::try_from(position).expect("a segment's keys are bounded")
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] as usize }
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index] as usize]
    }

    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.len().checked_sub(1).map(|index| self.get(index))
    }

    /// Where `key` is, or where it belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Puts `key` in front of the one at `index`, where [`Keys::find`] says that it belongs.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8]) {
        let start = self.start(index);
        self.bytes.splice(start..start, key.iter().copied());
        self.ends.insert(index, offset(start));
        let length = offset(key.len());
        self.ends[index..].iter_mut().for_each(|end| *end += length);
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (start, end) = (self.start(index), self.ends[index]);
        self.bytes.drain(start..end as usize);
        self.ends.remove(index);
        let length = end - offset(start);
        self.ends[index..].iter_mut().for_each(|end| *end -= length);
    }

    /// Adds a key that is above all others.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(offset(self.bytes.len()));
    }

    /// Adds keys that are above all others.
    pub(crate) fn append(&mut self, right: &Keys) {
        let start = offset(self.bytes.len());
        self.bytes.extend_from_slice(&right.bytes);
        self.ends.extend(right.ends.iter().map(|end| start + end));
    }

    /// Cuts off the keys from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Keys {
        let start = self.start(index);
        let bytes = self.bytes.split_off(start);
        let mut ends = self.ends.split_off(index);
        ends.iter_mut().for_each(|end| *end -= offset(start));
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        Keys { bytes, ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
