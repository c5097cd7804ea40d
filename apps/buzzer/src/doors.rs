//! Connections: how many there are at a time, who may have how many, and how long one is kept on which nothing comes.
//!
//! One that comes is let in as long as there is another that waits for its visitor: that one goes for it. So those who send half of what they want to ask keep nobody out,
//! least of all whoever comes from elsewhere.

use crate::places::{ConnectionPermit, Places};
use crate::web::{Busy, Counters, Read};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Connections at most, whatever the system allows.
const CONNECTIONS: usize = 8_192;

/// Connections of those who run it.
pub(crate) const INTERNAL_CONNECTIONS: usize = 64;

/// Descriptors for all else: the store's connections, and those of who runs it, have theirs besides.
const OTHER_DESCRIPTORS: usize = 64;

/// Fewer connections than these are of no use.
const FEWEST: usize = 16;

/// So long a request's head may take from the end of the one before on; ...
const HEAD: Duration = Duration::from_secs(10);

/// ... and from a proxy, which keeps connections for later, longer than any of them does by itself.
const HEAD_OF_PROXY: Duration = Duration::from_secs(75);

/// A head is no longer; that many connections may have one begun at a time.
const HEAD_BYTES: usize = 32 * 1024;

/// An answer that nobody takes is given up after this time.
const UNTAKEN: Duration = Duration::from_secs(30);

/// Pause after a connection could not be taken, as where there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How many connections a process may have with so many descriptors, of which the store's client needs some.
#[must_use]
pub fn connections(descriptors: u64, of_store: usize) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let others = OTHER_DESCRIPTORS + INTERNAL_CONNECTIONS + of_store;
    descriptors.saturating_sub(others).clamp(FEWEST, CONNECTIONS)
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
#[derive(Clone, Default)]
struct Open {
    busy: Busy,
    /// Told to end.
    end: Arc<Notify>,
}

/// How many connections had to go, or could not come.
#[derive(Default)]
struct Turned {
    closed: AtomicU64,
    refused: AtomicU64,
}

/// The connections of a listener.
pub(crate) struct Doors {
    behind_proxy: bool,
    places: Arc<Places<Open>>,
    turned: Arc<Turned>,
}

/// One that was let in, until it is dropped.
struct Inside {
    open: Open,
    // It has it no longer where it was told to end.
    _place: ConnectionPermit<Open>,
}

impl Doors {
    pub(crate) fn new(Bounds { connections, behind_proxy }: Bounds) -> Doors {
        let places = match behind_proxy {
            true => Places::without_shares(connections),
            false => Places::new(connections),
        };
        Doors { behind_proxy, places, turned: Arc::default() }
    }

    /// What those who run it see of who does not get in.
    pub(crate) fn counters(&self) -> Counters {
        let counter = |name, help, read: fn(&Turned) -> &AtomicU64| {
            let turned = Arc::clone(&self.turned);
            let read = move || read(&turned).load(Ordering::Relaxed);
            (name, help, Box::new(read) as Read)
        };
        vec![
            counter(
                "buzzer_connections_closed_total",
                "Connections that waited for their visitor and were closed for others.",
                |turned| &turned.closed,
            ),
            counter(
                "buzzer_connections_refused_total",
                "Connections that were closed when they came, since no other could be closed for them.",
                |turned| &turned.refused,
            ),
        ]
    }

    /// So long a head may take.
    fn head(&self) -> Duration {
        if self.behind_proxy { HEAD_OF_PROXY } else { HEAD }
    }

