//! Client frames: many commands of one session under one signature. A frame is the unit of
//! authentication, retransmission and ordering; it is never split across batches (rule A5).
//!
//! Layout: client key 32, nonce 8, acknowledged-below 8, first number 8, count 4, then per command
//! a length 4 and its bytes; signature 64. The signature covers the BLAKE3 hash of all before it,
//! in the cluster's context (configuration 0: a client need not know the current one).

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes, encode_count};
use crate::ids::{ClusterId, Digest, Slot, View};
use crate::keys::{Claim, PublicKey, SecretKey, Signature};
use crate::limits;
use crate::statement::{Context, STATEMENT_BYTES, StatementKind};
use bytes::{Buf, Bytes};

/// A numbered stream of commands of one client: its key and a number that the client never uses
/// twice. Opened by command number 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionId {
    /// The client's key.
    pub client: PublicKey,
    /// Chosen by the client, growing (it takes its clock's microseconds).
    pub nonce: u64,
}

impl SessionId {
    /// The last one, in their order.
    pub const LAST: SessionId = SessionId { client: PublicKey([u8::MAX; 32]), nonce: u64::MAX };
}

impl Encode for SessionId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.nonce.encode(out);
    }
}

impl Decode for SessionId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(SessionId { client: Decode::decode(reader)?, nonce: Decode::decode(reader)? })
    }
}

/// A decoded frame: the received bytes, checked. Commands are read off them when they are asked for,
/// since a list of a thousand empty ones would take eight times the memory that they came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The session whose commands these are.
    pub session: SessionId,
    /// The client no longer asks for replies to commands below this number.
    pub acked_below: u64,
    /// Number of the first command; the others follow without gaps.
    pub first_number: u64,
    count: usize,
    raw: Bytes,
}

/// The commands of a frame, in order; each shares the frame's memory.
#[derive(Clone, Debug)]
pub struct Commands {
    left: usize,
    rest: Bytes,
}

impl Iterator for Commands {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.left = self.left.checked_sub(1)?;
        let length = self.rest.try_get_u32_le().expect("lengths were checked");
        Some(self.rest.split_to(length as usize))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Commands {}

const SIGNATURE_BYTES: usize = 64;
const HEADER_BYTES: usize = 32 + 8 + 8 + 8 + 4;

impl Frame {
    /// Builds a frame of encoded commands. `key` signs it; `None` leaves the signature off, which
    /// is only accepted under r = 0.
    ///
    /// # Panics
    /// When there are no commands or more than [`limits::FRAME_COMMANDS`]; the client packs fewer.
    #[must_use]
    pub fn build(
        cluster: ClusterId,
        session: SessionId,
        acked_below: u64,
        first_number: u64,
        commands: &[Bytes],
        key: Option<&SecretKey>,
    ) -> Frame {
        assert!(!commands.is_empty() && commands.len() <= limits::FRAME_COMMANDS);
        let body: usize = commands.iter().map(|command| command.len() + 4).sum();
        let mut out = Vec::with_capacity(HEADER_BYTES + body + SIGNATURE_BYTES);
        session.encode(&mut out);
        acked_below.encode(&mut out);
        first_number.encode(&mut out);
        encode_count(commands.len(), &mut out);
        for command in commands {
            encode_bytes(command, &mut out);
        }
        let signature = match key {
            Some(key) => key.sign(&Self::statement(cluster, Digest::of(&out))),
            None => Signature::NONE,
        };
        signature.encode(&mut out);
        let raw = out.into();
        Frame { session, acked_below, first_number, count: commands.len(), raw }
    }

    fn statement(cluster: ClusterId, body: Digest) -> [u8; STATEMENT_BYTES] {
        Context { cluster, configuration: 0 }.statement(
            StatementKind::Frame,
            View(0),
            Slot(0),
            body,
        )
    }

    /// The encoded commands, the first with number [`Frame::first_number`].
    #[must_use]
    pub fn commands(&self) -> Commands {
        let rest = self.raw.slice(HEADER_BYTES..self.raw.len() - SIGNATURE_BYTES);
        Commands { left: self.count, rest }
    }

