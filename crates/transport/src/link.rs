//! One connection without its socket: TLS, the hello exchange, frames.
//!
//! Bytes from the socket go in by [`Link::feed`]; [`Link::next_received`] then gives what they
//! complete, until it gives nothing. [`Link::queue`] takes messages, [`Link::write_to`] turns all
//! that waits into as few TLS records and system calls as there can be.
//!
//! How frames stand on the stream is in `framing`. The first frame of the dialler is a [`Hello`], the first of the acceptor an [`Answer`].
//!
//! Invariants:
//! - Messages are neither given out nor sent before the hello was answered with a welcome.
//! - When `next_received` has given nothing, less than one frame is buffered.
//! - After an error the link is of no more use, except that `write_to` may send what is left: an
//!   alert or a refusal.

use crate::bounds::{Bounds, CIPHERTEXT_BYTES};
use crate::error::{LinkError, Misbehaviour, QueueError};
use crate::framing::{LENGTH_BYTES, take_message};
use crate::hello::{Answer, AnyHello, Hello, PROTOCOL_VERSION, Refusal, version_refusal};
use crate::identity::{Identity, public_key};
use bytes::{Bytes, BytesMut};
use perdura_protocol::{Decode, Encode, PublicKey};
use rustls::Connection;
use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, Write};

/// Messages that go into one call of the TLS library: enough to fill its records with small ones,
/// and the slices for them fit on the stack.
const MESSAGES_PER_PASS: usize = 64;

/// What arrived on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// To the acceptor: a peer with this proven key wants in. Nothing more is received until
    /// [`Link::welcome`] or [`Link::refuse`].
    Hello(Hello, PublicKey),
    /// To the dialler: the acceptor answered, the link is up.
    Welcome,
    /// A message.
    Message(Bytes),
}

/// Whether everything that waited was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// Nothing waits any more.
    Yes,
    /// The socket takes no more for now.
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Acceptor, before the hello.
    AwaitHello,
    /// Acceptor, while its owner decides.
    AwaitDecision,
    /// Dialler, before the answer.
    AwaitAnswer,
    /// Messages flow.
    Up,
    /// Refused or failed: nothing is received any more.
    Ending,
}

/// A connection without its socket.
#[derive(Debug)]
pub struct Link {
    tls: Connection,
    stage: Stage,
    /// In force while the link is up; before that, [`Bounds::HANDSHAKE`] are.
    bounds: Bounds,
    inbound: BytesMut,
    queue: VecDeque<Bytes>,
    /// Bytes of the first message and its length that TLS has taken already.
    front_taken: usize,
    /// Bytes in `queue` with their lengths, less `front_taken`.
    queued_bytes: usize,
    /// The peer said that it sends nothing more.
    peer_closed: bool,
    /// We say so, once everything is written.
    closing: bool,
}

impl Link {
    /// The dialler's end: expects `peer` at the other, says `hello`, and keeps to `bounds`.
    ///
    /// # Errors
    /// When the TLS library refuses its configuration.
    pub fn dial(
        identity: &Identity,
        peer: PublicKey,
        hello: &Hello,
        bounds: Bounds,
    ) -> Result<Link, LinkError> {
        let tls = identity.dial(peer).map_err(|error| LinkError::Tls(error.to_string()))?;
        let mut link = Link::new(tls.into(), Stage::AwaitAnswer, bounds);
        link.push(hello.to_bytes());
        Ok(link)
    }

    /// The acceptor's end, of whoever connected.
    ///
    /// # Errors
    /// When the TLS library refuses its configuration.
    pub fn accept(identity: &Identity) -> Result<Link, LinkError> {
        let tls = identity.accept().map_err(|error| LinkError::Tls(error.to_string()))?;
        Ok(Link::new(tls.into(), Stage::AwaitHello, Bounds::HANDSHAKE))
    }

    fn new(mut tls: Connection, stage: Stage, bounds: Bounds) -> Link {
        tls.set_buffer_limit(Some(CIPHERTEXT_BYTES));
        Link {
            tls,
            stage,
            bounds,
            inbound: BytesMut::new(),
            queue: VecDeque::new(),
            front_taken: 0,
            queued_bytes: 0,
            peer_closed: false,
            closing: false,
        }
    }

