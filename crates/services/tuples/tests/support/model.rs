//! The tuple spaces as one would write them without an index, an order of leases, segments and
//! limits.

use super::key;
use perdura_protocol::{SessionId, Time};
use perdura_tuples::{
    Access, Entry, Field, Found, Operation, Pattern, SpaceDescription, SpaceOptions, Template,
    TupleCommand, TupleReply,
};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Held {
    number: u64,
    expires: Option<u64>,
    entry: Entry,
}

#[derive(Clone, Debug)]
struct Space {
    options: SpaceOptions,
    creator: u8,
    next: u64,
    // By number.
    tuples: Vec<Held>,
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub session: SessionId,
    pub number: u64,
    pub deadline: u64,
    space: String,
    takes: bool,
    template: Template,
}

#[derive(Clone, Debug)]
pub struct Model {
    spaces: BTreeMap<String, Space>,
    first: u64,
    // In the order in which they began to wait.
    pub waiters: Vec<Waiter>,
}

/// A released reply; `None` for a refusal.
pub type Served = (SessionId, u64, Option<TupleReply>);

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

impl Held {
    fn is(&self, template: &Template, access: &Access, client: u8) -> bool {
        let fields: Vec<Field> = self.entry.tuple.fields().collect();
        access.admits(key(client)) && matches(template, &fields)
    }

    fn found(&self) -> Found {
        let (number, expires) = (self.number, self.expires.map(Time));
        Found { number, expires, tuple: self.entry.tuple.clone() }
    }
}

impl Space {
    fn out(&mut self, entry: &Entry, now: u64) -> u64 {
        let number = self.next;
        let expires = entry.lease_ms.map(|lease| now + lease);
        self.tuples.push(Held { number, expires, entry: entry.clone() });
        self.next += 1;
        number
    }

    fn readable(&self, template: &Template, client: u8) -> Vec<Found> {
        let held = self.tuples.iter();
        held.filter(|held| held.is(template, &held.entry.read, client)).map(Held::found).collect()
    }

    fn takeable(&self, template: &Template, client: u8) -> Vec<Found> {
        let held = self.tuples.iter();
        held.filter(|held| held.is(template, &held.entry.take, client)).map(Held::found).collect()
    }

    fn remove(&mut self, found: &[Found]) {
        self.tuples.retain(|held| found.iter().all(|found| found.number != held.number));
    }
}

fn several(mut tuples: Vec<Found>, limit: u32) -> (Vec<Found>, bool) {
    let more = tuples.len() > limit as usize;
    tuples.truncate(limit as usize);
    (tuples, more)
}

impl Default for Model {
    fn default() -> Model {
        Model { spaces: BTreeMap::new(), first: 1, waiters: Vec::new() }
    }
}

impl Model {
    /// Waits that end at a time, by session and number.
    pub fn on_time(&mut self, now: u64) -> Vec<(SessionId, u64)> {
        let (ended, still): (Vec<Waiter>, Vec<Waiter>) =
            self.waiters.drain(..).partition(|waiter| waiter.deadline <= now);
        self.waiters = still;
        let mut ended: Vec<_> = ended.iter().map(|w| (w.session, w.number)).collect();
        ended.sort_unstable();
        ended
    }

