//! What the next frames of clients are expected to cost when they are executed: what those of the last slots did.
//!
//! A leader closes batches by it, so that what it has proposed and nobody has executed yet is no more than one slot's budget. One that lies
//! may do otherwise: the others withhold their Writes as long as what is before a slot is far more. That is for speed alone: what a slot may
//! cost is bounded where it is executed.

use perdura_protocol::{Batch, Frame, PublicKey};
use std::collections::{BTreeMap, BTreeSet};

/// A client that spends no more in a slot is expected to cost nothing.
const LITTLE: u64 = 256 * 1024;

/// Clients that are remembered; beyond that all are forgotten, and learnt anew.
const CLIENTS: usize = perdura_protocol::limits::CLIENTS;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    by_client: BTreeMap<PublicKey, u64>,
    // A Write waits until what is before it was executed.
    withheld: bool,
}

impl Expected {
    /// Whether nobody is expected to cost anything.
    pub(crate) fn is_nothing(&self) -> bool {
        self.by_client.is_empty()
    }

    /// A Write waits until what is before it was executed.
    pub(crate) fn withhold(&mut self) {
        self.withheld = true;
    }

    /// Whether one did since this was asked last.
    pub(crate) fn take_withheld(&mut self) -> bool {
        std::mem::take(&mut self.withheld)
    }

    /// A batch was executed, and cost this.
    pub(crate) fn executed(&mut self, batch: &Batch, costs: &BTreeMap<PublicKey, u64>) {
        if costs.values().all(|cost| *cost <= LITTLE) && self.by_client.is_empty() {
            return;
        }
        for client in clients(batch.frames()) {
            let before = self.of(client);
            let cost = costs.get(client).copied().unwrap_or(0).max(before / 2);
            if cost <= LITTLE {
                self.by_client.remove(client);
            } else if self.by_client.len() < CLIENTS || before > 0 {
                self.by_client.insert(*client, cost);
            } else {
                self.by_client.clear();
            }
        }
    }

    /// What the frames of a client cost in a slot.
    pub(crate) fn of(&self, client: &PublicKey) -> u64 {
        self.by_client.get(client).copied().unwrap_or(0)
    }

    /// What a batch does.
    pub(crate) fn of_batch(&self, batch: &Batch) -> u64 {
        if self.by_client.is_empty() {
            return 0;
        }
        clients(batch.frames()).into_iter().map(|client| self.of(client)).sum()
    }
}

fn clients(frames: &[Frame]) -> BTreeSet<&PublicKey> {
    frames.iter().map(|frame| &frame.session.client).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{ClusterId, Command, Encode, SessionId, Time};

    fn batch(clients: &[u8]) -> Batch {
        let frame = |client: &u8| {
            let session = SessionId { client: PublicKey([*client; 32]), nonce: 1 };
            Frame::build(ClusterId([1; 16]), session, 0, 1, &[Command::Renew.to_bytes()], None)
        };
        Batch::requests(Time(1), clients.iter().map(frame).collect())
    }

    #[test]
    fn who_was_costly_is_expected_to_be_until_several_slots_were_cheap() {
        let mut expected = Expected::default();
        let costs = |cost| BTreeMap::from([(PublicKey([1; 32]), cost)]);
        expected.executed(&batch(&[1, 2]), &costs(LITTLE));
        assert!(expected.by_client.is_empty());
        expected.executed(&batch(&[1, 2]), &costs(8 * LITTLE));
        assert_eq!(expected.of_batch(&batch(&[1, 1, 2])), 8 * LITTLE);
        // A slot without its frames says nothing.
        expected.executed(&batch(&[2]), &BTreeMap::new());
        assert_eq!(expected.of(&PublicKey([1; 32])), 8 * LITTLE);
        for left in [4, 2, 0] {
            expected.executed(&batch(&[1]), &costs(1));
            assert_eq!(expected.of(&PublicKey([1; 32])), left * LITTLE);
        }
        assert!(expected.by_client.is_empty());
    }
}
