//! Counters of a hub, for metrics.

use crate::error::Misbehaviour;

/// How often peers misbehaved, by kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MisbehaviourCounts([u64; Misbehaviour::ALL.len()]);

impl MisbehaviourCounts {
    /// One more of this kind.
    pub fn add(&mut self, kind: Misbehaviour) {
        self.0[kind as usize] += 1;
    }

    /// How often this kind was seen.
    #[must_use]
    pub fn get(&self, kind: Misbehaviour) -> u64 {
        self.0[kind as usize]
    }

    /// All kinds with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Misbehaviour, u64)> + '_ {
        Misbehaviour::ALL.into_iter().map(|kind| (kind, self.get(kind)))
    }
}

/// What a hub did since it was made. All but the last two only grow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Bytes read from sockets.
    pub received_bytes: u64,
    /// Bytes written to sockets.
    pub sent_bytes: u64,
    /// System calls that read.
    pub reads: u64,
    /// System calls that wrote.
    pub writes: u64,
    /// Messages delivered to the owner.
    pub received_messages: u64,
    /// Messages queued by the owner.
    pub sent_messages: u64,
    /// Messages dropped, for the peer's queue was full or there was no link.
    pub dropped_messages: u64,
    /// Connections accepted from the listening socket.
    pub accepted_connections: u64,
    /// Turns to read from a link that were passed over, for its peer had to wait.
    pub held_back: u64,
    /// Peers refused by us after their handshake.
    pub refused_peers: u64,
    /// Connections closed because their handshake took too long, or too many were open.
    pub expired_handshakes: u64,
    /// Connections closed at once, since this process may have no more files open.
    pub turned_away: u64,
    /// Attempts to reach another replica that failed.
    pub failed_dials: u64,
    /// Misbehaviour by kind.
    pub misbehaviour: MisbehaviourCounts,
    /// Links to replicas that are up now.
    pub replica_links: u64,
    /// Links of clients that are up now.
    pub client_links: u64,
}
