//! What the contract says, case by case.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{Alone as _, Service, StateLimit};
use perdura_protocol::{Encode, Time};
use perdura_tuples::{
    Access, Entry, Field, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand,
    TupleReply, TupleSpaces, limits,
};

fn width(index_fields: u8) -> SpaceOptions {
    SpaceOptions { index_fields, ..SpaceOptions::default() }
}

#[test]
fn the_oldest_match_wins_at_every_index_width() {
    for index_fields in 0..=3 {
        let mut desk = Desk::new(width(index_fields));
        let numbers: Vec<u64> =
            [("b", 9), ("a", 7), ("b", 1), ("a", 2)].map(|(n, v)| desk.out(entry(n, v))).into();
        assert_eq!(desk.numbers(any_pair()), numbers);
        assert_eq!(desk.numbers(named("a")), [numbers[1], numbers[3]]);
        assert_eq!(desk.found(Operation::Rdp(named("b"))).unwrap().tuple, pair("b", 9));
        for expected in [("b", 9), ("b", 1)] {
            let taken = desk.found(Operation::Inp(named("b"))).unwrap();
            assert_eq!(taken.tuple, pair(expected.0, expected.1));
        }
        assert_eq!(desk.found(Operation::Inp(named("b"))), None);
        // A tuple that is put back is the youngest.
        let replace = Operation::Replace { template: any_pair(), entry: entry("a", 7) };
        assert!(matches!(desk.run(replace), Ok(TupleReply::Replaced { .. })));
        assert_eq!(desk.found(Operation::Rdp(any_pair())).unwrap().tuple, pair("a", 2));
    }
}

#[test]
fn cas_inserts_once() {
    let mut desk = Desk::new(SpaceOptions::default());
    let cas = |value| Operation::Cas { template: named("leader"), entry: entry("leader", value) };
    let first = desk.run(cas(1));
    assert!(matches!(first, Ok(TupleReply::Inserted { .. })));
    assert_eq!(desk.found(cas(2)).unwrap().tuple, pair("leader", 1));
    desk.out(entry("leader", 3));
    assert_eq!(desk.found(cas(4)).unwrap().tuple, pair("leader", 1), "the oldest");
}

#[test]
fn a_lease_ends_at_its_agreed_time() {
    let mut desk = Desk::new(SpaceOptions::default());
    let number = desk.at(1, 1000).out(entry("lock", 1).with_lease(50));
    let read = || Operation::Rdp(named("lock"));
    let found = desk.at(2, 1049).found(read()).unwrap();
    assert_eq!((found.number, found.expires), (number, Some(Time(1050))));
    let renew = |lease_ms| Operation::Renew { number, lease_ms };
    let renewed = TupleReply::Renewed { renewed: true, expires: Some(Time(1149)) };
    assert_eq!(desk.at(1, 1049).run(renew(Some(100))), Ok(renewed));
    assert!(desk.at(2, 1148).found(read()).is_some());
    assert!(desk.at(2, 1149).found(read()).is_none());
    let none = TupleReply::Renewed { renewed: false, expires: None };
    assert_eq!(desk.at(1, 1149).run(renew(Some(100))), Ok(none.clone()));
    // Without a lease from now on, and over at once.
    let number = desk.at(1, 2000).out(entry("lock", 2).with_lease(50));
    let renew = |lease_ms| Operation::Renew { number, lease_ms };
    let forever = TupleReply::Renewed { renewed: true, expires: None };
    assert_eq!(desk.at(1, 2001).run(renew(None)), Ok(forever));
    assert!(desk.at(1, 9000).found(read()).is_some());
    let over = TupleReply::Renewed { renewed: true, expires: Some(Time(9001)) };
    assert_eq!(desk.at(1, 9001).run(renew(Some(0))), Ok(over));
    assert_eq!(desk.found(read()), None);
    assert_eq!(desk.run(renew(Some(5))), Ok(none));
}

