//! Commands that wait: their numbers execute once, their replies come later, to retries as well.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, Progress, Release, RestoreError, Service, Snapshot, Waiting,
};
use perdura_protocol::{
    AdminCommand, Batch, Command, Encode, Frame, Outcome, RefusalReason, SessionId, Time, limits,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who waits at a bell until it is rung, or until a time: "wait TIME", "ring", "count".
#[derive(Default)]
pub struct Bell {
    waits: BTreeMap<(SessionId, u64), u64>,
}

struct Text(Bytes);

impl Snapshot for Text {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, _: usize) -> Bytes {
        self.0.clone()
    }
}

impl Bell {
    fn release(&mut self, which: impl Fn(u64) -> bool, text: &str, released: &mut Vec<Release>) {
        for ((session, number), time) in &self.waits {
            if which(*time) {
                let result = Ok(Bytes::copy_from_slice(text.as_bytes()));
                released.push(Release { session: *session, number: *number, result, offer: false });
            }
        }
        self.waits.retain(|_, time| !which(*time));
    }
}

impl Service for Bell {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        unreachable!("a machine asks for those that may wait")
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn on_time(&mut self, time: Time, released: &mut Vec<Release>) {
        self.release(|end| end <= time.0, "late", released);
    }

    fn due(&self) -> Option<Time> {
        self.waits.values().min().map(|time| Time(*time))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Text(self.waits.len().to_string().into()))
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl Waiting for Bell {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
        let command = std::str::from_utf8(command).unwrap();
        let text = |text: String| Ok(Progress::Done(text.into()));
        match command.split_once(' ') {
            Some(("wait", time)) => {
                let waiter = (context.session, context.number);
                let before = self.waits.insert(waiter, time.parse().unwrap());
                assert_eq!(before, None, "a command executed twice");
                Ok(Progress::Waits)
            }
            _ if command == "ring" => {
                self.release(|_| true, "rung", released);
                text("done".into())
            }
            _ if command == "large" => {
                for release in self.waits.keys() {
                    let result = Ok(vec![1; limits::FRAME_BYTES + 1].into());
                    let (session, number) = *release;
                    released.push(Release { session, number, result, offer: false });
                }
                self.waits.clear();
                text("done".into())
            }
            _ if command == "stray" => {
                let session = session(BOB, 77);
                released.push(Release {
                    session,
                    number: 1,
                    result: Ok(Bytes::new()),
                    offer: false,
                });
                let session = context.session;
                released.push(Release {
                    session,
                    number: 500,
                    result: Ok(Bytes::new()),
                    offer: false,
                });
                text("done".into())
            }
            _ => text(self.waits.len().to_string()),
        }
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        assert!(self.waits.remove(&(session, number)).is_some(), "who is forgotten waits");
    }

