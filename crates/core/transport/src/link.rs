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
use crate::hello::{
    Answer, AnyHello, Hello, KEEPS_STATES, Refusal, unknown_refusal, version_refusal,
};
use crate::identity::{Identity, public_key};
use crate::sealed::{self, Opener, Sealer};
use crate::uninit;
use bytes::Bytes;
use perdura_protocol::fields::FieldError;
use perdura_protocol::{BootId, Decode, Encode, PublicKey};
use rustls::Connection;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Instant;

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
    /// To the dialler: what the acceptor said with its welcome.
    keeps_states: bool,
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
            keeps_states: false,
        }
    }

    /// Behind how many records the one comes of which only a part was received; none before records come.
    pub fn partial_record(&self) -> Option<u64> {
        self.records.as_ref()?.1.partial_record()
    }

    /// Reads at most `most` bytes from the socket, in one call. [`Link::take_in`] is to follow.
    ///
    /// # Errors
    /// As the socket's.
    pub fn read_from(&mut self, socket: &impl AsFd, most: usize) -> io::Result<Arrived> {
        if let Some(records) = self.records.as_mut().filter(|_| !self.peer_closed) {
            let least = SHARE_READ_BYTES.min(self.bounds.buffer_bytes / 4);
            let arrived = uninit::read(socket, records.1.room(least, &self.bounds), most)?;
            self.arrived = arrived.bytes;
            return Ok(arrived);
        }
        if self.records.is_some() {
            // The peer has said that nothing more comes.
            return Ok(Arrived { bytes: 0, all: true });
        }
        self.early.reserve(HANDSHAKE_READ_BYTES);
        uninit::read(socket, &mut self.early, most.min(HANDSHAKE_READ_BYTES))
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
            _ => self.open(),
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
                let room = records.1.room(1, &self.bounds);
                let count = (room.capacity() - room.len()).min(bytes.len());
                room.extend_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                self.open()?;
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

    /// Bytes were put where records are expected.
    fn open(&mut self) -> Result<(), LinkError> {
        let Some(records) = &mut self.records else { return Ok(()) };
        let opened = records.1.open();
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
        if self.handshake.dials && !self.handshake.wants_write() {
            // Nothing more is said in TLS, which could export the first secrets again.
            self.handshake.tls = None;
        }
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
                Err(self.refuse_hello(version_refusal(version)))
            }
            (Ok(AnyHello::Unknown(field)), _) => Err(self.refuse_hello(unknown_refusal(&field))),
            (Err(error), _) => {
                Err(self.misbehaviour(Misbehaviour::MalformedHello, error.to_string()))
            }
            (_, None) => Err(self.misbehaviour(Misbehaviour::Tls, "no key was proven".into())),
        }
    }

    fn refuse_hello(&mut self, refusal: Refusal) -> LinkError {
        self.stage = Stage::AwaitDecision;
        self.refuse(&refusal);
        LinkError::RefusedByUs(refusal.0)
    }

    fn answer(&mut self, payload: Bytes) -> Result<Received, LinkError> {
        match Answer::from_bytes(payload) {
            Ok(Answer::Welcome { mut others, .. }) => {
                let keeps_states = matches!(others.take::<u8>(KEEPS_STATES), Ok(Some(_)));
                if let Err(FieldError::Unknown(field)) = others.pass_over() {
                    self.stage = Stage::Ending;
                    return Err(LinkError::NewerWelcome(field));
                }
                self.start()?;
                self.keeps_states = keeps_states;
                Ok(Received::Welcome)
            }
            Ok(Answer::Refused { version, reason }) => {
                self.stage = Stage::Ending;
                Err(LinkError::Refused { version, reason })
            }
            Err(error) => Err(self.misbehaviour(Misbehaviour::MalformedHello, error.to_string())),
        }
    }

    /// Admits the peer that said hello, with these bounds from here on, and tells it this replica's run, and whether it
    /// keeps states for a moment and takes reads of one of them.
    ///
    /// # Errors
    /// When TLS gives no keys, or the peer said more than its hello.
    ///
    /// # Panics
    /// When no hello waits for a decision.
    pub fn welcome(
        &mut self,
        bounds: Bounds,
        boot: Option<BootId>,
        keeps_states: bool,
    ) -> Result<(), LinkError> {
        assert_eq!(self.stage, Stage::AwaitDecision);
        self.bounds = bounds;
        self.start()?;
        self.handshake.outbound = Some(Answer::welcome(boot, keeps_states).to_bytes());
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

    /// To the dialler: whether the replica that welcomed it keeps states for a moment and takes reads of one of them.
    #[must_use]
    pub fn keeps_states(&self) -> bool {
        self.keeps_states
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

    /// Bytes that wait to be written, in messages and in records of them.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        let records = self.records.as_ref();
        self.queued_bytes + records.map_or(0, |records| records.0.pending().len())
    }

    /// Records that were taken in since this was last asked.
    pub fn take_records(&mut self) -> usize {
        self.records.as_mut().map_or(0, |records| records.1.take_records())
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
            || self.closing
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
        self.write_at(Instant::now(), socket)
    }

    /// As [`Link::write_to`], for who knows the time: by it the link takes other keys.
    pub(crate) fn write_at(
        &mut self,
        now: Instant,
        socket: &mut impl Write,
    ) -> io::Result<Drained> {
        while self.handshake.write_to(socket)? == Drained::Yes {
            let may_say = self.may_say_in_tls();
            let Some(tls) = &mut self.handshake.tls else { return self.write_records(now, socket) };
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

    fn write_records(&mut self, now: Instant, socket: &mut impl Write) -> io::Result<Drained> {
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
                let sealed = sealer.seal(&self.queue, front, queued, CIPHERTEXT_BYTES, now);
                let taken = sealed.map_err(io::Error::other)?;
                self.drop_taken(taken);
            } else if std::mem::take(&mut self.closing) {
                sealer.close(now).map_err(io::Error::other)?;
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
mod tests;
