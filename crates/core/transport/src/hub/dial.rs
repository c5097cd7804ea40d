//! Coming by connections: dialling replicas with lower ids, and accepting everybody else.

use super::connection::{Accounted, Partial};
use super::door::{NotAccepted, Ticket, Victim};
use super::doorman::Source;
use super::first_record::FirstRecord;
use super::{ACCEPT_PAUSE, Connection, Connections, Hub, LISTENER, MemberAddress};
use crate::Backoff;
use crate::bounds::{ACCEPTS_PER_ROUND, Bounds, DIAL_TIME_FIRST, HANDSHAKE_TIME, MEMBERS_SOCKETS};
use crate::error::{LinkError, Misbehaviour};
use crate::link::Link;
use crate::tcp::tune;
use mio::Interest;
use mio::net::TcpStream;
use perdura_protocol::{Lane, ReplicaId};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A link that breaks after less than this broke soon, ...
const BROKEN_SOON: Duration = Duration::from_secs(60);

/// ... and so many times in a row are no chance.
pub(super) const BROKEN_TIMES: u32 = 2;

/// Bytes of a segment that any path takes: IPv6 promises packets of 1,280.
pub(super) const SMALL_SEGMENT: u32 = 1_200;

/// So long an attempt waits for the name to be looked up, and so often that is done while it is under way.
const LOOK_UP_FOR: Duration = Duration::from_secs(1);

/// Between two looks whether it was.
const LOOK_UP_POLL: Duration = Duration::from_millis(10);

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
    /// Its name is being looked up for the next attempt: what is asked, and how long that is waited for.
    asked: Option<(u64, Instant)>,
    /// When it is looked up again, while an attempt is under way.
    look_again: Option<Instant>,
    pub(super) attempts: usize,
    pub(super) backoff: Backoff,
    /// How long the next attempt may take.
    pub(super) dial_timeout: Duration,
    pub(super) last_failure: Option<String>,
    /// Since when the link is up, and how many of them in a row broke soon, without a word.
    up_since: Option<Instant>,
    broken: u32,
}

impl Member {
    pub(super) fn new(address: MemberAddress, backoff: Backoff) -> Member {
        Member {
            address,
            link: None,
            dialing: None,
            next_attempt: None,
            asked: None,
            look_again: None,
            attempts: 0,
            backoff,
            dial_timeout: DIAL_TIME_FIRST,
            last_failure: None,
            up_since: None,
            broken: 0,
        }
    }

    /// A link is up; gives the one before it.
    pub(super) fn linked(&mut self, place: usize, now: Instant) -> Option<usize> {
        self.up_since = Some(now);
        self.dialing = None;
        self.next_attempt = None;
        self.last_failure = None;
        self.backoff.reset();
        self.dial_timeout = DIAL_TIME_FIRST;
        self.link.replace(place)
    }

    /// Its link broke. Where that happens soon and without a word, and again and again though connecting works, packets of full size may be lost on
    /// the way: true when that begins to look so, here where bytes were not acknowledged. The other end sees resets, as if the process had been killed.
    pub(super) fn note_end(&mut self, reason: &LinkError, now: Instant) -> bool {
        let lasted = self.up_since.take().map(|since| now.saturating_duration_since(since));
        let without_a_word = match reason {
            LinkError::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
            ),
            _ => false,
        };
        let soon = lasted.is_some_and(|lasted| lasted < BROKEN_SOON);
        self.broken = if soon && without_a_word { self.broken + 1 } else { 0 };
        let unacknowledged =
            matches!(reason, LinkError::Io(error) if error.kind() == io::ErrorKind::TimedOut);
        unacknowledged && self.broken == BROKEN_TIMES
    }
}

/// Begins to connect; with small segments, both ways, if so wanted.
fn connect(address: SocketAddr, small: bool) -> io::Result<TcpStream> {
    if !small {
        return TcpStream::connect(address);
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_mss(SMALL_SEGMENT)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
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
            if self.looks_up(id) {
                continue;
            }
            if let Err(error) = self.dial(id) {
                self.dial_failed(id, &error);
            }
        }
        self.end_astray();
    }

    /// Whether the member's name is still being looked up: before each attempt, for it may have moved. Where that takes long its last addresses have to do.
    fn looks_up(&mut self, id: ReplicaId) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let name = &member.address.address;
        let (question, until) = match member.asked {
            Some(asked) => asked,
            None => match self.resolver.look(name) {
                Some(question) => (question, self.now + LOOK_UP_FOR),
                None => return false,
            },
        };
        let waits = !self.resolver.has_answered(name, question) && self.now < until;
        member.asked = waits.then_some((question, until));
        if waits {
            member.next_attempt = Some(self.now + LOOK_UP_POLL);
        }
        waits
    }

    /// Ends attempts to reach an address that the name no longer has: nobody may be there to answer.
    fn end_astray(&mut self) {
        let mut astray = Vec::new();
        for member in self.members.values_mut() {
            let Some(place) = member.dialing else { continue };
            let Some(address) = self.connections.get(place).map(|one| one.address) else {
                continue;
            };
            let name = &member.address.address;
            if member.look_again.is_none_or(|at| at <= self.now) {
                member.look_again = Some(self.now + LOOK_UP_FOR);
                self.resolver.look(name);
            }
            if self.resolver.has_left(name, address) {
                astray.push(place);
            }
        }
        for place in astray {
            self.end(place, LinkError::Io(io::Error::other("its name has another address now")));
        }
    }

    fn dial(&mut self, id: ReplicaId) -> Result<(), LinkError> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let attempt = member.attempts;
        member.attempts += 1;
        let key = member.address.key;
        let address = self.resolver.address(&member.address.address, attempt)?;
        let link = Link::dial(&self.identity, key, &self.hello, Bounds::REPLICA)?;
        let stream = connect(address, member.broken >= BROKEN_TIMES)?;
        let deadline = self.now + member.dial_timeout;
        let place = self.enter(stream, link, address, Some(id), deadline)?;
        if let Some(member) = self.members.get_mut(&id) {
            member.dialing = Some(place);
            member.look_again = Some(self.now + LOOK_UP_FOR);
        }
        Ok(())
    }

    /// Notes the failure and when to try again.
    pub(super) fn dial_failed(&mut self, id: ReplicaId, error: &LinkError) {
        self.stats.failed_dials += 1;
        let Some(member) = self.members.get_mut(&id) else { return };
        let name = &member.address.address;
        let silent = self.resolver.is_silent(name, LOOK_UP_FOR);
        let silent =
            if silent { "; the system's resolver does not answer for this name" } else { "" };
        let text = format!("{name}: {error}{silent}");
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
            member.dial_timeout = (2 * member.dial_timeout).min(HANDSHAKE_TIME);
        }
        let pause = member.backoff.next_pause();
        member.next_attempt = Some(self.now + pause);
    }

    /// Accepts who connects, up to a round's share; what is left comes with the next.
    pub(super) fn accept_some(&mut self) {
        self.accept_more = false;
        for _ in 0..ACCEPTS_PER_ROUND {
            match self.source.accept() {
                Ok((stream, address)) => {
                    self.stats.accepted_connections += 1;
                    self.take_in(stream, address);
                }
                Err(error) => match self.door.not_accepted(&error) {
                    NotAccepted::Another => {}
                    NotAccepted::AllCame => return,
                    NotAccepted::Pause(pause) => {
                        self.pause_accepting(pause);
                        return;
                    }
                },
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
            partial: Partial::default(),
            in_line: false,
            read_closed: false,
            dirty: false,
            accounted: Accounted::default(),
        }))
    }
}
