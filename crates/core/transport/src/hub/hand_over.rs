//! Connections that another hub of the same replica serves: whoever connects says in its hello which
//! lane it comes for, and there is one address for both.
//!
//! What is handed over has proven who it is, and was told nothing yet: it is welcomed by the hub that
//! takes it in, which judges again, for members may have changed on the way.

use super::{Hub, HubEvent, Peer};
use crate::bounds::{Bounds, HANDSHAKE_TIME};
use crate::error::LinkError;
use crate::hello::Refusal;
use crate::link::Link;
use mio::net::TcpStream;
use perdura_protocol::{Lane, PublicKey, ReplicaId};
use std::net::SocketAddr;

/// Who a replica that connects says and proves that it is, and for which lane it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) id: ReplicaId,
    pub(super) incarnation: u32,
    pub(super) key: PublicKey,
    pub(super) lane: Lane,
}

/// A connection on its way from the hub that accepted it to the one of its lane.
#[derive(Debug)]
pub struct Handed {
    stream: TcpStream,
    /// Waits for the answer to its hello.
    link: Link,
    address: SocketAddr,
    claim: Claim,
}

impl Hub {
    /// Forgets a connection, and gives it to the owner.
    pub(super) fn hand_over(&mut self, place: usize, claim: Claim) {
        let Some(mut connection) = self.connections.remove(place) else { return };
        let address = connection.address;
        if let Some(ticket) = connection.ticket {
            self.door.leave(ticket);
        }
        self.known(address.ip());
        if let Err(error) = self.poll.registry().deregister(&mut connection.stream) {
            tracing::debug!(%address, "a connection cannot be handed over: {error}");
            return;
        }
        let (stream, link) = (connection.stream, connection.link);
        let handed = Handed { stream, link, address, claim };
        self.events.push(HubEvent::Handed(Box::new(handed)));
    }

    /// Takes in a connection of this hub's lane that another one accepted. It becomes the link to its
    /// replica, unless that has another key or incarnation by now: then it is refused.
    pub fn adopt(&mut self, handed: Box<Handed>) {
        let Handed { stream, link, address, claim } = *handed;
        let deadline = self.now + HANDSHAKE_TIME;
        let place = match self.enter(stream, link, address, None, deadline) {
            Ok(place) => place,
            Err(error) => {
                tracing::debug!(%address, "cannot serve a connection: {error}");
                return;
            }
        };
        let verdict = self.judge_handed(claim);
        let Some(connection) = self.connections.get_mut(place) else { return };
        connection.connected = true;
        match verdict {
            Ok(peer) => {
                let boot = self.hello.role.boot();
                if let Err(error) = connection.link.welcome(Bounds::REPLICA, boot, false) {
                    self.end(place, error);
                    return;
                }
                connection.dirty = true;
                self.dirty.push(place);
                self.link_up(place, peer);
                self.line_up(place);
            }
            Err(refusal) => {
                connection.link.refuse(&refusal);
                self.end(place, LinkError::RefusedByUs(refusal.0));
            }
        }
    }

    fn judge_handed(&self, claim: Claim) -> Result<Peer, Refusal> {
        let Claim { id, incarnation, key, lane } = claim;
        if lane != self.lane {
            return Err(Refusal(format!("no link of the lane {lane:?} is served here")));
        }
        self.judge_replica(id, incarnation, self.parameters, key)
    }
}
