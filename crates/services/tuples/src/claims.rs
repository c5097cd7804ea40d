//! Claims: what inserts a tuple where none has its key, one at a time and in order.
//!
//! The key is the first fields of the claim's tuple; tuples of as many fields that begin with the same ones have it. Whenever a tuple
//! goes, the first claim for each key that it had is let through if no other tuple has that key: its tuple is inserted at once, and offered
//! to it. So while a claim waits, its key is had by a tuple that is there, or that has ended and goes before one of the next batches.

use crate::command::Entry;
use crate::holds;
use crate::layout::{
    CLAIM, Locator, Record, claim_range, locator, locator_of, record, tuple_key, waiter_key,
};
use crate::limits;
use crate::operate::{Caller, Now, Spaces, admit};
use crate::reply::{Purpose, TupleReply};
use crate::search::Search;
use crate::serve::Occasion;
use crate::space::{Contents, Space, end_of};
use crate::steps::{CLAIM_STEP, KEY_STEP, TUPLE_STEP};
use crate::tuple::{Template, claim_hash, split};
use crate::waiting::{self, Head, Sought};
use perdura_execution::{Meter, Release, TooCostly};
use perdura_protocol::{Encode, PublicKey, seeded};
use perdura_store::SegmentMap;
use std::collections::BTreeSet;

/// The first claims for the keys of tuples that are gone, in the order in which they began to wait: the number of each among the waiters, and
/// where it is.
pub(crate) type Gone = BTreeSet<(u64, Locator)>;

/// About what a claim costs at most that is let through or not: the search for what has its key.
const MOST_OF_A_CLAIM: usize =
    CLAIM_STEP + limits::SCANNED_TUPLES * TUPLE_STEP + 2 * limits::SCANNED_BYTES;

/// Where a claim waits.
pub(crate) fn place(space: u64, key: u8, entry: &Entry, waiter: u64) -> Locator {
    place_for(space, key, &split(entry.tuple.raw()), waiter)
}

fn place_for(space: u64, key: u8, fields: &[&[u8]], waiter: u64) -> Locator {
    let count = u8::try_from(fields.len()).expect("a tuple's fields are bounded");
    let hash = claim_hash(count, key, &fields[..usize::from(key)].concat());
    locator(space, Some((CLAIM | key, hash)), waiter)
}

/// The first claim that waits for the key of so many of these fields.
fn first(
    map: &SegmentMap,
    space: u64,
    key: u8,
    fields: &[&[u8]],
    meter: &Meter,
) -> Option<(u64, Locator)> {
    // Counted, and not refused: a tuple has few keys, and hardly ever have two of them one hash.
    let hashed: usize = fields[..usize::from(key)].iter().map(|field| field.len()).sum();
    let _ = meter.charge(KEY_STEP + hashed);
    let start = waiter_key(&place_for(space, key, fields, 0));
    let end = waiter_key(&place_for(space, key, fields, u64::MAX));
    let places = map.range(&start, Some(&end)).filter_map(|(key, value)| {
        let _ = meter.charge(value.len());
        locator_of(key)
    });
    // Two keys of one hash are told apart.
    let of_key = |place: &Locator| {
        let (_, _, entry) = claim(map, place);
        let others = split(entry.tuple.raw());
        let key = usize::from(key);
        others.len() == fields.len() && others[..key] == fields[..key]
    };
    let mut of_key = places.filter(of_key);
    let first = of_key.next();
    let first = if seeded!(NewestWaiterFirst) { of_key.next_back().or(first) } else { first };
    first.map(|place| (waiting::number_in(&place), place))
}

/// The claim that waits there.
fn claim(map: &SegmentMap, place: &Locator) -> (Head, u8, Entry) {
    let waiter = waiting::whole(map, place);
    match waiter.sought {
        Sought::Claim { key, entry } => (waiter.head, key, entry),
        Sought::Template(_) | Sought::Lease { .. } => unreachable!("claims wait among claims"),
    }
}

/// The first claims for the keys that a tuple has.
fn blocked_by(map: &SegmentMap, space: &Contents, number: u64, gone: &mut Gone, meter: &Meter) {
    let (start, end) = claim_range(space.id);
    if space.counters.waiters == 0 || map.range(&start, Some(&end)).next().is_none() {
        return;
    }
    let Some(value) = map.get(&tuple_key(space.id, number)) else { return };
    let fields = split(Record::of(value).tuple);
    let mut bytes = 0;
    for (key, field) in (1..).zip(&fields) {
        bytes += field.len();
        // Nobody waits for a longer key.
        if bytes > limits::WAITING_TEMPLATE_BYTES {
            return;
        }
        gone.extend(first(map, space.id, key, &fields, meter));
    }
}

impl Spaces {
    /// Removes a tuple and takes note of the claims that may get through by that; the bytes that this gives back.
    pub(crate) fn remove(
        &mut self,
        space: &mut Contents,
        number: u64,
        gone: &mut Gone,
        meter: &Meter,
    ) -> u64 {
        blocked_by(&self.map, space, number, gone, meter);
        space.remove(&mut self.map, number)
    }

    /// Removes a tuple, and serves those who wait until it is gone. That are few, one for each of its keys, and it is not refused, whatever it costs:
    /// who gives up what others wait for can do so.
    pub(crate) fn take(
        &mut self,
        occasion: Occasion<'_>,
        space: &mut Contents,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        let mut gone = Gone::new();
        self.remove(space, number, &mut gone, occasion.meter);
        self.serve_claims(space, gone, occasion, released);
    }

