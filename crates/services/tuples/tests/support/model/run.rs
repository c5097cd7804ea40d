//! What operations do in a space of the model.

use super::{Holder, Refused, Space, of_key, several};
use crate::support::key;
use perdura_protocol::Time;
use perdura_tuples::{
    Broken, Entry, Field, Kind, Operation, Pattern, SpaceDescription, Template, Tuple, TupleReply,
};

pub fn run(
    space: &mut Space,
    client: u8,
    now: u64,
    operation: &Operation,
) -> Result<TupleReply, Refused> {
    Ok(match operation {
        Operation::Describe => TupleReply::Described(SpaceDescription {
            options: space.options.clone(),
            creator: key(space.creator),
            tuples: space.tuples.len() as u64,
            waiters: 0,
            deleting: space.deleting,
        }),
        Operation::Out(entry) => TupleReply::Inserted { number: space.out(entry, now) },
        Operation::OutAll(entries) => {
            let first = space.next;
            for entry in entries {
                space.out(entry, now);
            }
            TupleReply::InsertedAll { first, count: entries.len() as u32 }
        }
        Operation::Rdp(template) | Operation::Rd { template, .. } => {
            TupleReply::Found(space.readable(template, client).into_iter().next())
        }
        Operation::Inp(template) | Operation::In { template, .. } => {
            let found = space.takeable(template, client).into_iter().next();
            space.remove(found.as_slice());
            TupleReply::Found(found)
        }
        Operation::RdAll { template, after, limit } => {
            let mut found = space.readable(template, client);
            found.retain(|found| found.number > *after);
            let (tuples, more) = several(found, *limit);
            TupleReply::FoundAll { tuples, more }
        }
        Operation::InAll { template, limit } => {
            let (tuples, more) = several(space.takeable(template, client), *limit);
            space.remove(&tuples);
            TupleReply::FoundAll { tuples, more }
        }
        Operation::Cas { template, entry } => {
            match space.there(template, client).into_iter().next() {
                Some(found) => TupleReply::Found(Some(found)),
                None => TupleReply::Inserted { number: space.out(entry, now) },
            }
        }
        Operation::Replace { template, entry } => {
            match space.takeable(template, client).into_iter().next() {
                None => TupleReply::Found(None),
                Some(old) => {
                    space.remove(std::slice::from_ref(&old));
                    TupleReply::Replaced { old, number: space.out(entry, now) }
                }
            }
        }
        Operation::Renew { number, lease_ms } => renew(space, client, now, *number, *lease_ms),
        Operation::Claim { key, entry, .. } => {
            let template = of_key(entry, *key);
            if space.tuples.iter().any(|held| held.matches(&template)) {
                TupleReply::Found(None)
            } else {
                TupleReply::Inserted { number: space.out(entry, now) }
            }
        }
        Operation::Lease { template, lease_ms, .. } => {
            let Some(found) = space.takeable(template, client).into_iter().next() else {
                return Ok(TupleReply::Leased(None));
            };
            let held = space.get(found.number).unwrap();
            held.token += 1;
            held.leases += 1;
            held.holder = Holder::Leased { client, until: now + lease_ms };
            TupleReply::Leased(Some(held.leased(Some(now + lease_ms))))
        }
        Operation::Finish { number, token } => {
            let held = has_leased(space, client, *number, *token);
            space.tuples.retain(|other| !held || other.number != *number);
            TupleReply::Holding { held, until: None }
        }
        Operation::Return { number, token } => {
            let held = has_leased(space, client, *number, *token);
            if held {
                space.give_back(*number, now);
            }
            TupleReply::Holding { held, until: None }
        }
        Operation::Extend { number, token, lease_ms } => {
            if !has_leased(space, client, *number, *token) {
                return Ok(TupleReply::Holding { held: false, until: None });
            }
            let until = now + lease_ms;
            space.get(*number).unwrap().holder = Holder::Leased { client, until };
            TupleReply::Holding { held: true, until: Some(Time(until)) }
        }
        Operation::Add { fields, amount } => return add(space, client, now, fields, *amount),
        Operation::Break { number } => match space.get(*number).map(|held| held.holder) {
            None => TupleReply::Broken(Broken::Absent),
            Some(Holder::Offered { .. }) => return Err(Refused),
            Some(Holder::Leased { .. }) => {
                space.give_back(*number, now);
                TupleReply::Broken(Broken::Returned)
            }
            Some(Holder::Nobody) => {
                space.tuples.retain(|held| held.number != *number);
                TupleReply::Broken(Broken::Removed)
            }
        },
        _ => unreachable!("they came before"),
    })
}

fn has_leased(space: &mut Space, client: u8, number: u64, token: u64) -> bool {
    space.get(number).is_some_and(|held| {
        held.token == token
            && matches!(held.holder, Holder::Leased { client: holder, .. } if holder == client)
    })
}

fn add(
    space: &mut Space,
    client: u8,
    now: u64,
    fields: &Tuple,
    amount: i64,
) -> Result<TupleReply, Refused> {
    let mut template: Vec<Pattern> = fields.fields().map(Pattern::Value).collect();
    template.push(Pattern::Kind(Kind::Integer));
    let template = Template { fields: template };
    let counter = |value: i64| {
        let fields: Vec<Field> = fields.fields().chain([value.into()]).collect();
        Tuple::new(&fields).unwrap()
    };
    let Some(old) = space.takeable(&template, client).into_iter().next() else {
        if space.tuples.iter().any(|held| held.is(&template, &held.entry.take, client)) {
            return Err(Refused);
        }
        let number = space.out(&Entry::new(counter(amount)), now);
        return Ok(TupleReply::Added { number, value: amount });
    };
    let Some(Field::Integer(before)) = old.tuple.fields().last() else { unreachable!() };
    let value = before.checked_add(amount).ok_or(Refused)?;
    let held = space.get(old.number).unwrap().clone();
    space.remove(&[old]);
    let number = space.out(&Entry { tuple: counter(value), ..held.entry }, now);
    space.get(number).unwrap().expires = held.expires;
    Ok(TupleReply::Added { number, value })
}

fn renew(space: &mut Space, client: u8, now: u64, number: u64, lease: Option<u64>) -> TupleReply {
    let held = space.get(number);
    match held.filter(|held| held.is_free() && held.entry.take.admits(key(client))) {
        None => TupleReply::Renewed { renewed: false, expires: None },
        Some(held) => {
            held.expires = lease.map(|lease| now + lease);
            let expires = held.expires.map(Time);
            if held.expires == Some(now) {
                space.tuples.retain(|held| held.number != number);
            }
            TupleReply::Renewed { renewed: true, expires }
        }
    }
}
