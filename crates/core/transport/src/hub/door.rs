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

use crate::bounds::{
    HANDSHAKE_BURST, HANDSHAKES_S, KNOWN_ADDRESSES, STRANGER_BURST, STRANGERS_S, UNADMITTED_LINKS,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
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

/// A connection that waits.
#[derive(Clone, Copy, Debug)]
struct Visitor {
    place: usize,
    network: Network,
    stage: Stage,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not said anything whole.
    Silent,
    /// Its first record is here.
    Ready,
    /// Its handshake goes on.
    LetIn,
}

/// Those that come from addresses of one kind.
#[derive(Debug)]
struct Queue {
    budget: Budget,
    /// By their order of arrival.
    visitors: BTreeMap<u64, Visitor>,
    /// Those of them that are ready.
    ready: BTreeSet<u64>,
    by_network: BTreeMap<Network, usize>,
}

impl Queue {
    fn new(budget: Budget) -> Queue {
        let (visitors, by_network) = (BTreeMap::new(), BTreeMap::new());
        Queue { budget, visitors, ready: BTreeSet::new(), by_network }
    }

    /// Who makes room for one more of `network`; none while there is room.
    fn victim(&self, network: Network) -> Option<usize> {
        if self.visitors.len() < UNADMITTED_LINKS {
            return None;
        }
        let of_newcomer = |other: &Network| usize::from(*other == network);
        let weight = |(other, count): &(&Network, &usize)| **count + of_newcomer(other);
        let (most, count) = self.by_network.iter().max_by_key(weight)?;
        // Where each has one, any may go.
        let alone = *count + of_newcomer(most) <= 1;
        let mut all = self.visitors.values().filter(|one| alone || one.network == *most);
        let oldest = all.clone().next()?;
        Some(all.find(|one| one.stage == Stage::Silent).unwrap_or(oldest).place)
    }

    fn leave(&mut self, arrival: u64) {
        let Some(gone) = self.visitors.remove(&arrival) else { return };
        self.ready.remove(&arrival);
        if let Some(count) = self.by_network.get_mut(&gone.network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&gone.network);
            }
        }
    }
}

