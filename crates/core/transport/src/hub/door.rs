//! Who waits at the door: connections that were accepted and have not proven who they are. Everybody can make them, at no
//! cost; a TLS handshake costs the acceptor some hundred microseconds.
//!
//! By its address a connection comes from a member of the group, from where somebody was admitted lately, or from a
//! stranger. Each of these has places and handshakes of its own, so that no number of strangers keeps a client out that was
//! in, nor the members from forming a group after all of them were restarted.
//!
//! - A connection takes part in the choice once its first record is here as a whole, and is let in when its turn comes: whoever
//!   waits longest goes first.
//! - When all places are taken, one of the network that has most of them goes, the oldest that has not said anything first; so
//!   a noisy network keeps no other out. A network is an IPv4 address, or an IPv6 prefix of 64 bits, which one host has
//!   for itself.
//! - All counts are kept, so that a newcomer costs no more when many wait.

use super::ACCEPT_PAUSE;
use crate::bounds::{
    CROWDED_PAUSE, HANDSHAKE_BURST, HANDSHAKES_S, KNOWN_ADDRESSES, STRANGER_BURST, STRANGERS_S,
    UNADMITTED_LINKS,
};
use mio::net::TcpStream;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// An address as far as it tells one host from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Network(IpAddr);

impl Network {
    pub(super) fn of(address: IpAddr) -> Network {
        match address.to_canonical() {
            IpAddr::V4(address) => Network(address.into()),
            IpAddr::V6(address) => {
                let prefix = u128::from(address) & !u128::from(u64::MAX);
                Network(Ipv6Addr::from(prefix).into())
            }
        }
    }
}

/// Handshakes that may be begun: a number that grows with time.
#[derive(Debug)]
struct Budget {
    left: u32,
    most: u32,
    each: Duration,
    /// Up to when `left` has grown.
    grown: Instant,
}

impl Budget {
    fn new(most: u32, per_second: u32, now: Instant) -> Budget {
        Budget { left: most, most, each: Duration::from_secs(1) / per_second, grown: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.grown);
        let more = (passed.as_nanos() / self.each.as_nanos()).min(self.most.into()) as u32;
        if more > 0 {
            self.left = (self.left + more).min(self.most);
            self.grown = if more == self.most { now } else { self.grown + self.each * more };
        }
        let granted = self.left > 0;
        self.left -= u32::from(granted);
        granted
    }
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// It has not said anything whole.
    Silent(TcpStream),
    /// Its first record is here.
    Ready(TcpStream),
    /// Its handshake goes on, as the connection at this place.
    LetIn(usize),
}

/// A connection that waits.
#[derive(Debug)]
struct Visitor {
    address: SocketAddr,
    network: Network,
    since: Instant,
    stage: Stage,
}

/// Those that come from addresses of one kind. By their order of arrival, where nothing else is said.
#[derive(Debug)]
struct Queue {
    budget: Budget,
    /// Most that may be here.
    places: usize,
    visitors: BTreeMap<u64, Visitor>,
    silent: BTreeSet<u64>,
    ready: BTreeSet<u64>,
    by_network: BTreeMap<Network, BTreeSet<u64>>,
    /// Networks by how many each has here.
    by_count: BTreeSet<(usize, Network)>,
}

