use super::*;
use perdura_execution::{ExecutionContext, Progress, Service};
use perdura_protocol::{ClusterId, Digest, Encode, Time};
use perdura_tuples::{
    Entry, Field, Float, Operation, Pattern, SpaceOptions, Template, Tuple, TupleSpaces,
};

fn session(client: u8) -> SessionId {
    SessionId { client: PublicKey([client; 32]), nonce: 1 }
}

fn on(operation: Operation) -> TupleCommand {
    TupleCommand::On { space: "s".to_owned(), operation }
}

fn tuple(fields: &[Field]) -> Tuple {
    Tuple::new(fields).unwrap()
}

fn any() -> Template {
    Template { fields: vec![Pattern::Any] }
}

fn out(value: i64) -> TupleCommand {
    on(Operation::Out(Entry::new(tuple(&[value.into()]))))
}

/// What the service does, written down as the witness does it.
struct Run {
    service: TupleSpaces,
    slots: Vec<(Slot, Vec<Step>)>,
    time: u64,
    numbers: u64,
}

impl Run {
    fn new() -> Run {
        let mut run =
            Run { service: TupleSpaces::new(1 << 24), slots: Vec::new(), time: 0, numbers: 0 };
        run.batch(1, &[(1, on(Operation::Create(SpaceOptions::default())))]);
        run
    }

    /// A batch of commands of clients, so much later.
    fn batch(&mut self, later_ms: u64, commands: &[(u8, TupleCommand)]) {
        self.time += later_ms;
        let (slot, mut released) = (Slot(self.slots.len() as u64 + 1), Vec::new());
        let mut steps = vec![Step::Began(Time(self.time), 1)];
        self.service.on_time(Time(self.time), &mut released);
        steps.extend(released.drain(..).map(Step::Released));
        for (client, command) in commands {
            self.numbers += 1;
            let (time, number, batch) = (Time(self.time), self.numbers, Digest::ZERO);
            let (session, cluster) = (session(*client), ClusterId([0; 16]));
            let context =
                ExecutionContext { slot, time, clock: time, session, number, cluster, batch };
            let command = command.to_bytes();
            let reply = match self.service.execute_or_wait(&context, &command, &mut released) {
                Progress::Done(result) => Some(result),
                Progress::Waits => None,
            };
            steps.push(Step::Executed(Execution { slot, batch, session, number, command, reply }));
            steps.extend(released.drain(..).map(Step::Released));
        }
        self.slots.push((slot, steps));
    }

    fn check(&self, calls: &[Told]) -> Result<Judged, Broken> {
        let conflicts = |_: &Execution| Footprint::everything();
        check(self.slots.iter().map(|(slot, steps)| (*slot, &steps[..])), conflicts, calls)
    }

    /// The same with one step changed.
    fn with(
        &self,
        slot: u64,
        step: usize,
        change: impl FnOnce(&mut Step),
    ) -> Result<Judged, Broken> {
        let mut slots = self.slots.clone();
        change(&mut slots[slot as usize - 1].1[step]);
        Run { service: TupleSpaces::new(1), slots, time: 0, numbers: 0 }.check(&[])
    }
}

fn waits(take: bool) -> TupleCommand {
    let (template, wait_ms) = (any(), 100);
    on(if take { Operation::In { template, wait_ms } } else { Operation::Rd { template, wait_ms } })
}

fn replied(step: &mut Step, reply: &TupleReply) {
    match step {
        Step::Executed(execution) => execution.reply = Some(Ok(reply.to_bytes())),
        Step::Released(release) => release.result = Ok(reply.to_bytes()),
        _ => panic!("{step:?} has no reply"),
    }
}

fn told(number: u64, command: TupleCommand, at: (u64, u64), seen: Seen<TupleReply>) -> Told {
    let number = (number > 0).then_some((session(1), number));
    let (client, invoked, ended) = (session(1).client, at.0, Some(at.1));
    Told { number, client, command, invoked, ended, seen }
}

#[test]
fn what_the_service_does_is_what_the_model_says() {
    let mut run = Run::new();
    let leased = Entry::new(tuple(&[9.into()])).with_lease(50);
    run.batch(1, &[(1, out(1)), (2, out(2)), (1, on(Operation::Out(leased)))]);
    run.batch(1, &[(1, on(Operation::Inp(any()))), (1, on(Operation::Rdp(any())))]);
    run.batch(1, &[(2, on(Operation::Renew { number: 3, lease_ms: Some(10) }))]);
    run.batch(9, &[(2, on(Operation::RdAll { template: any(), after: 0, limit: 8 }))]);
    run.batch(1, &[(2, on(Operation::InAll { template: any(), limit: 8 }))]);
    run.batch(1, &[(1, waits(false)), (2, waits(true)), (3, waits(true)), (4, waits(true))]);
    run.batch(1, &[(1, out(3)), (1, out(4))]);
    run.batch(99, &[]);
    run.batch(1, &[(1, waits(true)), (1, on(Operation::Delete)), (1, out(5))]);
    let judged = run.check(&[]).unwrap();
    assert_eq!((judged.leases_ended, judged.renewed), (1, 1));
}

