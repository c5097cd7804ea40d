//! Connections: how many there are at a time, who may have how many, and how long one is kept on which nothing comes.
//!
//! One that comes is let in as long as there is another that waits for its visitor: that one goes for it. So those who send half of what they want to ask keep nobody out,
//! least of all whoever comes from elsewhere.

use crate::web::{Busy, network_of};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Connections at most, whatever the system allows.
const CONNECTIONS: usize = 8_192;

/// Descriptors for all else: the store's connections have theirs besides.
const OTHER_DESCRIPTORS: usize = 64;

/// Fewer connections than these are of no use.
const FEWEST: usize = 16;

/// While more than half of the connections are there, no network has more than this part of them.
const SHARES: usize = 8;

/// So long a request's head may take from the end of the one before on; ...
const HEAD: Duration = Duration::from_secs(10);

/// ... and from a proxy, which keeps connections for later, longer than any of them does by itself.
const HEAD_OF_PROXY: Duration = Duration::from_secs(75);

/// An answer that nobody takes is given up after this time.
const UNTAKEN: Duration = Duration::from_secs(30);

/// Pause after a connection could not be taken, as where there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How many connections a process may have with so many descriptors, of which the store's client needs some.
#[must_use]
pub fn connections(descriptors: u64, of_store: usize) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    descriptors.saturating_sub(OTHER_DESCRIPTORS + of_store).clamp(FEWEST, CONNECTIONS)
}

/// Who is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections at a time.
    pub connections: usize,
    /// All come by a proxy, which has them in order.
    pub behind_proxy: bool,
}

/// A connection, as others see it.
struct Open {
    busy: Busy,
    /// Told to end.
    end: Arc<Notify>,
}

#[derive(Default)]
struct Table {
    next: u64,
    all: usize,
    // In the order in which they came.
    by: HashMap<IpAddr, BTreeMap<u64, Open>>,
}

impl Table {
    fn remove(&mut self, who: IpAddr, id: u64) -> Option<Open> {
        let own = self.by.get_mut(&who)?;
        let open = own.remove(&id)?;
        self.all -= 1;
        if own.is_empty() {
            self.by.remove(&who);
        }
        Some(open)
    }

    /// Ends the longest that waits for its visitor, of those of a network; false if none does.
    fn displace(&mut self, who: IpAddr) -> bool {
        let own = self.by.get(&who);
        let waiting = own
            .and_then(|own| own.iter().find(|(_, open)| !open.busy.is_busy()).map(|(id, _)| *id));
        let Some(open) = waiting.and_then(|id| self.remove(who, id)) else { return false };
        open.end.notify_one();
        true
    }

    /// Makes room for one more of a network; false if there is none.
    fn make_room(&mut self, who: IpAddr, bounds: Bounds) -> bool {
        let own = self.by.get(&who).map_or(0, BTreeMap::len);
        let has_share = !bounds.behind_proxy && own >= bounds.connections.div_ceil(SHARES);
        if has_share && self.all >= bounds.connections / 2 {
            return self.displace(who);
        }
        if self.all < bounds.connections {
            return true;
        }
        let most = self.by.iter().max_by_key(|(_, own)| own.len()).map(|(who, _)| *who);
        most.is_some_and(|most| self.displace(most))
    }
}

/// The connections of a listener.
struct Doors {
    bounds: Bounds,
    table: Mutex<Table>,
}

/// One that was let in, until it is dropped.
struct Inside {
    doors: Arc<Doors>,
    who: IpAddr,
    id: u64,
    busy: Busy,
    end: Arc<Notify>,
}

