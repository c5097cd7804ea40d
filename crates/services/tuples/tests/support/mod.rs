#![allow(dead_code)]

pub mod model;

use bytes::Bytes;
use perdura_execution::{
    Alone as _, Entry as PieceEntry, ExecutionContext, Progress, Release, Service,
};
use perdura_protocol::{ClusterId, Decode, Digest, Encode, PublicKey, SessionId, Slot, Time};
use perdura_tuples::{
    Access, Entry, Field, Float, Found, Kind, Operation, Pattern, SpaceOptions, Template, Tuple,
    TupleCommand, TupleReply, TupleSpaces, limits,
};

pub const LIMIT: u64 = 1 << 30;

pub fn key(client: u8) -> PublicKey {
    PublicKey([client; 32])
}

pub fn context(client: u8, time: u64) -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(time),
        clock: Time(time),
        session: SessionId { client: key(client), nonce: 1 },
        number: 1,
        cluster: ClusterId([1; 16]),
        batch: Digest::ZERO,
        administrator: key(200),
        other: None,
        meter: Default::default(),
    }
}

/// The context of a command with this number in a session of its client's.
pub fn numbered(client: u8, nonce: u64, number: u64, time: u64) -> ExecutionContext {
    let session = SessionId { client: key(client), nonce };
    ExecutionContext { session, number, ..context(client, time) }
}

/// A released reply, decoded.
pub type Released = (SessionId, u64, Result<TupleReply, String>);

fn decoded(release: Release) -> Released {
    let reply = release.result.map(|reply| TupleReply::from_bytes(reply).unwrap());
    (release.session, release.number, reply)
}

/// The same with whether it is an offer, `None` for a refusal.
pub fn served(released: Vec<Release>) -> Vec<model::Served> {
    let told = |release: Release| {
        let offer = release.offer;
        let (session, number, reply) = decoded(release);
        (session, number, reply.ok(), offer)
    };
    released.into_iter().map(told).collect()
}

/// What a command gives, `None` if it waits.
pub fn decoded_progress(progress: Result<Progress, String>) -> Option<Result<TupleReply, String>> {
    match progress {
        Ok(Progress::Done(reply)) => Some(Ok(TupleReply::from_bytes(reply).unwrap())),
        Ok(Progress::Waits) => None,
        Err(text) => Some(Err(text)),
    }
}

/// What a command gives, in the words of which digests were taken.
#[derive(Debug)]
pub enum Noted {
    Done(#[allow(dead_code)] Result<Bytes, String>),
    Waits,
}

impl Noted {
    pub fn of(progress: Result<Progress, String>) -> Noted {
        match progress {
            Ok(Progress::Done(reply)) => Noted::Done(Ok(reply)),
            Ok(Progress::Waits) => Noted::Waits,
            Err(text) => Noted::Done(Err(text)),
        }
    }
}

/// The number of a command that was released, what it is told, and whether that is an offer.
pub type Told = (u64, Result<TupleReply, String>, bool);

fn told(release: Release) -> Told {
    let offer = release.offer;
    let (_, number, reply) = decoded(release);
    (number, reply, offer)
}

/// The oldest, or the one that came, without the end of a lease.
pub fn found(number: u64, tuple: Tuple) -> Result<TupleReply, String> {
    Ok(TupleReply::Found(Some(Found { number, expires: None, tuple })))
}

/// The newest version of the rules.
pub fn newest() -> u16 {
    TupleSpaces::new(0).newest_version()
}

/// No spaces, under this version of the rules.
pub fn spaces(version: u16) -> TupleSpaces {
    let mut spaces = TupleSpaces::new(LIMIT);
    spaces.set_version(version);
    spaces
}

/// Spaces that are not held against anything, whose clients confirm what they are offered, or do not, at random.
pub struct Run {
    pub spaces: TupleSpaces,
    pub random: Random,
    pub offers: Vec<(SessionId, u64)>,
    time: u64,
}

impl Run {
    pub fn new(spaces: TupleSpaces, seed: u64) -> Run {
        Run { spaces, random: Random(seed), offers: Vec::new(), time: 0 }
    }

    fn told(&mut self, released: Vec<Release>) -> Vec<model::Served> {
        let told = served(released);
        let offers = told.iter().filter(|(.., offer)| *offer);
        self.offers.extend(offers.map(|(session, number, ..)| (*session, *number)));
        told
    }

    /// A command with all that comes before it.
    pub fn command(
        &mut self,
        client: u8,
        number: u64,
        time: u64,
        command: &TupleCommand,
    ) -> (Option<Result<TupleReply, String>>, Vec<model::Served>) {
        self.time = time;
        let mut released = Vec::new();
        self.spaces.on_time(Time(time), &mut released);
        let mut told = self.told(released);
        if self.random.chance(3) {
            told.extend(self.end_an_offer());
        }
        let context = numbered(client, self.random.below(3), number, time);
        let mut released = Vec::new();
        let progress = self.spaces.order_or_wait(&context, &command.to_bytes(), &mut released);
        told.extend(self.told(released));
        if self.random.chance(20) {
            self.spaces.waiting().unwrap().forget(context.session, self.random.below(number + 1));
        }
        (decoded_progress(progress), told)
    }

