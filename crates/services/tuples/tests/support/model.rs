//! The tuple spaces as one would write them without an index, an order of leases, segments and
//! limits, under both versions of their rules.

use super::key;
use perdura_protocol::{SessionId, Time};
use perdura_tuples::{
    Access, Broken, Entry, Field, Found, Kind, Leased, Operation, Pattern, Purpose,
    SpaceDescription, SpaceOptions, Template, Tuple, TupleCommand, TupleReply, Waiting,
};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Nobody,
    Offered { session: SessionId, number: u64, purpose: Purpose, lease_ms: Option<u64> },
    Leased { client: u8, until: u64 },
}

#[derive(Clone, Debug)]
struct Held {
    number: u64,
    expires: Option<u64>,
    entry: Entry,
    holder: Holder,
    token: u64,
    leases: u64,
}

#[derive(Clone, Debug)]
struct Space {
    options: SpaceOptions,
    creator: u8,
    next: u64,
    // By number.
    tuples: Vec<Held>,
    deleting: bool,
    waited: u64,
    // Something came free for which nobody was served yet.
    freed: bool,
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub session: SessionId,
    pub number: u64,
    pub deadline: u64,
    pub space: String,
    place: u64,
    purpose: Purpose,
    template: Template,
    lease_ms: Option<u64>,
    // What a claim inserts.
    entry: Option<Entry>,
}

#[derive(Clone, Debug)]
pub struct Model {
    version: u16,
    spaces: BTreeMap<String, Space>,
    first: u64,
    // In the order in which they began to wait.
    pub waiters: Vec<Waiter>,
}

/// A released reply, `None` for a refusal; and whether it is an offer.
pub type Served = (SessionId, u64, Option<TupleReply>, bool);

/// Refused, for whatever reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

fn matches(template: &Template, fields: &[Field]) -> bool {
    template.fields.len() == fields.len()
        && template.fields.iter().zip(fields).all(|(pattern, field)| match pattern {
            Pattern::Any => true,
            Pattern::Kind(kind) => *kind == field.kind(),
            Pattern::Value(value) => value == field,
        })
}

/// What has the key of a claim.
fn of_key(entry: &Entry, key: u8) -> Template {
    let mut fields: Vec<Pattern> = entry.tuple.fields().map(Pattern::Value).collect();
    fields[usize::from(key)..].fill(Pattern::Any);
    Template { fields }
}

impl Held {
    fn is(&self, template: &Template, access: &Access, client: u8) -> bool {
        access.admits(key(client)) && self.matches(template)
    }

    fn matches(&self, template: &Template) -> bool {
        matches(template, &self.entry.tuple.fields().collect::<Vec<_>>())
    }

    fn is_free(&self) -> bool {
        self.holder == Holder::Nobody
    }

    fn is_offered(&self) -> bool {
        matches!(self.holder, Holder::Offered { .. })
    }

    fn found(&self) -> Found {
        let expires = self.expires.filter(|_| self.is_free()).map(Time);
        Found { number: self.number, expires, tuple: self.entry.tuple.clone() }
    }

    fn leased(&self, until: Option<u64>) -> Leased {
        let (number, tuple, token) = (self.number, self.entry.tuple.clone(), self.token);
        let before = self.leases - u64::from(until.is_some());
        Leased { number, token, before, until: until.map(Time), tuple }
    }

    fn end(&self) -> Option<u64> {
        match self.holder {
            Holder::Nobody => self.expires,
            Holder::Offered { .. } => None,
            Holder::Leased { until, .. } => Some(until),
        }
    }
}

impl Space {
    fn out(&mut self, entry: &Entry, now: u64) -> u64 {
        let number = self.next;
        let (expires, entry) = (entry.lease_ms.map(|lease| now + lease), entry.clone());
        let holder = Holder::Nobody;
        self.tuples.push(Held { number, expires, entry, holder, token: 0, leases: 0 });
        self.next += 1;
        number
    }

    fn readable(&self, template: &Template, client: u8) -> Vec<Found> {
        let held = self.tuples.iter();
        held.filter(|held| held.is(template, &held.entry.read, client)).map(Held::found).collect()
    }

    fn takeable(&self, template: &Template, client: u8) -> Vec<Found> {
        let held = self.tuples.iter().filter(|held| held.is_free());
        held.filter(|held| held.is(template, &held.entry.take, client)).map(Held::found).collect()
    }

