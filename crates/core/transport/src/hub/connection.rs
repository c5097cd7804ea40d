//! The hub's connections: sockets with their links, in places that tokens name.

use super::door::{Door, Ticket};
use super::{FIRST_CONNECTION, Peer};
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
