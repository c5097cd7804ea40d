//! The hub's connections: sockets with their links, in places that tokens name.

use super::door::{Door, Ticket};
use super::{FIRST_CONNECTION, Peer};
use crate::bounds::RECORD_TIME;
use crate::link::Link;
use mio::Token;
use mio::net::TcpStream;
use perdura_protocol::ReplicaId;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

/// Set in the tokens of those that wait at the door.
const VISITOR: usize = 1 << (usize::BITS - 1);

/// A socket with its link.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) link: Link,
    /// The other end's address.
    pub(super) address: SocketAddr,
    /// Who it is; known once admitted.
    pub(super) peer: Option<Peer>,
    /// The replica that we dial by it.
    pub(super) dialing: Option<ReplicaId>,
    /// Whether TCP is connected.
    pub(super) connected: bool,
    /// Of those that were let in at the door, until they are admitted.
    pub(super) ticket: Option<Ticket>,
    /// When the handshake is given up; none once admitted.
    pub(super) deadline: Option<Instant>,
    /// Stands in one of the lines of sockets to read.
    pub(super) in_line: bool,
    /// The peer closed its side, or the socket failed: read until the end shows.
    pub(super) read_closed: bool,
    /// Stands in the list of links to write.
    pub(super) dirty: bool,
    /// What this connection has in the hub's sums over all clients.
    pub(super) accounted: Accounted,
    pub(super) partial: Partial,
}

/// Since when a record has been here in part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Partial(Option<(u64, Instant)>);

impl Partial {
    /// The socket was read: behind so many records comes the one of which a part is here, if there is one.
    pub(super) fn read(&mut self, behind: Option<u64>, now: Instant) {
        let same = self.0.filter(|(before, _)| Some(*before) == behind);
        self.0 = same.or(behind.map(|behind| (behind, now)));
    }

    /// It is not this side's turn, or nothing was read by this side: the peer has all of its time again.
    pub(super) fn begins_anew(&mut self, now: Instant) {
        self.0 = self.0.map(|(behind, _)| (behind, now));
    }

    fn is_late(self, now: Instant) -> bool {
        self.0.is_some_and(|(_, since)| now.saturating_duration_since(since) >= RECORD_TIME)
    }
}

/// Bytes that wait for a client, and bytes of an incomplete message from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accounted {
    pub(super) queue_bytes: usize,
    pub(super) inbound_bytes: usize,
}

/// Connections by place. A place is used again after its connection is gone; readiness for the
/// former one then costs the new one a read that finds nothing.
#[derive(Debug, Default)]
pub(super) struct Connections {
    places: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Places of connections that are not admitted yet.
    unadmitted: BTreeSet<usize>,
}

impl Connections {
    /// The place that the next connection will have.
    pub(super) fn next_place(&self) -> usize {
        self.free.last().copied().unwrap_or(self.places.len())
    }

    pub(super) fn insert(&mut self, connection: Connection) -> usize {
        let place = self.next_place();
        self.unadmitted.insert(place);
        if self.free.pop().is_some() {
            self.places[place] = Some(connection);
        } else {
            self.places.push(Some(connection));
        }
        place
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Connection> {
        self.places.get(place)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Connection> {
        self.places.get_mut(place)?.as_mut()
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Connection> {
        let connection = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        self.unadmitted.remove(&place);
        Some(connection)
    }

    /// The connection's handshake is over.
    pub(super) fn admitted(&mut self, place: usize) {
        self.unadmitted.remove(&place);
    }

    /// Places of connections whose handshake took too long.
    pub(super) fn expired(&self, now: Instant) -> Vec<usize> {
        let late = |place: &usize| {
            self.get(*place).and_then(|one| one.deadline).is_some_and(|deadline| deadline <= now)
        };
        self.unadmitted.iter().copied().filter(late).collect()
    }

    /// Places of connections of which a record is not complete in time. Where this side did not read for a while, nobody is late yet.
    pub(super) fn unfinished(&mut self, now: Instant, has_read: bool) -> Vec<usize> {
        let mut late = Vec::new();
        for (place, connection) in self.places.iter_mut().enumerate() {
            let Some(connection) = connection else { continue };
            // What stands in line was not read yet.
            if !has_read || connection.in_line {
                connection.partial.begins_anew(now);
            } else if connection.partial.is_late(now) {
                late.push(place);
            }
        }
        late
    }

    pub(super) fn token(place: usize) -> Token {
        Token(place + FIRST_CONNECTION)
    }

    pub(super) fn place(token: Token) -> Option<usize> {
        token.0.checked_sub(FIRST_CONNECTION)
    }

    /// Of one that waits at the door.
    pub(super) fn visitor_token(ticket: Ticket) -> Token {
        Token(Door::token(ticket) | VISITOR)
    }

    pub(super) fn visitor(token: Token) -> Option<Ticket> {
        (token.0 & VISITOR != 0).then(|| Door::ticket(token.0 & !VISITOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_record_that_trickles_in_is_late_and_many_records_never_are() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut partial = Partial::default();
        for ms in (0..30_000).step_by(500) {
            partial.read(Some(7), at(ms));
            assert!(!partial.is_late(at(ms)), "{ms}");
        }
        assert!(partial.is_late(at(30_000)));
        // It is complete, and the next one has begun.
        partial.read(Some(8), at(30_000));
        assert!(!partial.is_late(at(59_999)) && partial.is_late(at(60_000)));
        partial.begins_anew(at(60_000));
        assert!(!partial.is_late(at(89_999)) && partial.is_late(at(90_000)));
        partial.read(None, at(90_000));
        assert!(!partial.is_late(at(500_000)));
        partial.begins_anew(at(500_000));
        assert!(!partial.is_late(at(900_000)), "there is none");
    }
}
