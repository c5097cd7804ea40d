//! Decoders that are private to this crate, for the fuzz targets (`crates/fuzzing`).

use crate::framing::take_message;
use crate::hello::AnyHello;
use bytes::{Bytes, BytesMut};
use perdura_protocol::{DecodeError, Encode};

/// Decodes a hello; gives its encoding, if it is of this version.
///
/// # Errors
/// As the acceptor of a connection.
pub fn hello(bytes: Bytes) -> Result<Option<Bytes>, DecodeError> {
    Ok(match AnyHello::decode(bytes)? {
        AnyHello::Ours(hello) => Some(hello.to_bytes()),
        AnyHello::OtherVersion(_) => None,
    })
}

/// The next message of at most `limit` bytes on a link's stream.
///
/// # Errors
/// In words.
pub fn message(inbound: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, String> {
    take_message(inbound, limit).map_err(|(_, text)| text)
}
