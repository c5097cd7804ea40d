//! Replicas with real disks and sockets, each on a thread of its own, and the real client.

use crate::real::Group;
use perdura_client::{Client, Options, Reply};
use perdura_protocol::configuration::{Durability, Parameters, Schedule};
use perdura_protocol::{Decode, Encode};
use perdura_replica::runtime::RunError;
use perdura_store::{Store, StoreCommand, StoreReply};
use perdura_transport::{Bounds, Hello, Link, Role};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

fn options() -> Options {
    Options { timeout: Duration::from_secs(30), ..Options::default() }
}

async fn put(client: &Client, key: String, value: String) {
    let command =
        StoreCommand::Put { key: key.into_bytes().into(), value: value.into_bytes().into() };
    client.call(command.to_bytes(), &options()).await.unwrap();
}

async fn get(client: &Client, key: &str, fast: bool) -> Option<String> {
    let command = StoreCommand::Get { key: key.to_owned().into_bytes().into() }.to_bytes();
    let reply: Reply = if fast {
        client.read(command, &options()).await.unwrap()
    } else {
        client.call(command, &options()).await.unwrap()
    };
    let Reply::Service(bytes) = reply else { panic!("not a service's reply: {reply:?}") };
    match StoreReply::from_bytes(bytes).unwrap() {
        StoreReply::Value(value) => value.map(|v| String::from_utf8(v.to_vec()).unwrap()),
        other => panic!("not a value: {other:?}"),
    }
}

async fn put_many(client: &Client, from: usize, count: usize) {
    let mut tasks = Vec::new();
    for i in from..from + count {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            put(&client, format!("key{i}"), format!("value{i}")).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

fn lifecycle(u: u8, r: u8, schedule: Schedule) {
    let change = |parameters| Parameters { schedule, ..parameters };
    let mut group = Group::formatted_with(u, r, Durability::Sync, change, Store::new);
    (0..group.keys.len()).for_each(|i| group.start(i));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        put_many(&client, 0, 500).await;
        assert_eq!(get(&client, "key7", false).await.as_deref(), Some("value7"));
        assert_eq!(get(&client, "key499", true).await.as_deref(), Some("value499"));
        // A replica is away while many checkpoints pass, and comes back.
        group.stop(1);
        for round in 0..100 {
            put_many(&client, 500 + round * 5, 5).await;
        }
        group.start(1);
        // The leader goes away: the others carry on.
        put_many(&client, 2000, 50).await;
        group.stop(0);
        put_many(&client, 3000, 50).await;
        assert_eq!(get(&client, "key2049", false).await.as_deref(), Some("value2049"));
        // All stop and start again: nothing is lost.
        for i in 0..group.keys.len() {
            group.stop(i);
        }
        for i in 0..group.keys.len() {
            group.start(i);
        }
        let client = group.connect();
        for key in ["key0", "key600", "key999", "key2010", "key3049"] {
            let value = get(&client, key, false).await;
            assert_eq!(value, Some(key.replace("key", "value")), "{key}");
        }
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
    assert!(Path::new(&group.data(0)).join("superblock").exists());
}

#[test]
fn a_byzantine_group_serves_through_stops_and_starts() {
    lifecycle(1, 1, Schedule::Coordinated);
}

#[test]
fn a_crash_group_serves_through_stops_and_starts() {
    lifecycle(1, 0, Schedule::Coordinated);
}

/// One that is slower than any real one: nothing but the speed differs.
#[test]
fn a_group_on_a_slow_device_keeps_what_it_acknowledged() {
    let mut group = Group::formatted(1, 1, Durability::Sync, Store::new);
    let start = |group: &mut Group<Store>| {
        for i in 0..4 {
            let device = "delay_ms=2,mb_s=10".parse().unwrap();
            group.start_with(i, |config| config.log_device = Some(device));
        }
    };
    start(&mut group);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        put_many(&client, 0, 40).await;
        let began = std::time::Instant::now();
        for i in 40..80 {
            put(&client, format!("key{i}"), format!("value{i}")).await;
        }
        // The only thing that cannot be faster than it is: forty flushes of 2 ms, one by one.
        assert!(began.elapsed() >= Duration::from_millis(80));
        for i in 0..4 {
            group.stop(i);
        }
        start(&mut group);
        let client = group.connect();
        for key in ["key0", "key39", "key79"] {
            let value = get(&client, key, false).await;
            assert_eq!(value, Some(key.replace("key", "value")), "{key}");
        }
    });
    for i in 0..4 {
        group.stop(i);
    }
}

