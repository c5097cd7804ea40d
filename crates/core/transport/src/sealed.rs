//! Records on a link that is up: authenticated encryption of a stream of bytes, without copies.
//!
//! TLS 1.3 proves who is at the other end, and carries the hello and its answer. From there on its keys go
//! on, but not its records: the library that makes those copies what it receives three times. The keys come
//! from what TLS exports of the handshake (RFC 8446, section 7.5), apart for each direction, for the cipher that
//! TLS has agreed on (`keys`). `docs/decisions/0012-records-after-tls.md` weighs that.
//!
//! A record is a `u32` length, little-endian, of its plaintext, from 1 to [`RECORD_BYTES`]; the ciphertext, as
//! long; and a tag of 16 bytes. The length is authenticated with it. Two records have no plaintext: of length 0, nothing more comes;
//! with [`NEXT_KEY`] in place of a length, what follows is under the next key. That is TLS's
//! KeyUpdate (RFC 8446, section 4.6.3), and like it the last record under its key, so that nothing is done on an
//! unproven word. Who seals says it when as much as may be is sealed under a key, or for as long; who opens holds
//! it to the former.
//!
//! What arrives is read into one buffer, and decrypted towards its front, so that what the records
//! held stands there in one piece, and a large message is given out with the buffer, not copied.

use crate::bounds::{Bounds, COPIED_MESSAGE_BYTES};
use crate::error::Misbehaviour;
use crate::framing::LENGTH_BYTES;
use bytes::Bytes;
use keys::{Key, Secret};
use ring::aead::{AES_128_GCM, Algorithm, CHACHA20_POLY1305};
use rustls::{CipherSuite, Connection};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

mod keys;

pub(crate) use keys::KEY_TIME;

/// Largest plaintext of a record. A receiver can begin to decrypt what it holds whole; beyond this nothing is saved.
pub(crate) const RECORD_BYTES: usize = 64 * 1024;

/// Bytes of the length before a record, and of the tag behind it.
const HEADER_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const RECORD_OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;

/// In place of a length: behind this record, which has no plaintext, the sender's next key is in force.
const NEXT_KEY: u32 = 1 << 31;

/// Changing a key costs its receiver about as much as so many small records.
const NEXT_KEY_RECORDS: usize = 8;

/// The labels of the secrets that TLS's exporter gives, of the dialler's records and of the acceptor's.
const DIALLER_LABEL: &[u8] = b"EXPORTER-perdura-link-4-dialler";
const ACCEPTOR_LABEL: &[u8] = b"EXPORTER-perdura-link-4-acceptor";

/// Both directions' ends, of the dialler or of the acceptor, after the handshake.
pub(crate) fn ends(tls: &Connection, dialler: bool) -> Result<(Sealer, Opener), String> {
    let suite = tls.negotiated_cipher_suite().map(|suite| suite.suite());
    let algorithm = match suite {
        Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => &AES_128_GCM,
        Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => &CHACHA20_POLY1305,
        other => return Err(format!("no records for the cipher {other:?}")),
    };
    let first = |label: &[u8]| -> Result<Key, String> {
        let mut secret = Secret::default();
        tls.export_keying_material(&mut secret[..], label, None)
            .map_err(|error| format!("TLS gives no keys: {error}"))?;
        Key::first(algorithm, &secret)
    };
    let (from_dialler, from_acceptor) = (first(DIALLER_LABEL)?, first(ACCEPTOR_LABEL)?);
    let (sends, receives) =
        if dialler { (from_dialler, from_acceptor) } else { (from_acceptor, from_dialler) };
    Ok((Sealer::new(sends), Opener::new(receives)))
}

/// Ends of one direction, under a key that is no secret: for tests.
pub(crate) fn pair() -> Result<(Sealer, Opener), String> {
    pair_of(&AES_128_GCM)
}

