//! Commands that wait for a tuple, or until there is none: in order, until a deadline of agreed time, and without polling.
//!
//! Whoever inserts a tuple, or gives one back, serves those who wait for it, at once and in the order in which they
//! began to wait ([`crate::serve`]), and whoever removes one those who wait until it is gone ([`crate::claims`]). So nobody waits while a
//! match for it is there.
//!
//! From version 3 of the rules on no client key fills a space with its waits: it may have no more than it leaves to others.
//!
//! Invariants, which [`crate::restore`] checks as well: each waiter has an entry in the order of
//! deadlines and one under its session and number, and nothing else is there; the counters count
//! the waiters.

use crate::claims;
use crate::command::Entry;
use crate::layout::{
    DEADLINE, Locator, Record, deadline_key, locator, locator_of, number_of, space_of, time_of,
    waiter_key, waiter_range, waiting_key, waiting_range,
};
use crate::limits;
use crate::operate::{Caller, Spaces};
use crate::operation::check_claim;
use crate::reply::{Leased, Purpose, TupleReply};
use crate::space::{Contents, cost, count, put};
use crate::steps::PASSED_STEP;
use crate::tuple::{Template, prefixes};
use bytes::Bytes;
use perdura_execution::{Meter, Release, TooCostly};
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Reader, SessionId, Time, seeded};
use perdura_store::SegmentMap;

/// A command that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub head: Head,
    pub sought: Sought,
}

/// What it waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sought {
    /// To read or take a match; of at most [`limits::WAITING_TEMPLATE_BYTES`], as is that of a lease.
    Template(Template),
    Lease {
        template: Template,
        lease_ms: u64,
    },
    /// That no tuple has this key.
    Claim {
        key: u8,
        entry: Entry,
    },
}

/// What of a waiter stands before what it waits for, which is not decoded again where it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    pub purpose: Purpose,
    /// From this time on the clock it waits no longer.
    pub deadline: u64,
}

/// Bytes of a [`Head`] before its purpose: a session has 40.
const PURPOSE_AT: usize = 40 + 8;

/// Bytes of a [`Head`].
const HEAD_BYTES: usize = PURPOSE_AT + 1 + 8;

/// What decides whether something is for a waiter, where that is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Glance<'a> {
    pub client: PublicKey,
    pub purpose: Purpose,
    /// As it is encoded; of a claim, something else.
    pub template: &'a [u8],
}

impl<'a> Glance<'a> {
    pub(crate) fn of(value: &'a [u8]) -> Glance<'a> {
        let glance = || {
            let client = PublicKey(*value.first_chunk()?);
            let purpose = Purpose::of_tag(*value.get(PURPOSE_AT)?).ok()?;
            Some(Glance { client, purpose, template: value.get(HEAD_BYTES..)? })
        };
        glance().expect("a waiter was encoded here, or checked when it was restored")
    }
}

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        self.number.encode(out);
        self.purpose.encode(out);
        self.deadline.encode(out);
    }
}

impl Decode for Head {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Head {
            session: Decode::decode(reader)?,
            number: Decode::decode(reader)?,
            purpose: Decode::decode(reader)?,
            deadline: Decode::decode(reader)?,
        })
    }
}

impl Encode for Waiter {
    fn encode(&self, out: &mut Vec<u8>) {
        self.head.encode(out);
        match &self.sought {
            Sought::Template(template) => template.encode(out),
            Sought::Lease { template, lease_ms } => {
                template.encode(out);
                lease_ms.encode(out);
            }
            Sought::Claim { key, entry } => {
                key.encode(out);
                entry.encode(out);
            }
        }
    }
}

