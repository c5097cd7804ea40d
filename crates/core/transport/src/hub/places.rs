//! Whose link makes room when all places of clients are taken: the key's that has the most, if it
//! has more than the newcomer would have. So a few keys do not keep all others out.

use super::Hub;
use super::connection::Connection;
use crate::error::LinkError;
use crate::hub::Peer;
use perdura_protocol::PublicKey;
use std::collections::BTreeMap;

/// The key that gives up a link for one of `newcomer`.
fn gives_way(links_per_key: &BTreeMap<PublicKey, usize>, newcomer: PublicKey) -> Option<PublicKey> {
    let own = links_per_key.get(&newcomer).copied().unwrap_or(0);
    let (key, links) = links_per_key.iter().max_by_key(|(_, links)| **links)?;
    (*links > own + 1).then_some(*key)
}

impl Hub {
    /// Makes room for a link of this client if there is none; false if nobody has to give way.
    pub(super) fn make_place(&mut self, newcomer: PublicKey) -> bool {
        if self.clients.len() < self.most_clients {
            return true;
        }
        let Some(key) = gives_way(&self.links_per_key, newcomer) else { return false };
        let of_key = |connection: &Connection| matches!(connection.peer, Some(Peer::Client { key: held, .. }) if held == key);
        // The oldest: whoever uses it dials again, and then has one of the newest.
        let oldest = self
            .clients
            .values()
            .copied()
            .find(|place| self.connections.get(*place).is_some_and(of_key));
        let Some(oldest) = oldest else { return false };
        let why = "all places are taken, and no other key has as many".into();
        self.end(oldest, LinkError::ClosedByUs(why));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_with_the_most_links_makes_room_and_only_for_who_has_fewer() {
        let key = |number| PublicKey([number; 32]);
        let full: BTreeMap<PublicKey, usize> = (0..4).map(|number| (key(number), 256)).collect();
        assert!(gives_way(&full, key(9)).is_some());
        assert_eq!(gives_way(&full, key(1)), None, "it has as many itself");
        let mut uneven = full;
        uneven.insert(key(2), 200);
        uneven.insert(key(5), 300);
        assert_eq!(gives_way(&uneven, key(2)), Some(key(5)));
        let even: BTreeMap<PublicKey, usize> = (0..100).map(|number| (key(number), 1)).collect();
        assert_eq!(gives_way(&even, key(200)), None, "nobody is put out for one as modest");
    }
}
