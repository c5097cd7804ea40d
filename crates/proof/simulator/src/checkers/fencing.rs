//! Guards what a lock with fencing tokens promises (`docs/tuples.md`, "Recipes"): its tokens ascend,
//! in the order of execution and for those who are told of them; nobody takes it before its last
//! owner's lease has ended, by agreed time, or he has given it up; and only who has it renews it, or
//! gives it up.
//!
//! What the lock protects lies outside of the group and refuses a token smaller than one it has
//! seen. That it accepts its newest owner's writes, and everything in the order in which the group
//! gave the lock, follows from the above; it is there for what it refuses to be counted.

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
        let (mut time, mut locks) = (Time(0), Locks::default());
        let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Began(now, _) => time = *now,
                Step::Executed(execution) => follow(execution, time, &mut claims, &mut locks)?,
                Step::Released(_)
                | Step::Forgotten { .. }
                | Step::Confirmed { .. }
                | Step::TakenBack { .. } => {}
            }
        }
        for (lock, protected) in &self.locks {
            let claims = claims.get(lock).map(Vec::as_slice).unwrap_or_default();
            protected.fits(lock, claims)?;
        }
        Ok(locks)
    }
}

impl Claim {
    /// Whether its lease has ended.
    fn over(&self, time: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= time)
    }

    /// Whether `client` has it at this time.
    fn is_had(&self, client: PublicKey, time: Time) -> bool {
        self.owner == client && !self.given_up && !self.over(time)
    }
}

impl Protected {
    fn fits(&self, lock: &str, claims: &[Claim]) -> Check {
        let gave = |taken: &Taken| {
            claims.iter().any(|claim| (claim.token, claim.owner) == (taken.token, taken.owner))
        };
        match self.taken.iter().find(|taken| !gave(taken)) {
            None => Ok(()),
            Some(taken) => fail(format!("lock {lock}: {taken:?}, which the group never gave")),
        }
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
    let SessionId { client, .. } = execution.session;
    let until = |lease_ms: Option<u64>| lease_ms.map(|lease_ms| Time(time.0 + lease_ms));
    match (operation, read(reply)) {
        (Operation::Cas { template, entry }, Some(TupleReply::Inserted { number: token })) => {
            let Some(lock) = of_template(&template) else { return Ok(()) };
            let claims = all.entry(lock.clone()).or_default();
            locks.taken += 1;
            if let Some(last) = claims.last() {
                if token <= last.token || !(last.given_up || last.over(time)) {
                    return fail(format!(
                        "lock {lock}: taken with token {token} at {time}, after {last:?}"
                    ));
                }
                locks.taken_over += u64::from(!last.given_up);
            }
            let expires = until(entry.lease_ms);
            claims.push(Claim { space, token, owner: client, expires, given_up: false });
        }
        (
            Operation::Renew { number, lease_ms },
            Some(TupleReply::Renewed { renewed: true, .. }),
        ) => {
            let own = |claim: &&mut Claim| claim.space == space && claim.token == number;
            let Some(claim) = all.values_mut().flatten().find(own) else { return Ok(()) };
            if !claim.is_had(client, time) {
                return fail(format!(
                    "{client:?} renews at {time} what it does not have, {claim:?}"
                ));
            }
            claim.expires = until(lease_ms);
        }
        (Operation::Replace { .. }, Some(TupleReply::Replaced { old, .. })) => {
            let Some(claims) = of_tuple(&old.tuple).and_then(|lock| all.get_mut(&lock)) else {
                return Ok(());
            };
            match claims.iter_mut().find(|claim| claim.token == old.number) {
                Some(claim) if claim.is_had(client, time) => claim.given_up = true,
                claim => {
                    return fail(format!(
                        "{client:?} gives up at {time} what it does not have, {claim:?}"
                    ));
                }
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
