use super::*;
use perdura_protocol::{Digest, Encode, Slot};
use perdura_tuples::{Entry, Found, Pattern, Template};

const FIRST: PublicKey = PublicKey([1; 32]);
const SECOND: PublicKey = PublicKey([2; 32]);

fn tuple() -> Tuple {
    Tuple::new(&[LOCK.into(), "l".into(), "owner".into(), "".into()]).unwrap()
}

fn template() -> Template {
    let value = |text: &str| Pattern::Value(text.into());
    Template { fields: vec![value(LOCK), value("l"), Pattern::Any, Pattern::Any] }
}

fn executed(client: PublicKey, operation: Operation, reply: &TupleReply) -> Step {
    let command = TupleCommand::On { space: "s".to_owned(), operation };
    Step::Executed(Execution {
        slot: Slot(1),
        batch: Digest::ZERO,
        session: SessionId { client, nonce: 1 },
        number: 1,
        command: command.to_bytes(),
        time: perdura_protocol::Time(0),
        ahead_ms: 0,
        state_bytes: 0,
        work: 0,
        cost: None,
        reply: Some(Ok(reply.to_bytes())),
    })
}

/// A lock is taken for 100 ms.
fn takes(client: PublicKey, token: u64) -> Step {
    let entry = Entry::new(tuple()).with_lease(100);
    let operation = Operation::Cas { template: template(), entry };
    executed(client, operation, &TupleReply::Inserted { number: token })
}

fn renews(client: PublicKey, token: u64, expires: u64) -> Step {
    let operation = Operation::Renew { number: token, lease_ms: Some(100) };
    let expires = Some(Time(expires));
    executed(client, operation, &TupleReply::Renewed { renewed: true, expires })
}

fn gives_up(client: PublicKey, token: u64) -> Step {
    let note = Entry::new(Tuple::new(&["note".into()]).unwrap());
    let operation = Operation::Replace { template: template(), entry: note };
    let old = Found { number: token, expires: None, tuple: tuple() };
    executed(client, operation, &TupleReply::Replaced { old, number: token + 1 })
}

fn session(client: PublicKey) -> SessionId {
    SessionId { client, nonce: 1 }
}

/// A claim of the lock for 100 ms waits.
fn waits(client: PublicKey) -> Step {
    let entry = Entry::new(tuple()).with_lease(100);
    let operation = Operation::Claim { key: 2, entry, wait_ms: 500 };
    match executed(client, operation, &TupleReply::Created) {
        Step::Executed(execution) => Step::Executed(Execution { reply: None, ..execution }),
        other => other,
    }
}

fn offered(client: PublicKey, token: u64) -> Step {
    let result = Ok(TupleReply::Inserted { number: token }.to_bytes());
    Step::Released(Release { session: session(client), number: 1, result, offer: true })
}

fn confirmed(client: PublicKey) -> Step {
    Step::Confirmed { session: session(client), number: 1 }
}

fn taken_back(client: PublicKey) -> Step {
    Step::TakenBack { session: session(client), number: 1 }
}

fn breaks(client: PublicKey, token: u64) -> Step {
    let reply = TupleReply::Broken(tuples::Broken::Removed);
    executed(client, Operation::Break { number: token }, &reply)
}

fn judged(steps: &[Step]) -> Result<Locks, Broken> {
    Fencing::default().judge(steps.iter())
}

fn at(ms: u64) -> Step {
    Step::Began(Time(ms), 1)
}

#[test]
fn a_lease_is_broken_by_nobody() {
    let (first, second) = (takes(FIRST, 3), takes(SECOND, 5));
    let later = [at(10), first.clone(), at(110), second.clone()];
    assert_eq!(judged(&later), Ok(Locks { taken: 2, taken_over: 1, broken: 0 }));
    assert!(judged(&[at(10), first.clone(), at(109), second.clone()]).is_err());
    let given_up = [at(10), first.clone(), gives_up(FIRST, 3), second.clone()];
    assert_eq!(judged(&given_up), Ok(Locks { taken: 2, taken_over: 0, broken: 0 }));
    let renewed =
        |time| [at(10), first.clone(), at(50), renews(FIRST, 3, 150), at(time), second.clone()];
    assert!(judged(&renewed(149)).is_err());
    assert!(judged(&renewed(150)).is_ok());
}

#[test]
fn tokens_ascend() {
    let taken_with = |token| judged(&[at(10), takes(FIRST, 3), at(110), takes(SECOND, token)]);
    assert!(taken_with(4).is_ok());
    assert!(taken_with(3).is_err());
    assert!(taken_with(2).is_err());
}

#[test]
fn tokens_ascend_for_those_who_are_told_of_them() {
    let mut fencing = Fencing::default();
    assert!(fencing.taken("l", FIRST, 5, (10, 20)).is_ok());
    assert!(fencing.clone().taken("l", SECOND, 5, (30, 40)).is_err());
    assert!(fencing.clone().taken("l", SECOND, 4, (30, 40)).is_err());
    assert!(fencing.clone().taken("other", SECOND, 4, (30, 40)).is_ok());
    // At the same time, and so before or after it.
    assert!(fencing.clone().taken("l", SECOND, 4, (15, 40)).is_ok());
    assert!(fencing.clone().taken("l", SECOND, 6, (5, 9)).is_err());
    assert!(fencing.taken("l", SECOND, 6, (30, 40)).is_ok());
}