#[test]
fn a_start_that_fails_does_not_use_up_the_only_run_of_a_replica_without_a_log() {
    let mut group = Group::formatted(1, 0, Durability::None, Store::new);
    let taken = TcpListener::bind(&group.addresses[0]).unwrap();
    group.start(0);
    assert!(matches!(group.failure(0), RunError::Bind(_)));
    drop(taken);
    group.start_with(0, |config| config.incarnation = 1);
    let other = group.failure(0);
    assert!(other.to_string().contains("that of incarnation 0"), "{other}");
    // It has not run yet, and so may.
    for i in 0..3 {
        group.start(i);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        put_many(&client, 0, 5).await;
    });
    for i in 0..3 {
        group.stop(i);
    }
}

/// What is shown of a replica is no reason for it not to run, and comes when it can.
#[test]
fn an_http_port_that_is_taken_keeps_no_replica_from_its_group() {
    let mut group = Group::formatted(1, 0, Durability::Sync, Store::new);
    // No other test is given a port of this address, once it is free again.
    let taken = TcpListener::bind("127.73.0.1:0").unwrap();
    let http = taken.local_addr().unwrap();
    for i in 0..3 {
        group.start_with(i, |config| config.http = Some(http.to_string()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        put_many(&client, 0, 5).await;
    });
    drop(taken);
    let answer = || {
        let mut stream = TcpStream::connect(http).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let begun = std::time::Instant::now();
    let mut last = None;
    // One that has stood still for two seconds says so, and goes on.
    while !last.as_ref().is_some_and(|answer: &String| answer.starts_with("HTTP/1.1 200")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{last:?}");
        std::thread::sleep(Duration::from_millis(50));
        last = answer().or(last);
    }
    for i in 0..3 {
        group.stop(i);
    }
}

/// Sends one message inside a proper frame over a proper link, and waits for the link's end.
fn send_and_be_cut_off(group: &Group<Store>, message: &'static [u8]) {
    let identity = perdura_transport::Identity::new(&group.client).unwrap();
    let hello = Hello::client(group.parameters.cluster, Role::Client);
    let key = group.keys[0].public();
    let mut link = Link::dial(&identity, key, &hello, Bounds::CLIENT).unwrap();
    let mut stream = connect(&group.addresses[0]);
    let mut buffer = [0u8; 4096];
    let mut sent = false;
    loop {
        while link.wants_write() {
            link.write_to(&mut stream).unwrap();
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) if link.feed(&buffer[..length]).is_err() => break,
            Ok(_) => {}
        }
        while let Ok(Some(_)) = link.next_received() {}
        if link.is_up() && !sent {
            sent = true;
            link.queue(message.into()).unwrap();
        }
    }
    assert!(sent, "the link never came up");
}

fn connect(address: &str) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            return stream;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_sends_malformed_or_forbidden_messages_loses_its_link_and_nobody_else_does() {
    let mut group = Group::new(1, 1, Durability::Sync, Store::new);
    // No message; a frame that is cut short; a vote, which no client casts.
    let suspect = [8, 1, 0, 0, 0, 0, 0, 0, 0];
    for message in [b"\xffnonsense".as_slice(), &[1, 2, 3], Vec::leak(suspect.to_vec())] {
        send_and_be_cut_off(&group, message);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        put_many(&client, 0, 20).await;
        assert_eq!(get(&client, "key7", false).await.as_deref(), Some("value7"));
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}
