//! The codec of a record in a group: its frame, a head and then the encoded record.
//!
//! | format | of a group that begins with | head | the checksum covers |
//! |---|---|---|---|
//! | 1 | `PDGROUP1` | length 4, checksum 16 | the record |
//! | 2 | `PDGROUP2` | length 4, batch 4, checksum 16 | the first 8 bytes, the record up to its batch, and the digest of the batch |
//!
//! The batch is the last field of the records that have one; `batch` is its length, 0 without one. Its
//! digest is what the group agrees on, so it is there when the record is written, and the batch,
//! which is nearly all of what is logged, is not hashed for the log again. The digest needs no key, the
//! checksum over it has one: nobody else can make a frame that verifies ([`crate::checksum`]).

use crate::checksum::{FileKey, SUM_BYTES, Sum, u32_at};
use perdura_protocol::{Digest, Record};

/// A format of frames; all frames of a group have one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameFormat {
    One,
    Two,
}

impl FrameFormat {
    /// That of groups that are written now.
    pub(crate) const NEWEST: FrameFormat = FrameFormat::Two;

    /// How a group of this format begins.
    pub(crate) fn magic(self) -> &'static [u8; 8] {
        match self {
            FrameFormat::One => b"PDGROUP1",
            FrameFormat::Two => b"PDGROUP2",
        }
    }

    /// That of the group which begins in this way.
    pub(crate) fn of(magic: &[u8]) -> Option<FrameFormat> {
        [FrameFormat::One, FrameFormat::Two].into_iter().find(|format| format.magic() == magic)
    }

    /// Bytes before each record.
    pub(crate) fn head_bytes(self) -> usize {
        self.sum_offset() + SUM_BYTES
    }

    fn sum_offset(self) -> usize {
        match self {
            FrameFormat::One => 4,
            FrameFormat::Two => 8,
        }
    }

    /// Fills in the head of a frame in which `record` stands.
    pub(crate) fn seal(self, key: &FileKey, frame: &mut [u8], record: &Record) {
        // A record is bounded by a batch and two certificates.
        let length = (frame.len() - self.head_bytes()) as u32;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        let batch = record.batch().map(|(_, batch)| batch);
        if self == FrameFormat::Two {
            let bytes = batch.map_or(0, |batch| batch.raw().len() as u32);
            frame[4..8].copy_from_slice(&bytes.to_le_bytes());
        }
        self.put_sum(key, frame, batch.map(|batch| batch.digest()));
    }

    /// Gives a frame the checksum of what stands in it, if its lengths are those of parts of it.
    pub(crate) fn reseal(self, key: &FileKey, frame: &mut [u8]) {
        if let Some((_, batch)) = self.parts(frame) {
            let digest = digest_of(batch);
            self.put_sum(key, frame, digest);
        }
    }

    /// Whether a frame is what was written.
    pub(crate) fn verifies(self, key: &FileKey, frame: &[u8]) -> bool {
        self.parts(frame).is_some_and(|(rest, batch)| {
            let sum = self.sum(key, frame, rest, digest_of(batch));
            frame[self.sum_offset()..self.head_bytes()] == sum
        })
    }

    fn put_sum(self, key: &FileKey, frame: &mut [u8], digest: Option<Digest>) {
        if let Some((rest, _)) = self.parts(frame) {
            let sum = self.sum(key, frame, rest, digest);
            frame[self.sum_offset()..self.head_bytes()].copy_from_slice(&sum);
        }
    }

    fn sum(self, key: &FileKey, frame: &[u8], rest: &[u8], digest: Option<Digest>) -> Sum {
        match self {
            FrameFormat::One => key.sum(rest),
            FrameFormat::Two => {
                let digest = digest.as_ref().map_or(&[][..], |digest| &digest.0);
                key.sum_of(&[&frame[..8], rest, digest])
            }
        }
    }

    /// The record without what its digest stands for, and that.
    fn parts(self, frame: &[u8]) -> Option<(&[u8], &[u8])> {
        let (head, record) = frame.split_at_checked(self.head_bytes())?;
        if u32_at(head, 0) as usize != record.len() {
            return None;
        }
        let batch = match self {
            FrameFormat::One => 0,
            FrameFormat::Two => u32_at(head, 4) as usize,
        };
        record.split_at_checked(record.len().checked_sub(batch)?)
    }
}

fn digest_of(batch: &[u8]) -> Option<Digest> {
    (!batch.is_empty()).then(|| Digest::of(batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{Batch, Encode, Slot, Time, View};

    const KEY: FileKey = FileKey([3; 32]);

    fn records() -> [Record; 2] {
        let (view, slot, batch) = (View(7), Slot(9), Batch::tick(Time(5)));
        [Record::View(view), Record::Vote { view, slot, batch, writes: Default::default() }]
    }

    fn frame(format: FrameFormat, record: &Record) -> Vec<u8> {
        let mut frame = vec![0; format.head_bytes()];
        record.encode(&mut frame);
        format.seal(&KEY, &mut frame, record);
        frame
    }

    #[test]
    fn every_byte_counts_and_so_does_the_key() {
        for format in [FrameFormat::One, FrameFormat::Two] {
            for record in records() {
                let whole = frame(format, &record);
                assert!(format.verifies(&KEY, &whole));
                assert!(!format.verifies(&FileKey([4; 32]), &whole));
                for at in 0..whole.len() {
                    let mut rotten = whole.clone();
                    rotten[at] ^= 1;
                    assert!(!format.verifies(&KEY, &rotten), "{format:?}, byte {at}");
                    assert!(!format.verifies(&KEY, &whole[..at]), "{format:?}, {at} bytes");
                    format.reseal(&KEY, &mut rotten);
                    // Other lengths are not those of the frame's parts, or are of other parts.
                    assert!(at < 8 || format.verifies(&KEY, &rotten), "{format:?}, byte {at}");
                }
            }
        }
    }

    /// The digest in the checksum is that of the bytes that stand there, whoever computes it.
    #[test]
    fn what_is_sealed_by_the_digest_at_hand_is_what_is_sealed_by_the_bytes() {
        for format in [FrameFormat::One, FrameFormat::Two] {
            for record in records() {
                let sealed = frame(format, &record);
                let mut again = sealed.clone();
                again[format.sum_offset()..format.head_bytes()].fill(0);
                format.reseal(&KEY, &mut again);
                assert_eq!(again, sealed, "{format:?}");
            }
        }
    }

    #[test]
    fn a_format_is_known_by_its_magic() {
        for format in [FrameFormat::One, FrameFormat::Two] {
            assert_eq!(FrameFormat::of(format.magic()), Some(format));
        }
        assert_eq!(FrameFormat::of(b"PDGROUP3"), None);
    }
}
