//! What is handed over to who waited: it is the client's when that confirms it in time, and the next one's else.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, Machine, Progress, Release, RestoreError, Service, Snapshot, Waiting,
};
use perdura_protocol::{
    AdminCommand, Batch, Command, Encode, Frame, Outcome, RefusalReason, SessionId, Time, limits,
};
use std::collections::VecDeque;
use std::sync::Arc;

type Waiter = (SessionId, u64);

/// One seat: "sit" waits for it, "leave" frees it, "who" says how it stands.
#[derive(Clone, Default)]
struct Seat {
    queue: VecDeque<Waiter>,
    offered: Option<Waiter>,
    /// A folding chair, which is there at once.
    chair: Option<Waiter>,
    /// Since when.
    taken: Option<(Waiter, Time)>,
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

impl Seat {
    fn serve(&mut self, released: &mut Vec<Release>) {
        if self.taken.is_some() || self.offered.is_some() {
            return;
        }
        let Some((session, number)) = self.queue.pop_front() else { return };
        self.offered = Some((session, number));
        let result = Ok(Bytes::from_static(b"yours"));
        released.push(Release { session, number, result, offer: true });
    }
}

impl Service for Seat {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        unreachable!("a machine asks for those that may wait")
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Text(format!("{:?} {:?} {:?}", self.queue, self.offered, self.taken).into()))
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl Waiting for Seat {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
        match command {
            b"sit" => {
                self.queue.push_back((context.session, context.number));
                self.serve(released);
                return Ok(Progress::Waits);
            }
            b"chair" => {
                let (session, number) = (context.session, context.number);
                self.chair = Some((session, number));
                released.push(Release { session, number, result: Ok(Bytes::new()), offer: true });
                return Ok(Progress::Waits);
            }
            b"leave" => self.taken = None,
            _ => {}
        }
        self.serve(released);
        let numbers =
            [self.taken.map(|(one, _)| one), self.offered].map(|one| one.map(|one| one.1));
        Ok(Progress::Done(format!("{numbers:?}").into()))
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        let at = self.queue.iter().position(|one| *one == (session, number));
        self.queue.remove(at.expect("who is forgotten waits"));
    }

    fn confirm(&mut self, clock: Time, session: SessionId, number: u64, _: &mut Vec<Release>) {
        assert_eq!(self.offered.take(), Some((session, number)));
        self.taken = Some(((session, number), clock));
    }

    fn take_back(&mut self, _: Time, session: SessionId, number: u64, released: &mut Vec<Release>) {
        if self.chair.take_if(|one| *one == (session, number)).is_none() {
            assert_eq!(self.offered.take(), Some((session, number)));
            self.serve(released);
        }
    }
}

fn yours() -> Outcome {
    Outcome::Waited { outcome: Box::new(reply("yours")), offer: true }
}

fn gone() -> Outcome {
    Outcome::Refused(RefusalReason::Withdrawn)
}

fn command(of: SessionId, number: u64, command: &Command) -> Frame {
    frame(of, 0, number, &[command.to_bytes()])
}

fn two_of(mut replica: Replica<Seat>) -> (Replica<Seat>, SessionId, SessionId) {
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    replica.open(alice);
    replica.open(bob);
    (replica, alice, bob)
}

fn two() -> (Replica<Seat>, SessionId, SessionId) {
    two_of(Replica::around(Seat::default()))
}

fn at(replica: &mut Replica<Seat>, ms: u64, frames: Vec<Frame>) -> Vec<(SessionId, u64, Outcome)> {
    let batch = match frames.is_empty() {
        true => Batch::tick(Time(ms)),
        false => Batch::requests(Time(ms), frames),
    };
    let replies = replica.execute(&batch).replies.into_iter();
    replies.map(|reply| (reply.session, reply.number, reply.outcome)).collect()
}

/// The seat goes on as it was, in a machine that was made from its snapshot.
fn copied(replica: &Replica<Seat>) -> Replica<Seat> {
    let seat: Seat = Machine::service(&replica.0).clone();
    let copy = restore(&replica.0.snapshot(), seat).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
    assert_eq!(copy.0.due(), replica.0.due());
    copy
}

