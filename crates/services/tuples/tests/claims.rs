//! Claims, case by case.

use crate::support::*;
use perdura_execution::{Service, StateLimit};
use perdura_protocol::Time;
use perdura_tuples::{
    Access, Entry, Field, Operation, Pattern, SpaceOptions, Template, Tuple, TupleReply, limits,
};

fn desk() -> Desk {
    Desk::later(SpaceOptions::default())
}

/// Claims the name.
fn claim(name: &str, owner: i64, wait_ms: u64) -> Operation {
    Operation::Claim { key: 1, entry: entry(name, owner).with_lease(20_000), wait_ms }
}

fn inserted(number: u64) -> Result<TupleReply, String> {
    Ok(TupleReply::Inserted { number })
}

fn offered(number: u64, tuple: u64) -> Vec<Told> {
    vec![(number, inserted(tuple), true)]
}

#[test]
fn a_claim_is_had_at_once_or_not() {
    let mut desk = desk();
    assert_eq!(desk.run(claim("lock", 1, 0)), inserted(1));
    assert_eq!(desk.run(claim("lock", 2, 0)), Ok(TupleReply::Found(None)));
    assert_eq!(desk.run(claim("other", 2, 500)), inserted(2));
    // Tuples of as many fields alone have the key, and those that nobody may read.
    let three = Tuple::new(&["third".into(), 1.into(), 1.into()]).unwrap();
    desk.out(Entry::new(three));
    assert_eq!(desk.run(claim("third", 2, 0)), inserted(4));
    desk.out(Entry { read: Access::Only(vec![]), ..entry("hidden", 1) });
    assert_eq!(desk.run(claim("hidden", 2, 0)), Ok(TupleReply::Found(None)));
    let pair_claim = Operation::Claim { key: 2, entry: entry("hidden", 2), wait_ms: 0 };
    assert_eq!(desk.run(pair_claim), inserted(6), "another key");
    desk.wait(9, claim("lock", 3, 100));
    assert_eq!(desk.until(1100), [(9, Ok(TupleReply::Found(None)), false)]);
    // Its lease is from now on where it did not wait.
    assert_eq!(desk.spaces.due(), Some(Time(21_000)));
}

/// Case 15: H holds a lock, W1 waits and is gone, W2 waits, H releases.
#[test]
fn a_waiter_that_is_gone_is_passed_over() {
    let mut desk = desk();
    assert_eq!(desk.run(claim("lock", 0, 0)), inserted(1));
    for number in [1, 2, 3] {
        desk.wait(number, claim("lock", number as i64, 60_000));
        desk.restored();
    }
    assert_eq!(desk.releases(Operation::Inp(named("lock"))), offered(1, 2));
    desk.restored();
    // It is there, and nobody gets in between.
    assert_eq!(desk.numbers(named("lock")), [2]);
    assert_eq!(desk.run(claim("lock", 9, 0)), Ok(TupleReply::Found(None)));
    let cas = Operation::Cas { template: named("lock"), entry: entry("lock", 9) };
    assert_eq!(desk.run(cas), found(2, pair("lock", 1)));
    assert_eq!(desk.run(Operation::Inp(named("lock"))), Ok(TupleReply::Found(None)));
    desk.time = 2000;
    assert_eq!(desk.take_back(1), offered(2, 3));
    desk.restored();
    assert_eq!(desk.numbers(named("lock")), [3]);
    desk.confirm(2);
    desk.restored();
    // From then on its lease counts, and the next one has it at its end.
    assert_eq!(desk.spaces.due(), Some(Time(22_000)));
    assert_eq!(desk.until(21_999), []);
    assert_eq!(desk.until(22_000), offered(3, 4));
    desk.confirm(3);
    assert_eq!(desk.releases(Operation::Renew { number: 4, lease_ms: Some(0) }), []);
    assert_eq!(desk.numbers(named("lock")), []);
}

