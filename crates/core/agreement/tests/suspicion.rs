//! Whether a leader gives what is asked of it (`demand`): one that does not is deposed though it
//! keeps every time-out; correct ones are not, whatever the load and the disks.

use crate::harness::{Group, drawn};
use perdura_agreement::{Mode, Now, Restart, timing};
use perdura_protocol::{Message, ReplicaId, Slot, Time, View};

/// Clients that each have `frames` in flight, for `ms`; counts what was delivered.
fn load(group: &mut Group, clients: u8, frames: usize, bytes: usize, ms: u64) -> u64 {
    let before = group.agreed.len();
    let end = group.now + ms;
    while group.now < end {
        let held = group.nodes.iter().filter_map(|node| node.agreement.as_ref());
        let most = held.map(|agreement| agreement.held().frame_bytes).max().unwrap_or(0);
        if most < usize::from(clients) * frames * (bytes + 500) {
            for client in 1..=clients {
                group.request_of(client, bytes);
            }
        }
        group.run(20);
    }
    (group.agreed.len() - before) as u64
}

/// Views that ended so far.
fn views(group: &Group) -> u64 {
    group.view_changes / group.nodes.len() as u64
}

/// Other leaders that are tried in so many seconds of load, when none is better: after two, and then
/// each after twice the time of the one before; and one in vain more.
fn tried(seconds: u64) -> u64 {
    u64::from((seconds / 2 + 1).ilog2()) + 1
}

fn leaders(group: &Group) -> Vec<usize> {
    let held = group.nodes.iter().filter_map(|node| node.agreement.as_ref());
    held.map(|agreement| agreement.leader().index()).collect()
}

#[test]
fn a_leader_that_answers_just_below_the_time_out_is_deposed_within_seconds() {
    for (u, r) in [(1, 1), (2, 1), (2, 2)] {
        for seed in 0..3 {
            let mut group = Group::new(seed, u, r);
            group.slow = Some((0, timing::REQUEST_MS * 8 / 10));
            load(&mut group, 3, 2, 100, 10_000);
            assert!(!leaders(&group).contains(&0), "u {u} r {r} seed {seed}: still leads");
            // Its successors are tried, and no more.
            let before = views(&group);
            assert!(load(&mut group, 3, 2, 100, 20_000) > 100);
            let more = views(&group) - before;
            assert!(more <= tried(20) + 1, "u {u} r {r} seed {seed}: {more} views");
        }
    }
}

#[test]
fn a_leader_far_below_the_time_out_that_keeps_nothing_in_agreement_is_deposed_too() {
    let mut group = Group::new(1, 1, 1);
    group.slow = Some((0, 300));
    load(&mut group, 3, 2, 100, 15_000);
    assert!(!leaders(&group).contains(&0));
}

/// No client waits for long, and something is always in agreement: only others can show that it is slow.
#[test]
fn a_leader_that_is_somewhat_slow_is_compared_with_others() {
    for (u, r) in [(1, 1), (2, 1), (2, 2)] {
        let mut group = Group::new(7, u, r);
        group.slow = Some((0, 60));
        let slowly = load(&mut group, 3, 2, 100, 2_000);
        load(&mut group, 3, 2, 100, 8_000);
        assert!(!leaders(&group).contains(&0), "u {u} r {r}: still leads");
        let before = views(&group);
        let mut led = 0;
        let mut done = 0;
        for _ in 0..100 {
            done += load(&mut group, 3, 2, 100, 1_000);
            led += u32::from(leaders(&group).contains(&0));
        }
        assert!(done > 100 * slowly, "u {u} r {r}: {done} after {slowly} in two seconds");
        assert!(led < 15, "u {u} r {r}: led for {led} of 100 s");
        assert!(views(&group) - before < 4 * tried(100));
    }
}

#[test]
fn a_leader_that_starves_one_client_is_deposed() {
    for (u, r) in [(1, 1), (2, 1)] {
        let mut group = Group::new(2, u, r);
        group.censor = Some((0, 2));
        load(&mut group, 3, 2, 100, 10_000);
        assert!(!leaders(&group).contains(&0), "u {u} r {r}: still leads");
        let before = views(&group);
        load(&mut group, 3, 2, 100, 10_000);
        assert!(views(&group) - before <= tried(10));
        group.run(2_000);
        assert_eq!(group.waiting(1), 0, "the starved client was served");
    }
}

/// One frame only, while newer ones of the same client are served, and others, such that most of the time
/// some slot is in agreement.
#[test]
fn a_leader_that_withholds_one_frame_is_deposed() {
    for (u, r) in [(1, 1), (2, 1), (2, 2)] {
        for pause_ms in [200, 300] {
            let mut group = Group::new(7, u, r);
            group.withheld = Some((0, 5));
            group.disk_ms = 40;
            let end = group.now + 14_000;
            while group.now < end {
                group.request_of(1, 100);
                group.run(pause_ms / 2);
                group.request_of(2, 100);
                group.run(pause_ms / 2);
            }
            assert!(!leaders(&group).contains(&0), "u {u} r {r}: still leads");
            group.run(2_000);
            assert_eq!(group.waiting(1), 0, "it was served");
        }
    }
}