    /// What a command gives, `None` if it waits, and what it releases; `None` for a refusal.
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
        let (template, wait_ms, takes) = match operation {
            Operation::Rd { template, wait_ms } => (template, wait_ms, false),
            Operation::In { template, wait_ms } => (template, wait_ms, true),
            _ => {
                let reply = self.execute(client, now, command);
                return (Some(reply), self.serve(name));
            }
        };
        let at_once =
            if takes { Operation::Inp(template.clone()) } else { Operation::Rdp(template.clone()) };
        let found = self.operate(client, now, name, &at_once);
        if found != Ok(TupleReply::Found(None)) {
            return (Some(found), Vec::new());
        }
        let (space, template, deadline) = (name.clone(), template.clone(), now + wait_ms);
        self.waiters.push(Waiter { session, number, deadline, space, takes, template });
        (None, Vec::new())
    }

    /// Gives the tuples of a space, oldest first, to those who wait, until nobody gets any.
    fn serve(&mut self, name: &str) -> Vec<Served> {
        let mut released = Vec::new();
        let Some(space) = self.spaces.get_mut(name) else {
            let gone = |waiter: &Waiter| waiter.space == name;
            for waiter in self.waiters.iter().filter(|waiter| gone(waiter)) {
                released.push((waiter.session, waiter.number, None));
            }
            self.waiters.retain(|waiter| !gone(waiter));
            return released;
        };
        for held in space.tuples.clone() {
            let mut taken = false;
            self.waiters.retain(|waiter| {
                let client = waiter.session.client.0[0];
                let access = if waiter.takes { &held.entry.take } else { &held.entry.read };
                let served =
                    !taken && waiter.space == name && held.is(&waiter.template, access, client);
                if served {
                    taken = waiter.takes;
                    let reply = TupleReply::Found(Some(held.found()));
                    released.push((waiter.session, waiter.number, Some(reply)));
                }
                !served
            });
            if taken {
                space.remove(&[held.found()]);
            }
        }
        released
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
            let (options, next) = (options.clone(), self.first);
            let space = Space { options, creator: client, next, tuples: Vec::new() };
            self.spaces.insert(name.into(), space);
            return Ok(TupleReply::Created);
        }
        let space = self.spaces.get_mut(name).ok_or(Refused)?;
        space.tuples.retain(|held| held.expires.is_none_or(|expires| expires > now));
        if *operation == Operation::Delete {
            if client != space.creator && !space.options.manage.admits(key(client)) {
                return Err(Refused);
            }
            self.first = self.first.max(space.next);
            self.spaces.remove(name);
            return Ok(TupleReply::Deleted { remaining: 0 });
        }
        let options = space.options.clone();
        let may = |access: &Access| if access.admits(key(client)) { Ok(()) } else { Err(Refused) };
        match operation {
            Operation::Out(_) | Operation::OutAll(_) => may(&options.insert)?,
            Operation::Rdp(_) | Operation::RdAll { .. } => may(&options.read)?,
            Operation::Inp(_) | Operation::InAll { .. } | Operation::Renew { .. } => {
                may(&options.take)?;
            }
            Operation::Cas { .. } => may(&options.insert).and(may(&options.read))?,
            Operation::Replace { .. } => may(&options.insert).and(may(&options.take))?,
            Operation::Create(_) | Operation::Delete | Operation::Describe => {}
            _ => unreachable!("those of version 2, and what waits, come by another way"),
        }
        Ok(run(space, client, now, operation))
    }
}

fn run(space: &mut Space, client: u8, now: u64, operation: &Operation) -> TupleReply {
    match operation {
        Operation::Describe => TupleReply::Described(SpaceDescription {
            options: space.options.clone(),
            creator: key(space.creator),
            tuples: space.tuples.len() as u64,
            waiters: 0,
            deleting: false,
        }),
        Operation::Out(entry) => TupleReply::Inserted { number: space.out(entry, now) },
        Operation::OutAll(entries) => {
            let first = space.next;
            for entry in entries {
                space.out(entry, now);
            }
            TupleReply::InsertedAll { first, count: entries.len() as u32 }
        }
        Operation::Rdp(template) => {
            TupleReply::Found(space.readable(template, client).into_iter().next())
        }
        Operation::Inp(template) => {
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
        _ => unreachable!("they came before"),
    }
}

fn renew(space: &mut Space, client: u8, now: u64, number: u64, lease: Option<u64>) -> TupleReply {
    let held = space.tuples.iter_mut().find(|held| held.number == number);
    match held.filter(|held| held.entry.take.admits(key(client))) {
        None => TupleReply::Renewed { renewed: false, expires: None },
        Some(held) => {
            held.expires = lease.map(|lease| now + lease);
            let expires = held.expires.map(Time);
            space.tuples.retain(|held| held.expires.is_none_or(|expires| expires > now));
            TupleReply::Renewed { renewed: true, expires }
        }
    }
}