/// What has ended goes with the next batch, whether or not anybody names its space.
#[test]
fn ended_leases_leave_nothing_in_a_space_that_nobody_names() {
    for index_fields in [0, 2] {
        let mut desk = Desk::new(width(index_fields));
        execute(&mut desk.spaces, 1, 1000, &on("t", Operation::Create(width(1)))).unwrap();
        let (bytes, entries) = (desk.spaces.bytes(), desk.spaces.entries());
        let number = desk.out(entry("lock", 1).with_lease(10));
        desk.out(entry("lock", 2).with_lease(20));
        let out = on("t", Operation::Out(entry("lock", 3).with_lease(15)));
        execute(&mut desk.spaces, 1, 1000, &out).unwrap();
        desk.run(Operation::Renew { number, lease_ms: Some(30) }).unwrap();
        let mut held = vec![desk.spaces.bytes()];
        for time in [1014, 1015, 1020, 1029] {
            assert_eq!(on_time(&mut desk.spaces, time), []);
            held.push(desk.spaces.bytes());
        }
        assert_eq!(held[0], held[1], "nothing has ended");
        assert!(held[1] > held[2] && held[2] > held[3] && held[3] == held[4], "{held:?}");
        assert_eq!(on_time(&mut desk.spaces, 1030), []);
        assert_eq!((desk.spaces.bytes(), desk.spaces.entries()), (bytes, entries));
        assert_eq!(desk.spaces.due(), None);
        let mut copy = TupleSpaces::new(LIMIT);
        copy.restore(segments(&desk.spaces)).unwrap();
    }
}

/// A refusal leaves the state as it was, leases that have ended meanwhile included.
#[test]
fn what_is_refused_changes_nothing() {
    let mut desk = Desk::new(SpaceOptions { insert: Access::only(vec![key(1)]), ..width(1) });
    desk.out(entry("job", 1).with_lease(10));
    desk.out(entry("job", 2));
    desk.at(2, 2000);
    let before = segments(&desk.spaces);
    assert!(desk.run(Operation::Out(entry("job", 3))).is_err());
    assert!(desk.run(Operation::Delete).is_err());
    assert!(desk.run(Operation::Create(width(1))).is_err());
    assert_eq!(segments(&desk.spaces), before);
}

/// Ended leases are removed bit by bit, and seen by nobody meanwhile.
#[test]
fn many_leases_that_end_at_once_are_not_seen() {
    let mut desk = Desk::new(SpaceOptions::default());
    let count = limits::EXPIRED_AT_ONCE / 512 * 512 + 512;
    for _ in 0..count / 512 {
        let entries = vec![entry("job", 1).with_lease(10); 512];
        desk.run(Operation::OutAll(entries)).unwrap();
    }
    desk.out(entry("job", 2));
    desk.time += 10;
    assert_eq!(desk.found(Operation::Rdp(any_pair())).unwrap().tuple, pair("job", 2));
    let tuples = |desk: &mut Desk| match desk.run(Operation::Describe) {
        Ok(TupleReply::Described(description)) => description.tuples,
        other => panic!("{other:?}"),
    };
    assert_eq!(tuples(&mut desk), count as u64 + 1);
    on_time(&mut desk.spaces, desk.time);
    assert_eq!(tuples(&mut desk), 512 + 1);
    assert_eq!(desk.found(Operation::Rdp(any_pair())).unwrap().tuple, pair("job", 2));
    on_time(&mut desk.spaces, desk.time);
    assert_eq!(tuples(&mut desk), 1);
}

/// Without an order, a read has no time: one that meets a lease is ordered.
#[test]
fn fast_reads_leave_leases_to_the_order() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.out(entry("a", 1));
    desk.out(entry("a", 2).with_lease(5));
    desk.out(entry("b", 3));
    let read = |name| on("s", Operation::Rdp(named(name)));
    let all = |name| on("s", Operation::RdAll { template: named(name), after: 0, limit: 5 });
    assert!(query(&desk.spaces, 1, &read("a")).is_some(), "the oldest has none");
    assert_eq!(query(&desk.spaces, 1, &all("a")), None);
    assert!(query(&desk.spaces, 1, &all("b")).is_some());
    desk.run(Operation::Inp(named("a"))).unwrap();
    assert_eq!(query(&desk.spaces, 1, &read("a")), None);
    assert_eq!(query(&desk.spaces, 1, &on("s", Operation::Inp(named("b")))), None);
}