    /// Takes bytes that were read from the socket, in order, all of them.
    ///
    /// # Errors
    /// [`Misbehaviour::Tls`] when they are not what TLS allows, [`LinkError::Tls`] when the peer
    /// sent an alert or our own verifier refused its key.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() && !self.peer_closed && self.stage != Stage::Ending {
            // Fails only when undelivered plaintext piles up, and each round delivers it all.
            self.tls.read_tls(&mut bytes)?;
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    self.stage = Stage::Ending;
                    return Err(tls_error(&error));
                }
            };
            self.take_plaintext(state.plaintext_bytes_to_read())?;
            self.peer_closed = state.peer_has_closed();
        }
        Ok(())
    }

    fn take_plaintext(&mut self, mut left: usize) -> Result<(), LinkError> {
        let mut reader = self.tls.reader();
        while left > 0 {
            let chunk = reader.fill_buf()?;
            let length = chunk.len();
            if length == 0 {
                break;
            }
            self.inbound.extend_from_slice(chunk);
            reader.consume(length);
            left = left.saturating_sub(length);
        }
        Ok(())
    }

    /// The next thing that has arrived completely, or `None`.
    ///
    /// # Errors
    /// A [`LinkError::Misbehaviour`] of the peer, [`LinkError::Refused`] with the acceptor's
    /// reason, [`LinkError::RefusedByUs`] for another protocol version, or [`LinkError::Closed`]
    /// after everything before the peer's close was given.
    pub fn next_received(&mut self) -> Result<Option<Received>, LinkError> {
        if matches!(self.stage, Stage::AwaitDecision | Stage::Ending) {
            return Ok(None);
        }
        let Some(payload) = self.next_frame()? else {
            return if self.peer_closed { Err(LinkError::Closed) } else { Ok(None) };
        };
        match self.stage {
            Stage::AwaitHello => self.hello(payload).map(Some),
            Stage::AwaitAnswer => self.answer(payload).map(Some),
            _ => Ok(Some(Received::Message(payload))),
        }
    }

    fn next_frame(&mut self) -> Result<Option<Bytes>, LinkError> {
        let limit = self.current_bounds().receive_bytes;
        take_message(&mut self.inbound, limit).map_err(|(kind, text)| self.misbehaviour(kind, text))
    }

    fn hello(&mut self, payload: Bytes) -> Result<Received, LinkError> {
        let key = self.tls.peer_certificates().and_then(|chain| chain.first());
        let key = key.and_then(|key| public_key(key.as_ref()));
        match (AnyHello::decode(payload), key) {
            (Ok(AnyHello::Ours(hello)), Some(key)) => {
                self.stage = Stage::AwaitDecision;
                Ok(Received::Hello(hello, key))
            }
            (Ok(AnyHello::OtherVersion(version)), _) => {
                let refusal = version_refusal(version);
                self.stage = Stage::AwaitDecision;
                self.refuse(&refusal);
                Err(LinkError::RefusedByUs(refusal.0))
            }
            (Err(error), _) => {
                Err(self.misbehaviour(Misbehaviour::MalformedHello, error.to_string()))
            }
            (_, None) => Err(self.misbehaviour(Misbehaviour::Tls, "no key was proven".into())),
        }
    }

    fn answer(&mut self, payload: Bytes) -> Result<Received, LinkError> {
        match Answer::from_bytes(payload) {
            Ok(Answer::Welcome { .. }) => {
                self.stage = Stage::Up;
                Ok(Received::Welcome)
            }
            Ok(Answer::Refused { reason, .. }) => {
                self.stage = Stage::Ending;
                Err(LinkError::Refused(reason))
            }
            Err(error) => Err(self.misbehaviour(Misbehaviour::MalformedHello, error.to_string())),
        }
    }

    /// Admits the peer that said hello, with these bounds from here on.
    ///
    /// # Panics
    /// When no hello waits for a decision.
    pub fn welcome(&mut self, bounds: Bounds) {
        assert_eq!(self.stage, Stage::AwaitDecision);
        self.push(Answer::Welcome { version: PROTOCOL_VERSION }.to_bytes());
        self.stage = Stage::Up;
        self.bounds = bounds;
    }

    /// Sends the peer that said hello away; write what is queued, then drop the link.
    ///
    /// # Panics
    /// When no hello waits for a decision.
    pub fn refuse(&mut self, refusal: &Refusal) {
        assert_eq!(self.stage, Stage::AwaitDecision);
        self.push(Answer::refused(refusal).to_bytes());
        self.stage = Stage::Ending;
    }

    /// Whether messages flow.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Queues a message for the next [`Link::write_to`].
    ///
    /// # Errors
    /// When the queue is full, and when a message has a size that the link does not allow.
    pub fn queue(&mut self, message: Bytes) -> Result<(), QueueError> {
        if message.is_empty() || message.len() > self.bounds.send_bytes {
            return Err(QueueError::Size(message.len()));
        }
        if self.queued_bytes + LENGTH_BYTES + message.len() > self.bounds.queue_bytes {
            return Err(QueueError::Full);
        }
        self.push(message);
        Ok(())
    }

    fn push(&mut self, frame: Bytes) {
        self.queued_bytes += LENGTH_BYTES + frame.len();
        self.queue.push_back(frame);
    }

    /// Bytes that wait to be written, before encryption.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes of a frame that is not complete yet.
    #[must_use]
    pub fn inbound_bytes(&self) -> usize {
        self.inbound.len()
    }

    /// Whether [`Link::write_to`] has something to write.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.tls.wants_write() || (self.queued_bytes > 0 && !self.tls.is_handshaking())
    }

    /// Says that we send nothing more, after what is queued; [`Link::write_to`] writes it.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Encrypts and writes all that waits, until it is written or the socket takes no more.
    ///
    /// # Errors
    /// As the socket's.
    pub fn write_to(&mut self, socket: &mut impl Write) -> io::Result<Drained> {
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(socket) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Drained::No);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if self.queued_bytes == 0 || self.tls.is_handshaking() {
                if !std::mem::take(&mut self.closing) {
                    return Ok(Drained::Yes);
                }
                self.tls.send_close_notify();
                continue;
            }
            while self.queued_bytes > 0 && self.encrypt_some()? > 0 {}
            if !self.tls.wants_write() {
                return Ok(Drained::Yes);
            }
        }
    }

    /// Gives TLS as many queued bytes as it takes now, at most one pass of messages; returns how
    /// many it took.
    fn encrypt_some(&mut self) -> io::Result<usize> {
        let mut lengths = [[0u8; LENGTH_BYTES]; MESSAGES_PER_PASS];
        for (length, message) in lengths.iter_mut().zip(&self.queue) {
            // Bounded by `send_bytes`, far below 4 GiB.
            *length = (message.len() as u32).to_le_bytes();
        }
        let mut slices = [IoSlice::new(&[]); 2 * MESSAGES_PER_PASS];
        let mut count = 0;
        for (length, message) in lengths.iter().zip(&self.queue) {
            slices[count] = IoSlice::new(length);
            slices[count + 1] = IoSlice::new(message);
            count += 2;
        }
        let mut slices = &mut slices[..count];
        IoSlice::advance_slices(&mut slices, self.front_taken);
        let taken = self.tls.writer().write_vectored(slices)?;
        self.drop_taken(taken);
        Ok(taken)
    }

    fn drop_taken(&mut self, taken: usize) {
        self.queued_bytes -= taken;
        self.front_taken += taken;
        while let Some(front) = self.queue.front() {
            let size = LENGTH_BYTES + front.len();
            if self.front_taken < size {
                break;
            }
            self.front_taken -= size;
            self.queue.pop_front();
        }
    }

    fn current_bounds(&self) -> Bounds {
        if self.stage == Stage::Up { self.bounds } else { Bounds::HANDSHAKE }
    }

    fn misbehaviour(&mut self, kind: Misbehaviour, text: String) -> LinkError {
        self.stage = Stage::Ending;
        LinkError::Misbehaviour(kind, text)
    }
}

