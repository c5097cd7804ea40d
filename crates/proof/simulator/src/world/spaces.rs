//! What clients of tuple spaces ask for: random operations on a few shared tuples, every one that is
//! inserted unique but for counters (those of version 2 by `holders`), and in between the locks of `lockers` and the large space of `bulk`.

use super::bulk::{BULK, Bulk};
use super::holders::Holders;
use super::lockers::{Locker, Move, Start};
use super::workload::{Asked, Request};
use crate::checkers::commit_order::Seen;
use crate::plan::WorkloadPlan;
use crate::random::Random;
use perdura_protocol::{PublicKey, Time};
use perdura_tuples::{
    Access, Entry, Field, Float, Kind, Operation, Pattern, SpaceOptions, Template, Tuple,
    TupleCommand, TupleReply, limits,
};

/// The space of most operations, which stays.
pub const SPACE: &str = "s";

/// The space that comes and goes.
pub const POOL: &str = "pool";

/// Commands of a client that wait at a time: one less than a client has frames in flight, or under the first version of the rules all its
/// other calls would wait behind them.
pub const WAITS: usize = 3;

/// Times in a hundred that a caller with nothing else to do goes for a lock.
const LOCKS: u64 = 15;

/// Operations in a hundred on the space that comes and goes.
const POOLED: u64 = 20;

/// Keys in a hundred that are no strings.
const TYPED: u64 = 15;

/// Tuples and templates in a hundred with two more fields.
const LONG: u64 = 8;

/// Times in a hundred that a lease or a wait is as long, or a limit as large, as may be.
const EXTREME: u64 = 2;

/// Operations in a hundred that version 1 does not know, by the run.
const NEWER: [u64; 3] = [10, 25, 45];

/// Runs in a hundred in which a client fills a space with more than one command removes.
const BULKY: u64 = 25;

/// Leases of tuples, and how long commands wait, milliseconds.
const LEASES_MS: [u64; 5] = [1, 50, 300, 1_500, 8_000];
/// Some are long against the time after which a client counts as gone.
const WAITS_MS: [u64; 6] = [1, 30, 300, 1_500, 6_000, 25_000];

/// Some wait for longer than what a client that was killed waits for.
const LONG_WAIT_MS: u64 = 20_000;

/// Numbers of tuples that a client remembers.
const REMEMBERED: usize = 16;

/// The workload of one client.
#[derive(Clone, Debug)]
pub struct SpaceWorkload {
    plan: WorkloadPlan,
    client: usize,
    clients: Vec<PublicKey>,
    options: SpaceOptions,
    values: u64,
    created: bool,
    numbers: Vec<u64>,
    lockers: Vec<Locker>,
    // How callers go for locks in this run, and how many operations in a hundred are of version 2.
    start: Start,
    newer: u64,
    holders: Holders,
    // The first caller's, as it begins and as it is.
    bulk: [Bulk; 2],
    random: Random,
}

fn on(space: &str, operation: Operation) -> TupleCommand {
    TupleCommand::On { space: space.to_owned(), operation }
}

/// A tuple of a few short fields.
pub fn tuple(fields: &[Field]) -> Tuple {
    Tuple::new(fields).unwrap_or_else(|_| unreachable!("it is within the limits"))
}

impl SpaceWorkload {
    /// Of one client; `clients` are the keys of all of them, and `run` draws what they share.
    #[must_use]
    pub fn new(
        plan: WorkloadPlan,
        client: usize,
        clients: Vec<PublicKey>,
        mut run: Random,
        random: Random,
    ) -> SpaceWorkload {
        let index_fields = *run.pick(&[0, 1, 2, 2]);
        // Nobody deletes what all manage.
        let manage = Access::Anyone;
        let options = SpaceOptions { index_fields, manage, ..SpaceOptions::default() };
        let lockers = vec![Locker::default(); plan.callers];
        let (values, created, numbers) = (0, false, Vec::new());
        let (bulky, leased) = (run.percent(BULKY), run.percent(50));
        let bulk = if bulky && client == 0 { Bulk::new(leased) } else { Bulk::default() };
        let bulk = [bulk, bulk];
        let start = if run.percent(50) { Start::Claim } else { Start::Cas };
        let newer = *run.pick(&NEWER);
        let holders = Holders::new(plan.callers);
        SpaceWorkload {
            plan,
            client,
            clients,
            options,
            values,
            created,
            numbers,
            lockers,
            start,
            newer,
            holders,
            bulk,
            random,
        }
    }

