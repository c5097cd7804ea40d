//! What the operations on a space do.

use crate::access::Access;
use crate::claims::Gone;
use crate::command::{Entry, SpaceOptions};
use crate::holds;
use crate::layout::{Counters, HEADER_KEY, Header, Record, SpaceRecord, tuple_key};
use crate::limits;
use crate::operation::Operation;
use crate::reply::{Found, Purpose, SpaceDescription, TupleReply};
use crate::search::{Search, Stop};
use crate::serve::Occasion;
use crate::space::{Contents, Space, cost, end_of, lease_cost, put};
use crate::steps::{PASSED_STEP, REMOVED_STEP, SERVED_STEP, WAITER_STEP};
use crate::tuple::Template;
use crate::waiting::{self, Sought};
use bytes::Bytes;
use perdura_execution::{Meter, Release, StateLimit, TooCostly};
use perdura_protocol::{Decode, Encode, PublicKey, SessionId, Time, seeded};
use perdura_store::SegmentMap;

/// The state of the service, the bytes that it may count for, and the version of the rules that is in force.
#[derive(Debug)]
pub(crate) struct Spaces {
    pub map: SegmentMap,
    pub limit: StateLimit,
    pub version: u16,
}

/// When something happens: leases and waits go by a clock that stood still while the group did, clients by agreed time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub clock: Time,
    /// Milliseconds by which agreed time is ahead of it; `None` where that is not known.
    pub ahead: Option<u64>,
}

impl Now {
    /// Where agreed time is not known: nothing is shown that goes by it.
    pub(crate) fn of(clock: Time) -> Now {
        Now { clock, ahead: None }
    }

    /// A time on the clock as clients know it; none where 0 stands for none.
    pub(crate) fn shown(self, time: u64) -> Option<Time> {
        let ahead = self.ahead.filter(|_| time != 0)?;
        Some(Time(time.saturating_add(ahead)))
    }
}

/// Who asks, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub session: SessionId,
    pub number: u64,
    pub now: Now,
    /// Of what it costs.
    pub meter: &'a Meter,
}

impl<'a> Caller<'a> {
    pub(crate) fn client(self) -> PublicKey {
        self.session.client
    }

    /// Of what it does others are served.
    pub(crate) fn occasion(self) -> Occasion<'a> {
        Occasion { now: self.now, meter: self.meter, reads: true }
    }
}

impl Stop {
    pub(crate) fn text(self) -> String {
        match self {
            Stop::Scanned => format!(
                "more than {} tuples, or {} bytes of tuples, had to be looked at: begin the template with values, in a space that indexes as many fields",
                limits::SCANNED_TUPLES,
                limits::SCANNED_BYTES
            ),
            Stop::Timeless => "a read that meets a lease has to be ordered".to_owned(),
        }
    }
}

pub(crate) fn admit(access: &Access, client: PublicKey, what: &str) -> Result<(), String> {
    if access.admits(client) {
        Ok(())
    } else {
        Err(format!("access denied: the space does not let this client {what}"))
    }
}

fn no_space(name: &str) -> String {
    format!("there is no space named {name:?}")
}

fn being_deleted(name: &str) -> String {
    format!("the space {name:?} is being deleted; delete it again until nothing is left")
}

fn full(map: &SegmentMap, limit: StateLimit) -> String {
    let StateLimit { bytes, segments } = limit;
    if map.segments() < segments {
        format!(
            "the tuple spaces are full: they would exceed their limit of {bytes} bytes (state_limit_mib of the cluster); take something first"
        )
    } else {
        format!(
            "the tuple spaces are full: they may grow only while they have fewer than {segments} segments; take something first"
        )
    }
}

impl Spaces {
    fn header(&self) -> Header {
        let Some(value) = self.map.get(HEADER_KEY) else { return Header::INITIAL };
        Header::from_bytes(Bytes::copy_from_slice(value)).expect("the header was encoded here")
    }