    fn confirm(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {
        unreachable!("nothing is offered")
    }

    fn take_back(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {
        unreachable!("nothing is offered")
    }
}

/// As it is told by the newest rules.
fn waited(outcome: Outcome) -> Outcome {
    Outcome::Waited { outcome: Box::new(outcome), offer: false }
}

fn rung() -> Outcome {
    waited(reply("rung"))
}

fn late() -> Outcome {
    waited(reply("late"))
}

fn two() -> (Replica<Bell>, SessionId, SessionId) {
    two_of(Replica::around(Bell::default()))
}

fn two_of(mut replica: Replica<Bell>) -> (Replica<Bell>, SessionId, SessionId) {
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    replica.open(alice);
    replica.open(bob);
    (replica, alice, bob)
}

fn replies(replica: &mut Replica<Bell>, batch: &Batch) -> Vec<(SessionId, u64, Outcome)> {
    let replies = replica.execute(batch).replies.into_iter();
    replies.map(|reply| (reply.session, reply.number, reply.outcome)).collect()
}

#[test]
fn a_reply_comes_when_it_is_released() {
    let (mut replica, alice, bob) = two();
    let wait = frame(alice, 0, 1, &[service("wait 900"), service("count")]);
    assert_eq!(replica.order(&wait), [Outcome::Waits, reply("1")]);
    let settled = (replica.0.cached(alice, 1), replica.0.is_settled(alice, 1));
    assert_eq!(settled, (Some(Outcome::Waits), true));
    assert!(replica.0.is_settled(alice, 2) && !replica.0.is_settled(alice, 3));
    assert!(replica.0.is_settled(alice, 0) && !replica.0.is_settled(session(ALICE, 9), 0));
    assert_eq!(replica.0.due(), Some(Time(900)));
    // A retry does not run again.
    assert_eq!(replica.order(&wait), [Outcome::Waits, reply("1")]);
    let ring = Batch::requests(Time(1), vec![frame(bob, 0, 1, &[service("ring")])]);
    let expected = [(bob, 1, reply("done")), (alice, 1, rung())];
    assert_eq!(replies(&mut replica, &ring), expected);
    assert_eq!(replica.0.cached(alice, 1), Some(rung()));
    assert_eq!(replica.order(&wait), [rung(), reply("1")]);
    assert_eq!(replica.0.due(), Some(Time(61_000)), "sessions end then");
}

#[test]
fn a_wait_ends_at_the_start_of_a_batch() {
    let (mut replica, alice, bob) = two();
    replica.order(&frame(alice, 0, 1, &[service("wait 900"), service("wait 901")]));
    let count = frame(bob, 0, 1, &[service("count")]);
    let at_the_end = Batch::requests(Time(900), vec![count]);
    assert_eq!(replies(&mut replica, &at_the_end), [(alice, 1, late()), (bob, 1, reply("1"))]);
    let tick = Batch::tick(Time(1000));
    assert_eq!(replies(&mut replica, &tick), [(alice, 2, late())]);
    assert_eq!(replies(&mut replica, &Batch::null()), []);
}

/// One frame waits and is released by a later command of its own.
#[test]
fn a_frame_may_release_itself() {
    let (mut replica, alice, _) = two();
    let both = frame(alice, 0, 1, &[service("wait 9"), service("ring")]);
    assert_eq!(replica.order(&both), [Outcome::Waits, reply("done"), rung()]);
    assert_eq!(replica.order(&both), [rung(), reply("done")]);
}

#[test]
fn under_the_first_rules_who_goes_on_without_a_reply_is_forgotten() {
    let (mut replica, alice, bob) = two_of(Replica::of_first_rules(Bell::default()));
    replica.order(&frame(alice, 0, 1, &[service("wait 9"), service("wait 9"), service("wait 9")]));
    assert_eq!(replica.order(&frame(alice, 3, 4, &[service("count")])), [reply("1")]);
    assert_eq!(replica.one(bob, 1, &service("ring")), reply("done"));
    assert_eq!(replica.0.cached(alice, 2), Some(Outcome::TooOld));
    assert_eq!(replica.0.cached(alice, 3), Some(reply("rung")));
}

/// Hundreds of commands go by while one waits, and its result is there until it is acknowledged by name.
#[test]
fn a_wait_holds_no_place_of_the_window() {
    let (mut replica, alice, bob) = two();
    replica.one_waits(alice, 1);
    let far = limits::SESSION_WINDOW + 7;
    assert_eq!(replica.order(&frame(alice, far, far, &[service("count")])), [reply("1")]);
    assert_eq!(replica.0.cached(alice, 1), Some(Outcome::Waits));
    assert_eq!(replica.0.cached(alice, 2), Some(Outcome::TooOld));
    assert_eq!(replica.one(bob, 1, &service("ring")), reply("done"));
    assert_eq!(replica.0.cached(alice, 1), Some(rung()));
    let kept = replica.0.snapshot();
    let mut copy = restore(&kept, Bell::default()).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), kept.manifest());
    for replica in [&mut replica, &mut copy] {
        let again = frame(alice, far, 1, &[service("wait 9")]);
        assert_eq!(replica.order(&again), [rung()]);
        assert_eq!(replica.order(&confirmation(alice, far + 1, 1)), [Outcome::Opened]);
        assert_eq!(replica.0.cached(alice, 1), Some(Outcome::TooOld));
        let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
        let twice = [confirmation(alice, far + 2, 1), confirmation(alice, far + 2, 1)];
        assert_eq!(twice.map(|one| replica.order(&one)), [[withdrawn.clone()], [withdrawn]]);
    }
}

