//! What a run leaves out of the plan that its seed stands for. A failing seed is shrunk by adding
//! to this ([`crate::shrink`]), and `perdura-lab simulate` takes all of it on the command line.
//!
//! Leaving something out never shifts what is drawn for the rest of the plan, and each fault event
//! draws from a stream of its own. What comes of it still differs: that a smaller run fails like
//! the one it was made from has to be tried.

use crate::plan::{NetworkPlan, Plan};
use crate::report::FaultKind;
use std::collections::BTreeSet;
use std::fmt;

/// Something that can be made simpler as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Simpler {
    /// Every message arrives once, in order, after 200 to 400 microseconds.
    Network,
    /// Clocks run at one pace.
    Clocks,
    /// Flushes take 300 microseconds at most.
    Disks,
    /// An event loop takes one input in a round.
    Rounds,
    /// No read goes without being ordered.
    Reads,
    /// No call has a short deadline.
    Deadlines,
    /// Values are a few bytes long.
    Values,
    /// All replicas execute in their event loops.
    Stages,
}

impl Simpler {
    /// All of them.
    pub const ALL: [Simpler; 8] = [
        Simpler::Network,
        Simpler::Clocks,
        Simpler::Disks,
        Simpler::Rounds,
        Simpler::Reads,
        Simpler::Deadlines,
        Simpler::Values,
        Simpler::Stages,
    ];

    /// As on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Simpler::Network => "network",
            Simpler::Clocks => "clocks",
            Simpler::Disks => "disks",
            Simpler::Rounds => "rounds",
            Simpler::Reads => "reads",
            Simpler::Deadlines => "deadlines",
            Simpler::Values => "values",
            Simpler::Stages => "stages",
        }
    }

    /// As on the command line.
    #[must_use]
    pub fn parse(text: &str) -> Option<Simpler> {
        Simpler::ALL.into_iter().find(|simpler| simpler.as_str() == text)
    }

    fn apply(self, plan: &mut Plan) {
        match self {
            Simpler::Network => plan.network = NetworkPlan::CALM,
            Simpler::Clocks => (plan.drift, plan.astray) = (0, false),
            Simpler::Disks => (plan.flush_us, plan.slow_digests) = (300, 1),
            Simpler::Rounds => plan.long_rounds = false,
            Simpler::Reads => plan.workload.fast_reads = 0,
            Simpler::Deadlines => plan.workload.short_deadlines = 0,
            Simpler::Values => plan.workload.value_bytes = 1,
            Simpler::Stages => plan.stages.clear(),
        }
    }
}

/// Numbers of fault events, written as `3,7-9`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Numbers(BTreeSet<u64>);

/// Most numbers that a text may stand for.
const NUMBERS_AT_MOST: usize = 1_000_000;

impl Numbers {
    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.0.contains(&number)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// With these as well.
    #[must_use]
    pub fn and(&self, more: impl IntoIterator<Item = u64>) -> Numbers {
        Numbers(self.0.iter().copied().chain(more).collect())
    }

    /// Those up to `last`.
    #[must_use]
    pub fn up_to(&self, last: u64) -> Numbers {
        Numbers(self.0.range(..=last).copied().collect())
    }

    /// Reads `3,7-9`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Numbers> {
        let mut numbers = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            if last < first || (last - first) as usize >= NUMBERS_AT_MOST - numbers.len() {
                return None;
            }
            numbers.extend(first..=last);
        }
        Some(Numbers(numbers))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// What a run leaves out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// Calls in a second, of all clients together, if everything is answered at once.
    pub rate: Option<u64>,
    /// Client processes, the administrator's aside.
    pub clients: Option<usize>,
    /// Calls that a client has open at most.
    pub callers: Option<usize>,
    /// Keys that all share.
    pub keys: Option<u64>,
    /// Kinds of faults that fault events are drawn among, whatever the seed has; no others happen.
    pub only: Option<BTreeSet<FaultKind>>,
    /// Kinds of faults that do not happen: an event that is one of these comes to nothing.
    pub without: BTreeSet<FaultKind>,
    /// Numbers of the fault events that do not happen; a trace shows each event's number.
    pub skip_faults: Numbers,
    /// What is simpler than planned.
    pub simpler: BTreeSet<Simpler>,
}