#[test]
fn spaces_admit_clients_by_key() {
    let only = |clients: &[u8]| Access::only(clients.iter().map(|c| key(*c)).collect());
    let mut desk = Desk::new(SpaceOptions {
        index_fields: 1,
        insert: only(&[1]),
        read: only(&[1, 2]),
        take: only(&[1, 3]),
        manage: only(&[2]),
    });
    desk.out(entry("a", 1));
    let denied = |result: Result<TupleReply, String>| {
        result.is_err_and(|text| text.starts_with("access denied"))
    };
    let out = || Operation::Out(entry("a", 2));
    let cas = || Operation::Cas { template: named("x"), entry: entry("x", 2) };
    let replace = || Operation::Replace { template: named("a"), entry: entry("x", 2) };
    let inp = || Operation::Inp(named("x"));
    let all = || Operation::InAll { template: named("x"), limit: 3 };
    for client in [2, 3] {
        assert!(denied(desk.at(client, 1000).run(out())) && denied(desk.run(cas())));
        assert!(
            denied(desk.run(replace())) && denied(desk.run(Operation::OutAll(vec![entry("a", 3)])))
        );
    }
    for client in [2, 4] {
        let renew = Operation::Renew { number: 1, lease_ms: None };
        assert!(denied(desk.at(client, 1000).run(inp())) && denied(desk.run(all())));
        assert!(denied(desk.run(renew)));
    }
    let read = on("s", Operation::Rdp(named("a")));
    for (client, admitted) in [(1, true), (2, true), (3, false), (4, false)] {
        let fast = query(&desk.spaces, client, &read).unwrap();
        assert_eq!(fast.is_ok(), admitted);
        assert_eq!(desk.at(client, 1000).run(Operation::Rdp(named("a"))).is_ok(), admitted);
    }
    for (client, admitted) in [(3, false), (2, true)] {
        let deleted = desk.at(client, 1000).run(Operation::Delete);
        assert_eq!(deleted.is_ok(), admitted, "{deleted:?}");
    }
}

/// A tuple that does not admit a client is not there for it.
#[test]
fn tuples_admit_clients_by_key() {
    let mut desk = Desk::new(SpaceOptions::default());
    let to = |client: u8, value| Entry {
        read: Access::only(vec![key(client)]),
        take: Access::Only(vec![]),
        ..entry("secret", value)
    };
    let first = desk.out(to(2, 1));
    let second = desk.out(to(3, 2));
    for (client, seen) in [(1, vec![]), (2, vec![first]), (3, vec![second])] {
        assert_eq!(desk.at(client, 1000).numbers(named("secret")), seen);
        assert_eq!(desk.found(Operation::Inp(named("secret"))), None);
        let renew = Operation::Renew { number: first, lease_ms: Some(0) };
        let none = TupleReply::Renewed { renewed: false, expires: None };
        assert_eq!(desk.run(renew), Ok(none));
    }
}

#[test]
fn numbers_never_come_again() {
    let mut desk = Desk::new(SpaceOptions::default());
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..3 {
            let number = desk.out(entry("lock", 1));
            assert!(number > last);
            last = number;
            desk.run(Operation::Inp(named("lock"))).unwrap();
        }
        assert_eq!(desk.run(Operation::Delete), Ok(TupleReply::Deleted { remaining: 0 }));
        assert!(desk.run(Operation::Describe).is_err());
        desk.run(Operation::Create(width(2))).unwrap();
    }
}

