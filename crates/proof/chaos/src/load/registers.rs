//! Load of tuples as registers: three keys, each with at most one tuple, whatever becomes of calls
//! of unknown outcome. So only a `cas` inserts the tuple of a key; but for the last key, whose tuple
//! is inserted by one `out`, before anybody can know that it was there, and by nobody else until
//! then.

use super::space::{command, entry, parts, template, value};
use super::value::Values;
use super::{Answer, Drawn, Way};
use crate::history::{OperationTarget, ShardId};
use crate::operation::{Call as Any, Return as AnyReturn};
use crate::registers::{Call, Return};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use perdura_adversary::Random;
use perdura_protocol::Decode;
use perdura_tuples::{Field, Operation, Pattern, Template, TupleReply};

/// Tuples that a read of all asks for: more than there are.
const MOST_TUPLES: u32 = 16;

/// What the tuple of a key begins with.
fn head((workload, shard): ShardId, key: usize) -> Vec<Field> {
    vec![Field::String(workload.prefix(shard)), Field::Integer(key as i64)]
}

fn all((workload, shard): ShardId) -> Template {
    let prefix = Field::String(workload.prefix(shard));
    Template { fields: vec![Pattern::Value(prefix), Pattern::Any, Pattern::Any] }
}

fn operation(shard: ShardId, call: &Call) -> Result<Operation> {
    let any = |key: usize| template(&head(shard, key), None);
    let matching = |key: usize, old: &Option<String>| template(&head(shard, key), old.as_deref());
    let tuple = |key: usize, value: &str| entry(&head(shard, key), value);
    Ok(match call {
        Call::Out { key, value } => Operation::Out(tuple(*key, value)?),
        Call::Cas { key, value } => {
            Operation::Cas { template: any(*key), entry: tuple(*key, value)? }
        }
        Call::Replace { key, old, value } => {
            Operation::Replace { template: matching(*key, old), entry: tuple(*key, value)? }
        }
        Call::Rdp { key, .. } => Operation::Rdp(any(*key)),
        Call::Inp { key, old } => Operation::Inp(matching(*key, old)),
        Call::RdAll { .. } => {
            Operation::RdAll { template: all(shard), after: 0, limit: MOST_TUPLES }
        }
    })
}

fn drawn(shard: ShardId, call: Call) -> Result<Drawn> {
    let fast = matches!(call, Call::Rdp { fast: true, .. } | Call::RdAll { fast: true });
    let content = command(operation(shard, &call)?)?;
    let way = if fast { Way::Fast } else { Way::Ordered };
    Ok(Drawn { shard, call: Any::Register(call), content, way })
}

/// An operation on a shard.
pub fn draw(place: &OperationTarget, values: &Values, random: &mut Random) -> Result<Drawn> {
    let keys = place.shard.0.keys();
    let last = keys - 1;
    if place.first {
        return drawn(place.shard, Call::Out { key: last, value: values.draw(random) });
    }
    let key = random.below(keys as u64) as usize;
    let old = place.seen.get(key).cloned().flatten();
    let may_insert = key != last || old.is_some();
    let call = match random.below(20) {
        0..=4 if old.is_some() => Call::Replace { key, old, value: values.draw(random) },
        0..=6 => Call::Replace { key, old: None, value: values.draw(random) },
        7..=10 if may_insert => Call::Cas { key, value: values.draw(random) },
        11 => Call::Inp { key, old: None },
        12 => Call::Inp { key, old },
        7..=15 => Call::Rdp { key, fast: false },
        16..=17 => Call::Rdp { key, fast: true },
        18 => Call::RdAll { fast: false },
        _ => Call::RdAll { fast: true },
    };
    drawn(place.shard, call)
}

/// Reads all tuples of a shard, ordered.
pub fn read_all(shard: ShardId) -> Result<Drawn> {
    drawn(shard, Call::RdAll { fast: false })
}

