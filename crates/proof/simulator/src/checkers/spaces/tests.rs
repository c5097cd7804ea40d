use super::*;
use perdura_execution::{Alone as _, ExecutionContext, Progress, Service};
use perdura_protocol::{ClusterId, Digest, Encode, PublicKey, Time};
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
    version: u16,
    time: u64,
    // By how much agreed time is ahead of it.
    ahead_ms: u64,
    numbers: u64,
}

impl Run {
    fn new() -> Run {
        Run::under(1)
    }

    /// Under a version of the service.
    fn under(version: u16) -> Run {
        let mut service = TupleSpaces::new(1 << 24);
        service.set_version(version);
        let slots = Vec::new();
        let mut run = Run { service, slots, version, time: 0, ahead_ms: 0, numbers: 0 };
        run.batch(1, &[(1, on(Operation::Create(SpaceOptions::default())))]);
        run
    }

    /// Of these slots alone.
    fn of(slots: Vec<(Slot, Vec<Step>)>) -> Run {
        let service = TupleSpaces::new(1);
        Run { service, slots, version: 1, time: 0, ahead_ms: 0, numbers: 0 }
    }

    /// So much later a client confirms what the command of this number is offered.
    fn confirm(&mut self, later_ms: u64, client: u8, number: u64) {
        self.batch(later_ms, &[]);
        let (session, mut released) = (session(client), Vec::new());
        self.service.waiting().unwrap().confirm(Time(self.time), session, number, &mut released);
        self.steps().push(Step::Confirmed { session, number });
        self.steps().extend(released.into_iter().map(Step::Released));
    }

