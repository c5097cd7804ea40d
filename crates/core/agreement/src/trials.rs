//! Other leaders are tried (r > 0).
//!
//! A leader that is somewhat slow breaks no rule: its followers cannot tell whether it is the leader, or
//! the load, or the machines, while they have nothing to compare it with. So while there is load,
//! another leader is tried now and then, as views of robust protocols end by themselves (Aardvark,
//! NSDI 2009, section 4.2), and what the group does under the two is compared:
//!
//! - Seconds with load count, in which this replica kept up, and of a view not the first one. A leader's
//!   *pace* is the mean of the last [`MEMORY`] of them.
//! - After [`COMPARED`] seconds, a leader below three quarters of its predecessor's pace *falls short*; after
//!   one second already, if it is below half. It is left for the next one, which is held against the same
//!   pace. If r + 1 in a row fall short, one of them correct, it is the load that changed:
//!   the last of them stays, but not for long without another trial.
//! - After each trial the next one comes after twice the time with load, up to [`MOST_DOUBLINGS`],
//!   so that a group with nothing to gain hardly changes its leader. One that showed a better pace
//!   doubles nothing, for the leader before it was slow and so may be others; unless it
//!   is the (r + 1)-th in a row, for what waited during a slow view change looks like a better pace.
//! - A leader that falls below three quarters of what it was accepted with is compared
//!   after [`DOUBTFUL_DOUBLINGS`] at the latest, and one that was accepted though it fell short, too;
//!   where that happens again and again, the load comes and goes, and it doubles as well.
//!
//! Replicas need not agree on any of this: a wish for another leader stays until the view ends, so
//! wishes of several come together, and whoever did not wish compares all the same.

/// Time with load before another leader is tried.
pub const TRIAL_MS: u64 = 2_000;

/// Longest doubling of it: over an hour.
const MOST_DOUBLINGS: u32 = 11;

/// Longest doubling of it where the present leader's pace is in doubt.
const DOUBTFUL_DOUBLINGS: u32 = 3;

/// So many times the time is waited while no other leader can be tried well ...
const UNREADY_FACTOR: u64 = 4;

/// ... and this time at least, in which a replica fetches a state of gigabytes.
const UNREADY_MS: u64 = 60_000;

/// Work is counted over so long.
const WINDOW_MS: u64 = 1_000;

/// Less work in a second than this, that of sixteen small frames, is no load.
const LEAST_S: u64 = 128 * 1024;

/// Seconds over which a leader is compared.
const COMPARED: u32 = 4;

/// Seconds that a pace is the mean of.
const MEMORY: u32 = 16;

/// A leader is held against another one's pace for this long, for the load changes.
const REFERENCE_MS: u64 = 60_000;

/// The wish to leave a leader that falls short is given up after this time: others see no reason.
const SHORT_MS: u64 = 5_000;

/// What a tick needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub now_ms: u64,
    /// Whether this replica is behind others, so that it does not see what is going on.
    pub behind: bool,
    /// Whether everybody but the leader keeps up.
    pub ready: bool,
    /// So many leaders have a correct one among them: r + 1.
    pub leaders: u32,
}

/// One replica's comparison of leaders. Paces are work in a second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    ticked_ms: u64,
    window_ms: u64,
    work: u64,
    behind_ms: u64,

    // Of this view. In its first window the view change goes on.
    fresh: bool,
    loaded_ms: u64,
    windows: u32,
    pace: u64,
    // Since when another leader is wished for.
    wish_ms: Option<u64>,

    // The pace that this leader is compared with, and since when.
    reference: Option<(u64, u64)>,
    // Leaders in a row that fell short of it.
    short: u32,
    // Leaders in a row that were better than the one before.
    gains: u32,
    fruitless: u32,
    // The pace with which this leader was accepted.
    accepted: u64,
    // Whether it fell short when it was accepted; and how often that was so, less how often not.
    doubtful: bool,
    doubts: u32,
}

