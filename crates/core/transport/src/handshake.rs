//! The beginning of a connection: TLS, with one message each way, the hello and its answer.

use crate::bounds::CIPHERTEXT_BYTES;
use crate::error::{LinkError, Misbehaviour};
use crate::framing::LENGTH_BYTES;
use crate::link::Drained;
use bytes::{Bytes, BytesMut};
use rustls::Connection;
use std::io::{self, BufRead, Write};

/// Type, version and length of a TLS record (RFC 8446, section 5.1).
const TLS_HEADER_BYTES: usize = 5;

/// TLS, with one message each way.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Gone once the link is up and the answer is written.
    pub tls: Option<Box<Connection>>,
    pub dials: bool,
    pub inbound: BytesMut,
    /// Header of the record that is coming in, and how much of what is behind it is to come.
    header: ([u8; TLS_HEADER_BYTES], usize),
    body_left: usize,
    /// The hello, or the answer to it, until TLS has it.
    pub outbound: Option<Bytes>,
}

impl Handshake {
    pub fn new(mut tls: Connection, dials: bool) -> Handshake {
        tls.set_buffer_limit(Some(CIPHERTEXT_BYTES));
        Handshake {
            tls: Some(Box::new(tls)),
            dials,
            inbound: BytesMut::new(),
            header: Default::default(),
            body_left: 0,
            outbound: None,
        }
    }

    /// Whether the peer's one message is there.
    pub fn is_heard(&self) -> bool {
        self.inbound.first_chunk::<LENGTH_BYTES>().is_some_and(|length| {
            self.inbound.len() >= LENGTH_BYTES + u32::from_le_bytes(*length) as usize
        })
    }

    /// How many of these bytes belong to the record that is coming in: what follows the peer's one message is
    /// not for TLS.
    pub fn of_record(&mut self, bytes: &[u8]) -> usize {
        let (header, filled) = &mut self.header;
        let mut count = 0;
        while *filled < TLS_HEADER_BYTES && count < bytes.len() {
            header[*filled] = bytes[count];
            (*filled, count) = (*filled + 1, count + 1);
            if *filled == TLS_HEADER_BYTES {
                self.body_left = usize::from(u16::from_be_bytes([header[3], header[4]]));
            }
        }
        if *filled == TLS_HEADER_BYTES {
            let body = self.body_left.min(bytes.len() - count);
            (self.body_left, count) = (self.body_left - body, count + body);
            if self.body_left == 0 {
                *filled = 0;
            }
        }
        count
    }

    /// Takes a part of a record; whether the peer closed its side.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<bool, LinkError> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let mut closed = false;
        while !bytes.is_empty() && !closed {
            // Fails only when undelivered plaintext piles up, and each round delivers it all.
            tls.read_tls(&mut bytes)?;
            let state = tls.process_new_packets().map_err(|error| tls_error(&error))?;
            let mut left = state.plaintext_bytes_to_read();
            let mut reader = tls.reader();
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
            closed = state.peer_has_closed();
        }
        Ok(closed)
    }

    pub fn wants_write(&self) -> bool {
        let ready = |tls: &Connection| {
            tls.wants_write() || (self.outbound.is_some() && !tls.is_handshaking())
        };
        self.tls.as_deref().is_some_and(ready)
    }

    /// Writes what TLS has to say.
    pub fn write_to(&mut self, socket: &mut impl Write) -> io::Result<Drained> {
        let Some(tls) = &mut self.tls else { return Ok(Drained::Yes) };
        loop {
            if tls.wants_write() {
                match tls.write_tls(socket) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Drained::No);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            } else if !tls.is_handshaking()
                && let Some(message) = self.outbound.take()
            {
                // Some KiB at most, far below TLS's limit.
                tls.writer().write_all(&(message.len() as u32).to_le_bytes())?;
                tls.writer().write_all(&message)?;
            } else {
                return Ok(Drained::Yes);
            }
        }
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
