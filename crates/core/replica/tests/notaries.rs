//! Two groups on real disks and sockets: what one of them states is proven to the other by a client of both.

use crate::notary::{ELSEWHERE, Notary, encoded, leaf, leaf_of, prove, say};
use crate::real::Group;
use bytes::Bytes;
use perdura_client::{Client, Options, Reply};
use perdura_protocol::attestation::{Attestation, Attested};
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::{
    Command, Decode, Encode, Frame, Message, Outcome, PublicKey, ReplicaId, Scheme, SecretKey,
    SessionId, limits,
};
use perdura_transport::{Bounds, Hello, Link, Received, Role};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn make(_: u64) -> Notary {
    Notary::new(Scheme::Ed25519)
}

fn options(seconds: u64) -> Options {
    Options { timeout: Duration::from_secs(seconds), ..Options::default() }
}

fn connect(group: &Group<Notary>, key: &SecretKey) -> Client {
    Client::connect_with(group.cluster(), key.clone(), leaf_of).unwrap()
}

/// What the group states, and who attests it.
async fn stated(client: &Client, text: &str) -> Vec<Attestation> {
    match client.call(say(text), &options(30)).await.unwrap() {
        Reply::Attested { reply, attestations } if reply == leaf(text) => attestations,
        other => panic!("{other:?}"),
    }
}

async fn reply(client: &Client, command: Bytes) -> Bytes {
    match client.call(command, &options(30)).await.unwrap() {
        Reply::Service(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn proven_to_another(r: u8) {
    let mut here = Group::new(1, r, Durability::Sync, make);
    let change = |parameters| Parameters { cluster: ELSEWHERE, ..parameters };
    let mut elsewhere = Group::formatted_with(1, r, Durability::Sync, change, make);
    (0..elsewhere.keys.len()).for_each(|i| elsewhere.start(i));
    runtime().block_on(async {
        let [a, b] = [&elsewhere, &here].map(|group| connect(group, &group.client));
        let attestations = stated(&a, "x").await;
        assert_eq!(attestations.len(), 1 + usize::from(r));
        assert!(attestations.is_sorted_by(|a, b| a.signer < b.signer));
        let proof = prove(&leaf("x"), &attestations);
        assert_eq!(reply(&b, proof).await, Bytes::from("x, said here, said elsewhere"));
        // It is the word of this group, about this statement, or it is never ordered.
        let own = stated(&b, "x").await;
        let liar = connect(&here, &here.other);
        let command = match r {
            0 => prove(&leaf("y"), &attestations),
            _ => prove(&leaf("x"), &own),
        };
        // No replica orders it, and none says so: it is never answered.
        assert!(reply(&liar, Bytes::from_static(b"all")).await.ends_with(b";"), "it is served");
        let ended = liar.call(command, &options(1)).await;
        assert!(ended.is_err(), "{ended:?}");
        let all = reply(&b, Bytes::from_static(b"all")).await;
        assert_eq!(all, Bytes::from("x, said here, said elsewhere;x, said here;"));
    });
    for group in [&mut here, &mut elsewhere] {
        (0..group.keys.len()).for_each(|i| group.stop(i));
    }
}

#[test]
fn a_statement_is_proven_to_another_group_and_no_false_one_is_ordered() {
    proven_to_another(1);
}

#[test]
fn so_it_is_where_nobody_lies_but_clients() {
    proven_to_another(0);
}

/// A client without any logic.
struct Plain {
    link: Link,
    stream: TcpStream,
}

impl Plain {
    fn dial(group: &Group<Notary>, replica: usize) -> Option<Plain> {
        let identity = perdura_transport::Identity::new(&group.client).unwrap();
        let hello = Hello::client(group.parameters.cluster, Role::Client);
        let key = group.keys[replica].public();
        let link = Link::dial(&identity, key, &hello, Bounds::CLIENT).unwrap();
        let stream = TcpStream::connect(&group.addresses[replica]).ok()?;
        // What was lost is sent again after it.
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Some(Plain { link, stream })
    }

    /// Sends these until `wanted` comes, or the link ends.
    fn ask<T>(
        &mut self,
        messages: &[Message],
        mut wanted: impl FnMut(Message) -> Option<T>,
    ) -> Option<T> {
        let mut buffer = [0u8; 4096];
        let mut send = true;
        loop {
            if self.link.is_up() && std::mem::take(&mut send) {
                messages.iter().for_each(|message| self.link.queue(message.to_bytes()).unwrap());
            }
            while self.link.wants_write() {
                self.link.write_to(&mut self.stream).ok()?;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.link.feed(&buffer[..length]).ok()?,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    send = true;
                }
                Err(_) => return None,
            }
            while let Ok(Some(received)) = self.link.next_received() {
                let Received::Message(bytes) = received else { continue };
                if let Some(found) = Message::from_bytes(bytes).ok().and_then(&mut wanted) {
                    return Some(found);
                }
            }
        }
    }
}

/// Until the replica is there and answers.
fn ask<T>(
    group: &Group<Notary>,
    replica: usize,
    messages: &[Message],
    mut wanted: impl FnMut(Message) -> Option<T>,
) -> T {
    loop {
        let answer =
            Plain::dial(group, replica).and_then(|mut client| client.ask(messages, &mut wanted));
        match answer {
            Some(answer) => return answer,
            None => std::thread::yield_now(),
        }
    }
}

fn holds(group: &Group<Notary>, replica: usize, attested: Attested, text: &str) -> bool {
    let (number, one) = attested.by_number(ReplicaId(replica as u8)).next().unwrap();
    let key: PublicKey = group.keys[replica].public();
    let claim = one.claim(group.parameters.cluster, &leaf(text), key).unwrap();
    number == 1 && Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature)
}

#[test]
fn after_all_have_stopped_and_started_a_retry_is_attested_again() {
    let mut group = Group::new(1, 1, Durability::Sync, make);
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let nonce = millis * limits::NONCES_PER_MS;
    let session = SessionId { client: group.client.public(), nonce };
    let frame = |number, command: Bytes| {
        let cluster = group.parameters.cluster;
        let frame = Frame::build(cluster, session, 0, number, &[command], Some(&group.client));
        Message::Frame(frame)
    };
    let attach = Message::Attach { nonce };
    let (opening, said) = (frame(0, Command::Open.to_bytes()), frame(1, encoded(say("x"))));
    ask(&group, 0, &[attach.clone(), opening], |message| match message {
        Message::Replies { outcomes, .. } => outcomes.contains(&(0, Outcome::Opened)).then_some(()),
        _ => None,
    });
    let attested = |message| match message {
        Message::Attested(attested) => Some(*attested),
        _ => None,
    };
    let messages = [attach, said];
    let first = ask(&group, 0, &messages, attested);
    assert!(holds(&group, 0, first, "x"));
    (0..4).for_each(|i| group.stop(i));
    (0..4).for_each(|i| group.start(i));
    for replica in 0..4 {
        let again = ask(&group, replica, &messages, attested);
        assert!(holds(&group, replica, again, "x"));
    }
    (0..4).for_each(|i| group.stop(i));
}
