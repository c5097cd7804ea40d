//! The client on tokio against small replicas on real sockets: hubs on one thread that share what
//! they execute, so that no agreement is needed.

use bytes::Bytes;
use perdura_client::{
    CallError, Client, ClusterConfig, ConnectError, Options, Refusal, ReplicaAddress, Reply,
};
use perdura_protocol::{
    AdminCommand, ClusterId, Command, Decode, Digest, Encode, Faults, Message, Outcome, PublicKey,
    RefusalReason, ReplicaId, Scheme, SecretKey, Slot, View,
};
use perdura_transport::{Hello, Hub, HubConfig, HubEvent, Peer, Refusal as Refused};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([9; 16]);

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn hub_config(id: u8, listen: String) -> HubConfig {
    HubConfig {
        id: ReplicaId(id),
        incarnation: 0,
        cluster: CLUSTER,
        parameters: Digest::ZERO,
        key: key(id),
        listen,
        named: false,
        seed: u64::from(id),
    }
}

/// A port that nobody else is given while the socket lives: bound, but not listening, so that a
/// hub may listen there and nobody answers while none does.
fn reserve() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address.to_string())
}

/// What replicas answer by their slots, which are all different.
const APART: &[u8] = b"apart";

enum Order {
    Kill(usize),
    Restart(usize),
    Stop,
}

/// What all replicas have executed, and where their replies go.
#[derive(Default)]
struct Shared {
    outcomes: BTreeMap<(PublicKey, u64), BTreeMap<u64, Outcome>>,
    attached: BTreeMap<(usize, PublicKey, u64), Peer>,
    executed: u64,
}

struct Replicas {
    hubs: Vec<Option<Hub>>,
    shared: Shared,
    administrator: PublicKey,
    /// So many who connect with one key are told that there is no place for now.
    full: usize,
}

impl Replicas {
    fn turn(&mut self) {
        for index in 0..self.hubs.len() {
            let Some(hub) = &mut self.hubs[index] else { continue };
            let mut events = Vec::new();
            let (stranger, late) = (key(66).public(), key(67).public());
            let full = &mut self.full;
            let mut admit = |_: &Hello, key: PublicKey| {
                if key == late && *full > 0 {
                    *full -= 1;
                    Err(Refused::for_now("there is no place"))
                } else if key == stranger {
                    Err(Refused("this key is not registered".into()))
                } else {
                    Ok(())
                }
            };
            let wait = Some(Duration::from_micros(200));
            hub.poll(Instant::now(), wait, &mut admit, &mut events).unwrap();
            for event in events {
                if let HubEvent::Message { peer, message } = event {
                    self.message(index, peer, Message::from_bytes(message).unwrap());
                }
            }
        }
        for hub in self.hubs.iter_mut().flatten() {
            hub.flush();
        }
    }

    fn message(&mut self, index: usize, peer: Peer, message: Message) {
        let Peer::Client { key, .. } = peer else { panic!("only clients come") };
        match message {
            Message::Attach { nonce } => {
                self.shared.attached.insert((index, key, nonce), peer);
            }
            Message::Frame(frame) => {
                let nonce = frame.session.nonce;
                let mut outcomes = Vec::new();
                for (command, number) in frame.commands().zip(frame.first_number..) {
                    outcomes.push((number, self.execute(key, nonce, number, &command)));
                }
                let message = Message::Replies { view: View(0), nonce, outcomes }.to_bytes();
                for (replica, hub) in self.hubs.iter_mut().enumerate() {
                    if let Some(hub) = hub
                        && let Some(peer) = self.shared.attached.get(&(replica, key, nonce))
                    {
                        let _ = hub.send(peer, message.clone());
                    }
                }
            }
            Message::Read { .. } | Message::ReadAt { .. } => {
                let (id, slot, content) = match message {
                    // Each has come to another slot.
                    Message::Read { id, command } if command[1..] == *APART => {
                        let slot = 5 + index as u64;
                        (id, Slot(slot), slot.to_string().into())
                    }
                    Message::Read { id, command } => (id, Slot(0), command.slice(1..)),
                    Message::ReadAt { id, slot, .. } => (id, slot, slot.0.to_string().into()),
                    other => panic!("{other:?}"),
                };
                let outcome = Some(Outcome::Service(content));
                let message = Message::ReadReply { id, slot, outcome }.to_bytes();
                let hub = self.hubs[index].as_mut().unwrap();
                hub.send(&peer, message).unwrap();
            }
            other => panic!("a client does not send {other:?}"),
        }
    }

