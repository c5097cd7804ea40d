//! Hubs on real sockets. Each test turns the loops of its hubs by hand until what it waits for has
//! happened; the deadline is only there so that a failure ends.

#[path = "hub/doorman.rs"]
mod doorman;
#[path = "hub/strangers.rs"]
mod strangers;

use bytes::Bytes;
use perdura_protocol::{ClusterId, Digest, PublicKey, ReplicaId, Scheme, SecretKey};
use perdura_transport::{
    Admission, BindError, Bounds, Drained, Handed, Hello, Hub, HubConfig, HubEvent, Identity, Lane,
    Link, LinkError, MemberAddress, Misbehaviour, PROTOCOL_VERSION, Peer, Received, Refusal, Role,
    SendError,
};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([1; 16]);
const TIMEOUT: Duration = Duration::from_secs(60);

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn config(id: u8) -> HubConfig {
    HubConfig {
        id: ReplicaId(id),
        incarnation: 0,
        cluster: CLUSTER,
        parameters: Digest::of(b"parameters"),
        key: key(id),
        listen: "127.0.0.1:0".into(),
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

/// A hub with what it reported.
#[derive(Debug)]
struct Node {
    hub: Hub,
    seen: Vec<HubEvent>,
    admit: Result<(), Refusal>,
    /// Who has to wait.
    waits: Option<Peer>,
    /// All who say so, if none is named.
    administrator: Option<PublicKey>,
    /// Time stands still.
    frozen: Option<Instant>,
}

/// Its owner's word.
struct Door {
    admit: Result<(), Refusal>,
    waits: Option<Peer>,
    administrator: Option<PublicKey>,
}

impl Admission for Door {
    fn admit(&mut self, _: &Hello, _: PublicKey) -> Result<(), Refusal> {
        self.admit.clone()
    }

    fn is_administrator(&self, key: PublicKey) -> bool {
        self.administrator.is_none_or(|administrator| administrator == key)
    }

    fn holds_back(&self, peer: &Peer) -> bool {
        self.waits == Some(*peer)
    }
}

impl Node {
    fn new(config: &HubConfig) -> Node {
        Node::of(Hub::bind(config, Instant::now()).unwrap())
    }

    /// The hub beside the one of a replica that listens.
    fn beside(config: &HubConfig, lane: Lane) -> Node {
        Node::of(Hub::dialling(config, lane, Instant::now()).unwrap())
    }

    fn of(hub: Hub) -> Node {
        let seen = Vec::new();
        Node { hub, seen, admit: Ok(()), waits: None, administrator: None, frozen: None }
    }

    fn turn(&mut self) {
        let (waits, administrator) = (self.waits, self.administrator);
        let mut admission = Door { admit: self.admit.clone(), waits, administrator };
        let wait = Some(Duration::from_millis(1));
        let now = self.frozen.unwrap_or_else(Instant::now);
        self.hub.poll(now, wait, &mut admission, &mut self.seen).unwrap();
    }

    fn messages(&self) -> Vec<Bytes> {
        let message = |event: &HubEvent| match event {
            HubEvent::Message { message, .. } => Some(message.clone()),
            _ => None,
        };
        self.seen.iter().filter_map(message).collect()
    }

    fn client(&self) -> Option<Peer> {
        self.seen.iter().rev().find_map(|event| match event {
            HubEvent::LinkUp { peer: peer @ Peer::Client { .. } } => Some(*peer),
            _ => None,
        })
    }

    fn down(&self) -> Option<&LinkError> {
        self.seen.iter().find_map(|event| match event {
            HubEvent::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
    }

    /// What came for the hub beside it.
    fn handed(&mut self) -> Option<Box<Handed>> {
        let at = self.seen.iter().position(|event| matches!(event, HubEvent::Handed(_)))?;
        match self.seen.remove(at) {
            HubEvent::Handed(handed) => Some(handed),
            _ => None,
        }
    }

    fn misbehaviour(&self, kind: Misbehaviour) -> u64 {
        self.hub.stats().misbehaviour.get(kind)
    }
}

fn until(nodes: &mut [&mut Node], mut done: impl FnMut(&[&mut Node]) -> bool) {
    let start = Instant::now();
    while !done(nodes) {
        for node in nodes.iter_mut() {
            node.turn();
        }
        if start.elapsed() > TIMEOUT {
            let seen: Vec<_> = nodes.iter().map(|node| (&node.seen, node.hub.stats())).collect();
            panic!("nothing more happens: {seen:#?}");
        }
    }
}

fn member(node: &Node, id: u8) -> MemberAddress {
    MemberAddress {
        id: ReplicaId(id),
        address: node.hub.local_address().to_string(),
        key: key(id).public(),
        incarnation: 0,
    }
}

/// Replicas 0 and 1, not linked yet.
fn pair() -> (Node, Node) {
    let (mut zero, mut one) = (Node::new(&config(0)), Node::new(&config(1)));
    let members = [member(&zero, 0), member(&one, 1)];
    zero.hub.set_members(&members);
    one.hub.set_members(&members);
    (zero, one)
}

fn linked(nodes: &[&mut Node]) -> bool {
    nodes[0].hub.is_linked(ReplicaId(1)) && nodes[1].hub.is_linked(ReplicaId(0))
}

#[test]
fn replicas_find_each_other_and_exchange_messages_of_all_sizes() {
    let (mut zero, mut one) = pair();
    until(&mut [&mut zero, &mut one], linked);
    let sizes = [1, 100, 5_000, 100_000, 3_000_000];
    let sent: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![*size as u8; *size])).collect();
    for message in &sent {
        zero.hub.send(&Peer::Replica(ReplicaId(1)), message.clone()).unwrap();
        one.hub.send(&Peer::Replica(ReplicaId(0)), message.clone()).unwrap();
    }
    zero.hub.flush();
    one.hub.flush();
    until(&mut [&mut zero, &mut one], |nodes| {
        nodes.iter().all(|node| node.messages().len() == sizes.len())
    });
    assert!(zero.messages() == sent && one.messages() == sent);
    assert_eq!(zero.hub.stats().replica_links, 1);
    assert_eq!(zero.hub.stats().sent_messages, sizes.len() as u64);
}

#[test]
fn a_restarted_peer_is_linked_again_from_either_side() {
    let (_port, listen) = reserve();
    let mut zero = Node::new(&HubConfig { listen: listen.clone(), ..config(0) });
    let mut one = Node::new(&config(1));
    let members = [member(&zero, 0), member(&one, 1)];
    zero.hub.set_members(&members);
    one.hub.set_members(&members);
    until(&mut [&mut zero, &mut one], linked);
    // The one that dials restarts.
    drop(one);
    until(&mut [&mut zero], |nodes| nodes[0].down().is_some());
    let mut one = Node::new(&config(1));
    one.hub.set_members(&members);
    until(&mut [&mut zero, &mut one], linked);
    // The one that is dialled restarts at its address.
    drop(zero);
    until(&mut [&mut one], |nodes| nodes[0].hub.last_failure(ReplicaId(0)).is_some());
    let failure = one.hub.last_failure(ReplicaId(0)).unwrap();
    assert!(failure.contains(&listen) && failure.contains("refused"), "{failure}");
    let mut zero = Node::new(&HubConfig { listen, ..config(0) });
    zero.hub.set_members(&members);
    until(&mut [&mut zero, &mut one], linked);
    assert_eq!(one.hub.last_failure(ReplicaId(0)), None);
}

#[test]
fn a_replica_with_another_key_is_refused_by_both_sides() {
    let (mut zero, mut one) = pair();
    // The dialler expects another key.
    let mut wrong = member(&zero, 0);
    wrong.key = key(9).public();
    one.hub.set_members(&[wrong]);
    until(&mut [&mut zero, &mut one], |nodes| {
        nodes[1].hub.last_failure(ReplicaId(0)).is_some_and(|text| text.contains("configured"))
    });
    // The acceptor expects another key.
    let right = member(&zero, 0);
    let mut wrong = member(&one, 1);
    wrong.key = key(9).public();
    one.hub.set_members(&[right]);
    zero.hub.set_members(&[wrong]);
    until(&mut [&mut zero, &mut one], |nodes| {
        let failure = nodes[1].hub.last_failure(ReplicaId(0));
        failure.is_some_and(|text| text.contains("replica 1 is incarnation 0 with key"))
    });
    assert!(zero.hub.stats().refused_peers > 0 && !zero.hub.is_linked(ReplicaId(1)));
}

#[test]
fn a_key_that_changes_at_run_time_ends_the_link_of_the_old_one() {
    let (mut zero, mut one) = pair();
    until(&mut [&mut zero, &mut one], linked);
    let mut renewed = member(&one, 1);
    (renewed.key, renewed.incarnation) = (key(11).public(), 1);
    zero.hub.set_members(&[renewed]);
    until(&mut [&mut zero, &mut one], |nodes| {
        nodes[0].down().is_some() && nodes[1].hub.last_failure(ReplicaId(0)).is_some()
    });
    let mut reborn = Node::new(&HubConfig { key: key(11), incarnation: 1, ..config(1) });
    reborn.hub.set_members(&[member(&zero, 0)]);
    until(&mut [&mut zero, &mut reborn], linked);
}

#[test]
fn another_cluster_and_other_parameters_are_refused_in_words() {
    for (config, words) in [
        (HubConfig { cluster: ClusterId([2; 16]), ..config(1) }, "wrong cluster"),
        (HubConfig { parameters: Digest::ZERO, ..config(1) }, "parameters differ"),
    ] {
        let (mut zero, _) = pair();
        let mut stranger = Node::new(&config);
        stranger.hub.set_members(&[member(&zero, 0)]);
        until(&mut [&mut zero, &mut stranger], |nodes| {
            let failure = nodes[1].hub.last_failure(ReplicaId(0));
            failure.is_some_and(|text| text.contains(words))
        });
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = Node::new(&config(0));
    let listen = taken.hub.local_address().to_string();
    let error = Hub::bind(&HubConfig { listen: listen.clone(), ..config(1) }, Instant::now());
    let error = error.unwrap_err();
    assert!(matches!(&error, BindError::InUse { address } if *address == listen), "{error}");
    let elsewhere = HubConfig { listen: "192.0.2.1:1".into(), ..config(1) };
    let error = Hub::bind(&elsewhere, Instant::now()).unwrap_err();
    assert!(matches!(error, BindError::Listen { .. }), "{error}");
}

/// A client by hand: a blocking socket with a link.
struct Client {
    socket: TcpStream,
    link: Link,
}

impl Client {
    fn dial(node: &Node, seed: u8, hello: &Hello) -> Client {
        Client::with(TcpStream::connect(node.hub.local_address()).unwrap(), &key(seed), hello)
    }

    fn with(socket: TcpStream, key_of_client: &SecretKey, hello: &Hello) -> Client {
        let identity = Identity::new(key_of_client).unwrap();
        let link = Link::dial(&identity, key(0).public(), hello, Bounds::CLIENT).unwrap();
        socket.set_nonblocking(true).unwrap();
        // As real clients do; else a system waits 40 ms for more to send along.
        socket.set_nodelay(true).unwrap();
        Client { socket, link }
    }

    fn hello() -> Hello {
        Hello::client(CLUSTER, Role::Client)
    }

    /// Writes, turns the node, reads; until something is received.
    fn receive(&mut self, node: &mut Node) -> Result<Received, LinkError> {
        let start = Instant::now();
        let mut buffer = vec![0; 100_000];
        loop {
            if let Some(received) = self.link.next_received()? {
                return Ok(received);
            }
            self.link.write_to(&mut self.socket)?;
            node.turn();
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => self.link.feed(&buffer[..length])?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            assert!(start.elapsed() < TIMEOUT);
        }
    }

    fn connect(node: &mut Node, seed: u8) -> Client {
        let mut client = Client::dial(node, seed, &Client::hello());
        assert_eq!(client.receive(node).unwrap(), Received::Welcome);
        client
    }
}

#[test]
fn a_client_is_admitted_by_its_key_and_talks() {
    let mut node = Node::new(&config(0));
    let mut client = Client::connect(&mut node, 50);
    let peer = node.client().unwrap();
    assert!(matches!(peer, Peer::Client { key: proven, .. } if proven == key(50).public()));
    client.link.queue(Bytes::from_static(b"question")).unwrap();
    client.link.write_to(&mut client.socket).unwrap();
    until(&mut [&mut node], |nodes| nodes[0].messages() == [Bytes::from_static(b"question")]);
    node.hub.send(&peer, Bytes::from_static(b"answer")).unwrap();
    node.hub.flush();
    let answer = client.receive(&mut node).unwrap();
    assert_eq!(answer, Received::Message(Bytes::from_static(b"answer")));
    assert_eq!(node.hub.stats().client_links, 1);
    node.hub.close(&peer, "its key was revoked");
    assert!(matches!(client.receive(&mut node), Err(LinkError::Closed)));
    assert_eq!(node.hub.send(&peer, Bytes::from_static(b"late")), Err(SendError::NoLink));
}

#[test]
fn an_unknown_client_and_a_newer_version_are_refused_in_words() {
    let mut node = Node::new(&config(0));
    node.admit = Err(Refusal("this key is not registered".into()));
    let mut client = Client::dial(&node, 50, &Client::hello());
    let error = client.receive(&mut node).unwrap_err();
    assert!(
        matches!(&error, LinkError::Refused { reason, .. } if reason.contains("not registered"))
    );

    let newer = Hello { version: PROTOCOL_VERSION + 1, ..Client::hello() };
    let mut client = Client::dial(&node, 50, &newer);
    let error = client.receive(&mut node).unwrap_err().to_string();
    assert!(error.contains("protocol version 4") && error.contains("version 5"), "{error}");
    assert_eq!((node.hub.stats().refused_peers, node.client()), (2, None));
}

/// Members and clients alike, until it has: whoever else is told what lasts goes away for good.
#[test]
fn one_that_starts_turns_all_away_for_now() {
    let (mut node, mut other) = pair();
    node.hub.turn_away(Some("this replica is starting"));
    let mut client = Client::dial(&node, 5, &Client::hello());
    let refused = client.receive(&mut node).unwrap_err();
    let LinkError::Refused { reason, .. } = &refused else { panic!("{refused}") };
    assert!(reason.contains("is starting") && Refusal::is_for_now(reason), "{reason}");
    until(&mut [&mut node, &mut other], |nodes| nodes[0].hub.stats().refused_peers >= 2);
    assert!(!linked(&[&mut node, &mut other]));
    node.hub.turn_away(None);
    until(&mut [&mut node, &mut other], linked);
}

#[test]
fn garbage_before_tls_ends_that_connection_only() {
    let (mut zero, mut one) = pair();
    until(&mut [&mut zero, &mut one], linked);
    let mut garbage = TcpStream::connect(zero.hub.local_address()).unwrap();
    garbage.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    until(&mut [&mut zero, &mut one], |nodes| nodes[0].misbehaviour(Misbehaviour::Tls) == 1);
    assert!(zero.down().is_none() && zero.hub.is_linked(ReplicaId(1)));
    // An alert may come, and then the end.
    let mut rest = Vec::new();
    let _ = garbage.read_to_end(&mut rest);
    assert!(rest.len() < 100);
}

#[test]
fn an_oversized_frame_ends_the_link_by_its_length_alone() {
    let mut node = Node::new(&config(0));
    // A client that allows itself more than the replica does.
    let identity = Identity::new(&key(50)).unwrap();
    let link = Link::dial(&identity, key(0).public(), &Client::hello(), Bounds::REPLICA).unwrap();
    let socket = TcpStream::connect(node.hub.local_address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut client = Client { socket, link };
    assert_eq!(client.receive(&mut node).unwrap(), Received::Welcome);
    let size = Bounds::CLIENT_AT_REPLICA.receive_bytes + 1;
    client.link.queue(Bytes::from(vec![0; size])).unwrap();
    client.socket.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while node.down().is_none() {
        let _ = client.link.write_to(&mut client.socket);
        node.turn();
        assert!(start.elapsed() < TIMEOUT);
    }
    let reason = node.down().unwrap();
    assert!(matches!(reason, LinkError::Misbehaviour(Misbehaviour::OversizedFrame, _)), "{reason}");
    assert_eq!(node.misbehaviour(Misbehaviour::OversizedFrame), 1);
    assert_eq!(node.messages().len(), 0);
}

#[test]
fn a_client_that_does_not_read_is_closed_and_others_are_served() {
    let mut node = Node::new(&config(0));
    let _slow = Client::connect(&mut node, 50);
    let slow = node.client().unwrap();
    let mut quick = Client::connect(&mut node, 51);
    let reply = Bytes::from(vec![7; 4 << 20]);
    let start = Instant::now();
    while node.hub.send(&slow, reply.clone()).is_ok() {
        node.hub.flush();
        assert!(start.elapsed() < TIMEOUT);
    }
    assert_eq!(node.misbehaviour(Misbehaviour::Flooding), 1);
    node.hub.send(&node.client().unwrap(), Bytes::from_static(b"still here")).unwrap();
    node.hub.flush();
    let answer = quick.receive(&mut node).unwrap();
    assert_eq!(answer, Received::Message(Bytes::from_static(b"still here")));
    assert!(matches!(node.down(), Some(LinkError::Misbehaviour(Misbehaviour::Flooding, _))));
}

#[test]
fn a_client_that_floods_does_not_starve_the_others() {
    let mut node = Node::new(&config(0));
    let mut flood = Client::connect(&mut node, 50);
    let mut quiet = Client::connect(&mut node, 51);
    flood.socket.set_nonblocking(true).unwrap();
    let message = Bytes::from(vec![1; 1 << 20]);
    let question = Bytes::from_static(b"question");
    quiet.link.queue(question.clone()).unwrap();
    quiet.link.write_to(&mut quiet.socket).unwrap();
    let start = Instant::now();
    while !node.messages().contains(&question) {
        let _ = flood.link.queue(message.clone());
        let _: Drained = flood.link.write_to(&mut flood.socket).unwrap();
        node.turn();
        assert!(start.elapsed() < TIMEOUT);
    }
}

#[test]
fn nothing_is_read_from_a_peer_that_has_to_wait_until_it_need_not() {
    let mut node = Node::new(&config(0));
    let mut held = Client::connect(&mut node, 50);
    node.waits = node.client();
    let mut other = Client::connect(&mut node, 51);
    held.link.queue(Bytes::from_static(b"later")).unwrap();
    held.link.write_to(&mut held.socket).unwrap();
    for _ in 0..3 {
        other.link.queue(Bytes::from_static(b"now")).unwrap();
        other.link.write_to(&mut other.socket).unwrap();
        let before = node.messages().len();
        until(&mut [&mut node], |nodes| nodes[0].messages().len() > before);
    }
    until(&mut [&mut node], |nodes| nodes[0].hub.stats().held_back > 10);
    assert!(!node.messages().contains(&Bytes::from_static(b"later")));
    node.waits = None;
    until(&mut [&mut node], |nodes| nodes[0].messages().contains(&Bytes::from_static(b"later")));
    assert_eq!(node.hub.stats().client_links, 2);
}

/// As after a byte of a handshake was changed on its way: each end waits for the other.
#[test]
fn a_replica_that_is_silent_in_the_handshake_is_dialled_again_soon_then_with_more_patience() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let mut node = Node::new(&config(1));
    let address = silent.local_addr().unwrap().to_string();
    let zero = MemberAddress { id: ReplicaId(0), address, key: key(0).public(), incarnation: 0 };
    node.hub.set_members(&[zero, member(&node, 1)]);
    let start = Instant::now();
    let (mut held, mut dialled_ms) = (Vec::new(), Vec::new());
    for ms in (0..30_000).step_by(100) {
        node.frozen = Some(start + Duration::from_millis(ms));
        node.turn();
        node.turn();
        while let Ok(connection) = silent.accept() {
            held.push(connection);
            dialled_ms.push(ms);
        }
    }
    let gaps: Vec<u64> = dialled_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 5, "{gaps:?}");
    // The pause between two attempts is below a second.
    for (gap, timeout_ms) in gaps.iter().zip([1_000, 2_000, 4_000, 8_000, 10_000]) {
        assert!((timeout_ms..timeout_ms + 1_200).contains(gap), "{gaps:?}");
    }
}

/// Replicas 0 and 1 with both their hubs, not linked yet: hubs that listen, then those beside them.
fn pairs() -> ([Node; 2], [Node; 2]) {
    let (zero, one) = pair();
    let members = [member(&zero, 0), member(&one, 1)];
    let beside = [0, 1].map(|id| {
        let mut node = Node::beside(&config(id), Lane::Transfer);
        node.hub.set_members(&members);
        node
    });
    ([zero, one], beside)
}

/// Turns all of them, and hands over what is to be, until `done`.
fn until_both(main: &mut [Node; 2], beside: &mut [Node; 2], done: impl Fn(&[Node; 2]) -> bool) {
    let start = Instant::now();
    while !done(beside) {
        for (main, beside) in main.iter_mut().zip(beside.iter_mut()) {
            main.turn();
            if let Some(handed) = main.handed() {
                beside.hub.adopt(handed);
            }
            beside.turn();
        }
        assert!(start.elapsed() < TIMEOUT, "{main:#?}\n{beside:#?}");
    }
}

#[test]
fn a_link_of_the_other_lane_is_handed_over_and_stands_beside_the_first() {
    let (mut main, mut beside) = pairs();
    until_both(&mut main, &mut beside, |beside| {
        beside[0].hub.is_linked(ReplicaId(1)) && beside[1].hub.is_linked(ReplicaId(0))
    });
    let [zero, one] = &mut main;
    until(&mut [zero, one], linked);
    // Messages on both, each way: each arrives where it was sent.
    let large = Bytes::from(vec![7; 3_000_000]);
    let small = Bytes::from_static(b"vote");
    for (from, to) in [(0, 1), (1, 0)] {
        let to = Peer::Replica(ReplicaId(to));
        beside[from].hub.send(&to, large.clone()).unwrap();
        beside[from].hub.flush();
        main[from].hub.send(&to, small.clone()).unwrap();
        main[from].hub.flush();
    }
    until_both(&mut main, &mut beside, |beside| {
        beside.iter().all(|node| node.messages() == [large.clone()])
    });
    let [zero, one] = &mut main;
    until(&mut [zero, one], |nodes| nodes.iter().all(|node| node.messages() == [small.clone()]));
    for node in main.iter().chain(&beside) {
        let ups = node.seen.iter().filter(|event| matches!(event, HubEvent::LinkUp { .. }));
        assert_eq!((ups.count(), node.hub.stats().replica_links), (1, 1));
        assert!(node.down().is_none(), "{:?}", node.down());
    }
}

#[test]
fn the_links_of_both_lanes_end_without_each_other() {
    let (mut main, mut beside) = pairs();
    let both = |beside: &[Node; 2]| {
        beside[0].hub.is_linked(ReplicaId(1)) && beside[1].hub.is_linked(ReplicaId(0))
    };
    until_both(&mut main, &mut beside, both);
    let [zero, one] = &mut main;
    until(&mut [zero, one], linked);
    beside[0].hub.misbehaved(&Peer::Replica(ReplicaId(1)), Misbehaviour::MalformedMessage);
    until_both(&mut main, &mut beside, |beside| beside.iter().all(|node| node.down().is_some()));
    // It comes again, as a new one.
    until_both(&mut main, &mut beside, both);
    assert_eq!(beside[0].misbehaviour(Misbehaviour::MalformedMessage), 1);
    assert!(main.iter().all(|node| node.down().is_none()));
    main[0].hub.close(&Peer::Replica(ReplicaId(1)), "as a test");
    let [zero, one] = &mut main;
    until(&mut [zero, one], |nodes| nodes.iter().all(|node| node.down().is_some()));
    let [zero, one] = &mut main;
    until(&mut [zero, one], linked);
    assert!(both(&beside));
}

/// Replica 1 by hand, come for its transfer link and in a hurry: it has more to say before it was
/// welcomed. Its hello has been read by the hub that hands it over.
fn hasty(node: &mut Node) -> (Client, Box<Handed>) {
    let role = Role::Replica {
        id: ReplicaId(1),
        incarnation: 0,
        lane: Lane::Transfer,
        boot: Default::default(),
    };
    let parameters = config(1).parameters;
    let hello = Hello { parameters, ..Hello::client(CLUSTER, role) };
    let mut client = Client::dial(node, 1, &hello);
    client.link.queue(Bytes::from_static(b"early")).unwrap();
    let start = Instant::now();
    let mut buffer = vec![0; 100_000];
    loop {
        client.link.write_to(&mut client.socket).unwrap();
        node.turn();
        if let Some(handed) = node.handed() {
            return (client, handed);
        }
        if let Ok(length) = client.socket.read(&mut buffer) {
            client.link.feed(&buffer[..length]).unwrap();
        }
        assert!(start.elapsed() < TIMEOUT);
    }
}

#[test]
fn what_was_to_be_said_before_a_link_was_handed_over_is_not_lost() {
    let ([mut main, one], [mut beside, _]) = pairs();
    let (mut client, handed) = hasty(&mut main);
    // Members are known where it is handed over.
    drop(one);
    beside.hub.adopt(handed);
    assert_eq!(client.receive(&mut beside).unwrap(), Received::Welcome);
    client.link.write_to(&mut client.socket).unwrap();
    until(&mut [&mut beside], |nodes| nodes[0].messages() == [Bytes::from_static(b"early")]);
    client.link.queue(Bytes::from_static(b"late")).unwrap();
    client.link.write_to(&mut client.socket).unwrap();
    until(&mut [&mut beside], |nodes| nodes[0].messages().len() == 2);
    // It had its turn as any other: nothing is left for a hub that holds it back.
    assert_eq!((main.messages().len(), main.hub.stats().replica_links), (0, 0));
    assert!(!main.hub.is_linked(ReplicaId(1)) && beside.hub.is_linked(ReplicaId(1)));
}

#[test]
fn a_link_that_is_handed_over_is_judged_again_and_refused_in_words() {
    let another = |key: SecretKey, incarnation| MemberAddress {
        id: ReplicaId(1),
        address: "127.0.0.1:1".into(),
        key: key.public(),
        incarnation,
    };
    for (lane, members, words) in [
        (Lane::Agreement, vec![another(key(1), 0)], "no link of the lane Transfer"),
        (Lane::Transfer, vec![another(key(9), 0)], "replica 1 is incarnation 0 with key"),
        (Lane::Transfer, vec![another(key(1), 1)], "replica 1 is incarnation 1 with key"),
        (Lane::Transfer, Vec::new(), "not a member"),
    ] {
        let ([mut main, _one], _) = pairs();
        let (mut client, handed) = hasty(&mut main);
        let mut beside = Node::beside(&config(0), lane);
        beside.hub.set_members(&members);
        beside.hub.adopt(handed);
        let error = client.receive(&mut beside).unwrap_err();
        assert!(
            matches!(&error, LinkError::Refused { reason, .. } if reason.contains(words)),
            "{error}"
        );
        assert_eq!((beside.hub.stats().refused_peers, beside.seen.len()), (1, 0));
    }
}

#[test]
fn a_link_that_nobody_takes_closes() {
    let ([mut main, _one], _) = pairs();
    let (mut client, handed) = hasty(&mut main);
    drop(handed);
    assert!(client.receive(&mut main).is_err());
    assert_eq!((main.seen.len(), main.hub.stats().replica_links), (0, 0));
}

#[test]
fn another_thread_wakes_the_loop() {
    let mut node = Node::new(&config(0));
    let waker = node.hub.waker();
    let thread = std::thread::spawn(move || waker.wake());
    thread.join().unwrap().unwrap();
    let start = Instant::now();
    let mut admission = |_: &Hello, _: PublicKey| Ok(());
    node.hub.poll(start, None, &mut admission, &mut node.seen).unwrap();
    assert!(node.seen.is_empty());
}