#[test]
fn a_large_space_is_deleted_bit_by_bit() {
    let mut desk = Desk::new(SpaceOptions::default());
    let before = desk.spaces.bytes();
    let count = limits::DELETED_AT_ONCE + 512;
    for _ in 0..count / 512 {
        desk.run(Operation::OutAll(vec![entry("job", 1); 512])).unwrap();
    }
    let full = desk.spaces.bytes();
    assert_eq!(desk.run(Operation::Delete), Ok(TupleReply::Deleted { remaining: 512 }));
    assert!(desk.spaces.bytes() < full);
    for refused in
        [Operation::Out(entry("job", 1)), Operation::Rdp(any_pair()), Operation::Create(width(0))]
    {
        assert!(desk.run(refused).is_err_and(|text| text.contains("is being deleted")));
    }
    let read = on("s", Operation::Rdp(any_pair()));
    assert!(query(&desk.spaces, 1, &read).unwrap().is_err());
    let mut copy = TupleSpaces::new(LIMIT);
    copy.restore(segments(&desk.spaces)).unwrap();
    desk.spaces = copy;
    assert_eq!(desk.run(Operation::Delete), Ok(TupleReply::Deleted { remaining: 0 }));
    assert!(desk.run(Operation::Delete).is_err());
    desk.run(Operation::Create(width(1))).unwrap();
    assert_eq!(desk.spaces.bytes(), before);
}

#[test]
fn spaces_with_as_many_segments_as_they_may_have_do_not_grow() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.spaces.set_state_limit(StateLimit { bytes: u64::MAX, segments: 4 });
    let large = || {
        Entry::new(Tuple::new(&["job".into(), Field::from("x".repeat(20_000).as_str())]).unwrap())
    };
    let full = (0..100).find_map(|_| desk.run(Operation::Out(large())).err()).expect("it is full");
    let most = "the tuple spaces are full: they may grow only while they have fewer than 4 segments; take something first";
    assert_eq!((full.as_str(), desk.spaces.segments()), (most, 4));
    assert!(desk.run(Operation::OutAll(vec![entry("job", 0); 2])).is_err());
    assert!(desk.run(Operation::In { template: named("no"), wait_ms: 1000 }).is_err(), "a waiter");
    while desk.spaces.segments() == 4 {
        desk.run(Operation::Inp(named("job"))).unwrap();
    }
    desk.run(Operation::Out(large())).unwrap();
}

#[test]
fn the_limit_refuses_growth_and_nothing_else() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.spaces = TupleSpaces::new(2000);
    desk.run(Operation::Create(SpaceOptions::default())).unwrap();
    let mut inserted = 0;
    let full = loop {
        match desk.run(Operation::Out(entry("job", inserted))) {
            Ok(_) => inserted += 1,
            Err(text) => break text,
        }
    };
    assert!(full.starts_with("the tuple spaces are full"), "{full}");
    assert!((5..20).contains(&inserted) && desk.spaces.bytes() <= 2000);
    let long = Entry::new(Tuple::new(&["job".into(), Field::from("x").clone()]).unwrap());
    assert!(desk.run(Operation::Cas { template: named("no"), entry: long }).is_err());
    assert!(desk.run(Operation::OutAll(vec![entry("job", 0); 2])).is_err());
    // As long as the one that goes, and longer.
    let replace = |entry| Operation::Replace { template: named("job"), entry };
    assert!(desk.run(replace(entry("job", 100))).is_ok());
    let before = segments(&desk.spaces);
    let longer = Entry::new(Tuple::new(&["j".into(), Field::Bytes(vec![0; 300].into())]).unwrap());
    assert!(desk.run(replace(longer)).is_err());
    assert_eq!(segments(&desk.spaces), before);
    assert!(desk.found(Operation::Inp(named("job"))).is_some());
    desk.out(entry("job", 5));
}

#[test]
fn results_are_bounded() {
    let mut desk = Desk::new(width(0));
    let large = |bytes: usize| {
        Entry::new(Tuple::new(&["x".into(), Field::Bytes(vec![0; bytes].into())]).unwrap())
    };
    for _ in 0..3 {
        desk.out(large(400 * 1024));
    }
    for _ in 0..20 {
        desk.out(entry("y", 1));
    }
    let read = |after, limit| Operation::RdAll { template: any_pair(), after, limit };
    let several = |desk: &mut Desk, operation| match desk.run(operation) {
        Ok(TupleReply::FoundAll { tuples, more }) => (tuples, more),
        other => panic!("{other:?}"),
    };
    let (tuples, more) = several(&mut desk, read(0, 512));
    assert_eq!((tuples.len(), more), (2, true));
    let (rest, more) = several(&mut desk, read(tuples[1].number, 512));
    assert_eq!((rest.len(), more), (21, false));
    let (some, more) = several(&mut desk, read(tuples[1].number, 20));
    assert_eq!((some.len(), more), (20, true));
    assert_eq!(several(&mut desk, read(u64::MAX, 20)), (vec![], false));
    let take = Operation::InAll { template: any_pair(), limit: 512 };
    assert_eq!(several(&mut desk, take.clone()), (tuples, true));
    assert_eq!(several(&mut desk, take.clone()), (rest, false));
    assert_eq!(several(&mut desk, take), (vec![], false));
}