#[test]
fn what_is_confirmed_in_time_is_the_clients() {
    let (mut replica, alice, bob) = two();
    let sit = frame(alice, 0, 1, &[service("sit")]);
    assert_eq!(
        at(&mut replica, 100, vec![sit.clone()]),
        [(alice, 1, Outcome::Waits), (alice, 1, yours())]
    );
    assert_eq!(at(&mut replica, 200, vec![sit.clone()]), [(alice, 1, yours())], "asked again");
    assert_eq!(replica.0.cached(alice, 1), Some(yours()));
    assert_eq!(replica.0.offered().collect::<Vec<_>>(), [(alice, 1)]);
    assert_eq!(replica.0.due(), Some(Time(100 + parameters().offer_ms())));
    let mut copy = copied(&replica);
    for replica in [&mut replica, &mut copy] {
        let confirm = command(alice, 2, &Command::Confirm { number: 1 });
        let told = at(replica, 900, vec![confirm.clone(), confirm]);
        assert_eq!(told, [(alice, 2, Outcome::Opened), (alice, 2, Outcome::Opened)]);
        let taken = Machine::service(&replica.0).taken;
        assert_eq!(taken, Some(((alice, 1), Time(900))), "from then on");
        assert_eq!(at(replica, 5_000, vec![sit.clone()]), [(alice, 1, reply("yours"))]);
        // To confirm it again, or what was never offered, is nothing.
        for (number, what) in [(3, 1), (4, 9)] {
            let confirm = command(alice, number, &Command::Confirm { number: what });
            assert_eq!(at(replica, 5_000, vec![confirm]), [(alice, number, gone())]);
        }
        let itself = command(bob, 1, &Command::Confirm { number: 1 });
        let malformed = Outcome::Refused(RefusalReason::Malformed);
        assert_eq!(at(replica, 5_000, vec![itself]), [(bob, 1, malformed)]);
    }
}

#[test]
fn what_is_not_confirmed_is_the_next_ones() {
    let (mut replica, alice, bob) = two();
    at(&mut replica, 100, vec![frame(alice, 0, 1, &[service("sit"), service("sit")])]);
    at(&mut replica, 100, vec![frame(bob, 0, 1, &[service("sit")])]);
    let mut copy = copied(&replica);
    for replica in [&mut replica, &mut copy] {
        let end = 100 + parameters().offer_ms();
        assert_eq!(at(replica, end - 1, vec![]), []);
        let told = at(replica, end, vec![command(alice, 3, &Command::Confirm { number: 1 })]);
        assert_eq!(told, [(alice, 1, gone()), (alice, 2, yours()), (alice, 3, gone())]);
        // Given up by who has it, it goes to the next one at once.
        let told =
            at(replica, end + 100, vec![command(alice, 4, &Command::Withdraw { number: 2 })]);
        let expected = [(alice, 2, gone()), (alice, 4, Outcome::Opened), (bob, 1, yours())];
        assert_eq!(told, expected);
        let told = at(replica, end + 1_000, vec![command(bob, 2, &Command::Confirm { number: 1 })]);
        assert_eq!(told, [(bob, 2, Outcome::Opened)]);
        let who = at(replica, end + 1_000, vec![frame(alice, 0, 5, &[service("who")])]);
        assert_eq!(who, [(alice, 5, reply("[Some(1), None]"))]);
    }
}

/// Also where the same frame serves it and withdraws it.
#[test]
fn what_is_withdrawn_as_it_is_served_is_the_next_ones() {
    let (mut replica, alice, bob) = two();
    at(&mut replica, 100, vec![frame(alice, 0, 1, &[service("sit")])]);
    at(&mut replica, 100, vec![command(alice, 2, &Command::Confirm { number: 1 })]);
    at(&mut replica, 100, vec![frame(alice, 0, 3, &[service("sit")])]);
    at(&mut replica, 100, vec![frame(bob, 0, 1, &[service("sit")])]);
    let withdraw = Command::Withdraw { number: 3 }.to_bytes();
    let both = frame(alice, 0, 4, &[service("leave"), withdraw]);
    assert_eq!(
        at(&mut replica, 200, vec![both]),
        [
            (alice, 4, reply("[None, Some(3)]")),
            (alice, 3, gone()),
            (alice, 5, Outcome::Opened),
            (bob, 1, yours()),
        ]
    );
    copied(&replica);
}

