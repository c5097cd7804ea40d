//! Guards what a lock with fencing tokens promises (`docs/tuples.md`, "Recipes"): its tokens ascend,
//! in the order of execution and for those who are told of them; nobody takes it before its last
//! owner's lease has ended, by agreed time, or he has given it up; and only who has it renews it, or
//! gives it up.
//!
//! It is taken by `cas`, or by a claim: at once, or if the claim had waited when its client has confirmed it, from when on its lease
//! counts too. What is offered to one is nobody else's meanwhile, and whose lock an operator broke has it no longer.
//!
//! What the lock protects lies outside of the group and refuses a token smaller than one it has
//! seen. That it accepts its newest owner's writes, and everything in the order in which the group
//! gave the lock, follows from the above; it is there for what it refuses to be counted.

use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step};
use bytes::Bytes;
use perdura_execution::Release;
use perdura_protocol::{Decode, PublicKey, SessionId, Time};
use perdura_tuples::{self as tuples, Field, Operation, Tuple, TupleCommand, TupleReply};
use std::collections::BTreeMap;

const RULE: &str = "Fencing";

/// The first field of a lock's tuple.
pub const LOCK: &str = "lock";

/// A lock as its owner learned that he has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taken {
    token: u64,
    owner: PublicKey,
    // When its owner asked for it, and when he knew.
    invoked: u64,
    ended: u64,
}

/// What one lock protects.
#[derive(Clone, Debug, Default)]
struct Protected {
    taken: Vec<Taken>,
    highest: u64,
}

/// Who has a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A client that has waited for it, once it says that it has it.
    Offered,
    Owned,
    /// Nobody: it was given up, broken, or never confirmed.
    Over,
}

/// A lock as the group has it.
#[derive(Clone, Debug)]
struct Claim {
    space: String,
    token: u64,
    owner: PublicKey,
    lease_ms: Option<u64>,
    expires: Option<Time>,
    state: State,
    // Whether its owner had it at any time.
    was_had: bool,
}

/// A claim that waits: its lock and space, and the lease of what it inserts.
#[derive(Clone, Debug)]
struct Wish {
    lock: String,
    space: String,
    lease_ms: Option<u64>,
}

/// How often locks were taken, as the order of execution has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locks {
    /// Times.
    pub taken: u64,
    /// Of these, when the last owner's lease had ended.
    pub taken_over: u64,
    /// Locks that were broken while somebody had them.
    pub broken: u64,
}

/// The checker, and the things that locks protect.
#[derive(Clone, Debug, Default)]
pub struct Fencing {
    locks: BTreeMap<String, Protected>,
}

fn fail<T>(what: String) -> Result<T, Broken> {
    Err(Broken::new(RULE, what))
}

impl Fencing {
    /// The group told `owner` that he has a lock.
    pub fn taken(
        &mut self,
        lock: &str,
        owner: PublicKey,
        token: u64,
        (invoked, ended): (u64, u64),
    ) -> Check {
        let protected = self.locks.entry(lock.to_owned()).or_default();
        let new = Taken { token, owner, invoked, ended };
        let contradicts = |known: &&Taken| {
            let before = known.ended < invoked && known.token > token;
            let after = ended < known.invoked && known.token < token;
            known.token == token || before || after
        };
        if let Some(known) = protected.taken.iter().find(contradicts) {
            return fail(format!("lock {lock}: {new:?} does not go with {known:?}"));
        }
        protected.taken.push(new);
        Ok(())
    }

    /// A write of one who has, or had, the lock arrives; whether it is accepted.
    pub fn writes(&mut self, lock: &str, token: u64) -> bool {
        let protected = self.locks.entry(lock.to_owned()).or_default();
        protected.highest = protected.highest.max(token);
        token == protected.highest
    }

