//! The tuple spaces against a list of tuples, and their segments against their contract, from seeds.

use crate::support::model::{Model, Refused, Served, Waiter};
use crate::support::*;
use perdura_execution::{Alone as _, Entry as PieceEntry, Service, StateLimit};
use perdura_protocol::{Digest, Encode, PublicKey, Time};
use perdura_tuples::{
    Access, Broken, Entry, Field, Operation, SpaceDescription, SpaceOptions, Tuple, TupleCommand,
    TupleReply, TupleSpaces, limits,
};

/// Commands with who sends them and when. Time stands still, creeps and leaps.
fn commands(seed: u64) -> impl Iterator<Item = (u8, u64, TupleCommand)> {
    commands_under(1, seed)
}

fn commands_under(version: u16, seed: u64) -> impl Iterator<Item = (u8, u64, TupleCommand)> {
    let mut random = Random(seed);
    let mut time = 1_700_000_000_000;
    (0..1200).map(move |_| {
        time += match random.below(10) {
            0..5 => 0,
            5..9 => random.below(20),
            _ => random.below(300),
        };
        let client = random.client();
        let later = version > 1 && random.chance(2);
        let command =
            if later { on(random.name(), random.later_operation()) } else { random.command() };
        (client, time, command)
    })
}

/// What happened in the runs: they have to reach everything.
#[derive(Default, Debug)]
struct Seen {
    found: u32,
    queried: u32,
    refused: u32,
    renewed: u32,
    waited: u32,
    served: u32,
    offered: u32,
    confirmed: u32,
    taken_back: u32,
    let_through: u32,
    leased: u32,
    leased_again: u32,
    held: u32,
    added: u32,
    listed: u32,
    ended_by_operator: u32,
    broken: u32,
    ended: u32,
    forgotten: u32,
}

impl Seen {
    fn reply(&mut self, reply: &Result<TupleReply, String>) {
        match reply {
            Ok(TupleReply::Found(Some(_)) | TupleReply::Replaced { .. }) => self.found += 1,
            Ok(TupleReply::Renewed { renewed: true, .. }) => self.renewed += 1,
            Ok(TupleReply::Leased(Some(leased))) => {
                self.leased += 1;
                self.leased_again += u32::from(leased.before > 0);
            }
            Ok(TupleReply::Holding { held: true, .. }) => self.held += 1,
            Ok(TupleReply::Added { .. }) => self.added += 1,
            Ok(TupleReply::Waits { waits, .. }) => self.listed += waits.len() as u32,
            Ok(TupleReply::WaitEnded { ended: true }) => self.ended_by_operator += 1,
            Ok(TupleReply::Broken(Broken::Removed | Broken::Returned)) => self.broken += 1,
            Err(_) => self.refused += 1,
            Ok(_) => {}
        }
    }
}

/// A service and what it is held against.
struct Pair {
    spaces: TupleSpaces,
    model: Model,
    random: Random,
    seen: Seen,
}

impl Pair {
    fn new(version: u16, seed: u64) -> Pair {
        let (model, random) = (Model::new(version), Random(seed + 500));
        Pair { spaces: spaces(version), model, random, seen: Seen::default() }
    }

    fn on_time(&mut self, time: u64, text: &str) {
        let mut released = Vec::new();
        self.spaces.on_time(Time(time), &mut released);
        let mut found = served(released);
        found.sort_unstable_by_key(|(session, number, ..)| (*session, *number));
        let expected = self.model.on_time(time);
        assert_eq!(found, expected, "{text}");
        self.seen.ended += expected.len() as u32;
        assert_eq!(self.spaces.due(), self.model.due(), "{text}");
    }

