//! What scenarios do to a world, in which otherwise nothing goes wrong and nobody calls.

use super::World;
use super::workload::Request;
use crate::checkers::commit_order::Seen;
use crate::checkers::progress::PATIENCE_US;
use crate::linearizability::Return;
use perdura_store::StoreCommand;
use std::fmt::Write;

impl World {
    /// Starts everything, for a scenario.
    pub(crate) fn begin_by_hand(&mut self) {
        self.by_hand = true;
        self.begin();
        self.run_for(100_000);
    }

    /// Lets virtual time pass.
    pub(crate) fn run_for(&mut self, us: u64) {
        let until = self.now_us + us;
        self.run_until(until);
    }

    /// One call of the client; how it ended.
    pub(crate) fn call_to_its_end(&mut self, command: StoreCommand, fast: bool) -> String {
        let record = self.calls.len();
        let short_us = Some(PATIENCE_US / 2);
        self.call(0, 0, Request { command, fast, short_us });
        self.run_while(|world| world.open_calls() > 0);
        match self.calls.get(record).map(|call| &call.seen) {
            Some(Seen::Ok(reply)) => match Return::from(reply) {
                Return::Put => "ok".to_owned(),
                Return::Value(value) => format!("ok {}", value.unwrap_or("(absent)".to_owned())),
                other => format!("ok {other:?}"),
            },
            Some(Seen::Unknown) => "indeterminate".to_owned(),
            _ => "refused".to_owned(),
        }
    }

    /// Takes a replica off the network.
    pub(crate) fn cut_off(&mut self, replica: usize) {
        for other in (0..self.network.stations()).filter(|other| *other != replica) {
            self.network.cut(replica, other, true);
            self.network.cut(other, replica, true);
        }
    }

    /// Brings it back.
    pub(crate) fn mend(&mut self, replica: usize) {
        for other in (0..self.network.stations()).filter(|other| *other != replica) {
            self.network.cut(replica, other, false);
            self.network.cut(other, replica, false);
        }
    }

    /// Where each replica stands, a line each.
    pub(crate) fn status(&self) -> String {
        let mut out = String::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            let Some(process) = &replica.process else {
                let _ = writeln!(out, "r{index} down");
                continue;
            };
            let report = process.node.report();
            let checkpoint = report.checkpoint.map_or(0, |(slot, _)| slot.0);
            let _ = writeln!(
                out,
                "r{index} {} incarnation {} view {}{} executed {} checkpoint {checkpoint}{}",
                report.state.as_str(),
                replica.incarnation,
                report.view,
                if report.leader { " leads" } else { "" },
                report.executed,
                match report.counters.transfers_completed {
                    0 => String::new(),
                    count => format!(" transferred {count}"),
                }
            );
        }
        out
    }
}
