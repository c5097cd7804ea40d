//! Shrinks a failing run: leaves out of it whatever can be left out such that the same rule is
//! still violated. What is left is one command, short enough to read its trace.
//!
//! Delta debugging (Zeller and Hildebrandt, IEEE TSE 2002) over what [`Overrides`] can say: kinds
//! of faults, liars, attacks, single fault events, clients, callers, keys, rough surroundings, steps. Each trial
//! is a whole run, as deterministic as any; their number is bounded. It ends when nothing more can
//! be left out by itself, or at the bound.
//!
//! [`Overrides`]: crate::Overrides

use crate::options::SimulationOptions;
use crate::overrides::{Numbers, Simpler};
use crate::plan::Plan;
use crate::report::{FaultKind, SimulationReport};
use crate::violation::Violation;
use std::collections::BTreeSet;
use std::fmt;

/// Runs that a shrinking takes at most, if nothing else is asked for.
pub const RUNS_AT_MOST: u32 = 300;

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shrunk {
    /// The violation that it started from.
    pub from: Violation,
    /// The smallest run found that violates the same rule.
    pub violation: Violation,
    /// Runs it took.
    pub runs: u32,
    /// Whether nothing more can be left out by itself; else the bound was reached.
    pub minimal: bool,
}

/// Shrinks what `run` fails with; `progress` is told of each smaller run that fails alike, with
/// the number of runs so far.
pub fn shrink(
    from: &Violation,
    runs_at_most: u32,
    run: impl FnMut(&SimulationOptions) -> Result<SimulationReport, Box<Violation>>,
    progress: impl FnMut(u32, &Violation),
) -> Shrunk {
    let (best, tried) = (from.clone(), BTreeSet::new());
    let mut shrinking = Shrinking { run, progress, runs: 0, runs_at_most, best, tried };
    let minimal = shrinking.until_nothing_helps();
    Shrunk { from: from.clone(), violation: shrinking.best, runs: shrinking.runs, minimal }
}

struct Shrinking<R, P> {
    run: R,
    progress: P,
    runs: u32,
    runs_at_most: u32,
    best: Violation,
    tried: BTreeSet<String>,
}

/// The same rule, and the same assertion if one failed: numbers in its text may differ.
fn alike(a: &Violation, b: &Violation) -> bool {
    let words = |what: &str| what.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    a.rule == b.rule && (a.rule != "Assertion" || words(&a.what) == words(&b.what))
}

