//! Guards A6: what the commands of a slot cost is its budget, and one command of each client key at most, beside what is never put off.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_protocol::limits::SLOT_COST;
use perdura_protocol::{PublicKey, Slot};
use std::collections::BTreeMap;

const RULE: &str = "SlotCost (A6)";

/// What a replica has executed of a slot.
#[derive(Debug, Default)]
struct Spent {
    slot: Slot,
    all: u64,
    // The largest command of each key.
    largest: BTreeMap<PublicKey, u64>,
}

/// The checker.
#[derive(Debug, Default)]
pub struct SlotCost {
    // By replica.
    spent: BTreeMap<usize, Spent>,
}

impl SlotCost {
    /// A replica executed a command.
    pub fn executed(&mut self, replica: usize, execution: &Execution) -> Check {
        let Some(cost) = execution.cost else { return Ok(()) };
        self.spends(replica, execution.slot, execution.session.client, cost)
    }

    fn spends(&mut self, replica: usize, slot: Slot, client: PublicKey, cost: u64) -> Check {
        let spent = self.spent.entry(replica).or_default();
        if spent.slot != slot {
            *spent = Spent { slot, ..Spent::default() };
        }
        spent.all += cost;
        let largest = spent.largest.entry(client).or_default();
        *largest = cost.max(*largest);
        let most = SLOT_COST + spent.largest.values().sum::<u64>();
        if spent.all > most {
            let what = format!(
                "slot {slot} costs {} at replica {replica}, which is more than {most}",
                spent.all
            );
            return Err(Broken::new(RULE, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_its_budget_and_one_command_of_each_key() {
        let mut checker = SlotCost::default();
        let [one, other] = [1, 2].map(|name| PublicKey([name; 32]));
        let half = SLOT_COST / 2;
        for (client, slot) in [(one, 1), (one, 1), (one, 1), (other, 1), (one, 2)] {
            assert!(checker.spends(0, Slot(slot), client, half).is_ok());
        }
        for slot in [3, 3, 3] {
            assert!(checker.spends(0, Slot(slot), one, half).is_ok());
        }
        assert!(checker.spends(1, Slot(3), one, half).is_ok());
        assert!(checker.spends(0, Slot(3), one, 1).is_err());
    }
}
