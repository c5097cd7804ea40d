//! Connections come up and break, messages travel.

use super::network::Fate;
use super::silences::Hushed;
use super::{Event, World, trace};
use bytes::Bytes;
use perdura_protocol::message::Lane;
use perdura_protocol::{Decode, Message, ReplicaId};
use perdura_replica::node::{Input, Peer};

/// Time between two attempts to connect, microseconds.
const REDIAL_US: u64 = 50_000;

impl World {
    /// Sees to it that two stations connect soon.
    pub(crate) fn dial(&mut self, a: usize, b: usize, delay_us: u64) {
        let link = self.network.link(a, b);
        if !link.dialling {
            link.dialling = true;
            self.push(delay_us, Event::Connect { a: a.min(b), b: a.max(b) });
        }
    }

    /// A station that starts connects to everybody.
    pub(crate) fn dial_all(&mut self, station: usize) {
        let replicas = self.n();
        for other in 0..self.network.stations() {
            if other != station && (other < replicas || station < replicas) {
                let delay = self.random.between(100, 5_000);
                self.dial(station, other, delay);
            }
        }
    }

    pub(crate) fn try_connect(&mut self, a: usize, b: usize) {
        let link = self.network.link(a, b);
        link.dialling = false;
        let (up, blocked) = (link.up, link.blocked_until_us > self.now_us);
        if up || !self.is_running(a) || !self.is_running(b) {
            return; // Whoever starts dials.
        }
        let cut = blocked || self.network.is_cut(a, b) || self.network.is_cut(b, a);
        if cut || self.is_paused(a) || self.is_paused(b) || !self.admitted(a, b) {
            let delay = REDIAL_US + self.random.below(REDIAL_US);
            self.dial(a, b, delay);
            return;
        }
        // Who had not noticed that the last connection broke notices now.
        for (at, peer) in [(a, b), (b, a)] {
            self.notice_break(at, peer);
        }
        let connection = self.network.connect(a, b);
        if b < self.n() {
            self.network.link(a, b).connect_transfers();
        }
        self.trace.event([1, a as u64, b as u64, connection], &[]);
        let names = (self.name(a), self.name(b));
        self.trace.line(self.now_us, format_args!("{} and {} connect", names.0, names.1));
        for (at, peer) in [(a, b), (b, a)] {
            self.tell_link(at, peer, true);
        }
    }

    pub(crate) fn is_running(&self, station: usize) -> bool {
        match self.client_at(station) {
            None => self.replicas[station].process.is_some(),
            Some(client) => self.clients.get(client).is_none_or(|client| client.core.is_some()),
        }
    }

    pub(crate) fn is_paused(&self, station: usize) -> bool {
        self.paused_until_us(station) > self.now_us
    }

    fn paused_until_us(&self, station: usize) -> u64 {
        match self.client_at(station) {
            None => self.replicas[station].paused_until_us,
            Some(client) => self.clients.get(client).map_or(0, |client| client.paused_until_us),
        }
    }

    /// Whether the handshake succeeds: each end proves the key that the other expects.
    fn admitted(&self, a: usize, b: usize) -> bool {
        let process = |station: usize| self.replicas[station].process.as_ref();
        match self.client_at(b) {
            None => {
                let (Some(first), Some(second)) = (process(a), process(b)) else { return false };
                let key = |station: usize| Some(self.replicas[station].key.public());
                first.members.key(ReplicaId(b as u8)) == key(b)
                    && second.members.key(ReplicaId(a as u8)) == key(a)
            }
            Some(client) => {
                process(a).is_some_and(|p| p.node.admit_client(self.client_key(client)).is_ok())
            }
        }
    }

    /// Whom a message on this link comes from, as a replica sees it.
    pub(crate) fn peer(&mut self, station: usize, at: usize) -> Peer {
        match self.client_at(station) {
            None => Peer::Replica(ReplicaId(station as u8)),
            Some(client) => {
                let connection = self.network.link(station, at).connection;
                Peer::Client { connection, key: self.client_key(client) }
            }
        }
    }

    fn tell_link(&mut self, at: usize, peer: usize, up: bool) {
        match self.client_at(at) {
            None => {
                let peer = self.peer(peer, at);
                self.input(at, if up { Input::LinkUp(peer) } else { Input::LinkDown(peer) });
            }
            Some(client) if client >= self.clients.len() => {}
            Some(client) => self.client_link(client, peer, up),
        }
    }

    fn notice_break(&mut self, at: usize, peer: usize) {
        let side = usize::from(at > peer);
        let link = self.network.link(at, peer);
        if !link.up && std::mem::take(&mut link.known_up[side]) && self.is_running(at) {
            self.trace.event([2, at as u64, peer as u64, 0], &[]);
            let names = (self.name(at), self.name(peer));
            self.trace.line(self.now_us, format_args!("{} lost {}", names.0, names.1));
            self.tell_link(at, peer, false);
        }
    }

    pub(crate) fn on_link_down(&mut self, at: usize, peer: usize, epoch: u64) {
        if self.is_paused(at) {
            let until = self.paused_until_us(at);
            self.push_at(until, Event::LinkDown { at, peer, epoch });
        } else if self.network.link(at, peer).epoch == epoch {
            self.notice_break(at, peer);
            self.dial(at, peer, REDIAL_US / 10);
        }
    }