/// Whether `pace` is less than so many quarters of `other`.
fn below(pace: u64, quarters: u64, other: u64) -> bool {
    pace.saturating_mul(4) < other.saturating_mul(quarters)
}

impl Trials {
    /// A view starts, whoever wished for it.
    pub fn restart(&mut self, now_ms: u64) {
        if self.windows > 0 && self.reference.is_none() {
            (self.reference, self.short) = (Some((self.pace, now_ms)), 0);
        }
        (self.loaded_ms, self.windows, self.pace, self.wish_ms) = (0, 0, 0, None);
        self.open_window(now_ms);
        self.fresh = true;
    }

    fn open_window(&mut self, now_ms: u64) {
        (self.window_ms, self.work, self.behind_ms, self.fresh) = (now_ms, 0, 0, false);
    }

    /// So much work was delivered.
    pub fn did(&mut self, work: u64) {
        self.work += work;
    }

    /// Time passes.
    pub fn tick(&mut self, look: Look) {
        let now_ms = look.now_ms;
        let ticked_ms = std::mem::replace(&mut self.ticked_ms, now_ms);
        if look.behind {
            self.behind_ms += now_ms.saturating_sub(ticked_ms.max(self.window_ms));
        }
        if let Some((reference, since_ms)) = self.reference {
            let unshared = self.wish_ms.is_some_and(|since_ms| now_ms >= since_ms + SHORT_MS);
            if unshared {
                self.accept(reference, true, look.leaders);
                self.wish_ms = None;
            } else if now_ms >= since_ms + REFERENCE_MS {
                (self.reference, self.short) = (None, 0);
            }
        }
        let passed_ms = now_ms.saturating_sub(self.window_ms);
        if passed_ms >= WINDOW_MS {
            let pace = self.work * 1_000 / passed_ms;
            // A liar can hold back some follower at any time, but not each of them half of the time.
            let counts = !self.fresh && self.behind_ms * 2 <= passed_ms;
            self.open_window(now_ms);
            if counts && pace < LEAST_S {
                self.wish_ms = None;
            } else if counts {
                self.see(pace, passed_ms, look);
            }
        }
    }

    /// A second with load passed.
    fn see(&mut self, pace: u64, passed_ms: u64, look: Look) {
        self.windows = (self.windows + 1).min(MEMORY);
        let others = u64::from(self.windows) - 1;
        self.pace = (self.pace.saturating_mul(others).saturating_add(pace)) / (others + 1);
        match self.reference {
            _ if self.wish_ms.is_some() => self.keep_wish(look),
            Some((reference, _)) => self.compare(reference, passed_ms, look),
            None => self.consider(passed_ms, look),
        }
    }

    /// A wish to try another leader ends when none can be tried any more; it comes again with time.
    fn keep_wish(&mut self, look: Look) {
        if self.reference.is_none() && !look.ready && self.loaded_ms < self.due_ms(false) {
            self.wish_ms = None;
        }
    }

    fn compare(&mut self, reference: u64, passed_ms: u64, look: Look) {
        let falls_short = below(self.pace, 3, reference);
        if self.windows < COMPARED && !below(self.pace, 2, reference) {
            return;
        }
        if falls_short && self.short + 1 < look.leaders {
            if !look.ready {
                self.loaded_ms += passed_ms;
                return; // It would be a worse one; for how long this one is compared is bounded.
            }
            self.short += 1;
            self.wish_ms = Some(look.now_ms);
        } else {
            self.accept(reference, falls_short, look.leaders);
        }
    }

    fn accept(&mut self, reference: u64, falls_short: bool, leaders: u32) {
        let gained = below(reference, 3, self.pace) && self.gains + 1 < leaders;
        if gained {
            self.gains += 1;
        } else {
            self.gains = 0;
            self.fruitless = (self.fruitless + 1).min(MOST_DOUBLINGS);
        }
        self.doubtful = falls_short;
        self.doubts = if falls_short {
            (self.doubts + 1).min(MOST_DOUBLINGS)
        } else {
            self.doubts.saturating_sub(1)
        };
        self.accepted = if falls_short { self.pace } else { self.pace.min(reference) };
        (self.reference, self.short, self.loaded_ms) = (None, 0, 0);
    }

