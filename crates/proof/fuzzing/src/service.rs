//! Commands and replies of the store (`crates/services/store`).

use crate::memory::Memory;
use crate::{Seed, round_trip, seed};
use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Service};
use perdura_protocol::{ClusterId, Decode, Digest, Encode, PublicKey, SessionId, Slot, Time};
use perdura_store::{Operation, Store, StoreCommand, StoreReply, Transaction};

fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(1),
        clock: Time(1),
        session: SessionId { client: PublicKey([1; 32]), nonce: 1 },
        number: 1,
        cluster: ClusterId([1; 16]),
        batch: Digest::ZERO,
        administrator: PublicKey([200; 32]),
        other: None,
        meter: Default::default(),
    }
}

fn store() -> Store {
    let mut store = Store::new(1 << 20);
    for key in ["a", "b", "c"] {
        let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(b"value"));
        let put = StoreCommand::Put { key, value }.to_bytes();
        store.order(&context(), &put).expect("a small put fits");
    }
    store
}

/// A command is carried out if and only if it decodes; what it reads and writes is found for any
/// bytes; its reply decodes.
pub fn command(data: &[u8]) -> bool {
    let mut store = store();
    let decoded = Memory::FRAME.hold(data.len(), || StoreCommand::decode(data));
    let _ = store.interface().footprint(data);
    let queried = store.answer(perdura_protocol::PublicKey([0; 32]), data);
    let executed = store.order(&context(), data);
    let Ok(decoded) = decoded else {
        assert!(executed.is_err(), "carried out, and does not decode");
        return false;
    };
    assert_eq!(decoded.to_bytes(), data, "not encoded as it was");
    assert_eq!(decoded.validate(), Ok(()));
    assert_eq!(queried.is_some(), decoded.is_read());
    if let Some(read) = queried {
        assert_eq!(read, executed, "a read that is ordered gives something else");
    }
    if let Ok(reply) = executed {
        StoreReply::from_bytes(reply).expect("a reply decodes");
    }
    true
}

pub fn reply(data: &[u8]) -> bool {
    round_trip::<StoreReply>(Memory::FRAME, data).is_some()
}

fn all() -> Vec<(&'static str, StoreCommand)> {
    let (key, value) = (Bytes::from_static(b"a"), Bytes::from_static(b"value"));
    let absent = Bytes::from_static(b"x");
    let range = |reverse| Operation::ReadRange {
        start: Bytes::new(),
        end: Some(Bytes::from_static(b"c")),
        limit: 2,
        reverse,
    };
    let transaction = |operations| StoreCommand::Transaction(Transaction { operations });
    let each = vec![
        Operation::Cmp { key: key.clone(), value: Some(value.clone()) },
        Operation::Cmp { key: absent.clone(), value: None },
        Operation::Read { key: key.clone() },
        Operation::Read { key: absent.clone() },
        range(false),
        range(true),
        Operation::Insert { key: absent.clone(), value: value.clone() },
        Operation::Write { key: key.clone(), value: value.clone(), only_if_present: true },
        Operation::Delete { key: key.clone() },
    ];
    vec![
        ("get", StoreCommand::Get { key: key.clone() }),
        ("get_absent", StoreCommand::Get { key: absent.clone() }),
        ("put", StoreCommand::Put { key: key.clone(), value: value.clone() }),
        ("delete", StoreCommand::Delete { key: key.clone() }),
        ("delete_absent", StoreCommand::Delete { key: absent }),
        ("empty_transaction", transaction(vec![])),
        ("each_operation", transaction(each)),
        ("reads", transaction(vec![Operation::Read { key: key.clone() }, range(true)])),
        ("most_operations", transaction(vec![Operation::Read { key: key.clone() }; 1024])),
        ("failed", transaction(vec![Operation::Insert { key, value }])),
    ]
}

pub fn commands() -> Vec<Seed> {
    all().into_iter().map(|(name, command)| seed(name, &command)).collect()
}

pub fn replies() -> Vec<Seed> {
    let reply = |command: &StoreCommand| {
        store().execute(&context(), &command.to_bytes()).expect("within the limits").to_vec()
    };
    let mut seeds: Vec<Seed> =
        all().iter().map(|(name, command)| (*name, reply(command))).collect();
    // Keys of one byte, no values: the most entries for their bytes.
    let mut store = Store::new(1 << 20);
    for key in 0..=255u8 {
        let (key, value) = (Bytes::copy_from_slice(&[key]), Bytes::new());
        let put = StoreCommand::Put { key, value }.to_bytes();
        store.order(&context(), &put).expect("a small put fits");
    }
    let range = Operation::ReadRange { start: Bytes::new(), end: None, limit: 300, reverse: false };
    let ranges = StoreCommand::Transaction(Transaction { operations: vec![range; 8] });
    let reply = store.order(&context(), &ranges.to_bytes()).expect("within the limits");
    seeds.push(("many_small_entries", reply.to_vec()));
    seeds
}
