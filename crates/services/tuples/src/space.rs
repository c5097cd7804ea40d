//! One space: what is known about it while a command runs, and how tuples go in and out of it.
//!
//! Invariants of the map, which [`crate::restore`] checks as well: each tuple has an entry in the
//! index for each prefix of its fields up to the space's width, and one in the order of leases if it
//! has a lease and is not offered to anybody, or if it is leased; nothing else is there; the counters count the tuples, and the next number is
//! above all of them.

use crate::command::{Entry, SpaceOptions};
use crate::holds::{self, Hold, Holder};
use crate::layout::{
    Counters, NAME, Record, SPACE, SpaceRecord, counters_key, hold_key, index_key, lease_key,
    name_key, number_of, offer_key, record, tuple_key,
};
use crate::limits;
use crate::tuple::prefixes;
use bytes::Bytes;
use perdura_protocol::{Decode, Encode, PublicKey, Time, seeded};
use perdura_store::SegmentMap;
use perdura_store::limits::ENTRY_OVERHEAD_BYTES;

/// A space that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Space {
    record: SpaceRecord,
    pub contents: Contents,
}

/// What of a space is known wherever tuples go in and out of it, or are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contents {
    pub id: u64,
    pub index_fields: u8,
    pub counters: Counters,
}

fn read<T: Decode>(value: &[u8]) -> T {
    let value = T::from_bytes(Bytes::copy_from_slice(value));
    value.expect("what is kept was encoded here, or checked when it was restored")
}

/// Writes what was held against the limit before.
pub(crate) fn put(map: &mut SegmentMap, key: &[u8], value: &[u8]) {
    let done = map.put(key, value, u64::MAX);
    assert!(done.is_ok(), "there is no limit");
}

/// Changes the counters of a space that is not at hand.
pub(crate) fn count(map: &mut SegmentMap, space: u64, change: impl FnOnce(&mut Counters)) {
    let key = counters_key(space);
    let mut counters: Counters = read(map.get(&key).expect("a space has counters"));
    change(&mut counters);
    put(map, &key, &counters.to_bytes());
}

/// Ids of all spaces.
pub(crate) fn ids(map: &SegmentMap) -> impl Iterator<Item = u64> + '_ {
    map.range(&[NAME], Some(&[SPACE])).map(|(_, value)| read::<SpaceRecord>(value).id)
}

/// What an entry of the map counts for.
pub(crate) fn cost(key_bytes: usize, value_bytes: usize) -> u64 {
    (key_bytes + value_bytes + ENTRY_OVERHEAD_BYTES) as u64
}

/// Bytes that a lease adds.
pub(crate) fn lease_cost() -> u64 {
    cost(lease_key(0, 0, 0).len(), 1)
}

/// When a lease that begins now ends; 0 for none.
pub(crate) fn end_of(lease_ms: Option<u64>, now: Time) -> u64 {
    // At the epoch itself, a lease would end at 0: nothing is kept for that.
    lease_ms.map_or(0, |lease_ms| now.0.saturating_add(lease_ms).max(1))
}

impl Space {
    pub(crate) fn new(record: SpaceRecord, first_number: u64) -> Space {
        let counters = Counters {
            next_number: first_number,
            tuples: 0,
            next_waiter: 1,
            waiters: 0,
            deleting: false,
        };
        let (id, index_fields) = (record.id, record.options.index_fields);
        Space { record, contents: Contents { id, index_fields, counters } }
    }

    pub(crate) fn load(map: &SegmentMap, name: &str) -> Option<Space> {
        let record: SpaceRecord = read(map.get(&name_key(name))?);
        let contents = Contents::load(map, record.id, record.options.index_fields);
        Some(Space { record, contents })
    }

    pub(crate) fn creator(&self) -> PublicKey {
        self.record.creator
    }

    pub(crate) fn options(&self) -> &SpaceOptions {
        &self.record.options
    }

    /// Bytes that creating it adds.
    pub(crate) fn creation_cost(&self, name: &str) -> u64 {
        let Contents { id, counters, .. } = self.contents;
        cost(1 + name.len(), self.record.to_bytes().len())
            + cost(counters_key(id).len(), counters.to_bytes().len())
    }

    pub(crate) fn create(&self, map: &mut SegmentMap, name: &str) {
        put(map, &name_key(name), &self.record.to_bytes());
        self.contents.save(map);
    }

    /// Removes the space, which has no tuples any more.
    pub(crate) fn remove(&self, map: &mut SegmentMap, name: &str) {
        map.remove(&counters_key(self.contents.id));
        map.remove(&name_key(name));
    }
}

impl Contents {
    /// Those of a space that is there.
    pub(crate) fn load(map: &SegmentMap, id: u64, index_fields: u8) -> Contents {
        let counters = map.get(&counters_key(id));
        Contents { id, index_fields, counters: read(counters.expect("a space has counters")) }
    }