    /// The process starts anew, and knows of no lock.
    pub fn restart(&mut self) {
        self.created = false;
        self.numbers.clear();
        self.lockers.fill(Locker::default());
        self.holders = Holders::new(self.plan.callers);
        self.bulk[1] = self.bulk[0];
    }

    /// What a caller does next, when its client's wall clock shows this and so many of its commands
    /// wait.
    pub fn draw(&mut self, caller: usize, wall: Time, waits: usize) -> Move {
        let may_wait = waits < WAITS;
        let key = self.clients[self.client];
        if caller == 0
            && let Some(command) = self.bulk[1].next(&mut self.random, wall)
        {
            let command = Asked::Spaces(command);
            return Move::Call(Request { command, fast: false, short_us: None });
        }
        let starts = self.created && self.random.percent(LOCKS);
        let starts = starts.then_some(self.start);
        let locker = &mut self.lockers[caller];
        if let Some(next) = locker.next(&mut self.random, key, wall, starts, may_wait) {
            return next;
        }
        let command = if !self.created {
            self.created = true;
            on(SPACE, Operation::Create(self.options.clone()))
        } else if self.random.percent(self.newer) {
            self.newer(caller, may_wait)
        } else if self.random.percent(self.plan.reads) {
            self.read(may_wait)
        } else {
            self.update(may_wait)
        };
        let fast = command.is_read() && self.random.percent(self.plan.fast_reads);
        let command = Asked::Spaces(command);
        // Nobody waits for a day.
        let longest = command.wait_ms() == Some(limits::WAIT_MS);
        let short = self.random.percent(self.plan.short_deadlines) || longest;
        let short_us = short.then(|| self.random.between(2_000, 800_000));
        Move::Call(Request { command, fast, short_us })
    }

    /// A caller's command ended. If the caller has a lock by it: which, its token, and whether it had
    /// waited for it to be released.
    pub fn ended(&mut self, caller: usize, seen: &Seen<TupleReply>) -> Option<(String, u64, bool)> {
        if caller == 0 && self.bulk[1].ended(seen) {
            return None;
        }
        let lock = self.lockers[caller].ended(seen);
        if let Some((_, token, _)) = &lock {
            self.holders.locked(*token);
        }
        self.holders.ended(caller, seen);
        if let (Seen::Ok(TupleReply::Inserted { number }), None) = (seen, &lock) {
            self.numbers.push(*number);
            if self.numbers.len() > REMEMBERED {
                self.numbers.remove(0);
            }
        }
        lock
    }

    /// How long a caller with a lock at hand thinks at most, microseconds.
    #[must_use]
    pub fn hurry_us(&self, caller: usize) -> Option<u64> {
        let bulk = self.bulk[1].hurry_us().filter(|_| caller == 0);
        bulk.or_else(|| self.lockers[caller].hurry_us())
    }

    /// A key: a string, or a value of another type that is like none of the others.
    fn key(&mut self) -> Field {
        let number = self.random.below(self.plan.keys);
        let text = format!("k{number}");
        if !self.random.percent(TYPED) {
            return text.as_str().into();
        }
        let float = |value| Float::new(value).map_or(Field::Bool(false), Field::Float);
        match self.random.below(6) {
            0 => Field::Bytes(text.into()),
            1 => Field::Integer(number as i64),
            2 => Field::Integer(*self.random.pick(&[i64::MIN, -1, i64::MAX])),
            3 => float(number as f64),
            4 => float(*self.random.pick(&[-0.0, 0.5, f64::INFINITY, f64::MIN_POSITIVE / 4.0])),
            _ => Field::Bool(number.is_multiple_of(2)),
        }
    }

