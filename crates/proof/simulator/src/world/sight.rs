//! What replicas say of their surroundings: of their own clock, and that states differ. A false alarm would send an operator to
//! a machine that is in order.

use super::World;
use crate::checkers::sight;
use crate::options::Mode;
use std::collections::BTreeSet;

/// What was measured of a clock counts until the next vitals come.
const STALE_US: u64 = 5_000_000;

impl World {
    /// A clock was set right.
    pub(crate) fn clock_mended(&mut self) {
        self.clock_mended_us = self.now_us;
    }

    /// A replica noted something: not that its own clock is wrong where it is right and at most u others are wrong.
    pub(crate) fn check_own_clock(&mut self, replica: usize) {
        let here = &self.replicas[replica];
        let Some(process) = &here.process else { return };
        let stale = self.now_us < self.clock_mended_us + STALE_US;
        if here.clock.is_wrong() || here.liar.is_some() || self.plan.mode != Mode::Liveness || stale
        {
            return;
        }
        let company = process.node.report().company;
        if let Err(broken) = sight::own_clock(replica, &company) {
            self.fail(broken);
        }
    }

    /// A replica says that states differ.
    pub(crate) fn on_alarm(&mut self, replica: usize, text: &str) {
        self.tell(format_args!("r{replica} alarms: {text}"));
        let Some(process) = &self.replicas[replica].process else { return };
        let found = process.node.report().difference;
        let lied: BTreeSet<usize> =
            (0..self.n()).filter(|id| self.is_liar(*id) || self.is_damaged(*id)).collect();
        if self.is_liar(replica) {
            return;
        }
        if let Err(broken) = sight::alarm(replica, found.as_ref(), &lied) {
            self.fail(broken);
        }
    }
}
