//! The end of a run: nothing goes wrong any more, what is down starts, calls end, the group comes
//! to rest; perhaps all crash once more; a client reads everything; then the whole history is
//! judged.

use super::workload::read_everything;
use super::{Event, World};
use crate::checkers::commit_order::{self, Seen, Told};
use crate::checkers::progress::{self, CONVERGENCE_US};
use crate::linearizability::{self, Call, Operation, Outcome, Return, Verdict};
use crate::options::Mode;
use crate::plan::NetworkPlan;
use crate::report::FaultKind;
use crate::violation::Broken;
use perdura_replica::node::State;

pub use crate::linearizability::History;

/// Time between two looks, microseconds.
const LOOK_US: u64 = 50_000;

/// Looks in a row at which all must be at rest: word of the last decisions travels by status.
const LOOKS_AT_REST: u32 = 3;

/// A run with fewer fault events that took effect is a quiet one.
const QUIET: u64 = 3;

/// Configurations that the search visits in a run; beyond it the witness alone judges.
const SEARCH_BUDGET: usize = 30_000;

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    begun: bool,
    repented: bool,
    looks_at_rest: u32,
    since_us: u64,
}

impl Ending {
    /// Whether faults and new calls have stopped.
    #[must_use]
    pub fn begun(self) -> bool {
        self.begun
    }

    /// Whether liars behave from now on as correct replicas do.
    #[must_use]
    pub fn repented(self) -> bool {
        self.repented
    }
}

impl World {
    pub(crate) fn end(&mut self) {
        self.all_is_well();
        self.come_to_rest();
        if !self.failed() && self.random.percent(50) && self.allows(FaultKind::CrashOfAll) {
            self.crash_all();
            self.come_to_rest();
        }
        if self.failed() {
            return;
        }
        let before = self.report.calls.ok;
        self.call(0, 0, read_everything());
        self.come_to_rest();
        if self.report.calls.ok == before && !self.failed() {
            self.fail(progress::no_convergence("the last read got no answer"));
        }
        self.judge();
    }

    /// Faults and new calls stop, and what is down starts.
    pub(crate) fn all_is_well(&mut self) {
        self.ending.begun = true;
        self.disturbed_us = self.now_us;
        self.ending.repented = self.may_stop();
        self.report.quiet = u64::from(self.report.struck < QUIET);
        self.trace.line(self.now_us, format_args!("all is well from here on"));
        self.network.plan = NetworkPlan::CALM;
        self.heal_all();
        for replica in 0..self.n() {
            if self.ending.repented {
                self.crash_process(replica);
            }
            self.start(replica);
        }
    }

    /// Whether the group may rightly stand still as long as liars lie: with those whose disks are
    /// without something more than `u` have failed. All replicas start anew then: a vote that a liar
    /// gave for a view to come counts as its last as long as anybody remembers it.
    fn may_stop(&mut self) -> bool {
        let lies = |replica: &usize| self.is_liar(*replica) || self.forgot(*replica);
        let liars = (0..self.n()).filter(lies).count();
        self.plan.mode == Mode::Safety && liars + self.hurt() > self.plan.faults.u()
    }

    /// Runs until all replicas are up and equal and all calls have ended.
    pub(crate) fn come_to_rest(&mut self) {
        self.ending.looks_at_rest = 0;
        self.ending.since_us = self.now_us;
        self.push(LOOK_US, Event::Look);
        self.run_while(|world| world.ending.looks_at_rest < LOOKS_AT_REST);
    }

    pub(crate) fn look(&mut self) {
        match self.unrest() {
            None => self.ending.looks_at_rest += 1,
            Some(what) => {
                self.ending.looks_at_rest = 0;
                if self.now_us > self.ending.since_us + CONVERGENCE_US {
                    self.fail(progress::no_convergence(&what));
                    return;
                }
            }
        }
        if self.ending.looks_at_rest < LOOKS_AT_REST {
            self.push(LOOK_US, Event::Look);
        }
    }

    /// What is not at rest yet.
    fn unrest(&self) -> Option<String> {
        if self.open_calls() > 0 {
            return Some(format!("{} calls are open", self.open_calls()));
        }
        if self.replacement.is_some() {
            return Some("a replacement is not ordered".to_owned());
        }
        let last = self.checkers.agreement.last();
        for (index, replica) in self.replicas.iter().enumerate() {
            if replica.liar.is_some() {
                continue;
            }
            let Some(process) = &replica.process else {
                return Some(format!("replica {index} is down"));
            };
            let report = process.node.report();
            if report.state != State::Active || report.executed != last {
                return Some(format!(
                    "replica {index} is {:?} in view {} at slot {}, others at {last}",
                    report.state, report.view, report.executed
                ));
            }
        }
        None
    }

    /// Compares the states, and holds the history against its order and any other.
    pub(crate) fn judge(&mut self) {
        for index in 0..self.n() {
            let Some(process) = &self.replicas[index].process else { continue };
            let report = process.node.report();
            self.report.add_counters(&report.counters);
            if self.is_liar(index) {
                continue;
            }
            self.report.highest_view = self.report.highest_view.max(report.view.0);
            let manifest = process.node.machine().snapshot().manifest();
            let (slot, digest) = (manifest.slot, manifest.digest());
            let check = self.checkers.equal_states.state(index, slot, digest);
            self.check(check);
            self.check(self.checkers.durability.recovered(index, slot));
        }
        self.report.longest_catch_up_us = self.checkers.standstill.longest_us();
        let told: Vec<Told> = self
            .calls
            .iter()
            .map(|call| Told {
                number: call.number,
                command: call.command.clone(),
                invoked: call.invoked,
                ended: call.ended,
                seen: call.seen.clone(),
            })
            .collect();
        self.check(commit_order::check(self.checkers.exactly_once.order(), &told));
        self.check_order();
        let history = self.history();
        match linearizability::check(&history, SEARCH_BUDGET) {
            Verdict::Linearizable => {}
            Verdict::Undecided => self.report.searches_given_up += 1,
            Verdict::Violated(what) => self.fail(Broken::new("Linearizability", what)),
        }
    }

    /// What the clients did and saw.
    #[must_use]
    pub fn history(&self) -> History {
        let operations = self
            .calls
            .iter()
            .map(|call| Operation {
                process: call.process,
                invoked: call.invoked,
                ended: call.ended,
                call: Call::from(&call.command),
                outcome: match &call.seen {
                    Seen::Ok(reply) => Outcome::Ok(Return::from(reply)),
                    Seen::NotSent | Seen::RefusedInOrder => Outcome::Refused,
                    Seen::Unknown => Outcome::Unknown,
                },
            })
            .collect();
        History { operations }
    }
}