    fn execute(&mut self, key: PublicKey, nonce: u64, number: u64, command: &Bytes) -> Outcome {
        let administrator = key == self.administrator;
        let shared = &mut self.shared;
        let session = shared.outcomes.entry((key, nonce)).or_default();
        let executed = &mut shared.executed;
        let outcome = session.entry(number).or_insert_with(|| {
            let command = Command::from_bytes(command.clone()).unwrap();
            // Nobody waits for a session's end to arrive.
            *executed += u64::from(command != Command::Close);
            match command {
                Command::Open | Command::OpenBy { .. } | Command::Renew => Outcome::Opened,
                Command::Close | Command::Withdraw { .. } | Command::Confirm { .. } => {
                    Outcome::NoSession
                }
                Command::Service(content) => Outcome::Service(content),
                Command::Admin(_) if administrator => {
                    Outcome::Administered { configuration: 1, from_slot: 7 }
                }
                Command::Admin(_) => Outcome::Refused(RefusalReason::NotAdministrator),
            }
        });
        outcome.clone()
    }
}

/// Replicas on a thread of their own; joined when dropped.
struct Cluster {
    config: ClusterConfig,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<u64>>,
    _ports: Vec<Socket>,
}

impl Cluster {
    fn start(u: u8, r: u8) -> Cluster {
        Cluster::start_keeping(u, r, false)
    }

    /// Its replicas keep states for a moment, or do not.
    fn start_keeping(u: u8, r: u8, keeps: bool) -> Cluster {
        let faults = Faults::new(u, r).unwrap();
        let (ports, addresses): (Vec<Socket>, Vec<String>) =
            (0..faults.n()).map(|_| reserve()).unzip();
        let bind = |(id, address): (usize, &String)| {
            let mut hub =
                Hub::bind(&hub_config(id as u8, address.clone()), Instant::now()).unwrap();
            if keeps {
                hub.keeps_states();
            }
            hub
        };
        let hubs: Vec<Hub> = addresses.iter().enumerate().map(bind).collect();
        let replica = |(id, address): (usize, &String)| ReplicaAddress {
            id: ReplicaId(id as u8),
            address: address.clone(),
            key: key(id as u8).public(),
        };
        let config = ClusterConfig {
            cluster: CLUSTER,
            faults,
            replicas: addresses.iter().enumerate().map(replica).collect(),
            administrator: Some(key(99).public()),
            named: false,
            unreachable_after: None,
            takes_long: false,
        };
        let (orders, inbox) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut replicas = Replicas {
                hubs: hubs.into_iter().map(Some).collect(),
                shared: Shared::default(),
                administrator: key(99).public(),
                full: FULL,
            };
            loop {
                match inbox.try_recv() {
                    Ok(Order::Kill(index)) => replicas.hubs[index] = None,
                    Ok(Order::Restart(index)) => {
                        let config = hub_config(index as u8, addresses[index].clone());
                        replicas.hubs[index] = Some(Hub::bind(&config, Instant::now()).unwrap());
                    }
                    Ok(Order::Stop) => return replicas.shared.executed,
                    Err(_) => {}
                }
                replicas.turn();
            }
        });
        Cluster { config, orders, thread: Some(thread), _ports: ports }
    }

    fn client(&self, seed: u8) -> Client {
        Client::connect(self.config.clone(), key(seed)).unwrap()
    }

    /// Stops the replicas; returns how many commands they executed.
    fn stop(mut self) -> u64 {
        self.orders.send(Order::Stop).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
    }
}

fn patient() -> Options {
    Options { timeout: Duration::from_secs(60), reply_quorum: None }
}

fn hasty() -> Options {
    Options { timeout: Duration::from_millis(300), reply_quorum: None }
}

fn text(index: usize) -> Bytes {
    Bytes::from(format!("command {index}"))
}

