//! How the spaces stand in the map. All numbers in keys are big-endian, so that they ascend.
//!
//! | key | value |
//! |---|---|
//! | 0 | the header: next space's id, and the first number of a tuple in it |
//! | 1, name | the space: id, creator, options |
//! | 2, id, 0 | its counters |
//! | 2, id, 1, number | a tuple: end of its lease (0: none), access lists, fields |
//! | 2, id, 2, prefix length, hash of the prefix, number | nothing: the index |
//! | 2, id, 4, prefix length, hash of the prefix, waiter | a command that waits; its prefix is that of its template |
//! | 2, id, 4, 128 + key length, hash of the key, waiter | a claim that waits; its key is the first fields of its tuple |
//! | 2, id, 5, number | who has the tuple of this number, and how often it was leased: a [`crate::holds::Hold`] |
//! | 3, deadline, id, prefix length, hash, waiter | nothing: the order in which waits end |
//! | 4, client, session's nonce, number | the last four parts of the key above: where the command waits |
//! | 5, end of the lease, id, number | how many fields the space indexes, a byte: the order in which leases end |
//! | 6, client, session's nonce, number | id, tuple's number, fields that the space indexes: what the command is offered |
//!
//! The lease in the order of leases is the holder's, for a tuple that is leased; a tuple that is offered has none there; for all
//! others it is the tuple's own. The two kinds of waiters, the holders, 6 and 7 come with version 2 of the rules alone, and version 3 has the
//! same entries.
//!
//! Ids of spaces are never used again.

use crate::access::AccessRef;
use crate::command::{Entry, SpaceOptions};
use crate::field::take_array;
use crate::tuple::PrefixHash;
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Reader, SessionId, Time};

pub(crate) const HEADER_KEY: &[u8] = &[0];

pub(crate) const NAME: u8 = 1;
pub(crate) const SPACE: u8 = 2;
pub(crate) const DEADLINE: u8 = 3;
pub(crate) const WAITING: u8 = 4;
pub(crate) const LEASE: u8 = 5;
pub(crate) const OFFER: u8 = 6;

pub(crate) const COUNTERS: u8 = 0;
pub(crate) const TUPLE: u8 = 1;
pub(crate) const INDEX: u8 = 2;
pub(crate) const WAITER: u8 = 4;
pub(crate) const HOLD: u8 = 5;

/// What the length of a claim's key is marked with where those who wait for tuples have that of a prefix.
pub(crate) const CLAIM: u8 = 0x80;

pub(crate) fn name_key(name: &str) -> Vec<u8> {
    let mut key = vec![NAME];
    key.extend_from_slice(name.as_bytes());
    key
}

fn space_key(space: u64, part: u8, length: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + length);
    key.push(SPACE);
    key.extend_from_slice(&space.to_be_bytes());
    key.push(part);
    key
}

pub(crate) fn counters_key(space: u64) -> Vec<u8> {
    space_key(space, COUNTERS, 0)
}

