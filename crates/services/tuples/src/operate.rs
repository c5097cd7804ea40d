//! What the operations on a space do.

use crate::access::Access;
use crate::command::{CommandError, Entry, SpaceOptions};
use crate::layout::{HEADER_KEY, Header, Record, SpaceRecord, tuple_key};
use crate::limits;
use crate::operation::Operation;
use crate::reply::{Found, SpaceDescription, TupleReply};
use crate::search::{Purpose, Search, Stop};
use crate::space::{Space, cost, end_of, lease_cost, put};
use crate::tuple::Template;
use crate::waiting::{self, Head, Waiter};
use bytes::Bytes;
use perdura_execution::{Release, StateLimit};
use perdura_protocol::{Decode, Encode, PublicKey, SessionId, Time, seeded};
use perdura_store::SegmentMap;

/// The state of the service, and the bytes that it may count for.
#[derive(Debug)]
pub(crate) struct Spaces {
    pub map: SegmentMap,
    pub limit: StateLimit,
}

/// Who asks, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub session: SessionId,
    pub number: u64,
    pub now: Time,
}

impl Caller {
    fn client(self) -> PublicKey {
        self.session.client
    }
}

impl Stop {
    fn text(self) -> String {
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

fn admit(access: &Access, client: PublicKey, what: &str) -> Result<(), String> {
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

    fn check_room(&self, added: u64, removed: u64) -> Result<(), String> {
        if added > removed && self.map.bytes() - removed + added > self.map.room(self.limit) {
            return Err(full(&self.map, self.limit));
        }
        Ok(())
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
        caller: Caller,
        name: &str,
        operation: &Operation,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        let space = Space::load(&self.map, name);
        if let Operation::Create(options) = operation {
            return match space {
                None => self.create(caller.client(), name, options).map(Some),
                Some(space) if space.counters.deleting => Err(being_deleted(name)),
                Some(_) => Err(format!("there is a space named {name:?} already")),
            };
        }
        let Some(mut space) = space else { return Err(no_space(name)) };
        let before = space.counters;
        if *operation == Operation::Delete {
            return self.delete(caller.client(), name, space, released).map(Some);
        }
        let result = if space.counters.deleting && *operation != Operation::Describe {
            Err(being_deleted(name))
        } else {
            self.run(caller, &mut space, operation, released)
        };
        if space.counters != before {
            space.save(&mut self.map);
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
        client: PublicKey,
        name: &str,
        mut space: Space,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        if client != space.creator() {
            admit(&space.options().manage, client, "delete it")?;
        }
        space.counters.deleting = true;
        waiting::refuse_all(&mut self.map, &mut space, &being_deleted(name), released);
        space.clear(&mut self.map);
        let remaining = space.counters.tuples;
        if remaining > 0 {
            space.save(&mut self.map);
            return Ok(TupleReply::Deleted { remaining });
        }
        space.remove(&mut self.map, name);
        let mut header = self.header();
        header.first_number = header.first_number.max(space.counters.next_number);
        put(&mut self.map, HEADER_KEY, &header.to_bytes());
        Ok(TupleReply::Deleted { remaining })
    }

    fn run(
        &mut self,
        caller: Caller,
        space: &mut Space,
        operation: &Operation,
        released: &mut Vec<Release>,
    ) -> Result<Option<TupleReply>, String> {
        let client = caller.client();
        match operation {
            Operation::Create(_) | Operation::Delete => unreachable!("they come before"),
            Operation::Rd { template, wait_ms } => {
                return self.find_or_wait(caller, space, Purpose::Read, template, *wait_ms);
            }
            Operation::In { template, wait_ms } => {
                return self.find_or_wait(caller, space, Purpose::Take, template, *wait_ms);
            }
            Operation::Describe | Operation::Rdp(_) | Operation::RdAll { .. } => self
                .read(client, Some(caller.now), space, operation)
                .map_err(|unread| match unread {
                    Unread::Refused(text) => text,
                    Unread::Timeless => Stop::Timeless.text(),
                }),
            Operation::Out(entry) => {
                admit(&space.options().insert, client, "insert")?;
                self.check_room(space.insertion_cost(entry), 0)?;
                let number = self.insert(caller, space, entry, released);
                Ok(TupleReply::Inserted { number })
            }
            Operation::OutAll(entries) => self.out_all(caller, space, entries, released),
            Operation::Inp(template) => {
                let found = self.find(caller, space, Purpose::Take, template)?;
                Ok(TupleReply::Found(found))
            }
            Operation::InAll { template, limit } => {
                admit(&space.options().take, client, "take")?;
                let search = self.search(caller, space, template, Purpose::Take);
                let several = search.several(0, *limit).map_err(Stop::text)?;
                for found in &several.tuples {
                    space.take(&mut self.map, found.number);
                }
                Ok(TupleReply::FoundAll { tuples: several.tuples, more: several.more })
            }
            Operation::Cas { template, entry } => {
                self.cas(caller, space, template, entry, released)
            }
            Operation::Replace { template, entry } => {
                self.replace(caller, space, template, entry, released)
            }
            Operation::Renew { number, lease_ms } => self.renew(caller, space, *number, *lease_ms),
            later => Err(CommandError::Version(later.version()).to_string()),
        }
        .map(Some)
    }

    /// Inserts a tuple, and serves those who wait for it.
    fn insert(
        &mut self,
        caller: Caller,
        space: &mut Space,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> u64 {
        let number = space.insert(&mut self.map, entry, caller.now);
        waiting::serve(&mut self.map, space, number, released);
        number
    }

    /// The oldest match, which goes if it is to be taken.
    fn find(
        &mut self,
        caller: Caller,
        space: &mut Space,
        purpose: Purpose,
        template: &Template,
    ) -> Result<Option<Found>, String> {
        match purpose {
            Purpose::Read => admit(&space.options().read, caller.client(), "read")?,
            Purpose::Take => admit(&space.options().take, caller.client(), "take")?,
        }
        let found = self.search(caller, space, template, purpose).oldest().map_err(Stop::text)?;
        if let Some(found) = found.as_ref().filter(|_| purpose == Purpose::Take) {
            space.take(&mut self.map, found.number);
        }
        Ok(found)
    }

    fn find_or_wait(
        &mut self,
        caller: Caller,
        space: &mut Space,
        purpose: Purpose,
        template: &Template,
        wait_ms: u64,
    ) -> Result<Option<TupleReply>, String> {
        if let Some(found) = self.find(caller, space, purpose, template)? {
            return Ok(Some(TupleReply::Found(Some(found))));
        }
        let Caller { session, number, now } = caller;
        let deadline = now.0.saturating_add(wait_ms);
        let head = Head { session, number, purpose, deadline };
        let waiter = Waiter { head, template: template.clone() };
        let limit = self.limit;
        let most = self.map.room(limit);
        waiting::wait(&mut self.map, space, &waiter, |map, added| {
            if map.bytes() + added > most { Err(full(map, limit)) } else { Ok(()) }
        })?;
        Ok(None)
    }

    fn search<'a>(
        &'a self,
        caller: Caller,
        space: &'a Space,
        template: &'a Template,
        purpose: Purpose,
    ) -> Search<'a> {
        let (client, now) = (caller.client(), Some(caller.now));
        Search { map: &self.map, space, template, client, purpose, now }
    }

    fn out_all(
        &mut self,
        caller: Caller,
        space: &mut Space,
        entries: &[Entry],
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        self.check_room(entries.iter().map(|entry| space.insertion_cost(entry)).sum(), 0)?;
        let first = space.counters.next_number;
        for entry in entries {
            self.insert(caller, space, entry, released);
        }
        let count = u32::try_from(entries.len()).expect("a command's tuples are bounded");
        Ok(TupleReply::InsertedAll { first, count })
    }

    fn cas(
        &mut self,
        caller: Caller,
        space: &mut Space,
        template: &Template,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().read, caller.client(), "read")?;
        let found = self.search(caller, space, template, Purpose::Read).oldest();
        if let Some(found) = found.map_err(Stop::text)? {
            return Ok(TupleReply::Found(Some(found)));
        }
        self.check_room(space.insertion_cost(entry), 0)?;
        Ok(TupleReply::Inserted { number: self.insert(caller, space, entry, released) })
    }

    fn replace(
        &mut self,
        caller: Caller,
        space: &mut Space,
        template: &Template,
        entry: &Entry,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().take, caller.client(), "take")?;
        let found = self.search(caller, space, template, Purpose::Take).oldest();
        let Some(old) = found.map_err(Stop::text)? else { return Ok(TupleReply::Found(None)) };
        let removed = space.held_by(&self.map, old.number);
        self.check_room(space.insertion_cost(entry), removed)?;
        space.take(&mut self.map, old.number);
        let number = self.insert(caller, space, entry, released);
        Ok(TupleReply::Replaced { old, number })
    }