    fn remove(&mut self, found: &[Found]) {
        self.tuples.retain(|held| found.iter().all(|found| found.number != held.number));
    }

    fn get(&mut self, number: u64) -> Option<&mut Held> {
        self.tuples.iter_mut().find(|held| held.number == number)
    }

    fn give_back(&mut self, number: u64, now: u64) {
        let deleting = self.deleting;
        let Some(held) = self.get(number) else { return };
        held.holder = Holder::Nobody;
        if deleting || held.expires.is_some_and(|expires| expires <= now) {
            self.tuples.retain(|held| held.number != number);
        }
    }

    fn manages(&self, client: u8) -> bool {
        client == self.creator || self.options.manage.admits(key(client))
    }
}

fn several(mut tuples: Vec<Found>, limit: u32) -> (Vec<Found>, bool) {
    let more = tuples.len() > limit as usize;
    tuples.truncate(limit as usize);
    (tuples, more)
}

impl Model {
    pub fn new(version: u16) -> Model {
        Model { version, spaces: BTreeMap::new(), first: 1, waiters: Vec::new() }
    }

    /// What a time releases, by session and number.
    pub fn on_time(&mut self, now: u64) -> Vec<Served> {
        let mut released = Vec::new();
        self.waiters.retain(|waiter| {
            let nothing = match waiter.purpose {
                Purpose::Lease => TupleReply::Leased(None),
                _ => TupleReply::Found(None),
            };
            if waiter.deadline <= now {
                released.push((waiter.session, waiter.number, Some(nothing), false));
            }
            waiter.deadline > now
        });
        for space in self.spaces.values_mut() {
            let due = |held: &Held| held.end().is_some_and(|end| end <= now);
            let ended: Vec<Held> = space.tuples.iter().filter(|held| due(held)).cloned().collect();
            // Under version 1 nothing comes free.
            space.freed |= self.version > 1 && !ended.is_empty();
            for held in ended {
                if held.is_free() {
                    space.tuples.retain(|other| other.number != held.number);
                } else {
                    space.give_back(held.number, now);
                }
            }
        }
        let freed = self.spaces.iter().filter(|(_, space)| space.freed);
        for name in freed.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.spaces.get_mut(&name).unwrap().freed = false;
            released.extend(self.serve(&name));
        }
        released.sort_unstable_by_key(|(session, number, ..)| (*session, *number));
        released
    }

    /// The first time at which something ends by itself.
    pub fn due(&self) -> Option<Time> {
        let tuples = self.spaces.values().flat_map(|space| &space.tuples);
        let leases = tuples.filter_map(Held::end).filter(|_| self.version > 1);
        self.waiters.iter().map(|waiter| waiter.deadline).chain(leases).min().map(Time)
    }

    /// Commands that were offered something.
    pub fn offers(&self) -> Vec<(SessionId, u64)> {
        let tuples = self.spaces.values().flat_map(|space| &space.tuples);
        let offers = tuples.filter_map(|held| match held.holder {
            Holder::Offered { session, number, .. } => Some((session, number)),
            _ => None,
        });
        offers.collect()
    }

    /// The space, client, number and token of what is leased.
    pub fn leases(&self) -> Vec<(&str, u8, u64, u64)> {
        let mut leases = Vec::new();
        for (name, space) in &self.spaces {
            for held in &space.tuples {
                if let Holder::Leased { client, .. } = held.holder {
                    leases.push((name.as_str(), client, held.number, held.token));
                }
            }
        }
        leases
    }

    /// The client has what it was offered.
    pub fn confirm(&mut self, now: u64, session: SessionId, number: u64) {
        for space in self.spaces.values_mut() {
            let Some(held) = space.tuples.iter_mut().find(|held| held.is_for(session, number))
            else {
                continue;
            };
            let Holder::Offered { purpose, lease_ms, .. } = held.holder else { continue };
            space.freed = true;
            match purpose {
                Purpose::Lease => {
                    let until = now + lease_ms.unwrap_or_default();
                    held.holder = Holder::Leased { client: session.client.0[0], until };
                    held.leases += 1;
                }
                Purpose::Claim => {
                    held.holder = Holder::Nobody;
                    held.expires = lease_ms.map(|lease| now + lease);
                }
                _ => {
                    let gone = held.number;
                    space.tuples.retain(|held| held.number != gone);
                }
            }
        }
    }

    /// It is the next one's.
    pub fn take_back(&mut self, now: u64, session: SessionId, number: u64) -> Vec<Served> {
        let mut served = Vec::new();
        for name in self.spaces.keys().cloned().collect::<Vec<_>>() {
            let space = self.spaces.get_mut(&name).unwrap();
            let held = space.tuples.iter().find(|held| held.is_for(session, number)).cloned();
            let Some(held) = held else { continue };
            if matches!(held.holder, Holder::Offered { purpose: Purpose::Claim, .. }) {
                space.tuples.retain(|other| other.number != held.number);
            } else {
                space.give_back(held.number, now);
            }
            served.extend(self.serve(&name));
        }
        served
    }

    /// What a command gives, `None` if it waits, and what it releases.
    pub fn progress(
        &mut self,
        (session, number): (SessionId, u64),
        now: u64,
        command: &TupleCommand,
    ) -> (Option<Result<TupleReply, Refused>>, Vec<Served>) {
        let client = session.client.0[0];
        let TupleCommand::On { space: name, operation } = command else {
            return (Some(self.execute(client, now, command)), Vec::new());
        };
        if let Operation::EndWait { session, number } = operation {
            return self.end_wait(client, name, (*session, *number));
        }
        let nothing = |reply: &TupleReply| {
            matches!(reply, TupleReply::Found(None) | TupleReply::Leased(None))
        };
        let reply = self.execute(client, now, command);
        let waits = wait_of(operation).filter(|_| reply.as_ref().is_ok_and(nothing));
        let Some((purpose, template, wait_ms, lease_ms, entry)) = waits else {
            return (Some(reply), self.serve(name));
        };
        let space = self.spaces.get_mut(name).unwrap();
        space.waited += 1;
        let (place, deadline, space) = (space.waited, now + wait_ms, name.clone());
        let waiter =
            Waiter { session, number, deadline, space, place, purpose, template, lease_ms, entry };
        self.waiters.push(waiter);
        (None, Vec::new())
    }

    /// Gives the tuples of a space, oldest first, to those who wait for them, and those who wait until there are none what they claim.
    fn serve(&mut self, name: &str) -> Vec<Served> {
        let mut released = Vec::new();
        if self.spaces.get(name).is_none_or(|space| space.deleting) {
            let gone = |waiter: &Waiter| waiter.space == name;
            for waiter in self.waiters.iter().filter(|waiter| gone(waiter)) {
                released.push((waiter.session, waiter.number, None, false));
            }
            self.waiters.retain(|waiter| !gone(waiter));
            return released;
        }
        let space = self.spaces.get_mut(name).unwrap();
        for place in 0..space.tuples.len() {
            serve_one(self.version, name, &mut space.tuples[place], &mut self.waiters, |served| {
                released.push(served);
            });
        }
        if self.version == 1 {
            // Who took one has it.
            space.tuples.retain(Held::is_free);
            return released;
        }
        while let Some(at) = self.waiters.iter().position(|waiter| {
            let had = |held: &Held| held.matches(&waiter.template);
            let claims = waiter.space == name && waiter.purpose == Purpose::Claim;
            claims && !space.tuples.iter().any(had)
        }) {
            let Waiter { session, number, entry, .. } = self.waiters.remove(at);
            let entry = entry.unwrap();
            let inserted = space.out(&Entry { lease_ms: None, ..entry.clone() }, 0);
            let held = space.get(inserted).unwrap();
            let (purpose, lease_ms) = (Purpose::Claim, entry.lease_ms);
            held.holder = Holder::Offered { session, number, purpose, lease_ms };
            let reply = TupleReply::Inserted { number: inserted };
            released.push((session, number, Some(reply), true));
            serve_one(self.version, name, held, &mut self.waiters, |served| released.push(served));
        }
        released
    }

    fn end_wait(
        &mut self,
        client: u8,
        name: &str,
        (session, number): (SessionId, u64),
    ) -> (Option<Result<TupleReply, Refused>>, Vec<Served>) {
        let admits = |space: &&Space| !space.deleting && space.manages(client);
        if self.spaces.get(name).filter(admits).is_none() {
            return (Some(Err(Refused)), Vec::new());
        }
        let before = self.waiters.len();
        self.waiters.retain(|waiter| {
            waiter.space != name || (waiter.session, waiter.number) != (session, number)
        });
        let ended = self.waiters.len() < before;
        let released = ended.then_some((session, number, None, false));
        (Some(Ok(TupleReply::WaitEnded { ended })), released.into_iter().collect())
    }

    fn waits(&self, name: &str, after: u64, limit: u32, read: bool) -> Result<TupleReply, Refused> {
        if !read {
            return Err(Refused);
        }
        let own = self.waiters.iter().filter(|waiter| waiter.space == name);
        let waits = own.filter(|waiter| waiter.place > after).map(|waiter| Waiting {
            place: waiter.place,
            session: waiter.session,
            number: waiter.number,
            purpose: waiter.purpose,
            template: waiter.template.clone(),
            deadline: Time(waiter.deadline),
        });
        let mut waits: Vec<Waiting> = waits.collect();
        let more = waits.len() > limit as usize;
        waits.truncate(limit as usize);
        Ok(TupleReply::Waits { waits, more })
    }

    pub fn execute(
        &mut self,
        client: u8,
        now: u64,
        command: &TupleCommand,
    ) -> Result<TupleReply, Refused> {
        match command {
            TupleCommand::Spaces { after, limit } => {
                let names = self.spaces.keys().filter(|name| *name > after).cloned();
                let mut names: Vec<String> = names.collect();
                let more = names.len() > *limit as usize;
                names.truncate(*limit as usize);
                Ok(TupleReply::Spaces { names, more })
            }
            TupleCommand::On { space, operation } => self.operate(client, now, space, operation),
        }
    }

    fn operate(
        &mut self,
        client: u8,
        now: u64,
        name: &str,
        operation: &Operation,
    ) -> Result<TupleReply, Refused> {
        if let Operation::Create(options) = operation {
            if self.spaces.contains_key(name) {
                return Err(Refused);
            }
            let (options, next, tuples) = (options.clone(), self.first, Vec::new());
            let space = Space {
                options,
                creator: client,
                next,
                tuples,
                deleting: false,
                waited: 0,
                freed: false,
            };
            self.spaces.insert(name.into(), space);
            return Ok(TupleReply::Created);
        }
        let space = self.spaces.get_mut(name).ok_or(Refused)?;
        space
            .tuples
            .retain(|held| !held.is_free() || held.expires.is_none_or(|expires| expires > now));
        if *operation == Operation::Delete {
            if !space.manages(client) {
                return Err(Refused);
            }
            space.tuples.retain(Held::is_offered);
            let remaining = space.tuples.len() as u64;
            space.deleting = true;
            if remaining == 0 {
                self.first = self.first.max(space.next);
                self.spaces.remove(name);
            }
            return Ok(TupleReply::Deleted { remaining });
        }
        if space.deleting && *operation != Operation::Describe {
            return Err(Refused);
        }
        let options = space.options.clone();
        let may = |access: &Access| if access.admits(key(client)) { Ok(()) } else { Err(Refused) };
        match operation {
            Operation::Out(_) | Operation::OutAll(_) => may(&options.insert)?,
            Operation::Rdp(_) | Operation::RdAll { .. } | Operation::Rd { .. } => {
                may(&options.read)?;
            }
            Operation::Inp(_)
            | Operation::InAll { .. }
            | Operation::In { .. }
            | Operation::Lease { .. }
            | Operation::Renew { .. } => may(&options.take)?,
            Operation::Cas { .. } | Operation::Claim { .. } => {
                may(&options.insert).and(may(&options.read))?;
            }
            Operation::Replace { .. } | Operation::Add { .. } => {
                may(&options.insert).and(may(&options.take))?;
            }
            Operation::Break { .. } if !space.manages(client) => return Err(Refused),
            _ => {}
        }
        if let Operation::Waits { after, limit } = operation {
            let admitted = space.manages(client) || may(&options.read).is_ok();
            return self.waits(name, *after, *limit, admitted);
        }
        run(space, client, now, operation)
    }
}

