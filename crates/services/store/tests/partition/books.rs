//! What is kept: room, snapshots, and a long run against a model.

use super::world::*;
use crate::support::{Random, bytes, read, write};
use perdura_execution::{Alone as _, Service, StateLimit};
use perdura_store::partition::{PartitionReply, Reason};
use perdura_store::{Operation, OperationResult, StoreCommand, StoreReply};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// What was voted for fits whatever else comes, and a full store ends what is pending.
#[test]
fn a_vote_to_commit_has_its_room() {
    let mut world = World::of(2, MIB);
    let value = "v".repeat(100_000);
    let parts = [(0, vec![write("a1", &value, false)]), (1, vec![read("b1")])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let put = |world: &mut World, key: &str, length: usize| {
        let command = StoreCommand::Put { key: bytes(key), value: bytes("x".repeat(length)) };
        let encoded = perdura_protocol::Encode::to_bytes(&command);
        world.stores[0].order(&crate::support::context(), &encoded)
    };
    let mut number = 0;
    while put(&mut world, &format!("a9{number}"), 20_000).is_ok() {
        number += 1;
    }
    assert!((40..48).contains(&number), "{number} of 20 kB beside 100 kB in 1 MiB");
    let more = [(0, vec![write("a2", &value, false)]), (1, vec![read("b1")])];
    let second = world.intent(client(1), 2, false, &more);
    assert_eq!(reason(world.prepare(&second, client(1), &more[0])), Reason::Room);
    let vote = world.prepare(&intent, client(1), &parts[1]);
    let votes = [world.proof(1, &vote)];
    world.finish(0, client(1), (intent.id(), true), &votes);
    assert_eq!(world.get("a1"), Some(bytes(value)));
    // What is not there any more is room again.
    world.stores[0].set_state_limit(StateLimit { bytes: 2 * MIB, segments: 400_000 });
    assert!(put(&mut world, "a98", 20_000).is_ok());
}

#[test]
fn what_is_held_has_a_bound_of_its_own() {
    let mut world = World::of(2, MIB);
    // From version 2 on one key holds less.
    world.go_on_under(1);
    let value = "v".repeat(60_000);
    let (mut granted, mut counter) = (0, 0);
    loop {
        counter += 1;
        let key = format!("a{counter}");
        let parts = [(0, vec![write(&key, &value, false)]), (1, vec![read("b1")])];
        let intent = world.intent(client(1), counter, false, &parts);
        match world.prepare(&intent, client(1), &parts[0]) {
            reply if is_commit(&reply) => granted += 1,
            reply => {
                assert_eq!(reason(reply), Reason::Room);
                break;
            }
        }
    }
    assert_eq!(granted, 4, "a quarter of 1 MiB");
    world.restart();
}

/// Clients move money between accounts all over, some of them die in between, others end what they left, everything restarts now
/// and then: no sum ever seen is another one, and at the end it is all there.
#[test]
fn money_that_is_moved_is_neither_made_nor_lost() {
    let sums: u32 = (0..30).map(money).sum();
    assert!(sums > 150, "{sums} sums were seen");
}

fn money(seed: u64) -> u32 {
    const ACCOUNTS: u64 = 4;
    let mut random = Random(seed + 1);
    let mut world = World::new(3);
    let keys: Vec<(u16, String)> = (0..3u16)
        .flat_map(|at| {
            (0..ACCOUNTS).map(move |one| (at, format!("{}{one}", (b'a' + at as u8) as char)))
        })
        .collect();
    keys.iter().for_each(|(_, key)| drop(world.put(key, "100")));
    let mut left: Vec<(perdura_store::partition::Intent, Vec<Part>)> = Vec::new();
    let mut counter = 0;
    let mut sums = 0;
    for _ in 0..300 {
        counter += 1;
        world.pass(random.below(400));
        match random.below(12) {
            0 => world.restart(),
            1 | 2 => {
                // All balances, in one transaction that only reads.
                let of = |at: u16| {
                    let keys = keys.iter().filter(|one| one.0 == at);
                    keys.map(|one| read(&one.1)).collect::<Vec<Operation>>()
                };
                let parts: Vec<Part> = (0..3).map(|at| (at, of(at))).collect();
                let who = client(50);
                let intent = world.intent(who, counter, true, &parts);
                let mut sum = Some(0);
                for part in &parts {
                    match world.prepare(&intent, who, part) {
                        PartitionReply::Voted { results: Some(results), .. } => {
                            let values = results.iter().map(balance).sum::<i64>();
                            sum = sum.map(|sum: i64| sum + values);
                        }
                        _ => sum = None,
                    }
                }
                for part in &parts {
                    let transaction = intent.id();
                    let end = perdura_store::partition::PartitionCommand::Finish {
                        transaction,
                        commit: true,
                        votes: vec![],
                    };
                    world.ask(part.0, who, &end);
                }
                if let Some(sum) = sum {
                    assert_eq!(sum, 100 * 3 * ACCOUNTS as i64, "seed {seed}");
                    sums += 1;
                }
            }
            3 if !left.is_empty() => {
                let (intent, parts) = left.swap_remove(random.below(left.len() as u64) as usize);
                finish_for(&mut world, &intent, &parts);
            }
            _ => {
                let from = &keys[random.below(keys.len() as u64) as usize];
                let to = &keys[random.below(keys.len() as u64) as usize];
                if from.0 == to.0 {
                    continue;
                }
                let (Some(a), Some(b)) = (balance_of(&mut world, from), balance_of(&mut world, to))
                else {
                    continue;
                };
                let amount = random.below(30) as i64;
                let change = |(at, key): &(u16, String), before: i64, after: i64| -> Part {
                    let expected =
                        Operation::Cmp { key: bytes(key), value: Some(bytes(before.to_string())) };
                    (*at, vec![expected, write(key, &after.to_string(), true)])
                };
                let mut parts = vec![change(from, a, a - amount), change(to, b, b + amount)];
                parts.sort_by_key(|part| part.0);
                let who = client(1 + random.below(5) as u8);
                match random.below(4) {
                    0 => {
                        // It dies after a part, or after both.
                        let intent = world.intent(who, counter, false, &parts);
                        let first = random.below(2) as usize;
                        world.prepare(&intent, who, &parts[first]);
                        if random.below(2) == 0 {
                            world.prepare(&intent, who, &parts[1 - first]);
                        }
                        left.push((intent, parts));
                    }
                    _ => drop(world.run(who, counter, &parts)),
                }
            }
        }
    }
    for (intent, parts) in left {
        finish_for(&mut world, &intent, &parts);
    }
    let all: BTreeMap<&String, i64> = keys
        .iter()
        .map(|one| (&one.1, balance_of(&mut world, one).expect("nothing is locked")))
        .collect();
    assert_eq!(all.values().sum::<i64>(), 100 * 3 * ACCOUNTS as i64, "seed {seed}: {all:?}");
    sums
}

fn balance(result: &OperationResult) -> i64 {
    match result {
        OperationResult::Value(Some(value)) => std::str::from_utf8(value).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn balance_of(world: &mut World, (at, key): &(u16, String)) -> Option<i64> {
    match world.plain(*at, &StoreCommand::Get { key: bytes(key) }) {
        Plain::Done(StoreReply::Value(value)) => Some(balance(&OperationResult::Value(value))),
        Plain::Blocked(_) => None,
        other => panic!("{other:?}"),
    }
}

/// What a stranger does who meets it.
fn finish_for(world: &mut World, intent: &perdura_store::partition::Intent, parts: &[Part]) {
    use perdura_store::partition::PartitionCommand as Command;
    world.pass(2_000);
    let (who, transaction) = (client(60), intent.id());
    let mut votes = BTreeMap::new();
    for (at, _) in parts {
        let resolve = |expired| Command::Resolve { intent: intent.clone(), expired };
        let mut vote = world.ask(*at, who, &resolve(None));
        if vote == (PartitionReply::Unknown { transaction }) {
            let other = parts.iter().map(|part| part.0).find(|other| other != at).unwrap();
            let expired = match world.ask(other, who, &Command::Expire { transaction }) {
                expired @ PartitionReply::Expired { .. } => world.proof(other, &expired),
                // It was not prepared there, or is over: nothing is held here either.
                _ => return,
            };
            vote = world.ask(*at, who, &resolve(Some(expired)));
        }
        votes.insert(*at, vote);
    }
    let commit = votes.values().all(is_commit);
    for (at, _) in parts {
        let shown = votes.iter().filter(|(of, vote)| *of != at && is_commit(vote) == commit);
        let shown: Vec<_> = shown.map(|(of, vote)| world.proof(*of, vote)).collect();
        if commit || !shown.is_empty() {
            world.finish(*at, who, (transaction, commit), &shown);
        }
    }
}
