//! Commands that wait for a tuple: in order, until a deadline of agreed time, and without polling.
//!
//! Whoever inserts a tuple serves those who wait for it, at once and in the order in which they
//! began to wait: each who reads gets a copy, up to the first who takes it. So nobody waits while a
//! match for it is there.
//!
//! Invariants, which [`crate::restore`] checks as well: each waiter has an entry in the order of
//! deadlines and one under its session and number, and nothing else is there; the counters count
//! the waiters.

use crate::layout::{
    DEADLINE, Locator, Record, deadline_key, locator, locator_of, number_of, space_of, tuple_key,
    waiter_key, waiter_range, waiting_key,
};
use crate::limits;
use crate::reply::{Found, TupleReply};
use crate::search::Purpose;
use crate::space::{Space, cost, count, put};
use crate::tuple::{Template, Tuple, matches_encoded, prefixes, split};
use bytes::Bytes;
use perdura_execution::Release;
use perdura_protocol::{Decode, DecodeError, Encode, Reader, SessionId, Time, seeded};
use perdura_store::SegmentMap;

/// A command that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub head: Head,
    /// Of at most [`limits::WAITING_TEMPLATE_BYTES`].
    pub template: Template,
}

/// What of a waiter stands before its template, which is not decoded again where it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    pub purpose: Purpose,
    /// From this agreed time on it waits no longer.
    pub deadline: u64,
}

/// Bytes of a [`Head`]: a session has 40.
const HEAD_BYTES: usize = 40 + 8 + 1 + 8;

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        self.number.encode(out);
        (self.purpose == Purpose::Take).encode(out);
        self.deadline.encode(out);
    }
}

impl Decode for Head {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Head {
            session: Decode::decode(reader)?,
            number: Decode::decode(reader)?,
            purpose: if bool::decode(reader)? { Purpose::Take } else { Purpose::Read },
            deadline: Decode::decode(reader)?,
        })
    }
}

impl Encode for Waiter {
    fn encode(&self, out: &mut Vec<u8>) {
        self.head.encode(out);
        self.template.encode(out);
    }
}

impl Decode for Waiter {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let waiter = Waiter { head: Decode::decode(reader)?, template: Decode::decode(reader)? };
        match waiter.template.bytes() {
            ..=limits::WAITING_TEMPLATE_BYTES => Ok(waiter),
            _ => Err(DecodeError::NotCanonical("length of a template that waits")),
        }
    }
}

impl Head {
    fn release(self, result: Result<Bytes, String>) -> Release {
        Release { session: self.session, number: self.number, result, offer: false }
    }
}

/// A waiter's head, and its template as it is encoded.
fn load<'a>(map: &'a SegmentMap, locator: &Locator) -> (Head, &'a [u8]) {
    let value = map.get(&waiter_key(locator)).expect("who waits is there");
    let (head, template) = value.split_at(HEAD_BYTES);
    let head = Head::from_bytes(Bytes::copy_from_slice(head));
    (head.expect("a waiter was encoded here, or checked when it was restored"), template)
}

/// Lets a command wait for a tuple that is not there.
pub(crate) fn wait(
    map: &mut SegmentMap,
    space: &mut Space,
    waiter: &Waiter,
    check_room: impl FnOnce(&SegmentMap, u64) -> Result<(), String>,
) -> Result<(), String> {
    if space.counters.waiters >= limits::WAITERS_PER_SPACE {
        return Err(format!(
            "{} commands wait for tuples of this space, the most allowed",
            limits::WAITERS_PER_SPACE
        ));
    }
    let head = waiter.head;
    let own = waiting_key(head.session, 0);
    let end = waiting_key(head.session, u64::MAX);
    if map.range(&own, Some(&end)).count() >= limits::WAITERS_PER_SESSION {
        return Err(format!(
            "{} commands of this session wait for tuples, the most allowed; use another session",
            limits::WAITERS_PER_SESSION
        ));
    }
    let prefix = waiter.template.prefix(space.options().index_fields);
    let locator = locator(space.id(), prefix, space.counters.next_waiter);
    let value = waiter.to_bytes();
    let deadline = deadline_key(head.deadline, &locator);
    check_room(
        map,
        cost(waiter_key(&locator).len(), value.len())
            + cost(deadline.len(), 0)
            + cost(own.len(), locator.len()),
    )?;
    put(map, &waiter_key(&locator), &value);
    put(map, &deadline, &[]);
    put(map, &waiting_key(head.session, head.number), &locator);
    space.counters.next_waiter += 1;
    space.counters.waiters += 1;
    Ok(())
}

/// Removes a waiter; who takes it off the counters is the caller.
fn remove(map: &mut SegmentMap, locator: &Locator) -> Head {
    let (head, _) = load(map, locator);
    map.remove(&waiter_key(locator));
    map.remove(&deadline_key(head.deadline, locator));
    map.remove(&waiting_key(head.session, head.number));
    head
}

