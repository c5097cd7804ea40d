//! Who waits gets in: while all partitions answer, and one key lies at most, no correct caller is refused for long because others have what it needs.

use super::desk::lock;
use super::history::{Operation, Told, open};
use super::{Deployment, Role};
use crate::report::Mark;
use crate::violation::Broken;
use crate::world::World;

/// Groups that are not up by then are not waited for, microseconds.
const UP_US: u64 = 15_000_000;

/// By so much agreed time is ahead of clocks at most, microseconds.
const APART_US: u64 = 2_000_000;

/// What began before has ended by then, microseconds.
const SETTLED_US: u64 = 10_000_000;

/// For so long one key takes all that it can, microseconds.
const BORNE_US: u64 = 32_000_000;

/// No correct caller is kept waiting for longer, milliseconds.
const WAITS_MS: u64 = 20_000;

impl Deployment {
    /// Nothing goes wrong but that one key takes all that it can.
    pub(super) fn bear_a_hog(&mut self) {
        // A leader that lies costs time of its own.
        if !self.plan.hogs || self.worlds.iter().any(|world| !world.liars().is_empty()) {
            return;
        }
        self.calm = true;
        self.draw_death();
        self.worlds.iter_mut().for_each(World::all_is_well);
        for client in 0..self.clients.len() {
            if self.clients[client].process.is_none() {
                self.start(client);
            }
        }
        let until_us = self.now_us + UP_US;
        let is_up = |all: &Deployment| {
            all.worlds.iter().all(World::is_up) && all.caught_up_us() < all.now_us + APART_US
        };
        self.run_while(|all| all.now_us < until_us && !is_up(all));
        if self.failed() || !is_up(self) {
            // Some replicas are only replaced at the end.
            return;
        }
        self.hogs = true;
        for client in self.clients.iter().filter(|client| client.role == Role::Hostile) {
            if let Some(process) = &client.process {
                lock(&process.desk).hogs = true;
            }
        }
        let from_us = self.now_us + SETTLED_US;
        self.run_while(|all| all.now_us < from_us + BORNE_US);
        if !self.failed() {
            self.judge_fairness(from_us / 1_000);
        }
    }

    fn judge_fairness(&mut self, from_ms: u64) {
        let now_ms = self.now_us / 1_000;
        let kept = {
            let history = open(&self.history);
            let waited_ms = |one: &Operation| one.ended_ms.unwrap_or(now_ms) - one.invoked_ms;
            let is_in_vain = |one: &&Operation| match &one.told {
                None => true,
                Some(Told::Refused(why)) => why.contains("deadline passed"),
                Some(Told::Unknown(_)) => true,
                Some(_) => false,
            };
            let begun = history.operations.iter().filter(|one| one.invoked_ms >= from_ms);
            let kept = begun.filter(is_in_vain).find(|one| waited_ms(one) > WAITS_MS);
            kept.map(|one| format!("{one:?} was kept waiting for {} ms", waited_ms(one)))
        };
        self.report.reached(Mark::HogBorne);
        if let Some(what) = kept {
            self.fail(Broken::new("Fair (transactions)", what));
        }
    }
}
