//! The store against a plain map, and its segments against their invariants, from seeds.

use crate::support::*;
use perdura_execution::{Alone as _, Entry, Service, Snapshot};
use perdura_protocol::{Decode, Digest, Encode};
use perdura_store::{Store, StoreCommand, StoreReply};
use std::sync::Arc;

const LIMIT: u64 = 1 << 30;

fn entries(snapshot: &dyn Snapshot) -> Vec<Entry> {
    (0..snapshot.segments()).map(|index| snapshot.entry(index)).collect()
}

fn check_contents(store: &Store, model: &Model) {
    assert_eq!((store.bytes(), store.entries()), (model.bytes(), model.0.len() as u64));
    for (key, value) in &model.0 {
        assert_eq!(get(store, key).as_ref(), Some(value));
    }
}

/// Puts first, so that there are segments, then everything, then mostly deletes.
fn commands(seed: u64) -> impl Iterator<Item = StoreCommand> {
    let mut random = Random(seed);
    let keys = 200 + seed % 3 * 1500;
    (0..1500).map(move |step| {
        if step < 400 && !random.chance(4) {
            StoreCommand::Put { key: random.key(keys), value: random.value() }
        } else if step > 1000 && !random.chance(4) {
            StoreCommand::Delete { key: random.key(keys) }
        } else {
            random.command(keys)
        }
    })
}

/// By turns as above, and with values that are mostly of one small length and keys that begin alike.
fn styled_commands(seed: u64) -> impl Iterator<Item = StoreCommand> {
    let style = [None, Some(("", 16)), Some(("customer:", 0)), Some(("customer:", 32))];
    commands(seed).map(move |command| match style[seed as usize % 4] {
        Some((prefix, length)) => restyled(command, prefix, length),
        None => command,
    })
}

#[test]
fn it_behaves_like_a_map() {
    let (mut most, mut merged) = (0, 0);
    for seed in 0..12 {
        let (mut store, mut model) = (Store::new(LIMIT), Model::default());
        let mut peak = 0;
        for (step, command) in styled_commands(seed).enumerate() {
            let query = store.answer(perdura_protocol::PublicKey([0; 32]), &command.to_bytes());
            let reply = execute(&mut store, &command).unwrap();
            assert_eq!(reply, model.execute(&command), "seed {seed} step {step}: {command:?}");
            if let Some(answer) = query {
                assert!(command.is_read());
                assert_eq!(StoreReply::from_bytes(answer.unwrap()).unwrap(), reply);
            }
            peak = peak.max(store.segments());
        }
        check_contents(&store, &model);
        most = most.max(peak);
        merged += usize::from(peak > 10 && store.segments() < peak / 2);
    }
    assert!(most > 30, "the runs must split segments: {most}");
    assert!(merged > 0, "the runs must merge segments");
}

/// The same commands give the same segments, whenever snapshots are taken, held and hashed, and
/// whenever the store is replaced by one that was restored.
#[test]
fn segments_depend_on_the_commands_alone() {
    for seed in 0..8 {
        let mut random = Random(seed + 1000);
        let (mut plain, mut disturbed) = (Store::new(LIMIT), Store::new(LIMIT));
        let mut held = Vec::new();
        for command in styled_commands(seed) {
            assert_eq!(execute(&mut plain, &command), execute(&mut disturbed, &command));
            match random.below(40) {
                0 => held.push(disturbed.snapshot()),
                1 => held.clear(),
                2 => {
                    let _ = entries(&*disturbed.snapshot());
                }
                3 => {
                    let mut restored = Store::new(LIMIT);
                    restored.restore(segments(&disturbed)).unwrap();
                    disturbed = restored;
                }
                _ => {}
            }
        }
        assert_eq!(segments(&plain), segments(&disturbed));
        assert_eq!(entries(&*plain.snapshot()), entries(&*disturbed.snapshot()));
        assert_eq!((plain.bytes(), plain.entries()), (disturbed.bytes(), disturbed.entries()));
    }
}

