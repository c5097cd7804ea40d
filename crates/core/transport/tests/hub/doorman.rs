//! Hubs of several groups behind one address.

use super::*;
use perdura_transport::bounds::{HANDSHAKE_TIME, UNADMITTED_LINKS};
use perdura_transport::{Doorman, DoormanStats};

const OTHER: ClusterId = ClusterId([0x77; 16]);

/// A server: a doorman, and a hub of each of two groups.
struct Server {
    doorman: Doorman,
    groups: Vec<Node>,
    start: Instant,
    /// By so much its clock is ahead.
    ahead: Duration,
}

fn config_in(group: ClusterId, id: u8) -> HubConfig {
    HubConfig { cluster: group, named: true, ..config(id) }
}

impl Server {
    /// With replica `id` of each group.
    fn new(id: u8) -> Server {
        let start = Instant::now();
        let doorman = Doorman::bind("127.0.0.1:0", &[CLUSTER, OTHER], start).unwrap();
        let behind = |group| {
            let seat = doorman.seat(group).unwrap();
            Node::of(Hub::behind(&config_in(group, id), &seat, start).unwrap())
        };
        let groups = vec![behind(CLUSTER), behind(OTHER)];
        Server { doorman, groups, start, ahead: Duration::ZERO }
    }

    fn turn(&mut self) {
        let now = Instant::now() + self.ahead;
        self.doorman.turn(now, Some(Duration::from_millis(1))).unwrap();
        for node in &mut self.groups {
            node.frozen = Some(now);
            node.turn();
        }
    }

    #[track_caller]
    fn until(&mut self, mut done: impl FnMut(&mut Server) -> bool) {
        while !done(self) {
            self.turn();
            assert!(self.start.elapsed() < TIMEOUT, "{:?}", self.doorman.stats());
        }
    }

    fn address(&self) -> SocketAddr {
        self.doorman.local_address()
    }

    fn stats(&self) -> DoormanStats {
        self.doorman.stats()
    }

    fn links(&self) -> [u64; 2] {
        [0, 1].map(|index| self.groups[index].hub.stats().client_links)
    }

    /// A connection from 127.0.x.y, which says nothing yet.
    fn connect_from(&self, (x, y): (u8, u8)) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, x, y], 0)).into()).unwrap();
        socket.connect(&self.address().into()).unwrap();
        socket.into()
    }

    /// A client of `group` that names it, or does not, from 127.0.x.y.
    fn client(&self, from: (u8, u8), named: Option<ClusterId>, group: ClusterId) -> Client {
        let identity = Identity::new(&key(50)).unwrap();
        let identity = match named {
            Some(name) => identity.naming(name),
            None => identity,
        };
        let hello = Hello::client(group, Role::Client);
        let link = Link::dial(&identity, key(0).public(), &hello, Bounds::CLIENT).unwrap();
        let socket = self.connect_from(from);
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
        Client { socket, link }
    }

    /// What a client gets first.
    #[track_caller]
    fn answer(&mut self, client: &mut Client) -> Result<Received, LinkError> {
        let mut buffer = vec![0; 100_000];
        loop {
            if let Some(received) = client.link.next_received()? {
                return Ok(received);
            }
            client.link.write_to(&mut client.socket)?;
            self.turn();
            match client.socket.read(&mut buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => client.link.feed(&buffer[..length])?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            assert!(self.start.elapsed() < TIMEOUT, "{:?}", self.doorman.stats());
        }
    }

    /// That the other end is closed.
    #[track_caller]
    fn closes(&mut self, socket: &mut TcpStream) {
        socket.set_nonblocking(true).unwrap();
        self.until(|_| match socket.read(&mut [0; 16]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        });
    }
}

