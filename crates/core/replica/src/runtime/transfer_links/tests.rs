//! What the event loop and the transfer links tell each other. No clock is waited for.

use super::*;
use perdura_protocol::message::Message;
use perdura_protocol::{ClusterId, Digest, Encode, Scheme, SecretKey, Slot, View};
use perdura_transport::{Bounds, HubConfig, Identity, Link, LinkError, Received, Role};
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

/// So that a failure ends.
const TIMEOUT: Duration = Duration::from_secs(60);

const ONE: ReplicaId = ReplicaId(1);

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn config() -> HubConfig {
    HubConfig {
        id: ReplicaId(0),
        incarnation: 0,
        cluster: ClusterId([1; 16]),
        parameters: Digest::ZERO,
        key: key(0),
        listen: "127.0.0.1:0".into(),
        named: false,
        seed: 1,
    }
}

fn members(incarnation: u32) -> Vec<MemberAddress> {
    let member = |id: u8, key: SecretKey, incarnation| MemberAddress {
        id: ReplicaId(id),
        address: "127.0.0.1:1".into(),
        key: key.public(),
        incarnation,
    };
    let second = key(10 * incarnation as u8 + 1);
    vec![member(0, key(0), 0), member(1, second, incarnation), member(2, key(2), 0)]
}

fn transfer_links() -> TransferLinks {
    let hub = Hub::dialling(&config(), Lane::Transfer, Instant::now()).unwrap();
    let mut transfer_links = TransferLinks::new(hub, 3);
    transfer_links.set_members(members(0));
    transfer_links
}

/// As the thread tells it.
fn tell(transfer_links: &mut TransferLinks, generation: u64, news: Vec<News>) {
    for one in &news {
        if let News::Message { from, bytes } = one {
            transfer_links.desk.inbound[from.index()].fetch_add(weight(bytes), Ordering::Relaxed);
        }
    }
    transfer_links.take_in(Carried { generation, news });
}

fn piece(bytes: usize) -> Bytes {
    let piece = Bytes::from(vec![0; bytes]);
    Message::Piece { slot: Slot(1), index: 1, piece }.to_bytes()
}

fn message(from: ReplicaId, bytes: usize) -> News {
    News::Message { from, bytes: piece(bytes) }
}

fn inbound(transfer_links: &TransferLinks) -> usize {
    transfer_links.desk.inbound[ONE.index()].load(Ordering::Relaxed)
}

#[test]
fn a_round_takes_no_more_than_its_share_and_nothing_is_read_while_too_much_waits() {
    let mut transfer_links = transfer_links();
    let desk = Arc::clone(&transfer_links.desk);
    let holds = || Door { desk: &desk }.holds_back(&LinkPeer::Replica(ONE));
    let size = ROUND_BYTES / 2;
    let mut waiting = 0;
    while !holds() {
        tell(&mut transfer_links, 1, vec![message(ONE, size)]);
        waiting += 1;
    }
    assert!((INBOUND_BYTES..INBOUND_BYTES + 2 * size).contains(&inbound(&transfer_links)));
    assert!(!Door { desk: &desk }.holds_back(&LinkPeer::Replica(ReplicaId(2))), "its own only");
    let mut rounds = 0;
    while transfer_links.has_more() {
        let (mut taken, mut count) = (0, 0);
        while transfer_links.next_input(&mut taken).is_some() {
            count += 1;
        }
        assert!((1..=2).contains(&count), "{count} in a round");
        (rounds, waiting) = (rounds + 1, waiting - count);
        assert!(!holds());
    }
    assert!(rounds > 2 && waiting == 0 && inbound(&transfer_links) == 0);
    // One that is longer than a share has a round for itself.
    tell(&mut transfer_links, 1, vec![message(ONE, 4 * ROUND_BYTES), message(ONE, 1)]);
    for more in [true, false] {
        let mut taken = 0;
        assert!(transfer_links.next_input(&mut taken).is_some());
        assert!(transfer_links.next_input(&mut taken).is_none());
        assert_eq!(transfer_links.has_more(), more);
    }
}

