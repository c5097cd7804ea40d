//! Coming by connections: dialling replicas with lower ids, and accepting everybody else.

use super::connection::Accounted;
use super::door::{Ticket, Victim};
use super::doorman::Source;
use super::first_record::FirstRecord;
use super::{ACCEPT_PAUSE, Connection, Connections, Hub, LISTENER, MemberAddress};
use crate::Backoff;
use crate::bounds::{
    ACCEPTS_PER_ROUND, Bounds, CROWDED_PAUSE, DIAL_TIME_FIRST, HANDSHAKE_TIME, MEMBERS_SOCKETS,
};
use crate::error::{LinkError, Misbehaviour};
use crate::link::Link;
use crate::tcp::tune;
use mio::Interest;
use mio::net::TcpStream;
use perdura_protocol::{Lane, ReplicaId};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Another replica, and how we stand with it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: MemberAddress,
    /// The connection of the link that is up.
    pub(super) link: Option<usize>,
    /// The connection by which we try.
    pub(super) dialing: Option<usize>,
    /// When to try next; none means at once.
    pub(super) next_attempt: Option<Instant>,
    pub(super) attempts: usize,
    pub(super) backoff: Backoff,
    /// How long the next attempt may take.
    pub(super) patience: Duration,
    pub(super) last_failure: Option<String>,
}

impl Member {
    pub(super) fn new(address: MemberAddress, backoff: Backoff) -> Member {
        Member {
            address,
            link: None,
            dialing: None,
            next_attempt: None,
            attempts: 0,
            backoff,
            patience: DIAL_TIME_FIRST,
            last_failure: None,
        }
    }

    /// A link is up; gives the one before it.
    pub(super) fn linked(&mut self, place: usize) -> Option<usize> {
        self.dialing = None;
        self.next_attempt = None;
        self.last_failure = None;
        self.backoff.reset();
        self.patience = DIAL_TIME_FIRST;
        self.link.replace(place)
    }
}

impl Hub {
    pub(super) fn dial_due(&mut self) {
        let ours = self.id;
        let due: Vec<ReplicaId> = self
            .members
            .range(..ours)
            .filter(|(_, member)| member.link.is_none() && member.dialing.is_none())
            .filter(|(_, member)| member.next_attempt.is_none_or(|at| at <= self.now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if let Err(error) = self.dial(id) {
                self.dial_failed(id, &error);
            }
        }
    }

    fn dial(&mut self, id: ReplicaId) -> Result<(), LinkError> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let attempt = member.attempts;
        member.attempts += 1;
        let key = member.address.key;
        let address = self.resolver.address(&member.address.address, attempt)?;
        let link = Link::dial(&self.identity, key, &self.hello, Bounds::REPLICA)?;
        let stream = TcpStream::connect(address)?;
        let deadline = self.now + member.patience;
        let place = self.enter(stream, link, address, Some(id), deadline)?;
        if let Some(member) = self.members.get_mut(&id) {
            member.dialing = Some(place);
        }
        Ok(())
    }

    /// Notes the failure and when to try again.
    pub(super) fn dial_failed(&mut self, id: ReplicaId, error: &LinkError) {
        self.stats.failed_dials += 1;
        let Some(member) = self.members.get_mut(&id) else { return };
        let text = format!("{}: {error}", member.address.address);
        if member.last_failure.as_ref() != Some(&text) {
            match self.lane {
                Lane::Agreement => tracing::warn!(replica = %id, "no link: {text}; trying on"),
                // Whatever it would carry goes over the other link.
                Lane::Transfer => {
                    tracing::info!(replica = %id, "no transfer link: {text}; trying on");
                }
            }
        }
        member.last_failure = Some(text);
        if matches!(error, LinkError::Expired) {
            member.patience = (2 * member.patience).min(HANDSHAKE_TIME);
        }
        let pause = member.backoff.next_pause();
        member.next_attempt = Some(self.now + pause);
    }

