//! Proxies between real sockets on loopback.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener as Listener, TcpStream as Stream};

struct Pair {
    // Its tasks end with it.
    _runtime: tokio::runtime::Runtime,
    network: Network,
    listener: Listener,
}

const CLIENT: Party = Party::Client(0);
const REPLICA: Party = Party::Replica(0);

impl Pair {
    fn new() -> Pair {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let network = Network::start(&[address], 1, runtime.handle()).unwrap();
        Pair { _runtime: runtime, network, listener }
    }

    /// A connection of the client to the replica, with both its ends.
    fn connect(&self) -> (Stream, Stream) {
        let dialler = Stream::connect(self.network.address(CLIENT, 0)).unwrap();
        (dialler, self.listener.accept().unwrap().0)
    }

    fn way(&self, from: Party, to: Party) -> Arc<Direction> {
        let mut ways = self.network.directions(from, to);
        assert_eq!(ways.len(), 1);
        ways.remove(0)
    }
}

fn received(stream: &mut Stream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn reset_is_noticed(stream: &mut Stream) {
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn bytes_and_ends_of_streams_pass_both_ways() {
    let pair = Pair::new();
    let (mut dialler, mut acceptor) = pair.connect();
    dialler.write_all(b"there").unwrap();
    assert_eq!(received(&mut acceptor, 5), b"there");
    acceptor.write_all(b"back").unwrap();
    assert_eq!(received(&mut dialler, 4), b"back");
    drop(dialler);
    assert_eq!(acceptor.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_cut_in_one_direction_holds_back_and_loses_nothing() {
    let pair = Pair::new();
    let (mut dialler, mut acceptor) = pair.connect();
    let there = pair.way(CLIENT, REPLICA);
    there.set(Rules { cut: true, ..Rules::default() });
    dialler.write_all(b"held").unwrap();
    // The other way is open.
    acceptor.write_all(b"back").unwrap();
    assert_eq!(received(&mut dialler, 4), b"back");
    acceptor.set_nonblocking(true).unwrap();
    assert_eq!(acceptor.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    acceptor.set_nonblocking(false).unwrap();
    there.set(Rules::default());
    assert_eq!(received(&mut acceptor, 4), b"held");
    assert_eq!(there.affected(), 1);
}

#[test]
fn corruption_changes_one_bit_of_a_piece() {
    let pair = Pair::new();
    let (mut dialler, mut acceptor) = pair.connect();
    let there = pair.way(CLIENT, REPLICA);
    there.set(Rules { corrupt_per_mille: 1000, ..Rules::default() });
    dialler.write_all(&[0; 64]).unwrap();
    let ones: u32 = received(&mut acceptor, 64).iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(ones, 1);
}

#[test]
fn a_reset_is_noticed_at_both_ends_and_the_next_connection_works() {
    let pair = Pair::new();
    let (mut dialler, mut acceptor) = pair.connect();
    dialler.write_all(b"x").unwrap();
    received(&mut acceptor, 1);
    pair.network.reset(CLIENT, REPLICA);
    reset_is_noticed(&mut dialler);
    reset_is_noticed(&mut acceptor);
    assert_eq!(pair.network.struck(CLIENT, REPLICA), 1);
    let (mut dialler, mut acceptor) = pair.connect();
    dialler.write_all(b"y").unwrap();
    assert_eq!(received(&mut acceptor, 1), b"y");
}

#[test]
fn of_a_half_open_connection_one_end_hears_nothing_until_it_is_mended() {
    let pair = Pair::new();
    let (mut dialler, mut acceptor) = pair.connect();
    dialler.write_all(b"x").unwrap();
    received(&mut acceptor, 1);
    pair.network.half_open(CLIENT, REPLICA, Side::Acceptor);
    reset_is_noticed(&mut dialler);
    acceptor.set_nonblocking(true).unwrap();
    assert_eq!(acceptor.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    acceptor.set_nonblocking(false).unwrap();
    pair.network.mend(CLIENT, REPLICA);
    reset_is_noticed(&mut acceptor);
}