    /// Room for what is inserted or waits. From version 2 on a part is left to those who hold what is there: a queue that is full
    /// can be worked off.
    pub(crate) fn check_room(&self, added: u64, removed: u64) -> Result<(), String> {
        let room = self.map.room(self.limit);
        self.check_within(if self.version == 1 { room } else { room - room / 64 }, added, removed)
    }

    /// Room for who holds a tuple.
    pub(crate) fn check_room_to_hold(&self, added: u64, removed: u64) -> Result<(), String> {
        self.check_within(self.map.room(self.limit), added, removed)
    }

    fn check_within(&self, room: u64, added: u64, removed: u64) -> Result<(), String> {
        if added > removed && self.map.bytes() - removed + added > room {
            return Err(full(&self.map, self.limit));
        }
        Ok(())
    }

    pub(crate) fn has_holds(&self, space: &Contents) -> bool {
        self.version > 1 && holds::any(&self.map, space.id)
    }

    /// Names above `after`, ascending.
    pub(crate) fn names(&self, after: &str, limit: u32) -> TupleReply {
        let limit = limit as usize;
        let mut start = crate::layout::name_key(after);
        if !after.is_empty() {
            // The first key above it.
            start.push(0);
        }
        let end = [crate::layout::SPACE];
        let name = |(key, _): (&[u8], _)| String::from_utf8_lossy(&key[1..]).into_owned();
        let found = self.map.range(&start, Some(&end)).map(name).take(limit + 1);
        let mut names: Vec<String> = found.collect();
        let more = names.len() > limit;
        names.truncate(limit);
        TupleReply::Spaces { names, more }
    }

    /// What an operation gives; `None` if it waits.
    pub(crate) fn operate(
        &mut self,
        caller: Caller<'_>,
        name: &str,
        operation: &Operation,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        let space = Space::load(&self.map, name);
        if let Operation::Create(options) = operation {
            return match space {
                None => self.create(caller.client(), name, options).map(Some),
                Some(space) if space.contents.counters.deleting => Err(being_deleted(name)),
                Some(_) => Err(format!("there is a space named {name:?} already")),
            };
        }
        let Some(mut space) = space else { return Err(no_space(name)) };
        let before = space.contents.counters;
        if *operation == Operation::Delete {
            return self.delete(caller, name, space, released).map(Some);
        }
        let result = if space.contents.counters.deleting && *operation != Operation::Describe {
            Err(being_deleted(name))
        } else {
            self.run(caller, &mut space, operation, released)
        };
        if space.contents.counters != before {
            space.contents.save(&mut self.map);
        }
        result
    }

    fn create(
        &mut self,
        creator: PublicKey,
        name: &str,
        options: &SpaceOptions,
    ) -> Result<TupleReply, String> {
        let mut header = self.header();
        let record = SpaceRecord { id: header.next_space, creator, options: options.clone() };
        let space = Space::new(record, header.first_number);
        header.next_space += 1;
        let header = header.to_bytes();
        let first = self.map.get(HEADER_KEY).is_none();
        let header_cost = if first { cost(HEADER_KEY.len(), header.len()) } else { 0 };
        self.check_room(space.creation_cost(name) + header_cost, 0)?;
        put(&mut self.map, HEADER_KEY, &header);
        space.create(&mut self.map, name);
        Ok(TupleReply::Created)
    }

    fn delete(
        &mut self,
        caller: Caller<'_>,
        name: &str,
        mut space: Space,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        let (client, entries) = (caller.client(), self.map.entries());
        if client != space.creator() {
            admit(&space.options().manage, client, "delete it")?;
        }
        let contents = &mut space.contents;
        contents.counters.deleting = true;
        waiting::refuse_all(&mut self.map, contents, &being_deleted(name), released);
        contents.clear(&mut self.map);
        // Counted, and not refused: both are bounded.
        let steps = (entries - self.map.entries()).saturating_mul(REMOVED_STEP);
        let _ = caller.meter.charge(usize::try_from(steps).unwrap_or(usize::MAX));
        let Counters { tuples: remaining, next_number, .. } = contents.counters;
        if remaining > 0 {
            contents.save(&mut self.map);
            return Ok(TupleReply::Deleted { remaining });
        }
        space.remove(&mut self.map, name);
        let mut header = self.header();
        header.first_number = header.first_number.max(next_number);
        put(&mut self.map, HEADER_KEY, &header.to_bytes());
        Ok(TupleReply::Deleted { remaining })
    }

