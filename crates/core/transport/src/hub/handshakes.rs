//! How many TLS handshakes are carried out, and whose first. One costs the acceptor some hundred
//! microseconds, and whoever starts it has to prove nothing before.
//!
//! A handshake takes one of a number that grows with time. Addresses from which somebody was
//! admitted lately may take all of it, others leave half of it to those; so strangers that connect
//! without end neither keep the processor busy nor keep clients and replicas out that were in.

use crate::bounds::{HANDSHAKE_BURST, HANDSHAKES_S, KNOWN_ADDRESSES};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What is left to be spent on handshakes, and for whom.
#[derive(Debug)]
pub(super) struct Handshakes {
    left: u32,
    /// Up to when `left` has grown.
    grown: Instant,
    /// Addresses of who was admitted, the latest last.
    known: VecDeque<IpAddr>,
}

impl Handshakes {
    pub(super) fn new(now: Instant) -> Handshakes {
        Handshakes { left: HANDSHAKE_BURST, grown: now, known: VecDeque::new() }
    }

    /// Somebody at this address proved to be who may come in.
    pub(super) fn admitted(&mut self, address: IpAddr) {
        self.known.retain(|other| *other != address);
        if self.known.len() >= KNOWN_ADDRESSES {
            self.known.pop_front();
        }
        self.known.push_back(address);
    }

    /// Takes one handshake, if there is one for this address.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> bool {
        let each = Duration::from_secs(1) / HANDSHAKES_S;
        let passed = now.saturating_duration_since(self.grown);
        let more = (passed.as_nanos() / each.as_nanos()).min(HANDSHAKE_BURST.into()) as u32;
        if more > 0 {
            self.left = (self.left + more).min(HANDSHAKE_BURST);
            let all = more == HANDSHAKE_BURST;
            self.grown = if all { now } else { self.grown + each * more };
        }
        let reserve = if self.known.contains(&address) { 0 } else { HANDSHAKE_BURST / 2 };
        let granted = self.left > reserve;
        self.left -= u32::from(granted);
        granted
    }

    /// Which of the connections that are not admitted makes room for another one: the oldest from
    /// the address that has most of them, of strangers first. They come the oldest first.
    pub(super) fn victim(&self, waiting: impl Iterator<Item = (usize, IpAddr)>) -> Option<usize> {
        let mut by_address: BTreeMap<IpAddr, (usize, usize)> = BTreeMap::new();
        let mut order: Vec<IpAddr> = Vec::new();
        for (place, address) in waiting {
            let entry = by_address.entry(address).or_insert_with(|| {
                order.push(address);
                (0, place)
            });
            entry.0 += 1;
        }
        let weight = |address: &&IpAddr| {
            let count = by_address.get(*address).map_or(0, |entry| entry.0);
            (!self.known.contains(*address), count)
        };
        // The first of equals: `max_by_key` gives the last.
        let address = order.iter().rev().max_by_key(weight)?;
        by_address.get(address).map(|entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn strangers_leave_half_to_the_known_and_all_grows_back_with_time() {
        let start = Instant::now();
        let mut handshakes = Handshakes::new(start);
        handshakes.admitted(address(1));
        let strangers = (0..10_000).filter(|n| handshakes.take(address(*n as u8 | 2), start));
        assert_eq!(strangers.count() as u32, HANDSHAKE_BURST / 2);
        let known = (0..10_000).filter(|_| handshakes.take(address(1), start));
        assert_eq!(known.count() as u32, HANDSHAKE_BURST / 2);
        let later = start + Duration::from_secs(3600);
        assert!(handshakes.take(address(9), later));
        // In a second of a flood: the burst, and what grows.
        let mut granted = 1;
        for millisecond in 0..1000 {
            let now = later + Duration::from_millis(millisecond);
            granted += (0..10).filter(|_| handshakes.take(address(9), now)).count() as u32;
        }
        assert!(granted <= HANDSHAKE_BURST / 2 + HANDSHAKES_S, "{granted}");
        assert!(handshakes.take(address(1), later + Duration::from_secs(1)));
    }

    #[test]
    fn whoever_has_most_connections_makes_room_and_strangers_do_before_the_known() {
        let mut handshakes = Handshakes::new(Instant::now());
        let waiting = || [(5, 1), (3, 2), (8, 2), (1, 1), (9, 1)].map(|(p, a)| (p, address(a)));
        assert_eq!(handshakes.victim(waiting().into_iter()), Some(5));
        handshakes.admitted(address(1));
        assert_eq!(handshakes.victim(waiting().into_iter()), Some(3));
        handshakes.admitted(address(2));
        assert_eq!(handshakes.victim(waiting().into_iter()), Some(5));
        assert_eq!(handshakes.victim(std::iter::empty()), None);
        for n in 0..2_000u32 {
            handshakes.admitted(IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(handshakes.known.len(), KNOWN_ADDRESSES);
    }
}