pub(crate) fn tuple_key(space: u64, number: u64) -> Vec<u8> {
    let mut key = space_key(space, TUPLE, 8);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn hold_key(space: u64, number: u64) -> Vec<u8> {
    let mut key = space_key(space, HOLD, 8);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn index_key(space: u64, (length, hash): (u8, PrefixHash), number: u64) -> Vec<u8> {
    let mut key = space_key(space, INDEX, 25);
    key.push(length);
    key.extend_from_slice(&hash);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn lease_key(expires: u64, space: u64, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(25);
    key.push(LEASE);
    key.extend_from_slice(&expires.to_be_bytes());
    key.extend_from_slice(&space.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The time in a key of an order by time.
pub(crate) fn time_of(key: &[u8]) -> Option<u64> {
    key.get(1..)?.first_chunk().map(|time| u64::from_be_bytes(*time))
}

/// The space and number at the end of a key in the order of leases, or of those that were confirmed.
pub(crate) fn leased(key: &[u8]) -> Option<(u64, u64)> {
    let space = key.get(9..17)?.first_chunk()?;
    Some((u64::from_be_bytes(*space), number_of(key)))
}

/// Where a command waits: the space's id, the length and hash of its template's prefix (zeros where
/// the index does not serve it), and its own number among the waiters of the space.
pub(crate) type Locator = [u8; 33];

pub(crate) fn locator(space: u64, prefix: Option<(u8, PrefixHash)>, waiter: u64) -> Locator {
    let (length, hash) = prefix.unwrap_or_default();
    let mut locator = [0; 33];
    locator[..8].copy_from_slice(&space.to_be_bytes());
    locator[8] = length;
    locator[9..25].copy_from_slice(&hash);
    locator[25..].copy_from_slice(&waiter.to_be_bytes());
    locator
}

/// The space in a locator.
pub(crate) fn space_of(locator: &Locator) -> u64 {
    locator.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

pub(crate) fn waiter_key(locator: &Locator) -> Vec<u8> {
    let mut key = space_key(space_of(locator), WAITER, 25);
    key.extend_from_slice(&locator[8..]);
    key
}

/// The locator of a waiter's key.
pub(crate) fn locator_of(key: &[u8]) -> Option<Locator> {
    let mut locator = [0; 33];
    locator[..8].copy_from_slice(key.get(1..9)?);
    locator[8..].copy_from_slice(key.get(10..35)?);
    Some(locator)
}

/// From the first waiter's key of a space to behind the last one's.
pub(crate) fn waiter_range(space: u64) -> (Vec<u8>, Vec<u8>) {
    (space_key(space, WAITER, 0), space_key(space, WAITER + 1, 0))
}

pub(crate) fn deadline_key(deadline: u64, locator: &Locator) -> Vec<u8> {
    let mut key = Vec::with_capacity(42);
    key.push(DEADLINE);
    key.extend_from_slice(&deadline.to_be_bytes());
    key.extend_from_slice(locator);
    key
}

/// From the first claim's key of a space to behind the last one's.
pub(crate) fn claim_range(space: u64) -> (Vec<u8>, Vec<u8>) {
    let mut start = space_key(space, WAITER, 1);
    start.push(CLAIM);
    (start, space_key(space, WAITER + 1, 0))
}

/// From the first key of who has a tuple of a space to behind the last one's.
pub(crate) fn hold_range(space: u64) -> (Vec<u8>, Vec<u8>) {
    (space_key(space, HOLD, 0), space_key(space, HOLD + 1, 0))
}

pub(crate) fn waiting_key(session: SessionId, number: u64) -> Vec<u8> {
    numbered_key(WAITING, session, number)
}

/// From the first key of a client's commands that wait, wherever that is, to behind the last one's.
pub(crate) fn waiting_range(client: PublicKey) -> (Vec<u8>, Vec<u8>) {
    let first = SessionId { client, nonce: 0 };
    let mut end = waiting_key(SessionId { client, nonce: u64::MAX }, u64::MAX);
    end.push(0);
    (waiting_key(first, 0), end)
}

pub(crate) fn offer_key(session: SessionId, number: u64) -> Vec<u8> {
    numbered_key(OFFER, session, number)
}

fn numbered_key(part: u8, session: SessionId, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(49);
    key.push(part);
    key.extend_from_slice(&session.client.0);
    key.extend_from_slice(&session.nonce.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number at the end of a key.
pub(crate) fn number_of(key: &[u8]) -> u64 {
    key.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// What is known about all spaces together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub next_space: u64,
    // Above every number that a deleted space has used, so that a space of the same name has larger
    // ones.
    pub first_number: u64,
}

impl Header {
    /// Before the first space was created; not written then.
    pub(crate) const INITIAL: Header = Header { next_space: 1, first_number: 1 };
}

impl Encode for Header {
    fn encode(&self, out: &mut Vec<u8>) {
        self.next_space.encode(out);
        self.first_number.encode(out);
    }
}

impl Decode for Header {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Header { next_space: Decode::decode(reader)?, first_number: Decode::decode(reader)? })
    }
}

/// What of a space never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SpaceRecord {
    pub id: u64,
    pub creator: PublicKey,
    pub options: SpaceOptions,
}

impl Encode for SpaceRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.creator.encode(out);
        self.options.encode(out);
    }
}

impl Decode for SpaceRecord {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(SpaceRecord {
            id: Decode::decode(reader)?,
            creator: Decode::decode(reader)?,
            options: Decode::decode(reader)?,
        })
    }
}

/// What of a space changes with its tuples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counters {
    pub next_number: u64,
    pub tuples: u64,
    pub next_waiter: u64,
    pub waiters: u64,
    pub deleting: bool,
}

impl Encode for Counters {
    fn encode(&self, out: &mut Vec<u8>) {
        self.next_number.encode(out);
        self.tuples.encode(out);
        self.next_waiter.encode(out);
        self.waiters.encode(out);
        self.deleting.encode(out);
    }
}

impl Decode for Counters {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Counters {
            next_number: Decode::decode(reader)?,
            tuples: Decode::decode(reader)?,
            next_waiter: Decode::decode(reader)?,
            waiters: Decode::decode(reader)?,
            deleting: Decode::decode(reader)?,
        })
    }
}

/// A tuple where it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    /// 0 without a lease.
    pub expires: u64,
    pub read: AccessRef<'a>,
    pub take: AccessRef<'a>,
    /// The fields, encoded.
    pub tuple: &'a [u8],
}

impl<'a> Record<'a> {
    pub(crate) fn read(mut input: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let expires = u64::from_le_bytes(take_array(&mut input)?);
        let read = AccessRef::read(&mut input)?;
        let take = AccessRef::read(&mut input)?;
        Ok(Record { expires, read, take, tuple: input })
    }

    /// The same of a value that this service wrote, or checked when it was restored.
    pub(crate) fn of(value: &'a [u8]) -> Record<'a> {
        Record::read(value).expect("a tuple was checked before it was kept")
    }

    pub(crate) fn expires(&self) -> Option<Time> {
        (self.expires != 0).then_some(Time(self.expires))
    }
}

/// What stands under a command's key among the offers: the space, the tuple's number, and how many fields the space indexes.
pub(crate) fn offered(space: u64, number: u64, index_fields: u8) -> [u8; 17] {
    let mut value = [index_fields; 17];
    value[..8].copy_from_slice(&space.to_be_bytes());
    value[8..16].copy_from_slice(&number.to_be_bytes());
    value
}

/// The same read back.
pub(crate) fn read_offered(value: &[u8]) -> Option<(u64, u64, u8)> {
    let value: &[u8; 17] = value.try_into().ok()?;
    let (space, rest) = value.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*space), u64::from_be_bytes(*number), *rest.first()?))
}

/// The value under a tuple's key.
pub(crate) fn record(entry: &Entry, expires: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + entry.tuple.bytes());
    expires.encode(&mut out);
    entry.read.encode(&mut out);
    entry.take.encode(&mut out);
    out.extend_from_slice(entry.tuple.raw());
    out
}
