//! A TCP proxy between every two parties: replicas with each other, and each client with each
//! replica. All faults of the network happen in it. TCP repairs what a network loses, so loss is
//! what the application sees of it: a stall, during which nothing behind it arrives either.
//!
//! [`direction`] says what happens to bytes from one party to another; [`connection`] moves them.

mod connection;
mod direction;

pub use direction::{Direction, Rules};

use crate::course::lock;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Who sends or receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Party {
    /// A replica, by id.
    Replica(usize),
    /// A client, by number.
    Client(usize),
}

/// Which end of a connection loses its peer without being told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who opened the connection.
    Dialler,
    /// Who accepted it.
    Acceptor,
}

/// What happens to connections as a whole. Numbers only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Disruption {
    resets: u64,
    half_opens: u64,
    uninformed: Side,
    mended: u64,
}

/// The way from one party to a replica that it dials.
pub(crate) struct Link {
    upstream: SocketAddr,
    there: Arc<Direction>,
    back: Arc<Direction>,
    disruption: watch::Sender<Disruption>,
    // Connections that were reset or made half-open.
    struck: Mutex<u64>,
}

/// All proxies.
pub struct Network {
    links: BTreeMap<(Party, usize), (SocketAddr, Arc<Link>)>,
}

impl Network {
    /// Binds a proxy for every party that may dial one of `replicas`; runs on `runtime`.
    pub fn start(
        replicas: &[SocketAddr],
        clients: usize,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Network> {
        let parties = (0..replicas.len()).map(Party::Replica);
        let parties: Vec<Party> = parties.chain((0..clients).map(Party::Client)).collect();
        let mut links = BTreeMap::new();
        for party in parties {
            for (to, upstream) in replicas.iter().enumerate() {
                if party == Party::Replica(to) {
                    continue;
                }
                let listener =
                    std::net::TcpListener::bind("127.0.0.1:0").context("a proxy finds no port")?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                let link = Arc::new(Link::new(*upstream));
                let served = Arc::clone(&link);
                runtime.spawn(async move {
                    if let Ok(listener) = TcpListener::from_std(listener) {
                        connection::serve(listener, served).await;
                    }
                });
                links.insert((party, to), (address, link));
            }
        }
        Ok(Network { links })
    }

    /// Where `from` finds replica `to`.
    pub fn address(&self, from: Party, to: usize) -> String {
        self.links.get(&(from, to)).map_or_else(String::new, |(address, _)| address.to_string())
    }

    /// The ways of bytes from `from` to `to`: one for each of them that dials.
    pub fn directions(&self, from: Party, to: Party) -> Vec<Arc<Direction>> {
        let mut found = Vec::new();
        if let Party::Replica(id) = to
            && let Some((_, link)) = self.links.get(&(from, id))
        {
            found.push(Arc::clone(&link.there));
        }
        if let Party::Replica(id) = from
            && let Some((_, link)) = self.links.get(&(to, id))
        {
            found.push(Arc::clone(&link.back));
        }
        found
    }

    fn links_between(&self, one: Party, other: Party) -> impl Iterator<Item = &Arc<Link>> {
        let ends = [(one, other), (other, one)];
        ends.into_iter().filter_map(|(from, to)| match to {
            Party::Replica(id) => self.links.get(&(from, id)).map(|(_, link)| link),
            Party::Client(_) => None,
        })
    }

    /// Resets the connections between two parties.
    pub fn reset(&self, one: Party, other: Party) {
        for link in self.links_between(one, other) {
            link.disruption.send_modify(|disruption| disruption.resets += 1);
        }
    }

    /// Resets one end of the connections between two parties; the other end hears nothing any
    /// more, until [`Network::mend`].
    pub fn half_open(&self, one: Party, other: Party, uninformed: Side) {
        for link in self.links_between(one, other) {
            link.disruption.send_modify(|disruption| {
                disruption.half_opens += 1;
                disruption.uninformed = uninformed;
            });
        }
    }

    /// Ends what is left of half-open connections.
    pub fn mend(&self, one: Party, other: Party) {
        for link in self.links_between(one, other) {
            link.disruption.send_modify(|disruption| disruption.mended += 1);
        }
    }

    /// Connections between two parties that were reset or made half-open so far.
    pub fn struck(&self, one: Party, other: Party) -> u64 {
        self.links_between(one, other).map(|link| *lock(&link.struck)).sum()
    }

    /// All parties.
    pub fn parties(&self) -> Vec<Party> {
        let mut parties: Vec<Party> = self.links.keys().map(|(party, _)| *party).collect();
        parties.dedup();
        parties
    }
}

impl Link {
    fn new(upstream: SocketAddr) -> Link {
        let calm = Disruption { resets: 0, half_opens: 0, uninformed: Side::Dialler, mended: 0 };
        Link {
            upstream,
            there: Arc::default(),
            back: Arc::default(),
            disruption: watch::Sender::new(calm),
            struck: Mutex::new(0),
        }
    }
}

#[cfg(test)]
mod tests;