    fn run(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        operation: &Operation,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        let client = caller.client();
        match operation {
            Operation::Create(_) | Operation::Delete => unreachable!("they come before"),
            Operation::Rd { template, wait_ms } => {
                return self.find_or_wait(
                    caller,
                    space,
                    Purpose::Read,
                    template,
                    *wait_ms,
                    released,
                );
            }
            Operation::In { template, wait_ms } => {
                return self.find_or_wait(
                    caller,
                    space,
                    Purpose::Take,
                    template,
                    *wait_ms,
                    released,
                );
            }
            Operation::Claim { key, entry, wait_ms } => {
                return self.claim(caller, space, (*key, entry), *wait_ms, released);
            }
            Operation::Lease { template, lease_ms, wait_ms } => {
                return self.lease(caller, space, template, *lease_ms, *wait_ms);
            }
            Operation::Describe
            | Operation::Rdp(_)
            | Operation::RdAll { .. }
            | Operation::Waits { .. } => self
                .read((client, caller.meter), Some(caller.now), space, operation)
                .map_err(|unread| match unread {
                    Unread::Refused(text) => text,
                    Unread::Timeless => Stop::Timeless.text(),
                }),
            Operation::Out(entry) => {
                admit(&space.options().insert, client, "insert")?;
                self.check_room(space.contents.insertion_cost(entry), 0)?;
                let number = self.insert(caller.occasion(), &mut space.contents, entry, released);
                Ok(TupleReply::Inserted { number })
            }
            Operation::OutAll(entries) => self.out_all(caller, space, entries, released),
            Operation::Inp(template) => {
                let found = self.find(caller, space, Purpose::Take, template, released)?;
                Ok(TupleReply::Found(found))
            }
            Operation::InAll { template, limit } => {
                admit(&space.options().take, client, "take")?;
                let search = self.search(caller, &space.contents, template, Purpose::Take);
                let several = search.several(0, *limit).map_err(Stop::text)?;
                let numbers: Vec<u64> = several.tuples.iter().map(|found| found.number).collect();
                self.take_all(caller.occasion(), &mut space.contents, &numbers, released)?;
                Ok(TupleReply::FoundAll { tuples: several.tuples, more: several.more })
            }
            Operation::Cas { template, entry } => {
                self.cas(caller, space, template, entry, released)
            }
            Operation::Replace { template, entry } => {
                self.replace(caller, space, template, entry, released)
            }
            Operation::Renew { number, lease_ms } => {
                self.renew(caller, space, *number, *lease_ms, released)
            }
            Operation::Finish { number, token } => {
                Ok(self.finish(caller, &mut space.contents, *number, *token, released))
            }
            Operation::Return { number, token } => {
                Ok(self.hand_back(caller, &mut space.contents, *number, *token, released))
            }
            Operation::Extend { number, token, lease_ms } => {
                Ok(self.extend(caller, &space.contents, *number, *token, *lease_ms))
            }
            Operation::Add { fields, amount } => self.add(caller, space, fields, *amount, released),
            Operation::EndWait { session, number } => {
                self.end_wait(client, space, (*session, *number), released)
            }
            Operation::Break { number } => self.break_tuple(caller, space, *number, released),
        }
        .map(Some)
    }

