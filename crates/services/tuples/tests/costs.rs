//! What commands cost beyond their own bytes, and what becomes of those that would cost too much.

use crate::support::*;
use perdura_execution::{
    Alone as _, ExecutionContext, Meter, Progress, QueryContext, Release, Service,
};
use perdura_protocol::limits::COMMAND_COST;
use perdura_protocol::{Decode, Encode, SessionId, Time};
use perdura_tuples::{
    Entry, Field, Kind, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand,
    TupleReply, limits,
};

const WAIT_MS: u64 = 60_000;

/// What a command gives, how many it serves, and what it costs.
type Done = (Result<TupleReply, String>, usize, u64);

impl Desk {
    /// A space that indexes nothing, or one field.
    fn of_width(index_fields: u8) -> Desk {
        Desk::later(SpaceOptions { index_fields, ..SpaceOptions::default() })
    }

    fn within(&mut self, meter: Meter, operation: Operation) -> Done {
        let context = ExecutionContext { meter, ..numbered(self.client, 99, 1, self.time) };
        let mut released: Vec<Release> = Vec::new();
        let command = on("s", operation).to_bytes();
        let progress = self.spaces.order_or_wait(&context, &command, &mut released);
        let reply = progress.map(|progress| match progress {
            Progress::Done(reply) => reply,
            Progress::Waits => panic!("it waits"),
        });
        let reply = reply.map(|reply| TupleReply::from_bytes(reply).unwrap());
        (reply, released.len(), context.meter.spent())
    }

    /// As where commands are bounded.
    fn bounded(&mut self, operation: Operation) -> Done {
        self.within(Meter::up_to(COMMAND_COST), operation)
    }

    /// It is refused for its cost, and changes nothing.
    fn too_costly(&mut self, operation: Operation) {
        let before = segments(&self.spaces);
        let (reply, served, spent) = self.bounded(operation);
        let text = reply.unwrap_err();
        assert!(text.contains("more work than one may"), "{text}");
        assert!(spent > COMMAND_COST && served == 0, "{spent} {served}");
        assert_eq!(segments(&self.spaces), before);
    }

    /// So many thousands begin to wait, 250 of each client.
    fn many_wait(&mut self, thousands: u8, mut operation: impl FnMut(u64) -> Operation) {
        for client in 1..=4 * thousands {
            for number in 0..250 {
                let context = numbered(client, 1, number, self.time);
                let command = on("s", operation(number));
                let waits = progress(&mut self.spaces, &context, &command);
                assert_eq!(waits, (None, vec![]));
            }
        }
    }
}

fn job(value: i64) -> Template {
    Template { fields: vec![Pattern::Value("job".into()), Pattern::Value(value.into())] }
}

fn jobs(count: usize) -> Operation {
    Operation::OutAll(vec![entry("job", 1); count])
}

#[test]
fn who_inserts_pays_for_those_who_are_looked_at() {
    for index_fields in [0, 1] {
        let mut desk = Desk::of_width(index_fields);
        let (.., alone) = desk.bounded(Operation::Out(entry("job", 1)));
        desk.many_wait(3, |_| Operation::In { template: job(2), wait_ms: WAIT_MS });
        let (reply, served, spent) = desk.bounded(Operation::Out(entry("job", 1)));
        assert!(reply.is_ok() && served == 0 && alone < 1_000, "{alone}");
        assert!((3_000 * 256..3_000 * 1024).contains(&spent), "{spent}");
        let cas = Operation::Cas { template: job(7), entry: entry("job", 1) };
        assert!(desk.bounded(cas).2 > 3_000 * 256);
        // Where the index tells them apart, nobody is looked at.
        let other = desk.bounded(Operation::Out(entry("other", 1))).2;
        assert_eq!(other < 1_000, index_fields == 1, "{other}");
    }
}

/// Many who are served are more than many who are looked at. Whoever inserts one tuple is never refused for them.
#[test]
fn one_tuple_serves_all_who_wait_for_it() {
    let mut desk = Desk::of_width(1);
    desk.many_wait(7, |_| Operation::Rd { template: named("job"), wait_ms: WAIT_MS });
    let (reply, served, spent) = desk.bounded(Operation::Out(entry("job", 1)));
    assert_eq!((reply, served), (Ok(TupleReply::Inserted { number: 1 }), 7_000));
    assert!(spent > COMMAND_COST, "{spent}");
    // But many tuples are not inserted at once that serve as many.
    let mut desk = Desk::of_width(1);
    desk.many_wait(7, |_| Operation::Rd { template: named("job"), wait_ms: WAIT_MS });
    desk.too_costly(jobs(2));
    desk.restored();
}

