//! A replica's network, on the thread that calls it.
//!
//! One address takes replicas and clients. Of two replicas the one with the higher id dials, so
//! that each pair has one connection; a dialler tries forever. The owner calls [`Hub::poll`] in a
//! loop, acts on the events, queues messages with [`Hub::send`], and ends each round with
//! [`Hub::flush`], which writes everything that was queued for a peer in one pass.
//!
//! A pair of replicas has a second link, on the lane for transfers, so that votes do not wait behind
//! megabytes. Another hub serves it, on a thread of its own ([`Hub::dialling`]). It dials as this one
//! does and listens nowhere: what comes for it to the one address is handed over
//! ([`HubEvent::Handed`], [`Hub::adopt`]).
//!
//! Invariants:
//! - At most one link per replica, proven by the key that [`Hub::set_members`] gave last, and on this
//!   hub's lane. One of the other lane neither is it nor replaces it.
//! - `LinkUp` comes before the first message of a link and `LinkDown` after the last one; there is
//!   one `LinkDown` for each `LinkUp`.
//! - A socket is read until it is empty or its link had its share of the round; in the latter case
//!   it stands in line for the next round (readiness is edge-triggered), replicas before clients.
//! - Time comes from the caller; the hub has no clock and no randomness but its seed.

mod connection;
mod dial;
mod door;
mod doorman;
mod first_record;
mod hand_over;
mod places;
mod resolver;
mod serve;

use crate::Backoff;
use crate::bounds::{
    CLIENT_FAIR_BYTES, CLIENT_LINKS, CLIENTS_QUEUE_BYTES, HANDSHAKE_TIME, HELD_BACK_TIME,
    REDIAL_FIRST, REDIAL_LONGEST,
};
use crate::error::{LinkError, Misbehaviour, QueueError};
use crate::hello::{Hello, Refusal, Role};
use crate::identity::{Identity, IdentityError};
use crate::stats::Stats;
use bytes::Bytes;
use connection::{Connection, Connections};
use dial::Member;
use door::Door;
pub use doorman::{Doorman, DoormanStats, Seat};
use doorman::{Source, listen_on};
pub use hand_over::Handed;
use mio::{Events, Interest, Poll, Token, Waker};
use perdura_protocol::{BootId, ClusterId, Digest, Lane, PublicKey, ReplicaId, SecretKey};
use resolver::NameResolver;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Tokens of connections start here.
const FIRST_CONNECTION: usize = 2;

/// Readiness events taken from the system at once; more wait there.
const EVENTS_PER_POLL: usize = 1024;

/// Longest wait in one call of [`Hub::poll`], so that deadlines set by it are noticed.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How often records are looked for that do not become complete.
const LOOK_FOR_UNFINISHED: Duration = Duration::from_secs(1);

/// While the name of a member has not been found it is asked for after this time.
const LOOK_UP_TIME: Duration = Duration::from_secs(1);

/// Names of members that were found are looked up again after this time: nobody waits for it.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(60);

/// Pause after the system refused to accept a connection (no file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// A replica of the group, current incarnation.
    Replica(ReplicaId),
    /// A client or the administrator.
    Client {
        /// Number of the connection, never used again by this hub.
        connection: u64,
        /// Its proven key.
        key: PublicKey,
    },
}

/// What happened on the network.
#[derive(Debug)]
pub enum HubEvent {
    /// Messages may flow.
    LinkUp {
        /// With whom.
        peer: Peer,
    },
    /// No more messages flow.
    LinkDown {
        /// With whom.
        peer: Peer,
        /// Why.
        reason: LinkError,
    },
    /// A message arrived.
    Message {
        /// From whom.
        peer: Peer,
        /// Its bytes, not decoded.
        message: Bytes,
    },
    /// A replica came for the lane that another hub serves ([`Hub::adopt`]). It closes if this is
    /// dropped.
    Handed(Box<Handed>),
}

/// Decides which clients are admitted. Replicas are judged by the hub itself, by their keys.
pub trait Admission {
    /// Whether a client, or the administrator, with this proven key may come in.
    ///
    /// # Errors
    /// The refusal that it is told.
    fn admit(&mut self, hello: &Hello, key: PublicKey) -> Result<(), Refusal>;

