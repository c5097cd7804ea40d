//! Decoders that are private to this crate, for the fuzz targets (`crates/proof/fuzzing`).

use crate::bounds::Bounds;
use crate::framing::take_message;
use crate::hello::{AnyHello, HelloError};
use crate::naming::{Introduction, introduction};
use crate::sealed::{KEY_TIME, pair};
use bytes::{Bytes, BytesMut};
use perdura_protocol::{ClusterId, Encode};
use std::time::Instant;

/// Decodes a hello; gives its encoding without what was passed over, if it is of this version.
///
/// # Errors
/// As the acceptor of a connection.
pub fn hello(bytes: Bytes) -> Result<Option<Bytes>, HelloError> {
    Ok(match AnyHello::decode(bytes)? {
        AnyHello::Ours(hello) => Some(hello.to_bytes()),
        AnyHello::OtherVersion(_) | AnyHello::Unknown(_) => None,
    })
}

/// The group that a first record names.
#[must_use]
pub fn named_group(record: &[u8]) -> Option<ClusterId> {
    match introduction(record) {
        Introduction::Group(id) => Some(id),
        Introduction::Other(_) | Introduction::None => None,
    }
}

/// The next message of at most `limit` bytes on a link's stream.
///
/// # Errors
/// In words.
pub fn message(inbound: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, String> {
    take_message(inbound, limit).map_err(|(_, text)| text)
}

/// The messages, of at most `limit` bytes, of a stream that comes in records of `record` bytes, read
/// in parts of `step` bytes at most; and whether it ended in an error. The keys change with each third record. `held` is
/// told what is buffered.
///
/// # Panics
/// When a record is not what was sealed.
pub fn records(
    stream: &[u8],
    (record, step): (usize, usize),
    limit: usize,
    mut held: impl FnMut(usize),
) -> (Vec<Bytes>, bool) {
    let (mut sealer, mut opener) = pair().expect("the key has its length");
    let begun = Instant::now();
    for (index, part) in stream.chunks(record).enumerate() {
        let now = begun + KEY_TIME / 3 * index as u32;
        sealer.seal_bytes(part, now).expect("records are short");
    }
    let bounds = Bounds { receive_bytes: limit, ..Bounds::CLIENT_AT_REPLICA };
    let (mut found, mut wire) = (Vec::new(), sealer.pending());
    while !wire.is_empty() {
        let room = opener.room(1, &bounds);
        let count = (room.capacity() - room.len()).min(step).min(wire.len());
        room.extend_from_slice(&wire[..count]);
        wire = &wire[count..];
        opener.open().expect("records are genuine");
        loop {
            match opener.take_message(&bounds) {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
        held(opener.held_bytes());
    }
    (found, false)
}
