//! Guards what is ordered state and no service's: no slot is executed under two versions, all replicas have the same versions, limit
//! and administrator behind a slot, neither of the former is ever lowered, and the latter is one whose key was ordered.

use crate::violation::{Broken, Check};
use perdura_execution::{Machine, Service};
use perdura_protocol::{AdminCommand, PublicKey, Slot, Versions};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "Versions (E1)";

/// What is in force behind a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// The versions.
    pub versions: Versions,
    /// How large the state may become, bytes.
    pub state_limit_bytes: u64,
    /// Whose commands administer.
    pub administrator: PublicKey,
}

impl InForce {
    /// Of a replica, behind the last slot that it executed.
    #[must_use]
    pub fn of<S: Service>(machine: &Machine<S>) -> InForce {
        InForce {
            versions: machine.versions(),
            state_limit_bytes: machine.state_limit_bytes(),
            administrator: machine.administrator(),
        }
    }

    fn may_follow(self, earlier: InForce) -> bool {
        self.versions.reach(earlier.versions) && self.state_limit_bytes >= earlier.state_limit_bytes
    }
}

/// The checker.
#[derive(Debug)]
pub struct RulesInForce {
    // The service's version by slot, as replicas were told it.
    executed: BTreeMap<Slot, u16>,
    behind: BTreeMap<Slot, InForce>,
    administrators: BTreeSet<PublicKey>,
}

impl RulesInForce {
    /// For a group that starts with this administrator.
    #[must_use]
    pub fn new(administrator: PublicKey) -> RulesInForce {
        let administrators = BTreeSet::from([administrator]);
        RulesInForce { executed: BTreeMap::new(), behind: BTreeMap::new(), administrators }
    }

    /// The administrator orders this.
    pub fn administers(&mut self, command: &AdminCommand) {
        if let AdminCommand::ReplaceAdministrator { key } = command {
            self.administrators.insert(*key);
        }
    }

    /// `replica` executed something of a slot under this version of the service.
    pub fn executed(&mut self, replica: usize, slot: Slot, version: u16) -> Check {
        let known = *self.executed.entry(slot).or_insert(version);
        let before = self.executed.range(..slot).next_back().map_or(0, |(_, version)| *version);
        let after = self.executed.range(slot.next()..).next().map_or(u16::MAX, |(_, one)| *one);
        if known == version && (before..=after).contains(&version) {
            return Ok(());
        }
        let what = format!(
            "replica {replica} executed slot {slot} under version {version}, another part of it was executed under {known}, slots \
             before it under {before} and slots behind it under {after}"
        );
        Err(Broken::new(RULE, what))
    }

    /// `replica` has this behind a slot.
    pub fn holds(&mut self, replica: usize, slot: Slot, in_force: InForce) -> Check {
        let known = *self.behind.entry(slot).or_insert(in_force);
        let before = self.behind.range(..slot).next_back().map(|(_, one)| *one);
        let after = self.behind.range(slot.next()..).next().map(|(_, one)| *one);
        let ordered = self.administrators.contains(&in_force.administrator);
        let follows = before.is_none_or(|before| in_force.may_follow(before));
        let precedes = after.is_none_or(|after| after.may_follow(in_force));
        if known == in_force && ordered && follows && precedes {
            return Ok(());
        }
        let what = format!(
            "replica {replica} has {in_force:?} behind slot {slot}; others there {known:?}, before it {before:?}, after it \
             {after:?}; the administrator was ordered: {ordered}"
        );
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    fn in_force(service: u16, limit: u64, administrator: u8) -> InForce {
        let versions = Versions { rules: 1, service };
        InForce { versions, state_limit_bytes: limit, administrator: key(administrator) }
    }

    #[test]
    fn a_slot_is_executed_under_one_version_that_only_grows() {
        let mut checker = RulesInForce::new(key(1));
        for (replica, slot, version) in [(0, 4, 1), (0, 6, 2), (1, 4, 1), (1, 5, 2), (2, 9, 2)] {
            assert!(checker.executed(replica, Slot(slot), version).is_ok());
        }
        assert!(checker.executed(0, Slot(6), 1).is_err(), "two in one slot");
        assert!(checker.executed(2, Slot(7), 1).is_err(), "lower again");
        assert!(checker.executed(2, Slot(3), 2).is_err(), "higher too early");
    }

    #[test]
    fn all_have_the_same_behind_a_slot() {
        let mut checker = RulesInForce::new(key(1));
        assert!(checker.holds(0, Slot(3), in_force(1, 10, 1)).is_ok());
        assert!(checker.holds(0, Slot(5), in_force(2, 20, 1)).is_ok());
        assert!(checker.holds(1, Slot(5), in_force(2, 20, 1)).is_ok());
        assert!(checker.holds(1, Slot(5), in_force(2, 21, 1)).is_err(), "another limit");
        assert!(checker.holds(2, Slot(7), in_force(1, 20, 1)).is_err(), "lower versions");
        assert!(checker.holds(2, Slot(8), in_force(2, 10, 1)).is_err(), "a lower limit");
        let mut checker = RulesInForce::new(key(1));
        assert!(checker.holds(0, Slot(3), in_force(1, 10, 2)).is_err(), "nobody's key");
        checker.administers(&AdminCommand::ReplaceAdministrator { key: key(3) });
        assert!(checker.holds(0, Slot(4), in_force(1, 10, 3)).is_ok());
    }
}
