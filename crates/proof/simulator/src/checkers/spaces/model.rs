//! Tuple spaces as their documentation has them (`docs/tuples.md`), in the plainest way: lists that
//! are gone through from the oldest on. Of the service it has the words, which are the types of
//! commands and replies, how these are decoded, and the documented limits; what matches, who is
//! admitted and everything that is done is its own.

use perdura_protocol::{PublicKey, SessionId, Time};
use perdura_tuples::{
    Access, Entry, Field, Found, Kind, Operation, Pattern, SpaceDescription, SpaceOptions,
    Template, Tuple, TupleCommand, TupleReply, limits,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a command gives; a refusal's words are nobody's business.
pub type Answer = Result<TupleReply, ()>;

/// The answer to a command that had waited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Late {
    /// Its session.
    pub session: SessionId,
    /// Its number there.
    pub number: u64,
    /// What it gives.
    pub answer: Answer,
    /// Whether its client has to confirm that it has it.
    pub offer: bool,
}

impl Late {
    fn new(Caller { session, number }: Caller, answer: Answer) -> Late {
        Late { session, number, answer, offer: false }
    }
}

/// Whose command it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its session.
    pub session: SessionId,
    /// Its number there.
    pub number: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    number: u64,
    entry: Entry,
    expires: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Waiter {
    caller: Caller,
    takes: bool,
    template: Template,
    deadline: Time,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Space {
    // Spaces that were created before it.
    order: u64,
    options: SpaceOptions,
    creator: PublicKey,
    // What the next tuple will have; nothing before the first one.
    next: Option<u64>,
    deleting: bool,
    // The oldest first.
    tuples: Vec<Held>,
    // Who began to wait first is first.
    waiters: Vec<Waiter>,
}

/// All spaces. Copies share what does not change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    spaces: BTreeMap<String, Arc<Space>>,
    // The largest number that a tuple of a deleted space of this name ever had.
    used: BTreeMap<String, u64>,
    created: u64,
    now: Time,
    version: u16,
    /// Tuples whose leases ended so far.
    pub ended: u64,
    /// The most of these that were left for a later batch.
    pub left: u64,
    /// Deletions that left tuples for another one.
    pub partly_deleted: u64,
}

fn admits(access: &Access, client: PublicKey) -> bool {
    match access {
        Access::Anyone => true,
        Access::Only(keys) => keys.contains(&client),
    }
}

/// Whether two fields are the same: of one type, and in it the same value.
fn equal(one: &Field, other: &Field) -> bool {
    match (one, other) {
        (Field::String(one), Field::String(other)) => one.as_bytes() == other.as_bytes(),
        (Field::Bytes(one), Field::Bytes(other)) => one[..] == other[..],
        (Field::Integer(one), Field::Integer(other)) => one == other,
        // Neither is NaN.
        (Field::Float(one), Field::Float(other)) => one.get().total_cmp(&other.get()).is_eq(),
        (Field::Bool(one), Field::Bool(other)) => one == other,
        _ => false,
    }
}

fn is_of(field: &Field, kind: Kind) -> bool {
    match field {
        Field::String(_) => kind == Kind::String,
        Field::Bytes(_) => kind == Kind::Bytes,
        Field::Integer(_) => kind == Kind::Integer,
        Field::Float(_) => kind == Kind::Float,
        Field::Bool(_) => kind == Kind::Bool,
    }
}

fn matches(template: &Template, tuple: &Tuple) -> bool {
    let fields: Vec<Field> = tuple.fields().collect();
    let fits = |(pattern, field): (&Pattern, &Field)| match pattern {
        Pattern::Any => true,
        Pattern::Kind(kind) => is_of(field, *kind),
        Pattern::Value(value) => equal(value, field),
    };
    fields.len() == template.fields.len() && template.fields.iter().zip(&fields).all(fits)
}

impl Held {
    fn found(&self) -> Found {
        let Held { number, expires, .. } = *self;
        Found { number, expires, tuple: self.entry.tuple.clone() }
    }

    fn is_for(&self, client: PublicKey, takes: bool) -> bool {
        admits(if takes { &self.entry.take } else { &self.entry.read }, client)
    }