/// Whatever removes a tuple lets the first claim through.
#[test]
fn every_end_of_a_tuple_lets_the_next_one_through() {
    let ends: [fn(&mut Desk) -> Vec<Told>; 7] = [
        |desk| desk.releases(Operation::Inp(named("lock"))),
        |desk| desk.releases(Operation::InAll { template: any_pair(), limit: 5 }),
        |desk| {
            let entry = entry("note", 1);
            desk.releases(Operation::Replace { template: named("lock"), entry })
        },
        |desk| desk.releases(Operation::Renew { number: 1, lease_ms: Some(0) }),
        |desk| desk.releases(Operation::Break { number: 1 }),
        |desk| desk.until(21_000),
        |desk| {
            desk.releases(Operation::Lease { template: named("lock"), lease_ms: 9, wait_ms: 0 });
            desk.releases(Operation::Finish { number: 1, token: 1 })
        },
    ];
    for (which, end) in ends.into_iter().enumerate() {
        let mut desk = desk();
        assert_eq!(desk.run(claim("lock", 0, 0)), inserted(1));
        desk.wait(1, claim("lock", 1, 60_000));
        desk.wait(2, claim("lock", 2, 60_000));
        let number = if which == 2 { 3 } else { 2 };
        assert_eq!(end(&mut desk), offered(1, number), "{which}");
        desk.restored();
        assert_eq!(desk.take_back(1), offered(2, number + 1), "{which}");
    }
    // One that has the same key keeps it.
    let mut desk = desk();
    assert_eq!(desk.run(claim("lock", 0, 0)), inserted(1));
    desk.wait(1, claim("lock", 1, 60_000));
    let entry = entry("lock", 5);
    assert_eq!(desk.releases(Operation::Replace { template: named("lock"), entry }), []);
}

/// A taker that waited has what the claim waits for the end of: when it confirms, the claim is let through.
#[test]
fn a_confirmation_lets_the_next_one_through() {
    let mut desk = desk();
    desk.wait(1, Operation::In { template: named("lock"), wait_ms: 900 });
    assert_eq!(desk.releases(Operation::Out(entry("lock", 0))).len(), 1);
    desk.wait(2, claim("lock", 2, 60_000));
    assert_eq!(desk.confirm(1), offered(2, 2));
    desk.restored();
    assert_eq!(desk.run(claim("lock", 9, 0)), Ok(TupleReply::Found(None)));
    assert_eq!(desk.spaces.due(), None);
}

/// And those who wait to take what was claimed.
#[test]
fn a_confirmed_claim_is_there_for_those_who_wait_to_take_it() {
    let mut desk = desk();
    assert_eq!(desk.run(claim("lock", 0, 0)), inserted(1));
    desk.wait(1, claim("lock", 1, 60_000));
    desk.releases(Operation::Inp(named("lock")));
    desk.wait(2, Operation::In { template: named("lock"), wait_ms: 60_000 });
    assert_eq!(desk.confirm(1), [(2, found(2, pair("lock", 1)), true)]);
    desk.restored();
    assert_eq!(desk.spaces.due(), None, "its own lease does not end what is offered");
    assert_eq!(desk.take_back(2), []);
    assert_eq!(desk.spaces.due(), Some(Time(21_000)));
    desk.restored();
}

/// The first of each key that is free goes through, in the order in which they began to wait.
#[test]
fn keys_of_several_lengths_are_free_one_by_one() {
    let mut desk = desk();
    desk.out(entry("a", 1));
    desk.out(entry("b", 1));
    let claims = [(2, "a", 1), (1, "a", 2), (2, "a", 1), (1, "b", 3)];
    for (number, (key, name, value)) in (1..).zip(claims) {
        desk.wait(number, Operation::Claim { key, entry: entry(name, value), wait_ms: 60_000 });
    }
    // ("a", 1) is the first one's, which has the key ("a") as well.
    let all = Operation::InAll { template: any_pair(), limit: 9 };
    assert_eq!(desk.releases(all), [(1, inserted(3), true), (4, inserted(4), true)]);
    desk.confirm(1);
    // Both of the others wait for it; the one that came first has ("a") and leaves ("a", 1).
    let told = desk.releases(Operation::Inp(named("a")));
    assert_eq!(told, [(2, inserted(5), true), (3, inserted(6), true)]);
}

