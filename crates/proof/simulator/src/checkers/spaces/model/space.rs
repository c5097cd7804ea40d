//! One space: the tuples in it, who has them, and who waits.

use super::matching::{admits, counter, matches, of_counter, of_key};
use super::{Caller, Late, Moment};
use perdura_protocol::{PublicKey, Time};
use perdura_tuples::{
    Broken, Entry, Field, Found, Leased, Operation, Purpose, SpaceOptions, Template, Tuple,
    TupleReply, Waiting, limits,
};

/// Who has a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    Nobody,
    /// A command that had waited, whose client has not said that it has it; and the lease that begins when it does.
    Offered {
        to: Caller,
        purpose: Purpose,
        lease_ms: Option<u64>,
    },
    Leased {
        by: PublicKey,
        until: Time,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelEntry {
    pub number: u64,
    pub entry: Entry,
    pub expires: Option<Time>,
    pub holder: Holder,
    // Of the last lease of it, or offer of one; and how many began.
    token: u64,
    leases: u64,
}

/// What somebody waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    Read(Template),
    Take(Template),
    Lease { template: Template, lease_ms: u64 },
    Claim { key: u8, entry: Entry },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    pub caller: Caller,
    pub deadline: Time,
    place: u64,
    wish: Wish,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    // Spaces that were created before it.
    pub order: u64,
    pub options: SpaceOptions,
    pub creator: PublicKey,
    // What the next tuple will have; nothing before the first one.
    pub next: Option<u64>,
    pub deleting: bool,
    // The oldest first.
    pub tuples: Vec<ModelEntry>,
    // Who began to wait first is first.
    pub waiters: Vec<Waiter>,
    // How many ever waited.
    waited: u64,
}

fn after(clock: Time, lease_ms: u64) -> Time {
    Time(clock.0 + lease_ms)
}

impl ModelEntry {
    fn new(number: u64, entry: Entry, expires: Option<Time>) -> ModelEntry {
        ModelEntry { number, entry, expires, holder: Holder::Nobody, token: 0, leases: 0 }
    }

    pub fn is_free(&self) -> bool {
        self.holder == Holder::Nobody
    }

    /// Whether it is offered to one who takes it for good: nobody else sees it, and it may come back.
    fn leaves(&self) -> bool {
        matches!(self.holder, Holder::Offered { purpose: Purpose::Take, .. })
    }

    fn found(&self, at: Moment) -> Found {
        let expires = self.expires.filter(|_| self.is_free()).and_then(|end| at.shown(end));
        Found { number: self.number, expires, tuple: self.entry.tuple.clone() }
    }

    fn leased(&self, before: u64, until: Option<Time>) -> TupleReply {
        let ModelEntry { number, token, .. } = *self;
        let tuple = self.entry.tuple.clone();
        TupleReply::Leased(Some(Leased { number, token, before, until, tuple }))
    }

    fn is_for(&self, client: PublicKey, takes: bool) -> bool {
        admits(if takes { &self.entry.take } else { &self.entry.read }, client)
    }

    /// Whether its own lease has ended, and nobody has it.
    pub fn ended(&self, clock: Time) -> bool {
        self.is_free() && self.expires.is_some_and(|expires| expires <= clock)
    }

    /// When it ends by itself that somebody has it, or that it is there.
    pub fn end(&self) -> Option<Time> {
        match self.holder {
            Holder::Nobody => self.expires,
            Holder::Offered { .. } => None,
            Holder::Leased { until, .. } => Some(until),
        }
    }

    pub fn is_offered_to(&self, caller: Caller) -> bool {
        matches!(self.holder, Holder::Offered { to, .. } if to == caller)
    }

    /// Nobody has it any more; whether it is still there then.
    pub fn give_back(&mut self, clock: Time, deleting: bool) -> bool {
        self.holder = Holder::Nobody;
        !deleting && !self.ended(clock)
    }
}

