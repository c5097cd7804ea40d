//! What transactions do, and the limits, one by one.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{Alone as _, Service, StateLimit};
use perdura_protocol::Encode;
use perdura_store::{
    CommandError, Operation, OperationResult, Store, StoreCommand, StoreReply, Transaction,
    TransactionResult, limits,
};

fn store() -> Store {
    let mut store = Store::new(1 << 30);
    for key in ["a", "b", "c", "d"] {
        put(&mut store, key, format!("value of {key}"));
    }
    store
}

fn failed(index: u32) -> Result<TransactionResult, String> {
    Ok(TransactionResult { committed: false, failed: Some(index), results: Vec::new() })
}

fn keys(result: &OperationResult) -> (Vec<Bytes>, bool) {
    match result {
        OperationResult::Entries { entries, more } => {
            (entries.iter().map(|(key, _)| key).collect(), *more)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn single_operations() {
    let mut store = store();
    assert_eq!(get(&store, "a"), Some(bytes("value of a")));
    assert_eq!(get(&store, "x"), None);
    put(&mut store, "a", "");
    assert_eq!(get(&store, "a"), Some(Bytes::new()));
    assert!(delete(&mut store, "a"));
    assert!(!delete(&mut store, "a"));
    assert_eq!(store.entries(), 3);
}

#[test]
fn comparisons_come_first_wherever_they_stand() {
    let mut store = store();
    let operations =
        vec![write("a", "new", false), cmp("a", Some("value of a")), cmp("x", None), read("a")];
    let result = transact(&mut store, operations).unwrap();
    assert!(result.committed);
    assert_eq!(result.results[3], OperationResult::Value(Some(bytes("new"))));
    // An earlier failing operation than the failing comparison is not even tried.
    let operations = vec![insert("a", "other"), cmp("b", None)];
    assert_eq!(transact(&mut store, operations), failed(1));
    for wrong in [cmp("a", None), cmp("a", Some("")), cmp("x", Some("")), cmp("x", Some("y"))] {
        assert_eq!(transact(&mut store, vec![remove("a"), wrong]), failed(1));
    }
    assert_eq!(get(&store, "a"), Some(bytes("new")));
}

#[test]
fn a_failing_update_undoes_the_whole_transaction() {
    let mut store = store();
    let before = segments(&store);
    let operations = vec![
        write("a", "new", false),
        remove("b"),
        insert("e", "e"),
        write("f", "f", true),
        read("a"),
    ];
    assert_eq!(transact(&mut store, operations), failed(3));
    assert_eq!(transact(&mut store, vec![remove("b"), insert("c", "x")]), failed(1));
    assert_eq!(segments(&store), before);
    // Inside a transaction, each sees what those before it did.
    let operations = vec![remove("a"), insert("a", "1"), write("a", "2", true), remove("x")];
    let result = transact(&mut store, operations).unwrap();
    assert_eq!(
        result.results,
        [
            OperationResult::Deleted { existed: true },
            OperationResult::Written,
            OperationResult::Written,
            OperationResult::Deleted { existed: false },
        ]
    );
    assert_eq!(get(&store, "a"), Some(bytes("2")));
    assert!(transact(&mut store, Vec::new()).unwrap().committed);
}

#[test]
fn ranges_see_the_changes_before_them() {
    let mut store = store();
    let operations = vec![
        remove("b"),
        write("bb", "new", false),
        write("c", "changed", false),
        range("", None, 10, false),
        range("", None, 10, true),
        range("b", Some("d"), 10, false),
        range("a", None, 2, false),
        range("a", Some("d"), 2, true),
        range("c", Some("b"), 2, true),
        range("c", Some(""), 2, false),
        range("x", None, 2, true),
    ];
    let result = transact(&mut store, operations).unwrap();
    let found: Vec<_> = result.results[3..].iter().map(keys).collect();
    let all = ["a", "bb", "c", "d"].map(bytes);
    assert_eq!(found[0], (all.to_vec(), false));
    assert_eq!(found[1], (all.iter().rev().cloned().collect(), false));
    assert_eq!(found[2], (vec![all[1].clone(), all[2].clone()], false));
    assert_eq!(found[3], (vec![all[0].clone(), all[1].clone()], true));
    assert_eq!(found[4], (vec![all[2].clone(), all[1].clone()], true));
    assert!(found[5..].iter().all(|range| *range == (Vec::new(), false)));
}

#[test]
fn range_results_are_bounded_but_never_empty() {
    let mut store = Store::new(1 << 30);
    let largest = vec![1; limits::VALUE_BYTES];
    let longest = vec![b'k'; limits::KEY_BYTES];
    put(&mut store, &longest, &largest);
    put(&mut store, "z", "small");
    let result = transact(&mut store, vec![range("", None, 10, false)]).unwrap();
    assert_eq!(keys(&result.results[0]), (vec![bytes(&longest)], true));
    let result = transact(&mut store, vec![range("", None, 10, true)]).unwrap();
    assert_eq!(keys(&result.results[0]), (vec![bytes("z")], true));
    for number in 0..10_001 {
        put(&mut store, format!("m{number:05}"), "");
    }
    let all = vec![range("m", Some("n"), 10_000, false)];
    let result = transact(&mut store, all).unwrap();
    let (found, more) = keys(&result.results[0]);
    assert_eq!((found.len(), more), (10_000, true));
}

#[test]
fn results_fit_a_reply() {
    let mut store = Store::new(1 << 30);
    put(&mut store, "k", vec![1; limits::VALUE_BYTES]);
    assert!(transact(&mut store, vec![read("k"); 4]).is_ok());
    let mut operations = vec![write("other", "x", false)];
    operations.extend(vec![read("k"); 5]);
    let refusal = transact(&mut store, operations).unwrap_err();
    assert!(refusal.contains("reads more than 4194304 bytes"), "{refusal}");
    assert_eq!(get(&store, "other"), None);
    let refusal = transact(&mut store, vec![range("", None, 9, false); 5]).unwrap_err();
    assert!(refusal.contains("read less"), "{refusal}");
}

/// Client and replica refuse with the same words.
fn refused(command: &StoreCommand, expected: &CommandError) {
    let mut store = store();
    let before = segments(&store);
    assert_eq!(command.validate().as_ref(), Err(expected));
    let refusal = store.order(&context(), &command.to_bytes()).unwrap_err();
    assert_eq!(refusal, expected.to_string());
    if let StoreCommand::Get { .. } = command {
        assert_eq!(
            store.answer(perdura_protocol::PublicKey([0; 32]), &command.to_bytes()),
            Some(Err(expected.to_string()))
        );
    }
    assert_eq!(segments(&store), before);
}

#[test]
fn limits_of_keys_and_values() {
    let long = bytes(vec![b'k'; limits::KEY_BYTES + 1]);
    let large = bytes(vec![0; limits::VALUE_BYTES + 1]);
    for (key, length) in [(Bytes::new(), 0), (long, limits::KEY_BYTES + 1)] {
        refused(&StoreCommand::Get { key: key.clone() }, &CommandError::Key(length));
        refused(&StoreCommand::Delete { key: key.clone() }, &CommandError::Key(length));
        let put = StoreCommand::Put { key: key.clone(), value: bytes("v") };
        refused(&put, &CommandError::Key(length));
        for operation in [
            Operation::Cmp { key: key.clone(), value: None },
            Operation::Read { key: key.clone() },
            Operation::Insert { key: key.clone(), value: bytes("v") },
            Operation::Write { key: key.clone(), value: bytes("v"), only_if_present: false },
            Operation::Delete { key: key.clone() },
        ] {
            let operations = vec![remove("a"), operation];
            let command = StoreCommand::Transaction(Transaction { operations });
            refused(&command, &CommandError::Key(length));
        }
    }
    let put = StoreCommand::Put { key: bytes("k"), value: large.clone() };
    refused(&put, &CommandError::Value(limits::VALUE_BYTES + 1));
    for operation in [
        Operation::Cmp { key: bytes("k"), value: Some(large.clone()) },
        Operation::Insert { key: bytes("k"), value: large.clone() },
        Operation::Write { key: bytes("k"), value: large.clone(), only_if_present: false },
    ] {
        let command = StoreCommand::Transaction(Transaction { operations: vec![operation] });
        refused(&command, &CommandError::Value(limits::VALUE_BYTES + 1));
    }
    let mut store = store();
    put_largest(&mut store);
}

fn put_largest(store: &mut Store) {
    let (key, value) = (vec![b'k'; limits::KEY_BYTES], vec![3; limits::VALUE_BYTES]);
    put(store, &key, &value);
    assert_eq!(get(store, &key), Some(bytes(value)));
}

#[test]
fn limits_of_ranges() {
    let long = "k".repeat(limits::KEY_BYTES + 1);
    for (operation, expected) in [
        (range("", None, 0, false), CommandError::RangeLimit(0)),
        (range("", None, 10_001, false), CommandError::RangeLimit(10_001)),
        (range(&long, None, 1, false), CommandError::RangeEnd(limits::KEY_BYTES + 1)),
        (range("", Some(&long), 1, false), CommandError::RangeEnd(limits::KEY_BYTES + 1)),
    ] {
        let command = StoreCommand::Transaction(Transaction { operations: vec![operation] });
        refused(&command, &expected);
    }
}

#[test]
fn limits_of_transactions() {
    let operations = vec![read("a"); limits::OPERATIONS + 1];
    let command = StoreCommand::Transaction(Transaction { operations });
    refused(&command, &CommandError::Operations(limits::OPERATIONS + 1));
    let value = bytes(vec![0; limits::VALUE_BYTES]);
    let write = Operation::Write { key: bytes("k"), value, only_if_present: false };
    let command = StoreCommand::Transaction(Transaction { operations: vec![write; 4] });
    refused(&command, &CommandError::TransactionBytes(limits::TRANSACTION_BYTES + 4));
    // The largest one that is allowed is a command that the protocol carries.
    let value = bytes(vec![0; limits::TRANSACTION_BYTES / limits::OPERATIONS - 1]);
    let write = Operation::Write { key: bytes("k"), value, only_if_present: false };
    let operations = vec![write; limits::OPERATIONS];
    let command = StoreCommand::Transaction(Transaction { operations });
    assert!(command.to_bytes().len() < perdura_protocol::limits::COMMAND_BYTES);
    assert!(matches!(execute(&mut store(), &command), Ok(StoreReply::Transaction(_))));
}

#[test]
fn the_state_is_bounded() {
    let mut store = Store::new(1000);
    put(&mut store, "a", vec![1; 935]); // 1 + 935 + 64 = 1000
    let more = StoreCommand::Put { key: bytes("b"), value: Bytes::new() };
    let refusal = execute(&mut store, &more).unwrap_err();
    assert!(refusal.contains("1000 bytes (state_limit_mib"), "{refusal}");
    let longer = StoreCommand::Put { key: bytes("a"), value: bytes(vec![1; 936]) };
    assert!(execute(&mut store, &longer).is_err());
    let refusal = transact(&mut store, vec![write("b", "", false)]).unwrap_err();
    assert!(refusal.contains("the store is full"), "{refusal}");
    assert_eq!(store.bytes(), 1000);
    // What counts is the whole transaction; the same size is fine.
    put(&mut store, "a", vec![2; 935]);
    let swap = vec![write("b", "", false), remove("a")];
    assert!(transact(&mut store, swap).unwrap().committed);
    assert_eq!(store.bytes(), 65);
    assert!(delete(&mut store, "b"));
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_limit_that_was_raised_holds_for_what_is_restored_too() {
    let mut store = Store::new(1000);
    put(&mut store, "a", vec![1; 935]);
    let more = StoreCommand::Put { key: bytes("b"), value: Bytes::new() };
    assert!(execute(&mut store, &more).is_err());
    store.set_state_limit(StateLimit::of_bytes(1065));
    assert_eq!(execute(&mut store, &more), Ok(StoreReply::Put));
    let refusal = execute(&mut store, &StoreCommand::Put { key: bytes("c"), value: Bytes::new() });
    assert!(refusal.unwrap_err().contains("1065 bytes"));
    let snapshot = store.snapshot();
    let segments = || (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
    assert!(Store::new(1000).restore(segments()).is_err());
    let mut copy = Store::new(1000);
    copy.set_state_limit(StateLimit::of_bytes(1065));
    assert_eq!(copy.restore(segments()), Ok(()));
    assert_eq!(copy.bytes(), 1065);
}

#[test]
fn a_state_with_as_many_segments_as_it_may_have_does_not_grow() {
    let mut store = Store::new(u64::MAX);
    store.set_state_limit(StateLimit { bytes: u64::MAX, segments: 4 });
    let value = || bytes(vec![7; 20_000]);
    let put = |store: &mut Store, key: u32, value: Bytes| {
        execute(
            store,
            &StoreCommand::Put { key: Bytes::copy_from_slice(&key.to_be_bytes()), value },
        )
    };
    let full = (0..100).find_map(|key| put(&mut store, key, value()).err()).expect("it is full");
    assert_eq!(
        full,
        "the store is full: it may grow only while it has fewer than 4 segments; delete something first"
    );
    assert_eq!(store.segments(), 4);
    let refusal = transact(&mut store, vec![write("x", "", false)]).unwrap_err();
    assert_eq!(refusal, full);
    assert!(put(&mut store, 1, bytes(vec![7; 20_001])).is_err(), "longer");
    assert!(put(&mut store, 1, value()).is_ok(), "as long");
    assert!(put(&mut store, 1, Bytes::new()).is_ok(), "shorter");
    // One command may go beyond, by what it writes; the next ones do not.
    let key = |key: u32| Bytes::copy_from_slice(&key.to_be_bytes());
    (2..8).for_each(|number| {
        execute(&mut store, &StoreCommand::Delete { key: key(number) }).unwrap();
    });
    assert!(store.segments() < 4);
    let many = (0..100u32).map(|number| Operation::Write {
        key: Bytes::copy_from_slice(&number.to_le_bytes()),
        value: value(),
        only_if_present: false,
    });
    assert!(transact(&mut store, many.collect()).unwrap().committed);
    let beyond = store.segments();
    assert!(beyond > 20, "{beyond}");
    assert_eq!(put(&mut store, 77, value()).unwrap_err(), full);
    // Nor by many small ones for a few large ones.
    let gone = (0..10u32)
        .map(|number| Operation::Delete { key: Bytes::copy_from_slice(&number.to_le_bytes()) });
    let exchange = gone.chain([write("x", "", false)]).collect();
    assert_eq!(transact(&mut store, exchange).unwrap_err(), full);
    assert_eq!(store.segments(), beyond);
}

#[test]
fn reads_are_queries_and_updates_are_not() {
    let store = store();
    let query = |command: StoreCommand| {
        store.answer(perdura_protocol::PublicKey([0; 32]), &command.to_bytes())
    };
    let reads = vec![read("a"), cmp("x", Some("y")), range("", None, 1, true)];
    let transaction = Transaction { operations: reads };
    assert!(transaction.is_read());
    assert!(query(StoreCommand::Transaction(transaction)).is_some());
    let update = Transaction { operations: vec![read("a"), remove("x")] };
    assert!(query(StoreCommand::Transaction(update)).is_none());
    assert!(query(StoreCommand::Delete { key: bytes("x") }).is_none());
    assert!(query(StoreCommand::Put { key: bytes("x"), value: bytes("y") }).is_none());
}

#[test]
fn footprints_conflict_where_results_may_depend_on_order() {
    let store = store();
    let of = |command: StoreCommand| store.interface().footprint(&command.to_bytes());
    let transaction = |operations| StoreCommand::Transaction(Transaction { operations });
    let get = of(StoreCommand::Get { key: bytes("b") });
    let put = of(StoreCommand::Put { key: bytes("b"), value: bytes("v") });
    let scan = of(transaction(vec![range("a", Some("c"), 5, false)]));
    let insert_far = of(transaction(vec![cmp("b", None), insert("x", "1")]));
    assert!(put.conflicts(&get) && put.conflicts(&scan) && put.conflicts(&insert_far));
    assert!(!get.conflicts(&scan) && !insert_far.conflicts(&scan) && !insert_far.conflicts(&get));
    assert!(!store.interface().footprint(&[77]).conflicts(&put));
}