/// Turns the runtime until the client's counters say so; the deadline only ends a failure.
async fn until(client: &Client, done: impl Fn(&perdura_client::DriverStats) -> bool) {
    let start = Instant::now();
    while !done(&client.stats().await.unwrap()) {
        tokio::task::yield_now().await;
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Waits until the client has failed to reach any replica, for a reason with these words.
async fn failed(client: &Client, words: &str) {
    until(client, |stats| {
        stats.failures.iter().filter(|(_, why)| why.contains(words)).count() == 3
    })
    .await;
}

#[tokio::test]
async fn many_calls_at_once_share_frames_and_all_are_answered_once() {
    for (u, r) in [(1, 0), (1, 1)] {
        let cluster = Cluster::start(u, r);
        let client = cluster.client(50);
        let mut calls = Vec::new();
        for index in 0..500 {
            let client = client.clone();
            calls.push(tokio::spawn(async move { client.call(text(index), &patient()).await }));
        }
        for (index, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), Ok(Reply::Service(text(index))));
        }
        let stats = client.stats().await.unwrap();
        assert_eq!((stats.core.completed, stats.open_calls), (500, 0));
        assert!(stats.core.frames < 100, "{stats:?}");
        client.close().await;
        assert_eq!(cluster.stop(), 501, "each once, and the session");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients_with_one_key_are_several_sessions() {
    let cluster = Cluster::start(1, 1);
    let clients: Vec<Client> = (0..4).map(|_| cluster.client(50)).collect();
    let mut calls = Vec::new();
    for index in 0..100 {
        let client = clients[index % 4].clone();
        calls.push(tokio::spawn(async move { client.call(text(index), &patient()).await }));
    }
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), Ok(Reply::Service(text(index))));
    }
    drop(clients);
    assert_eq!(cluster.stop(), 104);
}

#[tokio::test]
async fn reads_are_fast_when_enough_replicas_agree_and_ordered_when_too_few_are_there() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client(50);
    until(&client, |stats| stats.linked.len() == 4).await;
    // On a machine that is busy elsewhere some are ordered, for their answers come too late.
    let start = Instant::now();
    while client.stats().await.unwrap().core.fast_reads == 0 {
        assert_eq!(client.read(text(1), &patient()).await, Ok(Reply::Service(text(1))));
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    for index in [2, 3] {
        cluster.orders.send(Order::Kill(index)).unwrap();
    }
    until(&client, |stats| stats.linked.len() == 2).await;
    let before = client.stats().await.unwrap().core.fast_reads;
    assert_eq!(client.read(text(2), &patient()).await, Ok(Reply::Service(text(2))));
    assert_eq!(client.stats().await.unwrap().core.fast_reads, before);
}

#[tokio::test]
async fn a_replica_that_dies_and_comes_back_is_linked_again_and_calls_go_on() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client(50);
    until(&client, |stats| stats.linked.len() == 4).await;
    cluster.orders.send(Order::Kill(0)).unwrap();
    for index in 0..20 {
        assert_eq!(client.call(text(index), &patient()).await, Ok(Reply::Service(text(index))));
    }
    until(&client, |stats| stats.linked.len() == 3).await;
    cluster.orders.send(Order::Restart(0)).unwrap();
    until(&client, |stats| stats.linked.len() == 4 && stats.failures.is_empty()).await;
    assert_eq!(client.call(text(99), &patient()).await, Ok(Reply::Service(text(99))));
}

#[tokio::test]
async fn the_administrator_may_and_a_client_may_not() {
    let cluster = Cluster::start(1, 0);
    let command = AdminCommand::RevokeClient { name: "x".into() };
    let administrator = cluster.client(99);
    let reply = administrator.administer(command.clone(), &patient()).await;
    assert_eq!(reply, Ok(Reply::Administered { configuration: 1, from_slot: 7 }));
    let error = cluster.client(50).administer(command, &patient()).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("only the administrator"), "{error}");
}

#[tokio::test]
async fn a_call_that_reaches_nobody_says_where_it_tried_and_why_it_failed() {
    let mut cluster = Cluster::start(1, 0);
    cluster.orders.send(Order::Stop).unwrap();
    cluster.thread.take().unwrap().join().unwrap();
    let config = cluster.config.clone();
    let client = Client::connect(config.clone(), key(50)).unwrap();
    failed(&client, "refused").await;
    let error = client.call(text(0), &hasty()).await.unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, CallError::Refused { reason: Refusal::DeadlinePassed, .. }), "{words}");
    assert!(words.contains("no replica reachable"), "{words}");
    for replica in config.replicas {
        assert!(words.contains(&replica.address), "{words}");
    }
    assert!(words.contains("refused (os error"), "{words}");
}