    /// Holds all of it against the order of execution.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn judge<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Result<Locks, Broken> {
        let mut order = Order::default();
        for step in steps {
            match step {
                Step::Began(now, _) => order.time = *now,
                Step::Executed(execution) => order.follow(execution)?,
                Step::Released(release) => order.released(release)?,
                Step::Confirmed { session, number } => order.confirmed((*session, *number)),
                Step::TakenBack { session, number } => order.taken_back((*session, *number)),
                Step::Forgotten { session, number } => {
                    order.waiting.remove(&(*session, *number));
                }
            }
        }
        for (lock, protected) in &self.locks {
            let claims = order.claims.get(lock).map(Vec::as_slice).unwrap_or_default();
            protected.fits(lock, claims)?;
        }
        Ok(order.locks)
    }
}

impl Claim {
    /// Whether its lease has ended.
    fn over(&self, time: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= time)
    }

    /// Whether `client` has it at this time.
    fn is_had(&self, client: PublicKey, time: Time) -> bool {
        self.owner == client && self.state == State::Owned && !self.over(time)
    }
}

impl Protected {
    fn fits(&self, lock: &str, claims: &[Claim]) -> Check {
        let gave = |taken: &Taken| {
            let is = |claim: &Claim| (claim.token, claim.owner) == (taken.token, taken.owner);
            claims.iter().any(|claim| claim.was_had && is(claim))
        };
        match self.taken.iter().find(|taken| !gave(taken)) {
            None => Ok(()),
            Some(taken) => fail(format!("lock {lock}: {taken:?}, which the group never gave")),
        }
    }
}
/// The lock whose tuple it is.
fn of_tuple(tuple: &Tuple) -> Option<String> {
    let fields: Vec<Field> = tuple.fields().collect();
    match &fields[..] {
        [Field::String(kind), Field::String(name), _, _] if kind == LOCK => Some(name.clone()),
        _ => None,
    }
}

/// Locks in the order of execution.
#[derive(Debug, Default)]
struct Order {
    time: Time,
    claims: BTreeMap<String, Vec<Claim>>,
    // Claims that wait, and those that are offered: the lock, and where its claim stands.
    waiting: BTreeMap<(SessionId, u64), Wish>,
    offered: BTreeMap<(SessionId, u64), (String, usize)>,
    locks: Locks,
}

impl Order {
    fn until(&self, lease_ms: Option<u64>) -> Option<Time> {
        lease_ms.map(|lease_ms| Time(self.time.0 + lease_ms))
    }

    /// The lock is the owner's from now on, or is offered to him.
    fn gives(&mut self, wish: Wish, token: u64, owner: PublicKey, state: State) -> Check {
        let (time, expires) = (self.time, self.until(wish.lease_ms));
        let Wish { lock, space, lease_ms } = wish;
        let claims = self.claims.entry(lock.clone()).or_default();
        if let Some(last) = claims.last() {
            let over = match last.state {
                State::Over => true,
                State::Owned => last.over(time),
                State::Offered => false,
            };
            if token <= last.token || !over {
                return fail(format!(
                    "lock {lock}: taken with token {token} at {time}, after {last:?}"
                ));
            }
            self.locks.taken_over += u64::from(last.state == State::Owned);
        }
        let was_had = state == State::Owned;
        self.locks.taken += u64::from(was_had);
        claims.push(Claim { space, token, owner, lease_ms, expires, state, was_had });
        Ok(())
    }

    /// The claim of a lock's tuple of this space and number.
    fn claim(&mut self, space: &str, token: u64) -> Option<&mut Claim> {
        let is = |claim: &&mut Claim| claim.space == space && claim.token == token;
        self.claims.values_mut().flatten().find(is)
    }

    fn released(&mut self, release: &Release) -> Check {
        let number = (release.session, release.number);
        let Some(wish) = self.waiting.remove(&number) else { return Ok(()) };
        let reply = release.result.as_ref().ok().and_then(read);
        let Some(TupleReply::Inserted { number: token }) = reply else { return Ok(()) };
        let lock = wish.lock.clone();
        let state = if release.offer { State::Offered } else { State::Owned };
        self.gives(wish, token, release.session.client, state)?;
        let place = self.claims.get(&lock).map_or(0, Vec::len) - 1;
        self.offered.insert(number, (lock, place));
        Ok(())
    }