impl Held {
    fn is_for(&self, whose: SessionId, command: u64) -> bool {
        matches!(self.holder, Holder::Offered { session, number, .. }
            if (session, number) == (whose, command))
    }
}

/// A purpose, what is waited for, how long, and for a lease how long that is, for a claim what is inserted.
type Wait = (Purpose, Template, u64, Option<u64>, Option<Entry>);

fn wait_of(operation: &Operation) -> Option<Wait> {
    let (purpose, template, wait_ms, lease_ms, entry) = match operation {
        Operation::Rd { template, wait_ms } => {
            (Purpose::Read, template.clone(), wait_ms, None, None)
        }
        Operation::In { template, wait_ms } => {
            (Purpose::Take, template.clone(), wait_ms, None, None)
        }
        Operation::Lease { template, lease_ms, wait_ms } => {
            (Purpose::Lease, template.clone(), wait_ms, Some(*lease_ms), None)
        }
        Operation::Claim { key, entry, wait_ms } => {
            (Purpose::Claim, of_key(entry, *key), wait_ms, None, Some(entry.clone()))
        }
        _ => return None,
    };
    (*wait_ms > 0).then_some((purpose, template, *wait_ms, lease_ms, entry))
}

/// Serves those who wait for one tuple.
fn serve_one(
    version: u16,
    name: &str,
    held: &mut Held,
    waiters: &mut Vec<Waiter>,
    mut release: impl FnMut(Served),
) {
    let copy = held.found();
    waiters.retain(|waiter| {
        let client = waiter.session.client.0[0];
        let (session, number, purpose) = (waiter.session, waiter.number, waiter.purpose);
        if waiter.space != name || purpose == Purpose::Claim {
            return true;
        }
        if purpose == Purpose::Read {
            // Under version 1 what was taken is gone.
            let there = version > 1 || held.is_free();
            let served = there && held.is(&waiter.template, &held.entry.read, client);
            if served {
                let reply = TupleReply::Found(Some(copy.clone()));
                release((session, number, Some(reply), false));
            }
            return !served;
        }
        if !held.is_free() || !held.is(&waiter.template, &held.entry.take, client) {
            return true;
        }
        let lease_ms = waiter.lease_ms;
        held.holder = Holder::Offered { session, number, purpose, lease_ms };
        let reply = if purpose == Purpose::Lease {
            held.token += 1;
            TupleReply::Leased(Some(held.leased(None)))
        } else if version == 1 {
            TupleReply::Found(Some(copy.clone()))
        } else {
            TupleReply::Found(Some(held.found()))
        };
        release((session, number, Some(reply), version > 1));
        false
    });
}

