//! What scenarios do to a world, in which otherwise nothing goes wrong and nobody calls. Here time
//! passes and is looked at; `holds` is what they do to messages, `disks` to disks, `people` to
//! clients and liars.

mod disks;
mod holds;
mod people;

pub(crate) use disks::During;
pub(crate) use holds::Filter;
pub(crate) use people::swap;

use super::World;
use holds::Holds;
use perdura_protocol::SecretKey;
use std::collections::BTreeSet;
use std::fmt::{Display, Write};

/// The hand that leads a scenario.
#[derive(Debug, Default)]
pub struct Hand {
    // What happened that a reader wants to know, since it was last asked for.
    told: Vec<String>,
    // Calls that go on while other things happen: their records, and what they are.
    calls: Vec<(usize, String)>,
    // What the administrator orders while other things happen.
    administers: Option<String>,
    // How another command of the administrator ended.
    administered: Option<String>,
    // The key that was the administrator's before.
    stolen: Option<SecretKey>,
    holds: Holds,
    // Replicas whose disks were damaged by hand: they may refuse to start, or stop themselves.
    damaged: BTreeSet<usize>,
    attack_until_us: u64,
}

impl World {
    /// Starts everything, for a scenario.
    pub(crate) fn begin_by_hand(&mut self) {
        self.by_hand = true;
        self.begin();
        self.run_for(100_000);
    }

    /// Something that a reader of the scenario wants to know.
    pub(crate) fn tell(&mut self, what: impl Display) {
        if self.by_hand {
            self.hand.told.push(what.to_string());
        }
    }

    /// What was told since this was last asked.
    pub(crate) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.hand.told)
    }

    /// Lets virtual time pass.
    pub(crate) fn run_for(&mut self, us: u64) {
        let until = self.now_us + us;
        self.run_until(until);
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

    /// Nothing is withheld or slow any more, all is started and comes to rest, and every checker
    /// judges.
    pub(crate) fn end_by_hand(&mut self) {
        self.forget_kept();
        for replica in &mut self.replicas {
            replica.slow_us = 0;
        }
        self.all_is_well();
        self.come_to_rest();
        self.judge();
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
