//! One address for the hubs of several groups: accepts who connects, waits until the first record is here, and gives the socket, from
//! which nothing was taken, to the hub of the group that the record names ([`crate::naming`]). That one goes on as if it had accepted it
//! itself.
//!
//! Invariants:
//! - Who says nothing whole within the handshake's time is closed. As many wait as at a hub's own door, by the same rules: members and
//!   who was admitted lately have places of their own, and a noisy network keeps no other out. Hubs tell who these are.
//! - What a hub has not taken yet is bounded for each of these kinds. Beyond that a connection is closed, as it is when no hub is there.
//! - Nothing is decrypted here, and no key is looked at.

use super::connection::Connections;
use super::door::{Door, KINDS, NotAccepted, PeerClass, Ticket};
use super::first_record::FirstRecord;
use super::{ACCEPT_PAUSE, BindError, EVENTS_PER_POLL, LISTENER, LONGEST_WAIT};
use crate::bounds::{
    ACCEPTS_PER_ROUND, FIRST_RECORD_BYTES, HANDSHAKE_TIME, KNOWN_ADDRESSES, MEMBERS_SOCKETS,
    UNADMITTED_LINKS, UNKNOWN_NAMES_TOLD,
};
use crate::naming::{Introduction, introduction};
use crate::tcp::connect_address;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Waker};
use perdura_protocol::ClusterId;
use perdura_protocol::text::Printable;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a doorman did since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DoormanStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Of these, those that were given to a hub.
    pub handed: u64,
    /// Closed, for their first record was not there in time, or too many waited.
    pub expired: u64,
    /// Closed, for they named no group that has a member here.
    pub unknown: u64,
    /// Closed, for their group has no running member here, or one that has not taken those before.
    pub turned_away: u64,
    /// Closed, for what they said was no TLS.
    pub misbehaved: u64,
}

/// The hub's end: what came for its group. One hub at a time has it ([`super::Hub::behind`]); clones are of the same one.
#[derive(Clone, Debug)]
pub struct Seat(Arc<SeatShared>);

#[derive(Debug)]
struct SeatShared {
    group: ClusterId,
    local_address: SocketAddr,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Of the hub that sits here.
    waker: Option<Arc<Waker>>,
    /// By kind.
    waiting: [VecDeque<(TcpStream, SocketAddr)>; KINDS.len()],
    /// Most that wait, of each kind.
    places: usize,
    /// What the doorman has not been told yet.
    admitted: Vec<IpAddr>,
    members: Option<Vec<IpAddr>>,
}

