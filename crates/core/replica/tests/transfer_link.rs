//! A replica that was away gets what it missed over the links that are there for it, while agreement goes
//! on over the others.

use crate::real::{Group, free_addresses};
use perdura_client::{Client, Options};
use perdura_protocol::Encode;
use perdura_protocol::configuration::Durability;
use perdura_store::{Store, StoreCommand};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

const VALUE_BYTES: usize = 256 << 10;
/// Values of the state, written again and again.
const VALUES: usize = 32;

async fn put(client: &Client, key: usize, value: Vec<u8>) {
    let options = Options { timeout: TIMEOUT, ..Options::default() };
    let (key, value) = (format!("key{key}").into_bytes().into(), value.into());
    client.call(StoreCommand::Put { key, value }.to_bytes(), &options).await.unwrap();
}

/// A figure of `/metrics`; none before there are any.
fn figure(address: &str, name: &str) -> Option<u64> {
    let mut answer = String::new();
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    stream.read_to_string(&mut answer).ok()?;
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

fn wait_for(address: &str, name: &str, least: u64) {
    let begun = Instant::now();
    while figure(address, name).is_none_or(|value| value < least) {
        assert!(begun.elapsed() < TIMEOUT, "{name}: {:?} of {least}", figure(address, name));
        std::thread::yield_now();
    }
}

/// Replica 3 misses so many writes, and then gets them, or at least so many states.
fn catches_up(writes: usize, transfers: u64) {
    let mut group = Group::formatted(1, 1, Durability::Sync, Store::new);
    let away = 3;
    // What answers HTTP lasts as long as the process: a replica that comes back has another address.
    let mut http = free_addresses(4);
    let start = |group: &mut Group<Store>, http: &[String], i: usize| {
        group.start_with(i, |config| config.http = Some(http[i].clone()));
    };
    (0..4).for_each(|i| start(&mut group, &http, i));
    (0..4).for_each(|i| wait_for(&http[i], "perdura_transfer_links", 3));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Whichever links are up when it asks carry the answer, so the first time may not count.
    // The others cut their logs when their disks have come so far.
    let (mut came, least) = (Vec::new(), (VALUES * VALUE_BYTES / 2) as u64);
    let enough = |(bytes, states): &(u64, u64)| *bytes >= least && *states >= transfers;
    while came.len() < 5 && !came.iter().any(enough) {
        group.stop(away);
        let value = vec![came.len() as u8; VALUE_BYTES];
        runtime.block_on(async {
            let client = group.connect();
            for number in 0..writes {
                put(&client, number % VALUES, value.clone()).await;
            }
        });
        let executed = figure(&http[0], "perdura_executed_slot").unwrap();
        http[away] = free_addresses(1).remove(0);
        start(&mut group, &http, away);
        wait_for(&http[away], "perdura_executed_slot", executed);
        wait_for(&http[away], "perdura_transfer_links", 3);
        let here = |name| figure(&http[away], name).unwrap();
        let states = here("perdura_transfers_completed_total");
        came.push((here("perdura_transfer_received_bytes_total"), states));
    }
    assert!(came.iter().any(enough), "{came:?}");
    (0..4).for_each(|i| group.stop(i));
}

#[test]
fn who_was_away_gets_the_log_that_it_missed_over_transfer_links() {
    catches_up(VALUES, 0);
}

/// The others have cut their logs meanwhile.
#[test]
fn who_was_away_for_long_gets_a_state_over_transfer_links() {
    catches_up(20 * VALUES, 1);
}