fn pair_of(algorithm: &'static Algorithm) -> Result<(Sealer, Opener), String> {
    let key = || Key::first(algorithm, &Secret::new([7; 32]));
    Ok((Sealer::new(key()?), Opener::new(key()?)))
}

/// Messages on their way into records.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: Key,
    // Records that the socket has not taken yet.
    out: Vec<u8>,
    taken: usize,
}

impl Sealer {
    fn new(key: Key) -> Sealer {
        Sealer { key, out: Vec::new(), taken: 0 }
    }

    /// Records that the socket has not taken yet.
    pub fn pending(&self) -> &[u8] {
        &self.out[self.taken..]
    }

    /// The socket took so many bytes. Of the buffer at most `kept` bytes are kept when it is empty.
    pub fn advance(&mut self, count: usize, kept: usize) {
        self.taken += count;
        if self.taken >= self.out.len() {
            self.taken = 0;
            self.out.clear();
            if self.out.capacity() > kept {
                self.out = Vec::new();
            }
        }
    }

    /// Makes records of messages at the front of the queue, of whose first one `front` bytes are in
    /// records already, and of which `queued` bytes are left, up to `most` bytes; gives how many bytes of
    /// them, lengths included, it took.
    pub fn seal(
        &mut self,
        queue: &VecDeque<Bytes>,
        mut front: usize,
        queued: usize,
        most: usize,
        now: Instant,
    ) -> Result<usize, String> {
        let mut messages = queue.iter();
        let mut message = messages.next();
        let mut total = 0;
        let size = queued.min(most.saturating_add(RECORD_BYTES));
        self.out.reserve(size + (size / RECORD_BYTES + 1) * RECORD_OVERHEAD);
        while message.is_some() && total < most {
            let body = self.begin(now)?;
            while let Some(bytes) = message
                && self.out.len() - body < RECORD_BYTES
            {
                let length = (bytes.len() as u32).to_le_bytes();
                let room = |out: &Vec<u8>| RECORD_BYTES - (out.len() - body);
                if front < LENGTH_BYTES {
                    let part = &length[front..];
                    let part = &part[..part.len().min(room(&self.out))];
                    self.out.extend_from_slice(part);
                    front += part.len();
                }
                if front >= LENGTH_BYTES {
                    let part = &bytes[front - LENGTH_BYTES..];
                    let part = &part[..part.len().min(room(&self.out))];
                    self.out.extend_from_slice(part);
                    front += part.len();
                }
                if front == LENGTH_BYTES + bytes.len() {
                    (message, front) = (messages.next(), 0);
                }
            }
            let length = self.out.len() - body;
            total += length;
            self.finish(body, length as u32, now)?;
        }
        Ok(total)
    }

    /// Says that nothing more comes.
    pub fn close(&mut self, now: Instant) -> Result<(), String> {
        self.seal_bytes(&[], now)
    }

    /// A record of these bytes, whatever they are.
    pub fn seal_bytes(&mut self, bytes: &[u8], now: Instant) -> Result<(), String> {
        let body = self.begin(now)?;
        self.out.extend_from_slice(bytes);
        self.finish(body, bytes.len() as u32, now)
    }

    /// Makes room for the header of a record, under another key if it is time; gives where its plaintext goes.
    fn begin(&mut self, now: Instant) -> Result<usize, String> {
        if self.key.is_due(now) {
            self.out.resize(self.out.len() + HEADER_BYTES, 0);
            self.finish(self.out.len(), NEXT_KEY, now)?;
            self.key.renew()?;
        }
        self.out.resize(self.out.len() + HEADER_BYTES, 0);
        Ok(self.out.len())
    }