#[test]
fn what_was_offered_in_a_session_that_ends_is_the_next_ones() {
    let close = |of| vec![command(of, 2, &Command::Close)];
    let revoke = admin(AdminCommand::RevokeClient { name: "alice".into() });
    for revoked in [false, true] {
        let (mut replica, alice, bob) = two();
        let (other, administrator) = (session(ALICE, 6), session(ADMINISTRATOR, 1));
        replica.open(other);
        replica.open(administrator);
        // The second in line is of the same client, whose sessions may all end at once.
        for of in [alice, other, bob] {
            at(&mut replica, 100, vec![frame(of, 0, 1, &[service("sit")])]);
        }
        let (frames, next) = match revoked {
            false => (close(alice), other),
            true => (vec![frame(administrator, 0, 1, std::slice::from_ref(&revoke))], bob),
        };
        let told = at(&mut replica, 200, frames);
        assert_eq!(told.iter().filter(|one| one.2 == yours()).count(), 1, "{told:?}");
        assert!(told.contains(&(next, 1, yours())), "{told:?}");
        assert_eq!(replica.0.offered().collect::<Vec<_>>(), [(next, 1)]);
        copied(&replica);
    }
}

/// The group stands still for a minute: the client has the rest of its second after that.
#[test]
fn an_offer_stands_still_with_the_group() {
    let (mut replica, alice, _) = two();
    at(&mut replica, 100, vec![frame(alice, 0, 1, &[service("sit")])]);
    assert_eq!(at(&mut replica, 60_000, vec![]), []);
    let told = at(&mut replica, 60_900, vec![command(alice, 2, &Command::Confirm { number: 1 })]);
    assert_eq!(told, [(alice, 2, Outcome::Opened)]);
    let (_, since) = Machine::service(&replica.0).taken.unwrap();
    assert!(since < Time(2_500), "by the clock that stood still, {since}");
}

/// There nobody confirms anything: what is released is had.
#[test]
fn under_the_first_rules_what_is_served_is_the_clients() {
    let (mut replica, alice, _) = two_of(Replica::of_first_rules(Seat::default()));
    let told = at(&mut replica, 100, vec![frame(alice, 0, 1, &[service("sit")])]);
    assert_eq!(told, [(alice, 1, reply("yours"))]);
    assert_eq!(Machine::service(&replica.0).taken, Some(((alice, 1), Time(100))));
    assert_eq!((replica.0.offered().count(), replica.0.due()), (0, None));
}

/// Nor is it left with nobody, where a session has no place for one more wait.
#[test]
fn what_serves_itself_in_a_full_session_is_taken_back() {
    let (mut replica, alice, bob) = two();
    at(&mut replica, 100, vec![frame(bob, 0, 1, &[service("sit")])]);
    at(&mut replica, 100, vec![command(bob, 2, &Command::Confirm { number: 1 })]);
    let most = limits::SESSION_WAITS as u64;
    for first in (1..=most).step_by(512) {
        at(&mut replica, 100, vec![frame(alice, first, first, &vec![service("sit"); 512])]);
    }
    let told = at(&mut replica, 100, vec![frame(alice, most, most + 1, &[service("chair")])]);
    assert!(matches!(&told[..], [(_, _, Outcome::Refused(RefusalReason::Service(_)))]), "{told:?}");
    assert_eq!(Machine::service(&replica.0).chair, None);
    // Where there is a place, it is offered.
    let told = at(&mut replica, 100, vec![frame(bob, 0, 3, &[service("chair")])]);
    assert!(matches!(told[1], (_, 3, Outcome::Waited { offer: true, .. })), "{told:?}");
}