    /// It is taken back.
    fn take_back(&mut self, later_ms: u64, client: u8, number: u64) {
        self.batch(later_ms, &[]);
        let (session, mut released) = (session(client), Vec::new());
        self.service.waiting().unwrap().take_back(Time(self.time), session, number, &mut released);
        self.steps().push(Step::TakenBack { session, number });
        self.steps().extend(released.into_iter().map(Step::Released));
    }

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.slots.last_mut().unwrap().1
    }

    /// What the last command gave, or released.
    fn last(&self) -> TupleReply {
        let reply = match self.slots.last().unwrap().1.last().unwrap() {
            Step::Executed(Execution { reply: Some(Ok(reply)), .. }) => reply.clone(),
            Step::Released(Release { result: Ok(reply), .. }) => reply.clone(),
            other => panic!("{other:?}"),
        };
        TupleReply::from_bytes(reply).unwrap()
    }

    /// A batch of commands of clients, so much later.
    fn batch(&mut self, later_ms: u64, commands: &[(u8, TupleCommand)]) {
        self.time += later_ms;
        let (slot, mut released) = (Slot(self.slots.len() as u64 + 1), Vec::new());
        let mut steps = vec![Step::Began(Time(self.time), self.version)];
        self.service.on_time(Time(self.time), &mut released);
        steps.extend(released.drain(..).map(Step::Released));
        for (client, command) in commands {
            self.numbers += 1;
            let (clock, number, batch) = (Time(self.time), self.numbers, Digest::ZERO);
            let (session, cluster) = (session(*client), ClusterId([0; 16]));
            let time = Time(self.time + self.ahead_ms);
            let (administrator, other) = (PublicKey([200; 32]), None);
            let context = ExecutionContext {
                slot,
                time,
                clock,
                session,
                number,
                cluster,
                batch,
                administrator,
                other,
                meter: Default::default(),
            };
            let command = command.to_bytes();
            let reply = match self.service.order_or_wait(&context, &command, &mut released) {
                Ok(Progress::Done(reply)) => Some(Ok(reply)),
                Ok(Progress::Waits) => None,
                Err(words) => Some(Err(words)),
            };
            let ahead_ms = self.ahead_ms;
            let (state_bytes, work, cost) = (0, 0, None);
            let execution = Execution {
                slot,
                batch,
                session,
                number,
                command,
                time: perdura_protocol::Time(0),
                ahead_ms,
                state_bytes,
                work,
                cost,
                reply,
            };
            steps.push(Step::Executed(execution));
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
        Run::of(slots).check(&[])
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
    let later = Run::of(slots);
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
    // Both read, and the one who came later is told first.
    let mut readers = Run::new();
    readers.batch(1, &[(1, waits(false)), (2, waits(false))]);
    readers.batch(1, &[(1, out(1))]);
    assert!(readers.check(&[]).is_ok());
    assert!(last_with(&readers, |steps| steps.swap(2, 3)).is_err());
    // Nobody is served.
    let mut slots = run.slots.clone();
    slots[2].1.truncate(2);
    let none = Run::of(slots);
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
    let own = |execution: &Execution| TupleSpaces::new(1).interface().footprint(&execution.command);
    assert!(check(slots(), own, &[]).is_ok());
}

fn claim(value: i64, wait_ms: u64) -> TupleCommand {
    let entry = Entry::new(tuple(&["key".into(), value.into()])).with_lease(50);
    on(Operation::Claim { key: 1, entry, wait_ms })
}

fn lease(wait_ms: u64) -> TupleCommand {
    on(Operation::Lease { template: any(), lease_ms: 50, wait_ms })
}

fn of_key() -> TupleCommand {
    on(Operation::RdAll {
        template: Template { fields: vec![Pattern::Any; 2] },
        after: 0,
        limit: 9,
    })
}

#[test]
fn what_the_service_does_under_version_2_is_what_the_model_says() {
    let mut run = Run::under(2);
    let add = |amount| on(Operation::Add { fields: tuple(&["n".into()]), amount });
    run.batch(1, &[(1, add(1)), (2, add(2)), (2, add(i64::MAX)), (1, of_key())]);
    // Commands 6 to 9: the second one reads.
    run.batch(1, &[(1, waits(true)), (2, waits(false)), (3, waits(true)), (4, lease(90))]);
    let list = on(Operation::Waits { after: 1, limit: 2 });
    run.batch(1, &[(1, list.clone()), (5, out(1)), (5, on(Operation::Rdp(any())))]);
    run.take_back(1, 1, 6);
    run.confirm(1, 3, 8);
    run.batch(1, &[(5, out(2)), (5, on(Operation::Inp(any()))), (5, list)]);
    run.confirm(1, 4, 9);
    run.batch(1, &[(4, on(Operation::Extend { number: 4, token: 1, lease_ms: 80 }))]);
    run.batch(79, &[(2, lease(90))]);
    run.batch(1, &[(2, lease(0)), (4, on(Operation::Finish { number: 4, token: 1 }))]);
    run.confirm(1, 2, 17);
    let again = on(Operation::Return { number: 4, token: 2 });
    run.batch(1, &[(2, again.clone()), (2, again), (1, on(Operation::Break { number: 4 }))]);
    run.batch(1, &[(1, claim(1, 0)), (2, claim(2, 90)), (3, claim(3, 90)), (4, claim(4, 90))]);
    run.batch(1, &[(1, on(Operation::EndWait { session: session(3), number: 25 }))]);
    run.batch(48, &[]);
    run.batch(1, &[(1, of_key())]);
    run.take_back(1, 2, 24);
    run.confirm(1, 4, 26);
    run.batch(1, &[(1, claim(5, 90)), (1, on(Operation::Break { number: 7 }))]);
    run.batch(1, &[(1, on(Operation::Delete)), (1, on(Operation::Describe))]);
    run.take_back(1, 1, 29);
    run.batch(
        1,
        &[(1, on(Operation::Delete)), (1, on(Operation::Create(SpaceOptions::default())))],
    );
    run.batch(1, &[(1, claim(1, 0))]);
    let judged = run.check(&[]).unwrap();
    let served = (judged.claims_served, judged.claims_by_ended, judged.jobs_returned);
    assert_eq!((served, judged.finished_too_late), ((1, 1, 1), 1));
    assert_eq!(run.last(), TupleReply::Inserted { number: 9 });
}

/// The steps of the last slot changed.
fn last_with(run: &Run, change: impl FnOnce(&mut Vec<Step>)) -> Result<Judged, Broken> {
    let mut slots = run.slots.clone();
    change(&mut slots.last_mut().unwrap().1);
    Run::of(slots).check(&[])
}

#[test]
fn what_is_taken_back_is_the_next_ones_as_it_was() {
    let mut run = Run::under(2);
    run.batch(1, &[(1, waits(true)), (2, waits(true)), (3, waits(true))]);
    run.batch(1, &[(5, out(1)), (5, out(2))]);
    run.take_back(1, 1, 2);
    assert!(run.check(&[]).is_ok());
    let found = |number| {
        let tuple = tuple(&[1.into()]);
        TupleReply::Found(Some(perdura_tuples::Found { number, expires: None, tuple }))
    };
    let last = |steps: &mut Vec<Step>, number| replied(steps.last_mut().unwrap(), &found(number));
    assert!(last_with(&run, |steps| last(steps, 1)).is_ok());
    assert!(last_with(&run, |steps| last(steps, 3)).is_err(), "it has another number");
    assert!(last_with(&run, |steps| drop(steps.pop())).is_err(), "it is nobody's");
    let again = last_with(&run, |steps| {
        let session = session(1);
        steps.push(Step::Confirmed { session, number: 2 });
    });
    assert!(again.is_err(), "it is given to the one from whom it was taken back");
}

#[test]
fn a_claim_that_came_later_gets_through_later() {
    let mut run = Run::under(2);
    run.batch(1, &[(1, claim(1, 0)), (2, claim(2, 90)), (3, claim(3, 90))]);
    run.batch(1, &[(1, on(Operation::Renew { number: 1, lease_ms: Some(0) }))]);
    assert!(run.check(&[]).is_ok());
    let other = last_with(&run, |steps| match steps.last_mut() {
        Some(Step::Released(release)) => (release.session, release.number) = (session(3), 4),
        other => panic!("{other:?} releases nobody"),
    });
    assert!(other.is_err());
    assert!(last_with(&run, |steps| drop(steps.pop())).is_err(), "the key is free, and they wait");
    // Who comes now does not overtake either.
    run.take_back(1, 2, 3);
    run.batch(1, &[(4, claim(4, 0))]);
    assert!(run.check(&[]).is_ok());
    let overtakes = |steps: &mut Vec<Step>| {
        replied(steps.last_mut().unwrap(), &TupleReply::Inserted { number: 4 });
    };
    assert!(last_with(&run, overtakes).is_err());
}

#[test]
fn a_claims_lease_begins_when_it_is_confirmed() {
    let mut run = Run::under(2);
    run.batch(1, &[(1, claim(1, 0)), (2, claim(2, 90))]);
    run.batch(50, &[]);
    run.confirm(40, 2, 3);
    run.batch(49, &[(3, of_key())]);
    assert!(run.check(&[]).is_ok());
    let TupleReply::FoundAll { tuples, .. } = run.last() else { panic!("a list") };
    assert_eq!(tuples[0].expires, Some(Time(run.time + 1)));
    let nothing = TupleReply::FoundAll { tuples: Vec::new(), more: false };
    let ended = |steps: &mut Vec<Step>| replied(steps.last_mut().unwrap(), &nothing);
    assert!(last_with(&run, ended).is_err());
}

#[test]
fn a_job_comes_back_when_its_lease_ends_and_its_holder_has_it_no_longer() {
    let mut run = Run::under(2);
    run.batch(1, &[(1, out(1)), (1, lease(0)), (2, lease(90))]);
    run.batch(50, &[(1, on(Operation::Finish { number: 1, token: 1 }))]);
    let judged = run.check(&[]).unwrap();
    assert_eq!((judged.jobs_returned, judged.finished_too_late), (1, 1));
    let held = TupleReply::Holding { held: true, until: None };
    assert!(last_with(&run, |steps| replied(steps.last_mut().unwrap(), &held)).is_err());
    assert!(last_with(&run, |steps| drop(steps.remove(1))).is_err(), "the next one gets nothing");
    run.confirm(1, 2, 4);
    run.batch(1, &[(2, on(Operation::Return { number: 1, token: 2 })), (3, lease(0))]);
    assert!(run.check(&[]).is_ok());
    let TupleReply::Leased(Some(leased)) = run.last() else { panic!("a job") };
    assert_eq!((leased.token, leased.before), (3, 2));
    let leased = TupleReply::Leased(Some(perdura_tuples::Leased { token: 2, ..leased }));
    assert!(last_with(&run, |steps| replied(steps.last_mut().unwrap(), &leased)).is_err());
}

#[test]
fn clients_are_shown_agreed_time_while_the_clock_stood_still() {
    let mut run = Run::new();
    let leased = Entry::new(tuple(&[9.into()])).with_lease(50);
    run.batch(1, &[(1, on(Operation::Out(leased)))]);
    run.ahead_ms = 5_000;
    run.batch(1, &[(1, on(Operation::Rdp(any())))]);
    assert!(run.check(&[]).is_ok());
    let TupleReply::Found(Some(found)) = run.last() else { panic!("a tuple") };
    assert_eq!(found.expires, Some(Time(5_052)));
    let expires = Some(Time(52));
    let by_clock = TupleReply::Found(Some(perdura_tuples::Found { expires, ..found }));
    assert!(last_with(&run, |steps| replied(steps.last_mut().unwrap(), &by_clock)).is_err());
}
