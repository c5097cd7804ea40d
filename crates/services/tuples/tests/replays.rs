//! Replies and segments under version 2 of the rules, byte for byte: what version 3 brought changes none of them. The digests are those of a
//! program that knew version 2 alone.

use crate::support::*;
use perdura_execution::{Alone as _, Release, Service};
use perdura_protocol::{Decode, Digest, Encode, SessionId, Time};
use perdura_tuples::{
    Access, Entry, Field, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand,
    TupleReply, TupleSpaces,
};

/// What a service under version 2 tells, from the first command on.
struct Told {
    spaces: TupleSpaces,
    random: Random,
    offers: Vec<(SessionId, u64)>,
    text: Vec<u8>,
    number: u64,
    // How many were served, and claims that were let through.
    served: u32,
    let_through: u32,
}

impl Told {
    fn new(seed: u64) -> Told {
        let (spaces, random) = (spaces(2), Random(seed));
        let (offers, text) = (Vec::new(), Vec::new());
        Told { spaces, random, offers, text, number: 0, served: 0, let_through: 0 }
    }

    fn note(&mut self, what: impl std::fmt::Debug, released: &[Release]) {
        let offers = released.iter().filter(|release| release.offer);
        self.offers.extend(offers.map(|release| (release.session, release.number)));
        for release in released {
            let reply = release.result.clone().map(|reply| TupleReply::from_bytes(reply).unwrap());
            self.served += u32::from(release.offer);
            self.let_through += u32::from(matches!(reply, Ok(TupleReply::Inserted { .. })));
        }
        let due = self.spaces.due();
        self.text.extend(format!("{what:?} {released:?} {due:?}\n").bytes());
    }

    fn command(&mut self, client: u8, time: u64, command: &TupleCommand) {
        let mut released = Vec::new();
        self.spaces.on_time(Time(time), &mut released);
        self.note("time", &released);
        self.number += 1;
        let context = numbered(client, self.random.below(3), self.number, time);
        let bytes = command.to_bytes();
        let query = self.spaces.answer(key(client), &bytes);
        let mut released = Vec::new();
        let progress = Noted::of(self.spaces.order_or_wait(&context, &bytes, &mut released));
        self.note((query, progress), &released);
    }

    /// Some of the offers end.
    fn between(&mut self, time: u64) {
        while self.random.chance(2) {
            let Some(offer) = self.random.one_of(&self.offers) else { return };
            self.offers.retain(|other| *other != offer);
            let (mut released, (session, number)) = (Vec::new(), offer);
            if self.random.chance(2) {
                self.spaces.waiting().unwrap().confirm(Time(time), session, number, &mut released);
            } else {
                self.spaces.waiting().unwrap().take_back(
                    Time(time),
                    session,
                    number,
                    &mut released,
                );
            }
            self.note(offer, &released);
        }
    }

    fn finish(self, told: &mut Vec<u8>) {
        told.extend(self.text);
        segments(&self.spaces).iter().for_each(|piece| told.extend_from_slice(piece));
    }
}

#[test]
fn version_2_is_as_it_was() {
    let mut told = Vec::new();
    for seed in 0..8 {
        let mut run = Told::new(seed + 40);
        let mut random = Random(seed + 40);
        let mut time = 1_700_000_000_000;
        for _ in 0..1_500 {
            time += random.below(3) * random.below(60);
            let command = if random.chance(2) {
                on(random.name(), random.later_operation())
            } else {
                random.command()
            };
            run.command(random.client(), time, &command);
            run.between(time);
        }
        run.finish(&mut told);
    }
    let digest = Digest::of(&told).to_string();
    assert_eq!(digest, "badf476252f294d50ca6f343b00a50f5ea1c5e11e64db7ec756220e64b6c6ffa");
}

/// Few templates for which many wait, of all kinds, in a space of several segments, and commands of many tuples.
#[test]
fn under_version_2_many_are_served_as_they_were() {
    let mut told = Vec::new();
    let (mut served, mut let_through, mut segments_seen) = (0, 0, 0);
    for seed in 0..6_u64 {
        let mut run = Told::new(seed + 900);
        let mut random = Random(seed + 900);
        let options = SpaceOptions { index_fields: (seed % 3) as u8, ..SpaceOptions::default() };
        run.command(1, 1, &on("s", Operation::Create(options)));
        for step in 0..700 {
            let time = 1_000 + 10 * step;
            let operation = crowded(&mut random);
            run.command(random.client(), time, &on("s", operation));
            run.between(time);
        }
        segments_seen = segments_seen.max(run.spaces.segments());
        (served, let_through) = (served + run.served, let_through + run.let_through);
        run.finish(&mut told);
    }
    assert!(
        served > 300 && let_through > 150 && segments_seen > 8,
        "{served} {let_through} {segments_seen}"
    );
    let digest = Digest::of(&told).to_string();
    assert_eq!(digest, "f95007b9df6cce6d68be497a525aae504de52dfc4e27f6b6b4da83a3cb06fff8");
}

fn few_fields(random: &mut Random) -> Vec<Field> {
    let mut fields: Vec<Field> = vec![["a", "b"][random.below(2) as usize].into()];
    fields.push(Field::Integer(random.below(3) as i64));
    fields.push(Field::Integer(random.below(3) as i64));
    fields
}

fn few_entry(random: &mut Random) -> Entry {
    let mut fields = few_fields(random);
    fields.push(Field::Bytes(vec![7; random.below(4_000) as usize].into()));
    let mut entry = Entry::new(Tuple::new(&fields).unwrap());
    if random.chance(3) {
        entry.lease_ms = Some(1 + random.below(900));
    }
    if random.chance(6) {
        entry.take = Access::only(vec![key(1), key(2)]);
    }
    entry
}

fn few_template(random: &mut Random) -> Template {
    let fields = few_fields(random).into_iter();
    let loose = 1 + random.below(4);
    let pattern =
        |field| if random.below(4) < loose { Pattern::Any } else { Pattern::Value(field) };
    let fields = fields.map(pattern).chain([Pattern::Any]);
    Template { fields: fields.collect() }
}

fn crowded(random: &mut Random) -> Operation {
    let (lease_ms, wait_ms) = (1 + random.below(500), 1 + random.below(2_000));
    match random.below(20) {
        0..3 => Operation::Rd { template: few_template(random), wait_ms },
        3..6 => Operation::In { template: few_template(random), wait_ms },
        6..9 => Operation::Lease { template: few_template(random), lease_ms, wait_ms },
        9..13 => {
            let key = 1 + random.below(3) as u8;
            Operation::Claim { key, entry: few_entry(random), wait_ms }
        }
        13..15 => Operation::OutAll((0..1 + random.below(40)).map(|_| few_entry(random)).collect()),
        15..17 => {
            Operation::InAll { template: few_template(random), limit: 1 + random.below(60) as u32 }
        }
        17 => Operation::Replace { template: few_template(random), entry: few_entry(random) },
        18 => Operation::Waits { after: random.below(300), limit: 1 + random.below(80) as u32 },
        _ => Operation::Break { number: 1 + random.below(2_000) },
    }
}