    /// A link breaks. Each end is told after a time of its own.
    pub(crate) fn break_link(&mut self, a: usize, b: usize, delays_us: [u64; 2]) {
        if !self.network.link(a, b).up {
            return;
        }
        self.network.disconnect(a, b);
        let epoch = self.network.link(a, b).epoch;
        for ((at, peer), delay) in [(a, b), (b, a)].into_iter().zip(delays_us) {
            self.push(delay, Event::LinkDown { at, peer, epoch });
        }
    }

    /// The process at a station is gone; the others learn of it after `delay_us` at most.
    pub(crate) fn drop_links(&mut self, station: usize, delay_us: u64) {
        for other in 0..self.network.stations() {
            if other == station {
                continue;
            }
            let link = self.network.link(station, other);
            link.known_up[usize::from(station > other)] = false;
            let delay = self.random.below(delay_us + 1);
            self.break_link(station, other, [delay, delay]);
        }
    }

    /// The lane of transfers between two replicas breaks. Each end is told after a time of its own;
    /// later it is there again.
    pub(crate) fn break_transfers(&mut self, a: usize, b: usize, delays_us: [u64; 2]) {
        let link = self.network.link(a, b);
        if !link.up || !link.transfers.up {
            return;
        }
        link.break_transfers();
        let epoch = link.transfers.epoch;
        self.tell(format_args!("r{a} and r{b} lose their lane of transfers"));
        for ((at, peer), delay) in [(a, b), (b, a)].into_iter().zip(delays_us) {
            self.push(delay, Event::TransfersDown { at, peer, epoch });
        }
        self.push(REDIAL_US, Event::TransfersUp { a, b, epoch });
    }

    pub(crate) fn on_transfers_down(&mut self, at: usize, peer: usize, epoch: u64) {
        if self.is_paused(at) {
            let until = self.paused_until_us(at);
            self.push_at(until, Event::TransfersDown { at, peer, epoch });
        } else if self.network.link(at, peer).transfers.epoch == epoch {
            self.notice_transfers_break(at, peer);
        }
    }

    fn notice_transfers_break(&mut self, at: usize, peer: usize) {
        let known = &mut self.network.link(at, peer).transfers.known_up[usize::from(at > peer)];
        if std::mem::take(known) && self.is_running(at) {
            self.trace.event([12, at as u64, peer as u64, 0], &[]);
            self.input(at, Input::TransferLinkDown(ReplicaId(peer as u8)));
        }
    }

    pub(crate) fn on_transfers_up(&mut self, a: usize, b: usize, epoch: u64) {
        let link = self.network.link(a, b);
        if !link.up || link.transfers.epoch != epoch {
            return; // It came, or comes, with the link.
        }
        let cut = self.network.is_cut(a, b) || self.network.is_cut(b, a);
        if cut || self.is_paused(a) || self.is_paused(b) {
            self.push(REDIAL_US, Event::TransfersUp { a, b, epoch });
            return;
        }
        for (at, peer) in [(a, b), (b, a)] {
            self.notice_transfers_break(at, peer);
        }
        // Who was told may have broken what is left.
        let link = self.network.link(a, b);
        if link.up && link.transfers.epoch == epoch {
            link.connect_transfers();
        }
    }

    /// Sends bytes from one station to another; they may get lost.
    pub(crate) fn send(&mut self, from: usize, to: usize, lane: Lane, bytes: &Bytes) {
        let link = self.network.link(from, to);
        let lane = link.lane(lane, usize::from(from > to));
        let Some(epoch) = link.epoch_of(lane) else { return };
        if self.by_hand && self.withheld(from, to, bytes) {
            return;
        }
        match self.hushed(from, to, bytes) {
            None => {}
            Some(Hushed::Lost) => return,
            Some(Hushed::Late(at_us)) => {
                let bytes = bytes.clone();
                self.push_at(at_us, Event::Message { from, to, lane, epoch, bytes });
                return;
            }
        }
        let Fate { arrivals_us, faults, corrupted } =
            self.network.fate((from, to), lane, bytes.len(), self.now_us);
        for kind in faults.into_iter().flatten() {
            self.fired(kind);
        }
        for arrival in arrivals_us.into_iter().flatten() {
            let bytes = bytes.clone();
            self.push_at(arrival, Event::Message { from, to, lane, epoch, bytes });
        }
        match lane {
            _ if !corrupted => {}
            Lane::Agreement => self.break_link(from, to, [3_000, 1_000]),
            Lane::Transfer => self.break_transfers(from, to, [3_000, 1_000]),
        }
    }

    pub(crate) fn arrive(
        &mut self,
        (from, to): (usize, usize),
        lane: Lane,
        epoch: u64,
        bytes: Bytes,
    ) {
        let link = self.network.link(from, to);
        if link.epoch_of(lane) != Some(epoch) || !self.is_running(to) {
            return;
        }
        if self.is_paused(to) {
            let until = self.paused_until_us(to);
            self.push_at(until, Event::Message { from, to, lane, epoch, bytes });
            return;
        }
        self.step();
        self.trace.event([3, from as u64, to as u64, self.now_us], &bytes);
        if self.trace.on() {
            let (from, to) = (self.name(from), self.name(to));
            let text = trace::summary(&bytes);
            self.trace.line(self.now_us, format_args!("{from} -> {to} {text}"));
        }
        match self.client_at(to) {
            None => {
                self.count_attack(from);
                let peer = self.peer(from, to);
                self.input(to, Input::Message { peer, bytes });
            }
            Some(client) if client >= self.clients.len() => {}
            Some(client) => {
                if let Ok(message) = Message::from_bytes(bytes) {
                    self.client_message(client, from, message);
                }
            }
        }
    }
}