    fn renew(
        &mut self,
        caller: Caller,
        space: &mut Space,
        number: u64,
        lease_ms: Option<u64>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().take, caller.client(), "take")?;
        let none = Ok(TupleReply::Renewed { renewed: false, expires: None });
        let Some(value) = self.map.get(&tuple_key(space.id(), number)) else { return none };
        let record = Record::of(value);
        let ended = record.expires().is_some_and(|expires| expires <= caller.now);
        if ended || !record.take.admits(caller.client()) {
            return none;
        }
        if lease_ms == Some(0) {
            space.take(&mut self.map, number);
            return Ok(TupleReply::Renewed { renewed: true, expires: Some(caller.now) });
        }
        let from = if seeded!(RenewedFromItsEnd) { record.expires() } else { None };
        let expires = end_of(lease_ms, from.unwrap_or(caller.now));
        if record.expires == 0 && expires != 0 {
            self.check_room(lease_cost(), 0)?;
        }
        space.renew(&mut self.map, number, expires);
        let expires = (expires != 0).then_some(Time(expires));
        Ok(TupleReply::Renewed { renewed: true, expires })
    }

    /// Answers an operation that only reads. A read that is not ordered has no time.
    pub(crate) fn read(
        &self,
        client: PublicKey,
        now: Option<Time>,
        space: &Space,
        operation: &Operation,
    ) -> Result<TupleReply, Unread> {
        let search = |template| {
            let (map, purpose) = (&self.map, Purpose::Read);
            Search { map, space, template, client, purpose, now }
        };
        match operation {
            Operation::Describe => Ok(TupleReply::Described(SpaceDescription {
                options: space.options().clone(),
                creator: space.creator(),
                tuples: space.counters.tuples,
                waiters: space.counters.waiters,
                deleting: space.counters.deleting,
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
            _ => unreachable!("the others do more than read"),
        }
    }

    /// A read outside the order of commands; `None` when it has to be ordered.
    pub(crate) fn query(
        &self,
        client: PublicKey,
        name: &str,
        operation: &Operation,
    ) -> Option<Result<TupleReply, String>> {
        let Some(space) = Space::load(&self.map, name) else { return Some(Err(no_space(name))) };
        if space.counters.deleting && *operation != Operation::Describe {
            return Some(Err(being_deleted(name)));
        }
        match self.read(client, None, &space, operation) {
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
