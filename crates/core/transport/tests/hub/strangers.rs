//! Who connects without being anybody: what that costs others.

use super::*;
use perdura_transport::bounds::{HANDSHAKE_BURST, UNADMITTED_LINKS};

#[test]
fn handshakes_beyond_the_budget_wait_for_it_and_links_that_are_up_do_not() {
    let mut node = Node::new(&config(0));
    let start = Instant::now();
    node.frozen = Some(start);
    let mut first = Client::connect(&mut node, 50);
    // Known from here on: all of the budget is its address's.
    for _ in 0..HANDSHAKE_BURST {
        Client::connect(&mut node, 51);
    }
    let mut late = Client::dial(&node, 52, &Client::hello());
    late.link.write_to(&mut late.socket).unwrap();
    first.link.queue(Bytes::from_static(b"still here")).unwrap();
    first.link.write_to(&mut first.socket).unwrap();
    let mut rounds = 0;
    until(&mut [&mut node], |nodes| {
        rounds += 1;
        nodes[0].messages().len() == 1 && rounds > 20
    });
    let up = |event: &&HubEvent| matches!(event, HubEvent::LinkUp { .. });
    assert_eq!(node.seen.iter().filter(up).count(), HANDSHAKE_BURST as usize + 1);
    node.frozen = Some(start + Duration::from_secs(1));
    assert_eq!(late.receive(&mut node).unwrap(), Received::Welcome);
}

/// A connection from 127.0.x.y.
fn connect_from(node: &Node, (x, y): (u8, u8)) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, x, y], 0)).into()).unwrap();
    socket.connect(&node.hub.local_address().into()).unwrap();
    socket.into()
}

/// Connections that say nothing, or never all of their first record, take neither the places of those
/// who are known nor those of strangers that have something to say.
#[test]
fn strangers_that_say_nothing_keep_nobody_out() {
    let mut node = Node::new(&config(0));
    let _known = Client::connect(&mut node, 50);
    let mut flood: Vec<TcpStream> = Vec::new();
    for number in 0..2 * UNADMITTED_LINKS {
        let mut socket = connect_from(&node, (1 + (number / 200) as u8, (number % 200) as u8));
        if number % 2 == 0 {
            socket.write_all(&[22]).unwrap();
        }
        flood.push(socket);
        node.turn();
    }
    until(&mut [&mut node], |nodes| nodes[0].hub.stats().expired_handshakes > 0);
    let mut known = Client::connect(&mut node, 51);
    let mut stranger = Client::with(connect_from(&node, (9, 9)), &key(52), &Client::hello());
    assert_eq!(stranger.receive(&mut node).unwrap(), Received::Welcome);
    // What is no TLS at all ends at once.
    let mut other = connect_from(&node, (9, 10));
    other.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    until(&mut [&mut node], |nodes| nodes[0].misbehaviour(Misbehaviour::Tls) == 1);
    known.link.queue(Bytes::from_static(b"still here")).unwrap();
    known.link.write_to(&mut known.socket).unwrap();
    until(&mut [&mut node], |nodes| nodes[0].messages().len() == 1);
}

/// A key may have to be revoked while all places are taken.
#[test]
fn when_all_places_are_taken_there_is_one_for_the_administrator() {
    let mut node = Node::new(&config(0));
    let start = Instant::now();
    let mut clients = Vec::new();
    let key_of = |number: usize| {
        let mut seed = [9; 32];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        SecretKey::from_seed(Scheme::Ed25519, seed)
    };
    // So many sockets that there are places for these.
    let places = 200;
    node.hub.limit_sockets(places * 8 / 5);
    node.administrator = Some(key_of(places + 2).public());
    let mut dial = |node: &mut Node, number: usize, role| {
        // Handshakes have a rate.
        node.frozen = Some(start + Duration::from_millis(20) * number as u32);
        let key = key_of(number);
        let socket = TcpStream::connect(node.hub.local_address()).unwrap();
        let mut client = Client::with(socket, &key, &Hello::client(CLUSTER, role));
        let received = client.receive(node);
        clients.push(client);
        received
    };
    for number in 0..places {
        assert_eq!(dial(&mut node, number, Role::Client).unwrap(), Received::Welcome);
    }
    // Nor is there one for who only says that it is that.
    for (number, role) in [(places, Role::Client), (places + 1, Role::Admin)] {
        let refused = dial(&mut node, number, role).unwrap_err().to_string();
        assert!(refused.contains("clients already"), "{refused}");
    }
    assert_eq!(dial(&mut node, places + 2, Role::Admin).unwrap(), Received::Welcome);
}
