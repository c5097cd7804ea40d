//! Commands that wait, case by case.

use crate::support::*;
use perdura_execution::{Alone as _, Release, Service};
use perdura_protocol::{SessionId, Time};
use perdura_tuples::{
    Access, Entry, Operation, Pattern, SpaceOptions, Template, TupleReply, TupleSpaces, limits,
};

fn rd(template: Template, wait_ms: u64) -> Operation {
    Operation::Rd { template, wait_ms }
}

fn take(template: Template, wait_ms: u64) -> Operation {
    Operation::In { template, wait_ms }
}

impl Desk {
    /// Begins to wait as session and number.
    fn waits(&mut self, nonce: u64, number: u64, operation: Operation) {
        let context = numbered(self.client, nonce, number, self.time);
        let (progress, released) = progress(&mut self.spaces, &context, &on("s", operation));
        assert_eq!((progress, released), (None, vec![]));
    }

    /// Numbers of those who get something by an operation, in order, with what they get.
    fn served(&mut self, operation: Operation) -> Vec<(u64, Option<u64>)> {
        let context = numbered(self.client, 99, 1, self.time);
        let (done, released) = progress(&mut self.spaces, &context, &on("s", operation));
        assert!(done.is_some_and(|reply| reply.is_ok()));
        let tuple = |reply: Result<TupleReply, String>| match reply {
            Ok(TupleReply::Found(found)) => found.map(|found| found.number),
            other => panic!("{other:?}"),
        };
        released.into_iter().map(|(_, number, reply)| (number, tuple(reply))).collect()
    }

    fn waiters(&mut self) -> u64 {
        match self.run(Operation::Describe) {
            Ok(TupleReply::Described(description)) => description.waiters,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_waits_is_served_in_order() {
    for index_fields in 0..=2 {
        let mut desk = Desk::new(SpaceOptions { index_fields, ..SpaceOptions::default() });
        desk.waits(1, 1, take(named("other"), 100));
        desk.waits(1, 2, rd(named("job"), 100));
        desk.waits(2, 3, take(any_pair(), 100));
        desk.waits(3, 4, rd(named("job"), 100));
        desk.waits(1, 5, take(named("job"), 100));
        // The first who takes ends it: nobody behind it sees the tuple.
        assert_eq!(desk.served(Operation::Out(entry("job", 1))), [(2, Some(1)), (3, Some(1))]);
        assert_eq!(desk.numbers(any_pair()), []);
        let several = Operation::OutAll(vec![entry("job", 2), entry("job", 3)]);
        assert_eq!(desk.served(several), [(4, Some(2)), (5, Some(2))]);
        assert_eq!(desk.numbers(any_pair()), [3]);
        let replace = Operation::Replace { template: any_pair(), entry: entry("other", 4) };
        assert_eq!(desk.served(replace), [(1, Some(4))]);
        assert_eq!(
            (desk.numbers(any_pair()), desk.waiters(), desk.spaces.due()),
            (vec![], 0, None)
        );
    }
}

#[test]
fn what_is_there_is_had_at_once() {
    let mut desk = Desk::new(SpaceOptions::default());
    let number = desk.out(entry("job", 1));
    assert_eq!(desk.found(rd(named("job"), 5)).unwrap().number, number);
    assert_eq!(desk.found(take(named("job"), 5)).unwrap().number, number);
    let cas = Operation::Cas { template: named("job"), entry: entry("job", 2) };
    desk.waits(1, 7, take(named("job"), 5));
    assert_eq!(desk.served(cas), [(7, Some(2))]);
}

#[test]
fn a_wait_ends_at_its_agreed_time() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.waits(1, 1, take(named("a"), 50));
    desk.waits(1, 2, rd(named("a"), 30));
    assert_eq!(desk.spaces.due(), Some(Time(1030)));
    assert_eq!(on_time(&mut desk.spaces, 1029), []);
    let session = SessionId { client: key(1), nonce: 1 };
    let nothing = |number| (session, number, Ok(TupleReply::Found(None)));
    assert_eq!(on_time(&mut desk.spaces, 1030), [nothing(2)]);
    assert_eq!(desk.spaces.due(), Some(Time(1050)));
    assert_eq!(on_time(&mut desk.spaces, 2000), [nothing(1)]);
    assert_eq!((desk.spaces.due(), desk.waiters()), (None, 0));
    assert_eq!(desk.served(Operation::Out(entry("a", 1))), []);
}

#[test]
fn who_is_forgotten_gets_nothing() {
    let mut desk = Desk::new(SpaceOptions::default());
    let before = desk.spaces.bytes();
    desk.waits(1, 1, take(named("a"), 50));
    desk.waits(1, 2, take(named("a"), 60));
    let session = SessionId { client: key(1), nonce: 1 };
    desk.spaces.waiting().unwrap().forget(session, 1);
    desk.spaces.waiting().unwrap().forget(session, 1);
    desk.spaces.waiting().unwrap().forget(session, 3);
    assert_eq!((desk.waiters(), desk.spaces.due()), (1, Some(Time(1060))));
    assert_eq!(desk.served(Operation::Out(entry("a", 1))), [(2, Some(1))]);
    assert_eq!(desk.spaces.bytes(), before);
}

/// Waiters pass over tuples that do not admit them.
#[test]
fn tuples_go_to_those_they_admit() {
    let mut desk = Desk::new(SpaceOptions::default());
    for client in 1..=3 {
        desk.client = client;
        desk.waits(1, u64::from(client), take(named("a"), 50));
    }
    let second = Entry { take: Access::only(vec![key(2)]), ..entry("a", 1) };
    assert_eq!(desk.served(Operation::Out(second)), [(2, Some(1))]);
    let nobody = Entry { take: Access::Only(vec![]), ..entry("a", 1) };
    assert_eq!(desk.served(Operation::Out(nobody)), []);
    assert_eq!(desk.served(Operation::Out(entry("a", 1))), [(1, Some(3))]);
    assert_eq!(desk.waiters(), 1);
}

#[test]
fn a_deleted_space_refuses_those_who_wait() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.waits(1, 5, take(named("a"), 50));
    desk.waits(1, 4, rd(any_pair(), 50));
    let context = numbered(1, 99, 1, desk.time);
    let (reply, released) = progress(&mut desk.spaces, &context, &on("s", Operation::Delete));
    assert_eq!(reply, Some(Ok(TupleReply::Deleted { remaining: 0 })));
    let numbers: Vec<u64> = released.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, [5, 4]);
    assert!(released.iter().all(|(_, _, reply)| reply.as_ref().is_err()));
    assert_eq!((desk.spaces.due(), desk.spaces.entries()), (None, 1));
}

