//! What is offered, and what is under a lease, case by case.

use crate::support::*;
use perdura_execution::{Alone as _, ExecutionContext, Progress, Service, StateLimit};
use perdura_protocol::{Decode, Encode, Time};
use perdura_store::SegmentMap;
use perdura_tuples::{
    Access, Entry, Field, Leased, Operation, Pattern, SpaceOptions, Template, Tuple, TupleReply,
    limits,
};

fn desk() -> Desk {
    Desk::later(SpaceOptions::default())
}

fn take(name: &str, wait_ms: u64) -> Operation {
    Operation::In { template: named(name), wait_ms }
}

fn lease(name: &str, lease_ms: u64, wait_ms: u64) -> Operation {
    Operation::Lease { template: named(name), lease_ms, wait_ms }
}

impl Desk {
    fn leased(&mut self, operation: Operation) -> Option<Leased> {
        match self.run(operation) {
            Ok(TupleReply::Leased(leased)) => leased,
            other => panic!("{other:?}"),
        }
    }

    fn held(&mut self, operation: Operation) -> (bool, Option<u64>) {
        match self.run(operation) {
            Ok(TupleReply::Holding { held, until }) => (held, until.map(|time| time.0)),
            other => panic!("{other:?}"),
        }
    }

    fn tuples(&mut self) -> u64 {
        match self.run(Operation::Describe) {
            Ok(TupleReply::Described(description)) => description.tuples,
            other => panic!("{other:?}"),
        }
    }
}

/// Until it is confirmed nobody else has it, and it keeps out what must not be beside it.
#[test]
fn what_is_offered_to_be_taken_is_nobody_elses() {
    let mut desk = desk();
    desk.wait(5, take("a", 1000));
    let offered = desk.releases(Operation::Out(entry("a", 7).with_lease(50)));
    assert_eq!(offered, [(5, found(1, pair("a", 7)), true)]);
    desk.restored();
    assert_eq!(desk.run(Operation::Rdp(named("a"))), Ok(TupleReply::Found(None)));
    let read = on("s", Operation::Rdp(named("a")));
    let nothing = Some(Ok(TupleReply::Found(None)));
    assert_eq!(query(&desk.spaces, 1, &read), nothing, "without a time");
    let cas = Operation::Cas { template: named("a"), entry: entry("a", 8) };
    assert_eq!(desk.run(cas), found(1, pair("a", 7)));
    for takes in [Operation::Inp(any_pair()), take("a", 9)] {
        assert_eq!(desk.run(takes), Ok(TupleReply::Found(None)));
    }
    let replace = Operation::Replace { template: any_pair(), entry: entry("b", 1) };
    assert_eq!(desk.run(replace), Ok(TupleReply::Found(None)));
    assert_eq!(desk.leased(lease("a", 9, 0)), None);
    let none = TupleReply::Renewed { renewed: false, expires: None };
    assert_eq!(desk.run(Operation::Renew { number: 1, lease_ms: None }), Ok(none));
    // Its lease does not end it meanwhile.
    assert_eq!((desk.spaces.due(), desk.until(1050)), (None, vec![]));
    assert_eq!(desk.tuples(), 1);
    desk.confirm(5);
    assert_eq!((desk.numbers(any_pair()), desk.tuples()), (vec![], 0));
    desk.confirm(5);
    assert_eq!(desk.take_back(5), [], "it ended once");
    desk.restored();
}