#[test]
fn what_finds_no_room_is_dropped_and_takes_none_from_others() {
    let mut transfer_links = transfer_links();
    let bytes = piece(1 << 20);
    let mut given = 0;
    let refused = loop {
        match transfer_links.send(ONE, bytes.clone()) {
            Ok(()) => given += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, SendError::Queue(QueueError::Full));
    assert_eq!(given, OUTBOUND_BYTES / weight(&bytes));
    assert!(transfer_links.send(ReplicaId(2), bytes.clone()).is_ok());
    assert_eq!(transfer_links.stats().dropped_messages, 1);
    // The transfer links take them.
    assert_eq!(transfer_links.desk.take(Stats::default()).unwrap().len(), given + 2);
    assert!(transfer_links.send(ONE, bytes.clone()).is_ok());
    assert_eq!(transfer_links.send(ReplicaId(7), bytes), Err(SendError::NoLink));
}

#[test]
fn links_are_known_by_what_is_told_and_those_of_a_former_incarnation_count_for_nothing() {
    let mut transfer_links = transfer_links();
    let next = |transfer_links: &mut TransferLinks| transfer_links.next_input(&mut 0);
    tell(&mut transfer_links, 1, vec![News::Up(ONE), News::Up(ReplicaId(2)), message(ONE, 1)]);
    assert!(!transfer_links.is_up(ONE), "in its turn");
    assert!(matches!(next(&mut transfer_links), Some(Input::Message { .. })));
    assert!(
        transfer_links.is_up(ONE)
            && transfer_links.is_up(ReplicaId(2))
            && !transfer_links.is_up(ReplicaId(7))
    );
    tell(&mut transfer_links, 1, vec![News::Down(ONE), News::Up(ONE), message(ONE, 1)]);
    assert!(matches!(next(&mut transfer_links), Some(Input::TransferLinkDown(ONE))));
    assert!(!transfer_links.is_up(ONE));
    assert!(next(&mut transfer_links).is_some() && transfer_links.is_up(ONE));
    // Replaced: what its predecessor sent may be on its way.
    transfer_links.set_members(members(1));
    assert!(!transfer_links.is_up(ONE) && transfer_links.is_up(ReplicaId(2)));
    tell(&mut transfer_links, 1, vec![message(ONE, 1), News::Up(ONE), message(ReplicaId(2), 1)]);
    let told = next(&mut transfer_links);
    assert!(matches!(told, Some(Input::Message { peer: Peer::Replica(ReplicaId(2)), .. })));
    assert!(
        !transfer_links.is_up(ONE)
            && next(&mut transfer_links).is_none()
            && inbound(&transfer_links) == 0
    );
    tell(&mut transfer_links, 2, vec![News::Up(ONE)]);
    assert!(next(&mut transfer_links).is_none() && transfer_links.is_up(ONE));
}

/// Replica 1 by hand, linked to a thread of transfer links that works.
struct Linked {
    transfer_links: TransferLinks,
    completions: Completions,
    main: Hub,
    socket: TcpStream,
    link: Link,
}

impl Linked {
    fn new() -> Linked {
        let mut main = Hub::bind(&config(), Instant::now()).unwrap();
        main.set_members(&members(0));
        let completions = Completions::new(main.waker());
        let mut transfer_links = transfer_links();
        transfer_links.start(completions.clone()).unwrap();
        let role = Role::Replica {
            id: ONE,
            incarnation: 0,
            lane: Lane::Transfer,
            boot: Default::default(),
        };
        let hello = Hello::client(config().cluster, role);
        let identity = Identity::new(&key(1)).unwrap();
        let link = Link::dial(&identity, key(0).public(), &hello, Bounds::REPLICA).unwrap();
        let socket = TcpStream::connect(main.local_address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut linked = Linked { transfer_links, completions, main, socket, link };
        assert_eq!(linked.receive().unwrap(), Received::Welcome);
        linked.until(|transfer_links, _| transfer_links.is_up(ONE));
        linked
    }

    fn receive(&mut self) -> Result<Received, LinkError> {
        let mut buffer = vec![0; 100_000];
        let mut happened = Vec::new();
        loop {
            if let Some(received) = self.link.next_received()? {
                return Ok(received);
            }
            self.link.write_to(&mut self.socket)?;
            let mut door = Door { desk: &self.transfer_links.desk };
            let wait = Some(Duration::ZERO);
            self.main.poll(Instant::now(), wait, &mut door, &mut happened).unwrap();
            for event in happened.drain(..) {
                if let HubEvent::Handed(handed) = event {
                    self.transfer_links.adopt(handed);
                }
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => self.link.feed(&buffer[..length])?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes in what the transfer links tell until it is so; gives what the node would be told.
    fn until(&mut self, done: impl Fn(&TransferLinks, &[Input]) -> bool) -> Vec<Input> {
        let (mut told, begun) = (Vec::new(), Instant::now());
        while !done(&self.transfer_links, &told) {
            for completion in self.completions.take() {
                match completion {
                    Completion::Carried(carried) => self.transfer_links.take_in(carried),
                    Completion::Failed(why) => panic!("{why}"),
                    _ => {}
                }
            }
            while let Some(input) = self.transfer_links.next_input(&mut 0) {
                told.push(input);
            }
            assert!(begun.elapsed() < TIMEOUT, "{told:?}");
            std::thread::yield_now();
        }
        told
    }

    fn say(&mut self, bytes: Bytes) {
        self.link.queue(bytes).unwrap();
        self.link.write_to(&mut self.socket).unwrap();
    }
}

#[test]
fn messages_go_both_ways_and_the_link_goes_down_with_the_courier() {
    let mut linked = Linked::new();
    assert_eq!(linked.transfer_links.stats().replica_links, 1);
    linked.transfer_links.send(ONE, piece(1_000_000)).unwrap();
    assert_eq!(linked.receive().unwrap(), Received::Message(piece(1_000_000)));
    linked.say(piece(7));
    let told = linked.until(|_, told| !told.is_empty());
    assert!(matches!(&told[..], [Input::Message { bytes, .. }] if *bytes == piece(7)));
    let Linked { transfer_links, mut socket, .. } = linked;
    drop(transfer_links);
    let mut rest = Vec::new();
    socket.set_read_timeout(None).unwrap();
    assert!(socket.read_to_end(&mut rest).is_ok(), "closed");
}

#[test]
fn a_message_of_the_other_lane_and_one_that_does_not_decode_end_the_link_and_are_counted() {
    let mut linked = Linked::new();
    let status = Message::Status { view: View(0), changing: false, delivered: Slot(1) };
    linked.say(status.to_bytes());
    let told = linked.until(|transfer_links, _| !transfer_links.is_up(ONE));
    assert!(matches!(told[..], [Input::TransferLinkDown(ONE)]), "{told:?}");
    let counted = |linked: &Linked, kind| linked.transfer_links.stats().misbehaviour.get(kind);
    while counted(&linked, Misbehaviour::ForbiddenMessage) == 0 {
        std::thread::yield_now();
    }
    let mut linked = Linked::new();
    linked.transfer_links.punish(ONE);
    linked.until(|transfer_links, _| !transfer_links.is_up(ONE));
    while counted(&linked, Misbehaviour::MalformedMessage) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(linked.transfer_links.stats().replica_links, 0);
}
