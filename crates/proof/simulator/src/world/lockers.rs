//! Callers that take locks and write to what these protect: in half of the runs by claims that wait, as the recipe does
//! (`crates/services/recipes`: `claim`), where the version of the tuple spaces knows them, in the others by `cas` and notes, as it was made
//! under version 1; and with its users' mistakes: they go by their own wall clocks, stand
//! still at any moment, and what they write travels for as long as it likes. The commands are copied:
//! the recipe itself runs on a client with a runtime.

use super::spaces::{SPACE, tuple};
use super::workload::{Asked, Request};
use super::{Event, World};
use crate::checkers::commit_order::Seen;
use crate::checkers::fencing::LOCK;
use crate::random::Random;
use crate::report::Mark;
use bytes::Bytes;
use perdura_protocol::{PublicKey, Time};
use perdura_tuples::{
    Access, Entry, Field, Operation, Pattern, Template, TupleCommand, TupleReply,
};

/// Kind of the note that an owner leaves who gives a lock up, and for how long, milliseconds.
const FREE: &str = "lock-free";
const NOTE_MS: u64 = 1_000;

/// Locks that all share.
const LOCKS: u64 = 2;

/// Leases of locks, milliseconds.
const LEASES_MS: [u64; 4] = [100, 500, 2_000, 10_000];

/// Times that a caller goes for a lock before it does something else.
const TRIES: u32 = 5;

/// How a caller goes for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// By `cas`, and notes of who gives it up.
    Cas,
    /// By a claim.
    Claim,
}

/// What a caller does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Move {
    /// A call.
    Call(Request),
    /// A write to what a lock protects, which takes so long to get there, microseconds.
    Write {
        /// The lock.
        lock: String,
        /// The token.
        token: u64,
        /// Its way.
        way_us: u64,
    },
}

/// What it goes for.
#[derive(Clone, Debug)]
struct Claim {
    lock: String,
    lease_ms: u64,
    owner: Bytes,
    // By a command of that name, and not by `cas` and notes.
    waits: bool,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Idle,
    Claiming {
        claim: Claim,
        tries: u32,
        handed_on: bool,
        asked: Time,
    },
    // Another one has the lock.
    Waiting {
        claim: Claim,
        tries: u32,
    },
    Holding {
        claim: Claim,
        token: u64,
        // Until when it believes to have the lock, by its wall clock; who had waited does not look before its next move.
        until: Option<Time>,
        moves: u32,
        asked: Time,
    },
    Releasing(Claim),
}

/// A caller, as far as locks are concerned.
#[derive(Clone, Debug, Default)]
pub struct Locker {
    state: State,
}

fn value(field: impl Into<Field>) -> Pattern {
    Pattern::Value(field.into())
}

fn call(operation: Operation) -> Option<Move> {
    let command = Asked::Spaces(TupleCommand::On { space: SPACE.to_owned(), operation });
    Some(Move::Call(Request { command, fast: false, short_us: None }))
}

impl Claim {
    fn draw(random: &mut Random, waits: bool) -> Claim {
        let owner = random.next().to_le_bytes().to_vec().into();
        let lock = format!("l{}", random.below(LOCKS));
        Claim { lock, lease_ms: *random.pick(&LEASES_MS), owner, waits }
    }

    fn note(&self) -> Template {
        Template { fields: vec![value(FREE), value(self.lock.as_str())] }
    }

    fn take(&self, key: PublicKey, may_wait: bool) -> Operation {
        let Claim { lock, lease_ms, owner, waits } = self;
        let (kind, name) = (value(LOCK), value(lock.as_str()));
        let template = Template { fields: vec![kind, name, Pattern::Any, Pattern::Any] };
        let fields =
            [LOCK.into(), lock.as_str().into(), Field::Bytes(owner.clone()), Field::from("")];
        let (take, wait_ms) = (Access::only(vec![key]), 2 * lease_ms);
        let entry = Entry { lease_ms: Some(*lease_ms), take, ..Entry::new(tuple(&fields)) };
        if *waits {
            return Operation::Claim { key: 2, entry, wait_ms: if may_wait { wait_ms } else { 0 } };
        }
        Operation::Cas { template, entry }
    }

    fn give_up(&self) -> Operation {
        let Claim { lock, owner, waits, .. } = self;
        let owner = Pattern::Value(Field::Bytes(owner.clone()));
        let fields = vec![value(LOCK), value(lock.as_str()), owner, Pattern::Any];
        let template = Template { fields };
        if *waits {
            return Operation::Inp(template);
        }
        let note = tuple(&[FREE.into(), lock.as_str().into()]);
        Operation::Replace { template, entry: Entry::new(note).with_lease(NOTE_MS) }
    }
}

