//! The codec of a group: what one append writes.
//!
//! A group starts at a multiple of 4 KiB and is padded with zeros to one, so that no flush
//! rewrites a sector of an earlier group. Header, 128 bytes, little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `PDGROUP2`; `PDGROUP1` with frames of format 1 |
//! | 8 | 16 | checksum of bytes 24..128 |
//! | 24 | 16 | checksum of the records' checksums |
//! | 40 | 8 | use number of the file |
//! | 48 | 8 | offset of the group in the file |
//! | 56 | 8 | group number: 1, 2, ... over the life of the log |
//! | 64 | 4 | bytes of records, framing included |
//! | 68 | 4 | number of records |
//! | 72 | 4 | how many of them, from the first, repeat earlier ones |
//! | 76 | 4 | zero |
//! | 80 | 48 | [`Position`] before (votes, slots, view), then after the group: what recovery must know of groups that rotted |
//!
//! Then each record in its frame (`frame`). Checksums are keyed for one use of one file
//! ([`crate::checksum`]), the header's covers the offset: a group verifies in its place only.

use super::frame::FrameFormat;
use crate::checksum::{FileKey, RunningSum, SUM_BYTES, Sum, array_at, u32_at, u64_at};
use crate::page_buffer::PageBuffer;
use bytes::Bytes;
use perdura_protocol::{Decode, Record, Slot, View, seeded};

/// Groups start at multiples of this.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Bytes of a group's header.
pub(crate) const HEADER_BYTES: usize = 128;

/// Most bytes of records in one group. What a keeper may have queued is bounded far below.
pub(crate) const GROUP_BYTES: usize = 1 << 30;

/// Whether a group may bear this number: they start at 1, and no log lives to the half of a `u64`. So
/// the next number, and the one before, are numbers too.
pub(crate) fn is_number(number: u64) -> bool {
    (1..=u64::MAX / 2).contains(&number)
}

/// The least multiple of 4 KiB that is not below `bytes`.
pub(crate) fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// What the log has promised up to some group, over its whole life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The highest slot voted for.
    pub votes: Slot,
    /// The highest slot that any record speaks of.
    pub slots: Slot,
    /// The highest view entered or voted in.
    pub view: View,
}

impl Position {
    /// Takes a record into account.
    pub(crate) fn advance(&mut self, record: &Record) {
        self.votes = self.votes.max(record.voted_slot().unwrap_or_default());
        self.slots = self.slots.max(record.slot().unwrap_or_default());
        if let Record::View(view) | Record::Vote { view, .. } = record {
            self.view = self.view.max(*view);
        }
    }

    fn write(self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.votes.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.slots.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.view.0.to_le_bytes());
    }

    fn read(bytes: &[u8], offset: usize) -> Position {
        Position {
            votes: Slot(u64_at(bytes, offset)),
            slots: Slot(u64_at(bytes, offset + 8)),
            view: View(u64_at(bytes, offset + 16)),
        }
    }
}

/// A group's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupHeader {
    pub(crate) format: FrameFormat,
    pub(crate) records_sum: Sum,
    pub(crate) use_number: u64,
    pub(crate) offset: u64,
    pub(crate) number: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) records: u32,
    pub(crate) carried: u32,
    pub(crate) before: Position,
    pub(crate) after: Position,
}

impl GroupHeader {
    pub(crate) fn encode(&self, key: &FileKey) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(self.format.magic());
        out[24..40].copy_from_slice(&self.records_sum);
        out[40..48].copy_from_slice(&self.use_number.to_le_bytes());
        out[48..56].copy_from_slice(&self.offset.to_le_bytes());
        out[56..64].copy_from_slice(&self.number.to_le_bytes());
        out[64..68].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[68..72].copy_from_slice(&self.records.to_le_bytes());
        out[72..76].copy_from_slice(&self.carried.to_le_bytes());
        self.before.write(&mut out[80..104]);
        self.after.write(&mut out[104..128]);
        let sum = key.sum(&out[24..]);
        out[8..24].copy_from_slice(&sum);
        out
    }

    /// The header in `bytes` (128 of them) if it is one written there in this use of this file.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        key: &FileKey,
        use_number: u64,
        offset: u64,
    ) -> Option<GroupHeader> {
        let format = FrameFormat::of(&bytes[..8])?;
        if array_at::<SUM_BYTES>(bytes, 8) != key.sum(&bytes[24..]) {
            return None;
        }
        let header = GroupHeader {
            format,
            records_sum: array_at(bytes, 24),
            use_number: u64_at(bytes, 40),
            offset: u64_at(bytes, 48),
            number: u64_at(bytes, 56),
            payload_bytes: u32_at(bytes, 64),
            records: u32_at(bytes, 68),
            carried: u32_at(bytes, 72),
            before: Position::read(bytes, 80),
            after: Position::read(bytes, 104),
        };
        let this_use = header.use_number == use_number || seeded!(UseNotInChecksum);
        (this_use && header.offset == offset && is_number(header.number)).then_some(header)
    }

    /// Offset of the first byte after the group and its padding.
    pub(crate) fn end(&self) -> u64 {
        self.offset + round_up(HEADER_BYTES as u64 + u64::from(self.payload_bytes))
    }
}

