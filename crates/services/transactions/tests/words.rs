//! What a caller is told of what did not happen.

use super::run::{prepare_only, transact};
use crate::support::*;
use perdura_protocol::PartitionId;
use perdura_store::Operation;
use perdura_transactions::{Outcome, TransactionError};

fn insert(key: &str) -> Operation {
    Operation::Insert { key: bytes(key), value: bytes("x") }
}

fn compare(key: &str, value: &str) -> Operation {
    Operation::Cmp { key: bytes(key), value: Some(bytes(value)) }
}

/// Whichever partition decides, and whatever is asked of first.
#[test]
fn of_all_that_fails_the_lowest_is_named_and_comparisons_come_first() {
    let shared = Partitions::new(3, 21);
    let client = client(&shared, 1);
    transact(&shared, &client, vec![write("a1", "1"), write("b1", "1"), write("c1", "1")]).unwrap();
    let cases = [
        (2, vec![insert("b1"), write("a2", "2"), compare("c1", "2"), compare("a1", "2")]),
        (0, vec![insert("c1"), insert("b1"), write("a1", "2")]),
        (1, vec![write("c2", "2"), insert("b1"), insert("a1"), compare("c1", "1")]),
        (1, vec![compare("a1", "1"), compare("c1", "2"), compare("b1", "2"), read("a2")]),
    ];
    for _ in 0..6 {
        for (operation, operations) in cases.clone() {
            let outcome = transact(&shared, &client, operations);
            assert_eq!(outcome, Ok(Outcome::Failed { operation }));
        }
    }
    let reads = ["a2", "c2"].map(read).to_vec();
    let outcome = transact(&shared, &client, reads).unwrap();
    let nothing = vec![perdura_store::OperationResult::Value(None); 2];
    assert_eq!(outcome, Outcome::Committed(nothing.into()));
    assert_eq!(lock(&shared).count_pending(PartitionId(0)), 0);
}

#[test]
fn who_is_in_the_way_is_named_and_the_partition_that_he_waits_for() {
    let shared = Partitions::new(3, 22);
    let (dead, living) = (client(&shared, 1), client(&shared, 2));
    let both = vec![write("a1", "1"), write("c1", "1")];
    run_one(&shared, prepare_only(dead.clone(), both, 1));
    lock(&shared).down.insert(PartitionId(2));
    for operations in [vec![write("a1", "2")], vec![write("a1", "2"), write("b1", "2")]] {
        let error = transact(&shared, &living, operations).unwrap_err();
        let TransactionError::Conflict { with: Some(holder), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(holder.waits_for, Some(PartitionId(2)));
        let words = error.to_string();
        assert!(words.contains("which waits for partition 2, and that does not answer"), "{words}");
    }
}
