//! One replica's connection: dialled, kept, and dialled again.

use bytes::Bytes;
use perdura_protocol::{Decode, Encode, Message};
use perdura_transport::{
    Backoff, Bounds, Drained, Hello, Identity, Link, LinkError, Misbehaviour, Received, Refusal,
    bounds, tune,
};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::ReplicaAddress;

/// Bytes read in one turn; then others have theirs.
const TURN_BYTES: usize = 1024 * 1024;

/// What happened on a connection.
#[derive(Debug)]
pub(super) enum Event {
    Up { keeps_states: bool },
    Down,
    Message(Message),
}

type Dialling = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

enum State {
    /// Not before this time.
    Pausing(Instant),
    Connecting(Dialling, Instant),
    Open(Box<Open>),
}

struct Open {
    stream: TcpStream,
    link: Link,
    /// None once the link is up and that was reported.
    handshake_deadline: Option<Instant>,
}

/// A replica's connection.
pub(super) struct Connection {
    replica: ReplicaAddress,
    hello: Hello,
    state: State,
    backoff: Backoff,
    failure: Option<String>,
    /// Whether something runs there that did not let us in.
    is_kept_out: bool,
    /// Whether that was said, or the key there is another one.
    is_refused: bool,
}

/// Lets a link write to a socket that is polled: not ready is "would block", and wakes.
struct Polled<'a, 'b> {
    stream: &'a mut TcpStream,
    context: &'a mut Context<'b>,
}

