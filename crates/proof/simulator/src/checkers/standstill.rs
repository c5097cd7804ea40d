//! Guards liveness of each replica while a run goes on (A4): a correct replica that runs, with
//! nothing wrong with it, and as many like it as make a quorum, catches up with them. What the end of
//! a run shows is less: there nobody calls any more, and a replica that stood still under load, or
//! until the next crash, has become well again.

use crate::violation::{Broken, Check};
use perdura_protocol::Slot;

/// Longest time until a replica has executed what others had when it became well, virtual
/// microseconds. Three times what the slowest took in a thousand runs: a new incarnation's state, on
/// links that lose one message in twenty.
pub const CATCH_UP_US: u64 = 30_000_000;

/// Since when a replica should execute how far, and how long it may take.
#[derive(Clone, Copy, Debug)]
struct Owed {
    since_us: u64,
    target: Slot,
    most_us: u64,
}

/// What each replica is to have executed, and since when it should.
#[derive(Clone, Debug)]
pub struct Standstill {
    owed: Vec<Option<Owed>>,
    longest_us: u64,
}

impl Standstill {
    /// Nobody owes anything.
    #[must_use]
    pub fn new(n: usize) -> Standstill {
        Standstill { owed: vec![None; n], longest_us: 0 }
    }

    /// A replica has just started, something is wrong with it, or with so many others that they make
    /// no quorum.
    pub fn excused(&mut self, replica: usize) {
        self.owed[replica] = None;
    }

    /// A replica has executed `executed`, and others `highest`, of those with which nothing is
    /// wrong. A slot takes it so long, microseconds: who executes slowly may take longer.
    pub fn stands(
        &mut self,
        replica: usize,
        now_us: u64,
        (executed, highest): (Slot, Slot),
        takes_us: u64,
    ) -> Check {
        let behind = highest.0.saturating_sub(executed.0);
        let most_us = CATCH_UP_US + 2 * behind * takes_us;
        let next = (behind > 0).then_some(Owed { since_us: now_us, target: highest, most_us });
        let Some(Owed { since_us, target, most_us }) = self.owed[replica] else {
            self.owed[replica] = next;
            return Ok(());
        };
        let waited_us = now_us - since_us;
        if executed >= target {
            self.longest_us = self.longest_us.max(waited_us);
            self.owed[replica] = next;
        } else if waited_us > most_us {
            let seconds = waited_us / 1_000_000;
            let what = format!(
                "replica {replica} stands at slot {executed}; nothing was wrong with it for \
                 {seconds} s, and others had executed slot {target} before"
            );
            return Err(Broken::new("Standstill (A4)", what));
        }
        Ok(())
    }

    /// The longest time that anybody took, virtual microseconds.
    #[must_use]
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_move_is_found_and_who_is_behind_and_moves_is_not() {
        let mut standstill = Standstill::new(2);
        let mut now_us = 5;
        for slot in 1..100 {
            // One slot behind all the while.
            assert!(standstill.stands(0, now_us, (Slot(slot), Slot(slot + 1)), 0).is_ok());
            now_us += CATCH_UP_US / 2;
        }
        assert_eq!(standstill.longest_us(), CATCH_UP_US / 2);
        let mut stands = |now_us, highest, takes_us| {
            standstill.stands(1, now_us, (Slot(7), Slot(highest)), takes_us)
        };
        assert!(stands(now_us, 8, 0).is_ok());
        assert!(stands(now_us + CATCH_UP_US, 9, 0).is_ok());
        assert!(stands(now_us + CATCH_UP_US + 1, 9, 0).is_err());
        standstill.excused(1);
        let mut stands = |now_us, highest, takes_us| {
            standstill.stands(1, now_us, (Slot(7), Slot(highest)), takes_us)
        };
        // A hundred slots of 30 ms.
        assert!(stands(now_us, 107, 30_000).is_ok());
        assert!(stands(now_us + CATCH_UP_US + 6_000_000, 109, 30_000).is_ok());
        assert!(stands(now_us + CATCH_UP_US + 6_000_001, 109, 30_000).is_err());
    }
}