#[test]
fn many_tuples_for_which_too_many_wait_are_not_inserted_at_once() {
    let mut desk = Desk::of_width(1);
    desk.many_wait(2, |_| Operation::In { template: job(2), wait_ms: WAIT_MS });
    // Some of them would be served before it is too much.
    desk.wait(5_000, Operation::In { template: job(1), wait_ms: WAIT_MS });
    desk.too_costly(jobs(100));
    desk.restored();
    let (reply, served, _) = desk.bounded(jobs(10));
    assert!(reply.is_ok() && served == 1, "{reply:?}");
    // Where commands have no bound, they have none.
    let (reply, _, spent) = desk.within(Meter::without_limit(), jobs(100));
    assert!(reply.is_ok() && spent > COMMAND_COST, "{reply:?}");
}

/// Jobs for thousands who wait to lease or take one, and for nothing else.
#[test]
fn jobs_are_put_as_fast_however_many_wait_for_them() {
    let mut desk = Desk::of_width(1);
    let (template, lease_ms) = (|| named("job"), 500);
    desk.many_wait(2, |_| Operation::Lease { template: template(), lease_ms, wait_ms: WAIT_MS });
    let (reply, served, spent) = desk.bounded(jobs(limits::TUPLES_AT_ONCE));
    assert!(reply.is_ok() && served == limits::TUPLES_AT_ONCE && spent < 4 << 20, "{spent}");
    // A reader behind all of them has what was leased before.
    let rd = Operation::Rd { template: job(3), wait_ms: WAIT_MS };
    desk.wait(5_000, rd);
    let (.., spent) = desk.bounded(jobs(9));
    assert!(spent > 9 * 1_000 * 64, "{spent}");
    let told = desk.releases(Operation::OutAll(vec![entry("job", 1), entry("job", 3)]));
    assert_eq!(told.last().unwrap().0, 5_000);
    assert_eq!(told.len(), 3, "{told:?}");
}

/// Tuples that a search for other ones looks at, none of which is indexed.
fn crowd(desk: &mut Desk, thousands: usize) {
    for _ in 0..2 * thousands {
        desk.run(Operation::OutAll(vec![entry("x", 0); 500])).unwrap();
    }
}

#[test]
fn many_tuples_for_whose_end_too_many_wait_are_not_taken_at_once() {
    let mut desk = Desk::of_width(0);
    for value in 0..8 {
        desk.out(entry("lock", value));
        let entry = entry("lock", value);
        desk.wait(value as u64, Operation::Claim { key: 2, entry, wait_ms: WAIT_MS });
    }
    crowd(&mut desk, 9);
    let all = |limit| Operation::InAll { template: named("lock"), limit };
    desk.too_costly(all(8));
    desk.restored();
    let (reply, served, spent) = desk.bounded(all(2));
    assert!(reply.is_ok() && served == 2, "{reply:?}");
    assert!((2 * 9_000 * 512..COMMAND_COST).contains(&spent), "{spent}");
    let (reply, served, spent) = desk.within(Meter::without_limit(), all(8));
    assert!(reply.is_ok() && served == 6 && spent > COMMAND_COST, "{reply:?}");
}

/// Whoever gives a tuple up is not refused, whoever waits for that.
#[test]
fn one_tuple_goes_whatever_that_costs() {
    let lock = || {
        let fields: Vec<Field> = (0..8).map(Field::Integer).collect();
        Entry::new(Tuple::new(&fields).unwrap())
    };
    let any = || Template { fields: vec![Pattern::Any; 8] };
    let ends: [fn(Template) -> Operation; 3] = [
        |_| Operation::Renew { number: 1, lease_ms: Some(0) },
        |_| Operation::Break { number: 1 },
        Operation::Inp,
    ];
    for end in ends {
        let mut desk = Desk::of_width(0);
        desk.out(lock());
        for key in 1..=8 {
            let claim = Operation::Claim { key, entry: lock(), wait_ms: WAIT_MS };
            desk.wait(u64::from(key), claim);
        }
        crowd(&mut desk, 9);
        let (reply, served, spent) = desk.bounded(end(any()));
        assert!(reply.is_ok() && served == 1, "{reply:?}");
        assert!(spent > COMMAND_COST, "{spent}");
    }
}

/// A claim that waits is looked for by each key of what goes.
#[test]
fn keys_for_which_claims_may_wait_are_counted() {
    let mut desk = Desk::of_width(1);
    desk.out(entry("lock", 1));
    let other = |length: usize| {
        let mut fields: Vec<Field> = vec!["other".into(), Field::Bytes(vec![7; length].into())];
        fields.extend((0..30).map(Field::Integer));
        Tuple::new(&fields).unwrap()
    };
    let take = Operation::Inp(Template { fields: vec![Pattern::Any; 32] });
    desk.out(Entry::new(other(100)));
    let (.., before) = desk.bounded(take.clone());
    desk.wait(1, Operation::Claim { key: 1, entry: entry("lock", 1), wait_ms: WAIT_MS });
    desk.out(Entry::new(other(100)));
    let (.., spent) = desk.bounded(take);
    assert!(before < 3_000 && spent - before > 32 * 1_024, "{before} {spent}");
}