/// Who reads what is claimed has a copy.
#[test]
fn a_claims_tuple_is_read_by_those_who_wait_for_it() {
    let mut desk = desk();
    desk.out(entry("lock", 0));
    desk.wait(1, claim("lock", 1, 60_000));
    let template = Template { fields: vec![Pattern::Any, Pattern::Value(1.into())] };
    desk.wait(2, Operation::Rd { template, wait_ms: 60_000 });
    let told = desk.releases(Operation::Inp(named("lock")));
    assert_eq!(told, [(1, inserted(2), true), (2, found(2, pair("lock", 1)), false)]);
}

#[test]
fn claims_need_the_right_to_insert_and_to_read() {
    let only = |client| Access::only(vec![key(client)]);
    for (insert, read) in [(only(2), Access::Anyone), (Access::Anyone, only(2))] {
        let mut desk = Desk::later(SpaceOptions { insert, read, ..SpaceOptions::default() });
        let denied = desk.run(claim("lock", 1, 5)).unwrap_err();
        assert!(denied.starts_with("access denied"), "{denied}");
        assert_eq!(desk.at(2, 1000).run(claim("lock", 1, 0)), inserted(1));
    }
}

/// Who cannot be let through is told so, and does not wait for ever; the next one is.
#[test]
fn a_claim_for_which_there_is_no_room_is_refused() {
    let mut desk = desk();
    desk.out(entry("lock", 0));
    desk.wait(1, claim("lock", 1, 60_000));
    let long = Tuple::new(&["lock".into(), Field::Bytes(vec![7; 3000].into())]).unwrap();
    desk.wait(2, Operation::Claim { key: 1, entry: Entry::new(long), wait_ms: 60_000 });
    desk.wait(3, claim("lock", 3, 60_000));
    let bytes = desk.spaces.bytes();
    assert_eq!(desk.releases(Operation::Inp(named("lock"))), offered(1, 2));
    desk.spaces.set_state_limit(StateLimit { bytes, segments: 0 });
    let text = match &desk.take_back(1)[..] {
        [(2, Err(second), false), (3, Err(third), false)] if second == third => second.clone(),
        other => panic!("{other:?}"),
    };
    assert!(text.starts_with("the tuple spaces are full"), "{text}");
    assert_eq!(desk.numbers(any_pair()), []);
    desk.spaces.set_state_limit(StateLimit::of_bytes(LIMIT));
    desk.restored();
}

/// A search that would take too long is refused, for all who wait for that key.
#[test]
fn a_claim_whose_search_is_too_long_is_refused() {
    let mut desk = Desk::later(SpaceOptions { index_fields: 0, ..SpaceOptions::default() });
    desk.out(entry("lock", 0));
    desk.wait(1, claim("lock", 1, 60_000));
    desk.wait(2, claim("lock", 2, 60_000));
    for _ in 0..=limits::SCANNED_TUPLES / 512 {
        desk.run(Operation::OutAll(vec![entry("x", 0); 512])).unwrap();
    }
    let told = desk.releases(Operation::Renew { number: 1, lease_ms: Some(0) });
    assert_eq!(told.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1, 2]);
    assert!(told.iter().all(|(_, reply, offer)| {
        !offer && reply.as_ref().is_err_and(|text| text.contains("10000 tuples"))
    }));
}

/// What has ended and is left to the next batch holds a claim up until then, and no longer.
#[test]
fn claims_are_let_through_however_many_leases_end_at_once() {
    let mut desk = desk();
    for _ in 0..limits::ENDED_AT_ONCE / 512 {
        desk.run(Operation::OutAll(vec![entry("job", 1).with_lease(10); 512])).unwrap();
    }
    desk.out(entry("lock", 0).with_lease(10));
    desk.wait(1, claim("lock", 1, 60_000));
    assert_eq!(desk.until(1010), []);
    assert_eq!(desk.spaces.due(), Some(Time(1010)), "it is late already");
    assert_eq!(desk.run(claim("lock", 2, 0)), Ok(TupleReply::Found(None)), "nobody overtakes");
    assert_eq!(desk.until(1010), offered(1, limits::ENDED_AT_ONCE as u64 + 2));
}