    /// Writes the counters back.
    pub(crate) fn save(&self, map: &mut SegmentMap) {
        put(map, &counters_key(self.id), &self.counters.to_bytes());
    }

    /// Bytes that inserting `entry` adds.
    pub(crate) fn insertion_cost(&self, entry: &Entry) -> u64 {
        let indexed = prefixes(entry.tuple.raw(), self.index_fields).count() as u64;
        let value = record(entry, 0).len();
        let lease = entry.lease_ms.map_or(0, |_| lease_cost());
        cost(tuple_key(self.id, 0).len(), value)
            + indexed * cost(index_key(self.id, (0, [0; 16]), 0).len(), 0)
            + lease
    }

    /// Inserts a tuple and gives its number.
    pub(crate) fn insert(&mut self, map: &mut SegmentMap, entry: &Entry, now: Time) -> u64 {
        self.insert_record(map, &record(entry, end_of(entry.lease_ms, now)))
    }

    /// The same of a tuple as it is kept.
    pub(crate) fn insert_record(&mut self, map: &mut SegmentMap, value: &[u8]) -> u64 {
        let (id, number) = (self.id, self.counters.next_number);
        let record = Record::of(value);
        put(map, &tuple_key(id, number), value);
        for prefix in prefixes(record.tuple, self.index_fields) {
            put(map, &index_key(id, prefix, number), &[]);
        }
        if record.expires != 0 {
            put(map, &lease_key(record.expires, id, number), &[self.index_fields]);
        }
        self.counters.next_number += 1;
        self.counters.tuples += 1;
        number
    }

    /// Removes a tuple and inserts it again; its new number.
    pub(crate) fn again(&mut self, map: &mut SegmentMap, number: u64) -> u64 {
        let Some(value) = map.get(&tuple_key(self.id, number)).map(<[u8]>::to_vec) else {
            return number;
        };
        self.remove(map, number);
        self.insert_record(map, &value)
    }

    /// Removes a tuple, whoever has it; the bytes that this gives back.
    pub(crate) fn remove(&mut self, map: &mut SegmentMap, number: u64) -> u64 {
        let (id, before) = (self.id, map.bytes());
        let key = tuple_key(id, number);
        let Some(value) = map.get(&key).map(<[u8]>::to_vec) else { return 0 };
        let record = Record::of(&value);
        for prefix in prefixes(record.tuple, self.index_fields) {
            map.remove(&index_key(id, prefix, number));
        }
        let hold = holds::of(map, id, number);
        let due = holds::due(record.expires, hold.as_ref());
        if due != 0 {
            map.remove(&lease_key(due, id, number));
        }
        if let Some(Hold { holder: Holder::Offered { session, number, .. }, .. }) = hold {
            map.remove(&offer_key(session, number));
        }
        map.remove(&hold_key(id, number));
        map.remove(&key);
        self.counters.tuples -= 1;
        if seeded!(NumberGivenBack) && number + 1 == self.counters.next_number {
            self.counters.next_number = number;
        }
        before - map.bytes()
    }

    /// Bytes that a tuple counts for that nobody has.
    pub(crate) fn held_by(&self, map: &SegmentMap, number: u64) -> u64 {
        let Some(value) = map.get(&tuple_key(self.id, number)) else { return 0 };
        let record = Record::of(value);
        let indexed = prefixes(record.tuple, self.index_fields).count() as u64;
        let lease = if record.expires == 0 { 0 } else { lease_cost() };
        cost(tuple_key(self.id, 0).len(), value.len())
            + indexed * cost(index_key(self.id, (0, [0; 16]), 0).len(), 0)
            + lease
    }

    /// Removes the oldest tuples, as many as one command may; those that are offered to somebody stay.
    pub(crate) fn clear(&mut self, map: &mut SegmentMap) {
        let start = tuple_key(self.id, 0);
        let end = tuple_key(self.id, u64::MAX);
        let holds = holds::any(map, self.id);
        let offered = |number: &u64| {
            holds
                && holds::of(map, self.id, *number)
                    .is_some_and(|hold| matches!(hold.holder, Holder::Offered { .. }))
        };
        let oldest: Vec<u64> = map
            .range(&start, Some(&end))
            .map(|(key, _)| number_of(key))
            .filter(|number| !offered(number))
            .take(limits::DELETED_AT_ONCE)
            .collect();
        for number in oldest {
            self.remove(map, number);
        }
    }

    /// Gives a tuple that nobody has another end of its lease; 0 for none.
    pub(crate) fn renew(&self, map: &mut SegmentMap, number: u64, expires: u64) {
        let key = tuple_key(self.id, number);
        let Some(value) = map.get(&key) else { return };
        let before = Record::of(value).expires;
        let mut value = value.to_vec();
        value[..8].copy_from_slice(&expires.to_le_bytes());
        put(map, &key, &value);
        if before != 0 {
            map.remove(&lease_key(before, self.id, number));
        }
        if expires != 0 {
            put(map, &lease_key(expires, self.id, number), &[self.index_fields]);
        }
    }
}