/// The same of a waiter in whatever space.
fn remove_anywhere(map: &mut SegmentMap, locator: &Locator) -> Head {
    let head = remove(map, locator);
    count(map, space_of(locator), |counters| counters.waiters -= 1);
    head
}

/// Serves those who wait for a tuple that was just inserted.
pub(crate) fn serve(
    map: &mut SegmentMap,
    space: &mut Space,
    number: u64,
    released: &mut Vec<Release>,
) {
    if space.counters.waiters == 0 {
        return;
    }
    let Some(value) = map.get(&tuple_key(space.id(), number)).map(<[u8]>::to_vec) else { return };
    let record = Record::of(&value);
    let found = Found { number, expires: record.expires(), tuple: Tuple::of_raw(record.tuple) };
    // Replies share their memory.
    let reply = TupleReply::Found(Some(found)).to_bytes();
    let fields = split(record.tuple);
    for locator in candidates(map, space, &record) {
        let (head, template) = load(map, &locator);
        let admitted = match head.purpose {
            Purpose::Read => record.read.admits(head.session.client),
            Purpose::Take => record.take.admits(head.session.client),
        };
        if !admitted || !matches_encoded(template, &fields) {
            continue;
        }
        space.counters.waiters -= 1;
        released.push(remove(map, &locator).release(Ok(reply.clone())));
        if head.purpose == Purpose::Take {
            space.take(map, number);
            return;
        }
    }
}

/// Those who may wait for a tuple, in the order in which they began to.
fn candidates(map: &SegmentMap, space: &Space, record: &Record<'_>) -> Vec<Locator> {
    let mut found: Vec<(u64, Locator)> = Vec::new();
    let indexed = prefixes(record.tuple, space.options().index_fields).map(Some);
    for prefix in std::iter::once(None).chain(indexed) {
        let start = waiter_key(&locator(space.id(), prefix, 0));
        let end = waiter_key(&locator(space.id(), prefix, u64::MAX));
        for (key, _) in map.range(&start, Some(&end)) {
            let waiter = number_of(key);
            found.push((waiter, locator(space.id(), prefix, waiter)));
        }
    }
    found.sort_unstable();
    if seeded!(NewestWaiterFirst) {
        found.reverse();
    }
    found.into_iter().map(|(_, locator)| locator).collect()
}

/// The deadlines that have passed at `now`: their commands find nothing.
pub(crate) fn end_waits(map: &mut SegmentMap, now: Time, released: &mut Vec<Release>) {
    let end = deadline_key(now.0.saturating_add((!seeded!(WaitEndsLate)).into()), &[0; 33]);
    let passed: Vec<Locator> =
        map.range(&[DEADLINE], Some(&end)).filter_map(|(key, _)| located(key)).collect();
    let nothing = TupleReply::Found(None).to_bytes();
    for locator in passed {
        released.push(remove_anywhere(map, &locator).release(Ok(nothing.clone())));
    }
}

/// The locator at the end of a key in the order of deadlines.
fn located(key: &[u8]) -> Option<Locator> {
    key.last_chunk().copied()
}

/// The commands that wait for tuples of a space, in the order of their keys.
pub(crate) fn of_space(map: &SegmentMap, space: u64) -> Vec<Head> {
    let (start, end) = waiter_range(space);
    let locators = map.range(&start, Some(&end)).filter_map(|(key, _)| locator_of(key));
    locators.map(|locator| load(map, &locator).0).collect()
}

/// The first deadline.
pub(crate) fn due(map: &SegmentMap) -> Option<Time> {
    let (key, _) = map.range(&[DEADLINE], Some(&[DEADLINE + 1])).next()?;
    let deadline = key.get(1..)?.first_chunk()?;
    Some(Time(u64::from_be_bytes(*deadline)))
}

/// A command waits no longer, and nobody is told.
pub(crate) fn forget(map: &mut SegmentMap, session: SessionId, number: u64) {
    let found = map.get(&waiting_key(session, number)).and_then(|value| value[..].try_into().ok());
    if let Some(locator) = found {
        remove_anywhere(map, &locator);
    }
}

/// The space goes: nothing will come to those who wait.
pub(crate) fn refuse_all(
    map: &mut SegmentMap,
    space: &mut Space,
    text: &str,
    released: &mut Vec<Release>,
) {
    let (start, end) = waiter_range(space.id());
    let mut all: Vec<(u64, Locator)> = map
        .range(&start, Some(&end))
        .filter_map(|(key, _)| Some((number_of(key), locator_of(key)?)))
        .collect();
    all.sort_unstable();
    for (_, locator) in all {
        space.counters.waiters -= 1;
        released.push(remove(map, &locator).release(Err(text.to_owned())));
    }
}
