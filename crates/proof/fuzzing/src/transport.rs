//! Hellos and answers, the stream of messages on a link, and TLS before anything is proven
//! (`crates/core/transport`).

use crate::memory::Memory;
use crate::{Seed, round_trip, seed};
use bytes::{Bytes, BytesMut};
use perdura_protocol::{BootId, ClusterId, Digest, ReplicaId, Scheme, SecretKey};
use perdura_transport::{
    Answer, Bounds, Hello, Identity, Lane, Link, PROTOCOL_VERSION, Refusal, Role, fuzzing,
};

/// The first byte says whether it is a hello or an answer.
pub fn hello(data: &[u8]) -> bool {
    let Some((kind, rest)) = data.split_first() else { return false };
    if kind % 2 == 1 {
        return round_trip::<Answer>(Memory::FRAME, rest).is_some();
    }
    let bytes = Bytes::copy_from_slice(rest);
    match Memory::FRAME.hold(rest.len(), || fuzzing::hello(bytes.clone())) {
        // It may have fields that are passed over.
        Ok(Some(encoded)) => assert_eq!(
            fuzzing::hello(encoded.clone()),
            Ok(Some(encoded)),
            "not encoded as it is read"
        ),
        Ok(None) => {}
        Err(_) => return false,
    }
    true
}

/// Longest message in the target `framing`.
const MESSAGE_BYTES: usize = 8192;

/// A stream in parts: the first byte says how long they are. However it is cut, and in records as well, the same
/// messages come out, they are what stands in the stream, and what is buffered stays below one of them, or,
/// where there are records, below some of them.
pub fn framing(data: &[u8]) -> bool {
    let Some((step, stream)) = data.split_first() else { return false };
    let whole = messages(stream, stream.len().max(1));
    let parts = messages(stream, usize::from(*step) + 1);
    assert_eq!(whole, parts, "what comes out depends on how the stream is cut");
    for cut in [(1 + usize::from(*step), 5), (300, 1 + usize::from(*step)), (5000, 4000)] {
        let room = 4 * MESSAGE_BYTES + 128 * 1024;
        let held = |bytes| assert!(bytes <= room, "{bytes} bytes are buffered");
        let sealed = fuzzing::records(stream, cut, MESSAGE_BYTES, held);
        assert_eq!(whole, sealed, "what comes out of records depends on how they are cut: {cut:?}");
    }
    let mut encoded = Vec::new();
    for message in &whole.0 {
        encoded.extend_from_slice(&(message.len() as u32).to_le_bytes());
        encoded.extend_from_slice(message);
    }
    assert!(stream.starts_with(&encoded), "not what stands in the stream");
    !whole.0.is_empty()
}

/// The messages of a stream that arrives in parts of `step` bytes, and whether it ended in an error.
fn messages(stream: &[u8], step: usize) -> (Vec<Bytes>, bool) {
    let (mut inbound, mut found) = (BytesMut::new(), Vec::new());
    for part in stream.chunks(step) {
        inbound.extend_from_slice(part);
        loop {
            let taken = Memory { times: 1, plus: 256 }
                .hold(inbound.len(), || fuzzing::message(&mut inbound, MESSAGE_BYTES));
            match taken {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
        assert!(inbound.len() < 4 + MESSAGE_BYTES, "more than a message is buffered");
    }
    (found, false)
}

fn identity(seed: u8) -> (Identity, perdura_protocol::PublicKey) {
    let key = SecretKey::from_seed(Scheme::Ed25519, [seed; 32]);
    (Identity::new(&key).expect("a key makes an identity"), key.public())
}

/// Bytes from a socket, to an acceptor that knows nothing of who sends them. They are accepted as
/// long as TLS finds nothing wrong with them.
pub fn tls(data: &[u8]) -> bool {
    let mut link = Link::accept(&identity(2).0).expect("TLS takes its configuration");
    // TLS keeps a record of 16 KiB and its own state, whatever arrives.
    let memory = Memory { times: 4, plus: 128 * 1024 };
    // A server's doorman looks at the first record before, for the group that it names.
    memory.hold(data.len(), || fuzzing::named_group(data));
    let fed = memory.hold(data.len(), || link.feed(data));
    fed.is_ok() && matches!(link.next_received(), Ok(None))
}

pub fn hellos() -> Vec<Seed> {
    let with = |kind: u8, (name, bytes): Seed| (name, [&[kind], &bytes[..]].concat());
    let replica = |lane| Hello {
        version: PROTOCOL_VERSION,
        cluster: ClusterId([7; 16]),
        parameters: Digest::of(b"parameters"),
        role: Role::Replica {
            id: ReplicaId(2),
            incarnation: 1,
            lane,
            boot: BootId { number: 7, nonce: [1; 16] },
        },
    };
    let mut newer = Hello::client(ClusterId([7; 16]), Role::Client);
    newer.version = PROTOCOL_VERSION + 1;
    vec![
        with(0, seed("replica", &replica(Lane::Agreement))),
        with(0, seed("transfer", &replica(Lane::Transfer))),
        with(0, seed("client", &Hello::client(ClusterId([7; 16]), Role::Client))),
        with(0, seed("administrator", &Hello::client(ClusterId([7; 16]), Role::Admin))),
        with(0, seed("other_version", &newer)),
        with(
            1,
            seed("welcome", &Answer::welcome(Some(BootId { number: 3, nonce: [9; 16] }), true)),
        ),
        with(1, seed("refused", &Answer::refused(&Refusal("no such client \u{e9}".into())))),
    ]
}

pub fn framed() -> Vec<Seed> {
    let stream = |step: u8, lengths: &[usize]| {
        let mut out = vec![step];
        for length in lengths {
            out.extend_from_slice(&(*length as u32).to_le_bytes());
            out.extend((0..*length).map(|at| at as u8));
        }
        out
    };
    vec![
        ("small", stream(6, &[1, 2, 30, 4])),
        ("copied_and_shared", stream(200, &[4096, 4097, 1])),
        ("largest", stream(255, &[MESSAGE_BYTES])),
    ]
}

/// What a dialler sends first; what TLS draws at random is zero here.
pub fn hello_records() -> Vec<Seed> {
    let group = ClusterId([7; 16]);
    let hello = Hello::client(group, Role::Client);
    let (dialler, peer) = (identity(1).0, identity(2).1);
    let record = |dialler: &Identity| {
        let mut link = Link::dial(dialler, peer, &hello, Bounds::CLIENT).expect("TLS dials");
        let mut wire = Vec::new();
        link.write_to(&mut wire).expect("memory takes all bytes");
        wire
    };
    let (plain, named) = (record(&dialler), record(&dialler.clone().naming(group)));
    assert!(fuzzing::named_group(&plain).is_none() && fuzzing::named_group(&named) == Some(group));
    vec![("client_hello", plain), ("named_client_hello", named)]
}
