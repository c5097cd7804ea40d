//! What counts against a leader, and what does not.

use super::*;
use crate::pool::Source;
use bytes::Bytes;
use perdura_protocol::{ClusterId, Frame, PublicKey, SessionId, Time};

const WITHHELD: u64 = 1;

fn frame(client: u8, number: u64, bytes: usize) -> Frame {
    let session = SessionId { client: PublicKey([client; 32]), nonce: 0 };
    let command = Bytes::from(vec![client; bytes]);
    Frame::build(ClusterId([0; 16]), session, 0, number, &[command], None)
}

fn batch(frames: Vec<Frame>) -> Batch {
    Batch::requests(Time(1), frames)
}

/// A follower that handed a frame over, and its leader's batches.
struct Follower {
    withholding: Withholding,
    expected: Expected,
    pool: Pool,
    now_ms: u64,
    handed: u32,
}

impl Follower {
    fn new(bytes: usize) -> Self {
        let mut pool = Pool::default();
        pool.offer(frame(1, WITHHELD, bytes), Source::Client, 0);
        assert_eq!(pool.hand_over(0).len(), 1);
        let withholding = Withholding::default();
        Self { withholding, expected: Expected::default(), pool, now_ms: 0, handed: 0 }
    }

    /// Time passes, and the leader's batches arrive and are delivered.
    fn see(&mut self, passed_ms: u64, batches: &[Batch], free: bool) {
        self.now_ms += passed_ms;
        let key = (frame(1, WITHHELD, 1).session, WITHHELD);
        self.withholding.tick([key].into_iter(), &self.pool, self.now_ms);
        for batch in batches {
            let proposed_ms = free.then_some(self.now_ms);
            self.withholding.delivered(
                batch,
                proposed_ms,
                (&self.pool, &self.expected, usize::MAX),
                self.now_ms,
            );
        }
        self.handed += self.withholding.again(self.now_ms).len() as u32;
    }

    /// Half a minute of the same; whether the leader is given up.
    fn gives_up(&mut self, passed_ms: u64, batches: &[Batch]) -> bool {
        for _ in 0..30_000 / passed_ms {
            self.see(passed_ms, batches, true);
        }
        self.withholding.found()
    }
}

#[test]
fn batches_that_had_room_count_once_for_each_time_a_frame_is_handed_over() {
    let mut follower = Follower::new(100);
    let small = [batch(vec![frame(2, 5, 100)])];
    let mut took_ms = 0;
    while !follower.withholding.found() {
        follower.see(10, &small, true);
        took_ms += 10;
    }
    assert_eq!(follower.handed, PASSED_OVER - 1);
    let least = u64::from(PASSED_OVER - 1) * AGAIN_MS;
    assert!((least..least + 2_000).contains(&took_ms), "{took_ms} ms");
    // The next leader is held to more.
    follower.withholding.restart(follower.now_ms);
    for _ in 0..took_ms / 10 {
        follower.see(10, &small, true);
    }
    assert!(!follower.withholding.found());
    assert!(follower.gives_up(10, &small));
}

#[test]
fn batches_that_were_full_or_had_no_room_for_the_next_frame_prove_nothing() {
    let half = limits::BATCH_TARGET_BYTES / 2;
    let large = [batch(vec![frame(2, 5, half)])];
    assert!(!Follower::new(100).gives_up(10, &large));
    // A small one, and then a frame as large as a batch may be for its sake.
    let turns =
        [batch(vec![frame(2, 5, 10)]), batch(vec![frame(2, 6, limits::BATCH_TARGET_BYTES)])];
    assert!(!Follower::new(100).gives_up(10, &turns));
    let many = [batch((0..limits::BATCH_FRAMES as u64).map(|n| frame(2, n, 1)).collect())];
    assert!(!Follower::new(100).gives_up(1_000, &many));
}

#[test]
fn what_a_leader_was_not_free_to_propose_proves_nothing() {
    let mut follower = Follower::new(100);
    let small = batch(vec![frame(2, 5, 100)]);
    for _ in 0..3_000 {
        follower.see(10, std::slice::from_ref(&small), false);
    }
    assert!(!follower.withholding.found() && follower.handed == 0);
    // Nor do batches without requests stand between two that do.
    assert!(follower.gives_up(10, &[small, Batch::tick(Time(2)), Batch::null()]));
}

