use super::*;

use super::keys::{KEY_BYTES, KEY_RECORDS};
use crate::identity::Identity;
use perdura_protocol::{Scheme, SecretKey};
use std::sync::OnceLock;

/// A moment at which nothing is due.
fn now() -> Instant {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    *BEGUN.get_or_init(Instant::now)
}

fn pair() -> (Sealer, Opener) {
    super::pair().unwrap()
}

fn wire(sealer: &mut Sealer, messages: &[Bytes]) -> Vec<u8> {
    let queue: VecDeque<Bytes> = messages.iter().cloned().collect();
    let bytes: usize = queue.iter().map(|one| LENGTH_BYTES + one.len()).sum();
    assert_eq!(sealer.seal(&queue, 0, bytes, usize::MAX, now()).unwrap(), bytes);
    let out = sealer.pending().to_vec();
    sealer.advance(out.len(), 0);
    out
}

fn bounds(buffer_bytes: usize) -> Bounds {
    Bounds { receive_bytes: 1 << 24, buffer_bytes, ..Bounds::CLIENT_AT_REPLICA }
}

fn feed(opener: &mut Opener, mut bytes: &[u8], usual: usize) -> Result<Vec<Bytes>, String> {
    let mut messages = Vec::new();
    let bounds = bounds(usual);
    while !bytes.is_empty() {
        let room = opener.room(1, &bounds);
        let count = (room.capacity() - room.len()).min(bytes.len());
        room.extend_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        opener.open()?;
        while let Some(one) = opener.take_message(&bounds).map_err(|(_, text)| text)? {
            messages.push(one);
        }
    }
    Ok(messages)
}

fn messages(sizes: &[usize]) -> Vec<Bytes> {
    let bytes = |(index, size): (usize, &usize)| {
        Bytes::from((0..*size).map(|at| (at * 7 + index) as u8).collect::<Vec<u8>>())
    };
    sizes.iter().enumerate().map(bytes).collect()
}

#[test]
fn any_sizes_in_any_pieces_come_out_as_they_went_in() {
    let sizes = [1, 4096, 4097, 3, 70_000, 65_532, 65_536, 1, 1_500_000, 200, 9000];
    let sent = messages(&sizes);
    let ciphers = [&AES_128_GCM, &CHACHA20_POLY1305];
    for (usual, algorithm) in
        [16, 5000, 128 * 1024].into_iter().flat_map(|usual| ciphers.map(|one| (usual, one)))
    {
        for step in [1, 1000, 70_000, usize::MAX] {
            // A byte at a time is slow.
            let sent = if step == 1 { &sent[..4] } else { &sent[..] };
            let (mut sealer, mut opener) = pair_of(algorithm).unwrap();
            for _ in 0..2 {
                let wire = wire(&mut sealer, sent);
                let mut received = Vec::new();
                for piece in wire.chunks(step.min(wire.len())) {
                    received.extend(feed(&mut opener, piece, usual).unwrap());
                }
                assert!(received == sent, "{usual} {step}");
                assert_eq!(opener.held_bytes(), 0);
                let kept = opener.buffer.capacity();
                assert!(kept <= usual, "{kept} {usual} {step}");
            }
        }
    }
}

#[test]
fn a_message_is_sealed_in_parts_where_little_is_wanted() {
    let (mut sealer, mut opener) = pair();
    let sent = messages(&[200_000, 10, 100]);
    let mut queue: VecDeque<Bytes> = sent.iter().cloned().collect();
    let (mut front, mut received) = (0, Vec::new());
    while !queue.is_empty() {
        front += sealer.seal(&queue, front, 0, 1, now()).unwrap();
        while let Some(first) = queue.front()
            && front >= LENGTH_BYTES + first.len()
        {
            front -= LENGTH_BYTES + first.len();
            queue.pop_front();
        }
        // The socket takes a part of it, then the rest.
        let all = sealer.pending().to_vec();
        sealer.advance(5, 0);
        assert_eq!(sealer.pending(), &all[5..]);
        sealer.advance(all.len() - 5, 0);
        received.extend(feed(&mut opener, &all, 1024).unwrap());
    }
    assert!(received == sent);
}

