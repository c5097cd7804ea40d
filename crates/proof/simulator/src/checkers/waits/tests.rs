use super::*;
use perdura_protocol::{Digest, Encode, PublicKey};
use perdura_tuples::{Pattern, Template, Tuple};

const SESSION: SessionId = SessionId { client: PublicKey([1; 32]), nonce: 1 };

fn command(number: u64, operation: Operation, reply: Option<TupleReply>) -> Step {
    let command = TupleCommand::On { space: "s".to_owned(), operation };
    Step::Executed(Execution {
        slot: Slot(1),
        batch: Digest::ZERO,
        session: SESSION,
        number,
        command: command.to_bytes(),
        time: perdura_protocol::Time(0),
        ahead_ms: 0,
        state_bytes: 0,
        work: 0,
        cost: None,
        reply: reply.map(|reply| Ok(reply.to_bytes())),
    })
}

fn template() -> Template {
    Template { fields: vec![Pattern::Any] }
}

fn waits(number: u64, wait_ms: u64) -> Step {
    command(number, Operation::In { template: template(), wait_ms }, None)
}

fn found(expires: Option<Time>) -> Option<Found> {
    Some(Found { number: 7, expires, tuple: Tuple::new(&["a".into()]).unwrap() })
}

fn released(number: u64, found: Option<Found>) -> Step {
    let result = Ok(TupleReply::Found(found).to_bytes());
    Step::Released(Release { session: SESSION, number, result, offer: false })
}

/// Slots from 1 on, each of them the steps at a time.
fn run(slots: &[(u64, Vec<Step>)]) -> Check {
    run_where(slots, true)
}

fn run_where(slots: &[(u64, Vec<Step>)], may_forget: bool) -> Check {
    let mut checker = Waits::new(limits::OFFER_MS);
    for (slot, (time, steps)) in (1..).zip(slots) {
        let mut all = vec![Step::Began(Time(*time), 1)];
        all.extend_from_slice(steps);
        checker.executed(0, Slot(slot), all, 0, |_, _| may_forget)?;
    }
    Ok(())
}

#[test]
fn a_wait_ends_once() {
    let (begins, served) = (waits(1, 100), released(1, found(None)));
    assert!(run(&[(10, vec![begins.clone()]), (60, vec![served.clone()])]).is_ok());
    assert!(
        run(&[(10, vec![begins.clone()]), (60, vec![served.clone(), served.clone()])]).is_err()
    );
    assert!(run(&[(10, vec![begins.clone(), begins])]).is_err());
    assert!(run(&[(10, vec![served])]).is_err());
}

#[test]
fn a_wait_ends_in_vain_at_its_deadline_and_not_before_or_later() {
    let (begins, in_vain) = (waits(1, 100), released(1, None));
    assert!(run(&[(10, vec![begins.clone()]), (109, vec![])]).is_ok());
    assert!(run(&[(10, vec![begins.clone()]), (110, vec![in_vain.clone()])]).is_ok());
    assert!(run(&[(10, vec![begins.clone()]), (109, vec![in_vain])]).is_err());
    assert!(run(&[(10, vec![begins.clone()]), (110, vec![])]).is_err());
    assert!(run(&[(10, vec![begins]), (110, vec![released(1, found(None))])]).is_err());
}

#[test]
fn a_wait_is_forgotten_by_its_client_only() {
    let forgotten = Step::Forgotten { session: SESSION, number: 1 };
    let slots: [(u64, Vec<Step>); 1] = [(10, vec![waits(1, 100), forgotten.clone()])];
    assert!(run_where(&slots, true).is_ok());
    assert!(run_where(&slots, false).is_err());
    assert!(run(&[(10, vec![forgotten])]).is_err());
}

