//! How full a store, or a partition of one, is: a question that replicas answer from the state as it is there, and that is never
//! ordered. As a command in order it is none, to this program as to those that do not know it: what is agreed on does not depend on which
//! of them a replica runs.
//!
//! The question is one byte, its answer the same byte and another one. It is told in percent, so that replicas which have
//! executed a few commands more or less answer alike.

use crate::map::SegmentMap;
use bytes::Bytes;
use perdura_execution::StateLimit;
use perdura_protocol::{Decode, DecodeError, Encode, Reader};

/// No command begins so: those of every store are below 16, those of partitions follow, questions are from 128 on.
const TAG: u8 = 128;

/// How full a store is. At 100 % what would make it larger is refused; deletes never are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fullness {
    percent: u8,
}

impl Fullness {
    /// What asks for it, to be sent as a read that is not ordered. Where it is ordered all the same (replicas did not answer alike), or a
    /// program does not know it, it is refused.
    #[must_use]
    pub fn question() -> Bytes {
        Bytes::from_static(&[TAG])
    }

    /// Parts of a hundred of the store's limit, 0 to 100, rounded down: of its bytes or of its segments, whichever is more. What is reserved for
    /// transactions that were voted for counts as taken, and so does what is kept of them.
    #[must_use]
    pub fn percent(self) -> u8 {
        self.percent
    }

    pub(crate) fn is_asked_by(command: &[u8]) -> bool {
        command == [TAG]
    }

    /// Of entries that may take all of `limit` but for what is reserved, which leaves `room`.
    pub(crate) fn of(entries: &SegmentMap, room: StateLimit, limit: StateLimit) -> Fullness {
        let bytes = taken(entries.bytes(), room.bytes, limit.bytes);
        let segments = [entries.segments(), room.segments, limit.segments];
        let [taken_segments, room, limit] = segments.map(|count| count as u64);
        Fullness { percent: bytes.max(taken(taken_segments, room, limit)) }
    }
}

/// Percent of a limit that is taken by what is there, and by what leaves only this room.
fn taken(there: u64, room: u64, limit: u64) -> u8 {
    let taken = u128::from(limit.saturating_sub(room)) + u128::from(there);
    let percent = (taken * 100).checked_div(u128::from(limit)).unwrap_or(100);
    percent.min(100) as u8
}

impl Encode for Fullness {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[TAG, self.percent]);
    }
}

impl Decode for Fullness {
    fn decode(reader: &mut Reader) -> Result<Fullness, DecodeError> {
        match u8::decode(reader)? {
            TAG => {}
            tag => return Err(DecodeError::UnknownTag(tag)),
        }
        match u8::decode(reader)? {
            percent @ 0..=100 => Ok(Fullness { percent }),
            _ => Err(DecodeError::NotCanonical("percent")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_rounded_down_and_bounded() {
        assert_eq!(taken(0, 1000, 1000), 0);
        assert_eq!(taken(9, 1000, 1000), 0);
        assert_eq!(taken(899, 1000, 1000), 89);
        assert_eq!(taken(900, 1000, 1000), 90);
        assert_eq!(taken(1000, 1000, 1000), 100);
        // What is reserved.
        assert_eq!(taken(400, 500, 1000), 90);
        assert_eq!(taken(0, 0, 1000), 100);
        // Beyond a limit, and without one.
        assert_eq!(taken(2000, 1000, 1000), 100);
        assert_eq!(taken(0, 0, 0), 100);
        assert_eq!(taken(u64::MAX, 0, u64::MAX), 100);
        assert_eq!(taken(1 << 40, u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn an_answer_goes_both_ways_and_nothing_else_does() {
        for percent in 0..=100 {
            let fullness = Fullness { percent };
            assert_eq!(Fullness::from_bytes(fullness.to_bytes()), Ok(fullness));
        }
        for other in [&[128][..], &[128, 101], &[127, 1], &[128, 1, 1], &[]] {
            assert!(Fullness::from_bytes(Bytes::copy_from_slice(other)).is_err(), "{other:?}");
        }
    }
}