    /// Whether this is the administrator's key: who only says so has no place kept.
    fn is_administrator(&self, key: PublicKey) -> bool {
        let _ = key;
        true
    }

    /// Whether nothing more is to be read from this peer for now, though there is something: it
    /// stays in the socket, and TCP holds the peer back. Asked again in each round.
    fn holds_back(&self, peer: &Peer) -> bool {
        let _ = peer;
        false
    }
}

impl<F: FnMut(&Hello, PublicKey) -> Result<(), Refusal>> Admission for F {
    fn admit(&mut self, hello: &Hello, key: PublicKey) -> Result<(), Refusal> {
        self(hello, key)
    }
}

/// A replica as the hub needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberAddress {
    /// Its id.
    pub id: ReplicaId,
    /// `host:port`; names are resolved at each attempt.
    pub address: String,
    /// The key that its TLS handshake has to prove.
    pub key: PublicKey,
    /// Its incarnation.
    pub incarnation: u32,
}

/// What a hub is.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The replica whose hub this is.
    pub id: ReplicaId,
    /// Its incarnation.
    pub incarnation: u32,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Digest of the cluster's parameters; replicas with another one are refused.
    pub parameters: Digest,
    /// Its key.
    pub key: SecretKey,
    /// `host:port` to listen on; port 0 takes a free one. Of no meaning to [`Hub::dialling`] and [`Hub::behind`].
    pub listen: String,
    /// Whether other groups have replicas at the same addresses, so that whoever connects has to name the group before all else.
    pub named: bool,
    /// Of the jitter between attempts to reach others.
    pub seed: u64,
}

impl HubConfig {
    pub(crate) fn identity(&self) -> Result<Identity, IdentityError> {
        let identity = Identity::new(&self.key)?;
        Ok(if self.named { identity.naming(self.cluster) } else { identity })
    }
}

/// Why a hub could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("{address}: the port is in use; is this replica running already?")]
    InUse {
        /// As configured.
        address: String,
    },
    /// The address is not one of this machine, or may not be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// The key is no Ed25519 key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system has no event queue for us.
    #[error("no event queue: {0}")]
    Poll(io::Error),
}

/// Why a message was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// There is no link to that peer now.
    #[error("no link to that peer")]
    NoLink,
    /// See [`QueueError`]. A client's link is closed by this.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A replica's network.
#[derive(Debug)]
pub struct Hub {
    id: ReplicaId,
    lane: Lane,
    cluster: ClusterId,
    parameters: Digest,
    hello: Hello,
    identity: Identity,
    seed: u64,
    poll: Poll,
    readiness: Events,
    waker: Arc<Waker>,
    source: Source,
    local_address: SocketAddr,
    /// Set while accepting is to be tried again without a readiness event.
    accept_again: Option<Instant>,
    connections: Connections,
    members: BTreeMap<ReplicaId, Member>,
    /// Connection number to place among the connections.
    clients: BTreeMap<u64, usize>,
    links_per_key: BTreeMap<PublicKey, usize>,
    next_client: u64,
    ready_replicas: VecDeque<usize>,
    ready_clients: VecDeque<usize>,
    /// Ready, but not to be read for now.
    held_back: Vec<usize>,
    looked_for_unfinished: Instant,
    door: Door,
    /// Most sockets, of all kinds; and most links of clients.
    most_sockets: usize,
    most_clients: usize,
    turns_away: Option<&'static str>,
    keeps_states: bool,
    /// More connections wait to be accepted.
    accept_more: bool,
    /// When the members' names are looked up again.
    look_up: Option<Instant>,
    dirty: Vec<usize>,
    /// Time of the latest call.
    now: Instant,
    /// Bytes queued for, and incomplete from, all clients together: the sums of what the
    /// connections have accounted for.
    clients_queue_bytes: usize,
    clients_inbound_bytes: usize,
    events: Vec<HubEvent>,
    stats: Stats,
    resolver: NameResolver,
}

