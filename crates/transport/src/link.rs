//! One connection without its socket: TLS, the hello exchange, records, messages.
//!
//! Bytes from the socket go in by [`Link::read_from`] and [`Link::take_in`], or by [`Link::feed`];
//! [`Link::next_received`] then gives what they complete, until it gives nothing. [`Link::queue`] takes
//! messages, [`Link::write_to`] turns all that waits into as few records and system calls as there can be.
//!
//! TLS carries the hello of the dialler and the acceptor's answer, nothing else; the records behind a welcome
//! are those of `sealed`. How messages stand on the stream is in `framing`, for both: the first one of the
//! dialler is a [`Hello`], the first of the acceptor an [`Answer`].
//!
//! Invariants:
//! - Messages are neither given out nor sent before the hello was answered with a welcome.
//! - When `next_received` has given nothing, less than one message is buffered.
//! - After an error the link is of no more use, except that `write_to` may send what is left: an
//!   alert or a refusal.

use crate::bounds::{Bounds, CIPHERTEXT_BYTES, SHARE_READ_BYTES};
use crate::error::{LinkError, Misbehaviour, QueueError};
use crate::framing::{LENGTH_BYTES, take_message};
use crate::handshake::Handshake;
use crate::hello::{Answer, AnyHello, Hello, PROTOCOL_VERSION, Refusal, version_refusal};
use crate::identity::{Identity, public_key};
use crate::sealed::{self, Opener, Sealer};
use bytes::Bytes;
use perdura_protocol::{Decode, Encode, PublicKey};
use rustls::Connection;
use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// Bytes that are read at once before a link is up.
const HANDSHAKE_READ_BYTES: usize = 4096;

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