impl Decode for Waiter {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let head: Head = Decode::decode(reader)?;
        let sought = match head.purpose {
            Purpose::Read | Purpose::Take => Sought::Template(Decode::decode(reader)?),
            Purpose::Lease => Sought::Lease {
                template: Decode::decode(reader)?,
                lease_ms: Decode::decode(reader)?,
            },
            Purpose::Claim => {
                Sought::Claim { key: Decode::decode(reader)?, entry: Decode::decode(reader)? }
            }
        };
        let fits = match &sought {
            Sought::Template(template) => template.bytes() <= limits::WAITING_TEMPLATE_BYTES,
            Sought::Lease { template, lease_ms } => {
                template.bytes() <= limits::WAITING_TEMPLATE_BYTES
                    && (1..=limits::LEASE_MS).contains(lease_ms)
            }
            Sought::Claim { key, entry } => check_claim(*key, entry, true).is_ok(),
        };
        if fits {
            Ok(Waiter { head, sought })
        } else {
            Err(DecodeError::NotCanonical("what a command waits for"))
        }
    }
}

impl Waiter {
    /// Where it waits in a space that indexes so many fields, behind so many others.
    pub(crate) fn place(&self, space: u64, index_fields: u8, waiter: u64) -> Locator {
        match &self.sought {
            Sought::Template(template) | Sought::Lease { template, .. } => {
                locator(space, template.prefix(index_fields), waiter)
            }
            Sought::Claim { key, entry } => claims::place(space, *key, entry, waiter),
        }
    }

    /// What it waits for; of a claim, what must not be there.
    pub(crate) fn template(&self) -> Template {
        match &self.sought {
            Sought::Template(template) | Sought::Lease { template, .. } => template.clone(),
            Sought::Claim { key, entry } => Template::of_key(&entry.tuple, *key),
        }
    }
}

impl Head {
    pub(crate) fn release(self, result: Result<Bytes, String>, offer: bool) -> Release {
        Release { session: self.session, number: self.number, result, offer }
    }

    /// The reply when its wait is over.
    pub(crate) fn nothing(self) -> Bytes {
        match self.purpose {
            Purpose::Read | Purpose::Take | Purpose::Claim => TupleReply::Found(None),
            Purpose::Lease => TupleReply::Leased(None::<Leased>),
        }
        .to_bytes()
    }
}

/// The number of a waiter in its place.
pub(crate) fn number_in(place: &Locator) -> u64 {
    number_of(place)
}

/// A waiter, decoded.
pub(crate) fn whole(map: &SegmentMap, place: &Locator) -> Waiter {
    let value = map.get(&waiter_key(place)).expect("who waits is there");
    let waiter = Waiter::from_bytes(Bytes::copy_from_slice(value));
    waiter.expect("a waiter was encoded here, or checked when it was restored")
}

/// Bytes of a waiter as it is kept.
pub(crate) fn value_bytes(map: &SegmentMap, place: &Locator) -> usize {
    map.get(&waiter_key(place)).map_or(0, <[u8]>::len)
}

/// Bytes that a waiter counts for.
pub(crate) fn bytes_of(map: &SegmentMap, place: &Locator) -> u64 {
    cost_of(place, value_bytes(map, place))
}

fn cost_of(place: &Locator, value_bytes: usize) -> u64 {
    let waiting = waiting_key(SessionId::LAST, 0);
    cost(waiter_key(place).len(), value_bytes)
        + cost(deadline_key(0, place).len(), 0)
        + cost(waiting.len(), place.len())
}

/// A waiter's head.
pub(crate) fn head(map: &SegmentMap, locator: &Locator) -> Head {
    let value = map.get(&waiter_key(locator)).expect("who waits is there");
    let head = Head::from_bytes(Bytes::copy_from_slice(&value[..HEAD_BYTES]));
    head.expect("a waiter was encoded here, or checked when it was restored")
}