    /// The same, borrowed: nothing is counted that other threads count too.
    pub fn command_slices(&self) -> impl Iterator<Item = &[u8]> {
        let all = &self.raw[HEADER_BYTES..self.raw.len() - SIGNATURE_BYTES];
        (0..self.count).scan(all, |rest, _| {
            let (length, behind) = rest.split_first_chunk().expect("lengths were checked");
            let (command, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            *rest = behind;
            Some(command)
        })
    }

    /// One past the number of the last command.
    #[must_use]
    pub fn end_number(&self) -> u64 {
        self.first_number + self.count as u64
    }

    /// The encoded frame.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Hash of everything but the signature.
    #[must_use]
    pub fn body_digest(&self) -> Digest {
        Digest::of(&self.raw[..self.raw.len() - SIGNATURE_BYTES])
    }

    /// The signature to verify before a frame is used when r > 0, or when it is the
    /// administrator's.
    #[must_use]
    pub fn claim(&self, cluster: ClusterId) -> Claim<[u8; STATEMENT_BYTES]> {
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(&self.raw[self.raw.len() - SIGNATURE_BYTES..]);
        Claim {
            key: self.session.client,
            message: Self::statement(cluster, self.body_digest()),
            signature: Signature(signature),
        }
    }
}

impl Encode for Frame {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.raw);
    }
}

impl Decode for Frame {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let start = reader.position();
        let session = SessionId::decode(reader)?;
        let acked_below = u64::decode(reader)?;
        let first_number = u64::decode(reader)?;
        let count = reader.count("commands of a frame", limits::FRAME_COMMANDS, 4)?;
        if count == 0 {
            return Err(DecodeError::NotCanonical("a frame without commands"));
        }
        if first_number.checked_add(count as u64).is_none() || acked_below > first_number {
            return Err(DecodeError::NotCanonical("numbers of a frame"));
        }
        for _ in 0..count {
            let length = reader.count("command", limits::COMMAND_BYTES, 1)?;
            reader.skip(length)?;
        }
        reader.skip(SIGNATURE_BYTES)?;
        let raw = reader.since(start);
        if raw.len() > limits::FRAME_BYTES {
            return Err(DecodeError::AboveLimit {
                what: "frame",
                found: raw.len() as u64,
                limit: limits::FRAME_BYTES as u64,
            });
        }
        Ok(Frame { session, acked_below, first_number, count, raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Scheme;

    #[test]
    fn a_frame_is_decoded_as_it_was_built_and_its_signature_binds_the_cluster() {
        let key = SecretKey::from_seed(Scheme::Ed25519, [1; 32]);
        let session = SessionId { client: key.public(), nonce: 5 };
        let commands = [Bytes::from_static(b"one"), Bytes::from_static(b"")];
        let frame = Frame::build(ClusterId([1; 16]), session, 3, 7, &commands, Some(&key));
        let back = Frame::from_bytes(frame.to_bytes()).unwrap();
        assert_eq!(back, frame);
        assert_eq!(back.end_number(), 9);
        assert_eq!(back.commands().len(), 2);
        assert!(back.commands().eq(commands));
        assert!(back.command_slices().eq(back.commands()));
        let claim = back.claim(ClusterId([1; 16]));
        assert!(Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature));
        let claim = back.claim(ClusterId([2; 16]));
        assert!(!Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature));
    }

    #[test]
    fn empty_and_overflowing_frames_are_refused() {
        let key = SecretKey::from_seed(Scheme::KeyedHash, [1; 32]);
        let session = SessionId { client: key.public(), nonce: 5 };
        let build = |acked, first| {
            Frame::build(ClusterId([1; 16]), session, acked, first, &[Bytes::new()], None)
        };
        assert!(Frame::from_bytes(build(0, u64::MAX).to_bytes()).is_err());
        assert!(Frame::from_bytes(build(2, 1).to_bytes()).is_err());
        let mut none = build(0, 1).to_bytes().to_vec();
        none[56..60].copy_from_slice(&[0; 4]);
        none.drain(60..64);
        assert!(Frame::from_bytes(none.into()).is_err());
    }
}
