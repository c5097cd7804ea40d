//! Tuple spaces as their documentation has them (`docs/tuples.md`), in the plainest way: lists that
//! are gone through from the oldest on. Of the service it has the words, which are the types of
//! commands and replies, how these are decoded, and the documented limits; what matches, who is
//! admitted and everything that is done is its own.

use super::Judged;
use perdura_protocol::{PublicKey, SessionId, Time};
use perdura_tuples::{Operation, Purpose, SpaceDescription, TupleCommand, TupleReply, limits};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod matching;
mod space;

use matching::admits;
use space::{Holder, ModelEntry, Space, Waiter, Wish};

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

/// When something happens, and under which version of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Moment {
    clock: Time,
    // By how much agreed time, by which clients are told when something ends, is ahead of the clock, milliseconds; none between commands, where nobody
    // is told.
    ahead_ms: Option<u64>,
    version: u16,
}

impl Moment {
    fn shown(self, at: Time) -> Option<Time> {
        self.ahead_ms.map(|ahead_ms| Time(at.0 + ahead_ms))
    }
}

/// All spaces. Copies share what does not change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    spaces: BTreeMap<String, Arc<Space>>,
    // The largest number that a tuple of a deleted space of this name ever had.
    used: BTreeMap<String, u64>,
    created: u64,
    at: Moment,
    /// What it learned beside.
    pub judged: Judged,
}

/// The number of the first tuple that a reply says was inserted.
fn first_number(reply: Option<&TupleReply>) -> Option<u64> {
    match reply? {
        TupleReply::Inserted { number }
        | TupleReply::Replaced { number, .. }
        | TupleReply::Added { number, .. } => Some(*number),
        TupleReply::InsertedAll { first, .. } => Some(*first),
        _ => None,
    }
}

/// Whether version 1 refuses an operation.
fn is_of_version_2(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Claim { .. }
            | Operation::Lease { .. }
            | Operation::Finish { .. }
            | Operation::Return { .. }
            | Operation::Extend { .. }
            | Operation::Add { .. }
            | Operation::Waits { .. }
            | Operation::EndWait { .. }
            | Operation::Break { .. }
    )
}

impl Model {
    /// The version of the rules is another one from here on; whether it is.
    pub fn is_raised(&mut self, version: u16) -> bool {
        std::mem::replace(&mut self.at.version, version) != version
    }

    /// A batch begins at this time, under this version of the rules: waits end in vain, and what has ended is removed or given back, so
    /// much at a time.
    pub fn begin(&mut self, clock: Time, version: u16) -> Vec<Late> {
        self.at = Moment { clock, ahead_ms: None, version };
        let mut late = Vec::new();
        for space in self.spaces.values_mut() {
            let waits = |waiter: &Waiter| waiter.deadline > clock;
            if space.waiters.iter().all(waits) {
                continue;
            }
            Arc::make_mut(space).waiters.retain(|waiter| {
                if !waits(waiter) {
                    late.push(Late::new(waiter.caller, Ok(waiter.nothing())));
                }
                waits(waiter)
            });
        }
        self.expire(&mut late);
        late
    }

    /// Removes tuples whose leases have ended, and gives those back that somebody had until now; those that ended first before the others.
    fn expire(&mut self, late: &mut Vec<Late>) {
        let at = self.at;
        let ended = |space: &Arc<Space>| {
            let due = |held: &ModelEntry| held.end().filter(|end| *end <= at.clock);
            let due =
                space.tuples.iter().filter_map(|held| Some((due(held)?, space.order, held.number)));
            due.collect::<Vec<_>>()
        };
        let mut ended: Vec<_> = self.spaces.values().flat_map(ended).collect();
        if ended.is_empty() {
            return;
        }
        ended.sort_unstable();
        let most = if at.version > 1 { limits::ENDED_AT_ONCE } else { limits::EXPIRED_AT_ONCE };
        let left = ended.len().saturating_sub(most);
        self.judged.leases_left = self.judged.leases_left.max(left as u64);
        ended.truncate(most);
        let ended: BTreeSet<_> = ended.iter().map(|(_, order, number)| (*order, *number)).collect();
        for space in self.spaces.values_mut() {
            let (order, deleting) = (space.order, space.deleting);
            if ended.range((order, 0)..=(order, u64::MAX)).next().is_none() {
                continue;
            }
            let space = Arc::make_mut(space);
            let (mut gone, mut given) = (Vec::new(), Vec::new());
            space.tuples.retain_mut(|held| {
                if !ended.contains(&(order, held.number)) {
                    return true;
                }
                self.judged.jobs_returned += u64::from(!held.is_free());
                let stays = held.give_back(at.clock, deleting);
                if stays {
                    given.push(held.number);
                } else {
                    gone.push(held.entry.tuple.clone());
                }
                stays
            });
            self.judged.leases_ended += gone.len() as u64;
            given.into_iter().for_each(|number| space.serve(number, at, late));
            let before = late.len();
            space.let_through(gone, at, late);
            self.judged.claims_by_ended +=
                late[before..].iter().filter(|late| late.offer).count() as u64;
        }
    }

