//! Where a partition's transactions, fences, caps and members stand in its state: entries of an ordered map of their own, beside the
//! store's, in segments like those.
//!
//! | key | value |
//! |---|---|
//! | `r`, identifier | a transaction: its intent, since when, the vote, the outcome |
//! | `h`, identifier, number | a piece of what it holds, while it is pending |
//! | `f`, session | how far it is fenced off |
//! | `c`, client key | its cap, where it is not the usual one |
//! | `m`, partition | the newest members known, and the administrator's word for it |
//! | `u`, partition | when it was heard of |
//! | `e` | since before when what is pending has expired |
//! | `l`, client key | its floor, from version 2 on |
//! | `x`, partition | it has ended, from version 3 on |
//! | `k`, place, number | a mark, from version 3 on |
//! | `v` | how many marks were left so far, where there are some |
//! | `b`, client key | when it is forgotten what its marks kept others waiting for nothing, from version 3 on |
//! | `s`, session | behind which of its transactions the next command to forget begins, from version 2 on |

use super::caps::Cap;
use super::certificate::SignedMembers;
use super::intent::{Intent, TransactionId};
use super::limits::HELD_PIECE_BYTES;
use super::marks::{Change, Mark, Marks, Number};
use super::records::{Holdings, Record, Stop};
use crate::limits::ENTRY_OVERHEAD_BYTES;
use crate::map::SegmentMap;
use bytes::Bytes;
use perdura_execution::RestoreError;
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, PartitionId, PublicKey, Reader, SessionId, Time,
};
use std::collections::{BTreeMap, BTreeSet};

/// The entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book(pub(crate) SegmentMap);

/// What an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Record(TransactionId),
    Held(TransactionId, u32),
    Fence(SessionId),
    Cap(PublicKey),
    Members(PartitionId),
    Heard(PartitionId),
    Expired,
    Floor(PublicKey),
    Stop(SessionId),
    Ended(PartitionId),
    Mark(Number),
    Count,
    Waste(PublicKey),
}

impl Key {
    fn bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(41);
        match self {
            Key::Record(id) => {
                out.push(b'r');
                id.encode(&mut out);
            }
            Key::Held(id, piece) => {
                out.push(b'h');
                id.encode(&mut out);
                out.extend_from_slice(&piece.to_be_bytes());
            }
            Key::Fence(session) | Key::Stop(session) => {
                out.push(if matches!(self, Key::Fence(_)) { b'f' } else { b's' });
                session.client.encode(&mut out);
                out.extend_from_slice(&session.nonce.to_be_bytes());
            }
            Key::Cap(client) => {
                out.push(b'c');
                client.encode(&mut out);
            }
            Key::Members(partition) => {
                out.push(b'm');
                out.extend_from_slice(&partition.0.to_be_bytes());
            }
            Key::Heard(partition) => {
                out.push(b'u');
                out.extend_from_slice(&partition.0.to_be_bytes());
            }
            Key::Ended(partition) => {
                out.push(b'x');
                out.extend_from_slice(&partition.0.to_be_bytes());
            }
            Key::Mark(number) => {
                out.push(b'k');
                out.extend_from_slice(&number.0.to_be_bytes());
                out.extend_from_slice(&number.1.to_be_bytes());
            }
            Key::Count => out.push(b'v'),
            Key::Waste(client) => {
                out.push(b'b');
                client.encode(&mut out);
            }
            Key::Expired => out.push(b'e'),
            Key::Floor(client) => {
                out.push(b'l');
                client.encode(&mut out);
            }
        }
        out
    }

    fn read(key: &[u8]) -> Option<Key> {
        let (tag, rest) = key.split_first()?;
        let digest = |bytes: &[u8]| bytes.try_into().ok().map(Digest);
        let partition = |bytes: &[u8]| {
            bytes.try_into().ok().map(|bytes| PartitionId(u16::from_be_bytes(bytes)))
        };
        match *tag {
            b'r' => digest(rest).map(TransactionId).map(Key::Record),
            b'h' => {
                let (id, piece) = rest.split_at_checked(32)?;
                let piece = u32::from_be_bytes(piece.try_into().ok()?);
                digest(id).map(|id| Key::Held(TransactionId(id), piece))
            }
            b'f' | b's' => {
                let (client, nonce) = rest.split_at_checked(32)?;
                let client = PublicKey(client.try_into().ok()?);
                let nonce = u64::from_be_bytes(nonce.try_into().ok()?);
                let session = SessionId { client, nonce };
                Some(if *tag == b'f' { Key::Fence(session) } else { Key::Stop(session) })
            }
            b'c' => rest.try_into().ok().map(PublicKey).map(Key::Cap),
            b'm' => partition(rest).map(Key::Members),
            b'u' => partition(rest).map(Key::Heard),
            b'l' => rest.try_into().ok().map(PublicKey).map(Key::Floor),
            b'x' => partition(rest).map(Key::Ended),
            b'k' => {
                let (place, number) = rest.split_at_checked(8)?;
                let [place, number] =
                    [place, number].map(|one| one.try_into().map(u64::from_be_bytes));
                Some(Key::Mark((place.ok()?, number.ok()?)))
            }
            b'v' => rest.is_empty().then_some(Key::Count),
            b'b' => rest.try_into().ok().map(PublicKey).map(Key::Waste),
            b'e' => rest.is_empty().then_some(Key::Expired),
            _ => None,
        }
    }
}

