//! Load of tuples as queues: a shard is one queue. Of every other shard more is taken than is put,
//! so that most takers wait; of the others more is put, so that there is an order to keep. Of every
//! fourth some takers give up before their wait is over: what they took, if anything, nobody knows.
//! Only there, since whatever is lost can be said to have been taken by one of them.

use super::space::{command, entry, template, value};
use super::value::Values;
use super::{Answer, Drawn, Way};
use crate::history::{OperationTarget, ShardId};
use crate::operation::{Call as Any, Return as AnyReturn};
use crate::queue::{Call, Item, Return};
use anyhow::{Result, bail};
use bytes::Bytes;
use perdura_adversary::Random;
use perdura_protocol::Decode;
use perdura_tuples::{Field, Found, Operation, TupleReply};
use std::time::Duration;

/// Values that are put at once, at most.
const PUT_AT_ONCE: u64 = 3;

/// Values that are taken at once, at most, while the run goes on.
const TAKEN_AT_ONCE: u64 = 4;

/// Values that are taken at once in the end.
const DRAINED_AT_ONCE: u32 = perdura_tuples::limits::TUPLES_AT_ONCE as u32;

/// Longest waits, milliseconds: shorter than a fault, and longer than many.
const WAITS_MS: [u64; 5] = [10, 50, 250, 1_000, 3_000];

/// Of those who wait to take something in every fourth queue, those who give up after half of it.
const GIVE_UP_PERCENT: u64 = 15;

fn head((workload, shard): ShardId) -> [Field; 1] {
    [Field::String(workload.prefix(shard))]
}

fn operation(shard: ShardId, call: &Call) -> Result<Operation> {
    let template = template(&head(shard), None);
    Ok(match call {
        Call::Out { values } => {
            let entries = values.iter().map(|value| entry(&head(shard), value));
            let mut entries: Vec<_> = entries.collect::<Result<_>>()?;
            match (entries.len(), entries.pop()) {
                (1, Some(only)) => Operation::Out(only),
                (_, last) => Operation::OutAll(entries.into_iter().chain(last).collect()),
            }
        }
        Call::Inp => Operation::Inp(template),
        Call::In { wait_ms } => Operation::In { template, wait_ms: *wait_ms },
        Call::InAll { limit } => Operation::InAll { template, limit: *limit },
        Call::Rdp { .. } => Operation::Rdp(template),
        Call::Rd { wait_ms } => Operation::Rd { template, wait_ms: *wait_ms },
    })
}

fn drawn(shard: ShardId, call: Call) -> Result<Drawn> {
    let way = match &call {
        Call::In { wait_ms } | Call::Rd { wait_ms } => Way::Waits(Duration::from_millis(*wait_ms)),
        Call::Rdp { fast: true } => Way::Fast,
        _ => Way::Ordered,
    };
    let content = command(operation(shard, &call)?)?;
    Ok(Drawn { shard, call: Any::Queue(call), content, way })
}

fn wait(random: &mut Random) -> u64 {
    let longest = *random.pick(&WAITS_MS);
    random.between(longest / 5, longest)
}

/// An operation on a shard.
pub fn draw(place: &OperationTarget, values: &Values, random: &mut Random) -> Result<Drawn> {
    let is_short = place.shard.1.is_multiple_of(2);
    let puts = if is_short { 34 } else { 48 };
    let call = match random.below(100) {
        drawn if drawn < puts => {
            let several = random.percent(10);
            let count = if several { random.between(2, PUT_AT_ONCE) } else { 1 };
            Call::Out { values: (0..count).map(|_| values.draw(random)).collect() }
        }
        ..64 => Call::In { wait_ms: wait(random) },
        64..82 => Call::Inp,
        82..85 => Call::InAll { limit: random.between(1, TAKEN_AT_ONCE) as u32 },
        85..91 => Call::Rd { wait_ms: wait(random) },
        91..95 => Call::Rdp { fast: false },
        _ => Call::Rdp { fast: true },
    };
    let gives_up = place.shard.1 % 4 == 2 && random.percent(GIVE_UP_PERCENT);
    let drawn = drawn(place.shard, call)?;
    let way = match (&drawn.call, drawn.way) {
        (Any::Queue(Call::In { .. }), Way::Waits(wait)) if gives_up => Way::GivesUp(wait / 2),
        (_, way) => way,
    };
    Ok(Drawn { way, ..drawn })
}