    /// The space in which a client is offered something, and where that stands.
    fn offered(&mut self, caller: Caller) -> Option<(&mut Space, usize)> {
        self.spaces.values_mut().find_map(|space| {
            let place = space.tuples.iter().position(|held| held.is_offered_to(caller))?;
            Some((Arc::make_mut(space), place))
        })
    }

    /// A client has what it was offered, if it was, and what those get who waited for that.
    pub fn confirm(&mut self, caller: Caller) -> Option<Vec<Late>> {
        self.at.ahead_ms = None;
        let (at, mut late) = (self.at, Vec::new());
        let (space, place) = self.offered(caller)?;
        let claimed = is_claimed(&space.tuples[place]);
        space.confirm(place, at, &mut late);
        self.judged.claims_served += u64::from(claimed);
        Some(late)
    }

    /// What a client was offered is the next one's.
    pub fn take_back(&mut self, caller: Caller) -> Vec<Late> {
        self.at.ahead_ms = None;
        let (at, mut late) = (self.at, Vec::new());
        let Some((space, place)) = self.offered(caller) else { return late };
        if is_claimed(&space.tuples[place]) {
            let gone = space.tuples.remove(place).entry.tuple;
            space.let_through(vec![gone], at, &mut late);
        } else {
            space.give_to_next(place, at, &mut late);
        }
        late
    }

    /// A client went on without the reply.
    pub fn forget(&mut self, caller: Caller) {
        for space in self.spaces.values_mut() {
            if space.waiters.iter().any(|waiter| waiter.caller == caller) {
                Arc::make_mut(space).waiters.retain(|waiter| waiter.caller != caller);
            }
        }
    }