/// Nobody misses anything, for each is sent the other batch by those who voted for it.
#[test]
fn a_leader_that_proposed_something_else_here_than_what_was_decided_is_deposed() {
    for (u, r) in [(1, 1), (2, 1), (2, 2)] {
        let mut group = Group::new(9, u, r);
        group.two_faced = Some(0);
        for _ in 0..20 {
            group.request_of(1, 100);
            group.run(100);
        }
        assert!(!leaders(&group).contains(&0), "u {u} r {r}: still leads");
        group.run(1_000);
        assert_eq!(group.waiting(1), 0, "all was served");
    }
}

#[test]
fn correct_leaders_stay_under_overload_with_large_frames_and_slow_disks() {
    for (u, r) in [(1, 1), (2, 1)] {
        for disk_ms in drawn(&[0, 20, 300]) {
            for (clients, frames, bytes) in [(1, 1, 8), (1, 64, 8), (20, 16, 1000), (3, 4, 300_000)]
            {
                let mut group = Group::new(disk_ms, u, r);
                group.disk_ms = disk_ms;
                load(&mut group, clients, frames, bytes, 10_000);
                let what =
                    format!("u {u} r {r}, disk {disk_ms} ms, {clients} x {frames} x {bytes}");
                assert!(views(&group) <= tried(10), "{what}: {} views", views(&group));
            }
        }
    }
}

/// All machines become slow at once: a few views may go, then the group knows that it is not the
/// leaders.
#[test]
fn when_all_are_slow_alike_views_do_not_go_round_and_round() {
    let mut group = Group::new(5, 1, 1);
    load(&mut group, 10, 8, 1000, 10_000);
    assert!(views(&group) <= tried(10));
    for _ in 0..5 {
        group.disk_ms = 400;
        load(&mut group, 1, 1, 8, 40_000);
        group.disk_ms = 0;
        load(&mut group, 10, 8, 1000, 10_000);
    }
    let views = views(&group);
    assert!(views <= 2 * 5 + tried(250), "{views} views in 250 s");
}

#[test]
fn idle_groups_suspect_nobody() {
    for (u, r) in [(1, 0), (1, 1), (2, 1)] {
        let mut group = Group::new(3, u, r);
        load(&mut group, 2, 4, 100, 5_000);
        group.run(2_000);
        let before = views(&group);
        assert!(before <= if r == 0 { 0 } else { tried(5) });
        group.run(120_000);
        for _ in 0..20 {
            group.request_of(1, 8);
            group.run(5_000);
        }
        assert_eq!(views(&group), before, "u {u} r {r}");
    }
}

/// A command waits for a time, and nobody sends anything: the group orders a tick.
#[test]
fn a_tick_comes_when_something_is_due() {
    for (u, r) in [(1, 0), (1, 1), (2, 1)] {
        let mut group = Group::new(6, u, r);
        load(&mut group, 1, 1, 100, 200);
        group.run(1_000);
        let (slots, views) = (group.agreed.len(), group.view_changes);
        let due = Time(group.clock().wall.0 + 5_000);
        group.wait_for(due);
        group.run(4_900);
        assert_eq!(group.agreed.len(), slots, "u {u} r {r}: too early");
        group.run(400);
        assert!(group.nodes.iter().all(|node| node.time >= due), "u {u} r {r}: no tick");
        group.run(10_000);
        assert_eq!(group.agreed.len(), slots + 1, "u {u} r {r}: one tick is enough");
        assert_eq!(group.view_changes, views, "u {u} r {r}: nobody is suspected");
    }
}

/// Requests bring the time as well: no tick is ordered besides.
#[test]
fn what_is_ordered_anyway_is_the_tick() {
    let mut group = Group::new(6, 1, 1);
    load(&mut group, 1, 1, 100, 200);
    group.run(1_000);
    let slots = group.agreed.len();
    group.wait_for(Time(group.clock().wall.0 + 500));
    group.run(490);
    group.request();
    group.run(2_000);
    let more = group.agreed.len() - slots;
    assert!((1..=2).contains(&more), "{more} slots");
}

/// A leader that keeps a tick back is suspected, as one that keeps back a request, and not before.
#[test]
fn a_leader_that_withholds_a_tick_is_deposed() {
    for (u, r) in [(1, 0), (1, 1), (2, 1)] {
        let mut group = Group::new(6, u, r);
        load(&mut group, 1, 1, 100, 200);
        group.run(1_000);
        let leader = leaders(&group)[1];
        let (slots, views) = (group.agreed.len(), group.view_changes);
        group.deaf = Some(leader);
        let due = Time(group.clock().wall.0 + 300);
        group.wait_for(due);
        group.run(300 + 500 + timing::REQUEST_MS);
        assert_eq!((group.agreed.len(), group.view_changes), (slots, views), "u {u} r {r}");
        group.run(4_000);
        assert!(!leaders(&group).contains(&leader), "u {u} r {r}: still leads");
        assert!(group.nodes.iter().all(|node| node.time >= due), "u {u} r {r}: no tick");
        let settled = group.view_changes;
        group.run(20_000);
        assert_eq!(group.view_changes, settled, "u {u} r {r}: once it has come, all is well");
    }
}

