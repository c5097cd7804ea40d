//! Serving connections: reading in turn, admitting, writing, ending.

use super::connection::Accounted;
use super::hand_over::Claim;
use super::{Connection, Connections, Hub, HubEvent, LISTENER, Member, Peer};
use crate::bounds::{
    ADMINISTRATOR_LINKS, Bounds, CLIENT_FAIR_BYTES, CLIENT_ROUND_BYTES, CLIENTS_INBOUND_BYTES,
    CLIENTS_ROUND_BYTES, LINKS_PER_CLIENT, MESSAGE_ROUND_BYTES, READ_BYTES, RECORD_ROUND_BYTES,
    REPLICA_ROUND_BYTES, SHARE_READ_BYTES,
};
use crate::error::{LinkError, Misbehaviour};
use crate::hello::{Hello, Refusal, Role};
use crate::hub::Admission;
use crate::link::{Arrived, Drained, Received};
use crate::tcp::tune;
use mio::event::Event;
use perdura_protocol::{Digest, Lane, PublicKey, ReplicaId};
use std::io::{self, Write};

/// What a round of reading left behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    More,
}

/// Counts what passes to the socket.
struct Counted<'a> {
    stream: &'a mut mio::net::TcpStream,
    bytes: u64,
    calls: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.calls += 1;
        let written = self.stream.write_vectored(slices)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Hub {
    /// Takes note of one readiness event.
    pub(super) fn note(&mut self, event: &Event) {
        if event.token() == LISTENER {
            self.accept_more = true;
            return;
        }
        if let Some(ticket) = Connections::visitor(event.token()) {
            return self.look(ticket);
        }
        let Some(place) = Connections::place(event.token()) else { return };
        let Some(connection) = self.connections.get_mut(place) else { return };
        if !connection.connected {
            match connected(connection) {
                Ok(true) => connection.connected = true,
                Ok(false) => return,
                Err(error) => return self.end(place, error.into()),
            }
        }
        if event.is_writable() && connection.link.wants_write() && !connection.dirty {
            connection.dirty = true;
            self.dirty.push(place);
        }
        connection.read_closed |= event.is_read_closed() || event.is_error();
        if event.is_readable() || connection.read_closed {
            self.line_up(place);
        }
    }

    pub(super) fn line_up(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        if connection.in_line {
            return;
        }
        connection.in_line = true;
        self.stand_in_line(place);
    }

    fn stand_in_line(&mut self, place: usize) {
        let Some(connection) = self.connections.get(place) else { return };
        match (connection.peer, connection.dialing) {
            (Some(Peer::Replica(_)), _) | (_, Some(_)) => self.ready_replicas.push_back(place),
            _ => self.ready_clients.push_back(place),
        }
    }

    /// Reads what is ready: all replicas, then clients up to their share of a round.
    pub(super) fn serve_ready(&mut self, admission: &mut dyn Admission) {
        self.let_in();
        for place in std::mem::take(&mut self.held_back) {
            self.stand_in_line(place);
        }
        for _ in 0..self.ready_replicas.len() {
            let Some(place) = self.ready_replicas.pop_front() else { break };
            if self.is_held_back(place, admission) {
                continue;
            }
            self.serve(place, REPLICA_ROUND_BYTES, admission);
        }
        let mut left = CLIENTS_ROUND_BYTES;
        for _ in 0..self.ready_clients.len() {
            if left == 0 {
                break;
            }
            let Some(place) = self.ready_clients.pop_front() else { break };
            if self.is_held_back(place, admission) {
                continue;
            }
            let used = self.serve(place, CLIENT_ROUND_BYTES, admission);
            left = left.saturating_sub(used);
        }
    }

    /// Puts a connection aside until the next round, if its peer is to wait.
    fn is_held_back(&mut self, place: usize, admission: &dyn Admission) -> bool {
        let Some(connection) = self.connections.get(place) else { return false };
        let wait = connection.peer.is_some_and(|peer| admission.holds_back(&peer));
        if wait {
            self.stats.held_back += 1;
            self.held_back.push(place);
        }
        wait
    }

    /// Reads one connection's share; returns what was used of it.
    fn serve(&mut self, place: usize, share: usize, admission: &mut dyn Admission) -> usize {
        let Some(connection) = self.connections.get_mut(place) else { return 0 };
        if !std::mem::take(&mut connection.in_line) {
            // Another one stood in line, which had this place before.
            return 0;
        }
        let mut used = 0;
        let outcome = loop {
            if used >= share {
                break Ok(Left::More);
            }
            let most = (share - used).max(SHARE_READ_BYTES);
            match self.read_once(place, most, admission, &mut used) {
                Ok(Left::More) => {}
                other => break other,
            }
        };
        let outcome = self.check_inbound(place).and(outcome);
        if let Some(connection) = self.connections.get_mut(place) {
            connection.partial.read(connection.link.partial_record(), self.now);
        }
        match outcome {
            Ok(Left::More) => self.line_up(place),
            Ok(Left::Nothing) => {}
            Err(error) => self.end(place, error),
        }
        used
    }

    /// One system call, and all that it completes.
    fn read_once(
        &mut self,
        place: usize,
        most: usize,
        admission: &mut dyn Admission,
        used: &mut usize,
    ) -> Result<Left, LinkError> {
        let most = most.min(READ_BYTES);
        let Some(connection) = self.connections.get_mut(place) else { return Ok(Left::Nothing) };
        self.stats.reads += 1;
        let arrived = match connection.link.read_from(&connection.stream, most) {
            Ok(Arrived { bytes: 0, .. }) => return Err(LinkError::Closed),
            Ok(arrived) => arrived,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Left::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Left::More),
            Err(error) => return Err(error.into()),
        };
        // Of what was read together with bytes that are wrong nothing is delivered.
        let taken = connection.link.take_in();
        *used += arrived.bytes + RECORD_ROUND_BYTES * connection.link.take_records();
        self.stats.received_bytes += arrived.bytes as u64;
        taken?;
        self.deliver_counted(place, admission, used)?;
        // A short read emptied the socket, unless its end is what comes next.
        let Some(connection) = self.connections.get_mut(place) else { return Ok(Left::Nothing) };
        if connection.link.wants_write() && !connection.dirty {
            connection.dirty = true;
            self.dirty.push(place);
        }
        let emptied = arrived.all && !connection.read_closed;
        Ok(if emptied { Left::Nothing } else { Left::More })
    }

    fn deliver_counted(
        &mut self,
        place: usize,
        admission: &mut dyn Admission,
        used: &mut usize,
    ) -> Result<(), LinkError> {
        let before = self.events.len();
        self.deliver(place, admission)?;
        *used += MESSAGE_ROUND_BYTES * (self.events.len() - before);
        Ok(())
    }

    fn deliver(&mut self, place: usize, admission: &mut dyn Admission) -> Result<(), LinkError> {
        loop {
            let Some(connection) = self.connections.get_mut(place) else { return Ok(()) };
            let received = connection.link.next_received()?;
            let peer = connection.peer;
            match (received, peer) {
                (None, _) => return Ok(()),
                (Some(Received::Message(message)), Some(peer)) => {
                    self.stats.received_messages += 1;
                    self.events.push(HubEvent::Message { peer, message });
                }
                (Some(Received::Welcome), _) => {
                    if let Some(id) = connection.dialing {
                        self.link_up(place, Peer::Replica(id));
                    }
                }
                (Some(Received::Hello(hello, key)), _) => {
                    self.decide(place, &hello, key, admission)?;
                }
                // A link gives messages only after its welcome.
                (Some(Received::Message(_)), None) => return Ok(()),
            }
        }
    }

    fn decide(
        &mut self,
        place: usize,
        hello: &Hello,
        key: PublicKey,
        admission: &mut dyn Admission,
    ) -> Result<(), LinkError> {
        let verdict = self.judge(hello, key, admission);
        if let (Ok(Peer::Replica(id)), Role::Replica { lane, incarnation, .. }) =
            (&verdict, hello.role)
            && lane != self.lane
        {
            self.hand_over(place, Claim { id: *id, incarnation, key, lane });
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(place) else { return Ok(()) };
        match verdict {
            Ok(peer) => {
                let bounds = match peer {
                    Peer::Replica(_) => Bounds::REPLICA,
                    Peer::Client { .. } => Bounds::CLIENT_AT_REPLICA,
                };
                let boot = self.hello.role.boot();
                let keeps_states = self.keeps_states && matches!(peer, Peer::Client { .. });
                connection.link.welcome(bounds, boot, keeps_states)?;
                self.link_up(place, peer);
                Ok(())
            }
            Err(refusal) => {
                connection.link.refuse(&refusal);
                Err(LinkError::RefusedByUs(refusal.0))
            }
        }
    }

    fn judge(
        &mut self,
        hello: &Hello,
        key: PublicKey,
        admission: &mut dyn Admission,
    ) -> Result<Peer, Refusal> {
        if hello.cluster != self.cluster {
            return Err(Refusal(format!(
                "wrong cluster: this replica belongs to {}, the one that connects wants {}",
                self.cluster, hello.cluster
            )));
        }
        if let Role::Replica { id, incarnation, .. } = hello.role {
            return self.judge_replica(id, incarnation, hello.parameters, key);
        }
        self.takes_anybody()?;
        if self.links_per_key.get(&key).copied().unwrap_or(0) >= LINKS_PER_CLIENT {
            return Err(Refusal::for_now(format!(
                "this client key has {LINKS_PER_CLIENT} connections already"
            )));
        }
        admission.admit(hello, key)?;
        let of_key = self.links_per_key.get(&key).copied().unwrap_or(0);
        let administrator = hello.role == Role::Admin && admission.is_administrator(key);
        let kept = administrator && of_key < ADMINISTRATOR_LINKS;
        if !kept && !self.make_place(key) {
            return Err(Refusal::for_now(format!(
                "this replica serves {} clients already",
                self.most_clients
            )));
        }
        let connection = self.next_client;
        self.next_client += 1;
        Ok(Peer::Client { connection, key })
    }

    fn takes_anybody(&self) -> Result<(), Refusal> {
        self.turns_away.map_or(Ok(()), |why| Err(Refusal::for_now(why)))
    }

    pub(super) fn judge_replica(
        &self,
        id: ReplicaId,
        incarnation: u32,
        parameters: Digest,
        key: PublicKey,
    ) -> Result<Peer, Refusal> {
        self.takes_anybody()?;
        if parameters != self.parameters {
            return Err(Refusal(format!(
                "the cluster's parameters differ: {:?}.. here, {parameters:?}.. there; \
                 both replicas need the same cluster.toml",
                self.parameters
            )));
        }
        let Some(Member { address: member, .. }) = self.members.get(&id) else {
            return Err(Refusal(format!("replica {id} is not a member of this group")));
        };
        if member.key != key || member.incarnation != incarnation {
            return Err(Refusal(format!(
                "replica {id} is incarnation {} with key {:?}.. here, the one that connects is \
                 incarnation {incarnation} with key {key:?}..",
                member.incarnation, member.key
            )));
        }
        if id < self.id {
            return Err(Refusal(format!(
                "replica {} dials replica {id}, not the reverse",
                self.id
            )));
        }
        Ok(Peer::Replica(id))
    }

    pub(super) fn link_up(&mut self, place: usize, peer: Peer) {
        self.connections.admitted(place);
        let Some(connection) = self.connections.get_mut(place) else { return };
        connection.peer = Some(peer);
        connection.deadline = None;
        let address = connection.address;
        if let Some(ticket) = connection.ticket.take() {
            self.door.leave(ticket);
        }
        self.known(address.ip());
        match peer {
            Peer::Replica(id) => {
                tracing::info!(replica = %id, %address, "{} up", self.link_name());
                let older =
                    self.members.get_mut(&id).and_then(|member| member.linked(place, self.now));
                if let Some(older) = older {
                    self.end(older, LinkError::Replaced);
                }
                self.stats.replica_links += 1;
            }
            Peer::Client { connection, key } => {
                tracing::debug!(client = ?key, %address, "link up");
                self.clients.insert(connection, place);
                *self.links_per_key.entry(key).or_default() += 1;
            }
        }
        self.events.push(HubEvent::LinkUp { peer });
    }

    fn link_name(&self) -> &'static str {
        match self.lane {
            Lane::Agreement => "link",
            Lane::Transfer => "transfer link",
        }
    }

    /// Brings the sums over all clients up to date with one connection.
    pub(super) fn account(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        let Some(Peer::Client { .. }) = connection.peer else { return };
        let now = Accounted {
            queue_bytes: connection.link.queued_bytes(),
            inbound_bytes: connection.link.inbound_bytes(),
        };
        let before = std::mem::replace(&mut connection.accounted, now);
        self.clients_queue_bytes = self.clients_queue_bytes - before.queue_bytes + now.queue_bytes;
        self.clients_inbound_bytes =
            self.clients_inbound_bytes - before.inbound_bytes + now.inbound_bytes;
    }

    /// Holds incomplete messages of clients against their shared bound.
    fn check_inbound(&mut self, place: usize) -> Result<(), LinkError> {
        self.account(place);
        let Some(connection) = self.connections.get(place) else { return Ok(()) };
        let bytes = connection.accounted.inbound_bytes;
        if self.clients_inbound_bytes > CLIENTS_INBOUND_BYTES && bytes > CLIENT_FAIR_BYTES {
            let text = format!("{bytes} bytes of an incomplete message, and memory is short");
            return Err(LinkError::Misbehaviour(Misbehaviour::Flooding, text));
        }
        Ok(())
    }

    /// Writes what waits on one connection.
    pub(super) fn write(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        let mut socket = Counted { stream: &mut connection.stream, bytes: 0, calls: 0 };
        let outcome = connection.link.write_at(self.now, &mut socket);
        self.stats.sent_bytes += socket.bytes;
        self.stats.writes += socket.calls;
        self.account(place);
        match outcome {
            // Blocked: the system says when the socket is writable again.
            Ok(Drained::Yes | Drained::No) => {}
            Err(error) => self.end(place, error.into()),
        }
    }

    /// Ends a connection: says why if it can, forgets it, reports it.
    pub(super) fn end(&mut self, place: usize, reason: LinkError) {
        let Some(mut connection) = self.connections.remove(place) else { return };
        if let Some(ticket) = connection.ticket {
            self.door.leave(ticket);
        }
        match &reason {
            LinkError::Misbehaviour(kind, _) => self.stats.misbehaviour.add(*kind),
            LinkError::RefusedByUs(_) => self.stats.refused_peers += 1,
            _ => {}
        }
        if connection.connected {
            // An alert, a refusal or a last message: best effort, the connection ends anyway.
            connection.link.close();
            let _ = connection.link.write_at(self.now, &mut connection.stream);
        }
        let _ = self.poll.registry().deregister(&mut connection.stream);
        let address = connection.address;
        match connection.peer {
            None => tracing::debug!(%address, "connection ended before it was admitted: {reason}"),
            Some(Peer::Replica(id)) => {
                tracing::info!(replica = %id, %address, "{} down: {reason}", self.link_name());
            }
            Some(Peer::Client { key, .. }) => {
                tracing::debug!(client = ?key, %address, "link down: {reason}");
            }
        }
        self.forget(place, &connection, &reason);
        if let Some(peer) = connection.peer {
            self.events.push(HubEvent::LinkDown { peer, reason });
        }
    }

    fn forget(&mut self, place: usize, connection: &Connection, reason: &LinkError) {
        match connection.peer {
            Some(Peer::Replica(id)) => {
                self.stats.replica_links = self.stats.replica_links.saturating_sub(1);
                if let Some(member) = self.members.get_mut(&id)
                    && member.link == Some(place)
                {
                    member.link = None;
                    if member.note_end(reason, self.now) {
                        tracing::warn!(
                            replica = %id,
                            "the link came up and soon what was sent was not acknowledged any more, {} times in a row: packets of full size may be lost on the way, as where a \
                             tunnel takes smaller ones and the messages that say so are filtered; or it was cut off each time. From now on whoever connects tries segments of {} bytes; \
                             see \"Paths that lose large packets\" in docs/operations/trouble.md",
                            super::dial::BROKEN_TIMES,
                            super::dial::SMALL_SEGMENT
                        );
                    }
                    let pause = member.backoff.next_pause();
                    member.next_attempt = Some(self.now + pause);
                }
            }
            Some(Peer::Client { connection: number, key }) => {
                self.clients.remove(&number);
                if let Some(count) = self.links_per_key.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.links_per_key.remove(&key);
                    }
                }
                self.clients_queue_bytes -= connection.accounted.queue_bytes;
                self.clients_inbound_bytes -= connection.accounted.inbound_bytes;
            }
            None => {
                let Some(id) = connection.dialing else { return };
                if let Some(member) = self.members.get_mut(&id)
                    && member.dialing == Some(place)
                {
                    member.dialing = None;
                    self.dial_failed(id, reason);
                }
            }
        }
    }
}

/// Whether a connection that we dialled is connected by now.
fn connected(connection: &mut Connection) -> io::Result<bool> {
    if let Some(error) = connection.stream.take_error()? {
        return Err(error);
    }
    match connection.stream.peer_addr() {
        Ok(_) => {
            tune(&connection.stream)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}