impl io::Write for Polled<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.stream).poll_write_vectored(self.context, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection {
    pub(super) fn new(
        replica: ReplicaAddress,
        hello: Hello,
        seed: u64,
        now: Instant,
    ) -> Connection {
        let backoff = Backoff::new(bounds::REDIAL_FIRST, bounds::REDIAL_LONGEST, seed);
        let state = State::Pausing(now);
        let (failure, is_kept_out, is_refused) = (None, false, false);
        Connection { replica, hello, state, backoff, failure, is_kept_out, is_refused }
    }

    pub(super) fn replica(&self) -> &ReplicaAddress {
        &self.replica
    }

    /// Whether messages flow.
    pub(super) fn is_up(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.link.is_up())
    }

    /// Why it is not up, as far as that is known.
    pub(super) fn failure(&self) -> Option<String> {
        self.why_down().map(|text| format!("{}: {text}", self.replica.address))
    }

    /// The same without its address.
    pub(super) fn why_down(&self) -> Option<&str> {
        (!self.is_up()).then(|| self.failure.as_deref().unwrap_or("not connected yet"))
    }

    /// Whether the replica refused this client when it was asked last, and not only for now.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether something runs there that did not let us in.
    pub(super) fn is_kept_out(&self) -> bool {
        !self.is_up() && self.is_kept_out
    }

    /// When it wants to be polled at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Pausing(until) => Some(*until),
            State::Connecting(_, deadline) => Some(*deadline),
            State::Open(open) => open.handshake_deadline,
        }
    }

    /// Does what can be done now without waiting, and sees to being woken for the rest.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        identity: &Identity,
        now: Instant,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) {
        let outcome = self.advance(context, identity, now, scratch, events);
        if let Err(error) = outcome {
            self.fail(&error, now, events);
        }
    }

    fn advance(
        &mut self,
        context: &mut Context<'_>,
        identity: &Identity,
        now: Instant,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<(), LinkError> {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            let State::Pausing(_) = self.state else { return Err(LinkError::Expired) };
            let dialling = Box::pin(TcpStream::connect(self.replica.address.clone()));
            self.state = State::Connecting(dialling, now + bounds::HANDSHAKE_TIME);
            // What it says this time counts.
            self.is_refused = false;
        }
        if let State::Connecting(dialling, deadline) = &mut self.state
            && let Poll::Ready(stream) = dialling.as_mut().poll(context)
        {
            let stream = stream?;
            tune(&stream)?;
            let link = Link::dial(identity, self.replica.key, &self.hello, Bounds::CLIENT)?;
            let handshake_deadline = Some(*deadline);
            self.state = State::Open(Box::new(Open { stream, link, handshake_deadline }));
        }
        if let State::Open(open) = &mut self.state {
            open.write(context)?;
            let received = open.read(context, scratch, events);
            if open.handshake_deadline.is_none() {
                self.backoff.reset();
                self.failure = None;
                self.is_refused = false;
            }
            received?;
            open.write(context)?;
        }
        Ok(())
    }

    /// Queues a message; drops it when there is no link or no place.
    pub(super) fn send(&mut self, message: &Message) {
        if let State::Open(open) = &mut self.state
            && open.link.is_up()
        {
            // Lost messages are sent again.
            let _ = open.link.queue(message.to_bytes());
        }
    }

    /// Writes what was queued.
    pub(super) fn flush(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        events: &mut Vec<Event>,
    ) {
        if let State::Open(open) = &mut self.state
            && let Err(error) = open.write(context)
        {
            self.fail(&error, now, events);
        }
    }

    /// Says goodbye, as far as the socket takes it at once.
    pub(super) fn close(&mut self, context: &mut Context<'_>) {
        if let State::Open(open) = &mut self.state {
            open.link.close();
            let _ = open.write(context);
        }
    }

    fn fail(&mut self, error: &LinkError, now: Instant, events: &mut Vec<Event>) {
        if let State::Open(open) = &self.state
            && open.handshake_deadline.is_none()
        {
            events.push(Event::Down);
        }
        self.is_kept_out = matches!(&self.state, State::Open(open) if !open.link.is_up())
            && !matches!(error, LinkError::Expired);
        self.is_refused = match error {
            LinkError::Refused { reason, .. } => !Refusal::is_for_now(reason),
            LinkError::Tls(_) => true,
            _ => false,
        };
        let is_closed = matches!(error, LinkError::Closed | LinkError::Io(_));
        let text = match self.is_kept_out && is_closed {
            true => format!(
                "{error} at once: it takes no more connections (its LimitNOFILE may be too low), or no member of the group runs there"
            ),
            false => error.to_string(),
        };
        if self.failure.as_ref() != Some(&text) {
            tracing::debug!(replica = %self.replica.id, address = self.replica.address, "{text}");
        }
        self.failure = Some(text);
        self.state = State::Pausing(now + self.backoff.next_pause());
    }
}

impl Open {
    fn write(&mut self, context: &mut Context<'_>) -> Result<(), LinkError> {
        if self.link.wants_write() {
            let mut socket = Polled { stream: &mut self.stream, context };
            // Blocked: the socket wakes the task when it takes more.
            let (Drained::Yes | Drained::No) = self.link.write_to(&mut socket)?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<(), LinkError> {
        let mut left = TURN_BYTES;
        loop {
            if left == 0 {
                context.waker().wake_by_ref();
                return Ok(());
            }
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(outcome) => outcome?,
            }
            let filled = buffer.filled();
            if filled.is_empty() {
                return Err(LinkError::Closed);
            }
            left = left.saturating_sub(filled.len());
            let fed = self.link.feed(filled);
            while let Some(received) = self.link.next_received()? {
                match received {
                    Received::Welcome => {
                        self.handshake_deadline = None;
                        events.push(Event::Up { keeps_states: self.link.keeps_states() });
                    }
                    Received::Message(bytes) => events.push(Event::Message(decode(bytes)?)),
                    // A dialler's link gives none.
                    Received::Hello(..) => {}
                }
            }
            fed?;
        }
    }
}

fn decode(bytes: Bytes) -> Result<Message, LinkError> {
    Message::from_bytes(bytes)
        .map_err(|error| LinkError::Misbehaviour(Misbehaviour::MalformedMessage, error.to_string()))
}
