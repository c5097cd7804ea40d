//! A disk that hangs: who has it says so, and is not counted on.

use crate::follower::{Follower, put};
use perdura_protocol::message::Message;
use perdura_protocol::vitals::Vitals;
use perdura_replica::node::State;

/// One that hears of its leader.
fn follower() -> Follower {
    let mut follower = Follower::new(|parameters| parameters);
    follower.wait(200);
    follower
}

fn leader_says(follower: &mut Follower, stalled_ms: u32) {
    let sent_ms = follower.now_ms;
    follower.give(&Message::Vitals(Box::new(Vitals { sent_ms, stalled_ms, ..Vitals::default() })));
    follower.wait(200);
}

pub fn who_waits_for_its_disk_for_two_seconds_takes_no_part_until_it_comes_back() {
    let mut follower = follower();
    follower.propose(put(1), 1);
    follower.wait(1_900);
    assert_eq!(follower.node.report().peer_health.stalled_ms, 0);
    follower.wait(200);
    let report = follower.node.report();
    assert_eq!((report.state, report.peer_health.stalled_ms), (State::Stalled, 2_100));
    follower.persist();
    follower.wait(100);
    assert_eq!(follower.node.report().peer_health.stalled_ms, 0);
    assert_ne!(follower.node.report().state, State::Stalled);
}

pub fn a_leader_whose_disk_hangs_is_replaced_unless_all_disks_are_slow() {
    let mut fast = follower();
    leader_says(&mut fast, 1_900);
    assert_eq!(fast.suspicions, 0);
    leader_says(&mut fast, 2_100);
    assert!(fast.suspicions > 0);
    // This one's disk took a second lately, so that the leader's is no worse.
    let mut slow = follower();
    slow.decide(put(1), 1);
    slow.wait(900);
    slow.persist();
    leader_says(&mut slow, 2_100);
    assert_eq!(slow.suspicions, 0);
    leader_says(&mut slow, 4_000);
    assert!(slow.suspicions > 0);
}

pub fn who_says_that_its_disk_hangs_is_not_one_of_those_that_are_needed() {
    let mut follower = follower();
    assert!(follower.node.report().peer_health.hears >= 2);
    leader_says(&mut follower, 2_100);
    let report = follower.node.report();
    assert_eq!((report.peer_health.hears, report.state), (1, State::Waiting));
    assert!(
        report.peer_health.missing().starts_with("0 (its disk hangs)"),
        "{:?}",
        report.peer_health
    );
    leader_says(&mut follower, 0);
    assert_ne!(follower.node.report().state, State::Waiting);
}
