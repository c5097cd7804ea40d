//! The codec, with the bytes in hand.

use super::super::file::GROUPS_OFFSET;
use super::*;
use perdura_protocol::{Batch, Time};

const KEY: FileKey = FileKey([3; 32]);
pub(crate) const USE: u64 = 5;

fn position(number: u64) -> Position {
    Position { votes: Slot(number), slots: Slot(number + 1), view: View(number + 2) }
}

pub(crate) fn header(number: u64) -> GroupHeader {
    GroupHeader {
        format: FrameFormat::NEWEST,
        records_sum: [0; SUM_BYTES],
        use_number: USE,
        offset: GROUPS_OFFSET,
        number,
        payload_bytes: 0,
        records: 0,
        carried: 0,
        before: position(10),
        after: position(20),
    }
}

fn record(number: u64) -> Record {
    let (slot, batch) = (Slot(number), Batch::tick(Time(number)));
    Record::Vote { view: View(1), slot, batch, writes: Default::default() }
}

/// A group of these records as it stands in the file.
fn group(records: &[Record]) -> Vec<u8> {
    let mut builder = GroupBuilder::new(&KEY);
    builder.begin(&KEY, FrameFormat::NEWEST);
    records.iter().for_each(|record| builder.push(&KEY, record));
    builder.finish(&KEY, header(1)).to_vec()
}

fn decode(bytes: &[u8]) -> Option<GroupHeader> {
    GroupHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap(), &KEY, USE, GROUPS_OFFSET)
}

fn records(bytes: &[u8], payload: Vec<u8>) -> Result<Vec<PlacedRecord>, BadRecords> {
    decode_records(&KEY, &decode(bytes).unwrap(), &payload.into())
}

fn payload(bytes: &[u8]) -> Vec<u8> {
    let length = decode(bytes).unwrap().payload_bytes as usize;
    bytes[HEADER_BYTES..HEADER_BYTES + length].to_vec()
}

#[test]
fn a_header_is_read_in_its_place_only() {
    let bytes = header(7).encode(&KEY);
    assert_eq!(decode(&bytes), Some(header(7)));
    assert_eq!(GroupHeader::decode(&bytes, &KEY, USE + 1, GROUPS_OFFSET), None);
    assert_eq!(GroupHeader::decode(&bytes, &KEY, USE, GROUPS_OFFSET + PAGE_BYTES), None);
    assert_eq!(GroupHeader::decode(&bytes, &FileKey([4; 32]), USE, GROUPS_OFFSET), None);
    for offset in 0..HEADER_BYTES {
        let mut rotten = bytes;
        rotten[offset] ^= 4;
        assert_eq!(decode(&rotten), None, "{offset}");
    }
}

#[test]
fn numbers_have_a_number_before_and_after() {
    for number in [1, 2, u64::MAX / 2] {
        assert!(decode(&header(number).encode(&KEY)).is_some(), "{number}");
    }
    for number in [0, u64::MAX / 2 + 1, u64::MAX] {
        assert_eq!(decode(&header(number).encode(&KEY)), None, "{number}");
    }
}

#[test]
fn records_come_back_with_their_places() {
    let originals = [record(1), Record::View(View(3)), record(2)];
    let bytes = group(&originals);
    let header = decode(&bytes).unwrap();
    assert_eq!((header.records, header.end()), (3, GROUPS_OFFSET + bytes.len() as u64));
    let found = records(&bytes, payload(&bytes)).unwrap();
    for (placed, original) in found.iter().zip(&originals) {
        assert_eq!(placed.record, *original);
        let frame = bytes[placed.offset..placed.offset + placed.bytes].to_vec();
        assert_eq!(decode_frame(&KEY, frame.into()), Some(original.clone()));
    }
    assert_eq!(
        found.last().map(|last| last.offset + last.bytes - HEADER_BYTES),
        Some(payload(&bytes).len())
    );
}

/// Each record verifies by itself; that they are these, all of them, in this order, is checked too.
#[test]
fn records_in_another_order_or_number_are_not_the_groups() {
    let bytes = group(&[record(1), record(2)]);
    let whole = payload(&bytes);
    let half = whole.len() / 2;
    let swapped = [&whole[half..], &whole[..half]].concat();
    assert_eq!(records(&bytes, swapped), Err(BadRecords::Checksum));
    assert_eq!(records(&bytes, whole[..half].to_vec()), Err(BadRecords::Checksum));
    assert_eq!(records(&bytes, [&whole[..], &whole[half..]].concat()), Err(BadRecords::Checksum));
    for offset in 0..whole.len() {
        let mut rotten = whole.clone();
        rotten[offset] ^= 1;
        assert_eq!(records(&bytes, rotten), Err(BadRecords::Checksum), "{offset}");
        assert_eq!(records(&bytes, whole[..offset].to_vec()), Err(BadRecords::Checksum));
    }
}

/// A group whose second record verifies, and is none that this program knows.
pub(crate) fn undecodable(key: &FileKey, header: GroupHeader) -> Vec<u8> {
    let mut builder = GroupBuilder::new(key);
    builder.begin(key, FrameFormat::NEWEST);
    builder.push(key, &record(1));
    builder.push(key, &record(2));
    let head_bytes = FrameFormat::NEWEST.head_bytes();
    let (start, length) = builder.frames[1];
    let buffer = builder.buffer.as_mut_slice();
    buffer[start + head_bytes..start + length].fill(0xff);
    FrameFormat::NEWEST.reseal(key, &mut buffer[start..start + length]);
    builder.sums.restart(key);
    for (start, _) in builder.frames.clone() {
        builder.sums.update(&buffer[start..start + head_bytes]);
    }
    builder.finish(key, header).to_vec()
}

#[test]
fn a_record_that_verifies_and_does_not_decode_is_named() {
    let bytes = undecodable(&KEY, header(1));
    let second = HEADER_BYTES + payload(&bytes).len() / 2;
    assert_eq!(records(&bytes, payload(&bytes)), Err(BadRecords::Undecodable(second)));
}

#[test]
fn a_frame_is_read_whole_or_not_at_all() {
    let bytes = group(&[record(1)]);
    let frame = payload(&bytes);
    assert_eq!(decode_frame(&KEY, frame.clone().into()), Some(record(1)));
    for length in 0..frame.len() {
        assert_eq!(decode_frame(&KEY, frame[..length].to_vec().into()), None, "{length}");
    }
    let longer = [&frame[..], &[0]].concat();
    assert_eq!(decode_frame(&KEY, longer.into()), None);
    for offset in 0..frame.len() {
        let mut rotten = frame.clone();
        rotten[offset] ^= 1;
        assert_eq!(decode_frame(&KEY, rotten.into()), None, "{offset}");
    }
}