    /// The same with many tuples, all or none: those who wait until they are gone may cost more than a command may.
    pub(crate) fn take_all(
        &mut self,
        occasion: Occasion<'_>,
        space: &mut Contents,
        numbers: &[u64],
        released: &mut Vec<Release>,
    ) -> Result<(), TooCostly> {
        let (mut gone, meter) = (Gone::new(), occasion.meter);
        for number in numbers {
            blocked_by(&self.map, space, *number, &mut gone, meter);
        }
        let mut before = self.before(meter, gone.len() * MOST_OF_A_CLAIM, space, released);
        if before.is_some() {
            meter.charge(0)?;
        }
        for number in numbers {
            space.remove(&mut self.map, *number);
        }
        for claim in gone {
            self.serve_claims(space, Gone::from([claim]), occasion, released);
            if let Some(before) = before.take_if(|_| meter.charge(0).is_err()) {
                self.undo(before, space, released);
                return Err(TooCostly);
            }
        }
        Ok(())
    }

    pub(crate) fn claim(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        (key, entry): (u8, &Entry),
        wait_ms: u64,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().read, caller.client(), "read")?;
        let contents = &mut space.contents;
        let is_had = self.is_had(contents, (key, entry), caller.now, caller.meter)?;
        let fields = split(entry.tuple.raw());
        // Who waits for what has ended and is not removed yet is not overtaken.
        if !is_had && first(&self.map, contents.id, key, &fields, caller.meter).is_none() {
            self.check_room(contents.insertion_cost(entry), 0)?;
            let number = self.insert(caller.occasion(), contents, entry, released);
            return Ok(Some(TupleReply::Inserted { number }));
        }
        if wait_ms == 0 {
            return Ok(Some(TupleReply::Found(None)));
        }
        let sought = Sought::Claim { key, entry: entry.clone() };
        self.wait(caller, contents, sought, wait_ms, Purpose::Claim)
    }

    /// Whether a tuple has a claim's key, whoever may read it.
    fn is_had(
        &self,
        space: &Contents,
        (key, entry): (u8, &Entry),
        now: Now,
        meter: &Meter,
    ) -> Result<bool, String> {
        let template = Template::of_key(&entry.tuple, key);
        // Nobody is asked for.
        let client = PublicKey([0; 32]);
        let search = Search {
            map: &self.map,
            space,
            template: &template,
            client,
            purpose: Purpose::Claim,
            now: Some(now),
            holds: self.has_holds(space),
            leaving: true,
            meter,
        };
        search.any().map_err(|stop| stop.text())
    }

    /// Lets those through whose keys are free by what is gone.
    pub(crate) fn serve_claims(
        &mut self,
        space: &mut Contents,
        gone: Gone,
        occasion: Occasion<'_>,
        released: &mut Vec<Release>,
    ) {
        let Occasion { now: Now { clock, .. }, meter, .. } = occasion;
        for (_, place) in gone {
            // All who wait for one key are told alike whether it is had.
            let (_, key, entry) = claim(&self.map, &place);
            let is_had = self.is_had(space, (key, &entry), Now::of(clock), meter);
            if is_had == Ok(true) {
                continue;
            }
            let mut next = Some(place);
            while let Some(place) = next {
                let (head, key, entry) = claim(&self.map, &place);
                let _ = meter.charge(CLAIM_STEP + entry.bytes());
                let room = || self.check_room_for_claim(space, &place, &entry);
                let result = is_had.clone().and_then(|_| room());
                waiting::remove(&mut self.map, &place);
                space.counters.waiters -= 1;
                let Err(text) = result else {
                    self.let_through(space, head, &entry, occasion, released);
                    break;
                };
                released.push(head.release(Err(text), false));
                let fields = split(entry.tuple.raw());
                next = first(&self.map, space.id, key, &fields, meter).map(|(_, place)| place);
            }
        }
    }

    fn check_room_for_claim(
        &self,
        space: &Contents,
        place: &Locator,
        entry: &Entry,
    ) -> Result<(), String> {
        let added = space.insertion_cost(entry) + holds::offer_cost();
        self.check_room_to_hold(added, waiting::bytes_of(&self.map, place))
    }

    /// Inserts a claim's tuple, which is the client's when it confirms that.
    fn let_through(
        &mut self,
        space: &mut Contents,
        head: Head,
        entry: &Entry,
        occasion: Occasion<'_>,
        released: &mut Vec<Release>,
    ) {
        let clock = occasion.now.clock;
        // Its lease begins with the confirmation.
        let from_offer = entry.lease_ms.filter(|_| seeded!(LeaseFromOffer));
        let number = space.insert_record(&mut self.map, &record(entry, end_of(from_offer, clock)));
        let command = (head.session, head.number);
        let lease_ms = entry.lease_ms.unwrap_or(0);
        holds::offer(&mut self.map, space, number, command, Purpose::Claim, lease_ms);
        let reply = TupleReply::Inserted { number }.to_bytes();
        released.push(head.release(Ok(reply), true));
        let occasion = Occasion { now: Now::of(clock), ..occasion };
        self.serve(space, number, occasion, released);
    }
}
