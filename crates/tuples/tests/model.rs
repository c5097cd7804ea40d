//! The tuple spaces against a list of tuples, and their segments against their contract, from seeds.

mod support;

use perdura_execution::{Entry as PieceEntry, Service};
use perdura_tuples::{TupleCommand, TupleReply, TupleSpaces};
use support::model::{Model, Refused};
use support::*;

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

#[test]
fn they_behave_like_a_list() {
    let (mut taken, mut queried, mut refused, mut ended) = (0, 0, 0, 0);
    for seed in 0..60 {
        let (mut spaces, mut model) = (TupleSpaces::new(LIMIT), Model::default());
        for (step, (client, time, command)) in commands(seed).enumerate() {
            let query = query(&spaces, client, &command);
            let reply = execute(&mut spaces, client, time, &command);
            let expected = model.execute(client, time, &command);
            let found = reply.clone().map_err(|_| Refused);
            assert_eq!(found, expected, "seed {seed} step {step}: {command:?} {reply:?}");
            if let Some(answer) = query {
                assert!(command.is_read());
                // Leases may have ended since the command before, which the description counts.
                if !matches!(reply, Ok(TupleReply::Described(_))) {
                    assert_eq!(answer, reply, "seed {seed} step {step}: {command:?}");
                }
                queried += 1;
            }
            match reply {
                Ok(TupleReply::Found(Some(_)) | TupleReply::Replaced { .. }) => taken += 1,
                Ok(TupleReply::Renewed { renewed: true, .. }) => ended += 1,
                Err(_) => refused += 1,
                Ok(_) => {}
            }
        }
    }
    assert!(
        taken > 3000 && queried > 2000 && refused > 3000 && ended > 500,
        "{taken} {queried} {refused} {ended}"
    );
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
        for (client, time, command) in commands(seed) {
            let reply = execute(&mut plain, client, time, &command);
            assert_eq!(reply, execute(&mut disturbed, client, time, &command));
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
        for (client, time, command) in commands(seed) {
            let _ = execute(&mut spaces, client, time, &command);
            last = time;
        }
        for name in ["jobs", "locks", "j", "jobs2"] {
            let delete = on(name, perdura_tuples::Operation::Delete);
            let _ = execute(&mut spaces, 1, last, &delete);
        }
        assert_eq!((spaces.entries(), spaces.segments()), (1, 1), "the header is left");
    }
}