    /// Accepts who connects, up to a round's share; what is left comes with the next. While strangers come faster than
    /// they leave, they are accepted by the dozen: each by itself would cost a round.
    pub(super) fn accept_some(&mut self) {
        self.accept_more = false;
        for _ in 0..ACCEPTS_PER_ROUND {
            match self.source.accept() {
                Ok((stream, address)) => {
                    self.stats.accepted_connections += 1;
                    self.take_in(stream, address);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.door.is_crowded() {
                        self.pause_accepting(CROWDED_PAUSE);
                    }
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("cannot accept connections for now: {error}");
                    self.pause_accepting(ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_more = true;
    }

    /// The system is not to say who connects meanwhile.
    fn pause_accepting(&mut self, pause: Duration) {
        self.accept_again = Some(self.now + pause);
        if let Source::Own(listener) = &mut self.source {
            // If that fails it is told of sooner.
            let _ = self.poll.registry().deregister(listener);
        }
    }

    /// Goes on; the system says at once whether somebody is there.
    pub(super) fn resume_accepting(&mut self) {
        self.accept_again = None;
        self.accept_more = true;
        if let Source::Own(listener) = &mut self.source
            && let Err(error) =
                self.poll.registry().register(listener, LISTENER, Interest::READABLE)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            tracing::warn!("cannot listen for now: {error}");
            self.accept_again = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn take_in(&mut self, stream: TcpStream, address: SocketAddr) {
        let reserve = if self.door.is_of_member(address.ip()) { MEMBERS_SOCKETS } else { 0 };
        let most = self.most_sockets.saturating_add(reserve);
        if self.connections.len() + self.door.waiting() >= most {
            self.stats.turned_away += 1;
            return;
        }
        let (ticket, victim) = self.door.arrive(stream, address, self.now);
        self.stats.expired_handshakes += u64::from(victim.is_some());
        if let Some(Victim::Connection(place)) = victim {
            self.end(place, LinkError::Expired);
        }
        self.look(ticket);
        let Some(stream) = self.door.silent(ticket) else { return };
        let token = Connections::visitor_token(ticket);
        if let Err(error) = self.poll.registry().register(stream, token, Interest::READABLE) {
            tracing::debug!(%address, "cannot serve a connection: {error}");
            self.door.leave(ticket);
        }
    }

    /// Whether the first record of one at the door is here. It stays in the socket.
    pub(super) fn look(&mut self, ticket: Ticket) {
        let Some(stream) = self.door.silent(ticket) else { return };
        match FirstRecord::of(stream) {
            FirstRecord::Whole => return self.door.ready(ticket),
            FirstRecord::Begun => return,
            FirstRecord::None => self.stats.misbehaviour.add(Misbehaviour::Tls),
            FirstRecord::Gone => {}
        }
        self.door.leave(ticket);
    }

    /// Begins the handshakes whose turn has come.
    pub(super) fn let_in(&mut self) {
        loop {
            let place = self.connections.next_place();
            let Some((ticket, stream, address)) = self.door.next(self.now, place) else { return };
            if let Err(error) = self.begin(ticket, stream, address) {
                tracing::debug!(%address, "cannot serve a connection: {error}");
                self.door.leave(ticket);
            }
        }
    }

    fn begin(
        &mut self,
        ticket: Ticket,
        mut stream: TcpStream,
        address: SocketAddr,
    ) -> Result<(), LinkError> {
        // It was registered if it had to be waited for.
        let _ = self.poll.registry().deregister(&mut stream);
        tune(&stream)?;
        let link = Link::accept(&self.identity)?;
        let place = self.enter(stream, link, address, None, self.now + HANDSHAKE_TIME)?;
        if let Some(connection) = self.connections.get_mut(place) {
            connection.connected = true;
            connection.ticket = Some(ticket);
        }
        self.line_up(place);
        Ok(())
    }

    pub(super) fn enter(
        &mut self,
        mut stream: TcpStream,
        link: Link,
        address: SocketAddr,
        dialing: Option<ReplicaId>,
        deadline: Instant,
    ) -> Result<usize, LinkError> {
        let token = Connections::token(self.connections.next_place());
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, token, interest)?;
        Ok(self.connections.insert(Connection {
            stream,
            link,
            address,
            peer: None,
            dialing,
            connected: false,
            ticket: None,
            deadline: Some(deadline),
            in_line: false,
            read_closed: false,
            dirty: false,
            accounted: Accounted::default(),
        }))
    }
}