    /// Encrypts the record whose plaintext begins there, under this header.
    fn finish(&mut self, body: usize, header: u32, now: Instant) -> Result<(), String> {
        let begins = body - HEADER_BYTES;
        let (place, body) = self.out[begins..].split_at_mut(HEADER_BYTES);
        place.copy_from_slice(&header.to_le_bytes());
        match self.key.seal(place, body, now) {
            Ok(tag) => self.out.extend_from_slice(tag.as_ref()),
            Err(text) => {
                // What is not encrypted does not leave.
                self.out.truncate(begins);
                return Err(text);
            }
        }
        Ok(())
    }
}

/// Bytes from the socket on their way out of records.
#[derive(Debug)]
pub(crate) struct Opener {
    key: Key,
    // What is decrypted, somewhere behind it records that are not, up to its end.
    buffer: Vec<u8>,
    plain: Range<usize>,
    sealed: usize,
    // Opened since that was last asked, and ever.
    records: usize,
    opened: u64,
    ended: bool,
    // Bytes that had to make room.
    #[cfg(test)]
    moved: usize,
}

impl Opener {
    fn new(key: Key) -> Opener {
        Opener {
            key,
            buffer: Vec::new(),
            plain: 0..0,
            sealed: 0,
            records: 0,
            opened: 0,
            ended: false,
            #[cfg(test)]
            moved: 0,
        }
    }

    /// Whether the peer said that nothing more comes.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Records that were opened since this was last asked.
    pub fn take_records(&mut self) -> usize {
        std::mem::take(&mut self.records)
    }

    /// Behind how many records the one comes of which only a part is here.
    pub fn partial_record(&self) -> Option<u64> {
        (self.sealed < self.buffer.len()).then_some(self.opened)
    }

    /// Bytes that are here of messages that are not complete, and what is around them in records.
    fn here(&self) -> usize {
        self.plain.len() + self.buffer.len() - self.sealed
    }

    /// Memory that bytes of no whole message take.
    pub fn held_bytes(&self) -> usize {
        if self.here() == 0 { 0 } else { self.buffer.capacity() }
    }

    /// Where the socket's next bytes go, behind those that are there: it has room for `least`, unless a
    /// message needs fewer. [`Opener::open`] is to follow.
    pub fn room(&mut self, least: usize, bounds: &Bounds) -> &mut Vec<u8> {
        // A message of which only the beginning is here is to stand in one piece, with the record in which it
        // ends. It gets room for that at once, unless it is very large: then as its bytes come, in twice what is here.
        let here = self.here();
        let whole = |bytes: usize| bytes + RECORD_BYTES + RECORD_OVERHEAD;
        let message = self.message_bytes().map(whole).filter(|bytes| *bytes > here);
        let at_once = message.unwrap_or(0).min(bounds.eager_bytes).max(here);
        let least = message.map_or(least, |message| least.min(message - here));
        let behind = self.buffer.capacity() - self.buffer.len();
        if behind < least || self.plain.start + at_once > self.buffer.capacity() {
            if self.buffer.capacity() < at_once.max(here + least) {
                let grown = message.map_or(2 * here, |message| message.min(2 * here));
                let size = at_once.max(grown).max(here + least).max(bounds.buffer_bytes);
                self.move_to(Vec::with_capacity(size));
            } else {
                // What stands before it is given out, and what is left between belongs to opened records.
                #[cfg(test)]
                {
                    let plain = if self.plain.start > 0 { self.plain.len() } else { 0 };
                    self.moved += plain + self.buffer.len() - self.sealed;
                }
                self.buffer.copy_within(self.sealed.., self.plain.end);
                self.buffer.truncate(self.plain.start + here);
                self.buffer.drain(..self.plain.start);
                (self.plain, self.sealed) = (0..self.plain.len(), self.plain.len());
            }
        }
        &mut self.buffer
    }

    /// Goes on in other memory with what is here; gives the former one.
    fn move_to(&mut self, mut memory: Vec<u8>) -> Vec<u8> {
        #[cfg(test)]
        {
            self.moved += self.here();
        }
        memory.extend_from_slice(&self.buffer[self.plain.clone()]);
        let plain = memory.len();
        memory.extend_from_slice(&self.buffer[self.sealed..]);
        (self.plain, self.sealed) = (0..plain, plain);
        std::mem::replace(&mut self.buffer, memory)
    }