/// And at so many bytes: those of a few large tuples take as long as those of many small ones.
#[test]
fn a_search_is_bounded_in_bytes() {
    let mut desk = Desk::new(width(0));
    let large = |value: &str| {
        Entry::new(Tuple::new(&["x".repeat(300 * 1024).as_str().into(), value.into()]).unwrap())
    };
    let value = |value: &str| Template { fields: vec![Pattern::Any, Pattern::Value(value.into())] };
    for _ in 0..3 {
        desk.out(large("a"));
    }
    let found = desk.out(large("b"));
    // Nine tenths of the bytes in vain, and then one.
    assert_eq!(desk.found(Operation::Rdp(value("b"))).unwrap().number, found);
    assert_eq!(desk.found(Operation::Rdp(value("c"))), None);
    desk.out(entry("y", 1));
    let refused = desk.run(Operation::Rdp(value("c"))).unwrap_err();
    assert!(refused.contains("1048576 bytes"), "{refused}");
    assert_eq!(query(&desk.spaces, 1, &on("s", Operation::Rdp(value("c")))), Some(Err(refused)));
    // What a tuple's access lists say has to be read as well.
    let mut desk = Desk::new(width(0));
    let keys = (0..64).map(key).collect();
    let hidden = Entry { read: Access::only(keys), ..entry("x", 1) };
    for _ in 0..2 {
        desk.run(Operation::OutAll(vec![hidden.clone(); 512])).unwrap();
    }
    desk.client = 99;
    assert!(desk.run(Operation::Rdp(any_pair())).is_err());
}

/// A template that the index does not serve looks at so many tuples and no more.
#[test]
fn a_search_is_bounded() {
    let mut desk = Desk::new(width(1));
    let count = limits::SCANNED_TUPLES / 512 + 1;
    for _ in 0..count {
        desk.run(Operation::OutAll(vec![entry("x", 0); 512])).unwrap();
    }
    desk.out(entry("y", 1));
    let value = |value: i64| Template { fields: vec![Pattern::Any, Pattern::Value(value.into())] };
    assert!(desk.found(Operation::Rdp(value(0))).is_some());
    let refused = desk.run(Operation::Rdp(value(1))).unwrap_err();
    assert!(refused.contains("10000 tuples"), "{refused}");
    assert_eq!(query(&desk.spaces, 1, &on("s", Operation::Rdp(value(1)))), Some(Err(refused)));
    assert!(desk.found(Operation::Rdp(named("y"))).is_some());
}