#[test]
fn who_connects_comes_to_the_group_that_it_names() {
    let mut server = Server::new(0);
    let mut clients = Vec::new();
    for (group, links) in [(CLUSTER, [1, 0]), (OTHER, [1, 1]), (OTHER, [1, 2])] {
        let mut client = server.client((0, 1), Some(group), group);
        assert_eq!(server.answer(&mut client).unwrap(), Received::Welcome);
        assert_eq!(server.links(), links);
        clients.push(client);
    }
    // What it says to that group holds as everywhere.
    let mut wrong = server.client((0, 1), Some(OTHER), CLUSTER);
    let told = server.answer(&mut wrong).unwrap_err().to_string();
    assert!(told.contains("wrong cluster"), "{told}");
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.handed, stats.unknown), (4, 4, 0));
}

#[test]
fn replicas_of_two_groups_find_each_other_through_two_doors() {
    let (mut zero, mut one) = (Server::new(0), Server::new(1));
    for index in 0..2 {
        let (zero_hub, one_hub) = (&mut zero.groups[index], &mut one.groups[index]);
        let members = [member(zero_hub, 0), member(one_hub, 1)];
        zero_hub.hub.set_members(&members);
        one_hub.hub.set_members(&members);
    }
    zero.until(|zero| {
        one.turn();
        let linked = |index: usize| zero.groups[index].hub.is_linked(ReplicaId(1));
        linked(0) && linked(1)
    });
    let message = Bytes::from(vec![7; 300_000]);
    one.groups[1].hub.send(&Peer::Replica(ReplicaId(0)), message.clone()).unwrap();
    one.groups[1].hub.flush();
    zero.until(|zero| {
        one.turn();
        zero.groups[1].messages() == [message.clone()]
    });
    assert!(zero.groups[0].messages().is_empty());
}

#[test]
fn who_names_no_group_of_this_server_is_closed_and_counted() {
    let mut server = Server::new(0);
    let nowhere = ClusterId([0x33; 16]);
    for (count, named) in [None, Some(nowhere), None].into_iter().enumerate() {
        let mut client = server.client((0, 1), named, CLUSTER);
        assert!(server.answer(&mut client).is_err());
        assert_eq!(server.stats().unknown, count as u64 + 1);
    }
    let mut garbage = server.connect_from((0, 1));
    garbage.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    server.closes(&mut garbage);
    assert_eq!((server.stats().misbehaved, server.links()), (1, [0, 0]));
    let mut client = server.client((0, 1), Some(CLUSTER), CLUSTER);
    assert_eq!(server.answer(&mut client).unwrap(), Received::Welcome);
}

#[test]
fn who_says_nothing_whole_in_time_is_closed() {
    let mut server = Server::new(0);
    let (mut silent, mut slow) = (server.connect_from((0, 1)), server.connect_from((0, 2)));
    let mut late = server.client((0, 3), Some(OTHER), OTHER);
    slow.write_all(&[22, 3, 1, 2]).unwrap();
    server.until(|server| server.stats().accepted == 3);
    // One whose first record comes in two pieces is in time.
    let mut record = Vec::new();
    late.link.write_to(&mut record).unwrap();
    late.socket.write_all(&record[..100]).unwrap();
    server.turn();
    late.socket.write_all(&record[100..]).unwrap();
    assert_eq!(server.answer(&mut late).unwrap(), Received::Welcome);
    assert_eq!((server.stats().expired, server.links()), (0, [0, 1]));
    server.ahead = HANDSHAKE_TIME;
    server.closes(&mut silent);
    server.closes(&mut slow);
    assert_eq!((server.stats().expired, server.links()), (2, [0, 1]));
}