#[test]
fn another_tuple_than_the_oldest_is_noticed() {
    let mut run = Run::new();
    run.batch(1, &[(1, out(1)), (1, out(2)), (1, on(Operation::Rdp(any())))]);
    let found = |number, value: i64| {
        let tuple = tuple(&[value.into()]);
        TupleReply::Found(Some(perdura_tuples::Found { number, expires: None, tuple }))
    };
    assert!(run.with(2, 3, |step| replied(step, &found(1, 1))).is_ok());
    assert!(run.with(2, 3, |step| replied(step, &found(2, 2))).is_err());
    assert!(run.with(2, 3, |step| replied(step, &TupleReply::Found(None))).is_err());
}

#[test]
fn a_number_that_was_used_before_is_noticed() {
    let mut run = Run::new();
    run.batch(1, &[(1, out(1)), (1, out(2))]);
    let number = |number| TupleReply::Inserted { number };
    assert!(run.with(2, 2, |step| replied(step, &number(1))).is_err());
    // From the first one on, each has the next.
    assert!(run.with(2, 2, |step| replied(step, &number(7))).is_err());
    assert!(run.with(2, 1, |step| replied(step, &number(7))).is_err());
    let mut slots = run.slots.clone();
    replied(&mut slots[1].1[1], &number(7));
    replied(&mut slots[1].1[2], &number(8));
    let later = Run { service: TupleSpaces::new(1), slots, time: 0, numbers: 0 };
    assert!(later.check(&[]).is_ok());
}

#[test]
fn another_space_of_the_name_has_larger_numbers() {
    let mut run = Run::new();
    let create = || on(Operation::Create(SpaceOptions::default()));
    run.batch(1, &[(1, out(1)), (1, out(2)), (1, on(Operation::Delete)), (1, create())]);
    run.batch(1, &[(1, out(3))]);
    assert!(run.check(&[]).is_ok());
    let number = |number| TupleReply::Inserted { number };
    assert!(run.with(3, 1, |step| replied(step, &number(9))).is_ok());
    assert!(run.with(3, 1, |step| replied(step, &number(2))).is_err());
}

/// Fields that are alike, no two of them equal.
fn alike() -> Vec<Field> {
    let float = |value| Field::Float(Float::new(value).unwrap());
    vec![
        "1".into(),
        Field::Bytes("1".into()),
        1.into(),
        float(1.0),
        true.into(),
        0.into(),
        float(-0.0),
        false.into(),
        "".into(),
        Field::Bytes("".into()),
    ]
}