/// Alerts of the peer and verdicts of our verifier are no misbehaviour: keys change.
fn tls_error(error: &rustls::Error) -> LinkError {
    match error {
        rustls::Error::AlertReceived(_) | rustls::Error::General(_) => {
            LinkError::Tls(error.to_string())
        }
        _ => LinkError::Misbehaviour(Misbehaviour::Tls, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::COPIED_MESSAGE_BYTES;
    use crate::hello::Role;
    use perdura_protocol::{ClusterId, Scheme, SecretKey};

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
    }

    fn pair(expected: PublicKey) -> (Link, Link) {
        let hello = Hello::client(ClusterId([1; 16]), Role::Client);
        let dialler = Identity::new(&key(1)).unwrap();
        let acceptor = Identity::new(&key(2)).unwrap();
        (
            Link::dial(&dialler, expected, &hello, Bounds::CLIENT).unwrap(),
            Link::accept(&acceptor).unwrap(),
        )
    }

    /// Moves all bytes from one end to the other, `step` at a time; gives what they completed.
    fn carry(from: &mut Link, to: &mut Link, step: usize) -> Result<Vec<Received>, LinkError> {
        let mut wire = Vec::new();
        assert_eq!(from.write_to(&mut wire).unwrap(), Drained::Yes);
        let mut received = Vec::new();
        for piece in wire.chunks(step) {
            to.feed(piece)?;
            while let Some(one) = to.next_received()? {
                received.push(one);
            }
        }
        Ok(received)
    }

    fn up() -> (Link, Link) {
        let (mut dialler, mut acceptor) = pair(key(2).public());
        for _ in 0..4 {
            let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
            if let [Received::Hello(hello, proven)] = &received[..] {
                assert_eq!((hello.role, *proven), (Role::Client, key(1).public()));
                acceptor.welcome(Bounds::CLIENT_AT_REPLICA);
            }
            carry(&mut acceptor, &mut dialler, 1000).unwrap();
        }
        assert!(dialler.is_up() && acceptor.is_up());
        (dialler, acceptor)
    }

    #[test]
    fn messages_of_any_size_in_pieces_of_any_size_arrive_in_order() {
        let (mut dialler, mut acceptor) = up();
        for step in [1, 17, 5000, 1_000_000] {
            let sizes = [1, 3, COPIED_MESSAGE_BYTES, 5000, 16_384, 100_000, 2, 700_000];
            let messages: Vec<Bytes> = sizes
                .iter()
                .enumerate()
                .map(|(index, size)| Bytes::from(vec![index as u8; *size]))
                .collect();
            for message in &messages {
                dialler.queue(message.clone()).unwrap();
            }
            let received = carry(&mut dialler, &mut acceptor, step).unwrap();
            let expected: Vec<_> = messages.into_iter().map(Received::Message).collect();
            assert!(received == expected, "pieces of {step}");
            assert_eq!((dialler.queued_bytes(), acceptor.inbound_bytes()), (0, 0));
        }
    }

    #[test]
    fn small_messages_share_a_record_and_a_write() {
        let (mut dialler, _acceptor) = up();
        for _ in 0..100 {
            dialler.queue(Bytes::from_static(b"0123456789")).unwrap();
        }
        let mut wire = Vec::new();
        dialler.write_to(&mut wire).unwrap();
        // 1,400 bytes of frames in two passes: two records of 22 bytes overhead each.
        assert_eq!(wire.len(), 1400 + 2 * 22);
    }

    #[test]
    fn the_queue_is_bounded_and_sizes_are_checked() {
        let (mut dialler, _acceptor) = up();
        let large = Bytes::from(vec![0; Bounds::CLIENT.send_bytes]);
        let mut taken = 0;
        while dialler.queue(large.clone()).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, Bounds::CLIENT.queue_bytes / (large.len() + LENGTH_BYTES));
        assert_eq!(dialler.queue(large), Err(QueueError::Full));
        assert_eq!(dialler.queue(Bytes::new()), Err(QueueError::Size(0)));
        let size = Bounds::CLIENT.send_bytes + 1;
        assert_eq!(dialler.queue(Bytes::from(vec![0; size])), Err(QueueError::Size(size)));
    }

    #[test]
    fn another_key_than_expected_is_refused_by_the_dialler() {
        let (mut dialler, mut acceptor) = pair(key(3).public());
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        let error = carry(&mut acceptor, &mut dialler, 1000).unwrap_err();
        assert!(
            matches!(&error, LinkError::Tls(text) if text.contains("as configured")),
            "{error}"
        );
    }

    #[test]
    fn a_refusal_reaches_the_dialler_in_words() {
        let (mut dialler, mut acceptor) = pair(key(2).public());
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
        let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
        assert!(matches!(received[..], [Received::Hello(..)]));
        acceptor.refuse(&Refusal("not today".into()));
        let error = carry(&mut acceptor, &mut dialler, 1000).unwrap_err();
        assert!(matches!(&error, LinkError::Refused(text) if text == "not today"), "{error}");
    }

    #[test]
    fn garbage_is_misbehaviour_and_so_is_an_oversized_frame() {
        let (_dialler, mut acceptor) = pair(key(2).public());
        let error = acceptor.feed(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
        assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::Tls, _)), "{error}");

        let (mut dialler, mut acceptor) = up();
        let size = Bounds::CLIENT_AT_REPLICA.receive_bytes + 1;
        dialler.push(Bytes::from(vec![0; size]));
        let error = carry(&mut dialler, &mut acceptor, 100_000).unwrap_err();
        assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::OversizedFrame, _)));
        assert!(acceptor.inbound_bytes() < 200_000, "refused by its length, not by its bytes");
    }
}