impl Queue {
    fn new(budget: Budget) -> Queue {
        Queue {
            budget,
            places: UNADMITTED_LINKS,
            visitors: BTreeMap::new(),
            silent: BTreeSet::new(),
            ready: BTreeSet::new(),
            by_network: BTreeMap::new(),
            by_count: BTreeSet::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.visitors.len() >= self.places
    }

    /// Who makes room for one more of `network`; none while there is room.
    fn victim(&self, network: Network) -> Option<u64> {
        if !self.is_full() {
            return None;
        }
        let (most, noisiest) = *self.by_count.last()?;
        let own = self.by_network.get(&network).map_or(0, BTreeSet::len);
        if most.max(own + 1) == 1 {
            // Each has one: any may go.
            return self.silent.first().or(self.visitors.keys().next()).copied();
        }
        let network = if own + 1 > most { network } else { noisiest };
        let of_network = self.by_network.get(&network)?;
        let silent = of_network.iter().find(|arrival| self.silent.contains(arrival));
        silent.or(of_network.first()).copied()
    }

    fn enter(&mut self, arrival: u64, visitor: Visitor) {
        let network = visitor.network;
        match visitor.stage {
            Stage::Silent(_) => self.silent.insert(arrival),
            Stage::Ready(_) => self.ready.insert(arrival),
            Stage::LetIn(_) => false,
        };
        self.visitors.insert(arrival, visitor);
        let of_network = self.by_network.entry(network).or_default();
        self.by_count.remove(&(of_network.len(), network));
        of_network.insert(arrival);
        self.by_count.insert((of_network.len(), network));
    }

    fn leave(&mut self, arrival: u64) -> Option<Visitor> {
        let gone = self.visitors.remove(&arrival)?;
        self.silent.remove(&arrival);
        self.ready.remove(&arrival);
        if let Some(of_network) = self.by_network.get_mut(&gone.network) {
            self.by_count.remove(&(of_network.len(), gone.network));
            of_network.remove(&arrival);
            if of_network.is_empty() {
                self.by_network.remove(&gone.network);
            } else {
                self.by_count.insert((of_network.len(), gone.network));
            }
        }
        Some(gone)
    }
}

/// A connection's ticket: in which queue it is, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    kind: PeerClass,
    arrival: u64,
}

impl Ticket {
    pub(super) fn kind(self) -> PeerClass {
        self.kind
    }
}

/// From where a connection comes; lower is served first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerClass {
    Member,
    Known,
    Stranger,
}

pub(super) const KINDS: [PeerClass; 3] = [PeerClass::Member, PeerClass::Known, PeerClass::Stranger];

/// Who has to go for another one.
#[derive(Debug)]
pub(super) enum Victim {
    /// One that waited: it is closed.
    Visitor,
    /// The connection at this place, whose handshake goes on.
    Connection(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Door {
    members: Queue,
    known: Queue,
    strangers: Queue,
    /// Where the group's members are.
    of_members: BTreeSet<Network>,
    /// Where somebody was admitted, with a number that is higher where it was later; and the inverse.
    admitted: BTreeMap<Network, u64>,
    by_age: BTreeMap<u64, Network>,
    arrivals: u64,
}

/// What to do when accepting a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotAccepted {
    /// Another one may be there.
    Another,
    /// All who were there have been accepted.
    AllCame,
    /// Nobody is accepted for so long.
    Pause(Duration),
}

impl Door {
    pub(super) fn new(now: Instant) -> Door {
        let trusted = || Queue::new(Budget::new(HANDSHAKE_BURST, HANDSHAKES_S, now));
        Door {
            members: trusted(),
            known: trusted(),
            strangers: Queue::new(Budget::new(STRANGER_BURST, STRANGERS_S, now)),
            of_members: BTreeSet::new(),
            admitted: BTreeMap::new(),
            by_age: BTreeMap::new(),
            arrivals: 0,
        }
    }

    fn queue(&mut self, kind: PeerClass) -> &mut Queue {
        match kind {
            PeerClass::Member => &mut self.members,
            PeerClass::Known => &mut self.known,
            PeerClass::Stranger => &mut self.strangers,
        }
    }

    fn kind(&self, network: Network) -> PeerClass {
        if self.of_members.contains(&network) {
            PeerClass::Member
        } else if self.admitted.contains_key(&network) {
            PeerClass::Known
        } else {
            PeerClass::Stranger
        }
    }

    /// The members are at these addresses.
    pub(super) fn set_members(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        self.of_members = addresses.map(Network::of).collect();
    }

    /// So many of each kind may wait, at most [`UNADMITTED_LINKS`].
    pub(super) fn limit(&mut self, places: usize) {
        for kind in KINDS {
            self.queue(kind).places = places.min(UNADMITTED_LINKS);
        }
    }

    /// How many wait that are not let in.
    pub(super) fn waiting(&self) -> usize {
        let of = |queue: &Queue| queue.silent.len() + queue.ready.len();
        of(&self.members) + of(&self.known) + of(&self.strangers)
    }

    /// Whether a member is at this address.
    pub(super) fn is_of_member(&self, address: IpAddr) -> bool {
        self.of_members.contains(&Network::of(address))
    }