#[test]
fn a_wait_ends_when_its_client_goes_on() {
    let forgotten = Step::Forgotten { session: SESSION, number: 1 };
    let next = waits(3, 100);
    let goes_on = |below: u64, steps: &[Step]| {
        let mut checker = Waits::new(limits::OFFER_MS);
        checker.is_of_first_rules(true);
        checker.sent(SESSION, 3, below);
        checker.sent(SESSION, 3, 2);
        let mut all = vec![Step::Began(Time(10), 1), waits(1, 100)];
        all.extend_from_slice(steps);
        checker.executed(0, Slot(1), all, 0, |_, _| true)
    };
    assert!(goes_on(2, &[forgotten.clone(), next.clone()]).is_ok());
    assert!(goes_on(2, std::slice::from_ref(&next)).is_err());
    assert!(goes_on(2, &[next.clone(), forgotten]).is_err());
    // The frame was sent before as well, when its client still asked for the reply.
    assert!(goes_on(1, &[next]).is_ok());
}

#[test]
fn what_a_replica_holds_is_what_waits() {
    let mut checker = Waits::new(limits::OFFER_MS);
    let forgotten = Step::Forgotten { session: SESSION, number: 1 };
    let slots = [(10, vec![waits(1, 100)]), (20, vec![waits(2, 100)]), (30, vec![forgotten])];
    for (slot, (time, steps)) in (1..).zip(slots) {
        let all = [vec![Step::Began(Time(time), 1)], steps].concat();
        checker.executed(0, Slot(slot), all, 0, |_, _| true).unwrap();
    }
    let first = (SESSION, 1, Time(110));
    let second = (SESSION, 2, Time(120));
    let holds = |slot: u64, service: &[(SessionId, u64, Time)], sessions: &[u64]| {
        let sessions = sessions.iter().map(|number| (SESSION, *number));
        let offered = std::iter::empty();
        checker.holds(1, Slot(slot), service.to_vec(), sessions, offered).is_ok()
    };
    assert!(holds(1, &[first], &[1]) && holds(2, &[first, second], &[1, 2]));
    assert!(holds(3, &[second], &[2]));
    // Waiters whose client went on, in the service or in the session.
    assert!(!holds(3, &[first, second], &[2]) && !holds(3, &[second], &[1, 2]));
    assert!(!holds(3, &[second, second], &[2]));
    // Waiters that were lost, or wait until another time.
    assert!(!holds(2, &[first], &[1, 2]) && !holds(2, &[first, second], &[1]));
    assert!(!holds(1, &[(SESSION, 1, Time(111))], &[1]));
    // Nobody knows.
    assert!(holds(4, &[], &[]));
}

#[test]
fn an_ended_lease_is_shown_to_nobody() {
    let shows = |expires| {
        command(1, Operation::Rdp(template()), Some(TupleReply::Found(found(Some(Time(expires))))))
    };
    assert!(run(&[(10, vec![shows(11)])]).is_ok());
    assert_eq!(run(&[(10, vec![shows(10)])]).unwrap_err().rule, LEASES);
    let served = released(1, found(Some(Time(15))));
    assert!(run(&[(10, vec![waits(1, 100)]), (14, vec![served.clone()])]).is_ok());
    assert!(run(&[(10, vec![waits(1, 100)]), (15, vec![served])]).is_err());
}

#[test]
fn every_replica_does_the_same() {
    let mut checker = Waits::new(limits::OFFER_MS);
    let began = Step::Began(Time(10), 1);
    let steps = vec![began.clone(), waits(1, 100)];
    for replica in 0..2 {
        assert!(checker.executed(replica, Slot(1), steps.clone(), 0, |_, _| true).is_ok());
    }
    assert!(checker.executed(2, Slot(1), vec![began], 0, |_, _| true).is_err());
    assert_eq!(checker.due(), Some(Time(110)));
    assert_eq!(checker.deadline(SESSION, 1), Some(Time(110)));
}

#[test]
fn a_timeout_with_deadlines_ends() {
    assert!(late(Time(1), TIMEOUT_US - 1).is_ok());
    assert!(late(Time(1), TIMEOUT_US).is_err());
}