    /// Offers are confirmed and taken back, and some who wait go on.
    fn between(&mut self, time: u64, text: &str) {
        while let Some((session, number)) = self.random.one_of(&self.model.offers()) {
            if self.random.chance(2) {
                break;
            }
            if self.random.chance(2) {
                let mut released = Vec::new();
                self.spaces.waiting().unwrap().confirm(Time(time), session, number, &mut released);
                let expected = self.model.confirm(time, session, number);
                assert_same(served(released), expected, text);
                self.seen.confirmed += 1;
            } else {
                let mut released = Vec::new();
                self.spaces.waiting().unwrap().take_back(
                    Time(time),
                    session,
                    number,
                    &mut released,
                );
                let expected = self.model.take_back(time, session, number);
                assert_same(served(released), expected, text);
                self.seen.taken_back += 1;
            }
            self.on_time(time, text);
        }
        if !self.model.waiters.is_empty() && self.random.chance(60) {
            let index = self.random.below(self.model.waiters.len() as u64) as usize;
            let waiter = self.model.waiters.remove(index);
            self.spaces.waiting().unwrap().forget(waiter.session, waiter.number);
            self.seen.forgotten += 1;
        }
    }

    /// Makes some commands be about what is there.
    fn aimed(&mut self, client: u8, command: TupleCommand) -> (u8, TupleCommand) {
        let TupleCommand::On { space, operation } = &command else { return (client, command) };
        if self.random.chance(4) {
            return (client, command);
        }
        let leases: Vec<_> = self
            .model
            .leases()
            .into_iter()
            .map(|(name, c, n, t)| (name.to_owned(), c, n, t))
            .collect();
        let lease = self.random.one_of(&leases);
        let waiter = self.random.one_of(&self.model.waiters);
        match (operation, lease, waiter) {
            (Operation::Finish { .. }, Some((name, client, number, token)), _) => {
                (client, on(&name, Operation::Finish { number, token }))
            }
            (Operation::Return { .. }, Some((name, client, number, token)), _) => {
                (client, on(&name, Operation::Return { number, token }))
            }
            (Operation::Extend { lease_ms, .. }, Some((name, client, number, token)), _) => {
                let lease_ms = *lease_ms;
                (client, on(&name, Operation::Extend { number, token, lease_ms }))
            }
            (Operation::Break { .. }, Some((name, _, number, _)), _) => {
                (client, on(&name, Operation::Break { number }))
            }
            (Operation::EndWait { .. }, _, Some(waiter)) => {
                let Waiter { session, number, .. } = waiter;
                let whose = if self.random.chance(5) { space } else { &waiter.space };
                (client, on(whose, Operation::EndWait { session, number }))
            }
            _ => (client, command),
        }
    }

    fn command(&mut self, client: u8, step: u64, time: u64, command: &TupleCommand, text: &str) {
        let query = query(&self.spaces, client, command);
        let context = numbered(client, self.random.below(5), step, time);
        let mut released = Vec::new();
        let progress = self.spaces.order_or_wait(&context, &command.to_bytes(), &mut released);
        let progress = decoded_progress(progress);
        let text = format!("{text} {progress:?}");
        let (expected, told) =
            self.model.progress((context.session, context.number), time, command);
        self.seen.served += told.len() as u32;
        self.seen.offered += told.iter().filter(|(.., offer)| *offer).count() as u32;
        let through =
            |(_, _, reply, _): &&Served| matches!(reply, Some(TupleReply::Inserted { .. }));
        self.seen.let_through += told.iter().filter(through).count() as u32;
        assert_same(served(released), told, &text);
        assert_eq!(self.spaces.due(), self.model.due(), "{text}");
        let found = progress.clone().map(|reply| reply.map(without_waiters).map_err(|_| Refused));
        assert_eq!(found, expected, "{text}");
        let Some(reply) = progress else {
            self.seen.waited += 1;
            return;
        };
        if let Some(answer) = query {
            assert!(command.is_read());
            // Leases may have ended since the command before, which the description counts.
            if !matches!(reply, Ok(TupleReply::Described(_))) {
                assert_eq!(answer, reply, "{text}");
            }
            self.seen.queried += 1;
        }
        self.seen.reply(&reply);
    }
}