/// Builds groups in one buffer that is used again and again.
pub(crate) struct GroupBuilder {
    format: FrameFormat,
    buffer: PageBuffer,
    sums: RunningSum,
    // Offset in the buffer and length of each record's frame.
    frames: Vec<(usize, usize)>,
}

impl GroupBuilder {
    pub(crate) fn new(key: &FileKey) -> GroupBuilder {
        GroupBuilder {
            format: FrameFormat::NEWEST,
            buffer: PageBuffer::new(),
            sums: key.running(),
            frames: Vec::new(),
        }
    }

    /// Begins a group under `key`.
    pub(crate) fn begin(&mut self, key: &FileKey, format: FrameFormat) {
        self.format = format;
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES);
        self.sums.restart(key);
        self.frames.clear();
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, key: &FileKey, record: &Record) {
        let start = self.buffer.len();
        let head_bytes = self.format.head_bytes();
        self.buffer.resize(start + head_bytes);
        self.buffer.append(record);
        let frame = &mut self.buffer.as_mut_slice()[start..];
        self.format.seal(key, frame, record);
        self.sums.update(&frame[..head_bytes]);
        self.frames.push((start, frame.len()));
    }

    /// Bytes of records so far, framing included.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.buffer.len() - HEADER_BYTES
    }

    /// Bytes that the group takes in the file.
    pub(crate) fn size(&self) -> u64 {
        round_up(self.buffer.len() as u64)
    }

    /// Offset from the start of the group, and length, of each record's frame, in order.
    pub(crate) fn frames(&self) -> &[(usize, usize)] {
        &self.frames
    }

    /// Completes the group: what is to be written at `header.offset`, at a multiple of 4 KiB in
    /// memory too. Fills in what `header` says of the payload.
    pub(crate) fn finish(&mut self, key: &FileKey, mut header: GroupHeader) -> &[u8] {
        header.format = self.format;
        header.payload_bytes = self.payload_bytes() as u32;
        header.records = self.frames.len() as u32;
        header.records_sum = self.sums.finish();
        self.buffer.as_mut_slice()[..HEADER_BYTES].copy_from_slice(&header.encode(key));
        self.buffer.resize(self.size() as usize);
        self.buffer.aligned()
    }
}

/// Why the records of a group are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadRecords {
    /// They do not verify: torn or rotten.
    Checksum,
    /// The record at this offset from the group's start verifies and does not decode: written by
    /// a program that this one does not understand.
    Undecodable(usize),
}

/// A record with the place of its frame from the group's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlacedRecord {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) record: Record,
}

/// The records of a group, verified; batches share `payload`'s memory.
pub(crate) fn decode_records(
    key: &FileKey,
    header: &GroupHeader,
    payload: &Bytes,
) -> Result<Vec<PlacedRecord>, BadRecords> {
    let head_bytes = header.format.head_bytes();
    let mut sums = key.running();
    let mut frames = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let head = payload.get(at..at + head_bytes).ok_or(BadRecords::Checksum)?;
        sums.update(head);
        let end = (at + head_bytes).saturating_add(u32_at(head, 0) as usize);
        let frame = payload.get(at..end).ok_or(BadRecords::Checksum)?;
        if !header.format.verifies(key, frame) {
            return Err(BadRecords::Checksum);
        }
        frames.push((at, end));
        at = end;
    }
    if sums.finish() != header.records_sum || frames.len() != header.records as usize {
        return Err(BadRecords::Checksum);
    }
    let decode = |(start, end)| {
        let offset = HEADER_BYTES + start;
        let record = Record::from_bytes(payload.slice(start + head_bytes..end))
            .map_err(|_| BadRecords::Undecodable(offset))?;
        Ok(PlacedRecord { offset, bytes: end - start, record })
    };
    frames.into_iter().map(decode).collect()
}

/// The record in `frame`, of whatever format, if it verifies.
pub(crate) fn decode_frame(key: &FileKey, frame: Bytes) -> Option<Record> {
    let formats = [FrameFormat::Two, FrameFormat::One];
    let format = formats.into_iter().find(|format| format.verifies(key, &frame))?;
    Record::from_bytes(frame.slice(format.head_bytes()..)).ok()
}

#[cfg(test)]
pub(crate) mod tests;