#[test]
fn a_frame_on_its_way_is_not_withheld() {
    // Proposals that come sooner after each hand-over than a frame of this size is at the leader.
    let small = [batch(vec![frame(2, 5, 100)])];
    let mut follower = Follower::new(4 << 20);
    for _ in 0..1_000 {
        follower.see(10, &small, true);
    }
    assert_eq!(follower.handed, 0);
    // And it comes, again and again.
    let mut follower = Follower::new(100);
    let copy = frame(1, WITHHELD, 100);
    let come = batch(vec![copy.clone()]);
    for _ in 0..30 {
        for _ in 0..100 {
            follower.see(10, &small, true);
        }
        follower.pool.remove(copy.session, WITHHELD);
        let of = (&follower.pool, &follower.expected, usize::MAX);
        follower.withholding.delivered(&come, Some(follower.now_ms), of, 0);
        follower.pool.offer(copy.clone(), Source::Client, follower.now_ms);
        follower.pool.hand_over(follower.now_ms);
    }
    assert!(!follower.withholding.found());
    // Another one under its name, in the place of one that was answered otherwise.
    let mut follower = Follower::new(100);
    for bytes in 101..150 {
        for _ in 0..100 {
            follower.see(10, &small, true);
        }
        follower.pool.remove(copy.session, WITHHELD);
        follower.pool.offer(frame(1, WITHHELD, bytes), Source::Client, follower.now_ms);
        follower.pool.hand_over(follower.now_ms);
    }
    assert!(!follower.withholding.found());
    // A state covers it.
    follower.withholding.installed();
    assert!(follower.withholding.closed.is_none());
}

#[test]
fn new_links_are_no_way_to_get_rid_of_a_frame() {
    let small = [batch(vec![frame(2, 5, 100)])];
    let mut follower = Follower::new(100);
    for _ in 0..(u64::from(PASSED_OVER) + 2) * 10 {
        assert!(!follower.withholding.found() || follower.now_ms > 7_000);
        follower.see(100, &small, true);
        follower.withholding.forget(follower.now_ms);
    }
    assert!(follower.withholding.found());
    // But large ones take their time.
    let mut follower = Follower::new(1 << 20);
    for _ in 0..(u64::from(PASSED_OVER) + 2) * 10 {
        follower.see(100, &small, true);
        follower.withholding.forget(follower.now_ms);
    }
    assert!(!follower.withholding.found());
}

#[test]
fn few_frames_are_watched_and_the_longest_waiting_ones_first() {
    let mut pool = Pool::default();
    let mut withholding = Withholding::default();
    let mut keys = Vec::new();
    for number in 0..3 * ASKED_AT_ONCE as u64 {
        let one = frame(100 - number as u8, number, 100);
        keys.push((one.session, number));
        pool.offer(one, Source::Client, number);
        pool.hand_over(number);
    }
    withholding.tick(keys.iter().copied(), &pool, 100);
    assert!(keys[..ASKED_AT_ONCE].iter().all(|key| withholding.asked.contains_key(key)));
    assert_eq!(withholding.asked.len(), ASKED_AT_ONCE);
    pool.remove(keys[3].0, keys[3].1);
    withholding.tick(keys.iter().copied(), &pool, 120);
    assert!(withholding.asked.contains_key(&keys[ASKED_AT_ONCE]));
    assert_eq!(withholding.asked.len(), ASKED_AT_ONCE);
}

/// A leader keeps the costs of what is in flight apart, so all of a costly client may wait; some of it does not.
#[test]
fn all_of_a_costly_client_may_wait_but_not_some_of_it() {
    let costs = BTreeMap::from([(PublicKey([1; 32]), 1 << 24)]);
    let follower = || {
        let mut follower = Follower::new(100);
        follower.expected.executed(&batch(vec![frame(1, 9, 1)]), &costs);
        follower
    };
    let others = [batch(vec![frame(2, 5, 100)])];
    assert!(Follower::new(100).gives_up(10, &others));
    assert!(!follower().gives_up(10, &others));
    let some = [batch(vec![frame(1, 5, 100)])];
    assert!(follower().gives_up(10, &some));
}