/// Nothing says in which order those are told who get something at one time, but for each tuple.
fn assert_same(mut found: Vec<Served>, mut expected: Vec<Served>, text: &str) {
    found.sort_unstable_by_key(|(session, number, ..)| (*session, *number));
    expected.sort_unstable_by_key(|(session, number, ..)| (*session, *number));
    assert_eq!(found, expected, "{text}");
}

#[test]
fn they_behave_like_a_list() {
    let mut seen = Seen::default();
    for seed in 0..60 {
        let mut pair = Pair { seen, ..Pair::new(1, seed) };
        for (step, (client, time, command)) in commands(seed).enumerate() {
            let text = format!("seed {seed} step {step}: {command:?}");
            pair.on_time(time, &text);
            pair.between(time, &text);
            pair.command(client, step as u64, time, &command, &text);
        }
        seen = pair.seen;
    }
    let Seen { found, queried, refused, renewed, waited, served, ended, forgotten, .. } = seen;
    assert!(found > 3000 && queried > 2000 && refused > 1000 && renewed > 500, "{seen:?}");
    assert!(waited > 1000 && served > 400 && ended > 500 && forgotten > 300, "{seen:?}");
}

/// And from version 2 on, with what it brings, offers that are confirmed and taken back at random, and restored in between.
#[test]
fn under_later_versions_they_behave_like_a_list_in_which_things_are_held() {
    (2..=newest()).for_each(behave_like_a_list_in_which_things_are_held);
}

fn behave_like_a_list_in_which_things_are_held(version: u16) {
    let mut seen = Seen::default();
    for seed in 0..24 {
        let mut pair = Pair { seen, ..Pair::new(version, seed + 300) };
        for (step, (client, time, command)) in commands_under(version, seed + 300).enumerate() {
            let (client, command) = pair.aimed(client, command);
            let text = format!("seed {seed} step {step}: client {client} {command:?}");
            pair.on_time(time, &text);
            pair.between(time, &text);
            pair.command(client, step as u64, time, &command, &text);
            if pair.random.chance(30) {
                let mut restored = spaces(version);
                restored.restore(segments(&pair.spaces)).unwrap();
                assert_eq!(segments(&restored), segments(&pair.spaces));
                pair.spaces = restored;
            }
        }
        seen = pair.seen;
    }
    let Seen { found, waited, served, offered, confirmed, taken_back, let_through, .. } = seen;
    assert!(found > 1000 && waited > 2000 && served > 400 && offered > 200, "{seen:?}");
    assert!(confirmed > 120 && taken_back > 120 && let_through > 50, "{seen:?}");
    let Seen { leased, leased_again, held, added, listed, ended_by_operator, broken, .. } = seen;
    assert!(leased > 400 && leased_again > 100 && held > 200 && added > 200, "{seen:?}");
    assert!(listed > 300 && ended_by_operator > 50 && broken > 50, "{seen:?}");
}

/// The model does not count who waits.
fn without_waiters(reply: TupleReply) -> TupleReply {
    match reply {
        TupleReply::Described(description) => {
            TupleReply::Described(SpaceDescription { waiters: 0, ..description })
        }
        other => other,
    }
}