/// So a client that acknowledges nothing takes no more than so many places.
#[test]
fn a_session_has_so_many_waits_and_results() {
    let (mut replica, alice, bob) = two();
    let most = limits::SESSION_WAITS as u64;
    for first in (1..=most).step_by(512) {
        let waits = frame(alice, first, first, &vec![service("wait 999"); 512]);
        assert_eq!(replica.order(&waits), vec![Outcome::Waits; 512]);
    }
    let one_more = frame(alice, most + 1, most + 1, &[service("wait 999")]);
    let refused = replica.order(&one_more);
    assert!(
        matches!(&refused[..], [Outcome::Refused(RefusalReason::Service(text))] if text.contains("1024")),
        "{refused:?}"
    );
    assert_eq!(replica.one(bob, 1, &service("count")), reply("1024"), "it left no trace");
    replica.one(bob, 2, &service("ring"));
    assert_eq!(replica.order(&one_more), refused, "as it was");
    let number = most + 2;
    assert_eq!(replica.order(&frame(alice, number, number, &[service("wait 9")])), refused);
    replica.order(&confirmation(alice, number + 1, 7));
    replica.one_waits_from(alice, number + 2);
    let mut bell = Bell::default();
    bell.waits.insert((alice, number + 2), 999);
    let copy = restore(&replica.0.snapshot(), bell).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
}

/// Who waits is not idle: its session is the last to make room for another of its client.
#[test]
fn sessions_that_wait_are_evicted_last() {
    let (mut replica, alice, bob) = two_of(Replica::of_first_rules(Bell::default()));
    let cap = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    replica.one_waits(alice, 1);
    for nonce in 6..=6 + cap {
        assert_eq!(replica.open(session(ALICE, nonce)), Outcome::Opened);
    }
    assert!(replica.0.is_settled(alice, 1), "it is the idlest, and waits");
    assert_eq!(replica.0.cached(session(ALICE, 7), 0), None);
    assert_eq!(replica.0.cached(session(ALICE, 8), 0), Some(Outcome::Opened));
    // Once it waits no longer, it is as idle as its last reply is old.
    replica.one(bob, 1, &service("ring"));
    for nonce in 100..100 + cap - 1 {
        assert_eq!(replica.open(session(ALICE, nonce)), Outcome::Opened);
    }
    assert_eq!(replica.0.cached(alice, 1), Some(reply("rung")));
    replica.open(session(ALICE, 200));
    assert_eq!(replica.0.cached(alice, 1), None);
}

#[test]
fn sessions_that_end_are_forgotten() {
    let (mut replica, alice, bob) = two_of(Replica::of_first_rules(Bell::default()));
    let administrator = session(ADMINISTRATOR, 1);
    replica.open(administrator);
    replica.one_waits(bob, 1);
    replica.one_waits(alice, 1);
    // Evicted by others of its client, which wait as well, and then revoked.
    let others = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    for nonce in 6..6 + others {
        assert_eq!(replica.open(session(ALICE, nonce)), Outcome::Opened);
        replica.one_waits(session(ALICE, nonce), 1);
    }
    assert_eq!(replica.0.cached(alice, 0), None);
    let left = others + 1;
    assert_eq!(replica.one(administrator, 1, &service("count")), reply(&left.to_string()));
    let revoke = admin(AdminCommand::RevokeClient { name: "bob".into() });
    replica.one(administrator, 2, &revoke);
    assert_eq!(replica.one(administrator, 3, &service("count")), reply(&others.to_string()));
}