/// Replicas that run, with their views and whether these work.
fn standing(group: &Group) -> Vec<(View, Mode)> {
    let held = group.nodes.iter().filter_map(|node| node.agreement.as_ref());
    held.map(|agreement| (agreement.view(), agreement.mode())).collect()
}

/// Suspicions that others drop at once make one replica leave a view that works, with load or without.
#[test]
fn a_replica_that_left_alone_is_followed() {
    for (u, r) in [(1, 0), (1, 1), (2, 1), (2, 2)] {
        for loaded in [false, true] {
            let mut group = Group::new(4, u, r);
            load(&mut group, 1, 1, 100, 500);
            let (now, last) = (group.clock(), group.nodes.len() - 1);
            for from in 0..group.faults.view_join() {
                let alone = group.nodes[last].agreement.as_mut().unwrap();
                let view = alone.view().next();
                alone.on_message(now, ReplicaId(from as u8), Message::Suspect { view });
            }
            group.settle(last);
            assert_eq!(standing(&group)[last], (View(1), Mode::Changing));
            if loaded {
                load(&mut group, 1, 1, 100, 1_000);
            } else {
                group.run(1_000);
            }
            if r > 0 {
                assert_eq!(
                    standing(&group)[last],
                    (View(1), Mode::Changing),
                    "nobody has a reason"
                );
            }
            group.run(20_000);
            let standing = standing(&group);
            let settled = standing.iter().all(|one| *one == (standing[0].0, Mode::Started));
            assert!(settled, "u {u} r {r} loaded {loaded}: {standing:?}");
            assert_eq!(standing[0].0, View(1));
        }
    }
}

#[test]
fn a_liar_that_claims_to_have_left_is_followed_ever_more_rarely() {
    for (u, r) in [(1, 1), (2, 1)] {
        let mut group = Group::new(5, u, r);
        let last = group.nodes.len() - 1;
        group.crash(last);
        let liar = ReplicaId(last as u8);
        let mut claim_for = |seconds: u64| {
            let before = standing(&group)[0].0;
            for _ in 0..seconds * 10 {
                let now = group.clock();
                for id in 0..last {
                    let node = group.nodes[id].agreement.as_mut().unwrap();
                    let (view, delivered) = (View(1_000_000), node.delivered());
                    node.on_link(now, liar, true);
                    let status = Message::Status { view, changing: true, delivered };
                    node.on_message(now, liar, status);
                }
                group.run(100);
            }
            standing(&group)[0].0.0 - before.0
        };
        let first = claim_for(300);
        // It leads none of those either.
        assert!((3..=10).contains(&first), "u {u} r {r}: {first} views in 300 s");
        let more = claim_for(3_600);
        assert!(more <= 8, "u {u} r {r}: {more} views in an hour");
    }
}

#[test]
fn who_waits_alone_for_a_view_to_start_joins_who_wants_the_next() {
    // With r = u whoever else is correct is enough by itself.
    for (u, r) in [(1, 0), (2, 0), (2, 1)] {
        let group = Group::new(6, u, r);
        let start = group.clock();
        let quorum = group.faults.agreement_quorum() as u8;
        let view_after = |ms: u64, others: u8, asked: u8| {
            let mut alone = group.machine(group.nodes.len() - 1, Restart::blank());
            let at = |ms: u64| Now { monotonic_ms: start.monotonic_ms + ms, ..start };
            for from in 0..group.faults.view_join() as u8 {
                alone.on_message(at(0), ReplicaId(from), Message::Suspect { view: View(1) });
            }
            assert_eq!((alone.view(), alone.mode()), (View(1), Mode::Changing));
            let (view, delivered) = (View(1), Slot(0));
            for from in 0..asked {
                let status = Message::Status { view, changing: true, delivered };
                alone.on_message(at(ms), ReplicaId(from), status);
            }
            for from in 0..others {
                alone.on_message(at(ms), ReplicaId(from), Message::Suspect { view: View(2) });
            }
            alone.on_tick(at(ms));
            alone.view()
        };
        let late = timing::VIEW_CHANGE_MS + 1;
        assert_eq!(view_after(late - 1, r + 1, 0), View(1), "it may start yet");
        assert_eq!(view_after(late, r, 0), View(1), "only liars want more");
        assert_eq!(view_after(late, r + 1, quorum - 1), View(1), "a quorum works on it");
        assert_eq!(view_after(late, r + 1, quorum - 2), View(2), "u {u} r {r}");
    }
}
