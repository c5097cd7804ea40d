//! The end of a run: nothing goes wrong any more, tasks end what they are about, what processes left that died is ended for them, all groups
//! come to rest, and everything is judged.

use super::desk::{Running, lock};
use super::resolver::SimulatedResolver;
use super::workload::Caller;
use super::{Deployment, Role};
use crate::checkers::transactions::{self, Ran, Treasury};
use crate::report::{FaultKind, Mark, TransactionCounts};
use crate::violation::Broken;
use crate::world::World;
use perdura_protocol::PublicKey;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// All is over in this time once nothing goes wrong any more, and clocks have caught up with agreed times, microseconds.
const END_US: u64 = 300_000_000;

/// And nothing is pending any more, whoever left it, in this time once somebody goes about ending it and all groups are up: two seconds until
/// it has expired, and what looks take, microseconds.
const ENDED_US: u64 = 5_000_000;

/// Deadline of the last look, milliseconds.
const LOOK_MS: u64 = 60_000;

impl Deployment {
    pub(super) fn end(&mut self) {
        self.bear_a_hog();
        self.close();
        self.worlds.iter_mut().for_each(World::all_is_well);
        self.finish("tasks end", |all| all.clients.iter().all(|client| !client.is_busy()));
        self.forget_ended();
        self.finish("what is over is said to be", |all| {
            all.clients.iter().all(|client| !client.is_busy())
        });
        self.finish("members are known", Deployment::members_are_known);
        self.resolve();
        self.rest();
        self.crash();
        self.look();
        self.finish("the last look ends", |all| all.clients.iter().all(|client| !client.is_busy()));
        self.rest();
        // What was under way for processes that died may have come since.
        self.resolve();
        self.rest();
        if self.plan.forgets && !self.failed() {
            self.forget();
            self.rest();
        }
        if !self.failed() {
            self.judge();
        }
    }

    /// Runs until something is so.
    pub(super) fn finish(&mut self, what: &str, is_so: impl Fn(&Deployment) -> bool) {
        let from_us = self.now_us;
        let until_us = |all: &Deployment| from_us.max(all.caught_up_us()) + END_US;
        self.run_while(|all| all.now_us < until_us(all) && !is_so(all));
        if !self.failed() && !is_so(self) {
            let what = format!("all is well for {} s, and not yet so: {what}", END_US / 1_000_000);
            self.fail(Broken::new("Progress (transactions)", what));
        }
    }

    /// When all clocks show what was agreed on.
    pub(super) fn caught_up_us(&self) -> u64 {
        self.worlds.iter().map(World::caught_up_us).max().unwrap_or(0)
    }

    /// Tasks begin nothing more, and nobody dies.
    fn close(&mut self) {
        self.closing = true;
        self.draw_death();
        for client in 0..self.clients.len() {
            if self.clients[client].process.is_none() {
                self.start(client);
            }
            if let Some(process) = &self.clients[client].process {
                lock(&process.desk).closing = true;
            }
        }
        for world in &mut self.worlds {
            world.come_to(self.now_us);
        }
    }

    /// Each process that is left says what is over.
    fn forget_ended(&mut self) {
        for client in 0..self.plan.callers {
            let caller = self.caller(client, "forget");
            self.begin(client, caller.map(|caller| Box::pin(caller.forget_ended()) as Running));
        }
    }

    /// What is pending is ended.
    fn resolve(&mut self) {
        let from_us = Cell::new(self.now_us.max(self.caught_up_us()));
        let task = self.resolver().map(|resolver| Box::pin(resolver.end_all()) as Running);
        self.begin(self.clients.len() - 1, task);
        self.finish("what is pending is ended", |all| {
            if !all.worlds.iter().all(World::is_up) {
                // A view whose leader lies may take its whole time-out.
                from_us.set(all.now_us.max(from_us.get()));
            }
            all.clients.iter().all(|client| !client.is_busy())
        });
        let took_us = self.now_us.saturating_sub(from_us.get());
        let longest_us = &mut self.report.transactions.longest_end_us;
        *longest_us = took_us.max(*longest_us);
        if took_us > ENDED_US && !self.failed() {
            let what = format!("what was pending is ended after {:.1} s", took_us as f64 / 1e6);
            self.fail(Broken::new("Expiry (transactions)", what));
        }
    }