/// W1 is gone, and W2 has it: as old as it was, and with its lease gone on.
#[test]
fn what_is_taken_back_is_the_next_ones() {
    let mut desk = desk();
    for number in [1, 2, 3] {
        desk.wait(number, take("a", 1000));
    }
    let first = desk.releases(Operation::Out(entry("a", 7).with_lease(500)));
    assert_eq!(first, [(1, found(1, pair("a", 7)), true)]);
    assert_eq!(desk.releases(Operation::Out(entry("b", 8))), []);
    assert_eq!(desk.take_back(1), [(2, found(1, pair("a", 7)), true)]);
    desk.restored();
    desk.time = 1400;
    assert_eq!(desk.take_back(2), [(3, found(1, pair("a", 7)), true)]);
    assert_eq!(desk.take_back(3), []);
    assert_eq!(desk.numbers(any_pair()), [1, 2], "the oldest again");
    assert_eq!(desk.spaces.due(), Some(Time(2000)));
    desk.wait(4, take("c", 1000));
    assert_eq!(desk.releases(Operation::Out(entry("c", 7).with_lease(10))).len(), 1);
    desk.time = 1410;
    assert_eq!(desk.take_back(4), []);
    assert_eq!(desk.numbers(any_pair()), [1, 2], "its lease had ended");
    assert_eq!(desk.until(1500), []);
    assert_eq!(desk.numbers(any_pair()), [2]);
}

/// All who read and are not behind the first who takes it get a copy, in their order; the others when it is taken back.
#[test]
fn who_waits_to_read_has_a_copy_before_it_is_taken() {
    let mut desk = desk();
    let rd = || Operation::Rd { template: named("a"), wait_ms: 1000 };
    desk.wait(1, rd());
    desk.wait(2, take("a", 1000));
    desk.wait(3, rd());
    desk.wait(4, take("a", 1000));
    let released = desk.releases(Operation::Out(entry("a", 7)));
    let copy = || found(1, pair("a", 7));
    assert_eq!(released, [(1, copy(), false), (2, copy(), true)]);
    assert_eq!(desk.take_back(2), [(3, copy(), false), (4, copy(), true)]);
    assert_eq!(desk.until(3000), []);
}

/// A space that goes waits for those to whom something of it is offered.
#[test]
fn a_space_is_deleted_when_its_offers_have_ended() {
    let mut desk = desk();
    for number in [1, 2] {
        desk.wait(number, take("a", 1000));
    }
    desk.out(entry("b", 1));
    assert!(desk.leased(lease("b", 500, 0)).is_some());
    desk.releases(Operation::OutAll(vec![entry("a", 1), entry("a", 2)]));
    assert_eq!(desk.run(Operation::Delete), Ok(TupleReply::Deleted { remaining: 2 }));
    desk.restored();
    assert_eq!(desk.take_back(1), []);
    desk.confirm(2);
    assert_eq!(desk.tuples(), 0);
    assert_eq!(desk.run(Operation::Delete), Ok(TupleReply::Deleted { remaining: 0 }));
    assert_eq!((desk.spaces.entries(), desk.spaces.due()), (1, None));
}

#[test]
fn a_job_is_leased_finished_and_returned() {
    let mut desk = desk();
    let (first, second) = (desk.out(entry("job", 1)), desk.out(entry("job", 2)));
    let one = desk.leased(lease("job", 50, 0)).unwrap();
    let leased = Leased {
        number: first,
        token: 1,
        before: 0,
        until: Some(Time(1050)),
        tuple: pair("job", 1),
    };
    assert_eq!(one, leased);
    assert_eq!(desk.leased(lease("job", 60, 0)).unwrap().number, second);
    assert_eq!(desk.leased(lease("job", 60, 0)), None);
    assert_eq!(desk.numbers(any_pair()), [first, second], "they are read");
    desk.restored();
    // Not with another's token, and not by another client.
    let finish = |token| Operation::Finish { number: first, token };
    assert_eq!(desk.held(finish(2)), (false, None));
    assert_eq!(desk.at(2, 1000).held(finish(1)), (false, None));
    assert_eq!(desk.at(1, 1000).held(finish(1)), (true, None));
    assert_eq!(desk.held(finish(1)), (false, None));
    assert_eq!(desk.numbers(any_pair()), [second]);
    assert_eq!(desk.held(Operation::Return { number: second, token: 1 }), (true, None));
    assert_eq!(desk.held(Operation::Finish { number: second, token: 1 }), (false, None));
    let again = desk.leased(lease("job", 60, 0)).unwrap();
    assert_eq!((again.number, again.token, again.before), (second, 2, 1));
}

