//! The power fails, and some machines do not come back: "any number stop: live when n - u run again". A run
//! ends with that, in one of two. Before it some replicas were cut off for a moment, shorter or longer than the
//! pipeline, and some kind of message was on its way; and it may be that a few come back before the others.

use super::promise::is_hurt;
use super::silences::Silence;
use super::{Event, World};
use crate::plan::NetworkPlan;
use crate::random::Random;
use crate::report::FaultKind;

/// Longest time for the group to come together before, and to go on while some are cut off, microseconds.
const TOGETHER_US: u64 = 6_000_000;
const APART_US: u64 = 6_000_000;

/// Longest pause of a caller that is in a hurry, microseconds.
const HURRIED_US: u64 = 500;

/// Longest time until all are, microseconds.
const HURRIED_FOR_US: u64 = 2_000_000;

/// Longest time that the first ones are back before all are, microseconds.
const ALONE_US: u64 = 4_000_000;

impl World {
    /// All stop at once, up to `u` of them for good. Whether some are away.
    pub(crate) fn outage(&mut self) -> bool {
        let mut random = Random::new(self.options.seed).fork("outage");
        if !random.percent(50) || !self.allows(FaultKind::Outage) || self.replacement.is_some() {
            return false;
        }
        self.ending.calm_down();
        self.heal_all();
        let (n, u) = (self.n(), self.plan.faults.u());
        let mut failed = self.failed_for_good();
        if self.failed() || failed.len() > u || self.replicas.iter().any(|one| one.replaced) {
            return false;
        }
        (0..n).for_each(|replica| self.start(replica));
        let until_us = self.now_us + TOGETHER_US;
        self.run_while(|world| world.now_us < until_us && !world.is_together());
        self.part(&mut random);
        if self.failed() {
            return false;
        }
        let leader = self.present_leader();
        self.crash_all();
        let mut away: Vec<usize> = failed.iter().copied().filter(|_| random.percent(50)).collect();
        if failed.len() < u && random.percent(50) && !failed.contains(&leader) {
            failed.push(leader);
            away.push(leader);
        }
        while failed.len() < u {
            let other = random.below(n as u64) as usize;
            if !failed.contains(&other) {
                failed.push(other);
                away.push(other);
            }
        }
        for replica in &away {
            self.replicas[*replica].away = true;
        }
        self.trace.line(self.now_us, format_args!("outage: {away:?} stay away"));
        if !away.is_empty() {
            self.fired(FaultKind::Outage);
        }
        self.heal_network();
        if random.percent(50) {
            for replica in 0..n {
                let delay_us = random.below(2 * ALONE_US);
                self.push(delay_us, Event::Start { replica });
            }
            let until_us = self.now_us + random.below(ALONE_US);
            self.run_until(until_us);
        }
        !away.is_empty()
    }

    /// Those who were away start.
    pub(crate) fn come_back(&mut self) {
        self.trace.line(self.now_us, format_args!("all come back"));
        for replica in 0..self.n() {
            self.replicas[replica].away = false;
            self.start(replica);
        }
    }

    /// Who counts towards `u` whatever happens.
    fn failed_for_good(&mut self) -> Vec<usize> {
        (0..self.n()).for_each(|replica| self.note_healing(replica));
        let lies = |replica: &usize| self.is_liar(*replica) || self.forgot(*replica);
        let hurt = |replica: &usize| is_hurt(&self.replicas[*replica]);
        (0..self.n()).filter(|replica| lies(replica) || hurt(replica)).collect()
    }

    fn is_together(&self) -> bool {
        let last = self.checkers.agreement.last();
        (0..self.n()).all(|replica| {
            let process = self.replicas[replica].process.as_ref();
            self.is_liar(replica) || process.is_some_and(|process| process.executed >= last)
        })
    }

    /// The leader of the latest view that somebody is in.
    fn present_leader(&self) -> usize {
        let processes = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        let view = processes.map(|process| process.node.report().view).max().unwrap_or_default();
        view.leader(self.n()).index()
    }

    /// Some are cut off, some kind of message does not get through, and the others go on for a while.
    fn part(&mut self, random: &mut Random) {
        let n = self.n();
        if random.percent(75) {
            // What was decided a while ago others have heard of.
            self.network.plan = NetworkPlan::CALM;
            self.plan.workload.think_us = self.plan.workload.think_us.min(HURRIED_US);
            let slots = random.between(1, 2 * self.plan.depth);
            self.go_on(slots, HURRIED_FOR_US);
        }
        let mut cut_off: Vec<usize> = Vec::new();
        if random.percent(85) {
            let spared = random.percent(70).then(|| self.present_leader());
            for _ in 0..random.between(1, self.plan.faults.u() as u64) {
                let replica = random.below(n as u64) as usize;
                if !cut_off.contains(&replica) && spared != Some(replica) {
                    cut_off.push(replica);
                    self.cut_off(replica);
                }
            }
        }
        if random.percent(75) {
            // What a liar says need not travel as slowly as what others say.
            let among_all = random.percent(50);
            let hushed = |replica: &usize| among_all || !self.is_liar(*replica);
            let hushed: Vec<usize> = (0..n).filter(hushed).collect();
            let pairs = self.pairs_of(&hushed);
            let silence = Silence::draw(random, pairs, self.now_us + 2 * APART_US);
            self.trace.line(self.now_us, format_args!("{cut_off:?} cut off, {silence:?}"));
            self.silences.push(silence);
        }
        if random.percent(30) && !self.hostile.is_empty() {
            // A configuration might begin behind it.
            self.revoke_client();
        }
        let (depth, beyond) = (self.plan.depth, random.percent(70));
        let slots = random.between(if beyond { depth + 2 } else { 1 }, 3 * depth);
        self.go_on(slots, APART_US);
        if random.percent(40) {
            // What is certified now lies beyond what did not get through.
            self.silences.clear();
            self.go_on(depth, APART_US);
        }
        if random.percent(25) {
            cut_off.drain(..).for_each(|replica| self.mend(replica));
            let until_us = self.now_us + random.below(300_000);
            self.run_until(until_us);
        }
    }

    /// So many slots are decided, or so much time passes.
    fn go_on(&mut self, slots: u64, for_us: u64) {
        let last = self.checkers.agreement.last().plus(slots);
        let until_us = self.now_us + for_us;
        self.run_while(|world| world.now_us < until_us && world.checkers.agreement.last() < last);
    }

    /// All hear all again.
    fn heal_network(&mut self) {
        self.silences.clear();
        self.network.mend_all();
    }
}