/// A connection's ticket: in which queue it is, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    kind: Kind,
    arrival: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Member,
    Known,
    Stranger,
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

    fn queue(&mut self, kind: Kind) -> &mut Queue {
        match kind {
            Kind::Member => &mut self.members,
            Kind::Known => &mut self.known,
            Kind::Stranger => &mut self.strangers,
        }
    }

    fn kind(&self, network: Network) -> Kind {
        if self.of_members.contains(&network) {
            Kind::Member
        } else if self.admitted.contains_key(&network) {
            Kind::Known
        } else {
            Kind::Stranger
        }
    }

    /// The members are at these addresses.
    pub(super) fn set_members(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        self.of_members = addresses.map(Network::of).collect();
    }

    /// The place of the connection that makes room for one from this address: to be ended before the other comes in.
    pub(super) fn victim(&mut self, address: IpAddr) -> Option<usize> {
        let network = Network::of(address);
        let kind = self.kind(network);
        self.queue(kind).victim(network)
    }

    /// A connection from this address is at `place`.
    pub(super) fn arrive(&mut self, place: usize, address: IpAddr) -> Ticket {
        let network = Network::of(address);
        let (kind, arrival) = (self.kind(network), self.arrivals);
        self.arrivals += 1;
        let queue = self.queue(kind);
        queue.visitors.insert(arrival, Visitor { place, network, stage: Stage::Silent });
        *queue.by_network.entry(network).or_default() += 1;
        Ticket { kind, arrival }
    }

    /// Its first record is here.
    pub(super) fn ready(&mut self, ticket: Ticket) {
        let queue = self.queue(ticket.kind);
        if let Some(visitor) = queue.visitors.get_mut(&ticket.arrival)
            && visitor.stage == Stage::Silent
        {
            visitor.stage = Stage::Ready;
            queue.ready.insert(ticket.arrival);
        }
    }

    /// It is gone, or admitted.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.queue(ticket.kind).leave(ticket.arrival);
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

    /// The place of the one whose handshake may begin now.
    pub(super) fn next(&mut self, now: Instant) -> Option<usize> {
        [Kind::Member, Kind::Known, Kind::Stranger].into_iter().find_map(|kind| {
            let queue = self.queue(kind);
            let first = *queue.ready.first()?;
            if !queue.budget.take(now) {
                return None;
            }
            queue.ready.remove(&first);
            let visitor = queue.visitors.get_mut(&first)?;
            visitor.stage = Stage::LetIn;
            Some(visitor.place)
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

    /// One that has said its first record; who had to go for it.
    fn arrive(door: &mut Door, place: usize, address: IpAddr) -> (Ticket, Option<usize>) {
        let victim = door.victim(address);
        let ticket = door.arrive(place, address);
        door.ready(ticket);
        (ticket, victim)
    }

    #[test]
    fn strangers_take_neither_the_places_nor_the_handshakes_of_others() {
        let start = Instant::now();
        let mut door = Door::new(start);
        door.set_members([v4(1)].into_iter());
        door.admitted(v4(2));
        for number in 0..10_000 {
            door.arrive(number, v4(100 + number as u32));
        }
        assert_eq!(door.victim(v4(1)), None);
        assert_eq!(door.victim(v4(2)), None);
        assert!(door.victim(v4(50)).is_some());
        let (_, _) = (arrive(&mut door, 20_000, v4(2)), arrive(&mut door, 20_001, v4(1)));
        assert_eq!(door.next(start), Some(20_001), "a member");
        assert_eq!(door.next(start), Some(20_000), "a known one");
        assert_eq!(door.next(start), None, "nobody else has said anything");
    }

    #[test]
    fn who_waits_longest_goes_first_and_handshakes_grow_back() {
        let start = Instant::now();
        let mut door = Door::new(start);
        let first = door.arrive(0, v4(1));
        for place in 1..UNADMITTED_LINKS {
            arrive(&mut door, place, v4(1 + place as u32));
        }
        door.ready(first);
        door.ready(first);
        let mut served = Vec::new();
        while let Some(place) = door.next(start) {
            served.push(place);
        }
        assert_eq!(served, (0..STRANGER_BURST as usize).collect::<Vec<_>>());
        let mut more = 0;
        for millisecond in 0..1000 {
            arrive(&mut door, 1_000, v4(9));
            let now = start + Duration::from_millis(millisecond);
            while door.next(now).is_some() {
                more += 1;
            }
        }
        assert!((STRANGERS_S - 2..=STRANGERS_S).contains(&more), "{more}");
    }

    #[test]
    fn a_noisy_network_makes_room_for_all_others() {
        let mut door = Door::new(Instant::now());
        let quiet = arrive(&mut door, 0, v4(7)).0;
        for place in 1..UNADMITTED_LINKS {
            assert_eq!(arrive(&mut door, place, v4(9)).1, None);
        }
        // Its own oldest, whoever comes.
        assert_eq!(door.victim(v4(9)), Some(1));
        assert_eq!(door.victim(v4(8)), Some(1));
        door.leave(quiet);
        assert_eq!(door.victim(v4(8)), None);
        // One host has as many IPv6 addresses as it likes.
        let host = |low: u128| IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) | low));
        let mut door = Door::new(Instant::now());
        for place in 0..UNADMITTED_LINKS {
            arrive(&mut door, place, host(place as u128));
        }
        assert_eq!(door.victim(host(u64::MAX.into())), Some(0));
        let other = IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) | (1 << 64)));
        assert_eq!(door.victim(other), Some(0));
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(0, 0, 0, 7).to_ipv6_mapped());
        assert_eq!(Network::of(mapped), Network::of(v4(7)));
    }

    /// Who has said nothing goes before who waits for its turn.
    #[test]
    fn among_equals_the_silent_go_first() {
        let mut door = Door::new(Instant::now());
        let tickets: Vec<Ticket> =
            (0..UNADMITTED_LINKS).map(|place| door.arrive(place, v4(place as u32))).collect();
        tickets.iter().take(5).for_each(|ticket| door.ready(*ticket));
        assert_eq!(door.victim(v4(999)), Some(5));
        tickets.iter().for_each(|ticket| door.ready(*ticket));
        assert_eq!(door.victim(v4(999)), Some(0));
    }

    #[test]
    fn nothing_is_left_of_who_left() {
        let start = Instant::now();
        let mut door = Door::new(start);
        for place in 0..3 * UNADMITTED_LINKS {
            let (ticket, victim) = arrive(&mut door, place, v4(place as u32 % 5));
            assert_eq!(victim, None);
            assert!(door.is_waited_at());
            door.leave(ticket);
            door.leave(ticket);
        }
        assert!(!door.is_waited_at() && door.next(start).is_none());
        assert!(door.strangers.by_network.is_empty() && door.strangers.visitors.is_empty());
        for number in 0..2_000 {
            door.admitted(v4(number));
        }
        assert_eq!((door.admitted.len(), door.by_age.len()), (KNOWN_ADDRESSES, KNOWN_ADDRESSES));
        door.admitted(v4(1_500));
        door.admitted(v4(5_000));
        assert!(door.admitted.contains_key(&Network::of(v4(1_500))));
        assert!(!door.admitted.contains_key(&Network::of(v4(2_000 - KNOWN_ADDRESSES as u32))));
    }
}
