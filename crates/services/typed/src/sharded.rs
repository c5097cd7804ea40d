//! A map of any key and value, in segments that a snapshot shares.
//!
//! It is the store's map ([`SegmentMap`]) with typed keys and values: copied on write, digests remembered, segments split and merged by their
//! size. While a command runs it keeps what the command overwrote, to be undone if that is refused: its entries are what they were then, though
//! they may stand in other segments, the same on all replicas.

use crate::budget;
use crate::journal::{Journaled, JournaledAt, Misfit};
use crate::key::Key;
use crate::scratch::lend;
use crate::wire::{append, whole};
use perdura_execution::RestoreError;
use perdura_store::SegmentMap;
use perdura_store::limits::{KEY_BYTES, VALUE_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// An ordered map that may be large: a checkpoint writes the parts of it that changed, and a snapshot takes microseconds at any size.
///
/// Keys take up to [`KEY_BYTES`] and values up to [`VALUE_BYTES`] as they are encoded (values as by `postcard`, so what has `Serialize` and
/// `Deserialize` and does not ask the format what comes next; what gives its parts in another order each time, as a `HashMap` does, must not stand in one), nested up to
/// [`LEVELS`](crate::LEVELS) deep. A command that writes a larger or deeper one, or a value that cannot be encoded, is refused, and undone.
pub struct Sharded<K, V> {
    inner: Journaled,
    typed: PhantomData<fn(K) -> V>,
}

impl<K, V> Default for Sharded<K, V> {
    fn default() -> Sharded<K, V> {
        Sharded { inner: Journaled::default(), typed: PhantomData }
    }
}

impl<K, V> Clone for Sharded<K, V> {
    /// Shares all entries until one of the two changes them.
    fn clone(&self) -> Sharded<K, V> {
        Sharded { inner: self.inner.clone(), typed: PhantomData }
    }
}

impl<K: Key, V: Serialize + DeserializeOwned> Sharded<K, V> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Sharded<K, V> {
        Sharded::default()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.map().entries()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    ///
    /// # Panics
    /// When it is of another type than `V`, so that the service has been changed without a new version of its own.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        with_key(key, |key| {
            let found = self.inner.map().get(key);
            budget::access(key.len() + found.map_or(0, <[u8]>::len));
            found.map(value_of)
        })
    }

    /// Whether a key has a value.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        with_key(key, |key| {
            budget::access(key.len());
            self.inner.map().get(key).is_some()
        })
    }

    /// Writes an entry, and gives the value that the key had.
    ///
    /// # Panics
    /// As [`Sharded::get`].
    pub fn insert(&mut self, key: impl Borrow<K>, value: impl Borrow<V>) -> Option<V> {
        lend(|bytes| {
            key.borrow().encode_key(bytes);
            let key_bytes = bytes.len();
            let encodes = append(value.borrow(), bytes).is_ok();
            let (key, value) = bytes.split_at(key_bytes);
            write::<V, _>(self.inner.at(key), (value, encodes), |before| before.map(value_of))
        })
    }

    /// Removes an entry, and gives its value.
    ///
    /// # Panics
    /// As [`Sharded::get`].
    pub fn remove(&mut self, key: &K) -> Option<V> {
        with_key(key, |key| {
            let at = self.inner.at(key);
            budget::write(key.len() + at.value().map_or(0, <[u8]>::len));
            let before = value_of(at.value()?);
            at.remove();
            Some(before)
        })
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        budget::write(self.inner.map().segments());
        self.inner.clear();
    }

    /// Changes the value of a key, or writes one: the closure is given what is there.
    ///
    /// # Panics
    /// As [`Sharded::insert`].
    pub fn update(&mut self, key: impl Borrow<K>, change: impl FnOnce(Option<V>) -> V) {
        with_key(key.borrow(), |key| {
            let at = self.inner.at(key);
            budget::access(key.len() + at.value().map_or(0, <[u8]>::len));
            let value = change(at.value().map(value_of));
            lend(|bytes| {
                let encodes = append(&value, bytes).is_ok();
                write::<V, _>(at, (bytes, encodes), |_| ());
            });
        });
    }

    /// All entries, ascending.
    ///
    /// # Panics
    /// As [`Sharded::get`].
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, V)> {
        self.between(Vec::new(), None)
    }

    /// The entries with keys in a range, ascending.
    ///
    /// # Panics
    /// As [`Sharded::get`].
    pub fn range(&self, keys: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (K, V)> {
        // No key begins another: the next possible one behind it is itself with one byte more.
        let behind = |key: &K| {
            let mut bytes = key_of(key);
            bytes.push(0);
            bytes
        };
        let start = match keys.start_bound() {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key_of(key),
            Bound::Excluded(key) => behind(key),
        };
        let end = match keys.end_bound() {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key_of(key)),
        };
        self.between(start, end)
    }

    /// The entries whose keys begin with this: of a map with keys `(A, B)`, those with one `A`.
    ///
    /// # Panics
    /// As [`Sharded::get`].
    pub fn starting_with(&self, first: &impl Key) -> impl DoubleEndedIterator<Item = (K, V)> {
        let start = key_of(first);
        let end = perdura_store::beyond_prefix(&start).map(|end| end.to_vec());
        self.between(start, end)
    }

    fn between(
        &self,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
    ) -> impl DoubleEndedIterator<Item = (K, V)> {
        // Also where there is nothing in it.
        budget::access(0);
        self.inner.map().range_within(start, end).map(|(key, value)| {
            budget::access(key.len() + value.len());
            let mut rest = key;
            let found = K::decode_key(&mut rest).filter(|_| rest.is_empty());
            let found = found.unwrap_or_else(|| panic!("{}", changed::<K>("key")));
            (found, value_of(value))
        })
    }
}

