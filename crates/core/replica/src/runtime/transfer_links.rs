//! The thread that serves the transfer links, one to each other replica beside the link
//! that agreement uses. States and decided batches for replicas that were away are megabytes; here
//! neither their bytes nor their TLS are in the way of votes.
//!
//! The event loop gives orders and takes in what was carried, each through a list and a waker. Both
//! ways are bounded for each replica: what does not fit on the way out is dropped, as from the queue of
//! a link, and the protocol asks again; while too much that came in has not been taken, nothing more is
//! read from that replica, and TCP holds it back.
//!
//! Invariants:
//! - A replica whose transfer link is not up is sent everything over the other link. What was given to
//!   a transfer link that broke is lost, and the node is told so ([`Input::TransferLinkDown`]).
//! - Nothing is taken in that an earlier incarnation of a member sent, once the event loop knows of the
//!   new one.
//! - When a [`TransferLinks`] is dropped its links are down.

use super::keeper::{Completion, Completions};
use super::worker;
use crate::node::{Input, Peer};
use bytes::Bytes;
use perdura_protocol::{PublicKey, ReplicaId};
use perdura_transport::Peer as LinkPeer;
use perdura_transport::bounds::{Bounds, MESSAGE_ROUND_BYTES, REPLICA_ROUND_BYTES};
use perdura_transport::{
    Admission, Handed, Hello, Hub, HubEvent, Lane, MemberAddress, Misbehaviour, QueueError,
    Refusal, SendError, Stats,
};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes for one replica that the transfer links have not looked at yet: as many as its link queues.
const OUTBOUND_BYTES: usize = Bounds::REPLICA.queue_bytes;

/// Bytes of one replica that the event loop has not taken yet. Beyond it nothing is read from that
/// replica: twice what it is asked for at once.
const INBOUND_BYTES: usize = 4 << 20;

/// Bytes that the event loop takes in a round, of all replicas together: what it would read from one of
/// them. Votes wait for no more than that.
const ROUND_BYTES: usize = REPLICA_ROUND_BYTES;

/// Connections on their way to the transfer links: these take them within milliseconds, and a replica dials one.
const HANDED: usize = 64;

enum Order {
    Send { to: ReplicaId, bytes: Bytes },
    Members { members: Vec<MemberAddress>, generation: u64 },
    Adopt(Box<Handed>),
    Punish(ReplicaId),
}

/// What the transfer links have to tell, with the number of the members that it had then.
pub(super) struct Carried {
    generation: u64,
    news: Vec<News>,
}

enum News {
    Up(ReplicaId),
    Down(ReplicaId),
    Message { from: ReplicaId, bytes: Bytes },
}

/// What lies between the event loop and the transfer links.
struct Desk {
    orders: Mutex<Orders>,
    /// Of each replica, what was read and not taken.
    inbound: Vec<AtomicUsize>,
}

#[derive(Default)]
struct Orders {
    waiting: Vec<Order>,
    /// Of each replica, bytes among those that wait.
    outbound: Vec<usize>,
    handed: usize,
    /// Nobody takes orders any more, or is to.
    closed: bool,
    /// As of the last round of the transfer links.
    stats: Stats,
}

/// What a message counts for in bounds on memory.
fn weight(bytes: &Bytes) -> usize {
    bytes.len() + MESSAGE_ROUND_BYTES
}

impl Desk {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the transfer_links: what it is to do now; none when it is to end.
    fn take(&self, stats: Stats) -> Option<Vec<Order>> {
        let mut orders = self.orders();
        orders.stats = stats;
        orders.outbound.fill(0);
        orders.handed = 0;
        let waiting = std::mem::take(&mut orders.waiting);
        (!orders.closed).then_some(waiting)
    }

    fn close(&self) {
        let mut orders = self.orders();
        orders.closed = true;
        orders.waiting.clear();
        orders.stats.replica_links = 0;
    }
}

/// How the event loop stands with one replica.
#[derive(Clone, Default)]
struct Correspondent {
    up: bool,
    /// Its key and incarnation, and since which members it has them.
    key: Option<(PublicKey, u32)>,
    since: u64,
}