/// Connections that say nothing take the places neither of who was admitted lately nor of strangers that have something to say.
#[test]
fn those_that_say_nothing_keep_nobody_out() {
    let mut server = Server::new(0);
    let mut known = server.client((9, 1), Some(OTHER), OTHER);
    assert_eq!(server.answer(&mut known).unwrap(), Received::Welcome);
    server.turn();
    // It has begun, and has no more to say for now.
    let mut begun = server.client((9, 1), Some(OTHER), OTHER);
    let mut record = Vec::new();
    begun.link.write_to(&mut record).unwrap();
    begun.socket.write_all(&record[..7]).unwrap();
    let mut flood: Vec<TcpStream> = Vec::new();
    for number in 0..2 * UNADMITTED_LINKS {
        let from = (1 + (number / 200) as u8, (number % 200) as u8);
        let mut socket = server.connect_from(from);
        if number % 2 == 0 {
            socket.write_all(&[22]).unwrap();
        }
        flood.push(socket);
        server.turn();
    }
    server.until(|server| server.stats().expired >= UNADMITTED_LINKS as u64);
    let mut stranger = server.client((9, 9), Some(CLUSTER), CLUSTER);
    assert_eq!(server.answer(&mut stranger).unwrap(), Received::Welcome);
    begun.socket.write_all(&record[7..]).unwrap();
    assert_eq!(server.answer(&mut begun).unwrap(), Received::Welcome);
    // One address that makes many loses its own.
    for _ in 0..2 * UNADMITTED_LINKS {
        flood.push(server.connect_from((8, 8)));
        server.turn();
    }
    let mut last = server.client((9, 10), Some(CLUSTER), CLUSTER);
    assert_eq!(server.answer(&mut last).unwrap(), Received::Welcome);
}

/// Where the members of a group are, its hub says; strangers take no places of theirs.
#[test]
fn members_have_places_of_their_own() {
    let mut server = Server::new(0);
    server.doorman.limit_sockets(16);
    let peer = MemberAddress {
        id: ReplicaId(1),
        address: "127.0.9.1:1".into(),
        key: key(1).public(),
        incarnation: 0,
    };
    server.groups[1].hub.set_members(&[peer]);
    server.turn();
    // It has begun, and has no more to say for now.
    let mut begun = server.client((9, 1), Some(OTHER), OTHER);
    let mut record = Vec::new();
    begun.link.write_to(&mut record).unwrap();
    begun.socket.write_all(&record[..7]).unwrap();
    let mut flood: Vec<TcpStream> = Vec::new();
    for number in 0..40 {
        flood.push(server.connect_from((1, number)));
        server.turn();
    }
    server.until(|server| server.stats().accepted == 41);
    assert!(server.stats().expired >= 30, "{:?}", server.stats());
    begun.socket.write_all(&record[7..]).unwrap();
    assert_eq!(server.answer(&mut begun).unwrap(), Received::Welcome);
}

/// A member that has ended leaves the others as they are, and may come again.
#[test]
fn who_comes_for_a_group_whose_hub_is_gone_is_closed_until_there_is_one_again() {
    let mut server = Server::new(0);
    drop(server.groups.remove(1));
    let mut client = server.client((0, 1), Some(OTHER), OTHER);
    assert!(server.answer(&mut client).is_err());
    assert_eq!(server.stats().turned_away, 1);
    let seat = server.doorman.seat(OTHER).unwrap();
    let again = Hub::behind(&config_in(OTHER, 0), &seat, server.start).unwrap();
    server.groups.push(Node::of(again));
    for (group, links) in [(OTHER, [0, 1]), (CLUSTER, [1, 1])] {
        let mut client = server.client((0, 1), Some(group), group);
        assert_eq!(server.answer(&mut client).unwrap(), Received::Welcome);
        assert_eq!(server.links(), links);
        std::mem::forget(client.socket);
    }
}

/// A hub whose thread stands still, or is slow, is given no more than it has places for.
#[test]
fn what_a_hub_does_not_take_is_bounded() {
    let mut server = Server::new(0);
    let asleep = server.groups.remove(1);
    let mut record = Vec::new();
    server.client((0, 1), Some(OTHER), OTHER).link.write_to(&mut record).unwrap();
    let mut held = Vec::new();
    for _ in 0..UNADMITTED_LINKS + 5 {
        let mut socket = server.connect_from((0, 2));
        socket.write_all(&record).unwrap();
        held.push(socket);
        server.turn();
    }
    server.until(|server| server.stats().turned_away == 5);
    assert_eq!(server.stats().handed, UNADMITTED_LINKS as u64);
    server.groups.push(asleep);
    server.turn();
    let mut client = server.client((0, 2), Some(OTHER), OTHER);
    assert_eq!(server.answer(&mut client).unwrap(), Received::Welcome);
}
