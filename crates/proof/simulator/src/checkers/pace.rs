//! Guards what time-outs follow (docs/design.md, Who is there): r + 1 replicas, none of them the leader, measured flushes and links of that length. So no
//! correct replica's time-outs are longer than what some correct one measured, and none shorter than what r + 1 did.

use crate::violation::{Broken, Check};
use std::collections::VecDeque;

const RULE: &str = "Pace (12)";

/// For so long what somebody measured may still be counted somewhere, microseconds: as long as others hear of it.
const STALE_US: u64 = 60_000_000;

/// What was said all this time has arrived, microseconds: it is said once a second, and few messages get lost.
pub const ARRIVED_US: u64 = 10_000_000;

/// What a replica said of a flush and a round trip, and when.
#[derive(Clone, Debug, Default)]
struct Said {
    paces: VecDeque<(u64, u64)>,
    // Since when it says so once a second.
    since_us: u64,
}

/// What a replica's time-outs follow, and what it sees.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Which.
    pub replica: usize,
    /// Who leads its view.
    pub leader: usize,
    /// What its time-outs follow, milliseconds.
    pub pace_ms: u64,
    /// What it measures itself.
    pub own_ms: u64,
    /// Correct ones with whom it is in touch for [`ARRIVED_US`].
    pub near: Vec<usize>,
}

/// The checker.
#[derive(Debug)]
pub struct Pace {
    r: usize,
    said: Vec<Said>,
}

impl Pace {
    /// For a group of `n`, of which `r` may lie.
    #[must_use]
    pub fn new(n: usize, r: usize) -> Pace {
        Pace { r, said: vec![Said::default(); n] }
    }

    /// A process starts.
    pub fn started(&mut self, replica: usize, now_us: u64) {
        self.said[replica].since_us = now_us;
    }

    /// A correct replica tells another one of its flushes and links.
    pub fn says(&mut self, replica: usize, now_us: u64, pace_ms: u64) {
        let paces = &mut self.said[replica].paces;
        if paces.back() != Some(&(now_us, pace_ms)) {
            paces.push_back((now_us, pace_ms));
        }
        while paces.pop_front_if(|(said_us, _)| *said_us + STALE_US < now_us).is_some() {}
    }

    /// The least that a replica said in the last [`ARRIVED_US`]; none if it says something for a shorter time.
    fn least(&self, replica: usize, now_us: u64) -> Option<u64> {
        let Said { paces, since_us } = &self.said[replica];
        let recent = paces.iter().rev().take_while(|(said_us, _)| said_us + ARRIVED_US >= now_us);
        recent.map(|(_, pace)| *pace).min().filter(|_| since_us + ARRIVED_US < now_us)
    }

    /// A correct replica's time-outs follow this.
    pub fn follows(&self, now_us: u64, followed: &Followed) -> Check {
        let Followed { replica, leader, pace_ms, own_ms, near } = followed;
        let led = |other: &usize| other == leader;
        let all = (0..self.said.len()).filter(|other| !led(other));
        let said = all.flat_map(|other| self.said[other].paces.iter().map(|(_, pace)| *pace));
        let most = said.chain((!led(replica)).then_some(*own_ms)).max().unwrap_or_default();
        let others = near.iter().filter(|other| !led(other));
        let others = others.filter_map(|other| self.least(*other, now_us));
        let own = self.least(*replica, now_us).filter(|_| !led(replica));
        let mut least: Vec<u64> = others.chain(own.map(|said| said.min(*own_ms))).collect();
        least.sort_unstable_by(|a, b| b.cmp(a));
        let least = least.get(self.r).copied().unwrap_or_default();
        if (least..=most).contains(pace_ms) {
            return Ok(());
        }
        let what = format!(
            "time-outs of replica {replica} follow {pace_ms} ms; {} replicas that do not lead measured {least} ms or more, and no \
             correct one more than {most} ms (replica {leader} leads)",
            self.r + 1
        );
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn told(r: usize, paces: &[(usize, u64)]) -> Pace {
        let mut pace = Pace::new(4, r);
        for second in 1..=20 {
            for (replica, pace_ms) in paces {
                pace.says(*replica, second * SECOND_US, *pace_ms);
            }
        }
        pace
    }

    fn follows(pace: &Pace, pace_ms: u64) -> bool {
        let near = vec![1, 2];
        let followed = Followed { replica: 0, leader: 1, pace_ms, own_ms: 3, near };
        pace.follows(20 * SECOND_US, &followed).is_ok()
    }

    #[test]
    fn no_time_out_follows_the_leader_or_what_no_correct_replica_measured() {
        let pace = told(1, &[(0, 3), (1, 900), (2, 5)]);
        assert!(follows(&pace, 3) && follows(&pace, 5));
        assert!(!follows(&pace, 6) && !follows(&pace, 900));
    }

    #[test]
    fn time_outs_follow_what_r_and_one_more_measured() {
        assert!(!follows(&told(1, &[(0, 3), (2, 5)]), 2));
        assert!(follows(&told(1, &[(0, 2), (2, 5)]), 2), "it was less within the last seconds");
        assert!(!follows(&told(0, &[(0, 3), (2, 5)]), 4));
        assert!(follows(&told(1, &[(0, 3), (3, 5)]), 0), "of the other one it may not have heard");
        let mut pace = told(1, &[(0, 3), (2, 5)]);
        pace.started(2, 12 * SECOND_US);
        assert!(follows(&pace, 0), "it has just started");
    }
}