    /// What a command gives while agreed time is so far ahead of the clock, nothing if it waits, and what those who waited get. Which
    /// number the first tuple of a space has is learned from `reply`: it is above those of all spaces of the name
    /// before. From then on each tuple has the next.
    pub fn run(
        &mut self,
        caller: Caller,
        command: &TupleCommand,
        ahead_ms: u64,
        reply: Option<&TupleReply>,
    ) -> (Option<Answer>, Vec<Late>) {
        self.at.ahead_ms = Some(ahead_ms);
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

    /// What a read gives that was not ordered; nothing if it would meet a lease, or tell when a wait ends.
    #[must_use]
    pub fn ask(&self, client: PublicKey, command: &TupleCommand) -> Option<Answer> {
        let (name, operation) = match command {
            TupleCommand::Spaces { after, limit } => return Some(Ok(self.names(after, *limit))),
            TupleCommand::On { space, operation } => (space, operation),
        };
        if self.at.version < 2 && is_of_version_2(operation) {
            return Some(Err(()));
        }
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
        let at = Moment { clock: Time(0), ahead_ms: Some(0), version: self.at.version };
        if let Some(template) = template.filter(|_| admits(&space.options.read, client)) {
            let places = space.find(template, client, false, at.clock);
            let mut met = places.iter().filter(|at| space.tuples[**at].number > after).take(count);
            let leased = |held: &ModelEntry| held.is_free() && held.expires.is_some();
            if met.any(|at| leased(&space.tuples[*at])) {
                return None;
            }
        }
        let answer = read(space, client, operation, at);
        match (&answer, operation) {
            (Ok(_), Operation::Waits { after, .. })
                if space.waits_behind(*after).next().is_some() =>
            {
                None
            }
            _ => Some(answer),
        }
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
        let (client, at) = (caller.session.client, self.at);
        if at.version < 2 && is_of_version_2(operation) {
            return Err(());
        }
        if let Operation::Create(options) = operation {
            if self.spaces.contains_key(name) {
                return Err(());
            }
            let space = Space::new(self.created, options.clone(), client);
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
            None => return read(space, client, operation, at).map(Some),
        };
        if !admitted {
            return Err(());
        }
        let space = Arc::make_mut(space);
        if *operation != Operation::Delete {
            return run(space, caller, operation, first, at, late);
        }
        let remaining = space.delete(late);
        if remaining > 0 {
            self.judged.partly_deleted += 1;
        } else {
            if let Some(next) = space.next {
                self.used.insert(name.to_owned(), next - 1);
            }
            self.spaces.remove(name);
        }
        Ok(Some(TupleReply::Deleted { remaining }))
    }
}

fn is_claimed(held: &ModelEntry) -> bool {
    matches!(held.holder, Holder::Offered { purpose: Purpose::Claim, .. })
}

/// What an operation gives on a space that lets the client do it.
fn run(
    space: &mut Space,
    caller: Caller,
    operation: &Operation,
    first: u64,
    at: Moment,
    late: &mut Vec<Late>,
) -> Result<Option<TupleReply>, ()> {
    let client = caller.session.client;
    let mut find_or_wait = |template, takes, wish: &dyn Fn() -> Wish, wait_ms| {
        let found = space.find_one(client, (template, takes), at, late);
        if found.is_none() {
            space.wait(caller, wish(), wait_ms, at);
        }
        found
    };
    Ok(match operation {
        Operation::In { template, wait_ms } => {
            find_or_wait(template, true, &|| Wish::Take(template.clone()), *wait_ms)
        }
        Operation::Rd { template, wait_ms } => {
            find_or_wait(template, false, &|| Wish::Read(template.clone()), *wait_ms)
        }
        Operation::Inp(template) => {
            let found = space.find_one(client, (template, true), at, late);
            Some(found.unwrap_or(TupleReply::Found(None)))
        }
        Operation::Out(_)
        | Operation::OutAll(_)
        | Operation::Cas { .. }
        | Operation::Replace { .. } => Some(space.put(client, operation, first, at, late)),
        Operation::InAll { template, limit } => {
            Some(space.take_all(client, (template, *limit), at, late))
        }
        Operation::Renew { number, lease_ms } => {
            Some(space.renew(client, (*number, *lease_ms), at, late))
        }
        Operation::Claim { key, entry, wait_ms } => {
            space.claim(caller, (*key, entry, *wait_ms), first, at, late)
        }
        Operation::Lease { template, lease_ms, wait_ms } => {
            space.lease(caller, (template, *lease_ms, *wait_ms), at)
        }
        Operation::Finish { .. } | Operation::Return { .. } | Operation::Extend { .. } => {
            Some(space.hold(client, operation, at, late))
        }
        Operation::Add { fields, amount } => {
            Some(space.add(client, (fields, *amount), first, at, late)?)
        }
        Operation::EndWait { session, number } => {
            Some(space.end_wait(Caller { session: *session, number: *number }, late))
        }
        Operation::Break { number } => Some(space.break_tuple(*number, at, late)?),
        _ => return Err(()),
    })
}

/// What an operation gives that changes nothing.
fn read(space: &Space, client: PublicKey, operation: &Operation, at: Moment) -> Answer {
    if *operation == Operation::Describe {
        return Ok(TupleReply::Described(SpaceDescription {
            options: space.options.clone(),
            creator: space.creator,
            tuples: space.tuples.len() as u64,
            waiters: space.waiters.len() as u64,
            deleting: space.deleting,
        }));
    }
    let reads = admits(&space.options.read, client);
    match operation {
        Operation::Waits { after, limit } if reads || space.manages(client) => {
            Ok(space.waits(*after, *limit, at))
        }
        Operation::Rdp(template) if reads => Ok(space.oldest(template, client, at)),
        Operation::RdAll { template, after, limit } if reads => {
            Ok(space.read_all(client, (template, *after, *limit), at))
        }
        _ => Err(()),
    }
}
