//! Guards A6: whatever happens, what a replica holds stays within named bounds.

use crate::violation::{Broken, Check};
use perdura_agreement::pool::POOL_BYTES;
use perdura_protocol::limits;

const RULE: &str = "BoundedMemory (A6)";

/// The checker.
#[derive(Clone, Copy, Debug)]
pub struct BoundedMemory {
    /// Slots in agreement at once.
    pub depth: u64,
    /// Replicas of the group.
    pub replicas: u64,
}

impl BoundedMemory {
    /// `held` as in [`perdura_replica::node::Report`].
    pub fn held(&self, replica: usize, held: [usize; 4]) -> Check {
        let slots = limits::WINDOW + 2 * self.depth;
        let names = ["slots", "bytes of frames", "messages for the disk", "replies for the disk"];
        let bounds = [
            slots,
            POOL_BYTES as u64,
            // Of each slot in agreement a vote, and of each replica what the view holds back.
            4 * self.depth + 64 * self.replicas + slots / limits::PREFIX_INTERVAL,
            262_144,
        ];
        for ((name, held), bound) in names.iter().zip(held).zip(bounds) {
            if held as u64 > bound {
                let what = format!("replica {replica} holds {held} {name}, the bound is {bound}");
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_too_much() {
        let checker = BoundedMemory { depth: 8, replicas: 4 };
        assert!(checker.held(0, [1040, 0, 0, 0]).is_ok());
        assert!(checker.held(0, [1041, 0, 0, 0]).is_err());
        assert!(checker.held(0, [0, POOL_BYTES + 1, 0, 0]).is_err());
    }
}