    /// Whether strangers come faster than they are let in or leave.
    /// While strangers come faster than they leave, they are accepted by the dozen: each by itself would cost a round.
    pub(super) fn not_accepted(&self, error: &io::Error) -> NotAccepted {
        match error.kind() {
            io::ErrorKind::WouldBlock if self.is_crowded() => NotAccepted::Pause(CROWDED_PAUSE),
            io::ErrorKind::WouldBlock => NotAccepted::AllCame,
            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => NotAccepted::Another,
            _ => {
                tracing::warn!("cannot accept connections for now: {error}");
                NotAccepted::Pause(ACCEPT_PAUSE)
            }
        }
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.strangers.is_full()
    }

    /// A connection from this address. Where there is no room somebody goes for it.
    pub(super) fn arrive(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        now: Instant,
    ) -> (Ticket, Option<Victim>) {
        let network = Network::of(address.ip());
        let kind = self.kind(network);
        let arrival = self.arrivals;
        self.arrivals += 1;
        let queue = self.queue(kind);
        let victim = queue.victim(network).and_then(|victim| queue.leave(victim));
        let victim = victim.map(|gone| match gone.stage {
            Stage::LetIn(place) => Victim::Connection(place),
            Stage::Silent(_) | Stage::Ready(_) => Victim::Visitor,
        });
        let stage = Stage::Silent(stream);
        queue.enter(arrival, Visitor { address, network, since: now, stage });
        (Ticket { kind, arrival }, victim)
    }

    /// The socket of one that has not said its first record yet.
    pub(super) fn silent(&mut self, ticket: Ticket) -> Option<&mut TcpStream> {
        match &mut self.queue(ticket.kind).visitors.get_mut(&ticket.arrival)?.stage {
            Stage::Silent(stream) => Some(stream),
            Stage::Ready(_) | Stage::LetIn(_) => None,
        }
    }

    /// The ticket of a visitor that a token of the system names.
    pub(super) fn ticket(token: usize) -> Ticket {
        let (arrival, kind) = ((token / KINDS.len()) as u64, KINDS[token % KINDS.len()]);
        Ticket { kind, arrival }
    }

    /// What names it to the system.
    pub(super) fn token(ticket: Ticket) -> usize {
        ticket.arrival as usize * KINDS.len() + ticket.kind as usize
    }

    /// Its first record is here.
    pub(super) fn ready(&mut self, ticket: Ticket) {
        let queue = self.queue(ticket.kind);
        let Some(mut visitor) = queue.leave(ticket.arrival) else { return };
        if let Stage::Silent(stream) = visitor.stage {
            visitor.stage = Stage::Ready(stream);
        }
        queue.enter(ticket.arrival, visitor);
    }

    /// One that has not been let in goes elsewhere, with its socket.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<(TcpStream, SocketAddr)> {
        let visitor = self.queue(ticket.kind).leave(ticket.arrival)?;
        match visitor.stage {
            Stage::Silent(stream) | Stage::Ready(stream) => Some((stream, visitor.address)),
            Stage::LetIn(_) => None,
        }
    }