#[test]
fn what_was_changed_cut_repeated_or_swapped_is_not_genuine() {
    let sent = messages(&[100, 100]);
    let (mut sealer, _) = pair();
    let first = wire(&mut sealer, &sent[..1]);
    let second = wire(&mut sealer, &sent[1..]);
    for at in 0..first.len() {
        let mut spoilt = first.clone();
        spoilt[at] ^= 1;
        let (_, mut opener) = pair();
        let taken = feed(&mut opener, &[&spoilt[..], &second].concat(), 1024);
        // One byte of the length makes it ask for more than there is.
        assert!(taken.is_err() || (at == 1 && taken == Ok(vec![])), "{at}: {taken:?}");
    }
    for wrong in [&second, &[&first[..], &first].concat()] {
        let (_, mut opener) = pair();
        assert!(feed(&mut opener, wrong, 1024).is_err());
    }
    let (_, mut opener) = pair();
    assert_eq!(feed(&mut opener, &first[..first.len() - 1], 1024), Ok(vec![]));
    assert!(!opener.has_ended());
}

#[test]
fn an_end_is_told_and_nothing_is_taken_after_it() {
    let (mut sealer, mut opener) = pair();
    let sent = messages(&[10]);
    let mut bytes = wire(&mut sealer, &sent);
    sealer.close(now()).unwrap();
    bytes.extend_from_slice(sealer.pending());
    bytes.extend_from_slice(b"anything at all");
    assert_eq!(feed(&mut opener, &bytes, 1024), Ok(sent));
    assert!(opener.has_ended());
}

/// The record of these bytes.
fn record(sealer: &mut Sealer, bytes: &[u8], now: Instant) -> Vec<u8> {
    let before = sealer.pending().len();
    sealer.seal_bytes(bytes, now).unwrap();
    sealer.pending()[before..].to_vec()
}

/// What a record holds, or what is wrong with it.
fn open(opener: &mut Opener, wire: &[u8]) -> Result<Vec<u8>, String> {
    let before = opener.plain.end;
    opener.room(wire.len(), &bounds(1024)).extend_from_slice(wire);
    opener.open()?;
    Ok(opener.buffer[before..opener.plain.end].to_vec())
}

const CHANGE_BYTES: usize = RECORD_OVERHEAD;

#[test]
fn both_ends_change_their_keys_at_the_same_record() {
    let (mut sealer, mut opener) = pair();
    for (records, bytes) in [(KEY_RECORDS - 1, 0), (1, KEY_BYTES - 54)] {
        (sealer.key.records, opener.key.records) = (records, records);
        (sealer.key.bytes, opener.key.bytes) = (bytes, bytes);
        let (iv, sent) = (sealer.key.iv.clone(), messages(&[50]));
        for changes in [0, 1, 0] {
            let wire = wire(&mut sealer, &sent);
            assert_eq!(wire.len(), 54 + RECORD_OVERHEAD + changes * CHANGE_BYTES);
            assert_eq!(feed(&mut opener, &wire, 1024), Ok(sent.clone()));
        }
        assert_eq!((sealer.key.records, opener.key.records), (2, 2));
        assert_ne!(sealer.key.iv, iv);
        assert_eq!(sealer.key.iv, opener.key.iv);
    }
}

#[test]
fn who_seals_takes_another_key_after_an_hour_and_who_opens_follows() {
    let (mut sealer, mut opener) = pair();
    let minute = KEY_TIME / 60;
    // From the first record under a key on, however many follow, or none.
    let sent = [(0, false), (1, false), (59, false), (60, true), (100, false), (119, false)];
    for (minutes, changes) in sent.into_iter().chain([(120, true), (1000, true), (1059, false)]) {
        let wire = record(&mut sealer, b"word", now() + minute * minutes);
        assert_eq!(wire.len(), 4 + RECORD_OVERHEAD + if changes { CHANGE_BYTES } else { 0 });
        assert_eq!(open(&mut opener, &wire), Ok(b"word".to_vec()), "{minutes}");
        assert_eq!(sealer.key.iv, opener.key.iv);
    }
    // The last words too.
    sealer.close(now() + minute * 2000).unwrap();
    let wire = sealer.pending();
    open(&mut opener, &wire[wire.len() - CHANGE_BYTES - RECORD_OVERHEAD..]).unwrap();
    assert!(opener.has_ended());
}

