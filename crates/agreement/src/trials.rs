//! Other leaders are tried (r > 0).
//!
//! A leader that is somewhat slow breaks no rule: its followers cannot tell whether it is the leader, or
//! the load, or the machines, while they have nothing to compare it with. So while there is load,
//! another leader is tried now and then, as views of robust protocols end by themselves (Aardvark,
//! NSDI 2009, section 4.2), and the two are compared by the work of a second. A leader that
//! does much less than the one before it is left at once; if r + 1 in a row do, one of them correct,
//! it is the load that changed. After each trial that brought nothing the next one comes after twice
//! the time of load, up to [`MOST_DOUBLINGS`], so that a group with nothing to gain hardly
//! changes its leader; where the present one falls far below what it did, the next comes soon.

/// Time of load before another leader is tried.
pub const TRIAL_MS: u64 = 2_000;

/// Longest doubling of it: over an hour.
const MOST_DOUBLINGS: u32 = 11;

/// Longest doubling of it once the pace has fallen to half.
const FALLEN_DOUBLINGS: u32 = 3;

/// Work is counted over so long.
const WINDOW_MS: u64 = 1_000;

/// Less work in a second than this, that of eight small frames, is no load.
const LEAST_S: u64 = 64 * 1024;

/// A wish for another leader is given up after this time.
const WISH_MS: u64 = super::demand::VERDICT_MS;

/// One replica's comparison of leaders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    window_ms: u64,
    work: u64,
    // Something in this window says nothing about the leader: a view change, or this replica lagged.
    spoilt: bool,
    loaded_ms: u64,
    // The best pace since the last comparison.
    usual: u64,
    // What this leader did in the last second that counts.
    pace: Option<u64>,
    // What its predecessor did, as long as the two are being compared.
    reference: Option<u64>,
    // Leaders in a row that fell short of the reference.
    short: u32,
    fruitless: u32,
    // Since when another leader is wished for.
    wish_ms: Option<u64>,
}

impl Trials {
    /// A view starts.
    pub fn restart(&mut self, now_ms: u64) {
        // Whoever wished for it.
        self.reference = self.reference.or(self.pace.filter(|pace| *pace >= LEAST_S));
        (self.pace, self.wish_ms) = (None, None);
        self.loaded_ms = 0;
        self.count_anew(now_ms);
        self.spoilt = true;
    }

    fn count_anew(&mut self, now_ms: u64) {
        (self.window_ms, self.work, self.spoilt) = (now_ms, 0, false);
    }

    /// So much work was delivered.
    pub fn did(&mut self, work: u64) {
        self.work += work;
    }

    /// Time passes: `leaders` are as many as have a correct one among them; who is `behind` does not
    /// see what is going on.
    pub fn tick(&mut self, now_ms: u64, behind: bool, leaders: u32) {
        self.spoilt |= behind;
        if self.wish_ms.is_some_and(|since_ms| now_ms >= since_ms + WISH_MS) {
            // Others see no reason.
            (self.wish_ms, self.reference, self.short) = (None, None, 0);
            self.put_off();
        }
        let passed_ms = now_ms.saturating_sub(self.window_ms);
        if passed_ms < WINDOW_MS {
            return;
        }
        let (pace, spoilt) = (self.work * 1_000 / passed_ms, self.spoilt);
        self.count_anew(now_ms);
        if spoilt {
            return;
        }
        self.pace = Some(pace);
        if self.wish_ms.is_some() {
            return;
        }
        match self.reference {
            Some(reference) => self.compare(now_ms, pace, reference, leaders),
            None => self.consider(now_ms, pace, passed_ms),
        }
    }

    fn compare(&mut self, now_ms: u64, pace: u64, reference: u64, leaders: u32) {
        // Without load nothing is shown; time-outs see to leaders that do nothing.
        let falls_short = pace >= LEAST_S && pace.saturating_mul(4) < reference.saturating_mul(3);
        if falls_short && self.short + 1 < leaders {
            self.short += 1;
            self.wish_ms = Some(now_ms);
            return;
        }
        if pace.saturating_mul(4) > reference.saturating_mul(5) {
            // Who was left was slow. So may be others.
            self.fruitless /= 2;
            self.loaded_ms = 0;
        } else {
            self.put_off();
        }
        (self.reference, self.short, self.usual) = (None, 0, pace);
    }