#[test]
fn names_are_listed_in_order() {
    let mut spaces = TupleSpaces::new(LIMIT);
    for name in ["b", "a", "ab", "z"] {
        let create = on(name, Operation::Create(width(0)));
        assert_eq!(execute(&mut spaces, 1, 1, &create), Ok(TupleReply::Created));
        assert!(execute(&mut spaces, 2, 1, &create).is_err());
    }
    let list = |after: &str, limit| {
        let command = TupleCommand::Spaces { after: after.into(), limit };
        match query(&spaces, 1, &command) {
            Some(Ok(TupleReply::Spaces { names, more })) => (names.join(" "), more),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(list("", 9), ("a ab b z".into(), false));
    assert_eq!(list("", 2), ("a ab".into(), true));
    assert_eq!(list("ab", 2), ("b z".into(), false));
}

/// Commands of one space conflict, those of different ones do not.
#[test]
fn footprints_are_spaces() {
    let spaces = TupleSpaces::new(LIMIT);
    let footprint = |command: TupleCommand| spaces.interface().footprint(&command.to_bytes());
    let (a, b) = (footprint(on("a", Operation::Describe)), footprint(on("b", Operation::Describe)));
    assert!(!a.conflicts(&b) && !a.conflicts(&a));
    assert!(a.conflicts(&footprint(on("a", Operation::Inp(any_pair())))));
    assert!(a.conflicts(&footprint(on("b", Operation::Delete))));
    assert!(a.conflicts(&footprint(on("b", Operation::Create(width(0))))));
    assert!(!spaces.interface().footprint(b"garbage").conflicts(&a));
}

#[test]
fn the_limits_of_commands_are_checked_in_words() {
    let mut spaces = TupleSpaces::new(LIMIT);
    spaces.set_version(newest());
    let mut refused = |command: TupleCommand, text: &str| {
        assert!(command.validate().unwrap_err().to_string().contains(text), "{command:?}");
        let found = spaces.order(&context(1, 1), &command.to_bytes()).unwrap_err();
        assert!(found.contains(text) || found.contains("limit"), "{found}");
    };
    let lease = |lease| on("s", Operation::Out(entry("a", 1).with_lease(lease)));
    refused(lease(0), "a lease has");
    refused(lease(limits::LEASE_MS + 1), "a lease has");
    refused(on("", Operation::Describe), "a space's name has");
    refused(on(&"x".repeat(129), Operation::Describe), "a space's name has");
    refused(on("s", Operation::Create(width(9))), "at most 8 fields");
    refused(on("s", Operation::OutAll(vec![])), "1 to 512 tuples");
    refused(on("s", Operation::OutAll(vec![entry("a", 1); 513])), "1 to 512 tuples");
    refused(on("s", Operation::InAll { template: any_pair(), limit: 0 }), "1 to 512 tuples");
    for wait_ms in [0, limits::WAIT_MS + 1] {
        refused(on("s", Operation::Rd { template: any_pair(), wait_ms }), "a wait has");
        refused(on("s", Operation::In { template: any_pair(), wait_ms }), "a wait has");
    }
    let waits = |bytes: usize| {
        let field = Field::Bytes(vec![0; bytes].into());
        on("s", Operation::In { template: Template::of(&[field]), wait_ms: 1 })
    };
    refused(
        waits(limits::WAITING_TEMPLATE_BYTES - 4),
        "a template that waits has at most 4096 bytes",
    );
    assert_eq!(waits(limits::WAITING_TEMPLATE_BYTES - 5).validate(), Ok(()));
    let claim = |key, bytes: usize, wait_ms| {
        let field = Field::Bytes(vec![0; bytes].into());
        let entry = Entry::new(Tuple::new(&["k".into(), field]).unwrap());
        on("s", Operation::Claim { key, entry, wait_ms })
    };
    refused(claim(0, 1, 0), "the key of a claim");
    refused(claim(3, 1, 0), "the key of a claim");
    refused(claim(2, 4096, 1), "a template that waits has at most");
    refused(claim(1, limits::WAITING_CLAIM_BYTES, 1), "a claim that waits has at most 65536");
    refused(claim(1, 1, limits::WAIT_MS + 1), "a wait has");
    assert_eq!(claim(2, limits::WAITING_CLAIM_BYTES, 0).validate(), Ok(()));
    let leased =
        |lease_ms, wait_ms| on("s", Operation::Lease { template: any_pair(), lease_ms, wait_ms });
    refused(leased(0, 1), "a lease has");
    refused(leased(1, limits::WAIT_MS + 1), "a wait has");
    refused(on("s", Operation::Extend { number: 1, token: 1, lease_ms: 0 }), "a lease has");
    refused(on("s", Operation::Waits { after: 0, limit: 0 }), "1 to 512 tuples");
    let wide = Tuple::new(&vec![Field::Bool(true); limits::FIELDS]).unwrap();
    refused(on("s", Operation::Add { fields: wide, amount: 1 }), "1 to 32 fields");
    refused(TupleCommand::Spaces { after: String::new(), limit: 513 }, "1 to 512 tuples");
    let large = Tuple::new(&[Field::Bytes(Bytes::from(vec![0; 500_000]))]).unwrap();
    refused(on("s", Operation::OutAll(vec![Entry::new(large); 9])), "bytes of tuples");
}