    fn offer(&mut self, number: (SessionId, u64)) -> Option<&mut Claim> {
        let (lock, place) = self.offered.remove(&number)?;
        self.claims.get_mut(&lock)?.get_mut(place)
    }

    fn confirmed(&mut self, number: (SessionId, u64)) {
        let time = self.time;
        let Some(claim) = self.offer(number) else { return };
        claim.expires = claim.lease_ms.map(|lease_ms| Time(time.0 + lease_ms));
        (claim.state, claim.was_had) = (State::Owned, true);
        self.locks.taken += 1;
    }

    fn taken_back(&mut self, number: (SessionId, u64)) {
        if let Some(claim) = self.offer(number) {
            claim.state = State::Over;
        }
    }

    /// `client` gives up the lock of this number.
    fn gives_up(&mut self, client: PublicKey, space: &str, token: u64) -> Check {
        let time = self.time;
        match self.claim(space, token) {
            Some(claim) if claim.is_had(client, time) => {
                claim.state = State::Over;
                Ok(())
            }
            claim => {
                fail(format!("{client:?} gives up at {time} what it does not have, {claim:?}"))
            }
        }
    }

    /// What a command did to a lock.
    fn follow(&mut self, execution: &Execution) -> Check {
        let Ok(TupleCommand::On { space, operation }) = TupleCommand::decode(&execution.command)
        else {
            return Ok(());
        };
        let (time, SessionId { client, .. }) = (self.time, execution.session);
        let reply = match &execution.reply {
            None => {
                if let Operation::Claim { entry, .. } = operation
                    && let Some(lock) = of_tuple(&entry.tuple)
                {
                    let wish = Wish { lock, space, lease_ms: entry.lease_ms };
                    self.waiting.insert((execution.session, execution.number), wish);
                }
                return Ok(());
            }
            Some(reply) => reply.as_ref().ok().and_then(read),
        };
        match (operation, reply) {
            (
                Operation::Cas { entry, .. } | Operation::Claim { entry, .. },
                Some(TupleReply::Inserted { number: token }),
            ) => {
                let Some(lock) = of_tuple(&entry.tuple) else { return Ok(()) };
                let wish = Wish { lock, space, lease_ms: entry.lease_ms };
                self.gives(wish, token, client, State::Owned)
            }
            (
                Operation::Renew { number, lease_ms },
                Some(TupleReply::Renewed { renewed: true, .. }),
            ) => {
                let expires = self.until(lease_ms);
                let Some(claim) = self.claim(&space, number) else { return Ok(()) };
                if !claim.is_had(client, time) {
                    return fail(format!(
                        "{client:?} renews at {time} what it does not have, {claim:?}"
                    ));
                }
                claim.expires = expires;
                if lease_ms == Some(0) {
                    claim.state = State::Over;
                }
                Ok(())
            }
            (Operation::Replace { .. }, Some(TupleReply::Replaced { old, .. }))
            | (Operation::Inp(_), Some(TupleReply::Found(Some(old))))
                if of_tuple(&old.tuple).is_some() =>
            {
                self.gives_up(client, &space, old.number)
            }
            (Operation::Break { number }, Some(TupleReply::Broken(tuples::Broken::Removed))) => {
                let Some(claim) = self.claim(&space, number) else { return Ok(()) };
                if !claim.is_had(claim.owner, time) {
                    return fail(format!("{client:?} breaks at {time} what nobody has, {claim:?}"));
                }
                claim.state = State::Over;
                self.locks.broken += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn read(reply: &Bytes) -> Option<TupleReply> {
    TupleReply::from_bytes(reply.clone()).ok()
}

#[cfg(test)]
mod tests;