#[test]
fn fields_are_equal_to_those_of_their_type_and_value_only() {
    let mut run = Run::new();
    let fields = alike();
    for field in &fields {
        run.batch(1, &[(1, on(Operation::Out(Entry::new(tuple(std::slice::from_ref(field))))))]);
    }
    for field in &fields {
        let value = Template { fields: vec![Pattern::Value(field.clone())] };
        let kind = Template { fields: vec![Pattern::Kind(field.kind())] };
        let all = |template| on(Operation::RdAll { template, after: 0, limit: 99 });
        run.batch(1, &[(1, all(value)), (1, all(kind))]);
        let found = |step: usize| match run.slots.last().map(|(_, steps)| &steps[step]) {
            Some(Step::Executed(Execution { reply: Some(Ok(reply)), .. })) => {
                match TupleReply::from_bytes(reply.clone()) {
                    Ok(TupleReply::FoundAll { tuples, .. }) => tuples.len(),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((found(1), found(2)), (1, 2), "{field:?}");
    }
    assert!(run.check(&[]).is_ok());
}

#[test]
fn what_goes_in_parts_is_counted_until_it_is_gone() {
    let mut run = Run::new();
    let describe = || on(Operation::Describe);
    let many = |lease_ms: Option<u64>| {
        let entry = |value: i64| Entry { lease_ms, ..Entry::new(tuple(&[value.into()])) };
        on(Operation::OutAll((0..512).map(entry).collect()))
    };
    let all: Vec<_> = (0..9).map(|_| (1, many(Some(50)))).collect();
    run.batch(1, &all);
    run.batch(50, &[(1, describe()), (1, on(Operation::Rdp(any())))]);
    run.batch(1, &[(1, describe())]);
    let all: Vec<_> = (0..9).map(|_| (1, many(None))).collect();
    run.batch(1, &all);
    let refused = [(1, on(Operation::Rdp(any()))), (1, describe()), (1, out(1))];
    run.batch(1, &[&[(1, on(Operation::Delete))], &refused[..]].concat());
    run.batch(1, &[(1, on(Operation::Delete)), (1, describe())]);
    let judged = run.check(&[]).unwrap();
    let left = 9 * 512 - 4096;
    let counts = (judged.leases_ended, judged.leases_left, judged.partly_deleted);
    assert_eq!(counts, (9 * 512, left, 1));
    let deleted = |remaining| TupleReply::Deleted { remaining };
    assert!(run.with(6, 1, |step| replied(step, &deleted(left))).is_ok());
    assert!(run.with(6, 1, |step| replied(step, &deleted(0))).is_err());
}

#[test]
fn who_began_to_wait_later_is_served_later() {
    let mut run = Run::new();
    run.batch(1, &[(1, waits(true)), (2, waits(true))]);
    run.batch(1, &[(1, out(1))]);
    assert!(run.check(&[]).is_ok());
    let other = |step: &mut Step| match step {
        Step::Released(release) => {
            release.session = session(2);
            release.number = 3;
        }
        _ => panic!("{step:?} releases nobody"),
    };
    assert!(run.with(3, 2, other).is_err());
    // Nobody is served.
    let mut slots = run.slots.clone();
    slots[2].1.truncate(2);
    let none = Run { service: TupleSpaces::new(1), slots, time: 0, numbers: 0 };
    assert!(none.check(&[]).is_err());
}

#[test]
fn a_lease_that_ends_early_is_noticed() {
    let mut run = Run::new();
    run.batch(1, &[(1, on(Operation::Out(Entry::new(tuple(&[1.into()])).with_lease(50))))]);
    run.batch(49, &[(1, on(Operation::Rdp(any())))]);
    assert!(run.check(&[]).is_ok());
    assert!(run.with(3, 1, |step| replied(step, &TupleReply::Found(None))).is_err());
    run.batch(1, &[(1, on(Operation::Rdp(any())))]);
    assert!(run.check(&[]).is_ok());
    let Step::Executed(before) = &run.slots[2].1[1] else { panic!("a read") };
    let still = before.reply.clone();
    let stays = run.with(4, 1, |step| match step {
        Step::Executed(execution) => execution.reply = still,
        _ => panic!("a read"),
    });
    assert!(stays.is_err());
}

#[test]
fn clients_are_told_what_came_of_their_commands() {
    let mut run = Run::new();
    run.batch(1, &[(1, out(1)), (1, on(Operation::Rdp(any())))]);
    let inserted = TupleReply::Inserted { number: 1 };
    let first = |seen| told(2, out(1), (0, 1), seen);
    assert!(run.check(&[first(Seen::Ok(inserted.clone()))]).is_ok());
    assert!(run.check(&[first(Seen::Unknown)]).is_ok());
    assert!(run.check(&[first(Seen::Ok(TupleReply::Inserted { number: 2 }))]).is_err());
    assert!(run.check(&[first(Seen::NotSent)]).is_err());
    assert!(run.check(&[first(Seen::RefusedInOrder)]).is_err());
    // One that was called when the other had ended, and stands before it.
    let late = told(1, on(Operation::Create(SpaceOptions::default())), (5, 6), Seen::Unknown);
    assert!(run.check(&[first(Seen::Ok(inserted)), late]).is_err());
}

#[test]
fn a_stale_fast_read_is_noticed() {
    let mut run = Run::new();
    run.batch(1, &[(1, out(1))]);
    let write = told(2, out(1), (0, 1), Seen::Ok(TupleReply::Inserted { number: 1 }));
    let nothing = Seen::Ok(TupleReply::Found(None));
    let read = |at, seen: &Seen<TupleReply>| told(0, on(Operation::Rdp(any())), at, seen.clone());
    assert!(run.check(&[write.clone(), read((0, 1), &nothing)]).is_ok());
    assert!(run.check(&[write.clone(), read((2, 3), &nothing)]).is_err());
    // It ought to have been ordered.
    run.batch(1, &[(1, on(Operation::Inp(any())))]);
    run.batch(1, &[(1, on(Operation::Out(Entry::new(tuple(&[1.into()])).with_lease(50))))]);
    let tuple = tuple(&[1.into()]);
    let found = perdura_tuples::Found { number: 2, expires: Some(Time(54)), tuple };
    let leased = Seen::Ok(TupleReply::Found(Some(found)));
    assert!(run.check(&[write, read((0, 9), &leased)]).is_err());
}

#[test]
fn commands_that_do_not_commute_have_to_conflict() {
    let mut run = Run::new();
    run.batch(1, &[(1, out(1)), (2, on(Operation::Inp(any())))]);
    let slots = || run.slots.iter().map(|(slot, steps)| (*slot, &steps[..]));
    assert!(check(slots(), |_| Footprint::everything(), &[]).is_ok());
    let blind = check(slots(), |_| Footprint::new(), &[]);
    assert_eq!(blind.unwrap_err().rule, FOOTPRINTS);
    let own = |execution: &Execution| TupleSpaces::new(1).footprint(&execution.command);
    assert!(check(slots(), own, &[]).is_ok());
}
