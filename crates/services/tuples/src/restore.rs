//! Whether a map is one that this service could have written: every entry decodes, and what belongs
//! together is there together (the invariants in [`crate::space`]).

use crate::access::Access;
use crate::command::TupleCommand;
use crate::holds::{self, Hold, Holder};
use crate::layout::{
    COUNTERS, Counters, DEADLINE, HEADER_KEY, HOLD, Header, INDEX, LEASE, Locator, NAME, OFFER,
    Record, SPACE, SpaceRecord, TUPLE, WAITER, WAITING, deadline_key, hold_key, index_key,
    lease_key, leased, locator_of, number_of, offer_key, offered, tuple_key, waiting_key,
};
use crate::limits;
use crate::reply::Purpose;
use crate::tuple::{check_raw, prefixes};
use crate::waiting::Waiter;
use bytes::Bytes;
use perdura_execution::RestoreError;
use perdura_protocol::{Decode, DecodeError, Reader};
use perdura_store::SegmentMap;
use std::collections::BTreeMap;

const LAYOUT: RestoreError = RestoreError::Contradiction("the layout of the tuple spaces");

/// A space as far as its entries were read.
struct Checked {
    index_fields: u8,
    counters: Option<Counters>,
    tuples: u64,
    waiters: u64,
    // Tuples that are offered to somebody.
    offers: u64,
    // Entries of index and leases: those that the tuples ask for, all of which are there, and those
    // that are there.
    expected: u64,
    found: u64,
}

pub(crate) fn check(map: &SegmentMap) -> Result<(), RestoreError> {
    let mut header = None;
    // Deadlines and sessions of waiters.
    let (mut waits, mut offers) = (0, 0);
    let mut spaces: BTreeMap<u64, Checked> = BTreeMap::new();
    for (key, value) in map.range(&[], None) {
        match key.split_first() {
            Some((_, [])) if key == HEADER_KEY => header = Some(decode::<Header>(value)?),
            Some((&NAME, name)) => {
                let header = header.ok_or(LAYOUT)?;
                let record: SpaceRecord = decode(value)?;
                check_name(name, &record)?;
                let checked = Checked {
                    index_fields: record.options.index_fields,
                    counters: None,
                    tuples: 0,
                    waiters: 0,
                    offers: 0,
                    expected: 0,
                    found: 0,
                };
                if record.id >= header.next_space || spaces.insert(record.id, checked).is_some() {
                    return Err(LAYOUT);
                }
            }
            Some((&SPACE, rest)) => {
                let (id, part) = rest.split_first_chunk().ok_or(LAYOUT)?;
                let id = u64::from_be_bytes(*id);
                let space = spaces.get_mut(&id).ok_or(LAYOUT)?;
                check_part(map, id, space, part, key, value)?;
            }
            Some((&DEADLINE, rest)) if rest.len() == 41 && value.is_empty() => waits += 1,
            Some((&WAITING, rest)) if rest.len() == 48 && value.len() == 33 => waits += 1,
            Some((&LEASE, rest)) if rest.len() == 24 => {
                let (id, _) = leased(key).ok_or(LAYOUT)?;
                let space = spaces.get_mut(&id).ok_or(LAYOUT)?;
                if value[..] != [space.index_fields] {
                    return Err(LAYOUT);
                }
                space.found += 1;
            }
            Some((&OFFER, rest)) if rest.len() == 48 && value.len() == 17 => offers += 1,
            _ => return Err(LAYOUT),
        }
    }
    let complete = |space: &Checked| {
        let count = |counters: Counters| (counters.tuples, counters.waiters);
        space.counters.map(count) == Some((space.tuples, space.waiters))
            && space.expected == space.found
    };
    // Each waiter has its two, and each offer its one; there are no others if they are as many.
    let waiters: u64 = spaces.values().map(|space| space.waiters).sum();
    let offered: u64 = spaces.values().map(|space| space.offers).sum();
    let whole = spaces.values().all(complete) && waits == 2 * waiters && offers == offered;
    if whole { Ok(()) } else { Err(LAYOUT) }
}

fn decode<T: Decode>(value: &[u8]) -> Result<T, RestoreError> {
    T::from_bytes(Bytes::copy_from_slice(value)).map_err(malformed)
}

/// The index of the piece is not known any more where maps are read.
fn malformed(reason: DecodeError) -> RestoreError {
    RestoreError::Malformed { index: 0, reason }
}