    fn end_an_offer(&mut self) -> Vec<model::Served> {
        let Some((session, number)) = self.random.one_of(&self.offers) else { return Vec::new() };
        self.offers.retain(|offer| *offer != (session, number));
        let mut released = Vec::new();
        if self.random.chance(2) {
            self.spaces.waiting().unwrap().confirm(Time(self.time), session, number, &mut released);
        } else {
            self.spaces.waiting().unwrap().take_back(
                Time(self.time),
                session,
                number,
                &mut released,
            );
        }
        self.told(released)
    }

    /// Until nobody has anything that he has not confirmed.
    pub fn end_all_offers(&mut self) {
        while !self.offers.is_empty() {
            self.end_an_offer();
        }
    }
}

/// What a command gives, `None` if it waits, and what it releases.
pub fn progress(
    spaces: &mut TupleSpaces,
    context: &ExecutionContext,
    command: &TupleCommand,
) -> (Option<Result<TupleReply, String>>, Vec<Released>) {
    let mut released = Vec::new();
    let progress = spaces.order_or_wait(context, &command.to_bytes(), &mut released);
    (decoded_progress(progress), released.into_iter().map(decoded).collect())
}

/// What a new time releases.
pub fn on_time(spaces: &mut TupleSpaces, time: u64) -> Vec<Released> {
    let mut released = Vec::new();
    spaces.on_time(Time(time), &mut released);
    released.into_iter().map(decoded).collect()
}

pub fn execute(
    spaces: &mut TupleSpaces,
    client: u8,
    time: u64,
    command: &TupleCommand,
) -> Result<TupleReply, String> {
    let reply = spaces.order(&context(client, time), &command.to_bytes())?;
    Ok(TupleReply::from_bytes(reply).unwrap())
}

pub fn query(
    spaces: &TupleSpaces,
    client: u8,
    command: &TupleCommand,
) -> Option<Result<TupleReply, String>> {
    let reply = spaces.answer(key(client), &command.to_bytes())?;
    Some(reply.map(|reply| TupleReply::from_bytes(reply).unwrap()))
}

pub fn on(space: &str, operation: Operation) -> TupleCommand {
    TupleCommand::On { space: space.into(), operation }
}

/// Client 1 in the space "s", at a time.
pub struct Desk {
    pub spaces: TupleSpaces,
    pub client: u8,
    pub time: u64,
}

impl Desk {
    pub fn new(options: SpaceOptions) -> Desk {
        let mut desk = Desk { spaces: TupleSpaces::new(LIMIT), client: 1, time: 1000 };
        assert_eq!(desk.run(Operation::Create(options)), Ok(TupleReply::Created));
        desk
    }

    /// Under the newest version of the rules.
    pub fn later(options: SpaceOptions) -> Desk {
        Desk::under(newest(), options)
    }

    pub fn under(version: u16, options: SpaceOptions) -> Desk {
        let mut desk = Desk::new(options);
        desk.spaces.set_version(version);
        desk
    }

    /// What a command of a session gives, `None` if it waits, with what it releases.
    pub fn tell(
        &mut self,
        (nonce, number): (u64, u64),
        operation: Operation,
    ) -> (Option<Result<TupleReply, String>>, Vec<Told>) {
        let context = numbered(self.client, nonce, number, self.time);
        let command = on("s", operation).to_bytes();
        let mut released = Vec::new();
        let progress = self.spaces.order_or_wait(&context, &command, &mut released);
        (decoded_progress(progress), released.into_iter().map(told).collect())
    }

    /// Begins to wait as the first session and number.
    pub fn wait(&mut self, number: u64, operation: Operation) {
        assert_eq!(self.tell((1, number), operation), (None, vec![]));
    }

    /// What an operation that does not wait releases.
    pub fn releases(&mut self, operation: Operation) -> Vec<Told> {
        let (reply, released) = self.tell((99, 1), operation);
        assert!(reply.as_ref().is_some_and(Result::is_ok), "{reply:?}");
        released
    }

    /// The first session's command has what it was offered.
    pub fn confirm(&mut self, number: u64) -> Vec<Told> {
        let session = SessionId { client: key(self.client), nonce: 1 };
        let mut released = Vec::new();
        self.spaces.waiting().unwrap().confirm(Time(self.time), session, number, &mut released);
        released.into_iter().map(told).collect()
    }

