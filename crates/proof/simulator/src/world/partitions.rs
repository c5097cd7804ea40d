//! What goes wrong between stations: partitions of every shape, links that break, flap, hang half
//! open or are slow, and all of them dialled at once.

use super::World;
use super::chaos::Disruption;
use crate::options::Mode;
use crate::report::FaultKind;

/// Longest time until the end of a half-open link that does not know of it is told by its probes
/// (`SILENCE` in the transport's bounds), microseconds.
const PROBED_US: u64 = 10_000_000;

/// Resets of links between replicas in a hundred that cost the lane of transfers only.
const TRANSFERS_ONLY: u64 = 30;

impl World {
    /// All links of a replica, one way or both.
    pub(crate) fn cuts_of(
        &self,
        victim: usize,
        outgoing: bool,
        incoming: bool,
    ) -> Vec<(usize, usize)> {
        let mut cuts = Vec::new();
        for other in (0..self.network.stations()).filter(|other| *other != victim) {
            if outgoing {
                cuts.push((victim, other));
            }
            if incoming {
                cuts.push((other, victim));
            }
        }
        cuts
    }

    /// A link that is up.
    fn some_link(&mut self) -> Option<(usize, usize)> {
        let stations = self.network.stations() as u64;
        let a = self.chaos.random.below(self.n() as u64) as usize;
        let b = self.chaos.random.below(stations) as usize;
        (a != b && self.network.link(a, b).up).then_some((a, b))
    }

    pub(crate) fn reset_link(&mut self) {
        let Some((a, b)) = self.some_link() else { return };
        self.fired(FaultKind::LinkReset);
        let delays = [self.random.below(3_000), self.random.below(3_000)];
        if b < self.n() && self.chaos.random.percent(TRANSFERS_ONLY) {
            self.break_transfers(a, b, delays);
        } else {
            self.break_link(a, b, delays);
        }
    }

    /// One end of a link learns that it broke; the other one, which may be the one to dial, not
    /// before its probes stay without answer. Between replicas that counts as the failure of one.
    pub(crate) fn half_open_link(&mut self) {
        let Some((a, b)) = self.some_link() else { return };
        let late_us = self.chaos.random.between(PROBED_US / 20, PROBED_US);
        let a_late = self.chaos.random.percent(50);
        if b < self.n() {
            let Some(failed) = self.may_lose_link(a, b) else { return };
            let disruption = Disruption { failed: vec![failed], ..Disruption::default() };
            self.begin_trouble(disruption, late_us);
            // The higher id dials the lower; when that end does not know, nobody does.
            if a_late == (a > b) {
                self.network.link(a, b).blocked_until_us = self.now_us + late_us;
            }
        }
        self.fired(FaultKind::HalfOpenLink);
        let soon_us = self.chaos.random.below(3_000);
        self.break_link(a, b, if a_late { [late_us, soon_us] } else { [soon_us, late_us] });
    }

    /// Whose failure it is when the link between two replicas is away, if the promise has room.
    fn may_lose_link(&self, a: usize, b: usize) -> Option<usize> {
        let failed = (0..self.n()).filter(|replica| self.has_failed(*replica)).count();
        let room = self.plan.mode == Mode::Safety || failed < self.plan.faults.u();
        [a, b].into_iter().find(|end| self.has_failed(*end)).or(room.then_some(a))
    }

    /// All links there are break at once, and everybody dials everybody.
    pub(crate) fn break_all_links(&mut self) {
        self.fired(FaultKind::ReconnectionStorm);
        for a in 0..self.n() {
            for b in a + 1..self.network.stations() {
                let delays = [self.random.below(20_000), self.random.below(20_000)];
                self.break_link(a, b, delays);
            }
        }
    }

    /// From now on all links of a replica carry so many bytes per second, each way.
    pub(crate) fn throttle(&mut self, replica: usize, bytes_per_second: u64) {
        for (from, to) in self.cuts_of(replica, true, true) {
            self.network.throttle(from, to, bytes_per_second);
            if bytes_per_second == 0 && self.network.is_queued(from, to, self.now_us) {
                // Minutes of queue would stand before whatever comes now.
                let delays = [self.random.below(20_000), self.random.below(20_000)];
                self.break_link(from, to, delays);
            }
        }
    }

    /// Two parts that do not hear each other, or only meet at a bridge that hears both; clients
    /// reach one, the other, or both. In liveness mode the smaller part counts as failed.
    pub(crate) fn split_group(&mut self, bridged: bool) {
        let n = self.n();
        let healthy: Vec<usize> = (0..n).filter(|replica| !self.has_failed(*replica)).collect();
        let room = self.room_for_split();
        if room == 0 {
            return;
        }
        let mut part = Vec::new();
        for _ in 0..self.chaos.random.between(1, room as u64) {
            let candidate = match self.plan.mode {
                Mode::Liveness => *self.chaos.random.pick(&healthy),
                Mode::Safety => self.chaos.random.below(n as u64) as usize,
            };
            if !part.contains(&candidate) {
                part.push(candidate);
            }
        }
        let rest: Vec<usize> = (0..n).filter(|replica| !part.contains(replica)).collect();
        let bridge = bridged.then(|| *self.chaos.random.pick(&rest));
        let with_clients = self.chaos.random.percent(50);
        let stations = if with_clients { self.network.stations() } else { n };
        let mut cuts = Vec::new();
        for inside in &part {
            let others = (0..stations).filter(|other| !part.contains(other));
            for outside in others.filter(|other| Some(*other) != bridge) {
                cuts.push((*inside, outside));
                cuts.push((outside, *inside));
            }
        }
        self.fired(if bridged { FaultKind::BridgePartition } else { FaultKind::SplitGroup });
        let for_us = self.chaos.downtime_us(&self.plan);
        self.begin_trouble(Disruption { cuts, failed: part, ..Disruption::default() }, for_us);
    }
}