/// Records under three keys in a row, as other implementations of HKDF and of the ciphers make them.
#[test]
fn records_before_and_after_a_change_of_keys_are_known() {
    let known = [
        (
            &AES_128_GCM,
            [
                "05000000cc926264d3bb3aa72306d60384b7f85fec87d9b314",
                "000000804d2b6a28c433dbe76c652c6eb734ac96",
                "050000004e2a67a4a60dadd5b9c6ab8e97aaf1f8e6f163bfc8",
                "00000080053e600605919b6dca76591d76e824ed",
                "050000005019637283f62fd5e01d9e16f2b000d8ddd8bf1077",
            ],
        ),
        (
            &CHACHA20_POLY1305,
            [
                "05000000ebe8db1c3a5e8c0a3d7d5b01e6d2d9ffc785b4e04e",
                "000000803dc4acf83282b8d41c4229c36028d68d",
                "05000000625c0456efb2cf7daadc2a2bd094b96889c324fe69",
                "00000080fb211e9583ee036184fad9d0f805ca04",
                "05000000956d8ee5dc45fe3c4b24944837ddc51daac79e280e",
            ],
        ),
    ];
    for (algorithm, records) in known {
        let secret = Secret::new(std::array::from_fn(|at| at as u8));
        let mut sealer = Sealer::new(Key::first(algorithm, &secret).unwrap());
        for hours in 0..3 {
            sealer.seal_bytes(b"hello", now() + KEY_TIME * hours).unwrap();
        }
        let wire: String = sealer.pending().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(wire, records.concat());
    }
}

#[test]
fn a_record_in_another_place_or_under_another_key_is_not_genuine() {
    let (mut sealer, _) = pair();
    let one = record(&mut sealer, b"one", now());
    let two = record(&mut sealer, b"two", now());
    let late = record(&mut sealer, b"three", now() + KEY_TIME);
    let (change, three) = late.split_at(CHANGE_BYTES);
    let four = record(&mut sealer, b"four", now() + KEY_TIME);
    let opened = |records: &[&[u8]], wrong: &[u8]| {
        let (_, mut opener) = pair();
        records.iter().for_each(|wire| assert!(open(&mut opener, wire).is_ok()));
        open(&mut opener, wrong)
    };
    assert_eq!(opened(&[&one, &two, change, three], &four), Ok(b"four".to_vec()));
    let refused: [(&[&[u8]], &[u8]); 9] = [
        // Left out, repeated, swapped.
        (&[], &two),
        (&[&one], &one),
        (&[&one], change),
        (&[&one, &two], three),
        (&[&one, &two, change], change),
        (&[&one, &two, change], &four),
        // Of the key before, at the number that it has or another.
        (&[&one, &two, change], &one),
        (&[&one, &two, change, three], &two),
        (&[&one, &two, change, three], change),
    ];
    for (index, (before, wrong)) in refused.into_iter().enumerate() {
        assert!(opened(before, wrong).is_err(), "{index}");
    }
    for at in 0..CHANGE_BYTES {
        let mut spoilt = change.to_vec();
        spoilt[at] ^= 1;
        let taken = opened(&[&one, &two], &[&spoilt, three].concat());
        // One byte of the length makes it ask for more than there is.
        assert!(taken.is_err() || (at == 1 && taken == Ok(vec![])), "{at}: {taken:?}");
    }
    for number in [1, 1 << 19] {
        let (_, mut opener) = pair();
        opener.key.records = number;
        assert_eq!(open(&mut opener, &one), Err("a record is not genuine".to_owned()));
    }
}

#[test]
fn who_seals_too_much_under_a_key_or_nothing_is_refused() {
    for (records, bytes) in [(KEY_RECORDS, 0), (1, KEY_BYTES)] {
        let (mut sealer, mut opener) = pair();
        (sealer.key.records, opener.key.records) = (records, records);
        opener.key.bytes = bytes;
        sealer.out.resize(HEADER_BYTES, 0);
        sealer.finish(HEADER_BYTES, 0, now()).unwrap();
        assert!(open(&mut opener, sealer.pending()).unwrap_err().contains("more came"));
    }
    let (mut sealer, mut opener) = pair();
    sealer.out.resize(HEADER_BYTES, 0);
    sealer.finish(HEADER_BYTES, NEXT_KEY, now()).unwrap();
    assert!(open(&mut opener, sealer.pending()).unwrap_err().contains("nothing came"));
}

