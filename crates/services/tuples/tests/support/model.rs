//! The tuple spaces as one would write them without an index, an order of leases, segments and
//! limits, under both versions of their rules.

mod run;

use super::key;
use perdura_protocol::{SessionId, Time};
use perdura_tuples::{
    Access, Entry, Field, Found, Leased, Operation, Pattern, Purpose, SpaceOptions, Template,
    TupleCommand, TupleReply, Waiting,
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

    /// Whether a command has it that takes it for good.
    fn leaves(&self) -> bool {
        matches!(self.holder, Holder::Offered { purpose: Purpose::Take, .. })
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
        let held = self.tuples.iter().filter(|held| !held.leaves());
        held.filter(|held| held.is(template, &held.entry.read, client)).map(Held::found).collect()
    }

    /// What keeps a client from inserting.
    fn there(&self, template: &Template, client: u8) -> Vec<Found> {
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
        // Where nobody waits they end at whole seconds, together.
        let alone = self.waiters.is_empty();
        let end = |end: u64| if alone { end.next_multiple_of(1000) } else { end };
        let leases = tuples.filter_map(Held::end).filter(|_| self.version > 1).map(end);
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
    pub fn confirm(&mut self, now: u64, session: SessionId, number: u64) -> Vec<Served> {
        let mut served = Vec::new();
        for name in self.spaces.keys().cloned().collect::<Vec<_>>() {
            let space = self.spaces.get_mut(&name).unwrap();
            let Some(held) = space.tuples.iter_mut().find(|held| held.is_for(session, number))
            else {
                continue;
            };
            let Holder::Offered { purpose, lease_ms, .. } = held.holder else { continue };
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
            served.extend(self.serve(&name));
        }
        served
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
        run::run(space, client, now, operation)
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
            let served = !held.leaves() && held.is(&waiter.template, &held.entry.read, client);
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