impl Spaces {
    /// Lets a command wait for what is not there.
    pub(crate) fn wait(
        &mut self,
        caller: Caller<'_>,
        space: &mut Contents,
        sought: Sought,
        wait_ms: u64,
        purpose: Purpose,
    ) -> Result<Option<TupleReply>, String> {
        if space.counters.waiters >= limits::WAITERS_PER_SPACE {
            return Err(format!(
                "{} commands wait for tuples of this space, the most allowed",
                limits::WAITERS_PER_SPACE
            ));
        }
        let Caller { session, number, now, .. } = caller;
        if self.version > 2 {
            self.check_share(caller, space)?;
        }
        if self.version == 1 {
            let (own, end) = (waiting_key(session, 0), waiting_key(session, u64::MAX));
            if self.map.range(&own, Some(&end)).count() >= limits::WAITERS_PER_SESSION {
                return Err(format!(
                    "{} commands of this session wait for tuples, the most allowed; use another session",
                    limits::WAITERS_PER_SESSION
                ));
            }
        }
        let deadline = now.clock.0.saturating_add(wait_ms);
        let waiter = Waiter { head: Head { session, number, purpose, deadline }, sought };
        let place = waiter.place(space.id, space.index_fields, space.counters.next_waiter);
        let value = waiter.to_bytes();
        self.check_room(cost_of(&place, value.len()), 0)?;
        let map = &mut self.map;
        put(map, &waiter_key(&place), &value);
        put(map, &deadline_key(deadline, &place), &[]);
        put(map, &waiting_key(session, number), &place);
        space.counters.next_waiter += 1;
        space.counters.waiters += 1;
        Ok(None)
    }

    /// What a client key would have waiting in a space is no more than what would then be left: one key has half of it at most, and
    /// something is left for others as long as they wait with less.
    fn check_share(&self, caller: Caller<'_>, space: &Contents) -> Result<(), String> {
        let left = limits::WAITERS_PER_SPACE - space.counters.waiters - 1;
        // It has no more of them than wait here in all.
        if space.counters.waiters < left {
            return Ok(());
        }
        let own = self.waits_of(caller.client(), space, caller.meter)?;
        if own < left {
            return Ok(());
        }
        Err(format!(
            "{own} commands of this client key wait in this space, where {} may wait in all, and only {} more can: \
             a key may have no more waiting than it leaves to others; wait with fewer at once, or in several spaces",
            limits::WAITERS_PER_SPACE,
            left + 1
        ))
    }

    /// Commands of a client that wait in a space. They are counted among all of the client's and among all of the space's at once,
    /// until either come to their end.
    fn waits_of(
        &self,
        client: PublicKey,
        space: &Contents,
        meter: &Meter,
    ) -> Result<u64, TooCostly> {
        let (start, end) = waiting_range(client);
        let mut of_client = self.map.range(&start, Some(&end));
        let (start, end) = waiter_range(space.id);
        let mut of_space = self.map.range(&start, Some(&end));
        let (mut in_space, mut by_client) = (0, 0);
        loop {
            meter.charge(2 * PASSED_STEP)?;
            let Some((_, place)) = of_client.next() else { return Ok(in_space) };
            in_space += u64::from(place.starts_with(&space.id.to_be_bytes()));
            let Some((_, waiter)) = of_space.next() else { return Ok(by_client) };
            by_client += u64::from(Glance::of(waiter).client == client);
        }
    }
}

/// Removes a waiter; who takes it off the counters is the caller.
pub(crate) fn remove(map: &mut SegmentMap, locator: &Locator) -> Head {
    let head = head(map, locator);
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

/// Where those stand who may wait for a tuple: each from a key to another one.
pub(crate) fn ranges_for(space: &Contents, record: &Record<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let indexed = prefixes(record.tuple, space.index_fields).map(Some);
    let key = |prefix, waiter| waiter_key(&locator(space.id, prefix, waiter));
    let range = |prefix| (key(prefix, 0), key(prefix, u64::MAX));
    std::iter::once(None).chain(indexed).map(range).collect()
}

/// The waiters of these ranges, each with its key, in the order in which they began to wait. None is looked at before its turn.
pub(crate) fn in_turn<'a>(
    map: &'a SegmentMap,
    ranges: &'a [(Vec<u8>, Vec<u8>)],
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let ranges = ranges.iter().map(|(start, end)| map.range(start, Some(end)));
    let with_first = |mut range| Some((advance(&mut range)?, range));
    let mut firsts: Vec<_> = ranges.filter_map(with_first).collect();
    std::iter::from_fn(move || {
        let turn = |at: &usize| {
            let number = number_of(firsts[*at].0.0);
            if seeded!(NewestWaiterFirst) { u64::MAX - number } else { number }
        };
        let at = (0..firsts.len()).min_by_key(turn)?;
        let (first, range) = &mut firsts[at];
        match advance(range) {
            Some(next) => Some(std::mem::replace(first, next)),
            None => Some(firsts.swap_remove(at).0),
        }
    })
}

