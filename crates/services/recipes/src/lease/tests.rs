//! What is known of a lease that was waited for, on real replicas.

use super::*;
use crate::{template, tuple};
use perdura_protocol::Versions;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_tuples::{Entry, SpaceOptions, TupleSpaces};
use real::Group;

#[path = "../../../../core/replica/tests/real/mod.rs"]
mod real;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn what_was_waited_for_is_renewed_once_and_not_given_if_it_is_lost() {
    let versions = Versions { service: 2, ..Versions::NEW };
    let of_version = |parameters| Parameters { versions, ..parameters };
    let mut group = Group::formatted_with(1, 0, Durability::Sync, of_version, TupleSpaces::new);
    for i in 0..group.keys.len() {
        group.start(i);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let space = Space::connect(&group.cluster(), &group.client, "s", LONG).unwrap();
        space.create(SpaceOptions::default()).await.unwrap();
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
        space.close().await;
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}