    /// Inserts a tuple, and serves those who wait for it.
    pub(crate) fn insert(
        &mut self,
        occasion: Occasion<'_>,
        space: &mut Contents,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> u64 {
        let number = space.insert(&mut self.map, entry, occasion.now.clock);
        self.serve(space, number, occasion, released);
        number
    }

    /// The oldest match, which goes if it is to be taken.
    fn find(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        purpose: Purpose,
        template: &Template,
        released: &mut Vec<Release>,
    ) -> Result<Option<Found>, String> {
        if purpose == Purpose::Read {
            admit(&space.options().read, caller.client(), "read")?;
        } else {
            admit(&space.options().take, caller.client(), "take")?;
        }
        let search = self.search(caller, &space.contents, template, purpose);
        let found = search.oldest().map_err(Stop::text)?;
        if let Some(taken) = found.as_ref().filter(|_| purpose == Purpose::Take) {
            self.take(caller.occasion(), &mut space.contents, taken.number, released);
        }
        Ok(found)
    }

    fn find_or_wait(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        purpose: Purpose,
        template: &Template,
        wait_ms: u64,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        if let Some(found) = self.find(caller, space, purpose, template, released)? {
            return Ok(Some(TupleReply::Found(Some(found))));
        }
        let sought = Sought::Template(template.clone());
        self.wait(caller, &mut space.contents, sought, wait_ms, purpose)
    }

    pub(crate) fn search<'a>(
        &'a self,
        caller: Caller<'a>,
        space: &'a Contents,
        template: &'a Template,
        purpose: Purpose,
    ) -> Search<'a> {
        let (client, now, meter) = (caller.client(), Some(caller.now), caller.meter);
        let holds = self.has_holds(space);
        Search {
            map: &self.map,
            space,
            template,
            client,
            purpose,
            now,
            holds,
            leaving: false,
            meter,
        }
    }

    fn out_all(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        entries: &[Entry],
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        let contents = &mut space.contents;
        self.check_room(entries.iter().map(|entry| contents.insertion_cost(entry)).sum(), 0)?;
        let Counters { next_number: first, waiters, .. } = contents.counters;
        // Each may be looked at for each tuple, and is served once.
        let of_one = PASSED_STEP + entries.len() * WAITER_STEP + SERVED_STEP;
        let of_all = usize::try_from(waiters).unwrap_or(usize::MAX).saturating_mul(of_one);
        let bytes: usize = entries.iter().map(Entry::bytes).sum();
        let most = of_all.saturating_add(bytes);
        let mut before = self.before(caller.meter, most, contents, released);
        // Behind who takes a tuple nobody but readers has anything of it: where there are none, jobs are put as fast however many wait for them.
        let reads = waiters > 0 && waiting::any_reader(&self.map, contents.id, caller.meter);
        for entry in entries {
            let occasion = Occasion { reads, ..caller.occasion() };
            self.insert(occasion, contents, entry, released);
            if let Some(before) = before.take_if(|_| caller.meter.charge(0).is_err()) {
                self.undo(before, contents, released);
                return Err(TooCostly.into());
            }
        }
        let count = u32::try_from(entries.len()).expect("a command's tuples are bounded");
        Ok(TupleReply::InsertedAll { first, count })
    }

    fn cas(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        template: &Template,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().read, caller.client(), "read")?;
        let contents = &mut space.contents;
        let search = self.search(caller, contents, template, Purpose::Read);
        let found = Search { leaving: true, ..search }.oldest();
        if let Some(found) = found.map_err(Stop::text)? {
            return Ok(TupleReply::Found(Some(found)));
        }
        self.check_room(contents.insertion_cost(entry), 0)?;
        let number = self.insert(caller.occasion(), contents, entry, released);
        Ok(TupleReply::Inserted { number })
    }

    fn replace(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        template: &Template,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().take, caller.client(), "take")?;
        let contents = &mut space.contents;
        let found = self.search(caller, contents, template, Purpose::Take).oldest();
        let Some(old) = found.map_err(Stop::text)? else { return Ok(TupleReply::Found(None)) };
        let removed = contents.held_by(&self.map, old.number);
        self.check_room(contents.insertion_cost(entry), removed)?;
        let (mut gone, occasion) = (Gone::new(), caller.occasion());
        self.remove(contents, old.number, &mut gone, caller.meter);
        let number = self.insert(occasion, contents, entry, released);
        self.serve_claims(contents, gone, occasion, released);
        Ok(TupleReply::Replaced { old, number })
    }

    fn renew(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        number: u64,
        lease_ms: Option<u64>,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().take, caller.client(), "take")?;
        let (contents, clock) = (&mut space.contents, caller.now.clock);
        let none = Ok(TupleReply::Renewed { renewed: false, expires: None });
        let Some(value) = self.map.get(&tuple_key(contents.id, number)) else { return none };
        let record = Record::of(value);
        let ended = record.expires().is_some_and(|expires| expires <= clock);
        let held = self.has_holds(contents) && holds::is_held(&self.map, contents.id, number);
        if ended || held || !record.take.admits(caller.client()) {
            return none;
        }
        if lease_ms == Some(0) {
            self.take(caller.occasion(), contents, number, released);
            return Ok(TupleReply::Renewed { renewed: true, expires: caller.now.shown(clock.0) });
        }
        // All of it is written again.
        caller.meter.charge(value.len())?;
        let from = if seeded!(RenewedFromItsEnd) { record.expires() } else { None };
        let expires = end_of(lease_ms, from.unwrap_or(clock));
        if record.expires == 0 && expires != 0 {
            self.check_room(lease_cost(), 0)?;
        }
        contents.renew(&mut self.map, number, expires);
        Ok(TupleReply::Renewed { renewed: true, expires: caller.now.shown(expires) })
    }

    /// Answers an operation that only reads. A read that is not ordered has no time.
    pub(crate) fn read(
        &self,
        (client, meter): (PublicKey, &Meter),
        now: Option<Now>,
        space: &Space,
        operation: &Operation,
    ) -> Result<TupleReply, Unread> {
        let counters = space.contents.counters;
        let holds = self.has_holds(&space.contents);
        let search = |template| {
            let (map, space, purpose) = (&self.map, &space.contents, Purpose::Read);
            Search { map, space, template, client, purpose, now, holds, leaving: false, meter }
        };
        match operation {
            Operation::Describe => Ok(TupleReply::Described(SpaceDescription {
                options: space.options().clone(),
                creator: space.creator(),
                tuples: counters.tuples,
                waiters: counters.waiters,
                deleting: counters.deleting,
            })),
            Operation::Rdp(template) => {
                admit(&space.options().read, client, "read")?;
                Ok(TupleReply::Found(search(template).oldest()?))
            }
            Operation::RdAll { template, after, limit } => {
                admit(&space.options().read, client, "read")?;
                let several = search(template).several(*after, *limit)?;
                Ok(TupleReply::FoundAll { tuples: several.tuples, more: several.more })
            }
            Operation::Waits { after, limit } => {
                self.waits((client, meter), now, space, (*after, *limit as usize))
            }
            _ => unreachable!("the others do more than read"),
        }
    }

    /// A read outside the order of commands; `None` when it has to be ordered.
    pub(crate) fn query(
        &self,
        (client, meter): (PublicKey, &Meter),
        name: &str,
        operation: &Operation,
    ) -> Option<Result<TupleReply, String>> {
        let Some(space) = Space::load(&self.map, name) else { return Some(Err(no_space(name))) };
        if space.contents.counters.deleting && *operation != Operation::Describe {
            return Some(Err(being_deleted(name)));
        }
        match self.read((client, meter), None, &space, operation) {
            Ok(reply) => Some(Ok(reply)),
            Err(Unread::Refused(text)) => Some(Err(text)),
            Err(Unread::Timeless) => None,
        }
    }
}

/// Why a read gave nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// As an ordered one would be.
    Refused(String),
    /// It has to be ordered.
    Timeless,
}

impl From<String> for Unread {
    fn from(text: String) -> Unread {
        Unread::Refused(text)
    }
}

impl From<Stop> for Unread {
    fn from(stop: Stop) -> Unread {
        match stop {
            Stop::Scanned => Unread::Refused(stop.text()),
            Stop::Timeless => Unread::Timeless,
        }
    }
}