    fn consider(&mut self, passed_ms: u64, look: Look) {
        self.loaded_ms += passed_ms;
        if self.loaded_ms >= self.due_ms(look.ready) {
            self.wish_ms = Some(look.now_ms);
        }
    }

    /// Time with load after which another leader is tried.
    fn due_ms(&self, ready: bool) -> u64 {
        let fallen = self.windows >= COMPARED && below(self.pace, 3, self.accepted);
        let most = match (fallen, self.doubtful) {
            (true, _) => DOUBTFUL_DOUBLINGS,
            (false, true) => MOST_DOUBLINGS.min(DOUBTFUL_DOUBLINGS + self.doubts - 1),
            (false, false) => MOST_DOUBLINGS,
        };
        let due_ms = TRIAL_MS << self.fruitless.min(most);
        if ready { due_ms } else { (due_ms * UNREADY_FACTOR).max(UNREADY_MS) }
    }

    /// Whether another leader is to be tried.
    pub fn wants_another(&self) -> bool {
        self.wish_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Followers who each compare, in a group where two wishes end a view.
    struct Group {
        followers: Vec<Trials>,
        now_ms: u64,
        leaders: u32,
        /// Nothing is done for so long when a view ends, and what was asked for meanwhile comes after.
        outage_ms: u64,
        /// Times at which views ended.
        ended_s: Vec<u64>,
        /// Time for which each of the leaders led.
        led_ms: [u64; 4],
        /// The follower that is behind now.
        behind: Option<usize>,
        random: u64,
    }

    impl Group {
        fn new() -> Group {
            Group {
                followers: vec![Trials::default(); 3],
                now_ms: 0,
                leaders: 2,
                outage_ms: 0,
                ended_s: Vec::new(),
                led_ms: [0; 4],
                behind: None,
                random: 1,
            }
        }

        fn leader(&self) -> usize {
            self.ended_s.len() % 4
        }

        fn random(&mut self) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.random >> 33
        }

        /// `work` is what is done in a tick, given the time in this view.
        fn run(&mut self, seconds: u64, mut work: impl FnMut(&mut Group, u64) -> u64) {
            let end_ms = self.now_ms + seconds * 1_000;
            let mut began_ms = self.now_ms;
            let mut missed = 0;
            while self.now_ms < end_ms {
                self.now_ms += 20;
                let leader = self.leader();
                self.led_ms[leader] += 20;
                let in_view_ms = self.now_ms - began_ms;
                let mut done = work(self, in_view_ms);
                if !self.ended_s.is_empty() && in_view_ms <= self.outage_ms {
                    missed += std::mem::take(&mut done);
                } else {
                    // The group could do half as much again.
                    let more = missed.min(done / 2);
                    missed -= more;
                    done += more;
                }
                let (now_ms, leaders) = (self.now_ms, self.leaders);
                for (id, follower) in self.followers.iter_mut().enumerate() {
                    follower.did(done);
                    let behind = self.behind == Some(id);
                    follower.tick(Look { now_ms, behind, ready: true, leaders });
                }
                if self.followers.iter().filter(|one| one.wants_another()).count() >= 2 {
                    self.ended_s.push(self.now_ms / 1_000);
                    began_ms = self.now_ms;
                    let begins_ms = self.now_ms + self.outage_ms;
                    self.followers.iter_mut().for_each(|one| one.restart(begins_ms));
                }
            }
        }
    }

    const FULL: u64 = 20_000;

    /// One of four is slow.
    fn slow_first(group: &mut Group, _: u64) -> u64 {
        if group.leader() == 0 { FULL * 6 / 10 } else { FULL }
    }

