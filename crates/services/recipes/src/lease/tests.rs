//! What is known of a lease that was waited for, on real replicas.

use super::*;
use crate::{Lock, Queue, template, tuple};
use bytes::Bytes;
use perdura_client::{CallError, Indeterminacy};
use perdura_protocol::Versions;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_tuples::{Entry, SpaceOptions, TupleSpaces};
use real::Group;

#[path = "../../../../core/replica/tests/real/mod.rs"]
mod real;

const LONG: Duration = Duration::from_secs(120);

/// Runs a course of events on a group with the space s, and two clients of one key.
fn with_space<F: Future<Output = ()>>(course: impl FnOnce(Space, Space) -> F) {
    let versions = Versions { service: 3, ..Versions::NEW };
    let of_version = |parameters| Parameters { versions, ..parameters };
    let mut group = Group::formatted_with(1, 0, Durability::Sync, of_version, TupleSpaces::new);
    for i in 0..group.keys.len() {
        group.start(i);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let space = || Space::connect(&group.cluster(), &group.client, "s", LONG).unwrap();
        let (space, same) = (space(), space());
        space.create(SpaceOptions::default()).await.unwrap();
        course(space.clone(), same.clone()).await;
        space.close().await;
        same.close().await;
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}

#[test]
fn what_was_waited_for_is_renewed_once_and_not_given_if_it_is_lost() {
    with_space(|space, _| async move {
        let entry = Entry::new(tuple("lock", "l", &[]).unwrap()).with_lease(milliseconds(LONG));
        let number = space.claim(2, entry, LONG).await.unwrap().unwrap();
        let had = Had::Tuple(number);
        // Asked for just now, or so long ago that it could have ended.
        for asked in [Moment::now(), Moment::now().before(LONG)] {
            let lease = Lease::begin(&space, had, LONG, asked).await.unwrap().unwrap();
            assert!(lease.is_held() && lease.remaining() > LONG / 2);
            assert!(lease.remaining() < LONG, "some is taken off");
        }
        let gone = Lease::begin(&space, had, LONG, Moment::now()).await.unwrap().unwrap();
        space.inp(template("lock", "l", Vec::new())).await.unwrap().unwrap();
        let asked = Moment::now().before(LONG);
        assert!(Lease::begin(&space, had, LONG, asked).await.unwrap().is_none());
        // Of which one did not know is known with the next renewal.
        assert!(gone.is_held() && !gone.renew().await.unwrap() && !gone.is_held());
        gone.lost().await;
    });
}

#[test]
fn a_renewal_that_came_too_late_is_no_lease_and_no_loss() {
    with_space(|space, _| async move {
        let had = Had::Tuple(1);
        let lease = Lease::begin(&space, had, LONG, Moment::now()).await.unwrap().unwrap();
        let ago = Moment::now().before(LONG);
        lease.0.until.send_replace(Some(ago));
        // It is there, and its new lease is over here: it may be renewed again.
        assert!(lease.answered(ago, true) && !lease.is_held());
        assert!(lease.answered(Moment::now(), true) && lease.is_held());
        // An answer that comes late does not shorten what is had.
        assert!(lease.answered(ago, true) && lease.is_held());
        assert!(!lease.answered(Moment::now(), false) && !lease.is_held());
        assert!(!lease.answered(Moment::now(), true) && !lease.is_held(), "what is gone is gone");
    });
}

/// Polls a future once, which does not end by that, and drops it.
async fn dropped<F: Future>(future: F) {
    tokio::select! {
        biased;
        _ = future => panic!("it ended without the group"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn what_was_had_when_its_caller_went_is_the_next_ones() {
    with_space(|space, same| async move {
        let long_ago = Moment::now().before(LONG);
        let lock = Lock::new(&same, "l", LONG);
        let held = lock.try_acquire().await.unwrap().unwrap();
        dropped(Lease::begin(&space, Had::Tuple(held.token()), LONG, long_ago)).await;
        let next = lock.acquire(LONG / 2).await.unwrap().unwrap();
        assert!(next.token() > held.token());
        let queue = Queue::new(&same, "q");
        queue.push(Bytes::from_static(b"job")).await.unwrap();
        let job = queue.lease(LONG, LONG).await.unwrap().unwrap();
        let (number, token) = job.tokens();
        dropped(Lease::begin(&space, Had::Job(number, token), LONG, long_ago)).await;
        let next = queue.lease(LONG / 2, LONG).await.unwrap().unwrap();
        assert_eq!((next.tokens(), next.before()), ((number, token + 1), 1));
    });
}

#[test]
fn what_was_had_is_never_refused_and_given_up_after_an_error() {
    with_space(|space, same| async move {
        let queue = Queue::new(&space, "q");
        queue.push(Bytes::from_static(b"job")).await.unwrap();
        let job = queue.lease(LONG, LONG).await.unwrap().unwrap();
        let ((number, token), asked) = (job.tokens(), Moment::now());
        // No group takes such a lease.
        let had = Had::Job(number, token);
        let error = Lease::begin(&space, had, Duration::ZERO, asked).await.unwrap_err();
        assert!(!error.is_refusal() && error.to_string().contains("a lease has"), "{error}");
        let next = queue.lease(LONG / 2, LONG).await.unwrap().unwrap();
        assert_eq!(next.tokens(), (number, token + 1));
        // Of a client that was closed the renewal is not sent.
        same.close().await;
        let (had, asked) = (Had::Job(number, token + 1), asked.before(LONG));
        let error = Lease::begin(&same, had, LONG, asked).await.unwrap_err();
        let reason = match &error {
            Error::Call(CallError::Indeterminate { reason, .. }) => Some(reason),
            _ => None,
        };
        assert_eq!(reason, Some(&Indeterminacy::Closed), "{error}");
        assert!(error.to_string().contains("it was had"), "{error}");
        assert!(next.renew().await.unwrap());
    });
}
