//! Messages on the stream of a link: a `u32` length, little-endian, and that many bytes, at least one.

use crate::bounds::COPIED_MESSAGE_BYTES;
use crate::error::Misbehaviour;
use bytes::{Buf, Bytes, BytesMut};

/// Bytes of the length before each message.
pub(crate) const LENGTH_BYTES: usize = 4;

/// Takes the first message off `inbound`, if all of it is there. A length is held against `limit`
/// before anything waits for the bytes behind it.
///
/// # Errors
/// What is wrong with the length, also in words; the stream is of no more use.
pub(crate) fn take_message(
    inbound: &mut BytesMut,
    limit: usize,
) -> Result<Option<Bytes>, (Misbehaviour, String)> {
    let Some(length) = inbound.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    check_length(length, limit)?;
    if inbound.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    inbound.advance(LENGTH_BYTES);
    if length <= COPIED_MESSAGE_BYTES {
        let payload = Bytes::copy_from_slice(&inbound[..length]);
        inbound.advance(length);
        return Ok(Some(payload));
    }
    Ok(Some(inbound.split_to(length).freeze()))
}

/// Holds a message's length against `limit`.
///
/// # Errors
/// What is wrong with it, also in words.
pub(crate) fn check_length(length: usize, limit: usize) -> Result<(), (Misbehaviour, String)> {
    if length > limit {
        let text = format!("{length} bytes, at most {limit} are allowed");
        return Err((Misbehaviour::OversizedFrame, text));
    }
    if length == 0 {
        return Err((Misbehaviour::EmptyFrame, "length 0".into()));
    }
    Ok(())
}