impl Waiter {
    /// What it is told when its time is over.
    pub fn nothing(&self) -> TupleReply {
        match self.wish {
            Wish::Lease { .. } => TupleReply::Leased(None),
            Wish::Read(_) | Wish::Take(_) | Wish::Claim { .. } => TupleReply::Found(None),
        }
    }

    fn shown(&self, at: Moment) -> Waiting {
        let (purpose, template) = match &self.wish {
            Wish::Read(template) => (Purpose::Read, template.clone()),
            Wish::Take(template) => (Purpose::Take, template.clone()),
            Wish::Lease { template, .. } => (Purpose::Lease, template.clone()),
            Wish::Claim { key, entry } => (Purpose::Claim, of_key(*key, entry)),
        };
        let (Caller { session, number }, place) = (self.caller, self.place);
        Waiting {
            place,
            session,
            number,
            purpose,
            template,
            deadline: at.shown(self.deadline).unwrap_or(self.deadline),
        }
    }
}

impl Space {
    pub fn new(order: u64, options: SpaceOptions, creator: PublicKey) -> Space {
        let (tuples, waiters) = (Vec::new(), Vec::new());
        Space { order, options, creator, next: None, deleting: false, tuples, waiters, waited: 0 }
    }

    /// Whether it is being deleted, and takes nothing else meanwhile.
    pub fn refuses(&self, operation: &Operation) -> bool {
        self.deleting && !matches!(operation, Operation::Describe | Operation::Delete)
    }

    pub fn manages(&self, client: PublicKey) -> bool {
        admits(&self.options.manage, client) || self.creator == client
    }

    /// Whether the space lets a client do something; nothing of what changes nothing.
    pub fn admitted(&self, client: PublicKey, operation: &Operation) -> Option<bool> {
        let SpaceOptions { insert, read, take, .. } = &self.options;
        let (inserts, reads) = (admits(insert, client), admits(read, client));
        let takes = admits(take, client);
        Some(match operation {
            Operation::Delete | Operation::EndWait { .. } | Operation::Break { .. } => {
                self.manages(client)
            }
            Operation::Out(_) | Operation::OutAll(_) => inserts,
            Operation::Cas { .. } | Operation::Claim { .. } => inserts && reads,
            Operation::Replace { .. } | Operation::Add { .. } => inserts && takes,
            Operation::In { .. }
            | Operation::Inp(_)
            | Operation::InAll { .. }
            | Operation::Lease { .. }
            | Operation::Renew { .. } => takes,
            Operation::Rd { .. } => reads,
            // Who has it under a lease was admitted then.
            Operation::Finish { .. } | Operation::Return { .. } | Operation::Extend { .. } => true,
            _ => return None,
        })
    }

    /// Where the matches stand that a client may read or take at this time, the oldest first.
    pub fn find(
        &self,
        template: &Template,
        client: PublicKey,
        takes: bool,
        clock: Time,
    ) -> Vec<usize> {
        let mut places = self.there(template, client, takes, clock);
        places.retain(|place| {
            let held = &self.tuples[*place];
            if takes { held.is_free() } else { !held.leaves() }
        });
        places
    }

