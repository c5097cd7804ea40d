//! How long clients have waited, and whether it is the group that lets them wait: not while a replica
//! has just failed, one is needed that executes slowly and has yet to come to what others executed without it, a client's own machine stands still, or a command waits as it was asked to.

use super::clock;
use super::{Event, World};
use crate::checkers::{progress, waits};
use perdura_adversary::Strategy;
use perdura_protocol::{SessionId, Slot, Time};

/// Time between two looks at how long calls wait, microseconds.
const WATCH_US: u64 = 250_000;

impl World {
    /// In liveness mode: no call waits for long while no other replica fails.
    pub(crate) fn watch_calls(&mut self) {
        self.push(WATCH_US, Event::Watch);
        if self.ending.calm() && !self.ending.begun() {
            return; // Until the outage more may be cut off than are promised to be.
        }
        if self.waits_for_stages() {
            self.stage_awaited_us = self.now_us;
        }
        let disturbed_us = self.disturbed_us.max(self.stage_awaited_us);
        let mut waiting = None;
        for (client, here) in self.clients.iter().enumerate() {
            let patient = here.open.values().filter(|(record, _)| self.calls[*record].patient);
            let since = |record: usize| self.asked_us(client, record).max(disturbed_us);
            let longest = patient.map(|(record, _)| (since(*record), client, *record)).min();
            waiting = waiting.into_iter().chain(longest).min();
        }
        if let Some((since_us, client, record)) = waiting {
            let calm_us = self.now_us.saturating_sub(since_us);
            self.report.longest_wait_us = self.report.longest_wait_us.max(calm_us);
            let withholding = self.plan.liars.iter().filter(|liar| **liar == Strategy::Withhold);
            let leaders = (1 << withholding.count()) - 1;
            let timeout_us = progress::TIMEOUT_US + progress::WITHHELD_US * leaders;
            self.check(progress::waits(client, record, calm_us, timeout_us));
        }
        if let Some(deadline) = self.checkers.waits.due() {
            let since_us = self.all_show_us(deadline).max(disturbed_us);
            let late_us = self.now_us.saturating_sub(since_us);
            self.report.spaces.latest_us = self.report.spaces.latest_us.max(late_us);
            self.check(waits::late(deadline, late_us));
        }
    }

    /// Whether a quorum of correct replicas lacks some that execute slowly, and have yet to come to what the fastest of them executed: one may have
    /// been hundreds of slots behind when others failed and it was needed. That it gets on, the checker of standstill sees.
    fn waits_for_stages(&self) -> bool {
        let executed = |replica: usize| {
            let process =
                self.replicas[replica].process.as_ref().filter(|_| !self.is_liar(replica));
            process.map(|process| process.executed)
        };
        let highest = (0..self.n()).filter_map(executed).max().unwrap_or_default();
        let near = |slot: Slot| slot.plus(self.plan.depth) >= highest;
        let takes_long = |replica: usize| {
            self.plan.stages.get(replica).copied().flatten().is_some_and(|us| us > 0)
        };
        let with_it = (0..self.n()).filter_map(executed).filter(|slot| near(*slot)).count();
        let behind = (0..self.n()).filter(|replica| takes_long(*replica));
        let behind = behind.filter_map(executed).filter(|slot| !near(*slot)).count();
        let quorum = self.plan.faults.agreement_quorum();
        with_it < quorum && with_it + behind >= quorum
    }

    /// When all clocks in order show an agreed time.
    fn all_show_us(&self, time: Time) -> u64 {
        clock::all_show_us(time, self.parameters.max_skew_ms)
    }

    /// When all clocks in order show what was agreed on: where several that were not led agreed time ahead, much later.
    pub(crate) fn caught_up_us(&self) -> u64 {
        self.checkers.agreed_time.latest().map_or(0, |time| self.all_show_us(time))
    }

    /// Whether a command waits that all clocks say has waited for long enough.
    pub(crate) fn is_overdue(&self) -> bool {
        self.checkers.waits.due().is_some_and(|due| self.all_show_us(due) < self.now_us)
    }

    /// Since when the group owes an answer to a call, microseconds; not before its client was there to
    /// take it, nor while the command has to wait.
    pub(crate) fn asked_us(&self, client: usize, record: usize) -> u64 {
        let call = &self.calls[record];
        let asked_us = call.invoked_us.max(self.clients[client].excused_us);
        let Some((session, number)) = call.number.filter(|_| self.has_spaces()) else {
            return asked_us;
        };
        let waits = &self.checkers.waits;
        let until = waits.deadline(session, number).map(|deadline| self.all_show_us(deadline));
        let answered = waits.answered(session, number).map(|answered| answered.at_us);
        asked_us.max(until.or(answered).unwrap_or(0))
    }

    /// The slot by which a client's reply was there, if it was.
    pub(crate) fn answered_in(&self, session: SessionId, number: u64) -> Option<Slot> {
        let waited = self.checkers.waits.answered(session, number).map(|answered| answered.slot);
        waited.or_else(|| self.checkers.exactly_once.slot_of(session, number))
    }
}
