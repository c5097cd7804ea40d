//! What goes wrong with client processes of tuple spaces, besides that they end: they stand still
//! while their leases end, and their clocks jump.

use super::clock::ClockFault;
use super::{Event, World};
use crate::report::FaultKind;

/// Longest pause, microseconds, about that of the longer leases of locks.
const PAUSE_US: u64 = 6_000_000;

/// Most that a monotonic clock jumps ahead, milliseconds: a machine that was suspended.
const LEAP_MS: u64 = 20_000;

/// An hour, milliseconds: how far a wall clock jumps.
const HOUR_MS: i64 = 3_600_000;

impl World {
    pub(crate) fn schedule_client_fault(&mut self) {
        let delay = self.client_random.between(1_000, self.plan.chaos.interval_us);
        self.push(delay, Event::ClientFault);
    }

    pub(crate) fn on_client_fault(&mut self) {
        if self.ending.begun() {
            return;
        }
        self.schedule_client_fault();
        let random = &mut self.client_random;
        // The administrator is the last, and not meant.
        let client = random.below(self.clients.len() as u64 - 1) as usize;
        let pauses = random.percent(50);
        let (pause_us, by_ms) = (random.between(1_000, PAUSE_US), random.between(1, LEAP_MS));
        let (ahead, both) = (random.percent(50), random.percent(50));
        let kind = if pauses { FaultKind::ClientPause } else { FaultKind::ClientClockJump };
        let allowed = self.options.overrides.allow(kind) && self.plan.chaos.has(kind);
        let running = self.clients[client].core.is_some();
        if !allowed || !running || self.clients[client].paused_until_us > self.now_us {
            return;
        }
        self.fired(kind);
        if pauses {
            self.pause_client(client, pause_us);
        } else {
            let jump = ClockFault::Jump(if ahead { HOUR_MS } else { -HOUR_MS });
            self.trace
                .line(self.now_us, format_args!("clock of c{client}: {jump:?}, {both}, {by_ms}"));
            self.clients[client].clock.disturb(self.now_us, jump);
            if both {
                self.clients[client].clock.leap(self.now_us, by_ms);
                self.clients[client].excused_us = self.now_us;
                self.clock_leapt(client);
            }
        }
    }

    fn pause_client(&mut self, client: usize, pause_us: u64) {
        self.trace.line(self.now_us, format_args!("c{client} pauses for {} ms", pause_us / 1000));
        let here = &mut self.clients[client];
        here.paused_until_us = self.now_us + pause_us;
        here.excused_us = here.paused_until_us;
        self.checkers.fairness.leaves(client);
    }

    /// Clients go on, with their clocks set right.
    pub(crate) fn heal_clients(&mut self) {
        for client in 0..self.clients.len() {
            let here = &mut self.clients[client];
            here.paused_until_us = here.paused_until_us.min(self.now_us);
            here.clock.set_right(self.now_us);
        }
    }
}