    #[test]
    fn where_nothing_is_to_be_gained_trials_get_rare() {
        let mut group = Group::new();
        group.run(20_000, |_, _| FULL);
        assert!((8..16).contains(&group.ended_s.len()), "{:?}", group.ended_s);
        let gaps: Vec<u64> = group.ended_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted() && *gaps.last().unwrap() > 4_000, "{gaps:?}");
        // Nor are there any without load.
        let mut idle = Group::new();
        idle.run(10_000, |_, _| LEAST_S / 100);
        assert!(idle.ended_s.is_empty());
    }

    #[test]
    fn slow_view_changes_and_noise_do_not_keep_trials_frequent() {
        for outage_ms in [1_000, 2_000] {
            let mut group = Group::new();
            group.outage_ms = outage_ms;
            group.run(20_000, |_, _| FULL);
            assert!(group.ended_s.len() < 32, "{outage_ms} ms: {:?}", group.ended_s);
        }
        // Thirty small frames a second, when they happen to come.
        let mut group = Group::new();
        group.run(20_000, |group, _| if group.random() % 100 < 60 { 8 * 1024 } else { 0 });
        assert!(group.ended_s.len() < 40, "{:?}", group.ended_s);
        // On and off.
        let mut group = Group::new();
        group.run(20_000, |group, _| if group.now_ms % 10_000 < 5_000 { FULL } else { FULL / 3 });
        assert!(group.ended_s.len() < 100, "{:?}", group.ended_s);
    }

    #[test]
    fn a_slow_leader_is_left_and_another_one_found() {
        let mut group = Group::new();
        group.run(8, slow_first);
        assert!(group.ended_s[0] <= 3 && group.led_ms[0] <= 4_000, "{:?}", group.led_ms);
        group.run(2_000, slow_first);
        assert!(group.led_ms[0] < 40_000 && group.ended_s.len() >= 8, "{:?}", group.led_ms);
    }

    #[test]
    fn followers_that_count_differently_find_it_too() {
        for (fruitless, spoilt) in [([9, 9, 0], 50), ([9, 10, 0], 50), ([3, 11, 7], 4)] {
            let mut group = Group::new();
            for (follower, fruitless) in group.followers.iter_mut().zip(fruitless) {
                follower.fruitless = fruitless;
            }
            group.run(3_000, |group, _| {
                let second = group.now_ms / 1_000;
                group.behind = (second % spoilt == 0).then_some((second / spoilt % 3) as usize);
                slow_first(group, 0)
            });
            assert!(group.led_ms[0] < 1_500_000, "{fruitless:?}: {:?}", group.led_ms);
        }
    }

    #[test]
    fn a_liar_that_holds_back_one_after_the_other_hides_nothing() {
        let mut group = Group::new();
        group.run(1_000, |group, _| {
            // A third of the time each.
            group.behind = Some((group.now_ms / 20 % 3) as usize);
            slow_first(group, 0)
        });
        assert!(group.led_ms[0] < 30_000, "{:?}", group.led_ms);
    }

    #[test]
    fn a_liar_that_is_fast_while_it_is_compared_gains_little() {
        let mut group = Group::new();
        group.run(20_000, |group, in_view_ms| {
            if group.leader() == 0 && in_view_ms > 5_500 { FULL * 6 / 10 } else { FULL }
        });
        assert!(group.led_ms[0] < 2_000_000, "{:?}", group.led_ms);
    }

    #[test]
    fn when_the_load_falls_during_a_trial_r_leaders_are_left_and_no_more() {
        for leaders in [2, 3] {
            let mut group = Group::new();
            group.leaders = leaders;
            group.run(600, |_, _| FULL);
            let (trials, before) = (group.ended_s.len(), group.leader());
            // The load falls when the next trial begins.
            group.run(4_000, |group, _| if group.leader() == before { FULL } else { FULL / 4 });
            let first = group.ended_s[trials];
            let soon = group.ended_s[trials..].iter().filter(|end_s| **end_s < first + 10).count();
            assert_eq!(soon, leaders as usize, "{:?}", group.ended_s);
        }
    }

    /// It would be a worse one: all would wait until it has caught up, or time out.
    #[test]
    fn a_leader_that_falls_short_is_not_left_for_one_that_is_not_there() {
        let wishes = |ready_from_ms: u64| {
            let mut one = Trials { reference: Some((250 * FULL, 0)), ..Trials::default() };
            let mut ticks = (1..4_000).map(|tick| tick * 20);
            ticks.find(|now_ms| {
                one.did(FULL); // Fifty times in a second.
                let ready = *now_ms >= ready_from_ms;
                one.tick(Look { now_ms: *now_ms, behind: false, ready, leaders: 2 });
                one.wants_another()
            })
        };
        assert!(wishes(0).is_some_and(|ms| ms < 10_000), "{:?}", wishes(0));
        assert!(wishes(30_000).is_some_and(|ms| (30_000..32_000).contains(&ms)));
        // Nobody keeps a slow leader for good by staying away.
        assert!(wishes(1 << 40).is_some_and(|ms| ms < 70_000), "{:?}", wishes(1 << 40));
    }

    /// Who fetches a state must not be led by, nor waited for by all, because somebody wished for it before.
    #[test]
    fn a_wish_ends_when_nobody_can_be_tried_any_more_and_comes_again() {
        let mut one = Trials::default();
        let mut wishes = Vec::new();
        for tick in 1..=12 * 50 {
            one.did(FULL);
            let ready = !(3_000..8_000).contains(&(tick * 20));
            one.tick(Look { now_ms: tick * 20, behind: false, ready, leaders: 2 });
            if tick % 50 == 0 {
                wishes.push(one.wants_another());
            }
        }
        let from = |second: usize| wishes[second - 1];
        assert!(from(2) && !from(4) && !from(7) && from(9) && from(12), "{wishes:?}");
    }

    #[test]
    fn a_better_successor_doubles_nothing_r_times() {
        let mut one = Trials { fruitless: 4, ..Trials::default() };
        let mut now_ms = 0;
        let mut after = Vec::new();
        for round in 1..=4 {
            for _ in 0..6 * 50 {
                now_ms += 20;
                one.did(FULL << round);
                one.tick(Look { now_ms, behind: false, ready: true, leaders: 2 });
            }
            after.push(one.fruitless);
            one.restart(now_ms);
        }
        assert_eq!(after, [4, 4, 5, 5]);
    }

    #[test]
    fn the_wish_to_leave_who_falls_short_is_given_up_when_it_is_not_shared() {
        let mut one = Trials::default();
        let (mut now_ms, mut wished_ms) = (0, 0);
        let mut run = |one: &mut Trials, seconds: u64, work: u64| {
            for _ in 0..seconds * 50 {
                now_ms += 20;
                one.did(work);
                one.tick(Look { now_ms, behind: false, ready: true, leaders: 2 });
                wished_ms += 20 * u64::from(one.wants_another());
            }
            std::mem::take(&mut wished_ms)
        };
        assert_eq!(run(&mut one, 2, FULL), 20);
        one.restart(2_000);
        // Its time comes again, and that wish stays.
        assert_eq!(run(&mut one, 2 + 5 + 2, FULL / 4), SHORT_MS);
        assert_eq!(run(&mut one, 60, FULL / 4), 59_020);
    }

    #[test]
    fn who_is_behind_half_of_the_time_compares_nothing_and_who_is_cut_off_is_waited_for() {
        let mut one = Trials::default();
        for tick in 0..50 * 20 {
            one.did(FULL);
            let look = Look { now_ms: tick * 20, behind: tick % 50 < 30, ready: true, leaders: 2 };
            one.tick(look);
        }
        assert!(!one.wants_another());
        let mut since = None;
        for tick in 50 * 20..50 * 100 {
            one.did(FULL);
            one.tick(Look { now_ms: tick * 20, behind: false, ready: false, leaders: 2 });
            since = since.or(one.wants_another().then_some(tick / 50 - 20));
        }
        assert_eq!(since, Some(UNREADY_MS / 1_000));
    }
}
