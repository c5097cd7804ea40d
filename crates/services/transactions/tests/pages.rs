//! Ranges over several partitions.

use super::run::transact;
use crate::support::*;
use bytes::Bytes;
use perdura_protocol::partitions::Distribution;
use perdura_store::{Operation, OperationResult, behind};
use perdura_transactions::Outcome;

#[test]
fn ranges_are_merged_and_end_where_the_first_part_of_them_was_cut_off() {
    let shared = Partitions::new(3, 3);
    let client = client(&shared, 1);
    let keys = ["a1", "a2", "a3", "b1", "b2", "c1"];
    transact(&shared, &client, keys.iter().map(|key| write(key, "v")).collect()).unwrap();
    let range = |start: &str, limit, reverse| Operation::ReadRange {
        start: bytes(start),
        end: None,
        limit,
        reverse,
    };
    let read = |start: &str, limit, reverse| {
        let outcome = transact(&shared, &client, vec![range(start, limit, reverse)]).unwrap();
        let Outcome::Committed(found) = outcome else { panic!("{outcome:?}") };
        let OperationResult::Entries { entries, more } = &found.all()[0] else {
            panic!("{found:?}")
        };
        let keys: Vec<String> =
            entries.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect();
        (keys.join(" "), *more)
    };
    let found = |text: &str, more| (text.to_owned(), more);
    assert_eq!(read("", 100, false), found("a1 a2 a3 b1 b2 c1", false));
    assert_eq!(read("", 6, false), found("a1 a2 a3 b1 b2 c1", false));
    assert_eq!(read("", 4, false), found("a1 a2 a3 b1", true));
    assert_eq!(read("", 2, false), found("a1 a2", true));
    assert_eq!(read("a3", 2, true), found("c1 b2", true));
    assert_eq!(read("a3", 100, true), found("c1 b2 b1 a3", false));
}

/// However keys are spread, and however large they are: each partition sends about its share, in a few rounds.
#[test]
fn a_page_over_several_partitions_takes_a_few_rounds() {
    let bounds = ["b", "c", "d"].map(Bytes::from).to_vec();
    for distribution in [Distribution::Hash, Distribution::Range { bounds }] {
        let by_hash = distribution == Distribution::Hash;
        let shared = Partitions::of(4, distribution, 5);
        let client = client(&shared, 1);
        let key = |number: usize| format!("{}{number:05}", ["a", "b", "c", "d"][number % 4]);
        for first in (0..24_000).step_by(500) {
            let all = (first..first + 500).map(|number| write(&key(number), &"v".repeat(90)));
            transact(&shared, &client, all.collect()).unwrap();
        }
        let mut keys: Vec<String> = (0..24_000).map(key).collect();
        keys.sort_unstable();
        for reverse in [false, true] {
            let mut found: Vec<String> = Vec::new();
            let (mut start, mut end, mut pages) = (bytes(""), None, 0);
            loop {
                let before = lock(&shared).commands;
                let range = Operation::ReadRange {
                    start: start.clone(),
                    end: end.clone(),
                    limit: 10_000,
                    reverse,
                };
                let outcome = transact(&shared, &client, vec![range]).unwrap();
                let commands = lock(&shared).commands - before;
                assert!(commands <= if by_hash { 32 } else { 12 }, "{commands} commands");
                let Outcome::Committed(results) = outcome else { panic!() };
                let OperationResult::Entries { entries, more } = &results.all()[0] else {
                    panic!()
                };
                let page = entries.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap());
                found.extend(page);
                pages += 1;
                assert!(entries.len() > 8_000 || !more, "{}", entries.len());
                if !more {
                    break;
                }
                let last = bytes(found.last().unwrap());
                if reverse { end = Some(last) } else { start = behind(&last).unwrap() }
            }
            if reverse {
                found.reverse();
            }
            assert_eq!(found, keys);
            assert_eq!(pages, 3);
        }
    }
}
