//! The end of a run: nothing goes wrong any more, what is down starts, calls end, the group comes
//! to rest; perhaps all crash once more; a client reads everything; then the whole history is
//! judged.

use super::clients::CallRecord;
use super::workload::{Asked, read_everything};
use super::{Event, World, spaces as space_workload};
use crate::checkers::commit_order::{self, Seen, Told};
use crate::checkers::progress::{self, CONVERGENCE_US};
use crate::checkers::spaces;
use crate::options::Mode;
use crate::plan::NetworkPlan;
use crate::report::{FaultKind, Mark};
use crate::violation::Broken;
use crate::witness::Execution;
use bytes::Bytes;
use perdura_oracle::{Call, Operation, Outcome, Return, Verdict};
use perdura_protocol::{Command, Decode, Encode, Slot};
use perdura_replica::node::State;
use perdura_store::StoreReply;
use perdura_tuples::TupleReply;

pub use perdura_oracle::History;

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
    calm: bool,
    begun: bool,
    repented: bool,
    looks_at_rest: u32,
    since_us: u64,
}

impl Ending {
    /// Whether faults have stopped, and calls go on.
    #[must_use]
    pub fn calm(self) -> bool {
        self.calm
    }

    /// No more faults.
    pub fn calm_down(&mut self) {
        self.calm = true;
    }

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
        let some_are_away = self.outage();
        self.all_is_well();
        self.come_to_rest();
        if some_are_away && !self.failed() {
            // Those that are back go on, and know everything.
            self.read_everything();
            self.come_back();
            self.come_to_rest();
        }
        if !self.failed() && self.random.percent(50) && self.allows(FaultKind::CrashOfAll) {
            self.let_wait();
            self.crash_all();
            self.come_to_rest();
        }
        if self.failed() {
            return;
        }
        self.read_everything();
        self.judge();
    }

    /// In tuple spaces somebody waits in vain from here on: once all have crashed, nothing but the
    /// deadline gives the group a reason to order anything.
    fn let_wait(&mut self) {
        let record = self.calls.len();
        if self.has_spaces() && self.call(0, 0, space_workload::wait_in_vain()) {
            self.run_while(|world| !world.waits(record) && world.is_open(record));
        }
    }

    /// Whether a call's command is known to wait.
    fn waits(&self, record: usize) -> bool {
        let number = self.calls[record].number;
        number.is_some_and(|(of, number)| self.checkers.waits.deadline(of, number).is_some())
    }

    /// A client reads everything. Its session may be one that agreed time leapt over: then it has another one, and reads again.
    fn read_everything(&mut self) {
        if !self.reads_everything() && !self.failed() && !self.reads_everything() {
            self.fail(progress::no_convergence("the last read got no answer"));
        }
    }

    /// Whether it did.
    fn reads_everything(&mut self) -> bool {
        let first = self.calls.len();
        if self.has_spaces() {
            for request in space_workload::read_everything() {
                self.call(0, 0, request);
            }
        } else if let Some(guest) = self.guest.clone() {
            // Whatever it asks for, it has to be answered.
            let request = self.clients[0].last_of(&*guest);
            self.call(0, 0, request);
        } else {
            self.call(0, 0, read_everything());
        }
        self.come_to_rest();
        // Nobody knows which spaces there are.
        let answered = |seen: &Seen<Bytes>| match seen {
            Seen::Ok(_) => true,
            Seen::RefusedInOrder => self.has_spaces() || self.guest.is_some(),
            Seen::NotSent | Seen::Unknown => false,
        };
        let last = &self.calls[first..];
        !last.is_empty() && last.iter().all(|call| answered(&call.seen))
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
        if self.has_spaces() {
            self.heal_clients();
        }
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
        self.begin_to_rest();
        self.run_while(|world| !world.is_at_rest());
    }

    /// From now on it is looked whether that is so.
    pub(crate) fn begin_to_rest(&mut self) {
        self.ending.looks_at_rest = 0;
        self.ending.since_us = self.now_us;
        self.push(LOOK_US, Event::Look);
    }

    /// Whether it is so.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ending.looks_at_rest >= LOOKS_AT_REST
    }

    /// Whether all replicas that are members and do not lie take part in a view.
    pub(crate) fn is_up(&self) -> bool {
        self.replicas.iter().enumerate().all(|(index, replica)| {
            let counts = !replica.away && (replica.liar.is_none() || self.is_repaired(index));
            let process = replica.process.as_ref();
            !counts || process.is_some_and(|process| process.node.report().state == State::Active)
        })
    }

    pub(crate) fn look(&mut self) {
        match self.unrest() {
            None => self.ending.looks_at_rest += 1,
            Some(what) => {
                self.ending.looks_at_rest = 0;
                if self.now_us > self.ending.since_us + CONVERGENCE_US {
                    self.check_remembered();
                    self.fail(progress::no_convergence(&what));
                    return;
                }
            }
        }
        if self.ending.looks_at_rest < LOOKS_AT_REST {
            self.push(LOOK_US, Event::Look);
        }
    }

    /// A group that does not come to rest may have forgotten what clients were told of.
    fn check_remembered(&mut self) {
        let correct = (0..self.n()).filter(|replica| !self.is_liar(*replica));
        let executed: Vec<Slot> = correct
            .filter_map(|replica| Some(self.replicas[replica].process.as_ref()?.executed))
            .collect();
        let check = self.checkers.durability.remembered(executed.into_iter());
        self.check(check);
    }

    /// What is not at rest yet.
    fn unrest(&self) -> Option<String> {
        if self.open_calls() > 0 {
            return Some(format!("{} calls are open", self.open_calls()));
        }
        if self.replacement.is_some() {
            return Some("a replacement is not ordered".to_owned());
        }
        if self.is_overdue() {
            return Some("a command waits whose deadline has passed".to_owned());
        }
        let last = self.checkers.agreement.last();
        for (index, replica) in self.replicas.iter().enumerate() {
            if replica.away || (replica.liar.is_some() && !self.is_repaired(index)) {
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
            if self.is_liar(index) && !self.is_repaired(index) {
                continue;
            }
            self.report.highest_view = self.report.highest_view.max(report.view.0);
            let manifest = process.machine().snapshot().manifest();
            let (slot, digest) = (manifest.slot, manifest.digest());
            let check = self.checkers.equal_states.state(index, slot, digest);
            self.check(check);
            if !self.is_liar(index) {
                self.check(self.checkers.durability.recovered(index, slot));
            }
        }
        self.report.longest_catch_up_us = self.checkers.standstill.longest_us();
        if self.has_spaces() {
            self.check_boundaries();
            self.judge_spaces();
            return;
        }
        if self.is_partition() {
            self.check_boundaries();
            self.check_told();
            return;
        }
        if let Some(guest) = self.guest.clone() {
            self.check_boundaries();
            self.check_footprints();
            self.judge_guest(&guest);
            return;
        }
        let told: Vec<Told> = self.calls.iter().filter_map(told).collect();
        self.check(commit_order::check(self.checkers.exactly_once.order(), &told));
        self.check_boundaries();
        self.check_footprints();
        let history = self.history();
        match perdura_oracle::check(&history, SEARCH_BUDGET) {
            Verdict::Linearizable => {}
            Verdict::Undecided => self.report.searches_given_up += 1,
            Verdict::Violated(what) => self.fail(Broken::new("Linearizability", what)),
        }
    }

    /// What the clients of a key-value store did and saw.
    #[must_use]
    pub fn history(&self) -> History {
        let operation = |call: &CallRecord| {
            let told = told(call)?;
            Some(Operation {
                process: call.process,
                invoked: told.invoked,
                ended: told.ended,
                call: Call::from(&told.command),
                outcome: match &told.seen {
                    Seen::Ok(reply) => Outcome::Ok(Return::from(reply)),
                    Seen::NotSent | Seen::RefusedInOrder => Outcome::Refused,
                    Seen::Unknown => Outcome::Unknown,
                },
            })
        };
        History { operations: self.calls.iter().filter_map(operation).collect() }
    }

    /// Holds what happened in tuple spaces against their model, and locks against what they promise.
    fn judge_spaces(&mut self) {
        let mut processes = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        let Some(machine) = processes.next().map(|process| process.machine()) else { return };
        let footprint = |execution: &Execution| {
            let command = Command::Service(execution.command.clone()).to_bytes();
            machine.inspector().footprint(execution.session, &command)
        };
        let told: Vec<spaces::Told> = self.calls.iter().filter_map(told_of_spaces).collect();
        let waits = &self.checkers.waits;
        let judged = spaces::check(waits.slots(), footprint, &told).and_then(|judged| {
            let steps = waits.slots().flat_map(|(_, steps)| steps);
            Ok((judged, self.checkers.fencing.judge(steps)?))
        });
        let (judged, locks) = match judged {
            Ok(judged) => judged,
            Err(broken) => return self.fail(broken),
        };
        let counts = &mut self.report.spaces;
        counts.leases_ended += judged.leases_ended;
        counts.most_left = counts.most_left.max(judged.leases_left);
        counts.partly_deleted += judged.partly_deleted;
        counts.renewed += judged.renewed;
        counts.locks += locks.taken;
        counts.taken_over += locks.taken_over;
        counts.claims += judged.claims_served;
        counts.jobs_returned += judged.jobs_returned;
        for (mark, count) in [
            (Mark::LeaseEnded, judged.leases_ended),
            (Mark::LeaseRenewed, judged.renewed),
            (Mark::RenewedTooLate, judged.renewed_too_late),
            (Mark::SpaceDeletedInParts, judged.partly_deleted),
            (Mark::EndedLeasesLeft, judged.leases_left.min(1)),
            (Mark::LockTakenOver, locks.taken_over),
            (Mark::LockBroken, locks.broken),
            (Mark::ClaimServed, judged.claims_served),
            (Mark::ClaimServedByEnd, judged.claims_by_ended),
            (Mark::JobCameBack, judged.jobs_returned),
            (Mark::LostJobRefused, judged.finished_too_late),
        ] {
            if count > 0 {
                self.report.reached_times(mark, count);
            }
        }
    }
}

/// A call of the key-value store.
fn told(call: &CallRecord) -> Option<Told> {
    let Asked::Store(command) = &call.command else { return None };
    Some(Told {
        number: call.number,
        command: command.clone(),
        invoked: call.invoked,
        ended: call.ended,
        seen: call.seen.read(|bytes| StoreReply::from_bytes(bytes.clone()).ok()),
    })
}

/// A call of the tuple spaces.
fn told_of_spaces(call: &CallRecord) -> Option<spaces::Told> {
    let Asked::Spaces(command) = &call.command else { return None };
    Some(spaces::Told {
        number: call.number,
        client: call.client,
        command: command.clone(),
        invoked: call.invoked,
        ended: call.ended,
        seen: call.seen.read(|bytes| TupleReply::from_bytes(bytes.clone()).ok()),
    })
}