fn run(
    space: &mut Space,
    client: u8,
    now: u64,
    operation: &Operation,
) -> Result<TupleReply, Refused> {
    Ok(match operation {
        Operation::Describe => TupleReply::Described(SpaceDescription {
            options: space.options.clone(),
            creator: key(space.creator),
            tuples: space.tuples.len() as u64,
            waiters: 0,
            deleting: space.deleting,
        }),
        Operation::Out(entry) => TupleReply::Inserted { number: space.out(entry, now) },
        Operation::OutAll(entries) => {
            let first = space.next;
            for entry in entries {
                space.out(entry, now);
            }
            TupleReply::InsertedAll { first, count: entries.len() as u32 }
        }
        Operation::Rdp(template) | Operation::Rd { template, .. } => {
            TupleReply::Found(space.readable(template, client).into_iter().next())
        }
        Operation::Inp(template) | Operation::In { template, .. } => {
            let found = space.takeable(template, client).into_iter().next();
            space.remove(found.as_slice());
            TupleReply::Found(found)
        }
        Operation::RdAll { template, after, limit } => {
            let mut found = space.readable(template, client);
            found.retain(|found| found.number > *after);
            let (tuples, more) = several(found, *limit);
            TupleReply::FoundAll { tuples, more }
        }
        Operation::InAll { template, limit } => {
            let (tuples, more) = several(space.takeable(template, client), *limit);
            space.remove(&tuples);
            TupleReply::FoundAll { tuples, more }
        }
        Operation::Cas { template, entry } => {
            match space.readable(template, client).into_iter().next() {
                Some(found) => TupleReply::Found(Some(found)),
                None => TupleReply::Inserted { number: space.out(entry, now) },
            }
        }
        Operation::Replace { template, entry } => {
            match space.takeable(template, client).into_iter().next() {
                None => TupleReply::Found(None),
                Some(old) => {
                    space.remove(std::slice::from_ref(&old));
                    TupleReply::Replaced { old, number: space.out(entry, now) }
                }
            }
        }
        Operation::Renew { number, lease_ms } => renew(space, client, now, *number, *lease_ms),
        Operation::Claim { key, entry, .. } => {
            let template = of_key(entry, *key);
            if space.tuples.iter().any(|held| held.matches(&template)) {
                TupleReply::Found(None)
            } else {
                TupleReply::Inserted { number: space.out(entry, now) }
            }
        }
        Operation::Lease { template, lease_ms, .. } => {
            let Some(found) = space.takeable(template, client).into_iter().next() else {
                return Ok(TupleReply::Leased(None));
            };
            let held = space.get(found.number).unwrap();
            held.token += 1;
            held.leases += 1;
            held.holder = Holder::Leased { client, until: now + lease_ms };
            TupleReply::Leased(Some(held.leased(Some(now + lease_ms))))
        }
        Operation::Finish { number, token } => {
            let held = has_leased(space, client, *number, *token);
            space.tuples.retain(|other| !held || other.number != *number);
            TupleReply::Holding { held, until: None }
        }
        Operation::Return { number, token } => {
            let held = has_leased(space, client, *number, *token);
            if held {
                space.give_back(*number, now);
            }
            TupleReply::Holding { held, until: None }
        }
        Operation::Extend { number, token, lease_ms } => {
            if !has_leased(space, client, *number, *token) {
                return Ok(TupleReply::Holding { held: false, until: None });
            }
            let until = now + lease_ms;
            space.get(*number).unwrap().holder = Holder::Leased { client, until };
            TupleReply::Holding { held: true, until: Some(Time(until)) }
        }
        Operation::Add { fields, amount } => return add(space, client, now, fields, *amount),
        Operation::Break { number } => match space.get(*number).map(|held| held.holder) {
            None => TupleReply::Broken(Broken::Absent),
            Some(Holder::Offered { .. }) => return Err(Refused),
            Some(Holder::Leased { .. }) => {
                space.give_back(*number, now);
                TupleReply::Broken(Broken::Returned)
            }
            Some(Holder::Nobody) => {
                space.tuples.retain(|held| held.number != *number);
                TupleReply::Broken(Broken::Removed)
            }
        },
        _ => unreachable!("they came before"),
    })
}