    fn some_clients(&mut self) -> Access {
        let mut some = self.clients.clone();
        some.retain(|_| self.random.percent(50));
        Access::only(some)
    }

    fn entry(&mut self) -> Entry {
        self.values += 1;
        let mut value = format!("c{}.{}", self.client, self.values);
        let length = self.random.below(2 * self.plan.value_bytes as u64) as usize;
        while value.len() < length {
            value.push('.');
        }
        let mut fields = vec!["t".into(), self.key(), value.as_str().into()];
        if self.random.percent(LONG) {
            fields.extend([self.key(), self.key()]);
        }
        let mut entry = Entry::new(tuple(&fields));
        if self.random.percent(70) {
            entry.lease_ms = Some(self.lease_ms());
        }
        if self.random.percent(10) {
            entry.read = self.some_clients();
        }
        if self.random.percent(10) {
            entry.take = self.some_clients();
        }
        entry
    }

    fn template(&mut self) -> Template {
        let key = Pattern::Value(self.key());
        let kind = || Pattern::Value("t".into());
        let kinds = [Kind::String, Kind::Bytes, Kind::Integer, Kind::Float, Kind::Bool];
        let mut fields = match self.random.below(10) {
            0..6 => vec![kind(), key, Pattern::Any],
            6 => vec![kind(), Pattern::Any, Pattern::Any],
            7 => vec![kind(), Pattern::Kind(*self.random.pick(&kinds)), Pattern::Any],
            8 => vec![Pattern::Any, key, Pattern::Kind(Kind::String)],
            _ => vec![Pattern::Kind(Kind::String), Pattern::Kind(Kind::String), Pattern::Any],
        };
        if self.random.percent(LONG) {
            let last = match self.random.below(3) {
                0 => Pattern::Kind(*self.random.pick(&kinds)),
                1 => Pattern::Value(self.key()),
                _ => Pattern::Any,
            };
            fields.extend([Pattern::Any, last]);
        }
        Template { fields }
    }

    fn limit(&mut self) -> u32 {
        match self.random.percent(EXTREME) {
            true => limits::TUPLES_AT_ONCE as u32,
            false => self.random.between(1, 8) as u32,
        }
    }

    fn wait_ms(&mut self) -> u64 {
        match self.random.percent(EXTREME) {
            true => limits::WAIT_MS,
            false => *self.random.pick(&WAITS_MS),
        }
    }

    fn lease_ms(&mut self) -> u64 {
        match self.random.percent(EXTREME) {
            true => limits::LEASE_MS,
            false => *self.random.pick(&LEASES_MS),
        }
    }

    fn read(&mut self, may_wait: bool) -> TupleCommand {
        let (template, wait_ms) = (self.template(), self.wait_ms());
        let operation = match self.random.below(20) {
            0 => return TupleCommand::Spaces { after: String::new(), limit: self.limit() },
            1 if self.random.percent(30) => return on(BULK, Operation::Describe),
            1 => Operation::Describe,
            2..6 => {
                let after = self.numbers.first().copied().unwrap_or_default();
                let after = if self.random.percent(50) { after } else { 0 };
                Operation::RdAll { template, after, limit: self.limit() }
            }
            6..12 if may_wait => Operation::Rd { template, wait_ms },
            _ => Operation::Rdp(template),
        };
        let space = if self.random.percent(POOLED) { POOL } else { SPACE };
        on(space, operation)
    }