    /// The same of whatever is there, and whoever has it.
    fn there(
        &self,
        template: &Template,
        client: PublicKey,
        takes: bool,
        clock: Time,
    ) -> Vec<usize> {
        let fits = |held: &ModelEntry| {
            !held.ended(clock) && held.is_for(client, takes) && matches(template, &held.entry.tuple)
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

    pub fn oldest(&self, template: &Template, client: PublicKey, at: Moment) -> TupleReply {
        let found = self.find(template, client, false, at.clock);
        TupleReply::Found(found.first().map(|place| self.tuples[*place].found(at)))
    }

    pub fn read_all(
        &self,
        client: PublicKey,
        (template, above, limit): (&Template, u64, u32),
        at: Moment,
    ) -> TupleReply {
        let mut places = self.find(template, client, false, at.clock);
        places.retain(|place| self.tuples[*place].number > above);
        let (places, more) = self.several(&places, limit);
        let tuples = places.into_iter().map(|place| self.tuples[place].found(at)).collect();
        TupleReply::FoundAll { tuples, more }
    }

    pub fn take_all(
        &mut self,
        client: PublicKey,
        (template, limit): (&Template, u32),
        at: Moment,
        late: &mut Vec<Late>,
    ) -> TupleReply {
        let places = self.find(template, client, true, at.clock);
        let (places, more) = self.several(&places, limit);
        let tuples = places.iter().map(|place| self.tuples[*place].found(at)).collect();
        let gone = places.iter().map(|place| self.tuples[*place].entry.tuple.clone()).collect();
        for place in places.into_iter().rev() {
            self.tuples.remove(place);
        }
        self.let_through(gone, at, late);
        TupleReply::FoundAll { tuples, more }
    }

    /// Those who wait, in the order in which they began to.
    pub fn waits(&self, above: u64, limit: u32, at: Moment) -> TupleReply {
        let behind: Vec<&Waiter> = self.waits_behind(above).collect();
        let more = behind.len() > limit as usize;
        let waits = behind.iter().take(limit as usize).map(|waiter| waiter.shown(at)).collect();
        TupleReply::Waits { waits, more }
    }

    pub fn waits_behind(&self, above: u64) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(move |waiter| waiter.place > above)
    }

    pub fn wait(&mut self, caller: Caller, wish: Wish, wait_ms: u64, at: Moment) {
        self.waited += 1;
        let (deadline, place) = (after(at.clock, wait_ms), self.waited);
        self.waiters.push(Waiter { caller, deadline, place, wish });
    }

    fn number(&mut self, first: u64) -> u64 {
        let number = self.next.unwrap_or(first);
        self.next = Some(number + 1);
        number
    }

    /// Inserts a tuple and serves who waits for it.
    fn insert(&mut self, first: u64, entry: &Entry, at: Moment, late: &mut Vec<Late>) -> u64 {
        let number = self.number(first);
        let expires = entry.lease_ms.map(|lease_ms| after(at.clock, lease_ms));
        self.tuples.push(ModelEntry::new(number, entry.clone(), expires));
        self.serve(number, at, late);
        number
    }

    fn take(&mut self, place: usize, at: Moment, late: &mut Vec<Late>) -> ModelEntry {
        let held = self.tuples.remove(place);
        self.let_through(vec![held.entry.tuple.clone()], at, late);
        held
    }

    /// Serves those who wait for a tuple, in the order in which they came: each who reads gets a copy, and the first who takes it is
    /// offered it; nobody behind him gets anything, unless he takes it under a lease. Under version 1 he has it.
    pub fn serve(&mut self, number: u64, at: Moment, late: &mut Vec<Late>) {
        let Some(place) = self.tuples.iter().position(|held| held.number == number) else { return };
        let held = &mut self.tuples[place];
        let copy = TupleReply::Found(Some(held.found(at)));
        let (mut free, mut gone, mut seen) = (held.is_free(), false, !held.leaves());
        self.waiters.retain(|waiter| {
            let Waiter { caller, ref wish, .. } = *waiter;
            let (template, takes) = match wish {
                Wish::Read(template) => (template, false),
                Wish::Take(template) | Wish::Lease { template, .. } => (template, true),
                Wish::Claim { .. } => return true,
            };
            let there = if takes { free } else { seen };
            let client = caller.session.client;
            if !there || !held.is_for(client, takes) || !matches(template, &held.entry.tuple) {
                return true;
            }
            if !takes || at.version == 1 {
                late.push(Late::new(caller, Ok(copy.clone())));
                gone |= takes;
            } else {
                late.push(held.offer(caller, wish, at));
            }
            free &= !takes;
            seen &= !matches!(wish, Wish::Take(_));
            false
        });
        if gone {
            self.tuples.remove(place);
        }
    }

    /// Lets claims through whose keys tuples had that are gone, and no other has, in the order in which they began to wait.
    pub fn let_through(&mut self, gone: Vec<Tuple>, at: Moment, late: &mut Vec<Late>) {
        let is_free = |space: &Space, waiter: &Waiter| {
            let Wish::Claim { key, entry } = &waiter.wish else { return false };
            let key = of_key(*key, entry);
            gone.iter().any(|tuple| matches(&key, tuple)) && !space.is_had(&key, at.clock)
        };
        while let Some(first) = self.waiters.iter().position(|waiter| is_free(self, waiter)) {
            let Waiter { caller, wish, .. } = self.waiters.remove(first);
            let Wish::Claim { entry, .. } = wish else { continue };
            // It has waited, and so there was a tuple before.
            let number = self.number(1);
            let (purpose, lease_ms) = (Purpose::Claim, entry.lease_ms);
            let holder = Holder::Offered { to: caller, purpose, lease_ms };
            self.tuples.push(ModelEntry { holder, ..ModelEntry::new(number, entry, None) });
            let answer = Ok(TupleReply::Inserted { number });
            late.push(Late { offer: true, ..Late::new(caller, answer) });
            self.serve(number, at, late);
        }
    }

    /// Whether a tuple is there that matches, whoever may read it, and whoever has it.
    fn is_had(&self, template: &Template, clock: Time) -> bool {
        self.tuples.iter().any(|held| !held.ended(clock) && matches(template, &held.entry.tuple))
    }

    /// The oldest match is read or taken; nothing if there is none.
    pub fn find_one(
        &mut self,
        client: PublicKey,
        (template, takes): (&Template, bool),
        at: Moment,
        late: &mut Vec<Late>,
    ) -> Option<TupleReply> {
        let place = self.find(template, client, takes, at.clock).first().copied()?;
        let found = self.tuples[place].found(at);
        if takes {
            self.take(place, at, late);
        }
        Some(TupleReply::Found(Some(found)))
    }

    /// What inserts tuples, perhaps in the place of another one; `first` is the number of the first
    /// one of the space.
    pub fn put(
        &mut self,
        client: PublicKey,
        operation: &Operation,
        first: u64,
        at: Moment,
        late: &mut Vec<Late>,
    ) -> TupleReply {
        let mut old = None;
        let entries = match operation {
            Operation::Cas { template, entry } => {
                // What may come back is not doubled.
                let there = self.there(template, client, false, at.clock);
                if let Some(place) = there.first() {
                    return TupleReply::Found(Some(self.tuples[*place].found(at)));
                }
                std::slice::from_ref(entry)
            }
            Operation::Replace { template, entry } => {
                let Some(place) = self.find(template, client, true, at.clock).first().copied()
                else {
                    return TupleReply::Found(None);
                };
                old = Some(self.tuples.remove(place));
                std::slice::from_ref(entry)
            }
            Operation::Out(entry) => std::slice::from_ref(entry),
            Operation::OutAll(entries) => entries,
            _ => &[],
        };
        let first = self.next.unwrap_or(first);
        for entry in entries {
            self.insert(first, entry, at, late);
        }
        match (old, operation) {
            (Some(old), _) => {
                self.let_through(vec![old.entry.tuple.clone()], at, late);
                TupleReply::Replaced { old: old.found(at), number: first }
            }
            (None, Operation::OutAll(_)) => {
                TupleReply::InsertedAll { first, count: entries.len() as u32 }
            }
            (None, _) => TupleReply::Inserted { number: first },
        }
    }

    pub fn renew(
        &mut self,
        client: PublicKey,
        (number, lease_ms): (u64, Option<u64>),
        at: Moment,
        late: &mut Vec<Late>,
    ) -> TupleReply {
        let held = |held: &ModelEntry| {
            let there = held.number == number && held.is_free() && !held.ended(at.clock);
            there && held.is_for(client, true)
        };
        let Some(place) = self.tuples.iter().position(held) else {
            return TupleReply::Renewed { renewed: false, expires: None };
        };
        let expires = lease_ms.map(|lease_ms| after(at.clock, lease_ms));
        self.tuples[place].expires = expires;
        if lease_ms == Some(0) {
            self.take(place, at, late);
        }
        TupleReply::Renewed { renewed: true, expires: expires.and_then(|end| at.shown(end)) }
    }

    /// Nothing if it waits.
    pub fn claim(
        &mut self,
        caller: Caller,
        (key, entry, wait_ms): (u8, &Entry, u64),
        first: u64,
        at: Moment,
        late: &mut Vec<Late>,
    ) -> Option<TupleReply> {
        let template = of_key(key, entry);
        // Also for what has ended and is not removed yet: nobody is overtaken.
        let waits = |waiter: &Waiter| match &waiter.wish {
            Wish::Claim { key, entry } => of_key(*key, entry) == template,
            _ => false,
        };
        if !self.is_had(&template, at.clock) && !self.waiters.iter().any(waits) {
            return Some(TupleReply::Inserted { number: self.insert(first, entry, at, late) });
        }
        if wait_ms == 0 {
            return Some(TupleReply::Found(None));
        }
        self.wait(caller, Wish::Claim { key, entry: entry.clone() }, wait_ms, at);
        None
    }

    /// Nothing if it waits.
    pub fn lease(
        &mut self,
        caller: Caller,
        (template, lease_ms, wait_ms): (&Template, u64, u64),
        at: Moment,
    ) -> Option<TupleReply> {
        let client = caller.session.client;
        let Some(place) = self.find(template, client, true, at.clock).first().copied() else {
            if wait_ms == 0 {
                return Some(TupleReply::Leased(None));
            }
            self.wait(caller, Wish::Lease { template: template.clone(), lease_ms }, wait_ms, at);
            return None;
        };
        let held = &mut self.tuples[place];
        held.token += 1;
        let before = held.begin_lease(client, after(at.clock, lease_ms));
        Some(held.leased(before, held.end().and_then(|end| at.shown(end))))
    }

    /// Finishes, returns or extends what the client has under this lease.
    pub fn hold(
        &mut self,
        client: PublicKey,
        operation: &Operation,
        at: Moment,
        late: &mut Vec<Late>,
    ) -> TupleReply {
        let (number, token) = match operation {
            Operation::Finish { number, token }
            | Operation::Return { number, token }
            | Operation::Extend { number, token, .. } => (*number, *token),
            _ => (0, 0),
        };
        let has = |held: &ModelEntry| {
            let leased = matches!(held.holder, Holder::Leased { by, until } if by == client && until > at.clock);
            leased && (held.number, held.token) == (number, token)
        };
        let Some(place) = self.tuples.iter().position(has) else {
            return TupleReply::Holding { held: false, until: None };
        };
        let mut until = None;
        match operation {
            Operation::Finish { .. } => drop(self.take(place, at, late)),
            Operation::Extend { lease_ms, .. } => {
                let end = after(at.clock, *lease_ms);
                self.tuples[place].holder = Holder::Leased { by: client, until: end };
                until = at.shown(end);
            }
            _ => self.give_to_next(place, at, late),
        }
        TupleReply::Holding { held: true, until }
    }

    /// Nobody has a tuple any more: it is the next one's.
    pub fn give_to_next(&mut self, place: usize, at: Moment, late: &mut Vec<Late>) {
        if self.tuples[place].give_back(at.clock, self.deleting) {
            self.serve(self.tuples[place].number, at, late);
        } else {
            self.take(place, at, late);
        }
    }

    /// A client has what it was offered: its lease begins, and others are served who waited for that.
    pub fn confirm(&mut self, place: usize, at: Moment, late: &mut Vec<Late>) {
        let held = &mut self.tuples[place];
        let Holder::Offered { to, purpose, lease_ms } = held.holder else { return };
        let end = lease_ms.map(|lease_ms| after(at.clock, lease_ms));
        match (purpose, end) {
            (Purpose::Claim, end) => {
                (held.holder, held.expires) = (Holder::Nobody, end);
                let number = held.number;
                self.serve(number, at, late);
            }
            (Purpose::Lease, Some(end)) => drop(held.begin_lease(to.session.client, end)),
            _ => drop(self.take(place, at, late)),
        }
    }

    /// Whose wait an operator ends is refused.
    pub fn end_wait(&mut self, whose: Caller, late: &mut Vec<Late>) -> TupleReply {
        let Some(at) = self.waiters.iter().position(|waiter| waiter.caller == whose) else {
            return TupleReply::WaitEnded { ended: false };
        };
        self.waiters.remove(at);
        late.push(Late::new(whose, Err(())));
        TupleReply::WaitEnded { ended: true }
    }

    pub fn break_tuple(
        &mut self,
        number: u64,
        at: Moment,
        late: &mut Vec<Late>,
    ) -> Result<TupleReply, ()> {
        let place = self.tuples.iter().position(|held| held.number == number);
        let place = place.filter(|place| !self.tuples[*place].ended(at.clock));
        let Some(place) = place else { return Ok(TupleReply::Broken(Broken::Absent)) };
        let broken = match self.tuples[place].holder {
            Holder::Offered { .. } => return Err(()),
            Holder::Leased { .. } => {
                self.give_to_next(place, at, late);
                Broken::Returned
            }
            Holder::Nobody => {
                self.take(place, at, late);
                Broken::Removed
            }
        };
        Ok(TupleReply::Broken(broken))
    }

    /// Adds to a counter, or makes one.
    pub fn add(
        &mut self,
        client: PublicKey,
        (fields, amount): (&Tuple, i64),
        first: u64,
        at: Moment,
        late: &mut Vec<Late>,
    ) -> Result<TupleReply, ()> {
        let template = of_counter(fields);
        let Some(place) = self.find(&template, client, true, at.clock).first().copied() else {
            let had = |held: &ModelEntry| {
                !held.is_free()
                    && held.is_for(client, true)
                    && matches(&template, &held.entry.tuple)
            };
            if self.tuples.iter().any(had) {
                return Err(());
            }
            let entry = Entry::new(counter(fields, amount)?);
            let number = self.insert(first, &entry, at, late);
            return Ok(TupleReply::Added { number, value: amount });
        };
        let Some(Field::Integer(before)) = self.tuples[place].entry.tuple.fields().last() else {
            return Err(());
        };
        let value = before.checked_add(amount).ok_or(())?;
        let tuple = counter(fields, value)?;
        let ModelEntry { entry, expires, .. } = self.tuples.remove(place);
        let (number, gone) = (self.number(first), entry.tuple.clone());
        self.tuples.push(ModelEntry::new(number, Entry { tuple, ..entry }, expires));
        self.serve(number, at, late);
        self.let_through(vec![gone], at, late);
        Ok(TupleReply::Added { number, value })
    }

    /// Removes the oldest tuples, so many at a time; those that are offered to somebody stay. How many are left.
    pub fn delete(&mut self, late: &mut Vec<Late>) -> u64 {
        self.deleting = true;
        late.extend(self.waiters.drain(..).map(|waiter| Late::new(waiter.caller, Err(()))));
        let mut more = limits::DELETED_AT_ONCE;
        self.tuples.retain(|held| {
            let goes = more > 0 && !matches!(held.holder, Holder::Offered { .. });
            more -= usize::from(goes);
            !goes
        });
        self.tuples.len() as u64
    }
}

impl ModelEntry {
    /// Offers it, which nobody has, to one who waits for it.
    fn offer(&mut self, to: Caller, wish: &Wish, at: Moment) -> Late {
        let (purpose, lease_ms) = match wish {
            Wish::Lease { lease_ms, .. } => (Purpose::Lease, Some(*lease_ms)),
            _ => (Purpose::Take, None),
        };
        self.holder = Holder::Offered { to, purpose, lease_ms };
        let reply = if purpose == Purpose::Lease {
            self.token += 1;
            self.leased(self.leases, None)
        } else {
            TupleReply::Found(Some(self.found(at)))
        };
        Late { offer: true, ..Late::new(to, Ok(reply)) }
    }

    /// Gives how many leases began before.
    fn begin_lease(&mut self, by: PublicKey, until: Time) -> u64 {
        self.holder = Holder::Leased { by, until };
        self.leases += 1;
        self.leases - 1
    }
}