#[test]
fn waits_are_bounded() {
    let mut desk = Desk::new(SpaceOptions { index_fields: 2, ..SpaceOptions::default() });
    let refused = |desk: &mut Desk, nonce: u64, operation| {
        let context = numbered(desk.client, nonce, 9999, desk.time);
        let (reply, _) = progress(&mut desk.spaces, &context, &on("s", operation));
        reply.unwrap().unwrap_err()
    };
    let per_session = limits::WAITERS_PER_SESSION as u64;
    for number in 0..limits::WAITERS_PER_SPACE {
        if number == per_session {
            let text = refused(&mut desk, 0, take(named("a"), 50));
            assert!(text.starts_with("64 commands of this session wait"), "{text}");
        }
        desk.waits(number / per_session, number, take(named("a"), 50));
    }
    let text = refused(&mut desk, 9999, rd(any_pair(), 50));
    assert!(text.starts_with("8192 commands wait"), "{text}");
    // Those of other templates are not looked at: this takes no time to speak of.
    for value in 0..100 {
        assert_eq!(desk.served(Operation::Out(entry("b", value))), []);
    }
    let mut small = TupleSpaces::new(700);
    assert_eq!(
        execute(&mut small, 1, 1, &on("s", Operation::Create(SpaceOptions::default()))),
        Ok(TupleReply::Created)
    );
    let long = Template { fields: vec![Pattern::Value("x".repeat(400).as_str().into())] };
    let waits = progress(&mut small, &numbered(1, 1, 1, 1), &on("s", rd(long, 5)));
    assert!(waits.0.is_some_and(|reply| reply.is_err_and(|text| text.contains("are full"))));
}

/// Who waits is in the snapshot.
#[test]
fn a_restored_service_serves_those_who_wait() {
    let mut desk = Desk::new(SpaceOptions::default());
    desk.waits(4, 1, take(named("a"), 50));
    desk.waits(5, 2, take(any_pair(), 60));
    let mut copy = TupleSpaces::new(LIMIT);
    copy.restore(segments(&desk.spaces)).unwrap();
    assert_eq!(copy.due(), desk.spaces.due());
    let mut released: Vec<Release> = Vec::new();
    copy.on_time(Time(1050), &mut released);
    assert_eq!((released.len(), released[0].number), (1, 1));
    desk.spaces = copy;
    assert_eq!(desk.served(Operation::Out(entry("a", 1))), [(2, Some(1))]);
}