impl Doors {
    fn new(bounds: Bounds) -> Arc<Doors> {
        Arc::new(Doors { bounds, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one in, if there is room or somebody makes some.
    fn let_in(self: &Arc<Doors>, address: IpAddr) -> Option<Inside> {
        let who = network_of(address);
        let mut table = self.lock();
        if !table.make_room(who, self.bounds) {
            return None;
        }
        let (id, busy, end) = (table.next, Busy::default(), Arc::new(Notify::new()));
        table.next += 1;
        table.all += 1;
        let open = Open { busy: busy.clone(), end: Arc::clone(&end) };
        table.by.entry(who).or_default().insert(id, open);
        drop(table);
        Some(Inside { doors: Arc::clone(self), who, id, busy, end })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.doors.lock().remove(self.who, self.id);
    }
}

/// Serves one connection to its end, or until others need its place.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    inside: Inside,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let head = if inside.doors.bounds.behind_proxy { HEAD_OF_PROXY } else { HEAD };
    // Without these it is served all the same.
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNTAKEN));
    let (router, busy) = (TowerToHyperService::new(router), inside.busy.clone());
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(busy.clone());
        router.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a connection ended");
                }
                return;
            }
            () = inside.end.notified() => {
                tracing::debug!(%peer, "a connection is closed for another");
                return;
            }
            _ = stopping.wait_for(|stopping| *stopping), if !told => {
                connection.as_mut().graceful_shutdown();
                told = true;
            }
        }
    }
}

/// Takes connections until it is told to stop, and ends them then, each behind what is under way on it.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
) {
    let (doors, mut tasks) = (Doors::new(bounds), JoinSet::new());
    let stopped = stopping.clone();
    loop {
        let accepted: io::Result<_> = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            // Where there is no room for it, it is closed.
            Ok((stream, peer)) => {
                if let Some(inside) = doors.let_in(peer.ip()) {
                    tasks.spawn(serve(stream, peer, inside, router.clone(), stopped.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn doors(connections: usize, behind_proxy: bool) -> Arc<Doors> {
        Doors::new(Bounds { connections, behind_proxy })
    }

    fn ended(inside: &Inside) -> bool {
        !inside.doors.lock().by.get(&inside.who).is_some_and(|own| own.contains_key(&inside.id))
    }

    fn fill(doors: &Arc<Doors>, last: u8, most: usize) -> Vec<Inside> {
        (0..most).map_while(|_| doors.let_in(address(last))).collect()
    }

    #[test]
    fn descriptors_bound_connections() {
        assert_eq!(connections(1024, 12), 1024 - 64 - 12);
        assert_eq!(connections(u64::MAX, 12), CONNECTIONS);
        assert_eq!(connections(10, 12), FEWEST);
    }

    #[test]
    fn one_that_comes_takes_the_place_of_one_that_waits() {
        let doors = doors(80, false);
        let held = fill(&doors, 1, 100);
        assert_eq!(held.len(), 100);
        assert_eq!(held.iter().filter(|one| ended(one)).count(), 60);
        assert!(held[..60].iter().all(ended));
        assert_eq!(doors.lock().all, 40);
        // Those who come from elsewhere do not take from each other while there is room.
        let others = fill(&doors, 2, 10);
        assert_eq!(others.len(), 10);
        assert_eq!(doors.lock().all, 50);
        assert!(!others.iter().any(ended));
    }

    #[test]
    fn one_that_is_answered_stays() {
        let doors = doors(80, false);
        let first = fill(&doors, 1, 40);
        let answered: Vec<_> = first.iter().map(|one| one.busy.begin()).collect();
        assert!(doors.let_in(address(1)).is_none());
        assert!(doors.let_in(address(2)).is_some());
        assert!(!first.iter().any(ended));
        drop(answered);
        assert!(doors.let_in(address(1)).is_some());
        assert!(ended(&first[0]));
    }

    #[test]
    fn where_all_is_taken_it_is_from_those_who_have_most() {
        let doors = doors(80, false);
        let most = fill(&doors, 1, 40);
        let others: Vec<_> = (2..6).map(|last| fill(&doors, last, 10)).collect();
        assert_eq!(doors.lock().all, 80);
        let late = doors.let_in(address(9));
        assert!(late.is_some() && ended(&most[0]) && doors.lock().all == 80);
        assert!(!others.iter().flatten().any(ended));
    }

    #[test]
    fn what_a_proxy_has_is_of_many() {
        let doors = doors(80, true);
        let held = fill(&doors, 1, 80);
        assert!(!held.iter().any(ended));
        assert!(doors.let_in(address(1)).is_some());
        assert!(ended(&held[0]));
    }

    #[test]
    fn nothing_is_remembered_of_who_left() {
        let doors = doors(16, false);
        drop(fill(&doors, 1, 30));
        let table = doors.lock();
        assert!(table.all == 0 && table.by.is_empty());
    }
}