#[test]
fn what_waits_is_forgotten_with_a_session_that_is_closed() {
    let (mut replica, alice, bob) = two();
    replica.one_waits(alice, 1);
    let close = frame(alice, 0, 2, &[Command::Close.to_bytes()]);
    assert_eq!(replica.order(&close), [Outcome::NoSession]);
    assert_eq!(replica.one(bob, 1, &service("count")), reply("0"));
}

impl Replica<Bell> {
    fn one_waits(&mut self, session: SessionId, number: u64) {
        let outcomes = self.order(&frame(session, 0, number, &[service("wait 999")]));
        let timed = self.0.versions().rules > 0;
        assert_eq!(outcomes, if timed { vec![Outcome::Waits] } else { vec![] });
    }
}

impl Replica<Bell> {
    /// One that acknowledges all before it.
    fn one_waits_from(&mut self, session: SessionId, number: u64) {
        let wait = frame(session, number, number, &[service("wait 999")]);
        assert_eq!(self.order(&wait), [Outcome::Waits]);
    }
}

fn confirmation(of: SessionId, number: u64, confirmed: u64) -> Frame {
    frame(of, 0, number, &[Command::Confirm { number: confirmed }.to_bytes()])
}

fn withdrawal(of: SessionId, number: u64, withdrawn: u64) -> Frame {
    frame(of, 0, number, &[Command::Withdraw { number: withdrawn }.to_bytes()])
}

#[test]
fn what_is_withdrawn_waits_no_longer_and_never_executes() {
    let (mut replica, alice, bob) = two();
    let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
    replica.one_waits(alice, 1);
    replica.one_waits(alice, 2);
    assert_eq!(replica.order(&withdrawal(alice, 3, 2)), [withdrawn.clone(), Outcome::Opened]);
    assert_eq!(replica.one(bob, 1, &service("count")), reply("1"));
    // Again, and its own command again.
    assert_eq!(replica.order(&withdrawal(alice, 3, 2)), [Outcome::Opened]);
    assert_eq!(replica.one(alice, 2, &service("wait 999")), withdrawn);
    // One that has not come yet never does anything; one that has is answered as it was.
    assert_eq!(replica.order(&withdrawal(alice, 4, 9)).len(), 2);
    assert_eq!(replica.one(alice, 9, &service("ring")), withdrawn);
    assert_eq!(replica.one(bob, 2, &service("ring")), reply("done"));
    assert_eq!(replica.order(&withdrawal(alice, 5, 1)), [Outcome::Opened]);
    assert_eq!(replica.0.cached(alice, 1), Some(rung()));
    // What is no number of the window, and itself, is nothing to withdraw.
    assert_eq!(replica.order(&withdrawal(alice, 6, 1 << 40)), [Outcome::Opened]);
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    assert_eq!(replica.order(&withdrawal(alice, 7, 7)), std::slice::from_ref(&malformed));
    let mut first = two_of(Replica::of_first_rules(Bell::default())).0;
    assert_eq!(first.order(&withdrawal(alice, 3, 2)), [malformed]);
    let bell = Bell::default();
    assert_eq!(restore(&replica.0.snapshot(), bell).unwrap().0.due(), replica.0.due());
}

/// It was served by a command before it in the same frame, and is told so: it did get what it waited for.
#[test]
fn what_is_withdrawn_just_after_it_was_served_was_served() {
    let (mut replica, alice, _) = two();
    replica.one_waits(alice, 1);
    let withdraw = Command::Withdraw { number: 1 }.to_bytes();
    let both = frame(alice, 0, 2, &[service("ring"), withdraw.clone(), withdraw]);
    let expected = [reply("done"), rung(), Outcome::Opened, Outcome::Opened];
    assert_eq!(replica.order(&both), expected);
    assert_eq!(replica.0.cached(alice, 1), Some(rung()));
}

/// Nor does it have what is known told again and again: replies may be large.
#[test]
fn a_withdrawal_of_what_is_settled_tells_nothing() {
    let (mut replica, alice, _) = two();
    replica.one(alice, 1, &service("count"));
    let withdraw = Command::Withdraw { number: 1 }.to_bytes();
    let many = frame(alice, 1, 2, &vec![withdraw; 500]);
    assert_eq!(replica.order(&many), vec![Outcome::Opened; 500]);
}

