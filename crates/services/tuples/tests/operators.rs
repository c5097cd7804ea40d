//! What operators do, and counters, case by case.

use crate::support::*;
use perdura_execution::Service;
use perdura_protocol::{SessionId, Time};
use perdura_tuples::{
    Access, Broken, Entry, Field, Operation, Pattern, Purpose, SpaceOptions, Template, Tuple,
    TupleReply, Waiting, limits,
};

/// Client 1 creates it, client 2 may manage it, client 3 may read it, and client 4 neither.
fn desk() -> Desk {
    Desk::later(SpaceOptions {
        read: Access::only(vec![key(1), key(3)]),
        manage: Access::only(vec![key(2)]),
        ..SpaceOptions::default()
    })
}

impl Desk {
    fn listed(&mut self, after: u64, limit: u32) -> (Vec<Waiting>, bool) {
        match self.run(Operation::Waits { after, limit }) {
            Ok(TupleReply::Waits { waits, more }) => (waits, more),
            other => panic!("{other:?}"),
        }
    }

    fn broken(&mut self, number: u64) -> Broken {
        match self.run(Operation::Break { number }) {
            Ok(TupleReply::Broken(broken)) => broken,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn waits_are_listed_in_order_and_by_pages() {
    let mut desk = desk();
    desk.out(entry("lock", 0));
    let template = || named("a");
    desk.wait(4, Operation::Rd { template: template(), wait_ms: 500 });
    desk.wait(3, Operation::In { template: any_of_three(), wait_ms: 400 });
    desk.wait(2, Operation::Lease { template: template(), lease_ms: 9, wait_ms: 300 });
    desk.wait(1, Operation::Claim { key: 1, entry: entry("lock", 5), wait_ms: 200 });
    desk.restored();
    let (all, more) = desk.listed(0, 9);
    let session = SessionId { client: key(1), nonce: 1 };
    let waiting = |place, number, purpose, template, deadline| Waiting {
        place,
        session,
        number,
        purpose,
        template,
        deadline: Time(deadline),
    };
    let expected = [
        waiting(1, 4, Purpose::Read, named("a"), 1500),
        waiting(2, 3, Purpose::Take, any_of_three(), 1400),
        waiting(3, 2, Purpose::Lease, named("a"), 1300),
        waiting(4, 1, Purpose::Claim, named("lock"), 1200),
    ];
    assert_eq!((all, more), (expected.to_vec(), false));
    assert_eq!(desk.listed(0, 3), (expected[..3].to_vec(), true));
    assert_eq!(desk.listed(3, 3), (expected[3..].to_vec(), false));
    assert_eq!(desk.listed(4, 3), (vec![], false));
    // Deadlines are shown by agreed time, which only the order knows.
    let waits = |after| on("s", Operation::Waits { after, limit: 9 });
    assert_eq!(query(&desk.spaces, 1, &waits(0)), None);
    let none = TupleReply::Waits { waits: vec![], more: false };
    assert_eq!(query(&desk.spaces, 1, &waits(4)), Some(Ok(none)));
    for (client, admitted) in [(1, true), (2, true), (3, true), (4, false)] {
        let listed = desk.at(client, 1000).run(Operation::Waits { after: 0, limit: 9 });
        assert_eq!(listed.is_ok(), admitted, "{listed:?}");
    }
}

fn any_of_three() -> Template {
    Template { fields: vec![Pattern::Any; 3] }
}

/// A page has as many bytes as others, and one wait at least.
#[test]
fn pages_of_waits_are_bounded_in_bytes() {
    let mut desk = desk();
    let long = "x".repeat(4000);
    let template = Template { fields: vec![Pattern::Value(long.as_str().into())] };
    for number in 0..300 {
        desk.wait(number, Operation::In { template: template.clone(), wait_ms: 9 });
    }
    let (first, more) = desk.listed(0, 512);
    assert_eq!((first.len(), more), (limits::RESULT_BYTES / 4005, true));
    let (rest, more) = desk.listed(first.last().unwrap().place, 512);
    assert_eq!((first.len() + rest.len(), more), (300, false));
}

#[test]
fn a_wait_is_ended_by_who_manages_the_space() {
    let mut desk = desk();
    desk.wait(5, Operation::In { template: named("a"), wait_ms: 500 });
    desk.wait(6, Operation::In { template: named("a"), wait_ms: 500 });
    let session = SessionId { client: key(1), nonce: 1 };
    let end = |number| Operation::EndWait { session, number };
    for client in [3, 4] {
        let denied = desk.at(client, 1000).run(end(5)).unwrap_err();
        assert!(denied.starts_with("access denied"), "{denied}");
    }
    desk.client = 2;
    let told = desk.releases(end(5));
    let text = "the wait was ended by an operator".to_owned();
    assert_eq!(told, [(5, Err(text), false)]);
    let ended = |ended| Ok(TupleReply::WaitEnded { ended });
    assert_eq!(desk.run(end(5)), ended(false));
    desk.restored();
    // Not by way of another space.
    execute(&mut desk.spaces, 2, 1000, &on("t", Operation::Create(SpaceOptions::default())))
        .unwrap();
    assert_eq!(execute(&mut desk.spaces, 2, 1000, &on("t", end(6))), ended(false));
    assert_eq!(desk.at(1, 1000).listed(0, 9).0.len(), 1);
    // An offer is no wait any more.
    desk.releases(Operation::Out(entry("a", 1)));
    assert_eq!(desk.run(end(6)), ended(false));
}

#[test]
fn a_lock_is_broken_by_who_manages_the_space() {
    let mut desk = desk();
    let lock = Entry { take: Access::only(vec![key(4)]), ..entry("lock", 0) };
    let claim = |wait_ms| Operation::Claim { key: 1, entry: lock.clone(), wait_ms };
    let number = desk.out(lock.clone().with_lease(500));
    desk.wait(1, claim(60_000));
    for client in [3, 4] {
        let denied = desk.at(client, 1000).run(Operation::Break { number }).unwrap_err();
        assert!(denied.starts_with("access denied"), "{denied}");
    }
    desk.client = 2;
    let inserted = Ok(TupleReply::Inserted { number: 2 });
    assert_eq!(desk.releases(Operation::Break { number }), [(1, inserted, true)]);
    assert_eq!(desk.broken(number), Broken::Absent);
    let refused = desk.run(Operation::Break { number: 2 }).unwrap_err();
    assert!(refused.contains("is offered to a client"), "{refused}");
    desk.client = 1;
    desk.confirm(1);
    assert_eq!(desk.broken(2), Broken::Removed);
    // A job is given back, to who waits for it.
    let job = desk.out(entry("job", 1));
    let lease = |wait_ms| Operation::Lease { template: named("job"), lease_ms: 500, wait_ms };
    desk.run(lease(0)).unwrap();
    assert_eq!(desk.broken(job), Broken::Returned);
    desk.run(lease(0)).unwrap();
    desk.wait(2, lease(60_000));
    let told = desk.releases(Operation::Break { number: job });
    assert!(matches!(told[..], [(2, Ok(TupleReply::Leased(Some(_))), true)]), "{told:?}");
    // What has ended is not there.
    let ended = desk.out(entry("x", 1).with_lease(10));
    desk.time += 10;
    assert_eq!(desk.broken(ended), Broken::Absent);
}

#[test]
fn counters_add_in_one_command() {
    let mut desk = Desk::later(SpaceOptions::default());
    let add = |amount| {
        let fields = Tuple::new(&["counter".into(), "a".into()]).unwrap();
        Operation::Add { fields, amount }
    };
    let added = |number, value| Ok(TupleReply::Added { number, value });
    assert_eq!(desk.run(add(5)), added(1, 5));
    assert_eq!(desk.run(add(-7)), added(2, -2));
    let counter = |value: i64| Tuple::new(&["counter".into(), "a".into(), value.into()]).unwrap();
    let all = Template { fields: vec![Pattern::Any; 3] };
    assert_eq!(desk.run(Operation::Rdp(all.clone())), found(2, counter(-2)));
    assert_eq!(desk.run(add(i64::MAX)), added(3, i64::MAX - 2));
    let before = segments(&desk.spaces);
    let refused = desk.run(add(3)).unwrap_err();
    assert!(refused.contains("more than 64 bits"), "{refused}");
    assert_eq!(segments(&desk.spaces), before);
    // Those who wait see it, and who has it holds it up.
    let value = Template::of(&counter(7).fields().collect::<Vec<Field>>());
    desk.wait(1, Operation::In { template: value, wait_ms: 500 });
    let told = desk.releases(add(7 - (i64::MAX - 2)));
    assert_eq!(told, [(1, found(4, counter(7)), true)]);
    let refused = desk.run(add(1)).unwrap_err();
    assert!(refused.contains("somebody has the counter"), "{refused}");
    assert_eq!(desk.take_back(1), []);
    assert_eq!(desk.run(add(1)), added(5, 8));
    assert_eq!(desk.numbers(all), [5]);
}

/// What it replaces keeps its lease and access lists.
#[test]
fn a_counter_keeps_its_lease_and_access() {
    let mut desk = Desk::later(SpaceOptions::default());
    let only = Access::only(vec![key(2)]);
    desk.out(Entry { take: only.clone(), read: only, ..entry("n", 3) }.with_lease(500));
    let add = || Operation::Add { fields: Tuple::new(&["n".into()]).unwrap(), amount: 1 };
    // Not the one that it may not take, as others do.
    assert_eq!(desk.run(add()), Ok(TupleReply::Added { number: 2, value: 1 }));
    assert_eq!(desk.at(2, 1400).run(add()), Ok(TupleReply::Added { number: 3, value: 4 }));
    assert_eq!(desk.spaces.due(), Some(Time(2000)));
    assert_eq!(desk.at(1, 1400).numbers(any_pair()), [2]);
    assert_eq!(desk.at(2, 1400).numbers(any_pair()), [2, 3]);
    desk.restored();
    let mut desk = Desk::later(SpaceOptions {
        take: Access::only(vec![key(1)]),
        insert: Access::only(vec![key(1), key(2)]),
        ..SpaceOptions::default()
    });
    assert!(desk.at(2, 1000).run(add()).unwrap_err().starts_with("access denied"));
    assert!(desk.at(1, 1000).run(add()).is_ok());
}
