//! What may stand between a node and its links, in tests: replicas that lie.

use super::{Input, Now, Peer};
use bytes::Bytes;
use perdura_protocol::Configuration;

/// Something that leaves in place of what a node said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// How much later, milliseconds.
    pub after_ms: u64,
    /// To whom.
    pub peer: Peer,
    /// The message.
    pub bytes: Bytes,
}

/// Decides what a node hears, and what leaves in its place. No replica in use has one, and no program but those of tests gives a
/// runtime one (`run_tapped`).
pub trait Interceptor: Send {
    /// An input arrives. False when the node is not to see it; what is said at once goes to `out`.
    fn hears(&mut self, now: Now, input: &Input, out: &mut Vec<Said>) -> bool;

    /// What is said instead of this message to these peers.
    fn says(&mut self, now: Now, peers: &[Peer], bytes: &Bytes) -> Vec<Said>;

    /// Time passes, at least every 20 ms; returns what is said unasked.
    fn tick(&mut self, now: Now) -> Vec<Said>;

    /// Which bit of the state flips in memory now, if one does.
    fn flips(&mut self, now: Now) -> Option<u64> {
        let _ = now;
        None
    }

    /// How many lies it has told so far.
    fn lies(&self) -> u64 {
        0
    }

    /// Links are to these members from now on.
    fn learn(&mut self, configuration: &Configuration);
}