/// Who died has its job taken back: the next one has it at once, and the dead one nothing any more.
#[test]
fn a_lease_that_ends_gives_the_job_to_the_next() {
    let mut desk = desk();
    let job = desk.out(entry("job", 1));
    desk.out(entry("job", 2));
    let first = desk.leased(lease("job", 100, 0)).unwrap();
    desk.leased(lease("job", 10_000, 0)).unwrap();
    desk.wait(7, lease("job", 70, 5000));
    let extend = Operation::Extend { number: job, token: first.token, lease_ms: 300 };
    assert_eq!(desk.at(1, 1050).held(extend.clone()), (true, Some(1350)));
    assert_eq!(desk.spaces.due(), Some(Time(1350)));
    assert_eq!(desk.until(1349), []);
    let offered = |token| {
        let tuple = pair("job", 1);
        Ok(TupleReply::Leased(Some(Leased { number: job, token, before: 1, until: None, tuple })))
    };
    assert_eq!(desk.until(1350), [(7, offered(2), true)]);
    desk.restored();
    assert_eq!(desk.held(extend), (false, None));
    assert_eq!(desk.held(Operation::Finish { number: job, token: 2 }), (false, None), "an offer");
    // Its lease begins when it is confirmed.
    desk.time = 2000;
    desk.confirm(7);
    desk.restored();
    assert_eq!(desk.spaces.due(), Some(Time(3000)), "nobody waits: at a whole second");
    assert_eq!(desk.held(Operation::Finish { number: job, token: 1 }), (false, None));
    assert_eq!(desk.held(Operation::Finish { number: job, token: 2 }), (true, None));
    // In vain, with its own kind of reply.
    desk.wait(8, lease("none", 70, 50));
    assert_eq!(desk.until(2050), [(8, Ok(TupleReply::Leased(None)), false)]);
    assert_eq!(desk.run(lease("none", 5, 5)), Ok(TupleReply::Leased(None)));
}