#[test]
fn lists_of_those_who_wait_are_paid_for() {
    let mut desk = Desk::of_width(1);
    desk.many_wait(2, |number| Operation::In { template: job(number as i64), wait_ms: WAIT_MS });
    let waits = |after, limit| Operation::Waits { after, limit };
    let spent = |desk: &mut Desk, operation| {
        let (reply, _, spent) = desk.bounded(operation);
        let Ok(TupleReply::Waits { waits, .. }) = reply else { panic!("{reply:?}") };
        (waits.iter().map(|one| one.place).collect::<Vec<_>>(), spent)
    };
    let (places, few) = spent(&mut desk, waits(1_500, 2));
    assert_eq!(places, [1_501, 1_502]);
    assert!((2_000 * 64..2_000 * 64 + 3_000).contains(&few), "{few}");
    let (places, many) = spent(&mut desk, waits(0, 512));
    assert_eq!(places, (1..=512).collect::<Vec<_>>());
    assert!(many > few + 500 * 512, "{many}");
    // So it is where it is not ordered, and looks in vain.
    let meter = Meter::up_to(COMMAND_COST);
    for (after, given) in [(0, false), (2_000, true)] {
        let command = on("s", waits(after, 2)).to_bytes();
        assert_eq!(
            desk.spaces.query(&QueryContext { client: key(1), meter: &meter }, &command).is_some(),
            given
        );
    }
    assert!(meter.spent() >= 2 * 2_000 * 64, "{}", meter.spent());
}

/// A page ends before it costs too much, and one wait at least is on it.
#[test]
fn pages_of_long_claims_are_bounded() {
    let mut desk = Desk::of_width(1);
    desk.out(entry("lock", 0));
    let long = Field::Bytes(vec![7; 60_000].into());
    let entry = Entry::new(Tuple::new(&["lock".into(), long]).unwrap());
    for number in 0..400 {
        let claim = Operation::Claim { key: 1, entry: entry.clone(), wait_ms: WAIT_MS };
        desk.wait(number, claim);
    }
    let (mut seen, mut pages) = (0, 0);
    loop {
        let (reply, ..) = desk.bounded(Operation::Waits { after: seen, limit: 512 });
        let Ok(TupleReply::Waits { waits, more }) = reply else { panic!("{reply:?}") };
        (seen, pages) = (waits.last().unwrap().place, pages + 1);
        if !more {
            break;
        }
    }
    assert_eq!((seen, pages), (400, 2));
}

/// Jobs that somebody has are passed over, and their bytes are not read.
#[test]
fn the_bytes_of_what_somebody_has_are_not_paid_for() {
    let mut desk = Desk::of_width(1);
    let length = 100_000;
    let job =
        || Entry::new(Tuple::new(&["job".into(), Field::Bytes(vec![7; length].into())]).unwrap());
    for _ in 0..40 {
        desk.out(job());
    }
    let template = || Template { fields: vec![Pattern::Value("job".into()), Pattern::Any] };
    let lease = || Operation::Lease { template: template(), lease_ms: 500, wait_ms: 0 };
    for before in 0..40 {
        let (reply, _, spent) = desk.bounded(lease());
        assert!(matches!(reply, Ok(TupleReply::Leased(Some(_)))), "{reply:?}");
        let steps = (before + 1) * 512;
        assert!((steps..steps + 2 * length as u64).contains(&spent), "{spent}");
    }
    // Those that are looked at in vain are read.
    let other = Template { fields: vec![Pattern::Value("job".into()), Pattern::Kind(Kind::Bool)] };
    let (.., spent) = desk.bounded(Operation::Rdp(other));
    assert!(spent > 10 * length as u64, "{spent}");
}

#[test]
fn who_renews_a_long_tuple_pays_for_it() {
    let mut desk = Desk::of_width(1);
    let long = Tuple::new(&[Field::Bytes(vec![7; 400_000].into())]).unwrap();
    let number = desk.out(Entry::new(long));
    for lease_ms in [Some(500), None] {
        let (reply, _, spent) = desk.bounded(Operation::Renew { number, lease_ms });
        assert!(matches!(reply, Ok(TupleReply::Renewed { renewed: true, .. })), "{reply:?}");
        assert!((400_000..500_000).contains(&spent), "{spent}");
    }
}

#[test]
fn who_deletes_a_space_pays_for_what_goes() {
    let mut desk = Desk::of_width(2);
    desk.run(Operation::OutAll(vec![entry("job", 1).with_lease(500); 500])).unwrap();
    let (reply, _, spent) = desk.bounded(Operation::Delete);
    assert_eq!(reply, Ok(TupleReply::Deleted { remaining: 0 }));
    // A tuple, two entries of the index, and a lease.
    assert!(spent >= 4 * 500 * 1024, "{spent}");
}

