//! What replicas say of their surroundings: of their own clock, and that states differ. A false alarm would send an operator to
//! a machine that is in order.

use super::World;
use crate::checkers::pace::{self, Followed};
use crate::checkers::sight::{self, Between, Says};
use crate::options::Mode;
use crate::report::Mark;
use perdura_protocol::View;
use std::collections::BTreeSet;

/// Time between two looks at what a replica says of its surroundings, microseconds.
const LOOK_US: u64 = 100_000;

/// What was measured of a clock counts until the next vitals come.
const STALE_US: u64 = 5_000_000;

impl World {
    /// A clock was set right.
    pub(crate) fn clock_mended(&mut self) {
        self.clock_mended_us = self.now_us;
    }

    /// Whether a replica is correct, runs, and is neither cut off nor slower than its messages: its wall clock may be wrong,
    /// and its disk slow, though it does not hang.
    fn is_attentive(&self, replica: usize) -> bool {
        let here = &self.replicas[replica];
        here.process.is_some()
            && self.is_trusted(replica)
            && !self.is_paused(replica)
            && here.cuts == 0
            && here.slow_round_us == 0
            && !here.hangs
            && here.sick.is_none()
            && here.clock.runs_right()
    }

    /// What lies between two replicas. While a kind of messages does not get through, something does.
    fn between(&mut self, a: usize, b: usize) -> Between {
        let now_us = self.now_us;
        let attentive = self.is_attentive(a) && self.is_attentive(b);
        let silent = self.silences.iter().any(|silence| silence.lasts(now_us));
        let network = &self.network;
        let hindered = [(a, b), (b, a)]
            .into_iter()
            .any(|(from, to)| network.is_cut(from, to) || network.is_queued(from, to, now_us));
        let link = self.network.link(a, b);
        let known = link.up && link.known_up == [true; 2];
        Between { connection: link.connection, clear: attentive && known && !silent && !hindered }
    }

    /// What a correct replica says of its surroundings, now and then. A scenario cuts and holds as it likes.
    pub(crate) fn check_sight(&mut self, replica: usize) {
        let due_us = self.replicas[replica].looked_us + LOOK_US;
        if self.by_hand || self.now_us < due_us {
            return;
        }
        // Who stood still has not seen what lay between it and others.
        let stood_still = self.now_us > due_us + 2 * LOOK_US;
        self.replicas[replica].looked_us = self.now_us;
        let now_us = self.now_us;
        for other in 0..self.n() {
            let clock = self.replicas[other].clock;
            let right = clock.shows_right() && clock.runs_right() && !self.is_liar(other);
            self.checkers.sight.clock(other, clock.off_ms(now_us), right, now_us);
            if other != replica {
                let mut between = self.between(replica, other);
                between.clear &= !stood_still;
                self.checkers.sight.between(replica, other, between, now_us);
            }
        }
        let attentive = self.is_attentive(replica) && !stood_still;
        self.checkers.sight.is_attentive(replica, attentive, now_us);
        let view = std::mem::replace(&mut self.replicas[replica].looked_view, View(u64::MAX));
        let Some(process) = &self.replicas[replica].process else { return };
        if !attentive {
            return;
        }
        let report = process.node.report();
        let leader = view.leader(self.n()).index();
        let sight = &mut self.checkers.sight;
        let named = sight.named();
        let mut check = sight.says(replica, now_us, Says::of(&report));
        let seen = sight.named() > named;
        // Time-outs are set at each tick: under a new leader they may be those of the last.
        if view == report.view {
            let followed = Followed {
                replica,
                leader,
                pace_ms: report.pace_ms,
                own_ms: u64::from(report.peer_health.flush_ms)
                    + u64::from(report.peer_health.trip_ms),
                near: sight.near(replica, pace::ARRIVED_US, now_us),
            };
            check = check.and_then(|()| self.checkers.pace.follows(now_us, &followed));
        }
        self.replicas[replica].looked_view = report.view;
        if seen {
            self.mark(Mark::WrongClockNamed);
        }
        self.check(check);
    }

    /// A replica noted something: not that its own clock is wrong where it is right and at most u others are wrong.
    pub(crate) fn check_own_clock(&mut self, replica: usize) {
        let here = &self.replicas[replica];
        let Some(process) = &here.process else { return };
        // What it knows stands until others say otherwise, who may be gone, or it was paused.
        let others = self.checkers.sight.near(replica, STALE_US, self.now_us);
        let stale = self.now_us < self.clock_mended_us.max(here.paused_until_us) + STALE_US
            || others.len() <= self.plan.faults.u();
        if here.clock.is_wrong() || here.liar.is_some() || self.plan.mode != Mode::Liveness || stale
        {
            return;
        }
        let peer_health = process.node.report().peer_health;
        if let Err(broken) = sight::own_clock(replica, &peer_health) {
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
