//! What has few bytes and much memory: it is charged by what it consists of, and refused while it is decoded.

use crate::ledger::context;
use perdura_execution::{Alone as _, Meter, QueryContext as Asks, Service as _};
use perdura_protocol::PublicKey;
use perdura_protocol::limits::COMMAND_COST;
use perdura_typed::{Context, PART_COST, Parts, QueryContext, Service, Sharded, Typed};
use serde::{Deserialize, Serialize};

/// One byte, or as much as its larger kind has in memory.
#[derive(Serialize, Deserialize)]
enum Operation {
    Skip,
    Set { numbers: [u64; 14] },
}

impl Operation {
    fn length(&self) -> usize {
        match self {
            Operation::Skip => 1,
            Operation::Set { numbers } => numbers.len(),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Sent {
    Texts(Vec<String>),
    Operations(Vec<Operation>),
    Bytes(Vec<u8>),
}

#[derive(Default)]
struct Counts(Sharded<u64, u64>);

fn length(sent: &Sent) -> u64 {
    let length = match sent {
        Sent::Texts(texts) => texts.len(),
        Sent::Operations(operations) => operations.iter().map(Operation::length).sum(),
        Sent::Bytes(bytes) => bytes.len(),
    };
    length as u64
}

impl Service for Counts {
    const NAME: &'static str = "counts";
    type Command = Sent;
    type Query = Sent;
    type Reply = u64;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, command: Sent) -> Result<u64, ()> {
        Ok(length(&command))
    }

    fn query(&self, _: &QueryContext, query: Sent) -> Result<u64, ()> {
        Ok(length(&query))
    }

    fn parts(&mut self, parts: &mut Parts<'_>) {
        parts.map(&mut self.0);
    }
}

/// What there may be beside the command itself and its list.
const MOST: usize = (COMMAND_COST / PART_COST) as usize - 2;

const COMMAND: u8 = 0;
const QUERY: u8 = 1;

const TEXTS: u8 = 0;
const OPERATIONS: u8 = 1;
const BYTES: u8 = 2;

/// So many empty texts, operations to skip, or zeros: each is a zero when it is encoded.
fn sent(kind: u8, list: u8, length: usize) -> Vec<u8> {
    let length_bytes = postcard::to_stdvec(&length).unwrap();
    [&[kind, list][..], &length_bytes, &vec![0; length]].concat()
}

#[test]
fn a_command_of_too_many_parts_is_refused_and_costs_no_more_than_it_may() {
    let mut typed = Typed::<Counts>::new(1 << 20);
    let mut run = |list: u8, length: usize, meter: Meter| {
        let mut context = context();
        context.meter = meter;
        let done = typed.order(&context, &sent(COMMAND, list, length));
        (done.map(drop), context.meter.spent())
    };
    for meter in [Meter::up_to(COMMAND_COST), Meter::without_limit()] {
        for list in [TEXTS, OPERATIONS] {
            assert_eq!(run(list, MOST, meter.clone()), (Ok(()), COMMAND_COST));
            for length in [MOST + 1, 4 << 20] {
                let (refused, spent) = run(list, length, meter.clone());
                assert!(refused.unwrap_err().contains("more work than one may"));
                assert_eq!(spent, COMMAND_COST + PART_COST);
            }
        }
        // Bytes are as many in memory.
        assert_eq!(run(BYTES, 4 << 20, meter), (Ok(()), 2 * PART_COST));
    }
}

#[test]
fn a_query_of_too_many_parts_is_refused_without_an_order() {
    let typed = Typed::<Counts>::new(1 << 20);
    let ask = |bytes: &[u8]| {
        let meter = Meter::up_to(COMMAND_COST);
        let asks = Asks { client: PublicKey([3; 32]), meter: &meter };
        (typed.query(&asks, bytes).map(|answer| answer.map(drop)), meter.spent())
    };
    for list in [TEXTS, OPERATIONS] {
        assert_eq!(ask(&sent(QUERY, list, MOST)), (Some(Ok(())), COMMAND_COST));
        let (refused, spent) = ask(&sent(QUERY, list, MOST + 1));
        assert!(refused.unwrap().unwrap_err().contains("more work than one may"));
        assert_eq!(spent, COMMAND_COST + PART_COST);
        // A command is none, and not looked at.
        assert_eq!(ask(&sent(COMMAND, list, MOST + 1)), (None, 0));
    }
}