/// A remembered digest is that of the segment as it is.
#[test]
fn remembered_digests_are_right() {
    let mut store = Store::new(LIMIT);
    for (step, command) in commands(5).enumerate() {
        execute(&mut store, &command).unwrap();
        if step % 50 == 0 {
            let snapshot = store.snapshot();
            let fresh: Vec<Entry> = segments(&store).iter().map(|piece| Entry::of(piece)).collect();
            assert_eq!(entries(&*snapshot), fresh);
        }
    }
}

#[test]
fn a_snapshot_is_isolated_from_later_writes() {
    for seed in 0..4 {
        let mut store = Store::new(LIMIT);
        for command in styled_commands(seed).take(600) {
            execute(&mut store, &command).unwrap();
        }
        let before = segments(&store);
        let snapshot: Arc<dyn Snapshot> = store.snapshot();
        for command in styled_commands(seed + 4) {
            execute(&mut store, &command).unwrap();
        }
        let frozen: Vec<_> = (0..snapshot.segments()).map(|i| snapshot.segment(i)).collect();
        assert_eq!(frozen, before);
        assert_ne!(segments(&store), before);
    }
}

#[test]
fn ascending_keys_fill_segments_and_deletes_empty_them() {
    let mut store = Store::new(LIMIT);
    for number in 0..20_000 {
        put(&mut store, format!("{number:08}"), vec![1; 100]);
    }
    // 172 bytes each: 3.4 MB, in segments of 32 to 64 KiB.
    assert!((53..106).contains(&store.segments()), "{}", store.segments());
    for number in 0..20_000 {
        assert!(delete(&mut store, format!("{number:08}")));
    }
    assert_eq!((store.segments(), store.bytes(), store.entries()), (1, 0, 0));
    assert_eq!(segments(&store), segments(&Store::new(LIMIT)));
}

#[test]
fn large_values_stand_alone() {
    let mut store = Store::new(LIMIT);
    for key in ["a", "c", "e"] {
        put(&mut store, key, "small");
    }
    put(&mut store, "b", vec![1; 1 << 20]);
    put(&mut store, "d", vec![1; 1 << 20]);
    let sizes: Vec<usize> = segments(&store).iter().map(|piece| piece.len()).collect();
    assert!(sizes.iter().all(|size| *size < 100 || *size > 1 << 20), "{sizes:?}");
    let mut copy = Store::new(LIMIT);
    copy.restore(segments(&store)).unwrap();
    for key in ["b", "d", "a", "c", "e"] {
        assert!(delete(&mut copy, key) && delete(&mut store, key));
        assert_eq!(segments(&copy), segments(&store));
    }
    assert_eq!(copy.segments(), 1);
}

/// A replica of another release has the same segments after the same commands. These are those of the first release
/// that had segments; where they change, groups of both diverge.
#[test]
fn segments_begin_and_end_where_they_always_did() {
    let known: [(u64, usize, u64); 3] = [
        (0, 353, 0x39ae_3631_a747_1c39),
        (1, 359, 0x5422_cc1a_b0fa_17f3),
        (2, 401, 0x5d68_0d23_5626_4870),
    ];
    for (seed, count, digest) in known {
        let mut store = Store::new(LIMIT);
        let mut random = Random(seed + 77);
        for _ in 0..20_000 {
            let key = random.key(9000);
            let command = match random.chance(4) {
                true => StoreCommand::Delete { key },
                false => StoreCommand::Put { key, value: random.value() },
            };
            execute(&mut store, &command).unwrap();
        }
        for command in commands(seed) {
            let _ = execute(&mut store, &command);
        }
        let pieces = segments(&store);
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let found = u64::from_le_bytes(Digest::of(&all).0[..8].try_into().unwrap());
        assert_eq!((pieces.len(), found), (count, digest), "seed {seed}");
    }
}