/// The event loop's end.
pub(super) struct TransferLinks {
    desk: Arc<Desk>,
    waker: Arc<mio::Waker>,
    /// Until it starts.
    hub: Option<Hub>,
    thread: Option<JoinHandle<()>>,
    replicas: Vec<Correspondent>,
    generation: u64,
    /// Came, and is to be taken in.
    arrived: VecDeque<(u64, News)>,
    /// Messages that found no room.
    dropped: u64,
}

impl TransferLinks {
    /// One that has not started, in a group of `n`.
    pub fn new(hub: Hub, n: usize) -> TransferLinks {
        let orders = Orders { outbound: vec![0; n], ..Orders::default() };
        let inbound = (0..n).map(|_| AtomicUsize::new(0)).collect();
        TransferLinks {
            desk: Arc::new(Desk { orders: Mutex::new(orders), inbound }),
            waker: hub.waker(),
            hub: Some(hub),
            thread: None,
            replicas: vec![Correspondent::default(); n],
            generation: 0,
            arrived: VecDeque::new(),
            dropped: 0,
        }
    }

    pub fn start(&mut self, completions: Completions) -> io::Result<()> {
        let Some(hub) = self.hub.take() else { return Ok(()) };
        let desk = Arc::clone(&self.desk);
        let work = move |completions: &Completions| carry(hub, &desk, completions);
        self.thread = Some(worker::spawn("transfer", completions, work)?);
        Ok(())
    }

    /// Whether there is a transfer link to a replica, as far as is known here.
    pub fn is_up(&self, replica: ReplicaId) -> bool {
        self.replicas.get(replica.index()).is_some_and(|one| one.up)
    }

    /// Sends it over the transfer link.
    pub fn send(&mut self, to: ReplicaId, bytes: Bytes) -> Result<(), SendError> {
        let weight = weight(&bytes);
        let mut orders = self.desk.orders();
        let Some(outbound) = orders.outbound.get_mut(to.index()) else {
            return Err(SendError::NoLink);
        };
        if *outbound + weight > OUTBOUND_BYTES {
            self.dropped += 1;
            return Err(QueueError::Full.into());
        }
        *outbound += weight;
        drop(orders);
        self.order(Order::Send { to, bytes });
        Ok(())
    }

    pub fn set_members(&mut self, members: Vec<MemberAddress>) {
        self.generation += 1;
        for member in &members {
            let Some(one) = self.replicas.get_mut(member.id.index()) else { continue };
            let key = Some((member.key, member.incarnation));
            if one.key != key {
                *one = Correspondent { up: false, key, since: self.generation };
            }
        }
        self.order(Order::Members { members, generation: self.generation });
    }

    /// A replica came for its transfer link. Closes if there are too many.
    pub fn adopt(&self, handed: Box<Handed>) {
        let mut orders = self.desk.orders();
        if orders.handed >= HANDED {
            return;
        }
        orders.handed += 1;
        drop(orders);
        self.order(Order::Adopt(handed));
    }

    /// What a replica sent over its transfer link does not decode.
    pub fn punish(&self, replica: ReplicaId) {
        self.order(Order::Punish(replica));
    }

    fn order(&self, order: Order) {
        let mut orders = self.desk.orders();
        if orders.closed {
            return;
        }
        let first = orders.waiting.is_empty();
        orders.waiting.push(order);
        drop(orders);
        if first && let Err(error) = self.waker.wake() {
            tracing::error!("the transfer links cannot be woken: {error}");
        }
    }

    /// Keeps what the transfer links told until it is this one's turn.
    pub fn take_in(&mut self, carried: Carried) {
        let Carried { generation, news } = carried;
        self.arrived.extend(news.into_iter().map(|news| (generation, news)));
    }

