//! A replica that was away gets what it missed over the links that are there for it, while agreement goes
//! on over the others.

mod real;

use perdura_client::{Client, Options};
use perdura_protocol::Encode;
use perdura_protocol::configuration::Durability;
use perdura_store::{Store, StoreCommand};
use real::{Group, free_addresses};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Of what is written while it is away.
const MISSED_BYTES: usize = 8 << 20;
const VALUE_BYTES: usize = 256 << 10;

async fn put(client: &Client, key: usize, value: Vec<u8>) {
    let options = Options { timeout: PATIENCE, ..Options::default() };
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
        assert!(begun.elapsed() < PATIENCE, "{name}: {:?} of {least}", figure(address, name));
        std::thread::yield_now();
    }
}

#[test]
fn who_was_away_gets_what_it_missed_over_transfer_links() {
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
    let mut carried = Vec::new();
    while carried.len() < 5 && carried.iter().all(|bytes| *bytes < MISSED_BYTES / 2) {
        group.stop(away);
        let value = vec![carried.len() as u8; VALUE_BYTES];
        runtime.block_on(async {
            let client = group.connect();
            for key in 0..MISSED_BYTES / VALUE_BYTES {
                put(&client, key, value.clone()).await;
            }
        });
        let executed = figure(&http[0], "perdura_executed_slot").unwrap();
        http[away] = free_addresses(1).remove(0);
        start(&mut group, &http, away);
        wait_for(&http[away], "perdura_executed_slot", executed);
        wait_for(&http[away], "perdura_transfer_links", 3);
        let bytes = figure(&http[away], "perdura_transfer_received_bytes_total");
        carried.push(bytes.unwrap() as usize);
    }
    assert!(carried.last().is_some_and(|bytes| *bytes >= MISSED_BYTES / 2), "{carried:?}");
    (0..4).for_each(|i| group.stop(i));
}