#[test]
fn a_change_of_keys_counts_for_some_records() {
    let (mut sealer, mut opener) = pair();
    for hours in 0..2 {
        let wire = record(&mut sealer, b"word", now() + KEY_TIME * hours);
        open(&mut opener, &wire).unwrap();
    }
    assert_eq!(opener.take_records(), 3 + NEXT_KEY_RECORDS);
}

/// Both ends of a connection whose handshake is done, in memory.
fn connected() -> (Connection, Connection) {
    let key = |seed| SecretKey::from_seed(Scheme::Ed25519, [seed; 32]);
    let dials = Identity::new(&key(1)).unwrap().dial(key(2).public()).unwrap();
    let accepts = Identity::new(&key(2)).unwrap().accept().unwrap();
    let (mut dialler, mut acceptor) = (Connection::from(dials), Connection::from(accepts));
    let carry = |from: &mut Connection, to: &mut Connection| {
        let mut wire = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut wire).unwrap();
        }
        let mut left = &wire[..];
        while !left.is_empty() {
            to.read_tls(&mut left).unwrap();
            to.process_new_packets().unwrap();
        }
    };
    while dialler.is_handshaking() || acceptor.is_handshaking() {
        carry(&mut dialler, &mut acceptor);
        carry(&mut acceptor, &mut dialler);
    }
    (dialler, acceptor)
}

#[test]
fn each_direction_of_each_link_has_keys_of_its_own() {
    let mut ivs = Vec::new();
    // The same two, twice.
    for _ in 0..2 {
        let (dialler, acceptor) = connected();
        let (mut here, mut there) =
            (ends(&dialler, true).unwrap(), ends(&acceptor, false).unwrap());
        let word = record(&mut here.0, b"word", now());
        assert_eq!(open(&mut there.1, &word), Ok(b"word".to_vec()));
        let answer = record(&mut there.0, b"answer", now());
        assert_eq!(open(&mut here.1, &answer), Ok(b"answer".to_vec()));
        for (sealer, opener) in [(&here.0, &there.1), (&there.0, &here.1)] {
            assert_eq!(sealer.key.iv, opener.key.iv);
            ivs.push(sealer.key.iv.clone());
        }
        // What one said is not taken for what the other says.
        for own in [&mut ends(&dialler, true).unwrap(), &mut ends(&acceptor, false).unwrap()] {
            let word = record(&mut own.0, b"word", now());
            assert_eq!(open(&mut own.1, &word), Err("a record is not genuine".to_owned()));
        }
    }
    let mut distinct = ivs.clone();
    distinct.sort_by_key(|iv| **iv);
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "{ivs:?}");
}

#[test]
fn a_message_whose_end_does_not_come_takes_memory_by_what_came() {
    let (mut sealer, mut opener) = pair();
    let sent = messages(&[16 << 20]);
    let wire = wire(&mut sealer, &sent);
    assert_eq!(feed(&mut opener, &wire[..70_000], 16 * 1024), Ok(vec![]));
    assert_eq!(opener.held_bytes(), Bounds::CLIENT_AT_REPLICA.eager_bytes);
    assert_eq!(feed(&mut opener, &wire[70_000..1_000_000], 16 * 1024), Ok(vec![]));
    assert!(opener.held_bytes() <= 2_000_000, "{}", opener.held_bytes());
    assert_eq!(feed(&mut opener, &wire[1_000_000..], 16 * 1024), Ok(sent));
    assert_eq!((opener.held_bytes(), opener.buffer.capacity()), (0, 0));
}

