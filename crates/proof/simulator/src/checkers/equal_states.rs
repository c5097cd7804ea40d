//! Guards D7 and E1: replicas that executed the same slots have the same state, byte for byte:
//! equal digests at equal slots, of every checkpoint and at the end.

use crate::violation::{Broken, Check};
use perdura_protocol::{Digest, Slot};
use std::collections::BTreeMap;

const RULE: &str = "EqualStates (D7)";

/// The checker.
#[derive(Debug, Default)]
pub struct EqualStates {
    digests: BTreeMap<Slot, (Digest, usize)>,
}

impl EqualStates {
    /// The state of `replica` after `slot` has this digest.
    pub fn state(&mut self, replica: usize, slot: Slot, digest: Digest) -> Check {
        let (first, by) = *self.digests.entry(slot).or_insert((digest, replica));
        if first == digest {
            return Ok(());
        }
        let what = format!(
            "after slot {slot} the state of replica {replica} is {digest:?}, that of replica {by} \
             {first:?}"
        );
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_states_after_a_slot_are_seen() {
        let mut checker = EqualStates::default();
        assert!(checker.state(0, Slot(64), Digest([1; 32])).is_ok());
        assert!(checker.state(1, Slot(64), Digest([1; 32])).is_ok());
        assert!(checker.state(1, Slot(64), Digest([2; 32])).is_err());
    }
}