/// The same commands give the same segments, whenever snapshots are taken, held and hashed, and
/// whenever the spaces are replaced by some that were restored.
#[test]
fn segments_depend_on_the_commands_alone() {
    let (mut most, mut offers) = (0, 0);
    for seed in 0..20 {
        let version = 1 + seed as u16 % newest();
        let mut random = Random(seed + 1000);
        let mut plain = Run::new(spaces(version), seed);
        let mut disturbed = Run::new(spaces(version), seed);
        let mut held = Vec::new();
        for (step, (client, time, command)) in commands_under(version, seed).enumerate() {
            let step = step as u64;
            let told = plain.command(client, step, time, &command);
            assert_eq!(told, disturbed.command(client, step, time, &command));
            offers += told.1.iter().filter(|(.., offer)| *offer).count();
            match random.below(30) {
                0 => held.push(disturbed.spaces.snapshot()),
                1 => held.clear(),
                2 => drop(digests(&disturbed.spaces)),
                3 => {
                    let mut restored = spaces(version);
                    restored.restore(segments(&disturbed.spaces)).unwrap();
                    disturbed.spaces = restored;
                }
                _ => {}
            }
            most = most.max(plain.spaces.segments());
        }
        let (plain, disturbed) = (plain.spaces, disturbed.spaces);
        assert_eq!(segments(&plain), segments(&disturbed));
        assert_eq!(digests(&plain), digests(&disturbed));
        let fresh: Vec<PieceEntry> =
            segments(&plain).iter().map(|piece| PieceEntry::of(piece)).collect();
        assert_eq!(digests(&plain), fresh);
        assert_eq!((plain.bytes(), plain.entries()), (disturbed.bytes(), disturbed.entries()));
    }
    assert!(most > 2 && offers > 50, "the runs must fill segments, and offer: {most} {offers}");
}

/// What was taken, what expired and what was deleted leaves nothing behind.
#[test]
fn what_goes_leaves_nothing() {
    for seed in 0..20 {
        let version = 1 + seed as u16 % newest();
        let mut run = Run::new(spaces(version), seed);
        let mut last = 0;
        for (step, (client, time, command)) in commands_under(version, seed).enumerate() {
            run.command(client, step as u64, time, &command);
            last = time;
        }
        let delete = |run: &mut Run| {
            for name in ["jobs", "locks", "j", "jobs2"] {
                let delete = on(name, perdura_tuples::Operation::Delete);
                let _ = execute(&mut run.spaces, 1, last, &delete);
            }
        };
        delete(&mut run);
        // What is offered goes when the offer has ended.
        run.end_all_offers();
        delete(&mut run);
        on_time(&mut run.spaces, last);
        let left = (run.spaces.entries(), run.spaces.segments());
        assert_eq!(left, (1, 1), "the header is left: seed {seed}");
    }
}

/// Whoever restores them refuses spaces that are above their limit, or not laid out as they are written, so no command, time,
/// withdrawal or confirmation may lead there.
#[test]
fn full_spaces_are_read_back_within_their_limit() {
    let (mut full, mut leased) = (0, 0);
    for seed in 0..60 {
        let version = 1 + seed as u16 % newest();
        let mut random = Random(seed + 9000);
        let limit = 1500 + random.below(4000);
        let mut run = Run::new(spaces(version), seed + 9000);
        run.spaces.set_state_limit(StateLimit::of_bytes(limit));
        for (step, (client, time, command)) in commands_under(version, seed + 9000).enumerate() {
            let (progress, _) = run.command(client, step as u64, time, &command);
            let is_full = |told: &Result<TupleReply, String>| {
                told.as_ref().is_err_and(|text| text.starts_with("the tuple spaces are full"))
            };
            full += u32::from(progress.as_ref().is_some_and(is_full));
            let lease = |reply: &Result<TupleReply, String>| {
                matches!(reply, Ok(TupleReply::Leased(Some(_))))
            };
            leased += u32::from(progress.as_ref().is_some_and(lease));
            assert!(run.spaces.bytes() <= limit, "seed {seed} step {step}: {command:?}");
            if step % 40 == 39 {
                let mut restored = spaces(version);
                restored.set_state_limit(StateLimit::of_bytes(limit));
                restored.restore(segments(&run.spaces)).unwrap();
            }
        }
    }
    assert!(full > 1000 && leased > 100, "they have to be full: {full} {leased}");
}