/// What a record has beside the intent where the vote is to commit, whatever its outcome is: the time, the vote, the outcome.
const RECORD_BESIDE_INTENT: usize = 8 + 1 + 1;

/// What a transaction that is granted adds to the book, bytes: its record, which stays when it ends, and what it holds until then.
pub(crate) fn bytes_added(intent: &Intent, held: Option<&Holdings>) -> u64 {
    let entry = |key: Key, value: usize| key.bytes().len() + value + ENTRY_OVERHEAD_BYTES;
    let id = TransactionId::default();
    let mut bytes = entry(Key::Record(id), intent.to_bytes().len() + RECORD_BESIDE_INTENT);
    if let Some(held) = held {
        let length = held.to_bytes().len();
        bytes += length + length.div_ceil(HELD_PIECE_BYTES) * entry(Key::Held(id, 0), 0);
    }
    bytes as u64
}

impl Book {
    fn put(&mut self, key: Key, value: &impl Encode) {
        self.put_bytes(key, &value.to_bytes());
    }

    fn put_bytes(&mut self, key: Key, value: &[u8]) {
        // Nothing here is refused for lack of room: what is pending and remembered has bounds of its own.
        let put = self.0.put(&key.bytes(), value, u64::MAX);
        assert!(put.is_ok(), "there is no bound");
    }

    fn remove(&mut self, key: Key) {
        self.0.remove(&key.bytes());
    }

    /// A transaction as it is now; what it holds is written once.
    pub(crate) fn put_record(&mut self, id: TransactionId, record: &Record, is_new: bool) {
        self.put(Key::Record(id), record);
        if is_new && let Some(held) = &record.held {
            let bytes = held.to_bytes();
            for (piece, bytes) in (0..).zip(bytes.chunks(HELD_PIECE_BYTES)) {
                self.put_bytes(Key::Held(id, piece), bytes);
            }
        }
    }

    /// It holds nothing any more.
    pub(crate) fn remove_held(&mut self, id: TransactionId) {
        for piece in 0.. {
            if !self.0.remove(&Key::Held(id, piece).bytes()) {
                return;
            }
        }
    }

    pub(crate) fn remove_record(&mut self, id: TransactionId) {
        self.remove(Key::Record(id));
    }

    /// None: there is none any more. The same of the others.
    pub(crate) fn put_fence(&mut self, session: SessionId, below: Option<u64>) {
        match below {
            Some(below) => self.put(Key::Fence(session), &below),
            None => self.remove(Key::Fence(session)),
        }
    }

    pub(crate) fn put_cap(&mut self, client: PublicKey, cap: Option<Cap>) {
        match cap {
            Some(cap) => self.put(Key::Cap(client), &cap),
            None => self.remove(Key::Cap(client)),
        }
    }

    pub(crate) fn put_floor(&mut self, client: PublicKey, floor: u64) {
        self.put(Key::Floor(client), &floor);
    }

    pub(crate) fn put_stop(&mut self, session: SessionId, stop: Option<Stop>) {
        match stop {
            Some((counter, id)) => {
                let mut value = counter.to_bytes().to_vec();
                id.encode(&mut value);
                self.put_bytes(Key::Stop(session), &value);
            }
            None => self.remove(Key::Stop(session)),
        }
    }

    pub(crate) fn put_ended(&mut self, partition: PartitionId) {
        self.put_bytes(Key::Ended(partition), &[]);
    }

    pub(crate) fn put_change_of_marks(&mut self, change: Change) {
        match change {
            Change::Mark(number, Some(mark)) => self.put(Key::Mark(number), &*mark),
            Change::Mark(number, None) => self.remove(Key::Mark(number)),
            Change::Count(0) => self.remove(Key::Count),
            Change::Count(count) => self.put(Key::Count, &count),
            Change::Waste(client, Some(until)) => self.put(Key::Waste(client), &until),
            Change::Waste(client, None) => self.remove(Key::Waste(client)),
        }
    }

    pub(crate) fn put_members(&mut self, newest: &SignedMembers) {
        self.put(Key::Members(newest.members.partition), newest);
    }

    pub(crate) fn put_heard(&mut self, partition: PartitionId, heard: Time) {
        self.put(Key::Heard(partition), &heard);
    }

    pub(crate) fn put_expired(&mut self, before: Time) {
        self.put(Key::Expired, &before);
    }
}