/// What one call to a socket gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// How much; 0: the socket has ended.
    pub bytes: usize,
    /// Whether that was all: there was room for more.
    pub all: bool,
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
    handshake: Handshake,
    stage: Stage,
    /// In force while the link is up; before that, [`Bounds::HANDSHAKE`] are.
    bounds: Bounds,
    /// Once the link is up.
    records: Option<Box<(Sealer, Opener)>>,
    /// Bytes that were read and not taken in before the link was up: of the handshake, or behind the welcome.
    early: Vec<u8>,
    /// Bytes that were read where records are expected, and not taken in.
    arrived: usize,
    queue: VecDeque<Bytes>,
    /// Bytes of the first message and its length that are in records already.
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
        link.handshake.outbound = Some(hello.to_bytes());
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

    fn new(tls: Connection, stage: Stage, bounds: Bounds) -> Link {
        Link {
            handshake: Handshake::new(tls, stage == Stage::AwaitAnswer),
            stage,
            bounds,
            records: None,
            early: Vec::new(),
            arrived: 0,
            queue: VecDeque::new(),
            front_taken: 0,
            queued_bytes: 0,
            peer_closed: false,
            closing: false,
        }
    }

    /// Reads at most `most` bytes from the socket, in one call. [`Link::take_in`] is to follow.
    ///
    /// # Errors
    /// As the socket's.
    pub fn read_from(&mut self, socket: &mut impl Read, most: usize) -> io::Result<Arrived> {
        if let Some(records) = self.records.as_mut().filter(|_| !self.peer_closed) {
            let least = SHARE_READ_BYTES.min(self.bounds.buffer_bytes / 4);
            let space = records.1.space(least, &self.bounds);
            let room = space.len().min(most);
            let bytes = socket.read(&mut space[..room])?;
            self.arrived = bytes;
            return Ok(Arrived { bytes, all: bytes < room });
        }
        let mut buffer = [0; HANDSHAKE_READ_BYTES];
        let room = most.min(buffer.len());
        let bytes = socket.read(&mut buffer[..room])?;
        self.early.extend_from_slice(&buffer[..bytes]);
        Ok(Arrived { bytes, all: bytes < room })
    }

    /// Takes what was read, as [`Link::feed`].
    ///
    /// # Errors
    /// As [`Link::feed`].
    pub fn take_in(&mut self) -> Result<(), LinkError> {
        match std::mem::take(&mut self.arrived) {
            0 if self.records.is_none() => {
                let early = std::mem::take(&mut self.early);
                self.feed(&early)
            }
            0 => Ok(()),
            count => self.open(count),
        }
    }

    /// Takes bytes that were read from the socket, in order, all of them.
    ///
    /// # Errors
    /// [`Misbehaviour::Tls`] when they are not what TLS or its keys allow, [`LinkError::Tls`] when the peer
    /// sent an alert or our own verifier refused its key.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() && !self.peer_closed && self.stage != Stage::Ending {
            if let Some(records) = &mut self.records {
                let space = records.1.space(1, &self.bounds);
                let count = space.len().min(bytes.len());
                space[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                self.open(count)?;
            } else if self.stage == Stage::AwaitDecision || self.handshake.is_heard() {
                if self.stage != Stage::AwaitAnswer {
                    let text = "bytes behind a hello that is not answered yet".to_owned();
                    return Err(self.misbehaviour(Misbehaviour::MalformedHello, text));
                }
                self.early.extend_from_slice(bytes);
                return Ok(());
            } else {
                let (now, later) = bytes.split_at(self.handshake.of_record(bytes));
                bytes = later;
                match self.handshake.feed(now) {
                    Ok(closed) => self.peer_closed = closed,
                    Err(error) => {
                        self.stage = Stage::Ending;
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// So many bytes were put where records are expected.
    fn open(&mut self, count: usize) -> Result<(), LinkError> {
        let Some(records) = &mut self.records else { return Ok(()) };
        let opened = records.1.filled(count);
        self.peer_closed = records.1.has_ended();
        opened.map_err(|text| self.misbehaviour(Misbehaviour::Tls, text))
    }

    /// Messages flow from here on, in records under TLS's keys.
    fn start(&mut self) -> Result<(), LinkError> {
        let Some(tls) = &self.handshake.tls else { return Ok(()) };
        let ends = sealed::ends(tls, self.handshake.dials).map_err(LinkError::Tls)?;
        if !self.handshake.inbound.is_empty() {
            let text = "more than one message before the link is up".to_owned();
            return Err(self.misbehaviour(Misbehaviour::MalformedHello, text));
        }
        self.records = Some(Box::new(ends));
        self.stage = Stage::Up;
        let early = std::mem::take(&mut self.early);
        self.feed(&early)
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
        let bounds = self.current_bounds();
        let taken = match &mut self.records {
            Some(records) => records.1.take_message(&bounds),
            None => take_message(&mut self.handshake.inbound, bounds.receive_bytes),
        };
        taken.map_err(|(kind, text)| self.misbehaviour(kind, text))
    }

    fn hello(&mut self, payload: Bytes) -> Result<Received, LinkError> {
        let chain = self.handshake.tls.as_ref().and_then(|tls| tls.peer_certificates());
        let key = chain.and_then(|chain| chain.first()).and_then(|key| public_key(key.as_ref()));
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
                self.start()?;
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
    /// # Errors
    /// When TLS gives no keys, or the peer said more than its hello.
    ///
    /// # Panics
    /// When no hello waits for a decision.
    pub fn welcome(&mut self, bounds: Bounds) -> Result<(), LinkError> {
        assert_eq!(self.stage, Stage::AwaitDecision);
        self.bounds = bounds;
        self.start()?;
        self.handshake.outbound = Some(Answer::Welcome { version: PROTOCOL_VERSION }.to_bytes());
        Ok(())
    }

    /// Sends the peer that said hello away; write what is queued, then drop the link.
    ///
    /// # Panics
    /// When no hello waits for a decision.
    pub fn refuse(&mut self, refusal: &Refusal) {
        assert_eq!(self.stage, Stage::AwaitDecision);
        self.handshake.outbound = Some(Answer::refused(refusal).to_bytes());
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

    /// Memory that a message takes which is not complete yet.
    #[must_use]
    pub fn inbound_bytes(&self) -> usize {
        let records = self.records.as_ref().map_or(0, |records| records.1.held_bytes());
        records + self.handshake.inbound.len() + self.early.len()
    }

    /// Whether [`Link::write_to`] has something to write.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        let records = self.records.as_ref();
        self.handshake.wants_write()
            || records.is_some_and(|one| self.queued_bytes > 0 || !one.0.pending().is_empty())
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
        while self.handshake.write_to(socket)? == Drained::Yes {
            let may_say = self.may_say_in_tls();
            let Some(tls) = &mut self.handshake.tls else { return self.write_records(socket) };
            if self.records.is_some() && self.handshake.outbound.is_none() {
                self.handshake.tls = None;
            } else if std::mem::take(&mut self.closing) && may_say {
                tls.send_close_notify();
            } else {
                return Ok(Drained::Yes);
            }
        }
        Ok(Drained::No)
    }

    /// Whether the other end still takes what TLS says. Who has a whole hello goes on to records, and for a dialler
    /// that gives up then the end of its socket says enough.
    fn may_say_in_tls(&self) -> bool {
        !(self.handshake.dials && self.handshake.outbound.is_none())
    }

    fn write_records(&mut self, socket: &mut impl Write) -> io::Result<Drained> {
        loop {
            let Some(records) = &mut self.records else { return Ok(Drained::Yes) };
            let sealer = &mut records.0;
            while !sealer.pending().is_empty() {
                match socket.write(sealer.pending()) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => sealer.advance(count, self.bounds.buffer_bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Drained::No);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if self.queued_bytes > 0 {
                let (front, queued) = (self.front_taken, self.queued_bytes);
                let sealed = sealer.seal(&self.queue, front, queued, CIPHERTEXT_BYTES);
                let taken = sealed.map_err(io::Error::other)?;
                self.drop_taken(taken);
            } else if std::mem::take(&mut self.closing) {
                sealer.close().map_err(io::Error::other)?;
            } else {
                return Ok(Drained::Yes);
            }
        }
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
                acceptor.welcome(Bounds::CLIENT_AT_REPLICA).unwrap();
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
        // 1,400 bytes of messages with their lengths: one record, of 20 bytes overhead.
        assert_eq!(wire.len(), 1400 + 20);
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

    /// Nobody can: there are no keys for it before the welcome.
    #[test]
    fn who_says_more_before_the_welcome_misbehaves() {
        let (mut dialler, mut acceptor) = pair(key(2).public());
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
        let mut hello = Vec::new();
        dialler.write_to(&mut hello).unwrap();
        hello.extend_from_slice(b"more");
        let error = acceptor.feed(&hello).unwrap_err();
        assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::MalformedHello, _)));
    }

    /// Its welcome may be under way, and the acceptor expects records.
    #[test]
    fn a_dialler_that_gives_up_says_nothing_more() {
        let (mut dialler, mut acceptor) = pair(key(2).public());
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        dialler.close();
        let mut wire = Vec::new();
        assert_eq!(dialler.write_to(&mut wire).unwrap(), Drained::Yes);
        assert!(wire.is_empty());
    }

    #[test]
    fn what_is_sent_with_the_welcome_comes_with_it() {
        for step in [1, 7, 1000, 100_000] {
            let (mut dialler, mut acceptor) = pair(key(2).public());
            carry(&mut dialler, &mut acceptor, 1000).unwrap();
            carry(&mut acceptor, &mut dialler, 1000).unwrap();
            carry(&mut dialler, &mut acceptor, 1000).unwrap();
            acceptor.welcome(Bounds::CLIENT_AT_REPLICA).unwrap();
            let sent = [Bytes::from_static(b"first"), Bytes::from(vec![9; 70_000])];
            sent.iter().for_each(|message| acceptor.queue(message.clone()).unwrap());
            let received = carry(&mut acceptor, &mut dialler, step).unwrap();
            let messages = sent.into_iter().map(Received::Message);
            let expected: Vec<_> = std::iter::once(Received::Welcome).chain(messages).collect();
            assert!(received == expected, "{step}");
        }
    }

    #[test]
    fn an_end_is_told_and_what_came_before_it_is_given() {
        let (mut dialler, mut acceptor) = up();
        dialler.queue(Bytes::from_static(b"last")).unwrap();
        dialler.close();
        let mut wire = Vec::new();
        assert_eq!(dialler.write_to(&mut wire).unwrap(), Drained::Yes);
        acceptor.feed(&wire).unwrap();
        let last = Received::Message(Bytes::from_static(b"last"));
        assert_eq!(acceptor.next_received().unwrap(), Some(last));
        assert!(matches!(acceptor.next_received(), Err(LinkError::Closed)));
    }

    #[test]
    fn once_it_is_up_nothing_of_tls_is_kept() {
        let (dialler, acceptor) = up();
        assert!(dialler.handshake.tls.is_none() && acceptor.handshake.tls.is_none());
    }

    /// A socket that gives and takes a few bytes at a time.
    #[test]
    fn what_is_read_from_a_socket_is_what_was_written_to_the_other() {
        let (mut dialler, mut acceptor) = up();
        let sizes = [5000, 1, 200_000, 4096, 70_000];
        let sent: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![7; *size])).collect();
        sent.iter().for_each(|message| dialler.queue(message.clone()).unwrap());
        let mut wire = Vec::new();
        dialler.write_to(&mut wire).unwrap();
        let (mut socket, mut received) = (&wire[..], Vec::new());
        for most in [1, 10, 100, 1000, 10_000].into_iter().cycle() {
            let arrived = acceptor.read_from(&mut socket, most).unwrap();
            assert!(arrived.bytes <= most && (arrived.all || arrived.bytes > 0));
            acceptor.take_in().unwrap();
            while let Some(Received::Message(message)) = acceptor.next_received().unwrap() {
                received.push(message);
            }
            if arrived.bytes == 0 {
                break;
            }
        }
        assert!(received == sent);
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