impl Overrides {
    /// Whether faults of this kind happen.
    #[must_use]
    pub fn allow(&self, kind: FaultKind) -> bool {
        let only = self.only.as_ref().is_none_or(|only| only.contains(&kind));
        only && !self.without.contains(&kind)
    }

    /// All kinds of faults but these.
    #[must_use]
    pub fn all_but(kept: &[FaultKind]) -> BTreeSet<FaultKind> {
        FaultKind::ALL.into_iter().filter(|kind| !kept.contains(kind)).collect()
    }

    /// Takes out of a plan what is left out.
    pub(crate) fn apply(&self, plan: &mut Plan) {
        let workload = &mut plan.workload;
        workload.clients = self.clients.unwrap_or(workload.clients);
        workload.callers = self.callers.unwrap_or(workload.callers);
        workload.keys = self.keys.unwrap_or(workload.keys);
        if let Some(rate) = self.rate {
            // The mean of what is drawn evenly up to this is half of it.
            workload.bursts = 0;
            let callers = (workload.clients * workload.callers) as u64;
            workload.think_us = 2_000_000 * callers / rate.max(1);
        }
        let mut held_back = self.without.clone();
        if let Some(only) = &self.only {
            held_back.extend(Overrides::all_but(&only.iter().copied().collect::<Vec<_>>()));
            plan.chaos.kinds = only.iter().fold(0, |kinds, kind| kinds | 1 << (*kind as u64));
            plan.chaos.wipes |= only.contains(&FaultKind::Wipe);
        }
        for kind in &held_back {
            match kind {
                FaultKind::MessageLoss => plan.network.loss = 0,
                FaultKind::MessageDuplication => plan.network.duplication = 0,
                FaultKind::MessageReordering => plan.network.reordering = false,
                FaultKind::MessageDelay => plan.network.straggle = 0,
                FaultKind::CorruptedBytes => plan.network.corruption = 0,
                _ => {} // Held back when its turn comes.
            }
        }
        self.simpler.iter().for_each(|simpler| simpler.apply(plan));
    }
}

fn list<T>(items: &BTreeSet<T>, name: impl Fn(&T) -> String) -> String {
    items.iter().map(name).collect::<Vec<String>>().join(",")
}

/// As on the command line, each with a blank before it.
impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("rate", self.rate),
            ("clients", self.clients.map(|count| count as u64)),
            ("callers", self.callers.map(|count| count as u64)),
            ("keys", self.keys),
        ];
        for (name, count) in counts {
            if let Some(count) = count {
                write!(f, " --{name} {count}")?;
            }
        }
        if let Some(only) = &self.only {
            write!(f, " --only {}", list(only, |kind| format!("{kind:?}")))?;
        }
        if self.without.len() == FaultKind::ALL.len() {
            f.write_str(" --without all")?;
        } else if self.without.len() > FaultKind::ALL.len() / 2 {
            let kept = Overrides::all_but(&self.without.iter().copied().collect::<Vec<_>>());
            write!(f, " --without-all-but {}", list(&kept, |kind| format!("{kind:?}")))?;
        } else if !self.without.is_empty() {
            write!(f, " --without {}", list(&self.without, |kind| format!("{kind:?}")))?;
        }
        if !self.skip_faults.is_empty() {
            write!(f, " --skip-faults {}", self.skip_faults)?;
        }
        if !self.simpler.is_empty() {
            write!(f, " --simpler {}", list(&self.simpler, |one| one.as_str().to_owned()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for text in ["3", "3,7-9", "0-2,4,6-7"] {
            assert_eq!(Numbers::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Numbers::parse("9,7,8").unwrap().to_string(), "7-9");
        for text in ["", "a", "3-", "9-7", "1,,2", "0-18446744073709551615"] {
            assert_eq!(Numbers::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_kind_and_every_simplification_has_a_name_of_its_own() {
        for kind in FaultKind::ALL {
            assert_eq!(FaultKind::parse(&format!("{kind:?}")), Some(kind));
        }
        for simpler in Simpler::ALL {
            assert_eq!(Simpler::parse(simpler.as_str()), Some(simpler));
        }
    }
}
