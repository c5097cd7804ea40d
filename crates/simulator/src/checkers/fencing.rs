//! Guards what a lock with fencing tokens promises (`docs/tuples.md`, "Recipes"): its tokens ascend,
//! and nobody takes it before its last owner's lease has ended, by agreed time, or he has given it
//! up. What the lock protects lies outside of the group and refuses a token smaller than one it has
//! seen; it has to accept the newest owner's, and everything that it accepts comes in the order in
//! which the group gave the lock.

use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step};
use bytes::Bytes;
use perdura_protocol::{Decode, PublicKey, SessionId, Time};
use perdura_tuples::{Field, Operation, Template, Tuple, TupleCommand, TupleReply};
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
    // Tokens and owners of what was accepted, in that order.
    accepted: Vec<(u64, PublicKey)>,
}

/// A lock as the group has it.
#[derive(Clone, Debug)]
struct Claim {
    space: String,
    token: u64,
    owner: PublicKey,
    expires: Option<Time>,
    given_up: bool,
}

/// How often locks were taken, as the order of execution has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locks {
    /// Times.
    pub taken: u64,
    /// Of these, when the last owner's lease had ended.
    pub taken_over: u64,
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
    ///
    /// # Errors
    /// When it is refused though nobody has taken the lock since.
    pub fn writes(&mut self, lock: &str, owner: PublicKey, token: u64) -> Result<bool, Broken> {
        let protected = self.locks.entry(lock.to_owned()).or_default();
        if token >= protected.highest {
            protected.highest = token;
            protected.accepted.push((token, owner));
            return Ok(true);
        }
        // Whoever has a larger one took the lock later, or might have.
        let own = protected.taken.iter().find(|taken| taken.token == token);
        let invoked = own.map_or(0, |own| own.invoked);
        if protected.taken.iter().any(|taken| taken.token > token && taken.ended >= invoked) {
            return Ok(false);
        }
        let highest = protected.highest;
        fail(format!("lock {lock}: its newest owner's token {token} is refused after {highest}"))
    }

    /// Holds all of it against the order of execution.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn judge<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Result<Locks, Broken> {
        let (mut time, mut locks) = (Time(0), Locks::default());
        let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Began(now) => time = *now,
                Step::Executed(execution) => follow(execution, time, &mut claims, &mut locks)?,
                Step::Released(_) | Step::Forgotten { .. } => {}
            }
        }
        for (lock, protected) in &self.locks {
            let claims = claims.get(lock).map(Vec::as_slice).unwrap_or_default();
            protected.fits(lock, claims)?;
        }
        Ok(locks)
    }
}

impl Protected {
    fn fits(&self, lock: &str, claims: &[Claim]) -> Check {
        let place = |token: u64, owner: PublicKey| {
            claims.iter().position(|claim| (claim.token, claim.owner) == (token, owner))
        };
        for taken in &self.taken {
            if place(taken.token, taken.owner).is_none() {
                return fail(format!("lock {lock}: {taken:?}, which the group never gave"));
            }
        }
        let mut last = None;
        for (token, owner) in &self.accepted {
            let Some(at) = place(*token, *owner) else {
                return fail(format!(
                    "lock {lock}: a write of {owner:?} by token {token}, not his"
                ));
            };
            if last.is_some_and(|last| last > at) {
                return fail(format!(
                    "lock {lock}: a write by token {token} after those of a later owner"
                ));
            }
            last = Some(at);
        }
        Ok(())
    }
}

/// The lock whose tuple, or any of whose, is meant.
fn lock_of(fields: &[Option<Field>]) -> Option<String> {
    match fields {
        [Some(Field::String(kind)), Some(Field::String(name)), _, _] if kind == LOCK => {
            Some(name.clone())
        }
        _ => None,
    }
}

fn of_tuple(tuple: &Tuple) -> Option<String> {
    lock_of(&tuple.fields().map(Some).collect::<Vec<_>>())
}

fn of_template(template: &Template) -> Option<String> {
    let value = |pattern: &perdura_tuples::Pattern| match pattern {
        perdura_tuples::Pattern::Value(field) => Some(field.clone()),
        _ => None,
    };
    lock_of(&template.fields.iter().map(value).collect::<Vec<_>>())
}

/// What a command did to a lock.
fn follow(
    execution: &Execution,
    time: Time,
    all: &mut BTreeMap<String, Vec<Claim>>,
    locks: &mut Locks,
) -> Check {
    let Some(Ok(reply)) = &execution.reply else { return Ok(()) };
    let Ok(TupleCommand::On { space, operation }) = TupleCommand::decode(&execution.command) else {
        return Ok(());
    };
    let SessionId { client: owner, .. } = execution.session;
    match (operation, read(reply)) {
        (Operation::Cas { template, entry }, Some(TupleReply::Inserted { number: token })) => {
            let Some(lock) = of_template(&template) else { return Ok(()) };
            let claims = all.entry(lock.clone()).or_default();
            let expires = entry.lease_ms.map(|lease_ms| Time(time.0 + lease_ms));
            locks.taken += 1;
            if let Some(last) = claims.last() {
                let over = last.expires.is_some_and(|expires| expires <= time);
                if token <= last.token || !(last.given_up || over) {
                    return fail(format!(
                        "lock {lock}: taken with token {token} at {time}, after {last:?}"
                    ));
                }
                locks.taken_over += u64::from(!last.given_up);
            }
            claims.push(Claim { space, token, owner, expires, given_up: false });
        }
        (Operation::Renew { number, .. }, Some(TupleReply::Renewed { renewed: true, expires })) => {
            let own = |claim: &&mut Claim| claim.space == space && claim.token == number;
            if let Some(claim) = all.values_mut().flatten().find(own) {
                claim.expires = expires;
            }
        }
        (Operation::Replace { .. }, Some(TupleReply::Replaced { old, .. })) => {
            if let Some(claims) = of_tuple(&old.tuple).and_then(|lock| all.get_mut(&lock)) {
                let own = claims.iter_mut().find(|claim| claim.token == old.number);
                own.into_iter().for_each(|claim| claim.given_up = true);
            }
        }
        _ => {}
    }
    Ok(())
}

fn read(reply: &Bytes) -> Option<TupleReply> {
    TupleReply::from_bytes(reply.clone()).ok()
}

#[cfg(test)]
mod tests;
