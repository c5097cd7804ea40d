use super::*;
use perdura_protocol::Time;

const NOW: Now = Now { monotonic_ms: 100_000, wall: Time(5_000_000) };

fn peer_health(u: u8, r: u8) -> PeerHealth {
    let faults = Faults::new(u, r).unwrap();
    PeerHealth::new(ReplicaId(0), faults, 500)
}

fn says(peer_health: &mut PeerHealth, from: u8, offset_ms: i64) {
    peer_health.on_status(NOW, ReplicaId(from));
    let wall = Time(NOW.wall.0.saturating_add_signed(offset_ms - 20));
    let answers = Some(Echo { sent_ms: NOW.monotonic_ms - 140, held_ms: 100 });
    let vitals = Vitals { sent_ms: 1, wall, answers, ..Vitals::default() };
    peer_health.on_vitals(NOW, ReplicaId(from), vitals);
}

fn after(ms: u64) -> u64 {
    NOW.monotonic_ms + ms
}

#[test]
fn who_was_not_heard_of_for_two_seconds_is_missed() {
    let mut peer_health = peer_health(1, 0);
    assert!(!peer_health.is_enough(after(0)));
    let report = peer_health.report(after(0));
    assert_eq!((report.hears, report.needs), (1, 2));
    assert_eq!(
        report.missing(),
        "1 (not heard of since the start), 2 (not heard of since the start)"
    );
    peer_health.on_status(NOW, ReplicaId(2));
    assert!(peer_health.is_enough(after(TIMEOUT_MS)));
    assert!(!peer_health.is_enough(after(TIMEOUT_MS + 1)));
    assert_eq!(
        peer_health.report(after(2500)).missing(),
        "1 (not heard of since the start), 2 (not heard of for 2.5 s)"
    );
}

#[test]
fn what_was_overtaken_tells_of_no_member() {
    let mut peer_health = peer_health(1, 0);
    let flushes = |peer_health: &PeerHealth| {
        peer_health.members[1].vitals.as_ref().map(|(vitals, _)| vitals.flush_ms)
    };
    for (sent_ms, flush_ms, kept) in [(7, 90, 90), (5, 4, 90), (7, 80, 80), (8, 5, 5)] {
        let vitals = Vitals { sent_ms, flush_ms, ..Vitals::default() };
        peer_health.on_vitals(NOW, ReplicaId(1), vitals);
        assert_eq!(flushes(&peer_health), Some(kept));
    }
    // Another process may count from anywhere.
    peer_health.on_link_down(ReplicaId(1));
    peer_health.on_vitals(NOW, ReplicaId(1), Vitals::default());
    assert_eq!(flushes(&peer_health), Some(0));
}

#[test]
fn over_slow_links_the_timeout_is_four_round_trips() {
    let mut peer_health = peer_health(1, 0);
    peer_health.on_status(NOW, ReplicaId(1));
    let answers = Some(Echo { sent_ms: NOW.monotonic_ms - 1_500, held_ms: 500 });
    peer_health.on_vitals(NOW, ReplicaId(1), Vitals { answers, ..Vitals::default() });
    assert!(peer_health.is_enough(after(4_000)) && !peer_health.is_enough(after(4_001)));
}

#[test]
fn a_clock_is_measured_in_the_middle_of_a_round_trip() {
    let mut peer_health = peer_health(1, 0);
    says(&mut peer_health, 1, 300);
    let report = peer_health.report(after(0));
    assert_eq!(
        (report.members[0].trip_ms, report.members[0].clock_offset_ms),
        (Some(40), Some(280)),
        "20 ms of it may be the way's"
    );
}

#[test]
fn what_may_have_gone_by_on_the_way_is_no_offset() {
    let mut peer_health = peer_health(1, 0);
    for id in [1, 2] {
        peer_health.on_status(NOW, ReplicaId(id));
        let answers = Some(Echo { sent_ms: NOW.monotonic_ms - 5_000, held_ms: 0 });
        let wall = Time(NOW.wall.0 - 5_000);
        peer_health.on_vitals(NOW, ReplicaId(id), Vitals { wall, answers, ..Vitals::default() });
    }
    let report = peer_health.report(after(0));
    assert_eq!((report.members[0].clock_offset_ms, report.clock_ahead_ms), (Some(0), 0));
    assert!(peer_health.news(after(0)).is_empty());
}