fn has_leased(space: &mut Space, client: u8, number: u64, token: u64) -> bool {
    space.get(number).is_some_and(|held| {
        held.token == token
            && matches!(held.holder, Holder::Leased { client: holder, .. } if holder == client)
    })
}

fn add(
    space: &mut Space,
    client: u8,
    now: u64,
    fields: &Tuple,
    amount: i64,
) -> Result<TupleReply, Refused> {
    let mut template: Vec<Pattern> = fields.fields().map(Pattern::Value).collect();
    template.push(Pattern::Kind(Kind::Integer));
    let template = Template { fields: template };
    let counter = |value: i64| {
        let fields: Vec<Field> = fields.fields().chain([value.into()]).collect();
        Tuple::new(&fields).unwrap()
    };
    let Some(old) = space.takeable(&template, client).into_iter().next() else {
        if space.tuples.iter().any(|held| held.is(&template, &held.entry.take, client)) {
            return Err(Refused);
        }
        let number = space.out(&Entry::new(counter(amount)), now);
        return Ok(TupleReply::Added { number, value: amount });
    };
    let Some(Field::Integer(before)) = old.tuple.fields().last() else { unreachable!() };
    let value = before.checked_add(amount).ok_or(Refused)?;
    let held = space.get(old.number).unwrap().clone();
    space.remove(&[old]);
    let number = space.out(&Entry { tuple: counter(value), ..held.entry }, now);
    space.get(number).unwrap().expires = held.expires;
    Ok(TupleReply::Added { number, value })
}

fn renew(space: &mut Space, client: u8, now: u64, number: u64, lease: Option<u64>) -> TupleReply {
    let held = space.get(number);
    match held.filter(|held| held.is_free() && held.entry.take.admits(key(client))) {
        None => TupleReply::Renewed { renewed: false, expires: None },
        Some(held) => {
            held.expires = lease.map(|lease| now + lease);
            let expires = held.expires.map(Time);
            if held.expires == Some(now) {
                space.tuples.retain(|held| held.number != number);
            }
            TupleReply::Renewed { renewed: true, expires }
        }
    }
}
