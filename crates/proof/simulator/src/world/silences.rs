//! Kinds of messages that do not get through for a while, on links that are up. No network does that; a stall
//! that strikes just where one kind was on its way does, and a quorum that is there for one step of the protocol
//! and not for the next.

use super::World;
use super::by_hand::Filter;
use super::chaos::Disruption;
use crate::options::Mode;
use crate::random::Random;
use crate::report::FaultKind;
use bytes::Bytes;

/// Kinds that are silenced, by weight. A prefix is what lets everybody forget.
const KINDS: [(&str, u64); 13] = [
    ("propose", 2),
    ("write", 2),
    ("accept", 4),
    ("decided", 3),
    ("prefix", 16),
    ("status", 2),
    ("suspect", 1),
    ("view-change", 2),
    ("new-view", 2),
    ("fetch", 1),
    ("decisions", 2),
    ("checkpoint", 2),
    ("state-info", 1),
];

/// What is late arrives within this time after the end, microseconds.
const LATE_US: u64 = 10_000;

/// A kind of messages that does not get through.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    tag: u8,
    pairs: Vec<(usize, usize)>,
    until_us: u64,
    late: bool,
}

/// What becomes of a message of such a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hushed {
    /// It never arrives.
    Lost,
    /// It arrives then, if its link is still up.
    Late(u64),
}

impl Silence {
    /// Whether it has not ended.
    pub fn lasts(&self, now_us: u64) -> bool {
        self.until_us > now_us
    }

    /// One kind, on the links of `pairs`, for so long.
    pub fn draw(random: &mut Random, pairs: Vec<(usize, usize)>, until_us: u64) -> Silence {
        let total = KINDS.iter().map(|(_, weight)| weight).sum();
        let mut at = random.below(total);
        let kind = KINDS.iter().find(|(_, weight)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let tag = kind.and_then(|(name, _)| Filter::tag(name)).unwrap_or_default();
        Silence { tag, pairs, until_us, late: random.percent(50) }
    }
}

impl World {
    /// What becomes of a message of a silenced kind; none if it travels like others.
    pub(crate) fn hushed(&mut self, from: usize, to: usize, bytes: &Bytes) -> Option<Hushed> {
        let now_us = self.now_us;
        self.silences.retain(|silence| silence.until_us > now_us);
        let tag = bytes.first()?;
        let of_it = |silence: &&Silence| silence.tag == *tag && silence.pairs.contains(&(from, to));
        let silence = self.silences.iter().find(of_it)?;
        let (until_us, late) = (silence.until_us, silence.late);
        Some(if late { Hushed::Late(until_us + self.random.below(LATE_US)) } else { Hushed::Lost })
    }

    /// All ordered pairs of some replicas.
    pub(crate) fn pairs_of(&self, among: &[usize]) -> Vec<(usize, usize)> {
        let others = |from: &usize| among.iter().map(|to| (*from, *to)).collect::<Vec<_>>();
        among.iter().flat_map(others).filter(|(from, to)| from != to).collect()
    }

    /// A kind does not get through from a replica, to it, or, where that is promised, among all.
    pub(crate) fn silence(&mut self, victim: usize) {
        let all: Vec<usize> = (0..self.n()).collect();
        let for_us = self.chaos.downtime_us(&self.plan);
        let random = &mut self.chaos.random;
        let among_all = self.plan.mode == Mode::Safety && random.percent(50);
        let hears = random.percent(50);
        let mut pairs = self.pairs_of(&all);
        if !among_all {
            pairs.retain(|(from, to)| *(if hears { to } else { from }) == victim);
        }
        let until_us = self.now_us + for_us;
        let silence = Silence::draw(&mut self.chaos.random, pairs, until_us);
        self.fired(FaultKind::Silence);
        self.trace.line(self.now_us, format_args!("{silence:?}"));
        self.silences.push(silence);
        let failed = if among_all { Vec::new() } else { vec![victim] };
        self.begin_trouble(Disruption { failed, ..Disruption::default() }, for_us);
    }
}