/// However few bytes come at a time, what is here is moved a few times only.
#[test]
fn who_sends_little_at_a_time_has_nothing_moved_each_time() {
    for size in [2 << 20, 300_000, 100_000, 30_000] {
        for (step, record) in [(500, RECORD_BYTES), (20_000, RECORD_BYTES), (500, 3), (5000, 100)] {
            let (mut sealer, mut opener) = pair();
            let sent = messages(&[size, 200, 300]);
            for message in &sent {
                let stream = [&(message.len() as u32).to_le_bytes()[..], message].concat();
                stream.chunks(record).for_each(|part| sealer.seal_bytes(part, now()).unwrap());
            }
            let wire = sealer.pending().to_vec();
            let mut received = Vec::new();
            for piece in wire.chunks(step) {
                received.extend(feed(&mut opener, piece, 16 * 1024).unwrap());
            }
            let moved = opener.moved;
            assert!(received == sent && moved <= 3 * wire.len(), "{size} in {step}: {moved}");
        }
    }
}

/// Of small records most bytes are not the message's: its memory follows the message all the same.
#[test]
fn small_records_take_no_more_memory_than_large_ones() {
    let (mut sealer, mut opener) = pair();
    let sent = messages(&[400_000]);
    let stream = [&400_000_u32.to_le_bytes()[..], &sent[0]].concat();
    for part in stream.chunks(3) {
        sealer.seal_bytes(part, now()).unwrap();
    }
    let wire = sealer.pending().to_vec();
    let (mut largest, mut received) = (0, Vec::new());
    for piece in wire.chunks(10_000) {
        received.extend(feed(&mut opener, piece, 16 * 1024).unwrap());
        largest = largest.max(opener.buffer.capacity());
    }
    assert_eq!((received, opener.take_records()), (sent, stream.len().div_ceil(3)));
    assert!(largest <= 400_000 + 2 * RECORD_BYTES, "{largest}");
}

/// Whoever keeps a message counts its length.
#[test]
fn a_message_that_is_kept_keeps_less_than_twice_its_length() {
    for sizes in [&[8 << 20, 5000, 9000][..], &[20_000, 30_000, 5000, 100_000, 70_000, 4200]] {
        for step in [3000, 64 * 1024, usize::MAX] {
            let (mut sealer, mut opener) = pair();
            let mut wire = wire(&mut sealer, &messages(sizes));
            // The beginning of another message stands behind.
            sealer.seal_bytes(&[0], now()).unwrap();
            wire.extend_from_slice(sealer.pending());
            let bounds = bounds(64 * 1024);
            let mut left = &wire[..];
            let (mut received, mut shared) = (0, 0);
            while !left.is_empty() {
                let room = opener.room(1, &bounds);
                let count = (room.capacity() - room.len()).min(step).min(left.len());
                room.extend_from_slice(&left[..count]);
                left = &left[count..];
                opener.open().unwrap();
                loop {
                    let capacity = opener.buffer.capacity();
                    let memory = opener.buffer.as_ptr().addr()..;
                    let memory = memory.start..memory.start + capacity;
                    let Some(message) = opener.take_message(&bounds).unwrap() else { break };
                    received += 1;
                    if memory.contains(&message.as_ptr().addr()) {
                        shared += 1;
                        assert!(capacity < 2 * message.len(), "{capacity}, {}", message.len());
                        assert_ne!(opener.buffer.as_ptr().addr(), memory.start);
                    }
                }
            }
            assert!(received == sizes.len() && shared > 0, "{received} {shared}");
            let kept = opener.held_bytes();
            assert!(kept == opener.buffer.capacity() && kept <= 64 * 1024, "{kept} {step}");
        }
    }
}

/// What follows is swallowed by a record that is longer than what was sent, until there is as much.
#[test]
fn a_record_whose_length_was_changed_on_the_way_is_known_to_be_there_in_part() {
    let (mut sealer, mut opener) = pair();
    let small = messages(&[20]);
    let (first, mut second, third) =
        (wire(&mut sealer, &small), wire(&mut sealer, &small), wire(&mut sealer, &small));
    second[1] ^= 0x80;
    assert_eq!((feed(&mut opener, &first, 5000), opener.partial_record()), (Ok(small), None));
    assert_eq!(feed(&mut opener, &second, 5000), Ok(Vec::new()));
    assert_eq!(opener.partial_record(), Some(1));
    for _ in 0..100 {
        assert_eq!(feed(&mut opener, &third, 5000), Ok(Vec::new()));
        assert_eq!(opener.partial_record(), Some(1), "it goes on being the same one");
    }
    let much = vec![0; RECORD_BYTES];
    assert!(feed(&mut opener, &much, 5000).is_err(), "only then it is found not to be genuine");
}