    fn update(&mut self, may_wait: bool) -> TupleCommand {
        let (entry, template, wait_ms) = (self.entry(), self.template(), self.wait_ms());
        let operation = match self.random.below(100) {
            0..34 => Operation::Out(entry),
            34..40 => {
                let more = self.random.below(3);
                let mut entries = vec![entry];
                entries.extend((0..more).map(|_| self.entry()));
                Operation::OutAll(entries)
            }
            40..54 => Operation::Inp(template),
            54..72 if may_wait => Operation::In { template, wait_ms },
            72..77 => Operation::InAll { template, limit: self.limit() },
            77..83 => Operation::Cas { template, entry },
            83..90 => Operation::Replace { template, entry },
            90..94 if !self.numbers.is_empty() => {
                let number = *self.random.pick(&self.numbers);
                let lease_ms = match self.random.below(8) {
                    0 => None,
                    1 => Some(0),
                    _ => Some(self.lease_ms()),
                };
                Operation::Renew { number, lease_ms }
            }
            94..97 => return on(POOL, Operation::Create(self.pool())),
            97..99 => return on(POOL, Operation::Delete),
            _ => Operation::Inp(template),
        };
        let space = if self.random.percent(POOLED) { POOL } else { SPACE };
        on(space, operation)
    }

    /// What version 1 does not know.
    fn newer(&mut self, caller: usize, may_wait: bool) -> TupleCommand {
        let pooled = self.random.percent(POOLED);
        let (entry, template, lease_ms) = (self.entry(), self.template(), self.lease_ms());
        let waits = may_wait && self.random.percent(60);
        let wait_ms = match waits {
            true if self.random.percent(20) => LONG_WAIT_MS,
            true => self.wait_ms(),
            false => 0,
        };
        let operation = match self.random.below(100) {
            0..25 => {
                // Some by the first field alone, which almost all share, or by one that nobody has.
                let key = *self.random.pick(&[1, 2, 2, 2, 2, 2, 3]);
                Operation::Claim { key, entry, wait_ms }
            }
            25..50 => Operation::Lease { template, lease_ms, wait_ms },
            50..60 => {
                let fields = tuple(&["n".into(), self.key()]);
                let amount = match self.random.percent(EXTREME) {
                    true => i64::MAX,
                    false => self.random.below(9) as i64 - 3,
                };
                Operation::Add { fields, amount }
            }
            60..66 => Operation::Waits { after: 0, limit: self.limit() },
            _ => {
                let known = self.holders.draw(&mut self.random, &self.numbers, lease_ms);
                let (pooled, operation) =
                    known.unwrap_or((pooled, Operation::Waits { after: 0, limit: 8 }));
                return on(self.holders.asks(caller, pooled), operation);
            }
        };
        on(self.holders.asks(caller, pooled), operation)
    }

    /// How the pool is created this time.
    fn pool(&mut self) -> SpaceOptions {
        let mut options = SpaceOptions { manage: Access::Anyone, ..self.options.clone() };
        if self.random.percent(30) {
            options.insert = self.some_clients();
            options.take = self.some_clients();
        }
        options
    }
}

/// Waits for what nobody inserts.
#[must_use]
pub fn wait_in_vain() -> Request {
    let template = Template { fields: vec![Pattern::Value("nobody".into())] };
    let command = Asked::Spaces(on(SPACE, Operation::In { template, wait_ms: 2_000 }));
    // Where agreed time was led ahead, the deadline may be an hour away.
    Request { command, fast: false, short_us: Some(20_000_000) }
}

/// Reads everything there is, whatever became of the spaces.
#[must_use]
pub fn read_everything() -> Vec<Request> {
    let all = |space: &str, fields: usize| {
        let template = Template { fields: vec![Pattern::Any; fields] };
        on(space, Operation::RdAll { template, after: 0, limit: 512 })
    };
    let commands = [
        TupleCommand::Spaces { after: String::new(), limit: 512 },
        on(SPACE, Operation::Describe),
        all(SPACE, 3),
        all(SPACE, 4),
        all(SPACE, 5),
        all(POOL, 3),
        all(POOL, 5),
        all(BULK, 2),
        on(BULK, Operation::Describe),
    ];
    let request =
        |command| Request { command: Asked::Spaces(command), fast: false, short_us: None };
    commands.into_iter().map(request).collect()
}