/// What a service's parts are asked, whatever their types ([`crate::Parts`]).
impl<K, V> Sharded<K, V> {
    pub(crate) fn inner(&mut self) -> &mut Journaled {
        &mut self.inner
    }

    pub(crate) fn restore(&mut self, segments: Vec<bytes::Bytes>) -> Result<(), RestoreError> {
        self.inner = Journaled::of(SegmentMap::restore(segments)?);
        Ok(())
    }
}

impl<K, V> fmt::Debug for Sharded<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("len", &self.inner.map().entries()).finish_non_exhaustive()
    }
}

fn key_of(key: &impl Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    key.encode_key(&mut bytes);
    bytes
}

/// Does some work with the bytes of a key.
fn with_key<T>(key: &impl Key, work: impl FnOnce(&[u8]) -> T) -> T {
    lend(|bytes| {
        key.encode_key(bytes);
        work(bytes)
    })
}

/// Writes a value, encoded, where that may be, and gives what `seen` makes of the one that was there. One that does not encode is given as far as
/// it does.
fn write<V: DeserializeOwned, T>(
    at: JournaledAt<'_>,
    (value, encodes): (&[u8], bool),
    seen: impl FnOnce(Option<&[u8]>) -> T,
) -> T {
    let (key_bytes, before) = (at.key().len(), at.value());
    // What it overwrites is kept until the command has ended.
    budget::write(key_bytes + value.len() + before.map_or(0, <[u8]>::len));
    let seen = seen(before);
    if !encodes {
        at.refuse(Misfit::Unencodable);
    } else if key_bytes == 0 || key_bytes > KEY_BYTES || value.len() > VALUE_BYTES {
        at.refuse(Misfit::TooLarge);
    } else if whole::<V>(value).is_none() {
        at.refuse(Misfit::Unreadable);
    } else {
        at.put(value);
    }
    seen
}

fn value_of<V: DeserializeOwned>(bytes: &[u8]) -> V {
    whole(bytes).unwrap_or_else(|| panic!("{}", changed::<V>("value")))
}

fn changed<T>(what: &str) -> String {
    format!(
        "a {what} in the state is no {}: the type was changed without a new version of the service that reads what there was",
        std::any::type_name::<T>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Found;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_a_map_in_the_order_of_its_keys_and_undoes_what_is_refused() {
        let mut map: Sharded<(String, i32), Vec<u64>> = Sharded::new();
        let mut model: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        let mut state = 7u64;
        for round in 0..300u64 {
            map.inner().begin(1);
            let before = model.clone();
            for _ in 0..20 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
                let number = (state >> 40) as i32 % 200 - 100;
                let key = (format!("k{}", number % 7), number);
                if state >> 60 < 4 {
                    map.update(&key, |value| {
                        let mut value = value.unwrap_or_default();
                        value.push(state);
                        value
                    });
                    model.entry(key).or_default().push(state);
                } else if state >> 60 < 10 {
                    let value = vec![state; (state >> 33) as usize % 200];
                    assert_eq!(map.insert(&key, &value), model.insert(key, value));
                } else {
                    assert_eq!(map.remove(&key), model.remove(&key));
                }
            }
            if round % 50 == 3 {
                map.clear();
                model.clear();
                map.insert(("k".to_owned(), 1), vec![round]);
                model.insert(("k".to_owned(), 1), vec![round]);
            }
            if round % 3 == 0 {
                let mut found = Found::default();
                map.inner().take_back(&mut found);
                found.take_dropped();
                *map.inner() = found.take(1);
                model = before;
            }
            map.inner().settle();
            assert!(map.iter().eq(model.clone()));
            assert_eq!(map.len(), model.len() as u64);
            let (low, high) = (("k1".to_owned(), -50), ("k4".to_owned(), 20));
            let expected = |range: (Bound<_>, Bound<_>)| {
                assert!(
                    map.range(range.clone())
                        .eq(model.range(range).map(|(k, v)| (k.clone(), v.clone())))
                );
            };
            expected((Bound::Included(low.clone()), Bound::Excluded(high.clone())));
            expected((Bound::Excluded(low.clone()), Bound::Included(high.clone())));
            expected((Bound::Unbounded, Bound::Included(low)));
            assert_eq!(
                map.iter().next_back(),
                model.last_key_value().map(|(k, v)| (k.clone(), v.clone()))
            );
            assert_eq!(map.contains(&high), model.contains_key(&high));
            assert_eq!(map.get(&high), model.get(&high).cloned());
        }
        let snapshot = map.inner().map().snapshot();
        assert!(snapshot.segments() > 1);
        let segments = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
        let mut restored = Sharded::new();
        restored.restore(segments).unwrap();
        assert!(
            restored.iter().eq(model)
                && restored.inner().map().bytes() == map.inner().map().bytes()
        );
    }

    #[test]
    fn what_is_too_large_is_not_written_and_said() {
        let mut map: Sharded<Vec<u8>, Vec<u8>> = Sharded::new();
        map.insert(vec![1; 4000], vec![1; 1_000_000]);
        assert_eq!(map.inner().misfit(), None);
        map.insert(vec![1; 4100], vec![]);
        assert_eq!(map.inner().misfit(), Some(Misfit::TooLarge));
        map.inner().begin(1);
        map.insert(vec![], vec![1; 1_100_000]);
        assert_eq!((map.inner().misfit(), map.len()), (Some(Misfit::TooLarge), 1));
        map.inner().settle();
    }
}