    /// What is over is forgotten, of correct clients, once their sessions have ended.
    fn forget(&mut self) {
        let hostile = self.hostile();
        let task =
            self.resolver().map(|resolver| Box::pin(resolver.forget_all(hostile)) as Running);
        self.begin(self.clients.len() - 1, task);
        self.finish("what is over is forgotten", |all| {
            all.clients.iter().all(|client| !client.is_busy())
        });
        let resolver = self.clients.last().and_then(|client| client.transactions.as_ref());
        let forgotten = resolver.map_or(0, |transactions| transactions.counters().forgotten);
        self.report.reached_times(Mark::ForgottenForOthers, forgotten);
    }

    fn resolver(&self) -> Option<SimulatedResolver> {
        let transactions = self.clients.last()?.transactions.clone()?;
        Some(SimulatedResolver::new(transactions, self.plan.partitions))
    }

    fn hostile(&self) -> BTreeSet<PublicKey> {
        let hostile = self.clients.iter().filter(|client| client.role == Role::Hostile);
        hostile.map(|client| client.key.public()).collect()
    }

    /// A client reads all the money.
    fn look(&mut self) {
        let deadline_ms = self.now_us / 1_000 + LOOK_MS;
        let caller = self.caller(0, "last");
        let task = caller.map(|caller| Box::pin(caller.look(deadline_ms)) as Running);
        self.begin(0, task);
    }

    fn caller(&self, client: usize, name: &str) -> Option<Caller> {
        let transactions = self.clients[client].transactions.clone()?;
        let history = Arc::clone(&self.history);
        let random = self.random.fork(name);
        Some(Caller::new(transactions, history, (client, name.to_owned()), self.plan, random))
    }

    fn begin(&mut self, client: usize, task: Option<Running>) {
        let process = self.clients[client].process.as_mut();
        if let (Some(process), Some(task)) = (process, task) {
            let number = process.begin(task);
            process.busy.insert(number);
        }
        self.work();
    }

    /// All groups come to rest.
    fn rest(&mut self) {
        for world in &mut self.worlds {
            world.come_to(self.now_us);
            world.begin_to_rest();
        }
        self.run_while(|all| !all.worlds.iter().all(World::is_at_rest));
    }

    /// In some groups all replicas crash once more.
    fn crash(&mut self) {
        for world in 0..self.worlds.len() {
            let here = &mut self.worlds[world];
            if self.random.percent(30) && here.allows(FaultKind::CrashOfAll) {
                here.crash_all();
            }
        }
        self.rest();
    }

    fn judge(&mut self) {
        self.worlds.iter_mut().for_each(World::judge);
        if self.failed() {
            return;
        }
        for client in &self.clients {
            let process = client.process.as_ref();
            self.report.transactions.attacks +=
                process.map_or(0, |process| lock(&process.desk).attacks);
            if let Some(client) = &client.transactions {
                super::count(&mut self.report, client);
            }
        }
        let accounts = super::workload::accounts(&self.plan);
        let total = super::workload::MONEY * accounts.len() as i64;
        let hostile = self.hostile();
        let judged = {
            let history = super::history::open(&self.history);
            let groups: Vec<Ran<'_>> = self.worlds.iter().map(World::ran).collect();
            let treasury = Treasury { accounts, total };
            transactions::judge(&groups, &history.operations, &self.map, &hostile, &treasury)
        };
        match judged {
            Ok(counts) => self.take_counts(counts),
            Err(broken) => self.fail(broken),
        }
    }

    fn take_counts(&mut self, counts: TransactionCounts) {
        let of_clients = self.report.transactions;
        self.report.transactions.add(&counts);
        let [_, _, cap, room] = counts.aborts;
        let [fenced, silent, resolved, _] = counts.other_aborts;
        for (mark, count) in [
            (Mark::OutdatedRefused, counts.outdated),
            (Mark::TransactionEndedForOthers, of_clients.ended_for_others),
            (Mark::TransactionExpired, counts.expired),
            (Mark::AbortedUnseen, resolved),
            (Mark::RecordsForgotten, counts.forgotten),
            (Mark::FencedOff, fenced),
            (Mark::OutOfReach, silent),
            (Mark::NoRoom, room),
            (Mark::CapReached, cap),
            (Mark::LockMet, counts.blocked),
        ] {
            if count > 0 {
                self.report.reached_times(mark, count);
            }
        }
    }
}
