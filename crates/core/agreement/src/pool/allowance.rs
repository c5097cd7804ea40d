//! How much a leader takes into a batch.

use crate::expected::Expected;
use perdura_protocol::{PublicKey, seeded};
use std::collections::BTreeSet;

/// How large a batch becomes, beyond one frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) commands: usize,
}

impl Bounds {
    pub(crate) const NONE: Bounds = Bounds { bytes: usize::MAX, commands: usize::MAX };
}

/// What the frames of a batch may cost when they are executed, as far as that is expected.
#[derive(Debug)]
pub(crate) struct Allowance<'a> {
    expected: &'a Expected,
    left: u64,
    // Whether one client is taken whatever it costs.
    at_least_one: bool,
    clients: BTreeSet<PublicKey>,
}

impl<'a> Allowance<'a> {
    pub(crate) fn new(expected: &'a Expected, left: u64, at_least_one: bool) -> Allowance<'a> {
        Allowance { expected, left, at_least_one, clients: BTreeSet::new() }
    }

    /// Whether one more of this client fits. All of one client in a slot cost what one of them does: its share bounds them. Behind one that does
    /// not fit nobody else does who costs something: what is in flight is executed first, and then it is its turn.
    pub(super) fn takes(&mut self, client: PublicKey) -> bool {
        let cost = self.expected.of(&client);
        if cost == 0 || self.clients.contains(&client) || seeded!(CostsUnplanned) {
            return true;
        }
        if cost > self.left && !(self.clients.is_empty() && self.at_least_one) {
            (self.left, self.at_least_one) = (0, false);
            return false;
        }
        self.left = self.left.saturating_sub(cost);
        self.clients.insert(client)
    }
}
