//! Who leads next while some replica is away, or catches up: a change of leaders costs the most then, and
//! one that cannot lead at once costs two.

use crate::harness::{Group, drawn};
use perdura_agreement::Suspicion;
use perdura_agreement::pool::Source;
use perdura_protocol::{ReplicaId, View, limits};

/// Load of three clients, for so long, with which other leaders are tried.
fn load(group: &mut Group, ms: u64) {
    let end = group.now + ms;
    while group.now < end {
        if group.waiting(group.nodes.len() - 1) < 3 * 60_000 {
            (1..=3).for_each(|client| group.request_of(client, 10_000));
        }
        group.run(20);
    }
}

fn view(group: &Group, i: usize) -> View {
    group.nodes[i].agreement.as_ref().unwrap().view()
}

/// Whatever u is: the others have its load besides their own.
#[test]
fn while_one_is_away_no_other_leader_is_tried_for_a_minute() {
    for (u, r) in drawn(&[(1, 1), (2, 1), (2, 2)]) {
        let mut group = Group::new(3, u, r);
        let there: Vec<usize> = (0..group.nodes.len()).filter(|i| *i != 1).collect();
        let views =
            |group: &Group| -> Vec<View> { there.iter().map(|i| view(group, *i)).collect() };
        load(&mut group, 1_000);
        group.disconnect(1);
        load(&mut group, 40_000);
        assert_eq!(views(&group), vec![View(0); there.len()], "u {u} r {r}");
        assert!(group.suspicions.iter().all(|(who, ..)| *who == 1), "{:?}", group.suspicions);
        // Nobody keeps a slow leader for good by staying away; and who stays away is passed over.
        load(&mut group, 30_000);
        assert_eq!(views(&group), vec![View(2); there.len()], "u {u} r {r}");
        let begun = group.suspicions.iter().filter(|(who, view, _)| *who != 1 && *view == View(0));
        let of_trials = begun.clone().all(|(.., why)| *why == Suspicion::Trial);
        assert!(begun.count() > 0 && of_trials, "{:?}", group.suspicions);
        // With all of them there, trials go on.
        group.reconnect(1);
        load(&mut group, 20_000);
        assert!(view(&group, 0) > View(2), "{:?}", view(&group, 0));
    }
}

#[test]
fn whoever_is_away_is_passed_over_as_the_next_leader() {
    for (u, r) in [(2, 0), (2, 1), (2, 2)] {
        let mut group = Group::new(4, u, r);
        let n = group.nodes.len();
        group.disconnect(1);
        group.run(3_000);
        assert_eq!(view(&group, 2), View(0));
        group.crash(0);
        for _ in 0..100 {
            group.run(10);
            assert!((2..n).all(|i| view(&group, i) != View(1)), "u {u} r {r}");
        }
        assert!((2..n).all(|i| view(&group, i) == View(2)), "u {u} r {r}");
    }
}

/// The next leader is there, and thousands of slots behind, when the leader stops.
#[test]
fn who_catches_up_is_passed_over_as_the_next_leader() {
    for (u, r) in [(1, 0), (1, 1)] {
        let mut group = Group::new(8, u, r);
        let n = group.nodes.len();
        let there: Vec<usize> = (0..n).filter(|i| *i != 1).collect();
        group.disconnect(1);
        for _ in 0..3_000 {
            let frame = group.frame_of(1, 100);
            for i in &there {
                group.offer(*i, frame.clone(), Source::Client);
                group.settle(*i);
            }
            group.run(4);
        }
        let decided = group.nodes[0].delivered.0;
        assert!(decided > 900, "u {u} r {r}: {decided}");
        group.reconnect(1);
        group.run(200);
        let reached = group.nodes[1].delivered.0;
        assert!(reached + 500 < decided, "u {u} r {r}: {reached} of {decided}, not behind");
        group.crash(0);
        for _ in 0..300 {
            group.run(10);
            assert!((1..n).all(|i| view(&group, i) != View(1)), "u {u} r {r}");
        }
        assert!((1..n).all(|i| view(&group, i) == View(2)), "u {u} r {r}");
    }
}

/// When all have just come together, nobody is known to keep up: the next one it is.
#[test]
fn without_anybody_who_keeps_up_the_next_one_leads() {
    let mut group = Group::young(5, 1, 1, limits::WINDOW);
    group.run(100);
    group.crash(0);
    group.run(1_000);
    assert_eq!([1, 2, 3].map(|i| view(&group, i)), [View(1); 3]);
}

/// A client sends a frame again to a replica that catches up. It was ordered long ago, and more of that
/// client's frames come before it than a leader can hold.
#[test]
fn who_catches_up_takes_no_old_frame_for_a_withheld_one() {
    let mut group = Group::new(6, 1, 1);
    group.run(100);
    group.disconnect(3);
    let mut last = None;
    for _ in 0..300 {
        let frame = group.frame_of(1, 400_000);
        for i in 0..3 {
            group.offer(i, frame.clone(), Source::Client);
            group.settle(i);
        }
        group.run(20);
        last = Some(frame);
    }
    assert!(group.nodes[0].delivered.0 >= 150, "{:?}", group.nodes[0].delivered);
    group.reconnect(3);
    assert!(group.nodes[3].agreement.as_ref().unwrap().leader() == ReplicaId(0));
    group.offer(3, last.unwrap(), Source::Client);
    group.settle(3);
    assert!(group.waiting(3) > 0);
    let before = group.suspicions.len();
    group.run(3_000);
    assert_eq!(group.nodes[3].delivered, group.nodes[0].delivered, "it has caught up");
    assert_eq!(group.suspicions[before..], [], "and blamed nobody");
}
