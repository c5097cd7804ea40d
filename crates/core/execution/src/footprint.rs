//! Footprints: what a command reads and writes, known before it runs (P-SMR). They may err only
//! towards conflict (rule E1).
//!
//! A key is marked by a hash, which sets a bit in a batch's bitmap, and by its position, the first
//! eight bytes as a number, which is monotone in the order of keys; a range is the positions of its
//! ends. So keys and ranges can be held against each other without the keys themselves: equal keys
//! have equal marks, and a key inside a range has a position inside it.

use perdura_protocol::{Digest, Encode, SessionId, seeded};

/// A key in a footprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyMark {
    /// The first eight bytes of the key's BLAKE3 hash.
    pub hash: u64,
    /// The first eight bytes of the key, padded with zeros, as a big-endian number.
    pub position: u64,
}

impl KeyMark {
    /// The mark of `key`.
    #[must_use]
    pub fn of(key: &[u8]) -> KeyMark {
        KeyMark { hash: short_hash(key), position: position(key) }
    }
}

/// A range of keys in a footprint, by positions, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyRange {
    /// Position of the first key.
    pub first: u64,
    /// Position of the last key.
    pub last: u64,
}

impl KeyRange {
    /// The keys from `start` up to `end`, to the last key without `end`. Whether `end` itself
    /// belongs to it makes no difference here.
    #[must_use]
    pub fn of(start: &[u8], end: Option<&[u8]>) -> KeyRange {
        KeyRange { first: position(start), last: end.map_or(u64::MAX, position) }
    }

    fn contains(self, mark: KeyMark) -> bool {
        self.first <= mark.position && mark.position <= self.last
    }

    fn overlaps(self, other: KeyRange) -> bool {
        self.first.max(other.first) <= self.last.min(other.last)
    }
}

fn position(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

fn short_hash(bytes: &[u8]) -> u64 {
    let Digest(digest) = Digest::of(bytes);
    let mut short = [0; 8];
    short.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(short)
}

/// What a command reads and writes; empty to begin with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    everything: bool,
    // Commands of one session conflict: they share its numbers and its replies.
    session: Option<u64>,
    reads: Access,
    writes: Access,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Access {
    // Both ascending, without duplicates.
    keys: Vec<KeyMark>,
    ranges: Vec<KeyRange>,
}

impl Access {
    fn meets(&self, other: &Access) -> bool {
        sorted_meet(&self.keys, &other.keys)
            || self.ranges.iter().any(|range| other.within(*range))
            || other.ranges.iter().any(|range| self.within(*range))
    }

    fn within(&self, range: KeyRange) -> bool {
        self.keys.iter().any(|mark| range.contains(*mark))
            || self.ranges.iter().any(|other| range.overlaps(*other))
    }
}

fn sorted_meet(a: &[KeyMark], b: &[KeyMark]) -> bool {
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    few.iter().any(|mark| many.binary_search(mark).is_ok())
}

fn insert_sorted<T: Ord>(items: &mut Vec<T>, item: T) {
    if let Err(index) = items.binary_search(&item) {
        items.insert(index, item);
    }
}

impl Footprint {
    /// The footprint of a command that touches nothing.
    #[must_use]
    pub fn new() -> Footprint {
        Footprint::default()
    }

    /// Conflicts with every command.
    #[must_use]
    pub fn everything() -> Footprint {
        Footprint { everything: true, ..Footprint::default() }
    }

    /// Adds a key that is read.
    pub fn read(&mut self, key: &[u8]) {
        insert_sorted(&mut self.reads.keys, KeyMark::of(key));
    }

    /// Adds a key that is written, created or removed.
    pub fn write(&mut self, key: &[u8]) {
        insert_sorted(&mut self.writes.keys, KeyMark::of(key));
    }

    /// Adds a range that is read, see [`KeyRange::of`].
    pub fn read_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        insert_sorted(&mut self.reads.ranges, KeyRange::of(start, end));
    }

    /// Adds a range that is written, see [`KeyRange::of`].
    pub fn write_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        insert_sorted(&mut self.writes.ranges, KeyRange::of(start, end));
    }

    /// The same with the session whose command it is.
    #[must_use]
    pub fn of_session(mut self, session: SessionId) -> Footprint {
        let hash = short_hash(&session.to_bytes());
        self.session = Some(hash).filter(|_| !seeded!(SessionNotInFootprint));
        self
    }

    /// Whether it conflicts with every command.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.everything
    }

    /// Hash of the session, once it is known.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// Keys that are read, ascending.
    #[must_use]
    pub fn reads(&self) -> &[KeyMark] {
        &self.reads.keys
    }

    /// Keys that are written, ascending.
    #[must_use]
    pub fn writes(&self) -> &[KeyMark] {
        &self.writes.keys
    }

    /// Ranges that are read, ascending.
    #[must_use]
    pub fn read_ranges(&self) -> &[KeyRange] {
        &self.reads.ranges
    }

    /// Ranges that are written, ascending.
    #[must_use]
    pub fn write_ranges(&self) -> &[KeyRange] {
        &self.writes.ranges
    }

    /// Whether the order of the two commands may matter.
    #[must_use]
    pub fn conflicts(&self, other: &Footprint) -> bool {
        self.everything
            || other.everything
            || (self.session.is_some() && self.session == other.session)
            || self.writes.meets(&other.writes)
            || self.writes.meets(&other.reads)
            || self.reads.meets(&other.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::PublicKey;

    fn of(reads: &[&[u8]], writes: &[&[u8]]) -> Footprint {
        let mut footprint = Footprint::new();
        reads.iter().for_each(|key| footprint.read(key));
        writes.iter().for_each(|key| footprint.write(key));
        footprint
    }

    #[test]
    fn reads_share_and_writes_do_not() {
        assert!(!of(&[b"a"], &[]).conflicts(&of(&[b"a"], &[])));
        assert!(of(&[b"a"], &[]).conflicts(&of(&[b"b"], &[b"a"])));
        assert!(of(&[], &[b"a"]).conflicts(&of(&[b"a"], &[])));
        assert!(of(&[], &[b"a"]).conflicts(&of(&[], &[b"c", b"a"])));
        assert!(!of(&[b"x"], &[b"a"]).conflicts(&of(&[b"y"], &[b"b"])));
        assert!(Footprint::everything().conflicts(&Footprint::new()));
    }

    #[test]
    fn ranges_conflict_with_writes_inside_them() {
        let mut range = Footprint::new();
        range.read_range(b"b", Some(b"d"));
        assert!(range.conflicts(&of(&[], &[b"c"])));
        assert!(range.conflicts(&of(&[], &[b"cxxxxxxxxxxxxxxx"])));
        assert!(!range.conflicts(&of(&[b"c"], &[])));
        assert!(!range.conflicts(&of(&[], &[b"e"])));
        let mut open = Footprint::new();
        open.write_range(b"c", None);
        assert!(open.conflicts(&range) && range.conflicts(&open));
        assert!(!range.conflicts(&range.clone()));
    }

    #[test]
    fn commands_of_one_session_conflict() {
        let session = |nonce| SessionId { client: PublicKey([1; 32]), nonce };
        let first = of(&[b"a"], &[]).of_session(session(1));
        assert!(first.conflicts(&of(&[b"b"], &[]).of_session(session(1))));
        assert!(!first.conflicts(&of(&[b"b"], &[]).of_session(session(2))));
    }
}