/// A name and options are those of a command that could have created the space.
fn check_name(name: &[u8], record: &SpaceRecord) -> Result<(), RestoreError> {
    let space = std::str::from_utf8(name).map_err(|_| LAYOUT)?.to_owned();
    let operation = crate::operation::Operation::Create(record.options.clone());
    TupleCommand::On { space, operation }.validate().map_err(|_| LAYOUT)
}

/// No space comes to more: a million tuples in each second for 290,000 years. The next ones have room
/// for their numbers.
const MOST_NUMBER: u64 = u64::MAX >> 1;

fn check_part(
    map: &SegmentMap,
    id: u64,
    space: &mut Checked,
    part: &[u8],
    key: &[u8],
    value: &[u8],
) -> Result<(), RestoreError> {
    match (part, space.counters) {
        (&[COUNTERS], None) => {
            let counters: Counters = decode(value)?;
            if counters.next_number > MOST_NUMBER {
                return Err(LAYOUT);
            }
            space.counters = Some(counters);
            Ok(())
        }
        (&[TUPLE, ref number @ ..], Some(counters)) if number.len() == 8 => {
            let number = number_of(key);
            if number == 0 || number >= counters.next_number {
                return Err(LAYOUT);
            }
            check_record(value).map_err(malformed)?;
            let record = Record::of(value);
            let mut belongs = |entry: &[u8]| {
                space.expected += 1;
                map.get(entry).is_some()
            };
            let hold = map.get(&hold_key(id, number)).map(decode::<Hold>).transpose()?;
            let due = holds::due(record.expires, hold.as_ref());
            let leased = due == 0 || belongs(&lease_key(due, id, number));
            let indexed = prefixes(record.tuple, space.index_fields)
                .all(|prefix| belongs(&index_key(id, prefix, number)));
            space.tuples += 1;
            if leased && indexed { Ok(()) } else { Err(LAYOUT) }
        }
        (&[WAITER, ref rest @ ..], Some(counters)) if rest.len() == 25 => {
            let waiter: Waiter = decode(value)?;
            let (head, number) = (waiter.head, number_of(key));
            let place = waiter.place(id, space.index_fields, number);
            let held = map.get(&waiting_key(head.session, head.number));
            let located = |held: &Locator| *held == place && locator_of(key) == Some(place);
            let found = held.and_then(|held| held[..].try_into().ok()).is_some_and(|h| located(&h));
            let timed = map.get(&deadline_key(head.deadline, &place)).is_some();
            space.waiters += 1;
            let numbered = number != 0 && number < counters.next_waiter;
            if found && timed && numbered { Ok(()) } else { Err(LAYOUT) }
        }
        (&[HOLD, ref number @ ..], Some(_)) if number.len() == 8 => {
            let number = number_of(key);
            let hold: Hold = decode(value)?;
            let is_there = map.get(&tuple_key(id, number)).is_some();
            let stands = match hold.holder {
                Holder::Offered { session, number: command, .. } => {
                    space.offers += 1;
                    let value = offered(id, number, space.index_fields);
                    map.get(&offer_key(session, command)) == Some(&value[..])
                }
                Holder::Nobody | Holder::Leased { .. } => true,
            };
            if is_there && stands && is_sound(&hold) { Ok(()) } else { Err(LAYOUT) }
        }
        (&[INDEX, ref rest @ ..], Some(_)) if rest.len() == 25 && value.is_empty() => {
            space.found += 1;
            Ok(())
        }
        _ => Err(LAYOUT),
    }
}

/// Whether a tuple may have been handed out like this.
fn is_sound(hold: &Hold) -> bool {
    let fits = match hold.holder {
        Holder::Nobody => hold.token > 0,
        Holder::Offered { purpose, lease_ms, .. } => match purpose {
            Purpose::Read => false,
            Purpose::Take => lease_ms == 0,
            Purpose::Lease => (1..=limits::LEASE_MS).contains(&lease_ms) && hold.token > 0,
            Purpose::Claim => lease_ms <= limits::LEASE_MS,
        },
        Holder::Leased { until, .. } => until > 0 && hold.leases > 0,
    };
    fits && hold.leases <= hold.token && hold.token <= MOST_NUMBER
}

fn check_record(value: &[u8]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(Bytes::copy_from_slice(value));
    u64::decode(&mut reader)?;
    Access::decode(&mut reader)?;
    Access::decode(&mut reader)?;
    check_raw(&reader.take(reader.remaining())?)
}