fn advance<T>(range: &mut impl DoubleEndedIterator<Item = T>) -> Option<T> {
    if seeded!(NewestWaiterFirst) { range.next_back() } else { range.next() }
}

/// Whether anybody waits in a space to read.
pub(crate) fn any_reader(map: &SegmentMap, space: u64, meter: &Meter) -> bool {
    let (start, end) = waiter_range(space);
    map.range(&start, Some(&end)).any(|(_, value)| {
        // Bounded by what may wait in a space.
        let _ = meter.charge(PASSED_STEP);
        Glance::of(value).purpose == Purpose::Read
    })
}

/// The deadlines that have passed at `now`: their commands find nothing.
pub(crate) fn end_waits(map: &mut SegmentMap, now: Time, released: &mut Vec<Release>) {
    let end = deadline_key(now.0.saturating_add((!seeded!(WaitEndsLate)).into()), &[0; 33]);
    let passed: Vec<Locator> =
        map.range(&[DEADLINE], Some(&end)).filter_map(|(key, _)| located(key)).collect();
    for locator in passed {
        let head = remove_anywhere(map, &locator);
        released.push(head.release(Ok(head.nothing()), false));
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
    locators.map(|locator| head(map, &locator)).collect()
}

/// The first deadline.
pub(crate) fn due(map: &SegmentMap) -> Option<Time> {
    let (key, _) = map.range(&[DEADLINE], Some(&[DEADLINE + 1])).next()?;
    time_of(key).map(Time)
}

/// Where a command waits.
pub(crate) fn find(map: &SegmentMap, session: SessionId, number: u64) -> Option<Locator> {
    map.get(&waiting_key(session, number))?.try_into().ok()
}

/// A command waits no longer, and nobody is told.
pub(crate) fn forget(map: &mut SegmentMap, session: SessionId, number: u64) -> Option<Head> {
    let place = find(map, session, number)?;
    Some(remove_anywhere(map, &place))
}

/// Those who wait in a space behind the one with the number `after`, up to `most`, in the order in which they began to. No index has this order, so all
/// who wait there are gone through.
pub(crate) fn in_order(map: &SegmentMap, space: u64, after: u64, most: usize) -> Vec<Locator> {
    let (start, end) = waiter_range(space);
    let behind = map.range(&start, Some(&end)).filter(|(key, _)| number_of(key) > after);
    let mut behind: Vec<(u64, Locator)> =
        behind.filter_map(|(key, _)| Some((number_of(key), locator_of(key)?))).collect();
    if most < behind.len() {
        behind.select_nth_unstable(most);
        behind.truncate(most);
    }
    behind.sort_unstable();
    behind.into_iter().map(|(_, place)| place).collect()
}

/// Whether anybody waits there behind that one.
pub(crate) fn is_behind(map: &SegmentMap, space: u64, after: u64) -> bool {
    let (start, end) = waiter_range(space);
    map.range(&start, Some(&end)).any(|(key, _)| number_of(key) > after)
}

/// The space goes: nothing will come to those who wait.
pub(crate) fn refuse_all(
    map: &mut SegmentMap,
    space: &mut Contents,
    text: &str,
    released: &mut Vec<Release>,
) {
    for place in in_order(map, space.id, 0, usize::MAX) {
        space.counters.waiters -= 1;
        released.push(remove(map, &place).release(Err(text.to_owned()), false));
    }
}