impl Hub {
    /// Listens on the configured address. Nobody is dialled before [`Hub::set_members`]. `now` is the
    /// time on the clock that [`Hub::poll`] goes by.
    ///
    /// # Errors
    /// When the port is in use, the address is not ours, or the key is not an Ed25519 key.
    pub fn bind(config: &HubConfig, now: Instant) -> Result<Hub, BindError> {
        let identity = config.identity()?;
        let (mut listener, local_address) = listen_on(&config.listen)?;
        let mut hub = Hub::new(config, identity, Lane::Agreement, now)?;
        let registry = hub.poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE).map_err(BindError::Poll)?;
        (hub.source, hub.local_address) = (Source::Own(listener), local_address);
        Ok(hub)
    }

    /// Has the connections that a doorman gives to this group, in place of an address of its own. `now` is as in [`Hub::bind`].
    ///
    /// # Errors
    /// When the key is not an Ed25519 key, or the system has no event queue for us.
    pub fn behind(config: &HubConfig, seat: &Seat, now: Instant) -> Result<Hub, BindError> {
        let mut hub = Hub::new(config, config.identity()?, Lane::Agreement, now)?;
        seat.take(hub.waker());
        hub.local_address = seat.local_address();
        hub.source = Source::Seat(seat.clone(), hub.waker());
        Ok(hub)
    }

    /// For one lane only, and without an address of its own: dials replicas with lower ids, and has
    /// those with higher ones by [`Hub::adopt`]. It never has clients. `now` is as in [`Hub::bind`].
    ///
    /// # Errors
    /// When the key is not an Ed25519 key, or the system has no event queue for us.
    pub fn dialling(config: &HubConfig, lane: Lane, now: Instant) -> Result<Hub, BindError> {
        Hub::new(config, config.identity()?, lane, now)
    }

    /// The run of this replica is durable as `boot`: what links that come up from here on say. Before it is called no link
    /// is to come up.
    ///
    /// # Panics
    /// When `run` is none.
    pub fn announce(&mut self, run: BootId) {
        assert!(run.number > 0, "runs are counted from 1");
        if let Role::Replica { boot, .. } = &mut self.hello.role {
            *boot = run;
        }
    }

    /// The service is read in states that are kept for a moment: what links of clients that come up from here on are told.
    pub fn keeps_states(&mut self) {
        self.keeps_states = true;
    }

    fn new(
        config: &HubConfig,
        identity: Identity,
        lane: Lane,
        now: Instant,
    ) -> Result<Hub, BindError> {
        let poll = Poll::new().map_err(BindError::Poll)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(BindError::Poll)?;
        let (id, incarnation) = (config.id, config.incarnation);
        let role = Role::Replica { id, incarnation, lane, boot: BootId::default() };
        let parameters = config.parameters;
        let hello = Hello { parameters, ..Hello::client(config.cluster, role) };
        Ok(Hub {
            id,
            lane,
            cluster: config.cluster,
            parameters,
            hello,
            identity,
            seed: config.seed,
            poll,
            readiness: Events::with_capacity(EVENTS_PER_POLL),
            waker: Arc::new(waker),
            source: Source::None,
            local_address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            accept_again: None,
            connections: Connections::default(),
            members: BTreeMap::new(),
            clients: BTreeMap::new(),
            links_per_key: BTreeMap::new(),
            next_client: 1,
            ready_replicas: VecDeque::new(),
            ready_clients: VecDeque::new(),
            held_back: Vec::new(),
            looked_for_unfinished: now,
            door: Door::new(now),
            most_sockets: usize::MAX,
            most_clients: CLIENT_LINKS,
            turns_away: None,
            keeps_states: false,
            accept_more: false,
            look_up: None,
            dirty: Vec::new(),
            now,
            clients_queue_bytes: 0,
            clients_inbound_bytes: 0,
            events: Vec::new(),
            stats: Stats::default(),
            resolver: NameResolver::new(),
        })
    }

    /// Whoever connects is turned away for now, replicas too, with this reason; none ends that.
    pub fn turn_away(&mut self, why: Option<&'static str>) {
        self.turns_away = why;
    }

    /// The process may have few files open: so many sockets are taken at most, and somewhat more for members. Links of
    /// clients take five eighths of them, who waits at the door the rest.
    pub fn limit_sockets(&mut self, most: usize) {
        self.most_sockets = most;
        self.most_clients = (most / 8 * 5).clamp(1, CLIENT_LINKS);
        self.door.limit((most / 8).max(1));
    }

    /// The address that is listened on; of zeros if none is.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Wakes a [`Hub::poll`] that waits, from another thread.
    #[must_use]
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Counters for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { client_links: self.clients.len() as u64, ..self.stats }
    }

    /// Whether there is a link to `replica` now.
    #[must_use]
    pub fn is_linked(&self, replica: ReplicaId) -> bool {
        self.members.get(&replica).is_some_and(|member| member.link.is_some())
    }

    /// Why the last attempt to reach `replica` failed, if no attempt has succeeded since.
    #[must_use]
    pub fn last_failure(&self, replica: ReplicaId) -> Option<&str> {
        self.members.get(&replica)?.last_failure.as_deref()
    }

    /// Gives the members of the group; may be called again at any time. The entry of this replica
    /// itself is passed over. Links to replicas whose key, incarnation or address changed, or that
    /// are no longer members, are closed.
    pub fn set_members(&mut self, members: &[MemberAddress]) {
        let others = members.iter().filter(|member| member.id != self.id);
        let wanted: BTreeMap<ReplicaId, &MemberAddress> =
            others.map(|member| (member.id, member)).collect();
        let stale: Vec<ReplicaId> = self
            .members
            .iter()
            .filter(|(id, member)| wanted.get(id).copied() != Some(&member.address))
            .map(|(id, _)| *id)
            .collect();
        for id in stale {
            if let Some(member) = self.members.remove(&id) {
                for place in [member.link, member.dialing].into_iter().flatten() {
                    let reason = "the replica has another key or address now";
                    self.end(place, LinkError::ClosedByUs(reason.into()));
                }
            }
        }
        for (id, address) in wanted {
            let seed = self.seed ^ (u64::from(self.id.0) << 8 | u64::from(id.0));
            let backoff = Backoff::new(REDIAL_FIRST, REDIAL_LONGEST, seed);
            self.members.entry(id).or_insert_with(|| Member::new(address.clone(), backoff));
        }
        self.look_up_members();
    }

    /// Somebody at this address proved to be who may come in.
    fn known(&mut self, address: IpAddr) {
        self.door.admitted(address);
        if let Source::Seat(seat, _) = &self.source {
            seat.admitted(address);
        }
    }

    /// Where the members are, as far as their names are known by now.
    fn look_up_members(&mut self) {
        let names = self.members.values().map(|member| &member.address.address);
        let found: Vec<_> = names.map(|name| self.resolver.addresses(name)).collect();
        let all = found.iter().all(|addresses| !addresses.is_empty());
        let found: Vec<IpAddr> = found.into_iter().flatten().map(|address| address.ip()).collect();
        self.door.set_members(found.iter().copied());
        if let Source::Seat(seat, _) = &self.source {
            seat.set_members(found);
        }
        self.look_up = Some(self.now + if all { LOOK_UP_AGAIN } else { LOOK_UP_TIME });
    }

    /// Waits until something happens, at most `timeout` (`None`: until then), and appends what
    /// happened to `events`. `now` is the time of the call, from any fixed origin. Returns without
    /// events as well: when woken, when a socket became writable, once a second. The system waits
    /// whole milliseconds: a shorter timeout is rounded up, zero excepted.
    ///
    /// # Errors
    /// When the system's event queue fails; the hub is of no more use then.
    pub fn poll(
        &mut self,
        now: Instant,
        timeout: Option<Duration>,
        admission: &mut dyn Admission,
        events: &mut Vec<HubEvent>,
    ) -> io::Result<()> {
        self.now = now;
        self.run_timers();
        let wait = self.wait(timeout);
        let mut readiness = std::mem::replace(&mut self.readiness, Events::with_capacity(0));
        let outcome = self.poll.poll(&mut readiness, Some(wait));
        if outcome.is_ok() {
            for event in &readiness {
                self.note(event);
            }
        }
        self.readiness = readiness;
        // A doorman wakes this thread, and no socket of its own says that somebody is there.
        self.accept_more |= matches!(self.source, Source::Seat(..)) && self.accept_again.is_none();
        if self.accept_more {
            self.accept_some();
        }
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => other?,
        }
        self.serve_ready(admission);
        self.flush();
        events.append(&mut self.events);
        Ok(())
    }

    /// Queues a message; it leaves with the next [`Hub::flush`].
    ///
    /// # Errors
    /// When there is no link, or its queue is full; the message is dropped then, and a client's
    /// link closed.
    pub fn send(&mut self, peer: &Peer, message: Bytes) -> Result<(), SendError> {
        let place =
            self.place(peer).and_then(|place| Some((place, self.connections.get_mut(place)?)));
        let Some((place, connection)) = place else {
            self.stats.dropped_messages += 1;
            return Err(SendError::NoLink);
        };
        let before = connection.link.queued_bytes();
        let client = matches!(peer, Peer::Client { .. });
        let unfair = client
            && self.clients_queue_bytes + message.len() > CLIENTS_QUEUE_BYTES
            && before + message.len() > CLIENT_FAIR_BYTES;
        let queued = if unfair { Err(QueueError::Full) } else { connection.link.queue(message) };
        if let Err(error) = queued {
            self.stats.dropped_messages += 1;
            if client && error == QueueError::Full {
                let text = format!("{before} bytes of replies are unread");
                self.end(place, LinkError::Misbehaviour(Misbehaviour::Flooding, text));
            }
            return Err(error.into());
        }
        self.stats.sent_messages += 1;
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(place);
        }
        self.account(place);
        Ok(())
    }

    /// Writes what was queued since the last call, each link in one pass. What a socket does not
    /// take leaves when it is writable again.
    pub fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for place in dirty.drain(..) {
            if let Some(connection) = self.connections.get_mut(place) {
                connection.dirty = false;
                if connection.connected {
                    self.write(place);
                }
            }
        }
        // Writing makes nothing dirty; keeps the allocation.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// Closes a peer's link for misbehaviour that only the owner can see, and counts it.
    pub fn misbehaved(&mut self, peer: &Peer, kind: Misbehaviour) {
        if let Some(place) = self.place(peer) {
            self.end(place, LinkError::Misbehaviour(kind, "found when decoding".into()));
        }
    }

    /// Closes a peer's link: its key was revoked, say. `reason` is for the log.
    pub fn close(&mut self, peer: &Peer, reason: &str) {
        if let Some(place) = self.place(peer) {
            self.end(place, LinkError::ClosedByUs(reason.into()));
        }
    }

    /// The clients that are linked now.
    pub fn clients(&self) -> impl Iterator<Item = Peer> + '_ {
        self.clients.values().filter_map(|place| self.connections.get(*place)?.peer)
    }

    fn place(&self, peer: &Peer) -> Option<usize> {
        match peer {
            Peer::Replica(id) => self.members.get(id)?.link,
            Peer::Client { connection, .. } => self.clients.get(connection).copied(),
        }
    }

    /// How long to wait: not at all while something is left to do.
    fn wait(&self, timeout: Option<Duration>) -> Duration {
        let idle = self.ready_replicas.is_empty()
            && self.ready_clients.is_empty()
            && self.events.is_empty()
            && self.dirty.is_empty()
            && !self.accept_more;
        if !idle {
            return Duration::ZERO;
        }
        let mut wait = timeout.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        if !self.held_back.is_empty() || self.door.is_waited_at() {
            wait = wait.min(HELD_BACK_TIME);
        }
        let idle = |member: &&Member| member.link.is_none() && member.dialing.is_none();
        let dials = self.members.range(..self.id).map(|(_, member)| member).filter(idle);
        let next = dials.filter_map(|member| member.next_attempt).chain(self.accept_again).min();
        if let Some(next) = next {
            wait = wait.min(next.saturating_duration_since(self.now));
        }
        wait
    }

    /// Dials, gives up handshakes, accepts again, whatever is due.
    fn run_timers(&mut self) {
        if self.accept_again.is_some_and(|at| at <= self.now) {
            self.resume_accepting();
        }
        if self.look_up.is_some_and(|at| at <= self.now) {
            self.look_up_members();
        }
        if let Some(before) = self.now.checked_sub(HANDSHAKE_TIME) {
            self.stats.expired_handshakes += self.door.expire(before);
        }
        for place in self.connections.expired(self.now) {
            self.stats.expired_handshakes += 1;
            self.end(place, LinkError::Expired);
        }
        let passed = self.now.saturating_duration_since(self.looked_for_unfinished);
        if passed >= LOOK_FOR_UNFINISHED {
            self.looked_for_unfinished = self.now;
            let has_read = passed < 5 * LOOK_FOR_UNFINISHED;
            for place in self.connections.unfinished(self.now, has_read) {
                self.end(place, LinkError::Unfinished);
            }
        }
        self.dial_due();
    }
}
