//! Batches: what is agreed on in a slot. Whole client frames under an agreed time, or nothing (a
//! null batch fills a slot after a view change or before a new configuration; a tick moves time).
//!
//! Layout: kind 1, time 8, frame count 4, frames. The digest is BLAKE3 of all of it, so a batch is
//! hashed once, as one contiguous buffer.

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::frame::Frame;
use crate::ids::{Digest, Time};
use crate::limits;
use bytes::Bytes;

/// What a batch is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BatchKind {
    /// Client frames, at least one.
    Requests = 0,
    /// Nothing, at time 0; the one batch that a new view may choose without anybody's lock.
    Null = 1,
    /// No frames, but a time.
    Tick = 2,
}

/// A decoded batch with its digest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    kind: BatchKind,
    time: Time,
    frames: Vec<Frame>,
    raw: Bytes,
    digest: Digest,
}

const HEADER_BYTES: usize = 1 + 8 + 4;

impl Batch {
    fn assemble(kind: BatchKind, time: Time, frames: Vec<Frame>) -> Batch {
        let body: usize = frames.iter().map(|frame| frame.raw().len()).sum();
        let mut out = Vec::with_capacity(HEADER_BYTES + body);
        out.push(kind as u8);
        time.encode(&mut out);
        crate::codec::encode_list(&frames, &mut out);
        let digest = Digest::of(&out);
        Batch { kind, time, frames, raw: out.into(), digest }
    }

    /// A batch of client frames.
    ///
    /// # Panics
    /// When there are none, or more than [`limits::BATCH_FRAMES`].
    #[must_use]
    pub fn requests(time: Time, frames: Vec<Frame>) -> Batch {
        assert!(!frames.is_empty() && frames.len() <= limits::BATCH_FRAMES);
        Self::assemble(BatchKind::Requests, time, frames)
    }

    /// The null batch.
    #[must_use]
    pub fn null() -> Batch {
        Self::assemble(BatchKind::Null, Time(0), Vec::new())
    }

    /// A batch that only moves time.
    #[must_use]
    pub fn tick(time: Time) -> Batch {
        Self::assemble(BatchKind::Tick, time, Vec::new())
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> BatchKind {
        self.kind
    }

    /// The proposer's time; execution uses the larger of this and the batches' before.
    #[must_use]
    pub fn time(&self) -> Time {
        self.time
    }

    /// The frames, in the order of execution.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The encoded batch.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// BLAKE3 of the encoded batch.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Encode for Batch {
    fn encode(&self, out: &mut Vec<u8>) {
        crate::codec::encode_bytes(&self.raw, out);
    }
}

impl Decode for Batch {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let raw = reader.bytes("batch", limits::BATCH_BYTES)?;
        let digest = Digest::of(&raw);
        let mut inner = Reader::new(raw.clone());
        let kind = match u8::decode(&mut inner)? {
            0 => BatchKind::Requests,
            1 => BatchKind::Null,
            2 => BatchKind::Tick,
            tag => return Err(DecodeError::UnknownTag(tag)),
        };
        let time = Time::decode(&mut inner)?;
        let frames: Vec<Frame> = inner.list("frames of a batch", limits::BATCH_FRAMES, 124)?;
        inner.finish()?;
        let canonical = match kind {
            BatchKind::Requests => !frames.is_empty(),
            BatchKind::Null => frames.is_empty() && time == Time(0),
            BatchKind::Tick => frames.is_empty() && time > Time(0),
        };
        if !canonical {
            return Err(DecodeError::NotCanonical("batch does not fit its kind"));
        }
        Ok(Batch { kind, time, frames, raw, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_one_form_each() {
        for batch in [Batch::null(), Batch::tick(Time(5))] {
            assert_eq!(Batch::from_bytes(batch.to_bytes()).unwrap(), batch);
        }
        let mut raw = Vec::new();
        crate::codec::encode_bytes(&[1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut raw);
        assert!(Batch::from_bytes(raw.into()).is_err());
        let mut raw = Vec::new();
        crate::codec::encode_bytes(&[0; 13], &mut raw);
        assert!(Batch::from_bytes(raw.into()).is_err());
    }
}