#[test]
fn what_waits_for_a_client_that_is_gone_is_withdrawn_before_its_session_ends() {
    let (mut replica, alice, bob) = two();
    let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
    replica.order(&frame(alice, 0, 1, &[service("wait 99000"), service("wait 99000")]));
    replica.order(&frame(bob, 0, 1, &[service("wait 99000")]));
    assert_eq!(replica.0.due(), Some(Time(11_000)));
    let renewal = frame(bob, 0, limits::FIRST_RENEWAL, &[Command::Renew.to_bytes()]);
    replica.execute(&Batch::requests(Time(9_000), vec![renewal]));
    let gone = replies(&mut replica, &Batch::tick(Time(11_000)));
    assert_eq!(gone, [(alice, 1, withdrawn.clone()), (alice, 2, withdrawn.clone())]);
    assert_eq!(replica.0.waiting().collect::<Vec<_>>(), [(bob, 1)]);
    let mut bell = Bell::default();
    bell.waits.insert((bob, 1), 99_000);
    let mut copy = restore(&replica.0.snapshot(), bell).unwrap();
    for replica in [&mut replica, &mut copy] {
        assert_eq!(replica.0.due(), Some(Time(19_000)));
        // The group stands still: nobody could renew anything.
        assert_eq!(replies(replica, &Batch::tick(Time(50_000))), []);
        assert_eq!(replica.0.due(), Some(Time(52_000)));
        let gone = replies(replica, &Batch::tick(Time(52_000)));
        assert_eq!(gone, [(bob, 1, withdrawn.clone())]);
        // Who comes back is told, and goes on.
        let retry = frame(alice, 0, 2, &[service("wait 99000"), service("count")]);
        let batch = Batch::requests(Time(52_001), vec![retry]);
        let told = replies(replica, &batch);
        assert_eq!(told, [(alice, 2, withdrawn.clone()), (alice, 3, reply("0"))]);
    }
}

#[test]
fn marks_are_in_the_snapshot() {
    let (mut replica, alice, bob) = two();
    let before = replica.0.snapshot().manifest().digest();
    replica.one_waits(alice, 3);
    let waiting = replica.0.snapshot();
    assert_ne!(waiting.manifest().digest(), before);
    let mut bell = Bell::default();
    bell.waits.insert((alice, 3), 999);
    let mut copy = restore(&waiting, bell).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), waiting.manifest());
    for replica in [&mut replica, &mut copy] {
        assert!(replica.0.is_settled(alice, 3));
        let wait = frame(alice, 0, 3, &[service("wait 999")]);
        assert_eq!(replica.order(&wait), [Outcome::Waits]);
        assert_eq!(replica.order(&frame(bob, 0, 1, &[service("ring")])), [reply("done"), rung()]);
    }
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
}

#[test]
fn what_nobody_waits_for_is_dropped_and_what_is_too_large_is_said_to_be() {
    let (mut replica, alice, bob) = two();
    assert_eq!(replica.one(alice, 1, &service("stray")), reply("done"));
    assert_eq!(replica.0.cached(alice, 500), None);
    replica.one_waits(alice, 2);
    let large = replica.order(&frame(bob, 0, 1, &[service("large")]));
    let [Outcome::Service(_), Outcome::Waited { outcome, offer: false }] = &large[..] else {
        panic!("{large:?}")
    };
    assert!(matches!(**outcome, Outcome::TooLarge { .. }), "{large:?}");
    let unknown = frame(session(BOB, 9), 0, 1, &[service("wait 5")]);
    assert_eq!(replica.order(&unknown), [Outcome::NoSession]);
    let malformed = Outcome::Refused(RefusalReason::Malformed);
    assert_eq!(replica.one(bob, 2, &Bytes::from_static(b"\xff")), malformed);
}
