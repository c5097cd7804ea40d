//! How a view begins: what it is bound to travels to those who lack it, and to nobody else.

use crate::harness::Group;
use perdura_agreement::Suspicion;
use perdura_protocol::{Record, Slot, View};

fn view(group: &Group, i: usize) -> View {
    group.nodes[i].agreement.as_ref().unwrap().view()
}

/// A group whose leader has stopped while slots were being voted on, with the last slot that was proposed.
/// One replica got none of the proposals.
fn in_flight(seed: u64, u: u8, r: u8) -> (Group, Slot) {
    let mut group = Group::new(seed, u, r);
    group.disk_ms = 60;
    group.unproposed = Some(group.nodes.len() - 1);
    for _ in 0..10 {
        group.request_of(1, 100_000);
        group.run(10);
    }
    let last = group.proposals.iter().map(|(_, slot, _)| *slot).max().unwrap();
    assert!(group.nodes[1].delivered.plus(2) <= last, "{:?} of {last:?}", group.nodes[1].delivered);
    group.unproposed = None;
    group.crash(0);
    (group, last)
}

#[test]
fn who_holds_what_a_view_is_bound_to_is_not_sent_it_again() {
    for (seed, u, r) in [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 2, 2)] {
        let (mut group, last) = in_flight(seed, u, r);
        let n = group.nodes.len();
        while group.view_changes < n as u64 - 1 {
            group.run(10);
        }
        let bound = group.agreed.len();
        group.run(2_000);
        assert!((1..n).all(|i| view(&group, i) == View(1)), "u {u} r {r}");
        assert!((1..n).all(|i| group.nodes[i].delivered >= last), "u {u} r {r}");
        assert!(group.agreed.len() > bound, "u {u} r {r}: the view was bound to nothing");
        let again = group
            .proposals
            .iter()
            .filter(|(view, slot, to)| *view == View(1) && *slot <= last && *to < n - 1);
        assert_eq!(again.count(), 0, "u {u} r {r}");
    }
}

/// Who lacks it is needed for a quorum, and the first answer of the leader gets lost.
#[test]
fn who_lacks_what_a_view_is_bound_to_asks_until_it_comes() {
    let (mut group, last) = in_flight(2, 1, 1);
    group.lost_batches = 1;
    group.run(2_500);
    assert_eq!(group.lost_batches, 0, "it asked for less");
    assert!((1..4).all(|i| view(&group, i) == View(1)), "{:?}", group.suspicions);
    let delivered = [1, 2, 3].map(|i| group.nodes[i].delivered);
    assert!(delivered.iter().all(|delivered| *delivered >= last), "{delivered:?} of {last:?}");
}

/// It knows from its log that slots were decided, and the Accepts are lost: it cannot prove it to the others,
/// who are too few without its votes.
#[test]
fn who_cannot_prove_what_was_decided_votes_again() {
    (0..10).for_each(|seed| unproven(seed, 4 * (seed as u32 % 3)));
}

/// So many of the votes that it needs get lost.
fn unproven(seed: u64, lost: u32) {
    let mut group = Group::new(seed, 1, 1);
    for _ in 0..5 {
        group.request();
        group.run(50);
    }
    group.run(500);
    (0..4).for_each(|i| group.crash(i));
    let kept = Slot(2);
    for i in 0..3 {
        let knows = i == 0;
        group.nodes[i].durable.retain(|record| match record {
            Record::Accepts { slot, .. } => *slot <= kept,
            Record::Delivered { slot, .. } => *slot <= kept || knows,
            _ => true,
        });
    }
    (0..3).for_each(|i| group.restart(i));
    group.lost_writes = lost;
    let last = group.nodes[0].delivered;
    assert!((1..3).all(|i| group.nodes[i].delivered < last), "seed {seed}: all know it");
    assert!(last > kept.next() && last.0 < 8, "{last:?}: no prefix is certified");
    let before = group.suspicions.len();
    group.run(5_000);
    let delivered = [1, 2].map(|i| group.nodes[i].delivered);
    let begun = &group.suspicions[before..];
    assert!(delivered.iter().all(|delivered| *delivered >= last), "seed {seed}: {begun:?}");
    let vain = begun.iter().filter(|(.., why)| *why == Suspicion::ProposalWaits);
    assert!(vain.count() == 0 && group.lost_writes == 0, "seed {seed}: {begun:?}");
}

/// Nobody is at fault for the time in which a replica had no vote, and took part in no change of views.
#[test]
fn who_begins_to_vote_finds_no_view_change_late() {
    for (u, r) in [(1, 0), (1, 1)] {
        let mut group = Group::new(5, u, r);
        let last = group.nodes.len() - 1;
        group.crash(0);
        group.run(2_000);
        group.restart(0);
        group.run(2_000);
        let begun = view(&group, last);
        assert!(begun > View(0), "u {u} r {r}: a first view begins without a view change");
        group.suspicions.clear();
        group.crash(last);
        group.run(100);
        group.restart_without_vote(last, Slot(200));
        let mut voted = 0;
        while voted < 2_000 {
            group.request();
            group.run(20);
            voted += 20 * u64::from(group.nodes[last].agreement.as_ref().unwrap().voting());
            assert!(group.now < 60_000, "u {u} r {r}: it does not vote");
        }
        let vain = group.suspicions.iter().filter(|(.., why)| *why == Suspicion::ViewChangeFails);
        assert_eq!(vain.count(), 0, "u {u} r {r}: {:?}", group.suspicions);
        assert_eq!(view(&group, last), begun, "u {u} r {r}");
    }
}
