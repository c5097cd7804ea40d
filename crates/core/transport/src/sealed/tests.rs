use super::*;

fn pair() -> (Sealer, Opener) {
    super::pair().unwrap()
}

fn wire(sealer: &mut Sealer, messages: &[Bytes]) -> Vec<u8> {
    let queue: VecDeque<Bytes> = messages.iter().cloned().collect();
    let bytes: usize = queue.iter().map(|one| LENGTH_BYTES + one.len()).sum();
    assert_eq!(sealer.seal(&queue, 0, bytes, usize::MAX).unwrap(), bytes);
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
        front += sealer.seal(&queue, front, 0, 1).unwrap();
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
    sealer.close().unwrap();
    bytes.extend_from_slice(sealer.pending());
    bytes.extend_from_slice(b"anything at all");
    assert_eq!(feed(&mut opener, &bytes, 1024), Ok(sent));
    assert!(opener.has_ended());
}

#[test]
fn both_ends_change_their_keys_at_the_same_record() {
    let (mut sealer, mut opener) = pair();
    (sealer.key.records, opener.key.records) = (REKEY_RECORDS - 1, REKEY_RECORDS - 1);
    for _ in 0..3 {
        let sent = messages(&[50]);
        let wire = wire(&mut sealer, &sent);
        assert_eq!(feed(&mut opener, &wire, 1024), Ok(sent));
    }
    assert_eq!((sealer.key.records, opener.key.records), (2, 2));
    assert_ne!(sealer.key.secret, [7; 32]);
    (sealer.key.bytes, opener.key.bytes) = (REKEY_BYTES, REKEY_BYTES);
    let sent = messages(&[50]);
    let wire = wire(&mut sealer, &sent);
    assert_eq!(feed(&mut opener, &wire, 1024), Ok(sent));
    assert_eq!(sealer.key.records, 1);
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
                stream.chunks(record).for_each(|part| sealer.seal_bytes(part).unwrap());
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
        sealer.seal_bytes(part).unwrap();
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
            sealer.seal_bytes(&[0]).unwrap();
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
