use super::*;
use bytes::Bytes;
use perdura_protocol::{Digest, Encode, PublicKey, Slot};

const SESSION: SessionId = SessionId { client: PublicKey([1; 32]), nonce: 1 };

fn put(value: &'static str) -> StoreCommand {
    StoreCommand::Put { key: Bytes::from_static(b"a"), value: Bytes::from_static(value.as_bytes()) }
}

fn get() -> StoreCommand {
    StoreCommand::Get { key: Bytes::from_static(b"a") }
}

fn value(text: &'static str) -> StoreReply {
    StoreReply::Value(Some(Bytes::from_static(text.as_bytes())))
}

fn execution(number: u64, command: &StoreCommand, reply: &StoreReply) -> Execution {
    Execution {
        slot: Slot(number),
        batch: Digest::ZERO,
        session: SESSION,
        number,
        command: command.to_bytes(),
        time: perdura_protocol::Time(0),
        ahead_ms: 0,
        state_bytes: 0,
        work: 0,
        cost: None,
        reply: Some(Ok(reply.to_bytes())),
    }
}

fn told(
    number: Option<u64>,
    command: StoreCommand,
    at: u64,
    end: u64,
    seen: Seen<StoreReply>,
) -> Told {
    let number = number.map(|number| (SESSION, number));
    Told { number, command, invoked: at, ended: Some(end), seen }
}

#[test]
fn the_order_explains_what_was_seen() {
    let order = [execution(1, &put("x"), &StoreReply::Put), execution(2, &get(), &value("x"))];
    let first = told(Some(1), put("x"), 0, 1, Seen::Ok(StoreReply::Put));
    let good = [first.clone(), told(Some(2), get(), 2, 3, Seen::Ok(value("x")))];
    assert_eq!(check(order.iter(), &good), Ok(()));
    let other_reply = [first.clone(), told(Some(2), get(), 2, 3, Seen::Ok(value("y")))];
    assert!(check(order.iter(), &other_reply).is_err());
    let against_time = [
        told(Some(2), get(), 0, 1, Seen::Ok(value("x"))),
        told(Some(1), put("x"), 2, 3, Seen::Ok(StoreReply::Put)),
    ];
    assert!(check(order.iter(), &against_time).is_err());
    let not_sent = [told(Some(1), put("x"), 0, 1, Seen::NotSent)];
    assert!(check(order.iter(), &not_sent).is_err());
    let never = [first, told(Some(3), get(), 2, 3, Seen::Ok(value("x")))];
    assert!(check(order.iter(), &never).is_err());
}

#[test]
fn a_stale_fast_read_is_seen() {
    let order = [execution(1, &put("x"), &StoreReply::Put)];
    let first = told(Some(1), put("x"), 0, 1, Seen::Ok(StoreReply::Put));
    let absent = Seen::Ok(StoreReply::Value(None));
    let stale = [first.clone(), told(None, get(), 2, 3, absent.clone())];
    assert!(check(order.iter(), &stale).is_err());
    let concurrent = [told(Some(1), put("x"), 0, 9, Seen::Ok(StoreReply::Put))];
    let mut calls = concurrent.to_vec();
    calls.push(told(None, get(), 1, 2, absent.clone()));
    assert_eq!(check(order.iter(), &calls), Ok(()));
    // Backwards: a later read sees less than an earlier one.
    let mut calls = concurrent.to_vec();
    calls.push(told(None, get(), 1, 2, Seen::Ok(value("x"))));
    calls.push(told(None, get(), 3, 4, absent));
    assert!(check(order.iter(), &calls).is_err());
}