    /// And it has not.
    pub fn take_back(&mut self, number: u64) -> Vec<Told> {
        let session = SessionId { client: key(self.client), nonce: 1 };
        let mut released = Vec::new();
        self.spaces.waiting().unwrap().take_back(Time(self.time), session, number, &mut released);
        released.into_iter().map(told).collect()
    }

    /// What a time releases.
    pub fn until(&mut self, time: u64) -> Vec<Told> {
        self.time = time;
        let mut released = Vec::new();
        self.spaces.on_time(Time(time), &mut released);
        released.into_iter().map(told).collect()
    }

    /// The same state in a service that was restored.
    pub fn restored(&mut self) {
        let mut copy = spaces(newest());
        copy.restore(segments(&self.spaces)).unwrap();
        assert_eq!(segments(&copy), segments(&self.spaces));
        assert_eq!(copy.due(), self.spaces.due());
        self.spaces = copy;
    }

    pub fn run(&mut self, operation: Operation) -> Result<TupleReply, String> {
        execute(&mut self.spaces, self.client, self.time, &on("s", operation))
    }

    pub fn at(&mut self, client: u8, time: u64) -> &mut Desk {
        self.client = client;
        self.time = time;
        self
    }

    pub fn out(&mut self, entry: Entry) -> u64 {
        match self.run(Operation::Out(entry)) {
            Ok(TupleReply::Inserted { number }) => number,
            other => panic!("{other:?}"),
        }
    }