/// Takes what is left in a queue.
pub fn drain(shard: ShardId) -> Result<Drawn> {
    drawn(shard, Call::InAll { limit: DRAINED_AT_ONCE })
}

/// What the answer says.
pub fn understand(shard: ShardId, call: &Call, reply: Bytes) -> Result<Answer> {
    let item = |found: Found| -> Result<Item> {
        Ok(Item { value: value(&found, &head(shard))?, number: Some(found.number) })
    };
    let result = match (call, TupleReply::from_bytes(reply)?) {
        (Call::Out { values }, TupleReply::Inserted { number }) if values.len() == 1 => {
            Return::Inserted { first: Some(number) }
        }
        (Call::Out { values }, TupleReply::InsertedAll { first, count })
            if values.len() == count as usize =>
        {
            Return::Inserted { first: Some(first) }
        }
        (
            Call::Inp | Call::In { .. } | Call::Rdp { .. } | Call::Rd { .. },
            TupleReply::Found(found),
        ) => Return::Found { item: found.map(item).transpose()? },
        (Call::InAll { .. }, TupleReply::FoundAll { tuples, more }) => {
            let items = tuples.into_iter().map(item).collect::<Result<_>>()?;
            Return::FoundAll { items, more }
        }
        (_, reply) => bail!("{reply:?}"),
    };
    Ok(Answer { result: AnyReturn::Queue(result), seen: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Workload;
    use perdura_protocol::Encode;

    const SHARD: ShardId = (Workload::Queue, 7);

    #[test]
    fn every_operation_is_drawn_and_is_within_the_limits() {
        let (values, mut random) = (Values::default(), Random::new(3));
        let shard = (Workload::Queue, 6);
        let place = OperationTarget { shard, first: false, seen: vec![None] };
        let mut ways = [false; 4];
        for _ in 0..1_000 {
            let drawn = draw(&place, &values, &mut random).unwrap();
            ways[match drawn.way {
                Way::Ordered => 0,
                Way::Fast => 1,
                Way::Waits(wait) => {
                    assert!(wait >= Duration::from_millis(1) && wait <= Duration::from_secs(3));
                    2
                }
                Way::GivesUp(_) => {
                    assert!(matches!(drawn.call, Any::Queue(Call::In { .. })));
                    3
                }
            }] = true;
        }
        assert_eq!(ways, [true; 4]);
    }

    #[test]
    fn an_answer_fits_its_question_and_its_queue() {
        let found = |shard, value: &str| Found {
            number: 5,
            expires: None,
            tuple: entry(&head(shard), value).unwrap().tuple,
        };
        let answer = |call: &Call, reply: TupleReply| {
            understand(SHARD, call, reply.to_bytes()).map(|answer| answer.result)
        };
        let taken = answer(&Call::Inp, TupleReply::Found(Some(found(SHARD, "v3x90")))).unwrap();
        let item = Some(Item { value: "v3x90".to_owned(), number: Some(5) });
        assert_eq!(taken, AnyReturn::Queue(Return::Found { item }));
        let other = found((Workload::Queue, 8), "v3x90");
        assert!(answer(&Call::Inp, TupleReply::Found(Some(other))).is_err());
        let two = Call::Out { values: vec!["v1x0".to_owned(), "v2x0".to_owned()] };
        assert!(answer(&two, TupleReply::InsertedAll { first: 5, count: 2 }).is_ok());
        assert!(answer(&two, TupleReply::InsertedAll { first: 5, count: 1 }).is_err());
        assert!(answer(&two, TupleReply::Inserted { number: 5 }).is_err());
        assert!(answer(&two, TupleReply::Found(None)).is_err());
    }
}
