//! Guards D1, seen from the clients: what was answered `ok` is there after the crash of all. What
//! any client was told of is remembered by its slot; once the group goes on after its last crash,
//! every replica has executed that far, and (`Agreement`, `Linearizability`) the same things.

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
    }
}