    pub fn found(&mut self, operation: Operation) -> Option<Found> {
        match self.run(operation) {
            Ok(TupleReply::Found(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Numbers of all tuples that the client can read.
    pub fn numbers(&mut self, template: Template) -> Vec<u64> {
        let all = Operation::RdAll { template, after: 0, limit: 512 };
        match self.run(all) {
            Ok(TupleReply::FoundAll { tuples, more: false }) => {
                tuples.iter().map(|found| found.number).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn pair(name: &str, value: i64) -> Tuple {
    Tuple::new(&[name.into(), value.into()]).unwrap()
}

pub fn entry(name: &str, value: i64) -> Entry {
    Entry::new(pair(name, value))
}

/// Pairs with this name.
pub fn named(name: &str) -> Template {
    Template { fields: vec![Pattern::Value(name.into()), Pattern::Any] }
}

pub fn any_pair() -> Template {
    Template { fields: vec![Pattern::Any, Pattern::Any] }
}

/// All segments, encoded.
pub fn segments(spaces: &TupleSpaces) -> Vec<Bytes> {
    let snapshot = spaces.snapshot();
    (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect()
}

/// Digests of all segments, as they are remembered.
pub fn digests(spaces: &TupleSpaces) -> Vec<PieceEntry> {
    let snapshot = spaces.snapshot();
    (0..snapshot.segments()).map(|index| snapshot.entry(index)).collect()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() { None } else { Some(all[self.below(all.len() as u64) as usize].clone()) }
    }

    pub fn bytes(&mut self, length: usize) -> Bytes {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Few values, so that templates match.
    pub fn field(&mut self) -> Field {
        match self.below(12) {
            0..5 => Field::String(["a", "b", "", "a longer string"][self.below(4) as usize].into()),
            5..9 => Field::Integer(self.below(3) as i64 - 1),
            9 => Field::Bool(self.chance(2)),
            10 => Field::Float(Float::new(self.below(3) as f64 - 1.0).unwrap()),
            _ => {
                let length = self.below(3) * self.below(9000);
                Field::Bytes(vec![self.below(2) as u8; length as usize].into())
            }
        }
    }

    fn fields(&mut self) -> Vec<Field> {
        let count = [1, 2, 2, 2, 3, 3, 3, 4][self.below(8) as usize];
        (0..count).map(|_| self.field()).collect()
    }

    pub fn tuple(&mut self) -> Tuple {
        Tuple::new(&self.fields()).unwrap()
    }

    pub fn template(&mut self) -> Template {
        let looseness = self.below(4) + 2;
        let fields = self.fields().into_iter().map(|field| {
            if !self.chance(looseness) {
                return Pattern::Value(field);
            }
            let kinds = [Kind::String, Kind::Bytes, Kind::Integer, Kind::Float, Kind::Bool];
            match self.below(4) {
                0 => Pattern::Kind(kinds[self.below(5) as usize]),
                1 => Pattern::Kind(field.kind()),
                _ => Pattern::Any,
            }
        });
        Template { fields: fields.collect() }
    }

    /// One that may wait.
    pub fn short_template(&mut self) -> Template {
        loop {
            let template = self.template();
            if template.to_bytes().len() <= limits::WAITING_TEMPLATE_BYTES {
                return template;
            }
        }
    }

    pub fn access(&mut self, one_in: u64) -> Access {
        if !self.chance(one_in) {
            return Access::Anyone;
        }
        let count = self.below(4);
        Access::only((0..count).map(|_| key(self.client())).collect())
    }

    pub fn client(&mut self) -> u8 {
        self.below(4) as u8 + 1
    }

    pub fn entry(&mut self) -> Entry {
        Entry {
            tuple: self.tuple(),
            lease_ms: if self.chance(3) { Some(self.below(4000) + 1) } else { None },
            read: self.access(6),
            take: self.access(6),
        }
    }

    pub fn options(&mut self) -> SpaceOptions {
        SpaceOptions {
            index_fields: [0, 1, 1, 2, 3, 8][self.below(6) as usize],
            insert: self.access(9),
            read: self.access(12),
            take: self.access(12),
            manage: Access::Only(vec![key(1)]),
        }
    }

    pub fn name(&mut self) -> &'static str {
        ["jobs", "locks", "j", "jobs2"][self.below(4) as usize]
    }

    pub fn operation(&mut self) -> Operation {
        let limit = self.below(6) as u32 + 1;
        match self.below(56) {
            0..3 => Operation::Create(self.options()),
            3 if self.chance(8) => Operation::Delete,
            3..5 => Operation::Describe,
            5..18 => Operation::Out(self.entry()),
            18..20 => {
                let count = self.below(5) + 1;
                Operation::OutAll((0..count).map(|_| self.entry()).collect())
            }
            20..24 => Operation::Rdp(self.template()),
            24..29 => Operation::Inp(self.template()),
            29..32 => {
                let template = self.template();
                Operation::RdAll { template, after: self.below(60), limit }
            }
            32..34 => Operation::InAll { template: self.template(), limit },
            34..37 => Operation::Cas { template: self.template(), entry: self.entry() },
            37..40 => Operation::Replace { template: self.template(), entry: self.entry() },
            45..50 => {
                let template = self.short_template();
                Operation::Rd { template, wait_ms: self.below(4000) + 1 }
            }
            50..56 => {
                let template = self.short_template();
                Operation::In { template, wait_ms: self.below(4000) + 1 }
            }
            _ => Operation::Renew {
                number: self.below(200) + 1,
                lease_ms: if self.chance(4) { None } else { Some(self.below(400)) },
            },
        }
    }

    /// One of those that version 2 brings.
    pub fn later_operation(&mut self) -> Operation {
        let (number, token) = (self.below(60) + 1, self.below(3) + 1);
        let (lease_ms, limit) = (self.below(400) + 1, self.below(6) as u32 + 1);
        let wait_ms = if self.chance(3) { 0 } else { self.below(4000) + 1 };
        match self.below(19) {
            0..4 => {
                let entry = self.small_entry();
                let key = self.below(entry.tuple.fields().count() as u64) as u8 + 1;
                Operation::Claim { key, entry, wait_ms }
            }
            4..7 => Operation::Lease { template: self.small_template(), lease_ms, wait_ms },
            13..16 => Operation::Out(self.small_entry()),
            16 => Operation::Inp(self.small_template()),
            17 => Operation::In { template: self.small_template(), wait_ms: wait_ms.max(1) },
            7 => Operation::Finish { number, token },
            8 => Operation::Return { number, token },
            9 => Operation::Extend { number, token, lease_ms },
            10 => Operation::Add {
                fields: Tuple::new(&["a".into()]).unwrap(),
                amount: if self.chance(9) { i64::MAX } else { self.below(9) as i64 - 4 },
            },
            11 => Operation::Waits { after: self.below(9), limit },
            12 => {
                let session = SessionId { client: key(self.client()), nonce: self.below(5) };
                Operation::EndWait { session, number }
            }
            _ => Operation::Break { number },
        }
    }

    /// One of very few, so that there are some to claim and to wait for.
    fn small_tuple(&mut self) -> Tuple {
        let fields =
            [["a", "b"][self.below(2) as usize].into(), Field::Integer(self.below(2) as i64)];
        Tuple::new(&fields[..1 + self.below(2) as usize]).unwrap()
    }

    fn small_entry(&mut self) -> Entry {
        let access = |random: &mut Random| random.access(12);
        Entry {
            tuple: self.small_tuple(),
            lease_ms: if self.chance(2) { Some(self.below(400) + 1) } else { None },
            read: access(self),
            take: access(self),
        }
    }

    fn small_template(&mut self) -> Template {
        let fields: Vec<Field> = self.small_tuple().fields().collect();
        let pattern = |field| if self.chance(2) { Pattern::Any } else { Pattern::Value(field) };
        Template { fields: fields.into_iter().map(pattern).collect() }
    }

    pub fn command(&mut self) -> TupleCommand {
        if self.chance(40) {
            return TupleCommand::Spaces {
                after: self.name().into(),
                limit: self.below(3) as u32 + 1,
            };
        }
        on(self.name(), self.operation())
    }
}
