//! Guards A6: what a command costs is bounded, and what the commands of a slot do is its budget, and one command of each client key at most, beside
//! what is never put off.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_protocol::limits::{COMMAND_COST, FRAME_BYTES, SLOT_COST};
use perdura_protocol::{PublicKey, SessionId, Slot};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "SlotCost (A6)";

/// What a replica has executed of a slot.
#[derive(Debug, Default)]
struct Spent {
    slot: Slot,
    all: u64,
    // The largest command of each key.
    largest: BTreeMap<PublicKey, u64>,
    // Commands: one that comes again is of another life of the replica, which began with this slot.
    commands: BTreeSet<(SessionId, u64)>,
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
        self.spends(replica, execution.slot, (execution.session, execution.number), cost)
    }

    fn spends(
        &mut self,
        replica: usize,
        slot: Slot,
        (session, number): (SessionId, u64),
        cost: u64,
    ) -> Check {
        // The reply comes on top, and the step that was one too many.
        if cost > COMMAND_COST + 2 * FRAME_BYTES as u64 {
            let what = format!("number {number} of {session:?} costs {cost} at replica {replica}");
            return Err(Broken::new(RULE, what));
        }
        let client = session.client;
        let spent = self.spent.entry(replica).or_default();
        if spent.slot != slot || spent.commands.contains(&(session, number)) {
            *spent = Spent { slot, ..Spent::default() };
        }
        spent.commands.insert((session, number));
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
        let [one, other] = [1, 2].map(|name| SessionId { client: PublicKey([name; 32]), nonce: 1 });
        let half = SLOT_COST / 2;
        for (session, number, slot) in
            [(one, 1, 1), (one, 2, 1), (one, 3, 1), (other, 1, 1), (one, 4, 2)]
        {
            assert!(checker.spends(0, Slot(slot), (session, number), half).is_ok());
        }
        // A replica that starts again with the same slot spends as much again.
        for number in [5, 6, 7, 5, 6, 7] {
            assert!(checker.spends(0, Slot(3), (one, number), half).is_ok());
        }
        assert!(checker.spends(1, Slot(3), (one, 5), half).is_ok());
        assert!(checker.spends(0, Slot(3), (one, 8), 1).is_err());
        assert!(checker.spends(0, Slot(4), (one, 9), 2 * COMMAND_COST).is_err());
    }
}