#[test]
fn more_than_u_others_say_that_a_clock_is_wrong() {
    let mut peer_health = peer_health(1, 0);
    says(&mut peer_health, 1, -3_600_000);
    assert_eq!(peer_health.report(after(0)).clock_ahead_ms, 0, "one of the two is wrong");
    assert_eq!(peer_health.news(after(0)).len(), 1, "the other clock");
    says(&mut peer_health, 2, -3_600_000);
    let report = peer_health.report(after(0));
    assert_eq!(report.clock_ahead_ms, 3_600_000 - 20);
    assert!(report.is_clock_wrong());
    let news = peer_health.news(after(0));
    assert!(news[0].contains("3599.980 s ahead of"), "{news:?}");
    assert_eq!(news.len(), 1, "no other clock is called wrong then");
    assert!(peer_health.news(after(0)).is_empty(), "it is said once");
    says(&mut peer_health, 1, 10);
    says(&mut peer_health, 2, -10);
    assert_eq!(peer_health.news(after(0)).len(), 1);
}

#[test]
fn a_wrong_clock_is_not_right_because_others_are_gone() {
    let mut peer_health = peer_health(1, 0);
    says(&mut peer_health, 1, -3_600_000);
    says(&mut peer_health, 2, -3_600_000);
    peer_health.news(after(0));
    // Replica 1 dies, and later all are silent.
    peer_health.on_link_down(ReplicaId(1));
    assert!(peer_health.report(after(0)).is_clock_wrong() && peer_health.news(after(0)).is_empty());
    assert!(peer_health.report(after(60_000)).is_clock_wrong());
    // It is set right: one that is there says so.
    says(&mut peer_health, 2, 0);
    assert!(!peer_health.report(after(0)).is_clock_wrong());
    assert!(peer_health.news(after(0))[0].contains("agrees with the others' again"));
}

#[test]
fn what_waited_for_long_before_it_was_read_tells_of_no_clock() {
    let mut peer_health = peer_health(1, 0);
    for id in [1, 2] {
        peer_health.on_status(NOW, ReplicaId(id));
        let answers = Some(Echo { sent_ms: NOW.monotonic_ms - 60_000, held_ms: 0 });
        let wall = Time(NOW.wall.0 - 60_000);
        peer_health.on_vitals(NOW, ReplicaId(id), Vitals { wall, answers, ..Vitals::default() });
    }
    assert_eq!(peer_health.report(after(0)).members[0].clock_offset_ms, None);
    assert!(peer_health.news(after(0)).is_empty());
}

#[test]
fn who_changes_its_clock_all_the_time_is_told_of_now_and_then() {
    let mut peer_health = peer_health(1, 1);
    let mut told = 0;
    for second in 0..240u64 {
        says(&mut peer_health, 1, if second % 2 == 0 { 9_000 } else { 0 });
        told += peer_health.news(NOW.monotonic_ms + 1_000 * (second % 2) + second).len();
    }
    assert!(told <= 2, "{told}");
}

#[test]
fn u_wrong_clocks_do_not_make_another_one_wrong() {
    for (u, r) in [(1, 0), (1, 1), (2, 1), (2, 2), (3, 1)] {
        let mut peer_health = peer_health(u, r);
        let n = peer_health.faults.n() as u8;
        for id in 1..n {
            says(&mut peer_health, id, if id <= u { 9_000_000 } else { 0 });
        }
        assert_eq!(peer_health.report(after(0)).clock_ahead_ms, 0, "{u} {r}");
        says(&mut peer_health, u + 1, 9_000_000);
        assert_eq!(peer_health.report(after(0)).clock_ahead_ms, -8_999_980, "{u} {r}");
    }
}

#[test]
fn time_outs_follow_what_r_and_one_more_say_and_never_the_leader() {
    let said = |paces: &[(u8, u32)], (u, r): (u8, u8)| {
        let mut peer_health = peer_health(u, r);
        for (id, flush_ms) in paces {
            peer_health.on_status(NOW, ReplicaId(*id));
            let vitals = Vitals { flush_ms: *flush_ms, trip_ms: 1, ..Vitals::default() };
            peer_health.on_vitals(NOW, ReplicaId(*id), vitals);
        }
        peer_health.pace_ms(after(0), ReplicaId(1))
    };
    assert_eq!(said(&[(1, 900)], (1, 0)), 0);
    assert_eq!(said(&[(1, 900), (2, 300)], (1, 0)), 301);
    assert_eq!(said(&[(1, 900), (2, u32::MAX)], (1, 1)), 0, "one may lie");
    assert_eq!(said(&[(1, 900), (2, u32::MAX), (3, 300)], (1, 1)), 301);
}

