use super::*;
use perdura_protocol::{Digest, Encode, Slot};
use perdura_tuples::{Entry, Found, Pattern};

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
    assert_eq!(judged(&later), Ok(Locks { taken: 2, taken_over: 1 }));
    assert!(judged(&[at(10), first.clone(), at(109), second.clone()]).is_err());
    let given_up = [at(10), first.clone(), gives_up(FIRST, 3), second.clone()];
    assert_eq!(judged(&given_up), Ok(Locks { taken: 2, taken_over: 0 }));
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