impl<R, P> Shrinking<R, P>
where
    R: FnMut(&SimulationOptions) -> Result<SimulationReport, Box<Violation>>,
    P: FnMut(u32, &Violation),
{
    /// Whether it ended because nothing more can be left out.
    fn until_nothing_helps(&mut self) -> bool {
        loop {
            let before = self.best.options.clone();
            self.end_at_the_violation();
            self.leave_out_kinds();
            self.leave_out_adversaries();
            self.leave_out_events();
            self.simplify();
            self.leave_out_load();
            self.leave_out_steps();
            if self.exhausted() || self.best.options == before {
                return !self.exhausted();
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.runs >= self.runs_at_most
    }

    /// Runs the options; keeps them if they fail alike.
    fn fails(&mut self, options: SimulationOptions) -> bool {
        if self.exhausted() || options == self.best.options {
            return false;
        }
        if !self.tried.insert(options.to_string()) {
            return false;
        }
        self.runs += 1;
        match (self.run)(&options) {
            Err(violation) if alike(&violation, &self.best) => {
                self.best = *violation;
                // Events that the run does not reach need not be named.
                let (reached, overrides) = (self.best.faults, &mut self.best.options.overrides);
                overrides.skip_faults = overrides.skip_faults.up_to(reached);
                (self.progress)(self.runs, &self.best);
                true
            }
            _ => false,
        }
    }

    fn with(&mut self, change: impl FnOnce(&mut SimulationOptions)) -> bool {
        let mut options = self.best.options.clone();
        change(&mut options);
        self.fails(options)
    }

    /// Leaves out as many of `items` as can be: all, halves, quarters, down to single ones.
    fn leave_out<T: Clone>(
        &mut self,
        items: Vec<T>,
        change: impl Fn(&mut SimulationOptions, &[T]),
    ) {
        let (mut rest, mut size) = (items, usize::MAX);
        while !rest.is_empty() && !self.exhausted() {
            size = size.min(rest.len());
            let mut at = 0;
            while at < rest.len() {
                let end = rest.len().min(at + size);
                let chunk = rest[at..end].to_vec();
                if self.with(|options| change(options, &chunk)) {
                    rest.drain(at..end);
                } else {
                    at = end;
                }
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    /// A run that fails before its faults stop need not be longer than that.
    fn end_at_the_violation(&mut self) {
        let steps = self.best.step + 1;
        if steps < self.best.options.steps {
            self.with(|options| options.steps = steps);
        }
    }

    fn leave_out_kinds(&mut self) {
        let without = &self.best.options.overrides.without;
        let kinds = FaultKind::ALL.into_iter().filter(|kind| !without.contains(kind)).collect();
        self.leave_out(kinds, |options, kinds| options.overrides.without.extend(kinds));
    }

    fn leave_out_adversaries(&mut self) {
        let Plan { faults, liars, attacks, .. } = Plan::draw(&self.best.options);
        if self.best.options.liars.is_some() && self.best.options.faults.is_none() {
            // The group was drawn to have room for these liars.
            self.with(|options| options.faults = Some(faults));
        }
        self.fewer(liars, |options, liars| options.liars = Some(liars));
        self.fewer(attacks, |options, attacks| options.attacks = Some(attacks));
    }

    /// None of a list, or all but single ones.
    fn fewer<T: Clone>(&mut self, mut list: Vec<T>, set: impl Fn(&mut SimulationOptions, Vec<T>)) {
        if list.is_empty() || self.with(|options| set(options, Vec::new())) {
            return;
        }
        let mut at = 0;
        while at < list.len() && list.len() > 1 {
            let mut fewer = list.clone();
            fewer.remove(at);
            if self.with(|options| set(options, fewer.clone())) {
                list = fewer;
            } else {
                at += 1;
            }
        }
    }

    fn leave_out_events(&mut self) {
        let skipped = &self.best.options.overrides.skip_faults;
        let events = (1..=self.best.faults).filter(|number| !skipped.contains(*number)).collect();
        self.leave_out(events, |options, events| {
            let skipped = &mut options.overrides.skip_faults;
            *skipped = skipped.and(events.iter().copied());
        });
    }

    fn simplify(&mut self) {
        let simpler = &self.best.options.overrides.simpler;
        let parts = Simpler::ALL.into_iter().filter(|part| !simpler.contains(part)).collect();
        self.leave_out(parts, |options, parts| options.overrides.simpler.extend(parts));
    }

    /// Fewer clients, callers and keys: one, or two.
    fn leave_out_load(&mut self) {
        for count in [1, 2] {
            if self.best.options.overrides.clients.is_none_or(|known| known > count) {
                self.with(|options| options.overrides.clients = Some(count));
            }
            if self.best.options.overrides.callers.is_none_or(|known| known > count) {
                self.with(|options| options.overrides.callers = Some(count));
            }
            if self.best.options.overrides.keys.is_none_or(|known| known > count as u64) {
                self.with(|options| options.overrides.keys = Some(count as u64));
            }
        }
    }

    /// Fewer steps, by a half, a quarter, ... of what is left.
    fn leave_out_steps(&mut self) {
        let mut part = 2;
        while part <= 64 && !self.exhausted() {
            self.end_at_the_violation();
            let steps = self.best.options.steps;
            let fewer = steps - (steps / part).max(1);
            if steps <= 1 || !self.with(|options| options.steps = fewer) {
                part *= 2;
            }
        }
    }
}

impl Shrunk {
    /// Fault events that happen in the smallest run.
    #[must_use]
    pub fn events(&self) -> u64 {
        let skipped: &Numbers = &self.violation.options.overrides.skip_faults;
        self.violation.faults - skipped.len() as u64
    }
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (&self.from, &self.violation);
        let end = if self.minimal { "nothing more can be left out" } else { "more is not tried" };
        writeln!(
            f,
            "shrunk in {} runs, {end}: from {} steps to {}, from {} fault events to {}",
            self.runs,
            from.options.steps,
            to.options.steps,
            from.faults,
            self.events()
        )?;
        write!(f, "{to}\n  to read: {} --trace -", to.options)
    }
}

#[cfg(test)]
mod tests;