    fn ended(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Space {
    /// Where the matches stand that a client may read or take at this time, the oldest first.
    fn find(&self, template: &Template, client: PublicKey, takes: bool, now: Time) -> Vec<usize> {
        let fits = |held: &Held| {
            !held.ended(now) && held.is_for(client, takes) && matches(template, &held.entry.tuple)
        };
        (0..self.tuples.len()).filter(|at| fits(&self.tuples[*at])).collect()
    }

    /// As many of these as one command gives, and whether there are more.
    fn several(&self, places: &[usize], limit: u32) -> (Vec<usize>, bool) {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for at in places {
            bytes += self.tuples[*at].entry.tuple.bytes();
            let full = bytes > limits::RESULT_BYTES && !taken.is_empty();
            if taken.len() == limit as usize || full {
                return (taken, true);
            }
            taken.push(*at);
        }
        (taken, false)
    }

    /// Inserts a tuple and serves who waits for it.
    fn insert(&mut self, number: u64, entry: &Entry, now: Time, late: &mut Vec<Late>) {
        let expires = entry.lease_ms.map(|lease_ms| Time(now.0 + lease_ms));
        let held = Held { number, entry: entry.clone(), expires };
        let answer = || Ok(TupleReply::Found(Some(held.found())));
        let mut taken = false;
        self.waiters.retain(|waiter| {
            let served = !taken
                && held.is_for(waiter.caller.session.client, waiter.takes)
                && matches(&waiter.template, &entry.tuple);
            if served {
                late.push(Late::new(waiter.caller, answer()));
                taken = waiter.takes;
            }
            !served
        });
        if !taken {
            self.tuples.push(held);
        }
    }
}

/// The number of the first tuple that a reply says was inserted.
fn first_number(reply: Option<&TupleReply>) -> Option<u64> {
    match reply? {
        TupleReply::Inserted { number } | TupleReply::Replaced { number, .. } => Some(*number),
        TupleReply::InsertedAll { first, .. } => Some(*first),
        _ => None,
    }
}

impl Model {
    /// A batch begins at this time, under this version of the rules: waits end in vain, and what has ended is removed, so much at a
    /// time.
    pub fn begin(&mut self, time: Time, version: u16) -> Vec<Late> {
        (self.now, self.version) = (time, version);
        let mut late = Vec::new();
        for space in self.spaces.values_mut() {
            let waits = |waiter: &Waiter| waiter.deadline > time;
            if space.waiters.iter().all(waits) {
                continue;
            }
            Arc::make_mut(space).waiters.retain(|waiter| {
                if !waits(waiter) {
                    late.push(Late::new(waiter.caller, Ok(TupleReply::Found(None))));
                }
                waits(waiter)
            });
        }
        self.expire();
        late
    }

    /// Removes tuples whose leases have ended, those that ended first before the others.
    fn expire(&mut self) {
        let ended = |space: &Arc<Space>| {
            let ended = space.tuples.iter().filter(|held| held.ended(self.now));
            let order = space.order;
            ended.map(|held| (held.expires, order, held.number)).collect::<Vec<_>>()
        };
        let mut ended: Vec<_> = self.spaces.values().flat_map(ended).collect();
        if ended.is_empty() {
            return;
        }
        ended.sort_unstable();
        let left = ended.len().saturating_sub(limits::EXPIRED_AT_ONCE);
        self.left = self.left.max(left as u64);
        ended.truncate(limits::EXPIRED_AT_ONCE);
        self.ended += ended.len() as u64;
        let gone: BTreeSet<_> = ended.iter().map(|(_, order, number)| (*order, *number)).collect();
        for space in self.spaces.values_mut() {
            let order = space.order;
            if ended.iter().any(|(_, of, _)| *of == order) {
                let stays = |held: &Held| !gone.contains(&(order, held.number));
                Arc::make_mut(space).tuples.retain(stays);
            }
        }
    }

    /// A client has what it was offered; whether it was.
    pub fn confirm(&mut self, _: Caller) -> bool {
        false
    }

    /// What a client was offered is the next one's.
    pub fn take_back(&mut self, _: Caller) -> Vec<Late> {
        Vec::new()
    }

    /// A client went on without the reply.
    pub fn forget(&mut self, caller: Caller) {
        for space in self.spaces.values_mut() {
            if space.waiters.iter().any(|waiter| waiter.caller == caller) {
                Arc::make_mut(space).waiters.retain(|waiter| waiter.caller != caller);
            }
        }
    }

    /// What a command gives, nothing if it waits, and what those who waited get. Which number the first
    /// tuple of a space has is learned from `reply`: it is above those of all spaces of the name
    /// before. From then on each tuple has the next.
    pub fn run(
        &mut self,
        caller: Caller,
        command: &TupleCommand,
        reply: Option<&TupleReply>,
    ) -> (Option<Answer>, Vec<Late>) {
        let mut late = Vec::new();
        let answer = match command {
            TupleCommand::Spaces { after, limit } => Ok(Some(self.names(after, *limit))),
            TupleCommand::On { space: name, operation } => {
                let used = self.used.get(name).copied().unwrap_or_default();
                let learned = first_number(reply).filter(|number| *number > used);
                let first = learned.unwrap_or(used + 1);
                self.operate(caller, name, operation, first, &mut late)
            }
        };
        (answer.transpose(), late)
    }

    /// What a read gives that was not ordered; nothing if it would meet a lease.
    #[must_use]
    pub fn ask(&self, client: PublicKey, command: &TupleCommand) -> Option<Answer> {
        let (name, operation) = match command {
            TupleCommand::Spaces { after, limit } => return Some(Ok(self.names(after, *limit))),
            TupleCommand::On { space, operation } => (space, operation),
        };
        let Some(space) = self.spaces.get(name) else { return Some(Err(())) };
        if space.refuses(operation) {
            return Some(Err(()));
        }
        let (template, after, count) = match operation {
            Operation::Rdp(template) => (Some(template), 0, 1),
            Operation::RdAll { template, after, limit } => {
                (Some(template), *after, *limit as usize + 1)
            }
            _ => (None, 0, 0),
        };
        if let Some(template) = template.filter(|_| admits(&space.options.read, client)) {
            let places = space.find(template, client, false, Time(0));
            let mut met = places.iter().filter(|at| space.tuples[**at].number > after).take(count);
            if met.any(|at| space.tuples[*at].expires.is_some()) {
                return None;
            }
        }
        Some(read(space, client, operation, Time(0)))
    }

    fn names(&self, after: &str, limit: u32) -> TupleReply {
        let above = |name: &&String| name.as_str() > after || after.is_empty();
        let names: Vec<String> = self.spaces.keys().filter(above).cloned().collect();
        let more = names.len() > limit as usize;
        TupleReply::Spaces { names: names.into_iter().take(limit as usize).collect(), more }
    }

    fn operate(
        &mut self,
        caller: Caller,
        name: &str,
        operation: &Operation,
        first: u64,
        late: &mut Vec<Late>,
    ) -> Result<Option<TupleReply>, ()> {
        let (client, now) = (caller.session.client, self.now);
        if let Operation::Create(options) = operation {
            if self.spaces.contains_key(name) {
                return Err(());
            }
            let space = Space {
                order: self.created,
                options: options.clone(),
                creator: client,
                next: None,
                deleting: false,
                tuples: Vec::new(),
                waiters: Vec::new(),
            };
            self.created += 1;
            self.spaces.insert(name.to_owned(), Arc::new(space));
            return Ok(Some(TupleReply::Created));
        }
        let Some(space) = self.spaces.get_mut(name) else { return Err(()) };
        if space.refuses(operation) {
            return Err(());
        }
        let admitted = match space.admitted(client, operation) {
            Some(admitted) => admitted,
            None => return read(space, client, operation, now).map(Some),
        };
        if !admitted {
            return Err(());
        }
        let space = Arc::make_mut(space);
        match operation {
            Operation::Delete => {
                let refused = |waiter: Waiter| Late::new(waiter.caller, Err(()));
                late.extend(space.waiters.drain(..).map(refused));
                space.tuples.drain(..space.tuples.len().min(limits::DELETED_AT_ONCE));
                let remaining = space.tuples.len() as u64;
                space.deleting = true;
                if remaining > 0 {
                    self.partly_deleted += 1;
                } else {
                    if let Some(next) = space.next {
                        self.used.insert(name.to_owned(), next - 1);
                    }
                    self.spaces.remove(name);
                }
                Ok(Some(TupleReply::Deleted { remaining }))
            }
            Operation::Inp(template)
            | Operation::In { template, .. }
            | Operation::Rd { template, .. } => {
                Ok(space.find_or_wait(caller, template, operation, now))
            }
            Operation::Out(_)
            | Operation::OutAll(_)
            | Operation::Cas { .. }
            | Operation::Replace { .. } => Ok(Some(space.put(client, operation, now, first, late))),
            Operation::InAll { template, limit } => {
                let places = space.find(template, client, true, now);
                let (places, more) = space.several(&places, *limit);
                let tuples = places.iter().map(|at| space.tuples[*at].found()).collect();
                for at in places.into_iter().rev() {
                    space.tuples.remove(at);
                }
                Ok(Some(TupleReply::FoundAll { tuples, more }))
            }
            Operation::Renew { number, lease_ms } => {
                Ok(Some(space.renew(client, *number, *lease_ms, now)))
            }
            _ => Err(()),
        }
    }
}

impl Space {
    /// Whether it is being deleted, and takes nothing else meanwhile.
    fn refuses(&self, operation: &Operation) -> bool {
        self.deleting && !matches!(operation, Operation::Describe | Operation::Delete)
    }

    /// Whether the space lets a client do something; nothing of what changes nothing.
    fn admitted(&self, client: PublicKey, operation: &Operation) -> Option<bool> {
        let SpaceOptions { insert, read, take, manage, .. } = &self.options;
        let (inserts, reads) = (admits(insert, client), admits(read, client));
        let takes = admits(take, client);
        Some(match operation {
            Operation::Delete => admits(manage, client) || self.creator == client,
            Operation::Out(_) | Operation::OutAll(_) => inserts,
            Operation::Cas { .. } => inserts && reads,
            Operation::Replace { .. } => inserts && takes,
            Operation::In { .. }
            | Operation::Inp(_)
            | Operation::InAll { .. }
            | Operation::Renew { .. } => takes,
            Operation::Rd { .. } => reads,
            _ => return None,
        })
    }

    /// The oldest match, or else it waits if it may.
    fn find_or_wait(
        &mut self,
        caller: Caller,
        template: &Template,
        operation: &Operation,
        now: Time,
    ) -> Option<TupleReply> {
        let takes = !matches!(operation, Operation::Rd { .. });
        if let Some(at) = self.find(template, caller.session.client, takes, now).first().copied() {
            let found = self.tuples[at].found();
            if takes {
                self.tuples.remove(at);
            }
            return Some(TupleReply::Found(Some(found)));
        }
        match operation {
            Operation::In { wait_ms, .. } | Operation::Rd { wait_ms, .. } => {
                let (template, deadline) = (template.clone(), Time(now.0 + wait_ms));
                self.waiters.push(Waiter { caller, takes, template, deadline });
                None
            }
            _ => Some(TupleReply::Found(None)),
        }
    }

    /// What inserts tuples, perhaps in the place of another one; `first` is the number of the first
    /// one of the space.
    fn put(
        &mut self,
        client: PublicKey,
        operation: &Operation,
        now: Time,
        first: u64,
        late: &mut Vec<Late>,
    ) -> TupleReply {
        let (first, mut old) = (self.next.unwrap_or(first), None);
        let entries = match operation {
            Operation::Cas { template, entry } => {
                if let Some(at) = self.find(template, client, false, now).first() {
                    return TupleReply::Found(Some(self.tuples[*at].found()));
                }
                std::slice::from_ref(entry)
            }
            Operation::Replace { template, entry } => {
                let Some(at) = self.find(template, client, true, now).first().copied() else {
                    return TupleReply::Found(None);
                };
                old = Some(self.tuples.remove(at).found());
                std::slice::from_ref(entry)
            }
            Operation::Out(entry) => std::slice::from_ref(entry),
            Operation::OutAll(entries) => entries,
            _ => &[],
        };
        for (number, entry) in (first..).zip(entries) {
            self.insert(number, entry, now, late);
            self.next = Some(number + 1);
        }
        match (old, operation) {
            (Some(old), _) => TupleReply::Replaced { old, number: first },
            (None, Operation::OutAll(_)) => {
                TupleReply::InsertedAll { first, count: entries.len() as u32 }
            }
            (None, _) => TupleReply::Inserted { number: first },
        }
    }

    fn renew(
        &mut self,
        client: PublicKey,
        number: u64,
        lease_ms: Option<u64>,
        now: Time,
    ) -> TupleReply {
        let held =
            |held: &Held| held.number == number && !held.ended(now) && held.is_for(client, true);
        let Some(at) = self.tuples.iter().position(held) else {
            return TupleReply::Renewed { renewed: false, expires: None };
        };
        let expires = lease_ms.map(|lease_ms| Time(now.0 + lease_ms));
        self.tuples[at].expires = expires;
        if lease_ms == Some(0) {
            self.tuples.remove(at);
        }
        TupleReply::Renewed { renewed: true, expires }
    }
}

/// What an operation gives at this time that changes nothing.
fn read(space: &Space, client: PublicKey, operation: &Operation, now: Time) -> Answer {
    if *operation == Operation::Describe {
        return Ok(TupleReply::Described(SpaceDescription {
            options: space.options.clone(),
            creator: space.creator,
            tuples: space.tuples.len() as u64,
            waiters: space.waiters.len() as u64,
            deleting: space.deleting,
        }));
    }
    if !admits(&space.options.read, client) {
        return Err(());
    }
    match operation {
        Operation::Rdp(template) => {
            let found = space.find(template, client, false, now);
            Ok(TupleReply::Found(found.first().map(|at| space.tuples[*at].found())))
        }
        Operation::RdAll { template, after, limit } => {
            let mut places = space.find(template, client, false, now);
            places.retain(|at| space.tuples[*at].number > *after);
            let (places, more) = space.several(&places, *limit);
            let tuples = places.into_iter().map(|at| space.tuples[at].found()).collect();
            Ok(TupleReply::FoundAll { tuples, more })
        }
        _ => Err(()),
    }
}