/// All that stands in a book.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub records: BTreeMap<TransactionId, Record>,
    pub fences: BTreeMap<SessionId, u64>,
    pub caps: BTreeMap<PublicKey, Cap>,
    pub members: Vec<SignedMembers>,
    pub heard: BTreeMap<PartitionId, Time>,
    pub expired: Time,
    pub floors: BTreeMap<PublicKey, u64>,
    pub stops: BTreeMap<SessionId, Stop>,
    pub ended: BTreeSet<PartitionId>,
    pub marks: Marks,
}

impl Book {
    /// Reads all of it.
    pub(crate) fn contents(&self) -> Result<Contents, RestoreError> {
        const CONTRADICTION: RestoreError =
            RestoreError::Contradiction("transactions of the partition");
        let malformed = |_: DecodeError| CONTRADICTION;
        let mut contents = Contents::default();
        let mut held: BTreeMap<TransactionId, Vec<u8>> = BTreeMap::new();
        let mut next_piece = (None, 0);
        for (key, value) in self.0.range(&[], None) {
            let bytes = Bytes::copy_from_slice(value);
            match Key::read(key).ok_or(CONTRADICTION)? {
                Key::Record(id) => {
                    let record = Record::from_bytes(bytes).map_err(malformed)?;
                    if record.intent.id() != id {
                        return Err(CONTRADICTION);
                    }
                    contents.records.insert(id, record);
                }
                Key::Held(id, piece) => {
                    let expected = if next_piece.0 == Some(id) { next_piece.1 } else { 0 };
                    if piece != expected {
                        return Err(CONTRADICTION);
                    }
                    next_piece = (Some(id), piece + 1);
                    held.entry(id).or_default().extend_from_slice(value);
                }
                Key::Fence(session) => {
                    contents.fences.insert(session, u64::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Cap(client) => {
                    contents.caps.insert(client, Cap::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Members(partition) => {
                    let newest = SignedMembers::from_bytes(bytes).map_err(malformed)?;
                    if newest.members.partition != partition {
                        return Err(CONTRADICTION);
                    }
                    contents.members.push(newest);
                }
                Key::Floor(client) => {
                    contents.floors.insert(client, u64::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Stop(session) => {
                    let mut reader = Reader::new(bytes);
                    let stop = (
                        u64::decode(&mut reader).map_err(malformed)?,
                        TransactionId::decode(&mut reader).map_err(malformed)?,
                    );
                    reader.finish().map_err(malformed)?;
                    contents.stops.insert(session, stop);
                }
                Key::Ended(partition) => drop(contents.ended.insert(partition)),
                Key::Mark(number) => {
                    contents.marks.insert(number, Mark::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Count => {
                    contents.marks.put_count(u64::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Waste(client) => {
                    contents.marks.put_waste(client, Time::from_bytes(bytes).map_err(malformed)?);
                }
                Key::Expired => contents.expired = Time::from_bytes(bytes).map_err(malformed)?,
                Key::Heard(partition) => {
                    contents.heard.insert(partition, Time::from_bytes(bytes).map_err(malformed)?);
                }
            }
        }
        for (id, bytes) in held {
            let record = contents.records.get_mut(&id).ok_or(CONTRADICTION)?;
            record.held = Some(Holdings::from_bytes(bytes.into()).map_err(malformed)?);
        }
        let fits = |record: &Record| record.is_pending() == record.held.is_some();
        if contents.records.values().all(fits) { Ok(contents) } else { Err(CONTRADICTION) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{Participant, Vote};
    use crate::plan::Interval;
    use perdura_protocol::ClusterId;

    #[test]
    fn what_a_transaction_adds_is_known_before() {
        for (participants, values) in [(2, 0), (3, 1), (16, 5), (64, 12)] {
            let participant = |index| Participant {
                partition: PartitionId(index),
                nonce: 7,
                part: Digest([index as u8; 32]),
            };
            let intent = Intent {
                cluster: ClusterId([1; 16]),
                map: 1,
                client: PublicKey([2; 32]),
                counter: 9,
                read_only: values == 0,
                participants: (0..participants).map(participant).collect(),
            };
            let key = |number: usize| Bytes::from(format!("key-{number}").into_bytes());
            let value = |number| (key(number), Some(Bytes::from(vec![7; number * 20_000])));
            let mut held =
                Holdings { touched: Default::default(), writes: BTreeMap::new(), growth: 5 };
            held.touched.intervals.push(Interval { start: key(1), end: None });
            held.touched.reads.insert(key(3));
            held.writes = (0..values).map(value).collect();
            let (id, added) = (intent.id(), bytes_added(&intent, Some(&held)));
            let (vote, since) = (Vote::Commit, Time(3));
            let left = bytes_added(&intent, None);
            let mut record = Record { intent, since, vote, outcome: None, held: Some(held) };
            let mut book = Book::default();
            book.put_record(id, &record, true);
            assert_eq!(book.0.bytes(), added);
            (record.outcome, record.held) = (Some(true), None);
            book.remove_held(id);
            book.put_record(id, &record, false);
            assert_eq!(book.0.bytes(), left);
        }
    }
}
