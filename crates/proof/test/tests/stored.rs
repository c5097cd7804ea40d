//! What is stored and does not come back as it was, and what cannot be sent: each way put in on purpose.

use perdura_test::{Fault, Random, Step, check};
use perdura_typed::{Context, Key, Parts, QueryContext, Service, Sharded};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

const RIGHT: u8 = 0;
/// A hash map in a value that is stored, and in a part of the state.
const HASHED: u8 = 1;
const HASHED_PART: u8 = 2;
/// A field is left out of a value, and of an answer.
const SKIPPED: u8 = 3;
const SKIPPED_ANSWER: u8 = 4;
/// Keys: one is read as another, or not at all; their bytes have another order, or begin one another.
const OTHER_KEY: u8 = 5;
const NO_KEY: u8 = 6;
const KEY_ORDER: u8 = 7;
const KEY_BEGINS: u8 = 8;
/// A field of a part is not stored.
const LOST_FIELD: u8 = 10;
/// Keys that are not read, which a command goes through.
const NO_KEY_READ: u8 = 9;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Number<const WRONG: u8>(u16);

impl<const WRONG: u8> Key for Number<WRONG> {
    fn encode_key(&self, out: &mut Vec<u8>) {
        match WRONG {
            KEY_ORDER => out.extend(self.0.to_le_bytes()),
            KEY_BEGINS => out.extend(vec![7; usize::from(self.0) + 1]),
            _ => self.0.encode_key(out),
        }
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<Number<WRONG>> {
        match WRONG {
            KEY_ORDER => u16::decode_key(bytes).map(|number| Number(number.swap_bytes())),
            KEY_BEGINS => {
                let length = std::mem::take(bytes).len();
                length.checked_sub(1).map(|number| Number(number as u16))
            }
            OTHER_KEY => u16::decode_key(bytes).map(|number| Number(number + 1)),
            NO_KEY | NO_KEY_READ => None,
            _ => u16::decode_key(bytes).map(Number),
        }
    }
}

#[derive(Serialize, Deserialize, Default, Debug)]
struct Value {
    hashed: HashMap<u8, u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<u8>,
    last: u8,
    #[serde(skip)]
    lost: u8,
}

impl Value {
    fn of(entries: u8, skipped: Option<u8>) -> Value {
        Value { hashed: (0..entries).map(|key| (key, key)).collect(), skipped, last: 7, lost: 0 }
    }
}

struct Stored<const WRONG: u8> {
    values: Sharded<Number<WRONG>, Value>,
    part: Value,
}

impl<const WRONG: u8> Default for Stored<WRONG> {
    fn default() -> Stored<WRONG> {
        Stored { values: Sharded::new(), part: Value::of(1, Some(1)) }
    }
}

impl<const WRONG: u8> Service for Stored<WRONG> {
    const NAME: &'static str = "stored";
    type Command = u16;
    type Query = ();
    type Reply = Value;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, number: u16) -> Result<Value, ()> {
        if WRONG == NO_KEY_READ {
            self.values.iter().for_each(drop);
        }
        let entries = if WRONG == HASHED { 20 } else { 1 };
        let skipped = if WRONG == SKIPPED { None } else { Some(1) };
        self.values.insert(Number(number), Value::of(entries, skipped));
        if WRONG == HASHED_PART {
            self.part = Value::of(20, Some(1));
        }
        if WRONG == LOST_FIELD {
            self.part.lost = self.part.lost.wrapping_add(1);
        }
        Ok(Value::of(0, Some(self.part.lost)))
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<Value, ()> {
        Ok(Value::of(0, if WRONG == SKIPPED_ANSWER { None } else { Some(1) }))
    }

    fn parts(&mut self, parts: &mut Parts<'_>) {
        parts.value(&mut self.part);
        parts.map(&mut self.values);
    }
}

fn found<const WRONG: u8>() -> Option<Fault> {
    let step = |random: &mut Random| match random.below(10) {
        0 => Step::Query(()),
        // Their bytes have another order from 256 on.
        _ => Step::Command(250 + random.below(12) as u16),
    };
    check::<Stored<WRONG>>(0..1, step).err().map(|finding| finding.fault)
}

#[test]
fn what_comes_back_passes() {
    assert_eq!(found::<RIGHT>(), None);
}

#[test]
fn what_does_not_come_back_is_found() {
    let is_of = |what: &str, of: &str| what.starts_with(of) && what.contains("of type");
    let hashed = found::<HASHED>();
    assert!(
        matches!(&hashed, Some(Fault::ChangedByReading(what)) if is_of(what, "a value of a map")),
        "{hashed:?}"
    );
    let part = found::<HASHED_PART>();
    assert!(
        matches!(&part, Some(Fault::ChangedByReading(what)) if is_of(what, "a part of the state")),
        "{part:?}"
    );
    let skipped = found::<SKIPPED>();
    assert!(
        matches!(&skipped, Some(Fault::Unfit(said)) if said.contains("would not be read again")),
        "{skipped:?}"
    );
    assert_eq!(found::<SKIPPED_ANSWER>(), Some(Fault::AnswerNotRead));
    let lost = found::<LOST_FIELD>();
    assert!(matches!(lost, Some(Fault::RestoredAnswersDiffer(_))), "{lost:?}");
}

#[test]
fn keys_that_do_not_come_back_are_found() {
    assert!(matches!(found::<OTHER_KEY>(), Some(Fault::ChangedByReading(_))));
    assert!(matches!(found::<NO_KEY>(), Some(Fault::NotReadBack(_))));
    assert!(matches!(found::<NO_KEY_READ>(), Some(Fault::NotReadBack(_))));
    assert!(matches!(found::<KEY_ORDER>(), Some(Fault::KeysOutOfOrder(_))));
    let begins = found::<KEY_BEGINS>();
    assert!(matches!(begins, Some(Fault::KeysOutOfOrder(_))));
    let said = begins.unwrap().to_string();
    assert!(said.starts_with("keys of a map, of type `main::stored::Number<8>`, are in"), "{said}");
}
