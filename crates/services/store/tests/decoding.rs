//! Bytes from outside: commands, replies, segments. None of them panics, and what decodes is
//! canonical.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{Alone as _, RestoreError, Service};
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{Decode, Encode};
use perdura_store::{Store, StoreCommand, StoreReply, Transaction};

/// A decoded command is encoded as it was.
fn check(command: &[u8]) -> bool {
    match StoreCommand::decode(command) {
        Ok(decoded) => {
            assert_eq!(decoded.to_bytes(), command);
            assert_eq!(decoded.validate(), Ok(()));
            true
        }
        Err(_) => false,
    }
}

#[test]
fn garbage_never_panics() {
    let mut random = Random(7);
    let mut store = Store::new(1 << 20);
    for _ in 0..20_000 {
        let length = random.below(60) as usize;
        let mut garbage = random.bytes(length).to_vec();
        if let Some(tag) = garbage.first_mut() {
            *tag %= 5;
        }
        if garbage.len() > 2 && random.chance(2) {
            garbage[2..].iter_mut().take(6).for_each(|byte| *byte = 0);
        }
        check(&garbage);
        let refused = store.order(&context(), &garbage).is_err();
        assert_eq!(refused, StoreCommand::decode(&garbage).is_err());
        let _ = store.answer(perdura_protocol::PublicKey([0; 32]), &garbage);
        let _ = store.interface().footprint(&garbage);
        if let Ok(reply) = StoreReply::from_bytes(Bytes::from(garbage.clone())) {
            assert_eq!(reply.to_bytes(), garbage);
        }
        let _ = store.restore(vec![garbage.into()]);
    }
}

#[test]
fn damaged_commands_and_replies_are_canonical_or_refused() {
    let mut random = Random(8);
    let (mut store, mut decoded) = (Store::new(1 << 30), 0);
    for _ in 0..3000 {
        let mut command = random.command(50);
        if let StoreCommand::Transaction(Transaction { operations }) = &mut command {
            operations.push(random.operation(50));
        }
        let reply = execute(&mut store, &command).unwrap();
        assert_eq!(StoreCommand::decode(&command.to_bytes()), Ok(command.clone()));
        for bytes in [command.to_bytes(), reply.to_bytes()] {
            let mut damaged = bytes.to_vec();
            let place = random.below(damaged.len().min(64) as u64) as usize;
            damaged[place] ^= 1 << random.below(8);
            decoded += u32::from(check(&damaged));
            if let Ok(reply) = StoreReply::from_bytes(Bytes::from(damaged.clone())) {
                assert_eq!(reply.to_bytes(), damaged);
            }
            check(&bytes[..place]);
        }
    }
    assert!(decoded > 0);
}

#[test]
fn counts_and_lengths_do_not_allocate_ahead() {
    let mut huge = vec![3];
    encode_count(u32::MAX as usize, &mut huge);
    let refusal = StoreCommand::decode(&huge).unwrap_err().to_string();
    assert!(refusal.contains("at most 1024 operations"), "{refusal}");
    let mut key = vec![1];
    encode_count(u32::MAX as usize, &mut key);
    assert!(StoreCommand::decode(&key).is_err());
    assert!(StoreCommand::decode(&[]).is_err());
}

fn piece(bound: &str, entries: &[(&str, usize)]) -> Bytes {
    let mut out = Vec::new();
    encode_bytes(bound.as_bytes(), &mut out);
    encode_count(entries.len(), &mut out);
    for (key, size) in entries {
        encode_bytes(key.as_bytes(), &mut out);
        encode_bytes(&vec![0; *size], &mut out);
    }
    out.into()
}

#[test]
fn segments_of_the_wrong_shape_are_refused() {
    let restore = |pieces: &[Bytes]| Store::new(1 << 20).restore(pieces.to_vec());
    assert_eq!(restore(&[piece("", &[])]), Ok(()));
    assert_eq!(restore(&[piece("", &[("a", 1)]), piece("b", &[("c", 1)])]), Ok(()));
    let wrong: [&[Bytes]; 10] = [
        &[],
        &[piece("a", &[("b", 1)])],
        &[piece("", &[("a", 1)]), piece("b", &[])],
        &[piece("", &[("a", 1), ("c", 1)]), piece("b", &[("c", 1)])],
        &[piece("", &[("b", 1)]), piece("b", &[("a", 1)])],
        &[piece("", &[("b", 1)]), piece("c", &[("c", 1)]), piece("c", &[("d", 1)])],
        &[piece("", &[("b", 1), ("a", 1)])],
        &[piece("", &[("", 1)])],
        &[piece("", &[("a", 60_000), ("b", 60_000)])],
        &[piece("", &[("a", (1 << 20) + 1)])],
    ];
    for pieces in wrong {
        assert!(restore(pieces).is_err(), "{pieces:?}");
    }
    let full = restore(&[piece("", &[("a", 1 << 20)])]);
    assert!(matches!(full, Err(RestoreError::Contradiction(text)) if text.contains("limit")));
}