    /// Whether something waits for its turn.
    pub fn has_more(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// What the node is told next, in a round in which so many bytes were taken already.
    pub fn next_input(&mut self, taken: &mut usize) -> Option<Input> {
        while *taken < ROUND_BYTES {
            let (generation, news) = self.arrived.pop_front()?;
            let (News::Up(id) | News::Down(id) | News::Message { from: id, .. }) = &news;
            let Some(one) = self.replicas.get_mut(id.index()) else { continue };
            let current = generation >= one.since;
            match news {
                News::Up(_) => one.up |= current,
                News::Down(id) => {
                    one.up = false;
                    return Some(Input::TransferLinkDown(id));
                }
                News::Message { from, bytes } => {
                    *taken += weight(&bytes);
                    if let Some(inbound) = self.desk.inbound.get(from.index()) {
                        inbound.fetch_sub(weight(&bytes), Ordering::Relaxed);
                    }
                    if current {
                        return Some(Input::Message { peer: Peer::Replica(from), bytes });
                    }
                }
            }
        }
        None
    }

    /// As of the last round of the transfer links.
    pub fn stats(&self) -> Stats {
        let stats = self.desk.orders().stats;
        Stats { dropped_messages: stats.dropped_messages + self.dropped, ..stats }
    }
}

impl Drop for TransferLinks {
    /// It waits for nothing but its sockets, and only for their readiness: it ends at once.
    fn drop(&mut self) {
        self.desk.close();
        if let Some(thread) = self.thread.take() {
            match self.waker.wake() {
                // A panic was reported by the thread itself (`worker`).
                Ok(()) => drop(thread.join()),
                Err(error) => tracing::error!("the transfer links cannot be woken: {error}"),
            }
        }
    }
}

/// Who has to wait. Clients do not come here.
struct Door<'a> {
    desk: &'a Desk,
}

impl Admission for Door<'_> {
    fn admit(&mut self, _: &Hello, _: PublicKey) -> Result<(), Refusal> {
        Err(Refusal("clients are not served here".into()))
    }

    fn holds_back(&self, peer: &LinkPeer) -> bool {
        let LinkPeer::Replica(id) = peer else { return true };
        let inbound = self.desk.inbound.get(id.index());
        inbound.is_some_and(|bytes| bytes.load(Ordering::Relaxed) >= INBOUND_BYTES)
    }
}

/// The thread of the transfer links.
fn carry(mut hub: Hub, desk: &Desk, completions: &Completions) {
    let (mut happened, mut generation) = (Vec::new(), 0);
    loop {
        if let Err(error) = hub.poll(Instant::now(), None, &mut Door { desk }, &mut happened) {
            // Everything goes over the other links then.
            tracing::error!("transfer links are no more: {error}");
            break;
        }
        let news: Vec<News> =
            happened.drain(..).filter_map(|event| note(&mut hub, desk, event)).collect();
        if !news.is_empty() {
            completions.push(Completion::Carried(Carried { generation, news }));
        }
        let Some(orders) = desk.take(hub.stats()) else { return };
        for order in orders {
            match order {
                Order::Send { to, bytes } => {
                    if let Err(error) = hub.send(&LinkPeer::Replica(to), bytes) {
                        tracing::debug!(replica = %to, "message dropped: {error}");
                    }
                }
                Order::Members { members, generation: newer } => {
                    hub.set_members(&members);
                    generation = newer;
                }
                Order::Adopt(handed) => hub.adopt(handed),
                Order::Punish(id) => {
                    hub.misbehaved(&LinkPeer::Replica(id), Misbehaviour::MalformedMessage);
                }
            }
        }
        hub.flush();
    }
    desk.close();
    let all = (0..desk.inbound.len() as u8).map(ReplicaId);
    let news = all.map(News::Down).collect();
    completions.push(Completion::Carried(Carried { generation, news }));
}

/// What the event loop is told of an event.
fn note(hub: &mut Hub, desk: &Desk, event: HubEvent) -> Option<News> {
    match event {
        HubEvent::LinkUp { peer: LinkPeer::Replica(id) } => Some(News::Up(id)),
        HubEvent::LinkDown { peer: LinkPeer::Replica(id), .. } => Some(News::Down(id)),
        HubEvent::Message { peer: peer @ LinkPeer::Replica(from), message } => {
            if Lane::of(&message) != Lane::Transfer {
                // It would pass by what is before it on the other link, and that one's bounds.
                hub.misbehaved(&peer, Misbehaviour::ForbiddenMessage);
                return None;
            }
            desk.inbound.get(from.index())?.fetch_add(weight(&message), Ordering::Relaxed);
            Some(News::Message { from, bytes: message })
        }
        // No clients come here, and nothing is handed on.
        _ => None,
    }
}

#[cfg(test)]
mod tests;