    /// Decrypts what records are complete, with the bytes that were put into that room.
    ///
    /// # Errors
    /// What is wrong with them, in words; the stream is of no more use.
    pub fn open(&mut self) -> Result<(), String> {
        while !self.ended
            && let Some(header) = self.buffer[self.sealed..].first_chunk::<HEADER_BYTES>()
        {
            let header = *header;
            let (length, renews) = match u32::from_le_bytes(header) {
                NEXT_KEY => (0, true),
                length => (length as usize, false),
            };
            if length > RECORD_BYTES {
                return Err(format!(
                    "a record of {length} bytes, at most {RECORD_BYTES} are allowed"
                ));
            }
            let end = self.sealed + HEADER_BYTES + length + TAG_BYTES;
            if self.buffer.len() < end {
                return Ok(());
            }
            if renews && self.key.records == 0 {
                return Err("a key is replaced under which nothing came".to_owned());
            }
            if !renews && self.key.is_used_up() {
                return Err("more came under a key than may".to_owned());
            }
            let place = &mut self.buffer[self.plain.end..end];
            let ciphertext = self.sealed + HEADER_BYTES - self.plain.end..;
            self.key.open(&header, length, place, ciphertext)?;
            self.plain.end += length;
            self.sealed = end;
            self.records += 1;
            self.opened += 1;
            if renews {
                self.key.renew()?;
                self.records += NEXT_KEY_RECORDS;
            }
            self.ended = length == 0 && !renews;
        }
        if self.sealed == self.buffer.len() || self.ended {
            self.buffer.truncate(self.plain.end);
            self.sealed = self.plain.end;
        }
        Ok(())
    }

    /// Length of the message at the front, with the length before it, if that is known.
    fn message_bytes(&self) -> Option<usize> {
        let length = self.buffer[self.plain.clone()].first_chunk::<LENGTH_BYTES>()?;
        Some(LENGTH_BYTES + u32::from_le_bytes(*length) as usize)
    }

    /// Takes the first message, if all of it is there. Its length is held against its bound before
    /// anything waits for the bytes behind it.
    ///
    /// A message keeps memory of less than twice its length, however long it is kept: one that is most of the buffer
    /// takes that along, and what is behind it is copied; any other is copied itself.
    ///
    /// # Errors
    /// What is wrong with the length, also in words; the stream is of no more use.
    pub fn take_message(
        &mut self,
        bounds: &Bounds,
    ) -> Result<Option<Bytes>, (Misbehaviour, String)> {
        let Some(size) = self.message_bytes() else { return Ok(None) };
        let length = size - LENGTH_BYTES;
        crate::framing::check_length(length, bounds.receive_bytes)?;
        if self.plain.len() < size {
            return Ok(None);
        }
        let body = self.plain.start + LENGTH_BYTES..self.plain.start + size;
        if length <= COPIED_MESSAGE_BYTES || 2 * length <= self.buffer.capacity() {
            let message = Bytes::copy_from_slice(&self.buffer[body.clone()]);
            self.plain.start = body.end;
            self.clear(bounds);
            return Ok(Some(message));
        }
        self.plain.start = body.end;
        let size = if self.here() == 0 { 0 } else { self.here().max(bounds.buffer_bytes) };
        let former = self.move_to(Vec::with_capacity(size));
        Ok(Some(Bytes::from(former).slice(body)))
    }

    /// Begins at the front again when nothing is left. Of a buffer larger than usual nothing is kept.
    fn clear(&mut self, bounds: &Bounds) {
        if self.here() == 0 {
            self.buffer.clear();
            (self.plain, self.sealed) = (0..0, 0);
            if self.buffer.capacity() > bounds.buffer_bytes {
                self.buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests;