/// A token is never given twice, though an offer of a lease that nobody confirmed is none that began.
#[test]
fn tokens_ascend_and_offers_are_not_counted() {
    let mut desk = desk();
    for number in [1, 2] {
        desk.wait(number, lease("job", 70, 5000));
    }
    let token = |told: &[Told]| match told {
        [(number, Ok(TupleReply::Leased(Some(leased))), true)] => {
            (*number, leased.token, leased.before)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(token(&desk.releases(Operation::Out(entry("job", 1)))), (1, 1, 0));
    assert_eq!(token(&desk.take_back(1)), (2, 2, 0));
    desk.confirm(2);
    desk.restored();
    assert_eq!(desk.held(Operation::Return { number: 1, token: 1 }), (false, None));
    assert_eq!(desk.held(Operation::Return { number: 1, token: 2 }), (true, None));
    let third = desk.leased(lease("job", 5, 0)).unwrap();
    assert_eq!((third.token, third.before), (3, 1));
}

/// A tuple's own lease goes on while it is leased, and ends it when it is given back.
#[test]
fn a_jobs_own_lease_ends_it_when_it_comes_back() {
    let mut desk = desk();
    let job = desk.out(entry("job", 1).with_lease(100));
    let other = desk.out(entry("job", 2).with_lease(500));
    desk.leased(lease("job", 200, 0)).unwrap();
    desk.leased(lease("job", 200, 0)).unwrap();
    assert_eq!(desk.until(1100), []);
    assert_eq!(desk.numbers(any_pair()), [job, other]);
    assert_eq!(desk.until(1200), []);
    assert_eq!((desk.numbers(any_pair()), desk.spaces.due()), (vec![other], Some(Time(2000))));
    assert_eq!((desk.until(1500), desk.numbers(any_pair())), (vec![], vec![]));
    desk.restored();
}

/// Several that come back at once go, the oldest first, to those who wait for longest.
#[test]
fn the_oldest_goes_to_who_waited_longest() {
    let mut desk = desk();
    desk.out(entry("job", 1));
    desk.out(entry("job", 2));
    desk.leased(lease("job", 60, 0)).unwrap();
    desk.leased(lease("job", 50, 0)).unwrap();
    desk.wait(1, take("job", 500));
    desk.wait(2, take("job", 500));
    let told = [(1, found(1, pair("job", 1)), true), (2, found(2, pair("job", 2)), true)];
    assert_eq!(desk.until(1100), told);
}

#[test]
fn a_tuple_is_leased_by_those_who_may_take_it() {
    let mut desk = desk();
    desk.out(Entry { take: Access::only(vec![key(2)]), ..entry("job", 1) });
    assert_eq!(desk.leased(lease("job", 5, 0)), None);
    assert!(desk.at(2, 1000).leased(lease("job", 5, 0)).is_some());
    let mut desk =
        Desk::later(SpaceOptions { take: Access::only(vec![key(1)]), ..SpaceOptions::default() });
    assert!(desk.at(2, 1000).run(lease("job", 5, 5)).unwrap_err().starts_with("access denied"));
}

/// A queue that is full is worked off under leases all the same.
#[test]
fn room_is_left_to_lease_what_is_there() {
    let mut desk = desk();
    desk.spaces.set_state_limit(StateLimit::of_bytes(100_000));
    while desk.run(Operation::Out(entry("job", 1))).is_ok() {}
    let tuples = desk.tuples();
    let mut leased = 0;
    let full = loop {
        match desk.run(lease("job", 5, 0)) {
            Ok(TupleReply::Leased(Some(_))) => leased += 1,
            other => break other.unwrap_err(),
        }
    };
    assert!(full.starts_with("the tuple spaces are full"), "{full}");
    assert!(leased > 4 && leased < tuples / 4, "{leased} of {tuples}");
    assert_eq!(desk.held(Operation::Finish { number: 1, token: 1 }), (true, None));
    assert!(desk.leased(lease("job", 5, 0)).is_some());
}

/// Jobs that others have are passed over, however long they are.
#[test]
fn long_jobs_are_worked_off_by_many() {
    let mut desk = desk();
    let long = |number: i64| {
        let bytes = Field::Bytes(vec![7; 50_000].into());
        Entry::new(Tuple::new(&["job".into(), number.into(), bytes]).unwrap())
    };
    let jobs = 3 * limits::RESULT_BYTES as i64 / 50_000;
    for number in 0..jobs {
        desk.out(long(number));
    }
    let template = || {
        let job = Pattern::Value("job".into());
        Template { fields: vec![job, Pattern::Any, Pattern::Any] }
    };
    for number in 1..=jobs as u64 {
        let lease = Operation::Lease { template: template(), lease_ms: 500, wait_ms: 0 };
        assert_eq!(desk.leased(lease).unwrap().number, number);
    }
    assert_eq!(desk.run(Operation::Inp(template())), Ok(TupleReply::Found(None)));
}

/// The bound of a session's waits is that of sessions, from version 2 on.
#[test]
fn a_session_waits_with_as_many_commands_as_it_may() {
    let mut desk = desk();
    for number in 0..4 * limits::WAITERS_PER_SESSION as u64 {
        desk.wait(number, take("a", 1000));
    }
}

/// Leases go by the clock, which stood still for 500 ms, and are shown by agreed time.
#[test]
fn times_are_shown_by_agreed_time() {
    for version in 1..=newest() {
        let mut desk = desk();
        desk.spaces.set_version(version);
        let run = |desk: &mut Desk, clock: u64, operation: Operation| {
            let context =
                ExecutionContext { time: Time(clock + 500), ..numbered(1, 1, clock, clock) };
            let command = on("s", operation).to_bytes();
            match desk.spaces.order_or_wait(&context, &command, &mut Vec::new()) {
                Ok(Progress::Done(reply)) => Some(TupleReply::from_bytes(reply).unwrap()),
                Ok(Progress::Waits) => None,
                Err(text) => panic!("{text}"),
            }
        };
        run(&mut desk, 1000, Operation::Out(entry("a", 1).with_lease(100)));
        let seen = |desk: &mut Desk, clock| match run(desk, clock, Operation::Rdp(named("a"))) {
            Some(TupleReply::Found(found)) => found.map(|found| found.expires),
            other => panic!("{other:?}"),
        };
        assert_eq!(seen(&mut desk, 1099), Some(Some(Time(1600))));
        assert_eq!(seen(&mut desk, 1100), None);
        let renew = Operation::Renew { number: 1, lease_ms: Some(50) };
        let renewed = TupleReply::Renewed { renewed: true, expires: Some(Time(1550)) };
        assert_eq!(run(&mut desk, 1000, renew), Some(renewed));
        if version > 1 {
            run(&mut desk, 1000, Operation::Out(entry("b", 1)));
            let leased = run(&mut desk, 1000, lease("b", 10, 0));
            assert!(
                matches!(
                    leased,
                    Some(TupleReply::Leased(Some(Leased { until: Some(Time(1510)), .. })))
                ),
                "{leased:?}"
            );
            let wait = Operation::In { template: Template::of(&["c".into()]), wait_ms: 30 };
            assert_eq!(run(&mut desk, 1000, wait), None);
            let waits = run(&mut desk, 1001, Operation::Waits { after: 0, limit: 9 });
            let Some(TupleReply::Waits { waits, .. }) = waits else { panic!("{waits:?}") };
            assert_eq!(waits[0].deadline, Time(1530));
            assert_eq!(desk.spaces.due(), Some(Time(1010)), "by the clock");
        }
    }
}

/// A state in which an entry is missing, or one is there that does not belong to it, is refused.
#[test]
fn what_is_held_is_checked_when_it_is_restored() {
    let mut desk = desk();
    desk.out(entry("job", 1).with_lease(900));
    desk.leased(lease("job", 500, 0)).unwrap();
    desk.wait(1, take("a", 1000));
    desk.releases(Operation::Out(entry("a", 7).with_lease(500)));
    let claim = |wait_ms| Operation::Claim { key: 1, entry: entry("a", 1), wait_ms };
    desk.wait(2, claim(400));
    desk.wait(3, lease("none", 5, 400));
    desk.restored();
    let map = || SegmentMap::restore(segments(&desk.spaces)).unwrap();
    let restored = |map: &SegmentMap| {
        let snapshot = map.snapshot();
        let pieces = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
        spaces(newest()).restore(pieces)
    };
    assert_eq!(restored(&map()), Ok(()));
    let whole = map();
    let entries: Vec<(Vec<u8>, Vec<u8>)> =
        whole.range(&[], None).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    let mut parts = std::collections::BTreeSet::new();
    for (key, value) in &entries {
        parts.insert((key[0], key.get(9).copied().filter(|_| key[0] == 2)));
        let mut fewer = map();
        fewer.remove(key);
        assert!(restored(&fewer).is_err(), "without {key:?}");
        // The same of another command, tuple, waiter or space.
        if key.len() > 10 {
            for place in [key.len() - 1, key.len() - 9, 9] {
                let mut more = map();
                let mut other = key.clone();
                other[place] ^= 0x40;
                more.put(&other, value, u64::MAX).unwrap();
                assert!(restored(&more).is_err(), "with {other:?}");
            }
        }
    }
    let held = [(2, Some(5)), (3, None), (4, None), (5, None), (6, None)];
    assert!(held.iter().all(|part| parts.contains(part)), "{parts:?}");
    // Fewer tokens than leases, no token that there could be, another kind of holder, an offer to read.
    let holds = entries.iter().filter(|(key, _)| key[0] == 2 && key[9] == 5);
    let mut changed = 0;
    for (key, value) in holds {
        let is_offer = value[16] == 1;
        let purpose = is_offer.then(|| (value.len() - 9, 0));
        let changes = [(7, 0xff), (8, 9), (16, 0), (16, 3)].into_iter().chain(purpose);
        for (place, byte) in changes {
            let mut other = value.clone();
            other[place] = byte;
            let mut map = map();
            map.put(key, &other, u64::MAX).unwrap();
            assert!(restored(&map).is_err(), "{place} {byte}: {value:?}");
            changed += 1;
        }
    }
    assert_eq!(changed, 9, "one is leased, and one offered");
}
