//! What happens to bytes on their way from one party to another.

use crate::course::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The rules of a direction. The default: nothing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Bytes arrive this much later.
    pub delay: Duration,
    /// And up to this much more.
    pub jitter: Duration,
    /// Pieces per thousand that stall until a retransmission.
    pub loss_per_mille: u32,
    /// Bytes per second; 0: as many as there are.
    pub bytes_per_second: u64,
    /// Nothing arrives.
    pub cut: bool,
    /// Pieces per thousand in which a byte is changed.
    pub corrupt_per_mille: u32,
}

/// One way between two parties.
pub struct Direction {
    rules: watch::Sender<Rules>,
    // Pieces to which something happened.
    affected: AtomicU64,
    chance: Mutex<u64>,
}

impl Default for Direction {
    fn default() -> Direction {
        Direction {
            rules: watch::Sender::new(Rules::default()),
            affected: AtomicU64::new(0),
            chance: Mutex::new(0),
        }
    }
}

impl Direction {
    /// Other rules from now on.
    pub fn set(&self, rules: Rules) {
        self.rules.send_replace(rules);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Rules> {
        self.rules.subscribe()
    }

    /// Pieces to which something happened so far.
    pub fn affected(&self) -> u64 {
        self.affected.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.affected.fetch_add(1, Ordering::Relaxed);
    }

    /// A number below `bound`.
    pub(crate) fn draw(&self, bound: u64) -> u64 {
        let mut chance = lock(&self.chance);
        *chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *chance;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }

    pub(crate) fn happens(&self, per_mille: u32) -> bool {
        per_mille > 0 && self.draw(1000) < u64::from(per_mille)
    }
}