    fn put_off(&mut self) {
        self.fruitless = (self.fruitless + 1).min(MOST_DOUBLINGS);
        self.loaded_ms = 0;
    }

    fn consider(&mut self, now_ms: u64, pace: u64, passed_ms: u64) {
        self.usual = self.usual.max(pace);
        if pace < LEAST_S {
            return;
        }
        self.loaded_ms += passed_ms;
        let fallen = pace.saturating_mul(2) < self.usual;
        let most = if fallen { FALLEN_DOUBLINGS } else { MOST_DOUBLINGS };
        if self.loaded_ms >= TRIAL_MS << self.fruitless.min(most) {
            self.wish_ms = Some(now_ms);
        }
    }

    /// Whether another leader is to be tried.
    pub fn wants_another(&self) -> bool {
        self.wish_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The leader of a time of load gives so much a second; the times at which another one is wanted.
    fn run(
        trials: &mut Trials,
        from_s: u64,
        seconds: u64,
        pace: impl Fn(usize) -> u64,
    ) -> Vec<u64> {
        let mut changes = Vec::new();
        for tick in from_s * 50..(from_s + seconds) * 50 {
            trials.did(pace(changes.len()) / 50);
            trials.tick(tick * 20, false, 2);
            if trials.wants_another() {
                changes.push(tick / 50);
                trials.restart(tick * 20);
            }
        }
        changes
    }

    #[test]
    fn where_nothing_is_to_be_gained_trials_get_rare() {
        let mut trials = Trials::default();
        let changes = run(&mut trials, 0, 20_000, |_| 1_000_000);
        let gaps: Vec<u64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(changes.len() < 16, "{changes:?}");
        assert!(gaps.is_sorted() && *gaps.last().unwrap() > 4_000, "{gaps:?}");
        // Nor are there any without load.
        let mut idle = Trials::default();
        assert!(run(&mut idle, 0, 10_000, |_| LEAST_S / 2).is_empty());
    }

    #[test]
    fn a_slow_leader_is_left_and_another_one_found() {
        // Of four, the first and every fourth after it is slow.
        let mut trials = Trials::default();
        let pace = |change: usize| if change.is_multiple_of(4) { 600_000 } else { 1_000_000 };
        let changes = run(&mut trials, 0, 2_000, pace);
        assert!(changes[0] <= 4, "{changes:?}");
        let slow = |(leader, times): (usize, &[u64])| {
            (leader + 1).is_multiple_of(4).then(|| times[1] - times[0])
        };
        let led_slowly: Vec<u64> = changes.windows(2).enumerate().filter_map(slow).collect();
        assert!(!led_slowly.is_empty() && led_slowly.iter().all(|s| *s <= 3), "{led_slowly:?}");
    }

    #[test]
    fn when_the_load_falls_during_a_trial_r_plus_1_leaders_are_left_at_most() {
        let mut trials = Trials::default();
        let changes =
            run(&mut trials, 0, 60, |change| if change == 0 { 1_000_000 } else { 100_000 });
        assert!(changes[1] - changes[0] <= 3, "{changes:?}");
        assert!(changes[2] - changes[1] >= 4, "{changes:?}");
    }

    #[test]
    fn who_falls_far_below_what_it_did_is_compared_again_soon() {
        let mut trials = Trials::default();
        run(&mut trials, 0, 5_000, |_| 1_000_000);
        let changes =
            run(&mut trials, 5_000, 60, |change| if change == 0 { 400_000 } else { 1_000_000 });
        assert!(changes[0] <= 5_000 + (TRIAL_MS << FALLEN_DOUBLINGS) / 1_000 + 1, "{changes:?}");
    }

    #[test]
    fn a_wish_that_nobody_shares_is_given_up() {
        let mut trials = Trials::default();
        let mut wanted = 0;
        for tick in 0..50 * 100 {
            trials.did(1_000_000 / 50);
            trials.tick(tick * 20, false, 2);
            wanted += u64::from(trials.wants_another());
        }
        assert!(wanted > 0 && wanted <= 5 * WISH_MS / 20, "{wanted}");
    }

    #[test]
    fn who_is_behind_compares_nothing() {
        let mut trials = Trials::default();
        for tick in 0..50 * 20 {
            trials.did(1_000_000 / 50);
            trials.tick(tick * 20, true, 2);
        }
        assert!(!trials.wants_another());
    }
}
