//! Whether a leader gives what is asked of it (`demand`): one that does not is deposed though it
//! keeps every time-out; correct ones are not, whatever the load and the disks.

mod harness;

use harness::Group;
use perdura_agreement::timing;

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
            // Its successor is not.
            let before = group.view_changes;
            assert!(load(&mut group, 3, 2, 100, 20_000) > 100);
            assert_eq!(group.view_changes, before, "u {u} r {r} seed {seed}");
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

#[test]
fn a_leader_that_starves_one_client_is_deposed() {
    for (u, r) in [(1, 1), (2, 1)] {
        let mut group = Group::new(2, u, r);
        group.censor = Some((0, 2));
        load(&mut group, 3, 2, 100, 10_000);
        assert!(!leaders(&group).contains(&0), "u {u} r {r}: still leads");
        let before = group.view_changes;
        load(&mut group, 3, 2, 100, 10_000);
        assert_eq!(group.view_changes, before);
        group.run(2_000);
        assert_eq!(group.waiting(1), 0, "the starved client was served");
    }
}

#[test]
fn correct_leaders_stay_under_overload_with_large_frames_and_slow_disks() {
    for (u, r) in [(1, 1), (2, 1)] {
        for disk_ms in [0, 20, 300] {
            for (clients, frames, bytes) in [(1, 1, 8), (1, 64, 8), (20, 16, 1000), (3, 4, 300_000)]
            {
                let mut group = Group::new(disk_ms, u, r);
                group.disk_ms = disk_ms;
                load(&mut group, clients, frames, bytes, 10_000);
                let what =
                    format!("u {u} r {r}, disk {disk_ms} ms, {clients} x {frames} x {bytes}");
                assert_eq!(group.view_changes, 0, "{what}");
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
    assert_eq!(group.view_changes, 0);
    for _ in 0..5 {
        group.disk_ms = 400;
        load(&mut group, 1, 1, 8, 40_000);
        group.disk_ms = 0;
        load(&mut group, 10, 8, 1000, 10_000);
    }
    let views = group.view_changes / group.nodes.len() as u64;
    assert!(views <= 2 * 5, "{views} views in 250 s");
}

#[test]
fn idle_groups_suspect_nobody() {
    for (u, r) in [(1, 0), (1, 1), (2, 1)] {
        let mut group = Group::new(3, u, r);
        load(&mut group, 2, 4, 100, 5_000);
        group.run(120_000);
        for _ in 0..20 {
            group.request_of(1, 8);
            group.run(5_000);
        }
        assert_eq!(group.view_changes, 0, "u {u} r {r}");
    }
}