/// A tuple of the greatest length with the longest access lists, in a space that indexes all it may.
#[test]
fn the_largest_tuples_are_read_back() {
    let mut desk =
        Desk::new(SpaceOptions { index_fields: limits::INDEX_FIELDS, ..SpaceOptions::default() });
    let keys =
        (0..limits::ACCESS_KEYS).map(|number| PublicKey([number as u8; 32])).collect::<Vec<_>>();
    let access = Access::only(keys);
    let length = limits::TUPLE_BYTES - 5;
    for number in 0..30 {
        let tuple = Tuple::new(&[Field::Bytes(vec![number; length].into())]).unwrap();
        assert!(Tuple::new(&[Field::Bytes(vec![number; length + 1].into())]).is_err());
        let mut entry = Entry::new(tuple);
        (entry.read, entry.take) = (access.clone(), access.clone());
        entry.lease_ms = Some(limits::LEASE_MS);
        desk.out(entry);
    }
    let pieces = segments(&desk.spaces);
    assert!(pieces.iter().all(|piece| piece.len() <= perdura_protocol::limits::PIECE_BYTES));
    let mut restored = TupleSpaces::new(LIMIT);
    restored.restore(pieces.clone()).unwrap();
    assert!(segments(&restored) == pieces);
}

/// Whatever version 2 brought, version 1 gives the same replies and segments, byte for byte: a cluster that is being upgraded runs
/// programs of both kinds. The digest is that of a program which knew version 1 alone.
#[test]
fn version_1_is_as_it_was() {
    let mut told = Vec::new();
    for seed in 0..8 {
        let mut spaces = TupleSpaces::new(LIMIT);
        let mut random = Random(seed + 70);
        for (step, (client, time, command)) in commands(seed + 70).enumerate() {
            let mut released = Vec::new();
            spaces.on_time(Time(time), &mut released);
            let context = numbered(client, random.below(3), step as u64, time);
            let bytes = command.to_bytes();
            let progress = Noted::of(spaces.order_or_wait(&context, &bytes, &mut released));
            if random.chance(30) {
                spaces.waiting().unwrap().forget(context.session, random.below(step as u64 + 1));
            }
            let query = spaces.answer(key(client), &bytes);
            told.extend(
                format!("{progress:?} {released:?} {query:?} {:?}\n", spaces.due()).bytes(),
            );
        }
        segments(&spaces).iter().for_each(|piece| told.extend_from_slice(piece));
    }
    let digest = Digest::of(&told).to_string();
    assert_eq!(digest, "0b42d74b7e5a838edc82a838a9ef9f6818a4a4dfe738a8fc52543fadb0b86181");
}

/// The same where many leases of several spaces end at once, in tuples so large that the map divides and joins its segments meanwhile.
#[test]
fn under_version_1_leases_of_several_spaces_end_as_they_did() {
    let mut told = Vec::new();
    for seed in 0..12 {
        let mut spaces = TupleSpaces::new(LIMIT);
        let mut random = Random(seed + 300);
        for name in ["a", "b", "c"] {
            execute(&mut spaces, 1, 0, &on(name, Operation::Create(SpaceOptions::default())))
                .unwrap();
        }
        for step in 0..400_u64 {
            let fields = [
                Field::Integer(random.below(5) as i64),
                Field::Bytes(vec![step as u8; random.below(3_000) as usize].into()),
            ];
            let tuple = Tuple::new(&fields).unwrap();
            let mut entry = Entry::new(tuple);
            entry.lease_ms = (random.below(4) > 0).then(|| 1 + random.below(2_000));
            let name = ["a", "b", "c"][random.below(3) as usize];
            execute(&mut spaces, 1, 0, &on(name, Operation::Out(entry))).unwrap();
        }
        for time in [700, 1_400, 2_100] {
            assert_eq!(on_time(&mut spaces, time), []);
            let lengths: Vec<usize> = segments(&spaces).iter().map(|piece| piece.len()).collect();
            told.extend(format!("{lengths:?}\n").bytes());
        }
        segments(&spaces).iter().for_each(|piece| told.extend_from_slice(piece));
    }
    let digest = Digest::of(&told).to_string();
    assert_eq!(digest, "1563740cdb5599f950da60193f4bc4aa66196c314b48f9cdeb8fc30581507aa5");
}