/// What the answer says; and the value that each key is known to have had last, there or not.
pub fn understand(shard: ShardId, call: &Call, reply: Bytes) -> Result<Answer> {
    let reply = TupleReply::from_bytes(reply)?;
    let (result, seen) = match (call, reply) {
        (Call::Out { key, value } | Call::Cas { key, value }, TupleReply::Inserted { .. }) => {
            (Return::Inserted, vec![(*key, Some(value.clone()))])
        }
        (Call::Replace { key, value: new, .. }, TupleReply::Replaced { old, .. }) => {
            let old = value(&old, &head(shard, *key))?;
            (Return::Replaced { old }, vec![(*key, Some(new.clone()))])
        }
        (
            Call::Cas { key, .. }
            | Call::Replace { key, .. }
            | Call::Rdp { key, .. }
            | Call::Inp { key, .. },
            TupleReply::Found(found),
        ) => {
            let found = found.map(|found| value(&found, &head(shard, *key))).transpose()?;
            let seen = found.iter().map(|value| (*key, Some(value.clone()))).collect();
            (Return::Found { value: found }, seen)
        }
        (Call::RdAll { .. }, TupleReply::FoundAll { tuples, more }) => {
            let ascending = tuples.windows(2).all(|pair| pair[0].number < pair[1].number);
            ensure!(ascending, "tuples that are not in the order of their insertion: {tuples:?}");
            let mut found = Vec::new();
            for one in &tuples {
                let (fields, value) = parts(one)?;
                let key = (0..shard.0.keys()).find(|key| head(shard, *key) == fields);
                found.push((key.with_context(|| format!("not asked for: {one:?}"))?, value));
            }
            let seen = found.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
            (Return::FoundAll { tuples: found, more }, seen)
        }
        (_, reply) => bail!("{reply:?}"),
    };
    Ok(Answer { result: AnyReturn::Register(result), seen })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Workload;
    use perdura_protocol::Encode;
    use perdura_tuples::Found;

    const SHARD: ShardId = (Workload::Tuples, 7);

    fn found(shard: ShardId, key: usize, value: &str) -> Found {
        let tuple = entry(&head(shard, key), value).unwrap().tuple;
        Found { number: 1 + key as u64, expires: None, tuple }
    }

    #[test]
    fn one_call_alone_inserts_the_first_tuple_of_the_last_key() {
        let (values, mut random) = (Values::default(), Random::new(3));
        let last = SHARD.0.keys() - 1;
        let mut inserts = |place: &OperationTarget| {
            let call = draw(place, &values, &mut random).unwrap().call;
            match call {
                Any::Register(Call::Out { key, .. }) => {
                    assert!(place.first && key == last);
                    true
                }
                Any::Register(Call::Cas { key, .. }) => key == last,
                _ => false,
            }
        };
        let mut place = OperationTarget { shard: SHARD, first: true, seen: vec![None; last + 1] };
        assert!(inserts(&place));
        place.first = false;
        assert!((0..1_000).all(|_| !inserts(&place)));
        place.seen[last] = Some("v1x0".to_owned());
        assert!((0..1_000).any(|_| inserts(&place)));
    }

    #[test]
    fn a_tuple_that_was_not_asked_for_fits_nothing() {
        let rdp = Call::Rdp { key: 1, fast: true };
        let answer = |call: &Call, reply: TupleReply| {
            understand(SHARD, call, reply.to_bytes()).map(|answer| answer.result)
        };
        let one = |found: Found| answer(&rdp, TupleReply::Found(Some(found)));
        let value = Some("v1x70".to_owned());
        let right = AnyReturn::Register(Return::Found { value });
        assert_eq!(one(found(SHARD, 1, "v1x70")).unwrap(), right);
        assert!(one(found(SHARD, 0, "v1x70")).is_err());
        assert!(one(found((Workload::Tuples, 8), 1, "v1x70")).is_err());
        let expires = Some(perdura_protocol::Time(9));
        assert!(one(Found { expires, ..found(SHARD, 1, "v1x70") }).is_err());
        assert!(answer(&rdp, TupleReply::Inserted { number: 1 }).is_err());
        let all = Call::RdAll { fast: false };
        let several = |tuples| answer(&all, TupleReply::FoundAll { tuples, more: false });
        assert!(several(vec![found(SHARD, 0, "v1x0"), found(SHARD, 2, "v2x0")]).is_ok());
        assert!(several(vec![found(SHARD, 2, "v2x0"), found(SHARD, 0, "v1x0")]).is_err());
        assert!(several(vec![found(SHARD, 3, "v1x0")]).is_err());
    }
}