impl Desk {
    /// A client waits so many times more; the refusal, if there is one.
    fn waits_more(&mut self, client: u8, times: u64) -> Option<String> {
        for _ in 0..times {
            let number = self.waiters();
            let context = numbered(client, number / 1024, number, self.time);
            let command = on("s", take(named("a"), 50));
            let (reply, released) = progress(&mut self.spaces, &context, &command);
            assert_eq!(released, []);
            if let Some(reply) = reply {
                return Some(reply.unwrap_err());
            }
        }
        None
    }
}

/// One key has half of what may wait in a space at most, the next one half of the rest, and so on.
#[test]
fn under_version_3_no_key_fills_a_space() {
    let mut desk = Desk::under(3, SpaceOptions::default());
    let mut left = limits::WAITERS_PER_SPACE;
    for client in 1..=13 {
        let half = left / 2;
        assert_eq!(desk.waits_more(client, half), None);
        let text = desk.waits_more(client, 1).unwrap();
        let words = format!("{half} commands of this client key wait in this space");
        assert!(text.starts_with(&words), "{text}");
        assert!(text.contains(&format!("only {} more can", left - half)), "{text}");
        left -= half;
    }
    assert_eq!((left, desk.waiters()), (1, limits::WAITERS_PER_SPACE - 1));
    assert!(desk.waits_more(99, 1).is_some(), "nothing would be left");
    // Who has waited leaves room for others, and for itself.
    let session = SessionId { client: key(1), nonce: 0 };
    for number in 0..100 {
        desk.spaces.waiting().unwrap().forget(session, number);
    }
    assert_eq!(desk.waits_more(99, 50), None);
    assert!(desk.waits_more(1, 1).is_some(), "it has far more than is left");
    // And in another space it has as much again.
    let other = on("t", Operation::Create(SpaceOptions::default()));
    execute(&mut desk.spaces, 1, desk.time, &other).unwrap();
    let waits = on("t", take(named("a"), 50));
    let context = numbered(1, 77, 1, desk.time);
    assert_eq!(progress(&mut desk.spaces, &context, &waits), (None, vec![]));
}

/// Those that began under version 2 count as well, and none of them is ended.
#[test]
fn under_version_2_one_key_fills_a_space_and_version_3_finds_it_full() {
    let mut desk = Desk::under(2, SpaceOptions::default());
    assert_eq!(desk.waits_more(1, limits::WAITERS_PER_SPACE), None);
    desk.spaces.set_version(3);
    for client in [1, 2] {
        let text = desk.waits_more(client, 1).unwrap();
        assert!(text.starts_with("8192 commands wait"), "{text}");
    }
    desk.restored();
    let session = SessionId { client: key(1), nonce: 0 };
    desk.spaces.waiting().unwrap().forget(session, 0);
    desk.spaces.waiting().unwrap().forget(session, 1);
    assert!(desk.waits_more(1, 1).is_some());
    assert_eq!(desk.waits_more(2, 1), None);
    assert_eq!(desk.served(Operation::Out(entry("a", 1))), [(2, Some(1))]);
}

/// What a key has waiting is counted only where that may matter, among its own or among all, whichever are fewer; and that is paid for.
#[test]
fn counting_waits_is_paid_for() {
    use perdura_execution::{ExecutionContext, Meter};
    use perdura_protocol::Encode;
    let mut desk = Desk::under(3, SpaceOptions::default());
    let cost = |desk: &mut Desk, client: u8| {
        let meter = Meter::without_limit();
        let context = ExecutionContext { meter, ..numbered(client, 99, 1, desk.time) };
        let command = on("s", take(named("a"), 50)).to_bytes();
        let _ = desk.spaces.order_or_wait(&context, &command, &mut Vec::new());
        desk.spaces.waiting().unwrap().forget(context.session, 1);
        context.meter.spent()
    };
    assert_eq!(desk.waits_more(1, 3_000), None);
    assert_eq!((cost(&mut desk, 1), cost(&mut desk, 9)), (0, 0));
    assert_eq!(desk.waits_more(2, 2_000), None);
    let (of_many, of_none) = (cost(&mut desk, 1), cost(&mut desk, 9));
    assert!(of_many > 3_000 * 64 && of_none < 1_000, "{of_many} {of_none}");
}