#[tokio::test]
async fn what_replicas_refuse_reaches_the_caller_in_words() {
    let cluster = Cluster::start(1, 0);
    let stranger = cluster.client(66);
    failed(&stranger, "not registered").await;
    let unknown = stranger.call(text(0), &hasty()).await.unwrap_err().to_string();
    assert!(unknown.contains("this key is not registered"), "{unknown}");
    let config = ClusterConfig { cluster: ClusterId([8; 16]), ..cluster.config.clone() };
    let client = Client::connect(config, key(50)).unwrap();
    failed(&client, "cluster").await;
    let wrong = client.call(text(0), &hasty()).await.unwrap_err().to_string();
    assert!(wrong.contains("wrong cluster"), "{wrong}");
    let mut config = cluster.config.clone();
    for replica in &mut config.replicas {
        replica.key = key(77).public();
    }
    let client = Client::connect(config, key(50)).unwrap();
    failed(&client, "key").await;
    let other = client.call(text(0), &hasty()).await.unwrap_err().to_string();
    assert!(other.contains("as configured"), "{other}");
}

/// For 4 replicas, three times each.
const FULL: usize = 12;

#[tokio::test]
async fn who_finds_no_place_anywhere_tries_on() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client(67);
    assert_eq!(client.call(text(0), &patient()).await, Ok(Reply::Service(text(0))));
}

#[tokio::test]
async fn a_closed_client_refuses() {
    let cluster = Cluster::start(1, 0);
    let client = cluster.client(50);
    assert!(client.call(text(0), &patient()).await.is_ok());
    client.close().await;
    let error = client.call(text(1), &patient()).await.unwrap_err();
    assert!(matches!(error, CallError::Refused { reason: Refusal::Closed, .. }), "{error}");
    assert_eq!(client.stats().await, None);
    client.close().await;
}

#[tokio::test]
async fn large_commands_and_replies_pass() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client(50);
    let large = Bytes::from(vec![7; 4 << 20]);
    assert_eq!(client.call(large.clone(), &patient()).await, Ok(Reply::Service(large)));
    let too_large = Bytes::from(vec![7; 5 << 20]);
    let error = client.call(too_large, &patient()).await.unwrap_err();
    assert!(matches!(error, CallError::Refused { reason: Refusal::TooLarge(_), .. }), "{error}");
}

#[tokio::test]
async fn a_call_may_wait_as_long_as_there_is_time() {
    let cluster = Cluster::start(1, 0);
    let client = cluster.client(50);
    let options = Options { timeout: Duration::MAX, reply_quorum: None };
    let command = Bytes::from_static(b"x");
    assert_eq!(client.call(command.clone(), &options).await, Ok(Reply::Service(command)));
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let cluster = Cluster::start(1, 0);
    let config = cluster.config.clone();
    let error = Client::connect(config.clone(), key(50)).unwrap_err();
    assert_eq!(error, ConnectError::NoRuntime);
    let timeless = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let error = timeless.block_on(async { Client::connect(config.clone(), key(50)).unwrap_err() });
    assert_eq!(error, ConnectError::NoRuntime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let mut fewer = config.clone();
    fewer.replicas.pop();
    let error = Client::connect(fewer, key(50)).unwrap_err();
    assert!(matches!(error, ConnectError::Replicas { found: 2, wanted: 3, .. }), "{error}");
    let hash = SecretKey::from_seed(Scheme::KeyedHash, [1; 32]);
    assert!(matches!(Client::connect(config, hash), Err(ConnectError::Identity(_))));
}

#[tokio::test]
async fn only_who_says_that_it_keeps_states_is_asked_for_one() {
    for keeps in [false, true] {
        let cluster = Cluster::start_keeping(1, 1, keeps);
        let client = cluster.client(50);
        until(&client, |stats| stats.linked.len() == 4).await;
        let reply = client.observe(Bytes::from_static(APART), &patient()).await.unwrap();
        let stats = client.stats().await.unwrap().core;
        match reply {
            // The largest slot of three replicas.
            Reply::Unordered { reply, slot } => {
                assert!(keeps && (7..=8).contains(&slot) && reply == slot.to_string());
            }
            reply => assert!(!keeps && reply == Reply::Service(Bytes::from_static(APART))),
        }
        let counts = (stats.fast_reads, stats.fast_read_fallbacks, stats.fast_reads_again > 0);
        assert_eq!(counts, if keeps { (1, 0, true) } else { (0, 1, false) });
        drop(client);
        assert_eq!(cluster.stop(), if keeps { 0 } else { 2 }, "opened, and read");
    }
}