impl Locker {
    /// What it does next; nothing if it has no lock in mind.
    pub fn next(
        &mut self,
        random: &mut Random,
        key: PublicKey,
        wall: Time,
        starts: Option<Start>,
        may_wait: bool,
    ) -> Option<Move> {
        if let (State::Idle, Some(start)) = (&self.state, starts) {
            let claim = Claim::draw(random, start == Start::Claim);
            self.state = State::Claiming { claim, tries: 0, handed_on: false, asked: wall };
        }
        match &mut self.state {
            State::Idle => None,
            State::Claiming { claim, asked, .. } => {
                *asked = wall;
                call(claim.take(key, may_wait))
            }
            State::Waiting { claim, .. } if may_wait => {
                call(Operation::In { template: claim.note(), wait_ms: claim.lease_ms })
            }
            State::Waiting { .. } => {
                self.state = State::Idle;
                None
            }
            State::Holding { until: Some(until), .. } if wall >= *until && random.percent(50) => {
                // It notices that it has the lock no longer.
                self.state = State::Idle;
                None
            }
            State::Holding { moves: 0, claim, .. } => {
                let (operation, claim) = (claim.give_up(), claim.clone());
                self.state = State::Releasing(claim);
                call(operation)
            }
            State::Holding { claim, token, moves, asked, until } => {
                *moves -= 1;
                until.get_or_insert(Time(wall.0 + claim.lease_ms));
                if random.percent(35) {
                    *asked = wall;
                    return call(Operation::Renew {
                        number: *token,
                        lease_ms: Some(claim.lease_ms),
                    });
                }
                let far = random.percent(30);
                let way_us =
                    if far { random.below(2_000 * claim.lease_ms) } else { random.below(20_000) };
                Some(Move::Write { lock: claim.lock.clone(), token: *token, way_us })
            }
            State::Releasing(claim) => call(claim.give_up()),
        }
    }

    /// Its command ended. If it has a lock by it: which, its token, and whether it had waited for it
    /// to be released.
    pub fn ended(&mut self, seen: &Seen<TupleReply>) -> Option<(String, u64, bool)> {
        let reply = match seen {
            Seen::Ok(reply) => Some(reply),
            _ => None,
        };
        match (std::mem::take(&mut self.state), reply) {
            (
                State::Claiming { claim, handed_on, asked, .. },
                Some(TupleReply::Inserted { number: token }),
            ) => {
                let (lock, token) = (claim.lock.clone(), *token);
                let until = (!claim.waits).then(|| Time(asked.0 + claim.lease_ms));
                self.state = State::Holding { claim, token, until, moves: 6, asked };
                return Some((lock, token, handed_on));
            }
            // It gives up a claim that has waited in vain.
            (State::Claiming { claim, tries, .. }, Some(_)) if tries < TRIES && !claim.waits => {
                self.state = State::Waiting { claim, tries: tries + 1 };
            }
            // Version 1 knows no claims.
            (State::Claiming { claim, tries, handed_on, asked }, None)
                if claim.waits && *seen == Seen::RefusedInOrder =>
            {
                let claim = Claim { waits: false, ..claim };
                self.state = State::Claiming { claim, tries, handed_on, asked };
            }
            (State::Waiting { claim, tries }, Some(TupleReply::Found(note))) => {
                let (handed_on, asked) = (note.is_some(), Time(0));
                self.state = State::Claiming { claim, tries, handed_on, asked };
            }
            (
                State::Holding { claim, token, moves, asked, .. },
                Some(TupleReply::Renewed { renewed: true, .. }),
            ) => {
                let until = Some(Time(asked.0 + claim.lease_ms));
                self.state = State::Holding { claim, token, until, moves, asked };
            }
            // What became of it is unknown.
            (holding @ State::Holding { .. }, None) => self.state = holding,
            _ => {}
        }
        None
    }

    /// How long it thinks at most between two moves, microseconds.
    #[must_use]
    pub fn hurry_us(&self) -> Option<u64> {
        match &self.state {
            State::Idle => None,
            State::Claiming { claim, .. }
            | State::Waiting { claim, .. }
            | State::Holding { claim, .. }
            | State::Releasing(claim) => Some(500 * claim.lease_ms),
        }
    }
}

impl World {
    /// A caller writes to what a lock protects, and goes on.
    pub(crate) fn send_write(
        &mut self,
        client: usize,
        caller: usize,
        (lock, token): (String, u64),
        way_us: u64,
    ) {
        self.push(way_us, Event::FencedWrite { client, lock, token });
        let life = self.clients[client].life;
        let pause = self.random.below(way_us.min(50_000) + 1_000);
        self.push(pause, Event::Call { client, life, caller });
    }

    /// The write arrives.
    pub(crate) fn fenced_write(&mut self, client: usize, lock: &str, token: u64) {
        let accepted = self.checkers.fencing.writes(lock, token);
        self.trace.line(
            self.now_us,
            format_args!("c{client} writes by token {token} of {lock}: {accepted}"),
        );
        if accepted {
            self.report.spaces.writes += 1;
        } else {
            self.report.spaces.stale_writes += 1;
            self.mark(Mark::StaleWriteRefused);
        }
    }

    /// A caller was told that it has a lock.
    pub(crate) fn lock_taken(&mut self, record: usize, client: usize, lock: (String, u64, bool)) {
        let (name, token, handed_on) = lock;
        if handed_on {
            self.mark(Mark::LockHandedOn);
        }
        let call = &self.calls[record];
        let span = (call.invoked, call.ended.unwrap_or(u64::MAX));
        let owner = self.client_key(client);
        let check = self.checkers.fencing.taken(&name, owner, token, span);
        self.check(check);
    }
}