impl Seat {
    fn new(group: ClusterId, local_address: SocketAddr) -> Seat {
        let inner = Inner {
            waker: None,
            waiting: Default::default(),
            places: UNADMITTED_LINKS,
            admitted: Vec::new(),
            members: None,
        };
        Seat(Arc::new(SeatShared { group, local_address, inner: Mutex::new(inner) }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group whose hub is to have it.
    #[must_use]
    pub fn group(&self) -> ClusterId {
        self.0.group
    }

    /// The address that the doorman listens on.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.local_address
    }

    /// A hub sits down.
    pub(super) fn take(&self, waker: Arc<Waker>) {
        self.inner().waker = Some(waker);
    }

    /// The hub with this waker goes, if it is the one that sits here: who waits is closed, and so is who comes.
    pub(super) fn leave(&self, waker: &Arc<Waker>) {
        let mut inner = self.inner();
        if inner.waker.as_ref().is_some_and(|held| Arc::ptr_eq(held, waker)) {
            inner.waker = None;
            inner.waiting = Default::default();
        }
    }

    /// The next connection, members' first; "would block" if there is none.
    pub(super) fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let next = self.inner().waiting.iter_mut().find_map(VecDeque::pop_front);
        next.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Somebody at this address proved to be who may come in.
    pub(super) fn admitted(&self, address: IpAddr) {
        let mut inner = self.inner();
        if inner.admitted.len() < KNOWN_ADDRESSES {
            inner.admitted.push(address);
        }
    }

    /// The group's members are at these addresses.
    pub(super) fn set_members(&self, addresses: Vec<IpAddr>) {
        self.inner().members = Some(addresses);
    }

    /// Whether the hub will have it.
    fn hand(&self, kind: PeerClass, stream: TcpStream, address: SocketAddr) -> bool {
        let mut inner = self.inner();
        let Some(waker) = inner.waker.clone() else { return false };
        let places = inner.places;
        let waiting = &mut inner.waiting[kind as usize];
        if waiting.len() >= places {
            return false;
        }
        waiting.push_back((stream, address));
        drop(inner);
        // It looks once a second in any case.
        let _ = waker.wake();
        true
    }
}

/// See the module.
#[derive(Debug)]
pub struct Doorman {
    poll: Poll,
    readiness: Events,
    listener: TcpListener,
    local_address: SocketAddr,
    accept_again: Option<Instant>,
    accept_more: bool,
    door: Door,
    most_sockets: usize,
    seats: BTreeMap<ClusterId, Seat>,
    /// By group.
    members: BTreeMap<ClusterId, Vec<IpAddr>>,
    stats: DoormanStats,
    /// When connections for unknown groups were told of, and how many had come then.
    told: Option<(Instant, u64)>,
    now: Instant,
}

impl Doorman {
    /// Listens on `listen`, a `host:port`, for these groups. `now` is as in [`Doorman::turn`].
    ///
    /// # Errors
    /// When the port is in use, or the address is not ours.
    pub fn bind(listen: &str, groups: &[ClusterId], now: Instant) -> Result<Doorman, BindError> {
        let (mut listener, local_address) = listen_on(listen)?;
        let poll = Poll::new().map_err(BindError::Poll)?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(BindError::Poll)?;
        Ok(Doorman {
            poll,
            readiness: Events::with_capacity(EVENTS_PER_POLL),
            listener,
            local_address,
            accept_again: None,
            accept_more: false,
            door: Door::new(now),
            most_sockets: usize::MAX,
            seats: groups.iter().map(|id| (*id, Seat::new(*id, local_address))).collect(),
            members: BTreeMap::new(),
            stats: DoormanStats::default(),
            told: None,
            now,
        })
    }

    /// The process may have few files open: so many connections wait here at most, for all groups together.
    pub fn limit_sockets(&mut self, most: usize) {
        self.most_sockets = most;
        let places = (most / 8).max(1);
        self.door.limit(places);
        for seat in self.seats.values() {
            seat.inner().places = places.min(UNADMITTED_LINKS);
        }
    }

    /// The address that is listened on.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// For the hub of a group; none if it is not among those that were given.
    #[must_use]
    pub fn seat(&self, group: ClusterId) -> Option<Seat> {
        self.seats.get(&group).cloned()
    }

    /// Counters for metrics.
    #[must_use]
    pub fn stats(&self) -> DoormanStats {
        self.stats
    }

    /// Waits until something happens, at most `timeout` and a second, and does it. To be called again and again; `now` is the time of
    /// the call, from any fixed origin.
    ///
    /// # Errors
    /// When the system's event queue fails: nobody is accepted any more then.
    pub fn turn(&mut self, now: Instant, timeout: Option<Duration>) -> io::Result<()> {
        self.now = now;
        self.hear();
        if let Some(before) = now.checked_sub(HANDSHAKE_TIME) {
            self.stats.expired += self.door.expire(before);
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.resume_accepting();
        }
        let mut readiness = std::mem::replace(&mut self.readiness, Events::with_capacity(0));
        let outcome = self.poll.poll(&mut readiness, Some(self.wait(timeout)));
        if outcome.is_ok() {
            for event in &readiness {
                match Connections::visitor(event.token()) {
                    Some(ticket) => self.look(ticket),
                    None => self.accept_more = true,
                }
            }
        }
        self.readiness = readiness;
        if self.accept_more {
            self.accept_some();
        }
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Duration {
        if self.accept_more {
            return Duration::ZERO;
        }
        let wait = timeout.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        let again = self.accept_again.map(|at| at.saturating_duration_since(self.now));
        again.map_or(wait, |again| again.min(wait))
    }

    /// What hubs said since the last turn.
    fn hear(&mut self) {
        let mut moved = false;
        for (group, seat) in &self.seats {
            let mut inner = seat.inner();
            if let Some(members) = inner.members.take() {
                moved |= self.members.get(group) != Some(&members);
                self.members.insert(*group, members);
            }
            let admitted = std::mem::take(&mut inner.admitted);
            drop(inner);
            admitted.into_iter().for_each(|address| self.door.admitted(address));
        }
        if moved {
            self.door.set_members(self.members.values().flatten().copied());
        }
    }

    fn accept_some(&mut self) {
        self.accept_more = false;
        for _ in 0..ACCEPTS_PER_ROUND {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.stats.accepted += 1;
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

    fn pause_accepting(&mut self, pause: Duration) {
        self.accept_again = Some(self.now + pause);
        // If that fails it is told of sooner.
        let _ = self.poll.registry().deregister(&mut self.listener);
    }

    fn resume_accepting(&mut self) {
        self.accept_again = None;
        self.accept_more = true;
        let registry = self.poll.registry();
        if let Err(error) = registry.register(&mut self.listener, LISTENER, Interest::READABLE)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            tracing::warn!("cannot listen for now: {error}");
            self.accept_again = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn take_in(&mut self, stream: TcpStream, address: SocketAddr) {
        let reserve = if self.door.is_of_member(address.ip()) { MEMBERS_SOCKETS } else { 0 };
        if self.door.waiting() >= self.most_sockets.saturating_add(reserve) {
            self.stats.turned_away += 1;
            return;
        }
        let (ticket, victim) = self.door.arrive(stream, address, self.now);
        self.stats.expired += u64::from(victim.is_some());
        self.look(ticket);
        let Some(stream) = self.door.silent(ticket) else { return };
        let token = Connections::visitor_token(ticket);
        if let Err(error) = self.poll.registry().register(stream, token, Interest::READABLE) {
            tracing::debug!(%address, "cannot serve a connection: {error}");
            self.door.leave(ticket);
        }
    }

    /// Whether the first record of one is here, and for whom it is. It stays in the socket.
    fn look(&mut self, ticket: Ticket) {
        let Some(stream) = self.door.silent(ticket) else { return };
        let mut bytes = [0; FIRST_RECORD_BYTES];
        let (found, length) = FirstRecord::peek(stream, &mut bytes);
        let introduced = match found {
            FirstRecord::Begun => return,
            FirstRecord::Gone => return self.door.leave(ticket),
            FirstRecord::None => Introduction::None,
            FirstRecord::Whole => introduction(&bytes[..length]),
        };
        let Some((mut stream, address)) = self.door.take(ticket) else { return };
        // It was registered if it had to be waited for.
        let _ = self.poll.registry().deregister(&mut stream);
        match introduced {
            Introduction::Group(id) => match self.seats.get(&id) {
                Some(seat) if seat.hand(ticket.kind(), stream, address) => self.stats.handed += 1,
                Some(_) => self.stats.turned_away += 1,
                None => self.unknown(address, &format!("the group {id}")),
            },
            Introduction::Other(None) => self.unknown(address, "no group"),
            Introduction::Other(Some(name)) => {
                self.unknown(address, &Printable(&name).to_string());
            }
            Introduction::None => self.stats.misbehaved += 1,
        }
    }

    /// Counts it, and tells of it now and then: files that are out of date, or somebody who tries ports.
    fn unknown(&mut self, address: SocketAddr, name: &str) {
        self.stats.unknown += 1;
        let since = |at: Instant| self.now.saturating_duration_since(at);
        let before = match self.told {
            Some((at, _)) if since(at) < UNKNOWN_NAMES_TOLD => return,
            told => told.map_or(0, |(_, count)| count),
        };
        let count = self.stats.unknown - before;
        tracing::warn!(
            "{count} connections closed that are for no group with a member here; the last is from {address}, for {name}: is its \
             cluster.toml of this cluster?"
        );
        self.told = Some((self.now, self.stats.unknown));
    }
}

/// A listener on a `host:port`, and its address.
pub(super) fn listen_on(listen: &str) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address: listen.to_owned() },
        _ => BindError::Listen { address: listen.to_owned(), error },
    };
    let address = connect_address(listen, 0).map_err(failed)?;
    let listener = TcpListener::bind(address).map_err(failed)?;
    let local_address = listener.local_addr().map_err(failed)?;
    Ok((listener, local_address))
}

/// Where a hub's connections come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Nowhere: it only dials, and adopts.
    None,
    /// An address of its own.
    Own(TcpListener),
    /// One that it shares with others, whose doorman gives it what is its own.
    Seat(Seat, Arc<Waker>),
}

impl Source {
    /// The next that is there.
    pub(super) fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Source::None => Err(io::ErrorKind::WouldBlock.into()),
            Source::Own(listener) => listener.accept(),
            Source::Seat(seat, _) => seat.accept(),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Seat(seat, waker) = self {
            seat.leave(waker);
        }
    }
}