/// It was cut off, and comes back on the same link: what it said then tells nothing of now.
#[test]
fn what_a_member_said_long_ago_lengthens_nothing() {
    let mut peer_health = peer_health(1, 0);
    let vitals = Vitals { flush_ms: 300, ..Vitals::default() };
    peer_health.on_vitals(NOW, ReplicaId(2), vitals);
    for (ms, pace_ms) in [(0, 300), (PACE_KEPT_MS, 300), (PACE_KEPT_MS + 1, 0)] {
        let now = Now { monotonic_ms: NOW.monotonic_ms + ms, ..NOW };
        peer_health.on_status(now, ReplicaId(2));
        assert_eq!(peer_health.pace_ms(now.monotonic_ms, ReplicaId(1)), pace_ms, "{ms} ms");
    }
}

#[test]
fn claims_beyond_measure_are_bounded() {
    let mut peer_health = peer_health(1, 0);
    peer_health.on_status(NOW, ReplicaId(1));
    for (wall, sent_ms, held_ms) in [(u64::MAX, 0, 0), (0, u64::MAX, u64::MAX)] {
        let answers = Some(Echo { sent_ms, held_ms });
        let vitals = Vitals { wall: Time(wall), answers, ..Vitals::default() };
        peer_health.on_vitals(NOW, ReplicaId(1), vitals);
        let report = peer_health.report(after(0));
        assert!(report.members[0].trip_ms <= Some(LONGEST_TRIP_MS));
        peer_health.news(after(0));
    }
}

fn waits_for_its_disk(peer_health: &mut PeerHealth, from: u8, now_ms: u64, ms: u32) {
    let vitals = Vitals { sent_ms: now_ms, flush_ms: ms, stalled_ms: ms, ..Vitals::default() };
    let now = Now { monotonic_ms: now_ms, ..NOW };
    peer_health.on_status(now, ReplicaId(from));
    peer_health.on_vitals(now, ReplicaId(from), vitals);
}

#[test]
fn u_disks_that_hang_together_do_not_acquit_each_other() {
    for (u, r) in [(1, 0), (2, 0), (2, 1), (3, 1)] {
        let mut peer_health = peer_health(u, r);
        let n = peer_health.faults.n() as u8;
        let hang = |peer_health: &mut PeerHealth, up_to: u8| {
            for id in 1..n {
                let ms = if id <= up_to { 5_000 } else { 0 };
                waits_for_its_disk(peer_health, id, after(0), ms);
            }
            peer_health.stalled(after(0)).count_ones()
        };
        assert_eq!(hang(&mut peer_health, u), u32::from(u), "{u} {r}");
        (peer_health.flush_ms, peer_health.stalled_ms) = (5_000, 5_000);
        assert_eq!(
            hang(&mut peer_health, n - 1),
            0,
            "where it takes all as long, another leader is no better"
        );
    }
}

#[test]
fn whose_disk_hangs_and_comes_back_all_the_time_is_told_of_now_and_then() {
    let mut peer_health = peer_health(1, 1);
    let mut told = 0;
    for second in 0..240u64 {
        let now_ms = after(1_000 * second);
        waits_for_its_disk(&mut peer_health, 1, now_ms, if second % 2 == 0 { 5_000 } else { 0 });
        waits_for_its_disk(&mut peer_health, 2, now_ms, 0);
        told +=
            peer_health.news(now_ms).iter().filter(|line| line.contains("replica 1 hangs")).count();
    }
    assert!((4..=10).contains(&told), "{told}");
    // Where it makes the difference whether enough are there, that too is said now and then.
    let mut peer_health = self::peer_health(1, 1);
    let mut told = 0;
    for second in 0..60u64 {
        let now_ms = after(1_000 * second);
        waits_for_its_disk(&mut peer_health, 1, now_ms, if second % 2 == 0 { 5_000 } else { 0 });
        waits_for_its_disk(&mut peer_health, 2, now_ms, 0);
        told += peer_health.news(now_ms).iter().filter(|line| line.contains("too few")).count();
    }
    assert!((1..=6).contains(&told), "{told}");
}
