//! What a store can be brought to hold, it gives in segments that are read back.

use crate::support::{Random, bytes, execute};
use perdura_execution::{Alone as _, Service};
use perdura_store::{Operation, Store, StoreCommand, Transaction, limits};

/// A segment with one entry, the largest, or with many small ones.
const SEGMENT_BYTES: usize =
    limits::VALUE_BYTES + 2 * limits::KEY_BYTES + 2 * limits::SEGMENT_SPLIT_BYTES;

const _: () = assert!(SEGMENT_BYTES <= perdura_protocol::limits::PIECE_BYTES);

/// Restores a store from its segments, with the limit that it has.
fn check(store: &Store, limit: u64) {
    let snapshot = store.snapshot();
    let segments: Vec<_> = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
    assert!(segments.iter().all(|segment| segment.len() <= SEGMENT_BYTES));
    let mut restored = Store::new(limit);
    restored.restore(segments.clone()).unwrap();
    assert_eq!(restored.state_bytes(), store.state_bytes());
    let again = restored.snapshot();
    assert!(again.segments() == segments.len());
    assert!(segments.iter().enumerate().all(|(index, segment)| again.segment(index) == *segment));
}

/// Lengths on both sides of all that makes a difference.
fn length(random: &mut Random, most: usize) -> usize {
    let split = limits::SEGMENT_SPLIT_BYTES;
    let lengths = [0, 1, 100, limits::SEGMENT_MERGE_BYTES, split - 64, split, split + 1, most];
    lengths[random.below(lengths.len() as u64) as usize].min(most)
}

fn command(random: &mut Random, most: usize) -> StoreCommand {
    let key = |random: &mut Random| {
        let mut key = vec![b'k'; [2, 3, 40, limits::KEY_BYTES][random.below(4) as usize]];
        key[1] = random.below(24) as u8;
        bytes(key)
    };
    let value = |random: &mut Random| bytes(vec![7; length(random, most)]);
    match random.below(8) {
        0..5 => StoreCommand::Put { key: key(random), value: value(random) },
        5..7 => StoreCommand::Delete { key: key(random) },
        _ => {
            let mut operations = Vec::new();
            for _ in 0..random.below(12) {
                let (key, value) = (key(random), value(random));
                operations.push(Operation::Write { key, value, only_if_present: false });
            }
            StoreCommand::Transaction(Transaction { operations })
        }
    }
}

/// The largest keys and values beside small ones, in every order.
#[test]
fn segments_of_the_largest_entries_are_read_back() {
    for seed in 0..3 {
        let mut random = Random(seed + 77);
        let mut store = Store::new(1 << 30);
        for step in 0..240 {
            let _ = execute(&mut store, &command(&mut random, limits::VALUE_BYTES));
            if step % 30 == 29 {
                check(&store, 1 << 30);
            }
        }
        assert!(store.segments() > 20, "{}", store.segments());
    }
}

/// Whoever restores it refuses one that is above its limit, so no command may lead there.
#[test]
fn a_full_store_is_read_back_within_its_limit() {
    let mut refused = 0;
    for seed in 0..20 {
        let mut random = Random(seed + 770);
        let limit = 3000 + random.below(6000);
        let mut store = Store::new(limit);
        for _ in 0..300 {
            let most = 10 + random.below(2500) as usize;
            refused += u32::from(execute(&mut store, &command(&mut random, most)).is_err());
            assert!(store.state_bytes() <= limit);
        }
        check(&store, limit);
    }
    assert!(refused > 500, "they have to be full: {refused}");
}