    /// It is gone, or admitted.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.queue(ticket.kind).leave(ticket.arrival);
    }

    /// Those that have waited for too long go; gives how many.
    pub(super) fn expire(&mut self, before: Instant) -> u64 {
        let mut gone = 0;
        for kind in KINDS {
            let queue = self.queue(kind);
            let late = |(_, visitor): &(&u64, &Visitor)| visitor.since <= before;
            let waits = |visitor: &Visitor| !matches!(visitor.stage, Stage::LetIn(_));
            let late: Vec<u64> = queue
                .visitors
                .iter()
                .take_while(late)
                .filter(|(_, visitor)| waits(visitor))
                .map(|(arrival, _)| *arrival)
                .collect();
            gone += late.len() as u64;
            late.into_iter().for_each(|arrival| drop(queue.leave(arrival)));
        }
        gone
    }

    /// Somebody at this address proved to be who may come in.
    pub(super) fn admitted(&mut self, address: IpAddr) {
        let network = Network::of(address);
        self.arrivals += 1;
        if let Some(before) = self.admitted.insert(network, self.arrivals) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.arrivals, network);
        if self.by_age.len() > KNOWN_ADDRESSES
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.admitted.remove(&oldest);
        }
    }

    /// The one whose handshake may begin now, as the connection at `place`.
    pub(super) fn next(
        &mut self,
        now: Instant,
        place: usize,
    ) -> Option<(Ticket, TcpStream, SocketAddr)> {
        KINDS.into_iter().find_map(|kind| {
            let queue = self.queue(kind);
            let arrival = *queue.ready.first()?;
            if !queue.budget.take(now) {
                return None;
            }
            queue.ready.remove(&arrival);
            let visitor = queue.visitors.get_mut(&arrival)?;
            let Stage::Ready(stream) = std::mem::replace(&mut visitor.stage, Stage::LetIn(place))
            else {
                return None;
            };
            Some((Ticket { kind, arrival }, stream, visitor.address))
        })
    }

    /// Whether somebody waits whose handshake could begin.
    pub(super) fn is_waited_at(&self) -> bool {
        [&self.members, &self.known, &self.strangers].iter().any(|queue| !queue.ready.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    /// Sockets to nowhere will do.
    fn socket() -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        TcpStream::from_std(socket.unwrap().into())
    }

    /// One that says nothing, and the arrival of who had to go for it.
    fn come(door: &mut Door, address: IpAddr, now: Instant) -> (Ticket, Option<u64>) {
        let waiting = |door: &Door| -> BTreeSet<u64> {
            let queues = [&door.members, &door.known, &door.strangers];
            queues.iter().flat_map(|queue| queue.visitors.keys().copied()).collect()
        };
        let before = waiting(door);
        let (ticket, victim) = door.arrive(socket(), (address, 1).into(), now);
        let gone = before.difference(&waiting(door)).next().copied();
        assert_eq!(victim.is_some(), gone.is_some());
        (ticket, gone)
    }

    /// One that has said its first record.
    fn arrive(door: &mut Door, address: IpAddr, now: Instant) -> (Ticket, Option<u64>) {
        let (ticket, gone) = come(door, address, now);
        door.ready(ticket);
        (ticket, gone)
    }

    fn next(door: &mut Door, now: Instant) -> Option<Ticket> {
        door.next(now, 7).map(|(ticket, ..)| ticket)
    }

    #[test]
    fn strangers_take_neither_the_places_nor_the_handshakes_of_others() {
        let start = Instant::now();
        let mut door = Door::new(start);
        door.set_members([v4(1)].into_iter());
        door.admitted(v4(2));
        for number in 0..1_000 {
            come(&mut door, v4(100 + number), start);
        }
        assert!(door.is_crowded());
        let (known, gone) = arrive(&mut door, v4(2), start);
        assert_eq!(gone, None);
        let (member, gone) = arrive(&mut door, v4(1), start);
        assert_eq!(gone, None);
        assert_eq!(next(&mut door, start), Some(member));
        assert_eq!(next(&mut door, start), Some(known));
        assert_eq!(next(&mut door, start), None, "nobody else has said anything");
        assert!(come(&mut door, v4(50), start).1.is_some());
    }

    #[test]
    fn who_waits_longest_goes_first_and_handshakes_grow_back() {
        let start = Instant::now();
        let mut door = Door::new(start);
        let first = come(&mut door, v4(1), start).0;
        let mut all = vec![first];
        for number in 1..UNADMITTED_LINKS as u32 {
            all.push(arrive(&mut door, v4(1 + number), start).0);
        }
        door.ready(first);
        door.ready(first);
        let mut served = Vec::new();
        while let Some(ticket) = next(&mut door, start) {
            served.push(ticket);
        }
        assert_eq!(served, all[..STRANGER_BURST as usize]);
        let mut more = 0;
        for millisecond in 0..1000 {
            let now = start + Duration::from_millis(millisecond);
            arrive(&mut door, v4(9), now);
            more += std::iter::from_fn(|| next(&mut door, now)).count() as u32;
        }
        assert!((STRANGERS_S - 2..=STRANGERS_S).contains(&more), "{more}");
    }

    #[test]
    fn a_noisy_network_makes_room_for_all_others() {
        let start = Instant::now();
        let mut door = Door::new(start);
        let quiet = arrive(&mut door, v4(7), start).0;
        let noisy: Vec<Ticket> = (1..UNADMITTED_LINKS)
            .map(|_| {
                let (ticket, gone) = arrive(&mut door, v4(9), start);
                assert_eq!(gone, None);
                ticket
            })
            .collect();
        // Its own oldest, whoever comes.
        assert_eq!(come(&mut door, v4(9), start).1, Some(noisy[0].arrival));
        let newest = Some(noisy.last().unwrap().arrival + 1);
        assert_eq!(come(&mut door, v4(8), start).1, newest, "that one has said nothing");
        assert_eq!(come(&mut door, v4(6), start).1, Some(noisy[1].arrival));
        door.leave(quiet);
        assert_eq!(come(&mut door, v4(5), start).1, None);
        // One host has as many IPv6 addresses as it likes.
        let host = |low: u128| IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) | low));
        let mut door = Door::new(start);
        for number in 0..UNADMITTED_LINKS {
            arrive(&mut door, host(number as u128), start);
        }
        assert_eq!(come(&mut door, host(u64::MAX.into()), start).1, Some(0));
        let other = IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) | (1 << 64)));
        assert!(come(&mut door, other, start).1.is_some());
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(0, 0, 0, 7).to_ipv6_mapped());
        assert_eq!(Network::of(mapped), Network::of(v4(7)));
    }

    /// Who has said nothing goes before who waits for its turn, and that one before a handshake that goes on.
    #[test]
    fn among_equals_the_silent_go_first() {
        let start = Instant::now();
        let mut door = Door::new(start);
        let tickets: Vec<Ticket> =
            (0..UNADMITTED_LINKS as u32).map(|n| come(&mut door, v4(n), start).0).collect();
        tickets.iter().take(5).for_each(|ticket| door.ready(*ticket));
        assert_eq!(come(&mut door, v4(999), start).1, Some(5));
        tickets.iter().for_each(|ticket| door.ready(*ticket));
        assert_eq!(next(&mut door, start), Some(tickets[0]));
        assert_eq!(come(&mut door, v4(998), start).1, Some(UNADMITTED_LINKS as u64), "silent");
        let (last, _) = come(&mut door, v4(997), start);
        door.ready(last);
        let (_, victim) = door.arrive(socket(), (v4(996), 1).into(), start);
        assert!(matches!(victim, Some(Victim::Connection(7))), "{victim:?}");
    }

    #[test]
    fn nothing_is_left_of_who_left_or_waited_for_too_long() {
        let start = Instant::now();
        let mut door = Door::new(start);
        for number in 0..3 * UNADMITTED_LINKS as u32 {
            let (ticket, gone) = arrive(&mut door, v4(number % 5), start);
            assert_eq!(gone, None);
            assert!(door.is_waited_at() && door.silent(ticket).is_none());
            door.leave(ticket);
            door.leave(ticket);
        }
        for number in 0..10 {
            come(&mut door, v4(number), start + Duration::from_secs(u64::from(number)));
        }
        assert_eq!(door.expire(start + Duration::from_secs(3)), 4);
        assert_eq!(door.expire(start + Duration::from_secs(30)), 6);
        assert!(!door.is_waited_at() && next(&mut door, start).is_none());
        let queue = &door.strangers;
        assert!(queue.by_network.is_empty() && queue.by_count.is_empty());
        assert!(queue.visitors.is_empty() && queue.silent.is_empty());
        let last = KNOWN_ADDRESSES as u32 + 1_000;
        for number in 0..last {
            door.admitted(v4(number));
        }
        assert_eq!((door.admitted.len(), door.by_age.len()), (KNOWN_ADDRESSES, KNOWN_ADDRESSES));
        door.admitted(v4(1_000));
        door.admitted(v4(last));
        assert!(door.admitted.contains_key(&Network::of(v4(1_000))), "it came again");
        assert!(!door.admitted.contains_key(&Network::of(v4(1_001))));
    }

    #[test]
    fn a_token_names_a_visitor() {
        let start = Instant::now();
        let mut door = Door::new(start);
        door.set_members([v4(1)].into_iter());
        door.admitted(v4(2));
        for number in 1..10 {
            let (ticket, _) = come(&mut door, v4(number), start);
            assert_eq!(Door::ticket(Door::token(ticket)), ticket);
            assert!(door.silent(ticket).is_some());
        }
    }
}
