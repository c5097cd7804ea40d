//! The tuple spaces against a list of tuples, and their segments against their contract, from seeds.

use crate::support::model::{Model, Refused};
use crate::support::*;
use perdura_execution::{Entry as PieceEntry, Service};
use perdura_protocol::{PublicKey, Time};
use perdura_tuples::{
    Access, Entry, Field, SpaceDescription, SpaceOptions, Tuple, TupleCommand, TupleReply,
    TupleSpaces, limits,
};

/// Commands with who sends them and when. Time stands still, creeps and leaps.
fn commands(seed: u64) -> impl Iterator<Item = (u8, u64, TupleCommand)> {
    let mut random = Random(seed);
    let mut time = 1_700_000_000_000;
    (0..1200).map(move |_| {
        time += match random.below(10) {
            0..5 => 0,
            5..9 => random.below(20),
            _ => random.below(300),
        };
        (random.client(), time, random.command())
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
    ended: u32,
    forgotten: u32,
}

#[test]
fn they_behave_like_a_list() {
    let mut seen = Seen::default();
    for seed in 0..60 {
        let (mut spaces, mut model) = (TupleSpaces::new(LIMIT), Model::default());
        let mut random = Random(seed + 500);
        for (step, (client, time, command)) in commands(seed).enumerate() {
            let ended = model.on_time(time);
            let mut found = on_time(&mut spaces, time);
            found.sort_unstable_by_key(|(session, number, _)| (*session, *number));
            let nothing = |(session, number)| (session, number, Ok(TupleReply::Found(None)));
            seen.ended += ended.len() as u32;
            assert_eq!(found, ended.into_iter().map(nothing).collect::<Vec<_>>());
            if !model.waiters.is_empty() && random.chance(60) {
                let index = random.below(model.waiters.len() as u64) as usize;
                let waiter = model.waiters.remove(index);
                spaces.forget(waiter.session, waiter.number);
                seen.forgotten += 1;
            }
            let query = query(&spaces, client, &command);
            let context = numbered(client, random.below(5), step as u64, time);
            let (progress, released) = progress(&mut spaces, &context, &command);
            let (expected, served) =
                model.progress((context.session, context.number), time, &command);
            let text = format!("seed {seed} step {step}: {command:?} {progress:?}");
            let released: Vec<_> =
                released.into_iter().map(|(id, number, reply)| (id, number, reply.ok())).collect();
            assert_eq!(released, served, "{text}");
            seen.served += served.len() as u32;
            let first = model.waiters.iter().map(|waiter| Time(waiter.deadline)).min();
            assert_eq!(spaces.due(), first, "{text}");
            let found =
                progress.clone().map(|reply| reply.map(without_waiters).map_err(|_| Refused));
            assert_eq!(found, expected, "{text}");
            let Some(reply) = progress else {
                seen.waited += 1;
                continue;
            };
            if let Some(answer) = query {
                assert!(command.is_read());
                // Leases may have ended since the command before, which the description counts.
                if !matches!(reply, Ok(TupleReply::Described(_))) {
                    assert_eq!(answer, reply, "seed {seed} step {step}: {command:?}");
                }
                seen.queried += 1;
            }
            match reply {
                Ok(TupleReply::Found(Some(_)) | TupleReply::Replaced { .. }) => seen.found += 1,
                Ok(TupleReply::Renewed { renewed: true, .. }) => seen.renewed += 1,
                Err(_) => seen.refused += 1,
                Ok(_) => {}
            }
        }
    }
    let Seen { found, queried, refused, renewed, waited, served, ended, forgotten } = seen;
    assert!(found > 3000 && queried > 2000 && refused > 1000 && renewed > 500, "{seen:?}");
    assert!(waited > 1000 && served > 400 && ended > 500 && forgotten > 300, "{seen:?}");
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
    let mut most = 0;
    for seed in 0..12 {
        let mut random = Random(seed + 1000);
        let (mut plain, mut disturbed) = (TupleSpaces::new(LIMIT), TupleSpaces::new(LIMIT));
        let mut held = Vec::new();
        for (step, (client, time, command)) in commands(seed).enumerate() {
            let context = numbered(client, 1, step as u64, time);
            assert_eq!(on_time(&mut plain, time), on_time(&mut disturbed, time));
            let reply = progress(&mut plain, &context, &command);
            assert_eq!(reply, progress(&mut disturbed, &context, &command));
            match random.below(30) {
                0 => held.push(disturbed.snapshot()),
                1 => held.clear(),
                2 => drop(digests(&disturbed)),
                3 => {
                    let mut restored = TupleSpaces::new(LIMIT);
                    restored.restore(segments(&disturbed)).unwrap();
                    disturbed = restored;
                }
                _ => {}
            }
            most = most.max(plain.segments());
        }
        assert_eq!(segments(&plain), segments(&disturbed));
        assert_eq!(digests(&plain), digests(&disturbed));
        let fresh: Vec<PieceEntry> =
            segments(&plain).iter().map(|piece| PieceEntry::of(piece)).collect();
        assert_eq!(digests(&plain), fresh);
        assert_eq!((plain.bytes(), plain.entries()), (disturbed.bytes(), disturbed.entries()));
    }
    assert!(most > 2, "the runs must fill segments: {most}");
}

/// What was taken, what expired and what was deleted leaves nothing behind.
#[test]
fn what_goes_leaves_nothing() {
    for seed in 0..10 {
        let mut spaces = TupleSpaces::new(LIMIT);
        let mut last = 0;
        for (step, (client, time, command)) in commands(seed).enumerate() {
            on_time(&mut spaces, time);
            let context = numbered(client, 1, step as u64, time);
            let _ = progress(&mut spaces, &context, &command);
            last = time;
        }
        for name in ["jobs", "locks", "j", "jobs2"] {
            let delete = on(name, perdura_tuples::Operation::Delete);
            let _ = execute(&mut spaces, 1, last, &delete);
        }
        assert_eq!((spaces.entries(), spaces.segments()), (1, 1), "the header is left");
    }
}

/// Whoever restores them refuses spaces that are above their limit, or not laid out as they are written, so no command, time or
/// withdrawal may lead there.
#[test]
fn full_spaces_are_read_back_within_their_limit() {
    let mut full = 0;
    for seed in 0..40 {
        let mut random = Random(seed + 9000);
        let limit = 1500 + random.below(4000);
        let mut spaces = TupleSpaces::new(limit);
        for (step, (client, time, command)) in commands(seed + 9000).enumerate() {
            on_time(&mut spaces, time);
            let context = numbered(client, random.below(5), step as u64, time);
            let (progress, _) = progress(&mut spaces, &context, &command);
            if random.chance(20) {
                spaces.forget(context.session, random.below(step as u64 + 1));
            }
            let is_full = |told: &Result<TupleReply, String>| {
                told.as_ref().is_err_and(|text| text.starts_with("the tuple spaces are full"))
            };
            full += u32::from(progress.as_ref().is_some_and(is_full));
            assert!(spaces.bytes() <= limit, "seed {seed} step {step}: {command:?}");
            if step % 40 == 39 {
                TupleSpaces::new(limit).restore(segments(&spaces)).unwrap();
            }
        }
    }
    assert!(full > 1000, "they have to be full: {full}");
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