    /// Lets one in, if there is room or somebody makes some.
    fn let_in(&self, address: IpAddr) -> Option<Inside> {
        let open = Open::default();
        let waits = |open: &Open| open.busy.waits_since();
        let Ok((place, former)) = self.places.take_over(address, open.clone(), waits) else {
            self.turned.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if let Some(former) = former {
            former.end.notify_one();
            self.turned.closed.fetch_add(1, Ordering::Relaxed);
        }
        Some(Inside { open, _place: place })
    }
}

/// Serves one connection to its end, or until others need its place.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    inside: Inside,
    head: Duration,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    // Without these it is served all the same.
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNTAKEN));
    let (router, busy) = (TowerToHyperService::new(router), inside.open.busy.clone());
    let for_requests = busy.clone();
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(for_requests.clone());
        router.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_BYTES)
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
            () = inside.open.end.notified() => {
                tracing::debug!(%peer, "a connection is closed for another");
                if busy.waits_since().is_some() {
                    return;
                }
                // Something began on it just now: whoever asked for that hears what became of it.
                connection.as_mut().graceful_shutdown();
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
    doors: Doors,
    mut stopping: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
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
                    let (head, router) = (doors.head(), router.clone());
                    tasks.spawn(serve(stream, peer, inside, head, router, stopped.clone()));
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
    use axum::Extension;
    use std::io::{Read as _, Write};
    use std::net::TcpStream as Visitor;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn doors(connections: usize, behind_proxy: bool) -> Doors {
        Doors::new(Bounds { connections, behind_proxy })
    }

    fn ended(inside: &Inside) -> bool {
        inside._place.is_lost()
    }

    fn fill(doors: &Doors, last: u8, most: usize) -> Vec<Inside> {
        (0..most).map_while(|_| doors.let_in(address(last))).collect()
    }

    #[test]
    fn descriptors_bound_connections() {
        assert_eq!(connections(1024, 12), 1024 - 64 - INTERNAL_CONNECTIONS - 12);
        assert_eq!(connections(u64::MAX, 12), CONNECTIONS);
        assert_eq!(connections(10, 12), FEWEST);
    }

    #[test]
    fn one_that_comes_takes_the_place_of_one_that_waits() {
        let doors = doors(80, false);
        let held = fill(&doors, 1, 100);
        assert_eq!(held.len(), 100);
        assert!(held[..60].iter().all(ended) && !held[60..].iter().any(ended));
        assert_eq!(doors.places.taken(), 40);
        // Those who come from elsewhere do not take from each other while there is room.
        let others = fill(&doors, 2, 10);
        assert_eq!(others.len(), 10);
        assert_eq!(doors.places.taken(), 50);
        assert!(!others.iter().any(ended));
    }

    #[test]
    fn one_that_is_answered_stays() {
        let doors = doors(80, false);
        let first = fill(&doors, 1, 40);
        let answered: Vec<_> = first.iter().map(|one| one.open.busy.begin()).collect();
        assert!(doors.let_in(address(1)).is_none());
        assert!(doors.let_in(address(2)).is_some());
        assert!(!first.iter().any(ended));
        drop(answered);
        assert!(doors.let_in(address(1)).is_some());
        assert!(ended(&first[0]));
        let counted: Vec<u64> = doors.counters().iter().map(|(_, _, read)| read()).collect();
        assert_eq!(counted, [1, 1], "one was closed, and one was refused");
    }

    #[test]
    fn one_that_was_answered_a_moment_ago_outlasts_those_that_never_asked() {
        let doors = doors(80, false);
        let held = fill(&doors, 1, 40);
        drop(held[0].open.busy.begin());
        let late = fill(&doors, 1, 39);
        assert!(!ended(&held[0]) && held[1..].iter().all(ended) && !late.iter().any(ended));
    }

    #[test]
    fn where_all_is_taken_it_is_from_those_who_have_most() {
        let doors = doors(80, false);
        let most = fill(&doors, 1, 40);
        let others: Vec<_> = (2..6).map(|last| fill(&doors, last, 10)).collect();
        assert_eq!(doors.places.taken(), 80);
        let late = doors.let_in(address(9));
        assert!(late.is_some() && ended(&most[0]) && doors.places.taken() == 80);
        assert!(!others.iter().flatten().any(ended));
    }

    /// A connection on which a router answers, as its visitor has it, and as others see it.
    async fn connected(router: Router) -> (Visitor, Open) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let visitor = Visitor::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let inside = doors(80, false).let_in(peer.ip()).unwrap();
        let (open, (runs, stopping)) = (inside.open.clone(), watch::channel(false));
        tokio::spawn(async move {
            serve(stream, peer, inside, HEAD, router, stopping).await;
            drop(runs);
        });
        (visitor, open)
    }

    /// What there is to do in this thread is done.
    async fn all_done() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// What the visitor is told until his connection ends.
    async fn all_told(mut visitor: Visitor) -> String {
        let read = move || {
            let mut told = String::new();
            visitor.read_to_string(&mut told).map(|_| told)
        };
        tokio::task::spawn_blocking(read).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn one_on_which_something_began_meanwhile_ends_behind_its_answer() {
        let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begins, waits) = (Arc::clone(&began), Arc::clone(&goes_on));
        let router = Router::new().fallback(|Extension(busy): Extension<Busy>| async move {
            let _doing = busy.begin();
            begins.notify_one();
            waits.notified().await;
            "it is done"
        });
        let (mut visitor, open) = connected(router).await;
        visitor.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        began.notified().await;
        open.end.notify_one();
        all_done().await;
        goes_on.notify_one();
        let told = all_told(visitor).await;
        assert!(told.ends_with("it is done"), "{told:?}");
    }

    #[tokio::test]
    async fn a_head_without_end_is_refused() {
        let (mut visitor, _) = connected(Router::new()).await;
        let begin = b"GET / HTTP/1.1\r\nHost: x\r\nCookie: ";
        visitor.write_all(begin).unwrap();
        visitor.write_all(&vec![b'x'; HEAD_BYTES - begin.len()]).unwrap();
        let told = all_told(visitor).await;
        assert!(told.starts_with("HTTP/1.1 431 "), "{told:?}");
    }

    #[test]
    fn what_a_proxy_has_is_of_many() {
        let doors = doors(80, true);
        let held = fill(&doors, 1, 80);
        assert!(!held.iter().any(ended));
        assert!(doors.let_in(address(1)).is_some());
        assert!(ended(&held[0]));
    }
}