#[test]
fn a_stale_owner_is_refused_and_the_newest_is_not() {
    let mut fencing = Fencing::default();
    fencing.taken("l", FIRST, 3, (10, 20)).unwrap();
    assert!(fencing.writes("l", 3));
    fencing.taken("l", SECOND, 5, (110, 120)).unwrap();
    assert!(fencing.writes("l", 3) && fencing.writes("l", 5) && !fencing.writes("l", 3));
    assert!(fencing.writes("other", 3));
}

#[test]
fn who_is_told_of_a_lock_was_given_it() {
    let mut fencing = Fencing::default();
    fencing.taken("l", FIRST, 3, (10, 20)).unwrap();
    fencing.taken("l", SECOND, 5, (110, 120)).unwrap();
    let order = [at(10), takes(FIRST, 3), at(110), takes(SECOND, 5)];
    assert!(fencing.judge(order.iter()).is_ok());
    // The group gave it the other way round, to somebody else, or to nobody.
    let turned = [at(10), takes(SECOND, 5), at(110), takes(FIRST, 3)];
    assert!(fencing.judge(turned.iter()).is_err());
    let anothers = [at(10), takes(FIRST, 3), at(110), takes(FIRST, 5)];
    assert!(fencing.judge(anothers.iter()).is_err());
    assert!(fencing.judge(order[..2].iter()).is_err());
}

#[test]
fn only_who_has_a_lock_renews_it_or_gives_it_up() {
    let first = takes(FIRST, 3);
    let then = |time: u64, step: Step| judged(&[at(10), first.clone(), at(time), step]);
    assert!(then(109, renews(FIRST, 3, 209)).is_ok() && then(109, gives_up(FIRST, 3)).is_ok());
    // Its lease has ended.
    assert!(then(110, renews(FIRST, 3, 210)).is_err() && then(110, gives_up(FIRST, 3)).is_err());
    // It is another one's.
    assert!(then(50, renews(SECOND, 3, 150)).is_err() && then(50, gives_up(SECOND, 3)).is_err());
    // It was given up, or nobody took it.
    let given_up = |step| judged(&[at(10), first.clone(), gives_up(FIRST, 3), step]);
    assert!(given_up(renews(FIRST, 3, 110)).is_err() && given_up(gives_up(FIRST, 3)).is_err());
    assert!(then(50, gives_up(FIRST, 4)).is_err());
}

#[test]
fn a_lock_that_was_waited_for_is_had_from_the_confirmation_on() {
    let (first, second) = (takes(FIRST, 3), waits(SECOND));
    let begin = [at(10), first, second, at(110), offered(SECOND, 5)];
    let then = |steps: &[Step]| judged(&[&begin[..], steps].concat());
    assert_eq!(then(&[]).map(|locks| locks.taken), Ok(1));
    assert!(then(&[at(150), renews(SECOND, 5, 250)]).is_err(), "it is not confirmed");
    assert!(then(&[at(300), takes(FIRST, 7)]).is_err(), "it is offered to another one");
    let confirm = [at(150), confirmed(SECOND)];
    assert_eq!(then(&confirm).map(|locks| locks.taken), Ok(2));
    let later = |step: &Step| then(&[&confirm[..], &[at(249), step.clone()]].concat());
    assert!(later(&renews(SECOND, 5, 349)).is_ok());
    assert!(later(&takes(FIRST, 7)).is_err(), "its lease began when it was confirmed");
    let ended = [&confirm[..], &[at(250), takes(FIRST, 7)]].concat();
    assert!(then(&ended).is_ok());
    let back = [at(150), taken_back(SECOND), takes(FIRST, 7)];
    assert!(then(&back).is_ok());
    // Offered while somebody has it, and with a smaller token.
    let early = [at(10), takes(FIRST, 3), waits(SECOND), at(109), offered(SECOND, 5)];
    assert!(judged(&early).is_err());
    let small = [at(10), takes(FIRST, 3), waits(SECOND), at(110), offered(SECOND, 2)];
    assert!(judged(&small).is_err());
}

#[test]
fn who_never_confirmed_a_lock_never_had_it() {
    let mut fencing = Fencing::default();
    fencing.taken("l", SECOND, 5, (110, 120)).unwrap();
    let begin = [at(10), waits(SECOND), offered(SECOND, 5)];
    let then = |step: Step| fencing.judge([&begin[..], &[step]].concat().iter());
    assert!(then(confirmed(SECOND)).is_ok());
    assert!(then(taken_back(SECOND)).is_err());
}

#[test]
fn a_broken_lock_is_nobodys() {
    let first = [at(10), takes(FIRST, 3), at(20), breaks(SECOND, 3)];
    let then = |steps: &[Step]| judged(&[&first[..], steps].concat());
    assert_eq!(then(&[takes(SECOND, 5)]), Ok(Locks { taken: 2, taken_over: 0, broken: 1 }));
    assert!(then(&[renews(FIRST, 3, 120)]).is_err() && then(&[gives_up(FIRST, 3)]).is_err());
    assert!(then(&[breaks(SECOND, 3)]).is_err());
}
