//! Guards D1, seen from the clients: what was answered `ok` is there after the crash of all. What
//! any client was told of is remembered by its slot; once the group goes on after its last crash,
//! every replica has executed that far, and (`Agreement`, `Linearizability`) the same things. And if it
//! does not come to rest, some correct replica has to have come that far all the same: else the group
//! did not stop, it forgot.

use crate::violation::{Broken, Check};
use perdura_protocol::Slot;

const RULE: &str = "Durability (D1)";

/// The checker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durability {
    acknowledged: Slot,
}

impl Durability {
    /// A client was told of a command of `slot`.
    pub fn acknowledged(&mut self, slot: Slot) {
        self.acknowledged = self.acknowledged.max(slot);
    }

    /// After the last crash `replica` went on, and is at `slot`.
    pub fn recovered(&self, replica: usize, slot: Slot) -> Check {
        if slot >= self.acknowledged {
            return Ok(());
        }
        let what = format!(
            "replica {replica} ends at slot {slot}, and clients were told of slot {}",
            self.acknowledged
        );
        Err(Broken::new(RULE, what))
    }

    /// What correct replicas have executed when the group does not come to rest.
    pub fn remembered(&self, executed: impl Iterator<Item = Slot>) -> Check {
        let furthest = executed.max().unwrap_or_default();
        if furthest >= self.acknowledged {
            return Ok(());
        }
        let what = format!(
            "clients were told of slot {}, and no correct replica gets beyond slot {furthest}",
            self.acknowledged
        );
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_missed() {
        let mut checker = Durability::default();
        checker.acknowledged(Slot(9));
        assert!(checker.recovered(0, Slot(9)).is_ok());
        assert!(checker.recovered(0, Slot(8)).is_err());
        assert!(checker.remembered([Slot(3), Slot(9)].into_iter()).is_ok());
        assert!(checker.remembered([Slot(3), Slot(8)].into_iter()).is_err());
        assert!(checker.remembered(std::iter::empty()).is_err());
    }
}