#[test]
fn what_is_offered_is_given_in_time_to_who_says_that_it_has_it() {
    let number = 1;
    let result = Ok(TupleReply::Found(found(None)).to_bytes());
    let offered = Step::Released(Release { session: SESSION, number, result, offer: true });
    let confirmed = Step::Confirmed { session: SESSION, number };
    let taken_back = Step::TakenBack { session: SESSION, number };
    let run = |said: bool, may_forget: bool, later: &[(u64, &[&Step])]| {
        let mut checker = Waits::new(limits::OFFER_MS);
        if said {
            checker.confirms(SESSION, number);
        }
        let begins = [Step::Began(Time(10), 2), waits(number, 100), offered.clone()].to_vec();
        checker.executed(0, Slot(1), begins, 0, |_, _| may_forget).unwrap();
        for (slot, (ms, steps)) in (2..).zip(later) {
            let steps = steps.iter().copied().cloned();
            let all = std::iter::once(Step::Began(Time(*ms), 2)).chain(steps).collect();
            checker.executed(0, Slot(slot), all, 0, |_, _| may_forget)?;
        }
        let offers = checker.offered.keys().copied();
        checker.holds(0, Slot(later.len() as u64 + 1), vec![], std::iter::empty(), offers)
    };
    let until = 10 + limits::OFFER_MS;
    assert!(run(true, false, &[(until - 1, &[&confirmed])]).is_ok());
    assert!(run(true, false, &[(until, &[&confirmed])]).is_err(), "too late");
    assert!(run(false, false, &[(20, &[&confirmed])]).is_err(), "nobody said so");
    assert!(run(true, false, &[(20, &[&confirmed, &confirmed])]).is_err());
    assert!(run(true, false, &[(until, &[&taken_back])]).is_ok());
    assert!(run(true, false, &[(until, &[])]).is_err(), "it is given to the dead");
    assert!(run(true, false, &[(until - 1, &[&taken_back])]).is_err(), "its client is there");
    assert!(run(true, true, &[(until - 1, &[&taken_back])]).is_ok());
    assert!(run(true, true, &[(20, &[&taken_back, &confirmed])]).is_err());
    assert!(run(true, false, &[(20, &[])]).is_ok());
}

#[test]
fn claims_and_leases_wait_and_an_operator_ends_their_waits() {
    let lease = |wait_ms| Operation::Lease { template: template(), lease_ms: 50, wait_ms };
    let entry = perdura_tuples::Entry::new(Tuple::new(&["a".into()]).unwrap());
    let claim = |wait_ms| Operation::Claim { key: 1, entry: entry.clone(), wait_ms };
    let in_vain = |reply: &TupleReply| {
        let result = Ok(reply.to_bytes());
        Step::Released(Release { session: SESSION, number: 1, result, offer: false })
    };
    let ends = |begins: Operation, time: u64, step: Step| {
        run(&[(10, vec![command(1, begins, None)]), (time, vec![step])])
    };
    assert!(ends(lease(100), 110, in_vain(&TupleReply::Leased(None))).is_ok());
    assert!(ends(lease(100), 109, in_vain(&TupleReply::Leased(None))).is_err());
    assert!(ends(claim(100), 110, in_vain(&TupleReply::Found(None))).is_ok());
    assert!(ends(claim(100), 110, in_vain(&TupleReply::Inserted { number: 3 })).is_err());
    // They do not wait for no time.
    assert!(run(&[(10, vec![command(1, lease(0), None)])]).is_err());
    assert!(run(&[(10, vec![command(1, claim(0), None)])]).is_err());

    let mut checker = Waits::new(limits::OFFER_MS);
    let refused = Err("by an operator".to_owned());
    let released =
        Step::Released(Release { session: SESSION, number: 1, result: refused, offer: false });
    let ended = TupleReply::WaitEnded { ended: true };
    let by = command(2, Operation::EndWait { session: SESSION, number: 1 }, Some(ended));
    let steps = vec![Step::Began(Time(10), 2), command(1, claim(100), None), by, released];
    checker.executed(0, Slot(1), steps, 0, |_, _| false).unwrap();
    assert_eq!(checker.reached(), [Mark::WaitEndedByOperator]);
}

#[test]
fn a_lease_is_shown_by_agreed_time() {
    let shown = |ahead_ms| {
        let reply = TupleReply::Found(found(Some(Time(5_010))));
        match command(1, Operation::Rdp(template()), Some(reply)) {
            Step::Executed(execution) => Step::Executed(Execution { ahead_ms, ..execution }),
            other => other,
        }
    };
    assert!(run(&[(10, vec![shown(4_999)])]).is_ok());
    assert!(run(&[(10, vec![shown(5_000)])]).is_err());
}