/// A function of the command's bytes: whatever follows the tag, and whatever the state and the version are.
#[test]
fn what_frees_others_is_not_put_off() {
    let session = SessionId { client: key(1), nonce: 1 };
    let (number, token, lease_ms, wait_ms) = (1, 1, 5, 5);
    let template = any_pair;
    let entry = || entry("a", 1);
    let fields = Tuple::new(&["a".into()]).unwrap();
    let never = [
        Operation::Renew { number, lease_ms: Some(0) },
        Operation::Finish { number, token },
        Operation::Return { number, token },
        Operation::Extend { number, token, lease_ms },
        Operation::EndWait { session, number },
        Operation::Break { number },
    ];
    let may = [
        Operation::Create(SpaceOptions::default()),
        Operation::Delete,
        Operation::Describe,
        Operation::Out(entry()),
        Operation::OutAll(vec![entry()]),
        Operation::Rdp(template()),
        Operation::Inp(template()),
        Operation::RdAll { template: template(), after: 0, limit: 1 },
        Operation::InAll { template: template(), limit: 1 },
        Operation::Cas { template: template(), entry: entry() },
        Operation::Replace { template: template(), entry: entry() },
        Operation::Renew { number, lease_ms: None },
        Operation::Renew { number, lease_ms: Some(5) },
        Operation::Rd { template: template(), wait_ms },
        Operation::In { template: template(), wait_ms },
        Operation::Claim { key: 1, entry: entry(), wait_ms },
        Operation::Lease { template: template(), lease_ms, wait_ms },
        Operation::Add { fields, amount: 1 },
        Operation::Waits { after: 0, limit: 1 },
    ];
    for version in 1..=newest() {
        let spaces = spaces(version);
        let may_be = |operation: &Operation| {
            let name = "s".repeat(limits::SPACE_NAME_BYTES);
            let command = on(&name, operation.clone()).to_bytes();
            let short = on("s", operation.clone()).to_bytes();
            assert_eq!(spaces.may_be_put_off(&command), spaces.may_be_put_off(&short));
            spaces.may_be_put_off(&command)
        };
        assert!(never.iter().all(|operation| !may_be(operation)));
        assert!(may.iter().all(may_be));
        let listing = TupleCommand::Spaces { after: String::new(), limit: 1 };
        assert!(spaces.may_be_put_off(&listing.to_bytes()));
        let mut random = Random(5);
        for length in 0..300 {
            spaces.may_be_put_off(&random.bytes(length % 40));
        }
    }
}

/// What ends at one time, and would have too many looked at, goes in several batches under version 3; under version 2 it does not.
#[test]
fn leases_that_end_where_many_wait_are_given_back_in_turn() {
    for version in 2..=newest() {
        let mut desk = Desk::under(version, SpaceOptions::default());
        let jobs = 200;
        desk.run(Operation::OutAll(vec![entry("job", 1); jobs])).unwrap();
        for _ in 0..jobs {
            desk.run(Operation::Lease { template: named("job"), lease_ms: 10, wait_ms: 0 })
                .unwrap();
        }
        desk.many_wait(4, |_| Operation::In { template: job(2), wait_ms: WAIT_MS });
        assert_eq!(desk.spaces.due(), Some(Time(1010)));
        let mut rounds = 0;
        while desk.spaces.due() == Some(Time(1010)) {
            assert_eq!(desk.until(1010), []);
            rounds += 1;
        }
        let once = limits::ENDED_LOOKS.div_ceil(4_000);
        assert_eq!(rounds, if version > 2 { (jobs as u64).div_ceil(once) } else { 1 });
        assert_eq!(desk.numbers(named("job")).len(), jobs);
    }
}

/// The same where claims may be let through.
#[test]
fn leases_for_whose_end_many_claims_wait_end_in_turn() {
    for version in 2..=newest() {
        let mut desk = Desk::under(version, SpaceOptions::default());
        for value in 0..60 {
            desk.out(entry("lock", value).with_lease(10));
            let claim = Operation::Claim { key: 2, entry: entry("lock", value), wait_ms: WAIT_MS };
            desk.wait(value as u64, claim);
        }
        crowd(&mut desk, 10);
        let told = desk.until(1010);
        let once = limits::ENDED_LOOKS.div_ceil(limits::SCANNED_TUPLES as u64);
        assert_eq!(told.len() as u64, if version > 2 { once } else { 60 });
        assert!(told.iter().all(|(.., offer)| *offer));
        let left = 60 - told.len() - desk.until(1010).len();
        assert_eq!(left - desk.until(1010).len(), 0, "the rest is let through by the next ones");
    }
}
